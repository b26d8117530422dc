// What attend_row.cu does with a unit of attention, and what its warps know of the work. Rule 6, for one row.
#pragma once
#include "attend_row.h"
#include "heads.cuh"
#include "product.cuh"

enum { ATTEND_WARPS = COVEY_ATTEND_WARPS, ATTEND_THREADS = ATTEND_WARPS * 32 };

// Attended positions lo..pos in blocks from first; units of attention.
struct attend_step {
  int pos, lo, first, blocks, sequence, units;
  __device__ __forceinline__ attend_step(const covey_attend &a, const covey_program *p) {
    pos = __ldcg(p->step.positions); sequence = __ldcg(p->step.sequence);
    lo = a.window && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0;
    first = lo / CANON_BLOCK;
    blocks = pos / CANON_BLOCK - first + 1;
    units = blocks * (a.heads.heads / a.together);
  }
};
// How many of `of` tiles a block has: its number, that plus the number of blocks, and so on.
__device__ __forceinline__ int attend_mine(int of) { return (int)blockIdx.x < of ? (of - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0; }

// A unit of attention.
struct attend_unit {
  int block, kv_head, head, start, from, to, fresh;   // first query head; keys from..to-1 of positions from start on; whether the last one is the new one
  __device__ __forceinline__ attend_unit(const covey_attend &a, const attend_step &z, int u) {
    const int sets = a.heads.heads / a.together;
    block = u / sets;
    head = (u - block * sets) * a.together;
    kv_head = head / a.group;
    start = (z.first + block) * CANON_BLOCK;
    from = max(z.lo - start, 0);
    to = min(z.pos + 1 - start, CANON_BLOCK);
    fresh = start + to - 1 == z.pos;
  }
  // Keys of the unit in page i of its four; null where it attends none. Values lie 128 * DIM * kv.heads bytes behind.
  template <int DIM> __device__ __forceinline__ const uint8_t *page(const covey_attend &a, const covey_program *p, const attend_step &z, int i) const {
    if (i * 64 >= to || i * 64 + 64 <= from) return 0;
    const int32_t page = __ldcg(p->step.pages + (int64_t)z.sequence * p->step.pages_stride + start / 64 + i);
    return kv_layer(a.heads.kv, page, a.heads.layer) + kv_head * DIM * 128;
  }
};

struct attend_half {
  float *values;
  uint32_t *codes;
  float *pairs;
  __device__ __forceinline__ attend_half(const covey_attend &a, int which) {
    const int dim = a.heads.kv.dim;
    values = a.exchange + which * covey_attend_half(a.heads.heads, a.heads.kv.heads, dim);
    codes = (uint32_t *)values + covey_attend_values(a.heads.heads, a.heads.kv.heads, dim);
    pairs = (float *)codes + a.heads.heads * dim / 4;
  }
};
template <int DIM> __device__ __forceinline__ float *attend_part(const covey_attend &a, int head, int block) {
  return a.exchange + 2 * covey_attend_half(a.heads.heads, a.heads.kv.heads, DIM) + (head * a.blocks + block) * (int64_t)(DIM + 4);
}
// A word of four codes, none of which is -128, so that it is never the unset word.
__device__ __forceinline__ uint32_t attend_word(uint32_t codes) { return codes ^ 0x7f7f7f7fu; }

__device__ __noinline__ float attend_exp(float x) { return canon_expf(x); }

struct attend_codes { uint2 codes; float scale; int32_t sum; };
template <int GROUP> __device__ __noinline__ attend_codes attend_quantise(float4 a, float4 b, int lane) {
  const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  attend_codes c;
  c.codes = quantise8<GROUP>(v, lane, &c.scale, &c.sum);
  return c;
}

// Barriers of a block.
struct attend_bars {
  uint64_t *in_full, *in_empty, *out_full, *out_empty, *full, *empty, *consumed, *attended;   // of slots, of slots, of stages; inputs consumed, units done
  __device__ __forceinline__ attend_bars(uint8_t *at) {
    in_full = (uint64_t *)at; in_empty = in_full + COVEY_ATTEND_SLOTS; out_full = in_empty + COVEY_ATTEND_SLOTS; out_empty = out_full + COVEY_ATTEND_SLOTS;
    full = out_empty + COVEY_ATTEND_SLOTS; empty = full + COVEY_ATTEND_STAGES; consumed = empty + COVEY_ATTEND_STAGES; attended = consumed + 1;
  }
};
// The place in a ring that everybody passes through in the same order.
struct attend_place {
  int at;
  uint32_t parity;
  __device__ __forceinline__ void move(int by, int n) { at += by; if (at >= n) { at -= n; parity ^= 1; } }
};

// ---- a unit ------------------------------------------------------------------------------------------------------------

// Queries and the new key and value of a unit into shared memory: query [DIM][HEADS], fresh [2][DIM] as the cache stores them.
template <int DIM, int HEADS> __device__ __forceinline__ void attend_heads(const covey_attend &a, const covey_program *p, const attend_step &z, uint8_t *memory, const attend_half &half, const attend_unit &u, int warp, int lane) {
  const covey_heads &f = a.heads;
  const int which = warp < HEADS ? 0 : warp < 4 ? 3 : warp - 3;   // queries, key, value, nothing
  if (which && (which > 2 || !u.fresh)) return;
  float *x = (float *)(memory + a.at.head) + warp * DIM, *query = (float *)(memory + a.at.query);
  const float *turn = (const float *)(memory + a.at.turn), *norms = (const float *)(memory + a.at.norms) + which * DIM;
  const float *from = half.values + (which == 0 ? u.head + warp : f.heads + u.kv_head + (which == 2 ? f.kv.heads : 0)) * DIM + lane;
  uint32_t looks = 0;
  float v[DIM / 32];
  for (bool all = false; !all;) {
    all = true;
    #pragma unroll
    for (int i = 0; i < DIM / 32; i++) v[i] = look(from + i * 32);
    #pragma unroll
    for (int i = 0; i < DIM / 32; i++) all &= !is_unset(v[i]);
    if (++looks == MOST_LOOKS) __trap();
  }
  #pragma unroll
  for (int i = 0; i < DIM / 32; i++) x[lane + i * 32] = v[i];
  __syncwarp();
  const bool normed = which == 0 ? f.q_norm != 0 : which == 1 && f.k_norm;
  #pragma unroll 1
  for (int late = 0; late < 2; late++) {      // the norm is in one place only
    if (normed && late == f.late) head_norm(x, norms, DIM, f.eps, f.plus_one, lane);
    if (!late && f.angles >= 0 && which < 2) head_turn(x + f.offset, f.rot / 2, f.pairing, turn, turn + f.rot / 2, lane);
  }
  if (which == 0) {
    for (int i = lane; i < DIM; i += 32) query[i * HEADS + warp] = x[i];
    return;
  }
  const bool stores = u.head == u.kv_head * a.group;
  const int place = z.pos % 64;
  uint8_t *page = kv_layer(f.kv, __ldcg(p->step.pages + (int64_t)z.sequence * p->step.pages_stride + z.pos / 64), f.layer);
  #pragma unroll 1
  for (int i = lane; i < DIM; i += 32) {
    const uint16_t bits = canon_to_f16(x[i]);
    ((uint16_t *)(memory + a.at.fresh))[(which - 1) * DIM + i] = bits;
    if (!stores) continue;
    ((uint16_t *)page)[which == 1 ? key_at(f.kv, u.kv_head, place, i) : value_at(f.kv, u.kv_head, place, i)] = bits;
    if ((bits & 0x7fff) >= 0x7c00) fault(p, 0, 0, CANON_FAULT_KV, f.label);
  }
}

// Eight channels of a key and of the queries, or eight keys' values and weights, on their way while the eight before are used.
template <int HEADS> struct attend_keys {
  uint16_t k[8];
  float4 q[2 * HEADS];
  __device__ __forceinline__ void load(const uint16_t *key, const float *query) {
    #pragma unroll
    for (int j = 0; j < 8; j++) k[j] = key[j * 64];
    #pragma unroll
    for (int j = 0; j < 2 * HEADS; j++) q[j] = *(const float4 *)(query + 4 * j);
  }
  __device__ __forceinline__ void add(float *score) const {
    #pragma unroll
    for (int j = 0; j < 8; j++) {
      const float x = halves(k[j]).x;
      #pragma unroll
      for (int h = 0; h < HEADS; h++) {
        const float4 &t = q[(j * HEADS + h) / 4];
        const int c = (j * HEADS + h) % 4;
        score[h] = canon_fmaf(c == 0 ? t.x : c == 1 ? t.y : c == 2 ? t.z : t.w, x, score[h]);
      }
    }
  }
};
template <int DIM, int EACH, int CHANNELS> struct attend_values {
  uint32_t v[8];
  float4 w[EACH][2];
  __device__ __forceinline__ void load(const uint16_t *value, const float *weights) {
    #pragma unroll
    for (int j = 0; j < 8; j++) v[j] = CHANNELS == 2 ? *(const uint32_t *)(value + j * DIM) : value[j * DIM];
    #pragma unroll
    for (int e = 0; e < EACH; e++) { w[e][0] = *(const float4 *)(weights + e * CANON_BLOCK); w[e][1] = *(const float4 *)(weights + e * CANON_BLOCK + 4); }
  }
  static __device__ __forceinline__ void one(float (*o)[CHANNELS], int e, uint32_t v, float weight) {
    const float2 x = halves(v);
    o[e][0] = canon_fmaf(weight, x.x, o[e][0]);
    if (CHANNELS == 2) o[e][CHANNELS - 1] = canon_fmaf(weight, x.y, o[e][CHANNELS - 1]);
  }
  __device__ __forceinline__ void add(float (*o)[CHANNELS]) const {
    #pragma unroll
    for (int j = 0; j < 8; j++)
      #pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float4 &t = w[e][j / 4];
        one(o, e, v[j], j % 4 == 0 ? t.x : j % 4 == 1 ? t.y : j % 4 == 2 ? t.z : t.w);
      }
  }
};

template <int DIM, int HEADS> __device__ __forceinline__ void attend_block(const covey_attend &a, const covey_program *p, const attend_step &z, uint8_t *memory, const attend_half &half, const attend_unit &u, attend_place &stage, int warp, int lane) {
  constexpr int channels = HEADS > 1 ? 2 : 1, each = HEADS > 2 ? 2 : 1, piece = 64 * DIM;   // of values, and heads, that a thread sums
  const int thread = warp * 32 + lane, stages = a.at.stages;
  const attend_bars bars(memory + a.at.bars);
  uint8_t *room = memory + a.at.room;
  float *w = (float *)(memory + a.at.w), *top = (float *)(memory + a.at.top);
  const float *query = (const float *)(memory + a.at.query);
  const uint16_t *fresh = (const uint16_t *)(memory + a.at.fresh);
  attend_heads<DIM, HEADS>(a, p, z, memory, half, u, warp, lane);
  warps_sync(1, ATTEND_THREADS);

  // Scores: a thread a key, two warps a page. Of keys that are not there too; such scores are not used.
  const bool valid = thread >= u.from && thread < u.to;
  float score[HEADS];
  #pragma unroll
  for (int h = 0; h < HEADS; h++) score[h] = 0;
  #pragma unroll 1
  for (int part = 0; part < 2; part++) {
    attend_place mine = stage;
    mine.move(warp >> 1, stages);
    uint16_t *key = (uint16_t *)(room + mine.at * piece) + (thread & 63);
    barrier_wait(&bars.full[mine.at], mine.parity);
    if (u.fresh && thread >> 6 == (u.to - 1) >> 6) {          // the new key joins its page
      for (int i = lane; i < DIM / 2; i += 32) ((uint16_t *)(room + mine.at * piece))[i * 64 + ((u.to - 1) & 63)] = fresh[part * (DIM / 2) + i];
      __syncwarp();
    }
    const float *q = query + part * (DIM / 2) * HEADS;
    attend_keys<HEADS> now, next;
    now.load(key, q);
    #pragma unroll 2
    for (int d = 8; d < DIM / 2; d += 8) {
      next.load(key + d * 64, q + d * HEADS);
      now.add(score);
      now = next;
    }
    now.add(score);
    warp_arrive_at(4, lane, [&](int i) {      // whoever has not read a page is done with it too
      attend_place its = stage;
      its.move(i, stages);
      return &bars.empty[its.at];
    });
    stage.move(4, stages);
  }
  #pragma unroll
  for (int h = 0; h < HEADS; h++) {
    score[h] = valid ? score[h] * a.scale : -canon_inf();
    float m = score[h];
    #pragma unroll
    for (int s = 16; s >= 1; s >>= 1) m = canon_max(__shfl_xor_sync(FULL, m, s), m);
    if (lane == 0) top[warp * HEADS + h] = m;
  }
  warps_sync(1, ATTEND_THREADS);
  float highest[HEADS];
  #pragma unroll
  for (int h = 0; h < HEADS; h++) {
    float m = top[h];
    #pragma unroll
    for (int i = 1; i < ATTEND_WARPS; i++) m = canon_max(top[i * HEADS + h], m);
    highest[h] = m;
    w[h * CANON_BLOCK + thread] = valid ? attend_exp(score[h] - m) : 0.0f;
  }
  warps_sync(1, ATTEND_THREADS);
  #pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (warp != 4 + h) continue;
    float l = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) l = l + w[h * CANON_BLOCK + i * 32 + lane];
    l = warp_tree(l);
    float *part = attend_part<DIM>(a, u.head + h, u.block);
    if (lane == 0) { hand_over(part + DIM, highest[h]); hand_over(part + DIM + 1, l); }
  }

  // Values: a thread `channels` of them for `each` heads, keys ascending.
  constexpr int across = DIM / channels;
  const int c = thread % across * channels, head = thread / across * each;
  const bool active = head < HEADS;
  const float *weights = w + (active ? head : 0) * CANON_BLOCK;
  float o[each][channels];
  #pragma unroll
  for (int e = 0; e < each; e++)
    #pragma unroll
    for (int j = 0; j < channels; j++) o[e][j] = 0;
  using V = attend_values<DIM, each, channels>;
  const int stored = u.to - u.fresh;
  #pragma unroll 1
  for (int k = 0; k < COVEY_ATTEND_PIECES; k++) {
    const uint16_t *v = (const uint16_t *)(room + stage.at * piece) + c;
    const float *wk = weights + k * 32;
    const int to = min(stored - k * 32, 32);  // of the piece's keys
    int i = max(u.from - k * 32, 0);
    auto some = [&](int end) {
      #pragma unroll 1
      for (; i < end; i++)
        #pragma unroll
        for (int e = 0; e < each; e++) V::one(o, e, channels == 2 ? *(const uint32_t *)(v + i * DIM) : v[i * DIM], wk[e * CANON_BLOCK + i]);
    };
    barrier_wait(&bars.full[stage.at], stage.parity);
    if (active) {
      #pragma unroll 1
      for (int again = 0; again < 2; again++) {              // what is not eight keys, eight at a time, what is left
        if (i + 8 <= to && i % 8 == 0) {
          V now, next;
          now.load(v + i * DIM, wk + i);
          #pragma unroll 2
          for (; i + 16 <= to; i += 8) {
            next.load(v + (i + 8) * DIM, wk + i + 8);
            now.add(o);
            now = next;
          }
          now.add(o);
          i += 8;
        }
        some(again ? to : min(to, (i + 7) / 8 * 8));
      }
    }
    warp_arrive(&bars.empty[stage.at], lane);
    stage.move(1, stages);
  }
  if (active) {
    #pragma unroll
    for (int e = 0; e < each; e++) {
      float *part = attend_part<DIM>(a, u.head + head + e, u.block) + c;
      if (u.fresh) V::one(o, e, channels == 2 ? *(const uint32_t *)(fresh + DIM + c) : fresh[DIM + c], weights[e * CANON_BLOCK + u.to - 1]);
      #pragma unroll
      for (int j = 0; j < channels; j++) hand_over(part + j, o[e][j]);
    }
  }
}

// Four blocks' sums of a head as they arrive; a lane has four channels.
struct attend_parts {
  float4 v[4];
  __device__ __forceinline__ void look_at(const float *at, int stride, int n) {
    #pragma unroll
    for (int j = 0; j < 4; j++) v[j] = j < n ? look4(at + j * stride) : make_float4(0, 0, 0, 0);
  }
  __device__ __forceinline__ bool arrived() const {
    bool all = true;
    #pragma unroll
    for (int j = 0; j < 4; j++) all &= !is_unset(v[j].x) && !is_unset(v[j].y) && !is_unset(v[j].z) && !is_unset(v[j].w);
    return all;
  }
};

// Folds a head (rule 6), a warp; the factors of 32 blocks at once, since the largest score up to a block is exact in any order.
// out [DIM] is shared memory of the warp.
template <class F, int DIM> __device__ __forceinline__ void attend_fold(const covey_attend &a, const attend_step &z, const attend_half &half, int head, float *out, int lane) {
  constexpr int stride = DIM + 4;
  const bool mine = lane * 4 < DIM;
  float top = -canon_inf(), l = 0;
  float4 o = make_float4(0, 0, 0, 0);
  auto fold = [&](float4 v, float old, float fresh) {
    o = make_float4(canon_fold_channel(o.x, v.x, old, fresh), canon_fold_channel(o.y, v.y, old, fresh), canon_fold_channel(o.z, v.z, old, fresh), canon_fold_channel(o.w, v.w, old, fresh));
  };
  float *parts = attend_part<DIM>(a, head, 0);
  attend_parts next;
  next.look_at(parts + lane * 4, stride, mine ? z.blocks : 0);
  #pragma unroll 1
  for (int b0 = 0; b0 < z.blocks; b0 += 32) {
    const int n = min(z.blocks - b0, 32);
    float2 ml = make_float2(-canon_inf(), 0);
    float *at = parts + (b0 + lane) * stride + DIM;
    if (lane < n) {
      uint32_t looks = 0;
      do {
        ml = make_float2(look(at), look(at + 1));
        if (++looks == MOST_LOOKS) __trap();
      } while (is_unset(ml.x) || is_unset(ml.y));
    }
    __syncwarp();
    float up_to = lane == 0 ? canon_max(top, ml.x) : ml.x;
    #pragma unroll 1
    for (int s = 1; s < 32; s <<= 1) { const float v = __shfl_up_sync(FULL, up_to, s); if (lane >= s) up_to = canon_max(v, up_to); }
    float before = __shfl_up_sync(FULL, up_to, 1);
    if (lane == 0) before = top;
    const float old = attend_exp(before - up_to), fresh = attend_exp(ml.x - up_to), weighted = ml.y * fresh;
    top = __shfl_sync(FULL, up_to, n - 1);
    #pragma unroll 1
    for (int b = 0; b < n; b += 4) {
      float *from = parts + (b0 + b) * stride + lane * 4;
      attend_parts now = next;
      uint32_t looks = 0;
      while (!now.arrived()) {
        now.look_at(from, stride, mine ? n - b : 0);
        if (++looks == MOST_LOOKS) __trap();
      }
      __syncwarp();
      next.look_at(from + 4 * stride, stride, mine ? z.blocks - b0 - b - 4 : 0);
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        if (b + j >= n) break;
        const float p = __shfl_sync(FULL, old, b + j), q = __shfl_sync(FULL, fresh, b + j);
        l = canon_fmaf(l, p, __shfl_sync(FULL, weighted, b + j));
        fold(now.v[j], p, q);
        if (mine) *(float4 *)(from + j * stride) = make_float4(unset(), unset(), unset(), unset());
      }
    }
    if (lane < n) at[0] = at[1] = unset();
  }
  if (a.sinks) {
    const float sink = a.sinks[head], all = canon_max(top, sink), old = attend_exp(top - all), fresh = attend_exp(sink - all);   // canon_fold of (sink, 1)
    l = canon_fmaf(l, old, fresh);
    fold(make_float4(0, 0, 0, 0), old, fresh);
  }
  if (mine) *(float4 *)(out + lane * 4) = make_float4(o.x / l, o.y / l, o.z / l, o.w / l);
  __syncwarp();
  const int i = lane * 8;
  float4 v[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
  if (i < DIM) { v[0] = *(const float4 *)(out + i); v[1] = *(const float4 *)(out + i + 4); }
  const attend_codes c = attend_quantise<F::group>(v[0], v[1], lane);
  if (i < DIM) {
    const int at = head * DIM + i;
    hand_over_word(half.codes + at / 4, attend_word(c.codes.x));
    hand_over_word(half.codes + at / 4 + 1, attend_word(c.codes.y));
    if (i % F::group == 0) {
      const covey_pair pair = pair_of<CANON_INT4>(c.scale, c.sum);
      hand_over(half.pairs + at / F::group * 2, pair.scale);
      hand_over_word((uint32_t *)half.pairs + at / F::group * 2 + 1, (uint32_t)pair.start);
    }
  }
  __syncwarp();
}
