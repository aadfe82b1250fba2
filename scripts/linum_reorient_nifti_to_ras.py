#!/usr/bin/env python
"""Reorient a NIfTI volume to right, anterior, superior."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Reorient a NIfTI volume to right, anterior, superior.\n\n"
        "Voxels are moved, not interpolated; each keeps its value and its place in the world."
    )
    parser.add_argument("input", type=as_path, help="NIfTI volume (.nii, .nii.gz)")
    parser.add_argument("output", type=Path, help=".nii or .nii.gz to write")
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Reorient the volume."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert_nifti import reorient_nifti_to_ras

    before = reorient_nifti_to_ras(
        args.input, args.output, assume_unit=args.assume_unit, overwrite=args.overwrite
    )
    print(f"{args.output}: RAS, was {before}")


if __name__ == "__main__":
    run(main)
