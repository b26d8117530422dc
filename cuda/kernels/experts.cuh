// What a step's experts multiply: the rows of an expert (an item), and its matrices as a product.
#pragma once
#include "matmul.cuh"

// Item i of the routed experts, or the shared expert with all rows (routed 0).
__device__ __forceinline__ covey_item item_at(const canon_op &op, const covey_program *p, int routed, int i) {
  if (!routed) return covey_item{-1, 0, i == 0 ? (op.dst.logits ? p->step.logit_rows : p->step.rows) : 0};
  if (i >= __ldcg(p->item_n)) return covey_item{-1, 0, 0};
  const covey_item *it = p->items + i;
  return covey_item{__ldcg(&it->expert), __ldcg(&it->start), __ldcg(&it->n)};
}

__device__ __forceinline__ const float *bias_at(const uint8_t *record, const canon_matrix &m) { return m.bias_at ? (const float *)(record + m.bias_at) : 0; }

// gate and up of a record, or down, for n rows from `start` of the order.
__device__ __forceinline__ product expert_product(const canon_op &op, const covey_program *p, int routed, bool down, const uint8_t *record, int start, int n) {
  const canon_record &r = routed ? op.routed : op.shared;
  product v;
  v.m = down ? r.down : r.gate;
  v.w = record + (down ? r.down.codes_at : r.gate.codes_at);
  v.w2 = record + r.up.codes_at;
  v.n = n;
  v.bias = bias_at(record, down ? r.down : r.gate); v.bias2 = bias_at(record, r.up);
  v.gated = op.i[2]; v.limit = op.f[0];
  v.sum = 0;
  v.most = FEW_ROWS;
  v.x = down ? p->inner[routed] : p->codes;
  v.h = p->inner[routed];
  v.h_groups = r.down.groups;
  v.in = !routed ? 0 : down ? p->order_slot + start : p->order_row + start;
  v.out = routed ? p->order_slot + start : 0;
  v.y = routed ? p->routed_out : op.dst.data;
  v.stride = routed ? op.dst.width : op.dst.stride;
  if (!routed) {
    v.x.q += (int64_t)start * v.m.groups * v.m.group; v.x.scale += (int64_t)start * v.m.groups; v.x.sum += (int64_t)start * v.m.groups;
    v.h.q += (int64_t)start * v.h_groups * r.down.group; v.h.scale += (int64_t)start * v.h_groups; v.h.sum += (int64_t)start * v.h_groups;
    v.y += start * v.stride;
  }
  return v;
}
