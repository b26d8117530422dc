// What kernels, the host code and benches agree on: layouts in device memory and the two arguments of the plain kernels.
//
// The law of arithmetic is engine/canon/canon.h; operations are canon_op of engine/canon/engine.h, the same list that the
// CPU runs, with device addresses in place of host addresses. A plain kernel is
//
//     COVEY_KERNEL covey_NAME(COVEY_CONST canon_op op, const covey_program *p)
//
// and its launch geometry is in plan.c. The number of rows is read from p->step in device memory, so that one captured
// graph serves every step up to its bucket: a block whose row is not below the step's rows returns.
//
// Weights: int4, int8 and mxfp4 with one scale a group and the form's own offset lie as layout.h says ("tiled"); every other form
// lies as the CPU packs it (engine/canon/packed.h), codes, scales and offsets each at a multiple of 256 bytes. A record is
// gate, up and down: codes_at and so on are offsets from its start, the pointers are null, and a table holds one record's
// address an expert (covey_here).
#pragma once
#include "layout.h"
#include "../../engine/canon/packed.h"

enum { COVEY_ALIGN = 256, COVEY_ANGLES = 8, COVEY_STREAMS = 8, COVEY_TAPS = 16 };   // the last two: most streams of a mixer, taps of a convolution

CANON_FN int64_t covey_round(int64_t n) { return (n + COVEY_ALIGN - 1) / COVEY_ALIGN * COVEY_ALIGN; }

// Whether a weight lies as layout.h says.
CANON_FN int32_t covey_tiled(const canon_matrix *m) {
  if (m->form == CANON_MXFP4) return m->group == 32 && m->scale_form == CANON_E8M0;
  return (m->form == CANON_INT4 || m->form == CANON_INT8) && m->offset == CANON_OFFSET_FORM && m->sub == m->group && m->scale_form <= CANON_BF16;
}

// Quantised rows (rule 1). A reader takes stride = groups * group and groups from its matrix.
typedef struct {
  int8_t *q;             // [rows, groups * group], inputs padded with 0 to whole groups
  float *scale;          // [rows, groups]
  int32_t *sum;          // [rows, groups] sum of a group's codes
} covey_codes;

// Rows that one expert serves in this step: slots order_slot[start .. start+n) (slot = row * k + rank), rows ascending.
typedef struct { int32_t expert, start, n; } covey_item;

typedef struct { float *cosine, *sine; const float *inv, *long_inv; int32_t rot; double factor, long_factor; } covey_angles;   // long_inv null = one for all lengths

// How the token behind a row of logits is drawn (canon_sampling without changes to the logits).
typedef struct { float temperature, top_p, min_p; int32_t top_k; uint64_t seed; uint32_t choice, position; } covey_drawing;

// One program's state in device memory. Sized once for the largest step.
typedef struct {
  canon_step step;                   // arrays in device memory; bans hold device addresses
  covey_codes codes, inner[2];       // inputs of products; between up and down: [0] shared (a row), [1] routed (a slot)
  float *inner_float[2];             // silu(gate) * up before its quantisation, or where down has a float form
  float *routed_out, *routed_far;    // [rows * k, hidden] outputs of routed experts, one row a slot; of those on other devices
  float *partial;                    // attention: [rows, partial_blocks, heads, values + 2]: m, l and o of each block
  int32_t partial_blocks;
  int32_t *item_n, *order_row, *order_slot;  // [1], [rows * k], [rows * k]
  covey_item *items;                 // [experts], ids ascending, the first *item_n are used
  covey_angles angles[COVEY_ANGLES]; // [rows, rot / 2] of the step's positions
  float *scores;                     // indexer: [some rows, score_stride]
  int32_t score_stride;
  float *mixed;                      // delta net: [rows, channels] behind the convolution
  const covey_drawing *drawings;     // [logit rows]
  int32_t *drawn;                    // [logit rows] tokens; -1 = the host must choose
} covey_program;

// Whether a table's entry is a record that lies on this device; 1 stands for one on another device, null for none anywhere.
CANON_FN int32_t covey_here(const void *record) { return (uintptr_t)record > 1; }

// Whether a block of covey_delta holds its state in shared memory.
CANON_FN int32_t covey_delta_resident(int32_t key, int32_t value) { return (int64_t)key * value <= 24 << 10; }
