"""Buffers: what our pipeline is given stays what it is; and what happens without CUDA."""

import asyncio
import os
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec
from zarr.core.buffer import BufferPrototype, cpu, default_buffer_prototype, gpu
from zarr.errors import ZarrUserWarning
from zarr.registry import fully_qualified_name, register_buffer, register_ndbuffer
from zarr.storage import MemoryStore
from zarr.testing.buffer import (
    NDBufferUsingTestNDArrayLike,
    StoreExpectingTestBuffer,
    TestBuffer,
    TestNDArrayLike,
)

from linumpy.gpu.zarr_io import CODECS, NDBUFFER, gpu_zarr_context
from linumpy.io.zarr_io import zarr_context

from . import needs_gpu
from .contract_ways import ours_on_numpy

NAMES = sorted(CODECS)
quiet = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")


# --- Zarr's buffers for tests -----------------------------------------------------------------


@quiet
@pytest.mark.parametrize("shards", [None, (8, 8)])
@pytest.mark.parametrize("name", NAMES)
def test_buffers_of_another_kind_stay_of_that_kind(name, shards, rng):
    """The store refuses chunks in any other buffer, and reads give the array that was asked for.

    Not so for shards, whose index Zarr's own codec takes in plain buffers.
    """
    register_buffer(TestBuffer)
    register_ndbuffer(NDBufferUsingTestNDArrayLike)
    chosen = {
        "buffer": fully_qualified_name(TestBuffer),
        "ndbuffer": fully_qualified_name(NDBufferUsingTestNDArrayLike),
    }
    data = rng.integers(0, 9, (13, 11)).astype("f4")
    store = StoreExpectingTestBuffer() if shards is None else MemoryStore()
    with ours_on_numpy(), zarr.config.set(chosen):
        array = zarr.create_array(
            store,
            shape=data.shape,
            dtype="f4",
            chunks=(4, 4),
            shards=shards,
            compressors=[{"name": name, "configuration": {}}, Crc32cCodec()],
            fill_value=3,
        )
        array[:9] = data[:9].view(TestNDArrayLike)
        array[9, 2:5] = data[9, 2:5].view(TestNDArrayLike)
        result = array[...]
        assert type(result) is TestNDArrayLike
        assert type(array[3:7, 2]) is TestNDArrayLike
    expected = np.full(data.shape, 3, "f4")
    expected[:9], expected[9, 2:5] = data[:9], data[9, 2:5]
    np.testing.assert_array_equal(result, expected)
    chunks = [value for key, value in store._store_dict.items() if "json" not in key]
    assert chunks and all(type(value) is TestBuffer for value in chunks if shards is None)


@quiet
@pytest.mark.parametrize("name", NAMES)
def test_a_prototype_for_one_call_is_kept(name, rng):
    prototype = BufferPrototype(buffer=TestBuffer, nd_buffer=NDBufferUsingTestNDArrayLike)
    data = rng.integers(0, 9, (13, 11)).astype("f4")
    with ours_on_numpy():
        array = zarr.create_array(
            StoreExpectingTestBuffer(),
            shape=data.shape,
            dtype="f4",
            chunks=(4, 4),
            compressors=[{"name": name, "configuration": {}}],
        )

    async def main():
        await array.async_array.setitem(Ellipsis, data, prototype=prototype)
        return await array.async_array.getitem(Ellipsis, prototype=prototype)

    result = asyncio.run(main())
    assert type(result) is TestNDArrayLike
    np.testing.assert_array_equal(result, data)


# --- Zarr's buffers on the device -------------------------------------------------------------


@needs_gpu
def test_device_buffers_are_flat_bytes_without_a_copy():
    import cupy

    array = cupy.arange(24, dtype=cupy.uint8)
    with warnings.catch_warnings(), gpu_zarr_context():
        warnings.simplefilter("error")
        default = default_buffer_prototype()
        assert default.buffer is gpu.Buffer and issubclass(default.nd_buffer, gpu.NDBuffer)
        for buffer in (gpu.Buffer(array), gpu.Buffer.from_array_like(array)):
            assert buffer.as_array_like().data.ptr == array.data.ptr
            assert "data" in buffer.as_array_like().__cuda_array_interface__
        part = gpu.Buffer(array)[4:8]
        assert part.as_array_like().data.ptr == array.data.ptr + 4
        nd = gpu.NDBuffer.from_ndarray_like(array.reshape(2, 3, 4))
        assert nd.as_ndarray_like().data.ptr == array.data.ptr
        # DLPack: another library's view of the same memory
        assert cupy.from_dlpack(nd.as_ndarray_like()).data.ptr == array.data.ptr
    with pytest.raises(ValueError, match="1-dim"):
        gpu.Buffer(array.reshape(2, 12))
    with pytest.raises(ValueError, match="byte dtype"):
        gpu.Buffer(array.view(cupy.int32))
    with pytest.warns(ZarrUserWarning, match="slow copy"):
        gpu.Buffer(np.arange(3, dtype="u1"))
    with pytest.warns(UserWarning, match="slow copy"):
        gpu.NDBuffer(np.arange(3.0))


@needs_gpu
@pytest.mark.parametrize("shards", [None, (64, 64, 64)])
@pytest.mark.parametrize("codec", [[], [{"name": "zstd", "configuration": {"level": 1}}]])
def test_copies_through_the_host_are_reported(tmp_path, monkeypatch, shards, codec, rng):
    import cupy

    def refuse(*_):
        raise AssertionError("a device buffer was copied to the host")

    data = cupy.asarray(rng.integers(0, 9, (64, 128, 64)).astype("u2"))
    with gpu_zarr_context():
        array = zarr.create_array(
            tmp_path / "a",
            shape=data.shape,
            dtype="u2",
            chunks=(16, 16, 16),
            shards=shards,
            compressors=[*codec, Crc32cCodec()],
        )
        # Metadata are small, and are Zarr's business.
        monkeypatch.setattr(gpu.Buffer, "as_numpy_array", refuse)
        monkeypatch.setattr(gpu.NDBuffer, "as_numpy_array", refuse)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            array[...] = data
            array[3:9, ::5] = data[3:9, ::5]
            result = array[...]
            assert isinstance(result, cupy.ndarray) and bool((result == data).all())
            assert bool((array[1:50:7, 4] == data[1:50:7, 4]).all())


@needs_gpu
def test_numpy_arrays_are_taken_with_a_warning(tmp_path, rng):
    data = rng.random((40, 30))
    with gpu_zarr_context():
        array = zarr.create_array(tmp_path / "a", shape=data.shape, dtype="f8", chunks=(9, 9))
        with pytest.warns(UserWarning, match="slow copy"):
            array[...] = data
        assert np.array_equal(array[...].get(), data)


@needs_gpu
def test_device_buffers_for_one_call_without_the_context(tmp_path, rng):
    """The pipeline serves the prototype that it is given, not the one that is configured."""
    import cupy

    data = rng.random((40, 30))
    with ours_on_numpy():
        array = zarr.create_array(tmp_path / "a", shape=data.shape, dtype="f8", chunks=(9, 9))
        array[...] = data
    result = array.get_basic_selection((slice(3, 30), 4), prototype=gpu.buffer_prototype)
    assert isinstance(result, cupy.ndarray) and np.array_equal(result.get(), data[3:30, 4])
    new = cupy.asarray(data + 1)
    array.set_basic_selection(Ellipsis, new, prototype=gpu.buffer_prototype)
    with gpu_zarr_context():
        inside = zarr.open_array(tmp_path / "a", mode="r")
    for other in (array, inside):
        host = other.get_basic_selection(Ellipsis, prototype=cpu.buffer_prototype)
        assert type(host) is np.ndarray and np.array_equal(host, data + 1)


@needs_gpu
def test_arrays_lie_on_the_device_of_the_context(tmp_path, rng):
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    data = rng.random((40, 30))
    with gpu_zarr_context(device=1):
        array = zarr.create_array(tmp_path / "a", shape=data.shape, dtype="f8", chunks=(9, 9))
        with cupy.cuda.Device(1):
            array[...] = cupy.asarray(data)
        result = array[...]
        assert result.device.id == 1 and np.array_equal(result.get(), data)


# --- contexts within each other ---------------------------------------------------------------


def test_a_context_for_the_device_within_one_for_the_host(monkeypatch):
    """Each block has what it asked for; CuPy is a stand-in, since nothing is computed."""
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=OSError)
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def chosen():
        pipeline = zarr.config.get("codec_pipeline.path").rpartition(".")[2]
        return pipeline, zarr.config.get("buffer"), zarr.config.get("ndbuffer")

    outside = chosen()
    device = ("GpuCodecPipeline", "zarr.buffer.gpu.Buffer", NDBUFFER)
    host = ("GuardedZarrsCodecPipeline", "zarr.buffer.cpu.Buffer", "zarr.buffer.cpu.NDBuffer")
    with gpu_zarr_context(device=0):
        assert chosen() == device
        with zarr_context():
            assert chosen() == host
            with gpu_zarr_context(device=0):
                assert chosen() == device
            assert chosen() == host
        assert chosen() == device
    assert chosen() == outside


# --- without CUDA -----------------------------------------------------------------------------

WITHOUT_CUDA = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"cupy", "cupyx", "cupy_backends", "kvikio", "nvidia"}:
            raise ImportError(f"{name} was asked for")

sys.meta_path.insert(0, Refuse())
"""


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CUDA + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_cuda_is_imported_before_it_is_used():
    loaded = python("""
import importlib, pkgutil
import linumpy.gpu, zarr  # Zarr itself looks for CuPy, and does without

asked = []
plain = Refuse.find_spec

def noted(self, name, *rest):
    try:
        return plain(self, name, *rest)
    except ImportError:
        asked.append(name)
        raise

Refuse.find_spec = noted
names = [m.name for m in pkgutil.iter_modules(linumpy.gpu.__path__, "linumpy.gpu.")]
for name in ["linumpy.core.device", "linumpy.io.zarr_io", "linumpy.store.guarded_pipeline", *names]:
    importlib.import_module(name)
    assert not asked, (name, asked)
assert not {"cupy", "kvikio", "nvidia"} & set(sys.modules)
print(len(names))
""")
    assert int(loaded) > 20


def test_without_cuda_the_error_names_what_to_install(tmp_path):
    zarr.create_array(tmp_path / "a", shape=4, dtype="f4")[...] = 1
    said = python(f"""
import zarr
from linumpy.core.device import Device
from linumpy.core.errors import DeviceError
from linumpy.gpu.zarr_io import gpu_zarr_context, read_zarr_to_gpu
from linumpy.io.zarr_io import read_zarr, zarr_context

path = {str(tmp_path / "a")!r}
before = dict(zarr.config.config)

def enter(context):
    with context:
        raise AssertionError("entered")

for use in (
    lambda: enter(gpu_zarr_context()),
    lambda: enter(zarr_context(Device("cuda"))),
    lambda: read_zarr_to_gpu(path),
    lambda: read_zarr_to_gpu(path, backend="host"),
    lambda: read_zarr(path, device=Device("cuda", 0)),
):
    try:
        use()
    except DeviceError as error:
        print(error)
assert zarr.config.config == before
assert zarr.open_array(path, mode="r")[0] == 1
""").splitlines()
    assert len(said) == 5
    for line in said:
        assert "CuPy" in line and "[gpu]" in line and "[gpu13]" in line


@needs_gpu
def test_error_names_the_missing_device(tmp_path):
    code = """
from linumpy.core.errors import DeviceError
from linumpy.gpu.zarr_io import gpu_zarr_context, read_zarr_to_gpu
for use in (gpu_zarr_context().__enter__, lambda: read_zarr_to_gpu("a")):
    try:
        use()
    except DeviceError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stderr
    assert all("CUDA_VISIBLE_DEVICES=''" in line or "no device" in line for line in lines)
