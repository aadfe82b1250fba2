"""Watchdog: end a process when a CUDA kernel hangs, with the exit status of a lost device.

A wait for a kernel cannot be interrupted. Without a batch system's limit, a hanging kernel would
block its process, and all processes that wait for its lease, for ever.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from linumpy.core.exit_status import DEVICE_LOST

EVERY_S = 60.0
"""Between questions to a device; each takes as long as what it has been given to do."""

LONGEST_S = 900.0
"""Linumpy's longest kernel takes seconds."""

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
        Ends the process with a status, even with waiting threads.
    """

    def guard() -> None:
        answers = [True]
        while answers and answers.pop():
            time.sleep(EVERY_S)
            asker = threading.Thread(
                target=lambda: answers.append(synchronize()), name="ask-gpu", daemon=True
            )
            asker.start()
            # Ticks, and not the time of a clock, which runs while a process is suspended.
            for _ in range(round(LONGEST_S / _TICK_S)):
                asker.join(_TICK_S)
                if not asker.is_alive():
                    break
            else:
                print(
                    f"{Path(sys.argv[0]).name}: error: {name} did not finish its "
                    f"work within {LONGEST_S / 60:.3g} min",
                    file=sys.stderr,
                    flush=True,
                )
                end(DEVICE_LOST)
                return

    threading.Thread(target=guard, name="watch-gpu", daemon=True).start()
