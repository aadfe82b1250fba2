"""Where tiles rest between passes: in memory up to a budget, beyond it in a scratch folder."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from linumpy.device import CPU, Device, to_device, to_host
from linumpy.slices.tile import Key, Tile

DEFAULT_BUDGET_BYTES = 3 << 29


class TileStore:
    """A mapping from key to tile that spills the least recently used tiles.

    Parameters
    ----------
    budget_bytes
        Bytes of tiles to keep in memory (of the device they came on).
    fetch
        Reads a tile that was never put here, which makes the store a cache of a source; such
        tiles are clean, so that they are dropped, not spilled.
    scratch
        Parent of the scratch folder; the system's temporary folder when None.

    Notes
    -----
    Threads may share a store. A spilled tile comes back bit for bit as it was, on the device
    that it was on. Use it as a context manager: leaving removes the scratch folder.
    """

    def __init__(
        self,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        *,
        fetch: Callable[[Key], Tile] | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._budget = budget_bytes
        self._fetch = fetch
        self._scratch_parent = scratch
        self._scratch: Path | None = None
        self._resident: OrderedDict[Key, Tile] = OrderedDict()
        self._spilled: dict[Key, tuple[Path, Device]] = {}
        self._dirty: set[Key] = set()
        self._bytes = 0
        self._lock = threading.RLock()
        self.spills = 0

    def __enter__(self) -> TileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, tile: Tile) -> None:
        """Keep a tile; one of the same key is replaced."""
        with self._lock:
            self._forget(tile.key)
            self._dirty.add(tile.key)
            self._admit(tile)

    def get(self, key: Key) -> Tile:
        """Return a tile, from memory, from scratch or from the source.

        Raises
        ------
        KeyError
            When the key was never put and there is no source.
        """
        with self._lock:
            if key in self._resident:
                self._resident.move_to_end(key)
                return self._resident[key]
            if key in self._spilled:
                tile = self._load(key)
                self._admit(tile)
                return tile
        if self._fetch is None:
            raise KeyError(key)
        tile = self._fetch(key)
        with self._lock:
            if key not in self._resident:
                self._admit(tile)
        return tile

    def close(self) -> None:
        """Drop all tiles and remove the scratch folder."""
        with self._lock:
            self._resident.clear()
            self._spilled.clear()
            self._dirty.clear()
            self._bytes = 0
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None

    def _forget(self, key: Key) -> None:
        if key in self._resident:
            self._bytes -= self._resident.pop(key).nbytes
        if key in self._spilled:
            self._spilled.pop(key)[0].unlink()
        self._dirty.discard(key)

    def _admit(self, tile: Tile) -> None:
        self._resident[tile.key] = tile
        self._bytes += tile.nbytes
        while self._bytes > self._budget and len(self._resident) > 1:
            key, oldest = self._resident.popitem(last=False)
            self._bytes -= oldest.nbytes
            # A tile loaded back from scratch is still there and need not be written again.
            if key in self._dirty and key not in self._spilled:
                self._spill(oldest)

    def _spill(self, tile: Tile) -> None:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="linumpy-", dir=self._scratch_parent))
        path = self._scratch / f"{tile.key[0]}_{tile.key[1]}.npz"
        arrays = {"data": to_host(tile.data)}
        if tile.valid is not None:
            arrays["valid"] = to_host(tile.valid)
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        place = CPU if isinstance(tile.data, np.ndarray) else Device("cuda")
        self._spilled[tile.key] = (path, place)
        self.spills += 1

    def _load(self, key: Key) -> Tile:
        path, device = self._spilled[key]
        with np.load(path, allow_pickle=False) as arrays:
            data = to_device(arrays["data"], device)
            valid = to_device(arrays["valid"], device) if "valid" in arrays.files else None
        return Tile(key, data, valid)
