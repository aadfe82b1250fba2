#!/usr/bin/env python
"""Estimate time, memory and disk of a pipeline run from headers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, parse_bytes, run
from linumpy.params import read_params
from linumpy.planning.flags import add_pipeline_flags, given_flags, pipeline_schema

DESCRIPTION = """Estimate time, memory and disk of a pipeline run from headers.

Reads the headers of an acquisition, no samples: what is wrong with it, all at once, as a launch of
the pipeline would say; else what is there, what will be written against what the disks have free,
memory a task, time by process and in all, and what to choose. Times come from measured ones
(docs/scale.md); sizes on disk are those of data that hardly compress."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("source", type=Path, help="folder of raw tiles or of mosaic grids")
    parser.add_argument(
        "--params", metavar="JSON", help="parameters of the pipeline; - reads standard input"
    )
    # Not called use_gpu: that would begin to start CUDA.
    parser.add_argument(
        "--use_gpu",
        dest="on_gpu",
        action=argparse.BooleanOptionalAction,
        help="plan for GPUs, which need not be here; without it, as the parameters say",
    )
    parser.add_argument(
        "--gpu_count", type=int, metavar="N", help="GPUs of the run, 0 for those of a batch system"
    )
    parser.add_argument(
        "--gpu_memory", type=parse_bytes, metavar="SIZE", help="device memory of a task"
    )
    parser.add_argument("--cores", type=int, metavar="N", help="cores; this machine's by default")
    parser.add_argument(
        "--memory", type=parse_bytes, metavar="SIZE", help="memory; this machine's by default"
    )
    parser.add_argument(
        "--work_dir",
        type=Path,
        default=Path("work"),
        metavar="FOLDER",
        help="where Nextflow works",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="JSON file to write")
    parser.add_argument(
        "--checked", action="store_true", help="leave out what a launch checks, as it has been done"
    )
    add_pipeline_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Plan."""
    args = parse(build_parser(), argv)

    from linumpy.launch.parameters import defaults
    from linumpy.launch.preflight import preflight
    from linumpy.launch.problems import ProblemsError
    from linumpy.planning.machine import has_slurm, this_machine
    from linumpy.planning.plan import make_plan, with_given
    from linumpy.planning.table import plan_json, plan_text
    from linumpy.store.atomic import refuse_any, write_json

    refuse_any(args.overwrite, args.json)
    values = {"use_gpu": args.on_gpu, "gpu_count": args.gpu_count}
    given = {name: value for name, value in values.items() if value is not None}
    params = {**read_params(argparse.Namespace(params=args.params)), **given_flags(args), **given}
    if not args.checked:
        schema = pipeline_schema()
        # A plan for GPUs that are not here is fine.
        places = {"input": str(args.source), "work_dir": str(args.work_dir), "use_gpu": False}
        try:
            asked = {**defaults(schema), **params, "input": str(args.source)}
            preflight(asked, schema, places)
        except ProblemsError as error:
            print("linum_plan.py: error:", "\n".join(error.lines()), file=sys.stderr)
            sys.exit(1)
    plan = make_plan(
        args.source,
        params,
        with_given(this_machine(), args.cores, args.memory, args.gpu_memory),
        work_folder=args.work_dir,
        slurm=has_slurm(),
    )
    print(plan_text(plan))
    if args.json is not None:
        write_json(args.json, plan_json(plan), overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
