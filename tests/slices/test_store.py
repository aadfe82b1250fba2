import gc
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from linumpy.slices.store import TileStore
from linumpy.slices.tile import Tile

KEYS = st.tuples(st.integers(0, 3), st.integers(0, 2))


def tile(key, value, masked):
    data = np.full((4, 5, 6), value, np.float32)
    return Tile(key, data, (data > 0).astype(np.uint8) if masked else None)


class StoreAgainstDict(RuleBasedStateMachine):
    """Any sequence of puts and gets, with room for three tiles, is that of a plain dict."""

    def __init__(self):
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp())
        self.store = TileStore(3 * 4 * 5 * 6 * 5, scratch=self.scratch)
        self.model = {}

    @rule(key=KEYS, value=st.integers(-3, 3), masked=st.booleans())
    def put(self, key, value, masked):
        self.model[key] = tile(key, value, masked)
        self.store.put(self.model[key])

    @rule(key=KEYS)
    def get(self, key):
        if key not in self.model:
            with pytest.raises(KeyError):
                self.store.get(key)
            return
        found, expected = self.store.get(key), self.model[key]
        np.testing.assert_array_equal(found.data, expected.data)
        assert (found.valid is None) == (expected.valid is None)
        if expected.valid is not None:
            np.testing.assert_array_equal(found.valid, expected.valid)

    @invariant()
    def memory_is_bounded(self):
        assert self.store.held_bytes() <= 3 * 600

    def teardown(self):
        self.store.close()
        self.scratch.rmdir()


StoreAgainstDict.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestStore = StoreAgainstDict.TestCase


def test_spilled_tiles_come_back_on_their_device(xp):
    with TileStore(1000) as store:
        tiles = [
            Tile((n, 0), xp.asarray(np.full((4, 5, 6), n, np.float32)), None) for n in range(5)
        ]
        for one in tiles:
            store.put(one)
        assert store.spills >= 3
        for one in tiles:
            found = store.get(one.key)
            assert isinstance(found.data, type(one.data))
            assert bool((found.data == one.data).all())


def test_fetched_tiles_are_dropped_not_spilled():
    reads = []

    def fetch(key):
        reads.append(key)
        return tile(key, key[0], False)

    with TileStore(500, fetch=fetch) as store:
        for _ in range(2):
            for n in range(4):
                assert store.get((n, 0)).data[0, 0, 0] == n
        assert store.spills == 0
    assert len(reads) == 8


def test_threads_share_a_store():
    with TileStore(2000) as store:
        for n in range(12):
            store.put(tile((n, 0), n, True))
        wrong = []

        def reader(start):
            for k in range(60):
                n = (start + k * 7) % 12
                if store.get((n, 0)).data[0, 0, 0] != n:
                    wrong.append(n)

        threads = [threading.Thread(target=reader, args=(s,)) for s in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_tile_that_was_taken_is_gone_but_stays_whole():
    with TileStore(10_000) as store:
        for n in range(2):
            store.put(tile((n, 0), n + 1, True))
        taken = store.take((0, 0))
        gc.collect()
        assert (taken.data == 1).all() and (taken.valid == 1).all()
        assert store.held_bytes() == 600
        with pytest.raises(KeyError):
            store.get((0, 0))
        assert (store.get((1, 0)).data == 2).all()
