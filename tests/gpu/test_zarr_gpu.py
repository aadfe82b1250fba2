"""Zarr on the device, compared with Zarr on the host: bits must be the same."""

import asyncio
import itertools
import threading

import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu.zarr_io import gpu_zarr_context, last_read, read_zarr_to_gpu

from . import needs_gpu

pytestmark = needs_gpu

DTYPES = ["?", "i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8", "c16"]
COMPRESSORS = {
    "raw": [],
    "crc": [Crc32cCodec()],
    "zstd": [ZstdCodec(level=3)],
    "zstd_sum": [ZstdCodec(level=1, checksum=True)],
    "zstd_crc": [ZstdCodec(level=1), Crc32cCodec()],
    "gzip": [GzipCodec(level=1)],
    "blosc_zstd": [BloscCodec(cname="zstd", shuffle="shuffle")],
    "blosc_lz4": [BloscCodec(cname="lz4", shuffle="bitshuffle")],
}


def sample(rng, shape, dtype):
    """Values that compress, with some of every bit pattern."""
    data = rng.integers(0, 5, shape).astype("f8")
    data[rng.random(shape) < 0.1] = 1e4
    return data.astype(dtype)


def make(path, data, compressors, *, chunks=None, shards=None, **keywords):
    """An array written by Zarr on the host."""
    chunks = chunks or tuple(max(1, n // 3) for n in data.shape)
    array = zarr.create_array(
        path,
        shape=data.shape,
        dtype=data.dtype,
        chunks=chunks,
        shards=shards,
        compressors=compressors,
        **keywords,
    )
    array[...] = data
    return array


def equal(device_array, host):
    """Whether bits agree, and the array is on the device."""
    import cupy

    assert isinstance(device_array, cupy.ndarray)
    return device_array.dtype == host.dtype.newbyteorder("=") and np.array_equal(
        device_array.get(), host, equal_nan=host.dtype.kind in "fc"
    )


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_codec_is_read(tmp_path, rng, dtype, compressor):
    data = sample(rng, (17, 40, 33), dtype)
    for shards in (None, (12, 20, 24)):
        path = tmp_path / f"{shards}"
        make(path, data, COMPRESSORS[compressor], chunks=(6, 10, 8), shards=shards)
        decoders = ["host"] if compressor in ("raw", "crc") else ["host", "nvcomp"]
        for backend in ("auto", *decoders):
            assert equal(read_zarr_to_gpu(path, backend=backend), data)
            assert backend == "auto" or last_read().backend == backend
            assert (last_read().n_on_host == 0) == (last_read().backend != "host")
            with gpu_zarr_context(backend=backend):
                assert equal(zarr.open_array(path, mode="r")[...], data)


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_device_writes_is_read_by_everyone(tmp_path, rng, dtype, compressor):
    import cupy
    import tensorstore

    data = sample(rng, (17, 40, 33), dtype)
    for shards in (None, (12, 20, 24)):
        path = tmp_path / f"{shards}"
        with gpu_zarr_context():
            array = zarr.create_array(
                path,
                shape=data.shape,
                dtype=dtype,
                chunks=(6, 10, 8),
                shards=shards,
                compressors=COMPRESSORS[compressor],
            )
            array[...] = cupy.asarray(data)
            assert equal(array[...], data)
        assert np.array_equal(zarr.open_array(path, mode="r")[...], data)
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        if dtype not in ("c8", "c16"):
            assert np.array_equal(tensorstore.open(spec).result().read().result(), data)


@pytest.mark.parametrize("backend", ["nvcomp", "host", "zarr", "auto"])
def test_every_backend_gives_the_same_bits_and_its_name(tmp_path, rng, backend, monkeypatch):
    monkeypatch.setattr("linumpy.gpu.backends.n_threads", lambda: 2)
    data = sample(rng, (40, 64, 64), "f4")
    make(tmp_path / "a", data, [ZstdCodec(level=1), Crc32cCodec()], chunks=(8, 16, 16))
    result = read_zarr_to_gpu(tmp_path / "a", np.s_[3:37:2, 5, 1:60], backend=backend)
    assert equal(result, data[3:37:2, 5, 1:60])
    assert last_read().backend == ("nvcomp" if backend == "auto" else backend)


def test_raw_arrays_are_read_by_kvikio(tmp_path, rng):
    data = sample(rng, (40, 64, 64), "f4")
    make(tmp_path / "a", data, [], chunks=(8, 16, 16), shards=(40, 32, 64))
    assert equal(read_zarr_to_gpu(tmp_path / "a"), data)
    assert last_read().backend == last_read().fetch == "kvikio"


def test_few_huge_chunks_go_to_the_cores(tmp_path, rng):
    data = sample(rng, (128, 256, 256), "f4")
    make(tmp_path / "a", data, [ZstdCodec(level=1), Crc32cCodec()], chunks=(128, 128, 128))
    assert equal(read_zarr_to_gpu(tmp_path / "a"), data)
    assert last_read().backend == "host"
    assert "4 chunks of 8388608 bytes" in last_read().causes[0]


def test_selections(tmp_path, rng):
    data = sample(rng, (23, 31, 29), "u2")
    make(tmp_path / "a", data, [ZstdCodec()], chunks=(4, 8, 8), shards=(8, 16, 16))
    for selection in [
        np.s_[...],
        np.s_[3],
        np.s_[-1, ..., 5],
        np.s_[:, 4:5, ::7],
        np.s_[1:22:5, 30, 2:29:9],
        np.s_[5:5],
        np.s_[2, 3, 4],
        np.s_[::23, ::31, ::29],
    ]:
        expected = data[selection]
        assert equal(read_zarr_to_gpu(tmp_path / "a", selection), np.asarray(expected)), selection
        with gpu_zarr_context():
            got = zarr.open_array(tmp_path / "a", mode="r")[selection]
            assert np.array_equal(getattr(got, "get", lambda got=got: got)(), expected), selection
    with gpu_zarr_context():
        array = zarr.open_array(tmp_path / "a", mode="r")
        rows, columns = np.array([20, 3, 3, 9]), np.array([28, 0, 17])
        assert equal(array.oindex[rows, 1:30:4, columns], data[rows][:, 1:30:4][:, :, columns])
        assert equal(array.oindex[7, :, columns], data[7][:, columns])
        assert equal(array.blocks[1, 0], data[8:16, :16])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 0, 3), (7,), (3, 4, 5, 6, 2)])
def test_scalars_empty_and_many_axes(tmp_path, rng, shape):
    import cupy

    data = np.asarray(sample(rng, shape or (1,), "f8").reshape(shape))
    chunks = tuple(max(1, n // 2) for n in shape)
    make(tmp_path / "a", data, [ZstdCodec(), Crc32cCodec()], chunks=chunks)
    assert equal(read_zarr_to_gpu(tmp_path / "a"), data)
    with gpu_zarr_context():
        array = zarr.create_array(tmp_path / "b", shape=shape, dtype="f8", chunks=chunks)
        array[...] = cupy.asarray(data)
        got = array[...]
        assert np.array_equal(getattr(got, "get", lambda: got)(), data)
    assert np.array_equal(zarr.open_array(tmp_path / "b", mode="r")[...], data)


def test_missing_chunks_are_fill(tmp_path, rng):
    for compressors, shards in itertools.product([[], [ZstdCodec()]], [None, (16, 16)]):
        path = tmp_path / f"{len(compressors)}{shards}"
        array = zarr.create_array(
            path,
            shape=(40, 24),
            dtype="f4",
            chunks=(8, 8),
            shards=shards,
            compressors=compressors,
            fill_value=np.nan,
        )
        array[10:12, 3:9] = 1
        expected = np.full((40, 24), np.nan, "f4")
        expected[10:12, 3:9] = 1
        assert equal(read_zarr_to_gpu(path), expected)
        assert last_read().n_missing > 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">i2", ">c8", "<u8"])
@pytest.mark.parametrize("compressor", ["zstd", "lz4", "gzip", "zlib", "blosc", None])
def test_zarr_v2(tmp_path, rng, order, dtype, compressor):
    import cupy
    import numcodecs

    codec = numcodecs.get_codec({"id": compressor}) if compressor else None
    data = sample(rng, (13, 22, 9), dtype)
    array = zarr.create_array(
        tmp_path / "a",
        shape=data.shape,
        dtype=dtype,
        chunks=(5, 8, 4),
        order=order,
        compressors=codec,
        zarr_format=2,
    )
    array[...] = data
    assert equal(read_zarr_to_gpu(tmp_path / "a"), data)
    assert equal(read_zarr_to_gpu(tmp_path / "a", np.s_[1:12:3, 7]), data[1:12:3, 7])
    with gpu_zarr_context():
        array = zarr.open_array(tmp_path / "a", mode="r+")
        assert equal(array[...], data)
        array[2:9] = cupy.asarray((data[2:9] + 1).astype(data.dtype.newbyteorder("=")))
    data[2:9] += 1
    assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], data)


def test_transposed_and_big_endian_chunks(tmp_path, rng):
    import cupy

    data = sample(rng, (13, 22, 9), "i4")
    for location in ("start", "end"):
        codec = ShardingCodec(
            chunk_shape=(4, 5, 3),
            codecs=[
                TransposeCodec(order=(2, 0, 1)),
                BytesCodec(endian="big"),
                ZstdCodec(),
                Crc32cCodec(),
            ],
            index_location=location,
        )
        keywords = {"chunks": (8, 10, 9), "serializer": codec, "compressors": []}
        path = tmp_path / location
        array = zarr.create_array(path, shape=data.shape, dtype="i4", fill_value=3, **keywords)
        array[...] = data
        assert equal(read_zarr_to_gpu(path), data)
        with gpu_zarr_context():
            again = zarr.create_array(
                tmp_path / f"{location}2", shape=data.shape, dtype="i4", fill_value=3, **keywords
            )
            again[...] = cupy.asarray(data)
        assert np.array_equal(zarr.open_array(tmp_path / f"{location}2", mode="r")[...], data)


def test_partial_strided_scalar_and_masked_writes(tmp_path, rng):
    import cupy

    data = sample(rng, (30, 26), "f4")
    for shards in (None, (12, 16)):
        path = tmp_path / f"{shards}"
        make(path, data, [ZstdCodec(), Crc32cCodec()], chunks=(6, 8), shards=shards)
        expected = data.copy()
        with gpu_zarr_context():
            array = zarr.open_array(path, mode="r+")
            for selection in [np.s_[3:17, 5:9], np.s_[1:30:4, ::3], np.s_[7], np.s_[:, -1]]:
                value = sample(rng, expected[selection].shape, "f4")
                array[selection] = cupy.asarray(value)
                expected[selection] = value
            array[10:20, 2:4] = 42.5
            expected[10:20, 2:4] = 42.5
            array.oindex[np.array([0, 29]), 3:20] = cupy.asarray(expected[[0, 29], 3:20] + 1)
            expected[[0, 29], 3:20] += 1
            array[...] = array[...]
        assert np.array_equal(zarr.open_array(path, mode="r")[...], expected)


def test_chunks_that_hold_fill_alone_are_not_stored(tmp_path):
    import cupy

    with gpu_zarr_context():
        for keep in (False, True):
            array = zarr.create_array(
                tmp_path / f"{keep}",
                shape=(32, 32),
                dtype="f4",
                chunks=(8, 8),
                config={"write_empty_chunks": keep},
            )
            value = cupy.zeros((32, 32), "f4")
            value[9, 9] = 1
            array[...] = value
    assert len(list((tmp_path / "False" / "c").rglob("[0-9]"))) - 1 == 1 + 0
    assert len([f for f in (tmp_path / "True" / "c").rglob("*") if f.is_file()]) == 16


def test_other_stores(tmp_path, rng):
    import cupy

    data = sample(rng, (20, 20), "f4")
    store = zarr.storage.MemoryStore()
    make(store, data, [ZstdCodec(), Crc32cCodec()], chunks=(5, 5), shards=(10, 10))
    assert equal(read_zarr_to_gpu(store, backend="nvcomp"), data)
    assert last_read().fetch == "pinned"
    with gpu_zarr_context():
        array = zarr.open_array(store, mode="r+")
        assert equal(array[...], data)
        array[3:5] = cupy.ones((2, 20), "f4")
    assert (zarr.open_array(store, mode="r")[3:5] == 1).all()


def test_out_of_any_strides(tmp_path, rng):
    import cupy

    data = sample(rng, (20, 30), "f4")
    make(tmp_path / "a", data, [ZstdCodec()], chunks=(7, 9))
    big = cupy.zeros((40, 40), "f4")
    out = big[1:31, 5:25].T
    assert read_zarr_to_gpu(tmp_path / "a", out=out) is out
    assert equal(out, data) and float(big.sum()) == pytest.approx(float(data.sum()))
    with pytest.raises(InputError, match="expected float32"):
        read_zarr_to_gpu(tmp_path / "a", out=cupy.empty((20, 30), "f8"))


def test_reads_and_writes_are_ordered_after_the_callers_stream(tmp_path, rng):
    """Values that a kernel is still making when the write is asked for are the ones written."""
    import cupy

    data = sample(rng, (64, 256, 256), "f4")
    make(tmp_path / "a", data, [ZstdCodec(), Crc32cCodec()], chunks=(16, 32, 32))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        work = cupy.ones((3000, 3000), "f8")
        for _ in range(20):
            work = work @ work * 1e-4
        value = cupy.asarray(data) + (work[0, 0] * 0).astype("f4")
    with gpu_zarr_context(stream=stream):
        array = zarr.create_array(tmp_path / "b", shape=data.shape, dtype="f4", chunks=(16, 32, 32))
        array[...] = value
        assert equal(array[...], data)
    assert equal(read_zarr_to_gpu(tmp_path / "a", stream=stream, backend="nvcomp"), data)


def test_the_context_restores_nests_and_bears_threads(tmp_path, rng):
    import cupy

    data = sample(rng, (20, 30), "f4")
    make(tmp_path / "a", data, [ZstdCodec()], chunks=(7, 9))
    before = zarr.config.get("codec_pipeline.path"), zarr.config.get("codecs.zstd")
    with pytest.raises(RuntimeError, match="mine"), gpu_zarr_context():
        kept = zarr.open_array(tmp_path / "a", mode="r+")
        raise RuntimeError("mine")
    assert (zarr.config.get("codec_pipeline.path"), zarr.config.get("codecs.zstd")) == before
    assert zarr.config.get("buffer") == "zarr.buffer.cpu.Buffer"
    assert isinstance(kept[...], np.ndarray) and np.array_equal(kept[...], data)
    kept[0] = 5
    with gpu_zarr_context(), gpu_zarr_context(stream=cupy.cuda.Stream()):
        pass
    gate = threading.Barrier(2)
    results = []

    def work():
        with gpu_zarr_context():
            gate.wait()
            results.append(zarr.open_array(tmp_path / "a", mode="r")[...])
            gate.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(isinstance(r, cupy.ndarray) for r in results)
    assert isinstance(zarr.open_array(tmp_path / "a", mode="r")[...], np.ndarray)


def test_the_event_loop_is_not_blocked(tmp_path, rng):
    data = sample(rng, (128, 256, 256), "f4")
    make(tmp_path / "a", data, [ZstdCodec()], chunks=(64, 64, 64))
    ticks = []

    async def main(array):
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.0005)

        task = asyncio.create_task(tick())
        await array.async_array.getitem(Ellipsis)
        task.cancel()

    with gpu_zarr_context():
        array = zarr.open_array(tmp_path / "a", mode="r")
        array[...]
        asyncio.run(main(array))
    assert len(ticks) > 3


# ---- bad input --------------------------------------------------------------------------------


def chunk_file(path):
    return max((f for f in path.rglob("*") if f.is_file() and f.name != "zarr.json"), key=str)


@pytest.mark.parametrize("where", ["reader", "context"])
@pytest.mark.parametrize(
    ("codec", "backend"), [("zstd_crc", "nvcomp"), ("zstd_sum", "auto"), ("crc", "kvikio")]
)
def test_a_flipped_bit_is_an_error(tmp_path, rng, codec, backend, where):
    data = sample(rng, (32, 32), "f4")
    make(tmp_path / "a", data, COMPRESSORS[codec], chunks=(16, 16))
    file = chunk_file(tmp_path / "a")
    good = file.read_bytes()
    for position in range(12, len(good), max(1, len(good) // 25)):
        bad = bytearray(good)
        bad[position] ^= 4
        file.write_bytes(bad)
        try:
            if where == "reader":
                got = read_zarr_to_gpu(tmp_path / "a", backend=backend)
            else:
                with gpu_zarr_context(backend=backend):
                    got = zarr.open_array(tmp_path / "a", mode="r")[...]
        except InputError as error:
            assert str(file) in str(error)
        else:
            # A frame has bits that nobody reads; only a checksum of the stored bytes covers them.
            assert codec == "zstd_sum" and equal(got, data)
    file.write_bytes(good)
    assert equal(read_zarr_to_gpu(tmp_path / "a"), data)


@pytest.mark.parametrize("kind", ["lz4", "gzip", "zlib", "blosc"])
def test_flipped_bits_are_kept_from_the_device(tmp_path, rng, kind, monkeypatch):
    """These formats have no checksum, or not over all bytes: the CPU decodes what there is."""
    import numcodecs

    def decompress(*_):
        raise AssertionError("unchecked bytes on the device")

    data = sample(rng, (64, 64), "f4")
    codec = numcodecs.get_codec({"id": kind})
    make(tmp_path / "a", data, codec, chunks=(4, 4), zarr_format=2)
    monkeypatch.setattr("linumpy.gpu.nvcomp.decompress", decompress)
    file = tmp_path / "a" / "0.0"
    good = file.read_bytes()
    named = 0
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(bad)
        try:
            read_zarr_to_gpu(tmp_path / "a")
        except InputError as error:
            assert str(file) in str(error)
            named += 1
        else:
            assert last_read().backend == "host"
    assert named > 5


@pytest.mark.parametrize("typesize", range(1, 9))
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", ["lz4", "lz4hc", "zstd"])
def test_blosc_of_every_item_and_shuffle(tmp_path, rng, cname, shuffle, typesize):
    import numcodecs

    for size in (1, 7, 100, 4096, 40_000, 300_001):
        codec = numcodecs.Blosc(cname, 5, shuffle, typesize=typesize)
        data = sample(rng, (2 * size,), "u1")
        data[size:] = rng.integers(0, 256, size)
        path = tmp_path / f"{size}"
        make(path, data, codec, chunks=(size,), zarr_format=2)
        assert equal(read_zarr_to_gpu(path, backend="nvcomp"), data)
        assert last_read().n_on_host == 0


def test_codecs_alone_serve_zarrs_own_pipeline(tmp_path, rng):
    import cupy

    from linumpy.gpu.codecs import CODECS

    names = {name: f"{c.__module__}.{c.__qualname__}" for name, c in CODECS.items()}
    data = sample(rng, (40, 30), "f4")
    for compressor in ("zstd", "gzip", "blosc_lz4"):
        path = tmp_path / compressor
        settings = {
            "codecs": {**zarr.config.get("codecs"), **names},
            "codec_pipeline.batch_size": 9,
        }
        with zarr.config.enable_gpu(), zarr.config.set(settings):
            array = zarr.create_array(
                path, shape=data.shape, dtype="f4", chunks=(8, 8), fill_value=1
            )
            array = zarr.create_array(
                path,
                shape=data.shape,
                dtype="f4",
                chunks=(8, 8),
                fill_value=1,
                compressors=COMPRESSORS[compressor],
                overwrite=True,
            )
            array = zarr.open_array(path, mode="r+")
            assert type(array.metadata.codecs[-1]) in CODECS.values()
            array[...] = cupy.asarray(data)
            assert equal(array[...], data)
        assert np.array_equal(zarr.open_array(path, mode="r")[...], data)


def test_zstd_that_nothing_vouches_for_is_left_to_the_cpu(tmp_path, rng):
    data = sample(rng, (64, 64), "f4")
    make(tmp_path / "a", data, [ZstdCodec()], chunks=(2, 2))
    assert equal(read_zarr_to_gpu(tmp_path / "a"), data)
    assert last_read().backend == "host" and "without crc32c" in last_read().causes[0]


def test_bombs_truncations_and_odd_frames(tmp_path, rng):
    from numcodecs.zstd import Zstd

    data = sample(rng, (64, 64), "u1")
    make(tmp_path / "a", data, [ZstdCodec(level=1)], chunks=(32, 32))
    file = chunk_file(tmp_path / "a")
    good = file.read_bytes()
    bomb = bytes(Zstd(level=1).encode(np.zeros(1 << 24, np.uint8)))
    huge = bytearray(good[:4] + bytes([0xC0, 0x58]) + (1 << 40).to_bytes(8, "little") + good[6:])
    for bad in (bomb, bytes(huge), good[: len(good) // 2], good[:3], b"", good + b"x"):
        file.write_bytes(bad)
        for backend in ("nvcomp", "host"):
            with pytest.raises(InputError) as caught:
                read_zarr_to_gpu(tmp_path / "a", backend=backend)
            assert str(file) in str(caught.value)
    content = bytes(Zstd().decode(good))
    two = b"".join(bytes(Zstd(level=1).encode(part)) for part in (content[:100], content[100:]))
    skippable = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc" + good
    for odd in (two, skippable):
        file.write_bytes(odd)
        assert equal(read_zarr_to_gpu(tmp_path / "a", backend="nvcomp"), data)
        assert last_read().n_on_host == 1
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    file.write_bytes(sink.getvalue().to_pybytes())
    assert equal(read_zarr_to_gpu(tmp_path / "a", backend="nvcomp"), data)
    assert last_read().n_on_host == 1


def test_device_memory_that_is_short(tmp_path, rng):
    import cupy

    data = sample(rng, (64, 256, 256), "f4")
    make(tmp_path / "a", data, [ZstdCodec(level=1)], chunks=(16, 64, 64))
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        pool.set_limit(size=data.nbytes + (100 << 20))
        assert equal(read_zarr_to_gpu(tmp_path / "a", backend="nvcomp"), data)
        pool.free_all_blocks()
        out = cupy.empty(data.shape, "f4")
        pool.set_limit(size=pool.total_bytes() + 1000)
        with pytest.raises(DeviceError, match="does not hold even one chunk"):
            read_zarr_to_gpu(tmp_path / "a", backend="nvcomp", out=out)
    pool.free_all_blocks()


def test_named_backends_that_cannot(tmp_path, rng):
    data = sample(rng, (8, 8), "f4")
    make(tmp_path / "a", data, [ZstdCodec()])
    with pytest.raises(NotImplementedError, match="reads raw chunks, these are zstd"):
        read_zarr_to_gpu(tmp_path / "a", backend="kvikio")
    make(tmp_path / "b", data, [])
    with pytest.raises(NotImplementedError, match="these chunks are raw"):
        read_zarr_to_gpu(tmp_path / "b", backend="nvcomp")
    with pytest.raises(InputError, match="expected one of auto"):
        read_zarr_to_gpu(tmp_path / "b", backend="fast")
    with pytest.raises(InputError, match="no such Zarr array"):
        read_zarr_to_gpu(tmp_path / "c")


def test_failing_reader_falls_back_with_a_reason(tmp_path, rng, monkeypatch):
    import linumpy.gpu.fetch as fetch

    def broken(*_):
        raise RuntimeError("no driver")

    data = sample(rng, (64, 64), "f4")
    make(tmp_path / "a", data, [ZstdCodec(), Crc32cCodec()], chunks=(4, 4))
    monkeypatch.setattr("linumpy.gpu.backends.n_threads", lambda: 2)
    monkeypatch.setattr(fetch.KvikioFetch, "__init__", broken)
    assert equal(read_zarr_to_gpu(tmp_path / "a", backend="nvcomp"), data)
    assert last_read().fetch == "pinned" and "no driver" in last_read().causes[0]
    monkeypatch.setattr("linumpy.gpu.decode.make_fetch", broken)
    with pytest.warns(RuntimeWarning, match="no driver"):
        assert equal(read_zarr_to_gpu(tmp_path / "a", backend="auto"), data)
