#!/usr/bin/env python
"""Write the report of a pipeline run as one HTML file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Write the report of a pipeline run as one self-contained HTML file.\n\n"
        "Parts of the run that are absent are left out; the report says so."
    )
    parser.add_argument("run", type=Path, help="output folder of the pipeline")
    parser.add_argument("output", type=Path, help="HTML file to write")
    parser.add_argument(
        "--info",
        metavar="JSON",
        help="file with any of subject, command_line, params, versions, nextflow, tasks; - reads "
        "standard input. What it lacks is taken from pipeline_info/run.json",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the report."""
    args = parse(build_parser(), argv)

    from linumpy.report.build import build_report
    from linumpy.report.collect import load_info
    from linumpy.store.atomic import refuse_existing, write_text

    refuse_existing(args.output, args.overwrite)
    page = build_report(args.run, load_info(args.info))
    write_text(args.output, page, overwrite=args.overwrite)
    print(args.output)


if __name__ == "__main__":
    run(main)
