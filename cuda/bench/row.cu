// One row through a whole Mixture-of-Experts layer (experts_row.cu): equality with the scalar rule and time.
#include "bench.h"
#include "../kernels/experts_row.cu"


struct kernel { const char *name; void (*f)(covey_moe, const covey_program *); int group; };
static const kernel kernels[] = {
  {"g64", covey_moe_row_int4_g64_f16, 64}, {"g32", covey_moe_row_int4_g32_f16, 32}, {"g128", covey_moe_row_int4_g128_f16, 128},
};
enum { BLOCKS = 132, MOST = 232448, HALF = (MOST + 1024) / 2 - 1024 };   // of a block alone, and where two fit

static void launch(const kernel &k, const covey_moe &m, int most, bool overlapped, cudaStream_t s) {
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(BLOCKS); c.blockDim = dim3(MOE_ALL * 32); c.dynamicSmemBytes = most; c.stream = s;
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  a[0].val.programmaticStreamSerializationAllowed = 1;
  c.attrs = a; c.numAttrs = overlapped ? 1 : 0;
  CHECK(cudaLaunchKernelEx(&c, k.f, m, (const covey_program *)0));
}

struct shape { const char *name; int hidden, inner, shared, experts, k, sets; };

static void run(const shape &sh, int group, double probe) {
  const int H = sh.hidden, I = sh.inner, E = sh.experts, K = sh.k, S = sh.shared;
  canon_matrix gate = matrix(CANON_INT4, I, H, group), down = matrix(CANON_INT4, H, I, group);
  canon_matrix sgate = matrix(CANON_INT4, std::max(S, 1), H, group), sdown = matrix(CANON_INT4, H, std::max(S, 1), group);
  int64_t up_at = covey_blocks_size(&gate), down_at = 2 * up_at, size = down_at + covey_blocks_size(&down);
  int64_t sup_at = covey_blocks_size(&sgate), sdown_at = 2 * sup_at, ssize = sdown_at + covey_blocks_size(&sdown);
  uint8_t *all = device<uint8_t>(size * E), *shared = device<uint8_t>(S ? ssize * sh.sets : 1);
  std::vector<void *> table(E);
  for (int e = 0; e < E; e++) {
    uint8_t *at = all + size * e;
    table[e] = at;
    fill(gate, at, 10 * e + 1); fill(gate, at + up_at, 10 * e + 2); fill(down, at + down_at, 10 * e + 3);
  }
  for (int i = 0; S && i < sh.sets; i++) {   // each set has its own shared expert, as each layer does
    uint8_t *at = shared + ssize * i;
    fill(sgate, at, 1000001 + 10 * i); fill(sgate, at + sup_at, 1000002 + 10 * i); fill(sdown, at + sdown_at, 1000003 + 10 * i);
  }
  CHECK(cudaDeviceSynchronize());
  std::vector<float> x = floats(1, (size_t)H * sh.sets), router = floats(2, (size_t)E * H), norm = floats(3, H);
  for (auto &v : router) v *= 0.02f;
  for (auto &v : norm) v = 0.5f + v * v;
  float *dx = device(x), *drouter = device<float>((size_t)E * H * sh.sets), *dnorm = device(norm), *y = device<float>(H), *weights = device<float>(K * sh.sets);
  for (int i = 0; i < sh.sets; i++) CHECK(cudaMemcpy(drouter + (size_t)E * H * i, router.data(), (size_t)E * H * 4, cudaMemcpyHostToDevice));
  uint32_t *finished = device<uint32_t>(1);
  covey_moe most_of = {};
  most_of.hidden = H; most_of.inner = I; most_of.shared_inner = S; most_of.experts = E; most_of.k = K;
  const size_t words = 2 * covey_moe_half(&most_of, group);
  uint32_t *exchange = device<uint32_t>(words);
  auto clear = [&] { CHECK(cudaMemset(exchange, 0xff, words * 4)); CHECK(cudaMemset(finished, 0, 4)); };
  void **dtable = device(table);
  std::vector<int32_t> ids(K * sh.sets);
  std::vector<float> wt(K * sh.sets);
  for (size_t i = 0; i < ids.size(); i++) { ids[i] = (int32_t)(i * 7 % E); wt[i] = 0.1f + 0.01f * (i % K); }
  for (int s = 0; s < sh.sets; s++) for (int i = 0; i < K; i++) ids[s * K + i] = (s * K + i) % E;
  int32_t *dids = device(ids), *ids_out = device<int32_t>(K);
  CHECK(cudaMemcpy(weights, wt.data(), wt.size() * 4, cudaMemcpyHostToDevice));
  float *weights_out = device<float>(K);

  auto args = [&](int set, bool whole) {
    covey_moe m;
    memset(&m, 0, sizeof m);
    m.hidden = H; m.inner = I; m.experts = E; m.k = K; m.x = dx + (size_t)set * H; m.y = y; m.eps = 1e-5f;
    m.table = dtable; m.up_at = up_at; m.down_at = down_at;
    m.exchange = exchange; m.finished = finished;
    m.groups = m.keep = 1; m.scale = 1; m.normalise = 1; m.sum_eps = 0;
    m.ids = dids + set * K; m.weights = weights + set * K;
    if (whole) {
      m.norm = dnorm; m.router = drouter + (size_t)E * H * set; m.router_form = CANON_F32; m.score = 0; m.residual = m.x;
      m.ids = ids_out; m.weights = weights_out;
      m.shared_inner = S; m.shared = shared + ssize * set; m.shared_up_at = sup_at; m.shared_down_at = sdown_at;
    }
    return m;
  };

  // The scalar rule for one set.
  auto expect = [&](int set, bool whole, std::vector<int32_t> *chosen) {
    std::vector<float> in(x.begin() + (size_t)set * H, x.begin() + (size_t)(set + 1) * H), raw = in, out(H, 0.0f), g(I), u(I), o(H);
    std::vector<int32_t> id(ids.begin() + set * K, ids.begin() + (set + 1) * K);
    std::vector<float> w(wt.begin() + set * K, wt.begin() + (set + 1) * K);
    if (whole) {
      canon_rms(in.data(), raw.data(), norm.data(), H, 1e-5f, 0);
      std::vector<float> z(E), s(E);
      for (int e = 0; e < E; e++) z[e] = canon_dot(router.data() + (size_t)e * H, in.data(), H);
      float top = z[0];
      for (int e = 1; e < E; e++) top = canon_max(z[e], top);
      for (int e = 0; e < E; e++) s[e] = canon_expf(z[e] - top);
      float total = canon_sum(s.data(), E);
      for (int e = 0; e < E; e++) s[e] = s[e] / total;
      std::vector<char> gone(E, 0);
      float sum = 0;
      for (int r = 0; r < K; r++) {
        int best = -1;
        for (int e = 0; e < E; e++) if (!gone[e] && (best < 0 || canon_before(s[e], e, s[best], best))) best = e;
        gone[best] = 1; id[r] = best; w[r] = s[best]; sum = sum + w[r];
      }
      for (int r = 0; r < K; r++) w[r] = canon_weight(w[r], sum, 0, 1);
      if (S) {
        std::vector<float> sg(S), su(S);
        reference(sgate, 1000001 + 10 * set, in.data(), sg.data());
        reference(sgate, 1000002 + 10 * set, in.data(), su.data());
        for (int i = 0; i < S; i++) sg[i] = canon_siluf(sg[i]) * su[i];
        reference(sdown, 1000003 + 10 * set, sg.data(), out.data());
      }
    }
    for (int r = 0; r < K; r++) {
      reference(gate, 10 * id[r] + 1, in.data(), g.data());
      reference(gate, 10 * id[r] + 2, in.data(), u.data());
      for (int i = 0; i < I; i++) g[i] = canon_siluf(g[i]) * u[i];
      reference(down, 10 * id[r] + 3, g.data(), o.data());
      for (int c = 0; c < H; c++) out[c] = canon_fmaf(w[r], o[c], out[c]);
    }
    if (whole) for (int c = 0; c < H; c++) out[c] = raw[c] + out[c];
    if (chosen) *chosen = id;
    return out;
  };

  double expert_bytes = (double)K * size, whole_bytes = expert_bytes + (S ? ssize : 0) + (double)E * H * 4;
  for (bool whole : {false, true}) {
    std::vector<int32_t> chosen;
    std::vector<float> want = expect(1, whole, &chosen);
    for (const kernel &k : kernels) for (int most : {(int)HALF, (int)MOST}) {
      if (k.group != group) continue;
      clear();
      CHECK(cudaFuncSetAttribute(k.f, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST));
      covey_moe a = args(1, whole);
      const int slot = 512 / group * covey_block(CANON_INT4, group, CANON_F16);
      if (covey_moe_sized(&a, group, slot, BLOCKS, most) < 4) continue;
      long bad = 0;
      for (int again = 0; again < 3; again++) {
        CHECK(cudaMemset(y, 0xff, H * 4));
        launch(k, a, most, false, 0);
        CHECK(cudaDeviceSynchronize());
        std::vector<float> got = host(y, H);
        bad += differing(want.data(), got.data(), H);
        if (whole) { auto got_ids = host(ids_out, K); for (int i = 0; i < K; i++) bad += got_ids[i] != chosen[i]; }
      }
      for (bool overlapped : {false, true}) {
        double us = graph_us(std::max(sh.sets, 64), [&](int i, cudaStream_t s) {
          covey_moe m = args(i % sh.sets, whole);
          m.at = a.at;
          launch(k, m, most, overlapped, s);
        });
        double bytes = whole ? whole_bytes : expert_bytes;
        printf("%-24s %-5s %-8s %-10s slots %2d: %ld of %ld differ, %7.2f us, %6.1f MB, %5.0f GB/s, %5.1f %%\n", sh.name, k.name, whole ? "layer" : "experts", overlapped ? "overlapped" : "plain",
               a.at.slots, bad, 3l * H, us, bytes / 1e6, bytes / us / 1e3, bytes / us / 1e3 / probe * 100);
      }
    }
  }
  for (void *p : {(void *)all, (void *)shared, (void *)dx, (void *)drouter, (void *)dnorm, (void *)y, (void *)exchange, (void *)weights, (void *)finished, (void *)dtable, (void *)dids, (void *)ids_out, (void *)weights_out}) CHECK(cudaFree(p));
}

void bench_row(double probe) {
  run({"(96,64) top-2 of 4", 96, 64, 32, 4, 2, 2}, 32, probe);
  run({"(576,160) top-4 of 40", 576, 160, 96, 40, 4, 4}, 32, probe);
  run({"GLM-5.2 (6144,2048)", 6144, 2048, 2048, 256, 8, 32}, 64, probe);
  run({"OLMoE (2048,1024)", 2048, 1024, 0, 64, 8, 8}, 64, probe);
  run({"(2048,512) top-8 of 256", 2048, 512, 0, 256, 8, 32}, 64, probe);
  run({"A3B (2048,768) of 128", 2048, 768, 0, 128, 8, 16}, 64, probe);
  run({"Next (2048,512)+512", 2048, 512, 512, 512, 10, 32}, 64, probe);
  run({"Air (4096,1408)", 4096, 1408, 1408, 128, 8, 16}, 128, probe);
}
