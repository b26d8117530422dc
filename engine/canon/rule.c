// The written rules one value at a time, for equality suites: canon.h applied to plain rows, no tiles, no threads.
#include <stdlib.h>
#include <string.h>
#include "canon.h"
#include "engine.h"
#include "source.h"

void canon_rule_elementary(int32_t function, const float *x, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) switch (function) {
    case CANON_EXP: y[i] = canon_expf(x[i]); break;
    case CANON_LOG: y[i] = canon_logf(x[i]); break;
    case CANON_LOG1P: y[i] = canon_log1pf(x[i]); break;
    case CANON_TANH: y[i] = canon_tanhf(x[i]); break;
    case CANON_SIGMOID: y[i] = canon_sigmoidf(x[i]); break;
    case CANON_SILU: y[i] = canon_siluf(x[i]); break;
    default: y[i] = canon_softplusf(x[i]);
  }
}

void canon_rule_quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *sum) {
  for (int32_t g = 0; g * group < n; g++) canon_quantise(x + g * group, n - g * group < group ? n - g * group : group, q + g * group, scale + g, sum + g);
}

int canon_rule_product(const canon_matrix *m, int32_t row, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row, const float *x, float *y) {
  int32_t most = m->cols + 128;
  float *w = calloc((size_t)most, 4 * sizeof(float) + sizeof(int16_t) + 1 + sizeof(int32_t));
  if (!w) return -1;
  float *sw = w + most, *mw = sw + most, *sx = mw + most;
  int32_t *sum = (int32_t *)(sx + most);
  int16_t *c = (int16_t *)(sum + most);
  int8_t *q = (int8_t *)(c + most);
  if (m->group) {
    for (int32_t i = 0; i < m->cols; i++) {
      int64_t at = source_scale_at(m, row, i, per_row);
      c[i] = (int16_t)source_integer(m, source_code(m, codes, row, i), m->offset == CANON_OFFSET_ZEROS ? offsets[at] : 0);
      sw[i / m->sub] = source_scale(m, scales, at);
      if (m->offset == CANON_OFFSET_MINIMA) mw[i / m->sub] = source_value(m->scale_form, offsets, at);
    }
    canon_rule_quantise(x, m->cols, m->group, q, sx, sum);
    *y = canon_qdot(c, sw, m->offset == CANON_OFFSET_MINIMA ? mw : 0, q, sx, m->cols, m->group, m->sub);
  } else {
    for (int32_t i = 0; i < m->cols; i++) {
      w[i] = source_value(m->form, codes, (int64_t)row * m->cols + i);
      if (m->form == CANON_FP8) sw[i / m->block_cols] = source_value(m->scale_form, scales, source_scale_at(m, row, i, per_row));
    }
    *y = m->form == CANON_FP8 ? canon_block_dot(w, sw, x, m->cols, m->block_cols) : canon_dot(w, x, m->cols);
  }
  free(w);
  return 0;
}

void canon_rule_norm(float *y, const float *x, const float *w, int32_t n, float eps, int32_t plus_one) { canon_rms(y, x, w, n, eps, plus_one); }

void canon_rule_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n, float eps) { canon_layer_norm(y, x, w, b, n, eps); }
void canon_rule_gated(int32_t activation, float limit, float *y, const float *gate, const float *up, int32_t n) {
  for (int32_t i = 0; i < n; i++) y[i] = canon_gated(activation, gate[i], up[i], limit);
}

int canon_rule_delta_net(int32_t rows, int32_t heads, int32_t per, int32_t key, int32_t value, int32_t taps, const float *projections, const float *rates,
                         const float *conv, const float *decay, const float *shift, const float *norm, float eps, float unit_eps, float *y) {
  int32_t block = 2 * key + 2 * per * value;
  float *state = calloc((size_t)key * value + 2 * key + 2 * value + taps, sizeof *state);
  if (!state) return -1;
  float *q = state + (int64_t)key * value, *k = q + key, *v = k + key, *o = v + value, *x = o + value;
  for (int32_t h = 0; h < heads * per; h++) {
    int32_t g = h / per, i = h % per;
    memset(state, 0, (size_t)key * value * sizeof *state);
    for (int32_t r = 0; r < rows; r++) {
      for (int32_t c = 0; c < 2 * key + value; c++) {          // queries, keys, the values of this head
        int32_t at = c < 2 * key ? c : c + i * value, channel = c < key ? g * key + c : c < 2 * key ? (heads + g - 1) * key + c : 2 * (heads - 1) * key + h * value + c;
        for (int32_t t = 0; t < taps; t++) {
          int32_t from = r - (taps - 1) + t;
          x[t] = from < 0 ? 0 : projections[((int64_t)from * heads + g) * block + at];
        }
        q[c] = canon_convolve(x, 1, conv + (int64_t)channel * taps, 1, taps);   // k and v follow q
      }
      float fq = canon_unit_factor(canon_dot(q, q, key), unit_eps), fk = canon_unit_factor(canon_dot(k, k, key), unit_eps);
      for (int32_t d = 0; d < key; d++) { q[d] = (q[d] * fq) * canon_attention_scale(key); k[d] = k[d] * fk; }
      const float *ba = rates + ((int64_t)r * heads + g) * 2 * per;
      float beta = canon_sigmoidf(ba[i]), alpha = canon_decay(decay[h], ba[per + i], shift[h]);
      for (int32_t j = 0; j < value; j++) o[j] = canon_delta(state + j, value, q, k, v[j], alpha, beta, key);
      canon_rms(o, o, norm, value, eps, 0);
      const float *z = projections + ((int64_t)r * heads + g) * block + 2 * key + per * value + i * value;
      for (int32_t j = 0; j < value; j++) y[((int64_t)r * heads * per + h) * value + j] = canon_siluf(z[j]) * o[j];
    }
  }
  free(state);
  return 0;
}

void canon_rule_rotate(float *x, int32_t rot, int32_t pairs, int32_t position, const float *inv, double factor) {
  for (int32_t j = 0; j < rot / 2; j++) {
    float c, s;
    canon_angle(position, inv[j], factor, &c, &s);
    if (pairs) canon_rotate(x + 2 * j, x + 2 * j + 1, c, s);
    else canon_rotate(x + j, x + j + rot / 2, c, s);
  }
}

// One block of keys first..to, of which those from `from` on are attended, folded into the state.
static void rule_block(canon_state *t, const float *q, const float *keys, const float *values, int32_t dim, int32_t width, int32_t first, int32_t from, int32_t to, float scale, float *o) {
  float p[CANON_BLOCK], lane[CANON_LANES] = {0}, m = -canon_inf(), old, fresh;
  for (int32_t i = from; i <= to; i++) {
    p[i - first] = canon_score(q, keys + (int64_t)i * dim, 1, dim, scale);
    m = canon_max(p[i - first], m);
  }
  for (int32_t i = from; i <= to; i++) {
    float e = canon_expf(p[i - first] - m);
    p[i - first] = e;
    lane[(i - first) & 31] = lane[(i - first) & 31] + e;
  }
  canon_fold(t, m, canon_tree(lane), &old, &fresh);
  for (int32_t d = 0; d < width; d++) {
    float acc = 0;
    for (int32_t i = from; i <= to; i++) acc = canon_fmaf(p[i - first], values[(int64_t)i * width + d], acc);
    o[d] = canon_fold_channel(o[d], acc, old, fresh);
  }
}

void canon_rule_attention(const float *q, const float *keys, const float *values, int32_t dim, int32_t width, int32_t lo, int32_t pos, const float *memory, int32_t listed, float scale, const float *sink, float *o) {
  canon_state t = {-canon_inf(), 0};
  for (int32_t d = 0; d < width; d++) o[d] = 0;
  for (int32_t b = lo / CANON_BLOCK; b <= pos / CANON_BLOCK; b++) {
    int32_t first = b * CANON_BLOCK;
    rule_block(&t, q, keys, values, dim, width, first, lo > first ? lo : first, pos < first + CANON_BLOCK - 1 ? pos : first + CANON_BLOCK - 1, scale, o);
  }
  for (int32_t first = 0; first < listed; first += CANON_BLOCK)
    rule_block(&t, q, memory, memory, dim, width, first, first, listed < first + CANON_BLOCK ? listed - 1 : first + CANON_BLOCK - 1, scale, o);
  if (sink) {
    float old, fresh;
    canon_fold(&t, *sink, 1.0f, &old, &fresh);
    for (int32_t d = 0; d < width; d++) o[d] = canon_fold_channel(o[d], 0.0f, old, fresh);
  }
  for (int32_t d = 0; d < width; d++) o[d] = o[d] / t.l;
}

void canon_rule_index(const float *q, const float *w, int32_t heads, const float *keys, int32_t n, int32_t dim, float scale, float weight_scale, float *scores) {
  for (int32_t i = 0; i < n; i++) scores[i] = canon_index_score(q, w, heads, keys + (int64_t)i * dim, 1, dim, scale, weight_scale);
}

float canon_rule_lowest(void) { return -canon_inf(); }
void canon_rule_divide(float *x, const float *d, int32_t n) { for (int32_t i = 0; i < n; i++) x[i] = x[i] / d[i]; }

void canon_rule_pool(float *m, float *l, float *o, const float *gate, const float *place, const float *value, int32_t n) {
  for (int32_t i = 0; i < n; i++) canon_pool_item(m + i, l + i, o + i, gate[i] + place[i], value[i]);
}

void canon_rule_mix(float *z, const float *base, const float *scale, int32_t m, int32_t rounds, float eps, int32_t head) {
  if (head) canon_mix_head(z, base, scale, m, eps);
  else canon_mix(z, base, scale, m, rounds, eps);
}

float canon_rule_store(int32_t form, float x) {
  if (form == CANON_F16) return canon_from_f16(canon_to_f16(x));
  return form == CANON_BF16 ? canon_from_bf16(canon_to_bf16(x)) : x;
}
float canon_rule_soft_fma(float a, float b, float c) { return canon_soft_fmaf(a, b, c); }
float canon_rule_fma(float a, float b, float c) { return canon_fmaf(a, b, c); }
float canon_rule_sum(const float *x, int32_t n) { return canon_sum(x, n); }
