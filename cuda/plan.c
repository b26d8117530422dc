//go:build cuda

// Which kernels an operation becomes. One place for geometry, so that a kernel and its launches are changed together.
#include <string.h>
#include "launches.h"

#define X(name) "covey_" #name,
static const char *const names[] = {COVEY_PLAIN(X) COVEY_FAST(X)};
#undef X
const char *covey_kernel_name(int32_t kernel) { return names[kernel]; }
int32_t covey_kernel_family(int32_t kernel) {
  if (kernel < COVEY_PLAIN_COUNT) return 0;
  if (kernel < COVEY_K_up_many_int4_g32) return COVEY_FAST_PRODUCTS;
  if (kernel < COVEY_K_attend_blocks1_f32) return COVEY_FAST_EXPERTS;
  if (kernel < COVEY_K_attend_tiles64_f32) return COVEY_FAST_BLOCKS;
  if (kernel < COVEY_K_moe_row_int4_g32_f16) return COVEY_FAST_ATTENTION;
  if (kernel < COVEY_K_attend_row_d64_int4_g32_f16) return COVEY_FAST_ROW;
  return kernel < COVEY_K_up_few_int4_g32 ? COVEY_FAST_ATTEND_ROW : COVEY_FAST_FEW;
}

static int known(const canon_matrix *m) { return m->form >= CANON_F32 && m->form <= CANON_MXFP4; }
static int known_record(const canon_record *r) { return known(&r->gate) && known(&r->up) && known(&r->down); }

// ---- sequences ---------------------------------------------------------------------------------------------------------

// Most blocks of keys that a row attends where its positions lie in `blocks` of them.
static int32_t attended_blocks(const canon_op *op, int32_t blocks) {
  int32_t listed = op->i[6] ? blocks * CANON_BLOCK / op->i[6] : 0;
  if (op->i[4] && op->i[4] < listed) listed = op->i[4];
  return (op->i[7] ? 0 : blocks) + covey_ceil(listed, CANON_BLOCK);
}

// Most keys that an indexer of steps of a bucket sees.
static int32_t indexed_keys(const canon_op *op, const covey_bucket *b) {
  int32_t positions = b->pages * 64, near = b->blocks * CANON_BLOCK;
  return (b->blocks && near < positions ? near : positions) / op->i[3];
}

static covey_launch *indexer(const canon_op *op, const covey_bucket *b, covey_launch *at) {
  canon_op part = *op;
  int32_t keys = indexed_keys(op, b), per = keys > op->i[2] ? b->scored : b->rows;   // without scores nothing is to be kept
  for (part.i[4] = 0; part.i[4] < b->rows; part.i[4] += per) {
    int32_t rows = at_most(per, b->rows - part.i[4]);
    if (keys > op->i[2]) at = put(at, COVEY_K_index_score, &part, covey_ceil(keys, 64), rows, 1, 256, 4 * (65 * (int64_t)op->kv.dim + 64 * (int64_t)op->i[1]));
    at = put(at, COVEY_K_index_select, &part, rows, 1, 1, 512, 0);
  }
  return at;
}

static covey_launch *delta(const canon_op *op, const covey_bucket *b, covey_launch *at) {
  int64_t state = covey_delta_resident(op->i[2], op->i[3]) ? (int64_t)op->i[2] * op->i[3] : 0;
  at = put(at, COVEY_K_delta_mix, op, b->rows, op->i[0], 1, ROW_THREADS, 0);
  return put(at, COVEY_K_delta, op, b->rows, op->i[0] * op->i[1], 1, whole_warps(op->i[3], ROW_THREADS), 4 * (2 * op->i[2] + op->i[3] + state));
}

// ---- operations --------------------------------------------------------------------------------------------------------

static covey_launch *feed_forward(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *at) {
  int32_t rows = rows_of(b, op->dst.logits), k = op->i[1], per = ROW_THREADS / 32;
  covey_launch *fast;
  if (op->shared_block) {
    const canon_record *r = &op->shared;
    int32_t blocks = covey_ceil(rows, PRODUCT_ROWS);
    if ((fast = covey_fast_experts(op, b, d, 0, at)) || (fast = covey_float_experts(op, b, d, 0, at))) {
      at = fast;
    } else {
      at = put(at, COVEY_K_shared_up, op, covey_ceil(r->gate.rows, COVEY_TILE), 1, blocks, PRODUCT_THREADS, 0);
      if (r->down.group) at = put(at, COVEY_K_shared_inner, op, rows, covey_ceil(r->down.groups, per), 1, ROW_THREADS, 0);
      at = put(at, COVEY_K_shared_down, op, covey_ceil(r->down.rows, COVEY_TILE), 1, blocks, PRODUCT_THREADS, 0);
    }
  }
  if (op->table) {
    const canon_record *r = &op->routed;
    int32_t items = at_most(op->i[0], rows * k), blocks = at_most(covey_ceil(rows, PRODUCT_ROWS), MOST_ROW_BLOCKS);
    at = early(put(at, COVEY_K_group, op, 1, 1, 1, 512, 17 * 4 * (int64_t)at_most(op->i[0], 1024)), d);   // GROUP_WARPS and GROUP_EXPERTS of feedforward.cu
    if ((fast = covey_fast_experts(op, b, d, 1, at)) || (fast = covey_float_experts(op, b, d, 1, at))) {
      at = fast;
    } else {
      at = put(at, COVEY_K_routed_up, op, covey_ceil(r->gate.rows, COVEY_TILE), items, blocks, PRODUCT_THREADS, 0);
      if (r->down.group) at = put(at, COVEY_K_routed_inner, op, rows * k, covey_ceil(r->down.groups, per), 1, ROW_THREADS, 0);
      at = put(at, COVEY_K_routed_down, op, covey_ceil(r->down.rows, COVEY_TILE), items, blocks, PRODUCT_THREADS, 0);
    }
    at = put(at, COVEY_K_combine, op, rows, covey_ceil(op->dst.width, ROW_THREADS), 1, ROW_THREADS, 0);
  }
  return at;
}

int32_t covey_plan_one(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *out) {
  covey_launch *at = out, *fast;
  int32_t rows = rows_of(b, op->dst.logits), columns = covey_ceil(op->dst.width, ROW_THREADS);
  switch (op->kind) {
    case CANON_OP_EMBED:
      if (!known(&op->m)) return -1;
      at = put(at, COVEY_K_embed, op, rows, columns, 1, ROW_THREADS, 0);
      break;
    case CANON_OP_NORM: at = put(at, COVEY_K_norm, op, rows, op->i[0], 1, whole_warps(op->dst.width / op->i[0], ROW_THREADS), 0); break;
    case CANON_OP_LAYER_NORM: at = put(at, COVEY_K_layer_norm, op, rows, 1, 1, whole_warps(op->dst.width, ROW_THREADS), 0); break;
    case CANON_OP_QUANTISE:
      rows = rows_of(b, op->src.logits);
      at = put(at, COVEY_K_quantise, op, rows, covey_ceil(covey_ceil(op->src.width, op->i[0]), ROW_THREADS / 32), 1, ROW_THREADS, 0);
      break;
    case CANON_OP_MATMUL:
      if (!known(&op->m)) return -1;
      if ((fast = covey_fast_product(op, b, d, 0, at))) { at = fast; break; }
      at = put(at, COVEY_K_matmul, op, covey_ceil(op->m.rows, COVEY_TILE), covey_ceil(rows, PRODUCT_ROWS), 1, PRODUCT_THREADS, 0);
      break;
    case CANON_OP_HEADS:
      if (!known(&op->m)) return -1;
      if ((fast = covey_fast_product(op, b, d, 0, at))) { at = fast; break; }
      at = put(at, COVEY_K_heads, op, covey_ceil(op->m.rows / op->i[0], COVEY_TILE), covey_ceil(rows, PRODUCT_ROWS), op->i[0], PRODUCT_THREADS, 0);
      break;
    case CANON_OP_COPY: at = put(at, COVEY_K_copy, op, rows, op->i[0], 1, whole_warps(op->i[3], ROW_THREADS), 0); break;
    case CANON_OP_ROPE: at = put(at, COVEY_K_rope, op, rows, op->i[0], 1, whole_warps(op->i[1] / 2, ROW_THREADS), 0); break;
    case CANON_OP_KV_APPEND: at = put(at, COVEY_K_kv_append, op, b->rows, 1, 1, ROW_THREADS, 0); break;
    case CANON_OP_ATTENTION: {
      if ((fast = covey_fast_attention(op, b, d, 0, at))) { at = fast; break; }
      int64_t split = 4 * (int64_t)(CANON_BLOCK + op->kv.dim + op->i[3]), whole = split + 4 * (int64_t)op->i[3];
      if (b->split && b->rows <= COVEY_SPLIT_ROWS) {
        at = put(at, COVEY_K_attend_split, op, rows, op->i[1], attended_blocks(op, b->blocks), CANON_BLOCK, split);
        at = put(at, COVEY_K_attend_join, op, rows, op->i[1], 1, whole_warps(op->i[3], ROW_THREADS), 0);
      } else {
        at = put(at, COVEY_K_attend, op, rows, op->i[1], 1, CANON_BLOCK, whole);
      }
      break;
    }
    case CANON_OP_SWIGLU: case CANON_OP_ADD: case CANON_OP_ADD_SCALED: case CANON_OP_SCALE: case CANON_OP_DIVIDE: case CANON_OP_CLAMP: case CANON_OP_GATE:
      at = put(at, COVEY_K_elementwise, op, rows, columns, 1, ROW_THREADS, 0);
      break;
    case CANON_OP_ROUTER:
      if ((fast = covey_fast_router(op, b, d, at))) { at = fast; break; }
      at = put(at, COVEY_K_router, op, b->rows, 1, 1, whole_warps(op->i[1], ROW_THREADS), 9 * (int64_t)op->i[1] + 5 * op->i[3]);
      break;
    case CANON_OP_FFN:
      if ((op->table && !known_record(&op->routed)) || (op->shared_block && !known_record(&op->shared))) return -1;
      at = feed_forward(op, b, d, at);
      break;
    case COVEY_OP_DRAW: at = put(at, COVEY_K_draw, op, b->logit_rows, 1, 1, 1024, 0); break;
    case CANON_OP_INDEX: at = indexer(op, b, at); break;
    case CANON_OP_POOL: at = put(at, COVEY_K_pool, op, b->rows, covey_ceil(op->dst.width, 64), 1, 64, 0); break;
    case CANON_OP_ENTRY: at = put(at, COVEY_K_entry, op, b->rows, 1, 1, ROW_THREADS, 4 * (int64_t)op->src.width); break;
    case CANON_OP_MIX_IN:
      if (op->i[0] > COVEY_STREAMS) return -1;
      at = put(at, COVEY_K_mix_weights, op, rows, 1, 1, 32, 0);
      at = put(at, COVEY_K_mix_in, op, rows, columns, 1, ROW_THREADS, 0);
      break;
    case CANON_OP_MIX_OUT:
      if (op->i[0] > COVEY_STREAMS) return -1;
      at = put(at, COVEY_K_mix_out, op, rows, covey_ceil(op->src.width, ROW_THREADS), 1, ROW_THREADS, 0);
      break;
    case CANON_OP_DELTA:
      if (op->i[4] > COVEY_TAPS) return -1;
      at = delta(op, b, at);
      break;
    case CANON_OP_GATHER: at = put(at, COVEY_K_gather, op, rows, columns, 1, ROW_THREADS, 0); break;
    case CANON_OP_CHECK: at = put(at, COVEY_K_check, op, rows_of(b, op->src.logits), covey_ceil(op->src.width, ROW_THREADS), 1, ROW_THREADS, 0); break;
    default: return -1;
  }
  return (int32_t)(at - out);
}

static void inner_needs(const canon_record *r, int64_t slots, int32_t which, covey_scratch *s) {
  s->inner[which] = at_least(s->inner[which], slots * r->gate.rows);
  s->inner_codes[which] = at_least(s->inner_codes[which], slots * r->down.groups * r->down.group);
  s->inner_groups[which] = at_least(s->inner_groups[which], slots * r->down.groups);
}

void covey_needs(const canon_op *op, int32_t rows, int32_t pages, covey_scratch *s) {
  switch (op->kind) {
    case CANON_OP_QUANTISE: {
      int64_t groups = (int64_t)rows * covey_ceil(op->src.width, op->i[0]);
      s->codes = at_least(s->codes, groups * op->i[0]);
      s->groups = at_least(s->groups, groups);
      return;
    }
    case CANON_OP_ATTENTION:
      s->partial_row = at_least(s->partial_row, (int64_t)op->i[1] * (op->i[3] + 2));
      s->partial_blocks = at_least(s->partial_blocks, attended_blocks(op, covey_ceil(pages, 4)));
      return;
    case CANON_OP_INDEX:
      s->scores = at_least(s->scores, (int64_t)covey_ceil(pages * 64 / op->i[3], 64) * 64);
      return;
    case CANON_OP_DELTA:
      s->mixed = at_least(s->mixed, rows * (int64_t)op->i[0] * (2 * op->i[2] + op->i[1] * op->i[3]));
      return;
    case CANON_OP_FFN:
      if (op->shared_block) inner_needs(&op->shared, rows, 0, s);
      if (!op->table) return;
      inner_needs(&op->routed, (int64_t)rows * op->i[1], 1, s);
      s->routed = at_least(s->routed, (int64_t)rows * op->i[1] * op->dst.width);
      s->slots = at_least(s->slots, (int64_t)rows * op->i[1]);
      s->experts = at_least(s->experts, op->i[0]);
      return;
  }
}

// ---- weights -----------------------------------------------------------------------------------------------------------

int64_t covey_plain_size(const canon_matrix *m, int32_t part) {
  switch (part) {
    case 0: return packed_codes_size(m);
    case 1: return packed_scales_size(m);
    case 2: return packed_offsets_size(m);
    default: return m->bias || m->bias_at ? 4 * (int64_t)m->rows : 0;
  }
}
int64_t covey_tile_bytes(const canon_matrix *m) { return (int64_t)m->groups * covey_block(m->form, m->group, m->scale_form); }

canon_matrix covey_matrix(const canon_matrix *host, int64_t *at) {
  canon_matrix m = *host;
  int64_t *place[4] = {&m.codes_at, &m.scales_at, &m.offsets_at, &m.bias_at};
  m.codes = m.scales = m.offsets = 0;
  m.bias = 0;
  for (int32_t part = 0; part < 4; part++) {
    int64_t size = covey_plain_size(host, part);
    if (covey_tiled(host) && part < 3) size = part == 0 ? covey_blocks_size(host) : 0;
    *place[part] = part < 3 || size ? *at : 0;
    *at += covey_round(size);
  }
  return m;
}
int64_t covey_record(const canon_record *host, canon_record *device) {
  int64_t at = 0;
  canon_matrix gate = covey_matrix(&host->gate, &at), up = covey_matrix(&host->up, &at), down = covey_matrix(&host->down, &at);
  *device = *host;
  device->gate = gate;
  device->up = up;
  device->down = down;
  return at;
}
canon_matrix covey_at(canon_matrix m, void *block) { return packed_at(m, block); }

// A word of four bytes holds the same inputs in both layouts: eight nibbles (inputs 0..3 low, 4..7 high; of mxfp4 one after the
// other on the device), or four bytes, which the device has in two's complement.
static uint32_t nibbles_of(uint32_t w) { return (w & 15) | (w >> 4 & 0xf0) | (w >> 8 & 0xf00) | (w >> 12 & 0xf000); }   // the low ones of its bytes
void covey_repack(const canon_matrix *host, int32_t tile, int32_t n, uint8_t *out) {
  int32_t four = covey_four_bit(host->form), step = four ? 8 : 4, size = covey_form_bytes(host->scale_form), inputs = host->groups * host->group;
  int64_t before = tile * covey_tile_bytes(host);          // offsets of layout.h count from the matrix's start
  for (int32_t row = tile * COVEY_TILE; row < (tile + n) * COVEY_TILE; row++) {
    if (row >= host->rows) {                               // code zero, scale zero
      for (int32_t c = 0; c < inputs; c += step) {
        int32_t high;
        memset(out + covey_code_at(host, row, c, &high) - before, host->form == CANON_INT4 ? 0x88 : 0, 4);
      }
      for (int32_t g = 0; g < host->groups; g++) memset(out + covey_scale_at(host, row, g) - before, 0, (size_t)size);
      continue;
    }
    for (int32_t c = 0; c < inputs; c += step) {
      int32_t high, up;
      uint32_t w;
      memcpy(&w, host->codes + packed_code_at(host, row, c, &up), 4);
      if (host->form == CANON_INT8) w ^= 0x80808080u;
      if (host->form == CANON_MXFP4) w = nibbles_of(w) | nibbles_of(w >> 4) << 16;
      memcpy(out + covey_code_at(host, row, c, &high) - before, &w, 4);
    }
    for (int32_t g = 0; g < host->groups; g++)
      memcpy(out + covey_scale_at(host, row, g) - before, host->scales + packed_scale_at(host, row, g) * size, (size_t)size);
  }
}

int32_t covey_vector(const canon_op *op) {
  switch (op->kind) {
    case CANON_OP_NORM: return op->dst.width / op->i[0];
    case CANON_OP_LAYER_NORM: return 2 * op->dst.width;
    case CANON_OP_MATMUL: return op->m.rows;
    case CANON_OP_ROPE: return op->i[1] / 2;
    case CANON_OP_ATTENTION: case CANON_OP_ROUTER: return op->i[1];
    case CANON_OP_DELTA: return op->i[0] * (op->i[4] * (2 * op->i[2] + op->i[1] * op->i[3]) + 2 * op->i[1]) + op->i[3];
    case CANON_OP_POOL: return op->i[1] * op->src.width;
    case CANON_OP_ENTRY: return op->src.width;
    case CANON_OP_MIX_IN: return op->src2.width + (op->i[2] ? 1 : 3);
    default: return 0;
  }
}
