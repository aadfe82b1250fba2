"""Walk over compressed chunks, compared with numcodecs' decoders. Needs no GPU."""

import gzip
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc, lz4, zstd

from linumpy.core.errors import InputError
from linumpy.store.frames import (
    KINDS,
    blosc_streams,
    check_declared,
    inspect_frame,
    parse_blosc,
    zstd_header,
)

MAGIC = bytes.fromhex("28b52ffd")
SIZES = [1, 5, 255, 256, 257, 65_535, 65_791, 65_792, 131_072, 131_073, 1_000_000]


def content_of(rng, size):
    """Half noise, half repetition: blocks of every type."""
    noise = rng.integers(0, 256, size // 2, dtype=np.uint8).tobytes()
    return noise + (b"tissue " * size)[: size - len(noise)]


def raw_block(content, last=True):
    return (len(content) << 3 | last).to_bytes(3, "little") + content


def run_block(byte, count, last=True):
    return (count << 3 | 2 | last).to_bytes(3, "little") + byte


def sizeless(content):
    """A frame of raw blocks that does not declare its size: window of 1 MiB, nothing else."""
    pieces = [content[at : at + 100_000] for at in range(0, len(content), 100_000)] or [b""]
    blocks = [raw_block(piece, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return MAGIC + bytes([0x00, 10 << 3]) + b"".join(blocks)


def skippable(content):
    return struct.pack("<II", 0x184D2A57, len(content)) + content


# --- Zstandard ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("level", [-5, 0, 1, 9])
def test_zstd_declares_what_the_decoder_gives(rng, size, checksum, level):
    content = content_of(rng, size)
    data = zstd.compress(content, level, checksum)
    frame = inspect_frame("zstd", data)
    assert frame.content_nbytes == len(zstd.decompress(data)) == size
    assert frame.content_range == (size, size)
    assert (frame.n_frames, frame.checksum) == (1, checksum)
    assert frame.problem is None and frame.gpu is None


@pytest.mark.parametrize("kind", ["bytes", "memoryview", "uint8", "float32"])
def test_any_contiguous_buffer_is_taken(kind):
    content = np.arange(1000, dtype="f4").tobytes()
    data = zstd.compress(content)
    data += skippable(b"x" * (-len(data) % 4 + 4))
    views = {
        "bytes": data,
        "memoryview": memoryview(data),
        "uint8": np.frombuffer(data, np.uint8),
        "float32": np.frombuffer(data, np.float32),
    }
    assert inspect_frame("zstd", views[kind]).content_nbytes == 4000


def test_a_strided_array_is_refused():
    with pytest.raises(InputError, match="contiguous"):
        inspect_frame("zstd", np.zeros(20, np.uint8)[::2])


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="lzma.*zstd"):
        inspect_frame("lzma", b"")


@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_without_content(checksum):
    frame = inspect_frame("zstd", zstd.compress(b"", 1, checksum))
    assert (frame.content_nbytes, frame.problem, frame.gpu) == (0, None, None)
    assert frame.content_range == (0, 0)


@pytest.mark.parametrize("size", [0, 1, 99_999, 250_000])
def test_zstd_without_a_size_is_for_the_host(rng, size):
    content = content_of(rng, size)
    data = sizeless(content)
    frame = inspect_frame("zstd", data)
    assert frame.content_nbytes is None
    assert frame.problem is None and frame.gpu == "no content size"
    assert frame.content_range == (size, size)
    if size:
        assert zstd.decompress(data) == content


@pytest.mark.parametrize("size_code, sizes", [(0, [0, 200]), (1, [256, 700]), (2, [9, 70_000])])
def test_zstd_header_of_every_width(size_code, sizes):
    """Single-segment headers written by hand: sizes in 1, 2 (less 256), 4 and 8 bytes."""
    for size in sizes:
        width = (1, 2, 4, 8)[size_code]
        field = (size - 256 * (size_code == 1)).to_bytes(width, "little")
        data = MAGIC + bytes([size_code << 6 | 0x20]) + field + raw_block(b"a" * size)
        frame = inspect_frame("zstd", data)
        assert (frame.problem, frame.content_nbytes) == (None, size)
        if size:
            assert zstd.decompress(data) == b"a" * size
    wide = MAGIC + bytes([3 << 6 | 0x20]) + (5).to_bytes(8, "little") + raw_block(b"seven"[:5])
    assert inspect_frame("zstd", wide).content_nbytes == len(zstd.decompress(wide)) == 5


def test_zstd_window_limits_the_block():
    """A window of 1 KiB and an eighth."""
    start = MAGIC + bytes([0x00, 0x01])
    assert inspect_frame("zstd", start + raw_block(bytes(1152))).problem is None
    assert inspect_frame("zstd", start + raw_block(bytes(1153))).problem


def test_zstd_dictionaries():
    """Dictionary 0 means none; any other is needed and not there."""
    for id_code, width in ((1, 1), (2, 2), (3, 4)):
        for number, problem in ((0, None), (7, "needs dictionary 7")):
            data = MAGIC + bytes([0x20 | id_code]) + number.to_bytes(width, "little")
            frame = inspect_frame("zstd", data + b"\x03" + raw_block(b"abc"))
            assert (frame.problem or "None").startswith(problem or "None")
            assert zstd_header(memoryview(data + b"\x03")).dictionary == number


def test_zstd_several_frames_and_skippable_ones(rng):
    first, second = content_of(rng, 5000), content_of(rng, 140_000)
    one, two = zstd.compress(first, 1, True), zstd.compress(second, 1, False)
    frame = inspect_frame("zstd", one + two)
    assert (frame.content_nbytes, frame.n_frames, frame.checksum) == (145_000, 2, False)
    assert frame.gpu == "several frames" and frame.problem is None
    assert inspect_frame("zstd", one + one).checksum
    assert not inspect_frame("zstd", two + one).checksum
    for data in (skippable(b"note") + one, one + skippable(b""), one + skippable(b"x" * 300)):
        frame = inspect_frame("zstd", data)
        assert (frame.content_nbytes, frame.n_frames, frame.checksum) == (5000, 1, True)
        assert frame.gpu == "a skippable frame" and frame.problem is None
    mixed = inspect_frame("zstd", one + sizeless(first) + two)
    assert mixed.content_nbytes is None and mixed.content_range == (150_000, 150_000)
    only = inspect_frame("zstd", skippable(b"abc"))
    assert (only.content_nbytes, only.n_frames, only.checksum) == (0, 0, False)


def test_zstd_is_refused_when_declared_and_held_differ():
    """The bomb of 16 bytes that declares 1 TiB, and its smaller kin."""
    bomb = MAGIC + bytes([3 << 6 | 0x20]) + (1 << 40).to_bytes(8, "little") + raw_block(b"")
    assert len(bomb) == 16
    frame = inspect_frame("zstd", bomb)
    assert frame.problem == "declares 1099511627776 bytes of content, its blocks hold 0 to 0"
    less = MAGIC + bytes([0x20, 2]) + raw_block(b"a", False) + raw_block(b"bc")
    assert "its blocks hold 3 to 3" in inspect_frame("zstd", less).problem
    runs = MAGIC + bytes([0, 0x50]) + run_block(b"\0", 131_072, False) * 1000 + run_block(b"\0", 1)
    assert inspect_frame("zstd", runs).content_range == (131_072_001,) * 2
    with pytest.raises(InputError, match="store/c/0: zstd data hold 131072001 to 131072001"):
        check_declared("zstd", runs, 1 << 20, "store/c/0")


@pytest.mark.parametrize(
    "data, problem",
    [
        (b"", "no bytes"),
        (MAGIC[:3], "truncated"),
        (b"\x27\xb5\x2f\xfd" + bytes(20), "bad magic number"),
        (MAGIC + bytes([0x28, 0]) + raw_block(b""), "reserved bit"),
        (MAGIC + bytes([0x20, 2]) + b"\x07\0\0", "reserved type"),
        (MAGIC + bytes([0x20, 9]) + (1 << 3 | 5).to_bytes(3, "little") + b"a", "compressed block"),
        (MAGIC + bytes([0x20, 2]) + raw_block(b"abc"), "the frame allows 2"),
        (MAGIC + bytes([0x00, 22 << 3]) + raw_block(b"abc"), "window of 2\\^32"),
        (zstd.compress(b"abc") + b"\0", "magic number"),
        (zstd.compress(b"abc") + b"garbage", "bad magic number"),
        (zstd.compress(b"abc") + skippable(b"abc")[:-1], "skippable frame runs"),
    ],
)
def test_zstd_problems(data, problem):
    frame = inspect_frame("zstd", data)
    assert frame.content_nbytes is None and frame.gpu == frame.problem
    with pytest.raises(InputError, match=f"z/c/1/2: malformed zstd data: .*{problem}"):
        check_declared("zstd", data, 3, "z/c/1/2")


# --- LZ4, gzip, zlib ------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_lz4_declares_what_the_decoder_gives(rng, size):
    data = lz4.compress(content_of(rng, size))
    frame = inspect_frame("lz4", data)
    assert frame.content_nbytes == len(lz4.decompress(data)) == size
    assert (frame.n_frames, frame.checksum, frame.problem, frame.gpu) == (1, False, None, None)


def test_lz4_best_ratio_is_within_the_bound():
    data = lz4.compress(bytes(10**7))
    assert inspect_frame("lz4", data).problem is None
    assert 250 * len(data) < 10**7


@pytest.mark.parametrize(
    "data, problem",
    [
        (b"\1\0\0", "truncated"),
        (b"\1\0\0\0", "no block"),
        (b"\xff\xff\xff\xff\0", "negative size"),
        (b"\xff\xff\xff\x7f" + bytes(1000), "255000 at most"),
    ],
)
def test_lz4_problems(data, problem):
    with pytest.raises(InputError, match=problem):
        check_declared("lz4", data, 1, "a chunk")


def gzip_with_everything(content):
    """A member with an extra field, a name, a comment and a header checksum."""
    header = bytes([0x1F, 0x8B, 8, 0x1E, 0, 0, 0, 0, 0, 3])
    header += b"\x03\x00abc" + b"name\0" + b"comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    return header + gzip.compress(content, mtime=0)[10:]


@pytest.mark.parametrize("size", [0, *SIZES])
def test_gzip_and_zlib_declare_no_size(rng, size):
    content = content_of(rng, size)
    for kind, data in (
        ("gzip", gzip.compress(content, mtime=0)),
        ("gzip", gzip_with_everything(content)),
        ("zlib", zlib.compress(content)),
    ):
        frame = inspect_frame(kind, data)
        assert (frame.content_nbytes, frame.n_frames, frame.checksum) == (None, 1, True)
        assert frame.problem is None and frame.gpu is None
        assert frame.content_range[0] <= size <= frame.content_range[1]
        assert check_declared(kind, data, size, "here") == frame
    assert gzip.decompress(gzip_with_everything(content)) == content


def test_deflate_best_ratio_is_within_the_bound():
    for kind, data in (
        ("gzip", gzip.compress(bytes(10**7), mtime=0)),
        ("zlib", zlib.compress(bytes(10**7))),
    ):
        assert inspect_frame(kind, data).content_range[1] >= 10**7 > 1000 * len(data)
        with pytest.raises(InputError, match="here: .* hold"):
            check_declared(kind, data, 10**8, "here")


@pytest.mark.parametrize(
    "kind, data, problem",
    [
        ("gzip", b"\x1f\x8b\x09" + bytes(30), "bad magic"),
        ("gzip", b"\x1f\x8b\x08\x20" + bytes(30), "reserved bit"),
        ("gzip", b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff" + bytes(30), "trailer"),
        ("gzip", b"\x1f\x8b\x08\x08" + b"n" * 30, "file name"),
        ("gzip", gzip.compress(b"", mtime=0)[:-1], "trailer"),
        ("gzip", gzip.compress(b"abc", mtime=0)[:-4] + b"\xff\xff\0\0", "says 65535 bytes"),
        ("gzip", gzip_with_everything(b"")[:-1], "trailer"),
        ("zlib", b"\x78\x9d" + bytes(30), "bad header"),
        ("zlib", b"\x79\x9c" + bytes(30), "bad header"),
        ("zlib", b"\x78\xbb" + bytes(30), "preset dictionary"),
        ("zlib", zlib.compress(b"")[:-1], "checksum"),
    ],
)
def test_gzip_and_zlib_problems(kind, data, problem):
    assert problem in inspect_frame(kind, data).problem


# --- Blosc ----------------------------------------------------------------------------------

SHUFFLES = {"none": 0, "byte": 1, "bit": 2}


def unshuffled(block, shuffle, item):
    """Undo the shuffle of one block, in NumPy."""
    octets = np.frombuffer(block, np.uint8)
    count = octets.size // item
    if shuffle == "bit":
        # all or nothing: with an odd number of items the block is left as it is
        count -= count if count % 8 else 0
    body, rest = octets[: count * item], octets[count * item :]
    if shuffle == "byte":
        body = body.reshape(item, count).T
    elif shuffle == "bit":
        # a row a bit of the item, lowest first; within its bytes the first item is lowest
        bits = np.unpackbits(body.reshape(item * 8, count // 8), axis=1, bitorder="little")
        body = np.packbits(bits.T, axis=1, bitorder="little")
    return body.tobytes() + rest.tobytes()


def decoded_by_streams(data):
    header = parse_blosc(data)
    streams = blosc_streams(data, header)
    shuffled = bytearray(header.nbytes)
    for source, size, target, length, raw in zip(
        streams.src_offset.tolist(),
        streams.src_nbytes.tolist(),
        streams.dst_offset.tolist(),
        streams.dst_nbytes.tolist(),
        streams.stored_raw.tolist(),
        strict=True,
    ):
        piece = bytes(data[source : source + size])
        if not raw and header.codec == "lz4":
            piece = lz4.decompress(struct.pack("<I", length) + piece)
        elif not raw:
            piece = zstd.decompress(piece)
        assert len(piece) == length
        shuffled[target : target + length] = piece
    assert np.array_equal(streams.dst_offset, np.cumsum(streams.dst_nbytes) - streams.dst_nbytes)
    if header.memcpyed:
        return header, streams, bytes(shuffled)
    blocks = range(0, header.nbytes, header.blocksize)
    assert np.array_equal(streams.block, streams.dst_offset // header.blocksize)
    return (
        header,
        streams,
        b"".join(
            unshuffled(shuffled[at : at + header.blocksize], header.shuffle, header.typesize)
            for at in blocks
        ),
    )


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("shuffle", list(SHUFFLES))
@pytest.mark.parametrize("item", range(1, 9))
def test_blosc_streams_decode_to_the_content(rng, codec, shuffle, item):
    split_seen = set()
    for blocksize in (0, 4096):
        for count in (1, 7, 100, 127, 128, 129, 1000, 1031, 30_011):
            # rising numbers with pauses: their byte planes differ, and repeat
            steps = (rng.integers(0, 30, count) // 29 * 291).cumsum().astype("<u8")
            content = steps.view(np.uint8).reshape(count, 8)[:, :item].tobytes()
            data = blosc.compress(
                np.frombuffer(content, f"V{item}"), codec.encode(), 5, SHUFFLES[shuffle], blocksize
            )
            header, streams, decoded = decoded_by_streams(data)
            assert decoded == blosc.decompress(data) == content
            assert (header.typesize, header.nbytes) == (item, len(content))
            assert header.cbytes == len(data)
            assert header.codec == codec
            if not header.memcpyed:
                assert header.shuffle == shuffle or (item, shuffle) == (1, "byte")
                split_seen.add(bool(header.streams_a_block > 1))
            frame = inspect_frame("blosc", data)
            assert (frame.problem, frame.gpu) == (None, None)
            assert frame.content_nbytes == len(content)
    if codec == "lz4" and item > 1:
        assert True in split_seen


def test_blosc_noise_is_stored_raw(rng):
    content = rng.integers(0, 256, 300_000, dtype=np.uint8)
    data = blosc.compress(content, b"lz4", 5, 1)
    header, streams, decoded = decoded_by_streams(data)
    assert header.memcpyed and streams.stored_raw.all() and len(streams.block) == 1
    assert decoded == content.tobytes()
    half = np.concatenate([content[:150_000], np.zeros(1_000_000, np.uint8)])
    data = blosc.compress(half, b"lz4", 5, 0, 10_000)
    header, streams, decoded = decoded_by_streams(data)
    assert 0 < streams.stored_raw.sum() < streams.stored_raw.size
    assert decoded == half.tobytes()


def test_blosc_without_content():
    data = blosc.compress(b"", b"lz4", 5, 1)
    header = parse_blosc(data)
    assert header.nbytes == 0 and blosc_streams(data, header).block.size == 0
    assert inspect_frame("blosc", data).content_nbytes == 0


@pytest.mark.parametrize(
    "codec, item, reason",
    [("blosclz", 4, "Blosc codec blosclz"), ("zlib", 4, "zlib"), ("zstd", 16, "items of 16")],
)
def test_blosc_that_only_the_host_takes(codec, item, reason):
    content = np.zeros(4000, f"V{item}")
    data = blosc.compress(content, codec.encode(), 5, 1)
    frame = inspect_frame("blosc", data)
    assert frame.problem is None and reason in frame.gpu
    assert frame.content_nbytes == 4000 * item


def patched(data, at, *values):
    return data[:at] + bytes(values) + data[at + len(values) :]


def test_blosc_problems():
    content = np.arange(100_000, dtype=np.float32)
    data = blosc.compress(content, b"zstd", 5, 1, 40_000)
    header = parse_blosc(data)
    first = int(header.bstarts[0])
    assert header.bstarts.size == 10
    cases = {
        "needs 16 bytes": data[:15],
        "version 5": patched(data, 0, 5),
        "codec number 7": patched(data, 2, 0xE1),
        "contradict": patched(data, 2, data[2] | 0x05),
        "items of 0 bytes": patched(data, 3, 0),
        "negative size": patched(data, 7, 0x80),
        "blocks of 0 bytes": patched(data, 8, 0, 0, 0, 0),
        "blocks of 400001": patched(data, 8, *struct.pack("<I", 400_001)),
        "lists 400000 blocks": patched(data, 8, 1, 0, 0, 0),
        f"{len(data) + 1} there": data + b"\0",
        f"{len(data) - 1} there": data[:-1],
        "not 400000": patched(data, 2, data[2] | 2),
        "block 2 starts at byte 3 ": patched(data, 16 + 2 * 4, 3, 0, 0, 0),
        "block 0: stream 0 is empty or runs": patched(data, first, 0, 0, 0, 0),
        "block 0: stream 0 is empty": patched(data, first, 0xFF, 0xFF, 0xFF, 0x7F),
        "bad magic number": patched(data, first + 4, 0),
    }
    for problem, bad in cases.items():
        assert problem in (inspect_frame("blosc", bad).problem or ""), problem
    assert inspect_frame("blosc", data).problem is None


def container(codec, item, content_nbytes, *streams, flags=0):
    """A container with one block of the given streams."""
    body = b"".join(struct.pack("<I", len(stream)) + stream for stream in streams)
    header = struct.pack("<4B4I", 2, 1, codec << 5 | flags, item, *[content_nbytes] * 2, 0, 20)
    return header[:12] + struct.pack("<II", 20 + len(body), 20) + body


def test_blosc_streams_that_decode_to_another_size():
    assert inspect_frame("blosc", container(4, 1, 50, zstd.compress(bytes(50)))).problem is None
    problem = inspect_frame("blosc", container(4, 1, 50, zstd.compress(bytes(51)))).problem
    assert problem == "the stream at byte 24 holds 51 bytes, its block needs 50"
    problem = inspect_frame("blosc", container(1, 1, 5000, bytes(19))).problem
    assert problem == "19 bytes of LZ4 for 5000 bytes of a block"
    assert inspect_frame("blosc", container(1, 1, 19, bytes(19))).problem is None


@pytest.mark.parametrize(
    "item, count, splits", [(2, 128, 2), (2, 127, 1), (16, 200, 16), (17, 200, 1)]
)
def test_blosc_splits_by_rule_where_the_flag_allows_it(item, count, splits):
    """Encoders from before the flag leave it clear; so does this hand-made container."""
    size = item * count // splits
    streams = [zstd.compress(bytes([i]) * size) for i in range(splits)]
    data = container(4, item, item * count, *streams)
    assert parse_blosc(data).streams_a_block == splits
    assert decoded_by_streams(data)[2] == blosc.decompress(data)


def test_blosc_blocks_that_start_outside():
    data = container(4, 1, 50, zstd.compress(bytes(50)))
    for start in (19, len(data) - 3, len(data), 1 << 30, (1 << 32) - 1):
        with pytest.raises(InputError, match="block 0 starts at byte"):
            parse_blosc(patched(data, 16, *struct.pack("<I", start)))
    empty = patched(blosc.compress(b"", b"lz4", 5, 1), 2, 0x20)
    with pytest.raises(InputError, match="4 bytes behind an empty"):
        parse_blosc(patched(empty, 12, 20) + bytes(4))


def test_blosc_refuses_uneven_splits():
    content = np.arange(100_000, dtype=np.float32)
    data = blosc.compress(content, b"lz4", 5, 1, 40_000)
    assert parse_blosc(data).streams_a_block == 4
    uneven = parse_blosc(data).blocksize + 1
    with pytest.raises(InputError, match=f"blocks of {uneven} bytes split into 4"):
        parse_blosc(patched(data, 8, *struct.pack("<I", uneven)))


# --- damage of every kind -------------------------------------------------------------------


def examples():
    content = np.arange(700, dtype="<f4").tobytes() + bytes(2000)
    return {
        "zstd": zstd.compress(content, 3, True),
        "zstd-multi": zstd.compress(content, 3) + skippable(b"note") + sizeless(content),
        "blosc-zstd": blosc.compress(np.frombuffer(content, "<f4"), b"zstd", 5, 1, 1024),
        "blosc-lz4": blosc.compress(np.frombuffer(content, "<f4"), b"lz4", 5, 2, 1024),
        "lz4": lz4.compress(content),
        "gzip": gzip.compress(content, mtime=0),
        "zlib": zlib.compress(content),
    }


@pytest.mark.parametrize("name", ["zstd", "zstd-multi", "blosc-zstd", "blosc-lz4"])
def test_every_truncation_is_seen(name):
    data = examples()[name]
    kind = name.split("-")[0]
    # a buffer of several frames may end behind each of them
    first = data.index(skippable(b"note")) if name == "zstd-multi" else len(data)
    whole = {first, first + len(skippable(b"note")), len(data)}
    seen = [inspect_frame(kind, data[:length]).problem for length in range(len(data) + 1)]
    assert {length for length, problem in enumerate(seen) if problem is None} == {
        length for length in whole if length <= len(data)
    }


@pytest.mark.parametrize("kind", ["lz4", "gzip", "zlib"])
def test_short_truncations_are_seen(kind):
    """Inside, these formats cannot be walked; what cannot hold the content is refused."""
    data = examples()[kind]
    for length in range(len(data)):
        frame = inspect_frame(kind, data[:length])
        if length < 8:
            assert frame.problem
        elif frame.problem is None:
            with pytest.raises(InputError):
                check_declared(kind, data[:length], 1 << 20, "here")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(examples()))
def test_every_single_byte_change_is_survived(name, rng):
    """Nothing but an answer, and never one that the decoder contradicts."""
    data = bytearray(examples()[name])
    kind = name.split("-")[0]
    decode = {"zstd": zstd.decompress, "lz4": lz4.decompress, "blosc": blosc.decompress}.get(kind)
    for at in range(len(data)):
        for value in {0, 0xFF, data[at] ^ 1, data[at] ^ 0x80, int(rng.integers(256))}:
            bad = bytes(data[:at]) + bytes([value]) + bytes(data[at + 1 :])
            frame = inspect_frame(kind, bad)
            if decode is None or frame.problem or frame.content_nbytes is None:
                continue
            if frame.content_nbytes > 1 << 24:
                continue
            try:
                decoded = decode(bad)
            except RuntimeError:
                continue
            assert len(decoded) == frame.content_nbytes


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), st.binary(max_size=200), st.data())
def test_arbitrary_bytes_are_survived(kind, data, draw):
    starts = {
        "zstd": MAGIC,
        "lz4": b"\x40\0\0\0",
        "gzip": b"\x1f\x8b\x08",
        "zlib": b"\x78\x9c",
        "blosc": b"\x02\x01",
    }
    if draw.draw(st.booleans()):
        data = starts.get(kind, b"") + data
    frame = inspect_frame(kind, data)
    assert (frame.content_range == (0, 0)) or frame.problem is None
    fewest, most = frame.content_range
    assert 0 <= fewest <= most
    if frame.problem is None and frame.content_nbytes is not None:
        assert fewest == most == frame.content_nbytes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=400), min_size=1, max_size=4), st.integers(-3, 5), st.booleans())
def test_concatenated_frames_add_up(contents, level, checksum):
    data = b"".join(zstd.compress(content, level, checksum) for content in contents)
    frame = inspect_frame("zstd", data)
    total = sum(map(len, contents))
    assert (frame.problem, frame.content_nbytes) == (None, total)
    assert (frame.n_frames, frame.checksum) == (len(contents), checksum)
    assert check_declared("zstd", data, total, "here") == frame
    with pytest.raises(InputError, match=f"here: zstd data declare {total} bytes"):
        check_declared("zstd", data, total + 1, "here")
