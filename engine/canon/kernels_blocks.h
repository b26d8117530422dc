// Row kernels that only some architectures need, over the lanes of the including file (see kernels_lanes.h).
#pragma once

static inline vf v_clamp(vf x, float lo, float hi) { return v_min(v_set(hi), v_max(v_set(lo), x)); }   // NaN stays NaN

static void lanes_gated(int32_t activation, float limit, float *y, const float *x, const float *z, int32_t n) {
  if (activation == CANON_SWIGLU) { lanes_swiglu(y, x, z, n); return; }
  if (activation == CANON_SWIGLU_LIMITED) { ELEMENTWISE(v_mul(v_silu(v_min(v_set(limit), b)), v_clamp(c, -limit, limit))) return; }
  vf one = v_set(1.0f), alpha = v_set(CANON_OSS_ALPHA);
  ELEMENTWISE(v_mul(v_add(v_clamp(c, -limit, limit), one), v_mul(v_min(v_set(limit), b), v_sigmoid(v_mul(v_min(v_set(limit), b), alpha)))))
}

// Sum in 32 lanes and the tree, as canon_sum.
static float lanes_sum(const float *x, int32_t n) {
  vf lane[VECTORS];
  UNROLL(4)
  for (int v = 0; v < VECTORS; v++) lane[v] = v_set(0);
  for (int32_t i = 0; i < n; i += CANON_LANES)
    UNROLL(4)
    for (int v = 0; v < VECTORS; v++) {
      int left = n - i - v * VL;
      if (left >= VL) lane[v] = v_add(lane[v], v_load(x + i + v * VL));
      else if (left > 0) lane[v] = v_keep_n(v_add(lane[v], v_load_n(x + i + v * VL, left)), lane[v], left);
    }
  return v_tree(lane);
}

// Moves 8n bytes and weights twice over a row in the first-level cache.
static void lanes_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n, float eps) {
  vf mean = v_set(lanes_sum(x, n) / (float)n);
  int32_t i = 0;
  for (; i + VL <= n; i += VL) v_store(y + i, v_sub(v_load(x + i), mean));
  if (i < n) v_store_n(y + i, v_sub(v_load_n(x + i, n - i), mean), n - i);
  float squares;
  const uint8_t *row[2] = {(const uint8_t *)y, 0};
  const float *in[2] = {y, 0};
  dots(CANON_F32, row, 1, in, 1, n, &squares);
  vf r = v_set(canon_rms_factor(squares, n, eps));
  for (i = 0; i + VL <= n; i += VL) v_store(y + i, v_add(v_mul(v_mul(v_load(y + i), r), v_load(w + i)), v_load(b + i)));
  if (i < n) v_store_n(y + i, v_add(v_mul(v_mul(v_load_n(y + i, n - i), r), v_load_n(w + i, n - i)), v_load_n(b + i, n - i)), n - i);
}

static void lanes_gate(float *y, const float *x, int32_t n) { const float *z = x; ELEMENTWISE(v_mul(a, v_sigmoid(b))) }

// x times 1 / sqrt(sum of squares + eps), in place.
static void lanes_unit(float *x, int32_t n, float eps) {
  float squares;
  const uint8_t *row[2] = {(const uint8_t *)x, 0};
  const float *in[2] = {x, 0};
  dots(CANON_F32, row, 1, in, 1, n, &squares);
  lanes_scale(x, canon_unit_factor(squares, eps), n);
}

// y = silu of the taps' sum by channel: earlier rows [taps-1][n] oldest first, then x; weights [taps][n].
static void lanes_convolve(float *y, const float *earlier, const float *x, const float *w, int32_t taps, int32_t n) {
  for (int32_t i = 0; i < n; i += VL) {
    int left = n - i < VL ? n - i : VL;
    vf acc = v_set(0);
    for (int32_t t = 0; t < taps; t++) {
      const float *row = t + 1 < taps ? earlier + (int64_t)t * n : x;
      if (left == VL) acc = v_fma(v_load(w + (int64_t)t * n + i), v_load(row + i), acc);
      else acc = v_fma(v_load_n(w + (int64_t)t * n + i, left), v_load_n(row + i, left), acc);
    }
    if (left == VL) v_store(y + i, v_silu(acc));
    else v_store_n(y + i, v_silu(acc), left);
  }
}

// One row of the delta rule; state [key][value]. Two passes over each block of channels, which stays in the first-level cache.
static void lanes_delta(float *s, const float *q, const float *k, const float *v, float alpha, float beta, float *o, int32_t key, int32_t value) {
  enum { WIDE = 4 };
  vf a = v_set(alpha), b = v_set(beta);
  int32_t j = 0;
  for (; j + WIDE * VL <= value; j += WIDE * VL) {
    vf read[WIDE], delta[WIDE], out[WIDE];
    UNROLL(4)
    for (int i = 0; i < WIDE; i++) read[i] = out[i] = v_set(0);
    for (int32_t d = 0; d < key; d++) {
      float *row = s + (int64_t)d * value + j;
      vf kd = v_set(k[d]);
      UNROLL(4)
      for (int i = 0; i < WIDE; i++) {
        vf t = v_mul(a, v_load(row + i * VL));
        v_store(row + i * VL, t);
        read[i] = v_fma(t, kd, read[i]);
      }
    }
    UNROLL(4)
    for (int i = 0; i < WIDE; i++) delta[i] = v_mul(b, v_sub(v_load(v + j + i * VL), read[i]));
    for (int32_t d = 0; d < key; d++) {
      float *row = s + (int64_t)d * value + j;
      vf kd = v_set(k[d]), qd = v_set(q[d]);
      UNROLL(4)
      for (int i = 0; i < WIDE; i++) {
        vf t = v_fma(kd, delta[i], v_load(row + i * VL));
        v_store(row + i * VL, t);
        out[i] = v_fma(t, qd, out[i]);
      }
    }
    UNROLL(4)
    for (int i = 0; i < WIDE; i++) v_store(o + j + i * VL, out[i]);
  }
  for (; j < value; j++) o[j] = canon_delta(s + j, value, q, k, v[j], alpha, beta, key);
}
