"""Reproducible small least squares: the same bits with any BLAS, thread count or processor.

BLAS and LAPACK round differently with another kernel (which they choose by the processor, or by
``OPENBLAS_CORETYPE``), another number of threads and, in some kernels, another alignment of memory.
Here every product is rounded by itself, and NumPy adds along contiguous rows in one order; or BLAS
adds whole numbers, of which no sum needs rounding (`normal_equations`).
"""

from __future__ import annotations

import math

import numpy as np

from linumpy.core.device import Array

_UNDETERMINED = 1e-12
_CHUNK = 1024
"""Rows whose products fit into a core's own cache, for the few dozen columns of a field."""
_PRODUCTS = 1 << 15
"""Made and added up in one step: 256 kB of float64."""
_COMBINED_ROWS = 8192
"""Rows that stay in a core's cache while their columns are added up."""
_WHOLE_ROWS = 512
_WHOLE_BITS = 22
"""Sums over 2^9 rows of products of two such numbers make the 53 bits of a float64."""
_LEAST_EXPONENT = -900
"""Columns of smaller numbers count as 0: their scale would overflow."""


def column_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``left.T @ right``.

    Parameters
    ----------
    left
        Shape (m, k).
    right
        Shape (m,) or (m, j).

    Returns
    -------
    float64 (k,) or (k, j).
    """
    out = np.zeros((left.shape[1], *right.shape[1:]))
    for start in range(0, len(left), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        columns = np.ascontiguousarray(left[chunk].T, dtype=np.float64)
        rows = np.ascontiguousarray(right[chunk].T, dtype=np.float64)
        step = max(1, _PRODUCTS // max(1, rows.size))
        for k in range(0, len(columns), step):
            some = columns[k : k + step]
            products = some if rows.ndim == 1 else some[:, None]
            out[k : k + step] += (products * rows).sum(axis=-1)
    return out


def linear_combination(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``columns @ weights``, column by column.

    Parameters
    ----------
    columns
        Shape (…, k).
    weights
        Shape (k,) or (k, j).
    """
    rows = columns.reshape(math.prod(columns.shape[:-1]), len(weights))
    each = weights.reshape(len(weights), math.prod(weights.shape[1:]), 1)
    sums = np.zeros((each.shape[1], len(rows)))
    for start in range(0, len(rows), _COMBINED_ROWS):
        chunk = slice(start, start + _COMBINED_ROWS)
        for column, own in zip(rows[chunk].T, each, strict=True):
            sums[:, chunk] += own * column
    return np.ascontiguousarray(sums.T).reshape(*columns.shape[:-1], *weights.shape[1:])


def solve_positive(normal: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve ``normal @ x = right`` by Gaussian elimination.

    Parameters
    ----------
    normal
        Symmetric, positive semidefinite (k, k), k below a few hundred.
    right
        Shape (k,) or (k, j).

    Returns
    -------
    Array of the shape of `right`. Unknowns that the equations do not determine are 0.
    """
    k = len(normal)
    table = np.concatenate([normal, right.reshape(k, -1)], axis=1, dtype=np.float64)
    least = _UNDETERMINED * table.diagonal()
    # Diagonal pivots: such a matrix needs no exchange of rows.
    for i in range(k):
        if table[i, i] <= least[i]:
            table[i] = 0
            table[:, i] = 0
            table[i, i] = 1
            continue
        below = table[i + 1 :, i] / table[i, i]
        table[i + 1 :, i + 1 :] -= below[:, None] * table[i, i + 1 :]
    solved = table[:, k:]
    for i in range(k - 1, -1, -1):
        solved[i] /= table[i, i]
        solved[:i] -= table[:i, i, None] * solved[i]
    return solved.reshape(right.shape)


def invert_positive(table: np.ndarray) -> np.ndarray:
    """Invert a symmetric, positive definite matrix (k, k), k below a few hundred, by sweeps.

    A sweep exchanges one unknown with one right side; after all of them the negative inverse is
    left (Goodnight, Am. Stat. 33, 149, 1979).
    """
    swept = np.array(table, dtype=np.float64)
    for i in range(len(swept)):
        row, pivot = swept[i].copy(), swept[i, i]
        share = row / pivot
        swept -= np.multiply.outer(share, row)
        swept[i] = swept[:, i] = share
        swept[i, i] = -1 / pivot
    return np.negative(swept, out=swept)


def solve_each(normal: Array, right: Array) -> Array:
    """Solve many small systems ``normal[n] @ x = right[n]`` by Gaussian elimination.

    Parameters
    ----------
    normal
        Symmetric and positive definite, shape (n, k, k), NumPy or CuPy; changed in place.
    right
        Shape (n, k); changed in place.
    """
    k = right.shape[1]
    for i in range(k):
        below = normal[:, i + 1 :, i] / normal[:, i, i, None]
        normal[:, i + 1 :, i + 1 :] -= below[:, :, None] * normal[:, i, None, i + 1 :]
        right[:, i + 1 :] -= below * right[:, i, None]
    for i in range(k - 1, -1, -1):
        right[:, i] /= normal[:, i, i]
        right[:, :i] -= normal[:, :i, i] * right[:, i, None]
    return right


def least_squares(
    design: np.ndarray,
    values: np.ndarray,
    weight: np.ndarray | None = None,
    ridge: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return the x of least ``sum(weight · (values − design @ x)²) + x.T @ ridge @ x``.

    Parameters
    ----------
    design
        Shape (m, k), well conditioned: the normal equations are solved.
    values
        Shape (m,) or (m, j).
    weight
        Shape (m,); None for ones.
    ridge
        Shape (k, k), or 0.
    """
    normal, right = normal_equations(design, values, weight)
    return solve_positive(normal + ridge, right)


def normal_equations(
    design: np.ndarray, values: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``design.T @ diag(weight) @ design`` and ``design.T @ diag(weight) @ values``.

    A number times the root of its weight is taken to 2⁻⁴⁵ of the largest of its column, as a whole
    number of 22 bits and another of what is left: sums of their products need no rounding, so that
    BLAS may add them in any order (Ozaki et al., Numer. Algorithms 59, 95, 2012).

    Parameters
    ----------
    design, values, weight
        As of `least_squares`; weights are not negative.
    """
    k = design.shape[1]
    columns = values.reshape(len(values), math.prod(values.shape[1:]))
    n = k + columns.shape[1]
    table = np.zeros((n, n))
    # Columns lie in rows: the few of a table are too short to be gone through one by one.
    room = np.empty((2, n, min(_WHOLE_ROWS, len(design))))
    for start in range(0, len(design), _WHOLE_ROWS):
        chunk = slice(start, start + _WHOLE_ROWS)
        rest, high = room[:, :, : len(design[chunk])]
        rest[:k], rest[k:] = design[chunk].T, columns[chunk].T
        if weight is not None:
            rest *= np.sqrt(weight[chunk])
        exponent = np.frexp(np.maximum(rest.max(axis=1), -rest.min(axis=1)))[1]
        exponent = np.maximum(exponent, _LEAST_EXPONENT) - _WHOLE_BITS
        rest *= np.ldexp(1.0, -exponent)[:, None]
        np.rint(rest, out=high)
        rest -= high
        # What is left is half a number at most.
        rest *= 2.0 ** (_WHOLE_BITS + 1)
        low = np.rint(rest, out=rest)
        cross = high @ low.T
        total = (low @ low.T) * 2.0 ** -(_WHOLE_BITS + 1) + (cross + cross.T)
        total = total * 2.0 ** -(_WHOLE_BITS + 1) + high @ high.T
        table += np.ldexp(total, exponent[:, None] + exponent)
    return table[:k, :k], table[:k, k:].reshape(k, *values.shape[1:])
