// What kernels, the host code and benches agree on: layouts in device memory and the two arguments of every kernel.
//
// The law of arithmetic is engine/canon/canon.h; operations are canon_op of engine/canon/engine.h, the same list that the
// CPU runs, with device addresses in place of host addresses. A kernel is
//
//     extern "C" __global__ void covey_NAME(const __grid_constant__ canon_op op, const covey_program *p)
//
// and its launch geometry is in launch.h. The number of rows is read from p->step in device memory, so that one captured
// graph serves every step up to its bucket: a block whose row is not below the step's rows returns.
//
// Weights [rows, cols], integer forms, whose inputs are padded to whole groups with code 0 and whose rows are padded to
// whole tiles of 32 with code 0 and scale 0 (a padded input meets activation code 0):
//
//   codes   int4: [tile][chunk of 32 inputs][32 rows][16 bytes]; byte 4j+b of a row's 16 holds input 8j+b in its low nibble
//                 and input 8j+4+b in its high nibble (j, b = 0..3); a nibble c stands for c - 8
//           int8: [tile][chunk of 32 inputs][half][32 rows][16 bytes]; byte b of half h is input 16h+b; c stands for c - 128
//   scales  [tile][group][32 rows] in scale_form
//
// so that a warp whose lanes are rows reads 512 contiguous bytes with one 16-byte load a lane. Float forms: plain rows.
// A record is gate codes, gate scales, up codes, up scales, down codes, down scales, each at a multiple of 256 bytes:
// canon_matrix.codes_at and scales_at are these offsets, codes and scales are null; a table holds one address an expert.
#pragma once
#include "../../engine/canon/canon.h"
#include "../../engine/canon/engine.h"

enum { COVEY_TILE = 32, COVEY_ALIGN = 256, COVEY_ANGLES = 8 };

CANON_FN int64_t covey_round(int64_t n) { return (n + COVEY_ALIGN - 1) / COVEY_ALIGN * COVEY_ALIGN; }
CANON_FN int32_t covey_ceil(int32_t a, int32_t b) { return (a + b - 1) / b; }
CANON_FN int32_t covey_padded(int32_t n, int32_t group) { return group ? covey_ceil(n, group) * group : n; }
CANON_FN int64_t covey_form_bytes(int32_t form) { return form == CANON_F32 ? 4 : form == CANON_INT8 ? 1 : 2; }

// Bytes of the codes and of the scales of a matrix in device memory.
CANON_FN int64_t covey_codes_size(const canon_matrix *m) {
  if (m->group == 0) return covey_round((int64_t)m->rows * m->cols * covey_form_bytes(m->form));
  return (int64_t)covey_ceil(m->rows, COVEY_TILE) * m->groups * (m->group / 32) * (m->form == CANON_INT4 ? 512 : 1024);
}
CANON_FN int64_t covey_scales_size(const canon_matrix *m) {
  return m->group == 0 ? 0 : covey_round((int64_t)covey_ceil(m->rows, COVEY_TILE) * m->groups * 32 * covey_form_bytes(m->scale_form));
}

// Quantised rows (rule 1).
typedef struct {
  int8_t *q;             // [rows, stride], inputs padded with 0 to whole groups
  float *scale;          // [rows, groups]
  int32_t *sum;          // [rows, groups] sum of a group's codes
  int32_t stride, groups;// of the operation that wrote them last: readers take theirs from the matrix
} covey_codes;

// Rows that one expert serves in this step: slots order_slot[start .. start+n) (slot = row * k + rank), rows ascending.
typedef struct { int32_t expert, start, n; } covey_item;

typedef struct { float *cosine, *sine; const float *inv; int32_t rot; double factor; } covey_angles;

// One program's state in device memory. Sized once for the largest step.
typedef struct {
  canon_step step;                   // arrays in device memory; bans hold device addresses
  covey_codes codes, inner[2];       // inputs of products; between up and down: [0] shared (a row), [1] routed (a slot)
  float *inner_float[2];             // the same where down has a float form
  float *routed_out;                 // [rows * k, hidden] outputs of routed experts, one row a slot
  float *partial;                    // attention: [rows, blocks, heads, dim + 2]: m, l and o of each block
  int32_t partial_blocks;            // blocks that one row has room for
  int32_t *item_n, *order_row, *order_slot;  // [1], [rows * k], [rows * k]
  covey_item *items;                 // [experts], ids ascending, the first *item_n are used
  covey_angles angles[COVEY_ANGLES]; // [rows, rot / 2] of the step's positions
} covey_program;
