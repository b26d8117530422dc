// Arguments of the kernels that run a Mixture-of-Experts layer for one row in one launch. Addresses are of device memory.
#pragma once
#include "layout.h"

// COPIES: of the logits, since blocks that look at the same words get in one another's way. ROUTE_FLOATS: memory of router.cuh. HALF:
// memory of a block beside which another stands.
enum { COVEY_MOE_PARTS = 3, COVEY_MOE_ENTRIES = 17, COVEY_MOE_SLOTS = 96, COVEY_MOE_WARPS = 8, COVEY_MOE_COPIES = 8, COVEY_ROUTE_FLOATS = 4 * 512 + 64, COVEY_MOE_HALF = (228 << 10) / 2 - 1024 };

// What lies at the start of a block's shared memory: the entries (the shared expert first, then the chosen ones that are here) and
// sums of theirs; barriers of the ring, of the sums, of the row, of the choice and of the codes of each entry's inner values.
typedef struct { const uint8_t *record; float weight; } covey_moe_entry;
typedef struct {
  float tots[COVEY_MOE_ENTRIES][16];     // read by fours: at a multiple of 16 bytes
  covey_moe_entry entries[COVEY_MOE_ENTRIES];
  uint64_t full[COVEY_MOE_SLOTS], empty[COVEY_MOE_SLOTS], done[COVEY_MOE_PARTS], taken[COVEY_MOE_PARTS], read, chosen, weighed, ready[COVEY_MOE_ENTRIES];
  int32_t routed, next_piece;            // chosen experts that are here; the next piece of codes that nobody has taken
  float factor;                          // of the norm
} covey_moe_block;

// Block b of a launch has each + (b < rest) items, the first of them b * each + min(b, rest).
typedef struct { int32_t each, rest; } covey_moe_dealt;

// What a launch is made of, so that the kernel has no division. x: inputs of up; i and s: inner values of a routed and the shared expert.
typedef struct {
  int32_t kx, ki, ks, gx, gi, gs, sx, si, ss;     // padded to whole groups; their groups; their segments
  uint32_t si_of, padded_of;                      // n / si is n * si_of >> 16 and n / padded is n * padded_of >> 32 for all n there are
  int32_t has, tiles, padded, shared_tiles, outputs, units;   // a shared expert; tiles of a routed one, of ki, of the shared one, of outputs; segments of one item of work, at most
  covey_moe_dealt rows, shared, routed;           // rows of the router; tiles of the shared expert; tiles or groups of routed ones
  int32_t routed_unit, row_bytes, row_slots, alone;   // tiles of an item of routed; a row of the router; no other launch's blocks beside these
  int32_t pairs_at, values_at, logits_at, logits, words;  // of a half of the exchange, in words; a copy of the logits
  int32_t q, pairs, xs, hq, hpairs, part, scores, places, biases, ring, slots;   // of the block's shared memory, in bytes
} covey_moe_sizes;

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

  covey_moe_sizes at;                    // by covey_moe_sized
} covey_moe;

// What blocks hand each other in one launch, in words of which none has all bits set once it is written: codes of inner values
// (each byte turned by 0x7f, since -128 is no code) of the k routed experts and of the shared one, padded to whole groups; the pairs
// of their groups; inner values of groups that several blocks compute; copies of the logits. Returns the words of a half.
CANON_FN int32_t covey_moe_half(covey_moe *m, int32_t group) {
  int32_t groups = m->k * covey_ceil(m->inner, group) + covey_ceil(m->shared_inner, group);
  m->at.pairs_at = groups * group / 4;
  m->at.values_at = m->at.pairs_at + covey_ceil(groups, 2) * 4;
  m->at.logits_at = covey_ceil(m->at.values_at + groups * group, 32) * 32;
  m->at.logits = covey_ceil(m->experts, 32) * 32;
  return m->at.words = m->at.logits_at + COVEY_MOE_COPIES * m->at.logits;
}

CANON_FN covey_moe_dealt covey_moe_deal(int32_t n, int32_t blocks) {
  covey_moe_dealt d = {n / blocks, n % blocks};
  return d;
}

// Fills in the sizes for weights of `group` inputs a group and `slot` bytes a segment of 16 rows, `blocks` blocks and `most` bytes of
// shared memory each. Returns how many slots of the ring are left beside a block's rows of the router.
CANON_FN int32_t covey_moe_sized(covey_moe *m, int32_t group, int32_t slot, int32_t blocks, int32_t most) {
  covey_moe_sizes s = {0};
  int32_t per = group / COVEY_TILE, at = sizeof(covey_moe_block);
  s.gx = covey_ceil(m->hidden, group); s.gi = covey_ceil(m->inner, group); s.gs = covey_ceil(m->shared_inner, group);
  s.kx = s.gx * group; s.ki = s.gi * group; s.ks = s.gs * group;
  s.sx = covey_ceil(s.kx, CANON_SEGMENT); s.si = covey_ceil(s.ki, CANON_SEGMENT); s.ss = covey_ceil(s.ks, CANON_SEGMENT);
  s.has = m->shared_inner > 0;
  s.tiles = covey_ceil(m->inner, COVEY_TILE); s.padded = s.gi * per; s.shared_tiles = covey_ceil(m->shared_inner, COVEY_TILE); s.outputs = covey_ceil(m->hidden, COVEY_TILE);
  s.si_of = 65536u / s.si + 1; s.padded_of = 0xffffffffu / s.padded + 1;
  s.units = s.ss + m->k * s.si > 2 * s.sx ? s.ss + m->k * s.si : 2 * s.sx;
  // Groups of inner values are dealt whole where nearly every block gets one.
  int32_t groups = m->k * s.gi, whole = groups <= blocks && 8 * groups >= 7 * blocks;
  s.routed_unit = whole ? per : 1;
  s.routed = covey_moe_deal(whole ? groups : groups * per, blocks);
  s.shared = covey_moe_deal(s.gs * per, blocks);
  s.rows = covey_moe_deal(m->router ? m->experts : 0, blocks);
  s.row_bytes = m->hidden * covey_form_bytes(m->router_form);
  s.row_slots = covey_ceil(s.row_bytes, slot);
  s.alone = most > COVEY_MOE_HALF;
  int32_t inner = m->k * s.ki + s.ks;
  at = covey_ceil(at, 16) * 16;
  s.q = at; at += s.kx;
  s.pairs = at; at += s.gx * 8;
  at = covey_ceil(at, 16) * 16;
  s.xs = s.hq = at; s.hpairs = at + inner;                      // the normed row lies where codes of inner values will
  at += inner + inner / group * 8 > s.kx * 4 ? inner + inner / group * 8 : s.kx * 4;
  at = covey_ceil(at, 16) * 16;
  s.part = at; at += COVEY_MOE_PARTS * s.units * 64;
  s.scores = at; at += m->router ? COVEY_ROUTE_FLOATS * 4 : 0;
  s.places = at; at += m->experts * 8;                          // copies of the table and of the bias
  s.biases = at; at += m->experts * 4;
  s.ring = at = covey_ceil(at, 128) * 128;
  s.slots = most > at ? (most - at) / slot : 0;
  if (s.slots > COVEY_MOE_SLOTS) s.slots = COVEY_MOE_SLOTS;
  s.slots -= s.slots % COVEY_MOE_WARPS;                         // one warp multiplies what lies in a slot: see experts_row.cu
  m->at = s;
  covey_moe_half(m, group);
  return s.slots - (s.rows.each + (s.rows.rest > 0)) * s.row_slots;
}
