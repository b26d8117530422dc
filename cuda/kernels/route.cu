// Routers of several rows (rule 8), a block a row: m.x are logits [rows, m.hidden apart], m.ids and m.weights [rows, k]. Bound by
// the chain from the logits to the ranks. Twin: canon_route of engine/canon/rows.c.
#include "abi.h"
#include "router.cuh"

enum { ROUTE_WARPS = 4 };

extern "C" __global__ __launch_bounds__(ROUTE_WARPS * 32) void covey_route(const __grid_constant__ covey_moe m, const covey_program *p) {
  __shared__ __align__(16) float memory[COVEY_ROUTE_FLOATS];
  const route_memory at(memory);
  const int row = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  wait_for_previous();
  let_next_start();
  if (row >= p->step.rows) return;
  route_scores<ROUTE_WARPS>(m, m.x + (int64_t)row * m.hidden, m.bias, at, warp, lane, 1, row);
  __syncthreads();
  if (warp) return;
  int some;
  const int32_t id = route_choose(m, at, lane, &some, row);
  const float weight = route_weight(m, at, id, some, lane);
  if (lane < m.k) { m.ids[(int64_t)row * m.k + lane] = id; m.weights[(int64_t)row * m.k + lane] = weight; }
}
