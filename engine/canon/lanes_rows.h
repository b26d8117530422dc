// What integer and float products share: loads by form and the rows of a product.
#pragma once
#include "kernels.h"

// Vector families specialise the hot loops for each form and number of rows; plain C would only compile slower.
#if VL > 1
#define SPECIAL inline __attribute__((always_inline))
#define UNROLL(N) UNROLL_(GCC unroll N)
#define UNROLL_(X) _Pragma(#X)
#else
#define SPECIAL __attribute__((noinline))
#define UNROLL(N)
#endif

// How far ahead codes are fetched, in bytes: hardware starts anew at every page and tile, which costs a third of the bandwidth.
enum { AHEAD = 2048 };

static inline vf v_load_form(const int form, const uint8_t *p, int64_t i) {
  if (form == CANON_F32) return v_load((const float *)p + i);
  if (form == CANON_F16) return v_from_f16((const uint16_t *)p + i);
  if (form == CANON_FP8) return v_from_e4m3(p + i);
  return v_from_bf16((const uint16_t *)p + i);
}
static inline vf v_load_form_n(const int form, const uint8_t *p, int64_t i, int n) {
  if (form == CANON_F32) return v_load_n((const float *)p + i, n);
  if (form == CANON_F16) return v_from_f16_n((const uint16_t *)p + i, n);
  if (form == CANON_FP8) return v_from_e4m3_n(p + i, n);
  return v_from_bf16_n((const uint16_t *)p + i, n);
}

static inline int64_t row_in(const canon_rows *r, int32_t i) { return r->in ? r->in[i] : r->in0 + i; }
static inline int64_t row_out(const canon_rows *r, int32_t i) { return r->out ? r->out[i] : r->out0 + i; }

static inline void put(const canon_rows *r, int32_t i, int32_t col, float v) {
  if (r->bias) v = v + r->bias[col];
  r->y[row_out(r, i) * r->y_stride + col - r->col0] = v;
}

// Sixteen outputs of row i go to y, bias added; the last tile of a matrix may have fewer.
static inline void put_tile(const canon_matrix *m, const canon_rows *r, int32_t i, int32_t tile, const float *out) {
  int32_t c0 = tile * 16, n = m->rows - c0 < 16 ? m->rows - c0 : 16;
  float *y = r->y + row_out(r, i) * r->y_stride + c0 - r->col0;
  if (!r->bias && n == 16) { memcpy(y, out, 64); return; }   // of known size, so not a call
  for (int32_t l = 0; l < n; l++) y[l] = r->bias ? out[l] + r->bias[c0 + l] : out[l];
}
