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
#include "packed.h"

int64_t canon_codes_size(const canon_matrix *m) { return packed_codes_size(m); }
int64_t canon_scales_size(const canon_matrix *m) { return packed_scales_size(m); }
int64_t canon_offsets_size(const canon_matrix *m) { return packed_offsets_size(m); }
canon_matrix canon_matrix_at(canon_matrix m, void *block) { return packed_at(m, block); }

// Spreads one value a scale, n bytes each, over the lanes of the tiles; one value a row is repeated.
static void pack_scales(const canon_matrix *m, uint8_t *out, const uint8_t *in, int64_t n, int32_t per_row) {
  int64_t real = (m->cols + m->sub - 1) / m->sub;
  for (int32_t r = 0; r < m->rows; r++)
    for (int64_t s = 0; s < real; s++)
      memcpy(out + packed_scale_at(m, r, s) * n, in + ((int64_t)r * per_row + (per_row == 1 ? 0 : s)) * n, (size_t)n);
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
    uint8_t *tile = out + (r >> 4) * packed_tile_bytes(m) + (r & 15) * 4;
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
        uint8_t *p = out + packed_code_at(m, r, c, &high), v = in[c / 2] >> (c & 1) * 4 & 15;
        *p = (uint8_t)(high ? *p | v << 4 : *p | v);
      }
    } else {
      for (; c < whole; c += 4) memcpy(tile + (c >> 2) * 64, in + c, 4);
      for (; c < m->cols; c++) { int high; out[packed_code_at(m, r, c, &high)] = in[c]; }
    }
  }
  pack_scales(m, block + m->scales_at, scales, canon_form_bytes(m->scale_form), per_row);
  if (m->offset != CANON_OFFSET_FORM) pack_scales(m, block + m->offsets_at, offsets, m->offset == CANON_OFFSET_ZEROS ? 1 : canon_form_bytes(m->scale_form), per_row);
}

static void unpack_scales(const canon_matrix *m, uint8_t *out, const uint8_t *in, int64_t n, int32_t per_row) {
  for (int32_t r = 0; r < m->rows; r++)
    for (int32_t s = 0; s < per_row; s++)
      memcpy(out + ((int64_t)r * per_row + s) * n, in + packed_scale_at(m, r, s) * n, (size_t)n);
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
      uint8_t b = in[packed_code_at(m, r, c, &high)], *out = codes + r * row_bytes;
      if (four) out[c / 2] |= (uint8_t)((high ? b >> 4 : b & 15) << (c & 1) * 4);
      else out[c] = b;
    }
  unpack_scales(m, scales, block + m->scales_at, canon_form_bytes(m->scale_form), per_row);
  if (m->offset != CANON_OFFSET_FORM) unpack_scales(m, offsets, block + m->offsets_at, m->offset == CANON_OFFSET_ZEROS ? 1 : canon_form_bytes(m->scale_form), per_row);
}

void canon_dequantise(const canon_matrix *m, int32_t row, float *dst) {
  for (int32_t c = 0; c < m->cols; c++) dst[c] = packed_value(m, row, c);
}

void canon_dequantise_source(const canon_matrix *m, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row, float *dst) {
  for (int32_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < m->cols; c++, dst++) {
      if (m->group) { *dst = source_number(m, source_code(m, codes, r, c), scales, offsets, source_scale_at(m, r, c, per_row)); continue; }
      *dst = source_value(m->form, codes, (int64_t)r * m->cols + c);
      if (m->form == CANON_FP8) *dst = *dst * source_value(m->scale_form, scales, source_scale_at(m, r, c, per_row));
    }
}
