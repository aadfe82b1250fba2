"""Geometry of one slice of a raw acquisition: its tile grid, stage positions and interval."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.geometry.neighbours import close_pairs
from linumpy.io.grid import NOMINAL_OVERLAP_FRACTION, GridTile
from linumpy.io.info import INFO_NAME, TileInfo
from linumpy.io.raw import RawTile, tiles_of_slice
from linumpy.io.raw_files import scan_of, scan_text
from linumpy.io.raw_interval import INTERVAL_TOLERANCE, interval_contradiction
from linumpy.io.side_data import SideData, read_side_data
from linumpy.io.stage_axes import parse_stage_to_array

logger = logging.getLogger("linumpy")

SAME_PLACE = 0.05
"""Share of the field of view under which two stage positions are one."""


@dataclass(frozen=True)
class RawSlice:
    """One slice's tiles with their headers, in the order of their indices."""

    slice_id: int
    root: Path
    tiles: tuple[RawTile, ...]
    infos: tuple[TileInfo, ...]
    side: SideData

    @property
    def info(self) -> TileInfo:
        """The scan that all tiles share (but for the stage position)."""
        return self.infos[0]


@dataclass(frozen=True)
class TileGrid:
    """The full rectangle of places of a slice; those without a tile are not present.

    Attributes
    ----------
    origin
        Indices of the raw tiles that become 0, 0.
    """

    tiles: tuple[GridTile, ...]
    origin: tuple[int, int]
    overlap_fraction: float


def read_raw_slice(
    slices: Mapping[int, tuple[RawTile, ...]], slice_id: int, root: Path | str
) -> RawSlice:
    """Read the headers and side files of one slice.

    Raises
    ------
    InputError
        When the slice is not there, a header cannot be read, or tiles differ in shape or size.
    """
    tiles = tiles_of_slice(slices, slice_id, root)
    infos = tuple(tile.read_info() for tile in tiles)
    scans = [scan_of(info) for info in infos]
    usual, count = Counter(scans).most_common(1)[0]
    for tile, scan in zip(tiles, scans, strict=True):
        if scan != usual:
            raise InputError(
                f"{tile.path / INFO_NAME}: {scan_text(scan)}; expected {scan_text(usual)} as "
                f"{count} of the {len(tiles)} tiles of slice z{slice_id:02d} have"
            )
    return RawSlice(slice_id, Path(root), tiles, infos, read_side_data(tiles[0].path, root))


def tile_grid(raw: RawSlice, stage_to_array: str = "+x,+y") -> TileGrid:
    """Lay a slice's tiles out on their grid.

    Index x of the tiles runs along axis 1 and index y along axis 2. A tile without a stage
    position, and a place without a tile, get the nominal position: index times the nominal step,
    moved along with the tiles whose position is known.

    Parameters
    ----------
    stage_to_array
        Signed stage axes that run along axis 1 and axis 2.

    Raises
    ------
    InputError
        When two tiles are at one stage position.
    """
    axes = parse_stage_to_array(stage_to_array)
    index = np.array([(tile.ix, tile.iy) for tile in raw.tiles])
    stage = np.array(
        [
            (np.nan if i.stage_x_mm is None else i.stage_x_mm,
             np.nan if i.stage_y_mm is None else i.stage_y_mm)
            for i in raw.infos
        ]
    )  # fmt: skip
    known = np.isfinite(stage).all(axis=1)
    fov = np.array(raw.info.fov_um)
    centre = np.stack([sign * stage[:, axis] for axis, sign in axes], axis=1) * 1e3
    _refuse_same_place(raw, centre, known, fov)
    steps = _neighbour_steps(index[known], centre[known])
    _check_directions(raw, steps, stage_to_array)
    overlap = _overlap_fraction(raw, steps, fov)

    nominal_step = fov * (1 - overlap)
    shift = np.median(centre[known] - index[known] * nominal_step, axis=0) if known.any() else 0
    origin = index.min(axis=0)
    shape = index.max(axis=0) - origin + 1
    places = {tuple(place): n for n, place in enumerate((index - origin).tolist())}
    tiles, holes = [], []
    for ix, iy in np.ndindex(*shape):
        n = places.get((ix, iy))
        if n is not None and known[n]:
            x_mm, y_mm = (float(v) for v in stage[n])
            flags: tuple[str, ...] = ()
        else:
            position = ((origin + (ix, iy)) * nominal_step + shift) / 1e3
            x_mm, y_mm = _to_stage(position, axes)
            flags = ("nominal_position",)
        z_mm = None if n is None else raw.infos[n].stage_z_mm
        tiles.append(GridTile(ix, iy, x_mm, y_mm, z_mm, n is not None, flags))
        if n is None:
            holes.append(f"x{ix + origin[0]:02d}_y{iy + origin[1]:02d}")
    if not known.all():
        logger.warning(
            "slice z%02d: %d of %d tiles have no stage position in %s; nominal positions at "
            "%g %% overlap are used",
            raw.slice_id, int((~known).sum()), len(known), INFO_NAME, 100 * overlap,
        )  # fmt: skip
    if holes:
        more = "" if len(holes) <= 8 else f" and {len(holes) - 8} more"
        logger.warning(
            "slice z%02d: hole in the tile grid, no tile at %s%s of %s; they stay empty and masked",
            raw.slice_id, ", ".join(holes[:8]), more, raw.root,
        )  # fmt: skip
    return TileGrid(tuple(tiles), (int(origin[0]), int(origin[1])), overlap)


def _to_stage(position: np.ndarray, axes: tuple[tuple[int, int], ...]) -> tuple[float, float]:
    """Map a position along the array's axes to the stage's x and y."""
    stage = [0.0, 0.0]
    for value, (axis, sign) in zip(position, axes, strict=True):
        stage[axis] = sign * float(value)
    return stage[0], stage[1]


def _refuse_same_place(
    raw: RawSlice, centre: np.ndarray, known: np.ndarray, fov: np.ndarray
) -> None:
    numbers = np.flatnonzero(known)
    close = close_pairs(centre[numbers] / fov, (SAME_PLACE, SAME_PLACE))
    if len(close):
        a, b = (int(numbers[i]) for i in close[0])
        first, second = raw.infos[a], raw.infos[b]
        raise InputError(
            f"{raw.tiles[a].path} and {raw.tiles[b].path}: two tiles at one stage position "
            f"({first.stage_x_mm}, {first.stage_y_mm}) and ({second.stage_x_mm}, "
            f"{second.stage_y_mm}) mm; expected tiles a step apart"
        )


def _neighbour_steps(index: np.ndarray, centre: np.ndarray) -> list[np.ndarray | None]:
    """Return the median move (axis 1, axis 2) in um from a tile to the next in x, and in y."""
    places = {tuple(place): n for n, place in enumerate(index.tolist())}
    steps: list[np.ndarray | None] = []
    for dx, dy in ((1, 0), (0, 1)):
        moves = [
            centre[places[x + dx, y + dy]] - centre[n]
            for (x, y), n in places.items()
            if (x + dx, y + dy) in places
        ]
        steps.append(np.median(moves, axis=0) if moves else None)
    return steps


def _check_directions(raw: RawSlice, steps: list[np.ndarray | None], stage_to_array: str) -> None:
    """Warn when the stage moves otherwise than the map of stage axes says."""
    for axis, (letter, step) in enumerate(zip("xy", steps, strict=True)):
        if step is not None and (step[axis] <= 0 or abs(step[1 - axis]) > abs(step[axis])):
            logger.warning(
                "slice z%02d: from a tile to the next in %s the stage moves by %.0f um along "
                "axis 1 and %.0f um along axis 2, expected a positive step along axis %d; "
                "check --stage_to_array, which is %s",
                raw.slice_id, letter, step[0], step[1], axis + 1, stage_to_array,
            )  # fmt: skip


def _overlap_fraction(raw: RawSlice, steps: list[np.ndarray | None], fov: np.ndarray) -> float:
    """Return the overlap stated by the side files, else that of the positions, else 20 %."""
    if raw.side.overlap_fraction is not None:
        return raw.side.overlap_fraction
    measured = [1 - step[axis] / fov[axis] for axis, step in enumerate(steps) if step is not None]
    if measured and 0 <= np.mean(measured) < 1:
        return round(float(np.mean(measured)), 6)
    return NOMINAL_OVERLAP_FRACTION


def axial_resolution_um(raw: RawSlice, given_um: float | None) -> float:
    """Return the depth step of a sample: the one given, else that of the side files.

    Raises
    ------
    InputError
        When there is neither, or the given one is not positive.
    """
    written = raw.side.axial_resolution_um
    if given_um is None:
        if written is None:
            raise InputError(
                f"slice z{raw.slice_id:02d}: axial resolution unknown; write "
                f'"axial_resolution_um" to {raw.side.path} or give --axial_resolution UM'
            )
        return written
    _warn_other(raw, "--axial_resolution", "axial_resolution_um", given_um, written)
    return _positive("--axial_resolution", given_um)


def slice_interval_um(
    raw: RawSlice,
    slices: Mapping[int, tuple[RawTile, ...]],
    given_um: float | None,
) -> float | None:
    """Return the distance of neighbouring cuts: the one given, else that of the side files.

    Where slices differ in thickness, it is the median of all. It is checked against the stage's z,
    where that moves from slice to slice.

    Parameters
    ----------
    slices
        All slices of the acquisition, as from `discover_tiles`.

    Returns
    -------
    The interval; None when it is not known and there is but one slice.

    Raises
    ------
    InputError
        When it is not known, is not positive, or the side files' value is more than 5 % off the
        stage's, beyond what uneven steps explain (`interval_contradiction`). What they may
        explain is warned about, and so is a value given by hand.
    """
    written = _written_interval_um(raw, slices)
    interval = written if given_um is None else _positive("--slicing_interval", given_um)
    if interval is None:
        if len(slices) == 1:
            return None
        raise InputError(
            f"slice z{raw.slice_id:02d}: distance of the slices unknown; write "
            f'"slice_thickness" (mm) to {raw.side.path} or give '
            "--slicing_interval UM (of the workflow: --slicing_interval_mm MM)"
        )
    if given_um is not None:
        _warn_other(raw, "--slicing_interval", "slice_thickness", given_um, written)
    found = interval_contradiction(interval, _heights(slices), len(slices))
    if found is None:
        return interval
    message, is_sure = found
    if given_um is None and is_sure:
        raise InputError(
            f"{raw.side.path}: {message}; expected agreement within "
            f"{100 * INTERVAL_TOLERANCE:g} %; give --slicing_interval UM to decide "
            "(of the workflow: --slicing_interval_mm MM)"
        )
    logger.warning("%s: %s", raw.side.path if given_um is None else "--slicing_interval", message)
    return interval


def _written_interval_um(raw: RawSlice, slices: Mapping[int, tuple[RawTile, ...]]) -> float | None:
    """Return the thickness stated by most slices' side files, None if this slice's do not."""
    own = raw.side.slice_interval_um
    if own is None:
        return None
    found = []
    for tiles in slices.values():
        try:
            found.append(read_side_data(tiles[0].path, raw.root).slice_interval_um)
        except InputError:
            # Another slice's fault is reported when that slice is read.
            continue
    # One that was written, not a mean of two.
    return statistics.median_low([own if each is None else each for each in found] or [own])


def _heights(slices: Mapping[int, tuple[RawTile, ...]]) -> list[tuple[int, float]]:
    """Return the stage's z in mm of the slices that state it."""
    heights = []
    for slice_id, tiles in slices.items():
        try:
            z_mm = tiles[0].read_info().stage_z_mm
        except InputError:
            # Another slice's fault is reported when that slice is read.
            continue
        if z_mm is not None:
            heights.append((slice_id, z_mm))
    return heights


def _warn_other(raw: RawSlice, option: str, key: str, given: float, written: float | None) -> None:
    if written is not None and abs(given - written) > 1e-6 * written:
        logger.warning(
            "%s is %g um and %s of %s says %g um; the option counts",
            option, given, key, raw.side.path, written,
        )  # fmt: skip


def _positive(option: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InputError(f"{option} is {value}, expected more than 0")
    return value
