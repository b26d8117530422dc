// Packing: checkpoint bytes to the kernels' layout and back.
//
// Integer forms: tiles of 16 output rows. Per 32 inputs a tile holds 4 (four bits) or 8 (int8) pieces of 64 bytes; piece j
// has 4 bytes for each row l at 4l. Four bits: low nibbles are inputs 8j..8j+3, high nibbles 8j+4..8j+7. Int8: inputs
// 4j..4j+3. Codes keep their offset. Scales: 16 for each tile and `sub` inputs, beside; zero points or minima likewise. Rows
// and inputs that do not exist have code 0 with quantised input 0, and scale 0 (E8M0 has none: 2^-127, which multiplies 0).
// Float forms: plain rows; fp8 scales as stored, one for a block of rows and inputs.
#include <string.h>
#include "canon.h"
#include "kernels.h"
#include "source.h"

static int64_t round64(int64_t n) { return (n + 63) & ~(int64_t)63; }
static int64_t tiles_of(const canon_matrix *m) { return (m->rows + 15) / 16; }
static int64_t tile_bytes(const canon_matrix *m) { return (int64_t)m->groups * (m->group / 32) * (source_four_bit(m->form) ? 256 : 512); }
// Scales of one row, padded ones included.
static int64_t scales_of(const canon_matrix *m) { return (int64_t)m->groups * (m->group / m->sub); }

int64_t canon_codes_size(const canon_matrix *m) {
  if (m->group == 0) return round64((int64_t)m->rows * m->cols * canon_form_bytes(m->form));
  return tiles_of(m) * tile_bytes(m);
}
int64_t canon_scales_size(const canon_matrix *m) {
  if (m->form == CANON_FP8) return round64((m->rows + m->block_rows - 1) / m->block_rows * (int64_t)m->blocks * canon_form_bytes(m->scale_form));
  return m->group == 0 ? 0 : round64(tiles_of(m) * scales_of(m) * 16 * canon_form_bytes(m->scale_form));
}
int64_t canon_offsets_size(const canon_matrix *m) {
  if (m->group == 0 || m->offset == CANON_OFFSET_FORM) return 0;
  return round64(tiles_of(m) * scales_of(m) * 16 * (m->offset == CANON_OFFSET_ZEROS ? 1 : canon_form_bytes(m->scale_form)));
}
canon_matrix canon_matrix_at(canon_matrix m, void *block) {
  m.codes = (const uint8_t *)block + m.codes_at;
  m.scales = (const uint8_t *)block + m.scales_at;
  m.offsets = (const uint8_t *)block + m.offsets_at;
  if (m.bias_at) m.bias = (const float *)((const uint8_t *)block + m.bias_at);
  m.codes_at = m.scales_at = m.offsets_at = m.bias_at = 0;
  return m;
}

// Where the code of (row, input) lies; of four bits the nibble is the low one unless *high.
static int64_t code_at(const canon_matrix *m, int32_t row, int32_t col, int *high) {
  int32_t l = row & 15, c = col & 31;
  int64_t base = (row >> 4) * tile_bytes(m);
  if (source_four_bit(m->form)) {
    *high = c >> 2 & 1;
    return base + (int64_t)(col >> 5) * 256 + (c >> 3) * 64 + l * 4 + (c & 3);
  }
  *high = 0;
  return base + (int64_t)(col >> 5) * 512 + (c >> 2) * 64 + l * 4 + (c & 3);
}

// Spreads one value a scale, n bytes each, over the lanes of the tiles; one value a row is repeated.
static void pack_scales(const canon_matrix *m, uint8_t *out, const uint8_t *in, int64_t n, int32_t per_row) {
  int64_t subs = scales_of(m), real = (m->cols + m->sub - 1) / m->sub;
  for (int32_t r = 0; r < m->rows; r++)
    for (int64_t s = 0; s < real; s++)
      memcpy(out + (((r >> 4) * subs + s) * 16 + (r & 15)) * n, in + ((int64_t)r * per_row + (per_row == 1 ? 0 : s)) * n, (size_t)n);
}

void canon_pack(const canon_matrix *m, uint8_t *block, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row) {
  uint8_t *out = block + m->codes_at;
  if (m->group == 0) {
    memcpy(out, codes, (size_t)(m->rows * (int64_t)m->cols * canon_form_bytes(m->form)));
    if (m->form == CANON_FP8)
      memcpy(block + m->scales_at, scales, (size_t)((m->rows + m->block_rows - 1) / m->block_rows * (int64_t)m->blocks * canon_form_bytes(m->scale_form)));
    return;
  }
  int64_t row_bytes = source_four_bit(m->form) ? (m->cols + 1) / 2 : m->cols;
  for (int32_t r = 0; r < m->rows; r++) {
    const uint8_t *in = codes + r * row_bytes;
    int32_t whole = m->cols & ~7, c = 0;
    uint8_t *tile = out + (r >> 4) * tile_bytes(m) + (r & 15) * 4;
    if (source_four_bit(m->form)) {
      for (; c < whole; c += 8) {          // eight inputs are four source bytes and four packed bytes
        uint32_t v, lo, hi;
        memcpy(&v, in + c / 2, 4);
        lo = (v & 15) | (v >> 4 & 15) << 8 | (v >> 8 & 15) << 16 | (v >> 12 & 15) << 24;
        v >>= 16;
        hi = (v & 15) | (v >> 4 & 15) << 8 | (v >> 8 & 15) << 16 | (v >> 12 & 15) << 24;
        v = lo | hi << 4;
        memcpy(tile + (c >> 3) * 64, &v, 4);
      }
      for (; c < m->cols; c++) {
        int high;
        uint8_t *p = out + code_at(m, r, c, &high), v = in[c / 2] >> (c & 1) * 4 & 15;
        *p = (uint8_t)(high ? *p | v << 4 : *p | v);
      }
    } else {
      for (; c < whole; c += 4) memcpy(tile + (c >> 2) * 64, in + c, 4);
      for (; c < m->cols; c++) { int high; out[code_at(m, r, c, &high)] = in[c]; }
    }
  }
  pack_scales(m, block + m->scales_at, scales, canon_form_bytes(m->scale_form), per_row);
  if (m->offset != CANON_OFFSET_FORM) pack_scales(m, block + m->offsets_at, offsets, m->offset == CANON_OFFSET_ZEROS ? 1 : canon_form_bytes(m->scale_form), per_row);
}

static void unpack_scales(const canon_matrix *m, uint8_t *out, const uint8_t *in, int64_t n, int32_t per_row) {
  int64_t subs = scales_of(m);
  for (int32_t r = 0; r < m->rows; r++)
    for (int32_t s = 0; s < per_row; s++)
      memcpy(out + ((int64_t)r * per_row + s) * n, in + (((r >> 4) * subs + s) * 16 + (r & 15)) * n, (size_t)n);
}

void canon_unpack(const canon_matrix *m, const uint8_t *block, uint8_t *codes, uint8_t *scales, uint8_t *offsets, int32_t per_row) {
  const uint8_t *in = block + m->codes_at;
  if (m->group == 0) {
    memcpy(codes, in, (size_t)(m->rows * (int64_t)m->cols * canon_form_bytes(m->form)));
    if (m->form == CANON_FP8)
      memcpy(scales, block + m->scales_at, (size_t)((m->rows + m->block_rows - 1) / m->block_rows * (int64_t)m->blocks * canon_form_bytes(m->scale_form)));
    return;
  }
  int four = source_four_bit(m->form);
  int64_t row_bytes = four ? (m->cols + 1) / 2 : m->cols;
  memset(codes, 0, (size_t)(m->rows * row_bytes));
  for (int32_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < m->cols; c++) {
      int high;
      uint8_t b = in[code_at(m, r, c, &high)], *out = codes + r * row_bytes;
      if (four) out[c / 2] |= (uint8_t)((high ? b >> 4 : b & 15) << (c & 1) * 4);
      else out[c] = b;
    }
  unpack_scales(m, scales, block + m->scales_at, canon_form_bytes(m->scale_form), per_row);
  if (m->offset != CANON_OFFSET_FORM) unpack_scales(m, offsets, block + m->offsets_at, m->offset == CANON_OFFSET_ZEROS ? 1 : canon_form_bytes(m->scale_form), per_row);
}

// A value is code times scale, one product; with a minimum fmaf(code, scale, minimum).
static float value_of(const canon_matrix *m, uint32_t code, const uint8_t *scales, const uint8_t *offsets, int64_t at) {
  int32_t w = source_integer(m, code, m->offset == CANON_OFFSET_ZEROS ? offsets[at] : 0);
  float s = source_scale(m, scales, at);
  return m->offset == CANON_OFFSET_MINIMA ? canon_fmaf((float)w, s, source_value(m->scale_form, offsets, at)) : (float)w * s;
}

void canon_dequantise(const canon_matrix *m, int32_t row, float *dst) {
  if (m->group == 0) {
    for (int32_t c = 0; c < m->cols; c++) {
      dst[c] = source_value(m->form, m->codes, (int64_t)row * m->cols + c);
      if (m->form == CANON_FP8) dst[c] = dst[c] * source_value(m->scale_form, m->scales, source_scale_at(m, row, c, m->blocks));
    }
    return;
  }
  for (int32_t c = 0; c < m->cols; c++) {
    int high;
    uint32_t b = m->codes[code_at(m, row, c, &high)];
    if (source_four_bit(m->form)) b = high ? b >> 4 : b & 15;
    dst[c] = value_of(m, b, m->scales, m->offsets, ((row >> 4) * scales_of(m) + c / m->sub) * 16 + (row & 15));
  }
}

void canon_dequantise_source(const canon_matrix *m, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row, float *dst) {
  for (int32_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < m->cols; c++, dst++) {
      if (m->group) { *dst = value_of(m, source_code(m, codes, r, c), scales, offsets, source_scale_at(m, r, c, per_row)); continue; }
      *dst = source_value(m->form, codes, (int64_t)r * m->cols + c);
      if (m->form == CANON_FP8) *dst = *dst * source_value(m->scale_form, scales, source_scale_at(m, r, c, per_row));
    }
}
