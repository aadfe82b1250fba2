"""Reads of files: what must happen once, in any order of threads."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.gpu import fetch
from linumpy.gpu.objects import LocalObject


class Defaults(ModuleType):
    """Stands in for kvikio's settings: two who change them at once never end there."""

    def __init__(self):
        super().__init__("kvikio.defaults")
        self.inside, self.most, self.known = 0, 0, {}

    def set(self, values):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.05)
        self.known.update(values)
        self.inside -= 1

    def get(self, name):
        return {"task_size": 4 << 20}[name]


@pytest.fixture
def defaults(monkeypatch):
    package, found = ModuleType("kvikio"), Defaults()
    package.defaults = found
    monkeypatch.setitem(sys.modules, "kvikio", package)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", found)
    for name in ("KVIKIO_NTHREADS", "KVIKIO_BOUNCE_BUFFER_SIZE"):
        monkeypatch.delenv(name, raising=False)
    fetch._configure_kvikio.cache_clear()
    yield found
    fetch._configure_kvikio.cache_clear()


def test_kvikio_is_set_up_once_however_many_threads_begin_to_read(defaults):
    gate, known = threading.Barrier(4), []

    def begin():
        gate.wait()
        fetch.KvikioFetch()
        # All wait until it is done.
        known.append(dict(defaults.known))

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert defaults.most == 1
    assert known == [{"num_threads": fetch.n_threads(), "bounce_buffer_size": 4 << 20}] * 4


@pytest.mark.parametrize(
    ("told", "driver", "native"),
    [
        (None, False, False),
        (None, True, True),
        ("AUTO", True, True),
        ("ON", True, False),
        ("OFF", False, True),
    ],
)
def test_kvikio_reads_where_its_driver_is_or_it_is_told_to(
    told, driver, native, defaults, tmp_path, monkeypatch
):
    monkeypatch.setattr(fetch, "_NVIDIA_FS", str(tmp_path / ("." if driver else "none")))
    monkeypatch.delenv("KVIKIO_COMPAT_MODE", raising=False)
    if told is not None:
        monkeypatch.setenv("KVIKIO_COMPAT_MODE", told)
    found, cause = fetch.make_fetch([LocalObject("x")], 0)
    assert found.name == ("kvikio" if native else "pinned") and cause is None
    assert fetch.make_fetch([LocalObject("x")], 0, by_kvikio=True)[0].name == "kvikio"
    assert bool(defaults.known)


def test_reads_that_have_not_begun_are_cancelled_at_the_end(monkeypatch):
    """And those under way are waited for: they write to memory that is freed then."""
    begun, gate, done = threading.Barrier(3), threading.Event(), []
    pool, waits = ThreadPoolExecutor(2), fetch.wait

    class Slow(fetch.PinnedFetch):
        def _read(self, run, first, size, target):
            begun.wait(10)
            gate.wait(10)
            done.append(run.offset)

    def opened(futures):
        gate.set()
        return waits(futures)

    monkeypatch.setattr(fetch, "_fetch_threads", lambda: pool)
    monkeypatch.setattr(fetch, "wait", opened)
    slow = Slow(0)
    runs = [fetch.Run(LocalObject("x"), n, 16, 16 * n) for n in range(50)]
    slow.start(runs, np.empty(800, np.uint8))
    begun.wait(10)
    slow.close()
    assert sorted(done) == [0, 1]


def test_a_file_that_is_gone_is_named(tmp_path):
    run = fetch.Run(LocalObject(str(tmp_path / "c/0")), 8, 16, 0)
    with pytest.raises(InputError, match=r"c/0: 16 bytes at 8 cannot be read .*the file has None"):
        fetch._read_file(run, 0, np.empty(16, np.uint8))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0").write_bytes(bytes(20))
    with pytest.raises(InputError, match=r"c/0: 12 bytes read at 8, expected 16: cut short"):
        fetch._read_file(run, 0, np.empty(16, np.uint8))
