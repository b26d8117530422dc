// NEON as every 64-bit Arm processor has it.
#if defined(__aarch64__)
#include "lanes_neon.h"
#include "kernels_lanes.h"

// Products of bytes fit 16 bits (128 * 127), pairs of them 32.
static inline int32x4_t dot4(int32x4_t sum, int8x16_t w, int8x16_t x) {
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x))), vpaddlq_s16(vmull_high_s8(w, x))));
}
#define DOT4 dot4
#include "kernels_neon.h"

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0) product_floats(m, tile, tiles, r);
  else codes(m, tile, tiles, r);
}

static void quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *less8, int32_t *half) {
  float padded[128];
  for (int32_t g = 0; g * group < n; g++, q += group) {
    const float *p = x + g * group;
    if (n - g * group < group) {          // a short last group: zeros quantise to 0 and change neither maximum nor sum
      memset(padded, 0, (size_t)group * 4);
      memcpy(padded, p, (size_t)(n - g * group) * 4);
      p = padded;
    }
    uint32x4_t top = vdupq_n_u32(0);
    for (int32_t i = 0; i < group; i += 4) top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(v_load(p + i)), vdupq_n_u32(0x7fffffff)));
    uint32_t bits = vmaxvq_u32(top);
    float amax = canon_float(bits);
    if (bits >= 0x7f800000u || amax < 0x1p-100f) {
      memset(q, 0, (size_t)group);
      scale[g] = bits >= 0x7f800000u ? canon_nan() : 0;
      less8[g] = 0;
      if (half && group == 32) half[g] = 0;
      continue;
    }
    scale[g] = amax / 127.0f;
    vf inv = v_set(127.0f / amax);
    int32x4_t sum = vdupq_n_s32(0);
    for (int32_t i = 0; i < group; i += 16) {
      int32x4_t c[4];
      if (i == 16 && half && group == 32) half[g] = vaddvq_s32(sum);
      for (int k = 0; k < 4; k++) {
        c[k] = vcvtnq_s32_f32(v_max(v_min(v_mul(v_load(p + i + k * 4), inv), v_set(127.0f)), v_set(-127.0f)));
        sum = vaddq_s32(sum, c[k]);
      }
      vst1q_s8(q + i, vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(c[0]), vmovn_s32(c[1]))), vmovn_s16(vcombine_s16(vmovn_s32(c[2]), vmovn_s32(c[3])))));
    }
    less8[g] = -8 * vaddvq_s32(sum);
  }
}

const canon_kernels *canon_kernels_neon(void) {
  static const canon_kernels table = LANES_TABLE(product, quantise);
  return &table;
}
#endif
