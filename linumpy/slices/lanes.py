"""Distribute slices over lanes, and the tiles of a pass over GPUs; results in their order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from linumpy.core.device import Device, batch_share, default_workers
from linumpy.core.errors import DeviceStuckError
from linumpy.core.worker_process import processes_a_gpu

K = TypeVar("K")
R = TypeVar("R")

THREADS = 2
"""Of a process on the CPU: one slice is read or written while the other computes."""

LEAST_CORES = 4
"""Fewer are busy with one slice."""

SLICES_A_PROCESS = 2
"""At least: a process takes as long to start as one slice of 8 GB."""

LANE_NBYTES = 4 << 30
"""Tiles to learn from that are worth a lane as much as a slice of a group is."""

_CORES_A_LANE = 3
"""Threads of more wait for each other's interpreter (docs/benchmarks/2026-11-27-one-gpu.md)."""

_LANE_NBYTES_OF_CORES = 1 << 30
"""Tiles that three cores measure in one to two seconds; a process takes as long to start."""

TILES_BESIDE = 2
"""Tiles in flight beyond one a core: as many as those of one slice alone."""

MOST_WAIT_S = 900.0
"""How long a lane may take for its next group of results; a group takes seconds."""

_POLL_S = 0.1


def usual_overlap(device: Device, n_slices: int) -> int:
    """Return how many of so many slices to work on at a time, by device, cores and memory."""
    if not device.is_gpu:
        return THREADS if default_workers(device) >= LEAST_CORES else 1
    if device.count > 1:
        # One slice is divided among them.
        return 1
    # Of groups of slices a GPU has one, beside which pairs take turns.
    most = min(processes_a_gpu(whole=True), n_slices // SLICES_A_PROCESS)
    # A retry begins with smaller batches.
    return max(1, int(most * batch_share()))


def lanes_of_cores(n_slices: int, nbytes: int, workers: int) -> int:
    """Return how many processes measure slices at a time, so that cores are busy in all turns.

    Parameters
    ----------
    nbytes
        Of all tiles.
    workers
        Threads that cores and memory are for.
    """
    if workers < 2 * _CORES_A_LANE:
        return 1

    def turns(count: int) -> float:
        return -(-n_slices // count) / min(_CORES_A_LANE, workers // count)

    worth = nbytes // _LANE_NBYTES_OF_CORES
    return min(range(1, max(1, min(n_slices, worth, workers // 2)) + 1), key=turns)


def divide(keys: Sequence[K], homes: Sequence[int | None], size: int, n_lanes: int) -> dict[K, int]:
    """Return which lane each tile goes through.

    Parameters
    ----------
    keys
        All tiles, in order.
    homes
        The lane that has each already; None where it is all the same.
    size
        Most tiles that a lane takes at once. Lanes take turns, each with tiles that follow each
        other, and all about as often.
    n_lanes
        Number of lanes.

    Notes
    -----
    Depends on geometry alone, as all else that decides how a slice is computed.
    """
    total = len(keys)
    rounds = -(-total // (n_lanes * size))
    if rounds == 1:
        turn = [n * n_lanes // total for n in range(total)]
    else:
        turn = [n // -(-total // (rounds * n_lanes)) for n in range(total)]
    return {
        key: (turn[n] if home is None else home) % n_lanes
        for n, (key, home) in enumerate(zip(keys, homes, strict=True))
    }


class _Lane(Generic[K, R]):
    """A thread that makes groups of results; one group waits, while the next is made."""

    def __init__(
        self, work: Callable[[], Iterator[list[R]]], number: int, most_wait_s: float
    ) -> None:
        self._work = work
        self._number = number
        self._most_wait_s = most_wait_s
        self._done: queue.Queue[list[R] | BaseException] = queue.Queue(1)
        self._stop = threading.Event()
        name = f"linumpy-lane_{number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.held: deque[R] = deque()
        self.gathered: list[R] = []

    def start(self) -> None:
        self._thread.start()

    def next(self, key: object) -> R:
        """Return the next result, that of `key`, which is kept in `gathered` as well."""
        if not self.held:
            found = self._take(f"gave no tile {key}")
            if not found:
                raise RuntimeError(f"lane {self._number} ended before its tile {key}")
            self.held.extend(found)
        result = self.held.popleft()
        self.gathered.append(result)
        return result

    def finish(self) -> None:
        """Wait until all that was to happen to the results has; raise what went wrong in that."""
        if self._take("did not end"):
            raise RuntimeError(f"lane {self._number} made more than its tiles")

    def _take(self, otherwise: str) -> list[R]:
        """Return the next group, empty at the end; `otherwise` is what went wrong if none comes."""
        try:
            found = self._done.get(timeout=self._most_wait_s)
        except queue.Empty:
            raise self._stuck(otherwise) from None
        if isinstance(found, BaseException):
            raise found
        return found

    def _stuck(self, what: str) -> DeviceStuckError:
        return DeviceStuckError(
            f"GPU {self._number} of those that work together (counted from 0) {what} within "
            f"{self._most_wait_s / 60:g} min"
        )

    def stop(self) -> None:
        """Have the thread end; what it has made is lost."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join(self._most_wait_s)
        if self._thread.is_alive():
            raise self._stuck("did not stop")

    def _run(self) -> None:
        try:
            made = self._work()
            try:
                for results in made:
                    if not self._put(results):
                        return
                    del results
            finally:
                # Ends what runs ahead, before the thread ends.
                close = getattr(made, "close", None)
                if close is not None:
                    close()
            self._put([])
        except BaseException as error:
            self._put(error)

    def _put(self, item: list[R] | BaseException) -> bool:
        while not self._stop.is_set():
            try:
                self._done.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False


def in_lanes(
    keys: Sequence[K],
    owner: Mapping[K, int],
    work: Callable[[int, list[K]], Iterator[list[R]]],
    settle: Callable[[], None],
    most_wait_s: float = MOST_WAIT_S,
) -> Generator[tuple[K, R], None, None]:
    """Let each lane work on its tiles, and yield ``(key, result)`` in the order of all tiles.

    Parameters
    ----------
    keys
        All tiles, in order.
    owner
        From `divide`.
    work
        Makes the results of a lane's tiles, in order, in groups of one or more; runs in the lane's
        own thread.
    settle
        Called before the results of a group, all of them yielded, are dropped.
    most_wait_s
        How long to wait at most for a lane's next group, in seconds.

    Raises
    ------
    DeviceStuckError
        When a lane gave nothing for so long, or did not end for so long after another's error;
        names it. No lane is waited for then.
    Exception
        The first error of a lane, in the order of tiles, then of their ends. The others are stopped
        then.
    """
    shares: dict[int, list[K]] = {}
    for key in keys:
        shares.setdefault(owner[key], []).append(key)

    def begin(number: int, share: list[K]) -> _Lane[K, R]:
        return _Lane(lambda: work(number, share), number, most_wait_s)

    lanes = {number: begin(number, share) for number, share in shares.items()}
    for lane in lanes.values():
        lane.start()
    stuck = False
    try:
        for key in keys:
            lane = lanes[owner[key]]
            yield key, lane.next(key)
            if not lane.held:
                settle()
                lane.gathered.clear()
        # A lane's last results may still be on their way to where they are written.
        for lane in lanes.values():
            lane.finish()
    except DeviceStuckError:
        stuck = True
        raise
    finally:
        for lane in lanes.values():
            lane.stop()
        for lane in lanes.values():
            if not stuck:
                lane.join()
