// What every kernel includes: the ABI and the few device functions that all of them need. With COVEY_EMULATED the same
// sources compile as C++ for the test driver of cuda/fake, which runs a block's threads as fibers.
#pragma once
#ifdef COVEY_EMULATED
#include "../fake/emulate.h"
#else
#define COVEY_KERNEL extern "C" __global__ void
#define COVEY_BOUNDED(threads) extern "C" __global__ void __launch_bounds__(threads)
#define COVEY_CONST const __grid_constant__
#define COVEY_DYNAMIC(type, name) extern __shared__ __align__(16) unsigned char covey_dynamic[]; type *name = (type *)covey_dynamic
#endif
#include "abi.h"

#define FULL 0xffffffffu

// The tree of rule 3 over the lanes of a warp; every lane gets the result.
static __device__ __forceinline__ float warp_tree(float v) {
#pragma unroll
  for (int h = 16; h >= 1; h >>= 1) v = v + __shfl_xor_sync(FULL, v, h);
  return v;
}
// The sum of squares of x [n] in shared memory by a warp, as rule 4 adds it up: a lane's inputs in ascending order, then the tree.
// Sixteen loads are on their way at once.
static __device__ __forceinline__ float warp_squares(const float *x, int n, int lane) {
  float s = 0;
  int i = lane;
#pragma unroll 1
  for (; i + 15 * 32 < n; i += 16 * 32) {
    float v[16];
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = x[i + j * 32];
#pragma unroll
    for (int j = 0; j < 16; j++) s = canon_fmaf(v[j], v[j], s);
  }
#pragma unroll 1
  for (; i < n; i += 32) s = canon_fmaf(x[i], x[i], s);
  return warp_tree(s);
}
static __device__ __forceinline__ uint32_t warp_max(uint32_t v) {
  for (int h = 16; h >= 1; h >>= 1) { uint32_t o = __shfl_xor_sync(FULL, v, h); v = o > v ? o : v; }
  return v;
}
static __device__ __forceinline__ int32_t warp_add(int32_t v) {
  for (int h = 16; h >= 1; h >>= 1) v += __shfl_xor_sync(FULL, v, h);
  return v;
}

static __device__ __forceinline__ int32_t rows_of(const covey_program *p, int32_t logits) { return logits ? p->step.logit_rows : p->step.rows; }
static __device__ __forceinline__ float *row_of(const canon_buffer &b, int64_t row) { return b.data + row * b.stride; }
static __device__ __forceinline__ int32_t at_most(int32_t a, int32_t b) { return a < b ? a : b; }

// One layer's part of a page: a layer's parts of all pages lie together, so that what a launch reads spans few gigabytes, whose addresses
// translate without misses. And where in it channel d of a head's key and value at a place of the page lie.
static __device__ __forceinline__ uint8_t *kv_layer(const canon_kv &kv, int32_t page, int32_t layer) {
  int64_t part = (int64_t)kv.heads * kv.dim * covey_form_bytes(kv.form) * (kv.single ? kv.slots : 128);
  return kv.data + ((int64_t)layer * kv.pages + page) * part;
}
static __device__ __forceinline__ int64_t key_at(const canon_kv &kv, int32_t head, int32_t place, int32_t d) {
  return kv.single ? ((int64_t)place * kv.heads + head) * kv.dim + d : ((int64_t)head * kv.dim + d) * 64 + place;
}
static __device__ __forceinline__ int64_t value_at(const canon_kv &kv, int32_t head, int32_t place, int32_t d) {
  return kv.single ? key_at(kv, head, place, d) : (int64_t)kv.heads * kv.dim * 64 + ((int64_t)head * 64 + place) * kv.dim + d;
}

// Vector i of a cache of single vectors, one for each rate positions (canon_kv_entry).
static __device__ __forceinline__ uint8_t *kv_entry(const canon_kv &kv, const int32_t *pages, int32_t layer, int32_t i, int32_t rate) {
  int32_t last = (i + 1) * rate - 1, slot = rate > 64 ? 0 : last % 64 / rate;
  return kv_layer(kv, pages[last / 64], layer) + (int64_t)slot * kv.heads * kv.dim * covey_form_bytes(kv.form);
}
// Stores a value in the form of a cache; the magnitude's bits in f16, else 0.
static __device__ __forceinline__ uint16_t store_value(int32_t form, uint8_t *at, int64_t i, float v) {
  if (form == CANON_F32) { ((float *)at)[i] = v; return 0; }
  uint16_t h = form == CANON_F16 ? canon_to_f16(v) : canon_to_bf16(v);
  ((uint16_t *)at)[i] = h;
  return form == CANON_F16 ? h & 0x7fff : 0;
}

// The nearest row before and behind a row in its sequence; -1 and the number of rows if there is none.
static __device__ __forceinline__ int32_t earlier_row(const covey_program *p, int32_t row) {
  int32_t r = row - 1;
  while (r >= 0 && p->step.sequence[r] != p->step.sequence[row]) r--;
  return r;
}
static __device__ __forceinline__ int32_t later_row(const covey_program *p, int32_t row) {
  int32_t r = row + 1;
  while (r < p->step.rows && p->step.sequence[r] != p->step.sequence[row]) r++;
  return r;
}

// The first fault of a row stays (canon_fault of engine/canon/program.c).
static __device__ __forceinline__ void fault(const covey_program *p, int32_t logits, int32_t row, int32_t kind, int32_t label) {
  if (logits) row = p->step.logit_row[row];
  int32_t *f = p->step.faults + 2 * row;
  if (atomicCAS(f, 0, kind) == 0) f[1] = label;
}

// Rule 1 on one group of n real inputs of `group`, by one warp; lanes take inputs lane, lane + 32, ...
static __device__ __forceinline__ void warp_quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *sum) {
  int lane = threadIdx.x & 31;
  uint32_t top = 0;
  for (int i = lane; i < n; i += 32) { uint32_t a = canon_bits(x[i]) & 0x7fffffffu; top = a > top ? a : top; }
  top = warp_max(top);
  float amax = canon_float(top), inv = 0, d = 0;
  if (top >= 0x7f800000u) d = canon_nan();
  else if (amax >= 0x1p-100f) { d = amax / 127.0f; inv = 127.0f / amax; }
  int32_t s = 0;
  for (int i = lane; i < group; i += 32) {
    float v = inv == 0 || i >= n ? 0.0f : rintf(x[i] * inv);
    v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
    q[i] = (int8_t)v;
    s += (int8_t)v;
  }
  s = warp_add(s);
  if (lane == 0) { *scale = d; *sum = s; }
}
