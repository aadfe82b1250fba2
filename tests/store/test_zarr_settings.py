import threading

import pytest
import zarr

from linumpy.store.zarr_settings import zarr_settings

KEY, OTHER = "async.concurrency", "threading.max_workers"


def now():
    return zarr.config.get(KEY), zarr.config.get(OTHER)


def test_blocks_nest_and_restore_after_errors():
    before = now()
    with zarr_settings({KEY: 3}):
        with pytest.raises(KeyError), zarr_settings({KEY: 4, OTHER: 5}):
            assert now() == (4, 5)
            raise KeyError
        assert now() == (3, before[1])
    assert now() == before


@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_blocks_of_threads_may_end_in_any_order(first_to_leave):
    before = now()
    blocks = [zarr_settings({KEY: 3}), zarr_settings({KEY: 4, OTHER: 5})]
    for block in blocks:
        block.__enter__()
    assert now() == (4, 5)
    blocks.pop(first_to_leave).__exit__(None, None, None)
    assert now() == ((4, 5) if first_to_leave == 0 else (3, before[1]))
    blocks.pop().__exit__(None, None, None)
    assert now() == before


def test_many_threads_leave_nothing_behind():
    before = now()
    seen = []

    def work(value):
        for _ in range(200):
            with zarr_settings({KEY: value}):
                seen.append(zarr.config.get(KEY))

    threads = [threading.Thread(target=work, args=(value,)) for value in (7, 8, 7)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert now() == before and set(seen) <= {7, 8} and len(seen) == 600


def test_dictionaries_come_back_whole():
    before = dict(zarr.config.get("codecs"))
    with zarr_settings({"codecs": {**before, "zstd": "elsewhere.Zstd", "numcodecs.lz4": "x"}}):
        assert zarr.config.get("codecs")["numcodecs.lz4"] == "x"
    assert dict(zarr.config.get("codecs")) == before
