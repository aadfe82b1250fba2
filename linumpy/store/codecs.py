"""Registry of chunk codecs for readers, writers and checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.store import frame_walks, host_decoders
from linumpy.store.frame_walks import Frame


@dataclass(frozen=True)
class Codec:
    """A format of compressed chunks.

    Attributes
    ----------
    kind
        Its id in numcodecs and in Zarr v2. In Zarr v3 its name is the same, or has the prefix
        ``numcodecs.``.
    title
        Its name in the documentation.
    inspect
        Walks a chunk's bytes without decoding them; raises `MalformedError`.
    decode
        Decodes into an array (uint8) of the expected size, on the host; raises any error, and never
        allocates what the data declare.
    count
        For formats that declare no size: ``count(file, start, nbytes, most)`` of an open file
        returns the decoded bytes, counted no further than a little beyond `most`.
    device
        ``module:class`` of its `linumpy.gpu.formats.DeviceFormat`; None if it is decoded by the
        host alone.
    encodes
        Whether a device encodes it with nvCOMP.
    zarr_class
        Name in Zarr's registry, and class in `linumpy.gpu.codecs`, of the Zarr codec that works on
        device buffers; None where Zarr's own is the only one.
    """

    kind: str
    title: str
    inspect: Callable[[Any], Frame]
    decode: Callable[[memoryview, np.ndarray], None]
    count: Callable[[int, int, int, int], int] | None = None
    device: str | None = None
    encodes: bool = False
    zarr_class: tuple[str, str] | None = None


CODECS: dict[str, Codec] = {
    codec.kind: codec
    for codec in (
        Codec(
            "zstd",
            "zstd",
            frame_walks.inspect_zstd,
            host_decoders.decode_zstd,
            device="linumpy.gpu.formats:Zstd",
            encodes=True,
            zarr_class=("zstd", "NvcompZstdCodec"),
        ),
        Codec(
            "lz4",
            "LZ4 (numcodecs)",
            frame_walks.inspect_lz4,
            host_decoders.decode_lz4,
            device="linumpy.gpu.formats:Wrapped",
            encodes=True,
            zarr_class=("numcodecs.lz4", "NvcompLZ4Codec"),
        ),
        Codec(
            "gzip",
            "gzip",
            frame_walks.inspect_gzip,
            host_decoders.decode_gzip,
            count=lambda file, start, n, most: host_decoders.inflated(file, start, n, 31, most),
            device="linumpy.gpu.formats:Wrapped",
            zarr_class=("gzip", "NvcompGzipCodec"),
        ),
        Codec(
            "zlib",
            "zlib",
            frame_walks.inspect_zlib,
            host_decoders.decode_zlib,
            count=lambda file, start, n, most: host_decoders.inflated(file, start, n, 15, most),
            device="linumpy.gpu.formats:Wrapped",
            zarr_class=("numcodecs.zlib", "NvcompZlibCodec"),
        ),
        Codec(
            "blosc",
            "Blosc with zstd or LZ4",
            frame_walks.inspect_blosc,
            host_decoders.decode_blosc,
            device="linumpy.gpu.blosc:Blosc",
            zarr_class=("blosc", "NvcompBloscCodec"),
        ),
    )
}
"""All codecs, by their kind."""

KINDS = tuple(CODECS)


def kind_of(name: str) -> str | None:
    """Return the kind of the codec of this name in metadata; None for an unregistered one."""
    kind = name.removeprefix("numcodecs.")
    return kind if kind in CODECS else None


def device_table() -> str:
    """Return the table of docs/gpu.md: where chunks of each codec are decoded and encoded."""
    rows = [
        "| format | with crc32c (linumpy's) | without, but listed in a manifest | without either "
        "| encoded on the device |",
        "| --- | --- | --- | --- | --- |",
        "| raw | device | device | device | yes |",
    ]
    for codec in CODECS.values():
        places = (
            ("device", "device, after the file was checked") if codec.device else ("CPU", "CPU")
        )
        encoded = "yes" if codec.encodes else "by the CPU's cores"
        rows.append(f"| {codec.title} | {places[0]} | {places[1]} | CPU | {encoded} |")
    return "\n".join(rows) + "\n"
