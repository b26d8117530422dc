// Arguments of kernels that do the work of several operations. Addresses are of device memory.
#pragma once
#include "abi.h"

enum { COVEY_PARTS = 4 };
// What the rows of a fused product are made of.
enum { COVEY_CODES, COVEY_VALUES, COVEY_NORMED };   // p->codes as they are; src quantised; src normed and quantised

// One matrix of a product of several: dst = x m^T + bias; sum, if it has data, += dst.
typedef struct {
  canon_matrix m;
  const float *bias;
  canon_buffer dst, sum;
} covey_part;

// Rows that are gathered, normed and quantised, and products of them. What each kernel uses of it is said there.
typedef struct {
  canon_buffer src, normed;            // normed: where normed rows go as well
  const float *norm;                   // [src.width] or null
  float eps;
  int32_t plus_one, made, group;       // made: of the codes, as above; group of the quantisation, 0 = none
  int32_t logits, gather;              // rows are the step's logit rows; src's are taken by p->step.logit_row
  int32_t parts, first[COVEY_PARTS];   // first block of each part; first tile in product_row.cu
  covey_part part[COVEY_PARTS];
} covey_rows;

// Where things lie in the shared memory of product_row.cu: codes and pairs of a row of `padded` inputs, the row itself if it is normed
// (normed: its values, or 0), the sums of `units` segments, barriers; slots of a segment of 16 outputs from room on.
enum { COVEY_ROW_WARPS = 16, COVEY_ROW_SLOTS = 48 };
typedef struct { int32_t q, pairs, x, part, bars, room; } covey_row_shared;
CANON_FN covey_row_shared covey_row_shared_of(int32_t padded, int32_t groups, int32_t units, int32_t normed) {
  covey_row_shared s;
  s.q = 0;
  s.pairs = covey_ceil(padded, 16) * 16;
  s.x = covey_ceil(s.pairs + groups * 8, 16) * 16;
  s.part = s.x + covey_ceil(normed * 4, 16) * 16;
  s.bars = s.part + units * COVEY_TILE * 4;
  s.room = covey_ceil(s.bars + 2 * COVEY_ROW_SLOTS * 8, 128) * 128;
  return s;
}

// Norms of query and key heads, their rotation, and the cache.
typedef struct {
  canon_buffer q, k, v;
  const float *q_norm, *k_norm;        // [kv.dim] or null
  float eps;
  int32_t plus_one, heads, late;       // late: norms follow the rotation
  int32_t rot, pairing, offset, angles;   // as CANON_OP_ROPE; angles: table of p->angles, -1 = no rotation
  int32_t layer, label;
  canon_kv kv;
} covey_heads;

// CANON_OP_FFN's combination with what follows: sum, if it has data, += dst.
typedef struct { canon_op op; canon_buffer sum; } covey_combination;
