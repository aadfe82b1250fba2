"""Plain Zarr arrays in local folders, read and written on all cores without importing Zarr.

Zarr's import takes longer than a small projection. A `PlainArray` does what slices, boxes and
whole shards need; for all else it opens the same array with Zarr and hands the call on.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.store.chunk_guard import check_chunk
from linumpy.store.host_codec import decode_chunk
from linumpy.store.host_context import host_context
from linumpy.store.manifest import check_chunk_file
from linumpy.store.ordered_shards import encode_shards, n_threads, shards_together
from linumpy.store.plain_metadata import (
    PlainMetadata,
    array_document,
    group_document,
    parse_array,
    read_document,
    read_group,
    write_document,
)
from linumpy.store.selections import Part, as_box, parts_of, resolve
from linumpy.store.shards import MISSING, read_index
from linumpy.store.untrusted_zarr import stay_inside

_KEPT_NBYTES = 16 << 20
"""Largest chunk for which a thread keeps the memory that it decodes into."""

_opening = threading.Lock()
_local = threading.local()


class PlainArray:
    """A plain array below a local root; attributes that are not here are those of Zarr's array.

    Parameters
    ----------
    root, path
        Folder of the store, and key of the array below it.
    """

    def __init__(
        self, root: Path, path: str, metadata: PlainMetadata, *, writable: bool = False
    ) -> None:
        self.root = root
        self.path = path
        self.layout = metadata.layout
        self.plan = metadata.plan
        self.shape = metadata.shape
        self.dtype = self.layout.dtype
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.chunks = self.layout.chunk_shape
        self.outer = self.layout.outer_shape
        self.shards = None if self.layout.shard is None else self.outer
        self._folder = os.path.join(root, path)  # noqa: PTH118 - joined to texts
        self._prefix = f"{self._folder}/{metadata.prefix}"
        self._separator = metadata.separator
        self._writable = writable
        self._zarr: Any = None
        self._listed = True

    @property
    def zarr(self) -> Any:
        """The same array, opened with Zarr."""
        with _opening:
            if self._zarr is None:
                with host_context():
                    import zarr

                    mode: Any = "r+" if self._writable else "r"
                    self._zarr = zarr.open_array(self.root, path=self.path, mode=mode)
            return self._zarr

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.zarr, name)

    def __repr__(self) -> str:
        return f"<PlainArray {self.store_path} shape={self.shape} dtype={self.dtype}>"

    @property
    def store_path(self) -> str:
        """Where the array is, as Zarr names it."""
        return f"file://{self._folder}"

    def file(self, place: Sequence[int]) -> str:
        """Return the file of a stored object (a shard or a chunk), by its place among them."""
        return f"{self._prefix}{self._separator.join(map(str, place))}"

    # --- reading ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype=dtype)

    def __getitem__(self, selection: Any) -> Any:
        found = self._box(selection)
        if found is None:
            return self.zarr[selection]
        box, shape = found
        out = np.empty([part.stop - part.start for part in box], self.dtype)
        self.read_into(box, out)
        return out.reshape(shape)

    def _box(self, selection: Any) -> tuple[tuple[slice, ...], tuple[int, ...]] | None:
        """Return the box of a selection, and its shape; None for what is left to Zarr."""
        try:
            parts, flips, shape = resolve(self, selection)
        except InputError:
            return None
        slices = [part for part in parts if isinstance(part, slice)]
        if flips or not slices or any(part.step != 1 for part in slices):
            return None
        return as_box(parts), shape

    def parts(self, selection: Any) -> tuple[tuple[int, ...], list[tuple[Any, Any, Any]]] | None:
        """Return a selection's shape and parts, as `zarr_adapter.array_parts`; None for steps."""
        found = self._box(Ellipsis if selection is None else selection)
        if found is None:
            return None
        box, shape = found
        parts = list(parts_of(box, self.outer))
        return (shape, parts) if len(shape) == self.ndim else None

    def read_into(self, box: tuple[slice, ...], out: np.ndarray) -> None:
        """Decode a box on all cores.

        Parameters
        ----------
        box
            A slice an axis, within the array, steps of 1.
        out
            Array of its shape and the array's type, of any strides.

        Raises
        ------
        InputError
            Naming the file of the first chunk that is refused or cannot be decoded.
        """
        parts = list(parts_of(box, self.outer))
        rows = _on_all_cores([partial(self._stored, part, out) for part in parts])
        chunks = [chunk for row in rows for chunk in row]
        # A thread opens a file once for several of its chunks.
        share = -(-len(chunks) // (4 * n_threads()))
        jobs: list[Callable[[], Any]] = []
        for row in rows:
            for first in range(0, len(row), max(1, share)):
                jobs.append(partial(self._decode, row[first : first + share], out))
        _on_all_cores(jobs)

    def _stored(self, part: Part, out: np.ndarray) -> list[_Chunk]:
        """Check the file of a stored object, and return the chunks of it to decode."""
        place, inside, outside = part
        path = self.file(place)
        stay_inside(self.root, path)
        # An array that nothing lists when it is first touched is being written.
        if self._listed:
            self._listed = check_chunk_file(path)
        try:
            file = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            out[outside] = self._fill()
            return []
        try:
            nbytes = os.fstat(file).st_size
            if self.layout.shard is None:
                return [_Chunk(path, path, 0, nbytes, inside, outside)]
            _, table = read_index(
                lambda first, n: os.pread(file, n, first), nbytes, self.layout.shard, path
            )
        finally:
            os.close(file)
        chunks = []
        for chunk, within, target in parts_of(inside, self.chunks):
            start, length = table[chunk].tolist()
            placed = tuple(
                slice(o.start + t.start, o.start + t.stop)
                for o, t in zip(outside, target, strict=True)
            )
            if start == MISSING:
                out[placed] = self._fill()
            else:
                where = f"{path}: inner chunk {chunk}"
                chunks.append(_Chunk(path, where, start, length, within, placed))
        return chunks

    def _fill(self) -> Any:
        return np.frombuffer(self.layout.fill, self.dtype)[0]

    def _decode(self, chunks: Sequence[_Chunk], out: np.ndarray) -> None:
        """Decode chunks of one file."""
        file = os.open(chunks[0].path, os.O_RDONLY)
        try:
            for chunk in chunks:
                try:
                    self._decode_one(file, chunk, out)
                except InputError:
                    # What is wrong is said in the words of the check before other decoders.
                    check_chunk(Path(chunk.path), self.plan, verify=True)
                    raise
        finally:
            os.close(file)

    def _decode_one(self, file: int, chunk: _Chunk, out: np.ndarray) -> None:
        size = self.layout.chunk_nbytes
        # No compressor makes a chunk this much longer; it would cost memory for nothing.
        if chunk.nbytes > 2 * size + 4096:
            raise InputError(f"{chunk.where}: {chunk.nbytes} bytes stored, the chunk has {size}")
        data = os.pread(file, chunk.nbytes, chunk.offset)
        target = out[chunk.outside]
        if target.flags.c_contiguous and target.shape == self.chunks:
            decode_chunk(data, self.layout, chunk.where, target.reshape(-1).view(np.uint8))
            return
        room = decode_chunk(data, self.layout, chunk.where, _room(size))
        target[...] = room.view(self.dtype).reshape(self.chunks)[chunk.inside]

    # --- writing ------------------------------------------------------------------------------

    def __setitem__(self, selection: Any, value: Any) -> None:
        found = self._box(selection)
        parts = None if found is None else self.whole_parts(found[0])
        if found is None or parts is None or self.shards is None or not self._writable:
            self.zarr[selection] = value
            return
        box, shape = found
        data = np.broadcast_to(np.asarray(value, self.dtype), shape)
        data = data.reshape([part.stop - part.start for part in box])
        together = shards_together(self.layout)
        for first in range(0, len(parts), together):
            some = parts[first : first + together]
            boxes = [data[outside] for _, _, outside in some]
            encoded = encode_shards(boxes, self.layout, keep_empty=False)
            for (place, *_), shard in zip(some, encoded, strict=True):
                self.store(place, shard)

    def whole_parts(self, box: tuple[slice, ...]) -> list[Part] | None:
        """Return the stored objects of a box; None where it cuts one before the array's end."""
        parts = list(parts_of(box, self.outer))
        for place, inside, _ in parts:
            sides = zip(place, inside, self.outer, self.shape, strict=True)
            if any(p.start or p.stop != min(side, n - k * side) for k, p, side, n in sides):
                return None
        return parts

    def store(self, place: Sequence[int], data: Any | None) -> None:
        """Write a stored object; None removes it, as nothing but fill value is in it."""
        path = Path(self.file(place))
        if data is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.partial")
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@dataclass(slots=True)
class _Chunk:
    """Stored bytes of a chunk, and where its voxels go."""

    path: str
    where: str
    offset: int
    nbytes: int
    inside: tuple[slice, ...]
    outside: tuple[slice, ...]


def _room(nbytes: int) -> np.ndarray | None:
    """Return this thread's memory for a decoded chunk; None where it is too large to be kept."""
    if nbytes > _KEPT_NBYTES:
        return None
    room: np.ndarray | None = getattr(_local, "room", None)
    if room is None or room.nbytes != nbytes:
        room = _local.room = np.empty(nbytes, np.uint8)
    return room


def _on_all_cores(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run jobs in threads; waits for all, as they write to the caller's memory."""
    if len(jobs) <= 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(n_threads(), len(jobs)), "decode") as pool:
        futures = [pool.submit(job) for job in jobs]
    return [future.result() for future in futures]


class PlainGroup:
    """A plain group in a local folder: its attributes, and what lies below by key.

    Parameters
    ----------
    version
        Of Zarr's format: 2 or 3.
    """

    def __init__(self, root: Path, version: int, attributes: dict[str, Any]) -> None:
        self.root = root
        self.attrs = attributes
        self._array_document = ".zarray" if version == 2 else "zarr.json"

    @classmethod
    def open(cls, root: Path) -> PlainGroup | None:
        """Open a group for reading; None where it is none that is plain."""
        found = read_group(root)
        return None if found is None else cls(root, *found)

    def __getitem__(self, name: str) -> Any:
        """Return an array, or what Zarr finds where it is none that is plain.

        Raises
        ------
        KeyError
            When nothing is there.
        """
        folder = self.root / name
        documents = ("zarr.json", ".zarray", ".zgroup")
        if not any(os.path.lexists(folder / document) for document in documents):
            raise KeyError(name)
        metadata = parse_array(read_document(folder, self._array_document))
        if metadata is not None:
            return PlainArray(self.root, name, metadata)
        with host_context():
            import zarr

            return zarr.open_group(self.root, mode="r")[name]


def create_array(
    root: Path,
    name: str,
    shape: Sequence[int],
    chunks: Sequence[int],
    shards: Sequence[int],
    dtype: str,
    names: Sequence[str],
) -> PlainArray:
    """Create an array with the codecs of everything linumpy writes, and the groups above it.

    Raises
    ------
    ValueError
        When chunks do not divide shards.
    """
    for folder in Path(name).parents:
        if not (root / folder / "zarr.json").exists():
            write_document(root / folder, group_document({}))
    document = array_document(shape, chunks, shards, dtype, names)
    metadata = parse_array(document)
    if metadata is None:
        raise ValueError(f"{root}/{name}: shards {tuple(shards)} of chunks {tuple(chunks)}")
    write_document(root / name, document)
    return PlainArray(root, name, metadata, writable=True)
