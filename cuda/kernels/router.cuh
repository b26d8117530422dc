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

enum { ROUTER_LANES = 512 / 32 };

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

// Scores of the experts into memory [512] and the order of their choice scores behind them [512], by WARPS warps with named
// barrier `bar`. bias [experts] or null is m.bias or a copy. logits may still be on their way from other blocks. memory[1024..] is for what the warps tell each other.
template <int WARPS> __device__ __forceinline__ void route_scores(const covey_moe &m, const float *logits, const float *bias, float *scores, int warp, int lane, int bar, int row = 0) {
  const int n = m.experts, thread = warp * 32 + lane;
  uint32_t *key = (uint32_t *)scores + 512;
  float *shared = scores + 1024;
  float top = -canon_inf();
  bool finite = true;
  #pragma unroll 1
  for (int id = thread; id < n; id += WARPS * 32) {
    float z = look(logits + id);
    for (uint32_t looks = 0; is_unset(z); z = look(logits + id)) if (++looks == MOST_LOOKS) __trap();
    finite &= canon_finite(z) != 0;
    top = canon_max(z, top);
    scores[id] = z;
  }
  __syncwarp();
  if (!finite) router_fault(m, CANON_FAULT_NONFINITE, row);
  float sum = 1;
  if (m.score == 0) {
    #pragma unroll
    for (int h = 16; h >= 1; h >>= 1) top = canon_max(__shfl_xor_sync(0xffffffffu, top, h), top);
    if (lane == 0) shared[warp] = top;
    warps_sync(bar, WARPS * 32);
    top = shared[0];
    #pragma unroll
    for (int w = 1; w < WARPS; w++) top = canon_max(shared[w], top);
    #pragma unroll 1
    for (int id = thread; id < n; id += WARPS * 32) scores[id] = canon_expf(scores[id] - top);
    warps_sync(bar, WARPS * 32);
    float lanes = 0;
    #pragma unroll 4
    for (int id = lane; id < n; id += 32) lanes = lanes + scores[id];
    sum = warp_tree(lanes);
    warps_sync(bar, WARPS * 32);               // everyone has read the exponentials
  }
  const uint64_t *ban = m.step && m.step->bans ? m.step->bans[m.step->sequence[row]] : 0;
  #pragma unroll 1
  for (int id = thread; id < n; id += WARPS * 32) {
    float v = scores[id];
    if (m.score == 0) v = v / sum;
    else if (m.score == 2) v = canon_sigmoidf(v);
    else if (m.score == 3) v = sqrtf(canon_softplusf(v));
    scores[id] = v;
    uint32_t o = order_of(bias ? v + bias[id] : v);
    if (ban && ban[(m.first_ban + id) / 64] >> (m.first_ban + id) % 64 & 1) o = 0;
    key[id] = o;
  }
  warps_sync(bar, WARPS * 32);
}

// Up to how many experts the place of each among all is counted, by all warps; of more, one warp finds the best k times.
enum { ROUTER_COUNTED = 256 };

// Chooses: lane r < k of the first warp gets the id and the weight of rank r (-1: none left). All WARPS warps call it; chosen is
// shared memory [16].
template <int WARPS> __device__ __forceinline__ void route_choose(const covey_moe &m, const float *scores, int32_t *chosen, int warp, int lane, int bar, int32_t *id_out, float *weight_out, int row = 0) {
  const int n = m.experts;
  uint32_t *keys = (uint32_t *)scores + 512;
  if (m.keep < m.groups) {
    if (warp == 0) keep_groups(m, keys, lane);
    warps_sync(bar, WARPS * 32);
  }
  int32_t my_id = -1;
  if (n <= ROUTER_COUNTED) {
    if (warp == 0 && lane < m.k) chosen[lane] = -1;
    warps_sync(bar, WARPS * 32);
    #pragma unroll 1
    for (int id = warp * 32 + lane; id < n; id += WARPS * 32) {
      const uint32_t mine = keys[id];
      int rank = 0, j = 0;
      #pragma unroll 2
      for (; j + 4 <= n; j += 4) {
        uint4 k = *(const uint4 *)(keys + j);
        rank += (k.x > mine || (k.x == mine && j < id)) + (k.y > mine || (k.y == mine && j + 1 < id)) + (k.z > mine || (k.z == mine && j + 2 < id)) + (k.w > mine || (k.w == mine && j + 3 < id));
      }
      for (; j < n; j++) rank += keys[j] > mine || (keys[j] == mine && j < id);
      if (mine && rank < m.k) chosen[rank] = id;
    }
    warps_sync(bar, WARPS * 32);
    if (warp) return;
    if (lane < m.k) my_id = chosen[lane];
    if (__ballot_sync(0xffffffffu, lane < m.k && my_id < 0) && lane == 0) router_fault(m, CANON_FAULT_BANNED, row);
  } else {
    if (warp) return;
    uint32_t key[ROUTER_LANES], mine = 0;
    int32_t id = -1;
    #pragma unroll
    for (int i = 0; i < ROUTER_LANES; i++) {
      key[i] = i * 32 + lane < n ? keys[i * 32 + lane] : 0;
      if (key[i] > mine) { mine = key[i]; id = i * 32 + lane; }
    }
    #pragma unroll 1
    for (int r = 0; r < m.k; r++) {
      uint32_t best = __reduce_max_sync(0xffffffffu, mine);
      if (!best) { if (lane == 0) router_fault(m, CANON_FAULT_BANNED, row); break; }
      uint32_t at = __reduce_min_sync(0xffffffffu, mine == best ? (uint32_t)id : 0xffffffffu);
      if (lane == r) my_id = (int32_t)at;
      if ((int)(at & 31) == lane) {            // the owner looks for its next
        mine = 0;
        int32_t next = -1;
        #pragma unroll
        for (int i = 0; i < ROUTER_LANES; i++) {
          if (i * 32 + lane == (int)at) key[i] = 0;
          if (key[i] > mine) { mine = key[i]; next = i * 32 + lane; }
        }
        id = next;
      }
    }
  }
  __syncwarp();
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
  if (my_id >= 0) w = normalise ? canon_weight(w, sum, m.sum_eps, m.scale) : w * m.scale;
  *id_out = my_id;
  *weight_out = w;
}
