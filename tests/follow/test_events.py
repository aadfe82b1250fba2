"""Events shorten the wait between two looks; without them it is what was asked for."""

import threading

import pytest

from linumpy.follow import events
from linumpy.follow.events import Waiter


@pytest.fixture
def slept(monkeypatch):
    """Waits by the clock, which take no time here."""
    waits = []
    monkeypatch.setattr(events.time, "sleep", waits.append)
    return waits


def wake(waiter, path):
    """Write until the waiter has seen an event, as `follow` would by waiting."""
    for number in range(10_000):
        path.write_text(str(number))
        if waiter._event.wait(0.05):
            return
    raise AssertionError("no event came")


def test_nothing_is_waited_for_before_the_first_event(tmp_path, slept):
    root = tmp_path / "later"
    with Waiter(root) as waiter:
        waiter(0.5)
        root.mkdir()
        for _ in range(5):
            waiter(0.5)
        assert slept == [0.5] * 6


def test_file_wakes_a_waiter_with_events(tmp_path, monkeypatch, slept):
    # Longer than the test may take.
    monkeypatch.setattr(events, "SLOW_S", 600.0)
    (tmp_path / "slice" / "tiles").mkdir(parents=True)
    with Waiter(tmp_path, 0.0) as waiter:
        waiter(0.0)
        wake(waiter, tmp_path / "slice" / "tiles" / "image")
        looks = len(slept)
        done = threading.Event()

        def write():
            while not done.wait(0.05):
                # Of a folder that came while it was watched.
                folder = tmp_path / "slice2"
                folder.mkdir(exist_ok=True)
                (folder / "image").write_text("x")

        writer = threading.Thread(target=write)
        writer.start()
        waiter(0.0)
        done.set()
        writer.join()
        assert len(slept) == looks and waiter._event.is_set()


def test_files_settle_by_the_clock_after_an_event(tmp_path, slept):
    with Waiter(tmp_path) as waiter:
        waiter(0.5)
        wake(waiter, tmp_path / "image")
        slept.clear()
        for _ in range(3):
            waiter(0.5)
        assert slept == [0.5] * 3


def test_reading_wakes_no_waiter(tmp_path, slept):
    path = tmp_path / "image"
    with Waiter(tmp_path) as waiter:
        waiter(0.0)
        wake(waiter, path)
        while waiter._event.wait(0.2):
            waiter._event.clear()
        for _ in range(50):
            path.read_text()
            list(tmp_path.iterdir())
        assert not waiter._event.wait(0.2)


def test_without_events_it_is_polled(tmp_path, monkeypatch, slept):
    from watchdog.observers import Observer

    def fail(self):
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(Observer, "start", fail)
    with Waiter(tmp_path) as waiter:
        for _ in range(4):
            waiter(0.25)
    assert slept == [0.25] * 4


def test_observer_that_died_is_not_waited_for(tmp_path, monkeypatch, slept):
    monkeypatch.setattr(events, "SLOW_S", 600.0)
    with Waiter(tmp_path, -1.0) as waiter:
        waiter(0.0)
        wake(waiter, tmp_path / "image")
        waiter._observer.stop()
        waiter._observer.join()
        waiter(0.0)
        waiter._event.clear()
        slept.clear()
        waiter(0.25)
        assert slept == [0.25]
