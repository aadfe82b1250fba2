"""Files of a local Zarr store, and the shard layout of each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.store.digests import shard_layout
from linumpy.store.shards import ShardIndex
from linumpy.store.untrusted import JSON_NBYTES, bound_json, read_bounded

ROOT_DOCUMENTS = ("zarr.json", ".zattrs")
"""Files of attributes of a store in Zarr v3 and v2."""

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_IGNORED = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.nfs[0-9a-f]+")
"""What file managers and network file systems leave in any folder; Zarr never reads it."""

_LEFT_OVER = re.compile(r".*\.partial(-[0-9a-f]+)?")

Signature = tuple[int, int, int, int]
"""What changes when a file does: inode, bytes, times of content and of anything about it."""


def is_store(path: Path | str) -> bool:
    """Whether a folder holds metadata of Zarr."""
    return any((Path(path) / name).is_file() for name in _METADATA)


def root_document(root: Path | str) -> Path:
    """Return the file that holds the manifest of a store; Zarr v2 may have none as yet.

    Raises
    ------
    InputError
        When the folder is no Zarr store.
    """
    root = Path(root)
    if (root / "zarr.json").is_file():
        return root / "zarr.json"
    if any((root / name).is_file() for name in (".zattrs", ".zgroup", ".zarray")):
        return root / ".zattrs"
    raise InputError(f"{root}: not a Zarr store; expected zarr.json, .zgroup or .zarray in it")


def list_files(root: Path | str) -> dict[str, ShardIndex | None]:
    """Return all files of a store but the root document, in order, and how each is made up.

    Raises
    ------
    InputError
        When the folder is no Zarr store, or a file is left over from a write that broke off.
    """
    root = Path(root)
    path = root_document(root)
    names = set()
    for name, _ in walk(root):
        if any(_LEFT_OVER.fullmatch(part) for part in name.split("/")):
            raise InputError(f"{root}/{name}: left over from a write that broke off; remove it")
        if name != path.name and not is_ignored(name):
            names.add(name)
    known: dict[str, ShardIndex | None] = {}
    return {n: shards_of(root, array_document(n, names, path), known) for n in sorted(names)}


def walk(root: Path | str) -> Iterator[tuple[str, int]]:
    """Yield path below the root, and size, of each file of a store; -1 for a link to nowhere.

    Links to files are followed. One to a folder is yielded like a file, so that nothing outside is
    counted as a part of the store.

    Raises
    ------
    InputError
        When a folder cannot be listed.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                        continue
                    try:
                        nbytes = entry.stat().st_size
                    except FileNotFoundError:
                        nbytes = -1
                    yield name, nbytes
        except OSError as error:
            raise InputError(f"{root}/{folder}: cannot be listed ({error.strerror})") from error


def is_metadata(name: str) -> bool:
    """Whether a file is Zarr's metadata, by its path; others are chunks."""
    return name.rpartition("/")[2] in _METADATA


def is_ignored(name: str) -> bool:
    """Whether a file, by its path, is no part of a store wherever it lies."""
    return _IGNORED.fullmatch(name.rpartition("/")[2]) is not None


def array_document(name: str, names: Container[str], root_document: Path) -> str | None:
    """Return the ``zarr.json`` that says how a file is made up; None for metadata and Zarr v2."""
    folder, _, last = name.rpartition("/")
    if last in _METADATA:
        return None
    while folder:
        document = f"{folder}/zarr.json"
        if document in names:
            return document
        folder = folder.rpartition("/")[0]
    return "zarr.json" if root_document.name == "zarr.json" else None


def shards_of(
    root: Path, document: str | None, known: dict[str, ShardIndex | None]
) -> ShardIndex | None:
    """Return the layout described by a ``zarr.json``, None for None; `known` caches them."""
    if document is None:
        return None
    if document not in known:
        known[document] = shard_layout(load_json(root / document)[0])
    return known[document]


def load_json(path: Path) -> tuple[Any, bytes]:
    """Return what metadata of Zarr say, and their bytes.

    Raises
    ------
    InputError
        When the file cannot be read, is no JSON, or would take too much memory.
    """
    try:
        data = read_bounded(path, JSON_NBYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return parse_json(data, path), data


def parse_json(data: bytes, path: Path) -> Any:
    """Return what metadata of Zarr say.

    Raises
    ------
    InputError
        When they are no JSON, or would take too much memory.
    """
    bound_json(data, path)
    try:
        # Others write NaN too, which Zarr takes.
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged: not JSON ({error})") from error


def signature_of(path: Path | str) -> Signature | None:
    """Return what changes when a file does; None when there is no such file."""
    try:
        stat = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
