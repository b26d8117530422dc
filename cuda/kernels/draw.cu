// Drawing tokens (rule 11) where the logits lie: one block a row of logits. Twin: engine/canon/sample.c, whose comments say why
// candidates far below the largest logit may be left out. More candidates than a block sorts, or logits that are not finite,
// are left to the host: the row's token is -1 then.
//
// Reads the row two to seven times through the cache; the running sums are chains over the candidates.
#include "select.cuh"

enum { DRAW_THREADS = 1024, DRAW_MOST = 2048 };

// As ascending, candidate, id_of and value_of of the twin.
static __device__ __forceinline__ uint32_t ascending(float x) {
  uint32_t u = canon_bits(x == 0 ? 0.0f : x);
  return u >> 31 ? ~u : u | 0x80000000u;
}
static __device__ __forceinline__ float value_of(uint32_t u) { return canon_float(u >> 31 ? u & 0x7fffffffu : ~u); }

// grid (logit rows), 1,024 threads; op.src are the logits.
COVEY_BOUNDED(DRAW_THREADS) covey_draw(COVEY_CONST canon_op op, const covey_program *p) {
  __shared__ uint64_t c[DRAW_MOST];
  __shared__ float weight[DRAW_MOST];
  __shared__ int32_t have, bad, best;
  __shared__ uint32_t top;
  int32_t row = blockIdx.x, n = op.src.width, t = threadIdx.x, threads = blockDim.x;
  if (row >= p->step.logit_rows) return;
  const covey_drawing d = p->drawings[row];
  const float *x = row_of(op.src, row);
  int32_t *out = p->drawn + row;
  if (t == 0) { top = 0; bad = 0; best = n; have = 0; }
  __syncthreads();
  uint32_t mine = 0;
  int32_t wrong = 0;
  for (int32_t i = t; i < n; i += threads) {
    uint32_t a = ascending(x[i]);
    wrong |= !canon_finite(x[i]);
    mine = a > mine ? a : mine;
  }
  mine = warp_max(mine);
  if ((t & 31) == 0) atomicMax(&top, mine);
  if (wrong) atomicAdd(&bad, 1);
  __syncthreads();
  if (bad) { if (t == 0) *out = -1; return; }
  float max = value_of(top);
  if (d.temperature == 0) {
    for (int32_t i = t; i < n; i += threads)
      if (x[i] == max) { atomicMin(&best, i); break; }
    __syncthreads();
    if (t == 0) *out = best;
    return;
  }

  float magnitude = max < 0 ? -max : max, cut = max - 18.0f * d.temperature - magnitude * 0x1p-20f;
  if (d.top_k > 0 && d.top_k < n && d.top_k <= 1024) {         // nothing far below the k-th largest counts
    kth last = kth_largest(n, d.top_k, [&](int32_t i) { return ascending(x[i]); });
    float least = value_of(last.order), close = (least < 0 ? -least : least) * 0x1p-20f + d.temperature * 0x1p-140f;
    cut = canon_max(least - close, cut);
  }
  for (int32_t i = t; i < n; i += threads)
    if (x[i] >= cut) {
      int32_t at = atomicAdd(&have, 1);
      if (at < DRAW_MOST) c[at] = (uint64_t)ascending(x[i] / d.temperature) << 32 | (uint32_t)~(uint32_t)i;
    }
  __syncthreads();
  int32_t kept = have, size = 1;
  if (kept > DRAW_MOST) { if (t == 0) *out = -1; return; }
  while (size < kept) size *= 2;
  for (int32_t i = kept + t; i < size; i += threads) c[i] = 0;  // behind every candidate
  for (int32_t run = 2; run <= size; run *= 2)
    for (int32_t apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int32_t pair = t; pair < size / 2; pair += threads) {
        int32_t i = pair / apart * 2 * apart + pair % apart, j = i + apart;
        uint64_t a = c[i], b = c[j];
        if (i & run ? a > b : a < b) { c[i] = b; c[j] = a; }
      }
    }
  __syncthreads();
  if (d.top_k > 0 && d.top_k < kept) kept = d.top_k;
  float first = value_of((uint32_t)(c[0] >> 32));
  for (int32_t i = t; i < kept; i += threads) weight[i] = canon_expf(value_of((uint32_t)(c[i] >> 32)) - first);
  __syncthreads();
  if (t) return;
  if (d.top_p > 0 && d.top_p < 1) {
    float all = 0, sum = 0;
    for (int32_t i = 0; i < kept; i++) all = all + weight[i];
    float goal = d.top_p * all;
    int32_t i = 0;
    while (i < kept) { sum = sum + weight[i++]; if (sum >= goal) break; }
    kept = i;
  }
  if (d.min_p > 0) {
    int32_t i = 1;
    while (i < kept && weight[i] >= d.min_p) i++;
    kept = i;
  }
  float all = 0, sum = 0;
  for (int32_t i = 0; i < kept; i++) all = all + weight[i];
  float goal = canon_uniform(canon_philox(d.seed, d.choice, d.position)) * all;
  int32_t i = 0;
  for (; i < kept - 1; i++) {
    sum = sum + weight[i];
    if (sum > goal) break;
  }
  *out = (int32_t)~(uint32_t)c[i];
}
