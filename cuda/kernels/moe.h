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

  // What blocks hand each other, two halves as covey_moe_half says, all bits set before the first launch, and the number
  // of blocks that finished, zero before the first, back to zero after two launches. Launches of one geometry share them, one
  // at a time.
  uint32_t *exchange;
  uint32_t *finished;
} covey_moe;

// What blocks hand each other in one launch, in words of which none has all bits set once it is written: codes of inner values
// (each byte turned by 0x7f, since -128 is no code) of the k routed experts and of the shared one, padded to whole groups; the pairs
// of their groups; inner values of groups that several blocks compute; logits. Offsets in words.
typedef struct { int32_t pairs, values, logits, words; } covey_moe_half;
CANON_FN covey_moe_half covey_moe_half_of(const covey_moe *m, int32_t group) {
  int32_t groups = m->k * covey_ceil(m->inner, group) + covey_ceil(m->shared_inner, group);
  covey_moe_half h;
  h.pairs = groups * group / 4;
  h.values = h.pairs + covey_ceil(groups, 2) * 4;
  h.logits = h.values + groups * group;
  h.words = h.logits + covey_ceil(m->experts, 4) * 4;
  return h;
}

// Where things lie in a block's shared memory, for the given bytes a slot (a segment of 16 rows).
typedef struct { int32_t q, pairs, xs, hq, hpairs, part, tots, scores, places, sel, bars, ring, slots, units; } covey_moe_shared;

enum { COVEY_MOE_PARTS = 3, COVEY_MOE_ENTRIES = 17, COVEY_MOE_SLOTS = 96, COVEY_MOE_WARPS = 8 };

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
  s.scores = at; at += m->router ? (3 * 512 + 48) * 4 : 0;         // ROUTE_SCORES
  s.places = at; at += m->experts * 12;                         // copies of the table and of the bias
  at = (at + 15) / 16 * 16;
  s.sel = at; at += 16 + COVEY_MOE_ENTRIES * 16;
  s.bars = at; at += (2 * COVEY_MOE_SLOTS + 2 * COVEY_MOE_PARTS + 2 + COVEY_MOE_ENTRIES) * 8;
  at = (at + 127) / 128 * 128;
  s.ring = at;
  s.slots = (most - at) / slot;
  if (s.slots > COVEY_MOE_SLOTS) s.slots = COVEY_MOE_SLOTS;
  s.slots = s.slots < 0 ? 0 : s.slots / COVEY_MOE_WARPS * COVEY_MOE_WARPS;   // one warp multiplies what lies in a slot: see experts_row.cu
  return s;
}
