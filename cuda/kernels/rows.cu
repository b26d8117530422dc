// Operations on single rows. A block takes one row (or one part of it, or one group of inputs a warp); each moves its row
// once in and once out, and is bound by that or by the launch. CPU twins: engine/canon/rows.c.
#include "device.h"

// Cosines and sines of the step's positions, one table for all layers. grid (rows, tables); twin: angles.
COVEY_KERNEL covey_angles_table(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x;
  if (row >= p->step.rows) return;
  const covey_angles a = p->angles[blockIdx.y];
  const uint8_t *lengthened = p->step.lengthened;
  int32_t n = a.rot / 2, far = a.long_inv && lengthened && lengthened[p->step.sequence[row]];
  for (int32_t j = threadIdx.x; j < n; j += blockDim.x)
    canon_angle(p->step.positions[row], far ? a.long_inv[j] : a.inv[j], far ? a.long_factor : a.factor, a.cosine + (int64_t)row * n + j, a.sine + (int64_t)row * n + j);
}

// dst = m[token]. grid (rows, column blocks); twin: canon_dequantise.
COVEY_KERNEL covey_embed(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= p->step.rows || c >= op.m.cols) return;
  const canon_matrix &m = op.m;
  int32_t r = p->step.tokens[row];
  float v;
  if (covey_tiled(&m)) {
    int32_t high, w = m.codes[covey_code_at(&m, r, c, &high)];
    if (m.form == CANON_INT8) w = (int8_t)w;
    else { w = high ? w >> 4 : w & 15; w = m.form == CANON_MXFP4 ? canon_twice_fp4(w) : w - 8; }
    v = (float)w * source_scale(&m, m.codes + covey_scale_at(&m, r, c / m.group), 0);
  } else {
    v = packed_value(&m, r, c);
  }
  row_of(op.dst, row)[c] = v;
}

// RMS norm of each part of a row (rule 4). grid (rows, parts); the first warp holds the 32 lanes of the sum. Twin: canon_rms.
COVEY_KERNEL covey_norm(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, n = op.dst.width / op.i[0];
  if (row >= rows_of(p, op.dst.logits)) return;
  const float *x = row_of(op.src, row) + (int64_t)blockIdx.y * n, *w = op.vec;
  float *y = row_of(op.dst, row) + (int64_t)blockIdx.y * n;
  __shared__ float factor;
  if (threadIdx.x < 32) {
    float s = 0;
#pragma unroll 8
    for (int32_t i = threadIdx.x; i < n; i += 32) s = canon_fmaf(x[i], x[i], s);
    s = warp_tree(s);
    if (threadIdx.x == 0) factor = canon_rms_factor(s, n, op.f[0]);
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < n; i += blockDim.x) {
    float v = x[i] * factor;
    if (w) v = v * (op.i[1] ? w[i] + 1.0f : w[i]);
    y[i] = v;
  }
}

// LayerNorm of a row (rule 4). grid (rows); twin: canon_layer_norm.
COVEY_KERNEL covey_layer_norm(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, n = op.dst.width;
  if (row >= rows_of(p, op.dst.logits)) return;
  const float *x = row_of(op.src, row), *w = op.vec, *b = op.vec + n;
  float *y = row_of(op.dst, row);
  __shared__ float mean, factor;
  if (threadIdx.x < 32) {
    float s = 0, q = 0;
    for (int32_t i = threadIdx.x; i < n; i += 32) s = s + x[i];
    s = warp_tree(s) / (float)n;
    for (int32_t i = threadIdx.x; i < n; i += 32) { float d = x[i] - s; q = canon_fmaf(d, d, q); }
    q = warp_tree(q);
    if (threadIdx.x == 0) { mean = s; factor = canon_rms_factor(q, n, op.f[0]); }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = ((x[i] - mean) * factor) * w[i] + b[i];
}

// src to the program's codes, a warp a group. grid (rows, groups / warps); twin: canon_quantise.
COVEY_KERNEL covey_quantise(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, group = op.i[0], groups = covey_ceil(op.src.width, group), g = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows_of(p, op.src.logits) || g >= groups) return;
  warp_quantise(row_of(op.src, row) + (int64_t)g * group, at_most(op.src.width - g * group, group), group,
                p->codes.q + ((int64_t)row * groups + g) * group, p->codes.scale + (int64_t)row * groups + g, p->codes.sum + (int64_t)row * groups + g);
}

// Rotation in place by the row's angles (rule 5). grid (rows, heads); twin: canon_rotate.
COVEY_KERNEL covey_rope(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, n = op.i[1] / 2;
  if (row >= p->step.rows) return;
  const covey_angles &a = p->angles[op.i[4]];
  float *x = row_of(op.dst, row) + (int64_t)blockIdx.y * (op.dst.width / op.i[0]) + op.i[3];
  for (int32_t j = threadIdx.x; j < n; j += blockDim.x) {
    float c = a.cosine[(int64_t)row * n + j], s = a.sine[(int64_t)row * n + j];
    if (op.i[5]) s = -s;                                     // turn back
    if (op.i[2]) canon_rotate(x + 2 * j, x + 2 * j + 1, c, s);
    else canon_rotate(x + j, x + j + n, c, s);
  }
}

// Keys with the position in lanes, values by channel, rounded to the cache's form. grid (rows); twin: append.
COVEY_KERNEL covey_kv_append(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x;
  if (row >= p->step.rows) return;
  const canon_kv &kv = op.kv;
  int32_t pos = p->step.positions[row], page = p->step.pages[(int64_t)p->step.sequence[row] * p->step.pages_stride + pos / 64], slot = pos % 64;
  uint8_t *at = kv_layer(kv, page, op.i[0]);
  const float *k = row_of(op.src, row), *v = row_of(op.src2, row);
  for (int32_t i = threadIdx.x; i < kv.heads * kv.dim; i += blockDim.x) {
    int32_t h = i / kv.dim, d = i % kv.dim;
    uint16_t a = store_value(kv.form, at, key_at(kv, h, slot, d), k[i]), b = kv.single ? 0 : store_value(kv.form, at, value_at(kv, h, slot, d), v[i]);
    if (a >= 0x7c00 || b >= 0x7c00) fault(p, 0, row, CANON_FAULT_KV, op.label);
  }
}

// Channels of each head of src to dst. grid (rows, heads); twin: canon_heads_copy.
COVEY_KERNEL covey_copy(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x;
  if (row >= rows_of(p, op.dst.logits)) return;
  float *y = row_of(op.dst, row) + (int64_t)blockIdx.y * (op.dst.width / op.i[0]) + op.i[1];
  const float *x = row_of(op.src, row) + (int64_t)blockIdx.y * (op.src.width / op.i[0]) + op.i[2];
  for (int32_t i = threadIdx.x; i < op.i[3]; i += blockDim.x) y[i] = x[i];
}

// dst = silu(src) * src2, dst += src, dst += src * f, dst *= f, dst /= f, dst *= sigmoid(src), dst into [f0, f1]. grid (rows, column blocks); twin: row_op.
COVEY_KERNEL covey_elementwise(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= rows_of(p, op.dst.logits) || i >= op.dst.width) return;
  float *y = row_of(op.dst, row) + i, x = op.src.data ? row_of(op.src, row)[i] : 0, v = *y;
  switch (op.kind) {
    case CANON_OP_SWIGLU: v = canon_siluf(x) * row_of(op.src2, row)[i]; break;
    case CANON_OP_ADD: v = v + x; break;
    case CANON_OP_ADD_SCALED: v = v + (x * op.f[0]); break;
    case CANON_OP_SCALE: v = v * op.f[0]; break;
    case CANON_OP_DIVIDE: v = v / op.f[0]; break;
    case CANON_OP_GATE: v = v * canon_sigmoidf(x); break;
    case CANON_OP_CLAMP: v = v < op.f[0] ? op.f[0] : v > op.f[1] ? op.f[1] : v; break;
  }
  *y = v;
}

// dst[i] = src[logit_row[i]]. grid (logit rows, column blocks).
COVEY_KERNEL covey_gather(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= p->step.logit_rows || i >= op.dst.width) return;
  row_of(op.dst, row)[i] = row_of(op.src, p->step.logit_row[row])[i];
}

// A row with an infinite or NaN value is a fault. grid (rows, column blocks).
COVEY_KERNEL covey_check(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
  if (row >= rows_of(p, op.src.logits) || i >= op.src.width) return;
  if (!canon_finite(row_of(op.src, row)[i])) fault(p, op.src.logits, row, CANON_FAULT_NONFINITE, op.label);
}
