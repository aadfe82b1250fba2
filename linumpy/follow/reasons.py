"""Reasons against a slice: what was measured of it, compared with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter1d

from linumpy.follow.depth_step import DepthStep
from linumpy.follow.tile_checks import TileFigures
from linumpy.follow.verdict import LOOK, STOP, Reason
from linumpy.follow.watch import FinishedSlice
from linumpy.follow.wedge import SURE
from linumpy.metrics.limits import ERROR, LIMITS, OK, WARNING

FOCUS_LIMIT = 1.0
"""Rayleigh lengths: the depth at which the axial response has lost half of its power."""
ABOVE_LIMIT = 2.0
"""Brightness of a block over the bright blocks of all other tiles: white and grey matter differ by
less than that (the ratios of `linumpy.phantom.physics` and their sources)."""
BORDER_SHARE = 0.05
SLOW_FACTOR = 1.5
_SLOW_LEAST_S = 5.0
_LIT_T = 5.0
"""Of Student's t from which a profile is more than noise. Neighbouring planes share noise, so that
chance reaches 1.4 times what t says: once in 4000 tiles."""
_RING_PX = 3
_RAGGED_PX = 10
"""Tiles beside their places leave a border so ragged; what lies further in is a missing tile."""
_LEVEL = {WARNING: LOOK, ERROR: STOP}


def tile_name(key: Sequence[int]) -> str:
    """Return a tile's name in verdicts, by the indices of its folder."""
    return f"x{key[0]:02d}_y{key[1]:02d}"


def files_reasons(found: FinishedSlice) -> list[Reason]:
    """Report tiles that never came, and those that are not whole."""
    reasons = []
    if found.n_missing:
        places = tuple(tile_name(key) for key in found.missing)
        text = f"{found.n_missing} of the slice's tiles never came"
        reasons.append(Reason("missing_tile", STOP, text, places, found.n_missing, 0))
    if found.short:
        places = tuple(tile_name(key) for key in sorted(found.short))
        text = found.short[min(found.short)].rpartition("/")[2]
        reasons.append(Reason("tile_short", STOP, text, places, len(found.short), 0))
    return reasons


def scan_times_s(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how long slices took, without those that were reported as slow, if others remain.

    Parameters
    ----------
    lines
        Of ``verdicts.jsonl``.
    """
    return _usual(lines, "duration_s", "slow_scan")


def stage_places_um(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return where tissue lay against the stage, slices after a glitch left out likewise."""
    return _usual(lines, "stage_um", "stage_glitch")


def _usual(lines: Sequence[Mapping[str, Any]], name: str, kind: str) -> list[Any]:
    """Return a metric of the slices that have no reason of a kind; of all where all have one."""
    known = [line for line in lines if (line.get("figures") or {}).get(name) is not None]
    usual = [x for x in known if all(r["kind"] != kind for r in x.get("reasons") or ())]
    return [line["figures"][name] for line in usual or known]


def slow_limit(before: Sequence[float]) -> float:
    """Return the longest time, s, that a slice may take after those before."""
    usual = float(np.median(before))
    return max(SLOW_FACTOR * usual, usual + _SLOW_LEAST_S)


def slow_reasons(duration_s: float, before: Sequence[float]) -> list[Reason]:
    """Report a scan that took longer than those before."""
    if not before or duration_s <= slow_limit(before):
        return []
    text = f"{duration_s:.0f} s, and {np.median(before):.0f} s the slices before"
    limit = round(slow_limit(before), 1)
    return [Reason("slow_scan", LOOK, text, (), round(duration_s, 1), limit, "s")]


def dead_reasons(
    dead: Mapping[tuple[int, int], TileFigures],
    alive: Mapping[tuple[int, int], TileFigures],
    names: Mapping[tuple[int, int], str],
) -> list[Reason]:
    """Report tiles without signal: dead, or so dark that their mean over the tile alone shows it.

    Noise is alike at all depths; light, however little, follows the profile of the other tiles.
    """
    if not dead:
        return []
    lit = set()
    if alive:
        usual = np.median([f.powers.mean(axis=(1, 2)) for f in alive.values()], axis=0)
        lit = {key for key, f in dead.items() if _follows(f.powers.mean(axis=(1, 2)), usual)}
    found = []
    for kind, keys, text in (
        ("dead_tile", dead.keys() - lit, "no signal that changes with depth"),
        ("dark_tile", lit, "next to no light"),
    ):
        if keys:
            found.append(Reason(kind, STOP, text, tuple(names[key] for key in sorted(keys))))
    return found


def _follows(profile: np.ndarray, usual: np.ndarray) -> bool:
    """Whether a profile goes with another one beyond chance."""
    if np.ptp(profile) == 0:
        return False
    r = float(np.corrcoef(profile, usual)[0, 1])
    return r * np.sqrt((len(profile) - 2) / max(1 - r**2, 1e-9)) > _LIT_T


def galvo_reasons(track: Any, n_tiles: int, n_extra: int) -> list[Reason]:
    """Report a trigger that drifts by more than the fly-back's own width within the slice."""
    drift = 0.0 if track is None else track.step_px * (n_tiles - 1)
    if not n_extra or abs(drift) < n_extra:
        return []
    text = f"the fly-back moves by {drift:+.0f} A-lines from the first tile to the last"
    return [Reason("galvo_drift", LOOK, text, (), round(drift, 1), n_extra, "A-lines")]


def focus_reasons(
    shifts: Mapping[tuple[int, int], float], names: Mapping[tuple[int, int], str]
) -> list[Reason]:
    """Report tiles that are out of focus, by their shifts in Rayleigh lengths."""
    off = {key: shift for key, shift in shifts.items() if abs(shift) >= FOCUS_LIMIT}
    if not off:
        return []
    worst = max(off.values(), key=abs)
    text = f"focus {worst:+.1f} Rayleigh lengths from that of the neighbours"
    tiles = tuple(names[key] for key in sorted(off))
    return [Reason("defocus", STOP, text, tiles, round(worst, 2), FOCUS_LIMIT, "Rayleigh lengths")]


def common_focus_reasons(shift: float | None) -> list[Reason]:
    """Report a slice that is out of focus as a whole."""
    if shift is None or abs(shift) < FOCUS_LIMIT:
        return []
    text = f"focus of all tiles {shift:+.1f} Rayleigh lengths from where it was learned"
    return [Reason("defocus", STOP, text, (), round(shift, 2), FOCUS_LIMIT, "Rayleigh lengths")]


def bright_reasons(
    alive: Mapping[tuple[int, int], TileFigures], names: Mapping[tuple[int, int], str]
) -> list[Reason]:
    """Report blocks that are brighter than any tissue: debris in the face."""
    found = {}
    for key, tile in alive.items():
        usual = max((f.usual for other, f in alive.items() if other != key), default=0.0)
        if usual and tile.peak > ABOVE_LIMIT * usual:
            found[key] = tile.peak / usual
    if not found:
        return []
    worst = max(found.values())
    text = f"{worst:.1f} times as bright as any tissue of the other tiles"
    tiles = tuple(names[key] for key in sorted(found))
    return [Reason("debris", STOP, text, tiles, round(worst, 2), ABOVE_LIMIT)]


def border_reasons(
    depth_mean: np.ndarray, threshold: float, figures: dict[str, Any]
) -> list[Reason]:
    """Report tissue along the border of the mosaic; the rim of a missing tile is none.

    Parameters
    ----------
    depth_mean
        Of the slice (axis 1, axis 2), NaN where it has no data.
    threshold
        Least amplitude of tissue; 0 where all is one medium.
    """
    if not threshold:
        return []
    sides = (depth_mean, depth_mean[::-1], depth_mean.T, depth_mean.T[::-1])
    border = np.concatenate([_outermost(side) for side in sides])
    # Tissue ends where a blurred image shows half of it; any of it is more than the threshold.
    shown = depth_mean[np.isfinite(depth_mean)]
    is_tissue = shown > threshold
    media = [float(np.median(part)) for part in (shown[is_tissue], shown[~is_tissue]) if part.size]
    least = float(np.mean(media)) if len(media) > 1 else threshold
    share = float((border > least).mean()) if border.size else 0.0
    figures["border_share"] = round(share, 4)
    if share < BORDER_SHARE:
        return []
    text = f"{100 * share:.0f} % of the mosaic's border shows tissue"
    return [Reason("border", STOP, text, (), round(share, 3), BORDER_SHARE)]


def _outermost(image: np.ndarray) -> np.ndarray:
    """Return the mean of the outermost pixels of each column at the low end of axis 0, smoothed."""
    known = np.isfinite(image)
    first = known.argmax(axis=0)
    there = known.any(axis=0)
    if not there.any():
        return np.zeros(0)
    there &= first < first[there].min() + _RAGGED_PX
    columns = np.flatnonzero(there)
    rows = np.minimum(first[columns] + np.arange(_RING_PX)[:, None], len(image) - 1)
    found = image[rows, columns]
    mean = np.where(np.isfinite(found), found, 0).sum(axis=0) / np.isfinite(found).sum(axis=0)
    # Along the border alone: from inside, tissue would reach it before it is there.
    return np.asarray(gaussian_filter1d(mean, _RING_PX))


def cut_reasons(step: DepthStep, interval_um: float, cuts: int = 1) -> list[Reason]:
    """Report a cut that is off, the limits being those of one cut however many were made."""
    if step.distance_um is None:
        return [Reason("no_match", LOOK, "no planes of it match the slice before")]
    limits = LIMITS["uneven_cut"]
    expected_um = cuts * interval_um
    excess = (step.distance_um - expected_um) / interval_um
    level = limits.status(excess)
    if level == OK:
        return []
    text = f"{step.distance_um:.0f} um below the face before; the interval is {interval_um:g} um"
    if cuts > 1:
        text = (
            f"{step.distance_um:.0f} um below the last face there is; {cuts} intervals are "
            f"{expected_um:g} um"
        )
    kind = "uneven_cut"
    if level == ERROR:
        kind = "double_cut" if excess > 0 else "missed_cut"
    off = (limits.error if level == ERROR else limits.warning) * interval_um
    limit = expected_um + (off if excess > 0 else -off)
    return [Reason(kind, _LEVEL[level], text, (), round(step.distance_um, 1), limit, "um")]


def stage_reasons(step: DepthStep, off_um: np.ndarray, pixel_um: float) -> list[Reason]:
    """Report tissue that lies elsewhere than in the slice before and in those before together."""
    limits = LIMITS["translation"]
    off = min(float(np.hypot(*step.shift_um)), float(np.hypot(*off_um)))
    level = limits.status(off / pixel_um)
    if level == OK:
        return []
    text = f"tissue lies {off:.0f} um from where the stage says"
    limit = pixel_um * (limits.error if level == ERROR else limits.warning)
    return [Reason("stage_glitch", LOOK, text, (), round(off), limit, "um")]


def wedge_reasons(
    interval_um: float, earlier: Sequence[Mapping[str, Any]], figures: dict[str, Any]
) -> list[Reason]:
    """Report a face that falls otherwise than those before, beyond chance."""
    known = [f for f in earlier if f.get("tilt_um")]
    if not known:
        return []
    # A face that a bubble hid says nothing of how faces fall, either.
    known = [f for f in known if f.get("tilt_error_um") is not None] or known
    falls = np.array([f["tilt_um"] for f in known])
    change = np.subtract(figures["tilt_um"], np.median(falls, axis=0))
    # At the corners of the mosaic the cut is off by half of this.
    fall = float(np.abs(change).sum())
    # Faces of an acquisition are alike: together they say better how uneven they are.
    errors = [f["tilt_error_um"] for f in (*known, figures) if f.get("tilt_error_um") is not None]
    error = _fall_error_um(falls, errors) * float(np.sqrt(1 + 1 / len(known)))
    figures["wedge_um"] = round(fall, 1)
    limits = LIMITS["uneven_cut"]
    level = limits.status(fall / 2 / interval_um)
    sure = SURE * error * fall / max(float(np.hypot(*change)), 1e-9)
    if level == OK or fall < sure:
        return []
    text = f"the face falls by {fall:.0f} um more from corner to corner than before"
    limit = max(2 * interval_um * (limits.error if level == ERROR else limits.warning), sure)
    return [Reason("wedge", _LEVEL[level], text, (), round(fall), round(limit), "um")]


def _fall_error_um(falls: np.ndarray, errors: Sequence[float]) -> float:
    """Return the standard error of a fall an axis, by what faces state and by how falls scatter.

    What each face states of itself counts as much as its two falls do. These count by the median of
    their squared distances, 2 ln 2 variances of two axes, which a wedge among them hardly moves.
    """
    n = len(falls)
    stated = float(np.mean(errors or [0]))
    if n < 2 or not errors:
        return stated
    distances = np.square(falls - np.median(falls, axis=0)).sum(axis=1)
    seen = float(np.median(distances)) / (2 * np.log(2)) * n / (n - 1)
    return float(np.sqrt((len(errors) * stated**2 + (n - 1) * seen) / (len(errors) + n - 1)))
