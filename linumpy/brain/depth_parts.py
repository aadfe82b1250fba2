"""A volume by parts of depth, each worked on by a process of its own: on its GPU, or on its cores.

Parts are whole layers of shards, so that no two processes write to one file. Where processes are
more than layers, layers can be divided by their rows, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from multiprocessing.connection import wait
from typing import Any, NamedTuple, TypeVar

from linumpy.brain.stacking import BLOCK_PX, cuts
from linumpy.core.device import CPU, Device, default_workers, share_of_gpu, with_arrays_on
from linumpy.core.errors import LinumpyError
from linumpy.core.host_memory import granted_host_bytes, map_arrays, share_heap
from linumpy.core.leases.lease import Ask, hold
from linumpy.core.timeline import span
from linumpy.core.worker_process import (
    CORES_A_PROCESS,
    Setting,
    WorkerProcess,
    end_all,
    processes_on,
)
from linumpy.io.omezarr import Image
from linumpy.io.pyramid import BAND_PX, Pyramid, write_parts
from linumpy.io.slice_layout import SHARD_PX
from linumpy.store.plain_arrays import PlainArray

Item = TypeVar("Item")
Result = TypeVar("Result")


class PlanesAndRows(NamedTuple):
    """A part of a volume, all along its last axis."""

    planes: slice
    rows: slice


LEAST_NBYTES = 256 << 20
"""Of the volume, for a process on cores: with less, it takes longer to start than it saves."""

START_NBYTES = 600 << 20
"""What a process on a GPU wrote of a volume while another started
(docs/benchmarks/2026-11-25-depth-parts.md). Stacking has become faster since, other steps were not
timed: of a brain of 6 GiB three processes gain 1.7 of 11 s."""

_NEEDED_AT_THE_END = ("skimage.morphology", "matplotlib.figure")
"""Their imports take half a second, on cores of servers one."""

BASE_NBYTES, BLOCKS, LAYERS = 400 << 20, 2.5, 0.3
"""Host memory of one on cores: the interpreter, blocks of the brain and layers of it."""


def usual_parts(device: Device, shape: Sequence[int], *, by_rows: bool = False) -> int:
    """Return by how many processes to work on a float32 volume, by its size, device and memory.

    Parameters
    ----------
    by_rows
        Whether parts are those of `divide_rows`; on a GPU they are whole planes.
    """
    layers = -(-shape[0] // SHARD_PX)
    across = -(-shape[1] // BAND_PX[1]) if by_rows and not device.is_gpu else 1
    most = min(layers * across, worthwhile(device, 4 * shape[0] * shape[1] * shape[2]))
    if most <= 1:
        return 1
    # A share is for the process that starts the others, and holds what they tell of the whole.
    if device.is_gpu:
        return min(most, processes_on(device, beside=1))
    room = granted_host_bytes() // host_nbytes(shape) - 1
    most = max(1, min(most, default_workers(device) // CORES_A_PROCESS, room))
    return useful_parts(shape, most) if by_rows else most


def useful_parts(shape: Sequence[int], count: int) -> int:
    """Return how many of so many processes `divide_rows` has parts for."""
    return min(count, sum(_parts_of_layers(shape, count)))


def _parts_of_layers(shape: Sequence[int], count: int) -> list[int]:
    """Return by how many parts of its rows each layer is written: one, or `count` in all at most.

    The layer whose largest part is largest is divided next, in parts with a band of rows less.
    """
    bands = -(-shape[1] // BAND_PX[1])
    depths = [planes.stop - planes.start for planes in cuts(slice(0, shape[0]), SHARD_PX)]
    parts = [1] * len(depths)
    while True:
        largest = [-(-bands // n) for n in parts]
        rows = [min(shape[1], n * BAND_PX[1]) for n in largest]
        loads = [depth * n for depth, n in zip(depths, rows, strict=True)]
        most = loads.index(max(loads))
        if largest[most] == 1:
            return parts
        finer = -(-bands // (largest[most] - 1))
        if sum(parts) - parts[most] + finer > count:
            return parts
        parts[most] = finer


def worthwhile(device: Device, nbytes: int) -> int:
    """Return by how many processes a volume is written soonest, with cores and memory for all."""
    return nbytes // (START_NBYTES if device.is_gpu else LEAST_NBYTES)


def host_nbytes(shape: Sequence[int]) -> int:
    """Return the host memory of a process on cores, for a float32 volume, whatever its depth."""
    planes = 4 * min(SHARD_PX, shape[0])
    block = planes * min(BLOCK_PX, shape[1]) * min(BLOCK_PX, shape[2])
    return int(BASE_NBYTES + BLOCKS * block + LAYERS * planes * shape[1] * shape[2])


def can_be_shared(images: Iterable[Image | None]) -> bool:
    """Whether other processes can read images as this one does, which opened them; None cannot."""
    return all(
        image is not None and isinstance(array, PlainArray)
        for image in images
        for array in ((image.array, image.valid or image.array) if image else (None,))
    )


class DepthParts:
    """Processes that work on parts of a volume; without any, this one works on the whole.

    Attributes
    ----------
    count
        Of the processes.
    """

    def __init__(
        self, workers: Sequence[WorkerProcess[tuple[Callable[[Any], Any], Any], Any]] = ()
    ) -> None:
        self._workers = workers
        self.count = max(1, len(workers))

    def divide(self, n_planes: int, side: int = SHARD_PX) -> list[slice]:
        """Return parts of so many planes, about equal, in whole layers `side` deep."""
        return _divided(n_planes, side, self.count)

    def divide_rows(self, shape: Sequence[int]) -> list[PlanesAndRows]:
        """Return parts of a volume: layers, divided by their rows where processes are more."""
        whole = slice(0, shape[1])
        if self.count <= -(-shape[0] // SHARD_PX):
            return [PlanesAndRows(planes, whole) for planes in self.divide(shape[0])]
        layers = cuts(slice(0, shape[0]), SHARD_PX)
        counts = _parts_of_layers(shape, self.count)
        return [
            PlanesAndRows(planes, rows)
            for planes, count in zip(layers, counts, strict=True)
            for rows in _divided(shape[1], BAND_PX[1], count)
        ]

    def run(
        self,
        work: Callable[[Item], Result],
        items: Sequence[Item],
        name: str = "",
        narrow: Callable[[Item], Callable[[Item], Result]] | None = None,
    ) -> list[Result]:
        """Call a function of each item, in a process each, and return what it returns.

        Parameters
        ----------
        work
            To be pickled, with what it returns; arrays on a GPU come back on the host.
        items
            As many as processes at most: planes, planes and rows, or other things.
        name
            Of other things, for errors.
        narrow
            Returns what is pickled in place of `work` for one item, where that needs less.

        Raises
        ------
        Exception
            The first that ends a process, which is named; the others have ended then.
        """
        if not self._workers:
            return [work(item) for item in items]
        waiting: dict[Any, int] = {}
        found: dict[int, Result] = {}
        try:
            for number, (worker, item) in enumerate(zip(self._workers, items, strict=False)):
                worker.send((narrow(item) if narrow else work, item))
                waiting[worker.connection] = number
            # While they work: the mask of tissue and the preview are made by this one.
            for module in _NEEDED_AT_THE_END:
                import_module(module)
            while waiting:
                for connection in wait(list(waiting)):
                    number = waiting.pop(connection)
                    name = _name_of(items[number]) or name
                    try:
                        found[number] = self._workers[number].receive(name)
                    except (LinumpyError, MemoryError) as error:
                        text = str(error)
                        if text.startswith(name):
                            raise
                        raise type(error)(f"{name}: {text}") from error
        except BaseException:
            # None writes on while the caller removes what was made.
            end_all(self._workers)
            raise
        return [found[number] for number in sorted(found)]

    def spread(
        self,
        work: Callable[[Item], Result],
        items: Sequence[Item],
        name: str,
        *,
        threads: int = 1,
    ) -> list[Result]:
        """Call a function of any number of items, some in each process, and return what it returns.

        Parameters
        ----------
        work, name
            As in `run`.
        threads
            Most in which each process calls it, as many as it has cores at most.
        """
        dealt = [items[n :: self.count] for n in range(min(self.count, len(items)))]
        found: dict[int, Result] = {}
        for n, some in enumerate(self.run(partial(_each, work, threads), dealt, name)):
            found |= dict(zip(range(n, len(items), self.count), some, strict=True))
        return [found[n] for n in range(len(items))]

    def write(
        self,
        work: Callable[[Item], Result],
        parts: Sequence[Item],
        pyramids: Sequence[Pyramid],
        narrow: Callable[[Item], Callable[[Item], Result]] | None = None,
    ) -> list[Result]:
        """Have parts of a volume written, then the shards of coarse levels that rest on several.

        Parameters
        ----------
        work
            Writes a part of level 0, and what of the pyramids rests on it alone; what does not, it
            leaves (`Pyramid.leave`).
        parts
            From `divide` or `divide_rows`.
        narrow
            As of `run`.
        """
        found = self.run(work, parts, narrow=narrow)
        with span("pyramid"):
            for pyramid in pyramids:
                shared = pyramid.shared()
                self.spread(partial(_finish, pyramid), shared, "coarse levels of the pyramid")
                pyramid.remove_shared()
        return found


def _divided(n: int, side: int, count: int) -> list[slice]:
    """Return parts of an axis, about equal, in whole pieces of `side`."""
    pieces = -(-n // side)
    count = min(count, pieces)
    bounds = [min(n, side * (k * pieces // count)) for k in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def _name_of(item: object) -> str:
    """Return what errors call a part of a volume; nothing for other things."""
    if isinstance(item, slice):
        return f"planes {item.start} to {item.stop - 1}"
    if isinstance(item, PlanesAndRows):
        return f"{_name_of(item.planes)}, rows {item.rows.start} to {item.rows.stop - 1}"
    return ""


def _finish(pyramid: Pyramid, shared: tuple[int, ...]) -> None:
    write_parts(pyramid.take(shared))


def _each(work: Callable[[Item], Result], threads: int, items: Sequence[Item]) -> list[Result]:
    if threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, default_workers(CPU)), "linumpy-part") as pool:
        return list(pool.map(work, items))


def _called(payload: tuple[Callable[[Any], Any], Any]) -> Any:
    work, item = payload
    return with_arrays_on(work(item), CPU)


def _begin() -> Callable[[tuple[Callable[[Any], Any], Any]], Any]:
    # Heaps of threads would grow with what passes through them, and so with the depth.
    share_heap()
    map_arrays()
    return _called


@contextmanager
def depth_parts(device: Device, count: int) -> Iterator[DepthParts]:
    """Start processes for parts of depth, each on one GPU of the device, or on some of the cores.

    Parameters
    ----------
    device
        With all GPUs that they divide among them.
    count
        Of parts; this process does all where it is 1.
    """
    with ExitStack() as stack:
        workers: list[WorkerProcess[Any, Any]] = []
        if count > 1:
            memory, threads = None, max(1, default_workers(CPU) // count)
            if device.is_gpu:
                # Before they are started, so that they know whose GPUs they work on.
                hold(Ask(count=device.count))
                each = -(-count // device.count)
                memory = stack.enter_context(share_of_gpu(each + 1))
            for number in range(count):
                gpu = number % device.count if device.is_gpu else None
                setting = Setting.like_here(device, memory, gpu=gpu, threads=threads)
                workers.append(stack.enter_context(WorkerProcess(setting, _begin)))
        try:
            yield DepthParts(workers)
        finally:
            end_all(workers)
