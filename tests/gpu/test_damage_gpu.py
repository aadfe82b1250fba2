"""Damaged files read on a GPU: every backend names them, and nothing unchecked reaches nvCOMP.

Seven codecs times seven damages, each by all backends that take the codec. After each, the process
decodes a good file on the device: it was not poisoned.
"""

import shutil

import google_crc32c
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from linumpy.core.errors import InputError
from linumpy.gpu.zarr_io import gpu_zarr_context, last_read, read_zarr_to_gpu
from linumpy.io.grid import GridInfo, GridTile, create_grid, open_grid
from linumpy.io.omezarr import ImageSpec, create_image, open_image
from linumpy.store.manifest import check_files, read_manifest, write_manifest

from . import needs_gpu

pytestmark = needs_gpu

SHAPE, CHUNKS = (32, 64, 64), (8, 16, 16)
SHARDS = (16, 32, 32)
N_INNER = 8

CODECS = {
    "raw": {"compressors": None},
    "raw crc32c": {"compressors": [Crc32cCodec()]},
    "zstd": {"compressors": [ZstdCodec(level=1)]},
    "zstd crc32c": {"compressors": [ZstdCodec(level=1), Crc32cCodec()]},
    "gzip": {"compressors": [GzipCodec(level=1)]},
    "blosc lz4": {"compressors": [BloscCodec(cname="lz4")]},
    "sharded zstd crc32c": {"compressors": [ZstdCodec(level=1), Crc32cCodec()], "shards": SHARDS},
}

BACKENDS = ("kvikio", "nvcomp", "host", "zarr", "auto", "context")


def make(path, data, codec, *, manifest=True, chunks=CHUNKS):
    array = zarr.create_array(
        path, shape=data.shape, dtype=data.dtype, chunks=chunks, **CODECS[codec]
    )
    array[...] = data
    if manifest:
        write_manifest(path)
    return path


def files(path):
    return sorted(p for p in (path / "c").rglob("*") if p.is_file())


def read(path, backend):
    if backend == "context":
        with gpu_zarr_context():
            return zarr.open_array(path, mode="r")[...]
    return read_zarr_to_gpu(path, backend=backend)


def takes(codec, backend):
    if backend == "kvikio":
        return codec.startswith("raw")
    return backend != "nvcomp" or not codec.startswith("raw")


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1 << 5
    file.write_bytes(data)


def swap(file):
    other = files(file.parents[3])[0]
    assert other != file
    ours = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(ours)


DAMAGES = {
    "flip": flip,
    "truncate": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "delete": lambda file: file.unlink(),
    "surplus": lambda file: file.write_bytes(file.read_bytes() + bytes(9)),
    "swap": swap,
}
WITHOUT_MANIFEST = ("flip", "truncate", "empty", "zeros", "surplus")
"""A deleted shard is fill value, and shards that changed places are whole: only a list tells."""


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(8).integers(0, 99, SHAPE).astype("f4")


@pytest.fixture(scope="module")
def good(data, tmp_path_factory):
    """A file that only a device that works decodes."""
    return make(tmp_path_factory.mktemp("good") / "a", data, "zstd crc32c")


@pytest.fixture
def device_works(good, data):
    """After the test, the process still decodes on the device."""
    yield
    assert np.array_equal(read_zarr_to_gpu(good, backend="nvcomp").get(), data)
    assert last_read().n_on_host == 0


class Spy:
    """What nvCOMP is given to decompress, byte for byte."""

    def __init__(self, monkeypatch):
        from linumpy.gpu import nvcomp

        self.given = []
        original = nvcomp.decompress

        def decompress(algorithm, pointers, nbytes, *rest):
            stream = rest[-1]
            addresses, sizes = pointers.get(stream=stream), nbytes.get(stream=stream)
            stream.synchronize()
            self.given += [bytes_at(*chunk) for chunk in zip(addresses, sizes, strict=True)]
            original(algorithm, pointers, nbytes, *rest)

        monkeypatch.setattr(nvcomp, "decompress", decompress)


def bytes_at(address, nbytes):
    import cupy

    memory = cupy.cuda.UnownedMemory(int(address), int(nbytes), None)
    return cupy.ndarray((int(nbytes),), "u1", cupy.cuda.MemoryPointer(memory, 0)).get().tobytes()


@pytest.fixture
def spy(monkeypatch):
    return Spy(monkeypatch)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("codec", CODECS)
def test_all_damages_are_found_by_all_backends(tmp_path, data, codec, damage, spy, device_works):
    """Rests on `checking_files` in `read_items`; for Zarr's own decoders on `check_for_zarr`.

    Seen to fail with a digest that is the same for all chunks that end in their own crc32c.
    """
    silent = []
    for backend in filter(lambda b: takes(codec, b), BACKENDS):
        path = make(tmp_path / backend, data, codec)
        assert np.array_equal(read(path, backend).get(), data)
        payloads = set(spy.given)
        spy.given.clear()
        file = files(path)[-1]
        DAMAGES[damage](file)
        try:
            read(path, backend)
        except InputError as error:
            assert str(path) in str(error), backend
            assert str(file) in str(error) or damage == "swap", backend
        else:
            silent.append(backend)
        if "crc32c" in codec and damage != "swap":
            # Of chunks that are not fit nvCOMP sees a frame that decodes to nothing.
            assert all(given in payloads or len(given) < 16 for given in spy.given)
        elif "crc32c" not in codec:
            assert spy.given == [], "unchecked bytes on the device"
        spy.given.clear()
    assert silent == []


@pytest.mark.parametrize("damage", WITHOUT_MANIFEST)
def test_without_a_manifest_our_own_codecs_find_it(tmp_path, data, damage, spy, device_works):
    codec = "sharded zstd crc32c"
    for backend in filter(lambda b: takes(codec, b), BACKENDS):
        path = make(tmp_path / backend, data, codec, manifest=False)
        assert np.array_equal(read(path, backend).get(), data)
        payloads = set(spy.given)
        spy.given.clear()
        file = files(path)[-1]
        DAMAGES[damage](file)
        with pytest.raises(InputError, match=str(file)):
            read(path, backend)
        assert all(given in payloads or len(given) < 16 for given in spy.given), backend
        spy.given.clear()


def test_every_inner_chunk_is_checked(tmp_path, data, spy, device_works):
    """One flipped bit anywhere in a shard, by the two readers that decode on the device."""
    path = make(tmp_path / "a", data, "sharded zstd crc32c", manifest=False)
    read(path, "nvcomp")
    payloads = set(spy.given)
    file = files(path)[2]
    whole = file.read_bytes()
    for position in range(5, len(whole), len(whole) // 40):
        bad = bytearray(whole)
        bad[position] ^= 1
        file.write_bytes(bad)
        for backend in ("nvcomp", "context"):
            with pytest.raises(InputError, match=str(file)):
                read(path, backend)
    assert all(given in payloads or len(given) < 16 for given in spy.given)


@pytest.mark.parametrize("backend", ["nvcomp", "host", "zarr", "auto", "context"])
def test_inner_chunks_that_changed_places_are_found(tmp_path, data, backend, device_works):
    """Their own checksums fit, and the index's is made to: only the digest of the shard tells."""
    path = make(tmp_path / "a", data, "sharded zstd crc32c")
    file = files(path)[1]
    whole = bytearray(file.read_bytes())
    index = np.frombuffer(whole, "<u8", 2 * N_INNER, len(whole) - 16 * N_INNER - 4)
    index = index.reshape(-1, 2).copy()
    index[[0, 3]] = index[[3, 0]]
    whole[-16 * N_INNER - 4 :] = index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(
        4, "little"
    )
    file.write_bytes(whole)
    with pytest.raises(InputError, match=f"{file}: altered"):
        read(path, backend)


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc lz4", "lz4", "zlib"])
def test_what_nothing_vouches_for_never_reaches_nvcomp(tmp_path, data, codec, spy, device_works):
    """Chunks enough that the device is the faster one; a manifest then lets it have them.

    Seen to fail where `choose` took every file for vouched for.
    """
    import numcodecs

    path, chunks = tmp_path / "a", (4, 4, 4)
    if codec in CODECS:
        make(path, data, codec, manifest=False, chunks=chunks)
    else:
        array = zarr.create_array(
            path,
            shape=data.shape,
            dtype="f4",
            chunks=chunks,
            compressors=numcodecs.get_codec({"id": codec}),
            zarr_format=2,
        )
        array[...] = data
    for backend in ("auto", "context"):
        assert np.array_equal(read(path, backend).get(), data)
        assert spy.given == []
    write_manifest(path)
    for backend in ("auto", "context"):
        assert np.array_equal(read(path, backend).get(), data)
        assert spy.given != []
        spy.given.clear()


def test_what_the_device_writes_has_the_right_manifest(tmp_path, rng, script, device_works):
    import cupy

    tiles = tuple(GridTile(x, y, 0.1 * x, 0.1 * y) for x in range(2) for y in range(2))
    info = GridInfo(3, (16, 64, 64), (10.0, 10.0, 10.0), 0.2, tiles, (640.0, 640.0))
    keys = [(t.ix, t.iy) for t in tiles]
    values = {key: rng.random(info.tile_shape_px, np.float32) for key in keys}
    path = tmp_path / "grid.ome.zarr"
    with create_grid(path, info, overwrite=False, with_valid=True) as grid:
        grid.write_tiles_on_gpu(keys, [cupy.asarray(values[k]) for k in keys], [None] * 4)
    spec = ImageSpec((16, 64, 64), (10.0, 10.0, 10.0), (5.0, 5.0, 5.0), (16, 32, 32), (16, 64, 64))
    volume = tmp_path / "slice.ome.zarr"
    with create_image(volume, spec, overwrite=False) as image, gpu_zarr_context():
        # By its folder: Zarr 3.1 writes to file:// by fsspec, which makes no folders.
        array = zarr.open_array(image.array.store_path.removeprefix("file://"), mode="r+")
        array[...] = cupy.asarray(values[0, 0])
    for store in (path, volume):
        assert check_files(store) is not None
        for name in read_manifest(store).files:
            read_manifest(store).check(name)
        script("verify", store, "--deep")
    assert np.array_equal(np.asarray(open_image(volume).array), values[0, 0])
    found = open_grid(path).read_tiles_on_gpu(keys)
    for key, (tile, _) in zip(keys, found, strict=True):
        assert np.array_equal(tile.get(), values[key])
    # Of a copy, each shard is damaged in turn.
    for number, file in enumerate(p for p in path.rglob("*") if "/c/" in str(p) and p.is_file()):
        copy = tmp_path / f"copy{number}.ome.zarr"
        shutil.copytree(path, copy)
        flip(copy / file.relative_to(path))
        with pytest.raises(InputError, match=str(copy / file.relative_to(path))):
            open_grid(copy).read_tiles_on_gpu(keys)
