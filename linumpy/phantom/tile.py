"""Simulate the raw amplitude of one tile.

A = |√P·g + n| with P = F²·h(ℓ)·a²·exp(−2∫µ): see docs/phantom.md. Arrays are in storage order
(B-scan, A-line, depth), which is the Fortran order of (depth, A-line, B-scan) on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from linumpy.phantom.anatomy import Anatomy
from linumpy.phantom.artefacts import Artefact, disturb
from linumpy.phantom.cutting import FaceGrid, SlicePlan, TilePlan, turn
from linumpy.phantom.lattice import Stream, make_key
from linumpy.phantom.optics import axial_response
from linumpy.phantom.params import PhantomParams
from linumpy.phantom.speckle import (
    detector_noise,
    fixed_speckle,
    fresh_speckle,
    gather_depth,
    scattered_speckle,
)

_SLAB_VOXELS = 1 << 20


@dataclass(frozen=True)
class Scene:
    """What all tiles of an acquisition share.

    Attributes
    ----------
    focal_um, flat_field
        Focal surface and amplitude factor, (nx, ny).
    scan_um
        Departure of each A-line from a straight scan along axis 1, (nx,).
    own_focus_um
        How much deeper than parallel to the focal surface the focus lies, (nx, ny); or None.
    rolloff
        Factor of the signal power at each depth sample, (nz,).
    faces
        Unevenness and tilt of the face of each slice, by slice id, on `face_grid`.
    deformation_um
        Deformation of each slice, by slice id, (2, n1, n2) on `face_grid`; empty without.
    artefacts
        Disturbances of each slice, by slice id.
    """

    params: PhantomParams
    seed: int
    anatomy: Anatomy
    focal_um: np.ndarray
    flat_field: np.ndarray
    scan_um: np.ndarray
    own_focus_um: np.ndarray | None
    rolloff: np.ndarray
    face_grid: FaceGrid
    faces: dict[int, np.ndarray]
    deformation_um: dict[int, np.ndarray]
    artefacts: dict[int, tuple[Artefact, ...]]


def image_tile(scene: Scene, slice_plan: SlicePlan, tile: TilePlan) -> Iterator[np.ndarray]:
    """Yield a tile as slabs of consecutive B-scans.

    The slabs together do not depend on how many there are, and their size does not grow with
    the acquisition: memory is bounded by a slab.

    Yields
    ------
    numpy.ndarray
        float32 (rows, nx + n_extra, nz), amplitude.
    """
    params = scene.params
    per_row = params.nz * (params.nx + params.n_extra)
    rows = max(8, _SLAB_VOXELS // per_row)
    # Slabs of equal size: a thin last one would cost nearly as much as a full one.
    rows = -(-params.ny // -(-params.ny // rows))
    for start in range(0, params.ny, rows):
        yield _image_rows(scene, slice_plan, tile, start, min(rows, params.ny - start))


def tile_power(
    scene: Scene, slice_plan: SlicePlan, tile: TilePlan, start: int, n_rows: int, first_sample: int
) -> np.ndarray:
    """Return the expected signal power P of some B-scans, without speckle and noise.

    Parameters
    ----------
    scene, slice_plan, tile
        What is imaged, when and where.
    start, n_rows
        First B-scan and their number.
    first_sample
        First depth sample; the samples above must be in water.

    Returns
    -------
    numpy.ndarray
        float32 (n_rows, nx, nz − first_sample).
    """
    p = scene.params
    surface = scene.focal_um[:, start : start + n_rows].T
    face_map = scene.faces[slice_plan.slice_id]
    place = _pixel_centres(scene, slice_plan, tile, start, n_rows)
    if place[0].ndim > 1:
        uneven = scene.face_grid.interpolate_each(face_map, *place)
    else:
        uneven = scene.face_grid.interpolate(face_map, *place).T
    axis1, axis2 = _tissue_centres(scene, slice_plan, place)
    depth = np.arange(first_sample, p.nz) * p.axial_um
    optical = depth.astype(np.float32) - surface[..., None].astype(np.float32)

    # Properties on a depth lattice fixed in the block; each A-line then reads it at its samples.
    top = (slice_plan.face_um - slice_plan.gap_um + depth[0] - surface) / p.axial_um
    face = (slice_plan.face_um + uneven) / p.axial_um
    # Its start is the same for all of a slice: sums of a tile's parts then agree to the bit.
    highest = min(depth[0] - slice_plan.gap_um - scene.focal_um.max(), face_map.min())
    low = int(np.floor((slice_plan.face_um + float(highest)) / p.axial_um)) - 1
    high = int(np.ceil(max(top.max() + len(depth), face.max()))) + 2
    found = scene.anatomy.properties(axis2, axis1, np.arange(low, high) * p.axial_um)

    # −2∫µ from the face down, by the trapezoid rule on the lattice; exp only once, at the end.
    mu = found.mu_per_mm
    loss = np.zeros_like(mu)
    np.add(mu[..., 1:], mu[..., :-1], out=loss[..., 1:])
    loss *= np.float32(p.axial_um / 1000)
    np.cumsum(loss, axis=-1, out=loss)
    loss = _read_depth(loss, top - low, len(depth)) - _read_depth(loss, face - low, 1)

    power = _read_depth(found.power, top - low, len(depth))
    np.negative(loss, out=loss)
    power *= np.exp(loss, out=loss)
    from_focus = optical
    if scene.own_focus_um is not None:
        own = scene.own_focus_um[:, start : start + n_rows].T[..., None]
        from_focus = optical - own.astype(np.float32)
    power *= axial_response(from_focus, p.focus_um, p.rayleigh_um)
    power *= np.square(scene.flat_field[:, start : start + n_rows].T[..., None], dtype=np.float32)
    # A sample that the face crosses is partly water.
    cover = optical - (slice_plan.gap_um + uneven[..., None]).astype(np.float32)
    artefacts = scene.artefacts[slice_plan.slice_id]
    below = cover.copy() if artefacts else cover
    cover /= np.float32(p.axial_um)
    cover += np.float32(0.5)
    power *= np.clip(cover, 0, 1, out=cover)
    if artefacts:
        grid = np.broadcast_arrays(place[0], place[1][:, None] if place[0].ndim == 1 else place[1])
        disturb(power, artefacts, (grid[0], grid[1]), below, p.grey_amplitude**2, slice_plan.gap_um)
    if p.rolloff_6db_um:
        power *= scene.rolloff[first_sample:]
    gain = (p.dark_amplitude if tile.dark else 1) * (p.bad_amplitude if slice_plan.bad else 1)
    if gain != 1:
        power *= np.float32(gain**2)
    return power


def _read_depth(values: np.ndarray, position: np.ndarray, count: int) -> np.ndarray:
    """Return values (n2, n1, depth) linearly at `count` samples from each A-line's position."""
    base = np.floor(position).astype(np.int64)
    weight = (position - base).astype(np.float32)[..., None]
    window = gather_depth(values, base, count + 1)
    out = window[..., 1:] - window[..., :-1]
    out *= weight
    out += window[..., :-1]
    return out


def _pixel_centres(
    scene: Scene, slice_plan: SlicePlan, tile: TilePlan, start: int, n_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where A-lines look along axis 1 and axis 2 of the block, deformation left out.

    (nx,) and (n_rows,) where they form a grid along the block's axes, (n_rows, nx) each otherwise.
    """
    p = scene.params
    side1 = (np.arange(p.nx) + 0.5) * p.pixel_um
    side2 = (np.arange(start, start + n_rows) + 0.5) * p.pixel_um
    if p.scan_distortion_px:
        side1 = side1 + scene.scan_um
    if not slice_plan.rotation_deg:
        return tile.true_corner_um[0] + side1, tile.true_corner_um[1] + side2
    inside = np.stack(np.broadcast_arrays(side1[None, :], side2[:, None]), axis=-1)
    block = turn(inside, slice_plan.rotation_deg, np.zeros(2)) + tile.true_corner_um
    return block[..., 0], block[..., 1]


def _tissue_centres(
    scene: Scene, slice_plan: SlicePlan, place: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which tissue of the block A-lines see: their place and the slice's deformation."""
    field = scene.deformation_um.get(slice_plan.slice_id)
    if field is None:
        return place
    axis1, axis2 = place
    if axis1.ndim == 1:
        axis1, axis2 = np.broadcast_arrays(axis1[None, :], axis2[:, None])
    moved = [scene.face_grid.interpolate_each(part, axis1, axis2) for part in field]
    return axis1 + moved[0], axis2 + moved[1]


def _first_tissue_sample(scene: Scene, slice_plan: SlicePlan) -> int:
    """Return a sample above which all A-lines of a slice are in clear water."""
    if any(artefact.kind != "tear" for artefact in scene.artefacts[slice_plan.slice_id]):
        return 0
    highest = slice_plan.gap_um + scene.faces[slice_plan.slice_id].min() + scene.focal_um.min()
    return int(np.clip(np.floor(highest / scene.params.axial_um) - 1, 0, scene.params.nz - 1))


def _speckle(
    scene: Scene, slice_plan: SlicePlan, tile: TilePlan, start: int, n_rows: int, first_sample: int
) -> np.ndarray:
    """Return g, complex as a leading axis of 2, float32 (2, n_rows, nx, nz − first_sample)."""
    p = scene.params
    n_depth = p.nz - first_sample
    radii = (p.psf_lateral_um / p.pixel_um, p.psf_axial_um / p.axial_um)
    share = p.speckle_correlation
    same = p.speckle_slice_correlation
    out: np.ndarray | None = None
    # A last index of 0 would give the key without it.
    for part, indices in ((share * same, ()), (share * (1 - same), (slice_plan.slice_id + 1,))):
        if part <= 0:
            continue
        key = make_key(scene.seed, Stream.SPECKLE, *indices)
        found = _fixed_speckle(scene, slice_plan, tile, start, n_rows, first_sample, key)
        found *= np.float32(np.sqrt(part))
        out = found if out is None else np.add(out, found, out=out)
    if share < 1:
        key = _visit_key(scene, slice_plan, tile)
        fresh = fresh_speckle(key, start, n_rows, p.nx, n_depth, radii)
        fresh *= np.float32(np.sqrt(1 - share))
        out = fresh if out is None else np.add(out, fresh, out=out)
    assert out is not None
    return out


def _fixed_speckle(
    scene: Scene,
    slice_plan: SlicePlan,
    tile: TilePlan,
    start: int,
    n_rows: int,
    first_sample: int,
    key: np.ndarray,
) -> np.ndarray:
    """Return the speckle of tissue under a key at the samples of some B-scans."""
    p = scene.params
    n_depth = p.nz - first_sample
    radii = (p.psf_lateral_um / p.pixel_um, p.psf_axial_um / p.axial_um)
    surface = scene.focal_um[:, start : start + n_rows].T
    top = slice_plan.face_um - slice_plan.gap_um + first_sample * p.axial_um - surface
    place = _pixel_centres(scene, slice_plan, tile, start, n_rows)
    axis1, axis2 = _tissue_centres(scene, slice_plan, place)
    if axis1.ndim > 1 or p.scan_distortion_px:
        if axis1.ndim == 1:
            axis1, axis2 = np.broadcast_arrays(axis1[None, :], axis2[:, None])
        return scattered_speckle(
            key, axis2 / p.pixel_um, axis1 / p.pixel_um, top / p.axial_um, n_depth, radii
        )
    return fixed_speckle(
        key,
        axis2[0] / p.pixel_um,
        n_rows,
        axis1[0] / p.pixel_um,
        p.nx,
        top / p.axial_um,
        n_depth,
        radii,
    )


def _visit_key(scene: Scene, slice_plan: SlicePlan, tile: TilePlan) -> np.ndarray:
    return make_key(scene.seed, Stream.FRESH, slice_plan.slice_id, tile.ix, tile.iy)


def _image_rows(
    scene: Scene, slice_plan: SlicePlan, tile: TilePlan, start: int, n_rows: int
) -> np.ndarray:
    p = scene.params
    first = _first_tissue_sample(scene, slice_plan)
    power = tile_power(scene, slice_plan, tile, start, n_rows, first)
    key = _visit_key(scene, slice_plan, tile)
    noise = detector_noise(key, start, n_rows, p.nx + p.n_extra, p.nz)
    scan, flyback = noise[:, :, : p.nx], noise[:, :, p.nx :]
    if p.n_extra > 0:
        # The mirror races back over the same field: too fast for speckle wider than an A-line.
        back = np.linspace(p.nx - 1, 0, p.n_extra).round().astype(np.int64)
        variance = power[:, back] * np.float32(p.flyback_amplitude**2)
        variance += np.float32(p.noise_rms**2)
        flyback[..., first:] *= np.sqrt(variance, out=variance)
        flyback[..., :first] *= np.float32(p.noise_rms)
    scan *= np.float32(p.noise_rms)
    speckle = _speckle(scene, slice_plan, tile, start, n_rows, first)
    speckle *= np.sqrt(power, out=power)
    scan[..., first:] += speckle
    np.square(noise, out=noise)
    out = noise[0]
    out += noise[1]
    np.sqrt(out, out=out)
    return np.roll(out, -tile.galvo_shift_px, axis=1)
