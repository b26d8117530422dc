// Gated feed-forward blocks, in launches: group (rows by expert), up (gate, up, silu, product), inner (quantisation of the
// inner width), down, combine. The shared expert runs the same launches with all rows and writes to dst, as the first term
// of the combination. CPU twins: engine/canon/ffn.c and combine of rows.c.
#include "product.h"

enum { GROUP_WARPS = 16, GROUP_EXPERTS = 1024 };

// The expert of slot s, counted from e0, if it is here and one of the `width` in hand; -1 otherwise.
static __device__ __forceinline__ int32_t expert_in_hand(const canon_op &op, int32_t s, int32_t end, int32_t e0, int32_t width) {
  if (s >= end) return -1;
  int32_t id = __ldcg(op.ids + s);
  return id >= e0 && id < e0 + width && covey_here(op.table[id]) ? id - e0 : -1;
}

// The items of this step: (row, rank) pairs by expert, rows ascending. One block of GROUP_WARPS warps, each with a stretch of
// the slots: counted once and put in place once, GROUP_EXPERTS experts at a time. Dynamic shared memory: GROUP_WARPS + 1
// integers for each of them. Moves rows * k ids twice.
COVEY_BOUNDED(GROUP_WARPS * 32) covey_group(COVEY_CONST canon_op op, const covey_program *p) {
  COVEY_DYNAMIC(int32_t, count);                             // [GROUP_WARPS][width], then the experts' totals and places
  __shared__ int32_t used, filled;
  wait_for_previous();
  let_next_start();
  int32_t k = op.i[1], experts = op.i[0], slots = rows_of(p, op.dst.logits) * k, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int32_t per = (covey_ceil(slots, GROUP_WARPS) + 31) / 32 * 32, from = at_most(warp * per, slots), to = at_most(from + per, slots);
  if (threadIdx.x == 0) used = filled = 0;
  for (int32_t s = threadIdx.x; s < slots; s += blockDim.x) {
    int32_t id = __ldcg(op.ids + s);
    if (id >= 0 && !op.table[id]) fault(p, 0, s / k, CANON_FAULT_MISSING, op.label);
  }
  for (int32_t e0 = 0; e0 < experts; e0 += GROUP_EXPERTS) {
    int32_t width = at_most(experts - e0, GROUP_EXPERTS), *mine = count + warp * width, *total = count + GROUP_WARPS * width;
    for (int32_t i = threadIdx.x; i < GROUP_WARPS * width; i += blockDim.x) count[i] = 0;
    __syncthreads();
    for (int32_t s = from; s < to; s += 32) {
      int32_t e = expert_in_hand(op, s + lane, to, e0, width);
      uint32_t peers = __match_any_sync(FULL, e);
      if (e >= 0 && lane == __ffs(peers) - 1) mine[e] += __popc(peers);
      __syncwarp();
    }
    __syncthreads();
    for (int32_t e = threadIdx.x; e < width; e += blockDim.x) {
      int32_t n = 0;
      for (int32_t w = 0; w < GROUP_WARPS; w++) { int32_t c = count[w * width + e]; count[w * width + e] = n; n += c; }
      total[e] = n;
    }
    __syncthreads();
    if (warp == 0) {
      int32_t start = filled, item = used;
      for (int32_t e = lane; e < covey_ceil(width, 32) * 32; e += 32) {
        int32_t n = e < width ? total[e] : 0, sum = n;
        for (int h = 1; h < 32; h <<= 1) { int32_t v = __shfl_up_sync(FULL, sum, h); if (lane >= h) sum += v; }
        uint32_t some = __ballot_sync(FULL, n > 0);
        if (n) {
          covey_item *it = p->items + item + __popc(some & ((1u << lane) - 1));
          it->expert = e0 + e;
          it->start = start + sum - n;
          it->n = n;
        }
        if (e < width) total[e] = start + sum - n;
        start += __shfl_sync(FULL, sum, 31);
        item += __popc(some);
      }
      __syncwarp();
      if (lane == 0) { filled = start; used = item; }
    }
    __syncthreads();
    for (int32_t s = from; s < to; s += 32) {
      int32_t e = expert_in_hand(op, s + lane, to, e0, width);
      uint32_t peers = __match_any_sync(FULL, e);
      if (e >= 0) {
        int32_t at = total[e] + mine[e] + __popc(peers & ((1u << lane) - 1));
        p->order_row[at] = (s + lane) / k;
        p->order_slot[at] = s + lane;
      }
      __syncwarp();
      if (e >= 0 && lane == __ffs(peers) - 1) mine[e] += __popc(peers);
      __syncwarp();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *p->item_n = used;
}

typedef struct { void *block; const int32_t *rows, *slots; int32_t n; } work;   // null lists = all rows

static __device__ __forceinline__ int32_t work_of(const canon_op &op, const covey_program *p, int routed, work *w) {
  w->block = op.shared_block;
  w->rows = w->slots = 0;
  w->n = rows_of(p, op.dst.logits);
  if (!routed) return 1;
  if ((int32_t)blockIdx.y >= *p->item_n) return 0;
  const covey_item it = p->items[blockIdx.y];
  w->block = op.table[it.expert];
  w->rows = p->order_row + it.start;
  w->slots = p->order_slot + it.start;
  w->n = it.n;
  return 1;
}

// Gated values of one tile of the inner width into inner_float [slot, inner].
static __device__ __forceinline__ void up_tile(const canon_op &op, const covey_program *p, int routed, float *sums) {
  work w;
  if (!work_of(op, p, routed, &w)) return;
  const canon_record &layout = routed ? op.routed : op.shared;
  canon_matrix gate = packed_at(layout.gate, w.block), up = packed_at(layout.up, w.block);
  int32_t o = blockIdx.x * COVEY_TILE + threadIdx.x, inner = gate.rows;
  for (int32_t i0 = blockIdx.z * PRODUCT_ROWS; i0 < w.n; i0 += gridDim.z * PRODUCT_ROWS) {
    int32_t n = at_most(w.n - i0, PRODUCT_ROWS);
    product_row rows[PRODUCT_ROWS];
    for (int32_t r = 0; r < PRODUCT_ROWS; r++) {
      int64_t i = i0 + at_most(r, n - 1), row = w.rows ? w.rows[i] : i;
      rows[r].q = p->codes.q + row * gate.groups * gate.group;
      rows[r].scale = p->codes.scale + row * gate.groups;
      rows[r].sum = p->codes.sum + row * gate.groups;
      rows[r].x = row_of(op.src, row);
    }
    float g[PRODUCT_ROWS], u[PRODUCT_ROWS];
    tile_product(gate, blockIdx.x, rows, n, sums, g);
    tile_product(up, blockIdx.x, rows, n, sums, u);
    if (threadIdx.x < COVEY_TILE && o < inner)
      for (int32_t r = 0; r < n; r++) {
        int64_t slot = w.slots ? w.slots[i0 + r] : i0 + r;
        float a = gate.bias ? g[r] + gate.bias[o] : g[r], b = up.bias ? u[r] + up.bias[o] : u[r];
        p->inner_float[routed][slot * inner + o] = canon_gated(op.i[2], a, b, op.f[0]);
      }
  }
}

// Codes of the inner width, a warp a group. grid (slots, groups / warps).
static __device__ __forceinline__ void inner_codes(const canon_op &op, const covey_program *p, int routed) {
  const canon_matrix &down = routed ? op.routed.down : op.shared.down;
  int32_t slot = blockIdx.x, g = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, inner = down.cols;
  if (slot >= rows_of(p, op.dst.logits) * (routed ? op.i[1] : 1) || g >= down.groups) return;
  if (routed && (op.ids[slot] < 0 || !covey_here(op.table[op.ids[slot]]))) return;
  warp_quantise(p->inner_float[routed] + (int64_t)slot * inner + g * down.group, at_most(inner - g * down.group, down.group), down.group,
                p->inner[routed].q + ((int64_t)slot * down.groups + g) * down.group, p->inner[routed].scale + (int64_t)slot * down.groups + g,
                p->inner[routed].sum + (int64_t)slot * down.groups + g);
}

static __device__ __forceinline__ void down_tile(const canon_op &op, const covey_program *p, int routed, float *sums) {
  work w;
  if (!work_of(op, p, routed, &w)) return;
  canon_matrix down = packed_at(routed ? op.routed.down : op.shared.down, w.block);
  int32_t o = blockIdx.x * COVEY_TILE + threadIdx.x;
  for (int32_t i0 = blockIdx.z * PRODUCT_ROWS; i0 < w.n; i0 += gridDim.z * PRODUCT_ROWS) {
    int32_t n = at_most(w.n - i0, PRODUCT_ROWS);
    product_row rows[PRODUCT_ROWS];
    for (int32_t r = 0; r < PRODUCT_ROWS; r++) {
      int64_t i = i0 + at_most(r, n - 1), slot = w.slots ? w.slots[i] : i;
      rows[r].q = p->inner[routed].q + slot * down.groups * down.group;
      rows[r].scale = p->inner[routed].scale + slot * down.groups;
      rows[r].sum = p->inner[routed].sum + slot * down.groups;
      rows[r].x = p->inner_float[routed] + slot * down.cols;
    }
    float out[PRODUCT_ROWS];
    tile_product(down, blockIdx.x, rows, n, sums, out);
    if (threadIdx.x < COVEY_TILE && o < down.rows)
      for (int32_t r = 0; r < n; r++) {
        int64_t slot = w.slots ? w.slots[i0 + r] : i0 + r;
        float *y = routed ? p->routed_out + slot * down.rows : row_of(op.dst, slot);
        y[o] = down.bias ? out[r] + down.bias[o] : out[r];
      }
  }
}

// grid (tiles, items, blocks of PRODUCT_ROWS rows) for routed experts, (tiles, 1, blocks of rows) for the shared one.
COVEY_BOUNDED(PRODUCT_THREADS) covey_routed_up(COVEY_CONST canon_op op, const covey_program *p) { __shared__ float s[PRODUCT_ROWS * PRODUCT_THREADS]; up_tile(op, p, 1, s); }
COVEY_BOUNDED(PRODUCT_THREADS) covey_shared_up(COVEY_CONST canon_op op, const covey_program *p) { __shared__ float s[PRODUCT_ROWS * PRODUCT_THREADS]; up_tile(op, p, 0, s); }
COVEY_KERNEL covey_routed_inner(COVEY_CONST canon_op op, const covey_program *p) { inner_codes(op, p, 1); }
COVEY_KERNEL covey_shared_inner(COVEY_CONST canon_op op, const covey_program *p) { inner_codes(op, p, 0); }
COVEY_BOUNDED(PRODUCT_THREADS) covey_routed_down(COVEY_CONST canon_op op, const covey_program *p) { __shared__ float s[PRODUCT_ROWS * PRODUCT_THREADS]; down_tile(op, p, 1, s); }
COVEY_BOUNDED(PRODUCT_THREADS) covey_shared_down(COVEY_CONST canon_op op, const covey_program *p) { __shared__ float s[PRODUCT_ROWS * PRODUCT_THREADS]; down_tile(op, p, 0, s); }

// Routed outputs onto the shared one, in rank order (rule 9). grid (rows, column blocks). Moves k + 2 rows.
COVEY_KERNEL covey_combine(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x, k = op.i[1];
  if (row >= rows_of(p, op.dst.logits) || i >= op.dst.width) return;
  float *y = row_of(op.dst, row) + i, v = op.shared_block ? *y : 0.0f;
  if (op.shared_block && op.src2.data) v = v * canon_sigmoidf(*row_of(op.src2, row));
  for (int32_t r = 0; r < k; r++) {
    int64_t slot = (int64_t)row * k + r;
    int32_t id = op.ids[slot];
    if (id < 0 || !op.table[id]) continue;
    const float *out = covey_here(op.table[id]) ? p->routed_out : p->routed_far;
    v = canon_fmaf(op.weights[slot], out[slot * op.dst.width + i], v);
  }
  *y = v;
}
