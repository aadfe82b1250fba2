"""Validate third-party Zarr stores: keys and links that lead outside, absurd metadata.

Zarr follows ``..``, absolute names and links, takes whatever codec a document names, even one that
runs code, and trusts any size. What is rejected here is rejected before zarr reads it, or when
zarr builds an array, and so wherever linumpy opens one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError, LinumpyError
from linumpy.store.codecs import KINDS
from linumpy.store.untrusted import JSON_NBYTES, bound_json, quoted, read_bounded

LARGEST_CHUNK = 2 << 30
"""Most bytes of a decoded chunk: what LZ4, Blosc and the decoders of GPUs can take."""

MOST_VOXELS = 1 << 45
"""Most voxels of an array: a mouse brain at half a micrometre has a tenth of it."""

LARGEST_INDEX = 64 << 20
"""Most bytes of a shard's index."""
_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_FORBIDDEN = ("", ".", "..")
_CODECS = frozenset(
    {
        "bytes", "transpose", "crc32c", "sharding_indexed", *KINDS,
        "delta", "shuffle", "bitround", "fixedscaleoffset", "quantize", "packbits", "astype",
        "crc32", "adler32", "fletcher32", "jenkins_lookup3", "cast_value", "scale_offset",
    }
)  # fmt: skip
"""Codecs that yield plain numbers and no more bytes than can be bounded before."""


def store_key(name: Any, where: Path | str) -> str:
    """Return a key that metadata names, when it stays below its store.

    Raises
    ------
    InputError
        When it is no relative path of plain names; names `where` and the key.
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(part in _FORBIDDEN or not part.isprintable() for part in parts):
        raise InputError(
            f"{where}: the path {quoted(name)} in its metadata, expected one below it, such as 's0'"
        )
    if max(map(len, parts)) > 255:
        raise InputError(f"{where}: the path {quoted(name)} in its metadata is too long")
    return "/".join(parts)


def stay_inside(root: Path | str, path: Path | str) -> None:
    """Refuse a file whose place is, by links below `root`, outside of it.

    A `root` that is a link itself, as the inputs of a staged task are, is fine.

    Raises
    ------
    InputError
        Naming the file and where it leads.
    """
    folder, name = os.path.split(path)
    inside = _real_folder(str(root), folder)
    if inside is not None and not os.path.islink(path):  # noqa: PTH114 - once a chunk
        return
    real = os.path.realpath(path)
    if not _is_below(os.path.realpath(root), real):
        raise InputError(f"{path}: a link that leads out of {root}, to {real}")


def check_links(root: Path | str, name: str) -> None:
    """Refuse links that lead out of a store, in all that lies below a key, before it is copied.

    Raises
    ------
    InputError
        Naming the first one.
    """
    for folder, folders, files in os.walk(Path(root) / name):
        for entry in (*folders, *files):
            stay_inside(root, f"{folder}/{entry}")


@lru_cache(maxsize=512)
def _real_folder(root: str, folder: str) -> str | None:
    """Return where a folder really is; None when that is outside of `root`."""
    real = os.path.realpath(folder)
    return real if _is_below(os.path.realpath(root), real) else None


def _is_below(root: str, path: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def check_node(root: Path, name: str = "") -> None:
    """Check the metadata documents of a local group or array before zarr reads them.

    Parameters
    ----------
    root
        The store's folder.
    name
        Key of the node below it.

    Raises
    ------
    InputError
        When one is no plain file, leads out of the store, or is too large; names it.
    """
    for document in _DOCUMENTS:
        path = root / name / document
        try:
            stay_inside(root, path)
            bound_json(read_bounded(path, JSON_NBYTES), path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error


@contextmanager
def metadata_of(path: Path | str) -> Iterator[None]:
    """Turn what goes wrong in the block, which only reads metadata, into one line.

    Raises
    ------
    InputError
        Naming `path`.
    """
    try:
        yield
    except (LinumpyError, MemoryError):
        raise
    except RecursionError:
        raise InputError(f"{path}: its metadata is nested too deeply") from None
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise InputError(
            f"{path}: its metadata cannot be understood ({type(error).__name__}: {said})"
        ) from error


def check_array(metadata: Any, where: Path | str) -> None:
    """Refuse an array by its metadata: objects, codecs that are not for numbers, absurd sizes.

    Parameters
    ----------
    metadata
        Zarr's, of version 2 or 3.
    where
        The store, for messages.

    Raises
    ------
    InputError
        Naming `where` and what was expected.
    """
    shape = tuple(int(side) for side in metadata.shape)
    what = f"{where}: an array of {quoted(shape)} voxels"
    dtype = (metadata.data_type if metadata.zarr_format == 3 else metadata.dtype).to_native_dtype()
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise InputError(f"{what} holds {quoted(str(dtype))}, expected numbers or short texts")
    if min(shape, default=1) < 0 or prod(shape) > MOST_VOXELS:
        raise InputError(f"{what}, expected {MOST_VOXELS} of them at most")
    document = metadata.to_dict()
    if metadata.zarr_format == 2:
        chunks = tuple(metadata.chunks)
        compressor = document.get("compressor")
        named = [*(document.get("filters") or ()), *([compressor] if compressor else [])]
        _check_codecs([codec["id"] for codec in named], what)
        nested: list[tuple[int, ...]] = []
    else:
        if document["chunk_grid"]["name"] != "regular":
            raise InputError(f"{what} has chunks of several sizes, expected one")
        chunks = tuple(metadata.chunk_grid.chunk_shape)
        nested = list(_nested_chunks(document["codecs"], what))
    outer = chunks
    for inner in nested:
        n_chunks = prod(-(-a // b) for a, b in zip(outer, inner, strict=True))
        if 16 * n_chunks > LARGEST_INDEX:
            raise InputError(f"{what} has {n_chunks} chunks in a shard, expected fewer")
        outer = inner
    if prod(outer) * dtype.itemsize > LARGEST_CHUNK:
        raise InputError(
            f"{what} has chunks {quoted(outer)} of {prod(outer) * dtype.itemsize} bytes, expected "
            f"at most {LARGEST_CHUNK}"
        )


def _nested_chunks(codecs: Iterable[Mapping[str, Any]], what: str) -> Iterator[tuple[int, ...]]:
    """Check the names of codecs, and yield the chunk shapes of shards, outermost first."""
    listed = [dict(codec) for codec in codecs]
    _check_codecs([codec["name"] for codec in listed], what)
    for codec in listed:
        if codec["name"] == "sharding_indexed":
            settings = codec["configuration"]
            _check_codecs([inner["name"] for inner in settings["index_codecs"]], what)
            yield tuple(settings["chunk_shape"])
            yield from _nested_chunks(settings["codecs"], what)


def _check_codecs(names: Iterable[str], what: str) -> None:
    for name in names:
        if name.removeprefix("numcodecs.") not in _CODECS:
            raise InputError(
                f"{what} is stored with the codec {quoted(name)}, expected one of "
                f"{', '.join(sorted(_CODECS))}"
            )
