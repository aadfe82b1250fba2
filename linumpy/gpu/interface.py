"""Detect the cut face on the current GPU; arrays of the host are copied there."""

from __future__ import annotations

from linumpy.core.device import Array, Device, locate, to_device
from linumpy.geometry.interface import find_tissue_interface as _find_tissue_interface


def find_tissue_interface(
    vol: Array,
    s_xy: int = 15,
    s_z: float = 2.0,
    *,
    use_log: bool = True,
    valid: Array | None = None,
    axis: int = -1,
) -> Array:
    """Find the first tissue voxel of every A-line; the answer stays on the device.

    `vol` and `valid` are copied to the current GPU if they lie on the host. Parameters and answer
    are those of `linumpy.geometry.interface.find_tissue_interface`.

    Raises
    ------
    DeviceError
        When there is no usable GPU.
    """
    gpu = locate(Device("cuda"))
    mask = None if valid is None else to_device(valid, gpu)
    return _find_tissue_interface(
        to_device(vol, gpu), s_xy, s_z, use_log=use_log, valid=mask, axis=axis
    )
