"""All ways to read and write Zarr, and their results as NumPy arrays."""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import zarr
from hypothesis.extra import numpy as npst
from zarr.testing import strategies as zst

from linumpy.gpu.zarr_io import CODECS, PIPELINE, gpu_zarr_context
from linumpy.io.zarr_io import zarr_context

from . import needs_gpu


@contextmanager
def ours_on_numpy():
    """Our pipeline and codecs by configuration alone; arrays stay NumPy arrays."""
    from linumpy.gpu import codec_pipeline, codecs  # noqa: F401 - registers them

    # as a whole: a name with a dot in it would be taken for a path of two keys
    chosen = {**zarr.config.get("codecs"), **CODECS}
    with zarr.config.set({"codec_pipeline.path": PIPELINE, "codecs": chosen}):
        yield


WAYS = {
    "zarr": nullcontext,
    "zarrs": zarr_context,
    "ours": ours_on_numpy,
    "cupy": gpu_zarr_context,
}
ON_HOST = ["zarr", "zarrs", "ours"]
EVERY_WAY = [*ON_HOST, pytest.param("cupy", marks=needs_gpu)]


def ways_here():
    """Names of the ways that this machine has."""
    from ..conftest import HAS_GPU

    return [*ON_HOST, "cupy"] if HAS_GPU else ON_HOST


def on_host(result):
    """Return what a read gave as a NumPy array."""
    return np.asarray(result.get() if hasattr(result, "get") else result)


def as_given_to(way, array):
    """Return `array` as one would assign it: a CuPy array on the device."""
    if way != "cupy":
        return array
    import cupy

    return cupy.asarray(array)


def numeric_dtypes():
    """Types of numbers that Zarr, NumPy and CuPy all have, in the machine's byte order."""
    return (
        npst.boolean_dtypes()
        | npst.integer_dtypes(endianness="=")
        | npst.unsigned_integer_dtypes(endianness="=")
        | npst.floating_dtypes(endianness="=", sizes=(16, 32, 64))
        | npst.complex_number_dtypes(endianness="=", sizes=(64, 128))
    )


def numeric_arrays(shapes=zst.array_shapes):
    """Arrays of numbers; any bits, NaN and negative zero among them."""
    return numeric_dtypes().flatmap(lambda dtype: zst.numpy_arrays(shapes=shapes, dtype=dtype))
