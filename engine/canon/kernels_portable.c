// The portable family: no intrinsics, fused multiply-add in software unless the compiler's target has it.
#include "lanes_portable.h"
#include "kernels_lanes.h"

static float scale_at(const canon_matrix *m, int64_t i) {
  if (m->scale_form == CANON_F32) return ((const float *)m->scales)[i];
  uint16_t h = ((const uint16_t *)m->scales)[i];
  return m->scale_form == CANON_F16 ? canon_from_f16(h) : canon_from_bf16(h);
}

static void quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *less8) {
  for (int32_t g = 0; g * group < n; g++) {
    int32_t real = n - g * group < group ? n - g * group : group, sum;
    canon_quantise(x + g * group, real, q + g * group, scale + g, &sum);
    for (int32_t i = real; i < group; i++) q[g * group + i] = 0;
    less8[g] = -8 * sum;
  }
}

// Dots of 32 inputs with the 16 rows of a tile, offsets of the codes not yet removed.
static inline void dots32(int form, const uint8_t *w, const int8_t *q, int32_t dot[16]) {
  for (int j = 0; j < 4; j++)
    for (int l = 0; l < 16; l++)
      for (int b = 0; b < 4; b++) {
        if (form == CANON_INT4) {
          uint8_t c = w[j * 64 + l * 4 + b];
          dot[l] += (c & 15) * q[j * 8 + b] + (c >> 4) * q[j * 8 + 4 + b];
        } else {
          dot[l] += w[j * 128 + l * 4 + b] * q[j * 8 + b] + w[j * 128 + 64 + l * 4 + b] * q[j * 8 + 4 + b];
        }
      }
}

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0) { product_floats(m, tile, tiles, r); return; }
  int32_t per = m->group / 32, per_segment = CANON_SEGMENT / m->group, bytes = m->form == CANON_INT4 ? 256 : 512, offset = m->form == CANON_INT4 ? 1 : 16;
  for (int32_t t = tile; t < tile + tiles; t++)
    for (int32_t i = 0; i < r->n; i++) {
      const int8_t *q = r->codes.q + row_in(r, i) * r->codes.stride;
      const float *sx = r->codes.scale + row_in(r, i) * r->codes.groups;
      const int32_t *less8 = r->codes.less8 + row_in(r, i) * r->codes.groups;
      const uint8_t *w = m->codes + (int64_t)t * m->groups * per * bytes;
      float tot[16] = {0}, acc[16];
      for (int32_t s = 0; s < m->groups; s += per_segment) {
        for (int l = 0; l < 16; l++) acc[l] = 0;
        for (int32_t g = s; g < m->groups && g < s + per_segment; g++) {
          int32_t dot[16] = {0};
          for (int32_t c = 0; c < per; c++, w += bytes) dots32(m->form, w, q + g * m->group + c * 32, dot);
          for (int l = 0; l < 16; l++)
            acc[l] = canon_term(dot[l] + less8[g] * offset, scale_at(m, ((int64_t)t * m->groups + g) * 16 + l), sx[g], acc[l]);
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
