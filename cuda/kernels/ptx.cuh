// The few instructions that CUDA C++ has no function for: bulk copies, their barriers, tensor-core products, grid-wide order.
// Devices before sm_90 have no bulk copies (kernels with them trap and are not chosen there) and no overlapping launches.
#pragma once
#include <stdint.h>
#ifdef COVEY_EMULATED
#include "../../engine/canon/canon.h"
#include "../fake/ptx.h"
#define COVEY_MEMORY(name) uint8_t *name = (uint8_t *)emulated_dynamic
#else
#define COVEY_MEMORY(name) extern __shared__ __align__(128) uint8_t name[]
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define COVEY_SM90(...) __trap()
#define COVEY_OVERLAP(...)
#else
#define COVEY_SM90(...) asm volatile(__VA_ARGS__)
#define COVEY_OVERLAP(...) asm volatile(__VA_ARGS__)
#endif

// An address in shared memory, counted in bytes: half as many instructions as a pointer takes. A pointer made from one is known to be of
// shared memory, also in a function that is not inlined. A kept place stays in a register; otherwise the address of dynamic shared
// memory is made anew for every access.
typedef uint32_t shared_place;
__device__ __forceinline__ shared_place shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ uint8_t *shared_pointer(shared_place p) { return (uint8_t *)__cvta_shared_to_generic(p); }
__device__ __forceinline__ shared_place kept(shared_place p) { asm volatile("" : "+r"(p)); return p; }

// ---- barriers in shared memory -----------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(shared_place b, uint32_t count) {
  COVEY_SM90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t count) { barrier_init(shared_address(b), count); }
__device__ __forceinline__ void barrier_init_done() { COVEY_SM90("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(shared_place b) {
  COVEY_SM90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) { barrier_arrive(shared_address(b)); }
// Without a branch.
__device__ __forceinline__ void barrier_arrive_if(shared_place b, bool arrives) {
  COVEY_SM90("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(b), "r"((uint32_t)arrives) : "memory");
}
__device__ __forceinline__ void barrier_expect(shared_place b, uint32_t bytes) {
  COVEY_SM90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(shared_place b, uint32_t parity) {
  COVEY_SM90(
      "{\n.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
      "@p bra done;\nbra again;\ndone:\n}" ::"r"(b), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) { barrier_wait(shared_address(b), parity); }
// bytes and both addresses are multiples of 16. The data is read once: it leaves the L2 cache first.
__device__ __forceinline__ void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t b, uint64_t policy) {
  COVEY_SM90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src), "r"(bytes), "r"(b), "l"(policy)
               : "memory");
}
__device__ __forceinline__ uint64_t read_once() {
  uint64_t p;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}

__device__ __forceinline__ void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t b) {
  COVEY_SM90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(b) : "memory");
}

// Asks the second-level cache for bytes that will be copied soon; as bulk_load.
__device__ __forceinline__ void prefetch_bulk(const void *src, uint32_t bytes) {
  COVEY_SM90("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}

// ---- 16- and 4-byte copies that a group of threads waits for ------------------------------------------------------------

__device__ __forceinline__ void copy16(void *dst, const void *src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void copy4(void *dst, const void *src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// A barrier among some warps of a block. Where racecheck is to follow the order, who only arrives waits too (see warp_arrive).
__device__ __forceinline__ void warps_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
#ifdef COVEY_EACH_LANE_ARRIVES
__device__ __forceinline__ void warps_arrive(int id, int threads) { warps_sync(id, threads); }
#else
__device__ __forceinline__ void warps_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
#endif

// ---- between blocks ------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t count_read(const uint32_t *c) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(c) : "memory");
  return v;
}

// A value is its own flag: readers spin until no word is `unset`, a NaN that no writer stores.
__device__ __forceinline__ float unset() { return __int_as_float(-1); }
__device__ __forceinline__ void hand_over(float *p, float v) {
  v = v == v ? v : __int_as_float(0x7fc00000);
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
__device__ __forceinline__ void hand_over(float *p, float2 v) {
  auto some = [](float x) { return x == x ? x : __int_as_float(0x7fc00000); };
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1,%2};" ::"l"(p), "f"(some(v.x)), "f"(some(v.y)) : "memory");
}
// The same for any bits that are not all set.
__device__ __forceinline__ void hand_over_word(uint32_t *p, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ float4 look4(const float *p) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float look(const float *p) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
// The same for pairs of words that never have all bits set.
__device__ __forceinline__ void hand_over(uint32_t *p, uint2 v) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ uint2 look2(const uint32_t *p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 look4(const uint32_t *p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
// For who looks long before anything is there: not to get in the writers' way.
__device__ __forceinline__ void rest() { asm volatile("nanosleep.u32 200;"); }
enum { MOST_LOOKS = 1 << 24 };   // about four seconds: a kernel whose partner never comes ends with an error
__device__ __forceinline__ bool is_unset(float v) { return __float_as_int(v) == -1; }

// ---- launches that overlap the end of the one before -------------------------------------------------------------------
//
// A kernel that may start early reads before wait_for_previous only what no launch that may still run writes: weights, the step's own
// numbers, what earlier steps left in caches; angles where their launch is known to have ended. Afterwards it reads what earlier
// launches of the step wrote through the second-level cache (__ldcg), so that no line of the first-level cache from before is in its way.

__device__ __forceinline__ void wait_for_previous() { COVEY_OVERLAP("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() { COVEY_OVERLAP("griddepcontrol.launch_dependents;" ::: "memory"); }

// A value that was read for its cache line's sake.
__device__ __forceinline__ void touch(float v) { asm volatile("" ::"f"(v)); }

// Two numbers of half precision.
__device__ __forceinline__ float2 halves(uint32_t v) {
  float2 f;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(f.x), "=f"(f.y) : "r"(v));
  return f;
}

// canon_to_f16 in four instructions.
__device__ __forceinline__ uint16_t half_of(float x) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return x == x ? h : (uint16_t)((__float_as_uint(x) >> 16 & 0x8000u) | 0x7e00u);
}

// Two numbers of e4m3.
__device__ __forceinline__ float2 e4m3s(uint32_t v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t h;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)v));
  return halves(h);
#else
  return make_float2(canon_from_e4m3((uint8_t)v), canon_from_e4m3((uint8_t)(v >> 8)));
#endif
}

// Four bytes chosen from the eight of a (0 to 3) and b (4 to 7) by nibbles of s; a nibble with its high bit set gives the byte's sign
// eight times.
__device__ __forceinline__ uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t s) {
  uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(s));
  return v;
}

// ---- tensor cores: 16 rows of weights by 8 columns of activations by 32 inputs, int32 sums ------------------------------

__device__ __forceinline__ void mma_u8(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
__device__ __forceinline__ void mma_s8(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
#endif

// ---- barriers that warps arrive at -------------------------------------------------------------------------------------
//
// A warp that has read or written shared memory meets and one of its lanes arrives for it. racecheck (compute-sanitizer) orders
// what a thread did only before arrivals of its own, so for it kernels are compiled with COVEY_EACH_LANE_ARRIVES (sanitize.sh),
// which changes nothing but how many arrivals a barrier counts: barrier_init takes WARP_ARRIVALS for each warp that hands over.
#ifdef COVEY_EACH_LANE_ARRIVES
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif
__device__ __forceinline__ void warp_arrive(shared_place b, int lane) {
  __syncwarp();
  barrier_arrive_if(b, WARP_ARRIVALS > 1 || lane == 0);
}
__device__ __forceinline__ void warp_arrive(uint64_t *b, int lane) { warp_arrive(shared_address(b), lane); }
// The same at n barriers, barrier(i) the i-th, which lanes share.
template <class F> __device__ __forceinline__ void warp_arrive_at(int n, int lane, F barrier) {
  constexpr int step = 32 / WARP_ARRIVALS;
  __syncwarp();
  for (int i = lane % step; i < n; i += step) barrier_arrive(barrier(i));
}

// The doubled values of four codes of MXFP4 (the low 16 bits of w) plus 12, as unsigned bytes.
enum { DOUBLED_ZERO = 12 };
static __device__ __forceinline__ uint32_t doubled4(uint32_t w) {
  uint32_t at = w & 0x7777u, plus = bytes_of(0x0f0e0d0cu, 0x18141210u, at), minus = bytes_of(0x090a0b0cu, 0x00040608u, at);
  uint32_t sign = bytes_of(0x80808080u, 0x80808080u, w);     // 0x80 or 0xff; no value has its highest bit set
  return (plus & ~sign) | (minus & sign);
}
