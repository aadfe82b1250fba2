"""Cuts and scan: true positions of every face and tile of an acquisition.

Everything here is small and decided before the first tile is imaged. Each slice and each tile
draws from its own stream, so that changing one quantity leaves the others' numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.phantom.lattice import Stream, generator, make_key, smooth_field
from linumpy.phantom.params import PhantomParams

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
        x, y, z of the tile centre in info.txt; z None where it has none.
    true_corner_um
        Low corner edge in the block, (axis 1, axis 2). The tile's sides leave it along the axes
        of its slice, which are rotated by the slice's `rotation_deg`.
    present
        Whether it was imaged.
    dark
        Whether it was imaged with little light.
    galvo_shift_px
        Circular roll of the A-lines that brings the fly-back band to the end.
    """

    ix: int
    iy: int
    stage_mm: tuple[float, float, float | None]
    true_corner_um: tuple[float, float]
    present: bool
    dark: bool
    galvo_shift_px: int


@dataclass(frozen=True)
class SlicePlan:
    """One slice: its face, how it appears, and its tiles.

    Attributes
    ----------
    face_um
        Block depth of the mean face.
    cut_um
        Commanded thickness of the cut before it; the interval for the first slice.
    gap_um
        Optical depth at which the mean face appears.
    offset_um
        Shift of the slice that the stage does not report, (axis 1, axis 2).
    rotation_deg
        Unreported rotation of the slice about the mosaic's centre; positive from
        axis 1 towards axis 2.
    tilt_um
        Fall of the face across the mosaic along (axis 1, axis 2).
    galvo_shift_px
        Roll of the first tile's A-lines.
    glitch_mm
        Error of the stage position in info.txt, (axis 1, axis 2).
    bad
        Whether it shows hardly any tissue.
    """

    slice_id: int
    face_um: float
    cut_um: float
    gap_um: float
    offset_um: tuple[float, float]
    rotation_deg: float
    tilt_um: tuple[float, float]
    galvo_shift_px: int
    glitch_mm: tuple[float, float]
    rehomed: bool
    missing: bool
    bad: bool
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

    def interpolate_each(
        self, face: np.ndarray, axis1_um: np.ndarray, axis2_um: np.ndarray
    ) -> np.ndarray:
        """Return what `interpolate` does at positions that form no grid, of any one shape."""
        low, weight = [], []
        for axis, position in enumerate((axis1_um, axis2_um)):
            index = (position - self.origin_um[axis]) / FACE_STEP_UM
            index = np.clip(index, 0, self.shape[axis] - 1)
            low.append(np.minimum(index.astype(np.int64), self.shape[axis] - 2))
            weight.append(index - low[-1])
        (i, j), (u, v) = low, weight
        face = np.asarray(face, dtype=np.float64)
        near = face[i, j] * (1 - v) + face[i, j + 1] * v
        far = face[i + 1, j] * (1 - v) + face[i + 1, j + 1] * v
        return np.asarray(near * (1 - u) + far * u)


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


def face_tilt_um(params: PhantomParams, seed: int, slice_id: int) -> tuple[float, float]:
    """Return how far a face falls across the mosaic along (axis 1, axis 2), µm.

    The direction is one for all slices; between the outermost corners the fall is `cut_tilt_um`.
    """
    angle = generator(make_key(seed, Stream.TILT, 0, 1)).uniform(0, 2 * np.pi)
    along = np.array([np.cos(angle), np.sin(angle)])
    along *= params.cut_tilt_um / np.abs(along).sum()
    change = generator(make_key(seed, Stream.TILT, slice_id)).standard_normal(2)
    fall = along + change * params.cut_tilt_jitter_rms_um
    return float(fall[0]), float(fall[1])


def face_map_um(params: PhantomParams, seed: int, slice_id: int) -> np.ndarray:
    """Return how much deeper than its mean a face is at `face_grid`: unevenness and tilt.

    Returns
    -------
    numpy.ndarray
        float32 (n1, n2), µm.
    """
    face = face_unevenness_um(params, seed, slice_id)
    fall = face_tilt_um(params, seed, slice_id)
    if not any(fall):
        return face
    grid = face_grid(params)
    first, second = (
        (origin + FACE_STEP_UM * np.arange(n)) / side - 0.5
        for origin, n, side in zip(grid.origin_um, grid.shape, params.mosaic_um, strict=True)
    )
    plane = fall[0] * first[:, None] + fall[1] * second[None, :]
    return np.asarray(face + plane, dtype=np.float32)


def turn(points: np.ndarray, rotation_deg: float, pivot: np.ndarray) -> np.ndarray:
    """Return points (..., 2) rotated about a pivot, positive from axis 1 towards axis 2."""
    angle = np.deg2rad(rotation_deg)
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.asarray((points - pivot) @ matrix.T + pivot)


def stage_axes(params: PhantomParams, seed: int) -> np.ndarray:
    """Return the 2 × 2 matrix from distances that the stage reports to true ones.

    Columns are what one unit along axis 1 and axis 2 truly is. Strengths are those of the
    parameters, signs are the seed's.
    """
    signs = generator(make_key(seed, Stream.STAGE_AXES)).choice([-1.0, 1.0], 4)
    half = params.stage_anisotropy / 2 * signs[1]
    scale = 1 + params.stage_scale * signs[0] + np.array([half, -half])
    angle = np.deg2rad(params.stage_rotation_deg * signs[2])
    other = angle + np.deg2rad(params.stage_shear_deg * signs[3])
    return np.array(
        [
            [scale[0] * np.cos(angle), -scale[1] * np.sin(other)],
            [scale[0] * np.sin(angle), scale[1] * np.cos(other)],
        ]
    )


def backlash_um(params: PhantomParams, seed: int) -> np.ndarray:
    """Return the shift of each tile by the direction it was reached in, mean 0 over the grid.

    The scan is serpentine along an axis that the seed chooses: every other row runs back.

    Returns
    -------
    numpy.ndarray
        float64 (tiles_x, tiles_y, 2), µm.
    """
    rng = generator(make_key(seed, Stream.STAGE_AXES, 1))
    along = int(rng.integers(2))
    sign = rng.choice([-0.5, 0.5])
    shift = np.zeros((params.tiles_x, params.tiles_y, 2))
    shift[..., along] = sign * params.backlash_um
    back = [slice(None), slice(None)]
    back[1 - along] = slice(1, None, 2)
    shift[tuple(back)] *= -1
    return np.asarray(shift - shift.mean(axis=(0, 1)))


def cut_thickness_um(params: PhantomParams, seed: int) -> np.ndarray:
    """Return how thick the cut before each slice is, µm; the interval for the first slice.

    No cut is thinner than a tenth of the interval.
    """
    cuts = np.full(params.n_slices, params.slice_interval_um)
    for slice_id, extra in params.extra_cuts_um().items():
        cuts[slice_id] += extra
    for slice_id in range(1, params.n_slices):
        error = generator(make_key(seed, Stream.CUT, slice_id)).standard_normal()
        cuts[slice_id] += error * params.cut_spread_rms_um
    return np.maximum(cuts, 0.1 * params.slice_interval_um)


def plan_slices(params: PhantomParams, seed: int) -> tuple[SlicePlan, ...]:
    """Draw the cuts and the scan of an acquisition.

    The jitter of a slice's tiles has mean zero, so that `offset_um` and `rotation_deg` are the
    whole unreported part of a slice's place.
    """
    zero = np.zeros(2)
    slices = []
    cuts = cut_thickness_um(params, seed)
    extra = np.cumsum(cuts - params.slice_interval_um)
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
        turned = float(generator(make_key(seed, Stream.ROTATION, slice_id)).standard_normal())
        plan = SlicePlan(
            slice_id=slice_id,
            face_um=slice_id * params.slice_interval_um
            + float(depth_error) * params.thickness_jitter_rms_um
            + float(extra[slice_id]),
            cut_um=float(cuts[slice_id]),
            gap_um=params.gap_um + float(gap_error) * params.gap_jitter_rms_um,
            offset_um=(float(offset[0]), float(offset[1])),
            rotation_deg=turned * params.slice_rotation_rms_deg,
            tilt_um=face_tilt_um(params, seed, slice_id),
            galvo_shift_px=galvo if params.n_extra > 0 else 0,
            glitch_mm=_glitch_mm(params, seed, slice_id),
            rehomed=rehomed,
            missing=slice_id in params.missing_slices,
            bad=slice_id in params.bad_slices,
            tiles=(),
        )
        told = extra[slice_id] if params.stage_z.endswith("cuts") else 0.0
        z_mm = _stage_z_mm(params, slice_id * params.slice_interval_um + float(told))
        slices.append(replace(plan, tiles=_plan_tiles(params, seed, plan, grid_shift, z_mm)))
    return tuple(slices)


def _stage_z_mm(params: PhantomParams, depth_um: float) -> float | None:
    """Return the height that the stage reports at a depth of the block."""
    if params.stage_z == "none":
        return None
    sign = -1 if params.stage_z.startswith("-") else 1
    return round(params.stage_origin_z_mm + sign * depth_um / 1000, 4)


def _glitch_mm(params: PhantomParams, seed: int, slice_id: int) -> tuple[float, float]:
    if slice_id not in params.glitch_slices:
        return 0.0, 0.0
    angle = generator(make_key(seed, Stream.GLITCH, slice_id)).uniform(0, 2 * np.pi)
    return float(params.glitch_mm * np.cos(angle)), float(params.glitch_mm * np.sin(angle))


def _plan_tiles(
    params: PhantomParams,
    seed: int,
    plan: SlicePlan,
    grid_shift: np.ndarray,
    z_mm: float | None,
) -> tuple[TilePlan, ...]:
    slice_id = plan.slice_id
    lost_tiles = params.missing_tile_indices()
    grid = [(ix, iy) for ix in range(params.tiles_x) for iy in range(params.tiles_y)]
    jitter = np.zeros((len(grid), 2))
    if len(grid) > 1:
        draws = [generator(make_key(seed, Stream.STAGE, slice_id, *t)) for t in grid]
        jitter = np.array([rng.standard_normal(2) for rng in draws])
        jitter = (jitter - jitter.mean(axis=0)) * np.sqrt(len(grid) / (len(grid) - 1))
    jitter *= params.jitter_rms_um
    drift = generator(make_key(seed, Stream.GALVO, slice_id)).standard_normal()
    drift *= params.galvo_drift_per_tile_px
    true_axes = stage_axes(params, seed)
    is_square = np.array_equal(true_axes, np.eye(2))
    if params.backlash_um:
        jitter += backlash_um(params, seed).reshape(-1, 2)
    middle = np.subtract(params.mosaic_um, params.tile_fov_um) / 2
    axes = parse_stage_to_array(params.stage_to_array)
    origin_mm = (params.stage_origin_x_mm, params.stage_origin_y_mm)
    tiles = []
    for number, ((ix, iy), error) in enumerate(zip(grid, jitter, strict=True)):
        stage = [0.0, 0.0]
        corner = np.zeros(2)
        for axis, index in enumerate((ix, iy)):
            nominal = index * params.tile_step_um[axis] + grid_shift[axis]
            letter, sign = axes[axis]
            centre_mm = sign * (nominal + params.tile_fov_um[axis] / 2) / 1000
            # Written at the stage's resolution: a tenth of a micrometre.
            known_mm = round(origin_mm[letter] + centre_mm, 4)
            stage[letter] = round(known_mm + sign * plan.glitch_mm[axis], 4)
            known_um = sign * (known_mm - origin_mm[letter]) * 1000
            known_um -= params.tile_fov_um[axis] / 2
            corner[axis] = known_um
        if not is_square:
            corner = true_axes @ (corner - middle) + middle
        corner += error
        if plan.rotation_deg:
            corner = turn(corner, plan.rotation_deg, np.divide(params.mosaic_um, 2))
        lost, dimmed = generator(make_key(seed, Stream.DEFECTS, slice_id, ix, iy)).random(2)
        present = not (
            plan.missing or (slice_id, ix, iy) in lost_tiles or lost < params.missing_tile_fraction
        )
        galvo = plan.galvo_shift_px
        if params.n_extra > 0:
            galvo = (galvo + round(drift * number)) % (params.nx + params.n_extra)
        tiles.append(
            TilePlan(
                ix=ix,
                iy=iy,
                stage_mm=(stage[0], stage[1], z_mm),
                true_corner_um=(
                    float(corner[0] + plan.offset_um[0]),
                    float(corner[1] + plan.offset_um[1]),
                ),
                present=present,
                dark=bool(dimmed < params.dark_tile_fraction),
                galvo_shift_px=galvo,
            )
        )
    return tuple(tiles)
