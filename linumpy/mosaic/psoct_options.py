"""Options of the PS-OCT format: camera, angle, depths, and their flags."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from linumpy.core.errors import InputError

STAGE_TO_ARRAY = "-y,+x"
"""Rows of the grid run against the stage's y, columns along its x."""


@dataclass(frozen=True)
class PsoctOptions:
    """Selection of the data.

    Attributes
    ----------
    polarization
        1 for the first camera, 2 for the second.
    angle_index, n_angles
        Files take turns: file i was imaged at angle ``i mod n_angles``.
    depth_px
        First depth sample that is kept, and the first that is not.
    return_complex
        Whether samples stay complex instead of becoming magnitudes.
    """

    polarization: int = 1
    angle_index: int = 0
    n_angles: int = 1
    depth_px: tuple[int, int] = (320, 750)
    return_complex: bool = False

    def __post_init__(self) -> None:
        """Refuse what no file can answer."""
        if self.polarization not in (1, 2):
            raise InputError(f"--polarization {self.polarization}: expected 1 or 2")
        if self.n_angles < 1 or not 0 <= self.angle_index < self.n_angles:
            raise InputError(
                f"--angle_index {self.angle_index}, --n_angles {self.n_angles}: expected an index "
                "from 0 to below the number of angles"
            )
        if not 0 <= self.depth_px[0] < self.depth_px[1]:
            raise InputError(
                f"--depth_range {self.depth_px[0]} {self.depth_px[1]}: expected a rising range"
            )


def add_psoct_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `PsoctOptions`."""
    default = PsoctOptions()
    group = parser.add_argument_group("PS-OCT")
    group.add_argument(
        "--polarization", type=int, default=default.polarization,
        help="1 for the first camera, 2 for the second",
    )  # fmt: skip
    group.add_argument(
        "--angle_index", type=int, default=default.angle_index, help="angle that is read, from 0"
    )
    group.add_argument(
        "--n_angles", type=int, default=default.n_angles, help="angles that files take turns with"
    )
    group.add_argument(
        "--depth_range", type=int, nargs=2, default=default.depth_px, metavar=("FIRST", "STOP"),
        help="first depth sample that is kept, and the first that is not",
    )  # fmt: skip
    group.add_argument(
        "--return_complex", action="store_true",
        help="keep complex samples (complex64) instead of magnitudes",
    )  # fmt: skip


def psoct_options(args: argparse.Namespace) -> PsoctOptions:
    """Return what the flags of `add_psoct_options` say."""
    return PsoctOptions(
        polarization=args.polarization,
        angle_index=args.angle_index,
        n_angles=args.n_angles,
        depth_px=(args.depth_range[0], args.depth_range[1]),
        return_complex=args.return_complex,
    )
