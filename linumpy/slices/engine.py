"""The slice engine: stages chained over tiles with one read and one write.

A stage has three verbs. `measure` reduces a tile to something small, `solve` turns what all
tiles gave into a model, `apply` changes a tile. Stages that only apply are run together; a stage
that must learn first ends a pass, and the tiles rest in a `TileStore` until the model is there.
A chain with k models to learn is k + 1 passes, of which only the first reads the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

from linumpy.cli import logger, progress
from linumpy.device import CPU, Device, default_workers, to_device
from linumpy.slices.store import DEFAULT_BUDGET_BYTES, TileStore
from linumpy.slices.tile import Key, Tile
from linumpy.stream import stream


class Source(Protocol):
    """Where tiles come from: a grid on disk, a store, a slice put together from tiles."""

    @property
    def layout(self) -> Any:
        """Geometry of the whole."""

    def keys(self) -> Sequence[Key]:
        """All tiles, in the order in which they are processed."""

    def read(self, key: Key) -> Tile:
        """Return one tile; called from several threads."""


class Sink(Protocol):
    """Where tiles go."""

    def begin(self, layout: Any) -> None:
        """Learn the geometry of the tiles that will come; called once, before the first."""

    def write(self, tile: Tile) -> None:
        """Take one tile; called from one thread at a time."""


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
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
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
        Where to compute.
    budget_bytes
        Memory for tiles that wait between passes.
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
            _sweep(current, pending, waiting, outputs, device, label)
            _solve(waiting)
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


class StoreSource:
    """Tiles of a store as a source for the next pass."""

    def __init__(self, store: TileStore, keys: Sequence[Key], layout: Any) -> None:
        self.layout = layout
        self._store = store
        self._keys = keys

    def keys(self) -> Sequence[Key]:
        """All tiles, in the order of the first pass."""
        return self._keys

    def read(self, key: Key) -> Tile:
        """Return one tile from wherever it rests."""
        return self._store.get(key)


def _pass(
    source: Source,
    applies: Sequence[Stage],
    learners: Sequence[Stage],
    layout: Any,
    device: Device,
    budget_bytes: int,
    stores: list[TileStore],
) -> Source:
    """Apply and measure all tiles, keep them, and let the learners solve."""
    store = TileStore(budget_bytes)
    stores.append(store)
    label = " → ".join(s.name for s in (*applies, *learners))
    _sweep(source, applies, learners, [store.put], device, label)
    _solve(learners)
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
    def process(tile: Tile) -> tuple[Tile, list[Any]]:
        for stage in applies:
            tile = stage.apply(tile)
        return tile, [stage.measure(tile) for stage in learners]

    def on_device(tile: Tile) -> Tile:
        valid = None if tile.valid is None else to_device(tile.valid, device)
        return Tile(tile.key, to_device(tile.data, device), valid)

    def emit(_: Key, result: tuple[Tile, list[Any]]) -> None:
        for output in outputs:
            output(result[0])

    keys = source.keys()
    workers = default_workers(device)
    if device.is_gpu:
        results = stream(
            keys,
            source.read,
            lambda _, tile: process(on_device(tile)),
            emit,
            depth=4,
            readers=4,
        )
    else:
        # NumPy and SciPy release the GIL in all that takes long: whole tiles in threads.
        results = stream(
            keys,
            lambda key: process(source.read(key)),
            lambda _, result: result,
            emit,
            depth=workers + 1,
            readers=workers,
        )
    for key, (_, measurements) in _with_progress(results, len(keys), label):
        for stage, measurement in zip(learners, measurements, strict=True):
            stage.gather(key, measurement)


def _solve(learners: Sequence[Stage]) -> None:
    for stage in learners:
        stage.model = stage.solve()


def _with_progress(
    results: Iterator[tuple[Key, tuple[Tile, list[Any]]]], total: int, label: str
) -> Iterator[tuple[Key, tuple[Tile, list[Any]]]]:
    logger.debug("%s: %d tiles", label, total)
    return progress(results, total, label)
