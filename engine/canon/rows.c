// Operations on single rows, and the router.
#include <string.h>
#include "canon.h"
#include "program.h"

static void angles(canon_program *p, int32_t row) {
  for (int32_t i = 0; i < p->angle_n; i++) {
    const canon_angles *a = &p->angles[i];
    const canon_step *s = p->step;
    int32_t n = a->rot / 2, far = a->long_inv && s->lengthened && s->lengthened[s->sequence[row]];
    const float *inv = far ? a->long_inv : a->inv;
    for (int32_t j = 0; j < n; j++)
      canon_angle(s->positions[row], inv[j], far ? a->long_factor : a->factor, a->cosine + (int64_t)row * n + j, a->sine + (int64_t)row * n + j);
  }
}

static void rotate(canon_program *p, const canon_op *op, int32_t row) {
  const canon_angles *a = &p->angles[op->i[4]];
  int32_t dim = op->dst.width / op->i[0], n = a->rot / 2;
  float *x = canon_row(&op->dst, row) + op->i[3], back[2048];
  const float *sine = a->sine + (int64_t)row * n;
  if (op->i[5]) {
    for (int32_t j = 0; j < n; j++) back[j] = -sine[j];
    sine = back;
  }
  for (int32_t h = 0; h < op->i[0]; h++, x += dim)
    p->k->rotate(x, a->rot, op->i[2], a->cosine + (int64_t)row * n, sine);
}

// Stores n values and returns the largest magnitude's bits (16-bit forms only).
uint16_t canon_store(const canon_kernels *k, int32_t form, const float *x, int32_t n, uint8_t *out) {
  uint16_t top = 0;
  k->store(form, x, n, out);
  if (form == CANON_F16)
    for (int32_t d = 0; d < n; d++) {
      uint16_t b;
      memcpy(&b, out + d * 2, 2);
      top = (b & 0x7fff) > top ? b & 0x7fff : top;
    }
  return top;
}

// Keys go with the position in lanes: one value every 64. Single vectors go one after the other.
static void append(canon_program *p, const canon_op *op, int32_t row) {
  const canon_kv *kv = &op->kv;
  int32_t pos = p->step->positions[row], page = p->step->pages[(int64_t)p->step->sequence[row] * p->step->pages_stride + pos / 64], slot = pos % 64;
  int64_t size = canon_form_bytes(kv->form);
  uint8_t *keys = canon_kv_layer(kv, page, op->i[0]), *values = keys + (int64_t)kv->heads * kv->dim * 64 * size;
  const float *k = canon_row(&op->src, row);
  uint16_t top = 0;
  if (kv->single) {
    int32_t n = kv->heads * kv->dim;
    top = canon_store(p->k, kv->form, k, n, keys + (int64_t)slot * n * size);
    if (top >= 0x7c00) canon_fault(p, 0, row, CANON_FAULT_KV, op->label);
    return;
  }
  uint8_t tmp[4 * 1024];
  const float *v = canon_row(&op->src2, row);
  for (int32_t h = 0; h < kv->heads; h++)
    for (int32_t d0 = 0; d0 < kv->dim; d0 += 1024) {
      int32_t n = kv->dim - d0 < 1024 ? kv->dim - d0 : 1024;
      uint16_t a = canon_store(p->k, kv->form, k + (int64_t)h * kv->dim + d0, n, tmp);
      uint8_t *out = keys + (((int64_t)h * kv->dim + d0) * 64 + slot) * size;
      if (kv->form == CANON_F32) {
        for (int32_t d = 0; d < n; d++) memcpy(out + d * 256, tmp + d * 4, 4);
      } else {
        for (int32_t d = 0; d < n; d++) memcpy(out + d * 128, tmp + d * 2, 2);
      }
      uint16_t b = canon_store(p->k, kv->form, v + (int64_t)h * kv->dim + d0, n, values + (((int64_t)h * 64 + slot) * kv->dim + d0) * size);
      top = a > top ? a : top;
      top = b > top ? b : top;
    }
  if (top >= 0x7c00) canon_fault(p, 0, row, CANON_FAULT_KV, op->label);
}

static void combine(canon_program *p, const canon_op *op, int32_t row) {
  float *y = canon_row(&op->dst, row);
  int32_t k = op->i[1], n = op->dst.width;
  if (!op->shared_block) memset(y, 0, (size_t)n * 4);
  else if (op->src2.data) p->k->scale(y, canon_sigmoidf(*canon_row(&op->src2, row)), n);
  for (int32_t r = 0; r < k; r++) {
    int64_t slot = (int64_t)row * k + r;
    int32_t id = op->ids[slot];
    if (id < 0 || !op->table[id]) continue;
    p->k->accumulate(y, p->routed_out + slot * n, op->weights[slot], n);
  }
}

// Two largest choice scores of the experts of a group that are left.
static float group_score(const float *c, const uint8_t *gone, int32_t from, int32_t n, int32_t largest_only, int32_t *left) {
  int32_t a = -1, b = -1;
  *left = 0;
  for (int32_t i = from; i < from + n; i++) {
    if (gone[i]) continue;
    ++*left;
    if (a < 0 || canon_before(c[i], i, c[a], a)) { b = a; a = i; }
    else if (b < 0 || canon_before(c[i], i, c[b], b)) b = i;
  }
  if (a < 0) return 0;
  return largest_only || b < 0 ? c[a] : c[a] + c[b];
}

// The sparse mixer's weight of a chosen expert: its share in a softmax over the experts that are left and near it. Near is
// (m - z) / max(|z|, m) at most the threshold, m being the logit of the chosen one; terms that are not near count as 0 in
// their lanes. left receives the terms.
static float mixed(const float *z, float *left, const uint8_t *gone, int32_t chosen, float threshold, int32_t n) {
  float m = z[chosen];
  for (int32_t i = 0; i < n; i++) {
    int out = i != chosen && gone[i];
    left[i] = out || (m - z[i]) / canon_max(canon_float(canon_bits(z[i]) & 0x7fffffffu), m) > threshold ? 0.0f : canon_expf(z[i] - m);
  }
  return 1.0f / canon_sum(left, n);
}

// Rule 8. scratch holds 3 * experts + 1024 floats.
void canon_route(canon_program *p, const canon_op *op, int32_t row, float *scratch) {
  const float *z = canon_row(&op->src, row), *bias = op->vec;
  const canon_kernels *k = p->k;
  int32_t score = op->i[0], n = op->i[1], top = op->i[2], groups = op->i[3], keep = op->i[4], normalise = op->i[6];
  float *s = scratch, *c = scratch + n, *group = scratch + 3 * n;   // the bytes of gone lie between
  uint8_t *gone = (uint8_t *)(scratch + 2 * n);
  int32_t *ids = op->ids + (int64_t)row * top;
  float *weights = op->weights + (int64_t)row * top;
  if (!k->finite(z, n)) canon_fault(p, 0, row, CANON_FAULT_NONFINITE, op->label);

  switch (score) {
    case 0: {
      float m = z[0];
      for (int32_t i = 1; i < n; i++) m = canon_max(z[i], m);
      k->exp_minus(s, z, m, n);
      k->divide(s, canon_sum(s, n), n);
      break;
    }
    case 1: case 4: memcpy(s, z, (size_t)n * 4); break;
    case 2: k->sigmoid(s, z, n); break;
    default: for (int32_t i = 0; i < n; i++) s[i] = sqrtf(canon_softplusf(z[i]));
  }
  memcpy(c, s, (size_t)n * 4);
  if (bias) k->add(c, bias, n);

  memset(gone, 0, (size_t)n);
  const uint64_t *ban = p->step->bans ? p->step->bans[p->step->sequence[row]] : 0;
  if (ban)
    for (int32_t i = 0; i < n; i++) { int64_t bit = op->i[7] + i; gone[i] = ban[bit / 64] >> (bit % 64) & 1; }
  if (keep < groups) {
    int32_t per = n / groups;
    uint8_t *kept = (uint8_t *)(group + groups);
    int32_t left[256];
    for (int32_t g = 0; g < groups; g++) { group[g] = group_score(c, gone, g * per, per, op->i[5], &left[g]); kept[g] = 0; }
    for (int32_t i = 0; i < keep; i++) {
      int32_t best = -1;
      for (int32_t g = 0; g < groups; g++)
        if (!kept[g] && left[g] && (best < 0 || canon_before(group[g], g, group[best], best))) best = g;
      if (best >= 0) kept[best] = 1;
    }
    for (int32_t g = 0; g < groups; g++)
      if (!kept[g]) memset(gone + g * per, 1, (size_t)per);
  }

  const int32_t *fixed = op->table ? (const int32_t *)op->table + (int64_t)p->step->tokens[row] * top : 0;
  for (int32_t r = 0; r < top; r++) {
    int32_t best = fixed && !gone[fixed[r]] ? fixed[r] : -1;
    for (int32_t i = 0; i < n && !fixed; i++)
      if (!gone[i] && (best < 0 || canon_before(c[i], i, c[best], best))) best = i;
    ids[r] = best;
    weights[r] = 0;
    if (best < 0) { canon_fault(p, 0, row, CANON_FAULT_BANNED, op->label); continue; }
    gone[best] = !fixed;   // a table may name an expert twice
    weights[r] = score == 4 ? mixed(z, s, gone, best, op->f[3], n) : s[best];
  }
  if (score == 1) {
    k->exp_minus(weights, weights, weights[0], top);
    normalise = 1;
  }
  float sum = 0;
  for (int32_t r = 0; r < top; r++)
    if (ids[r] >= 0) sum = sum + weights[r];
  sum = canon_max(sum, op->f[1]);
  for (int32_t r = 0; r < top; r++)
    if (ids[r] >= 0) weights[r] = normalise ? canon_weight(weights[r], sum, op->f[0], op->f[2]) : weights[r] * op->f[2];
}

static void row_op(canon_program *p, const canon_op *op, int32_t row, int32_t thread) {
  const canon_kernels *k = p->k;
  float *dst = op->dst.data ? canon_row(&op->dst, row) : 0, *src = op->src.data ? canon_row(&op->src, row) : 0;
  int32_t n = op->dst.width;
  switch (op->kind) {
    case OP_ANGLES: angles(p, row); return;
    case OP_FOLD: if (p->split) canon_attend_finish(p, op, row); return;
    case OP_COMBINE: combine(p, op, row); return;
    case CANON_OP_EMBED: canon_dequantise(&op->m, p->step->tokens[row], dst); return;
    case CANON_OP_NORM: {
      int32_t w = n / op->i[0];
      for (int32_t h = 0; h < op->i[0]; h++) k->norm(dst + h * w, src + h * w, op->vec, w, op->f[0], op->i[1]);
      return;
    }
    case CANON_OP_LAYER_NORM: k->layer_norm(dst, src, op->vec, op->vec + n, n, op->f[0]); return;
    case CANON_OP_QUANTISE: {
      int64_t stride = canon_padded(op->src.width, op->i[0]), groups = stride / op->i[0];
      k->quantise(src, op->src.width, op->i[0], p->codes.q + row * stride, p->codes.scale + row * groups, p->codes.less8 + row * groups,
                     p->codes.half ? p->codes.half + row * groups : 0);
      return;
    }
    case CANON_OP_ROPE: rotate(p, op, row); return;
    case CANON_OP_KV_APPEND: append(p, op, row); return;
    case CANON_OP_ENTRY: canon_entry(p, op, row, thread); return;
    case CANON_OP_MIX_IN: canon_mix_in(p, op, row); return;
    case CANON_OP_MIX_OUT: canon_mix_out(p, op, row, thread); return;
    case CANON_OP_COPY: canon_heads_copy(op, row); return;
    case CANON_OP_SWIGLU: k->swiglu(dst, src, canon_row(&op->src2, row), n); return;
    case CANON_OP_ADD: k->add(dst, src, n); return;
    case CANON_OP_ADD_SCALED: k->add_scaled(dst, src, op->f[0], n); return;
    case CANON_OP_SCALE: k->scale(dst, op->f[0], n); return;
    case CANON_OP_GATE: k->gate(dst, src, n); return;
    case CANON_OP_DIVIDE: k->divide(dst, op->f[0], n); return;
    case CANON_OP_CLAMP: k->clamp(dst, op->f[0], op->f[1], n); return;
    case CANON_OP_ROUTER: canon_route(p, op, row, p->per_thread + thread * p->thread_floats); return;
    case CANON_OP_GATHER: memcpy(dst, canon_row(&op->src, p->step->logit_row[row]), (size_t)n * 4); return;
    case CANON_OP_CHECK: if (!k->finite(src, op->src.width)) canon_fault(p, op->src.logits, row, CANON_FAULT_NONFINITE, op->label); return;
    default: return;   // separates two phases
  }
}

void canon_row_ops(canon_program *p, const canon_phase *ph, int32_t r0, int32_t r1, int32_t thread) {
  for (int32_t row = r0; row < r1; row++)
    for (int32_t i = 0; i < ph->count; i++) row_op(p, &p->ops[ph->first + i], row, thread);
}
