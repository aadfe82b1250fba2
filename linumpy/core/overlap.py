"""Overlap of items of work in one process: a few at a time, which share its memory.

What decides on batches and budgets asks `count` for how many share the memory that is free.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_count = 1
_slots: threading.Semaphore | None = None
_lane: ContextVar[int] = ContextVar("lane", default=0)


def count() -> int:
    """Return how many items are worked on at a time."""
    return _count


def lane() -> int:
    """Return the number of this thread's lane, below `count`; 0 outside of `in_overlap`."""
    return _lane.get()


def slots() -> threading.Semaphore | None:
    """Return the places for tiles in flight that all items share; None where each has its own."""
    return _slots


def in_overlap(
    waiting: deque[T],
    work: Callable[[T], None],
    lanes: int,
    tiles: int | None = None,
    *,
    apart: bool = False,
) -> None:
    """Take items from the left of a queue, and work on `lanes` of them at a time.

    Parameters
    ----------
    waiting
        Emptied. Where `work` clears it, no further item is begun.
    work
        Called in the thread of a lane.
    lanes
        Each works on one item after the other.
    tiles
        Tiles in flight on the host, of all lanes together; None for no common bound.
    apart
        Whether all lanes but the first have their work done by other processes, so that this one's
        memory is that lane's.

    Raises
    ------
    Exception
        The first error of `work`, once all items under way have ended; no further one is begun.
    """

    def run(number: int) -> None:
        _lane.set(number)
        try:
            while (item := _first(waiting)) is not None:
                work(item)
        except BaseException:
            waiting.clear()
            raise

    with _sharing(1 if apart else lanes, tiles), ThreadPoolExecutor(lanes, "linumpy-lane") as pool:
        try:
            for done in [pool.submit(run, number) for number in range(lanes)]:
                done.result()
        finally:
            waiting.clear()


def _first(waiting: deque[T]) -> T | None:
    """Take the first item; None where another lane took the last one."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


@contextmanager
def _sharing(lanes: int, tiles: int | None) -> Iterator[None]:
    global _count, _slots
    _count, _slots = lanes, None if tiles is None else threading.Semaphore(tiles)
    try:
        yield
    finally:
        _count, _slots = 1, None
