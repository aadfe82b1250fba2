import threading
import time

import pytest

from linumpy.core.errors import InputError
from linumpy.core.stream import StreamError, stream


def test_results_come_in_order_and_are_all_written():
    written = []
    items = stream(
        range(40),
        lambda k: (time.sleep(0.001 * (k % 3)), k)[1],
        lambda k, value: value * value,
        lambda k, result: written.append((k, result)),
        readers=4,
        depth=5,
        writers=1,
    )
    assert list(items) == [(k, k * k) for k in range(40)]
    assert written == [(k, k * k) for k in range(40)]


def test_items_in_flight_stay_within_bounds():
    lock = threading.Lock()
    flying, most = 0, 0

    def read(k):
        nonlocal flying, most
        with lock:
            flying += 1
            most = max(most, flying)
        return k

    def write(k, result):
        nonlocal flying
        time.sleep(0.002)
        with lock:
            flying -= 1

    list(stream(range(60), read, lambda k, v: v, write, readers=4, depth=3))
    assert flying == 0
    assert most <= 2 * 3 + 2


@pytest.mark.parametrize("step", ["read", "compute", "write"])
def test_a_failure_names_item_and_step_and_stops(step):
    done = []
    threads = threading.active_count()

    def fail_at_five(name):
        def act(k, *rest):
            if name == step and k == 5:
                raise ValueError("no luck")
            done.append((name, k))
            return k

        return act

    with pytest.raises(StreamError, match=rf"5: {step} failed: ValueError: no luck"):
        list(
            stream(
                range(1000),
                fail_at_five("read"),
                fail_at_five("compute"),
                fail_at_five("write"),
                depth=2,
            )
        )
    assert max(k for _, k in done) < 20
    assert threading.active_count() == threads


def test_our_own_errors_pass_as_they_are():
    def read(k):
        raise InputError("tile (1, 2): truncated")

    with pytest.raises(InputError, match=r"^tile \(1, 2\): truncated$"):
        list(stream(range(3), read, lambda k, v: v))


def test_a_consumer_that_leaves_stops_the_readers():
    started = []
    items = stream(range(1000), lambda k: started.append(k), lambda k, v: v, depth=3)
    next(items)
    items.close()
    assert len(started) < 10
