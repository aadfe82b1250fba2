#!/usr/bin/env python
"""Resample a NIfTI volume to another voxel size."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser("Resample a NIfTI volume to another voxel size, anti-aliased and linear.")
    parser.add_argument("input", type=as_path, help="NIfTI volume (.nii, .nii.gz)")
    parser.add_argument("output", type=Path, help=".nii or .nii.gz to write")
    parser.add_argument(
        "-r",
        "--resolution",
        metavar="UM",
        required=True,
        help="voxel size in micrometres: one number, or three (z,y,x) along its third, second"
        " and first index",
    )
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Resample the volume."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert import parse_voxel_um
    from linumpy.io.convert_nifti import resample_nifti

    shape = resample_nifti(
        args.input,
        args.output,
        parse_voxel_um(args.resolution),
        assume_unit=args.assume_unit,
        overwrite=args.overwrite,
    )
    print(f"{args.output}: {shape} voxels")


if __name__ == "__main__":
    run(main)
