// Choosing codes and scales for weights. One group of inputs at a time: a few candidate scales, for each the codes by
// rounding and the weighted squared error in eight partial sums, the best one refined by least squares on its own codes.
// Bound: arithmetic, about 20 passes over a group that lies in the first-level cache; bytes moved are the weights once.
#include <math.h>
#include <string.h>
#include "quant.h"

enum { MOST = 128, LANES = 8 };

static float bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint32_t float_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

// Binary16 to nearest even; what overflows becomes infinite.
static uint16_t to_f16(float x) {
  uint32_t b = float_bits(x), s = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
  if (a >= 0x477ff000u) return (uint16_t)(s | 0x7c00u);
  if (a < 0x38800000u) return (uint16_t)(s | (float_bits(bits_float(a) + 0.5f) - 0x3f000000u));
  return (uint16_t)(s | ((a + 0xfffu + (a >> 13 & 1) - 0x38000000u) >> 13));
}
static float from_f16(uint16_t h) {
  uint32_t s = (uint32_t)(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023;
  if (e == 0) return bits_float(s | float_bits((float)m * 0x1p-24f));
  return bits_float(s | (e + 112) << 23 | m << 13);
}

// Codes q (as floats, lo to hi, less the zero point) for scale s, and their weighted error. x and w are padded to LANES with
// zeros.
static float try_scale(const float *x, const float *w, int n, float s, float zero, float lo, float hi, float *q) {
  float inv = s == 0 ? 0 : 1.0f / s, lane[LANES] = {0};
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; l++) {
      float v = (x[i + l] * inv + 12582912.0f) - 12582912.0f + zero;
      v = v < lo ? lo : v > hi ? hi : v;
      v = v - zero;
      float e = x[i + l] - v * s;
      q[i + l] = v;
      lane[l] += w[i + l] * (e * e);
    }
  float sum = 0;
  for (int l = 0; l < LANES; l++) sum += lane[l];
  return sum;
}

typedef struct { float scale, zero, error; float q[MOST]; } choice;

static void consider(choice *best, const float *x, const float *w, int n, float s, float zero, float lo, float hi) {
  float q[MOST];
  s = from_f16(to_f16(s));
  if (!(fabsf(s) < 65504.0f)) return;
  float e = try_scale(x, w, n, s, zero, lo, hi, q);
  if (e < best->error) {
    best->error = e; best->scale = s; best->zero = zero;
    memcpy(best->q, q, sizeof(float) * (size_t)n);
  }
}

// The scale that serves the chosen codes best.
static void refine(choice *best, const float *x, const float *w, int n, float lo, float hi) {
  double xq = 0, qq = 0;
  for (int i = 0; i < n; i++) { xq += (double)w[i] * x[i] * best->q[i]; qq += (double)w[i] * best->q[i] * best->q[i]; }
  if (qq > 0) consider(best, x, w, n, (float)(xq / qq), best->zero, lo, hi);
}

int quant_rows(const float *x, int32_t rows, int32_t cols, int32_t group, int32_t bits, int32_t zeros, const float *weight, uint8_t *codes, uint16_t *scales, uint8_t *zero_points, double *noise, double *signal) {
  int32_t groups = (cols + group - 1) / group, row_bytes = bits == 4 ? (cols + 1) / 2 : cols;
  float top = (float)((1 << bits) - 1), half = (float)(1 << (bits - 1));
  for (int32_t r = 0; r < rows; r++) {
    uint8_t *out = codes + (int64_t)r * row_bytes;
    memset(out, 0, (size_t)row_bytes);
    for (int32_t g = 0; g < groups; g++) {
      int32_t c0 = g * group, n = cols - c0 < group ? cols - c0 : group, padded = (n + LANES - 1) / LANES * LANES;
      float v[MOST] = {0}, w[MOST] = {0}, most = 0, low = 0, high = 0;
      for (int32_t i = 0; i < n; i++) {
        v[i] = x[(int64_t)r * cols + c0 + i];
        w[i] = weight ? weight[c0 + i] : 1.0f;
        if (!(fabsf(v[i]) < INFINITY)) return 1;
        if (fabsf(v[i]) > fabsf(most)) most = v[i];
        if (v[i] < low) low = v[i];
        if (v[i] > high) high = v[i];
      }
      choice best = {.error = INFINITY, .zero = half};
      if (most == 0) {
        best.error = 0;
      } else if (bits == 8 && !zeros) {
        consider(&best, v, w, padded, fabsf(most) / 127.0f, half, 1, top);
      } else {
        int steps = bits == 4 ? 12 : 2;
        for (int t = 0; t < steps; t++) {
          float shrink = 1.0f - 0.03f * (float)t;
          if (zeros) {
            float s = (high - low) * shrink / top, z = rintf(-low * shrink / s);
            consider(&best, v, w, padded, s, z < 0 ? 0 : z > top ? top : z, 0, top);
          }
          consider(&best, v, w, padded, most * shrink / -half, half, 0, top);   // the largest takes the code without a counterpart
          consider(&best, v, w, padded, fabsf(most) * shrink / (half - 1), half, 0, top);
        }
        refine(&best, v, w, n, 0, top);
      }
      if (!(best.error < INFINITY)) return 2;
      scales[(int64_t)r * groups + g] = to_f16(best.scale);
      if (zeros) zero_points[(int64_t)r * groups + g] = (uint8_t)best.zero;
      for (int32_t i = 0; i < n; i++) {
        int code = (int)(best.q[i] + best.zero);
        float e = v[i] - best.q[i] * best.scale;
        *noise += (double)e * e;
        *signal += (double)v[i] * v[i];
        if (bits == 4) out[(c0 + i) / 2] |= (uint8_t)(code << ((c0 + i) & 1) * 4);
        else out[c0 + i] = (uint8_t)code;
      }
    }
  }
  return 0;
}
