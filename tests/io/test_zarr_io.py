"""Zarr on all cores of the host, and the guard in front of its decoder."""

import os
import struct
import subprocess
import sys
import types
import warnings
from contextlib import contextmanager

import google_crc32c
import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from numcodecs import zstd
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from linumpy.device import CPU, Device
from linumpy.errors import DeviceError, InputError
from linumpy.io import guarded_pipeline
from linumpy.io.zarr_io import read_zarr, uses_all_cores, zarr_context

SHAPE = (20, 30, 10)
MAGIC = bytes.fromhex("28b52ffd")


def raw_block(content, last=True):
    return (len(content) << 3 | last).to_bytes(3, "little") + content


def declaring(nbytes):
    """A frame of 16 bytes that declares `nbytes` and holds nothing."""
    return MAGIC + bytes([0xE0]) + nbytes.to_bytes(8, "little") + raw_block(b"")


def sizeless(content):
    pieces = [content[at : at + 100_000] for at in range(0, len(content), 100_000)]
    blocks = [raw_block(piece, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return MAGIC + bytes([0x00, 10 << 3]) + b"".join(blocks)


LAYOUTS = {
    "zstd": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(level=1)]),
    "zstd-checksum": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(level=1, checksum=True)]),
    "ours": dict(
        chunks=(5, 8, 5), shards=(10, 16, 10), compressors=[ZstdCodec(level=1), Crc32cCodec()]
    ),
    "zstd-crc": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(), Crc32cCodec()]),
    "raw": dict(chunks=(7, 8, 10), compressors=[]),
    "raw-crc": dict(chunks=(5, 8, 5), shards=(10, 16, 10), compressors=[Crc32cCodec()]),
    "blosc": dict(chunks=(7, 8, 10), compressors=[BloscCodec(cname="zstd")]),
    "gzip": dict(chunks=(7, 8, 10), compressors=[GzipCodec()]),
    "transpose": dict(chunks=(7, 8, 10), filters=[TransposeCodec(order=(2, 0, 1))]),
    "big-endian": dict(chunks=(7, 8, 10), serializer=BytesCodec(endian="big")),
    "index-first": dict(
        chunks=(10, 16, 10),
        compressors=[],
        serializer=ShardingCodec(chunk_shape=(5, 8, 5), index_location="start"),
    ),
    "v2": dict(chunks=(7, 8, 10), zarr_format=2),
    "v2-fortran": dict(chunks=(7, 8, 10), zarr_format=2, order="F"),
    "v2-blosc": dict(chunks=(7, 8, 10), zarr_format=2, compressors=numcodecs.Blosc("lz4")),
    "v2-zlib": dict(chunks=(7, 8, 10), zarr_format=2, compressors=numcodecs.Zlib()),
}
ZARR_ONLY = {
    "crc-inside": dict(chunks=(7, 8, 10), compressors=[Crc32cCodec(), ZstdCodec(), Crc32cCodec()]),
    "v2-lz4": dict(chunks=(7, 8, 10), zarr_format=2, compressors=numcodecs.LZ4()),
    "v2-delta": dict(chunks=(7, 8, 10), zarr_format=2, filters=[numcodecs.Delta("f4")]),
    "two-compressors": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(), GzipCodec()]),
    "nested-shards": dict(
        chunks=(10, 16, 10),
        compressors=[],
        serializer=ShardingCodec(
            chunk_shape=(5, 8, 5), codecs=[ShardingCodec(chunk_shape=(5, 4, 5))]
        ),
    ),
}


def values(dtype="f4", shape=SHAPE):
    return (np.arange(np.prod(shape)) % 1000).reshape(shape).astype(dtype)


def make(path, layout, dtype="f4", shape=SHAPE):
    """Write an array with zarr's own pipeline."""
    keywords = {**LAYOUTS, **ZARR_ONLY}[layout]
    array = zarr.create_array(path, shape=shape, dtype=dtype, **keywords)
    array[...] = values(dtype, shape)
    return array


@contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- the context ----------------------------------------------------------------------------


def pipeline_path():
    return zarr.config.get("codec_pipeline.path")


def test_the_context_restores_what_was_there():
    before = dict(zarr.config.config["codec_pipeline"])
    with zarr_context(CPU):
        inside = pipeline_path()
        assert inside.endswith("GuardedZarrsCodecPipeline")
        with zarr.config.set({"codec_pipeline.path": "other"}):
            with zarr_context():
                assert pipeline_path() == inside
            assert pipeline_path() == "other"
        assert pipeline_path() == inside
    assert zarr.config.config["codec_pipeline"] == before
    with pytest.raises(ZeroDivisionError), zarr_context():
        _ = 1 / 0
    assert zarr.config.config["codec_pipeline"] == before


def test_which_arrays_all_cores_decode(tmp_path):
    outside = make(tmp_path / "a", "ours")
    assert not uses_all_cores(outside)
    with zarr_context():
        inside = zarr.open_array(tmp_path / "a", mode="r")
        memory = zarr.create_array({}, shape=SHAPE, dtype="f4")
        memory[:] = 3
        assert (memory[:] == 3).all()
        assert not uses_all_cores(memory)
    assert uses_all_cores(inside)
    np.testing.assert_array_equal(inside[:], values())


def test_text_and_other_stores_are_left_to_zarr(tmp_path):
    words = np.array(["dark", "bright", ""], "U6")
    with quiet(), zarr_context():
        array = zarr.create_array(tmp_path / "text", shape=3, dtype="U6")
        array[:] = words
    assert not uses_all_cores(array)
    np.testing.assert_array_equal(array[:], words)
    memory = zarr.create_array({}, shape=3, dtype="f4")
    with pytest.raises(NotImplementedError, match="only local folders"):
        guarded_pipeline.GuardedZarrsCodecPipeline.from_array_metadata_and_store(
            memory.metadata, memory.store
        )


def test_gpu_goes_to_the_gpu_module(monkeypatch):
    """The GPU that was named is the one that serves; CuPy and the reader are stand-ins."""
    calls = []
    current = [0]

    class CudaDevice:
        def __init__(self, number=None):
            self.id = current[-1] if number is None else number

        def __enter__(self):
            current.append(self.id)

        def __exit__(self, *_):
            current.pop()

    @contextmanager
    def gpu_zarr_context(*, device):
        calls.append(("in", device))
        yield
        calls.append("out")

    def read_zarr_to_gpu(array, selection=None, *, out=None):
        calls.append((array, selection, out, current[-1]))
        return "on the device"

    module = types.ModuleType("linumpy.gpu.zarr_io")
    module.gpu_zarr_context = gpu_zarr_context
    module.read_zarr_to_gpu = read_zarr_to_gpu
    monkeypatch.setitem(sys.modules, "linumpy.gpu.zarr_io", module)
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        Device=CudaDevice,
        runtime=types.SimpleNamespace(getDeviceCount=lambda: 2, CUDARuntimeError=OSError),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    before = pipeline_path()
    for where, index in ((Device("cuda"), 0), (Device("cuda", 1), 1)):
        with zarr_context(where):
            assert pipeline_path() == before
        assert read_zarr("a", 3, device=where, out="o") == "on the device"
        assert calls == [("in", index), "out", ("a", 3, "o", index)]
        assert current == [0]
        calls.clear()
    third = Device("cuda", 2)
    with pytest.raises(DeviceError, match="cuda:2"), zarr_context(third):
        pass
    with pytest.raises(DeviceError, match="cuda:2"):
        read_zarr("a", device=third)
    assert not calls


def test_importing_loads_no_zarr():
    code = "import sys, linumpy.io.zarr_io; print([m for m in sys.modules if m[:4] == 'zarr'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_decoding_takes_the_cores_of_this_process(tmp_path):
    """Threads of the decoder, counted with one core and with two, and as the environment says."""
    make(tmp_path / "a", "ours")
    code = """
import os, sys
import zarr
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
zarr.config.set({"threading.max_workers": int(sys.argv[3])})
from linumpy.io.guarded_pipeline import GuardedZarrsCodecPipeline
array = zarr.open_array(sys.argv[1], mode="r")
before = len(os.listdir("/proc/self/task"))
GuardedZarrsCodecPipeline.from_array_metadata_and_store(array.metadata, array.store)
print(len(os.listdir("/proc/self/task")) - before)
"""

    def count(cores, max_workers, **environment):
        arguments = [tmp_path / "a", str(cores), str(max_workers)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "RAYON_NUM_THREADS": "0", **environment},
        )
        return int(done.stdout)

    assert [count(1, 1), count(2, 2), count(2, 1)] == [1, 2, 2]
    assert count(2, 2, RAYON_NUM_THREADS="3") == 3


# --- reading and writing --------------------------------------------------------------------

SELECTIONS = [np.s_[...], np.s_[3:9, :, 2], np.s_[::2, 5:20], np.s_[0, 0, 0], np.s_[4:4], np.s_[-3]]


@pytest.mark.parametrize("layout", [*LAYOUTS, *ZARR_ONLY])
def test_every_layout_is_read(tmp_path, layout):
    with quiet():
        array = make(tmp_path / "a", layout)
        with zarr_context():
            inside = zarr.open_array(tmp_path / "a", mode="r")
    assert uses_all_cores(inside) == (layout in LAYOUTS)
    for selection in SELECTIONS:
        np.testing.assert_array_equal(inside[selection], values()[selection])
        with quiet():
            for source in (array, inside, tmp_path / "a"):
                result = read_zarr(source, selection)
                assert type(result) is np.ndarray and result.dtype == np.float32
                np.testing.assert_array_equal(result, values()[selection], strict=False)
                assert result.shape == values()[selection].shape


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
)
def test_every_dtype_both_ways(tmp_path, dtype):
    for layout in ("ours", "v2"):
        make(tmp_path / f"{layout}-zarr", layout, dtype)
        np.testing.assert_array_equal(read_zarr(tmp_path / f"{layout}-zarr"), values(dtype))
        with zarr_context():
            make(tmp_path / f"{layout}-zarrs", layout, dtype)
        np.testing.assert_array_equal(
            zarr.open_array(tmp_path / f"{layout}-zarrs")[:], values(dtype)
        )


@pytest.mark.parametrize("dtype", [">f4", ">u2"])
def test_foreign_byte_order(tmp_path, dtype):
    make(tmp_path / "a", "v2", dtype)
    result = read_zarr(tmp_path / "a", np.s_[3:12, 1])
    np.testing.assert_array_equal(result, values(dtype)[3:12, 1])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 1, 1, 2)])
def test_scalars_and_empty_arrays(tmp_path, shape):
    content = values("i4", shape) + 7
    for zarr_format in (2, 3):
        path = tmp_path / f"v{zarr_format}"
        with zarr_context():
            array = zarr.create_array(path, shape=shape, dtype="i4", zarr_format=zarr_format)
            array[...] = content
        np.testing.assert_array_equal(read_zarr(path), content)
        assert read_zarr(path).shape == shape
        np.testing.assert_array_equal(zarr.open_array(path)[...], content)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "a"
    make(path, "ours")
    return path


def test_integers_beside_slices_of_one_voxel(ours):
    """Which axes a selection drops must not be told from lengths."""
    with zarr_context():
        array = zarr.open_array(ours, mode="r")
    for selection in (np.s_[0, 0:17, 0], np.s_[0:1, 0, :], np.s_[0, 0:1, 2], np.s_[3, 4:5, 0:1]):
        np.testing.assert_array_equal(array[selection], values()[selection])
        np.testing.assert_array_equal(read_zarr(ours, selection), values()[selection])


@settings(max_examples=200, deadline=None)
@given(basic_indices(SHAPE))
def test_any_basic_selection_is_numpys(ours, selection):
    np.testing.assert_array_equal(read_zarr(ours, selection), values()[selection])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_writing_any_part(tmp_path_factory, data):
    parts = []
    for side in SHAPE:
        first = data.draw(st.integers(0, side - 1))
        stop = data.draw(st.integers(first + 1, side))
        step = data.draw(st.sampled_from([1, 1, 1, 2]))
        parts.append(first if data.draw(st.booleans()) else slice(first, stop, step))
    part = tuple(parts)
    path = tmp_path_factory.mktemp("write") / "a"
    expected = values()
    new = -1 if data.draw(st.booleans()) else expected[part] * -3 - 2
    expected[part] = new
    with zarr_context():
        make(path, "ours")[part] = new
    np.testing.assert_array_equal(zarr.open_array(path)[:], expected)


@pytest.mark.parametrize(
    "selection", [np.s_[::-1, 20:3:-2, -1], np.s_[::19, ::-9], np.s_[..., ::7]]
)
def test_steps_and_directions(ours, selection):
    result = read_zarr(ours, selection)
    np.testing.assert_array_equal(result, values()[selection])
    out = np.full(result.shape[::-1], -1, np.float32).T
    assert read_zarr(ours, selection, out=out) is out
    np.testing.assert_array_equal(out, result)


@pytest.mark.parametrize(
    "selection", [20, -21, np.s_[0, 0, 0, 0], np.s_[..., 1, ...], "a", True, [1, 2], None, 1.5]
)
def test_selections_that_do_not_fit(ours, selection):
    if selection is None:
        assert read_zarr(ours, None).shape == SHAPE
        return
    with pytest.raises(InputError, match="selection"):
        read_zarr(ours, selection)


def test_out_must_fit(ours):
    out = np.full((5, 10), np.nan, np.float32)
    assert read_zarr(ours, np.s_[2:7, 3], out=out) is out
    np.testing.assert_array_equal(out, values()[2:7, 3])
    for wrong in (np.empty((5, 11), np.float32), np.empty((5, 10), np.float64)):
        with pytest.raises(InputError, match="out is"):
            read_zarr(ours, np.s_[2:7, 3], out=wrong)


def test_no_array_there(tmp_path):
    with pytest.raises(InputError, match="absent: no Zarr array"):
        read_zarr(tmp_path / "absent")
    zarr.create_group(tmp_path / "group")
    with pytest.raises(InputError, match="group: a Zarr group"):
        read_zarr(tmp_path / "group")


def tensorstore_of(path, driver="zarr3"):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    return tensorstore.open(spec).result()


@pytest.mark.parametrize("layout", ["ours", "zstd", "blosc", "raw-crc", "gzip", "v2"])
def test_written_inside_is_read_by_others(tmp_path, layout):
    driver = "zarr" if layout == "v2" else "zarr3"
    with zarr_context():
        make(tmp_path / "a", layout)
        array = zarr.open_array(tmp_path / "a")
        array[3:11, 4, ::2] = 9
    expected = values()
    expected[3:11, 4, ::2] = 9
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[:], expected)
    np.testing.assert_array_equal(tensorstore_of(tmp_path / "a", driver).read().result(), expected)
    tensorstore_of(tmp_path / "a", driver)[:10].write(values()[:10] * 2).result()
    expected[:10] = values()[:10] * 2
    np.testing.assert_array_equal(read_zarr(tmp_path / "a"), expected)


def test_missing_chunks_are_fill_value(tmp_path):
    for layout, chunk in (("zstd", "c/1/0/0"), ("ours", "c/1/0/0"), ("v2", "1.0.0")):
        path = tmp_path / layout
        array = make(path, layout)
        (path / chunk).unlink()
        expected = array[:]
        assert (expected != values()).any()
        np.testing.assert_array_equal(read_zarr(path), expected)


def test_empty_inner_chunks_are_fill_value(tmp_path):
    array = make(tmp_path / "a", "ours")
    with zarr_context():
        zarr.open_array(tmp_path / "a")[0:5, 0:8, 0:5] = 0
    expected = values()
    expected[0:5, 0:8, 0:5] = 0
    np.testing.assert_array_equal(read_zarr(tmp_path / "a"), expected)
    np.testing.assert_array_equal(array[:], expected)


# --- damage ---------------------------------------------------------------------------------


def refused(path, match, selection=...):
    """Both ways of reading refuse, and the message fits."""
    with pytest.raises(InputError, match=match), quiet():
        read_zarr(path, selection)
    with quiet(), zarr_context():
        array = zarr.open_array(path)
    with pytest.raises(InputError, match=match):
        array[selection]
    return array


CHUNK_NBYTES = 7 * 8 * 10 * 4


@pytest.mark.parametrize(
    "damage, match",
    [
        (lambda data: declaring(1 << 40), "declares 1099511627776 bytes"),
        (lambda data: data + declaring(1 << 40), "declares 1099511627776 bytes"),
        (lambda data: zstd.compress(bytes(10**6)), "declare 1000000 bytes, the chunk has 2240"),
        (lambda data: zstd.compress(bytes(2239)), "declare 2239 bytes"),
        (lambda data: sizeless(bytes(10**6)), "hold 1000000"),
        (lambda data: b"", "0 bytes stored"),
        (lambda data: data[:10], "truncated"),
        (lambda data: data[:-1], "truncated"),
        (lambda data: data + b"rest", "magic number"),
        (lambda data: bytes(100), "bad magic number"),
    ],
)
def test_zstd_chunks_are_checked(tmp_path, damage, match):
    make(tmp_path / "a", "zstd")
    file = tmp_path / "a" / "c/1/2/0"
    file.write_bytes(damage(file.read_bytes()))
    array = refused(tmp_path / "a", f"{file}: .*{match}")
    np.testing.assert_array_equal(array[:7], values()[:7])
    # a chunk that is written in part is read first
    with pytest.raises(InputError, match=match):
        array[8, 17, 0] = 1
    array[7:14, 16:24, :] = 5
    assert (array[7:14, 16:24, :] == 5).all()


def test_several_frames_and_no_size_are_fine(tmp_path):
    make(tmp_path / "a", "zstd")
    file = tmp_path / "a" / "c/0/0/0"
    content = values()[:7, :8].tobytes()
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    for data in (
        zstd.compress(content[:99]) + skippable + zstd.compress(content[99:]),
        sizeless(content),
    ):
        file.write_bytes(data)
        np.testing.assert_array_equal(read_zarr(tmp_path / "a"), values())


@pytest.mark.parametrize(
    "layout, chunk, damage, match",
    [
        ("blosc", "c/0/0/0", lambda d: d[:4] + b"\xff\xff\xff\x7f" + d[8:], "declare 2147483647"),
        ("blosc", "c/0/0/0", lambda d: d[:-1], "blosc data declare 2240 bytes in"),
        ("blosc", "c/0/0/0", lambda d: d[:12], "truncated, 12 bytes"),
        ("blosc", "c/0/0/0", lambda d: d[:20] + bytes(len(d) - 20), "cannot be decoded"),
        ("gzip", "c/0/0/0", lambda d: d[:-4] + b"\xff\xff\0\0", "hold 65535"),
        ("gzip", "c/0/0/0", lambda d: d[:20], "malformed gzip"),
        ("gzip", "c/0/0/0", lambda d: d[:20] + bytes(len(d) - 24) + d[-4:], "cannot be decoded"),
        ("v2-zlib", "0.0.0", lambda d: b"\0" + d[1:], "bad header"),
        ("v2-lz4", "0.0.0", lambda d: b"\xff\xff\xff\x7f" + d[4:], "declares 2147483647"),
        ("raw", "c/0/0/0", lambda d: d[:-1], "2239 bytes stored, the chunk has 2240"),
        ("raw", "c/0/0/0", lambda d: d + b"a", "2241 bytes stored"),
        ("raw", "c/0/0/0", lambda d: b"", "0 bytes stored"),
        ("zstd-checksum", "c/0/0/0", lambda d: d[:-1] + bytes([d[-1] ^ 1]), "cannot be decoded"),
        ("zstd-crc", "c/0/0/0", lambda d: d[:-1] + bytes([d[-1] ^ 1]), "cannot be decoded"),
    ],
)
def test_other_formats_are_checked(tmp_path, layout, chunk, damage, match):
    with quiet():
        make(tmp_path / "a", layout)
    file = tmp_path / "a" / chunk
    file.write_bytes(damage(file.read_bytes()))
    array = refused(tmp_path / "a", f"{file}: .*{match}")
    np.testing.assert_array_equal(array[7:], values()[7:])


class Shard:
    """One shard of the layout ``ours`` (2 × 2 × 2 inner chunks), to be damaged."""

    def __init__(self, file):
        self.file = file
        data = file.read_bytes()
        self.body = bytearray(data[:-132])
        self.index = np.frombuffer(data[-132:-4], "<u8").reshape(2, 2, 2, 2).copy()

    def save(self, cut=0):
        index = self.index.tobytes()
        crc = google_crc32c.value(index).to_bytes(4, "little")
        data = bytes(self.body) + index + crc
        self.file.write_bytes(data[: len(data) - cut])


def inner_bomb(shard):
    data = declaring(1 << 40)
    data += google_crc32c.value(data).to_bytes(4, "little")
    shard.index[1, 0, 1] = (len(shard.body), len(data))
    shard.body += data


def entry(offset, length):
    def damage(shard):
        shard.index[1, 0, 1] = (offset, length)

    return damage


END = 2**64


@pytest.mark.parametrize(
    "damage, match",
    [
        (inner_bomb, r"inner chunk \(1, 0, 1\): .*declares 1099511627776"),
        (entry(1 << 40, 5), r"inner chunk \(1, 0, 1\) at byte 1099511627776, 5 long, lies outside"),
        (entry(1 << 40, 0), "lies outside"),
        (entry(0, 1 << 40), "lies outside"),
        (entry(END - 2, END - 2), "lies outside"),
        (entry(END - 5, 100), "lies outside"),
        (entry(END - 1, 100), "lies outside"),
        (entry(100, END - 1), "lies outside"),
        (entry(10, 0), r"inner chunk \(1, 0, 1\): 0 bytes stored"),
        (entry(10, 4), r"inner chunk \(1, 0, 1\): 4 bytes stored"),
        (entry(10, 7), r"inner chunk \(1, 0, 1\): wrong checksum"),
    ],
)
def test_shards_are_checked(tmp_path, damage, match):
    make(tmp_path / "a", "ours")
    shard = Shard(tmp_path / "a" / "c/1/1/0")
    damage(shard)
    shard.save()
    array = refused(tmp_path / "a", f"{shard.file}: .*({match})")
    np.testing.assert_array_equal(array[:10], values()[:10])
    with pytest.raises(InputError, match=match):
        array[10, 17, 0] = 1


def test_only_the_wanted_inner_chunks_are_looked_at(tmp_path):
    make(tmp_path / "a", "ours")
    shard = Shard(tmp_path / "a" / "c/1/1/0")
    inner_bomb(shard)
    shard.save()
    array = refused(tmp_path / "a", "declares", np.s_[15:16, 16:17, 5:6])
    for selection in (np.s_[10:15, 16:24, :], np.s_[15:20, :, :5], np.s_[15, 24, 5]):
        np.testing.assert_array_equal(array[selection], values()[selection])
    with pytest.raises(InputError, match="declares"):
        array.oindex[[10, 17], [20], [7, 8]]
    with pytest.raises(InputError, match="declares"):
        array.vindex[[19], [23], [9]]
    assert array.vindex[[14], [23], [9]] == values()[14, 23, 9]


@pytest.mark.parametrize("nbytes", [0, 1, 50, 131])
def test_shards_shorter_than_their_index(tmp_path, nbytes):
    make(tmp_path / "a", "ours")
    file = tmp_path / "a" / "c/1/1/0"
    file.write_bytes(file.read_bytes()[:nbytes])
    refused(tmp_path / "a", f"{file}: shard of {nbytes} bytes, its index alone takes 132")


def test_a_shard_index_with_a_wrong_checksum(tmp_path):
    make(tmp_path / "a", "ours")
    file = tmp_path / "a" / "c/1/1/0"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    refused(tmp_path / "a", f"{file}: wrong checksum")


def test_an_index_at_the_start_is_checked(tmp_path):
    make(tmp_path / "a", "index-first")
    file = tmp_path / "a" / "c/0/0/0"
    data = bytearray(file.read_bytes())
    data[0:8] = (1 << 40).to_bytes(8, "little")
    data[128:132] = google_crc32c.value(bytes(data[:128])).to_bytes(4, "little")
    file.write_bytes(data)
    refused(tmp_path / "a", rf"{file}: inner chunk \(0, 0, 0\) at byte 1099511627776")


REGIONS = {
    "all": np.s_[:, :, :],
    "inner chunk": np.s_[:5, :8, :5],
    "part": np.s_[1:3, 2:30, 4],
    "coarse": np.s_[::2, ::3, ::2],
}


@pytest.mark.parametrize("layout", ["ours", "zstd-crc", "raw-crc", "zstd-checksum", "crc-inside"])
def test_no_damage_passes_where_there_are_checksums(tmp_path, rng, layout):
    """Flipped bits and truncations: refused, or elsewhere; never other numbers."""
    make(tmp_path / "a", layout)
    file = tmp_path / "a" / "c/0/0/0"
    whole = file.read_bytes()
    with zarr_context():
        array = zarr.open_array(tmp_path / "a", mode="r")
    refusals = dict.fromkeys(REGIONS, 0)
    for turn in range(60):
        data = bytearray(whole)
        if turn % 3:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        else:
            del data[int(rng.integers(len(data))) :]
        file.write_bytes(data)
        for name, region in REGIONS.items():
            try:
                np.testing.assert_array_equal(array[region], values()[region])
            except InputError as error:
                refusals[name] += 1
                assert str(file) in str(error)
    assert refusals["all"] == 60
    assert min(refusals.values()) > 20


def test_a_panic_of_the_decoder_is_an_ordinary_error(tmp_path, monkeypatch):
    """Should something get past the guard, it ends as an error that names the file."""
    make(tmp_path / "a", "ours")
    shard = Shard(tmp_path / "a" / "c/0/0/0")
    shard.index[0, 0, 0] = (END - 1, 100)
    shard.save()
    monkeypatch.setattr(guarded_pipeline, "check_chunk", lambda *_, **__: None)
    with pytest.raises(InputError, match=f"{shard.file}: cannot be decoded"):
        read_zarr(tmp_path / "a")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300), st.sampled_from(["ours", "zstd", "blosc", "gzip", "v2-zlib"]))
def test_arbitrary_files_are_survived(tmp_path, data, layout):
    path = tmp_path / layout
    if not path.exists():
        make(path, layout)
    file = path / ("0.0.0" if layout == "v2-zlib" else "c/0/0/0")
    file.write_bytes(data)
    # no content of the right size fits 300 random bytes
    with pytest.raises(InputError, match="0"):
        read_zarr(path, np.s_[0, 0])
