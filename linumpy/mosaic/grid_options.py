"""Options for reading raw tiles, shared by all scripts that take a raw acquisition."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from linumpy.params import add_slice_id

NATIVE_RESOLUTION = -1.0


@dataclass(frozen=True)
class GridOptions:
    """Options of making a mosaic grid from a slice.

    Attributes
    ----------
    axial_resolution_um, slicing_interval_um
        Override ``metadata.json``; None keeps its value.
    resolution_um
        Isotropic voxel of the grid; -1 keeps the voxels of the microscope.
    fix_galvo_shift, galvo_threshold
        Whether to look for the fly-back band, and the confidence from which its place is accepted.
    stage_to_array
        Signed stage axes that run along axis 1 (A-lines) and axis 2 (B-scans).
    """

    axial_resolution_um: float | None = None
    slicing_interval_um: float | None = None
    resolution_um: float = NATIVE_RESOLUTION
    fix_galvo_shift: bool = True
    galvo_threshold: float = 0.6
    stage_to_array: str = "+x,+y"


def add_galvo_threshold(parser: argparse._ActionsContainer) -> None:
    """Add the flag of the confidence that the galvo's fix asks for."""
    parser.add_argument(
        "--galvo_threshold", type=float, default=0.6, metavar="C",
        help="confidence (0 to 1) from which the place of the band is accepted",
    )  # fmt: skip


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `GridOptions`, but for the resolution."""
    group = parser.add_argument_group("raw acquisition")
    group.add_argument(
        "--axial_resolution", type=float, metavar="UM",
        help="depth step of a sample; without it, axial_resolution_um of metadata.json",
    )  # fmt: skip
    group.add_argument(
        "--slicing_interval", type=float, metavar="UM",
        help="distance of the cuts; without it, slice_thickness (mm) of metadata.json",
    )  # fmt: skip
    group.add_argument(
        "--fix_galvo_shift", action=argparse.BooleanOptionalAction, default=True,
        help="find where the fly-back band lies; without, it is the last A-lines",
    )  # fmt: skip
    add_galvo_threshold(group)
    group.add_argument(
        "--stage_to_array", default="+x,+y", metavar="AXES",
        help="signed stage axes along the A-lines (axis 1) and the B-scans (axis 2); "
        "write --stage_to_array=-x,+y when the first sign is a minus",
    )  # fmt: skip


def add_raw_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the flags of a script that takes mosaic grids or a raw acquisition.

    Parameters
    ----------
    parser
        Gets ``--from_root_directory``, ``-z`` and the flags of `add_grid_options`.
    several
        Whether ``-z`` takes several slices, all by default, and ``--slice_config`` leaves some out.
    """
    parser.add_argument(
        "--from_root_directory", type=Path, metavar="RAW",
        help="folder of the raw acquisition, to read its tiles instead of mosaic grids",
    )  # fmt: skip
    if several:
        parser.add_argument(
            "-z", "--slice", type=int, nargs="+", metavar="ID",
            help="ids of the raw slices; all by default",
        )  # fmt: skip
        parser.add_argument(
            "--slice_config", type=Path,
            help="slice_config.csv; raw slices with use=false stay out",
        )  # fmt: skip
    else:
        parser.add_argument("-z", "--slice", type=int, metavar="ID", help="id of the raw slice")
    add_slice_id(parser, several=several)
    add_grid_options(parser)


def check_raw_arguments(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    has_grids: bool,
    *,
    several: bool = False,
) -> None:
    """Exit with status 2 unless mosaic grids or a raw acquisition were named, not both."""
    raw = args.from_root_directory is not None
    if raw == has_grids:
        parser.error("expected either mosaic grids or --from_root_directory")
    if raw and not several and args.slice is None:
        parser.error("--from_root_directory: expected the id of the slice as well (-z)")
    if raw and args.slice_id is not None:
        parser.error("--slice_id is for mosaic grids; raw slices are chosen with -z")
    given = args.slice is not None or getattr(args, "slice_config", None) is not None
    if not raw and (given or grid_options(args) != GridOptions()):
        parser.error("flags of a raw acquisition come with --from_root_directory alone")


def grid_options(args: argparse.Namespace, resolution_um: float = NATIVE_RESOLUTION) -> GridOptions:
    """Return what the flags of `add_grid_options` say."""
    return GridOptions(
        axial_resolution_um=args.axial_resolution,
        slicing_interval_um=args.slicing_interval,
        resolution_um=resolution_um,
        fix_galvo_shift=args.fix_galvo_shift,
        galvo_threshold=args.galvo_threshold,
        stage_to_array=args.stage_to_array,
    )
