// Experts with float weights (rule 3): gate, up and what lies between them and down in one launch, down in the next, in tiles of an
// expert's outputs by its rows (floats.cuh); the rows of gate and up alternate in a tile. Combination is another kernel's. Bound by
// reading the weights where an expert has few rows, by multiply-adds where it has many. The rows of a step are grouped by expert
// (covey_item).
//
// grid (blocks of rows, outputs / TILE::block_outs, twice that for gate and up, items). routed 0: the shared expert with all rows. Needs
// records whose three matrices have this form and rows that begin at multiples of 16 bytes; FP8 with scales for blocks of 128 by 128.
#include "floats.cuh"

struct float_work { const uint8_t *record; const int32_t *rows, *slots; int32_t n; };   // null lists = all rows

static __device__ __forceinline__ float_work float_work_of(const canon_op &op, const covey_program *p, int routed) {
  if (!routed) return float_work{(const uint8_t *)op.shared_block, 0, 0, rows_of(p, op.dst.logits)};
  if ((int32_t)blockIdx.z >= __ldcg(p->item_n)) return float_work{0, 0, 0, 0};
  const covey_item *it = p->items + blockIdx.z;
  const int start = __ldcg(&it->start);
  return float_work{(const uint8_t *)op.table[__ldcg(&it->expert)], p->order_row + start, p->order_slot + start, __ldcg(&it->n)};
}

template <int FORM, class TILE, bool DOWN> static __device__ __forceinline__ void float_experts(const canon_op &op, const covey_program *p, int routed) {
  COVEY_MEMORY(ring);
  __shared__ typename TILE::places at;
  __shared__ float scales[FORM == CANON_FP8 ? 2 * FLOAT_BLOCKS : 1];
  constexpr int each = DOWN ? 1 : 2;
  wait_for_previous();
  let_next_start();
  const float_work work = float_work_of(op, p, routed);
  if (!work.n) return;
  const canon_record &r = routed ? op.routed : op.shared;
  const int inner = r.gate.rows, outputs = DOWN ? r.down.rows : inner, o0 = blockIdx.y * (TILE::block_outs / each), t = threadIdx.x;
  const canon_matrix even = packed_at(DOWN ? r.down : r.gate, (void *)work.record), odd = packed_at(r.up, (void *)work.record);
  const int cols = even.cols;
  for (int i = t; i < TILE::block_outs; i += TILE::threads) at.weights[i] = (i % each ? odd : even).codes + (int64_t)at_most(o0 + i / each, outputs - 1) * cols * TILE::size;
  if (FORM == CANON_FP8) {
    float_scales(even, even.scales, o0, scales);
    if (!DOWN) float_scales(odd, odd.scales, o0, scales + FLOAT_BLOCKS);
  }
  for (int i0 = blockIdx.x * TILE::block_rows; i0 < work.n; i0 += gridDim.x * TILE::block_rows) {
    const int n = at_most(work.n - i0, TILE::block_rows);
    __syncthreads();
    for (int i = t; i < TILE::block_rows; i += TILE::threads) {
      const int j = i0 + at_most(i, n - 1);
      at.inputs[i] = DOWN ? p->inner_float[routed] + (int64_t)(work.slots ? __ldcg(work.slots + j) : j) * inner : row_of(op.src, work.rows ? __ldcg(work.rows + j) : j);
    }
    __syncthreads();
    TILE::begin(ring, at, cols);
    float out[TILE::mine];
    TILE::template run<each>(ring, at, cols, __shfl_sync(FULL, t >> 5, 0) / TILE::out_warps * TILE::rows < n, scales, out);
    auto slot_of = [&](int i) { return (int64_t)(work.slots ? __ldcg(work.slots + i0 + i) : i0 + i); };
    if constexpr (DOWN) {
      TILE::each(out, [&](int o, int i, float v) {
        o += o0;
        if (i >= n || o >= outputs) return;
        if (even.bias) v = v + even.bias[o];
        if (routed) p->routed_out[slot_of(i) * outputs + o] = v;
        else row_of(op.dst, i0 + i)[o] = v;
      });
    } else {
      TILE::pairs(out, [&](int o, int i, float gate, float up) {
        o += o0;
        if (i >= n || o >= outputs) return;
        if (even.bias) gate = gate + even.bias[o];
        if (odd.bias) up = up + odd.bias[o];
        p->inner_float[routed][slot_of(i) * inner + o] = canon_gated(op.i[2], gate, up, op.f[0]);
      });
    }
  }
}

#define COVEY_FLOAT_EXPERTS(SIZE, NAME, FORM)                                                                                                                                                                           \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_float_up_##SIZE##_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) { float_experts<FORM, float_##SIZE<FORM>, false>(op, p, routed); }  \
  extern "C" __global__ __launch_bounds__(256, 2) void covey_float_down_##SIZE##_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) { float_experts<FORM, float_##SIZE<FORM>, true>(op, p, routed); }
#define COVEY_FLOAT_SIZES(NAME, FORM) COVEY_FLOAT_EXPERTS(one, NAME, FORM) COVEY_FLOAT_EXPERTS(four, NAME, FORM) COVEY_FLOAT_EXPERTS(many, NAME, FORM)
COVEY_FLOAT_SIZES(f32, CANON_F32)
COVEY_FLOAT_SIZES(f16, CANON_F16)
COVEY_FLOAT_SIZES(bf16, CANON_BF16)
COVEY_FLOAT_SIZES(fp8, CANON_FP8)
