// What the sections of the bench share: deterministic weights, timing by replayed graphs, the read probe, equality of bits.
//
// Weights are a hash of (seed, row, input): the device fills gigabytes of them in place, the host recomputes the few that a
// check needs. Times are medians over replays of a graph of many launches that rotate over more weights than the caches hold.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>
#include <cuda_runtime.h>
#include "../kernels/fused.h"

#define CHECK(x)                                                                                              \
  do {                                                                                                        \
    cudaError_t e_ = (x);                                                                                     \
    if (e_ != cudaSuccess) { printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_)); fflush(stdout); exit(1); } \
  } while (0)

CANON_FN uint32_t hash32(uint32_t seed, uint32_t a, uint32_t b) {
  uint32_t h = seed * 0x9E3779B1u ^ a * 0x85EBCA77u ^ b * 0xC2B2AE3Du;
  h ^= h >> 15; h *= 0x2C1B3C6Du; h ^= h >> 12; h *= 0x297A2D39u; h ^= h >> 15;
  return h;
}
// Codes of inputs 8*c8 .. 8*c8+7 of a row: nibbles for int4; int8 takes two words.
CANON_FN uint32_t code_word(uint32_t seed, int32_t row, int32_t word) { return hash32(seed, (uint32_t)row, (uint32_t)word); }
CANON_FN int32_t code_of(int32_t form, uint32_t seed, int32_t row, int32_t col) {
  if (form == CANON_INT4) return (int32_t)(code_word(seed, row, col / 8) >> (col % 8 * 4) & 15) - 8;
  return (int32_t)(code_word(seed, row, col / 4) >> (col % 4 * 8) & 255) - 128;
}
CANON_FN uint16_t scale_bits(uint32_t seed, int32_t row, int32_t group) { return (uint16_t)(0x1400u + (hash32(~seed, (uint32_t)row, (uint32_t)group) & 0x7ffu)); }
CANON_FN float unit_float(uint32_t seed, uint32_t i) { return ((int32_t)(hash32(seed, i, 77) & 0xffff) - 32768) * (1.0f / 16384.0f); }

static canon_matrix matrix(int form, int rows, int cols, int group) {
  canon_matrix m;
  memset(&m, 0, sizeof m);
  m.form = form; m.scale_form = CANON_F16; m.rows = rows; m.cols = cols; m.group = group; m.groups = covey_ceil(cols, group);
  return m;
}

// Outputs [rows] of one product by the scalar rule, for one activation row x [cols]. Threads share the rows.
static void reference(const canon_matrix &m, uint32_t seed, const float *x, float *y) {
  int n = m.cols, groups = m.groups;
  std::vector<int8_t> q(n);
  std::vector<float> sx(groups);
  std::vector<int32_t> sum(groups);
  for (int g = 0; g < groups; g++) canon_quantise(x + g * m.group, std::min(m.group, n - g * m.group), q.data() + g * m.group, &sx[g], &sum[g]);
  int workers = std::max(1u, std::min(16u, std::thread::hardware_concurrency()));
  std::vector<std::thread> pool;
  for (int t = 0; t < workers; t++)
    pool.emplace_back([&, t] {
      std::vector<int16_t> w(n + 8);
      std::vector<float> sw(groups);
      for (int r = t; r < m.rows; r += workers) {
        for (int c = 0; c < n; c++) w[c] = (int16_t)code_of(m.form, seed, r, c);
        for (int g = 0; g < groups; g++) sw[g] = canon_from_f16(scale_bits(seed, r, g));
        y[r] = canon_qdot(w.data(), sw.data(), nullptr, q.data(), sx.data(), n, m.group, m.group);
      }
    });
  for (auto &t : pool) t.join();
}

static bool same_bits(float a, float b) { return canon_bits(a) == canon_bits(b) || (a != a && b != b); }
static long differing(const float *a, const float *b, long n) {
  long bad = 0;
  for (long i = 0; i < n; i++) bad += !same_bits(a[i], b[i]);
  return bad;
}

template <class T> static T *device(size_t n) { T *p; CHECK(cudaMalloc(&p, n * sizeof(T))); CHECK(cudaMemset(p, 0, n * sizeof(T))); return p; }
template <class T> static T *device(const std::vector<T> &v) { T *p = device<T>(v.size()); CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); return p; }
template <class T> static std::vector<T> host(const T *p, size_t n) { std::vector<T> v(n); CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost)); return v; }
static std::vector<float> floats(uint32_t seed, size_t n) { std::vector<float> v(n); for (size_t i = 0; i < n; i++) v[i] = unit_float(seed, (uint32_t)i); return v; }

// A product of codes that lie in p->codes, as the kernels for few rows take it.
static covey_rows product_of(const canon_op &op) {
  covey_rows f;
  memset(&f, 0, sizeof f);
  f.src = op.src; f.made = COVEY_CODES; f.parts = 1;
  f.part[0].m = op.m; f.part[0].bias = op.vec; f.part[0].dst = op.dst;
  return f;
}

// Fills a matrix of an integer form at base.
void fill(const canon_matrix &m, uint8_t *base, uint32_t seed);
// Median microseconds of one of n calls of f(i) inside a replayed graph.
double graph_us(int n, const std::function<void(int, cudaStream_t)> &f);
// The same as plain launches, from the first to the end of the last.
double plain_us(int n, const std::function<void(int, cudaStream_t)> &f);
// Measured read bandwidth in GB/s: the best of several reading kernels over several GB.
double read_probe();

double clock_mhz(uint64_t cycles);

void bench_row(double probe);
void bench_rows(double probe);
void bench_attention();
void bench_attend(double probe);
void bench_layers(double probe);
void bench_edges();
void bench_floats(double probe);
