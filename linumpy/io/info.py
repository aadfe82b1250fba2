"""Read the microscope's ``info.txt``: tile shape, scan and stage position."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, Union

from linumpy.core.errors import InputError
from linumpy.store.untrusted import TEXT_NBYTES, quoted, read_bounded

Value = Union[int, float, str]  # noqa: UP007 - made when imported, by any Python at launch
N = TypeVar("N", int, float)

INFO_NAME = "info.txt"

_SEPARATOR = ": "
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_NUMBER = 64
_INTEGER_DIGITS = 18
_MOST_SAMPLES = 10**9
_FIELD_UM = (1e-3, 1e9)


@dataclass(frozen=True)
class TileInfo:
    """Scan of one tile, read from its ``info.txt``.

    Attributes
    ----------
    nz, nx, ny
        Depth samples, kept A-lines a B-scan, B-scans.
    n_extra
        A-lines recorded on top of `nx` while the galvo flew back.
    width_um, height_um
        Field of view along the A-lines (axis 1) and along the B-scans (axis 2).
    stage_x_mm, stage_y_mm, stage_z_mm
        Stage position of the tile's centre; None where the file has none.
    """

    nz: int
    nx: int
    ny: int
    n_extra: int
    width_um: float
    height_um: float
    stage_x_mm: float | None = None
    stage_y_mm: float | None = None
    stage_z_mm: float | None = None

    @property
    def shape_px(self) -> tuple[int, int, int]:
        """Samples of a tile without fly-back, (z, axis 1, axis 2)."""
        return (self.nz, self.nx, self.ny)

    @property
    def n_alines(self) -> int:
        """A-lines recorded a B-scan, fly-back included."""
        return self.nx + self.n_extra

    @property
    def fov_um(self) -> tuple[float, float]:
        """Field of view along axis 1 and axis 2."""
        return (self.width_um, self.height_um)

    @property
    def pixel_um(self) -> tuple[float, float]:
        """Distance of A-lines and of B-scans."""
        return (self.width_um / self.nx, self.height_um / self.ny)

    @property
    def bscan_bytes(self) -> int:
        """Size of one B-scan on disk."""
        return 4 * self.nz * self.n_alines


def parse_info(text: str) -> dict[str, Value]:
    """Read the ``key: value`` lines of an ``info.txt``.

    A line is split at its first colon and space; lines without one, such as the header, say
    nothing. The microscope may repeat the whole section for every position: the first value of
    a key counts. Values become int where they are whole numbers, else float where they are
    decimal numbers, else stay text.
    """
    values: dict[str, Value] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        key, separator, value = line.partition(_SEPARATOR)
        key = key.strip()
        if separator and key and key not in values:
            values[key] = _cast(value.strip())
    return values


def _cast(text: str) -> Value:
    # int() and float() alone would also take "1_000", "nan" and "infinity".
    if len(text) <= _INTEGER_DIGITS and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= _LONGEST_NUMBER and _DECIMAL.fullmatch(text):
        return float(text)
    return text


def read_info(path: Path | str) -> TileInfo:
    """Read one tile's ``info.txt``.

    Raises
    ------
    InputError
        When the file is missing or unreadable, a needed key is missing, or a value is not what
        its key asks for; names the file, the key and what was expected.
    """
    path = Path(path)
    try:
        text = read_bounded(path, TEXT_NBYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; every tile folder needs an {INFO_NAME}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return tile_info(parse_info(text), path)


def tile_info(values: Mapping[str, Value], where: Path | str) -> TileInfo:
    """Check the values of an ``info.txt`` and return the scan that they describe.

    Parameters
    ----------
    values
        As from `parse_info`.
    where
        The file, for messages.

    Raises
    ------
    InputError
        See `read_info`. Repeated A-lines or B-scans are refused too: they would have to be
        averaged, and such data has not been seen.
    """
    for key in ("n_repeat", "alinerepeat"):
        repeats = _integer(values, key, where, default=1)
        if repeats != 1:
            raise InputError(
                f"{where}: {key} is {repeats}, expected 1: scans that repeat "
                f"{'B-scans' if key == 'n_repeat' else 'A-lines'} are not supported"
            )
    n_extra = _integer(values, "n_extra", where, default=0)
    if n_extra < 0:
        raise InputError(f"{where}: n_extra is {n_extra}, expected 0 or more")
    return TileInfo(
        nz=_depth_samples(values, where),
        nx=_positive(_integer(values, "nx", where), "nx", where),
        ny=_positive(_integer(values, "ny", where), "ny", where),
        n_extra=n_extra,
        width_um=_field_of_view(values, "width", where),
        height_um=_field_of_view(values, "height", where),
        stage_x_mm=_optional_number(values, "stage_x_pos_mm", where),
        stage_y_mm=_optional_number(values, "stage_y_pos_mm", where),
        stage_z_mm=_optional_number(values, "stage_z_pos_mm", where),
    )


def _depth_samples(values: Mapping[str, Value], where: Path | str) -> int:
    if "top_z" in values or "bottom_z" in values:
        top, bottom = (_integer(values, key, where) for key in ("top_z", "bottom_z"))
        if bottom < top:
            raise InputError(f"{where}: bottom_z is {bottom}, expected at least top_z = {top}")
        return bottom - top + 1
    if "n_samples" not in values:
        raise InputError(f"{where}: lacks the keys top_z and bottom_z (or n_samples)")
    # Without a depth range the file holds the half of the spectrum's samples that is unique.
    return _positive(_integer(values, "n_samples", where) // 2, "n_samples // 2", where)


def _integer(
    values: Mapping[str, Value], key: str, where: Path | str, default: int | None = None
) -> int:
    if key not in values and default is not None:
        return default
    number = _number(values, key, where, expected="a whole number")
    if number != int(number):
        raise InputError(f"{where}: {key} is {values[key]!r}, expected a whole number")
    if abs(number) > _MOST_SAMPLES:
        raise InputError(f"{where}: {key} is {values[key]!r}, expected at most {_MOST_SAMPLES}")
    return int(number)


def _number(
    values: Mapping[str, Value], key: str, where: Path | str, expected: str = "a number"
) -> float:
    if key not in values:
        raise InputError(f"{where}: lacks the key {key}")
    value = values[key]
    if isinstance(value, str) or not math.isfinite(value):
        raise InputError(f"{where}: {key} is {quoted(value)}, expected {expected}")
    return value


def _optional_number(values: Mapping[str, Value], key: str, where: Path | str) -> float | None:
    return float(_number(values, key, where)) if key in values else None


def _field_of_view(values: Mapping[str, Value], key: str, where: Path | str) -> float:
    value = _positive(float(_number(values, key, where)), key, where)
    low, high = _FIELD_UM
    if not low <= value <= high:
        raise InputError(f"{where}: {key} is {value:g}, expected {low:g} to {high:g} um")
    return value


def _positive(value: N, key: str, where: Path | str) -> N:
    if value <= 0:
        raise InputError(f"{where}: {key} is {value}, expected more than 0")
    return value
