// Experts and dense products for many rows: equality with the scalar rule on some rows, time by number of rows.
#define COVEY_ONE_FORM
#include "bench.h"
#include "../kernels/experts.cu"
#include "../kernels/experts_few.cu"
#include "../kernels/matmul.cu"

static void quantise_rows(const std::vector<float> &x, int rows, int cols, int group, std::vector<int8_t> &q, std::vector<float> &s, std::vector<int32_t> &sum) {
  int groups = covey_ceil(cols, group);
  q.assign((size_t)rows * groups * group, 0); s.resize((size_t)rows * groups); sum.resize((size_t)rows * groups);
  for (int r = 0; r < rows; r++)
    for (int g = 0; g < groups; g++)
      canon_quantise(x.data() + (size_t)r * cols + g * group, std::min(group, cols - g * group), q.data() + ((size_t)r * groups + g) * group, &s[(size_t)r * groups + g], &sum[(size_t)r * groups + g]);
}

struct shape { const char *name; int hidden, inner, experts, k; };

// As fuse.c launches them.
struct few { int rows, slots, blocks, bytes; };
static few few_of(const canon_matrix &m, int rows, int passes) {
  few f;
  const int most = 232448, slot = CANON_SEGMENT / m.group * covey_block(m.form, m.group, m.scale_form);
  f.rows = rows > 8 ? COVEY_FEW_ROWS : 8;
  for (int each : {2, 1}) {
    const int fixed = covey_few_of(m.group, m.groups * m.group, slot, f.rows, 0, covey_few_passes(passes, 132 * each)).bytes;
    f.slots = std::min(((most + 1024) / each - 1024 - fixed) / slot, (int)COVEY_FEW_SLOTS) / COVEY_FEW_WARPS * COVEY_FEW_WARPS;
    f.blocks = 132 * each;
    f.bytes = fixed + f.slots * slot;
    if (f.slots >= 2 * COVEY_FEW_WARPS) break;
  }
  return f;
}
static void launch_few(void (*k)(canon_op, const covey_program *, int, int), const few &f, const canon_op &op, const covey_program *p, cudaStream_t s) {
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(f.blocks); c.blockDim = dim3(COVEY_FEW_THREADS); c.dynamicSmemBytes = f.bytes; c.stream = s;
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  a[0].val.programmaticStreamSerializationAllowed = 1;
  c.attrs = a; c.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&c, k, op, p, 1, f.rows | f.slots << 8));
}

static void experts(const shape &sh, double probe) {
  const int H = sh.hidden, I = sh.inner, E = sh.experts, K = sh.k, group = 64, layers = 3;
  canon_matrix gate = matrix(CANON_INT4, I, H, group), down = matrix(CANON_INT4, H, I, group), up = gate;
  int64_t one = covey_blocks_size(&gate), size = 2 * one + covey_blocks_size(&down);
  up.codes_at = one; down.codes_at = 2 * one;
  uint8_t *all = device<uint8_t>(size * E * layers);
  std::vector<void *> table(E * layers);
  for (int e = 0; e < E * layers; e++) {
    uint8_t *at = all + size * e;
    table[e] = at;
    fill(gate, at, 10 * (e % E) + 1); fill(gate, at + one, 10 * (e % E) + 2); fill(down, at + 2 * one, 10 * (e % E) + 3);
  }
  void **dtable = device(table);
  const int most_rows = 4096;
  std::vector<float> x = floats(4, (size_t)most_rows * H);
  std::vector<int8_t> q; std::vector<float> sx; std::vector<int32_t> sum;
  quantise_rows(x, most_rows, H, group, q, sx, sum);
  covey_program p;
  memset(&p, 0, sizeof p);
  p.codes = covey_codes{device(q), device(sx), device(sum)};
  size_t slots = (size_t)most_rows * K;
  p.inner[1] = covey_codes{device<int8_t>(slots * down.groups * group), device<float>(slots * down.groups), device<int32_t>(slots * down.groups)};
  p.routed_out = device<float>(slots * H);
  p.item_n = device<int32_t>(1); p.order_row = device<int32_t>(slots); p.order_slot = device<int32_t>(slots); p.items = device<covey_item>(E);
  covey_program *dp = device<covey_program>(1);
  canon_op op;
  memset(&op, 0, sizeof op);
  op.i[0] = E; op.routed.gate = gate; op.routed.up = up; op.routed.down = down; op.dst.width = H; op.dst.stride = H;

  for (int rows : {1, 2, 4, 8, 16, 32, 64, 128, 512, 1024, 4096}) {
    std::vector<std::vector<int>> of(E);
    for (int r = 0; r < rows; r++) {
      std::vector<int> chosen;
      for (int i = 0; (int)chosen.size() < K; i++) {
        int e = hash32(9, r, i) % E;
        if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) { of[e].push_back(r * K + (int)chosen.size()); chosen.push_back(e); }
      }
    }
    std::vector<covey_item> items; std::vector<int32_t> order_row, order_slot;
    for (int e = 0; e < E; e++) if (!of[e].empty()) {
      items.push_back(covey_item{e, (int)order_slot.size(), (int)of[e].size()});
      for (int s : of[e]) { order_slot.push_back(s); order_row.push_back(s / K); }
    }
    int n = (int)items.size();
    CHECK(cudaMemcpy(p.item_n, &n, 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.items, items.data(), n * sizeof(covey_item), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.order_row, order_row.data(), order_row.size() * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.order_slot, order_slot.data(), order_slot.size() * 4, cudaMemcpyHostToDevice));
    p.step.rows = rows;
    CHECK(cudaMemcpy(dp, &p, sizeof p, cudaMemcpyHostToDevice));
    for (bool many : {false, true}) {
      if (!many && rows > 1024) continue;
      int block = 64 * 8 + 32;
      using F = Form<CANON_INT4, 64, CANON_F16>;
      const int memory = Many<F, 4>::memory(block), passes = n + rows * K / (rows > 8 ? COVEY_FEW_ROWS : 8);
      const few few_up = few_of(gate, rows, passes), few_down = few_of(down, rows, passes);
      CHECK(cudaFuncSetAttribute(covey_up_few_int4_g64, cudaFuncAttributeMaxDynamicSharedMemorySize, few_up.bytes));
      CHECK(cudaFuncSetAttribute(covey_down_few_int4_g64, cudaFuncAttributeMaxDynamicSharedMemorySize, few_down.bytes));
      for (auto f : {covey_up_many_int4_g64, covey_down_many_int4_g64}) CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, memory));
      int columns = 64, tiles = 0;
      for (auto &it : items) tiles += covey_ceil(it.n, columns);
      auto run = [&](int i, cudaStream_t s, int which) {
        canon_op o = op;
        o.table = dtable + (size_t)(i % layers) * E;
        if (which & 1) {
          if (many) covey_up_many_int4_g64<<<dim3(covey_ceil(I, 64), tiles), 256, memory, s>>>(o, dp, 1);
          else launch_few(covey_up_few_int4_g64, few_up, o, dp, s);
        }
        if (which & 2) {
          if (many) covey_down_many_int4_g64<<<dim3(covey_ceil(H, 128), tiles), 256, memory, s>>>(o, dp, 1);
          else launch_few(covey_down_few_int4_g64, few_down, o, dp, s);
        }
      };
      CHECK(cudaMemset(p.routed_out, 0xff, (size_t)rows * K * H * 4));
      run(0, 0, 3);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      long bad = 0, checked = 0;
      for (int t = 0; t < 4; t++) {
        int i = (int)(hash32(3, rows, t) % order_slot.size()), slot = order_slot[i], row = slot / K, e = -1;
        for (auto &it : items) if (i >= it.start && i < it.start + it.n) e = it.expert;
        std::vector<float> g(I), u(I), o(H), got(H);
        reference(gate, 10 * e + 1, x.data() + (size_t)row * H, g.data());
        reference(gate, 10 * e + 2, x.data() + (size_t)row * H, u.data());
        for (int j = 0; j < I; j++) g[j] = canon_siluf(g[j]) * u[j];
        reference(down, 10 * e + 3, g.data(), o.data());
        CHECK(cudaMemcpy(got.data(), p.routed_out + (size_t)slot * H, H * 4, cudaMemcpyDeviceToHost));
        bad += differing(o.data(), got.data(), H); checked += H;
      }
      int times = rows >= 512 ? 6 : 24;
      double a = graph_us(times, [&](int i, cudaStream_t s) { run(i, s, 1); }), b = graph_us(times, [&](int i, cudaStream_t s) { run(i, s, 2); }), c = graph_us(times, [&](int i, cudaStream_t s) { run(i, s, 3); });
      double bytes = (double)size * n, ops = 3.0 * H * I * rows * K;
      printf("%-12s %4d rows, %3d experts, %s: %ld of %ld differ, up %8.2f us, down %8.2f us, both %8.2f us, %5.0f GB/s (%4.1f %%), %6.1f T multiply-adds/s\n", sh.name, rows, n, many ? "many" : "few ", bad, checked, a, b, c,
             bytes / c / 1e3, bytes / c / 1e3 / probe * 100, ops / c / 1e6);
    }
  }
  for (void *f : {(void *)all, (void *)dtable, (void *)p.codes.q, (void *)p.codes.scale, (void *)p.codes.sum, (void *)p.inner[1].q, (void *)p.inner[1].scale, (void *)p.inner[1].sum, (void *)p.routed_out, (void *)p.item_n, (void *)p.order_row, (void *)p.order_slot, (void *)p.items, (void *)dp}) CHECK(cudaFree(f));
}

static void dense(int form, int group, int cols, int outs, double probe) {
  canon_matrix m = matrix(form, outs, cols, group);
  int64_t size = (covey_blocks_size(&m) + 255) / 256 * 256;
  const int copies = std::max<int>(2, (int)(300000000 / size) + 1), most = 4096;
  uint8_t *all = device<uint8_t>(size * copies);
  for (int i = 0; i < copies; i++) fill(m, all + size * i, 7);
  std::vector<float> x = floats(5, (size_t)most * cols);
  std::vector<int8_t> q; std::vector<float> sx; std::vector<int32_t> sum;
  quantise_rows(x, most, cols, group, q, sx, sum);
  covey_program p;
  memset(&p, 0, sizeof p);
  p.codes = covey_codes{device(q), device(sx), device(sum)};
  covey_program *dp = device<covey_program>(1);
  canon_op op;
  memset(&op, 0, sizeof op);
  op.m = m; op.dst.width = outs; op.dst.stride = outs; op.dst.data = device<float>((size_t)most * outs);
  int block = covey_block(form, group, CANON_F16), mem_few = few_memory(m.groups, group, DENSE_TILES, 8), mem_many = form == CANON_INT4 ? Many<Form<CANON_INT4, 64, CANON_F16>, 4>::memory(block) : Many<Form<CANON_INT8, 32, CANON_F16>, 4>::memory(block);
  auto few = form == CANON_INT4 ? covey_rows_int4_g64 : covey_rows_int8_g32;
  auto many = form == CANON_INT4 ? covey_matmul_many_int4_g64 : covey_matmul_many_int8_g32;
  CHECK(cudaFuncSetAttribute(few, cudaFuncAttributeMaxDynamicSharedMemorySize, mem_few));
  CHECK(cudaFuncSetAttribute(many, cudaFuncAttributeMaxDynamicSharedMemorySize, mem_many));
  for (int rows : {1, 3, 8, 16, 64, 100, 512, 4096}) {
    p.step.rows = rows;
    CHECK(cudaMemcpy(dp, &p, sizeof p, cudaMemcpyHostToDevice));
    for (bool tiles : {false, true}) {
      if (!tiles && rows > 64) continue;
      auto run = [&](int i, cudaStream_t s) {
        canon_op o = op;
        o.m.codes = all + size * (i % copies);
        if (tiles) many<<<dim3(covey_ceil(outs, 128), covey_ceil(rows, 64)), 256, mem_many, s>>>(o, dp);
        else few<<<dim3(covey_ceil(outs, 16 * DENSE_TILES), covey_ceil(rows, 8)), DENSE_WARPS * 32, mem_few, s>>>(product_of(o), dp, 8, DENSE_TILES);
      };
      CHECK(cudaMemset(op.dst.data, 0xff, (size_t)rows * outs * 4));
      run(0, 0);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      long bad = 0, checked = 0;
      for (int r : {0, rows / 2, rows - 1}) {
        std::vector<float> want(outs);
        reference(m, 7, x.data() + (size_t)r * cols, want.data());
        bad += differing(want.data(), host(op.dst.data + (size_t)r * outs, outs).data(), outs); checked += outs;
      }
      double us = graph_us(rows >= 512 ? 6 : 48, run);
      printf("dense %s g%d [%d, %d] %4d rows, %s: %ld of %ld differ, %8.2f us, %5.0f GB/s (%4.1f %%), %6.1f T multiply-adds/s\n", form == CANON_INT4 ? "int4" : "int8", group, outs, cols, rows, tiles ? "many" : "few ", bad, checked, us,
             size / us / 1e3, size / us / 1e3 / probe * 100, 1.0 * outs * cols * rows / us / 1e6);
    }
  }
  for (void *f : {(void *)all, (void *)p.codes.q, (void *)p.codes.scale, (void *)p.codes.sum, (void *)op.dst.data, (void *)dp}) CHECK(cudaFree(f));
}

void bench_rows(double probe) {
  experts({"A3B", 2048, 768, 128, 8}, probe);
  experts({"OLMoE", 2048, 1024, 64, 8}, probe);
  dense(CANON_INT4, 64, 2048, 5120, probe);
  dense(CANON_INT4, 64, 4096, 2048, probe);
  dense(CANON_INT8, 32, 576, 1000, probe);
}
