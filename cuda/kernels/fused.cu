// Row operations that follow one another, in one launch each, so that a step of few rows has few launches. The operations keep
// their order; what one leaves in a buffer is left there too. Twins: engine/canon/rows.c.
#include "fused.h"
#include "heads.cuh"
#include "ptx.cuh"

// Rows gathered, normed and quantised: f.normed, and p->codes in groups of f.group (0 = none). A block a row; its values pass
// through shared memory [src.width], so a row is read once. The first warp's lanes are those of the norm.
COVEY_BOUNDED(256) covey_norm_codes(COVEY_CONST covey_rows f, const covey_program *p) {
  COVEY_DYNAMIC(float, x);
  __shared__ float factor;
  const int row = blockIdx.x, width = f.src.width, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  wait_for_previous();
  let_next_start();
  if (row >= rows_of(p, f.logits)) return;
  const float *from = row_of(f.src, f.gather ? p->step.logit_row[row] : row);
  for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] = __ldcg(from + i);
  __syncthreads();
  if (warp == 0) {
    float s = 0;
#pragma unroll 8
    for (int i = lane; i < width; i += 32) s = canon_fmaf(x[i], x[i], s);
    s = warp_tree(s);
    if (lane == 0) factor = canon_rms_factor(s, width, f.eps);
  }
  __syncthreads();
  float *y = row_of(f.normed, row);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float v = x[i] * factor;
    if (f.norm) v = v * (f.plus_one ? f.norm[i] + 1.0f : f.norm[i]);
    x[i] = v;
    y[i] = v;
  }
  if (!f.group) return;
  __syncthreads();
  const int groups = covey_ceil(width, f.group);
  for (int g = warp; g < groups; g += (int)blockDim.x / 32)
    warp_quantise(x + g * f.group, at_most(width - g * f.group, f.group), f.group, p->codes.q + ((int64_t)row * groups + g) * f.group,
                  p->codes.scale + (int64_t)row * groups + g, p->codes.sum + (int64_t)row * groups + g);
}

enum { HEAD_WARPS = 4, HEAD_DIM = 256 };

// Norms, rotation and cache of queries, keys and values: a warp a head. grid (heads of q, k and v / HEAD_WARPS, rows).
COVEY_BOUNDED(HEAD_WARPS * 32) covey_heads_ready(COVEY_CONST covey_heads f, const covey_program *p) {
  __shared__ float values[HEAD_WARPS][HEAD_DIM];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.y, head = blockIdx.x * HEAD_WARPS + warp, dim = f.kv.dim;
  wait_for_previous();
  let_next_start();
  if (row >= p->step.rows || head >= f.heads + 2 * f.kv.heads) return;
  const int which = head < f.heads ? 0 : head < f.heads + f.kv.heads ? 1 : 2, h = which == 0 ? head : which == 1 ? head - f.heads : head - f.heads - f.kv.heads;
  float *from = row_of(which == 0 ? f.q : which == 1 ? f.k : f.v, row) + (int64_t)h * dim, *x = values[warp];
  for (int i = lane; i < dim; i += 32) x[i] = __ldcg(from + i);
  __syncwarp();
  if (which < 2) {
    const float *w = which ? f.k_norm : f.q_norm;
    if (w && !f.late) head_norm(x, w, dim, f.eps, f.plus_one, lane);
    if (f.angles >= 0) {
      const covey_angles &a = p->angles[f.angles];
      const int64_t at = (int64_t)row * (f.rot / 2);
      head_turn(x + f.offset, f.rot / 2, f.pairing, a.cosine + at, a.sine + at, lane);
    }
    if (w && f.late) head_norm(x, w, dim, f.eps, f.plus_one, lane);
    for (int i = lane; i < dim; i += 32) from[i] = x[i];
  }
  if (which == 0) return;
  const int pos = p->step.positions[row], page = p->step.pages[(int64_t)p->step.sequence[row] * p->step.pages_stride + pos / 64], slot = pos % 64;
  uint8_t *at = kv_layer(f.kv, page, f.layer);
  for (int i = lane; i < dim; i += 32)
    if (store_value(f.kv.form, at, which == 1 ? key_at(f.kv, h, slot, i) : value_at(f.kv, h, slot, i), x[i]) >= 0x7c00) fault(p, 0, row, CANON_FAULT_KV, f.label);
}

// Twin of covey_combine (feedforward.cu), then sum += dst. A thread takes four channels. grid (rows, column blocks).
COVEY_KERNEL covey_combine_sum(COVEY_CONST covey_combination c, const covey_program *p) {
  const canon_op &op = c.op;
  int32_t row = blockIdx.x, i = (blockIdx.y * blockDim.x + threadIdx.x) * 4, k = op.i[1];
  wait_for_previous();
  let_next_start();
  if (row >= rows_of(p, op.dst.logits) || i >= op.dst.width) return;
  float *y = row_of(op.dst, row) + i;
  float4 v = op.shared_block ? __ldcg((const float4 *)y) : make_float4(0, 0, 0, 0);
  if (op.shared_block && op.src2.data) {
    float gate = canon_sigmoidf(__ldcg(row_of(op.src2, row)));
    v = make_float4(v.x * gate, v.y * gate, v.z * gate, v.w * gate);
  }
#pragma unroll 4
  for (int32_t r = 0; r < k; r++) {
    int64_t slot = (int64_t)row * k + r;
    int32_t id = __ldcg(op.ids + slot);
    if (id < 0 || !op.table[id]) continue;
    float w = __ldcg(op.weights + slot);
    float4 o = __ldcg((const float4 *)(p->routed_out + slot * op.dst.width + i));
    v = make_float4(canon_fmaf(w, o.x, v.x), canon_fmaf(w, o.y, v.y), canon_fmaf(w, o.z, v.z), canon_fmaf(w, o.w, v.w));
  }
  *(float4 *)y = v;
  if (!c.sum.data) return;
  float4 *s = (float4 *)(row_of(c.sum, row) + i), a = __ldcg(s);
  *s = make_float4(a.x + v.x, a.y + v.y, a.z + v.z, a.w + v.w);
}
