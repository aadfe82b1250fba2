"""Change Zarr's configuration temporarily, from any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_active: list[dict[str, Any]] = []
"""What each open block found when it was entered, by key; in the order of entering."""


@contextmanager
def zarr_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Set Zarr's configuration until the block ends.

    The configuration belongs to the process. Of blocks that are open at the same time, in this
    thread or in others, the one entered last rules; whichever ends first, what the remaining ones
    want is in force, and the earlier value returns with the end of the last. (Zarr's own
    ``config.set`` leaves settings behind when blocks of several threads overlap.)

    Parameters
    ----------
    settings
        Values by dotted key.
    """
    import zarr

    with _lock:
        found = {key: zarr.config.get(key) for key in settings}
        _active.append(found)
        zarr.config.set(dict(settings))
    try:
        yield
    finally:
        with _lock:
            # By identity: another block may have found the same.
            place = next(i for i, other in enumerate(_active) if other is found)
            del _active[place]
            for key, value in found.items():
                # A block entered later found this one's value, and must leave behind an older one.
                heir = next((later for later in _active[place:] if key in later), None)
                if heir is not None:
                    heir[key] = value
                else:
                    zarr.config.set({key: value})
