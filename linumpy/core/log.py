"""Log and progress of scripts, on standard error."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

logger = logging.getLogger("linumpy")

_SECONDS_BETWEEN_LINES = 10


def configure_logging(verbose: bool) -> None:
    """Log to standard error: warnings and the progress of long steps; all steps with `verbose`."""
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)


def progress(iterable: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yield from `iterable`, showing how far it is.

    A bar on a terminal; elsewhere a log line every ten seconds, so that the logs of batch systems
    stay short and short steps stay silent.
    """
    terminal = sys.stderr.isatty()
    start = last = time.monotonic()
    for done, item in enumerate(iterable, start=1):
        yield item
        now = time.monotonic()
        if terminal:
            filled = 30 * done // max(total, 1)
            bar = "█" * filled + "·" * (30 - filled)
            end = "\n" if done == total else ""
            sys.stderr.write(f"\r{label} {bar} {done}/{total} {now - start:.0f} s{end}")
            sys.stderr.flush()
        elif now - last >= _SECONDS_BETWEEN_LINES:
            logger.info("%s: %d of %d (%.0f s)", label, done, total, now - start)
            last = now
