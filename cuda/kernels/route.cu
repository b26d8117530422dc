// Routers of several rows (rule 8), a block a row: m.x are logits [rows, m.hidden apart], m.ids and m.weights [rows, k]. Bound by
// the chain of k rounds. Twin: canon_route of engine/canon/rows.c.
#include "abi.h"
#include "router.cuh"

enum { ROUTE_WARPS = 4 };

extern "C" __global__ __launch_bounds__(ROUTE_WARPS * 32) void covey_route(const __grid_constant__ covey_moe m, const covey_program *p) {
  __shared__ __align__(16) float scores[1024 + 32];
  __shared__ int32_t chosen[16];
  const int row = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  wait_for_previous();
  let_next_start();
  if (row >= p->step.rows) return;
  route_scores<ROUTE_WARPS>(m, m.x + (int64_t)row * m.hidden, m.bias, scores, warp, lane, 1, row);
  int32_t id;
  float weight;
  route_choose<ROUTE_WARPS>(m, scores, chosen, warp, lane, 1, &id, &weight, row);
  if (warp == 0 && lane < m.k) { m.ids[(int64_t)row * m.k + lane] = id; m.weights[(int64_t)row * m.k + lane] = weight; }
}
