"""The pipeline's tables as Arrow record batches, for pandas, Polars, PyArrow and the like.

Columns are called as in the CSV files, units included; nothing of Arrow need be installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.gpu.arrow import ArrowBatch, ArrowColumn
from linumpy.io.tables import SliceConfig, XYShift

if TYPE_CHECKING:
    from linumpy.quality.accuracy_metric import AccuracyMetric
    from linumpy.tiles.positions import PlacedTile, TileRegistration

_DTYPES: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}
_FILLERS: dict[type, Any] = {int: 0, float: np.nan, bool: False}

_TILE_COLUMNS = {
    "slice_id": int,
    "ix": int,
    "iy": int,
    "stage_corner_axis1_um": float,
    "stage_corner_axis2_um": float,
    "corner_axis1_um": float,
    "corner_axis2_um": float,
    "component": int,
    "n_pairs": int,
}
_FIGURE_COLUMNS = {
    "figure": str,
    "value": float,
    "unit": str,
    "target": float,
    "comparison": str,
    "n": int,
    "passed": bool,
}


def arrow_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> ArrowBatch:
    """Turn rows into a record batch.

    Parameters
    ----------
    rows
        Values by column name; None is a missing value.
    columns
        ``int`` (int64), ``float`` (float64), ``bool`` or ``str`` by column name, in order.

    Raises
    ------
    InputError
        When a row lacks a column or a value does not fit it; names row and column.
    """
    rows = list(rows)
    return ArrowBatch({name: _column(rows, name, kind) for name, kind in columns.items()})


def shifts_table(shifts: Iterable[XYShift]) -> ArrowBatch:
    """Return the rows of ``shifts_xy.csv``; ids are integers, ``x_shift`` and ``y_shift`` pixels.

    See Also
    --------
    linumpy.io.tables.XYShift : What the columns mean.
    """
    kinds = _kinds(XYShift)
    # The table has always called its pixel columns by their axis alone.
    columns = {name.removesuffix("_px"): kind for name, kind in kinds.items()}
    return arrow_table(
        ({name.removesuffix("_px"): getattr(shift, name) for name in kinds} for shift in shifts),
        columns,
    )


def slice_config_table(rows: Iterable[SliceConfig]) -> ArrowBatch:
    """Return the rows of ``slice_config.csv``; empty cells are missing values.

    Columns of other programs follow as text.
    """
    rows = list(rows)
    kinds = {name: kind for name, kind in _kinds(SliceConfig).items() if name != "extra"}
    extra = dict.fromkeys((name for row in rows for name in row.extra), str)
    return arrow_table(
        (
            {name: getattr(row, name) for name in kinds}
            | {name: row.extra.get(name) for name in extra}
            for row in rows
        ),
        kinds | extra,
    )


def tile_positions_table(models: Iterable[TileRegistration]) -> ArrowBatch:
    """Return where the tiles of slices lie, a row a tile.

    Parameters
    ----------
    models
        The ``register_tiles`` models of any number of slices.

    Returns
    -------
    Columns ``slice_id, ix, iy``; the tile's corner in stage micrometres along array axes 1 and
    2, as the stage reported it (``stage_corner_axis1_um``, ``stage_corner_axis2_um``) and as
    solved (``corner_axis1_um``, ``corner_axis2_um``); ``component`` (−1: only the stage holds
    the tile) and ``n_pairs``.
    """
    return arrow_table(
        (
            dict(zip(_TILE_COLUMNS, (model.slice_id, *_tile_values(tile)), strict=True))
            for model in models
            for tile in model.tiles
        ),
        _TILE_COLUMNS,
    )


def figures_table(figures: Mapping[str, AccuracyMetric]) -> ArrowBatch:
    """Return accuracy metrics, a row a metric.

    Parameters
    ----------
    figures
        As `linumpy.quality.evaluate` returns them, by name.

    Returns
    -------
    Columns ``figure, value, unit, target, comparison, n, passed``; what was not measured, or is
    held to no target, is missing.
    """
    others = [name for name in _FIGURE_COLUMNS if name != "figure"]
    return arrow_table(
        (
            {"figure": name} | {other: getattr(figure, other) for other in others}
            for name, figure in figures.items()
        ),
        _FIGURE_COLUMNS,
    )


def _tile_values(tile: PlacedTile) -> tuple[float, ...]:
    return (*tile.index, *tile.stage_corner_um, *tile.corner_um, tile.component, tile.n_pairs)


def _kinds(row_type: type) -> dict[str, type]:
    """Return the kinds of a dataclass's fields, by their annotations; "float | None" is a float."""
    by_name: dict[str, type] = {kind.__name__: kind for kind in (int, float, bool, str)}
    return {
        field.name: by_name.get(str(field.type).removesuffix(" | None"), str)
        for field in dataclasses.fields(row_type)
    }


def _column(rows: list[Mapping[str, Any]], name: str, kind: type) -> ArrowColumn:
    try:
        values = [row[name] for row in rows]
    except KeyError:
        number = next(n for n, row in enumerate(rows) if name not in row)
        raise InputError(f"row {number} of the table lacks the column {name!r}") from None
    for number, value in enumerate(values):
        if value is not None and not _fits(value, kind):
            raise InputError(
                f"row {number} of the table: {name} is {value!r}, expected {kind.__name__}"
            )
    if kind is str:
        return ArrowColumn(values)
    valid = np.array([value is not None for value in values], bool)
    filled = [_FILLERS[kind] if value is None else value for value in values]
    return ArrowColumn(np.array(filled, _DTYPES[kind]), None if valid.all() else valid)


def _fits(value: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str)
    # Python counts True as a number; a table does not.
    if kind is bool or isinstance(value, bool | np.bool_):
        return kind is bool and isinstance(value, bool | np.bool_)
    if kind is int:
        return isinstance(value, int | np.integer) and -(2**63) <= int(value) < 2**63
    return isinstance(value, int | float | np.integer | np.floating)
