"""Compensate attenuation: the light that the tissue above a voxel took.

Estimated on the slice averaged over small lateral bins, where speckle is weak and all of it fits in
memory; applied to every voxel by a gain that is interpolated between the bins.

Power P = |A|² falls as exp(−2∫µ), so amplitudes are squared first and get the root of the
correction. An estimate from amplitudes as they are would answer µ / 2. With an axial response that
was corrected before (`intensity.compensate_psf`), ``klett`` at strength 1 leaves tissue flat: that
is the default. ``vermeer`` answers far too much near the lower end, which wants a strength of about
0.3.

µ depends on the model: each value carries its error, and each bin the weight that its voxels
deserve when slices are blended.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linumpy.core.device import Array, is_device_array, like, namespace, to_host
from linumpy.geometry.banded import row_blocks
from linumpy.geometry.resample import apply_axis_weights
from linumpy.intensity.attenuation_exponent import PRIOR_ERROR, PRIOR_EXPONENT
from linumpy.intensity.attenuation_mu import estimate_mu, log_moments
from linumpy.intensity.attenuation_tissue import find_tissue
from linumpy.intensity.compensate_attenuation_methods import (
    box_sums,
    cut_at_noise,
    median_by_plane,
)
from linumpy.intensity.quality_map import encode_weights
from linumpy.stage_params.intensity import AttenuationParams

_BIN_UM = 40.0
_REGION_UM = 120.0
"""Slopes are averaged over no more: cortical layers and fibre bundles are a few hundred µm wide."""
_SMITH_SIGMA_PX = 3.0
_MAX_SNR = 1e6
_TINY = np.float32(1e-30)
_SPECKLE = (4 / np.pi - 1) / 16
"""Relative variance of a bin's mean amplitude by speckle: that of a Rayleigh distribution
(Goodman, Speckle Phenomena in Optics, 2007), over the grains of about 10 µm that 40 µm hold."""
_NOISE_PLANES = 5


@dataclass(frozen=True)
class Attenuation:
    """What a slice attenuates.

    Attributes
    ----------
    voxel_um
        Of the slice.
    bin_px
        Pixels a side of the lateral bins.
    mu_per_mm
        float16 (z, bins along axis 1, bins along axis 2), 1/mm; 0 above the face and where nothing
        was imaged.
    tissue_depth_px
        uint16 over the bins: how many voxels of each A-line are tissue.
    mu_by_plane
        Median over the tissue of each plane; 0 where there is none.
    tissue_mu_per_mm, tissue_fraction
        Median over all tissue, and its share of the valid voxels.
    exponent, exponent_error
        Klett's k, found from the slice, with its standard error; 1 and 0 of other methods.
    exponent_seen, exponent_seen_error
        The slice's own estimate of the exponent, None where it has none; and its standard error.
    capped_fraction
        Share of the tissue within one slicing interval of the face whose loss cannot be made up
        for: it is beyond `min_bias`, or the signal lies below the noise.
    mu_error_per_mm
        float16, standard error of each value of `mu_per_mm`.
    snr_db
        float16, signal to noise of each bin before correction, power; at most 60.
    quality
        uint16, weight of each bin when slices are blended, coded by `intensity.quality_map`.
    """

    slice_id: int
    method: str
    strength: float
    min_bias: float
    voxel_um: tuple[float, float, float]
    bin_px: int
    mu_per_mm: np.ndarray
    tissue_depth_px: np.ndarray
    mu_by_plane: list[float]
    tissue_mu_per_mm: float
    tissue_fraction: float
    exponent: float = 1.0
    exponent_error: float = 0.0
    exponent_seen: float | None = None
    exponent_seen_error: float = 0.0
    capped_fraction: float = 0.0
    mu_error_per_mm: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float16))
    snr_db: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float16))
    quality: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint16))

    @property
    def exponent_departure(self) -> float | None:
        """How far `exponent_seen` lies from reported exponents, in standard errors."""
        if self.exponent_seen is None:
            return None
        apart = abs(self.exponent_seen - PRIOR_EXPONENT)
        return apart / float(np.hypot(PRIOR_ERROR, self.exponent_seen_error))


def bin_size(voxel_um: float) -> int:
    """Return the power of two of pixels that is nearest to `_BIN_UM`, at most 64."""
    return int(2 ** np.clip(np.rint(np.log2(_BIN_UM / voxel_um)), 0, 6))


def bin_power(array: Array, valid: Array | None, size: int) -> tuple[Array, Array]:
    """Sum the squares of a block, and its valid voxels, over lateral bins.

    Parameters
    ----------
    array
        Block (z, axis 1, axis 2), float32, 0 where invalid, NumPy or CuPy.
    valid
        Its mask, or None.
    size
        Pixels of a bin; bins at the far sides may be cut.

    Returns
    -------
    Sums (float32) and counts (uint16), each (z, bins along axis 1, bins along axis 2).
    """
    if is_device_array(array):
        return bin_power_at_once(array, valid, size)
    n_planes, n_rows, n_columns = array.shape
    shape = (n_planes, -(-n_rows // size), -(-n_columns // size))
    total, count = np.empty(shape, np.float32), np.empty(shape, np.uint16)
    ones = _bin_sums(np.ones((1, n_rows, n_columns), np.uint16), size)
    for planes in row_blocks(n_planes, 4 * n_rows * n_columns):
        part = array[planes]
        total[planes] = _bin_sums(part * part, size)
        known = None if valid is None else valid[planes]
        if known is None or known.all():
            count[planes] = ones
        else:
            count[planes] = _bin_sums((known > 0).astype(np.uint16), size)
    return total, count


def bin_power_at_once(array: Array, valid: Array | None, size: int) -> tuple[Array, Array]:
    """Do what `bin_power` does in few steps over all of the block, which is what a GPU is fast at.

    Sums have another order than those of `bin_power`.
    """
    xp = namespace(array)
    known = xp.ones((1, *array.shape[1:]), bool) if valid is None else valid > 0
    count = _bin_at_once(known, size, np.uint16)
    if len(count) < len(array):
        count = xp.ascontiguousarray(xp.broadcast_to(count, (len(array), *count.shape[1:])))
    return _bin_at_once(array * array, size, np.float32), count


def _bin_at_once(values: Array, size: int, dtype: type) -> Array:
    """Sum over bins as over axes of their own; those that are cut are filled up with zeros."""
    xp = namespace(values)
    n, *sides = values.shape
    bins = [-(-side // size) for side in sides]
    whole = tuple(number * size for number in bins)
    if whole != tuple(sides):
        filled = xp.zeros((n, *whole), values.dtype)
        filled[:, : sides[0], : sides[1]] = values
        values = filled
    return values.reshape(n, bins[0], size, bins[1], size).sum(axis=(2, 4), dtype=dtype)


def _bin_sums(values: np.ndarray, size: int) -> np.ndarray:
    """Sum neighbours along the last two axes, by slices that lie far apart."""
    for axis in (1, 2):
        n = values.shape[axis]
        cut = [slice(None)] * 3
        cut[axis] = slice(0, None, size)
        out = np.array(values[tuple(cut)])
        for first in range(1, min(size, n)):
            cut[axis] = slice(first, None, size)
            part = values[tuple(cut)]
            cut[axis] = slice(0, part.shape[axis])
            out[tuple(cut)] += part
        values = out
    return values


def estimate_attenuation(
    total: Array,
    count: Array,
    params: AttenuationParams,
    *,
    slice_id: int,
    voxel_um: tuple[float, float, float],
    bin_px: int,
    noise_amplitude: Sequence[float] | np.ndarray | None = None,
    response_errors: np.ndarray | None = None,
    agarose_mu_per_mm: float = 0.0,
    interval_um: float | None = None,
) -> Attenuation:
    """Estimate µ, and the correctable attenuation, from the binned power of a slice.

    Parameters
    ----------
    total, count
        `bin_power` of all of the slice, NumPy or CuPy.
    noise_amplitude
        Mean amplitude of the noise in each plane, where it is known.
    response_errors
        (errors, planes): independent standard errors of ln of the axial response that `total` was
        corrected by.
    agarose_mu_per_mm
        µ of what is not tissue.
    interval_um
        Depth below the face over which the share of capped voxels is counted; None for all.
    """
    xp = namespace(total)
    axial_mm = voxel_um[0] / 1000
    width = 2 * ((2 * params.radius_px + 1) // (2 * bin_px)) + 1
    number = count.astype(np.float32)
    weight = box_sums(number, width)
    known = weight >= 0.5
    power = box_sums(total, width) / xp.maximum(weight, 1)
    own = 2 * number >= bin_px**2
    # Below a bin's first voxel; a neighbour's face may lie higher.
    imaged = known & (xp.cumsum(own, axis=0, dtype=np.int32) > 0)
    found_tissue = find_tissue(
        total,
        number,
        params.mask_sigma_px / bin_px,
        _noise_power(power, imaged, noise_amplitude, ""),
        axial_mm,
        agarose_mu_per_mm=agarose_mu_per_mm,
        snr_threshold_db=params.snr_threshold_db,
    )
    tissue = imaged & found_tissue.mask
    noise = like(_noise_power(power, imaged & ~tissue, noise_amplitude, params.method), power)
    power = xp.maximum(power - noise[:, None, None], np.float32(0))
    snr = xp.where(
        tissue,
        xp.minimum(
            power / xp.maximum(noise[:, None, None], power / np.float32(_MAX_SNR) + _TINY),
            np.float32(_MAX_SNR),
        ),
        np.float32(_MAX_SNR),
    )
    usable = tissue
    if params.method in ("klett", "li"):
        usable = cut_at_noise(power, tissue, noise, params.snr_threshold_db)
        # Where optical depth is known it is that of all tissue.
        usable = xp.where(found_tissue.optical_depth > 0, tissue, usable)
    region = 2 * round(_REGION_UM / (2 * bin_px * voxel_um[1])) + 1
    mean, unlike = log_moments(total, number, noise, power, usable, width)
    power = power * xp.exp(mean)
    errors = np.zeros((0, len(power)), np.float32) if response_errors is None else response_errors
    smith_sigma = _SMITH_SIGMA_PX / bin_px
    found = estimate_mu(
        power, usable, unlike, found_tissue, params, axial_mm, region, width, smith_sigma, errors
    )
    # Where tissue drowns in noise it gets the value above it.
    deep = tissue & ~usable
    mu = xp.where(deep, found.mu_end[None], found.mu)
    mu = xp.where(imaged & ~tissue, np.float32(agarose_mu_per_mm), mu)
    model_error = xp.where(deep, found.mu_end[None], found.model_error)
    own_error, law_error = (
        xp.where(deep, np.float32(0), error) for error in (found.own_error, found.law_error)
    )
    medians = median_by_plane(mu, tissue)
    n_tissue = int(tissue.sum())
    capped, quality = _quality(mu, model_error, own_error, snr, imaged, params, axial_mm)
    depth = xp.cumsum(imaged, axis=0, dtype=np.int32) * np.float32(voxel_um[0])
    shown = tissue & (depth <= (interval_um or np.inf))
    return Attenuation(
        slice_id=slice_id,
        method=params.method,
        strength=params.strength,
        min_bias=params.min_bias,
        voxel_um=voxel_um,
        bin_px=bin_px,
        mu_per_mm=mu.astype(np.float16),
        tissue_depth_px=to_host(tissue.sum(axis=0)).astype(np.uint16),
        mu_by_plane=medians,
        tissue_mu_per_mm=float(xp.median(mu[tissue])) if n_tissue else 0.0,
        tissue_fraction=n_tissue / max(int(imaged.sum()), 1),
        exponent=found.exponent.k,
        exponent_error=found.exponent.error,
        exponent_seen=found.exponent.seen,
        exponent_seen_error=found.exponent.seen_error,
        capped_fraction=float((shown & capped).sum()) / max(int(shown.sum()), 1),
        mu_error_per_mm=xp.sqrt(model_error**2 + law_error**2 + own_error**2).astype(np.float16),
        snr_db=(xp.log10(xp.maximum(snr, np.float32(1e-3))) * np.float32(10)).astype(np.float16),
        quality=quality,
    )


def _quality(
    mu: Array,
    model_error: Array,
    own_error: Array,
    snr: Array,
    imaged: Array,
    params: AttenuationParams,
    axial_mm: float,
) -> tuple[Array, Any]:
    """Return which voxels cannot be corrected, and the coded weight of each.

    The weight of a corrected amplitude is its inverse relative variance. A bin's mean has what
    speckle leaves, and the error of its gain: that of the optical depth. Of the tissue's contrast
    it shows the share S / (S + N), with the power S of the signal and N of the noise.
    """
    xp = namespace(mu)
    step = np.float32(axial_mm * params.strength)
    optical = xp.cumsum(mu * step, axis=0) - mu * step / 2
    capped = (optical > -0.5 * np.log(params.min_bias)) | (snr < 1)
    shown = snr / (1 + snr)
    variance = xp.cumsum(model_error * step, axis=0) ** 2
    variance = variance + xp.cumsum((own_error * step) ** 2, axis=0)
    weight = shown**2 * np.float32(_SPECKLE) / (variance + np.float32(_SPECKLE))
    return capped, encode_weights(xp.where(imaged & ~capped, weight, np.float32(0)))


def _noise_power(
    power: Array, agarose: Array, noise_amplitude: Sequence[float] | np.ndarray | None, method: str
) -> np.ndarray:
    """Return the noise of each plane, if known; else what agarose ends in (``klett``, ``li``)."""
    planes = len(power)
    if noise_amplitude is not None:
        return np.square(np.asarray(noise_amplitude, np.float32))
    if method not in ("klett", "li"):
        return np.zeros(planes, np.float32)
    deep = slice(max(0, planes - _NOISE_PLANES), planes)
    values = to_host(power[deep][agarose[deep]])
    return np.full(planes, np.median(values) if values.size else 0, np.float32)


def attenuation_gain(model: Attenuation) -> Array:
    """Return what amplitudes are multiplied by, float32 over the bins, where `mu_per_mm` lies.

    The light lost on the way to a voxel's centre: µ of all voxels above and half of its own. In
    tissue near the noise floor, the noise's share of the amplitude is subtracted.
    """
    xp = namespace(model.mu_per_mm)
    step = model.mu_per_mm.astype(np.float32) * np.float32(model.voxel_um[0] / 1000)
    depth = xp.cumsum(step, axis=0, dtype=np.float32) - step / 2
    # The array comes first: for a NumPy number before it CuPy would load a good part of CuPyX.
    gain = xp.minimum(
        xp.exp(depth * np.float32(model.strength)), np.float32(1 / np.sqrt(model.min_bias))
    )
    if model.snr_db.size:
        # Noise adds power: of the mean amplitude, the signal's share is √(S / (S + N)).
        snr = xp.exp(model.snr_db.astype(np.float32) * np.float32(np.log(10) / 10))
        gain = xp.where(snr < 0.99 * _MAX_SNR, gain * xp.sqrt(snr / (1 + snr)), gain)
    return gain


def compensate_attenuation(
    block: Array, gain: Array, window: tuple[slice, slice], bin_px: int
) -> Array:
    """Multiply a block by the gain, interpolated linearly between the centres of bins.

    Parameters
    ----------
    block
        Part of a slice, full depth (z, axis 1, axis 2), float32, NumPy or CuPy.
    gain
        `attenuation_gain` of the whole slice, on the same device.
    window
        Pixels of the slice that the block holds.
    bin_px
        Pixels of a bin.
    """
    xp = namespace(block)
    parts: list[slice] = [slice(None)]
    matrices: list[np.ndarray | None] = [None]
    for pixels, n_bins in zip(window, gain.shape[1:], strict=True):
        low = max(0, pixels.start // bin_px - 1)
        high = min(n_bins, -(-pixels.stop // bin_px) + 1)
        parts.append(slice(low, high))
        matrices.append(_between_bins(pixels.start - low * bin_px, pixels.stop - pixels.start,
                                      high - low, bin_px))  # fmt: skip
    fine = apply_axis_weights(xp.ascontiguousarray(gain[tuple(parts)]), matrices)
    fine *= block
    return fine


@functools.lru_cache(maxsize=128)
def _between_bins(first: int, n_voxels: int, n_cells: int, size: int) -> np.ndarray:
    """Return the matrix (pixels, bins) that interpolates; constant beyond the outer bins."""
    place = np.clip((first + np.arange(n_voxels) + 0.5) / size - 0.5, 0, n_cells - 1)
    low = np.minimum(place.astype(int), max(n_cells - 2, 0))
    weights = np.zeros((n_voxels, n_cells))
    rows = np.arange(n_voxels)
    weights[rows, np.minimum(low + 1, n_cells - 1)] = place - low
    weights[rows, low] += 1 - (place - low)
    weights.setflags(write=False)
    return weights
