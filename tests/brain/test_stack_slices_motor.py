"""Stacking compared with a slow reference, on scenes that interpolation keeps exactly."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import shift as scipy_shift

from linumpy.brain import brain_blocks, stacking
from linumpy.brain.register_slices import motor_registration
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.slice_volumes import open_slices
from linumpy.brain.stack_slices_motor import brain_geometry, stack_slices_motor, z_matches
from linumpy.core.errors import InputError
from linumpy.geometry.turned import rotation_matrix
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import SHARD_PX, volume_spec
from linumpy.stage_params.brain import StackParams

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
