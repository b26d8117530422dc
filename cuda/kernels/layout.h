// Integer weights in device memory: where each code and scale of a matrix [rows, cols] lies.
//
// A matrix is an array of blocks [tile of 16 rows][group of inputs]; a tile's blocks follow one another, so a stretch of
// inputs of 16 rows is one contiguous piece that a bulk copy moves. A block is the group's codes and then its 16 scales:
//
//   int4, mxfp4  group * 8 bytes, int8  group * 16 bytes, scales 32 bytes (f16, bf16), 64 (f32) or 16 (e8m0), row r at place 2*(r%8) + r/8
//
// Codes lie as the tensor cores' m16n8k32 fragment wants them, so one 16-byte load a lane feeds them (and dp4a as well)
// without a shuffle. A group is cut into chunks of W = min(group, 64) inputs; lane 4*(row%8) + t of a warp holds inputs
// t*W/4 .. (t+1)*W/4 of the chunk for rows row%8 and row%8 + 8. Inside, step s covers 8 inputs a lane:
//
//   int4  8 bytes a lane and step: word 0 is row%8, word 1 is row%8 + 8; a byte's low nibble is input b of the step, its
//         high nibble input b + 4; a nibble c stands for c - 8
//   mxfp4 the same, but nibble b of a word is input b of the step (group 32 only)
//   int8  16 bytes a lane and step, steps apart (512 bytes each): words are inputs 0..3 of row%8, of row%8 + 8, then inputs
//         4..7 of both; a byte is c - 128 in two's complement
//
// Inputs are padded to whole groups (activations have code 0 there), rows to whole tiles with scale 0.
#pragma once
#include "../../engine/canon/canon.h"
#include "../../engine/canon/engine.h"

enum { COVEY_TILE = 16 };

CANON_FN int32_t covey_ceil(int32_t a, int32_t b) { return (a + b - 1) / b; }
CANON_FN int32_t covey_form_bytes(int32_t form) { return form == CANON_F32 ? 4 : form == CANON_F16 || form == CANON_BF16 ? 2 : 1; }
CANON_FN int32_t covey_four_bit(int32_t form) { return form == CANON_INT4 || form == CANON_MXFP4; }
// Bytes of a group's codes, and of its block.
CANON_FN int32_t covey_group_codes(int32_t form, int32_t group) { return group * (covey_four_bit(form) ? 8 : 16); }
CANON_FN int32_t covey_block(int32_t form, int32_t group, int32_t scale_form) { return covey_group_codes(form, group) + 16 * covey_form_bytes(scale_form); }
// Bytes of a matrix of an integer form.
CANON_FN int64_t covey_blocks_size(const canon_matrix *m) {
  return (int64_t)covey_ceil(m->rows, COVEY_TILE) * m->groups * covey_block(m->form, m->group, m->scale_form);
}
// Offset of the scale of (row, group) from the start of the matrix.
CANON_FN int64_t covey_scale_at(const canon_matrix *m, int32_t row, int32_t group) {
  return ((int64_t)(row / COVEY_TILE) * m->groups + group) * covey_block(m->form, m->group, m->scale_form)
         + covey_group_codes(m->form, m->group) + ((row & 7) * 2 + (row >> 3 & 1)) * covey_form_bytes(m->scale_form);
}
// Offset of the byte that holds the code of (row, input col); of four bits the nibble is the high one where *high is set.
CANON_FN int64_t covey_code_at(const canon_matrix *m, int32_t row, int32_t col, int32_t *high) {
  int32_t w = m->group < 64 ? m->group : 64, c = col % m->group, i = c % w, t = i / (w / 4), s = i % (w / 4) / 8, b = i & 3;
  int32_t lane = 4 * (row & 7) + t, second = row >> 3 & 1;
  int64_t at = ((int64_t)(row / COVEY_TILE) * m->groups + col / m->group) * covey_block(m->form, m->group, m->scale_form);
  if (m->form == CANON_MXFP4) {
    *high = i & 1;
    return at + lane * 8 + second * 4 + (i & 7) / 2;
  }
  *high = i >> 2 & 1;
  if (m->form == CANON_INT4) return at + (c / w) * w * 8 + lane * (w / 4) + s * 8 + second * 4 + b;
  return at + (c / w) * w * 16 + s * 512 + lane * 16 + *high * 8 + second * 4 + b;
}
