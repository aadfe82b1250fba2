"""Read and write Zarr arrays with all cores or on the device, by one pair of names.

Inside `zarr_context` ordinary Zarr access is fast: on the CPU through the zarrs codec pipeline,
whose threads take every core that this process may use, on a GPU through the pipeline of
`linumpy.gpu`. Nothing here imports zarr or touches CUDA at import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from linumpy.core.device import CPU, Array, Device, locate
from linumpy.core.device import device as on_device
from linumpy.store.host_context import host_context
from linumpy.store.host_zarr import read_on_host
from linumpy.store.host_zarr import uses_all_cores as uses_all_cores


@contextmanager
def zarr_context(device: Device = CPU) -> Iterator[None]:
    """Make Zarr access inside the block fast on `device`.

    On the CPU, arrays that are opened inside decode and encode on all cores, and their chunks
    are checked before they are decoded (`linumpy.store.chunk_guard`); ``zarr.open(...)[...]`` gives
    NumPy arrays. On a GPU it gives CuPy arrays; see `linumpy.gpu.zarr_io.gpu_zarr_context`.

    The configuration of before comes back at the end, also after an exception; contexts nest,
    and those of several threads may overlap. An array keeps the pipeline that it was opened
    with. Zarr's configuration belongs to the whole process: the context entered last rules.

    The number of threads is that of the cores this process may run on (its affinity and, to
    decode, the limit of its control group), or what ``RAYON_NUM_THREADS`` in the environment
    says. Zarr's own setting, `threading.max_workers`, does not change it.

    Raises
    ------
    DeviceError
        When `device` is a GPU that cannot be used.
    """
    if device.is_gpu:
        from linumpy.gpu.zarr_io import gpu_zarr_context

        with gpu_zarr_context(device=locate(device).index):
            yield
        return

    with host_context():
        yield


def read_zarr(
    array_or_path: Any,
    selection: Any = None,
    *,
    device: Device = CPU,
    out: Array | None = None,
) -> Array:
    """Read a part of a Zarr array into memory, decoding on all cores or on the GPU.

    Parameters
    ----------
    array_or_path
        A zarr array, however opened, or the folder of one, which may be remote.
    selection
        What basic indexing of NumPy takes: integers, slices of any step, an ellipsis, or a tuple
        of them. None for everything.
    device
        Where the result is to live.
    out
        Array of the result's shape and dtype, on `device`, to decode into.

    Returns
    -------
    Array
        `out`, or a new array: NumPy on the CPU, CuPy on a GPU; 0-d where only integers select.

    Raises
    ------
    InputError
        When there is no such array, `out` or `selection` does not fit, or a chunk is damaged;
        names the file.
    DeviceError
        When `device` is a GPU that cannot be used.
    """
    if device.is_gpu:
        from linumpy.gpu.zarr_io import read_zarr_to_gpu

        with on_device(device):
            found: Array = read_zarr_to_gpu(array_or_path, selection, out=out)
            return found
    return read_on_host(array_or_path, selection, out)
