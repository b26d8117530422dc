// Rules 2 and 3 for a tile of 16 outputs, in the plainest form: the reference that faster kernels are held to, and what runs
// where they do not apply.
//
// Integer forms: sixteen threads are the rows of a weight tile, each such team takes a segment of 512 inputs; a weight word is
// read once for up to PRODUCT_ROWS activation rows. Segment sums meet in shared memory and are added ascending. Float forms:
// a warp computes one output, its lanes being the 32 lanes of rule 3.
#pragma once
#include "device.h"
#include "ptx.cuh"

enum { PRODUCT_ROWS = 4, PRODUCT_THREADS = 256, PRODUCT_TEAMS = PRODUCT_THREADS / COVEY_TILE };

// Inputs of one row.
typedef struct { const int8_t *q; const float *scale; const int32_t *sum; const float *x; } product_row;

// Groups g0 .. g1 of output row `row` of a weight that lies as the CPU packs it, input by input; rows that do not exist give
// nothing.
static __device__ __forceinline__ void packed_sums(const canon_matrix &m, int32_t row, int32_t g0, int32_t g1, const product_row *rows, int32_t n, float *acc) {
  if (row >= m.rows) return;
  int32_t per = m.group / m.sub;
  for (int32_t b = g0 * per; b < g1 * per; b++) {
    int32_t dot[PRODUCT_ROWS] = {0, 0, 0, 0}, sum[PRODUCT_ROWS] = {0, 0, 0, 0}, g = b / per;
    int64_t at = packed_scale_at(&m, row, b);
    int32_t zero = m.offset == CANON_OFFSET_ZEROS ? m.offsets[at] : 0;
    for (int32_t i = b * m.sub; i < (b + 1) * m.sub; i++) {
      int32_t w = source_integer(&m, packed_code(&m, row, i), zero);
#pragma unroll
      for (int32_t r = 0; r < PRODUCT_ROWS; r++)
        if (r < n) { dot[r] += w * rows[r].q[i]; sum[r] += rows[r].q[i]; }
    }
    float sw = source_scale(&m, m.scales, at), mw = m.offset == CANON_OFFSET_MINIMA ? source_value(m.scale_form, m.offsets, at) : 0;
#pragma unroll
    for (int32_t r = 0; r < PRODUCT_ROWS; r++) {
      if (r >= n) continue;
      acc[r] = canon_term(dot[r], sw, rows[r].scale[g], acc[r]);
      if (m.offset == CANON_OFFSET_MINIMA) acc[r] = canon_minimum(mw, sum[r], rows[r].scale[g], acc[r]);
    }
  }
}

// Sum of one segment of the output `row` of m, for n rows.
static __device__ __forceinline__ void segment_sums(const canon_matrix &m, int32_t row, int32_t segment, const product_row *rows, int32_t n, float *acc) {
  int32_t g0 = segment * (CANON_SEGMENT / m.group), g1 = at_most(g0 + CANON_SEGMENT / m.group, m.groups), high;
  for (int32_t r = 0; r < PRODUCT_ROWS; r++) acc[r] = 0;
  if (!covey_tiled(&m)) { packed_sums(m, row, g0, g1, rows, n, acc); return; }
  for (int32_t g = g0; g < g1; g++) {
    int32_t dot[PRODUCT_ROWS] = {0, 0, 0, 0};
    const int32_t four = covey_four_bit(m.form);
    for (int32_t i = g * m.group; i < (g + 1) * m.group; i += four ? 8 : 4) {
      int32_t w = *(const int32_t *)(m.codes + covey_code_at(&m, row, i, &high)), low = w & 0x0f0f0f0f, up = w >> 4 & 0x0f0f0f0f;
      if (m.form == CANON_MXFP4) { low = (int32_t)doubled4(w); up = (int32_t)doubled4(w >> 16); }
#pragma unroll
      for (int32_t r = 0; r < PRODUCT_ROWS; r++) {
        if (r >= n) continue;
        const int32_t *a = (const int32_t *)(rows[r].q + i);
        dot[r] = four ? __dp4a(up, a[1], __dp4a(low, a[0], dot[r])) : __dp4a(w, a[0], dot[r]);
      }
    }
    float sw = source_scale(&m, m.codes + covey_scale_at(&m, row, g), 0);
    const int32_t zero = m.form == CANON_INT4 ? 8 : m.form == CANON_MXFP4 ? DOUBLED_ZERO : 0;   // int8 has none on the device
#pragma unroll
    for (int32_t r = 0; r < PRODUCT_ROWS; r++)
      if (r < n) acc[r] = canon_term(zero ? dot[r] - zero * rows[r].sum[g] : dot[r], sw, rows[r].scale[g], acc[r]);
  }
}

// Outputs of tile `tile` for n <= PRODUCT_ROWS rows, into out[r] of the block's first 16 threads. All PRODUCT_THREADS threads
// call it; sums is shared memory [PRODUCT_ROWS][PRODUCT_THREADS]. Afterwards the block is in step.
static __device__ __forceinline__ void tile_product(const canon_matrix &m, int32_t tile, const product_row *rows, int32_t n, float *sums, float *out) {
  int32_t t = threadIdx.x, l = t % COVEY_TILE, team = t / COVEY_TILE, lane = t & 31;
#pragma unroll
  for (int32_t r = 0; r < PRODUCT_ROWS; r++) out[r] = 0;
  if (m.group == 0) {
    for (int32_t i = t / 32; i < COVEY_TILE; i += PRODUCT_THREADS / 32) {
      int64_t o = tile * COVEY_TILE + i;
      if (o >= m.rows) break;
      float tot[PRODUCT_ROWS] = {0, 0, 0, 0};
      int32_t block = m.form == CANON_FP8 ? m.block_cols : m.cols;
      for (int32_t c0 = 0; c0 < m.cols; c0 += block) {       // fp8 has a scale a block; other forms are one block
        float acc[PRODUCT_ROWS] = {0, 0, 0, 0};
        for (int32_t c = lane; c < at_most(block, m.cols - c0); c += 32) {
          float w = source_value(m.form, m.codes, o * m.cols + c0 + c);
#pragma unroll
          for (int32_t r = 0; r < PRODUCT_ROWS; r++) if (r < n) acc[r] = canon_fmaf(w, rows[r].x[c0 + c], acc[r]);
        }
        float scale = m.form == CANON_FP8 ? source_value(m.scale_form, m.scales, source_scale_at(&m, o, c0, m.blocks)) : 0;
#pragma unroll
        for (int32_t r = 0; r < PRODUCT_ROWS; r++) {
          if (r >= n) continue;
          float v = warp_tree(acc[r]);
          tot[r] = m.form == CANON_FP8 ? canon_fmaf(scale, v, tot[r]) : v;
        }
      }
#pragma unroll
      for (int32_t r = 0; r < PRODUCT_ROWS; r++) if (lane == 0) sums[r * COVEY_TILE + i] = tot[r];
    }
    __syncthreads();
    if (t < COVEY_TILE)
#pragma unroll
      for (int32_t r = 0; r < PRODUCT_ROWS; r++) out[r] = sums[r * COVEY_TILE + l];
    __syncthreads();
    return;
  }
  int32_t segments = covey_ceil(m.groups * m.group, CANON_SEGMENT);
  for (int32_t s0 = 0; s0 < segments; s0 += PRODUCT_TEAMS) {
    if (s0 + team < segments) {
      float acc[PRODUCT_ROWS];
      segment_sums(m, tile * COVEY_TILE + l, s0 + team, rows, n, acc);
#pragma unroll
      for (int32_t r = 0; r < PRODUCT_ROWS; r++) sums[r * PRODUCT_THREADS + t] = acc[r];
    }
    __syncthreads();
    if (t < COVEY_TILE)
#pragma unroll
      for (int32_t r = 0; r < PRODUCT_ROWS; r++)
        for (int32_t s = 0; s < at_most(PRODUCT_TEAMS, segments - s0); s++) out[r] = out[r] + sums[r * PRODUCT_THREADS + s * COVEY_TILE + l];
    __syncthreads();
  }
}
