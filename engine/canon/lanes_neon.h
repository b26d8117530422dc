// Four lanes: NEON of 64-bit Arm.
#pragma once
#include <arm_neon.h>
#include <string.h>
#include "canon.h"
#define VL 4
#define DOT_OUTPUTS 2
#define DOT_ROWS 1
typedef float32x4_t vf;
static inline vf v_load(const float *p) { return vld1q_f32(p); }
static inline vf v_load_n(const float *p, int n) { float t[4] = {0}; memcpy(t, p, (size_t)n * 4); return vld1q_f32(t); }
static inline void v_store(float *p, vf v) { vst1q_f32(p, v); }
static inline void v_store_n(float *p, vf v, int n) { float t[4]; vst1q_f32(t, v); memcpy(p, t, (size_t)n * 4); }
static inline vf v_set(float x) { return vdupq_n_f32(x); }
static inline vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf v_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }   // the second one for NaN
static inline vf v_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf v_neg(vf a) { return vnegq_f32(a); }
static inline vf v_keep_n(vf fresh, vf old, int n) {
  static const int32_t lane[4] = {0, 1, 2, 3};
  return vbslq_f32(vcgtq_s32(vdupq_n_s32(n), vld1q_s32(lane)), fresh, old);
}
static inline vf v_from_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline vf v_from_f16_n(const uint16_t *p, int n) { uint16_t t[4] = {0}; memcpy(t, p, (size_t)n * 2); return v_from_f16(t); }
static inline vf v_from_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline vf v_from_bf16_n(const uint16_t *p, int n) { uint16_t t[4] = {0}; memcpy(t, p, (size_t)n * 2); return v_from_bf16(t); }
// Through binary16, whose exponent is 8 larger: exact, denormals included. No weight is NaN.
static inline vf v_from_e4m3_n(const uint8_t *p, int n) {
  uint8_t t[8] = {0};
  memcpy(t, p, (size_t)n);
  uint16x4_t b = vget_low_u16(vmovl_u8(vld1_u8(t)));
  b = vorr_u16(vshl_n_u16(vand_u16(b, vdup_n_u16(0x7f)), 7), vshl_n_u16(vand_u16(b, vdup_n_u16(0x80)), 8));
  return vmulq_f32(vcvt_f32_f16(vreinterpret_f16_u16(b)), vdupq_n_f32(0x1p8f));
}
static inline vf v_from_e4m3(const uint8_t *p) { return v_from_e4m3_n(p, 4); }
static inline vf v_from_e8m0(const uint8_t *p) {
  uint8_t t[8] = {0};
  memcpy(t, p, 4);
  uint32x4_t v = vshlq_n_u32(vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(t)))), 23);
  return vreinterpretq_f32_u32(vmaxq_u32(v, vdupq_n_u32(0x400000)));
}
static inline void v_to_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
static inline float v_tree(vf acc[8]) {
  vf s[4];
  for (int i = 0; i < 4; i++) s[i] = v_add(acc[i], acc[i + 4]);       // (l, l+16)
  vf t = v_add(v_add(s[0], s[2]), v_add(s[1], s[3]));                 // (l, l+8), then (l, l+4)
  float32x2_t h = vadd_f32(vget_low_f32(t), vget_high_f32(t));        // (l, l+2)
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);                   // (l, l+1)
}
typedef uint64x2_t vx;
static inline vx x_zero(void) { return vdupq_n_u64(0); }
static inline vx x_load_xor(vx a, const uint8_t *p) { return veorq_u64(a, vreinterpretq_u64_u8(vld1q_u8(p))); }
static inline uint64_t x_fold(vx a) { return vgetq_lane_u64(a, 0) ^ vgetq_lane_u64(a, 1); }
static inline float v_highest(vf a) { return vmaxvq_f32(a); }
static inline vf v_rint(vf a) { return vrndnq_f32(a); }
static inline vf v_above(vf x, float limit, vf a, vf b) { return vbslq_f32(vcgtq_f32(x, v_set(limit)), a, b); }
static inline vf v_nan(vf x, vf a, vf b) { return vbslq_f32(vceqq_f32(x, x), b, a); }
static inline int v_within(vf x, float limit) { return vminvq_u32(vcleq_f32(vabsq_f32(x), v_set(limit))) != 0; }
static inline vf v_add_exponent(vf p, vf n) { return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(n), 23))); }
static inline vf v_times_power(vf p, vf n) {
  int32x4_t i = vcvtq_s32_f32(n), h = vshrq_n_s32(i, 1), bias = vdupq_n_s32(127);
  vf a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(h, bias), 23));
  vf b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(i, h), bias), 23));
  return v_mul(v_mul(p, a), b);
}
#include "lanes_exp.h"
