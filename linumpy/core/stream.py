"""Prefetch → compute → write-behind: bounded, ordered, and stopped cleanly by any error.

Reader threads keep a few items ahead of the compute loop and writer threads a few behind, so
that a pass over the tiles takes about as long as its slowest part. Memory is bounded by the
items in flight, whatever the number of tiles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from threading import Semaphore
from typing import Any, TypeVar

from linumpy.core.errors import LinumpyError

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class StreamError(LinumpyError):
    """A step of a stream failed; the message names the item and the step."""


def stream(
    keys: Iterable[K],
    read: Callable[[K], V],
    compute: Callable[[K, V], R],
    write: Callable[[K, R], Any] | None = None,
    *,
    depth: int = 2,
    behind: int | None = None,
    readers: int = 2,
    writers: int = 1,
    slots: Semaphore | None = None,
) -> Generator[tuple[K, R], None, None]:
    """Read, compute and write items, overlapped, and yield ``(key, result)`` in order.

    Parameters
    ----------
    keys
        What to process, in this order.
    read
        Runs in `readers` threads, at most `depth` items ahead of `compute`.
    compute
        Runs in the caller's thread, one item at a time, in order.
    write
        Runs in `writers` threads, at most `behind` items behind. All writes are done when the
        iteration ends.
    depth, behind, readers, writers
        Bounds; `behind` is `depth` when None. Memory in flight is at most ``depth + behind + 1``
        items.
    slots
        A semaphore that bounds the items in flight of several streams together.

    Raises
    ------
    StreamError
        When a step fails with a third-party error: names the item and the step. Errors of
        linumpy pass through as they are. Either way nothing further is started, and running
        reads and writes are waited for.
    """
    pending: deque[tuple[K, Future[V]]] = deque()
    writing: deque[tuple[K, Future[Any]]] = deque()
    remaining = iter(keys)
    held = 0

    def take(wait: bool) -> bool:
        nonlocal held
        taken = slots is None or slots.acquire(blocking=wait)
        held += taken
        return taken

    def free() -> None:
        nonlocal held
        held -= 1
        if slots is not None:
            slots.release()

    def free_all() -> None:
        while held:
            free()

    with ExitStack() as ending:
        # Only once all threads have ended is nothing in flight.
        ending.callback(free_all)
        read_pool = ending.enter_context(ThreadPoolExecutor(readers, "linumpy-read"))
        write_pool = ending.enter_context(ThreadPoolExecutor(writers, "linumpy-write"))

        def prefetch(wait: bool = False) -> None:
            while len(pending) < depth and take(wait and not pending):
                try:
                    key = next(remaining)
                except StopIteration:
                    free()
                    return
                pending.append((key, read_pool.submit(read, key)))

        def drain(left: int) -> None:
            while len(writing) > left:
                done, written = writing.popleft()
                named_step(done, "write", written.result)
                free()

        try:
            while True:
                if not pending:
                    # Who waits for a slot holds none, or streams would wait for each other.
                    drain(0)
                    prefetch(wait=True)
                    if not pending:
                        return
                key, future = pending.popleft()
                value = named_step(key, "read", future.result)
                prefetch()
                result = named_step(key, "compute", compute, key, value)
                del value, future
                if write is not None:
                    writing.append((key, write_pool.submit(write, key, result)))
                    drain(depth if behind is None else behind)
                yield key, result
                del result
                if write is None:
                    free()
        finally:
            for _, future_read in pending:
                future_read.cancel()
            for _, future_write in writing:
                future_write.cancel()


def named_step(key: object, step: str, function: Callable[..., R], *arguments: Any) -> R:
    """Call a function; a third-party error then names the item and the step.

    Raises
    ------
    StreamError
        In place of any other exception, which is its cause.
    """
    try:
        return function(*arguments)
    except LinumpyError:
        raise
    except Exception as error:
        raise StreamError(f"{key}: {step} failed: {type(error).__name__}: {error}") from error
