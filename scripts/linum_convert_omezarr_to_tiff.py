#!/usr/bin/env python
"""Write a level of an OME-Zarr volume as OME-TIFF."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit, add_choice, chosen
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser("Write a level of an OME-Zarr volume as OME-TIFF, plane by plane.")
    parser.add_argument("input", type=as_path, help="OME-Zarr volume")
    parser.add_argument("output", type=Path, help=".tif or .tiff to write")
    parser.add_argument("--level", type=int, default=0, help="level to write, 0 is the finest")
    add_choice(parser)
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the level."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert_tiff import convert_omezarr_to_tiff

    voxel_um = convert_omezarr_to_tiff(
        args.input,
        args.output,
        args.level,
        assume_unit=args.assume_unit,
        choice=chosen(args),
        overwrite=args.overwrite,
    )
    print(f"{args.output}: voxels of {voxel_um} um (z, axis 1, axis 2)")


if __name__ == "__main__":
    run(main)
