//go:build cuda

// Fast kernels: where they apply, and which neighbouring operations become one launch. A step of few rows is bound by the time
// that a launch takes to begin and to end, so there norm, quantisation and the products of one input are one launch, and so are
// the norms, rotation and cache of heads; of one row the attention half of a layer is one from its norm to its residual (latent
// attention: latent.c), and so is a Mixture-of-Experts layer. Buffers hold what the operations leave in them, with these exceptions:
// what launches of one row have between their operations, where nothing behind reads it and no buffer but logits goes to the host
// (place of schedule.go), and codes of rows that are quantised inside a product.
#include <string.h>
#include "launches.h"
#include "kernels/experts.h"

// Geometry is that of the comments in the kernels' sources; where one or the other is faster was measured on an H200.
enum { FEW_ROWS = 8, FEW_DENSE = 64, FEW_AN_EXPERT = 48, HEAD_WARPS = 4, HEAD_DIM = 256, MOST_EXPERTS = 512, MOST_CHOSEN = 16 };

int covey_is_read(const canon_op *o, int32_t n, const canon_buffer *x) {
  for (const canon_op *end = o + n; o < end; o++) {
    const canon_buffer *all[3] = {&o->src, &o->src2, &o->dst};
    for (int32_t i = 0; i < 3; i++) {
      if (!all[i]->data || all[i]->data + all[i]->width <= x->data || x->data + x->width <= all[i]->data) continue;
      if (i == 2 && same(all[i], x) && (o->kind == CANON_OP_NORM || o->kind == CANON_OP_MATMUL || o->kind == CANON_OP_ATTENTION || o->kind == CANON_OP_FFN || o->kind == CANON_OP_EMBED)) return 0;
      return 1;
    }
  }
  return 0;
}

// ---- integer products --------------------------------------------------------------------------------------------------

// Place among the forms and groups that COVEY_GROUPS lists, or -1.
static int32_t variant(const canon_matrix *m) {
  if (!covey_tiled(m)) return -1;
  return m->form == CANON_MXFP4 ? 6 : (m->form == CANON_INT4 ? 0 : 3) + (m->group == 32 ? 0 : m->group == 64 ? 1 : 2);
}
static int biased(const canon_record *r) { return r->gate.bias_at || r->up.bias_at || r->down.bias_at || r->gate.bias || r->up.bias || r->down.bias; }
static int32_t variant_of_record(const canon_record *r) {
  int32_t v = variant(&r->gate);
  int32_t scales = r->gate.scale_form;
  return variant(&r->up) == v && variant(&r->down) == v && r->up.scale_form == scales && r->down.scale_form == scales ? v : -1;
}

// Shared memory of matmul.cuh: few_memory and Many<F, mw>::memory.
static int64_t few_memory(const canon_matrix *m, int32_t tiles, int32_t rows) {
  int64_t cols = (int64_t)m->groups * m->group, segments = covey_ceil((int32_t)cols, CANON_SEGMENT);
  return rows * ((cols + 127) / 128 * 128 + 64) + m->groups * FEW_ROWS * 8 + tiles * segments * 16 * FEW_ROWS * 4;
}
static int64_t many_memory(const canon_matrix *m, int32_t mw) {
  int64_t columns = 256 / mw, groups = 128 / m->group, stage = 2 * mw * groups * covey_block(m->form, m->group, m->scale_form) + columns * 128 + groups * columns * 8;
  int64_t ring = 4 * stage, inner = columns * (mw * 16 + 4) * 4;
  return ring > inner ? ring : inner;
}

// One row by the parts of f, through rings in shared memory (product_row.cu); 0 if there is no such kernel. A block keeps to half of
// a multiprocessor's shared memory, so that it stands beside one of the launch before or behind, if that holds all that it reads;
// otherwise a longer ring is worth more.
static covey_launch *product_row(const covey_rows *f, int32_t v, int32_t tiles, int32_t label, const covey_place *d, covey_launch *at) {
  const canon_matrix *m = &f->part[0].m;
  int32_t scales = m->scale_form, groups = m->groups, segments = covey_ceil(groups * m->group, CANON_SEGMENT), grid = at_most(tiles, d->multiprocessors);
  if (!(d->fast & COVEY_FAST_ATTEND_ROW) || v > 2 || scales == CANON_F32 || f->src.width % 8) return 0;
  for (int32_t i = 1; i < f->parts; i++) if (f->part[i].m.scale_form != scales) return 0;
  int32_t units = covey_ceil(tiles, grid) * segments, slot = CANON_SEGMENT / m->group * covey_block(m->form, m->group, scales);
  int32_t room = covey_row_shared_of(groups * m->group, groups, units, f->made == COVEY_NORMED ? f->src.width : 0).room, half = (d->shared + 1024) / 2 - 1024;
  int32_t most = room + units * slot <= half ? half : d->shared, slots = at_most(at_most((most - room) / slot, units), COVEY_ROW_SLOTS);
  if (slots < at_most(units, COVEY_ROW_WARPS)) return 0;
  at = launch(at, COVEY_K_product_row_int4_g32_f16 + 2 * v + (scales == CANON_BF16), label, grid, 1, 1, COVEY_ROW_WARPS * 32 + 32, room + slots * slot);
  at[-1].argument.rows = *f;
  for (int32_t i = 0, first = 0; i < f->parts; first += covey_ceil(f->part[i++].m.rows, COVEY_TILE)) at[-1].argument.rows.first[i] = first;
  at[-1].more[0] = tiles;
  at[-1].more[1] = slots;
  return early(at, d);
}

// Up to COVEY_PARTS products of one input from o on, by one launch; made says what the input is. Writes how many there are to
// *used; 0 if there is no such launch. A sum that follows a single product joins it.
static covey_launch *row_products(const canon_op *o, int32_t n, covey_rows *f, const covey_bucket *b, const covey_place *d, int32_t *used, covey_launch *at) {
  const canon_matrix *first = &o[0].m;
  int32_t v = o[0].kind == CANON_OP_MATMUL ? variant(first) : -1, rows = rows_of(b, o[0].dst.logits), k = 0, tiles = 0;
  *used = 0;
  if (!(d->fast & COVEY_FAST_PRODUCTS) || v < 0 || rows > (f->made == COVEY_CODES ? FEW_DENSE : FEW_ROWS)) return 0;
  for (; k < n && k < COVEY_PARTS && o[k].kind == CANON_OP_MATMUL && same(&o[k].src, &o[0].src) && variant(&o[k].m) == v && o[k].dst.logits == o[0].dst.logits; k++) {
    f->part[k] = (covey_part){.m = o[k].m, .bias = o[k].vec, .dst = o[k].dst};
    tiles += covey_ceil(o[k].m.rows, COVEY_TILE);
  }
  // Codes that are made inside are nobody else's.
  if (f->made != COVEY_CODES && k < n && (o[k].kind == CANON_OP_MATMUL || o[k].kind == CANON_OP_FFN) && same(&o[k].src, &o[0].src)) return 0;
  f->parts = *used = k;
  f->logits = o[0].dst.logits;
  if (k == 1 && n > 1 && o[1].kind == CANON_OP_ADD && same(&o[1].src, &o[0].dst) && (f->made == COVEY_CODES || o[1].dst.data != f->src.data)) {
    f->part[0].sum = o[1].dst;
    *used = 2;
  }
  covey_launch *one = rows == 1 ? product_row(f, v, tiles, o[0].label, d, at) : 0;
  if (one) return one;
  // Two tiles a block, unless that leaves multiprocessors idle; a norm inside takes longer than that.
  int32_t most = at_most(rows, FEW_ROWS), each = f->made == COVEY_CODES && tiles < 2 * d->multiprocessors ? 1 : 2, blocks = 0;
  for (int32_t i = 0; i < k; i++) {
    f->first[i] = blocks;
    blocks += covey_ceil(o[i].m.rows, each * COVEY_TILE);
  }
  int64_t shared = few_memory(first, each, most) + (f->made == COVEY_NORMED ? 4 * (int64_t)most * f->src.width : 0);
  // Rows that leave room for only one block on a multiprocessor are normed by a launch of their own.
  if (shared > d->shared || (f->made == COVEY_NORMED && most > 1 && 2 * (shared + 4096) > d->shared)) { *used = 0; return 0; }
  at = launch(at, COVEY_K_rows_int4_g32 + v, o[0].label, blocks, covey_ceil(rows, FEW_ROWS), 1, 256, shared);
  at[-1].more[0] = most;
  at[-1].more[1] = each;
  at[-1].argument.rows = *f;
  return early(at, d);
}

// Place among the forms that COVEY_WIDE lists, or -1. FP8 has scales for blocks of 128 by 128, or one for all inputs of a row.
enum { FP8_VARIANT = 3, FP8_BLOCK = 128, FP8_BLOCKS = 192 };
static int32_t float_variant(const canon_matrix *m) {
  if (m->group) return -1;
  if (m->form <= CANON_BF16) return m->form;
  return m->form == CANON_FP8 && m->block_rows == FP8_BLOCK && m->block_cols == FP8_BLOCK && m->cols % 32 == 0 && m->cols <= FP8_BLOCK * FP8_BLOCKS ? FP8_VARIANT : -1;
}

// Tiles of floats.cuh: outputs and rows of a block, stages, threads.
enum { TILE_SMALL, TILE_ONE, TILE_FOUR, TILE_MANY };
static const struct { int32_t outs, rows, stages, threads; } float_tiles[] = {{4, 4, 8, 128}, {32, 1, 8, 256}, {32, 4, 5, 256}, {32, 16, 4, 256}};
static int64_t float_memory(int32_t tile, const canon_matrix *m) { return 128 * float_tiles[tile].stages * (float_tiles[tile].outs * (int64_t)covey_form_bytes(m->form) + float_tiles[tile].rows * 4); }
// The tile of one row is the deepest; where a block has no memory for it, that of four rows takes its place.
static int32_t tile_within(int32_t tile, const canon_matrix *m, const covey_place *d) { return tile == TILE_ONE && float_memory(tile, m) > d->shared ? TILE_FOUR : tile; }
// Rows of a matrix begin at multiples of 16 bytes.
static int float_aligned(const canon_matrix *m) { return (int64_t)m->cols * covey_form_bytes(m->form) % 16 == 0; }

covey_launch *covey_fast_product(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t check, covey_launch *at) {
  int32_t rows = rows_of(b, op->dst.logits), heads = op->kind == CANON_OP_HEADS ? op->i[0] : 1, form;
  if (!(d->fast & COVEY_FAST_PRODUCTS)) return 0;
  if (op->m.group == 0) {
    form = float_variant(&op->m);
    if (form < 0 || op->m.bias || op->m.bias_at || (form == FP8_VARIANT && heads > 1)) return 0;
    int32_t from = heads > 1 ? op->src.width / heads : 0, first = heads > 1 ? op->i[2] : 0;
    if (!float_aligned(&op->m) || op->src.stride % 4 || from % 4 || first % 4 || (uintptr_t)op->src.data % 16) return 0;
    int32_t outputs = op->m.rows / heads, wide = covey_ceil(outputs, 32) * heads * covey_ceil(rows, 16) * 2 >= d->multiprocessors;
    int32_t tile = !wide ? TILE_SMALL : rows == 1 ? TILE_ONE : rows <= 4 ? TILE_FOUR : TILE_MANY;
    tile = tile_within(tile, &op->m, d);
    static const int32_t kernels[] = {COVEY_K_floats_small_f32, COVEY_K_floats_one_f32, COVEY_K_floats_four_f32, COVEY_K_floats_many_f32};
    at = put(at, kernels[tile] + form, op, covey_ceil(rows, float_tiles[tile].rows), covey_ceil(outputs, float_tiles[tile].outs), heads, float_tiles[tile].threads, float_memory(tile, &op->m));
    at[-1].more[0] = check;
    return early(at, d);
  }
  int32_t v = op->kind == CANON_OP_MATMUL ? variant(&op->m) : -1, used;
  if (v < 0) return 0;
  covey_rows f = {.src = op->src, .made = COVEY_CODES};
  covey_launch *few = row_products(op, 1, &f, b, d, &used, at);
  if (few) return few;
  if (many_memory(&op->m, 4) > d->shared) return 0;
  return put(at, COVEY_K_matmul_many_int4_g32 + v, op, covey_ceil(op->m.rows, 128), covey_ceil(rows, 64), 1, 256, many_memory(&op->m, 4));
}

// Experts of few rows each, as experts_few.cu takes them: two blocks a multiprocessor where their rings have room for two slots a warp,
// or one.
static covey_launch *experts_few(const canon_op *op, const canon_record *r, int32_t routed, int32_t rows, int32_t k, int32_t items, const covey_place *d, covey_launch *at, int32_t v) {
  int32_t most = at_most(rows, COVEY_FEW_ROWS) > 8 ? COVEY_FEW_ROWS : 8, passes = items + rows * k / most;
  for (int32_t down = 0; down < 2; down++) {
    const canon_matrix *m = down ? &r->down : &r->gate;
    int32_t slot = CANON_SEGMENT / m->group * covey_block(m->form, m->group, m->scale_form), each = 2, shared, slots;
    int32_t fixed;
    for (;; each--) {
      if (!each) return 0;
      fixed = covey_few_of(m->group, m->groups * m->group, slot, most, 0, covey_few_passes(passes, each * d->multiprocessors)).bytes;
      shared = (d->shared + 1024) / each - 1024;               // a block takes 1 KiB more than it asks for
      slots = at_most((shared - fixed) / slot, COVEY_FEW_SLOTS) / COVEY_FEW_WARPS * COVEY_FEW_WARPS;
      if (slots >= 2 * COVEY_FEW_WARPS || (each == 1 && slots >= COVEY_FEW_WARPS)) break;
    }
    at = early(put(at, (down ? COVEY_K_down_few_int4_g32 : COVEY_K_up_few_int4_g32) + v, op, each * d->multiprocessors, 1, 1, COVEY_FEW_THREADS, fixed + slots * slot), d);
    at[-1].more[0] = routed;
    at[-1].more[1] = most | slots << 8;
  }
  return at;
}

covey_launch *covey_fast_experts(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t routed, covey_launch *at) {
  const canon_record *r = routed ? &op->routed : &op->shared;
  int32_t v = variant_of_record(r), rows = rows_of(b, op->dst.logits);
  covey_launch *few;
  if (!(d->fast & COVEY_FAST_EXPERTS) || v < 0) return 0;
  int32_t k = routed ? op->i[1] : 1, experts = routed ? op->i[0] : 1, items = at_most(experts, rows * k), mw = r->gate.group == 128 ? 8 : 4;
  if ((d->fast & COVEY_FAST_FEW) && rows * k <= FEW_AN_EXPERT * experts && (few = experts_few(op, r, routed, rows, k, items, d, at, v))) return few;
  if (many_memory(&r->gate, mw) > d->shared || many_memory(&r->down, 4) > d->shared) return 0;
  // Every item has one column tile begun; the others are full.
  at = put(at, COVEY_K_up_many_int4_g32 + v, op, covey_ceil(r->gate.rows, 16 * mw), items + rows * k / (256 / mw), 1, 256, many_memory(&r->gate, mw));
  at[-1].more[0] = routed;
  at = put(at, COVEY_K_down_many_int4_g32 + v, op, covey_ceil(r->down.rows, 128), items + rows * k / 64, 1, 256, many_memory(&r->down, 4));
  at[-1].more[0] = routed;
  return at;
}

// ---- float experts -----------------------------------------------------------------------------------------------------

covey_launch *covey_float_experts(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t routed, covey_launch *at) {
  const canon_record *r = routed ? &op->routed : &op->shared;
  int32_t v = float_variant(&r->gate), rows = rows_of(b, op->dst.logits), k = routed ? op->i[1] : 1, experts = routed ? op->i[0] : 1;
  if (!(d->fast & COVEY_FAST_EXPERTS) || v < 0 || float_variant(&r->up) != v || float_variant(&r->down) != v) return 0;
  if (!float_aligned(&r->gate) || !float_aligned(&r->down) || op->src.stride % 4 || r->gate.rows % 4 || (uintptr_t)op->src.data % 16) return 0;
  int32_t items = at_most(experts, rows * k), tile = rows == 1 ? TILE_ONE : rows * k <= 4 * experts ? TILE_FOUR : TILE_MANY;
  tile = tile_within(tile, &r->gate, d);
  int32_t blocks = at_most(covey_ceil(rows, float_tiles[tile].rows), MOST_ROW_BLOCKS), outs = float_tiles[tile].outs;
  static const int32_t up[] = {0, COVEY_K_float_up_one_f32, COVEY_K_float_up_four_f32, COVEY_K_float_up_many_f32};
  static const int32_t down[] = {0, COVEY_K_float_down_one_f32, COVEY_K_float_down_four_f32, COVEY_K_float_down_many_f32};
  at = early(put(at, up[tile] + v, op, blocks, covey_ceil(2 * r->gate.rows, outs), items, 256, float_memory(tile, &r->gate)), d);
  at[-1].more[0] = routed;
  at = early(put(at, down[tile] + v, op, blocks, covey_ceil(r->down.rows, outs), items, 256, float_memory(tile, &r->down)), d);
  at[-1].more[0] = routed;
  return at;
}

// ---- attention ---------------------------------------------------------------------------------------------------------

covey_launch *covey_latent_blocks(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *at) {
  int32_t dim = op->kv.dim, n = op->i[3], size = covey_form_bytes(op->kv.form);
  int64_t keys = CANON_BLOCK * (64 * (int64_t)size + 16), some = 32 * (int64_t)n * size, shared = 16 * (int64_t)dim + 2 * (keys > some ? keys : some);   // as latent.cu
  if (!(d->fast & COVEY_FAST_ATTENTION) || op->i[4] || op->i[6] || !b->split || op->i[1] % 4 || dim % 8 || n % 32 || n > 512 || shared > d->shared) return 0;
  return early(put(at, COVEY_K_attend_latent_f32 + op->kv.form, op, op->i[1] / 4, b->blocks, b->rows, 256, shared), d);
}

covey_launch *covey_fast_attention(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t quantised, covey_launch *at) {
  int32_t group = op->i[1] / op->kv.heads, dim = op->kv.dim, form = op->kv.form;
  if (!(d->fast & COVEY_FAST_ATTENTION) || op->i[4] || op->i[6]) return 0;
  if (op->kv.single) {
    if (!(at = covey_latent_blocks(op, b, d, at))) return 0;
    at = early(put(at, COVEY_K_attend_fold, op, op->i[1], b->rows, 1, op->i[3], 0), d);
    at[-1].more[0] = quantised;
    return at;
  }
  if (op->i[3] != dim) return 0;
  int64_t keys = (int64_t)CANON_BLOCK * dim * covey_form_bytes(form), room = d->shared - (35 << 10);   // beside what the kernel declares
  if ((d->fast & COVEY_FAST_BLOCKS) && b->split && dim <= 256 && dim % 32 == 0 && keys <= room) {
    // As many query heads a block as share keys, unless that leaves multiprocessors without one.
    static const int32_t kernels[] = {COVEY_K_attend_blocks1_f32, COVEY_K_attend_blocks2_f32, COVEY_K_attend_blocks4_f32, COVEY_K_attend_blocks8_f32};
    int32_t many = b->blocks * b->rows, log = group % 4 ? group % 2 == 0 : 2;
    if (group % 8 == 0 && op->i[1] / 8 * many >= 2 * d->multiprocessors) log = 3;
    int32_t blocks = (op->i[1] >> log) * many, both = 2 * keys <= room && blocks <= d->multiprocessors;
    at = early(put(at, kernels[log] + form, op, op->i[1] >> log, b->blocks, b->rows, 256, both ? 2 * keys : keys), d);
    at[-1].more[0] = both;
    at = early(put(at, COVEY_K_attend_fold, op, op->i[1], b->rows, 1, dim, 0), d);
    at[-1].more[0] = quantised;
    return at;
  }
  int64_t tile = (dim * 128 + 2 * 2048 + 8 * (16 * 260 + 4)) * 4;   // attend_tile_memory of tiles.cu
  int fours = op->src.stride % 4 == 0 && op->dst.stride % 4 == 0 && (uintptr_t)op->src.data % 16 == 0 && (uintptr_t)op->dst.data % 16 == 0;
  if (quantised || (dim != 64 && dim != 128) || group > 128 || b->split || !fours || tile > d->shared) return 0;
  return put(at, (dim == 64 ? COVEY_K_attend_tiles64_f32 : COVEY_K_attend_tiles128_f32) + form, op, covey_ceil(b->rows, 128 / group), op->kv.heads, 1, 256, tile);
}

// Norms of heads, rotation, cache: [norm of q] [norm of k] rope of q, rope of k [norm of q] [norm of k] append. Returns how many
// operations that is, 0 if o is not such a sequence.
static int32_t match_heads(const canon_op *o, int32_t n, covey_heads *f) {
  int32_t i = 0, r = 0;
  while (r < n && r < 3 && o[r].kind == CANON_OP_NORM) r++;
  if (r > 2 || r + 2 > n || o[r].kind != CANON_OP_ROPE || o[r + 1].kind != CANON_OP_ROPE) return 0;
  const canon_op *q = &o[r], *k = &o[r + 1];
  int32_t dim = q->dst.width / q->i[0];
  *f = (covey_heads){.q = q->dst, .k = k->dst, .heads = q->i[0], .rot = q->i[1], .pairing = q->i[2], .offset = q->i[3], .angles = q->i[4]};
  if (dim > HEAD_DIM || dim % 32 || k->dst.width != k->i[0] * dim || q->i[5] || k->i[5]) return 0;
  for (int32_t j = 1; j < 5; j++) if (q->i[j] != k->i[j]) return 0;
  for (i = 0; i < n && i < r + 4; i++) {
    if (i == r || i == r + 1) continue;
    if (o[i].kind != CANON_OP_NORM) break;
    const canon_op *head = same(&o[i].dst, &q->dst) ? q : same(&o[i].dst, &k->dst) ? k : 0;
    if (!head || !same(&o[i].src, &o[i].dst) || o[i].i[0] != head->i[0] || !o[i].vec) return 0;
    if (i > r && r > 0) return 0;                            // norms on both sides
    if ((f->q_norm || f->k_norm) && (f->eps != o[i].f[0] || f->plus_one != o[i].i[1])) return 0;
    if (head == q ? f->q_norm != 0 : f->k_norm != 0) return 0;
    if (head == q) f->q_norm = o[i].vec; else f->k_norm = o[i].vec;
    f->eps = o[i].f[0];
    f->plus_one = o[i].i[1];
    f->late = i > r;
  }
  if (i >= n || i < r + 2 || o[i].kind != CANON_OP_KV_APPEND || !same(&o[i].src, &k->dst) || o[i].kv.single || o[i].kv.dim != dim || o[i].kv.heads != k->i[0]) return 0;
  f->v = o[i].src2;
  f->layer = o[i].i[0];
  f->label = o[i].label;
  f->kv = o[i].kv;
  return i + 1;
}

// ---- one row through the attention half of a layer ----------------------------------------------------------------------

// Whether attend_row.cu attends so: heads of 64 or 128 channels in f16, every position within the window.
static int attends_row(const canon_op *op) {
  return op->kv.form == CANON_F16 && !op->kv.single && (op->kv.dim == 64 || op->kv.dim == 128) && op->i[3] == op->kv.dim && op->i[1] % op->kv.heads == 0 && !op->i[4] && !op->i[6] && !op->i[7];
}

// Query heads that a unit of attention takes: several save reads of the cache where there are units enough.
static int32_t heads_together(int32_t group, int32_t units, const covey_place *d) {
  int32_t together = 4;
  while (together > 1 && (group % together || 8 * units / together < 3 * d->multiprocessors)) together /= 2;
  return together;
}

// norm, quantisation, queries, keys, values, what heads_ready does, attention, quantisation, output product, sum. Returns how many
// operations that is; 0 if o is no such sequence or there is no kernel for it.
static int32_t match_attend_row(const canon_op *o, int32_t n, const covey_bucket *b, const covey_place *d, covey_attend *a, int32_t *kernel, int64_t *shared) {
  if (n < 12 || !(d->fast & COVEY_FAST_ATTEND_ROW) || b->rows != 1 || o[0].dst.logits || o[1].kind != CANON_OP_QUANTISE) return 0;
  int32_t v = variant(&o[2].m), scales = o[2].m.scale_form, k;
  if (v < 0 || v > 2 || scales == CANON_F32 || !o[0].vec || o[0].src.width % 8) return 0;
  *a = (covey_attend){.hidden = o[0].src.width, .x = o[0].src.data, .norm = o[0].vec, .eps = o[0].f[0], .plus_one = o[0].i[1]};
  if (!(k = match_heads(o + 5, n - 5, &a->heads)) || 5 + k + 4 > n) return 0;
  const covey_heads *h = &a->heads;
  const canon_buffer *parts[3] = {&h->q, &h->k, &h->v};
  for (int32_t i = 0; i < 3; i++) {
    const canon_op *m = &o[2 + i];
    if (m->kind != CANON_OP_MATMUL || variant(&m->m) != v || m->m.bias || m->m.scale_form != scales || !same(&m->src, &o[0].dst) || !same(&m->dst, parts[i])) return 0;
    a->weights[i] = m->m.codes;
    a->bias[i] = m->vec;
  }
  const canon_op *attention = &o[5 + k], *quantise = attention + 1, *product = attention + 2, *sum = attention + 3;
  int32_t dim = h->kv.dim, group = product->m.group;
  if (attention->kind != CANON_OP_ATTENTION || !attends_row(attention) || !attention->state || quantise->kind != CANON_OP_QUANTISE || product->kind != CANON_OP_MATMUL || sum->kind != CANON_OP_ADD) return 0;
  if (!same(&attention->src, &h->q) || attention->i[0] != h->layer || attention->i[1] != h->heads || attention->kv.data != h->kv.data || dim % group) return 0;
  if (!same(&o[1].src, &o[0].dst) || !same(&quantise->src, &attention->dst) || !same(&product->src, &attention->dst) || !same(&sum->src, &product->dst)) return 0;
  if (variant(&product->m) != v || product->m.bias || product->m.scale_form != scales || sum->dst.data != o[0].src.data || sum->dst.width != a->hidden) return 0;
  const canon_buffer *inside[] = {&o[0].dst, parts[0], parts[1], parts[2], &attention->dst, &product->dst};
  for (int32_t i = 0; i < 6; i++) if (covey_is_read(sum + 1, (int32_t)(o + n - sum - 1), inside[i])) return 0;
  a->output = product->m.codes;
  a->output_bias = product->vec;
  a->scale = attention->f[0];
  a->window = attention->i[2];
  a->sinks = attention->vec;
  a->y = sum->dst.data;
  a->exchange = attention->state;
  a->blocks = covey_ceil(b->pages, 4);
  a->finished = (uint32_t *)(a->exchange + covey_exchange(attention, b->pages));
  a->together = heads_together(h->heads / h->kv.heads, b->blocks * h->heads, d);
  // Half of a multiprocessor's shared memory, so that a block stands beside one of the launch before, if that holds all that a block
  // reads of queries, keys and values; otherwise a longer ring is worth more.
  int32_t slot = CANON_SEGMENT / group * covey_block(CANON_INT4, group, scales), most = at_most(d->shared, 113 << 10);
  if (!covey_attend_sizes(a, group, slot, d->multiprocessors, most) || a->at.slots < covey_ceil(a->tiles, d->multiprocessors) * a->s1)
    if (!covey_attend_sizes(a, group, slot, d->multiprocessors, most = d->shared)) return 0;
  if (a->outputs > 32 * d->multiprocessors) return 0;
  *shared = most;
  *kernel = (dim == 64 ? COVEY_K_attend_row_d64_int4_g32_f16 : COVEY_K_attend_row_d128_int4_g32_f16) + 2 * v + (scales == CANON_BF16);
  return (int32_t)(sum + 1 - o);
}

// ---- routers -----------------------------------------------------------------------------------------------------------

// What router.cuh knows of a router; 0 if it does not.
static int32_t routes(const canon_op *op, const covey_place *d, covey_moe *m) {
  if (op->i[0] > 3 || op->table || op->i[1] > MOST_EXPERTS || op->i[2] > MOST_CHOSEN || op->i[3] > 32) return 0;
  m->experts = op->i[1]; m->k = op->i[2];
  m->bias = op->vec; m->score = op->i[0]; m->groups = op->i[3]; m->keep = op->i[4]; m->largest_only = op->i[5]; m->normalise = op->i[6];
  m->first_ban = op->i[7]; m->label = op->label; m->sum_eps = op->f[0]; m->least = op->f[1]; m->scale = op->f[2];
  m->step = &d->program->step; m->ids = op->ids; m->weights = op->weights;
  return 1;
}

covey_launch *covey_fast_router(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *at) {
  covey_moe m = {.hidden = op->src.stride, .x = op->src.data};
  if (!(d->fast & COVEY_FAST_PRODUCTS) || !routes(op, d, &m)) return 0;
  at = launch(at, COVEY_K_route, op->label, b->rows, 1, 1, 128, 0);   // ROUTE_WARPS of route.cu
  at[-1].argument.moe = m;
  return early(at, d);
}

// ---- one row through a Mixture-of-Experts layer ------------------------------------------------------------------------

int64_t covey_exchange(const canon_op *op, int32_t pages) {
  if (op->kind == CANON_OP_ATTENTION && op->kv.single) return op->i[6] && !op->i[7] ? 0 : COVEY_LATENT_BLOCKS * COVEY_LATENT_INBOX;
  if (op->kind == CANON_OP_ATTENTION) return !attends_row(op) ? 0 : covey_attend_exchange(op->i[1], op->kv.heads, op->kv.dim, covey_ceil(pages, 4));
  covey_moe m = {.hidden = op->dst.width, .inner = op->routed.gate.rows, .shared_inner = op->shared_block ? op->shared.gate.rows : 0, .experts = op->i[0], .k = op->i[1]};
  int32_t group = op->routed.gate.group;
  return group ? 2 * (int64_t)covey_moe_half(&m, group) : 0;
}

// norm, product of the router, router, quantisation, experts [, sum]. Returns how many operations that is; 0 if o is no such
// sequence or there is no kernel for it.
static int32_t match_moe_row(const canon_op *o, int32_t n, const covey_place *d, covey_moe *m, int32_t *kernel, int64_t *shared) {
  if (n < 5 || !(d->fast & COVEY_FAST_ROW) || d->spread || o[1].kind != CANON_OP_MATMUL || o[2].kind != CANON_OP_ROUTER || o[3].kind != CANON_OP_QUANTISE || o[4].kind != CANON_OP_FFN) return 0;
  const canon_op *norm = &o[0], *dot = &o[1], *router = &o[2], *ffn = &o[4];
  const canon_record *r = &ffn->routed;
  int32_t v = variant_of_record(r), scales = r->gate.scale_form;
  if (v < 0 || v > 2 || scales == CANON_F32 || biased(r) || ffn->i[2] != CANON_SWIGLU || !ffn->table || ffn->src2.data || !ffn->state) return 0;
  if (ffn->shared_block && (variant_of_record(&ffn->shared) != v || biased(&ffn->shared) || ffn->shared.gate.scale_form != scales)) return 0;
  if (!same(&dot->src, &norm->dst) || !same(&o[3].src, &norm->dst) || !same(&ffn->src, &norm->dst) || !same(&router->src, &dot->dst)) return 0;
  if (!norm->vec || dot->m.group || dot->m.form > CANON_BF16 || dot->m.bias || dot->m.bias_at || dot->vec || norm->dst.logits) return 0;
  if (norm->src.width % 8 || router->ids != ffn->ids) return 0;
  *m = (covey_moe){
      .hidden = norm->src.width, .inner = r->gate.rows, .x = norm->src.data, .norm = norm->vec, .eps = norm->f[0], .plus_one = norm->i[1], .y = ffn->dst.data,
      .router = dot->m.codes, .router_form = dot->m.form, .table = ffn->table, .gate_at = r->gate.codes_at, .up_at = r->up.codes_at, .down_at = r->down.codes_at, .exchange = (uint32_t *)ffn->state,
  };
  if (!routes(router, d, m)) return 0;
  m->finished = m->exchange + covey_exchange(ffn, 0);
  if (ffn->shared_block) {
    m->shared = ffn->shared_block;
    m->shared_inner = ffn->shared.gate.rows;
    m->shared_gate_at = ffn->shared.gate.codes_at; m->shared_up_at = ffn->shared.up.codes_at; m->shared_down_at = ffn->shared.down.codes_at;
  }
  int32_t group = r->gate.group, slot = CANON_SEGMENT / group * covey_block(CANON_INT4, group, scales);
  // Half of a multiprocessor's shared memory (a block takes 1 KiB more than it asks for), so that the next launch's block fits
  // beside this one, unless that leaves too short a ring.
  *shared = (d->shared + 1024) / 2 - 1024;
  if (covey_moe_sized(m, group, slot, d->multiprocessors, (int32_t)*shared) < 8) {
    *shared = d->shared;
    if (covey_moe_sized(m, group, slot, d->multiprocessors, d->shared) < 4) return 0;
  }
  *kernel = COVEY_K_moe_row_int4_g32_f16 + 2 * v + (scales == CANON_BF16);
  if (n > 5 && o[5].kind == CANON_OP_ADD && same(&o[5].src, &ffn->dst) && o[5].dst.data == norm->src.data) {
    m->y = o[5].dst.data;
    m->residual = norm->src.data;
    return 6;
  }
  return 5;
}

// ---- a step ------------------------------------------------------------------------------------------------------------

int32_t covey_most_launches(const canon_op *ops, int32_t n) {
  int32_t most = 0;
  for (int32_t i = 0; i < n; i++) most += ops[i].kind == CANON_OP_FFN || ops[i].kind == CANON_OP_ATTENTION || ops[i].kind == CANON_OP_INDEX ? MOST_LAUNCHES : 2;
  return most;
}

// Launches of the operations from o on that have one together; *used is how many operations that is. skip: an operation further
// on whose work is done as well.
static covey_launch *fuse(const canon_op *o, int32_t n, const covey_bucket *b, const covey_place *d, int32_t *used, const canon_op **skip, covey_launch *at) {
  covey_heads heads;
  covey_launch *to;
  int32_t k;
  *used = 0;
  if (!(d->fast & COVEY_FAST_PRODUCTS)) return 0;
  if ((to = covey_latent_row(o, n, b, d, used, at))) return to;
  if (!o->dst.logits && b->rows < 65536 && (o->kind == CANON_OP_NORM || o->kind == CANON_OP_ROPE) && (k = match_heads(o, n, &heads))) {
    *used = k;
    at = launch(at, COVEY_K_heads_ready, o->label, covey_ceil(heads.heads + 2 * heads.kv.heads, HEAD_WARPS), b->rows, 1, HEAD_WARPS * 32, 0);
    at[-1].argument.heads = heads;
    return early(at, d);
  }
  int32_t gather = o->kind == CANON_OP_GATHER && n > 1 && o[1].kind == CANON_OP_NORM && same(&o[1].src, &o[0].dst) && same(&o[1].dst, &o[0].dst);
  const canon_op *norm = o + gather;
  if (norm->kind == CANON_OP_NORM && norm->i[0] == 1 && norm->dst.width % 8 == 0 && norm->dst.width <= 12288) {
    covey_moe moe;
    int32_t kernel, rows = rows_of(b, norm->dst.logits);
    int64_t shared;
    covey_attend attend;
    if (!gather && (k = match_attend_row(o, n, b, d, &attend, &kernel, &shared))) {
      *used = k;
      at = launch(at, kernel, o->label, d->multiprocessors, 1, 1, 9 * 32, shared);   // ATTEND_WARPS and one that copies
      at[-1].argument.attend = attend;
      return early(at, d);
    }
    if (!gather && b->rows == 1 && (k = match_moe_row(o, n, d, &moe, &kernel, &shared))) {
      *used = k;
      at = launch(at, kernel, o->label, d->multiprocessors, 1, 1, (8 + 1 + 1 + 2) * 32, shared);   // MOE_ALL of experts_row.cu
      at[-1].argument.moe = moe;
      return early(at, d);
    }
    covey_rows f = {.src = o->src, .normed = norm->dst, .norm = norm->vec, .eps = norm->f[0], .plus_one = norm->i[1], .made = COVEY_NORMED, .logits = norm->dst.logits, .gather = gather};
    const canon_op *next = norm + 1, *end = o + n;
    if (next + 1 < end && next->kind == CANON_OP_QUANTISE && same(&next->src, &norm->dst)) {
      f.group = next->i[0];
      // A row normed in place stays as it is if the products are all that reads it; logit rows may be brought to the host.
      const canon_op *behind = next + 1;
      while (behind < end && behind->kind == CANON_OP_MATMUL && same(&behind->src, &norm->dst)) behind++;
      covey_rows inside = f;
      if ((d->fast & COVEY_FAST_ATTEND_ROW) && rows == 1 && !norm->dst.logits && !covey_is_read(behind, (int32_t)(end - behind), &norm->dst)) inside.normed.data = 0;
      if (inside.normed.data != o->src.data && (to = row_products(next + 1, (int32_t)(end - next - 1), &inside, b, d, &k, at))) {
        *used = gather + 2 + k;
        return to;
      }
    }
    // Its quantisation may come behind float products of the same rows and their router.
    f.group = 0;
    for (const canon_op *q = next; q < end; q++) {
      if (q->kind == CANON_OP_QUANTISE && same(&q->src, &norm->dst)) { f.group = q->i[0]; *skip = q; break; }
      if (q->kind != CANON_OP_ROUTER && !(q->kind == CANON_OP_MATMUL && q->m.group == 0 && same(&q->src, &norm->dst))) break;
    }
    *used = gather + 1;
    at = launch(at, COVEY_K_norm_codes, norm->label, rows, 1, 1, 256, 4 * (int64_t)norm->dst.width);
    at[-1].argument.rows = f;
    return early(at, d);
  }
  if (o->kind == CANON_OP_QUANTISE && n > 1 && o->src.width % 8 == 0) {
    covey_rows f = {.src = o->src, .group = o->i[0], .made = COVEY_VALUES};
    if (!same(&o[1].src, &o->src) || !(to = row_products(o + 1, n - 1, &f, b, d, &k, at))) return 0;
    *used = 1 + k;
    return to;
  }
  if (o->kind == CANON_OP_MATMUL && o->m.group) {
    covey_rows f = {.src = o->src, .made = COVEY_CODES};
    to = row_products(o, n, &f, b, d, &k, at);
    *used = to ? k : 0;
    return to;
  }
  if (o->kind == CANON_OP_MATMUL && n > 1 && o[1].kind == CANON_OP_CHECK && same(&o[1].src, &o->dst)) {
    if (o->m.group || !(to = covey_fast_product(o, b, d, o[1].label + 1, at))) return 0;
    *used = 2;
    return to;
  }
  if (o->kind == CANON_OP_ATTENTION && b->split && n > 1 && o[1].kind == CANON_OP_QUANTISE && same(&o[1].src, &o->dst) && o->i[3] % o[1].i[0] == 0) {
    if (!(to = covey_fast_attention(o, b, d, o[1].i[0], at))) return 0;
    *used = 2;
    return to;
  }
  if (o->kind == CANON_OP_FFN && o->table && !d->spread && o->dst.width % 4 == 0 && n > 1 && o[1].kind == CANON_OP_ADD && same(&o[1].src, &o->dst)) {
    if ((k = covey_plan_one(o, b, d, at)) < 0) return 0;
    at += k;
    at[-1].kernel = COVEY_K_combine_sum;                     // in place of covey_combine, the last one
    at[-1].grid[1] = (uint32_t)covey_ceil(o->dst.width, 4 * ROW_THREADS);
    at[-1].argument.combination = (covey_combination){.op = *o, .sum = o[1].dst};
    *used = 2;
    return early(at, d);
  }
  return 0;
}

int32_t covey_plan(const canon_op *ops, int32_t n, const covey_bucket *b, const covey_place *d, covey_launch *out) {
  covey_launch *at = out;
  const canon_op *skip = 0;
  for (int32_t i = 0; i < n;) {
    int32_t used;
    if (ops + i == skip) { i++; continue; }
    covey_launch *to = fuse(ops + i, n - i, b, d, &used, &skip, at);
    if (to) { at = to; i += used; continue; }
    int32_t k = covey_plan_one(ops + i, b, d, at);
    if (k < 0) return -1 - i;
    at += k;
    i++;
  }
  return (int32_t)(at - out);
}
