"""Read and write Zarr on the host with all cores; chunks are validated before decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import Array
from linumpy.core.errors import InputError
from linumpy.store.remote import RemotePath, as_path, storage
from linumpy.store.untrusted_zarr import check_node, metadata_of

_STEP_LIMIT = 8


@contextmanager
def host_context() -> Iterator[None]:
    """Let arrays that are opened inside use all cores; see `linumpy.io.zarr_io.zarr_context`."""
    from zarr.registry import register_pipeline

    from linumpy.store.guarded_pipeline import GuardedZarrsCodecPipeline
    from linumpy.store.remote_pipeline import RemoteCodecPipeline
    from linumpy.store.zarr_settings import zarr_settings

    GuardedZarrsCodecPipeline.for_object_stores = RemoteCodecPipeline
    register_pipeline(GuardedZarrsCodecPipeline)
    settings = {
        "codec_pipeline.path": f"{GuardedZarrsCodecPipeline.__module__}."
        f"{GuardedZarrsCodecPipeline.__qualname__}",
        # a context for the CPU inside one for the GPU
        "buffer": "zarr.buffer.cpu.Buffer",
        "ndbuffer": "zarr.buffer.cpu.NDBuffer",
    }
    with zarr_settings(settings):
        yield


def uses_all_cores(array: Any) -> bool:
    """Whether a zarr array was opened so that all cores decode it.

    False for arrays opened outside `zarr_context`, those in other stores than local folders and
    object stores, and codecs that zarrs does not support.
    """
    from linumpy.store.zarr_adapter import codec_pipeline

    return bool(getattr(codec_pipeline(array), "uses_zarrs", False))


def read_on_host(array_or_path: Any, selection: Any = None, out: Array | None = None) -> Array:
    """Read a part of a Zarr array on all cores; see `linumpy.io.zarr_io.read_zarr`."""
    with host_context():
        array = _opened(array_or_path)
        parts, flips, shape = _resolve(array, selection)
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
            _read_into(array, parts, np.asarray(out))  # `out` itself; of a GPU: TypeError
        elif stride <= _STEP_LIMIT:
            # zarrs decodes boxes only: the box around the voxels, then every n-th of it
            box = tuple(
                slice(part.start, part.stop, 1) if isinstance(part, slice) else part
                for part in parts
            )
            steps = tuple(slice(None, None, p.step) for p in parts if isinstance(p, slice))
            sides = [p.stop - p.start for p in parts if isinstance(p, slice)]
            data = np.empty(sides, array.dtype)
            _read_into(array, box, data)
            out[...] = np.flip(data[steps], flips)
        else:
            out[...] = np.flip(np.asarray(array[parts]), flips)
        return out


def _opened(array_or_path: Any) -> Any:
    """Return the zarr array with the pipeline of the context that we are in."""
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


def _resolve(
    array: Any, selection: Any
) -> tuple[tuple[int | slice, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the selection with plain rising slices, the axes of the result to flip, its shape."""
    parts = selection if isinstance(selection, tuple) else (selection,)
    if selection is None:
        parts = ()
    dots = [axis for axis, part in enumerate(parts) if part is Ellipsis]
    missing = array.ndim - len(parts) + len(dots)
    if len(dots) > 1 or missing < 0:
        raise InputError(f"{array.store_path}: selection {selection} for {array.ndim} axes")
    fill = (slice(None),) * missing
    at = dots[0] if dots else len(parts)
    resolved: list[int | slice] = []
    flips: list[int] = []
    shape: list[int] = []
    for part, side in zip((*parts[:at], *fill, *parts[at + 1 :]), array.shape, strict=True):
        if isinstance(part, slice):
            chosen = range(*part.indices(side))
            if chosen.step < 0:
                flips.append(len(shape))
                chosen = chosen[::-1]
            shape.append(len(chosen))
            stop = chosen[-1] + 1 if chosen else chosen.start
            resolved.append(slice(chosen.start, stop, chosen.step))
            continue
        try:
            if isinstance(part, bool | np.bool_):
                raise TypeError
            resolved.append(range(side)[part])
        except (TypeError, IndexError):
            raise InputError(
                f"{array.store_path}: selection {selection} for the shape {array.shape}"
            ) from None
    return tuple(resolved), tuple(flips), tuple(shape)


def _read_into(array: Any, selection: tuple[int | slice, ...], out: np.ndarray) -> None:
    from zarr.buffer.cpu import NDBuffer

    array.get_basic_selection(selection, out=NDBuffer.from_numpy_array(out))
