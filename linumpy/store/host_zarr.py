"""Read and write Zarr on the host with all cores; chunks are validated before decoding."""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import Array
from linumpy.core.errors import InputError
from linumpy.store.host_context import host_context
from linumpy.store.plain_arrays import PlainArray
from linumpy.store.remote import RemotePath, as_path, storage
from linumpy.store.selections import as_box, resolve
from linumpy.store.untrusted_zarr import check_node, metadata_of

_STEP_LIMIT = 8


def uses_all_cores(array: Any) -> bool:
    """Whether a zarr array was opened so that all cores decode it.

    False for arrays opened outside `zarr_context`, those in other stores than local folders and
    object stores, and codecs that zarrs does not support.
    """
    if isinstance(array, PlainArray):
        return True
    from linumpy.store.zarr_adapter import codec_pipeline

    return bool(getattr(codec_pipeline(array), "uses_zarrs", False))


def read_on_host(array_or_path: Any, selection: Any = None, out: Array | None = None) -> Array:
    """Read a part of a Zarr array on all cores; see `linumpy.io.zarr_io.read_zarr`."""
    with nullcontext() if isinstance(array_or_path, PlainArray) else host_context():
        array = _opened(array_or_path)
        parts, flips, shape = resolve(array, selection)
        if out is not None and (out.shape != shape or out.dtype != array.dtype):
            raise InputError(
                f"{array.store_path}: out is {out.dtype} {out.shape}, "
                f"the selection {array.dtype} {shape}"
            )
        if out is None:
            out = np.empty(shape, array.dtype)
        if 0 in shape:
            return out
        stride = prod(part.step for part in parts if isinstance(part, slice))
        if stride == 1 and not flips and out.flags.c_contiguous:
            read_into(array, parts, np.asarray(out))  # `out` itself; of a GPU: TypeError
        elif stride <= _STEP_LIMIT:
            # zarrs decodes boxes only: the box around the voxels, then every n-th of it
            box = tuple(
                slice(part.start, part.stop, 1) if isinstance(part, slice) else part
                for part in parts
            )
            steps = tuple(slice(None, None, p.step) for p in parts if isinstance(p, slice))
            sides = [p.stop - p.start for p in parts if isinstance(p, slice)]
            data = np.empty(sides, array.dtype)
            read_into(array, box, data)
            out[...] = np.flip(data[steps], flips)
        else:
            out[...] = np.flip(np.asarray(array[parts]), flips)
        return out


def _opened(array_or_path: Any) -> Any:
    """Return the zarr array with the pipeline of the context that we are in."""
    if isinstance(array_or_path, PlainArray):
        return array_or_path
    import zarr

    from linumpy.store.zarr_adapter import reopened

    if isinstance(array_or_path, zarr.Array):
        if uses_all_cores(array_or_path):
            return array_or_path
        return reopened(array_or_path)
    with metadata_of(array_or_path):
        if isinstance(array_or_path, str | Path):
            path = as_path(array_or_path)
            if not isinstance(path, RemotePath):
                check_node(path)
        try:
            found = zarr.open(storage(array_or_path), mode="r")
        except FileNotFoundError as error:
            raise InputError(f"{array_or_path}: no Zarr array") from error
    if not isinstance(found, zarr.Array):
        raise InputError(f"{array_or_path}: a Zarr group, expected an array")
    return found


def read_into(array: Any, selection: tuple[int | slice, ...], out: np.ndarray) -> None:
    """Read a part of an array into memory of its shape, type and order C.

    Parameters
    ----------
    array
        Of Zarr, or plain.
    selection
        Integers, and slices with a step of 1.
    """
    if isinstance(array, PlainArray):
        parts, _, _ = resolve(array, selection)
        box = as_box(parts)
        array.read_into(box, out.reshape([part.stop - part.start for part in box]))
        return
    from zarr.buffer.cpu import NDBuffer

    array.get_basic_selection(selection, out=NDBuffer.from_numpy_array(out))
