"""Adapter of Zarr's and zarrs' private names, for Zarr 3.1.6 to 3.4.

No other module imports from ``zarr.core`` or from a module of Zarr with an underscore in its name;
`tests/store/test_zarr_adapter.py` checks it. Where versions differ, one function has both forms.
This module imports zarr: import it late where start-up time counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zarr
import zarr.core.array
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.indexing import BasicIndexer
from zarr.core.sync import sync
from zarr.registry import get_codec_class
from zarr.storage import StorePath

__all__ = [
    "BATCHED_PIPELINE",
    "ArraySpec",
    "BatchedCodecPipeline",
    "V2Codec",
    "array_parts",
    "chunk_spec",
    "codec_pipeline",
    "codecs_of",
    "configured_default_codec",
    "has_regular_chunks",
    "has_zarrs_decoder",
    "read_results",
    "reopened",
    "stored_with",
    "sync",
    "zarr_fallback",
]

BATCHED_PIPELINE = "zarr.core.codec_pipeline.BatchedCodecPipeline"
"""Name of Zarr's own codec pipeline in its configuration."""


# --- arrays -----------------------------------------------------------------------------------


def codec_pipeline(array: Any) -> Any:
    """Return the codec pipeline that an array was opened with."""
    return array.async_array.codec_pipeline


def reopened(array: Any) -> Any:
    """Return the same array with the codec pipeline that is configured now, reading nothing."""
    return zarr.Array(zarr.AsyncArray(array.metadata, array.store_path))


def codecs_of(array: Any) -> tuple[Any, ...]:
    """Return an array's codecs; of a v2 array, the one equivalent to its compressor."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        return (V2Codec(filters=metadata.filters, compressor=metadata.compressor),)
    return tuple(metadata.codecs)


def stored_with(codecs: Iterable[Any], names: Iterable[str]) -> str | None:
    """Return the first codec of a chain, those within shards included, that is in `names`."""
    wanted = frozenset(names)
    waiting = list(codecs)
    while waiting:
        codec = waiting.pop(0)
        waiting += getattr(codec, "codecs", ())
        name = None if isinstance(codec, V2Codec) else codec.to_dict()["name"]
        if name in wanted:
            return str(name)
    return None


def has_regular_chunks(array: Any) -> bool:
    """Whether all chunks of an array have one shape; false for rectilinear grids (Zarr ≥ 3.2)."""
    metadata = array.metadata
    return bool(metadata.zarr_format == 2 or metadata.to_dict()["chunk_grid"]["name"] == "regular")


def chunk_spec(array: Any) -> ArraySpec:
    """Return the specification of an array's stored objects, in host buffers.

    Zarr 3.1 has it from its metadata, later versions from a grid of chunks.
    """
    from dataclasses import replace

    from zarr.buffer.cpu import buffer_prototype

    metadata, config = array.metadata, array.config
    if metadata.zarr_format == 2:
        config = replace(config, order=metadata.order)
    return ArraySpec(
        shape=tuple(array.shards or array.chunks),
        dtype=metadata.dtype,
        fill_value=metadata.fill_value,
        config=config,
        prototype=buffer_prototype,
    )


def array_parts(
    array: Any, selection: Any
) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], Any, Any]]]:
    """Take a basic selection apart into the stored objects that it touches.

    Parameters
    ----------
    array
        A Zarr array.
    selection
        As for Zarr's basic indexing; None for everything.

    Returns
    -------
    The selection's shape, and a part for each stored object: its place in the grid of objects, the
    selection in it, and that in the output.
    """
    indexer = BasicIndexer(
        Ellipsis if selection is None else selection,
        shape=array.shape,
        chunk_grid=_chunk_grid(array),
    )
    return tuple(indexer.shape), [(part[0], part[1], part[2]) for part in indexer]


def _chunk_grid(array: Any) -> Any:
    """Return the grid that Zarr's indexers take: since 3.2 the array's, before its metadata's."""
    grid = getattr(array.async_array, "_chunk_grid", None)
    return array.metadata.chunk_grid if grid is None else grid


# --- codec pipelines --------------------------------------------------------------------------


async def read_results(items: Sequence[Any]) -> tuple[dict[str, str], ...]:
    """Return what a codec pipeline answers for a request that it has read.

    Since 3.2 Zarr asks a pipeline which chunks were missing, and uses the result where
    ``array.read_missing_chunks`` is off. Before, it ignores the result.

    Parameters
    ----------
    items
        Of the request, each beginning with key and specification.
    """
    if not items or getattr(items[0][1].config, "read_missing_chunks", True):
        return ({"status": "present"},) * len(items)
    # Within a shard a key is no place in a store, and Zarr ignores the result.
    found = [
        not isinstance(key, StorePath) or await key.store.exists(key.path) for key, *_ in items
    ]
    return tuple({"status": "present" if there else "missing"} for there in found)


def has_zarrs_decoder(pipeline: Any) -> bool:
    """Whether zarrs supports the codecs of a ``zarrs.ZarrsCodecPipeline``."""
    return pipeline.impl is not None


def zarr_fallback(pipeline: Any) -> Any | None:
    """Return Zarr's own pipeline inside a ``zarrs.ZarrsCodecPipeline``, if it has one."""
    return pipeline.python_impl


# --- defaults of new arrays -------------------------------------------------------------------

_lock = threading.Lock()
_n_open = 0
_original = zarr.core.array.default_compressors_v3


def _configured_compressors(dtype: Any) -> tuple[Any, ...]:
    """Return Zarr's default compressors, of the classes that its configuration names."""
    documents = [codec.to_dict() for codec in _original(dtype)]
    return tuple(get_codec_class(str(codec["name"])).from_dict(codec) for codec in documents)


@contextmanager
def configured_default_codec() -> Iterator[None]:
    """Make new arrays use the codec of ``codecs.zstd`` by default, until the block ends.

    Zarr has its own ``ZstdCodec`` hard-wired as the default, whatever its configuration names.
    Blocks may nest and overlap in threads; Zarr's own default comes back with the end of the last.
    """
    global _n_open
    with _lock:
        _n_open += 1
        zarr.core.array.default_compressors_v3 = _configured_compressors
    try:
        yield
    finally:
        with _lock:
            _n_open -= 1
            if not _n_open:
                zarr.core.array.default_compressors_v3 = _original
