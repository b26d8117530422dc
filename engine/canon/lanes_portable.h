// One lane of plain C: the same kernels as the vector families, written once in kernels_lanes.h.
#pragma once
#include <string.h>
#include "canon.h"
#define VL 1
#define DOT_OUTPUTS 1
#define DOT_ROWS 1
typedef float vf;
static inline vf v_load(const float *p) { return *p; }
static inline vf v_load_n(const float *p, int n) { (void)n; return *p; }
static inline void v_store(float *p, vf v) { *p = v; }
static inline void v_store_n(float *p, vf v, int n) { (void)n; *p = v; }
static inline vf v_set(float x) { return x; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_fma(vf a, vf b, vf c) { return canon_fmaf(a, b, c); }
static inline vf v_max(vf a, vf b) { return a > b ? a : b; }
static inline vf v_min(vf a, vf b) { return a < b ? a : b; }
static inline vf v_neg(vf a) { return -a; }
static inline vf v_exp(vf x) { return canon_expf(x); }
static inline vf v_keep_n(vf fresh, vf old, int n) { (void)old; (void)n; return fresh; }
static inline vf v_from_f16(const uint16_t *p) { return canon_from_f16(*p); }
static inline vf v_from_f16_n(const uint16_t *p, int n) { (void)n; return canon_from_f16(*p); }
static inline vf v_from_bf16(const uint16_t *p) { return canon_from_bf16(*p); }
static inline vf v_from_bf16_n(const uint16_t *p, int n) { (void)n; return canon_from_bf16(*p); }
static inline vf v_from_e4m3(const uint8_t *p) { return canon_from_e4m3(*p); }
static inline vf v_from_e4m3_n(const uint8_t *p, int n) { (void)n; return canon_from_e4m3(*p); }
static inline void v_to_f16(uint16_t *p, vf v) { *p = canon_to_f16(v); }
static inline float v_tree(vf acc[32]) { return canon_tree(acc); }
typedef uint64_t vx;
static inline vx x_zero(void) { return 0; }
static inline vx x_load_xor(vx a, const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return a ^ v; }
static inline uint64_t x_fold(vx a) { return a; }
static inline float v_highest(vf a) { return a; }
