"""Before and after of three corrections: illumination, a seam, a pair of slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.grid import Grid, open_grid
from linumpy.io.previews import SLICE_PERCENTILE, positive_window, scale_to
from linumpy.quality.run import Run, SliceRegistration, TileRegistration
from linumpy.report.pictures import jpeg, resized, scale_bar
from linumpy.report.slice_figures import projection
from linumpy.tiles.positions import MeasuredPair

_SIDE_PX = 420
_SEAM_SHARE = 0.6
_MOST_TILE_NBYTES = 1 << 31


def comparisons(run: Run) -> list[dict[str, Any]]:
    """Return the comparisons that a run's folder has the data for; each has ``before, after``."""
    found = []
    for make in (_illuminated_tile, _seam, _stacked_pair):
        try:
            shown = make(run)
        except InputError as error:
            logger.warning("no before and after: %s", error)
            continue
        if shown is not None:
            found.append(shown)
    return found


def _shown(
    name: str, note: str, before: np.ndarray, after: np.ndarray, width_um: float, words: str
) -> dict[str, Any]:
    first, second = words.split(" / ")
    return {
        "name": name,
        "note": note,
        "before": jpeg(before, 70_000),
        "after": jpeg(after, 70_000),
        "width": before.shape[1],
        "height": before.shape[0],
        "bar": scale_bar(width_um),
        "top": "",
        "words": (first, second),
    }


def _brightest_pair(run: Run) -> tuple[TileRegistration, MeasuredPair] | None:
    """Return the accepted pair with most light in the middle one of the slices in the brain."""
    there = set(run.tile_registrations) & set(run.grid_paths) & set(run.slice_paths)
    ids = sorted(there - run.left_out)
    if not ids:
        return None
    registration = run.tile_registrations[ids[len(ids) // 2]]
    pairs = [p for p in registration.pairs if p.accepted and p.overlap_mean_a is not None]
    if not pairs:
        return None
    return registration, max(pairs, key=lambda pair: pair.overlap_mean_a or 0.0)


def _open(run: Run, slice_id: int) -> Grid | None:
    grid = open_grid(run.grid_paths[slice_id])
    return grid if grid.info.tile_nbytes <= _MOST_TILE_NBYTES else None


def _tile_mean(grid: Grid, index: tuple[int, int]) -> np.ndarray:
    return np.abs(grid.read_tile(*index)).mean(axis=0, dtype=np.float32)


def _grey(image: np.ndarray) -> np.ndarray:
    return scale_to(image, 0.0, positive_window(image, SLICE_PERCENTILE), np.uint8)


def _illuminated_tile(run: Run) -> dict[str, Any] | None:
    flat, chosen = run.model("fix_illumination_3d"), _brightest_pair(run)
    if chosen is None or flat is None or "flat_field" not in flat:
        return None
    registration, pair = chosen
    grid = _open(run, registration.slice_id)
    if grid is None:
        return None
    mean = _tile_mean(grid, pair.a)
    field = resized(np.asarray(flat["flat_field"], dtype=np.float32), *mean.shape)
    sides = [max(1, round(n * _SIDE_PX / max(mean.shape))) for n in mean.shape]
    before, after = (
        _grey(resized(np.ascontiguousarray(image), *sides))
        for image in (mean, mean / np.maximum(field, 1e-3))
    )
    where = f"tile {pair.a[0]},{pair.a[1]} of z{registration.slice_id:02d}"
    return _shown(
        "An illuminated tile",
        f"Mean over depth of {where}: as imaged, and divided by the flat field.",
        before,
        after,
        grid.info.tile_fov_um[1],
        "as imaged / illumination corrected",
    )


def _seam(run: Run) -> dict[str, Any] | None:
    chosen = _brightest_pair(run)
    if chosen is None:
        return None
    registration, pair = chosen
    grid = _open(run, registration.slice_id)
    if grid is None:
        return None
    fov = np.asarray(registration.fov_um)
    stage = {t.index: np.asarray(t.stage_corner_um) for t in registration.tiles}
    solved = {t.index: np.asarray(t.corner_um) for t in registration.tiles}
    # A window about the overlap, where both tiles end up.
    middle = (solved[pair.a] + solved[pair.b] + fov) / 2
    side = _SEAM_SHARE * fov
    low = middle - side / 2
    mean, pixel, corner = projection(run.slice_paths[registration.slice_id], 1 << 14)
    rows, columns = (max(1, round(f / p)) for f, p in zip(side, pixel, strict=True))
    after = _window(mean, (low - corner) / pixel, (rows, columns))
    before = np.zeros((rows, columns), dtype=np.float32)
    for index in (pair.a, pair.b):
        tile = _tile_mean(grid, index)
        tile = resized(tile, *(max(1, round(f / p)) for f, p in zip(fov, pixel, strict=True)))
        # Moved as one: only the second against the first is the stage's.
        place = stage[index] - stage[pair.a] + solved[pair.a]
        part = _window(tile, (low - place) / pixel, (rows, columns))
        inside = _window(np.ones_like(tile), (low - place) / pixel, (rows, columns)) > 0
        before = np.where(inside, part, before)
    sides = [max(1, round(n * _SIDE_PX / max(rows, columns))) for n in (rows, columns)]
    names = " and ".join(f"{ix},{iy}" for ix, iy in (pair.a, pair.b))
    return _shown(
        "A seam",
        f"Tiles {names} of z{registration.slice_id:02d}, mean over depth: put where the stage "
        "says, and as registered, corrected and blended in the slice. Each with its own contrast.",
        _grey(resized(before, *sides)),
        _grey(resized(after, *sides)),
        float(side[1]),
        "stage positions / reconstructed",
    )


def _window(image: np.ndarray, low: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return a part of an image, from the pixel nearest to `low`; 0 beyond its edges."""
    out = np.zeros(shape, dtype=np.float32)
    first = np.rint(low).astype(int)
    begin = np.maximum(first, 0)
    end = np.minimum(first + shape, image.shape)
    if (end > begin).all():
        to = begin - first
        size = end - begin
        out[to[0] : to[0] + size[0], to[1] : to[1] + size[1]] = image[
            begin[0] : end[0], begin[1] : end[1]
        ]
    return out


def _stacked_pair(run: Run) -> dict[str, Any] | None:
    registration = run.slice_registration
    if registration is None:
        return None
    pairs = [p for p in registration.pairs if p["accepted"] and _usable(run, p)]
    if not pairs:
        return None
    # What registration moved most is what shows.
    pair = max(pairs, key=lambda p: float(np.hypot(*_between(registration, p))))
    ends = (int(pair["fixed_id"]), int(pair["moving_id"]))
    planes = [
        _plane(run, slice_id, int(pair[f"plane_{end}"]))
        for slice_id, end in zip(ends, ("fixed", "moving"), strict=True)
    ]
    (data, pixel, corner), _ = planes
    # The central two thirds of the upper slice.
    size = np.asarray(data.shape) * pixel
    low, size = corner + size / 6, size * 2 / 3
    step = float(size.max()) / _SIDE_PX
    shape = tuple(int(n) for n in np.maximum(1, np.rint(size / step)))
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1)
    common = low + (grid + 0.5) * step
    images = []
    for moved in (False, True):
        fixed, moving = (
            _grey(_sampled(plane, common, registration, slice_id, moved))
            for plane, slice_id in zip(planes, ends, strict=True)
        )
        images.append(np.stack([fixed, moving, fixed], axis=-1))
    names = " and ".join(f"z{i:02d}" for i in ends)
    shift = np.hypot(*_between(registration, pair))
    return _shown(
        "A stacked pair",
        f"The same depth in slices {names}, the first in magenta and the second in green: white "
        f"where they agree. At motor positions, and registered ({shift:.0f} µm apart).",
        images[0],
        images[1],
        float(shape[1] * step),
        "motor positions / registered",
    )


def _usable(run: Run, pair: Mapping[str, Any]) -> bool:
    ids = (int(pair["fixed_id"]), int(pair["moving_id"]))
    return (
        abs(ids[0] - ids[1]) == 1
        and all(i in run.slice_paths for i in ids)
        and all(isinstance(pair.get(f"plane_{end}"), int) for end in ("fixed", "moving"))
    )


def _between(registration: SliceRegistration, pair: Mapping[str, Any]) -> np.ndarray:
    fixed, moving = (
        np.asarray(registration.offset_um[int(pair[end])][1:]) for end in ("fixed_id", "moving_id")
    )
    return np.asarray(moving - fixed)


def _plane(run: Run, slice_id: int, plane: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a plane of a slice, its pixel size and its low corner, um."""
    from linumpy.io.omezarr import open_image

    image = open_image(run.slice_paths[slice_id])
    if not 0 <= plane < image.array.shape[0]:
        raise InputError(f"{image.path}: plane {plane} of {image.array.shape[0]}")
    pixel = np.asarray(image.voxel_um[1:])
    corner = np.asarray(image.translation_um[1:]) - pixel / 2
    return np.asarray(image.array[plane], dtype=np.float32), pixel, corner


def _sampled(
    plane: tuple[np.ndarray, np.ndarray, np.ndarray],
    common_um: np.ndarray,
    registration: SliceRegistration,
    slice_id: int,
    moved: bool,
) -> np.ndarray:
    """Return a slice's plane at common positions, where motors or registration put it."""
    from scipy.ndimage import map_coordinates

    data, pixel, corner = plane
    places = common_um
    if moved:
        # A point p lies at R (p - c) + c + t (docs/design.md).
        angle = np.radians(registration.rotation_deg.get(slice_id, 0.0))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        pivot = np.asarray(registration.pivot_um)
        places = (common_um - pivot - registration.offset_um[slice_id][1:]) @ turn + pivot
    index = (places - corner) / pixel - 0.5
    return np.asarray(map_coordinates(data, np.moveaxis(index, -1, 0), order=1, cval=0.0))
