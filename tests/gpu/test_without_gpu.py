"""A GPU that is asked for and is not there is a DeviceError, in functions as in scripts."""

import ast
import contextlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import zarr

from linumpy.benchmark.machine import describe_machine
from linumpy.brain.stacking import find_z_overlap
from linumpy.core import device as policy
from linumpy.core.device import Device
from linumpy.core.errors import DeviceError, InputError
from linumpy.geometry.interface import find_tissue_interface
from linumpy.gpu import arrow, interface, kvikio_zarr, nvcomp, windows, zarr_io
from linumpy.gpu.array import LazyArray
from linumpy.gpu.zarr_io import gpu_zarr_context, read_zarr_to_gpu
from linumpy.io.zarr_io import read_zarr, zarr_context
from linumpy.slices.engine import resting_bytes
from linumpy.slices.gpu_sweep import sweep_on_gpu

ROOT = Path(__file__).parents[2]
GPU = Device("cuda")
TWO = Device("cuda", count=2)
VOLUME = np.ones((4, 5, 6), np.float32)


class CUDARuntimeError(RuntimeError):
    pass


def no_device():
    raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


def enter(context):
    with context:
        raise AssertionError("entered")


def load_lazily():
    with policy.device(GPU):
        LazyArray(VOLUME).get_array()


class OnCuda:
    """An array of a GPU in another library, as far as DLPack asks before it takes the memory."""

    def __dlpack_device__(self):
        return 2, 0


ENTRIES = {
    "resolve": lambda array: policy.resolve(True),
    "locate": lambda array: policy.locate(GPU),
    "device": lambda array: enter(policy.device(GPU)),
    "to_device": lambda array: policy.to_device(VOLUME, GPU),
    "free_gpu_bytes": lambda array: policy.free_gpu_bytes(),
    "LazyArray": lambda array: load_lazily(),
    "resting_bytes": lambda array: resting_bytes(GPU),
    "find_tissue_interface": lambda array: find_tissue_interface(VOLUME, axis=0, use_gpu=True),
    "find_z_overlap": lambda array: find_z_overlap(VOLUME, VOLUME, 20, 10, 10, use_gpu=True),
    "interface.find_tissue_interface": lambda array: interface.find_tissue_interface(VOLUME),
    "describe_machine": lambda array: describe_machine(Path("/"), use_gpu=True),
    "gpu_zarr_context": lambda array: enter(gpu_zarr_context()),
    "zarr_context": lambda array: enter(zarr_context(GPU)),
    "read_zarr_to_gpu": lambda array: read_zarr_to_gpu(array),
    "read_zarr_to_gpu of a host": lambda array: read_zarr_to_gpu(array, backend="host"),
    "read_zarr": lambda array: read_zarr(array, device=GPU),
    "read_raw_zarr": lambda array: kvikio_zarr.read_raw_zarr(array),
    "kvikio_settings": lambda array: enter(kvikio_zarr.kvikio_settings(num_threads=2)),
    "nvcomp.library": lambda array: nvcomp.library(),
    "read_windows": lambda array: windows.read_windows(array, [(slice(0, 2),) * 3]),
    "write_windows": lambda array: windows.write_windows(array, [(slice(None),) * 3], [VOLUME]),
    "sweep_on_gpu": lambda array: sweep_on_gpu(None, None, None, None, GPU),
    "sweep_on_gpu of two": lambda array: sweep_on_gpu(None, None, None, None, TWO),
    "from_dlpack": lambda array: arrow.from_dlpack(OnCuda()),
}
LIBRARIES = {"from_dlpack": "CuPy", "kvikio_settings": "kvikio", "nvcomp.library": r"nvCOMP \d+"}
"""Entries that need a library and ask for no device before they are given data on one."""


@pytest.fixture
def array(tmp_path):
    array = zarr.create_array(
        tmp_path / "a", shape=VOLUME.shape, dtype="f4", chunks=VOLUME.shape, compressors=None
    )
    array[...] = VOLUME
    return array


@pytest.fixture(params=["no CuPy", "no device"])
def machine(request, monkeypatch):
    """A machine without CuPy, or with it and no device; returns what its errors say."""
    if request.param == "no CuPy":
        for name in ("cupy", "kvikio", "nvidia"):
            monkeypatch.setitem(sys.modules, name, None)
        # Where the library is installed, it may be loaded already, and the system may know it.
        monkeypatch.setattr(nvcomp, "library", nvcomp.library.__wrapped__)
        monkeypatch.setattr(nvcomp, "LIBRARY_VERSION", 99)
        return r"needs {}, which cannot be imported here .*pip install .*\[gpu\].*\[gpu13\]"
    runtime = types.SimpleNamespace(
        getDeviceCount=no_device, memGetInfo=no_device, CUDARuntimeError=CUDARuntimeError
    )
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv("LINUMPY_LEASED_GPUS", "0")
    return "no usable GPU .*cudaErrorNoDevice"


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_without_a_gpu_every_entry_raises_device_error(entry, machine, array):
    if "cannot be imported" not in machine and entry in LIBRARIES:
        pytest.skip("asks for no device")
    with pytest.raises(DeviceError, match=machine.format(LIBRARIES.get(entry, "CuPy"))):
        ENTRIES[entry](array)


@pytest.mark.slow
def test_every_function_with_use_gpu_is_tried():
    found = set()
    for path in (ROOT / "linumpy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = (*node.args.args, *node.args.kwonlyargs)
                if any(argument.arg == "use_gpu" for argument in arguments):
                    found.add(node.name)
    assert len(found) >= 4 and found <= set(ENTRIES)


def test_every_reader_and_context_of_the_gpu_is_tried():
    """Public functions of the modules that users of the GPU call, but those that take no data."""
    tried = " ".join(ENTRIES)
    for module in (interface, kvikio_zarr, windows):
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if own and not name.startswith("_") and name != "raw_layout":
                assert name in tried, f"{module.__name__}.{name}"


@pytest.mark.parametrize(
    "names, message",
    [
        ({"backend": "gds"}, "backend 'gds': expected one of auto, kvikio, nvcomp, host, zarr"),
        ({"prefer": "nvcomp"}, "prefer 'nvcomp': expected one of auto, kvikio, zarr-gpu"),
        ({"prefer": "kvikio", "backend": "host"}, "expected one of the two"),
    ],
)
def test_backend_is_named_once_and_by_its_name(array, names, message):
    with pytest.raises(InputError, match=message):
        read_zarr_to_gpu(array, **names)


@pytest.mark.parametrize(
    "names, backend",
    [
        ({}, "auto"),
        ({"prefer": "auto"}, "auto"),
        ({"prefer": "kvikio"}, "kvikio"),
        ({"prefer": "zarr-gpu"}, "zarr"),
        ({"backend": "host"}, "host"),
    ],
)
def test_prefer_is_backend_under_other_names(array, monkeypatch, names, backend):
    """The device and the readers are stand-ins that note what they are asked for."""
    asked = []
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        Device=type("Here", (contextlib.nullcontext,), {"id": 0}),
        get_current_stream=contextlib.nullcontext,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(policy, "locate", lambda where: where)
    monkeypatch.setattr(zarr_io, "_read", lambda *a: asked.append(a[2]))
    monkeypatch.setattr(zarr_io, "_read_by_zarr", lambda *a: asked.append(a[3].backend))
    read_zarr_to_gpu(array, **names)
    assert asked == [backend]
