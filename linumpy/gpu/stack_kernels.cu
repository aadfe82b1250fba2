// Kernels of stacking; stack_kernels.py says how to call them.

typedef unsigned char u8;
typedef long long i64;

// Each product and sum rounded for itself, as on the CPU: both devices give the same bits.
__device__ float mixed(float a, float x, float b, float y) {
  return __fadd_rn(__fmul_rn(a, x), __fmul_rn(b, y));
}

// Each thread makes one pixel of every gridDim.z-th plane. Strides count elements; `data` and
// `valid` point to the first pixel that is one sample, of two, of a pixel of `out`. A share
// `before` of 0 means that there is no other sample.
extern "C" __global__ void lay_slice(float* out, u8* mask, i64 out_plane, i64 out_row,
                                     const float* data, const u8* valid, i64 data_plane,
                                     i64 data_row, float here1, float before1, float here2,
                                     float before2, const float* weights, int depth, int rows,
                                     int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (column >= columns || row >= rows) return;
  i64 up = before1 > 0 ? data_row : 0, left = before2 > 0 ? 1 : 0;
  for (int z = blockIdx.z; z < depth; z += gridDim.z) {
    i64 at = z * data_plane + row * data_row + up + column + left;
    if (valid && !(valid[at] && valid[at - left] && valid[at - up] && valid[at - up - left]))
      continue;
    i64 to = z * out_plane + row * out_row + column;
    float value = data[at], aside = data[at - left];
    if (up) {
      value = mixed(here1, value, before1, data[at - up]);
      aside = mixed(here1, aside, before1, data[at - up - left]);
    }
    if (left) value = mixed(here2, value, before2, aside);
    float share = mask[to] ? weights[z] : 1.0f;
    out[to] = mixed(1.0f - share, out[to], share, value);
    mask[to] = 1;
  }
}
