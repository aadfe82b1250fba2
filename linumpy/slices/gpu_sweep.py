"""Pass over tiles on one or several GPUs: reading, computing and writing overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from linumpy.core import overlap
from linumpy.core.device import Device, batch_share, free_gpu_bytes, locate, with_arrays_on
from linumpy.core.stream import stream
from linumpy.core.timeline import span
from linumpy.slices.lanes import divide, in_lanes
from linumpy.slices.tile import Key, Tile

if TYPE_CHECKING:
    from linumpy.slices.engine import Source

GROUP_NBYTES = 1 << 31
"""Most bytes of the tiles that a GPU reads at once: two thousand chunks of a megabyte. More where
that leaves cores idle that decode (`Source.tiles_a_read`)."""

GROUPS_IN_MEMORY = 16
"""A group's share of device memory: two are decoded, computed or encoded at a time, each of which
takes several times a group's bytes."""


@dataclass(frozen=True)
class Result:
    """Result of a tile; the tile itself only where it is wanted."""

    key: Key
    tile: Tile | None
    measurements: list[Any]


Process = Callable[[Tile], Result]
Take = Callable[[Result], None]


def sweep_on_gpu(
    source: Source, process: Process, gather: Take, emit: Take, device: Device
) -> Generator[Key, None, None]:
    """Pass over all tiles of a source, and yield their keys.

    Parameters
    ----------
    source
        Where they come from.
    process
        Computes on a tile; runs in one thread a GPU.
    gather
        Takes results in the order of tiles, on the first GPU, in the caller's thread.
    emit
        Takes results in any order of GPUs; runs in one more thread a GPU.
    device
        One GPU, or several that the tiles are divided among.

    Raises
    ------
    DeviceError
        When one of them cannot be used.
    """
    for single in device.each():
        locate(single)
    sweep = _on_one if device.count == 1 else _on_several
    return sweep(source, process, gather, emit, device)


def on_each_gpu(device: Device, work: Callable[[], None]) -> None:
    """Call a function with each GPU as CuPy's current one, side by side."""
    if device.count == 1:
        work()
        return

    def run(single: Device) -> None:
        import cupy

        with cupy.cuda.Device(single.index):
            work()

    with ThreadPoolExecutor(device.count, "linumpy-gpu") as pool:
        for done in [pool.submit(run, single) for single in device.each()]:
            done.result()


def _on_one(
    source: Source, process: Process, gather: Take, emit: Take, device: Device
) -> Generator[Key, None, None]:
    import cupy

    keys = list(source.keys())
    streams = _streams(cupy.cuda.Device().id, overlap.lane())
    groups = _groups(source, keys, _group_size(source), process, emit, device, streams)
    with closing(groups):
        for results in groups:
            with span("gather", results[0].key), streams["compute"] as now:
                for result in results:
                    gather(result)
                now.synchronize()
            yield from [result.key for result in results]
            # So that their memory is free while the next group is computed.
            del result, results


def _on_several(
    source: Source, process: Process, gather: Take, emit: Take, device: Device
) -> Generator[Key, None, None]:
    """Divide the tiles; tiles that are on a GPU already stay there.

    What was measured goes to the first GPU. All that happens to it there, and taking and giving
    back its memory, is on one stream, that on which this GPU's own tiles are measured.
    """
    import cupy

    keys = list(source.keys())
    devices = device.each()
    sizes, streams = [], []
    for single in devices:
        with cupy.cuda.Device(single.index):
            sizes.append(_group_size(source))
            streams.append(_streams(single.index, overlap.lane()))
    homes = [source.home(key) for key in keys]
    owner = divide(
        keys, [None if home is None else home.index for home in homes], min(sizes), len(devices)
    )
    first = streams[0]["compute"]

    def collected(result: Result) -> Result:
        with cupy.cuda.Device(0), first:
            found = [with_arrays_on(m, devices[0]) for m in result.measurements]
        return replace(result, tile=None, measurements=found)

    def work(number: int, share: list[Key]) -> Generator[list[Result], None, None]:
        with cupy.cuda.Device(number):
            groups = _groups(
                source, share, min(sizes), process, emit, devices[number], streams[number]
            )
            with closing(groups):
                for results in groups:
                    yield [collected(result) for result in results]

    with (
        cupy.cuda.Device(0),
        closing(in_lanes(keys, owner, work, first.synchronize)) as found,
    ):
        for key, result in found:
            with span("gather", key), first:
                gather(result)
            yield key
            del result


def _group_size(source: Source) -> int:
    """Return how many tiles the current GPU takes at once."""
    tile_nbytes = source.layout.tile_nbytes
    wanted = max(GROUP_NBYTES, source.tiles_a_read * tile_nbytes)
    room = int(batch_share() * min(wanted, free_gpu_bytes() // GROUPS_IN_MEMORY))
    return max(1, room // tile_nbytes)


@functools.cache
def _streams(index: int, lane: int) -> dict[str, Any]:
    """Return the streams of a GPU and a lane of slices, by step.

    All passes of a lane have the same: memory that CuPy's pool keeps is found again only by the
    stream that it was allocated for, and allocating from the driver waits for other processes.
    """
    import cupy

    with cupy.cuda.Device(index):
        return {step: cupy.cuda.Stream(non_blocking=True) for step in ("read", "compute", "write")}


def _groups(
    source: Source,
    keys: Sequence[Key],
    size: int,
    process: Process,
    emit: Take,
    device: Device,
    streams: dict[str, Any],
) -> Generator[list[Result], None, None]:
    """Pass over tiles in groups: one is read, one computed and one written at a time.

    Reading, computing and writing have a stream each. A group is handed on when its stream is
    through, so that no memory is reused before its last user is.
    """
    import cupy

    groups = [tuple(keys[start : start + size]) for start in range(0, len(keys), size)]

    def read(group: tuple[Key, ...]) -> list[Tile]:
        with span("read", group[0]), cupy.cuda.Device(device.index), streams["read"] as now:
            tiles = source.read_many(group, device)
            now.synchronize()
        return tiles

    def compute(group: tuple[Key, ...], tiles: list[Tile]) -> list[Result]:
        with span("compute", group[0]), streams["compute"] as now:
            results = [process(tile) for tile in tiles]
            now.synchronize()
        return results

    def write(group: tuple[Key, ...], results: list[Result]) -> None:
        with span("write", group[0]), cupy.cuda.Device(device.index), streams["write"]:
            for result in results:
                emit(result)

    with closing(stream(groups, read, compute, write, depth=1, readers=1)) as made:
        for _, results in made:
            yield results
            # So that their memory is free while the next group is computed.
            del results
