"""N-dimensional buffers of a `gpu_zarr_context`: Zarr's own, on the chosen device."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from zarr.buffer import gpu
from zarr.registry import register_ndbuffer

from linumpy.gpu.session import current_session


class DeviceNDBuffer(gpu.NDBuffer):
    """Device memory of the session, whichever thread of Zarr's asks for it.

    Values are in the machine's byte order, the only one that CuPy has.
    """

    @classmethod
    def create(
        cls, *, shape: Any, dtype: Any, order: Any = "C", fill_value: Any | None = None
    ) -> Self:
        """Return a buffer of `fill_value`, or of zeros."""
        with current_session().on_device():
            return super().create(
                shape=shape,
                dtype=np.dtype(dtype).newbyteorder("="),
                order=order,
                fill_value=fill_value,
            )

    @classmethod
    def empty(cls, shape: Any, dtype: Any, order: Any = "C") -> Self:
        """Return a buffer of anything."""
        with current_session().on_device():
            return super().empty(shape=shape, dtype=np.dtype(dtype).newbyteorder("="), order=order)


register_ndbuffer(DeviceNDBuffer)
