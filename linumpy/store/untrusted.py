"""Read third-party files with bounded memory, and reject malformed ones in one line.

A text, a table or a JSON document is small, so that it may be read whole once its size is known
to be sane. What it is made into may take a hundred times as much memory, and that is bounded too.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.core.errors import InputError

if TYPE_CHECKING:
    # The launch reads headers with a Python that has no NumPy.
    import numpy as np

TEXT_NBYTES = 1 << 20
"""Most bytes of a header such as ``info.txt``."""

TABLE_NBYTES = 4 << 20
"""Most bytes of a table, which is for slices or tiles: thousands of rows, not millions."""

JSON_NBYTES = 64 << 20
"""Most bytes of a JSON document."""

MOST_EXPANSION = 100
"""Measured data hardly compress; what unpacks to more times its size was malicious."""

_JSON_MEMORY = 224 << 20
_LISTING_NBYTES = 1 << 20
_MOST_MEMBERS = 10_000
_MOST_DIGITS = 20


def quoted(value: Any, most: int = 80) -> str:
    """Return a value as a message may show it: on one line, printable, and not too long."""
    if isinstance(value, str):
        text = repr(value[:most])
        return text if len(value) <= most else f"{text}... ({len(value)} characters)"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def shown(text: str) -> str:
    """Return a name as it is where it is fit for a message, else as `quoted` does."""
    return text if text.isprintable() and len(text) <= 80 else quoted(text)


def read_bounded(path: Path, most: int) -> bytes:
    """Return all bytes of a file.

    Raises
    ------
    InputError
        When the file is longer than `most`, or is no plain file, which might never end.
    OSError
        When it cannot be opened or read.
    """
    # A pipe without a writer would wait for one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(21, os.strerror(21), str(path))
            raise InputError(f"{path}: not a plain file")
        if status.st_size > most:
            raise InputError(f"{path}: {status.st_size} bytes, expected at most {most}")
        data = file.read(status.st_size + 1)
        if len(data) > status.st_size:
            # It grew, or lies on a file system without sizes.
            data += file.read(most + 1 - len(data))
    if len(data) > most:
        raise InputError(f"{path}: more than the {most} bytes that are expected at most")
    return data


def bound_json(data: bytes, where: Path | str) -> None:
    """Refuse a JSON document that would take too much memory, before it is parsed.

    Raises
    ------
    InputError
        Naming `where`.
    """
    # What Python's objects take at most: a list or a dict, the halves of a string, other values.
    memory = (
        2 * len(data)
        + 230 * (data.count(b"[") + data.count(b"{"))
        + 100 * data.count(b'"')
        + 40 * data.count(b",")
    )
    if len(data) > JSON_NBYTES or memory > _JSON_MEMORY:
        raise InputError(
            f"{where}: a JSON document of {len(data)} bytes that would take {memory >> 20} MiB of "
            f"memory, expected at most {_JSON_MEMORY >> 20}"
        )


def parse_json(data: bytes, where: Path | str) -> Any:
    """Parse a JSON document.

    NaN and infinities, which JSON does not have, and numbers beyond 64 bits are rejected.

    Raises
    ------
    InputError
        When it is no JSON, nested too deeply, or would take too much memory; names `where`.
    """
    bound_json(data, where)

    def integer(text: str) -> int:
        number = int(text) if len(text) <= _MOST_DIGITS else 2**64
        if not -(2**63) <= number < 2**64:
            raise InputError(f"{where}: the number {quoted(text)}, expected at most 64 bits")
        return number

    def decimal(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise InputError(f"{where}: the number {quoted(text)}, expected a finite one")
        return number

    try:
        return json.loads(
            data.decode("utf-8"),
            parse_int=integer,
            parse_float=decimal,
            parse_constant=decimal,
        )
    except RecursionError:
        raise InputError(f"{where}: nested too deeply for a JSON document") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not JSON ({error})") from error


class _Listing:
    """A file whose single reads are bounded while an archive's listing is read from it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.bounded = True

    def read(self, nbytes: int = -1) -> bytes:
        if self.bounded:
            # All that is left is asked for at the end of the file, where little is left.
            nbytes = nbytes if 0 <= nbytes <= _LISTING_NBYTES else _LISTING_NBYTES + 1
        data: bytes = self._file.read(nbytes)
        if self.bounded and len(data) > _LISTING_NBYTES:
            raise zipfile.BadZipFile(f"its listing takes more than {_LISTING_NBYTES} bytes")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a ZIP archive whose listing makes sense: members that fit into the file.

    Members that share bytes, as those of malicious archives, add up to more than the file.

    Raises
    ------
    zipfile.BadZipFile, OSError, ValueError, ...
        As `zipfile.ZipFile` does, for all that is wrong with it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as plain:
        size = os.fstat(descriptor).st_size
        file: Any = _Listing(plain)
        with zipfile.ZipFile(file) as archive:
            file.bounded = False
            entries = archive.infolist()
            if len(entries) > _MOST_MEMBERS:
                raise zipfile.BadZipFile(
                    f"{len(entries)} members, expected at most {_MOST_MEMBERS}"
                )
            if any(min(e.compress_size, e.file_size, e.header_offset) < 0 for e in entries):
                raise zipfile.BadZipFile("a member of less than no bytes")
            stored = sum(entry.compress_size for entry in entries)
            if stored > size:
                raise zipfile.BadZipFile(f"members of {stored} bytes in a file of {size}")
            yield archive


def check_expansion(entry: zipfile.ZipInfo, where: str) -> None:
    """Refuse a member of an archive that unpacks to far more than measured data would.

    Raises
    ------
    InputError
        Naming `where`.
    """
    if entry.file_size > MOST_EXPANSION * max(entry.compress_size, 1):
        raise InputError(
            f"{where} unpacks to {entry.file_size} bytes from {entry.compress_size}, "
            f"expected at most {MOST_EXPANSION} times as many"
        )


def read_arrays(path: Path | str) -> dict[str, np.ndarray]:
    """Return the arrays of an NPZ file; never objects, which could run code.

    Raises
    ------
    InputError
        When the file is missing, is no NPZ file of plain arrays, or holds less than it declares.
    """
    path = Path(path)
    try:
        with open_archive(path) as archive:
            return {
                entry.filename.removesuffix(".npy"): _read_array(archive, entry, path)
                for entry in archive.infolist()
            }
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:
        raise InputError(f"{path}: cannot be read as arrays ({_one_line(error)})") from error


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> np.ndarray:
    import numpy as np
    from numpy.lib import format as npy

    where = f"{path}: {quoted(entry.filename)}"
    check_expansion(entry, where)
    with archive.open(entry) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise InputError(f"{where} is in version {version} of its format, expected 1.0 or 2.0")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read_header(file)
        if dtype.kind not in "biufcSU" or not dtype.itemsize:
            raise InputError(f"{where} holds {quoted(str(dtype))}, expected numbers or text")
        nbytes = math.prod(shape) * dtype.itemsize
        # Before room is made: the shape comes from the file.
        if not 0 <= nbytes <= entry.file_size:
            raise InputError(f"{where} declares {nbytes} bytes, {entry.file_size} are there")
        room = bytearray(nbytes)
        view, done = memoryview(room), 0
        while done < nbytes:
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise InputError(f"{where} ends after {done} bytes of {nbytes}")
            done += count
        if file.read(1):
            raise InputError(f"{where} has bytes behind its {nbytes}")
    return np.ndarray(shape, dtype, room, order="F" if fortran_order else "C")


def _one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
