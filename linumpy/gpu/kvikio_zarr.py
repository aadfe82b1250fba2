"""Read uncompressed Zarr arrays into device memory: files by kvikio, boxes by one kernel.

>>> tile = read_raw_zarr(path, np.s_[:, :512, :512])

The strict sibling of `linumpy.gpu.zarr_io.read_zarr_to_gpu`, whose core it uses: it reads what
needs no decoding and refuses the rest, where the other finds another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from linumpy.core.device import Device, locate, missing_library
from linumpy.core.errors import InputError
from linumpy.gpu.zarr_io import array_layout, open_array, read_zarr_to_gpu
from linumpy.store.chunk_layout import ChunkLayout


def read_raw_zarr(
    array_or_path: Any,
    selection: Any = None,
    *,
    out: Any = None,
    n_threads: int | None = None,
) -> Any:
    """Read an uncompressed Zarr array, or a part of it, into device memory.

    The bytes of all chunks come through ``kvikio.CuFile.pread`` into contiguous scratch, with
    GPUDirect Storage where the machine has it, and are copied to their places on the device.

    Parameters
    ----------
    array_or_path
        A Zarr array (v2 or v3, sharded or not) in a local folder, or that folder.
    selection
        Integers, slices (steps from 1) and ellipsis, as for Zarr's basic indexing; None for all.
    out
        CuPy array to read into, of the selection's shape and the array's type; any strides.
    n_threads
        Threads of kvikio's pool; None for what it has (the machine's cores, 16 at most, or
        ``KVIKIO_NTHREADS``). The pool belongs to the process.

    Returns
    -------
    CuPy array of the selection's shape; `out` if given. Chunks that were never written are fill
    value.

    Raises
    ------
    NotImplementedError
        When the array is not raw, as `raw_layout` says; before a GPU is touched.
    InputError
        When a file is shorter than it must be (names it, with the bytes read and expected), a
        shard's index or a checksum is wrong, or `out` does not fit.
    DeviceError
        When there is no usable GPU or no kvikio.
    """
    if n_threads is not None and n_threads < 1:
        raise InputError(f"n_threads {n_threads}: expected 1 at least")
    array = _open_known(array_or_path)
    raw_layout(array)
    locate(Device("cuda"))
    _need_kvikio()
    with nullcontext() if n_threads is None else kvikio_settings(num_threads=n_threads):
        return read_zarr_to_gpu(array, selection, backend="kvikio", out=out)


def raw_layout(array: Any) -> ChunkLayout:
    """Return how an array's chunks are stored, if their bytes are the voxels'; needs no GPU.

    Parameters
    ----------
    array
        A Zarr array.

    Raises
    ------
    NotImplementedError
        When the store is no local folder, or chunks are compressed, filtered, encoded by a codec
        that is not known here, not in C order or not in the machine's byte order.
    """
    from zarr.storage import LocalStore

    def refuse(reason: object) -> NotImplementedError:
        return NotImplementedError(f"{array.store_path}: cannot be read as raw bytes: {reason}")

    if not isinstance(array.store_path.store, LocalStore):
        raise refuse(f"{type(array.store_path.store).__name__} is no local folder")
    try:
        layout = array_layout(array)
    except NotImplementedError as reason:
        raise refuse(reason) from reason
    if layout.compression is not None:
        raise refuse(f"compressed with {layout.compression}")
    if layout.byteswapped:
        raise refuse("its byte order is not the machine's")
    sides = zip(layout.chunk_shape, layout.strides, strict=True)
    # The stride of an axis of length 1 says nothing about the order of bytes.
    strides = [stride for side, stride in sides if side > 1]
    if strides != sorted(strides, reverse=True):
        raise refuse("chunks are not in C order")
    return layout


def _open_known(array_or_path: Any) -> Any:
    try:
        return open_array(array_or_path)
    except InputError as error:
        # Zarr and numcodecs each have an error of this name.
        if type(error.__cause__).__name__ != "UnknownCodecError":
            raise
        raise NotImplementedError(
            f"{array_or_path}: cannot be read as raw bytes: {error.__cause__}"
        ) from error


@contextmanager
def kvikio_settings(**settings: Any) -> Iterator[None]:
    """Change kvikio's defaults (``num_threads``, ``compat_mode``) until the block ends.

    Raises
    ------
    DeviceError
        When kvikio cannot be imported.
    """
    _need_kvikio()
    import kvikio.defaults

    with kvikio.defaults.set(settings):
        yield


def _need_kvikio() -> None:
    """Import kvikio and let the core set it up, which it does once and not over our settings."""
    from linumpy.gpu.fetch import KvikioFetch

    try:
        import kvikio.defaults  # noqa: F401

        KvikioFetch().close()
    except Exception as error:
        raise missing_library("reading raw bytes to a GPU", "kvikio", error) from error
