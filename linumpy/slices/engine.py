"""Slice engine: stages chained over tiles with one read and one write.

A stage has three verbs. `measure` reduces a tile to something small, `solve` turns what all
tiles gave into a model, `apply` changes a tile. Stages that only apply are run together; a stage
that must learn first ends a pass, and the tiles rest in a `TileStore` until the model is there.
A chain with k models to learn is k + 1 passes, of which only the first reads the source.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import Any, ClassVar

from linumpy.core import overlap
from linumpy.core.device import (
    CPU,
    Device,
    batch_share,
    default_workers,
    free_gpu_bytes,
    tile_workers,
    to_device,
)
from linumpy.core.host_memory import free_host_bytes
from linumpy.core.log import logger, progress
from linumpy.core.stream import named_step, stream
from linumpy.core.timeline import span
from linumpy.io import host_pool
from linumpy.slices.gpu_sweep import Result, on_each_gpu, sweep_on_gpu
from linumpy.slices.store import DEFAULT_BUDGET_BYTES, TileStore
from linumpy.slices.tile import Key, Tile

STORE_SHARE = 0.5
"""Share of device memory for tiles that wait between passes."""


class Source:
    """Where tiles come from: a grid on disk, a store, a slice put together from tiles.

    Attributes
    ----------
    layout
        Geometry of the whole; its `tile_nbytes` are those of one tile.
    tiles_a_read
        How many tiles it takes to have all cores decode; more than one where a tile is few chunks.
    """

    layout: Any
    tiles_a_read: int = 1

    def keys(self) -> Sequence[Key]:
        """All tiles, in the order in which they are processed."""
        raise NotImplementedError

    def read(self, key: Key) -> Tile:
        """Return one tile, wherever it lies; called from several threads."""
        raise NotImplementedError

    def home(self, key: Key) -> Device | None:
        """Return the device that holds a tile; None for a tile on the host."""
        return None

    def read_many(self, keys: Sequence[Key], device: Device) -> list[Tile]:
        """Return tiles on a device, which is CuPy's current one; complete on return."""
        with ThreadPoolExecutor(default_workers(CPU), "linumpy-read") as pool:
            tiles = list(pool.map(self.read, keys))
        return [on_device(tile, device) for tile in tiles]


class Sink:
    """Where tiles go."""

    def begin(self, layout: Any) -> None:
        """Learn the geometry of the tiles that will come; called once, before the first."""

    def write(self, tile: Tile) -> None:
        """Take one tile; called from one thread at a time, or from one a GPU."""
        raise NotImplementedError

    def flush(self) -> None:
        """Finish what `write` may have put off; called after the last tile, on each GPU once."""


def on_device(tile: Tile, device: Device) -> Tile:
    """Return a tile whose arrays lie on a device."""
    valid = None if tile.valid is None else to_device(tile.valid, device)
    return Tile(tile.key, to_device(tile.data, device), valid)


class Stage:
    """One step of the chain; subclasses override the verbs that they have.

    Class attributes
    ----------------
    name
        The stem shared with function, script, module and model file.
    learns
        Whether `measure` and `solve` must run before `apply`, unless the model was given.
    changes
        Whether `apply` does anything. A stage that only observes does not end a pass for the
        observers after it.
    """

    name: ClassVar[str]
    learns: ClassVar[bool] = False
    changes: ClassVar[bool] = True

    model: Any = None

    def start(self, layout: Any) -> None:
        """Learn the geometry of the tiles that will come."""

    def layout(self, layout: Any) -> Any:
        """Return the geometry after `apply`."""
        return layout

    def measure(self, tile: Tile) -> Any:
        """Reduce a tile; runs in several threads."""

    def gather(self, key: Key, measurement: Any) -> None:
        """Take one measurement, in the order of the tiles; runs in one thread."""

    def solve(self) -> Any:
        """Return the model from all that was gathered."""

    def apply(self, tile: Tile) -> Tile:
        """Return the changed tile; runs in several threads."""
        return tile


def run(
    stages: Sequence[Stage],
    source: Source,
    sinks: Iterable[Sink] = (),
    *,
    device: Device = CPU,
    budget_bytes: int | None = None,
    keep: TileStore | None = None,
) -> Any:
    """Run a chain of stages over all tiles of a source.

    Parameters
    ----------
    stages
        In order. Those that learn get their `model` set.
    source
        Where the tiles come from; read once.
    sinks
        Where finished tiles go.
    device
        Where to compute; several GPUs have the tiles divided among them, with the same results.
    budget_bytes
        Memory for tiles that wait between passes, on each device and for what a GPU has no room for
        once more on the host; see `make_store` for None.
    keep
        A store to put the finished tiles in as well, for what follows.

    Returns
    -------
    The layout after the last stage.
    """
    current: Source = source
    pending: list[Stage] = []
    waiting: list[Stage] = []
    stores: list[TileStore] = []
    sinks = list(sinks)
    layout = source.layout
    try:
        for stage in stages:
            must_learn = stage.learns and stage.model is None
            if waiting and (stage.changes or not must_learn):
                current = _pass(current, pending, waiting, layout, device, budget_bytes, stores)
                pending, waiting = [], []
            stage.start(layout)
            if must_learn:
                waiting.append(stage)
                if stage.changes:
                    current = _pass(current, pending, waiting, layout, device, budget_bytes, stores)
                    pending, waiting = [stage], []
            else:
                pending.append(stage)
            layout = stage.layout(layout)
        outputs: list[Callable[[Tile], None]] = []
        for sink in sinks:
            sink.begin(layout)
            outputs.append(sink.write)
        if keep is not None:
            outputs.append(keep.put)
        if pending or waiting or outputs:
            label = " → ".join(s.name for s in (*pending, *waiting)) or "write"
            if stores and isinstance(current, StoreSource):
                current.is_last = True
            _sweep(current, pending, waiting, outputs, device, label)
            for sink in sinks:
                with span("write", label):
                    named_step(label, "write", on_each_gpu, device, sink.flush)
            _solve(waiting, device)
    finally:
        for store in stores:
            store.close()
    return layout


def observe(
    learners: Sequence[Stage],
    before: Sequence[Stage],
    source: Source,
    *,
    device: Device = CPU,
) -> None:
    """Let stages gather from the tiles of one source, without solving yet.

    Parameters
    ----------
    learners
        Measure and gather; several sources may be observed before they solve.
    before
        Stages, models known, that the tiles go through first.
    source
        Read once.
    """
    layout = source.layout
    for stage in before:
        stage.start(layout)
        layout = stage.layout(layout)
    for stage in learners:
        stage.start(layout)
    label = " → ".join(stage.name for stage in learners)
    _sweep(source, before, learners, [], device, label)


class StoreSource(Source):
    """Tiles of a store as a source for the next pass.

    Attributes
    ----------
    is_last
        Whether no pass comes after the next, so that each tile may go as soon as it was read.
    """

    is_last = False

    def __init__(self, store: TileStore, keys: Sequence[Key], layout: Any) -> None:
        self.layout = layout
        self._store = store
        self._keys = keys

    def keys(self) -> Sequence[Key]:
        """All tiles, in the order of the first pass."""
        return self._keys

    def read(self, key: Key) -> Tile:
        """Return one tile from wherever it rests."""
        return self._store.take(key) if self.is_last else self._store.get(key)

    def home(self, key: Key) -> Device | None:
        """Return the device that a tile came on."""
        return self._store.home(key)

    def read_many(self, keys: Sequence[Key], device: Device) -> list[Tile]:
        """Return tiles from wherever they rest."""
        where = None if device.index is None else device
        return [on_device(self._store.get(key, where), device) for key in keys]


def resting_bytes(device: Device, budget_bytes: int | None = None, lanes: int | None = None) -> int:
    """Return how many bytes of tiles may wait on a device between two passes.

    `lanes`: how many take as many on a host; None for all slices that are worked on at a time.
    """
    if budget_bytes is not None:
        return budget_bytes
    if not device.is_gpu:
        return DEFAULT_BUDGET_BYTES // (lanes or overlap.count())
    return int(batch_share() * STORE_SHARE * free_gpu_bytes())


def make_store(
    device: Device,
    budget_bytes: int | None = None,
    *,
    fetch: Callable[[Key], Tile] | None = None,
) -> TileStore:
    """Return a store for tiles that are computed on a device; see `TileStore`.

    Without a budget, tiles take half of what is free on a GPU and, if that is not enough, a quarter
    of what is free on its host; without a GPU they take `DEFAULT_BUDGET_BYTES`.
    """
    on_device = resting_bytes(device, budget_bytes)
    if not device.is_gpu:
        return TileStore(on_device, fetch=fetch)
    on_host = budget_bytes
    if on_host is None:
        on_host = free_host_bytes() // (4 * overlap.count())
    return TileStore(on_host, gpu_budget_bytes=on_device, fetch=fetch)


def _pass(
    source: Source,
    applies: Sequence[Stage],
    learners: Sequence[Stage],
    layout: Any,
    device: Device,
    budget_bytes: int | None,
    stores: list[TileStore],
) -> Source:
    """Apply and measure all tiles, keep them, and let the learners solve."""
    label = " → ".join(s.name for s in (*applies, *learners))
    if isinstance(source, StoreSource) and not applies:
        _sweep(source, applies, learners, [], device, label)
        _solve(learners, device)
        return source
    # The host can read unchanged tiles again; a GPU would decode one tile alone far too slowly.
    again = None if applies or device.is_gpu else source.read
    store = make_store(device, budget_bytes, fetch=again)
    if stores and isinstance(source, StoreSource):
        source.is_last = True
    stores.append(store)
    _sweep(source, applies, learners, [store.put], device, label)
    _solve(learners, device)
    if len(stores) > 1:
        # The tiles of the pass before are not needed again.
        stores.pop(0).close()
    return StoreSource(store, source.keys(), layout)


def _sweep(
    source: Source,
    applies: Sequence[Stage],
    learners: Sequence[Stage],
    outputs: Sequence[Callable[[Tile], None]],
    device: Device,
    label: str,
) -> None:
    """Pass over all tiles."""

    def process(tile: Tile) -> Result:
        for stage in applies:
            tile = stage.apply(tile)
        measurements = [stage.measure(tile) for stage in learners]
        return Result(tile.key, tile if outputs else None, measurements)

    def gather(result: Result) -> None:
        for stage, measurement in zip(learners, result.measurements, strict=True):
            named_step(result.key, f"{stage.name} (gather)", stage.gather, result.key, measurement)

    def emit(result: Result) -> None:
        for output in outputs:
            assert result.tile is not None
            output(result.tile)

    total = len(source.keys())
    logger.debug("%s: %d tiles", label, total)
    sweep = sweep_on_gpu if device.is_gpu else _sweep_on_host
    # Closed by hand: an error on its way would keep what runs ahead alive, and with it its threads.
    with closing(sweep(source, process, gather, emit, device)) as keys:
        for _ in progress(keys, total, label):
            pass


def _sweep_on_host(
    source: Source,
    process: Callable[[Tile], Result],
    gather: Callable[[Result], None],
    emit: Callable[[Result], None],
    device: Device,
) -> Generator[Key, None, None]:
    """Pass over all tiles, each in a thread of its own; yields their keys."""
    workers = tile_workers(source.layout.tile_nbytes, device)

    def work(key: Key) -> Result:
        with span("read", key):
            tile = source.read(key)
        with span("compute", key):
            return process(on_device(tile, device))

    def write(key: Key, result: Result) -> None:
        with span("write", key):
            emit(result)

    # NumPy and SciPy release the GIL in all that takes long: whole tiles in threads.
    # One writer encodes on all cores: more tiles behind it would only take memory.
    results = stream(
        source.keys(),
        work,
        lambda _, done: done,
        write,
        depth=workers,
        behind=1,
        readers=workers,
        slots=overlap.slots(),
    )
    # Tiles that are read from files follow each other in the same memory.
    memory = nullcontext() if isinstance(source, StoreSource) else host_pool.reusing()
    with memory, closing(results):
        for key, result in results:
            with span("gather", key):
                gather(result)
            yield key
            # So that the tile is free while the next is waited for.
            del result


def _solve(learners: Sequence[Stage], device: Device) -> None:
    for stage in learners:
        with span("solve", stage.name):
            stage.model = named_step(stage.name, "solve", stage.solve)
    if device.is_gpu:
        import cupy

        # Models may lie on the device, and other streams will use them.
        cupy.cuda.get_current_stream().synchronize()
