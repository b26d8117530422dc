// Products of quantised rows by rule 2 for several rows: two shapes of the same arithmetic.
//
//   few   up to 8 rows. A warp takes a segment of 16 outputs from device memory into registers; a block adds its segments in
//         ascending order. Bound by reading the weights once.
//   many  any number of rows. A warp holds 2 x 16 outputs by 32 rows; weights, codes and scales pass through a ring of
//         asynchronous copies. Each 16 x 8 sums of a group cost 12 float operations beside the 2 to 4 tensor instructions, so
//         it is bound by issuing instructions: about 2 multiply-adds in 1,000 of what the tensor cores could do are waited for.
//
// What is multiplied is a `product`: weights, the rows that enter, and where each result goes. Kinds differ in the last only.
#pragma once
#include "abi.h"
#include "product.cuh"

enum { PRODUCT_DENSE, PRODUCT_UP, PRODUCT_DOWN };
enum { FEW_ROWS = 8 };

struct product {
  canon_matrix m;                  // of gate for PRODUCT_UP; down's for the others
  const uint8_t *w, *w2;           // first block; w2: of up
  covey_codes x;                   // inputs, groups as in m
  int32_t n;                       // rows
  const int32_t *in, *out;         // [n] input and output rows; null = the number itself
  float *y;                        // [out, stride] for DENSE and DOWN
  int64_t stride;
  const float *bias;
  covey_codes h;                   // codes of silu(gate) * up for UP, padded groups of down
  int32_t h_groups;
};

__device__ __forceinline__ int32_t row_in(const product &p, int i) { return p.in ? p.in[i] : i; }
__device__ __forceinline__ int32_t row_out(const product &p, int i) { return p.out ? p.out[i] : i; }

// Codes of [columns][WIDTH] inner values in shared memory (column stride WIDTH + 4): WIDTH is whole groups, first is the
// first inner value. Whole warps call it.
template <class F, int WIDTH> __device__ __forceinline__ void store_inner(const product &p, const float *values, int columns, int column0, int first, int warp, int warps, int lane) {
  const int per = WIDTH / 8, inner = p.m.rows;
  for (int at = warp * 32; at < columns * per; at += warps * 32) {
    int i = at + lane, c = i / per, j = i % per * 8;
    float v[8], scale;
    int32_t sum;
    #pragma unroll
    for (int k = 0; k < 8; k++) v[k] = i < columns * per && first + j + k < inner ? values[c * (WIDTH + 4) + j + k] : 0.0f;
    uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
    if (i >= columns * per || column0 + c >= p.n || first + j >= p.h_groups * F::group) continue;
    int64_t row = row_out(p, column0 + c);
    *(uint2 *)(p.h.q + row * p.h_groups * F::group + first + j) = codes;
    if (j % F::group == 0) { p.h.scale[row * p.h_groups + (first + j) / F::group] = scale; p.h.sum[row * p.h_groups + (first + j) / F::group] = sum; }
  }
}

// ---- few rows ----------------------------------------------------------------------------------------------------------

// A segment of 16 outputs by 8 rows. codes: shared memory, rows `stride` bytes apart, at the segment's first input; pairs
// [group][8]. The sums are of outputs g, g + 8 (acc[0..1], acc[2..3]) and rows 2t, 2t + 1.
template <class F, int N> __device__ __forceinline__ void groups_few(const uint8_t *blocks, int block, int scale_form, const int8_t *codes, const covey_pair *pairs, int lane, float acc[4]) {
  uint32_t a[N][F::chunks][F::steps][4];
  float2 w[N];
  #pragma unroll
  for (int i = 0; i < N; i++) {
    #pragma unroll
    for (int k = 0; k < F::chunks; k++) F::template weights<true>(blocks + i * block, k, lane, a[i][k]);
    w[i] = scale_pair_of(scale_form, blocks + i * block + F::codes, lane >> 2);
  }
  #pragma unroll
  for (int i = 0; i < N; i++) {
    float4 x = *(const float4 *)&pairs[i * FEW_ROWS + (lane & 3) * 2];
    int32_t s0 = __float_as_int(x.y), s1 = __float_as_int(x.w), d[4] = {s0, s1, s0, s1};
    #pragma unroll
    for (int k = 0; k < F::chunks; k++) {
      uint32_t b[F::steps][2];
      F::codes_of(codes + i * F::group + k * F::chunk, lane & 3, b);
      #pragma unroll
      for (int t = 0; t < F::steps; t++) F::mma(d, a[i][k][t], b[t], d);
    }
    acc[0] = fmaf(sum_of(d[0]), w[i].x * x.x, acc[0]);
    acc[1] = fmaf(sum_of(d[1]), w[i].x * x.z, acc[1]);
    acc[2] = fmaf(sum_of(d[2]), w[i].y * x.x, acc[2]);
    acc[3] = fmaf(sum_of(d[3]), w[i].y * x.z, acc[3]);
  }
}
template <class F> __device__ __forceinline__ void segment_few(const uint8_t *blocks, int block, int scale_form, const int8_t *codes, const covey_pair *pairs, int n, int lane, float acc[4]) {
  constexpr int at_once = F::group == 128 || F::form == CANON_INT8 ? 4 : 8;   // all loads of these groups are in flight together
  #pragma unroll
  for (int i = 0; i < 4; i++) acc[i] = 0;
  #pragma unroll 1
  for (; n >= at_once; n -= at_once, blocks += at_once * block, codes += at_once * F::group, pairs += at_once * FEW_ROWS) groups_few<F, at_once>(blocks, block, scale_form, codes, pairs, lane, acc);
  #pragma unroll 1
  for (; n > 0; n--, blocks += block, codes += F::group, pairs += FEW_ROWS) groups_few<F, 1>(blocks, block, scale_form, codes, pairs, lane, acc);
}

CANON_FN int32_t few_stride(int32_t cols) { return (cols + 127) / 128 * 128 + 64; }   // rows of codes fall into other banks
// Shared memory of a block: codes, pairs, sums of segments, inner values.
CANON_FN int32_t few_memory(int32_t groups, int32_t group, int32_t tiles, int32_t parts, int32_t rows) {
  int32_t segments = covey_ceil(groups * group, CANON_SEGMENT);
  return rows * few_stride(groups * group) + groups * FEW_ROWS * 8 + parts * tiles * segments * 16 * FEW_ROWS * 4 + (parts == 2 ? FEW_ROWS * (tiles * 16 + 4) * 4 : 0);
}

// TILES tiles of 16 outputs from tile0, WARPS warps.
template <class F, int KIND, int TILES, int WARPS> __device__ __forceinline__ void product_few(const product &p, int tile0) {
  extern __shared__ __align__(128) uint8_t memory[];
  const int groups = p.m.groups, cols = groups * F::group, stride = few_stride(cols), segments = covey_ceil(groups, F::segment), parts = KIND == PRODUCT_UP ? 2 : 1;
  const int block = F::codes + 16 * covey_form_bytes(p.m.scale_form), tiles = covey_ceil(p.m.rows, 16);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int8_t *q = (int8_t *)memory;
  covey_pair *pairs = (covey_pair *)(memory + p.n * stride);
  float *part = (float *)(pairs + groups * FEW_ROWS), *inner = part + parts * TILES * segments * 16 * FEW_ROWS;
  for (int i = threadIdx.x; i < p.n * (cols / 16); i += WARPS * 32) {
    int r = i / (cols / 16), c = i % (cols / 16) * 16;
    *(uint4 *)(q + r * stride + c) = __ldcg((const uint4 *)(p.x.q + (int64_t)row_in(p, r) * cols + c));
  }
  for (int i = threadIdx.x; i < groups * FEW_ROWS; i += WARPS * 32) {
    int r = i % FEW_ROWS, g = i / FEW_ROWS;
    covey_pair v = {0, COVEY_MAGIC};
    if (r < p.n) { int64_t at = (int64_t)row_in(p, r) * groups + g; v = pair_of<F::form>(__ldcg(p.x.scale + at), __ldcg(p.x.sum + at)); }
    pairs[i] = v;
  }
  __syncthreads();
  const int8_t *mine = q + ((lane >> 2) < p.n ? lane >> 2 : 0) * stride;
  for (int u = warp; u < parts * TILES * segments; u += WARPS) {
    int s = u % segments, t = u / segments % TILES, part2 = u / segments / TILES, first = s * F::segment;
    if (tile0 + t >= tiles) continue;
    const uint8_t *w = (part2 ? p.w2 : p.w) + ((int64_t)(tile0 + t) * groups + first) * block;
    float acc[4];
    segment_few<F>(w, block, p.m.scale_form, mine + s * CANON_SEGMENT, pairs + first * FEW_ROWS, groups - first < F::segment ? groups - first : F::segment, lane, acc);
    float *to = part + u * 16 * FEW_ROWS + (lane >> 2) * FEW_ROWS + (lane & 3) * 2;
    *(float2 *)to = make_float2(acc[0], acc[1]);
    *(float2 *)(to + 8 * FEW_ROWS) = make_float2(acc[2], acc[3]);
  }
  __syncthreads();
  auto total = [&](int part2, int t, int row, int col) {
    const float *from = part + (((part2 * TILES + t) * segments) * 16 + row) * FEW_ROWS + col;
    float tot = 0;
    for (int s = 0; s < segments; s++) tot = tot + from[s * 16 * FEW_ROWS];
    return tot;
  };
  for (int i = threadIdx.x; i < TILES * 16 * FEW_ROWS; i += WARPS * 32) {
    int row = i % 16, t = i / 16 % TILES, col = i / 16 / TILES, out = (tile0 + t) * 16 + row;
    if (col >= p.n || out >= p.m.rows) continue;
    if (KIND == PRODUCT_UP) {
      inner[col * (TILES * 16 + 4) + t * 16 + row] = canon_siluf(total(0, t, row, col)) * total(1, t, row, col);
    } else {
      float v = total(0, t, row, col);
      p.y[row_out(p, col) * p.stride + out] = p.bias ? v + p.bias[out] : v;
    }
  }
  if (KIND != PRODUCT_UP) return;
  __syncthreads();
  store_inner<F, TILES * 16>(p, inner, FEW_ROWS, 0, tile0 * 16, warp, WARPS, lane);
}

// ---- many rows ---------------------------------------------------------------------------------------------------------

// A stage of the ring: DEPTH inputs of 2 * MW tiles of weights, of 256 / MW columns of codes, and their scales.
template <class F, int MW> struct Many {
  enum { depth = 128, columns = 256 / MW, tiles = 2 * MW, groups = depth / F::group, stages = 4 };
  static CANON_HD int weights(int block) { return tiles * groups * block; }
  static CANON_HD int stage(int block) { return weights(block) + columns * depth + groups * columns * 8; }
  static CANON_HD int memory(int block) { int ring = stages * stage(block), inner = columns * (MW * 16 + 4) * 4; return ring > inner ? ring : inner; }
};

// Outputs of 2 * MW tiles from tile0 (for UP: MW tiles of gate and of up) by columns from column0. 8 warps: MW along outputs,
// 8 / MW along rows.
template <class F, int KIND, int MW> __device__ __forceinline__ void product_many(const product &p, int tile0, int column0) {
  using M = Many<F, MW>;
  extern __shared__ __align__(128) uint8_t memory[];
  const int groups = p.m.groups, cols = groups * F::group, block = F::codes + 16 * covey_form_bytes(p.m.scale_form), tiles = covey_ceil(p.m.rows, 16);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp % MW, wn = warp / MW, stage_bytes = M::stage(block), weights = M::weights(block);
  const int stages = covey_ceil(groups, M::groups), columns = p.n - column0 < M::columns ? p.n - column0 : M::columns;

  auto load = [&](int s) {
    uint8_t *to = memory + s % M::stages * stage_bytes;
    const int g0 = s * M::groups, here = groups - g0 < M::groups ? groups - g0 : M::groups, strip = here * block / 16;
    for (int i = threadIdx.x; i < M::tiles * strip; i += 256) {
      int t = i / strip, b = i % strip, tile = KIND == PRODUCT_UP ? tile0 + t / 2 : tile0 + t;
      const uint8_t *w = KIND == PRODUCT_UP && (t & 1) ? p.w2 : p.w;
      if (tile < tiles) copy16(to + t * M::groups * block + b * 16, w + ((int64_t)tile * groups + g0) * block + b * 16);
    }
    uint8_t *q = to + weights;
    const int pieces = here * F::group / 16;
    for (int i = threadIdx.x; i < columns * pieces; i += 256) {
      int c = i / pieces, b = i % pieces * 16;
      copy16(q + ((b / F::chunk) * M::columns + c) * F::chunk + b % F::chunk, p.x.q + (int64_t)row_in(p, column0 + c) * cols + g0 * F::group + b);
    }
    float *scale = (float *)(q + M::columns * M::depth);
    int32_t *sum = (int32_t *)(scale + M::groups * M::columns);
    for (int i = threadIdx.x; i < columns * here; i += 256) {
      int c = i % columns, g = i / columns;
      int64_t at = (int64_t)row_in(p, column0 + c) * groups + g0 + g;
      copy4(scale + g * M::columns + c, p.x.scale + at);
      copy4(sum + g * M::columns + c, p.x.sum + at);
    }
  };

  float acc[2][4][4], tot[2][4][4];
  #pragma unroll
  for (int i = 0; i < 32; i++) { ((float *)acc)[i] = 0; ((float *)tot)[i] = 0; }
  const int mine = columns - wn * 32, eights = mine <= 0 ? 0 : mine >= 32 ? 4 : (mine + 7) / 8;
  #pragma unroll
  for (int s = 0; s < M::stages - 1; s++) { if (s < stages) load(s); copies_commit(); }
  for (int s = 0; s < stages; s++) {
    copies_wait<M::stages - 2>();
    __syncthreads();
    if (s + M::stages - 1 < stages) load(s + M::stages - 1);
    copies_commit();
    const uint8_t *from = memory + s % M::stages * stage_bytes;
    const int8_t *q = (const int8_t *)from + weights;
    const float *scale = (const float *)(q + M::columns * M::depth);
    const int32_t *sum = (const int32_t *)(scale + M::groups * M::columns);
    #pragma unroll
    for (int g = 0; g < M::groups; g++) {
      if (s * M::groups + g >= groups) break;
      uint32_t a[2][F::chunks][F::steps][4];
      float2 sw[2];
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint8_t *at = from + ((wm * 2 + h) * M::groups + g) * block;
        #pragma unroll
        for (int k = 0; k < F::chunks; k++) F::weights(at, k, lane, a[h][k]);
        sw[h] = scale_pair_of(p.m.scale_form, at + F::codes, lane >> 2);
      }
      #pragma unroll
      for (int e = 0; e < 4; e++) {
        if (e < eights) {
          const int c = wn * 32 + e * 8;
          float2 sx = *(const float2 *)(scale + g * M::columns + c + (lane & 3) * 2);
          int2 sums = *(const int2 *)(sum + g * M::columns + c + (lane & 3) * 2);
          int32_t s0 = pair_of<F::form>(0, sums.x).start, s1 = pair_of<F::form>(0, sums.y).start;
          int32_t d[2][4] = {{s0, s1, s0, s1}, {s0, s1, s0, s1}};
          #pragma unroll
          for (int k = 0; k < F::chunks; k++) {
            uint32_t b[F::steps][2];
            F::codes_of(q + ((g * F::chunks + k) * M::columns + c + (lane >> 2)) * F::chunk, lane & 3, b);
            #pragma unroll
            for (int h = 0; h < 2; h++)
              #pragma unroll
              for (int i = 0; i < F::steps; i++) F::mma(d[h], a[h][k][i], b[i], d[h]);
          }
          #pragma unroll
          for (int h = 0; h < 2; h++) {
            acc[h][e][0] = fmaf(sum_of(d[h][0]), sw[h].x * sx.x, acc[h][e][0]);
            acc[h][e][1] = fmaf(sum_of(d[h][1]), sw[h].x * sx.y, acc[h][e][1]);
            acc[h][e][2] = fmaf(sum_of(d[h][2]), sw[h].y * sx.x, acc[h][e][2]);
            acc[h][e][3] = fmaf(sum_of(d[h][3]), sw[h].y * sx.y, acc[h][e][3]);
          }
        }
      }
    }
    if ((s + 1) * M::depth % CANON_SEGMENT == 0 || s + 1 == stages) {
      #pragma unroll
      for (int i = 0; i < 32; i++) { ((float *)tot)[i] = ((float *)tot)[i] + ((float *)acc)[i]; ((float *)acc)[i] = 0; }
    }
  }
  copies_wait<0>();
  __syncthreads();
  if (KIND == PRODUCT_UP) {
    const int width = MW * 16;
    float *inner = (float *)memory;
    #pragma unroll
    for (int e = 0; e < 4; e++)
      #pragma unroll
      for (int i = 0; i < 4; i++)
        if (e < eights) inner[(wn * 32 + e * 8 + (lane & 3) * 2 + (i & 1)) * (width + 4) + wm * 16 + (i >> 1) * 8 + (lane >> 2)] = canon_siluf(tot[0][e][i]) * tot[1][e][i];
    __syncthreads();
    store_inner<F, MW * 16>(p, inner, columns, column0, tile0 * 16, warp, 8, lane);
    return;
  }
  #pragma unroll
  for (int h = 0; h < 2; h++)
    #pragma unroll
    for (int e = 0; e < 4; e++)
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        int c = wn * 32 + e * 8 + (lane & 3) * 2 + (i & 1), out = (tile0 + wm * 2 + h) * 16 + (i >> 1) * 8 + (lane >> 2);
        if (c >= columns || out >= p.m.rows) continue;
        float v = tot[h][e][i];
        p.y[(int64_t)row_out(p, column0 + c) * p.stride + out] = p.bias ? v + p.bias[out] : v;
      }
}
