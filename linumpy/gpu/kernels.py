"""CUDA kernels that move chunks: bytes at any alignment, voxels at any stride, frames inspected.

All of them take one table for a whole batch, so that a request of thousands of chunks costs a
handful of launches.
"""

from __future__ import annotations

import functools
from typing import Any

FIT, LEFT_TO_HOST, MALFORMED, BAD_CHECKSUM, OTHER_SIZE = range(5)
"""What is known of a chunk before it is decoded."""

SOURCE = r"""
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// ---- bytes ------------------------------------------------------------------------------------

// Copy nbytes[i] bytes from source[i] to target[i], whatever their alignment. Whole words are
// stored; their bytes come from two neighbouring source words. Reading the whole words that hold
// the first and the last byte stays inside an allocation, which begins and ends on such a word.
extern "C" __global__ void copy_bytes(const u64* source, const u64* target, const u64* nbytes,
                                      int n) {
  for (int i = blockIdx.y; i < n; i += gridDim.y) {
    const u8* from = (const u8*)source[i];
    u8* to = (u8*)target[i];
    u64 size = nbytes[i];
    u64 head = (4 - ((u64)to & 3)) & 3;
    if (head > size) head = size;
    u64 words = (size - head) / 4;
    u64 tail = size - head - 4 * words;
    u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 threads = (u64)gridDim.x * blockDim.x;
    if (thread < head) to[thread] = from[thread];
    if (thread < tail) to[size - tail + thread] = from[size - tail + thread];
    const u8* begin = from + head;
    const u32* low = (const u32*)((u64)begin & ~3ull);
    u32 shift = 8 * ((u64)begin & 3);
    u32* out = (u32*)(to + head);
    if (shift == 0) {
      for (u64 k = thread; k < words; k += threads) out[k] = low[k];
    } else {
      for (u64 k = thread; k < words; k += threads)
        out[k] = __funnelshift_r(low[k], low[k + 1], shift);
    }
  }
}

// ---- voxels -----------------------------------------------------------------------------------

struct Element16 { u64 a, b; };

template <typename T> __device__ T swapped(T value, int unit) {
  u8* bytes = (u8*)&value;
  for (int first = 0; first < (int)sizeof(T); first += unit)
    for (int k = 0; k < unit / 2; k++) {
      u8 b = bytes[first + k];
      bytes[first + k] = bytes[first + unit - 1 - k];
      bytes[first + unit - 1 - k] = b;
    }
  return value;
}

// One box of elements for each i: count[i][axis] elements from source[i] (0: the fill value) to
// target[i]; geometry holds the byte strides of source and target along each axis. A row along the
// last axis is shared by so many lanes of a warp as it has elements. `swap` is the number of bytes
// to reverse, 0 for none. Rows are counted in I, since 64-bit divisions would cost more than the
// copy.
template <typename T, typename I>
__device__ void copy_rows(const u8* from0, u8* to0, const i64* counts, const i64* geometry,
                          int axes, I rows, T fill, int swap) {
  const i64* from_stride = geometry;
  const i64* to_stride = geometry + axes;
  i64 length = counts[axes - 1];
  int share = 32;
  while (share > 1 && share / 2 >= length) share /= 2;
  int lane = threadIdx.x % share;
  I at_once = 32 / share;
  I row = ((I)blockIdx.x * blockDim.y + threadIdx.y) * at_once + threadIdx.x / share;
  I row_step = (I)gridDim.x * blockDim.y * at_once;
  i64 from_last = from_stride[axes - 1], to_last = to_stride[axes - 1];
  for (; row < rows; row += row_step) {
    I rest = row;
    i64 from_at = 0, to_at = 0;
    for (int axis = axes - 2; axis >= 0; axis--) {
      I side = (I)counts[axis];
      I quotient = rest / side;
      I k = rest - quotient * side;
      rest = quotient;
      from_at += (i64)k * from_stride[axis];
      to_at += (i64)k * to_stride[axis];
    }
    const u8* from = from0 + from_at;
    u8* to = to0 + to_at;
    if (from0 == 0) {
      for (i64 k = lane; k < length; k += share) *(T*)(to + k * to_last) = fill;
    } else if (swap == 0) {
      for (i64 k = lane; k < length; k += share)
        *(T*)(to + k * to_last) = *(const T*)(from + k * from_last);
    } else {
      for (i64 k = lane; k < length; k += share)
        *(T*)(to + k * to_last) = swapped(*(const T*)(from + k * from_last), swap);
    }
  }
}

template <typename T>
__device__ void copy_boxes(const u64* source, const u64* target, const i64* count,
                           const i64* geometry, int axes, T fill, int swap, int n) {
  for (int i = blockIdx.y; i < n; i += gridDim.y) {
    const i64* counts = count + (i64)i * axes;
    const u8* from = (const u8*)source[i];
    u8* to = (u8*)target[i];
    u64 rows = 1;
    for (int axis = 0; axis < axes - 1; axis++) rows *= counts[axis];
    if (rows < 0xFFFF0000ull)
      copy_rows<T, u32>(from, to, counts, geometry, axes, (u32)rows, fill, swap);
    else
      copy_rows<T, u64>(from, to, counts, geometry, axes, rows, fill, swap);
  }
}

#define COPY_BOXES(NAME, T)                                                                     \
  extern "C" __global__ void NAME(const u64* source, const u64* target, const i64* count,       \
                                  const i64* geometry, int axes, u64 fill_low, u64 fill_high,   \
                                  int swap, int n) {                                            \
    Element16 both = {fill_low, fill_high};                                                     \
    copy_boxes<T>(source, target, count, geometry, axes, *(const T*)&both, swap, n);            \
  }
COPY_BOXES(copy_boxes_1, u8)
COPY_BOXES(copy_boxes_2, unsigned short)
COPY_BOXES(copy_boxes_4, u32)
COPY_BOXES(copy_boxes_8, u64)
COPY_BOXES(copy_boxes_16, Element16)

// Whether any element of chunk i differs from the fill value, bit for bit; a chunk has `size`
// elements of `item` bytes and begins `pitch` bytes after the one before. differs[i] must be 0.
extern "C" __global__ void differs_from_fill(const u8* chunks, u64 pitch, u64 size, int item,
                                             u64 fill_low, u64 fill_high, int* differs, int n) {
  u64 both[2] = {fill_low, fill_high};
  const u8* fill = (const u8*)both;
  u64 step = (u64)gridDim.x * blockDim.x;
  u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (int i = blockIdx.y; i < n; i += gridDim.y) {
    const u8* chunk = chunks + (u64)i * pitch;
    int different = 0;
    if (item % 4 == 0) {
      const u32* words = (const u32*)chunk;
      u32 per = item / 4;
      for (u64 k = first; k < size * per && !different; k += step)
        different = words[k] != ((const u32*)fill)[k % per];
    } else {
      for (u64 k = first; k < size * item && !different; k += step)
        different = chunk[k] != fill[k % item];
    }
    if (different) differs[i] = 1;
  }
}

// ---- frames -----------------------------------------------------------------------------------

__device__ u64 little(const u8* at, int size) {
  u64 value = 0;
  for (int k = 0; k < size; k++) value |= (u64)at[k] << (8 * k);
  return value;
}

// What is known of a chunk before it is decoded; see the Python names below.
enum { FIT = 0, LEFT_TO_HOST = 1, MALFORMED = 2, BAD_CHECKSUM = 3, OTHER_SIZE = 4 };

// verdict[i] = BAD_CHECKSUM where the bytes after chunk i are not its CRC-32C.
extern "C" __global__ void compare_crc(const u64* trailer, const u32* computed, int* verdict,
                                       int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && (u32)little((const u8*)trailer[i], 4) != computed[i]) verdict[i] = BAD_CHECKSUM;
}

// Walk the one zstd frame (RFC 8878) that `frame` should be; `content` is its declared size.
__device__ int zstd_verdict(const u8* frame, u64 size, u64 expected, u64* content) {
  if (size < 6) return MALFORMED;
  u64 magic = little(frame, 4);
  if ((magic & 0xFFFFFFF0ull) == 0x184D2A50ull) return LEFT_TO_HOST;
  if (magic != 0xFD2FB528ull) return MALFORMED;
  u8 descriptor = frame[4];
  int single = (descriptor >> 5) & 1;
  int dictionary = "\0\1\2\4"[descriptor & 3];
  int size_field = descriptor >> 6;
  int content_bytes = size_field == 0 ? single : 1 << size_field;
  if (descriptor & 8) return MALFORMED;
  u64 at = 5 + (single ? 0 : 1) + dictionary + content_bytes;
  if (at + 3 > size) return MALFORMED;
  *content = little(frame + at - content_bytes, content_bytes);
  if (content_bytes == 2) *content += 256;
  int last = 0;
  while (!last) {
    if (at + 3 > size) return MALFORMED;
    u32 header = (u32)little(frame + at, 3);
    last = header & 1;
    u32 type = (header >> 1) & 3;
    u64 block = header >> 3;
    if (type == 3) return MALFORMED;
    at += 3 + (type == 1 ? 1 : block);
  }
  if (descriptor & 4) at += 4;
  if (at > size) return MALFORMED;
  if (at < size || dictionary || !content_bytes) return LEFT_TO_HOST;
  return *content == expected ? FIT : OTHER_SIZE;
}

// Judge frames that no checksum has condemned. A frame that is not fit is replaced by `harmless`,
// `harmless_nbytes` bytes that decode to nothing: nvCOMP must not see bytes that are not checked.
extern "C" __global__ void judge_zstd(u64* source, u64* nbytes, u64 expected, u64 harmless,
                                      u64 harmless_nbytes, u64* content, int* verdict, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  content[i] = 0;
  if (verdict[i] == FIT)
    verdict[i] = zstd_verdict((const u8*)source[i], nbytes[i], expected, content + i);
  if (verdict[i] != FIT) {
    source[i] = harmless;
    nbytes[i] = harmless_nbytes;
  }
}

// ---- XXH64 ------------------------------------------------------------------------------------

#define P1 0x9E3779B185EBCA87ull
#define P2 0xC2B2AE3D27D4EB4Full
#define P3 0x165667B19E3779F9ull
#define P4 0x85EBCA77C2B2AE63ull
#define P5 0x27D4EB2F165667C5ull

__device__ u64 rotated(u64 x, int by) { return (x << by) | (x >> (64 - by)); }
__device__ u64 rounded(u64 sum, u64 lane) { return rotated(sum + lane * P2, 31) * P1; }

// The XXH64 of `size` bytes, for the first of four neighbouring threads; each follows one of the
// four sums. Bytes begin on a multiple of 8.
__device__ u64 xxh64(const u8* bytes, u64 size, int lane, u32 group) {
  const u64 start[4] = {P1 + P2, P2, 0, 0ull - P1};
  u64 sum = start[lane];
  u64 stripes = size / 32;
  const u64* words = (const u64*)bytes + lane;
  u64 k = 0;
  for (; k + 8 <= stripes; k += 8) {
    u64 ahead[8];
    for (int j = 0; j < 8; j++) ahead[j] = words[4 * (k + j)];
    for (int j = 0; j < 8; j++) sum = rounded(sum, ahead[j]);
  }
  for (; k < stripes; k++) sum = rounded(sum, words[4 * k]);
  u64 all[4];
  for (int j = 0; j < 4; j++) all[j] = __shfl_sync(group, sum, j, 4);
  u64 hash = P5;
  if (stripes) {
    hash = rotated(all[0], 1) + rotated(all[1], 7) + rotated(all[2], 12) + rotated(all[3], 18);
    for (int j = 0; j < 4; j++) hash = (hash ^ rounded(0, all[j])) * P1 + P4;
  }
  hash += size;
  u64 at = stripes * 32;
  for (; at + 8 <= size; at += 8)
    hash = rotated(hash ^ rounded(0, little(bytes + at, 8)), 27) * P1 + P4;
  for (; at + 4 <= size; at += 4)
    hash = rotated(hash ^ (little(bytes + at, 4) * P1), 23) * P2 + P3;
  for (; at < size; at++) hash = rotated(hash ^ (bytes[at] * P5), 11) * P1;
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}

// Four threads a frame. With `seal`, a checksum is appended to each frame and its size grows by 4;
// else good[i] says whether the frame has none, or one that fits its content.
extern "C" __global__ void zstd_checksum(const u64* frame, u64* nbytes, const u64* content,
                                         u64 content_nbytes, int seal, int* good, int n) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) / 4;
  int lane = threadIdx.x & 3;
  // The mask names the four threads of a frame, which stay together to the end.
  u32 group = 0xFu << (threadIdx.x & 28);
  if (i >= n) return;
  u8* bytes = (u8*)frame[i];
  u64 size = nbytes[i];
  if (!seal && !(bytes[4] & 4)) {
    if (lane == 0) good[i] = 1;
    return;
  }
  u32 sum = (u32)xxh64((const u8*)content[i], content_nbytes, lane, group);
  if (lane) return;
  if (seal) {
    bytes[4] |= 4;
    for (int k = 0; k < 4; k++) bytes[size + k] = (u8)(sum >> (8 * k));
    nbytes[i] = size + 4;
  } else {
    good[i] = (u32)little(bytes + size - 4, 4) == sum;
  }
}
"""


@functools.cache
def _module(device_id: int) -> Any:
    import cupy

    module = cupy.RawModule(code=SOURCE, options=("--std=c++17",), backend="nvrtc")
    return module


def kernel(name: str) -> Any:
    """Return a kernel of this module for the current device, compiled at its first use."""
    import cupy

    return _module(cupy.cuda.Device().id).get_function(name)


def copy_bytes(source: Any, target: Any, nbytes: Any, stream: Any, *, blocks: int = 8) -> None:
    """Start copying chunks of bytes; arguments are uint64 CuPy arrays of addresses and sizes."""
    n = len(source)
    if n:
        grid = (blocks, min(n, 65535))
        kernel("copy_bytes")(grid, (256,), (source, target, nbytes, _int32(n)), stream=stream)


def copy_boxes(
    source: Any,
    target: Any,
    count: Any,
    geometry: Any,
    width: int,
    fill: bytes,
    swap: int,
    stream: Any,
) -> None:
    """Start copying boxes of elements between chunks and an array.

    Parameters
    ----------
    source, target
        Addresses of each box's first element, uint64, shape (n,); source 0 means the fill value.
    count
        Elements along each axis, int64, shape (n, n_axes).
    geometry
        Byte strides of the source and of the target, int64, shape (2, n_axes).
    width
        Bytes of an element: 1, 2, 4, 8 or 16.
    fill
        Bytes of the fill value, `width` of them.
    swap
        Unit of bytes to reverse on the way, 0 for none.
    stream
        The CuPy stream on which the work is queued.
    """
    import numpy as np

    n, n_axes = count.shape
    if not n:
        return
    low, high = np.frombuffer(fill.ljust(16, b"\0"), np.uint64)
    arguments = (
        source,
        target,
        count,
        geometry,
        _int32(n_axes),
        low,
        high,
        _int32(swap),
        _int32(n),
    )
    kernel(f"copy_boxes_{width}")((32, min(n, 65535)), (32, 8), arguments, stream=stream)


def differs_from_fill(
    chunks: Any,
    n_chunks: int,
    pitch: int,
    n_elements: int,
    itemsize: int,
    fill: bytes,
    out: Any,
    stream: Any,
) -> None:
    """Start finding which chunks hold anything but the fill value, bit for bit.

    `chunks` holds `n_chunks` times `n_elements` elements, each chunk `pitch` bytes after the one
    before; `out` is int32, shape (n_chunks,), zero before.
    """
    import numpy as np

    low, high = np.frombuffer(fill.ljust(16, b"\0"), np.uint64)
    kernel("differs_from_fill")(
        (8, min(n_chunks, 65535)),
        (256,),
        (
            chunks,
            np.uint64(pitch),
            np.uint64(n_elements),
            _int32(itemsize),
            low,
            high,
            out,
            _int32(n_chunks),
        ),
        stream=stream,
    )


def compare_crc(trailer: Any, computed: Any, verdict: Any, stream: Any) -> None:
    """Start comparing stored checksums, at the addresses `trailer`, with computed ones."""
    n = len(trailer)
    arguments = (trailer, computed, verdict, _int32(n))
    kernel("compare_crc")((-(-n // 128),), (128,), arguments, stream=stream)


def judge_zstd(
    source: Any,
    nbytes: Any,
    expected: int,
    harmless: Any,
    content: Any,
    verdict: Any,
    stream: Any,
) -> None:
    """Start judging zstd frames; those that are not fit are replaced by `harmless`.

    Parameters
    ----------
    source, nbytes
        Addresses and sizes of the frames, uint64; changed for frames that are not fit.
    expected
        Bytes that each frame must declare.
    harmless
        Bytes of a frame that decodes to nothing, uint8, on a multiple of 16.
    content
        Filled with the declared sizes, uint64.
    verdict
        Filled with what is known of each frame, int32; `FIT` before where no checksum failed.
    stream
        The CuPy stream on which the work is queued.
    """
    import numpy as np

    n = len(source)
    arguments = (
        source,
        nbytes,
        np.uint64(expected),
        np.uint64(harmless.data.ptr),
        np.uint64(harmless.nbytes),
        content,
        verdict,
        _int32(n),
    )
    kernel("judge_zstd")((-(-n // 64),), (64,), arguments, stream=stream)


def zstd_checksum(
    frame: Any, nbytes: Any, content: Any, content_nbytes: int, good: Any, stream: Any
) -> None:
    """Start checking zstd frames' content checksums, or appending them if `good` is None.

    `frame`, `nbytes` and `content` are uint64 arrays: addresses and sizes of the frames, and
    addresses of what they decode to, multiples of 8. `good` (int32) becomes 1 where a frame has no
    checksum or one that fits.
    """
    import numpy as np

    n = len(frame)
    seal = good is None
    kernel("zstd_checksum")(
        (-(-4 * n // 128),),
        (128,),
        (
            frame,
            nbytes,
            content,
            np.uint64(content_nbytes),
            _int32(seal),
            nbytes if seal else good,
            _int32(n),
        ),
        stream=stream,
    )


def _int32(value: int) -> Any:
    import numpy as np

    return np.int32(value)
