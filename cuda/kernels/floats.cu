// Dense products with float weights (rule 3): CANON_OP_MATMUL, and CANON_OP_HEADS with blockIdx.z as the head.
//
//   few   up to FLOAT_ROWS rows a block, eight lanes of the rule a thread for large matrices, bound by reading them; one for small ones
//         (routers), where more warps matter more.
//   many  a warp holds 8 outputs by 8 rows, its lanes are those of the rule: 64 multiply-adds for 16 loads.
#include "floats.cuh"

struct float_product {
  const uint8_t *w;                // [outputs, cols]
  const float *x, *bias;           // first row; [outputs] or null
  float *y;
  int64_t x_stride, y_stride;
  int32_t outputs, cols;
};
// Of the operation's rows from row0 on; head is a part of CANON_OP_HEADS.
static __device__ __forceinline__ float_product float_product_of(const canon_op &op, int row0, int head) {
  float_product v;
  const bool heads = op.kind == CANON_OP_HEADS;
  v.cols = op.m.cols;
  v.outputs = heads ? op.m.rows / op.i[0] : op.m.rows;
  v.w = op.m.codes + (int64_t)head * v.outputs * v.cols * covey_form_bytes(op.m.form);
  v.bias = op.vec;
  v.x_stride = op.src.stride; v.y_stride = op.dst.stride;
  v.x = row_of(op.src, row0) + (heads ? (int64_t)head * (op.src.width / op.i[0]) + op.i[2] : 0);
  v.y = row_of(op.dst, row0) + (heads ? (int64_t)head * (op.dst.width / op.i[0]) + op.i[1] : 0);
  return v;
}
// check: label + 1 of a fault where a result is not finite, 0 = none.
static __device__ __forceinline__ void store_output(const canon_op &op, const covey_program *p, const float_product &v, int row0, int r, int o, float t, int check) {
  if (v.bias) t = t + v.bias[o];
  v.y[r * v.y_stride + o] = t;
  if (check && !canon_finite(t)) fault(p, op.dst.logits, row0 + r, CANON_FAULT_NONFINITE, check - 1);
}

// grid (outputs / EACH / warps, rows / ROWS, heads).
template <int FORM, int EACH, int ROWS> static __device__ __forceinline__ void floats_few(const canon_op &op, const covey_program *p, int check) {
  using sums = float_sums<FORM, EACH, ROWS>;
  __shared__ __align__(16) float xs[ROWS][FLOAT_DEPTH];
  __shared__ float scales[FORM == CANON_FP8 ? FLOAT_BLOCKS : 1];
  const int row0 = blockIdx.y * ROWS, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, q = lane % sums::threads, o0 = blockIdx.x * (blockDim.x >> 5) * sums::outputs;
  const int o = o0 + warp * sums::outputs + lane / sums::threads;
  float_product v = float_product_of(op, row0, blockIdx.z);
  const uint8_t *w = v.w + (int64_t)at_most(o, v.outputs - 1) * v.cols * sums::size;
  sums s;
  s.begin(w, v.cols, q);
  if (FORM == CANON_FP8) float_scales(op.m, op.m.scales, o0, scales);
  wait_for_previous();
  let_next_start();
  const int rows = at_most(rows_of(p, op.dst.logits) - row0, ROWS);
  if (rows <= 0) return;
  float out[ROWS];
  s.run(w, v.cols, rows, q, [&](int r) { return v.x + r * v.x_stride; }, xs, scales, out);
  if (q || o >= v.outputs) return;
  #pragma unroll
  for (int r = 0; r < ROWS; r++) if (r < rows) store_output(op, p, v, row0, r, o, out[r], check);
}

// grid (outputs / 8, rows / 64, heads), 256 threads.
template <int FORM> static __device__ __forceinline__ void floats_many(const canon_op &op, const covey_program *p, int check) {
  constexpr int size = FORM == CANON_F32 ? 4 : FORM == CANON_FP8 ? 1 : 2;
  __shared__ float scales[FORM == CANON_FP8 ? FLOAT_BLOCKS : 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row0 = blockIdx.y * 64 + warp * 8, o0 = blockIdx.x * 8;
  if (FORM == CANON_FP8) { float_scales(op.m, op.m.scales, o0, scales); __syncthreads(); }
  wait_for_previous();
  let_next_start();
  const int rows = at_most(rows_of(p, op.dst.logits) - row0, 8);
  if (rows <= 0) return;
  float_product v = float_product_of(op, row0, blockIdx.z);
  float acc[64];
  const uint8_t *w[8];
  const float *x[8];
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    w[i] = v.w + (int64_t)at_most(o0 + i, v.outputs - 1) * v.cols * size;
    x[i] = v.x + at_most(i, rows - 1) * v.x_stride;
  }
  float2 total = make_float2(0, 0);
  const int width = FORM == CANON_FP8 ? FLOAT_TURNS * 32 : v.cols;
  for (int c0 = 0; c0 < v.cols; c0 += width) {
    #pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = 0;
    #pragma unroll 2
    for (int c = c0 + lane; c < at_most(c0 + width, v.cols); c += 32) {
      float f[8], in[8];
      #pragma unroll
      for (int i = 0; i < 8; i++) { f[i] = float_of<FORM>(w[i], c); in[i] = __ldcg(x[i] + c); }
      #pragma unroll
      for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int r = 0; r < 8; r++) acc[i * 8 + r] = canon_fmaf(f[i], in[r], acc[i * 8 + r]);
    }
    __syncwarp();
    float2 t = float_trees(acc);
    if (FORM != CANON_FP8) total = t;
    else {
      const float scale = scales[c0 / width];
      total = make_float2(canon_fmaf(scale, t.x, total.x), canon_fmaf(scale, t.y, total.y));
    }
  }
  const int o = o0 + lane / 4, r = lane % 4 * 2;
  if (o >= v.outputs) return;
  if (r < rows) store_output(op, p, v, row0, r, o, total.x, check);
  if (r + 1 < rows) store_output(op, p, v, row0, r + 1, o, total.y, check);
}

#define COVEY_WIDE(NAME, FORM)                                                                                                                                               \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_wide1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 8, 1>(op, p, check); }   \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_wide8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 8, FLOAT_ROWS>(op, p, check); } \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_many<FORM>(op, p, check); }
#define COVEY_LANES(NAME, FORM)                                                                                                                                              \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_lane1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 1, 1>(op, p, check); }   \
  extern "C" __global__ __launch_bounds__(256) void covey_floats_lane8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_few<FORM, 1, FLOAT_ROWS>(op, p, check); }
COVEY_WIDE(f32, CANON_F32)
COVEY_WIDE(f16, CANON_F16)
COVEY_WIDE(bf16, CANON_BF16)
COVEY_WIDE(fp8, CANON_FP8)
COVEY_LANES(f32, CANON_F32)
COVEY_LANES(f16, CANON_F16)
COVEY_LANES(bf16, CANON_BF16)
