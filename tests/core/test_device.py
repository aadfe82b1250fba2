import subprocess
import sys

import numpy as np
import pytest

import linumpy.core.device as policy
from linumpy.core.errors import DeviceError


def test_the_cpu_is_what_one_gets_without_asking():
    assert policy.resolve(False) is policy.CPU
    assert not policy.CPU.is_gpu


def test_each_device_is_resolved_when_asked_for(device):
    from linumpy.core.device import resolve

    assert resolve(device.is_gpu) == device


def test_no_cupy_is_an_error_that_names_the_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"\[gpu\].*\[gpu13\]"):
        policy.resolve(True)


def test_no_usable_gpu_is_an_error_not_a_fallback(monkeypatch):
    class CUDARuntimeError(RuntimeError):
        pass

    def count():
        raise CUDARuntimeError("cudaErrorNoDevice")

    class Fake:
        class cuda:
            class runtime:
                pass

    Fake.cuda.runtime.CUDARuntimeError = CUDARuntimeError
    Fake.cuda.runtime.getDeviceCount = staticmethod(count)
    monkeypatch.setitem(sys.modules, "cupy", Fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("LINUMPY_LEASED_GPUS", "7")
    with pytest.raises(DeviceError, match=r"cudaErrorNoDevice.*CUDA_VISIBLE_DEVICES='7'"):
        policy.resolve(True)
    Fake.cuda.runtime.getDeviceCount = staticmethod(lambda: 0)
    with pytest.raises(DeviceError, match="no device"):
        policy.resolve(True)


def test_arrays_stay_where_they_are(xp):
    array = xp.arange(6.0)
    assert policy.namespace(array) is xp
    assert policy.namespace(np.zeros(1), array) is xp
    np.testing.assert_array_equal(policy.to_host(array), np.arange(6.0))
    moved = policy.like(np.ones(3), array)
    assert type(moved) is type(array)
    assert policy.ndimage_of(array).__name__.startswith("scipy" if xp is np else "cupyx")


def test_nothing_heavy_is_imported_with_the_device_policy():
    code = "import sys, linumpy.core.device; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("cupy", "zarr", "scipy", "matplotlib"):
        assert f"'{name}'" not in done.stdout


@pytest.mark.parametrize(("tile_nbytes", "expected"), [(1, 8), (200 << 20, 6), (8 << 30, 1)])
def test_threads_are_as_many_as_tiles_fit_into_half_of_what_is_granted(
    monkeypatch, tile_nbytes, expected
):
    monkeypatch.setattr(policy, "granted_host_bytes", lambda: 8 << 30)
    monkeypatch.setattr(policy, "default_workers", lambda _: 8)
    # Three copies of each: 4 GiB hold six of 200 MiB.
    assert policy.tile_workers(tile_nbytes) == expected
