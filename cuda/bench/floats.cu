// Dense products with float weights: tiles of several geometries beside one another, held to canon_dot.
#include "bench.h"
#include "../kernels/floats.cu"

template <int FORM, class TILE> __global__ __launch_bounds__(TILE::threads) void tile_kernel(const __grid_constant__ canon_op op, const covey_program *p) { floats_tile<FORM, TILE>(op, p, 0); }
template <int FORM, class TILE> __global__ __launch_bounds__(TILE::threads, 2) void tile_kernel2(const __grid_constant__ canon_op op, const covey_program *p) { floats_tile<FORM, TILE>(op, p, 0); }

static uint32_t raw_of(int form, uint32_t seed, uint32_t i) {
  float f = unit_float(seed, i) * 0.0625f;
  if (form == CANON_FP8) return hash32(seed, i, 3) & 0xbf;
  return form == CANON_F32 ? canon_bits(f) : form == CANON_BF16 ? canon_bits(f) >> 16 : canon_to_f16(f);
}
static float value_of(int form, uint32_t raw) {
  if (form == CANON_FP8) return canon_from_e4m3((uint8_t)raw);
  return form == CANON_F32 ? canon_float(raw) : form == CANON_BF16 ? canon_from_bf16((uint16_t)raw) : canon_from_f16((uint16_t)raw);
}
template <class T> __global__ void fill_raw(T *p, size_t n, size_t period, const T *from) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = from[i % period];
}

struct float_bench {
  int form, outs, cols, copies, most;
  uint8_t *all;
  size_t bytes;
  canon_op op;
  covey_program p, *dp;
  std::vector<float> x;
  std::vector<float> scales;
  double probe;
};
// Weights repeat with this period of rows, so that the host can make them all.
enum { PERIOD = 512 };

static float want(const float_bench &b, int row, int o) {
  std::vector<float> w(b.cols);
  for (int c = 0; c < b.cols; c++) w[c] = value_of(b.form, raw_of(b.form, 9, (uint32_t)((o % PERIOD) * b.cols + c)));
  const float *x = b.x.data() + (size_t)row * b.cols;
  if (b.form != CANON_FP8) return canon_dot(w.data(), x, b.cols);
  return canon_block_dot(w.data(), b.scales.data() + o / 128 * ((b.cols + 127) / 128), x, b.cols, 128);
}

template <class K> static void time_kernel(const char *name, K kernel, int threads, int memory, int block_outs, int block_rows, float_bench &b, std::initializer_list<int> rows_list) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, memory));
  cudaFuncAttributes a;
  CHECK(cudaFuncGetAttributes(&a, kernel));
  for (int rows : rows_list) {
    b.p.step.rows = rows;
    CHECK(cudaMemcpy(b.dp, &b.p, sizeof b.p, cudaMemcpyHostToDevice));
    auto run = [&](int i, cudaStream_t s) {
      canon_op o = b.op;
      o.m.codes = b.all + b.bytes * (i % b.copies);
      cudaLaunchConfig_t c = {};
      c.gridDim = dim3(covey_ceil(rows, block_rows), covey_ceil(b.outs, block_outs)); c.blockDim = dim3(threads); c.stream = s; c.dynamicSmemBytes = memory;
      cudaLaunchAttribute at[1];
      at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      at[0].val.programmaticStreamSerializationAllowed = 1;
      c.attrs = at; c.numAttrs = 1;
      CHECK(cudaLaunchKernelEx(&c, kernel, (const canon_op)o, (const covey_program *)b.dp));
    };
    CHECK(cudaMemset(b.op.dst.data, 0xff, (size_t)rows * b.outs * 4));
    run(0, 0);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    long bad = 0, checked = 0;
    for (int r : {0, rows / 2, rows - 1}) {
      auto got = host(b.op.dst.data + (size_t)r * b.outs, b.outs);
      for (int o = 0; o < b.outs; o += b.outs > 60 ? b.outs / 60 : 1) { bad += !same_bits(want(b, r, o), got[o]); checked++; }
    }
    double us = graph_us(rows >= 128 && b.outs > 1000 ? 6 : 32, run);
    printf("%-4s [%d, %d] %4d rows, %-16s %3d regs %d blocks: %ld of %ld differ, %9.2f us, %5.0f GB/s (%4.1f %%), %5.1f T multiply-adds/s\n", b.form == CANON_F32 ? "f32" : b.form == CANON_F16 ? "f16" : b.form == CANON_BF16 ? "bf16" : "fp8", b.outs, b.cols, rows, name,
           a.numRegs, blocks, bad, checked, us, b.bytes / us / 1e3, b.bytes / us / 1e3 / b.probe * 100, 1.0 * b.outs * b.cols * rows / us / 1e6);
  }
}
template <int FORM, int OUTS, int ROWS, int OUT_WARPS, int STAGES, int RESIDENT = 1, int WARPS = 8> static void time_tile(float_bench &b, std::initializer_list<int> rows) {
  using T = float_tile<FORM, OUTS, ROWS, WARPS, OUT_WARPS, STAGES>;
  char name[64];
  snprintf(name, sizeof name, "%dx%d w%d/%d s%d", OUTS, ROWS, OUT_WARPS, WARPS, STAGES);
  if constexpr (RESIDENT == 1) time_kernel(name, tile_kernel<FORM, T>, T::threads, T::memory, T::block_outs, T::block_rows, b, rows);
  else time_kernel(name, tile_kernel2<FORM, T>, T::threads, T::memory, T::block_outs, T::block_rows, b, rows);
}

static float_bench prepare(int form, int outs, int cols, int most, double probe) {
  float_bench b;
  int size = covey_form_bytes(form);
  b.form = form; b.outs = outs; b.cols = cols; b.most = most; b.probe = probe;
  b.bytes = (size_t)outs * cols * size;
  b.copies = std::max<int>(1, (int)(((size_t)1 << 30) / b.bytes));
  b.all = device<uint8_t>(b.bytes * b.copies);
  size_t n = (size_t)PERIOD * cols;
  std::vector<uint8_t> raw(n * size);
  for (size_t i = 0; i < n; i++) { uint32_t v = raw_of(form, 9, (uint32_t)i); memcpy(raw.data() + i * size, &v, size); }
  uint8_t *from = device(raw);
  if (size == 4) fill_raw<<<1024, 256>>>((uint32_t *)b.all, b.bytes * b.copies / 4, n, (const uint32_t *)from);
  else if (size == 2) fill_raw<<<1024, 256>>>((uint16_t *)b.all, b.bytes * b.copies / 2, n, (const uint16_t *)from);
  else fill_raw<<<1024, 256>>>(b.all, b.bytes * b.copies, n, from);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(from));
  b.x = floats(5, (size_t)most * cols);
  memset(&b.p, 0, sizeof b.p);
  b.dp = device<covey_program>(1);
  memset(&b.op, 0, sizeof b.op);
  b.op.kind = CANON_OP_MATMUL;
  b.op.m.form = form; b.op.m.rows = outs; b.op.m.cols = cols; b.op.m.block_rows = b.op.m.block_cols = 128; b.op.m.blocks = (cols + 127) / 128; b.op.m.scale_form = CANON_F32;
  b.scales.resize((size_t)covey_ceil(outs, 128) * b.op.m.blocks);
  for (size_t i = 0; i < b.scales.size(); i++) b.scales[i] = 0.01f + 0.0001f * (i % 97);
  b.op.m.scales = (uint8_t *)device(b.scales);
  b.op.src.data = device(b.x); b.op.src.width = b.op.src.stride = cols;
  b.op.dst.data = device<float>((size_t)most * outs); b.op.dst.width = b.op.dst.stride = outs;
  return b;
}
static void done(float_bench &b) { for (void *f : {(void *)b.all, (void *)b.dp, (void *)b.op.m.scales, (void *)b.op.src.data, (void *)b.op.dst.data}) CHECK(cudaFree(f)); }

// Multiply-adds alone: N of them on N accumulators, REPEAT times in the loop's body.
template <int N, int REPEAT> __global__ void fma_code(float *out, float a, float b, int times) {
  float acc[N], w[8], x[16];
  #pragma unroll
  for (int i = 0; i < N; i++) acc[i] = threadIdx.x;
  #pragma unroll
  for (int i = 0; i < 8; i++) w[i] = a + threadIdx.x * i;
  #pragma unroll
  for (int i = 0; i < 16; i++) x[i] = b + threadIdx.x * i;
  #pragma unroll 1
  for (int t = 0; t < times; t += REPEAT) {
    #pragma unroll
    for (int k = 0; k < REPEAT; k++)
      #pragma unroll
      for (int i = 0; i < N; i++) acc[i] = fmaf(w[(i + k) % 8], x[i / 8 % 16], acc[i]);
  }
  float sum = 0;
  #pragma unroll
  for (int i = 0; i < N; i++) sum += acc[i];
  if (sum == 12345.0f) *out = sum;
}
static void peaks() {
  float *out = device<float>(1);
  auto line = [&](const char *name, auto kernel, int n, int threads) {
    const int times = 65536 / n * 16;
    double us = graph_us(4, [&](int, cudaStream_t s) { kernel<<<132, threads, 0, s>>>(out, 1.0f, 2.0f, times); });
    printf("multiply-adds alone, %s, %d warps: %.1f T/s\n", name, threads / 32, 132.0 * threads * n * times / us / 1e6);
  };
  for (int threads : {128, 256, 512}) {
    line("64 in the body", fma_code<64, 1>, 64, threads);
    if (threads < 512) line("128 in the body", fma_code<128, 1>, 128, threads);
    line("4 x 64", fma_code<64, 4>, 64, threads);
    line("8 x 64", fma_code<64, 8>, 64, threads);
    line("16 x 64", fma_code<64, 16>, 64, threads);
    line("32 x 64", fma_code<64, 32>, 64, threads);
  }
  CHECK(cudaFree(out));
}

template <int FORM> static void all_tiles(int outs, int cols, int most, double probe) {
  float_bench b = prepare(FORM, outs, cols, most, probe);
  bool head = outs > 100000;
  if (outs < 1000) {
    time_tile<FORM, 1, 4, 8, 8>(b, {1, 4, 16, 64});
    time_tile<FORM, 1, 4, 8, 16>(b, {4, 16, 64});
    time_tile<FORM, 2, 4, 8, 8>(b, {4, 16, 64});
    time_tile<FORM, 1, 8, 8, 8>(b, {4, 16, 64});
    time_tile<FORM, 1, 2, 8, 8>(b, {4, 16, 64});
    time_tile<FORM, 1, 4, 4, 8, 1, 4>(b, {4, 16, 64});
    time_tile<FORM, 4, 4, 8, 5, 2>(b, {4, 16, 64, 512});
    time_tile<FORM, 8, 8, 4, 4, 2>(b, {64, 512});
    done(b);
    return;
  }
  time_tile<FORM, 4, 1, 8, 8, 2>(b, {1});
  time_tile<FORM, 4, 1, 8, 10, 2>(b, {1});
  time_tile<FORM, 4, 4, 8, 5, 2>(b, {4});
  time_tile<FORM, 4, 4, 8, 8, 2>(b, {4});
  time_tile<FORM, 2, 4, 8, 8, 2>(b, {4});
  time_tile<FORM, 8, 4, 8, 4, 2>(b, {4});
  time_tile<FORM, 8, 8, 8, 4, 2>(b, {8});
  time_tile<FORM, 8, 8, 4, 4, 2>(b, {8, 16, 64});
  time_tile<FORM, 8, 8, 4, 4, 1, 16>(b, {16, 32, 64});
  if (!head) {
    time_tile<FORM, 8, 16, 4, 4>(b, {32, 512});
    time_tile<FORM, 8, 8, 4, 4, 2>(b, {512});
  }
  done(b);
}

void bench_floats(double probe) {
  peaks();
  all_tiles<CANON_BF16>(128, 2048, 512, probe);
  all_tiles<CANON_BF16>(4096, 4096, 512, probe);
  all_tiles<CANON_BF16>(151936, 2048, 64, probe);
  all_tiles<CANON_FP8>(4096, 4096, 512, probe);
}
