// Arguments of the kernels that run a Mixture-of-Experts layer for one row in one launch. Addresses are of device memory.
#pragma once
#include "layout.h"

typedef struct {
  int32_t hidden, inner, shared_inner;   // hidden is a multiple of 8; shared_inner 0 = no shared expert
  int32_t experts, k;                    // at most 512 and 16
  const float *x;                        // [hidden]
  const float *norm;                     // [hidden] weight of a root mean square norm before everything; null = x is normed
  float eps;
  int32_t plus_one;
  const float *residual;                 // [hidden], added last; null = none
  float *y;                              // [hidden]; may be residual

  // Router (rule 8), as CANON_OP_ROUTER. router null: ids and weights are given.
  const void *router;                    // [experts, hidden] plain rows
  int32_t router_form;
  const float *bias;                     // [experts] or null
  int32_t score, groups, keep, largest_only, normalise, first_ban, label;
  float sum_eps, least, scale;
  const canon_step *step;                // bans and faults of row 0; null = none
  int32_t *ids;                          // [k]
  float *weights;                        // [k]

  // Records: offsets of the three matrices in a record.
  void *const *table;                    // [experts], null = not here
  int64_t gate_at, up_at, down_at;
  const uint8_t *shared;
  int64_t shared_gate_at, shared_up_at, shared_down_at;

  // What blocks hand each other, two halves of covey_moe_exchange floats, all bits set before the first launch, and the number
  // of blocks that finished, zero before the first, back to zero after two launches. Launches of one geometry share them, one
  // at a time.
  float *exchange;
  uint32_t *finished;
} covey_moe;

// Where things lie in a block's shared memory, for the given bytes a slot (a segment of 16 rows).
CANON_FN int64_t covey_moe_exchange(const covey_moe *m) {
  return ((int64_t)m->k * covey_ceil(m->inner, 4) + covey_ceil(m->shared_inner, 4) + covey_ceil(m->experts, 4)) * 4;
}

typedef struct { int32_t q, pairs, xs, hq, hpairs, part, tots, scores, places, sel, bars, ring, slots, units; } covey_moe_shared;

enum { COVEY_MOE_PARTS = 3, COVEY_MOE_ENTRIES = 17, COVEY_MOE_SLOTS = 96 };

CANON_FN covey_moe_shared covey_moe_shared_of(const covey_moe *m, int32_t group, int32_t slot, int32_t most) {
  int32_t kx = covey_ceil(m->hidden, group) * group, ki = covey_ceil(m->inner, group) * group, ks = covey_ceil(m->shared_inner, group) * group;
  int32_t u1 = 2 * covey_ceil(kx, CANON_SEGMENT), u2 = covey_ceil(ks, CANON_SEGMENT) + m->k * covey_ceil(ki, CANON_SEGMENT);
  int32_t inner = m->k * ki + ks, at = 0;
  covey_moe_shared s;
  s.units = u1 > u2 ? u1 : u2;
  s.q = at; at += kx;
  s.pairs = at; at += kx / group * 8;
  at = (at + 15) / 16 * 16;
  s.xs = at; s.hq = at; s.hpairs = at + inner;                  // the normed row lies where codes of inner values will
  at += inner + inner / group * 8 > kx * 4 ? inner + inner / group * 8 : kx * 4;
  at = (at + 15) / 16 * 16;
  s.part = at; at += COVEY_MOE_PARTS * s.units * 64;
  s.tots = at; at += COVEY_MOE_ENTRIES * 64;
  s.scores = at; at += m->router ? (2 * 512 + 48) * 4 : 0;
  s.places = at; at += m->router ? m->experts * 12 : 0;         // copies of the table and of the bias
  at = (at + 15) / 16 * 16;
  s.sel = at; at += 16 + COVEY_MOE_ENTRIES * 16;
  s.bars = at; at += (2 * COVEY_MOE_SLOTS + 2 * COVEY_MOE_PARTS + 1 + COVEY_MOE_ENTRIES) * 8;
  at = (at + 127) / 128 * 128;
  s.ring = at;
  s.slots = (most - at) / slot;
  if (s.slots > COVEY_MOE_SLOTS) s.slots = COVEY_MOE_SLOTS;
  return s;
}
