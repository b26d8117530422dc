// Bench of the CUDA kernels without Go: nvcc builds it, it needs a device. `bench [section ...]`: latency, row, rows, attention, attend, layers, edges, floats.
#include "bench.h"
#include "../kernels/ptx.cuh"

__global__ void fill_kernel(canon_matrix m, uint8_t *base, uint32_t seed) {
  int per = m.form == CANON_INT4 ? 8 : 4;
  int64_t words = covey_ceil(m.cols, per), n = m.rows * words;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
    int32_t row = (int32_t)(i / words), word = (int32_t)(i % words), high;
    uint32_t v = code_word(seed, row, word), packed = 0;
    if (m.form == CANON_INT4) {
      for (int b = 0; b < 4; b++) packed |= (v >> (4 * b) & 15) << (8 * b) | (v >> (4 * (b + 4)) & 15) << (8 * b + 4);
    } else {
      packed = v ^ 0x80808080u;
    }
    *(uint32_t *)(base + covey_code_at(&m, row, word * per, &high)) = packed;
    int32_t col = word * per;
    if (col % m.group == 0) *(uint16_t *)(base + covey_scale_at(&m, row, col / m.group)) = scale_bits(seed, row, col / m.group);
  }
}
void fill(const canon_matrix &m, uint8_t *base, uint32_t seed) {
  fill_kernel<<<1024, 256>>>(m, base, seed);
  CHECK(cudaGetLastError());
}

static double median(std::vector<double> t) { std::sort(t.begin(), t.end()); return t[t.size() / 2]; }
static double timed(int rounds, cudaStream_t s, const std::function<void()> &f) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a)); CHECK(cudaEventCreate(&b));
  std::vector<double> t;
  for (int i = 0; i < rounds + 3; i++) {
    CHECK(cudaEventRecord(a, s));
    f();
    CHECK(cudaEventRecord(b, s));
    CHECK(cudaEventSynchronize(b));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3) t.push_back(ms * 1e3);
  }
  CHECK(cudaEventDestroy(a)); CHECK(cudaEventDestroy(b));
  return median(t);
}
double graph_us(int n, const std::function<void(int, cudaStream_t)> &f) {
  cudaStream_t s;
  cudaGraph_t g;
  cudaGraphExec_t e;
  CHECK(cudaStreamCreate(&s));
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < n; i++) f(i, s);
  CHECK(cudaStreamEndCapture(s, &g));
  CHECK(cudaGraphInstantiate(&e, g, 0));
  double us = timed(15, s, [&] { CHECK(cudaGraphLaunch(e, s)); }) / n;
  CHECK(cudaGraphExecDestroy(e)); CHECK(cudaGraphDestroy(g)); CHECK(cudaStreamDestroy(s));
  return us;
}
double plain_us(int n, const std::function<void(int, cudaStream_t)> &f) {
  cudaStream_t s;
  CHECK(cudaStreamCreate(&s));
  double us = timed(7, s, [&] { for (int i = 0; i < n; i++) f(i, s); }) / n;
  CHECK(cudaStreamDestroy(s));
  return us;
}

// ---- read probe --------------------------------------------------------------------------------------------------------

__global__ void read_lines(const uint4 *p, size_t n, uint4 *out) {
  uint4 a = make_uint4(0, 0, 0, 0);
  size_t stride = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    #pragma unroll
    for (int j = 0; j < 4; j++) { uint4 v = __ldcs(p + i + j * stride); a.x ^= v.x; a.y ^= v.y; a.z ^= v.z; a.w ^= v.w; }
  }
  if (a.x == 0x12345 && a.y == 77) out[0] = a;
}
__global__ __launch_bounds__(32, 1) void read_bulk(const uint8_t *p, size_t n, int bytes, int slots) {
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t *full = (uint64_t *)memory;
  uint8_t *ring = memory + 1024;
  if (threadIdx.x) return;
  uint64_t policy = read_once();
  for (int i = 0; i < slots; i++) barrier_init(&full[i], 1);
  barrier_init_done();
  uint32_t pieces = (uint32_t)(n / bytes), step = gridDim.x, mine = blockIdx.x < pieces ? (pieces - blockIdx.x - 1) / step + 1 : 0;
  const uint8_t *from = p + (size_t)blockIdx.x * bytes;
  int slot = 0;
  uint32_t parity = 1;
  for (uint32_t i = 0; i < mine + slots; i++) {
    if (i >= (uint32_t)slots) barrier_wait(&full[slot], parity);
    if (i < mine) {
      barrier_expect(shared_address(&full[slot]), bytes);
      bulk_load(shared_address(ring + slot * bytes), from, bytes, shared_address(&full[slot]), policy);
      from += (size_t)step * bytes;
    }
    if (++slot == slots) { slot = 0; parity ^= 1; }
  }
}
double read_probe() {
  size_t n = (size_t)3 << 30;
  uint8_t *p = device<uint8_t>(n);
  canon_matrix m = matrix(CANON_INT4, 16 * 1024, 64 * 1024, 64);
  fill(m, p, 5);
  uint4 *out = device<uint4>(1);
  cudaStream_t s;
  CHECK(cudaStreamCreate(&s));
  double best = 0;
  for (int blocks : {132 * 8, 132 * 16, 132 * 32}) {
    double us = timed(7, s, [&] { read_lines<<<blocks, 256, 0, s>>>((const uint4 *)p, n / 16, out); });
    printf("read probe, loads, %d blocks: %.0f GB/s\n", blocks, n / us / 1e3);
    best = std::max(best, n / us / 1e3);
  }
  CHECK(cudaFuncSetAttribute(read_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  for (int bytes : {4352, 8704, 17408}) {
    int slots = std::min(100, (232448 - 1024) / bytes);
    double us = timed(7, s, [&] { read_bulk<<<132, 32, 232448, s>>>(p, n, bytes, slots); });
    CHECK(cudaGetLastError());
    printf("read probe, bulk copies of %d bytes, %d slots: %.0f GB/s\n", bytes, slots, n / us / 1e3);
    best = std::max(best, n / us / 1e3);
  }
  for (size_t mb : {27, 160}) {
    size_t k = mb * 1000000 / 17408 * 17408;
    double us = graph_us(32, [&](int i, cudaStream_t st) { read_bulk<<<132, 32, 232448, st>>>(p + (size_t)(i % 16) * (n / 16) / 128 * 128, k, 17408, 13); });
    printf("read probe, bulk copies, %zu MB a launch in a graph: %.2f us, %.0f GB/s\n", mb, us, k / us / 1e3);
  }
  CHECK(cudaStreamDestroy(s)); CHECK(cudaFree(p)); CHECK(cudaFree(out));
  printf("read bandwidth: %.0f GB/s\n", best);
  return best;
}

// ---- latencies ---------------------------------------------------------------------------------------------------------

__global__ void nothing() {}
__global__ void nothing_overlapped() { let_next_start(); wait_for_previous(); }
__global__ void meet(uint32_t *c, int times) {
  for (int i = 0; i < times; i++) {
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t target = (count_read(c) / gridDim.x + 1) * gridDim.x;
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(c) : "memory");
      for (uint32_t spin = 0; count_read(c) < target; spin++) if (spin == 1u << 22) __trap();
    }
    __syncthreads();
  }
}
static void launch_overlapped(void (*f)(), cudaStream_t s) {
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(132); c.blockDim = dim3(256); c.stream = s;
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  a[0].val.programmaticStreamSerializationAllowed = 1;
  c.attrs = a; c.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&c, f));
}

__global__ void spin(uint64_t *out, uint64_t cycles) {
  uint64_t t0, t1;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t0));
  uint64_t c0 = clock64();
  while (clock64() - c0 < cycles) {}
  uint64_t c1 = clock64();
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t1));
  if (threadIdx.x == 0 && blockIdx.x == 0) { out[0] = c1 - c0; out[1] = t1 - t0; }
}
double clock_mhz(uint64_t cycles) {
  uint64_t *out = device<uint64_t>(2);
  spin<<<132, 32>>>(out, cycles);
  auto v = host(out, 2);
  CHECK(cudaFree(out));
  return v[1] ? v[0] * 1e3 / v[1] : 0;
}
// Straight-line code of N KB, run once by one warp of each block.
template <int N> __global__ void straight(float *p, float a) {
  float x[4] = {a, a + 1, a + 2, a + 3};
  #pragma unroll
  for (int i = 0; i < N * 16; i++) {
    #pragma unroll
    for (int j = 0; j < 4; j++) x[j] = fmaf(x[j], a, (float)(i * 4 + j));
  }
  if (x[0] + x[1] + x[2] + x[3] == 12345.0f) *p = 1;
}
// N loads, each from the address that the one before gave.
__global__ void chase(const uint32_t *p, int n, uint32_t *out) {
  uint32_t at = blockIdx.x * 64;
  for (int i = 0; i < n; i++) at = __ldcg(p + at);
  if (at == 0xffffffff) *out = at;
}
struct big { float f[180]; };
__global__ void arguments(const __grid_constant__ big b, float *p) { if (b.f[20] + b.f[60] + b.f[100] + b.f[140] + b.f[179] == 12345.0f) *p = 1; }

static void latency() {
  for (int i = 0; i < 3; i++) printf("clock: %.0f MHz over 2e5 cycles, %.0f over 2e7\n", clock_mhz(200000), clock_mhz(20000000));
  float *f = device<float>(64);
  printf("straight code, 132 blocks of a warp: 1 KB %.2f us, 4 KB %.2f us, 16 KB %.2f us, 64 KB %.2f us\n", graph_us(100, [&](int, cudaStream_t s) { straight<1><<<132, 32, 0, s>>>(f, 1); }),
         graph_us(100, [&](int, cudaStream_t s) { straight<4><<<132, 32, 0, s>>>(f, 1); }), graph_us(100, [&](int, cudaStream_t s) { straight<16><<<132, 32, 0, s>>>(f, 1); }), graph_us(100, [&](int, cudaStream_t s) { straight<64><<<132, 32, 0, s>>>(f, 1); }));
  std::vector<uint32_t> next(1 << 20);
  for (uint32_t i = 0; i < next.size(); i++) next[i] = (i * 4099u + 77777u) & ((1 << 20) - 1);
  uint32_t *dn = device(next);
  for (int n : {1, 2, 5, 21}) printf("%d dependent loads: %.2f us\n", n, graph_us(100, [&](int, cudaStream_t s) { chase<<<132, 32, 0, s>>>(dn, n, (uint32_t *)f); }));
  big b = {};
  printf("720 bytes of arguments: %.2f us\n", graph_us(100, [&](int, cudaStream_t s) { arguments<<<132, 32, 0, s>>>(b, f); }));
  CHECK(cudaFree(f)); CHECK(cudaFree(dn));
  printf("empty kernel, 132 blocks: %.2f us in a graph, %.2f us launched\n", graph_us(200, [](int, cudaStream_t s) { nothing<<<132, 256, 0, s>>>(); }),
         plain_us(200, [](int, cudaStream_t s) { nothing<<<132, 256, 0, s>>>(); }));
  printf("the same, overlapped launch: %.2f us in a graph, %.2f us launched\n", graph_us(200, [](int, cudaStream_t s) { launch_overlapped(nothing_overlapped, s); }),
         plain_us(200, [](int, cudaStream_t s) { launch_overlapped(nothing_overlapped, s); }));
  uint32_t *c = device<uint32_t>(1);
  for (int times : {1, 11}) printf("%d meetings of 132 blocks: %.2f us\n", times, graph_us(50, [&](int, cudaStream_t s) { meet<<<132, 320, 0, s>>>(c, times); }));
  CHECK(cudaFree(c));
}

int main(int n, char **arg) {
  setvbuf(stdout, 0, _IOLBF, 0);
  cudaDeviceProp d;
  CHECK(cudaGetDeviceProperties(&d, 0));
  printf("%s, %d multiprocessors, %d KiB shared memory a block, %d MiB L2\n", d.name, d.multiProcessorCount, (int)(d.sharedMemPerBlockOptin >> 10), d.l2CacheSize >> 20);
  auto wants = [&](const char *s) { if (n == 1) return true; for (int i = 1; i < n; i++) if (!strcmp(arg[i], s)) return true; return false; };
  double probe = read_probe();
  printf("clock after the probe: %.0f MHz\n", clock_mhz(200000));
  if (wants("latency")) latency();
  if (wants("row")) bench_row(probe);
  if (wants("rows")) bench_rows(probe);
  if (wants("attention")) bench_attention();
  if (wants("attend")) bench_attend(probe);
  if (wants("layers")) bench_layers(probe);
  if (wants("edges")) bench_edges();
  if (wants("floats")) bench_floats(probe);
  return 0;
}
