"""Normalise a slice: agarose to 0, tissue mostly between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from linumpy.core.device import Array, is_device_array, to_host
from linumpy.geometry.banded import row_blocks
from linumpy.geometry.smoothing import smooth_map
from linumpy.intensity.quantiles import clip_outer, histogram_quantile, otsu_threshold
from linumpy.intensity.tissue import TISSUE_CONTRAST, two_media

_SCALE_QUANTILE = 0.5
"""The median over planes: noise that a large gain raised in the deep ones does not move it."""

_LEAST_SHOWN = 0.25
"""Share of the upper planes that show tissue where a slice is measured on them."""


@dataclass(frozen=True)
class AgaroseMask:
    """Which columns of a slice are agarose: smoothed depth mean between 0 and a threshold.

    Attributes
    ----------
    threshold
        Otsu threshold of the smoothed depth mean; 0 where nothing is agarose.
    agarose_fraction
        Share of the columns with data that are agarose.
    mask
        Boolean over axis 1 and axis 2.
    """

    threshold: float
    agarose_fraction: float
    mask: np.ndarray


@dataclass(frozen=True)
class Normalization:
    """What turns an amplitude a into (min(max(a, floor), cap) − floor) / scale.

    Attributes
    ----------
    floor, cap
        Of each plane: median of the agarose, and the upper percentile of all.
    scale
        One number for the slice: what the values above the floor are divided by. It is measured on
        planes that show tissue; above a dome the first ones do not.
    tissue
        Median amplitude of the columns that are not agarose, of each plane that no later slice
        shows better; 0 where no more than half of these columns have data. Empty in models of
        earlier versions.
    """

    slice_id: int
    floor: list[float]
    cap: list[float]
    scale: float
    agarose_fraction: float
    tissue: list[float] = field(default_factory=list)


def depth_mean(volume: Array, valid: Array | None) -> Array:
    """Return the mean over depth of the valid voxels; NaN in columns without any."""
    if is_device_array(volume):
        from linumpy.geometry.kernels import mean_along_depth

        return mean_along_depth(volume, valid)
    if valid is None:
        return volume.mean(axis=0, dtype=np.float32)
    total = np.zeros(volume.shape[1:], np.float32)
    count = np.zeros(volume.shape[1:], np.int32)
    for rows in row_blocks(volume.shape[1], volume.itemsize * volume.shape[2]):
        for plane, mask in zip(volume[:, rows], valid[:, rows], strict=True):
            known = mask > 0
            total[rows] += plane if known.all() else plane * known
            count[rows] += known
    mean = total / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan).astype(np.float32)


def find_agarose(mean_map: np.ndarray, sigma_px: float) -> AgaroseMask:
    """Separate agarose from tissue by Otsu's threshold of the logarithm of the smoothed depth mean.

    Where the two classes differ by no more than grey and white matter do, all is one medium:
    nothing is agarose, and the floor of the slice is 0.

    Parameters
    ----------
    mean_map
        `depth_mean` of the whole slice, on the host.
    sigma_px
        Gaussian smoothing.
    """
    data = np.isfinite(mean_map) & (mean_map > 0)
    # Smoothing would spread what a single absurd voxel does to its column.
    mean_map = clip_outer(np.where(data, mean_map, np.nan))
    smooth = smooth_map(np.where(data, mean_map, 0), sigma_px)
    share = smooth_map(data.astype(np.float32), sigma_px)
    smooth = np.where(data, smooth / np.maximum(share, 1e-6), 0)
    if not data.any():
        return AgaroseMask(0.0, 0.0, data)
    # On the logarithm agarose and tissue differ more than grey and white matter.
    threshold = float(np.exp(otsu_threshold(np.log(np.maximum(smooth[data], 1e-12)))))
    mask = data & (smooth < threshold)
    if not two_media(smooth[mask], smooth[data & ~mask]):
        return AgaroseMask(0.0, 0.0, np.zeros_like(data))
    return AgaroseMask(threshold, float(mask.sum() / data.sum()), mask)


def solve_normalization(
    slice_id: int,
    all_counts: Array,
    agarose_counts: Array,
    agarose_fraction: float,
    percentile_max: float,
    n_upper: int | None = None,
) -> Normalization:
    """Choose floor, cap and scale from histograms of all voxels and of the agarose.

    Parameters
    ----------
    all_counts, agarose_counts
        Shape (planes, bins), from `intensity.quantiles.float_histogram`.
    percentile_max
        Percentile (0–100) of each plane that values are capped at.
    n_upper
        Planes from the top that scale and tissue are measured on; None for all.
    """
    cap = _known_everywhere(histogram_quantile(all_counts, percentile_max / 100))
    floor = np.minimum(_known_everywhere(histogram_quantile(agarose_counts, 0.5)), cap)
    span = cap - floor
    tissue = _tissue_medians(all_counts[:n_upper] - agarose_counts[:n_upper])
    shown = np.flatnonzero(tissue > TISSUE_CONTRAST * floor[:n_upper])
    # Haze in one plane is no tissue.
    if n_upper is not None and len(shown) < _LEAST_SHOWN * len(tissue):
        below = _tissue_medians(all_counts - agarose_counts)
        shown = np.flatnonzero(below > TISSUE_CONTRAST * floor)[:n_upper]
    scale = float(np.quantile(span[shown] if len(shown) else span[:n_upper], _SCALE_QUANTILE))
    if scale <= 0:
        scale = float(span.max())
    return Normalization(
        slice_id,
        floor.astype(np.float32).tolist(),
        cap.astype(np.float32).tolist(),
        scale if scale > 0 else 1.0,
        agarose_fraction,
        tissue.astype(np.float32).tolist(),
    )


def _tissue_medians(counts: Array) -> np.ndarray:
    """Return the median of each plane of tissue columns; 0 where half of them have no data."""
    host = to_host(counts)
    number = host.sum(axis=1)
    return np.where(2 * number > number.max(initial=0), histogram_quantile(host, 0.5), 0)


def _known_everywhere(values: np.ndarray) -> np.ndarray:
    """Give planes that show nothing what their nearest neighbours have; 0 where none shows any.

    Above a tilted face few A-lines are tissue yet, and none of them may be agarose.
    """
    known = np.flatnonzero(np.isfinite(values))
    if known.size == 0:
        return np.zeros(len(values))
    return np.interp(np.arange(len(values)), known, values[known])


def normalize_intensities_per_slice(
    volume: Array, valid: Array | None, model: Normalization
) -> Array:
    """Clip each plane to its floor and cap, take the floor off, divide by the slice's scale.

    Parameters
    ----------
    volume
        Slice or part of one (z, axis 1, axis 2), float32, NumPy or CuPy.
    valid
        Its mask, or None; outside it the answer is 0.
    model
        From `solve_normalization`.
    """
    floor, cap = np.asarray(model.floor, np.float32), np.asarray(model.cap, np.float32)
    scale = np.float32(model.scale)
    if is_device_array(volume):
        from linumpy.geometry.kernels import scaled_planes

        return scaled_planes(volume, valid, floor, cap, scale)
    out = np.empty(volume.shape, np.float32)
    for plane in range(len(volume)):
        for rows in row_blocks(volume.shape[1], 4 * volume.shape[2]):
            target = out[plane, rows]
            np.clip(volume[plane, rows], floor[plane], cap[plane], out=target)
            target -= floor[plane]
            target /= scale
            if valid is not None:
                known = valid[plane, rows] > 0
                if not known.all():
                    target *= known
    return out
