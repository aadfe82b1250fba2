// Kernels that move, judge and check chunks; kernels.py says how to call them.

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
  u64 window = *content;
  if (!single) {
    int log = 10 + (frame[5] >> 3);
    if (log > 31) return MALFORMED;
    window = (1ull << log) + (1ull << log) / 8 * (frame[5] & 7);
  }
  u64 limit = window < (128 << 10) ? window : 128 << 10;
  u64 fewest = 0, most = 0;
  int last = 0;
  while (!last) {
    if (at + 3 > size) return MALFORMED;
    u32 header = (u32)little(frame + at, 3);
    last = header & 1;
    u32 type = (header >> 1) & 3;
    u64 block = header >> 3;
    if (type == 3 || block > limit || (type == 2 && block < 2)) return MALFORMED;
    fewest += type == 2 ? 0 : block;
    most += type == 2 ? limit : block;
    at += 3 + (type == 1 ? 1 : block);
  }
  if (descriptor & 4) at += 4;
  if (at > size) return MALFORMED;
  if (at < size || dictionary || !content_bytes) return LEFT_TO_HOST;
  if (*content < fewest || *content > most) return MALFORMED;
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

// Judge chunks of the formats whose decoders bear corrupt bytes: 1 LZ4 behind its size, 2 gzip,
// 3 zlib. source[i] is the whole chunk; body[i] and body_nbytes[i], what the decoder gets, are
// replaced by `harmless` where a chunk is not fit.
extern "C" __global__ void judge_head(int kind, const u64* source, const u64* nbytes, u64 expected,
                                      u64 harmless, u64 harmless_nbytes, u64* body,
                                      u64* body_nbytes, u64* content, int* verdict, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const u8* head = (const u8*)source[i];
  u64 size = nbytes[i];
  int found = verdict[i];
  content[i] = expected;
  if (found == FIT && kind == 1) {
    if (size < 5) {
      found = MALFORMED;
    } else {
      content[i] = little(head, 4);
      if (content[i] != expected) found = OTHER_SIZE;
    }
  } else if (found == FIT && kind == 2) {
    if (size < 20 || head[0] != 0x1F || head[1] != 0x8B || head[2] != 8) found = MALFORMED;
    else if (head[3]) found = LEFT_TO_HOST;
  } else if (found == FIT && kind == 3) {
    if (size < 8 || (head[0] & 15) != 8 || (head[0] * 256 + head[1]) % 31) found = MALFORMED;
    else if (head[1] & 32) found = LEFT_TO_HOST;
  }
  verdict[i] = found;
  if (found != FIT) {
    body[i] = harmless;
    body_nbytes[i] = harmless_nbytes;
  }
}

// Whether an LZ4 block is one that the CPU's decoder would take: every literal and every match within
// bounds, five literals at the end, `expected` bytes in all. nvCOMP's decoder makes bytes of blocks
// that are none.
__device__ bool is_lz4(const u8* block, u64 size, u64 expected) {
  u64 at = 0, made = 0;
  while (at < size) {
    u32 token = block[at++];
    u64 literals = token >> 4;
    if (literals == 15) {
      u32 more = 255;
      while (more == 255) {
        if (at >= size) return false;
        more = block[at++];
        literals += more;
      }
    }
    at += literals;
    made += literals;
    if (at > size || made > expected) return false;
    if (at == size) return made == expected;
    if (at + 2 > size) return false;
    u32 back = block[at] | block[at + 1] << 8;
    at += 2;
    if (back == 0 || back > made) return false;
    u64 match = 4 + (token & 15);
    if (match == 19) {
      u32 more = 255;
      while (more == 255) {
        if (at >= size) return false;
        more = block[at++];
        match += more;
      }
    }
    made += match;
    if (made + 5 > expected) return false;
  }
  return false;
}

// Take blocks that are no LZ4 of wanted[i] bytes (0: not asked) from nvCOMP, and condemn the chunk
// that they belong to.
extern "C" __global__ void judge_lz4(u64* source, u64* nbytes, const u64* wanted, u64 harmless,
                                     u64 harmless_nbytes, const i64* chunk, int* verdict, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || wanted[i] == 0 || source[i] == harmless) return;
  if (!is_lz4((const u8*)source[i], nbytes[i], wanted[i])) {
    atomicMax(verdict + chunk[i], MALFORMED);
    source[i] = harmless;
    nbytes[i] = harmless_nbytes;
  }
}

// good[i] = whether the CRC-32 and the size at the end of a gzip member are those of its content.
extern "C" __global__ void check_gzip(const u64* source, const u64* nbytes, const u32* computed,
                                      u64 content_nbytes, int* good, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || nbytes[i] < 8) return;
  const u8* end = (const u8*)source[i] + nbytes[i];
  good[i] = (u32)little(end - 8, 4) == computed[i] && (u32)little(end - 4, 4) == (u32)content_nbytes;
}

// good[i] = whether the Adler-32 (RFC 1950) at the end of a zlib stream is that of its content; a
// block of 256 threads a chunk.
extern "C" __global__ void check_adler(const u64* source, const u64* nbytes, const u64* content,
                                       u64 content_nbytes, int* good, int n) {
  __shared__ u64 sums[256], weighted[256];
  for (int i = blockIdx.x; i < n; i += gridDim.x) {
    const u8* bytes = (const u8*)content[i];
    u64 a = 0, b = 0;
    for (u64 k = threadIdx.x; k < content_nbytes; k += 256) {
      a += bytes[k];
      b = (b + bytes[k] * ((content_nbytes - k) % 65521)) % 65521;
    }
    sums[threadIdx.x] = a % 65521;
    weighted[threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.x == 0) {
      u64 low = 1, high = content_nbytes % 65521;
      for (int k = 0; k < 256; k++) {
        low += sums[k];
        high += weighted[k];
      }
      const u8* end = (const u8*)source[i] + nbytes[i];
      u32 stored = nbytes[i] < 4 ? 0 : end[-4] << 24 | end[-3] << 16 | end[-2] << 8 | end[-1];
      good[i] = nbytes[i] >= 4 && stored == (u32)(high % 65521 << 16 | low % 65521);
    }
    __syncthreads();
  }
}

// ---- Blosc 1 ----------------------------------------------------------------------------------

// One thread a block: find its streams. Stream k of block i has the slot first[i] + k, where
// target[slot] and target_nbytes[slot] say where its content goes; raw streams are copied there,
// compressed ones to room[slot], from which nvCOMP takes them (source, nbytes; harmless bytes for a
// raw stream). wanted[slot] is what nvCOMP must make of it. splits[i] is 0 for a container that is
// stored as it is: one raw stream behind the header.
extern "C" __global__ void blosc_streams(
    const u64* chunk, const u64* stored, const i64* number, const i64* block, const i64* first,
    const i64* splits, const i64* n_blocks, const u64* target, const u64* target_nbytes,
    const u64* room, u64 harmless, u64 harmless_nbytes, u64* from, u64* to, u64* copied,
    u64* source, u64* nbytes, u64* wanted, int* verdict, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const u8* bytes = (const u8*)chunk[i];
  u64 size = stored[i];
  int count = splits[i] ? (int)splits[i] : 1;
  bool fit = verdict[number[i]] == FIT;
  u64 at = 16;
  if (fit && splits[i]) {
    u64 list_end = 16 + 4 * (u64)n_blocks[i];
    at = list_end <= size ? little(bytes + 16 + 4 * block[i], 4) : 0;
    if (at < list_end || at + 4 > size) fit = false;
  }
  for (int k = 0; k < count; k++) {
    i64 slot = first[i] + k;
    u64 room_for = target_nbytes[slot];
    u64 length = room_for;
    if (fit && splits[i]) {
      if (at + 4 > size) fit = false;
      else {
        length = little(bytes + at, 4);
        at += 4;
      }
    }
    if (fit && (length == 0 || length > room_for || at + length > size)) fit = false;
    bool raw = length == room_for;
    from[slot] = (u64)bytes + at;
    to[slot] = raw ? target[slot] : room[slot];
    copied[slot] = fit ? length : 0;
    source[slot] = fit && !raw ? room[slot] : harmless;
    nbytes[slot] = fit && !raw ? length : harmless_nbytes;
    wanted[slot] = fit && !raw ? room_for : 0;
    at += length;
  }
  if (!fit) atomicMax(verdict + number[i], MALFORMED);
}

// Undo the shuffle of blocks: mode 0 none, 1 bytes, 2 bits. Bits of a block whose items are no
// multiple of eight were never shuffled, nor were bytes after the last whole item.
extern "C" __global__ void unshuffle(const u64* source, const u64* target, const u64* nbytes,
                                     const i64* mode, u32 item, int n) {
  for (int i = blockIdx.y; i < n; i += gridDim.y) {
    const u8* from = (const u8*)source[i];
    u8* to = (u8*)target[i];
    u32 size = (u32)nbytes[i];
    u32 items = size / item;
    int how = (int)mode[i];
    if (how == 2 && items % 8) how = 0;
    u32 shuffled = how ? items * item : 0;
    for (u32 k = blockIdx.x * blockDim.x + threadIdx.x; k < size; k += gridDim.x * blockDim.x) {
      if (k >= shuffled) {
        to[k] = from[k];
        continue;
      }
      u32 which = k / item, byte = k - which * item;
      if (how == 1) {
        to[k] = from[byte * items + which];
        continue;
      }
      u32 plane = items / 8, value = 0;
      for (u32 bit = 0; bit < 8; bit++)
        value |= (from[(byte * 8 + bit) * plane + which / 8] >> (which % 8) & 1u) << bit;
      to[k] = (u8)value;
    }
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
