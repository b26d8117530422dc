// Router (rule 8): scores, choice, weights; one block a row. Reads the row's logits once; bound by the chain of top-k rounds.
// Twin: canon_route of engine/canon/rows.c.
#include "device.h"

// The better of two candidates; an index below zero is none.
static __device__ __forceinline__ bool better(float a, int32_t i, float b, int32_t j) { return j < 0 || (i >= 0 && canon_before(a, i, b, j)); }

// The first candidate of c [n] not gone, by one warp; every lane gets it; -1 if none is left.
static __device__ __forceinline__ int32_t best_of(const float *c, const uint8_t *gone, int32_t from, int32_t n) {
  int32_t at = -1;
  float v = 0;
  for (int32_t i = from + (threadIdx.x & 31); i < from + n; i += 32)
    if (!gone[i] && better(c[i], i, v, at)) { at = i; v = c[i]; }
  for (int h = 16; h >= 1; h >>= 1) {
    int32_t j = __shfl_xor_sync(FULL, at, h);
    float w = __shfl_xor_sync(FULL, v, h);
    if (j >= 0 && better(w, j, v, at)) { at = j; v = w; }
  }
  __syncwarp();  // a shuffle orders no memory: the caller may now write gone
  return at;
}

// The sparse mixer's weight of a chosen expert (twin: mixed), by one warp.
static __device__ __forceinline__ float mixed(const float *z, const uint8_t *gone, int32_t chosen, float threshold, int32_t n) {
  float m = z[chosen], sum = 0;
  for (int32_t i = threadIdx.x & 31; i < n; i += 32) {
    bool out = i != chosen && gone[i];
    sum = sum + (out || (m - z[i]) / canon_max(canon_float(canon_bits(z[i]) & 0x7fffffffu), m) > threshold ? 0.0f : canon_expf(z[i] - m));
  }
  return 1.0f / warp_tree(sum);
}

// grid (rows), dynamic shared memory 9 bytes an expert and 5 a group, rounded up to 4 each.
COVEY_KERNEL covey_router(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(float, s);
  __shared__ float shared_max, shared_sum;
  int32_t row = blockIdx.x, score = op.i[0], n = op.i[1], top = op.i[2], groups = op.i[3], keep = op.i[4], normalise = op.i[6];
  if (row >= p->step.rows) return;
  const float *z = row_of(op.src, row), *bias = op.vec;
  float *c = s + n, *group = c + n;
  uint8_t *gone = (uint8_t *)(group + groups), *kept = gone + n;
  int32_t *ids = op.ids + (int64_t)row * top, t = threadIdx.x, lane = t & 31;
  float *weights = op.weights + (int64_t)row * top;
  const uint64_t *ban = p->step.bans ? p->step.bans[p->step.sequence[row]] : 0;

  if (score == 0 && t < 32) {
    float m = -canon_inf();
    for (int32_t i = lane; i < n; i += 32) m = canon_max(z[i], m);
    for (int h = 16; h >= 1; h >>= 1) m = canon_max(m, __shfl_xor_sync(FULL, m, h));
    if (lane == 0) shared_max = m;
  }
  __syncthreads();
  for (int32_t i = t; i < n; i += blockDim.x) {
    float v = z[i];
    if (!canon_finite(v)) fault(p, 0, row, CANON_FAULT_NONFINITE, op.label);
    s[i] = score == 0 ? canon_expf(v - shared_max) : score == 1 || score == 4 ? v : score == 2 ? canon_sigmoidf(v) : sqrtf(canon_softplusf(v));
    int64_t bit = op.i[7] + i;
    gone[i] = ban ? ban[bit / 64] >> (bit % 64) & 1 : 0;
  }
  __syncthreads();
  if (score == 0 && t < 32) {
    float sum = 0;
    for (int32_t i = lane; i < n; i += 32) sum = sum + s[i];
    sum = warp_tree(sum);
    if (lane == 0) shared_sum = sum;
  }
  __syncthreads();
  for (int32_t i = t; i < n; i += blockDim.x) {
    if (score == 0) s[i] = s[i] / shared_sum;
    c[i] = bias ? s[i] + bias[i] : s[i];
  }
  __syncthreads();
  if (t >= 32) return;

  if (keep < groups) {
    int32_t per = n / groups;
    for (int32_t g = 0; g < groups; g++) {
      int32_t a = best_of(c, gone, g * per, per), b = -1;
      if (a >= 0 && !op.i[5]) {
        if (lane == 0) gone[a] = 1;
        __syncwarp();
        b = best_of(c, gone, g * per, per);
        __syncwarp();
        if (lane == 0) gone[a] = 0;
      }
      if (lane == 0) { group[g] = a < 0 ? 0.0f : b < 0 ? c[a] : c[a] + c[b]; kept[g] = a < 0 ? 2 : 0; }
      __syncwarp();
    }
    if (lane == 0)
      for (int32_t i = 0; i < keep; i++) {
        int32_t best = -1;
        for (int32_t g = 0; g < groups; g++)
          if (!kept[g] && (best < 0 || canon_before(group[g], g, group[best], best))) best = g;
        if (best >= 0) kept[best] = 1;
      }
    __syncwarp();
    for (int32_t i = lane; i < n; i += 32)
      if (kept[i / per] != 1) gone[i] = 1;
    __syncwarp();
  }

  const int32_t *fixed = op.table ? (const int32_t *)op.table + (int64_t)p->step.tokens[row] * top : 0;
  for (int32_t r = 0; r < top; r++) {
    int32_t best = fixed ? (gone[fixed[r]] ? -1 : fixed[r]) : best_of(c, gone, 0, n);
    float w = best < 0 ? 0.0f : score == 4 ? mixed(z, gone, best, op.f[3], n) : s[best];
    __syncwarp();  // mixed reads gone too
    if (lane == 0) {
      ids[r] = best;
      weights[r] = w;
      if (best < 0) fault(p, 0, row, CANON_FAULT_BANNED, op.label);
      else gone[best] = !fixed;                              // a table may name an expert twice
    }
    __syncwarp();
  }
  if (lane) return;
  if (score == 1) {
    float m = weights[0];
    for (int32_t r = 0; r < top; r++) weights[r] = canon_expf(weights[r] - m);
    normalise = 1;
  }
  float sum = 0;
  for (int32_t r = 0; r < top; r++)
    if (ids[r] >= 0) sum = sum + weights[r];
  sum = canon_max(sum, op.f[1]);
  for (int32_t r = 0; r < top; r++)
    if (ids[r] >= 0) weights[r] = normalise ? canon_weight(weights[r], sum, op.f[0], op.f[2]) : weights[r] * op.f[2];
}
