"""Main loop of the follower: watch, judge, record, notify."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linumpy.core.host_memory import trim_heap
from linumpy.follow.hook import run_hook
from linumpy.follow.judge import Judge
from linumpy.follow.state import STOP_NAME, Record
from linumpy.follow.verdict import Verdict
from linumpy.follow.watch import SETTLE_S, Progress, Watcher

logger = logging.getLogger("linumpy")

END, STOPPED, IDLE = "end", "stopped", "idle"


@dataclass(frozen=True)
class FollowOptions:
    """How an acquisition is followed.

    Attributes
    ----------
    tiles_per_slice, quiet_s, settle_s
        As `linumpy.follow.watch.Watcher`.
    idle_s
        Without any change for so long the follower ends.
    poll_s
        Time between two looks.
    on_verdict, hook_s
        Command that runs after each verdict, and the most time it is waited for;
        `linumpy.follow.hook.run_hook`.
    """

    tiles_per_slice: int | None = None
    quiet_s: float = 60.0
    idle_s: float = 3600.0
    poll_s: float = 0.5
    on_verdict: str | None = None
    hook_s: float = 60.0
    settle_s: float = SETTLE_S


def follow(
    root: Path,
    results: Path,
    judge: Judge,
    options: FollowOptions,
    *,
    tell: Callable[[Verdict], object],
    grow: Callable[[Sequence[Mapping[str, Any]]], object] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Judge each slice as soon as its last tile is there.

    Slices that ``verdicts.jsonl`` tells of are not judged again.

    Parameters
    ----------
    tell
        Called with each verdict once it is recorded.
    grow
        Called with all lines at the start, and with the last ones after each verdict, beside the
        command: it brings what follows from verdicts up to them.
    sleep
        Waits between two looks, so many seconds or less.

    Returns
    -------
    ``end`` when the last slice of ``state.json`` is judged, ``stopped`` on RESULTS/STOP, ``idle``
    without news.

    Raises
    ------
    InputError
        When another follower writes to the results, or their record cannot be read.
    """
    watcher = Watcher(
        root,
        tiles_per_slice=options.tiles_per_slice,
        quiet_s=options.quiet_s,
        settle_s=options.settle_s,
    )
    with Record(results) as record:
        watcher.poll(clock())
        for slice_id in sorted(record.judged):
            watcher.done(slice_id)
        grow(record.lines)
        while True:
            for slice_id in watcher.slice_ids:
                found = watcher.finished(slice_id, clock())
                if found is None:
                    break
                last_id = watcher.last_id()
                record.tell_progress(
                    Progress(slice_id, len(found.tiles), len(found.tiles)), is_judging=True
                )
                reasons, figures = judge.judge(found, record.lines, last_id)
                n_tiles = len(found.tiles)
                since = clock() - found.last_change_s
                verdict = Verdict(slice_id, reasons, n_tiles, since, figures)
                line = record.add(verdict)
                watcher.done(slice_id)
                record.tell_progress(watcher.progress(clock()))
                tell(verdict)
                # A command may wait for a user, who views the brain meanwhile.
                with ThreadPoolExecutor(1) as beside:
                    grown = beside.submit(grow, record.lines)
                    if options.on_verdict:
                        run_hook(options.on_verdict, line, root, results, options.hook_s)
                grown.result()
                # Heaps of threads keep what was freed; hundreds of slices pass.
                trim_heap()
                watcher.poll(clock())
            if record.stop_asked:
                logger.info("%s: found, following ends", results / STOP_NAME)
                return STOPPED
            last_id = watcher.last_id()
            if last_id is not None and last_id in record.judged and not watcher.slice_ids:
                return END
            if clock() - (watcher.changed_s or 0.0) >= options.idle_s:
                return IDLE
            record.tell_progress(watcher.progress(clock()))
            sleep(options.poll_s)
            watcher.poll(clock())
