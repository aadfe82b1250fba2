"""Wake the follower when files change, where the file system reports changes.

Events only shorten or lengthen the time between two looks; what is found never depends on them.
Network file systems do not report what other machines write.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from linumpy.follow.watch import SETTLE_S

logger = logging.getLogger("linumpy")

SLOW_S = 3.0
"""Time between two looks where events come but none did lately."""


class Waiter:
    """Wait between two scans of a folder.

    Before the first event, and for a while after each, it waits the full interval: files settle
    by the clock. Where events are known to come and none did for that while, it waits for the next,
    at most `SLOW_S`.

    Parameters
    ----------
    root
        Folder to watch with all below it; it need not exist yet.
    settle_s
        As `linumpy.follow.watch.SETTLE_S`.
    """

    def __init__(self, root: Path, settle_s: float = SETTLE_S) -> None:
        self._root = root
        self._settle_s = settle_s
        self._event = threading.Event()
        self._last_s: float | None = None
        self._observer: Any = None
        self._is_off = False

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._observer is not None:
            self._observer.stop()

    def __call__(self, seconds: float) -> None:
        """Wait `seconds`, or as the class says."""
        if self._observer is None and not self._is_off and self._root.is_dir():
            self._start()
        now = time.monotonic()
        if self._event.is_set():
            self._event.clear()
            self._last_s = now
        is_fresh = self._last_s is None or now - self._last_s < self._settle_s + 2 * seconds
        if is_fresh or not self._is_watching():
            time.sleep(seconds)
        else:
            self._event.wait(max(seconds, SLOW_S))

    def _is_watching(self) -> bool:
        # One that met an error has ended, or has nothing left that reads events.
        emitters = () if self._observer is None else self._observer.emitters
        return bool(emitters) and all(emitter.is_alive() for emitter in emitters)

    def _start(self) -> None:
        from watchdog import events
        from watchdog.observers import Observer

        happened = self._event

        class Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:
                happened.set()

        # Those of reading would wake the follower by its own looks.
        changes: list[type[events.FileSystemEvent]] = [
            events.FileCreatedEvent, events.FileModifiedEvent, events.FileMovedEvent,
            events.FileClosedEvent, events.DirCreatedEvent, events.DirMovedEvent,
        ]  # fmt: skip
        observer = Observer()
        observer.daemon = True
        try:
            observer.schedule(Handler(), str(self._root), recursive=True, event_filter=changes)
            observer.start()
        except OSError as error:
            # The limit on watches of a machine, for example.
            self._is_off = True
            logger.debug("%s: no events (%s), scanned every --poll", self._root, error)
            return
        self._observer = observer
