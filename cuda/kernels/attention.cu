// Attention over paged keys and values (rule 6), the CUDA twins of engine/canon/attention.c.
//
//   blocks  few rows: a block of threads takes one row, some query heads of one key/value head, and one block of 256 positions:
//           a thread a key for the scores, a thread a channel for the values. Parts wait in p->partial; `fold` folds them in
//           ascending order. Bound by latency: one copy, a chain of dim and one of 256 multiply-adds, however long the context.
//   tiles   many rows: 64 queries (rows by the query heads of one key/value head) pass over the blocks in ascending order.
//           A warp holds 8 queries by 256 keys of scores, then 8 queries by DIM channels; every sum is the ascending chain of
//           the rule, so the two products are plain float matrix products, bound by issuing multiply-adds: about 2 * dim of
//           them a query and key, with one load from shared memory for every 7.
//
// Pages: keys [dim][64], values [64][dim] a head, as the host writes them.
#include "device.h"
#include "ptx.cuh"

struct attend_span { int32_t lo, pos, first, blocks; };   // attended positions lo..pos; blocks from first
__device__ __forceinline__ attend_span span_of(const canon_op &op, const canon_step &step, int row) {
  attend_span s;
  s.pos = step.positions[row];
  int window = op.i[2];
  s.lo = window && s.pos - window + 1 > 0 ? s.pos - window + 1 : 0;
  s.first = s.lo / CANON_BLOCK;
  s.blocks = s.pos / CANON_BLOCK - s.first + 1;
  return s;
}

template <int FORM> struct kv_value;
template <> struct kv_value<CANON_F32> {
  using raw = float;
  static __device__ __forceinline__ float get(float v) { return v; }
  static __device__ __forceinline__ float2 two(const float *p) { return __ldcg((const float2 *)p); }
  static __device__ __forceinline__ void eight(const float *p, float *v) {
    #pragma unroll
    for (int i = 0; i < 8; i += 4) { float4 f = __ldcg((const float4 *)(p + i)); v[i] = f.x; v[i + 1] = f.y; v[i + 2] = f.z; v[i + 3] = f.w; }
  }
};
template <class V> struct kv_halves {
  using raw = uint16_t;
  static __device__ __forceinline__ float2 of(uint32_t w) { return make_float2(V::get((uint16_t)w), V::get((uint16_t)(w >> 16))); }
  static __device__ __forceinline__ float2 two(const uint16_t *p) { return of(__ldcg((const uint32_t *)p)); }
  static __device__ __forceinline__ void eight(const uint16_t *p, float *v) {
    uint4 w = __ldcg((const uint4 *)p);
    float2 a = of(w.x), b = of(w.y), c = of(w.z), d = of(w.w);
    v[0] = a.x; v[1] = a.y; v[2] = b.x; v[3] = b.y; v[4] = c.x; v[5] = c.y; v[6] = d.x; v[7] = d.y;
  }
};
template <> struct kv_value<CANON_F16> : kv_halves<kv_value<CANON_F16>> {
  static __device__ __forceinline__ float get(uint16_t v) { return halves(v).x; }
};
template <> struct kv_value<CANON_BF16> : kv_halves<kv_value<CANON_BF16>> { static __device__ __forceinline__ float get(uint16_t v) { return canon_from_bf16(v); } };

// Keys of a head in the page that holds a position; values follow `part` values later.
template <int FORM> __device__ __forceinline__ const typename kv_value<FORM>::raw *page_of(const canon_op &op, const canon_step &step, int sequence, int position, int head, int64_t *part) {
  const canon_kv &kv = op.kv;
  *part = (int64_t)kv.heads * kv.dim * 64;
  int64_t page = step.pages[(int64_t)sequence * step.pages_stride + position / 64];
  return (const typename kv_value<FORM>::raw *)kv.data + (page * kv.layers + op.i[0]) * 2 * *part + (int64_t)head * kv.dim * 64;
}

__device__ __forceinline__ float warp_sum_tree(float v) {
  #pragma unroll
  for (int h = 16; h >= 1; h >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, h);
  return v;
}
__device__ __forceinline__ float warp_highest(float v) {
  #pragma unroll
  for (int h = 16; h >= 1; h >>= 1) v = canon_max(__shfl_xor_sync(0xffffffffu, v, h), v);
  return v;
}

// ---- few rows ----------------------------------------------------------------------------------------------------------

// Keys and values of a block come into shared memory by one bulk copy a page, all at once: the block waits for memory once,
// or twice where both do not fit.
CANON_FN int32_t attend_block_bytes(int32_t dim, int32_t form) { return CANON_BLOCK * dim * covey_form_bytes(form); }
CANON_FN int32_t attend_block_both(int32_t dim, int32_t form) { return 2 * attend_block_bytes(dim, form) <= 196608; }
CANON_FN int32_t attend_block_memory(int32_t dim, int32_t form) { return (attend_block_both(dim, form) ? 2 : 1) * attend_block_bytes(dim, form); }

// grid (heads / HEADS, blocks, rows), 256 threads; dim at most 256 and a multiple of 8.
template <int FORM, int HEADS> __device__ __forceinline__ void attend_block(const canon_op &op, const covey_program *p) {
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
  raw *keys = (raw *)block_memory, *values = attend_block_both(dim, FORM) ? keys + CANON_BLOCK * dim : keys;
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
    l = warp_sum_tree(l);
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

// ---- many rows ---------------------------------------------------------------------------------------------------------

enum { TILE_QUERIES = 64, TILE_THREADS = 256, TILE_DEPTH = 16, TILE_KEYS = 32 };

// Shared memory: queries [DIM][64]; two stages of keys [16][256] or values [32][DIM]; weights [warp][128][8].
CANON_FN int32_t attend_tile_memory(int32_t dim) {
  int32_t stage = TILE_DEPTH * CANON_BLOCK > TILE_KEYS * dim ? TILE_DEPTH * CANON_BLOCK : TILE_KEYS * dim;
  return (dim * TILE_QUERIES + 2 * stage + 8 * 128 * 8) * 4;
}

// grid (tiles of 64 / group rows, key/value heads). Rows of one sequence are neighbours; a tile that meets several sequences
// passes over each.
template <int FORM, int DIM> __device__ __forceinline__ void attend_tile(const canon_op &op, const covey_program *p) {
  COVEY_MEMORY(tile_memory);
  float *attend_memory = (float *)tile_memory;
  constexpr int stage_floats = TILE_DEPTH * CANON_BLOCK > TILE_KEYS * DIM ? TILE_DEPTH * CANON_BLOCK : TILE_KEYS * DIM, per = DIM / 32;
  float *qs = attend_memory, *stage = qs + DIM * TILE_QUERIES, *ws = stage + 2 * stage_floats;
  using V = kv_value<FORM>;
  using raw = typename V::raw;
  wait_for_previous();
  let_next_start();
  const canon_step &step = p->step;
  const int heads = op.i[1], group = heads / op.kv.heads, kv_head = blockIdx.y, rows_a_tile = TILE_QUERIES / group;
  const int row0 = (gridDim.x - 1 - blockIdx.x) * rows_a_tile;    // the longest first
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31;
  if (row0 >= step.rows) return;
  const int rows = min(rows_a_tile, step.rows - row0), queries = rows * group;
  for (int i = t; i < DIM * TILE_QUERIES; i += TILE_THREADS) {
    int qi = i / DIM, d = i % DIM;
    qs[d * TILE_QUERIES + qi] = qi < queries ? __ldcg(op.src.data + (int64_t)(row0 + qi / group) * op.src.stride + (int64_t)(kv_head * group + qi % group) * DIM + d) : 0.0f;
  }
  __shared__ const raw *pages[2][4];         // of this block of positions and the next
  const int64_t part = (int64_t)op.kv.heads * DIM * 64;
  float *mine = ws + warp * 128 * 8;
  // Lane i < 8 keeps the span and the state of the warp's query i.
  const int my_query = warp * 8 + (lane & 7), my_row = my_query < queries ? row0 + my_query / group : -1;
  attend_span span = {0, -1, 0, 0};
  if (my_row >= 0) span = span_of(op, step, my_row);
  canon_state state = {-canon_inf(), 0};
  float o[8][per];
  #pragma unroll
  for (int i = 0; i < 8; i++)
    #pragma unroll
    for (int c = 0; c < per; c++) o[i][c] = 0;

  for (int run = row0; run < row0 + rows;) {
    const int sequence = step.sequence[run];
    int end = run + 1;
    while (end < row0 + rows && step.sequence[end] == sequence) end++;
    const bool in_run = my_row >= run && my_row < end;
    int first = 1 << 30, last = -1;
    for (int r = run; r < end; r++) { attend_span s = span_of(op, step, r); first = min(first, s.first); last = max(last, s.pos / CANON_BLOCK); }
    const int newest = step.positions[run] > step.positions[end - 1] ? step.positions[run] : step.positions[end - 1];

    auto find_pages = [&](int b) {           // threads 0 to 3
      int64_t ignored;
      int position = b * CANON_BLOCK + t * 64;
      if (t < 4) pages[b & 1][t] = b <= last && position <= newest ? page_of<FORM>(op, step, sequence, position, kv_head, &ignored) : 0;
    };
    __syncthreads();
    find_pages(first);
    __syncthreads();
    for (int b = first; b <= last; b++) {
      find_pages(b + 1);
      const int start = b * CANON_BLOCK, filled = min(newest + 1 - start, CANON_BLOCK);   // keys of the block that any row sees
      const int from = in_run ? max(span.lo - start, 0) : CANON_BLOCK, to = in_run ? min(span.pos + 1 - start, CANON_BLOCK) : 0;   // of my query
      const bool whole = __all_sync(0xffffffffu, from == 0 && to == CANON_BLOCK);
      // Scores.
      float s[8][8];
      #pragma unroll
      for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int j = 0; j < 8; j++) s[i][j] = 0;
      // A thread copies two neighbouring keys of 8 channels, 2 channels apart: key pair t % 128, channels t / 128 + 2 * i.
      const int pair = t & 127, key = pair * 2;
      const raw *page = key < filled ? pages[b & 1][key / 64] + (t >> 7) * 64 + (key & 63) : 0;
      float2 next[8];
      auto read_keys = [&](int d0) {
        #pragma unroll
        for (int i = 0; i < 8; i++) {
          next[i] = page ? V::two(page + (d0 + 2 * i) * 64) : make_float2(0, 0);
        }
      };
      auto write_keys = [&](float *to_stage) {
        #pragma unroll
        for (int i = 0; i < 8; i++) *(float2 *)(to_stage + ((t >> 7) + 2 * i) * CANON_BLOCK + key) = next[i];
      };
      read_keys(0);
      __syncthreads();                       // the stages are free, queries are written
      write_keys(stage);
      for (int d0 = 0, half = 0; d0 < DIM; d0 += TILE_DEPTH, half ^= 1) {
        if (d0 + TILE_DEPTH < DIM) read_keys(d0 + TILE_DEPTH);
        __syncthreads();
        const float *ks = stage + half * stage_floats;
        #pragma unroll
        for (int d = 0; d < TILE_DEPTH; d++) {
          float4 qa = *(const float4 *)(qs + (d0 + d) * TILE_QUERIES + warp * 8), qb = *(const float4 *)(qs + (d0 + d) * TILE_QUERIES + warp * 8 + 4);
          float qv[8] = {qa.x, qa.y, qa.z, qa.w, qb.x, qb.y, qb.z, qb.w}, k[8];
          #pragma unroll
          for (int j = 0; j < 8; j++) k[j] = ks[d * CANON_BLOCK + j * 32 + lane];
          #pragma unroll
          for (int i = 0; i < 8; i++)
            #pragma unroll
            for (int j = 0; j < 8; j++) s[i][j] = fmaf(qv[i], k[j], s[i][j]);
        }
        if (d0 + TILE_DEPTH < DIM) write_keys(stage + (half ^ 1) * stage_floats);
      }
      // Weights: p = exp(s - m), l in lanes and the tree.
      float my_m = -canon_inf(), my_l = 0;
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        const int lo = whole ? 0 : __shfl_sync(0xffffffffu, from, i), hi = whole ? CANON_BLOCK : __shfl_sync(0xffffffffu, to, i);
        float m = -canon_inf(), l = 0;
        #pragma unroll
        for (int j = 0; j < 8; j++) {
          int k = j * 32 + lane;
          s[i][j] = k >= lo && k < hi ? s[i][j] * op.f[0] : -canon_inf();
          m = canon_max(s[i][j], m);
        }
        m = warp_highest(m);
        #pragma unroll
        for (int j = 0; j < 8; j++) {
          int k = j * 32 + lane;
          s[i][j] = k >= lo && k < hi ? canon_expf(s[i][j] - m) : 0.0f;
          l = l + s[i][j];
        }
        l = warp_sum_tree(l);
        if ((lane & 7) == i) { my_m = m; my_l = l; }
      }
      // Values.
      float ob[8][per];
      #pragma unroll
      for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int c = 0; c < per; c++) ob[i][c] = 0;
      constexpr int copies = TILE_KEYS * DIM / TILE_THREADS;   // values a thread copies, neighbours
      float fresh_values[copies];
      auto read_values = [&](int k0) {
        int k = k0 + t * copies / DIM, c = t * copies % DIM;
        if (k < filled) {
          const raw *at = pages[b & 1][k / 64] + part + (k & 63) * DIM + c;
          #pragma unroll
          for (int i = 0; i < copies; i += 8) V::eight(at + i, fresh_values + i);
        } else {
          #pragma unroll
          for (int i = 0; i < copies; i++) fresh_values[i] = 0;
        }
      };
      auto write_values = [&](float *to_stage) {
        #pragma unroll
        for (int i = 0; i < copies; i += 4) *(float4 *)(to_stage + t * copies + i) = make_float4(fresh_values[i], fresh_values[i + 1], fresh_values[i + 2], fresh_values[i + 3]);
      };
      read_values(0);
      __syncthreads();
      write_values(stage);
      int half = 0;
      #pragma unroll
      for (int q4 = 0; q4 < 2; q4++) {
        #pragma unroll
        for (int j = 0; j < 4; j++)
          #pragma unroll
          for (int i = 0; i < 8; i += 4)
            *(float4 *)(mine + (j * 32 + lane) * 8 + i) = make_float4(s[i][q4 * 4 + j], s[i + 1][q4 * 4 + j], s[i + 2][q4 * 4 + j], s[i + 3][q4 * 4 + j]);
        __syncwarp();
        for (int k0 = q4 * 128; k0 < q4 * 128 + 128 && k0 < filled; k0 += TILE_KEYS, half ^= 1) {
          if (k0 + TILE_KEYS < filled) read_values(k0 + TILE_KEYS);
          __syncthreads();
          const float *vs = stage + half * stage_floats;
          auto term = [&](int k, bool masked) {
            float4 wa = *(const float4 *)(mine + ((k0 & 127) + k) * 8), wb = *(const float4 *)(mine + ((k0 & 127) + k) * 8 + 4);
            float wv[8] = {wa.x, wa.y, wa.z, wa.w, wb.x, wb.y, wb.z, wb.w}, v[per];
            #pragma unroll
            for (int c = 0; c < per; c++) v[c] = per == 4 ? 0 : vs[k * DIM + c * 32 + lane];
            if (per == 4) { float4 f = *(const float4 *)(vs + k * DIM + lane * 4); v[0] = f.x; v[1] = f.y; v[per - 2] = f.z; v[per - 1] = f.w; }
            #pragma unroll
            for (int i = 0; i < 8; i++) {
              bool on = true;
              if (masked) { int lo = __shfl_sync(0xffffffffu, from, i), hi = __shfl_sync(0xffffffffu, to, i); on = k0 + k >= lo && k0 + k < hi; }
              if (on) {
                #pragma unroll
                for (int c = 0; c < per; c++) ob[i][c] = fmaf(wv[i], v[c], ob[i][c]);
              }
            }
          };
          if (whole) {
            #pragma unroll 8
            for (int k = 0; k < TILE_KEYS; k++) term(k, false);
          } else {
            #pragma unroll 1
            for (int k = 0; k < TILE_KEYS; k++) term(k, true);
          }
          if (k0 + TILE_KEYS < filled) write_values(stage + (half ^ 1) * stage_floats);
        }
        __syncwarp();
      }
      // Fold.
      float old = 1, fresh = 0;
      const bool folds = from < to;
      if (folds) canon_fold(&state, my_m, my_l, &old, &fresh);
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        float a = __shfl_sync(0xffffffffu, old, i), f = __shfl_sync(0xffffffffu, fresh, i);
        if (__shfl_sync(0xffffffffu, (int)folds, i)) {
          #pragma unroll
          for (int c = 0; c < per; c++) o[i][c] = canon_fold_channel(o[i][c], ob[i][c], a, f);
        }
      }
    }
    run = end;
  }
  float old = 1, fresh = 0;
  if (op.vec && my_row >= 0) canon_fold(&state, op.vec[kv_head * group + my_query % group], 1.0f, &old, &fresh);
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    float a = __shfl_sync(0xffffffffu, old, i), f = __shfl_sync(0xffffffffu, fresh, i), l = __shfl_sync(0xffffffffu, state.l, i);
    int qi = warp * 8 + i;
    if (qi >= queries) continue;
    float *to = op.dst.data + (int64_t)(row0 + qi / group) * op.dst.stride + (int64_t)(kv_head * group + qi % group) * DIM;
    #pragma unroll
    for (int c = 0; c < per; c++) {
      float v = op.vec ? canon_fold_channel(o[i][c], 0.0f, a, f) : o[i][c];
      to[per == 4 ? lane * 4 + c : c * 32 + lane] = v / l;
    }
  }
}

#define COVEY_ATTEND(NAME, FORM)                                                                                                                    \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks1_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_block<FORM, 1>(op, p); } \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks2_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_block<FORM, 2>(op, p); } \
  extern "C" __global__ __launch_bounds__(256) void covey_attend_blocks4_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_block<FORM, 4>(op, p); } \
  extern "C" __global__ __launch_bounds__(TILE_THREADS, 2) void covey_attend_tiles64_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_tile<FORM, 64>(op, p); } \
  extern "C" __global__ __launch_bounds__(TILE_THREADS, 2) void covey_attend_tiles128_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_tile<FORM, 128>(op, p); }
extern "C" __global__ void covey_attend_fold(const __grid_constant__ canon_op op, const covey_program *p, int group) { attend_fold(op, p, group); }
COVEY_ATTEND(f16, CANON_F16)
#ifndef COVEY_ONE_FORM
COVEY_ATTEND(bf16, CANON_BF16)
COVEY_ATTEND(f32, CANON_F32)
#endif
