"""Detect lengths in a wrong unit, in parameters and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.info import INFO_NAME, TileInfo
from linumpy.io.raw_folders import ids_text
from linumpy.io.raw_interval import INTERVAL_TOLERANCE, interval_contradiction
from linumpy.io.side_data import SideData, read_side_data
from linumpy.launch.problems import Problem

VOXEL_UM = (0.1, 1000.0)
"""Voxels that a brain may have."""

PIXEL_UM = (0.1, 200.0)
AXIAL_UM = (0.1, 100.0)
"""Distances of A-lines, and of samples in depth, that an OCT may have."""

INTERVAL_MM = (0.005, 5.0)
"""Distances of two cuts that a microtome may have."""

_FINER = 8
"""Voxels may be so many times finer than the finest distance of samples, for a look."""

Tiles = Sequence[tuple[Path, TileInfo]]


def resolution_problems(resolution_um: Any, bounds: tuple[float, float] = VOXEL_UM) -> list[str]:
    """Return what is wrong with ``--resolution``; -1 keeps the voxels of the tiles.

    Parameters
    ----------
    bounds
        In um.
    """
    if resolution_um is None or resolution_um == -1:
        return []
    told = _outside("--resolution", resolution_um, "um", bounds)
    return [f"{told}, or -1 for the voxels of the tiles"] if told else []


def unit_problems(
    slices: Mapping[int, Tiles], root: Path, params: Mapping[str, Any], n_slices: int
) -> list[Problem]:
    """Return lengths of raw slices that are missing, or cannot be, and contradictions.

    Parameters
    ----------
    slices
        Tiles with their headers by slice, rising; none is empty.
    params
        ``resolution`` and ``axial_resolution`` in um, ``slicing_interval_mm``; None or missing
        where not given.
    n_slices
        Of the acquisition, chosen or not.
    """
    found: list[str] = []
    sides: dict[int, SideData] = {}
    for number, tiles in slices.items():
        try:
            sides[number] = read_side_data(tiles[0][0], root)
        except InputError as error:
            found.append(str(error))
    pixels = _pixel_problems(slices)
    found += pixels
    axial = params.get("axial_resolution")
    if axial is None:
        found += _written_axial_problems(sides)
    elif told := _outside("--axial_resolution", axial, "um", AXIAL_UM):
        found.append(told)
    found += _interval_problems(slices, sides, params.get("slicing_interval_mm"), n_slices)
    if not pixels:
        infos = [tiles[0][1] for tiles in slices.values()]
        depths = [side.axial_resolution_um for side in sides.values()] if axial is None else [axial]
        possible = [um for um in depths if um is not None and AXIAL_UM[0] <= um <= AXIAL_UM[1]]
        fine = [*(p for info in infos for p in info.pixel_um), *possible]
        bounds = (min(fine) / _FINER, min(min(info.fov_um) for info in infos) / 2)
        found += resolution_problems(params.get("resolution"), bounds)
    # Slices that share a side file share its faults.
    return [Problem(text) for text in dict.fromkeys(found)]


def _outside(what: str, value: float, unit: str, bounds: tuple[float, float]) -> str | None:
    """Return what is wrong with a length, and which one was meant, None where it may be."""
    low, high = bounds
    if low <= value <= high:
        return None
    text = f"{what} {value:g}: expected {low:.3g} to {high:.3g} {unit}"
    other = {"um": ("mm", 1000), "mm": ("um", 0.001)}[unit]
    meant = value * other[1]
    if low <= meant <= high:
        text += f" ({value:g} {other[0]} would be {meant:g} {unit})"
    return text


def _pixel_problems(slices: Mapping[int, Tiles]) -> list[str]:
    found = []
    low, high = PIXEL_UM
    for axis, key in enumerate(("width", "height")):
        wrong = [n for n, tiles in slices.items() if not low <= tiles[0][1].pixel_um[axis] <= high]
        if wrong:
            path, info = slices[wrong[0]][0]
            found.append(
                f"{path / INFO_NAME}: {key} {info.fov_um[axis]:g} um over "
                f"{info.shape_px[1 + axis]} pixels is {info.pixel_um[axis]:.3g} um a pixel, "
                f"expected {low:g} to {high:g} um "
                f"(slices {ids_text(wrong)}); {key} is in um"
            )
    return found


def _written_axial_problems(sides: Mapping[int, SideData]) -> list[str]:
    unknown = [number for number, side in sides.items() if side.axial_resolution_um is None]
    found = [
        told
        for side in sides.values()
        if side.axial_resolution_um is not None
        and (
            told := _outside(
                f"{side.path}: axial_resolution_um", side.axial_resolution_um, "um", AXIAL_UM
            )
        )
    ]
    if unknown:
        found.append(
            f"axial resolution unknown (slices {ids_text(unknown)}): write "
            f'"axial_resolution_um" to {sides[unknown[0]].path}, or give --axial_resolution UM'
        )
    return found


def _interval_problems(
    slices: Mapping[int, Tiles], sides: Mapping[int, SideData], given_mm: Any, n_slices: int
) -> list[str]:
    if given_mm is not None:
        told = _outside("--slicing_interval_mm", given_mm, "mm", INTERVAL_MM)
        return [told] if told else []
    known = [s for s in sides.values() if s.slice_interval_um is not None]
    if not known:
        if n_slices == 1 or not sides:
            return []
        path = next(iter(sides.values())).path
        return [
            f'distance of the slices unknown: write "slice_thickness" (mm) to {path}, or give '
            "--slicing_interval_mm MM"
        ]
    intervals = sorted(side.slice_interval_um or 0.0 for side in known)
    usual = intervals[(len(intervals) - 1) // 2]
    side = next(side for side in known if side.slice_interval_um == usual)
    if told := _outside(f"{side.path}: slice_thickness", usual / 1e3, "mm", INTERVAL_MM):
        return [told]
    z_mm = [(number, tiles[0][1].stage_z_mm) for number, tiles in slices.items()]
    heights = [(number, z) for number, z in z_mm if z is not None]
    contradiction = interval_contradiction(usual, heights, n_slices)
    if contradiction is None or not contradiction[1]:
        return []
    return [
        f"{side.path}: {contradiction[0]}; expected agreement within "
        f"{100 * INTERVAL_TOLERANCE:g} %; give --slicing_interval_mm MM to decide"
    ]
