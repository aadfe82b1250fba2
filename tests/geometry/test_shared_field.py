import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from linumpy.core.errors import InputError
from linumpy.geometry import shared_field
from linumpy.geometry.field_basis import basis, term_degrees
from linumpy.geometry.shared_field import TileMap, bin_map, fit_shared_field

TILE = (60, 72)
CELL = 2


def truth():
    t1, t2 = np.mgrid[: TILE[0], : TILE[1]] / np.array(TILE)[:, None, None] - 0.5
    field = 0.2 * t1 - 0.8 * t1**2 - 0.5 * t2**2 + 0.3 * t1 * t2 + 0.4 * t1**3 - 0.5 * t2**4
    return field - field.mean()


def acquisition(rng, noise, outliers=0, n=5, jitter=1.5, offset=0.0):
    """Tiles of a structured tissue, twice as strong as the field, with 20 % overlap."""
    tissue = gaussian_filter(rng.normal(size=(330, 400)), 12) * 30
    x, y = np.meshgrid(np.arange(TILE[0]), np.arange(TILE[1]), indexing="ij")
    maps = []
    for i in range(n):
        for j in range(n):
            corner = (
                4 + i * 0.8 * TILE[0] + rng.normal(0, jitter),
                4 + j * 0.8 * TILE[1] + rng.normal(0, jitter),
            )
            seen = map_coordinates(tissue, [x + corner[0], y + corner[1]], order=1)
            image = truth() + seen + rng.normal(0, noise, TILE)
            image += offset * rng.normal() if offset and i % 2 == j % 2 == 0 else 0
            if len(maps) < outliers:
                image += rng.normal(0, 3, TILE)
            maps.append(TileMap(bin_map(image, CELL), 0, corner))
    return maps


def test_field_is_separated_from_tissue_by_overlaps(rng):
    field = fit_shared_field(acquisition(rng, 0.05), TILE, cell=CELL)
    error = (field.values - truth()).std()
    assert error < 0.03 * truth().std() + 0.005
    assert (field.n_tiles, field.n_pairs) == (25, 72)
    assert field.values.mean() == pytest.approx(0, abs=1e-12)


def test_bad_tiles_do_not_spoil_it():
    """RMS of eight draws, and the worst."""
    errors = []
    for draw in range(8):
        maps = acquisition(np.random.default_rng(draw), 0.05, outliers=4)
        errors.append((fit_shared_field(maps, TILE, cell=CELL).values - truth()).std())
    assert np.sqrt(np.mean(np.square(errors))) < 0.065 * truth().std()
    assert max(errors) < 0.1 * truth().std()


@pytest.mark.parametrize(("level", "limit"), [(0.0, 0.013), (0.02, 0.016), (0.2, 0.03)])
def test_levels_of_single_tiles_are_no_field(level, limit):
    """A light that changes from tile to tile, a stage that jitters in depth; RMS of eight draws.

    Seen to fail (0.012, 0.025, 0.065) where levels count as the pairs' scatter.
    """
    errors, ratios = [], []
    for draw in range(8):
        rng = np.random.default_rng(1000 + draw)
        maps = [
            TileMap(m.values + level * rng.normal(), m.group, m.corner_px)
            for m in acquisition(rng, 0.1, n=4, jitter=1.2)
        ]
        # Tiles of other slices, without a neighbour: seen to hide all levels.
        alone = acquisition(rng, 0.1, n=4)
        maps += [TileMap(m.values, n + 1, m.corner_px) for n, m in enumerate(alone)]
        field = fit_shared_field(maps, TILE, cell=CELL)
        errors.append((field.values - truth()).std())
        ratios.append(errors[-1] / field.error)
    assert np.sqrt(np.mean(np.square(errors))) < limit
    assert 0.7 < np.sqrt(np.mean(np.square(ratios))) < 1.2


def test_a_tile_of_two_levels_does_not_spoil_it(rng):
    """Seen to fail: all its cells were outliers, and the whole field NaN."""
    shape = (160, 160)
    field = 0.3 * ((np.arange(160) / 160 - 0.5) ** 2)[:, None] + np.zeros(shape)
    maps = [TileMap(field + rng.normal(0, 0.01, shape), n, (0.0, 0.0)) for n in range(9)]
    maps.append(TileMap(np.where(rng.random(shape) < 0.7, 0.0, 5.0), 9, (0.0, 0.0)))
    found = fit_shared_field(maps, shape, cell=1)
    assert np.abs(found.values - (field - field.mean())).max() < 0.01


@pytest.mark.parametrize(
    ("jitter", "noise", "offset"), [(0.2, 0.1, 0), (0.2, 0.4, 0), (1.2, 0.1, 0.06)]
)
def test_stated_error_is_the_true_one(jitter, noise, offset):
    """RMS of eight draws, 1 to 4 % of ln brightness. A stage that hardly jitters tells less.

    Seen to fail (1.16 where a quarter of the tiles differ) with the information of the usual pair.
    """
    ratios = []
    for draw in range(8):
        rng = np.random.default_rng(draw)
        maps = acquisition(rng, noise, n=4, jitter=jitter, offset=offset)
        field = fit_shared_field(maps, TILE, cell=CELL)
        ratios.append((field.values - truth()).std() / field.error)
    assert 0.7 < np.sqrt(np.mean(np.square(ratios))) < 1.14


def test_what_tissue_has_in_common_in_all_tiles_is_no_field():
    """A brain in the middle of four tiles, in three slices: their scatter does not show it.

    Seen to fail (0.035 off, 2.3 stated errors) where tiles count by their scatter alone.
    """
    errors, ratios = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        speckle = gaussian_filter(rng.normal(size=(3, 140, 160)), (0, 1, 1)) * 0.2
        middle = np.array([68, 79])[:, None, None] + rng.normal(0, 3, (2, 1, 1))
        at1, at2 = np.mgrid[:140, :160] - middle
        brain = 1.2 / (1 + np.exp((np.hypot(at1 / 42, at2 / 48) - 1) / 0.05))
        x, y = np.meshgrid(np.arange(TILE[0]), np.arange(TILE[1]), indexing="ij")
        maps = []
        for group, tissue in enumerate(speckle + brain):
            for i, j in np.ndindex(2, 2):
                corner = tuple(8 + np.multiply((i, j), 0.8) * TILE + rng.normal(0, 1, 2))
                seen = map_coordinates(tissue, [x + corner[0], y + corner[1]], order=1)
                image = truth() + seen + rng.normal(0, 0.05, TILE)
                maps.append(TileMap(bin_map(image, CELL), group, corner))
        field = fit_shared_field(maps, TILE, cell=CELL)
        errors.append((field.values - truth()).std())
        ratios.append(errors[-1] / field.error)
    assert np.sqrt(np.mean(np.square(errors))) < 0.02
    assert 0.5 < np.sqrt(np.mean(np.square(ratios))) < 1.6


@pytest.mark.parametrize("true", [1.0, 30.0])
def test_excess_is_the_one_that_data_were_drawn_with(rng, true):
    own, other = (np.cov(rng.normal(size=(24, 400))) * scale for scale in (1.0, 0.3))
    draws = rng.multivariate_normal(np.zeros(24), true * own + other, size=40)
    found = [shared_field._likeliest_excess(draw, own, other) for draw in draws]
    assert true * 0.8 < np.median(found) < true * 1.3


def test_without_overlaps_the_mean_over_tiles_is_left(rng):
    maps = [
        TileMap(bin_map(truth() + rng.normal(0, 0.05, TILE), CELL), group, (0.0, 0.0))
        for group in range(12)
    ]
    field = fit_shared_field(maps, TILE, cell=CELL)
    assert field.n_pairs == 0
    assert 0 < field.error < 0.05
    assert (field.values - truth()).std() < 0.05 * truth().std()


def test_one_tile_is_not_enough(rng):
    """Alone it tells no field; of several it would be taken for all. Seen to fail with its fit."""
    maps = acquisition(rng, 0.05)[:1]
    alone = fit_shared_field(maps, TILE, cell=CELL)
    assert not alone.values.any() and alone.values.shape == TILE
    assert (alone.n_tiles, alone.n_pairs, alone.error) == (1, 0, None)
    maps.append(TileMap(np.full_like(maps[0].values, np.nan), 0, (0, 50)))
    with pytest.raises(InputError, match="1 of 2 tiles"):
        fit_shared_field(maps, TILE, cell=CELL)


def test_basis_is_orthogonal_and_without_constant():
    u1, u2 = np.meshgrid(np.arange(200.0), np.arange(220.0), indexing="ij")
    terms = basis((200, 220), u1, u2, 4).reshape(-1, len(term_degrees(4)))
    gram = terms.T @ terms / len(terms)
    off = gram - np.diag(np.diag(gram))
    assert np.abs(off).max() < 1e-3
    assert np.abs(terms.mean(axis=0)).max() < 1e-3


@pytest.mark.parametrize("cell", [1, 4, 5])
def test_bin_map_is_numpys_median_where_half_is_known(xp, rng, cell):
    image = rng.random((33, 42), dtype=np.float32)
    image[rng.random(image.shape) < 0.45] = np.nan
    image[::3, ::7] = np.inf
    ours = bin_map(xp.asarray(image), cell)
    assert ours.dtype == np.float64 and isinstance(ours, np.ndarray)
    for i, j in np.ndindex(33 // cell, 42 // cell):
        pixels = image[i * cell : (i + 1) * cell, j * cell : (j + 1) * cell].astype(float)
        known = np.isfinite(pixels).mean() >= 0.5
        expected = np.nanmedian(pixels) if known else np.nan
        np.testing.assert_array_equal(ours[i, j], expected)


def test_bin_map_takes_medians_and_passes_gaps_on():
    image = np.arange(36.0).reshape(6, 6)
    image[0, 0] = 1e9
    image[2:4, 2:4] = np.nan
    cells = bin_map(image, 2)
    assert cells.shape == (3, 3)
    assert cells[0, 0] == np.median([1e9, 1, 6, 7])
    assert np.isnan(cells[1, 1])
    assert cells[2, 2] == np.median([28, 29, 34, 35])


def test_iterations_end_where_steps_say_nothing(rng, monkeypatch):
    """Seen to fail with a limit of two standard errors."""
    maps = acquisition(rng, 0.05, outliers=4)
    stopped = fit_shared_field(maps, TILE, cell=CELL)
    monkeypatch.setattr(shared_field, "_SMALL_STEP", 0.0)
    monkeypatch.setattr(shared_field, "_ITERATIONS", 40)
    to_the_end = fit_shared_field(maps, TILE, cell=CELL)
    error = (stopped.values - truth()).std()
    assert np.abs(stopped.values - to_the_end.values).max() < 0.01 * error
