"""Zarr's own strategies and state machines, over every pair of ways to write and to read."""

import shutil
import warnings

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from zarr.codecs import ShardingCodec
from zarr.storage import LocalStore, MemoryStore
from zarr.testing import strategies as zst

from linumpy.core.errors import InputError

from .contract_ways import (
    EVERY_WAY,
    WAYS,
    as_given_to,
    numeric_arrays,
    on_host,
    ways_here,
)

# zarrs rejects a fill value that it does not know; Zarr then serves
pytestmark = pytest.mark.filterwarnings("ignore:Array is unsupported by Zarrs")

SETTINGS = dict(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.fixture
def stores(tmp_path):
    """A strategy: the same local folder, empty again, or a store in memory."""

    def empty_folder():
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        return LocalStore(tmp_path / "store")

    return st.sampled_from([empty_folder, MemoryStore]).map(lambda make: make())


def draw_array(data, way, stores, shapes=zst.array_shapes):
    """Let Zarr's strategy create and fill an array in one way; returns it and its values."""
    values = data.draw(numeric_arrays(shapes), label="values")
    with WAYS[way](), warnings.catch_warnings():
        # assigns NumPy values, which on the device is the slow path, with a warning
        warnings.simplefilter("ignore")
        strategy = zst.arrays(
            stores=stores,
            arrays=st.just(values),
            paths=st.just("a"),
            array_names=st.just("b"),
            attrs=st.none(),
        )
        try:
            array = data.draw(strategy, label="array")
        except InputError as error:
            assert "shards within shards" in str(error)
            reject()
    # Zarr draws shards within shards since 3.2; linumpy refuses to open and to create them.
    assume(
        not any(isinstance(c, ShardingCodec) for shard in shards_of(array) for c in shard.codecs)
    )
    return array, values.copy()


def shards_of(array):
    """Return the sharding codecs of an array, of which there is one at most."""
    codecs = array.metadata.codecs if array.metadata.zarr_format == 3 else ()
    return [codec for codec in codecs if isinstance(codec, ShardingCodec)]


def reopened(array, mode="r+"):
    """Open the same array again, with the codecs and buffers that are configured now."""
    return zarr.open_array(array.store, path=array.path, mode=mode)


def assert_same(result, expected):
    """Same type, shape and values; zeros of real numbers with their sign.

    Zarr takes a chunk for one of fill value alone, and does not store it, when NaNs of other bits
    or complex zeros of other sign are all that differs.
    """
    result = on_host(result)
    np.testing.assert_array_equal(result, expected, strict=True)
    if expected.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[numbers]), np.signbit(expected[numbers]))


@st.composite
def orthogonal_indices(draw, shape):
    """Zarr's strategy, but some of the axes are dropped by an integer; with NumPy's form of it.

    What Zarr's strategy gives for NumPy differs between its versions, and is not used.
    """
    parts, _ = draw(zst.orthogonal_indices(shape=shape))
    chosen = [np.arange(n)[part] for part, n in zip(parts, shape, strict=True)]
    for axis, part in enumerate(chosen):
        if part.ndim and part.size == 1 and draw(st.booleans()):
            parts = (*parts[:axis], int(part[0]), *parts[axis + 1 :])
            chosen[axis] = part[0]
    kept = iter(np.ix_(*(part for part in chosen if part.ndim)))
    return parts, tuple(np.broadcast_arrays(*(next(kept) if p.ndim else p for p in chosen)))


def each_voxel_once(selection, shape):
    """Whether no index is given twice, from the front and from the back perhaps."""
    chosen = [np.arange(n)[part] for part, n in zip(selection, shape, strict=True)]
    return all(part.size == np.unique(part).size for part in chosen)


@st.composite
def blocks(draw, array):
    """Which stored objects to take along each axis, and the box of the array that they cover."""
    sides = array.shards or array.chunks
    selection, box = [], []
    for length, side in zip(array.shape, sides, strict=True):
        low = draw(st.integers(0, max(0, -(-length // max(1, side)) - 1)))
        high = draw(st.integers(low + 1, max(low + 1, -(-length // max(1, side)))))
        selection.append(slice(low, high))
        box.append(slice(low * side, high * side))
    return tuple(selection), tuple(box)


@pytest.mark.slow
@pytest.mark.parametrize("writer", EVERY_WAY)
@settings(max_examples=30, **SETTINGS)
@given(data=st.data())
def test_written_one_way_it_is_read_in_all(stores, writer, data):
    array, values = draw_array(data, writer, stores)
    basic = data.draw(zst.basic_indices(shape=values.shape), label="basic")
    ours, numpys = data.draw(orthogonal_indices(values.shape), label="orthogonal")
    mask = data.draw(npst.arrays(bool, values.shape), label="mask")
    block, box = data.draw(blocks(array), label="block")
    for reader in ways_here():
        with WAYS[reader]():
            again = reopened(array, "r")
            assert_same(again[...], values)
            assert_same(again[basic], np.asarray(values[basic]))
            assert_same(again.oindex[ours], np.asarray(values[numpys]))
            # for chunks of side 0 Zarr refuses both by dividing by it
            if 0 not in array.chunks:
                assert_same(again.vindex[mask], values[mask])
            # where there is no voxel there is, since Zarr 3.2, no block
            if values.size:
                assert_same(again.blocks[block], values[box])


@pytest.mark.slow
@pytest.mark.parametrize("writer", EVERY_WAY)
@settings(max_examples=30, **SETTINGS)
@given(data=st.data())
def test_any_part_is_overwritten(stores, writer, data):
    creator = data.draw(st.sampled_from(ways_here()), label="creator")
    array, values = draw_array(data, creator, stores)

    def draw_new(shape):
        new = data.draw(npst.arrays(values.dtype, shape), label="new values")
        # CuPy assigns a single -0.0 as 0.0, which adding 0 makes of it too.
        return new + new.dtype.type(0) if writer == "cupy" and new.ndim == 0 else new

    with WAYS[writer]():
        again = reopened(array)
        basic = data.draw(zst.basic_indices(shape=values.shape), label="basic")
        new = draw_new(np.shape(values[basic]))
        again[basic] = as_given_to(writer, new)
        values[basic] = new
        assert_same(again[...], values)

        ours, numpys = data.draw(orthogonal_indices(values.shape), label="orthogonal")
        # Zarr cannot write these into shards; ours on the device does
        served = array.shards is None or writer == "cupy"
        if served and each_voxel_once(ours, values.shape):
            new = draw_new(np.shape(values[numpys]))
            again.oindex[ours] = as_given_to(writer, new)
            values[numpys] = new
            assert_same(again[...], values)

        if 0 not in array.chunks:
            mask = data.draw(npst.arrays(bool, values.shape), label="mask")
            new = draw_new(values[mask].shape)
            again.vindex[mask] = as_given_to(writer, new)
            values[mask] = new
        if values.size:
            block, box = data.draw(blocks(array), label="block")
            new = draw_new(values[box].shape)
            again.blocks[block] = as_given_to(writer, new)
            values[box] = new
    for reader in ways_here():
        with WAYS[reader]():
            assert_same(reopened(array, "r")[...], values)
