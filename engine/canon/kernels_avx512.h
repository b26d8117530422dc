// Integer products of the AVX-512 families: sixteen outputs in the lanes of one register. The including file defines VNNI.
//
// Without VNNI: vpmaddubsw as in the AVX2 family. With it: vpdpbusd, unsigned codes times signed activations, the codes'
// offset removed by the sum of the activations.
#pragma once
#include "lanes_avx512.h"
#include "lanes_rows.h"

// Integer additions may be reordered, and gcc does so: it takes all products first and spills them. This makes a sum exist.
#define NOW(v) __asm__("" : "+v"(v))

static inline __m512 scales16(const canon_matrix *m, int64_t i) { return v_load_form(m->scale_form, m->scales, i); }
static inline __m512i four(const int8_t *q) { int32_t a; memcpy(&a, q, 4); return _mm512_set1_epi32(a); }

enum { MANY = 8 };   // rows of one pass; 12 and 16 were no faster, and eight conversations are one pass

static inline __attribute__((always_inline)) void tile_product(const int form, const int rows, const canon_matrix *m, int32_t t, const canon_rows *r, int32_t i0) {
  const int bytes = form == CANON_INT4 ? 256 : 512;
  const __m512i low = _mm512_set1_epi8(15), ones = _mm512_set1_epi16(1), flip = _mm512_set1_epi8((char)0x80), zero = _mm512_setzero_si512();
  const int32_t per = m->group / 32, per_segment = CANON_SEGMENT / m->group, groups = m->groups;
  const int fetch = i0 == 0;   // later rows find the tile in the cache
  const int8_t *q[MANY];
  const float *sx[MANY];
  const int32_t *less8[MANY];
  __m512 tot[MANY], acc[MANY];
  UNROLL(8)
  for (int i = 0; i < rows; i++) {
    int64_t in = row_in(r, i0 + i);
    q[i] = r->codes.q + in * r->codes.stride;
    sx[i] = r->codes.scale + in * r->codes.groups;
    less8[i] = r->codes.less8 + in * r->codes.groups;
    tot[i] = v_set(0);
  }
  const uint8_t *w = m->codes + (int64_t)t * groups * per * bytes;
  for (int32_t s = 0; s < groups; s += per_segment) {
    int32_t end = s + per_segment < groups ? s + per_segment : groups;
    UNROLL(8)
    for (int i = 0; i < rows; i++) acc[i] = v_set(0);
    for (int32_t g = s; g < end; g++) {
      __m512i dot[MANY];
      UNROLL(8)
      for (int i = 0; i < rows; i++) dot[i] = form == CANON_INT4 ? _mm512_set1_epi32(less8[i][g]) : VNNI ? _mm512_set1_epi32(less8[i][g] * 16) : zero;
      for (int32_t c = 0; c < per; c++, w += bytes) {
        int32_t at = g * m->group + c * 32;
        if (rows > 1 && fetch)
          for (int j = 0; j < bytes; j += 64) __builtin_prefetch(w + j + AHEAD);
        if (form == CANON_INT4) {
          __m512i part[MANY];
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) {
            if (rows == 1) __builtin_prefetch(w + j * 64 + AHEAD);
            __m512i v = _mm512_loadu_si512(w + j * 64), lo = _mm512_and_si512(v, low), hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
            UNROLL(8)
            for (int i = 0; i < rows; i++) {
              __m512i a = four(q[i] + at + j * 8), b = four(q[i] + at + j * 8 + 4);
              if (VNNI) {
                dot[i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(dot[i], lo, a), hi, b);
              } else {
                __m512i x = _mm512_add_epi16(_mm512_maddubs_epi16(lo, a), _mm512_maddubs_epi16(hi, b));
                part[i] = j == 0 ? x : _mm512_add_epi16(part[i], x);
                NOW(part[i]);
              }
            }
          }
          if (!VNNI)
            UNROLL(8)
            for (int i = 0; i < rows; i++) dot[i] = _mm512_add_epi32(dot[i], _mm512_madd_epi16(part[i], ones));
        } else {
#pragma GCC unroll 8
          for (int j = 0; j < 8; j++) {
            if (rows == 1) __builtin_prefetch(w + j * 64 + AHEAD);
            __m512i v = _mm512_loadu_si512(w + j * 64);
            if (!VNNI) v = _mm512_xor_si512(v, flip);
            __mmask64 negative = _mm512_movepi8_mask(v);
            __m512i u = _mm512_abs_epi8(v);
            UNROLL(8)
            for (int i = 0; i < rows; i++) {
              __m512i a = four(q[i] + at + j * 4);
              if (VNNI) dot[i] = _mm512_dpbusd_epi32(dot[i], v, a);
              else dot[i] = _mm512_add_epi32(dot[i], _mm512_madd_epi16(_mm512_maddubs_epi16(u, _mm512_mask_sub_epi8(a, negative, zero, a)), ones));
            }
          }
        }
      }
      __m512 sw = scales16(m, ((int64_t)t * groups + g) * 16);
      UNROLL(8)
      for (int i = 0; i < rows; i++) {
        acc[i] = v_fma(_mm512_cvtepi32_ps(dot[i]), v_mul(sw, v_set(sx[i][g])), acc[i]);
      }
    }
    UNROLL(8)
    for (int i = 0; i < rows; i++) tot[i] = v_add(tot[i], acc[i]);
  }
  UNROLL(8)
  for (int i = 0; i < rows; i++) {
    float out[16] __attribute__((aligned(64)));
    _mm512_store_ps(out, tot[i]);
    put_tile(m, r, i0 + i, t, out);
  }
}

// Every form and offset, one row or four: a dot for 16 inputs at a time, which a scale of 32 or more adds up. The codes of
// MXFP4 are looked up as doubled values plus 12, so that they are unsigned (8 * 2 * 24 * 127 / 2 = 24384 fits int16).
static inline __attribute__((always_inline)) void tile_any(const int form, const int rows, const canon_matrix *m, int32_t t, const canon_rows *r, int32_t i0) {
  const int bytes = form == CANON_INT8 ? 256 : 128, bias = form == CANON_INT8 && !VNNI ? 128 : 0;   // of 16 inputs; codes less bias are dotted
  const __m512i low = _mm512_set1_epi8(15), ones = _mm512_set1_epi16(1), flip = _mm512_set1_epi8((char)0x80), none = _mm512_setzero_si512();
  const __m512i doubled = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const int32_t subs = m->group / m->sub, units = m->sub / 16, per_segment = CANON_SEGMENT / m->group, groups = m->groups;
  const int32_t offset = m->offset == CANON_OFFSET_MINIMA ? 0 : form == CANON_INT4 ? 8 : form == CANON_INT8 ? 128 : 12;
  const uint8_t *w = m->codes + (int64_t)t * groups * subs * units * bytes;
  const int8_t *q[4];
  const float *sx[4];
  const int32_t *less8[4], *half[4];
  __m512 tot[4], acc[4];
  UNROLL(4)
  for (int i = 0; i < rows; i++) {
    int64_t in = row_in(r, i0 + i);
    q[i] = r->codes.q + in * r->codes.stride;
    sx[i] = r->codes.scale + in * r->codes.groups;
    less8[i] = r->codes.less8 + in * r->codes.groups;
    half[i] = subs == 2 ? r->codes.half + in * r->codes.groups : 0;
    tot[i] = v_set(0);
  }
  int64_t from = 0;
  for (int32_t s = 0; s < groups; s += per_segment) {
    int32_t end = s + per_segment < groups ? s + per_segment : groups;
    UNROLL(4)
    for (int i = 0; i < rows; i++) acc[i] = v_set(0);
    for (int32_t g = s; g < end; g++)
      for (int32_t b = 0; b < subs; b++) {
        int64_t at = (((int64_t)t * groups + g) * subs + b) * 16;
        __m512i dot[4], zero = _mm512_set1_epi32(bias - offset);
        if (m->offset == CANON_OFFSET_ZEROS) zero = _mm512_sub_epi32(_mm512_set1_epi32(bias), _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(m->offsets + at))));
        int32_t sum[4];
        UNROLL(4)
        for (int i = 0; i < rows; i++) {
          sum[i] = -(less8[i][g] / 8);
          if (half[i]) sum[i] = b ? sum[i] - half[i][g] : half[i][g];
          dot[i] = _mm512_mullo_epi32(zero, _mm512_set1_epi32(sum[i]));
        }
        for (int32_t u = 0; u < units; u++, w += bytes, from += 16) {
          if (form == CANON_INT8) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
              __builtin_prefetch(w + j * 64 + AHEAD);
              __m512i v = _mm512_loadu_si512(w + j * 64), whole = VNNI ? v : _mm512_xor_si512(v, flip), size = _mm512_abs_epi8(whole);
              UNROLL(4)
              for (int i = 0; i < rows; i++) {
                __m512i a = four(q[i] + from + j * 4);
                if (VNNI) dot[i] = _mm512_dpbusd_epi32(dot[i], whole, a);
                else dot[i] = _mm512_add_epi32(dot[i], _mm512_madd_epi16(_mm512_maddubs_epi16(size, _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(whole), none, a)), ones));
              }
            }
            continue;
          }
          __m512i part[4];
#pragma GCC unroll 2
          for (int j = 0; j < 2; j++) {
            __builtin_prefetch(w + j * 64 + AHEAD);
            __m512i v = _mm512_loadu_si512(w + j * 64), lo = _mm512_and_si512(v, low), hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
            if (form == CANON_MXFP4) { lo = _mm512_shuffle_epi8(doubled, lo); hi = _mm512_shuffle_epi8(doubled, hi); }
            UNROLL(4)
            for (int i = 0; i < rows; i++) {
              __m512i a = four(q[i] + from + j * 8), c = four(q[i] + from + j * 8 + 4);
              if (VNNI) {
                dot[i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(dot[i], lo, a), hi, c);
              } else {
                __m512i x = _mm512_add_epi16(_mm512_maddubs_epi16(lo, a), _mm512_maddubs_epi16(hi, c));
                part[i] = j == 0 ? x : _mm512_add_epi16(part[i], x);
              }
            }
          }
          if (!VNNI)
            UNROLL(4)
            for (int i = 0; i < rows; i++) dot[i] = _mm512_add_epi32(dot[i], _mm512_madd_epi16(part[i], ones));
        }
        __m512 sw = form == CANON_MXFP4 ? v_mul(v_from_e8m0(m->scales + at), v_set(0.5f)) : scales16(m, at);
        __m512 least = m->offset == CANON_OFFSET_MINIMA ? v_load_form(m->scale_form, m->offsets, at) : sw;
        UNROLL(4)
        for (int i = 0; i < rows; i++) {
          __m512 x = v_set(sx[i][g]);
          acc[i] = v_fma(_mm512_cvtepi32_ps(dot[i]), v_mul(sw, x), acc[i]);
          if (m->offset == CANON_OFFSET_MINIMA) acc[i] = v_fma(least, v_mul(v_set((float)sum[i]), x), acc[i]);
        }
      }
    UNROLL(4)
    for (int i = 0; i < rows; i++) tot[i] = v_add(tot[i], acc[i]);
  }
  for (int i = 0; i < rows; i++) {
    float out[16] __attribute__((aligned(64)));
    _mm512_store_ps(out, tot[i]);
    put_tile(m, r, i0 + i, t, out);
  }
}

static inline __attribute__((always_inline)) void product_codes(const int form, const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  for (int32_t t = tile; t < tile + tiles; t++) {
    int32_t i = 0;
    if (form != CANON_MXFP4 && m->sub == m->group && m->offset == CANON_OFFSET_FORM) {
      for (; i + MANY <= r->n; i += MANY) tile_product(form, MANY, m, t, r, i);
      for (; i + 4 <= r->n; i += 4) tile_product(form, 4, m, t, r, i);
      for (; i + 2 <= r->n; i += 2) tile_product(form, 2, m, t, r, i);
      if (i < r->n) tile_product(form, 1, m, t, r, i);
      continue;
    }
    for (; i + 4 <= r->n; i += 4) tile_any(form, 4, m, t, r, i);
    for (; i < r->n; i++) tile_any(form, 1, m, t, r, i);
  }
}

static __attribute__((noinline)) void int4(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_codes(CANON_INT4, m, tile, tiles, r); }
static __attribute__((noinline)) void int8(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_codes(CANON_INT8, m, tile, tiles, r); }
static __attribute__((noinline)) void mxfp4(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_codes(CANON_MXFP4, m, tile, tiles, r); }
