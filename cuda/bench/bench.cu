// Bench of the CUDA kernels without Go: nvcc builds it, it needs a device. `bench [section ...]`: latency, row.
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
  size_t pieces = n / bytes, step = gridDim.x, next = blockIdx.x;
  size_t mine = next < pieces ? (pieces - next - 1) / step + 1 : 0;
  for (size_t i = 0; i < mine + slots; i++) {
    int slot = (int)(i % slots);
    if (i >= (size_t)slots) barrier_wait(&full[slot], (uint32_t)((i / slots - 1) & 1));
    if (i < mine) {
      barrier_expect(&full[slot], bytes);
      bulk_load(ring + (size_t)slot * bytes, p + (blockIdx.x + i * step) * bytes, bytes, &full[slot], policy);
    }
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
__global__ void meet(uint64_t *c, int times) {
  for (int i = 0; i < times; i++) {
    __syncthreads();
    if (threadIdx.x == 0) {
      uint64_t target = count_read(c) / gridDim.x * gridDim.x + gridDim.x;
      count_add(c);
      for (uint32_t spin = 0; count_read(c) < target; spin++) if (spin == 1u << 24) __trap();
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
static void latency() {
  printf("empty kernel, 132 blocks: %.2f us in a graph, %.2f us launched\n", graph_us(200, [](int, cudaStream_t s) { nothing<<<132, 256, 0, s>>>(); }),
         plain_us(200, [](int, cudaStream_t s) { nothing<<<132, 256, 0, s>>>(); }));
  printf("the same, overlapped launch: %.2f us in a graph, %.2f us launched\n", graph_us(200, [](int, cudaStream_t s) { launch_overlapped(nothing_overlapped, s); }),
         plain_us(200, [](int, cudaStream_t s) { launch_overlapped(nothing_overlapped, s); }));
  uint64_t *c = device<uint64_t>(1);
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
  if (wants("latency")) latency();
  if (wants("row")) bench_row(probe);
  return 0;
}
