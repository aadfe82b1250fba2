"""Which chunks may reach a device's decoder, and what validates them; needs no device."""

import shutil
import threading

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from linumpy.core.errors import InputError
from linumpy.gpu.backends import choose
from linumpy.gpu.objects import KeyObject, LocalObject
from linumpy.gpu.stored_checks import check_for_zarr, checking_files, plan_of
from linumpy.gpu.zarr_io import array_layout
from linumpy.store.manifest import write_manifest

SHAPE, CHUNKS, SHARDS = (16, 16, 32), (8, 8, 8), (16, 16, 16)

FORMATS = {
    "raw": [],
    "zstd": [ZstdCodec(level=1)],
    "gzip": [GzipCodec(level=1)],
    "blosc lz4": [BloscCodec(cname="lz4")],
    "blosc zstd": [BloscCodec(cname="zstd")],
    "lz4": numcodecs.LZ4(),
    "zlib": numcodecs.Zlib(),
}


def store(path, compressors, *, crc=False, shards=None):
    """An array, and its layout."""
    v2 = not isinstance(compressors, list)
    keywords = {"zarr_format": 2} if v2 else {"shards": shards}
    if crc:
        compressors = [*compressors, Crc32cCodec()]
    array = zarr.create_array(
        path,
        shape=SHAPE,
        dtype="f4",
        chunks=CHUNKS,
        compressors=(compressors or None) if v2 or compressors else None,
        **keywords,
    )
    data = np.random.default_rng(8).integers(0, 9, SHAPE)
    array[...] = data
    return array, array_layout(array)


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] not in "z.")


def objects(path):
    return [LocalObject(str(file)) for file in files(path)]


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("crc", [False, True], ids=["", "crc32c"])
@pytest.mark.parametrize("listed", [False, True], ids=["", "manifest"])
def test_only_what_is_vouched_for_is_decoded_on_a_device(tmp_path, kind, crc, listed):
    """The table of docs/gpu.md; seen to fail without the question to `vouched` in `choose`."""
    if crc and not isinstance(FORMATS[kind], list):
        pytest.skip("Zarr v2 has no chains")
    _, layout = store(tmp_path / "a", FORMATS[kind], crc=crc)
    if listed:
        write_manifest(tmp_path / "a")
    with checking_files(objects(tmp_path / "a")) as vouched:
        backend, reason = choose(layout, 100_000, vouched)
        assert vouched() == listed
    if kind == "raw":
        assert backend == "kvikio"
    else:
        assert (backend == "nvcomp") == (crc or listed), reason
        assert crc or listed or "without crc32c" in reason
    # Without anybody's word the answer is that of no manifest.
    assert choose(layout, 100_000)[0] == (backend if crc or kind == "raw" else "host")


DAMAGES = {
    "flip": flip,
    "truncate": lambda file: file.write_bytes(file.read_bytes()[:-3]),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "delete": lambda file: file.unlink(),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"xyz"),
    "swap": lambda file: exchange(file, files(file.parents[3])[0]),
}


def exchange(one, other):
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["raw", "zstd", "gzip", "blosc lz4"])
def test_a_damaged_file_is_found_before_anything_is_decoded(tmp_path, kind, damage):
    """Without crc32c the whole file was read before; seen to fail without `checking_files`."""
    array, layout = store(tmp_path / "a", FORMATS[kind])
    array[8:, 8:, 24:] = 12
    write_manifest(tmp_path / "a")
    stored = objects(tmp_path / "a")
    DAMAGES[damage](files(tmp_path / "a")[-1])
    before = threading.active_count()
    with pytest.raises(InputError, match=str(tmp_path / "a")), checking_files(stored) as vouched:
        choose(layout, 100_000, vouched)
        if kind == "raw":
            vouched()
        pytest.fail("the device was chosen")
    assert threading.active_count() == before


def test_swapped_inner_chunks_of_a_shard_are_found(tmp_path):
    """Each has a checksum that fits; seen to fail without the wait at the block's end."""
    store(tmp_path / "a", [ZstdCodec(level=1)], crc=True, shards=SHARDS)
    write_manifest(tmp_path / "a")
    file = files(tmp_path / "a")[0]
    data = bytearray(file.read_bytes())
    index = np.frombuffer(data, "<u8", 16, len(data) - 132).reshape(8, 2).copy()
    index[[0, 1]] = index[[1, 0]]
    import google_crc32c

    body = index.tobytes()
    data[-132:] = body + google_crc32c.value(body).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(InputError, match=f"{file}: altered"), checking_files(objects(tmp_path)):
        pass


def test_an_error_in_the_block_is_the_one_that_is_raised(tmp_path):
    store(tmp_path / "a", [])
    write_manifest(tmp_path / "a")
    stored = objects(tmp_path / "a")
    files(tmp_path / "a")[-1].unlink()
    with pytest.raises(MemoryError), checking_files(stored):
        raise MemoryError
    assert not [t for t in threading.enumerate() if t.name.startswith("linumpy-check")]


def test_memory_stores_are_not_vouched_for(tmp_path):
    store(tmp_path / "a", [])
    write_manifest(tmp_path / "a")
    elsewhere = KeyObject(zarr.storage.MemoryStore(), "c/0")
    for stored in ([], [elsewhere], [*objects(tmp_path / "a"), elsewhere]):
        with checking_files(stored) as vouched:
            assert not vouched()


@pytest.mark.parametrize("damage", ["truncate", "empty", "zeros", "longer"])
def test_zarr_is_not_given_what_it_would_believe(tmp_path, damage):
    """Without a manifest; zarr 3.1 reads an empty shard as fill value.

    Seen to fail without `check_chunk` in `check_for_zarr`.
    """
    _, layout = store(tmp_path / "a", [ZstdCodec(level=1)], crc=True, shards=SHARDS)
    file = files(tmp_path / "a")[0]
    wanted = [(LocalObject(str(file)), np.s_[0:16, 3, 2:5])]
    check_for_zarr(wanted, plan_of(layout))
    DAMAGES[damage](file)
    with pytest.raises(InputError, match=str(file)):
        check_for_zarr(wanted, plan_of(layout))


def test_zarr_is_not_given_a_frame_that_declares_a_terabyte(tmp_path):
    _, layout = store(tmp_path / "a", [ZstdCodec(level=1)])
    file = files(tmp_path / "a")[0]
    good = file.read_bytes()
    bomb = good[:4] + bytes([0xC0, 0x58]) + (1 << 40).to_bytes(8, "little") + good[7:]
    file.write_bytes(bomb)
    with pytest.raises(InputError, match=f"{file}: .*{1 << 40}"):
        check_for_zarr([(LocalObject(str(file)), (slice(None),) * 3)], plan_of(layout))


def test_a_deleted_chunk_is_only_found_with_a_manifest(tmp_path):
    """Seen to fail without `check_chunk_file` in `check_for_zarr`."""
    _, layout = store(tmp_path / "a", [ZstdCodec(level=1)], crc=True, shards=SHARDS)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write_manifest(tmp_path / "b")
    for folder in ("a", "b"):
        file = files(tmp_path / folder)[0]
        file.unlink()
        wanted = [(LocalObject(str(file)), (slice(None),) * 3)]
        if folder == "a":
            check_for_zarr(wanted, plan_of(layout))
        else:
            with pytest.raises(InputError, match=str(file)):
                check_for_zarr(wanted, None)
