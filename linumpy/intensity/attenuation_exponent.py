"""Estimate Klett's exponent, attenuation against backscatter, from the slice itself.

Klett's inversion (Appl. Opt. 20, 211, 1981) takes µ to go with the k-th power of what is scattered
back. A column's slope gives its µ without that assumption, and its brightness gives b. Columns of
about one brightness are taken together, so that the anatomy of single ones cancels: over many of
them as many brighten downwards as darken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.intensity.attenuation_tissue import line_slope

PRIOR_EXPONENT = 0.83
PRIOR_ERROR = 0.17
"""Klett (1981): exponents that are reported lie between 0.67 and 1."""

_CLASSES = 6
_DARK_CLASSES = 2
_GROUPS = 4
_MIN_PLANES = 12
_MIN_COLUMNS = 240


@dataclass(frozen=True)
class Exponent:
    """Klett's k, its standard error, and the slice's own estimate, None where it has none.

    `seen_error` is the standard error of that estimate.
    """

    k: float
    error: float
    seen: float | None = None
    seen_error: float = 0.0


_PRIOR = Exponent(PRIOR_EXPONENT, PRIOR_ERROR)


def find_exponent(power: Array, usable: Array, optical_depth: Array, axial_mm: float) -> Exponent:
    """Return the exponent of a slice.

    Parameters
    ----------
    power
        Power without noise, float32 (z, bins, bins), NumPy or CuPy.
    usable
        Boolean of the same shape: tissue well above noise.
    optical_depth
        ∫µ down to each voxel, from an estimate with the prior's exponent. Classes of columns are
        chosen by it; their slopes do not depend on it.
    axial_mm
        Voxel along depth.

    Returns
    -------
    k of the data, drawn towards the prior by the errors of both; the prior where there are too few
    columns.
    """
    xp = namespace(power)
    slope, count = line_slope(power, usable, axial_mm)
    corrected = xp.log(xp.maximum(power, np.float32(1e-30))) + 2 * optical_depth
    used = usable & (power > 0)
    level = xp.where(used, corrected, 0).sum(axis=0) / xp.maximum(count, 1)
    columns = np.stack([to_host(part).ravel() for part in (level, slope, count)])
    columns = columns[:2, columns[2] >= _MIN_PLANES].astype(float)
    if columns.shape[1] < _MIN_COLUMNS:
        return _PRIOR
    found = _regress(*columns)
    # Neighbours are alike: whole bands of the slice are left out in turn.
    bands = np.arange(columns.shape[1]) * _GROUPS // columns.shape[1]
    without = np.array([_regress(*columns[:, bands != n]) for n in range(_GROUPS)])
    if not np.isfinite([found, *without]).all():
        return _PRIOR
    variance = (_GROUPS - 1) / _GROUPS * float(((without - without.mean()) ** 2).sum())
    trust = PRIOR_ERROR**2 / (PRIOR_ERROR**2 + variance)
    # Data get no more weight than the prior: anatomy, too, darkens the dark columns.
    trust = min(trust, 0.5)
    k = trust * found + (1 - trust) * PRIOR_EXPONENT
    # Where both contradict each other beyond their errors, one of them is wrong, and none tells
    # which (between-group variance: DerSimonian and Laird, Control. Clin. Trials 7, 177, 1986).
    # An estimate far out says no more than one beyond all reports, and powers must stay finite.
    apart = float(np.clip(found, -1, 2)) - PRIOR_EXPONENT
    between = max(0.0, apart**2 - PRIOR_ERROR**2 - variance)
    error = np.sqrt((1 - trust) * (PRIOR_ERROR**2 + trust * between))
    return Exponent(float(np.clip(k, 0.3, 1.3)), float(error), found, float(np.sqrt(variance)))


def _regress(level: np.ndarray, slope: np.ndarray) -> float:
    """Return the slope of ln µ over ln b of classes of columns; NaN where it cannot be estimated.

    The two darkest classes are left out: their columns are partly agarose. The line is that of
    Theil and Sen.
    """
    edges = np.quantile(level, np.linspace(0, 1, _CLASSES + 1))
    number = np.clip(np.searchsorted(edges, level, side="right") - 1, 0, _CLASSES - 1)
    middle = [
        (np.median(level[number == n]), np.median(slope[number == n]))
        for n in range(_DARK_CLASSES, _CLASSES)
        if (number == n).any()
    ]
    x, y = np.array(middle).T
    if len(x) < 3 or not (y > 0).all() or np.ptp(x) < 0.1:
        return float("nan")
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] - x[first] > 0
    steps = np.log(y[second] / y[first])[apart] / (x[second] - x[first])[apart]
    return float(np.median(steps))
