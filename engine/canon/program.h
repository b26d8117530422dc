// A program as phases, and the operations that work on single rows.
#pragma once
#include <stdatomic.h>
#include "pool.h"

// Operations that the builder adds beside those of engine.h.
enum {
  OP_ANGLES = 100,  // cosines and sines of the row's position
  OP_FOLD,          // folds the blocks of split attention
  OP_COMBINE,       // dst plus routed experts, in rank order
};

// What a phase does. Rows: a run of row operations, each row through all of them while it is in the cache. The others are
// split over outputs.
enum { PHASE_ROWS, PHASE_DELTA, PHASE_PRODUCT, PHASE_HEADS, PHASE_SCORE, PHASE_SELECT, PHASE_POOL, PHASE_ATTEND, PHASE_UP, PHASE_DOWN };
typedef struct { int32_t kind, first, count, logits; } canon_phase;

// Most rows of one product: their inputs stay in the second-level cache while all weights pass.
enum { CANON_ROW_BLOCK = 64 };

// Up to CANON_ROW_BLOCK rows that go through one record: of all rows for a shared expert, of those that chose it for a routed one.
typedef struct {
  canon_record rec;         // with real addresses
  int32_t routed, n;
  int32_t first;            // row and slot of the first one where there are no lists
  const int32_t *rows, *slots;  // [n] or null
} canon_item;

// Consecutive chunks of a phase that are consecutive in one list: of a product's matrix, of an item.
typedef struct { int64_t first; int32_t list; int64_t at; } canon_stretch;
typedef struct { int32_t list; int64_t chunk; } canon_place;

typedef struct { const float *inv; int32_t rot; double factor; const float *long_inv; double long_factor; float *cosine, *sine; } canon_angles;

struct canon_program {
  int32_t rows, logit_rows, pages, threads, nodes;
  canon_op *ops;            // operations in order, the builder's own included
  int32_t n, cap;
  canon_phase *phases;
  int32_t phase_n, phase_cap;
  canon_angles angles[8];
  int32_t angle_n;

  // Sizes that scratch must have.
  int64_t code_bytes, code_groups;      // quantised inputs
  int32_t halves;                       // some matrix has 16 inputs a scale
  int64_t inner_bytes[2], inner_groups[2], inner_floats[2];  // between up and down: shared, routed
  int64_t routed_floats;                // outputs of routed experts, one row a (row, rank)
  int64_t experts, slots;
  int32_t delta;                        // there is recurrent state
  int64_t thread_floats, split_floats, score_floats;   // a thread; in all; one list of scores

  // Scratch.
  canon_codes codes, inner[2];          // strides are set for each operation
  float *inner_float[2], *routed_out, *per_thread, *partial, *scores;
  int32_t *order_row, *order_slot, *count;
  int32_t *first_row;                   // [rows] first rows of the step's sequences
  int32_t *run_row;                     // [rows + 1] first rows of the runs that read keys together
  canon_item *items;

  // The running step.
  const canon_kernels *k;
  canon_step *step;
  canon_pool *pool;
  int32_t fetched;                      // phase whose weights threads without work fetch
  int32_t first_n, run_n, item_n, split, split_blocks, parts, score_blocks;
  int64_t *chunks;                      // of each list of the phase: [ops of a product phase, or items]
  canon_stretch *stretches;             // [lists * nodes]
  int32_t stretch_n;
  int32_t *tiles_per_chunk;
  int32_t begin;                        // first phase of the running part
  _Atomic int32_t fault_n;
};

void canon_row_ops(canon_program *p, const canon_phase *ph, int32_t r0, int32_t r1, int32_t thread);
void canon_fault(canon_program *p, int32_t logits, int32_t row, int32_t kind, int32_t label);
void canon_attend_prepare(canon_program *p, const canon_op *op, int64_t *chunks);
void canon_attend_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread);
void canon_attend_finish(canon_program *p, const canon_op *op, int32_t row);
const uint8_t *canon_gather(const canon_kv *kv, const int32_t *pages, int32_t layer, int32_t rate, const int32_t *ids, int32_t first, int32_t n, uint8_t *lanes, uint8_t *rows);
uint16_t canon_store(const canon_kernels *k, int32_t form, const float *x, int32_t n, uint8_t *out);
void canon_index_needs(canon_program *p, const canon_op *op);
void canon_score_prepare(canon_program *p, const canon_op *op, int64_t *chunks);
void canon_score_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread);
void canon_select_row(canon_program *p, const canon_op *op, int32_t row, int32_t thread);
void canon_pool_prepare(canon_program *p, const canon_op *op, int64_t *chunks);
void canon_pool_chunk(canon_program *p, const canon_op *op, int64_t chunk);
void canon_entry(canon_program *p, const canon_op *op, int32_t row, int32_t thread);
void canon_mix_in(canon_program *p, const canon_op *op, int32_t row);
void canon_mix_out(canon_program *p, const canon_op *op, int32_t row, int32_t thread);
void canon_heads_prepare(canon_program *p, const canon_op *op, int64_t *chunks);
void canon_heads_chunk(canon_program *p, const canon_op *op, int64_t chunk);
void canon_heads_copy(const canon_op *op, int32_t row);
void canon_ffn_prepare(canon_program *p, const canon_op *op, int32_t down, int64_t *chunks);
void canon_ffn_up(canon_program *p, const canon_op *op, int64_t chunk);
void canon_ffn_down(canon_program *p, const canon_op *op, int64_t chunk);
void canon_route(canon_program *p, const canon_op *op, int32_t row, float *scratch);
void canon_ffn_pieces(const canon_op *op, int32_t down, canon_piece pieces[CANON_AHEAD]);
void canon_ffn_needs(canon_program *p, const canon_op *op);
void canon_delta_needs(canon_program *p, const canon_op *op);
void canon_delta_prepare(canon_program *p, const canon_op *op, int64_t *chunks);
void canon_delta_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread);
void canon_attend_needs(canon_program *p, const canon_op *op);

// Lays out the chunks of a phase whose lists have p->chunks; returns their number. The chunks of a memory node's threads come
// one list after the other, its stretch of each: every thread then reads the same part of a matrix at each step, whatever
// shares the phase, and Arena.Near puts that part near to it.
int64_t canon_spread(canon_program *p, int32_t lists);
canon_place canon_find(const canon_program *p, int64_t chunk);

static inline int32_t canon_rows_of(const canon_program *p, int32_t logits) { return logits ? p->step->logit_rows : p->step->rows; }
static inline void canon_halves(canon_program *p, const canon_matrix *m) { p->halves |= m->group != m->sub; }
static inline int64_t canon_at_least(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int32_t canon_padded(int32_t n, int32_t group) { return group ? (n + group - 1) / group * group : n; }
// The part of a page that belongs to one layer of the cache.
static inline uint8_t *canon_kv_layer(const canon_kv *kv, int32_t page, int32_t layer) {
  int64_t part = (int64_t)kv->heads * kv->dim * canon_form_bytes(kv->form) * (kv->single ? kv->slots : 128);
  return kv->data + ((int64_t)page * kv->layers + layer) * part;
}
// Vector i of a cache of single vectors, one for each rate positions: it lies in the page of its last position.
static inline const uint8_t *canon_kv_entry(const canon_kv *kv, const int32_t *pages, int32_t layer, int32_t i, int32_t rate) {
  int32_t last = (i + 1) * rate - 1, slot = rate > 64 ? 0 : last % 64 / rate;
  return canon_kv_layer(kv, pages[last / 64], layer) + (int64_t)slot * kv->heads * kv->dim * canon_form_bytes(kv->form);
}
static inline float *canon_row(const canon_buffer *b, int64_t i) { return b->data + i * b->stride; }
// Tiles that make a chunk worth taking: about two microseconds, yet at least four chunks a thread of a phase's matrices together.
int32_t canon_tiles_per_chunk(const canon_matrix *m, int32_t rows, int32_t threads, int32_t matrices);
