// Attention over paged keys and values (rule 6): blocks of 256 positions, each fresh, folded in ascending order.
//
// With few rows every block of positions is a thread block of its own, its part waits in p->partial, and covey_attend_join
// folds; with many rows a thread block takes one row and key/value head and folds as it goes. The same operations in the same
// order. A thread is a key while scores are made (keys lie with the position in lanes) and a channel while values are summed.
// Reads the sequence's keys and values once a query head. Behind its positions a row may attend vectors of a memory, or, where an
// indexer chose, those alone. Twin: engine/canon/attention.c.
#include "device.h"

// Attended positions lo..pos in `raw` blocks from first, then the first `listed` vectors of the row's list.
typedef struct { int32_t lo, pos, first, raw, listed, blocks; } span;

static __device__ __forceinline__ span span_of(const canon_op &op, const covey_program *p, int32_t row) {
  span s;
  s.pos = p->step.positions[row];
  s.lo = op.i[2] && s.pos - op.i[2] + 1 > 0 ? s.pos - op.i[2] + 1 : 0;
  s.first = s.lo / CANON_BLOCK;
  s.raw = op.i[7] ? 0 : s.pos / CANON_BLOCK - s.first + 1;
  s.listed = op.i[6] ? (s.pos + 1) / op.i[6] : 0;
  if (op.i[4] && s.listed > op.i[4]) s.listed = op.i[4];
  s.blocks = s.raw + covey_ceil(s.listed, CANON_BLOCK);
  return s;
}

// Block b of one row and query head: *m and *l in every thread, o_b [values] in shared memory. score is shared [256], q
// shared [dim]. 256 threads.
static __device__ __forceinline__ void block_part(const canon_op &op, const covey_program *p, int32_t row, int32_t head, const span &s, int32_t b, const float *q, float *score, float *o_b, float *m, float *l) {
  __shared__ float top[8], total;
  __shared__ const uint8_t *place[CANON_BLOCK];              // page of a key, or the vector where a cache has single ones
  int32_t listed = b >= s.raw;
  const canon_kv &kv = listed ? op.memory : op.kv;
  int32_t group = op.i[1] / kv.heads, start = (listed ? b - s.raw : s.first + b) * CANON_BLOCK;
  int32_t lo = !listed && s.lo > start ? s.lo - start : 0, hi = at_most((listed ? s.listed : s.pos + 1) - start, CANON_BLOCK);
  int32_t t = threadIdx.x, warp = t / 32, lane = t & 31, h = kv.single ? 0 : head / group, step = kv.single ? 1 : 64;
  const int32_t *pages = p->step.pages + (int64_t)p->step.sequence[row] * p->step.pages_stride;
  bool active = t >= lo && t < hi;
  float v = -canon_inf();
  if (active) {
    int32_t i = start + t;
    if (listed && op.i[4]) i = op.ids[(int64_t)row * op.i[4] + i];
    const uint8_t *k = place[t] = kv.single ? kv_entry(kv, pages, op.i[listed ? 5 : 0], i, listed ? op.i[6] : 1) : kv_layer(kv, pages[i / 64], op.i[0]);
    int64_t from = kv.single ? 0 : key_at(kv, h, t % 64, 0);
    v = 0;
    for (int32_t d = 0; d < kv.dim; d++) v = canon_fmaf(q[d], source_value(kv.form, k, from + (int64_t)d * step), v);
    v = v * op.f[0];
  }
  float x = v;
  for (int h = 16; h >= 1; h >>= 1) x = canon_max(x, __shfl_xor_sync(FULL, x, h));
  if (lane == 0) top[warp] = x;
  __syncthreads();
  x = top[0];
  for (int w = 1; w < 8; w++) x = canon_max(x, top[w]);
  score[t] = active ? canon_expf(v - x) : 0.0f;
  __syncthreads();
  if (warp == 0) {
    float sum = 0;
    for (int32_t i = lane; i < CANON_BLOCK; i += 32)
      if (i >= lo && i < hi) sum = sum + score[i];
    sum = warp_tree(sum);
    if (lane == 0) total = sum;
  }
  for (int32_t d = t; d < op.i[3]; d += blockDim.x) {
    float o = 0;
    for (int32_t i = lo; i < hi; i++) o = canon_fmaf(score[i], source_value(kv.form, place[i], kv.single ? d : value_at(kv, h, i % 64, d)), o);
    o_b[d] = o;
  }
  __syncthreads();
  *m = x;
  *l = total;
}

// A sink folds last, as a block (z, 1, 0); then one division.
static __device__ __forceinline__ void finish(const canon_op &op, int32_t head, canon_state *t, float *o, int32_t n) {
  float old = 1, fresh = 0;
  if (op.vec) canon_fold(t, op.vec[head], 1.0f, &old, &fresh);
  for (int32_t d = threadIdx.x; d < n; d += blockDim.x) {
    float v = o[d];
    if (op.vec) v = canon_fold_channel(v, 0.0f, old, fresh);
    o[d] = v / t->l;
  }
}

static __device__ __forceinline__ void load_query(const canon_op &op, int32_t row, int32_t head, float *q) {
  const float *from = row_of(op.src, row) + (int64_t)head * op.kv.dim;
  for (int32_t d = threadIdx.x; d < op.kv.dim; d += blockDim.x) q[d] = from[d];
  __syncthreads();
}

// grid (rows, query heads, blocks), dynamic shared memory (256 + dim + values) floats.
COVEY_KERNEL covey_attend_split(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(float, score);
  int32_t row = blockIdx.x, head = blockIdx.y, b = blockIdx.z, n = op.i[3], heads = op.i[1];
  if (row >= p->step.rows) return;
  span s = span_of(op, p, row);
  if (b >= s.blocks) return;
  float *q = score + CANON_BLOCK, *o_b = q + op.kv.dim, m, l;
  load_query(op, row, head, q);
  block_part(op, p, row, head, s, b, q, score, o_b, &m, &l);
  float *out = p->partial + (((int64_t)row * p->partial_blocks + b) * heads + head) * (n + 2);
  if (threadIdx.x == 0) { out[0] = m; out[1] = l; }
  for (int32_t d = threadIdx.x; d < n; d += blockDim.x) out[2 + d] = o_b[d];
}

// grid (rows, query heads). Moves each block's part once.
COVEY_KERNEL covey_attend_join(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, head = blockIdx.y, n = op.i[3], heads = op.i[1];
  if (row >= p->step.rows) return;
  span s = span_of(op, p, row);
  float *o = row_of(op.dst, row) + (int64_t)head * n;
  canon_state t;
  t.m = -canon_inf();
  t.l = 0;
  for (int32_t d = threadIdx.x; d < n; d += blockDim.x) o[d] = 0;
  for (int32_t b = 0; b < s.blocks; b++) {
    const float *in = p->partial + (((int64_t)row * p->partial_blocks + b) * heads + head) * (n + 2);
    float old, fresh;
    canon_fold(&t, in[0], in[1], &old, &fresh);
    for (int32_t d = threadIdx.x; d < n; d += blockDim.x) o[d] = canon_fold_channel(o[d], in[2 + d], old, fresh);
  }
  finish(op, head, &t, o, n);
}

// grid (rows, query heads), dynamic shared memory (256 + dim + 2 values) floats.
COVEY_KERNEL covey_attend(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(float, score);
  int32_t row = blockIdx.x, head = blockIdx.y, n = op.i[3];
  if (row >= p->step.rows) return;
  span s = span_of(op, p, row);
  float *q = score + CANON_BLOCK, *o_b = q + op.kv.dim, *o = o_b + n;
  load_query(op, row, head, q);
  canon_state t;
  t.m = -canon_inf();
  t.l = 0;
  for (int32_t d = threadIdx.x; d < n; d += blockDim.x) o[d] = 0;
  for (int32_t b = 0; b < s.blocks; b++) {
    float m, l, old, fresh;
    block_part(op, p, row, head, s, b, q, score, o_b, &m, &l);
    canon_fold(&t, m, l, &old, &fresh);
    for (int32_t d = threadIdx.x; d < n; d += blockDim.x) o[d] = canon_fold_channel(o[d], o_b[d], old, fresh);
    __syncthreads();
  }
  finish(op, head, &t, o, n);
  float *y = row_of(op.dst, row) + (int64_t)head * n;
  for (int32_t d = threadIdx.x; d < n; d += blockDim.x) y[d] = o[d];
}
