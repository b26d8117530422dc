// Gated delta net (rule 7). Twin: engine/canon/delta.c, whose file says how state and projections lie.
//
// The convolution needs a few earlier rows only, so it runs for all rows at once and leaves queries, keys and values in p->mixed
// [rows, key heads * width]; the recurrence then takes one block a sequence and value head through the sequence's rows. Its state
// is read and written once a launch where a block's shared memory holds it. Bound by that for one row, for many by two chains over
// the key width a row.
#include "device.h"

typedef struct { int32_t heads, per, key, value, taps, width; int64_t floats; const float *conv, *decay, *shift, *norm; } shape;

static __device__ __forceinline__ shape shape_of(const canon_op &op) {
  shape s;
  s.heads = op.i[0]; s.per = op.i[1]; s.key = op.i[2]; s.value = op.i[3]; s.taps = op.i[4];
  s.width = 2 * s.key + s.per * s.value;
  s.floats = (int64_t)(s.taps - 1) * s.width + (int64_t)s.per * s.key * s.value;
  s.conv = op.vec;
  s.decay = s.conv + (int64_t)s.heads * s.taps * s.width;
  s.shift = s.decay + s.heads * s.per;
  s.norm = s.shift + s.heads * s.per;
  return s;
}
// The earlier rows of a sequence's key head, [taps - 1][width]; its state lies behind them.
static __device__ __forceinline__ float *window_of(const canon_op &op, const covey_program *p, const shape &s, int32_t sequence, int32_t g) {
  return op.state + p->step.states[sequence] * op.state_floats + op.i[5] + g * s.floats;
}
static __device__ __forceinline__ int32_t mixed_stride(const shape &s) { return s.heads * s.width; }

// x times 1 / sqrt(sum of squares + eps), by one warp.
static __device__ __forceinline__ void warp_unit(float *x, int32_t n, float eps) {
  int32_t lane = threadIdx.x & 31;
  float sum = 0;
  for (int32_t i = lane; i < n; i += 32) sum = canon_fmaf(x[i], x[i], sum);
  float f = canon_unit_factor(warp_tree(sum), eps);
  for (int32_t i = lane; i < n; i += 32) x[i] = x[i] * f;
}

// grid (rows, key heads). Reads taps rows of the head's projections.
COVEY_KERNEL covey_delta_mix(COVEY_CONST canon_op op, const covey_program *p) {
  __shared__ int32_t back[COVEY_TAPS], known, begins;        // back[d]: the row d before this one in its sequence
  int32_t row = blockIdx.x, g = blockIdx.y;
  if (row >= p->step.rows) return;
  shape s = shape_of(op);
  if (threadIdx.x == 0) {
    back[0] = row;
    int32_t n = 1;
    for (int32_t r = row; n < s.taps; n++) {
      r = earlier_row(p, r);
      if (r < 0) break;
      back[n] = r;
    }
    known = n;
    begins = p->step.positions[back[n - 1]] == 0;            // then what the window holds is another sequence's
  }
  __syncthreads();
  const float *window = window_of(op, p, s, p->step.sequence[row], g), *conv = s.conv + (int64_t)g * s.taps * s.width;
  int64_t at = (int64_t)g * (s.width + s.per * s.value);
  float *mixed = p->mixed + (int64_t)row * mixed_stride(s) + (int64_t)g * s.width;
  for (int32_t c = threadIdx.x; c < s.width; c += blockDim.x) {
    float acc = 0;
    for (int32_t t = 0; t < s.taps; t++) {
      int32_t d = s.taps - 1 - t;                            // how many rows back
      float x = d < known ? row_of(op.src, back[d])[at + c] : begins ? 0.0f : window[(int64_t)(s.taps - 1 - (d - known + 1)) * s.width + c];
      acc = canon_fmaf(conv[(int64_t)t * s.width + c], x, acc);
    }
    mixed[c] = canon_siluf(acc);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    warp_unit(mixed, s.key, op.f[1]);
    __syncwarp();
    for (int32_t i = threadIdx.x; i < s.key; i += 32) mixed[i] = mixed[i] * op.f[2];
  } else if (threadIdx.x < 64) {
    warp_unit(mixed + s.key, s.key, op.f[1]);
  }
}

// grid (rows, value heads), at least 32 threads; the block of a sequence's first row works. Dynamic shared memory: queries and
// keys [2 key], outputs [value], and where covey_delta_resident says so the state [key][value].
COVEY_KERNEL covey_delta(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(float, q);
  __shared__ float factor;
  const canon_step &step = p->step;
  int32_t first = blockIdx.x, h = blockIdx.y;
  if (first >= step.rows || earlier_row(p, first) >= 0) return;
  shape s = shape_of(op);
  int32_t g = h / s.per, i = h % s.per, n = s.key * s.value, begins = step.positions[first] == 0, resident = covey_delta_resident(s.key, s.value);
  float *k = q + s.key, *o = k + s.key, *window = window_of(op, p, s, step.sequence[first], g);
  float *kept = window + (int64_t)(s.taps - 1) * s.width + (int64_t)i * n, *state = resident ? o + s.value : kept;
  if (resident || begins)
    for (int32_t e = threadIdx.x; e < n; e += blockDim.x) state[e] = begins ? 0.0f : kept[e];
  int32_t count = 0, last = first;
  for (int32_t row = first; row < step.rows; row = later_row(p, row), count++) {
    const float *mixed = p->mixed + (int64_t)row * mixed_stride(s) + (int64_t)g * s.width, *v = mixed + 2 * s.key + i * s.value;
    const float *z = row_of(op.src, row) + (int64_t)g * (s.width + s.per * s.value) + s.width + i * s.value, *rates = row_of(op.src2, row) + 2 * (int64_t)g * s.per;
    float *y = row_of(op.dst, row) + (int64_t)h * s.value;
    last = row;
    __syncthreads();
    for (int32_t d = threadIdx.x; d < 2 * s.key; d += blockDim.x) q[d] = mixed[d];
    float beta = canon_sigmoidf(rates[i]), alpha = canon_decay(s.decay[h], rates[s.per + i], s.shift[h]);
    __syncthreads();
    for (int32_t j = threadIdx.x; j < s.value; j += blockDim.x) o[j] = canon_delta(state + j, s.value, q, k, v[j], alpha, beta, s.key);
    __syncthreads();
    if (threadIdx.x < 32) {
      float sum = 0;
      for (int32_t j = threadIdx.x; j < s.value; j += 32) sum = canon_fmaf(o[j], o[j], sum);
      sum = warp_tree(sum);
      if (threadIdx.x == 0) factor = canon_rms_factor(sum, s.value, op.f[0]);
    }
    __syncthreads();
    for (int32_t j = threadIdx.x; j < s.value; j += blockDim.x) y[j] = canon_siluf(z[j]) * (o[j] * factor * s.norm[j]);
  }
  if (resident)
    for (int32_t e = threadIdx.x; e < n; e += blockDim.x) kept[e] = state[e];
  if (i) return;
  // The window of the next step: what it held, then this step's rows, the last taps - 1 of them.
  __shared__ int32_t back[COVEY_TAPS];
  if (threadIdx.x == 0)
    for (int32_t d = 0, r = last; d < s.taps - 1 && d < count; d++, r = earlier_row(p, r)) back[d] = r;
  __syncthreads();
  int64_t at = (int64_t)g * (s.width + s.per * s.value);
  for (int32_t c = threadIdx.x; c < s.width; c += blockDim.x)
    for (int32_t j = 0; j < s.taps - 1; j++) {
      int32_t d = s.taps - 2 - j;
      window[(int64_t)j * s.width + c] = d < count ? row_of(op.src, back[d])[at + c] : begins ? 0.0f : window[(int64_t)(j + count) * s.width + c];
    }
}
