// Shared memory of the kernels that run experts of a few rows each (experts_few.cu).
#pragma once
#include "layout.h"

// Barriers, codes of `rows` activation rows, pairs of their groups, inner values, a ring of slots, passes.
typedef struct { int32_t codes, pairs, inner, ring, passes, stride, bytes; } covey_few;

enum { COVEY_FEW_SLOTS = 48, COVEY_FEW_WARPS = 8, COVEY_FEW_THREADS = 32 * (COVEY_FEW_WARPS + 1), COVEY_FEW_ROWS = 16, COVEY_FEW_PASS = 16 };

// Tiles of inner values that a block computes together: whole groups of the down matrix, a strip of gate or up a warp and round.
CANON_FN int32_t covey_few_tiles(int32_t group) { return (group > 64 ? group : 64) / 16; }

// Passes that a block of `blocks` can have a part in, of `all`: stretches of some rows of the step's experts.
CANON_FN int32_t covey_few_passes(int32_t all, int32_t blocks) { return covey_ceil(all, blocks) + 2; }

// cols: padded inputs; passes: of a block.
CANON_FN covey_few covey_few_of(int32_t group, int32_t cols, int32_t slot, int32_t rows, int32_t slots, int32_t passes) {
  covey_few s;
  s.stride = (cols + 127) / 128 * 128 + 64;                     // rows of codes fall into other banks
  s.codes = (2 * COVEY_FEW_SLOTS + 6) * 8 + 224;                // barriers; sums over warps; where rows go
  s.pairs = s.codes + rows * s.stride;
  s.inner = s.pairs + cols / group * rows * 8;
  s.ring = (s.inner + rows * (16 * covey_few_tiles(group) + 4) * 4 + 127) / 128 * 128;
  s.passes = s.ring + slots * slot;
  s.bytes = s.passes + passes * COVEY_FEW_PASS;
  return s;
}
