"""Brains of slices that carry the quality of their voxels."""

import json
import pickle

import numpy as np
import pytest

from linumpy.brain import brain_blocks, stacking
from linumpy.brain.output import align_slice, stack_folder
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.slice_volumes import open_slices
from linumpy.brain.stack_slices_motor import stack_slices_motor
from linumpy.core.device import CPU
from linumpy.core.errors import InputError
from linumpy.intensity.quality_map import QUALITY_ATTRIBUTE, encode_map, encode_weights
from linumpy.io.models import save_model
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import SHARD_PX, volume_spec
from linumpy.stage_params.brain import StackParams
from linumpy.store.manifest import write_manifest

VOXEL_UM = (10.0, 10.0, 10.0)
SHAPE, INTERVAL_UM, BIN = (30, 64, 280), 100.0, 4


def write_slice(folder, slice_id, data, weights=None, corner_um=(0.0, 0.0), **attributes):
    """A slice; `weights` over planes and bins."""
    described = {
        "kind": "slice", "slice_id": slice_id, "slice_interval_um": INTERVAL_UM,
        "interface_um": 120.0, "stage_to_array": "+x,+y", "nominal_positions": False, **attributes,
    }  # fmt: skip
    if weights is not None:
        described[QUALITY_ATTRIBUTE] = encode_map(encode_weights(weights), BIN, data.shape)
    spec = volume_spec(data.shape, VOXEL_UM, (120.0, *corner_um), described)
    path = folder / f"slice_z{slice_id:02d}.ome.zarr"
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[...] = data
        image.valid[...] = 1
    return path


def falling(per_mm):
    """Weights that fall with depth, over planes and bins: `per_mm` along axis 2."""
    z = (np.arange(SHAPE[0]) + 0.5)[:, None, None] * 0.01
    bins = [-(-n // BIN) for n in SHAPE[1:]]
    return np.exp(-np.broadcast_to(per_mm, bins)[None] * z).astype(np.float32)


def registered(turns=(0.0, 0.0, 0.0)):
    slices = [
        {"slice_id": k, "offset_um": [0.0, 3.0 * k, -7.0 * k], "rotation_deg": turns[k],
         "n_pairs": 1} for k in range(3)
    ]  # fmt: skip
    return SliceRegistration(0, VOXEL_UM, INTERVAL_UM, slices, [], (320.0, 1400.0))


def brain_of(paths, output, device, **params):
    slices = open_slices(paths, device=device)
    stack_slices_motor(
        slices, registered(), output, StackParams(**params), resolutions_um=[], device=device
    )
    return open_image(output)


def test_a_map_that_cannot_be_decoded_names_its_slice(tmp_path):
    """Seen to fail (a slice as good everywhere) where such a map counted as none."""
    for k in range(3):
        write_slice(tmp_path, k, np.ones(SHAPE, np.float32), falling(2.0))
    path = tmp_path / "slice_z01.ome.zarr" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["linumpy"][QUALITY_ATTRIBUTE]["codes"] = "AAAA"
    path.write_text(json.dumps(document))
    write_manifest(path.parent)
    paths = sorted(tmp_path.glob("*.ome.zarr"))
    with pytest.raises(InputError, match=r"slice_z01\.ome\.zarr: its quality map cannot be"):
        brain_of(paths, tmp_path / "brain.ome.zarr", CPU)
    assert not (tmp_path / "brain.ome.zarr").exists()


def test_slices_are_sent_to_other_processes_without_their_weights(tmp_path):
    """Seen to fail (19 kB) where weights were decoded when slices were opened."""
    write_slice(tmp_path, 0, np.ones(SHAPE, np.float32), falling(2.0))
    (volume,) = open_slices(list(tmp_path.glob("*.ome.zarr")))
    window = slice(0, SHAPE[1]), slice(0, SHAPE[2])
    assert volume.quality(slice(0, SHAPE[0]), window).min() < 0.6
    assert volume.quality.found.cells is volume.quality.found.cells
    assert len(pickle.dumps(volume)) < 8_000


def test_the_good_top_of_a_slice_replaces_the_dim_depth_above(tmp_path, device):
    """Left half clear, right half opaque: there the lower slice counts from its face on."""
    steep = np.where(np.arange(SHAPE[2] // BIN) < 35, 0.0, 60.0)[None, :]
    paths = [
        write_slice(tmp_path, k, np.full(SHAPE, k + 1, np.float32), falling(steep))
        for k in range(3)
    ]
    brain = np.asarray(brain_of(paths, tmp_path / "b.ome.zarr", device, first_plane=0).array)
    # The second slice begins at plane 10 and fades in over one.
    clear, opaque = brain[:, 10:50, 20:110], brain[:, 10:50, 170:260]
    np.testing.assert_allclose(clear[16:19], 1.5, atol=0.05)
    np.testing.assert_allclose(opaque[14:19], 2.0, atol=0.02)
    # Nowhere a step: each is less than half of what the slices differ by.
    assert np.abs(np.diff(clear, axis=0)).max() < 0.5
    hann = np.asarray(
        brain_of(paths, tmp_path / "n.ome.zarr", device, first_plane=0, blend=False).array
    )
    inner = hann[:, 10:50, 20:250]
    assert (inner[10:20] == 2).all() and (inner[20:] == 3).all()


def test_the_top_of_a_slice_is_not_given_away(tmp_path, device):
    """Opaque slices: the lower one has most of the weight from its second plane on.

    Seen to fail where its first planes were left out and the next five faded in.
    """
    paths = [
        write_slice(tmp_path, k, np.full(SHAPE, k + 1, np.float32), falling(30.0)) for k in range(3)
    ]
    brain = np.asarray(brain_of(paths, tmp_path / "b.ome.zarr", device, first_plane=4).array)
    inner = brain[:, 10:50, 20:250]
    # Weight of ten planes above: exp(-3); rise over four planes.
    rise = 0.5 * (1 - np.cos(np.pi * (np.arange(4) + 0.5) / 4))
    lower = rise / (rise + np.exp(-3))
    np.testing.assert_allclose(inner[10:14].mean(axis=(1, 2)), 1 + lower, atol=0.06)
    assert lower[1] > 0.85


def test_one_value_stays_one_value(tmp_path, device, rng):
    """No seam between slices that agree, whatever their weights."""
    paths = [
        write_slice(
            tmp_path,
            k,
            (3.5 + 1e-3 * rng.random(SHAPE)).astype("f4"),
            rng.uniform(0.01, 1, falling(0.0).shape).astype("f4"),
        )
        for k in range(3)
    ]
    image = brain_of(paths, tmp_path / "b.ome.zarr", device)
    seen = np.asarray(image.array)[np.asarray(image.valid) > 0]
    np.testing.assert_allclose(seen, 3.5005, atol=5.1e-4)


def test_rounding_of_weights_stays_rounding_of_the_brain(tmp_path, device, rng):
    """As on another device: no weight is so near a threshold that the brain shows it.

    Seen to fail with eight bits a cell.
    """
    data = [rng.random(SHAPE, dtype=np.float32) for _ in range(3)]
    weights = [falling(rng.uniform(0, 20, (16, 70))) for _ in range(3)]
    rounded = [w * (1 + rng.uniform(-3e-5, 3e-5, w.shape)).astype("f4") for w in weights]
    brains = []
    for name, chosen in (("one", weights), ("other", rounded)):
        (tmp_path / name).mkdir()
        paths = [write_slice(tmp_path / name, k, data[k], chosen[k]) for k in range(3)]
        brains.append(np.asarray(brain_of(paths, tmp_path / f"{name}.ome.zarr", device).array))
    np.testing.assert_allclose(*brains, rtol=0, atol=1e-4)
    assert not np.array_equal(*brains)


def test_the_size_of_blocks_changes_nothing(tmp_path, device, rng, monkeypatch):
    paths = [
        write_slice(
            tmp_path, k, rng.random(SHAPE, dtype=np.float32), falling(rng.uniform(0, 20, (16, 70)))
        )
        for k in range(3)
    ]
    whole = brain_of(paths, tmp_path / "whole.ome.zarr", device)
    for module in (stacking, brain_blocks):
        monkeypatch.setattr(module, "BLOCK_PX", SHARD_PX)
    # A GPU takes no more than one block then.
    monkeypatch.setattr(brain_blocks, "free_gpu_bytes", lambda: 0)
    monkeypatch.setattr(stacking, "CHUNK_PX", 7)
    parts = brain_of(paths, tmp_path / "parts.ome.zarr", device)
    for one, other in ((whole.array, parts.array), (whole.valid, parts.valid)):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("turn", [0.0, 1.5])
def test_aligned_slices_carry_their_quality(tmp_path, device, rng, turn):
    """Aligned first or while stacked, the brain has the same bits.

    Seen to fail with a map that was moved by whole cells.
    """
    smooth = 10 + 8 * np.sin(np.arange(70) / 9)[None, :] + np.zeros((16, 1))
    folder, aligned = tmp_path / "s", tmp_path / "a"
    for k in range(3):
        write_slice(folder, k, np.full(SHAPE, 10.0 * k, np.float32), falling(smooth))
    save_model(tmp_path, "register_slices", registered((0.0, turn, 0.0)))
    model = tmp_path / "register_slices.json"
    for k in range(3):
        name = f"slice_z{k:02d}.ome.zarr"
        align_slice(folder / name, folder, model, aligned / name, device=device)
    found = []
    for source, flag in ((folder, False), (aligned, True)):
        out = tmp_path / f"{source.name}.ome.zarr"
        stack_folder(source, None, out, {}, registration=model, aligned=flag, device=device)
        found.append(open_image(out))
    assert (np.asarray(found[0].valid) > 0).mean() > 0.6
    for one, other in zip(*((image.array, image.valid) for image in found), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
