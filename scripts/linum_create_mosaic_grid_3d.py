#!/usr/bin/env python
"""Turn the raw tiles of one slice into a mosaic grid."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, progress, run
from linumpy.mosaic.grid_options import NATIVE_RESOLUTION, add_grid_options, grid_options

DESCRIPTION = """Turn the raw tiles of one slice into a mosaic grid (OME-Zarr).

The galvo's fly-back band is found and cut out; samples that are not finite become 0 and are
masked; places without a tile stay empty and are masked."""


def build_parser() -> argparse.ArgumentParser:
    """Return the script's command line."""
    parser = make_parser(DESCRIPTION, gpu=True)
    parser.add_argument("output", type=Path, help="mosaic grid to write, *.ome.zarr")
    parser.add_argument(
        "--from_root_directory", type=Path, required=True, metavar="RAW",
        help="folder of the raw acquisition",
    )  # fmt: skip
    parser.add_argument(
        "-z", "--slice", type=int, required=True, metavar="ID", help="id of the slice"
    )
    parser.add_argument(
        "-r", "--resolution", type=float, default=NATIVE_RESOLUTION, metavar="UM",
        help="isotropic voxel of the grid; -1 keeps the voxels of the microscope",
    )  # fmt: skip
    add_grid_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    args = parse(build_parser(), argv)
    from linumpy.device import resolve
    from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d

    create_mosaic_grid_3d(
        args.from_root_directory,
        args.slice,
        args.output,
        grid_options(args, args.resolution),
        device=resolve(args.use_gpu, args.gpu_memory),
        overwrite=args.overwrite,
        progress=progress,
    )


if __name__ == "__main__":
    run(main)
