"""The guard in front of the host's decoder: damage is an error that names the chunk."""

import struct

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numcodecs import zstd

from linumpy.core.errors import InputError
from linumpy.io.zarr_io import read_zarr, zarr_context
from linumpy.store import guarded_pipeline

from .zarr_layouts import declaring, make, quiet, sizeless, values


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


def shortened(length):
    def damage(shard):
        shard.index[1, 0, 1, 1] = length

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
        (entry(10, 7), r"inner chunk \(0, 0, 0\) overlaps inner chunk \(1, 0, 1\)"),
        (shortened(0), r"inner chunk \(1, 0, 1\): 0 bytes stored"),
        (shortened(4), r"inner chunk \(1, 0, 1\): 4 bytes stored"),
        (shortened(7), r"inner chunk \(1, 0, 1\): wrong checksum"),
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


@pytest.mark.slow
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
