// The indexer of sparse attention: scores of all visible keys, then the best of them (rule 8's order), by position. Twin:
// engine/canon/index.c.
//
// Scores wait in p->scores, which has room for some rows only: a step of more comes in several pairs of launches, op.i[4] being
// the first row of each.
#include "select.cuh"

enum { INDEX_KEYS = 64, INDEX_PAD = INDEX_KEYS + 1, INDEX_THREADS = 256, INDEX_TEAMS = INDEX_THREADS / INDEX_KEYS };

static __device__ __forceinline__ int32_t visible(const canon_op &op, const covey_program *p, int32_t row) { return (p->step.positions[row] + 1) / op.i[3]; }

// grid (blocks of 64 keys, rows), 256 threads, dynamic shared memory (65 dim + 64 heads) floats. Keys lie in lanes in shared
// memory; a team of 64 threads takes every fourth head, four at a time, and the first team adds the heads ascending. Reads a
// block's keys once a row; bound by 2 * heads * dim operations a key, in chains over dim.
COVEY_BOUNDED(INDEX_THREADS) covey_index_score(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(float, keys);
  int32_t row = op.i[4] + blockIdx.y, t = threadIdx.x, heads = op.i[1], dim = op.kv.dim, first = blockIdx.x * INDEX_KEYS;
  if (row >= p->step.rows) return;
  int32_t n = visible(op, p, row);
  if (n <= op.i[2] || first >= n) return;
  float *cut = keys + dim * INDEX_PAD;                      // [heads][64]
  const int32_t *pages = p->step.pages + (int64_t)p->step.sequence[row] * p->step.pages_stride;
  int32_t here = at_most(n - first, INDEX_KEYS), key = t % INDEX_KEYS, team = t / INDEX_KEYS;
  for (int32_t i = t / 32; i < here; i += INDEX_THREADS / 32) {
    const uint8_t *k = kv_entry(op.kv, pages, op.i[0], first + i, op.i[3]);
    for (int32_t d = t & 31; d < dim; d += 32) keys[d * INDEX_PAD + i] = source_value(op.kv.form, k, d);
  }
  __syncthreads();
  const float *q = row_of(op.src, row), *w = row_of(op.src2, row);
  for (int32_t h = team; h < heads && key < here; h += 4 * INDEX_TEAMS) {
    float acc[4] = {0, 0, 0, 0};
    const float *qs[4];
#pragma unroll
    for (int32_t i = 0; i < 4; i++) qs[i] = q + (int64_t)at_most(h + i * INDEX_TEAMS, heads - 1) * dim;
    for (int32_t d = 0; d < dim; d += 4) {
      float4 x[4];
#pragma unroll
      for (int32_t i = 0; i < 4; i++) x[i] = *(const float4 *)(qs[i] + d);
      const float *k = keys + d * INDEX_PAD + key;
#pragma unroll
      for (int32_t i = 0; i < 4; i++) {
        acc[i] = canon_fmaf(x[i].x, k[0], acc[i]);
        acc[i] = canon_fmaf(x[i].y, k[INDEX_PAD], acc[i]);
        acc[i] = canon_fmaf(x[i].z, k[2 * INDEX_PAD], acc[i]);
        acc[i] = canon_fmaf(x[i].w, k[3 * INDEX_PAD], acc[i]);
      }
    }
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
      float v = acc[i] * op.f[0];
      if (h + i * INDEX_TEAMS < heads) cut[(h + i * INDEX_TEAMS) * INDEX_KEYS + key] = v > 0 ? v : 0.0f;
    }
  }
  __syncthreads();
  if (t >= here) return;
  float s = 0;
  for (int32_t h = 0; h < heads; h++) s = canon_fmaf(w[h] * op.f[1], cut[h * INDEX_KEYS + t], s);
  p->scores[(int64_t)blockIdx.y * p->score_stride + first + t] = s;
}

// grid (rows), 512 threads. The k-th largest score digit by digit from the top, then a pass that writes what is above it and as
// many of its equals as are left, by position. Reads a row's scores five times.
COVEY_BOUNDED(512) covey_index_select(COVEY_CONST canon_op op, const covey_program *p) {
  __shared__ int32_t above[16], equal[16];
  int32_t row = op.i[4] + blockIdx.x, t = threadIdx.x, most = op.i[2], threads = blockDim.x, warps = threads / 32, warp = t / 32, lane = t & 31;
  if (row >= p->step.rows) return;
  int32_t n = visible(op, p, row), *ids = op.ids + (int64_t)row * most;
  if (n <= most) {
    for (int32_t i = t; i < n; i += threads) ids[i] = i;
    return;
  }
  const float *scores = p->scores + (int64_t)blockIdx.x * p->score_stride;
  const kth last = kth_largest(n, most, [&](int32_t i) { return canon_order(scores[i]); });
  const uint32_t found = last.order;
  int32_t greater = 0, equals = 0, keep = last.equals;              // of all places before this turn's
  for (int32_t i0 = 0; i0 < n; i0 += threads) {
    int32_t i = i0 + t;
    uint32_t o = i < n ? canon_order(scores[i]) : 0;
    bool more = i < n && o > found, same = i < n && o == found;
    uint32_t mores = __ballot_sync(FULL, more), sames = __ballot_sync(FULL, same), before = (1u << lane) - 1;
    if (lane == 0) { above[warp] = __popc(mores); equal[warp] = __popc(sames); }
    __syncthreads();
    int32_t g = greater + __popc(mores & before), e = equals + __popc(sames & before);
    for (int32_t w = 0; w < warps; w++) {
      if (w < warp) { g += above[w]; e += equal[w]; }
      greater += above[w];
      equals += equal[w];
    }
    if (more || (same && e < keep)) ids[g + at_most(e, keep)] = i;
    __syncthreads();
  }
}
