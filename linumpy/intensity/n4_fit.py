"""N4 fit: smooth multiplicative field by sharpening the histogram that it blurs.

Tustison et al., IEEE Transactions on Medical Imaging 29, 1310 (2010), after N3 (Sled et al., ibid.
17, 87, 1998): the logarithm of the field is a cubic B-spline. In turn the histogram of the
corrected logarithm is deconvolved (Wiener) by the Gaussian that the field is thought to blur it
with, each voxel is compared with the value expected for it, and a spline approximation of the
differences (Lee, Wolberg & Shin, 1997) is added; then the spline's mesh is halved.

On a full grid that approximation is separable: three small matrices, one an axis. The same code
runs on NumPy and CuPy; `linumpy.intensity.n4` calls ITK's filter for the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, like, namespace, to_host

DEGREE = 3
_WEIGHT_UNIT = 65536


@dataclass(frozen=True)
class N4Options:
    """How the field is sought; the defaults are ITK's.

    Attributes
    ----------
    iterations
        Most iterations of each level; every level halves the mesh of the one before.
    n_bins
        Bins of the histogram.
    fwhm
        Full width at half maximum of the blur that is deconvolved, in log units.
    noise
        Noise term of the Wiener filter.
    tolerance
        A level ends when the coefficient of variation of an update is below this.
    """

    iterations: tuple[int, ...] = (50, 50, 50, 50)
    n_bins: int = 200
    fwhm: float = 0.15
    noise: float = 0.01
    tolerance: float = 0.001


def basis_matrix(positions: np.ndarray, spans: int) -> np.ndarray:
    """Return the uniform cubic B-splines at some positions.

    Parameters
    ----------
    positions
        In units of the mesh, 0 to `spans`; those beyond are taken to the nearest end.
    spans
        Number of mesh cells.

    Returns
    -------
    float64, shape (positions, spans + 3); rows sum to 1.
    """
    u = np.clip(np.asarray(positions, float), 0, spans)
    first = np.minimum(np.floor(u).astype(int), spans - 1)
    t = u - first
    pieces = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1
    )
    matrix = np.zeros((u.size, spans + DEGREE))
    np.put_along_axis(matrix, first[:, None] + np.arange(4), pieces / 6, axis=1)
    return matrix


def refine(coefficients: np.ndarray) -> np.ndarray:
    """Halve the mesh of a spline along every axis; the spline stays the same function."""
    for axis in range(coefficients.ndim):
        c = np.moveaxis(coefficients, axis, 0)
        finer = np.empty((2 * len(c) - DEGREE, *c.shape[1:]), c.dtype)
        finer[0::2] = (c[:-1] + c[1:]) / 2
        finer[1::2] = (c[:-2] + 6 * c[1:-1] + c[2:]) / 8
        coefficients = np.moveaxis(finer, 0, axis)
    return coefficients


def contract(array: Array, matrices: Sequence[Array]) -> Array:
    """Multiply each axis of a three-axis array by a matrix (n_in, n_out)."""
    xp = namespace(array)
    for matrix in matrices:
        # The axis in front goes to the back each time: after three turns all are in place.
        array = xp.tensordot(array, matrix, axes=(0, 0))
    return array


class _Mesh:
    """A mesh over a grid: evaluates splines there, and approximates values that are given there."""

    def __init__(self, shape: Sequence[int], spans: Sequence[int], mask: Array) -> None:
        matrices = [
            basis_matrix(np.arange(n) * (s / (n - 1)), s) for n, s in zip(shape, spans, strict=True)
        ]
        self._mask = mask
        self._evaluate = [like(m.T.astype(np.float32), mask) for m in matrices]
        squares = [m**2 for m in matrices]
        self._fit = [
            like((m**3 / s.sum(axis=1, keepdims=True)).astype(np.float32), mask)
            for m, s in zip(matrices, squares, strict=True)
        ]
        weight = contract(
            mask.astype(np.float32), [like(s.astype(np.float32), mask) for s in squares]
        )
        self._weight = to_host(weight).astype(float)

    def values(self, coefficients: np.ndarray) -> Array:
        """Return the spline at the voxels of the mask, in their order."""
        volume = contract(like(coefficients.astype(np.float32), self._mask), self._evaluate)
        return volume[self._mask]

    def approximate(self, values: Array) -> np.ndarray:
        """Return the coefficients of the spline that approximates values at the mask's voxels."""
        volume = namespace(values).zeros(self._mask.shape, np.float32)
        volume[self._mask] = values
        sums = to_host(contract(volume, self._fit)).astype(float)
        # Far from the mask a spline has no say: what rounding leaves there is no weight.
        known = self._weight > 1e-12 * self._weight.max()
        return np.where(known, sums / np.where(known, self._weight, 1), 0)


def expected_values(values: Array, options: N4Options) -> Array:
    """Return, for each value, the one expected where the histogram is not blurred.

    Parameters
    ----------
    values
        Logarithms, one-dimensional, float32, NumPy or CuPy.
    options
        Bins, blur and noise.
    """
    xp = namespace(values)
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return values
    n = options.n_bins
    width = (high - low) / (n - 1)
    place = (values - np.float32(low)) / np.float32(width)
    index = xp.minimum(place.astype(np.int32), n - 2)
    share = place - index
    # Sums of whole numbers do not depend on the order in which threads add.
    upper = xp.rint(share * _WEIGHT_UNIT)
    counts = xp.bincount(index, weights=_WEIGHT_UNIT - upper, minlength=n)
    counts += xp.bincount(index + 1, weights=upper, minlength=n)
    expected = _expectation(to_host(counts) / _WEIGHT_UNIT, low, width, options)
    table = like(expected.astype(np.float32), values)
    return table[index] + (table[index + 1] - table[index]) * share


def _expectation(counts: np.ndarray, low: float, width: float, options: N4Options) -> np.ndarray:
    """Return E[true value | blurred value] at the bins of a histogram."""
    n = counts.size
    padded = 2 ** (int(np.ceil(np.log2(n))) + 1)
    offset = (padded - n) // 2
    histogram = np.zeros(padded)
    histogram[offset : offset + n] = counts
    # The blur as a circular kernel, its peak at 0.
    fwhm = options.fwhm / width
    distance = np.minimum(np.arange(padded), padded - np.arange(padded))
    blur = 2 * np.sqrt(np.log(2) / np.pi) / fwhm * np.exp(-4 * np.log(2) * (distance / fwhm) ** 2)
    blur_f = np.fft.fft(blur)
    wiener = np.conj(blur_f) / (np.abs(blur_f) ** 2 + options.noise)
    sharp = np.maximum(np.fft.ifft(np.fft.fft(histogram) * wiener.real).real, 0)
    centre = low + (np.arange(padded) - offset) * width
    above = np.fft.ifft(np.fft.fft(centre * sharp) * blur_f).real
    below = np.fft.ifft(np.fft.fft(sharp) * blur_f).real
    expected = np.divide(above, below, out=np.zeros(padded), where=below != 0)
    return expected[offset : offset + n]


def fit_log_field(
    image: Array, mask: Array, spans: Sequence[int], options: N4Options | None = None
) -> np.ndarray:
    """Fit the logarithm of the field by which an image was multiplied.

    Parameters
    ----------
    image
        Volume of three axes of at least two voxels each, positive in the mask; NumPy or CuPy.
    mask
        Boolean volume, on the same device: what the field is learned from.
    spans
        Mesh cells of the first level along each axis; they span first to last voxel centre.
    options
        Iterations and sharpening.

    Returns
    -------
    float64 coefficients on the host, ``spans · 2^(levels − 1) + 3`` an axis, with mean log field 0
    in the mask.
    """
    options = options or N4Options()
    xp = namespace(image)
    mask = mask.astype(bool)
    known = xp.log(image[mask].astype(np.float32))
    coefficients = np.zeros([s + DEGREE for s in spans])
    field = xp.zeros_like(known)
    for level, most in enumerate(options.iterations):
        if level:
            coefficients = refine(coefficients)
        mesh = _Mesh(image.shape, [c - DEGREE for c in coefficients.shape], mask)
        for _ in range(most):
            corrected = known - field
            update = mesh.approximate(corrected - expected_values(corrected, options))
            coefficients = coefficients + update
            newer = mesh.values(coefficients)
            change = xp.exp(field - newer)
            field = newer
            if float(change.std()) <= options.tolerance * float(change.mean()):
                break
    return coefficients - float(field.mean(dtype=np.float64))
