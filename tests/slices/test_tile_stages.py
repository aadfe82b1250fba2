"""Fields learned from tiles: the maps stay on the device until they are fitted."""

import numpy as np
import pytest

from linumpy.core.device import CPU, to_host
from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.intensity.fix_illumination_3d import brightness_map
from linumpy.io.grid import open_grid
from linumpy.slices.engine import on_device
from linumpy.slices.grid_io import GridSource
from linumpy.slices.tile import Tile
from linumpy.slices.tile_stages import DetectFocalCurvature, FixIllumination3d
from linumpy.stage_params.slices import FocalParams

STAGES = [lambda: DetectFocalCurvature(FocalParams()), FixIllumination3d]


@pytest.fixture(scope="module")
def source(tiny_grids):
    return GridSource(open_grid(tiny_grids[0]))


@pytest.mark.parametrize("make", STAGES)
def test_maps_are_binned_where_the_tile_is_and_fetched_for_the_fit(make, source, device):
    stage, host = make(), make()
    keys = source.keys()
    for one, where in ((stage, device), (host, CPU)):
        one.start(source.layout)
        for key in keys:
            measured = one.measure(on_device(source.read(key), where))
            cells = measured[0] if isinstance(one, FixIllumination3d) else measured
            # Maps are small: their medians are taken on the host.
            assert isinstance(cells, np.ndarray) and cells.dtype == np.float64
            one.gather(key, measured)
    for ours, theirs in zip(stage.maps, host.maps, strict=True):
        assert isinstance(ours.values, np.ndarray)
        known = np.isfinite(theirs.values)
        assert (np.isfinite(ours.values) == known).mean() > 0.99
        both = known & np.isfinite(ours.values)
        assert both.any()
        np.testing.assert_allclose(ours.values[both], theirs.values[both], rtol=1e-3, atol=1e-3)
        assert ours.corner_px == theirs.corner_px and ours.group == theirs.group


def test_a_cell_is_the_median_of_its_pixels(source, device):
    stage = FixIllumination3d()
    stage.start(source.layout)
    tile = on_device(source.read(source.keys()[0]), device)
    pixels = to_host(brightness_map(tile.data, tile.valid)).astype(float)
    cells = stage.measure(tile)[0]
    n = stage._cell
    for i, j in ((0, 0), (3, 7), (cells.shape[0] - 1, cells.shape[1] - 1)):
        here = pixels[i * n : (i + 1) * n, j * n : (j + 1) * n]
        if np.isfinite(here).mean() >= 0.5:
            assert cells[i, j] == pytest.approx(np.log(np.nanmedian(here)), abs=1e-6)
        else:
            assert np.isnan(cells[i, j])


@pytest.mark.parametrize("step_um", [2.7, 3.54, 10.0])
def test_a_surface_in_whole_planes_interpolates_nothing(rng, device, step_um):
    """Quotients in float32 are whole but for rounding: seen to lose voxels (3.54 um)."""
    fall = np.linspace(-20, 40, 8 * 90, dtype=np.float32).reshape(8, 90) * np.float32(step_um)
    surface = FocalCurvature(fall, (step_um, 10.0, 10.0), 1, 0, 0.0).in_whole_planes()
    stage = DetectFocalCurvature(FocalParams(), surface)
    stage._voxel_um = surface.voxel_um
    data = rng.rayleigh(1.0, (120, 8, 90)).astype(np.float32)
    moved = stage.apply(on_device(Tile((0, 0), data), device))
    planes = np.rint(fall / np.float32(step_um)).astype(int)
    z = np.arange(120)[:, None, None] + planes
    inside = (z >= 0) & (z < 120)
    expected = np.take_along_axis(data, z.clip(0, 119), axis=0)
    np.testing.assert_array_equal(to_host(moved.valid), inside)
    np.testing.assert_array_equal(to_host(moved.data)[inside], expected[inside])
