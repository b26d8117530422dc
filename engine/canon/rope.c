// Rotary frequencies (rule 5): double code of our own, so that hosts with different maths libraries agree.
#include "canon.h"
#include "engine.h"

static double yarn_edge(const canon_rope_spec *s, double rotations) {
  return s->rot * canon_log64(s->original / (6.283185307179586 * rotations)) / (2 * canon_log64(s->theta));
}
static double yarn_scale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * canon_log64(factor) + 1; }

double canon_rope_frequencies(const canon_rope_spec *s, float *inv) {
  double lo = 0, hi = 0, theta = s->alpha > 0 ? s->theta * canon_pow64(s->alpha, s->rot / (s->rot - 2.0)) : s->theta;
  if (s->kind == 3) {
    lo = yarn_edge(s, s->beta_fast);
    hi = yarn_edge(s, s->beta_slow);
    if (s->truncate) { lo = floor(lo); hi = ceil(hi); }
    lo = lo > 0 ? lo : 0;
    hi = hi < s->rot - 1 ? hi : s->rot - 1;
    if (lo == hi) hi += 0.001;
  }
  for (int32_t j = 0; j < s->rot / 2; j++) {
    double base = canon_pow64(theta, (double)(2 * j) / s->rot), v = 1 / base;
    if (s->kind == 1) v = 1 / (base * s->factor);
    if (s->kind == 2) {
      double wave = 6.283185307179586 / v, at = s->original / wave;
      if (wave > s->original / s->low) v = v / s->factor;
      else if (wave >= s->original / s->high) {
        double m = (at - s->low) / (s->high - s->low);
        v = (1 - m) * v / s->factor + m * v;
      }
    }
    if (s->kind == 3) {
      double ramp = (j - lo) / (hi - lo);
      ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
      v = ramp / (s->factor * base) + (1 - ramp) / base;
    }
    inv[j] = (float)v;
  }
  if (s->attention != 0) return s->attention;
  if (s->kind != 3) return 1;
  if (s->mscale != 0 && s->mscale_all != 0) return yarn_scale(s->factor, s->mscale) / yarn_scale(s->factor, s->mscale_all);
  return yarn_scale(s->factor, 1);
}

double canon_rope_divided(const canon_rope_spec *s, const double *divisors, float *inv) {
  for (int32_t j = 0; j < s->rot / 2; j++) inv[j] = (float)(1 / (divisors[j] * canon_pow64(s->theta, (double)(2 * j) / s->rot)));
  if (s->attention != 0) return s->attention;
  return s->factor <= 1 ? 1 : sqrt(1 + canon_log64(s->factor) / canon_log64(s->original));
}

// Softmax scale of latent attention: with yarn the attention factor sits here, squared, and not in the rotation.
float canon_rope_scale(const canon_rope_spec *s, int32_t dim) {
  double m = s->kind != 0 && s->mscale_all != 0 ? yarn_scale(s->factor, s->mscale_all) : 1;
  return (float)(1 / sqrt((double)dim) * m * m);
}

float canon_attention_scale(int32_t dim) { return (float)(1 / sqrt((double)dim)); }
