#!/usr/bin/env python
"""Convert the raw tiles of one slice to a mosaic grid."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.core.log import progress
from linumpy.mosaic.grid_options import NATIVE_RESOLUTION, add_grid_options, grid_options
from linumpy.mosaic.raw_formats import RAW_FORMATS, add_format_flags, chosen_format

DESCRIPTION = """Turn the raw tiles of one slice into a mosaic grid (OME-Zarr).

The galvo's fly-back band is found and cut out; samples that are not finite become 0 and are
masked; places without a tile stay empty and are masked.

With --data_type PSOCT the slice is a folder of Thorlabs .oct files with a .scan file."""


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
    # The stages of microscopes run differently: the default is that of the format.
    parser.set_defaults(stage_to_array=None)
    add_format_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = build_parser()
    args = parse(parser, argv)
    data_type, own = chosen_format(parser, args)
    if args.stage_to_array is None:
        args.stage_to_array = RAW_FORMATS[data_type].stage_to_array

    from linumpy.core.device import resolve
    from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d

    create_mosaic_grid_3d(
        args.from_root_directory,
        args.slice,
        args.output,
        grid_options(args, args.resolution),
        own,
        data_type=data_type,
        device=resolve(args.use_gpu, args.gpu_memory),
        overwrite=args.overwrite,
        progress=progress,
    )


if __name__ == "__main__":
    run(main)
