// Arguments of the kernel that runs the attention half of a layer for one row in one launch. Addresses are of device memory.
#pragma once
#include "fused.h"

// Where things lie in a block's shared memory. The same room holds slots (a segment of 16 outputs each) of queries, keys and values,
// then stages (an eighth of a unit's keys or values each), then slots of the output product. The row is filled up to whole COVEY_ATTEND_ROW.
enum { COVEY_ATTEND_HEADS = 4, COVEY_ATTEND_SLOTS = 48, COVEY_ATTEND_STAGES = 16, COVEY_ATTEND_PIECES = 8, COVEY_ATTEND_WARPS = 8, COVEY_ATTEND_ROW = 512 };
typedef struct { int32_t q, pairs, oq, opairs, x, part, query, fresh, head, turn, norms, w, top, bars, room, stages, slots; } covey_attend_shared;

typedef struct {
  int32_t hidden;                        // a multiple of 8
  const float *x;                        // [hidden], also what is added last
  const float *norm;                     // [hidden]
  float eps;
  int32_t plus_one;
  const uint8_t *weights[3], *output;    // of queries, keys and values [heads * dim, hidden] and so on; [hidden, heads * dim]; tiled int4, alike
  const float *bias[3], *output_bias;    // or null
  covey_heads heads;                     // norms, rotation and cache; its buffers are not used
  float scale;
  int32_t window;
  const float *sinks;                    // [heads] or null
  float *y;                              // [hidden]; may be x

  // What blocks hand each other, all bits set before the first launch: two halves of covey_attend_half floats, then for each query
  // head `blocks` parts of dim + 4 floats; and the number of blocks that finished, as in moe.h. Launches of one geometry share
  // them, one at a time.
  float *exchange;
  int32_t blocks;
  uint32_t *finished;

  int32_t together;                      // a unit's query heads
  // By covey_attend_sizes: query heads of a key/value head, units of a block of positions, and what an index is multiplied by to be
  // divided by them; floats of a half and of its first part; groups and segments of both inputs; tiles of both outputs.
  int32_t group, sets;
  float per_group, per_set;
  int32_t half, values, gx, go, s1, s2, tiles, outputs;
  covey_attend_shared at;
} covey_attend;

// Floats of a half: queries, keys and values; codes of what was attended, four a word; their scales and starts.
CANON_FN int32_t covey_attend_values(int32_t heads, int32_t kv_heads, int32_t dim) { return (heads + 2 * kv_heads) * dim; }
CANON_FN int64_t covey_attend_half(int32_t heads, int32_t kv_heads, int32_t dim) {
  return covey_attend_values(heads, kv_heads, dim) + heads * dim / 4 + heads * dim / 32 * 2;
}
// Floats of both halves and all parts.
CANON_FN int64_t covey_attend_exchange(int32_t heads, int32_t kv_heads, int32_t dim, int32_t blocks) {
  return 2 * covey_attend_half(heads, kv_heads, dim) + (int64_t)heads * blocks * (dim + 4);
}

// Fills in the sizes, together being known, for weights of `group` inputs a group and slot bytes a segment, blocks of the launch, most bytes of shared
// memory. 0 if it does not fit. Slots are whole turns of the warps where there are that many.
CANON_FN int32_t covey_attend_sizes(covey_attend *a, int32_t group, int32_t slot, int32_t grid, int32_t most) {
  int32_t dim = a->heads.kv.dim, wide = a->heads.heads * dim, at = 0;
  covey_attend_shared s;
  a->group = a->heads.heads / a->heads.kv.heads; a->sets = a->heads.heads / a->together;
  a->per_group = 1.0f / (float)a->group; a->per_set = 1.0f / (float)a->sets;
  a->half = (int32_t)covey_attend_half(a->heads.heads, a->heads.kv.heads, dim); a->values = covey_attend_values(a->heads.heads, a->heads.kv.heads, dim);
  a->gx = covey_ceil(a->hidden, group); a->go = wide / group;
  a->s1 = covey_ceil(a->gx * group, CANON_SEGMENT); a->s2 = covey_ceil(wide, CANON_SEGMENT);
  a->tiles = a->values / COVEY_TILE; a->outputs = covey_ceil(a->hidden, COVEY_TILE);
  int32_t kx = a->gx * group, row = covey_ceil(a->hidden, COVEY_ATTEND_ROW) * COVEY_ATTEND_ROW * 4, units1 = covey_ceil(a->tiles, grid) * a->s1, units2 = covey_ceil(a->outputs, grid) * a->s2;
  s.q = at; at += kx;
  s.pairs = at; at += kx / group * 8;
  at = covey_ceil(at, 16) * 16;
  s.x = s.oq = at; s.opairs = at + wide;                  // the row lies where codes of what was attended will
  at += wide + wide / group * 8 > row ? wide + wide / group * 8 : row;
  at = covey_ceil(at, 16) * 16;
  s.part = at; at += (units1 > units2 ? units1 : units2) * 64;
  s.query = at; at += dim * COVEY_ATTEND_HEADS * 4;
  s.fresh = at; at += dim * 2;
  s.head = at; at += COVEY_ATTEND_WARPS * dim * 4;
  s.turn = at; at += (a->heads.rot > 0 ? a->heads.rot : 0) * 4;
  s.norms = at; at += 2 * dim * 4;
  at = covey_ceil(at, 16) * 16;
  s.w = at; at += COVEY_ATTEND_HEADS * CANON_BLOCK * 4;
  s.top = at; at += COVEY_ATTEND_HEADS * 4;
  s.bars = at; at += (4 * COVEY_ATTEND_SLOTS + 2 * COVEY_ATTEND_STAGES + 2) * 8;
  s.room = at = covey_ceil(at, 128) * 128;
  s.stages = most > at ? (most - at) / (64 * dim) : 0;
  s.slots = most > at ? (most - at) / slot : 0;
  if (s.stages > COVEY_ATTEND_STAGES) s.stages = COVEY_ATTEND_STAGES;
  if (s.slots > COVEY_ATTEND_SLOTS) s.slots = COVEY_ATTEND_SLOTS;
  if (s.slots > COVEY_ATTEND_WARPS) s.slots -= s.slots % COVEY_ATTEND_WARPS;
  a->at = s;
  return s.stages >= COVEY_ATTEND_PIECES && s.slots > 0;
}
