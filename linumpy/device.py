"""The device policy: the only place that picks a device or moves an array between devices.

Nothing here touches CUDA at import. Library functions take NumPy or CuPy arrays and answer in
kind; they find their array module with `namespace` and SciPy's twin with `ndimage_of`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.errors import DeviceError

Array = Any
"""A NumPy or CuPy array."""


@dataclass(frozen=True)
class Device:
    """A place where arrays live and are computed on: ``cpu`` or ``cuda``."""

    kind: str

    @property
    def is_gpu(self) -> bool:
        """Whether arrays of this device are CuPy arrays."""
        return self.kind == "cuda"


CPU = Device("cpu")


def resolve(use_gpu: bool) -> Device:
    """Choose the device of this process, once.

    Parameters
    ----------
    use_gpu
        Whether the user asked for a GPU. With several visible GPUs the first is used: which ones
        are visible is decided outside (``CUDA_VISIBLE_DEVICES``).

    Raises
    ------
    DeviceError
        When a GPU is asked for and cannot be used. There is no fallback.
    """
    if not use_gpu:
        return CPU
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            "--use_gpu needs CuPy, which cannot be imported here "
            f"({error}); install linumpy[gpu] (CUDA 12) or linumpy[gpu13] (CUDA 13)"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise DeviceError(
            f"--use_gpu: no usable GPU ({error}; CUDA_VISIBLE_DEVICES={visible!r})"
        ) from error
    if count == 0:
        raise DeviceError("--use_gpu: the CUDA driver reports no device")
    return Device("cuda")


def is_device_array(array: object) -> bool:
    """Whether `array` lives on a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def namespace(*arrays: object) -> Any:
    """Return the module, numpy or cupy, that the arrays belong to."""
    if any(is_device_array(a) for a in arrays):
        import cupy

        return cupy
    return np


def ndimage_of(array: object) -> Any:
    """Return ``scipy.ndimage`` or its CuPy twin, by where `array` lives."""
    if is_device_array(array):
        import cupyx.scipy.ndimage

        return cupyx.scipy.ndimage
    import scipy.ndimage

    return scipy.ndimage


def to_host(array: Array) -> np.ndarray:
    """Return `array` as a NumPy array, copied from the device only if it lives there."""
    if is_device_array(array):
        return np.asarray(array.get())
    return np.asarray(array)


def to_device(array: Array, device: Device) -> Array:
    """Return `array` on `device`, copied only if it is not there yet."""
    if device.is_gpu:
        import cupy

        return cupy.asarray(array)
    return to_host(array)


def like(array: Array, reference: Array) -> Array:
    """Return `array` on the device where `reference` lives."""
    return to_device(array, Device("cuda") if is_device_array(reference) else CPU)
