"""Stored objects (chunks and shards) as byte ranges, in any store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from linumpy.core.errors import InputError
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


def local_object(root: Path | str, path: str) -> LocalObject:
    """Return a file of a local store.

    Raises
    ------
    InputError
        When a link leads out of the store.
    """
    stay_inside(root, path)
    return LocalObject(path)


def stored_object(store_path: Any) -> StoredObject:
    """Return the object that a Zarr ``StorePath`` names."""
    from zarr.storage import LocalStore

    store = store_path.store
    if isinstance(store, LocalStore):
        return local_object(store.root, os.fspath(Path(store.root) / store_path.path))
    return KeyObject(store, store_path.path)
