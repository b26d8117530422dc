// AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define VNNI 0
#include "kernels_avx512.h"
#include "kernels_lanes.h"

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0) product_floats(m, tile, tiles, r);
  else if (m->form == CANON_INT4) int4(m, tile, tiles, r);
  else if (m->form == CANON_INT8) int8(m, tile, tiles, r);
  else mxfp4(m, tile, tiles, r);
}

static void quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *less8, int32_t *half) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int32_t g = 0; g * group < n; g++, q += group) {
    const float *p = x + g * group;
    int32_t real = n - g * group < group ? n - g * group : group;   // lanes beyond are 0 and stay 0
    __m512i top = _mm512_setzero_si512();
    for (int32_t i = 0; i < real; i += 16) top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_castps_si512(v_load_n(p + i, real - i)), magnitude));
    uint32_t bits = (uint32_t)_mm512_reduce_max_epi32(top);
    float amax = canon_float(bits);
    if (bits >= 0x7f800000u || amax < 0x1p-100f) {
      memset(q, 0, (size_t)group);
      scale[g] = bits >= 0x7f800000u ? canon_nan() : 0;
      less8[g] = 0;
      if (half && group == 32) half[g] = 0;
      continue;
    }
    scale[g] = amax / 127.0f;
    __m512 inv = v_set(127.0f / amax);   // no product exceeds 127 by as much as it takes to round to 128
    __m512i sum = _mm512_setzero_si512();
    for (int32_t i = 0; i < group; i += 16) {
      __m512i c = _mm512_cvtps_epi32(v_mul(v_load_n(p + i, real - i), inv));
      sum = _mm512_add_epi32(sum, c);
      _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(c));
      if (half && group == 32 && i == 0) half[g] = _mm512_reduce_add_epi32(sum);
    }
    less8[g] = -8 * _mm512_reduce_add_epi32(sum);
  }
}

const canon_kernels *canon_kernels_avx512(void) {
  static const canon_kernels table = LANES_TABLE(product, quantise);
  return &table;
}
#endif
