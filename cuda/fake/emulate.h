// CUDA's device language as C++, for the test driver: a block's threads are fibers of one thread, barriers and shuffles
// switch between them. It is exact, not fast: it runs the plain kernels so that the host code and the arithmetic can be tested
// on machines without a device. Inline assembly and tensor cores are beyond it.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define COVEY_KERNEL extern "C" void
#define COVEY_BOUNDED(threads) extern "C" void
#define COVEY_CONST const
#define COVEY_DYNAMIC(type, name) type *name = (type *)emulated_dynamic

struct uint3_ { uint32_t x, y, z; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) int4 { int32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

extern uint3_ threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *emulated_dynamic;
void emulated_barrier();
// Every lane of the warp gives 8 bytes; all lanes' bytes come back.
const uint64_t *emulated_exchange(uint64_t v);

static inline void __syncthreads() { emulated_barrier(); }
static inline void __syncwarp(unsigned = 0) { emulated_exchange(0); }
template <class T> static inline T emulated_shuffle(T v, uint32_t from) {
  uint64_t bits = 0;
  memcpy(&bits, &v, sizeof v);
  const uint64_t *all = emulated_exchange(bits);
  T out;
  memcpy(&out, &all[from & 31], sizeof out);
  return out;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return emulated_shuffle(v, (uint32_t)lane); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask) { return emulated_shuffle(v, (threadIdx.x & 31) ^ (uint32_t)mask); }
template <class T> static inline T __shfl_down_sync(unsigned, T v, unsigned delta) {
  uint32_t lane = threadIdx.x & 31;
  return emulated_shuffle(v, lane + delta < 32 ? lane + delta : lane);
}
static inline uint32_t __ballot_sync(unsigned, bool v) {
  const uint64_t *all = emulated_exchange(v);
  uint32_t bits = 0;
  for (int i = 0; i < 32; i++) bits |= (uint32_t)(all[i] & 1) << i;
  return bits;
}
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int32_t atomicCAS(int32_t *at, int32_t compare, int32_t v) { int32_t old = *at; if (old == compare) *at = v; return old; }
static inline int32_t atomicAdd(int32_t *at, int32_t v) { int32_t old = *at; *at += v; return old; }
static inline int32_t __dp4a(int32_t a, int32_t b, int32_t c) {
  for (int i = 0; i < 4; i++) c += (int32_t)(int8_t)(a >> 8 * i) * (int32_t)(int8_t)(b >> 8 * i);
  return c;
}
