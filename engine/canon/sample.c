// Sampling and log probabilities (rule 11).
#include <stdlib.h>
#include <string.h>
#include "canon.h"
#include "kernels.h"

// The best family of this processor: families agree bit for bit, so the choice is one of speed only.
static const canon_kernels *best(void) {
  static const canon_kernels *_Atomic found;
  const canon_kernels *k = found;
  for (int isa = CANON_VNNI; !k; isa--) k = canon_kernels_for(isa);
  found = k;
  return k;
}

int canon_all_finite(const float *x, int32_t n) { return best()->finite(x, n); }
uint32_t canon_random(uint64_t seed, uint32_t choice, uint32_t position) { return canon_philox(seed, choice, position); }

// Bits that ascend with the value; -0 and +0 are one.
static uint32_t ascending(float x) {
  uint32_t u = canon_bits(x == 0 ? 0.0f : x);
  return u >> 31 ? ~u : u | 0x80000000u;
}

int32_t canon_argmax(const float *x, int32_t n) {
  int32_t first = -1;
  for (int32_t i = 0; i < n; i++)
    if (x[i] == x[i] && (first < 0 || x[i] > x[first])) first = i;
  return first;
}

// A candidate as one number: larger is earlier in (value descending, id ascending).
static uint64_t candidate(float x, int32_t id) { return (uint64_t)ascending(x) << 32 | (uint32_t)~(uint32_t)id; }
static int32_t id_of(uint64_t c) { return (int32_t)~(uint32_t)c; }

// The k largest of n candidates to out, descending; returns their number. A heap whose root is the least kept: most
// candidates are refused by one comparison.
static int32_t largest(const uint64_t *c, int32_t n, uint64_t *out, int32_t k) {
  int32_t size = 0;
  for (int32_t i = 0; i < n; i++) {
    int32_t at;
    if (size < k) {
      for (at = size++; at > 0 && out[(at - 1) / 2] > c[i]; at = (at - 1) / 2) out[at] = out[(at - 1) / 2];
      out[at] = c[i];
      continue;
    }
    if (c[i] <= out[0]) continue;
    for (at = 0;;) {
      int32_t child = 2 * at + 1;
      if (child >= k) break;
      if (child + 1 < k && out[child + 1] < out[child]) child++;
      if (out[child] >= c[i]) break;
      out[at] = out[child];
      at = child;
    }
    out[at] = c[i];
  }
  for (int32_t end = size - 1; end > 0; end--) {   // take the least to the end
    uint64_t least = out[0], last = out[end];
    int32_t at = 0;
    for (;;) {
      int32_t child = 2 * at + 1;
      if (child >= end) break;
      if (child + 1 < end && out[child + 1] < out[child]) child++;
      if (out[child] >= last) break;
      out[at] = out[child];
      at = child;
    }
    out[at] = last;
    out[end] = least;
  }
  return size;
}

// Sorts descending by four passes of eight bits over the value; equal values keep their order, which is id ascending.
static void sort_descending(uint64_t *c, uint64_t *tmp, int32_t n) {
  uint32_t count[4][256];
  memset(count, 0, sizeof count);
  for (int32_t i = 0; i < n; i++) {
    uint32_t v = ~(uint32_t)(c[i] >> 32);
    for (int p = 0; p < 4; p++) count[p][v >> p * 8 & 255]++;
  }
  for (int p = 0; p < 4; p++) {
    uint32_t at = 0;
    for (int b = 0; b < 256; b++) { uint32_t k = count[p][b]; count[p][b] = at; at += k; }
    for (int32_t i = 0; i < n; i++) tmp[count[p][~(uint32_t)(c[i] >> 32) >> p * 8 & 255]++] = c[i];
    uint64_t *swap = c; c = tmp; tmp = swap;
  }
}

static float value_of(uint64_t c) {
  uint32_t u = (uint32_t)(c >> 32);
  return canon_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

// Draws from values l with the first candidate max. A candidate with p below 2^-24 can neither change a running sum, which
// is at least 1 from the first on and therefore absorbs it, nor be the first at which the sum exceeds anything: candidates
// more than 17 below the maximum (e^-17 < 2^-24) are left out before the sort.
static int32_t draw(const float *l, int32_t n, const canon_sampling *s, float max, uint64_t *c, float *p) {
  const canon_kernels *k = best();
  int32_t kept = 0;
  uint64_t *tmp = c + n;
  for (int32_t i = 0; i < n; i++)
    if (l[i] >= max - 17.0f) c[kept++] = candidate(l[i], i);
  if (s->top_k > 0 && s->top_k < kept && s->top_k <= 1024) {
    kept = largest(c, kept, tmp, s->top_k);
    c = tmp;
  } else {
    sort_descending(c, tmp, kept);
    if (s->top_k > 0 && s->top_k < kept) kept = s->top_k;
  }
  for (int32_t i = 0; i < kept; i++) p[i] = value_of(c[i]);
  k->exp_minus(p, p, max, kept);
  if (s->top_p > 0 && s->top_p < 1) {
    float all = 0, sum = 0;
    for (int32_t i = 0; i < kept; i++) all = all + p[i];
    float goal = s->top_p * all;
    int32_t i = 0;
    while (i < kept) { sum = sum + p[i++]; if (sum >= goal) break; }
    kept = i;
  }
  if (s->min_p > 0) {
    int32_t i = 1;
    while (i < kept && p[i] >= s->min_p) i++;
    kept = i;
  }
  float all = 0, sum = 0;
  for (int32_t i = 0; i < kept; i++) all = all + p[i];
  float goal = canon_uniform(canon_philox(s->seed, s->choice, s->position)) * all;
  for (int32_t i = 0; i < kept; i++) {
    sum = sum + p[i];
    if (sum > goal) return id_of(c[i]);
  }
  return id_of(c[kept - 1]);
}

int32_t canon_sample(const float *logits, int32_t n, const canon_sampling *s, const int32_t *bias_ids, const float *bias, const int32_t *seen_ids, const int32_t *count_ids, const int32_t *counts) {
  const canon_kernels *k = best();
  if (!k->finite(logits, n)) return -1;
  int changed = s->biases || s->seen || s->counted;
  if (s->temperature == 0 && !changed) return canon_argmax(logits, n);
  // Candidates twice (the sort needs a second list), values, probabilities.
  uint64_t *c = malloc((size_t)n * (2 * sizeof *c + 2 * sizeof(float)));
  if (!c) return -2;
  float *l = (float *)(c + 2 * (size_t)n), *p = l + n;
  memcpy(l, logits, (size_t)n * 4);
  for (int32_t i = 0; i < s->biases; i++) l[bias_ids[i]] = l[bias_ids[i]] + bias[i];
  for (int32_t i = 0; i < s->seen; i++) {
    float *x = &l[seen_ids[i]];
    *x = *x > 0 ? *x / s->repetition : *x * s->repetition;
  }
  for (int32_t i = 0; i < s->counted; i++) {
    float *x = &l[count_ids[i]];
    *x = canon_fmaf(-s->frequency, (float)counts[i], *x);
    *x = *x - s->presence;
  }
  if (s->temperature != 0) k->divide(l, s->temperature, n);
  int32_t first = canon_argmax(l, n), token = first;
  if (first < 0 || l[first] == -canon_inf()) token = -3;
  else if (s->temperature != 0 && l[first] < canon_inf()) token = draw(l, n, s, l[first], c, p);
  free(c);
  return token;
}

// exp(l - max) summed in 32 lanes over ids and the tree, as in a softmax over all.
static float log_sum_exp(const float *logits, int32_t n, float max) {
  float lane[CANON_LANES] = {0}, e[512];
  for (int32_t i = 0; i < n; i += 512) {
    int32_t m = n - i < 512 ? n - i : 512;
    best()->exp_minus(e, logits + i, max, m);
    for (int32_t j = 0; j < m; j++) lane[j & 31] = lane[j & 31] + e[j];
  }
  return canon_logf(canon_tree(lane));
}

int32_t canon_logprobs(const float *logits, int32_t n, int32_t id, float *out, int32_t *top, float *top_out, int32_t k) {
  if (!best()->finite(logits, n)) return -1;
  float max = logits[canon_argmax(logits, n)], norm = log_sum_exp(logits, n, max);
  *out = (logits[id] - max) - norm;
  uint64_t heap[64], chunk[512];
  int32_t size = 0;
  if (k > 64) k = 64;
  for (int32_t i = 0; k > 0 && i < n; i += 512 - 64) {   // the best so far compete with the next piece
    int32_t m = n - i < 512 - 64 ? n - i : 512 - 64, have = 0;
    for (int32_t j = 0; j < size; j++) chunk[have++] = heap[j];
    float least = size == k ? value_of(heap[size - 1]) : -canon_inf();
    for (int32_t j = 0; j < m; j++)
      if (logits[i + j] > least || size < k) chunk[have++] = candidate(logits[i + j], i + j);
    if (have > size) size = largest(chunk, have, heap, k);
  }
  for (int32_t i = 0; i < size; i++) {
    top[i] = id_of(heap[i]);
    top_out[i] = (value_of(heap[i]) - max) - norm;
  }
  return size;
}
