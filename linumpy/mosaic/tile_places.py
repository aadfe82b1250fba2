"""Find the grid indices of tiles from stage positions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.grid import NOMINAL_OVERLAP_FRACTION, GridTile
from linumpy.io.stage_axes import parse_stage_to_array

Key = tuple[int, int]

_SAME_LINE = 0.25


@dataclass(frozen=True)
class TilePlaces:
    """The full rectangle of a grid, and which tile lies where.

    Attributes
    ----------
    numbers
        Number of the tile at each place, in rising order of places; holes have none.
    tiles
        All places with their stage positions.
    overlap_fraction
        Mean of both axes, by the steps between tiles; nominal for a single tile.
    """

    numbers: Mapping[Key, int]
    tiles: tuple[GridTile, ...]
    overlap_fraction: float


def places_from_positions(
    files: Sequence[Path],
    stage_mm: np.ndarray,
    fov_um: np.ndarray,
    stage_to_array: str,
    advice: str = "",
) -> TilePlaces:
    """Find the places of tiles whose indices are not known.

    Centres nearer than a quarter of the field of view along an axis share a line of the grid. A gap
    of two steps is a line of which no tile was imaged. Holes get the nominal position.

    Parameters
    ----------
    files
        Of each tile, for messages.
    stage_mm
        Shape (n, 2): stage x and y of each tile's centre.
    fov_um
        Field of view along axis 1 and axis 2.
    stage_to_array
        Signed stage axes that run along axis 1 and axis 2.
    advice
        End of the message on two tiles at one place.

    Raises
    ------
    InputError
        When two tiles share a place.
    """
    axes = parse_stage_to_array(stage_to_array)
    centre = np.stack([sign * stage_mm[:, axis] for axis, sign in axes], axis=1) * 1e3
    index, step = _grid_index(centre, fov_um)
    _reject_shared_place(files, index, advice)
    numbers = {(int(i), int(j)): n for n, (i, j) in enumerate(index)}
    tiles = tuple(
        _place(key, numbers.get(key), centre, index, step, axes)
        for key in np.ndindex(*(index.max(axis=0) + 1))
    )
    return TilePlaces(dict(sorted(numbers.items())), tiles, _overlap(step, fov_um))


def _grid_index(centre: np.ndarray, fov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each tile's place in the grid, and the step along both axes (um; 0 for one row)."""
    index, steps = np.zeros(centre.shape, int), np.zeros(2)
    for axis in (0, 1):
        order = np.argsort(centre[:, axis], kind="stable")
        ends = np.flatnonzero(np.diff(centre[order, axis]) > _SAME_LINE * fov[axis]) + 1
        lines = np.split(order, ends)
        if len(lines) == 1:
            continue
        gaps = np.diff([centre[line, axis].mean() for line in lines])
        steps[axis] = np.median(gaps)
        # A line of which no tile was imaged leaves a gap of two steps.
        numbers = np.cumsum([0, *np.rint(gaps / steps[axis]).clip(1)]).astype(int)
        for number, line in zip(numbers, lines, strict=True):
            index[line, axis] = number
    return index, steps


def _reject_shared_place(files: Sequence[Path], index: np.ndarray, advice: str) -> None:
    seen: dict[tuple[int, ...], Path] = {}
    for path, place in zip(files, index.tolist(), strict=True):
        other = seen.setdefault(tuple(place), path)
        if other is not path:
            raise InputError(
                f"{other} and {path}: two tiles at one position; expected tiles a step "
                f"apart{advice}"
            )


def _place(
    key: Key,
    number: int | None,
    centre: np.ndarray,
    index: np.ndarray,
    step: np.ndarray,
    axes: Sequence[tuple[int, int]],
) -> GridTile:
    if number is not None:
        position = centre[number]
        flags: tuple[str, ...] = ()
    else:
        position = np.median(centre - index * step, axis=0) + np.asarray(key) * step
        flags = ("nominal_position",)
    stage_mm = [0.0, 0.0]
    for (axis, sign), value in zip(axes, position, strict=True):
        stage_mm[axis] = sign * float(value) / 1e3
    return GridTile(*key, stage_mm[0], stage_mm[1], None, number is not None, flags)


def _overlap(step: np.ndarray, fov: np.ndarray) -> float:
    shares = [1 - s / f for s, f in zip(step, fov, strict=True) if s > 0]
    if not shares:
        return NOMINAL_OVERLAP_FRACTION
    return round(float(np.clip(np.mean(shares), 0, 1 - 1e-6)), 6)
