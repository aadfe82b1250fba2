"""Log and progress of scripts, on standard error."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger("linumpy")

_SECONDS_BETWEEN_LINES = 10
_BAR = 20


def configure_logging(verbose: bool) -> None:
    """Log to standard error: warnings and the progress of long steps; all steps with `verbose`.

    A terminal also shows that a step which says nothing for ten seconds is at work.
    """
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    if sys.stderr.isatty():
        threading.Thread(target=_terminal.keep_alive, name="linumpy-at-work", daemon=True).start()


class _Terminal:
    """The line in which a terminal shows progress."""

    def __init__(self) -> None:
        self._line = ""
        self._is_used = False
        self._started = self._written = time.monotonic()

    def show(self, text: str, *, end: str = "") -> None:
        """Replace the line; the cursor stays behind it, or goes on after `end`."""
        sys.stderr.write(f"{_cleared(text)}{end}")
        sys.stderr.flush()
        self._line, self._is_used = "" if end else text, not end
        self._written = time.monotonic()

    def keep_alive(self) -> None:
        """Say every second how long the work goes on, while nothing else is said."""
        while True:
            time.sleep(1)
            now = time.monotonic()
            if now - self._written >= _SECONDS_BETWEEN_LINES:
                ago = f"at work, {duration(now - self._started)} so far"
                text = f"{self._line} ({ago})" if self._line else ago
                # Log lines begin where the cursor is. A stream's buffer may be gone at the end.
                os.write(sys.stderr.fileno(), f"{_cleared(text)}\r".encode())
                self._is_used = True

    def clear(self) -> None:
        """Make room for what is said last."""
        if self._is_used:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._is_used = False


def _cleared(text: str) -> str:
    """Return what replaces a terminal's line by a text, cut to its width."""
    return f"\r\033[K{text[: shutil.get_terminal_size((80, 24)).columns - 1]}"


_terminal = _Terminal()


def clear_progress() -> None:
    """Clear progress from the terminal before a script's last messages."""
    _terminal.clear()


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def progress(iterable: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yield from `iterable`, showing how far it is and how long the rest takes.

    A line on a terminal, of at most its width; elsewhere a log line every ten seconds, so that the
    logs of batch systems stay short and short steps stay silent.
    """
    terminal = sys.stderr.isatty()
    start = last = time.monotonic()
    for done, item in enumerate(iterable, start=1):
        yield item
        now = time.monotonic()
        if terminal:
            end = "\n" if done >= total else ""
            _terminal.show(_progress_text(label, done, total, now - start, bar=True), end=end)
        elif now - last >= _SECONDS_BETWEEN_LINES:
            logger.info(_progress_text(label, done, total, now - start, bar=False))
            last = now


def _progress_text(label: str, done: int, total: int, elapsed_s: float, *, bar: bool) -> str:
    """Return one line of fewer than 80 characters."""
    time_text = duration(elapsed_s)
    if done < total:
        time_text = f"{duration(elapsed_s * (total - done) / done)} to go"
    filled = _BAR * min(done, total) // max(total, 1)
    drawn = f"{'█' * filled}{'·' * (_BAR - filled)} " if bar else ""
    counts = f": {drawn}{done} of {total}, {time_text}"
    room = 79 - len("INFO ") - len(counts)
    name = label if len(label) <= room else f"{label[: room - 1]}…"
    return name + counts
