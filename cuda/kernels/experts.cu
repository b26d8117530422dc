// Experts with many rows each: gate, up, what lies between them and down, and quantisation in one launch, down in the next, in
// tensor-core tiles of 64 rows; combination in rank order is another kernel's. The rows of a step are grouped by expert (covey_item).
//
//   grid (tiles of outputs / 4 or 8, column tiles of all items)
//
// routed 0: the shared expert with all rows (one item). Needs records whose three matrices have this form and group.
#include "experts.cuh"

template <class F> struct Up { enum { mw = F::group == 128 ? 8 : 4 }; };   // whole groups of down

// The y-th column tile of the items. All lanes of a warp call it.
__device__ __forceinline__ covey_item item_of_tile(const canon_op &op, const covey_program *p, int routed, int y, int columns, int *column0) {
  const int lane = threadIdx.x & 31, n = routed ? __ldcg(p->item_n) : 1;
  for (int base = 0; base < n; base += 32) {
    covey_item it = base + lane < n ? item_at(op, p, routed, base + lane) : covey_item{-1, 0, 0};
    int tiles = (it.n + columns - 1) / columns, before = tiles;
    #pragma unroll
    for (int h = 1; h < 32; h <<= 1) { int v = __shfl_up_sync(0xffffffffu, before, h); if (lane >= h) before += v; }
    int total = __shfl_sync(0xffffffffu, before, 31);
    if (y < total) {
      int owner = __ffs(__ballot_sync(0xffffffffu, before > y)) - 1;
      int start = __shfl_sync(0xffffffffu, before - tiles, owner);
      *column0 = (y - start) * columns;
      return covey_item{__shfl_sync(0xffffffffu, it.expert, owner), __shfl_sync(0xffffffffu, it.start, owner), __shfl_sync(0xffffffffu, it.n, owner)};
    }
    y -= total;
  }
  return covey_item{-1, 0, 0};
}

template <class F, bool DOWN> __device__ __forceinline__ void experts_many(const canon_op &op, const covey_program *p, int routed) {
  constexpr int mw = DOWN ? 4 : Up<F>::mw;
  int column0 = 0;
  wait_for_previous();
  let_next_start();
  covey_item it = item_of_tile(op, p, routed, blockIdx.y, Many<F, mw>::columns, &column0);
  if (it.n == 0) return;
  product_many<F, DOWN ? PRODUCT_DOWN : PRODUCT_UP, mw>(expert_product(op, p, routed, DOWN, (const uint8_t *)(routed ? op.table[it.expert] : op.shared_block), it.start, it.n), blockIdx.x * (DOWN ? 2 * mw : mw), column0);
}

#define COVEY_EXPERTS(NAME, FORM, GROUP)                                                                                                                        \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_up_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) {          \
    experts_many<Form<FORM, GROUP, CANON_F16>, false>(op, p, routed);                                                                                           \
  }                                                                                                                                                             \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_down_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) {        \
    experts_many<Form<FORM, GROUP, CANON_F16>, true>(op, p, routed);                                                                                            \
  }
COVEY_EXPERTS(int4_g64, CANON_INT4, 64)
#ifndef COVEY_ONE_FORM
COVEY_EXPERTS(int4_g32, CANON_INT4, 32)
COVEY_EXPERTS(int4_g128, CANON_INT4, 128)
COVEY_EXPERTS(int8_g32, CANON_INT8, 32)
COVEY_EXPERTS(int8_g64, CANON_INT8, 64)
COVEY_EXPERTS(int8_g128, CANON_INT8, 128)
COVEY_EXPERTS(mxfp4_g32, CANON_MXFP4, 32)
#endif
