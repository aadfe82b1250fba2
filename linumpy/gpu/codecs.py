"""Zarr codecs that work on the device, with the configuration and the bytes of Zarr's own."""

from __future__ import annotations

from zarr.codecs.zstd import ZstdCodec
from zarr.registry import register_codec


class NvcompZstdCodec(ZstdCodec):
    """zstd on the device."""


register_codec("zstd", NvcompZstdCodec)
