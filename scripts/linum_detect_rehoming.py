#!/usr/bin/env python
"""Correct stage glitches in the table of shifts between slices."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.gaps import RehomingParams

DESCRIPTION = """Correct stage glitches in the table of shifts between slices.

Steps of whole tiles are subtracted, slices that lie off neighbours which agree are put between
them; large steps that last are kept and marked as not reliable."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("output", type=Path, help="table to write (shifts_xy_clean.csv)")
    parser.add_argument("--slice_config_in", type=Path, help="slice_config.csv to read")
    parser.add_argument(
        "--slice_config_out", type=Path, help="the same, stamped with what was found, to write"
    )
    parser.add_argument(
        "--diagnostics",
        type=Path,
        metavar="FOLDER",
        help="folder for rehoming_report.json and rehoming_plot.png",
    )
    add_arguments(parser, RehomingParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Clean the table."""
    parser = build_parser()
    args = parse(parser, argv)
    if (args.slice_config_in is None) != (args.slice_config_out is None):
        parser.error("--slice_config_in and --slice_config_out go together")

    from linumpy.mosaic.shift_files import clean_shifts_file
    from linumpy.store.atomic import refuse_any, refuse_existing

    refuse_existing(args.output, args.overwrite)
    refuse_any(args.overwrite, args.slice_config_out)
    clean_shifts_file(
        args.shifts,
        args.output,
        build(RehomingParams, read_params(args)),
        config_in=args.slice_config_in,
        config_out=args.slice_config_out,
        diagnostics=args.diagnostics,
        overwrite=args.overwrite,
    )


if __name__ == "__main__":
    run(main)
