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
  return kv.data + ((int64_t)a.heads.layer * kv.pages + page) * (kv.heads * DIM * 256);
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

static __device__ __noinline__ float2 attend_exp(float x, float y) { return make_float2(canon_expf(x), canon_expf(y)); }

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

// Queries and the new key and value of a unit into shared memory: query [together][DIM], the key among its page's other keys, the value as
// the cache stores it into fresh [DIM]; and both into the cache.
template <int DIM> __device__ __forceinline__ void attend_heads(const covey_attend &a, const covey_program *p, const attend_step &z, shared_place base, const attend_half &half, const attend_unit &u, uint8_t *page, attend_place stage, int warp, int lane) {
  constexpr int n = DIM / 32;                 // values of a lane
  const covey_heads &f = a.heads;
  const int which = warp < a.together ? 0 : warp < 4 ? 3 : warp - 3;   // queries, key, value, nothing
  if (which && (which > 2 || !u.fresh)) return;
  float *x = (float *)shared_pointer(base + a.at.head) + warp * DIM;
  const float *turn = (const float *)shared_pointer(base + a.at.turn), *norms = (const float *)shared_pointer(base + a.at.norms) + which * DIM + lane;
  const float *from = half.values + (which == 0 ? u.head + warp : f.heads + u.kv_head + (which == 2 ? f.kv.heads : 0)) * DIM + lane;
  uint32_t looks = 0;
  float v[n];
  for (bool all = false; !all;) {
    all = true;
    #pragma unroll
    for (int i = 0; i < n; i++) v[i] = look(from + i * 32);
    #pragma unroll
    for (int i = 0; i < n; i++) all &= !is_unset(v[i]);
    if (++looks == MOST_LOOKS) __trap();
  }
  __syncwarp();
  const bool normed = which == 0 ? f.q_norm != 0 : which == 1 && f.k_norm, turned = f.angles >= 0 && which < 2;
  #pragma unroll 1
  for (int late = 0; late < 2; late++) {      // the norm (rule 4) is in one place only
    if (normed && late == f.late) {
      float s = 0;
      #pragma unroll
      for (int i = 0; i < n; i++) s = canon_fmaf(v[i], v[i], s);
      s = canon_rms_factor(warp_tree(s), DIM, f.eps);
      #pragma unroll
      for (int i = 0; i < n; i++) {
        const float w = norms[i * 32];
        v[i] = (v[i] * s) * (f.plus_one ? w + 1.0f : w);
      }
    }
    if (late || !turned) continue;
    #pragma unroll
    for (int i = 0; i < n; i++) x[lane + i * 32] = v[i];
    __syncwarp();
    head_turn(x + f.offset, f.rot / 2, f.pairing, turn, turn + f.rot / 2, lane);
    #pragma unroll
    for (int i = 0; i < n; i++) v[i] = x[lane + i * 32];
  }
  if (which == 0) {
    float *query = (float *)shared_pointer(base + a.at.query) + warp * DIM + lane;
    #pragma unroll
    for (int i = 0; i < n; i++) query[i * 32] = v[i];
    return;
  }
  const bool stores = u.head == u.kv_head * a.group;
  const int place = (u.to - 1) % 64, step = which == 1 ? 64 : 1;   // key_at and value_at: channels are `step` apart
  uint16_t bits[n];
  bool over = false;
  #pragma unroll
  for (int i = 0; i < n; i++) { bits[i] = half_of(v[i]); over |= (bits[i] & 0x7fff) >= 0x7c00; }
  if (which == 1) {
    #pragma unroll
    for (int part = 0; part < 2; part++) {    // pieces of keys are half the channels of a page
      const attend_place its = stage.later((u.to - 1) / 64 + part * 4, a.at.stages);
      uint16_t *key = (uint16_t *)shared_pointer(base + a.at.room + its.at * (64 * DIM)) + lane * 64 + place;
      barrier_wait(attend_bars(base + a.at.bars).full + its.at * 8, its.parity);
      #pragma unroll
      for (int i = 0; i < n / 2; i++) key[i * 32 * 64] = bits[part * (n / 2) + i];
    }
  } else {
    #pragma unroll
    for (int i = 0; i < n; i++) ((uint16_t *)shared_pointer(base + a.at.fresh))[lane + i * 32] = bits[i];
  }
  if (!stores) return;
  uint16_t *to = (uint16_t *)page + u.kv_head * DIM * 64 + (which == 1 ? place : (f.kv.heads * 64 + place) * DIM) + lane * step;
  #pragma unroll
  for (int i = 0; i < n; i++) to[i * 32 * step] = bits[i];
  if (over) fault(p, 0, 0, CANON_FAULT_KV, f.label);
}

// A thread has two keys, or two channels, since shared memory delivers no more than 32 numbers a cycle to all warps together, also where all
// lanes read the same one. What comes next is on its way while a thread multiplies: few other warps are there to fill the time.

// Eight channels of two keys and of EACH queries.
template <int DIM, int EACH> struct attend_keys {
  uint32_t k[8];
  float4 q[EACH][2];
  __device__ __forceinline__ void load(const uint32_t *keys, const float *query) {
    #pragma unroll
    for (int j = 0; j < 8; j++) k[j] = keys[j * 32];
    #pragma unroll
    for (int e = 0; e < EACH; e++) { q[e][0] = *(const float4 *)(query + e * DIM); q[e][1] = *(const float4 *)(query + e * DIM + 4); }
  }
  __device__ __forceinline__ void add(float2 *score) const {
    #pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 x = halves(k[j]);
      #pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float4 &t = q[e][j / 4];
        const float v = j % 4 == 0 ? t.x : j % 4 == 1 ? t.y : j % 4 == 2 ? t.z : t.w;
        score[e].x = canon_fmaf(v, x.x, score[e].x);
        score[e].y = canon_fmaf(v, x.y, score[e].y);
      }
    }
  }
};
// What the last half of the channels makes of scores: those of keys from..to-1 of a thread's two are scaled, others are lowest; the highest
// of all goes into top [EACH], as a rank.
struct attend_ends { int from, to; float scale; shared_place top; };
// Numbers that are ordered as floats are, above 0.
__device__ __forceinline__ uint32_t attend_rank(float v) { const uint32_t b = __float_as_uint(v); return b ^ ((uint32_t)((int32_t)b >> 31) | 0x80000000u); }
__device__ __forceinline__ float attend_ranked(uint32_t r) { return __uint_as_float(r ^ (~(uint32_t)((int32_t)r >> 31) | 0x80000000u)); }

// Half the channels of a thread's two keys onto their scores, which lie a block of positions apart.
template <int DIM, int EACH> __device__ __noinline__ void attend_scores(shared_place keys, shared_place queries, shared_place scores, bool last, attend_ends ends) {
  const uint32_t *key = (const uint32_t *)shared_pointer(keys);
  const float *query = (const float *)shared_pointer(queries);
  float2 score[EACH];
  #pragma unroll
  for (int h = 0; h < EACH; h++) score[h] = last ? *(const float2 *)shared_pointer(scores + h * CANON_BLOCK * 4) : make_float2(0, 0);
  attend_keys<DIM, EACH> now, next;
  now.load(key, query);
  #pragma unroll 2
  for (int d = 8; d < DIM / 2; d += 8) {
    next.load(key + d * 32, query + d);
    now.add(score);
    now = next;
  }
  now.add(score);
  #pragma unroll
  for (int h = 0; h < EACH; h++) {
    if (last) {
      score[h].x = ends.from <= 0 && ends.to > 0 ? score[h].x * ends.scale : -canon_inf();
      score[h].y = ends.from <= 1 && ends.to > 1 ? score[h].y * ends.scale : -canon_inf();
      const uint32_t highest = __reduce_max_sync(FULL, max(attend_rank(score[h].x), attend_rank(score[h].y)));
      if ((threadIdx.x & 31) == 0) atomicMax((uint32_t *)shared_pointer(ends.top) + h, highest);
    }
    *(float2 *)shared_pointer(scores + h * CANON_BLOCK * 4) = score[h];
  }
}

// Values and weights of sixteen keys, of eight where there are two heads.
template <int DIM, int EACH> struct attend_some {
  enum { keys = 16 / EACH };
  uint32_t v[keys];
  float4 w[EACH][keys / 4];
  // The i-th part of a piece.
  __device__ __forceinline__ void load(const uint32_t *value, const float *weights, int i) {
    #pragma unroll
    for (int j = 0; j < keys; j++) v[j] = value[(i * keys + j) * (DIM / 2)];
    #pragma unroll
    for (int e = 0; e < EACH; e++)
      #pragma unroll
      for (int j = 0; j < keys / 4; j++) w[e][j] = *(const float4 *)(weights + e * CANON_BLOCK + i * keys + j * 4);
  }
  static __device__ __forceinline__ void one(float2 &o, uint32_t v, float weight) {
    const float2 x = halves(v);
    o.x = canon_fmaf(weight, x.x, o.x);
    o.y = canon_fmaf(weight, x.y, o.y);
  }
  __device__ __forceinline__ void add(float2 *o) const {
    #pragma unroll
    for (int j = 0; j < keys; j++)
      #pragma unroll
      for (int e = 0; e < EACH; e++) {
        const float4 &t = w[e][j / 4];
        one(o[e], v[j], j % 4 == 0 ? t.x : j % 4 == 1 ? t.y : j % 4 == 2 ? t.z : t.w);
      }
  }
};
// Values of a unit: a thread sums two channels for EACH heads, keys ascending. Warps beyond those that this takes are free. What is no
// key of the unit in a piece of 32 becomes zeros, whose weights are zeros, so that they change no sum (but the sign of a zero, which no
// code shows); a thread clears what it reads itself.
template <int DIM, int EACH> __device__ __forceinline__ void attend_values(const covey_attend &a, shared_place base, const attend_bars &bars, const attend_unit &u, attend_place stage, int thread, int lane) {
  constexpr int across = DIM / 2, piece = 64 * DIM;
  const int c = thread % across, head = thread / across * EACH, stored = u.to - u.fresh;
  const int first = min(u.from / 32, COVEY_ATTEND_PIECES - 1), last = max(stored - 1, first * 32) / 32;   // pieces with keys: one at least is gone through
  const float *weights = (const float *)shared_pointer(base + a.at.w) + head * CANON_BLOCK;
  float2 o[EACH];
  #pragma unroll
  for (int e = 0; e < EACH; e++) o[e] = make_float2(0, 0);
  attend_some<DIM, EACH> now, next;
  // Waits for a piece and clears what is none of its keys.
  auto arrives = [&](const attend_place &at, int k) {
    barrier_wait(bars.full + at.at * 8, at.parity);
    uint32_t *v = (uint32_t *)shared_pointer(base + a.at.room + at.at * piece) + c;
    const int from = u.from - k * 32, to = max(stored - k * 32, 0);
    #pragma unroll 1
    for (int i = 0; i < from; i++) v[i * across] = 0;
    #pragma unroll 1
    for (int i = to; i < 32; i++) v[i * across] = 0;
    return (const uint32_t *)v;
  };
  auto passes = [&](const attend_place &at) { barrier_wait(bars.full + at.at * 8, at.parity); warp_arrive(bars.empty + at.at * 8, lane); };
  int k = 0;
  #pragma unroll 1
  for (; k < first; k++, stage.move(1, a.at.stages)) passes(stage);
  const uint32_t *v = arrives(stage, k);
  now.load(v, weights + k * 32, 0);
  #pragma unroll 1
  for (;;) {
    #pragma unroll
    for (int i = 1; i < 32 / now.keys; i += 2) {
      if (i > 1) { now.load(v, weights + k * 32, i - 1); next.add(o); }
      next.load(v, weights + k * 32, i);
      now.add(o);
    }
    const shared_place done = bars.empty + stage.at * 8;
    stage.move(1, a.at.stages);
    if (++k <= last) v = arrives(stage, k);
    now.load(v, weights + min(k, last) * 32, 0);             // after the last one for nothing, lest it be a branch
    next.add(o);
    warp_arrive(done, lane);
    if (k > last) break;
  }
  #pragma unroll 1
  for (; k < COVEY_ATTEND_PIECES; k++, stage.move(1, a.at.stages)) passes(stage);
  #pragma unroll
  for (int e = 0; e < EACH; e++) {
    float *part = attend_part<DIM>(a, u.head + head + e, u.block) + c * 2;
    if (u.fresh) now.one(o[e], ((const uint32_t *)shared_pointer(base + a.at.fresh))[c], weights[e * CANON_BLOCK + u.to - 1]);
    hand_over(part, o[e].x);
    hand_over(part + 1, o[e].y);
  }
}

template <int DIM> __device__ __forceinline__ void attend_block(const covey_attend &a, const covey_program *p, const attend_step &z, shared_place base, const attend_half &half, const attend_unit &u, uint8_t *page_of_new, attend_place &stage, int warp, int lane) {
  constexpr int piece = 64 * DIM;
  const int thread = warp * 32 + lane, stages = a.at.stages, heads = a.together;
  const attend_bars bars(base + a.at.bars);
  const shared_place room = base + a.at.room, mine = base + a.at.w + thread * 4;
  uint32_t *top = (uint32_t *)shared_pointer(base + a.at.top);
  float *w = (float *)shared_pointer(mine);
  if (thread < COVEY_ATTEND_HEADS) top[thread] = 0;
  attend_heads<DIM>(a, p, z, base, half, u, page_of_new, stage, warp, lane);
  warps_sync(1, ATTEND_THREADS);

  // Scores: a thread two keys and one or two heads, a warp a page. Of keys that are not there too; such scores are not used.
  const int each = heads < 4 ? 1 : 2, first = (warp >> 2) * each;
  #pragma unroll 1
  for (int part = 0; part < 2; part++) {
    if (first < heads) {
      const attend_place its = stage.later(warp & 3, stages);
      const shared_place keys = room + its.at * piece + lane * 4, query = base + a.at.query + (first * DIM + part * (DIM / 2)) * 4;
      const int key = (thread & 127) * 2;
      const attend_ends ends = {u.from - key, u.to - key, a.scale, base + a.at.top + first * 4};
      barrier_wait(bars.full + its.at * 8, its.parity);
      if (each == 1) attend_scores<DIM, 1>(keys, query, base + a.at.w + (first * CANON_BLOCK + key) * 4, part, ends);
      else attend_scores<DIM, 2>(keys, query, base + a.at.w + (first * CANON_BLOCK + key) * 4, part, ends);
    }
    warp_arrive_at(4, lane, [&](int i) { return bars.empty + stage.later(i, stages).at * 8; });   // whoever has not read a page is done with it too
    stage.move(4, stages);
  }
  warps_sync(1, ATTEND_THREADS);
  const bool valid = thread >= u.from && thread < u.to;
  #pragma unroll 1
  for (int h = 0; h < heads; h += 2) {
    const int other = h + 1 < heads;
    const float2 e = attend_exp(w[h * CANON_BLOCK] - attend_ranked(top[h]), w[(h + other) * CANON_BLOCK] - attend_ranked(top[h + other]));
    w[h * CANON_BLOCK] = valid ? e.x : 0.0f;
    if (other) w[(h + 1) * CANON_BLOCK] = valid ? e.y : 0.0f;
  }
  warps_sync(1, ATTEND_THREADS);
  if (warp < heads * DIM / (64 * each)) {
    if (each == 1) attend_values<DIM, 1>(a, base, bars, u, stage, thread, lane);
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
    const float2 factors = attend_exp(before - up_to, m - up_to);
    const float old = factors.x, fresh = factors.y, weighted = __uint_as_float(ml.y) * fresh;
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
    const float sink = a.sinks[head], all = canon_max(top, sink);
    const float2 factors = attend_exp(top - all, sink - all);   // canon_fold of (sink, 1)
    l = canon_fmaf(l, factors.x, factors.y);
    o = canon_fold_channel(o, 0, factors.x, factors.y);
  }
  out[c] = o / l;
  warps_sync(meeting, DIM);
  if (c < 32) {
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
  #pragma unroll 1
  for (int b = c; b < z.blocks; b += DIM) parts[b * stride + DIM] = parts[b * stride + DIM + 1] = unset();   // which all have read
}
