"""Send verdicts to people: mail, chat and the rest, through apprise.

Addresses hold passwords: messages name a service by its number and kind alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from linumpy.core.errors import InputError
from linumpy.core.extras import extra_advice
from linumpy.follow.verdict import LEVELS, LOOK, Verdict

logger = logging.getLogger("linumpy")

END_WAIT_S = 10.0
"""Longest wait for messages that are on their way when following ends."""
_MOST_WAITING = 100


class Notifier:
    """Send verdicts in threads, one a service, so that none delays a verdict or another service.

    Parameters
    ----------
    urls
        Addresses as apprise has them; ``@FILE`` names a file with one a line.
    level
        Lowest verdict that is sent.

    Raises
    ------
    InputError
        When apprise is not installed, or an address is none.
    """

    def __init__(self, urls: Sequence[str], level: str = LOOK) -> None:
        self._level = level
        self._services = [_Service(number, url) for number, url in enumerate(_read(urls), 1)]

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def send(self, verdict: Verdict) -> None:
        """Send a verdict from the lowest level on; returns at once."""
        if LEVELS.index(verdict.verdict) >= LEVELS.index(self._level):
            for service in self._services:
                service.put(verdict.to_text())

    def close(self, wait_s: float = END_WAIT_S) -> None:
        """Wait for messages on their way, all together for `wait_s` at most."""
        end = time.monotonic() + wait_s
        for service in self._services:
            service.close(max(0.0, end - time.monotonic()))


def _read(urls: Sequence[str]) -> list[str]:
    found: list[str] = []
    for url in urls:
        if not url.startswith("@"):
            found.append(url)
            continue
        path = Path(url[1:])
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(f"--notify @{path}: cannot be read ({reason})") from None
        found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return found


class _Service:
    """One address, with a thread of its own."""

    def __init__(self, number: int, url: str) -> None:
        try:
            import apprise
        except ImportError as error:
            raise InputError(
                f"--notify: apprise cannot be imported; {extra_advice('notify')}"
            ) from error
        for name in ("apprise", "urllib3"):
            # Both log addresses.
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        kind = url.partition("://")[0] if "://" in url else "no kind"
        self._name = f"--notify, service {number} ({kind[:20]})"
        self._sender: Any = apprise.Apprise()
        try:
            known = self._sender.add(url)
        except Exception:
            known = False
        if not known:
            raise InputError(
                f"{self._name}: not an address that apprise takes; expected such as "
                "mailto://USER:PASSWORD@HOST"
            )
        self._waiting: SimpleQueue[str | None] = SimpleQueue()
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="linumpy-notify", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(text)

    def close(self, wait_s: float) -> None:
        self._waiting.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._warn("it does not answer")

    def _work(self) -> None:
        while (text := self._waiting.get()) is not None:
            try:
                title = text.partition("  ")[0]
                sent = self._sender.notify(title=f"linumpy, {title}", body=text)
            except Exception as error:
                self._warn(type(error).__name__)
            else:
                if not sent:
                    self._warn("the service refused it, or cannot be reached")

    def _warn(self, reason: str) -> None:
        if not self._has_failed:
            logger.warning("%s: a message was not sent (%s)", self._name, reason)
        self._has_failed = True
