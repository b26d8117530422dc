// Integer products of the NEON families: sixteen outputs of a tile in two halves of two registers. The including file defines
// DOT4, which adds to four sums the dots of four signed weights each with four activations.
#pragma once
#include "lanes_neon.h"
#include "lanes_rows.h"

static inline vf scales4(const canon_matrix *m, int64_t i) {
  if (m->form == CANON_MXFP4) return v_mul(v_from_e8m0(m->scales + i), v_set(0.5f));
  return v_load_form(m->scale_form, m->scales, i);
}

// Every form and offset, one row or four. Codes are dotted as signed bytes: of int8 less 128, of int4 as stored, of MXFP4 as
// doubled values; what else is taken from a code is taken from the sum of the activations.
static SPECIAL void tile_product(const int form, const int rows, const canon_matrix *m, int32_t t, const canon_rows *r, int32_t i0) {
  static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int8x16_t doubled = vld1q_s8(twice);
  const uint8x16_t low = vdupq_n_u8(15), flip = vdupq_n_u8(0x80);
  const int bytes = form == CANON_INT8 ? 256 : 128;   // of 16 inputs
  const int32_t subs = m->group / m->sub, units = m->sub / 16, per_segment = CANON_SEGMENT / m->group, groups = m->groups;
  const int32_t bias = form == CANON_INT8 ? 128 : 0, offset = m->offset == CANON_OFFSET_MINIMA || form == CANON_MXFP4 ? 0 : form == CANON_INT4 ? 8 : 128;
  const int8_t *q[4];
  const float *sx[4];
  const int32_t *less8[4], *half[4];
  float out[4][16];
  for (int i = 0; i < rows; i++) {
    int64_t in = row_in(r, i0 + i);
    q[i] = r->codes.q + in * r->codes.stride;
    sx[i] = r->codes.scale + in * r->codes.groups;
    less8[i] = r->codes.less8 + in * r->codes.groups;
    half[i] = subs == 2 ? r->codes.half + in * r->codes.groups : 0;
  }
  for (int h0 = 0; h0 < 16; h0 += 8) {
    const uint8_t *w = m->codes + (int64_t)t * groups * subs * units * bytes + h0 * 4;
    int64_t at = 0, beside = (int64_t)t * groups * subs * 16 + h0;
    vf tot[4][2], acc[4][2];
    UNROLL(4)
    for (int i = 0; i < rows; i++) tot[i][0] = tot[i][1] = v_set(0);
    for (int32_t s = 0; s < groups; s += per_segment) {
      int32_t end = s + per_segment < groups ? s + per_segment : groups;
      UNROLL(4)
      for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = v_set(0);
      for (int32_t g = s; g < end; g++)
        for (int32_t b = 0; b < subs; b++, beside += 16) {
          int32x4_t dot[4][2], less[2];
          int32_t sum[4];
          UNROLL(2)
          for (int h = 0; h < 2; h++) {
            less[h] = vdupq_n_s32(bias - offset);
            if (m->offset != CANON_OFFSET_ZEROS) continue;
            int32_t zero[4];
            for (int l = 0; l < 4; l++) zero[l] = bias - m->offsets[beside + h * 4 + l];
            less[h] = vld1q_s32(zero);
          }
          UNROLL(4)
          for (int i = 0; i < rows; i++) {
            sum[i] = -(less8[i][g] / 8);
            if (half[i]) sum[i] = b ? sum[i] - half[i][g] : half[i][g];
            UNROLL(2)
            for (int h = 0; h < 2; h++) dot[i][h] = vmulq_n_s32(less[h], sum[i]);
          }
          for (int32_t u = 0; u < units; u++, w += bytes, at += 16)
            UNROLL(4)
            for (int j = 0; j < bytes / 64; j++) {
              if (i0 == 0) __builtin_prefetch(w + j * 64 + AHEAD);
              UNROLL(2)
              for (int h = 0; h < 2; h++) {
                uint8x16_t v = vld1q_u8(w + j * 64 + h * 16);
                int8x16_t a, c;
                if (form == CANON_INT8) {
                  a = vreinterpretq_s8_u8(veorq_u8(v, flip));
                } else if (form == CANON_INT4) {
                  a = vreinterpretq_s8_u8(vandq_u8(v, low));
                  c = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
                } else {
                  a = vqtbl1q_s8(doubled, vandq_u8(v, low));
                  c = vqtbl1q_s8(doubled, vshrq_n_u8(v, 4));
                }
                UNROLL(4)
                for (int i = 0; i < rows; i++) {
                  int32_t x, y;
                  memcpy(&x, q[i] + at + j * (form == CANON_INT8 ? 4 : 8), 4);
                  dot[i][h] = DOT4(dot[i][h], a, vreinterpretq_s8_s32(vdupq_n_s32(x)));
                  if (form == CANON_INT8) continue;
                  memcpy(&y, q[i] + at + j * 8 + 4, 4);
                  dot[i][h] = DOT4(dot[i][h], c, vreinterpretq_s8_s32(vdupq_n_s32(y)));
                }
              }
            }
          UNROLL(2)
          for (int h = 0; h < 2; h++) {
            vf sw = scales4(m, beside + h * 4), least = m->offset == CANON_OFFSET_MINIMA ? v_load_form(m->scale_form, m->offsets, beside + h * 4) : sw;
            UNROLL(4)
            for (int i = 0; i < rows; i++) {
              vf x = v_set(sx[i][g]);
              acc[i][h] = v_fma(vcvtq_f32_s32(dot[i][h]), v_mul(sw, x), acc[i][h]);
              if (m->offset == CANON_OFFSET_MINIMA) acc[i][h] = v_fma(least, v_mul(v_set((float)sum[i]), x), acc[i][h]);
            }
          }
        }
      UNROLL(4)
      for (int i = 0; i < rows; i++)
        UNROLL(2)
        for (int h = 0; h < 2; h++) tot[i][h] = v_add(tot[i][h], acc[i][h]);
    }
    UNROLL(4)
    for (int i = 0; i < rows; i++)
      UNROLL(2)
      for (int h = 0; h < 2; h++) v_store(&out[i][h0 + h * 4], tot[i][h]);
  }
  for (int i = 0; i < rows; i++) put_tile(m, r, i0 + i, t, out[i]);
}

static SPECIAL void product_codes(const int form, const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  for (int32_t t = tile; t < tile + tiles; t++) {
    int32_t i = 0;
    for (; i + 4 <= r->n; i += 4) tile_product(form, 4, m, t, r, i);
    for (; i < r->n; i++) tile_product(form, 1, m, t, r, i);
  }
}

static __attribute__((noinline)) void int4(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_codes(CANON_INT4, m, tile, tiles, r); }
static __attribute__((noinline)) void int8(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_codes(CANON_INT8, m, tile, tiles, r); }
static __attribute__((noinline)) void mxfp4(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_codes(CANON_MXFP4, m, tile, tiles, r); }

static void codes(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  (m->form == CANON_INT4 ? int4 : m->form == CANON_INT8 ? int8 : mxfp4)(m, tile, tiles, r);
}
