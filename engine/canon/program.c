// Building a program into phases and running it.
#include <stdlib.h>
#include <string.h>
#include "packed.h"
#include "program.h"

enum {
  FEW = 4,           // rows up to which products wait for memory
  WHOLE = 8 << 10,   // bytes of codes that are worth one chunk whatever they take: output rows are then written in longer pieces
};

canon_program *canon_program_new(int32_t rows, int32_t logit_rows, int32_t pages, canon_pool *pool) {
  canon_program *p = calloc(1, sizeof *p);
  if (p) { p->rows = rows; p->logit_rows = logit_rows; p->pages = pages; p->pool = pool; p->threads = canon_pool_threads(pool); p->nodes = canon_pool_nodes(pool); }
  return p;
}

void canon_program_free(canon_program *p) {
  free(p->ops);
  free(p->phases);
  free(p->chunks);
  free(p->stretches);
  free(p->tiles_per_chunk);
  free(p);
}

static canon_op *push(canon_program *p, const canon_op *op) {
  if (p->n == p->cap) {
    int32_t cap = p->cap ? p->cap * 2 : 256;
    canon_op *ops = realloc(p->ops, (size_t)cap * sizeof *ops);
    if (!ops) return 0;
    p->ops = ops;
    p->cap = cap;
  }
  p->ops[p->n] = *op;
  return &p->ops[p->n++];
}

// Appends an operation to the last phase if it may run there, else to a new one.
static int place(canon_program *p, const canon_op *op, int32_t kind, int32_t logits) {
  canon_phase *last = p->phase_n ? &p->phases[p->phase_n - 1] : 0;
  if (!push(p, op)) return 1;
  if (last && last->kind == kind && last->logits == logits && (kind == PHASE_ROWS || kind == PHASE_PRODUCT)) {
    last->count++;
    return 0;
  }
  if (p->phase_n == p->phase_cap) {
    int32_t cap = p->phase_cap ? p->phase_cap * 2 : 256;
    canon_phase *ph = realloc(p->phases, (size_t)cap * sizeof *ph);
    if (!ph) return 1;
    p->phases = ph;
    p->phase_cap = cap;
  }
  p->phases[p->phase_n++] = (canon_phase){kind, p->n - 1, 1, logits};
  return 0;
}

// Buffers may be slices of others: rows lie equally far apart, so the first ones tell.
static int overlap(const canon_buffer *a, const canon_buffer *b) { return a->data < b->data + b->width && b->data < a->data + a->width; }

// Products of one phase run side by side, so none may read what another writes.
static int independent(const canon_program *p, const canon_op *op) {
  const canon_phase *last = p->phase_n ? &p->phases[p->phase_n - 1] : 0;
  if (!last || last->kind != PHASE_PRODUCT) return 1;
  for (int32_t i = last->first; i < last->first + last->count; i++)
    if (overlap(&p->ops[i].dst, &op->src) || overlap(&p->ops[i].dst, &op->dst) || overlap(&p->ops[i].src, &op->dst)) return 0;
  return 1;
}

static int add_rope(canon_program *p, canon_op op) {
  int32_t a = 0;
  while (a < p->angle_n && p->angles[a].inv != op.vec) a++;
  if (a == p->angle_n) {
    if (a == (int32_t)(sizeof p->angles / sizeof *p->angles)) return 1;
    p->angles[p->angle_n++] = (canon_angles){op.vec, op.i[1], op.d, op.weights, op.long_factor, 0, 0};
  }
  op.i[4] = a;
  return place(p, &op, PHASE_ROWS, 0);
}

int canon_program_add(canon_program *p, const canon_op *op) {
  switch (op->kind) {
    case CANON_OP_MATMUL:
      canon_halves(p, &op->m);
      if (!independent(p, op)) {                    // an empty run of row operations separates the two phases
        canon_op none = {.kind = -1};
        if (place(p, &none, PHASE_ROWS, op->dst.logits)) return 1;
      }
      return place(p, op, PHASE_PRODUCT, op->dst.logits);
    case CANON_OP_QUANTISE: {
      int64_t stride = canon_padded(op->src.width, op->i[0]);
      p->code_bytes = canon_at_least(p->code_bytes, stride);
      p->code_groups = canon_at_least(p->code_groups, stride / op->i[0]);
      return place(p, op, PHASE_ROWS, op->src.logits);
    }
    case CANON_OP_ROPE:
      return add_rope(p, *op);
    case CANON_OP_ATTENTION: {
      canon_attend_needs(p, op);
      canon_op fold = *op;
      fold.kind = OP_FOLD;
      return place(p, op, PHASE_ATTEND, 0) || place(p, &fold, PHASE_ROWS, 0);
    }
    case CANON_OP_HEADS:
      return place(p, op, PHASE_HEADS, 0);
    case CANON_OP_POOL:
      return place(p, op, PHASE_POOL, 0);
    case CANON_OP_ENTRY:
      p->thread_floats = canon_at_least(p->thread_floats, op->src.width + op->i[2]);
      return place(p, op, PHASE_ROWS, 0);
    case CANON_OP_MIX_OUT:
      p->thread_floats = canon_at_least(p->thread_floats, op->dst.width);
      return place(p, op, PHASE_ROWS, 0);
    case CANON_OP_INDEX:
      canon_index_needs(p, op);
      return place(p, op, PHASE_SCORE, 0) || place(p, op, PHASE_SELECT, 0);
    case CANON_OP_DELTA:
      canon_delta_needs(p, op);
      return place(p, op, PHASE_DELTA, 0);
    case CANON_OP_FFN: {
      canon_ffn_needs(p, op);
      if (place(p, op, PHASE_UP, op->dst.logits) || place(p, op, PHASE_DOWN, op->dst.logits)) return 1;
      canon_op combine = *op;
      combine.kind = OP_COMBINE;
      return op->table ? place(p, &combine, PHASE_ROWS, op->dst.logits) : 0;
    }
    case CANON_OP_ROUTER:
      p->thread_floats = canon_at_least(p->thread_floats, 3 * (int64_t)op->i[1] + 1024);
      return place(p, op, PHASE_ROWS, 0);
    case CANON_OP_CHECK: case CANON_OP_KV_APPEND:
      return place(p, op, PHASE_ROWS, op->src.logits);
    default:
      return place(p, op, PHASE_ROWS, op->dst.logits);
  }
}

// ---- scratch -----------------------------------------------------------------------------------------------------------

static void *take(uint8_t *base, int64_t *at, int64_t bytes) {
  void *out = base ? base + *at : 0;
  *at += (bytes + 63) & ~(int64_t)63;
  return out;
}

static void take_codes(canon_codes *c, uint8_t *base, int64_t *at, int64_t rows, int64_t bytes, int64_t groups, int32_t halves) {
  c->q = take(base, at, rows * bytes);
  c->scale = take(base, at, rows * groups * 4);
  c->less8 = take(base, at, rows * groups * 4);
  c->half = halves ? take(base, at, rows * groups * 4) : 0;
}

static int64_t most_items(const canon_program *p) { return p->experts + 2 + (p->rows + p->slots) / CANON_ROW_BLOCK; }

// Lays scratch memory out from base; with a null base it only measures.
static int64_t lay(canon_program *p, uint8_t *base) {
  int64_t at = 0, rows = p->rows, slots[2] = {rows, p->slots};
  take_codes(&p->codes, base, &at, rows, p->code_bytes, p->code_groups, p->halves);
  for (int i = 0; i < 2; i++) {
    take_codes(&p->inner[i], base, &at, slots[i], p->inner_bytes[i], p->inner_groups[i], p->halves);
    p->inner_float[i] = take(base, &at, slots[i] * p->inner_floats[i] * 4);
  }
  p->routed_out = take(base, &at, p->slots * p->routed_floats * 4);
  p->order_row = take(base, &at, p->slots * 4);
  p->order_slot = take(base, &at, p->slots * 4);
  p->first_row = take(base, &at, p->delta ? rows * 4 : 0);
  p->run_row = take(base, &at, (rows + 1) * 4);
  p->count = take(base, &at, (p->experts + 1) * 4);
  p->items = take(base, &at, most_items(p) * (int64_t)sizeof *p->items);
  p->thread_floats = (p->thread_floats + 15) & ~(int64_t)15;
  p->per_thread = take(base, &at, p->threads * p->thread_floats * 4);
  p->partial = take(base, &at, p->split_floats * 4);
  p->scores = take(base, &at, 2 * p->threads * p->score_floats * 4);
  for (int32_t i = 0; i < p->angle_n; i++) {
    p->angles[i].cosine = take(base, &at, rows * (p->angles[i].rot / 2) * 4);
    p->angles[i].sine = take(base, &at, rows * (p->angles[i].rot / 2) * 4);
  }
  return at;
}

int64_t canon_program_scratch(canon_program *p) {
  // Angles come first of all, so that they are there for every layer.
  if (p->angle_n) {
    canon_op angles = {.kind = OP_ANGLES};
    if (!push(p, &angles)) return -1;
    memmove(p->ops + 1, p->ops, (size_t)(p->n - 1) * sizeof *p->ops);
    p->ops[0] = angles;
    for (int32_t i = 0; i < p->phase_n; i++) p->phases[i].first++;
    if (p->phases[0].kind == PHASE_ROWS && !p->phases[0].logits) {
      p->phases[0].first--;
      p->phases[0].count++;
    } else {
      canon_phase *ph = realloc(p->phases, (size_t)(p->phase_n + 1) * sizeof *ph);
      if (!ph) return -1;
      p->phases = ph;
      memmove(ph + 1, ph, (size_t)p->phase_n++ * sizeof *ph);
      ph[0] = (canon_phase){PHASE_ROWS, 0, 1, 0};
    }
  }
  int64_t most = most_items(p);
  for (int32_t i = 0; i < p->phase_n; i++) most = canon_at_least(most, p->phases[i].count);
  p->chunks = calloc((size_t)most, sizeof *p->chunks);
  p->stretches = calloc((size_t)(most * p->nodes), sizeof *p->stretches);
  p->tiles_per_chunk = calloc((size_t)most, sizeof *p->tiles_per_chunk);
  if (!p->chunks || !p->stretches || !p->tiles_per_chunk) return -1;
  return lay(p, 0);
}

void canon_program_build(canon_program *p, void *scratch) { lay(p, scratch); }

// ---- running -----------------------------------------------------------------------------------------------------------

void canon_fault(canon_program *p, int32_t logits, int32_t row, int32_t kind, int32_t label) {
  if (logits) row = p->step->logit_row[row];
  int32_t *f = p->step->faults + 2 * row, none = 0;
  if (__atomic_compare_exchange_n(f, &none, kind, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    __atomic_store_n(f + 1, label, __ATOMIC_RELAXED);
    atomic_fetch_add(&p->fault_n, 1);
  }
}

// What one tile with some rows takes, roughly: reading its codes, then multiplying.
static int64_t picoseconds(const canon_matrix *m, int32_t rows) {
  int64_t inputs = m->cols * (int64_t)16;
  return inputs * (m->form == CANON_INT4 || m->form == CANON_MXFP4 ? 30 : canon_form_bytes(m->form) == 1 ? 60 : 120) + inputs * rows * (m->group ? 20 : 65);
}

int32_t canon_tiles_per_chunk(const canon_matrix *m, int32_t rows, int32_t threads, int32_t matrices) {
  int64_t tiles = (m->rows + 15) / 16, n = 2000000 / (picoseconds(m, rows) + 1), most = tiles * matrices / (threads * 4);
  int64_t whole = m->group ? WHOLE / packed_tile_bytes(m) : 0;
  n = n > whole ? n : whole;
  n = n < most ? n : most;
  n = n < tiles ? n : tiles;
  return (int32_t)(n < 1 ? 1 : n);
}

int64_t canon_spread(canon_program *p, int32_t lists) {
  int64_t chunks = 0;
  p->stretch_n = 0;
  for (int32_t v = 0; v < p->nodes; v++)
    for (int32_t i = 0; i < lists; i++) {
      int64_t from = canon_pool_stretch(p->pool, p->chunks[i], v), to = canon_pool_stretch(p->pool, p->chunks[i], v + 1);
      if (from == to) continue;
      p->stretches[p->stretch_n++] = (canon_stretch){chunks, i, from};
      chunks += to - from;
    }
  return chunks;
}

canon_place canon_find(const canon_program *p, int64_t chunk) {
  int32_t lo = 0, hi = p->stretch_n - 1;
  while (lo < hi) {
    int32_t mid = (lo + hi + 1) / 2;
    if (p->stretches[mid].first <= chunk) lo = mid; else hi = mid - 1;
  }
  return (canon_place){p->stretches[lo].list, p->stretches[lo].at + chunk - p->stretches[lo].first};
}

static void run(void *ctx, int32_t index, int64_t chunk, int32_t thread);

// Whether a phase is not worth handing out: a hand-over between threads costs about a microsecond, and single rows have no
// parts. A decode step then hands out four phases a layer instead of twelve.
static int alone(const canon_program *p, const canon_phase *ph, int32_t rows) {
  const canon_op *op = &p->ops[ph->first];
  int64_t work = 0;
  switch (ph->kind) {
    case PHASE_ROWS: return rows == 1;
    case PHASE_PRODUCT:
      for (int32_t i = 0; i < ph->count; i++) work += picoseconds(&op[i].m, rows) * ((op[i].m.rows + 15) / 16);
      return work <= 5000000;
    case PHASE_ATTEND:
      for (int32_t r = 0; r < rows; r++) work += p->step->positions[r] + 1;
      return work * op->src.width <= 1 << 15;
    default: return 0;
  }
}

static int64_t chunks_of(canon_program *p, const canon_phase *ph, int32_t rows) {
  const canon_op *op = &p->ops[ph->first];
  int64_t chunks = 0;
  switch (ph->kind) {
    case PHASE_ROWS: {
      int32_t per = (rows + p->threads * 4 - 1) / (p->threads * 4);
      p->tiles_per_chunk[0] = per > 16 ? 16 : per < 1 ? 1 : per;
      return (rows + p->tiles_per_chunk[0] - 1) / p->tiles_per_chunk[0];
    }
    case PHASE_PRODUCT:
      for (int32_t i = 0; i < ph->count; i++) {
        int32_t block = rows < CANON_ROW_BLOCK ? rows : CANON_ROW_BLOCK, tiles = (op[i].m.rows + 15) / 16;
        p->tiles_per_chunk[i] = canon_tiles_per_chunk(&op[i].m, block, p->threads, ph->count);
        p->chunks[i] = (int64_t)((tiles + p->tiles_per_chunk[i] - 1) / p->tiles_per_chunk[i]) * ((rows + CANON_ROW_BLOCK - 1) / CANON_ROW_BLOCK);
      }
      return canon_spread(p, ph->count);
    case PHASE_DELTA: canon_delta_prepare(p, op, &chunks); return chunks;
    case PHASE_HEADS: canon_heads_prepare(p, op, &chunks); return chunks;
    case PHASE_POOL: canon_pool_prepare(p, op, &chunks); return chunks;
    case PHASE_SCORE: canon_score_prepare(p, op, &chunks); return chunks;
    case PHASE_SELECT: return rows;
    case PHASE_ATTEND: canon_attend_prepare(p, op, &chunks); return chunks;
    case PHASE_UP: canon_ffn_prepare(p, op, 0, &chunks); return chunks;
    default: canon_ffn_prepare(p, op, 1, &chunks); return chunks;
  }
}

// Tells threads without work what the next products after a phase read, when rows are few and reading is all that counts.
static void ahead(canon_program *p, int32_t phase, int32_t rows) {
  canon_piece pieces[CANON_AHEAD] = {{0}};
  if (rows > FEW || phase < p->fetched) return;
  for (phase++; phase < p->phase_n; phase++) {
    const canon_phase *ph = &p->phases[phase];
    const canon_op *op = &p->ops[ph->first];
    if (ph->kind == PHASE_UP || ph->kind == PHASE_DOWN) canon_ffn_pieces(op, ph->kind == PHASE_DOWN, pieces);
    else if (ph->kind == PHASE_PRODUCT && !alone(p, ph, rows))
      for (int32_t i = 0; i < ph->count && i < CANON_AHEAD; i++) pieces[i] = (canon_piece){op[i].m.codes, packed_codes_size(&op[i].m)};
    if (pieces[0].bytes) break;
  }
  p->fetched = phase;
  canon_pool_ahead(p->pool, pieces);
}

// Runs small phases at once; nobody else works while one is prepared, so the first thread's scratch is free.
static int64_t prepare(void *ctx, int32_t index) {
  canon_program *p = ctx;
  const canon_phase *ph = &p->phases[p->begin + index];
  int32_t rows = canon_rows_of(p, ph->logits);
  int64_t chunks = chunks_of(p, ph, rows);
  ahead(p, p->begin + index, rows);
  if (!alone(p, ph, rows)) return chunks;
  for (int64_t c = 0; c < chunks; c++) run(p, index, c, 0);
  return 0;
}

static void product_chunk(canon_program *p, const canon_phase *ph, int64_t chunk) {
  canon_place at = canon_find(p, chunk);
  const canon_op *op = &p->ops[ph->first + at.list];
  int32_t rows = canon_rows_of(p, ph->logits), per = p->tiles_per_chunk[at.list], tiles = (op->m.rows + 15) / 16, parts = (tiles + per - 1) / per;
  int32_t c = (int32_t)at.chunk, t = c % parts * per, r0 = c / parts * CANON_ROW_BLOCK;   // neighbours in time share rows, of which there is more to read
  canon_rows r = {.n = rows - r0 < CANON_ROW_BLOCK ? rows - r0 : CANON_ROW_BLOCK, .in0 = r0, .out0 = r0, .x = op->src.data, .x_stride = op->src.stride,
                  .y = op->dst.data, .y_stride = op->dst.stride, .bias = op->vec, .codes = p->codes};
  r.codes.stride = canon_padded(op->m.cols, op->m.group);
  r.codes.groups = op->m.groups;
  p->k->product(&op->m, t, tiles - t < per ? tiles - t : per, &r);
}

static void run(void *ctx, int32_t index, int64_t chunk, int32_t thread) {
  canon_program *p = ctx;
  const canon_phase *ph = &p->phases[p->begin + index];
  const canon_op *op = &p->ops[ph->first];
  switch (ph->kind) {
    case PHASE_ROWS: {
      int32_t per = p->tiles_per_chunk[0], rows = canon_rows_of(p, ph->logits), r0 = (int32_t)chunk * per;
      canon_row_ops(p, ph, r0, r0 + per < rows ? r0 + per : rows, thread);
      return;
    }
    case PHASE_PRODUCT: product_chunk(p, ph, chunk); return;
    case PHASE_DELTA: canon_delta_chunk(p, op, chunk, thread); return;
    case PHASE_HEADS: canon_heads_chunk(p, op, chunk); return;
    case PHASE_POOL: canon_pool_chunk(p, op, chunk); return;
    case PHASE_SCORE: canon_score_chunk(p, op, chunk, thread); return;
    case PHASE_SELECT: canon_select_row(p, op, (int32_t)chunk, thread); return;
    case PHASE_ATTEND: canon_attend_chunk(p, op, chunk, thread); return;
    case PHASE_UP: canon_ffn_up(p, op, chunk); return;
    default: canon_ffn_down(p, op, chunk);
  }
}

int32_t canon_program_stop(const canon_program *p, int32_t from) {
  while (from < p->phase_n && !(p->phases[from].kind == PHASE_UP && p->ops[p->phases[from].first].table)) from++;
  return from;
}

int canon_run(canon_program *p, canon_step *step, int32_t from, int32_t to) {
  p->step = step;
  p->fetched = from;
  p->k = canon_pool_kernels(p->pool);
  p->begin = from;
  if (from == 0) atomic_store(&p->fault_n, 0);
  canon_job job = {.phases = (to < p->phase_n ? to : p->phase_n) - from, .prepare = prepare, .run = run, .ctx = p};
  if (job.phases > 0) canon_pool_run(p->pool, &job);
  return atomic_load(&p->fault_n);
}
