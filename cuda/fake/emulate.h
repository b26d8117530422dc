// CUDA's device language as C++, for the test driver: a block's threads are fibers of one thread, barriers and shuffles
// switch between them. It is exact, not fast: it runs the kernels so that the host code and the arithmetic can be tested
// on machines without a device. ptx.h has the instructions that kernels write as assembly.
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
#define __global__
#define __grid_constant__
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define COVEY_KERNEL extern "C" void
#define COVEY_BOUNDED(threads) extern "C" void
#define COVEY_CONST const
#define COVEY_DYNAMIC(type, name) type *name = (type *)emulated_dynamic

struct uint3_ { uint32_t x, y, z; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(8) int2 { int32_t x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) int4 { int32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline float __uint_as_float(uint32_t v) { float f; memcpy(&f, &v, 4); return f; }
static inline float __int_as_float(int32_t v) { return __uint_as_float((uint32_t)v); }
static inline uint32_t __float_as_uint(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }
static inline int32_t __float_as_int(float v) { return (int32_t)__float_as_uint(v); }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldg(const T *p) { return *p; }
static inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }

extern uint3_ threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *emulated_dynamic;
void emulated_barrier();
// Every lane of the warp gives 8 bytes; all lanes' bytes come back.
const uint64_t *emulated_exchange(uint64_t v);
// Lets the other threads of the block run; for loops that wait for one of them.
void emulated_poll();
// A barrier of some of the block's threads; whether to wait there or only to arrive.
void emulated_meeting(int id, int threads, bool wait);
// Ends the process where kernels are said to be made for an architecture without bulk copies, as a device traps.
void emulated_bulk();

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
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned delta) {
  uint32_t lane = threadIdx.x & 31;
  return emulated_shuffle(v, lane >= delta ? lane - delta : lane);
}
static inline uint32_t __ballot_sync(unsigned, bool v) {
  const uint64_t *all = emulated_exchange(v);
  uint32_t bits = 0;
  for (int l = 0; l < 32; l++) bits |= (uint32_t)(all[l] & 1) << l;
  return bits;
}
static inline uint32_t __match_any_sync(unsigned, int32_t v) {
  const uint64_t *all = emulated_exchange((uint32_t)v);
  uint32_t bits = 0;
  for (int l = 0; l < 32; l++) bits |= (uint32_t)((uint32_t)all[l] == (uint32_t)v) << l;
  return bits;
}
static inline bool __all_sync(unsigned mask, bool v) { return __ballot_sync(mask, v) == 0xffffffffu; }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline uint32_t __reduce_max_sync(unsigned, uint32_t v) {
  const uint64_t *all = emulated_exchange(v);
  for (int i = 0; i < 32; i++) v = all[i] > v ? (uint32_t)all[i] : v;
  return v;
}
static inline uint32_t __reduce_min_sync(unsigned, uint32_t v) {
  const uint64_t *all = emulated_exchange(v);
  for (int i = 0; i < 32; i++) v = all[i] < v ? (uint32_t)all[i] : v;
  return v;
}
static inline void __trap() { __builtin_trap(); }
static inline int32_t atomicCAS(int32_t *at, int32_t compare, int32_t v) { int32_t old = *at; if (old == compare) *at = v; return old; }
static inline uint32_t atomicMax(uint32_t *at, uint32_t v) { uint32_t old = *at; *at = old > v ? old : v; return old; }
static inline int32_t atomicMin(int32_t *at, int32_t v) { int32_t old = *at; *at = old < v ? old : v; return old; }
static inline uint32_t atomicInc(uint32_t *at, uint32_t most) { uint32_t old = *at; *at = old >= most ? 0 : old + 1; return old; }
static inline int32_t atomicAdd(int32_t *at, int32_t v) { int32_t old = *at; *at += v; return old; }
static inline int32_t __dp4a(int32_t a, int32_t b, int32_t c) {
  for (int i = 0; i < 4; i++) c += (int32_t)(int8_t)(a >> 8 * i) * (int32_t)(int8_t)(b >> 8 * i);
  return c;
}
