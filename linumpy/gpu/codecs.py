"""Zarr codecs on the device, with the configuration and the bytes of Zarr's own.

Each is in Zarr's registry beside the codec that it is named after, and is chosen by Zarr's
configuration (``codecs.zstd`` and so on), which `gpu_zarr_context` sets. On device buffers all
chunks of a call are encoded together, with one wait, off the event loop. They are decoded so where
the context's backend is ``nvcomp`` by name, since a codec cannot see whether a checksum vouches
for the bytes that it is given. On host buffers, and for all else, they are Zarr's codecs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4, Zlib
from zarr.registry import register_codec

from linumpy.store import codecs
from linumpy.store.chunk_layout import NUMERIC_KINDS, ChunkLayout, UnsupportedLayout

Pair = tuple[Any, Any]


class _OnDevice(BytesBytesCodec):
    """What the codecs share: batches on the device, anything else by the parent class."""

    async def decode(self, chunks_and_specs: Iterable[Pair]) -> Iterable[Any]:
        """Decode chunks; None stays None."""
        return await self._serve(list(chunks_and_specs), _decode_batch, super().decode)

    async def encode(self, chunks_and_specs: Iterable[Pair]) -> Iterable[Any]:
        """Encode chunks; None stays None."""
        return await self._serve(list(chunks_and_specs), _encode_batch, super().encode)

    async def _serve(self, pairs: list[Pair], batch: Any, parent: Any) -> list[Any]:
        from linumpy.gpu.session import current_session

        on_device = [n for n, (chunk, _) in enumerate(pairs) if _is_on_device(chunk)]
        results: list[Any] = [None] * len(pairs)
        if on_device:

            def work() -> list[Any]:
                with current_session().on_device():
                    return list(batch(self, [pairs[n] for n in on_device]))

            for n, result in zip(on_device, await asyncio.to_thread(work), strict=True):
                results[n] = result
        rest = [n for n, result in enumerate(results) if result is None]
        served = await parent([_on_host(*pairs[n]) for n in rest])
        for n, result in zip(rest, served, strict=True):
            back = result is not None and _is_on_device(pairs[n][0])
            results[n] = _given_back(result, pairs[n][1]) if back else result
        return results


def _on_host(chunk: Any, spec: Any) -> Pair:
    """Return a chunk in host memory, with a specification that asks for host memory."""
    from zarr.buffer.cpu import Buffer, buffer_prototype

    if not _is_on_device(chunk):
        return chunk, spec
    return Buffer(chunk.as_numpy_array()), replace(spec, prototype=buffer_prototype)


def _given_back(chunk: Any, spec: Any) -> Any:
    """Return a host chunk as the kind of buffer that `spec` asks for, on the session's device."""
    import cupy

    from linumpy.gpu.session import current_session

    with current_session().on_device():
        return spec.prototype.buffer.from_array_like(cupy.asarray(chunk.as_numpy_array()))


def _is_on_device(chunk: Any) -> bool:
    return chunk is not None and hasattr(chunk.as_array_like(), "__cuda_array_interface__")


def _layout(codec: Any, nbytes: int) -> ChunkLayout:
    """Return the layout of chunks of `nbytes` decoded bytes whose only codec is `codec`."""
    return ChunkLayout(
        chunk_shape=(nbytes,),
        dtype=np.dtype(np.uint8),
        byteswapped=False,
        strides=(1,),
        compression=codec.to_dict()["name"].removeprefix("numcodecs."),
        compressor=codec,
        has_crc32c=False,
        fill=b"\0",
        shard=None,
    )


def _decode_batch(codec: Any, pairs: Sequence[Pair]) -> list[Any]:
    """Decode device buffers; None for a chunk that must go to the parent class."""
    import cupy

    from linumpy.gpu.formats import StoredBatch, device_format
    from linumpy.gpu.session import current_session

    results: list[Any] = [None] * len(pairs)
    if current_session().backend != "nvcomp":
        # A codec cannot see whether a checksum vouches for the bytes that it is given.
        return results
    by_size: dict[int, list[int]] = {}
    for n, (_, spec) in enumerate(pairs):
        dtype = spec.dtype.to_native_dtype()
        if dtype.kind in NUMERIC_KINDS:
            by_size.setdefault(math.prod(spec.shape) * dtype.itemsize, []).append(n)
    caller = cupy.cuda.get_current_stream()
    for size, numbers in by_size.items():
        layout = _layout(codec, size)
        try:
            kind = device_format(layout)
        except UnsupportedLayout:
            continue
        if not layout.chunk_nbytes:
            continue
        stored = [pairs[n][0].as_array_like() for n in numbers]
        stream = cupy.cuda.Stream(non_blocking=True)
        with caller:
            # Whole words are read: a chunk's last one must lie within an allocation.
            data = cupy.concatenate([*stored, cupy.zeros(16, np.uint8)])
            verdict = cupy.zeros(len(numbers), np.int32)
        stream.wait_event(caller.record())
        nbytes = np.array([chunk.nbytes for chunk in stored], np.int64)
        pointers = data.data.ptr + np.cumsum(nbytes) - nbytes
        work = kind(StoredBatch(layout, pointers, nbytes, verdict, caller, stream, stream))
        decoded = work.start()
        out = [cupy.empty(layout.chunk_nbytes, np.uint8) for _ in numbers]
        stream.wait_event(caller.record())
        for target, address in zip(out, decoded, strict=True):
            if address:
                target.data.copy_from_device_async(_at(address), target.nbytes, stream)
        stream.synchronize()
        outcome = work.outcome()
        refused = {*outcome.left, *outcome.failed, *outcome.problems}
        for which, (n, target) in enumerate(zip(numbers, out, strict=True)):
            if which not in refused:
                results[n] = pairs[n][1].prototype.buffer.from_array_like(target)
    return results


def _encode_batch(codec: Any, pairs: Sequence[Pair]) -> list[Any]:
    """Encode device buffers; None for a chunk that must go to the parent class."""
    import cupy

    from linumpy.gpu.encode import WriteItem, encoded_by_device, write_on_device
    from linumpy.gpu.requests import Box

    results: list[Any] = [None] * len(pairs)
    by_size: dict[int, list[int]] = {}
    for n, (chunk, _) in enumerate(pairs):
        by_size.setdefault(len(chunk), []).append(n)
    for nbytes, numbers in by_size.items():
        layout = _layout(codec, nbytes)
        if not nbytes or not encoded_by_device(layout):
            continue
        box = Box((0,), (1,), (nbytes,), (0,))
        items = [WriteItem(cupy.asarray(pairs[n][0].as_array_like()), box, (0,)) for n in numbers]
        kept = _Kept(results, numbers, pairs)
        write_on_device(items, layout, kept.store, keep_empty=True)
    return results


class _Kept:
    """A store that keeps what it is given as device buffers."""

    def __init__(self, results: list[Any], numbers: Sequence[int], pairs: Sequence[Pair]) -> None:
        self._results = results
        self._numbers = numbers
        self._pairs = pairs

    def store(self, number: int, data: np.ndarray | None) -> Any:
        from concurrent.futures import Future

        import cupy

        n = self._numbers[number]
        buffer = self._pairs[n][1].prototype.buffer
        self._results[n] = buffer.from_array_like(cupy.asarray(data))
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _at(address: int) -> Any:
    import cupy

    memory = cupy.cuda.UnownedMemory(int(address), 1, None)
    return cupy.cuda.MemoryPointer(memory, 0)


class NvcompZstdCodec(_OnDevice, ZstdCodec):
    """zstd, also encoded on the device; nvCOMP has one effort: `level` counts for the CPU."""


class NvcompGzipCodec(_OnDevice, GzipCodec):
    """gzip."""


class NvcompBloscCodec(_OnDevice, BloscCodec):
    """Blosc with zstd or LZ4."""


class NvcompLZ4Codec(_OnDevice, LZ4):
    """LZ4 as numcodecs stores it: a size and one block."""


class NvcompZlibCodec(_OnDevice, Zlib):
    """zlib."""


CODECS: dict[str, type[BytesBytesCodec]] = {
    codec.zarr_class[0]: globals()[codec.zarr_class[1]]
    for codec in codecs.CODECS.values()
    if codec.zarr_class
}
"""The codecs by their names in Zarr's registry."""

for _name, _codec in CODECS.items():
    register_codec(_name, _codec)
