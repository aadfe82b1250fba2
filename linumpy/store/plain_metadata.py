"""Metadata of plain Zarr arrays and groups, read and written without importing Zarr.

Plain is what linumpy writes itself: numbers in C order, little-endian, raw or with zstd or Blosc,
with or without crc32c and shards; and the same in Zarr v2, as most third-party grids are.
`parse_array` returns None for anything else, and for anything wrong, which then goes through Zarr
and its checks.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import LinumpyError
from linumpy.store.chunk_guard import ChunkPlan
from linumpy.store.chunk_layout import MAX_AXES, ChunkLayout
from linumpy.store.shards import ShardIndex, parse_sharding
from linumpy.store.untrusted import JSON_NBYTES, read_bounded
from linumpy.store.untrusted_zarr import LARGEST_CHUNK, LARGEST_INDEX, MOST_VOXELS

_DTYPES = frozenset(
    {f"{kind}{8 * n}" for kind in ("int", "uint") for n in (1, 2, 4, 8)}
    | {"float32", "float64", "complex64", "complex128"}
)
_ARRAY_KEYS = frozenset(
    {
        "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding",
        "fill_value", "codecs", "attributes", "dimension_names", "storage_transformers",
    }
)  # fmt: skip
_ARRAY_V2_KEYS = frozenset(
    {
        "zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters",
        "dimension_separator",
    }
)  # fmt: skip
_GROUP_KEYS = frozenset({"zarr_format", "node_type", "attributes"})
_SETTINGS: dict[str, dict[str, Sequence[Any]]] = {
    "zstd": {"level": range(-(1 << 17), 23), "checksum": (False, True)},
    "blosc": {
        "typesize": range(1, 256),
        "cname": ("lz4", "lz4hc", "blosclz", "snappy", "zlib", "zstd"),
        "clevel": range(10),
        "shuffle": ("noshuffle", "shuffle", "bitshuffle"),
        "blocksize": range(1 << 31),
    },
}
"""Compressors, and the values of their settings."""

_SETTINGS_V2: dict[str, dict[str, Sequence[Any]]] = {
    "zstd": _SETTINGS["zstd"],
    "blosc": {
        "cname": _SETTINGS["blosc"]["cname"],
        "clevel": range(10),
        "shuffle": range(-1, 3),
        "blocksize": range(1 << 31),
    },
}

_FILL: dict[str, Any] = {"f": 0.0, "c": [0.0, 0.0]}
"""Zero, as kinds of numbers other than whole ones write it."""

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


@dataclass(frozen=True)
class Compressor:
    """A compressor as ``zarr.json`` describes it; its settings are attributes too."""

    name: str
    configuration: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return its description, as Zarr's codecs do."""
        return {"name": self.name, "configuration": dict(self.configuration)}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["configuration"][name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class PlainMetadata:
    """Shape of an array, how its chunks are stored, and how their keys begin and are separated."""

    shape: tuple[int, ...]
    layout: ChunkLayout
    prefix: str = "c/"
    separator: str = "/"

    @property
    def plan(self) -> ChunkPlan:
        """What `linumpy.store.chunk_guard` checks chunks by."""
        layout = self.layout
        shape = layout.chunk_shape if layout.shard else ()
        return ChunkPlan(
            layout.chunk_nbytes, layout.compression, int(layout.has_crc32c),
            chunk_shape=shape, shard=layout.shard,
        )  # fmt: skip


def read_document(folder: Path, name: str = "zarr.json") -> Any:
    """Return what a document of a folder says; None when it cannot be read."""
    try:
        return json.loads(read_bounded(folder / name, JSON_NBYTES))
    except (OSError, ValueError, RecursionError, LinumpyError):
        return None


def read_group(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Return the version of Zarr and the attributes of a plain group, None for anything else."""
    if os.path.lexists(folder / "zarr.json"):
        attributes = parse_group(read_document(folder))
        return None if attributes is None else (3, attributes)
    # Consolidated metadata may say something else.
    if os.path.lexists(folder / ".zmetadata"):
        return None
    attributes = read_document(folder, ".zattrs") if os.path.lexists(folder / ".zattrs") else {}
    is_plain = read_document(folder, ".zgroup") == {"zarr_format": 2}
    return (2, attributes) if is_plain and isinstance(attributes, dict) else None


def parse_group(document: Any) -> dict[str, Any] | None:
    """Return the attributes of a plain group, None for anything else."""
    if (
        not isinstance(document, dict)
        or set(document) - _GROUP_KEYS
        or document.get("zarr_format") != 3
        or document.get("node_type") != "group"
    ):
        return None
    attributes = document.get("attributes", {})
    return attributes if isinstance(attributes, dict) else None


def parse_array(document: Any) -> PlainMetadata | None:
    """Return the metadata of a plain array, by its ``zarr.json`` or ``.zarray``; or None."""
    try:
        return _parsed_v2(document) if document["zarr_format"] == 2 else _parsed(document)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _parsed(document: Any) -> PlainMetadata | None:
    if (
        set(document) - _ARRAY_KEYS
        or document["zarr_format"] != 3
        or document["node_type"] != "array"
        or document.get("storage_transformers", []) != []
        or not isinstance(document.get("attributes", {}), dict)
        or document["data_type"] not in _DTYPES
        or document["chunk_grid"]["name"] != "regular"
        or document["chunk_key_encoding"]["name"] != "default"
        or document["chunk_key_encoding"].get("configuration", {"separator": "/"})
        != {"separator": "/"}
    ):
        return None
    dtype = np.dtype(document["data_type"])
    shape = _sides(document["shape"], 0)
    outer = _sides(document["chunk_grid"]["configuration"]["chunk_shape"], 1)
    names = document.get("dimension_names")
    names = [None] * len(shape) if names is None else names
    if (
        not _is_bounded(shape, outer, dtype)
        or not isinstance(names, list)
        or len(names) != len(shape)
        or not all(name is None or isinstance(name, str) for name in names)
    ):
        return None
    chunk, shard, codecs = _sharding(outer, document["codecs"])
    compressor, has_crc32c = _chain(codecs, dtype)
    fill = _fill(document["fill_value"], dtype)
    return PlainMetadata(shape, _layout(chunk, dtype, compressor, has_crc32c, fill, shard))


def _parsed_v2(document: Any) -> PlainMetadata | None:
    dtype = np.dtype(document["dtype"])
    separator = document.get("dimension_separator", ".")
    shape, chunk = _sides(document["shape"], 0), _sides(document["chunks"], 1)
    if (
        set(document) - _ARRAY_V2_KEYS
        or dtype.name not in _DTYPES
        or document["dtype"] != dtype.newbyteorder("<").str
        or document["order"] != "C"
        or document["filters"] is not None
        or separator not in (".", "/")
        or not _is_bounded(shape, chunk, dtype)
    ):
        return None
    compressor = None
    if document["compressor"] is not None:
        settings = dict(document["compressor"])
        name = settings.pop("id")
        if name == "zstd":
            settings.setdefault("checksum", False)
        compressor = _compressor(name, settings, _SETTINGS_V2)
    value = document["fill_value"]
    fill = _fill(_FILL.get(dtype.kind, 0) if value is None else value, dtype)
    layout = _layout(chunk, dtype, compressor, False, fill, None)
    return PlainMetadata(shape, layout, "", separator)


def _is_bounded(shape: tuple[int, ...], outer: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return (
        0 < len(shape) <= MAX_AXES
        and len(outer) == len(shape)
        and math.prod(shape) <= MOST_VOXELS
        and math.prod(outer) * dtype.itemsize <= LARGEST_CHUNK
    )


def _layout(
    chunk: tuple[int, ...],
    dtype: np.dtype[Any],
    compressor: Compressor | None,
    has_crc32c: bool,
    fill: np.ndarray,
    shard: ShardIndex | None,
) -> ChunkLayout:
    return ChunkLayout(
        chunk_shape=chunk,
        dtype=dtype,
        byteswapped=False,
        strides=_strides(chunk, dtype.itemsize),
        compression=None if compressor is None else compressor.name,
        compressor=compressor,
        has_crc32c=has_crc32c,
        fill=fill.tobytes(),
        shard=shard,
    )


def _sides(values: Any, least: int) -> tuple[int, ...]:
    if not all(type(value) is int and value >= least for value in values):
        raise ValueError("no lengths")
    return tuple(values)


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape)))


def _fill(value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "c":
        real, imaginary = value
        known = all(type(v) in (int, float) and math.isfinite(v) for v in value)
        value = complex(real, imaginary) if known else 0
    elif dtype.kind == "f":
        known = type(value) in (int, float) and math.isfinite(value)
    else:
        known = type(value) is int and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    if not known:
        raise ValueError("no plain fill value")
    return np.asarray(value).astype(dtype)


def _sharding(
    outer: tuple[int, ...], codecs: Sequence[Any]
) -> tuple[tuple[int, ...], ShardIndex | None, Sequence[Any]]:
    """Return the shape of a chunk, the index of its shard, and its codecs."""
    first = codecs[0]
    if first["name"] != "sharding_indexed":
        return outer, None, codecs
    settings = first["configuration"]
    chunk = _sides(settings["chunk_shape"], 1)
    if (
        len(codecs) > 1
        or set(settings) - {"chunk_shape", "codecs", "index_codecs", "index_location"}
        or settings.get("index_location", "end") not in ("start", "end")
        or len(chunk) != len(outer)
        or any(side % part for side, part in zip(outer, chunk, strict=True))
    ):
        raise ValueError("no plain shards")
    index = parse_sharding(outer, settings)
    _check_names(settings["index_codecs"])
    if index is None or index.nbytes > LARGEST_INDEX:
        raise ValueError("no plain index")
    return chunk, index, settings["codecs"]


def _chain(codecs: Sequence[Any], dtype: np.dtype[Any]) -> tuple[Compressor | None, bool]:
    """Return the compressor of a chain of codecs, and whether a crc32c follows."""
    _check_names(codecs)
    first, *rest = codecs
    endian = first.get("configuration", {}).get("endian", "little" if dtype.itemsize == 1 else "")
    if first["name"] != "bytes" or endian != "little":
        raise ValueError("no plain numbers")
    has_crc32c = bool(rest) and rest[-1]["name"] == "crc32c"
    rest = rest[: len(rest) - has_crc32c]
    if not rest:
        return None, has_crc32c
    (codec,) = rest
    return _compressor(codec["name"], codec["configuration"], _SETTINGS), has_crc32c


def _compressor(
    name: str, settings: Mapping[str, Any], of: Mapping[str, Mapping[str, Sequence[Any]]]
) -> Compressor:
    known = of[name]
    if set(settings) != set(known) or not all(_is_one_of(settings[k], known[k]) for k in known):
        raise ValueError("no plain compressor")
    return Compressor(name, settings)


def _is_one_of(value: Any, known: Sequence[Any]) -> bool:
    # Python takes True for 1.
    return type(value) is type(known[0]) and value in known


def _check_names(codecs: Sequence[Any]) -> None:
    """Refuse codecs with more than a name and a configuration, and a crc32c with settings."""
    for codec in codecs:
        if set(codec) - {"name", "configuration"}:
            raise ValueError("no plain codec")
        if codec["name"] == "crc32c" and codec.get("configuration"):
            raise ValueError("no plain checksum")


def array_document(
    shape: Sequence[int],
    chunks: Sequence[int],
    shards: Sequence[int],
    dtype: str,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the metadata of a new array: shards of chunks with zstd at level 1, then crc32c.

    Plain zstd would let a flipped bit pass without a word. The index of a shard has a crc32c too.
    """
    kind = np.dtype(dtype)
    inner = {
        "chunk_shape": list(chunks),
        "codecs": [
            _BYTES if kind.itemsize > 1 else {"name": "bytes"},
            {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
            {"name": "crc32c"},
        ],
        "index_codecs": [_BYTES, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "shape": list(shape),
        "data_type": kind.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shards)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _FILL.get(kind.kind, 0),
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        "attributes": {},
        "dimension_names": list(names),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def group_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a group."""
    return {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}


def write_document(folder: Path, document: Mapping[str, Any]) -> None:
    """Write the ``zarr.json`` of a folder, which is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(document, indent=2), encoding="utf-8")
