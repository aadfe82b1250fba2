#!/usr/bin/env python
"""Convert a bare Zarr array to an OME-Zarr volume."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_pyramid_resolutions
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser("Make an OME-Zarr volume of a bare Zarr array (z, axis 1, axis 2).")
    parser.add_argument("input", type=as_path, help="Zarr array, version 2 or 3")
    parser.add_argument("output", type=Path, help="OME-Zarr to write")
    parser.add_argument(
        "-r",
        "--resolution",
        metavar="UM",
        required=True,
        help="voxel size in micrometres: one number, or three (z,y,x)",
    )
    add_pyramid_resolutions(parser, of_pipeline=False)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the array."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert import parse_voxel_um, read_resolutions
    from linumpy.io.convert_zarr import convert_zarr_to_omezarr

    volume = convert_zarr_to_omezarr(
        args.input,
        args.output,
        parse_voxel_um(args.resolution),
        read_resolutions(args.pyramid_resolutions),
        overwrite=args.overwrite,
    )

    print(f"{args.output}: {volume.shape} voxels of {volume.voxel_um} um (z, axis 1, axis 2)")


if __name__ == "__main__":
    run(main)
