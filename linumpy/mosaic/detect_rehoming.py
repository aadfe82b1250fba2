"""Correct stage glitches between slices: miscounted tiles, and positions that spring back.

What the stage reports is mended only where the table itself shows that it is wrong: a step of
whole tiles, or a slice that lies far off while those before and after it agree. A large step
that stays is what the stage did, or what it lost; only images can decide, so it is kept and
marked as not reliable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from linumpy.io.tables import SliceConfig, XYShift, stamp
from linumpy.stage_params.gaps import RehomingParams

TILE_STEP = "tile_step"
SPIKE = "spike"
LARGE_STEP = "large_step"


@dataclass(frozen=True)
class RehomingEvent:
    """Something that a stage does not do between two slices.

    Attributes
    ----------
    slice_id
        The slice from which on, or at which alone, the stage reports something odd.
    kind
        ``tile_step``: whole tiles miscounted, subtracted. ``spike``: the slice lies off its
        neighbours, which agree; it was put between them. ``large_step``: a step that stays; kept.
    step_mm, corrected_mm
        Step to the slice along stage x and y, as reported and after cleaning.
    """

    slice_id: int
    kind: str
    step_mm: tuple[float, float]
    corrected_mm: tuple[float, float]

    @property
    def mended(self) -> bool:
        """Whether the step was changed."""
        return self.kind != LARGE_STEP


@dataclass(frozen=True)
class RehomingReport:
    """What was found in a table of shifts.

    Attributes
    ----------
    n_steps
        Steps examined.
    n_mended, n_kept
        Events whose step was changed, and large steps that were kept.
    n_unreliable
        Steps that are not reliable after cleaning.
    events
        `RehomingEvent` as plain records, in the order of slices.
    """

    max_shift_mm: float
    tile_fov_mm: float
    n_steps: int
    n_mended: int
    n_kept: int
    n_unreliable: int
    events: list[dict[str, Any]]


def correct_rehoming(
    shifts: Sequence[XYShift], params: RehomingParams
) -> tuple[tuple[XYShift, ...], tuple[RehomingEvent, ...]]:
    """Find and correct steps that the stage reports but did not make.

    Parameters
    ----------
    shifts
        Steps between slices, a chain as `linumpy.io.tables.read_shifts` gives it.
    params
        What is large, and what counts as undone.

    Returns
    -------
    The steps, with what was added to them; and the events in the order of slices. A step stays
    reliable only when it was so before and is not large after cleaning. Corrections that the
    table had before are kept and added to.
    """
    reported = np.array([[s.x_shift_mm, s.y_shift_mm] for s in shifts]).reshape(-1, 2)
    steps = _without_whole_tiles(reported, params)
    kinds: dict[int, str] = {}
    kinds.update(dict.fromkeys(_rows((steps != reported).any(axis=1)), TILE_STEP))
    spikes = _find_spikes(steps, params)
    for n in spikes:
        # The neighbours agree with each other, so the two steps together are right: their sum
        # stays, and the slice is put where a stage at constant speed would have had it.
        fixed, moving, following = (
            shifts[n].fixed_id,
            shifts[n].moving_id,
            shifts[n + 1].moving_id,
        )
        whole = steps[n] + steps[n + 1]
        steps[n] = whole * (moving - fixed) / (following - fixed)
        steps[n + 1] = whole - steps[n]
        kinds[n] = SPIKE
    large = np.hypot(*steps.T) > params.max_shift_mm
    for n in _rows(large):
        kinds.setdefault(n, LARGE_STEP)
    pixels_per_mm = [_pixels_per_mm(shifts, axis) for axis in ("x", "y")]
    cleaned = tuple(
        _cleaned(shift, step, pixels_per_mm, not is_large)
        for shift, step, is_large in zip(shifts, steps, large, strict=True)
    )
    events = tuple(
        RehomingEvent(shifts[n].moving_id, kinds[n], _pair(reported[n]), _pair(steps[n]))
        for n in sorted(kinds)
    )
    return cleaned, events


def _without_whole_tiles(steps: np.ndarray, params: RehomingParams) -> np.ndarray:
    if params.tile_fov_mm <= 0:
        return steps.copy()
    tiles = np.rint(steps / params.tile_fov_mm)
    rest = steps - tiles * params.tile_fov_mm
    return np.where(np.abs(rest) < params.tile_fov_tolerance * params.tile_fov_mm, rest, steps)


def _find_spikes(steps: np.ndarray, params: RehomingParams) -> list[int]:
    """Return the first steps of pairs that undo each other, the clearest pairs first served."""
    size = np.hypot(*steps.T)
    found = []
    for n in range(len(steps) - 1):
        larger = max(size[n], size[n + 1])
        if larger <= params.max_shift_mm:
            continue
        left = float(np.hypot(*(steps[n] + steps[n + 1])) / larger)
        if left < params.return_fraction:
            found.append((left, n))
    taken: set[int] = set()
    for _, n in sorted(found):
        if not taken & {n - 1, n, n + 1}:
            taken.add(n)
    return sorted(taken)


def _pixels_per_mm(shifts: Sequence[XYShift], axis: str) -> float:
    """Return how many pixels the table counts a mm, from its largest step; 0 when all are 0."""
    largest = max(shifts, key=lambda s: abs(getattr(s, f"{axis}_shift_mm")), default=None)
    if largest is None or getattr(largest, f"{axis}_shift_mm") == 0:
        return 0.0
    return float(getattr(largest, f"{axis}_shift_px") / getattr(largest, f"{axis}_shift_mm"))


def _cleaned(
    shift: XYShift, step: np.ndarray, pixels_per_mm: Sequence[float], small: bool
) -> XYShift:
    added = step - (shift.x_shift_mm, shift.y_shift_mm)
    reliable = shift.reliable and small
    if not added.any():
        return replace(shift, reliable=reliable)
    return replace(
        shift,
        x_shift_px=shift.x_shift_px + float(added[0]) * pixels_per_mm[0],
        y_shift_px=shift.y_shift_px + float(added[1]) * pixels_per_mm[1],
        x_shift_mm=float(step[0]),
        y_shift_mm=float(step[1]),
        reliable=reliable,
        x_correction_mm=shift.x_correction_mm + float(added[0]),
        y_correction_mm=shift.y_correction_mm + float(added[1]),
    )


def _rows(chosen: np.ndarray) -> list[int]:
    return [int(n) for n in np.nonzero(chosen)[0]]


def _pair(values: np.ndarray) -> tuple[float, float]:
    return (float(values[0]), float(values[1]))


def make_report(
    shifts: Sequence[XYShift], events: Sequence[RehomingEvent], params: RehomingParams
) -> RehomingReport:
    """Sum up what `correct_rehoming` found."""
    mended = sum(event.mended for event in events)
    return RehomingReport(
        max_shift_mm=params.max_shift_mm,
        tile_fov_mm=params.tile_fov_mm,
        n_steps=len(shifts),
        n_mended=mended,
        n_kept=len(events) - mended,
        n_unreliable=sum(not shift.reliable for shift in shifts),
        events=[asdict(event) for event in events],
    )


def stamp_rehoming(
    rows: Sequence[SliceConfig], shifts: Sequence[XYShift], events: Sequence[RehomingEvent]
) -> tuple[SliceConfig, ...]:
    """Stamp every slice that a step leads to: whether it was mended, and is plausible.

    Slices that the table does not list stay out of it.
    """
    mended = {event.slice_id for event in events if event.mended}
    listed = {row.slice_id for row in rows}
    stamped = tuple(rows)
    for shift in shifts:
        if shift.moving_id in listed:
            stamped = stamp(
                stamped,
                shift.moving_id,
                rehomed=shift.moving_id in mended,
                rehoming_reliable=shift.reliable,
            )
    return stamped
