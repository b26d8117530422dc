// Weights as checkpoints store them: single codes and scales, for packing and for the written rules.
#pragma once
#include <string.h>
#include "canon.h"
#include "engine.h"

// Bytes of one stored value of a form of whole bytes.
CANON_FN int64_t canon_form_bytes(int32_t form) { return form == CANON_F32 ? 4 : form == CANON_F16 || form == CANON_BF16 ? 2 : 1; }
CANON_FN int32_t source_four_bit(int32_t form) { return form == CANON_INT4 || form == CANON_MXFP4; }

// A float, or a scale, of any form that is one number.
CANON_FN float source_value(int32_t form, const uint8_t *p, int64_t i) {
  float f;
  uint16_t h;
  switch (form) {
    case CANON_F32: memcpy(&f, p + i * 4, 4); return f;
    case CANON_FP8: return canon_from_e4m3(p[i]);
    case CANON_E8M0: return canon_from_e8m0(p[i]);
    default: memcpy(&h, p + i * 2, 2); return form == CANON_F16 ? canon_from_f16(h) : canon_from_bf16(h);
  }
}

// The scale as products use it: half of the stored one for MXFP4, whose codes are doubled.
CANON_FN float source_scale(const canon_matrix *m, const uint8_t *scales, int64_t i) {
  float s = source_value(m->scale_form, scales, i);
  return m->form == CANON_MXFP4 ? s * 0.5f : s;
}

// The integer that a stored code stands for; zero is its zero point where the matrix has them.
CANON_FN int32_t source_integer(const canon_matrix *m, uint32_t code, int32_t zero) {
  if (m->form == CANON_MXFP4) return canon_twice_fp4(code);
  if (m->offset == CANON_OFFSET_MINIMA) return (int32_t)code;
  return (int32_t)code - (m->offset == CANON_OFFSET_ZEROS ? zero : m->form == CANON_INT4 ? 8 : 128);
}

CANON_FN uint32_t source_code(const canon_matrix *m, const uint8_t *codes, int64_t row, int32_t col) {
  if (source_four_bit(m->form)) return codes[row * ((m->cols + 1) / 2) + col / 2] >> (col & 1) * 4 & 15;
  return codes[row * m->cols + col];
}

// Which stored scale belongs to (row, input).
CANON_FN int64_t source_scale_at(const canon_matrix *m, int64_t row, int32_t col, int32_t per_row) {
  int32_t width = m->form == CANON_FP8 ? m->block_cols : m->sub;
  return (m->form == CANON_FP8 ? row / m->block_rows : row) * per_row + (per_row == 1 ? 0 : col / width);
}

// A value is code times scale, one product; with a minimum fmaf(code, scale, minimum). at is the place of both.
CANON_FN float source_number(const canon_matrix *m, uint32_t code, const uint8_t *scales, const uint8_t *offsets, int64_t at) {
  int32_t w = source_integer(m, code, m->offset == CANON_OFFSET_ZEROS ? offsets[at] : 0);
  float s = source_scale(m, scales, at);
  return m->offset == CANON_OFFSET_MINIMA ? canon_fmaf((float)w, s, source_value(m->scale_form, offsets, at)) : (float)w * s;
}
