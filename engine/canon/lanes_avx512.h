// Sixteen lanes: AVX-512 F, BW, VL, DQ.
#pragma once
#include <immintrin.h>
#include <string.h>
#include "canon.h"
#define VL 16
#define DOT_OUTPUTS 2
#define DOT_ROWS 2
typedef __m512 vf;
static inline __mmask16 v_mask(int n) { return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n < 0 ? 0 : n)) - 1); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
static inline void v_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline void v_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, v_mask(n), v); }
static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_neg(vf a) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0x80000000u))); }
static inline vf v_keep_n(vf fresh, vf old, int n) { return _mm512_mask_blend_ps(v_mask(n), old, fresh); }
static inline vf v_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf v_from_f16_n(const uint16_t *p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_mask(n), p)); }
static inline vf v_from_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vf v_from_bf16_n(const uint16_t *p, int n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_mask(n), p)), 16));
}
// Through binary16, whose exponent is 8 larger: exact, denormals included. No weight is NaN.
static inline vf v_from_e4m3_bytes(__m128i b) {
  __m256i v = _mm256_cvtepu8_epi16(b);
  v = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x7f)), 7), _mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x80)), 8));
  return _mm512_mul_ps(_mm512_cvtph_ps(v), _mm512_set1_ps(0x1p8f));
}
static inline vf v_from_e4m3(const uint8_t *p) { return v_from_e4m3_bytes(_mm_loadu_si128((const __m128i *)p)); }
static inline vf v_from_e4m3_n(const uint8_t *p, int n) { return v_from_e4m3_bytes(_mm_maskz_loadu_epi8(v_mask(n), p)); }
static inline vf v_from_e8m0(const uint8_t *p) {
  __m512i v = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 23);
  return _mm512_castsi512_ps(_mm512_max_epi32(v, _mm512_set1_epi32(0x400000)));
}
static inline void v_to_f16(uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
static inline float v_halves(__m256 s) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));   // (l, l+4)
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));                                         // (l, l+2)
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));                        // (l, l+1)
}
static inline float v_tree(vf acc[2]) {
  vf s = v_add(acc[0], acc[1]);                                                   // (l, l+16)
  return v_halves(_mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1)));   // (l, l+8)
}
typedef __m512i vx;
static inline vx x_zero(void) { return _mm512_setzero_si512(); }
static inline vx x_load_xor(vx a, const uint8_t *p) { return _mm512_xor_si512(a, _mm512_loadu_si512(p)); }
static inline uint64_t x_fold(vx a) { uint64_t v[8]; memcpy(v, &a, 64); return v[0] ^ v[1] ^ v[2] ^ v[3] ^ v[4] ^ v[5] ^ v[6] ^ v[7]; }
static inline float v_highest(vf a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
static inline vf v_rint(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf v_above(vf x, float limit, vf a, vf b) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, v_set(limit), _CMP_GT_OQ), b, a); }
static inline vf v_nan(vf x, vf a, vf b) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), b, a); }
static inline int v_within(vf x, float limit) { return _mm512_cmp_ps_mask(_mm512_abs_ps(x), v_set(limit), _CMP_LE_OQ) == 0xffff; }
static inline vf v_add_exponent(vf p, vf n) { return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(n), 23))); }
static inline vf v_times_power(vf p, vf n) {
  __m512i i = _mm512_cvtps_epi32(n), h = _mm512_srai_epi32(i, 1), bias = _mm512_set1_epi32(127);
  vf a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(h, bias), 23));
  vf b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(i, h), bias), 23));
  return v_mul(v_mul(p, a), b);
}
#include "lanes_exp.h"
