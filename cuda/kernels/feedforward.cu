// Gated feed-forward blocks, in launches: group (rows by expert), up (gate, up, silu, product), inner (quantisation of the
// inner width), down, combine. The shared expert runs the same launches with all rows and writes to dst, as the first term
// of the combination. CPU twins: engine/canon/ffn.c and combine of rows.c.
#include "product.h"

// The items of this step: (row, rank) pairs by expert, rows ascending. One block; a thread an expert counts its own. Moves
// rows * k ids once an expert through the cache.
COVEY_KERNEL covey_group(COVEY_CONST canon_op op, const covey_program *p) {
  int32_t rows = rows_of(p, op.dst.logits), k = op.i[1], experts = op.i[0], slots = rows * k;
  __shared__ int32_t used, filled, count[1024];
  if (threadIdx.x == 0) used = filled = 0;
  for (int32_t s = threadIdx.x; s < slots; s += blockDim.x) {
    int32_t id = op.ids[s];
    if (id >= 0 && !op.table[id]) fault(p, 0, s / k, CANON_FAULT_MISSING, op.label);
  }
  for (int32_t e0 = 0; e0 < experts; e0 += blockDim.x) {     // experts beyond the block's threads come in turns
    int32_t e = e0 + threadIdx.x, n = 0;
    if (e < experts && covey_here(op.table[e]))
      for (int32_t s = 0; s < slots; s++) n += op.ids[s] == e;
    __syncthreads();
    count[threadIdx.x] = n;
    __syncthreads();
    int32_t start = filled, item = used, all = 0, items = 0;
    for (int32_t t = 0; t < (int32_t)blockDim.x; t++) {
      int32_t c = count[t];
      if (t < (int32_t)threadIdx.x) { start += c; item += c > 0; }
      all += c;
      items += c > 0;
    }
    if (n) {
      p->items[item].expert = e;
      p->items[item].start = start;
      p->items[item].n = n;
      for (int32_t s = 0; s < slots; s++)
        if (op.ids[s] == e) { p->order_row[start] = s / k; p->order_slot[start++] = s; }
    }
    __syncthreads();
    if (threadIdx.x == 0) { filled += all; used += items; }
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
