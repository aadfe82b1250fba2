"""Estimate the stage's linear error from the tile pairs of several slices together.

Slices with little tissue say little about scale, rotation and squareness of the stage; all slices
together do. Displacements of accepted pairs are fitted by ``d = A·(q_b − q_a)`` with the reported
positions q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.robust import robust_spread
from linumpy.geometry.least_squares import least_squares
from linumpy.io.grid import GridInfo
from linumpy.tiles.positions import PlacedTile, TileRegistration

_ITERATIONS = 20
_MIN_SIGMA_UM = 0.05


@dataclass(frozen=True)
class StageTransform:
    """What a linear map makes of reported tile positions, and what it says of the stage.

    Attributes
    ----------
    affine
        2 × 2, array axes: position = affine · reported position, up to a shift of the slice.
    step_um
        2 × 2: column k is the median move from a tile to the next along grid axis k.
    rotation_deg
        How far the steps are rotated from axis 1 towards axis 2, on average.
    squareness_deg
        Angle between both steps; 90 for a square grid.
    overlap
        Share of a tile that neighbours have in common, along both grid axes.
    residual_um
        Root mean square of what is left of the pairs' displacements, an axis.
    """

    affine: list[list[float]]
    step_um: list[list[float]]
    rotation_deg: float
    squareness_deg: float
    overlap: tuple[float, float]
    slice_ids: list[int]
    n_pairs: int
    residual_um: tuple[float, float]


def estimate_transform(
    slices: Sequence[TileRegistration], *, use_motor_positions: bool = False
) -> StageTransform:
    """Fit one linear map to the tile pairs of all slices.

    Parameters
    ----------
    slices
        Registered tiles of each slice, of one size.
    use_motor_positions
        Trust the reported positions: the map is the identity.

    Raises
    ------
    InputError
        When tile sizes differ, no two tiles are neighbours, or no pair is accepted.
    """
    if not slices:
        raise InputError("no slice to estimate the transform from")
    fields_um = {_field_um(s) for s in slices}
    if len(fields_um) > 1:
        raise InputError(f"slices with tiles of {sorted(fields_um)} um; expected one size")
    steps = _grid_steps(slices)
    expected = np.array([p.expected_um for s in slices for p in s.pairs if p.accepted])
    measured = np.array([p.displacement_um for s in slices for p in s.pairs if p.accepted])
    affine, residual = np.eye(2), np.zeros((0, 2))
    if not use_motor_positions:
        if not len(expected):
            names = ", ".join(f"z{s.slice_id:02d}" for s in slices)
            raise InputError(f"no two tiles of {names} match; expected tissue in their overlaps")
        affine = _fit(expected, measured)
    if len(expected):
        residual = measured - expected @ affine.T
    step = affine @ steps
    (a, b), (c, d) = step
    field_um = np.asarray(next(iter(fields_um)))
    share = 1 - np.linalg.norm(step, axis=0) / field_um
    rms = np.sqrt((residual**2).mean(axis=0)) if len(residual) else np.zeros(2)
    return StageTransform(
        affine=affine.tolist(),
        step_um=step.tolist(),
        rotation_deg=float(np.degrees(np.arctan2(c, a) + np.arctan2(-b, d)) / 2),
        squareness_deg=float(np.degrees(np.arctan2(d, b) - np.arctan2(c, a))),
        overlap=(float(share[0]), float(share[1])),
        slice_ids=[s.slice_id for s in slices],
        n_pairs=len(expected),
        residual_um=(float(rms[0]), float(rms[1])),
    )


def transformed_positions(grid: GridInfo, transform: StageTransform) -> TileRegistration:
    """Place the imaged tiles of a grid by the map alone, about their middle."""
    imaged = [n for n, tile in enumerate(grid.tiles) if tile.present]
    stage = grid.corner_um()[imaged]
    middle = stage.mean(axis=0)
    corner = middle + (stage - middle) @ np.asarray(transform.affine).T
    return TileRegistration(
        slice_id=grid.slice_id,
        voxel_um=grid.voxel_um,
        tile_shape_px=grid.tile_shape_px,
        tiles=[
            PlacedTile(
                grid.tiles[n].ix,
                grid.tiles[n].iy,
                stage_corner_um=tuple(reported.tolist()),
                corner_um=tuple(place.tolist()),
                component=-1,
                n_pairs=0,
            )
            for n, reported, place in zip(imaged, stage, corner, strict=True)
        ],
        pairs=[],
        stage_affine=transform.affine,
    )


def _field_um(positions: TileRegistration) -> tuple[float, float]:
    first, second = (
        round(n * pixel, 6)
        for n, pixel in zip(positions.tile_shape_px[1:], positions.voxel_um[1:], strict=True)
    )
    return first, second


def _grid_steps(slices: Sequence[TileRegistration]) -> np.ndarray:
    """Return the median reported move to the next tile, um; column k along grid axis k."""
    moves: tuple[list[Any], list[Any]] = ([], [])
    for positions in slices:
        stage = {t.index: np.asarray(t.stage_corner_um) for t in positions.tiles}
        for (ix, iy), corner in stage.items():
            for axis, neighbour in enumerate(((ix + 1, iy), (ix, iy + 1))):
                if neighbour in stage:
                    moves[axis].append(stage[neighbour] - corner)
    if not moves[0] and not moves[1]:
        raise InputError("no two tiles are neighbours; expected a grid of tiles")
    first, second = (np.median(m, axis=0) if m else np.zeros(2) for m in moves)
    # A single row of tiles: the other step is taken at right angles.
    if not moves[0]:
        first = np.array([second[1], -second[0]])
    if not moves[1]:
        second = np.array([-first[1], first[0]])
    return np.stack([first, second], axis=1)


def _fit(expected: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Fit ``measured = A·expected`` robustly.

    Moves along one axis alone do not determine the other: there the map stays the identity.
    """
    error = measured - expected
    # Far weaker than one pair, and enough where there is no pair.
    ridge = 1e-6 * float((expected**2).sum(axis=1).max()) * np.eye(2)
    weight = np.ones(len(expected))
    change = np.zeros((2, 2))
    for _ in range(_ITERATIONS):
        change = least_squares(expected, error, weight, ridge).T
        residual = error - expected @ change.T
        sigma = max(robust_spread(residual), _MIN_SIGMA_UM)
        # Cauchy weights: an outlier loses its pull smoothly.
        weight = 1 / (1 + (np.linalg.norm(residual, axis=1) / (3 * sigma)) ** 2)
    fitted: np.ndarray = np.eye(2) + change
    return fitted
