// Rule 8 by the warps of a block. Up to 512 experts and 16 chosen.
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

// Memory of a choice, COVEY_ROUTE_FLOATS floats: exponentials and scores by id; orders of the choice scores, later the candidates', and
// sixteen more; ids of candidates; what warps tell each other, and the chosen.
struct route_memory {
  float *exps, *scores;
  uint32_t *keys, *tops;
  int32_t *ids, *chosen;
  __device__ __forceinline__ route_memory(float *memory)
      : exps(memory), scores(memory + 512), keys((uint32_t *)memory + 2 * 512), tops((uint32_t *)memory + 4 * 512 + 16), ids((int32_t *)memory + 3 * 512 + 16), chosen((int32_t *)memory + 4 * 512 + 32) {}
};

// Scores of the experts and the orders of their choice scores, 0 where there is none, to a multiple of the threads, by WARPS warps with
// named barrier `bar`; they are there once all have met again. bias [experts] or null is m.bias or a copy. logits may still be on their
// way from other blocks. Threads have an expert each, or two or four; bans and biases are read before the logits, since it takes three
// reads one after another to find the bans.
template <int WARPS> __device__ __forceinline__ void route_scores(const covey_moe &m, const float *logits, const float *bias, const route_memory &at, int warp, int lane, int bar, int row) {
  constexpr int step = WARPS * 32, each = 512 / step;
  const int n = m.experts, first = warp * 32 + lane;
  const uint64_t *ban = m.step && m.step->bans ? m.step->bans[m.step->sequence[row]] : 0;
  float v[each], shift[each];
  bool here[each], free[each], all;
  #pragma unroll
  for (int j = 0; j < each; j++) {
    const int id = first + j * step;
    here[j] = id < n;
    shift[j] = bias && here[j] ? bias[id] : 0.0f;
    free[j] = here[j] && !(ban && ban[(m.first_ban + id) / 64] >> (m.first_ban + id) % 64 & 1);
  }
  uint32_t looks = 0;
  do {
    all = true;
    #pragma unroll
    for (int j = 0; j < each; j++) {
      if (j * step >= n) break;
      v[j] = look(logits + min(first + j * step, n - 1));
      all &= !is_unset(v[j]);
    }
    if (++looks == MOST_LOOKS) __trap();
  } while (!__all_sync(0xffffffffu, all));
  uint32_t top = 0;
  #pragma unroll
  for (int j = 0; j < each; j++) {
    if (j * step >= n) break;
    if (!canon_finite(v[j])) router_fault(m, CANON_FAULT_NONFINITE, row);
    if (here[j]) top = max(top, order_of(v[j]));
  }
  if (m.score == 0) {
    top = __reduce_max_sync(0xffffffffu, top);
    if (lane == 0) at.tops[warp] = top;
    warps_sync(bar, step);
    #pragma unroll
    for (int w = 0; w < WARPS; w++) top = max(top, at.tops[w]);
  }
  const float highest = value_of_order(top);
  #pragma unroll
  for (int j = 0; j < each; j++) {
    if (j * step >= n) break;
    if (m.score == 0 || m.score == 2) v[j] = canon_expf(m.score == 0 ? v[j] - highest : -v[j]);
    if (m.score == 0) at.exps[first + j * step] = here[j] ? v[j] : 0.0f;
    if (m.score == 3) at.exps[first + j * step] = v[j];
  }
  float sum = 1;
  if (m.score == 0) {                           // every warp has the whole sum
    warps_sync(bar, step);
    float lanes = 0;
    #pragma unroll 1
    for (int id = lane; id < n + lane; id += 128) {
      float e[4];
      #pragma unroll
      for (int i = 0; i < 4; i++) e[i] = at.exps[id + 32 * i];
      #pragma unroll
      for (int i = 0; i < 4; i++) lanes = lanes + e[i];
    }
    sum = warp_tree(lanes);
  }
  if (m.score == 3) {
    #pragma unroll 1
    for (int id = first; id < n; id += step) at.exps[id] = sqrtf(canon_softplusf(at.exps[id]));
  }
  #pragma unroll
  for (int j = 0; j < each; j++) {
    const int id = first + j * step;
    if (j * step >= n) break;
    if (m.score == 0 || m.score == 2) v[j] = (m.score == 0 ? v[j] : 1.0f) / (m.score == 0 ? sum : 1.0f + v[j]);
    if (m.score == 3) v[j] = at.exps[id];
    at.scores[id] = v[j];
    at.keys[id] = free[j] ? order_of(v[j] + shift[j]) : 0;   // a zero's sign does not matter
  }
}

// Chooses, a warp: lane r < k gets the id of rank r (-1: none left); *some is how many there are. At least k keys are not below the
// k-th of the lanes' best: only those few are ranked, by counting how many come before each.
__device__ __forceinline__ int32_t route_choose(const covey_moe &m, const route_memory &at, int lane, int *some, int row) {
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
  #pragma unroll 4
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
