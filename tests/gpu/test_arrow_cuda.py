"""Arrow C Device and DLPack on CUDA memory: our own two ends, nanoarrow, PyTorch and JAX."""

import ctypes
import gc
import os
import time
import weakref

import numpy as np
import pytest

from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu import arrow_abi as abi
from linumpy.gpu.arrow import FORMATS, ArrowBatch, ArrowColumn, from_arrow, from_dlpack

from . import needs_gpu

pytestmark = needs_gpu

# Spins for a while, then writes: what reads without waiting sees the old values.
SLOW = r"""
extern "C" __global__ void slow(float* values, int count, float value, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] = value;
}
"""
CYCLES = 600_000_000
"""A few tenths of a second on any GPU."""


@pytest.fixture
def cupy():
    import cupy

    return cupy


def device_struct(capsules):
    return abi.open_capsule(capsules[1], b"arrow_device_array")


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 23])
def test_columns_go_out_and_come_back_in_place(cupy, dtype, count):
    values = (cupy.arange(count) % 3).astype(dtype)
    capsules = ArrowColumn(values).__arrow_c_device_array__()
    struct = device_struct(capsules)
    assert (struct.device_type, struct.device_id) == (abi.CUDA, values.device.id)
    assert struct.sync_event
    back = from_arrow(capsules)
    assert isinstance(back, cupy.ndarray)
    assert back.dtype == values.dtype
    cupy.testing.assert_array_equal(back, values)
    if dtype != "bool" and count:
        assert back.data.ptr == values.data.ptr
    with pytest.raises(InputError, match="consumed or released before"):
        from_arrow(capsules)


def test_tables_and_tiles(cupy):
    columns = {
        "ix": cupy.arange(6, dtype="i4"),
        "reliable": cupy.arange(6) % 2 == 0,
        "tile": cupy.arange(6 * 4 * 5, dtype="f4").reshape(6, 4, 5),
    }
    back = from_arrow(ArrowBatch(columns))
    assert list(back) == list(columns)
    for name, values in columns.items():
        cupy.testing.assert_array_equal(back[name], values)
    assert back["tile"].data.ptr == columns["tile"].data.ptr


def test_device_streams(cupy):
    columns = {"ix": cupy.arange(6, dtype="i4"), "tile": cupy.ones((6, 2, 3), "f4")}
    back = from_arrow(ArrowBatch(columns).__arrow_c_device_stream__())
    for name, values in columns.items():
        cupy.testing.assert_array_equal(back[name], values)
        assert back[name].data.ptr == values.data.ptr
    with pytest.raises(DeviceError, match="live on a GPU"):
        ArrowBatch(columns).__arrow_c_stream__()


def test_missing_values(cupy):
    values, valid = cupy.arange(11, dtype="f4"), cupy.arange(11) % 4 != 1
    back = from_arrow(ArrowColumn(values, valid))
    expected = cupy.where(valid, values, np.nan)
    cupy.testing.assert_array_equal(back, expected)
    with pytest.raises(InputError, match="3 values are missing"):
        from_arrow(ArrowColumn(values.astype("i4"), valid))


def test_offsets_are_honoured(cupy):
    values = cupy.arange(10, dtype="i8")
    flags = values % 3 == 0
    for array, expected in ((values, values[3:8]), (flags, flags[3:8])):
        capsules = ArrowColumn(array).__arrow_c_device_array__()
        struct = device_struct(capsules)
        struct.array.offset, struct.array.length = 3, 5
        cupy.testing.assert_array_equal(from_arrow(capsules), expected)


def test_memory_lives_as_long_as_a_view(cupy):
    values = cupy.arange(1000)
    alive = weakref.ref(values)
    view = from_arrow(ArrowColumn(values))[10:20]
    del values
    gc.collect()
    assert alive() is not None
    assert view.get().tolist() == list(range(10, 20))
    del view
    gc.collect()
    assert alive() is None
    assert not abi._lent


def test_many_exchanges_keep_device_memory_constant(cupy):
    pool = cupy.get_default_memory_pool()

    def exchange(times):
        for _ in range(times):
            from_arrow(ArrowBatch({"a": cupy.zeros(100_000), "b": cupy.zeros(100_000, "u1")}))
        gc.collect()
        return pool.used_bytes()

    used = exchange(20)
    assert exchange(1000) == used
    assert not abi._lent
    assert not abi._in_capsules


def start_slow_write(cupy, stream, value):
    """Queue a kernel that writes `value` long after this returns."""
    kernel = cupy.RawKernel(SLOW, "slow")
    with stream:
        values = cupy.zeros(1000, "f4")
        # Compiled and loaded first: only the spinning is to be waited for.
        kernel((1,), (256,), (values, np.int32(1000), np.float32(0), np.int64(0)))
        stream.synchronize()
        kernel((1,), (256,), (values, np.int32(1000), np.float32(value), np.int64(CYCLES)))
    return values


def prepared(cupy):
    """Memory to copy into: to allocate it later could wait for the kernel."""
    seen = cupy.full(1000, -1, "f4")
    cupy.cuda.get_current_stream().synchronize()
    return seen


def copy_into(seen, view):
    """Queue a plain copy on the current stream."""
    seen.data.copy_from_device_async(view.data, view.nbytes)


def test_the_consumer_waits_on_its_stream_and_the_host_does_not(cupy):
    producing = cupy.cuda.Stream(non_blocking=True)
    consuming = cupy.cuda.Stream(non_blocking=True)
    seen = prepared(cupy)
    values = start_slow_write(cupy, producing, 7)
    start = time.perf_counter()
    with producing:
        capsules = ArrowColumn(values).__arrow_c_device_array__()
    with consuming:
        view = from_arrow(capsules)
        copy_into(seen, view)
    queued = time.perf_counter() - start
    assert not producing.done
    consuming.synchronize()
    waited = time.perf_counter() - start
    assert (seen.get() == 7).all()
    assert queued < waited / 2


def test_without_the_event_the_old_values_are_read(cupy):
    """The other test means something: here nothing orders the two streams."""
    producing = cupy.cuda.Stream(non_blocking=True)
    consuming = cupy.cuda.Stream(non_blocking=True)
    seen = prepared(cupy)
    values = start_slow_write(cupy, producing, 7)
    with producing:
        capsules = ArrowColumn(values).__arrow_c_device_array__()
    device_struct(capsules).sync_event = None
    with consuming:
        copy_into(seen, from_arrow(capsules))
        consuming.synchronize()
    stale = bool((seen.get() == 0).all())
    producing.synchronize()
    assert stale


def test_memory_is_not_given_back_while_the_consumer_still_reads(cupy):
    consuming = cupy.cuda.Stream(non_blocking=True)
    values = cupy.full(1000, 3, "f4")
    kernel = cupy.RawKernel(SLOW, "slow")
    own = cupy.zeros(1, "f4")
    kernel((1,), (1,), (own, np.int32(1), np.float32(0), np.int64(0)))
    released = weakref.ref(values)
    seen = prepared(cupy)
    with consuming:
        view = from_arrow(ArrowColumn(values))
        del values
        kernel((1,), (256,), (own, np.int32(1), np.float32(1), np.int64(CYCLES)))
        copy_into(seen, view)
        assert not consuming.done
        del view
        gc.collect()
        # The release waited for what was queued.
        assert consuming.done
    assert released() is None
    assert (seen.get() == 3).all()


def test_pinned_memory_is_read_as_numpy_once_its_event_has_passed(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    source = start_slow_write(cupy, stream, 5)
    pinned = cupy.cuda.alloc_pinned_memory(source.nbytes)
    values = np.frombuffer(pinned, "f4", source.size)
    values[:] = 0
    event = cupy.cuda.Event(disable_timing=True)
    with stream:
        source.data.copy_to_host_async(ctypes.c_void_p(values.ctypes.data), source.nbytes)
        event.record(stream)
    capsules = ArrowColumn(values).__arrow_c_device_array__()
    handle = ctypes.c_void_p(event.ptr)
    struct = device_struct(capsules)
    struct.device_type, struct.device_id = abi.CUDA_HOST, 0
    struct.sync_event = ctypes.addressof(handle)
    back = from_arrow(capsules)
    assert isinstance(back, np.ndarray)
    assert back.ctypes.data == values.ctypes.data
    assert (back == 5).all()


def test_a_gpu_array_is_not_lent_as_cpu_memory(cupy):
    with pytest.raises(DeviceError, match="live on a GPU"):
        ArrowColumn(cupy.zeros(3)).__arrow_c_array__()
    with pytest.raises(InputError, match="differ in device"):
        ArrowBatch({"a": cupy.zeros(3), "b": np.zeros(3)})
    with pytest.raises(InputError, match="differ in device"):
        ArrowBatch({"a": cupy.zeros(1), "b": ["text"]})
    with pytest.raises(InputError, match="C-contiguous"):
        ArrowColumn(cupy.zeros((3, 4))[:, 1])
    with pytest.raises(InputError, match="2147483648 booleans"):
        ArrowColumn(cupy.zeros(2**31, bool))
    cupy.get_default_memory_pool().free_all_blocks()


def test_devices_that_are_not_there(cupy):
    capsules = ArrowColumn(cupy.zeros(3)).__arrow_c_device_array__()
    for number in (-1, 99):
        device_struct(capsules).device_id = number
        with pytest.raises(DeviceError, match=f"lives on GPU {number}"):
            from_arrow(capsules)


def test_nanoarrow_reads_the_metadata_of_gpu_arrays(cupy):
    device = pytest.importorskip("nanoarrow.device")
    values = cupy.arange(5, dtype="f4")
    theirs = device.c_device_array(ArrowColumn(values))
    assert (theirs.device_type_id, theirs.device_id) == (abi.CUDA, values.device.id)
    assert theirs.array.length == 5
    assert theirs.array.buffers == (0, values.data.ptr)
    batch = device.c_device_array(ArrowBatch({"a": values, "b": values}))
    assert [child.format for child in batch.schema.children] == ["f", "f"]


# --- DLPack


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA here")
    return torch


@pytest.fixture
def jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    pytest.importorskip("jax.dlpack")
    try:
        jax.devices("gpu")
    except RuntimeError:
        pytest.skip("JAX has no GPU here")
    return jax


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_pytorch_both_ways_in_place(cupy, torch, dtype):
    values = cupy.arange(24).astype(dtype).reshape(2, 3, 4)
    tensor = torch.from_dlpack(ArrowColumn(values))
    assert tensor.is_cuda
    assert tensor.data_ptr() == values.data.ptr
    np.testing.assert_array_equal(tensor.cpu().numpy(), values.get())
    tensor += 1
    back = from_dlpack(tensor)
    assert isinstance(back, cupy.ndarray)
    assert back.data.ptr == values.data.ptr
    assert back.shape == values.shape
    np.testing.assert_array_equal(values.get().ravel(), np.arange(24) + 1)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_jax_both_ways_in_place(cupy, jax, dtype):
    values = cupy.arange(24).astype(dtype).reshape(2, 3, 4)
    theirs = jax.dlpack.from_dlpack(ArrowColumn(values))
    assert theirs.unsafe_buffer_pointer() == values.data.ptr
    np.testing.assert_array_equal(np.asarray(theirs), values.get())
    made = jax.device_put(np.arange(12, dtype=dtype), jax.devices("gpu")[0])
    back = from_dlpack(made)
    assert isinstance(back, cupy.ndarray)
    assert back.data.ptr == made.unsafe_buffer_pointer()
    assert back.get().tolist() == list(range(12))


def test_pytorch_to_jax_through_us(cupy, torch, jax):
    tensor = torch.arange(12, dtype=torch.float32, device="cuda")
    theirs = jax.dlpack.from_dlpack(from_dlpack(tensor))
    assert theirs.unsafe_buffer_pointer() == tensor.data_ptr()
    assert np.asarray(theirs).tolist() == list(range(12))


def test_arrow_to_pytorch(cupy, torch):
    """A column that came through Arrow goes on through DLPack, still the same memory."""
    values = cupy.arange(12, dtype="f4").reshape(3, 4)
    tensor = torch.from_dlpack(from_arrow(ArrowColumn(values)))
    assert tensor.data_ptr() == values.data.ptr
    del values
    gc.collect()
    assert tensor.cpu().numpy().ravel().tolist() == list(range(12))
    del tensor
    gc.collect()
    assert not abi._lent


def test_pytorch_tensors_on_another_stream_are_waited_for(cupy, torch):
    stream = torch.cuda.Stream()
    consuming = cupy.cuda.Stream(non_blocking=True)
    torch.cuda._sleep(1)
    with torch.cuda.stream(stream):
        tensor = torch.zeros(1000, device="cuda")
        torch.cuda._sleep(CYCLES)
        tensor += 4
        with consuming:
            seen = from_dlpack(tensor).copy()
    consuming.synchronize()
    assert (seen.get() == 4).all()
