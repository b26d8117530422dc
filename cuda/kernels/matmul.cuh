// Products of quantised rows by rule 2 for several rows: two shapes of the same arithmetic.
//
//   few   up to 8 rows. A warp takes a segment of 16 outputs from device memory into registers; a block adds its segments in
//         ascending order. Bound by reading the weights once.
//   many  any number of rows. A warp holds 2 x 16 outputs by 32 rows; weights, codes and scales pass through a ring of
//         asynchronous copies. Each 16 x 8 sums of a group cost 12 float operations beside the 2 to 4 tensor instructions, so
//         it is bound by issuing instructions.
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
  float *y, *sum;                  // [out, stride] for DENSE and DOWN; sum, if not null: += y (few rows only)
  int64_t stride, sum_stride;
  int32_t tiles, most;             // few rows: tiles of a block where the kernel does not say; for how many shared memory was asked for
  const float *bias, *bias2;       // [outputs] or null; bias2: of up
  int32_t gated;                   // for UP: canon_gated's kind and limit
  float limit;
  covey_codes h;                   // codes of what UP makes of gate and up, padded groups of down
  int32_t h_groups;
};

__device__ __forceinline__ float gated(const product &p, float gate, float up, int32_t out) {
  if (p.bias && out < p.m.rows) gate = gate + p.bias[out];
  if (p.bias2 && out < p.m.rows) up = up + p.bias2[out];
  return canon_gated(p.gated, gate, up, p.limit);
}

__device__ __forceinline__ int32_t row_in(const product &p, int i) { return p.in ? __ldcg(p.in + i) : i; }
__device__ __forceinline__ int32_t row_out(const product &p, int i) { return p.out ? __ldcg(p.out + i) : i; }

// Codes of [columns][WIDTH] inner values in shared memory (column stride WIDTH + 4): WIDTH is whole groups, first is the
// first inner value; row(column) is where a column goes. Whole warps call it.
template <class F, int WIDTH, class ROW> __device__ __forceinline__ void store_inner(const product &p, const float *values, int columns, int column0, int first, int warp, int warps, int lane, ROW row_of) {
  const int per = WIDTH / 8, inner = p.m.rows;
  for (int at = warp * 32; at < columns * per; at += warps * 32) {
    int i = at + lane, c = i / per, j = i % per * 8;
    float v[8], scale;
    int32_t sum;
    #pragma unroll
    for (int k = 0; k < 8; k++) v[k] = i < columns * per && first + j + k < inner ? values[c * (WIDTH + 4) + j + k] : 0.0f;
    uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
    if (i >= columns * per || column0 + c >= p.n || first + j >= p.h_groups * F::group) continue;
    int64_t row = row_of(column0 + c);
    *(uint2 *)(p.h.q + row * p.h_groups * F::group + first + j) = codes;
    if (j % F::group == 0) { p.h.scale[row * p.h_groups + (first + j) / F::group] = scale; p.h.sum[row * p.h_groups + (first + j) / F::group] = sum; }
  }
}

// ---- few rows ----------------------------------------------------------------------------------------------------------

// A segment of 16 outputs by 8 rows in two parts, so that its weights can be on their way before the rows are there.
template <class F> struct segment_few {
  enum { chunks = CANON_SEGMENT / F::chunk, loads = F::chunk * (F::four ? 8 : 16) / 512 };
  uint4 w[chunks * (F::chunk == 32 && F::four ? 1 : loads)];
  uint2 scale[F::segment];
  // n groups of the segment at blocks in device memory.
  __device__ __forceinline__ void load(const uint8_t *blocks, int block, int scale_form, int n, int lane) {
    #pragma unroll
    for (int i = 0; i < F::segment; i++) {
      if (i < n) {
        const uint8_t *at = blocks + i * block;
        #pragma unroll
        for (int k = 0; k < F::chunks; k++) {
          const int c = i * F::chunks + k;
          if (F::four && F::chunk == 32) { uint2 v = __ldcs((const uint2 *)(at + lane * 8)); w[c].x = v.x; w[c].y = v.y; }
          else if (F::four) w[c] = __ldcs((const uint4 *)(at + k * 512 + lane * 16));
          else {
            #pragma unroll
            for (int t = 0; t < F::steps; t++) w[c * F::steps + t] = __ldcs((const uint4 *)(at + (k * F::steps + t) * 512 + lane * 16));
          }
        }
        if (F::form == CANON_MXFP4) scale[i].x = __ldcs((const uint16_t *)(at + F::codes) + (lane >> 2));
        else if (scale_form == CANON_F32) scale[i] = __ldcs((const uint2 *)(at + F::codes) + (lane >> 2));
        else scale[i].x = __ldcs((const uint32_t *)(at + F::codes) + (lane >> 2));
      }
    }
  }
  // codes: shared memory, the lane's row at the segment's first input; pairs [group][8]. The sums are of outputs g, g + 8
  // (acc[0..1], acc[2..3]) and rows 2t, 2t + 1.
  __device__ __forceinline__ void multiply(int scale_form, const int8_t *codes, const covey_pair *pairs, int n, int lane, float acc[4]) const {
    #pragma unroll
    for (int i = 0; i < 4; i++) acc[i] = 0;
    #pragma unroll
    for (int i = 0; i < F::segment; i++) {
      if (i < n) {
        float4 x = *(const float4 *)&pairs[i * FEW_ROWS + (lane & 3) * 2];
        int32_t s0 = __float_as_int(x.y), s1 = __float_as_int(x.w), d[4] = {s0, s1, s0, s1};
        #pragma unroll
        for (int k = 0; k < F::chunks; k++) {
          uint32_t b[F::steps][2];
          F::codes_of(codes + i * F::group + k * F::chunk, lane & 3, b);
          #pragma unroll
          for (int t = 0; t < F::steps; t++) {
            const int c = i * F::chunks + k;
            uint32_t a[4];
            if (F::four) {
              F::unpack(t ? w[c].z : w[c].x, t ? w[c].w : w[c].y, a);
            } else {
              const uint4 &v = w[c * F::steps + t];
              a[0] = v.x; a[1] = v.y; a[2] = v.z; a[3] = v.w;
            }
            F::mma(d, a, b[t], d);
          }
        }
        float2 s = F::form == CANON_MXFP4 ? half_powers(scale[i].x) : scale_pair_in(scale_form, scale[i]);
        acc[0] = fmaf(sum_of(d[0]), s.x * x.x, acc[0]);
        acc[1] = fmaf(sum_of(d[1]), s.x * x.z, acc[1]);
        acc[2] = fmaf(sum_of(d[2]), s.y * x.x, acc[2]);
        acc[3] = fmaf(sum_of(d[3]), s.y * x.z, acc[3]);
      }
    }
  }
};

CANON_FN int32_t few_stride(int32_t cols) { return (cols + 127) / 128 * 128 + 64; }   // rows of codes fall into other banks
// Shared memory of a block: codes, pairs, sums of segments.
CANON_FN int32_t few_memory(int32_t groups, int32_t group, int32_t tiles, int32_t rows) {
  int32_t segments = covey_ceil(groups * group, CANON_SEGMENT);
  return rows * few_stride(groups * group) + groups * FEW_ROWS * 8 + tiles * segments * 16 * FEW_ROWS * 4;
}

// Codes of p.n rows into shared memory, as a quantisation left them: q [row][stride], pairs [group][FEW_ROWS]. Whole blocks.
template <class F> __device__ __forceinline__ void read_codes(const product &p, int8_t *q, int stride, covey_pair *pairs) {
  const int groups = p.m.groups, cols = groups * F::group, lane = threadIdx.x & 31;
  for (int r = threadIdx.x >> 5; r < p.n; r += blockDim.x >> 5) {   // a warp a row, all of it on its way at once
    const int8_t *from = p.x.q + (int64_t)row_in(p, r) * cols;
    for (int c = lane * 16; c < cols; c += 512) copy16(q + r * stride + c, from + c);
  }
  #pragma unroll 2
  for (int i = threadIdx.x; i < groups * FEW_ROWS; i += blockDim.x) {
    int r = i % FEW_ROWS, g = i / FEW_ROWS;
    covey_pair v = {0, COVEY_MAGIC};
    if (r < p.n) { int64_t at = (int64_t)row_in(p, r) * groups + g; v = pair_of<F::form>(__ldcg(p.x.scale + at), __ldcg(p.x.sum + at)); }
    pairs[i] = v;
  }
  copies_commit();
  copies_wait<0>();
}

// p.tiles tiles of 16 outputs from tile0. ready(q, stride, pairs) is called when weights have been asked for; it fills in the rows
// of p (n may be 0: nothing is to be done) and their codes.
template <class F, class READY> __device__ __forceinline__ void product_few(product &p, int tile0, READY ready) {
  COVEY_MEMORY(memory);
  const int warps = blockDim.x >> 5, groups = p.m.groups, cols = groups * F::group, stride = few_stride(cols), segments = covey_ceil(groups, F::segment);
  const int block = F::codes + 16 * covey_form_bytes(p.m.scale_form), tiles = covey_ceil(p.m.rows, 16);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, units = p.tiles * segments;
  segment_few<F> held;
  auto ask = [&](int u) {
    const int t = u / segments, first = u % segments * F::segment;
    if (tile0 + t < tiles) held.load(p.w + ((int64_t)(tile0 + t) * groups + first) * block, block, p.m.scale_form, min(groups - first, (int)F::segment), lane);
  };
  if (warp < units) ask(warp);
  // Codes first, of as many rows as there may be: where they end does not depend on the step.
  int8_t *q = (int8_t *)memory;
  covey_pair *pairs = (covey_pair *)(memory + p.most * stride);
  float *part = (float *)(pairs + groups * FEW_ROWS);
  ready(q, stride, pairs);
  if (p.n <= 0) return;
  __syncthreads();
  const int8_t *mine = q + ((lane >> 2) < p.n ? lane >> 2 : 0) * stride;
  #pragma unroll 1
  for (int u = warp; u < units; u += warps) {
    const int t = u / segments, s = u % segments, first = s * F::segment;
    if (u != warp) ask(u);
    if (tile0 + t >= tiles) continue;
    float acc[4];
    held.multiply(p.m.scale_form, mine + s * CANON_SEGMENT, pairs + first * FEW_ROWS, min(groups - first, (int)F::segment), lane, acc);
    float *to = part + u * 16 * FEW_ROWS + (lane >> 2) * FEW_ROWS + (lane & 3) * 2;
    *(float2 *)to = make_float2(acc[0], acc[1]);
    *(float2 *)(to + 8 * FEW_ROWS) = make_float2(acc[2], acc[3]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.tiles * 16 * FEW_ROWS; i += warps * 32) {
    const int row = i % 16, t = i / 16 % p.tiles, col = i / 16 / p.tiles, out = (tile0 + t) * 16 + row;
    if (col >= p.n || out >= p.m.rows) continue;
    const float *from = part + (t * segments * 16 + row) * FEW_ROWS + col;
    float v = 0;
    for (int s = 0; s < segments; s++) v = v + from[s * 16 * FEW_ROWS];
    if (p.bias) v = v + p.bias[out];
    p.y[row_out(p, col) * p.stride + out] = v;
    if (p.sum) {
      float *to = p.sum + row_out(p, col) * p.sum_stride + out;
      *to = __ldcg(to) + v;
    }
  }
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
  COVEY_MEMORY(memory);
  const int groups = p.m.groups, cols = groups * F::group, block = F::codes + 16 * covey_form_bytes(p.m.scale_form), tiles = covey_ceil(p.m.rows, 16);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wm = warp % MW, wn = warp / MW, stage_bytes = M::stage(block), weights = M::weights(block);
  const int stages = covey_ceil(groups, M::groups), columns = p.n - column0 < M::columns ? p.n - column0 : M::columns;

  // What a thread copies of each stage lies at the same places every time: offsets from the first stage, in registers.
  const int strip = M::groups * block, tail = (stages - 1) * M::groups;
  constexpr int w_copies = (M::tiles * M::groups * (F::codes + 64) / 16 + 255) / 256, q_copies = (M::columns * M::depth / 16 + 255) / 256;
  const uint8_t *w_from[w_copies];
  int w_at[w_copies];                        // place in the tile's strip; -1 = nothing to copy
  #pragma unroll
  for (int j = 0; j < w_copies; j++) {
    int i = (threadIdx.x + 256 * j) * 16, t = i / strip, tile = KIND == PRODUCT_UP ? tile0 + t / 2 : tile0 + t;
    w_at[j] = t < M::tiles && tile < tiles ? i % strip : -1;
    w_from[j] = (KIND == PRODUCT_UP && (t & 1) ? p.w2 : p.w) + (int64_t)tile * groups * block + i % strip;
  }
  const int8_t *q_from[q_copies];
  int q_to[q_copies], q_at[q_copies];        // place in the column's stage; -1 = nothing to copy
  #pragma unroll
  for (int j = 0; j < q_copies; j++) {
    int i = threadIdx.x + 256 * j, c = i / (M::depth / 16), b = i % (M::depth / 16) * 16;
    q_at[j] = c < columns ? b : -1;
    q_to[j] = ((b / F::chunk) * M::columns + c) * F::chunk + b % F::chunk;
    q_from[j] = c < columns ? p.x.q + (int64_t)row_in(p, column0 + c) * cols + b : 0;
  }
  const int s_column = threadIdx.x % M::columns, s_group = threadIdx.x / M::columns;
  const bool scales_here = s_column < columns && s_group < M::groups;
  const int64_t s_from = scales_here ? (int64_t)row_in(p, column0 + s_column) * groups + s_group : 0;

  auto load = [&](int s) {
    uint8_t *to = memory + s % M::stages * stage_bytes;
    const int g0 = s * M::groups, here = g0 == tail ? groups - g0 : M::groups;
    #pragma unroll
    for (int j = 0; j < w_copies; j++)
      if (w_at[j] >= 0 && w_at[j] < here * block) copy16(to + (threadIdx.x + 256 * j) * 16, w_from[j] + (int64_t)g0 * block);
    uint8_t *q = to + weights;
    #pragma unroll
    for (int j = 0; j < q_copies; j++)
      if (q_at[j] >= 0 && q_at[j] < here * F::group) copy16(q + q_to[j], q_from[j] + g0 * F::group);
    if (scales_here && s_group < here) {
      uint8_t *scale = q + M::columns * M::depth + threadIdx.x * 4;
      copy4(scale, p.x.scale + s_from + g0);
      copy4(scale + M::groups * M::columns * 4, p.x.sum + s_from + g0);
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
        sw[h] = F::form == CANON_MXFP4 ? half_powers(((const uint16_t *)(at + F::codes))[lane >> 2]) : scale_pair_of(p.m.scale_form, at + F::codes, lane >> 2);
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
        if (e < eights) {
          const int out = wm * 16 + (i >> 1) * 8 + (lane >> 2);
          inner[(wn * 32 + e * 8 + (lane & 3) * 2 + (i & 1)) * (width + 4) + out] = gated(p, tot[0][e][i], tot[1][e][i], tile0 * 16 + out);
        }
    __syncthreads();
    store_inner<F, MW * 16>(p, inner, columns, column0, tile0 * 16, warp, 8, lane, [&](int c) { return row_out(p, c); });
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
