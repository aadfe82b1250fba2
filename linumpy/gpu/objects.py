"""Stored objects (chunks and shards) as byte ranges, whatever store they lie in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from linumpy.errors import InputError
from linumpy.store.chunk_layout import MISSING, ShardIndex
from linumpy.store.frames import first_overlap
from linumpy.store.untrusted_zarr import stay_inside


class StoredObject(Protocol):
    """A chunk or shard. `path` is its file, or None when it lies in no local file."""

    name: str
    path: str | None

    def size(self) -> int | None:
        """Bytes of the object, or None when it does not exist."""
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the object; fewer only when it ends before."""
        ...


class LocalObject:
    """A file."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.path: str | None = path

    def size(self) -> int | None:
        """Bytes of the file, or None when there is none."""
        try:
            return os.stat(self.name).st_size  # noqa: PTH116 - thousands of calls a read
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the file."""
        descriptor = os.open(self.name, os.O_RDONLY)
        try:
            parts = []
            while nbytes:
                part = os.pread(descriptor, nbytes, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                nbytes -= len(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)


class KeyObject:
    """A key of any other Zarr store; must not be read on Zarr's own event loop."""

    path: str | None = None

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key
        self.name = f"{store}/{key}"

    def size(self) -> int | None:
        """Bytes of the value, or None when the key is not there."""
        from linumpy.store.zarr_adapter import sync

        try:
            return int(sync(self._store.getsize(self._key)))
        except FileNotFoundError:
            return None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the value."""
        from zarr.abc.store import RangeByteRequest
        from zarr.buffer.cpu import buffer_prototype

        from linumpy.store.zarr_adapter import sync

        value = sync(
            self._store.get(self._key, buffer_prototype, RangeByteRequest(offset, offset + nbytes))
        )
        if value is None:
            raise InputError(f"{self.name}: vanished while it was read")
        return bytes(value.to_bytes())


def stored_object(store_path: Any) -> StoredObject:
    """Return the object that a Zarr ``StorePath`` names."""
    from zarr.storage import LocalStore

    store = store_path.store
    if isinstance(store, LocalStore):
        path = Path(store.root) / store_path.path
        stay_inside(store.root, path)
        return LocalObject(os.fspath(path))
    return KeyObject(store, store_path.path)


def read_index(stored: StoredObject, size: int, index: ShardIndex) -> tuple[np.ndarray, np.ndarray]:
    """Read and check a shard's index.

    Parameters
    ----------
    stored
        The shard.
    size
        Its bytes.
    index
        Where the index is and how it is stored.

    Returns
    -------
    Offset and length of every inner chunk, uint64, shape (n_chunks,); both `MISSING` for a chunk
    that was never written.

    Raises
    ------
    InputError
        When the shard is shorter than its index, the index fails its checksum, or an entry
        points out of the shard.
    """
    if size < index.nbytes:
        raise InputError(
            f"{stored.name}: shard of {size} bytes, shorter than its index of {index.nbytes}"
        )
    data = stored.read(size - index.nbytes if index.at_end else 0, index.nbytes)
    if len(data) != index.nbytes:
        raise InputError(f"{stored.name}: shard index cut short at {len(data)} bytes")
    if index.has_crc32c:
        import google_crc32c

        computed = google_crc32c.value(data[:-4])
        if computed != int.from_bytes(data[-4:], "little"):
            raise InputError(f"{stored.name}: shard index does not match its checksum (crc32c)")
        data = data[:-4]
    table = np.frombuffer(data, "<u8").reshape(-1, 2)
    offset, length = table[:, 0].copy(), table[:, 1].copy()
    missing = (offset == MISSING) & (length == MISSING)
    outside = ~missing & ((offset > size) | (length > size) | (offset + length > size))
    if outside.any():
        chunk = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"{stored.name}: inner chunk {chunk} at {offset[chunk]}, {length[chunk]} bytes, "
            f"lies outside of the shard ({size} bytes)"
        )
    present = np.flatnonzero(~missing)
    first, stop = (0, size - index.nbytes) if index.at_end else (index.nbytes, size)
    shared = first_overlap(offset[present], length[present], first, stop)
    if shared is not None:
        one, other = (int(present[number]) for number in shared)
        whom = "the index" if one == other else f"inner chunk {other}"
        raise InputError(f"{stored.name}: inner chunk {one} overlaps {whom}")
    return offset, length
