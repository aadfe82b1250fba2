"""Image similarity of two slices: structural similarity and edges, on NumPy or CuPy.

On the host both are scikit-image's. The device versions follow the same equations: structural
similarity of Wang et al. (IEEE Trans. Image Process. 13, 600, 2004) with uniform windows and
unbiased variances, and the magnitude of Sobel gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.brain.slice_planes import bin_planes
from linumpy.core.device import Array, is_device_array, namespace, ndimage_of, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.geometry.correlated_windows import Windows, correlate_windows
from linumpy.geometry.correlation_peaks import (
    ACCEPT_Z_SCORE,
    Peak,
    correlation_peak,
    find_peaks,
)
from linumpy.geometry.flatten import flatten
from linumpy.geometry.neighbours import shared_windows
from linumpy.quality.displaced_parts import DisplacedPart, displaced_parts
from linumpy.quality.foreign_bodies import (
    MIN_TISSUE_PX,
    TISSUE_LEVEL,
    ForeignBody,
    foreign_bodies,
    foreign_columns,
    lit_below,
    lit_columns,
    widened,
)

SSIM_WINDOW_PX = 7
PATCH_PX = 64
PATCH_REACH_PX = 16
COARSE_FACTOR = 4
_K1, _K2 = 0.01, 0.03
_WHITE_PERCENTILE = 99.9
_MIN_PATCH_SHARE = 0.5
_LEAST_PATCH_SHARE = 0.02
_LEAST_OVERLAP_SHARE = 0.1

_Moves = list[tuple[tuple[slice, ...], tuple[slice, ...]]]


def ssim_map(first: Array, second: Array, data_range: float = 1.0) -> Array:
    """Return the structural similarity around every pixel of two planes.

    Parameters
    ----------
    first, second
        Shape (axis 1, axis 2), NumPy or CuPy.
    data_range
        Distance between black and white.

    Returns
    -------
    float64 of the same shape. Within half a window of the border it rests on mirrored pixels.
    """
    if not is_device_array(first):
        from skimage.metrics import structural_similarity

        return structural_similarity(
            first.astype(np.float64), second.astype(np.float64),
            win_size=SSIM_WINDOW_PX, data_range=data_range, full=True,
        )[1]  # fmt: skip
    xp, ndimage = namespace(first), ndimage_of(first)
    a, b = first.astype(xp.float64), second.astype(xp.float64)

    def mean(values: Array) -> Array:
        return ndimage.uniform_filter(values, SSIM_WINDOW_PX)

    n = SSIM_WINDOW_PX**2
    unbiased = n / (n - 1)
    mean_a, mean_b = mean(a), mean(b)
    var_a = unbiased * (mean(a * a) - mean_a * mean_a)
    var_b = unbiased * (mean(b * b) - mean_b * mean_b)
    both = unbiased * (mean(a * b) - mean_a * mean_b)
    c1, c2 = (_K1 * data_range) ** 2, (_K2 * data_range) ** 2
    return (
        (2 * mean_a * mean_b + c1)
        * (2 * both + c2)
        / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    )


def edge_strength(plane: Array) -> Array:
    """Return the root mean square of a plane's Sobel derivatives, per pixel, float64."""
    if not is_device_array(plane):
        from skimage.filters import sobel

        return sobel(plane.astype(np.float64))
    xp, ndimage = namespace(plane), ndimage_of(plane)
    a = plane.astype(xp.float64)
    # SciPy's filter is four times a mean of differences.
    return xp.hypot(ndimage.sobel(a, 0), ndimage.sobel(a, 1)) / (4 * np.sqrt(2))


def pearson(first: Array, second: Array) -> float:
    """Return the Pearson correlation of two sets of values, NaN where one of them is constant."""
    xp = namespace(first)
    if first.size == 0 or xp.ptp(first) == 0 or xp.ptp(second) == 0:
        return float("nan")
    a, b = (x.astype(float) - x.mean(dtype=float) for x in (first, second))
    return float((a * b).sum() / xp.sqrt((a * a).sum() * (b * b).sum()))


def to_white(planes: Array, foreign: Array | None = None) -> Array:
    """Scale each plane so that 0 stays black and its brightest tissue, not `foreign`, becomes 1."""
    xp = namespace(planes)
    shown = planes if foreign is None else xp.where(foreign, xp.float32(0), planes)
    white = xp.percentile(shown, _WHITE_PERCENTILE, axis=(1, 2), keepdims=True)
    return xp.clip(planes / xp.maximum(white, 1e-12), 0, 1)


def tissue_of(planes: Array) -> Array:
    """Return where planes scaled by `to_white` show more than agarose, boolean."""
    return planes > TISSUE_LEVEL


@dataclass(frozen=True)
class Similarity:
    """How alike planes of two slices are.

    Attributes
    ----------
    ssim, edges
        Mean structural similarity over the tissue, and correlation of edge strengths there, at
        least 0 each.
    foreign
        Bodies within tissue, of what was left out of the comparison, in pixels of the planes that
        show them.
    displaced
        What lies elsewhere than the rest in one of them, in pixels of the first.
    """

    ssim: float
    edges: float
    foreign: tuple[ForeignBody, ...] = ()
    displaced: tuple[DisplacedPart, ...] = ()


def detail_variance(planes: Array, valid: Array | None) -> np.ndarray:
    """Return how strongly the tissue of each plane varies around its local mean.

    Parameters
    ----------
    planes
        Shape (planes, axis 1, axis 2), float32.
    valid
        Mask of the same shape, or None.

    Returns
    -------
    Variance by the median deviation, relative to the squared local mean; NaN without tissue.
    """
    tissue = tissue_of(to_white(planes))
    if valid is not None:
        tissue &= valid > 0
    found = []
    for plane, mask in zip(flatten(planes, valid), tissue, strict=True):
        values = plane[mask].astype("float64")
        if values.size < MIN_TISSUE_PX:
            found.append(np.nan)
            continue
        # The rim of a bubble or a tear is detail far stronger than that of tissue.
        away = abs(values - namespace(values).median(values))
        found.append((MEDIAN_TO_SIGMA * float(namespace(values).median(away))) ** 2)
    return np.array(found)


def compare_planes(
    first: Array,
    second: Array,
    reach_px: int,
    valid: tuple[Array | None, Array | None] = (None, None),
    *,
    deeper: Callable[[], tuple[Array, Array | None]] | None = None,
    must_match: bool = False,
) -> Similarity | None:
    """Compare planes of two slices that show the same tissue, where they match best.

    A stage that is off and a slice that has rotated must not pass for a bad image: planes are
    moved onto each other as a whole, then patch by patch.

    Parameters
    ----------
    first, second
        Same shape (planes, axis 1, axis 2), float32; 0 outside the tissue.
    reach_px
        How far the second may be off.
    valid
        Their masks; None where all is data. Only what both slices imaged is compared.
    deeper
        Reads planes of the second slice below those compared, and their mask; None without any.
    must_match
        Do not compare planes that are nowhere found to match: they may share too little to compare.

    Returns
    -------
    None where neither shows any tissue.
    """
    xp = namespace(first)
    known_a, known_b = (
        xp.ones(first.shape, xp.float32) if v is None else (v > 0).astype(xp.float32) for v in valid
    )
    first, second = first * known_a, second * known_b
    shift = _whole_shift(first, second, reach_px)
    if shift is None:
        if must_match:
            return None
        shift = (0, 0)
    here, there = shared_windows(first.shape[1:], shift)
    first, known_a = (x[(slice(None), *here)] for x in (first, known_a))
    second, known_b = (x[(slice(None), *there)] for x in (second, known_b))
    flat_a, flat_b = flatten(first, known_a), flatten(second, known_b)
    moves, parts = _match_patches(flat_a, flat_b)
    moved, known_b = (_move_patches(x, moves) for x in (second, known_b))
    joint = known_a * known_b
    first, moved = first * joint, moved * joint
    columns = foreign_columns(first, moved, joint)
    lit = lit_columns(first, joint), lit_columns(moved, joint)
    below = None
    if bool((columns > 0).any()):
        seen, known_b = moved, joint
        if deeper is not None:
            planes, mask = (None if x is None else x[(slice(None), *there)] for x in deeper())
            mask = xp.ones_like(planes) if mask is None else (mask > 0).astype(xp.float32)
            planes, mask = (_move_patches(x, moves) for x in (planes * mask, mask))
            seen, known_b = xp.concatenate([moved, planes]), xp.concatenate([joint, mask])
        below = lit_below(seen, known_b)
    away = widened(columns != 0, SSIM_WINDOW_PX // 2)
    a, b = to_white(first, away), to_white(moved, away)
    similarities, edges, weights = [], [], []
    inner = slice(SSIM_WINDOW_PX // 2, -(SSIM_WINDOW_PX // 2))
    for plane_a, plane_b in zip(a, b, strict=True):
        mask = ((tissue_of(plane_a) | tissue_of(plane_b)) & ~away)[inner, inner]
        count = int(mask.sum())
        if count < MIN_TISSUE_PX:
            continue
        similarity = ssim_map(plane_a, plane_b)[inner, inner][mask]
        similarities.append(max(0.0, float(similarity.mean())))
        strengths = (edge_strength(p)[inner, inner][mask] for p in (plane_a, plane_b))
        correlation = pearson(*strengths)
        edges.append(correlation if correlation > 0 else 0.0)
        weights.append(count)
    if not weights:
        return None

    def at(centre_px: tuple[float, float], windows: Sequence[slice]) -> tuple[float, float]:
        y, x = (px + window.start for px, window in zip(centre_px, windows, strict=True))
        return y, x

    return Similarity(
        float(np.average(similarities, weights=weights)),
        float(np.average(edges, weights=weights)),
        tuple(
            replace(body, centre_px=at(body.centre_px, here if body.in_first else there))
            for body in foreign_bodies(columns, lit, below)
        ),
        tuple(replace(part, centre_px=at(part.centre_px, here)) for part in parts),
    )


def _whole_shift(first: Array, second: Array, reach_px: int) -> tuple[int, int] | None:
    """Find where the second lies on the first as a whole; None when it is not clear."""
    peak = match_peak(first, second, reach_px)
    if peak is None or peak.z_score < ACCEPT_Z_SCORE:
        return None
    row, column = (round(COARSE_FACTOR * d) for d in peak.displacement_px)
    return (row, column)


def match_peak(first: Array, second: Array, reach_px: int) -> Peak | None:
    """Return the best match of planes as a whole, in pixels `COARSE_FACTOR` times as large.

    Coarse pixels forgive a rotation by some degrees, and patches find what is left.

    Parameters
    ----------
    first, second
        Same shape (planes, axis 1, axis 2).
    reach_px
        How far the second may be off.
    """
    a, b = (bin_planes(x, COARSE_FACTOR) for x in (first, second))
    reach = -(-reach_px // COARSE_FACTOR)
    return correlation_peak(
        flatten(a), flatten(b), (0, 0), (reach, reach), min_overlap_share=_LEAST_OVERLAP_SHARE
    )


def _match_patches(fixed: Array, moving: Array) -> tuple[_Moves, tuple[DisplacedPart, ...]]:
    """Find where patches of the flattened `moving` fit the flattened `fixed` best.

    Returns
    -------
    Each patch, and where it lies in arrays that are wider by `PATCH_REACH_PX` on all sides; and the
    parts that fit elsewhere than the others.
    """
    reach = PATCH_REACH_PX
    rows, columns = (_patches(n) for n in fixed.shape[1:])
    windows = [(slice(None), r, c) for r in rows for c in columns]
    low = np.array([[w.start for w in window[1:]] for window in windows])
    side = np.array([[w.stop - w.start for w in window[1:]] for window in windows])
    pairs = Windows(low, side, low, side + 2 * reach, np.full_like(low, -reach))
    surfaces = correlate_windows(
        fixed, _widen(moving), pairs, (reach, reach), min_overlap_share=_LEAST_PATCH_SHARE
    )
    peaks = find_peaks(*surfaces)
    where = replace(peaks, displacement_px=-peaks.displacement_px)
    parts = displaced_parts(low, side, len(columns), where)
    moves = []
    for window, values, weight in zip(windows, *map(to_host, surfaces), strict=True):
        # Of what can overlap most of it must: a patch may hold little tissue.
        enough = np.isfinite(values) & (weight.astype(np.float64) ** 2 >= _MIN_PATCH_SHARE)
        values = np.where(enough, values, -1.0)
        best = np.unravel_index(int(values.argmax()), values.shape)
        if not enough.any():
            best = (np.intp(reach), np.intp(reach))
        # The first displacement sampled is that of the far border.
        moves.append((window, _moved(window, tuple(2 * reach - int(k) for k in best), 0)))
    return moves, parts


def _move_patches(planes: Array, moves: _Moves) -> Array:
    """Move the patches of planes to where `_match_patches` found them."""
    padded = _widen(planes)
    out = namespace(planes).empty_like(planes)
    for window, source in moves:
        out[window] = padded[source]
    return out


def _widen(planes: Array) -> Array:
    reach = PATCH_REACH_PX
    return namespace(planes).pad(planes, ((0, 0), (reach, reach), (reach, reach)))


def _moved(window: tuple[slice, ...], by: tuple[int, ...], wider: int) -> tuple[slice, ...]:
    lateral = (slice(w.start + d, w.stop + d + wider) for w, d in zip(window[1:], by, strict=True))
    return (slice(None), *lateral)


def _patches(length: int) -> list[slice]:
    """Cut a length into pieces of about the patch's side."""
    ends = np.linspace(0, length, max(1, round(length / PATCH_PX)) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in zip(ends, ends[1:], strict=False)]
