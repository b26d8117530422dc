// Attention kernels (rule 6) over the lanes of the including file (see kernels_lanes.h): one block of up to 256 keys in pages of
// 64, some queries at a time. Keys in lanes for the scores (an ascending chain over channels in each lane), channels in
// lanes for the values (an ascending chain over keys). All queries go through a page while it is in the first-level cache.
//
// The queries of one call may attend different ranges of the block, as rows of a prompt do: scores are computed for the widest
// range, and values are taken together where all attend and one query at a time beside it.
#pragma once

// 32 keys or channels at a time for three queries fill AVX2's registers; with sixteen lanes six are needed to hide a
// multiply-add's latency. Stored values are converted where they are used, for three queries that are often all there are.
enum { CHUNK = 32, FEW = 3, MOST_QUERIES = VL == 16 ? 6 : 3 };

// The part of a page that some, and that all, of nq queries attend.
typedef struct { int32_t lo, hi, all_lo, all_hi; } spans;

static inline spans spans_of(const canon_attend *a, int nq, int32_t q0, int32_t page) {
  int32_t t0 = page * 64, t1 = t0 + 64;
  spans s = {t1, t0, t0, t1};
  for (int32_t i = q0; i < q0 + nq; i++) {
    s.lo = a->lo[i] < s.lo ? a->lo[i] : s.lo;
    s.hi = a->hi[i] > s.hi ? a->hi[i] : s.hi;
    s.all_lo = a->lo[i] > s.all_lo ? a->lo[i] : s.all_lo;
    s.all_hi = a->hi[i] < s.all_hi ? a->hi[i] : s.all_hi;
  }
  s.lo = s.lo > t0 ? s.lo : t0;
  s.hi = s.hi < t1 ? s.hi : t1;
  return s;
}

static SPECIAL void attend_scores(const int form, const int nq, const canon_attend *a, int32_t q0, int32_t page) {
  spans s = spans_of(a, nq, q0, page);
  int64_t size = canon_form_bytes(form);
  vf scale = v_set(a->scale);
  const float *q = a->q + (int64_t)q0 * a->dim;
  for (int32_t t = s.lo & ~(CHUNK - 1); t < s.hi; t += CHUNK) {
    // Keys of one channel lie 64 apart, which hardware does not foresee: while a page is read, the next one is fetched.
    const uint8_t *k = a->k[page] + (t & 63) * size, *next = page < 3 && a->k[page + 1] ? a->k[page + 1] : a->v[page];
    next += (t & 63) * size;
    vf acc[MOST_QUERIES][VECTORS];
    UNROLL(6)
    for (int i = 0; i < nq; i++)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) acc[i][v] = v_set(0);
    for (int32_t d = 0; d < a->dim; d++, k += 64 * size, next += 64 * size) {
      if (form != CANON_F32) __builtin_prefetch(next);
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) {
        vf key = v_load_form(form, k, v * VL);
        UNROLL(6)
        for (int i = 0; i < nq; i++) acc[i][v] = v_fma(v_set(q[i * (int64_t)a->dim + d]), key, acc[i][v]);
      }
    }
    UNROLL(6)
    for (int i = 0; i < nq; i++)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) v_store(a->p + (int64_t)(q0 + i) * CANON_BLOCK + t + v * VL, v_mul(acc[i][v], scale));
  }
}

// The maximum, the exponentials in place of the scores, their sum in lanes and tree.
static void attend_weights(const canon_attend *a, int32_t i) {
  float *p = a->p + (int64_t)i * CANON_BLOCK;
  int32_t first = a->lo[i] & ~(CHUNK - 1), end = (a->hi[i] + CHUNK - 1) & ~(CHUNK - 1);
  for (int32_t t = first; t < a->lo[i]; t++) p[t] = -canon_inf();   // absent keys: exp gives exactly 0, and adding 0 to a
  for (int32_t t = a->hi[i]; t < end; t++) p[t] = -canon_inf();     // sum of terms that are not negative changes no bit
  vf top = v_set(-canon_inf());
  for (int32_t t = first; t < end; t += VL) top = v_max(v_load(p + t), top);
  float m = v_highest(top);
  vf mm = v_set(m), lane[VECTORS];
  UNROLL(4)
  for (int v = 0; v < VECTORS; v++) lane[v] = v_set(0);
  for (int32_t t = first; t < end; t += CHUNK)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) {
      vf e = v_exp(v_sub(v_load(p + t + v * VL), mm));
      v_store(p + t + v * VL, e);
      lane[v] = v_add(lane[v], e);
    }
  a->m[i] = m;
  a->l[i] = v_tree(lane);
}

// Adds p[t] times value t to the outputs of nq queries, for t from t0 to before t1 of a page.
static SPECIAL void attend_span(const int form, const int nq, const canon_attend *a, int32_t q0, int32_t page, int32_t t0, int32_t t1) {
  int64_t size = canon_form_bytes(form);
  int32_t width = a->values, whole = width / CHUNK * CHUNK, c;
  const uint8_t *next = page < 3 && a->v[page + 1] ? a->v[page + 1] : a->after ? a->after : a->v[page];
  const float *p = a->p + (int64_t)q0 * CANON_BLOCK;
  for (c = 0; c < whole; c += CHUNK) {
    vf acc[MOST_QUERIES][VECTORS];
    UNROLL(6)
    for (int i = 0; i < nq; i++)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) acc[i][v] = v_load(a->o + (int64_t)(q0 + i) * width + c + v * VL);
    for (int32_t t = t0; t < t1; t++) {
      int64_t at = ((int64_t)(t & 63) * a->v_stride + c) * size;
      if (form != CANON_F32) __builtin_prefetch(next + at);
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) {
        vf value = v_load_form(form, a->v[page] + at, v * VL);
        UNROLL(6)
        for (int i = 0; i < nq; i++) acc[i][v] = v_fma(v_set(p[i * CANON_BLOCK + t]), value, acc[i][v]);
      }
    }
    UNROLL(6)
    for (int i = 0; i < nq; i++)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) v_store(a->o + (int64_t)(q0 + i) * width + c + v * VL, acc[i][v]);
  }
  for (; c < width; c += VL) {
    int n = width - c < VL ? width - c : VL;
    vf acc[MOST_QUERIES];
    UNROLL(6)
    for (int i = 0; i < nq; i++) acc[i] = v_load_n(a->o + (int64_t)(q0 + i) * width + c, n);
    for (int32_t t = t0; t < t1; t++) {
      vf value = v_load_form_n(form, a->v[page], (int64_t)(t & 63) * a->v_stride + c, n);
      UNROLL(6)
      for (int i = 0; i < nq; i++) acc[i] = v_fma(v_set(p[i * CANON_BLOCK + t]), value, acc[i]);
    }
    UNROLL(6)
    for (int i = 0; i < nq; i++) v_store_n(a->o + (int64_t)(q0 + i) * width + c, acc[i], n);
  }
}

static SPECIAL void attend_values(const int form, const int nq, const canon_attend *a, int32_t q0, int32_t page) {
  spans s = spans_of(a, nq, q0, page);
  int32_t rest = s.all_lo > s.all_hi ? s.all_lo : s.all_hi;
  for (int32_t i = q0; nq > 1 && i < q0 + nq; i++) {
    int32_t lo = a->lo[i] > s.lo ? a->lo[i] : s.lo, hi = a->hi[i] < s.hi ? a->hi[i] : s.hi;
    hi = hi < s.all_lo ? hi : s.all_lo;
    if (lo < hi) attend_span(form, 1, a, i, page, lo, hi);
  }
  if (s.all_lo < s.all_hi) attend_span(form, nq, a, q0, page, s.all_lo, s.all_hi);
  for (int32_t i = q0; nq > 1 && i < q0 + nq; i++) {
    int32_t lo = a->lo[i] > rest ? a->lo[i] : rest, hi = a->hi[i] < s.hi ? a->hi[i] : s.hi;
    if (lo < hi) attend_span(form, 1, a, i, page, lo, hi);
  }
}

typedef void attend_page(const canon_attend *a, int32_t q0, int32_t page);
#define ATTEND(STEP, NAME, FORM, NQ) \
  static __attribute__((noinline)) void STEP##_##NAME(const canon_attend *a, int32_t q0, int32_t page) { STEP(FORM, NQ, a, q0, page); }
ATTEND(attend_scores, f16_3, CANON_F16, FEW)
ATTEND(attend_scores, f16_1, CANON_F16, 1)
ATTEND(attend_scores, f32_many, CANON_F32, MOST_QUERIES)
ATTEND(attend_scores, f32_1, CANON_F32, 1)
ATTEND(attend_scores, any_1, a->form, 1)
ATTEND(attend_values, f16_3, CANON_F16, FEW)
ATTEND(attend_values, f16_1, CANON_F16, 1)
ATTEND(attend_values, f32_many, CANON_F32, MOST_QUERIES)
ATTEND(attend_values, f32_1, CANON_F32, 1)
ATTEND(attend_values, any_1, a->form, 1)

// n stored values, a multiple of 32, as floats.
static void widen(int32_t form, const uint8_t *in, int32_t n, float *out) {
  const uint16_t *half = (const uint16_t *)in;
  if (form == CANON_F16) for (int32_t i = 0; i < n; i += VL) v_store(out + i, v_from_f16(half + i));
  else for (int32_t i = 0; i < n; i += VL) v_store(out + i, v_from_bf16(half + i));
}

// All queries through one page after the other: of keys, or of values, n numbers a page.
static void attend_pages(canon_attend *a, const uint8_t *pages[4], int32_t form, int32_t n, int most, attend_page *many, attend_page *one) {
  for (int32_t page = 0; page < 4; page++) {
    if (!pages[page]) continue;
    if (form != a->form) {
      widen(form, pages[page], n, a->wide);
      pages[page] = (const uint8_t *)a->wide;
    }
    int32_t q = 0;
    if (many) for (; q + most <= a->queries; q += most) many(a, q, page);
    for (; q < a->queries; q++) one(a, q, page);
  }
}

// The serving form and floats are specialised for one and several queries; the other form loads as it says at run time.
static void lanes_attend(const canon_attend *given) {
  canon_attend a = *given;
  if (a.wide) a.form = CANON_F32;
  int f16 = a.form == CANON_F16, f32 = a.form == CANON_F32, most = f32 ? MOST_QUERIES : FEW;
  attend_pages(&a, a.k, given->form, a.dim * 64, most, f16 ? attend_scores_f16_3 : f32 ? attend_scores_f32_many : 0, f16 ? attend_scores_f16_1 : f32 ? attend_scores_f32_1 : attend_scores_any_1);
  for (int32_t i = 0; i < a.queries; i++) attend_weights(&a, i);
  memset(a.o, 0, (size_t)a.queries * (size_t)a.values * 4);
  attend_pages(&a, a.v, given->form, a.v_stride * 64, most, f16 ? attend_values_f16_3 : f32 ? attend_values_f32_many : 0, f16 ? attend_values_f16_1 : f32 ? attend_values_f32_1 : attend_values_any_1);
}
