"""Outputs that appear whole or not at all: write aside, fsync, rename."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from linumpy.errors import OutputExistsError
from linumpy.io.remote import refuse_remote
from linumpy.timeline import span

_FSYNC_THREADS = 16


def refuse_existing(path: Path | str, overwrite: bool) -> Path:
    """Return `path`, or raise `OutputExistsError` when it exists and may not be replaced.

    Raises
    ------
    InputError
        When `path` is on an object store or a web server.
    """
    refuse_remote(path)
    path = Path(path)
    if not overwrite and (path.exists() or path.is_symlink()):
        raise OutputExistsError(f"{path}: exists already; give --overwrite to replace it")
    return path


@contextmanager
def atomic_path(
    path: Path | str, *, overwrite: bool = False, directory: bool = False
) -> Iterator[Path]:
    """Yield a hidden sibling of `path` to write to, and move it there if all went well.

    Parameters
    ----------
    path
        The place where the output is to appear. Its folder is made when missing.
    overwrite
        Whether an existing file or folder at `path` may be replaced.
    directory
        Whether the output is a folder; it is created empty.

    Raises
    ------
    OutputExistsError
        Before anything is written, when `path` exists and `overwrite` is false.
    """
    path = refuse_existing(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.partial-{uuid.uuid4().hex[:12]}"
    if directory:
        partial.mkdir()
    try:
        yield partial
        with span("finish", path.name):
            _fsync_tree(partial)
            _replace(partial, path)
    except BaseException:
        _remove(partial)
        raise
    _fsync(path.parent)


def write_text(path: Path | str, text: str, *, overwrite: bool = True) -> None:
    """Write `text` to `path` atomically, in UTF-8."""
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any, *, overwrite: bool = True) -> None:
    """Write `value` to `path` atomically, as indented JSON without NaN or infinities."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n", overwrite=overwrite)


def _replace(partial: Path, path: Path) -> None:
    if partial.is_dir() and path.is_dir() and not path.is_symlink():
        # A folder cannot be renamed onto a full one: move the old one aside, then away.
        aside = path.parent / f".{path.name}.replaced-{uuid.uuid4().hex[:12]}"
        path.rename(aside)
        try:
            partial.rename(path)
        except BaseException:
            aside.rename(path)
            raise
        shutil.rmtree(aside)
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif partial.is_dir() and (path.exists() or path.is_symlink()):
        path.unlink()
    partial.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_tree(path: Path) -> None:
    """Bring a file, or a folder with all that is in it, to the disk."""
    if not path.is_dir():
        _fsync(path)
        return
    files, folders = [], []
    for folder, _, names in os.walk(path):
        folders.append(Path(folder))
        files += [Path(folder) / name for name in names]
    # The disk is told of many files at once, or it would be idle between them.
    with ThreadPoolExecutor(min(_FSYNC_THREADS, len(files)) or 1, "linumpy-fsync") as pool:
        list(pool.map(_fsync, files))
    for place in folders:
        _fsync(place)
