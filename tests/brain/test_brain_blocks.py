"""How a brain is written: by blocks, layers of shards and parts, with the same bits."""

import random
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from linumpy.brain import brain_blocks, stacking
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.slice_volumes import open_slices
from linumpy.brain.stack_slices_motor import brain_geometry, stack_slices_motor
from linumpy.core.device import CPU, to_host
from linumpy.geometry.resample import HALF, axis_weights
from linumpy.io import pyramid
from linumpy.io.omezarr import open_image
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX
from linumpy.stage_params.brain import StackParams
from linumpy.store.plain_arrays import PlainArray

from .test_stack_slices_motor import VOXEL_UM, write_slice

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

    On one thread: each more has planes of its own in hand, more of them the busier the machine.
    """
    monkeypatch.setattr(brain_blocks, "default_workers", lambda device: 1)

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
