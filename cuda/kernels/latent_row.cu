// Absorbed latent attention of one row (rules 3 to 6) in three launches: queries through the keys' half of the expansion beside the
// row's own latent, attention in blocks of 256 positions, and their fold through the values' half. Each asks for its weights, or for
// the vectors of earlier steps, by bulk copies before the launch before has ended. The products are bound by reading their matrix
// once, attention by issuing multiply-adds. Twins: engine/canon/rows.c, attention.c.
#include "latent.h"
#include "heads.cuh"
#include "latent.cuh"

// ---- products by head --------------------------------------------------------------------------------------------------

enum { LATENT_WARPS = 8, LATENT_THREADS = LATENT_WARPS * 32 };

// Rule 3 for one output by four neighbouring threads, q = 0..3, each with eight of its lanes: w and x [n] in shared memory, n a
// multiple of 8. The sum is in the first of the four.
template <int FORM> __device__ __forceinline__ float latent_dot(const uint8_t *w, const float *x, int n, int q) {
  float acc[8];
  #pragma unroll
  for (int e = 0; e < 8; e++) acc[e] = 0;
  #pragma unroll 2
  for (int i = q * 8; i < n; i += 32) {
    float f[8];
    latent_value<FORM>::eight(w + i * latent_value<FORM>::size, f);
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
  const int blocks = __ldcg(p->step.positions) / CANON_BLOCK + 1;
  wait_for_previous();
  const int stride = f.heads * (n + 2), two = thread * 2 < n;
  const float *at = p->partial, *o_at = at + 2 * f.heads + head * n + thread * 2;
  canon_state t = {-canon_inf(), 0};
  float2 o = make_float2(0, 0);
  #pragma unroll 1
  for (int b0 = 0; b0 < blocks; b0 += 4, at += 4 * stride, o_at += 4 * stride) {
    float m[4], l[4];
    float2 v[4];
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      if (b0 + j >= blocks) break;
      m[j] = __ldcg(at + j * stride + head);
      l[j] = __ldcg(at + j * stride + f.heads + head);
      if (two) v[j] = __ldcg((const float2 *)(o_at + j * stride));
    }
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      if (b0 + j >= blocks) break;
      float old, fresh;
      canon_fold(&t, m[j], l[j], &old, &fresh);
      if (two) o = make_float2(canon_fold_channel(o.x, v[j].x, old, fresh), canon_fold_channel(o.y, v[j].y, old, fresh));
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

// ---- attention ---------------------------------------------------------------------------------------------------------
//
// A set of four blocks takes a unit: eight heads and a block of 256 positions. Each block scores one page's keys, a thread a key and
// four heads, and hands the scores to all four, whose words are their own flags (ptx.cuh); then each has a quarter of the values'
// channels, a thread two of them for four heads. So a unit reads its vectors twice, once as keys and once as values, and its 256 keys'
// exponentials are made four times. Sums wait in p->partial for the fold. Sets go on to further units where there are more than sets;
// then inboxes alternate, and a block that begins a round has the scores of the round before from all, who have read those of the
// one before that.

enum { ATTEND_THREADS = 128, ATTEND_WARPS = ATTEND_THREADS / 32, SET = COVEY_LATENT_SET, HEADS = COVEY_LATENT_HEADS, PAGE = 64 };

// What a block reads of a unit. Keys come in two halves of their channels, values in two halves of the block's positions, each half a
// group of copies; what the launch before makes, the queries and the row's own vector, is read when that has ended.
template <int FORM> struct latent_unit {
  enum { size = latent_value<FORM>::size };
  const uint8_t *pages[4];
  int k, to, fresh, vector, slice;             // keys of the block of positions; the row's own one, or -1

  __device__ __forceinline__ latent_unit(const canon_op &op, const covey_program *p, int b, int pos) {
    k = blockIdx.x % SET;
    to = at_most(pos + 1 - b * CANON_BLOCK, CANON_BLOCK);
    fresh = pos / CANON_BLOCK == b ? to - 1 : -1;
    vector = op.kv.dim * size;
    slice = op.i[3] / SET * size;
    const int32_t *at = p->step.pages + (int64_t)__ldcg(p->step.sequence) * p->step.pages_stride + b * (CANON_BLOCK / PAGE);
    #pragma unroll
    for (int i = 0; i < 4; i++) pages[i] = i * PAGE < to ? kv_layer(op.kv, __ldcg(at + i), op.i[0]) : 0;
  }
  __device__ __forceinline__ const uint8_t *page(int i) const { return i == 0 ? pages[0] : i == 1 ? pages[1] : i == 2 ? pages[2] : pages[3]; }
  // Channels of the block's page of keys, eight threads a key.
  __device__ __forceinline__ void keys(uint8_t *to_keys, int half) const {
    const int first = half ? covey_ceil(vector, 32) * 16 : 0, end = half ? vector : covey_ceil(vector, 32) * 16;
    const uint8_t *from = page(k);
    #pragma unroll 1
    for (int row = threadIdx.x >> 3; row < PAGE && k * PAGE + row < to; row += ATTEND_THREADS / 8)
      if (k * PAGE + row != fresh)
        #pragma unroll 1
        for (int at = first + (threadIdx.x & 7) * 16; at < end; at += 128) copy16(to_keys + row * (vector + 16) + at, from + row * vector + at);
    copies_commit();
  }
  // Two pages of values, sixteen threads a vector.
  __device__ __forceinline__ void values(uint8_t *to_values, int half) const {
    #pragma unroll 1
    for (int i = 2 * half; i < 2 * half + 2; i++) {
      const uint8_t *from = page(i) + k * slice;
      #pragma unroll 1
      for (int row = threadIdx.x >> 4; row < at_most(to - i * PAGE, PAGE); row += ATTEND_THREADS / 16)
        if (i * PAGE + row != fresh)
          #pragma unroll 1
          for (int at = (threadIdx.x & 15) * 16; at < slice; at += 256) copy16(to_values + (i * PAGE + row) * slice + at, from + row * vector + at);
    }
    copies_commit();
  }
  __device__ __forceinline__ void rest(const float *from, float *queries, uint8_t *to_keys, uint8_t *to_values) const {
    const int many = HEADS * (vector / size) / 4;
    #pragma unroll 9
    for (int i = threadIdx.x; i < many; i += ATTEND_THREADS) ((float4 *)queries)[i] = __ldcg((const float4 *)from + i);
    if (fresh < 0) return;
    const uint8_t *own = page(fresh / PAGE) + fresh % PAGE * vector;
    const int row = fresh - k * PAGE;
    if (row >= 0 && row < PAGE)
      #pragma unroll 1
      for (int at = threadIdx.x * 16; at < vector; at += ATTEND_THREADS * 16) *(uint4 *)(to_keys + row * (vector + 16) + at) = __ldcg((const uint4 *)(own + at));
    #pragma unroll 1
    for (int at = threadIdx.x * 16; at < slice; at += ATTEND_THREADS * 16) *(uint4 *)(to_values + fresh * slice + at) = __ldcg((const uint4 *)(own + k * slice + at));
  }
};

// grid (whole sets of blocks), ATTEND_THREADS threads. dim and values are multiples of 8, a quarter of the values is a multiple of
// 16 bytes and at most ATTEND_THREADS channels.
template <int FORM> __device__ __forceinline__ void attend_latent_row(const canon_op &op, const covey_program *p) {
  COVEY_MEMORY(memory);
  using V = latent_value<FORM>;
  const int t = threadIdx.x, warp = __shfl_sync(FULL, t >> 5, 0), lane = t & 31, dim = op.kv.dim, n = op.i[3], heads = op.i[1], k = blockIdx.x % SET, sets = gridDim.x / SET;
  const covey_latent_shared at = covey_latent_shared_of(dim, n, V::size);
  const int pos = __ldcg(p->step.positions), groups = heads / HEADS, units = (pos / CANON_BLOCK + 1) * groups, key = t & 63, quad = t >> 6, slice = n / SET, pitch = dim * V::size + 16;
  let_next_start();
  float *w = (float *)(memory + at.w), *top = (float *)(memory + at.top), *queries = (float *)(memory + at.q);
  const float *q = queries + quad * 4 * dim;
  const uint8_t *vector = memory + at.keys + key * pitch;
  int u = blockIdx.x / SET;
  if (u >= units) return;
  {
    const latent_unit<FORM> first(op, p, u / groups, pos);
    first.keys(memory + at.keys, 0);
    first.keys(memory + at.keys, 1);
    first.values(memory + at.values, 0);
    first.values(memory + at.values, 1);
  }
  wait_for_previous();
  #pragma unroll 1
  for (int round = 0; u < units; u += sets, round++) {
    const int b = u / groups, head0 = (u - b * groups) * HEADS, to = at_most(pos + 1 - b * CANON_BLOCK, CANON_BLOCK), inbox = (round & 1) * HEADS * CANON_BLOCK;
    const latent_unit<FORM> unit(op, p, b, pos);
    unit.rest(op.src.data + head0 * dim, queries, memory + at.keys, memory + at.values);
    float4 score = make_float4(0, 0, 0, 0);
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
      if (half) copies_wait<2>(); else copies_wait<3>();
      __syncthreads();
      const int middle = covey_ceil(dim * V::size, 32) * 16 / V::size;
      #pragma unroll 2
      for (int d = half ? middle : 0; d < (half ? dim : middle); d += 8) {
        float x[8];
        V::eight(vector + d * V::size, x);
        auto add = [&](float s, const float *from) {
          const float4 a = *(const float4 *)(from + d), e = *(const float4 *)(from + d + 4);
          s = canon_fmaf(a.x, x[0], s); s = canon_fmaf(a.y, x[1], s); s = canon_fmaf(a.z, x[2], s); s = canon_fmaf(a.w, x[3], s);
          s = canon_fmaf(e.x, x[4], s); s = canon_fmaf(e.y, x[5], s); s = canon_fmaf(e.z, x[6], s); s = canon_fmaf(e.w, x[7], s);
          return s;
        };
        score = make_float4(add(score.x, q), add(score.y, q + dim), add(score.z, q + 2 * dim), add(score.w, q + 3 * dim));
      }
    }
    const float scale = op.f[0];
    score = make_float4(score.x * scale, score.y * scale, score.z * scale, score.w * scale);
    if (k * PAGE + key < to)
      #pragma unroll
      for (int r = 0; r < SET; r++) hand_over(op.state + (int64_t)(blockIdx.x - k + r) * COVEY_LATENT_INBOX + inbox + (quad * CANON_BLOCK + k * PAGE + key) * 4, score);
    // All scores of four heads and four keys of this thread.
    float *mine = op.state + (int64_t)blockIdx.x * COVEY_LATENT_INBOX + inbox + (quad * CANON_BLOCK + key) * 4;
    float4 s[SET];
    uint32_t looks = 0;
    for (bool all = false; !all;) {
      all = true;
      #pragma unroll
      for (int j = 0; j < SET; j++) s[j] = j * PAGE + key < to ? look4((const float *)mine + j * PAGE * 4) : make_float4(-canon_inf(), -canon_inf(), -canon_inf(), -canon_inf());
      #pragma unroll
      for (int j = 0; j < SET; j++) all &= !is_unset(s[j].x) && !is_unset(s[j].y) && !is_unset(s[j].z) && !is_unset(s[j].w);
      if (++looks == MOST_LOOKS) __trap();
    }
    #pragma unroll
    for (int j = 0; j < SET; j++) if (j * PAGE + key < to) *(float4 *)(mine + j * PAGE * 4) = make_float4(unset(), unset(), unset(), unset());
    if (u + sets < units) __threadfence();                   // whoever is two rounds further may write there
    float m[4];
    #pragma unroll
    for (int h = 0; h < 4; h++) {
      m[h] = -canon_inf();
      #pragma unroll
      for (int j = 0; j < SET; j++) {
        const float v = h == 0 ? s[j].x : h == 1 ? s[j].y : h == 2 ? s[j].z : s[j].w;
        w[(quad * 4 + h) * CANON_BLOCK + j * PAGE + key] = v;
        m[h] = canon_max(v, m[h]);
      }
      #pragma unroll
      for (int i = 16; i >= 1; i >>= 1) m[h] = canon_max(__shfl_xor_sync(FULL, m[h], i), m[h]);
      if (lane == 0) top[warp * 4 + h] = m[h];
    }
    __syncthreads();
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {                   // keys of the unit behind
      if (u + sets < units) latent_unit<FORM>(op, p, (u + sets) / groups, pos).keys(memory + at.keys, half);
      else copies_commit();
    }
    #pragma unroll
    for (int h = 0; h < 4; h++) m[h] = canon_max(top[quad * 8 + h], top[quad * 8 + 4 + h]);
    #pragma unroll 1
    for (int j = 0; j < SET; j++) {
      const bool valid = j * PAGE + key < to;
      float *at_key = w + quad * 4 * CANON_BLOCK + j * PAGE + key, e[4];
      #pragma unroll
      for (int h = 0; h < 4; h++) e[h] = canon_expf(at_key[h * CANON_BLOCK] - m[h]);
      #pragma unroll
      for (int h = 0; h < 4; h++) at_key[h * CANON_BLOCK] = valid ? e[h] : 0.0f;
    }
    __syncthreads();
    float *out = p->partial + (int64_t)b * heads * (n + 2);
    if (k == 0) {
      #pragma unroll
      for (int h = 0; h < HEADS / ATTEND_WARPS; h++) {
        const int head = warp * (HEADS / ATTEND_WARPS) + h;
        float l = 0;
        #pragma unroll
        for (int i = 0; i < CANON_BLOCK / 32; i++) l = l + w[head * CANON_BLOCK + i * 32 + lane];
        l = warp_tree(l);
        if (lane == 0) {
          out[head0 + head] = canon_max(top[head / 4 * 8 + head % 4], top[head / 4 * 8 + 4 + head % 4]);
          out[heads + head0 + head] = l;
        }
      }
    }
    // Values: two channels and four heads a thread, keys ascending.
    const int pairs = slice / 2, four = t >= pairs, c = (t - four * pairs) * 2;
    const bool active = t < 2 * pairs;
    float o[4][2];
    #pragma unroll
    for (int h = 0; h < 4; h++) o[h][0] = o[h][1] = 0;
    #pragma unroll 1
    for (int i = 0; i < 4; i++) {
      const uint8_t *v = memory + at.values + (i * PAGE * slice + c) * V::size;
      const float *weight = w + (active ? four : 0) * 4 * CANON_BLOCK + i * PAGE;
      const int here = at_most(to - i * PAGE, PAGE);
      if (i % 2 == 0) {
        if (i) copies_wait<2>(); else copies_wait<3>();
        __syncthreads();
      }
      int j = 0;
      if (active) {
        #pragma unroll 2
        for (; j + 4 <= here; j += 4) {
          float2 x[4];
          #pragma unroll
          for (int e = 0; e < 4; e++) x[e] = V::two(v + (j + e) * slice * V::size);
          #pragma unroll
          for (int h = 0; h < 4; h++) {
            const float4 a = *(const float4 *)(weight + h * CANON_BLOCK + j);
            #pragma unroll
            for (int e = 0; e < 4; e++) {
              const float by = e == 0 ? a.x : e == 1 ? a.y : e == 2 ? a.z : a.w;
              o[h][0] = canon_fmaf(by, x[e].x, o[h][0]);
              o[h][1] = canon_fmaf(by, x[e].y, o[h][1]);
            }
          }
        }
        #pragma unroll 1
        for (; j < here; j++) {
          const float2 x = V::two(v + j * slice * V::size);
          #pragma unroll
          for (int h = 0; h < 4; h++) { const float by = weight[h * CANON_BLOCK + j]; o[h][0] = canon_fmaf(by, x.x, o[h][0]); o[h][1] = canon_fmaf(by, x.y, o[h][1]); }
        }
      }
    }
    if (active)
      #pragma unroll
      for (int h = 0; h < 4; h++) *(float2 *)(out + 2 * heads + (int64_t)(head0 + four * 4 + h) * n + k * slice + c) = make_float2(o[h][0], o[h][1]);
    __syncthreads();
    #pragma unroll 1
    for (int half = 0; half < 2; half++) {
      if (u + sets < units) latent_unit<FORM>(op, p, (u + sets) / groups, pos).values(memory + at.values, half);
      else copies_commit();
    }
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
