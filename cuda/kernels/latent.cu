// Attention of few rows over a cache of single vectors, key and value in one (absorbed latent attention; rule 6). A block of
// threads takes one row, LATENT_HEADS query heads and one block of 256 positions: a thread a key for the scores, a thread two
// channels for the values; vectors pass through shared memory in pieces, the next on its way while one is used. Parts wait in
// p->partial for attend_fold. Bound by issuing multiply-adds, LATENT_HEADS for each number read from shared memory; the vectors
// come from the second-level cache heads / LATENT_HEADS times. Twin: engine/canon/attention.c.
#include "latent.cuh"

enum { LATENT_HEADS = 4, LATENT_DEPTH = 64, LATENT_KEYS = 32, LATENT_THREADS = 256 };

// Bytes of a stage: LATENT_DEPTH channels of 256 keys, 16 bytes apart from one another's banks, or all channels of LATENT_KEYS.
CANON_FN int64_t latent_stage(int32_t form, int32_t values) {
  int64_t keys = CANON_BLOCK * ((int64_t)LATENT_DEPTH * covey_form_bytes(form) + 16), some = (int64_t)LATENT_KEYS * values * covey_form_bytes(form);
  return keys > some ? keys : some;
}

// grid (heads / LATENT_HEADS, blocks, rows). dim and values are multiples of 8; values at most 2 * LATENT_THREADS. Dynamic shared
// memory: queries [dim][LATENT_HEADS] and two stages.
template <int FORM> __device__ __forceinline__ void attend_latent(const canon_op &op, const covey_program *p) {
  COVEY_MEMORY(memory);
  __shared__ float top[8][LATENT_HEADS];
  __shared__ __align__(16) float weights[CANON_BLOCK][LATENT_HEADS];
  __shared__ const uint8_t *pages[4];
  using V = latent_value<FORM>;
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31, row = blockIdx.z, head0 = blockIdx.x * LATENT_HEADS, heads = op.i[1], dim = op.kv.dim, n = op.i[3];
  wait_for_previous();
  let_next_start();
  if (row >= p->step.rows) return;
  const int pos = p->step.positions[row], lo = op.i[2] && pos - op.i[2] + 1 > 0 ? pos - op.i[2] + 1 : 0, first = lo / CANON_BLOCK, b = blockIdx.y;
  if (b > pos / CANON_BLOCK - first) return;
  const int start = (first + b) * CANON_BLOCK, from = lo > start ? lo - start : 0, to = at_most(pos + 1 - start, CANON_BLOCK);
  float *q = (float *)memory;
  uint8_t *stages = memory + (int64_t)dim * LATENT_HEADS * 4;
  const int64_t stage = latent_stage(FORM, n);
  if (t < 4 && t * 64 < to) pages[t] = kv_layer(op.kv, p->step.pages[(int64_t)p->step.sequence[row] * p->step.pages_stride + start / 64 + t], op.i[0]);
  const float *query = row_of(op.src, row) + (int64_t)head0 * dim;
  for (int i = t; i < LATENT_HEADS * dim; i += LATENT_THREADS) q[i % dim * LATENT_HEADS + i / dim] = __ldcg(query + i);
  __syncthreads();
  const int vector = dim * V::size, stride = LATENT_DEPTH * V::size + 16;
  // Channels d0 .. of all keys.
  auto fetch_keys = [&](int d0, int half) {
    const int pieces = at_most(dim - d0, LATENT_DEPTH) * V::size / 16;
    for (int i = t; i < to * pieces; i += LATENT_THREADS) {
      int key = i / pieces, piece = i % pieces;
      copy16(stages + half * stage + key * stride + piece * 16, pages[key >> 6] + (int64_t)(key & 63) * vector + d0 * V::size + piece * 16);
    }
    copies_commit();
  };
  auto fetch_values = [&](int k0, int half) {
    const int pieces = n * V::size / 16, keys = at_most(to - k0, LATENT_KEYS);
    for (int i = t; i < keys * pieces; i += LATENT_THREADS) {
      int key = k0 + i / pieces, piece = i % pieces;
      copy16(stages + half * stage + i * 16, pages[key >> 6] + (int64_t)(key & 63) * vector + piece * 16);
    }
    copies_commit();
  };
  const bool valid = t >= from && t < to;
  float score[LATENT_HEADS];
  #pragma unroll
  for (int h = 0; h < LATENT_HEADS; h++) score[h] = 0;
  int half = 0;
  fetch_keys(0, 0);
  for (int d0 = 0; d0 < dim; d0 += LATENT_DEPTH, half ^= 1) {
    if (d0 + LATENT_DEPTH < dim) { fetch_keys(d0 + LATENT_DEPTH, half ^ 1); copies_wait<1>(); }
    else copies_wait<0>();
    __syncthreads();
    const uint8_t *mine = stages + half * stage + t * stride;
    if (valid) {
      for (int d = 0; d < at_most(dim - d0, LATENT_DEPTH); d += 8) {
        float k[8];
        V::get(V::load(mine + d * V::size), k);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
          float4 x = *(const float4 *)(q + (d0 + d + i) * LATENT_HEADS);
          score[0] = canon_fmaf(x.x, k[i], score[0]); score[1] = canon_fmaf(x.y, k[i], score[1]);
          score[2] = canon_fmaf(x.z, k[i], score[2]); score[3] = canon_fmaf(x.w, k[i], score[3]);
        }
      }
    }
    __syncthreads();
  }
  fetch_values(from / LATENT_KEYS * LATENT_KEYS, 0);
  #pragma unroll
  for (int h = 0; h < LATENT_HEADS; h++) {
    score[h] = valid ? score[h] * op.f[0] : -canon_inf();
    float m = score[h];
    #pragma unroll
    for (int s = 16; s >= 1; s >>= 1) m = canon_max(__shfl_xor_sync(FULL, m, s), m);
    if (lane == 0) top[warp][h] = m;
  }
  __syncthreads();
  #pragma unroll
  for (int h = 0; h < LATENT_HEADS; h++) {
    float m = top[0][h];
    #pragma unroll
    for (int i = 1; i < 8; i++) m = canon_max(top[i][h], m);
    weights[t][h] = valid ? canon_expf(score[h] - m) : 0.0f;
    score[h] = m;
  }
  __syncthreads();
  float *out = p->partial + ((int64_t)row * p->partial_blocks + b) * heads * (n + 2);
  if (warp < LATENT_HEADS) {
    float l = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) l = l + weights[i * 32 + lane][warp];
    l = warp_tree(l);
    if (lane == 0) { out[heads + head0 + warp] = l; }
  }
  if (t == 0) {
    #pragma unroll
    for (int h = 0; h < LATENT_HEADS; h++) out[head0 + h] = score[h];
  }
  float o[LATENT_HEADS][2];
  #pragma unroll
  for (int h = 0; h < LATENT_HEADS; h++) o[h][0] = o[h][1] = 0;
  half = 0;
  for (int k0 = from / LATENT_KEYS * LATENT_KEYS; k0 < to; k0 += LATENT_KEYS, half ^= 1) {
    if (k0 + LATENT_KEYS < to) { fetch_values(k0 + LATENT_KEYS, half ^ 1); copies_wait<1>(); }
    else copies_wait<0>();
    __syncthreads();
    if (2 * t < n) {
      const uint8_t *v = stages + half * stage + 2 * t * V::size;
      #pragma unroll 8
      for (int k = from > k0 ? from - k0 : 0; k < at_most(to - k0, LATENT_KEYS); k++) {
        float4 w = *(const float4 *)weights[k0 + k];
        float2 x = V::pair(*(const typename V::pair_words *)(v + (int64_t)k * n * V::size));
        o[0][0] = canon_fmaf(w.x, x.x, o[0][0]); o[0][1] = canon_fmaf(w.x, x.y, o[0][1]);
        o[1][0] = canon_fmaf(w.y, x.x, o[1][0]); o[1][1] = canon_fmaf(w.y, x.y, o[1][1]);
        o[2][0] = canon_fmaf(w.z, x.x, o[2][0]); o[2][1] = canon_fmaf(w.z, x.y, o[2][1]);
        o[3][0] = canon_fmaf(w.w, x.x, o[3][0]); o[3][1] = canon_fmaf(w.w, x.y, o[3][1]);
      }
    }
    __syncthreads();
  }
  if (2 * t < n)
    #pragma unroll
    for (int h = 0; h < LATENT_HEADS; h++) *(float2 *)(out + 2 * heads + (int64_t)(head0 + h) * n + 2 * t) = make_float2(o[h][0], o[h][1]);
}

#define COVEY_LATENT(NAME, FORM) \
  extern "C" __global__ __launch_bounds__(LATENT_THREADS) void covey_attend_latent_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_latent<FORM>(op, p); }
COVEY_LATENT(f32, CANON_F32)
COVEY_LATENT(f16, CANON_F16)
COVEY_LATENT(bf16, CANON_BF16)
