"""Decoders of the device: one class a chunk format, called with batches of chunks.

A batch is judged and decoded in one go on its stream, without asking the host in between: chunks
that are not fit are replaced by harmless bytes before nvCOMP sees them, and named afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from linumpy.gpu import kernels, nvcomp
from linumpy.gpu.transfer import allocate, upload
from linumpy.store.chunk_layout import ChunkLayout, UnsupportedLayout
from linumpy.store.codecs import CODECS


@dataclass(frozen=True)
class StoredBatch:
    """Chunks' bytes in device memory.

    Attributes
    ----------
    layout
        How they are stored.
    pointers, nbytes
        Address and size of each chunk's bytes without its CRC-32C, int64, on the host.
    verdict
        What is known of each chunk, int32, on the device; see `kernels.FIT`.
    caller
        The stream whose memory is used.
    stream
        The stream to decode on.
    checks
        The stream for what precedes decoding; `decoding` lets the other wait for it.
    """

    layout: ChunkLayout
    pointers: np.ndarray
    nbytes: np.ndarray
    verdict: Any
    caller: Any
    stream: Any
    checks: Any

    def decoding(self) -> None:
        """Let what is started on `stream` from now on wait for `checks`."""
        self.stream.wait_event(self.checks.record())


@dataclass
class Outcome:
    """How decoding a batch went.

    Attributes
    ----------
    left
        Chunks that the CPU must decode, by the device's own choice.
    failed
        Chunks that the device could not decode; the CPU's decoder then names the defect.
    problems
        What is wrong with which chunk.
    """

    left: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)


class DeviceFormat(Protocol):
    """A batch of stored chunks on their way to voxels."""

    def __init__(self, batch: StoredBatch) -> None: ...

    @staticmethod
    def check(layout: ChunkLayout) -> None:
        """Raise `UnsupportedLayout` for chunks of the codec that the device does not decode."""

    def start(self) -> np.ndarray:
        """Start judging and decoding; return where each chunk will be, int64 addresses."""
        ...

    def outcome(self) -> Outcome:
        """Say how it went; the stream has been waited for."""
        ...


def device_format(layout: ChunkLayout) -> type[DeviceFormat]:
    """Return the class that decodes a layout's chunks on the device.

    Raises
    ------
    UnsupportedLayout
        When there is none.
    """
    if layout.compression is None:
        return Raw
    codec = CODECS.get(layout.compression)
    if codec is None or codec.device is None:
        raise UnsupportedLayout(f"{layout.compression} is not decoded on the device")
    module, _, name = codec.device.partition(":")
    kind: type[DeviceFormat] = getattr(import_module(module), name)
    kind.check(layout)
    if layout.chunk_nbytes > nvcomp.MAX_CHUNK_NBYTES:
        raise UnsupportedLayout(f"chunks of {layout.chunk_nbytes} bytes")
    return kind


class Raw(DeviceFormat):
    """Chunks that are stored as they are."""

    def __init__(self, batch: StoredBatch) -> None:
        self._batch = batch
        self._aligned: Aligned | None = None

    def start(self) -> np.ndarray:
        """Use the bytes where they are; copy them only if elements would straddle words."""
        batch = self._batch
        expected = batch.layout.chunk_nbytes
        short = batch.nbytes != expected
        if short.any() or (batch.pointers % batch.layout.dtype.itemsize).any():
            # A chunk of another size is named afterwards; until then it must have its room.
            nbytes = np.where(short, expected, batch.nbytes)
            self._aligned = Aligned(batch, np.where(short, 0, batch.nbytes), nbytes)
        batch.decoding()
        return self._aligned.pointers if self._aligned is not None else batch.pointers

    def outcome(self) -> Outcome:
        """Compare sizes."""
        expected = self._batch.layout.chunk_nbytes
        result = condemned(self._batch)
        for n in np.flatnonzero(self._batch.nbytes != expected):
            result.problems[int(n)] = f"{self._batch.nbytes[n]} bytes, expected {expected}"
        return result


class Aligned:
    """Copies of chunks' bytes that begin on multiples of 16 bytes.

    Parameters
    ----------
    batch
        The chunks.
    nbytes
        Bytes to copy of each; those of the batch when None.
    room
        Bytes to reserve for each; `nbytes` when None.
    """

    def __init__(
        self, batch: StoredBatch, nbytes: np.ndarray | None = None, room: np.ndarray | None = None
    ) -> None:
        nbytes = batch.nbytes if nbytes is None else nbytes
        ends = np.cumsum(-(-(nbytes if room is None else room) // 16) * 16)
        (self.buffer,) = allocate(batch.caller, batch.checks, (int(ends[-1]) + 16, np.uint8))
        self.pointers = self.buffer.data.ptr + np.concatenate([[0], ends[:-1]])
        self.table = upload(
            np.stack([batch.pointers, self.pointers, nbytes]), batch.caller, batch.checks
        )
        source, self.device_pointers, self.device_nbytes = self.table.view(np.uint64)
        kernels.copy_bytes(source, self.device_pointers, self.device_nbytes, batch.checks)


EMPTY_ZSTD = bytes.fromhex("28b52ffd 20 00 010000")


class Zstd(DeviceFormat):
    """Frames of RFC 8878, decoded by nvCOMP."""

    def __init__(self, batch: StoredBatch) -> None:
        self._batch = batch

    def start(self) -> np.ndarray:
        """Judge the frames, decode those that are fit, check their content's checksums."""
        batch = self._batch
        n, size = len(batch.nbytes), batch.layout.chunk_nbytes
        self._aligned = Aligned(batch)
        self._harmless = upload(np.frombuffer(EMPTY_ZSTD, np.uint8), batch.caller, batch.checks)
        self._content, self._good = allocate(
            batch.caller, batch.checks, (n, np.uint64), (n, np.int32)
        )
        source, nbytes = self._aligned.device_pointers, self._aligned.device_nbytes
        kernels.judge_zstd(
            source, nbytes, size, self._harmless, self._content, batch.verdict, batch.checks
        )
        batch.decoding()
        self._decoded = Decoded(nvcomp.ALGORITHMS["zstd"], batch, source, nbytes, size)
        kernels.zstd_checksum(
            source, nbytes, self._decoded.device_pointers, size, self._good, batch.stream
        )
        return self._decoded.pointers

    def outcome(self) -> Outcome:
        """Read verdicts, statuses, sizes and checksums."""
        return _outcome(self._batch, self._content, self._good, self._decoded)


@dataclass(frozen=True)
class _Wrapping:
    """A format whose compressed bytes lie between others.

    Attributes
    ----------
    algorithm
        What nvCOMP calls it.
    head, tail
        Bytes before and after what nvCOMP gets.
    empty
        Bytes that decode to nothing.
    """

    algorithm: str
    head: int
    tail: int
    empty: bytes


_WRAPPINGS = {
    "lz4": _Wrapping("lz4", 4, 0, b"\0"),
    "gzip": _Wrapping("gzip", 0, 0, bytes.fromhex("1f8b0800000000000003 0300 00000000 00000000")),
    "zlib": _Wrapping("deflate", 2, 4, b"\3\0"),
}


class Wrapped(DeviceFormat):
    """LZ4 blocks behind their size, gzip members and zlib streams, decoded by nvCOMP."""

    def __init__(self, batch: StoredBatch) -> None:
        self._batch = batch

    def start(self) -> np.ndarray:
        """Judge the chunks by their heads, decode those that are fit, check their checksums."""
        batch = self._batch
        kind = str(batch.layout.compression)
        wrapping = _WRAPPINGS[kind]
        n, size = len(batch.nbytes), batch.layout.chunk_nbytes
        around = wrapping.head + wrapping.tail
        body = replace(
            batch,
            pointers=batch.pointers + wrapping.head,
            nbytes=np.maximum(batch.nbytes - around, 0),
        )
        self._aligned = Aligned(body)
        self._harmless = upload(np.frombuffer(wrapping.empty, np.uint8), batch.caller, batch.checks)
        self._content, self._good, self._crc = allocate(
            batch.caller, batch.checks, (n, np.uint64), (n, np.int32), (n, np.uint32)
        )
        self._good.data.memset_async(1, self._good.nbytes, batch.checks)
        self._table = upload(np.stack([batch.pointers, batch.nbytes]), batch.caller, batch.checks)
        whole, whole_nbytes = self._table.view(np.uint64)
        source, nbytes = self._aligned.device_pointers, self._aligned.device_nbytes
        kernels.judge_head(
            kind,
            whole,
            whole_nbytes,
            size,
            self._harmless,
            source,
            nbytes,
            self._content,
            batch.verdict,
            batch.checks,
        )
        if kind == "lz4":
            judged = np.stack([np.full(n, size), np.arange(n)])
            self._wanted = upload(judged, batch.caller, batch.checks)
            kernels.judge_lz4(
                source,
                nbytes,
                self._wanted[0].view(np.uint64),
                self._harmless,
                self._wanted[1],
                batch.verdict,
                batch.checks,
            )
        batch.decoding()
        algorithm = nvcomp.ALGORITHMS[wrapping.algorithm]
        self._decoded = decoded = Decoded(algorithm, batch, source, nbytes, size)
        content, stream = decoded.device_pointers, batch.stream
        if kind == "gzip":
            nvcomp.crc(nvcomp.CRC32, content, decoded.device_nbytes, size, self._crc, stream)
            kernels.check_gzip(whole, whole_nbytes, self._crc, size, self._good, stream)
        elif kind == "zlib":
            kernels.check_adler(whole, whole_nbytes, content, size, self._good, stream)
        return decoded.pointers

    def outcome(self) -> Outcome:
        """Read verdicts, statuses, sizes and checksums."""
        return _outcome(self._batch, self._content, self._good, self._decoded)


def condemned(batch: StoredBatch) -> Outcome:
    """Return what the verdicts say, whatever the format."""
    verdict = batch.verdict.get(stream=batch.stream)
    result = Outcome(left=[int(n) for n in np.flatnonzero(verdict == kernels.LEFT_TO_HOST)])
    for n in np.flatnonzero(verdict == kernels.BAD_CHECKSUM):
        result.problems[int(n)] = "does not match its checksum (crc32c)"
    for n in np.flatnonzero(verdict == kernels.MALFORMED):
        result.problems[int(n)] = f"malformed or truncated {batch.layout.compression}"
    return result


def _outcome(batch: StoredBatch, content: Any, good: Any, decoded: Decoded) -> Outcome:
    """Return what verdicts, checksums and nvCOMP's own answers say."""
    result = condemned(batch)
    declared = content.get(stream=batch.stream)
    verdict = batch.verdict.get(stream=batch.stream)
    for n in np.flatnonzero(verdict == kernels.OTHER_SIZE):
        result.problems[int(n)] = (
            f"declares {declared[n]} decoded bytes, expected {batch.layout.chunk_nbytes}"
        )
    well = (good.get(stream=batch.stream) != 0) & decoded.made(batch.layout.chunk_nbytes)
    result.failed = [int(n) for n in np.flatnonzero((verdict == kernels.FIT) & ~well)]
    return result


class Decoded:
    """Scratch memory that nvCOMP decodes chunks of one size into.

    Parameters
    ----------
    algorithm
        The format.
    batch
        The chunks.
    source, nbytes
        Addresses (multiples of 16) and sizes of the compressed bytes, uint64, on the device.
    size
        Decoded bytes of a chunk.
    """

    def __init__(
        self, algorithm: nvcomp.Algorithm, batch: StoredBatch, source: Any, nbytes: Any, size: int
    ) -> None:
        self._stream = batch.stream
        room = max(16, -(-size // 16) * 16)
        n = len(source)
        temp = nvcomp.decompress_temp_nbytes(algorithm, n, size, n * size)
        self.buffer, self._temp, self._actual, self._status = allocate(
            batch.caller,
            batch.stream,
            (n * room, np.uint8),
            (max(temp, 1), np.uint8),
            (n, np.uint64),
            (n, np.int32),
        )
        self.pointers = self.buffer.data.ptr + room * np.arange(n, dtype=np.int64)
        table = upload(np.stack([self.pointers, np.full(n, size)]), batch.caller, batch.stream)
        self.device_pointers, self.device_nbytes = table.view(np.uint64)
        nvcomp.decompress(
            algorithm,
            source,
            nbytes,
            self.device_pointers,
            self.device_nbytes,
            self._actual,
            self._status,
            self._temp,
            batch.stream,
        )

    def made(self, wanted: np.ndarray | int) -> np.ndarray:
        """Return which chunks decoded to the wanted sizes; the stream has been waited for."""
        status = self._status.get(stream=self._stream)
        return (status == nvcomp.SUCCESS) & (self._actual.get(stream=self._stream) == wanted)
