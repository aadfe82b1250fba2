"""The pipeline's CSV tables: ``shifts_xy.csv`` and ``slice_config.csv``.

Tables are read whole, checked row by row, and written anew by rename; none is edited in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.table_rows import (
    id_cell,
    listed_ids,
    number_cell,
    read_rows,
    table_text,
    truth_cell,
)
from linumpy.store.atomic import write_text


@dataclass(frozen=True)
class XYShift:
    """Stage position of a slice minus that of the next one, stage axes.

    Attributes
    ----------
    x_shift_px, y_shift_px
        The shift in pixels of the first slice's tiles.
    reliable
        Whether both slices have tile grids of one shape, so that equal borders are compared; in
        a cleaned table, also whether the step is small enough to be plausible.
    x_correction_mm, y_correction_mm
        What cleaning has added to the step that the stage reported.
    """

    fixed_id: int
    moving_id: int
    x_shift_px: float
    y_shift_px: float
    x_shift_mm: float
    y_shift_mm: float
    reliable: bool = True
    x_correction_mm: float = 0.0
    y_correction_mm: float = 0.0


SHIFT_COLUMNS = ("fixed_id", "moving_id", "x_shift", "y_shift", "x_shift_mm", "y_shift_mm")
_CORRECTION_COLUMNS = ("x_correction_mm", "y_correction_mm")


def write_shifts(
    path: Path | str,
    shifts: Iterable[XYShift],
    *,
    corrections: bool = False,
    overwrite: bool = False,
) -> None:
    """Write ``shifts_xy.csv``; every number as a float, ids too.

    The columns of corrections are written when `corrections` is true or some shift has one.
    """
    shifts = list(shifts)
    header: tuple[str, ...] = (*SHIFT_COLUMNS, "reliable")
    if corrections or any(s.x_correction_mm or s.y_correction_mm for s in shifts):
        header += _CORRECTION_COLUMNS
    rows = [
        [repr(float(value)) for value in dataclasses.astuple(shift)[: len(header)]]
        for shift in shifts
    ]
    write_text(path, table_text(header, rows), overwrite=overwrite)


def read_shifts(path: Path | str) -> tuple[XYShift, ...]:
    """Read ``shifts_xy.csv``; without the column, rows are reliable, or have no correction.

    Raises
    ------
    InputError
        When the table cannot be read, a number is not finite, or the rows are not a chain: each
        row's ``fixed_id`` the ``moving_id`` of the row before, ids rising. Names file and line.
    """
    path = Path(path)
    header, rows = read_rows(path, SHIFT_COLUMNS, ("reliable",))
    corrections = [name for name in _CORRECTION_COLUMNS if name in header]
    shifts: list[XYShift] = []
    for where, row in rows:
        fixed, moving = (id_cell(where, row, name) for name in ("fixed_id", "moving_id"))
        if shifts and fixed != shifts[-1].moving_id:
            twice = fixed <= shifts[-1].fixed_id
            raise InputError(
                f"{where}: fixed_id is {fixed}, expected {shifts[-1].moving_id}, the moving_id of "
                f"the row before: slices are {'listed twice or unsorted' if twice else 'missing'}"
            )
        if moving <= fixed:
            raise InputError(f"{where}: moving_id is {moving}, expected more than fixed_id {fixed}")
        x_px, y_px, x_mm, y_mm = (number_cell(where, row, name) for name in SHIFT_COLUMNS[2:])
        reliable = "reliable" not in header or truth_cell(where, row, "reliable") is not False
        added = {name: number_cell(where, row, name) for name in corrections}
        shifts.append(XYShift(fixed, moving, x_px, y_px, x_mm, y_mm, reliable, **added))
    return tuple(shifts)


def offsets_from_shifts(
    shifts: Sequence[XYShift], ids: Iterable[int], *, where: Path | str = "shifts_xy.csv"
) -> dict[int, tuple[float, float]]:
    """Return where slices lie, relative to the first slice of the table.

    The offset is minus the sum of all shifts up to a slice, so that slices which are left out
    still pass on their shifts.

    Parameters
    ----------
    shifts
        A chain of shifts, as from `read_shifts`.
    ids
        The slices to place.
    where
        The table's file, for messages.

    Returns
    -------
    Offset (x, y) along the stage axes in um, a slice id.

    Raises
    ------
    InputError
        When a slice is not in the table. A single slice needs no row.
    """
    ids = list(ids)
    if not shifts:
        if len(set(ids)) > 1:
            raise InputError(f"{where}: no shifts, expected rows for the slices {sorted(ids)}")
        return {slice_id: (0.0, 0.0) for slice_id in ids}
    x_um = y_um = 0.0
    offsets = {shifts[0].fixed_id: (0.0, 0.0)}
    for shift in shifts:
        x_um -= shift.x_shift_mm * 1e3
        y_um -= shift.y_shift_mm * 1e3
        offsets[shift.moving_id] = (x_um, y_um)
    missing = sorted(set(ids) - set(offsets))
    if missing:
        raise InputError(
            f"{where}: no shift for slice {', '.join(f'z{i:02d}' for i in missing)}; "
            f"its ids are {listed_ids(offsets)}"
        )
    return {slice_id: offsets[slice_id] for slice_id in ids}


def position_corrections_um(shifts: Iterable[XYShift]) -> dict[int, tuple[float, float]]:
    """Return what a cleaned table adds to the stage positions (x, y) of each slice, um.

    A shift is fixed minus moving: what is added to a step is subtracted from the position of the
    moving slice and of all after it.
    """
    x_um = y_um = 0.0
    corrections: dict[int, tuple[float, float]] = {}
    for shift in shifts:
        corrections.setdefault(shift.fixed_id, (0.0, 0.0))
        x_um -= shift.x_correction_mm * 1e3
        y_um -= shift.y_correction_mm * 1e3
        corrections[shift.moving_id] = (x_um, y_um)
    return corrections


@dataclass(frozen=True)
class SliceConfig:
    """What is decided about one slice; a field that is None is an empty cell.

    Attributes
    ----------
    use
        Whether the slice goes into the brain; an empty cell means yes.
    extra
        Columns of other programs, kept as text.
    """

    slice_id: int
    use: bool | None = None
    exclude_reason: str = ""
    quality_score: float | None = None
    galvo_confidence: float | None = None
    galvo_fix: bool | None = None
    notes: str = ""
    rehomed: bool | None = None
    rehoming_reliable: bool | None = None
    auto_excluded: bool | None = None
    auto_exclude_reason: str = ""
    interpolated: bool | None = None
    interpolation_failed: bool | None = None
    interpolation_method_used: str = ""
    interpolation_fallback_reason: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def used(self) -> bool:
        """Whether the slice goes into the brain."""
        return self.use is not False


_CONFIG_COLUMNS = {
    f.name: str(f.type) for f in dataclasses.fields(SliceConfig) if f.name != "extra"
}


def write_slice_config(
    path: Path | str, rows: Iterable[SliceConfig], *, overwrite: bool = False
) -> None:
    """Write ``slice_config.csv``, rows sorted by id, canonical columns first.

    Raises
    ------
    InputError
        When a slice has two rows.
    """
    ordered = sorted(rows, key=lambda row: row.slice_id)
    for row, following in zip(ordered, ordered[1:], strict=False):
        if row.slice_id == following.slice_id:
            raise InputError(f"{path}: two rows for slice z{row.slice_id:02d}, expected one")
    extra = list(dict.fromkeys(name for row in ordered for name in row.extra))
    lines = [
        [_cell(row, name) for name in _CONFIG_COLUMNS] + [row.extra.get(name, "") for name in extra]
        for row in ordered
    ]
    write_text(path, table_text([*_CONFIG_COLUMNS, *extra], lines), overwrite=overwrite)


def _cell(row: SliceConfig, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return ""
    if name == "slice_id":
        return f"{value:02d}"
    if name == "galvo_confidence":
        return f"{value:.3f}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(value)) if isinstance(value, float) else str(value)


def read_slice_config(
    path: Path | str, *, known_ids: Iterable[int] | None = None
) -> tuple[SliceConfig, ...]:
    """Read ``slice_config.csv``, sorted by id; all columns but ``slice_id`` may be missing.

    Parameters
    ----------
    path
        The table.
    known_ids
        The acquisition's slices: a row that wants any other is refused; one that leaves it out
        is harmless. None takes all rows.

    Raises
    ------
    InputError
        When the table cannot be read, a cell is not what its column requires, a slice is in
        two rows, or one is wanted that the acquisition does not have. Names file and line.
    """
    path = Path(path)
    header, rows = read_rows(path, ("slice_id",), ("use",))
    known = None if known_ids is None else sorted(set(known_ids))
    configs: dict[int, SliceConfig] = {}
    lines: dict[int, str] = {}
    for where, row in rows:
        values: dict[str, Any] = {}
        for name, kind in _CONFIG_COLUMNS.items():
            if name not in header:
                continue
            if name == "slice_id":
                values[name] = id_cell(where, row, name)
            elif kind.startswith("bool"):
                values[name] = truth_cell(where, row, name)
            elif kind.startswith("float"):
                values[name] = number_cell(where, row, name) if row[name].strip() else None
            else:
                values[name] = row[name]
        extra = {name: row[name] for name in header if name not in _CONFIG_COLUMNS}
        config = SliceConfig(**values, extra=extra)
        if config.slice_id in configs:
            first = lines[config.slice_id].rpartition(", ")[2]
            raise InputError(
                f"{where}: a second row for slice z{config.slice_id:02d}, after {first}"
            )
        if known is not None and config.used and config.slice_id not in known:
            raise InputError(
                f"{where}: slice z{config.slice_id:02d} is not one of the acquisition's, whose "
                f"ids are {listed_ids(known)}"
            )
        configs[config.slice_id], lines[config.slice_id] = config, where
    return tuple(configs[slice_id] for slice_id in sorted(configs))


def stamp(rows: Iterable[SliceConfig], slice_id: int, **values: Any) -> tuple[SliceConfig, ...]:
    """Return the rows with some values of one slice set.

    A slice that has no row is appended as not used.
    """
    table = {row.slice_id: row for row in rows}
    row = table.get(slice_id, SliceConfig(slice_id, use=False))
    table[slice_id] = dataclasses.replace(row, **values)
    return tuple(table[i] for i in sorted(table))


def selected_ids(rows: Iterable[SliceConfig], ids: Iterable[int]) -> tuple[int, ...]:
    """Return those of `ids`, sorted, that the table does not leave out."""
    left_out = {row.slice_id for row in rows if not row.used}
    return tuple(sorted(set(ids) - left_out))
