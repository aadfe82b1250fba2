"""Integers never wrap round: values out of range are clipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from linumpy.intensity.compensate_attenuation import bin_power, bin_size
from linumpy.io.convert import Volume, whole_numbers, write_volume
from linumpy.io.convert_nifti import resample_nifti
from linumpy.io.convert_tiff import convert_omezarr_to_tiff, convert_tiff_to_omezarr
from linumpy.io.omezarr import open_image
from linumpy.io.previews import scale_to, slice_picture

TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
EDGES = [0, 1, -1, *(s * 2.0**b + d for b in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)
                     for d in (-1, -0.5, 0, 0.5, 1))]  # fmt: skip


@given(
    st.sampled_from(TYPES),
    st.sampled_from(["float32", "float64"]),
    st.lists(st.sampled_from(EDGES) | st.floats(-1e30, 1e30), min_size=1, max_size=20),
)
@settings(deadline=None, max_examples=300)
def test_rounding_to_whole_numbers_stays_within_their_range(dtype, real, values):
    """Against Python's whole numbers. Seen to fail with `rint(values).astype(dtype)` alone."""
    given_values = np.array(values).astype(real)
    limits = np.iinfo(dtype)
    found = whole_numbers(given_values, np.dtype(dtype))
    assert found.dtype == dtype
    for value, out in zip(given_values.tolist(), found.tolist(), strict=True):
        # Python rounds halves to even numbers, too.
        assert out == min(max(round(value), int(limits.min)), int(limits.max))


@given(
    arrays(np.float32, 12, elements=st.floats(width=32)),
    st.sampled_from([np.uint8, np.uint16]),
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
)
@settings(deadline=None, max_examples=150)
def test_pictures_are_clipped_and_never_wrap(values, dtype, low, span):
    """Seen to fail without `np.clip` in `scale_to`."""
    # As NumPy compares them below.
    low = float(np.float32(low))
    found = scale_to(values, low, low + span, dtype).astype(int)
    known = np.isfinite(values)
    assert (found[known & (values >= low + 1.001 * span + 1)] == np.iinfo(dtype).max).all()
    assert not found[(values <= low) | np.isnan(values)].any()
    order = np.argsort(values[known])
    assert (np.diff(found[known][order]) >= 0).all()


def test_preview_of_any_values_is_an_image():
    odd = np.array([[np.nan, np.inf, -np.inf], [3e38, -3e38, 0], [1, 2, 65536]], np.float32)
    for picture in (odd, np.zeros((3, 3)), np.full((3, 3), np.nan)):
        assert slice_picture(picture, (10, 10), 900)[0].dtype == np.uint8


@pytest.mark.parametrize("dtype", TYPES)
def test_pyramids_of_whole_numbers_hold_their_limits(tmp_path, dtype):
    """Half of a volume is the largest number of its type, half the least; so is each level.

    Seen to fail with `rint(data).astype(dtype)`: the largest uint32 became 0.
    """
    limits = np.iinfo(dtype)
    data = np.full((16, 32, 32), limits.max, dtype)
    data[:, 16:] = limits.min
    volume = Volume("v", data.shape, data.dtype, (10.0,) * 3, (0.0,) * 3, lambda box: data[box])
    write_volume(volume, tmp_path / "v.ome.zarr", [20.0])
    levels = [np.asarray(a) for a in open_image(tmp_path / "v.ome.zarr").arrays]
    np.testing.assert_array_equal(levels[0], data)
    assert levels[1].dtype == dtype
    assert (levels[1][:, :6] == limits.max).all() and (levels[1][:, 10:] == limits.min).all()
    middle = levels[1][:, 6:10].astype(object)
    assert (middle >= int(limits.min)).all() and (middle <= int(limits.max)).all()


def test_real_numbers_too_large_for_a_level_are_its_largest(tmp_path, caplog):
    """Seen to fail without the limits in `_float32`: one voxel made its whole neighbourhood inf."""
    data = np.full((8, 16, 16), 2.0)
    data[3, 3, 3], data[4, 9, 9], data[5, 9, 9] = 1e300, np.nan, -np.inf
    volume = Volume("v", data.shape, data.dtype, (10.0,) * 3, (0.0,) * 3, lambda box: data[box])
    write_volume(volume, tmp_path / "v.ome.zarr", [20.0])
    levels = [np.asarray(a) for a in open_image(tmp_path / "v.ome.zarr").arrays]
    assert levels[0][3, 3, 3] == 1e300 and all(np.isfinite(level).all() for level in levels)
    assert "v: 2 voxels are not finite; they are 0 in" in caplog.text


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int32"])
def test_tiff_and_back_keeps_every_whole_number(tmp_path, dtype):
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    data = rng.integers(limits.min, limits.max, (5, 33, 20), dtype=dtype, endpoint=True)
    data[0, 0, :2] = limits.min, limits.max
    volume = Volume("v", data.shape, data.dtype, (10.0,) * 3, (0.0,) * 3, lambda box: data[box])
    write_volume(volume, tmp_path / "v.ome.zarr", [])
    convert_omezarr_to_tiff(tmp_path / "v.ome.zarr", tmp_path / "v.tif")
    convert_tiff_to_omezarr(tmp_path / "v.tif", tmp_path / "w.ome.zarr")
    found = open_image(tmp_path / "w.ome.zarr").array
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found), data)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_a_resampled_nifti_holds_the_limits_of_its_type(tmp_path, dtype):
    """Seen to fail with `rint(slab).clip(min, max)`: the largest int32 became the least."""
    import nibabel

    limits = np.iinfo(dtype)
    data = np.full((16, 12, 10), limits.max, dtype)
    data[8:] = limits.min
    affine = np.diag([0.01, 0.01, 0.01, 1])
    picture = nibabel.Nifti1Image(data, affine, dtype=dtype)
    picture.header.set_xyzt_units("mm")
    nibabel.save(picture, tmp_path / "a.nii")
    resample_nifti(tmp_path / "a.nii", tmp_path / "b.nii", (20.0, 20.0, 20.0))
    found = np.asarray(nibabel.load(tmp_path / "b.nii").dataobj)
    assert found.dtype == dtype
    # Means are float32: they may be off in the seventh digit, but not on the other end.
    span = float(limits.max) - float(limits.min)
    assert (np.abs(found[:3].astype(float) - float(limits.max)) <= 1e-6 * span).all()
    assert (np.abs(found[5:].astype(float) - float(limits.min)) <= 1e-6 * span).all()


@given(st.floats(0.05, 500))
@settings(deadline=None, max_examples=100)
def test_counts_of_a_bin_fit_their_type(voxel_um):
    """Counts of voxels are uint16: the largest bin has far fewer."""
    assert bin_size(voxel_um) ** 2 <= np.iinfo(np.uint16).max


def test_counts_of_the_largest_bin_are_right():
    size = bin_size(1e-3)
    array = np.ones((3, 2 * size, size), np.float32)
    valid = np.ones(array.shape, np.uint8)
    valid[1] = 0
    total, count = bin_power(array, valid, size)
    assert (count[[0, 2]] == size**2).all() and not count[1].any()
    assert (total == size**2).all()
