// Compressed memory and residual streams: pooling of windows of positions into entries, and what joins and parts the streams.
// Twin: engine/canon/streams.c.
#include "device.h"

// The state of a sequence behind a position, in the position's page.
static __device__ __forceinline__ float *state_of(const canon_op &op, const covey_program *p, int32_t row, int32_t position) {
  const int32_t *pages = p->step.pages + (int64_t)p->step.sequence[row] * p->step.pages_stride;
  return (float *)kv_layer(op.kv, pages[position / 64], op.i[0]);
}

// All rows of one sequence in the token form of rule 7, a thread a channel: the block of the sequence's first row goes through
// them. grid (rows, blocks of channels). A state is (m, l, o); overlapping windows have two, the second of the window after.
// Moves 16 or 32 bytes a row and channel, bound by the chain of two exponentials a row.
COVEY_KERNEL covey_pool(COVEY_CONST canon_op op, const covey_program *p) {
  const canon_step &s = p->step;
  int32_t first = blockIdx.x, width = op.dst.width, c = blockIdx.y * blockDim.x + threadIdx.x, rate = op.i[1], overlap = op.i[2], parts = overlap ? 6 : 3;
  if (first >= s.rows || c >= width || earlier_row(p, first) >= 0) return;
  float m[2] = {0, 0}, l[2] = {0, 0}, o[2] = {0, 0};
  for (int32_t row = first, next; row < s.rows; row = next) {
    next = later_row(p, row);
    int32_t position = s.positions[row], place = position % rate;
    if (row == first && position > 0) {
      const float *from = state_of(op, p, row, position - 1) + c;
      for (int32_t i = 0; i < parts / 3; i++) { m[i] = from[3 * i * width]; l[i] = from[(3 * i + 1) * width]; o[i] = from[(3 * i + 2) * width]; }
    }
    if (place == 0) {
      int32_t fresh = overlap && position > 0;
      if (fresh) { m[0] = m[1]; l[0] = l[1]; o[0] = o[1]; }
      for (int32_t i = fresh; i < parts / 3; i++) { m[i] = -canon_inf(); l[i] = 0; o[i] = 0; }
    }
    const float *value = row_of(op.src, row) + c, *gate = row_of(op.src2, row) + c, *by_place = op.vec + (int64_t)place * op.src.width + c;
    if (overlap) {
      canon_pool_item(&m[1], &l[1], &o[1], *gate + *by_place, *value);
      gate += width; by_place += width; value += width;
    }
    canon_pool_item(&m[0], &l[0], &o[0], *gate + *by_place, *value);
    if (place == rate - 1) row_of(op.dst, row)[c] = o[0] / l[0];
    if (position % 64 != 63 && next < s.rows) continue;
    float *to = state_of(op, p, row, position) + c;
    for (int32_t i = 0; i < parts / 3; i++) { to[3 * i * width] = m[i]; to[(3 * i + 1) * width] = l[i]; to[(3 * i + 2) * width] = o[i]; }
  }
}

// A row that ends a window stores its pooled vector, normed and turned by the angle of the window's first position. grid (rows),
// dynamic shared memory for the vector. Twin: canon_entry.
COVEY_KERNEL covey_entry(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(float, y);
  __shared__ float factor;
  int32_t row = blockIdx.x, rate = op.i[1], n = op.src.width, rot = op.i[2];
  if (row >= p->step.rows) return;
  int32_t position = p->step.positions[row];
  if ((position + 1) % rate) return;
  const float *x = row_of(op.src, row);
  if (threadIdx.x < 32) {
    float s = 0;
    for (int32_t i = threadIdx.x; i < n; i += 32) s = canon_fmaf(x[i], x[i], s);
    s = warp_tree(s);
    if (threadIdx.x == 0) factor = canon_rms_factor(s, n, op.f[0]);
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * factor * op.vec[i];
  __syncthreads();
  for (int32_t j = threadIdx.x; j < rot / 2; j += blockDim.x) {
    float c, s;
    canon_angle(position + 1 - rate, op.weights[j], op.d, &c, &s);
    canon_rotate(y + n - rot + 2 * j, y + n - rot + 2 * j + 1, c, s);
  }
  __syncthreads();
  const int32_t *pages = p->step.pages + (int64_t)p->step.sequence[row] * p->step.pages_stride;
  uint8_t *out = kv_entry(op.kv, pages, op.i[0], (position + 1) / rate - 1, rate);
  for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
    if (store_value(op.kv.form, out, i, y[i]) >= 0x7c00) fault(p, 0, row, CANON_FAULT_KV, op.label);
}

// Weights of the streams from src2, in place: canon_mix with the lanes of a warp as places of the mixing matrix, every sum in its
// order; or canon_mix_head. grid (rows), 32 threads.
COVEY_KERNEL covey_mix_weights(COVEY_CONST canon_op op, const covey_program *p) {
  __shared__ float c[COVEY_STREAMS * COVEY_STREAMS];
  int32_t row = blockIdx.x, m = op.i[0], lane = threadIdx.x;
  if (row >= rows_of(p, op.dst.logits)) return;
  float *z = row_of(op.src2, row), eps = op.f[0];
  const float *base = op.vec, *scale = base + (op.i[2] ? m : (2 + m) * m);
  for (int32_t i = lane; i < m; i += 32) z[i] = canon_sigmoidf(z[i] * scale[0] + base[i]) + eps;
  if (op.i[2]) return;
  for (int32_t i = m + lane; i < 2 * m; i += 32) z[i] = 2.0f * canon_sigmoidf(z[i] * scale[1] + base[i]);
  for (int32_t e = lane; e < m * m; e += 32) c[e] = z[2 * m + e] * scale[2] + base[2 * m + e];
  __syncwarp();
  for (int32_t i = lane; i < m; i += 32) {                   // a softmax over each row
    float top = c[i * m], sum = 0;
    for (int32_t j = 1; j < m; j++) top = canon_max(c[i * m + j], top);
    for (int32_t j = 0; j < m; j++) { c[i * m + j] = canon_expf(c[i * m + j] - top); sum = sum + c[i * m + j]; }
    for (int32_t j = 0; j < m; j++) c[i * m + j] = c[i * m + j] / sum + eps;
  }
  __syncwarp();
  for (int32_t turn = 1; turn < 2 * op.i[1]; turn++) {       // columns, then rows and columns in turn
    int32_t down = turn & 1;
    for (int32_t i = lane; i < m; i += 32) {
      float sum = 0;
      for (int32_t j = 0; j < m; j++) sum = sum + c[down ? j * m + i : i * m + j];
      for (int32_t j = 0; j < m; j++) { float *at = c + (down ? j * m + i : i * m + j); *at = *at / (sum + eps); }
    }
    __syncwarp();
  }
  for (int32_t e = lane; e < m * m; e += 32) z[2 * m + e] = c[e];
}

// dst = streams of src by their weights. grid (rows, column blocks). Moves the streams once.
COVEY_KERNEL covey_mix_in(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, n = op.dst.width, d = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= rows_of(p, op.dst.logits) || d >= n) return;
  const float *z = row_of(op.src2, row), *x = row_of(op.src, row) + d;
  float h = 0;
  for (int32_t i = 0; i < op.i[0]; i++) h = canon_fmaf(z[i], x[(int64_t)i * n], h);
  row_of(op.dst, row)[d] = h;
}

// Streams mixed, plus src to each by its weight. grid (rows, column blocks). Moves the streams in and out.
COVEY_KERNEL covey_mix_out(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, m = op.i[0], n = op.src.width, d = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= p->step.rows || d >= n) return;
  const float *z = row_of(op.src2, row);
  float y = row_of(op.src, row)[d], *x = row_of(op.dst, row) + d, in[COVEY_STREAMS];
  for (int32_t i = 0; i < m; i++) in[i] = x[(int64_t)i * n];
  for (int32_t j = 0; j < m; j++) {
    float v = y * z[m + j];
    for (int32_t i = 0; i < m; i++) v = canon_fmaf(z[2 * m + i * m + j], in[i], v);
    x[(int64_t)j * n] = v;
  }
}
