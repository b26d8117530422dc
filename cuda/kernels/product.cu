// dst = src m^T + vec. grid (tiles of 16 outputs, blocks of PRODUCT_ROWS rows). Reads the matrix once for each block of rows:
// bound by device memory for few rows, by the second-level cache for many. Twin: product of engine/canon/kernels.h.
#include "product.h"

COVEY_BOUNDED(PRODUCT_THREADS) covey_matmul(COVEY_CONST canon_op op, const covey_program *p) {
  __shared__ float sums[PRODUCT_ROWS * PRODUCT_THREADS];
  int32_t r0 = blockIdx.y * PRODUCT_ROWS, n = at_most(rows_of(p, op.dst.logits) - r0, PRODUCT_ROWS);
  if (n <= 0) return;
  const canon_matrix &m = op.m;
  product_row rows[PRODUCT_ROWS];
  for (int32_t r = 0; r < PRODUCT_ROWS; r++) {
    int64_t row = r0 + at_most(r, n - 1);
    rows[r].q = p->codes.q + row * m.groups * m.group;
    rows[r].scale = p->codes.scale + row * m.groups;
    rows[r].sum = p->codes.sum + row * m.groups;
    rows[r].x = row_of(op.src, row);
  }
  float out[PRODUCT_ROWS];
  tile_product(m, blockIdx.x, rows, n, sums, out);
  int32_t o = blockIdx.x * COVEY_TILE + threadIdx.x;
  if (threadIdx.x >= COVEY_TILE || o >= m.rows) return;
  for (int32_t r = 0; r < n; r++) row_of(op.dst, r0 + r)[o] = op.vec ? out[r] + op.vec[o] : out[r];
}

// dst of each head = m of the head times src of the head (float forms). grid (tiles of 16 outputs, blocks of PRODUCT_ROWS rows,
// heads). Twin: canon_heads_chunk.
COVEY_BOUNDED(PRODUCT_THREADS) covey_heads(COVEY_CONST canon_op op, const covey_program *p) {
  __shared__ float sums[PRODUCT_ROWS * PRODUCT_THREADS];
  int32_t r0 = blockIdx.y * PRODUCT_ROWS, n = at_most(p->step.rows - r0, PRODUCT_ROWS), head = blockIdx.z;
  if (n <= 0) return;
  canon_matrix m = op.m;
  m.rows /= op.i[0];
  m.codes += (int64_t)head * m.rows * m.cols * covey_form_bytes(m.form);
  product_row rows[PRODUCT_ROWS];
  for (int32_t r = 0; r < PRODUCT_ROWS; r++) rows[r].x = row_of(op.src, r0 + at_most(r, n - 1)) + (int64_t)head * (op.src.width / op.i[0]) + op.i[2];
  float out[PRODUCT_ROWS];
  tile_product(m, blockIdx.x, rows, n, sums, out);
  int32_t o = blockIdx.x * COVEY_TILE + threadIdx.x;
  if (threadIdx.x >= COVEY_TILE || o >= m.rows) return;
  for (int32_t r = 0; r < n; r++) row_of(op.dst, r0 + r)[(int64_t)head * (op.dst.width / op.i[0]) + op.i[1] + o] = out[r];
}
