// Attention over paged keys and values (rule 6). Blocks of 256 positions are computed fresh and folded in ascending order.
// With many rows a chunk is one row and key/value head and folds as it goes; with few rows each block is a chunk of its own,
// its parts wait in scratch, and a row operation folds them: the same operations in the same order.
#include <string.h>
#include "canon.h"
#include "program.h"

enum { SPLIT_FLOATS = 16 << 20 };   // most scratch for split attention, in floats

typedef struct { int32_t lo, pos, first, blocks; } span;   // attended positions lo..pos; blocks from first

static span span_of(const canon_program *p, const canon_op *op, int32_t row) {
  span s = {.pos = p->step->positions[row]};
  int32_t window = op->i[2];
  s.lo = window && s.pos - window + 1 > 0 ? s.pos - window + 1 : 0;
  s.first = s.lo / CANON_BLOCK;
  s.blocks = s.pos / CANON_BLOCK - s.first + 1;
  return s;
}

static int64_t split_row(const canon_program *p, const canon_op *op) {
  return (int64_t)((p->pages + 3) / 4) * op->i[1] * (op->kv.dim + 2);
}

void canon_attend_needs(canon_program *p, const canon_op *op) {
  int64_t group = op->i[1] / op->kv.heads;
  p->thread_floats = canon_at_least(p->thread_floats, group * (op->kv.dim + 4));
  int64_t rows = (2 * p->threads + op->kv.heads - 1) / op->kv.heads, row = split_row(p, op);
  if (rows * row > SPLIT_FLOATS) rows = SPLIT_FLOATS / row;
  p->split_floats = canon_at_least(p->split_floats, (rows < 1 ? 1 : rows) * row);
}

void canon_attend_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  int32_t rows = p->step->rows, heads = op->kv.heads, blocks = 1;
  for (int32_t r = 0; r < rows; r++) { int32_t b = span_of(p, op, r).blocks; blocks = b > blocks ? b : blocks; }
  p->split = blocks > 1 && rows * heads < 2 * p->threads && rows * split_row(p, op) <= p->split_floats;
  p->split_blocks = blocks;
  *chunks = (int64_t)rows * heads * (p->split ? blocks : 1);
}

// Block b (counted from the span's first) of one row and key/value head.
static void block(canon_program *p, const canon_op *op, int32_t row, int32_t head, const span *s, int32_t b, float *m, float *l, float *o) {
  const canon_kv *kv = &op->kv;
  int32_t group = op->i[1] / kv->heads, start = (s->first + b) * CANON_BLOCK;
  int64_t size = canon_form_bytes(kv->form), part = (int64_t)kv->heads * kv->dim * 64 * size, at = (int64_t)head * kv->dim * 64 * size;
  canon_attend a = {.q = canon_row(&op->src, row) + (int64_t)head * group * kv->dim, .queries = group, .dim = kv->dim, .form = kv->form,
                    .lo = s->lo > start ? s->lo - start : 0, .hi = s->pos + 1 - start < CANON_BLOCK ? s->pos + 1 - start : CANON_BLOCK,
                    .scale = op->f[0], .m = m, .l = l, .o = o};
  const int32_t *pages = p->step->pages + (int64_t)p->step->sequence[row] * p->step->pages_stride + start / 64;
  for (int32_t i = a.lo / 64; i * 64 < a.hi; i++) {
    a.k[i] = kv->data + ((int64_t)pages[i] * kv->layers + op->i[0]) * 2 * part + at;
    a.v[i] = a.k[i] + part;
  }
  if (b + 1 < s->blocks && !p->split) a.after = kv->data + ((int64_t)pages[4] * kv->layers + op->i[0]) * 2 * part + at;
  p->k->attend(&a);
}

static void fold(const canon_kernels *k, canon_state *t, float *o, float m_b, float l_b, const float *o_b, int32_t dim) {
  float old, fresh;
  canon_fold(t, m_b, l_b, &old, &fresh);
  k->fold(o, o_b, old, fresh, dim);
}

// A sink is a block without a value: (z, 1, 0).
static void finish(const canon_kernels *k, const canon_op *op, int32_t head, canon_state *t, float *o) {
  int32_t dim = op->kv.dim;
  if (op->vec) {
    float old, fresh;
    canon_fold(t, op->vec[head], 1.0f, &old, &fresh);
    for (int32_t d = 0; d < dim; d++) o[d] = canon_fold_channel(o[d], 0.0f, old, fresh);
  }
  k->divide(o, t->l, dim);
}

void canon_attend_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread) {
  int32_t rows = p->step->rows, dim = op->kv.dim, group = op->i[1] / op->kv.heads;
  if (p->split) {
    int32_t b = (int32_t)(chunk % p->split_blocks), head = (int32_t)(chunk / p->split_blocks % op->kv.heads), row = (int32_t)(chunk / p->split_blocks / op->kv.heads);
    span s = span_of(p, op, row);
    if (b >= s.blocks) return;
    float *base = p->partial + row * split_row(p, op) + (int64_t)b * op->i[1] * (dim + 2), *m = base + head * group, *l = m + op->i[1];
    block(p, op, row, head, &s, b, m, l, base + 2 * op->i[1] + (int64_t)head * group * dim);
    return;
  }
  int32_t head = (int32_t)(chunk / rows), row = (int32_t)(chunk % rows);   // neighbours in time share keys
  span s = span_of(p, op, row);
  float *m = p->per_thread + thread * p->thread_floats, *l = m + group, *o_b = m + 4 * group;
  float *o = canon_row(&op->dst, row) + (int64_t)head * group * dim;
  canon_state *t = (canon_state *)(m + 2 * group);
  for (int32_t q = 0; q < group; q++) t[q] = (canon_state){-canon_inf(), 0};
  memset(o, 0, (size_t)(group * dim) * 4);
  for (int32_t b = 0; b < s.blocks; b++) {
    block(p, op, row, head, &s, b, m, l, o_b);
    for (int32_t q = 0; q < group; q++) fold(p->k, &t[q], o + (int64_t)q * dim, m[q], l[q], o_b + (int64_t)q * dim, dim);
  }
  for (int32_t q = 0; q < group; q++) finish(p->k, op, head * group + q, &t[q], o + (int64_t)q * dim);
}

void canon_attend_finish(canon_program *p, const canon_op *op, int32_t row) {
  int32_t dim = op->kv.dim, heads = op->i[1];
  span s = span_of(p, op, row);
  for (int32_t h = 0; h < heads; h++) {
    canon_state t = {-canon_inf(), 0};
    float *o = canon_row(&op->dst, row) + (int64_t)h * dim;
    memset(o, 0, (size_t)dim * 4);
    for (int32_t b = 0; b < s.blocks; b++) {
      const float *base = p->partial + row * split_row(p, op) + (int64_t)b * heads * (dim + 2);
      fold(p->k, &t, o, base[h], base[heads + h], base + 2 * heads + (int64_t)h * dim, dim);
    }
    finish(p->k, op, h, &t, o);
  }
}
