"""What newer versions of Zarr bring, and the defaults of new arrays, on a device."""

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from linumpy.gpu.codec_pipeline import GpuPathWarning
from linumpy.gpu.codecs import NvcompZstdCodec
from linumpy.gpu.zarr_io import gpu_zarr_context, last_read, read_zarr_to_gpu

from . import needs_gpu

pytestmark = needs_gpu


@pytest.mark.parametrize("shards", [None, (12, 20, 24)])
def test_new_arrays_get_the_codec_of_the_device_by_default(tmp_path, rng, shards):
    import cupy

    data = rng.integers(0, 99, (17, 40, 33)).astype("f4")
    with gpu_zarr_context() as context:
        array = zarr.create_array(
            tmp_path / "a", shape=data.shape, chunks=(6, 10, 8), shards=shards, dtype="f4"
        )
        assert type(array.compressors[0]) is NvcompZstdCodec
        array[...] = cupy.asarray(data)
        assert np.array_equal(array[...].get(), data)
        assert context.last_read.n_missing == 0
    plain = zarr.create_array(tmp_path / "b", shape=data.shape, chunks=(6, 10, 8), dtype="f4")
    assert type(plain.compressors[0]) is ZstdCodec
    assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], data)


@pytest.mark.parametrize(
    "prefer, compressors, backend",
    [
        ("auto", [], "kvikio"),
        ("kvikio", [], "kvikio"),
        ("zarr-gpu", [], "zarr"),
        ("zarr-gpu", [ZstdCodec(level=1), Crc32cCodec()], "zarr"),
    ],
)
def test_prefer_names_the_backend(tmp_path, rng, prefer, compressors, backend):
    data = rng.random((40, 64, 64)).astype("f4")
    array = zarr.create_array(
        tmp_path / "a", shape=data.shape, chunks=(8, 16, 16), dtype="f4", compressors=compressors
    )
    array[...] = data
    assert np.array_equal(read_zarr_to_gpu(tmp_path / "a", prefer=prefer).get(), data)
    assert last_read().backend == backend


def test_prefer_kvikio_is_an_error_for_compressed_chunks(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="f4", chunks=(4,))[...] = 1
    with pytest.raises(NotImplementedError, match="kvikio reads raw chunks"):
        read_zarr_to_gpu(tmp_path / "a", prefer="kvikio")


def test_scaled_values_are_decoded_by_the_host(tmp_path, rng):
    import cupy

    if not hasattr(zarr.codecs, "ScaleOffset"):
        pytest.skip("Zarr before 3.2 has no such codec")
    data = rng.integers(0, 99, (17, 40)).astype("f4")
    filters = [zarr.codecs.ScaleOffset(offset=-3, scale=4)]
    array = zarr.create_array(
        tmp_path / "a", shape=data.shape, chunks=(6, 10), dtype="f4", filters=filters
    )
    array[...] = data
    assert np.array_equal(read_zarr_to_gpu(tmp_path / "a", np.s_[2:9]).get(), data[2:9])
    assert last_read().backend == "host" and "scale_offset" in last_read().causes[0]
    for backend in ("nvcomp", "kvikio", "zarr"):
        with pytest.raises(NotImplementedError, match="scale_offset"):
            read_zarr_to_gpu(tmp_path / "a", backend=backend)
    for backend in ("auto", "zarr"):
        with gpu_zarr_context(backend=backend):
            inside = zarr.open_array(tmp_path / "a")
            with pytest.warns(GpuPathWarning, match="scale_offset"):
                assert np.array_equal(inside[...].get(), data)
            with pytest.warns(GpuPathWarning, match="scale_offset"):
                inside[3:5] = cupy.asarray(data[3:5] + 1)
        data[3:5] += 1
        assert np.array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], data)


def test_missing_chunks_are_reported_to_zarr(tmp_path):
    if "read_missing_chunks" not in zarr.config.get("array"):
        pytest.skip("Zarr before 3.2 always reads missing chunks as fill value")
    array = zarr.create_array(tmp_path / "a", shape=(8,), chunks=(4,), dtype="f4")
    array[:4] = 1
    with gpu_zarr_context(), zarr.config.set({"array.read_missing_chunks": False}):
        again = zarr.open_array(tmp_path / "a", mode="r")
        assert np.array_equal(again[:4].get(), np.ones(4, "f4"))
        with pytest.raises(zarr.errors.ChunkNotFoundError, match="c/1"):
            again[...]


def test_rectilinear_grids_are_read_and_written_by_the_host(tmp_path):
    import cupy

    if "rectilinear_chunks" not in zarr.config.get("array"):
        pytest.skip("Zarr before 3.2 has regular grids only")
    data = np.arange(48, dtype="i4").reshape(8, 6)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            tmp_path / "a", shape=(8, 6), chunks=[[3, 5], [4, 2]], dtype="i4", compressors=None
        )
        array[...] = data
        with pytest.warns(RuntimeWarning, match="rectilinear"):
            assert np.array_equal(read_zarr_to_gpu(tmp_path / "a").get(), data)
        with gpu_zarr_context():
            inside = zarr.open_array(tmp_path / "a")
            with pytest.warns(GpuPathWarning, match="rectilinear"):
                assert np.array_equal(inside[...].get(), data)
            with pytest.warns(GpuPathWarning, match="rectilinear"):
                inside[2:7] = cupy.asarray(data[2:7] + 1)
        data[2:7] += 1
        assert np.array_equal(array[...], data)
