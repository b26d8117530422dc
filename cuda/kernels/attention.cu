// Attention of few rows over paged keys and values (rule 6); of many rows: tiles.cu. Twin: engine/canon/attention.c.
//
//   blocks  a block of threads takes one row, some query heads of one key/value head, and one block of 256 positions:
//           a thread a key for the scores, a thread a channel for the values. Parts wait in p->partial; `fold` folds them in
//           ascending order. Bound by latency: one copy, a chain of dim and one of 256 multiply-adds, however long the context.
#include "attention.cuh"

// Keys and values of a block come into shared memory by one bulk copy a page. Where there are no more blocks than multiprocessors, both
// at once, and the block waits for memory once; where there are more, values follow keys to the same place, so that several blocks
// stand on a multiprocessor and one multiplies while another waits.
//
// grid (heads / HEADS, blocks, rows), 256 threads; dim at most 256 and a multiple of 8. Dynamic shared memory: keys, and values if both.
template <int FORM, int HEADS> __device__ __forceinline__ void attend_block(const canon_op &op, const covey_program *p, int both) {
  COVEY_MEMORY(block_memory);
  __shared__ float q[256][HEADS], top[8][HEADS];
  __shared__ __align__(16) float w[HEADS][CANON_BLOCK];
  __shared__ __align__(8) uint64_t loaded[2];
  using V = kv_value<FORM>;
  using raw = typename V::raw;
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31;
  if (t == 0) { barrier_init(&loaded[0], 4); barrier_init(&loaded[1], 4); barrier_init_done(); }
  wait_for_previous();
  let_next_start();
  const canon_step &step = p->step;
  const int row = blockIdx.z, b = blockIdx.y, heads = op.i[1], dim = op.kv.dim, head0 = blockIdx.x * HEADS, kv_head = head0 / (heads / op.kv.heads);
  if (row >= step.rows) return;
  const attend_span s = span_of(op, step, row);
  if (b >= s.blocks) return;
  const int sequence = step.sequence[row], start = (s.first + b) * CANON_BLOCK, from = max(s.lo - start, 0), to = min(s.pos + 1 - start, CANON_BLOCK);
  raw *keys = (raw *)block_memory, *values = both ? keys + CANON_BLOCK * dim : keys;
  const raw *page = 0;
  int64_t part = 0;
  const uint32_t page_bytes = 64 * dim * sizeof(raw);
  __syncthreads();
  auto fetch = [&](int which) {              // threads 0 to 3, a page each
    const bool used = t * 64 < to && t * 64 + 64 > from;
    barrier_expect(shared_address(&loaded[which]), used ? page_bytes : 0);
    if (used) bulk_load(shared_address((which ? values : keys) + t * 64 * dim), page + which * part, page_bytes, shared_address(&loaded[which]));
  };
  if (t < 4) {
    if (t * 64 < to && t * 64 + 64 > from) page = page_of<FORM>(op, step, sequence, start + t * 64, kv_head, &part);
    fetch(0);
    if (values != keys) fetch(1);
  }
  const float *query = op.src.data + (int64_t)row * op.src.stride + (int64_t)head0 * dim;
  for (int i = t; i < HEADS * dim; i += 256) q[i % dim][i / dim] = __ldcg(query + i);
  __syncthreads();
  barrier_wait(&loaded[0], 0);
  const bool valid = t >= from && t < to;
  float score[HEADS];
  #pragma unroll
  for (int h = 0; h < HEADS; h++) score[h] = 0;
  const raw *mine = keys + (t >> 6) * 64 * dim + (t & 63);
  if (valid) {
    #pragma unroll 8
    for (int d = 0; d < dim; d++) {
      float k = V::get(mine[d * 64]);
      #pragma unroll
      for (int h = 0; h < HEADS; h++) score[h] = fmaf(q[d][h], k, score[h]);
    }
  }
  #pragma unroll
  for (int h = 0; h < HEADS; h++) {
    score[h] = valid ? score[h] * op.f[0] : -canon_inf();
    float m = warp_highest(score[h]);
    if (lane == 0) top[warp][h] = m;
  }
  __syncthreads();
  if (t < 4 && values == keys) fetch(1);     // the keys have been read
  #pragma unroll
  for (int h = 0; h < HEADS; h++) {
    float m = top[0][h];
    #pragma unroll
    for (int i = 1; i < 8; i++) m = canon_max(top[i][h], m);
    w[h][t] = valid ? canon_expf(score[h] - m) : 0.0f;
    score[h] = m;
  }
  __syncthreads();
  float *out = p->partial + ((int64_t)row * p->partial_blocks + b) * heads * (dim + 2);
  for (int h = warp; h < HEADS; h += 8) {
    float l = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) l = l + w[h][i * 32 + lane];
    l = warp_tree(l);
    if (lane == 0) out[heads + head0 + h] = l;
  }
  if (t == 0) {
    #pragma unroll
    for (int h = 0; h < HEADS; h++) out[head0 + h] = score[h];
  }
  barrier_wait(&loaded[1], 0);
  // Channels by threads; where dim is small, the threads of a channel share its heads.
  const int sides = min(256 / dim, HEADS), side = t / dim, c = t % dim;
  if (side >= sides) return;
  for (int h0 = side; h0 < HEADS; h0 += 2 * sides) {
    const bool two = h0 + sides < HEADS;
    const float *wa = w[h0], *wb = w[two ? h0 + sides : h0];
    float a = 0, e = 0;
    int k = from;
    for (; k < to && (k & 7); k++) { float v = V::get(values[k * dim + c]); a = fmaf(wa[k], v, a); e = fmaf(wb[k], v, e); }
    #pragma unroll 2
    for (; k + 8 <= to; k += 8) {
      float x[8], y[8];
      #pragma unroll
      for (int i = 0; i < 8; i += 4) { *(float4 *)(x + i) = *(const float4 *)(wa + k + i); *(float4 *)(y + i) = *(const float4 *)(wb + k + i); }
      #pragma unroll
      for (int i = 0; i < 8; i++) { float v = V::get(values[(k + i) * dim + c]); a = fmaf(x[i], v, a); e = fmaf(y[i], v, e); }
    }
    for (; k < to; k++) { float v = V::get(values[k * dim + c]); a = fmaf(wa[k], v, a); e = fmaf(wb[k], v, e); }
    out[2 * heads + (int64_t)(head0 + h0) * dim + c] = a;
    if (two) out[2 * heads + (int64_t)(head0 + h0 + sides) * dim + c] = e;
  }
}

// grid (heads, rows), a thread a channel of a value. group: what was attended is quantised too, in groups that divide a head; 0 = it is not.
__device__ __forceinline__ void attend_fold(const canon_op &op, const covey_program *p, int group) {
  __shared__ float attended[512];
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.y, head = blockIdx.x, heads = op.i[1], dim = op.i[3], c = threadIdx.x;
  if (row >= p->step.rows) return;
  const attend_span s = span_of(op, p->step, row);
  canon_state t = {-canon_inf(), 0};
  float o = 0, old, fresh;
  const float *at = p->partial + (int64_t)row * p->partial_blocks * heads * (dim + 2);
  #pragma unroll 4
  for (int b = 0; b < s.blocks; b++, at += heads * (dim + 2)) {
    float m = __ldcg(at + head), l = __ldcg(at + heads + head), v = __ldcg(at + 2 * heads + (int64_t)head * dim + c);
    canon_fold(&t, m, l, &old, &fresh);
    o = canon_fold_channel(o, v, old, fresh);
  }
  if (op.vec) {
    canon_fold(&t, op.vec[head], 1.0f, &old, &fresh);
    o = canon_fold_channel(o, 0.0f, old, fresh);
  }
  o = o / t.l;
  op.dst.data[(int64_t)row * op.dst.stride + (int64_t)head * dim + c] = o;
  if (!group) return;
  attended[c] = o;
  __syncthreads();
  const int per = dim / group, g = (c >> 5);
  if (g >= per) return;
  const int64_t place = (int64_t)row * heads * per + head * per + g;
  warp_quantise(attended + g * group, group, group, p->codes.q + place * group, p->codes.scale + place, p->codes.sum + place);
}

#define COVEY_ATTEND(NAME, FORM)                                                                                                                    \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks1_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int both) { attend_block<FORM, 1>(op, p, both); } \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks2_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int both) { attend_block<FORM, 2>(op, p, both); } \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks4_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int both) { attend_block<FORM, 4>(op, p, both); } \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks8_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int both) { attend_block<FORM, 8>(op, p, both); }
extern "C" __global__ void covey_attend_fold(const __grid_constant__ canon_op op, const covey_program *p, int group) { attend_fold(op, p, group); }
COVEY_ATTEND(f16, CANON_F16)
#ifndef COVEY_ONE_FORM
COVEY_ATTEND(bf16, CANON_BF16)
COVEY_ATTEND(f32, CANON_F32)
#endif
