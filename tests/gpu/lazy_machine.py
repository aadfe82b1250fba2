"""State machine of lazy arrays: any sequence of uses, compared with NumPy arrays."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from linumpy.core.device import CPU, current, device, to_host
from linumpy.gpu.array import DISK, LazyArray, Pool

from .fake_place import Watch

KINDS = [((3, 4), np.float32), ((2, 3, 4), np.int16), ((5,), np.complex64), ((0, 3), np.float64)]
KINDS += [((), np.uint16), ((7, 9), np.bool_)]
NAMES = st.integers(0, len(KINDS) - 1)
ERRORS = st.sampled_from([OSError("no space"), RuntimeError("driver"), MemoryError("none")])


def values(which, seed):
    shape, dtype = KINDS[which]
    return np.asarray(np.random.default_rng(seed).integers(0, 100, shape)).astype(dtype)


class LazyArraysAgainstNumpy(RuleBasedStateMachine):
    """Subclasses name `devices`, make `places` for them and put arrays `on_device`.

    The expected arrays are in `model`, where their fresh copies should be in `fresh`. Without
    budgets the copies made by each step are predicted exactly.
    """

    devices = []
    budgets = None

    def places(self):
        return []

    @initialize(
        starts=st.lists(
            st.sampled_from(["host", "device", "load", "load here", "empty"]),
            min_size=len(KINDS),
            max_size=len(KINDS),
        )
    )
    def begin(self, starts):
        self.pool = Pool(self.budgets, places=self.places())
        for where in self.devices:
            self.pool.place(where)
        self.watch = Watch(self.pool)
        self.entered = []
        self.out = {}
        self.model = [values(which, 1000 + which) for which in range(len(KINDS))]
        self.fresh = [set() for _ in KINDS]
        self.loadable = [start.startswith("load") for start in starts]
        self.arrays = [self.make(which, start) for which, start in enumerate(starts)]

    def make(self, which, start):
        first = self.model[which].copy()
        shape, dtype = KINDS[which]
        if start == "host":
            self.fresh[which] = {CPU}
            return LazyArray(first, pool=self.pool)
        if start == "device":
            where = self.devices[which % len(self.devices)]
            self.fresh[which] = {where}
            return LazyArray(self.moved(first, where), pool=self.pool)
        if start == "empty":
            lazy = LazyArray.empty(shape, dtype, pool=self.pool)
            assert lazy.copies == {}
            lazy.get_array("wo")[...] = first
            lazy.release()
            self.fresh[which] = {CPU}
            return lazy

        def load():
            assert self.budgets is not None or not self.fresh[which]
            here = current() if start == "load here" else CPU
            array = self.moved(self.model[which].copy(), here)
            self.fresh[which] = {here}
            return array

        return LazyArray.from_loader(load, shape, dtype, pool=self.pool)

    def moved(self, array, where):
        return array if where == CPU else self.on_device(array, where)

    def step(self, which, action, predicted):
        """Run `action`; it fails if that was asked for, else it copies as predicted."""
        before = self.arrays[which].copies
        self.watch.copies.clear()
        try:
            result = action()
        except (OSError, RuntimeError, MemoryError):
            assert self.watch.failed
            assert before.items() <= self.arrays[which].copies.items()
            self.check_accounts()
            self.watch.fail_at(None, None)
            result = action()
            self.look_again()
        else:
            if self.watch.failed:
                # The pool made room and tried again; others may have moved.
                self.watch.fail_at(None, None)
                self.look_again()
            elif self.budgets is None:
                assert self.watch.copies == predicted()
        self.check_accounts()
        return result

    def check_accounts(self):
        for where in (CPU, DISK, *self.devices):
            held = sum(lazy.nbytes for lazy in self.arrays if where in lazy.copies)
            assert self.pool.held_bytes(where) == held

    def look_again(self):
        for which, lazy in enumerate(self.arrays):
            self.fresh[which] = {where for where, fresh in lazy.copies.items() if fresh}

    def predict_read(self, which, where):
        """Copies that a read on `where` needs, and where the array is fresh afterwards."""
        fresh = self.fresh[which]
        if where in fresh:
            return []
        kinds = {place.kind for place in fresh}
        if where == CPU:
            from_device = next((p.kind for p in fresh if p != DISK), "disk")
            made = [("fetch", from_device)]
        elif kinds & {"cpu", where.kind}:
            made = [("fill", where.kind)]
        else:
            made = [("fetch", "disk"), ("fill", where.kind)]
            fresh.add(CPU)
        fresh.add(where)
        return made

    @rule(index=st.integers(0, 9))
    def enter(self, index):
        places = [CPU, *self.devices]
        where = places[index % len(places)]
        self.watch.copies.clear()
        block = device(where)
        assert block.__enter__() == where
        assert self.watch.copies == []
        self.entered.append((block, where))

    @precondition(lambda self: self.entered)
    @rule(broken=st.booleans())
    def leave(self, broken):
        block, _ = self.entered.pop()
        depth = len(self.entered)
        self.watch.copies.clear()
        error = ZeroDivisionError("broken")
        assert not block.__exit__(*((type(error), error, None) if broken else (None,) * 3))
        assert self.watch.copies == []
        assert current() == (self.entered[-1][1] if self.entered else CPU)
        self.out = {which: out for which, out in self.out.items() if out[1] <= depth}

    @rule(which=NAMES)
    def read(self, which):
        self.out.pop(which, None)
        before = self.arrays[which].copies
        found = self.step(
            which,
            lambda: self.arrays[which].get_array("ro"),
            lambda: self.predict_read(which, current()),
        )
        if before.get(current(), False):
            assert self.watch.copies == []
        elif self.budgets is not None and current() not in before:
            pinned = sum(self.arrays[other].nbytes for other in self.out)
            room = self.budgets[current()] + self.arrays[which].nbytes + pinned
            assert self.pool.held_bytes(current()) <= room
        np.testing.assert_array_equal(to_host(found), self.model[which])
        assert found.dtype == self.model[which].dtype and found.shape == self.model[which].shape
        with pytest.raises(ValueError, match="read-only"):
            found[...] = 0
        with pytest.raises(ValueError, match="read-only"):
            found += found

    @rule(which=NAMES, seed=st.integers(0, 99))
    def change(self, which, seed):
        self.out.pop(which, None)
        found = self.step(
            which,
            lambda: self.arrays[which].get_array("rw"),
            lambda: self.predict_read(which, current()),
        )
        np.testing.assert_array_equal(to_host(found), self.model[which])
        self.written(which, found, seed)

    @rule(which=NAMES, seed=st.integers(0, 99))
    def replace(self, which, seed):
        self.out.pop(which, None)
        found = self.step(which, lambda: self.arrays[which].get_array("wo"), lambda: [])
        self.written(which, found, seed)

    def written(self, which, found, seed):
        self.loadable[which] = False
        self.fresh[which] = {current()}
        assert [p for p, fresh in self.arrays[which].copies.items() if fresh] == [current()]
        self.out[which] = (found, len(self.entered), current())
        self.scribble(which, seed)

    @rule(which=NAMES, seed=st.integers(0, 99))
    def scribble(self, which, seed):
        """Write to an array that was handed out some time ago."""
        if which in self.out:
            self.model[which] = values(which, seed)
            self.write(self.out[which][0], self.model[which])

    def write(self, found, array):
        found[...] = array

    @rule(which=NAMES)
    def release(self, which):
        self.out.pop(which, None)
        self.arrays[which].release()

    @rule(which=NAMES, index=st.integers(0, 9))
    def evict(self, which, index):
        places = [CPU, DISK, *self.devices]
        where = places[index % len(places)]

        def predicted():
            fresh = self.fresh[which]
            made = []
            if fresh == {where} and not self.loadable[which]:
                kind = where.kind
                made = [("fill", "disk")] if where == CPU else [("fetch", kind)]
                fresh.add(DISK if where == CPU else CPU)
            fresh.discard(where)
            return made

        if self.out.get(which, (None, 0, None))[2] == where:
            del self.out[which]
        self.step(which, lambda: self.arrays[which].evict(where), predicted)
        assert where not in self.arrays[which].copies

    @rule(step=st.integers(0, 3), error=ERRORS)
    def fail_soon(self, step, error):
        self.watch.fail_at(step, error)

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        while self.entered:
            self.entered.pop()[0].__exit__(None, None, None)
        self.watch.fail_at(None, None)
        for which, lazy in enumerate(self.arrays):
            np.testing.assert_array_equal(to_host(lazy.get_array()), self.model[which])
        folder = self.pool.disk.folder
        self.pool.close()
        assert folder is None or not folder.exists()
