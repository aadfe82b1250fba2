"""Stacking compared with a slow reference, on scenes that interpolation keeps exactly."""

import logging
import random
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import shift as scipy_shift

from linumpy.brain import brain_blocks, stacking
from linumpy.brain.register_slices import motor_registration
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.slice_volumes import open_slices
from linumpy.brain.stack_slices_motor import brain_geometry, stack_slices_motor, z_matches
from linumpy.core.device import CPU, to_host
from linumpy.core.errors import InputError
from linumpy.geometry.resample import HALF, axis_weights
from linumpy.geometry.turned import rotation_matrix
from linumpy.io import pyramid
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX, volume_spec
from linumpy.stage_params.brain import StackParams
from linumpy.store.plain_arrays import PlainArray

VOXEL_UM = (10.0, 8.0, 8.0)
INTERVAL_UM = 50.0


def write_slice(folder, slice_id, data, *, corner_um=(0.0, 0.0), valid=None, **changes):
    """A slice cut at its interface, 120 um below the top of its imaged range."""
    voxel_um = changes.pop("voxel_um", VOXEL_UM)
    described = {
        "kind": "slice", "slice_id": slice_id, "slice_interval_um": INTERVAL_UM,
        "interface_um": 120.0, "stage_to_array": "+x,+y", "nominal_positions": False, **changes,
    }  # fmt: skip
    path = folder / f"slice_z{slice_id:02d}.ome.zarr"
    spec = volume_spec(data.shape, voxel_um, (120.0, *corner_um), described)
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[...] = data
        image.valid[...] = 1 if valid is None else valid
    return path


def registration(offsets_um, reference_id):
    return SliceRegistration(
        reference_id,
        VOXEL_UM,
        INTERVAL_UM,
        [{"slice_id": k, "offset_um": list(v), "n_pairs": 1} for k, v in offsets_um.items()],
        [],
    )


def stack(slices, model, output, device, **params):
    given = {"first_plane": 2, **params}
    return stack_slices_motor(
        slices, model, output, StackParams(**given), resolutions_um=[], device=device
    )


def scene(z_um, i_um, j_um):
    return 5 + 0.01 * z_um + 0.02 * i_um - 0.015 * j_um


def slice_of_scene(slice_id, shape, true_um):
    """The scene as a slice sees it whose voxel 0 has its corner at `true_um`."""
    z, i, j = ((np.arange(n) + 0.5) * v for n, v in zip(shape, VOXEL_UM, strict=True))
    return scene(
        (true_um[0] + z)[:, None, None],
        (true_um[1] + i)[None, :, None],
        (true_um[2] + j)[None, None, :],
    ).astype(np.float32)


@pytest.mark.parametrize("blend", [True, False])
def test_a_scene_comes_back_at_its_world_positions(tmp_path, device, blend):
    """Slices 4, 5 and 7, each off in three axes by what the registration says."""
    offsets = {4: (0.0, 0.0, 0.0), 5: (10.0, 13.0, -21.0), 7: (-20.0, -3.5, 6.2)}
    shape = (14, 40, 44)
    paths = []
    for k, offset in offsets.items():
        corner = np.array([100.0 + 5 * k, 300.0 - 9 * k])
        true_um = ((k - 4) * INTERVAL_UM + offset[0], *(corner + offset[1:]))
        data = slice_of_scene(k, shape, true_um)
        paths.append(write_slice(tmp_path / "s", k, data, corner_um=corner))
    slices = open_slices(paths, device=device)
    out = tmp_path / "b.ome.zarr"
    brain = stack(slices, registration(offsets, 5), out, device, blend=blend)
    image = open_image(out)
    data, valid = image.array[...], image.valid[...]
    position = [
        t + np.arange(n) * v
        for t, n, v in zip(image.translation_um, data.shape, VOXEL_UM, strict=True)
    ]
    z, i, j = np.nonzero(valid)
    expected = scene(position[0][z], position[1][i], position[2][j])
    np.testing.assert_allclose(data[z, i, j], expected, atol=1e-4)
    assert (data[valid == 0] == 0).all()
    # Depths: 0, 50 + 10 and 150 - 20 um, in planes of 10 um. Slice 5 ends at plane 20.
    assert [s["z_start_px"] for s in brain.slices] == [0, 6, 13]
    assert [s["overlap_px"] for s in brain.slices] == [0, 6, 5]
    assert data.shape[0] == 27
    # The reference is not interpolated: all its pixels are there. The others lose one line each.
    per_plane = valid.sum(axis=(1, 2))
    assert per_plane[0] == 39 * 43 and per_plane[-1] == 39 * 43
    canvas = np.array(brain.slices[1]["canvas_origin_px"])
    np.testing.assert_allclose(canvas, np.rint(canvas), atol=1e-9)


def turned_registration(offsets_um, turns_deg, reference_id, pivot_um):
    model = registration(offsets_um, reference_id)
    slices = [{**s, "rotation_deg": turns_deg[s["slice_id"]]} for s in model.slices]
    return replace(model, slices=slices, pivot_um=pivot_um)


def test_rotated_slices_come_back_at_their_common_positions(tmp_path, device):
    """Each slice sees the scene along its own axes; the brain shows it along the reference's."""
    offsets = {0: (0.0, 9.0, -14.0), 1: (0.0, 0.0, 0.0), 2: (10.0, -20.5, 6.2)}
    turns = {0: 1.3, 1: 0.0, 2: -4.0}
    pivot = np.array([460.0, 520.0])
    shape, paths = (14, 60, 64), []
    z = (np.arange(shape[0]) + 0.5) * VOXEL_UM[0]
    for k, offset in offsets.items():
        corner = np.array([200.0 + 5 * k, 300.0 - 9 * k])
        sides = [c + (np.arange(n) + 0.5) * 8.0 for c, n in zip(corner, shape[1:], strict=True)]
        points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1) - pivot
        common = points @ rotation_matrix(turns[k]).T + pivot + offset[1:]
        depth = k * INTERVAL_UM + offset[0] + z
        data = scene(depth[:, None, None], common[..., 0], common[..., 1]).astype(np.float32)
        paths.append(write_slice(tmp_path / "s", k, data, corner_um=corner))
    slices = open_slices(paths, device=device)
    out = tmp_path / "b.ome.zarr"
    model = turned_registration(offsets, turns, 1, tuple(pivot))
    brain = stack(slices, model, out, device)
    image = open_image(out)
    data, valid = image.array[...], image.valid[...]
    position = [
        t + np.arange(n) * v
        for t, n, v in zip(image.translation_um, data.shape, VOXEL_UM, strict=True)
    ]
    k, i, j = np.nonzero(valid)
    expected = scene(position[0][k], position[1][i], position[2][j])
    np.testing.assert_allclose(data[k, i, j], expected, atol=2e-4)
    assert (data[valid == 0] == 0).all()
    assert [s["rotation_deg"] for s in brain.slices] == [1.3, 0.0, -4.0]
    # A turned slice loses about one line of its pixels, and none beyond.
    for plane in (0, -1):
        assert 59 * 63 - 130 < valid[plane].sum() <= 60 * 64


def test_a_tilted_cut_leaves_no_step_and_no_untrusted_plane(tmp_path, device):
    """The upper slice shows 1, the lower one 2, whose face lies deeper from column to column."""
    shape, first = (20, 6, 16), 2
    face = np.broadcast_to(np.arange(16) // 2, shape[1:])
    valid = (np.arange(shape[0])[:, None, None] >= face).astype(np.uint8)
    paths = [
        write_slice(tmp_path / "s", 0, np.ones(shape, np.float32)),
        write_slice(tmp_path / "s", 1, np.full(shape, 2, np.float32) * valid, valid=valid),
    ]
    slices = open_slices(paths, device=device)
    model = motor_registration(slices, VOXEL_UM, INTERVAL_UM)
    stack(slices, replace(model, reference_id=0), tmp_path / "b.ome.zarr", device)
    data = open_image(tmp_path / "b.ome.zarr").array[...]
    assert open_image(tmp_path / "b.ome.zarr").valid[...].all()
    for column in range(16):
        begin = 5 + first + column // 2
        overlap = 20 - begin
        seen = data[:, 3, column]
        assert (seen[:begin] == 1).all() and (seen[20:] == 2).all()
        np.testing.assert_allclose(seen[begin:20], 1 + stacking.hann_weights(overlap), rtol=1e-6)


def test_measured_tissue_beats_interpolated(tmp_path, device):
    """Slice 1 was made: it shows only where neither neighbour does, and all its planes count."""
    shape = (6, 8, 8)
    data = [np.full(shape, k + 1, np.float32) for k in range(3)]
    place = {"offset_um": [-10.0, 16.0, 0.0], "rotation_deg": 0.0}
    paths = [
        write_slice(tmp_path / "s", 0, data[0]),
        write_slice(tmp_path / "s", 1, data[1], interpolated=True, placement=place),
        write_slice(tmp_path / "s", 2, data[2]),
    ]
    slices = open_slices(paths, device=device)
    model = registration({0: (0, 0, 0), 2: (0, 0, 0)}, 0)
    brain = stack(slices, model, tmp_path / "b.ome.zarr", device)
    assert [s["z_start_px"] for s in brain.slices] == [0, 4, 10]
    assert [s["first_plane_px"] for s in brain.slices] == [0, 0, 2]
    assert brain.slices[1]["canvas_origin_px"] == [2.0, 0.0]
    image = open_image(tmp_path / "b.ome.zarr")
    seen = image.array[:, 4, 4]
    np.testing.assert_array_equal(seen, [1] * 6 + [2] * 4 + [0] * 2 + [3] * 4)
    lacking = {"offset_um": [0.0]}
    odd = write_slice(tmp_path / "o", 1, data[1], interpolated=True, placement=lacking)
    with pytest.raises(InputError, match=r"slice_z01.*placement"):
        open_slices([odd])


def slow_brain(slices, arrays, masks, offsets_px, starts, n_planes, canvas, first_plane):
    """Whole volumes, moved by SciPy and laid over each other plane by plane."""
    out, there = np.zeros((n_planes, *canvas)), np.zeros((n_planes, *canvas), bool)
    bottom = 0
    for n, k in enumerate(slices):
        shape = arrays[k].shape
        data, good = (np.zeros((shape[0], *canvas)) for _ in range(2))
        data[:, : shape[1], : shape[2]] = arrays[k] * masks[k]
        good[:, : shape[1], : shape[2]] = masks[k]
        move = (0, *offsets_px[k])
        data, good = (scipy_shift(a, move, order=1) for a in (data, good))
        good = good > 1 - 1e-6
        # A column begins so many planes below its own first valid one.
        first = np.where(good.any(axis=0), good.argmax(axis=0), shape[0])
        top = starts[k] + (first + first_plane if n else 0 * first)
        overlap = bottom - top
        for z in range(starts[k], starts[k] + shape[0]):
            new, old = good[z - starts[k]] & (z >= top), there[z].copy()
            share = 0.5 - 0.5 * np.cos(np.pi * (z - top + 0.5) / np.maximum(overlap, 1))
            share = np.where(old & (z < bottom), share, 1.0)
            mixed = (1 - share) * out[z] + share * data[z - starts[k]]
            out[z] = np.where(new, mixed, out[z])
            there[z] |= new
        bottom = max(bottom, starts[k] + shape[0])
    return np.where(there, out, 0), there


@pytest.fixture
def holed(tmp_path, rng):
    """Three slices of noise with holes, wider than a shard, the middle one moved by (2.25, 1.5)."""
    arrays, masks, paths = {}, {}, []
    for k in range(3):
        arrays[k] = rng.random((12, 270, 10), dtype=np.float32)
        masks[k] = (rng.random((12, 270, 10)) > 0.05).astype(np.uint8)
        corner = (18.0, 12.0) if k == 1 else (0.0, 0.0)
        data = arrays[k] * masks[k]
        paths.append(write_slice(tmp_path / "s", k, data, corner_um=corner, valid=masks[k]))
    return paths, arrays, masks


def test_agrees_with_a_slow_model_across_shards(holed, tmp_path, device):
    paths, arrays, masks = holed
    slices = open_slices(paths, device=device)
    model = motor_registration(slices, VOXEL_UM, INTERVAL_UM)
    model = SliceRegistration(0, VOXEL_UM, INTERVAL_UM, model.slices, [])
    stack(slices, model, tmp_path / "b.ome.zarr", device)
    image = open_image(tmp_path / "b.ome.zarr")
    moves = {0: (0, 0), 1: (2.25, 1.5), 2: (0, 0)}
    starts = {0: 0, 1: 5, 2: 10}
    assert image.array.shape == (22, 273, 12)
    expected, there = slow_brain(range(3), arrays, masks, moves, starts, 22, (273, 12), 2)
    np.testing.assert_array_equal(image.valid[...] > 0, there)
    np.testing.assert_allclose(image.array[...], expected, atol=2e-6)


def test_the_size_of_the_blocks_changes_no_bit(holed, tmp_path, device, monkeypatch):
    slices = open_slices(holed[0], device=device)
    model = motor_registration(slices, VOXEL_UM, INTERVAL_UM)
    stack(slices, model, tmp_path / "whole.ome.zarr", device)
    monkeypatch.setattr(stacking, "BLOCK_PX", SHARD_PX)
    monkeypatch.setattr(brain_blocks, "BLOCK_PX", SHARD_PX)
    # A GPU takes no more than one block then.
    monkeypatch.setattr(brain_blocks, "free_gpu_bytes", lambda: 0)
    monkeypatch.setattr(stacking, "SLAB_PX", SHARD_PX)
    monkeypatch.setattr(stacking, "CHUNK_PX", 5)
    stack(slices, model, tmp_path / "bits.ome.zarr", device)
    whole, bits = (open_image(tmp_path / f"{n}.ome.zarr") for n in ("whole", "bits"))
    np.testing.assert_array_equal(whole.array[...], bits.array[...])
    np.testing.assert_array_equal(whole.valid[...], bits.valid[...])


def test_gap_in_depth_is_left_empty_with_a_warning(tmp_path, device, caplog):
    paths = [
        write_slice(tmp_path / "s", k, np.full((12, 6, 6), k + 1, np.float32)) for k in (0, 1, 5)
    ]
    slices = open_slices(paths, device=device)
    model = motor_registration(slices, VOXEL_UM, INTERVAL_UM)
    with caplog.at_level(logging.WARNING, "linumpy"):
        brain = stack(slices, model, tmp_path / "b.ome.zarr", device)
    assert [s["z_start_px"] for s in brain.slices] == [0, 5, 25]
    # Slice 1 ends at plane 17; slice 5 begins at 25 and its first two planes are not used.
    assert "slices z01 and z05 leave a gap of 10 planes" in caplog.text
    image = open_image(tmp_path / "b.ome.zarr")
    assert not image.valid[17:27].any() and not image.array[17:27].any()
    assert set(np.unique(image.array[27:])) == {6.0}
    assert set(np.unique(image.array[12:17])) == {2.0}
    assert z_matches(brain.slices) == [
        {"fixed_id": 0, "moving_id": 1, "overlap_voxels": 5, "moving_z_start": 5},
        {"fixed_id": 1, "moving_id": 5, "overlap_voxels": 0, "moving_z_start": 25},
    ]


def test_a_reference_that_is_left_out_is_replaced(tmp_path):
    paths = [write_slice(tmp_path / "s", k, np.ones((4, 5, 6), np.float32)) for k in (0, 1)]
    offsets = {0: (0, 3.0, 1.0), 1: (0, 0, 0), 2: (0, 0, 0)}
    canvas, _ = brain_geometry(open_slices(paths), registration(offsets, 2), StackParams())
    np.testing.assert_allclose(canvas.origin_px[0], np.rint(canvas.origin_px[0]), atol=1e-9)


def test_slices_come_sorted_by_their_own_ids(tmp_path):
    data = np.ones((4, 5, 6), np.float32)
    paths = [write_slice(tmp_path / "s", k, data, corner_um=(k, -k)) for k in (11, 2, 3)]
    slices = open_slices(paths)
    assert [s.slice_id for s in slices] == [2, 3, 11]
    assert slices[0].shape == (4, 5, 6) and slices[0].corner_um == (2, -2)
    assert slices[0].face_to_plane_um == pytest.approx(0, abs=1e-9)


def test_volumes_that_are_no_slices_are_named(tmp_path):
    """Seen to fail without the errors of `stack_slices_motor._slice_volume` and
    `stack_slices_motor.open_slices`.
    """
    data = np.ones((4, 5, 6), np.float32)
    good = write_slice(tmp_path / "s", 0, data)
    with pytest.raises(InputError, match="no slice volume"):
        open_slices([])
    uncropped = write_slice(tmp_path / "u", 1, data, interface_um=None)
    with pytest.raises(InputError, match=r"slice_z01.*cropped at its interface"):
        open_slices([good, uncropped])
    brain = write_slice(tmp_path / "k", 2, data, kind="brain")
    with pytest.raises(InputError, match=r"slice_z02.*expected a slice"):
        open_slices([good, brain])
    other = write_slice(tmp_path / "v", 3, data, voxel_um=(10.0, 8.0, 16.0))
    with pytest.raises(InputError, match=r"slice_z03.*voxel size.*16\.0.*slice_z00"):
        open_slices([good, other])


def test_a_spoiled_slice_stops_the_brain_and_is_named(tmp_path, device, rng):
    """Seen to fail without the errors of `chunk_guard._check_bytes` and `reading.reading`."""
    data = rng.random((12, 40, 40), dtype=np.float32)
    paths = [write_slice(tmp_path / "s", k, data) for k in (0, 1)]
    shard = paths[1] / "0/c/0/0/0"
    content = bytearray(shard.read_bytes())
    content[500] ^= 16
    shard.write_bytes(content)
    slices = open_slices(paths, device=device)
    model = motor_registration(slices, VOXEL_UM, INTERVAL_UM)
    with pytest.raises(InputError, match=r"slice_z01\.ome\.zarr: planes 0-12 cannot be read"):
        stack(slices, model, tmp_path / "b.ome.zarr", device)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]


LEVELS_UM = (25.0, 60.0)
PLANES_APART = 20


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three slices of 60 x 530 x 40 noise with holes, each a fraction of a pixel away."""
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("three")
    paths = []
    for k, corner in enumerate([(0.0, 0.0), (18.0, 12.0), (-5.5, 3.25)]):
        valid = (rng.random((60, 530, 40)) > 0.02).astype(np.uint8)
        valid[:, :40] = 0
        valid[:, 300:] = 1
        data = rng.random(valid.shape, dtype=np.float32) * valid
        paths.append(write_slice(folder, k, data, corner_um=corner, valid=valid))
    return paths


def many(paths, n, device=CPU):
    """A stack of `n` slices, the same few again and again, and its registration."""
    slices = open_slices(paths, device=device)
    slices = [replace(slices[k % len(slices)], slice_id=k) for k in range(n)]
    offsets = [{"slice_id": k, "offset_um": [0.0] * 3, "n_pairs": 1} for k in range(n)]
    interval_um = PLANES_APART * VOXEL_UM[0]
    return slices, SliceRegistration(0, VOXEL_UM, interval_um, offsets, [])


def write_brain(slices, model, output, device=CPU, levels=LEVELS_UM):
    stack_slices_motor(slices, model, output, StackParams(), resolutions_um=levels, device=device)
    image, mask = open_image(output), open_image(output / "labels/valid")
    return [np.asarray(a) for a in image.arrays], [np.asarray(a) for a in mask.arrays]


def simple_brain(slices, model):
    """Whole slices in whole arrays, single precision, one after the other."""
    canvas, places = brain_geometry(slices, model, StackParams())
    out = np.zeros((places[-1].end, *canvas.shape), np.float32)
    there = np.zeros(out.shape, bool)
    for volume, place in zip(slices, places, strict=True):
        data, valid = volume.read(slice(0, volume.shape[0]), volume.whole())
        data, good, low = to_host(data), to_host(valid) > 0, []
        for axis, at in enumerate(canvas.origin_px[place.slice_id], 1):
            share = np.float32(at - np.floor(at))
            low.append(int(np.floor(at)) + (share > 0))
            if share > 0:
                data, good, before, before_good = (
                    np.take(a, np.arange(first, a.shape[axis] - 1 + first), axis)
                    for first, a in ((1, data), (1, good), (0, data), (0, good))
                )
                data = (np.float32(1) - share) * data + share * before
                good = good & before_good
        here = (
            slice(place.z_start_px, place.end),
            *(slice(at, at + n) for at, n in zip(low, data.shape[1:], strict=True)),
        )
        first = np.where(good.any(axis=0), good.argmax(axis=0), len(data))
        begin = first + place.first_plane_px
        plane = np.arange(len(data))[:, None, None]
        good = good & (plane >= begin)
        weight = np.ones(data.shape, np.float32)
        for face in np.unique(first[first < place.overlap_px]):
            window = stacking.hann_weights(place.overlap_px - face)
            inside = (first == face) & (plane >= begin) & (plane - begin < len(window))
            weight = np.where(inside, window[np.clip(plane - begin, 0, len(window) - 1)], weight)
        weight = np.where(there[here], weight, np.float32(1))
        mixed = (1 - weight) * out[here] + weight * data
        out[here] = np.where(good, mixed, out[here])
        there[here] |= good
    return out, there


def resampled(array, voxel_um):
    matrices = [
        axis_weights(n, int(n * v / t + 1e-6), t / v)
        for n, v, t in zip(array.shape, VOXEL_UM, voxel_um, strict=True)
    ]
    return np.einsum("zij,cz,ai,bj->cab", array, *matrices, optimize=True)


@pytest.mark.slow
def test_the_brain_is_the_simple_one_to_the_bit_and_its_levels_are_its_own(three, tmp_path, device):
    """Two layers of shards, two blocks."""
    slices, model = many(three, 14, device)
    arrays, masks = write_brain(slices, model, tmp_path / "b.ome.zarr", device)
    data, there = simple_brain(slices, model)
    assert data.shape[0] > SHARD_PX and data.shape[1] > stacking.BLOCK_PX
    np.testing.assert_array_equal(arrays[0], data)
    np.testing.assert_array_equal(masks[0], there)
    for level, um in enumerate(LEVELS_UM, 1):
        atol = 5e-6 if device.is_gpu else 1e-6
        np.testing.assert_allclose(arrays[level], resampled(data, (um,) * 3), atol=atol)
        share = resampled(there, (um,) * 3)
        np.testing.assert_array_equal(masks[level], share >= HALF)


@pytest.mark.slow
def test_threads_and_their_timing_change_no_bit(three, tmp_path, monkeypatch):
    slices, model = many(three, 14)
    dice = random.Random(1)

    def late(read):
        def later(*where):
            time.sleep(dice.random() / 50)
            return read(*where)

        return later

    results = []
    for workers in (1, 5):
        monkeypatch.setattr(brain_blocks, "default_workers", lambda device, n=workers: n)
        output = tmp_path / f"{workers}.ome.zarr"
        results.append(write_brain([replace(s, read=late(s.read)) for s in slices], model, output))
    for one, five in zip(*([*arrays, *masks] for arrays, masks in results), strict=True):
        np.testing.assert_array_equal(one, five)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_slices", "parts", "layers", "divided"), [(27, 2, 3, 2), (27, 3, 3, 3), (14, 4, 2, 3)]
)
def test_parts_by_processes_change_no_bit(
    three, tmp_path, monkeypatch, n_slices, parts, layers, divided
):
    """Slices, coarse shards and columns' faces lie across parts; the last are by rows, too."""
    slices, model = many(three, n_slices)
    sent, blocks = [], brain_blocks.BrainBlocks
    within = blocks.within

    def recorded(self, part):
        sent.append(part)
        return within(self, part)

    monkeypatch.setattr(blocks, "within", recorded)
    one, several = tmp_path / "one.ome.zarr", tmp_path / "several.ome.zarr"
    resolutions = [10.0, 25.0, 50.0]
    brains = [
        stack_slices_motor(
            slices, model, path, StackParams(), resolutions_um=resolutions, parts=count
        )
        for path, count in ((one, 1), (several, parts))
    ]
    shape = open_image(one).array.shape
    assert -(-shape[0] // SHARD_PX) == layers and shape[1] > stacking.BLOCK_PX
    assert len(sent) == divided
    assert {part.rows.start for part in sent} == ({0, 512} if divided > layers else {0})
    assert brains[0] == brains[1]
    files = [
        {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}
        for path in (one, several)
    ]
    assert set(files[0]) == set(files[1]) and any("/2/c/" in f"/{name}" for name in files[0])
    for name in files[0]:
        # The document of the image has its name.
        if not name.endswith("zarr.json"):
            assert files[0][name] == files[1][name], name
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


@pytest.mark.slow
def test_every_shard_is_written_once_and_one_coarse_level_read(three, tmp_path, monkeypatch):
    """That of the tissue mask is read, when all is written."""
    slices, model = many(three, 14)
    write, read = PlainArray.__setitem__, PlainArray.__getitem__
    written, read_back = [], []

    def recorded(array, window, data):
        assert not read_back or array.path.startswith("labels/tissue/")
        written.append((array.path, array.shape, window))
        write(array, window, data)

    def watched(array, window):
        if "slice_z" not in str(array.store_path):
            read_back.append((array.path, *(part.start for part in window)))
        return read(array, window)

    monkeypatch.setattr(PlainArray, "__setitem__", recorded)
    monkeypatch.setattr(PlainArray, "__getitem__", watched)
    output = tmp_path / "b.ome.zarr"
    stack_slices_motor(slices, model, output, StackParams(), resolutions_um=LEVELS_UM)
    monkeypatch.undo()
    assert {path for path, *_ in read_back} == {"2", "labels/valid/2"}
    assert len(set(read_back)) == len(read_back)
    shards = []
    for name, shape, window in written:
        for part, n in zip(window, shape, strict=True):
            assert part.start % SHARD_PX == 0 and (part.stop % SHARD_PX == 0 or part.stop == n)
        shards += [
            (name, z, i, j)
            for z in range(window[0].start, window[0].stop, SHARD_PX)
            for i in range(window[1].start, window[1].stop, SHARD_PX)
            for j in range(window[2].start, window[2].stop, SHARD_PX)
        ]
    assert len(shards) == len(set(shards))
    assert {name for name, *_ in shards} == {
        f"{stem}{k}" for stem in ("", "labels/valid/", "labels/tissue/") for k in range(3)
    }


@pytest.mark.slow
def test_a_chunk_is_decoded_once_a_block_that_it_reaches(three, tmp_path):
    """Also where a slice lies in two layers of shards."""
    slices, model = many(three, 14)
    decoded = {}

    def counted(volume):
        def read(planes, window):
            ranges = [range(s.start // CHUNK_PX, -(-s.stop // CHUNK_PX)) for s in (planes, *window)]
            for chunk in np.ndindex(*map(len, ranges)):
                key = (volume.slice_id, *(r[k] for r, k in zip(ranges, chunk, strict=True)))
                decoded[key] = decoded.get(key, 0) + 1
            return volume.read(planes, window)

        return replace(volume, read=read)

    write_brain([counted(s) for s in slices], model, tmp_path / "b.ome.zarr")
    # 530 pixels are nine chunks; the brain's blocks meet at pixel 512, so one chunk of them at most
    # lies in both. In depth and along axis 2 a slice is one chunk.
    assert len(decoded) == 14 * 9
    assert max(decoded.values()) == 2
    assert sum(n == 2 for n in decoded.values()) <= 14


@pytest.mark.slow
def test_memory_does_not_grow_with_the_slices(three, tmp_path, monkeypatch):
    """More than one slab, and many more slices.

    On two threads: each more has planes of its own in hand, more of them the busier the machine.
    """
    monkeypatch.setattr(brain_blocks, "default_workers", lambda device: 2)

    def peak_nbytes(n):
        slices, model = many(three, n)
        tracemalloc.start()
        stack_slices_motor(
            slices, model, tmp_path / f"{n}.ome.zarr", StackParams(), resolutions_um=LEVELS_UM
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_nbytes(2)
    few = peak_nbytes(52)
    assert 52 * PLANES_APART > stacking.SLAB_PX
    assert peak_nbytes(90) < 1.1 * few


def test_weights_of_a_pyramid_are_as_many_as_the_planes():
    """What an axis keeps is its weights alone, not the matrices that they were cut from.

    Seen to fail with `ascontiguousarray` in place of the copy: views kept whole matrices; and with
    matrices as long as the axis: making them took 66 MB.
    """

    def kept_nbytes(n):
        tracemalloc.start()
        axis = pyramid._Axis(n, n // 10, 10.0, CHUNK_PX, SHARD_PX)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 24_000_000
        held = {}
        for share in (s for shares in axis.shares for s in shares):
            whole = share.weights if share.weights.base is None else share.weights.base
            held[id(whole)] = whole.nbytes
        return sum(held.values())

    assert kept_nbytes(16000) < 2.2 * kept_nbytes(8000) < 8_000_000
