// Kernels written once over the lanes that the including file provides (VL of them). Lane l of a rule-3 sum is lane
// l mod VL of accumulator l / VL, so any VL that divides 32 keeps the written order. Tails never add padding: lanes
// beyond the end keep their accumulator.
#pragma once
#include "lanes_rows.h"
#include "source.h"

enum { VECTORS = CANON_LANES / VL };

// ---- float products (rule 3): outs weight rows by rows input rows, all accumulators in registers -------------------------

static SPECIAL void dots(const int form, const uint8_t *const *w, const int outs, const float *const *x, const int rows, int32_t n, float *out) {
  vf acc[4][VECTORS];
  UNROLL(4)
  for (int i = 0; i < outs * rows; i++)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) acc[i][v] = v_set(0);
  int32_t i = 0;
  for (; i + CANON_LANES <= n; i += CANON_LANES)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) {
      vf a[2];
      UNROLL(2)
      for (int o = 0; o < outs; o++) a[o] = v_load_form(form, w[o], i + v * VL);
      UNROLL(2)
      for (int r = 0; r < rows; r++) {
        vf b = v_load(x[r] + i + v * VL);
        UNROLL(2)
        for (int o = 0; o < outs; o++) acc[r * outs + o][v] = v_fma(a[o], b, acc[r * outs + o][v]);
      }
    }
  UNROLL(4)
  for (int v = 0; v < VECTORS; v++) {
    int left = n - i - v * VL;
    if (left <= 0) break;
    if (left > VL) left = VL;
    UNROLL(2)
    for (int o = 0; o < outs; o++) {
      vf a = v_load_form_n(form, w[o], i + v * VL, left);
      UNROLL(2)
      for (int r = 0; r < rows; r++) {
        vf *t = &acc[r * outs + o][v];
        *t = v_keep_n(v_fma(a, v_load_n(x[r] + i + v * VL, left), *t), *t, left);
      }
    }
  }
  UNROLL(4)
  for (int k = 0; k < outs * rows; k++) out[k] = v_tree(acc[k]);
}

static SPECIAL void product_float(const int form, const canon_matrix *m, int32_t c0, int32_t c1, const canon_rows *r) {
  int64_t bytes = m->cols * canon_form_bytes(form);
  for (int32_t c = c0; c < c1;) {
    const uint8_t *w[2] = {m->codes + c * bytes, m->codes + (c + 1) * bytes};
    int two = DOT_OUTPUTS == 2 && c + 1 < c1;
    for (int32_t i = 0; i < r->n;) {
      float out[4];
      const float *x[2] = {r->x + row_in(r, i) * r->x_stride, 0};
      if (two && DOT_ROWS == 2 && i + 1 < r->n) {
        x[1] = r->x + row_in(r, i + 1) * r->x_stride;
        dots(form, w, 2, x, 2, m->cols, out);
        put(r, i, c, out[0]); put(r, i, c + 1, out[1]);
        put(r, i + 1, c, out[2]); put(r, i + 1, c + 1, out[3]);
        i += 2;
        continue;
      }
      if (two) {
        dots(form, w, 2, x, 1, m->cols, out);
        put(r, i, c, out[0]); put(r, i, c + 1, out[1]);
      } else {
        dots(form, w, 1, x, 1, m->cols, out);
        put(r, i, c, out[0]);
      }
      i++;
    }
    c += two ? 2 : 1;
  }
}

// Fp8 with a scale a block: the tree of each block is multiplied into the output's sum. With several rows each block of two
// outputs is decoded once for all of them, 64 rows at a time.
enum { DECODED = 512, SUMS = 64 };

static void product_blocks(const canon_matrix *m, int32_t c0, int32_t c1, const canon_rows *r) {
  int decode = r->n > 1 && m->block_cols <= DECODED;
  for (int32_t i0 = 0; i0 < r->n; i0 += SUMS)
    for (int32_t c = c0; c < c1; c += 2) {
      int outs = c + 1 < c1 ? 2 : 1;
      int32_t n = r->n - i0 < SUMS ? r->n - i0 : SUMS;
      float acc[SUMS][2] = {{0}}, wide[2][DECODED] __attribute__((aligned(64)));
      for (int32_t at = 0, b = 0; at < m->cols; at += m->block_cols, b++) {
        int32_t width = m->cols - at < m->block_cols ? m->cols - at : m->block_cols;
        const uint8_t *w[2] = {0};
        float scale[2] = {0};
        for (int o = 0; o < outs; o++) {
          w[o] = m->codes + (int64_t)(c + o) * m->cols + at;
          scale[o] = source_value(m->scale_form, m->scales, (c + o) / m->block_rows * (int64_t)m->blocks + (m->blocks == 1 ? 0 : b));
          if (!decode) continue;
          int32_t j = 0;
          for (; j + VL <= width; j += VL) v_store(wide[o] + j, v_from_e4m3(w[o] + j));
          for (; j < width; j++) wide[o][j] = canon_from_e4m3(w[o][j]);
          w[o] = (const uint8_t *)wide[o];
        }
        for (int32_t i = 0; i < n; i++) {
          const float *x[2] = {r->x + row_in(r, i0 + i) * r->x_stride + at, 0};
          float tree[2];
          if (decode && outs == DOT_OUTPUTS) dots(CANON_F32, w, DOT_OUTPUTS, x, 1, width, tree);
          else
            for (int o = 0; o < outs; o++) {
              const uint8_t *one[2] = {w[o], 0};
              if (decode) dots(CANON_F32, one, 1, x, 1, width, tree + o);
              else dots(CANON_FP8, one, 1, x, 1, width, tree + o);
            }
          for (int o = 0; o < outs; o++) acc[i][o] = canon_fmaf(scale[o], tree[o], acc[i][o]);
        }
      }
      for (int32_t i = 0; i < n; i++)
        for (int o = 0; o < outs; o++) put(r, i0 + i, c + o, acc[i][o]);
    }
}

static inline void product_floats(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  int32_t c0 = tile * 16, c1 = c0 + tiles * 16;
  if (c1 > m->rows) c1 = m->rows;
  if (m->form == CANON_F32) product_float(CANON_F32, m, c0, c1, r);
  else if (m->form == CANON_F16) product_float(CANON_F16, m, c0, c1, r);
  else if (m->form == CANON_FP8) product_blocks(m, c0, c1, r);
  else product_float(CANON_BF16, m, c0, c1, r);
}

// ---- rows --------------------------------------------------------------------------------------------------------------

static void lanes_norm(float *y, const float *x, const float *w, int32_t n, float eps, int plus_one) {
  float out;
  const uint8_t *a[2] = {(const uint8_t *)x, 0};
  const float *b[2] = {x, 0};
  dots(CANON_F32, a, 1, b, 1, n, &out);
  vf r = v_set(canon_rms_factor(out, n, eps));
  for (int32_t i = 0; i < n; i += VL) {
    int left = n - i;
    if (left >= VL) {
      vf v = v_mul(v_load(x + i), r);
      if (w) v = v_mul(v, plus_one ? v_add(v_load(w + i), v_set(1.0f)) : v_load(w + i));
      v_store(y + i, v);
    } else {
      vf v = v_mul(v_load_n(x + i, left), r);
      if (w) v = v_mul(v, plus_one ? v_add(v_load_n(w + i, left), v_set(1.0f)) : v_load_n(w + i, left));
      v_store_n(y + i, v, left);
    }
  }
}

// y[i] = f(y[i], x[i], z[i]) with a tail; the operations below differ only in f.
#define ELEMENTWISE(EXPR)                                                             \
  int32_t i = 0;                                                                      \
  for (; i + VL <= n; i += VL) {                                                      \
    vf a = v_load(y + i), b = v_load(x + i), c = v_load(z + i);                       \
    (void)a; (void)b; (void)c;                                                        \
    v_store(y + i, EXPR);                                                             \
  }                                                                                   \
  if (i < n) {                                                                        \
    vf a = v_load_n(y + i, n - i), b = v_load_n(x + i, n - i), c = v_load_n(z + i, n - i); \
    (void)a; (void)b; (void)c;                                                        \
    v_store_n(y + i, EXPR, n - i);                                                    \
  }

static inline vf v_sigmoid(vf x) { vf one = v_set(1.0f); return v_div(one, v_add(one, v_exp(v_neg(x)))); }
static inline vf v_silu(vf x) { return v_mul(x, v_sigmoid(x)); }

static void lanes_swiglu(float *y, const float *x, const float *z, int32_t n) { ELEMENTWISE(v_mul(v_silu(b), c)) }
static void lanes_add(float *y, const float *x, int32_t n) { const float *z = x; ELEMENTWISE(v_add(a, b)) }
static void lanes_add_scaled(float *y, const float *x, float f, int32_t n) { const float *z = x; vf s = v_set(f); ELEMENTWISE(v_add(a, v_mul(b, s))) }
static void lanes_scale(float *y, float f, int32_t n) { const float *x = y, *z = y; vf s = v_set(f); ELEMENTWISE(v_mul(a, s)) }
static void lanes_accumulate(float *y, const float *x, float w, int32_t n) { const float *z = x; vf s = v_set(w); ELEMENTWISE(v_fma(s, b, a)) }
static void lanes_exp_minus(float *y, const float *x, float m, int32_t n) { const float *z = x; vf s = v_set(m); ELEMENTWISE(v_exp(v_sub(b, s))) }
static void lanes_sigmoid(float *y, const float *x, int32_t n) { const float *z = x; ELEMENTWISE(v_sigmoid(b)) }
static void lanes_divide(float *y, float d, int32_t n) { const float *x = y, *z = y; vf s = v_set(d); ELEMENTWISE(v_div(a, s)) }
static void lanes_fold(canon_state *state, float *y, float m_b, float l_b, const float *x, int32_t n) {
  float old, fresh;
  canon_fold(state, m_b, l_b, &old, &fresh);
  const float *z = x;
  vf s = v_set(old), t = v_set(fresh);
  ELEMENTWISE(v_fma(a, s, v_mul(b, t)))
}
#include "kernels_blocks.h"

// max(lo, y) and min(hi, y) return their second operand for NaN, which keeps it.
static void lanes_clamp(float *y, float lo, float hi, int32_t n) { const float *x = y, *z = y; vf s = v_set(lo), t = v_set(hi); ELEMENTWISE(v_min(t, v_max(s, a))) }

// x - x is 0 for finite x and NaN otherwise, and NaN survives additions.
static int lanes_finite(const float *x, int32_t n) {
  vf acc = v_set(0);
  int32_t i = 0;
  for (; i + VL <= n; i += VL) { vf v = v_load(x + i); acc = v_add(acc, v_sub(v, v)); }
  if (i < n) { vf v = v_load_n(x + i, n - i); acc = v_add(acc, v_sub(v, v)); }
  float lane[VL], sum = 0;
  v_store(lane, acc);
  for (int l = 0; l < VL; l++) sum += lane[l];
  return sum == 0;
}

static float lanes_highest(const float *x, int32_t n) {
  vf a = v_set(-canon_inf()), b = a;
  int32_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) { a = v_max(v_load(x + i), a); b = v_max(v_load(x + i + VL), b); }
  float m = v_highest(v_max(a, b));
  for (; i < n; i++) m = canon_max(x[i], m);
  return m;
}

static float lanes_exp_sum(const float *x, float m, int32_t n) {
  vf lane[VECTORS], mm = v_set(m);
  UNROLL(4)
  for (int v = 0; v < VECTORS; v++) lane[v] = v_set(0);
  int32_t i = 0;
  for (; i + CANON_LANES <= n; i += CANON_LANES)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) lane[v] = v_add(lane[v], v_exp(v_sub(v_load(x + i + v * VL), mm)));
  UNROLL(4)
  for (int v = 0; v < VECTORS; v++) {
    int left = n - i - v * VL;
    if (left > 0) lane[v] = v_keep_n(v_add(lane[v], v_exp(v_sub(v_load_n(x + i + v * VL, left), mm))), lane[v], left);
  }
  return v_tree(lane);
}

static uint64_t lanes_read(const void *from, int64_t n) {
  const uint8_t *p = from;
  vx a = x_zero(), b = a, c = a, d = a;
  for (int64_t i = 0; i < n; i += 4 * (int64_t)sizeof a) {
    for (int64_t line = 0; line < 4 * (int64_t)sizeof a; line += 64) __builtin_prefetch(p + i + line + AHEAD);
    a = x_load_xor(a, p + i);
    b = x_load_xor(b, p + i + sizeof a);
    c = x_load_xor(c, p + i + 2 * sizeof a);
    d = x_load_xor(d, p + i + 3 * sizeof a);
  }
  return x_fold(a) ^ x_fold(b) ^ x_fold(c) ^ x_fold(d);
}

static void lanes_rotate(float *x, int32_t rot, int pairs, const float *c, const float *s) {
  int32_t n = rot / 2;
  if (pairs) { for (int32_t j = 0; j < n; j++) canon_rotate(x + 2 * j, x + 2 * j + 1, c[j], s[j]); return; }
  int32_t j = 0;
  for (; j + VL <= n; j += VL) {
    vf a = v_load(x + j), b = v_load(x + n + j), cc = v_load(c + j), ss = v_load(s + j);
    v_store(x + j, v_fma(v_neg(b), ss, v_mul(a, cc)));
    v_store(x + n + j, v_fma(b, cc, v_mul(a, ss)));
  }
  for (; j < n; j++) canon_rotate(x + j, x + n + j, c[j], s[j]);
}

static void lanes_store(int32_t form, const float *x, int32_t n, void *out) {
  int32_t i = 0;
  if (form == CANON_F32) { memcpy(out, x, (size_t)n * 4); return; }
  uint16_t *p = out;
  if (form == CANON_F16) {
    for (; i + VL <= n; i += VL) v_to_f16(p + i, v_load(x + i));
    for (; i < n; i++) p[i] = canon_to_f16(x[i]);
    return;
  }
  for (; i < n; i++) p[i] = canon_to_bf16(x[i]);
}

#include "kernels_attend.h"

// Keys in lanes, two heads at a time: reads each key once for every two heads, from the first-level cache.
static SPECIAL void index_heads(const int form, const int nq, const canon_index *a, int32_t h, int32_t t, vf sum[VECTORS]) {
  int64_t size = canon_form_bytes(form);
  const uint8_t *k = a->k + t * size;
  vf acc[2][VECTORS], scale = v_set(a->scale), zero = v_set(0);
  UNROLL(2)
  for (int i = 0; i < nq; i++)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) acc[i][v] = zero;
  for (int32_t d = 0; d < a->dim; d++, k += 64 * size)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) {
      vf key = v_load_form(form, k, v * VL);
      UNROLL(2)
      for (int i = 0; i < nq; i++) acc[i][v] = v_fma(v_set(a->q[(int64_t)(h + i) * a->dim + d]), key, acc[i][v]);
    }
  UNROLL(2)
  for (int i = 0; i < nq; i++)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) sum[v] = v_fma(v_set(a->w[h + i]), v_max(v_mul(acc[i][v], scale), zero), sum[v]);
}

static void lanes_index(const canon_index *a) {
  for (int32_t t = 0; t < a->n; t += CANON_LANES) {
    vf sum[VECTORS];
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) sum[v] = v_set(0);
    int32_t h = 0;
    for (; h + 2 <= a->heads; h += 2) index_heads(a->form, 2, a, h, t, sum);
    for (; h < a->heads; h++) index_heads(a->form, 1, a, h, t, sum);
    float out[CANON_LANES];
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) v_store(out + v * VL, sum[v]);
    memcpy(a->scores + t, out, (size_t)(a->n - t < CANON_LANES ? a->n - t : CANON_LANES) * 4);
  }
}

// One more item for n channels; bound by two exponentials a channel.
static void lanes_pool(float *m, float *l, float *o, const float *gate, const float *place, const float *value, int32_t n) {
  for (int32_t i = 0; i < n; i += VL) {
    int k = n - i < VL ? n - i : VL;
    vf a = v_load_n(m + i, k), g = v_add(v_load_n(gate + i, k), v_load_n(place + i, k)), top = v_max(a, g);
    vf old = v_exp(v_sub(a, top)), fresh = v_exp(v_sub(g, top));
    v_store_n(l + i, v_fma(v_load_n(l + i, k), old, fresh), k);
    v_store_n(o + i, v_fma(v_load_n(o + i, k), old, v_mul(v_load_n(value + i, k), fresh)), k);
    v_store_n(m + i, top, k);
  }
}

#define LANES_TABLE(PRODUCT, QUANTISE)                                                                                   \
  {.quantise = QUANTISE, .product = PRODUCT, .norm = lanes_norm, .layer_norm = lanes_layer_norm,     \
   .gate = lanes_gate, .unit = lanes_unit, .convolve = lanes_convolve, .delta = lanes_delta,                              \
   .swiglu = lanes_swiglu, .gated = lanes_gated, .add = lanes_add,                                                        \
   .add_scaled = lanes_add_scaled, .scale = lanes_scale, .clamp = lanes_clamp, .accumulate = lanes_accumulate,           \
   .exp_minus = lanes_exp_minus, .sigmoid = lanes_sigmoid, .divide = lanes_divide, .fold = lanes_fold, .rotate = lanes_rotate,                     \
   .store = lanes_store, .attend = lanes_attend, .index = lanes_index, .pool = lanes_pool, .finite = lanes_finite,             \
   .highest = lanes_highest, .exp_sum = lanes_exp_sum, .read = lanes_read}
