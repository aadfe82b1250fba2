"""Staging directory of an atomic output, locked by its writer.

``.NAME.partial-ID/`` holds ``NAME`` while it is written, and the output that it replaces on its way
out. The kernel frees the lock when the writer is gone, however it ended, so that a later run of the
same output can distinguish remains of a killed one from a live one, even in another container
or on another machine.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger("linumpy")

# Locks of another machine are seen on these; with these options of a mount they are not.
_SHARED_KINDS = ("nfs", "nfs4", "ceph", "lustre")
_LOCAL_LOCKS = {"nolock", "local_lock=flock", "local_lock=all", "localflock", "noflock"}
# The disks of one machine: whatever another boot of it wrote, it writes no more.
_DISK_KINDS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KIND = re.compile(r"(partial|replaced)-[0-9a-f]{12}")
_BEGINNINGS = 16
_REMOVALS = 3

_begun: set[Aside] = set()


class Aside:
    """The place aside of one output; `new` is where it is made, `old` where the one before goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._descriptor: int | None = None
        self._choose_name()

    def _choose_name(self) -> None:
        name = uuid.uuid4().hex[:12]
        self.folder = self._path.parent / f".{self._path.name}.partial-{name}"
        self.new = self.folder / self._path.name
        self.old = self.folder / f".{name}.old"
        self._lock = _lock_of(self.folder)

    def begin(self) -> None:
        """Make the folder and take its lock, for as long as this process lives."""
        if not _begun:
            atexit.register(remove_rest)
        _begun.add(self)
        for _ in range(_BEGINNINGS):
            self.folder.mkdir()
            # Until the lock is held, another run may take the folder for a leftover.
            with suppress(FileNotFoundError, BlockingIOError):
                self._take_lock()
                if self._descriptor is None or _names(self._lock, self._descriptor):
                    return
            self._drop_lock()
            self._choose_name()
        raise OSError(errno.EAGAIN, "taken away again and again", str(self.folder))

    def _take_lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._lock, flags, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            # Without a lock its owner is unknown, so it is not removed.
            self._lock.rename(_unlocked(self._lock))
            self._drop_lock()
            return
        os.write(self._descriptor, _boot_id().encode())

    def _drop_lock(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def finish(self) -> None:
        """Take all away after the output appeared; a later run removes what cannot be now."""
        self._take_away()
        _begun.discard(self)

    def discard(self) -> None:
        """Take all away, and look again when the process ends: threads may still be writing."""
        self._take_away()

    def _take_away(self) -> None:
        if self._process != os.getpid():
            return
        if not self._is_needed():
            _empty(self.folder, self._lock)
        self._drop_lock()
        _remove_lock(self.folder, self._lock)

    def end(self) -> None:
        """Remove what threads wrote after all was taken away."""
        if self._process == os.getpid() and not self._is_needed():
            _empty(self.folder)
            self._drop_lock()
            with suppress(OSError):
                self.folder.rmdir()

    def _is_needed(self) -> bool:
        """Whether it holds what was at the output's place, which neither came nor went back."""
        return os.path.lexists(self.old) and not os.path.lexists(self._path)


def clean(path: Path) -> None:
    """Remove what killed runs left of an output, and bring back what they were about to replace.

    What another run is writing, and what cannot be identified, is left and logged.
    """
    # One pattern for all outputs: those of each name would stay in the cache of `re`.
    start = f".{path.name}."
    try:
        found = [
            e
            for e in os.scandir(path.parent)
            if e.name.startswith(start) and _KIND.fullmatch(e.name, len(start))
        ]
    except OSError:
        # A folder that may be written to need not be readable.
        return
    for entry in found:
        folder = path.parent / entry.name
        if not entry.is_dir(follow_symlinks=False):
            _leave(folder, "it is no folder")
            continue
        try:
            # Killed, or about to go on elsewhere, before it had a lock.
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.ENOENT:
                _clean(path, folder)


def _clean(path: Path, folder: Path) -> None:
    lock = _lock_of(folder)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        if folder.exists():
            _leave(folder, "it has no lock")
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _names(lock, descriptor):
            return
        boot_id = os.read(descriptor, 64).decode(errors="replace")
        if boot_id != _boot_id() and not _sees_all_locks(folder):
            _leave(folder, "another machine may be writing to it")
            return
        old = folder / f".{_id_of(folder)}.old"
        if os.path.lexists(old) and not os.path.lexists(path):
            old.rename(path)
            logger.warning("%s: brought back, for the run that was to replace it was killed", path)
        _empty(folder, lock)
    except BlockingIOError:
        _leave(folder, "another run is writing to it")
        return
    except OSError as error:
        _leave(folder, str(error))
        return
    finally:
        os.close(descriptor)
    _remove_lock(folder, lock)
    logger.info("%s: removed, left by a run that was killed", folder)


def _leave(folder: Path, reason: str) -> None:
    logger.info("%s: left as it is: %s", folder, reason)


def _id_of(folder: Path) -> str:
    return folder.name[-12:]


def _lock_of(folder: Path) -> Path:
    return folder / f".{_id_of(folder)}.lock"


def _unlocked(lock: Path) -> Path:
    return lock.with_suffix(".unlocked")


def _empty(folder: Path, keep: Path | None = None) -> None:
    """Remove all that is in a folder but one file; log what cannot be removed."""
    try:
        places = list(folder.iterdir())
    except OSError:
        return
    for place in places:
        if place != keep:
            _remove(place)


def _remove(place: Path) -> None:
    reason = None
    # Threads that have not ended yet rename files, and write more of them.
    for _ in range(_REMOVALS):
        try:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
        except OSError as error:
            reason = error.strerror
        if not os.path.lexists(place):
            return
    logger.warning("%s: cannot be removed (%s)", place, reason)


def _remove_lock(folder: Path, lock: Path) -> None:
    # Network file systems keep open files under other names: the lock is closed by now.
    with suppress(OSError):
        if {place.name for place in folder.iterdir()} <= {lock.name, _unlocked(lock).name}:
            lock.unlink(missing_ok=True)
            _unlocked(lock).unlink(missing_ok=True)
            folder.rmdir()


def _names(path: Path, descriptor: int) -> bool:
    """Whether a path still is the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _boot_id() -> str:
    """Return the id of this boot of the machine, equal in all its containers."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _sees_all_locks(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a lock that any machine holds on a file in `folder` is seen by this one."""
    place = os.path.realpath(folder)
    longest, kind, options = "", "", ""
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda o: chr(int(o[1], 8)), fields.split()[4])
            inside = place == point or place.startswith(point.rstrip("/") + "/")
            # Of mounts on one place the last is seen.
            if inside and len(point) >= len(longest):
                kind, _, options = rest.split(" ", 2)
                longest = point
    given = set(options.split(","))
    if kind == "lustre":
        return "flock" in given
    return kind in _DISK_KINDS or (kind in _SHARED_KINDS and not given & _LOCAL_LOCKS)


def remove_rest() -> None:
    """At the end of the process, when no thread writes any more, see that nothing is left."""
    for aside in list(_begun):
        aside.end()
