// Dense products of quantised rows (rule 2): dst = src m^T + vec, for the codes that a quantisation left in p->codes.
//
//   few   grid (tiles of outputs / 2, rows / 8); bound by reading the weights once for 8 rows
//   many  grid (tiles of outputs / 8, rows / 64)
#include "matmul.cuh"

enum { DENSE_WARPS = 8, DENSE_TILES = 2 };

__device__ __forceinline__ product dense_weights(const canon_op &op) {
  product v;
  v.m = op.m;
  v.w = op.m.codes; v.w2 = 0;
  v.in = v.out = 0;
  v.stride = op.dst.stride;
  v.bias = op.vec;
  v.h_groups = 0;
  v.n = 0;
  return v;
}
__device__ __forceinline__ void dense_rows(product &v, const canon_op &op, const covey_program *p, int row0, int rows, int group) {
  int n = op.dst.logits ? p->step.logit_rows : p->step.rows;
  v.x.q = p->codes.q + (int64_t)row0 * op.m.groups * group;
  v.x.scale = p->codes.scale + (int64_t)row0 * op.m.groups;
  v.x.sum = p->codes.sum + (int64_t)row0 * op.m.groups;
  v.n = min(rows, n - row0);
  v.y = op.dst.data + (int64_t)row0 * op.dst.stride;
}

#define COVEY_MATMUL(NAME, FORM, GROUP)                                                                                                             \
  extern "C" __global__ __launch_bounds__(DENSE_WARPS * 32) void covey_matmul_few_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { \
    product v = dense_weights(op);                                                                                                                    \
    let_next_start();                                                                                                                                 \
    product_few<Form<FORM, GROUP, CANON_F16>, PRODUCT_DENSE, DENSE_TILES, DENSE_WARPS>(v, blockIdx.x * DENSE_TILES, [&] {                                 \
      wait_for_previous();                                                                                                                            \
      dense_rows(v, op, p, blockIdx.y * FEW_ROWS, FEW_ROWS, GROUP);                                                                                      \
    });                                                                                                                                               \
  }                                                                                                                                                   \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_matmul_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p) {         \
    product v = dense_weights(op);                                                                                                                    \
    wait_for_previous();                                                                                                                              \
    dense_rows(v, op, p, blockIdx.y * 64, 64, GROUP);                                                                                                    \
    if (v.n > 0) product_many<Form<FORM, GROUP, CANON_F16>, PRODUCT_DENSE, 4>(v, blockIdx.x * 8, 0);                                                     \
  }
COVEY_MATMUL(int4_g64, CANON_INT4, 64)
COVEY_MATMUL(int8_g32, CANON_INT8, 32)
#ifndef COVEY_ONE_FORM
COVEY_MATMUL(int4_g32, CANON_INT4, 32)
COVEY_MATMUL(int4_g128, CANON_INT4, 128)
COVEY_MATMUL(int8_g64, CANON_INT8, 64)
COVEY_MATMUL(int8_g128, CANON_INT8, 128)
#endif
