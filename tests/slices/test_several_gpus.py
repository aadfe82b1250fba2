"""The engine with several simulated GPUs: which one does what."""

from __future__ import annotations

import functools
import sys
import threading
import types
from dataclasses import dataclass

import numpy as np
import pytest

from linumpy.core.device import Device
from linumpy.core.errors import InputError
from linumpy.slices import gpu_sweep
from linumpy.slices.engine import Sink, Source, Stage, run
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Tile

KEYS = [(x, y) for x in range(3) for y in range(4)]


class PretendedCupy(types.ModuleType):
    """As much of CuPy as the engine itself calls: devices and streams of threads, no arrays."""

    def __init__(self, monkeypatch):
        super().__init__("cupy")
        local = threading.local()
        self.local = local

        class Current:
            def __init__(self, number=None):
                self.id = getattr(local, "device", 0) if number is None else number

            def __enter__(self):
                self.before = getattr(local, "device", 0)
                local.device = self.id
                return self

            def __exit__(self, *_):
                local.device = self.before

        class Stream:
            def __init__(self, non_blocking=False):
                self.device = Current().id
                self.users = set()

            def __enter__(self):
                assert self.device == Current().id, "a stream of another device"
                local.stream = self
                self.users.add(threading.current_thread().name)
                return self

            def __exit__(self, *_):
                local.stream = None

            def synchronize(self):
                pass

        pool = types.SimpleNamespace(
            free_bytes=lambda: 0, used_bytes=lambda: 0, get_limit=lambda: 0
        )
        runtime = types.SimpleNamespace(
            memGetInfo=lambda: (1 << 20, 1 << 20), getDeviceCount=lambda: 2
        )
        runtime.CUDARuntimeError = OSError
        self.cuda = types.SimpleNamespace(
            Device=Current,
            Stream=Stream,
            runtime=runtime,
            get_current_stream=lambda: Stream(),
        )
        self.get_default_memory_pool = lambda: pool
        self.asarray = np.asarray
        monkeypatch.setitem(sys.modules, "cupy", self)
        # Streams are kept by the process: those of a pretended device must go with it.
        own = functools.cache(gpu_sweep._streams.__wrapped__)
        monkeypatch.setattr(gpu_sweep, "_streams", own)


@pytest.fixture
def cupy(monkeypatch):
    return PretendedCupy(monkeypatch)


@dataclass(frozen=True)
class Layout:
    tile_nbytes: int = 16


class Numbers(Source):
    """Tiles that hold their number."""

    def __init__(self, cupy):
        self.layout = Layout()
        self.cupy = cupy
        self.read_on = {}

    def keys(self):
        return KEYS

    def read_many(self, keys, device):
        assert device.index == self.cupy.cuda.Device().id
        assert self.cupy.local.stream.device == device.index
        self.read_on.update(dict.fromkeys(keys, device.index))
        return [Tile(key, np.full((1, 2, 2), KEYS.index(key), np.float32)) for key in keys]


class Shrink(Stage):
    """Makes tiles that take less memory, so that more of them go through at once."""

    name = "shrink"

    def layout(self, layout):
        return Layout(layout.tile_nbytes // 4)


class Sum(Stage):
    """Learns the sum of all tiles in their order, and takes it off."""

    name = "sum"
    learns = True

    def __init__(self, cupy):
        self.cupy = cupy
        self.order = []
        self.done_on = {}

    def measure(self, tile):
        self.done_on[tile.key] = self.cupy.cuda.Device().id
        return float(tile.data[0, 0, 0])

    def gather(self, key, measurement):
        assert self.cupy.cuda.Device().id == 0
        assert threading.current_thread() is threading.main_thread()
        assert measurement == KEYS.index(key)
        self.order.append(key)

    def solve(self):
        return float(sum(KEYS.index(key) for key in self.order))

    def apply(self, tile):
        return Tile(tile.key, tile.data - np.float32(self.model))


class Memory(Sink):
    def __init__(self, cupy):
        self.cupy = cupy
        self.tiles, self.written_on, self.flushed_on = {}, {}, []

    def write(self, tile):
        self.tiles[tile.key] = tile.data
        self.written_on[tile.key] = self.cupy.cuda.Device().id

    def flush(self):
        self.flushed_on.append(self.cupy.cuda.Device().id)


class Store(TileStore):
    """Says where tiles came from: arrays of NumPy do not."""

    source = None

    def home(self, key):
        return Device("cuda", self.source.read_on[key])

    def get(self, key, where=None):
        assert where == self.home(key), "a tile left its GPU"
        return super().get(key)


@pytest.mark.parametrize(("room", "groups"), [(1 << 30, 1), (32, 2)])
def test_each_gpu_has_its_tiles_from_the_first_byte_to_the_last(cupy, monkeypatch, room, groups):
    # A GPU takes two tiles at a time in the second case, all in the first.
    monkeypatch.setattr(gpu_sweep, "GROUP_NBYTES", room)
    monkeypatch.setattr("linumpy.slices.engine.TileStore", Store)
    source, stage, sink = Numbers(cupy), Sum(cupy), Memory(cupy)
    monkeypatch.setattr(Store, "source", source)
    run([Shrink(), stage], source, [sink], device=Device("cuda", count=2))
    expected = [0] * 6 + [1] * 6 if groups == 1 else [0, 0, 1, 1] * 3
    assert [source.read_on[key] for key in KEYS] == expected
    assert stage.done_on == source.read_on == sink.written_on
    assert stage.order == KEYS
    assert sorted(sink.flushed_on) == [0, 1]
    for number, key in enumerate(KEYS):
        assert (sink.tiles[key] == np.float32(number) - 66).all()


@pytest.mark.parametrize(
    ("tiles_a_read", "tile_nbytes", "free_nbytes", "expected"),
    [
        (1, 1 << 28, 80 << 30, 8),
        # All cores decode, where memory lasts: a sixteenth of 80 GiB is 20 tiles.
        (16, 1 << 28, 80 << 30, 16),
        (64, 1 << 28, 80 << 30, 20),
        (16, 1 << 28, 1 << 30, 1),
        (16, 1 << 20, 80 << 30, 2048),
    ],
)
def test_group_keeps_cores_busy_within_memory(
    monkeypatch, tiles_a_read, tile_nbytes, free_nbytes, expected
):
    monkeypatch.setattr(gpu_sweep, "free_gpu_bytes", lambda: free_nbytes)
    layout = types.SimpleNamespace(tile_nbytes=tile_nbytes)
    source = types.SimpleNamespace(layout=layout, tiles_a_read=tiles_a_read)
    assert gpu_sweep._group_size(source) == expected


def test_one_gpu_does_all_itself(cupy):
    source, sink = Numbers(cupy), Memory(cupy)
    run([], source, [sink], device=Device("cuda", 0))
    assert set(source.read_on.values()) == {0} and sink.flushed_on == [0]
    assert list(sink.tiles) == KEYS


def test_an_error_on_any_gpu_ends_the_pass(cupy, monkeypatch):
    class Odd(Sum):
        def measure(self, tile):
            if tile.key == (2, 0):
                raise InputError("tile (2, 0) is odd")
            return super().measure(tile)

    stage = Odd(cupy)
    with pytest.raises(InputError, match="odd"):
        run([stage], Numbers(cupy), device=Device("cuda", count=2))
    assert stage.order == KEYS[:6]
    assert not [t for t in threading.enumerate() if t.name.startswith("linumpy-")]
