"""Names of faults that a simulated acquisition can have at a known slice, and their flag.

The names are the kinds of `linumpy.follow.verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from linumpy.core.errors import InputError
from linumpy.phantom.params import PhantomParams

if TYPE_CHECKING:
    from linumpy.phantom.artefacts import Artefact
    from linumpy.phantom.cutting import SlicePlan, TilePlan

TILE_KINDS = ("defocus", "dead_tile", "dark_tile", "tile_short", "missing_tile", "debris", "bubble")
SLICE_KINDS = (
    "galvo_drift", "stage_glitch", "missed_cut", "double_cut", "wedge", "border", "slow_scan"
)  # fmt: skip
KINDS = (*TILE_KINDS, *SLICE_KINDS)
STRENGTHS = {
    "defocus": 1.5,
    "dead_tile": 0.0,
    "dark_tile": 0.05,
    "tile_short": 0.6,
    "galvo_drift": 1.5,
    "stage_glitch": 1.2,
    "missed_cut": 0.0,
    "double_cut": 2.0,
    "wedge": 0.8,
    "border": 0.5,
    "slow_scan": 3.0,
}
"""How strong faults are where nothing else is said: Rayleigh lengths that the focus lies deeper;
0 for zeros, 1 for the noise of the detector; amplitude over that of other tiles; share of the
samples; fly-back widths from the first tile to the last; mm; intervals that the knife took (twice);
fall across the mosaic over the gap; share of the mosaic that it lies beside its place; times as
long."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    tile
        (ix, iy) for those of a tile; None for all tiles of the slice.
    strength
        In the unit of `STRENGTHS`, which is taken where it is None.
    angle_deg
        Direction of a glitch, a wedge and a mosaic beside its place, from axis 1 towards axis 2.
    artefact
        Debris or bubble; None for a large one in the middle of the tile.
    """

    kind: str
    slice_id: int
    tile: tuple[int, int] | None = None
    strength: float | None = None
    angle_deg: float = 0.0
    artefact: Artefact | None = None

    @property
    def value(self) -> float:
        """Strength, in the unit of `STRENGTHS`; 0 of kinds that have none."""
        return STRENGTHS.get(self.kind, 0.0) if self.strength is None else self.strength

    def is_at(self, slice_plan: SlicePlan, tile: TilePlan) -> bool:
        """Whether a tile of a slice has it."""
        here = self.tile in (None, (tile.ix, tile.iy))
        return here and slice_plan.slice_id == self.slice_id


def parse_fault(text: str, params: PhantomParams) -> Fault:
    """Read ``KIND:SLICE`` or, of a tile, ``KIND:SLICE:IX:IY``; the middle tile where none is named.

    Raises
    ------
    InputError
        When the kind, the slice or the tile is not there.
    """
    kind, *numbers = text.split(":")
    if kind not in KINDS:
        raise InputError(f"--fault {text}: expected one of {', '.join(KINDS)}")
    try:
        slice_id, *place = (int(number) for number in numbers)
    except ValueError:
        raise InputError(f"--fault {text}: expected KIND:SLICE, such as double_cut:3") from None
    tile = (params.tiles_x // 2, params.tiles_y // 2) if kind in TILE_KINDS else None
    if place and (tile is None or len(place) != 2):
        raise InputError(f"--fault {text}: expected KIND:SLICE:IX:IY, of a tile's fault alone")
    if place:
        tile = (place[0], place[1])
    first = 1 if kind.endswith("_cut") else 0
    if not first <= slice_id < params.n_slices:
        raise InputError(f"--fault {text}: expected a slice from {first} to {params.n_slices - 1}")
    if tile and not (0 <= tile[0] < params.tiles_x and 0 <= tile[1] < params.tiles_y):
        raise InputError(f"--fault {text}: no such tile of {params.tiles_x} x {params.tiles_y}")
    return Fault(kind, slice_id, tile)
