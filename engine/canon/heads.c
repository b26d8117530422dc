// Operations on the heads of a row: products with a matrix of their own, copies of channels.
#include <string.h>
#include "canon.h"
#include "program.h"

enum { HEAD_ROWS = 64 };

// The matrix of one head: float forms lie row by row.
static canon_matrix of_head(const canon_op *op, int32_t head) {
  canon_matrix m = op->m;
  m.rows /= op->i[0];
  m.codes += (int64_t)head * m.rows * m.cols * canon_form_bytes(m.form);
  return m;
}

void canon_heads_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  *chunks = (int64_t)op->i[0] * ((p->step->rows + HEAD_ROWS - 1) / HEAD_ROWS);
}

// All outputs of one head for some rows. Bound by reading the head's matrix once for few rows, by multiply-adds for many.
void canon_heads_chunk(canon_program *p, const canon_op *op, int64_t chunk) {
  int32_t rows = p->step->rows, blocks = (rows + HEAD_ROWS - 1) / HEAD_ROWS, head = (int32_t)(chunk / blocks), r0 = (int32_t)(chunk % blocks) * HEAD_ROWS;
  canon_matrix m = of_head(op, head);
  canon_rows r = {.n = rows - r0 < HEAD_ROWS ? rows - r0 : HEAD_ROWS, .in0 = r0, .out0 = r0,
                  .x = op->src.data + (int64_t)head * (op->src.width / op->i[0]) + op->i[2], .x_stride = op->src.stride,
                  .y = op->dst.data + (int64_t)head * (op->dst.width / op->i[0]) + op->i[1], .y_stride = op->dst.stride};
  p->k->product(&m, 0, (m.rows + 15) / 16, &r);
}

void canon_heads_copy(const canon_op *op, int32_t row) {
  int32_t heads = op->i[0], to = op->dst.width / heads, from = op->src.width / heads;
  float *dst = canon_row(&op->dst, row) + op->i[1];
  const float *src = canon_row(&op->src, row) + op->i[2];
  for (int32_t h = 0; h < heads; h++) memcpy(dst + (int64_t)h * to, src + (int64_t)h * from, (size_t)op->i[3] * 4);
}
