"""Read Thorlabs' ``.oct`` files: complex spectral-domain OCT of one or two polarisations.

An ``.oct`` file is a ZIP archive with ``Header.xml`` and one member a camera, raw complex64 of
shape (SizeX, SizeY, SizeZ) in C order. Files come from elsewhere: nothing is extracted, XML
entities are not expanded, and a member is read only when its size is what the header calls for.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.store.untrusted import (
    TABLE_NBYTES,
    check_expansion,
    open_archive,
    quoted,
    read_bounded,
    shown,
)

HEADER = "Header.xml"
MEMBERS = {1: "data/Complex.data", 2: "data/Complex_Cam1.data"}
"""Where each polarisation lies."""

_ITEM_BYTES = 8
_MAX_HEADER_BYTES = 1 << 22
_MAX_DEPTH = 100
_MALFORMED = (struct.error, OverflowError)
# RuntimeError: encrypted. ValueError: a name that is no text.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


@dataclass(frozen=True)
class OctHeader:
    """What the header of an ``.oct`` file says.

    Attributes
    ----------
    size
        Samples as stored: SizeX, SizeY, SizeZ.
    range_mm
        Field of view along x and y, and depth.
    n_averages
        Count of the averaging (``AScans``): so many stored x-planes are parts of one B-scan.
    polarizations
        Those that the file holds.
    """

    path: Path
    size: tuple[int, int, int]
    range_mm: tuple[float, float, float]
    n_averages: int = 1
    polarizations: tuple[int, ...] = (1,)

    @property
    def shape_px(self) -> tuple[int, int, int]:
        """Samples along depth, x and y once the parts of B-scans are joined."""
        x, y, z = self.size
        return (z, x // self.n_averages, y * self.n_averages)

    @property
    def voxel_um(self) -> tuple[float, float, float]:
        """Distance of samples along depth, x and y."""
        x, y, z = self.range_mm
        nz, _, ny = self.shape_px
        # Stored planes that fill no B-scan are left out, and their share of the range with them.
        return (z * 1e3 / nz, x * 1e3 * self.n_averages / self.size[0], y * 1e3 / ny)


def read_oct_header(path: Path | str) -> OctHeader:
    """Read the header of an ``.oct`` file and check the members that it lists.

    Raises
    ------
    InputError
        When the file is no archive, a member is missing, encrypted or of another size, or the
        header is not what was expected; names the file and the member.
    """
    path = Path(path)
    with _archive(path) as archive:
        entry = _entry(archive, path, HEADER)
        if entry.file_size > _MAX_HEADER_BYTES:
            raise InputError(
                f"{path}: {HEADER} of {entry.file_size} bytes, expected at most {_MAX_HEADER_BYTES}"
            )
        with _member(archive, path, entry) as file:
            found = _parse(file.read(entry.file_size), path)
        header = _header(found, path)
        # The second camera is optional until it is asked for.
        cameras = [k for k, name in MEMBERS.items() if k == 1 or name in archive.namelist()]
        for camera in cameras:
            _data_entry(archive, header, MEMBERS[camera])
    return replace(header, polarizations=tuple(cameras))


def read_oct(
    header: OctHeader, polarization: int, depth: slice, *, return_complex: bool = False
) -> np.ndarray:
    """Read one polarisation of an ``.oct`` file.

    The x-planes that are parts of one B-scan are joined along y, and the joined B-scan is reversed.
    One B-scan at a time is in memory beside the result.

    Parameters
    ----------
    header
        From `read_oct_header`.
    polarization
        1 for the first camera, 2 for the second.
    depth
        Depth samples that are kept, within the file's.
    return_complex
        Whether to return complex64 instead of magnitudes.

    Returns
    -------
    Array (z, x, y), float32 magnitude or complex64; a view whose depth axis is contiguous.

    Raises
    ------
    InputError
        As `read_oct_header`; also when the member cannot be read to its end or is damaged.
    """
    path, name = header.path, MEMBERS[polarization]
    n = header.n_averages
    _, n_bscans, n_alines = header.shape_px
    part = (n, header.size[1], header.size[2])
    kind = np.complex64 if return_complex else np.float32
    kept = np.empty((n_bscans, n_alines, depth.stop - depth.start), kind)
    with _archive(path) as archive:
        entry = _data_entry(archive, header, name)
        with _member(archive, path, entry) as file:
            for joined in kept:
                samples = np.frombuffer(_exactly(file, math.prod(part), path, name), "<c8")
                bscan = samples.reshape(part)[:, :, depth].reshape(joined.shape)[::-1]
                if return_complex:
                    joined[...] = bscan
                else:
                    np.abs(bscan, out=joined)
            # To the end, where the archive's checksum is compared.
            while file.read(1 << 20):
                pass
    return kept.transpose(2, 0, 1)


def read_scan_positions(path: Path | str) -> np.ndarray:
    """Read the tile positions of a ``.scan`` file.

    Returns
    -------
    Shape (n, 2), float64: stage x and y in mm, in the order of the files.

    Raises
    ------
    InputError
        When there is no line that says ``Positions``, none follows it, or a line is not two
        numbers; names file and line.
    """
    path = Path(path)
    try:
        lines = read_bounded(path, TABLE_NBYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from error
    starts = [number for number, line in enumerate(lines) if "Positions" in line]
    if not starts:
        raise InputError(f"{path}: no line 'Positions'; expected one, and x,y in mm below it")
    found = []
    for number, line in enumerate(lines[starts[0] + 1 :], starts[0] + 2):
        if not line.strip():
            continue
        try:
            first, second = (float(cell) for cell in line.split(","))
        except ValueError:
            first = second = math.nan
        if not (math.isfinite(first) and math.isfinite(second)):
            raise InputError(f"{path}, line {number}: {quoted(line.strip())}, expected x,y in mm")
        found.append((first, second))
    if not found:
        raise InputError(f"{path}: no position below the line 'Positions'")
    return np.array(found)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with ExitStack() as stack:
        yield _entered(stack, path)


def _entered(stack: ExitStack, path: Path) -> zipfile.ZipFile:
    try:
        return stack.enter_context(open_archive(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, *_MALFORMED) as error:
        raise InputError(f"{path}: not an .oct file, which is a ZIP archive ({error})") from error


@contextmanager
def _member(archive: zipfile.ZipFile, path: Path, entry: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """Open a member; whatever is wrong with it becomes one line."""
    try:
        with archive.open(entry) as file:
            yield file
    except InputError:
        raise
    except (*_DAMAGED, *_MALFORMED) as error:
        raise InputError(f"{path}: {entry.filename} cannot be read ({error})") from error


def _entry(archive: zipfile.ZipFile, path: Path, name: str) -> zipfile.ZipInfo:
    entries = [entry for entry in archive.infolist() if entry.filename == name]
    if len(entries) != 1:
        names = sorted({entry.filename for entry in archive.infolist()})
        there = ", ".join(map(shown, names[:8])) or "nothing"
        raise InputError(f"{path}: {len(entries)} members {name}, expected one; it holds {there}")
    if entries[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{path}: {name} is compressed, expected it stored or deflated")
    return entries[0]


def _data_entry(archive: zipfile.ZipFile, header: OctHeader, name: str) -> zipfile.ZipInfo:
    entry = _entry(archive, header.path, name)
    expected = _ITEM_BYTES * math.prod(header.size)
    if entry.file_size != expected:
        x, y, z = header.size
        raise InputError(
            f"{header.path}: {name} of {entry.file_size} bytes, expected {expected} "
            f"for {x} x {y} x {z} complex samples (SizeX, SizeY, SizeZ of {HEADER})"
        )
    check_expansion(entry, f"{header.path}: {name}")
    return entry


def _exactly(file: IO[bytes], n_samples: int, path: Path, name: str) -> bytearray:
    room = bytearray(_ITEM_BYTES * n_samples)
    view, done = memoryview(room), 0
    while done < len(room):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise InputError(f"{path}: {name} ended early, after {done} bytes of a B-scan")
        done += count
    return room


@dataclass
class _Found:
    """What of the header's XML counts."""

    files: dict[str, dict[str, str]]
    a_scans: str | None = None


def _parse(text: bytes, path: Path) -> _Found:
    """Read the header's XML; a document type, and so every entity, is refused."""
    from xml.parsers import expat

    found = _Found({})
    inside: list[tuple[str, dict[str, str], list[str]]] = []
    wanted = set(MEMBERS.values())

    def refuse(*_: Any) -> None:
        raise InputError(f"{path}: {HEADER} declares a document type or entities; expected none")

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(inside) >= _MAX_DEPTH:
            raise InputError(f"{path}: {HEADER} is nested more than {_MAX_DEPTH} deep")
        inside.append((tag, attributes, []))

    def words(part: str) -> None:
        if inside and inside[-1][0] in ("DataFile", "AScans"):
            inside[-1][2].append(part)

    def end(_: str) -> None:
        tag, attributes, parts = inside.pop()
        content = "".join(parts).strip()
        name = content.replace("\\", "/")
        if tag == "DataFile" and name in wanted:
            found.files[name] = attributes
        elif tag == "AScans" and found.a_scans is None:
            found.a_scans = content

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = words
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError) as error:
        # ValueError: an unknown encoding, or one of several bytes a letter.
        raise InputError(f"{path}: {HEADER} is not XML ({error})") from error
    return found


def _header(found: _Found, path: Path) -> OctHeader:
    name = MEMBERS[1]
    if name not in found.files:
        windows = name.replace("/", "\\")
        raise InputError(f"{path}: {HEADER} has no DataFile {windows}; expected complex data")
    attributes = found.files[name]
    size = [_whole(attributes.get(f"Size{a}"), f"Size{a} of {name}", path) for a in "XYZ"]
    ranges = [_length(attributes.get(f"Range{a}"), f"Range{a} of {name}", path) for a in "XYZ"]
    n_averages = 1 if found.a_scans is None else _whole(found.a_scans, "AScans", path)
    if n_averages > size[0]:
        raise InputError(
            f"{path}: {HEADER}: AScans is {n_averages}, expected at most SizeX = {size[0]}"
        )
    return OctHeader(
        path, (size[0], size[1], size[2]), (ranges[0], ranges[1], ranges[2]), n_averages
    )


def _whole(text: str | None, what: str, path: Path) -> int:
    if text is None or not re.fullmatch("[0-9]{1,9}", text.strip()) or int(text) == 0:
        raise InputError(
            f"{path}: {HEADER}: {what} is {quoted(text)}, expected a whole number above 0"
        )
    return int(text)


def _length(text: str | None, what: str, path: Path) -> float:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{path}: {HEADER}: {what} is {quoted(text)}, expected mm above 0")
    return value
