"""Find the galvo's fly-back band among the A-lines, and cut it out.

While the mirror flies back, `n_extra` A-lines are recorded that show nothing useful: little light,
or the scan backwards. They belong at the end of every B-scan, but a drifting trigger rolls each
B-scan by some A-lines, so that the band may start anywhere and may even wrap around the end.
Everything here is circular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, ndimage_of, to_host
from linumpy.geometry.banded import row_blocks

MEDIAN_WIDTH = 5
N_BSCANS = 20
MIN_BAND = 5
MIN_SURROUND = 10.0
MIN_AIP_MEAN = 20.0
"""Amplitudes from which on a B-scan or a tile is not dark; or half of the brightest one's, if that
is less: a microscope's numbers may have any unit."""
N_SAMPLED_TILES = 5
CONTRAST = 0.10
FULL_CONTRAST = 0.3
TILE_CONFIDENCE = 0.5
SURE = 0.85
"""Confidence below which a dark band is doubtful: of low contrast, or not seen by two of five."""
MIRRORED, MIRRORED_BESIDE = 0.8, 0.9
"""Least correlation of a fly-back that records light, and of one within half a band of a dark one:
edges of a weak dark band, too, look like themselves backwards."""
MARGIN = 0.3
"""Least share of what the next-best place leaves unexplained that the best has to explain."""
MIRRORED_ROWS = 16
MIN_TRACK_TILES = 3
SAME_PX = 1
"""Rolls that differ by no more are one: a drift passes from one sample to the next somewhere."""
VOTES = 8
"""Parts of a tile, by B-scans, of which each has one."""


@dataclass(frozen=True)
class GalvoTrack:
    """How the roll changes from tile to tile while the trigger drifts: a line.

    Attributes
    ----------
    start_px
        Roll at tile 0 of the slice's sorted list; not taken modulo anything.
    step_px
        Change from a tile to the next.
    n_alines
        A-lines a B-scan, fly-back included.
    """

    start_px: float
    step_px: float
    n_alines: int

    def expected_px(self, number: int) -> int:
        """Return the roll expected of a tile, 0 … n_alines − 1."""
        return round(self.start_px + self.step_px * number) % self.n_alines


@dataclass(frozen=True)
class GalvoShift:
    """A roll of the A-lines (axis 1) that brings the fly-back band to the end, and its trust.

    `shift_px` lies in 0 … nx + n_extra − 1; `confidence` in 0 … 1. A slice whose tiles do not
    share one roll has a `track` beside it. A band that is not `dark` shows the scan backwards.
    """

    shift_px: int
    confidence: float
    track: GalvoTrack | None = None
    dark: bool = True


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

    In up to 20 B-scans the band's mean is compared with the means beside it. The share of B-scans
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
    bright = (surround > 0) & (surround >= min(MIN_SURROUND, surround.max() / 2))
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


def track_tiles(n_tiles: int) -> list[int]:
    """Return the tiles sampled beside `sampled_tiles`, to detect a drift: both ends."""
    return [i for i in dict.fromkeys((0, n_tiles - 1)) if i not in sampled_tiles(n_tiles)]


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
    agree = np.minimum(away, n_alines - away) <= _tolerance_px(n_extra)
    return GalvoShift(best.shift_px, best.confidence * float(np.sqrt(agree.mean())))


def _is_trusted(shift: GalvoShift) -> bool:
    return shift.confidence >= TILE_CONFIDENCE


def _tolerance_px(n_extra: int) -> int:
    return max(n_extra // 4, 5)


def _circular(difference: np.ndarray, n_alines: int) -> np.ndarray:
    """Return differences of rolls by the shorter way around."""
    return np.asarray((difference + n_alines // 2) % n_alines - n_alines // 2)


def with_track(
    found: GalvoShift, shifts: Mapping[int, GalvoShift], n_alines: int, n_extra: int
) -> GalvoShift:
    """Add the track of a drifting trigger to what `slice_galvo_shift` found, if it drifts.

    A line is drawn through the rolls of the trusted tiles (the median of the slopes between all
    pairs). The trigger drifts when three tiles or more lie near that line and their rolls are
    not all the same. Confidence is then lowered by the tiles that are not at the line, not by those
    that are not at one common roll.

    There is no track where most tiles share one roll and the line explains no more of them. The
    others may have jumped, or a bubble hides a part of their bands: `tile_galvo_shift` decides.

    Parameters
    ----------
    shifts
        Rolls of the sampled tiles by their number in the slice's sorted list, dark ones left out.
    """
    trusted = {i: s.shift_px for i, s in shifts.items() if _is_trusted(s)}
    if len(trusted) < MIN_TRACK_TILES:
        return found
    number = np.array(list(trusted), dtype=float)
    away = _circular(np.array(list(trusted.values())) - found.shift_px, n_alines)
    first, second = np.triu_indices(len(number), 1)
    step = float(np.median((away[second] - away[first]) / (number[second] - number[first])))
    start = float(np.median(away - step * number))
    near = np.abs(away - start - step * number) <= _tolerance_px(n_extra)
    if near.sum() < MIN_TRACK_TILES or np.ptp(away[near]) == 0:
        return found
    on_line = (np.abs(away - start - step * number) <= SAME_PX).sum()
    alike = max(np.abs(away[:, None] - away) <= SAME_PX, key=np.count_nonzero)
    if len(away) / 2 < alike.sum() < len(away) and alike.sum() >= on_line:
        shared = round(float(np.median(away[alike])))
        return replace(found, shift_px=(found.shift_px + shared) % n_alines)
    best = max(shift.confidence for shift in shifts.values())
    share = float(near.sum()) / len(shifts)
    track = GalvoTrack(found.shift_px + start, step, n_alines)
    return GalvoShift(found.shift_px, best * float(np.sqrt(share)), track)


def tile_galvo_shift(aip: Array, number: int, track: GalvoTrack, n_extra: int) -> int:
    """Return the roll of one tile of a slice whose trigger drifts.

    The tile's own band counts where it is trusted and lies near the track; else the track does.
    Where the two differ, parts of the tile vote for either. A bubble or the tissue's edge next to
    the band hides one of its ends in some B-scans, and so moves it in the mean of all.

    Parameters
    ----------
    aip
        See `detect_galvo_shift`.
    number
        Place of the tile in the slice's sorted list.
    n_extra
        Width of the band in A-lines.
    """
    expected = track.expected_px(number)
    own = detect_galvo_shift(aip, n_extra)
    away = abs(int(_circular(np.array(own.shift_px - expected), track.n_alines)))
    if not _is_trusted(own) or away > _tolerance_px(n_extra):
        return expected
    if away <= SAME_PX:
        return own.shift_px
    parts = np.array_split(to_host(aip), min(VOTES, aip.shape[1]), axis=1)
    found = [detect_galvo_shift(part, n_extra) for part in parts]
    shifts = np.array([part.shift_px for part in found if _is_trusted(part)])
    for_own, for_track = (
        (np.abs(_circular(shifts - place, track.n_alines)) <= SAME_PX).sum()
        for place in (own.shift_px, expected)
    )
    return own.shift_px if for_own >= for_track else expected


def detect_slice_galvo_shift(
    read_aip: Callable[[int], Array], n_tiles: int, n_extra: int
) -> GalvoShift:
    """Find the shift of a slice from the AIPs of a few of its tiles, and whether it drifts.

    Where no dark band is found for sure, a fly-back that records light is looked for
    (`mirrored_shift`); tiles are taken to share one roll then.

    Parameters
    ----------
    read_aip
        Returns the AIP (A-line, B-scan), fly-back included, of tile 0 … n_tiles − 1 of the
        slice's sorted list.
    n_tiles, n_extra
        Number of tiles; width of the band.
    """
    looked: dict[int, tuple[GalvoShift, float]] = {}
    aips: dict[int, Array] = {}
    shifts: dict[int, GalvoShift] = {}
    n_alines = 0

    def look(index: int) -> dict[int, GalvoShift]:
        """Look at a tile too; return the shifts of those that are not dark."""
        nonlocal n_alines
        aips[index] = aip = read_aip(index)
        n_alines = aip.shape[0]
        looked[index] = detect_galvo_shift(aip, n_extra), float(aip.mean())
        least = min(MIN_AIP_MEAN, max(mean for _, mean in looked.values()) / 2)
        return {i: shift for i, (shift, mean) in looked.items() if mean >= least > 0}

    sampled = sampled_tiles(n_tiles)
    for index in sampled:
        shifts = look(index)
    found = slice_galvo_shift(list(shifts.values()), n_alines, n_extra)
    if not shifts:
        return found
    ends = track_tiles(n_tiles)
    for index in ends:
        shifts = look(index)
    # Where too few are bright, their neighbours may show whether the trigger drifts.
    seen = {*sampled, *ends}
    for index in [i + 1 for i in sampled if i + 1 < n_tiles and i + 1 not in seen]:
        if sum(map(_is_trusted, shifts.values())) >= MIN_TRACK_TILES:
            break
        shifts = look(index)
    found = with_track(found, shifts, n_alines, n_extra)
    if found.confidence >= SURE:
        return found
    mirrored = mirrored_shift([aips[index] for index in shifts], n_extra)
    away = _circular(np.array(mirrored.shift_px - found.shift_px), n_alines)
    beside = _is_trusted(found) and abs(int(away)) <= n_extra // 2
    least = max(MIRRORED_BESIDE if beside else MIRRORED, found.confidence)
    return mirrored if mirrored.confidence > least else found


def mirrored_shift(aips: Sequence[Array], n_extra: int) -> GalvoShift:
    """Find a fly-back that records light, by what it shows: the scan backwards, in fewer A-lines.

    The mirror returns over the field that it scanned. So, in the right place, the band correlates
    with the other A-lines in reverse order, which pass evenly or slowly at both ends (a cosine);
    the better of both counts. Compared are logarithms of means over some B-scans, less what all
    tiles have in common, as uneven light: of few tiles, tissue has to differ between B-scans.
    Correlations are averaged over tiles.

    Parameters
    ----------
    aips
        Of two tiles or more (A-line, B-scan), fly-back included, NumPy or CuPy.
    n_extra
        Width of the band in A-lines, 5 to a third of all.

    Returns
    -------
    The shift. Its confidence is the mean correlation, but 0 where a place more than half a band
    away explains nearly as much, for other widths and for one tile.
    """
    n_alines = aips[0].shape[0] if len(aips) > 1 else 0
    if n_extra < MIN_BAND or n_alines < 3 * n_extra:
        return GalvoShift(0, 0.0)
    logs = np.stack([_log_means(to_host(aip)) for aip in aips])
    logs -= np.median(logs, axis=(0, 2), keepdims=True)
    found = np.mean([_mirrored(tile, n_extra) for tile in logs], axis=0)
    start = int(found.argmax())
    away = np.abs(_circular(np.arange(n_alines) - start, n_alines))
    best, other = float(found[start]), float(found[away > n_extra // 2].max())
    is_clear = best > 0 and best - other >= MARGIN * (1 - other)
    shift = (n_alines - n_extra - start) % n_alines
    return GalvoShift(shift, best if is_clear else 0.0, dark=False)


def _log_means(aip: np.ndarray) -> np.ndarray:
    """Return logarithms of an AIP's means over some B-scans each."""
    rows = np.array_split(aip.astype(float), min(MIRRORED_ROWS, aip.shape[1]), axis=1)
    means = np.stack([row.mean(axis=1) for row in rows], axis=1)
    return np.asarray(np.log(np.maximum(means, 1e-6 * means.max() or 1.0)))


def _mirrored(logs: np.ndarray, n_extra: int) -> np.ndarray:
    """Return, for each A-line, how well a band from there on shows the others backwards."""
    n_alines = len(logs)
    time = (np.arange(n_extra) + 0.5) / n_extra
    last = n_alines - n_extra - 1
    returns = []
    for place in (last * (1 - time), last * (1 + np.cos(np.pi * time)) / 2):
        low = np.minimum(place.astype(int), last - 1)
        returns.append((low, (place - low)[:, None]))
    found = np.full(n_alines, -1.0)
    for starts in row_blocks(n_alines, 8 * n_extra * logs.shape[1]):
        start = np.arange(starts.start, starts.stop)[:, None]
        band = _less_mean(logs[(start + np.arange(n_extra)) % n_alines])
        for low, share in returns:
            place = start + n_extra + low
            back = (1 - share) * logs[place % n_alines] + share * logs[(place + 1) % n_alines]
            back = _less_mean(back)
            norm = np.sqrt(np.square(band).sum(axis=(1, 2)) * np.square(back).sum(axis=(1, 2)))
            product = (band * back).sum(axis=(1, 2))
            alike = np.divide(product, norm, out=np.full(len(start), -1.0), where=norm > 0)
            found[starts] = np.maximum(found[starts], alike)
    return found


def _less_mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(values - values.mean(axis=(1, 2), keepdims=True))


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
