"""Load the CUDA kernels of a package (``.cu`` files) at their first use."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from linumpy.core.compiled_kernels import use_compiled


@functools.cache
def _module(package: str, file: str, device_id: int) -> Any:
    import cupy

    use_compiled()
    source = (resources.files(package) / file).read_text()
    return cupy.RawModule(code=source, options=("--std=c++17",), backend="nvrtc")


@functools.cache
def _kernel(package: str, file: str, name: str, device_id: int) -> Any:
    return _module(package, file, device_id).get_function(name)


def load_kernel(package: str, file: str, name: str) -> Any:
    """Return a kernel of a package's ``.cu`` file for the current device."""
    import cupy

    return _kernel(package, file, name, cupy.cuda.Device().id)
