// A whole Mixture-of-Experts layer for one row in one launch: norm, quantisation, router, top-k, experts, combination in
// rank order, residual. Bound by reading the weights of the chosen and the shared experts once; everything else is arranged
// so that this reading never pauses:
//
//   - One block a multiprocessor. One warp copies weights into a ring of slots in shared memory by bulk copies, a slot a
//     segment (512 inputs) of 16 rows, in the order of use and as far ahead as the ring is long (about 190 KB). Weights do
//     not depend on activations, so the ring fills with the router's rows and the shared expert before the row is read, and
//     with down matrices while blocks wait for each other.
//   - NW warps compute a segment each (product.cuh) and leave 16 sums; one more warp adds the segments in ascending order,
//     applies silu, and combines.
//   - Two grid-wide orders: all logits before the choice, all inner values before down. The choice and the quantisation of
//     inner values are made by every block for itself: cheaper than a third order.
//   - Outputs are dealt in tiles of 16 so that 132 multiprocessors get nearly equal shares of small layers too.
#include "moe.h"
#include "product.cuh"
#include "router.cuh"

struct moe_entry { const uint8_t *record; float weight; int32_t routed; };

// Work of one block, the same for all its warps once the entries are known: up tiles [entry][tile] dealt forward, output
// tiles dealt backward, so that the blocks with one tile more in the first phase have one less in the second.
struct moe_shape {
  int32_t kx, ki, ks, gx, gi, gs, s1, s2, s2s, shared_tiles, tiles, outputs;
  __device__ moe_shape(const covey_moe &m, int group) {
    gx = covey_ceil(m.hidden, group); gi = covey_ceil(m.inner, group); gs = covey_ceil(m.shared_inner, group);
    kx = gx * group; ki = gi * group; ks = gs * group;
    int per = CANON_SEGMENT / group;
    s1 = covey_ceil(gx, per); s2 = covey_ceil(gi, per); s2s = covey_ceil(gs, per);
    shared_tiles = covey_ceil(m.shared_inner, 16); tiles = covey_ceil(m.inner, 16); outputs = covey_ceil(m.hidden, 16);
  }
};

template <class F, int NW> __device__ void moe_produce(const covey_moe &m, const moe_shape &s, uint8_t *ring, int slots, uint64_t *full, uint64_t *empty, uint64_t *chosen, const int32_t *count, const moe_entry *entries) {
  const uint64_t policy = read_once();
  const int slot_bytes = F::segment * F::block;
  int slot = 0, issued = 0;
  uint32_t parity = 1;                       // an empty slot that was never used passes
  auto issue = [&](const uint8_t *from, int bytes, int take) {
    for (int i = 0; i < take; i++) {
      int at = slot + i;
      if (issued + i >= slots) barrier_wait(&empty[at], parity);
    }
    for (int i = 1; i < take; i++) barrier_arrive(&full[slot + i]);   // used up together with the first
    barrier_expect(&full[slot], bytes);
    bulk_load(ring + slot * slot_bytes, from, bytes, &full[slot], policy);
    slot += take; issued += take;
    if (slot >= slots) { slot -= slots; parity ^= 1; }
  };
  auto strip = [&](const uint8_t *at, int tile, int groups) {
    const uint8_t *from = at + (int64_t)tile * groups * F::block;
    for (int g = 0; g < groups; g += F::segment) issue(from + g * F::block, (groups - g < F::segment ? groups - g : F::segment) * F::block, 1);
  };
  if (m.router) {
    int bytes = m.hidden * covey_form_bytes(m.router_form), take = covey_ceil(bytes, slot_bytes);
    for (int e = blockIdx.x; e < m.experts; e += gridDim.x) issue((const uint8_t *)m.router + (int64_t)e * bytes, bytes, take);
  }
  int it = blockIdx.x;
  for (; it < s.shared_tiles; it += gridDim.x) {
    strip(m.shared + m.shared_gate_at, it, s.gx);
    strip(m.shared + m.shared_up_at, it, s.gx);
  }
  barrier_wait(chosen, 0);
  int routed = *count, has = m.shared_inner > 0;
  for (; it < s.shared_tiles + routed * s.tiles; it += gridDim.x) {
    int i = it - s.shared_tiles, tile = i % s.tiles;
    const uint8_t *record = entries[has + i / s.tiles].record;
    strip(record + m.gate_at, tile, s.gx);
    strip(record + m.up_at, tile, s.gx);
  }
  for (int o = gridDim.x - 1 - blockIdx.x; o < s.outputs; o += gridDim.x) {
    if (has) strip(m.shared + m.shared_down_at, o, s.gs);
    for (int e = 0; e < routed; e++) strip(entries[has + e].record + m.down_at, o, s.gi);
  }
}

// The row into shared memory: normed values (when a router reads them) and codes. All consumer warps.
template <class F, int NW> __device__ void moe_row(const covey_moe &m, const moe_shape &s, float *xs, int8_t *q, covey_pair *pairs, float *factor, int warp, int lane) {
  const int n = m.hidden, threads = NW * 32, thread = warp * 32 + lane;
  for (int i = thread * 4; i < n; i += threads * 4) {
    if (i + 4 <= n) *(float4 *)(xs + i) = __ldcg((const float4 *)(m.x + i));
    else for (int j = i; j < n; j++) xs[j] = __ldcg(m.x + j);
  }
  warps_sync(1, threads);
  float r = 1;
  if (m.norm) {
    if (warp == 0) {
      float acc = 0;
      #pragma unroll 8
      for (int i = lane; i < n; i += 32) acc = fmaf(xs[i], xs[i], acc);
      acc = warp_tree(acc);
      if (lane == 0) *factor = canon_rms_factor(acc, n, m.eps);
    }
    warps_sync(1, threads);
    r = *factor;
  }
  for (int base = warp * 256; base < s.kx; base += threads * 8) {
    int i = base + lane * 8;
    float v[8];
    #pragma unroll
    for (int j = 0; j < 8; j++) {
      float f = i + j < n ? xs[i + j] : 0.0f;
      if (m.norm && i + j < n) f = (f * r) * (m.plus_one ? m.norm[i + j] + 1.0f : m.norm[i + j]);
      v[j] = f;
    }
    if (m.norm && i < n) {
      #pragma unroll
      for (int j = 0; j < 8; j++) if (i + j < n) xs[i + j] = v[j];
    }
    float scale;
    int32_t sum;
    uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
    if (i < s.kx) {
      *(uint2 *)(q + i) = codes;
      if (i % F::group == 0) pairs[i / F::group] = pair_of<F::form>(scale, sum);
    }
  }
  warps_sync(1, threads);
}

__device__ __forceinline__ float router_value(int form, const uint8_t *w, int i) {
  if (form == CANON_F32) return ((const float *)w)[i];
  uint16_t h = ((const uint16_t *)w)[i];
  return form == CANON_BF16 ? canon_from_bf16(h) : canon_from_f16(h);
}

// Inner values of n entries to codes, 256 at a time and four loads in flight. All consumer warps.
template <class F, int NW> __device__ void moe_inner(const float *h, int entries, int width, int padded, int8_t *q, covey_pair *pairs, int warp, int lane) {
  const int per = (padded + 255) / 256, pieces = entries * per;
  for (int first = warp; first < pieces; first += 4 * NW) {
    float v[4][8];
    #pragma unroll
    for (int u = 0; u < 4; u++) {
      int piece = first + u * NW, e = piece / per, i = piece % per * 256 + lane * 8;
      const float *from = h + (int64_t)e * width + i;
      if (piece < pieces && i + 8 <= width && (width & 3) == 0) {
        float4 a = __ldcg((const float4 *)from), b = __ldcg((const float4 *)from + 1);
        v[u][0] = a.x; v[u][1] = a.y; v[u][2] = a.z; v[u][3] = a.w; v[u][4] = b.x; v[u][5] = b.y; v[u][6] = b.z; v[u][7] = b.w;
      } else {
        #pragma unroll
        for (int j = 0; j < 8; j++) v[u][j] = piece < pieces && i + j < width ? __ldcg(from + j) : 0.0f;
      }
    }
    #pragma unroll
    for (int u = 0; u < 4; u++) {
      int piece = first + u * NW, e = piece / per, i = piece % per * 256 + lane * 8;
      float scale;
      int32_t sum;
      uint2 codes = quantise8<F::group>(v[u], lane, &scale, &sum);
      if (piece < pieces && i < padded) {
        *(uint2 *)(q + e * padded + i) = codes;
        if (i % F::group == 0) pairs[(e * padded + i) / F::group] = pair_of<F::form>(scale, sum);
      }
    }
  }
}

template <class F, int NW> __device__ __forceinline__ void moe_layer(const covey_moe &m, int slots_most) {
  extern __shared__ __align__(128) uint8_t memory[];
  const int slot_bytes = F::segment * F::block;
  const covey_moe_shared at = covey_moe_shared_of(&m, F::group, slot_bytes, slots_most);
  const moe_shape s(m, F::group);
  int8_t *q = (int8_t *)(memory + at.q), *hq = (int8_t *)(memory + at.hq);
  covey_pair *pairs = (covey_pair *)(memory + at.pairs), *hpairs = (covey_pair *)(memory + at.hpairs);
  float *xs = (float *)(memory + at.hq), *part = (float *)(memory + at.part), *tots = (float *)(memory + at.tots);
  int32_t *count = (int32_t *)(memory + at.sel);
  float *factor = (float *)(memory + at.sel + 8);
  moe_entry *entries = (moe_entry *)(memory + at.sel + 16);
  uint64_t *full = (uint64_t *)(memory + at.bars), *empty = full + COVEY_MOE_SLOTS, *done = empty + COVEY_MOE_SLOTS, *free_ = done + COVEY_MOE_PARTS, *chosen = free_ + COVEY_MOE_PARTS, *inner_ready = chosen + 1;
  uint8_t *ring = memory + at.ring;
  const int slots = at.slots, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, has = m.shared_inner > 0;
  const int rows_of_router = m.router ? ((int)blockIdx.x < m.experts ? (m.experts - 1 - blockIdx.x) / gridDim.x + 1 : 0) : 0;
  const int row_slots = m.router ? covey_ceil(m.hidden * covey_form_bytes(m.router_form), slot_bytes) : 0, first = rows_of_router * row_slots;

  if (threadIdx.x == 0) {
    for (int i = 0; i < slots; i++) { barrier_init(&full[i], 1); barrier_init(&empty[i], 1); }
    for (int i = 0; i < COVEY_MOE_PARTS; i++) { barrier_init(&done[i], NW); barrier_init(&free_[i], 1); }
    barrier_init(chosen, 1);
    barrier_init(inner_ready, 1);
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();

  if (warp == NW) {
    if (lane == 0) moe_produce<F, NW>(m, s, ring, slots, full, empty, chosen, count, entries);
    return;
  }
  wait_for_previous();

  if (warp == NW + 1) {
    // Order, choice, sums over segments, silu, combination.
    const uint64_t grid = gridDim.x;
    uint64_t target[2];
    target[0] = count_read(&m.arrived[0]) / grid * grid + grid;
    target[1] = count_read(&m.arrived[1]) / grid * grid + grid;
    auto all_arrived = [&](int which) {
      __threadfence();
      __syncwarp();
      if (lane == 0) {
        count_add(&m.arrived[which]);
        for (uint32_t spin = 0; count_read(&m.arrived[which]) < target[which]; spin++) if (spin == 1u << 22) __trap();
      }
      __syncwarp();
      __threadfence();
    };
    int32_t id = -1;
    float weight = 0;
    if (m.router) {
      warps_sync(2, (NW + 1) * 32);          // this block's logits are written
      all_arrived(0);
      route(m, m.logits, lane, &id, &weight);
      if (blockIdx.x == 0 && lane < m.k) { m.ids[lane] = id; m.weights[lane] = weight; }
    } else if (lane < m.k) {
      id = __ldcg(m.ids + lane);
      weight = __ldcg(m.weights + lane);
    }
    const uint8_t *record = lane < m.k && id >= 0 ? (const uint8_t *)m.table[id] : 0;
    if (lane < m.k && id >= 0 && !record) router_fault(m, CANON_FAULT_MISSING);
    uint32_t here = __ballot_sync(0xffffffffu, record != 0);
    if (record) entries[has + __popc(here & ((1u << lane) - 1))] = moe_entry{record, weight, 1};
    if (lane == 0) { *count = __popc(here); if (has) entries[0] = moe_entry{m.shared, 1.0f, 0}; }
    __syncwarp();
    if (lane == 0) barrier_arrive(chosen);
    const int routed = __popc(here), ups = s.shared_tiles + routed * s.tiles;
    int i = 0, slot = 0;
    uint32_t parity = 0;
    const int half = lane >> 4, row = lane & 15;
    for (int it = blockIdx.x; it < ups; it += grid, i++) {
      barrier_wait(&done[slot], parity);
      const float *p = part + slot * at.units * 16 + half * s.s1 * 16 + row;
      float tot = 0;
      #pragma unroll 4
      for (int j = 0; j < s.s1; j++) tot = tot + p[j * 16];
      float up = __shfl_down_sync(0xffffffffu, tot, 16);
      int routed_tile = it - s.shared_tiles, e = routed_tile / s.tiles;
      int tile = routed_tile < 0 ? it : routed_tile % s.tiles, width = routed_tile < 0 ? m.shared_inner : m.inner;
      int64_t base = routed_tile < 0 ? (int64_t)m.k * m.inner : (int64_t)e * m.inner;
      if (half == 0 && tile * 16 + row < width) __stcg(m.inner_out + base + tile * 16 + row, canon_siluf(tot) * up);
      __syncwarp();
      if (lane == 0) barrier_arrive(&free_[slot]);
      if (++slot == COVEY_MOE_PARTS) { slot = 0; parity ^= 1; }
    }
    all_arrived(1);
    if (lane == 0) barrier_arrive(inner_ready);
    for (int o = grid - 1 - blockIdx.x; o < s.outputs; o += grid, i++) {
      barrier_wait(&done[slot], parity);
      const float *p = part + slot * at.units * 16 + row;
      for (int e = half; e < has + routed; e += 2) {
        const int segments = e < has ? s.s2s : s.s2;
        const float *from = p + (e < has ? 0 : has * s.s2s + (e - has) * s.s2) * 16;
        float tot = 0;
        #pragma unroll 4
        for (int j = 0; j < segments; j++) tot = tot + from[j * 16];
        tots[e * 16 + row] = tot;
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&free_[slot]);
      int c = o * 16 + row;
      if (half == 0 && c < m.hidden) {
        float y = has ? tots[row] : 0.0f;
        for (int e = has; e < has + routed; e++) y = fmaf(entries[e].weight, tots[e * 16 + row], y);
        m.y[c] = m.residual ? __ldcg(m.residual + c) + y : y;
      }
      __syncwarp();
      if (++slot == COVEY_MOE_PARTS) { slot = 0; parity ^= 1; }
    }
    return;
  }

  moe_row<F, NW>(m, s, xs, q, pairs, factor, warp, lane);
  if (m.router) {
    for (int r = 0; r < rows_of_router; r++) {
      int slot = r * row_slots;
      if (r % NW == warp) {
        barrier_wait(&full[slot], 0);
        const uint8_t *w = ring + slot * slot_bytes;
        float acc = 0;
        #pragma unroll 8
        for (int i = lane; i < m.hidden; i += 32) acc = fmaf(router_value(m.router_form, w, i), xs[i], acc);
        acc = warp_tree(acc);
        if (lane == 0) {
          __stcg(m.logits + blockIdx.x + r * gridDim.x, acc);
          __threadfence();
          for (int j = 0; j < row_slots; j++) barrier_arrive(&empty[slot + j]);
        }
      }
    }
    warps_sync(2, (NW + 1) * 32);
  }

  // Segments: unit v of the block goes to warp v % NW and lies in slot (first + v) % slots.
  int at_unit = warp, next_slot = first + warp, begin = 0, item = 0, slot = 0;
  uint32_t parity = 0, free_parity = 1;
  while (next_slot >= slots) { next_slot -= slots; parity ^= 1; }
  auto unit = [&](float *to, const int8_t *codes, const covey_pair *p, int groups) {
    barrier_wait(&full[next_slot], parity);
    float2 v = segment_row<F>(ring + next_slot * slot_bytes, codes, p, groups, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(&empty[next_slot]);
    if ((lane & 3) == 0) { to[lane >> 2] = v.x; to[8 + (lane >> 2)] = v.y; }
    at_unit += NW; next_slot += NW;
    while (next_slot >= slots) { next_slot -= slots; parity ^= 1; }
  };
  auto start_item = [&]() {
    if (item >= COVEY_MOE_PARTS) barrier_wait(&free_[slot], free_parity);
  };
  auto end_item = [&](int units) {
    __syncwarp();
    if (lane == 0) barrier_arrive(&done[slot]);
    begin += units;
    item++;
    if (++slot == COVEY_MOE_PARTS) { slot = 0; free_parity ^= 1; }
  };
  auto least = [](int a, int b) { return a < b ? a : b; };
  int it = blockIdx.x, ups = s.shared_tiles, routed = -1;
  for (;; it += gridDim.x) {
    if (it >= s.shared_tiles && routed < 0) { barrier_wait(chosen, 0); routed = *count; ups = s.shared_tiles + routed * s.tiles; }
    if (it >= ups) break;
    start_item();
    float *to = part + slot * at.units * 16;
    while (at_unit < begin + 2 * s.s1) {
      int j = at_unit - begin, seg = j < s.s1 ? j : j - s.s1;
      unit(to + j * 16, q + seg * CANON_SEGMENT, pairs + seg * F::segment, least(F::segment, s.gx - seg * F::segment));
    }
    end_item(2 * s.s1);
  }
  barrier_wait(inner_ready, 0);
  moe_inner<F, NW>(m.inner_out, routed, m.inner, s.ki, hq, hpairs, warp, lane);
  if (has) moe_inner<F, NW>(m.inner_out + (int64_t)m.k * m.inner, 1, m.shared_inner, s.ks, hq + m.k * s.ki, hpairs + m.k * s.gi, warp, lane);
  warps_sync(1, NW * 32);
  const int units = has * s.s2s + routed * s.s2;
  for (int o = gridDim.x - 1 - blockIdx.x; o < s.outputs; o += gridDim.x) {
    start_item();
    float *to = part + slot * at.units * 16;
    while (at_unit < begin + units) {
      int j = at_unit - begin;
      if (has && j < s.s2s) {
        unit(to + j * 16, hq + m.k * s.ki + j * CANON_SEGMENT, hpairs + m.k * s.gi + j * F::segment, least(F::segment, s.gs - j * F::segment));
      } else {
        int i = j - has * s.s2s, e = i / s.s2, seg = i % s.s2;
        unit(to + j * 16, hq + e * s.ki + seg * CANON_SEGMENT, hpairs + e * s.gi + seg * F::segment, least(F::segment, s.gi - seg * F::segment));
      }
    }
    end_item(units);
  }
}

#define COVEY_MOE_ROW(NAME, FORM, GROUP, SCALE, NW)                                                            \
  extern "C" __global__ __launch_bounds__((NW + 2) * 32, 1) void NAME(const __grid_constant__ covey_moe m, int32_t most) { \
    moe_layer<Form<FORM, GROUP, SCALE>, NW>(m, most);                                                                 \
  }
COVEY_MOE_ROW(covey_moe_row_int4_g32_f16, CANON_INT4, 32, CANON_F16, 8)
COVEY_MOE_ROW(covey_moe_row_int4_g64_f16, CANON_INT4, 64, CANON_F16, 8)
COVEY_MOE_ROW(covey_moe_row_int4_g128_f16, CANON_INT4, 128, CANON_F16, 8)
