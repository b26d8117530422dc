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
  for (int g = 0; g < m.groups; g++) {
    if (kept >> g & 1) continue;
    #pragma unroll 1
    for (int id = g * per + lane; id < (g + 1) * per; id += 32) key[id] = 0;
  }
  __syncwarp();
}

template <int WARPS> __device__ __forceinline__ void meet(int bar) {
  if (WARPS > 1) warps_sync(bar, WARPS * 32);
  else __syncwarp();
}

// Memory of a choice, COVEY_ROUTE_FLOATS floats: scores, orders of the choice scores (later the candidates', and sixteen more), ids of
// candidates, and what warps and lanes tell each other.
struct route_memory {
  float *scores, *tops;
  uint32_t *keys;
  int32_t *ids, *chosen;
  __device__ __forceinline__ route_memory(float *memory) : scores(memory), tops(memory + 3 * 512 + 16), keys((uint32_t *)memory + 512), ids((int32_t *)memory + 2 * 512 + 16), chosen((int32_t *)memory + 3 * 512 + 48) {}
};

// The experts that row 0's, or row `row`'s, sequence must not be given, as bits; null = none. It takes three reads one after another.
__device__ __forceinline__ const uint64_t *route_bans(const covey_moe &m, int row) { return m.step && m.step->bans ? m.step->bans[m.step->sequence[row]] : 0; }

// Scores of the experts and the orders of their choice scores, 0 where there is none, to a multiple of 128, by WARPS warps with named
// barrier `bar`. bias [experts] or null is m.bias or a copy. logits may still be on their way from other blocks. A thread computes
// four experts side by side.
template <int WARPS> __device__ __forceinline__ void route_scores(const covey_moe &m, const float *logits, const float *bias, const uint64_t *ban, const route_memory &at, int warp, int lane, int bar, int row) {
  constexpr int step = WARPS * 32, each = 4;
  const int n = m.experts, thread = warp * 32 + lane;
  float top = -canon_inf(), sum = 1;
  bool finite = true;
  #pragma unroll 1
  for (int from = 0; from < n; from += each * step) {
    const int base = from + thread;
    float z[each];
    bool all;
    uint32_t looks = 0;
    do {
      all = true;
      #pragma unroll
      for (int j = 0; j < each; j++) z[j] = look(logits + min(base + j * step, n - 1));
      #pragma unroll
      for (int j = 0; j < each; j++) all &= !is_unset(z[j]);
      if (++looks == MOST_LOOKS) __trap();
    } while (!__all_sync(0xffffffffu, all));
    #pragma unroll
    for (int j = 0; j < each; j++) {
      finite &= canon_finite(z[j]) != 0;
      top = canon_max(z[j], top);
      at.scores[base + j * step] = z[j];
    }
  }
  if (!finite) router_fault(m, CANON_FAULT_NONFINITE, row);
  if (m.score == 0) {
    top = value_of_order(__reduce_max_sync(0xffffffffu, order_of(top)));
    if (WARPS > 1) {
      if (lane == 0) at.tops[warp] = top;
      warps_sync(bar, step);
      top = at.tops[0];
      #pragma unroll
      for (int w = 1; w < WARPS; w++) top = canon_max(at.tops[w], top);
    }
  }
  if (m.score == 0 || m.score == 2) {
    float lanes = 0;
    #pragma unroll 1
    for (int from = 0; from < n; from += each * step) {
      const int base = from + thread;
      float e[each];
      #pragma unroll
      for (int j = 0; j < each; j++) {
        const float z = at.scores[base + j * step];
        e[j] = canon_expf(m.score == 0 ? z - top : -z);
      }
      #pragma unroll
      for (int j = 0; j < each; j++) {
        if (base + j * step >= n) e[j] = 0;
        lanes = lanes + e[j];                    // what the lane of rule 3 has, where there is one warp
        at.scores[base + j * step] = e[j];
      }
    }
    if (m.score == 0) {
      if (WARPS > 1) {
        warps_sync(bar, step);
        lanes = 0;
        #pragma unroll 4
        for (int id = lane; id < n; id += 32) lanes = lanes + at.scores[id];
        warps_sync(bar, step);                   // everyone has read the exponentials
      }
      sum = warp_tree(lanes);
    }
  }
  if (m.score == 3) {
    #pragma unroll 1
    for (int id = thread; id < n; id += step) at.scores[id] = sqrtf(canon_softplusf(at.scores[id]));
  }
  #pragma unroll 1
  for (int from = 0; from < n; from += each * step) {
    const int base = from + thread;
    float v[each];
    #pragma unroll
    for (int j = 0; j < each; j++) v[j] = at.scores[base + j * step];
    if (m.score == 0 || m.score == 2) {
      #pragma unroll
      for (int j = 0; j < each; j++) v[j] = (m.score == 0 ? v[j] : 1.0f) / (m.score == 0 ? sum : 1.0f + v[j]);
    }
    #pragma unroll
    for (int j = 0; j < each; j++) {
      const int id = base + j * step;
      at.scores[id] = v[j];
      at.keys[id] = id < n ? order_of(bias ? v[j] + bias[min(id, n - 1)] : v[j]) : 0;
    }
    if (ban) {
      #pragma unroll 1
      for (int id = base; id < min(base + each * step, n); id += step) if (ban[(m.first_ban + id) / 64] >> (m.first_ban + id) % 64 & 1) at.keys[id] = 0;
    }
  }
  meet<WARPS>(bar);
}

// Chooses: lane r < k of a warp gets the id of rank r (-1: none left); *some is how many there are. At least k keys are not below the
// k-th of the lanes' best: only those few are ranked, by counting how many come before each.
__device__ __forceinline__ int32_t route_choose(const covey_moe &m, const route_memory &at, int lane, int *some, int row = 0) {
  uint32_t best = 0;
  if (m.keep < m.groups) keep_groups(m, at.keys, lane);
  #pragma unroll 1
  for (int base = 0; base < m.experts; base += 128) {
    #pragma unroll
    for (int j = 0; j < 128; j += 32) best = max(best, at.keys[base + j + lane]);
  }
  at.ids[lane] = (int32_t)best;
  __syncwarp();
  int place = 0;
  #pragma unroll 2
  for (int l = 0; l < 32; l += 4) {
    const uint4 o = *(const uint4 *)(at.ids + l);
    place += (o.x > best || (o.x == best && l < lane)) + (o.y > best || (o.y == best && l + 1 < lane)) + (o.z > best || (o.z == best && l + 2 < lane)) + (o.w > best || (o.w == best && l + 3 < lane));
  }
  const uint32_t least = max(__shfl_sync(0xffffffffu, best, __ffs(__ballot_sync(0xffffffffu, place == m.k - 1)) - 1), 1u);
  int n = 0;                                 // candidates, by id, into the place of the keys
  #pragma unroll 1
  for (int base = 0; base < m.experts; base += 128) {
    uint32_t key[4], in[4];
    #pragma unroll
    for (int j = 0; j < 4; j++) key[j] = at.keys[base + 32 * j + lane];
    #pragma unroll
    for (int j = 0; j < 4; j++) in[j] = __ballot_sync(0xffffffffu, key[j] >= least);
    __syncwarp();
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      const int to = n + __popc(in[j] & ((1u << lane) - 1));
      if (key[j] >= least) { at.keys[to] = key[j]; at.ids[to] = base + 32 * j + lane; }
      n += __popc(in[j]);
    }
  }
  if (lane < 8) at.keys[n + lane] = 0;
  __syncwarp();
  #pragma unroll 1
  for (int c = lane; c < n; c += 32) {
    const uint32_t mine = at.keys[c];
    int rank = 0;
    #pragma unroll 1
    for (int j = 0; j < n; j += 8) {
      const uint4 a = *(const uint4 *)(at.keys + j), b = *(const uint4 *)(at.keys + j + 4);
      rank += (a.x > mine || (a.x == mine && j < c)) + (a.y > mine || (a.y == mine && j + 1 < c)) + (a.z > mine || (a.z == mine && j + 2 < c)) + (a.w > mine || (a.w == mine && j + 3 < c));
      rank += (b.x > mine || (b.x == mine && j + 4 < c)) + (b.y > mine || (b.y == mine && j + 5 < c)) + (b.z > mine || (b.z == mine && j + 6 < c)) + (b.w > mine || (b.w == mine && j + 7 < c));
    }
    if (rank < m.k) at.chosen[rank] = at.ids[c];
  }
  __syncwarp();
  if (n < m.k && lane == 0) router_fault(m, CANON_FAULT_BANNED, row);
  *some = min(n, m.k);
  return lane < *some ? at.chosen[lane] : -1;
}

// The weight of rank r in lane r of a warp whose first `some` lanes have the chosen ids.
__device__ __forceinline__ float route_weight(const covey_moe &m, const route_memory &at, int32_t my_id, int some, int lane) {
  float w = my_id >= 0 ? at.scores[my_id] : 0.0f, sum = 0;
  if (m.score == 1) w = canon_expf(w - __shfl_sync(0xffffffffu, w, 0));
  #pragma unroll 1
  for (int r = 0; r < some; r++) sum = sum + __shfl_sync(0xffffffffu, w, r);
  sum = canon_max(sum, m.least);
  return my_id < 0 ? w : m.normalise || m.score == 1 ? canon_weight(w, sum, m.sum_eps, m.scale) : w * m.scale;
}
