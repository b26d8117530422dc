// The attention half of a layer for one row in one launch: norm, quantisation, queries, keys and values, norms and rotation of
// heads, cache, attention, output product, residual. Bound by reading the weights and the cache once; as in experts_row.cu
// everything else is arranged so that the memory is asked early:
//
//   - One block a multiprocessor, of so little shared memory that it may stand beside a block of the launch before or behind.
//     One warp copies weights of queries, keys and values into slots before the launch before has ended, and asks the second-level
//     cache for the output product's weights and for the pages that its block will attend, which earlier steps wrote.
//   - ATTEND_WARPS warps multiply. Outputs of the products go to all blocks through words that are their own flags (ptx.cuh);
//     blocks from the last on take a unit of attention each: one block of 256 positions, one key/value head and some of its
//     query heads. A unit norms and turns its queries, and the new key and value, for itself; whoever has the first query heads
//     stores those two. Keys, then values, pass through stages, which lie where slots were.
//   - A unit hands its sums (o, m, l of rule 6) to the threads that fold the head, a channel each: what they have read they make
//     unset again. Codes (rule 1) go on, which every block reads for its output tiles.
//   - A slot is always the same warp's: a wait by parity cannot tell a phase from the one two before.
//   - Code that runs once a launch takes as long as it takes to fetch, and must lie in the instruction cache (128 kB) beside that of
//     the launches before and behind: only loops over keys and values know how many heads there are, loops are rolled where
//     nothing waits for them, what is used twice is a function, what the host knows is an argument.
//   - The halves of `exchange` alternate; each launch clears the half of the one before.
#include "attend_row.cuh"

// ---- copies ------------------------------------------------------------------------------------------------------------

// The segments of a tile, a slot each. One thread.
template <class F> __device__ __forceinline__ void attend_copy(const uint8_t *from, int groups, shared_place full, shared_place empty, shared_place room, int slots, attend_place &slot, uint64_t policy) {
  constexpr int bytes_each = F::segment * F::block;
  #pragma unroll 1
  for (int g = groups; g > 0; g -= F::segment, from += bytes_each) {
    const uint32_t bytes = min(g * F::block, bytes_each);
    barrier_wait(empty + slot.at * 8, slot.parity);
    barrier_expect(full + slot.at * 8, bytes);
    bulk_load(room + slot.at * bytes_each, from, bytes, full + slot.at * 8, policy);
    slot.move(1, slots);
  }
}

// A warp. Its first lane copies weights, four at once the pages of a unit: of keys half the channels of each page, first halves first;
// of values half the keys of a page.
template <class F, int DIM> __device__ __forceinline__ void attend_produce(const covey_attend &a, const covey_program *p, const attend_step &z, shared_place base, int lane) {
  constexpr int piece = 64 * DIM;
  const uint64_t policy = read_once();
  const attend_bars bars(base + a.at.bars);
  const shared_place room = base + a.at.room;
  const int grid = gridDim.x, values = a.heads.kv.heads * DIM * 128, last = grid - 1 - blockIdx.x;
  attend_place slot = {0, 1};                 // a slot that was never used counts as empty
  if (lane == 0) {
    const int queries = a.heads.heads * DIM / COVEY_TILE, keys = queries + a.heads.kv.heads * DIM / COVEY_TILE;
    #pragma unroll 1
    for (int t = blockIdx.x; t < a.tiles; t += grid) {
      const uint8_t *of = t < queries ? a.weights[0] : t < keys ? a.weights[1] : a.weights[2];
      attend_copy<F>(of + (int64_t)(t - (t < queries ? 0 : t < keys ? queries : keys)) * (a.gx * F::block), a.gx, bars.in_full, bars.in_empty, room, a.at.slots, slot, policy);
    }
  }
  const uint8_t *page = 0;
  if (last < z.units && lane < 4) {
    page = attend_unit(a, z, last).page<DIM>(a, p, z, lane);
    if (page) { prefetch_bulk(page, 2 * piece); prefetch_bulk(page + values, 2 * piece); }
  }
  #pragma unroll 1
  for (int t = blockIdx.x + lane * grid; t < a.outputs; t += 32 * grid) prefetch_bulk(a.output + (int64_t)t * (a.go * F::block), a.go * F::block);
  __syncwarp();
  barrier_wait(bars.consumed, 0);
  attend_place stage = {lane & 3, 1};
  #pragma unroll 1
  for (int v = last; v < z.units;) {
    #pragma unroll 1
    for (int round = 0; round < 4; round++) {
      const uint8_t *from = (const uint8_t *)__shfl_sync(FULL, (unsigned long long)page, round < 2 ? lane : 2 * round - 4 + (lane >> 1));
      if (lane < 4) {
        barrier_wait(bars.empty + stage.at * 8, stage.parity);
        barrier_expect(bars.full + stage.at * 8, from ? piece : 0);
        if (from) bulk_load(room + stage.at * piece, from + (round < 2 ? round * piece : values + (lane & 1) * piece), piece, bars.full + stage.at * 8);
      }
      __syncwarp();
      stage.move(4, a.at.stages);
    }
    v += grid;
    if (v < z.units) page = attend_unit(a, z, v).page<DIM>(a, p, z, lane & 3);
    else barrier_wait(bars.attended, 0);
  }
  slot = attend_place{0, 1};
  if (lane == 0)
    #pragma unroll 1
    for (int t = blockIdx.x; t < a.outputs; t += grid) attend_copy<F>(a.output + (int64_t)t * (a.go * F::block), a.go, bars.out_full, bars.out_empty, room, a.at.slots, slot, policy);
}

// ---- products ----------------------------------------------------------------------------------------------------------

// The row, normed and quantised (rules 4 and 1). All ATTEND_WARPS warps; the first makes the sum of squares while the others' values and
// weights are on their way.
template <class F> __device__ __forceinline__ void attend_read_row(const covey_attend &a, float *xs, float *factor, int8_t *q, covey_pair *pairs, int warp, int lane) {
  const int n = a.hidden, padded = a.gx * F::group, thread = warp * 32 + lane;
  #pragma unroll 1
  for (int i = thread * 4; i < n; i += ATTEND_THREADS * 4) copy16(xs + i, a.x + i);
  #pragma unroll 1
  for (int i = n + thread; i < covey_ceil(n, COVEY_ATTEND_ROW) * COVEY_ATTEND_ROW; i += ATTEND_THREADS) xs[i] = 0;
  copies_commit();
  copies_wait<0>();
  warps_sync(1, ATTEND_THREADS);
  float r = 0;
  #pragma unroll 1
  for (int base = warp * 256;; base += ATTEND_THREADS * 8) {
    const int i = base + lane * 8;
    float4 v[2], w[2];
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      v[h] = i < n ? *((const float4 *)(xs + i) + h) : make_float4(0, 0, 0, 0);
      w[h] = i < n ? __ldg((const float4 *)(a.norm + i) + h) : make_float4(0, 0, 0, 0);
    }
    if (base < ATTEND_THREADS * 8) {
      if (warp == 0) {
        float s = 0;                          // zeros behind the row leave it as it is
        #pragma unroll 1
        for (const float *x = xs + lane; x < xs + n; x += COVEY_ATTEND_ROW) {
          float y[COVEY_ATTEND_ROW / 32];
          #pragma unroll
          for (int j = 0; j < COVEY_ATTEND_ROW / 32; j++) y[j] = x[j * 32];
          #pragma unroll
          for (int j = 0; j < COVEY_ATTEND_ROW / 32; j++) s = canon_fmaf(y[j], y[j], s);
        }
        s = canon_rms_factor(warp_tree(s), n, a.eps);
        if (lane == 0) *factor = s;
      }
      warps_sync(1, ATTEND_THREADS);
      r = *factor;
    }
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      if (a.plus_one) { w[h].x = w[h].x + 1.0f; w[h].y = w[h].y + 1.0f; w[h].z = w[h].z + 1.0f; w[h].w = w[h].w + 1.0f; }
      if (i < n) v[h] = make_float4((v[h].x * r) * w[h].x, (v[h].y * r) * w[h].y, (v[h].z * r) * w[h].z, (v[h].w * r) * w[h].w);
    }
    const attend_codes c = attend_quantise<F::group>(v[0], v[1], lane);
    if (i < padded) {
      *(uint2 *)(q + i) = c.codes;
      if (i % F::group == 0) pairs[i / F::group] = pair_of<CANON_INT4>(c.scale, c.sum);
    }
    if (base + ATTEND_THREADS * 8 >= padded) break;
  }
  warps_sync(1, ATTEND_THREADS);
}

// Sums of a block's segments, as they come into slots, into part [segment][16].
template <class F> __device__ __noinline__ void attend_segments(int units, int segments, int groups, shared_place codes, shared_place scales, shared_place room, int slots, shared_place full, shared_place empty, shared_place part) {
  const int warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  uint32_t parity = 0;
  int segment = 0, before = 0;                // the segment of unit `before` of the block
  #pragma unroll 1
  for (int first = 0; first < units; first += slots, parity ^= 1)
    #pragma unroll 1
    for (int slot = warp; slot < slots && first + slot < units; slot += ATTEND_WARPS) {
      const int j = first + slot;
      segment += j - before;
      before = j;
      #pragma unroll 1
      while (segment >= segments) segment -= segments;
      barrier_wait(full + slot * 8, parity);
      const float2 v = segment_row<F>(shared_pointer(room + slot * (F::segment * F::block)), (const int8_t *)shared_pointer(codes + segment * CANON_SEGMENT),
                                      (const covey_pair *)shared_pointer(scales + segment * (F::segment * 8)), min(groups - segment * F::segment, (int)F::segment), lane);
      warp_arrive(empty + slot * 8, lane);
      float *to = (float *)shared_pointer(part + j * 64) + (lane >> 2);
      if ((lane & 3) == 0) { to[0] = v.x; to[8] = v.y; }
    }
}
// The i-th output of a block.
static __device__ __noinline__ float attend_total(shared_place part, int i, int segments) {
  const float *from = (const float *)shared_pointer(part) + (i >> 4) * segments * 16 + (i & 15);
  float tot = 0;
  #pragma unroll 4
  for (int s = 0; s < segments; s++) tot = tot + from[s * 16];
  return tot;
}

// What was attended, all heads, as codes into shared memory.
__device__ __forceinline__ void attend_read_codes(const covey_attend &a, const attend_half &half, int8_t *q, covey_pair *pairs, int thread) {
  const int vectors = a.heads.heads * a.heads.kv.dim / 16, few = 4;   // at least twice as many as there are groups
  #pragma unroll 1
  for (int i = thread; i < vectors; i += few * ATTEND_THREADS) {
    uint4 v[few];
    uint2 pair = make_uint2(0, 0);
    uint32_t looks = 0;
    for (bool all = false; !all;) {
      all = true;
      #pragma unroll
      for (int j = 0; j < few; j++)
        v[j] = i + j * ATTEND_THREADS < vectors ? look4(half.codes + (i + j * ATTEND_THREADS) * 4) : make_uint4(0, 0, 0, 0);
      if (i < a.go) pair = look2((const uint32_t *)half.pairs + 2 * i);
      #pragma unroll
      for (int j = 0; j < few; j++) all &= v[j].x != 0xffffffffu && v[j].y != 0xffffffffu && v[j].z != 0xffffffffu && v[j].w != 0xffffffffu;
      all &= pair.x != 0xffffffffu && pair.y != 0xffffffffu;
      if (++looks == MOST_LOOKS) __trap();
    }
    #pragma unroll
    for (int j = 0; j < few; j++)
      if (i + j * ATTEND_THREADS < vectors) *(uint4 *)(q + (i + j * ATTEND_THREADS) * 16) = make_uint4(attend_word(v[j].x), attend_word(v[j].y), attend_word(v[j].z), attend_word(v[j].w));
    if (i < a.go) pairs[i] = covey_pair{__uint_as_float(pair.x), (int32_t)pair.y};
  }
  #pragma unroll 1
  for (int i = thread + ATTEND_THREADS; i < a.go; i += ATTEND_THREADS) {   // of more groups than threads
    uint2 pair;
    uint32_t looks = 0;
    do {
      pair = look2((const uint32_t *)half.pairs + 2 * i);
      if (++looks == MOST_LOOKS) __trap();
    } while (pair.x == 0xffffffffu || pair.y == 0xffffffffu);
    pairs[i] = covey_pair{__uint_as_float(pair.x), (int32_t)pair.y};
  }
}

template <class F, int DIM> __device__ __forceinline__ void attend_row(const covey_attend &a, const covey_program *p) {
  COVEY_MEMORY(memory);
  let_next_start();
  const shared_place base = kept(shared_address(memory));
  const attend_bars bars(base + a.at.bars);
  const int warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, thread = threadIdx.x, grid = gridDim.x;
  const int mark = lane * (ATTEND_WARPS + 1) + warp;   // setting up a barrier takes 20 ns: the warps share them
  if (mark < a.at.slots) {
    barrier_init(bars.in_full + mark * 8, 1);
    barrier_init(bars.in_empty + mark * 8, WARP_ARRIVALS);
    barrier_init(bars.out_full + mark * 8, 1);
    barrier_init(bars.out_empty + mark * 8, WARP_ARRIVALS);
  }
  if (mark < a.at.stages) {
    barrier_init(bars.full + mark * 8, 1);
    barrier_init(bars.empty + mark * 8, ATTEND_WARPS * WARP_ARRIVALS);
  }
  if (mark < 2) barrier_init(bars.consumed + mark * 8, ATTEND_WARPS * WARP_ARRIVALS);
  barrier_init_done();
  const attend_step z(a, p);
  __syncthreads();
  if (warp == ATTEND_WARPS) {
    attend_produce<F, DIM>(a, p, z, base, lane);
    return;
  }
  const covey_heads &f = a.heads;
  if (f.angles >= 0 && thread < f.rot) {      // the step's angles are older than the launch before
    const covey_angles &angles = p->angles[f.angles];
    ((float *)shared_pointer(base + a.at.turn))[thread] = __ldcg(thread < f.rot / 2 ? angles.cosine + thread : angles.sine + thread - f.rot / 2);
  }
  const float *norm = thread < DIM ? f.q_norm : f.k_norm;
  if (norm && thread < 2 * DIM) ((float *)shared_pointer(base + a.at.norms))[thread] = __ldg(norm + thread % DIM);
  const int mine = attend_mine(a.tiles), outputs = attend_mine(a.outputs);
  if (mine && thread * 32 < a.hidden) touch(__ldg(a.norm + thread * 32));
  uint8_t *page_of_new = attend_page<DIM>(a, p, z, z.pos / 64);
  wait_for_previous();

  const shared_place q = base + a.at.q, pairs = base + a.at.pairs, oq = base + a.at.oq, opairs = base + a.at.opairs, part = base + a.at.part, room = base + a.at.room;
  const int now = count_read(a.finished) >= (uint32_t)grid;
  const attend_half half = attend_half::of<DIM>(a, now);
  if (mine) attend_read_row<F>(a, (float *)shared_pointer(base + a.at.x), (float *)shared_pointer(base + a.at.top), (int8_t *)shared_pointer(q), (covey_pair *)shared_pointer(pairs), warp, lane);
  attend_segments<F>(mine * a.s1, a.s1, a.gx, q, pairs, room, a.at.slots, bars.in_full, bars.in_empty, part);
  warp_arrive(bars.consumed, lane);
  warps_sync(1, ATTEND_THREADS);
  const int queries = f.heads * DIM, keys = queries + f.kv.heads * DIM;
  #pragma unroll 1
  for (int i = thread; i < mine * 16; i += ATTEND_THREADS) {
    const int c = (blockIdx.x + (i >> 4) * grid) * 16 + (i & 15);
    const float *bias = c < queries ? a.bias[0] : c < keys ? a.bias[1] : a.bias[2];
    float v = attend_total(part, i, a.s1);
    if (bias) v = v + bias[c - (c < queries ? 0 : c < keys ? queries : keys)];
    hand_over(half.values + c, v);
  }
  float *other = a.exchange + (1 - now) * a.half;
  #pragma unroll 1
  for (int i = blockIdx.x * ATTEND_THREADS + thread; i < a.half; i += grid * ATTEND_THREADS) other[i] = unset();

  const int last = grid - 1 - blockIdx.x;
  attend_place stage = {0, 0};
  #pragma unroll 1
  for (int v = last; v < z.units; v += grid) {
    attend_block<DIM>(a, p, z, base, half, attend_unit(a, z, v), page_of_new, stage, warp, lane);
    warps_sync(1, ATTEND_THREADS);
  }
  if (last < z.units) warp_arrive(bars.attended, lane);
  const int set = thread / DIM;               // threads of a head
  #pragma unroll 1
  for (int h = blockIdx.x + set * grid; h < f.heads; h += ATTEND_THREADS / DIM * grid) {
    if (h >= ATTEND_THREADS / DIM * grid) warps_sync(2 + set, DIM);   // the head before has been read
    attend_fold<F, DIM>(a, z, half, h, (float *)shared_pointer(base + a.at.head) + set * DIM, 2 + set, thread % DIM, lane);
  }

  float *residual = (float *)shared_pointer(base + a.at.w);   // of this thread's outputs
  #pragma unroll 1
  for (int i = thread; i < outputs * 16; i += ATTEND_THREADS) {
    const int c = (blockIdx.x + (i >> 4) * grid) * 16 + (i & 15);
    if (c < a.hidden) copy4(residual + i, a.x + c);
  }
  copies_commit();
  if (outputs) attend_read_codes(a, half, (int8_t *)shared_pointer(oq), (covey_pair *)shared_pointer(opairs), thread);
  copies_wait<0>();
  warps_sync(1, ATTEND_THREADS);
  if (thread == 0) atomicInc(a.finished, 2 * grid - 1);
  attend_segments<F>(outputs * a.s2, a.s2, a.go, oq, opairs, room, a.at.slots, bars.out_full, bars.out_empty, part);
  warps_sync(1, ATTEND_THREADS);
  #pragma unroll 1
  for (int i = thread; i < outputs * 16; i += ATTEND_THREADS) {
    const int c = (blockIdx.x + (i >> 4) * grid) * 16 + (i & 15);
    if (c >= a.hidden) continue;
    float v = attend_total(part, i, a.s2);
    if (a.output_bias) v = v + a.output_bias[c];
    a.y[c] = residual[i] + v;
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
