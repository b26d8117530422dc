// A whole Mixture-of-Experts layer for one row in one launch: norm, quantisation, router, top-k, experts, combination in
// rank order, residual. Bound by reading the weights of the chosen and the shared experts once; everything else is arranged
// so that this reading never pauses:
//
//   - One block a multiprocessor. Two warps copy weights into a ring of slots in shared memory by bulk copies, a slot a
//     segment (512 inputs) of 16 rows, in the order of use and as far ahead as the ring is long (about 190 KB). Weights do
//     not depend on activations: norm, router and the shared expert are on their way before the row is read, and down
//     matrices while blocks wait for each other.
//   - MOE_WARPS warps compute a segment each (product.cuh) and leave 16 sums; one more warp adds the segments in ascending order,
//     applies silu, and combines; four more choose the experts and turn inner values into codes, expert by expert, while
//     later experts are computed.
//   - Blocks hand each other logits and inner values through words that are their own flags (ptx.cuh), so nobody waits for
//     all blocks: a reader waits for the words it reads. The halves of `exchange` alternate; each launch clears the half of
//     the one before. The choice and the codes of inner values are made by every block for itself.
//   - Outputs are dealt in tiles of 16 so that 132 multiprocessors get nearly equal shares of small layers too.
#include "abi.h"
#include "moe.h"
#include "product.cuh"
#include "router.cuh"

enum { MOE_WARPS = 8, MOE_PRODUCERS = 2, MOE_HELPERS = 4 };   // warps that multiply; that copy; that choose and quantise

struct moe_entry { const uint8_t *record; float weight; int32_t routed; };

// Work of one block, the same for all its warps once the entries are known: up tiles [entry][tile] dealt forward, output
// tiles dealt backward, so that the blocks with one tile more in the first phase have one less in the second.
struct moe_shape {
  int32_t kx, ki, ks, gx, gi, gs, s1, s2, s2s, shared_tiles, tiles, outputs, has;
  __device__ __forceinline__ moe_shape(const covey_moe &m, int group) {
    gx = covey_ceil(m.hidden, group); gi = covey_ceil(m.inner, group); gs = covey_ceil(m.shared_inner, group);
    kx = gx * group; ki = gi * group; ks = gs * group;
    int per = CANON_SEGMENT / group;
    s1 = covey_ceil(gx, per); s2 = covey_ceil(gi, per); s2s = covey_ceil(gs, per);
    shared_tiles = covey_ceil(m.shared_inner, 16); tiles = covey_ceil(m.inner, 16); outputs = covey_ceil(m.hidden, 16);
    has = m.shared_inner > 0;
  }
};

// Where a half of the exchange keeps inner values of entry e, and logits.
struct moe_half {
  float *inner, *shared, *logits;
  int32_t stride;
  __device__ __forceinline__ moe_half(const covey_moe &m, int which) {
    stride = covey_ceil(m.inner, 4) * 4;
    inner = m.exchange + which * covey_moe_exchange(&m);
    shared = inner + (int64_t)m.k * stride;
    logits = shared + covey_ceil(m.shared_inner, 4) * 4;
  }
};

// The half of this launch: in every other launch the count of finished blocks starts at the number of blocks, and it grows
// by less than that while any block runs.
__device__ __forceinline__ int moe_now(const covey_moe &m) { return count_read(m.finished) >= gridDim.x; }

// Slots at the start of the ring that hold the norm's weight and this block's rows of the router.
struct moe_front {
  int32_t norm, rows, row, slots;   // slots of the norm; rows and slots of each; all slots
  __device__ __forceinline__ moe_front(const covey_moe &m, int slot_bytes) {
    norm = m.norm ? covey_ceil(m.hidden * 4, slot_bytes) : 0;
    rows = m.router && (int)blockIdx.x < m.experts ? (m.experts - 1 - blockIdx.x) / gridDim.x + 1 : 0;
    row = m.router ? covey_ceil(m.hidden * covey_form_bytes(m.router_form), slot_bytes) : 0;
    slots = norm + rows * row;
  }
};

// One thread of each of MOE_PRODUCERS warps, which take turns: a copy takes one thread longer than its bytes take the memory.
template <class F> __device__ __forceinline__ void moe_produce(const covey_moe &m, const moe_shape &s, const moe_front &front, uint32_t ring, int slots, uint32_t full, uint32_t empty, uint64_t *chosen, const int32_t *count, const moe_entry *entries, int me) {
  const uint64_t policy = read_once();
  constexpr uint32_t slot_bytes = F::segment * F::block;
  const uint32_t end = full + 8 * slots;
  uint32_t at = full, to = ring, parity = 1;   // a slot that was never used counts as empty
  int turn = 0;
  auto issue = [&](const uint8_t *from, uint32_t bytes) {
    if (turn == me) {
      barrier_wait(at + (empty - full), parity);
      barrier_expect(at, bytes);
      bulk_load(to, from, bytes, at, policy);
    }
    if (++turn == MOE_PRODUCERS) turn = 0;
    at += 8; to += slot_bytes;
    if (at == end) { at = full; to = ring; parity ^= 1; }
  };
  auto first = [&](const void *from, uint32_t bytes, int take) {   // several slots of the fresh ring; the last are full with the first
    if (me == 0) {
      barrier_expect(at, bytes);
      bulk_load(to, from, bytes, at, policy);
      #pragma unroll 1
      for (int i = 1; i < take; i++) barrier_expect(at + 8 * i, 0);
    }
    at += 8 * take; to += slot_bytes * take;
    if (at == end) { at = full; to = ring; parity ^= 1; }
  };
  auto strip = [&](const uint8_t *matrix, int tile, int groups) {
    const uint8_t *from = matrix + (int64_t)tile * groups * F::block;
    #pragma unroll 1
    for (int g = groups; g > 0; g -= F::segment, from += slot_bytes) issue(from, g < F::segment ? g * F::block : slot_bytes);
  };
  if (m.norm) first(m.norm, m.hidden * 4, front.norm);
  const uint32_t row_bytes = m.router ? m.hidden * covey_form_bytes(m.router_form) : 0;
  #pragma unroll 1
  for (int r = 0; r < front.rows; r++) first((const uint8_t *)m.router + (int64_t)(blockIdx.x + r * gridDim.x) * row_bytes, row_bytes, front.row);
  // Up: gate and up of a tile after one another. Down: the same tile of each entry.
  int it = blockIdx.x, routed = -1;
  #pragma unroll 1
  for (;; it += gridDim.x) {
    if (it >= s.shared_tiles && routed < 0) {
      barrier_wait(chosen, 0);
      routed = *count;
    }
    int i = it - s.shared_tiles, tile = it;
    const uint8_t *record = m.shared;
    int64_t gate = m.shared_gate_at, up = m.shared_up_at;
    if (i >= 0) {
      if (i >= routed * s.tiles) break;
      tile = i % s.tiles; record = entries[s.has + i / s.tiles].record; gate = m.gate_at; up = m.up_at;
    }
    #pragma unroll 1
    for (int half = 0; half < 2; half++) strip(record + (half ? up : gate), tile, s.gx);
  }
  #pragma unroll 1
  for (int o = gridDim.x - 1 - blockIdx.x; o < s.outputs; o += gridDim.x)
    #pragma unroll 1
    for (int e = 0; e < s.has + routed; e++) strip(entries[e].record + (e < s.has ? m.shared_down_at : m.down_at), o, e < s.has ? s.gs : s.gi);
}

// Rule 3 from shared memory, by a warp.
template <int FORM> __device__ __forceinline__ float shared_dot(const uint8_t *w, const float *x, int n, int lane) {
  float acc = 0;
  auto value = [&](int i) { return FORM == CANON_F32 ? ((const float *)w)[i] : FORM == CANON_BF16 ? canon_from_bf16(((const uint16_t *)w)[i]) : canon_from_f16(((const uint16_t *)w)[i]); };
  int i = lane;
  #pragma unroll 1
  for (; i + 7 * 32 < n; i += 8 * 32) {
    #pragma unroll
    for (int j = 0; j < 8; j++) acc = fmaf(value(i + 32 * j), x[i + 32 * j], acc);
  }
  #pragma unroll 1
  for (; i < n; i += 32) acc = fmaf(value(i), x[i], acc);
  return warp_tree(acc);
}

// The row into shared memory: values xs (normed) and codes. All WARPS warps. Sums of squares are rule 4's.
template <class F, int WARPS> __device__ __forceinline__ void moe_read_row(const covey_moe &m, const moe_shape &s, const moe_front &front, const float *norm, uint64_t *full, uint64_t *empty, float *xs, int8_t *q, covey_pair *pairs, float *factor, int warp, int lane) {
  const int n = m.hidden, threads = WARPS * 32, thread = warp * 32 + lane;
  #pragma unroll 4
  for (int i = thread * 4; i < n; i += threads * 4) *(float4 *)(xs + i) = __ldcg((const float4 *)(m.x + i));
  warps_sync(1, threads);
  float r = 1;
  if (m.norm) {
    if (warp == 0) {
      const float acc = shared_dot<CANON_F32>((const uint8_t *)xs, xs, n, lane);
      if (lane == 0) *factor = canon_rms_factor(acc, n, m.eps);
      barrier_wait(&full[0], 0);
    }
    warps_sync(1, threads);
    r = *factor;
  }
  #pragma unroll 1
  for (int base = warp * 256; base < s.kx; base += threads * 8) {
    int i = base + lane * 8;
    float v[8], scale;
    #pragma unroll
    for (int h = 0; h < 8; h += 4) {
      float4 f = i < n ? *(const float4 *)(xs + i + h) : make_float4(0, 0, 0, 0);
      if (m.norm && i < n) {
        float4 w = *(const float4 *)(norm + i + h);
        if (m.plus_one) { w.x = w.x + 1.0f; w.y = w.y + 1.0f; w.z = w.z + 1.0f; w.w = w.w + 1.0f; }
        f = make_float4((f.x * r) * w.x, (f.y * r) * w.y, (f.z * r) * w.z, (f.w * r) * w.w);
        *(float4 *)(xs + i + h) = f;
      }
      v[h] = f.x; v[h + 1] = f.y; v[h + 2] = f.z; v[h + 3] = f.w;
    }
    int32_t sum;
    uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
    if (i < s.kx) {
      *(uint2 *)(q + i) = codes;
      if (i % F::group == 0) pairs[i / F::group] = pair_of<F::form>(scale, sum);
    }
  }
  warps_sync(1, threads);
  if (thread < front.norm) barrier_arrive(&empty[thread]);
}

// Inner values of all entries to codes as they arrive, 256 at a time, shared expert first. The helper warps take pieces from
// the start, the others when they have nothing else to do.
struct moe_piece {
  const float *from;               // this lane's eight values
  int32_t left;                    // real values from here on
  float v[8];
  __device__ __forceinline__ void look_at() {
    #pragma unroll
    for (int h = 0; h < 8; h += 4) {
      float4 f = left > h ? look4(from + h) : make_float4(0, 0, 0, 0);
      v[h] = f.x; v[h + 1] = f.y; v[h + 2] = f.z; v[h + 3] = f.w;
    }
  }
  __device__ __forceinline__ bool arrived() const {
    bool all = true;
    #pragma unroll
    for (int j = 0; j < 8; j++) all &= j >= left || !is_unset(v[j]);
    return all;
  }
};
template <class F> __device__ __noinline__ void moe_inner(const covey_moe &m, int which, int routed, int8_t *hq, covey_pair *hpairs, uint64_t *ready, int32_t *next_piece) {
  const moe_half half(m, which);
  const int lane = threadIdx.x & 31, has = m.shared_inner > 0;
  const int ki = covey_ceil(m.inner, F::group) * F::group, ks = covey_ceil(m.shared_inner, F::group) * F::group;
  const int per = covey_ceil(ki, 256), pers = covey_ceil(ks, 256), pieces = pers + routed * per;
  for (;;) {
    int first = 0;                             // two pieces at a time: their latencies overlap
    if (lane == 0) first = atomicAdd(next_piece, 2);
    first = __shfl_sync(0xffffffffu, first, 0);
    if (first >= pieces) return;
    const int take = min(2, pieces - first);
    moe_piece x[2];
    int room[2], to[2], ready_at[2];
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      const int piece = min(first + k, pieces - 1);
      const bool shared = piece < pers;
      const int e = shared ? 0 : (piece - pers) / per, i = (shared ? piece : (piece - pers) % per) * 256 + lane * 8;
      x[k].from = (shared ? half.shared : half.inner + (int64_t)e * half.stride) + i;
      x[k].left = (shared ? m.shared_inner : m.inner) - i;
      room[k] = (shared ? ks : ki) - i;
      to[k] = (shared ? m.k * ki : e * ki) + i;
      ready_at[k] = shared ? 0 : has + e;
    }
    uint32_t looks = 0;
    do {
      x[0].look_at();
      x[1].look_at();
      if (++looks == MOST_LOOKS) __trap();
    } while (!(x[0].arrived() && x[1].arrived()));
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      if (k == take) break;
      #pragma unroll
      for (int j = 0; j < 8; j++) if (j >= x[k].left) x[k].v[j] = 0.0f;
      __syncwarp();
      float scale;
      int32_t sum;
      uint2 codes = quantise8<F::group>(x[k].v, lane, &scale, &sum);
      if (room[k] > 0) {
        *(uint2 *)(hq + to[k]) = codes;
        if (to[k] % F::group == 0) hpairs[to[k] / F::group] = pair_of<F::form>(scale, sum);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&ready[ready_at[k]]);
    }
  }
}

template <class F, int WARPS> __device__ __forceinline__ void moe_layer(const covey_moe &m, int most) {
  COVEY_MEMORY(memory);
  constexpr int slot_bytes = F::segment * F::block;
  const covey_moe_shared at = covey_moe_shared_of(&m, F::group, slot_bytes, most);
  const moe_shape s(m, F::group);
  const moe_front front(m, slot_bytes);
  int8_t *q = (int8_t *)(memory + at.q), *hq = (int8_t *)(memory + at.hq);
  covey_pair *pairs = (covey_pair *)(memory + at.pairs), *hpairs = (covey_pair *)(memory + at.hpairs);
  float *xs = (float *)(memory + at.xs), *part = (float *)(memory + at.part), *tots = (float *)(memory + at.tots);
  int32_t *count = (int32_t *)(memory + at.sel);
  float *factor = (float *)(memory + at.sel + 8);
  int32_t *next_piece = count + 1;
  moe_entry *entries = (moe_entry *)(memory + at.sel + 16);
  uint64_t *full = (uint64_t *)(memory + at.bars), *empty = full + COVEY_MOE_SLOTS, *done = empty + COVEY_MOE_SLOTS, *taken = done + COVEY_MOE_PARTS, *chosen = taken + COVEY_MOE_PARTS, *ready = chosen + 1;
  uint8_t *ring = memory + at.ring;
  const int slots = at.slots, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int grid = gridDim.x;

  if (lane == 0) {                            // setting up a barrier takes 20 ns: the warps share them
    #pragma unroll 1
    for (int i = warp; i < slots; i += WARPS + 1 + MOE_HELPERS + MOE_PRODUCERS) { barrier_init(&full[i], 1); barrier_init(&empty[i], 1); }
    #pragma unroll 1
    for (int i = warp; i < s.has + m.k; i += WARPS + 1 + MOE_HELPERS + MOE_PRODUCERS) barrier_init(&ready[i], covey_ceil(i < s.has ? s.ks : s.ki, 256));
    if (warp < COVEY_MOE_PARTS) { barrier_init(&done[warp], WARPS); barrier_init(&taken[warp], 1); }
    if (warp == COVEY_MOE_PARTS) { barrier_init(chosen, 1); *next_piece = 0; }
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();

  if (warp >= WARPS + 1 + MOE_HELPERS) {
    if (lane == 0) moe_produce<F>(m, s, front, shared_address(ring), slots, shared_address(full), shared_address(empty), chosen, count, entries, warp - WARPS - 1 - MOE_HELPERS);
    return;
  }
  if (warp > WARPS && m.router) {             // on the way of the choice: no step changes them
    for (int i = (warp - WARPS - 1) * 32 + lane; i < m.experts; i += MOE_HELPERS * 32) {
      ((void **)(memory + at.places))[i] = m.table[i];
      if (m.bias) ((float *)(memory + at.places + 8 * m.experts))[i] = m.bias[i];
    }
  }
  wait_for_previous();

  if (warp > WARPS) {
    const int helper = warp - WARPS - 1;
    const int now = moe_now(m);
    const moe_half half(m, now), other(m, !now);
    for (int64_t i = blockIdx.x * MOE_HELPERS * 32 + helper * 32 + lane; i < covey_moe_exchange(&m); i += grid * MOE_HELPERS * 32) other.inner[i] = unset();
    int32_t id = -1;
    float weight = 0;
    if (m.router) {
      float *scores = (float *)(memory + at.scores);
      route_scores<MOE_HELPERS>(m, half.logits, m.bias ? (const float *)(memory + at.places + 8 * m.experts) : 0, scores, helper, lane, 3);
      route_choose<MOE_HELPERS>(m, scores, (int32_t *)(scores + 1056), helper, lane, 3, &id, &weight);
    }
    if (helper == 0) {
      if (m.router) {
        if (blockIdx.x == 0 && lane < m.k) { m.ids[lane] = id; m.weights[lane] = weight; }
      } else if (lane < m.k) {
        id = __ldcg(m.ids + lane);
        weight = __ldcg(m.weights + lane);
      }
      const uint8_t *record = lane < m.k && id >= 0 ? (const uint8_t *)(m.router ? ((void *const *)(memory + at.places))[id] : m.table[id]) : 0;
      if (lane < m.k && id >= 0 && !record) router_fault(m, CANON_FAULT_MISSING);
      uint32_t here = __ballot_sync(0xffffffffu, record != 0);
      if (record) entries[s.has + __popc(here & ((1u << lane) - 1))] = moe_entry{record, weight, 1};
      if (lane == 0) { *count = __popc(here); if (s.has) entries[0] = moe_entry{m.shared, 1.0f, 0}; }
      __syncwarp();
      if (lane == 0) barrier_arrive(chosen);
    }
    barrier_wait(chosen, 0);
    warps_sync(2, (WARPS + MOE_HELPERS) * 32);   // xs has been read
    moe_inner<F>(m, now, *count, hq, hpairs, ready, next_piece);
    return;
  }

  if (warp == WARPS) {
    // Sums over segments, silu, combination.
    const moe_half half(m, moe_now(m));
    barrier_wait(chosen, 0);
    const int routed = *count, ups = s.shared_tiles + routed * s.tiles;
    int slot = 0;
    uint32_t parity = 0;
    const int side = lane >> 4, row = lane & 15;
    for (int it = blockIdx.x; it < ups; it += grid) {
      const int i = it - s.shared_tiles, e = i / s.tiles, tile = i < 0 ? it : i - e * s.tiles, width = i < 0 ? m.shared_inner : m.inner;
      float *to = (i < 0 ? half.shared : half.inner + (int64_t)e * half.stride) + tile * 16 + row;
      const float *p = part + (slot * at.units + side * s.s1) * 16 + row;
      barrier_wait(&done[slot], parity);
      float tot = 0;
      #pragma unroll 4
      for (int j = 0; j < s.s1; j++) tot = tot + p[j * 16];
      float up = __shfl_down_sync(0xffffffffu, tot, 16);
      if (side == 0 && tile * 16 + row < width) hand_over(to, canon_siluf(tot) * up);
      if (lane == 0) barrier_arrive(&taken[slot]);
      if (++slot == COVEY_MOE_PARTS) { slot = 0; parity ^= 1; }
    }
    for (int o = grid - 1 - blockIdx.x; o < s.outputs; o += grid) {
      int c = o * 16 + row;
      float residual = side == 0 && c < m.hidden && m.residual ? __ldcg(m.residual + c) : 0.0f;
      barrier_wait(&done[slot], parity);
      const float *p = part + slot * at.units * 16 + row;
      for (int e = side; e < s.has + routed; e += 2) {
        const int segments = e < s.has ? s.s2s : s.s2;
        const float *from = p + (e < s.has ? 0 : s.has * s.s2s + (e - s.has) * s.s2) * 16;
        float tot = 0;
        #pragma unroll 4
        for (int j = 0; j < segments; j++) tot = tot + from[j * 16];
        tots[e * 16 + row] = tot;
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&taken[slot]);
      if (side == 0 && c < m.hidden) {
        float y = s.has ? tots[row] : 0.0f;
        #pragma unroll 4
        for (int e = s.has; e < s.has + routed; e++) y = fmaf(entries[e].weight, tots[e * 16 + row], y);
        m.y[c] = m.residual ? residual + y : y;
      }
      __syncwarp();
      if (++slot == COVEY_MOE_PARTS) { slot = 0; parity ^= 1; }
    }
    if (lane == 0) atomicInc(m.finished, 2 * grid - 1);
    return;
  }

  const int now = moe_now(m);
  moe_read_row<F, WARPS>(m, s, front, (const float *)ring, full, empty, xs, q, pairs, factor, warp, lane);
  if (warp < front.rows) {
    const moe_half half(m, now);
    for (int r = warp; r < front.rows; r += WARPS) {
      const int slot = front.norm + r * front.row;
      const uint8_t *w = ring + slot * slot_bytes;
      barrier_wait(&full[slot], 0);
      float z = m.router_form == CANON_F32 ? shared_dot<CANON_F32>(w, xs, m.hidden, lane) : m.router_form == CANON_BF16 ? shared_dot<CANON_BF16>(w, xs, m.hidden, lane) : shared_dot<CANON_F16>(w, xs, m.hidden, lane);
      if (lane == 0) hand_over(half.logits + blockIdx.x + r * grid, z);
      __syncwarp();
      if (lane < front.row) barrier_arrive(&empty[slot + lane]);
    }
  }
  warps_arrive(2, (WARPS + MOE_HELPERS) * 32);

  // Segments: unit v of the block goes to warp v % WARPS and lies in slot (front.slots + v) % slots.
  int mine = warp, next = front.slots + warp, begin = 0, item = 0, slot = 0;
  uint32_t parity = 0, taken_parity = 1;
  while (next >= slots) { next -= slots; parity ^= 1; }
  int it = blockIdx.x, ups = s.shared_tiles, routed = -1, units = 2 * s.s1, down = 0;
  int known = -1;                             // entries up to here have the codes of their inner values
  #pragma unroll 1
  for (;; it += grid) {
    if (!down) {
      if (it >= s.shared_tiles && routed < 0) { barrier_wait(chosen, 0); routed = *count; ups = s.shared_tiles + routed * s.tiles; }
      if (it >= ups) {
        down = 1;
        moe_inner<F>(m, now, routed, hq, hpairs, ready, next_piece);
        it = grid - 1 - blockIdx.x;
        units = s.has * s.s2s + routed * s.s2;
      }
    }
    if (down && it >= s.outputs) break;
    if (item >= COVEY_MOE_PARTS) barrier_wait(&taken[slot], taken_parity);
    float *to = part + slot * at.units * 16;
    #pragma unroll 1
    while (mine < begin + units) {
      int j = mine - begin, seg, groups = s.gx, base = 0;
      const int8_t *codes = q;
      const covey_pair *scales = pairs;
      if (down) {
        const int i = j - s.has * s.s2s, e = i < 0 ? 0 : i / s.s2, entry = i < 0 ? 0 : s.has + e;
        seg = i < 0 ? j : i - e * s.s2;
        base = i < 0 ? m.k * s.ki : e * s.ki;
        groups = i < 0 ? s.gs : s.gi;
        codes = hq; scales = hpairs;
        while (known < entry) {
          barrier_wait(&ready[++known], 0);
        }
      } else {
        seg = j < s.s1 ? j : j - s.s1;
      }
      barrier_wait(&full[next], parity);
      float2 v = segment_row<F>(ring + next * slot_bytes, codes + base + seg * CANON_SEGMENT, scales + base / F::group + seg * F::segment, min(F::segment, groups - seg * F::segment), lane);
      __syncwarp();
      if (lane == 0) barrier_arrive(&empty[next]);
      if ((lane & 3) == 0) { to[j * 16 + (lane >> 2)] = v.x; to[j * 16 + 8 + (lane >> 2)] = v.y; }
      mine += WARPS; next += WARPS;
      if (next >= slots) { next -= slots; parity ^= 1; }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&done[slot]);
    begin += units;
    item++;
    if (++slot == COVEY_MOE_PARTS) { slot = 0; taken_parity ^= 1; }
  }
}

// more[0]: bytes of dynamic shared memory.
#define COVEY_MOE_ROW(NAME, GROUP, SCALE)                                                                                                                  \
  extern "C" __global__ __launch_bounds__((MOE_WARPS + 1 + MOE_HELPERS + MOE_PRODUCERS) * 32, 1) void covey_moe_row_##NAME(const __grid_constant__ covey_moe m, const covey_program *, int32_t most) { \
    moe_layer<Form<CANON_INT4, GROUP, SCALE>, MOE_WARPS>(m, most);                                                                                         \
  }
COVEY_MOE_ROW(int4_g64_f16, 64, CANON_F16)
#ifndef COVEY_ONE_FORM
COVEY_MOE_ROW(int4_g64_bf16, 64, CANON_BF16)
COVEY_MOE_ROW(int4_g32_f16, 32, CANON_F16)
COVEY_MOE_ROW(int4_g32_bf16, 32, CANON_BF16)
COVEY_MOE_ROW(int4_g128_f16, 128, CANON_F16)
COVEY_MOE_ROW(int4_g128_bf16, 128, CANON_BF16)
#endif
