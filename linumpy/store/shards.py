"""Index of a shard: where it lies, how it is read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from linumpy.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np

MISSING = 2**64 - 1
"""What offset and length of a shard's index hold for a chunk that was never written."""


@dataclass(frozen=True)
class ShardIndex:
    """Where a shard keeps the byte ranges of its inner chunks.

    Attributes
    ----------
    shape
        Inner chunks along each axis.
    at_end
        Whether the index follows the chunks, or precedes them.
    has_crc32c
        Whether a checksum follows the index.
    """

    shape: tuple[int, ...]
    at_end: bool
    has_crc32c: bool

    @property
    def n_chunks(self) -> int:
        """Inner chunks of a shard."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the index on disk, with its checksum."""
        return 16 * self.n_chunks + 4 * self.has_crc32c


def parse_sharding(shape: tuple[int, ...], configuration: Mapping[str, Any]) -> ShardIndex | None:
    """Return the index that a sharding codec's configuration declares.

    Parameters
    ----------
    shape
        Voxels of a shard.
    configuration
        As in ``zarr.json``.

    Returns
    -------
    None for an index that is not stored as plain little-endian numbers.
    """
    index, *rest = configuration["index_codecs"]
    names = [codec["name"] for codec in (index, *rest)]
    endian = index.get("configuration", {}).get("endian", "little")
    if names not in (["bytes"], ["bytes", "crc32c"]) or endian != "little":
        return None
    return ShardIndex(
        tuple(s // c for s, c in zip(shape, configuration["chunk_shape"], strict=True)),
        at_end=configuration.get("index_location", "end") == "end",
        has_crc32c=len(names) == 2,
    )


def read_index(
    read: Callable[[int, int], Any], size: int, index: ShardIndex, where: object
) -> tuple[bytes, np.ndarray]:
    """Read and check a shard's index.

    Parameters
    ----------
    read
        Returns bytes of the shard, by the first and their number.
    size
        Bytes of the shard.
    index
        How the index is stored.
    where
        Name of the shard, for messages.

    Returns
    -------
    The index as stored; and offset and length of every inner chunk, uint64, shape
    (inner chunks…, 2), both `MISSING` for a chunk that was never written.

    Raises
    ------
    InputError
        The shard is shorter than its index, the index fails its checksum, or an inner chunk lies
        outside the shard or shares bytes with another or with the index.
    """
    import google_crc32c
    import numpy as np

    from linumpy.store.frames import first_overlap

    # before reading: its length comes from the metadata
    if size < index.nbytes:
        raise InputError(f"{where}: shard of {size} bytes, its index alone takes {index.nbytes}")
    start = size - index.nbytes if index.at_end else 0
    stored = bytes(read(start, index.nbytes))
    if len(stored) != index.nbytes:
        raise InputError(f"{where}: shard shrank while it was read")
    body = stored[: 16 * index.n_chunks]
    if index.has_crc32c and google_crc32c.value(body).to_bytes(4, "little") != stored[-4:]:
        raise InputError(f"{where}: wrong checksum (crc32c) of the shard's index")
    table = np.frombuffer(body, "<u8").reshape(*index.shape, 2)
    offsets, lengths = table[..., 0], table[..., 1]
    missing = (offsets == MISSING) & (lengths == MISSING)
    inside = (offsets <= size) & (lengths <= np.uint64(size) - np.minimum(offsets, size))
    bad = np.argwhere(~(missing | inside))
    if len(bad):
        place = tuple(bad[0].tolist())
        offset, length = table[place].tolist()
        raise InputError(
            f"{where}: inner chunk {place} at byte {offset}, {length} long, "
            f"lies outside the shard of {size} bytes"
        )
    places = np.argwhere(~missing)
    first, stop = (0, start) if index.at_end else (index.nbytes, size)
    shared = first_overlap(offsets[~missing], lengths[~missing], first, stop)
    if shared is not None:
        one, other = (tuple(places[number].tolist()) for number in shared)
        whom = "the index" if one == other else f"inner chunk {other}"
        raise InputError(f"{where}: inner chunk {one} overlaps {whom}")
    return stored, table
