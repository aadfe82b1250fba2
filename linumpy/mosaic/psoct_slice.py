"""One slice of a Thorlabs PS-OCT: its ``.oct`` files, told apart by angle, on their grid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.grid import NOMINAL_OVERLAP_FRACTION, GridTile
from linumpy.io.psoct import MEMBERS, OctHeader, read_oct_header, read_scan_positions
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.mosaic.psoct_options import STAGE_TO_ARRAY, PsoctOptions

Key = tuple[int, int]

_SAME_LINE = 0.25


@dataclass(frozen=True)
class PsoctSlice:
    """The files of one angle of a slice.

    Attributes
    ----------
    headers
        Of the tile at each place of the grid.
    places
        The full rectangle of the grid; those without a file are not present.
    """

    root: Path
    headers: Mapping[Key, OctHeader]
    places: tuple[GridTile, ...]
    overlap_fraction: float

    @property
    def header(self) -> OctHeader:
        """Of the first tile; all share size and range."""
        return next(iter(self.headers.values()))


def read_psoct_slice(
    root: Path | str, options: PsoctOptions, stage_to_array: str = STAGE_TO_ARRAY
) -> PsoctSlice:
    """Read the headers and positions of a slice's tiles, of one angle.

    Parameters
    ----------
    root
        Folder with the ``.oct`` files of one slice, and one ``.scan`` file with their positions.
    stage_to_array
        Signed stage axes along axis 1 (x-planes of a file) and axis 2 (its y).

    Raises
    ------
    InputError
        When files are missing, differ in size, lack the polarisation or the depth range, or do not
        match the positions; names the file.
    """
    root = Path(root)
    files = find_oct_files(root)
    chosen = files[options.angle_index :: options.n_angles]
    position = _positions(root, files, options.n_angles)
    headers = [read_oct_header(path) for path in chosen]
    _check(headers, options)
    first = headers[0]
    axes = parse_stage_to_array(stage_to_array)
    centre = np.stack([sign * position[:, axis] for axis, sign in axes], axis=1) * 1e3
    _, pixel_x, pixel_y = first.voxel_um
    fov = np.array([first.shape_px[1] * pixel_x, first.shape_px[2] * pixel_y])
    index, step = _grid_index(centre, fov)
    _refuse_same_place(chosen, index)
    by_place = {(int(i), int(j)): n for n, (i, j) in enumerate(index)}
    places = tuple(
        _place(key, by_place.get(key), centre, index, step, axes)
        for key in np.ndindex(*(index.max(axis=0) + 1))
    )
    holes = len(places) - len(by_place)
    if holes:
        logger.warning("%s: places of the tile grid without a file: %d", root, holes)
    return PsoctSlice(
        root=root,
        headers={key: headers[by_place[key]] for key in sorted(by_place)},
        places=places,
        overlap_fraction=_overlap(step, fov),
    )


def find_oct_files(root: Path) -> list[Path]:
    """List the ``.oct`` files of a folder, numbers in their names in rising order.

    Raises
    ------
    InputError
        When there is none.
    """
    if not root.is_dir():
        raise InputError(f"{root}: no such folder of .oct files")
    files = [path for path in root.iterdir() if path.suffix.lower() == ".oct"]
    if not files:
        raise InputError(f"{root}: no .oct file in it")

    def by_number(path: Path) -> tuple[list[int | str], str]:
        parts = re.split(r"(\d+)", path.name)
        return [int(p) if n % 2 else p for n, p in enumerate(parts)], path.name

    return sorted(files, key=by_number)


def _positions(root: Path, files: Sequence[Path], n_angles: int) -> np.ndarray:
    scans = sorted(path for path in root.iterdir() if path.suffix.lower() == ".scan")
    if len(scans) != 1:
        raise InputError(
            f"{root}: {len(scans)} .scan files, expected one with the positions of the tiles"
        )
    position = read_scan_positions(scans[0])
    if len(files) != n_angles * len(position):
        raise InputError(
            f"{scans[0]}: {len(position)} positions, but {len(files)} .oct files of {n_angles} "
            f"angle(s) beside it; expected {n_angles * len(position)}"
        )
    return position


def _check(headers: Sequence[OctHeader], options: PsoctOptions) -> None:
    first, name = headers[0], MEMBERS[options.polarization]
    for header in headers:
        scan = (header.size, header.range_mm, header.n_averages)
        if scan != (first.size, first.range_mm, first.n_averages):
            raise InputError(
                f"{header.path}: size {header.size}, range {header.range_mm} mm and AScans "
                f"{header.n_averages}; expected {first.size}, {first.range_mm} and "
                f"{first.n_averages} as in {first.path}"
            )
        if options.depth_px[1] > header.size[2]:
            raise InputError(
                f"{header.path}: {header.size[2]} depth samples (SizeZ), expected at least "
                f"{options.depth_px[1]} for --depth_range {options.depth_px[0]} "
                f"{options.depth_px[1]}"
            )
        if options.polarization not in header.polarizations:
            raise InputError(
                f"{header.path}: no member {name}, expected it for --polarization "
                f"{options.polarization}"
            )
    left = first.size[0] % first.n_averages
    if left:
        logger.warning(
            "%s: the last %d of %d x-planes fill no B-scan of %d and are left out",
            first.path.parent, left, first.size[0], first.n_averages,
        )  # fmt: skip


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


def _refuse_same_place(files: Sequence[Path], index: np.ndarray) -> None:
    seen: dict[tuple[int, ...], Path] = {}
    for path, place in zip(files, index.tolist(), strict=True):
        other = seen.setdefault(tuple(place), path)
        if other is not path:
            raise InputError(
                f"{other} and {path}: two tiles at one position of the .scan file; expected tiles "
                "a step apart (or --n_angles, when angles take turns)"
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
