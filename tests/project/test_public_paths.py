"""Import paths that docs/gpu.md and users' scripts rely on."""

from importlib import import_module
from typing import ParamSpec, TypeVar

import pytest

import linumpy.core.device
import linumpy.core.errors
import linumpy.device
import linumpy.errors

PUBLIC = {
    "linumpy.gpu.zarr_io": ["gpu_zarr_context", "read_zarr_to_gpu"],
    "linumpy.gpu.codecs": ["NvcompZstdCodec"],
    "linumpy.gpu.codec_pipeline": ["GpuCodecPipeline"],
    "linumpy.gpu.kvikio_zarr": ["kvikio_settings", "read_raw_zarr"],
    "linumpy.gpu.array": ["LazyArray"],
    "linumpy.gpu.arrow": ["ArrowBatch", "ArrowColumn", "device_of", "from_arrow", "from_dlpack"],
    "linumpy.gpu.interface": ["find_tissue_interface"],
    "linumpy.gpu.interpolation": ["affine_transform", "map_coordinates", "resize"],
    "linumpy.io.zarr_io": ["read_zarr", "zarr_context"],
    "linumpy.io.tables": ["read_shifts", "read_slice_config"],
}


@pytest.mark.parametrize("path", PUBLIC)
def test_public_path_has_its_names(path: str) -> None:
    module = import_module(path)
    assert [name for name in PUBLIC[path] if not hasattr(module, name)] == []


@pytest.mark.parametrize("name", ["device", "errors"])
def test_short_path_is_the_module_of_core(name: str) -> None:
    """Every public name that core defines, as the same object."""
    public, core = getattr(linumpy, name), getattr(linumpy.core, name)
    own = {
        key
        for key, value in vars(core).items()
        if getattr(value, "__module__", "") == core.__name__
        and not key.startswith("_")
        and not isinstance(value, (TypeVar, ParamSpec))
    }
    assert own <= set(public.__all__)
    assert all(getattr(public, key) is getattr(core, key) for key in public.__all__)
