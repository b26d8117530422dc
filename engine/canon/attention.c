// Attention over paged keys and values (rule 6). Blocks of 256 positions are computed fresh and folded in ascending order.
// With many rows a chunk is a key/value head and some neighbouring rows of a sequence, which read each page together, brought
// to floats once, and fold as they go; with few rows each block is a chunk of its own, its parts wait in scratch, and a row
// operation folds them: the same operations in the same order.
//
// A cache of single vectors (latent attention) lies place by place, so that a chosen key is one contiguous read and its
// leading channels are the value; a block's keys are transposed into the lanes in scratch, once for all query heads.
//
// Beside positions a row may attend vectors of a memory, in blocks of 256 by rank in its list: the same cache where an
// indexer chose the positions (and then nothing else), or one of compressed entries, one for each rate positions.
#include <string.h>
#include "canon.h"
#include "program.h"

enum {
  SPLIT_FLOATS = 16 << 20,  // most scratch for split attention, in floats
  TOGETHER = 16,            // most rows that read keys together; their queries are at most QUERIES
  QUERIES = 64,
  WIDEN = 4,                // rows from which bringing pages to floats pays; a run of them may end earlier
};

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

// Rows that may read keys together: neither lists of kept keys nor vectors one after the other are shared.
static int32_t most_together(const canon_op *op) {
  int32_t n = QUERIES / (op->i[HEADS] / op->kv.heads);
  return op->kv.single || op->i[RATE] || n < WIDEN ? 1 : n < TOGETHER ? n : TOGETHER;
}

// Scratch of a thread for the queries of one chunk, before its keys: m, l, state, range, output and weights of each, and a copy
// of the queries if they come from several rows.
static int64_t own_floats(const canon_op *op) {
  int64_t n = (int64_t)(op->i[HEADS] / op->kv.heads) * most_together(op);
  return (n * (op->i[VALUES] + op->kv.dim + CANON_BLOCK + 6) + 15) & ~(int64_t)15;
}

void canon_attend_needs(canon_program *p, const canon_op *op) {
  int64_t keys = 0;
  if (op->kv.single) keys = (int64_t)CANON_BLOCK * op->kv.dim * canon_form_bytes(op->kv.form) / 4 * (op->i[RATE] ? 2 : 1);
  else if (most_together(op) > 1 && p->rows > 1) keys = (int64_t)64 * op->kv.dim;
  p->thread_floats = canon_at_least(p->thread_floats, own_floats(op) + keys);
  int64_t rows = (2 * p->threads + op->kv.heads - 1) / op->kv.heads, row = split_row(p, op);
  if (rows * row > SPLIT_FLOATS) rows = SPLIT_FLOATS / row;
  p->split_floats = canon_at_least(p->split_floats, (rows < 1 ? 1 : rows) * row);
}

// Cuts the step's rows into runs of one sequence; there are four runs a thread where rows allow.
static void cut(canon_program *p, const canon_op *op) {
  int32_t rows = p->step->rows, most = most_together(op), share = rows * op->kv.heads / (4 * p->threads);
  most = share < most ? share : most;
  p->run_n = 0;
  for (int32_t r = 0; r < rows; r++)
    if (p->run_n == 0 || most < WIDEN || r - p->run_row[p->run_n - 1] >= most || p->step->sequence[r] != p->step->sequence[r - 1]) p->run_row[p->run_n++] = r;
  p->run_row[p->run_n] = rows;
}

void canon_attend_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  int32_t rows = p->step->rows, heads = op->kv.heads, blocks = 1;
  for (int32_t r = 0; r < rows; r++) { int32_t b = span_of(p, op, r).blocks; blocks = b > blocks ? b : blocks; }
  p->split = blocks > 1 && rows * heads < 2 * p->threads && rows * split_row(p, op) <= p->split_floats;
  p->split_blocks = blocks;
  cut(p, op);
  int32_t units = p->split ? rows * heads * blocks : p->run_n * heads, most = op->i[HEADS] / heads / 4;
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

typedef struct { int32_t lo, hi; } range;

// What a row attends of block b of a joint span; empty if lo is not below hi.
static range range_of(const span *row, const span *joint, int32_t b) {
  int32_t listed = b - joint->raw, start = listed >= 0 ? listed * CANON_BLOCK : (joint->first + b) * CANON_BLOCK;
  int32_t left = (listed >= 0 ? row->listed : row->pos + 1) - start;
  return (range){listed < 0 && row->lo > start ? row->lo - start : 0, left < CANON_BLOCK ? left : CANON_BLOCK};
}

// Where block b (counted from the span's first) of a row of some head lies: its pages of keys and values.
static canon_attend keys(canon_program *p, const canon_op *op, int32_t row, int32_t head, const span *s, int32_t b, int together, int32_t thread) {
  int32_t listed = b - s->raw, start = listed >= 0 ? listed * CANON_BLOCK : (s->first + b) * CANON_BLOCK;
  range attended = range_of(s, s, b);
  const canon_kv *kv = listed >= 0 ? &op->memory : &op->kv;
  const int32_t *pages = p->step->pages + (int64_t)p->step->sequence[row] * p->step->pages_stride;
  int64_t size = canon_form_bytes(kv->form);
  canon_attend a = {.dim = kv->dim, .form = kv->form, .values = op->i[VALUES], .v_stride = kv->dim, .scale = op->f[0]};
  float *scratch = p->per_thread + thread * p->thread_floats + own_floats(op);
  if (kv->single) {
    const int32_t *ids = listed >= 0 && op->ids ? op->ids + (int64_t)row * op->i[KEPT] : 0;
    int32_t layer = op->i[listed >= 0 ? MEMORY : LAYER], rate = listed >= 0 ? op->i[RATE] : 1;
    uint8_t *lanes = (uint8_t *)scratch, *rows = lanes + CANON_BLOCK * kv->dim * size;
    for (int32_t i = attended.lo / 64; i * 64 < attended.hi; i++) {
      int64_t at = i * 64 * kv->dim * size;
      a.k[i] = lanes + at;
      a.v[i] = canon_gather(kv, pages, layer, rate, ids, start + i * 64, attended.hi - i * 64 < 64 ? attended.hi - i * 64 : 64, lanes + at, rows + at);
    }
    return a;
  }
  int32_t n = kv->dim * 64;
  int64_t part = (int64_t)kv->heads * n * size, at = (int64_t)head * n * size;
  pages += start / 64;
  for (int32_t i = attended.lo / 64; i * 64 < attended.hi; i++) {
    a.k[i] = canon_kv_layer(kv, pages[i], op->i[LAYER]) + at;
    a.v[i] = a.k[i] + part;
  }
  if (together) a.wide = scratch;
  else if (b + 1 < s->blocks && !p->split) a.after = canon_kv_layer(kv, pages[4], op->i[LAYER]) + at;
  return a;
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

// The rows that attend block b of their joint span, n of them with `group` queries each, whose sums are then folded.
static void together(canon_program *p, const canon_op *op, int32_t r0, int32_t n, queries g, const span *of, const span *joint, int32_t b, int32_t thread) {
  int32_t width = op->i[VALUES], dim = op->kv.dim, share = op->i[HEADS] / op->kv.heads, most = g.n * n;
  canon_attend a = keys(p, op, r0, g.head, joint, b, n > 1, thread);
  float *m = p->per_thread + thread * p->thread_floats, *l = m + most, *o = l + 5 * most, *weights = o + (int64_t)most * width, *q = weights + (int64_t)most * CANON_BLOCK;
  canon_state *t = (canon_state *)(l + most);
  int32_t *lo = (int32_t *)(l + 3 * most), *hi = lo + most, from[TOGETHER];
  a.queries = 0;
  for (int32_t i = 0; i < n; i++) {
    range attended = range_of(&of[i], joint, b);
    from[i] = a.queries;
    if (attended.lo >= attended.hi) continue;
    const float *row = canon_row(&op->src, r0 + i) + ((int64_t)g.head * share + g.q0) * dim;
    if (n == 1) q = (float *)row;
    else memcpy(q + (int64_t)a.queries * dim, row, (size_t)(g.n * dim) * 4);
    for (int32_t j = 0; j < g.n; j++) { lo[a.queries] = attended.lo; hi[a.queries++] = attended.hi; }
  }
  a.q = q; a.lo = lo; a.hi = hi; a.m = m; a.l = l; a.o = o; a.p = weights;
  p->k->attend(&a);
  for (int32_t i = 0; i < n; i++) {
    float *y = canon_row(&op->dst, r0 + i) + ((int64_t)g.head * share + g.q0) * width;
    for (int32_t j = from[i], end = i + 1 < n ? from[i + 1] : a.queries; j < end; j++, y += width)
      p->k->fold(&t[i * g.n + j - from[i]], y, m[j], l[j], o + (int64_t)j * width, width);
  }
}

void canon_attend_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread) {
  int32_t width = op->i[VALUES], heads = op->i[HEADS], share = heads / op->kv.heads, part = (int32_t)(chunk % p->parts);
  chunk /= p->parts;
  if (p->split) {
    int32_t b = (int32_t)(chunk % p->split_blocks), head = (int32_t)(chunk / p->split_blocks % op->kv.heads), row = (int32_t)(chunk / p->split_blocks / op->kv.heads);
    span s = span_of(p, op, row);
    if (b >= s.blocks) return;
    queries g = queries_of(p, op, head, part);
    range attended = range_of(&s, &s, b);
    int32_t first = head * share + g.q0, *lo = (int32_t *)(p->per_thread + thread * p->thread_floats), *hi = lo + g.n;
    for (int32_t i = 0; i < g.n; i++) { lo[i] = attended.lo; hi[i] = attended.hi; }
    float *base = p->partial + row * split_row(p, op) + (int64_t)b * heads * (width + 2);
    canon_attend a = keys(p, op, row, head, &s, b, 0, thread);
    a.q = canon_row(&op->src, row) + (int64_t)first * op->kv.dim;
    a.queries = g.n;
    a.lo = lo; a.hi = hi; a.m = base + first; a.l = a.m + heads; a.o = base + 2 * heads + (int64_t)first * width; a.p = (float *)(hi + g.n);
    p->k->attend(&a);
    return;
  }
  int32_t head = (int32_t)(chunk / p->run_n), r0 = p->run_row[chunk % p->run_n], n = p->run_row[chunk % p->run_n + 1] - r0;   // neighbours in time share keys
  span of[TOGETHER], joint = of[0] = span_of(p, op, r0);
  for (int32_t i = 1; i < n; i++) {
    of[i] = span_of(p, op, r0 + i);
    joint.lo = of[i].lo < joint.lo ? of[i].lo : joint.lo;
    joint.pos = of[i].pos > joint.pos ? of[i].pos : joint.pos;
  }
  if (n > 1) {
    joint.first = joint.lo / CANON_BLOCK;
    joint.blocks = joint.raw = joint.pos / CANON_BLOCK - joint.first + 1;
  }
  queries g = queries_of(p, op, head, part);
  canon_state *t = (canon_state *)(p->per_thread + thread * p->thread_floats + 2 * g.n * n);
  for (int32_t i = 0; i < n * g.n; i++) t[i] = (canon_state){-canon_inf(), 0};
  for (int32_t i = 0; i < n; i++) memset(canon_row(&op->dst, r0 + i) + ((int64_t)head * share + g.q0) * width, 0, (size_t)(g.n * width) * 4);
  for (int32_t b = 0; b < joint.blocks; b++) together(p, op, r0, n, g, of, &joint, b, thread);
  for (int32_t i = 0; i < n * g.n; i++)
    finish(p->k, op, head * share + g.q0 + i % g.n, &t[i], canon_row(&op->dst, r0 + i / g.n) + ((int64_t)head * share + g.q0 + i % g.n) * width);
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
      p->k->fold(&t, o, base[h], base[heads + h], base + 2 * heads + (int64_t)h * n, n);
    }
    finish(p->k, op, h, &t, o);
  }
}
