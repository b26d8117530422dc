// Attention by blocks and by tiles: equality with the scalar rule on some rows and heads, and time.
#define COVEY_ONE_FORM
#include "bench.h"
#include "../kernels/attention.cu"
#include "../kernels/tiles.cu"

CANON_FN uint16_t kv_bits(int which, int layer, int head, int position, int channel) {
  return canon_to_f16(unit_float(11 + which, hash32(layer * 64 + head, position, channel)));
}
__global__ void fill_kv(uint16_t *data, const int32_t *pages, int n, int layers, int heads, int dim) {
  int64_t part = (int64_t)heads * dim * 64, all = (int64_t)n * 64 * heads * dim;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < all * layers; i += (int64_t)gridDim.x * blockDim.x) {
    int layer = (int)(i / all), c = (int)(i % dim), h = (int)(i / dim % heads), pos = (int)(i % all / dim / heads);
    uint16_t *k = data + ((int64_t)layer * n + pages[pos / 64]) * 2 * part + (int64_t)h * dim * 64;
    k[c * 64 + pos % 64] = kv_bits(0, layer, h, pos, c);
    k[part + (pos % 64) * dim + c] = kv_bits(1, layer, h, pos, c);
  }
}

static void expect(const float *q, int layer, int head, int dim, int lo, int pos, float scale, const float *sink, float *o) {
  std::vector<float> k(dim), p(256), acc(dim);
  canon_state t = {-canon_inf(), 0};
  float old, fresh;
  for (int d = 0; d < dim; d++) o[d] = 0;
  for (int b = lo / 256; b <= pos / 256; b++) {
    int first = b * 256, from = std::max(lo, first), to = std::min(pos, first + 255);
    float lane[32] = {0}, m = -canon_inf();
    for (int i = from; i <= to; i++) {
      for (int d = 0; d < dim; d++) k[d] = canon_from_f16(kv_bits(0, layer, head, i, d));
      p[i - first] = canon_score(q, k.data(), 1, dim, scale);
      m = canon_max(p[i - first], m);
    }
    std::fill(acc.begin(), acc.end(), 0.0f);
    for (int i = from; i <= to; i++) {
      float e = canon_expf(p[i - first] - m);
      lane[(i - first) & 31] = lane[(i - first) & 31] + e;
      for (int d = 0; d < dim; d++) acc[d] = canon_fmaf(e, canon_from_f16(kv_bits(1, layer, head, i, d)), acc[d]);
    }
    canon_fold(&t, m, canon_tree(lane), &old, &fresh);
    for (int d = 0; d < dim; d++) o[d] = canon_fold_channel(o[d], acc[d], old, fresh);
  }
  if (sink) {
    canon_fold(&t, *sink, 1.0f, &old, &fresh);
    for (int d = 0; d < dim; d++) o[d] = canon_fold_channel(o[d], 0.0f, old, fresh);
  }
  for (int d = 0; d < dim; d++) o[d] = o[d] / t.l;
}

struct shape { const char *name; int heads, kv, dim, window; bool sink; };

static void run(const shape &sh) {
  const int layers = 8, most = 8192, n = most / 64, dim = sh.dim, group = sh.heads / sh.kv;
  std::vector<int32_t> pages(n);
  for (int i = 0; i < n; i++) pages[i] = (i * 5 + 3) % n;
  int32_t *dpages = device(pages);
  int64_t part = (int64_t)sh.kv * dim * 64;
  uint16_t *kv = device<uint16_t>((size_t)n * layers * 2 * part);
  fill_kv<<<1024, 256>>>(kv, dpages, n, layers, sh.kv, dim);
  CHECK(cudaGetLastError());
  std::vector<float> q = floats(21, (size_t)4096 * sh.heads * dim), sinks = floats(22, sh.heads);
  canon_op op;
  memset(&op, 0, sizeof op);
  op.src.data = device(q); op.src.stride = op.src.width = sh.heads * dim;
  op.dst.data = device<float>((size_t)4096 * sh.heads * dim); op.dst.stride = op.dst.width = sh.heads * dim;
  op.vec = sh.sink ? device(sinks) : 0;
  op.kv.data = (uint8_t *)kv; op.kv.form = CANON_F16; op.kv.layers = layers; op.kv.heads = sh.kv; op.kv.dim = dim; op.kv.pages = n;
  op.i[1] = sh.heads; op.i[2] = sh.window;
  op.f[0] = 0.08838834764831845f;
  covey_program p;
  memset(&p, 0, sizeof p);
  p.partial_blocks = most / 256;
  p.partial = device<float>((size_t)64 * p.partial_blocks * sh.heads * (dim + 2));
  covey_program *dp = device<covey_program>(1);
  int32_t *positions = device<int32_t>(4096), *sequence = device<int32_t>(4096);
  p.step.positions = positions; p.step.sequence = sequence; p.step.pages = dpages; p.step.pages_stride = n;
  int tile_memory = attend_tile_memory(dim), keys = CANON_BLOCK * dim * 2;
  for (auto f : {covey_attend_blocks1_f16, covey_attend_blocks2_f16, covey_attend_blocks4_f16, covey_attend_blocks8_f16}) CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 2 * keys));
  auto tiles = dim == 64 ? covey_attend_tiles64_f16 : covey_attend_tiles128_f16;
  CHECK(cudaFuncSetAttribute(tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, tile_memory));
  struct test { int rows, first; } tests[] = {{1, 0}, {1, 999}, {1, 4000}, {1, 8190}, {8, 1000}, {64, 1000}, {100, 200}, {512, 0}, {4096, 0}};
  for (auto &t : tests) {
    p.step.rows = t.rows;
    std::vector<int32_t> pos(t.rows);
    for (int i = 0; i < t.rows; i++) pos[i] = t.first + i;
    CHECK(cudaMemcpy(positions, pos.data(), t.rows * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(dp, &p, sizeof p, cudaMemcpyHostToDevice));
    int blocks = (t.first + t.rows - 1) / 256 + 1;
    for (int way : {1, 2, 4, 8, -4, -8, 0}) {   // query heads a block; negative: keys and values in turn
      if (way && (t.rows > 64 || group % way)) continue;
      const int together = abs(way), both = way > 0;
      if (!way && t.rows < 8) continue;
      auto f = together == 1 ? covey_attend_blocks1_f16 : together == 2 ? covey_attend_blocks2_f16 : together == 4 ? covey_attend_blocks4_f16 : covey_attend_blocks8_f16;
      auto go = [&](int i, cudaStream_t s) {
        canon_op o = op;
        o.i[0] = i % layers;
        if (way) {
          f<<<dim3(sh.heads / together, blocks, t.rows), 256, (1 + both) * keys, s>>>(o, dp, both);
          covey_attend_fold<<<dim3(sh.heads, t.rows), dim, 0, s>>>(o, dp, 0);
        } else {
          tiles<<<dim3(covey_ceil(t.rows, TILE_QUERIES / group), sh.kv), TILE_THREADS, tile_memory, s>>>(o, dp);
        }
      };
      CHECK(cudaMemset(op.dst.data, 0xff, (size_t)t.rows * op.dst.stride * 4));
      go(0, 0);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      long bad = 0, checked = 0;
      for (int c = 0; c < 12; c++) {
        int r = c == 0 ? 0 : c == 1 ? t.rows - 1 : hash32(31, c, t.rows) % t.rows, h = hash32(32, c, t.rows) % sh.heads, end = pos[r];
        std::vector<float> want(dim);
        expect(q.data() + ((size_t)r * sh.heads + h) * dim, 0, h / group, dim, sh.window && end - sh.window + 1 > 0 ? end - sh.window + 1 : 0, end, op.f[0], sh.sink ? &sinks[h] : 0, want.data());
        bad += differing(want.data(), host(op.dst.data + (size_t)r * op.dst.stride + h * dim, dim).data(), dim); checked += dim;
      }
      double us = graph_us(t.rows >= 512 ? 8 : 48, go), pairs = 0;
      for (int r = 0; r < t.rows; r++) pairs += sh.window ? std::min(pos[r] + 1, sh.window) : pos[r] + 1;
      printf("%-14s %4d rows from %4d, %s%d: %ld of %ld differ, %9.2f us, %6.2f T multiply-adds/s\n", sh.name, t.rows, t.first, way ? "blocks " : "tiles ", way, bad, checked, us, pairs * sh.heads * dim * 2 / us / 1e6);
    }
  }
  for (void *f : {(void *)dpages, (void *)kv, (void *)op.src.data, (void *)op.dst.data, (void *)p.partial, (void *)dp, (void *)positions, (void *)sequence}) CHECK(cudaFree(f));
}

void bench_attention() {
  run({"A3B 32/4x128", 32, 4, 128, 0, false});
  run({"OLMoE 16/16x128", 16, 16, 128, 0, false});
  run({"Air 96/8x128", 96, 8, 128, 0, false});
  run({"oss 64/8x64 w", 64, 8, 64, 128, true});
}
