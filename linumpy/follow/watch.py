"""Find tiles as they become complete, by polling: it works on local and network file systems.

Times are those of this process alone: clocks of file servers and microscopes differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.info import INFO_NAME, TileInfo, read_info
from linumpy.io.raw import TILE_NAME, RawTile
from linumpy.io.raw_files import image_files, is_image
from linumpy.io.raw_folders import walk_raw_folders
from linumpy.io.side_data import read_side_data

SETTLE_S = 2.0
"""Files of a tile that did not change for so long are taken as written."""

Key = tuple[int, int]


def last_slice_id(root: Path) -> int | None:
    """Return the last slice of an acquisition as ``state.json`` says; None if it does not."""
    try:
        return int(json.loads((root / "state.json").read_bytes())["z_max"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass
class _Seen:
    """State of a tile at the last scan."""

    tile: RawTile
    order: int
    signature: tuple[tuple[str, int, int], ...]
    changed_s: float
    info: TileInfo | None = None
    whole: bool = False
    problem: str = "no info.txt"

    @property
    def key(self) -> Key:
        return self.tile.ix, self.tile.iy


@dataclass(frozen=True)
class _Grid:
    """Places of a slice's tiles, and the one that came last where that was seen.

    `shown` are the places of the slice itself, which may lack tiles of the grid.
    """

    keys: frozenset[Key]
    last: Key | None
    shown: frozenset[Key]


@dataclass(frozen=True)
class FinishedSlice:
    """A slice whose last tile is there.

    Attributes
    ----------
    tiles
        Those that are whole, in the order of their indices.
    short
        Problems of those that are not, by grid indices.
    missing
        Places of the grid that have no tile.
    n_missing
        Tiles that lack by number where their places are not known.
    last_change_s
        When the last of its files was seen to change.
    duration_s, end_s
        From the first of its files to the last, and when that was (Unix time), both by the file
        system's own clock.
    """

    slice_id: int
    tiles: tuple[RawTile, ...]
    short: dict[Key, str]
    missing: tuple[Key, ...]
    n_missing: int
    last_change_s: float
    duration_s: float
    end_s: float


@dataclass(frozen=True)
class Progress:
    """A slice under way: tiles that are complete, and that are expected where anything tells."""

    slice_id: int
    n_tiles: int
    n_expected: int | None


class Watcher:
    """Scan a raw folder repeatedly.

    Parameters
    ----------
    root
        Raw acquisition; it need not exist yet.
    tiles_per_slice
        Where neither metadata nor an earlier slice states it.
    quiet_s
        Without any change for so long, the current slice counts as complete.
    settle_s
        As `SETTLE_S`. Where a writer sets the size of a file before its samples, it has to be
        longer than writing pauses, attributes are cached and times are rounded, all together.
    """

    def __init__(
        self,
        root: Path,
        *,
        tiles_per_slice: int | None = None,
        quiet_s: float = 60.0,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.root = root
        self._settle_s = settle_s
        self._problem = ""
        self._tiles_per_slice = tiles_per_slice
        self._quiet_s = quiet_s
        self._seen: dict[int, dict[Key, _Seen]] = {}
        self._grid: tuple[int, _Grid] | None = None
        self._done: set[int] = set()
        self._poll = 0
        self.changed_s: float | None = None

    @property
    def slice_ids(self) -> list[int]:
        """Slices that were seen, those that are done left out."""
        return sorted(self._seen.keys() - self._done)

    def last_id(self) -> int | None:
        """Return the last slice of the acquisition, as `last_slice_id`."""
        return last_slice_id(self.root)

    def poll(self, now_s: float) -> None:
        """Scan all tiles of the slices that are not done."""
        self._poll += 1
        if self.changed_s is None:
            self.changed_s = now_s
        if not self.root.is_dir():
            return
        try:
            for path in walk_raw_folders(self.root, lambda *_: None):
                match = TILE_NAME.fullmatch(path.name)
                if match is None:
                    continue
                ix, iy, slice_id = (int(group) for group in match.groups())
                if slice_id not in self._done:
                    self._look(RawTile(path, slice_id, ix, iy), now_s)
        except InputError as error:
            # A file server that does not answer now may do so at the next look.
            if str(error) != self._problem:
                logger.warning("%s; it is looked at again", error)
            self._problem = str(error)
        else:
            self._problem = ""

    def _look(self, tile: RawTile, now_s: float) -> None:
        try:
            signature = signature_of(tile.path)
        except OSError:
            return
        tiles = self._seen.setdefault(tile.slice_id, {})
        seen = tiles.get((tile.ix, tile.iy))
        if seen is None:
            seen = _Seen(tile, self._poll, (), now_s)
            tiles[tile.ix, tile.iy] = seen
            self.changed_s = now_s
        if signature != seen.signature:
            seen.signature, seen.changed_s, self.changed_s = signature, now_s, now_s
            seen.info, seen.whole = None, False
        if not seen.whole:
            try:
                seen.info = read_info(tile.path / INFO_NAME)
                image_files(tile.path, seen.info)
                seen.whole, seen.problem = True, ""
            except InputError as error:
                seen.problem = str(error)
            except OSError as error:
                seen.problem = f"{tile.path}: cannot be read ({error.strerror})"

    def _is_settled(self, seen: _Seen, now_s: float) -> bool:
        return now_s - seen.changed_s >= self._settle_s

    def _is_complete(self, seen: _Seen, now_s: float) -> bool:
        """Whether a tile is whole and will not change: settled, or the next tile has begun."""
        newest = max(s.order for tiles in self._seen.values() for s in tiles.values())
        return seen.whole and (newest > seen.order or self._is_settled(seen, now_s))

    def finished(self, slice_id: int, now_s: float) -> FinishedSlice | None:
        """Return a slice if its last tile is there, else None.

        It is there when as many tiles are complete as the metadata say, or the grid of the slice
        before, or `tiles_per_slice`. A slice that lacks tiles is over when the tile that came last
        in the slice before is complete, when a later slice has begun, or when all is quiet.
        """
        tiles = self._seen[slice_id]
        complete = {key for key, seen in tiles.items() if self._is_complete(seen, now_s)}
        grid = self._grid_before(slice_id)
        count = self._expected(slice_id, tiles)
        is_later = any(other > slice_id for other in (*self._seen, *self._done))
        is_quiet = self.changed_s is not None and now_s - self.changed_s >= self._quiet_s
        all_there = count is not None and len(complete) >= count
        is_past_last = grid is not None and grid.last in complete
        if not (all_there or is_later or is_quiet or is_past_last):
            return None
        rest = [seen for key, seen in tiles.items() if key not in complete]
        if any(not self._is_settled(seen, now_s) for seen in rest):
            return None
        missing = grid.keys - tiles.keys() if grid else _holes(tiles, count)
        n_missing = max(len(missing), (count or 0) - len(tiles))
        last = max(seen.changed_s for seen in tiles.values())
        return FinishedSlice(
            slice_id,
            tuple(tiles[key].tile for key in sorted(complete)),
            {seen.key: seen.problem or "still changing" for seen in rest},
            tuple(sorted(missing)),
            n_missing,
            last,
            *_written_s(tiles.values()),
        )

    def progress(self, now_s: float) -> Progress | None:
        """Return how far the last slice is that is not done; None without one."""
        if not self.slice_ids:
            return None
        slice_id = self.slice_ids[-1]
        tiles = self._seen[slice_id]
        complete = sum(self._is_complete(s, now_s) for s in tiles.values())
        return Progress(slice_id, complete, self._expected(slice_id, tiles))

    def done(self, slice_id: int) -> None:
        """Stop scanning a slice; its grid serves the next one."""
        self._done.add(slice_id)
        # Memory stays constant: of slices that are done, only the last grid is kept.
        seen = self._seen.pop(slice_id, None)
        if seen:
            newest = max(s.order for s in seen.values())
            last: list[Key | None] = [key for key, s in seen.items() if s.order == newest]
            before, expected = self._grid_before(slice_id), self._expected(slice_id, seen) or 0
            shown, keys = frozenset(seen), frozenset(seen) | _holes(seen)
            is_part = len(keys) < expected
            if shown != keys or is_part or (before and not before.keys <= keys):
                # It may be the last tile that never came.
                last = [] if before is None else [before.last]
            if before is not None and is_part and keys < before.keys and shown != before.shown:
                # A row or column that never came leaves no hole; twice alike is another mosaic.
                keys = before.keys
            if (before or not is_part) and (self._grid is None or self._grid[0] < slice_id):
                # Of tiles that were found together the last one is unknown.
                grid = _Grid(keys, last[0] if len(last) == 1 else None, shown)
                self._grid = (slice_id, grid)

    def _grid_before(self, slice_id: int) -> _Grid | None:
        return self._grid[1] if self._grid and self._grid[0] < slice_id else None

    def _expected(self, slice_id: int, tiles: Mapping[Key, _Seen]) -> int | None:
        """Return how many tiles a slice has, as far as anything tells."""
        grid = self._grid_before(slice_id)
        told = self._count(tiles)
        return told or (len(grid.keys) if grid else None) or self._tiles_per_slice

    def _count(self, tiles: Mapping[Key, _Seen]) -> int | None:
        try:
            return read_side_data(next(iter(tiles.values())).tile.path, self.root).n_tiles
        except InputError:
            # Half written: another poll comes.
            return None


def signature_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of change, ns, of a tile's files.

    Raises
    ------
    OSError
        When the folder or one of them cannot be read.
    """
    names = (p for p in folder.iterdir() if p.name == INFO_NAME or is_image(p.name))
    stats = ((p.name, p.stat()) for p in names)
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def _written_s(tiles: Iterable[_Seen]) -> tuple[float, float]:
    """Return the time between the oldest and the newest file, and that of the newest."""
    times = [mtime_ns for seen in tiles for _, _, mtime_ns in seen.signature]
    return ((max(times) - min(times)) / 1e9, max(times) / 1e9) if times else (0.0, 0.0)


def _holes(tiles: Mapping[Key, object], count: int | None = None) -> frozenset[Key]:
    """Return the places of the full rectangle that have no tile, if it has as many as expected."""
    xs, ys = {x for x, _ in tiles}, {y for _, y in tiles}
    full = {(x, y) for x in range(min(xs), max(xs) + 1) for y in range(min(ys), max(ys) + 1)}
    return frozenset(full - tiles.keys() if count in (None, len(full)) else ())
