// Experts for several rows: gate, up, what lies between them and down, and quantisation in one launch, down in the next; combination in rank
// order is another kernel's. The rows of a step are grouped by expert (covey_item). Experts with few rows go to blocks that
// read weights once for up to 8 rows, the others to tensor-core tiles; both launches see all items and leave the other's.
//
//   few   grid (tiles of outputs / COVEY_FEW_UP or _DOWN, items), any rows up to `most` an item
//   many  grid (tiles of outputs / 4 or 8, items * column tiles), items with more than `least` rows
//
// routed 0: the shared expert with all rows (one item). Needs records whose three matrices have this form and group.
#include "matmul.cuh"

enum { FEW_WARPS_UP = 16, FEW_WARPS_DOWN = 8, FEW_TILES_DOWN = 2 };
template <class F> struct Up { enum { tiles = F::group == 128 ? 8 : 4, mw = tiles }; };   // whole groups of down

__device__ __forceinline__ covey_item item_at(const canon_op &op, const covey_program *p, int routed, int i) {
  if (!routed) return covey_item{-1, 0, i == 0 ? (op.dst.logits ? p->step.logit_rows : p->step.rows) : 0};
  if (i >= __ldcg(p->item_n)) return covey_item{-1, 0, 0};
  const covey_item *it = p->items + i;
  return covey_item{__ldcg(&it->expert), __ldcg(&it->start), __ldcg(&it->n)};
}
// The y-th column tile of the items with more than `least` rows. All lanes of a warp call it.
__device__ __forceinline__ covey_item item_of_tile(const canon_op &op, const covey_program *p, int routed, int y, int columns, int least, int *column0) {
  const int lane = threadIdx.x & 31, n = routed ? __ldcg(p->item_n) : 1;
  for (int base = 0; base < n; base += 32) {
    covey_item it = base + lane < n ? item_at(op, p, routed, base + lane) : covey_item{-1, 0, 0};
    int tiles = it.n > least ? (it.n + columns - 1) / columns : 0, before = tiles;
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

__device__ __forceinline__ const float *bias_at(const uint8_t *record, const canon_matrix &m) { return m.bias_at ? (const float *)(record + m.bias_at) : 0; }

__device__ __forceinline__ product expert_product(const canon_op &op, const covey_program *p, int routed, bool down, const covey_item &it) {
  const canon_record &r = routed ? op.routed : op.shared;
  const uint8_t *record = (const uint8_t *)(routed ? op.table[it.expert] : op.shared_block);
  product v;
  v.m = down ? r.down : r.gate;
  v.w = record + (down ? r.down.codes_at : r.gate.codes_at);
  v.w2 = record + r.up.codes_at;
  v.n = it.n;
  v.bias = bias_at(record, down ? r.down : r.gate); v.bias2 = bias_at(record, r.up);
  v.gated = op.i[2]; v.limit = op.f[0];
  v.sum = 0;
  v.most = FEW_ROWS;
  v.x = down ? p->inner[routed] : p->codes;
  v.h = p->inner[routed];
  v.h_groups = r.down.groups;
  v.in = !routed ? 0 : down ? p->order_slot + it.start : p->order_row + it.start;
  v.out = routed ? p->order_slot + it.start : 0;
  v.y = routed ? p->routed_out : op.dst.data;
  v.stride = routed ? op.dst.width : op.dst.stride;
  return v;
}

template <class F, bool DOWN> __device__ __forceinline__ void experts_few(const canon_op &op, const covey_program *p, int routed, int most) {
  constexpr int tiles = DOWN ? FEW_TILES_DOWN : Up<F>::tiles;
  wait_for_previous();
  let_next_start();
  covey_item it = item_at(op, p, routed, blockIdx.y);
  if (it.n == 0 || it.n > most || (routed && !op.table[it.expert])) return;
  product v = expert_product(op, p, routed, DOWN, it);
  const int n = v.n;
  for (int r = 0; r < n; r += FEW_ROWS) {
    product w = v;
    w.n = min(FEW_ROWS, n - r);
    if (v.in) w.in = v.in + r;
    else { w.x.q += (int64_t)r * v.m.groups * F::group; w.x.scale += (int64_t)r * v.m.groups; w.x.sum += (int64_t)r * v.m.groups; }
    if (v.out) w.out = v.out + r;
    else { w.y += r * v.stride; w.h.q += (int64_t)r * v.h_groups * F::group; w.h.scale += (int64_t)r * v.h_groups; w.h.sum += (int64_t)r * v.h_groups; }
    if (r) __syncthreads();
    product_few<F, DOWN ? PRODUCT_DOWN : PRODUCT_UP, tiles>(w, blockIdx.x * tiles, [&](int8_t *q, int stride, covey_pair *pairs) { read_codes<F>(w, q, stride, pairs); });
  }
}
template <class F, bool DOWN> __device__ __forceinline__ void experts_many(const canon_op &op, const covey_program *p, int routed, int least) {
  constexpr int mw = DOWN ? 4 : Up<F>::mw;
  int column0 = 0;
  wait_for_previous();
  let_next_start();
  covey_item it = item_of_tile(op, p, routed, blockIdx.y, Many<F, mw>::columns, least, &column0);
  if (it.n == 0 || (routed && !op.table[it.expert])) return;
  product_many<F, DOWN ? PRODUCT_DOWN : PRODUCT_UP, mw>(expert_product(op, p, routed, DOWN, it), blockIdx.x * (DOWN ? 2 * mw : mw), column0);
}

#define COVEY_EXPERTS(NAME, FORM, GROUP)                                                                                                                                   \
  extern "C" __global__ __launch_bounds__(FEW_WARPS_UP * 32) void covey_up_few_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed, int most) {     \
    experts_few<Form<FORM, GROUP, CANON_F16>, false>(op, p, routed, most);                                                                                                  \
  }                                                                                                                                                                        \
  extern "C" __global__ __launch_bounds__(FEW_WARPS_DOWN * 32) void covey_down_few_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed, int most) { \
    experts_few<Form<FORM, GROUP, CANON_F16>, true>(op, p, routed, most);                                                                                                   \
  }                                                                                                                                                                        \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_up_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed, int least) {            \
    experts_many<Form<FORM, GROUP, CANON_F16>, false>(op, p, routed, least);                                                                                                \
  }                                                                                                                                                                        \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_down_many_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed, int least) {          \
    experts_many<Form<FORM, GROUP, CANON_F16>, true>(op, p, routed, least);                                                                                                 \
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
