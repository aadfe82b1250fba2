"""Read-only paths on object stores (``s3://``) and web servers (``https://``, ``http://``).

Such a path goes through the program as a `RemotePath`, which spells and joins like any other path
and refuses whatever would need a file system. Nothing heavy is imported here: what reads is in
`linumpy.store.remote_store`.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterable
from pathlib import Path, PosixPath
from typing import Any
from urllib.parse import urlsplit

from linumpy.core.errors import InputError
from linumpy.store.addresses import is_remote, spelled

_ZARR_NAMES = ("zarr.json", ".zgroup", ".zarray")


class RemotePath(PosixPath):
    """A path whose text is a URL, and whose content is fetched."""

    def __str__(self) -> str:
        return spelled(super().__str__())

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> str:
        """Refuse to be opened as a local file, by whatever tries."""
        raise InputError(
            f"{self}: not in a file system of this machine, and this is not read from elsewhere; "
            "copy it here first"
        )

    def exists(self, **_: Any) -> bool:
        """Whether there is an object of this name, or any below it."""
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        """Whether there is an object of this name."""
        from linumpy.store.remote_store import open_store

        return open_store(self.parent).holds(self.name)

    def is_dir(self, **_: Any) -> bool:
        """Whether there are objects below this name; on a web server, whether Zarr has any."""
        from linumpy.store.remote_store import open_store

        store = open_store(self)
        if any(store.holds(name) for name in _ZARR_NAMES):
            return True
        return self.parts[0] == "s3:" and bool(store.names())

    def is_symlink(self) -> bool:
        """Whether it is a link: never."""
        return False

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """Yield what lies directly below.

        Raises
        ------
        InputError
            On a web server, which does not list it.
        """
        from linumpy.store.remote_store import open_store

        for name in open_store(self).names():
            yield self / name


def as_path(path: Path | str) -> Path:
    """Return a path as it goes through the program: a `RemotePath` where it is remote.

    Raises
    ------
    InputError
        When a remote path climbs (``..``), or names a user, or has a query or a fragment.
    """
    if isinstance(path, RemotePath) or not is_remote(path):
        return Path(path) if isinstance(path, str) else path
    remote = RemotePath(path)
    parts = urlsplit(str(remote))
    if ".." in remote.parts:
        raise InputError(f"{remote}: climbs (..); expected a plain URL")
    if parts.username is not None:
        raise InputError(f"{parts.scheme}://{parts.hostname}: a user's name in a URL is not taken")
    if parts.query or parts.fragment:
        raise InputError(f"{remote}: expected a URL without ? and #, to which names can be added")
    return remote


def refuse_remote_arguments(args: argparse.Namespace) -> None:
    """Refuse remote paths on the command line where a script reads or writes local ones only.

    Arguments that take both are declared with ``type=as_path``.

    Raises
    ------
    InputError
        Naming the argument and the path.
    """
    for name, value in vars(args).items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path) and is_remote(path) and not isinstance(path, RemotePath):
                raise InputError(
                    f"{name} {RemotePath(path)}: must be local, as all outputs are; only volumes, "
                    "mosaic grids and atlases are read from elsewhere"
                )


def storage(path: Path | str) -> Any:
    """Return what Zarr opens: the path itself, or a store of what lies below a remote one.

    Raises
    ------
    InputError
        When the path is remote and what reads it is not installed.
    """
    path = as_path(path)
    if not isinstance(path, RemotePath):
        return path
    from linumpy.store.remote_store import open_store

    return open_store(path)


def require(array: Any, chunks: Iterable[tuple[int, ...]]) -> None:
    """Say which stored chunks (or shards) of an array must be there, if it is remote.

    One that is missing then is an error when it is read, and not fill value: what is uploaded
    object by object loses objects easily.
    """
    if not is_remote(str(array.store_path)):
        return
    required = getattr(array.store, "required", None)
    if required is not None:
        names = map(array.metadata.encode_chunk_key, chunks)
        required.update((array.store_path / name).path for name in names)


def local_file(path: Path | str) -> Path:
    """Return a file as one of this machine: itself, or a copy that lives as long as the process.

    Raises
    ------
    InputError
        When it is not there or cannot be fetched.
    """
    path = as_path(path)
    if not isinstance(path, RemotePath):
        return path
    from linumpy.store.remote_store import fetch_file

    return fetch_file(path)
