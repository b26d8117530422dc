// Attention over paged keys and values (rule 6): blocks of 256 positions, each fresh, folded in ascending order.
//
// With few rows every block of positions is a thread block of its own, its part waits in p->partial, and covey_attend_join
// folds; with many rows a thread block takes one row and key/value head and folds as it goes. The same operations in the same
// order. A thread is a key while scores are made (keys lie with the position in lanes) and a channel while values are summed.
// Reads the sequence's keys and values once a query head. Twin: engine/canon/attention.c.
#include "device.h"

typedef struct { int32_t lo, pos, first, blocks; } span;   // attended positions lo..pos; blocks from first

static __device__ __forceinline__ span span_of(const canon_op &op, const covey_program *p, int32_t row) {
  span s;
  s.pos = p->step.positions[row];
  s.lo = op.i[2] && s.pos - op.i[2] + 1 > 0 ? s.pos - op.i[2] + 1 : 0;
  s.first = s.lo / CANON_BLOCK;
  s.blocks = s.pos / CANON_BLOCK - s.first + 1;
  return s;
}

// Block b of one row and query head: *m and *l in every thread, o_b [values] in shared memory. score is shared [256], q
// shared [dim]. 256 threads.
static __device__ __forceinline__ void block_part(const canon_op &op, const covey_program *p, int32_t row, int32_t head, const span &s, int32_t b, const float *q, float *score, float *o_b, float *m, float *l) {
  __shared__ float top[8], total;
  const canon_kv &kv = op.kv;
  int32_t group = op.i[1] / kv.heads, start = (s.first + b) * CANON_BLOCK, lo = s.lo > start ? s.lo - start : 0, hi = at_most(s.pos + 1 - start, CANON_BLOCK);
  int32_t t = threadIdx.x, warp = t / 32, lane = t & 31;
  const int32_t *pages = p->step.pages + (int64_t)p->step.sequence[row] * p->step.pages_stride + start / 64;
  bool active = t >= lo && t < hi;
  float v = -canon_inf();
  if (active) {
    const uint8_t *k = kv_layer(kv, pages[t / 64], op.i[0]);
    v = 0;
    for (int32_t d = 0; d < kv.dim; d++) v = canon_fmaf(q[d], source_value(kv.form, k, key_at(kv, head / group, t % 64, d)), v);
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
    for (int32_t i = lo; i < hi; i++)
      o = canon_fmaf(score[i], source_value(kv.form, kv_layer(kv, pages[i / 64], op.i[0]), value_at(kv, head / group, i % 64, d)), o);
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
