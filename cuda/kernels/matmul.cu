// Dense products of quantised rows (rule 2): dst = src m^T + vec.
//
//   rows  grid (ones or pairs of output tiles of all parts, blocks of FEW_ROWS rows), bound by reading the weights once for 8 rows. The
//         rows are codes that a quantisation left, or every block norms and quantises them for itself, which takes less time
//         than a launch of its own. Weights are asked for before the launch before has ended.
//   many  grid (tiles of outputs / 8, rows / 64); codes are p->codes
#include "fused.h"
#include "matmul.cuh"

enum { DENSE_WARPS = 8, DENSE_TILES = 2 };   // tiles at most

// Codes of rows row0 .. row0+n of f.src, normed before if f says so, by all warps of the block; values [n, src.width] is shared
// memory for rows that are normed. Rule 4's lanes are the lanes of a warp. Block 0 of the grid writes normed rows to f.normed.
template <class F> __device__ __forceinline__ void make_codes(const covey_rows &f, const covey_program *p, int row0, int n, int8_t *q, int stride, covey_pair *pairs, float *values) {
  __shared__ float factors[FEW_ROWS];
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, width = f.src.width, cols = covey_ceil(width, F::group) * F::group;
  auto row_at = [&](int r) { return f.src.data + (int64_t)(f.gather ? p->step.logit_row[row0 + r] : row0 + r) * f.src.stride; };
  if (f.made == COVEY_NORMED) {
    for (int r = 0; r < n; r++) {                            // all on their way at once
      const float *x = row_at(r);
      for (int i = threadIdx.x * 4; i < width; i += (int)blockDim.x * 4) copy16(values + r * width + i, x + i);
    }
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    for (int r = warp; r < n; r += warps) {
      const float s = warp_squares(values + r * width, width, lane);
      if (lane == 0) factors[r] = canon_rms_factor(s, width, f.eps);
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < f.part[0].m.groups * FEW_ROWS; i += blockDim.x) if (i % FEW_ROWS >= n) pairs[i] = covey_pair{0, COVEY_MAGIC};
  const int pieces = covey_ceil(cols, 256);
  for (int piece = warp; piece < n * pieces; piece += warps) {
    const int r = piece / pieces, i = piece % pieces * 256 + lane * 8;
    const float *x = row_at(r);
    const bool mine = i < width;
    float v[8], scale;
    int32_t sum;
    #pragma unroll
    for (int h = 0; h < 8; h += 4) {
      float4 a = !mine ? make_float4(0, 0, 0, 0) : f.made == COVEY_NORMED ? *(const float4 *)(values + r * width + i + h) : __ldcg((const float4 *)(x + i + h));
      v[h] = a.x; v[h + 1] = a.y; v[h + 2] = a.z; v[h + 3] = a.w;
    }
    if (f.made == COVEY_NORMED && mine) {
      const float factor = factors[r];
      #pragma unroll
      for (int h = 0; h < 8; h++) {
        v[h] = v[h] * factor;
        if (f.norm) { float w = __ldg(f.norm + i + h); v[h] = v[h] * (f.plus_one ? w + 1.0f : w); }
      }
      if (f.normed.data && blockIdx.x == 0) {
        float *to = f.normed.data + (int64_t)(row0 + r) * f.normed.stride + i;
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
      }
    }
    uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
    if (i < cols) {
      *(uint2 *)(q + r * stride + i) = codes;
      if (i % F::group == 0) pairs[i / F::group * FEW_ROWS + r] = pair_of<F::form>(scale, sum);
    }
  }
}

// most: rows that a block has room for; tiles: of a block, 1 or DENSE_TILES.
template <class F> __device__ __forceinline__ void rows_product(const covey_rows &f, const covey_program *p, int most, int tiles) {
  int k = 0;
  #pragma unroll
  for (int i = 1; i < COVEY_PARTS; i++) if (i < f.parts && (int)blockIdx.x >= f.first[i]) k = i;
  const covey_part &part = f.part[k];
  product v;
  v.m = part.m;
  v.w = part.m.codes; v.w2 = 0;
  v.in = v.out = 0;
  v.stride = part.dst.stride; v.sum_stride = part.sum.stride;
  v.bias = part.bias;
  v.h_groups = 0;
  v.n = 0;
  v.most = most;
  v.tiles = tiles;
  product_few<F>(v, ((int)blockIdx.x - f.first[k]) * tiles, [&](int8_t *q, int stride, covey_pair *pairs) {
    if (f.made == COVEY_NORMED && f.norm)      // into the first-level cache, before the row is there
      for (int i = threadIdx.x * 32; i < f.src.width; i += blockDim.x * 32) touch(__ldg(f.norm + i));
    wait_for_previous();
    let_next_start();
    const int row0 = blockIdx.y * FEW_ROWS, left = (f.logits ? p->step.logit_rows : p->step.rows) - row0;
    v.n = min(most, left);
    if (v.n <= 0) return;
    v.y = part.dst.data + (int64_t)row0 * part.dst.stride;
    v.sum = part.sum.data ? part.sum.data + (int64_t)row0 * part.sum.stride : 0;
    if (f.made == COVEY_CODES) {
      v.x.q = p->codes.q + (int64_t)row0 * v.m.groups * F::group;
      v.x.scale = p->codes.scale + (int64_t)row0 * v.m.groups;
      v.x.sum = p->codes.sum + (int64_t)row0 * v.m.groups;
      read_codes<F>(v, q, stride, pairs);
      return;
    }
    float *values = (float *)(pairs + v.m.groups * FEW_ROWS) + tiles * covey_ceil(v.m.groups, F::segment) * 16 * FEW_ROWS;
    make_codes<F>(f, p, row0, v.n, q, stride, pairs, values);
  });
}

#define COVEY_MATMUL(NAME, FORM, GROUP)                                                                                                                        \
  extern "C" __global__ __launch_bounds__(DENSE_WARPS * 32) void covey_rows_##NAME(const __grid_constant__ covey_rows f, const covey_program *p, int most, int tiles) { \
    rows_product<Form<FORM, GROUP, CANON_F16>>(f, p, most, tiles);                                                                                                    \
  }                                                                                                                                                            \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_matmul_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p) {                  \
    product v;                                                                                                                                                 \
    v.m = op.m;                                                                                                                                                \
    v.w = op.m.codes; v.w2 = 0;                                                                                                                                \
    v.in = v.out = 0;                                                                                                                                          \
    v.stride = op.dst.stride;                                                                                                                                  \
    v.bias = op.vec;                                                                                                                                           \
    v.h_groups = 0;                                                                                                                                            \
    wait_for_previous();                                                                                                                                          \
    let_next_start();                                                                                                                                       \
    const int64_t row0 = blockIdx.y * 64;                                                                                                                      \
    v.n = min(64, (op.dst.logits ? p->step.logit_rows : p->step.rows) - (int)row0);                                                                             \
    v.x.q = p->codes.q + row0 * op.m.groups * GROUP;                                                                                                           \
    v.x.scale = p->codes.scale + row0 * op.m.groups;                                                                                                           \
    v.x.sum = p->codes.sum + row0 * op.m.groups;                                                                                                               \
    v.y = op.dst.data + row0 * op.dst.stride;                                                                                                                  \
    if (v.n > 0) product_many<Form<FORM, GROUP, CANON_F16>, PRODUCT_DENSE, 4>(v, blockIdx.x * 8, 0);                                                            \
  }
COVEY_MATMUL(int4_g64, CANON_INT4, 64)
COVEY_MATMUL(int8_g32, CANON_INT8, 32)
#ifndef COVEY_ONE_FORM
COVEY_MATMUL(int4_g32, CANON_INT4, 32)
COVEY_MATMUL(int4_g128, CANON_INT4, 128)
COVEY_MATMUL(int8_g64, CANON_INT8, 64)
COVEY_MATMUL(int8_g128, CANON_INT8, 128)
COVEY_MATMUL(mxfp4_g32, CANON_MXFP4, 32)
#endif
