"""Check stored chunks before a device, or Zarr itself, decodes them.

A file of a store with a manifest is compared with it when it is first read. That takes a few short
reads, made in threads of their own while the device reads and decodes: a chunk's own CRC-32C is
compared before it is decoded anyway. Chunks without one may only go to the device's decoder after
their file was found to be the one in the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linumpy.gpu.objects import StoredObject
from linumpy.store.chunk_guard import ChunkPlan, check_chunk
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.manifest import check_chunk_file, find_manifest

CHECK_THREADS = 8
"""Files checked at once: their cost is latency of remote disks."""


@contextmanager
def checking_files(objects: Sequence[StoredObject]) -> Iterator[Callable[[], bool]]:
    """Hold files against the manifest of their store while a block runs.

    Parameters
    ----------
    objects
        Stored objects of one array; those that are no local files are left out.

    Yields
    ------
    A function that waits for all checks and says whether a manifest vouches for the files. The
    block's end waits as well, unless it is an error.

    Raises
    ------
    InputError
        From that function or the block's end, naming a file that is missing, surplus, of another
        size, or altered.
    """
    paths = list(dict.fromkeys(stored.path for stored in objects if stored.path is not None))
    # One array lies in one store; what has no manifest need not be asked file by file.
    if not paths or find_manifest(Path(paths[0]).parent) is None:
        yield lambda: False
        return
    with ThreadPoolExecutor(min(CHECK_THREADS, len(paths)), "linumpy-check") as pool:
        futures = [pool.submit(check_chunk_file, path) for path in paths]

        def vouched() -> bool:
            for future in futures:
                future.result()
            return all(stored.path is not None for stored in objects)

        try:
            yield vouched
            vouched()
        finally:
            for future in futures:
                future.cancel()


def check_for_zarr(wanted: Iterable[tuple[StoredObject, Any]], plan: ChunkPlan | None) -> None:
    """Check files that Zarr's own codecs are about to read.

    Zarr takes a file that is missing or empty for fill value, and its decoders allocate what a
    frame declares.

    Parameters
    ----------
    wanted
        Stored objects and what is selected of each, as Zarr's indexers say it.
    plan
        How chunks are stored, or None where that is not known; then only manifests are checked.

    Raises
    ------
    InputError
        Naming the file, and the inner chunk, that is not as it must be.
    """
    for stored, selection in wanted:
        if stored.path is None:
            continue
        check_chunk_file(stored.path)
        if plan is not None:
            parts = selection if isinstance(selection, tuple) else (selection,)
            # Zarr compares checksums too, but does not say of which file.
            check_chunk(Path(stored.path), plan, parts, verify=True)


def plan_of(layout: ChunkLayout) -> ChunkPlan:
    """Return a layout in the terms of the guard of the host's decoder."""
    return ChunkPlan(
        layout.chunk_nbytes,
        layout.compression,
        int(layout.has_crc32c),
        chunk_shape=layout.chunk_shape,
        shard=layout.shard,
    )
