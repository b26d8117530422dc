// Absorbed latent attention of one row (rules 3 to 6) in three launches: queries through the keys' half of the expansion beside the
// row's own latent, attention in blocks of 256 positions, and their fold through the values' half. Each asks for its weights, or for
// the vectors of earlier steps, before the launch before has ended. The products are bound by reading their matrix
// once, attention by issuing multiply-adds. Twins: engine/canon/rows.c, attention.c.
#include "latent.h"
#include "heads.cuh"
#include "latent.cuh"

// ---- products by head --------------------------------------------------------------------------------------------------

enum { LATENT_WARPS = 8, LATENT_THREADS = LATENT_WARPS * 32, FOLDED = 4 };

// Rule 3 for one output by four neighbouring threads, q = 0..3, each with eight of its lanes: w and x [n] in shared memory, n a
// multiple of 8. The sum is in the first of the four.
template <int FORM> __device__ __forceinline__ float latent_dot(const uint8_t *w, const float *x, int n, int q) {
  float acc[8];
  #pragma unroll
  for (int e = 0; e < 8; e++) acc[e] = 0;
  #pragma unroll 4
  for (int i = q * 8; i < n; i += 32) {
    float f[8];
    latent_value<FORM>::get(latent_value<FORM>::load(w + i * latent_value<FORM>::size), f);
    const float4 a = *(const float4 *)(x + i), b = *(const float4 *)(x + i + 4);
    const float in[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    #pragma unroll
    for (int e = 0; e < 8; e++) acc[e] = canon_fmaf(f[e], in[e], acc[e]);
  }
  #pragma unroll
  for (int h = 16; h >= 1; h >>= 1)
    #pragma unroll
    for (int e = 0; e < 8; e++) {
      if (h >= 8) acc[e] = acc[e] + __shfl_down_sync(FULL, acc[e], h / 8);
      else if (e < h) acc[e] = acc[e] + acc[e + h];
    }
  return acc[0];
}

// Asks for n rows of `bytes` bytes into shared memory, eight threads a row; whoever has met the others behind copies_wait<0> has them.
// (Bulk copies of so little cost 35 ns each.)
__device__ __forceinline__ void latent_rows(const uint8_t *from, uint8_t *to, int n, int bytes) {
  const int pitch = covey_latent_pitch(bytes), piece = (threadIdx.x & 7) * 16;
  #pragma unroll 2
  for (int row = threadIdx.x >> 3; row < n; row += LATENT_THREADS / 8)
    #pragma unroll 1
    for (int at = piece; at < bytes; at += 128) copy16(to + row * pitch + at, from + (int64_t)row * bytes + at);
  copies_commit();
}

// The row's own latent, normed and turned, into the cache. x: [rank + rot] in shared memory.
__device__ __forceinline__ void latent_store(const covey_latent_heads &f, const covey_program *p, float *x) {
  const int thread = threadIdx.x, lane = thread & 31, warp = __shfl_sync(FULL, thread >> 5, 0), dim = f.rank + f.rot;
  const covey_angles &a = p->angles[f.angles];
  wait_for_previous();
  for (int i = thread; i < dim; i += LATENT_THREADS) x[i] = __ldcg(f.latent.data + i);
  __syncthreads();
  if (warp == 0) head_norm(x, f.norm, f.rank, f.eps, f.plus_one, lane);
  if (warp == 1) head_turn(x + f.rank, f.rot / 2, f.pairing, a.cosine, a.sine, lane);
  __syncthreads();
  const int pos = p->step.positions[0], page = p->step.pages[(int64_t)p->step.sequence[0] * p->step.pages_stride + pos / 64];
  uint8_t *at = kv_layer(f.kv, page, f.layer);
  #pragma unroll 1
  for (int i = thread; i < dim; i += LATENT_THREADS)
    if (store_value(f.kv.form, at, key_at(f.kv, 0, pos % 64, i), x[i]) >= 0x7c00) fault(p, 0, 0, CANON_FAULT_KV, f.label);
}

// grid (heads * parts + 1): a part of a head's outputs each, the last block has the latent.
template <int FORM> __device__ __forceinline__ void latent_heads(const covey_latent_heads &f, const covey_program *p) {
  COVEY_MEMORY(memory);
  const int thread = threadIdx.x, lane = thread & 31, warp = __shfl_sync(FULL, thread >> 5, 0), head = blockIdx.x / f.parts, part = blockIdx.x - head * f.parts;
  float *x = (float *)memory;
  let_next_start();
  if (head == f.heads) { latent_store(f, p, x); return; }
  const int widest = max(f.rank + f.rot, f.plain), per = f.rank / f.parts, bytes = f.plain * latent_value<FORM>::size, pitch = covey_latent_pitch(bytes);
  uint8_t *rows = memory + covey_ceil(widest * 4, 128) * 128;
  latent_rows(f.keys.codes + ((int64_t)head * f.rank + part * per) * bytes, rows, per, bytes);
  wait_for_previous();
  const float *q = f.q.data + head * (f.plain + f.rot);
  float *y = f.absorbed.data + head * (f.rank + f.rot);
  #pragma unroll 1
  for (int i = thread; i < f.plain; i += LATENT_THREADS) x[i] = __ldcg(q + i);
  if (part == 0) {
    const covey_angles &a = p->angles[f.angles];
    const int n = f.rot / 2;
    #pragma unroll 1
    for (int j = thread; j < n; j += LATENT_THREADS) {
      const int first = f.pairing ? 2 * j : j, second = f.pairing ? 2 * j + 1 : j + n;
      float u = __ldcg(q + f.plain + first), v = __ldcg(q + f.plain + second);
      canon_rotate(&u, &v, __ldcg(a.cosine + j), __ldcg(a.sine + j));
      y[f.rank + first] = u;
      y[f.rank + second] = v;
    }
  }
  copies_wait<0>();
  __syncthreads();
  #pragma unroll 1
  for (int base = warp * 8; base < per; base += LATENT_WARPS * 8) {
    const int o = base + (lane >> 2);
    const float v = latent_dot<FORM>(rows + at_most(o, per - 1) * pitch, x, f.plain, lane & 3);
    if ((lane & 3) == 0 && o < per) y[part * per + o] = v;
  }
}

// grid (outputs / each, heads).
template <int FORM> __device__ __forceinline__ void latent_values(const covey_latent_values &f, const covey_program *p) {
  COVEY_MEMORY(memory);
  const int thread = threadIdx.x, lane = thread & 31, warp = __shfl_sync(FULL, thread >> 5, 0), head = blockIdx.y, part = blockIdx.x, n = f.rank, bytes = n * latent_value<FORM>::size, pitch = covey_latent_pitch(bytes);
  float *x = (float *)memory, *y = x + n;
  uint8_t *rows = memory + covey_ceil((n + f.each) * 4, 128) * 128;
  let_next_start();
  latent_rows(f.values.codes + ((int64_t)head * f.outputs + part * f.each) * bytes, rows, f.each, bytes);
  const int visible = __ldcg(p->step.positions) + 1, blocks = covey_ceil(f.kept ? at_most(visible, f.kept) : visible, CANON_BLOCK);
  wait_for_previous();
  const int stride = f.heads * (n + 2), two = thread * 2 < n;
  const float *at = p->partial, *o_at = at + 2 * f.heads + head * n + (two ? thread * 2 : 0);
  canon_state t = {-canon_inf(), 0};
  float2 o = make_float2(0, 0);
  #pragma unroll 1
  for (int b0 = 0; b0 < blocks; b0 += FOLDED) {              // loads of a turn are all on their way; those beyond the end are not used
    float m[FOLDED], l[FOLDED];
    float2 v[FOLDED];
    #pragma unroll
    for (int j = 0; j < FOLDED; j++) {
      const int64_t b = (int64_t)at_most(b0 + j, blocks - 1) * stride;
      m[j] = __ldcg(at + b + head);
      l[j] = __ldcg(at + b + f.heads + head);
      v[j] = __ldcg((const float2 *)(o_at + b));
    }
    #pragma unroll
    for (int j = 0; j < FOLDED; j++) {
      if (b0 + j >= blocks) break;
      float old, fresh;
      canon_fold(&t, m[j], l[j], &old, &fresh);
      o = make_float2(canon_fold_channel(o.x, v[j].x, old, fresh), canon_fold_channel(o.y, v[j].y, old, fresh));
    }
  }
  if (two) *(float2 *)(x + thread * 2) = make_float2(o.x / t.l, o.y / t.l);
  copies_wait<0>();
  __syncthreads();
  #pragma unroll 1
  for (int base = warp * 8; base < f.each; base += LATENT_WARPS * 8) {
    const int i = base + (lane >> 2);
    const float v = latent_dot<FORM>(rows + at_most(i, f.each - 1) * pitch, x, n, lane & 3);
    if ((lane & 3) || i >= f.each) continue;
    f.dst.data[head * f.outputs + part * f.each + i] = v;
    y[i] = v;
  }
  if (!f.group) return;
  __syncthreads();
  if (warp) return;
  const int g = (head * f.outputs + part * f.each) / f.group;
  warp_quantise(y, f.group, f.group, p->codes.q + g * f.group, p->codes.scale + g, p->codes.sum + g);
}

// grid (heads / LATENT_WARPS + 1): a warp a head; the last block has the key, whose channels are at most LATENT_KEY.
enum { LATENT_KEY = 256 };
__device__ __forceinline__ void latent_index(const covey_latent_index &f, const covey_program *p) {
  __shared__ float values[LATENT_WARPS][LATENT_KEY];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), head = blockIdx.x * LATENT_WARPS + warp, dim = f.dim;
  const bool key = blockIdx.x == gridDim.x - 1;
  let_next_start();
  wait_for_previous();
  if (key ? warp > 0 : head >= f.heads) return;
  float *from = key ? f.k.data : f.q.data + head * dim, *x = values[warp];
  #pragma unroll 1
  for (int i = lane; i < dim; i += 32) x[i] = __ldcg(from + i);
  __syncwarp();
  if (key) {
    float s = 0, q = 0;
    #pragma unroll 1
    for (int i = lane; i < dim; i += 32) s = s + x[i];
    const float mean = warp_tree(s) / (float)dim;
    #pragma unroll 1
    for (int i = lane; i < dim; i += 32) { const float d = x[i] - mean; q = canon_fmaf(d, d, q); }
    const float factor = canon_rms_factor(warp_tree(q), dim, f.eps);
    #pragma unroll 1
    for (int i = lane; i < dim; i += 32) x[i] = ((x[i] - mean) * factor) * __ldg(f.norm + i) + __ldg(f.norm + dim + i);
    __syncwarp();
  }
  const covey_angles &a = p->angles[f.angles];
  head_turn(x + f.offset, f.rot / 2, f.pairing, a.cosine, a.sine, lane);
  #pragma unroll 1
  for (int i = lane; i < dim; i += 32) from[i] = x[i];
  if (!key) return;
  const int pos = p->step.positions[0], page = p->step.pages[(int64_t)p->step.sequence[0] * p->step.pages_stride + pos / 64];
  uint8_t *at = kv_layer(f.kv, page, f.layer);
  #pragma unroll 1
  for (int i = lane; i < dim; i += 32)
    if (store_value(f.kv.form, at, key_at(f.kv, 0, pos % 64, i), x[i]) >= 0x7c00) fault(p, 0, 0, CANON_FAULT_KV, f.label);
}
extern "C" __global__ __launch_bounds__(LATENT_THREADS) void covey_index_ready(const __grid_constant__ covey_latent_index f, const covey_program *p) { latent_index(f, p); }

// ---- attention ---------------------------------------------------------------------------------------------------------
//
// A set of four blocks takes a unit: eight heads and a block of 256 positions. Each block scores one page's keys, a thread a key and
// two heads, and hands the scores to all four, whose words are their own flags (ptx.cuh); then each has a quarter of the values'
// channels, a thread two of them for two heads. So a unit reads its vectors twice, once as keys and once as values, and its 256 keys'
// exponentials are made four times. Sums wait in p->partial for the fold. Sets go on to further units where there are more than sets;
// then inboxes alternate, and a block that begins a round has the scores of the round before from all, who have read those of the
// one before that.

enum { ATTEND_THREADS = 256, ATTEND_WARPS = ATTEND_THREADS / 32, SET = COVEY_LATENT_SET, HEADS = COVEY_LATENT_HEADS, PAGE = 64 };

// What a block reads of a unit. Keys come in two halves of their channels, values in two halves of the block's positions, each half a
// group of copies; what the launch before makes, the queries and the row's own vector, is read when that has ended. Where an indexer
// kept some positions, the block of 256 is one of their list, which that launch makes too.
template <int FORM> struct latent_unit {
  enum { size = latent_value<FORM>::size };
  const uint8_t **rows;                        // [CANON_BLOCK] vectors of the unit, in shared memory
  int k, to, fresh, vector, slice;             // how many; the row's own one if it is not there yet, or -1

  __device__ __forceinline__ latent_unit(const canon_op &op, int b, int attended, const uint8_t **tables, int round) {
    rows = tables + (round & 1) * CANON_BLOCK;
    k = blockIdx.x % SET;
    to = at_most(attended - b * CANON_BLOCK, CANON_BLOCK);
    fresh = !op.ids && b == (attended - 1) / CANON_BLOCK ? to - 1 : -1;
    vector = op.kv.dim * size;
    slice = op.i[3] / SET * size;
  }
  __device__ __forceinline__ void find(const canon_op &op, const covey_program *p, int sequence, int b) const {
    const int i = threadIdx.x;
    if (i >= to) return;
    const int at = op.ids ? __ldcg(op.ids + b * CANON_BLOCK + i) : b * CANON_BLOCK + i;
    const int page = __ldcg(p->step.pages + (int64_t)sequence * p->step.pages_stride + at / PAGE);
    rows[i] = kv_layer(op.kv, page, op.i[0]) + at % PAGE * vector;
  }
  // Channels of the block's quarter of the keys, eight threads a key.
  __device__ __forceinline__ void keys(uint8_t *to_keys) const {
    const int middle = covey_ceil(vector, 32) * 16;
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
      #pragma unroll 1
      for (int row = threadIdx.x >> 3; row < PAGE && k * PAGE + row < to; row += ATTEND_THREADS / 8) {
        if (k * PAGE + row == fresh) continue;
        const uint8_t *from = rows[k * PAGE + row];
        #pragma unroll 1
        for (int at = half * middle + (threadIdx.x & 7) * 16; at < (half ? vector : middle); at += 128) copy16(to_keys + row * (vector + 16) + at, from + at);
      }
      copies_commit();
    }
  }
  // Values, sixteen threads a vector.
  __device__ __forceinline__ void values(uint8_t *to_values) const {
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
      #pragma unroll 4
      for (int row = half * 2 * PAGE + (threadIdx.x >> 4); row < at_most(to, (half + 1) * 2 * PAGE); row += ATTEND_THREADS / 16)
        if (row != fresh)
          #pragma unroll 1
          for (int at = (threadIdx.x & 15) * 16; at < slice; at += 256) copy16(to_values + row * slice + at, rows[row] + k * slice + at);
      copies_commit();
    }
  }
  __device__ __forceinline__ void rest(const float *from, float *queries, uint8_t *to_keys, uint8_t *to_values) const {
    const int many = HEADS * (vector / size) / 4;
    #pragma unroll 1
    for (int i = threadIdx.x; i < many; i += 5 * ATTEND_THREADS) {
      float4 v[5];
      #pragma unroll
      for (int j = 0; j < 5; j++) v[j] = __ldcg((const float4 *)from + at_most(i + j * ATTEND_THREADS, many - 1));
      #pragma unroll
      for (int j = 0; j < 5; j++) if (i + j * ATTEND_THREADS < many) ((float4 *)queries)[i + j * ATTEND_THREADS] = v[j];
    }
    if (fresh < 0) return;
    const uint8_t *own = rows[fresh];
    const int row = fresh - k * PAGE, i = threadIdx.x * 16;    // a vector has less than 16 * ATTEND_THREADS bytes
    if (row >= 0 && row < PAGE && i < vector) *(uint4 *)(to_keys + row * (vector + 16) + i) = __ldcg((const uint4 *)(own + i));
    if (i < slice) *(uint4 *)(to_values + fresh * slice + i) = __ldcg((const uint4 *)(own + k * slice + i));
  }
};

// Eight channels of a key and of two queries, or four keys' values and weights, on their way while those before are used.
template <int FORM> struct latent_keys {
  typename latent_value<FORM>::words k;
  float4 q[4];
  __device__ __forceinline__ void load(const uint8_t *key, const float *query, int dim) {
    k = latent_value<FORM>::load(key);
    q[0] = *(const float4 *)query; q[1] = *(const float4 *)(query + 4); q[2] = *(const float4 *)(query + dim); q[3] = *(const float4 *)(query + dim + 4);
  }
  __device__ __forceinline__ void add(float2 &s) const {
    float x[8];
    latent_value<FORM>::get(k, x);
    #pragma unroll
    for (int i = 0; i < 8; i++) {
      const float4 &a = q[i / 4], &b = q[2 + i / 4];
      s.x = canon_fmaf(i % 4 == 0 ? a.x : i % 4 == 1 ? a.y : i % 4 == 2 ? a.z : a.w, x[i], s.x);
      s.y = canon_fmaf(i % 4 == 0 ? b.x : i % 4 == 1 ? b.y : i % 4 == 2 ? b.z : b.w, x[i], s.y);
    }
  }
};
template <int FORM> struct latent_values_of {
  typename latent_value<FORM>::pair_words v[4];
  float4 w[2];
  __device__ __forceinline__ void load(const uint8_t *value, int apart, const float *weight) {
    #pragma unroll
    for (int i = 0; i < 4; i++) v[i] = *(const typename latent_value<FORM>::pair_words *)(value + i * apart);
    w[0] = *(const float4 *)weight; w[1] = *(const float4 *)(weight + CANON_BLOCK);
  }
  __device__ __forceinline__ void add(float2 &a, float2 &b) const {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 x = latent_value<FORM>::pair(v[i]);
      const float p = i == 0 ? w[0].x : i == 1 ? w[0].y : i == 2 ? w[0].z : w[0].w, q = i == 0 ? w[1].x : i == 1 ? w[1].y : i == 2 ? w[1].z : w[1].w;
      a.x = canon_fmaf(p, x.x, a.x); a.y = canon_fmaf(p, x.y, a.y);
      b.x = canon_fmaf(q, x.x, b.x); b.y = canon_fmaf(q, x.y, b.y);
    }
  }
};

// grid (whole sets of blocks), ATTEND_THREADS threads. dim and values are multiples of 8, a quarter of the values is a multiple of
// 16 bytes and at most ATTEND_THREADS / 2 channels.
template <int FORM> __device__ __forceinline__ void attend_latent_row(const canon_op &op, const covey_program *p) {
  COVEY_MEMORY(memory);
  using V = latent_value<FORM>;
  const int t = threadIdx.x, warp = __shfl_sync(FULL, t >> 5, 0), lane = t & 31, dim = op.kv.dim, n = op.i[3], heads = op.i[1], k = blockIdx.x % SET, sets = gridDim.x / SET;
  const covey_latent_shared at = covey_latent_shared_of(dim, n, V::size);
  const int sequence = __ldcg(p->step.sequence), visible = __ldcg(p->step.positions) + 1, attended = op.ids ? at_most(visible, op.i[4]) : visible, groups = heads / HEADS, units = covey_ceil(attended, CANON_BLOCK) * groups, key = t & 63, duo = warp >> 1, slice = n / SET, pairs = slice / 2;
  const int four = t / pairs, c = (t - four * pairs) * 2;    // of the values: two heads and two channels
  let_next_start();
  float *w = (float *)(memory + at.w), *top = (float *)(memory + at.top), *queries = (float *)(memory + at.q);
  const uint8_t **tables = (const uint8_t **)(memory + at.rows);
  int u = blockIdx.x / SET;
  auto begin = [&] {                                         // keys of the first unit
    const latent_unit<FORM> first(op, u / groups, attended, tables, 0);
    first.find(op, p, sequence, u / groups);
    __syncthreads();
    first.keys(memory + at.keys);
  };
  #pragma unroll 1
  for (int waited = 0; waited < 2; waited++) {
    if (u < units && waited == (op.ids != 0)) begin();
    if (!waited) wait_for_previous();
  }
  #pragma unroll 1
  for (int round = 0; u < units; u += sets, round++) {
    const int b = u / groups, head0 = (u - b * groups) * HEADS, to = at_most(attended - b * CANON_BLOCK, CANON_BLOCK), inbox = (round & 1) * HEADS * CANON_BLOCK;
    {
      const latent_unit<FORM> unit(op, b, attended, tables, round);
      unit.rest(op.src.data + head0 * dim, queries, memory + at.keys, memory + at.values);
      unit.values(memory + at.values);
      if (u + sets < units) latent_unit<FORM>(op, (u + sets) / groups, attended, tables, round + 1).find(op, p, sequence, (u + sets) / groups);
    }
    float2 score = make_float2(0, 0);
    const int middle = covey_ceil(dim * V::size, 32) * 16 / V::size;
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
      if (half) copies_wait<2>(); else copies_wait<3>();
      __syncthreads();
      const int first = half ? middle : 0, many = (half ? dim - middle : middle) / 8;
      const uint8_t *vector = memory + at.keys + key * (dim * V::size + 16) + first * V::size;
      const float *q = queries + duo * 2 * dim + first;
      latent_keys<FORM> now, next;
      now.load(vector, q, dim);
      #pragma unroll 2
      for (int i = 1; i < many; i++) {
        next.load(vector + i * 8 * V::size, q + i * 8, dim);
        now.add(score);
        now = next;
      }
      now.add(score);
    }
    const float scale = op.f[0];
    score = make_float2(score.x * scale, score.y * scale);
    if (k * PAGE + key < to)
      #pragma unroll
      for (int r = 0; r < SET; r++) hand_over(op.state + (int64_t)(blockIdx.x - k + r) * COVEY_LATENT_INBOX + inbox + (duo * CANON_BLOCK + k * PAGE + key) * 2, score);
    // All scores of two heads and four keys of this thread.
    float *mine = op.state + (int64_t)blockIdx.x * COVEY_LATENT_INBOX + inbox + (duo * CANON_BLOCK + key) * 2;
    float2 s[SET];
    uint32_t looks = 0;
    for (bool all = false; !all;) {
      all = true;
      #pragma unroll
      for (int j = 0; j < SET; j++) {
        const uint2 v = j * PAGE + key < to ? look2((const uint32_t *)mine + j * PAGE * 2) : make_uint2(0xff800000u, 0xff800000u);
        s[j] = make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
      }
      #pragma unroll
      for (int j = 0; j < SET; j++) all &= !is_unset(s[j].x) && !is_unset(s[j].y);
      if (++looks == MOST_LOOKS) __trap();
    }
    #pragma unroll
    for (int j = 0; j < SET; j++) if (j * PAGE + key < to) *(float2 *)(mine + j * PAGE * 2) = make_float2(unset(), unset());
    if (u + sets < units) __threadfence();                   // whoever is two rounds further may write there
    float2 m = s[0];
    #pragma unroll
    for (int j = 1; j < SET; j++) m = make_float2(canon_max(s[j].x, m.x), canon_max(s[j].y, m.y));
    #pragma unroll
    for (int i = 16; i >= 1; i >>= 1) m = make_float2(canon_max(__shfl_xor_sync(FULL, m.x, i), m.x), canon_max(__shfl_xor_sync(FULL, m.y, i), m.y));
    if (lane == 0) *(float2 *)(top + warp * 2) = m;
    __syncthreads();
    if (u + sets < units) {                                  // keys of the unit behind
      latent_unit<FORM>(op, (u + sets) / groups, attended, tables, round + 1).keys(memory + at.keys);
    } else {
      copies_commit();
      copies_commit();
    }
    m = make_float2(canon_max(top[duo * 4], top[duo * 4 + 2]), canon_max(top[duo * 4 + 1], top[duo * 4 + 3]));
    #pragma unroll
    for (int j = 0; j < SET; j++) {
      const bool valid = j * PAGE + key < to;
      const float x = canon_expf(s[j].x - m.x), y = canon_expf(s[j].y - m.y);
      w[duo * 2 * CANON_BLOCK + j * PAGE + key] = valid ? x : 0.0f;
      w[(duo * 2 + 1) * CANON_BLOCK + j * PAGE + key] = valid ? y : 0.0f;
    }
    __syncthreads();
    float *out = p->partial + (int64_t)b * heads * (n + 2);
    if (k == 0) {                                            // a head a warp
      float l = 0;
      #pragma unroll
      for (int i = 0; i < CANON_BLOCK / 32; i++) l = l + w[warp * CANON_BLOCK + i * 32 + lane];
      l = warp_tree(l);
      if (lane == 0) {
        out[head0 + warp] = canon_max(top[duo * 4 + warp % 2], top[duo * 4 + 2 + warp % 2]);
        out[heads + head0 + warp] = l;
      }
    }
    // Values: keys ascending.
    const bool active = four < HEADS / 2;
    float2 o[2] = {make_float2(0, 0), make_float2(0, 0)};
    const int apart = slice * V::size;
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
      if (half) copies_wait<2>(); else copies_wait<3>();
      __syncthreads();
      const int here = at_most(to - half * 2 * PAGE, 2 * PAGE);
      const uint8_t *v = memory + at.values + half * 2 * PAGE * apart + c * V::size;
      const float *weight = w + (active ? four : 0) * 2 * CANON_BLOCK + half * 2 * PAGE;
      if (!active || here <= 0) continue;
      int j = 0;
      if (here >= 4) {
        latent_values_of<FORM> now, next;
        now.load(v, apart, weight);
        #pragma unroll 2
        for (; j + 8 <= here; j += 4) {
          next.load(v + (j + 4) * apart, apart, weight + j + 4);
          now.add(o[0], o[1]);
          now = next;
        }
        now.add(o[0], o[1]);
        j += 4;
      }
      #pragma unroll 1
      for (; j < here; j++) {
        const float2 x = V::pair(*(const typename V::pair_words *)(v + j * apart));
        #pragma unroll
        for (int h = 0; h < 2; h++) { const float by = weight[h * CANON_BLOCK + j]; o[h] = make_float2(canon_fmaf(by, x.x, o[h].x), canon_fmaf(by, x.y, o[h].y)); }
      }
    }
    if (active)
      #pragma unroll
      for (int h = 0; h < 2; h++) *(float2 *)(out + 2 * heads + (int64_t)(head0 + four * 2 + h) * n + k * slice + c) = o[h];
    __syncthreads();
  }
}

#define COVEY_LATENT_ROW(NAME, FORM)                                                                                                                                              \
  extern "C" __global__ __launch_bounds__(LATENT_THREADS) void covey_latent_heads_##NAME(const __grid_constant__ covey_latent_heads f, const covey_program *p) { latent_heads<FORM>(f, p); }    \
  extern "C" __global__ __launch_bounds__(LATENT_THREADS) void covey_latent_values_##NAME(const __grid_constant__ covey_latent_values f, const covey_program *p) { latent_values<FORM>(f, p); } \
  extern "C" __global__ __launch_bounds__(ATTEND_THREADS) void covey_attend_latent_row_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_latent_row<FORM>(op, p); }
COVEY_LATENT_ROW(bf16, CANON_BF16)
COVEY_LATENT_ROW(f16, CANON_F16)
#ifndef COVEY_ONE_FORM
COVEY_LATENT_ROW(f32, CANON_F32)
#endif
