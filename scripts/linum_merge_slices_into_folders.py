#!/usr/bin/env python
"""Sort the tiles of one flat folder into a folder a slice."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Sort tiles that lie flat in one folder into a folder a slice: slice_zNN/tiles.",
        overwrite=False,
    )
    parser.add_argument("raw", type=Path, help="folder with tile_xNN_yNN_zNN folders")
    parser.add_argument(
        "--dry_run", action="store_true", help="print what would be moved, and move nothing"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Move the tiles."""
    args = parse(build_parser(), argv)

    from linumpy.mosaic.merge_slices_into_folders import merge_slices_into_folders

    moves = merge_slices_into_folders(args.raw, dry_run=args.dry_run)
    for source, target in moves:
        print(f"{source} -> {target}")
    print(f"{len(moves)} tiles {'would be moved' if args.dry_run else 'moved'}")


if __name__ == "__main__":
    run(main)
