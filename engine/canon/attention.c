// Attention over paged keys and values (rule 6). Blocks of 256 positions are computed fresh and folded in ascending order.
// With many rows a chunk is one row and key/value head and folds as it goes; with few rows each block is a chunk of its own,
// its parts wait in scratch, and a row operation folds them: the same operations in the same order.
//
// A cache of single vectors (latent attention) lies place by place, so that a chosen key is one contiguous read and its
// leading channels are the value; a block's keys are transposed into the lanes in scratch, once for all query heads.
//
// Beside positions a row may attend vectors of a memory, in blocks of 256 by rank in its list: the same cache where an
// indexer chose the positions (and then nothing else), or one of compressed entries, one for each rate positions.
#include <string.h>
#include "canon.h"
#include "program.h"

enum { SPLIT_FLOATS = 16 << 20 };   // most scratch for split attention, in floats

// What a row attends: positions lo..pos in `raw` blocks from block `first`, then the first `listed` vectors of its list.
typedef struct { int32_t lo, pos, first, raw, listed, blocks; } span;

enum { LAYER, HEADS, WINDOW, VALUES, KEPT, MEMORY, RATE, LISTED_ONLY };   // op->i

static span span_of(const canon_program *p, const canon_op *op, int32_t row) {
  span s = {.pos = p->step->positions[row]};
  int32_t window = op->i[WINDOW];
  s.lo = window && s.pos - window + 1 > 0 ? s.pos - window + 1 : 0;
  s.first = s.lo / CANON_BLOCK;
  s.raw = s.pos / CANON_BLOCK - s.first + 1;
  if (op->i[LISTED_ONLY]) s.raw = 0;
  if (op->i[RATE]) {
    s.listed = (s.pos + 1) / op->i[RATE];
    if (op->i[KEPT] && op->i[KEPT] < s.listed) s.listed = op->i[KEPT];
  }
  s.blocks = s.raw + (s.listed + CANON_BLOCK - 1) / CANON_BLOCK;
  return s;
}

static int32_t most_blocks(const canon_program *p, const canon_op *op) {
  int32_t n = op->i[LISTED_ONLY] ? 0 : (p->pages + 3) / 4, listed = op->i[RATE] ? p->pages * 64 / op->i[RATE] : 0;
  if (op->i[KEPT] && op->i[KEPT] < listed) listed = op->i[KEPT];
  return n + (listed + CANON_BLOCK - 1) / CANON_BLOCK;
}
static int64_t split_row(const canon_program *p, const canon_op *op) { return (int64_t)most_blocks(p, op) * op->i[HEADS] * (op->i[VALUES] + 2); }

// Floats of a thread before its gathered keys: m, l and state of the queries that share a head, and their outputs.
static int64_t own_floats(const canon_op *op) { return (op->i[HEADS] / op->kv.heads * (int64_t)(op->i[VALUES] + 4) + 15) & ~(int64_t)15; }

void canon_attend_needs(canon_program *p, const canon_op *op) {
  int64_t gathered = op->kv.single ? (int64_t)CANON_BLOCK * op->kv.dim * canon_form_bytes(op->kv.form) / 4 * (op->i[RATE] ? 2 : 1) : 0;
  p->thread_floats = canon_at_least(p->thread_floats, own_floats(op) + gathered);
  int64_t rows = (2 * p->threads + op->kv.heads - 1) / op->kv.heads, row = split_row(p, op);
  if (rows * row > SPLIT_FLOATS) rows = SPLIT_FLOATS / row;
  p->split_floats = canon_at_least(p->split_floats, (rows < 1 ? 1 : rows) * row);
}

void canon_attend_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  int32_t rows = p->step->rows, heads = op->kv.heads, blocks = 1;
  for (int32_t r = 0; r < rows; r++) { int32_t b = span_of(p, op, r).blocks; blocks = b > blocks ? b : blocks; }
  p->split = blocks > 1 && rows * heads < 2 * p->threads && rows * split_row(p, op) <= p->split_floats;
  p->split_blocks = blocks;
  int32_t units = rows * heads * (p->split ? blocks : 1), most = op->i[HEADS] / heads / 4;
  p->parts = 1;
  if (op->kv.single && units < 2 * p->threads && most > 1) {   // one head serves all queries: share them among threads
    p->parts = (2 * p->threads + units - 1) / units;
    p->parts = p->parts < most ? p->parts : most;
  }
  *chunks = (int64_t)units * p->parts;
}

// Queries q0 .. q0+n of a key/value head.
typedef struct { int32_t head, q0, n; } queries;

static queries queries_of(const canon_program *p, const canon_op *op, int32_t head, int32_t part) {
  int32_t group = op->i[HEADS] / op->kv.heads, q0 = (int32_t)((int64_t)group * part / p->parts);
  return (queries){head, q0, (int32_t)((int64_t)group * (part + 1) / p->parts) - q0};
}

// Places n vectors of dim values into the lanes: out[d * 64 + i] = in[i * dim + d].
static void transpose(int64_t size, const uint8_t *in, int32_t n, int32_t dim, uint8_t *out) {
  enum { SIDE = 16 };
  for (int32_t i0 = 0; i0 < n; i0 += SIDE)
    for (int32_t d = 0; d < dim; d++) {
      int32_t end = i0 + SIDE < n ? i0 + SIDE : n;
      if (size == 4) for (int32_t i = i0; i < end; i++) memcpy(out + ((int64_t)d * 64 + i) * 4, in + ((int64_t)i * dim + d) * 4, 4);
      else for (int32_t i = i0; i < end; i++) memcpy(out + ((int64_t)d * 64 + i) * 2, in + ((int64_t)i * dim + d) * 2, 2);
    }
}

// Brings up to 64 single vectors into the lanes: those of ranks first, first+1, ... of a list, or (null) those numbers
// themselves. Returns where they lie one after the other: in their page, or copied to rows.
const uint8_t *canon_gather(const canon_kv *kv, const int32_t *pages, int32_t layer, int32_t rate, const int32_t *ids, int32_t first, int32_t n, uint8_t *lanes, uint8_t *rows) {
  int64_t size = canon_form_bytes(kv->form), bytes = kv->dim * size;
  const uint8_t *start = 0, *next = canon_kv_entry(kv, pages, layer, ids ? ids[first] : first, rate);
  for (int32_t i = 0, from = 0; i < n; i++) {
    if (i == from) start = next;
    if (i + 1 < n) next = canon_kv_entry(kv, pages, layer, ids ? ids[first + i + 1] : first + i + 1, rate);
    if (i + 1 < n && next == start + (i + 1 - from) * bytes) continue;
    transpose(size, start, i + 1 - from, kv->dim, lanes + from * size);
    if (from == 0 && i + 1 == n) return start;
    if (rows) memcpy(rows + from * bytes, start, (size_t)((i + 1 - from) * bytes));
    from = i + 1;
  }
  return rows;
}

// Block b (counted from the span's first) of one row and some queries of a head.
static void block(canon_program *p, const canon_op *op, int32_t row, queries q, const span *s, int32_t b, int32_t thread, float *m, float *l, float *o) {
  int32_t listed = b - s->raw, share = op->i[HEADS] / op->kv.heads;
  const canon_kv *kv = listed >= 0 ? &op->memory : &op->kv;
  const int32_t *pages = p->step->pages + (int64_t)p->step->sequence[row] * p->step->pages_stride;
  int64_t size = canon_form_bytes(kv->form);
  canon_attend a = {.q = canon_row(&op->src, row) + ((int64_t)q.head * share + q.q0) * kv->dim, .queries = q.n, .dim = kv->dim, .form = kv->form,
                    .values = op->i[VALUES], .v_stride = kv->dim, .scale = op->f[0], .m = m, .l = l, .o = o};
  int32_t start = listed >= 0 ? listed * CANON_BLOCK : (s->first + b) * CANON_BLOCK, end = listed >= 0 ? s->listed : s->pos + 1;
  a.lo = listed < 0 && s->lo > start ? s->lo - start : 0;
  a.hi = end - start < CANON_BLOCK ? end - start : CANON_BLOCK;
  if (kv->single) {
    const int32_t *ids = listed >= 0 && op->ids ? op->ids + (int64_t)row * op->i[KEPT] : 0;
    int32_t layer = op->i[listed >= 0 ? MEMORY : LAYER], rate = listed >= 0 ? op->i[RATE] : 1;
    uint8_t *lanes = (uint8_t *)(p->per_thread + thread * p->thread_floats + own_floats(op)), *rows = lanes + CANON_BLOCK * kv->dim * size;
    for (int32_t i = a.lo / 64; i * 64 < a.hi; i++) {
      int64_t at = i * 64 * kv->dim * size;
      a.k[i] = lanes + at;
      a.v[i] = canon_gather(kv, pages, layer, rate, ids, start + i * 64, a.hi - i * 64 < 64 ? a.hi - i * 64 : 64, lanes + at, rows + at);
    }
  } else {
    int64_t part = (int64_t)kv->heads * kv->dim * 64 * size, at = (int64_t)q.head * kv->dim * 64 * size;
    pages += start / 64;
    for (int32_t i = a.lo / 64; i * 64 < a.hi; i++) {
      a.k[i] = canon_kv_layer(kv, pages[i], op->i[LAYER]) + at;
      a.v[i] = a.k[i] + part;
    }
    if (b + 1 < s->blocks && !p->split) a.after = canon_kv_layer(kv, pages[4], op->i[LAYER]) + at;
  }
  p->k->attend(&a);
}

static void fold(const canon_kernels *k, canon_state *t, float *o, float m_b, float l_b, const float *o_b, int32_t n) {
  float old, fresh;
  canon_fold(t, m_b, l_b, &old, &fresh);
  k->fold(o, o_b, old, fresh, n);
}

// A sink is a block without a value: (z, 1, 0).
static void finish(const canon_kernels *k, const canon_op *op, int32_t head, canon_state *t, float *o) {
  int32_t n = op->i[VALUES];
  if (op->vec) {
    float old, fresh;
    canon_fold(t, op->vec[head], 1.0f, &old, &fresh);
    for (int32_t d = 0; d < n; d++) o[d] = canon_fold_channel(o[d], 0.0f, old, fresh);
  }
  k->divide(o, t->l, n);
}

void canon_attend_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread) {
  int32_t rows = p->step->rows, n = op->i[VALUES], heads = op->i[HEADS], group = heads / op->kv.heads, part = (int32_t)(chunk % p->parts);
  chunk /= p->parts;
  if (p->split) {
    int32_t b = (int32_t)(chunk % p->split_blocks), head = (int32_t)(chunk / p->split_blocks % op->kv.heads), row = (int32_t)(chunk / p->split_blocks / op->kv.heads);
    span s = span_of(p, op, row);
    if (b >= s.blocks) return;
    queries q = queries_of(p, op, head, part);
    int32_t first = head * group + q.q0;
    float *base = p->partial + row * split_row(p, op) + (int64_t)b * heads * (n + 2), *m = base + first, *l = m + heads;
    block(p, op, row, q, &s, b, thread, m, l, base + 2 * heads + (int64_t)first * n);
    return;
  }
  int32_t head = (int32_t)(chunk / rows), row = (int32_t)(chunk % rows);   // neighbours in time share keys
  span s = span_of(p, op, row);
  queries q = queries_of(p, op, head, part);
  float *m = p->per_thread + thread * p->thread_floats, *l = m + group, *o_b = m + 4 * group;
  float *o = canon_row(&op->dst, row) + ((int64_t)head * group + q.q0) * n;
  canon_state *t = (canon_state *)(m + 2 * group);
  for (int32_t i = 0; i < q.n; i++) t[i] = (canon_state){-canon_inf(), 0};
  memset(o, 0, (size_t)(q.n * n) * 4);
  for (int32_t b = 0; b < s.blocks; b++) {
    block(p, op, row, q, &s, b, thread, m, l, o_b);
    for (int32_t i = 0; i < q.n; i++) fold(p->k, &t[i], o + (int64_t)i * n, m[i], l[i], o_b + (int64_t)i * n, n);
  }
  for (int32_t i = 0; i < q.n; i++) finish(p->k, op, head * group + q.q0 + i, &t[i], o + (int64_t)i * n);
}

void canon_attend_finish(canon_program *p, const canon_op *op, int32_t row) {
  int32_t n = op->i[VALUES], heads = op->i[HEADS];
  span s = span_of(p, op, row);
  for (int32_t h = 0; h < heads; h++) {
    canon_state t = {-canon_inf(), 0};
    float *o = canon_row(&op->dst, row) + (int64_t)h * n;
    memset(o, 0, (size_t)n * 4);
    for (int32_t b = 0; b < s.blocks; b++) {
      const float *base = p->partial + row * split_row(p, op) + (int64_t)b * heads * (n + 2);
      fold(p->k, &t, o, base[h], base[heads + h], base + 2 * heads + (int64_t)h * n, n);
    }
    finish(p->k, op, h, &t, o);
  }
}
