"""Malicious files that take memory: each kind with a good file of its reader."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

SIDE = 64
N = SIDE**3
"""Bytes of a chunk here: 256 KiB."""

NO_OBJECT = "expected a JSON object"
"""Said where this release of Python parses the depth; which depths it does, changed in 3.12."""

HUGE = 2 << 30
BLOCK = 128 << 10

Maker = Callable[[Path], Path]
GOOD: dict[str, Maker] = {}
BOMBS: dict[str, tuple[str, Maker, str]] = {}


def good(reader: str) -> Callable[[Maker], Maker]:
    """Say that a function makes a good file of a reader."""
    return lambda make: GOOD.setdefault(reader, make)


def bomb(name: str, reader: str, match: str, make: Maker) -> None:
    BOMBS[name] = (reader, make, match)


# --- compressed chunks


def compressed_block(last: bool) -> bytes:
    """Return 8 bytes that decode to 128 KiB; only decoding tells how many."""
    body = (1 | 3 << 2 | BLOCK << 4).to_bytes(3, "little") + b"a\0"
    return (len(body) << 3 | 2 << 1 | last).to_bytes(3, "little") + body


def zstd_frame(n_blocks: int, declared: int | None) -> bytes:
    window = bytes([(27 - 10) << 3])
    head = b"\0" + window if declared is None else b"\x80" + window + struct.pack("<I", declared)
    blocks = b"".join(compressed_block(i == n_blocks - 1) for i in range(n_blocks))
    return bytes.fromhex("28b52ffd") + head + blocks


ZSTD = zstd_frame(HUGE // BLOCK, None)
ZSTD_LIES = zstd_frame(HUGE // BLOCK, N)
TERABYTE = bytes.fromhex("28b52ffde0") + struct.pack("<Q", 1 << 40) + b"\1\0\0"


def deflated(window_bits: int, n_pieces: int = HUGE >> 24) -> bytes:
    """Return zeros; a full flush between pieces makes all but the first alike."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = piece * n_pieces + b"\3\0"
    if window_bits == 15:
        return b"\x78\xda" + body + bytes(4)
    return b"\x1f\x8b\x08" + bytes(7) + body + bytes(4) + struct.pack("<I", N)


def array(path: Path, *, version: int = 3, content: bytes | None = None, **codecs) -> Path:
    """Make an array of one chunk, and put `content` in the place of the chunk's."""
    made = zarr.create_array(
        path, shape=(SIDE,) * 3, chunks=(SIDE,) * 3, dtype="u1", zarr_format=version, fill_value=0,
        **codecs,
    )  # fmt: skip
    made[...] = np.arange(N, dtype="u1").reshape((SIDE,) * 3)
    if content is not None:
        file = path / ("c/0/0/0" if version == 3 else "0.0.0")
        assert file.is_file()
        file.write_bytes(content)
    return path


def shard(path: Path, entries: list[tuple[int, int]], body: bytes = b"") -> Path:
    """Make a shard of eight chunks, with an index of our own and a right checksum of it."""
    zarr.create_array(
        path, shape=(SIDE,) * 3, chunks=(SIDE // 2,) * 3, shards=(SIDE,) * 3, dtype="u1",
        compressors=[ZstdCodec(level=1)], fill_value=0,
    )[...] = 1  # fmt: skip
    index = np.array(entries, "<u8").tobytes()
    index += int(google_crc32c.value(index)).to_bytes(4, "little")
    (path / "c/0/0/0").write_bytes(body + index)
    return path


GOOD["zarr"] = lambda folder: array(folder / "a", compressors=[ZstdCodec(level=1)])


def _arrays() -> None:
    def chunk(name: str, content: bytes, match: str, **codecs) -> None:
        bomb(name, "zarr", match, lambda d: array(d / "a", content=content, **codecs))

    zstd = {"compressors": [ZstdCodec(level=1)]}
    chunk("zstd, 1 TiB declared", TERABYTE, "declares 1099511627776 bytes", **zstd)
    chunk("zstd, no size", ZSTD, "may hold 2147483648 bytes", **zstd)
    chunk("zstd, a wrong size", ZSTD_LIES, "cannot be decoded", **zstd)
    both = {"compressors": [ZstdCodec(level=1), Crc32cCodec()]}
    sealed = ZSTD + int(google_crc32c.value(ZSTD)).to_bytes(4, "little")
    chunk("zstd, no size, right checksum", sealed, "may hold 2147483648 bytes", **both)
    chunk("gzip", deflated(31), "gzip data may hold", compressors=[GzipCodec()])
    old = {"version": 2}
    chunk("gzip, v2", deflated(31), "gzip data may hold", compressors=numcodecs.GZip(), **old)
    chunk("zlib, v2", deflated(15), "zlib data may hold", compressors=numcodecs.Zlib(), **old)
    chunk("zstd, v2", ZSTD, "may hold 2147483648", compressors=numcodecs.Zstd(), **old)
    filtered = {"compressors": numcodecs.Zstd(), "filters": [numcodecs.Delta("u1")], **old}
    chunk("zstd behind a filter", ZSTD, "may hold 2147483648 bytes", **filtered)
    declared = zstd_frame(HUGE // BLOCK, HUGE)
    chunk("zstd behind a filter, declared", declared, "declare 2147483648 bytes", **filtered)
    lz4 = struct.pack("<I", HUGE - 1) + b"\x1fa\1\0" + b"\xff" * (HUGE // 255) + b"\0"
    chunk("lz4, v2", lz4, "declare 2147483647 bytes", compressors=numcodecs.LZ4(), **old)
    blosc = bytes(numcodecs.Blosc("zstd", 9).encode(np.zeros(1 << 20, "u1")))
    blosc = blosc[:4] + struct.pack("<I", HUGE - 1) + blosc[8:]
    chunk("blosc", blosc, "declare 2147483647 bytes", compressors=[BloscCodec(cname="zstd")])
    packed = {"compressors": [ZstdCodec(), GzipCodec()]}
    chunk("two compressors", deflated(31), "cannot be checked before they decode", **packed)
    none = (2**64 - 1,) * 2
    bomb("shard, a huge length", "zarr", "lies outside the shard",
         lambda d: shard(d / "a", [(0, 1 << 60)] + [none] * 7))  # fmt: skip
    bomb("shard, an end that wraps", "zarr", "lies outside the shard",
         lambda d: shard(d / "a", [(2**64 - 8, 16)] + [none] * 7))  # fmt: skip
    one = bytes(numcodecs.Zstd(1).encode(bytes(N // 8)))
    bomb("shard, chunks that share bytes", "zarr", "overlaps",
         lambda d: shard(d / "a", [(0, len(one))] * 8, one))  # fmt: skip
    bomb("shard, a chunk over the index", "zarr", "overlaps",
         lambda d: shard(d / "a", [(len(one), 64)] + [none] * 7, one))  # fmt: skip


_arrays()


def _decoders() -> None:
    GOOD["decode"] = lambda d: _file(d / f"zstd-{N}", bytes(numcodecs.Zstd().encode(bytes(N))))
    for kind, content, match in (
        ("zstd", TERABYTE, "declares 1099511627776"),
        ("zstd", ZSTD, "cannot be decoded"),
        ("zstd", ZSTD_LIES, "cannot be decoded"),
        ("gzip", deflated(31), "more than the 262144 bytes"),
        ("zlib", deflated(15), "more than the 262144 bytes"),
        ("lz4", struct.pack("<I", N) + b"\x1fa\1\0" + b"\xff" * (1 << 20), "cannot be decoded"),
    ):
        bomb(f"host decoder, {kind}, {len(content)}", "decode", match,
             lambda d, kind=kind, content=content: _file(d / f"{kind}-{N}", content))  # fmt: skip


def _file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _long(path: Path, start: bytes, nbytes: int = 1 << 30) -> Path:
    """Make a file that takes no room and is long all the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(nbytes)
    return path


_decoders()

# --- texts and tables

INFO = b"nx: 4\nny: 3\nwidth: 1\nheight: 1\nn_samples: 8\n"
TABLE = b"slice_id,use\n0,true\n"
SHIFTS = b"fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm\n"


def _texts() -> None:
    GOOD["info"] = lambda d: _file(d / "info.txt", INFO)
    bomb("info.txt of 1 GB", "info", "1073741824 bytes, expected at most",
         lambda d: _long(d / "info.txt", INFO))  # fmt: skip
    bomb("info.txt, a number of 900 kB", "info", "nx is '9999",
         lambda d: _file(d / "info.txt", b"nx: " + b"9" * 900_000 + b"\n" + INFO))  # fmt: skip
    bomb("info.txt, huge sizes", "info", "nx is 1.* expected at most 1000000000",
         lambda d: _file(d / "info.txt", b"nx: 1" + b"0" * 17 + b"\n" + INFO))  # fmt: skip
    GOOD["config"] = lambda d: _file(d / "t.csv", TABLE)
    GOOD["shifts"] = lambda d: _file(d / "t.csv", SHIFTS + b"0,1,0,0,0,0\n")
    GOOD["run"] = GOOD["config"]
    GOOD["positions"] = lambda d: _file(d / "a.scan", b"Positions\n1,2\n")
    for reader in ("config", "shifts", "run", "positions"):
        bomb(f"{reader}, a line of 1 GB", reader, "1073741824 bytes, expected at most",
             lambda d: _long(d / "t.csv", TABLE))  # fmt: skip
    columns = ",".join(["slice_id", *(f"c{i}" for i in range(400_000))]).encode()
    bomb("config, 400,000 columns", "config", "400001 columns, expected at most 1000",
         lambda d: _file(d / "t.csv", columns + b"\n" + b"," * 400_000))  # fmt: skip
    bomb("config, 2 million columns", "config", "2000001 columns, expected at most 1000",
         lambda d: _file(d / "t.csv", b"slice_id" + b"," * 2_000_000))  # fmt: skip
    bomb("config, a million rows", "config", "at most 100000 rows|second row",
         lambda d: _file(d / "t.csv", b"slice_id\n" + b"1\n" * 1_000_000))  # fmt: skip
    GOOD["ids"] = lambda d: _file(d / "ids", b"1-3")
    bomb("a range of 10^15 ids", "ids", "expected ids up to 99999",
         lambda d: _file(d / "ids", b"1-999999999999999"))  # fmt: skip


_texts()

# --- JSON

MULTISCALES = {
    "version": "0.5",
    "multiscales": [
        {
            "axes": [{"name": a, "type": "space", "unit": "micrometer"} for a in "zyx"],
            "datasets": [
                {
                    "path": "0",
                    "coordinateTransformations": [{"type": "scale", "scale": [1.0, 1.0, 1.0]}],
                }
            ],
        }
    ],
}


def image(path: Path, change: Callable[[dict], None] | None = None) -> Path:
    """Make an OME-Zarr image of one chunk, and change its array's document."""
    group = zarr.create_group(path)
    group.attrs["ome"] = MULTISCALES
    array(path / "0", compressors=[ZstdCodec(level=1)])
    if change is not None:
        place = path / "0" / "zarr.json"
        document = json.loads(place.read_text())
        change(document)
        place.write_text(json.dumps(document))
    return path


def _set(**values) -> Callable[[dict], None]:
    return lambda document: document.update(values)


def _chunks(side: int) -> Callable[[dict], None]:
    grid = {"name": "regular", "configuration": {"chunk_shape": [side] * 3}}
    return _set(shape=[side] * 3, chunk_grid=grid)


def _documents() -> None:
    GOOD["json"] = lambda d: _file(d / "a.json", b'{"a": 1}')
    deep = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    for name, content, match in (
        ("nested 200,000 deep", deep, "nested too deeply|would take"),
        ("nested 2,000 deep", b"[" * 2000 + b"]" * 2000, f"nested too deeply|{NO_OBJECT}"),
        ("10 million lists", b"[" + b"[]," * 10_000_000 + b"1]", "would take 2[0-9]* MiB"),
        ("a number of a million digits", b'{"a": ' + b"1" * 10**6 + b"}", "at most 64 bits"),
        ("NaN", b'{"a": NaN}', "'NaN', expected a finite one"),
        ("1e999", b'{"a": 1e999}', "'1e999', expected a finite one"),
    ):
        bomb(f"JSON, {name}", "json", match,
             lambda d, content=content: _file(d / "a.json", content))  # fmt: skip
    bomb("JSON of 1 GB", "json", "1073741824 bytes, expected at most",
         lambda d: _long(d / "a.json", b'{"a": "'))  # fmt: skip
    GOOD["image"] = lambda d: image(d / "a.ome.zarr")
    GOOD["convert"] = GOOD["verify"] = GOOD["image"]
    bomb("zarr.json, nested", "image", "recursion depth|would take",
         lambda d: _rewritten(image(d / "a.ome.zarr") / "zarr.json", deep))  # fmt: skip
    bomb("zarr.json, 1,500 deep", "image", f"recursion depth|{NO_OBJECT}",
         lambda d: _rewritten(image(d / "a.ome.zarr") / "zarr.json",
                              b"[" * 1500 + b"]" * 1500))  # fmt: skip
    bomb("zarr.json of 1 GB", "image", "1073741824 bytes, expected at most",
         lambda d: _long_inside(image(d / "a.ome.zarr"), "zarr.json"))  # fmt: skip
    bomb("an array's zarr.json of 1 GB", "image", "1073741824 bytes, expected at most",
         lambda d: _long_inside(image(d / "a.ome.zarr"), "0/zarr.json"))  # fmt: skip
    bomb("10^18 voxels", "image", "an array of .1000000, 1000000, 1000000. voxels, expected",
         lambda d: image(d / "a.ome.zarr", _set(shape=[10**6] * 3)))  # fmt: skip
    bomb("a chunk of 10^12 bytes", "image", "has chunks .* expected at most 2147483648",
         lambda d: image(d / "a.ome.zarr", _chunks(10**4)))  # fmt: skip
    for reader in ("convert", "zarr"):
        bomb(f"{reader}, 10^18 voxels", reader, "voxels, expected",
             lambda d, reader=reader: image(d / "a.ome.zarr", _set(shape=[10**6] * 3))
             / ("" if reader == "convert" else "0"))  # fmt: skip
    bomb("a shard of 10^12 chunks", "image", "chunks in a shard, expected fewer",
         lambda d: image(d / "a.ome.zarr", _many_in_a_shard))  # fmt: skip
    pickled = {"id": "pickle", "protocol": 5}
    bomb("pickle among the filters", "zarr", "'object_codec_id': 'pickle'",
         lambda d: _filtered(d / "a", [pickled]))  # fmt: skip
    bomb("lzma among the filters", "zarr", "the codec 'lzma', expected one of",
         lambda d: _filtered(d / "a", [{"id": "lzma"}]))  # fmt: skip


def _many_in_a_shard(document: dict) -> None:
    little = [{"name": "bytes", "configuration": {"endian": "little"}}]
    inner = {"chunk_shape": [1] * 3, "codecs": [{"name": "bytes"}], "index_codecs": little}
    _chunks(10**4)(document)
    document["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]


def _rewritten(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path.parent


def _long_inside(path: Path, name: str) -> Path:
    _long(path / name, (path / name).read_bytes().rstrip())
    return path


def _filtered(path: Path, filters: list[dict]) -> Path:
    array(path, version=2, compressors=numcodecs.Zstd())
    document = json.loads((path / ".zarray").read_text())
    (path / ".zarray").write_text(json.dumps({**document, "filters": filters}))
    return path


_documents()

# --- archives


def _npz(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text("{}")
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _npy(shape: tuple[int, ...], data: bytes, kind: str = "<f4") -> bytes:
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117)
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header) + 1) + header + b"\n" + data


def _archives() -> None:
    place = Path("models") / "m.npz"
    GOOD["arrays"] = lambda d: _npz(d / place, {"a.npy": _npy((2,), bytes(8))})
    zeros = _npy((72 << 20,), bytes(288 << 20))
    many = _npy((10**15,), bytes(8))
    for name, members, match in (
        ("288 MiB of zeros", {"a.npy": zeros}, "unpacks to 301990016 bytes from"),
        ("10^15 numbers declared", {"a.npy": many}, "declares 4000000000000000"),
        ("objects", {"a.npy": _npy((1,), bytes(8), "|O")}, "holds 'object', expected numbers"),
        ("20,000 members", {f"{i}.npy": b"" for i in range(20_000)}, "members, expected|listing"),
    ):
        bomb(f"NPZ, {name}", "arrays", match, lambda d, m=members: _npz(d / place, m))
    bomb("NPZ, members that share bytes", "arrays", "members of .* bytes in a file of",
         lambda d: _npz_shared(d / place))  # fmt: skip
    bomb("NPZ, a listing of 64 MiB", "arrays", "its listing takes more than",
         lambda d: _npz_listing(d / place))  # fmt: skip
    GOOD["oct"] = lambda d: _oct(d / "a.oct", OCT, bytes(8 * 6 * 4 * 5))
    bomb(".oct, zeros", "oct", "unpacks to 301989888 bytes from",
         lambda d: _oct(d / "a.oct", OCT.replace('X="6"', f'X="{36 << 20}"')
                        .replace('Y="4"', 'Y="1"').replace('Z="5"', 'Z="1"'),
                        bytes(288 << 20), zipfile.ZIP_DEFLATED))  # fmt: skip
    bomb(".oct, a header of zeros", "oct", "Header.xml of 67108864 bytes, expected",
         lambda d: _oct(d / "a.oct", " " * (1 << 26), b"", zipfile.ZIP_DEFLATED))  # fmt: skip
    bomb(".oct, XML nested a million deep", "oct", "nested more than 100 deep",
         lambda d: _oct(d / "a.oct", "<a>" * 1_000_000, b"", zipfile.ZIP_DEFLATED))  # fmt: skip
    laughs = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10 if i else "lol"}">' for i in range(10))
    bomb(".oct, a billion laughs", "oct", "declares a document type",
         lambda d: _oct(d / "a.oct", f"<!DOCTYPE a [{laughs}]><a>&a9;</a>", b""))  # fmt: skip
    external = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'
    bomb(".oct, a file as an entity", "oct", "declares a document type",
         lambda d: _oct(d / "a.oct", external, b""))  # fmt: skip
    bomb(".oct, sizes that lie", "oct", "of 960 bytes, expected 8000000000000000000",
         lambda d: _oct(d / "a.oct", OCT.replace("6", "1000000").replace('"4"', '"1000000"')
                        .replace('"5"', '"1000000"'), bytes(960)))  # fmt: skip
    bomb(".oct, members that share bytes", "oct", "members of .* bytes in a file of",
         lambda d: _npz_shared(d / "a.oct"))  # fmt: skip


OCT = (
    '<Ocity><DataFiles><DataFile SizeX="6" SizeY="4" SizeZ="5" RangeX="0.6" RangeY="0.4" '
    'RangeZ="0.05">data\\Complex.data</DataFile></DataFiles></Ocity>'
)


def _oct(path: Path, header: str, data: bytes, how: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("Header.xml", header)
        archive.writestr("data/Complex.data", data)
    return path


def _npz_shared(path: Path) -> Path:
    """Make an archive whose members all stand on the same bytes."""
    content = _npy((1 << 16,), bytes(1 << 18))
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.npy", content)
        one = archive.infolist()[0]
        for number in range(4000):
            twin = zipfile.ZipInfo(f"b{number}.npy")
            for name in ("CRC", "compress_size", "file_size", "header_offset"):
                setattr(twin, name, getattr(one, name))
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text("{}")
    path.write_bytes(room.getvalue())
    return path


def _npz_listing(path: Path) -> Path:
    entry = b"PK\1\2" + bytes(42)
    n = (64 << 20) // len(entry)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, n * len(entry), 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text("{}")
    path.write_bytes(entry * n + end)
    return path


_archives()

# --- pictures and volumes


def _nifti(shape: tuple[int, int, int], data: bytes) -> bytes:
    import nibabel

    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(shape)
    header.set_sform(np.eye(4), code=1)
    header.set_xyzt_units("mm")
    header["magic"], header["vox_offset"] = b"n+1", 352
    return header.binaryblock + bytes(4) + data


def _gz(content: bytes, n_zero_bytes: int = 0) -> bytes:
    member = gzip.compress(bytes(1 << 26), 9)
    return gzip.compress(content) + member * (n_zero_bytes >> 26)


def _pictures() -> None:
    volume = np.arange(64, dtype="u1").tobytes()
    for reader in ("nifti", "atlas"):
        GOOD[reader] = lambda d: _file(d / "a.nii.gz", _gz(_nifti((4, 4, 4), volume)))
        bomb(f"{reader}, a huge volume in few bytes", reader, "asks for",
             lambda d: _file(d / "a.nii.gz", _gz(_nifti((30000, 30000, 30000), b""))))  # fmt: skip
        bomb(f"{reader}, a plain file cut short", reader, "asks for",
             lambda d: _file(d / "a.nii", _nifti((30000, 30000, 30000), b"")))  # fmt: skip
    bomb("NIfTI, zeros behind a volume", "nifti", "more than the 416 bytes",
         lambda d: _file(d / "a.nii.gz", _gz(_nifti((4, 4, 4), volume), HUGE)))  # fmt: skip
    GOOD["tiff"] = lambda d: _tiff(d / "a.tif", 16, 16)
    bomb("TIFF, a strip of 10^9 pixels", "tiff", "compressed strips of 1073741824 bytes",
         lambda d: _tiff(d / "a.tif", 32768, 32768))  # fmt: skip
    bomb("TIFF, a strip that unpacks to 1 GB", "tiff", "unpacks to .* bytes or more",
         lambda d: _tiff(d / "a.tif", 16, 16, deflated(15, 64)))  # fmt: skip
    bomb("TIFF, plain pixels that are not there", "tiff", "asks for 1073741824",
         lambda d: _tiff_without_pixels(d / "a.tif"))  # fmt: skip
    GOOD["picture"] = lambda d: _png(d / "a.png", 16, 16)
    bomb("PNG, a billion pixels", "picture", "many pixels, expected at most",
         lambda d: _png(d / "a.png", 32768, 32768))  # fmt: skip
    bomb("PNG, 100 million pixels", "picture", "100000000 pixels, expected at most",
         lambda d: _png(d / "a.png", 10000, 10000))  # fmt: skip


def _tiff(path: Path, height: int, width: int, strip: bytes | None = None) -> Path:
    import tifffile

    path.parent.mkdir(parents=True, exist_ok=True)
    strip = zlib.compress(bytes(256)) if strip is None else strip
    tifffile.imwrite(
        path, iter([strip]), shape=(height, width), dtype="u1", compression="zlib",
        rowsperstrip=height, photometric="minisblack",
    )  # fmt: skip
    return path


def _tiff_without_pixels(path: Path) -> Path:
    import tifffile

    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, shape=(32768, 32768), dtype="u1", photometric="minisblack")
    content = path.read_bytes() if path.stat().st_size < 1 << 20 else _start(path)
    path.write_bytes(content)
    return path


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def _png(path: Path, height: int, width: int) -> Path:
    def part(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    rows = zlib.compress(bytes((width + 1) * min(height, 4096)), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")
    return _file(path, content)


_pictures()
