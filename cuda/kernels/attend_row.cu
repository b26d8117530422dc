// The attention half of a layer for one row in one launch: norm, quantisation, queries, keys and values, norms and rotation of
// heads, cache, attention, output product, residual. Bound by reading the weights and the cache once; as in experts_row.cu
// everything else is arranged so that the memory is asked early:
//
//   - One block a multiprocessor, of so little shared memory that it may stand beside a block of the launch before or behind.
//     One thread copies weights of queries, keys and values into slots before the launch before has ended, and asks the second-level
//     cache for the output product's weights and for the pages that its block will attend, which earlier steps wrote.
//   - ATTEND_WARPS warps multiply. Outputs of the products go to all blocks through words that are their own flags (ptx.cuh);
//     blocks from the last on take a unit of attention each: one block of 256 positions, one key/value head and some of its
//     query heads. A unit norms and turns its queries, and the new key and value, for itself; whoever has the first query heads
//     stores those two. Keys, then values, pass through stages, which lie where slots were.
//   - A unit hands its sums (o, m, l of rule 6) to the one warp that folds the head: what that warp has read it makes unset
//     again. It hands on codes (rule 1), which every block reads for its output tiles.
//   - A slot is always the same warp's: a wait by parity cannot tell a phase from the one two before.
//   - Code that runs once a launch takes as long as it takes to fetch, so what is used twice is a function, and what the host knows
//     is an argument.
//   - The halves of `exchange` alternate; each launch clears the half of the one before.
#include "attend_row.cuh"

// ---- copies ------------------------------------------------------------------------------------------------------------

template <class F, int DIM> __device__ __forceinline__ void attend_produce(const covey_attend &a, const covey_program *p, const attend_step &z, uint8_t *memory) {
  constexpr int slot_bytes = F::segment * F::block, piece = 64 * DIM;
  const uint64_t policy = read_once();
  const attend_bars bars(memory + a.at.bars);
  uint8_t *room = memory + a.at.room;
  const int slots = a.at.slots, grid = gridDim.x;
  attend_place slot = {0, 1};                 // a slot that was never used counts as empty
  // The segments of a tile, a slot each; fresh: how many slots were never used.
  auto tile = [&](const uint8_t *from, int groups, uint64_t *full, uint64_t *empty, int &fresh) {
    #pragma unroll 1
    for (int g = groups; g > 0; g -= F::segment, from += slot_bytes) {
      const uint32_t bytes = g < F::segment ? g * F::block : slot_bytes;
      if (--fresh < 0) barrier_wait(&empty[slot.at], slot.parity);
      barrier_expect(shared_address(&full[slot.at]), bytes);
      bulk_load(shared_address(room + slot.at * slot_bytes), from, bytes, shared_address(&full[slot.at]), policy);
      slot.move(1, slots);
    }
  };
  const int queries = a.heads.heads * DIM / COVEY_TILE, keys = queries + a.heads.kv.heads * DIM / COVEY_TILE;
  int fresh = slots;
  #pragma unroll 1
  for (int t = blockIdx.x; t < a.tiles; t += grid) {
    const int part = t < queries ? 0 : t < keys ? 1 : 2;
    tile(a.weights[part] + (int64_t)(t - (part == 0 ? 0 : part == 1 ? queries : keys)) * a.gx * F::block, a.gx, bars.in_full, bars.in_empty, fresh);
  }
  const uint8_t *pages[4];
  const int values = a.heads.kv.heads * DIM * 128, last = grid - 1 - blockIdx.x;
  auto look_up = [&](int v) {
    const attend_unit u(a, z, v);
    #pragma unroll
    for (int k = 0; k < 4; k++) pages[k] = u.page<DIM>(a, p, z, k);
  };
  if (last < z.units) {
    look_up(last);
    #pragma unroll
    for (int k = 0; k < 4; k++) if (pages[k]) { prefetch_bulk(pages[k], 2 * piece); prefetch_bulk(pages[k] + values, 2 * piece); }
  }
  #pragma unroll 1
  for (int t = blockIdx.x; t < a.outputs; t += grid) prefetch_bulk(a.output + (int64_t)t * a.go * F::block, a.go * F::block);
  barrier_wait(bars.consumed, 0);
  // Pieces of keys are half the channels of a page, of all pages first half before second; of values half the keys of a page.
  attend_place stage = {0, 1};
  #pragma unroll 1
  for (int v = last; v < z.units;) {
    #pragma unroll
    for (int k = 0; k < 2 * COVEY_ATTEND_PIECES; k++) {
      const int page = k < COVEY_ATTEND_PIECES ? k & 3 : k / 2 - 4, part = k < COVEY_ATTEND_PIECES ? k / 4 : k & 1;
      barrier_wait(&bars.empty[stage.at], stage.parity);
      barrier_expect(shared_address(&bars.full[stage.at]), pages[page] ? piece : 0);
      if (pages[page]) bulk_load(shared_address(room + stage.at * piece), pages[page] + (k < COVEY_ATTEND_PIECES ? 0 : values) + part * piece, piece, shared_address(&bars.full[stage.at]));
      stage.move(1, a.at.stages);
    }
    v += grid;
    if (v < z.units) look_up(v);
    else barrier_wait(bars.attended, 0);
  }
  slot = attend_place{0, 1};
  fresh = slots;
  #pragma unroll 1
  for (int t = blockIdx.x; t < a.outputs; t += grid) tile(a.output + (int64_t)t * a.go * F::block, a.go, bars.out_full, bars.out_empty, fresh);
}

// ---- products ----------------------------------------------------------------------------------------------------------

// The row, normed and quantised (rules 4 and 1). All ATTEND_WARPS warps.
template <class F> __device__ __forceinline__ void attend_read_row(const covey_attend &a, float *xs, float *factor, int8_t *q, covey_pair *pairs, int warp, int lane) {
  const int n = a.hidden, thread = warp * 32 + lane, padded = a.gx * F::group;
  for (int i = thread * 4; i < n; i += ATTEND_THREADS * 4) *(float4 *)(xs + i) = __ldcg((const float4 *)(a.x + i));
  warps_sync(1, ATTEND_THREADS);
  if (warp == 0) {
    float s = 0;
    int i = lane;
    #pragma unroll 1
    for (; i + 15 * 32 < n; i += 16 * 32) {
      float v[16];
      #pragma unroll
      for (int j = 0; j < 16; j++) v[j] = xs[i + j * 32];
      #pragma unroll
      for (int j = 0; j < 16; j++) s = canon_fmaf(v[j], v[j], s);
    }
    #pragma unroll 1
    for (; i < n; i += 32) s = canon_fmaf(xs[i], xs[i], s);
    s = warp_tree(s);
    if (lane == 0) *factor = canon_rms_factor(s, n, a.eps);
  }
  warps_sync(1, ATTEND_THREADS);
  const float r = *factor;
  #pragma unroll 1
  for (int base = warp * 256; base < padded; base += ATTEND_THREADS * 8) {
    const int i = base + lane * 8;
    float4 v[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    if (i < n) {
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        float4 w = __ldg((const float4 *)(a.norm + i) + h), f = *((const float4 *)(xs + i) + h);
        if (a.plus_one) { w.x = w.x + 1.0f; w.y = w.y + 1.0f; w.z = w.z + 1.0f; w.w = w.w + 1.0f; }
        v[h] = make_float4((f.x * r) * w.x, (f.y * r) * w.y, (f.z * r) * w.z, (f.w * r) * w.w);
      }
    }
    const attend_codes c = attend_quantise<F::group>(v[0], v[1], lane);
    if (i < padded) {
      *(uint2 *)(q + i) = c.codes;
      if (i % F::group == 0) pairs[i / F::group] = pair_of<CANON_INT4>(c.scale, c.sum);
    }
  }
  warps_sync(1, ATTEND_THREADS);
}

// Sums of a block's segments, as they come into slots, into part [segment][16].
template <class F> __device__ __noinline__ void attend_segments(int units, int segments, int groups, const int8_t *q, const covey_pair *pairs, const uint8_t *room, int slots, uint64_t *full, uint64_t *empty, float *part) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  uint32_t parity = 0;
  int segment = 0, before = 0;                // the segment of unit `before` of the block
  #pragma unroll 1
  for (int base = 0; base < units; base += slots, parity ^= 1)
    #pragma unroll 1
    for (int slot = warp; slot < slots && base + slot < units; slot += ATTEND_WARPS) {
      const int j = base + slot;
      segment += j - before;
      before = j;
      #pragma unroll 1
      while (segment >= segments) segment -= segments;
      barrier_wait(&full[slot], parity);
      const float2 v = segment_row<F>(room + slot * F::segment * F::block, q + segment * CANON_SEGMENT, pairs + segment * F::segment, min(groups - segment * F::segment, (int)F::segment), lane);
      warp_arrive(&empty[slot], lane);
      if ((lane & 3) == 0) { part[j * 16 + (lane >> 2)] = v.x; part[j * 16 + 8 + (lane >> 2)] = v.y; }
    }
}
// The i-th output of a block.
__device__ __noinline__ float attend_total(const float *part, int i, int segments) {
  const float *from = part + (i >> 4) * segments * 16 + (i & 15);
  float tot = 0;
  #pragma unroll 4
  for (int s = 0; s < segments; s++) tot = tot + from[s * 16];
  return tot;
}

// What was attended, all heads, as codes into shared memory.
__device__ __forceinline__ void attend_read_codes(const covey_attend &a, const attend_half &half, int8_t *q, covey_pair *pairs, int thread) {
  const int vectors = a.heads.heads * a.heads.kv.dim / 16, few = 4;
  uint32_t looks = 0;
  #pragma unroll 1
  for (int i = thread; i < vectors; i += few * ATTEND_THREADS) {
    float4 v[few];
    for (bool all = false; !all;) {
      all = true;
      #pragma unroll
      for (int j = 0; j < few; j++)
        if (i + j * ATTEND_THREADS < vectors) {
          v[j] = look4((const float *)half.codes + (i + j * ATTEND_THREADS) * 4);
          all &= !is_unset(v[j].x) && !is_unset(v[j].y) && !is_unset(v[j].z) && !is_unset(v[j].w);
        }
      if (++looks == MOST_LOOKS) __trap();
    }
    #pragma unroll
    for (int j = 0; j < few; j++)
      if (i + j * ATTEND_THREADS < vectors) {
        auto word = [](float f) { return attend_word(__float_as_uint(f)); };
        *(uint4 *)(q + (i + j * ATTEND_THREADS) * 16) = make_uint4(word(v[j].x), word(v[j].y), word(v[j].z), word(v[j].w));
      }
  }
  #pragma unroll 1
  for (int i = thread; i < a.go; i += ATTEND_THREADS) {
    float scale, start;
    do {
      scale = look(half.pairs + 2 * i);
      start = look(half.pairs + 2 * i + 1);
      if (++looks == MOST_LOOKS) __trap();
    } while (is_unset(scale) || is_unset(start));
    pairs[i] = covey_pair{scale, __float_as_int(start)};
  }
}

template <class F, int DIM> __device__ __forceinline__ void attend_row(const covey_attend &a, const covey_program *p) {
  COVEY_MEMORY(memory);
  let_next_start();
  const attend_bars bars(memory + a.at.bars);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, thread = threadIdx.x, grid = gridDim.x;
  if (lane == 0) {                            // setting up a barrier takes 20 ns: the warps share them
    #pragma unroll 1
    for (int i = warp; i < a.at.slots; i += ATTEND_WARPS + 1) { barrier_init(&bars.in_full[i], 1); barrier_init(&bars.in_empty[i], WARP_ARRIVALS); barrier_init(&bars.out_full[i], 1); barrier_init(&bars.out_empty[i], WARP_ARRIVALS); }
    #pragma unroll 1
    for (int i = warp; i < a.at.stages; i += ATTEND_WARPS + 1) { barrier_init(&bars.full[i], 1); barrier_init(&bars.empty[i], ATTEND_WARPS * WARP_ARRIVALS); }
    if (warp == ATTEND_WARPS) { barrier_init(bars.consumed, ATTEND_WARPS * WARP_ARRIVALS); barrier_init(bars.attended, ATTEND_WARPS * WARP_ARRIVALS); }
    barrier_init_done();
  }
  const attend_step z(a, p);
  __syncthreads();
  if (warp == ATTEND_WARPS) {
    if (lane == 0) attend_produce<F, DIM>(a, p, z, memory);
    return;
  }
  const covey_heads &f = a.heads;
  if (f.angles >= 0) {                        // the step's angles are older than the launch before
    const covey_angles &angles = p->angles[f.angles];
    float *turn = (float *)(memory + a.at.turn);
    for (int i = thread; i < f.rot; i += ATTEND_THREADS) turn[i] = __ldcg(i < f.rot / 2 ? angles.cosine + i : angles.sine + i - f.rot / 2);
  }
  float *norms = (float *)(memory + a.at.norms);
  if (f.q_norm && thread < DIM) norms[thread] = __ldg(f.q_norm + thread);
  if (f.k_norm && thread < DIM) norms[DIM + thread] = __ldg(f.k_norm + thread);
  const int mine = attend_mine(a.tiles), outputs = attend_mine(a.outputs);
  for (int i = thread * 32; mine && i < a.hidden; i += ATTEND_THREADS * 32) touch(__ldg(a.norm + i));
  wait_for_previous();

  int8_t *q = (int8_t *)(memory + a.at.q), *oq = (int8_t *)(memory + a.at.oq);
  covey_pair *pairs = (covey_pair *)(memory + a.at.pairs), *opairs = (covey_pair *)(memory + a.at.opairs);
  float *part = (float *)(memory + a.at.part);
  const int now = count_read(a.finished) >= (uint32_t)grid;
  const attend_half half(a, now);
  if (mine) attend_read_row<F>(a, (float *)(memory + a.at.x), (float *)(memory + a.at.top), q, pairs, warp, lane);
  attend_segments<F>(mine * a.s1, a.s1, a.gx, q, pairs, memory + a.at.room, a.at.slots, bars.in_full, bars.in_empty, part);
  warp_arrive(bars.consumed, lane);
  warps_sync(1, ATTEND_THREADS);
  const int queries = f.heads * DIM, keys = queries + f.kv.heads * DIM;
  for (int i = thread; i < mine * 16; i += ATTEND_THREADS) {
    const int c = (blockIdx.x + (i >> 4) * grid) * 16 + (i & 15), which = c < queries ? 0 : c < keys ? 1 : 2;
    const float *bias = a.bias[which];
    float v = attend_total(part, i, a.s1);
    if (bias) v = v + bias[c - (which == 0 ? 0 : which == 1 ? queries : keys)];
    hand_over(half.values + c, v);
  }
  const attend_half other(a, !now);
  const int words = (int)covey_attend_half(f.heads, f.kv.heads, DIM);
  for (int i = blockIdx.x * ATTEND_THREADS + thread; i < words; i += grid * ATTEND_THREADS) other.values[i] = unset();

  const int last = grid - 1 - blockIdx.x;
  attend_place stage = {0, 0};
  #pragma unroll 1
  for (int v = last; v < z.units; v += grid) {
    const attend_unit u(a, z, v);
    if (a.together == 1) attend_block<DIM, 1>(a, p, z, memory, half, u, stage, warp, lane);
    else if (a.together == 2) attend_block<DIM, 2>(a, p, z, memory, half, u, stage, warp, lane);
    else attend_block<DIM, 4>(a, p, z, memory, half, u, stage, warp, lane);
    warps_sync(1, ATTEND_THREADS);
  }
  if (last < z.units) warp_arrive(bars.attended, lane);
  #pragma unroll 1
  for (int h = blockIdx.x + warp * grid; h < f.heads; h += ATTEND_WARPS * grid) attend_fold<F, DIM>(a, z, half, h, (float *)(memory + a.at.head) + warp * DIM, lane);

  float residual[2];                          // of this thread's outputs
  #pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = thread + k * ATTEND_THREADS, c = (blockIdx.x + (i >> 4) * grid) * 16 + (i & 15);
    residual[k] = i < outputs * 16 && c < a.hidden ? __ldcg(a.x + c) : 0.0f;
  }
  if (outputs) attend_read_codes(a, half, oq, opairs, thread);
  warps_sync(1, ATTEND_THREADS);
  if (thread == 0) atomicInc(a.finished, 2 * grid - 1);
  attend_segments<F>(outputs * a.s2, a.s2, a.go, oq, opairs, memory + a.at.room, a.at.slots, bars.out_full, bars.out_empty, part);
  warps_sync(1, ATTEND_THREADS);
  #pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = thread + k * ATTEND_THREADS, c = (blockIdx.x + (i >> 4) * grid) * 16 + (i & 15);
    if (i >= outputs * 16 || c >= a.hidden) continue;
    float v = attend_total(part, i, a.s2);
    if (a.output_bias) v = v + a.output_bias[c];
    a.y[c] = residual[k] + v;
  }
}

#define COVEY_ATTEND_ROW(NAME, GROUP, SCALE, DIM)                                                                                                           \
  extern "C" __global__ __launch_bounds__(ATTEND_THREADS + 32, 2) void covey_attend_row_d##DIM##_##NAME(const __grid_constant__ covey_attend a, const covey_program *p) { \
    attend_row<Form<CANON_INT4, GROUP, SCALE>, DIM>(a, p);                                                                                                  \
  }
COVEY_ATTEND_ROW(int4_g64_f16, 64, CANON_F16, 128)
#ifndef COVEY_ONE_FORM
COVEY_ATTEND_ROW(int4_g64_bf16, 64, CANON_BF16, 128)
COVEY_ATTEND_ROW(int4_g32_f16, 32, CANON_F16, 128)
COVEY_ATTEND_ROW(int4_g32_bf16, 32, CANON_BF16, 128)
COVEY_ATTEND_ROW(int4_g128_f16, 128, CANON_F16, 128)
COVEY_ATTEND_ROW(int4_g128_bf16, 128, CANON_BF16, 128)
COVEY_ATTEND_ROW(int4_g64_f16, 64, CANON_F16, 64)
COVEY_ATTEND_ROW(int4_g64_bf16, 64, CANON_BF16, 64)
COVEY_ATTEND_ROW(int4_g32_f16, 32, CANON_F16, 64)
COVEY_ATTEND_ROW(int4_g32_bf16, 32, CANON_BF16, 64)
#endif
