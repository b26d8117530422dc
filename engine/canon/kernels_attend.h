// Attention kernels (rule 6) over the lanes of the including file (see kernels_lanes.h).
//
// One block of up to 256 keys for up to three queries at a time. Keys in lanes for the scores (an ascending chain over
// channels in each lane), channels in lanes for the values (an ascending chain over keys). The queries of one call may attend
// different ranges of the block, as rows of a prompt do: scores are computed for the widest range, and values are taken
// together where all attend and one query at a time beside it. Reads each key and value once for three queries:
// (dim + values) * keys * form bytes.
#pragma once

enum { CHUNK = 32 };

// Adds p[i][t] times value t to the outputs of nq queries, t ascending from `from` to before `to`. Page by page, so that the
// channels of a page beyond the first few are read while it is in the cache; between pages the sums wait in o.
static SPECIAL void attend_values(const int form, const int nq, const canon_attend *a, int32_t q0, float (*p)[CANON_BLOCK], int32_t from, int32_t to) {
  int64_t size = canon_form_bytes(form);
  int32_t width = a->values, whole = width / CHUNK * CHUNK;
  for (int32_t page = from >> 6; page * 64 < to; page++) {
    int32_t t0 = page * 64 > from ? page * 64 : from, t1 = page * 64 + 64 < to ? page * 64 + 64 : to, c;
    const uint8_t *next = (page + 1) * 64 < to ? a->v[page + 1] : a->after ? a->after : a->v[page];
    for (c = 0; c < whole; c += CHUNK) {
      vf acc[3][VECTORS];
      UNROLL(3)
      for (int i = 0; i < nq; i++)
        UNROLL(4)
        for (int v = 0; v < VECTORS; v++) acc[i][v] = v_load(a->o + (int64_t)(q0 + i) * width + c + v * VL);
      for (int32_t t = t0; t < t1; t++) {
        int64_t at = ((int64_t)(t & 63) * a->v_stride + c) * size;
        if (form != CANON_F32) __builtin_prefetch(next + at);
        UNROLL(4)
        for (int v = 0; v < VECTORS; v++) {
          vf value = v_load_form(form, a->v[page] + at, v * VL);
          UNROLL(3)
          for (int i = 0; i < nq; i++) acc[i][v] = v_fma(v_set(p[i][t]), value, acc[i][v]);
        }
      }
      UNROLL(3)
      for (int i = 0; i < nq; i++)
        UNROLL(4)
        for (int v = 0; v < VECTORS; v++) v_store(a->o + (int64_t)(q0 + i) * width + c + v * VL, acc[i][v]);
    }
    for (; c < width; c += VL) {
      int n = width - c < VL ? width - c : VL;
      vf acc[3];
      UNROLL(3)
      for (int i = 0; i < nq; i++) acc[i] = v_load_n(a->o + (int64_t)(q0 + i) * width + c, n);
      for (int32_t t = t0; t < t1; t++) {
        vf value = v_load_form_n(form, a->v[page], (int64_t)(t & 63) * a->v_stride + c, n);
        UNROLL(3)
        for (int i = 0; i < nq; i++) acc[i] = v_fma(v_set(p[i][t]), value, acc[i]);
      }
      UNROLL(3)
      for (int i = 0; i < nq; i++) v_store_n(a->o + (int64_t)(q0 + i) * width + c, acc[i], n);
    }
  }
}

static SPECIAL void attend_block(const int form, const int nq, const canon_attend *a, int32_t q0) {
  int64_t size = canon_form_bytes(form);
  int32_t dim = a->dim, lo = a->lo[q0], hi = a->hi[q0], all_lo = lo, all_hi = hi;   // attended by some query, and by all
  float p[3][CANON_BLOCK] __attribute__((aligned(64)));
  const float *q[3];
  vf scale = v_set(a->scale);
  UNROLL(3)
  for (int i = 0; i < nq; i++) {
    q[i] = a->q + (int64_t)(q0 + i) * dim;
    lo = a->lo[q0 + i] < lo ? a->lo[q0 + i] : lo;
    hi = a->hi[q0 + i] > hi ? a->hi[q0 + i] : hi;
    all_lo = a->lo[q0 + i] > all_lo ? a->lo[q0 + i] : all_lo;
    all_hi = a->hi[q0 + i] < all_hi ? a->hi[q0 + i] : all_hi;
  }
  int32_t first = lo & ~(CHUNK - 1), end = (hi + CHUNK - 1) & ~(CHUNK - 1);
  for (int32_t t = first; t < hi; t += CHUNK) {
    const uint8_t *k = a->k[t >> 6] + (t & 63) * size;
    // Keys of one channel lie 64 apart, which hardware does not foresee: while a page is read, the next one is fetched.
    const uint8_t *next = ((t >> 6) + 1) * 64 < hi ? a->k[(t >> 6) + 1] : a->v[lo >> 6];
    next += (t & 63) * size;
    vf acc[3][VECTORS];
    UNROLL(3)
    for (int i = 0; i < nq; i++)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) acc[i][v] = v_set(0);
    for (int32_t d = 0; d < dim; d++, k += 64 * size, next += 64 * size) {
      if (form != CANON_F32) __builtin_prefetch(next);
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) {
        vf key = v_load_form(form, k, v * VL);
        UNROLL(3)
        for (int i = 0; i < nq; i++) acc[i][v] = v_fma(v_set(q[i][d]), key, acc[i][v]);
      }
    }
    UNROLL(3)
    for (int i = 0; i < nq; i++)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) v_store(p[i] + t + v * VL, v_mul(acc[i][v], scale));
  }
  UNROLL(3)
  for (int i = 0; i < nq; i++) {
    for (int32_t t = first; t < a->lo[q0 + i]; t++) p[i][t] = -canon_inf();   // absent keys: exp gives exactly 0, and adding 0 to
    for (int32_t t = a->hi[q0 + i]; t < end; t++) p[i][t] = -canon_inf();     // a sum of terms that are not negative changes no bit
    vf top = v_set(-canon_inf());
    for (int32_t t = first; t < end; t += VL) top = v_max(v_load(p[i] + t), top);
    float m = v_highest(top);
    vf mm = v_set(m), lane[VECTORS];
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) lane[v] = v_set(0);
    for (int32_t t = first; t < end; t += CHUNK)
      UNROLL(4)
      for (int v = 0; v < VECTORS; v++) {
        vf e = v_exp(v_sub(v_load(p[i] + t + v * VL), mm));
        v_store(p[i] + t + v * VL, e);
        lane[v] = v_add(lane[v], e);
      }
    a->m[q0 + i] = m;
    a->l[q0 + i] = v_tree(lane);
    memset(a->o + (int64_t)(q0 + i) * a->values, 0, (size_t)a->values * 4);
  }
  int32_t rest = all_lo > all_hi ? all_lo : all_hi;
  for (int i = 0; i < nq; i++)
    if (a->lo[q0 + i] < all_lo) attend_values(form, 1, a, q0 + i, p + i, a->lo[q0 + i], all_lo < a->hi[q0 + i] ? all_lo : a->hi[q0 + i]);
  if (all_lo < all_hi) attend_values(form, nq, a, q0, p, all_lo, all_hi);
  for (int i = 0; i < nq; i++)
    if (rest < a->hi[q0 + i]) attend_values(form, 1, a, q0 + i, p + i, rest, a->hi[q0 + i]);
}

static __attribute__((noinline)) void attend_f16_3(const canon_attend *a, int32_t q0) { attend_block(CANON_F16, 3, a, q0); }
static __attribute__((noinline)) void attend_f16_1(const canon_attend *a, int32_t q0) { attend_block(CANON_F16, 1, a, q0); }
static __attribute__((noinline)) void attend_f32_3(const canon_attend *a, int32_t q0) { attend_block(CANON_F32, 3, a, q0); }
static __attribute__((noinline)) void attend_f32_1(const canon_attend *a, int32_t q0) { attend_block(CANON_F32, 1, a, q0); }

// The serving form and floats are specialised for one and three queries; the other form loads as it says at run time.
static void lanes_attend(const canon_attend *a) {
  int32_t q = 0;
  if (a->form == CANON_F16) for (; q + 3 <= a->queries; q += 3) attend_f16_3(a, q);
  if (a->form == CANON_F32) for (; q + 3 <= a->queries; q += 3) attend_f32_3(a, q);
  for (; q < a->queries; q++) {
    if (a->form == CANON_F16) attend_f16_1(a, q);
    else if (a->form == CANON_F32) attend_f32_1(a, q);
    else attend_block(a->form, 1, a, q);
  }
}

// n stored values, a multiple of 32, as floats.
static void lanes_widen(int32_t form, const void *in, int32_t n, float *out) {
  if (form == CANON_F32) memcpy(out, in, (size_t)n * 4);
  else if (form == CANON_F16) for (int32_t i = 0; i < n; i += VL) v_store(out + i, v_from_f16((const uint16_t *)in + i));
  else for (int32_t i = 0; i < n; i += VL) v_store(out + i, v_from_bf16((const uint16_t *)in + i));
}
