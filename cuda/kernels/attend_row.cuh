// What attend_row.cu does with a unit of attention, and what its warps know of the work. Rule 6, for one row.
#pragma once
#include "attend_row.h"
#include "heads.cuh"
#include "product.cuh"

enum { ATTEND_WARPS = COVEY_ATTEND_WARPS, ATTEND_THREADS = ATTEND_WARPS * 32 };

// An index divided by a number of which the host gives the inverse; exact below 2^22, a tenth of the instructions of a division.
__device__ __forceinline__ int attend_quotient(int i, float inverse) { return (int)(((float)i + 0.5f) * inverse); }

// Attended positions lo..pos in blocks from first; units of attention.
struct attend_step {
  int pos, lo, first, blocks, sequence, units;
  __device__ __forceinline__ attend_step(const covey_attend &a, const covey_program *p) {
    pos = __ldcg(p->step.positions); sequence = __ldcg(p->step.sequence);
    lo = a.window && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0;
    first = (uint32_t)lo / CANON_BLOCK;
    blocks = (uint32_t)pos / CANON_BLOCK - first + 1;
    units = blocks * a.sets;
  }
};
// How many of `of` tiles a block has: its number, that plus the number of blocks, and so on.
__device__ __forceinline__ int attend_mine(int of) {
  int n = 0;
  #pragma unroll 1
  for (int t = blockIdx.x; t < of; t += gridDim.x) n++;
  return n;
}

// What the cache holds of the kernel's layer in a page of a sequence.
template <int DIM> __device__ __forceinline__ uint8_t *attend_page(const covey_attend &a, const covey_program *p, const attend_step &z, int i) {
  const canon_kv &kv = a.heads.kv;
  const int32_t page = __ldcg(p->step.pages + (int64_t)z.sequence * p->step.pages_stride + i);
  return kv.data + (int64_t)(page * kv.layers + a.heads.layer) * (kv.heads * DIM * 256);
}

// A unit of attention.
struct attend_unit {
  int block, kv_head, head, start, from, to, fresh;   // first query head; keys from..to-1 of positions from start on; whether the last one is the new one
  __device__ __forceinline__ attend_unit(const covey_attend &a, const attend_step &z, int u) {
    block = attend_quotient(u, a.per_set);
    head = (u - block * a.sets) * a.together;
    kv_head = attend_quotient(head, a.per_group);
    start = (z.first + block) * CANON_BLOCK;
    from = max(z.lo - start, 0);
    to = min(z.pos + 1 - start, CANON_BLOCK);
    fresh = start + to - 1 == z.pos;
  }
  // Keys of the unit in page i of its four; null where it attends none. Values lie 128 * DIM * kv.heads bytes behind.
  template <int DIM> __device__ __forceinline__ const uint8_t *page(const covey_attend &a, const covey_program *p, const attend_step &z, int i) const {
    if (i * 64 >= to || i * 64 + 64 <= from) return 0;
    return attend_page<DIM>(a, p, z, start / 64 + i) + kv_head * DIM * 128;
  }
};

struct attend_half {
  float *values;
  uint32_t *codes;
  float *pairs;
  template <int DIM> static __device__ __forceinline__ attend_half of(const covey_attend &a, int which) {
    attend_half h;
    h.values = a.exchange + which * a.half;
    h.codes = (uint32_t *)h.values + a.values;
    h.pairs = (float *)h.codes + a.heads.heads * DIM / 4;
    return h;
  }
};
template <int DIM> __device__ __forceinline__ float *attend_part(const covey_attend &a, int head, int block) {
  return a.exchange + 2 * a.half + (int64_t)(head * a.blocks + block) * (DIM + 4);
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

// Barriers of a block, 8 bytes each: of slots, of slots, of stages; inputs consumed, units done.
struct attend_bars {
  shared_place in_full, in_empty, out_full, out_empty, full, empty, consumed, attended;
  __device__ __forceinline__ attend_bars(shared_place at) {
    in_full = at; in_empty = in_full + COVEY_ATTEND_SLOTS * 8; out_full = in_empty + COVEY_ATTEND_SLOTS * 8; out_empty = out_full + COVEY_ATTEND_SLOTS * 8;
    full = out_empty + COVEY_ATTEND_SLOTS * 8; empty = full + COVEY_ATTEND_STAGES * 8; consumed = empty + COVEY_ATTEND_STAGES * 8; attended = consumed + 8;
  }
};
// The place in a ring that everybody passes through in the same order.
struct attend_place {
  int at;
  uint32_t parity;
  __device__ __forceinline__ void move(int by, int n) { at += by; if (at >= n) { at -= n; parity ^= 1; } }
  __device__ __forceinline__ attend_place later(int by, int n) const { attend_place p = *this; p.move(by, n); return p; }
};

// ---- a unit ------------------------------------------------------------------------------------------------------------

// Queries and the new key and value of a unit into shared memory: query [DIM][together], fresh [2][DIM] as the cache stores them.
template <int DIM> __device__ __forceinline__ void attend_heads(const covey_attend &a, const covey_program *p, const attend_step &z, shared_place base, const attend_half &half, const attend_unit &u, int warp, int lane) {
  const covey_heads &f = a.heads;
  const int which = warp < a.together ? 0 : warp < 4 ? 3 : warp - 3;   // queries, key, value, nothing
  if (which && (which > 2 || !u.fresh)) return;
  float *x = (float *)shared_pointer(base + a.at.head) + warp * DIM;
  const float *turn = (const float *)shared_pointer(base + a.at.turn), *norms = (const float *)shared_pointer(base + a.at.norms) + which * DIM;
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
    float *query = (float *)shared_pointer(base + a.at.query) + warp;
    #pragma unroll
    for (int i = 0; i < DIM / 32; i++) query[(lane + i * 32) * a.together] = x[lane + i * 32];
    return;
  }
  const bool stores = u.head == u.kv_head * a.group;
  const int place = z.pos % 64, head = u.kv_head * DIM * 64, step = which == 1 ? 64 : 1;   // key_at and value_at: channels are `step` apart
  uint16_t *to = (uint16_t *)attend_page<DIM>(a, p, z, z.pos / 64) + head + (which == 1 ? place : f.kv.heads * DIM * 64 + place * DIM);
  uint16_t *fresh = (uint16_t *)shared_pointer(base + a.at.fresh) + (which - 1) * DIM;
  #pragma unroll 1
  for (int i = lane; i < DIM; i += 32) {
    const uint16_t bits = canon_to_f16(x[i]);
    fresh[i] = bits;
    if (!stores) continue;
    to[i * step] = bits;
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
// Half the channels of a thread's key onto its scores, which lie a block of positions apart.
template <int DIM, int HEADS> __device__ __noinline__ void attend_scores(shared_place keys, shared_place queries, shared_place scores, bool more) {
  const uint16_t *key = (const uint16_t *)shared_pointer(keys);
  const float *query = (const float *)shared_pointer(queries);
  float *out = (float *)shared_pointer(scores), score[HEADS];
  #pragma unroll
  for (int h = 0; h < HEADS; h++) score[h] = more ? out[h * CANON_BLOCK] : 0;
  attend_keys<HEADS> now, next;
  now.load(key, query);
  #pragma unroll 2
  for (int d = 8; d < DIM / 2; d += 8) {
    next.load(key + d * 64, query + d * HEADS);
    now.add(score);
    now = next;
  }
  now.add(score);
  #pragma unroll
  for (int h = 0; h < HEADS; h++) out[h * CANON_BLOCK] = score[h];
}

template <int DIM, int EACH> struct attend_eight {
  uint32_t v[8];
  float4 w[EACH][2];
  __device__ __forceinline__ void load(const uint16_t *value, const float *weights) {
    #pragma unroll
    for (int j = 0; j < 8; j++) v[j] = *(const uint32_t *)(value + j * DIM);
    #pragma unroll
    for (int e = 0; e < EACH; e++) { w[e][0] = *(const float4 *)(weights + e * CANON_BLOCK); w[e][1] = *(const float4 *)(weights + e * CANON_BLOCK + 4); }
  }
  static __device__ __forceinline__ void one(float2 &o, uint32_t v, float weight) {
    const float2 x = halves(v);
    o.x = canon_fmaf(weight, x.x, o.x);
    o.y = canon_fmaf(weight, x.y, o.y);
  }
  __device__ __forceinline__ void add(float2 *o) const {
    #pragma unroll
    for (int j = 0; j < 8; j++)
      #pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float4 &t = w[e][j / 4];
        one(o[e], v[j], j % 4 == 0 ? t.x : j % 4 == 1 ? t.y : j % 4 == 2 ? t.z : t.w);
      }
  }
};
// Values of a unit: a thread sums two channels for EACH heads, keys ascending. Warps beyond those that this takes are free.
template <int DIM, int EACH> __device__ __forceinline__ void attend_values(const covey_attend &a, shared_place base, const attend_bars &bars, const attend_unit &u, attend_place stage, int thread, int lane) {
  constexpr int across = DIM / 2, piece = 64 * DIM;
  const int c = thread % across * 2, head = thread / across * EACH, stored = u.to - u.fresh;
  const float *weights = (const float *)shared_pointer(base + a.at.w) + head * CANON_BLOCK;
  using V = attend_eight<DIM, EACH>;
  float2 o[EACH];
  #pragma unroll
  for (int e = 0; e < EACH; e++) o[e] = make_float2(0, 0);
  #pragma unroll 1
  for (int k = 0; k < COVEY_ATTEND_PIECES; k++) {
    const uint16_t *v = (const uint16_t *)shared_pointer(base + a.at.room + stage.at * piece) + c;
    const float *wk = weights + k * 32;
    const int to = min(stored - k * 32, 32);  // of the piece's keys
    int i = max(u.from - k * 32, 0);
    barrier_wait(bars.full + stage.at * 8, stage.parity);
    #pragma unroll 1
    for (int again = 0; again < 2; again++) {                // what is not eight keys, eight at a time, what is left
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
      #pragma unroll 1
      for (const int end = again ? to : min(to, (i + 7) / 8 * 8); i < end; i++)
        #pragma unroll
        for (int e = 0; e < EACH; e++) V::one(o[e], *(const uint32_t *)(v + i * DIM), wk[e * CANON_BLOCK + i]);
    }
    warp_arrive(bars.empty + stage.at * 8, lane);
    stage.move(1, a.at.stages);
  }
  #pragma unroll
  for (int e = 0; e < EACH; e++) {
    float *part = attend_part<DIM>(a, u.head + head + e, u.block) + c;
    if (u.fresh) V::one(o[e], ((const uint32_t *)shared_pointer(base + a.at.fresh + 2 * DIM))[c / 2], weights[e * CANON_BLOCK + u.to - 1]);
    hand_over(part, o[e].x);
    hand_over(part + 1, o[e].y);
  }
}

// Numbers that are ordered as floats are, above 0.
__device__ __forceinline__ uint32_t attend_rank(float v) { const uint32_t b = __float_as_uint(v); return b ^ ((uint32_t)((int32_t)b >> 31) | 0x80000000u); }
__device__ __forceinline__ float attend_ranked(uint32_t r) { return __uint_as_float(r ^ (~(uint32_t)((int32_t)r >> 31) | 0x80000000u)); }

template <int DIM> __device__ __forceinline__ void attend_block(const covey_attend &a, const covey_program *p, const attend_step &z, shared_place base, const attend_half &half, const attend_unit &u, attend_place &stage, int warp, int lane) {
  constexpr int piece = 64 * DIM;
  const int thread = warp * 32 + lane, stages = a.at.stages, heads = a.together;
  const attend_bars bars(base + a.at.bars);
  const shared_place room = base + a.at.room, mine = base + a.at.w + thread * 4;
  uint32_t *top = (uint32_t *)shared_pointer(base + a.at.top);
  float *w = (float *)shared_pointer(mine);
  if (thread < COVEY_ATTEND_HEADS) top[thread] = 0;
  attend_heads<DIM>(a, p, z, base, half, u, warp, lane);
  warps_sync(1, ATTEND_THREADS);

  // Scores: a thread a key, two warps a page. Of keys that are not there too; such scores are not used.
  const bool valid = thread >= u.from && thread < u.to;
  #pragma unroll 1
  for (int part = 0; part < 2; part++) {
    const attend_place its = stage.later(warp >> 1, stages);
    const shared_place page = room + its.at * piece, key = page + (thread & 63) * 2, query = base + a.at.query + part * (DIM / 2) * heads * 4;
    barrier_wait(bars.full + its.at * 8, its.parity);
    if (u.fresh && warp == (u.to - 1) >> 5) { // the new key joins its page; one of this warp's lanes reads it
      const uint16_t *fresh = (const uint16_t *)shared_pointer(base + a.at.fresh) + part * (DIM / 2);
      #pragma unroll 1
      for (int i = lane; i < DIM / 2; i += 32) ((uint16_t *)shared_pointer(page))[i * 64 + ((u.to - 1) & 63)] = fresh[i];
      __syncwarp();
    }
    if (heads == 2) attend_scores<DIM, 2>(key, query, mine, part);
    else if (heads == 1) attend_scores<DIM, 1>(key, query, mine, part);
    else attend_scores<DIM, 4>(key, query, mine, part);
    warp_arrive_at(4, lane, [&](int i) { return bars.empty + stage.later(i, stages).at * 8; });   // whoever has not read a page is done with it too
    stage.move(4, stages);
  }
  #pragma unroll 1
  for (int h = 0; h < heads; h++) {
    const float score = valid ? w[h * CANON_BLOCK] * a.scale : -canon_inf();
    w[h * CANON_BLOCK] = score;
    const uint32_t highest = __reduce_max_sync(FULL, attend_rank(score));
    if (lane == 0) atomicMax(top + h, highest);
  }
  warps_sync(1, ATTEND_THREADS);
  #pragma unroll 1
  for (int h = 0; h < heads; h++) w[h * CANON_BLOCK] = valid ? attend_exp(w[h * CANON_BLOCK] - attend_ranked(top[h])) : 0.0f;
  warps_sync(1, ATTEND_THREADS);
  if (warp < heads * DIM / (heads < 4 ? 64 : 128)) {
    if (heads < 4) attend_values<DIM, 1>(a, base, bars, u, stage, thread, lane);
    else attend_values<DIM, 2>(a, base, bars, u, stage, thread, lane);
  } else {
    warp_arrive_at(COVEY_ATTEND_PIECES, lane, [&](int i) { return bars.empty + stage.later(i, stages).at * 8; });
    const int h = warp - 4;
    if (h >= 0 && h < heads) {
      const float *of = (const float *)shared_pointer(base + a.at.w) + h * CANON_BLOCK + lane;
      float l = 0;
      #pragma unroll
      for (int i = 0; i < 8; i++) l = l + of[i * 32];
      l = warp_tree(l);
      float *part = attend_part<DIM>(a, u.head + h, u.block) + DIM;
      if (lane < 2) hand_over(part + lane, lane ? l : attend_ranked(top[h]));
    }
  }
  stage.move(COVEY_ATTEND_PIECES, stages);
}

// Four blocks' sums of a channel as they arrive.
struct attend_parts {
  float v[4];
  __device__ __forceinline__ void look_at(const float *at, int stride, int n) {
    #pragma unroll
    for (int j = 0; j < 4; j++) v[j] = j < n ? look(at + j * stride) : 0;
  }
  __device__ __forceinline__ bool arrived() const { return !is_unset(v[0]) && !is_unset(v[1]) && !is_unset(v[2]) && !is_unset(v[3]); }
};

// Folds a head (rule 6), DIM threads, a channel each; the factors of 32 blocks at once, since the largest score up to a block is exact in
// any order. out [DIM] is shared memory of these threads, `meeting` their barrier.
template <class F, int DIM> __device__ __forceinline__ void attend_fold(const covey_attend &a, const attend_step &z, const attend_half &half, int head, float *out, int meeting, int c, int lane) {
  constexpr int stride = DIM + 4;
  float top = -canon_inf(), l = 0, o = 0;
  float *parts = attend_part<DIM>(a, head, 0);
  attend_parts next;
  next.look_at(parts + c, stride, z.blocks);
  #pragma unroll 1
  for (int b0 = 0; b0 < z.blocks; b0 += 32) {
    const int n = min(z.blocks - b0, 32);
    uint2 ml = make_uint2(0xff800000u, 0);
    if (lane < n) {
      const uint32_t *at = (const uint32_t *)parts + (b0 + lane) * stride + DIM;
      uint32_t looks = 0;
      do {
        ml = look2(at);
        if (++looks == MOST_LOOKS) __trap();
      } while (ml.x == 0xffffffffu || ml.y == 0xffffffffu);
    }
    __syncwarp();
    const float m = __uint_as_float(ml.x);
    float up_to = lane == 0 ? canon_max(top, m) : m;
    #pragma unroll 1
    for (int s = 1; s < 32; s <<= 1) { const float v = __shfl_up_sync(FULL, up_to, s); if (lane >= s) up_to = canon_max(v, up_to); }
    float before = __shfl_up_sync(FULL, up_to, 1);
    if (lane == 0) before = top;
    const float old = attend_exp(before - up_to), fresh = attend_exp(m - up_to), weighted = __uint_as_float(ml.y) * fresh;
    top = __shfl_sync(FULL, up_to, n - 1);
    #pragma unroll 1
    for (int b = 0; b < n; b += 4) {
      float *from = parts + (b0 + b) * stride + c;
      attend_parts now = next;
      uint32_t looks = 0;
      while (!now.arrived()) {
        now.look_at(from, stride, n - b);
        if (++looks == MOST_LOOKS) __trap();
      }
      __syncwarp();
      next.look_at(from + 4 * stride, stride, z.blocks - b0 - b - 4);
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        if (b + j >= n) break;
        const float p = __shfl_sync(FULL, old, b + j);
        l = canon_fmaf(l, p, __shfl_sync(FULL, weighted, b + j));
        o = canon_fold_channel(o, now.v[j], p, __shfl_sync(FULL, fresh, b + j));
        from[j * stride] = unset();
      }
    }
  }
  if (a.sinks) {
    const float sink = a.sinks[head], all = canon_max(top, sink), old = attend_exp(top - all), fresh = attend_exp(sink - all);   // canon_fold of (sink, 1)
    l = canon_fmaf(l, old, fresh);
    o = canon_fold_channel(o, 0, old, fresh);
  }
  out[c] = o / l;
  warps_sync(meeting, DIM);
  #pragma unroll 1
  for (int b = c; b < z.blocks; b += DIM) parts[b * stride + DIM] = parts[b * stride + DIM + 1] = unset();   // which all have read
  if (c >= 32) return;
  const int i = lane * 8;
  float4 v[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
  if (i < DIM) { v[0] = *(const float4 *)(out + i); v[1] = *(const float4 *)(out + i + 4); }
  const attend_codes codes = attend_quantise<F::group>(v[0], v[1], lane);
  if (i < DIM) {
    const int at = head * DIM + i;
    hand_over_word(half.codes + at / 4, attend_word(codes.codes.x));
    hand_over_word(half.codes + at / 4 + 1, attend_word(codes.codes.y));
    if (i % F::group == 0) {
      const covey_pair pair = pair_of<CANON_INT4>(codes.scale, codes.sum);
      hand_over(half.pairs + at / F::group * 2, pair.scale);
      hand_over_word((uint32_t *)half.pairs + at / F::group * 2 + 1, (uint32_t)pair.start);
    }
  }
}
