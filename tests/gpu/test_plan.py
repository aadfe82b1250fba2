"""Selections taken apart into copies from chunks: replayed with NumPy, compared with Zarr."""

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)

from linumpy.core.errors import InputError
from linumpy.gpu.objects import stored_object
from linumpy.gpu.plan import ReadItem, batches, element_width, plan_read
from linumpy.gpu.requests import box_of, kept_axes
from linumpy.gpu.zarr_io import array_layout
from linumpy.store.chunk_layout import UnsupportedLayout
from linumpy.store.host_codec import decode_chunk
from linumpy.store.zarr_adapter import array_parts


def replay(array, selection=Ellipsis, batch_nbytes=1 << 20):
    """Read as the device does, every kernel replaced by its NumPy meaning."""
    shape, parts = array_parts(array, selection)
    layout = array_layout(array)
    out = np.full(shape, 77, layout.dtype)
    axes, items = (), []
    for coordinates, chunk_selection, out_selection in parts:
        box = box_of(chunk_selection, out_selection, ())
        axes = kept_axes(chunk_selection, ())
        key = array.metadata.encode_chunk_key(coordinates)
        items.append(ReadItem(stored_object(array.store_path / key), box))
    if not items:
        return out
    strides = [0] * array.ndim
    for axis, stride in zip(axes, out.strides, strict=True):
        strides[axis] = stride
    plan = plan_read(items, layout, strides)
    base = out.reshape(-1).view(np.uint8) if out.ndim else out.reshape(1).view(np.uint8)
    fill = np.frombuffer(layout.fill, layout.dtype)[0]

    def target(row):
        room = base[plan.target[row] :][: layout.dtype.itemsize].view(layout.dtype)
        return as_strided(room, tuple(plan.count[row]), plan.target_strides)

    for row in np.flatnonzero(~plan.present):
        target(row)[...] = fill
    seen = []
    for rows in batches(plan, layout, batch_nbytes):
        for row in rows:
            data = plan.objects[plan.which[row]].read(plan.offset[row], plan.nbytes[row])
            decoded = decode_chunk(data, layout, plan.name(row))
            stored = layout.dtype.newbyteorder() if layout.byteswapped else layout.dtype
            source = as_strided(
                decoded[plan.source[row] :][: layout.dtype.itemsize].view(stored),
                tuple(plan.count[row]),
                plan.source_strides,
            )
            target(row)[...] = source
            seen.append(row)
    assert sorted(seen) == list(np.flatnonzero(plan.present))
    return out


CODECS = {
    "raw": [],
    "crc": [Crc32cCodec()],
    "zstd": [ZstdCodec(level=1)],
    "zstd_crc": [ZstdCodec(level=1, checksum=True), Crc32cCodec()],
    "gzip": [GzipCodec(level=1)],
    "blosc": [BloscCodec(cname="lz4", shuffle="shuffle")],
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4", "f8", "c8", "c16", "?"])
def test_every_type_and_codec_is_replayed_as_zarr_reads_it(tmp_path, rng, codec, dtype):
    data = (3 * rng.integers(0, 2, (11, 13), dtype=np.uint8)).astype(dtype)
    array = zarr.create_array(
        tmp_path / "a", shape=data.shape, dtype=dtype, chunks=(4, 5), compressors=CODECS[codec]
    )
    array[...] = data
    assert np.array_equal(replay(array), data)
    assert np.array_equal(replay(array, (slice(1, 11, 3), 7)), data[1:11:3, 7])


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_regular_selection_of_any_chunking(tmp_path_factory, data):
    n_axes = data.draw(st.integers(0, 4))
    shape = tuple(data.draw(st.integers(0, 9)) for _ in range(n_axes))
    inner = tuple(data.draw(st.integers(1, 4)) for _ in range(n_axes))
    shards = tuple(i * data.draw(st.integers(1, 3)) for i in inner)
    sharded = n_axes > 0 and data.draw(st.booleans())
    order = data.draw(st.permutations(range(n_axes)))
    location = data.draw(st.sampled_from(["start", "end"]))
    folder = tmp_path_factory.mktemp("a")
    filters = [TransposeCodec(order=order)] if n_axes and data.draw(st.booleans()) else []
    from zarr.codecs import ShardingCodec

    serializer = BytesCodec(endian=data.draw(st.sampled_from(["little", "big"])))
    chain = [*filters, serializer, ZstdCodec(level=1), Crc32cCodec()]
    if sharded:
        codec = ShardingCodec(chunk_shape=inner, codecs=chain, index_location=location)
        keywords = {"chunks": shards, "serializer": codec, "compressors": []}
    else:
        keywords = {
            "chunks": inner,
            "serializer": serializer,
            "filters": filters,
            "compressors": chain[-2:],
        }
    array = zarr.create_array(folder, shape=shape, dtype="i4", fill_value=5, **keywords)
    truth = np.full(shape, 5, np.int32)
    window = tuple(slice(0, data.draw(st.integers(0, n))) for n in shape)
    truth[window] = np.arange(truth[window].size).reshape(truth[window].shape)
    if truth[window].size:
        array[window] = truth[window]
    selection = []
    for n in shape:
        if n and data.draw(st.booleans()):
            selection.append(data.draw(st.integers(0, n - 1)))
        else:
            low = data.draw(st.integers(0, n))
            high = data.draw(st.integers(low, n))
            selection.append(slice(low, high, data.draw(st.integers(1, 4))))
    selection = tuple(selection)
    assert np.array_equal(replay(array, selection), truth[selection])


def test_zarr_v2_in_fortran_order_with_filters_refused(tmp_path, rng):
    data = rng.normal(size=(7, 9)).astype(">f4")
    array = zarr.create_array(
        tmp_path / "f", shape=data.shape, dtype=">f4", chunks=(3, 4), order="F", zarr_format=2
    )
    array[...] = data
    assert np.array_equal(replay(array), data)
    from numcodecs import Delta

    filtered = zarr.create_array(
        tmp_path / "d", shape=(4,), dtype="i4", chunks=(4,), zarr_format=2, filters=[Delta("i4")]
    )
    with pytest.raises(UnsupportedLayout, match="filters"):
        array_layout(filtered)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "wrong checksum"),
        (lambda b: b[:50], "its index alone takes|wrong checksum"),
        (lambda b: b"", "its index alone takes"),
    ],
)
def test_a_damaged_shard_index_is_named(tmp_path, damage, message):
    array = zarr.create_array(
        tmp_path / "s", shape=(16, 16), dtype="f4", chunks=(4, 4), shards=(16, 16)
    )
    array[...] = np.arange(256).reshape(16, 16)
    shard = tmp_path / "s" / "c" / "0" / "0"
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(InputError, match=message) as caught:
        replay(array)
    assert str(shard) in str(caught.value)


def test_an_index_entry_out_of_the_shard_is_named(tmp_path):
    from zarr.codecs import ShardingCodec

    codec = ShardingCodec(chunk_shape=(4,), codecs=[BytesCodec()], index_codecs=[BytesCodec()])
    array = zarr.create_array(
        tmp_path / "s", shape=(8,), dtype="u1", chunks=(8,), serializer=codec, compressors=[]
    )
    array[...] = np.arange(1, 9)
    shard = tmp_path / "s" / "c" / "0"
    whole = bytearray(shard.read_bytes())
    whole[-8:] = (1 << 40).to_bytes(8, "little")
    shard.write_bytes(whole)
    with pytest.raises(InputError, match=r"inner chunk \(1,\) at byte 4, 1099511627776 long"):
        replay(array)


def test_a_chunk_far_longer_than_it_decodes_to_is_refused(tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(4,), dtype="u1", chunks=(4,), compressors=[])
    (tmp_path / "a" / "c").mkdir()
    (tmp_path / "a" / "c" / "0").write_bytes(bytes(10_000))
    with pytest.raises(InputError, match="10000 stored bytes, expected at most"):
        replay(array)


@given(
    st.integers(0, 4).map(lambda k: 1 << k),
    st.lists(st.integers(1, 64), min_size=1, max_size=5),
    st.lists(st.integers(0, 64), min_size=1, max_size=5),
)
def test_the_element_width_divides_all_it_must(itemsize, lengths, addresses):
    counts = np.array([[3, n] for n in lengths])
    strides = np.array([[max(lengths) * itemsize, itemsize]] * 2)
    at = np.array(addresses) * itemsize
    width = element_width(itemsize, counts, strides, (at,))
    assert itemsize <= width <= 16
    assert not (counts[:, -1] * itemsize % width).any() and not (at % width).any()
    assert width == 16 or (
        (counts[:, -1] * itemsize % (2 * width)).any()
        or (at % (2 * width)).any()
        or (strides[:, 0] % (2 * width)).any()
    )
