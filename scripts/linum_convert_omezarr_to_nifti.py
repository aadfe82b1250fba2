#!/usr/bin/env python
"""Export an OME-Zarr volume to NIfTI."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit, add_choice, chosen
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Export an OME-Zarr volume to NIfTI.\n\n"
        "A pyramid level with the voxel size asked for is written as it is, otherwise the volume\n"
        "is resampled from the nearest finer level. NIfTI axes are (axis 2, axis 1, depth).\n\n"
        "Where the orientation is known, from the volume's metadata (as after alignment to an\n"
        "atlas) or from --orientation, viewers write letters (R, A, S) beside the image. Without\n"
        "it the codes of sform and qform are 0."
    )
    parser.add_argument("input", type=as_path, help="OME-Zarr volume")
    parser.add_argument("output", type=Path, help=".nii or .nii.gz to write")
    parser.add_argument(
        "-r",
        "--resolution",
        type=float,
        metavar="UM",
        help="voxel side in micrometres; the finest level when not given",
    )
    parser.add_argument(
        "--orientation",
        default="",
        metavar="CODE",
        help="where z, axis 1 and axis 2 point in the body, three letters such as PRS: of R or L, "
        "A or P, S or I",
    )
    add_choice(parser)
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Export the volume."""
    args = parse(build_parser(), argv)

    from linumpy.core.log import logger
    from linumpy.io.nifti import convert_omezarr_to_nifti

    voxel_um, orientation = convert_omezarr_to_nifti(
        args.input,
        args.output,
        args.resolution,
        assume_unit=args.assume_unit,
        choice=chosen(args),
        orientation=args.orientation,
        overwrite=args.overwrite,
    )
    size = " x ".join(f"{v:g}" for v in voxel_um)
    print(f"{args.output}: voxels of {size} um (z, axis 1, axis 2)")
    if orientation:
        print(f"z, axis 1, axis 2 point to {orientation}; sform and qform lead there")
    else:
        logger.warning(
            "orientation unknown: the codes of sform and qform are 0, and the image may be shown "
            "mirrored or rotated; give --orientation, such as PRS (docs/report.md)"
        )


if __name__ == "__main__":
    run(main)
