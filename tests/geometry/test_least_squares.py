"""Reproducible least squares: compared with NumPy, and bit for bit."""

import os
import subprocess
import sys

import numpy as np
import pytest

from linumpy.geometry.least_squares import (
    column_products,
    invert_positive,
    least_squares,
    linear_combination,
    normal_equations,
    solve_each,
    solve_positive,
)


def problem(rng, n=121):
    grid = rng.integers(0, 11, (n, 2)) / 10
    design = np.column_stack([np.ones(n), grid, grid**2, grid.prod(axis=1)])
    return design, 100 * rng.random(n), rng.random(n)


def test_solution_is_numpys(rng):
    design, values, weight = problem(rng)
    expected = np.linalg.lstsq(
        design * np.sqrt(weight)[:, None], values * np.sqrt(weight), rcond=None
    )[0]
    np.testing.assert_allclose(least_squares(design, values, weight), expected, rtol=1e-9)
    both = least_squares(design, np.stack([values, -values], axis=1), weight)
    np.testing.assert_allclose(both, np.stack([expected, -expected], axis=1), rtol=1e-9)
    np.testing.assert_allclose(linear_combination(design, expected), design @ expected)


def test_ridge_draws_towards_nought(rng):
    design, values, weight = problem(rng)
    ridge = np.diag(np.arange(6.0))
    normal = design.T @ (design * weight[:, None]) + ridge
    expected = np.linalg.solve(normal, design.T @ (weight * values))
    np.testing.assert_allclose(least_squares(design, values, weight, ridge), expected, rtol=1e-9)


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 5000])
def test_products_of_any_number_of_rows(rng, n):
    """As many as go into one part of the sum, and as many as do not."""
    left, right = rng.random((n, 3)), rng.random((n, 2))
    np.testing.assert_allclose(column_products(left, right), left.T @ right, rtol=1e-13)
    one = column_products(left, right[:, 0])
    assert one.tolist() == column_products(left, right)[:, 0].tolist()


def one_by_one(left, right):
    """Products of columns, each added up by itself over 1,024 rows at a time."""
    out = np.zeros((left.shape[1], *right.shape[1:]))
    for start in range(0, len(left), 1024):
        rows = np.ascontiguousarray(right[start : start + 1024].T)
        for k, column in enumerate(left[start : start + 1024].T):
            out[k] += (rows * np.ascontiguousarray(column)).sum(axis=-1)
    return out


@pytest.mark.parametrize("j", [(), (0,), (1,), (2,), (40,)])
@pytest.mark.parametrize(("n", "k"), [(0, 3), (1, 1), (1024, 40), (1025, 70), (3000, 0)])
def test_products_have_the_bits_of_those_made_one_by_one(rng, n, k, j):
    left, right = rng.normal(size=(n, k)), rng.normal(size=(n, *j))
    assert column_products(left, right).tobytes() == one_by_one(left, right).tobytes()


@pytest.mark.parametrize("j", [(), (0,), (1,), (3,), (40,)])
@pytest.mark.parametrize("shape", [(0,), (1,), (8193,), (2, 5)])
@pytest.mark.parametrize("k", [0, 1, 12])
def test_combinations_have_the_bits_of_columns_added_in_order(rng, shape, k, j):
    columns, weights = rng.normal(size=(*shape, k)), rng.normal(size=(k, *j))
    expected = np.zeros((*shape, *j))
    for n in range(k):
        expected += columns[..., n].reshape(*shape, *(1,) * len(j)) * weights[n]
    found = linear_combination(columns, weights)
    assert found.shape == expected.shape and found.tobytes() == expected.tobytes()
    assert linear_combination(np.asfortranarray(columns), weights).tobytes() == found.tobytes()


@pytest.mark.parametrize("n", [0, 1, 1024, 2500])
@pytest.mark.parametrize("j", [(), (2,)])
def test_normal_equations_are_numpys(rng, n, j):
    design, values, weight = rng.normal(size=(n, 4)), rng.normal(size=(n, *j)), rng.random(n)
    for w in (weight, None):
        weighted = design * (np.ones(n) if w is None else w)[:, None]
        normal, right = normal_equations(design, values, w)
        np.testing.assert_allclose(normal, weighted.T @ design, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(right, weighted.T @ values, rtol=1e-11, atol=1e-11)
        assert right.shape == (4, *j) and (normal == normal.T).all()


def test_order_of_rows_changes_no_bit(rng):
    """Sums are of whole numbers. Seen to fail with ``@`` of the rows as they are."""
    design, values, weight = rng.normal(size=(500, 40)), rng.normal(size=500), rng.random(500)
    design[:, 3] *= 1e12
    design[:, 5] = 0
    found = set()
    for _ in range(5):
        order = rng.permutation(500)
        normal, right = normal_equations(design[order], values[order], weight[order])
        found.add(normal.tobytes() + right.tobytes())
    assert len(found) == 1


def test_one_huge_row_and_tiny_columns(rng):
    """Each column to 2⁻⁴⁵ of its largest number, exactly where all have few digits."""
    design = rng.integers(-1000, 1000, (600, 4)) * np.array([1.0, 2.0**-60, 2.0**300, 2.0**-700])
    values = rng.integers(-1000, 1000, 600).astype(float)
    normal, right = normal_equations(design[:, :2], values)
    exact = [[int(x * 2.0**k) for x, k in zip(row, (0, 60), strict=True)] for row in design[:, :2]]
    assert right[1] == sum(x[1] * int(v) for x, v in zip(exact, values, strict=True)) * 2.0**-60
    assert normal[0, 1] == sum(a * b for a, b in exact) * 2.0**-60
    assert np.isfinite(normal_equations(design[:, 2:], values)[1]).all()
    assert not normal_equations(np.full((9, 1), 5e-324), np.ones(9))[0].any()


@pytest.mark.parametrize("k", [1, 3, 40])
def test_positive_systems_are_solved(rng, k):
    root = rng.normal(size=(2 * k, k))
    normal, right = root.T @ root, rng.normal(size=(k, 3))
    np.testing.assert_allclose(normal @ solve_positive(normal, right), right, atol=1e-9)
    inverse = solve_positive(normal, np.eye(k))
    np.testing.assert_allclose(inverse, np.linalg.inv(normal), atol=1e-9)


@pytest.mark.parametrize("k", [1, 5, 60])
def test_inverses_and_many_small_systems_are_numpys(rng, k):
    roots = rng.normal(size=(7, k, k + 3))
    tables, right = roots @ roots.transpose(0, 2, 1), rng.normal(size=(7, k))
    expected = np.linalg.inv(tables)
    np.testing.assert_allclose(invert_positive(tables[0]), expected[0], rtol=1e-6, atol=1e-9)
    solved = solve_each(tables.copy(), right.copy())
    np.testing.assert_allclose(
        solved, np.linalg.solve(tables, right[..., None])[..., 0], rtol=1e-6, atol=1e-9
    )


def test_what_is_not_determined_is_nought(rng):
    """A surface of one column of cells has no fall across it."""
    design = np.column_stack([np.ones(9), np.arange(9) / 8, np.zeros(9)])
    np.testing.assert_allclose(least_squares(design, 3 + 2 * design[:, 1]), [3, 2, 0], atol=1e-9)
    assert not least_squares(np.zeros((4, 2)), rng.random(4)).any()


def aligned(array, offset):
    """A copy that begins `offset` bytes behind a multiple of 128."""
    buffer = np.empty(array.nbytes + 256, np.uint8)
    start = -buffer.ctypes.data % 128 + offset
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_alignment_of_memory_changes_no_bit(rng):
    design, values, weight = problem(rng)
    solved = {
        least_squares(*(aligned(a, offset) for a in (design, values, weight))).tobytes()
        for offset in range(0, 128, 8)
    }
    strided = np.asfortranarray(design)[::1], values[::-1][::-1], weight
    solved |= {least_squares(*strided).tobytes(), column_of(design, values, weight)}
    assert len(solved) == 1


def column_of(design, values, weight):
    wide = np.zeros((len(values), 3))
    wide[:, 1] = values
    return least_squares(design, wide[:, 1], weight).tobytes()


CHILD = """
import numpy as np
from linumpy.geometry.crop_3d_mosaic_below_interface import _fall
from linumpy.geometry.least_squares import normal_equations
rng = np.random.default_rng(7)
for n in range(5, 20):
    surface = 100 + 30 * rng.random((n, 11))
    print(*_fall(surface, surface > 105))
for k in (3, 28, 60):
    print(*(part.tobytes().hex() for part in normal_equations(rng.normal(size=(3000, k)),
                                                              rng.normal(size=3000))))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names kernels of x86-64")
def test_kernels_of_blas_change_no_bit():
    """Those of other processors.

    Seen to fail with ``numpy.linalg.lstsq`` in `_fall`, and with ``@`` in `normal_equations`.
    """
    found = set()
    for kernel in ("Prescott", "Haswell"):
        environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
        arguments = [sys.executable, "-c", CHILD]
        found.add(
            subprocess.run(arguments, env=environment, capture_output=True, check=True).stdout
        )
    assert len(found) == 1
