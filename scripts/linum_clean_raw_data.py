#!/usr/bin/env python
"""Delete raw samples whose mosaic grids hold the same; headers and side files stay."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.mosaic.grid_options import NATIVE_RESOLUTION, add_grid_options, grid_options


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Delete raw samples whose mosaic grids hold the same; headers and side files stay.\n\n"
            "All tiles are read from both and compared before the first file is deleted. Give the\n"
            "flags that the grids were made with."
        ),
        overwrite=False,
    )
    parser.add_argument("raw", type=Path, help="folder of the raw acquisition")
    parser.add_argument("grids", type=Path, help="folder of mosaic grids (*.ome.zarr)")
    parser.add_argument("-z", "--slice", type=int, nargs="+", metavar="ID", help="slices; all")
    parser.add_argument("--dry_run", action="store_true", help="compare, and delete nothing")
    parser.add_argument(
        "-r", "--resolution", type=float, default=NATIVE_RESOLUTION, metavar="UM",
        help="isotropic voxel of the grids; -1 for the voxels of the microscope",
    )  # fmt: skip
    add_grid_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Compare and delete."""
    args = parse(build_parser(), argv)

    from linumpy.mosaic.clean_raw_data import clean_raw_data

    found = clean_raw_data(
        args.raw,
        args.grids,
        args.slice,
        grid_options(args, args.resolution),
        dry_run=args.dry_run,
    )
    verb = "would be deleted" if args.dry_run else "deleted"
    for one in found:
        for path in one.files:
            print(path)
    n_bytes = sum(one.n_bytes for one in found)
    print(f"{sum(len(one.files) for one in found)} files, {n_bytes / 1e9:.3f} GB {verb}")


if __name__ == "__main__":
    run(main)
