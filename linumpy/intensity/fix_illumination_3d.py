"""Learn and correct the flat field that all tiles share, without a blank image.

Model: ``I_i(x) = F(x) · T_i(x)`` on amplitudes, mean F = 1, as in BaSiC (Peng et al., Nature
Communications 8, 14836, 2017) without its dark field: OCT's floor is noise, which does not
follow the illumination and is subtracted in power before the fit. Where BaSiC relies on the
sparsity of many tiles, the overlaps of neighbouring tiles are used too (`geometry.shared_field`).
F is a polynomial times a gain of each line of either axis (`line_gain`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, is_device_array, like, to_host
from linumpy.geometry.banded import row_blocks
from linumpy.geometry.field_basis import LineTerms
from linumpy.geometry.interface import difference_weights
from linumpy.geometry.shared_field import SharedField, TileMap, fit_shared_field
from linumpy.intensity.line_gain import LineGain, LineMaps, fit_line_gain, places_of

MIN_SIGNAL_TO_NOISE = 2.0
_WATER_MARGIN_PX = 4
_PROFILE_SIGMA = 2.0
NORMAL_95 = 1.96


@dataclass(frozen=True)
class FlatField:
    """The learned flat field.

    Attributes
    ----------
    flat_field
        Shape of a tile's two lateral axes, mean 1.
    voxel_um
        Voxel size of the tiles it was learned on.
    overlap_residual
        Robust spread of ln brightness between overlapping tiles after correction, a cell.
    line_gain_percent
        RMS over lines of the gain that `flat_field` holds of each line of axis 1 (A-lines) and of
        axis 2 (B-scans); 0 where none stands out.
    error_percent
        Standard error of `flat_field`, RMS over a tile, by how well overlaps and tiles agree; None
        of a single tile. What changes with depth, as a focus that is not parallel to the focal
        surface makes it, is not in it.
    """

    flat_field: np.ndarray
    voxel_um: tuple[float, float, float]
    n_tiles: int
    n_pairs: int
    overlap_residual: float
    line_gain_percent: tuple[float, float] = (0.0, 0.0)
    error_percent: float | None = None

    @property
    def bound_percent(self) -> float | None:
        """What the RMS error stays below in 19 of 20 acquisitions; None if not known."""
        return None if self.error_percent is None else NORMAL_95 * self.error_percent


def brightness_map(array: Array, valid: Array | None = None) -> Array:
    """Return the root of a tile's noise-free mean power along depth.

    Noise power is taken from the water above the interface, and from nothing when the tissue
    begins at the top. What a column's masked voxels would have shown is the planes' mean: else
    columns that the focal surface moved farther would seem brighter, as water is masked of them.

    Parameters
    ----------
    array
        Tile (z, axis 1, axis 2), amplitude, NumPy or CuPy.
    valid
        Its mask, or None.

    Returns
    -------
    float32 map over axis 1 and 2; NaN where the signal's power is below `MIN_SIGNAL_TO_NOISE`
    times the uncertainty of the noise's, and where less than half of the light is not masked.
    """
    weights = difference_weights(_PROFILE_SIGMA)
    if is_device_array(array):
        from linumpy.geometry.kernels import brightness

        return brightness(array, valid, weights, _WATER_MARGIN_PX, MIN_SIGNAL_TO_NOISE)
    mask = None if valid is None else to_host(valid)
    power, count, plane_power, plane_count = _power_sums(to_host(array), mask)
    profile = np.sqrt(plane_power / np.maximum(plane_count, 1))
    steps = np.diff(np.log(np.maximum(profile, 1e-12)))
    rise = np.correlate(np.pad(steps, len(weights) // 2), weights, "valid")
    top = max(0, int(rise.argmax()) - _WATER_MARGIN_PX)
    noise = 0.0
    if top >= 2:
        noise = float(plane_power[:top].sum() / max(plane_count[:top].sum(), 1))
    signal = power / np.maximum(count, 1) - np.float32(noise)
    # Speckle power of n planes scatters by 1/sqrt(n).
    uncertainty = np.float32(noise) / np.sqrt(np.maximum(count, 1))
    good = (count > 0) & (signal > MIN_SIGNAL_TO_NOISE * uncertainty) & (signal > 0)
    if mask is not None:
        light = np.maximum(plane_power / np.maximum(plane_count, 1) - noise, 0).astype(np.float32)
        every, seen = _light(light, mask)
        good &= 2 * seen > every
        signal = signal * (count / np.float32(len(light))) * (every / np.where(good, seen, 1))
    return np.where(good, np.sqrt(np.where(good, signal, 1)), np.nan).astype(np.float32)


def _light(light: np.ndarray, valid: np.ndarray) -> tuple[np.float32, np.ndarray]:
    """Return the sum of the planes' light, and its part in each column's valid voxels."""
    every, seen = np.float32(0), np.zeros(valid.shape[1:], np.float32)
    for amount, known in zip(light, valid, strict=True):
        every += amount
        seen += amount if known.all() else amount * (known > 0)
    return every, seen


def _power_sums(
    array: np.ndarray, valid: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return power and number of valid voxels, summed along depth (float32) and a plane (float64).

    One pass over the tile, in pieces that stay in cache.
    """
    n_planes, n_rows, n_columns = array.shape
    power, count = np.zeros((2, n_rows, n_columns), np.float32)
    plane_power, plane_count = np.zeros((2, n_planes))
    for rows in row_blocks(n_rows, 4 * n_columns):
        square = np.empty(power[rows].shape, np.float32)
        for plane in range(n_planes):
            np.square(array[plane, rows], out=square)
            known = None if valid is None else valid[plane, rows] > 0
            if known is None or known.all():
                count[rows] += 1
                plane_count[plane] += square.size
            else:
                square *= known
                count[rows] += known
                plane_count[plane] += np.count_nonzero(known)
            power[rows] += square
            plane_power[plane] += square.sum()
    return power, count, plane_power, plane_count


def fit_flat_field(
    log_brightness: Sequence[TileMap],
    tile_shape: tuple[int, int],
    voxel_um: tuple[float, float, float],
    *,
    cell: int,
    lines: Sequence[LineMaps] = (),
) -> FlatField:
    """Fit the flat field to maps of the logarithm of `brightness_map`.

    Parameters
    ----------
    log_brightness
        Binned maps of tiles, with positions.
    tile_shape
        Pixels of a tile along axis 1 and 2.
    cell
        Pixels a cell side.
    lines
        Of the same tiles, to learn the gain of lines from; none for a smooth field.

    Raises
    ------
    InputError
        When fewer than two tiles are bright enough.

    Notes
    -----
    One tile, or one a slice in one place, shows the same tissue everywhere: nothing tells its
    brightness from the light, which is taken to be even then.
    """
    field = fit_shared_field(log_brightness, tile_shape, cell=cell)
    lit = np.array([m.corner_px for m in log_brightness if m.is_known]).reshape(-1, 2)
    if not field.n_pairs and not places_of(lit, tile_shape).any():
        ones = np.ones(tile_shape, np.float32)
        return FlatField(ones, voxel_um, field.n_tiles, n_pairs=0, overlap_residual=0.0)
    values = field.values
    gains: list[LineGain] = []
    if lines:
        corners = np.array([m.corner_px for m in log_brightness]).reshape(-1, 2)
        places = places_of(corners, tile_shape)
        gains = [
            fit_line_gain(_less_field([m.across[axis] for m in lines], field, axis, cell), places)
            for axis in (0, 1)
        ]
    if any(gain.rms for gain in gains):
        short = gains[0].short[:, None] + gains[1].short
        in_cells = _cell_means(_cell_means(short, cell).T, cell).T
        even = [TileMap(m.values - in_cells, m.group, m.corner_px) for m in log_brightness]
        long = [
            LineTerms(axis, gain.long_waves, gain.long_sigma)
            for axis, gain in enumerate(gains)
            if gain.long_sigma
        ]
        field = fit_shared_field(even, tile_shape, cell=cell, lines=long)
        values = field.values + short
    flat, errors = np.exp(values), [gain.error for gain in gains]
    return FlatField(
        flat_field=(flat / flat.mean()).astype(np.float32),
        voxel_um=voxel_um,
        n_tiles=field.n_tiles,
        n_pairs=field.n_pairs,
        overlap_residual=field.overlap_residual,
        line_gain_percent=(100 * gains[0].rms, 100 * gains[1].rms) if gains else (0.0, 0.0),
        error_percent=None if field.error is None else 100 * math.hypot(field.error, *errors),
    )


def _less_field(
    strips: Sequence[np.ndarray], field: SharedField, axis: int, cell: int
) -> list[np.ndarray]:
    """Subtract the smooth field from strips one pixel wide along an axis."""
    smooth = _cell_means(field.values if axis == 0 else field.values.T, cell)
    return [values - smooth for values in strips]


def _cell_means(values: np.ndarray, cell: int) -> np.ndarray:
    """Average along axis 2 over cells; a rest at the end is dropped."""
    count = values.shape[1] // cell
    means = values[:, : count * cell].reshape(len(values), count, cell).mean(axis=2)
    return np.asarray(means)


def fix_illumination_3d(array: Array, flat_field: Array) -> Array:
    """Divide a tile by the flat field.

    Parameters
    ----------
    array
        Tile (z, axis 1, axis 2), float32, NumPy or CuPy.
    flat_field
        Positive map over axis 1 and axis 2.
    """
    return array / like(flat_field, array)[None]
