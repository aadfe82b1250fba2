"""Small OME-Zarr in eight set-ups of codecs, and seven ways to damage a chunk's file."""

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4

from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.store.manifest import adopt

SHAPE = (8, 16, 16)
CHUNK = (8, 8, 8)
VOXEL_UM = (10.0, 10.0, 10.0)
FOREIGN = {
    "raw": dict(compressors=[]),
    "raw crc32c": dict(compressors=[Crc32cCodec()]),
    "zstd": dict(compressors=[ZstdCodec(level=1)]),
    "blosc": dict(compressors=[BloscCodec(cname="zstd")]),
    "gzip": dict(compressors=[GzipCodec()]),
    "lz4": dict(compressors=[LZ4()]),
    "v2 zstd": dict(
        compressors=[numcodecs.Zstd(level=1)],
        chunk_key_encoding={"name": "v2", "separator": "/"},
    ),
}
SETUPS = ("ours", *FOREIGN)


def noise():
    # Nothing packs it, so that all chunks take the same room and can be swapped unseen.
    return np.random.default_rng(5).integers(0, 2**16, SHAPE).astype(np.uint16)


def make_store(path, setup):
    """Write an image; answers the files of two of its chunks."""
    if setup == "ours":
        spec = ImageSpec(SHAPE, VOXEL_UM, (0.0, 0.0, 0.0), (4, 4, 4), CHUNK, dtype="uint16")
        with create_image(path, spec, overwrite=False) as image:
            image.array[...] = noise()
    else:
        v2 = setup.startswith("v2")
        group = zarr.create_group(path, zarr_format=2 if v2 else 3)
        options = FOREIGN[setup]
        array = group.create_array("0", shape=SHAPE, dtype="uint16", chunks=CHUNK, **options)
        array[...] = noise()
        steps = [{"type": "scale", "scale": list(VOXEL_UM)}]
        multiscale = {
            "axes": [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"],
            "datasets": [{"path": "0", "coordinateTransformations": steps}],
        }
        if v2:
            group.attrs["multiscales"] = [{"version": "0.4", **multiscale}]
        else:
            group.attrs["ome"] = {"version": "0.5", "multiscales": [multiscale]}
        adopt(path)
    chunks = path / ("0" if setup.startswith("v2") else "0/c") / "0"
    return chunks / "0/1", chunks / "1/0"


def flip_bit(file, _):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 4
    file.write_bytes(data)


def truncate(file, _):
    file.write_bytes(file.read_bytes()[:-1])


def empty(file, _):
    file.write_bytes(b"")


def zero(file, _):
    file.write_bytes(bytes(file.stat().st_size))


def delete(file, _):
    file.unlink()


def append(file, _):
    file.write_bytes(file.read_bytes() + b"surplus")


def swap(file, other):
    mine, its = file.read_bytes(), other.read_bytes()
    assert len(mine) == len(its) and mine != its
    file.write_bytes(its)
    other.write_bytes(mine)


SEEN_IN_SIZES = (truncate, empty, delete, append)
DAMAGES = (*SEEN_IN_SIZES, flip_bit, zero, swap)
