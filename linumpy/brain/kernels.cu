// Kernels of stacking; kernels.py says how to call them.

typedef unsigned char u8;
typedef long long i64;

// Each product and sum rounded for itself, as on the CPU: both devices give the same bits.
__device__ float mixed(float a, float x, float b, float y) {
  return __fadd_rn(__fmul_rn(a, x), __fmul_rn(b, y));
}

__device__ double place(double a, double i, double b, double j, double shift) {
  return __dadd_rn(__dadd_rn(__dmul_rn(a, i), __dmul_rn(b, j)), shift);
}

// How a slice reaches a block: moved by a fraction of a pixel, or turned. For a moved one the
// shares `before` are those of the row above and of the pixel to the left, 0 for none; `data`
// points to the first pixel that is one sample, of two, of a pixel of `out`. For a turned one,
// output pixel (row, column) + first lies at source pixel turn · (…) + shift, counted from the
// source window's pixel (0, 0) of the slice, which is `source`. Of a deformed one `bend` is added to
// that place: first the rows' part of all output pixels, then the columns'.
struct Reach {
  float here1, before1, here2, before2;
  int turned;
  double a, b, c, d, shift1, shift2;
  int first1, first2, source1, source2, rows, columns;
};

// Where a thread's pixel finds its four samples: `at` and those `up` above and `left` of it.
struct Samples {
  i64 at, up, left;
  float here1, before1, here2, before2;
  bool inside;
};

__device__ Samples find_samples(const Reach& reach, const double* bend, i64 data_row, int row,
                                int column, int rows, int columns) {
  Samples s;
  if (!reach.turned) {
    s.up = reach.before1 > 0 ? data_row : 0;
    s.left = reach.before2 > 0 ? 1 : 0;
    s.at = row * data_row + s.up + column + s.left;
    s.here1 = reach.here1;
    s.before1 = reach.before1;
    s.here2 = reach.here2;
    s.before2 = reach.before2;
    s.inside = true;
    return s;
  }
  double i = reach.first1 + row, j = reach.first2 + column;
  double p1 = place(reach.a, i, reach.b, j, reach.shift1);
  double p2 = place(reach.c, i, reach.d, j, reach.shift2);
  if (bend) {
    i64 here = (i64)row * columns + column;
    p1 = __dadd_rn(p1, bend[here]);
    p2 = __dadd_rn(p2, bend[(i64)rows * columns + here]);
  }
  double low1 = floor(p1), low2 = floor(p2);
  s.inside = low1 >= reach.source1 && low1 < reach.source1 + reach.rows - 1 &&
             low2 >= reach.source2 && low2 < reach.source2 + reach.columns - 1;
  // The sample with the higher indices is `at`; its share is the far one.
  s.here1 = (float)__dsub_rn(p1, low1);
  s.here2 = (float)__dsub_rn(p2, low2);
  s.before1 = __fsub_rn(1.0f, s.here1);
  s.before2 = __fsub_rn(1.0f, s.here2);
  s.up = data_row;
  s.left = 1;
  s.at = s.inside ? ((i64)low1 - reach.source1 + 1) * data_row + (i64)low2 - reach.source2 + 1 : 0;
  return s;
}

__device__ bool all_valid(const u8* valid, i64 at, const Samples& s) {
  return valid[at] && valid[at - s.left] && valid[at - s.up] && valid[at - s.up - s.left];
}

// One pixel of a plane that begins at `data`, between its four samples.
__device__ float sample(const float* data, i64 at, const Samples& s, int turned) {
  if (turned) {
    float below = mixed(s.before2, data[at - 1], s.here2, data[at]);
    float above = mixed(s.before2, data[at - s.up - 1], s.here2, data[at - s.up]);
    return mixed(s.before1, above, s.here1, below);
  }
  float value = data[at];
  float aside = data[at - s.left];
  if (s.up) {
    value = mixed(s.here1, value, s.before1, data[at - s.up]);
    aside = mixed(s.here1, aside, s.before1, data[at - s.up - s.left]);
  }
  if (s.left) value = mixed(s.here2, value, s.before2, aside);
  return value;
}

// Each thread makes one pixel of every gridDim.z-th plane. Strides count elements. With `faces`,
// a pixel's weight is that of its column's face, below 0 for a plane that is not used. With
// `quality` (like `data`) the weight is a taper: times quality, it is weighed against the sum of the
// weights that were laid before, `kept` (like `out`).
extern "C" __global__ void lay_slice(float* out, u8* mask, i64 out_plane, i64 out_row,
                                     const float* data, const u8* valid, i64 data_plane,
                                     i64 data_row, Reach reach, const double* bend,
                                     const float* weights,
                                     const short* faces, int n_faces, const float* quality,
                                     float* kept, int depth, int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column >= columns || row >= rows) return;
  Samples s = find_samples(reach, bend, data_row, row, column, rows, columns);
  if (!s.inside) return;
  int face = faces ? min((int)faces[(i64)row * columns + column], n_faces - 1) : 0;
  for (int z = blockIdx.z; z < depth; z += gridDim.z) {
    float share = weights[(i64)z * n_faces + face];
    if (share < 0) continue;
    i64 at = z * data_plane + s.at;
    if (valid && !all_valid(valid, at, s)) continue;
    i64 to = z * out_plane + row * out_row + column;
    float value = sample(data, at, s, reach.turned);
    if (quality) {
      float weight = __fmul_rn(share, sample(quality, at, s, reach.turned));
      float total = __fadd_rn(weight, mask[to] ? kept[to] : 0.0f);
      share = total > 0 ? __fdiv_rn(weight, total) : 0.0f;
      kept[to] = total;
    }
    if (!mask[to]) share = 1.0f;
    out[to] = mixed(1.0f - share, out[to], share, value);
    mask[to] = 1;
  }
}

// Each thread counts the planes of one column down to its first valid one; columns for which
// `seen` planes were counted before go on.
extern "C" __global__ void add_faces(short* faces, int seen, const u8* valid, i64 data_plane,
                                     i64 data_row, Reach reach, const double* bend, int depth, int rows,
                                     int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column >= columns || row >= rows) return;
  i64 to = (i64)row * columns + column;
  if (faces[to] != seen) return;
  Samples s = find_samples(reach, bend, data_row, row, column, rows, columns);
  int z = 0;
  while (z < depth && !(s.inside && all_valid(valid, z * data_plane + s.at, s))) z++;
  faces[to] = seen + z;
}
