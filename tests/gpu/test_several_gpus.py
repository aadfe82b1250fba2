"""Several real GPUs: a slice that they share, the store's places, and the lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linumpy.core.device import Device
from linumpy.core.leases.nvml import by_uuid, list_gpus, started_uuids
from linumpy.io.omezarr import open_image
from linumpy.slices import gpu_sweep
from linumpy.slices.learn_models import learn_models
from linumpy.slices.reconstruct_slice import reconstruct_slice
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Tile

from ..conftest import HAS_GPU
from ..slices.learned import PARAMS, learned
from . import needs_gpu

ROOT = Path(__file__).resolve().parents[2]


def n_gpus():
    if not HAS_GPU:
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


needs_two = pytest.mark.skipif(n_gpus() < 2, reason="needs two GPUs")


def files(folder):
    """What a slice is: its arrays by name, and the texts and arrays of what it taught."""
    found = {}
    image = open_image(folder / "slice.ome.zarr")
    found["volume"], found["valid"] = np.asarray(image.array), np.asarray(image.valid)
    for path in sorted((folder / "z").iterdir()):
        if path.suffix == ".json":
            found[path.name] = np.array(json.dumps(json.loads(path.read_text()), sort_keys=True))
        else:
            arrays = np.load(path)
            found.update({f"{path.name}/{name}": arrays[name] for name in arrays.files})
    return found


@needs_two
@pytest.mark.parametrize(
    ("group_nbytes", "budget_bytes"), [(1 << 31, None), (1 << 23, None), (1 << 23, 3_000_000)]
)
def test_a_slice_that_gpus_share_is_the_same_to_the_bit(
    tiny_grids, tmp_path, monkeypatch, group_nbytes, budget_bytes
):
    # Halves of the slice; tile after tile; and the same with tiles that go to the host meanwhile.
    models = learned(tiny_grids, Device("cuda"))
    monkeypatch.setattr(gpu_sweep, "GROUP_NBYTES", group_nbytes)
    results = []
    for count in (1, n_gpus()):
        folder = tmp_path / str(count)
        folder.mkdir()
        pictures = reconstruct_slice(
            tiny_grids[1],
            folder / "slice.ome.zarr",
            models,
            PARAMS,
            output_models=folder / "z",
            device=Device("cuda", count=count),
            budget_bytes=budget_bytes,
        )
        results.append({**files(folder), "aip": pictures.aip, "mean": pictures.depth_mean})
    one, several = results
    assert set(one) == set(several) and len(one) > 8
    for name in one:
        np.testing.assert_array_equal(one[name], several[name], err_msg=name)


@needs_two
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_models_that_gpus_learn_together_are_the_same_to_the_bit(tiny_grids, tmp_path, lanes):
    """Tiles divided among them, then slices in processes of their own."""
    learned(tiny_grids, Device("cuda")).save(tmp_path / "1")
    several = learn_models(tiny_grids, PARAMS, device=Device("cuda", count=n_gpus()), lanes=lanes)
    several.save(tmp_path / str(n_gpus()))
    names = sorted(path.name for path in (tmp_path / "1").glob("*.npz"))
    assert len(names) >= 2
    for name in names:
        one, several = (np.load(tmp_path / str(n) / name) for n in (1, n_gpus()))
        for part in one.files:
            np.testing.assert_array_equal(one[part], several[part], err_msg=f"{name} {part}")


@needs_two
def test_all_gpus_have_a_part_in_a_slice(tiny_grids, tmp_path, monkeypatch):
    import cupy

    used = {}
    whole = gpu_sweep._groups

    def groups(source, keys, size, process, emit, device, streams):
        def seen(tile):
            assert tile.data.device.id == cupy.cuda.Device().id == device.index
            used[device.index] = used.get(device.index, 0) + 1
            return process(tile)

        return whole(source, keys, size, seen, emit, device, streams)

    models = learned(tiny_grids, Device("cuda"))
    monkeypatch.setattr(gpu_sweep, "_groups", groups)
    device = Device("cuda", count=n_gpus())
    reconstruct_slice(tiny_grids[1], tmp_path / "s.ome.zarr", models, PARAMS, device=device)
    assert set(used) == set(range(n_gpus()))


@needs_two
def test_a_tile_is_at_home_on_one_gpu_and_can_be_had_on_another():
    import cupy

    with TileStore(1 << 20, gpu_budget_bytes=1 << 20) as store:
        for number in (0, 1):
            with cupy.cuda.Device(number):
                data = cupy.arange(24, dtype=cupy.float32).reshape(2, 3, 4) + number
                store.put(Tile((0, number), data, cupy.ones(data.shape, cupy.uint8)))
                cupy.cuda.get_current_stream().synchronize()
        for number in (0, 1):
            assert store.home((0, number)) == Device("cuda", number)
            assert store.get((0, number)).data.device.id == number
            other = store.get((0, number), Device("cuda", 1 - number))
            assert other.data.device.id == other.valid.device.id == 1 - number
            expected = np.arange(24, dtype=np.float32).reshape(2, 3, 4) + number
            np.testing.assert_array_equal(other.data.get(), expected)
            assert store.held_bytes(Device("cuda", number)) > 0


@needs_two
def test_arrays_go_from_gpu_to_gpu_in_what_holds_them():
    import cupy

    from linumpy.core.device import with_arrays_on
    from linumpy.tiles.pairs import TileEvidence

    with cupy.cuda.Device(1):
        slabs = cupy.arange(60, dtype=cupy.float32).reshape(3, 4, 5)[:, ::2, 1:]
        evidence = TileEvidence(slabs, cupy.arange(3, dtype=cupy.float32))
    moved, host = with_arrays_on((evidence, np.arange(2)), Device("cuda", 0))
    assert moved.slabs.device.id == moved.slab_means.device.id == 0
    np.testing.assert_array_equal(moved.slabs.get(), slabs.get())
    assert isinstance(host, np.ndarray)


FIRST_READS = """
import sys, threading
import cupy, numpy
from linumpy.gpu.zarr_io import read_zarr_to_gpu

gate = threading.Barrier(2)
found = {}

def read(number):
    gate.wait()
    with cupy.cuda.Device(number):
        found[number] = read_zarr_to_gpu(sys.argv[1], backend="nvcomp")

threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number in range(2):
    assert found[number].device.id == number
    numpy.testing.assert_array_equal(found[number].get(), numpy.arange(1 << 18).reshape(64, -1))
"""


@needs_two
def test_the_first_reads_of_a_process_can_be_those_of_two_gpus_at_once(tmp_path):
    # kvikio's threads, once: two who set their number at the same time waited for each other.
    pytest.importorskip("kvikio")
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "a.zarr"
    array = zarr.create_array(path, shape=(64, 1 << 12), chunks=(8, 1 << 10), dtype="i4")
    array[:] = np.arange(1 << 18).reshape(64, -1)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [sys.executable, "-c", FIRST_READS, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=True,
        timeout=60,
    )


CHILD = """
import sys
from linumpy.core.leases.lease import Ask
from linumpy.core.start_up import begin_cuda

begin_cuda(Ask(count=int(sys.argv[1]), wait_s=60))
from linumpy.core.device import resolve
from linumpy.core.leases.nvml import started_uuids

device = resolve(True)
import cupy

cupy.zeros(4)
print(device.count, *started_uuids(), flush=True)
sys.stdin.read()
"""


@needs_gpu
def test_the_library_and_cuda_agree_on_the_gpus():
    import cupy

    cupy.zeros(1)
    named = by_uuid(started_uuids(), list_gpus())
    assert len(named) == cupy.cuda.runtime.getDeviceCount()
    for number, gpu in enumerate(named):
        with cupy.cuda.Device(number):
            assert abs(gpu.total_nbytes - cupy.cuda.runtime.memGetInfo()[1]) < 4 << 30


def lease(folder, count):
    ours = ("LINUMPY_LEASED_GPUS", "CUDA_VISIBLE_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    paths = [str(ROOT), kept.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(count)],
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "LINUMPY_LEASE_DIR": str(folder),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process


@needs_two
def test_processes_work_on_the_gpus_that_they_leased(tmp_path):
    processes = [lease(tmp_path, 1) for _ in range(2)]
    found = [process.stdout.readline().split() for process in processes]
    # CUDA itself sees one GPU in each, and not the same.
    assert [words[0] for words in found] == ["1", "1"]
    assert [len(words) for words in found] == [2, 2]
    assert found[0][1] != found[1][1]
    for process in processes:
        process.communicate("")
    both = lease(tmp_path, 2)
    words = both.stdout.readline().split()
    assert words[0] == "2" and len(set(words[1:])) == 2
    both.communicate("")
