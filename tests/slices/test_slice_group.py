"""Slices that overlap in one process, against the same slices one by one."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque

import numpy as np
import pytest

from linumpy.core import overlap, worker_process
from linumpy.core.device import CPU, Device
from linumpy.core.errors import DeviceMemoryError, InputError
from linumpy.core.stream import stream
from linumpy.io.omezarr import open_image
from linumpy.mosaic.grid_options import GridOptions
from linumpy.slices import lanes as slice_lanes
from linumpy.slices import slice_group
from linumpy.slices.lanes import usual_overlap
from linumpy.slices.reconstruct_slice import reconstruct_to_files
from linumpy.slices.slice_group import (
    failure,
    grids_by_id,
    raw_by_id,
    reconstruct_group,
)

from ..conftest import SCRIPTS
from .learned import learned

PATHS = os.pathsep.join([str(SCRIPTS.parent), *sys.path])


@pytest.fixture(scope="module")
def models(tiny_grids, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    learned(tiny_grids).save(folder)
    return folder


@pytest.fixture(scope="module")
def singly(tiny_grids, models, tmp_path_factory):
    """The files of each slice, made alone."""
    folder = tmp_path_factory.mktemp("singly")
    for slice_id, grid in enumerate(tiny_grids):
        name = f"z{slice_id:02d}"
        reconstruct_to_files(
            grid,
            folder / "slices" / f"slice_{name}.ome.zarr",
            {},
            models=models,
            output_models=folder / "models" / name,
            aip=folder / "aips" / f"aip_{name}.png",
            preview=folder / "previews" / f"slice_{name}.png",
        )
    return folder


def files(folder):
    """Return what is in a folder's files, but for stamps of time in archives and records."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {
        name: {n: a.tobytes() for n, a in np.load(path).items()}
        if path.suffix == ".npz"
        else path.read_bytes()
        for name, path in found.items()
        if not name.startswith("records/")
    }


def records(folder):
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "records").iterdir())
    }


def test_group_has_the_bits_of_slices_made_alone(tiny_grids, models, singly, tmp_path):
    grids = grids_by_id(tiny_grids)
    made = reconstruct_group(grids, tmp_path, {}, models=models, device=CPU, lanes=2)
    assert sorted(record.slice_id for record in made) == [0, 1, 2]
    assert files(tmp_path) == files(singly)
    assert {r["status"] for r in records(tmp_path).values()} == {"done"}
    assert failure(made) is None


@pytest.mark.slow
def test_any_overlap_has_the_same_bits(tiny_grids, models, device, tmp_path):
    for lanes in (1, 3):
        reconstruct_group(
            grids_by_id(tiny_grids),
            tmp_path / str(lanes),
            {},
            models=models,
            device=device,
            lanes=lanes,
        )
    assert files(tmp_path / "1") == files(tmp_path / "3")


@pytest.mark.slow
def test_raw_group_has_the_bits_of_grids(tiny, models, singly, tmp_path):
    inputs = raw_by_id(tiny / "raw", [2, 0], GridOptions())
    reconstruct_group(inputs, tmp_path, {}, models=models, device=CPU, lanes=2)
    for name in ("z00", "z02"):
        one, other = (
            open_image(folder / "slices" / f"slice_{name}.ome.zarr")
            for folder in (tmp_path, singly)
        )
        np.testing.assert_array_equal(np.asarray(one.array), np.asarray(other.array))


def test_failed_slice_is_recorded_by_its_real_path_and_leaves_others(
    tiny_grids, models, singly, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for grid in (tiny_grids[0], tiny_grids[2]):
        (tmp_path / grid.name).symlink_to(grid)
    target = tmp_path / "far" / tiny_grids[1].name
    target.mkdir(parents=True)
    (tmp_path / tiny_grids[1].name).symlink_to(target)
    grids = grids_by_id([(tmp_path / g.name).relative_to(tmp_path) for g in tiny_grids])
    made = reconstruct_group(grids, tmp_path / "out", {}, models=models, device=CPU, lanes=2)
    found = records(tmp_path / "out")
    assert [r["status"] for r in found.values()] == ["done", "failed", "done"]
    assert found["slice_z01"]["error"].startswith(f"z01: {target}")
    assert failure(made) == found["slice_z01"]["error"]
    expected = {n: d for n, d in files(singly).items() if "z01" not in n}
    assert files(tmp_path / "out") == expected


def test_group_takes_over_what_was_done_and_replaces_what_was_left(
    tiny_grids, models, singly, tmp_path, monkeypatch
):
    """A slice with a record is not made again; one that was published without, is."""
    grids = grids_by_id(tiny_grids)
    reconstruct_group(grids, tmp_path, {}, models=models, device=CPU, lanes=1)
    (tmp_path / "records" / "slice_z01.json").unlink()
    begun = []
    make = slice_group.reconstruct_to_files
    monkeypatch.setattr(
        slice_group, "reconstruct_to_files", lambda *a, **k: (begun.append(a[0]), make(*a, **k))
    )
    reconstruct_group(grids, tmp_path, {}, models=models, device=CPU, take_over=True)
    assert begun == [grids[1]]
    assert files(tmp_path) == files(singly)
    assert {r["status"] for r in records(tmp_path).values()} == {"done"}


@pytest.mark.slow
def test_killed_script_goes_on_where_it_was(tiny_grids, models, singly, script, tmp_path):
    """Killed after its first slice; the second call makes the other two, bits equal."""
    arguments = [tmp_path, "--models", models, "--overlap", 1, "--grids", *tiny_grids]
    command = [sys.executable, SCRIPTS / "linum_reconstruct_slice.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    first = tmp_path / "records" / "slice_z00.json"
    with subprocess.Popen(list(map(str, command)), env=environment) as process:
        # The folder that it was made in goes a moment after it appears.
        while process.poll() is None and not (
            first.exists() and not list(first.parent.glob(".slice_z00*"))
        ):
            time.sleep(0.01)
        process.kill()
    assert sorted(path.name for path in first.parent.iterdir()) == ["slice_z00.json"]
    made = {p: p.stat().st_mtime_ns for p in (tmp_path / "slices").rglob("*") if p.is_file()}
    script("reconstruct_slice", "--take_over", *arguments)
    kept = {p: t for p, t in made.items() if "slice_z00.ome.zarr" in p.parts}
    assert kept and {p: p.stat().st_mtime_ns for p in kept} == kept
    assert files(tmp_path) == files(singly)


PEAK = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__');"
    "print(next(line for line in open('/proc/self/status') if 'VmHWM' in line).split()[1])"
)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_slices(tiny_grids, models, tmp_path):
    """One at a time, as with two it is chance which of their peaks coincide, and in one heap, as
    it is chance which of several a thread takes."""
    peaks = []
    for number in (3, 12):
        folder = tmp_path / str(number)
        folder.mkdir()
        grids = [folder / f"grid_z{i:02d}.ome.zarr" for i in range(number)]
        for link in grids:
            link.symlink_to(tiny_grids[1])
        words = [SCRIPTS / "linum_reconstruct_slice.py", folder, "--models", models, "--overlap", 1]
        done = subprocess.run(
            list(map(str, [sys.executable, "-c", PEAK, *words, "--grids", *grids])),
            env={**os.environ, "PYTHONPATH": PATHS, "MALLOC_ARENA_MAX": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.15 * peaks[0], peaks


@pytest.fixture
def pretended(models, monkeypatch):
    """A group whose slices are pretended; returns a function that runs ten of them."""

    def run(folder, make, lanes):
        monkeypatch.setattr(slice_group, "reconstruct_to_files", make)
        inputs = {number: folder / f"z{number:02d}" for number in range(10)}
        return reconstruct_group(inputs, folder, {}, models=models, device=CPU, lanes=lanes)

    return run


def test_memory_that_runs_out_halves_the_overlap(pretended, tmp_path):
    at_work, most, tried = set(), [], []
    lock = threading.Lock()

    def make(source, *_, **__):
        with lock:
            at_work.add(source.name)
            most.append(len(at_work))
            tried.append(source.name)
            is_short = overlap.count() > 1 and len(tried) > 4
        time.sleep(0.01)
        with lock:
            at_work.remove(source.name)
        if is_short:
            raise DeviceMemoryError(f"{source}: no room")

    made = pretended(tmp_path, make, 4)
    assert sorted(record.slice_id for record in made) == list(range(10))
    assert {record.status for record in made} == {"done"}
    assert max(most[:4]) > 1
    # All that is left goes one by one in the end.
    assert most[-1] == 1
    assert overlap.count() == 1


def test_memory_that_holds_no_slice_ends_the_group(pretended, tmp_path):
    def make(source, *_, **__):
        if source.name == "z03":
            raise MemoryError

    with pytest.raises(MemoryError, match="z03: out of host memory"):
        pretended(tmp_path, make, 2)
    # What others did is kept for the next attempt.
    assert {"slice_z00", "slice_z01", "slice_z02"} <= set(records(tmp_path))
    assert "slice_z03" not in records(tmp_path)


def test_every_error_but_of_memory_is_a_record(pretended, tmp_path):
    def make(source, *_, **__):
        if source.name == "z05":
            raise ZeroDivisionError("by nothing")
        if source.name == "z07":
            raise InputError(f"{source}: no tile was imaged")

    made = pretended(tmp_path, make, 3)
    assert failure(made) == "z05: ZeroDivisionError: by nothing (failed, too: z07)"
    assert records(tmp_path)["slice_z07"]["error"] == f"z07: {tmp_path / 'z07'}: no tile was imaged"


def test_lost_device_ends_the_group_at_once(pretended, tmp_path):
    tried = []

    def make(source, *_, **__):
        tried.append(source.name)
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        pretended(tmp_path, make, 1)
    assert tried == ["z00"]


def test_lanes_share_tiles_in_flight():
    """Two streams with one semaphore never hold more, and both end."""
    in_flight, most = [0], [0]
    lock = threading.Lock()

    def read(key):
        with lock:
            in_flight[0] += 1
            most[0] = max(most)
            most[0] = max(most[0], in_flight[0])
        return key

    def write(key, value):
        time.sleep(0.001)
        with lock:
            in_flight[0] -= 1

    ended = []

    def work(item):
        done = stream(range(20), read, lambda _, v: v, write, depth=4, slots=overlap.slots())
        ended.append((item, [key for key, _ in done]))

    overlap.in_overlap(deque("abcd"), work, 4, tiles=3)
    assert sorted(ended) == [(item, list(range(20))) for item in "abcd"]
    assert most[0] <= 3


def test_error_in_a_lane_gives_its_slots_back():
    def work(item):
        def read(key):
            if item == "b" and key == 2:
                raise InputError("b")
            return key

        list(stream(range(9), read, lambda _, v: v, depth=4, slots=overlap.slots()))

    shared = []

    def noting(item):
        shared.append(overlap.slots())
        work(item)

    with pytest.raises(InputError):
        overlap.in_overlap(deque("ab"), noting, 1, tiles=3)
    assert shared[0]._value == 3


@pytest.mark.parametrize(
    ("cores", "slices", "free_gib", "share", "expected"),
    [(16, 16, 140, 1, 3), (5, 16, 140, 1, 2), (16, 5, 140, 1, 2), (16, 16, 20, 1, 2),
     (16, 16, 140, 0.5, 1), (2, 16, 4, 0.5, 1)],
)  # fmt: skip
def test_processes_follow_cores_slices_and_memory_of_the_gpu(
    cores, slices, free_gib, share, expected, monkeypatch
):
    monkeypatch.setattr(worker_process, "cores_a_gpu", lambda **_: cores)
    monkeypatch.setattr(worker_process, "free_gpu_bytes", lambda: free_gib << 30)
    monkeypatch.setattr(slice_lanes, "batch_share", lambda: share)
    assert usual_overlap(Device("cuda"), slices) == expected
    assert usual_overlap(Device("cuda", count=2), slices) == 1


def test_threads_follow_cores(monkeypatch):
    monkeypatch.setattr(slice_lanes, "default_workers", lambda device: 4)
    assert usual_overlap(CPU, 16) == 2
    monkeypatch.setattr(slice_lanes, "default_workers", lambda device: 2)
    assert usual_overlap(CPU, 16) == 1


@pytest.mark.slow
def test_processes_have_the_bits_of_slices_made_alone(tiny_grids, models, singly, device, tmp_path):
    grids = grids_by_id(tiny_grids)
    made = reconstruct_group(grids, tmp_path, {}, models=models, device=device, lanes=2, apart=True)
    assert sorted(record.slice_id for record in made) == [0, 1, 2]
    assert {r["status"] for r in records(tmp_path).values()} == {"done"}
    if device == CPU:
        assert files(tmp_path) == files(singly)


def test_grids_need_ids_of_their_own(tmp_path):
    with pytest.raises(InputError, match="expected a name with a slice id"):
        grids_by_id([tmp_path / "grid.ome.zarr"])
    with pytest.raises(InputError, match="z01 was named twice"):
        grids_by_id([tmp_path / "grid_z01.ome.zarr", tmp_path / "other_z1.ome.zarr"])
