// Dense products of every integer form against the scalar rule, all outputs compared: short inputs and tails, 1 to 100 rows,
// rows of zeros, denormals, amax on both sides of 2^-100, infinities and NaN, extreme codes.
#include "bench.h"
#define covey_rows_int4_g64 edges_rows_int4_g64   // rows.cu has these two forms as well
#define covey_matmul_many_int4_g64 edges_many_int4_g64
#define covey_rows_int8_g32 edges_rows_int8_g32
#define covey_matmul_many_int8_g32 edges_many_int8_g32
#include "../kernels/matmul.cu"

static std::vector<float> rows_of(int rows, int cols) {
  std::vector<float> x = floats(41, (size_t)rows * cols);
  auto at = [&](int r, int c) -> float & { return x[(size_t)r * cols + c]; };
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < cols; c++) switch (r % 9) {
      case 1: at(r, c) = 0; break;
      case 2: at(r, c) *= 0x1p-100f; break;                                  // some groups below 2^-100, some above
      case 3: at(r, c) *= 0x1p-140f; break;
      case 4: at(r, c) = c % 2 ? 127.0f : -127.0f; break;                    // extreme codes everywhere
      case 5: if (c % 97 == 5) at(r, c) = c % 2 ? canon_inf() : -canon_inf(); break;
      case 6: if (c % 131 == 7) at(r, c) = canon_nan(); break;
      case 7: at(r, c) = c % 64 < 32 ? 0.0f : at(r, c) * 1e30f; break;
      case 8: at(r, c) = (c % 254 - 126.5f) * 0.5f; break;                   // ties of the rounding
    }
  return x;
}

using run_few = void (*)(covey_rows, const covey_program *, int, int);
using run_many = void (*)(canon_op, const covey_program *);

static void check(int form, int group, run_few few, run_many many, int memory_of_many) {
  long all = 0, bad_few = 0, bad_many = 0;
  for (int cols : {32, 96, 160, 576, 2880}) {
    const int outs = 40, most = 100;
    canon_matrix m = matrix(form, outs, cols, group);
    uint8_t *w = device<uint8_t>(covey_blocks_size(&m));
    fill(m, w, 3);
    std::vector<float> x = rows_of(most, cols);
    std::vector<int8_t> q((size_t)most * m.groups * group, 0);
    std::vector<float> sx((size_t)most * m.groups);
    std::vector<int32_t> sum((size_t)most * m.groups);
    for (int r = 0; r < most; r++)
      for (int g = 0; g < m.groups; g++)
        canon_quantise(x.data() + (size_t)r * cols + g * group, std::min(group, cols - g * group), q.data() + ((size_t)r * m.groups + g) * group, &sx[(size_t)r * m.groups + g], &sum[(size_t)r * m.groups + g]);
    std::vector<float> want((size_t)most * outs);
    for (int r = 0; r < most; r++) reference(m, 3, x.data() + (size_t)r * cols, want.data() + (size_t)r * outs);
    covey_program p;
    memset(&p, 0, sizeof p);
    p.codes = covey_codes{device(q), device(sx), device(sum)};
    covey_program *dp = device<covey_program>(1);
    canon_op op;
    memset(&op, 0, sizeof op);
    op.m = m; op.m.codes = w; op.dst.width = op.dst.stride = outs; op.dst.data = device<float>((size_t)most * outs);
    int memory_of_few = few_memory(m.groups, group, DENSE_TILES, 8);
    CHECK(cudaFuncSetAttribute((const void *)few, cudaFuncAttributeMaxDynamicSharedMemorySize, memory_of_few));
    CHECK(cudaFuncSetAttribute((const void *)many, cudaFuncAttributeMaxDynamicSharedMemorySize, memory_of_many));
    for (int rows : {1, 3, 8, 9, 64, 100})
      for (bool tiles : {false, true}) {
        p.step.rows = rows;
        CHECK(cudaMemcpy(dp, &p, sizeof p, cudaMemcpyHostToDevice));
        CHECK(cudaMemset(op.dst.data, 0x55, (size_t)most * outs * 4));
        if (tiles) many<<<dim3(covey_ceil(outs, 128), covey_ceil(rows, 64)), 256, memory_of_many>>>(op, dp);
        else few<<<dim3(covey_ceil(outs, 16 * DENSE_TILES), covey_ceil(rows, 8)), DENSE_WARPS * 32, memory_of_few>>>(product_of(op), dp, 8, DENSE_TILES);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        long bad = differing(want.data(), host(op.dst.data, (size_t)rows * outs).data(), (long)rows * outs);
        (tiles ? bad_many : bad_few) += bad;
        all += (long)rows * outs;
      }
    for (void *f : {(void *)w, (void *)p.codes.q, (void *)p.codes.scale, (void *)p.codes.sum, (void *)op.dst.data, (void *)dp}) CHECK(cudaFree(f));
  }
  printf("%s g%-3d: %ld outputs each way, few: %ld differ, many: %ld differ\n", form == CANON_INT4 ? "int4" : "int8", group, all / 2, bad_few, bad_many);
}

void bench_edges() {
  auto many = [](auto f, int form, int group) { using F = decltype(f); return Many<F, 4>::memory(covey_block(form, group, CANON_F16)); };
  check(CANON_INT4, 32, covey_rows_int4_g32, covey_matmul_many_int4_g32, many(Form<CANON_INT4, 32, CANON_F16>(), CANON_INT4, 32));
  check(CANON_INT4, 64, covey_rows_int4_g64, covey_matmul_many_int4_g64, many(Form<CANON_INT4, 64, CANON_F16>(), CANON_INT4, 64));
  check(CANON_INT4, 128, covey_rows_int4_g128, covey_matmul_many_int4_g128, many(Form<CANON_INT4, 128, CANON_F16>(), CANON_INT4, 128));
  check(CANON_INT8, 32, covey_rows_int8_g32, covey_matmul_many_int8_g32, many(Form<CANON_INT8, 32, CANON_F16>(), CANON_INT8, 32));
  check(CANON_INT8, 64, covey_rows_int8_g64, covey_matmul_many_int8_g64, many(Form<CANON_INT8, 64, CANON_F16>(), CANON_INT8, 64));
  check(CANON_INT8, 128, covey_rows_int8_g128, covey_matmul_many_int8_g128, many(Form<CANON_INT8, 128, CANON_F16>(), CANON_INT8, 128));
}
