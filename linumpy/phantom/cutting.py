"""Cuts and scan: where every face and tile of an acquisition truly lies.

Everything here is small and decided before the first tile is imaged. Each slice and each tile
draws from its own stream, so that changing one quantity leaves the others' numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.phantom.lattice import Stream, generator, make_key, smooth_field
from linumpy.phantom.params import PhantomParams, parse_stage_to_array

FACE_STEP_UM = 50.0
_FACE_MARGIN_UM = 400.0
_FACE_RADIUS = 2.0


@dataclass(frozen=True)
class TilePlan:
    """One tile: where the stage says it is, and where it is.

    Attributes
    ----------
    ix, iy
        Grid position along axis 1, axis 2.
    stage_mm
        x, y, z of the tile centre as info.txt tells.
    true_corner_um
        Low corner edge in the block, (axis 1, axis 2).
    present
        Whether it was imaged.
    """

    ix: int
    iy: int
    stage_mm: tuple[float, float, float]
    true_corner_um: tuple[float, float]
    present: bool


@dataclass(frozen=True)
class SlicePlan:
    """One slice: its face, how it appears, and its tiles.

    Attributes
    ----------
    face_um
        Block depth of the mean face.
    gap_um
        Optical depth at which the mean face appears.
    offset_um
        Shift of the slice that the stage does not know, (axis 1, axis 2).
    galvo_shift_px
        Circular roll of the A-lines that brings the fly-back band to the end.
    """

    slice_id: int
    face_um: float
    gap_um: float
    offset_um: tuple[float, float]
    galvo_shift_px: int
    rehomed: bool
    missing: bool
    tiles: tuple[TilePlan, ...]


@dataclass(frozen=True)
class FaceGrid:
    """Lateral grid on which the unevenness of faces is sampled, points `FACE_STEP_UM` apart."""

    origin_um: tuple[float, float]
    shape: tuple[int, int]

    def interpolate(
        self, face: np.ndarray, axis1_um: np.ndarray, axis2_um: np.ndarray
    ) -> np.ndarray:
        """Return a map of this grid, bilinearly, at a rectilinear set of positions.

        Parameters
        ----------
        face
            (n1, n2) values on the grid; beyond its border they stay constant.
        axis1_um, axis2_um
            1-d block positions.

        Returns
        -------
        numpy.ndarray
            float64 (len(axis1_um), len(axis2_um)).
        """
        out = np.asarray(face, dtype=np.float64)
        for axis, position in enumerate((axis1_um, axis2_um)):
            index = (position - self.origin_um[axis]) / FACE_STEP_UM
            index = np.clip(index, 0, self.shape[axis] - 1)
            low = np.minimum(index.astype(np.int64), self.shape[axis] - 2)
            weight = index - low
            weight = weight[:, None] if axis == 0 else weight[None, :]
            out = np.take(out, low, axis) * (1 - weight) + np.take(out, low + 1, axis) * weight
        return out


def face_grid(params: PhantomParams) -> FaceGrid:
    """Return the grid for the faces of an acquisition: the mosaic and a margin around."""
    margin = _FACE_MARGIN_UM + 3 * params.grid_shift_rms_um
    shape = tuple(int(np.ceil((side + 2 * margin) / FACE_STEP_UM)) + 1 for side in params.mosaic_um)
    return FaceGrid((-margin, -margin), (shape[0], shape[1]))


def face_unevenness_um(params: PhantomParams, seed: int, slice_id: int) -> np.ndarray:
    """Return how much deeper than its mean a face lies, on `face_grid`.

    Returns
    -------
    numpy.ndarray
        float32 (n1, n2), µm; mean 0 over the grid, RMS `face_rms_um` in expectation.
    """
    grid = face_grid(params)
    step = params.face_scale_um / _FACE_RADIUS
    points = [
        (origin + FACE_STEP_UM * np.arange(n)) / step
        for origin, n in zip(grid.origin_um, grid.shape, strict=True)
    ]
    key = make_key(seed, Stream.FACE, slice_id)
    face = smooth_field(key, (points[1], points[0], np.zeros(1)), _FACE_RADIUS)[..., 0].T
    face = np.ascontiguousarray(face - face.mean(dtype=np.float64), dtype=np.float32)
    return face * np.float32(params.face_rms_um)


def plan_slices(params: PhantomParams, seed: int) -> tuple[SlicePlan, ...]:
    """Draw the cuts and the scan of an acquisition.

    The jitter of a slice's tiles has mean zero, so that `offset_um` is the whole of what the
    stage does not know about a slice's place.
    """
    missing_tiles = params.missing_tile_indices()
    zero = np.zeros(2)
    slices = []
    for slice_id in range(params.n_slices):
        rng = generator(make_key(seed, Stream.SLICE, slice_id))
        depth_error, gap_error = rng.standard_normal(2)
        offset = rng.standard_normal(2) * params.slice_offset_rms_um
        grid_shift = rng.standard_normal(2) * params.grid_shift_rms_um
        galvo = int(rng.integers(0, params.galvo_drift_max_px, endpoint=True))
        lost_zero = rng.standard_normal(2) * params.rehoming_rms_um
        rehomed = slice_id in params.rehomed_slices
        if rehomed:
            # The stage keeps its wrong zero until the next re-homing adds to it.
            zero = zero + lost_zero
        offset = offset + zero
        missing = slice_id in params.missing_slices
        slices.append(
            SlicePlan(
                slice_id=slice_id,
                face_um=slice_id * params.slice_interval_um
                + float(depth_error) * params.thickness_jitter_rms_um,
                gap_um=params.gap_um + float(gap_error) * params.gap_jitter_rms_um,
                offset_um=(float(offset[0]), float(offset[1])),
                galvo_shift_px=galvo if params.n_extra > 0 else 0,
                rehomed=rehomed,
                missing=missing,
                tiles=_plan_tiles(
                    params, seed, slice_id, offset, grid_shift, missing, missing_tiles
                ),
            )
        )
    return tuple(slices)


def _plan_tiles(
    params: PhantomParams,
    seed: int,
    slice_id: int,
    offset: np.ndarray,
    grid_shift: np.ndarray,
    slice_missing: bool,
    missing_tiles: set[tuple[int, int, int]],
) -> tuple[TilePlan, ...]:
    grid = [(ix, iy) for ix in range(params.tiles_x) for iy in range(params.tiles_y)]
    jitter = np.zeros((len(grid), 2))
    if len(grid) > 1:
        draws = [generator(make_key(seed, Stream.STAGE, slice_id, *t)) for t in grid]
        jitter = np.array([rng.standard_normal(2) for rng in draws])
        jitter = (jitter - jitter.mean(axis=0)) * np.sqrt(len(grid) / (len(grid) - 1))
    jitter *= params.jitter_rms_um
    axes = parse_stage_to_array(params.stage_to_array)
    origin_mm = (params.stage_origin_x_mm, params.stage_origin_y_mm)
    tiles = []
    for (ix, iy), error in zip(grid, jitter, strict=True):
        stage = [0.0, 0.0]
        corner = [0.0, 0.0]
        for axis, index in enumerate((ix, iy)):
            nominal = index * params.tile_step_um[axis] + grid_shift[axis]
            letter, sign = axes[axis]
            centre_mm = sign * (nominal + params.tile_fov_um[axis] / 2) / 1000
            # What is written is what the stage knows: a tenth of a micrometre.
            stage[letter] = round(origin_mm[letter] + centre_mm, 4)
            known_um = sign * (stage[letter] - origin_mm[letter]) * 1000
            known_um -= params.tile_fov_um[axis] / 2
            corner[axis] = float(known_um + error[axis] + offset[axis])
        z_mm = params.stage_origin_z_mm + slice_id * params.slice_interval_um / 1000
        lost = generator(make_key(seed, Stream.DEFECTS, slice_id, ix, iy)).random()
        present = not (
            slice_missing
            or (slice_id, ix, iy) in missing_tiles
            or lost < params.missing_tile_fraction
        )
        tiles.append(
            TilePlan(
                ix,
                iy,
                (stage[0], stage[1], round(z_mm, 4)),
                (corner[0], corner[1]),
                present,
            )
        )
    return tuple(tiles)
