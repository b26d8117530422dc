// A whole Mixture-of-Experts layer for one row in one launch: norm, quantisation, router, top-k, experts, combination in
// rank order, residual. Bound by reading the weights of the chosen and the shared experts once; everything else is arranged
// so that this reading never pauses:
//
//   - One block a multiprocessor, small enough that the next launch's block fits beside it where the shape allows (fuse.c): a
//     launch sets up and fetches what no step changes while its predecessor ends. Two warps copy weights into a ring of slots in
//     shared memory by bulk copies, a slot a segment (512 inputs) of 16 rows, in the order of use and as far ahead as the ring
//     is long. Norm, router and the shared expert are on their way before the row is read, and down matrices while blocks wait
//     for each other.
//   - MOE_WARPS warps compute a segment each (product.cuh) and leave 16 sums; one more warp adds the segments in ascending order,
//     applies silu, turns whole groups into codes, and combines; helpers choose the experts and fetch the codes of inner values.
//   - Blocks hand each other logits and codes through words that are their own flags (ptx.cuh), so nobody waits for
//     all blocks: a reader waits for the words it reads. The halves of `exchange` alternate; each launch clears the half of
//     the one before. Every block makes the choice for itself.
//   - Tiles of 16 inner values are dealt in one stretch a block. A group's codes are made by the block that computes its first
//     tile; where the stretch ends inside a group, the block that begins with the rest has made it long before and hands it over
//     as numbers. Where there is one group for nearly every block, groups are dealt whole.
#include "abi.h"
#include "moe.h"
#include "product.cuh"
#include "router.cuh"

enum { MOE_WARPS = COVEY_MOE_WARPS, MOE_PRODUCERS = 2, MOE_HELPERS = 1, MOE_ALL = MOE_WARPS + 1 + MOE_HELPERS + MOE_PRODUCERS };   // warps that multiply; that copy; that choose and quantise

struct moe_entry { const uint8_t *record; float weight; };

// Work of one block, the same for all its warps once the entries are known.
struct moe_shape {
  uint32_t segment_of;                        // j / s2 is j * segment_of >> 16 for the few j there are
  int32_t kx, ki, ks, gx, gi, gs, s1, s2, s2s, shared_tiles, tiles, outputs, has;
  __device__ __forceinline__ moe_shape(const covey_moe &m, int group) {
    gx = covey_ceil(m.hidden, group); gi = covey_ceil(m.inner, group); gs = covey_ceil(m.shared_inner, group);
    kx = gx * group; ki = gi * group; ks = gs * group;
    int per = CANON_SEGMENT / group;
    s1 = covey_ceil(gx, per); s2 = covey_ceil(gi, per); s2s = covey_ceil(gs, per);
    shared_tiles = covey_ceil(m.shared_inner, 16); tiles = covey_ceil(m.inner, 16); outputs = covey_ceil(m.hidden, 16);
    has = m.shared_inner > 0;
    segment_of = 65536 / s2 + 1;
  }
};

// A block's tiles of inner values: of the shared expert, or of all routed ones in the order of their entries, each expert padded to
// whole groups. Output tiles are dealt backward.
struct moe_stretch {
  int32_t from, to;
  __device__ __forceinline__ moe_stretch(int groups, int per, bool whole) {
    const int n = whole ? groups : groups * per, unit = whole ? per : 1;
    from = (int)(blockIdx.x * n / gridDim.x) * unit;
    to = (int)((blockIdx.x + 1) * n / gridDim.x) * unit;
  }
};
// Whole groups where nearly every block gets one.
__device__ __forceinline__ bool whole_groups(int groups) { return groups <= (int)gridDim.x && 8 * groups >= 7 * (int)gridDim.x; }
template <class F> __device__ __forceinline__ moe_stretch shared_stretch(const moe_shape &s) { return moe_stretch(s.gs, F::group / 16, false); }
// The routed stretch, and what its first tile is: `in` of entry e. Made for m.k entries before they are known: it takes divisions.
struct moe_deal {
  moe_stretch r;
  int32_t e, in;
  __device__ __forceinline__ moe_deal(const moe_shape &s, int group, int routed) : r(routed * s.gi, group / 16, whole_groups(routed * s.gi)) {
    e = r.from / (s.ki / 16);
    in = r.from - e * (s.ki / 16);
  }
};

// Where a half of the exchange keeps what.
struct moe_half {
  uint32_t *codes, *pairs;
  float *values, *logits;
  __device__ __forceinline__ moe_half(const covey_moe &m, int group, int which) {
    const covey_moe_half h = covey_moe_half_of(&m, group);
    codes = m.exchange + which * h.words;
    pairs = codes + h.pairs;
    values = (float *)codes + h.values; logits = (float *)codes + h.logits;
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
template <class F> __device__ __forceinline__ void moe_produce(const covey_moe &m, const moe_shape &s, const moe_front &front, uint8_t *ring, int slots, uint64_t *full, uint64_t *empty, uint64_t *chosen, const int32_t *count, const moe_entry *entries, moe_deal deal, int me) {
  const uint64_t policy = read_once();
  constexpr uint32_t slot_bytes = F::segment * F::block;
  uint64_t *const end = full + slots, *at = full;
  uint8_t *to = ring;
  uint32_t parity = 1;                         // a slot that was never used counts as empty
  int turn = 0;
  auto issue = [&](const uint8_t *from, uint32_t bytes) {
    if (turn == me) {
      barrier_wait(at + (empty - full), parity);
      barrier_expect(shared_address(at), bytes);
      bulk_load(shared_address(to), from, bytes, shared_address(at), policy);
    }
    if (++turn == MOE_PRODUCERS) turn = 0;
    at++; to += slot_bytes;
    if (at == end) { at = full; to = ring; parity ^= 1; }
  };
  auto first = [&](const void *from, uint32_t bytes, int take) {   // several slots of the fresh ring; the last are full with the first
    if (me == 0) {
      barrier_expect(shared_address(at), bytes);
      bulk_load(shared_address(to), from, bytes, shared_address(at), policy);
      #pragma unroll 1
      for (int i = 1; i < take; i++) barrier_expect(shared_address(at + i), 0);
    }
    at += take; to += slot_bytes * take;
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
  auto both = [&](const uint8_t *record, int64_t gate, int64_t up, int tile) {
    #pragma unroll 1
    for (int half = 0; half < 2; half++) strip(record + (half ? up : gate), tile, s.gx);
  };
  const moe_stretch mine = shared_stretch<F>(s);
  #pragma unroll 1
  for (int t = mine.from; t < min(mine.to, s.shared_tiles); t++) both(m.shared, m.shared_gate_at, m.shared_up_at, t);
  barrier_wait(chosen, 0);
  const int routed = *count, padded = s.ki / 16;
  if (routed != m.k) deal = moe_deal(s, F::group, routed);
  int e = deal.e, tile = deal.in;
  #pragma unroll 1
  for (int t = deal.r.from; t < deal.r.to; t++) {
    if (tile < s.tiles) both(entries[s.has + e].record, m.gate_at, m.up_at, tile);
    if (++tile == padded) { tile = 0; e++; }
  }
  #pragma unroll 1
  for (int o = gridDim.x - 1 - blockIdx.x; o < s.outputs; o += gridDim.x)
    #pragma unroll 1
    for (int e = 0; e < s.has + routed; e++) strip(entries[e].record + (e < s.has ? m.shared_down_at : m.down_at), o, e < s.has ? s.gs : s.gi);
}

// Rule 3 from shared memory, by a warp.
template <int FORM> __device__ __forceinline__ float shared_dot(const uint8_t *w, const float *x, int n, int lane) {
  constexpr int ahead = 8;                    // inputs of a lane that are read before they are needed
  float acc = 0, a[2][ahead], b[2][ahead];
  auto value = [&](int i) { return FORM == CANON_F32 ? ((const float *)w)[i] : FORM == CANON_BF16 ? canon_from_bf16(((const uint16_t *)w)[i]) : canon_from_f16(((const uint16_t *)w)[i]); };
  auto read = [&](int k, int i) {
    #pragma unroll
    for (int j = 0; j < ahead; j++) { a[k][j] = value(i + 32 * j); b[k][j] = x[i + 32 * j]; }
  };
  auto add = [&](int k) {
    #pragma unroll
    for (int j = 0; j < ahead; j++) acc = fmaf(a[k][j], b[k][j], acc);
  };
  const int whole = n / (32 * ahead);         // stretches of all lanes' inputs, without a question in between
  int i = lane, left = whole;
  if (left) read(0, i);
  #pragma unroll 1
  for (; left > 2; left -= 2, i += 64 * ahead) {
    read(1, i + 32 * ahead);
    add(0);
    read(0, i + 64 * ahead);
    add(1);
  }
  if (left > 1) read(1, i + 32 * ahead);
  if (left) add(0);
  if (left > 1) add(1);
  #pragma unroll 1
  for (i = whole * 32 * ahead + lane; i < n; i += 32) acc = fmaf(value(i), x[i], acc);
  return warp_tree(acc);
}

// Norm and codes of the eight values at i and, for N = 2, of those `apart` further: two chains of operations side by side.
template <class F, int N> __device__ __forceinline__ void moe_codes(const covey_moe &m, const float *norm, float r, float *xs, int8_t *q, covey_pair *pairs, int kx, int i, int apart, int lane) {
  float v[N][8], scale[N];
  int32_t sum[N];
  uint2 codes[N];
  #pragma unroll
  for (int k = 0; k < N; k++)
    #pragma unroll
    for (int h = 0; h < 8; h += 4) {
      const int at = i + k * apart + h;
      float4 f = at < m.hidden ? *(const float4 *)(xs + at) : make_float4(0, 0, 0, 0);
      if (m.norm && at < m.hidden) {
        float4 w = *(const float4 *)(norm + at);
        if (m.plus_one) { w.x = w.x + 1.0f; w.y = w.y + 1.0f; w.z = w.z + 1.0f; w.w = w.w + 1.0f; }
        f = make_float4((f.x * r) * w.x, (f.y * r) * w.y, (f.z * r) * w.z, (f.w * r) * w.w);
        *(float4 *)(xs + at) = f;
      }
      v[k][h] = f.x; v[k][h + 1] = f.y; v[k][h + 2] = f.z; v[k][h + 3] = f.w;
    }
  quantise8<F::group, N>(v, lane, scale, sum, codes);
  #pragma unroll
  for (int k = 0; k < N; k++) {
    const int at = i + k * apart;
    if (at < kx) {
      *(uint2 *)(q + at) = codes[k];
      if (at % F::group == 0) pairs[at / F::group] = pair_of<F::form>(scale[k], sum[k]);
    }
  }
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
  for (int piece = warp; piece * 256 < s.kx; piece += 2 * WARPS) {
    if ((piece + WARPS) * 256 < s.kx) moe_codes<F, 2>(m, norm, r, xs, q, pairs, s.kx, piece * 256 + lane * 8, threads * 8, lane);
    else moe_codes<F, 1>(m, norm, r, xs, q, pairs, s.kx, piece * 256 + lane * 8, 0, lane);
  }
  warps_sync(1, threads);
  if (warp == 0) warp_arrive_at(front.norm, lane, [&](int i) { return &empty[i]; });
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

// Codes of inner values into shared memory as they arrive, 512 of an entry at a time, shared expert first. The helper warps take
// pieces from the start, the others when they have nothing else to do.
template <class F> __device__ __noinline__ void moe_inner(const covey_moe &m, int which, int routed, int8_t *hq, covey_pair *hpairs, uint64_t *ready, int32_t *next_piece) {
  const moe_half half(m, F::group, which);
  const int lane = threadIdx.x & 31, has = m.shared_inner > 0;
  const int ki = covey_ceil(m.inner, F::group) * F::group, ks = covey_ceil(m.shared_inner, F::group) * F::group;
  const int per = covey_ceil(ki, CANON_SEGMENT), pers = covey_ceil(ks, CANON_SEGMENT), pieces = pers + routed * per;
  for (;;) {
    int piece = 0;
    if (lane == 0) piece = atomicAdd(next_piece, 1);
    piece = __shfl_sync(0xffffffffu, piece, 0);
    if (piece >= pieces) return;
    const bool shared = piece < pers;
    const int e = shared ? m.k : (piece - pers) / per, first = (shared ? piece : (piece - pers) % per) * CANON_SEGMENT, left = (shared ? ks : ki) - first;
    const int code = e * ki + first + lane * 16, pair = (e * ki + first) / F::group + lane;
    const bool codes = lane * 16 < left, scales = lane < F::segment && lane * F::group < left;
    uint4 q = make_uint4(0, 0, 0, 0);
    uint2 p = make_uint2(0, 0);
    bool all;
    uint32_t looks = 0;
    do {
      if (codes) q = look4(half.codes + code / 4);
      if (scales) p = look2(half.pairs + 2 * pair);
      all = (q.x != ~0u) & (q.y != ~0u) & (q.z != ~0u) & (q.w != ~0u) & (p.x != ~0u) & (p.y != ~0u);
      if (!all && ++looks == MOST_LOOKS) __trap();
    } while (!all);
    if (codes) *(uint4 *)(hq + code) = make_uint4(q.x ^ 0x7f7f7f7fu, q.y ^ 0x7f7f7f7fu, q.z ^ 0x7f7f7f7fu, q.w ^ 0x7f7f7f7fu);
    if (scales) hpairs[pair] = covey_pair{__uint_as_float(p.x), (int32_t)p.y};
    warp_arrive(&ready[shared ? 0 : has + e], lane);
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
  uint64_t *full = (uint64_t *)(memory + at.bars), *empty = full + COVEY_MOE_SLOTS, *done = empty + COVEY_MOE_SLOTS, *taken = done + COVEY_MOE_PARTS, *chosen = taken + COVEY_MOE_PARTS, *weighed = chosen + 1, *ready = weighed + 1;
  uint8_t *ring = memory + at.ring;
  moe_deal deal(s, F::group, m.k);
  const int slots = at.slots, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int grid = gridDim.x;

  let_next_start();                           // it waits for this launch's end before it reads what a step changes
  if (lane == 0) {                            // setting up a barrier takes 20 ns: the warps share them
    #pragma unroll 1
    for (int i = warp; i < slots; i += MOE_ALL) { barrier_init(&full[i], 1); barrier_init(&empty[i], WARP_ARRIVALS); }
    #pragma unroll 1
    for (int i = warp; i < s.has + m.k; i += MOE_ALL) barrier_init(&ready[i], covey_ceil(i < s.has ? s.ks : s.ki, CANON_SEGMENT) * WARP_ARRIVALS);
    if (warp < COVEY_MOE_PARTS) { barrier_init(&done[warp], WARPS * WARP_ARRIVALS); barrier_init(&taken[warp], WARP_ARRIVALS); }
    if (warp == COVEY_MOE_PARTS) { barrier_init(chosen, WARP_ARRIVALS); barrier_init(weighed, WARP_ARRIVALS); *next_piece = 0; }
    barrier_init_done();
  }
  __syncthreads();

  if (warp >= WARPS + 1 + MOE_HELPERS) {
    if (lane == 0) moe_produce<F>(m, s, front, ring, slots, full, empty, chosen, count, entries, deal, warp - WARPS - 1 - MOE_HELPERS);
    return;
  }
  if (warp > WARPS) {                         // on the way of the choice: no step changes them
    for (int i = (warp - WARPS - 1) * 32 + lane; i < m.experts; i += MOE_HELPERS * 32) {
      ((void **)(memory + at.places))[i] = m.table[i];
      if (m.bias) ((float *)(memory + at.places + 8 * m.experts))[i] = m.bias[i];
    }
  }
  if (warp <= WARPS) wait_for_previous();

  if (warp > WARPS) {
    const int helper = warp - WARPS - 1;
    __syncwarp();                               // table and biases have been copied
    int now = 0;
    float *scores = (float *)(memory + at.scores);
    // Twice: instructions that run once a launch take most of their time to arrive, and before the logits there is time.
    #pragma unroll 1
    for (int real = m.router ? 0 : 1; real < 2; real++) {
      if (real) {
        wait_for_previous();
        now = moe_now(m);
      }
      if (helper) continue;
      int32_t id = -1;
      float weight = 0;
      if (m.router) {                           // one warp: its lanes' experts side by side take less time than warps that meet
        route_scores<1>(m, real ? moe_half(m, F::group, now).logits : (const float *)m.router, m.bias ? (const float *)(memory + at.places + 8 * m.experts) : 0, scores, 0, lane, 0, 0, real);
        id = route_choose(m, scores, lane, 0, real);
      } else if (lane < m.k) {
        id = __ldcg(m.ids + lane);
        weight = __ldcg(m.weights + lane);
      }
      const uint8_t *record = lane < m.k && id >= 0 ? ((const uint8_t *const *)(memory + at.places))[id] : 0;
      if (real && lane < m.k && id >= 0 && !record) router_fault(m, CANON_FAULT_MISSING);
      const uint32_t here = __ballot_sync(0xffffffffu, record != 0);
      moe_entry *entry = entries + s.has + __popc(here & ((1u << lane) - 1));
      if (record) entry->record = record;
      if (lane == 0) { *count = __popc(here); if (s.has) entries[0].record = m.shared; }
      if (real) warp_arrive(chosen, lane);
      else __syncwarp();
      if (m.router) {
        weight = route_weight(m, scores, id, lane);
        if (real && blockIdx.x == 0 && lane < m.k) { m.ids[lane] = id; m.weights[lane] = weight; }
      }
      if (record) entry->weight = weight;
      if (real) warp_arrive(weighed, lane);
      else __syncwarp();
    }
    const moe_half other(m, F::group, !now);
    const int words = covey_moe_half_of(&m, F::group).words;
    for (int i = blockIdx.x * MOE_HELPERS * 32 + helper * 32 + lane; i < words; i += grid * MOE_HELPERS * 32) other.codes[i] = ~0u;
    barrier_wait(chosen, 0);
    warps_sync(2, (WARPS + MOE_HELPERS) * 32);   // xs has been read
    moe_inner<F>(m, now, *count, hq, hpairs, ready, next_piece);
    return;
  }

  if (warp == WARPS) {
    // Sums over segments, silu, codes, combination.
    const moe_half half(m, F::group, moe_now(m));
    int slot = 0;
    uint32_t parity = 0;
    const int side = lane >> 4, row = lane & 15, per = F::group / 16;
    auto pass = [&] {
      warp_arrive(&taken[slot], lane);
      if (++slot == COVEY_MOE_PARTS) { slot = 0; parity ^= 1; }
    };
    // Tile t of a stretch: `in` among the tiles of its expert, whose inner values of `width` begin at `first` of the exchange.
    auto tile = [&](const moe_stretch &r, int t, int in, int first, int width) {
      float v = 0;
      if (in * 16 < width) {
        const float *p = part + (slot * at.units + side * s.s1) * 16 + row;
        barrier_wait(&done[slot], parity);
        float tot = 0;
        #pragma unroll 4
        for (int j = 0; j < s.s1; j++) tot = tot + p[j * 16];
        const float up = __shfl_down_sync(0xffffffffu, tot, 16);
        if (in * 16 + row < width) v = canon_siluf(tot) * up;
        pass();
      }
      const int place = in % per, begin = (in - place) * 16;      // of the group
      if (t - place < r.from) {                                   // another block makes its codes
        if (side == 0 && in * 16 + row < width) hand_over(half.values + first + in * 16 + row, v);
        return;
      }
      if (side == 0) tots[place * 16 + row] = v;
      if (place + 1 < per && t + 1 < r.to) return;
      for (int i = (place + 1) * 16 + lane; i < F::group; i += 32) {   // tiles that another block computes
        float w = 0;
        if (begin + i < width) {
          w = look(half.values + first + begin + i);
          for (uint32_t looks = 0; is_unset(w); w = look(half.values + first + begin + i)) if (++looks == MOST_LOOKS) __trap();
        }
        tots[i] = w;
      }
      __syncwarp();
      moe_hand_group<F>(tots, half.codes + (first + begin) / 4, half.pairs + (first + begin) / F::group * 2, lane);
      __syncwarp();
    };
    moe_stretch r = shared_stretch<F>(s);
    int routed = -1, in = r.from, t = r.from, width = m.shared_inner, place = m.k * s.ki;
    #pragma unroll 1
    for (;; t++, in++) {
      if (routed >= 0 && in == s.ki / 16) { in = 0; place += s.ki; }
      if (t == r.to) {
        if (routed >= 0) break;
        barrier_wait(chosen, 0);
        routed = *count;
        if (routed != m.k) deal = moe_deal(s, F::group, routed);
        r = deal.r;
        t = r.from; in = deal.in; width = m.inner; place = (t - in) * 16;
        if (t == r.to) break;
      }
      tile(r, t, in, place, width);
    }
    barrier_wait(weighed, 0);
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
      pass();
      if (side == 0 && c < m.hidden) {
        float y = s.has ? tots[row] : 0.0f;
        #pragma unroll 4
        for (int e = s.has; e < s.has + routed; e++) y = fmaf(entries[e].weight, tots[e * 16 + row], y);
        m.y[c] = m.residual ? residual + y : y;
      }
      __syncwarp();
    }
    if (lane == 0) atomicInc(m.finished, 2 * grid - 1);
    return;
  }

  const int now = moe_now(m);
  moe_read_row<F, WARPS>(m, s, front, (const float *)ring, full, empty, xs, q, pairs, factor, warp, lane);
  if (warp < front.rows) {
    const moe_half half(m, F::group, now);
    for (int r = warp; r < front.rows; r += WARPS) {
      const int slot = front.norm + r * front.row;
      const uint8_t *w = ring + slot * slot_bytes;
      barrier_wait(&full[slot], 0);
      float z = m.router_form == CANON_F32 ? shared_dot<CANON_F32>(w, xs, m.hidden, lane) : m.router_form == CANON_BF16 ? shared_dot<CANON_BF16>(w, xs, m.hidden, lane) : shared_dot<CANON_F16>(w, xs, m.hidden, lane);
      if (lane == 0) hand_over(half.logits + blockIdx.x + r * grid, z);
      warp_arrive_at(front.row, lane, [&](int i) { return &empty[slot + i]; });
    }
  }
  for (int r = 0; r < front.rows; r++) barrier_wait(&full[front.norm + r * front.row], 0);   // before these slots are waited for again
  warps_arrive(2, (WARPS + MOE_HELPERS) * 32);

  // Segments: unit v of the block goes to warp v % WARPS and lies in slot (front.slots + v) % slots. Slots are a multiple of WARPS, so
  // that a slot is always the same warp's and the same producer's: copies end in any order, and who waits for a slot's next use while
  // this one has not arrived would take it for that.
  int mine = warp, next = front.slots + warp, begin = 0, item = 0, slot = 0;
  uint32_t parity = 0, taken_parity = 1;
  while (next >= slots) { next -= slots; parity ^= 1; }
  int known = -1;                             // entries up to here have the codes of their inner values
  const moe_stretch first = shared_stretch<F>(s);
  const int padded = s.ki / 16;
  int phase = 0, t = first.from, end = min(first.to, s.shared_tiles), in = 0, routed = 0;   // up of the shared expert, of the routed ones; down
  #pragma unroll 1
  for (;; t += phase < 2 ? 1 : grid, in++) {
    if (phase == 0 && t >= end) {
      barrier_wait(chosen, 0);
      routed = *count;
      if (routed != m.k) deal = moe_deal(s, F::group, routed);
      phase = 1; t = deal.r.from; end = deal.r.to; in = deal.in;
    }
    if (phase == 1) {
      if (in == padded) in = 0;
      if (t < end && in >= s.tiles) continue;
      if (t >= end) {
        moe_inner<F>(m, now, routed, hq, hpairs, ready, next_piece);
        phase = 2; t = grid - 1 - blockIdx.x; end = s.outputs;
      }
    }
    if (phase == 2 && t >= end) break;
    const int units = phase < 2 ? 2 * s.s1 : s.has * s.s2s + routed * s.s2;
    if (item >= COVEY_MOE_PARTS) barrier_wait(&taken[slot], taken_parity);
    float *to = part + slot * at.units * 16;
    #pragma unroll 1
    while (mine < begin + units) {
      const int j = mine - begin;
      int seg = j < s.s1 ? j : j - s.s1, groups = s.gx, base = 0;
      const int8_t *codes = q;
      const covey_pair *scales = pairs;
      if (phase == 2) {
        const int i = j - s.has * s.s2s, e = i < 0 ? 0 : (int)(i * s.segment_of >> 16), entry = i < 0 ? 0 : s.has + e;
        seg = i < 0 ? j : i - e * s.s2;
        base = i < 0 ? m.k * s.ki : e * s.ki;
        groups = i < 0 ? s.gs : s.gi;
        codes = hq; scales = hpairs;
        while (known < entry) barrier_wait(&ready[++known], 0);
      }
      barrier_wait(&full[next], parity);
      float2 v = segment_row<F>(ring + next * slot_bytes, codes + base + seg * CANON_SEGMENT, scales + base / F::group + seg * F::segment, min((int)F::segment, groups - seg * F::segment), lane);
      warp_arrive(&empty[next], lane);
      if ((lane & 3) == 0) { to[j * 16 + (lane >> 2)] = v.x; to[j * 16 + 8 + (lane >> 2)] = v.y; }
      mine += WARPS; next += WARPS;
      if (next >= slots) { next -= slots; parity ^= 1; }
    }
    warp_arrive(&done[slot], lane);
    begin += units;
    item++;
    if (++slot == COVEY_MOE_PARTS) { slot = 0; taken_parity ^= 1; }
  }
}

// more[0]: bytes of dynamic shared memory.
#define COVEY_MOE_ROW(NAME, GROUP, SCALE)                                                                                                                  \
  extern "C" __global__ __launch_bounds__(MOE_ALL * 32, 2) void covey_moe_row_##NAME(const __grid_constant__ covey_moe m, const covey_program *, int32_t most) { \
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
