// Rule 8 by one warp: lane l holds experts l, l + 32, ... in registers. Up to 512 experts and 16 chosen.
#pragma once
#include "moe.h"
#include "product.cuh"

// Order of canon_before as integers: larger comes first, NaN last; 0 is left for what may not be chosen.
__device__ __forceinline__ uint32_t order_of(float v) {
  if (!(v == v)) return 1;
  uint32_t b = __float_as_uint(v == 0 ? 0.0f : v);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
__device__ __forceinline__ float value_of_order(uint32_t o) {
  if (o == 1) return canon_nan();
  return __uint_as_float(o & 0x80000000u ? o & 0x7fffffffu : ~o);
}

__device__ __forceinline__ void router_fault(const covey_moe &m, int32_t kind) {
  if (!m.step || !m.step->faults || m.step->faults[0]) return;
  m.step->faults[0] = kind;
  m.step->faults[1] = m.label;
}

// Choice scores of whole groups decide which groups stay (rule 8): the two largest of a group, or the largest, added.
template <int PER> __device__ __forceinline__ void keep_groups(const covey_moe &m, uint32_t key[PER], int lane) {
  int per = m.experts / m.groups;
  uint32_t mine = 0;                       // lane g holds the order of group g's score; 0 = nothing left in it
  for (int g = 0; g < m.groups; g++) {
    uint32_t a = 0, b = 0;                 // this lane's two largest
    #pragma unroll
    for (int i = 0; i < PER; i++) {
      int id = i * 32 + lane;
      if (id < m.experts && id / per == g) { uint32_t o = key[i]; if (o > a) { b = a; a = o; } else if (o > b) b = o; }
    }
    uint32_t first = __reduce_max_sync(0xffffffffu, a);
    int owner = __ffs(__ballot_sync(0xffffffffu, a == first)) - 1;
    uint32_t second = __reduce_max_sync(0xffffffffu, lane == owner ? b : a);
    if (lane == g && first) mine = order_of(m.largest_only || !second ? value_of_order(first) : value_of_order(first) + value_of_order(second));
  }
  uint32_t kept = 0;
  for (int i = 0; i < m.keep; i++) {
    uint32_t best = __reduce_max_sync(0xffffffffu, mine);
    if (!best) break;
    int g = __ffs(__ballot_sync(0xffffffffu, mine == best)) - 1;
    kept |= 1u << g;
    if (lane == g) mine = 0;
  }
  #pragma unroll
  for (int i = 0; i < PER; i++) {
    int id = i * 32 + lane;
    if (id < m.experts && !(kept >> id / per & 1)) key[i] = 0;
  }
}

// Lane r < k gets the id and the weight of rank r (-1: none left). logits may still be on their way from other blocks. scores
// has room for the experts, rounded up to whole warps.
template <int PER> __device__ __noinline__ void route(const covey_moe &m, const float *logits, float *scores, int lane, int32_t *id_out, float *weight_out) {
  const int n = m.experts;
  float s[PER];
  #pragma unroll
  for (int i = 0; i < PER; i++) s[i] = i * 32 + lane < n ? look(logits + i * 32 + lane) : 0.0f;
  #pragma unroll
  for (int i = 0; i < PER; i++) while (is_unset(s[i])) s[i] = look(logits + i * 32 + lane);
  __syncwarp();
  bool finite = true;
  #pragma unroll
  for (int i = 0; i < PER; i++) finite &= canon_finite(s[i]) != 0;
  if (!__all_sync(0xffffffffu, finite) && lane == 0) router_fault(m, CANON_FAULT_NONFINITE);
  if (m.score == 0) {
    float top = -canon_inf(), lanes = 0;
    #pragma unroll
    for (int i = 0; i < PER; i++) if (i * 32 + lane < n) top = canon_max(s[i], top);
    #pragma unroll
    for (int h = 16; h >= 1; h >>= 1) top = canon_max(__shfl_xor_sync(0xffffffffu, top, h), top);
    #pragma unroll
    for (int i = 0; i < PER; i++) s[i] = canon_expf(s[i] - top);
    #pragma unroll
    for (int i = 0; i < PER; i++) if (i * 32 + lane < n) lanes = lanes + s[i];
    float sum = warp_tree(lanes);
    #pragma unroll
    for (int i = 0; i < PER; i++) s[i] = s[i] / sum;
  } else if (m.score == 2) {
    #pragma unroll
    for (int i = 0; i < PER; i++) s[i] = canon_sigmoidf(s[i]);
  } else if (m.score == 3) {
    #pragma unroll 1
    for (int i = 0; i < PER; i++) scores[i * 32 + lane] = s[i];
    #pragma unroll 1
    for (int i = 0; i < PER; i++) scores[i * 32 + lane] = sqrtf(canon_softplusf(scores[i * 32 + lane]));
    #pragma unroll
    for (int i = 0; i < PER; i++) s[i] = scores[i * 32 + lane];
  }
  #pragma unroll
  for (int i = 0; i < PER; i++) scores[i * 32 + lane] = s[i];
  const uint64_t *ban = m.step && m.step->bans ? m.step->bans[m.step->sequence[0]] : 0;
  uint32_t key[PER];
  #pragma unroll
  for (int i = 0; i < PER; i++) {
    int id = i * 32 + lane;
    key[i] = id < n ? order_of(m.bias ? s[i] + m.bias[id] : s[i]) : 0;
    if (ban && id < n && ban[(m.first_ban + id) / 64] >> (m.first_ban + id) % 64 & 1) key[i] = 0;
  }
  if (m.keep < m.groups) keep_groups<PER>(m, key, lane);

  int32_t my_id = -1;
  for (int r = 0; r < m.k; r++) {
    uint32_t mine = 0, id = 0;
    #pragma unroll
    for (int i = 0; i < PER; i++) if (key[i] > mine) { mine = key[i]; id = i * 32 + lane; }
    uint32_t best = __reduce_max_sync(0xffffffffu, mine);
    if (!best) { if (lane == 0) router_fault(m, CANON_FAULT_BANNED); break; }
    uint32_t at = __reduce_min_sync(0xffffffffu, mine == best ? id : 0xffffffffu);
    #pragma unroll
    for (int i = 0; i < PER; i++) if (i * 32 + lane == at) key[i] = 0;
    if (lane == r) my_id = (int32_t)at;
  }
  __syncwarp();
  float mine = my_id >= 0 ? scores[my_id] : 0.0f, sum = 0;
  bool normalise = m.normalise;
  if (m.score == 1) {
    mine = canon_expf(mine - __shfl_sync(0xffffffffu, mine, 0));
    normalise = true;
  }
  #pragma unroll
  for (int r = 0; r < 16; r++) {
    float w = __shfl_sync(0xffffffffu, mine, r);
    if (__shfl_sync(0xffffffffu, my_id, r) >= 0) sum = sum + w;
  }
  sum = canon_max(sum, m.least);
  if (my_id >= 0) mine = normalise ? canon_weight(mine, sum, m.sum_eps, m.scale) : mine * m.scale;
  *id_out = my_id;
  *weight_out = mine;
}
