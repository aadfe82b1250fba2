"""Shards: their index, and the chunks that it points at.

Three bytes choose how the shard is made up: the codecs, checksums and place of the index; whether
the index's checksum and those of the chunks are made right first; which part is wanted. The rest is
the shard. A reader of the whole and one of a part must agree.
"""

import google_crc32c
import numpy as np

from linumpy.core.errors import InputError
from linumpy.gpu.objects import LocalObject
from linumpy.store import codecs
from linumpy.store.chunk_guard import ChunkPlan, check_chunk
from linumpy.store.host_codec import decode_chunk
from linumpy.store.shards import MISSING, ShardIndex, read_index
from tests.faults.fuzz.common import folder, survive
from tests.faults.fuzz.frames import layout

FILE = folder() / "0"
KINDS = (None, *codecs.KINDS)
CHUNKS = ((1, 1, 1), (1, 2, 1), (2, 2, 2), (4, 4, 8))
SIDE = 4


def crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def repaired(shard: bytes, plan: ChunkPlan) -> bytes:
    """Return the shard with the checksums that its content calls for."""
    n = plan.shard.nbytes
    if not plan.shard.has_crc32c or len(shard) < n:
        return shard
    index = shard[-n:] if plan.shard.at_end else shard[:n]
    body = bytearray(shard)
    if plan.crcs:
        for start, length in np.frombuffer(index[:-4], "<u8").reshape(-1, 2).tolist():
            if length > 4 and start + length <= len(body):
                end = start + length
                body[end - 4 : end] = crc(bytes(body[start : end - 4]))
    at = len(body) - n if plan.shard.at_end else 0
    body[at + n - 4 : at + n] = crc(bytes(body[at : at + n - 4]))
    return bytes(body)


def one(data: bytes) -> None:
    if len(data) < 3:
        return
    how, more, wanted = data[:3]
    kind = KINDS[how % len(KINDS)]
    crcs = more & 1
    index = ShardIndex(
        CHUNKS[how // len(KINDS) % len(CHUNKS)], at_end=bool(more & 4), has_crc32c=bool(more & 2)
    )
    plan = ChunkPlan(SIDE**3, kind, crcs, bool(more & 32), (SIDE,) * 3, index)
    shard = repaired(data[3:], plan) if more & 8 else data[3:]
    FILE.write_bytes(shard)
    selection = (slice(0, 1 + wanted % 17), slice(None), slice(wanted // 32, None))
    whole = survive(lambda: check_chunk(FILE, plan, None, verify=bool(more & 16)) or True)
    if more & 32:
        return
    part = survive(lambda: check_chunk(FILE, plan, selection, verify=bool(more & 16)) or True)
    assert part or not whole
    stored = LocalObject(str(FILE))
    found = survive(lambda: read_index(stored.read, len(shard), index, stored.name))
    assert found is not None or not whole
    if found is None:
        return
    for start, length in found[1].reshape(-1, 2).tolist():
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
