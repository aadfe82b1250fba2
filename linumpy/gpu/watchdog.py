"""Ends a process whose GPU does not come to an end with its work.

A wait for a kernel cannot be broken off: whoever waits for one that never ends, with no limit of a
batch system's, waits for good, and so does everybody who waits for its lease.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from linumpy.exit_status import DEVICE_LOST

EVERY_S = 60.0
"""Between questions to a device; each takes as long as what it has been given to do."""

LONGEST_S = 900.0
"""The longest work of ours at once takes seconds."""

_TICK_S = 1.0


def watch(synchronize: Callable[[], bool], name: str, end: Callable[[int], object]) -> None:
    """Ask a device now and then whether it is done with what it has; return at once.

    Parameters
    ----------
    synchronize
        Waits until the device is through with all that it was given before; false when it cannot
        be asked any more.
    name
        The device's, for the message.
    end
        Ends the process with a status, whatever its threads wait for.
    """
    lock = threading.Lock()
    asked = answered = 0

    def ask() -> None:
        nonlocal asked, answered
        while True:
            time.sleep(EVERY_S)
            with lock:
                asked += 1
            if not synchronize():
                return
            with lock:
                answered += 1

    def count() -> None:
        ticks = seen = 0
        while asker.is_alive():
            time.sleep(_TICK_S)
            with lock:
                is_waiting, number = asked > answered, asked
            # Ticks, and not the time of a clock: a process that was suspended waits for nobody.
            ticks, seen = (ticks + 1 if is_waiting and number == seen else 0), number
            if ticks * _TICK_S > LONGEST_S:
                script = Path(sys.argv[0]).name
                print(
                    f"{script}: error: {name} did not come to an end with its work within "
                    f"{LONGEST_S / 60:.3g} min",
                    file=sys.stderr,
                    flush=True,
                )
                end(DEVICE_LOST)
                return

    asker = threading.Thread(target=ask, name="ask-gpu", daemon=True)
    asker.start()
    threading.Thread(target=count, name="watch-gpu", daemon=True).start()
