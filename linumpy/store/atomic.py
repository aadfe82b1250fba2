"""Atomic outputs: staging directory, fsync, rename."""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError, LinumpyError, OutputExistsError
from linumpy.core.exit_status import is_of_disk
from linumpy.core.timeline import span
from linumpy.store.addresses import refuse_remote
from linumpy.store.aside import Aside, clean

_FSYNC_THREADS = 16
# As Zarr's LocalStore names a file that it is about to rename.
_UNFINISHED = re.compile(r".+\.[0-9a-f]{32}\.partial")
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
# Errors of file systems without such a rename, and of sandboxes that forbid the call.
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM)


def refuse_existing(path: Path | str, overwrite: bool) -> Path:
    """Return `path`, or raise `OutputExistsError` when it exists and may not be replaced.

    Raises
    ------
    InputError
        When `path` is on an object store or a web server.
    """
    refuse_remote(path)
    path = Path(path)
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    return path


def refuse_any(overwrite: bool, *paths: Path | str | None) -> None:
    """Raise `OutputExistsError` when one of the outputs that are not None may not be written."""
    for path in paths:
        if path is not None:
            refuse_existing(path, overwrite)


@contextmanager
def atomic_path(
    path: Path | str, *, overwrite: bool = False, directory: bool = False
) -> Iterator[Path]:
    """Yield a place aside to write to, of the same name, and move it to `path` if all went well.

    What killed runs left of this output is removed first (`linumpy.store.aside.clean`).

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
        Before anything is written, when `path` exists and `overwrite` is false; at the end, when
        another run was faster.
    InputError
        When the folder that it is to appear in is none.
    OSError, LinumpyError
        When the output cannot be written, or brought to the disk. Nothing of it appears then.
    """
    path = refuse_existing(path, overwrite)
    output = _Output(path, Aside(path), overwrite)
    try:
        output.made_in = _make_folder(path.parent)
        clean(path)
        refuse_existing(path, overwrite)
        output.aside.begin()
        if directory:
            output.aside.new.mkdir()
        group = _group.get()
        if group is not None:
            group.append(output)
        yield output.aside.new
        with span("finish", path.name):
            _fsync_tree(output.aside.new)
            if group is None:
                output.publish()
            else:
                output.is_ready = True
    except BaseException as error:
        output.aside.discard()
        if is_of_disk(error) and getattr(error, "filename", None) is None:
            raise LinumpyError(f"{path}: could not be made ({error})") from error
        raise


@contextmanager
def together() -> Iterator[None]:
    """Let all outputs that the block makes appear at its end, in reverse: the first begun last.

    Who finds the main output, begun first, then finds all others. Until the end of the block none
    can be read. Outputs made in other threads are not held back.
    """
    outputs: list[_Output] = []
    outer = _group.get()
    token = _group.set(outputs)
    try:
        yield
        if outer is not None:
            outer.extend(outputs)
            return
        for output in reversed(outputs):
            if output.is_ready:
                output.publish()
    except BaseException:
        for output in outputs:
            output.aside.discard()
        raise
    finally:
        _group.reset(token)


def write_text(path: Path | str, text: str, *, overwrite: bool = True) -> None:
    """Write `text` to `path` atomically, in UTF-8."""
    with atomic_path(path, overwrite=overwrite) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any, *, overwrite: bool = True) -> None:
    """Write `value` to `path` atomically, as indented JSON without NaN or infinities."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n", overwrite=overwrite)


@dataclass
class _Output:
    """An output on its way; `made_in` are the folders that a new parent was made in."""

    path: Path
    aside: Aside
    overwrite: bool
    made_in: list[Path] = field(default_factory=list)
    is_ready: bool = False

    def publish(self) -> None:
        """Move the output to its place, and take away what was there; all or nothing."""
        mine = self.aside.new.lstat()
        try:
            self._swap()
            for folder in (self.path.parent, *self.made_in):
                _fsync(folder)
        except BaseException:
            self._swap_back(mine)
            raise
        self.is_ready = False
        self.aside.finish()

    def _swap(self) -> None:
        new, path, old = self.aside.new, self.path, self.aside.old
        if not self.overwrite:
            if not _rename(new, path, _NOREPLACE):
                refuse_existing(path, False)
                new.rename(path)
            return
        with suppress(FileNotFoundError):
            if _rename(new, path, _EXCHANGE):
                return
        if not os.path.lexists(path):
            new.rename(path)
        elif _is_folder(path) or _is_folder(new):
            # There is none for a moment; after a kill the next writer brings the old one back.
            path.rename(old)
            new.rename(path)
        else:
            with suppress(OSError):
                os.link(path, old, follow_symlinks=False)
            new.replace(path)

    def _swap_back(self, mine: os.stat_result) -> None:
        """Undo `_swap`, however far it came; `mine` is what was to appear."""
        new, path, old = self.aside.new, self.path, self.aside.old
        is_there = os.path.lexists(path) and os.path.samestat(path.lstat(), mine)
        has_old = os.path.lexists(old)
        if is_there and has_old and not _is_folder(path) and not _is_folder(old):
            old.replace(path)
        elif is_there and os.path.lexists(new):
            _rename(new, path, _EXCHANGE)
        elif is_there:
            path.rename(new)
        if has_old and not os.path.lexists(path):
            old.rename(path)


_group: ContextVar[list[_Output] | None] = ContextVar("outputs that appear together", default=None)


def _exists(path: Path) -> OutputExistsError:
    return OutputExistsError(f"{path}: exists already; give --overwrite to replace it")


def _rename(source: Path, target: Path, flag: int) -> bool:
    """Rename as Linux's ``renameat2`` does; false where it, or the flag, is not known.

    Raises
    ------
    OutputExistsError
        When `target` exists and may not be replaced.
    OSError
        When it fails otherwise.
    """
    call = _renameat2()
    if call is None:
        return False
    source_name, target_name = os.fsencode(source), os.fsencode(target)
    if call(_AT_FDCWD, source_name, _AT_FDCWD, target_name, ctypes.c_uint(flag)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    if number == errno.EEXIST:
        raise _exists(target)
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@functools.cache
def _renameat2() -> Any:
    """Return the function of the C library, None where it has none."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _make_folder(path: Path) -> list[Path]:
    """Make a folder, and those above it; returns the folders that got a new one in them."""
    missing = []
    for folder in (path, *path.parents):
        if folder.is_dir():
            break
        # Another thread may have made it since.
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(f"{folder}: expected a folder, to write to")
        missing.append(folder)
    path.mkdir(parents=True, exist_ok=True)
    return [folder.parent for folder in missing]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have nothing to bring to the disk for a folder.
        if not (error.errno == errno.EINVAL and path.is_dir()):
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def _fsync_tree(path: Path) -> None:
    """Bring a file, or a folder with all that is in it, to the disk.

    Raises
    ------
    LinumpyError
        When a store has not written one of the files to its end.
    """
    if not path.is_dir():
        _fsync(path)
        return
    files, folders = [], []
    for folder, _, names in os.walk(path):
        folders.append(Path(folder))
        files += [Path(folder) / name for name in names]
    for file in files:
        if _UNFINISHED.fullmatch(file.name):
            raise LinumpyError(f"{file.relative_to(path.parent)}: was not written to its end")
    # Many files are synchronised at once, or the disk would be idle between them.
    with ThreadPoolExecutor(min(_FSYNC_THREADS, len(files)) or 1, "linumpy-fsync") as pool:
        list(pool.map(_fsync, files))
    for place in folders:
        _fsync(place)
