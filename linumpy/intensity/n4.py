"""N4 of a volume: by ITK's filter, or by linumpy's fit of the same spline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.core.device import Array, is_device_array, to_host
from linumpy.intensity.n4_fit import DEGREE, N4Options, basis_matrix, contract, fit_log_field

MIN_CELLS = 100
"""Fewer voxels than this teach no field."""

_SAMPLES_PER_SPAN = 4


def n4_log_field(
    image: Array,
    mask: Array,
    spans: Sequence[int],
    options: N4Options | None = None,
    *,
    engine: str = "itk",
    threads: int = 1,
) -> np.ndarray:
    """Fit the logarithm of the field by which a volume was multiplied.

    Parameters
    ----------
    image
        Volume of three axes, positive in the mask; NumPy or CuPy.
    mask
        Boolean volume: what the field is learned from.
    spans
        Mesh cells of the first level along each axis.
    options
        Iterations and sharpening.
    engine
        ``itk`` or ``linumpy``; CuPy arrays are always fitted by linumpy.
    threads
        Threads that ITK may use.

    Returns
    -------
    float64 coefficients of the cubic B-spline that spans first to last voxel centre, with mean log
    field 0 in the mask; all 0 where the mask has fewer than `MIN_CELLS` voxels or one value.
    """
    options = options or N4Options()
    mask = mask.astype(bool)
    # A spline needs two ends: a single layer is taken twice.
    for axis, n in enumerate(image.shape):
        if n == 1:
            image, mask = image.repeat(2, axis), mask.repeat(2, axis)
    values = image[mask]
    if values.size < MIN_CELLS or not float(values.max()) > float(values.min()):
        return np.zeros([s * 2 ** (len(options.iterations) - 1) + DEGREE for s in spans])
    if engine == "linumpy" or is_device_array(image):
        return fit_log_field(image, mask, spans, options)
    return itk_log_field(to_host(image), to_host(mask), spans, options, threads=threads)


def itk_log_field(
    image: np.ndarray,
    mask: np.ndarray,
    spans: Sequence[int],
    options: N4Options,
    *,
    threads: int = 1,
) -> np.ndarray:
    """Do what `fit_log_field` does, by ITK's ``N4BiasFieldCorrectionImageFilter``."""
    import SimpleITK as sitk

    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    n4.SetNumberOfThreads(threads)
    # ITK counts axes from the fastest.
    n4.SetNumberOfControlPoints([s + DEGREE for s in spans[::-1]])
    n4.SetMaximumNumberOfIterations(list(options.iterations))
    n4.SetConvergenceThreshold(options.tolerance)
    n4.SetNumberOfHistogramBins(options.n_bins)
    n4.SetBiasFieldFullWidthAtHalfMaximum(options.fwhm)
    n4.SetWienerFilterNoise(options.noise)
    n4.SetMaskLabel(1)
    n4.Execute(
        sitk.GetImageFromArray(np.ascontiguousarray(image, np.float32)),
        sitk.GetImageFromArray(mask.astype(np.uint8)),
    )
    # The filter gives its spline only by values. Enough of them between its knots give the
    # coefficients back, however few voxels there are.
    finest = [s * 2 ** (len(options.iterations) - 1) for s in spans]
    samples = [_SAMPLES_PER_SPAN * s + 1 for s in finest]
    grid = sitk.Image(samples[::-1], sitk.sitkFloat32)
    grid.SetSpacing([(n - 1) / (m - 1) for n, m in zip(image.shape, samples, strict=True)][::-1])
    field = sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(grid)).astype(float)
    inverse = [
        np.linalg.pinv(basis_matrix(np.linspace(0, s, m), s)).T
        for s, m in zip(finest, samples, strict=True)
    ]
    coefficients = contract(field, inverse)
    matrices = [
        basis_matrix(np.arange(n) * (s / (n - 1)), s).T
        for n, s in zip(image.shape, finest, strict=True)
    ]
    inside = contract(coefficients, matrices)[mask]
    return coefficients - float(inside.mean())
