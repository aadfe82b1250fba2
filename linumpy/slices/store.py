"""Tile cache with a memory budget; spills to host, then to scratch files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linumpy.core.device import CPU, Device, device, is_device_array
from linumpy.gpu.array import LazyArray, Pool
from linumpy.slices.tile import Key, Tile

DEFAULT_BUDGET_BYTES = 3 << 29
"""Bytes of tiles that rest in host memory."""


@dataclass(frozen=True)
class _Resting:
    """A tile of lazy arrays, and the device that it came on."""

    data: LazyArray
    valid: LazyArray | None
    home: Device


class TileStore:
    """A mapping from key to tile, of lazy arrays that share a memory budget.

    Parameters
    ----------
    budget_bytes
        Bytes of tiles to keep in host memory; what is beyond goes to a scratch folder.
    gpu_budget_bytes
        Bytes to keep in the memory of each GPU of the tiles that came on it; what is beyond goes to
        the host, within `budget_bytes`. The least recently used go first. As many as
        `budget_bytes` when None.
    fetch
        Reads a tile anew, which makes the store a cache of a source: a tile that was never put is
        read, and what is put must be what `fetch` returns. Tiles are then dropped, not spilled.
    scratch
        Parent of the scratch folder; the system's temporary folder when None.

    Notes
    -----
    Threads may share a store. A tile comes back read-only, bit for bit as it was. Use it as a
    context manager: leaving removes the scratch folder.
    """

    def __init__(
        self,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        *,
        gpu_budget_bytes: int | None = None,
        fetch: Callable[[Key], Tile] | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._fetch = fetch
        on_gpu = budget_bytes if gpu_budget_bytes is None else gpu_budget_bytes
        self._pool = Pool({CPU: budget_bytes, Device("cuda"): on_gpu}, scratch=scratch)
        self._tiles: dict[Key, _Resting] = {}

    def __enter__(self) -> TileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spills(self) -> int:
        """How often an array was moved to a slower place to make room."""
        return self._pool.spills

    def held_bytes(self, where: Device = CPU) -> int:
        """Return the bytes that the tiles take on a device."""
        return self._pool.held_bytes(where)

    def put(self, tile: Tile) -> None:
        """Keep a tile; one of the same key is replaced."""
        self._tiles[tile.key] = self._rest(tile)

    def home(self, key: Key) -> Device | None:
        """Return the device that a tile came on; None when it was never put."""
        resting = self._tiles.get(key)
        return None if resting is None else resting.home

    def get(self, key: Key, where: Device | None = None) -> Tile:
        """Return a tile, from memory, from scratch or from the source.

        Parameters
        ----------
        key
            Which one.
        where
            Device to return it on, with its index; the one that it came on when None. Other
            devices' tiles are copied there once, as far as the budget there allows.

        Raises
        ------
        KeyError
            When the key was never put and there is no source.
        """
        resting = self._tiles.get(key)
        if resting is None:
            if self._fetch is None:
                raise KeyError(key)
            resting = self._rest(self._fetch(key))
            self._tiles[key] = resting
        with device(where or resting.home):
            valid = None if resting.valid is None else resting.valid.get_array()
            return Tile(key, resting.data.get_array(), valid)

    def take(self, key: Key) -> Tile:
        """Return a tile as `get` does, and keep it no longer."""
        tile = self.get(key)
        del self._tiles[key]
        return tile

    def close(self) -> None:
        """Drop all tiles and remove the scratch folder."""
        self._tiles.clear()
        self._pool.close()

    def _rest(self, tile: Tile) -> _Resting:
        fetch, key = self._fetch, tile.key
        # A read gives both parts; the second waits here for the moment until it is asked for.
        at_hand: dict[str, Any] = {}

        def load(part: str) -> Any:
            if part not in at_hand:
                assert fetch is not None
                found = fetch(key)
                at_hand.update(data=found.data, valid=found.valid)
            return at_hand.pop(part)

        def lazy(part: str) -> LazyArray | None:
            array = getattr(tile, part)
            if array is None:
                return None
            name = f"tile {key} ({part})"
            again = None if fetch is None else functools.partial(load, part)
            return LazyArray(array, name=name, pool=self._pool, load=again)

        home = Device("cuda", tile.data.device.id) if is_device_array(tile.data) else CPU
        data = lazy("data")
        assert data is not None
        return _Resting(data, lazy("valid"), home)
