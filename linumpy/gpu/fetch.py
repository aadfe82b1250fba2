"""Read byte ranges of stored objects into device memory, with many threads at once.

kvikio reads local files where it is installed: straight to the device with GPUDirect Storage, else
through its own pinned buffers. Without it, and for stores that are no files, Python threads read
into pinned buffers.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.device import gpu_failure
from linumpy.core.errors import InputError
from linumpy.core.exit_status import exit_status
from linumpy.gpu.objects import StoredObject
from linumpy.gpu.transfer import pinned_array

PIECE_NBYTES = 4 << 20
MAX_GAP_NBYTES = 1 << 16

MOST_READERS = 16
"""Threads of a process that read at most. Half as many fill the bus to a GPU; others wait for the
driver, each with a page-locked buffer (docs/benchmarks/2026-11-29-what-four-gpus-wait-for.md). More
may read faster where files are far away: ``KVIKIO_NTHREADS`` gives kvikio's number."""


def n_threads() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def n_readers() -> int:
    """Return how many threads read at a time."""
    return min(n_threads(), MOST_READERS)


@dataclass(frozen=True)
class Run:
    """A byte range of one object and its place in a staging buffer."""

    stored: StoredObject
    offset: int
    nbytes: int
    at: int


def plan_runs(
    objects: Sequence[StoredObject], which: np.ndarray, offset: np.ndarray, nbytes: np.ndarray
) -> tuple[list[Run], np.ndarray, int]:
    """Join byte ranges that are near each other into runs.

    Parameters
    ----------
    objects
        The stored objects.
    which, offset, nbytes
        Object, first byte and length of each range, shape (n,).

    Returns
    -------
    The runs, the place of each range in the staging buffer, and the buffer's size. A run keeps its
    file offset modulo 4096, as direct reads want it.
    """
    order = np.lexsort((offset, which))
    place = np.zeros(len(which), np.int64)
    if not len(order):
        return [], place, 0
    by_object, start = which[order], offset[order]
    end = start + nbytes[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (by_object[1:] != by_object[:-1]) | (start[1:] > end[:-1] + MAX_GAP_NBYTES)
    firsts = np.flatnonzero(fresh)
    run_start = start[firsts]
    run_end = np.maximum.reduceat(start + nbytes[order], firsts)
    lead = run_start % 4096
    room = -(-(lead + run_end - run_start) // 4096) * 4096
    run_at = np.concatenate([[0], np.cumsum(room)])
    runs = [
        Run(objects[by_object[first]], int(low), int(high - low), int(at + skip))
        for first, low, high, at, skip in zip(
            firsts, run_start, run_end, run_at[:-1], lead, strict=True
        )
    ]
    run = np.cumsum(fresh) - 1
    place[order] = run_at[run] + lead[run] + start - run_start[run]
    # Kernels read whole words, so that the last one must lie within the buffer.
    return runs, place, int(run_at[-1]) + 16


class KvikioFetch:
    """Fetch local files by kvikio."""

    name = "kvikio"

    def __init__(self) -> None:
        self._files: dict[str, Any] = {}
        # Threads that set its number of threads at once wait for each other for ever.
        with _configuring:
            _configure_kvikio()

    def start(self, runs: Sequence[Run], staging: Any) -> Callable[[], None]:
        """Start reading runs into `staging` (uint8, on the device); call the result to wait."""
        pending: list[tuple[Run, Any]] = []
        for run in runs:
            target = staging[run.at : run.at + run.nbytes]
            try:
                future = self._file(str(run.stored.path)).pread(target, run.nbytes, run.offset)
            except Exception as error:
                # Small ranges are read at once.
                future = error
            pending.append((run, future))

        def wait() -> None:
            # Every read is waited for, also after an error: the buffer must not be freed before.
            problems = [_finished(run, future) for run, future in pending]
            for problem in problems:
                if problem is not None:
                    raise problem

        return wait

    def _file(self, path: str) -> Any:
        import kvikio

        if path not in self._files:
            self._files[path] = kvikio.CuFile(path, "r")
        return self._files[path]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _finished(run: Run, future: Any) -> Exception | None:
    """Wait for one of kvikio's reads; answers what is wrong with it."""
    try:
        if isinstance(future, Exception):
            raise future
        _check_length(run, future.get())
    except InputError as error:
        return error
    except Exception as error:
        if exit_status(error) is not None:
            # Of the device or of memory, not of the file.
            return error
        failure = gpu_failure()
        if failure is not None:
            return failure
        return InputError(
            f"{run.stored.name}: {run.nbytes} bytes at {run.offset} cannot be read ({error}); "
            f"the file has {run.stored.size()}"
        )
    return None


class PinnedFetch:
    """Fetch any store by threads that copy through pinned buffers of their own."""

    name = "pinned"

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._pool = ThreadPoolExecutor(n_readers(), thread_name_prefix="fetch")
        self._local = _ThreadBuffers()

    def start(self, runs: Sequence[Run], staging: Any) -> Callable[[], None]:
        """Start reading runs into `staging` (uint8, on the device); call the result to wait."""
        futures: list[Future[None]] = []
        for run in runs:
            for first in range(0, run.nbytes, PIECE_NBYTES):
                size = min(PIECE_NBYTES, run.nbytes - first)
                target = staging[run.at + first : run.at + first + size]
                futures.append(self._pool.submit(self._read, run, first, size, target))

        def wait() -> None:
            # Every read is waited for, also after an error: the buffer must not be freed before.
            problems = [future.exception() for future in futures]
            for problem in problems:
                if problem is not None:
                    raise problem

        return wait

    def _read(self, run: Run, first: int, size: int, target: Any) -> None:
        import cupy

        with cupy.cuda.Device(self._device_id):
            pinned, stream = self._local.get()
            room = pinned[:size]
            if run.stored.path is None:
                data = run.stored.read(run.offset + first, size)
                _check_length(run, first + len(data), first + size)
                room[:] = np.frombuffer(data, np.uint8)
            else:
                _read_file(run, first, room)
            target.data.copy_from_host_async(room.ctypes.data, size, stream)
            stream.synchronize()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)


class _ThreadBuffers:
    """A pinned buffer and a stream for each thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def get(self) -> tuple[np.ndarray, Any]:
        import cupy

        if not hasattr(self._local, "pinned"):
            self._local.pinned = pinned_array(PIECE_NBYTES)
            self._local.stream = cupy.cuda.Stream(non_blocking=True)
        return self._local.pinned, self._local.stream


def _read_file(run: Run, first: int, room: np.ndarray) -> None:
    descriptor = os.open(str(run.stored.path), os.O_RDONLY)
    try:
        filled = 0
        while filled < len(room):
            got = os.preadv(descriptor, [room[filled:].data], run.offset + first + filled)
            if not got:
                break
            filled += got
    finally:
        os.close(descriptor)
    _check_length(run, first + filled, first + len(room))


def _check_length(run: Run, got: int, expected: int | None = None) -> None:
    wanted = run.nbytes if expected is None else expected
    if got != wanted:
        raise InputError(
            f"{run.stored.name}: {got} bytes read at {run.offset}, expected {wanted}: cut short"
        )


_configuring = threading.Lock()


@functools.cache
def _configure_kvikio() -> None:
    """Give kvikio enough threads and small buffers, unless the environment says otherwise."""
    import kvikio.defaults

    if "KVIKIO_NTHREADS" not in os.environ:
        kvikio.defaults.set({"num_threads": n_readers()})
    if "KVIKIO_BOUNCE_BUFFER_SIZE" not in os.environ:
        # Each thread has a page-locked buffer, which takes long to make and need not be larger
        # than what a thread reads at once.
        kvikio.defaults.set({"bounce_buffer_size": kvikio.defaults.get("task_size")})


def make_fetch(objects: Sequence[StoredObject], device_id: int) -> tuple[Any, str | None]:
    """Choose how to read `objects`; answers the reader and, if it is not kvikio, why."""
    if any(stored.path is None for stored in objects):
        return PinnedFetch(device_id), "the store is not a folder"
    try:
        return KvikioFetch(), None
    except Exception as error:
        return PinnedFetch(device_id), f"kvikio cannot be used ({error})"
