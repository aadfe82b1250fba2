"""Folders and files of an input: on this machine, or from a listing of Nextflow's."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.raw_folders import TILE_PREFIX, Identity, identity, walk_raw_folders

File = tuple
"""Path below the root as text, bytes, and time of the last change in nanoseconds."""


class LocalTree:
    """A folder of this machine. Links are followed, and what they lead to is what counts."""

    def __init__(self, option: str, root: Path) -> None:
        self.option = option
        self.root = root

    def folders(self, folder: Path) -> list[Path]:
        """Return the folders directly in a folder, hidden ones too, by name."""
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            raise self._unlisted(folder, error) from error
        for path in paths:
            if path.name.endswith(".zarr") and not path.exists():
                raise InputError(
                    f"{self.option}: {path}: a link to {path.readlink()}, which cannot be reached"
                )
        return [path for path in paths if path.is_dir()]

    def raw_folders(
        self, warn: Callable[[str], None], skipped: Collection[Identity]
    ) -> Iterator[Path]:
        """Yield all folders that may hold tiles, and the tiles (`walk_raw_folders`)."""
        return walk_raw_folders(self.root, warn, skipped)

    def is_dir(self, path: Path) -> bool:
        """Whether there is such a folder."""
        return path.is_dir()

    def is_file(self, path: Path) -> bool:
        """Whether there is such a file."""
        return path.is_file()

    def files(self, folder: Path, base: Path | None = None) -> Iterator[File]:
        """Yield all files below a folder; what is a folder already on the way is not entered.

        Paths are relative to `base`, or to the root where there is none.
        """
        n_skipped = len(str(base or self.root).rstrip("/")) + 1
        return self._files(str(folder), frozenset(), n_skipped)

    def _files(self, folder: str, above: frozenset[Identity], n_skipped: int) -> Iterator[File]:
        try:
            key = identity(folder)
            if key in above:
                return
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise self._unlisted(folder, error) from error
        for entry in found:
            if _is_dir(entry):
                yield from self._files(entry.path, above | {key}, n_skipped)
            else:
                yield (entry.path[n_skipped:], *self._measured(entry.path))

    def file(self, path: Path) -> File:
        """Return a file's entry.

        Raises
        ------
        InputError
            When it is a link to nowhere, or may not be read.
        """
        return (os.path.relpath(path, self.root), *self._measured(str(path)))

    def _measured(self, path: str) -> tuple[int, int]:
        try:
            found = os.stat(path)  # noqa: PTH116 - there may be millions of them
        except OSError as error:
            link = Path(path)
            end = f"; a link to {link.readlink()}" if link.is_symlink() else ""
            raise InputError(
                f"{self.option}: {path}: cannot be reached ({error.strerror}){end}"
            ) from error
        if not _may_be_read(found) and not os.access(path, os.R_OK):
            raise InputError(f"{self.option}: {path}: {_belongs(found)}")
        return found.st_size, found.st_mtime_ns

    def text(self, path: Path) -> str:
        """Return what a text file holds."""
        try:
            return path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error

    def _unlisted(self, folder: object, error: OSError) -> InputError:
        return InputError(f"{self.option}: {folder}: cannot be listed ({error.strerror})")


class ListedTree:
    """A folder elsewhere, such as on an object store, where folders are but parts of names."""

    def __init__(self, option: str, rows: Iterable[Sequence[Any]], texts: dict[str, str]) -> None:
        self.option = option
        self.root = Path()
        self._files = {PurePosixPath(name): (name, nbytes, time) for name, nbytes, time in rows}
        self._folders = {parent for path in self._files for parent in path.parents}
        self._texts = texts

    def folders(self, folder: Path) -> list[Path]:
        """Return the folders directly in a folder, by name."""
        here = PurePosixPath(folder)
        return sorted(Path(p) for p in self._folders if p != here and p.parent == here)

    def raw_folders(
        self, warn: Callable[[str], None], skipped: Collection[Identity]
    ) -> Iterator[Path]:
        """Yield all folders that may hold tiles, and the tiles."""
        for path in sorted(self._folders - {PurePosixPath()}):
            closed = any(p.startswith(".") or p.endswith(".zarr") for p in path.parts)
            if not closed and not any(p.name.startswith(TILE_PREFIX) for p in path.parents):
                yield Path(path)

    def is_dir(self, path: Path) -> bool:
        """Whether there is such a folder."""
        return PurePosixPath(path) in self._folders

    def is_file(self, path: Path) -> bool:
        """Whether there is such a file."""
        return PurePosixPath(path) in self._files

    def files(self, folder: Path, base: Path | None = None) -> Iterator[File]:
        """Yield all files below a folder, their paths relative to `base`."""
        here = PurePosixPath(folder)
        for path, row in sorted(self._files.items()):
            if here in path.parents:
                yield (str(path.relative_to(base or "")), *row[1:])

    def file(self, path: Path) -> File:
        """Return a file's entry."""
        return self._files[PurePosixPath(path)]

    def text(self, path: Path) -> str:
        """Return what a text file holds; Nextflow read it."""
        return self._texts[str(path)]


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link in a circle: no folder, and as a file an error.
        return False


def digest(files: Iterable[File]) -> str:
    """Return what changes with the name, size or time of any file.

    Nextflow looks no deeper than a folder's own time, so this value, passed beside the folder, is
    what makes a changed slice run again.
    """
    lines = sorted(f"{name} {nbytes} {time}" for name, nbytes, time in files)
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _may_be_read(found: os.stat_result) -> bool:
    """Whether the mode says that this user may read, so that the system need not be asked."""
    return bool(found.st_mode & 0o004) or (
        found.st_uid == os.geteuid() and bool(found.st_mode & 0o400)
    )


def _belongs(found: os.stat_result) -> str:
    return f"may not be read by user {user(os.geteuid())}; it belongs to {user(found.st_uid)}"


def user(number: int) -> str:
    """Return a user's name, or number where it has no name."""
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
