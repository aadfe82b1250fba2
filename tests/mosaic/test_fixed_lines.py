"""Reflections of the optics at fixed depths of all tiles."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from linumpy.core.device import to_host
from linumpy.mosaic.clean_raw_data import clean_raw_data
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
from linumpy.mosaic.fixed_lines import fixed_lines, steady_planes, without_lines
from linumpy.mosaic.slice_tiles import prepare_tile

FACE, NOISE, TISSUE = 26, 0.05, 0.8
SHAPE = (70, 50, 44)
LINES = {8: 0.6, 9: 0.3, 40: 6.0}


def field(rng: np.random.Generator, amplitude: Any) -> np.ndarray:
    """Return speckle of an amplitude, complex."""
    parts = rng.standard_normal((2, *SHAPE)) / np.sqrt(2)
    return amplitude * (parts[0] + 1j * parts[1])


def tile(
    rng: np.random.Generator, lines: dict[int, float], looks: int = 1, face: int = FACE
) -> np.ndarray:
    """Simulate water above tissue, its detector's noise, and reflections of one phase."""
    depth = np.arange(SHAPE[0])[:, None, None]
    tissue = np.where(depth < face, 0.0, TISSUE * np.exp(-(depth - face) / 60))
    total = np.zeros(SHAPE)
    for _ in range(looks):
        light = field(rng, tissue) + field(rng, NOISE)
        for plane, amplitude in lines.items():
            light[plane] += amplitude * np.exp(0.7j)
        total += np.abs(light)
    return (total / looks).astype(np.float32)


@pytest.mark.parametrize("looks", [1, 8])
@pytest.mark.parametrize("unit", [1.0, 2.0**-20, 2.0**20])
def test_lines_are_found_in_any_unit_and_in_averaged_data(rng, looks, unit):
    """In water and in tissue. Speckle and noise show none."""
    volume = tile(rng, LINES, looks) * np.float32(unit)
    assert np.flatnonzero(steady_planes(volume)).tolist() == [8, 9, 40]
    assert not steady_planes(tile(rng, {}, looks) * np.float32(unit)).any()
    # Samples that do not count: two thirds of the A-lines were not written, some are no numbers.
    volume[:, :33] = 0
    volume[:, 40, :9] = np.nan
    assert np.flatnonzero(steady_planes(volume)).tolist() == [8, 9, 40]


def test_what_is_bright_and_not_steady_is_no_line(rng):
    """Seen to fail without the condition on the spread."""
    bright = tile(rng, {})
    bright[12] = 100 * bright[11]
    assert not steady_planes(bright).any()


def test_what_is_steady_and_not_bright_is_no_line(rng):
    """Seen to fail without the condition on brightness."""
    dim = tile(rng, {})
    dim[12] = NOISE * (1 + 0.01 * rng.random(SHAPE[1:]))
    assert not steady_planes(dim).any()


def test_a_thick_layer_is_no_line(rng):
    """Seen to fail without a limit on planes next to each other: a fibre tract in averaged data."""
    layer = tile(rng, {}, looks=30)
    layer *= np.exp(0.8 * rng.standard_normal((1, *SHAPE[1:]))).astype(np.float32)
    layer[40:46] = 3 * TISSUE * (1 + 0.1 * rng.standard_normal((6, *SHAPE[1:])))
    assert not steady_planes(layer).any()


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_a_plane_of_one_value_is_no_line(rng, value):
    """Of a detector that saturates, or of software that cuts noise off."""
    saturated = tile(rng, {})
    saturated[30] = value
    assert not steady_planes(saturated).any()
    saturated[:FACE] = value
    assert not steady_planes(saturated).any()
    assert not steady_planes(np.full((1, 8, 8), value)).any()


def test_a_reflection_of_one_tile_is_no_line(rng):
    """As of a bubble, or of a face that lies square to the beam. Seen to fail with any tile."""
    tiles = [tile(rng, {8: 0.6} | ({14 + n: 0.9} if n < 2 else {}), face=24 + n) for n in range(5)]
    assert np.flatnonzero(fixed_lines(tiles)).tolist() == [7, 8, 9]
    assert np.flatnonzero(fixed_lines(tiles[:1])).tolist() == [7, 8, 9, 13, 14, 15]


def test_planes_of_lines_get_the_mean_of_what_is_around(xp, rng):
    clean, shown = tile(rng, {}), tile(rng, LINES)
    found, usable = without_lines(xp.asarray(shown), fixed_lines([shown]), None)
    assert usable is None
    wanted = clean.mean(axis=(1, 2))
    np.testing.assert_allclose(to_host(found).mean(axis=(1, 2)), wanted, rtol=0.06)


def test_planes_are_interpolated_and_their_masks_joined(xp, rng):
    """Half way between two planes, exactly; at the top, the next plane."""
    shown = rng.random(SHAPE, np.float32)
    lines = np.isin(np.arange(SHAPE[0]), [0, 30])
    usable = np.ones(SHAPE, bool)
    usable[29, 3, 4] = usable[1, 5, 6] = usable[0, 7, 8] = False
    mended, counts = without_lines(xp.asarray(shown), lines, xp.asarray(usable))
    mended, counts = to_host(mended), to_host(counts)
    np.testing.assert_allclose(mended[30], (shown[29] + shown[31]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(mended[0], shown[1])
    np.testing.assert_array_equal(mended[~lines], shown[~lines])
    assert np.argwhere(~counts).tolist() == [[0, 5, 6], [1, 5, 6], [29, 3, 4], [30, 3, 4]]


def test_a_tile_is_flagged_where_planes_are_interpolated(xp, rng):
    volume = xp.asarray(tile(rng, LINES))
    lines = fixed_lines([to_host(volume)])
    assert prepare_tile(volume, [None] * 3, lines).notes.flags == ("lines:7",)
    for none in (None, np.zeros(SHAPE[0], bool)):
        prepared = prepare_tile(volume, [None] * 3, none)
        assert prepared.notes.flags == ()
        np.testing.assert_array_equal(to_host(prepared.data), to_host(volume))


def test_lines_of_a_slice_are_interpolated_in_its_grid_and_its_raw_tiles_kept(
    acquisition, rng, caplog, tmp_path
):
    """Of all tiles, as they are told by some.

    Seen to fail with `clean_raw_data` not looking for lines: the raw tiles were gone.
    """
    acquisition.nz, acquisition.n_extra, acquisition.nx = 40, 0, 40
    indices = [(i, j) for i in (0, 1) for j in (0, 1, 2)]
    acquisition.add_slice(3, indices)
    for ix, iy in indices:
        path = acquisition.image_path(3, ix, iy)
        samples = np.fromfile(path, "<f4").reshape(acquisition.ny, acquisition.nx, 40)
        noise = np.abs(rng.standard_normal(samples.shape) + 1j * rng.standard_normal(samples.shape))
        samples[:] = noise
        samples[..., 12] = 20 + noise[..., 12]
        samples.astype("<f4").tofile(path)
    grid = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    with caplog.at_level(logging.WARNING, "linumpy"):
        info = create_mosaic_grid_3d(acquisition.root, 3, grid)
    assert all("lines:3" in t.flags for t in info.tiles)
    assert caplog.text.count("3 of 40 planes are interpolated") == 1
    clean_raw_data(acquisition.root, tmp_path, [3])
    assert all(acquisition.image_path(3, *index).exists() for index in indices)
