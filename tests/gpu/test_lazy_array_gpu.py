import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from linumpy.core.device import CPU, Device, device, on_host, to_host
from linumpy.core.errors import DeviceError
from linumpy.gpu.array import DISK, LazyArray, Pool

from ..conftest import HAS_GPU
from . import needs_gpu
from .lazy_machine import LazyArraysAgainstNumpy

pytestmark = needs_gpu

CUDA = Device("cuda")
GPU = Device("cuda", 0)


def gpus():
    if not HAS_GPU:
        return [GPU]
    import cupy

    return [Device("cuda", index) for index in range(min(2, cupy.cuda.runtime.getDeviceCount()))]


class OnGpus(LazyArraysAgainstNumpy):
    devices = gpus()

    def on_device(self, array, where):
        import cupy

        with cupy.cuda.Device(where.index):
            return cupy.asarray(array)

    def write(self, found, array):
        if isinstance(found, np.ndarray):
            found[...] = array
            return
        with found.device:
            found.set(array)


class OnGpusTightly(OnGpus):
    budgets = {CPU: 150, **dict.fromkeys(gpus(), 120)}


OnGpus.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
OnGpusTightly.TestCase.settings = OnGpus.TestCase.settings
TestUnbounded = OnGpus.TestCase
TestUnderBudgets = OnGpusTightly.TestCase


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def guarded(cupy):
    lazy = LazyArray(cupy.arange(12, dtype=np.float32).reshape(3, 4))
    with device(CUDA):
        yield lazy.get_array()
        np.testing.assert_array_equal(lazy.get_array().get().ravel(), np.arange(12))


def test_the_device_of_the_block_is_cupys_too(cupy):
    with device(CUDA) as here:
        assert here == Device("cuda", cupy.cuda.Device().id)
    for where in gpus():
        before = cupy.cuda.Device().id
        with device(where):
            assert cupy.cuda.Device().id == where.index
            assert cupy.zeros(1).device.id == where.index
        assert cupy.cuda.Device().id == before
    with pytest.raises(DeviceError, match=r"cuda:99: there are \d+ visible GPUs"):
        device(Device("cuda", 99)).__enter__()


def test_bits_survive_the_round_through_all_places(cupy):
    bits = np.random.default_rng(0).integers(0, 2**32, (17, 33), np.uint32)
    for host in (bits.view(np.float32), np.asfortranarray(bits), bits[::2, ::-3]):
        before = host.tobytes()
        with Pool() as pool:
            lazy = LazyArray(host.copy(order="K"), pool=pool)
            with device(CUDA):
                assert lazy.get_array("rw").get().tobytes() == before
            lazy.evict(CPU)
            lazy.evict(CUDA)
            assert lazy.copies == {CPU: True}
            lazy.evict(CPU)
            assert lazy.copies == {DISK: True}
            with device(CUDA):
                assert lazy.get_array().get().tobytes() == before


def test_a_strided_copy_of_the_user_is_brought_up_to_date(cupy):
    for mine in (np.zeros((4, 6))[:, ::2], cupy.zeros((4, 6))[:, ::2]):
        lazy = LazyArray(mine)
        other = CUDA if isinstance(mine, np.ndarray) else CPU
        with device(other):
            lazy.get_array("rw")[...] = 5
        with device(CPU if other == CUDA else CUDA):
            assert bool((lazy.get_array() == 5).all())
        assert bool((mine == 5).all())


def test_evicted_copies_rest_in_pinned_memory(cupy):
    lazy = LazyArray(cupy.arange(1000))
    lazy.evict(CUDA)
    pointer = lazy.get_array().ctypes.data
    kind = cupy.cuda.runtime.pointerGetAttributes(pointer).type
    assert kind == 1  # cudaMemoryTypeHost


def refused(function, *arguments, **keywords):
    with pytest.raises(ValueError, match="read-only"):
        function(*arguments, **keywords)


def test_a_view_for_reading_refuses_to_be_written(cupy, guarded):
    refused(guarded.__setitem__, 0, 1)
    refused(guarded.__setitem__, slice(None), np.zeros((3, 4), np.float32))
    for operation in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        refused(getattr(guarded, f"__i{operation}__"), 2)
    refused(guarded.fill, 0)
    refused(guarded.sort)
    refused(guarded.partition, 1)
    refused(guarded.put, [0], [1])
    refused(guarded.set, np.zeros((3, 4), np.float32))
    refused(guarded.scatter_add, 0, 1)
    refused(setattr, guarded, "real", 1)
    refused(setattr, guarded, "imag", 1)


def test_views_of_a_view_for_reading_are_for_reading(cupy, guarded):
    views = (
        guarded[1:],
        guarded.T,
        guarded.reshape(-1),
        guarded.ravel(),
        guarded.view(),
        guarded.view(cupy.ndarray),
        guarded.view(np.uint32),
        guarded[None],
        cupy.asarray(guarded),
        cupy.ascontiguousarray(guarded),
        cupy.swapaxes(guarded, 0, 1),
        cupy.expand_dims(guarded, 0),
        guarded.astype(np.float32, copy=False),
        guarded.real,
    )
    for number, view in enumerate(views):
        assert view.data.ptr >= guarded.data.ptr, number
        refused(view.__setitem__, ..., 7)


def test_a_view_for_reading_is_no_output(cupy, guarded):
    plain = cupy.ones((3, 4), np.float32)
    refused(cupy.add, plain, 1, guarded)
    refused(cupy.add, guarded, 1, out=guarded)
    refused(np.add, plain, 1, out=guarded)
    refused(np.negative, guarded, out=guarded)
    refused(cupy.divmod, guarded, 2, guarded, plain)
    double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "linumpy_test_double")
    refused(double, plain, guarded)


def test_reads_of_a_view_for_reading_give_plain_arrays(cupy, guarded):
    plain = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "linumpy_test_double")
    total = cupy.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "linumpy_test_sum")
    import cupyx.scipy.ndimage

    functions = (
        lambda a: a + 1,
        lambda a: 1 - a,
        lambda a: a * plain,
        lambda a: plain * a,
        lambda a: -a,
        lambda a: a > 3,
        np.sqrt,
        cupy.sqrt,
        np.sum,
        double,
        total,
        lambda a: a.sum(),
        lambda a: a.mean(axis=0),
        lambda a: a.std(),
        lambda a: a.argmax(axis=1),
        lambda a: a.cumsum(),
        lambda a: a @ plain.T,
        lambda a: a.copy(),
        lambda a: a.astype(np.float64),
        lambda a: a.flatten(),
        lambda a: a[[0, 2]],
        lambda a: a[a > 2],
        lambda a: a.take([1, 2]),
        cupy.sort,
        lambda a: cupy.concatenate([a, plain]),
        lambda a: cupy.pad(a, 1),
        lambda a: cupy.where(a > 2, a, 0),
        lambda a: cupy.take_along_axis(a, cupy.zeros((1, 4), int), 0),
        lambda a: cupy.percentile(a, 30),
        lambda a: cupyx.scipy.ndimage.gaussian_filter(a, 1),
        lambda a: cupyx.scipy.ndimage.zoom(a, 2, order=1),
        lambda a: cupy.add(a, 1, out=cupy.empty_like(plain)),
        lambda a: plain.copy().__iadd__(a),
    )
    for number, function in enumerate(functions):
        found, expected = function(guarded), function(plain)
        assert type(found) is cupy.ndarray, number
        np.testing.assert_array_equal(found.get(), expected.get(), err_msg=str(number))
        found[...] = 0
    copy_kernel = cupy.RawKernel(
        'extern "C" __global__ void f(const float* x, float* y)'
        " { y[threadIdx.x] = x[threadIdx.x]; }",
        "f",
    )
    out = cupy.zeros((3, 4), np.float32)
    copy_kernel((1,), (12,), (guarded, out))
    assert bool((out == plain).all())
    assert guarded.get().sum() == 66 and float(guarded[0, 1]) == 1
    assert guarded.__cuda_array_interface__["data"] == (guarded.data.ptr, True)


def test_what_came_in_read_only_stays_so(cupy):
    host = np.ones(4)
    host.flags.writeable = False
    lazy = LazyArray(host, name="atlas")
    with device(CUDA):
        refused(lazy.get_array().__setitem__, 0, 1)
        with pytest.raises(ValueError, match="atlas is read-only"):
            lazy.get_array("rw")
        again = LazyArray(lazy.get_array())
    assert again.read_only
    assert bool((again.get_array() == 1).all())


def test_on_host_gives_numpy_inside_a_gpu_block(cupy):
    lazy = LazyArray(cupy.ones(5))

    @on_host
    def kind():
        return type(lazy.get_array())

    with device(CUDA):
        assert kind() is np.ndarray
        assert type(lazy.get_array("rw")) is cupy.ndarray


def slow(cupy, array, value):
    """Queue something that takes a while, then a write; returns at once."""
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin() {'
        " long long t = clock64(); while (clock64() - t < 300000000ll) {} }",
        "spin",
    )
    spin((1,), (1,), ())
    array[...] = value


def test_streams_wait_for_the_writer(cupy):
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    lazy = LazyArray(cupy.zeros(1 << 20, np.float32))
    cupy.cuda.Device().synchronize()
    with device(CUDA):
        with first:
            slow(cupy, lazy.get_array("rw"), 3)
        with second:
            found = lazy.get_array() + 0
            assert bool((found == 3).all())
    # The copy to the host waits as well.
    with device(CUDA), first:
        slow(cupy, lazy.get_array("rw"), 4)
    assert (lazy.get_array() == 4).all()


def test_a_write_waits_for_readers_on_other_streams(cupy):
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    lazy = LazyArray(cupy.ones(1 << 20, np.float32))
    out = cupy.zeros(1 << 20, np.float32)
    cupy.cuda.Device().synchronize()
    with device(CUDA):
        with first:
            found = lazy.get_array()
            slow(cupy, out[:1], 0)
            out[...] = found
        with second:
            lazy.get_array("wo")[...] = 9
        first.synchronize()
    assert bool((out == 1).all())


def test_memory_of_an_evicted_copy_is_not_reused_before_its_readers_are_done(cupy):
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with device(CUDA), first:
        lazy = LazyArray(np.ones(1 << 20, np.float32))
        lazy.get_array()
    out = cupy.zeros(1 << 20, np.float32)
    cupy.cuda.Device().synchronize()
    with device(CUDA), second:
        found = lazy.get_array()
        slow(cupy, out[:1], 0)
        out[...] = found
        del found
    lazy.evict(CUDA)
    with first:
        new = cupy.full(1 << 20, 9, np.float32)
    second.synchronize()
    assert bool((out == 1).all()) and new is not None


def test_memory_that_is_not_there_is_taken_from_others_then_refused(cupy):
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    limit = pool.get_limit()
    size = 64 << 20
    with Pool() as mine:
        arrays = [LazyArray(np.full(size, n, np.uint8), pool=mine) for n in range(3)]
        big = LazyArray(np.zeros(4 * size, np.uint8), name="the big one", pool=mine)
        pool.set_limit(size=pool.used_bytes() + 2 * size + (1 << 20))
        try:
            with device(CUDA):
                for lazy in arrays:
                    array = lazy.get_array("rw")
                    array += 1
                    del array
                    lazy.release()
                assert [GPU in lazy.copies for lazy in arrays] == [False, False, True]
                with pytest.raises(
                    DeviceError, match=rf"the big one: no room for {4 * size} bytes"
                ):
                    big.get_array()
        finally:
            pool.set_limit(size=limit)
        assert big.copies == {CPU: True}
        for n, lazy in enumerate(arrays):
            assert (lazy.get_array() == n + 1).all()


def test_a_grid_larger_than_the_budget_is_worked_on(cupy):
    shape, count = (64, 128, 128), 24
    size = int(np.prod(shape)) * 4
    with Pool({CUDA: 6 * size, CPU: 8 * size}) as pool:
        tiles = [LazyArray.empty(shape, np.float32, pool=pool) for _ in range(count)]
        with device(CUDA):
            for n, lazy in enumerate(tiles):
                array = lazy.get_array("wo")
                array[...] = n
                del array
                lazy.release()
            for lazy in tiles:
                array = lazy.get_array("rw")
                array *= 2
                del array
                lazy.release()
            assert pool.held_bytes(GPU) <= 6 * size
            assert pool.held_bytes(CPU) <= 9 * size
            assert any(lazy.copies == {DISK: True} for lazy in tiles)
        for n, lazy in enumerate(tiles):
            assert (lazy.get_array() == 2 * n).all()


def test_threads_with_streams_share_a_tight_pool(cupy):
    wrong = []
    with Pool({CUDA: 5 << 20, CPU: 6 << 20}) as pool:
        arrays = [LazyArray(np.zeros(1 << 18, np.float32), pool=pool) for _ in range(12)]

        def worker(number):
            rng = np.random.default_rng(number)
            counts = dict.fromkeys(range(number, 12, 4), 0)
            with cupy.cuda.Stream(non_blocking=True):
                for _ in range(60):
                    mine = int(rng.choice(list(counts)))
                    with device(CUDA if rng.integers(3) else CPU):
                        array = arrays[mine].get_array("rw")
                        if not bool((array == counts[mine]).all()):
                            wrong.append(mine)
                        array += 1
                        counts[mine] += 1
                    if not (to_host(arrays[mine].get_array()) == counts[mine]).all():
                        wrong.append(mine)

        threads = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_an_access_that_moves_nothing_is_cheap(cupy, capsys):
    """The bound is wide; the figure is printed and belongs to the benchmark."""
    lazy = LazyArray(cupy.zeros(1 << 20))
    figures = {}
    with device(CUDA):
        for intent in ("ro", "rw", "wo"):
            lazy.get_array(intent)
            times = []
            for _ in range(7):
                start = time.perf_counter()
                for _ in range(2000):
                    lazy.get_array(intent)
                times.append((time.perf_counter() - start) / 2000)
            figures[intent] = min(times) * 1e6
    with capsys.disabled():
        print("lazy array, µs an access:", {k: round(v, 2) for k, v in figures.items()})
    assert max(figures.values()) < 50


def test_a_duplicate_is_made_on_the_device_and_numpy_sees_the_array(cupy):
    lazy = LazyArray(np.arange(12, dtype=np.float32).reshape(3, 4))
    with device(CUDA):
        twin = lazy.duplicate()
        assert [where.kind for where, fresh in twin.copies.items() if fresh] == ["cuda"]
        twin.get_array("rw")[...] += 1
        found = np.asarray(twin)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, np.asarray(lazy) + 1)
