// The written rules of canonical arithmetic as scalar C: one source for C kernels, their tests and CUDA.
//
// Every reduction has one order; every implementation gives these bits (NaNs count as equal). Compile C with -std=c11,
// where gcc fuses nothing by itself, and CUDA with -fmad=false -ftz=false -prec-div=true -prec-sqrt=true. A fused
// multiply-add happens where canon_fmaf is written and nowhere else. The rounding mode is to nearest even and denormals are
// kept. Rule numbers refer to docs/numerics.md.
#pragma once
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CANON_HD __host__ __device__
#else
#define CANON_HD
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#endif
#define CANON_FN CANON_HD static inline

enum { CANON_SEGMENT = 512, CANON_BLOCK = 256, CANON_LANES = 32 };

// ---- bits and conversions ----------------------------------------------------------------------------------------------

CANON_FN uint32_t canon_bits(float x) { union { float f; uint32_t u; } v; v.f = x; return v.u; }
CANON_FN float canon_float(uint32_t u) { union { float f; uint32_t u; } v; v.u = u; return v.f; }
CANON_FN uint64_t canon_bits64(double x) { union { double f; uint64_t u; } v; v.f = x; return v.u; }
CANON_FN double canon_double(uint64_t u) { union { double f; uint64_t u; } v; v.u = u; return v.f; }
CANON_FN float canon_nan(void) { return canon_float(0x7fc00000u); }
CANON_FN float canon_inf(void) { return canon_float(0x7f800000u); }
CANON_FN int canon_finite(float x) { return (canon_bits(x) & 0x7fffffffu) < 0x7f800000u; }

CANON_FN float canon_from_f16(uint16_t h) {
  uint32_t s = (uint32_t)(h >> 15) << 31, e = (h >> 10) & 31, m = h & 1023;
  if (e == 31) return canon_float(s | 0x7f800000u | (m ? (m << 13 | 0x400000u) : 0));
  if (e == 0) { float v = (float)m * 0x1p-24f; return s ? -v : v; }
  return canon_float(s | (e + 112) << 23 | m << 13);
}
// To nearest even; 65520 and above become infinite, NaN stays NaN.
CANON_FN uint16_t canon_to_f16(float x) {
  uint32_t b = canon_bits(x), s = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(s | 0x7e00u);
  if (a >= 0x477ff000u) return (uint16_t)(s | 0x7c00u);
  if (a < 0x38800000u) {                                     // below 2^-14: a multiple of 2^-24 by adding 0.5
    return (uint16_t)(s | (canon_bits(canon_float(a) + 0.5f) - 0x3f000000u));
  }
  return (uint16_t)(s | ((a + 0xfffu + (a >> 13 & 1) - 0x38000000u) >> 13));
}
// FP8 e4m3fn: no infinities, NaN where all bits but the sign are set.
CANON_FN float canon_from_e4m3(uint8_t b) {
  uint32_t s = (uint32_t)(b >> 7) << 31, e = b >> 3 & 15, m = b & 7;
  if ((b & 127) == 127) return canon_nan();
  if (e == 0) { float v = (float)m * 0x1p-9f; return s ? -v : v; }
  return canon_float(s | (e + 120) << 23 | m << 20);
}
// E8M0: 2^(b - 127), a denormal for 0; NaN for 255.
CANON_FN float canon_from_e8m0(uint8_t b) {
  return b == 255 ? canon_nan() : canon_float(b ? (uint32_t)b << 23 : 0x400000u);
}
// Twice the value of an FP4 e2m1 code, an integer: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
CANON_FN int32_t canon_twice_fp4(uint32_t c) {
  int32_t m = c & 7, v = m < 5 ? m : m == 5 ? 6 : m == 6 ? 8 : 12;
  return c & 8 ? -v : v;
}
CANON_FN float canon_from_bf16(uint16_t h) { return canon_float((uint32_t)h << 16); }
CANON_FN uint16_t canon_to_bf16(float x) {
  uint32_t b = canon_bits(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(b >> 16 | 0x40u);
  return (uint16_t)((b + 0x7fffu + (b >> 16 & 1)) >> 16);
}

// ---- fused multiply-add ------------------------------------------------------------------------------------------------

// Correctly rounded a*b+c without FMA hardware: the product is exact in double, the sum is rounded to odd there, and the
// second rounding to float is then innocuous.
CANON_FN float canon_soft_fmaf(float a, float b, float c) {
  double p = (double)a * (double)b, s = p + (double)c;
  uint64_t u = canon_bits64(s);
  if ((u & 0x7ff0000000000000u) == 0x7ff0000000000000u || (u & 1)) return (float)s;
  double t = s - p, e = (p - (s - t)) + ((double)c - t);     // exact error of the sum
  if (e != 0) { if ((e > 0) == (s > 0)) u++; else u--; }
  return (float)canon_double(u);
}
#if defined(__CUDACC__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define CANON_HARD_FMA 1
CANON_FN float canon_fmaf(float a, float b, float c) { return fmaf(a, b, c); }
#else
CANON_FN float canon_fmaf(float a, float b, float c) { return canon_soft_fmaf(a, b, c); }
#endif

// ---- elementary functions (rule 5) -------------------------------------------------------------------------------------

// e^x within 2 ulp where the result is normal; +inf above 0x1.62e42ep+6, 0 far below, NaN for NaN.
CANON_FN float canon_expf(float x) {
  if (!(x == x)) return canon_nan();
  if (x > 0x1.62e42ep+6f) return canon_inf();
  if (x < -105.0f) x = -105.0f;
  float n = rintf(x * 0x1.715476p+0f);
  float r = canon_fmaf(n, -0x1.62e43p-1f, x);
  r = canon_fmaf(n, 0x1.05c61p-29f, r);
  float p = 0x1.a0d2cep-13f;
  p = canon_fmaf(p, r, 0x1.6e879cp-10f);
  p = canon_fmaf(p, r, 0x1.11121p-7f);
  p = canon_fmaf(p, r, 0x1.555382p-5f);
  p = canon_fmaf(p, r, 0x1.555554p-3f);
  p = canon_fmaf(p, r, 0x1p-1f);
  p = canon_fmaf(p, r * r, r) + 1.0f;
  int32_t i = (int32_t)n, h = i >> 1;                        // two factors, since n may be 128 or below -126
  return (p * canon_float((uint32_t)(h + 127) << 23)) * canon_float((uint32_t)(i - h + 127) << 23);
}

// The polynomial of log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], without the leading f.
CANON_FN float canon_log_tail(float f, float z) {
  float p = 0x1.204376p-4f;
  p = canon_fmaf(p, f, -0x1.d7a37p-4f);
  p = canon_fmaf(p, f, 0x1.de4a34p-4f);
  p = canon_fmaf(p, f, -0x1.fcba9ep-4f);
  p = canon_fmaf(p, f, 0x1.23d37ep-3f);
  p = canon_fmaf(p, f, -0x1.555cap-3f);
  p = canon_fmaf(p, f, 0x1.999d58p-3f);
  p = canon_fmaf(p, f, -0x1.fffff8p-3f);
  p = canon_fmaf(p, f, 0x1.555554p-2f);
  return (f * z) * p;
}

// Natural logarithm within 4 ulp; -inf for 0, NaN below.
CANON_FN float canon_logf(float x) {
  if (!(x == x) || x < 0) return canon_nan();
  if (x == 0) return -canon_inf();
  if (x == canon_inf()) return x;
  float e = 0;
  if (x < 0x1p-126f) { x = x * 0x1p23f; e = -23.0f; }
  uint32_t u = canon_bits(x) - 0x3f3504f3u;                  // bits of sqrt(1/2)
  e = e + (float)((int32_t)u >> 23);
  float f = canon_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f, z = f * f;
  float y = canon_log_tail(f, z);
  y = canon_fmaf(e, -0x1.bd0106p-13f, y);
  y = canon_fmaf(-0.5f, z, y);
  return canon_fmaf(e, 0x1.63p-1f, f + y);
}

// log(1 + x) within 4 ulp.
CANON_FN float canon_log1pf(float x) {
  if (x > -0x1.2bec34p-2f && x < 0x1.a8279ap-2f) {
    float z = x * x;
    return x + canon_fmaf(-0.5f, z, canon_log_tail(x, z));
  }
  if (!(x == x) || x < -1.0f) return canon_nan();
  float u = 1.0f + x;
  if (u == 0 || u == canon_inf()) return canon_logf(u);
  float c = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);      // what the sum lost
  return canon_logf(u) + c / u;
}

// Hyperbolic tangent within 4 ulp.
CANON_FN float canon_tanhf(float x) {
  float a = canon_float(canon_bits(x) & 0x7fffffffu);
  if (a < 0.625f) {
    float z = x * x, p = -0x1.75e1d4p-8f;
    p = canon_fmaf(p, z, 0x1.52269cp-6f);
    p = canon_fmaf(p, z, -0x1.b83c5ap-5f);
    p = canon_fmaf(p, z, 0x1.110726p-3f);
    p = canon_fmaf(p, z, -0x1.555532p-2f);
    return canon_fmaf(p * z, x, x);
  }
  if (!(x == x)) return canon_nan();
  float t = 1.0f - 2.0f / (canon_expf(2.0f * a) + 1.0f);
  return x < 0 ? -t : t;
}

CANON_FN float canon_sigmoidf(float x) { return 1.0f / (1.0f + canon_expf(-x)); }
CANON_FN float canon_siluf(float x) { return x * canon_sigmoidf(x); }
CANON_FN float canon_clampf(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }   // NaN stays NaN
// What lies between gate and up on one side and down on the other. Limits are of deepseek_v4 (kind 1) and gpt_oss (kind 2).
#define CANON_OSS_ALPHA 1.702f
CANON_FN float canon_gated(int32_t kind, float gate, float up, float limit) {
  if (kind == 0) return canon_siluf(gate) * up;
  gate = gate > limit ? limit : gate;
  up = canon_clampf(up, -limit, limit);
  if (kind == 1) return canon_siluf(gate) * up;
  return (up + 1.0f) * (gate * canon_sigmoidf(gate * CANON_OSS_ALPHA));
}
CANON_FN float canon_softplusf(float x) {
  if (x > 20.0f) return x;
  float a = canon_float(canon_bits(x) & 0x7fffffffu);
  return (x > 0 ? x : 0.0f) + canon_log1pf(canon_expf(-a));  // NaN: through the second term
}

// ---- sums --------------------------------------------------------------------------------------------------------------

// The fixed tree of rule 3 over 32 lanes; lane is overwritten.
CANON_FN float canon_tree(float lane[CANON_LANES]) {
  for (int h = 16; h >= 1; h >>= 1)
    for (int l = 0; l < h; l++) lane[l] = lane[l] + lane[l + h];
  return lane[0];
}
// Rule 3: w . x, lane l taking inputs l, l+32, ... ascending.
CANON_FN float canon_dot(const float *w, const float *x, int32_t n) {
  float lane[CANON_LANES] = {0};
  for (int32_t i = 0; i < n; i++) lane[i & 31] = canon_fmaf(w[i], x[i], lane[i & 31]);
  return canon_tree(lane);
}
// Sum in the same lanes.
CANON_FN float canon_sum(const float *x, int32_t n) {
  float lane[CANON_LANES] = {0};
  for (int32_t i = 0; i < n; i++) lane[i & 31] = lane[i & 31] + x[i];
  return canon_tree(lane);
}

// ---- quantised products (rules 1 and 2) --------------------------------------------------------------------------------

// One group of n real inputs: codes, scale, and the sum of the codes.
CANON_FN void canon_quantise(const float *x, int32_t n, int8_t *q, float *scale, int32_t *sum) {
  uint32_t top = 0;
  for (int32_t i = 0; i < n; i++) { uint32_t a = canon_bits(x[i]) & 0x7fffffffu; top = a > top ? a : top; }
  float amax = canon_float(top), inv = 0, d = 0;
  *sum = 0;
  if (top >= 0x7f800000u) d = canon_nan();
  else if (amax >= 0x1p-100f) { d = amax / 127.0f; inv = 127.0f / amax; }
  for (int32_t i = 0; i < n; i++) {
    float v = inv == 0 ? 0.0f : rintf(x[i] * inv);
    v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
    q[i] = (int8_t)v;
    *sum += q[i];
  }
  *scale = d;
}
// One term: the exact dot of a scale's inputs, one rounded product of the scales, one fused multiply-add.
CANON_FN float canon_term(int32_t dot, float sw, float sx, float acc) { return canon_fmaf((float)dot, sw * sx, acc); }
// The minimum that follows the same inputs' term; sum is that of their quantised codes.
CANON_FN float canon_minimum(float mw, int32_t sum, float sx, float acc) { return canon_fmaf(mw, (float)sum * sx, acc); }
// A whole row: integer weights w [n] (zero points and offsets removed) with scales sw and, where the form has them, minima
// mw, one for `sub` inputs; quantised inputs q [n] with scales sx, one for `group` inputs. sub is group, or 16 in groups of
// 32: then a group has two dots, ascending, each followed by its minimum, also where a short last group has inputs for the
// first only (the second is 0 with scale and minimum 0). sw and mw hold group / sub values for each group.
CANON_FN float canon_qdot(const int16_t *w, const float *sw, const float *mw, const int8_t *q, const float *sx, int32_t n, int32_t group, int32_t sub) {
  float tot = 0;
  for (int32_t s = 0; s < n; s += CANON_SEGMENT) {
    float acc = 0;
    for (int32_t g = s; g < n && g < s + CANON_SEGMENT; g += group)
      for (int32_t b = g; b < g + group; b += sub) {
        int32_t dot = 0, sum = 0;
        for (int32_t i = b; i < n && i < b + sub; i++) { dot += w[i] * q[i]; sum += q[i]; }
        acc = canon_term(dot, sw[b / sub], sx[g / group], acc);
        if (mw) acc = canon_minimum(mw[b / sub], sum, sx[g / group], acc);
      }
    tot = tot + acc;
  }
  return tot;
}
// Rule 3 with a scale a block: fp8 values w [n] in blocks of `block` inputs, each summed in lanes and the tree, then
// multiplied by its scale into the sum, ascending.
CANON_FN float canon_block_dot(const float *w, const float *scale, const float *x, int32_t n, int32_t block) {
  float acc = 0;
  for (int32_t b = 0; b < n; b += block) acc = canon_fmaf(scale[b / block], canon_dot(w + b, x + b, n - b < block ? n - b : block), acc);
  return acc;
}

// ---- norms (rule 4), rotation (rule 5) ---------------------------------------------------------------------------------

CANON_FN float canon_rms_factor(float sum_of_squares, int32_t n, float eps) {
  float m = sum_of_squares / (float)n;
  return 1.0f / sqrtf(m + eps);
}
CANON_FN void canon_rms(float *y, const float *x, const float *w, int32_t n, float eps, int plus_one) {
  float r = canon_rms_factor(canon_dot(x, x, n), n, eps);
  for (int32_t i = 0; i < n; i++) {
    float v = x[i] * r;
    if (w) v = v * (plus_one ? w[i] + 1.0f : w[i]);
    y[i] = v;
  }
}
// ---- gated delta net (rule 7) -------------------------------------------------------------------------------------------

CANON_FN float canon_unit_factor(float sum_of_squares, float eps) { return 1.0f / sqrtf(sum_of_squares + eps); }
// Decay of a value head: exp(-exp(A_log) * softplus(a + dt_bias)).
CANON_FN float canon_decay(float a_log, float a, float shift) { return canon_expf(-canon_expf(a_log) * canon_softplusf(a + shift)); }
// One row of one channel of the convolution: taps ascending, earlier rows first, then silu.
CANON_FN float canon_convolve(const float *x, int32_t stride, const float *w, int32_t w_stride, int32_t taps) {
  float acc = 0;
  for (int32_t i = 0; i < taps; i++) acc = canon_fmaf(w[(int64_t)i * w_stride], x[(int64_t)i * stride], acc);
  return canon_siluf(acc);
}
// One row of one channel j of a value head: state [key] with a stride, decayed, written and read.
CANON_FN float canon_delta(float *s, int32_t stride, const float *q, const float *k, float v, float alpha, float beta, int32_t key) {
  float read = 0, o = 0;
  for (int32_t d = 0; d < key; d++) {
    s[(int64_t)d * stride] = alpha * s[(int64_t)d * stride];
    read = canon_fmaf(s[(int64_t)d * stride], k[d], read);
  }
  float delta = beta * (v - read);
  for (int32_t d = 0; d < key; d++) {
    s[(int64_t)d * stride] = canon_fmaf(k[d], delta, s[(int64_t)d * stride]);
    o = canon_fmaf(s[(int64_t)d * stride], q[d], o);
  }
  return o;
}

// ---- further norms -----------------------------------------------------------------------------------------------------

// LayerNorm; y may be x.
CANON_FN void canon_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n, float eps) {
  float mean = canon_sum(x, n) / (float)n;
  for (int32_t i = 0; i < n; i++) y[i] = x[i] - mean;
  float r = canon_rms_factor(canon_dot(y, y, n), n, eps);
  for (int32_t i = 0; i < n; i++) y[i] = (y[i] * r) * w[i] + b[i];
}
CANON_FN void canon_rotate(float *a, float *b, float c, float s) {
  float x = *a, y = *b;
  *a = canon_fmaf(-y, s, x * c);
  *b = canon_fmaf(y, c, x * s);
}

// ---- attention (rule 6) ------------------------------------------------------------------------------------------------

typedef struct { float m, l; } canon_state;   // beside it O, one value a channel

// Score of one key: an ascending chain, then the scale.
CANON_FN float canon_score(const float *q, const float *k, int32_t stride, int32_t dim, float scale) {
  float s = 0;
  for (int32_t d = 0; d < dim; d++) s = canon_fmaf(q[d], k[(int64_t)d * stride], s);
  return s * scale;
}
// Score of one key for an indexer: heads ascending, each score cut at zero and weighed.
CANON_FN float canon_index_score(const float *q, const float *w, int32_t heads, const float *k, int32_t stride, int32_t dim, float scale, float weight_scale) {
  float s = 0;
  for (int32_t h = 0; h < heads; h++) {
    float x = canon_score(q + (int64_t)h * dim, k, stride, dim, scale);
    s = canon_fmaf(w[h] * weight_scale, x > 0 ? x : 0.0f, s);
  }
  return s;
}
CANON_FN float canon_max(float a, float b) { return a > b ? a : b; }
// Folding a block (or a sink: z, 1, o = 0) into the state: factors for the old and the new part.
CANON_FN void canon_fold(canon_state *t, float m_b, float l_b, float *old, float *fresh) {
  float m = canon_max(t->m, m_b);
  *old = canon_expf(t->m - m);
  *fresh = canon_expf(m_b - m);
  t->l = canon_fmaf(t->l, *old, l_b * *fresh);
  t->m = m;
}
CANON_FN float canon_fold_channel(float o, float o_b, float old, float fresh) { return canon_fmaf(o, old, o_b * fresh); }

// ---- pooling (rule 7) and stream mixers (rule 10) ----------------------------------------------------------------------

// One more item of a softmax over time: the largest gate m, the sum l of exp(gate - m) and the weighted sum o. Starts from
// (-inf, 0, 0); the pooled value is o / l.
CANON_FN void canon_pool_item(float *m, float *l, float *o, float gate, float value) {
  float top = canon_max(*m, gate), old = canon_expf(*m - top), fresh = canon_expf(gate - top);
  *l = canon_fmaf(*l, old, fresh);
  *o = canon_fmaf(*o, old, value * fresh);
  *m = top;
}

// Weights of m residual streams from z = (in [m], out [m], mixing [m, m], source first), in place: in = sigmoid + eps,
// out = 2 sigmoid, mixing = a softmax over each row + eps whose columns, then rows and columns in turn, are divided by their
// sums + eps (Sinkhorn).
CANON_FN void canon_mix(float *z, const float *base, const float *scale, int32_t m, int32_t rounds, float eps) {
  for (int32_t i = 0; i < m; i++) z[i] = canon_sigmoidf(z[i] * scale[0] + base[i]) + eps;
  for (int32_t i = m; i < 2 * m; i++) z[i] = 2.0f * canon_sigmoidf(z[i] * scale[1] + base[i]);
  float *c = z + 2 * m;
  for (int32_t i = 0; i < m * m; i++) c[i] = c[i] * scale[2] + base[2 * m + i];
  for (int32_t i = 0; i < m; i++) {
    float top = c[i * m], sum = 0;
    for (int32_t j = 1; j < m; j++) top = canon_max(c[i * m + j], top);
    for (int32_t j = 0; j < m; j++) { c[i * m + j] = canon_expf(c[i * m + j] - top); sum = sum + c[i * m + j]; }
    for (int32_t j = 0; j < m; j++) c[i * m + j] = c[i * m + j] / sum + eps;
  }
  for (int32_t r = 0; r < rounds; r++) {
    if (r > 0)
      for (int32_t i = 0; i < m; i++) {
        float sum = 0;
        for (int32_t j = 0; j < m; j++) sum = sum + c[i * m + j];
        for (int32_t j = 0; j < m; j++) c[i * m + j] = c[i * m + j] / (sum + eps);
      }
    for (int32_t j = 0; j < m; j++) {
      float sum = 0;
      for (int32_t i = 0; i < m; i++) sum = sum + c[i * m + j];
      for (int32_t i = 0; i < m; i++) c[i * m + j] = c[i * m + j] / (sum + eps);
    }
  }
}
// Weights by which the streams join at the end of a model.
CANON_FN void canon_mix_head(float *z, const float *base, const float *scale, int32_t m, float eps) {
  for (int32_t i = 0; i < m; i++) z[i] = canon_sigmoidf(z[i] * scale[0] + base[i]) + eps;
}

// ---- router (rule 8) ---------------------------------------------------------------------------------------------------

// Whether candidate (a, i) comes before (b, j): score descending, index ascending, -0 equal to +0, NaN last.
CANON_FN int canon_before(float a, int32_t i, float b, int32_t j) {
  int an = !(a == a), bn = !(b == b);
  if (an || bn) return an == bn ? i < j : bn;
  return a == b ? i < j : a > b;
}
// The same order as numbers: a larger one comes first, equal ones by index.
CANON_FN uint32_t canon_order(float x) {
  uint32_t b = canon_bits(x);
  if (!(x == x)) return 0;
  if (b == 0x80000000u) b = 0;
  return b >> 31 ? ~b : b | 0x80000000u;
}
CANON_FN float canon_weight(float s, float sum, float eps, float scale) { return (s / (sum + eps)) * scale; }

// ---- random numbers (rule 11) ------------------------------------------------------------------------------------------

// First word of Philox 4x32-10 with key = seed and counter = (position, choice, 0, 0).
CANON_FN uint32_t canon_philox(uint64_t seed, uint32_t choice, uint32_t position) {
  uint32_t c0 = position, c1 = choice, c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < 10; i++) {
    uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b; c3 = (uint32_t)a; c0 = n0; c2 = n2;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return c0;
}
CANON_FN float canon_uniform(uint32_t philox) { return (float)(philox >> 8) * 0x1p-24f; }

// ---- rotary frequencies and angles in double (rule 5) ------------------------------------------------------------------

// Natural logarithm of a positive normal double, about 1 ulp.
CANON_FN double canon_log64(double x) {
  uint64_t u = canon_bits64(x);
  int32_t k = (int32_t)(u >> 52) - 1023;
  double m = canon_double((u & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 0x1.6a09e667f3bcdp+0) { m = m * 0.5; k++; }
  double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double r = z * (0x1.5555555555593p-1 + z * (0x1.999999997fa04p-2 + z * (0x1.2492494229359p-2 + z * (0x1.c71c51d8e78afp-3 +
             z * (0x1.7466496cb03dep-3 + z * (0x1.39a09d078c69fp-3 + z * 0x1.2f112df3e5244p-3))))));
  double h = 0.5 * f * f;
  return (double)k * 0x1.62e42fee00000p-1 - ((h - (s * (h + r) + (double)k * 0x1.a39ef35793c76p-33)) - f);
}
// e^x for |x| below 700, about 1 ulp.
CANON_FN double canon_exp64(double x) {
  double n = rint(x * 0x1.71547652b82fep+0);
  double hi = x - n * 0x1.62e42fee00000p-1, lo = n * 0x1.a39ef35793c76p-33, r = hi - lo, t = r * r;
  double c = r - t * (0x1.555555555553ep-3 + t * (-0x1.6c16c16bebd93p-9 + t * (0x1.1566aaf25de2cp-14 + t * (-0x1.bbd41c5d26bf1p-20 + t * 0x1.6376972bea4d0p-25))));
  double y = 1.0 - ((lo - (r * c) / (2.0 - c)) - hi);
  return y * canon_double((uint64_t)((int64_t)n + 1023) << 52);
}
// base^e for positive base.
CANON_FN double canon_pow64(double base, double e) { return canon_exp64(e * canon_log64(base)); }

// Sine and cosine of |x| up to 2^20 quarter turns (positions beyond a million), about 1 ulp.
CANON_FN void canon_sincos64(double x, double *sine, double *cosine) {
  double n = rint(x * 0x1.45f306dc9c883p-1);
  double r = x - n * 0x1.921fb54400000p+0;                   // three parts of pi/2; the first two products are exact
  double w = n * 0x1.0b4611a600000p-34, y = r - w;
  double tail = ((r - y) - w) - n * 0x1.3198a2e037073p-69;
  double z = y * y;
  double sp = 0x1.111111110f8a6p-7 + z * (-0x1.a01a019c161d5p-13 + z * (0x1.71de357b1fe7dp-19 + z * (-0x1.ae5e68a2b9cebp-26 + z * 0x1.5d93a5acfd57cp-33)));
  double s = y - ((z * (0.5 * tail - z * y * sp) - tail) - z * y * -0x1.5555555555549p-3);
  double cp = z * (0x1.555555555554cp-5 + z * (-0x1.6c16c16c15177p-10 + z * (0x1.a01a019cb1590p-16 + z * (-0x1.27e4f809c52adp-22 + z * (0x1.1ee9ebdb4b1c4p-29 + z * -0x1.8fae9be8838d4p-37)))));
  double h = 0.5 * z, q = 1.0 - h;
  double c = q + (((1.0 - q) - h) + (z * cp - y * tail));
  switch ((int64_t)n & 3) {
    case 0: *sine = s; *cosine = c; break;
    case 1: *sine = c; *cosine = -s; break;
    case 2: *sine = -s; *cosine = -c; break;
    default: *sine = -c; *cosine = s;
  }
}
// Cosine and sine of one position and frequency, times the attention factor, rounded once.
CANON_FN void canon_angle(int32_t position, float inv_freq, double factor, float *c, float *s) {
  float angle = (float)position * inv_freq;
  double sine, cosine;
  canon_sincos64((double)angle, &sine, &cosine);
  *c = (float)(cosine * factor);
  *s = (float)(sine * factor);
}
