// A whole Mixture-of-Experts layer for one row in one launch: norm, quantisation, router, top-k, experts, combination in
// rank order, residual. Bound by reading the weights of the chosen and the shared experts once; everything else is arranged
// so that this reading never pauses:
//
//   - One block a multiprocessor, small enough that the next launch's block fits beside it where the shape allows (fuse.c): a
//     launch sets up and fetches what no step changes while its predecessor ends. Two warps copy weights into a ring of slots in
//     shared memory by bulk copies, a slot a segment (512 inputs) of 16 rows, in the order of use and as far ahead as the ring
//     is long. Router and shared expert are on their way before the row is read, and down matrices while blocks wait for each other.
//   - MOE_WARPS warps compute a segment each (product.cuh) and leave 16 sums; one more warp adds the segments in ascending order,
//     applies silu, turns whole groups into codes, and combines; another chooses by the scores that the multiplying warps have made,
//     and fetches the codes of inner values.
//   - Two kernels of a layer in turn should fit into 128 KB of instruction cache (docs/cuda-kernels.md): what is computed from sizes
//     is computed by the host (covey_moe_sized), and loops that run once are not unrolled.
//   - Blocks hand each other logits and codes through words that are their own flags (ptx.cuh), so nobody waits for
//     all blocks: a reader waits for the words it reads. The halves of `exchange` alternate; each launch clears the half of
//     the one before. Every block makes the choice for itself.
//   - Tiles of 16 inner values are dealt in one stretch a block. A group's codes are made by the block that computes its first
//     tile; where the stretch ends inside a group, the block that begins with the rest has made it long before and hands it over
//     as numbers. Where there is one group for nearly every block, groups are dealt whole.
#include <stddef.h>
#include "abi.h"
#include "moe.h"
#include "product.cuh"
#include "router.cuh"

// Warps that multiply; then one that adds, one that chooses, fetches codes and clears, and those that copy.
enum { MOE_WARPS = COVEY_MOE_WARPS, MOE_ADDS = MOE_WARPS, MOE_FETCHES, MOE_COPIES, MOE_PRODUCERS = 2, MOE_ALL = MOE_COPIES + MOE_PRODUCERS };
// Barriers of a block by number.
#define BAR(name) (offsetof(covey_moe_block, name) / 8)
enum { FULL_BAR = BAR(full), EMPTY = BAR(empty), DONE = BAR(done), TAKEN = BAR(taken), READ = BAR(read), CHOSEN = BAR(chosen), WEIGHED = BAR(weighed), READY = BAR(ready) };
#undef BAR
struct moe_bars {
  shared_place at;
  __device__ __forceinline__ shared_place operator()(int i) const { return at + 8 * i; }
};

// A block's part of what is dealt.
struct moe_range {
  int32_t from, to;
  __device__ __forceinline__ moe_range(const covey_moe_dealt &d, int unit) {
    const int b = blockIdx.x;
    from = (b * d.each + min(b, d.rest)) * unit;
    to = ((b + 1) * d.each + min(b + 1, d.rest)) * unit;
  }
};
// Of the routed tiles: the first is `in` of entry e.
struct moe_routed : moe_range {
  int32_t e, in;
  __device__ __forceinline__ moe_routed(const covey_moe_sizes &s) : moe_range(s.routed, s.routed_unit) {
    e = (int32_t)((uint64_t)(uint32_t)from * s.padded_of >> 32);
    in = from - e * s.padded;
  }
};

// Where a half of the exchange keeps what.
struct moe_half {
  uint32_t *codes, *pairs;
  float *values, *logits;
  __device__ __forceinline__ moe_half(const covey_moe &m, int which) {
    codes = m.exchange + which * m.at.words;
    pairs = codes + m.at.pairs_at;
    values = (float *)codes + m.at.values_at; logits = (float *)codes + m.at.logits_at;
  }
};

// The half of this launch: in every other launch the count of finished blocks starts at the number of blocks, and it grows
// by less than that while any block runs.
__device__ __forceinline__ int moe_half_of(uint32_t finished) { return finished >= gridDim.x; }

__device__ __forceinline__ int moe_rows(const covey_moe_sizes &s) { return s.rows.each + ((int)blockIdx.x < s.rows.rest); }

// One thread of each of MOE_PRODUCERS warps, which take turns: a copy takes one thread longer than its bytes take the memory.
template <class F> __device__ __forceinline__ void moe_produce(const covey_moe &m, moe_bars bars, shared_place ring, const covey_moe_block *block, int me) {
  const covey_moe_sizes &s = m.at;
  const uint64_t policy = read_once();
  constexpr int slot_bytes = F::segment * F::block;
  int at = 0;
  uint32_t parity = 1;                         // a slot that was never used counts as empty
  bool turn = me == 0;
  auto pass = [&](int n) {
    at += n;
    if (at == s.slots) { at = 0; parity ^= 1; }
  };
  auto strip = [&](const uint8_t *from, int groups) {
    #pragma unroll 1
    for (; groups > 0; groups -= F::segment, from += slot_bytes) {
      if (turn) {
        const uint32_t bytes = min(groups, (int)F::segment) * F::block;
        barrier_wait(bars(EMPTY + at), parity);
        barrier_expect(bars(FULL_BAR + at), bytes);
        bulk_load(ring + at * slot_bytes, from, bytes, bars(FULL_BAR + at), policy);
      }
      turn = !turn;
      pass(1);
    }
  };
  #pragma unroll 1
  for (int r = 0; r < moe_rows(s); r++) {      // rows of the router: several slots of the fresh ring each, the last are full with the first
    if (me == 0) {
      #pragma unroll 1
      for (int i = 1; i < s.row_slots; i++) barrier_expect(bars(FULL_BAR + at + i), 0);   // before a reader of the row can free them
      barrier_expect(bars(FULL_BAR + at), s.row_bytes);
      bulk_load(ring + at * slot_bytes, (const uint8_t *)m.router + (int64_t)(blockIdx.x + r * gridDim.x) * s.row_bytes, s.row_bytes, bars(FULL_BAR + at), policy);
    }
    pass(s.row_slots);
  }
  if (s.alone && m.router) barrier_wait(bars(READ), 0);   // the row's few bytes would wait behind all that fits into the ring
  // Up: gate and up of a tile after one another, of the shared expert and then of the routed ones. Down: the same tile of each entry.
  const int64_t up_tile = s.gx * F::block;
  const moe_range shared(s.shared, 1);
  const moe_routed mine(s);
  const covey_moe_entry *entry = block->entries + s.has + mine.e;
  int t = shared.from, end = min(shared.to, s.shared_tiles), in = t, routed = -1;
  #pragma unroll 1
  for (;; t++, in++) {
    if (t >= end) {
      if (routed >= 0) break;
      barrier_wait(bars(CHOSEN), 0);
      routed = block->routed;
      t = mine.from; end = min(mine.to, routed * s.padded); in = mine.in;
      if (t >= end) break;
    }
    if (routed >= 0 && in == s.padded) { in = 0; entry++; }
    if (routed >= 0 && in >= s.tiles) continue;
    const uint8_t *record = routed < 0 ? m.shared : entry->record;
    #pragma unroll 1
    for (int up = 0; up < 2; up++) strip(record + (routed < 0 ? (up ? m.shared_up_at : m.shared_gate_at) : (up ? m.up_at : m.gate_at)) + in * up_tile, s.gx);
  }
  #pragma unroll 1
  for (int o = gridDim.x - 1 - blockIdx.x; o < s.outputs; o += gridDim.x)
    #pragma unroll 1
    for (int e = 0; e < s.has + routed; e++) {
      const int groups = e < s.has ? s.gs : s.gi;
      strip(block->entries[e].record + (e < s.has ? m.shared_down_at : m.down_at) + (int64_t)(o * groups) * F::block, groups);
    }
}

// A lane's sum of rule 3 from shared memory: eight inputs are read while the eight before them are multiplied.
template <int FORM> __device__ __forceinline__ float shared_dot(const uint8_t *w, const float *x, int n, int lane) {
  constexpr int ahead = 8, stretch = 32 * ahead;
  float acc = 0, a[2][ahead], b[2][ahead];
  auto value = [&](int i) { return FORM == CANON_F32 ? ((const float *)w)[i] : FORM == CANON_BF16 ? canon_from_bf16(((const uint16_t *)w)[i]) : halves(((const uint16_t *)w)[i]).x; };
  auto read = [&](int k, int i) {
    #pragma unroll
    for (int j = 0; j < ahead; j++) { a[k][j] = value(i + 32 * j); b[k][j] = x[i + 32 * j]; }
  };
  auto add = [&](int k) {
    #pragma unroll
    for (int j = 0; j < ahead; j++) acc = fmaf(a[k][j], b[k][j], acc);
  };
  const int whole = n / stretch * stretch;     // where there is no next stretch, one is read twice
  if (whole) read(0, lane);
  #pragma unroll 1
  for (int i = 0; i < whole; i += 2 * stretch) {
    read(1, min(i + stretch, whole - stretch) + lane);
    add(0);
    if (i + stretch >= whole) break;
    read(0, min(i + 2 * stretch, whole - stretch) + lane);
    add(1);
  }
  #pragma unroll 1
  for (int i = whole; i < n; i += 32) if (i + lane < n) acc = fmaf(value(i + lane), x[i + lane], acc);
  return acc;
}

// The row into shared memory: values xs (normed) and codes. All multiplying warps. Sums of squares are rule 4's. The norm's weight was
// touched while the launch before still ran. Returns the half of this launch, whose count is read meanwhile.
template <class F> __device__ __forceinline__ int moe_read_row(const covey_moe &m, moe_bars bars, float *xs, int8_t *q, covey_pair *pairs, float *factor, int warp, int lane) {
  constexpr int threads = MOE_WARPS * 32, ahead = 4;
  const int n = m.hidden;
  float4 c = make_float4(0, 0, 0, 0), d = c;     // the norm's weight, a piece ahead
  auto weigh = [&](int at) {
    if (m.norm && at < n) { c = __ldg((const float4 *)(m.norm + at)); d = __ldg((const float4 *)(m.norm + at + 4)); }
  };
  weigh((warp * 32 + lane) * 8);
  #pragma unroll 1
  for (int from = (warp * 32 + lane) * 4; from < n; from += ahead * threads * 4) {   // a guard would keep the loads from overlapping
    float4 v[ahead];
    #pragma unroll
    for (int j = 0; j < ahead; j++) v[j] = __ldcg((const float4 *)(m.x + min(from + j * threads * 4, n - 4)));
    #pragma unroll
    for (int j = 0; j < ahead; j++) *(float4 *)(xs + min(from + j * threads * 4, n - 4)) = v[j];
  }
  const uint32_t finished = count_read(m.finished);
  warp_arrive(bars(READ), lane);
  warps_sync(1, threads);
  float r = 1;
  if (m.norm) {
    if (warp == 0) *factor = canon_rms_factor(warp_tree(shared_dot<CANON_F32>((const uint8_t *)xs, xs, n, lane)), n, m.eps);
    warps_sync(1, threads);
    r = *factor;
  }
  #pragma unroll 1
  for (int piece = warp * 256; piece < m.at.kx; piece += threads * 8) {
    const int at = piece + lane * 8;
    float4 a = make_float4(0, 0, 0, 0), b = a;
    if (at < n) { a = *(const float4 *)(xs + at); b = *(const float4 *)(xs + at + 4); }
    if (m.norm && at < n) {
      if (m.plus_one) {
        c = make_float4(c.x + 1.0f, c.y + 1.0f, c.z + 1.0f, c.w + 1.0f);
        d = make_float4(d.x + 1.0f, d.y + 1.0f, d.z + 1.0f, d.w + 1.0f);
      }
      *(float4 *)(xs + at) = a = make_float4((a.x * r) * c.x, (a.y * r) * c.y, (a.z * r) * c.z, (a.w * r) * c.w);
      *(float4 *)(xs + at + 4) = b = make_float4((b.x * r) * d.x, (b.y * r) * d.y, (b.z * r) * d.z, (b.w * r) * d.w);
    }
    weigh(at + threads * 8);
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float scale;
    int32_t sum;
    const uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
    if (at < m.at.kx) {
      *(uint2 *)(q + at) = codes;
      if (at % F::group == 0) pairs[at / F::group] = pair_of<F::form>(scale, sum);
    }
  }
  warps_sync(1, threads);
  return moe_half_of(finished);
}

// Sixteen inner values of each of a group's tiles in `values` -> codes and pair, by a warp.
template <class F> __device__ __forceinline__ void moe_hand_group(const float *values, uint32_t *codes, uint32_t *pair, int lane) {
  float v[8], scale;
  int32_t sum;
  const int at = lane % (F::group / 8) * 8;
  #pragma unroll
  for (int j = 0; j < 8; j += 4) {
    float4 f = *(const float4 *)(values + at + j);
    v[j] = f.x; v[j + 1] = f.y; v[j + 2] = f.z; v[j + 3] = f.w;
  }
  uint2 q = quantise8<F::group>(v, lane, &scale, &sum);
  if (lane < F::group / 8) hand_over(codes + lane * 2, make_uint2(q.x ^ 0x7f7f7f7fu, q.y ^ 0x7f7f7f7fu));
  if (lane == 0) {
    covey_pair p = pair_of<F::form>(scale, sum);
    hand_over(pair, make_uint2(__float_as_uint(p.scale), (uint32_t)p.start));
  }
}

// Codes of inner values into shared memory as they arrive, two pieces of 512 of an entry at a time, shared expert first. One warp
// takes pieces from the start (early: it looks seldom), the others when they have nothing else to do. Lanes beyond the end of a piece do what lane 0 does.
template <class F> __device__ __forceinline__ void moe_inner(const covey_moe &m, const moe_half &half, int routed, int8_t *hq, covey_pair *hpairs, covey_moe_block *block, moe_bars bars, int lane, bool early) {
  const covey_moe_sizes &s = m.at;
  const int pieces = s.ss + routed * s.si;
  for (;;) {
    int first = 0;
    if (lane == 0) first = atomicAdd(&block->next_piece, 2);
    first = __shfl_sync(0xffffffffu, first, 0);
    if (first >= pieces) return;
    int code[2], pair[2], ready[2];
    uint4 q[2];
    uint2 p[2];
    bool there[2] = {false, false};
    #pragma unroll
    for (int j = 0; j < 2; j++) {
      const int piece = min(first + j, pieces - 1), i = piece - s.ss;
      const bool shared = i < 0;
      const int e = shared ? m.k : (int)(i * s.si_of >> 16), begin = (shared ? piece : i - e * s.si) * CANON_SEGMENT, left = (shared ? s.ks : s.ki) - begin;
      code[j] = e * s.ki + begin + (lane * 16 < left ? lane * 16 : 0);
      pair[j] = (e * s.ki + begin) / F::group + (lane < F::segment && lane * F::group < left ? lane : 0);
      ready[j] = READY + (shared ? 0 : s.has + e);
    }
    uint32_t looks = 0;
    do {                                        // lanes that have theirs leave the others' words alone
      #pragma unroll
      for (int j = 0; j < 2; j++) {
        if (there[j]) continue;
        q[j] = look4(half.codes + code[j] / 4);
        p[j] = look2(half.pairs + 2 * pair[j]);
      }
      #pragma unroll
      for (int j = 0; j < 2; j++) there[j] = (q[j].x != ~0u) & (q[j].y != ~0u) & (q[j].z != ~0u) & (q[j].w != ~0u) & (p[j].x != ~0u) & (p[j].y != ~0u);
      if (++looks == MOST_LOOKS) __trap();
      if (early) rest();
    } while (!__all_sync(0xffffffffu, there[0] & there[1]));
    #pragma unroll
    for (int j = 0; j < 2; j++) {
      *(uint4 *)(hq + code[j]) = make_uint4(q[j].x ^ 0x7f7f7f7fu, q[j].y ^ 0x7f7f7f7fu, q[j].z ^ 0x7f7f7f7fu, q[j].w ^ 0x7f7f7f7fu);
      hpairs[pair[j]] = covey_pair{__uint_as_float(p[j].x), (int32_t)p[j].y};
    }
    warp_arrive(bars(ready[0]), lane);
    if (first + 1 < pieces) warp_arrive(bars(ready[1]), lane);
  }
}

// Sum of n values 16 apart, ascending from +0.
__device__ __forceinline__ float moe_sum(const float *p, int n) {
  float tot = 0;
  #pragma unroll 1
  for (; n >= 4; n -= 4, p += 64) {
    const float a = p[0], b = p[16], c = p[32], d = p[48];
    tot = (((tot + a) + b) + c) + d;
  }
  #pragma unroll 1
  for (; n > 0; n--, p += 16) tot = tot + p[0];
  return tot;
}

// Sums over segments, silu, codes; then sums of outputs and their combination. One warp: half of it for gate and for up, or for every
// other entry.
template <class F> __device__ __forceinline__ void moe_add(const covey_moe &m, const float *part, covey_moe_block *block, moe_bars bars, int lane) {
  const covey_moe_sizes &s = m.at;
  const moe_half half(m, moe_half_of(count_read(m.finished)));
  float *const tots = block->tots[0];
  constexpr int beside = 5;
  const int side = lane >> 4, row = lane & 15, per = F::group / 16, most = max(s.ss, s.si);
  int slot = 0;
  uint32_t parity = 0;
  auto pass = [&] {
    warp_arrive(bars(TAKEN + slot), lane);
    if (++slot == COVEY_MOE_PARTS) { slot = 0; parity ^= 1; }
  };
  const moe_range shared(s.shared, 1);
  const moe_routed mine(s);
  // Tile t from `from` to `end`: `in` among the tiles of its expert, whose inner values of `width` begin at `first` of the exchange.
  int routed = -1, t = shared.from, from = t, end = shared.to, in = t, width = m.shared_inner, first = m.k * s.ki;
  #pragma unroll 1
  for (;; t++, in++) {
    if (t >= end) {
      if (routed >= 0) break;
      barrier_wait(bars(CHOSEN), 0);
      routed = block->routed;
      t = from = mine.from; end = min(mine.to, routed * s.padded); in = mine.in; width = m.inner; first = mine.e * s.ki;
      if (t >= end) break;
    }
    if (routed >= 0 && in == s.padded) { in = 0; first += s.ki; }
    float v = 0;
    if (in * 16 < width) {
      const float *p = part + (slot * s.units + side * s.sx) * 16 + row;
      barrier_wait(bars(DONE + slot), parity);
      const float tot = moe_sum(p, s.sx);
      const float up = __shfl_down_sync(0xffffffffu, tot, 16);
      if (in * 16 + row < width) v = canon_siluf(tot) * up;
      pass();
    }
    const int place = in % per, begin = (in - place) * 16;      // of the group
    if (t - place < from) {                                     // another block makes its codes
      if (side == 0 && in * 16 + row < width) hand_over(half.values + first + in * 16 + row, v);
      continue;
    }
    if (side == 0) tots[place * 16 + row] = v;
    if (place + 1 < per && t + 1 < end) continue;
    #pragma unroll 1
    for (int i = (place + 1) * 16; i < F::group; i += 32) {   // tiles that another block computes
      const int from = begin + i + lane;
      const bool some = i + lane < F::group && from < width;
      float w;
      uint32_t looks = 0;
      do {
        w = some ? look(half.values + first + from) : 0.0f;
        if (++looks == MOST_LOOKS) __trap();
      } while (!__all_sync(0xffffffffu, !is_unset(w)));
      if (i + lane < F::group) tots[i + lane] = w;
    }
    __syncwarp();
    moe_hand_group<F>(tots, half.codes + (first + begin) / 4, half.pairs + (first + begin) / F::group * 2, lane);
    __syncwarp();
  }
  barrier_wait(bars(WEIGHED), 0);
  #pragma unroll 1
  for (int o = gridDim.x - 1 - blockIdx.x; o < s.outputs; o += gridDim.x) {
    const int c = o * 16 + row;
    const float residual = side == 0 && c < m.hidden && m.residual ? __ldcg(m.residual + c) : 0.0f;
    barrier_wait(bars(DONE + slot), parity);
    // Five entries side by side: what takes time is the way to shared memory and back.
    #pragma unroll 1
    for (int first = side; first < s.has + routed; first += 2 * beside) {
      float tot[beside];
      int at[beside], segments[beside];
      #pragma unroll
      for (int i = 0; i < beside; i++) {
        const int e = first + 2 * i;
        tot[i] = 0;
        segments[i] = e < s.has ? s.ss : e < s.has + routed ? s.si : 0;
        at[i] = (slot * s.units + (segments[i] == 0 || e < s.has ? 0 : s.has * s.ss + (e - s.has) * s.si)) * 16 + row;
      }
      #pragma unroll 1
      for (int j = 0; j < most; j++) {
        float v[beside];
        #pragma unroll
        for (int i = 0; i < beside; i++) v[i] = part[at[i]];
        #pragma unroll
        for (int i = 0; i < beside; i++) {
          if (j < segments[i]) tot[i] = tot[i] + v[i];
          if (j + 1 < segments[i]) at[i] += 16;
        }
      }
      #pragma unroll
      for (int i = 0; i < beside; i++) if (segments[i]) tots[(first + 2 * i) * 16 + row] = tot[i];
    }
    pass();
    if (side == 0 && c < m.hidden) {
      float y = s.has ? tots[row] : 0.0f;
      #pragma unroll 4
      for (int e = s.has; e < s.has + routed; e++) y = fmaf(block->entries[e].weight, tots[e * 16 + row], y);
      m.y[c] = m.residual ? residual + y : y;
    }
    __syncwarp();
  }
  if (lane == 0) atomicInc(m.finished, 2 * gridDim.x - 1);
}

// Entries and weights of this block by one warp, chosen by the scores that those which multiply have made, or as given; block 0 writes a
// choice down.
__device__ __forceinline__ void moe_enter(const covey_moe &m, const route_memory &at, const uint8_t *const *places, covey_moe_block *block, moe_bars bars, int lane) {
  int32_t id = -1;
  int some = 0;
  float weight = 0;
  if (m.router) {
    id = route_choose(m, at, lane, &some, 0);
  } else if (lane < m.k) {
    id = __ldcg(m.ids + lane);
    weight = __ldcg(m.weights + lane);
  }
  const uint8_t *record = id >= 0 ? places[id] : 0;
  if (id >= 0 && !record) router_fault(m, CANON_FAULT_MISSING);
  const uint32_t here = __ballot_sync(0xffffffffu, record != 0);
  covey_moe_entry *entry = block->entries + m.at.has + __popc(here & ((1u << lane) - 1));
  if (record) entry->record = record;
  if (lane == 0) { block->routed = __popc(here); if (m.at.has) block->entries[0].record = m.shared; }
  warp_arrive(bars(CHOSEN), lane);
  if (m.router) {
    weight = route_weight(m, at, id, some, lane);
    if (blockIdx.x == 0 && lane < m.k) { m.ids[lane] = id; m.weights[lane] = weight; }
  }
  if (record) entry->weight = weight;
  warp_arrive(bars(WEIGHED), lane);
}

template <class F> __device__ __forceinline__ void moe_layer(const covey_moe &m) {
  COVEY_MEMORY(memory);
  constexpr int slot_bytes = F::segment * F::block;
  const covey_moe_sizes &s = m.at;
  covey_moe_block *const block = (covey_moe_block *)memory;
  const moe_bars bars = {shared_address(memory)};
  int8_t *q = (int8_t *)(memory + s.q), *hq = (int8_t *)(memory + s.hq);
  covey_pair *pairs = (covey_pair *)(memory + s.pairs), *hpairs = (covey_pair *)(memory + s.hpairs);
  float *xs = (float *)(memory + s.xs), *part = (float *)(memory + s.part);
  uint8_t *ring = memory + s.ring;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, grid = gridDim.x;   // so the compiler knows that a warp's lanes agree

  let_next_start();                           // it waits for this launch's end before it reads what a step changes
  if (lane == 0) {                            // setting up a barrier takes 20 ns: the warps share them
    #pragma unroll 1
    for (int i = warp; i < s.slots; i += MOE_ALL) { barrier_init(bars(FULL_BAR + i), 1); barrier_init(bars(EMPTY + i), WARP_ARRIVALS); }
    #pragma unroll 1
    for (int i = warp; i < s.has + m.k; i += MOE_ALL) barrier_init(bars(READY + i), (i < s.has ? s.ss : s.si) * WARP_ARRIVALS);
    if (warp < COVEY_MOE_PARTS) { barrier_init(bars(DONE + warp), MOE_WARPS * WARP_ARRIVALS); barrier_init(bars(TAKEN + warp), WARP_ARRIVALS); }
    if (warp == COVEY_MOE_PARTS) { barrier_init(bars(CHOSEN), WARP_ARRIVALS); barrier_init(bars(WEIGHED), WARP_ARRIVALS); barrier_init(bars(READ), MOE_WARPS * WARP_ARRIVALS); block->next_piece = 0; }
    barrier_init_done();
  }
  __syncthreads();

  if (warp >= MOE_COPIES) {
    if (lane == 0) moe_produce<F>(m, bars, shared_address(ring), block, warp - MOE_COPIES);
    return;
  }
  // What no step changes, while the launch before still runs.
  float *const biases = (float *)(memory + s.biases);
  const uint8_t **const places = (const uint8_t **)(memory + s.places);
  const route_memory choice((float *)(memory + s.scores));
  if (warp == MOE_FETCHES) {
    #pragma unroll 1
    for (int i = lane; i < m.experts; i += 32) {
      places[i] = (const uint8_t *)m.table[i];
      if (m.bias) biases[i] = m.bias[i];
    }
    warps_arrive(3, (MOE_WARPS + 1) * 32);
  } else if (warp < MOE_WARPS && m.norm) {
    #pragma unroll 1
    for (int i = (warp * 32 + lane) * 8; i < m.hidden; i += MOE_WARPS * 256) touch(__ldg(m.norm + i));
  }
  wait_for_previous();
  if (warp == MOE_ADDS) {
    moe_add<F>(m, part, block, bars, lane);
    return;
  }

  int now;
  if (warp == MOE_FETCHES) now = moe_half_of(count_read(m.finished));
  else now = moe_read_row<F>(m, bars, xs, q, pairs, &block->factor, warp, lane);
  const moe_half half(m, now);
  if (warp == MOE_FETCHES) {
    if (m.router) warps_sync(2, (MOE_WARPS + 1) * 32);   // the others have the scores
    moe_enter(m, choice, places, block, bars, lane);
    if (!m.router) warps_sync(2, (MOE_WARPS + 1) * 32);  // they have read xs
    uint32_t *other = m.exchange + (now ? 0 : s.words);
    #pragma unroll 1
    for (int i = blockIdx.x * 32 + lane; i < s.words; i += grid * 32) other[i] = ~0u;
  } else {
    #pragma unroll 1
    for (int r = warp; r < moe_rows(s); r += MOE_WARPS) {
      const int slot = r * s.row_slots;
      const uint8_t *w = ring + slot * slot_bytes;
      barrier_wait(bars(FULL_BAR + slot), 0);
      const float z = warp_tree(m.router_form == CANON_F32 ? shared_dot<CANON_F32>(w, xs, m.hidden, lane) : m.router_form == CANON_BF16 ? shared_dot<CANON_BF16>(w, xs, m.hidden, lane) : shared_dot<CANON_F16>(w, xs, m.hidden, lane));
      if (lane < COVEY_MOE_COPIES) hand_over(half.logits + lane * s.logits + blockIdx.x + r * grid, z);
      warp_arrive_at(s.row_slots, lane, [&](int i) { return bars(EMPTY + slot + i); });
    }
    warps_sync(3, (MOE_WARPS + 1) * 32);      // these slots have been read: whoever waits for their next use waits for no other
    // Before the shared expert: the sooner the choice, the sooner the routed experts' weights are on their way.
    if (m.router) route_scores<MOE_WARPS>(m, half.logits + blockIdx.x % COVEY_MOE_COPIES * s.logits, m.bias ? biases : 0, choice, warp, lane, 1, 0);
    warps_arrive(2, (MOE_WARPS + 1) * 32);
  }

  // Segments: unit v of the block goes to warp v % MOE_WARPS and lies in slot (first free + v) % slots. Slots are a multiple of MOE_WARPS,
  // so that a slot is always the same warp's and the same producer's: copies end in any order, and who waits for a slot's next use while
  // this one has not arrived would take it for that. The warp that fetches codes has no units.
  int mine = warp, next = moe_rows(s) * s.row_slots + warp, begin = 0, item = 0, slot = 0;
  uint32_t parity = 0, taken_parity = 1;
  while (next >= s.slots) { next -= s.slots; parity ^= 1; }
  int known = -1;                             // entries up to here have the codes of their inner values
  const moe_range shared(s.shared, 1);
  const moe_routed deal(s);
  int phase = 0, t = shared.from, end = warp == MOE_FETCHES ? t : min(shared.to, s.shared_tiles), in = 0, routed = 0;   // up of the shared expert, of the routed ones; down
  #pragma unroll 1
  for (;; t += phase < 2 ? 1 : grid, in++) {
    if (phase == 0 && t >= end) {
      barrier_wait(bars(CHOSEN), 0);
      routed = block->routed;
      phase = 1; t = deal.from; end = warp == MOE_FETCHES ? t : min(deal.to, routed * s.padded); in = deal.in;
    }
    if (phase == 1) {
      if (in == s.padded) in = 0;
      if (t < end && in >= s.tiles) continue;
      if (t >= end) {
        moe_inner<F>(m, half, routed, hq, hpairs, block, bars, lane, warp == MOE_FETCHES);
        if (warp == MOE_FETCHES) return;
        phase = 2; t = grid - 1 - blockIdx.x; end = s.outputs;
      }
    }
    if (phase == 2 && t >= end) break;
    const int units = phase < 2 ? 2 * s.sx : s.ss + routed * s.si;
    if (item >= COVEY_MOE_PARTS) barrier_wait(bars(TAKEN + slot), taken_parity);
    float *to = part + slot * s.units * 16;
    #pragma unroll 1
    while (mine < begin + units) {
      const int j = mine - begin;
      int seg = j < s.sx ? j : j - s.sx, groups = s.gx, base = 0;
      const int8_t *codes = q;
      const covey_pair *scales = pairs;
      if (phase == 2) {
        const int i = j - s.ss, e = i < 0 ? m.k : (int)(i * s.si_of >> 16), entry = i < 0 ? 0 : s.has + e;
        seg = i < 0 ? j : i - e * s.si;
        base = e * s.ki;
        groups = i < 0 ? s.gs : s.gi;
        codes = hq; scales = hpairs;
        while (known < entry) barrier_wait(bars(READY + ++known), 0);
      }
      barrier_wait(bars(FULL_BAR + next), parity);
      float2 v = segment_row<F>(ring + next * slot_bytes, codes + base + seg * CANON_SEGMENT, scales + base / F::group + seg * F::segment, min((int)F::segment, groups - seg * F::segment), lane);
      warp_arrive(bars(EMPTY + next), lane);
      if ((lane & 3) == 0) { to[j * 16 + (lane >> 2)] = v.x; to[j * 16 + 8 + (lane >> 2)] = v.y; }
      mine += MOE_WARPS; next += MOE_WARPS;
      if (next >= s.slots) { next -= s.slots; parity ^= 1; }
    }
    warp_arrive(bars(DONE + slot), lane);
    begin += units;
    item++;
    if (++slot == COVEY_MOE_PARTS) { slot = 0; taken_parity ^= 1; }
  }
}

#define COVEY_MOE_ROW(NAME, GROUP, SCALE)                                                                                                                  \
  extern "C" __global__ __launch_bounds__(MOE_ALL * 32, 2) void covey_moe_row_##NAME(const __grid_constant__ covey_moe m, const covey_program *) { \
    moe_layer<Form<CANON_INT4, GROUP, SCALE>>(m);                                                                                                          \
  }
COVEY_MOE_ROW(int4_g64_f16, 64, CANON_F16)
#ifndef COVEY_ONE_FORM
COVEY_MOE_ROW(int4_g64_bf16, 64, CANON_BF16)
COVEY_MOE_ROW(int4_g32_f16, 32, CANON_F16)
COVEY_MOE_ROW(int4_g32_bf16, 32, CANON_BF16)
COVEY_MOE_ROW(int4_g128_f16, 128, CANON_F16)
COVEY_MOE_ROW(int4_g128_bf16, 128, CANON_BF16)
#endif
