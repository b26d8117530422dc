// The portable family: no intrinsics, fused multiply-add in software unless the compiler's target has it.
#include "lanes_portable.h"
#include "kernels_lanes.h"
#include "source.h"

static void quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *less8, int32_t *half) {
  for (int32_t g = 0; g * group < n; g++) {
    int32_t real = n - g * group < group ? n - g * group : group, sum;
    canon_quantise(x + g * group, real, q + g * group, scale + g, &sum);
    for (int32_t i = real; i < group; i++) q[g * group + i] = 0;
    less8[g] = -8 * sum;
    if (!half || group != 32) continue;
    half[g] = 0;
    for (int32_t i = 0; i < 16; i++) half[g] += q[g * 32 + i];
  }
}

// Dots of 16 inputs with the 16 rows of a tile, offsets of the codes not yet removed; MXFP4 has none.
static inline void dots16(int form, const uint8_t *w, const int8_t *q, int32_t dot[16]) {
  for (int j = 0; j < 4; j++)
    for (int l = 0; l < 16; l++)
      for (int b = 0; b < 4; b++) {
        uint8_t c = form == CANON_INT8 ? w[j * 64 + l * 4 + b] : w[j / 2 * 64 + l * 4 + b] >> (j & 1) * 4 & 15;
        dot[l] += (form == CANON_MXFP4 ? canon_twice_fp4(c) : c) * q[j * 4 + b];
      }
}

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0) { product_floats(m, tile, tiles, r); return; }
  int32_t per = m->group / 32, subs = m->group / m->sub, per_segment = CANON_SEGMENT / m->group, bytes = source_four_bit(m->form) ? 128 : 256;
  int32_t offset = m->offset != CANON_OFFSET_FORM || m->form == CANON_MXFP4 ? 0 : m->form == CANON_INT4 ? 8 : 128;
  for (int32_t t = tile; t < tile + tiles; t++)
    for (int32_t i = 0; i < r->n; i++) {
      const int8_t *q = r->codes.q + row_in(r, i) * r->codes.stride;
      const float *sx = r->codes.scale + row_in(r, i) * r->codes.groups;
      const int32_t *less8 = r->codes.less8 + row_in(r, i) * r->codes.groups, *half = subs == 2 ? r->codes.half + row_in(r, i) * r->codes.groups : 0;
      const uint8_t *w = m->codes + (int64_t)t * m->groups * per * 2 * bytes;
      float tot[16] = {0}, acc[16];
      for (int32_t s = 0; s < m->groups; s += per_segment) {
        for (int l = 0; l < 16; l++) acc[l] = 0;
        for (int32_t g = s; g < m->groups && g < s + per_segment; g++)
          for (int32_t b = 0; b < subs; b++) {
            int32_t dot[16] = {0}, sum = -(less8[g] / 8);
            if (half) sum = b ? sum - half[g] : half[g];
            for (int32_t c = b * 2 * per / subs; c < (b + 1) * 2 * per / subs; c++, w += bytes) dots16(m->form, w, q + g * m->group + c * 16, dot);
            int64_t at = (((int64_t)t * m->groups + g) * subs + b) * 16;
            for (int l = 0; l < 16; l++) {
              int32_t less = m->offset == CANON_OFFSET_ZEROS ? m->offsets[at + l] : offset;
              acc[l] = canon_term(dot[l] - less * sum, source_scale(m, m->scales, at + l), sx[g], acc[l]);
              if (m->offset == CANON_OFFSET_MINIMA) acc[l] = canon_minimum(source_value(m->scale_form, m->offsets, at + l), sum, sx[g], acc[l]);
            }
          }
        for (int l = 0; l < 16; l++) tot[l] = tot[l] + acc[l];
      }
      put_tile(m, r, i, t, tot);
    }
}

const canon_kernels *canon_kernels_portable(void) {
  static const canon_kernels table = LANES_TABLE(product, quantise);
  return &table;
}
