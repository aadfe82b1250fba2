"""Reads of files: what must happen once, in any order of threads."""

import sys
import threading
import time
from types import ModuleType

import pytest

from linumpy.gpu import fetch


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


def test_kvikio_is_set_up_once_however_many_threads_begin_to_read(defaults, monkeypatch):
    monkeypatch.setattr(fetch, "n_threads", lambda: 64)
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
    assert known == [{"num_threads": 16, "bounce_buffer_size": 4 << 20}] * 4


@pytest.mark.parametrize(("cores", "threads"), [(2, 2), (64, 16)])
def test_no_process_reads_by_more_threads_than_serve_a_gpu(monkeypatch, cores, threads):
    monkeypatch.setattr(fetch, "n_threads", lambda: cores)
    reader = fetch.PinnedFetch(0)
    assert reader._pool._max_workers == threads
    reader.close()
