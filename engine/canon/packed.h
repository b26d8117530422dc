// Where a packed weight's codes and scales lie (pack.c says how), for packing, for its inverse and for copies to devices.
#pragma once
#include "source.h"

CANON_FN int64_t packed_round(int64_t n) { return (n + 63) & ~(int64_t)63; }
CANON_FN int64_t packed_tiles(const canon_matrix *m) { return (m->rows + 15) / 16; }
CANON_FN int64_t packed_tile_bytes(const canon_matrix *m) { return (int64_t)m->groups * (m->group / 32) * (source_four_bit(m->form) ? 256 : 512); }
// Scales of one row, padded ones included.
CANON_FN int64_t packed_scales(const canon_matrix *m) { return (int64_t)m->groups * (m->group / m->sub); }

CANON_FN int64_t packed_codes_size(const canon_matrix *m) {
  if (m->group == 0) return packed_round((int64_t)m->rows * m->cols * canon_form_bytes(m->form));
  return packed_tiles(m) * packed_tile_bytes(m);
}
CANON_FN int64_t packed_scales_size(const canon_matrix *m) {
  if (m->form == CANON_FP8) return packed_round((m->rows + m->block_rows - 1) / m->block_rows * (int64_t)m->blocks * canon_form_bytes(m->scale_form));
  return m->group == 0 ? 0 : packed_round(packed_tiles(m) * packed_scales(m) * 16 * canon_form_bytes(m->scale_form));
}
CANON_FN int64_t packed_offsets_size(const canon_matrix *m) {
  if (m->group == 0 || m->offset == CANON_OFFSET_FORM) return 0;
  return packed_round(packed_tiles(m) * packed_scales(m) * 16 * (m->offset == CANON_OFFSET_ZEROS ? 1 : canon_form_bytes(m->scale_form)));
}
CANON_FN canon_matrix packed_at(canon_matrix m, void *block) {
  m.codes = (const uint8_t *)block + m.codes_at;
  m.scales = (const uint8_t *)block + m.scales_at;
  m.offsets = (const uint8_t *)block + m.offsets_at;
  if (m.bias_at) m.bias = (const float *)((const uint8_t *)block + m.bias_at);
  m.codes_at = m.scales_at = m.offsets_at = m.bias_at = 0;
  return m;
}

// Where the code of (row, input) lies; of four bits the nibble is the low one unless *high.
CANON_FN int64_t packed_code_at(const canon_matrix *m, int32_t row, int32_t col, int *high) {
  int32_t l = row & 15, c = col & 31;
  int64_t base = (row >> 4) * packed_tile_bytes(m);
  if (source_four_bit(m->form)) {
    *high = c >> 2 & 1;
    return base + (int64_t)(col >> 5) * 256 + (c >> 3) * 64 + l * 4 + (c & 3);
  }
  *high = 0;
  return base + (int64_t)(col >> 5) * 512 + (c >> 2) * 64 + l * 4 + (c & 3);
}
// Place of the scale, zero point or minimum of (row, scale of the row).
CANON_FN int64_t packed_scale_at(const canon_matrix *m, int32_t row, int64_t scale) { return ((row >> 4) * packed_scales(m) + scale) * 16 + (row & 15); }
// The stored integer code of (row, input).
CANON_FN uint32_t packed_code(const canon_matrix *m, int32_t row, int32_t col) {
  int high;
  uint32_t b = m->codes[packed_code_at(m, row, col, &high)];
  return !source_four_bit(m->form) ? b : high ? b >> 4 : b & 15;
}
// The value of (row, input).
CANON_FN float packed_value(const canon_matrix *m, int32_t row, int32_t col) {
  if (m->group) return source_number(m, packed_code(m, row, col), m->scales, m->offsets, packed_scale_at(m, row, col / m->sub));
  float v = source_value(m->form, m->codes, (int64_t)row * m->cols + col);
  return m->form == CANON_FP8 ? v * source_value(m->scale_form, m->scales, source_scale_at(m, row, col, m->blocks)) : v;
}
