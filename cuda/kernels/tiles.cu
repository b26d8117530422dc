// Attention of many rows over paged keys and values (rule 6). Twin: engine/canon/attention.c.
//
// A block of 8 warps holds 128 queries (rows by the query heads of one key/value head), a warp 16 of them, and passes over the
// blocks of 256 positions in ascending order. A half-warp has 8 queries; a lane 8 queries by 8 keys of scores, twice, and then 8
// queries by DIM / 16 channels. Every sum is the ascending chain of the rule, so scores and values are two plain float matrix
// products: 64 multiply-adds for 4 loads of 16 bytes from shared memory (DIM 128), bound by issuing them, about 2 * DIM a query and
// key. Keys and values come through shared memory as floats in stages of 8 kB, the next one in registers while one is used. One
// block a multiprocessor: two would have 128 registers a thread, fewer than its sums need.
#include "attention.cuh"

enum { TILE_QUERIES = 128, TILE_THREADS = 256, TILE_WARP = 16, TILE_KEYS = 128, TILE_DEPTH = 16, TILE_STAGE = 2048, TILE_ROW = CANON_BLOCK + 4, TILE_WEIGHTS = TILE_WARP * TILE_ROW + 4 };

// Shared memory: queries [DIM][128]; two stages of keys [16][128] or values [2048 / DIM][DIM]; weights [warp][16][256], rows
// apart so that both half-warps read from banks of their own.
CANON_FN int32_t attend_tile_memory(int32_t dim) { return (dim * TILE_QUERIES + 2 * TILE_STAGE + TILE_THREADS / 32 * TILE_WEIGHTS) * 4; }
__device__ __forceinline__ int weights_row(int query) { return query * TILE_ROW + (query >> 3) * 4; }

// Eight neighbouring values of a cache on their way: raw words, turned into floats when they are stored.
template <int FORM> struct tile_words {
  uint4 a, b;
  __device__ __forceinline__ void load(const void *p) {
    a = b = uint4{0, 0, 0, 0};
    if (!p) return;
    a = __ldcg((const uint4 *)p);
    if (FORM == CANON_F32) b = __ldcg((const uint4 *)p + 1);
  }
  static __device__ __forceinline__ float2 two(uint32_t w) {
    return FORM == CANON_F16 ? halves(w) : make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
  }
  __device__ __forceinline__ void store(float *to) const {
    if (FORM == CANON_F32) {
      *(uint4 *)to = a;
      *(uint4 *)(to + 4) = b;
      return;
    }
    float2 x = two(a.x), y = two(a.y), z = two(a.z), w = two(a.w);
    *(float4 *)to = make_float4(x.x, x.y, y.x, y.y);
    *(float4 *)(to + 4) = make_float4(z.x, z.y, w.x, w.y);
  }
};

__device__ __forceinline__ void four(float *v, const float *p) {
  float4 f = *(const float4 *)p;
  v[0] = f.x; v[1] = f.y; v[2] = f.z; v[3] = f.w;
}

// grid (tiles of 128 / group rows, key/value heads). Rows of one sequence are neighbours; a tile that meets several sequences
// passes over each.
template <int FORM, int DIM> __device__ __forceinline__ void attend_tile(const canon_op &op, const covey_program *p) {
  COVEY_MEMORY(tile_memory);
  constexpr int channels = DIM / 16, stage_keys = TILE_STAGE / DIM;
  using raw = typename kv_value<FORM>::raw;
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31, half = lane >> 4, place = lane & 15;
  float *qs = (float *)tile_memory, *stage = qs + DIM * TILE_QUERIES, *weights = stage + 2 * TILE_STAGE + warp * TILE_WEIGHTS;
  __shared__ const raw *pages[2][4];         // of this block of positions and the next
  wait_for_previous();
  let_next_start();
  const canon_step &step = p->step;
  const int heads = op.i[1], group = heads / op.kv.heads, kv_head = blockIdx.y, rows_a_tile = TILE_QUERIES / group;
  const int row0 = (gridDim.x - 1 - blockIdx.x) * rows_a_tile;    // the longest first
  if (row0 >= step.rows) return;
  const int rows = min(rows_a_tile, step.rows - row0), queries = rows * group;
  for (int i = t; i < TILE_QUERIES * (DIM / 4); i += TILE_THREADS) {
    const int qi = i % TILE_QUERIES, d = i / TILE_QUERIES * 4;
    float4 v = make_float4(0, 0, 0, 0);
    if (qi < queries) v = __ldcg((const float4 *)(op.src.data + (int64_t)(row0 + qi / group) * op.src.stride + (int64_t)(kv_head * group + qi % group) * DIM + d));
    qs[d * TILE_QUERIES + qi] = v.x; qs[(d + 1) * TILE_QUERIES + qi] = v.y; qs[(d + 2) * TILE_QUERIES + qi] = v.z; qs[(d + 3) * TILE_QUERIES + qi] = v.w;
  }
  const int64_t part = (int64_t)op.kv.heads * DIM * 64;
  // Two lanes keep the span and the state of each of the warp's queries; `owner` has that of this lane's query i.
  const int my_query = warp * TILE_WARP + half * 8 + (lane & 7), my_row = my_query < queries ? row0 + my_query / group : -1;
  const int owner = lane & 16;               // + i
  attend_span span = {0, -1, 0, 0};
  if (my_row >= 0) span = span_of(op, step, my_row);
  canon_state state = {-canon_inf(), 0};
  float o[8][channels];
  #pragma unroll
  for (int i = 0; i < 8; i++)
    #pragma unroll
    for (int c = 0; c < channels; c++) o[i][c] = 0;
  int at = 0;                                // the stage that is written next
  tile_words<FORM> next;

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
      // Keys of my query; those that some of the warp's queries attend, and that all do. Queries that do not exist are in nobody's way.
      const int from = in_run ? max(span.lo - start, 0) : CANON_BLOCK, to = in_run ? max(min(span.pos + 1 - start, CANON_BLOCK), 0) : 0;
      const int some_from = __reduce_min_sync(0xffffffffu, (uint32_t)(from < to ? from : CANON_BLOCK)), some_to = __reduce_max_sync(0xffffffffu, (uint32_t)(from < to ? to : 0));
      const int all_from = __reduce_max_sync(0xffffffffu, (uint32_t)(my_row < 0 ? 0 : from)), all_to = __reduce_min_sync(0xffffffffu, (uint32_t)(my_row < 0 ? CANON_BLOCK : to));
      const bool whole = all_from == 0 && all_to == CANON_BLOCK;

      // Scores, 128 keys at a time: a lane has keys 4 * place .. + 3 and those 64 further on.
      float top[8];
      #pragma unroll
      for (int i = 0; i < 8; i++) top[i] = -canon_inf();
      #pragma unroll 1
      for (int k0 = 0; k0 < filled; k0 += TILE_KEYS) {
        const int key = k0 + (t & 15) * 8;   // a thread copies 8 keys of channel t / 16
        const raw *keys = key < filled ? pages[b & 1][key / 64] + (t >> 4) * 64 + (key & 63) : 0;
        const bool mine = some_from < k0 + TILE_KEYS && some_to > k0;
        float s[8][8];
        #pragma unroll
        for (int i = 0; i < 8; i++)
          #pragma unroll
          for (int j = 0; j < 8; j++) s[i][j] = 0;
        next.load(keys);
        next.store(stage + at * TILE_STAGE + t * 8);
        #pragma unroll 1
        for (int d0 = 0; d0 < DIM; d0 += TILE_DEPTH, at ^= 1) {
          if (d0 + TILE_DEPTH < DIM) next.load(keys ? keys + (d0 + TILE_DEPTH) * 64 : 0);
          __syncthreads();
          if (mine) {
            const float *ks = stage + at * TILE_STAGE + place * 4, *q = qs + d0 * TILE_QUERIES + warp * TILE_WARP + half * 8;
            #pragma unroll
            for (int d = 0; d < TILE_DEPTH; d++) {
              float a[8], k[8];
              four(a, q + d * TILE_QUERIES); four(a + 4, q + d * TILE_QUERIES + 4);
              four(k, ks + d * TILE_KEYS); four(k + 4, ks + d * TILE_KEYS + 64);
              #pragma unroll
              for (int i = 0; i < 8; i++)
                #pragma unroll
                for (int j = 0; j < 8; j++) s[i][j] = fmaf(a[i], k[j], s[i][j]);
            }
          }
          if (d0 + TILE_DEPTH < DIM) next.store(stage + (at ^ 1) * TILE_STAGE + t * 8);
        }
        if (!mine) continue;
        #pragma unroll
        for (int i = 0; i < 8; i++) {
          const int lo = whole ? 0 : __shfl_sync(0xffffffffu, from, owner + i), hi = whole ? CANON_BLOCK : __shfl_sync(0xffffffffu, to, owner + i);
          #pragma unroll
          for (int j = 0; j < 8; j++) {
            const int k = k0 + (j >> 2) * 64 + place * 4 + (j & 3);
            s[i][j] = k >= lo && k < hi ? s[i][j] * op.f[0] : -canon_inf();
            top[i] = canon_max(s[i][j], top[i]);
          }
          float *row = weights + weights_row(half * 8 + i) + k0 + place * 4;
          *(float4 *)row = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
          *(float4 *)(row + 64) = make_float4(s[i][4], s[i][5], s[i][6], s[i][7]);
        }
      }

      // Weights: e^(s - m), their sum in lanes and the tree.
      float my_m = -canon_inf(), my_l = 0;
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        #pragma unroll
        for (int h = 8; h >= 1; h >>= 1) top[i] = canon_max(__shfl_xor_sync(0xffffffffu, top[i], h), top[i]);
        if ((lane & 7) == i) my_m = top[i];
      }
      __syncwarp();
      #pragma unroll 2
      for (int i = 0; i < TILE_WARP; i++) {
        const int from_lane = (i & 7) + (i >> 3) * 16;
        const int lo = whole ? 0 : __shfl_sync(0xffffffffu, from, from_lane), hi = whole ? CANON_BLOCK : __shfl_sync(0xffffffffu, to, from_lane);
        const float m = __shfl_sync(0xffffffffu, my_m, from_lane);
        float *row = weights + weights_row(i) + lane, l = 0;
        #pragma unroll
        for (int j = 0; j < 8; j++) {
          const int k = j * 32 + lane;
          const float e = k >= lo && k < hi ? canon_expf(row[j * 32] - m) : 0.0f;
          row[j * 32] = e;
          l = l + e;
        }
        l = warp_tree(l);
        if (half * 8 + (lane & 7) == i) my_l = l;
      }
      __syncwarp();

      // Values: a lane has channels 4 * place .. + 3, and with DIM 128 those 64 further on.
      float ob[8][channels];
      #pragma unroll
      for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int c = 0; c < channels; c++) ob[i][c] = 0;
      auto read_values = [&](int k0) {       // 8 neighbours of a key
        const int k = k0 + t * 8 / DIM;
        next.load(k < filled ? pages[b & 1][k / 64] + part + (k & 63) * DIM + t * 8 % DIM : 0);
      };
      read_values(0);
      next.store(stage + at * TILE_STAGE + t * 8);
      #pragma unroll 1
      for (int k0 = 0; k0 < filled; k0 += stage_keys, at ^= 1) {
        if (k0 + stage_keys < filled) read_values(k0 + stage_keys);
        __syncthreads();
        const float *vs = stage + at * TILE_STAGE + place * 4, *w = weights + weights_row(half * 8) + k0;
        auto values_of = [&](int k, float *v) {
          four(v, vs + k * DIM);
          if (channels == 8) four(v + 4 % channels, vs + k * DIM + 64);
        };
        if (k0 >= all_from && k0 + stage_keys <= all_to) {
          #pragma unroll
          for (int k = 0; k < stage_keys; k += 4) {
            float x[8][4];
            #pragma unroll
            for (int i = 0; i < 8; i++) four(x[i], w + i * TILE_ROW + k);
            #pragma unroll
            for (int j = 0; j < 4; j++) {
              float v[channels];
              values_of(k + j, v);
              #pragma unroll
              for (int i = 0; i < 8; i++)
                #pragma unroll
                for (int c = 0; c < channels; c++) ob[i][c] = fmaf(x[i][j], v[c], ob[i][c]);
            }
          }
        } else if (k0 < some_to && k0 + stage_keys > some_from) {
          #pragma unroll 1
          for (int k = 0; k < stage_keys; k++) {
            float v[channels];
            values_of(k, v);
            #pragma unroll
            for (int i = 0; i < 8; i++) {
              const int lo = __shfl_sync(0xffffffffu, from, owner + i), hi = __shfl_sync(0xffffffffu, to, owner + i);
              const float x = w[i * TILE_ROW + k];
              if (k0 + k < lo || k0 + k >= hi) continue;
              #pragma unroll
              for (int c = 0; c < channels; c++) ob[i][c] = fmaf(x, v[c], ob[i][c]);
            }
          }
        }
        if (k0 + stage_keys < filled) next.store(stage + (at ^ 1) * TILE_STAGE + t * 8);
      }
      __syncwarp();

      // Fold.
      float old = 1, fresh = 0;
      const bool folds = from < to;
      if (folds) canon_fold(&state, my_m, my_l, &old, &fresh);
      #pragma unroll
      for (int i = 0; i < 8; i++) {
        const float a = __shfl_sync(0xffffffffu, old, owner + i), f = __shfl_sync(0xffffffffu, fresh, owner + i);
        if (__shfl_sync(0xffffffffu, (int)folds, owner + i)) {
          #pragma unroll
          for (int c = 0; c < channels; c++) o[i][c] = canon_fold_channel(o[i][c], ob[i][c], a, f);
        }
      }
    }
    run = end;
  }
  float old = 1, fresh = 0;
  if (op.vec && my_row >= 0) canon_fold(&state, op.vec[kv_head * group + my_query % group], 1.0f, &old, &fresh);
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    const float a = __shfl_sync(0xffffffffu, old, owner + i), f = __shfl_sync(0xffffffffu, fresh, owner + i), l = __shfl_sync(0xffffffffu, state.l, owner + i);
    const int qi = warp * TILE_WARP + half * 8 + i;
    if (qi >= queries) continue;
    float *y = op.dst.data + (int64_t)(row0 + qi / group) * op.dst.stride + (int64_t)(kv_head * group + qi % group) * DIM + place * 4;
    #pragma unroll
    for (int c = 0; c < channels; c++) {
      float v = op.vec ? canon_fold_channel(o[i][c], 0.0f, a, f) : o[i][c];
      o[i][c] = v / l;
    }
    #pragma unroll
    for (int c = 0; c < channels; c += 4) *(float4 *)(y + c * 16) = make_float4(o[i][c], o[i][c + 1], o[i][c + 2], o[i][c + 3]);
  }
}

#define COVEY_TILES(NAME, FORM)                                                                                                                             \
  extern "C" __global__ __launch_bounds__(TILE_THREADS) void covey_attend_tiles64_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_tile<FORM, 64>(op, p); } \
  extern "C" __global__ __launch_bounds__(TILE_THREADS) void covey_attend_tiles128_##NAME(const __grid_constant__ canon_op op, const covey_program *p) { attend_tile<FORM, 128>(op, p); }
COVEY_TILES(f16, CANON_F16)
#ifndef COVEY_ONE_FORM
COVEY_TILES(bf16, CANON_BF16)
COVEY_TILES(f32, CANON_F32)
#endif
