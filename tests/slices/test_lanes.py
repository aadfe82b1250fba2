"""Workers on one pass: division of tiles, order of results, errors, and what is kept."""

import threading
import time

import pytest

from linumpy.core.errors import DeviceStuckError
from linumpy.slices.lanes import divide, in_lanes

KEYS = [(x, y) for x in range(4) for y in range(5)]


def spread(keys, owner):
    return "".join(str(owner[key]) for key in keys)


def test_tiles_are_divided_in_runs_of_a_group():
    nowhere = [None] * 20
    assert spread(KEYS, divide(KEYS, nowhere, 5, 2)) == "00000111110000011111"
    assert spread(KEYS, divide(KEYS, nowhere, 3, 2)) == "000111" * 3 + "00"
    # No lane is left without, however large groups may be.
    assert spread(KEYS, divide(KEYS, nowhere, 1000, 2)) == "0" * 10 + "1" * 10
    assert spread(KEYS, divide(KEYS, nowhere, 1000, 3)) == "0" * 7 + "1" * 7 + "2" * 6
    assert spread(KEYS[:6], divide(KEYS[:6], nowhere[:6], 1000, 4)) == "001223"
    assert spread(KEYS[:1], divide(KEYS[:1], [None], 9, 4)) == "0"


def test_tiles_stay_where_they_are():
    homes = [1, None, 0, None] * 5
    assert spread(KEYS, divide(KEYS, homes, 10, 2)) == "1000" * 2 + "10" + "01" + "1101" * 2


def groups_of(share, size):
    return [share[start : start + size] for start in range(0, len(share), size)]


@pytest.mark.parametrize("n_lanes", [1, 2, 3, 7, 30])
def test_results_come_in_the_order_of_tiles_whoever_is_faster(n_lanes):
    owner = divide(KEYS, [None] * 20, 2, n_lanes)
    seen = {}

    def work(number, share):
        seen[number] = (list(share), threading.current_thread())
        for group in groups_of(share, 2):
            time.sleep(0.01 * ((number + 1) % 3))
            yield [(key, number) for key in group]

    found = list(in_lanes(KEYS, owner, work, lambda: None))
    assert found == [(key, (key, owner[key])) for key in KEYS]
    assert all(thread is not threading.main_thread() for _, thread in seen.values())
    assert sorted(key for share, _ in seen.values() for key in share) == KEYS


def test_results_live_until_their_group_is_settled_and_no_longer():
    class Thing:
        count = 0

        def __init__(self):
            Thing.count += 1

        def __del__(self):
            Thing.count -= 1

    settled = []

    def work(number, share):
        for group in groups_of(share, 5):
            yield [Thing() for _ in group]

    def settle():
        # Those of the group, all yielded, are alive; others wait.
        settled.append(Thing.count)

    for _, result in in_lanes(KEYS, divide(KEYS, [None] * 20, 5, 2), work, settle):
        del result
    assert len(settled) == 4 and min(settled) >= 5
    # At the end the others are gone.
    assert settled[-1] == 5
    assert Thing.count == 0


def test_the_error_of_a_lane_stops_all():
    started, closed = [], []

    def work(number, share):
        try:
            for key in share:
                started.append(key)
                if key == (1, 0):
                    raise ValueError("tile (1, 0) is odd")
                time.sleep(0.005)
                yield [key]
        finally:
            closed.append(number)

    owner = divide(KEYS, [None] * 20, 1, 2)
    found = []
    with pytest.raises(ValueError, match="odd"):
        for key, _ in in_lanes(KEYS, owner, work, lambda: None):
            found.append(key)
    assert found == KEYS[:5]
    assert sorted(closed) == [0, 1]
    assert len(started) < 20
    assert not [t for t in threading.enumerate() if t.name.startswith("linumpy-lane")]


def test_leaving_early_stops_all():
    closed = []

    def work(number, share):
        try:
            for key in share:
                yield [key]
        finally:
            closed.append(number)

    results = in_lanes(KEYS, divide(KEYS, [None] * 20, 1, 3), work, lambda: None)
    assert next(results)[0] == KEYS[0]
    results.close()
    assert sorted(closed) == [0, 1, 2]


def lane_names():
    return [t.name for t in threading.enumerate() if t.name.startswith("linumpy-lane")]


@pytest.mark.slow
def test_a_lane_that_does_not_go_on_is_named_and_not_waited_for():
    go_on = threading.Event()

    def work(number, share):
        for key in share:
            if key == (1, 2):
                go_on.wait()
            yield [key]

    owner = divide(KEYS, [None] * 20, 1, 2)
    found = []
    try:
        with pytest.raises(DeviceStuckError, match=r"GPU 1 .* no tile \(1, 2\) within 0.05 min"):
            for key, _ in in_lanes(KEYS, owner, work, lambda: None, 3.0):
                found.append(key)
        assert found == KEYS[:7]
        # The stuck lane is alone: the other ended.
        end = time.monotonic() + 60
        while (names := lane_names()) != ["linumpy-lane_1"] and time.monotonic() < end:
            time.sleep(0.01)
        assert names == ["linumpy-lane_1"]
    finally:
        go_on.set()
