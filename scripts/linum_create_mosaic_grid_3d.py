#!/usr/bin/env python
"""Turn the raw tiles of one slice into a mosaic grid."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, progress, run

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
        "--axial_resolution", type=float, metavar="UM",
        help="depth step of a sample; without it, axial_resolution_um of metadata.json",
    )  # fmt: skip
    parser.add_argument(
        "--slicing_interval", type=float, metavar="UM",
        help="distance of the cuts; without it, slice_thickness (mm) of metadata.json",
    )  # fmt: skip
    parser.add_argument(
        "-r", "--resolution", type=float, default=-1.0, metavar="UM",
        help="isotropic voxel of the grid; -1 keeps the voxels of the microscope",
    )  # fmt: skip
    parser.add_argument(
        "--fix_galvo_shift", action=argparse.BooleanOptionalAction, default=True,
        help="find where the fly-back band lies; without, it is the last A-lines",
    )  # fmt: skip
    parser.add_argument(
        "--galvo_threshold", type=float, default=0.6, metavar="C",
        help="confidence (0 to 1) from which the place of the band is believed",
    )  # fmt: skip
    parser.add_argument(
        "--stage_to_array", default="+x,+y", metavar="AXES",
        help="signed stage axes along the A-lines (axis 1) and the B-scans (axis 2); "
        "write --stage_to_array=-x,+y when the first sign is a minus",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script."""
    args = parse(build_parser(), argv)
    from linumpy.device import resolve
    from linumpy.mosaic.create_mosaic_grid_3d import GridOptions, create_mosaic_grid_3d

    create_mosaic_grid_3d(
        args.from_root_directory,
        args.slice,
        args.output,
        GridOptions(
            axial_resolution_um=args.axial_resolution,
            slicing_interval_um=args.slicing_interval,
            resolution_um=args.resolution,
            fix_galvo_shift=args.fix_galvo_shift,
            galvo_threshold=args.galvo_threshold,
            stage_to_array=args.stage_to_array,
        ),
        device=resolve(args.use_gpu),
        overwrite=args.overwrite,
        progress=progress,
    )


if __name__ == "__main__":
    run(main)
