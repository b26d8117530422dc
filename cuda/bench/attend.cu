// The attention half of a layer for one row (attend_row.cu): equality with the scalar rule, all outputs, and time by heads of a unit
// and shared memory.
#define COVEY_ONE_FORM
#include "bench.h"
#include "../kernels/attend_row.cu"

namespace {
struct shape { const char *name; int hidden, heads, kv, dim, layers; };
enum { POSITIONS = 8192, PAGES = POSITIONS / 64, GROUP = 64 };

CANON_FN uint16_t stored(int which, int head, int position, int channel) { return canon_to_f16(unit_float(41 + which, hash32(head, position, channel))); }
__global__ void fill_cache(uint16_t *data, const int32_t *pages, int layers, int heads, int dim) {
  const int64_t part = (int64_t)heads * dim * 64, all = (int64_t)POSITIONS * heads * dim;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < all * layers; i += (int64_t)gridDim.x * blockDim.x) {
    const int layer = (int)(i / all), c = (int)(i % dim), h = (int)(i / dim % heads), pos = (int)(i % all / dim / heads);
    uint16_t *k = data + ((int64_t)layer * PAGES + pages[pos / 64]) * 2 * part + (int64_t)h * dim * 64;
    k[c * 64 + pos % 64] = stored(0, h, pos, c);
    k[part + (pos % 64) * dim + c] = stored(1, h, pos, c);
  }
}

// The scalar rule for one layer, whose weights have seeds from `seed` on.
std::vector<float> expect(const shape &s, uint32_t seed, const std::vector<float> &x, const std::vector<float> &norm, const std::vector<float> &head_norms, const float *cosine, const float *sine, float scale, int pos) {
  const int H = s.hidden, D = s.dim, wide = s.heads * D, narrow = s.kv * D;
  std::vector<float> h(H), q(wide), k(narrow), v(narrow), o(wide, 0.0f), out(H);
  canon_rms(h.data(), x.data(), norm.data(), H, 1e-6f, 0);
  reference(matrix(CANON_INT4, wide, H, GROUP), seed, h.data(), q.data());
  reference(matrix(CANON_INT4, narrow, H, GROUP), seed + 1, h.data(), k.data());
  reference(matrix(CANON_INT4, narrow, H, GROUP), seed + 2, h.data(), v.data());
  auto ready = [&](float *head, const float *w) {
    std::vector<float> raw(head, head + D);
    canon_rms(head, raw.data(), w, D, 1e-6f, 0);
    for (int j = 0; j < D / 2; j++) canon_rotate(head + j, head + j + D / 2, cosine[j], sine[j]);
  };
  for (int i = 0; i < s.heads; i++) ready(&q[i * D], head_norms.data());
  for (int i = 0; i < s.kv; i++) ready(&k[i * D], head_norms.data() + D);
  auto attend = [&](int i) {
    std::vector<float> ks(D), p(CANON_BLOCK), acc(D);
    const int g = i / (s.heads / s.kv);
    auto key = [&](int at, int c) { return canon_from_f16(at == pos ? canon_to_f16(k[g * D + c]) : stored(0, g, at, c)); };
    auto value = [&](int at, int c) { return canon_from_f16(at == pos ? canon_to_f16(v[g * D + c]) : stored(1, g, at, c)); };
    canon_state t = {-canon_inf(), 0};
    float old, fresh;
    for (int first = 0; first <= pos; first += CANON_BLOCK) {
      const int to = std::min(pos, first + CANON_BLOCK - 1);
      float lane[32] = {0}, m = -canon_inf();
      for (int j = first; j <= to; j++) {
        for (int d = 0; d < D; d++) ks[d] = key(j, d);
        p[j - first] = canon_score(&q[i * D], ks.data(), 1, D, scale);
        m = canon_max(p[j - first], m);
      }
      std::fill(acc.begin(), acc.end(), 0.0f);
      for (int j = first; j <= to; j++) {
        const float e = canon_expf(p[j - first] - m);
        lane[(j - first) & 31] = lane[(j - first) & 31] + e;
        for (int d = 0; d < D; d++) acc[d] = canon_fmaf(e, value(j, d), acc[d]);
      }
      canon_fold(&t, m, canon_tree(lane), &old, &fresh);
      for (int d = 0; d < D; d++) o[i * D + d] = canon_fold_channel(o[i * D + d], acc[d], old, fresh);
    }
    for (int d = 0; d < D; d++) o[i * D + d] = o[i * D + d] / t.l;
  };
  std::vector<std::thread> pool;
  for (int w = 0; w < 16; w++) pool.emplace_back([&, w] { for (int i = w; i < s.heads; i += 16) attend(i); });
  for (auto &w : pool) w.join();
  reference(matrix(CANON_INT4, H, wide, GROUP), seed + 3, o.data(), out.data());
  for (int i = 0; i < H; i++) out[i] = x[i] + out[i];
  return out;
}

void run(const shape &s, double probe) {
  const int H = s.hidden, D = s.dim, wide = s.heads * D, narrow = s.kv * D;
  const canon_matrix parts[4] = {matrix(CANON_INT4, wide, H, GROUP), matrix(CANON_INT4, narrow, H, GROUP), matrix(CANON_INT4, narrow, H, GROUP), matrix(CANON_INT4, H, wide, GROUP)};
  int64_t at[5] = {0};
  for (int i = 0; i < 4; i++) at[i + 1] = at[i] + covey_blocks_size(&parts[i]);
  uint8_t *weights = device<uint8_t>(at[4] * s.layers);
  for (int l = 0; l < s.layers; l++) for (int i = 0; i < 4; i++) fill(parts[i], weights + l * at[4] + at[i], 100 + 10 * l + i);
  std::vector<int32_t> pages(PAGES);
  for (int i = 0; i < PAGES; i++) pages[i] = (i * 5 + 3) % PAGES;
  int32_t *dpages = device(pages);
  uint16_t *kv = device<uint16_t>((size_t)PAGES * s.layers * narrow * 128);
  std::vector<float> x = floats(1, H), norm = floats(3, H), head_norms = floats(5, 2 * D);
  for (auto &v : norm) v = 0.5f + v * v;
  for (auto &v : head_norms) v = 0.2f + v * v;
  covey_program p;
  memset(&p, 0, sizeof p);
  int32_t *positions = device<int32_t>(1), *sequence = device<int32_t>(1);
  float *cosine = device<float>(D / 2), *sine = device<float>(D / 2);
  p.step.rows = 1; p.step.positions = positions; p.step.sequence = sequence; p.step.pages = dpages; p.step.pages_stride = PAGES; p.step.faults = device<int32_t>(2);
  p.angles[0].cosine = cosine; p.angles[0].sine = sine; p.angles[0].rot = D;
  covey_program *dp = device<covey_program>(1);
  CHECK(cudaMemcpy(dp, &p, sizeof p, cudaMemcpyHostToDevice));
  covey_attend a;
  memset(&a, 0, sizeof a);
  a.hidden = H; a.x = device(x); a.norm = device(norm); a.eps = a.heads.eps = 1e-6f; a.scale = canon_float(0x3db504f3u); a.y = device<float>(H);
  a.heads.heads = s.heads; a.heads.rot = D; a.heads.q_norm = device(head_norms); a.heads.k_norm = a.heads.q_norm + D;
  a.heads.kv.data = (uint8_t *)kv; a.heads.kv.form = CANON_F16; a.heads.kv.layers = s.layers; a.heads.kv.heads = s.kv; a.heads.kv.dim = D; a.heads.kv.pages = PAGES;
  a.blocks = POSITIONS / CANON_BLOCK;
  const int64_t words = covey_attend_exchange(s.heads, s.kv, D, a.blocks);
  a.exchange = device<float>(words + 1);
  a.finished = (uint32_t *)(a.exchange + words);
  CHECK(cudaMemset(a.exchange, 0xff, words * 4));
  auto f = covey_attend_row_d128_int4_g64_f16;
  CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  auto go = [&](int layer, int most, bool overlapped, cudaStream_t stream) {
    covey_attend b = a;
    for (int i = 0; i < 3; i++) b.weights[i] = weights + layer * at[4] + at[i];
    b.output = weights + layer * at[4] + at[3];
    b.heads.layer = layer;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(132); c.blockDim = dim3(ATTEND_THREADS + 32); c.dynamicSmemBytes = most; c.stream = stream;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = attribute; c.numAttrs = overlapped;
    CHECK(cudaLaunchKernelEx(&c, f, b, (const covey_program *)dp));
  };
  for (int pos : {0, 300, 1000, 8000}) {
    fill_cache<<<1024, 256>>>(kv, dpages, s.layers, s.kv, D);   // without what launches at another position have stored
    CHECK(cudaGetLastError());
    std::vector<float> c(D / 2), t(D / 2);
    for (int j = 0; j < D / 2; j++) canon_angle(pos, 1.0f / (float)(1 << j % 20), 1.0, &c[j], &t[j]);
    CHECK(cudaMemcpy(cosine, c.data(), D * 2, cudaMemcpyHostToDevice)); CHECK(cudaMemcpy(sine, t.data(), D * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(positions, &pos, 4, cudaMemcpyHostToDevice));
    const std::vector<float> want = expect(s, 110, x, norm, head_norms, c.data(), t.data(), a.scale, pos);
    for (int together : {1, 2, 4}) {
      if (s.heads / s.kv % together) continue;
      for (int most : {115712, 232448}) {
        a.together = together;
        if (!covey_attend_sizes(&a, GROUP, CANON_SEGMENT / GROUP * covey_block(CANON_INT4, GROUP, CANON_F16), 132, most)) continue;
        long bad = 0;
        for (int again = 0; again < 3; again++) {
          CHECK(cudaMemset(a.y, 0xff, H * 4));
          go(1, most, false, 0);
          CHECK(cudaDeviceSynchronize());
          bad += differing(want.data(), host(a.y, H).data(), H);
        }
        double us[2];
        for (int overlapped = 0; overlapped < 2; overlapped++) us[overlapped] = graph_us(64, [&](int i, cudaStream_t stream) { go(i % s.layers, most, overlapped, stream); });
        const double bytes = at[4] + (double)(pos + 1) * narrow * 4;
        printf("%-14s at %4d, %d heads a unit, %6d bytes, %d stages, %2d slots: %ld of %d differ, %7.2f us, %7.2f overlapped, %5.1f MB, %5.1f %%\n", s.name, pos, together, most, a.at.stages, a.at.slots, bad, 3 * H, us[0], us[1], bytes / 1e6, bytes / us[1] / 1e3 / probe * 100);
      }
    }
  }
  for (const void *m : {(const void *)weights, (const void *)dpages, (const void *)kv, (const void *)positions, (const void *)sequence, (const void *)cosine, (const void *)sine, (const void *)p.step.faults, (const void *)dp, (const void *)a.x, (const void *)a.norm, (const void *)a.y, (const void *)a.heads.q_norm, (const void *)a.exchange}) CHECK(cudaFree((void *)m));
}
}

void bench_attend(double probe) {
  run({"A3B", 2048, 32, 4, 128, 16}, probe);
  run({"OLMoE", 2048, 16, 16, 128, 16}, probe);
  run({"Air", 4096, 96, 8, 128, 8}, probe);
}
