#!/usr/bin/env python
"""Convert a TIFF stack to OME-Zarr."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_pyramid_resolutions


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Convert a TIFF stack to OME-Zarr.\n\n"
        "Voxel sizes are those of OME-TIFF or ImageJ; -r gives those of other files. A folder is\n"
        "a stack too: its files are planes, in the order of the numbers in their names."
    )
    parser.add_argument("input", type=Path, help="TIFF stack, or folder of TIFF planes")
    parser.add_argument("output", type=Path, help="OME-Zarr to write")
    parser.add_argument(
        "-r",
        "--resolution",
        metavar="UM",
        help="voxel size in micrometres: one number, or three (z,y,x); wins over the file's",
    )
    parser.add_argument("--channel", type=int, metavar="N", help="which channel of several, from 0")
    add_pyramid_resolutions(parser, of_pipeline=False)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the stack."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert import parse_voxel_um, read_resolutions
    from linumpy.io.convert_tiff import convert_tiff_to_omezarr

    volume = convert_tiff_to_omezarr(
        args.input,
        args.output,
        None if args.resolution is None else parse_voxel_um(args.resolution),
        read_resolutions(args.pyramid_resolutions),
        channel=args.channel,
        overwrite=args.overwrite,
    )

    print(f"{args.output}: {volume.shape} voxels of {volume.voxel_um} um (z, axis 1, axis 2)")


if __name__ == "__main__":
    run(main)
