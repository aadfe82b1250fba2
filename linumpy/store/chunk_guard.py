"""Validate stored chunks before decoding.

The fast decoder of the host allocates what a compressed chunk declares, and ends the process
when it cannot; others take a shard of no bytes for a shard of nothing but fill value. So the
declared sizes, shard indexes and lengths of the chunks of a request are checked first, by a few
short reads that the decoder would make anyway. The contents of a frame are not checked; its
crc32c is compared on request, for a decoder that does not.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.store.codecs import CODECS, kind_of
from linumpy.store.frames import Frame, check_frame, inspect_octets
from linumpy.store.shards import MISSING, ShardIndex, parse_sharding, read_index

_BLOSC_HEADER_NBYTES = 16
_SLACK_NBYTES = 64 << 20
_WIDEST_ITEM_NBYTES = 16


@dataclass(frozen=True)
class ChunkPlan:
    """How the stored bytes of one chunk, of a shard one inner chunk, are made up.

    Attributes
    ----------
    content_nbytes
        Size of the decoded chunk.
    kind
        The compressed format as in `linumpy.store.frames`; None for raw bytes.
    crcs
        How many crc32c of four bytes follow.
    chunk_shape
        Voxels of an inner chunk along each axis; empty without shards.
    shard
        Index of the shard that holds the chunk; None where each file is a chunk.
    loose
        Whether filters or checksums change the size, so that `content_nbytes` is only the most
        that there can be; such chunks are not for a decoder that trusts what a chunk declares.
    """

    content_nbytes: int
    kind: str | None
    crcs: int
    loose: bool = False
    chunk_shape: tuple[int, ...] = ()
    shard: ShardIndex | None = None


def plan_chunks(metadata: Any) -> ChunkPlan | None:
    """Work out from an array's metadata how its chunks are stored.

    Returns
    -------
    None when the guard does not support the chain of codecs;
    `linumpy.store.untrusted_zarr.check_array` lets no such array through.
    """
    document = metadata.to_dict()
    dtype = (metadata.data_type if metadata.zarr_format == 3 else metadata.dtype).to_native_dtype()
    plan = _plan(metadata, document, dtype)
    if dtype.kind in "biufc" or plan is None:
        return plan
    return replace(plan, loose=True)


def _plan(metadata: Any, document: Any, dtype: Any) -> ChunkPlan | None:
    if metadata.zarr_format == 2:
        compressor = document.get("compressor")
        return _plan_bytes(
            prod(metadata.chunks),
            dtype.itemsize,
            [{"name": compressor["id"]}] if compressor else [],
            filtered=bool(document.get("filters")),
        )
    codecs = [dict(codec) for codec in document["codecs"]]
    if document["chunk_grid"]["name"] != "regular":
        return None
    shape = tuple(metadata.chunk_grid.chunk_shape)
    if codecs[0]["name"] == "sharding_indexed":
        return None if len(codecs) > 1 else _plan_shard(shape, dtype.itemsize, codecs[0])
    return _plan_chain(prod(shape), dtype.itemsize, codecs)


def _plan_chain(n_items: int, itemsize: int, codecs: Sequence[dict[str, Any]]) -> ChunkPlan | None:
    names = [codec["name"] for codec in codecs]
    if "bytes" not in names:
        return None
    first = names.index("bytes")
    # a transpose changes no size
    filtered = any(name != "transpose" for name in names[:first])
    return _plan_bytes(n_items, itemsize, codecs[first + 1 :], filtered=filtered)


def _plan_bytes(
    n_items: int, itemsize: int, codecs: Sequence[dict[str, Any]], *, filtered: bool
) -> ChunkPlan | None:
    kinds = [kind for codec in codecs if (kind := kind_of(codec["name"]))]
    if len(kinds) > 1:
        return None
    names = [codec["name"] for codec in codecs]
    first = next((at for at, name in enumerate(names) if kind_of(name)), -1)
    kind, inside, behind = None, names[: max(first, 0)], names[first + 1 :]
    if first >= 0:
        kind = kind_of(names[first])
    if set(behind) - {"crc32c"}:
        return None
    if filtered or inside:
        # checksums within the compressed bytes: only a decoder that checks them will do
        most = n_items * max(itemsize, _WIDEST_ITEM_NBYTES) + 16 * (1 + len(inside))
        return ChunkPlan(most, kind, len(behind), loose=True)
    return ChunkPlan(n_items * itemsize, kind, len(behind))


def _plan_shard(shape: tuple[int, ...], itemsize: int, codec: dict[str, Any]) -> ChunkPlan | None:
    configuration = codec["configuration"]
    chunk_shape = tuple(configuration["chunk_shape"])
    plan = _plan_chain(prod(chunk_shape), itemsize, [dict(c) for c in configuration["codecs"]])
    index = parse_sharding(shape, configuration)
    if plan is None or index is None:
        return None
    return replace(plan, chunk_shape=chunk_shape, shard=index)


class _FilePart:
    """A range of an open file that can be sliced; short slices close by cost one read."""

    _READ_NBYTES = 64

    def __init__(self, file: int, start: int, nbytes: int) -> None:
        self._file = file
        self._start = start
        self._nbytes = nbytes
        self._window_start = 0
        self._window = b""

    def __len__(self) -> int:
        return self._nbytes

    def __getitem__(self, part: slice) -> bytes:
        first = part.start - self._window_start
        last = part.stop - self._window_start
        if first < 0 or last > len(self._window):
            # never beyond the end: a file that shrinks meanwhile gives fewer bytes, not a fault
            length = min(max(self._READ_NBYTES, part.stop - part.start), self._nbytes - part.start)
            self._window = os.pread(self._file, length, self._start + part.start)
            self._window_start = part.start
            first, last = 0, part.stop - part.start
        return self._window[first:last]


def check_chunk(
    path: Path,
    plan: ChunkPlan,
    selection: Sequence[Any] | None = None,
    *,
    verify: bool = False,
) -> None:
    """Check what the file of one chunk or shard declares. A file that is not there is fine.

    Parameters
    ----------
    path
        The file.
    plan
        How it is made up.
    selection
        For a shard, the wanted voxels (integers, slices or integer arrays, one an axis); None for
        all. Other inner chunks are not checked, but all entries of the index are.
    verify
        Whether to compare crc32c checksums too, which takes reading all wanted bytes: for
        decoders that skip them when they decode a chunk in part.

    Raises
    ------
    InputError
        Naming the file and the inner chunk: a declared or impossible size unlike the chunk's, a
        malformed frame, a wrong checksum, a shard that is empty or shorter than its index, an
        index whose checksum is wrong or whose entries lie outside the file.
    """
    with _opened(path) as file:
        if file is None:
            return
        nbytes = os.fstat(file).st_size
        if plan.shard is None:
            _prefetch(file, [(0, nbytes)])
            _check_bytes(file, 0, nbytes, plan, str(path), verify)
            return
        _, table = read_index(lambda first, n: os.pread(file, n, first), nbytes, plan.shard, path)
        places = {place: tuple(table[place].tolist()) for place in wanted_chunks(plan, selection)}
        present = {place: part for place, part in places.items() if part[0] != MISSING}
        _prefetch(file, list(present.values()))
        for place, (start, length) in present.items():
            where = f"{path}: inner chunk {place}"
            _check_bytes(file, start, length, plan, where, verify)


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        file = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)


def _prefetch(file: int, parts: Sequence[tuple[int, int]]) -> None:
    """Ask for parts of a file that is not in memory, all at once, as the decoder will.

    Otherwise the short reads of a cold file would wait for the disk one after the other.
    """
    if not parts:
        return
    try:
        os.preadv(file, [bytearray(1)], parts[0][0], os.RWF_NOWAIT)
    except OSError:  # not in memory, or the file system cannot report it
        for start, nbytes in parts:
            os.posix_fadvise(file, start, nbytes, os.POSIX_FADV_WILLNEED)


def _check_bytes(
    file: int, start: int, nbytes: int, plan: ChunkPlan, where: str, verify: bool
) -> None:
    length = nbytes - 4 * plan.crcs
    expected = plan.content_nbytes
    if length <= 0:
        raise InputError(f"{where}: {nbytes} bytes stored, too few for its codecs")
    if plan.loose:
        _check_most(file, start, length, plan, where)
        return
    if verify and plan.crcs and not _crc_fits(os.pread(file, nbytes, start)):
        raise InputError(f"{where}: wrong checksum (crc32c)")
    if plan.kind is None:
        if length != expected:
            raise InputError(f"{where}: {length} bytes stored, the chunk has {expected}")
    elif plan.kind == "blosc":
        # its decoder keeps to the header; only the header has to be trusted
        header = os.pread(file, _BLOSC_HEADER_NBYTES, start)
        if min(length, len(header)) < _BLOSC_HEADER_NBYTES:
            raise InputError(f"{where}: malformed blosc data: truncated, {length} bytes")
        declared, _, stored = struct.unpack("<4x3I", header)
        if stored != length or declared != expected:
            raise InputError(
                f"{where}: blosc data declare {declared} bytes in {stored}, "
                f"the chunk has {expected} in {length}"
            )
    else:
        frame = inspect_octets(plan.kind, _FilePart(file, start, length))
        check_frame(frame, plan.kind, expected, where)
        if frame.content_nbytes is None:
            # nothing keeps its decoder from filling all memory before it sees that it is too much
            _check_undeclared(file, start, length, plan, frame, where)


def _check_most(file: int, start: int, nbytes: int, plan: ChunkPlan, where: str) -> None:
    """Check that a chunk with filters cannot decode to more than there can be."""
    if plan.kind is None:
        if nbytes > plan.content_nbytes:
            raise InputError(f"{where}: {nbytes} bytes, expected {plan.content_nbytes} at most")
        return
    if plan.kind == "blosc":
        header = os.pread(file, _BLOSC_HEADER_NBYTES, start)
        least = int.from_bytes(header[4:8], "little")
        frame = None
    else:
        frame = inspect_octets(plan.kind, _FilePart(file, start, nbytes))
        if frame.problem and frame.content_nbytes is None and plan.kind in ("lz4", "zstd"):
            raise InputError(f"{where}: malformed {plan.kind} data: {frame.problem}")
        least = frame.content_range[0] if frame.content_nbytes is None else frame.content_nbytes
    if least > plan.content_nbytes:
        raise InputError(
            f"{where}: {plan.kind} data declare {least} bytes, expected {plan.content_nbytes} at "
            "most"
        )
    if frame is not None and frame.content_nbytes is None:
        _check_undeclared(file, start, nbytes, plan, frame, where)


def _check_undeclared(
    file: int, start: int, nbytes: int, plan: ChunkPlan, frame: Frame, where: str
) -> None:
    """Refuse a chunk that declares no size and may decode to far more than it should."""
    most = frame.content_range[1]
    if most <= plan.content_nbytes + _SLACK_NBYTES:
        return
    count = CODECS[str(plan.kind)].count
    if count is not None:
        most = count(file, start, nbytes, plan.content_nbytes)
        if most <= plan.content_nbytes:
            return
    raise InputError(
        f"{where}: {plan.kind} data may hold {most} bytes and do not declare how many, the chunk "
        f"has {plan.content_nbytes}"
    )


def _crc_fits(data: bytes) -> bool:
    """Whether `data` ends with the crc32c of what comes before."""
    import google_crc32c

    return bool(google_crc32c.value(data[:-4]) == int.from_bytes(data[-4:], "little"))


def wanted_chunks(plan: ChunkPlan, selection: Sequence[Any] | None) -> Iterable[tuple[int, ...]]:
    """Return the places of a shard's inner chunks in the box around the selection."""
    assert plan.shard is not None
    if selection is None:
        return np.ndindex(*plan.shard.shape)
    ranges = []
    for axis, (count, side) in enumerate(zip(plan.shard.shape, plan.chunk_shape, strict=True)):
        part = selection[axis] if axis < len(selection) else slice(None)
        if isinstance(part, slice):
            first, stop, _ = part.indices(count * side)
        else:
            voxels = np.asarray(part)
            if not voxels.size:
                return []
            first, stop = int(voxels.min()), int(voxels.max()) + 1
        ranges.append(range(first // side, -(-stop // side)))
    return itertools.product(*ranges)
