// Rule 2 on tensor cores: one group of 16 weight rows by 8 activation rows, exact in int32, then one fused multiply-add.
//
// The int32 sums start at 0x4B400000, so that their bits are the float 12582912 + I (exact for |I| < 2^22) and a subtraction
// gives (float)I without a conversion. Codes of int4 keep their offset, those of mxfp4 get one: the start also holds -8 or -12
// times the sum of the activation codes. A lane (g = lane / 4, t = lane % 4) gets the sums of weight rows g and g + 8 by activation rows 2t, 2t + 1.
#pragma once
#include "device.h"
#include "ptx.cuh"

enum { COVEY_MAGIC = 0x4B400000 };

// What one activation row brings to a group: its scale, and what the int32 sums start from.
struct covey_pair { float scale; int32_t start; };
template <int FORM> __device__ __forceinline__ covey_pair pair_of(float scale, int32_t sum) {
  return covey_pair{scale, COVEY_MAGIC - (FORM == CANON_INT4 ? 8 : FORM == CANON_MXFP4 ? DOUBLED_ZERO : 0) * sum};
}

template <int SCALE> struct scale_pair;   // scales of rows g and g + 8
template <> struct scale_pair<CANON_F16> {
  static __device__ __forceinline__ float2 load(const uint8_t *p, int g) {
    return halves(((const uint32_t *)p)[g]);
  }
};
template <> struct scale_pair<CANON_BF16> {
  static __device__ __forceinline__ float2 load(const uint8_t *p, int g) {
    uint32_t v = ((const uint32_t *)p)[g];
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
  }
};
template <> struct scale_pair<CANON_F32> {
  static __device__ __forceinline__ float2 load(const uint8_t *p, int g) { return ((const float2 *)p)[g]; }
};

// Halves of two E8M0 scales (source_scale).
__device__ __forceinline__ float2 half_powers(uint32_t v) { return make_float2(canon_from_e8m0((uint8_t)v) * 0.5f, canon_from_e8m0((uint8_t)(v >> 8)) * 0.5f); }

// Scales whose form is known at run time only.
__device__ __forceinline__ float2 scale_pair_of(int scale_form, const uint8_t *p, int g) {
  if (scale_form == CANON_F16) return scale_pair<CANON_F16>::load(p, g);
  if (scale_form == CANON_BF16) return scale_pair<CANON_BF16>::load(p, g);
  return scale_pair<CANON_F32>::load(p, g);
}

__device__ __forceinline__ float2 scale_pair_in(int scale_form, uint2 v) {
  if (scale_form == CANON_F16) return halves(v.x);
  if (scale_form == CANON_BF16) return make_float2(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u));
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

template <int FORM, int GROUP, int SCALE> struct Form {
  enum {
    form = FORM, group = GROUP, four = FORM == CANON_INT4 || FORM == CANON_MXFP4, codes = GROUP * (four ? 8 : 16), block = codes + 16 * (SCALE == CANON_F32 ? 4 : 2),
    chunk = GROUP < 64 ? GROUP : 64, chunks = GROUP / chunk, steps = chunk / 32, segment = CANON_SEGMENT / GROUP,
  };

  // Words of row g and row g + 8 for one step: the fragment for the product.
  static __device__ __forceinline__ void unpack(uint32_t u, uint32_t v, uint32_t a[4]) {
    if (FORM == CANON_MXFP4) { a[0] = doubled4(u); a[1] = doubled4(v); a[2] = doubled4(u >> 16); a[3] = doubled4(v >> 16); }
    else { a[0] = u & 0x0f0f0f0fu; a[1] = v & 0x0f0f0f0fu; a[2] = u >> 4 & 0x0f0f0f0fu; a[3] = v >> 4 & 0x0f0f0f0fu; }
  }
  // The fragments of one chunk: a[step] for the product.
  static __device__ __forceinline__ void weights(const uint8_t *block, int c, int lane, uint32_t a[steps][4]) {
    if (four) {
      const uint8_t *p = block + c * chunk * 8 + lane * (chunk / 4);
      uint32_t w[2 * steps];
      if (steps == 2) {
        uint4 v = *(const uint4 *)p;
        w[0] = v.x; w[1] = v.y; w[2 * (steps - 1)] = v.z; w[2 * steps - 1] = v.w;
      } else {
        uint2 v = *(const uint2 *)p;
        w[0] = v.x; w[1] = v.y;
      }
      #pragma unroll
      for (int s = 0; s < steps; s++) unpack(w[2 * s], w[2 * s + 1], a[s]);
    } else {
      #pragma unroll
      for (int s = 0; s < steps; s++) {
        uint4 v = *(const uint4 *)(block + c * chunk * 16 + s * 512 + lane * 16);
        a[s][0] = v.x; a[s][1] = v.y; a[s][2] = v.z; a[s][3] = v.w;
      }
    }
  }
  // The codes of this lane's activation row for one chunk: b[step][half]. q is the row's first code of the chunk.
  static __device__ __forceinline__ void codes_of(const int8_t *q, int t, uint32_t b[steps][2]) {
    if (steps == 2) {
      uint4 v = *(const uint4 *)(q + t * 16);
      b[0][0] = v.x; b[0][1] = v.y; b[steps - 1][0] = v.z; b[steps - 1][1] = v.w;
    } else {
      uint2 v = *(const uint2 *)(q + t * 8);
      b[0][0] = v.x; b[0][1] = v.y;
    }
  }
  static __device__ __forceinline__ void mma(int32_t d[4], const uint32_t a[4], const uint32_t b[2], const int32_t c[4]) {
    if (four) mma_u8(d, a, b[0], b[1], c);
    else mma_s8(d, a, b[0], b[1], c);
  }
  // One group's int32 sums. q: the lane's activation row at the group's start; c: where the sums start.
  static __device__ __forceinline__ void sums(const uint8_t *block, const int8_t *q, int lane, const int32_t c[4], int32_t d[4]) {
    #pragma unroll
    for (int k = 0; k < chunks; k++) {
      uint32_t a[steps][4], b[steps][2];
      weights(block, k, lane, a);
      codes_of(q + k * chunk, lane & 3, b);
      #pragma unroll
      for (int s = 0; s < steps; s++) mma(d, a[s], b[s], k == 0 && s == 0 ? c : d);
    }
  }
  static __device__ __forceinline__ float2 scales(const uint8_t *block, int lane) { return scale_pair<SCALE>::load(block + codes, lane >> 2); }
};

__device__ __forceinline__ float sum_of(int32_t bits) { return __int_as_float(bits) - 12582912.0f; }

// A segment (rule 2) of 16 rows by one activation row, groups below n ascending from +0. Lanes with t = 0 hold the sums of
// rows g (x) and g + 8 (y). Four groups at a time: their loads and tensor instructions are independent, only the last
// multiply-adds wait for one another.
template <class F> __device__ __forceinline__ float2 segment_row(const uint8_t *blocks, const int8_t *q, const covey_pair *pairs, int n, int lane) {
  float2 acc = make_float2(0.0f, 0.0f);
  #pragma unroll 1
  for (; n >= 4; n -= 4) {
    int32_t d[4][4];
    uint32_t a[4][F::chunks][F::steps][4], b[4][F::chunks][F::steps][2];
    covey_pair p[4];
    float2 s[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      #pragma unroll
      for (int k = 0; k < F::chunks; k++) {
        F::weights(blocks + i * F::block, k, lane, a[i][k]);
        F::codes_of(q + i * F::group + k * F::chunk, lane & 3, b[i][k]);
      }
      p[i] = pairs[i];
      s[i] = F::scales(blocks + i * F::block, lane);
    }
    #pragma unroll
    for (int k = 0; k < F::chunks; k++)
      #pragma unroll
      for (int t = 0; t < F::steps; t++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
          int32_t c[4] = {p[i].start, p[i].start, p[i].start, p[i].start};
          F::mma(d[i], a[i][k][t], b[i][k][t], k == 0 && t == 0 ? c : d[i]);
        }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      acc.x = fmaf(sum_of(d[i][0]), s[i].x * p[i].scale, acc.x);
      acc.y = fmaf(sum_of(d[i][2]), s[i].y * p[i].scale, acc.y);
    }
    blocks += 4 * F::block; q += 4 * F::group; pairs += 4;
  }
  #pragma unroll 1
  for (; n > 0; n--) {
    covey_pair p = *pairs;
    int32_t c[4] = {p.start, p.start, p.start, p.start}, d[4];
    F::sums(blocks, q, lane, c, d);
    float2 s = F::scales(blocks, lane);
    acc.x = fmaf(sum_of(d[0]), s.x * p.scale, acc.x);
    acc.y = fmaf(sum_of(d[2]), s.y * p.scale, acc.y);
    blocks += F::block; q += F::group; pairs++;
  }
  return acc;
}

// ---- rule 1 ------------------------------------------------------------------------------------------------------------

// Eight values of a lane; GROUP / 8 neighbouring lanes are a group. Codes as 8 bytes, and to all lanes the group's scale and
// the sum of its codes. Both divisions run at once, on even and odd lanes. N such at once: their chains of operations overlap.
template <int GROUP, int N> __device__ __forceinline__ void quantise8(const float (&v)[N][8], int lane, float (&scale)[N], int32_t (&sum)[N], uint2 (&codes)[N]) {
  uint32_t top[N];
  float quotient[N], inv[N];
  #pragma unroll
  for (int k = 0; k < N; k++) {
    top[k] = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) top[k] = max(top[k], __float_as_uint(v[k][i]) & 0x7fffffffu);
  }
  #pragma unroll
  for (int h = GROUP / 16; h >= 1; h >>= 1)
    #pragma unroll
    for (int k = 0; k < N; k++) top[k] = max(top[k], __shfl_xor_sync(0xffffffffu, top[k], h));
  #pragma unroll
  for (int k = 0; k < N; k++) {
    const float amax = __uint_as_float(top[k]), over = lane & 1 ? 127.0f : amax, under = lane & 1 ? amax : 127.0f;
    quotient[k] = over / under;
  }
  #pragma unroll
  for (int k = 0; k < N; k++) {
    const float other = __shfl_xor_sync(0xffffffffu, quotient[k], 1);
    const bool finite = top[k] < 0x7f800000u, some = __uint_as_float(top[k]) >= 0x1p-100f;
    scale[k] = !finite ? canon_nan() : !some ? 0.0f : lane & 1 ? other : quotient[k];
    inv[k] = !finite || !some ? 0.0f : lane & 1 ? quotient[k] : other;
  }
  #pragma unroll
  for (int k = 0; k < N; k++) {
    // Adding 1.5 * 2^23 rounds as rintf does and leaves the integer in the low bits; no product is beyond 127.00002. Where inv is 0 so
    // are the codes, unless a value is not finite.
    uint32_t r[8];
    #pragma unroll
    for (int i = 0; i < 8; i++) r[i] = __float_as_uint(v[k][i] * inv[k] + 12582912.0f);
    auto pack = [](const uint32_t *p) { return bytes_of(bytes_of(p[0], p[1], 0x0040), bytes_of(p[2], p[3], 0x0040), 0x5410); };
    const bool finite = top[k] < 0x7f800000u;
    codes[k] = make_uint2(finite ? pack(r) : 0, finite ? pack(r + 4) : 0);
    sum[k] = __dp4a((int32_t)codes[k].x, 0x01010101, __dp4a((int32_t)codes[k].y, 0x01010101, 0));
  }
  #pragma unroll
  for (int h = GROUP / 16; h >= 1; h >>= 1)
    #pragma unroll
    for (int k = 0; k < N; k++) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], h);
}
template <int GROUP> __device__ __forceinline__ uint2 quantise8(const float (&v)[8], int lane, float *scale, int32_t *sum) {
  float values[1][8], scales[1];
  int32_t sums[1];
  uint2 codes[1];
  #pragma unroll
  for (int i = 0; i < 8; i++) values[0][i] = v[i];
  quantise8<GROUP, 1>(values, lane, scales, sums, codes);
  *scale = scales[0];
  *sum = sums[0];
  return codes[0];
}
