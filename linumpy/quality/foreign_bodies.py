"""Find bubbles, debris and tears by comparing planes of two slices that show the same tissue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace, ndimage_of, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.intensity.tissue import TISSUE_RANGE

TISSUE_LEVEL = 0.1
"""Brightness over that of the brightest tissue, above which a column is no agarose."""
MIN_TISSUE_PX = 256
_LOCAL_PX = 5
"""Speckle of 5 × 5 pixels of three planes averages out to a tenth."""
_LEAST_PX = 2
_LEAST_BODY_PX = _LOCAL_PX**2
"""Fewer columns than are averaged are seen where tissue ends a pixel earlier."""
_MIDDLE = 75
_OUTLIER = 4.0
_LEAST_AROUND = 0.75
"""Share of what lies around a body that is lit: where tissue ends it is dark on one side."""
_LEAST_TEAR_PX = 4 * _LEAST_BODY_PX
"""The slice above alone tells a tear that ends: a vessel a pixel aside is dark there, too."""
_LEAST_TOP = 2
"""Planes from the top in which a tear is dark: one may be that of a rough cut."""
_MOST_FOREIGN = 0.25
"""Of the tissue. Half is where medians break down; half of that leaves them room."""


@dataclass(frozen=True)
class ForeignBody:
    """A connected region that shows a bubble, debris or a tear in one of two slices.

    Attributes
    ----------
    in_first
        Whether the first of the two slices is the darker one there, for most of its columns.
    n_px
        Columns of the region.
    centre_px
        Their mean position along axis 1 and axis 2; the middle of the first pixel is 0.
    lit_below
        Whether the second slice is dark from its top down to a depth, and shows tissue below: a
        tear that ends there. Anatomy that ends shows nothing below; a cavity is dark in both
        slices, as they are compared at the same depths.
    """

    in_first: bool
    n_px: int
    centre_px: tuple[float, float]
    lit_below: bool = False


def foreign_columns(first: Array, second: Array, known: Array) -> Array:
    """Return which columns show a bubble, debris or a tear in one of two slices.

    In most planes these are brighter or darker than the same tissue in the other slice by more than
    grey and white matter differ, and by more than most of the tissue; or the second slice is darker
    in its upper planes. Where much of the tissue is so, the slice itself is bad, and nothing is
    found.

    Parameters
    ----------
    first, second
        Amplitudes of aligned planes, (planes, axis 1, axis 2); 0 outside `known`.
    known
        Where both have data.

    Returns
    -------
    int8 over axis 1 and axis 2: -1 where the first is darker in more planes than brighter, 1 where
    the second is, 0 elsewhere. Light is lost below a bubble or debris, and in the water of a tear.
    """
    xp, ndimage = namespace(first), ndimage_of(first)
    smooth = [ndimage.uniform_filter(planes, (0, *(_LOCAL_PX,) * 2)) for planes in (first, second)]
    level = [xp.percentile(planes, _MIDDLE, axis=(1, 2)) for planes in smooth]
    far = xp.zeros(first.shape[1:], xp.int32)
    odd = xp.zeros_like(far)
    brighter = xp.zeros_like(far)
    n_top = xp.zeros_like(far)
    tissue = xp.zeros(first.shape[1:], bool)
    dark = xp.ones(first.shape[1:], bool)
    for a, b, low_a, low_b, data in zip(*smooth, *level, known, strict=True):
        floors = [TISSUE_LEVEL * low for low in (low_a, low_b)]
        shown = ((a > floors[0]) | (b > floors[1])) & (data > 0)
        if min(float(low) for low in floors) <= 0 or int(shown.sum()) < MIN_TISSUE_PX:
            continue
        ratio = xp.log(xp.maximum(a, floors[0]) / xp.maximum(b, floors[1]))
        ratio -= xp.median(ratio[shown])
        spread = MEDIAN_TO_SIGMA * float(xp.median(abs(ratio[shown])))
        beyond = shown & (abs(ratio) > float(np.log(TISSUE_RANGE)))
        far += beyond
        outlier = beyond & (abs(ratio) > _OUTLIER * spread)
        odd += outlier
        brighter += outlier * xp.sign(ratio).astype(xp.int32)
        dark &= outlier & (ratio > 0)
        n_top += dark
        tissue |= shown
    # The mirror of a bubble is bright and its column dark, with a plane between that is neither.
    wide = xp.ones((_LOCAL_PX, _LOCAL_PX))
    found = (2 * odd > len(first)) | ndimage.binary_opening(n_top >= _LEAST_TOP, wide)
    found = ndimage.binary_opening(found, xp.ones((_LEAST_PX, _LEAST_PX), bool))
    # Where nearly half is off, the spread hides a part of it.
    most = _MOST_FOREIGN * float(tissue.sum())
    if not found.any() or float((2 * far > len(first)).sum()) > most:
        return xp.zeros(found.shape, xp.int8)
    return xp.where(found, xp.where(brighter < 0, -1, 1), 0).astype(xp.int8)


def widened(columns: Array, by_px: int) -> Array:
    """Widen a mask of columns by what smoothing mixes with tissue, and by so many pixels more."""
    xp, ndimage = namespace(columns), ndimage_of(columns)
    margin = _LOCAL_PX // 2 + by_px
    return ndimage.binary_dilation(columns, xp.ones((2 * margin + 1,) * 2, bool))


def lit_columns(planes: Array, known: Array) -> Array:
    """Return where a slice shows more than agarose; False outside what is known in most planes."""
    xp, ndimage = namespace(planes), ndimage_of(planes)
    mean = ndimage.uniform_filter(planes.mean(axis=0), _LOCAL_PX)
    seen = 2 * (known > 0).sum(axis=0) > len(planes)
    return seen & (mean > TISSUE_LEVEL * xp.percentile(mean, _MIDDLE))


def lit_below(planes: Array, known: Array) -> Array:
    """Return where a slice is dark from its top on, but not all the way down.

    Bright is what is no darker than most of a plane's tissue by more than grey and white matter
    differ. Below a bubble or debris all planes are dark. Planes that are dark throughout say
    nothing.

    Parameters
    ----------
    planes, known
        As in `foreign_columns`, with planes below those that both slices show.
    """
    xp, ndimage = namespace(planes), ndimage_of(planes)
    smooth = ndimage.uniform_filter(planes, (0, *(_LOCAL_PX,) * 2))
    level = xp.percentile(smooth, _MIDDLE, axis=(1, 2), keepdims=True)
    bright = (smooth * np.float32(TISSUE_RANGE) > level) & (known > 0)
    bright &= level > TISSUE_LEVEL * level.max()
    return bright[_LEAST_TOP:].any(axis=0) & ~bright[:_LEAST_TOP].any(axis=0)


def foreign_bodies(
    columns: Array, lit: Sequence[Array], below: Array | None = None
) -> tuple[ForeignBody, ...]:
    """Return the connected regions of what `foreign_columns` found, largest first.

    Left out are those of less than 0.0025 mm² at 10 µm, and those where the tissue of the darker
    slice ends: its border lies elsewhere in the other, or deep tissue shows what is no more there.

    Parameters
    ----------
    lit
        `lit_columns` of the first and of the second slice.
    below
        `lit_below` of the second slice.
    """
    from scipy import ndimage

    found = to_host(columns)
    goes_on = np.zeros(found.shape, bool) if below is None else to_host(below)
    first_lit, second_lit = (to_host(part) for part in lit)
    labels, _ = ndimage.label(found, np.ones((3, 3)))
    # Of few columns: SciPy's sums of labels go through the whole plane each.
    at = np.nonzero(labels)
    sizes, signs, n_below, *centres = (
        np.bincount(labels[at], weights)[1:] for weights in (None, found[at], goes_on[at], *at)
    )
    boxes = ndimage.find_objects(labels)
    margin = _LOCAL_PX // 2
    bodies = []
    each = zip(sizes, signs, n_below, *centres, strict=True)
    for n, (size, sign, ends, y, x) in enumerate(each):
        if size < _LEAST_BODY_PX:
            continue
        near = tuple(slice(max(0, b.start - _LOCAL_PX), b.stop + _LOCAL_PX) for b in boxes[n])
        near_body, wide = (
            ndimage.binary_dilation(labels[near] == n + 1, np.ones((3, 3)), px)
            for px in (margin, _LOCAL_PX)
        )
        around = (first_lit if sign < 0 else second_lit)[near][wide & ~near_body]
        if around.size and around.mean() >= _LEAST_AROUND:
            centre_px = float(y / size), float(x / size)
            ends_above = bool(sign > 0 and 2 * ends > size >= _LEAST_TEAR_PX)
            bodies.append(ForeignBody(bool(sign < 0), int(size), centre_px, ends_above))
    return tuple(sorted(bodies, key=lambda body: -body.n_px))
