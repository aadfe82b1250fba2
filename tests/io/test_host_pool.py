import gc
import threading
from contextlib import ExitStack

import numpy as np

from linumpy.io.host_pool import HostPool


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_is_gone():
    pool = HostPool()
    with pool.reusing():
        reuse(pool)


def reuse(pool):
    first = pool.empty((4, 5, 6), np.float32)
    first[:] = 3
    view, where = first[1:, ::2], address(first)
    del first
    gc.collect()
    other = pool.empty((4, 5, 6), np.float32)
    assert address(other) != where
    np.testing.assert_array_equal(view, np.full((3, 3, 6), 3, np.float32))
    del view
    gc.collect()
    # Another shape and type of as many bytes.
    again = pool.empty((30, 4), np.int32)
    assert address(again) == where
    assert again.flags.c_contiguous and again.flags.writeable and again.shape == (30, 4)


def test_no_two_arrays_share_memory():
    pool = HostPool()
    wrong = []
    keep = ExitStack()
    keep.enter_context(pool.reusing())

    def work(number):
        for k in range(200):
            array = pool.empty((50, 7), np.float64)
            array[...] = number * 1000 + k
            if not (array == number * 1000 + k).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keep.close()
    assert not wrong


def test_no_more_is_kept_than_allowed():
    pool = HostPool(keep_nbytes=1000)
    with pool.reusing():
        arrays = [pool.empty((100,), np.float32) for _ in range(5)]
        assert pool.free_nbytes == 0
        del arrays
        gc.collect()
        assert pool.free_nbytes == 800
    assert pool.empty((), np.float32).shape == ()
    assert pool.empty((0, 3), np.uint8).size == 0


def test_outside_of_its_blocks_nothing_is_kept():
    pool = HostPool()
    with pool.reusing():
        with pool.reusing():
            del [pool.empty((10,), np.float32)][:]
            gc.collect()
        assert pool.free_nbytes == 40
    assert pool.free_nbytes == 0
    del [pool.empty((10,), np.float32)][:]
    gc.collect()
    assert pool.free_nbytes == 0
