// Whole layers of one row, the attention half and the experts in turn as a step launches them, each layer with weights of its own: what
// two kernels cost beyond what each costs alone; and what code costs that has to be fetched.
#define COVEY_ONE_FORM
#include "bench.h"
#define covey_attend_row_d128_int4_g64_f16 layers_attend_row   // attend.cu and row.cu have these two as well
#define covey_moe_row_int4_g64_f16 layers_moe_row
#define attend_exp layers_attend_exp
#define attend_total layers_attend_total
#include "../kernels/attend_row.cu"
#include "../kernels/experts_row.cu"

// ---- code --------------------------------------------------------------------------------------------------------------

// N KB of straight code, run several times; at[i] is the clock before the i-th time.
template <int N, int COPY> __global__ void passes(int times, int64_t *at, float a) {
  float x[4] = {a, a + 1, a + 2, a + 3 + COPY};
  #pragma unroll 1
  for (int i = 0; i < times; i++) {
    if (blockIdx.x == 0 && threadIdx.x == 0) at[i] = clock64();
    #pragma unroll
    for (int k = 0; k < N * 16; k++)
      #pragma unroll
      for (int j = 0; j < 4; j++) x[j] = fmaf(x[j], a, (float)(k * 4 + j + COPY));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) at[times] = clock64();
  if (x[0] + x[1] + x[2] + x[3] == 12345.0f) at[0] = 1;
}
using pass_kernel = void (*)(int, int64_t *, float);
// Cycles an instruction of a kernel's passes, when `before` ran just before it in the same stream.
static void pass(int kb, pass_kernel f, pass_kernel before, const char *name, int threads) {
  int64_t *at = device<int64_t>(8);
  for (int i = 0; i < 3; i++) {
    if (before) before<<<132, threads>>>(1, at, 1);
    f<<<132, threads>>>(4, at, 1);
  }
  CHECK(cudaDeviceSynchronize());
  auto t = host(at, 5);
  printf("%3d KB of code, %3d threads, after %-10s: %5.2f %5.2f %5.2f %5.2f cycles an instruction\n", kb, threads, name, (t[1] - t[0]) / (kb * 64.0), (t[2] - t[1]) / (kb * 64.0), (t[3] - t[2]) / (kb * 64.0), (t[4] - t[3]) / (kb * 64.0));
  CHECK(cudaFree(at));
}
static void code() {
  for (int threads : {32, 256}) {
    pass(8, passes<8, 0>, 0, "itself", threads); pass(16, passes<16, 0>, 0, "itself", threads); pass(32, passes<32, 0>, 0, "itself", threads); pass(48, passes<48, 0>, 0, "itself", threads);
    pass(64, passes<64, 0>, 0, "itself", threads); pass(96, passes<96, 0>, 0, "itself", threads); pass(128, passes<128, 0>, 0, "itself", threads); pass(192, passes<192, 0>, 0, "itself", threads); pass(256, passes<256, 0>, 0, "itself", threads);
    pass(32, passes<32, 0>, passes<8, 0>, "8 KB", threads); pass(32, passes<32, 0>, passes<32, 1>, "32 KB", threads); pass(32, passes<32, 0>, passes<64, 0>, "64 KB", threads);
    pass(32, passes<32, 0>, passes<96, 0>, "96 KB", threads); pass(32, passes<32, 0>, passes<128, 0>, "128 KB", threads); pass(32, passes<32, 0>, passes<256, 0>, "256 KB", threads);
  }
}

// ---- layers ------------------------------------------------------------------------------------------------------------

namespace {
enum { HIDDEN = 2048, HEADS = 32, KV = 4, DIM = 128, INNER = 768, EXPERTS = 128, K = 8, LAYERS = 48, GROUP = 64, POSITION = 1000, PAGES = 16 };
enum { MOST = 232448, HALF = (MOST + 1024) / 2 - 1024 };
}

// The A3B shape at position 1,000.
void bench_layers(double probe) {
  code();
  const canon_matrix parts[4] = {matrix(CANON_INT4, HEADS * DIM, HIDDEN, GROUP), matrix(CANON_INT4, KV * DIM, HIDDEN, GROUP), matrix(CANON_INT4, KV * DIM, HIDDEN, GROUP), matrix(CANON_INT4, HIDDEN, HEADS * DIM, GROUP)};
  int64_t at[5] = {0};
  for (int i = 0; i < 4; i++) at[i + 1] = at[i] + covey_blocks_size(&parts[i]);
  const canon_matrix gate = matrix(CANON_INT4, INNER, HIDDEN, GROUP), down = matrix(CANON_INT4, HIDDEN, INNER, GROUP);
  const int64_t up_at = covey_blocks_size(&gate), down_at = 2 * up_at, record = down_at + covey_blocks_size(&down), layer_bytes = at[4] + record * EXPERTS + (int64_t)EXPERTS * HIDDEN * 4;
  uint8_t *weights = device<uint8_t>(layer_bytes * LAYERS);
  for (int i = 0; i < 4; i++) fill(parts[i], weights + at[i], 100 + i);
  for (int e = 0; e < EXPERTS; e++) {
    uint8_t *r = weights + at[4] + record * e;
    fill(gate, r, 10 * e + 1); fill(gate, r + up_at, 10 * e + 2); fill(down, r + down_at, 10 * e + 3);
  }
  std::vector<float> router = floats(2, (size_t)EXPERTS * HIDDEN), norm = floats(3, HIDDEN), head_norms = floats(5, 2 * DIM), x = floats(1, HIDDEN);
  for (auto &v : router) v *= 0.02f;
  for (auto &v : norm) v = 0.5f + v * v;
  CHECK(cudaMemcpy(weights + at[4] + record * EXPERTS, router.data(), router.size() * 4, cudaMemcpyHostToDevice));
  for (int l = 1; l < LAYERS; l++) CHECK(cudaMemcpy(weights + l * layer_bytes, weights, layer_bytes, cudaMemcpyDeviceToDevice));
  std::vector<void *> table(EXPERTS * LAYERS);
  for (int l = 0; l < LAYERS; l++) for (int e = 0; e < EXPERTS; e++) table[l * EXPERTS + (e * 37 + l * 11) % EXPERTS] = weights + l * layer_bytes + at[4] + record * e;
  void **dtable = device(table);
  std::vector<int32_t> pages(PAGES), one(1, POSITION);
  for (int i = 0; i < PAGES; i++) pages[i] = i * 5 % PAGES;
  covey_program p;
  memset(&p, 0, sizeof p);
  p.step.rows = 1; p.step.positions = device(one); p.step.sequence = device<int32_t>(1); p.step.pages = device(pages); p.step.pages_stride = PAGES; p.step.faults = device<int32_t>(2);
  p.angles[0].cosine = device(floats(7, DIM / 2)); p.angles[0].sine = device(floats(8, DIM / 2)); p.angles[0].rot = DIM;
  covey_program *dp = device(std::vector<covey_program>(1, p));
  float *row = device(x), *middle = device<float>(HIDDEN), *dnorm = device(norm);

  covey_attend a;
  memset(&a, 0, sizeof a);
  a.hidden = HIDDEN; a.x = row; a.norm = dnorm; a.eps = a.heads.eps = 1e-6f; a.scale = canon_float(0x3db504f3u); a.y = middle;
  a.heads.heads = HEADS; a.heads.rot = DIM; a.heads.q_norm = device(head_norms); a.heads.k_norm = a.heads.q_norm + DIM;
  a.heads.kv.data = device<uint8_t>((size_t)PAGES * LAYERS * KV * DIM * 256); a.heads.kv.form = CANON_F16; a.heads.kv.layers = LAYERS; a.heads.kv.heads = KV; a.heads.kv.dim = DIM; a.heads.kv.pages = PAGES;
  a.blocks = covey_ceil(POSITION + 1, CANON_BLOCK);
  const int64_t words = covey_attend_exchange(HEADS, KV, DIM, a.blocks);
  a.exchange = device<float>(words + 1);
  a.finished = (uint32_t *)(a.exchange + words);
  CHECK(cudaMemset(a.exchange, 0xff, words * 4));
  a.together = 2;
  if (!covey_attend_sizes(&a, GROUP, CANON_SEGMENT / GROUP * covey_block(CANON_INT4, GROUP, CANON_F16), 132, HALF)) return;
  CHECK(cudaFuncSetAttribute(layers_attend_row, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST));

  covey_moe m;
  memset(&m, 0, sizeof m);
  m.hidden = HIDDEN; m.inner = INNER; m.experts = EXPERTS; m.k = K; m.x = m.residual = middle; m.y = row; m.eps = 1e-6f; m.norm = dnorm;
  m.router_form = CANON_F32; m.groups = m.keep = 1; m.scale = 1; m.normalise = 1; m.ids = device<int32_t>(K); m.weights = device<float>(K);
  m.up_at = up_at; m.down_at = down_at;
  m.router = weights + at[4] + record * EXPERTS;
  if (covey_moe_sized(&m, GROUP, CANON_SEGMENT / GROUP * covey_block(CANON_INT4, GROUP, CANON_F16), 132, HALF) < 4) return;
  const size_t half = 2 * (size_t)m.at.words;
  m.exchange = device<uint32_t>(half + 1);
  m.finished = m.exchange + half;
  CHECK(cudaMemset(m.exchange, 0xff, half * 4));
  CHECK(cudaFuncSetAttribute(layers_moe_row, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST));
  printf("layers: attention in %d slots, experts in %d\n", a.at.slots, m.at.slots);

  auto overlapped = [](cudaLaunchConfig_t &c, cudaLaunchAttribute &attribute, int threads, int memory, cudaStream_t s) {
    c.gridDim = dim3(132); c.blockDim = dim3(threads); c.dynamicSmemBytes = memory; c.stream = s;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &attribute; c.numAttrs = 1;
  };
  auto attend = [&](int l, cudaStream_t s) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attribute;
    overlapped(c, attribute, ATTEND_THREADS + 32, HALF, s);
    covey_attend b = a;
    for (int i = 0; i < 3; i++) b.weights[i] = weights + l * layer_bytes + at[i];
    b.output = weights + l * layer_bytes + at[3];
    b.heads.layer = l;
    CHECK(cudaLaunchKernelEx(&c, layers_attend_row, b, (const covey_program *)dp));
  };
  auto experts = [&](int l, cudaStream_t s) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attribute;
    overlapped(c, attribute, MOE_ALL * 32, HALF, s);
    covey_moe b = m;
    b.table = dtable + l * EXPERTS;
    b.router = weights + l * layer_bytes + at[4] + record * EXPERTS;
    CHECK(cudaLaunchKernelEx(&c, layers_moe_row, b, (const covey_program *)0));
  };
  const double bytes = at[4] + K * record + (double)EXPERTS * HIDDEN * 4 + (POSITION + 1) * KV * DIM * 4.0;
  for (int layers : {(int)LAYERS, 4}) {
    const double first = graph_us(LAYERS, [&](int i, cudaStream_t s) { attend(i % layers, s); });
    const double second = graph_us(LAYERS, [&](int i, cudaStream_t s) { experts(i % layers, s); });
    const double both = graph_us(LAYERS, [&](int i, cudaStream_t s) { attend(i % layers, s); experts(i % layers, s); });
    const double pairs = graph_us(LAYERS, [&](int i, cudaStream_t s) {   // the same launches, each kernel eight times in a row
      if (i % 8 == 0) for (int j = 0; j < 8; j++) attend((i + j) % layers, s);
      if (i % 8 == 0) for (int j = 0; j < 8; j++) experts((i + j) % layers, s);
    });
    printf("A3B, weights of %2d layers: attention %6.2f us, experts %6.2f us, in turn %6.2f us, eight and eight %6.2f us, %5.1f MB, %5.1f %%\n", layers, first, second, both, pairs, bytes / 1e6, bytes / both / 1e3 / probe * 100);
  }
}
