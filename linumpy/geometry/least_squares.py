"""Reproducible small least squares: the same bits with any BLAS, thread count or processor.

BLAS and LAPACK round differently with another kernel (which they choose by the processor, or by
``OPENBLAS_CORETYPE``), another number of threads and, in some kernels, another alignment of memory.
Here every product is rounded by itself, and NumPy adds along contiguous rows in one order.
"""

from __future__ import annotations

import math

import numpy as np

_UNDETERMINED = 1e-12
_CHUNK = 1024
"""Rows whose products fit into a core's own cache, for the few dozen columns of a field."""


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
        products = np.empty(rows.shape)
        for k, column in enumerate(columns):
            out[k] += np.multiply(rows, column, out=products).sum(axis=-1)
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
    out = np.zeros((*columns.shape[:-1], *weights.shape[1:]))
    for k, weight in enumerate(weights):
        out += columns[..., k] * weight if weights.ndim == 1 else columns[..., k, None] * weight
    return out


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

    Parameters
    ----------
    design, values, weight
        As of `least_squares`.
    """
    n_rows, k = design.shape
    n_values = math.prod(values.shape[1:])
    table = np.zeros((k, k + n_values))
    for start in range(0, n_rows, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        columns = np.concatenate([design[chunk].T, values[chunk].reshape(-1, n_values).T])
        products = np.empty(columns.shape)
        for i in range(k):
            column = columns[i] if weight is None else columns[i] * weight[chunk]
            table[i, i:] += np.multiply(columns[i:], column, out=products[i:]).sum(axis=-1)
    normal = np.triu(table[:, :k])
    return normal + np.triu(normal, 1).T, table[:, k:].reshape(k, *values.shape[1:])
