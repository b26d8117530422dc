// Packing: checkpoint bytes to the kernels' layout and back.
//
// Integer forms: tiles of 16 output rows. Per 32 inputs a tile holds 4 (int4) or 8 (int8) pieces of 64 bytes; piece j has 4
// bytes for each row l at 4l. Int4: low nibbles are inputs 8j..8j+3, high nibbles 8j+4..8j+7. Int8: inputs 4j..4j+3. Codes
// keep their offset (8, 128). Scales: 16 a group and tile, beside. Rows and inputs that do not exist have code 0 with
// quantised input 0, and scale 0. Float forms: plain rows.
#include <string.h>
#include "canon.h"
#include "kernels.h"

static int64_t round64(int64_t n) { return (n + 63) & ~(int64_t)63; }
static int64_t tiles_of(const canon_matrix *m) { return (m->rows + 15) / 16; }
static int64_t tile_bytes(const canon_matrix *m) { return (int64_t)m->groups * (m->group / 32) * (m->form == CANON_INT4 ? 256 : 512); }

int64_t canon_codes_size(const canon_matrix *m) {
  if (m->group == 0) return round64((int64_t)m->rows * m->cols * canon_form_bytes(m->form));
  return tiles_of(m) * tile_bytes(m);
}
int64_t canon_scales_size(const canon_matrix *m) {
  return m->group == 0 ? 0 : round64(tiles_of(m) * m->groups * 16 * canon_form_bytes(m->scale_form));
}
canon_matrix canon_matrix_at(canon_matrix m, void *block) {
  m.codes = (const uint8_t *)block + m.codes_at;
  m.scales = (const uint8_t *)block + m.scales_at;
  m.codes_at = m.scales_at = 0;
  return m;
}

// Where the code of (row, input) lies; for int4 the nibble is the low one unless *high.
static int64_t code_at(const canon_matrix *m, int32_t row, int32_t col, int *high) {
  int32_t l = row & 15, c = col & 31;
  int64_t base = (row >> 4) * tile_bytes(m);
  if (m->form == CANON_INT4) {
    *high = c >> 2 & 1;
    return base + (int64_t)(col >> 5) * 256 + (c >> 3) * 64 + l * 4 + (c & 3);
  }
  *high = 0;
  return base + (int64_t)(col >> 5) * 512 + (c >> 2) * 64 + l * 4 + (c & 3);
}

void canon_pack(const canon_matrix *m, const uint8_t *codes, const uint8_t *scales, int32_t scales_per_row) {
  uint8_t *out = (uint8_t *)m->codes, *sout = (uint8_t *)m->scales;
  if (m->group == 0) {
    memcpy(out, codes, (size_t)(m->rows * (int64_t)m->cols * canon_form_bytes(m->form)));
    return;
  }
  int64_t row_bytes = m->form == CANON_INT4 ? (m->cols + 1) / 2 : m->cols, sb = canon_form_bytes(m->scale_form);
  for (int32_t r = 0; r < m->rows; r++) {
    const uint8_t *in = codes + r * row_bytes;
    int32_t whole = m->cols & ~7, c = 0;
    uint8_t *tile = out + (r >> 4) * tile_bytes(m) + (r & 15) * 4;
    if (m->form == CANON_INT4) {
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
    for (int32_t g = 0; g < m->groups; g++) {
      int32_t from = scales_per_row == m->groups ? g : 0;   // one scale a row is repeated
      memcpy(sout + (((int64_t)(r >> 4) * m->groups + g) * 16 + (r & 15)) * sb, scales + ((int64_t)r * scales_per_row + from) * sb, (size_t)sb);
    }
  }
}

static float value_of(int32_t form, const uint8_t *p, int64_t i) {
  if (form == CANON_F32) { float f; memcpy(&f, p + i * 4, 4); return f; }
  uint16_t h;
  memcpy(&h, p + i * 2, 2);
  return form == CANON_F16 ? canon_from_f16(h) : canon_from_bf16(h);
}

void canon_dequantise(const canon_matrix *m, int32_t row, float *dst) {
  if (m->group == 0) {
    for (int32_t c = 0; c < m->cols; c++) dst[c] = value_of(m->form, m->codes, (int64_t)row * m->cols + c);
    return;
  }
  for (int32_t c = 0; c < m->cols; c++) {
    int high;
    uint8_t b = m->codes[code_at(m, row, c, &high)];
    int32_t w = m->form == CANON_INT4 ? (high ? b >> 4 : b & 15) - 8 : b - 128;
    dst[c] = (float)w * value_of(m->scale_form, m->scales, ((int64_t)(row >> 4) * m->groups + c / m->group) * 16 + (row & 15));
  }
}

void canon_dequantise_source(int32_t form, int32_t scale_form, int32_t rows, int32_t cols, int32_t group, const uint8_t *codes, const uint8_t *scales, float *dst) {
  int64_t row_bytes = form == CANON_INT4 ? (cols + 1) / 2 : cols;
  for (int32_t r = 0; r < rows; r++)
    for (int32_t c = 0; c < cols; c++) {
      int64_t i = (int64_t)r * cols + c;
      if (form != CANON_INT4 && form != CANON_INT8) { dst[i] = value_of(form, codes, i); continue; }
      const uint8_t *in = codes + r * row_bytes;
      int32_t w = form == CANON_INT4 ? (in[c / 2] >> (c & 1) * 4 & 15) - 8 : in[c] - 128;
      dst[i] = (float)w * value_of(scale_form, scales, (int64_t)r * ((cols + group - 1) / group) + c / group);
    }
}
