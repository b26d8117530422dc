// AMX: integer products of 16 rows and more by tiles, everything else by the VNNI family.
//
// A tile product sums the bytes of a whole group, 32 or 64 inputs at a time, for 16 rows by 16 outputs, exactly; the sums go
// through memory to the lanes, where they are scaled group after group as rule 2 says. Weights are unpacked once for a
// segment of 512 inputs into unsigned bytes; what is taken from a code is taken from the sum of the activations.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8")
#include <pthread.h>
#include <string.h>
#include "lanes_avx512.h"
#include "lanes_rows.h"

enum { SIDE = 16, MOST = 64, SUMS = 4 };   // rows and outputs of a tile; rows whose sums wait between segments; groups in flight

typedef struct { uint8_t palette, start, reserved[14]; uint16_t width[16]; uint8_t rows[16]; } tile_shapes;
typedef struct {
  uint8_t w[CANON_SEGMENT * 16];
  float scale[CANON_SEGMENT / 32][16];
  int8_t q[SIDE][CANON_SEGMENT];
  int32_t sums[SUMS][SIDE][16];
} scratch __attribute__((aligned(64)));

// Tiles 0 to 3 hold sums, 4 activations, 5 weights of one step.
static void shape(int32_t step) {
  tile_shapes s = {.palette = 1};
  for (int i = 0; i < SUMS; i++) { s.width[i] = 64; s.rows[i] = SIDE; }
  s.width[4] = (uint16_t)step;
  s.rows[4] = SIDE;
  s.width[5] = 64;
  s.rows[5] = (uint8_t)(step / 4);
  _tile_loadconfig(&s);
}

static const uint8_t *unpack(const canon_matrix *m, int32_t t, int32_t g0, int32_t g1, scratch *s) {
  const __m512i low = _mm512_set1_epi8(15);
  int64_t units = (int64_t)(g1 - g0) * m->group / 32, at = ((int64_t)t * m->groups + g0) * m->group / 32;
  for (int32_t g = g0; g < g1; g++) v_store(s->scale[g - g0], v_load_form(m->scale_form, m->scales, ((int64_t)t * m->groups + g) * 16));
  if (m->form == CANON_INT8) return m->codes + at * 512;
  const uint8_t *w = m->codes + at * 256;
  for (int64_t i = 0; i < units * 4; i++, w += 64) {
    __builtin_prefetch(w + AHEAD);
    __m512i v = _mm512_loadu_si512(w);
    _mm512_store_si512(s->w + i * 128, _mm512_and_si512(v, low));
    _mm512_store_si512(s->w + i * 128 + 64, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
  }
  return s->w;
}

// One tile product of group g into tile N.
#define SUM(N, A, STRIDE, B)                                        \
  do {                                                              \
    _tile_zero(N);                                                  \
    for (int32_t c = 0; c < m->group; c += step) {                  \
      _tile_loadd(4, (A) + c, STRIDE);                              \
      _tile_loadd(5, (B) + (int64_t)c * 16, 64);                    \
      _tile_dpbsud(N, 4, 5);                                        \
    }                                                               \
    _tile_stored(N, s->sums[N], 64);                                \
  } while (0)

static void sixteen_rows(const canon_matrix *m, int32_t step, int32_t g0, int32_t g1, const uint8_t *w, const canon_rows *r, int32_t i0, scratch *s, float (*tot)[16]) {
  const float *sx[SIDE];
  const int32_t *less8[SIDE];
  const int8_t *q = r->codes.q + row_in(r, i0) * r->codes.stride + (int64_t)g0 * m->group;
  int64_t stride = r->codes.stride;
  const int32_t times = m->form == CANON_INT8 ? 16 : 1;   // less8 is for codes of offset 8
  for (int i = 0; i < SIDE; i++) {
    int64_t in = row_in(r, i0 + i);
    sx[i] = r->codes.scale + in * r->codes.groups;
    less8[i] = r->codes.less8 + in * r->codes.groups;
    if (r->in) memcpy(s->q[i], r->codes.q + in * r->codes.stride + (int64_t)g0 * m->group, (size_t)((g1 - g0) * m->group));
  }
  if (r->in) { q = s->q[0]; stride = CANON_SEGMENT; }
  vf acc[SIDE];
  UNROLL(16)
  for (int i = 0; i < SIDE; i++) acc[i] = v_set(0);
  for (int32_t g = g0; g < g1; g += SUMS) {
    int32_t n = g1 - g < SUMS ? g1 - g : SUMS;
    const int8_t *a = q + (int64_t)(g - g0) * m->group;
    const uint8_t *b = w + (int64_t)(g - g0) * m->group * 16;
    SUM(0, a, stride, b);
    if (n > 1) SUM(1, a + m->group, stride, b + m->group * 16);
    if (n > 2) SUM(2, a + 2 * m->group, stride, b + 2 * m->group * 16);
    if (n > 3) SUM(3, a + 3 * m->group, stride, b + 3 * m->group * 16);
    for (int32_t k = 0; k < n; k++) {
      vf sw = v_load(s->scale[g - g0 + k]);
      UNROLL(16)
      for (int i = 0; i < SIDE; i++) {
        __m512i dot = _mm512_add_epi32(_mm512_load_si512(s->sums[k][i]), _mm512_set1_epi32(less8[i][g + k] * times));
        acc[i] = v_fma(_mm512_cvtepi32_ps(dot), v_mul(sw, v_set(sx[i][g + k])), acc[i]);
      }
    }
  }
  UNROLL(16)
  for (int i = 0; i < SIDE; i++) v_store(tot[i], v_add(g0 ? v_load(tot[i]) : v_set(0), acc[i]));
}

// Sixteens of rows may overlap at the end: a row in two of them gets the same sums twice.
static void tile_rows(const canon_matrix *m, int32_t step, int32_t t, const canon_rows *r, int32_t i0, int32_t n, scratch *s) {
  const int32_t per_segment = CANON_SEGMENT / m->group;
  float tot[MOST][16] __attribute__((aligned(64)));
  for (int32_t g0 = 0; g0 < m->groups; g0 += per_segment) {
    int32_t g1 = g0 + per_segment < m->groups ? g0 + per_segment : m->groups;
    const uint8_t *w = unpack(m, t, g0, g1, s);
    for (int32_t k = 0; k < n; k += SIDE) sixteen_rows(m, step, g0, g1, w, r, i0 + (k + SIDE <= n ? k : n - SIDE), s, tot + k);
  }
  for (int32_t k = 0; k < n; k++) put_tile(m, r, i0 + k, t, tot[n % SIDE && k >= n / SIDE * SIDE ? k + SIDE - n % SIDE : k]);
}

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0 || m->form == CANON_MXFP4 || m->sub != m->group || m->offset != CANON_OFFSET_FORM || r->n < SIDE) {
    canon_kernels_vnni()->product(m, tile, tiles, r);
    return;
  }
  int32_t step = m->group < 64 ? 32 : 64;
  scratch s;
  shape(step);
  for (int32_t t = tile; t < tile + tiles; t++)
    for (int32_t i = 0, n; i < r->n; i += n) {   // never leaves fewer rows than a tile has
      n = r->n - i <= MOST ? r->n - i : r->n - i < MOST + SIDE ? MOST - SIDE : MOST;
      tile_rows(m, step, t, r, i, n, &s);
    }
  _tile_release();
}

static canon_kernels table;
static void fill(void) {
  table = *canon_kernels_vnni();
  table.product = product;
}

const canon_kernels *canon_kernels_amx(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill);
  return &table;
}
#endif
