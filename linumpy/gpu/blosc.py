"""Blosc 1 containers on the device: streams found by a kernel, decoded by nvCOMP, unshuffled.

A container is cut into blocks, a block into streams (one a byte of an item, or one), each
compressed on its own or stored as it is; the bytes or bits of a block are shuffled.
"""

from __future__ import annotations

import numpy as np

from linumpy.gpu import kernels, nvcomp
from linumpy.gpu.formats import EMPTY_ZSTD, Decoded, Outcome, StoredBatch, condemned
from linumpy.gpu.transfer import allocate, upload
from linumpy.store.chunk_layout import ChunkLayout, UnsupportedLayout

HEADER_NBYTES = 16
FORMAT_VERSION = 1
BYTE_SHUFFLE, MEMCPYED, BIT_SHUFFLE, RESERVED, NOT_SPLIT = 1, 2, 4, 8, 16
CODECS = {"lz4": 1, "lz4hc": 1, "zstd": 4}
"""Codecs of nvCOMP, and the number of their format in a container's flags."""

MIN_SPLIT_NBYTES = 128
MAX_SPLITS = 16


def blosc_codec(layout: ChunkLayout) -> str:
    """Return the codec that an array's Blosc compressor is configured with."""
    name = layout.compressor.cname
    return str(getattr(name, "value", name))


class Blosc:
    """Containers of one array."""

    def __init__(self, batch: StoredBatch) -> None:
        self._batch = batch

    @staticmethod
    def check(layout: ChunkLayout) -> None:
        """Raise unless nvCOMP supports the codec inside.

        Raises
        ------
        UnsupportedLayout
            Names the codec.
        """
        if blosc_codec(layout) not in CODECS:
            raise UnsupportedLayout(f"blosc with {blosc_codec(layout)}")

    def start(self) -> np.ndarray:
        """Read the headers, find the streams, decode and unshuffle them."""
        batch = self._batch
        layout = batch.layout
        kind = CODECS[blosc_codec(layout)]
        self._read_headers(kind)
        if not len(self._fit):
            batch.decoding()
            return np.zeros(len(batch.nbytes), np.int64)
        self._plan()
        empty = EMPTY_ZSTD if kind == CODECS["zstd"] else b"\0"
        self._harmless = upload(np.frombuffer(empty, np.uint8), batch.caller, batch.checks)
        blocks = upload(self._blocks, batch.caller, batch.checks)
        slots = upload(self._slots, batch.caller, batch.checks)
        (self._found,) = allocate(
            batch.caller, batch.checks, ((6, self._slots.shape[1]), np.uint64)
        )
        kernels.blosc_streams(
            blocks, slots, self._harmless, self._found, batch.verdict, batch.checks
        )
        kernels.copy_bytes(self._found[0], self._found[1], self._found[2], batch.checks, blocks=1)
        chunk = upload(self._chunk_of, batch.caller, batch.checks)
        if kind == CODECS["lz4"]:
            kernels.judge_lz4(
                self._found[3],
                self._found[4],
                self._found[5],
                self._harmless,
                chunk,
                batch.verdict,
                batch.checks,
            )
        batch.decoding()
        algorithm = nvcomp.ALGORITHMS["zstd" if kind == CODECS["zstd"] else "lz4"]
        self._decoded = Decoded(
            algorithm, batch, self._found[3], self._found[4], int(self._slots[1].max())
        )
        # Streams end where others begin: nvCOMP, which wants aligned room, does not write there.
        kernels.copy_bytes(
            self._decoded.device_pointers,
            slots[0].view(np.uint64),
            self._found[5],
            batch.stream,
            blocks=1,
        )
        table = upload(self._unshuffled, batch.caller, batch.stream)
        kernels.unshuffle(table[0], table[1], table[2], table[3], self._typesize, batch.stream)
        self._kept = (blocks, slots, table, chunk)
        return self._result

    def _read_headers(self, kind: int) -> None:
        """Fetch and check the headers; what is not fit never gets to the device's decoder."""
        batch = self._batch
        n, size = len(batch.nbytes), batch.layout.chunk_nbytes
        (heads,) = allocate(batch.caller, batch.checks, ((n, HEADER_NBYTES), np.uint8))
        long = batch.nbytes >= HEADER_NBYTES
        table = upload(
            np.stack(
                [
                    batch.pointers,
                    heads.data.ptr + HEADER_NBYTES * np.arange(n),
                    np.where(long, HEADER_NBYTES, 0),
                ]
            ),
            batch.caller,
            batch.checks,
        )
        source, target, nbytes = table.view(np.uint64)
        kernels.copy_bytes(source, target, nbytes, batch.checks, blocks=1)
        head = heads.get(stream=batch.checks)
        verdict = batch.verdict.get(stream=batch.checks)
        flags, typesize = head[:, 2].astype(np.int64), head[:, 3].astype(np.int64)
        content, block, stored = head[:, 4:].view("<i4").astype(np.int64).T
        both = BYTE_SHUFFLE | BIT_SHUFFLE
        malformed = ~long | (head[:, 0] != 2) | (typesize == 0) | (stored != batch.nbytes)
        malformed |= (flags & both) == both
        memcpyed = (flags & MEMCPYED) != 0
        malformed |= memcpyed & (stored != HEADER_NBYTES + content)
        malformed |= ~memcpyed & ((block <= 0) | (block > np.maximum(content, 1)))
        # Containers of one array are alike; one that is not is left to the CPU, as is a codec that
        # the array's metadata did not announce.
        self._typesize = int(typesize[np.argmax(~malformed)]) if (~malformed).any() else 1
        left = (flags >> 5 != kind) & ~memcpyed | (typesize != self._typesize) | (size == 0)
        left |= (head[:, 1] != FORMAT_VERSION) | ((flags & RESERVED) != 0)
        fresh = np.select(
            [malformed, content != size, left],
            [kernels.MALFORMED, kernels.OTHER_SIZE, kernels.LEFT_TO_HOST],
            kernels.FIT,
        )
        self._content = content
        verdict = np.where(verdict == kernels.FIT, fresh, verdict).astype(np.int32)
        batch.verdict.set(verdict, stream=batch.checks)
        self._fit = np.flatnonzero(verdict == kernels.FIT)
        self._flags, self._block = flags, np.where(memcpyed, size, block)

    def _plan(self) -> None:
        """Lay out blocks and streams of all fit containers, and the memory for their content."""
        batch = self._batch
        size = batch.layout.chunk_nbytes
        fit = self._fit
        flags, side = self._flags[fit], self._block[fit]
        memcpyed = (flags & MEMCPYED) != 0
        n_blocks = -(-size // side)
        number = np.repeat(np.arange(len(fit)), n_blocks)
        block = np.arange(len(number)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
        at = block * side[number]
        block_nbytes = np.minimum(side[number], size - at)
        item = self._typesize
        splits = np.ones(len(number), np.int64)
        splits[
            ((flags[number] & NOT_SPLIT) == 0)
            & (item <= MAX_SPLITS)
            & (side[number] // item >= MIN_SPLIT_NBYTES)
            & (block_nbytes == side[number])
            & (block_nbytes % item == 0)
        ] = item
        streams = np.where(memcpyed[number], 1, splits)
        first = np.cumsum(streams) - streams
        room = max(16, -(-size // 16) * 16)
        # Shuffled content of all containers, then the content itself.
        self._buffer, self._rooms = allocate(
            batch.caller,
            batch.checks,
            (2 * len(fit) * room, np.uint8),
            (int((-(-block_nbytes // 16) * 16 + 16 * streams).sum()) + 16, np.uint8),
        )
        shuffled = self._buffer.data.ptr + room * number + at
        plain = shuffled + len(fit) * room
        mode = np.where(flags & BYTE_SHUFFLE, 1, np.where(flags & BIT_SHUFFLE, 2, 0))
        mode = np.where(memcpyed, 0, mode)[number]
        if item == 1:
            mode[mode == 1] = 0
        self._unshuffled = np.stack([shuffled, plain, block_nbytes, mode])
        self._blocks = np.stack(
            [
                batch.pointers[fit][number],
                batch.nbytes[fit][number],
                fit[number],
                block,
                first,
                np.where(memcpyed[number], 0, splits),
                n_blocks[number],
            ]
        )
        of = np.repeat(np.arange(len(number)), streams)
        which = np.arange(len(of)) - first[of]
        stream_nbytes = block_nbytes[of] // streams[of]
        rooms = -(-stream_nbytes // 16) * 16
        self._slots = np.stack(
            [
                shuffled[of] + which * stream_nbytes,
                stream_nbytes,
                self._rooms.data.ptr + np.cumsum(rooms) - rooms,
            ]
        )
        self._chunk_of = fit[number[of]]
        self._result = np.zeros(len(batch.nbytes), np.int64)
        self._result[fit] = self._buffer.data.ptr + room * (len(fit) + np.arange(len(fit)))

    def outcome(self) -> Outcome:
        """Read verdicts, and nvCOMP's answers for every stream."""
        batch = self._batch
        result = condemned(batch)
        verdict = batch.verdict.get(stream=batch.stream)
        for n in np.flatnonzero(verdict == kernels.OTHER_SIZE):
            result.problems[int(n)] = (
                f"declares {self._content[n]} decoded bytes, expected {batch.layout.chunk_nbytes}"
            )
        if len(self._fit):
            wanted = self._found[5].get(stream=batch.stream)
            # A stream that the judge took from nvCOMP made nothing; its chunk is condemned anyway.
            bad = self._chunk_of[~self._decoded.made(wanted)]
            result.failed = [int(n) for n in np.unique(bad) if verdict[n] == kernels.FIT]
        return result
