"""Suggest pipeline parameters from an acquisition's metadata, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.robust import robust_spread
from linumpy.io.raw import RawTile, discover_tiles
from linumpy.io.tables import XYShift, read_shifts
from linumpy.mosaic.raw_slice import read_raw_slice, tile_grid
from linumpy.mosaic.shifts import (
    estimate_xy_shift_from_metadata,
    holds_grids,
    read_extents,
    read_grid_infos,
)

RESOLUTION_UM = 10.0
_SEEN_TIMES = 3
_WATER_SHARE = 0.15
_LEAST_OVERLAP_PLANES = 14
_LARGE_SPREADS = 6
_LEAST_LARGE_MM = 0.1
_LEAST_REACH_MM = 1.0
_TILE_TOLERANCE = 0.05
_TILE_BYTES = 5
_TILES_ON_DEVICE = 2


@dataclass(frozen=True)
class Acquisition:
    """What the metadata of an acquisition says; None for what it does not.

    Attributes
    ----------
    pixel_um, fov_um
        Lateral pixel and side of a tile along axis 1 and axis 2.
    n_planes, n_tiles
        Depth samples of a tile, and tiles of the largest slice.
    n_extra
        A-lines of the galvo's return, which grids do not have any more.
    stage_interval_um
        Move of the stage's z a slice.
    """

    n_slices: int
    pixel_um: tuple[float, float]
    fov_um: tuple[float, float]
    n_planes: int
    n_tiles: int
    overlap_fraction: float
    axial_um: float | None
    interval_um: float | None
    n_extra: int | None
    stage_interval_um: float | None

    @property
    def depth_um(self) -> float | None:
        """Depth that a tile shows."""
        return None if self.axial_um is None else self.n_planes * self.axial_um


@dataclass(frozen=True)
class Suggestion:
    """One parameter, or a fact that decides others.

    Attributes
    ----------
    name
        Of the pipeline's parameter, or of the fact.
    value
        None for a parameter that must be given and that the metadata does not state.
    is_param
        Whether the pipeline has such a parameter.
    """

    name: str
    value: Any
    unit: str
    reason: str
    is_param: bool = True


def suggest_params(acquisition: Acquisition, shifts: Sequence[XYShift]) -> list[Suggestion]:
    """Return parameters that fit an acquisition.

    Parameters
    ----------
    acquisition
        From `read_acquisition`.
    shifts
        Steps of the stage between slices, as in ``shifts_xy.csv``.
    """
    resolution = _resolution(acquisition)
    return [
        *_facts(acquisition),
        _axial(acquisition),
        _interval(acquisition),
        *_galvo(acquisition),
        resolution,
        *_crop(acquisition, resolution.value),
        *_steps(acquisition, shifts, resolution.value),
        _gpu_memory(acquisition, resolution.value),
    ]


def _facts(a: Acquisition) -> list[Suggestion]:
    fov = " x ".join(f"{v / 1e3:g}" for v in a.fov_um)
    source = "width and height of info.txt" if a.n_extra is not None else "the grids' metadata"
    return [
        Suggestion("tile_fov", fov, "mm", f"from {source}", is_param=False),
        Suggestion(
            "overlap", round(a.overlap_fraction, 4), "", "from metadata or stage positions",
            is_param=False,
        ),
    ]  # fmt: skip


def _axial(a: Acquisition) -> Suggestion:
    if a.axial_um is None:
        return Suggestion(
            "axial_resolution", None, "um", "metadata.json lacks axial_resolution_um: give it"
        )
    return Suggestion("axial_resolution", a.axial_um, "um", "from the metadata")


def _interval(a: Acquisition) -> Suggestion:
    name, stage = "slicing_interval_mm", a.stage_interval_um
    if a.interval_um is None and stage is None:
        return Suggestion(name, None, "mm", "neither metadata nor stage_z_pos_mm state it: give it")
    if a.interval_um is None:
        return Suggestion(name, _mm(stage or 0.0), "mm", "the stage's z moves by it a slice")
    reason = "from the metadata"
    if stage is not None and abs(stage - a.interval_um) > 0.05 * stage:
        reason += f"; but the stage's z moves by {stage:g} um a slice: check which is right"
    elif stage is not None:
        reason += ", and the stage's z agrees"
    return Suggestion(name, _mm(a.interval_um), "mm", reason)


def _galvo(a: Acquisition) -> list[Suggestion]:
    if a.n_extra is None:
        return []
    reason = f"{a.n_extra} A-lines a B-scan of the galvo's return may have drifted"
    if a.n_extra == 0:
        reason = "n_extra is 0: no return of the galvo was recorded"
    return [Suggestion("fix_galvo_shift", a.n_extra > 0, "", reason)]


def _resolution(a: Acquisition) -> Suggestion:
    coarsest = max(a.pixel_um)
    if coarsest <= RESOLUTION_UM:
        reason = f"the usual one; pixels are {coarsest:.3g} um"
        return Suggestion("resolution", RESOLUTION_UM, "um", reason)
    return Suggestion(
        "resolution", float(math.ceil(coarsest)), "um", f"pixels are {coarsest:.3g} um, no finer"
    )


def _crop(a: Acquisition, resolution_um: float) -> list[Suggestion]:
    if a.interval_um is None or a.depth_um is None:
        return []
    wanted, seen = _SEEN_TIMES * a.interval_um, (1 - _WATER_SHARE) * a.depth_um
    least = a.interval_um + _LEAST_OVERLAP_PLANES * resolution_um
    depth = float(math.floor(min(wanted, seen) / resolution_um) * resolution_um)
    reason = f"{_SEEN_TIMES} slicing intervals, so that neighbours share tissue"
    if seen < wanted:
        reason = f"what {a.depth_um:.0f} um of imaged depth leave below some water"
    if depth < least:
        reason += f"; neighbours need {least:.0f} um to be registered in depth"
    return [Suggestion("crop_interface_out_depth", depth, "um", reason)]


def _steps(a: Acquisition, shifts: Sequence[XYShift], resolution_um: float) -> list[Suggestion]:
    if not shifts:
        return []
    steps = np.array([[s.x_shift_mm, s.y_shift_mm] for s in shifts])
    size = np.hypot(*steps.T)
    middle = float(np.median(size))
    spread = robust_spread(size - middle)
    usual = middle + _LARGE_SPREADS * spread
    fov_mm = float(np.mean(a.fov_um)) / 1e3
    # Rounded up to a tenth; half a tile off is what no stage does between two slices.
    large = min(max(_LEAST_LARGE_MM, math.ceil(10 * usual) / 10), max(_LEAST_LARGE_MM, fov_mm / 2))
    odd = int((size > large).sum())
    found = [
        Suggestion(
            "rehoming_max_shift_mm", round(large, 3), "mm",
            f"steps are {middle:.3f} mm, give or take {spread:.3f}; {odd} of {len(size)} exceed it",
        )
    ]  # fmt: skip
    tiles = np.rint(steps / fov_mm)
    whole = (tiles != 0) & (np.abs(steps - tiles * fov_mm) < _TILE_TOLERANCE * fov_mm)
    if whole.any() and math.isclose(*a.fov_um, rel_tol=1e-3):
        found.append(
            Suggestion(
                "tile_fov_mm", round(fov_mm, 4), "mm",
                f"{int(whole.any(axis=1).sum())} steps are whole tiles, which a stage miscounts",
            )
        )  # fmt: skip
    reach = math.ceil(max(_LEAST_REACH_MM, 2 * large) * 1e3 / resolution_um / 10) * 10
    found.append(
        Suggestion(
            "registration_max_translation", int(reach), "pixel",
            f"twice the largest usual step, but {_LEAST_REACH_MM:g} mm at least: a stage that lost "
            "its zero, but not by how much",
        )
    )  # fmt: skip
    return found


def _gpu_memory(a: Acquisition, resolution_um: float) -> Suggestion:
    planes = a.n_planes if a.axial_um is None else a.n_planes * a.axial_um / resolution_um
    voxels = planes * math.prod(fov / resolution_um for fov in a.fov_um)
    resting = a.n_tiles * voxels * _TILE_BYTES / 1e9
    size = max(4, math.ceil(_TILES_ON_DEVICE * resting))
    return Suggestion(
        "gpu_memory", f"{size}GB", "",
        f"a slice's {a.n_tiles} tiles rest on the device in {resting:.1f} GB; with less they wait "
        "on the host",
    )  # fmt: skip


def _mm(length_um: float) -> float:
    return round(length_um / 1e3, 6)


def params_file(suggestions: Sequence[Suggestion]) -> dict[str, Any]:
    """Return the content of a file for ``-params-file``: parameters that have a value."""
    return {s.name: s.value for s in suggestions if s.is_param and s.value is not None}


def table_text(suggestions: Sequence[Suggestion]) -> str:
    """Return the suggestions as lines of a table."""
    rows = [
        (
            s.name if s.is_param else f"({s.name})",
            "?" if s.value is None else f"{_text(s.value)} {s.unit}".strip(),
            s.reason,
        )
        for s in suggestions
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{n:<{widths[0]}}  {v:<{widths[1]}}  {r}" for n, v, r in rows)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_acquisition(source: Path | str, assume_unit: str | None = None) -> Acquisition:
    """Read the metadata of an acquisition, raw or as mosaic grids; no voxel is read.

    Raises
    ------
    InputError
        When the folder holds neither, or its metadata contradicts itself.
    """
    if holds_grids(source):
        return _of_grids(source, assume_unit)
    slices = discover_tiles(source)
    largest = max(slices, key=lambda slice_id: len(slices[slice_id]))
    raw = read_raw_slice(slices, largest, source)
    return Acquisition(
        n_slices=len(slices),
        pixel_um=raw.info.pixel_um,
        fov_um=raw.info.fov_um,
        n_planes=raw.info.nz,
        n_tiles=len(raw.tiles),
        overlap_fraction=tile_grid(raw).overlap_fraction,
        axial_um=raw.side.axial_resolution_um,
        interval_um=raw.side.slice_interval_um,
        n_extra=raw.info.n_extra,
        stage_interval_um=_stage_interval_um(slices),
    )


def _of_grids(source: Path | str, assume_unit: str | None) -> Acquisition:
    infos = read_grid_infos(source, assume_unit)
    largest = max(infos, key=lambda info: len(info.tiles))
    heights = [
        (info.slice_id, next((t.stage_z_mm for t in info.tiles if t.stage_z_mm is not None), None))
        for info in infos
    ]
    return Acquisition(
        n_slices=len(infos),
        pixel_um=(largest.voxel_um[1], largest.voxel_um[2]),
        fov_um=largest.tile_fov_um,
        n_planes=largest.tile_shape_px[0],
        n_tiles=sum(tile.present for tile in largest.tiles),
        overlap_fraction=largest.overlap_fraction,
        axial_um=largest.voxel_um[0],
        interval_um=largest.slice_interval_um,
        n_extra=None,
        stage_interval_um=_median_move_um(heights),
    )


def _stage_interval_um(slices: Mapping[int, tuple[RawTile, ...]]) -> float | None:
    return _median_move_um([(k, tiles[0].read_info().stage_z_mm) for k, tiles in slices.items()])


def _median_move_um(heights: Sequence[tuple[int, float | None]]) -> float | None:
    """Return the median move of the stage's z a slice; None when it does not move."""
    known = [(slice_id, z) for slice_id, z in sorted(heights) if z is not None]
    moves = [
        abs(z1 - z0) * 1e3 / (id1 - id0)
        for (id0, z0), (id1, z1) in zip(known, known[1:], strict=False)
    ]
    return round(float(np.median(moves)), 6) or None if moves else None


def suggest_for(
    source: Path | str, shifts: Path | None = None, assume_unit: str | None = None
) -> list[Suggestion]:
    """Return suggestions for a folder; without a table, steps come from the stage positions."""
    acquisition = read_acquisition(source, assume_unit)
    if shifts is not None:
        steps = read_shifts(shifts)
    else:
        steps = estimate_xy_shift_from_metadata(read_extents(source, assume_unit=assume_unit))
    return suggest_params(acquisition, steps)
