import numpy as np
import pytest

from linumpy.device import to_host
from linumpy.errors import InputError
from linumpy.geometry.crop_3d_mosaic_below_interface import (
    crop_3d_mosaic_below_interface,
    interface_depths,
    solve_interface_cut,
)


def test_cut_lies_at_the_median_face(xp):
    depth = np.array([18, 20, 20, 22, 40])[:, None] + np.zeros((5, 40), int)
    volume = np.where(np.arange(70)[:, None, None] < depth, 1, 9).astype(np.float32)
    found = interface_depths(xp.asarray(volume), None, s_xy=1, s_z=2.0, max_depth_fraction=1.0)
    cut = solve_interface_cut([found[:50], found[50:]], 7, 70, 10.0, 300.0)
    assert cut.interface_um == pytest.approx(200, abs=1)
    assert (cut.first_plane, cut.n_planes, cut.depth_um) == (20, 30, 300)
    kept = crop_3d_mosaic_below_interface(xp.asarray(volume), cut.first_plane, cut.n_planes)
    np.testing.assert_array_equal(to_host(kept), volume[20:50])


def test_only_the_upper_share_is_searched(xp):
    volume = np.ones((60, 8, 8), np.float32)
    volume[20:] = 2
    volume[45:] = 50
    found = interface_depths(xp.asarray(volume), None, s_xy=1, s_z=2.0, max_depth_fraction=0.5)
    np.testing.assert_allclose(found, 20, atol=0.1)


def test_a_short_slice_keeps_what_there_is():
    cut = solve_interface_cut([np.full(9, 20.0)], 0, 50, 10.0, 600.0)
    assert (cut.n_planes, cut.depth_um) == (30, 300)


def test_no_interface_or_nothing_below_it_is_an_error():
    with pytest.raises(InputError, match="slice z03: no A-line"):
        solve_interface_cut([np.zeros(0)], 3, 50, 10.0, 600.0)
    with pytest.raises(InputError, match="nothing below"):
        solve_interface_cut([np.full(9, 50.0)], 3, 50, 10.0, 600.0)
