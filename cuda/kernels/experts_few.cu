// Experts with few rows each: gate, up, what lies between them and down, and quantisation in one launch, down in the next. Bound by
// reading the weights of the step's experts once.
//
// An expert's rows are taken up to 16 at a time (a pass, 8 where no expert has more); a pass and a few neighbouring tiles are a
// piece of work, and every block has one stretch of the pieces of all passes. A thread copies weights into a ring of slots, a slot a
// segment (512 inputs) of 16 outputs, as far ahead as the ring is long and across passes; each of eight warps multiplies its strip
// of outputs segment by segment (tensor cores, 8 rows a product) and keeps the sums of rule 2 in registers. Slots are a multiple of
// eight: a slot is always the same warp's, since copies end in any order, and who waits for a slot's next use while this one has not
// arrived would take it for that. Two blocks share a multiprocessor where the shape allows. The blocks of down begin when those of
// up have begun: their first weights are on the way while up ends, since they may read the list of items, which is older.
//
//   grid (any number of blocks), rows and slots of the ring in `shape`: rows | slots << 8; covey_few_of gives the shared memory
#include "experts.h"
#include "experts.cuh"

// A pass over an expert's weights: rows order[start .. start + n) of the step.
struct few_pass { const uint8_t *record; int32_t start, n; };
static_assert(sizeof(few_pass) == COVEY_FEW_PASS, "passes are sized by covey_few_of");

// This block's stretch of the pieces of all passes, `pieces` each: its passes go into shared memory, the first at passes[0]. Whole
// blocks call it; sums [COVEY_FEW_WARPS + 1].
struct few_stretch { int32_t from, to; };
__device__ __forceinline__ few_stretch few_passes(const canon_op &op, const covey_program *p, int routed, int rows, int pieces, few_pass *passes, int32_t *sums) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, most = routed ? op.i[0] : 1;
  few_stretch r = {0, 0};
  for (int count = 1; count >= 0; count--) {   // how many there are, then which are this block's
    int total = 0, n = 1;
    for (int base = 0; base < n; base += COVEY_FEW_THREADS) {
      const int i = base + threadIdx.x;
      covey_item it = i < most ? item_at(op, p, routed, i) : covey_item{-1, 0, 0};   // on its way together with their number
      if (routed) n = __ldcg(p->item_n);
      if (i >= n) it.n = 0;
      const uint8_t *record = it.n == 0 ? 0 : (const uint8_t *)(routed ? op.table[it.expert] : op.shared_block);
      const int mine = record ? covey_ceil(it.n, rows) : 0;
      int before = mine;
      #pragma unroll
      for (int h = 1; h < 32; h <<= 1) { int v = __shfl_up_sync(0xffffffffu, before, h); if (lane >= h) before += v; }
      if (lane == 31) sums[warp] = before;
      __syncthreads();
      int at = total + before - mine;
      for (int w = 0; w <= COVEY_FEW_WARPS; w++) { if (w < warp) at += sums[w]; total += sums[w]; }
      if (count && n <= COVEY_FEW_THREADS) {   // the same numbers serve both
        r = {(int)((int64_t)blockIdx.x * total * pieces / gridDim.x), (int)((int64_t)(blockIdx.x + 1) * total * pieces / gridDim.x)};
        count = 0;
      }
      const int first = r.from / pieces, last = (r.to - 1) / pieces;
      if (!count && r.to > r.from)
        for (int j = max(first - at, 0); j < mine && at + j <= last; j++) passes[at + j - first] = few_pass{record, it.start + j * rows, min(rows, it.n - j * rows)};
      __syncthreads();
    }
    if (count) r = {(int)((int64_t)blockIdx.x * total * pieces / gridDim.x), (int)((int64_t)(blockIdx.x + 1) * total * pieces / gridDim.x)};
  }
  return r;
}

// A segment of 16 outputs by 8 or 16 (more) rows from shared memory: groups below n ascending from +0. codes: the lane's row at
// the segment's first input, its other row `second` further; pairs [group][rows]: scales and sums of codes.
template <class F> __device__ __forceinline__ void segment_rows(const uint8_t *blocks, int block, int scale_form, const int8_t *codes, int second, const covey_pair *pairs, int rows, bool more, int n, int lane, float acc[2][4]) {
  #pragma unroll
  for (int i = 0; i < 8; i++) acc[i >> 2][i & 3] = 0;
  pairs += (lane & 3) * 2;
  #pragma unroll 2
  for (int i = 0; i < n; i++, blocks += block, codes += F::group, pairs += rows) {
    uint32_t a[F::chunks][F::steps][4];
    #pragma unroll
    for (int k = 0; k < F::chunks; k++) F::weights(blocks, k, lane, a[k]);
    const float2 s = F::form == CANON_MXFP4 ? half_powers(((const uint16_t *)(blocks + F::codes))[lane >> 2]) : scale_pair_of(scale_form, blocks + F::codes, lane >> 2);
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      if (h && !more) break;
      const float4 x = *(const float4 *)(pairs + 8 * h);
      const int32_t s0 = pair_of<F::form>(0, __float_as_int(x.y)).start, s1 = pair_of<F::form>(0, __float_as_int(x.w)).start;
      int32_t d[4] = {s0, s1, s0, s1};
      #pragma unroll
      for (int k = 0; k < F::chunks; k++) {
        uint32_t b[F::steps][2];
        F::codes_of(codes + h * second + k * F::chunk, lane & 3, b);
        #pragma unroll
        for (int t = 0; t < F::steps; t++) F::mma(d, a[k][t], b[t], d);
      }
      acc[h][0] = fmaf(sum_of(d[0]), s.x * x.x, acc[h][0]);
      acc[h][1] = fmaf(sum_of(d[1]), s.x * x.z, acc[h][1]);
      acc[h][2] = fmaf(sum_of(d[2]), s.y * x.x, acc[h][2]);
      acc[h][3] = fmaf(sum_of(d[3]), s.y * x.z, acc[h][3]);
    }
  }
}

template <class F, bool DOWN> __device__ __forceinline__ void experts_few(const canon_op &op, const covey_program *p, int routed, int shape) {
  COVEY_MEMORY(memory);
  constexpr int wide = (F::group > 64 ? F::group : 64) / 16, tiles_each = DOWN ? COVEY_FEW_WARPS : wide, rounds = DOWN ? 1 : wide / 4;
  const canon_record &r = routed ? op.routed : op.shared;
  const canon_matrix &m = DOWN ? r.down : r.gate;
  const int rows = shape & 255, slots = shape >> 8, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int groups = m.groups, cols = groups * F::group, tiles = covey_ceil(m.rows, 16), segments = covey_ceil(groups, F::segment);
  const int block = F::codes + 16 * covey_form_bytes(m.scale_form), slot_bytes = F::segment * block;
  const covey_few at = covey_few_of(F::group, cols, slot_bytes, rows, slots, 0);
  uint64_t *full = (uint64_t *)memory, *empty = full + COVEY_FEW_SLOTS, *team = empty + COVEY_FEW_SLOTS, *ups = team + 1, *taken = ups + 1, *gates = taken + 1;
  int32_t *sums = (int32_t *)(gates + 2), *out = sums + 16;
  int8_t *codes = (int8_t *)(memory + at.codes);
  covey_pair *pairs = (covey_pair *)(memory + at.pairs);
  float *inner = (float *)(memory + at.inner);
  uint8_t *ring = memory + at.ring;
  few_pass *passes = (few_pass *)(memory + at.passes);

  if ((int)threadIdx.x < slots) { barrier_init(&full[threadIdx.x], 1); barrier_init(&empty[threadIdx.x], WARP_ARRIVALS); }
  if (threadIdx.x == 0) barrier_init(team, COVEY_FEW_WARPS * WARP_ARRIVALS);
  if (threadIdx.x >= 1 && threadIdx.x < 5) barrier_init(team + threadIdx.x, COVEY_FEW_WARPS / 2 * WARP_ARRIVALS);
  barrier_init_done();
  if (!DOWN) wait_for_previous();
  let_next_start();
  const int pieces = covey_ceil(tiles, tiles_each);
  const few_stretch stretch = few_passes(op, p, routed, rows, pieces, passes, sums);
  const int from = stretch.from, to = stretch.to;
  __syncthreads();

  if (warp == COVEY_FEW_WARPS) {
    if (lane) return;
    const uint64_t policy = read_once();
    const int64_t strip = (int64_t)groups * block;
    int slot = 0, pass = 0, piece = from % pieces;
    uint32_t parity = 1;                       // a slot that was never used counts as empty
    for (int i = from; i < to; i++) {
      const uint8_t *first = passes[pass].record + (DOWN ? r.down.codes_at : r.gate.codes_at), *second = DOWN ? first + 4 * strip : passes[pass].record + r.up.codes_at;
      for (int round = 0; round < rounds; round++) {
        const int tile = piece * tiles_each + round * 4;
        for (int s = 0; s < segments; s++) {
          const uint32_t bytes = min((int)F::segment, groups - s * F::segment) * block;
          #pragma unroll 1
          for (int w = 0; w < COVEY_FEW_WARPS; w++) {
            const bool some = tile + (DOWN ? w : w & 3) < tiles;
            barrier_wait(&empty[slot], parity);
            barrier_expect(shared_address(&full[slot]), some ? bytes : 0);
            if (some) bulk_load(shared_address(ring + slot * slot_bytes), (w < 4 ? first : second) + (tile + (w & 3)) * strip + (int64_t)s * slot_bytes, bytes, shared_address(&full[slot]), policy);
            if (++slot == slots) { slot = 0; parity ^= 1; }
          }
        }
      }
      if (++piece == pieces) { piece = 0; pass++; }
    }
    return;
  }

  uint32_t team_parity = 0, piece_parity = 0, parity = 0;
  auto meet = [&] {                            // of the warps that multiply
    warp_arrive(team, lane);
    barrier_wait(team, team_parity);
    team_parity ^= 1;
  };
  if (DOWN) wait_for_previous();
  int slot = warp, pass = 0, piece = from % pieces;
  bool fresh = true;
  product v;
  for (int i = from; i < to; i++) {
    if (fresh) {
      const few_pass now = passes[pass];
      v = expert_product(op, p, routed, DOWN, now.record, now.start, now.n);
      if (i != from) meet();                   // nobody reads the last pass's codes any more
      #pragma unroll 1
      for (int row = warp; row < v.n; row += COVEY_FEW_WARPS) {   // all parts of a row are asked for at once
        const int64_t in = row_in(v, row);
        #pragma unroll 4
        for (int c = lane * 16; c < cols; c += 512) copy16(codes + row * at.stride + c, v.x.q + in * cols + c);
        #pragma unroll 2
        for (int g = lane; g < groups; g += 32) {
          copy4(&pairs[g * rows + row].scale, v.x.scale + in * groups + g);
          copy4(&pairs[g * rows + row].start, v.x.sum + in * groups + g);
        }
        if (lane == 0) out[row] = row_out(v, row);
      }
      copies_commit();
      copies_wait<0>();
      meet();
      fresh = false;
    }
    const bool more = v.n > 8;
    const int8_t *mine = codes + (lane >> 2) * at.stride;
    #pragma unroll 1
    for (int round = 0; round < rounds; round++) {
      const int place = round * 4 + (DOWN ? warp : warp & 3), tile = piece * tiles_each + place;
      float tot[2][4], acc[2][4];
      #pragma unroll
      for (int j = 0; j < 8; j++) tot[j >> 2][j & 3] = 0;
      #pragma unroll 1
      for (int s = 0; s < segments; s++) {
        barrier_wait(&full[slot], parity);
        if (tile < tiles) {
          segment_rows<F>(ring + slot * slot_bytes, block, m.scale_form, mine + s * CANON_SEGMENT, 8 * at.stride, pairs + s * F::segment * rows, rows, more, min((int)F::segment, groups - s * F::segment), lane, acc);
          #pragma unroll
          for (int j = 0; j < 8; j++) tot[j >> 2][j & 3] = tot[j >> 2][j & 3] + acc[j >> 2][j & 3];
        }
        warp_arrive(&empty[slot], lane);
        slot += COVEY_FEW_WARPS;
        while (slot >= slots) { slot -= slots; parity ^= 1; }
      }
      if (DOWN) {
        #pragma unroll
        for (int h = 0; h < 2; h++)
          #pragma unroll
          for (int j = 0; j < 4; j++) {
            const int c = h * 8 + (lane & 3) * 2 + (j & 1), o = tile * 16 + (j >> 1) * 8 + (lane >> 2);
            if (c < v.n && o < m.rows) v.y[out[c] * v.stride + o] = v.bias ? tot[h][j] + v.bias[o] : tot[h][j];
          }
        continue;
      }
      // Gate's warps leave their sums and go on; up's multiply, and whole groups become codes.
      auto value = [&](int h, int j) { return inner + (h * 8 + (lane & 3) * 2 + (j & 1)) * (wide * 16 + 4) + place * 16 + (j >> 1) * 8 + (lane >> 2); };
      if (warp < 4) {
        if (round == 0) barrier_wait(taken, piece_parity ^ 1);
        #pragma unroll
        for (int j = 0; j < 8; j++) if (j < 4 || more) *value(j >> 2, j & 3) = tot[j >> 2][j & 3];
        warp_arrive(&gates[round], lane);
        continue;
      }
      barrier_wait(&gates[round], piece_parity);
      #pragma unroll
      for (int j = 0; j < 8; j++) if (j < 4 || more) *value(j >> 2, j & 3) = gated(v, *value(j >> 2, j & 3), tot[j >> 2][j & 3], tile * 16 + (j >> 1 & 1) * 8 + (lane >> 2));
      if (round + 1 < rounds) continue;
      warp_arrive(ups, lane);
      barrier_wait(ups, piece_parity);
      store_inner<F, wide * 16>(v, inner, v.n, 0, piece * wide * 16, warp - 4, 4, lane, [&](int c) { return out[c]; });
      warp_arrive(taken, lane);
    }
    piece_parity ^= 1;
    if (++piece == pieces) { piece = 0; pass++; fresh = true; }
  }
}

#define COVEY_EXPERTS_FEW(NAME, FORM, GROUP)                                                                                                                            \
  extern "C" __global__ __launch_bounds__(COVEY_FEW_THREADS, 2) void covey_up_few_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed, int shape) {   \
    experts_few<Form<FORM, GROUP, CANON_F16>, false>(op, p, routed, shape);                                                                                             \
  }                                                                                                                                                                     \
  extern "C" __global__ __launch_bounds__(COVEY_FEW_THREADS, 2) void covey_down_few_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int routed, int shape) { \
    experts_few<Form<FORM, GROUP, CANON_F16>, true>(op, p, routed, shape);                                                                                              \
  }
COVEY_EXPERTS_FEW(int4_g64, CANON_INT4, 64)
#ifndef COVEY_ONE_FORM
COVEY_EXPERTS_FEW(int4_g32, CANON_INT4, 32)
COVEY_EXPERTS_FEW(int4_g128, CANON_INT4, 128)
COVEY_EXPERTS_FEW(int8_g32, CANON_INT8, 32)
COVEY_EXPERTS_FEW(int8_g64, CANON_INT8, 64)
COVEY_EXPERTS_FEW(int8_g128, CANON_INT8, 128)
COVEY_EXPERTS_FEW(mxfp4_g32, CANON_MXFP4, 32)
#endif
