"""Write files in an output folder, never through links.

The folder itself, and what lies above it, may be links. Within it every folder is opened by its
descriptor and every file is made under a new name and renamed, so that no one who may write there
too can have another file of this user written to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.launch.tree import user

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 3


class Output:
    """An output folder, made when missing and open as long as this object is.

    Raises
    ------
    InputError
        When it cannot be made or written to.
    """

    def __init__(self, text: str) -> None:
        self.path = Path(text).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(
                f"--output {self.path}: cannot be made; expected a folder, or a place for one"
            ) from error
        except OSError as error:
            raise InputError(f"--output {self.path}: cannot be made ({error.strerror})") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            self.refuse("", "cannot be written to")

    def refuse(self, name: str, what: str) -> None:
        """Raise an error about a place in the folder that names users and reason.

        Raises
        ------
        InputError
            Always.
        """
        found = os.stat(name or ".", dir_fd=self.descriptor, follow_symlinks=False)
        reason = f"it belongs to user {user(found.st_uid)}, this is {user(os.geteuid())}"
        if os.fstatvfs(self.descriptor).f_flag & os.ST_RDONLY:
            reason = "its file system is read-only"
        place = f"{name} " if name else ""
        raise InputError(f"--output {self.path}: {place}{what}: {reason}; name another folder")

    @contextmanager
    def folder(self, *names: str, make: bool = True) -> Iterator[int]:
        """Open a folder within, without following links, and yield its descriptor.

        Raises
        ------
        InputError
            When something else has its name.
        OSError
            When it cannot be opened or made.
        """
        descriptor = os.dup(self.descriptor)
        try:
            for depth, name in enumerate(names, 1):
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=descriptor)  # noqa: PTH102 - takes no descriptor
                try:
                    below = open_folder(name, descriptor)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise self._not_plain("/".join(names[:depth]), "a folder") from error
                    raise
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _not_plain(self, name: str, expected: str) -> InputError:
        return InputError(
            f"--output {self.path}: {name} is a link, or something else than {expected}; results "
            "are not written through links: remove it, or name another folder"
        )

    def write(self, place: str, text: str) -> None:
        """Write a small file and see it on the disk before it replaces what has its name."""
        *folders, name = place.split("/")
        with self.folder(*folders) as descriptor:
            for left in reversed(range(_TRIES)):
                # Left by a killed launch, or put there by a user.
                _remove(f".{name}.new", descriptor)
                try:
                    file = os.open(f".{name}.new", NEW, 0o666, dir_fd=descriptor)
                    break
                except FileExistsError:
                    if not left:
                        raise
            with os.fdopen(file, "wb") as opened:
                opened.write(text.encode(errors="backslashreplace"))
                opened.flush()
                os.fsync(opened.fileno())
            os.rename(  # noqa: PTH104 - takes no descriptors
                f".{name}.new", name, src_dir_fd=descriptor, dst_dir_fd=descriptor
            )
            fsync_folder(descriptor)

    def open_plain(self, name: str, flags: int) -> int:
        """Open a regular file of no other name directly in the folder.

        Raises
        ------
        InputError
            When it is a link, of either kind, or no regular file.
        OSError
            When it cannot be opened.
        """
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(name, flags, 0o666, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._not_plain(name, "a file") from error
            raise
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(file)
            raise self._not_plain(name, "a file")
        return file

    def read(self, place: str) -> str | None:
        """Return what a file within holds; None where there is none that is no link."""
        *folders, name = place.split("/")
        try:
            with self.folder(*folders, make=False) as descriptor:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            with os.fdopen(file, encoding="utf-8", errors="replace") as opened:
                return opened.read() if stat.S_ISREG(os.fstat(file).st_mode) else None
        except (OSError, InputError):
            return None

    def remove(self, name: str) -> None:
        """Remove a file directly in the folder, if it is there."""
        _remove(name, self.descriptor)

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of an entry directly in the folder; None where there is none."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None


def open_folder(name: str, descriptor: int) -> int:
    """Return a descriptor of a folder in an open one, which is no link."""
    return os.open(name, _FOLDER, dir_fd=descriptor)


def _remove(name: str, descriptor: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=descriptor)  # noqa: PTH108 - takes no descriptor


def fsync_folder(descriptor: int) -> None:
    """Bring the names in an open folder to the disk."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have nothing to bring to the disk for a folder.
        if error.errno != errno.EINVAL:
            raise
