"""A GPU that runs out of memory at any allocation, fails in a thread, or is lost in mid-run.

``LINUMPY_FAULTS=all`` fails every allocation of every operation, not a part of them.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from linumpy.core.device import Device, set_batch_share
from linumpy.core.errors import LinumpyError
from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, exit_status
from linumpy.io.omezarr import open_image

from ..conftest import SCRIPTS
from ..slices.learned import PARAMS, learned
from . import needs_gpu

pytestmark = needs_gpu

GPU = Device("cuda")
EVERY = os.environ.get("LINUMPY_FAULTS") == "all"
FIRST, SPREAD = 6, 8
"""Of all allocations of an operation: those that always fail, and how many of the others."""

OPERATIONS = ("resample", "focal curvature", "fused slice", "stack")


@pytest.fixture(scope="module")
def inputs(tiny, tiny_grids, script, tmp_path_factory):
    """What the operations read: grid, models, two reconstructed slices, shifts."""
    from linumpy.slices.learn_models import AcquisitionModels
    from linumpy.slices.reconstruct_slice import reconstruct_slice
    from linumpy.slices.single_stages import resample_grid

    folder = tmp_path_factory.mktemp("inputs")
    learned(tiny_grids).save(folder / "models")
    models = AcquisitionModels.load(folder / "models", PARAMS)
    for number in (1, 2):
        out = folder / f"slices/slice_z{number:02d}.ome.zarr"
        reconstruct_slice(tiny_grids[number], out, models, PARAMS, device=GPU)
    resample_grid(tiny_grids[1], folder / "grid.ome.zarr", {}, overwrite=False, device=GPU)
    script("estimate_xy_shift_from_metadata", tiny / "raw", folder / "shifts_xy.csv")
    return tiny_grids, models, PARAMS, folder


@pytest.fixture(scope="module")
def operations(inputs):
    """Functions of an output's place."""
    from linumpy.brain.output import stack_folder
    from linumpy.slices.reconstruct_slice import reconstruct_slice
    from linumpy.slices.single_stages import correct_grid, resample_grid

    grids, models, params, folder = inputs
    once = {"overwrite": False, "device": GPU}

    def fused(out):
        reconstruct_slice(grids[1], out, models, params, output_models=models_of(out), device=GPU)

    return {
        "resample": lambda out: resample_grid(grids[1], out, {"resolution": 20.0}, **once),
        "focal curvature": lambda out: correct_grid(
            "detect_focal_curvature",
            folder / "grid.ome.zarr",
            out,
            {},
            models=folder / "models",
            **once,
        ),
        "fused slice": fused,
        "stack": lambda out: stack_folder(
            folder / "slices", folder / "shifts_xy.csv", out, {}, **once
        ),
    }


def models_of(out):
    return out.with_name(out.name + "-models")


def contents(out):
    """Every voxel, mask and number of an output."""
    image = open_image(out)
    found = [np.asarray(image.array)]
    if image.valid is not None:
        found.append(np.asarray(image.valid))
    found += [json.loads(p.read_text()) for p in sorted(models_of(out).glob("*.json"))]
    return found


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b


@pytest.fixture(scope="module")
def wanted(operations, tmp_path_factory):
    """What each operation makes when all goes well; made once, when first asked for."""
    folder = tmp_path_factory.mktemp("wanted")
    made = {}

    def make(name):
        if name not in made:
            out = folder / f"{name.replace(' ', '_')}.ome.zarr"
            operations[name](out)
            made[name] = contents(out)
        return made[name]

    return make


def workers():
    """Live threads of linumpy."""
    names = ("linumpy-", "store", "fetch", "decode", "encode")
    return [t.name for t in threading.enumerate() if t.name.startswith(names)]


def nothing_left(folder):
    return sorted(p.name for p in folder.iterdir()) == []


class FailingAllocator:
    """CuPy's pool, with a fault at the n-th allocation; at all later ones too if it stays short."""

    def __init__(self, n=0, stays=False):
        import cupy

        self.n, self.stays = n, stays
        self.calls = 0
        self._malloc = cupy.get_default_memory_pool().malloc
        self._lock = threading.Lock()

    def __call__(self, nbytes):
        import cupy

        with self._lock:
            self.calls += 1
            bad = self.calls == self.n or (self.stays and self.calls > self.n > 0)
        if bad:
            raise cupy.cuda.memory.OutOfMemoryError(nbytes, 0, 0)
        return self._malloc(nbytes)

    def __enter__(self):
        import cupy

        cupy.cuda.set_allocator(self)
        return self

    def __exit__(self, *_):
        import cupy

        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def outcome(operation, folder, wanted):
    """Run an operation: its bytes are right, or memory was short and nothing is left."""
    out = folder / "out.ome.zarr"
    try:
        operation(out)
    except (MemoryError, LinumpyError, RuntimeError) as error:
        assert exit_status(error) == DEVICE_MEMORY, repr(error)
        assert nothing_left(folder), sorted(folder.iterdir())
        return "refused"
    else:
        same(contents(out), wanted)
        return "served"
    finally:
        assert workers() == []
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(models_of(out), ignore_errors=True)


def chosen(total):
    """Numbers of the allocations that are made to fail."""
    if EVERY or total <= FIRST + SPREAD:
        return range(1, total + 1)
    return [*range(1, FIRST + 1), *np.linspace(FIRST + 1, total, SPREAD).astype(int).tolist()]


@pytest.mark.parametrize("stays", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_may_run_out_at_any_allocation(name, stays, operations, wanted, tmp_path):
    """The same bytes after the retries of `read_on_device` and `write_on_device`, or status 102.

    Seen to fail where who reads slices took memory that ran out for a damaged slice (`reading`).
    """
    import cupy

    expected = wanted(name)
    pool = cupy.get_default_memory_pool()
    with FailingAllocator() as counting:
        assert outcome(operations[name], tmp_path, expected) == "served"
    total = counting.calls
    gc.collect()
    before = pool.used_bytes()
    tally = {"served": 0, "refused": 0}
    start = time.perf_counter()
    for n in chosen(total):
        with FailingAllocator(n, stays):
            tally[outcome(operations[name], tmp_path, expected)] += 1
    seconds = time.perf_counter() - start
    print(f"{name}: {total} allocations, of {sum(tally.values())} faults {tally}, {seconds:.1f} s")
    assert outcome(operations[name], tmp_path, expected) == "served"
    gc.collect()
    assert pool.used_bytes() <= before + (1 << 20), "memory was lost"
    assert tally["refused"] or not stays


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_limit_of_the_pool_gives_the_same_bytes_or_its_own_status(
    name, operations, wanted, tmp_path
):
    """Seen to fail where a reader of slices took memory that ran out for damage (`reading`)."""
    import cupy

    expected = wanted(name)
    # What operations before this one left on the device is given up in it, and would be taken.
    assert outcome(operations[name], tmp_path, expected) == "served"
    pool = cupy.get_default_memory_pool()
    tally = {}
    try:
        for exponent in (16, 20, 23, 26, 28, 30, 32):
            gc.collect()
            pool.free_all_blocks()
            pool.set_limit(size=pool.used_bytes() + (1 << exponent))
            tally[1 << exponent] = outcome(operations[name], tmp_path, expected)
    finally:
        pool.set_limit(size=0)
    print(name, tally)
    assert tally[1 << 16] == "refused" and tally[1 << 32] == "served"
    assert outcome(operations[name], tmp_path, expected) == "served"


@pytest.mark.parametrize("name", OPERATIONS)
def test_smaller_batches_give_the_same_bytes(name, operations, wanted, tmp_path):
    """What a task does that is tried again after its memory ran out (`--gpu_batch 0.5`).

    Seen to fail with groups that may be empty, and where the first of a group stood for all of it.
    """
    expected = wanted(name)
    try:
        for share in (0.5, 0.25, 0.001):
            set_batch_share(share)
            assert outcome(operations[name], tmp_path, expected) == "served"
    finally:
        set_batch_share(1.0)


# ---- errors in threads --------------------------------------------------------------------------

THREADS = {
    "kvikio reads": "linumpy.gpu.fetch.KvikioFetch.start",
    "plan": "linumpy.gpu.decode.plan_runs",
    "decoding by cores": "linumpy.gpu.backends.decode_chunk",
    "decoding": "linumpy.gpu.decode._Batch.decode",
    "after decoding": "linumpy.gpu.decode._Batch.finish",
    "manifest": "linumpy.gpu.stored_checks.check_chunk_file",
    "encoding": "linumpy.gpu.encode._Group.encode",
    "fetching": "linumpy.gpu.encode._Group.fetch",
    "storing": "linumpy.gpu.windows._begin_flush",
}


def patched(monkeypatch, target, fault):
    """Put a fault before a function."""
    import importlib

    path = target.split(".")
    for cut in range(len(path) - 1, 0, -1):
        try:
            owner = importlib.import_module(".".join(path[:cut]))
        except ImportError:
            continue
        break
    for name in path[cut:-1]:
        owner = getattr(owner, name)
    original = getattr(owner, path[-1])

    def run(*args, **kwargs):
        fault()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, path[-1], run)


@pytest.mark.parametrize("where", THREADS)
def test_an_error_in_any_thread_ends_it_all(where, operations, wanted, tmp_path, monkeypatch):
    """The n-th call fails, for each n up to the last call but no more than twelve.

    Seen to fail where errors of the threads that store were not asked for (`encode.drain`).
    """
    expected = wanted("resample")
    state = {"n": 0, "calls": 0}
    lock = threading.Lock()

    def fault():
        with lock:
            state["calls"] += 1
            if state["calls"] == state["n"]:
                raise ValueError("no luck")

    patched(monkeypatch, THREADS[where], fault)
    out = tmp_path / "out.ome.zarr"
    stopped = 0
    for n in range(1, 13):
        state.update(n=n, calls=0)
        try:
            operations["resample"](out)
        except LinumpyError as error:
            assert "no luck" in str(error)
            assert nothing_left(tmp_path) and workers() == []
            stopped += 1
        else:
            same(contents(out), expected)
            shutil.rmtree(out)
            if state["calls"] < n:
                break
    print(f"{where}: stopped {stopped} times")
    assert workers() == []
    state["n"] = 0
    assert outcome(operations["resample"], tmp_path, expected) == "served"


# ---- a device that is lost ----------------------------------------------------------------------

LOST = {
    "address": "*(volatile int*)8 = 1;",
    "trap": 'asm("trap;");',
}
CHILD = """
    import runpy, sys
    import cupy
    from linumpy.gpu import kernels

    code = 'extern "C" __global__ void lose() {{ {body} }}'
    calls, original = [0], kernels.copy_boxes

    def copy_boxes(*args):
        calls[0] += 1
        if calls[0] == {n}:
            cupy.RawKernel(code, "lose")((1,), (1,), (), stream=args[-1])
        original(*args)

    kernels.copy_boxes = copy_boxes
    sys.argv = {argv!r}
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def resampling(inputs, tmp_path):
    """The words of a script that resamples a grid."""
    script = str(SCRIPTS / "linum_resample_mosaic_grid.py")
    return [script, str(inputs[0][1]), str(tmp_path / "out.ome.zarr"), "-r", "20", "--use_gpu"]


def python(*words):
    """Run Python with these words, and return how it ended."""
    paths = os.pathsep.join(filter(None, [str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", LOST)
def test_a_device_that_is_lost_ends_the_script_with_its_status(inputs, tmp_path, kind, n):
    """A context that a kernel spoilt: the n-th batch's placing, in reading or in writing.

    Seen to fail where `exit_status` took a lost device for any other error.
    """
    argv = resampling(inputs, tmp_path)
    body = LOST[kind].replace('"', '\\"')
    code = textwrap.dedent(CHILD).format(body=body, n=n, argv=argv)
    done = python("-c", code)
    print(done.stderr)
    assert done.returncode == DEVICE_LOST, done.stderr
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("linum_resample_mosaic_grid.py: error:")]
    assert len(errors) == 1 and ("cudaError" in errors[0] or "CUDA_ERROR" in errors[0])
    assert nothing_left(tmp_path)
    # Another process goes on with the same device.
    again = python(*argv)
    assert again.returncode == 0, again.stderr


ENDLESS = """
    import runpy, sys
    import cupy
    from linumpy.core import watchdog
    from linumpy.gpu import kernels

    watchdog.EVERY_S, watchdog.LONGEST_S, watchdog._TICK_S = 0.5, 3.0, 0.1
    code = 'extern "C" __global__ void turn(volatile int* p) {{ while (*p == 0); }}'
    stop = cupy.zeros(1, "i4")
    cupy.cuda.Device().synchronize()
    original = kernels.copy_boxes

    def copy_boxes(*args):
        original(*args)
        cupy.RawKernel(code, "turn")((1,), (1,), (stop,), stream=args[-1])

    kernels.copy_boxes = copy_boxes
    sys.argv = {argv!r}
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_kernel_that_never_ends_ends_the_script(inputs, tmp_path):
    """No wait for it can be broken off. Seen to hang without `watch`."""
    argv = resampling(inputs, tmp_path)
    begun = time.monotonic()
    done = python("-c", textwrap.dedent(ENDLESS).format(argv=argv))
    print(f"{time.monotonic() - begun:.1f} s: {done.stderr}")
    assert done.returncode == DEVICE_LOST, done.stderr
    assert "GPU 0 did not finish its work within 0.05 min" in done.stderr
    assert nothing_left(tmp_path)
