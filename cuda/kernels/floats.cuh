// Sums of products with float weights (rule 3): each has 32 lanes of the rule, and with FP8 each block of 128 inputs has its own, whose
// sum is added to the total by one multiply-add with the block's scale. Twin: canon_dot.
#pragma once
#include "device.h"
#include "ptx.cuh"

enum { FLOAT_ROWS = 8, FLOAT_DEPTH = 1024, FLOAT_TURNS = 4, FLOAT_BLOCKS = 192 };   // FP8: turns of the lanes in a block, most blocks of a row

template <int FORM> static __device__ __forceinline__ float float_of(const uint8_t *w, int64_t i) {
  if (FORM == CANON_F32) return ((const float *)w)[i];
  if (FORM == CANON_FP8) return canon_from_e4m3(w[i]);
  return FORM == CANON_BF16 ? canon_from_bf16(((const uint16_t *)w)[i]) : halves(((const uint16_t *)w)[i]).x;
}
// EACH weights on their way: raw words, turned into floats when they are used. FP8 has EACH 8.
template <int FORM, int EACH> struct float_words {
  uint4 a, b;
  __device__ __forceinline__ void load(const uint8_t *w) {
    if (FORM == CANON_FP8) { uint2 v = __ldcs((const uint2 *)w); a.x = v.x; a.y = v.y; return; }
    if (EACH == 1) a.x = FORM == CANON_F32 ? __ldcs((const uint32_t *)w) : __ldcs((const uint16_t *)w);
    else {
      a = __ldcs((const uint4 *)w);
      if (FORM == CANON_F32) b = __ldcs((const uint4 *)w + 1);
    }
  }
  __device__ __forceinline__ void get(float v[EACH]) const {
    if (EACH == 1) { v[0] = FORM == CANON_F32 ? __uint_as_float(a.x) : FORM == CANON_BF16 ? canon_from_bf16((uint16_t)a.x) : halves(a.x).x; return; }
    const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (FORM == CANON_F32) v[i] = __uint_as_float(w[i & 7]);
      else if (FORM == CANON_BF16) v[i] = __uint_as_float(i & 1 ? w[i / 2 & 7] & 0xffff0000u : w[i / 2 & 7] << 16);
      else { float2 f = FORM == CANON_FP8 ? e4m3s(w[i / 4] >> (i & 2) * 8) : halves(w[i / 2 & 7]); v[i] = i & 1 ? f.y : f.x; }
    }
  }
};

// The tree of lanes l and l + 16, 8, 4, 2, 1 where a thread holds EACH neighbouring lanes, l = q * EACH + e for thread q of 32 / EACH.
// With 8 of them each step gives one half of what is left to each partner. All threads of the output get the sum.
template <int EACH> static __device__ __forceinline__ float float_tree(const float v[EACH], int q) {
  float s[4];
  if (EACH == 1) return warp_tree(v[0]);
  #pragma unroll
  for (int e = 0; e < 4; e++) s[e] = (q & 2 ? v[(e + 4) % EACH] : v[e % EACH]) + __shfl_xor_sync(FULL, q & 2 ? v[e % EACH] : v[(e + 4) % EACH], 2);
  #pragma unroll
  for (int e = 0; e < 2; e++) { float give = q & 1 ? s[e] : s[e + 2], keep = q & 1 ? s[e + 2] : s[e]; s[e] = keep + __shfl_xor_sync(FULL, give, 1); }
  float give = q & 2 ? s[0] : s[1], t = q & 2 ? s[1] : s[0];
  t = t + __shfl_xor_sync(FULL, give, 2);
  t = t + __shfl_xor_sync(FULL, t, 1);
  return t + __shfl_xor_sync(FULL, t, 2);
}
// The same tree for 64 sums whose lanes are the warp's; lane l gets those of 2 l and 2 l + 1.
static __device__ __forceinline__ float2 float_trees(float v[64]) {
  const int lane = threadIdx.x & 31;
  #pragma unroll
  for (int h = 16; h >= 1; h >>= 1) {
    #pragma unroll
    for (int i = 0; i < 2 * h; i++) {
      const float low = v[i], high = v[i + 2 * h];
      v[i] = (lane & h ? high : low) + __shfl_xor_sync(FULL, lane & h ? low : high, h);
    }
  }
  return make_float2(v[0], v[1]);
}

// Scales of FP8 for outputs that share them, from `output` on: of each block of 128 inputs, into shared memory [FLOAT_BLOCKS].
static __device__ __forceinline__ void float_scales(const canon_matrix &m, const uint8_t *at, int output, float *scales) {
  const int64_t row = (int64_t)(output / m.block_rows) * m.blocks;
  for (int i = threadIdx.x; i < covey_ceil(m.cols, m.block_cols); i += blockDim.x) scales[i] = source_value(m.scale_form, at, row + (m.blocks == 1 ? 0 : i));
}

// Up to ROWS sums of one output. A thread holds EACH neighbouring lanes of the rule, 32 / EACH threads an output, so that one load
// brings EACH weights and a warp reads 32 to 128 bytes of several outputs at once.
template <int FORM, int EACH, int ROWS> struct float_sums {
  enum { threads = 32 / EACH, outputs = EACH, ahead = ROWS > 1 ? 2 : EACH == 1 ? 16 : 4, size = FORM == CANON_F32 ? 4 : FORM == CANON_FP8 ? 1 : 2 };
  float_words<FORM, EACH> next[ahead];

  // Asks for the first weights; w is where the output's weights begin.
  __device__ __forceinline__ void begin(const uint8_t *w, int cols, int q) {
    #pragma unroll
    for (int j = 0; j < ahead; j++) if (j < cols / 32) next[j].load(w + ((int64_t)j * 32 + q * EACH) * size);
  }
  // Rows come from row(r), r < rows, through xs [ROWS][FLOAT_DEPTH] in shared memory; scales as float_scales leaves them. All threads of
  // the block call it. Every thread of an output gets its sums.
  template <class ROW> __device__ __forceinline__ void run(const uint8_t *w, int cols, int rows, int q, ROW row, float (*xs)[FLOAT_DEPTH], const float *scales, float out[ROWS]) {
    const int whole = cols / 32;
    float acc[ROWS][EACH];
    w += q * EACH * size;
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
      out[r] = 0;
      #pragma unroll
      for (int e = 0; e < EACH; e++) acc[r][e] = 0;
    }
    for (int c0 = 0; c0 < cols; c0 += FLOAT_DEPTH) {
      const int depth = at_most(cols - c0, FLOAT_DEPTH);
      __syncthreads();
      #pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float *x = row(at_most(r, rows - 1)) + c0;
        for (int i = threadIdx.x; i < depth; i += blockDim.x) xs[r][i] = r < rows ? __ldcg(x + i) : 0.0f;
      }
      __syncthreads();
      const int first = c0 / 32, end = at_most(whole, first + FLOAT_DEPTH / 32);
      for (int b = first; b < end; b += ahead) {
        #pragma unroll
        for (int j = 0; j < ahead; j++) {
          if (b + j >= end) break;
          float f[EACH];
          next[j].get(f);
          if (b + j + ahead < whole) next[j].load(w + (int64_t)(b + j + ahead) * 32 * size);
          #pragma unroll
          for (int r = 0; r < ROWS; r++) {
            const float *x = &xs[r][(b + j - first) * 32 + q * EACH];
            float in[EACH];
            if (EACH == 1) in[0] = x[0];
            else {
              #pragma unroll
              for (int e = 0; e < EACH; e += 4) { float4 t = *(const float4 *)(x + e); in[e] = t.x; in[(e + 1) % EACH] = t.y; in[(e + 2) % EACH] = t.z; in[(e + 3) % EACH] = t.w; }
            }
            #pragma unroll
            for (int e = 0; e < EACH; e++) acc[r][e] = canon_fmaf(f[e], in[e], acc[r][e]);
          }
          if (FORM == CANON_FP8 && ((b + j + 1) % FLOAT_TURNS == 0 || b + j + 1 == whole)) {
            const float scale = scales[(b + j) / FLOAT_TURNS];
            #pragma unroll
            for (int r = 0; r < ROWS; r++) {
              out[r] = canon_fmaf(scale, float_tree<EACH>(acc[r], q), out[r]);
              #pragma unroll
              for (int e = 0; e < EACH; e++) acc[r][e] = 0;
            }
          }
        }
      }
      const int rest = cols - whole * 32;                    // a short last turn of the lanes; FP8 has none
      if (rest && c0 + depth == cols) {
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
          if (q * EACH + e >= rest) continue;
          const float f = float_of<FORM>(w, (int64_t)whole * 32 + e);
          #pragma unroll
          for (int r = 0; r < ROWS; r++) acc[r][e] = canon_fmaf(f, xs[r][whole * 32 - c0 + q * EACH + e], acc[r][e]);
        }
      }
    }
    if (FORM == CANON_FP8) return;
    #pragma unroll
    for (int r = 0; r < ROWS; r++) out[r] = float_tree<EACH>(acc[r], q);
  }
};
