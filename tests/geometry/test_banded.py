import numpy as np
import pytest

from linumpy.geometry.banded import bands, multiply, row_blocks


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize("n", [1, 7, 40_000])
def test_bands_multiply_like_the_whole_matrix(rng, rows, n):
    matrix = np.triu(np.tril(rng.random((37, 50)), 12), 3)
    matrix[20] = 0
    source = rng.random((3, 50, n))
    expected = matrix @ source
    out = np.full((3, 37, n), np.nan)
    turned = np.full((3, n, 37), np.nan)
    cut = bands(matrix, np.dtype(float), rows)
    for band in cut:
        multiply(band, source[:, band.low : band.high], out[:, band.start : band.stop])
        multiply(
            band,
            np.ascontiguousarray(source.transpose(0, 2, 1)).transpose(0, 2, 1)[
                :, band.low : band.high
            ],
            turned[:, :, band.start : band.stop].transpose(0, 2, 1),
        )
    np.testing.assert_allclose(out, expected, atol=1e-12)
    np.testing.assert_allclose(turned.transpose(0, 2, 1), expected, atol=1e-12)
    assert max(band.weights.shape[1] for band in cut) < rows + 12
    assert [band.start for band in cut] == list(range(0, 37, rows))


@pytest.mark.parametrize(("n_rows", "row_nbytes"), [(1, 1), (512, 2048), (10, 1 << 30), (0, 8)])
def test_blocks_cover_all_rows_once(n_rows, row_nbytes):
    blocks = list(row_blocks(n_rows, row_nbytes, 1 << 18))
    assert not blocks or blocks[-1].stop == n_rows
    assert [row for block in blocks for row in range(n_rows)[block]] == list(range(n_rows))
    assert all((block.stop - block.start) * row_nbytes <= 1 << 18 for block in blocks) or (
        row_nbytes > 1 << 18
    )
