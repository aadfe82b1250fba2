#!/usr/bin/env python
"""Convert a NIfTI volume to OME-Zarr."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit, add_pyramid_resolutions
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Convert a NIfTI volume to OME-Zarr.\n\n"
        "Axis 2 (x) runs to the right, axis 1 (y) to anterior and depth (z) to superior, as the\n"
        "file's affine says, in micrometres."
    )
    parser.add_argument("input", type=as_path, help="NIfTI volume (.nii, .nii.gz)")
    parser.add_argument("output", type=Path, help="OME-Zarr to write")
    add_pyramid_resolutions(parser, of_pipeline=False)
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the volume."""
    args = parse(build_parser(), argv)

    from linumpy.io.convert import read_resolutions
    from linumpy.io.convert_nifti import convert_nifti_to_zarr

    volume = convert_nifti_to_zarr(
        args.input,
        args.output,
        read_resolutions(args.pyramid_resolutions),
        assume_unit=args.assume_unit,
        overwrite=args.overwrite,
    )

    print(f"{args.output}: {volume.shape} voxels of {volume.voxel_um} um (z, axis 1, axis 2)")


if __name__ == "__main__":
    run(main)
