// AVX2, FMA and F16C. Integer dots: unsigned codes times signed activations by vpmaddubsw. Eight such products of int4
// codes fit int16 (8 * 2 * 15 * 127 = 30480), so one vpmaddwd serves 32 inputs; int8 codes go as |w| times sign(q, w), whose
// pairs fit (2 * 128 * 127 = 32512).
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "lanes_avx2.h"
#include "kernels_lanes.h"

// Integer additions may be reordered, and gcc does so: it takes all products first and spills them. This makes a sum exist.
#define NOW(v) __asm__("" : "+x"(v))

// Scales of 8 outputs; a negative form is read from the matrix.
static inline __attribute__((always_inline)) __m256 scales8(const int form, const canon_matrix *m, int64_t i) {
  return v_load_form(form < 0 ? m->scale_form : form, m->scales, i);
}

// Several passes over some tiles fetch what the next tiles read, each its share of codes and scales.
typedef struct { const uint8_t *codes, *scales; int64_t step, beside; } early;

static inline early early_of(const canon_matrix *m, int32_t tile, int32_t tiles, int32_t bytes, int32_t pass, int32_t passes) {
  int32_t per = m->group / 32, size = 16 * (int32_t)canon_form_bytes(m->scale_form);   // scales of a tile's group
  int64_t before = (int64_t)m->groups * (tile + tiles), here = (int64_t)m->groups * tiles;
  return (early){m->codes + (before + here * pass / passes) * per * bytes, m->scales + (before + here * pass / passes) * size, bytes / passes, size / (per * passes)};
}

static inline __attribute__((always_inline)) void fetch(early *e) {   // once for 32 inputs
  for (int64_t j = 0; j < e->step; j += 64) __builtin_prefetch(e->codes + j, 0, 2);
  __builtin_prefetch(e->scales, 0, 2);
  e->codes += e->step;
  e->scales += e->beside;
}

// A few rows against some tiles, 16 outputs at a time: what is unpacked is used for all rows. `per` is the group in 32 inputs.
static inline __attribute__((always_inline)) void tile_product(const int form, const int scale, const int per, const int rows, const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r, int32_t i0, int32_t pass, int32_t passes) {
  const int bytes = form == CANON_INT4 ? 256 : 512, pieces = form == CANON_INT4 ? 4 : 8, per_segment = CANON_SEGMENT / (32 * per);
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)0x80);
  const int32_t groups = m->groups;
  const uint8_t *w = m->codes + (int64_t)tile * groups * per * bytes;
  early e = early_of(m, tile, tiles, bytes, pass, passes);
  const int8_t *q[4];
  const float *sx[4];
  const int32_t *less8[4];
  float out[4][16] __attribute__((aligned(32)));
  UNROLL(4)
  for (int i = 0; i < rows; i++) {
    int64_t in = row_in(r, i0 + i);
    q[i] = r->codes.q + in * r->codes.stride;
    sx[i] = r->codes.scale + in * r->codes.groups;
    less8[i] = r->codes.less8 + in * r->codes.groups;
  }
  for (int32_t t = tile; t < tile + tiles; t++) {
    __m256 tot[4][2], acc[4][2];
    UNROLL(4)
    for (int i = 0; i < rows; i++) tot[i][0] = tot[i][1] = v_set(0);
    int64_t at = 0, beside = (int64_t)t * groups * 16;
    for (int32_t s = 0; s < groups; s += per_segment) {
      int32_t end = s + per_segment < groups ? s + per_segment : groups;
      UNROLL(4)
      for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = v_set(0);
      for (int32_t g = s; g < end; g++, beside += 16) {
        __m256i dot[4][2], part[4][2];
        UNROLL(4)
        for (int i = 0; i < rows; i++) dot[i][0] = dot[i][1] = form == CANON_INT4 ? _mm256_set1_epi32(less8[i][g]) : _mm256_setzero_si256();
        for (int c = 0; c < per; c++, w += bytes, at += 32) {
          if (rows > 1) fetch(&e);
          UNROLL(8)
          for (int j = 0; j < pieces; j++) {
            if (rows == 1) __builtin_prefetch(w + j * 64 + AHEAD);
            UNROLL(2)
            for (int h = 0; h < 2; h++) {
              __m256i v = _mm256_loadu_si256((const __m256i *)(w + j * 64 + h * 32)), lo, hi;
              if (form == CANON_INT4) {
                lo = _mm256_and_si256(v, low);
                hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
              } else {
                hi = _mm256_xor_si256(v, flip);
                lo = _mm256_abs_epi8(hi);
              }
              UNROLL(4)
              for (int i = 0; i < rows; i++) {
                int32_t a, b;
                __m256i x;
                if (form == CANON_INT4) {
                  memcpy(&a, q[i] + at + j * 8, 4);
                  memcpy(&b, q[i] + at + j * 8 + 4, 4);
                  x = _mm256_add_epi16(_mm256_maddubs_epi16(lo, _mm256_set1_epi32(a)), _mm256_maddubs_epi16(hi, _mm256_set1_epi32(b)));
                  part[i][h] = j == 0 ? x : _mm256_add_epi16(part[i][h], x);
                } else {
                  memcpy(&a, q[i] + at + j * 4, 4);
                  x = _mm256_madd_epi16(_mm256_maddubs_epi16(lo, _mm256_sign_epi8(_mm256_set1_epi32(a), hi)), ones);
                  part[i][h] = j == 0 ? x : _mm256_add_epi32(part[i][h], x);
                }
                NOW(part[i][h]);
              }
            }
          }
          UNROLL(4)
          for (int i = 0; i < rows; i++)
            UNROLL(2)
            for (int h = 0; h < 2; h++) dot[i][h] = _mm256_add_epi32(dot[i][h], form == CANON_INT4 ? _mm256_madd_epi16(part[i][h], ones) : part[i][h]);
        }
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
          __m256 sw = scales8(scale, m, beside + h * 8);
          UNROLL(4)
          for (int i = 0; i < rows; i++)
            acc[i][h] = v_fma(_mm256_cvtepi32_ps(dot[i][h]), v_mul(sw, v_set(sx[i][g])), acc[i][h]);
        }
      }
      UNROLL(4)
      for (int i = 0; i < rows; i++)
        UNROLL(2)
        for (int h = 0; h < 2; h++) tot[i][h] = v_add(tot[i][h], acc[i][h]);
    }
    UNROLL(4)
    for (int i = 0; i < rows; i++) {
      UNROLL(2)
      for (int h = 0; h < 2; h++) _mm256_store_ps(&out[i][h * 8], tot[i][h]);
      put_tile(m, r, i0 + i, t, out[i]);
    }
  }
}

// Many rows of int4: up to PANEL inputs of a tile are unpacked once, into bytes and float scales that stay in the first-level
// cache, and read by four rows at a time for all 16 outputs. 20 vector operations for 32 inputs by 8 outputs of a row remain.
enum { PANEL = 1024 };
typedef struct { uint8_t w[PANEL * 16]; float scale[PANEL / 32][16]; } panel __attribute__((aligned(64)));

static inline __attribute__((always_inline)) void unpack(const canon_matrix *m, int32_t t, int32_t g0, int32_t g1, panel *p) {
  const __m256i low = _mm256_set1_epi8(15);
  const int32_t per = m->group / 32;
  const uint8_t *w = m->codes + ((int64_t)t * m->groups + g0) * per * 256;
  for (int32_t i = 0; i < (g1 - g0) * per * 4; i++, w += 64) {
    for (int h = 0; h < 64; h += 32) {
      __m256i v = _mm256_loadu_si256((const __m256i *)(w + h));
      _mm256_store_si256((__m256i *)(p->w + i * 128 + h), _mm256_and_si256(v, low));
      _mm256_store_si256((__m256i *)(p->w + i * 128 + 64 + h), _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
    }
  }
  for (int32_t g = g0; g < g1; g++)
    for (int h = 0; h < 16; h += 8) _mm256_store_ps(p->scale[g - g0] + h, scales8(-1, m, ((int64_t)t * m->groups + g) * 16 + h));
}

// Adds groups g0 to before g1, which a panel holds, to the sums of four rows.
static inline __attribute__((always_inline)) void four_rows(const int per, const panel *p, int32_t g0, int32_t g1, early *e, const int8_t *const from[4], const float *const sx[4], const int32_t *const less8[4], float (*tot)[16]) {
  const int per_segment = CANON_SEGMENT / (32 * per);
  const __m256i ones = _mm256_set1_epi16(1);
  const uint8_t *w = p->w;
  const int8_t *q[4];
  UNROLL(4)
  for (int i = 0; i < 4; i++) q[i] = from[i] + (int64_t)g0 * per * 32;
  for (int32_t s = g0; s < g1; s += per_segment) {
    int32_t end = s + per_segment < g1 ? s + per_segment : g1;
    __m256 acc[4][2];
    UNROLL(4)
    for (int i = 0; i < 4; i++) acc[i][0] = acc[i][1] = v_set(0);
    for (int32_t g = s; g < end; g++) {
      __m256i dot[4][2], part[4][2];
      for (int c = 0; c < per; c++, w += 512) {
        fetch(e);
        UNROLL(8)
        for (int j = 0; j < 8; j++) {
          __m256i a = _mm256_load_si256((const __m256i *)(w + j * 64)), b = _mm256_load_si256((const __m256i *)(w + j * 64 + 32));
          UNROLL(4)
          for (int i = 0; i < 4; i++) {
            int32_t v;
            memcpy(&v, q[i] + c * 32 + j * 4, 4);
            __m256i x = _mm256_set1_epi32(v), l = _mm256_maddubs_epi16(a, x), h = _mm256_maddubs_epi16(b, x);
            NOW(l);   // both products before both additions: these then find a free pipe more often
            NOW(h);
            part[i][0] = j == 0 ? l : _mm256_add_epi16(part[i][0], l);
            part[i][1] = j == 0 ? h : _mm256_add_epi16(part[i][1], h);
            NOW(part[i][0]);
            NOW(part[i][1]);
          }
        }
        UNROLL(4)
        for (int i = 0; i < 4; i++)
          UNROLL(2)
          for (int h = 0; h < 2; h++) dot[i][h] = _mm256_add_epi32(_mm256_madd_epi16(part[i][h], ones), c > 0 ? dot[i][h] : _mm256_set1_epi32(less8[i][g]));
      }
      UNROLL(4)
      for (int i = 0; i < 4; i++) q[i] += 32 * per;
      UNROLL(2)
      for (int h = 0; h < 2; h++) {
        __m256 sw = _mm256_load_ps(p->scale[g - g0] + h * 8);
        UNROLL(4)
        for (int i = 0; i < 4; i++) acc[i][h] = v_fma(_mm256_cvtepi32_ps(dot[i][h]), v_mul(sw, v_set(sx[i][g])), acc[i][h]);
      }
    }
    UNROLL(4)
    for (int i = 0; i < 4; i++)
      UNROLL(2)
      for (int h = 0; h < 2; h++) _mm256_store_ps(tot[i] + h * 8, v_add(s ? _mm256_load_ps(tot[i] + h * 8) : v_set(0), acc[i][h]));
  }
}

enum { MANY = 8, WIDE = 128, MOST = 64 };   // rows and inputs from which unpacking pays; rows of one pass over the tiles

// Up to MOST rows, four at least, of some tiles. The last four may overlap others: a row in two fours gets the same sums twice.
static inline __attribute__((always_inline)) void many_rows(const int per, const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r, int32_t i0, int32_t n) {
  const int per_panel = PANEL / (32 * per);
  panel p;
  float tot[MOST][16] __attribute__((aligned(32)));
  int32_t row[MOST], slots = (n + 3) / 4 * 4;
  const int8_t *q[MOST];
  const float *sx[MOST];
  const int32_t *less8[MOST];
  for (int32_t k = 0; k < slots; k++) {
    row[k] = i0 + (k < n / 4 * 4 ? k : k - slots + n);
    int64_t in = row_in(r, row[k]);
    q[k] = r->codes.q + in * r->codes.stride;
    sx[k] = r->codes.scale + in * r->codes.groups;
    less8[k] = r->codes.less8 + in * r->codes.groups;
  }
  early e = early_of(m, tile, tiles, 256, 0, slots / 4);
  for (int32_t t = tile; t < tile + tiles; t++) {
    for (int32_t g0 = 0; g0 < m->groups; g0 += per_panel) {
      int32_t g1 = g0 + per_panel < m->groups ? g0 + per_panel : m->groups;
      unpack(m, t, g0, g1, &p);
      for (int32_t k = 0; k < slots; k += 4) four_rows(per, &p, g0, g1, &e, q + k, sx + k, less8 + k, tot + k);
    }
    for (int32_t k = 0; k < slots; k++) put_tile(m, r, row[k], t, tot[k]);
  }
}

// Where the scales, zero points or minima of 8 outputs lie.
static inline int64_t beside(const canon_matrix *m, int32_t t, int32_t g, int32_t b, int h) {
  int32_t subs = m->group / m->sub;
  return (((int64_t)t * m->groups + g) * subs + b) * 16 + h * 8;
}

// Every form and offset, one row or four: a dot for 16 inputs at a time, which a scale of 32 or more adds up. The codes of
// MXFP4 are looked up as doubled values plus 12, so that they are unsigned (8 * 2 * 24 * 127 / 2 = 24384 fits int16).
static inline __attribute__((always_inline)) void tile_any(const int form, const int rows, const int halves, const canon_matrix *m, int32_t t, const canon_rows *r, int32_t i0) {
  const int bytes = form == CANON_INT8 ? 256 : 128, pieces = form == CANON_INT8 ? 4 : 2, bias = form == CANON_INT8 ? 128 : 0;   // of 16 inputs; int8 codes less 128 are signed
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)0x80);
  const __m256i doubled = _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const int32_t subs = m->group / m->sub, units = m->sub / 16, per_segment = CANON_SEGMENT / m->group, groups = m->groups;
  const int32_t offset = m->offset == CANON_OFFSET_MINIMA ? 0 : form == CANON_INT4 ? 8 : form == CANON_INT8 ? 128 : 12;
  const int8_t *q[4];
  const float *sx[4];
  const int32_t *less8[4], *half[4];
  float out[4][16] __attribute__((aligned(32)));
  for (int i = 0; i < rows; i++) {
    int64_t in = row_in(r, i0 + i);
    q[i] = r->codes.q + in * r->codes.stride;
    sx[i] = r->codes.scale + in * r->codes.groups;
    less8[i] = r->codes.less8 + in * r->codes.groups;
    half[i] = subs == 2 ? r->codes.half + in * r->codes.groups : 0;
  }
  for (int h0 = 0; h0 < 2; h0 += halves) {
    const uint8_t *w = m->codes + (int64_t)t * groups * subs * units * bytes + h0 * 32;
    int64_t at = 0;
    __m256 tot[4][2], acc[4][2];
    UNROLL(4)
    for (int i = 0; i < rows; i++)
      UNROLL(2)
      for (int h = 0; h < halves; h++) tot[i][h] = v_set(0);
    for (int32_t s = 0; s < groups; s += per_segment) {
      int32_t end = s + per_segment < groups ? s + per_segment : groups;
      UNROLL(4)
      for (int i = 0; i < rows; i++)
        UNROLL(2)
        for (int h = 0; h < halves; h++) acc[i][h] = v_set(0);
      for (int32_t g = s; g < end; g++)
        for (int32_t b = 0; b < subs; b++) {
          __m256i dot[4][2], zero[2];
          int32_t sum[4];
          UNROLL(2)
          for (int h = 0; h < halves; h++)
            zero[h] = m->offset == CANON_OFFSET_ZEROS ? _mm256_sub_epi32(_mm256_set1_epi32(bias), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(m->offsets + beside(m, t, g, b, h0 + h)))))
                                                      : _mm256_set1_epi32(bias - offset);
          UNROLL(4)
          for (int i = 0; i < rows; i++) {
            sum[i] = -(less8[i][g] / 8);
            if (half[i]) sum[i] = b ? sum[i] - half[i][g] : half[i][g];
            UNROLL(2)
            for (int h = 0; h < halves; h++) dot[i][h] = _mm256_mullo_epi32(zero[h], _mm256_set1_epi32(sum[i]));
          }
          for (int32_t u = 0; u < units; u++, w += bytes, at += 16) {
            __m256i part[4][2];
            UNROLL(4)
            for (int j = 0; j < pieces; j++) {
              if (i0 == 0 && h0 == 0) __builtin_prefetch(w + j * 64 + AHEAD);
              UNROLL(2)
              for (int h = 0; h < halves; h++) {
                __m256i v = _mm256_loadu_si256((const __m256i *)(w + j * 64 + h * 32)), lo, hi;
                if (form == CANON_INT8) {
                  hi = _mm256_xor_si256(v, flip);
                  lo = _mm256_abs_epi8(hi);
                } else {
                  lo = _mm256_and_si256(v, low);
                  hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
                  if (form == CANON_MXFP4) { lo = _mm256_shuffle_epi8(doubled, lo); hi = _mm256_shuffle_epi8(doubled, hi); }
                }
                UNROLL(4)
                for (int i = 0; i < rows; i++) {
                  int32_t a, c;
                  if (form == CANON_INT8) {
                    memcpy(&a, q[i] + at + j * 4, 4);
                    dot[i][h] = _mm256_add_epi32(dot[i][h], _mm256_madd_epi16(_mm256_maddubs_epi16(lo, _mm256_sign_epi8(_mm256_set1_epi32(a), hi)), ones));
                    NOW(dot[i][h]);
                    continue;
                  }
                  memcpy(&a, q[i] + at + j * 8, 4);
                  memcpy(&c, q[i] + at + j * 8 + 4, 4);
                  __m256i x = _mm256_add_epi16(_mm256_maddubs_epi16(lo, _mm256_set1_epi32(a)), _mm256_maddubs_epi16(hi, _mm256_set1_epi32(c)));
                  part[i][h] = j == 0 ? x : _mm256_add_epi16(part[i][h], x);
                  NOW(part[i][h]);
                }
              }
            }
            if (form == CANON_INT8) continue;
            UNROLL(4)
            for (int i = 0; i < rows; i++)
              UNROLL(2)
              for (int h = 0; h < halves; h++) dot[i][h] = _mm256_add_epi32(dot[i][h], _mm256_madd_epi16(part[i][h], ones));
          }
          UNROLL(2)
          for (int h = 0; h < halves; h++) {
            int64_t place = beside(m, t, g, b, h0 + h);
            __m256 sw = form == CANON_MXFP4 ? v_mul(v_from_e8m0(m->scales + place), v_set(0.5f)) : scales8(-1, m, place);
            __m256 least = m->offset == CANON_OFFSET_MINIMA ? v_load_form(m->scale_form, m->offsets, place) : sw;
            UNROLL(4)
            for (int i = 0; i < rows; i++) {
              __m256 x = v_set(sx[i][g]);
              acc[i][h] = v_fma(_mm256_cvtepi32_ps(dot[i][h]), v_mul(sw, x), acc[i][h]);
              if (m->offset == CANON_OFFSET_MINIMA) acc[i][h] = v_fma(least, v_mul(v_set((float)sum[i]), x), acc[i][h]);
            }
          }
        }
      UNROLL(4)
      for (int i = 0; i < rows; i++)
        UNROLL(2)
        for (int h = 0; h < halves; h++) tot[i][h] = v_add(tot[i][h], acc[i][h]);
    }
    UNROLL(4)
    for (int i = 0; i < rows; i++)
      UNROLL(2)
      for (int h = 0; h < halves; h++) _mm256_store_ps(&out[i][(h0 + h) * 8], tot[i][h]);
  }
  for (int i = 0; i < rows; i++) put_tile(m, r, i0 + i, t, out[i]);
}

#define ROWS(NAME, PER) \
  static __attribute__((noinline)) void NAME(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r, int32_t i0, int32_t n) { many_rows(PER, m, tile, tiles, r, i0, n); }
ROWS(rows_g32, 1)
ROWS(rows_g64, 2)
ROWS(rows_g128, 4)

static inline __attribute__((always_inline)) void product_tiles(const int form, const int scale, const int per, const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  int32_t i = 0;
  while (form == CANON_INT4 && r->n - i >= MANY && m->cols >= WIDE) {
    int32_t n = r->n - i < MOST ? r->n - i : MOST;
    (per == 1 ? rows_g32 : per == 2 ? rows_g64 : rows_g128)(m, tile, tiles, r, i, n);
    i += n;
  }
  int32_t first = i, passes = (r->n - i + 3) / 4;
  for (; i + 4 <= r->n; i += 4) tile_product(form, scale, per, 4, m, tile, tiles, r, i, (i - first) / 4, passes);
  if (r->n - i == 3) tile_product(form, scale, per, 3, m, tile, tiles, r, i, passes - 1, passes);
  if (r->n - i == 2) tile_product(form, scale, per, 2, m, tile, tiles, r, i, passes - 1, passes);
  if (r->n - i == 1) tile_product(form, scale, per, 1, m, tile, tiles, r, i, passes - 1, passes);
}

// One function for each form and group, so that all loops within a group are straight code; scales in f16 are the common case.
typedef void tiles_product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r);
#define TILES(NAME, FORM, SCALE, PER) \
  static __attribute__((noinline)) void NAME(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_tiles(FORM, SCALE, PER, m, tile, tiles, r); }
TILES(int4_g32_f16, CANON_INT4, CANON_F16, 1)
TILES(int4_g64_f16, CANON_INT4, CANON_F16, 2)
TILES(int4_g128_f16, CANON_INT4, CANON_F16, 4)
TILES(int4_g32, CANON_INT4, -1, 1)
TILES(int4_g64, CANON_INT4, -1, 2)
TILES(int4_g128, CANON_INT4, -1, 4)
TILES(int8_g32_f16, CANON_INT8, CANON_F16, 1)
TILES(int8_g32, CANON_INT8, -1, 1)
TILES(int8_g64, CANON_INT8, -1, 2)
TILES(int8_g128, CANON_INT8, -1, 4)

static inline __attribute__((always_inline)) void product_any(const int form, const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  for (int32_t t = tile; t < tile + tiles; t++) {
    int32_t i = 0;
    for (; i + 4 <= r->n; i += 4) tile_any(form, 4, 1, m, t, r, i);
    for (; i < r->n; i++) tile_any(form, 1, 2, m, t, r, i);
  }
}
static __attribute__((noinline)) void int4_any(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_any(CANON_INT4, m, tile, tiles, r); }
static __attribute__((noinline)) void int8_any(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_any(CANON_INT8, m, tile, tiles, r); }
static __attribute__((noinline)) void mxfp4(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) { product_any(CANON_MXFP4, m, tile, tiles, r); }

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  static tiles_product *const int4s[2][3] = {{int4_g32, int4_g64, int4_g128}, {int4_g32_f16, int4_g64_f16, int4_g128_f16}};
  static tiles_product *const int8s[2][3] = {{int8_g32, int8_g64, int8_g128}, {int8_g32_f16, int8_g64, int8_g128}};
  if (m->group == 0) { product_floats(m, tile, tiles, r); return; }
  if (m->form == CANON_MXFP4) { mxfp4(m, tile, tiles, r); return; }
  if (m->sub != m->group || m->offset != CANON_OFFSET_FORM) { (m->form == CANON_INT4 ? int4_any : int8_any)(m, tile, tiles, r); return; }
  (m->form == CANON_INT4 ? int4s : int8s)[m->scale_form == CANON_F16][m->group / 64](m, tile, tiles, r);
}

static int32_t sum8(__m256i v) {
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

static void quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *less8, int32_t *half) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  float padded[128];
  for (int32_t g = 0; g * group < n; g++, q += group) {
    const float *p = x + g * group;
    if (n - g * group < group) {          // a short last group: zeros quantise to 0 and change neither maximum nor sum
      memset(padded, 0, (size_t)group * 4);
      memcpy(padded, p, (size_t)(n - g * group) * 4);
      p = padded;
    }
    __m256i top = _mm256_setzero_si256();
    for (int32_t i = 0; i < group; i += 8) top = _mm256_max_epi32(top, _mm256_castps_si256(_mm256_and_ps(v_load(p + i), magnitude)));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    uint32_t bits = (uint32_t)_mm_cvtsi128_si32(h);
    float amax = canon_float(bits);
    if (bits >= 0x7f800000u || amax < 0x1p-100f) {
      memset(q, 0, (size_t)group);
      scale[g] = bits >= 0x7f800000u ? canon_nan() : 0;
      less8[g] = 0;
      if (half && group == 32) half[g] = 0;
      continue;
    }
    scale[g] = amax / 127.0f;
    __m256 inv = v_set(127.0f / amax);   // no product exceeds 127 by as much as it takes to round to 128
    __m256i sum = _mm256_setzero_si256();
    for (int32_t i = 0; i < group; i += 32) {
      __m256i c[4];
      for (int k = 0; k < 4; k++) {
        if (k == 2 && half && group == 32) half[g] = sum8(sum);
        c[k] = _mm256_cvtps_epi32(v_mul(v_load(p + i + k * 8), inv));
        sum = _mm256_add_epi32(sum, c[k]);
      }
      __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
      _mm256_storeu_si256((__m256i *)(q + i), _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
    less8[g] = -8 * sum8(sum);
  }
}

const canon_kernels *canon_kernels_avx2(void) {
  static const canon_kernels table = LANES_TABLE(product, quantise);
  return &table;
}
#endif
