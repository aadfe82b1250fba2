"""Write the first ``slice_config.csv`` of an acquisition: its slices, and which to use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.io.raw import discover_tiles
from linumpy.io.raw_folders import ids_text
from linumpy.io.tables import SliceConfig, read_shifts, read_slice_config
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.raw_slice import read_raw_slice
from linumpy.mosaic.raw_tiles import galvo_shift_of_slice
from linumpy.mosaic.shifts import holds_grids, read_grid_infos

CALIBRATION = "calibration_slice"
BY_HAND = "excluded by hand"
NOT_CHOSEN = "not_chosen"
BAD_TILES = "bad_raw_tiles"
"""Reasons why a slice is left out before anything is computed."""


def generate_slice_config(
    source: Path | str,
    *,
    exclude: Iterable[int] = (),
    exclude_first: int = 0,
    detect_galvo: bool = False,
    galvo_threshold: float = 0.6,
    assume_unit: str | None = None,
    given: Path | None = None,
    only: Iterable[int] | None = None,
    bad: Iterable[int] = (),
) -> tuple[SliceConfig, ...]:
    """List the slices of an acquisition and say which go into the brain.

    Parameters
    ----------
    source
        Folder of mosaic grids (their galvo confidence is taken over), folder of raw tiles, or
        a ``shifts_xy.csv``.
    exclude
        Slices not to use.
    exclude_first
        How many slices from the first one on were only for calibration and are not used.
    detect_galvo
        For raw tiles: look for the fly-back band of each slice too.
    galvo_threshold
        Confidence from which the band's place is accepted.
    assume_unit
        Unit of grids whose metadata has none.
    given
        ``slice_config.csv`` with decisions made before, which win over all others. It may lack
        slices and columns, but want no slice that the acquisition does not have.
    only
        Slices to work on, whatever else is decided; None for all.
    bad
        Slices with tiles that cannot be read: left out, whatever else is decided.

    Returns
    -------
    A row a slice. Each that is left out says why.

    Raises
    ------
    InputError
        When the source cannot be read, an excluded slice is not there, none is left, or the given
        table has a slice twice or wants one that is not there; names its line.
    """
    rows = _list_slices(Path(source), detect_galvo, galvo_threshold, assume_unit)
    ids = [row.slice_id for row in rows]
    decided: dict[int, SliceConfig] = {}
    if given is not None:
        decided = {row.slice_id: row for row in read_slice_config(given, known_ids=ids)}
    unknown = sorted(set(exclude) - set(ids))
    if unknown:
        raise InputError(
            f"--exclude names slice {ids_text(unknown)}, which {source} does not have; "
            f"its ids are {ids_text(ids)}"
        )
    if exclude_first < 0:
        raise InputError(f"--exclude_first is {exclude_first}, expected 0 or more")
    for n, row in enumerate(rows):
        if n < exclude_first:
            rows[n] = replace(row, use=False, exclude_reason=CALIBRATION, notes=CALIBRATION)
        elif row.slice_id in set(exclude):
            rows[n] = replace(row, use=False, exclude_reason=BY_HAND)
    rows = [with_reason(_merged(row, decided.get(row.slice_id))) for row in rows]
    if only is not None:
        rows = _without(rows, set(ids) - set(only), NOT_CHOSEN)
    rows = _without(rows, set(bad), BAD_TILES)
    if not any(row.used for row in rows):
        raise InputError(f"{source}: all {len(rows)} slices are excluded; expected one to be left")
    absent = [with_reason(row) for slice_id, row in decided.items() if slice_id not in ids]
    return tuple(sorted([*rows, *absent], key=lambda row: row.slice_id))


def _without(rows: list[SliceConfig], ids: set[int], reason: str) -> list[SliceConfig]:
    """Leave slices out that are used so far."""
    return [
        replace(row, use=False, exclude_reason=reason) if row.used and row.slice_id in ids else row
        for row in rows
    ]


def with_reason(row: SliceConfig) -> SliceConfig:
    """Return a row with the reason why its slice is left out, where it has none."""
    if row.used or row.exclude_reason or row.interpolated:
        return row
    return replace(row, exclude_reason=BY_HAND)


def _merged(row: SliceConfig, given: SliceConfig | None) -> SliceConfig:
    """Return a given row, with what it leaves empty taken from the one that was made."""
    if given is None:
        return row
    if given.use is not None:
        # Reasons and notes belong to a decision, and go with it.
        row = replace(row, use=None, exclude_reason="", notes="")
    made = {
        f.name: getattr(row, f.name)
        for f in fields(SliceConfig)
        if f.name != "extra" and getattr(given, f.name) in (None, "")
    }
    return replace(given, **made)


def _list_slices(
    source: Path, detect_galvo: bool, galvo_threshold: float, assume_unit: str | None
) -> list[SliceConfig]:
    if source.is_file():
        shifts = read_shifts(source)
        if not shifts:
            raise InputError(f"{source}: names no slice; expected a row for each pair of slices")
        ids = [shifts[0].fixed_id, *(shift.moving_id for shift in shifts)]
        return [SliceConfig(slice_id, use=True) for slice_id in ids]
    if holds_grids(source):
        return [
            SliceConfig(
                info.slice_id,
                use=True,
                galvo_confidence=info.galvo_confidence,
                galvo_fix=None if info.galvo_confidence is None else info.galvo_shift_px != 0,
            )
            for info in read_grid_infos(source, assume_unit)
        ]
    slices = discover_tiles(source)
    rows = [SliceConfig(slice_id, use=True) for slice_id in slices]
    if detect_galvo:
        options = GridOptions(galvo_threshold=galvo_threshold)
        for n, row in enumerate(rows):
            shift = galvo_shift_of_slice(read_raw_slice(slices, row.slice_id, source), options)
            if shift is not None:
                rows[n] = replace(
                    row, galvo_confidence=shift.confidence, galvo_fix=shift.shift_px != 0
                )
    return rows
