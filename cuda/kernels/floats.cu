// Products with float weights (rule 3). Every sum has 32 lanes of the rule; what differs is who holds them.
//
//   few   up to FLOAT_ROWS rows a block. A thread holds EACH neighbouring lanes of the rule, 32 / EACH threads an output, so that
//         one load brings EACH weights and a warp reads 64 to 128 bytes of several outputs at once: EACH 8 for large matrices,
//         bound by reading them; EACH 1 for small ones (routers), where more warps matter more. Inputs pass through shared
//         memory in pieces of FLOAT_DEPTH.
//   many  a warp holds 8 outputs by 8 rows, its lanes are those of the rule: 64 multiply-adds for 16 loads.
//
// Twin: canon_dot. CANON_OP_MATMUL, and CANON_OP_HEADS with blockIdx.z as the head.
#include "device.h"
#include "ptx.cuh"

enum { FLOAT_ROWS = 8, FLOAT_DEPTH = 1024, FLOAT_WARPS = 8 };

template <int FORM> static __device__ __forceinline__ float float_of(const uint8_t *w, int64_t i) {
  if (FORM == CANON_F32) return ((const float *)w)[i];
  return FORM == CANON_BF16 ? canon_from_bf16(((const uint16_t *)w)[i]) : halves(((const uint16_t *)w)[i]).x;
}
// EACH weights on their way: raw words, turned into floats when they are used.
template <int FORM, int EACH> struct float_words {
  uint4 a, b;
  __device__ __forceinline__ void load(const uint8_t *w) {
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
      else { float2 f = halves(w[i / 2 & 7]); v[i] = i & 1 ? f.y : f.x; }
    }
  }
};

struct float_product {
  const uint8_t *w;                // [outputs, cols]
  const float *x, *bias;           // first row; [outputs] or null
  float *y;
  int64_t x_stride, y_stride;
  int32_t outputs, cols, rows;
};
// Of the operation's rows from row0 on, at most `most`; head is a part of CANON_OP_HEADS.
static __device__ __forceinline__ float_product float_product_of(const canon_op &op, const covey_program *p, int row0, int most, int head) {
  float_product v;
  const bool heads = op.kind == CANON_OP_HEADS;
  v.cols = op.m.cols;
  v.outputs = heads ? op.m.rows / op.i[0] : op.m.rows;
  v.w = op.m.codes + (int64_t)head * v.outputs * v.cols * covey_form_bytes(op.m.form);
  v.bias = op.vec;
  v.x_stride = op.src.stride; v.y_stride = op.dst.stride;
  v.x = row_of(op.src, row0) + (heads ? (int64_t)head * (op.src.width / op.i[0]) + op.i[2] : 0);
  v.y = row_of(op.dst, row0) + (heads ? (int64_t)head * (op.dst.width / op.i[0]) + op.i[1] : 0);
  v.rows = 0;
  return v;
}

// check: label + 1 of a fault where a result is not finite, 0 = none.
template <int FORM, int EACH, int ROWS> static __device__ __forceinline__ void floats_few(const canon_op &op, const covey_program *p, int check) {
  constexpr int threads = 32 / EACH, outputs = 32 / threads, ahead = ROWS > 1 ? 2 : EACH == 1 ? 16 : 4, size = FORM == CANON_F32 ? 4 : 2;
  __shared__ __align__(16) float xs[ROWS][FLOAT_DEPTH];
  float_product v = float_product_of(op, p, blockIdx.y * ROWS, ROWS, blockIdx.z);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, q = lane % threads, o = (blockIdx.x * (blockDim.x >> 5) + warp) * outputs + lane / threads;
  const uint8_t *w = v.w + ((int64_t)at_most(o, v.outputs - 1) * v.cols + q * EACH) * size;
  const int whole = v.cols / 32;
  float_words<FORM, EACH> next[ahead];
  #pragma unroll
  for (int j = 0; j < ahead; j++) if (j < whole) next[j].load(w + (int64_t)j * 32 * size);
  wait_for_previous();
  let_next_start();
  const int rows = at_most(rows_of(p, op.dst.logits) - (int)blockIdx.y * ROWS, ROWS);
  if (rows <= 0) return;
  float acc[ROWS][EACH];
  #pragma unroll
  for (int r = 0; r < ROWS; r++)
    #pragma unroll
    for (int e = 0; e < EACH; e++) acc[r][e] = 0;
  for (int c0 = 0; c0 < v.cols; c0 += FLOAT_DEPTH) {
    const int depth = at_most(v.cols - c0, FLOAT_DEPTH);
    if (c0) __syncthreads();
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
      for (int i = threadIdx.x; i < depth; i += blockDim.x) xs[r][i] = r < rows ? __ldcg(v.x + r * v.x_stride + c0 + i) : 0.0f;
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
      }
    }
    const int rest = v.cols - whole * 32;                  // a short last turn of the lanes
    if (rest && c0 + depth == v.cols) {
      #pragma unroll
      for (int e = 0; e < EACH; e++) {
        if (q * EACH + e >= rest) continue;
        const float f = float_of<FORM>(w, (int64_t)whole * 32 + e);
        #pragma unroll
        for (int r = 0; r < ROWS; r++) acc[r][e] = canon_fmaf(f, xs[r][whole * 32 - c0 + q * EACH + e], acc[r][e]);
      }
    }
  }
  // The tree: lanes l and l + 16, 8, 4, 2, 1; l = q * EACH + e.
  #pragma unroll
  for (int r = 0; r < ROWS; r++) {
    #pragma unroll
    for (int h = 16; h >= 1; h >>= 1) {
      #pragma unroll
      for (int e = 0; e < EACH; e++) {
        if (h >= EACH) acc[r][e] = acc[r][e] + __shfl_down_sync(FULL, acc[r][e], h / EACH);
        else if (e < h) acc[r][e] = acc[r][e] + acc[r][(e + h) % EACH];
      }
    }
    if (q == 0 && o < v.outputs && r < rows) {
      float t = acc[r][0];
      if (v.bias) t = t + v.bias[o];
      v.y[r * v.y_stride + o] = t;
      if (check && !canon_finite(t)) fault(p, op.dst.logits, blockIdx.y * ROWS + r, CANON_FAULT_NONFINITE, check - 1);
    }
  }
}

// grid (outputs / 8, rows / 64, heads), 256 threads.
template <int FORM> static __device__ __forceinline__ void floats_many(const canon_op &op, const covey_program *p, int check) {
  constexpr int size = FORM == CANON_F32 ? 4 : 2;
  wait_for_previous();
  let_next_start();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row0 = blockIdx.y * 64 + warp * 8, rows = at_most(rows_of(p, op.dst.logits) - row0, 8), o0 = blockIdx.x * 8;
  if (rows <= 0) return;
  float_product v = float_product_of(op, p, row0, 8, blockIdx.z);
  float acc[8][8];
  const uint8_t *w[8];
  const float *x[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    w[i] = v.w + (int64_t)at_most(o0 + i, v.outputs - 1) * v.cols * size;
    x[i] = v.x + at_most(i, rows - 1) * v.x_stride;
    #pragma unroll
    for (int r = 0; r < 8; r++) acc[i][r] = 0;
  }
  #pragma unroll 2
  for (int c = lane; c < v.cols; c += 32) {
    float f[8], in[8];
    #pragma unroll
    for (int i = 0; i < 8; i++) { f[i] = float_of<FORM>(w[i], c); in[i] = __ldcg(x[i] + c); }
    #pragma unroll
    for (int i = 0; i < 8; i++)
      #pragma unroll
      for (int r = 0; r < 8; r++) acc[i][r] = canon_fmaf(f[i], in[r], acc[i][r]);
  }
  __syncwarp();
  #pragma unroll
  for (int i = 0; i < 8; i++)
    #pragma unroll
    for (int r = 0; r < 8; r++) {
      float t = acc[i][r];
      #pragma unroll
      for (int h = 16; h >= 1; h >>= 1) t = t + __shfl_down_sync(FULL, t, h);
      if (lane == 0 && r < rows && o0 + i < v.outputs) {
        if (v.bias) t = t + v.bias[o0 + i];
        v.y[r * v.y_stride + o0 + i] = t;
        if (check && !canon_finite(t)) fault(p, op.dst.logits, row0 + r, CANON_FAULT_NONFINITE, check - 1);
      }
    }
}

#define COVEY_FLOATS(NAME, FORM)                                                                                                                                            \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_wide1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 8, 1>(op, p, check); }   \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_wide8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 8, FLOAT_ROWS>(op, p, check); } \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_lane1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 1, 1>(op, p, check); }   \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_lane8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 1, FLOAT_ROWS>(op, p, check); } \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_many<FORM>(op, p, check); }
COVEY_FLOATS(f32, CANON_F32)
COVEY_FLOATS(f16, CANON_F16)
COVEY_FLOATS(bf16, CANON_BF16)
