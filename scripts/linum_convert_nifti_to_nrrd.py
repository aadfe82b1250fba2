#!/usr/bin/env python
"""Convert a NIfTI volume to NRRD."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser("Convert a NIfTI volume to NRRD: the same voxels at the same places.")
    parser.add_argument("input", type=as_path, help="NIfTI volume (.nii, .nii.gz)")
    parser.add_argument("output", type=Path, help=".nrrd to write")
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the volume."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert_nifti import convert_nifti_to_nrrd

    convert_nifti_to_nrrd(
        args.input, args.output, assume_unit=args.assume_unit, overwrite=args.overwrite
    )


if __name__ == "__main__":
    run(main)
