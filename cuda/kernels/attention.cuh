// What the attention kernels share: spans of positions, values of a cache, reductions of a warp.
//
// Pages: keys [dim][64], values [64][dim] a head, as the host writes them.
#pragma once
#include "device.h"
#include "ptx.cuh"

struct attend_span { int32_t lo, pos, first, blocks; };   // attended positions lo..pos; blocks from first
__device__ __forceinline__ attend_span span_of(const canon_op &op, const canon_step &step, int row) {
  attend_span s;
  s.pos = step.positions[row];
  int window = op.i[2];
  s.lo = window && s.pos - window + 1 > 0 ? s.pos - window + 1 : 0;
  s.first = s.lo / CANON_BLOCK;
  s.blocks = s.pos / CANON_BLOCK - s.first + 1;
  return s;
}

template <int FORM> struct kv_value;
template <> struct kv_value<CANON_F32> {
  using raw = float;
  static __device__ __forceinline__ float get(float v) { return v; }
};
template <> struct kv_value<CANON_F16> {
  using raw = uint16_t;
  static __device__ __forceinline__ float get(uint16_t v) { return halves(v).x; }
};
template <> struct kv_value<CANON_BF16> {
  using raw = uint16_t;
  static __device__ __forceinline__ float get(uint16_t v) { return canon_from_bf16(v); }
};

// Keys of a head in the page that holds a position; values follow `part` values later.
template <int FORM> __device__ __forceinline__ const typename kv_value<FORM>::raw *page_of(const canon_op &op, const canon_step &step, int sequence, int position, int head, int64_t *part) {
  const canon_kv &kv = op.kv;
  *part = (int64_t)kv.heads * kv.dim * 64;
  int64_t page = step.pages[(int64_t)sequence * step.pages_stride + position / 64];
  return (const typename kv_value<FORM>::raw *)kv.data + ((int64_t)op.i[0] * kv.pages + page) * 2 * *part + (int64_t)head * kv.dim * 64;
}

__device__ __forceinline__ float warp_highest(float v) {
  #pragma unroll
  for (int h = 16; h >= 1; h >>= 1) v = canon_max(__shfl_xor_sync(0xffffffffu, v, h), v);
  return v;
}
