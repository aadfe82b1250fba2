"""Stand-in for a GPU, to watch and break what places do."""

import numpy as np

from linumpy.core.device import Device
from linumpy.gpu.places import DISK, Place

FAKES = [Device("fake", 0), Device("fake", 1)]


class FakeArray(np.ndarray):
    """An array "on the device": a type of its own, so that a mix-up with the host is seen."""


class FakePlace(Place):
    """A device with so many bytes of memory, or any number when None."""

    def __init__(self, device, room=None):
        self.device = device
        self.room = room

    def empty(self, shape, dtype):
        array = np.empty(shape, dtype).view(FakeArray)
        array.home = self
        if self.room is not None and array.nbytes > self.room:
            raise MemoryError(f"fake memory: {array.nbytes} bytes")
        return array

    def owns(self, array):
        return isinstance(array, FakeArray) and getattr(array, "home", None) is self

    def put(self, values):
        array = self.empty(values.shape, values.dtype)
        array[...] = values
        return array


class Watch:
    """Logs the copies of a pool's places; ``fail_at(n, error)`` breaks the n-th step from now.

    A step is a copy or an allocation. A copy that fails has spoilt its target before.
    """

    def __init__(self, pool):
        self.copies = []
        self._countdown = None
        for place in pool._places.values():
            for name in ("fill", "fetch", "empty", "host_memory"):
                setattr(place, name, self._watched(place.device, name, getattr(place, name)))

    def fail_at(self, step, error):
        self._countdown = None if step is None else [step, error]

    @property
    def failed(self):
        """Whether the failure that was asked for has happened."""
        return self._countdown is not None and self._countdown[0] < 0

    def _watched(self, device, name, function):
        def run(first, second):
            moves = name in ("fill", "fetch")
            if self._countdown is not None:
                self._countdown[0] -= 1
                if self._countdown[0] == -1:
                    target = first if name == "fill" else second
                    if moves and not (device == DISK and name == "fill"):
                        target[...] = 77
                    raise self._countdown[1]
            result = function(first, second)
            if moves:
                self.copies.append((name, device.kind))
            return result

        return run
