#!/usr/bin/env python
"""Write the shifts between slices from stage positions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit

DESCRIPTION = """Write shifts_xy.csv: how far the stage moved from each slice to the next.

Only stage positions are used, no images."""


def build_parser() -> argparse.ArgumentParser:
    """Return the script's command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument("source", type=Path, help="folder of raw tiles or of mosaic grids")
    parser.add_argument("output", type=Path, help="table to write, *.csv")
    parser.add_argument(
        "--stage_to_array", default="+x,+y", metavar="AXES",
        help="signed stage axes along the A-lines and the B-scans of raw tiles; grids know theirs",
    )  # fmt: skip
    parser.add_argument(
        "--without", type=int, nargs="+", default=[], metavar="ID",
        help="slices to pass over: their headers are not read",
    )  # fmt: skip
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    args = parse(build_parser(), argv)
    from linumpy.io.tables import write_shifts
    from linumpy.mosaic.shifts import estimate_xy_shift_from_metadata, read_extents
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    shifts = estimate_xy_shift_from_metadata(
        read_extents(
            args.source,
            args.stage_to_array,
            assume_unit=args.assume_unit,
            without=args.without,
        )
    )
    write_shifts(args.output, shifts, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
