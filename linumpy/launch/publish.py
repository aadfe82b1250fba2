"""Publish results to the output folder.

Nextflow lays a link to each result into a folder of links (``conf/publish.config``). What a link
leads to is written beside its place under a hidden name and renamed, while the run goes on; at its
end every place is compared with its source once more. What is there already and the same is left
alone. Nothing is written through a link, and no other user can enter what is being written.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.launch.output import NEW, Output, fsync_folder, open_folder

SMALL_NBYTES = 1 << 20
"""Files up to this size are compared by what is in them, and not by size and time alone."""

_PERIOD_S = 1.0
_WORKERS = 4
# No place lies deeper, and none within a volume.
_DEPTH = 3
_LEFTOVER = re.compile(r"\..+\.(publishing|replaced)")
# Some file systems keep even seconds only.
_SAME_TIME_NS = 2 * 10**9
_PIECE_NBYTES = 64 << 20


class Publisher:
    """Publishes what links lead to, from its making until `finish`.

    Parameters
    ----------
    output
        Where to.
    links
        The folder of links; made anew.
    mode
        ``copy``, ``link``, ``symlink`` or ``rellink``.
    """

    def __init__(self, output: Output, links: Path, mode: str) -> None:
        self.output, self.links, self.mode = output, links, mode
        self._taken: dict[str, str] = {}
        self._end = threading.Event()
        _remove_path(links)
        links.mkdir(parents=True, mode=0o700)
        with output.folder() as folder:
            _remove_leftovers(folder, _DEPTH)
        self._pool = ThreadPoolExecutor(_WORKERS, "linumpy-publish")
        self._watch = threading.Thread(target=self._watch_links, daemon=True)
        self._watch.start()

    def _watch_links(self) -> None:
        while not self._end.wait(_PERIOD_S):
            self._take_up()

    def _take_up(self) -> None:
        """Hand new links to the workers. A place may be linked anew, by a later task."""
        # One that is just being replaced is seen the next time.
        with suppress(OSError):
            for place in self._places():
                source = str((self.links / place).readlink())
                if self._taken.get(place) != source:
                    self._taken[place] = source
                    self._pool.submit(self._publish_early, place)

    def _publish_early(self, place: str) -> None:
        """Publish while the run goes on. Its end tries again what fails here, and counts."""
        problem = self._mended(place)
        if problem and not self._end.is_set():
            print(f"WARN: {problem}", file=sys.stderr, flush=True)

    def finish(self, *, give_up: bool = False) -> list[str]:
        """Publish what is left, and return what is wrong with the places: one line each.

        Parameters
        ----------
        give_up
            Leave the rest to a later launch: the user wants to leave.
        """
        self._end.set()
        self._watch.join()
        if give_up:
            self._pool.shutdown(wait=False, cancel_futures=True)
            return []
        try:
            self._take_up()
            self._pool.shutdown()
            self._settle()
            problems = [p for place in self._places() if (p := self._mended(place)) is not None]
        except (OSError, InputError) as error:
            return [f"{self.output.path}: cannot be published to ({_reason(error)})"]
        with suppress(OSError):
            _remove_path(self.links)
            self.links.parent.rmdir()
        return problems

    def _places(self) -> list[str]:
        return [place for place, is_link in _entries(self.links) if is_link]

    def _settle(self) -> None:
        """Move files: from a work folder on an object store Nextflow brings files, not links."""
        for place, is_link in _entries(self.links):
            if not is_link:
                *folders, name = place.split("/")
                with self.output.folder(*folders) as folder:
                    _remove(folder, _aside(name))
                    _move(self.links / place, folder, _aside(name))
                    _take_place(folder, name)

    def _mended(self, place: str) -> str | None:
        """See to it that a place holds what its link leads to; what stays wrong, or None."""
        link, shown = self.links / place, self.output.path / place
        *folders, name = place.split("/")
        try:
            source = link.resolve(strict=True)
            with self.output.folder(*folders) as folder:
                if not self._difference(folder, name, source):
                    return None
                try:
                    self._put(folder, name, source)
                except BaseException:
                    with suppress(OSError):
                        _remove(folder, _aside(name))
                    raise
                left = self._difference(folder, name, source)
            if left is None:
                return None
            return f"{shown}: is not what {source} is, though it was just published: {left}"
        except (OSError, RuntimeError, InputError) as error:
            return f"{shown}: cannot be published from {link} ({_reason(error)})"

    def _difference(self, folder: int, name: str, source: Path) -> str | None:
        """Return how a place differs from its source, in words; None where it does not."""
        place = Path(f"/proc/self/fd/{folder}/{name}")
        if self.mode in ("symlink", "rellink"):
            leads = place.is_symlink() and place.exists() and place.samefile(source)
            return None if leads else "no link to it"
        if place.is_symlink() or not place.exists():
            return "missing"
        wanted = dict(_tree(source, follow=True))
        found = dict(_tree(place, follow=False))
        for strange in found.keys() - wanted.keys():
            return f"{strange} is no part of it"
        for inner, seen in wanted.items():
            other = found.get(inner)
            if other is None or not self._is_same(place / inner, other, source / inner, seen):
                return f"{inner or name} is missing or differs"
        return None

    def _is_same(
        self, path: Path, found: os.stat_result, source: Path, wanted: os.stat_result
    ) -> bool:
        if stat.S_IFMT(found.st_mode) != stat.S_IFMT(wanted.st_mode):
            return False
        if stat.S_ISDIR(wanted.st_mode):
            return True
        if self.mode == "link":
            return os.path.samestat(found, wanted)
        return (
            found.st_size == wanted.st_size
            and abs(found.st_mtime_ns - wanted.st_mtime_ns) < _SAME_TIME_NS
            and (wanted.st_size > SMALL_NBYTES or path.read_bytes() == source.read_bytes())
        )

    def _put(self, folder: int, name: str, source: Path) -> None:
        """Put a source into its place: aside first, then by a rename."""
        aside = _aside(name)
        _remove(folder, aside)
        if self.mode == "symlink":
            os.symlink(source, aside, dir_fd=folder)
        elif self.mode == "rellink":
            here = Path(f"/proc/self/fd/{folder}").readlink()
            os.symlink(os.path.relpath(source, here), aside, dir_fd=folder)
        else:
            _copy(str(source), folder, aside, as_link=self.mode == "link", mode=0o700)
        _take_place(folder, name)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _aside(name: str) -> str:
    return f".{name}.publishing"


def _entries(links: Path) -> Iterator[tuple[str, bool]]:
    """Yield what lies in a folder of links at any depth, below it; whether it is a link.

    Volumes that are no links are not entered.
    """
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for entry in sorted(os.scandir(links / folder), key=lambda entry: entry.name):
            place = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".zarr"):
                waiting.append(place)
            else:
                yield place, entry.is_symlink()


def _tree(root: Path, *, follow: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a file or folder, under the name "", and all that is in it."""
    waiting = [""]
    while waiting:
        name = waiting.pop()
        path = f"{root}/{name}" if name else str(root)
        found = os.stat(path) if follow else os.lstat(path)  # noqa: PTH116
        yield name, found
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                waiting += [f"{name}/{entry.name}".lstrip("/") for entry in entries]


def _copy(source: str, folder: int, name: str, *, as_link: bool, mode: int = 0o777) -> None:
    """Copy, or link, a file or folder to a new name in an open folder; the disk then has it.

    Copies keep the time of their source: that is how they are known as copies the next time.
    """
    if not os.path.isdir(source):  # noqa: PTH112
        if as_link:
            os.link(Path(source).resolve(), name, dst_dir_fd=folder, follow_symlinks=False)
        else:
            _copy_file(source, folder, name)
        return
    os.mkdir(name, mode, dir_fd=folder)  # noqa: PTH102
    inside = open_folder(name, folder)
    try:
        for entry in os.scandir(source):
            _copy(entry.path, inside, entry.name, as_link=as_link)
        if mode != 0o777:
            # As it would be without the lock on it.
            given = os.fstat(inside).st_mode & 0o7000
            os.fchmod(inside, given | (0o777 & ~_UMASK))
        fsync_folder(inside)
    finally:
        os.close(inside)


def _move(source: Path, folder: int, name: str) -> None:
    """Move a file or folder to a new name in an open folder, from another file system by a copy."""
    try:
        os.rename(source, name, dst_dir_fd=folder)  # noqa: PTH104
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(str(source), folder, name, as_link=False, mode=0o700)
        _remove_path(source)


def _copy_file(source: str, folder: int, name: str) -> None:
    with open(source, "rb") as read:  # noqa: PTH123
        found = os.fstat(read.fileno())
        with os.fdopen(os.open(name, NEW, 0o666, dir_fd=folder), "wb") as written:
            _copy_bytes(read.fileno(), written.fileno())
            os.utime(written.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(written.fileno())


def _copy_bytes(read: int, written: int) -> None:
    """Copy within the kernel, which some file systems do by reference."""
    while True:
        try:
            count = os.copy_file_range(read, written, _PIECE_NBYTES)
        except OSError:
            # Two file systems, or one that cannot; what is wrong with the disk shows again.
            break
        if not count:
            return
    while piece := os.read(read, 1 << 20):
        view = memoryview(piece)
        while view:
            view = view[os.write(written, view) :]


def _take_place(folder: int, name: str) -> None:
    """Rename what is whole to what it is to be called."""
    replaced = f".{name}.replaced"
    _remove(folder, replaced)
    with suppress(FileNotFoundError):
        # A folder takes no other's place by a rename.
        if any(_is_folder(folder, path) for path in (name, _aside(name))):
            _rename(folder, name, replaced)
    _rename(folder, _aside(name), name)
    fsync_folder(folder)
    _remove(folder, replaced)


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _rename(folder: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)  # noqa: PTH104


def _remove(folder: int, name: str) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            # It follows no link, whatever happens meanwhile.
            shutil.rmtree(f"/proc/self/fd/{folder}/{name}")
        else:
            os.unlink(name, dir_fd=folder)  # noqa: PTH108
    except FileNotFoundError:
        pass


def _remove_path(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _remove_leftovers(folder: int, depth: int) -> None:
    """Remove what a launch that was killed had not finished writing."""
    for entry in list(os.scandir(folder)):
        if _LEFTOVER.fullmatch(entry.name):
            _remove(folder, entry.name)
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            if entry.name.startswith(".") or entry.name.endswith(".zarr"):
                continue
            inside = open_folder(entry.name, folder)
            try:
                _remove_leftovers(inside, depth - 1)
            finally:
                os.close(inside)


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


_UMASK = _umask()
