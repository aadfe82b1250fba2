"""Raw arrays through kvikio: what is refused is tested anywhere, what is read on a GPU."""

import json

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu.kvikio_zarr import raw_layout, read_raw_zarr
from linumpy.gpu.zarr_io import last_read

from ..conftest import HAS_GPU
from . import needs_gpu

OTHER = ">" if np.little_endian else "<"
SHAPE = (17, 40, 33)


def make(path, data, *, chunks=(6, 10, 8), **keywords):
    """An array that Zarr wrote on the host, raw unless told otherwise."""
    keywords = {"compressors": None, **keywords}
    array = zarr.create_array(path, shape=data.shape, dtype=data.dtype, chunks=chunks, **keywords)
    array[...] = data
    return array


def v2(path, **changes):
    """A raw v2 array of which the metadata is changed before it is opened."""
    zarr.create_array(
        path, shape=SHAPE, dtype="<f4", chunks=(6, 10, 8), compressors=None, zarr_format=2
    )
    metadata = path / ".zarray"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **changes}))
    return path


def v3(path, *codecs, **keywords):
    """A v3 array, empty, with the codecs after its array-to-bytes codec given."""
    zarr.create_array(
        path, shape=SHAPE, dtype="f4", chunks=(6, 10, 8), compressors=codecs, **keywords
    )
    return path


REFUSED = {
    "compressed": (lambda p: v3(p, ZstdCodec()), "compressed with zstd"),
    "gzip": (lambda p: v3(p, GzipCodec()), "compressed with gzip"),
    "in_shards": (
        lambda p: v3(p, ZstdCodec(), Crc32cCodec(), shards=(12, 20, 24)),
        "compressed with zstd",
    ),
    "v2_compressed": (lambda p: v2(p, compressor={"id": "zstd", "level": 1}), "with zstd"),
    "v2_filtered": (
        lambda p: v2(p, filters=[{"id": "delta", "dtype": "<f4"}]),
        "filters .*[Dd]elta",
    ),
    "v2_fortran": (lambda p: v2(p, order="F"), "C order"),
    "v2_byte_order": (lambda p: v2(p, dtype=f"{OTHER}f4"), "byte order"),
    "v2_unknown": (lambda p: v2(p, compressor={"id": "acme"}), "acme"),
    "transposed": (lambda p: v3(p, filters=[TransposeCodec(order=(2, 1, 0))]), "C order"),
    "byte_order": (
        lambda p: v3(p, serializer=BytesCodec(endian="big" if OTHER == ">" else "little")),
        "byte order",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_raw_is_refused_before_a_gpu_is_touched(tmp_path, case):
    build, reason = REFUSED[case]
    path = build(tmp_path / "a.zarr")
    with pytest.raises(NotImplementedError, match=reason) as refusal:
        read_raw_zarr(path)
    assert "a.zarr" in str(refusal.value)


def test_an_unknown_codec_of_v3_is_refused(tmp_path):
    path = v3(tmp_path / "a")
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["codecs"].append({"name": "acme.squeeze", "configuration": {}})
    (path / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(NotImplementedError, match="acme.squeeze"):
        read_raw_zarr(path)


def test_a_store_in_memory_is_refused():
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=(4,), dtype="f4", chunks=(2,), compressors=None
    )
    with pytest.raises(NotImplementedError, match="MemoryStore is no local folder"):
        read_raw_zarr(array)


def test_text_is_refused(tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(4,), dtype="U5", compressors=None)
    with pytest.raises(NotImplementedError, match="<U5"):
        raw_layout(array)


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(InputError, match="no such Zarr array"):
        read_raw_zarr(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="not a Zarr array"):
        read_raw_zarr(tmp_path / "folder")
    with pytest.raises(InputError, match="n_threads 0"):
        read_raw_zarr(v3(tmp_path / "a"), n_threads=0)


def test_raw_arrays_of_every_kind_are_taken(tmp_path):
    """Only what changes bytes is refused: a Fortran order that makes no difference is not."""
    accepted = [
        v3(tmp_path / "plain"),
        v3(tmp_path / "checked", Crc32cCodec()),
        v3(tmp_path / "shards", shards=(12, 20, 24)),
        v3(tmp_path / "checked_shards", Crc32cCodec(), shards=(12, 20, 24)),
        v2(tmp_path / "v2"),
        v2(tmp_path / "columns", order="F", chunks=[1, 40, 1]),
    ]
    for path in accepted:
        layout = raw_layout(zarr.open_array(path, mode="r"))
        assert layout.dtype == np.float32
        assert layout.has_crc32c == ("checked" in path.name)
        assert (layout.shard is not None) == ("shards" in path.name)


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_kvikio_the_error_names_what_to_install(tmp_path):
    with pytest.raises(DeviceError, match="gpu13"):
        read_raw_zarr(v3(tmp_path / "a"))


STORED = {
    "v2": {"zarr_format": 2},
    "v3": {},
    "checked": {"compressors": [Crc32cCodec()]},
    "shards": {"shards": (12, 20, 24)},
    "checked_shards": {"shards": (12, 20, 24), "compressors": [Crc32cCodec()]},
}
SELECTIONS = [None, np.s_[3:16:2, 5, 1:30], np.s_[...], np.s_[2], np.s_[:, 7:7], np.s_[-1, -1, -1]]


@needs_gpu
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16"])
@pytest.mark.parametrize("stored", STORED)
def test_reads_the_bits_that_zarr_wrote(tmp_path, rng, stored, dtype):
    import cupy

    data = rng.integers(0, 200, SHAPE).astype(dtype)
    path = tmp_path / "a"
    make(path, data, **STORED[stored])
    for selection in SELECTIONS:
        for n_threads in (None, 1, 3):
            result = read_raw_zarr(path, selection, n_threads=n_threads)
            expected = data[... if selection is None else selection]
            assert isinstance(result, cupy.ndarray)
            assert result.dtype == data.dtype and result.shape == expected.shape
            np.testing.assert_array_equal(result.get(), expected)
            if result.size:
                assert last_read().backend == last_read().fetch == "kvikio"


@needs_gpu
@pytest.mark.parametrize("stored", STORED)
def test_what_was_never_written_is_fill_value(tmp_path, rng, stored):
    data = rng.integers(0, 200, SHAPE).astype("f4")
    keywords = {"compressors": None, **STORED[stored]}
    array = zarr.create_array(
        tmp_path / "a", shape=SHAPE, dtype="f4", chunks=(6, 10, 8), fill_value=-7, **keywords
    )
    array[:6, :10] = data[:6, :10]
    expected = np.full(SHAPE, -7, "f4")
    expected[:6, :10] = data[:6, :10]
    np.testing.assert_array_equal(read_raw_zarr(array).get(), expected)
    assert last_read().n_missing > 0


@needs_gpu
def test_reads_into_strided_memory_and_restores_the_threads(tmp_path, rng):
    import cupy
    import kvikio.defaults

    data = rng.integers(0, 200, SHAPE).astype("f4")
    make(tmp_path / "a", data)
    room = cupy.full((20, 40, 66), 5, "f4")
    out = room[:17, :, ::2]
    read_raw_zarr(tmp_path / "a")
    before = kvikio.defaults.get("num_threads")
    assert read_raw_zarr(tmp_path / "a", out=out, n_threads=2) is out
    assert kvikio.defaults.get("num_threads") == before
    np.testing.assert_array_equal(out.get(), data)
    assert (room[17:] == 5).all() and (room[:, :, 1::2] == 5).all()
    with pytest.raises(InputError, match=r"expected float32 \(17, 40, 33\)"):
        read_raw_zarr(tmp_path / "a", out=cupy.empty((2, 2), "f4"))


@needs_gpu
def test_a_short_file_is_an_error_that_names_it(tmp_path, rng):
    data = rng.integers(0, 200, SHAPE).astype("f4")
    make(tmp_path / "a", data)
    chunk = tmp_path / "a" / "c" / "1" / "2" / "3"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:100])
    with pytest.raises(InputError, match=r"c/1/2/3.*100 bytes, expected 1920"):
        read_raw_zarr(tmp_path / "a")
    chunk.write_bytes(content + b"\0" * 8)
    with pytest.raises(InputError, match=r"c/1/2/3.*1928 bytes, expected 1920"):
        read_raw_zarr(tmp_path / "a")


@needs_gpu
def test_a_read_that_ends_early_is_an_error(tmp_path, rng, monkeypatch):
    """The file may shrink after its size was looked up."""
    from linumpy.gpu.objects import LocalObject

    data = rng.integers(0, 200, SHAPE).astype("f4")
    make(tmp_path / "a", data)
    chunk = tmp_path / "a" / "c" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:1000])
    monkeypatch.setattr(LocalObject, "size", lambda self: 1920)
    with pytest.raises(InputError, match=r"c/0/0/0.*1920"):
        read_raw_zarr(tmp_path / "a", np.s_[:6, :10, :8])


@needs_gpu
def test_wrong_checksums_and_truncated_shards_are_errors(tmp_path, rng):
    data = rng.integers(0, 200, SHAPE).astype("f4")
    make(tmp_path / "a", data, shards=(12, 20, 24), compressors=[Crc32cCodec()])
    shard = tmp_path / "a" / "c" / "0" / "1" / "0"
    content = bytearray(shard.read_bytes())
    content[500] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="c/0/1/0.*crc32c"):
        read_raw_zarr(tmp_path / "a")
    shard.write_bytes(content[:50])
    with pytest.raises(InputError, match="c/0/1/0.*its index alone takes"):
        read_raw_zarr(tmp_path / "a")


@needs_gpu
def test_scalars_and_empty_arrays(tmp_path):
    scalar = zarr.create_array(tmp_path / "s", shape=(), dtype="f8", compressors=None)
    scalar[...] = 2.5
    assert read_raw_zarr(scalar).shape == () and float(read_raw_zarr(scalar)) == 2.5
    empty = zarr.create_array(
        tmp_path / "e", shape=(0, 3), dtype="u2", chunks=(1, 3), compressors=None
    )
    assert read_raw_zarr(empty).shape == (0, 3)
