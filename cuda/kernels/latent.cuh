// Values of a cache of single vectors in shared memory.
#pragma once
#include "device.h"
#include "ptx.cuh"

template <int FORM> struct latent_value;
template <> struct latent_value<CANON_F32> {
  enum { size = 4 };
  static __device__ __forceinline__ void eight(const uint8_t *p, float *v) {
    #pragma unroll
    for (int i = 0; i < 8; i += 4) { float4 f = *(const float4 *)(p + i * 4); v[i] = f.x; v[i + 1] = f.y; v[i + 2] = f.z; v[i + 3] = f.w; }
  }
  static __device__ __forceinline__ float2 two(const uint8_t *p) { return *(const float2 *)p; }
};
template <class V> struct latent_halves {
  enum { size = 2 };
  static __device__ __forceinline__ void eight(const uint8_t *p, float *v) {
    uint4 w = *(const uint4 *)p;
    float2 a = V::pair(w.x), b = V::pair(w.y), c = V::pair(w.z), d = V::pair(w.w);
    v[0] = a.x; v[1] = a.y; v[2] = b.x; v[3] = b.y; v[4] = c.x; v[5] = c.y; v[6] = d.x; v[7] = d.y;
  }
  static __device__ __forceinline__ float2 two(const uint8_t *p) { return V::pair(*(const uint32_t *)p); }
};
template <> struct latent_value<CANON_F16> : latent_halves<latent_value<CANON_F16>> { static __device__ __forceinline__ float2 pair(uint32_t w) { return halves(w); } };
template <> struct latent_value<CANON_BF16> : latent_halves<latent_value<CANON_BF16>> {
  static __device__ __forceinline__ float2 pair(uint32_t w) { return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)); }
};
