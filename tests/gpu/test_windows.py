import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from linumpy.core.errors import InputError
from tests.gpu import needs_gpu

pytestmark = needs_gpu


def make(path, values, chunks, shards, compressors="auto"):
    if compressors == "auto":
        compressors = [ZstdCodec(level=1), Crc32cCodec()]
    array = zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        compressors=compressors,
        fill_value=0,
    )
    array[...] = values
    return array


CASES = [
    ((8, 8, 8), (16, 16, 16), "auto"),
    ((8, 8, 8), None, "auto"),
    ((16, 16, 16), None, None),
    ((16, 16, 16), None, [ZstdCodec(level=1)]),
]


@pytest.mark.parametrize(("chunks", "shards", "compressors"), CASES)
def test_windows_of_any_shape_are_what_zarr_reads(tmp_path, rng, chunks, shards, compressors):
    from linumpy.gpu.windows import read_windows

    values = rng.integers(0, 999, (20, 50, 37)).astype(np.float32)
    array = make(tmp_path / "a.zarr", values, chunks, shards, compressors)
    windows = [
        (slice(None), slice(0, 16), slice(0, 16)),
        (slice(None), slice(16, 32), slice(16, 32)),
        (slice(None), slice(48, 50), slice(32, 37)),
        (slice(3, 19), slice(5, 21), slice(1, 17)),
        (slice(0, 0), slice(5, 21), slice(1, 17)),
    ]
    found = read_windows(array, windows)
    for one, window in zip(found, windows, strict=True):
        np.testing.assert_array_equal(one.get(), values[window])
    assert len({one.data.mem.ptr for one in found if one.size}) == 4


def test_a_chunk_that_was_never_written_is_fill(tmp_path):
    from linumpy.gpu.windows import read_windows

    array = make(tmp_path / "a.zarr", np.zeros((16, 32, 32), np.float32), (8, 8, 8), (16, 16, 16))
    array[:, :16, :16] = 7
    low, high = read_windows(
        array, [(slice(None), slice(k, k + 16), slice(k, k + 16)) for k in (0, 16)]
    )
    assert float(low.min()) == 7
    assert not bool(high.any())


def test_a_corrupt_chunk_is_named(tmp_path, rng):
    from linumpy.gpu.windows import read_windows

    values = rng.random((16, 32, 32), dtype=np.float32)
    array = make(tmp_path / "a.zarr", values, (8, 8, 8), (16, 16, 16))
    shard = tmp_path / "a.zarr/c/0/1/1"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    windows = [(slice(None), slice(k, k + 16), slice(k, k + 16)) for k in (0, 16)]
    with pytest.raises(InputError, match=r"c/0/1/1.*checksum"):
        read_windows(array, windows)


@pytest.mark.parametrize(("chunks", "shards"), [((8, 8, 8), (16, 16, 16)), ((16, 16, 16), None)])
def test_windows_written_on_the_device_read_back_on_the_host(tmp_path, rng, chunks, shards):
    import cupy

    from linumpy.gpu.windows import write_windows

    values = rng.integers(0, 99, (20, 40, 37)).astype(np.float32)
    array = make(tmp_path / "a.zarr", np.zeros_like(values), chunks, shards)
    windows = [
        (slice(None), slice(i, min(i + 16, 40)), slice(j, min(j + 16, 37)))
        for i in range(0, 40, 16)
        for j in range(0, 37, 16)
    ]
    write_windows(array, windows, [cupy.asarray(values[w]) for w in windows])
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr")[...], values)
    # Strided and of another type: cast and copied.
    big = cupy.asarray(np.repeat(values, 2, axis=2)).astype(cupy.float64)
    write_windows(array, [(slice(None),) * 3], [big[:, :, ::2] + 1])
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr")[...], values + 1)


def test_a_window_that_cuts_a_shard_is_refused(tmp_path, rng):
    import cupy

    from linumpy.gpu.windows import write_windows

    array = make(tmp_path / "a.zarr", np.zeros((16, 32, 32), np.float32), (8, 8, 8), (16, 16, 16))
    window = (slice(None), slice(0, 16), slice(0, 24))
    with pytest.raises(ValueError, match="cuts a stored object"):
        write_windows(array, [window], [cupy.ones((16, 16, 24), cupy.float32)])
    with pytest.raises(ValueError, match="written to"):
        write_windows(array, [window], [cupy.ones((16, 16, 23), cupy.float32)])
