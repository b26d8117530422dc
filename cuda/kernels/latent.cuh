// Values of a cache of single vectors in shared memory. Loading and bringing to floats are apart, so that a loop can load ahead.
#pragma once
#include "device.h"
#include "ptx.cuh"

template <int FORM> struct latent_value;
template <> struct latent_value<CANON_F32> {
  enum { size = 4 };
  struct words { float4 a, b; };
  typedef float2 pair_words;
  static __device__ __forceinline__ words load(const uint8_t *p) { return words{*(const float4 *)p, *((const float4 *)p + 1)}; }
  static __device__ __forceinline__ void get(const words &w, float *v) { v[0] = w.a.x; v[1] = w.a.y; v[2] = w.a.z; v[3] = w.a.w; v[4] = w.b.x; v[5] = w.b.y; v[6] = w.b.z; v[7] = w.b.w; }
  static __device__ __forceinline__ float2 pair(float2 w) { return w; }
};
template <class V> struct latent_halves {
  enum { size = 2 };
  typedef uint4 words;
  typedef uint32_t pair_words;
  static __device__ __forceinline__ words load(const uint8_t *p) { return *(const uint4 *)p; }
  static __device__ __forceinline__ void get(const words &w, float *v) {
    float2 a = V::pair(w.x), b = V::pair(w.y), c = V::pair(w.z), d = V::pair(w.w);
    v[0] = a.x; v[1] = a.y; v[2] = b.x; v[3] = b.y; v[4] = c.x; v[5] = c.y; v[6] = d.x; v[7] = d.y;
  }
};
template <> struct latent_value<CANON_F16> : latent_halves<latent_value<CANON_F16>> { static __device__ __forceinline__ float2 pair(uint32_t w) { return halves(w); } };
template <> struct latent_value<CANON_BF16> : latent_halves<latent_value<CANON_BF16>> {
  static __device__ __forceinline__ float2 pair(uint32_t w) { return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)); }
};
