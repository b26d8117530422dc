// canon_expf in every lane, over primitives of the family that includes this: v_rint to nearest even, v_within (all |x| <= limit;
// not with NaN), v_add_exponent (adds the lowest bits of n's representation to p's exponent), v_times_power (p * 2^n in two
// factors, since n may be 128 or below -126), v_above (x > limit ? a : b) and v_nan (x is NaN ? a : b).
#pragma once

// exp(x) / 2^n, where n is the integer next to x * log2 e.
static inline vf v_exp_part(vf x, vf n) {
  vf r = v_fma(n, v_set(0x1.05c61p-29f), v_fma(n, v_set(-0x1.62e43p-1f), x));
  vf p = v_set(0x1.a0d2cep-13f);
  p = v_fma(p, r, v_set(0x1.6e879cp-10f));
  p = v_fma(p, r, v_set(0x1.11121p-7f));
  p = v_fma(p, r, v_set(0x1.555382p-5f));
  p = v_fma(p, r, v_set(0x1.555554p-3f));
  p = v_fma(p, r, v_set(0x1p-1f));
  return v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
}

// Any x.
static inline vf v_exp_far(vf x) {
  vf c = v_min(v_max(x, v_set(-105.0f)), v_set(89.0f)), n = v_rint(v_mul(c, v_set(0x1.715476p+0f)));
  return v_nan(x, v_set(canon_nan()), v_above(x, 0x1.62e42ep+6f, v_set(canon_inf()), v_times_power(v_exp_part(c, n), n)));
}

// Where all results are normal, an addition to the exponent scales exactly as two products do, and adding 2^23 + 2^22 rounds as
// rint does and leaves n in the lowest bits: half the operations.
static inline vf v_exp(vf x) {
  if (__builtin_expect(!v_within(x, 86.0f), 0)) return v_exp_far(x);
  vf magic = v_set(0x1.8p23f), shifted = v_add(v_mul(x, v_set(0x1.715476p+0f)), magic);
  return v_add_exponent(v_exp_part(x, v_sub(shifted, magic)), shifted);
}
