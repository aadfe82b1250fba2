"""Plain arrays compared with Zarr and tensorstore: same metadata, same voxels, same files."""

import copy
import itertools
import json
import threading

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec

from linumpy.core.errors import InputError
from linumpy.io.zarr_io import zarr_context
from linumpy.store.plain_arrays import PlainArray, PlainGroup, create_array
from linumpy.store.plain_metadata import array_document, parse_array, read_document

SHAPE, CHUNKS, SHARDS = (20, 45, 33), (8, 8, 16), (16, 32, 32)
LAYOUTS = {
    "ours": dict(compressors=[ZstdCodec(level=1), Crc32cCodec()], shards=SHARDS),
    "zstd": dict(compressors=[ZstdCodec(level=3, checksum=True)], shards=SHARDS),
    "blosc": dict(compressors=[BloscCodec(cname="lz4", typesize=4)], shards=SHARDS),
    "raw": dict(compressors=None, shards=SHARDS),
    "chunks": dict(compressors=[ZstdCodec(level=1), Crc32cCodec()]),
    "raw chunks": dict(compressors=None),
    "v2": dict(compressors=numcodecs.Zstd(level=3)),
    "v2 blosc": dict(
        compressors=numcodecs.Blosc("lz4", 5, 1),
        chunk_key_encoding={"name": "v2", "separator": "/"},
    ),
    "v2 raw": dict(compressors=None),
}
SELECTIONS = [
    np.s_[...],
    np.s_[3],
    np.s_[-1, 2:44],
    np.s_[:, 5, 7:8],
    np.s_[4:5, :, 32:],
    np.s_[..., 0],
    np.s_[8:16, 8:16, 16:32],
    np.s_[3:3],
    np.s_[1:19:2, 3:9],
    np.s_[:, [1, 44]],
    np.s_[1, 2, 3],
]


@pytest.fixture
def data(rng):
    return rng.normal(size=SHAPE).astype("f4").round(2)


def by_zarr(folder, data, layout):
    """Write an array with Zarr, of which one stored object is missing, and open it plainly."""
    group = zarr.create_group(folder, zarr_format=2 if layout.startswith("v2") else 3)
    array = group.create_array(
        "0", shape=data.shape, dtype=data.dtype, chunks=CHUNKS, fill_value=7, **LAYOUTS[layout]
    )
    array[:, :, :32] = data[:, :, :32]
    found = PlainGroup.open(folder)["0"]
    assert isinstance(found, PlainArray)
    return array, found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_selections_hold_what_zarr_reads(tmp_path, data, layout):
    array, plain = by_zarr(tmp_path / "g", data, layout)
    for selection in SELECTIONS:
        expected = array[selection]
        found = plain[selection]
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected, str(selection))
    assert (plain.shape, plain.chunks, plain.shards) == (array.shape, array.chunks, array.shards)
    np.testing.assert_array_equal(np.asarray(plain), array[...])
    assert plain.metadata == array.metadata and plain.path == array.path


def test_an_index_before_the_chunks_is_found(tmp_path, data):
    codec = ShardingCodec(
        chunk_shape=CHUNKS, codecs=[zarr.codecs.BytesCodec()], index_location="start"
    )
    zarr.create_array(
        tmp_path / "0", shape=SHAPE, dtype="f4", chunks=SHARDS, serializer=codec, compressors=None
    )[...] = data
    metadata = parse_array(read_document(tmp_path / "0"))
    assert not metadata.layout.shard.at_end
    np.testing.assert_array_equal(PlainArray(tmp_path, "0", metadata)[...], data)


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "u2", "i8", "c8"])
def test_what_is_written_is_what_zarr_writes(tmp_path, data, dtype):
    """Metadata, and the bytes of every shard; one that holds fill value alone is no file."""
    data = (data * 40).astype(dtype)
    data[:, :32, :32] = 0
    plain = create_array(tmp_path / "a", "labels/0", SHAPE, CHUNKS, SHARDS, dtype, "zyx")
    plain[...] = data
    with zarr_context():
        array = zarr.create_group(tmp_path / "b").create_array(
            "labels/0",
            shape=SHAPE,
            dtype=dtype,
            dimension_names="zyx",
            fill_value=0,
            chunks=CHUNKS,
            **LAYOUTS["ours"],
        )
        array[...] = data
    assert plain.metadata.to_dict() == array.metadata.to_dict()
    shards = [
        {str(f.relative_to(tmp_path / n)): f.read_bytes() for f in (tmp_path / n).rglob("c/*/*/*")}
        for n in "ab"
    ]
    assert len(shards[0]) == 6 and shards[0] == shards[1]


def test_independent_readers_agree(tmp_path, data):
    plain = create_array(tmp_path / "a", "labels/0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    plain[:16] = data[:16]
    plain[16:] = data[16:]
    store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a/labels/0")}}
    read = tensorstore.open(store).result()
    assert read.domain.labels == ("z", "y", "x")
    np.testing.assert_array_equal(read.read().result(), data)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "a")["labels/0"][...], data)
    with zarr_context():
        np.testing.assert_array_equal(zarr.open_group(tmp_path / "a")["labels"]["0"][...], data)
    np.testing.assert_array_equal(PlainGroup.open(tmp_path / "a")["labels/0"][...], data)


def test_a_part_of_a_shard_is_written_by_zarr(tmp_path, data):
    plain = create_array(tmp_path / "a", "0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    plain[...] = 1
    plain[3, 2:5] = data[3, 2:5]
    expected = np.ones_like(data)
    expected[3, 2:5] = data[3, 2:5]
    np.testing.assert_array_equal(plain[...], expected)
    plain[...] = 0
    assert not list((tmp_path / "a").rglob("c/*/*/*"))


def test_what_is_opened_for_reading_is_not_written(tmp_path, data):
    create_array(tmp_path / "a", "0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")[...] = data
    with pytest.raises(ValueError, match="read-only"):
        PlainGroup.open(tmp_path / "a")["0"][...] = 1


def test_shards_that_chunks_do_not_divide_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"shards \(16, 30, 32\) of chunks"):
        create_array(tmp_path / "a", "0", SHAPE, CHUNKS, (16, 30, 32), "f4", "zyx")


OTHERS = {
    "gzip": dict(compressors=[GzipCodec()]),
    "big-endian": dict(serializer=zarr.codecs.BytesCodec(endian="big")),
    "half": dict(dtype="f2"),
    "transposed": dict(filters=[zarr.codecs.TransposeCodec(order=(2, 1, 0))]),
    "keys of v2": dict(chunk_key_encoding={"name": "v2", "separator": "/"}),
    "fill value": dict(fill_value=float("nan")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts_are_read_by_zarr(tmp_path, data, name):
    group = zarr.create_group(tmp_path / "g")
    options = {"dtype": "f4", **OTHERS[name]}
    group.create_array("0", shape=SHAPE, chunks=CHUNKS, **options)[...] = data
    found = PlainGroup.open(tmp_path / "g")["0"]
    assert isinstance(found, zarr.Array)
    np.testing.assert_array_equal(found[...], data.astype(options["dtype"]))


def test_a_group_with_more_than_attributes_is_left_to_zarr(tmp_path):
    zarr.create_group(tmp_path / "g").create_array("0", shape=(2,), dtype="u1")
    assert PlainGroup.open(tmp_path / "g") is not None
    zarr.consolidate_metadata(tmp_path / "g")
    assert PlainGroup.open(tmp_path / "g") is None
    assert PlainGroup.open(tmp_path / "g/0") is None
    assert PlainGroup.open(tmp_path) is None
    with pytest.raises(KeyError):
        PlainGroup(tmp_path / "g", 3, {})["1"]


def test_groups_of_v2_are_plain_without_consolidated_metadata(tmp_path):
    group = zarr.create_group(tmp_path / "g", zarr_format=2, attributes={"a": [1]})
    group.create_array("0", shape=(2,), dtype="u1")[...] = 3
    assert PlainGroup.open(tmp_path / "g").attrs == {"a": [1]}
    assert isinstance(PlainGroup.open(tmp_path / "g")["0"], PlainArray)
    (tmp_path / "g/.zattrs").write_text("[]")
    assert PlainGroup.open(tmp_path / "g") is None
    (tmp_path / "g/.zattrs").unlink()
    assert PlainGroup.open(tmp_path / "g").attrs == {}
    zarr.consolidate_metadata(tmp_path / "g")
    assert PlainGroup.open(tmp_path / "g") is None
    (tmp_path / "g/.zmetadata").unlink()
    (tmp_path / "g/zarr.json").write_text("{}")
    assert PlainGroup.open(tmp_path / "g") is None


def _places(document, at=()):
    """Yield the way to every value of a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*at, key))


_VALUES = (None, True, -1, 0, 3, 2.5, 1 << 70, "", "x", "little", [], [8, 8], {}, {"name": "bytes"})


@pytest.mark.parametrize("version", [2, 3])
def test_altered_metadata_are_refused_or_what_zarr_takes_them_for(tmp_path, version):
    """Each value of a document in turn is another, or gone.

    Seen to fail where lengths of 2.5 or chunks that do not divide shards pass for plain, and where
    any separator passes in v2.
    """
    whole = array_document(SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    name = "zarr.json"
    if version == 2:
        name = ".zarray"
        compressor = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
        whole = {
            "zarr_format": 2, "shape": list(SHAPE), "chunks": list(CHUNKS), "dtype": "<f4",
            "compressor": compressor, "fill_value": 0.0, "order": "C", "filters": None,
            "dimension_separator": "/",
        }  # fmt: skip
    taken = 0
    for place, value in itertools.product(_places(whole), (*_VALUES, ...)):
        document = copy.deepcopy(whole)
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        if value is ...:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        plain = parse_array(document)
        if plain is None:
            continue
        taken += 1
        (tmp_path / name).write_text(json.dumps(document))
        array = zarr.open_array(tmp_path, mode="r")
        ours = PlainArray(tmp_path, "", plain)
        assert (ours.shape, ours.chunks, ours.shards) == (array.shape, array.chunks, array.shards)
        assert ours.dtype == array.dtype, place
        fill = array.dtype.type(0) if array.fill_value is None else array.fill_value
        assert np.frombuffer(plain.layout.fill, "f4")[0] == fill, place
        if version == 2:
            key = array.metadata.encode_chunk_key((0, 1, 2))
            assert ours.file((0, 1, 2)) == f"{tmp_path}//{key}"
    assert (10 if version == 2 else 20) < taken < 100


def test_lengths_beyond_all_bounds_are_left_to_the_checks_of_zarr():
    document = array_document((1 << 46,), (8,), (16,), "u1", "z")
    assert parse_array(document) is None
    document = array_document((1 << 40,), (1 << 33,), (1 << 33,), "u1", "z")
    assert parse_array(document) is None
    document = array_document((1 << 40,), (1,), (1 << 30,), "u1", "z")
    assert parse_array(document) is None


def test_a_damaged_chunk_is_named(tmp_path, data):
    plain = create_array(tmp_path / "a", "0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    plain[...] = data
    shard = tmp_path / "a/0/c/0/1/0"
    whole = shard.read_bytes()
    for altered, said in (
        (whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], "wrong checksum"),
        (b"", "its index alone takes"),
        (whole[:-1], "checksum"),
    ):
        shard.write_bytes(altered)
        with pytest.raises(InputError, match=f"c/0/1/0.*{said}"):
            plain[:, 32:]
        np.testing.assert_array_equal(plain[:, :32], data[:, :32])


def test_no_thread_is_left_when_a_read_ends(tmp_path, data):
    """Seen to fail with threads that the process kept for later reads."""
    plain = create_array(tmp_path / "a", "0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    plain[...] = data
    before = set(threading.enumerate())
    np.testing.assert_array_equal(plain[...], data)
    (tmp_path / "a/0/c/0/0/0").write_bytes(b"")
    with pytest.raises(InputError, match="c/0/0/0"):
        plain[...]
    assert set(threading.enumerate()) == before


def test_a_shard_that_leads_out_of_its_store_is_refused(tmp_path, data):
    plain = create_array(tmp_path / "a", "0", SHAPE, CHUNKS, SHARDS, "f4", "zyx")
    plain[...] = data
    shard = tmp_path / "a/0/c/0/1/0"
    shard.rename(tmp_path / "outside")
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="leads out of"):
        plain[:, 32:]
