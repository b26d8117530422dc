// What plan.c and fuse.c share: making launches, and what both must know of the kernels' geometry.
#pragma once
#include "plan.h"

enum { ROW_THREADS = 256, PRODUCT_ROWS = 4, PRODUCT_THREADS = 256, MOST_ROW_BLOCKS = 16 };   // as kernels/product.h

static inline int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int32_t at_most(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t rows_of(const covey_bucket *b, int32_t logits) { return logits ? b->logit_rows : b->rows; }
static inline int32_t whole_warps(int32_t n, int32_t most) { return at_most((n + 31) / 32 * 32, most); }

// Appends a launch whose argument the caller fills in, or that of one operation.
static inline covey_launch *launch(covey_launch *at, int32_t kernel, int32_t label, int32_t x, int32_t y, int32_t z, int32_t threads, int64_t shared) {
  *at = (covey_launch){.kernel = kernel, .label = label, .grid = {(uint32_t)x, (uint32_t)y, (uint32_t)z}, .threads = (uint32_t)threads, .shared = (uint32_t)shared};
  return at + 1;
}
static inline covey_launch *put(covey_launch *at, int32_t kernel, const canon_op *op, int32_t x, int32_t y, int32_t z, int32_t threads, int64_t shared) {
  at = launch(at, kernel, op->label, x, y, z, threads, shared);
  at[-1].argument.op = *op;
  return at;
}
// The launch before at may start early, where the device can.
static inline covey_launch *early(covey_launch *at, const covey_place *d) { at[-1].overlap = d->overlap; return at; }
static inline int same(const canon_buffer *a, const canon_buffer *b) { return a->data == b->data && a->width == b->width; }

// plan.c: the launches of one operation by itself, out having room for MOST_LAUNCHES; -1 if there is no kernel for it.
enum { MOST_LAUNCHES = 16 };
int32_t covey_plan_one(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *out);

// fuse.c: whether an operation from o on reads what buffer x holds.
int covey_is_read(const canon_op *o, int32_t n, const canon_buffer *x);
// latent.c: launches of latent attention of one row for operations from o on; 0 if there are none for them. Writes how many operations
// that is to *used.
covey_launch *covey_latent_row(const canon_op *o, int32_t n, const covey_bucket *b, const covey_place *d, int32_t *used, covey_launch *at);

// fuse.c. Each appends launches of fast kernels, or returns 0 where there are none for the operation.
covey_launch *covey_fast_product(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t check, covey_launch *at);
// Attention over a cache of single vectors, block by block, whose parts wait for a fold.
covey_launch *covey_latent_blocks(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *at);
covey_launch *covey_fast_attention(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t group, covey_launch *at);
covey_launch *covey_fast_router(const canon_op *op, const covey_bucket *b, const covey_place *d, covey_launch *at);
// Up and down of the shared expert (routed 0) or the routed ones.
covey_launch *covey_float_experts(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t routed, covey_launch *at);
covey_launch *covey_fast_experts(const canon_op *op, const covey_bucket *b, const covey_place *d, int32_t routed, covey_launch *at);
