"""Errors in threads that read, compute and write: named, passed on, no thread left waiting."""

import threading
import time

import numpy as np
import pytest

from linumpy.core.device import Device
from linumpy.core.errors import DeviceStuckError, InputError, LinumpyError
from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, exit_status
from linumpy.core.stream import StreamError, stream
from linumpy.io.grid import GridInfo, GridTile, create_grid, open_grid
from linumpy.slices.engine import Sink, Source, Stage, run
from linumpy.slices.grid_io import GridSink, GridSource
from linumpy.slices.lanes import in_lanes
from linumpy.slices.tile import Tile

from ..slices.test_several_gpus import KEYS, Numbers, PretendedCupy, Store


class OutOfMemoryError(MemoryError):
    """As CuPy's."""

    __module__ = "cupy.cuda.memory"


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    __module__ = "cupy_backends.cuda.api.runtime"


LOST = [
    "cudaErrorIllegalAddress: an illegal memory access was encountered",
    "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
]
ERRORS = {
    "bug": (ValueError("no luck"), None),
    "memory": (OutOfMemoryError("Out of memory allocating 512 bytes"), DEVICE_MEMORY),
    **{text.partition(":")[0]: (CUDARuntimeError(text), DEVICE_LOST) for text in LOST},
}


class Fault:
    """Raises an error at the n-th call, in whatever thread it is; at all later ones too if sticky.

    A device that is lost stays lost.
    """

    def __init__(self, n, error, sticky=False):
        self.n, self.error, self.sticky = n, error, sticky
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self.calls += 1
            if self.calls == self.n or (self.sticky and self.calls > self.n > 0):
                raise self.error


def ours():
    """Threads of streams, lanes and sweeps that are alive."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("linumpy-", "store_"))]


# ---- streams ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", ["read", "compute", "write"])
def test_the_nth_call_of_any_step_may_fail(step, kind):
    """Seen to fail (status of a bug) without the cause of what `named_step` raises."""
    error, status = ERRORS[kind]
    for n in range(1, 13):
        faults = {name: Fault(n if name == step else 0, error) for name in ("read", "compute")}
        fault = Fault(n if step == "write" else 0, error)
        written = []

        def read(key, faults=faults):
            faults["read"]()
            return key

        def compute(key, value, faults=faults):
            faults["compute"]()
            return value

        def write(key, value, fault=fault, written=written):
            fault()
            time.sleep(0.0005)
            written.append(key)

        items = stream(range(12), read, compute, write, readers=3, depth=3)
        found = []
        with pytest.raises(StreamError, match=rf"^\d+: {step} failed: {type(error).__name__}") as e:
            found.extend(key for key, _ in items)
        assert exit_status(e.value) == (1 if status is None else status)
        named = int(str(e.value).partition(":")[0])
        assert ours() == []
        # In order, none twice, none after the one that failed but those that were under way.
        assert written == sorted(set(written)) and len(written) <= n + 3
        assert named not in written or step != "write"
        assert next(items, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("step", ["read", "write"])
def test_what_waits_in_line_is_not_begun_after_an_error(step):
    """Seen to fail without the cancelling in `stream`, of reads and of writes."""
    begun = []

    def slow(key):
        begun.append(key)
        time.sleep(0.3)

    def read(key):
        if step == "read":
            slow(key)

    def compute(key, value):
        if key == (1 if step == "read" else 7):
            raise ValueError("no luck")

    def write(key, value):
        if step == "write":
            slow(key)

    with pytest.raises(StreamError, match="compute failed"):
        list(stream(range(8), read, compute, write, depth=7, readers=1, behind=8))
    # One or two before the error, one under way; a slow machine may begin one more.
    assert len(begun) <= 5 and ours() == []


def test_an_interrupted_stream_ends_its_threads():
    """Ctrl-C comes to the thread that computes.

    Seen to fail where `named_step` takes it for an error.
    """

    def compute(key, value):
        if key == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(stream(range(50), lambda k: k, compute, lambda k, r: None, readers=3, depth=3))
    assert ours() == []


# ---- lanes ------------------------------------------------------------------------------------


def test_a_lane_that_ends_too_early_is_an_error_and_no_wait():
    """Seen to wait for as long as a lane may take without the last `_put` of a lane."""
    keys = list(range(8))
    with pytest.raises(RuntimeError, match="lane 1 ended before its tile 5"):
        list(
            in_lanes(
                keys,
                {key: key % 2 for key in keys},
                lambda number, share: iter([[key] for key in share[: 2 if number else 9]]),
                lambda: None,
                30.0,
            )
        )
    assert ours() == []


def test_a_lane_that_does_not_stop_after_anothers_error_is_named():
    """Seen to hang without a limit to `join`."""
    go_on = threading.Event()

    def work(number, share):
        if number:
            go_on.wait()
        raise InputError("tile 0 is odd")
        yield

    try:
        with pytest.raises(DeviceStuckError, match="GPU 1 .* did not stop within 0.005 min") as e:
            list(in_lanes([0, 1], {0: 0, 1: 1}, work, lambda: None, 0.3))
        assert exit_status(e.value) == DEVICE_LOST
        assert isinstance(e.value.__context__, InputError)
    finally:
        go_on.set()


# ---- the engine, with pretended GPUs ----------------------------------------------------------


class Faulty(Stage):
    """Learns nothing much, with a fault in each verb."""

    name = "faulty"
    learns = True

    def __init__(self, faults):
        self.faults = faults
        self.known = []

    def measure(self, tile):
        self.faults["measure"]()
        return tile.key

    def gather(self, key, measurement):
        self.faults["gather"]()
        self.known.append(key)

    def solve(self):
        self.faults["solve"]()
        return len(self.known)

    def apply(self, tile):
        self.faults["apply"]()
        return tile


class Keep(Sink):
    def __init__(self, faults):
        self.faults = faults
        self.keys = []

    def write(self, tile):
        self.faults["write"]()
        self.keys.append(tile.key)

    def flush(self):
        self.faults["flush"]()


class ReadsOnGpu(Numbers):
    def __init__(self, cupy, faults):
        super().__init__(cupy)
        self.faults = faults

    def read_many(self, keys, device):
        self.faults["read"]()
        return super().read_many(keys, device)


PLACES = ("read", "measure", "gather", "solve", "apply", "write", "flush", "synchronize")


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["memory", "cudaErrorECCUncorrectable"])
def test_a_gpu_that_fails_at_any_moment_ends_the_pass(place, count, kind, monkeypatch):
    """With one GPU and two; every call of every step fails once.

    Seen to lose the last tiles without a word (two GPUs, `write`) without `finish` of lanes.
    """
    cupy = PretendedCupy(monkeypatch)
    monkeypatch.setattr("linumpy.slices.gpu_sweep.GROUP_NBYTES", 64)
    monkeypatch.setattr("linumpy.slices.engine.TileStore", Store)
    error, status = ERRORS[kind]
    for n in range(1, 100):
        faults = {name: Fault(n if name == place else 0, error, True) for name in PLACES}
        wait = faults["synchronize"]
        monkeypatch.setattr(cupy.cuda.Stream, "synchronize", lambda self, wait=wait: wait())
        sink, source = Keep(faults), ReadsOnGpu(cupy, faults)
        monkeypatch.setattr(Store, "source", source)
        try:
            run(
                [Faulty(faults)],
                source,
                [sink],
                device=Device("cuda", None if count > 1 else 0, count),
            )
        except (LinumpyError, MemoryError, RuntimeError) as found:
            assert exit_status(found) == status
            assert ours() == []
        else:
            break
    assert sink.keys == sorted(sink.keys) == KEYS or count > 1
    assert n > 1 and sorted(sink.keys) == KEYS


# ---- the engine on the CPU, to a file ----------------------------------------------------------


def micro_grid(path):
    """A grid of 2 x 3 tiles with a mask."""
    tiles = tuple(GridTile(x, y, 0.1 * x, 0.1 * y) for x in range(2) for y in range(3))
    info = GridInfo(3, (4, 8, 8), (10.0, 10.0, 10.0), 0.2, tiles, (80.0, 80.0))
    rng = np.random.default_rng(5)
    with create_grid(path, info, overwrite=False, with_valid=True) as grid:
        for tile in tiles:
            data = rng.random(info.tile_shape_px, np.float32)
            grid.write_tile(tile.ix, tile.iy, data, np.ones(data.shape, np.uint8))
    return path


class ReadsFiles(Source):
    """A grid on disk that cannot be read at some moment."""

    def __init__(self, path, faults):
        self._grid = GridSource.open(path)
        self.layout = self._grid.layout
        self.faults = faults

    def keys(self):
        return self._grid.keys()

    def read(self, key):
        self.faults["read"]()
        return self._grid.read(key)


class WritesFiles(GridSink):
    """A grid that cannot be written at some moment."""

    def __init__(self, path, faults):
        super().__init__(path, overwrite=True)
        self.faults = faults

    def write(self, tile: Tile):
        self.faults["write"]()
        super().write(tile)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("place", ["read", "measure", "gather", "solve", "apply", "write"])
def test_an_error_at_any_moment_leaves_the_output_as_it_was(tmp_path, place, before):
    """Seen to fail (threads go on) without the closing of streams in `linumpy.slices.engine`."""
    grid, out = micro_grid(tmp_path / "grid.ome.zarr"), tmp_path / "out.ome.zarr"
    if before:
        micro_grid(out)
    for n in range(1, 100):
        faults = {name: Fault(n if name == place else 0, OSError("disk")) for name in PLACES}
        there = sorted(p.name for p in tmp_path.iterdir())
        written = (out / "zarr.json").stat().st_mtime_ns if before else None
        try:
            with WritesFiles(out, faults) as sink:
                run([Faulty(faults)], ReadsFiles(grid, faults), [sink])
        except (LinumpyError, OSError) as error:
            assert "disk" in str(error)
            assert sorted(p.name for p in tmp_path.iterdir()) == there
            assert not before or (out / "zarr.json").stat().st_mtime_ns == written
            assert ours() == []
        else:
            break
    assert n == (2 if place == "solve" else 7)
    for key in open_grid(grid).info.tiles:
        place = (key.ix, key.iy)
        np.testing.assert_array_equal(
            open_grid(out).read_tile(*place), open_grid(grid).read_tile(*place)
        )
