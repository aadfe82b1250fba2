#!/usr/bin/env python
"""Show which steps between slices stand out, and where they lead."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.stage_params.gaps import ShiftAnalysisParams

DESCRIPTION = """Show which steps between slices stand out, and where they lead.

Writes analyze_shifts.json, shifts_drift.png and shifts_xy_filtered.csv, to look at: nothing else
uses them."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("shifts", type=Path, help="shifts_xy.csv")
    parser.add_argument("output", type=Path, help="folder to write to")
    add_arguments(parser, ShiftAnalysisParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Analyse the table."""
    args = parse(build_parser(), argv)

    from linumpy.mosaic.shift_files import analyze_shifts_file

    params = build(ShiftAnalysisParams, read_params(args))
    analyze_shifts_file(args.shifts, args.output, params, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
