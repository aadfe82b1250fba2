import numpy as np
import pytest

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.geometry.crop_3d_mosaic_below_interface import (
    crop_3d_mosaic_below_interface,
    cut_planes,
    searched_planes,
    solve_interface_cut,
)
from linumpy.geometry.interface_surface import log_profiles

SHAPE = (70, 160, 128)


def tilted(fall):
    """Steps from 1 to 9 at a face of depth 20 that falls along axis 1; also the face."""
    face = 20 + fall * ((np.arange(SHAPE[1]) + 0.5) / SHAPE[1] - 0.5)[:, None]
    face = face + np.zeros(SHAPE[1:])
    share = np.clip(np.arange(SHAPE[0])[:, None, None] + 1 - face, 0, 1)
    return (1 + 8 * share).astype(np.float32), face


def cut_of(volume, *, fraction=1.0, flat=False, depth_um=300.0, valid=None):
    planes = searched_planes(len(volume), fraction)
    there = None if valid is None else valid[:planes]
    sums, counts = (to_host(a) for a in log_profiles(volume[:planes], there, 16))
    return solve_interface_cut(
        sums, counts, slice_id=7, n_planes=len(volume), voxel_um=(10.0, 10.0, 10.0),
        corner_um=(500.0, -20.0), cell_px=16, s_z=2.0, depth_um=depth_um, flat=flat,
    )  # fmt: skip


@pytest.mark.parametrize("fall", [0.0, 6.0, -14.0])
def test_the_cut_follows_the_face(xp, fall):
    volume, face = tilted(fall)
    cut = cut_of(xp.asarray(volume))
    assert cut.interface_um == pytest.approx(200, abs=3)
    assert cut.tilt_um == pytest.approx((10 * fall * 9 / 10, 0), abs=5)
    assert cut.used_fraction > 0.95 and cut.corner_um == (500.0, -20.0)
    window = (slice(0, 160), slice(0, 128))
    top = cut_planes(cut, (10.0, 10.0, 10.0), window)
    assert top.min() == 0 and np.abs(top + cut.first_plane - face).max() < 1.6
    kept, valid = crop_3d_mosaic_below_interface(
        xp.asarray(volume), None, cut.first_plane, cut.n_planes, top
    )
    # The depth asked for is kept below the face everywhere.
    assert cut.n_planes - top.max() == 30
    kept = to_host(kept)
    inside = np.arange(cut.n_planes)[:, None, None] >= top
    if valid is not None:
        np.testing.assert_array_equal(to_host(valid), inside)
    part = volume[cut.first_plane : cut.first_plane + cut.n_planes]
    np.testing.assert_array_equal(kept, np.where(inside, part, 0))
    # Blocks cut alone are those of the whole.
    again = cut_planes(cut, (10.0, 10.0, 10.0), (slice(64, 160), slice(32, 100)))
    np.testing.assert_array_equal(again, top[64:160, 32:100])


def test_the_depth_of_a_tilted_slice_is_the_same_with_a_corner_masked(xp):
    volume, _ = tilted(12.0)
    valid = np.ones(SHAPE, np.uint8)
    valid[:, 96:, 64:] = 0
    cut = cut_of(xp.asarray(volume), valid=xp.asarray(valid))
    # The mean of what is left lies 1 voxel higher.
    assert cut.interface_um == pytest.approx(cut_of(xp.asarray(volume)).interface_um, abs=1)


def test_a_voxel_belongs_to_the_tissue_when_most_of_it_lies_below():
    volume, _ = tilted(0.0)
    for depth, first in ((20.3, 20), (20.7, 21)):
        share = np.clip(np.arange(70)[:, None, None] + 1 - depth, 0, 1) + np.zeros(SHAPE)
        cut = cut_of((1 + 8 * share).astype(np.float32))
        top = cut_planes(cut, (10.0, 10.0, 10.0), (slice(0, 160), slice(0, 128)))
        assert cut.interface_um == pytest.approx(10 * depth, abs=2)
        np.testing.assert_array_equal(top + cut.first_plane, first)


def test_a_flat_cut_is_one_plane_at_the_mean(xp):
    volume, _ = tilted(12.0)
    cut = cut_of(xp.asarray(volume), flat=True)
    assert (cut.flat, cut.first_plane, cut.n_planes, cut.depth_um) == (True, 20, 30, 300)
    assert cut.interface_um == pytest.approx(200, abs=3)
    window = (slice(0, 160), slice(0, 128))
    assert cut_planes(cut, (10.0, 10.0, 10.0), window) is None
    kept, valid = crop_3d_mosaic_below_interface(xp.asarray(volume), None, 20, 30)
    assert valid is None
    np.testing.assert_array_equal(to_host(kept), volume[20:50])


def test_masks_are_cut_with_the_data_and_nothing_is_changed_in_place(xp, rng):
    volume = xp.asarray(rng.uniform(1, 2, (10, 4, 5)).astype(np.float32))
    valid = xp.asarray((rng.random((10, 4, 5)) < 0.7).astype(np.uint8))
    before = to_host(volume).copy(), to_host(valid).copy()
    top = rng.integers(0, 6, (4, 5)).astype(np.int32)
    kept, mask = crop_3d_mosaic_below_interface(volume, valid, 0, 10, top)
    inside = np.arange(10)[:, None, None] >= top
    np.testing.assert_array_equal(to_host(kept), np.where(inside, before[0], 0))
    np.testing.assert_array_equal(to_host(mask), before[1] * inside)
    np.testing.assert_array_equal(to_host(volume), before[0])
    np.testing.assert_array_equal(to_host(valid), before[1])


def test_only_the_upper_share_is_searched(xp):
    volume = np.ones((60, 64, 64), np.float32)
    volume[20:] = 2
    volume[45:] = 50
    assert cut_of(xp.asarray(volume), fraction=0.5).interface_um == pytest.approx(200, abs=1)
    assert [searched_planes(n, 0.5) for n in (60, 61, 4, 2)] == [30, 31, 3, 2]


def test_a_short_slice_keeps_what_there_is():
    volume, _ = tilted(4.0)
    cut = cut_of(volume[:50], depth_um=600.0)
    assert cut.first_plane + cut.n_planes == 50


def test_no_interface_or_nothing_below_it_is_an_error():
    with pytest.raises(InputError, match="slice z07: no A-line"):
        cut_of(np.zeros((50, 32, 32), np.float32))
    volume = np.ones((50, 32, 32), np.float32)
    volume[49:] = 9
    with pytest.raises(InputError, match=r"slice z07: interface at plane \d+ of 50, nothing below"):
        cut_of(volume, depth_um=4.0)
