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

__device__ __forceinline__ void router_fault(const covey_moe &m, int32_t kind, int row = 0) {
  if (!m.step || !m.step->faults || m.step->faults[2 * row]) return;
  m.step->faults[2 * row] = kind;
  m.step->faults[2 * row + 1] = m.label;
}

enum { ROUTE_SCORES = 1072 + 512 };

// Choice scores of whole groups decide which groups stay (rule 8): the two largest of a group, or the largest, added.
__device__ __forceinline__ void keep_groups(const covey_moe &m, uint32_t *key, int lane) {
  int per = m.experts / m.groups;
  uint32_t mine = 0;                       // lane g holds the order of group g's score; 0 = nothing left in it
  #pragma unroll 1
  for (int g = 0; g < m.groups; g++) {
    uint32_t a = 0, b = 0;                 // this lane's two largest
    #pragma unroll 1
    for (int id = g * per + lane; id < (g + 1) * per; id += 32) { uint32_t o = key[id]; if (o > a) { b = a; a = o; } else if (o > b) b = o; }
    uint32_t first = __reduce_max_sync(0xffffffffu, a);
    int owner = __ffs(__ballot_sync(0xffffffffu, a == first)) - 1;
    uint32_t second = __reduce_max_sync(0xffffffffu, lane == owner ? b : a);
    if (lane == g && first) mine = order_of(m.largest_only || !second ? value_of_order(first) : value_of_order(first) + value_of_order(second));
  }
  uint32_t kept = 0;
  #pragma unroll 1
  for (int i = 0; i < m.keep; i++) {
    uint32_t best = __reduce_max_sync(0xffffffffu, mine);
    if (!best) break;
    int g = __ffs(__ballot_sync(0xffffffffu, mine == best)) - 1;
    kept |= 1u << g;
    if (lane == g) mine = 0;
  }
  __syncwarp();                            // every lane has read what others clear
  #pragma unroll 1
  for (int id = lane; id < m.experts; id += 32) if (!(kept >> id / per & 1)) key[id] = 0;
  __syncwarp();
}

template <int WARPS> __device__ __forceinline__ void meet(int bar) {
  if (WARPS > 1) warps_sync(bar, WARPS * 32);
  else __syncwarp();
}

// Scores of the experts into memory [512] and the order of their choice scores behind them [512], by WARPS warps with named
// barrier `bar`. bias [experts] or null is m.bias or a copy. logits may still be on their way from other blocks. What the warps tell
// each other and what the choice needs lies behind: ROUTE_SCORES floats in all. Not real: nobody wants the outcome, only that these
// instructions have been fetched; no value is waited for and no fault is written.
template <int WARPS> __device__ __forceinline__ void route_scores(const covey_moe &m, const float *logits, const float *bias, float *scores, int warp, int lane, int bar, int row = 0, bool real = true) {
  constexpr int step = WARPS * 32, each = 4;   // a thread's experts that are computed side by side
  const int n = m.experts, thread = warp * 32 + lane;
  uint32_t *key = (uint32_t *)scores + 512;
  float *shared = scores + 1024;
  float top = -canon_inf();
  bool finite = true;
  #pragma unroll 1
  for (int base = thread; base < n; base += each * step) {
    float z[each];
    bool all;
    uint32_t looks = 0;
    do {
      all = true;
      #pragma unroll
      for (int j = 0; j < each; j++) z[j] = base + j * step < n ? look(logits + base + j * step) : 0.0f;
      #pragma unroll
      for (int j = 0; j < each; j++) all &= !is_unset(z[j]);
      all |= !real;
      if (!all && ++looks == MOST_LOOKS) __trap();
    } while (!all);
    #pragma unroll
    for (int j = 0; j < each; j++) {
      if (base + j * step >= n) break;
      finite &= canon_finite(z[j]) != 0;
      top = canon_max(z[j], top);
      scores[base + j * step] = z[j];
    }
  }
  __syncwarp();
  if (!finite && real) router_fault(m, CANON_FAULT_NONFINITE, row);
  float sum = 1;
  if (m.score == 0) {
    #pragma unroll
    for (int h = 16; h >= 1; h >>= 1) top = canon_max(__shfl_xor_sync(0xffffffffu, top, h), top);
    if (WARPS > 1) {
      if (lane == 0) shared[warp] = top;
      warps_sync(bar, step);
      top = shared[0];
      #pragma unroll
      for (int w = 1; w < WARPS; w++) top = canon_max(shared[w], top);
    }
    #pragma unroll 1
    for (int base = thread; base < n; base += each * step) {
      float e[each];
      #pragma unroll
      for (int j = 0; j < each; j++) e[j] = canon_expf((base + j * step < n ? scores[base + j * step] : top) - top);
      #pragma unroll
      for (int j = 0; j < each; j++) if (base + j * step < n) scores[base + j * step] = e[j];
    }
    meet<WARPS>(bar);
    float lanes = 0;
    #pragma unroll 4
    for (int id = lane; id < n; id += 32) lanes = lanes + scores[id];
    sum = warp_tree(lanes);
    meet<WARPS>(bar);                          // everyone has read the exponentials
  }
  const uint64_t *ban = m.step && m.step->bans ? m.step->bans[m.step->sequence[row]] : 0;
  #pragma unroll 1
  for (int base = thread; base < n; base += each * step) {
    float v[each];
    #pragma unroll
    for (int j = 0; j < each; j++) v[j] = base + j * step < n ? scores[base + j * step] : 0.0f;
    if (m.score == 0) {
      #pragma unroll
      for (int j = 0; j < each; j++) v[j] = v[j] / sum;
    } else if (m.score == 2) {
      #pragma unroll
      for (int j = 0; j < each; j++) v[j] = canon_sigmoidf(v[j]);
    } else if (m.score == 3) {
      #pragma unroll 1
      for (int j = 0; j < each; j++) v[j] = sqrtf(canon_softplusf(v[j]));
    }
    #pragma unroll
    for (int j = 0; j < each; j++) {
      const int id = base + j * step;
      if (id >= n) break;
      scores[id] = v[j];
      uint32_t o = order_of(bias ? v[j] + bias[id] : v[j]);
      if (ban && ban[(m.first_ban + id) / 64] >> (m.first_ban + id) % 64 & 1) o = 0;
      key[id] = o;
    }
  }
  meet<WARPS>(bar);
}

// Chooses: lane r < k of a warp gets the id of rank r (-1: none left). scores as route_scores left them. At least k keys are not below
// the k-th of the lanes' best: only those few are ranked, by counting how many come before each.
__device__ __forceinline__ int32_t route_choose(const covey_moe &m, float *scores, int lane, int row = 0, bool real = true) {
  uint32_t *keys = (uint32_t *)scores + 512, best = 0;
  int32_t *chosen = (int32_t *)scores + 1040, *ids = (int32_t *)scores + 1072;
  if (m.keep < m.groups) keep_groups(m, keys, lane);
  #pragma unroll 4
  for (int id = lane; id < m.experts; id += 32) best = max(best, keys[id]);
  ids[lane] = (int32_t)best;
  __syncwarp();
  int place = 0;
  #pragma unroll 2
  for (int l = 0; l < 32; l += 4) {
    const uint4 o = *(const uint4 *)(ids + l);
    place += (o.x > best || (o.x == best && l < lane)) + (o.y > best || (o.y == best && l + 1 < lane)) + (o.z > best || (o.z == best && l + 2 < lane)) + (o.w > best || (o.w == best && l + 3 < lane));
  }
  const uint32_t least = max(__shfl_sync(0xffffffffu, best, __ffs(__ballot_sync(0xffffffffu, place == m.k - 1)) - 1), 1u);
  int n = 0;                                 // candidates, by id, into the place of the keys
  #pragma unroll 1
  for (int base = 0; base < m.experts; base += 32) {
    const uint32_t key = base + lane < m.experts ? keys[base + lane] : 0, in = __ballot_sync(0xffffffffu, key >= least);
    const int at = n + __popc(in & ((1u << lane) - 1));
    __syncwarp();
    if (key >= least) { keys[at] = key; ids[at] = base + lane; }
    n += __popc(in);
  }
  __syncwarp();
  #pragma unroll 1
  for (int c = lane; c < n; c += 32) {
    const uint32_t mine = keys[c];
    int rank = 0;
    #pragma unroll 4
    for (int j = 0; j < n; j++) rank += keys[j] > mine || (keys[j] == mine && j < c);
    if (rank < m.k) chosen[rank] = ids[c];
  }
  __syncwarp();
  if (n < m.k && lane == 0 && real) router_fault(m, CANON_FAULT_BANNED, row);
  return lane < min(n, m.k) ? chosen[lane] : -1;
}

// The weight of rank r in lane r of a warp whose lanes have the chosen ids.
__device__ __forceinline__ float route_weight(const covey_moe &m, const float *scores, int32_t my_id, int lane) {
  float w = my_id >= 0 ? scores[my_id] : 0.0f, sum = 0;
  bool normalise = m.normalise;
  if (m.score == 1) {
    w = canon_expf(w - __shfl_sync(0xffffffffu, w, 0));
    normalise = true;
  }
  #pragma unroll 4
  for (int r = 0; r < m.k; r++) {
    float v = __shfl_sync(0xffffffffu, w, r);
    if (__shfl_sync(0xffffffffu, my_id, r) >= 0) sum = sum + v;
  }
  sum = canon_max(sum, m.least);
  return my_id < 0 ? w : normalise ? canon_weight(w, sum, m.sum_eps, m.scale) : w * m.scale;
}
