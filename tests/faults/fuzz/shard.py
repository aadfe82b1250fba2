"""Shards: their index, and the chunks that it points at.

Three bytes choose how the shard is made up: the codecs, checksums and place of the index; whether
the index's checksum and those of the chunks are made right first; which part is wanted. The rest is
the shard. Both readers of an index, the host's and the device's, must agree.
"""

from dataclasses import replace

import google_crc32c
import numpy as np

from linumpy.errors import InputError
from linumpy.gpu.objects import LocalObject, read_index
from linumpy.store.chunk_guard import ChunkPlan, ShardPlan, check_chunk
from linumpy.store.chunk_layout import MISSING, ShardIndex
from linumpy.store.host_codec import decode_chunk
from tests.faults.fuzz.common import folder, survive
from tests.faults.fuzz.frames import layout

FILE = folder() / "0"
KINDS = (None, "zstd", "lz4", "gzip", "zlib", "blosc")
CHUNKS = ((1, 1, 1), (1, 2, 1), (2, 2, 2), (4, 4, 8))
SIDE = 4


def crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def repaired(shard: bytes, plan: ShardPlan) -> bytes:
    """Return the shard with the checksums that its content calls for."""
    n = plan.index_nbytes
    if not plan.index_crc or len(shard) < n:
        return shard
    index = shard[-n:] if plan.index_at_end else shard[:n]
    body = bytearray(shard)
    if plan.inner.crcs:
        for start, length in np.frombuffer(index[:-4], "<u8").reshape(-1, 2).tolist():
            if length > 4 and start + length <= len(body):
                end = start + length
                body[end - 4 : end] = crc(bytes(body[start : end - 4]))
    at = len(body) - n if plan.index_at_end else 0
    body[at + n - 4 : at + n] = crc(bytes(body[at : at + n - 4]))
    return bytes(body)


def one(data: bytes) -> None:
    if len(data) < 3:
        return
    how, more, wanted = data[:3]
    kind = KINDS[how % len(KINDS)]
    crcs = more & 1
    plan = ShardPlan(
        ChunkPlan(SIDE**3, kind, crcs),
        (SIDE,) * 3,
        CHUNKS[how // len(KINDS) % len(CHUNKS)],
        index_crc=bool(more & 2),
        index_at_end=bool(more & 4),
    )
    if more & 32:
        plan = replace(plan, inner=replace(plan.inner, loose=True))
    shard = repaired(data[3:], plan) if more & 8 else data[3:]
    FILE.write_bytes(shard)
    selection = (slice(0, 1 + wanted % 17), slice(None), slice(wanted // 32, None))
    whole = survive(lambda: check_chunk(FILE, plan, None, verify=bool(more & 16)) or True)
    if more & 32:
        return
    part = survive(lambda: check_chunk(FILE, plan, selection, verify=bool(more & 16)) or True)
    assert part or not whole
    index = ShardIndex(plan.chunks_a_shard, plan.index_at_end, plan.index_crc)
    found = survive(lambda: read_index(LocalObject(str(FILE)), len(shard), index))
    assert found is not None or not whole
    if found is None:
        return
    for start, length in zip(*(column.tolist() for column in found), strict=True):
        if start == MISSING:
            continue
        assert start + length <= len(shard)
        chunk = shard[start : start + length]
        if kind is None and len(chunk) - 4 * crcs > 1 << 16:
            continue
        shape = layout(kind or "zstd", SIDE**3, has_crc32c=bool(crcs))
        if kind is None:
            continue
        try:
            assert decode_chunk(chunk, shape, "a chunk").nbytes == SIDE**3
        except InputError:
            continue
