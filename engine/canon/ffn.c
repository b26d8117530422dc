// Gated feed-forward blocks: the shared expert with all rows and each routed expert with the rows that chose it are items of
// the same two phases, cut into blocks of rows whose inputs stay in the cache while the weights stream by. Up: gate, up, silu,
// product and quantisation of one piece of the inner width. Down: some output tiles.
// Routed outputs wait in scratch, one row a (row, rank), for the combination in rank order (rule 9).
#include <string.h>
#include "canon.h"
#include "packed.h"
#include "program.h"

enum { INNER_MOST = 128 };

// Inner columns of one chunk: whole groups of the down matrix, or 32.
static int32_t piece(const canon_record *r) { return r->down.group > 32 ? r->down.group : 32; }

static void needs(canon_program *p, const canon_record *r, int which) {
  int32_t inner = r->gate.rows;
  canon_halves(p, &r->gate);
  canon_halves(p, &r->up);
  canon_halves(p, &r->down);
  if (r->down.group) {
    int64_t stride = canon_padded(inner, r->down.group);
    p->inner_bytes[which] = canon_at_least(p->inner_bytes[which], stride);
    p->inner_groups[which] = canon_at_least(p->inner_groups[which], stride / r->down.group);
  } else {
    p->inner_floats[which] = canon_at_least(p->inner_floats[which], inner);
  }
}

void canon_ffn_needs(canon_program *p, const canon_op *op) {
  if (op->shared_block) needs(p, &op->shared, 0);
  if (!op->table) { p->experts = canon_at_least(p->experts, 1); return; }
  needs(p, &op->routed, 1);
  p->experts = canon_at_least(p->experts, op->i[0]);
  p->slots = canon_at_least(p->slots, (int64_t)p->rows * op->i[1]);
  p->routed_floats = canon_at_least(p->routed_floats, op->dst.width);
}

static canon_record at(const canon_record *layout, void *block) {
  return (canon_record){canon_matrix_at(layout->gate, block), canon_matrix_at(layout->up, block), canon_matrix_at(layout->down, block)};
}

void canon_ffn_pieces(const canon_op *op, int32_t down, canon_piece pieces[CANON_AHEAD]) {
  if (!op->shared_block) return;
  canon_record r = at(&op->shared, op->shared_block);
  pieces[0] = down ? (canon_piece){r.down.codes, packed_codes_size(&r.down)} : (canon_piece){r.gate.codes, packed_codes_size(&r.gate)};
  if (!down) pieces[1] = (canon_piece){r.up.codes, packed_codes_size(&r.up)};
}

static int64_t chunks_of(const canon_program *p, const canon_item *it, int32_t down) {
  if (!down) return (it->rec.gate.rows + piece(&it->rec) - 1) / piece(&it->rec);
  int32_t per = canon_tiles_per_chunk(&it->rec.down, it->n, p->threads, p->item_n);
  return ((it->rec.down.rows + 15) / 16 + per - 1) / per;
}

// Lists the blocks of n rows of one record, about equal and multiples of four rows; first counts where there are no lists.
static void enlist(canon_program *p, const canon_record *rec, int32_t routed, int32_t n, const int32_t *rows, const int32_t *slots) {
  int32_t blocks = (n - 1) / CANON_ROW_BLOCK + 1, size = ((n + blocks - 1) / blocks + 3) & ~3;
  for (int32_t i = 0; i < n; i += size)
    p->items[p->item_n++] = (canon_item){.rec = *rec, .routed = routed, .n = n - i < size ? n - i : size, .first = i, .rows = rows ? rows + i : 0, .slots = slots ? slots + i : 0};
}

// Sorts (row, rank) pairs by expert, rows ascending, and lists the experts that are needed.
static void group(canon_program *p, const canon_op *op) {
  int32_t rows = canon_rows_of(p, op->dst.logits), k = op->i[1], experts = op->i[0], *count = p->count;
  p->item_n = 0;
  if (op->shared_block) {
    canon_record rec = at(&op->shared, op->shared_block);
    enlist(p, &rec, 0, rows, 0, 0);
  }
  if (!op->table) return;
  memset(count, 0, (size_t)(experts + 1) * 4);
  for (int32_t r = 0; r < rows; r++)
    for (int32_t i = 0; i < k; i++) {
      int32_t id = op->ids[(int64_t)r * k + i];
      if (id < 0) continue;
      if (!op->table[id]) { canon_fault(p, 0, r, CANON_FAULT_MISSING, op->label); continue; }
      count[id]++;
    }
  int32_t start = 0;
  for (int32_t e = 0; e < experts; e++) {
    int32_t n = count[e];
    count[e] = start;
    if (n == 0) continue;
    canon_record rec = at(&op->routed, op->table[e]);
    enlist(p, &rec, 1, n, p->order_row + start, p->order_slot + start);
    start += n;
  }
  for (int32_t r = 0; r < rows; r++)
    for (int32_t i = 0; i < k; i++) {
      int32_t slot = r * k + i, id = op->ids[slot];
      if (id < 0 || !op->table[id]) continue;
      p->order_row[count[id]] = r;
      p->order_slot[count[id]++] = slot;
    }
}

void canon_ffn_prepare(canon_program *p, const canon_op *op, int32_t down, int64_t *chunks) {
  if (!down) group(p, op);
  for (int32_t i = 0; i < p->item_n; i++) p->chunks[i] = chunks_of(p, &p->items[i], down);
  *chunks = canon_spread(p, p->item_n);
}

static canon_codes inner_codes(const canon_program *p, const canon_item *it) {
  canon_codes c = p->inner[it->routed];
  c.stride = canon_padded(it->rec.down.cols, it->rec.down.group);
  c.groups = it->rec.down.groups;
  return c;
}

void canon_ffn_up(canon_program *p, const canon_op *op, int64_t chunk) {
  canon_place place = canon_find(p, chunk);
  const canon_item *it = &p->items[place.list];
  const canon_matrix *gate = &it->rec.gate, *up = &it->rec.up, *down = &it->rec.down;
  int32_t width = piece(&it->rec), c0 = (int32_t)place.chunk * width, cols = gate->rows - c0 < width ? gate->rows - c0 : width;
  float g[CANON_ROW_BLOCK * INNER_MOST] __attribute__((aligned(64))), u[CANON_ROW_BLOCK * INNER_MOST] __attribute__((aligned(64)));
  canon_codes h = inner_codes(p, it);
  canon_rows r = {.n = it->n, .in0 = it->first, .in = it->rows, .codes = p->codes,
                  .x = op->src.data, .x_stride = op->src.stride, .y = g, .y_stride = width, .col0 = c0, .bias = gate->bias};
  r.codes.stride = canon_padded(gate->cols, gate->group);
  r.codes.groups = gate->groups;
  p->k->product(gate, c0 / 16, (cols + 15) / 16, &r);
  r.y = u;
  r.bias = up->bias;
  p->k->product(up, c0 / 16, (cols + 15) / 16, &r);
  for (int32_t i = 0; i < it->n; i++) {
    int64_t slot = it->slots ? it->slots[i] : it->first + i;
    float *a = g + (int64_t)i * width;
    if (!down->group) {
      p->k->gated(op->i[2], op->f[0], p->inner_float[it->routed] + slot * down->cols + c0, a, u + (int64_t)i * width, cols);
      continue;
    }
    p->k->gated(op->i[2], op->f[0], a, a, u + (int64_t)i * width, cols);
    p->k->quantise(a, cols, down->group, h.q + slot * h.stride + c0, h.scale + slot * h.groups + c0 / down->group, h.less8 + slot * h.groups + c0 / down->group,
                   h.half ? h.half + slot * h.groups + c0 / down->group : 0);
  }
}

void canon_ffn_down(canon_program *p, const canon_op *op, int64_t chunk) {
  canon_place place = canon_find(p, chunk);
  const canon_item *it = &p->items[place.list];
  const canon_matrix *down = &it->rec.down;
  int32_t per = canon_tiles_per_chunk(down, it->n, p->threads, p->item_n), tiles = (down->rows + 15) / 16, t = (int32_t)place.chunk * per;
  canon_rows r = {.n = it->n, .in0 = it->first, .out0 = it->first, .in = it->slots, .out = it->slots, .codes = inner_codes(p, it), .x = p->inner_float[it->routed], .x_stride = down->cols,
                  .y = it->routed ? p->routed_out : op->dst.data, .y_stride = it->routed ? op->dst.width : op->dst.stride, .bias = down->bias};
  p->k->product(down, t, tiles - t < per ? tiles - t : per, &r);
}
