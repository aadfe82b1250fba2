"""Profile of power along depth in one medium, from which the axial response is learned.

Tiles are averaged over lateral cells. A cell's A-line shows water, the cut face and what lies
below. A-lines of agarose all show the same, so that their mean is a profile with little scatter.
Where there is too little of it, the logarithms of tissue are averaged instead: its texture then
cancels as far as anatomy allows.

Amplitudes are averaged first, then squared, and the squared mean amplitude of noise is subtracted.
As signal and noise are both circular Gaussian, mean amplitudes add up in squares exactly as powers
do, however much the voxels were averaged before; means of squares do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.robust import robust_spread
from linumpy.geometry.interface import find_tissue_interface
from linumpy.intensity.compensate_psf_faces import attenuation_from_faces
from linumpy.intensity.quantiles import otsu_threshold

_FACE_SIGMA = 1.5
_FACE_CELLS = 3
_WATER_MARGIN_PX = 4
_FACE_MARGIN_PX = 3
_UPPER_UM = 100.0
"""Media are separated below the face: white matter of 10 /mm has lost 86 % of its light there."""

_MIN_PLANES = 8
_MIN_CELLS = 20
_MIN_SHARE = 0.005
_MIN_CONTRAST = 2.0
"""Tissue is at least so many times brighter than agarose, in amplitude."""

_MIN_SIGNAL = 0.5
"""An A-line shows something by itself from this share of the noise's power on, over its depth."""

_LIT = 4.0
"""Tissue whose power is so many times the noise's says that its tile has light."""

_MAX_ERROR = 1 / 3
"""Planes count while their power is known to this share: three standard errors above nothing."""

_MIN_SEEN = 0.2
"""Share of the A-lines that must show a plane, of how many show the plane that most do."""

_EVEN_NOISE = 0.9
"""Noise of deep planes below this share of the water's falls with depth. What is chosen as darkest
is by chance up to some percent too dark."""

_DARKEST = 0.1
"""Share of a tile's cells in a plane, and of its planes, that are darker than the darkest level."""

_NOTHING = 1e-12
"""Of the largest power: what A-lines without a signal get where no noise was seen."""

_OUTLIER = 2.5
_ROUNDS = 5
_MIN_ERROR = 0.003
_LONE_ERROR = 0.01


@dataclass(frozen=True)
class AxialProfile:
    """The profile of one medium.

    Attributes
    ----------
    medium
        ``agarose`` or ``tissue``.
    log_power
        ln of the noise-free power in planes ``start … stop − 1``; its level has no meaning.
    error
        Standard error of each, from the scatter between tiles.
    noise_power
        Squared mean amplitude of the noise; 0 when no water was seen.
    noise_excess
        Mean amplitude of the water over that of the noise: above 1 where noise falls with depth.
    mu_per_mm, mu_error
        Attenuation of agarose estimated from differences between its faces, 1/mm, and the standard
        error; infinity where they carry no information.
    """

    medium: str
    n_planes: int
    start: int
    stop: int
    log_power: np.ndarray
    error: np.ndarray
    noise_power: float
    noise_excess: float
    n_cells: int
    n_tiles: int
    mu_per_mm: float
    mu_error: float


def measure_profile(
    cells: Sequence[np.ndarray], axial_um: float, slices: Sequence[int] | None = None
) -> AxialProfile:
    """Average the profile of agarose, else of tissue.

    Parameters
    ----------
    cells
        `intensity.compensate_psf.cell_means` of tiles of one depth, on the host: float32
        (z, cells along axis 1, cells along axis 2), NaN where invalid.
    axial_um
        Voxel along depth.
    slices
        Slice id of each tile; None when all are of one slice.

    Raises
    ------
    NoProfileError
        When too few A-lines show a face with something below it.
    """
    values, tile = _a_lines(cells)
    face, own_face = (np.concatenate([_faces(c, n) for c in cells]) for n in (_FACE_CELLS, 1))
    noise = _noise(values, face, tile)
    # What lies below each A-line's own face; where cuts are tilted they begin at different planes.
    below = np.arange(values.shape[1]) >= (face + _FACE_MARGIN_PX)[:, None]
    values = np.where(below, values, np.nan).astype(float)
    whole = np.isfinite(values).sum(axis=1) >= _MIN_PLANES
    if whole.sum() < _MIN_CELLS:
        raise _nothing_found(f"{whole.sum()} of {len(values)} A-line cells show it below a face")
    place = np.concatenate([np.arange(c[0].size) for c in cells])
    lines = _Lines(values, tile, place, face * axial_um, own_face * axial_um).take(whole)
    # Deeper, steep tissue is as dark as agarose.
    n_upper = max(_MIN_PLANES, round(_UPPER_UM / axial_um))
    upper = np.cumsum(np.isfinite(lines.values), axis=1) <= n_upper
    shown = np.where(upper, lines.values, np.nan)
    level = np.sqrt(np.maximum(np.nanmean(np.square(shown), axis=1) - noise.power, 0))
    chosen = _agarose(level, noise.power, lines.tile)
    if chosen is not None:
        chosen = _alike(lines.values, chosen, noise.power)
    if chosen is not None and chosen.sum() >= _MIN_CELLS:
        # Of agarose that never rises above noise, nothing is learned.
        with suppress(NoProfileError):
            return _agarose_profile(lines.take(chosen), level[chosen], noise, slices)
    chosen = level**2 > 4 * noise.power
    if chosen.sum() < _MIN_CELLS:
        raise _nothing_found(f"{chosen.sum()} A-line cells are brighter than noise")
    return _profile("tissue", lines.take(chosen), noise)


@dataclass(frozen=True)
class _Noise:
    """Squared mean amplitude of the noise, its standard error, and `AxialProfile.noise_excess`."""

    power: float
    error: float
    excess: float


@dataclass(frozen=True)
class _Lines:
    """A-lines (n, z), NaN above their faces; the tile of each, its place there, and its face in µm.

    A face is smooth (`face_um`) or what the A-line shows by itself (`own_face_um`).
    """

    values: np.ndarray
    tile: np.ndarray
    place: np.ndarray
    face_um: np.ndarray
    own_face_um: np.ndarray

    def take(self, chosen: np.ndarray) -> _Lines:
        return _Lines(*(part[chosen] for part in vars(self).values()))


def _agarose_profile(
    lines: _Lines, level: np.ndarray, noise: _Noise, slices: Sequence[int] | None
) -> AxialProfile:
    """Return the profile of A-lines of agarose, and its attenuation; `level` is their amplitude."""
    found = _profile("agarose", lines, noise)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_level = np.log(_level_and_slope(lines.values, noise.power)[0])
    ids = np.zeros(lines.tile.max() + 1, int) if slices is None else np.asarray(slices)
    number = np.unique(ids, return_inverse=True)[1][lines.tile]
    # Neighbours share errors of a face, which single A-lines do not.
    alone = float(np.median(level**2)) > _MIN_SIGNAL * noise.power
    face_um = lines.own_face_um if alone else lines.face_um
    mu, error = attenuation_from_faces(log_level, face_um, lines.place, number, lines.tile)
    return replace(found, mu_per_mm=mu, mu_error=error)


def _profile(medium: str, lines: _Lines, noise: _Noise) -> AxialProfile:
    """Return the profile of A-lines of one medium; an error if few planes are above noise."""
    noise_power = noise.power
    agarose, values = medium == "agarose", lines.values
    if not agarose:
        # Logarithms, so that bright tissue does not decide alone.
        least = 0.1 * noise_power + _NOTHING * np.nanmax(np.square(values))
        values = np.log(np.maximum(np.square(values) - noise_power, least))
    start, log_power = _chained(values, noise_power, not agarose)
    if not len(log_power):
        raise _nothing_found("its profile is above noise nowhere")
    error = _errors(values, lines.tile, start, log_power, noise_power, not agarose)
    error = np.hypot(error, noise.error / np.exp(log_power))
    # The tissue of tiles differs, whatever the noise.
    shown = error < _MAX_ERROR if agarose else np.exp(log_power) > _MIN_SIGNAL * noise_power
    if (told := _leading(shown)) < _MIN_PLANES:
        raise _nothing_found(f"its profile is above noise in {told} planes")
    log_power, error = log_power[:told], error[:told]
    return AxialProfile(
        medium=medium,
        n_planes=values.shape[1],
        start=start,
        stop=start + len(log_power),
        log_power=log_power,
        error=error,
        noise_power=noise_power,
        noise_excess=noise.excess,
        n_cells=len(values),
        n_tiles=len(np.unique(lines.tile)),
        mu_per_mm=0.0,
        mu_error=np.inf,
    )


class NoProfileError(InputError):
    """No axial profile rises above the noise, or none begins at a face."""


def _nothing_found(what: str) -> NoProfileError:
    return NoProfileError(
        f"compensate_psf: no axial profile of agarose or tissue ({what}); expected tiles with a "
        "cut face; compensate_psf_enabled = false goes without this correction"
    )


def _a_lines(cells: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all cells as A-lines, (n, z), and the tile that each comes from."""
    if not cells:
        raise _nothing_found("no tile")
    lines = np.concatenate([c.reshape(len(c), -1).T for c in cells])
    tile = np.repeat(np.arange(len(cells)), [c[0].size for c in cells])
    return lines, tile


def _faces(cells: np.ndarray, around: int) -> np.ndarray:
    """Return the plane where the water of each of a tile's cells ends, sought in the upper half.

    A face is smooth: a mean over `around` cells a side helps where agarose hardly exceeds noise.
    """
    searched = cells[: max(3, (len(cells) + 1) // 2)]
    known = np.isfinite(searched)
    found = find_tissue_interface(
        np.where(known, searched, np.float32(0)), around, _FACE_SIGMA, valid=known, axis=0
    )
    return np.asarray(found).ravel()


def _noise(lines: np.ndarray, face: np.ndarray, tile: np.ndarray) -> _Noise:
    """Return the noise that the water above the faces shows, or deep planes where these are darker.

    A bubble or a face that was found too deep is bright, so the middle of the cells counts. Light
    only adds to noise: where deep planes are darker than water, noise falls with depth, and that of
    deep planes, where it matters most, counts for all. It is 0 where there is no water.
    """
    planes = np.arange(lines.shape[1])
    water = np.isfinite(lines) & (planes < (face - _WATER_MARGIN_PX)[:, None])
    if water.sum() < _MIN_CELLS:
        return _Noise(0.0, 0.0, 1.0)
    noise = float(np.median(lines[water]))
    # Zeros are no noise: nothing was recorded there.
    below = (lines > 0) & (planes >= (face + _FACE_MARGIN_PX)[:, None])
    medians, deep = [], []
    for own in (tile == n for n in np.unique(tile)):
        if water[own].sum() < _MIN_CELLS:
            continue
        medians.append(float(np.median(lines[own][water[own]])))
        dark, middle = _quantiles(lines[own], water[own], (_DARKEST, 0.5))
        found = _quantiles(lines[own], below[own], (_DARKEST,))[0]
        if len(dark) and len(found):
            # What the cells of water scatter by, those of deep planes do.
            share = float(np.median(dark / np.maximum(middle, 1e-12)))
            deep.append(float(np.quantile(found, _DARKEST)) / max(share, 1e-12))
    n_tiles = max(len(medians), 1)
    spread = robust_spread(np.array(medians) - noise) if len(medians) > 1 else 0.0
    least = float(np.median(deep)) if deep else noise
    if least >= _EVEN_NOISE * noise:
        return _Noise(noise**2, 2 * noise * spread / float(np.sqrt(n_tiles)), 1.0)
    spread = robust_spread(np.array(deep) - least)
    return _Noise(least**2, 2 * least * spread / float(np.sqrt(len(deep))), noise / least)


def _quantiles(lines: np.ndarray, counts: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Return quantiles over the A-lines that count, for each plane in which enough of them do."""
    count = counts.sum(axis=0)
    planes = np.flatnonzero(count >= _MIN_CELLS)
    # What does not count comes last; NumPy's quantiles of NaN take ten times as long.
    ordered = np.sort(np.where(counts, lines, np.inf)[:, planes].T, axis=1)
    ranks = np.multiply.outer(shares, count[planes] - 1).astype(int)
    return ordered[np.arange(len(planes)), ranks]


def _agarose(level: np.ndarray, noise_power: float, tile: np.ndarray) -> np.ndarray | None:
    """Select the A-lines of agarose by mean amplitude; None when there are not two media."""
    seen = (level > 0) & (level**2 > _MIN_SIGNAL * noise_power)
    if seen.sum() < _MIN_CELLS:
        return None
    logarithm = np.log(np.where(seen, level, 1))
    dark = np.zeros_like(seen)
    if np.ptp(logarithm[seen]) > 0:
        dark = seen & (logarithm < otsu_threshold(logarithm[seen]))
    bright = seen & ~dark
    # What is nearly dark is agarose where the tile has light, as its tissue shows.
    lit = np.isin(tile, tile[bright & (level**2 > _LIT * noise_power)])
    dim = lit & ~seen
    if dim.sum() > max(dark.sum(), _MIN_CELLS):
        return dim
    if not dark.any():
        return seen if np.ptp(logarithm[seen]) == 0 else None
    if not _MIN_SHARE < dark.sum() / seen.sum() < 1:
        return None
    # Agarose and tissue differ by more than either does by itself.
    alike = np.median(level[bright]) < _MIN_CONTRAST * np.median(level[dark])
    return None if alike else dark


def _alike(lines: np.ndarray, chosen: np.ndarray, noise_power: float) -> np.ndarray:
    """Drop A-lines whose level or slope differs from most: at its border agarose hides tissue."""
    chosen = chosen.copy()
    for _ in range(_ROUNDS):
        level, slope = _level_and_slope(lines[chosen], noise_power)
        keep = _typical(level) & _typical(slope)
        index = np.flatnonzero(chosen)
        chosen[index[~keep]] = False
        if keep.all() or chosen.sum() < _MIN_CELLS:
            break
    return chosen


def _level_and_slope(lines: np.ndarray, noise_power: float) -> tuple[np.ndarray, np.ndarray]:
    """Compare the power of A-lines of agarose with their common profile.

    Returns
    -------
    Ratio of the two, and how it changes along depth, over half the depth.
    """
    planes = np.linspace(-1, 1, lines.shape[1])
    start, logarithm = _chained(lines, noise_power, False)
    stop = start + len(logarithm)
    typical = np.exp(logarithm)
    # Where noise is strong an A-line says little.
    trust = np.square(typical / (typical + noise_power))
    ratio = (np.square(lines[:, start:stop]) - noise_power) / typical
    weight = np.where(np.isfinite(ratio), trust, 0)
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    ratio = np.nan_to_num(ratio)
    level = (ratio * weight).sum(axis=1)
    centre = weight @ planes[start:stop]
    away = weight * (planes[start:stop] - centre[:, None])
    square = (away * planes[start:stop]).sum(axis=1)
    slope = (ratio * away).sum(axis=1) / np.maximum(square, 1e-12)
    return level, slope


def _typical(values: np.ndarray) -> np.ndarray:
    """Say which values lie within a few robust standard deviations of the median."""
    deviation = values - np.median(values)
    return np.asarray(np.abs(deviation) <= _OUTLIER * max(robust_spread(deviation), 1e-9))


def _chained(lines: np.ndarray, noise_power: float, logarithmic: bool) -> tuple[int, np.ndarray]:
    """Return the first plane of a profile, and its logarithm.

    From plane to plane it changes as the mean of those A-lines does that show both; so it does not
    matter that some begin deeper than others.

    Parameters
    ----------
    lines
        Amplitudes (A-lines, planes), NaN above faces; logarithms of power when `logarithmic`.
    """
    known = np.isfinite(lines)
    both = known[:, 1:] & known[:, :-1]
    count = both.sum(axis=0)
    filled = np.where(known, lines, 0)
    before, after = (
        (filled[:, part] * both).sum(axis=0) / np.maximum(count, 1)
        for part in (slice(0, -1), slice(1, None))
    )
    enough = count >= max(_MIN_CELLS // 2, int(_MIN_SEEN * count.max()))
    if not logarithmic:
        before, after = before**2 - noise_power, after**2 - noise_power
        enough &= (before > 0) & (after > 0)
    start = int(enough.argmax())
    steps = slice(start, start + _leading(enough[start:]))
    if steps.start == steps.stop:
        return start, np.zeros(0)
    if not logarithmic:
        before, after = np.log(before[steps]), np.log(after[steps])
    else:
        before, after = before[steps], after[steps]
    return start, before[0] + np.concatenate([[0.0], (after - before).cumsum()])


def _errors(
    lines: np.ndarray,
    tile: np.ndarray,
    start: int,
    log_power: np.ndarray,
    noise_power: float,
    logarithmic: bool,
) -> np.ndarray:
    """Return the standard error of each plane from how much tiles' profiles differ in shape."""
    part = lines[:, start : start + len(log_power)]
    numbers, inverse = np.unique(tile, return_inverse=True)
    known = np.isfinite(part)
    total, count = np.zeros((2, len(numbers), part.shape[1]))
    np.add.at(total, inverse, np.where(known, part, 0))
    np.add.at(count, inverse, known)
    mean = total / np.maximum(count, 1)
    share = count / np.maximum(count.sum(axis=0), 1)
    if logarithmic:
        mean -= log_power
    else:
        mean = (mean**2 - noise_power) / np.exp(log_power)
    level = (mean * count).sum(axis=1, keepdims=True) / count.sum(axis=1, keepdims=True)
    shape = mean - level if logarithmic else mean / np.where(level > 0, level, 1) - 1
    middle = (share * shape).sum(axis=0)
    effective = np.square(share).sum(axis=0)
    spread = (share * np.square(shape - middle)).sum(axis=0) / np.maximum(1 - effective, 1e-6)
    # One tile alone cannot say how it would differ from others.
    lone = effective > 0.99
    return np.where(lone, _LONE_ERROR, np.maximum(np.sqrt(spread * effective), _MIN_ERROR))


def _leading(flags: np.ndarray) -> int:
    """Return how many flags are set before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())
