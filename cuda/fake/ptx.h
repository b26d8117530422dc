// The instructions of kernels/ptx.cuh as C++, for the test driver: copies happen at once, a barrier counts arrivals and bytes
// as the hardware's do, a tensor-core product is the sum that it stands for.
#pragma once
#include "emulate.h"

typedef const char *shared_place;                        // counted in bytes
static inline shared_place shared_address(const void *p) { return (shared_place)p; }
static inline uint8_t *shared_pointer(shared_place p) { return (uint8_t *)p; }
static inline shared_place kept(shared_place p) { return p; }

// Eight bytes: arrivals awaited in a phase and still missing, bytes still missing, and the phase.
struct emulated_mbarrier { uint16_t count, missing; int32_t bytes_and_phase; };
static inline void emulated_settle(emulated_mbarrier *b) {
  if (b->missing || b->bytes_and_phase >> 1) return;
  b->missing = b->count;
  b->bytes_and_phase ^= 1;
}
static inline void barrier_init(shared_place p, uint32_t count) { emulated_bulk(); emulated_mbarrier *b = (emulated_mbarrier *)p; b->count = b->missing = (uint16_t)count; b->bytes_and_phase = 0; }
static inline void barrier_init(uint64_t *p, uint32_t count) { barrier_init(shared_address(p), count); }
static inline void barrier_init_done() {}
static inline void barrier_arrive(shared_place p) { emulated_mbarrier *b = (emulated_mbarrier *)p; b->missing--; emulated_settle(b); }
static inline void barrier_arrive(uint64_t *p) { barrier_arrive(shared_address(p)); }
static inline void barrier_arrive_if(shared_place p, bool arrives) { if (arrives) barrier_arrive(p); }
static inline void barrier_expect(shared_place p, uint32_t bytes) {
  emulated_mbarrier *b = (emulated_mbarrier *)p;
  b->bytes_and_phase += (int32_t)bytes * 2;
  b->missing--;
  emulated_settle(b);
}
static inline void barrier_wait(shared_place p, uint32_t parity) {
  const emulated_mbarrier *b = (const emulated_mbarrier *)p;
  while ((uint32_t)(b->bytes_and_phase & 1) == parity) emulated_poll();
}
static inline void barrier_wait(uint64_t *p, uint32_t parity) { barrier_wait(shared_address(p), parity); }
static inline void bulk_load(shared_place dst, const void *src, uint32_t bytes, shared_place p, uint64_t = 0) {
  emulated_mbarrier *b = (emulated_mbarrier *)p;
  memcpy((void *)dst, src, bytes);
  b->bytes_and_phase -= (int32_t)bytes * 2;
  emulated_settle(b);
}
static inline uint64_t read_once() { return 0; }
static inline void prefetch_bulk(const void *, uint32_t) {}

static inline void copy16(void *dst, const void *src) { memcpy(dst, src, 16); }
static inline void copy4(void *dst, const void *src) { memcpy(dst, src, 4); }
static inline void copies_commit() {}
template <int LEFT> static inline void copies_wait() {}

static inline void warps_sync(int id, int threads) { emulated_meeting(id, threads, true); }
static inline void warps_arrive(int id, int threads) { emulated_meeting(id, threads, false); }

// Whoever looks lets the others run, other blocks too where the launch runs all at once.
static inline float unset() { return __int_as_float(-1); }
static inline bool is_unset(float v) { return __float_as_int(v) == -1; }
static inline uint32_t count_read(const uint32_t *c) { return *c; }
static inline float look(const float *p) { emulated_poll(); return *p; }
static inline float4 look4(const float *p) { emulated_poll(); return *(const float4 *)p; }
static inline uint2 look2(const uint32_t *p) { emulated_poll(); return *(const uint2 *)p; }
static inline uint4 look4(const uint32_t *p) { emulated_poll(); return *(const uint4 *)p; }
static inline void rest() {}
static inline void hand_over(uint32_t *p, uint2 v) { *(uint2 *)p = v; }
static inline void hand_over(float *p, float v) { *p = v == v ? v : __int_as_float(0x7fc00000); }
static inline void hand_over(float *p, float2 v) { hand_over(p, v.x); hand_over(p + 1, v.y); }
static inline void hand_over_word(uint32_t *p, uint32_t v) { *p = v; }
enum { MOST_LOOKS = 1 << 24 };

static inline void __threadfence() {}
static inline void wait_for_previous() {}
static inline void let_next_start() {}

template <class A> static inline void emulated_mma(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4]) {
  uint32_t as[32][4], bs[32][2];
  const uint64_t *all = emulated_exchange(a[0] | (uint64_t)a[1] << 32);
  for (int l = 0; l < 32; l++) { as[l][0] = (uint32_t)all[l]; as[l][1] = (uint32_t)(all[l] >> 32); }
  all = emulated_exchange(a[2] | (uint64_t)a[3] << 32);
  for (int l = 0; l < 32; l++) { as[l][2] = (uint32_t)all[l]; as[l][3] = (uint32_t)(all[l] >> 32); }
  all = emulated_exchange(b0 | (uint64_t)b1 << 32);
  for (int l = 0; l < 32; l++) { bs[l][0] = (uint32_t)all[l]; bs[l][1] = (uint32_t)(all[l] >> 32); }
  int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  for (int i = 0; i < 4; i++) {
    int row = i >> 1, col = 2 * t + (i & 1);                 // weight row g + 8 * row, activation row col
    int32_t sum = c[i];
    for (int k = 0; k < 32; k++) {
      int owner = k % 16 / 4, byte = k % 4, half = k / 16;
      sum += (int32_t)(A)(as[4 * g + owner][2 * half + row] >> 8 * byte) * (int32_t)(int8_t)(bs[4 * col + owner][half] >> 8 * byte);
    }
    d[i] = sum;
  }
}
static inline void mma_u8(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4]) { emulated_mma<uint8_t>(d, a, b0, b1, c); }
static inline void mma_s8(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const int32_t c[4]) { emulated_mma<int8_t>(d, a, b0, b1, c); }

static inline float2 e4m3s(uint32_t v) { return {canon_from_e4m3((uint8_t)v), canon_from_e4m3((uint8_t)(v >> 8))}; }
static inline uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t s) {
  uint64_t from = a | (uint64_t)b << 32;
  uint32_t v = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t n = s >> 4 * i & 15, byte = (uint32_t)(from >> 8 * (n & 7)) & 255;
    v |= (n & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
  }
  return v;
}
static inline void touch(float) {}
static inline uint16_t half_of(float x) { return canon_to_f16(x); }
static inline float2 halves(uint32_t v) { return {canon_from_f16((uint16_t)v), canon_from_f16((uint16_t)(v >> 16))}; }
