// Experts with float weights (rule 3): gate, up and what lies between them and down in one launch, down in the next, up to FLOAT_ROWS rows
// of an expert at once; combination is another kernel's. Bound by reading the weights where an expert has few rows, by shared
// memory where it has many. The rows of a step are grouped by expert (covey_item).
//
// grid (outputs / 64, items, blocks of FLOAT_ROWS rows), 8 warps. routed 0: the shared expert with all rows. Needs records whose
// three matrices have this form; FP8 with scales for blocks of 128 by 128.
#include "floats.cuh"

struct float_work { const uint8_t *record; const int32_t *rows, *slots; int32_t n; };   // null lists = all rows

static __device__ __forceinline__ float_work float_work_of(const canon_op &op, const covey_program *p, int routed) {
  if (!routed) return float_work{(const uint8_t *)op.shared_block, 0, 0, rows_of(p, op.dst.logits)};
  if ((int32_t)blockIdx.y >= __ldcg(p->item_n)) return float_work{0, 0, 0, 0};
  const covey_item *it = p->items + blockIdx.y;
  const int start = __ldcg(&it->start);
  return float_work{(const uint8_t *)op.table[__ldcg(&it->expert)], p->order_row + start, p->order_slot + start, __ldcg(&it->n)};
}

template <int FORM, int ROWS, bool DOWN> static __device__ __forceinline__ void float_experts(const canon_op &op, const covey_program *p, int routed) {
  using sums = float_sums<FORM, 8, ROWS>;
  __shared__ __align__(16) float xs[ROWS][FLOAT_DEPTH];
  __shared__ float scales[FORM == CANON_FP8 ? FLOAT_BLOCKS : 1];
  wait_for_previous();
  let_next_start();
  const float_work work = float_work_of(op, p, routed);
  if (!work.n) return;
  const int lane = threadIdx.x & 31, q = lane % sums::threads, o0 = blockIdx.x * (blockDim.x >> 5) * sums::outputs, o = o0 + (threadIdx.x >> 5) * sums::outputs + lane / sums::threads;
  const canon_record &r = routed ? op.routed : op.shared;
  const int inner = r.gate.rows, outputs = DOWN ? r.down.rows : inner;
  // Sums of rows i0 .. i0 + n of the work with a matrix of the record, its bias added.
  auto product = [&](const canon_matrix &layout, int i0, int n, float out[ROWS]) {
    const canon_matrix m = packed_at(layout, (void *)work.record);
    const uint8_t *w = m.codes + (int64_t)at_most(o, outputs - 1) * m.cols * sums::size;
    sums s;
    s.begin(w, m.cols, q);
    if (FORM == CANON_FP8) { __syncthreads(); float_scales(m, m.scales, o0, scales); }
    s.run(w, m.cols, n, q, [&](int i) {
      if (DOWN) return (const float *)(p->inner_float[routed] + (int64_t)(work.slots ? __ldcg(work.slots + i0 + i) : i0 + i) * inner);
      return (const float *)row_of(op.src, work.rows ? __ldcg(work.rows + i0 + i) : i0 + i);
    }, xs, scales, out);
    if (m.bias)
      for (int i = 0; i < ROWS; i++) out[i] = out[i] + m.bias[at_most(o, outputs - 1)];
  };
  for (int i0 = blockIdx.z * ROWS; i0 < work.n; i0 += gridDim.z * ROWS) {
    const int n = at_most(work.n - i0, ROWS);
    float a[ROWS], b[ROWS];
    product(DOWN ? r.down : r.gate, i0, n, a);
    if (!DOWN) product(r.up, i0, n, b);
    if (q || o >= outputs) continue;
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if (i >= n) break;
      const int64_t slot = work.slots ? __ldcg(work.slots + i0 + i) : i0 + i;
      if (!DOWN) p->inner_float[routed][slot * inner + o] = canon_gated(op.i[2], a[i], b[i], op.f[0]);
      else if (routed) p->routed_out[slot * outputs + o] = a[i];
      else row_of(op.dst, slot)[o] = a[i];
    }
  }
}

#define COVEY_FLOAT_EXPERTS(NAME, FORM)                                                                                                                            \
  extern "C" __global__ __launch_bounds__(256) void covey_float_up1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) { float_experts<FORM, 1, false>(op, p, routed); }            \
  extern "C" __global__ __launch_bounds__(256) void covey_float_up8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) { float_experts<FORM, FLOAT_ROWS, false>(op, p, routed); }   \
  extern "C" __global__ __launch_bounds__(256) void covey_float_down1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) { float_experts<FORM, 1, true>(op, p, routed); }           \
  extern "C" __global__ __launch_bounds__(256) void covey_float_down8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed) { float_experts<FORM, FLOAT_ROWS, true>(op, p, routed); }
COVEY_FLOAT_EXPERTS(f32, CANON_F32)
COVEY_FLOAT_EXPERTS(f16, CANON_F16)
COVEY_FLOAT_EXPERTS(bf16, CANON_BF16)
COVEY_FLOAT_EXPERTS(fp8, CANON_FP8)
