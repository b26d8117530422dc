// Row operations that follow one another, in one launch each, so that a step of few rows has few launches. The operations keep
// their order; what one leaves in a buffer is left there too. Twins: engine/canon/rows.c.
#include "fused.h"
#include "heads.cuh"
#include "product.cuh"

// Rows gathered, normed and quantised: f.normed, and p->codes in groups of f.group (0 = none). A block a row; its values pass
// through shared memory [src.width], so a row is read once. The first warp's lanes are those of the norm; then a warp takes 256 values
// at a time.
template <int GROUP> static __device__ __forceinline__ void norm_codes(const covey_rows &f, const covey_program *p, const float *x, float factor, int row) {
  const int width = f.src.width, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, groups = covey_ceil(width, GROUP);
  float *y = row_of(f.normed, row);
  for (int i0 = warp * 256; i0 < groups * GROUP; i0 += (int)blockDim.x * 8) {
    const int i = i0 + lane * 8;
    float v[8], scale;
    int32_t sum;
#pragma unroll
    for (int h = 0; h < 8; h += 4) {
      float4 a = make_float4(0, 0, 0, 0), w = a;
      if (i < width) {
        a = *(const float4 *)(x + i + h);
        a = make_float4(a.x * factor, a.y * factor, a.z * factor, a.w * factor);
        if (f.norm) {
          w = *(const float4 *)(f.norm + i + h);
          if (f.plus_one) w = make_float4(w.x + 1.0f, w.y + 1.0f, w.z + 1.0f, w.w + 1.0f);
          a = make_float4(a.x * w.x, a.y * w.y, a.z * w.z, a.w * w.w);
        }
        *(float4 *)(y + i + h) = a;
      }
      v[h] = a.x; v[h + 1] = a.y; v[h + 2] = a.z; v[h + 3] = a.w;
    }
    if (!f.group) continue;
    const uint2 codes = quantise8<GROUP>(v, lane, &scale, &sum);
    if (i >= groups * GROUP) continue;
    *(uint2 *)(p->codes.q + (int64_t)row * groups * GROUP + i) = codes;
    if (i % GROUP == 0) { p->codes.scale[(int64_t)row * groups + i / GROUP] = scale; p->codes.sum[(int64_t)row * groups + i / GROUP] = sum; }
  }
}

COVEY_BOUNDED(256) covey_norm_codes(COVEY_CONST covey_rows f, const covey_program *p) {
  COVEY_DYNAMIC(float, x);
  __shared__ float factor;
  const int row = blockIdx.x, width = f.src.width, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (f.norm)                                                // into the first-level cache, before the row is there
    for (int i = threadIdx.x * 32; i < width; i += blockDim.x * 32) touch(__ldg(f.norm + i));
  wait_for_previous();
  let_next_start();
  if (row >= rows_of(p, f.logits)) return;
  const float *from = row_of(f.src, f.gather ? p->step.logit_row[row] : row);
  for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) *(float4 *)(x + i) = __ldcg((const float4 *)(from + i));
  __syncthreads();
  if (warp == 0) {
    const float s = warp_squares(x, width, lane);
    if (lane == 0) factor = canon_rms_factor(s, width, f.eps);
  }
  __syncthreads();
  if (f.group == 128) norm_codes<128>(f, p, x, factor, row);
  else if (f.group == 64) norm_codes<64>(f, p, x, factor, row);
  else norm_codes<32>(f, p, x, factor, row);
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

// Twin of covey_combine (feedforward.cu), then sum += dst. A thread takes four channels, a lane looks up one of the row's experts.
// grid (rows, column blocks).
COVEY_KERNEL covey_combine_sum(COVEY_CONST covey_combination c, const covey_program *p) {
  const canon_op &op = c.op;
  int32_t row = blockIdx.x, i = (blockIdx.y * blockDim.x + threadIdx.x) * 4, k = op.i[1], lane = threadIdx.x & 31;
  wait_for_previous();
  let_next_start();
  if (row >= rows_of(p, op.dst.logits)) return;
  const bool mine = i < op.dst.width;
  float *y = row_of(op.dst, row) + i, *s = c.sum.data ? row_of(c.sum, row) + i : 0;
  float4 v = mine && op.shared_block ? __ldcg((const float4 *)y) : make_float4(0, 0, 0, 0), a = mine && s ? __ldcg((const float4 *)s) : make_float4(0, 0, 0, 0);
  if (op.shared_block && op.src2.data) {
    float gate = canon_sigmoidf(__ldcg(row_of(op.src2, row)));
    v = make_float4(v.x * gate, v.y * gate, v.z * gate, v.w * gate);
  }
  for (int32_t r0 = 0; r0 < k; r0 += 32) {
    const int64_t slot = (int64_t)row * k + r0;
    const int32_t n = at_most(k - r0, 32), id = lane < n ? __ldcg(op.ids + slot + lane) : -1;
    const float weight = lane < n ? __ldcg(op.weights + slot + lane) : 0.0f;
    const uint32_t here = __ballot_sync(FULL, id >= 0 && op.table[id < 0 ? 0 : id]);
    const float *from = p->routed_out + slot * op.dst.width + i;
#pragma unroll 8
    for (int32_t r = 0; r < n; r++) {
      const float w = __shfl_sync(FULL, weight, r);
      if (!mine || !(here >> r & 1)) continue;
      const float4 o = __ldcg((const float4 *)(from + (int64_t)r * op.dst.width));
      v = make_float4(canon_fmaf(w, o.x, v.x), canon_fmaf(w, o.y, v.y), canon_fmaf(w, o.z, v.z), canon_fmaf(w, o.w, v.w));
    }
  }
  if (!mine) return;
  *(float4 *)y = v;
  if (s) *(float4 *)s = make_float4(a.x + v.x, a.y + v.y, a.z + v.z, a.w + v.w);
}
