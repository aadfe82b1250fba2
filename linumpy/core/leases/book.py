"""Folder of leases: one file a process, locked while it runs, by which processes share GPUs.

The kernel frees a lock when its process ends, whatever the reason. Contents are written and read
under one more lock, held for a millisecond, so that they are never seen half-written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linumpy.core.errors import DeviceError, InputError, LinumpyError

VARIABLE = "LINUMPY_LEASE_DIR"
"""Environment variable that names the shared folder."""

_LOCK = "lock"
_TURN_POLL_S = 0.005
_ENTRY = re.compile(r"task\.(\d{12})")
_NETWORK = re.compile(
    r"nfs|cifs|smb|lustre|beegfs|ceph|gpfs|glusterfs|afs|pvfs|orangefs|fuse\.sshfs"
)


@dataclass(frozen=True)
class Entry:
    """What another living process wants or holds.

    Attributes
    ----------
    number
        Its place among those who came.
    wants, holds
        Parts by device; it holds none while it waits.
    count
        How many of the devices that it wants it takes together.
    who
        For messages.
    """

    number: int
    wants: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    count: int = 1
    who: str = "an unknown program"

    def __str__(self) -> str:
        return self.who

    @classmethod
    def parse(cls, number: int, text: bytes) -> Entry:
        """Read an entry; one that makes no sense wants and holds nothing."""
        try:
            content: dict[str, Any] = json.loads(text)
            wants, holds = (
                {str(device): int(parts) for device, parts in content[name].items()}
                for name in ("wants", "holds")
            )
            who = "{name} (pid {pid} on {host}, since {since})".format(**content)
            return cls(number, wants, holds, int(content["count"]), who)
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(number)


class OwnEntry:
    """The entry of this process: its descriptor holds the lock that says that it lives."""

    def __init__(self, descriptor: int, number: int, content: dict[str, Any]) -> None:
        self.number = number
        self._descriptor = descriptor
        self._content = content
        self.write(holds={})

    def write(self, holds: Mapping[str, int]) -> None:
        """Say what the process holds now."""
        text = json.dumps({**self._content, "holds": holds}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def keep(self) -> int:
        """Return the descriptor, which is no longer closed by `leave`."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def leave(self) -> None:
        """End the entry, unless it is kept."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Book:
    """The shared folder.

    Parameters
    ----------
    path
        `lease_folder` when None.

    Raises
    ------
    InputError
        When it cannot be used, or trusted.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path or lease_folder()
        self._folder = _open_folder(self.path, trusted=path is not None or VARIABLE in os.environ)
        # Others need to see files to lock them, not to write them.
        shared = os.fstat(self._folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        self._mode = 0o644 if shared else 0o600

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    @contextmanager
    def locked(self, deadline: float) -> Iterator[None]:
        """Keep all other processes out; one that is inside leaves within milliseconds."""
        while True:
            descriptor = self.open(_LOCK)
            try:
                while not _try_lock(descriptor):
                    self._pause(deadline)
                # Where old files are cleared away, it may be another file's lock by now.
                if _same_file(descriptor, self._folder, _LOCK):
                    yield
                    return
                self._pause(deadline)
            finally:
                os.close(descriptor)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline + 1:
            raise DeviceError(f"{self.path / _LOCK}: locked by a process that does not go on")
        time.sleep(0.002)

    def enter(self, wants: Mapping[str, int], count: int) -> OwnEntry:
        """Make an entry for this process, behind all others; arguments as in `Entry`."""
        number = max((n for n, _ in self._names()), default=0) + 1
        descriptor = self._create(f"task.{number:012d}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        content = {
            "name": Path(sys.argv[0]).name or "python",
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "wants": dict(wants),
            "count": count,
        }
        return OwnEntry(descriptor, number, content)

    def others(self, own: int) -> list[Entry]:
        """Return the entries of other processes that live, first come first; clear dead ones."""
        found = []
        for number, name in sorted(self._names()):
            if number == own:
                continue
            try:
                descriptor = self.open(name, create=False)
            except FileNotFoundError:
                continue
            try:
                if _try_lock(descriptor):
                    # In a folder of many users some files may not be removed.
                    with suppress(OSError):
                        os.unlink(name, dir_fd=self._folder)
                else:
                    found.append(Entry.parse(number, os.pread(descriptor, 1 << 16, 0)))
            finally:
                os.close(descriptor)
        return found

    def _names(self) -> list[tuple[int, str]]:
        matches = map(_ENTRY.fullmatch, os.listdir(self._folder))  # noqa: PTH208 - of a descriptor
        return [(int(match[1]), match[0]) for match in matches if match]

    def open(self, name: str, *, create: bool = True) -> int:
        """Return a descriptor of a file of the folder, to be locked."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._folder)
        except FileNotFoundError:
            if not create:
                raise
            with suppress(FileExistsError):
                return self._create(name)
            return self.open(name)
        except OSError as error:
            raise InputError(f"{self.path / name}: {error.strerror}; expected a file") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError(f"{self.path / name}: expected a file")
        return descriptor

    def _create(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, self._mode, dir_fd=self._folder)
        except FileExistsError:
            raise
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}; {VARIABLE} names a folder to write to"
            ) from error
        os.fchmod(descriptor, self._mode)
        return descriptor


@contextmanager
def turn(name: str, most_wait_s: float, folder: Path | None = None) -> Iterator[None]:
    """Do what the processes that share a folder do better one after the other than at a time.

    Parameters
    ----------
    name
        What it is; a file of the folder.
    most_wait_s
        How long to wait for the others at most; then, or without a folder to be used, it is done
        all the same.
    folder
        `lease_folder` when None.
    """
    descriptor = -1
    with suppress(LinumpyError, OSError), Book(folder) as book:
        descriptor = book.open(name)
        deadline = time.monotonic() + most_wait_s
        while not _try_lock(descriptor) and time.monotonic() < deadline:
            time.sleep(_TURN_POLL_S)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def lease_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder by which processes share GPUs: one a user and machine, unless named."""
    # Not the user's TMPDIR, which batch systems set for each task.
    return Path(environment.get(VARIABLE) or f"/tmp/linumpy-lease-{os.geteuid()}")


def _open_folder(path: Path, *, trusted: bool) -> int:
    """Open the folder, made if it is not there.

    Raises
    ------
    InputError
        When it is no folder, when it is not local, or when another user could have put it there;
        a folder that the user named is `trusted`.
    """
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=trusted)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open(path, flags if trusted else flags | os.O_NOFOLLOW)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; {VARIABLE} names a folder by which processes share GPUs"
        ) from error
    found = os.fstat(descriptor)
    problem = None
    kind = _filesystem(found.st_dev)
    if not trusted and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        problem = "is not yours alone"
    elif _NETWORK.search(kind):
        problem = f"lies on {kind}, where locks are not sure to be freed"
    if problem is not None:
        os.close(descriptor)
        raise InputError(f"{path}: {problem}; name another folder of this machine by {VARIABLE}")
    return descriptor


def _filesystem(device: int, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the kind of a file system, empty where the kernel does not say."""
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return rest.split()[0]
    return ""


def _same_file(descriptor: int, folder: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return os.path.samestat(os.fstat(descriptor), now)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
