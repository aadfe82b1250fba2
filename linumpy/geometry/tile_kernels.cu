// Kernels of stitching and registration; tile_kernels.py says how to call them.

typedef unsigned char u8;
typedef long long i64;

// ---- stitching --------------------------------------------------------------------------------

// One tile's row in the table of `stitch_block`.
enum {
  DATA, VALID,              // addresses; VALID 0: all of the tile is data
  ROW_BEGIN, ROW_END,       // rows of the block that the tile reaches
  COLUMN_BEGIN, COLUMN_END,
  ROW_SHIFT, COLUMN_SHIFT,  // tile pixel = block pixel + shift
  ROW_FRACTION, COLUMN_FRACTION,  // bits of a float: the share of the pixel before
  TABLE_WIDTH
};

__device__ float mixed(float at, float before, float fraction) {
  return fraction > 0 ? (1 - fraction) * at + fraction * before : at;
}

#define PLANES_A_THREAD 4

// Each thread makes one pixel of PLANES_A_THREAD planes. Tiles are added in the order of the table.
extern "C" __global__ void stitch_block(const i64* table, int n_tiles, const float* row_profile,
                                        const float* column_profile, int tile_rows,
                                        int tile_columns, int depth, int rows, int columns,
                                        float* out, u8* mask) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column >= columns || row >= rows) return;
  i64 tile_plane = (i64)tile_rows * tile_columns;
  i64 plane = (i64)rows * columns;
  for (int z = blockIdx.z * PLANES_A_THREAD; z < depth; z += gridDim.z * PLANES_A_THREAD) {
    float total[PLANES_A_THREAD], weights[PLANES_A_THREAD];
#pragma unroll
    for (int k = 0; k < PLANES_A_THREAD; k++) total[k] = weights[k] = 0;
    for (int t = 0; t < n_tiles; t++) {
      const i64* tile = table + (i64)t * TABLE_WIDTH;
      if (row < tile[ROW_BEGIN] || row >= tile[ROW_END]) continue;
      if (column < tile[COLUMN_BEGIN] || column >= tile[COLUMN_END]) continue;
      float f1 = __int_as_float((int)tile[ROW_FRACTION]);
      float f2 = __int_as_float((int)tile[COLUMN_FRACTION]);
      i64 r = row + tile[ROW_SHIFT], c = column + tile[COLUMN_SHIFT];
      // Steps back to the other sample; without a fraction there is none.
      i64 up = f1 > 0 ? tile_columns : 0, left = f2 > 0 ? 1 : 0;
      float weight = mixed(row_profile[r], row_profile[f1 > 0 ? r - 1 : r], f1) *
                     mixed(column_profile[c], column_profile[c - left], f2);
      i64 at0 = z * tile_plane + r * tile_columns + c;
      const float* data = (const float*)tile[DATA];
      const u8* valid = (const u8*)tile[VALID];
#pragma unroll
      for (int k = 0; k < PLANES_A_THREAD; k++) {
        if (z + k >= depth) break;
        i64 at = at0 + k * tile_plane;
        if (valid && !(valid[at] && valid[at - left] && valid[at - up] && valid[at - up - left]))
          continue;
        float here = mixed(data[at], data[at - left], f2);
        float before = mixed(data[at - up], data[at - up - left], f2);
        total[k] += mixed(here, before, f1) * weight;
        weights[k] += weight;
      }
    }
#pragma unroll
    for (int k = 0; k < PLANES_A_THREAD; k++) {
      if (z + k >= depth) break;
      i64 at = (z + k) * plane + (i64)row * columns + column;
      bool good = weights[k] > 0;
      out[at] = good ? total[k] / weights[k] : 0.0f;
      mask[at] = good;
    }
  }
}

// ---- slabs and flattening ---------------------------------------------------------------------

// Mean over `thickness` planes of the valid voxels; `plane` pixels a plane, blockIdx.y a slab.
extern "C" __global__ void slab_means(const float* data, const u8* valid, int thickness,
                                      int n_slabs, i64 plane, float* slabs, u8* there) {
  i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 threads = (i64)gridDim.x * blockDim.x;
  for (int slab = blockIdx.y; slab < n_slabs; slab += gridDim.y) {
    for (i64 pixel = thread; pixel < plane; pixel += threads) {
      i64 at = (i64)slab * thickness * plane + pixel;
      float total = 0;
      int count = 0;
#pragma unroll 4
      for (int k = 0; k < thickness; k++, at += plane) {
        bool is = !valid || valid[at];
        total += is ? data[at] : 0.0f;
        count += is;
      }
      slabs[slab * plane + pixel] = total / (count > 0 ? count : 1);
      if (there) there[slab * plane + pixel] = count > 0;
    }
  }
}

// Blur planes along their rows with two symmetric kernels, given by their taps from the middle
// on; the border pixel is repeated. With a mask, it is blurred alike.
extern "C" __global__ void blur_rows(const float* planes, const u8* valid, int n_planes, int rows,
                                     int columns, const float* wide_taps, int wide_reach,
                                     const float* narrow_taps, int narrow_reach, float* wide,
                                     float* narrow, float* wide_share, float* narrow_share) {
  int pixels = rows * columns;
  for (int p = blockIdx.y; p < n_planes; p += gridDim.y) {
    i64 first = (i64)p * pixels;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < pixels;
         at += gridDim.x * blockDim.x) {
      int column = at % columns;
      i64 row = first + at - column;
      float far = 0, near = 0, far_share = 0, near_share = 0;
      for (int k = -wide_reach; k <= wide_reach; k++) {
        i64 from = row + min(max(column + k, 0), columns - 1);
        float share = !valid || valid[from] ? 1.0f : 0.0f;
        float value = share > 0 ? planes[from] : 0.0f;
        int away = k < 0 ? -k : k;
        far += wide_taps[away] * value;
        far_share += wide_taps[away] * share;
        if (away <= narrow_reach) {
          near += narrow_taps[away] * value;
          near_share += narrow_taps[away] * share;
        }
      }
      wide[first + at] = far;
      narrow[first + at] = near;
      if (valid) {
        wide_share[first + at] = far_share;
        narrow_share[first + at] = near_share;
      }
    }
  }
}

// Blur what `blur_rows` made along the columns, and compare the narrow mean with the wide one.
extern "C" __global__ void flatten_columns(const float* wide, const float* narrow,
                                           const float* wide_share, const float* narrow_share,
                                           const u8* valid, int n_planes, int rows, int columns,
                                           const float* wide_taps, int wide_reach,
                                           const float* narrow_taps, int narrow_reach,
                                           float* out) {
  int pixels = rows * columns;
  for (int p = blockIdx.y; p < n_planes; p += gridDim.y) {
    i64 first = (i64)p * pixels;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < pixels;
         at += gridDim.x * blockDim.x) {
      int row = at / columns;
      i64 column = first + at - (i64)row * columns;
      float far = 0, near = 0, far_share = 0, near_share = 0;
      for (int k = -wide_reach; k <= wide_reach; k++) {
        i64 from = column + (i64)min(max(row + k, 0), rows - 1) * columns;
        int away = k < 0 ? -k : k;
        far += wide_taps[away] * wide[from];
        if (valid) far_share += wide_taps[away] * wide_share[from];
        if (away <= narrow_reach) {
          near += narrow_taps[away] * narrow[from];
          if (valid) near_share += narrow_taps[away] * narrow_share[from];
        }
      }
      if (valid) {
        far /= fmaxf(far_share, 1e-6f);
        near /= fmaxf(near_share, 1e-6f);
      }
      bool good = far > 0 && (!valid || valid[first + at]);
      out[first + at] = good ? near / far - 1 : 0.0f;
    }
  }
}

// ---- correlation ------------------------------------------------------------------------------

// Choose the slabs where both tiles rise above their noise, or else the `least` brightest: 1 or 0
// for each, and behind them how many. One thread.
extern "C" __global__ void choose_slabs(const float* first, const float* second, int n,
                                        float signal_over_noise, int least, float* chosen) {
  if (blockIdx.x || threadIdx.x) return;
  float noise = first[0];
  for (int k = 0; k < n; k++) noise = fminf(noise, fminf(first[k], second[k]));
  int count = 0;
  for (int k = 0; k < n; k++) {
    bool is = fminf(first[k], second[k]) > signal_over_noise * noise;
    chosen[k] = is;
    count += is;
  }
  if (count < least) {
    for (int k = 0; k < n; k++) chosen[k] = 0;
    for (count = 0; count < least && count < n; count++) {
      int best = -1;
      for (int k = 0; k < n; k++) {
        if (chosen[k] > 0) continue;
        if (best < 0 || fminf(first[k], second[k]) >= fminf(first[best], second[best])) best = k;
      }
      chosen[best] = 1;
    }
  }
  chosen[n] = count;
}

// A pair of windows of two stacks: its first displacement, and where the windows lie.
struct Windows {
  int low1, low2;
  int a_low1, a_low2, a1, a2;
  int b_low1, b_low2, b1, b2;
};

// Lay out what is to be transformed: of both windows, for each plane, the values, where they are
// known, and their squares, padded with zeros; stack[6][n_windows][n_planes][size1][size2]. Strides
// count elements.
extern "C" __global__ void correlation_inputs(const float* a, i64 a_plane, i64 a_row,
                                              const float* b, i64 b_plane, i64 b_row,
                                              const float* chosen, const Windows* windows,
                                              int n_windows, int n_planes, int size1, int size2,
                                              float* stack) {
  i64 pixels = (i64)size1 * size2;
  i64 part = pixels * n_windows * n_planes;
  i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 threads = (i64)gridDim.x * blockDim.x;
  for (int n = blockIdx.y; n < n_windows * n_planes; n += gridDim.y) {
    Windows w = windows[n / n_planes];
    int p = n % n_planes;
    bool used = chosen[p] > 0;
    const float* first = a + p * a_plane + w.a_low1 * a_row + w.a_low2;
    const float* second = b + p * b_plane + w.b_low1 * b_row + w.b_low2;
    for (i64 at = thread; at < pixels; at += threads) {
      int i = (int)(at / size2), j = (int)(at % size2);
      float x = used && i < w.a1 && j < w.a2 ? first[i * a_row + j] : 0.0f;
      float y = used && i < w.b1 && j < w.b2 ? second[i * b_row + j] : 0.0f;
      float* to = stack + n * pixels + at;
      to[0] = x;
      to[part] = x != 0 ? 1.0f : 0.0f;
      to[2 * part] = x * x;
      to[3 * part] = y;
      to[4 * part] = y != 0 ? 1.0f : 0.0f;
      to[5 * part] = y * y;
    }
  }
}

__device__ float2 times_conjugate(float2 sum, float2 a, float2 b) {
  sum.x += a.x * b.x + a.y * b.y;
  sum.y += a.y * b.x - a.x * b.y;
  return sum;
}

// Sum over planes of the cross spectra of what `correlation_inputs` laid out: values with values,
// squares with known, known with squares, known with known; added to total[n_windows][4][n].
extern "C" __global__ void cross_spectra(const float2* spectra, int n_windows, int n_planes, i64 n,
                                         float2* total) {
  i64 part = n * n_windows * n_planes;
  i64 threads = (i64)gridDim.x * blockDim.x;
  for (int w = blockIdx.y; w < n_windows; w += gridDim.y) {
    float2* to = total + 4 * n * w;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += threads) {
      float2 product = to[at], energy_a = to[n + at];
      float2 energy_b = to[2 * n + at], count = to[3 * n + at];
      for (int p = 0; p < n_planes; p++) {
        const float2* from = spectra + ((i64)w * n_planes + p) * n + at;
        float2 known_a = from[part], known_b = from[4 * part];
        product = times_conjugate(product, from[0], from[3 * part]);
        energy_a = times_conjugate(energy_a, from[2 * part], known_b);
        energy_b = times_conjugate(energy_b, known_a, from[5 * part]);
        count = times_conjugate(count, known_a, known_b);
      }
      to[at] = product;
      to[n + at] = energy_a;
      to[2 * n + at] = energy_b;
      to[3 * n + at] = count;
    }
  }
}

// Cut displacements, from each window's first one on, out of four periodic maps a window.
extern "C" __global__ void cut_windows(const float* maps, const Windows* windows, int n_windows,
                                       int size1, int size2, int side1, int side2, float* cut) {
  int samples = side1 * side2;
  i64 pixels = (i64)size1 * size2;
  for (int n = blockIdx.y; n < n_windows; n += gridDim.y) {
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < samples;
         at += gridDim.x * blockDim.x) {
      int i = (windows[n].low1 + at / side2) % size1, j = (windows[n].low2 + at % side2) % size2;
      if (i < 0) i += size1;
      if (j < 0) j += size2;
      for (int k = 0; k < 4; k++) {
        cut[(4 * (i64)n + k) * samples + at] = maps[(4 * n + k) * pixels + (i64)i * size2 + j];
      }
    }
  }
}

// Normalise what `cut_windows` cut out: out[n][0] the correlation, NaN where too little overlaps,
// out[n][1] the weight.
extern "C" __global__ void normalise_windows(const float* cut, const Windows* windows,
                                             int n_windows, int side1, int side2,
                                             const float* largest_counts, const float* planes_used,
                                             double min_overlap_share, float* out) {
  int samples = side1 * side2;
  for (int n = blockIdx.y; n < n_windows; n += gridDim.y) {
    Windows w = windows[n];
    i64 size_a = (i64)w.a1 * w.a2, size_b = (i64)w.b1 * w.b2;
    float largest = largest_counts[n];
    float least = (float)(min_overlap_share * (size_a < size_b ? size_a : size_b)) * *planes_used;
    const float* from = cut + 4 * (i64)n * samples;
    float* to = out + 2 * (i64)n * samples;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < samples;
         at += gridDim.x * blockDim.x) {
      int d1 = w.low1 + at / side2, d2 = w.low2 + at % side2;
      float count = from[3 * samples + at];
      float scale = sqrtf(fmaxf(from[samples + at], 0)) * sqrtf(fmaxf(from[2 * samples + at], 0));
      // Displacements beyond the padded images would be wrapped ones.
      bool good = d1 > -w.b1 && d1 < w.a1 && d2 > -w.b2 && d2 < w.a2;
      good = good && count > least && scale > 1e-6f * (largest + 1);
      to[at] = good ? from[at] / scale : __int_as_float(0x7fc00000);
      to[samples + at] = sqrtf(fmaxf(count, 0) / fmaxf(largest, 1));
    }
  }
}
