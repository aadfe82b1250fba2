"""What steps on the whole brain hold does not grow with its slices."""

import tracemalloc

import numpy as np
import pytest

from linumpy.brain.bias import model as bias_model
from linumpy.brain.bias.learning import learn, sections
from linumpy.brain.bias.model import fit_fields
from linumpy.brain.bias.plane_table import PlaneTable
from linumpy.brain.bias.shares import equal_sections, stacked_sections
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import volume_spec
from linumpy.stage_params.bias import BiasParams


def peak_nbytes(folder, n_planes):
    """Largest traced memory while the bias field of a brain of so many planes is learned."""
    rng = np.random.default_rng(1)
    shape, path = (n_planes, 24, 24), folder / f"{n_planes}.ome.zarr"
    about = {"kind": "brain", "slice_ids": list(range(n_planes // 16))}
    spec = volume_spec(shape, (10.0,) * 3, (0.0,) * 3, about)
    with create_image(path, spec, overwrite=False) as image:
        image.array[...] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    params = BiasParams(engine="linumpy", mode="global")
    image = open_image(path)
    tracemalloc.start()
    try:
        learn(image, *sections(image, None, None), params, scratch=folder / f"{n_planes}.table")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_learning_a_bias_field_takes_no_more_for_four_times_the_planes(tmp_path):
    """Seen to fail with quantiles of planes in memory."""
    peak_nbytes(tmp_path, 128)  # Imports.
    few, many = (peak_nbytes(tmp_path, n) for n in (1024, 4096))
    assert many < 1.05 * few


def test_shares_grow_with_the_slices_alone():
    """Seen to fail with a row of all planes for each slice: sixteenfold."""

    def stacked(n):
        place = {"first_plane_px": 4, "n_planes": 44, "overlap_px": 20}
        slices = [{**place, "z_start_px": 20 * k} for k in range(n)]
        return stacked_sections(slices, 20 * n + 24)

    assert stacked(400).values.nbytes == 4 * stacked(100).values.nbytes
    assert equal_sections(400, 8000).values.nbytes == 4 * equal_sections(100, 2000).values.nbytes


@pytest.mark.parametrize("factor", [1, 3, 4])
def test_shares_of_layers_are_means_over_planes(rng, factor):
    slices = [
        {"z_start_px": z, "first_plane_px": 2, "n_planes": 17, "overlap_px": 5}
        for z in (0, 9, 21, 34)
    ]
    shares = stacked_sections(slices, 51)
    layers = shares.of_layers(factor)
    planes, found = shares.at(slice(0, 51)), layers.at(slice(0, layers.n_planes))
    assert found.shape == (4, -(-51 // factor))
    for k in range(found.shape[1]):
        expected = planes[:, k * factor : (k + 1) * factor].mean(axis=1)
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-6)
    np.testing.assert_array_equal(layers.at(slice(2, 5)), found[:, 2:5])


def test_rows_of_planes_are_read_as_they_were_written(rng, tmp_path):
    table, rows = PlaneTable(tmp_path / "rows", (10, 3)), rng.normal(size=(10, 3))
    rows[4] = np.nan
    for planes in (slice(6, 10), slice(0, 6)):
        table[planes] = rows[planes]
    np.testing.assert_array_equal(table[:], rows)
    np.testing.assert_array_equal(table[5:8], rows[5:8])
    assert table.size == 30 and table[10:12].shape == (0, 3)


@pytest.mark.parametrize("mode", ["global", "two_pass"])
def test_field_fitted_to_fewer_layers_is_that_of_all(rng, xp, monkeypatch, mode):
    """Seen to fail with means of layers, whose histogram is narrower, and with places of all."""
    shape = (122, 16, 16)
    places = [np.arange(n) for n in shape]
    truth = 0.3 * np.sin(places[0] / 25)[:, None, None] + 0.02 * places[1][:, None]
    cells = np.exp(truth + 0.05 * rng.normal(size=shape))
    mask = rng.random(shape) > 0.2
    mask[60:63] = False
    params = BiasParams(engine="linumpy", mode=mode, global_distance_mm=1.5)
    shares = equal_sections(4, shape[0])
    log_values = []
    for most in (122, 40):
        monkeypatch.setattr(bias_model, "_MAX_LAYERS", most)
        given = [xp.asarray(a) for a in (np.where(mask, cells, 9).astype(np.float32), mask)]
        fields = fit_fields(*given, shares, (0.04,) * 3, params)
        weights = shares.at(slice(0, shape[0]))
        found = fields.log_values(places, weights, xp.zeros(1, np.float32))
        log_values.append(np.asarray(found.get() if hasattr(found, "get") else found))
    inside = mask & (np.arange(shape[0]) > 2)[:, None, None]
    error = [np.std((found - truth)[inside]) for found in log_values]
    assert np.abs(log_values[0] - log_values[1])[inside].max() < 0.03
    assert error[1] < 1.1 * error[0]
