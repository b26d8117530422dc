// One row by int4 matrices (rules 2, 4 and 1): norm, quantisation, up to COVEY_PARTS products of one input, and the sum that follows
// a single one. Bound by reading the weights once: one block a multiprocessor, whose one copying thread asks for segments of 16
// outputs before the launch before has ended, into slots that PRODUCT_WARPS warps empty. A block makes the row's codes for itself,
// which takes less time than a launch of its own, and takes every gridDim.x-th tile of all parts. Twins: engine/canon/rows.c, product.c.
#include "fused.h"
#include "product.cuh"

enum { PRODUCT_WARPS = COVEY_ROW_WARPS, PRODUCT_THREADS = PRODUCT_WARPS * 32, AHEAD = 3 };

// The segments of the block's tiles, a slot each, in the order in which they are used.
template <class F> __device__ __forceinline__ void row_produce(const covey_rows &f, uint8_t *memory, const covey_row_shared &at, int tiles, int slots) {
  constexpr int slot_bytes = F::segment * F::block;
  const uint64_t policy = read_once();
  const int groups = f.part[0].m.groups;
  uint64_t *full = (uint64_t *)(memory + at.bars), *empty = full + COVEY_ROW_SLOTS;
  int slot = 0;
  uint32_t parity = 1;                        // a slot that was never used counts as empty
  #pragma unroll 1
  for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
    int k = f.parts - 1;
    while (t < f.first[k]) k--;
    const uint8_t *from = f.part[k].m.codes + (int64_t)(t - f.first[k]) * groups * F::block;
    #pragma unroll 1
    for (int g = groups; g > 0; g -= F::segment, from += slot_bytes) {
      const uint32_t bytes = g < F::segment ? g * F::block : slot_bytes;
      barrier_wait(&empty[slot], parity);
      barrier_expect(shared_address(&full[slot]), bytes);
      bulk_load(shared_address(memory + at.room + slot * slot_bytes), from, bytes, shared_address(&full[slot]), policy);
      if (++slot == slots) { slot = 0; parity ^= 1; }
    }
  }
}

template <class F> __device__ __noinline__ uint2 row_quantise(float4 a, float4 b, int lane, covey_pair *pair) {
  const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  float scale;
  int32_t sum;
  const uint2 codes = quantise8<F::group>(v, lane, &scale, &sum);
  *pair = pair_of<F::form>(scale, sum);
  return codes;
}

// Codes of f.src's one row, normed before if f says so. xs: room for a row that is normed.
template <class F> __device__ __forceinline__ void row_codes(const covey_rows &f, const covey_program *p, float *xs, float *factor, int8_t *q, covey_pair *pairs, int warp, int lane) {
  const int n = f.src.width, thread = warp * 32 + lane, padded = f.part[0].m.groups * F::group;
  const float *x = row_of(f.src, f.gather ? p->step.logit_row[0] : 0);
  float r = 1;
  if (f.made == COVEY_NORMED) {
    #pragma unroll 1
    for (int i = thread * 4; i < n; i += AHEAD * PRODUCT_THREADS * 4) {
      float4 v[AHEAD];                         // all on their way; those beyond the end are not used
      #pragma unroll
      for (int j = 0; j < AHEAD; j++) v[j] = __ldcg((const float4 *)(x + min(i + j * PRODUCT_THREADS * 4, n - 4)));
      #pragma unroll
      for (int j = 0; j < AHEAD; j++) if (i + j * PRODUCT_THREADS * 4 < n) *(float4 *)(xs + i + j * PRODUCT_THREADS * 4) = v[j];
    }
    warps_sync(1, PRODUCT_THREADS);
    if (warp == 0) {
      const float s = warp_squares(xs, n, lane);
      if (lane == 0) *factor = canon_rms_factor(s, n, f.eps);
    }
    warps_sync(1, PRODUCT_THREADS);
    r = *factor;
  }
  #pragma unroll 1
  for (int base = warp * 256; base < padded; base += PRODUCT_THREADS * 8) {
    const int i = base + lane * 8;
    float4 v[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    if (i < n) {
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        if (f.made != COVEY_NORMED) { v[h] = __ldcg((const float4 *)(x + i) + h); continue; }
        float4 a = *((const float4 *)(xs + i) + h), w = f.norm ? __ldg((const float4 *)(f.norm + i) + h) : make_float4(1, 1, 1, 1);
        if (f.norm && f.plus_one) { w.x = w.x + 1.0f; w.y = w.y + 1.0f; w.z = w.z + 1.0f; w.w = w.w + 1.0f; }
        a = make_float4(a.x * r, a.y * r, a.z * r, a.w * r);
        v[h] = make_float4(a.x * w.x, a.y * w.y, a.z * w.z, a.w * w.w);
        if (f.normed.data && blockIdx.x == 0) *((float4 *)(f.normed.data + i) + h) = v[h];
      }
    }
    covey_pair pair;
    const uint2 codes = row_quantise<F>(v[0], v[1], lane, &pair);
    if (i < padded) {
      *(uint2 *)(q + i) = codes;
      if (i % F::group == 0) pairs[i / F::group] = pair;
    }
  }
}

// tiles: of all parts; f.first are their first tiles.
template <class F> __device__ __forceinline__ void product_row(const covey_rows &f, const covey_program *p, int tiles, int slots) {
  COVEY_MEMORY(memory);
  const int warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, thread = threadIdx.x, grid = gridDim.x;
  const int groups = f.part[0].m.groups, segments = covey_ceil(groups, F::segment), mine = ((int)blockIdx.x < tiles) * ((tiles - 1 - (int)blockIdx.x) / grid + 1);
  const covey_row_shared at = covey_row_shared_of(groups * F::group, groups, covey_ceil(tiles, grid) * segments, f.made == COVEY_NORMED ? f.src.width : 0);
  uint64_t *full = (uint64_t *)(memory + at.bars), *empty = full + COVEY_ROW_SLOTS;
  let_next_start();
  if (lane == 0) {                            // setting up a barrier takes 20 ns: the warps share them
    #pragma unroll 1
    for (int i = warp; i < slots; i += PRODUCT_WARPS + 1) { barrier_init(&full[i], 1); barrier_init(&empty[i], WARP_ARRIVALS); }
    barrier_init_done();
  }
  __syncthreads();
  if (warp == PRODUCT_WARPS) {
    if (lane == 0) row_produce<F>(f, memory, at, tiles, slots);
    return;
  }
  if (f.made == COVEY_NORMED && f.norm)       // the norm's weight is older than the launch before
    for (int i = thread * 32; i < f.src.width; i += PRODUCT_THREADS * 32) touch(__ldg(f.norm + i));
  int8_t *q = (int8_t *)(memory + at.q);
  covey_pair *pairs = (covey_pair *)(memory + at.pairs);
  float *part = (float *)(memory + at.part), *xs = (float *)(memory + at.x);
  wait_for_previous();
  if (f.made == COVEY_CODES) {
    for (int i = thread; i < groups * F::group / 16; i += PRODUCT_THREADS) ((uint4 *)q)[i] = __ldcg((const uint4 *)p->codes.q + i);
    for (int i = thread; i < groups; i += PRODUCT_THREADS) pairs[i] = pair_of<F::form>(__ldcg(p->codes.scale + i), __ldcg(p->codes.sum + i));
  } else {
    row_codes<F>(f, p, xs, part, q, pairs, warp, lane);
  }
  // The i-th output of the block: its part, its place there.
  auto output = [&](int i, int *place) {
    const int t = blockIdx.x + (i >> 4) * grid;
    int k = f.parts - 1;
    while (t < f.first[k]) k--;
    *place = (t - f.first[k]) * COVEY_TILE + (i & 15);
    return &f.part[k];
  };
  float residual = 0;                         // of this thread's first output
  int place;
  if (thread < mine * 16) {
    const covey_part *of = output(thread, &place);
    if (of->sum.data && place < of->m.rows) residual = __ldcg(of->sum.data + place);
  }
  warps_sync(1, PRODUCT_THREADS);
  uint32_t parity = 0;
  int segment = 0, before = 0;                // the segment of unit `before` of the block
  #pragma unroll 1
  for (int base = 0; base < mine * segments; base += slots, parity ^= 1)
    #pragma unroll 1
    for (int slot = warp; slot < slots && base + slot < mine * segments; slot += PRODUCT_WARPS) {
      const int j = base + slot;
      segment += j - before;
      before = j;
      #pragma unroll 1
      while (segment >= segments) segment -= segments;
      barrier_wait(&full[slot], parity);
      const float2 v = segment_row<F>(memory + at.room + slot * F::segment * F::block, q + segment * CANON_SEGMENT, pairs + segment * F::segment, min(groups - segment * F::segment, (int)F::segment), lane);
      warp_arrive(&empty[slot], lane);
      if ((lane & 3) == 0) { part[j * 16 + (lane >> 2)] = v.x; part[j * 16 + 8 + (lane >> 2)] = v.y; }
    }
  warps_sync(1, PRODUCT_THREADS);
  #pragma unroll 1
  for (int i = thread; i < mine * 16; i += PRODUCT_THREADS) {
    const covey_part *of = output(i, &place);
    if (place >= of->m.rows) continue;
    const float *from = part + (i >> 4) * segments * 16 + (i & 15);
    float v = 0;
    #pragma unroll 4
    for (int s = 0; s < segments; s++) v = v + from[s * 16];
    if (of->bias) v = v + of->bias[place];
    of->dst.data[place] = v;
    if (!of->sum.data) continue;
    if (i != thread) residual = __ldcg(of->sum.data + place);
    of->sum.data[place] = residual + v;
  }
}

#define COVEY_PRODUCT_ROW(NAME, GROUP, SCALE)                                                                                                                        \
  extern "C" __global__ __launch_bounds__(PRODUCT_THREADS + 32) void covey_product_row_##NAME(const __grid_constant__ covey_rows f, const covey_program *p, int tiles, int slots) { \
    product_row<Form<CANON_INT4, GROUP, SCALE>>(f, p, tiles, slots);                                                                                                  \
  }
COVEY_PRODUCT_ROW(int4_g64_bf16, 64, CANON_BF16)
#ifndef COVEY_ONE_FORM
COVEY_PRODUCT_ROW(int4_g64_f16, 64, CANON_F16)
COVEY_PRODUCT_ROW(int4_g32_f16, 32, CANON_F16)
COVEY_PRODUCT_ROW(int4_g32_bf16, 32, CANON_BF16)
COVEY_PRODUCT_ROW(int4_g128_f16, 128, CANON_F16)
COVEY_PRODUCT_ROW(int4_g128_bf16, 128, CANON_BF16)
#endif
