// Kernels of the stages on tiles; kernels.py says how to call them. Arrays are (z, axis 1,
// axis 2), contiguous; `plane` is the number of A-lines, an A-line being its index in a plane.
// Masks are bytes, 0 meaning no data; a null pointer means that all is data.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define WARP 0xffffffffu
#define NOTHING __int_as_float(0x7fc00000)
#define LEAST __int_as_float(0xff800000)

// ---- resampling -------------------------------------------------------------------------------

// Set `found` to 1 if a mask has a 0; it is 0 before.
extern "C" __global__ void find_invalid(const u8* valid, u64 n, int* found) {
  u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u64 threads = (u64)gridDim.x * blockDim.x;
  u64 head = (16 - ((u64)valid & 15)) & 15;
  if (head > n) head = n;
  u64 words = (n - head) / 16;
  u64 tail = n - head - 16 * words;
  bool zero = (thread < head && !valid[thread]) || (thread < tail && !valid[n - tail + thread]);
  const uint4* at = (const uint4*)(valid + head);
  for (u64 k = thread; k < words; k += threads) {
    uint4 w = at[k];
    u32 part[4] = {w.x, w.y, w.z, w.w};
    for (int j = 0; j < 4; j++) zero |= ((part[j] - 0x01010101u) & ~part[j] & 0x80808080u) != 0;
  }
  if (zero) *found = 1;
}

// Set `found` to 1 if a voxel is not finite or its magnitude is above `largest`; it is 0 before.
extern "C" __global__ void find_beyond(const float* in, u64 n, float largest, int* found) {
  u64 threads = (u64)gridDim.x * blockDim.x;
  bool beyond = false;
#pragma unroll 4
  for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += threads)
    beyond |= !(fabsf(in[k]) <= largest);
  if (beyond) *found = 1;
}

// What the threads read: voxels, voxels with 0 where the mask is 0, or the mask itself as 0 and 1.
enum { VOXELS, MASKED_VOXELS, MASK };

// Planes and rows of output that a block of threads makes, and planes that a thread reads at once.
#define PLANES 4
#define ROWS 8
#define AHEAD 12

// All three axes in one go. A block makes PLANES x ROWS rows of output, some columns wide; each of
// its threads follows one column of the input. Depth and axis 1 are summed in registers, row by
// row of the input, then axis 2 over the columns of the block in shared memory.
//
// A group of PLANES output planes reads `many0` input planes from `first0` on, with `weights0` of
// PLANES numbers each, `room0` input planes a group, zeros behind the last. The same for rows. A
// group of `group2` output columns reads `many2` columns from `first2` on; each of them sums
// `taps2` columns from `low2` on, with weights that are m2 apart. Sizes: n of the input, m of the
// output.
template <int READ>
__device__ void resampled(const float* in, const u8* valid, const int* invalid, float* out, i64 n1,
                          i64 n2, i64 m0, i64 m1, i64 m2, const int* first0, const int* many0,
                          const float* weights0, int room0, const int* first1, const int* many1,
                          const float* weights1, int room1, const int* first2, const int* many2,
                          const int* low2, const int* taps2, const float* weights2, int group2) {
  extern __shared__ float4 shared[];
  float4* depth_weights = shared;
  float4* row_weights = depth_weights + room0;
  float* sums = (float*)(row_weights + 2 * room1);

  int groups2 = (int)((m2 + group2 - 1) / group2), groups1 = (int)((m1 + ROWS - 1) / ROWS);
  int g2 = blockIdx.x % groups2, rest = blockIdx.x / groups2;
  int g1 = rest % groups1, g0 = rest / groups1;
  bool all_valid = READ != VOXELS && *invalid == 0;

  for (int k = threadIdx.x; k < room0; k += blockDim.x)
    depth_weights[k] = ((const float4*)weights0)[(i64)g0 * room0 + k];
  for (int k = threadIdx.x; k < 2 * room1; k += blockDim.x)
    row_weights[k] = ((const float4*)weights1)[(i64)g1 * 2 * room1 + k];
  __syncthreads();

  int planes = many0[g0], rows = many1[g1];
  bool reads = threadIdx.x < many2[g2] && !(READ == MASK && all_valid);
  if (reads) {
    float sum[PLANES][ROWS] = {};
    i64 plane = n1 * n2;
    i64 at = first0[g0] * plane + first1[g1] * n2 + first2[g2] + threadIdx.x;
    for (int row = 0; row < rows; row++, at += n2) {
      float thin[PLANES] = {};
      for (int p = 0; p < planes; p += AHEAD) {
        float value[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
          value[k] = 0;
          if (p + k < planes) {
            i64 place = at + (p + k) * plane;
            if (READ == VOXELS) value[k] = in[place];
            if (READ == MASKED_VOXELS) value[k] = all_valid || valid[place] ? in[place] : 0;
            if (READ == MASK) value[k] = valid[place] ? 1 : 0;
          }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
          float4 w = depth_weights[p + k];
          thin[0] += w.x * value[k];
          thin[1] += w.y * value[k];
          thin[2] += w.z * value[k];
          thin[3] += w.w * value[k];
        }
      }
      float4 low = row_weights[2 * row], high = row_weights[2 * row + 1];
      float w[ROWS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int p = 0; p < PLANES; p++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[p][r] += w[r] * thin[p];
    }
#pragma unroll
    for (int p = 0; p < PLANES; p++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) sums[(p * ROWS + r) * blockDim.x + threadIdx.x] = sum[p][r];
  }
  __syncthreads();

  int column0 = g2 * group2;
  int columns = m2 - column0 < group2 ? (int)(m2 - column0) : group2;
  for (int k = threadIdx.x; k < PLANES * ROWS * columns; k += blockDim.x) {
    int line = k / columns, column = column0 + k - line * columns;
    i64 z = (i64)g0 * PLANES + line / ROWS, row = (i64)g1 * ROWS + line % ROWS;
    if (z >= m0 || row >= m1) continue;
    float sum = 0;
    if (READ == MASK && all_valid) {
      sum = 1;
    } else {
      const float* from = sums + line * blockDim.x + (low2[column] - first2[g2]);
      for (int t = 0; t < taps2[column]; t++) sum += weights2[t * m2 + column] * from[t];
    }
    out[(z * m1 + row) * m2 + column] = sum;
  }
}

// Three blocks a multiprocessor; left alone, the compiler chooses what runs at half the speed.
#define RESAMPLE(NAME, READ)                                                                      \
  extern "C" __global__ void __launch_bounds__(256, 3) NAME(                                      \
      const float* in, const u8* valid, const int* invalid, float* out, i64 n1, i64 n2, i64 m0,   \
      i64 m1, i64 m2, const int* first0, const int* many0, const float* weights0, int room0,      \
      const int* first1, const int* many1, const float* weights1, int room1, const int* first2,   \
      const int* many2, const int* low2, const int* taps2, const float* weights2, int group2) {   \
    resampled<READ>(in, valid, invalid, out, n1, n2, m0, m1, m2, first0, many0, weights0, room0,  \
                    first1, many1, weights1, room1, first2, many2, low2, taps2, weights2, group2); \
  }

RESAMPLE(resample, VOXELS)
RESAMPLE(resample_voxels, MASKED_VOXELS)
RESAMPLE(resample_mask, MASK)

// Divide resampled voxels by the share of valid weights; below `half` they are no data.
extern "C" __global__ void divide_by_share(float* voxels, const float* share, u8* keep, u64 n,
                                           float half, const int* invalid) {
  bool all_valid = *invalid == 0;
  u64 threads = (u64)gridDim.x * blockDim.x;
  for (u64 k = (u64)blockIdx.x * blockDim.x + threadIdx.x; k < n; k += threads) {
    bool kept = all_valid || share[k] >= half;
    keep[k] = kept;
    if (!all_valid) voxels[k] = kept ? voxels[k] / share[k] : 0;
  }
}

// ---- focal curvature --------------------------------------------------------------------------

#define STEPS 16

// Move each A-line up by its `surface`, linearly interpolated; a thread makes STEPS voxels.
// Products and sums are rounded one by one, as they are on the host.
extern "C" __global__ void shift_along_depth(const float* in, const u8* valid,
                                             const float* surface, float* out, u8* out_valid,
                                             i64 n, i64 plane) {
  i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= plane) return;
  float whole = floorf(surface[line]);
  float fraction = __fsub_rn(surface[line], whole);
  float rest = __fsub_rn(1.0f, fraction);
  bool is_whole = fraction == 0;
  i64 z = (i64)blockIdx.y * STEPS;
  i64 at = z + (i64)whole;
  i64 stop = z + STEPS < n ? z + STEPS : n;
  bool known = at >= 0 && at < n && (!valid || valid[at * plane + line]);
  float upper = at >= 0 && at < n ? in[at * plane + line] : 0;
#pragma unroll 4
  for (; z < stop; z++) {
    at++;
    bool exists = at >= 0 && at < n;
    bool next = exists && (!valid || valid[at * plane + line]);
    float lower = exists ? in[at * plane + line] : 0;
    bool inside = known && (next || is_whole);
    float value = __fadd_rn(__fmul_rn(rest, upper), __fmul_rn(fraction, lower));
    out[z * plane + line] = inside ? value : 0;
    out_valid[z * plane + line] = inside;
    upper = lower;
    known = next;
  }
}

// ---- interface --------------------------------------------------------------------------------

__device__ float seen(float value, int use_log) {
  return use_log && value > 0 ? __logf(value) : value;
}

// Fill the invalid voxels of each A-line from above, those before its first voxel with that one,
// an A-line without any with 0; `any` says which have one. A thread an A-line.
extern "C" __global__ void fill_a_lines(const float* in, const u8* valid, float* out, u8* any,
                                        i64 n, i64 plane, int use_log) {
  i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= plane) return;
  i64 first = 0;
  while (first < n && !valid[first * plane + line]) first++;
  any[line] = first < n;
  float last = first < n ? seen(in[first * plane + line], use_log) : 0;
#pragma unroll 4
  for (i64 z = 0; z < n; z++) {
    i64 at = z * plane + line;
    if (valid[at]) last = seen(in[at], use_log);
    out[at] = last;
  }
}

__device__ int reflected(int index, int n) {
  if (index >= 0 && index < n) return index;
  index %= 2 * n;
  if (index < 0) index += 2 * n;
  return index < n ? index : 2 * n - 1 - index;
}

// Sum each plane over a box of `size` voxels a side, reflected at the faces. A block of 32 x 8
// threads makes 32 x 32 voxels, from those around them in shared memory: first along axis 2, then
// along axis 1.
extern "C" __global__ void sum_boxes(const float* in, float* out, i64 n, int n1, int n2, int size,
                                     int use_log) {
  extern __shared__ float patch[];
  int width = 32 + size - 1;
  float* sums = patch + width * width;
  int row0 = blockIdx.y * 32, column0 = blockIdx.x * 32, before = size / 2;
  int x = threadIdx.x, y = threadIdx.y;
  for (i64 z = blockIdx.z; z < n; z += gridDim.z) {
    const float* from = in + z * n1 * n2;
    for (int column = x; column < width; column += 32) {
      int place = reflected(column0 - before + column, n2);
      for (int row = y; row < width; row += 8) {
        i64 line = reflected(row0 - before + row, n1);
        patch[row * width + column] = seen(from[line * n2 + place], use_log);
      }
    }
    __syncthreads();
    for (int row = y; row < width; row += 8) {
      float sum = 0;
      for (int t = 0; t < size; t++) sum += patch[row * width + x + t];
      sums[row * 32 + x] = sum;
    }
    __syncthreads();
    for (int row = y; row < 32; row += 8) {
      float sum = 0;
      for (int t = 0; t < size; t++) sum += sums[(row + t) * 32 + x];
      if (row0 + row < n1 && column0 + x < n2)
        out[(z * n1 + row0 + row) * n2 + column0 + x] = sum;
    }
    __syncthreads();
  }
}

// rise[q] = the derivative at z + q: weighted differences of neighbouring samples. Beyond the ends
// of an A-line its end samples go on, so that nothing differs there.
template <int COUNT>
__device__ void derive(const float* in, const float* weights, int taps, i64 z, i64 n, i64 plane,
                       i64 line, float* rise) {
  float w[COUNT] = {};
#pragma unroll
  for (int q = 0; q < COUNT; q++) rise[q] = 0;
  i64 at = z - taps / 2;
  const float* from = in + (at < 0 ? 0 : at < n ? at : n - 1) * plane + line;
  float before = *from;
#pragma unroll 4
  for (int t = 0; t < taps + COUNT - 1; t++) {
    at++;
    if (at > 0 && at < n) from += plane;
    float after = *from;
    float step = after - before;
    before = after;
#pragma unroll
    for (int q = COUNT - 1; q > 0; q--) w[q] = w[q - 1];
    w[0] = t < taps ? weights[t] : 0;
#pragma unroll
    for (int q = 0; q < COUNT; q++) rise[q] += w[q] * step;
  }
}

// The first steepest rise of each A-line, refined by a parabola through its neighbours; NaN where
// `any` is 0. A block of 32 x 8 threads takes 32 A-lines, each cut into 8 parts along depth.
extern "C" __global__ void steepest_rise(const float* in, const u8* any, const float* weights,
                                         int taps, float* out, i64 n, i64 plane) {
  __shared__ float best[8][32];
  __shared__ i64 where[8][32];
  i64 line = (i64)blockIdx.x * 32 + threadIdx.x;
  i64 share = (n + 7) / 8;
  i64 z = threadIdx.y * share;
  i64 stop = z + share < n ? z + share : n;
  float most = LEAST;
  i64 place = 0;
  if (line < plane)
    for (; z < stop; z += 4) {
      float rise[4];
      derive<4>(in, weights, taps, z, n, plane, line, rise);
#pragma unroll
      for (int q = 0; q < 4; q++)
        if (z + q < stop && rise[q] > most) {
          most = rise[q];
          place = z + q;
        }
    }
  best[threadIdx.y][threadIdx.x] = most;
  where[threadIdx.y][threadIdx.x] = place;
  __syncthreads();
  if (threadIdx.y || line >= plane) return;
  for (int part = 1; part < 8; part++)
    if (best[part][threadIdx.x] > most) {
      most = best[part][threadIdx.x];
      place = where[part][threadIdx.x];
    }
  float offset = 0;
  if (place > 0 && place < n - 1) {
    float rise[3];
    derive<3>(in, weights, taps, place - 1, n, plane, line, rise);
    float curvature = rise[0] - 2 * rise[1] + rise[2];
    if (curvature < 0) offset = 0.5f * (rise[0] - rise[2]) / curvature;
  }
  // A step between k-1 and k is steepest at k - 1/2.
  out[line] = any && !any[line] ? NOTHING : (float)((double)place + offset + 0.5);
}

// ---- means and brightness ---------------------------------------------------------------------

// The mean over depth of the valid voxels, NaN without any. A thread an A-line, planes in order as
// on the host.
extern "C" __global__ void mean_along_depth(const float* in, const u8* valid, float* out, i64 n,
                                            i64 plane) {
  i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= plane) return;
  float total = 0;
  int count = 0;
#pragma unroll 8
  for (i64 z = 0; z < n; z++) {
    bool known = !valid || valid[z * plane + line];
    float value = in[z * plane + line];
    if (known) total += value;
    count += known;
  }
  out[line] = count ? (float)((double)total / count) : NOTHING;
}

// Sums of squares and numbers of valid voxels, over depth and, for each warp, over its part of each
// plane: (n, warps). The order of the sums does not depend on the order of the threads.
extern "C" __global__ void power_sums(const float* in, const u8* valid, float* power, int* count,
                                      float* warp_power, int* warp_count, i64 n, i64 plane) {
  i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 warps = (i64)gridDim.x * (blockDim.x / 32), warp = line / 32;
  bool exists = line < plane;
  float total = 0;
  int number = 0;
#pragma unroll 4
  for (i64 z = 0; z < n; z++) {
    bool known = exists && (!valid || valid[z * plane + line]);
    float value = known ? in[z * plane + line] : 0;
    float square = __fmul_rn(value, value);
    total = __fadd_rn(total, square);
    number += known;
    for (int apart = 16; apart; apart /= 2) square += __shfl_down_sync(WARP, square, apart);
    u32 votes = __ballot_sync(WARP, known);
    if (threadIdx.x % 32 == 0) {
      warp_power[z * warps + warp] = square;
      warp_count[z * warps + warp] = __popc(votes);
    }
  }
  if (exists) {
    power[line] = total;
    count[line] = number;
  }
}

// Add up the warps of each plane: a block of 256 threads a plane.
extern "C" __global__ void plane_totals(const float* warp_power, const int* warp_count, i64 warps,
                                        double* power, double* count) {
  __shared__ double powers[256], counts[256];
  i64 z = blockIdx.x;
  double p = 0, c = 0;
  for (i64 k = threadIdx.x; k < warps; k += 256) {
    p += warp_power[z * warps + k];
    c += warp_count[z * warps + k];
  }
  powers[threadIdx.x] = p;
  counts[threadIdx.x] = c;
  for (int apart = 128; apart; apart /= 2) {
    __syncthreads();
    if (threadIdx.x < apart) {
      powers[threadIdx.x] += powers[threadIdx.x + apart];
      counts[threadIdx.x] += counts[threadIdx.x + apart];
    }
  }
  if (threadIdx.x == 0) {
    power[z] = powers[0];
    count[z] = counts[0];
  }
}

// The mean power of the water above the steepest rise of the logarithm of the planes' root mean
// power, `margin` planes away from it; 0 when fewer than two planes are left. Then `profile`, room
// for n numbers, becomes the planes' mean power above it. One block of 256 threads.
extern "C" __global__ void noise_floor(const double* power, const double* count,
                                       const float* weights, int taps, int margin, float* profile,
                                       float* noise, i64 n) {
  __shared__ double water;
  __shared__ float best[256];
  __shared__ i64 where[256];
  for (i64 z = threadIdx.x; z < n; z += 256) {
    double root = sqrt(power[z] / (count[z] > 1 ? count[z] : 1));
    profile[z] = (float)log(root > 1e-12 ? root : 1e-12);
  }
  __syncthreads();
  float most = LEAST;
  i64 place = 0;
  for (i64 z = threadIdx.x; z < n; z += 256) {
    float rise[1];
    derive<1>(profile, weights, taps, z, n, 1, 0, rise);
    if (rise[0] > most) {
      most = rise[0];
      place = z;
    }
  }
  best[threadIdx.x] = most;
  where[threadIdx.x] = place;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 1; k < 256; k++)
      if (best[k] > most || (best[k] == most && where[k] < place)) {
        most = best[k];
        place = where[k];
      }
    double p = 0, c = 0;
    for (i64 z = 0; z < place - margin; z++) {
      p += power[z];
      c += count[z];
    }
    water = place - margin < 2 ? 0 : p / (c > 1 ? c : 1);
    *noise = (float)water;
  }
  __syncthreads();
  for (i64 z = threadIdx.x; z < n; z += 256) {
    double above = power[z] / (count[z] > 1 ? count[z] : 1) - water;
    profile[z] = above > 0 ? (float)above : 0;
  }
}

// The root of the mean power less the noise, with the planes' mean `light` where voxels are masked.
// NaN where it is not `ratio` times the noise's uncertainty, or less than half of the light is seen.
extern "C" __global__ void brightness(const float* power, const int* count, const float* noise,
                                      const u8* valid, const float* light, float ratio, float* out,
                                      i64 n, i64 plane) {
  i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= plane) return;
  float number = count[line] > 1 ? count[line] : 1;
  float signal = __fsub_rn(__fdiv_rn(power[line], number), *noise);
  float uncertainty = __fdiv_rn(*noise, __fsqrt_rn(number));
  bool good = count[line] > 0 && signal > ratio * uncertainty && signal > 0;
  if (valid) {
    float every = 0, seen = 0;
    for (i64 z = 0; z < n; z++) {
      every = __fadd_rn(every, light[z]);
      if (valid[z * plane + line]) seen = __fadd_rn(seen, light[z]);
    }
    good = good && 2 * seen > every;
    signal = __fmul_rn(__fmul_rn(signal, __fdiv_rn(number, (float)n)), __fdiv_rn(every, seen));
  }
  out[line] = good ? __fsqrt_rn(signal) : NOTHING;
}

// ---- normalisation ----------------------------------------------------------------------------

// Count the float32 of each row, each with a weight, in bins that have the upper half of the pattern
// in common. A value is divided between the two bins whose centres it lies between; zeros, negatives
// and NaN count in bin 0. A block takes `share` values of row blockIdx.x and the bins of part
// blockIdx.y, `bins` of them in shared memory; `counts` is 0 before.
extern "C" __global__ void count_patterns(const float* values, const u8* selected,
                                          const u8* columns, u64* counts, i64 n, i64 share,
                                          u32 bins, u32 all_bins, u32 weight) {
  extern __shared__ u32 found[];
  for (u32 k = threadIdx.x; k < bins; k += blockDim.x) found[k] = 0;
  __syncthreads();
  u32 first = blockIdx.y * bins;
  i64 row = (i64)blockIdx.x * n;
  i64 start = blockIdx.z * share;
  i64 stop = start + share < n ? start + share : n;
  for (i64 k = start + threadIdx.x; k < stop; k += blockDim.x) {
    if (selected && !selected[row + k]) continue;
    if (columns && !columns[k]) continue;
    // From the centre of bin 0 on; below it and with a sign, the difference wraps around.
    u32 place = __float_as_uint(values[row + k]) - 0x8000u;
    if (place > 0x7f800000u - 0x8000u) place = 0;
    u32 beyond = (place & 0xffffu) * weight >> 16;
    u32 bin = (place >> 16) - first;
    if (bin < bins) atomicAdd(found + bin, weight - beyond);
    bin += 1;  // Of the last bin of the part before, which is -1 here, bin 0 of this one.
    if (beyond && bin < bins) atomicAdd(found + bin, beyond);
  }
  __syncthreads();
  u64* to = counts + (i64)blockIdx.x * all_bins + first;
  for (u32 k = threadIdx.x; k < bins; k += blockDim.x)
    if (found[k]) atomicAdd(to + k, (u64)found[k]);
}

// (clip(voxel, floor, cap) - floor) / scale of each plane, 0 outside the mask.
extern "C" __global__ void scale_planes(const float* in, const u8* valid, const float* floors,
                                        const float* caps, float scale, float* out, i64 n,
                                        i64 plane) {
  for (i64 z = blockIdx.y; z < n; z += gridDim.y) {
    float low = floors[z], high = caps[z];
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x; k < plane; k += step) {
      i64 at = z * plane + k;
      float value = fminf(fmaxf(in[at], low), high);
      out[at] = !valid || valid[at] ? __fdiv_rn(__fsub_rn(value, low), scale) : 0;
    }
  }
}
