#!/usr/bin/env python
"""Write the table of slices that go into the brain."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import add_galvo_threshold
from linumpy.params import add_assume_unit

DESCRIPTION = """Write slice_config.csv: one row a slice, saying whether it goes into the brain.

Edit the column `use` by hand where needed."""


def build_parser() -> argparse.ArgumentParser:
    """Return the script's command line."""
    parser = make_parser(DESCRIPTION)
    parser.add_argument(
        "source", type=Path, help="folder of raw tiles or of mosaic grids, or a shifts_xy.csv"
    )
    parser.add_argument("output", type=Path, help="table to write, *.csv")
    parser.add_argument(
        "--exclude", default="", metavar="IDS", help="slices not to use, such as 7,9-12"
    )
    parser.add_argument(
        "--exclude_first", type=int, default=0, metavar="N",
        help="number of slices from the first on that were for calibration",
    )  # fmt: skip
    parser.add_argument(
        "--only", metavar="IDS", help="slices to work on, such as 7,9-12; without it all"
    )
    parser.add_argument(
        "--bad", type=int, nargs="+", default=[], metavar="ID",
        help="slices with raw tiles that cannot be read, not to be used",
    )  # fmt: skip
    parser.add_argument(
        "--given", type=Path, metavar="TABLE",
        help="slice_config.csv with decisions made before, which win",
    )  # fmt: skip
    parser.add_argument(
        "--detect_galvo", action=argparse.BooleanOptionalAction, default=False,
        help="for raw tiles: look for the fly-back band of each slice too",
    )  # fmt: skip
    add_galvo_threshold(parser)
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    args = parse(build_parser(), argv)
    from linumpy.io.table_rows import parse_ids
    from linumpy.io.tables import write_slice_config
    from linumpy.mosaic.slice_config import generate_slice_config
    from linumpy.store.atomic import refuse_existing

    refuse_existing(args.output, args.overwrite)
    rows = generate_slice_config(
        args.source,
        exclude=parse_ids(args.exclude),
        exclude_first=args.exclude_first,
        detect_galvo=args.detect_galvo,
        galvo_threshold=args.galvo_threshold,
        assume_unit=args.assume_unit,
        given=args.given,
        bad=args.bad,
        only=None if args.only is None else parse_ids(args.only),
    )
    write_slice_config(args.output, rows, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)
