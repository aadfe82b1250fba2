"""The galvo's fly-back: find its dark band among the A-lines, and cut it out.

While the mirror flies back, `n_extra` A-lines are recorded that show nothing useful. They belong
at the end of every B-scan, but a drifting trigger rolls each B-scan by some A-lines, so that the
band may start anywhere and may even wrap around the end. Everything here is circular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.device import Array, is_device_array, namespace, ndimage_of, to_host

MEDIAN_WIDTH = 5
N_BSCANS = 20
MIN_BAND = 5
MIN_SURROUND = 10.0
MIN_AIP_MEAN = 20.0
N_SAMPLED_TILES = 5
CONTRAST = 0.10
FULL_CONTRAST = 0.3


@dataclass(frozen=True)
class GalvoShift:
    """A roll of the A-lines (axis 1) that brings the fly-back band to the end, and its trust.

    `shift_px` lies in 0 … nx + n_extra − 1; `confidence` in 0 … 1.
    """

    shift_px: int
    confidence: float


def detect_galvo_shift(aip: Array, n_extra: int) -> GalvoShift:
    """Find the fly-back band of one tile.

    The band is where the profile along the A-lines falls and, `n_extra` A-lines later, rises
    most: the product of both steps is largest.

    Parameters
    ----------
    aip
        Mean over depth, (A-line, B-scan), fly-back included; NumPy or CuPy.
    n_extra
        Width of the band in A-lines.

    Returns
    -------
    The shift, with confidence 0 when there is no room for a band.
    """
    xp = namespace(aip)
    n_alines = aip.shape[0]
    if n_extra < 1 or n_alines - 1 - n_extra <= 0:
        return GalvoShift(0, 0.0)
    profile = aip.astype(xp.float64).mean(axis=1)
    profile = ndimage_of(aip).median_filter(profile, size=MEDIAN_WIDTH, mode="wrap")
    step = profile - xp.roll(profile, 1)
    score = xp.maximum(-step, 0) * xp.maximum(xp.roll(step, -n_extra), 0)
    start = int(score.argmax())
    shift = (n_alines - n_extra - start) % n_alines
    return GalvoShift(shift, band_confidence(aip, start, n_extra))


def band_confidence(aip: Array, start: int, n_extra: int) -> float:
    """Say how much A-lines ``start … start + n_extra − 1`` look like a fly-back band.

    In up to 20 B-scans the band's mean is held against the means beside it. The share of B-scans
    where it is darker, the share where it is clearly darker and the mean contrast make up the
    confidence; a band that is darker in fewer than half of them gets little.

    Parameters
    ----------
    aip
        See `detect_galvo_shift`.
    start
        First A-line of the band; the band and its surround wrap around the end.
    n_extra
        Width of the band in A-lines.
    """
    xp = namespace(aip)
    n_alines, n_bscans = aip.shape
    # Each side window is twice the margin wide, but the two never meet.
    side = min(2 * max(10, n_extra // 2), (n_alines - n_extra) // 2)
    if n_extra < MIN_BAND or side < 1:
        return 0.0
    chosen = np.unique(np.linspace(0, n_bscans - 1, min(N_BSCANS, n_bscans)).round().astype(int))
    lines = xp.roll(aip, side - start, axis=0)[: n_extra + 2 * side].astype(xp.float64)
    lines = lines[:, xp.asarray(chosen)]
    band = lines[side : side + n_extra].mean(axis=0)
    surround = (lines[:side].mean(axis=0) + lines[side + n_extra :].mean(axis=0)) / 2
    band, surround = to_host(band), to_host(surround)
    bright = surround >= MIN_SURROUND
    if not bright.any():
        return 0.0
    band, surround = band[bright], surround[bright]
    darker = band < surround
    contrast = np.where(darker, (surround - band) / surround, 0.0)
    share = float(darker.mean())
    if share < 0.5:
        return 0.3 * share
    clear = float((contrast > CONTRAST).mean())
    mean_contrast = float(contrast.sum() / darker.sum())
    return 0.40 * share + 0.35 * clear + 0.25 * min(mean_contrast / FULL_CONTRAST, 1.0)


def sampled_tiles(n_tiles: int) -> list[int]:
    """Choose up to 5 tiles, evenly spaced over the middle 60 % of a sorted list."""
    count = min(N_SAMPLED_TILES, n_tiles)
    places = np.linspace(0.2 * (n_tiles - 1), 0.8 * (n_tiles - 1), count)
    return [int(i) for i in np.unique(places.round().astype(int))]


def slice_galvo_shift(shifts: Sequence[GalvoShift], n_alines: int, n_extra: int) -> GalvoShift:
    """Decide the shift of a slice from those of some of its tiles.

    The most trusted tile decides; its confidence is lowered by the square root of the share of
    tiles that agree with it within ``max(n_extra // 4, 5)`` A-lines.

    Parameters
    ----------
    shifts
        Shifts of the sampled tiles; dark tiles left out. None at all gives confidence 0.
    n_alines, n_extra
        A-lines a B-scan with fly-back, and those of the fly-back.
    """
    if not shifts:
        return GalvoShift(0, 0.0)
    best = max(shifts, key=lambda shift: shift.confidence)
    away = np.array([shift.shift_px - best.shift_px for shift in shifts]) % n_alines
    agree = np.minimum(away, n_alines - away) <= max(n_extra // 4, 5)
    return GalvoShift(best.shift_px, best.confidence * float(np.sqrt(agree.mean())))


def detect_slice_galvo_shift(
    read_aip: Callable[[int], Array], n_tiles: int, n_extra: int
) -> GalvoShift:
    """Find the shift of a slice from the AIPs of at most 5 of its tiles.

    Parameters
    ----------
    read_aip
        Returns the AIP (A-line, B-scan), fly-back included, of tile 0 … n_tiles − 1 of the
        slice's sorted list.
    n_tiles, n_extra
        Number of tiles; width of the band.
    """
    shifts, n_alines = [], 0
    for index in sampled_tiles(n_tiles):
        aip = read_aip(index)
        n_alines = aip.shape[0]
        if float(aip.mean()) >= MIN_AIP_MEAN:
            shifts.append(detect_galvo_shift(aip, n_extra))
    return slice_galvo_shift(shifts, n_alines, n_extra)


def fix_galvo_shift(volume: Array, shift_px: int, n_extra: int) -> Array:
    """Roll the A-lines by `shift_px`, so that the band comes last, and cut it off.

    Parameters
    ----------
    volume
        Tile (z, A-line, B-scan) with fly-back, NumPy or CuPy.
    shift_px
        As from `detect_galvo_shift`; any integer, taken modulo the number of A-lines.
    n_extra
        Width of the band in A-lines.

    Returns
    -------
    C-contiguous tile of ``n_extra`` A-lines fewer.
    """
    n_alines = volume.shape[1]
    start = -shift_px % n_alines
    stop = start + n_alines - n_extra
    if not is_device_array(volume):
        # One A-line of all B-scans at a time: tiles come with their depth axis contiguous, and so
        # little stays in the cache while it is turned around.
        out = np.empty((volume.shape[0], n_alines - n_extra, volume.shape[2]), volume.dtype)
        for line in range(start, stop):
            out[:, line - start] = volume[:, line % n_alines]
        return out
    xp = namespace(volume)
    kept = volume[:, start : min(stop, n_alines)]
    if stop > n_alines:
        kept = xp.concatenate([kept, volume[:, : stop - n_alines]], axis=1)
    return xp.ascontiguousarray(kept)
