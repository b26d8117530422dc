// Eight lanes: AVX2, FMA, F16C.
#pragma once
#include <immintrin.h>
#include <string.h>
#include "canon.h"
#define VL 8
#define DOT_OUTPUTS 2
#define DOT_ROWS 1
typedef __m256 vf;
static inline __m256i v_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf v_load_n(const float *p, int n) { return _mm256_maskload_ps(p, v_mask(n)); }
static inline void v_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline void v_store_n(float *p, vf v, int n) { _mm256_maskstore_ps(p, v_mask(n), v); }
static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf v_neg(vf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
static inline vf v_keep_n(vf fresh, vf old, int n) { return _mm256_blendv_ps(old, fresh, _mm256_castsi256_ps(v_mask(n))); }
static inline vf v_from_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf v_from_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf v_from_f16_n(const uint16_t *p, int n) { uint16_t t[8] = {0}; memcpy(t, p, (size_t)n * 2); return v_from_f16(t); }
static inline vf v_from_bf16_n(const uint16_t *p, int n) { uint16_t t[8] = {0}; memcpy(t, p, (size_t)n * 2); return v_from_bf16(t); }
// Through binary16, whose exponent is 8 larger: exact, denormals included. No weight is NaN.
static inline vf v_from_e4m3_bits(uint64_t b) {
  __m128i v = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)b));
  v = _mm_or_si128(_mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x7f)), 7), _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x80)), 8));
  return _mm256_mul_ps(_mm256_cvtph_ps(v), _mm256_set1_ps(0x1p8f));
}
static inline vf v_from_e4m3(const uint8_t *p) { uint64_t b; memcpy(&b, p, 8); return v_from_e4m3_bits(b); }
static inline vf v_from_e4m3_n(const uint8_t *p, int n) { uint64_t b = 0; memcpy(&b, p, (size_t)n); return v_from_e4m3_bits(b); }
static inline vf v_from_e8m0(const uint8_t *p) {
  __m256i v = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 23);
  return _mm256_castsi256_ps(_mm256_max_epi32(v, _mm256_set1_epi32(0x400000)));
}
static inline void v_to_f16(uint16_t *p, vf v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
static inline float v_halves(__m256 s) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));   // (l, l+4)
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));                                         // (l, l+2)
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));                        // (l, l+1)
}
static inline float v_tree(vf acc[4]) {
  return v_halves(v_add(v_add(acc[0], acc[2]), v_add(acc[1], acc[3])));           // (l, l+16), then (l, l+8)
}
typedef __m256i vx;
static inline vx x_zero(void) { return _mm256_setzero_si256(); }
static inline vx x_load_xor(vx a, const uint8_t *p) { return _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)p)); }
static inline uint64_t x_fold(vx a) { uint64_t v[4]; memcpy(v, &a, 32); return v[0] ^ v[1] ^ v[2] ^ v[3]; }
static inline float v_highest(vf a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
static inline vf v_rint(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf v_above(vf x, float limit, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, v_set(limit), _CMP_GT_OQ)); }
static inline vf v_nan(vf x, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
static inline int v_within(vf x, float limit) { return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_andnot_ps(v_set(-0.0f), x), v_set(limit), _CMP_LE_OQ)) == 0xff; }
static inline vf v_add_exponent(vf p, vf n) { return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(n), 23))); }
static inline vf v_times_power(vf p, vf n) {
  __m256i i = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
  vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(h, bias), 23));
  vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, h), bias), 23));
  return v_mul(v_mul(p, a), b);
}
#include "lanes_exp.h"
