// Dense products with float weights (rule 3): CANON_OP_MATMUL, and CANON_OP_HEADS with blockIdx.z as the head.
//
// small is for few outputs (routers); one, four and many are for so many rows.
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

// grid (rows / TILE::block_rows, outputs / TILE::block_outs, heads): blocks that follow one another share weights in the second-level
// cache. Dynamic shared memory: TILE::memory. Rows of weights and of inputs begin at multiples of 16 bytes.
template <int FORM, class TILE> static __device__ __forceinline__ void floats_tile(const canon_op &op, const covey_program *p, int check) {
  COVEY_MEMORY(ring);
  __shared__ typename TILE::places at;
  __shared__ float scales[FORM == CANON_FP8 ? FLOAT_BLOCKS : 1];
  const int row0 = blockIdx.x * TILE::block_rows, o0 = blockIdx.y * TILE::block_outs, t = threadIdx.x;
  const float_product v = float_product_of(op, row0, blockIdx.z);
  for (int i = t; i < TILE::block_outs; i += TILE::threads) at.weights[i] = v.w + (int64_t)at_most(o0 + i, v.outputs - 1) * v.cols * TILE::size;
  if (FORM == CANON_FP8) float_scales(op.m, op.m.scales, o0, scales);
  __syncthreads();
  TILE::begin(ring, at, v.cols);
  wait_for_previous();
  let_next_start();
  const int rows = at_most(rows_of(p, op.dst.logits) - row0, TILE::block_rows);
  if (rows <= 0) return;
  for (int i = t; i < TILE::block_rows; i += TILE::threads) at.inputs[i] = v.x + at_most(i, rows - 1) * v.x_stride;
  __syncthreads();
  float out[TILE::mine];
  TILE::run(ring, at, v.cols, __shfl_sync(FULL, t >> 5, 0) / TILE::out_warps * TILE::rows < rows, scales, out);
  TILE::each(out, [&](int o, int r, float value) {
    if (r < rows && o0 + o < v.outputs) store_output(op, p, v, row0, r, o0 + o, value, check);
  });
}

#define COVEY_TILES(NAME, FORM)                                                                                                                                                              \
  extern "C" __global__ __launch_bounds__(128) void covey_floats_small_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_tile<FORM, float_small<FORM>>(op, p, check); }    \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_floats_one_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_tile<FORM, float_one<FORM>>(op, p, check); }     \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_floats_four_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_tile<FORM, float_four<FORM>>(op, p, check); }   \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_floats_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check) { floats_tile<FORM, float_many<FORM>>(op, p, check); }
COVEY_TILES(f32, CANON_F32)
COVEY_TILES(f16, CANON_F16)
COVEY_TILES(bf16, CANON_BF16)
COVEY_TILES(fp8, CANON_FP8)
