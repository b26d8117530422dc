// Sampling and log probabilities (rule 11).
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

// Place of the first value equal to a maximum that is there.
static int32_t first_equal(const float *x, int32_t n, float max) {
  int32_t i = 0;
  while (i < n - 1 && x[i] != max) i++;
  return i;
}

// A candidate as one number: larger is earlier in (value descending, id ascending).
static uint64_t candidate(float x, int32_t id) { return (uint64_t)ascending(x) << 32 | (uint32_t)~(uint32_t)id; }
static int32_t id_of(uint64_t c) { return (int32_t)~(uint32_t)c; }

// Puts c[at] in place in a heap of n whose root is the least.
static void sink(uint64_t *heap, int32_t n, int32_t at, uint64_t x) {
  for (;;) {
    int32_t child = 2 * at + 1;
    if (child >= n) break;
    if (child + 1 < n && heap[child + 1] < heap[child]) child++;
    if (heap[child] >= x) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = x;
}

// Offers n candidates to a heap of size that holds the k largest; returns its new size. Most are refused by one comparison.
static int32_t keep_largest(const uint64_t *c, int32_t n, uint64_t *heap, int32_t size, int32_t k) {
  for (int32_t i = 0; i < n; i++) {
    if (size < k) {
      int32_t at = size++;
      for (; at > 0 && heap[(at - 1) / 2] > c[i]; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
      heap[at] = c[i];
    } else if (c[i] > heap[0]) {
      sink(heap, k, 0, c[i]);
    }
  }
  return size;
}

// The k largest of n candidates to out, descending; returns their number.
static int32_t largest(const uint64_t *c, int32_t n, uint64_t *out, int32_t k) {
  int32_t size = keep_largest(c, n, out, 0, k);
  for (int32_t end = size - 1; end > 0; end--) {           // take the least to the end
    uint64_t last = out[end];
    out[end] = out[0];
    sink(out, end, 0, last);
  }
  return size;
}

static float value_of(uint64_t c) {
  uint32_t u = (uint32_t)(c >> 32);
  return canon_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

// Sorts descending: buckets by distance from the largest value, which ascends with the order, then each bucket by itself.
static void sort_descending(uint64_t *c, uint64_t *tmp, int32_t n) {
  enum { BUCKETS = 8192, SMALL = 48 };
  int32_t end[BUCKETS] = {0};
  if (n < 2) return;
  float hi = value_of(c[0]), lo = hi;
  for (int32_t i = 1; i < n; i++) { float v = value_of(c[i]); hi = v > hi ? v : hi; lo = v < lo ? v : lo; }
  if (hi == lo) return;                                    // ids ascend already
  float step = (float)(BUCKETS - 1) / (hi - lo);
  if (!canon_finite(step) || !(step > 0)) { largest(c, n, tmp, n); memcpy(c, tmp, (size_t)n * sizeof *c); return; }
#define BUCKET(x) ((int32_t)((hi - value_of(x)) * step) & (BUCKETS - 1))
  for (int32_t i = 0; i < n; i++) end[BUCKET(c[i])]++;
  for (int32_t b = 1; b < BUCKETS; b++) end[b] += end[b - 1];
  for (int32_t i = n - 1; i >= 0; i--) tmp[--end[BUCKET(c[i])]] = c[i];
#undef BUCKET
  for (int32_t b = 0; b < BUCKETS; b++) {                  // end[b] is now the bucket's start
    int32_t from = end[b], to = b + 1 < BUCKETS ? end[b + 1] : n;
    if (to - from > SMALL) { largest(tmp + from, to - from, c + from, to - from); continue; }
    for (int32_t i = from; i < to; i++) {
      uint64_t x = tmp[i];
      int32_t at = i;
      for (; at > from && c[at - 1] < x; at--) c[at] = c[at - 1];
      c[at] = x;
    }
  }
}

// Candidates from cut on, ids ascending. Pieces without one are passed over by their maximum.
static int32_t from_cut(const float *x, int32_t n, float cut, uint64_t *c) {
  enum { PIECE = 64 };
  const canon_kernels *k = best();
  int32_t have = 0;
  for (int32_t i = 0; i < n; i += PIECE) {
    int32_t m = n - i < PIECE ? n - i : PIECE;
    if (k->highest(x + i, m) < cut) continue;
    for (int32_t j = i; j < i + m; j++)
      if (x[j] >= cut) c[have++] = candidate(x[j], j);
  }
  return have;
}

// The k-th largest of n > k logits.
static float kth(const float *x, int32_t n, int32_t k, uint64_t *heap, uint64_t *mixed) {
  enum { PIECE = 64 };
  int32_t size = 0;
  for (int32_t i = 0; i < n; i += PIECE) {
    int32_t m = n - i < PIECE ? n - i : PIECE, have = 0;
    float least = size == k ? value_of(heap[0]) : -canon_inf();
    if (size == k && !(best()->highest(x + i, m) > least)) continue;
    for (int32_t j = i; j < i + m; j++)
      if (size + have < k || x[j] > least) mixed[have++] = candidate(x[j], j);
    size = keep_largest(mixed, have, heap, size, k);
  }
  return value_of(heap[0]);
}

// Draws from logits x with maximum max. A candidate whose p is below 2^-24 can neither change a running sum, which is at least
// 1 from the first on and therefore absorbs it, nor be the first at which a sum exceeds anything. So those more than 17 (e^-17
// < 2^-24) below the maximum after the division by the temperature are left out before the sort; 18 and a margin for the
// rounding of the cut itself keep every one that counts.
static int32_t draw(const float *x, int32_t n, const canon_sampling *s, float max, uint64_t *c) {
  const canon_kernels *k = best();
  float magnitude = max < 0 ? -max : max, cut = max - 18.0f * s->temperature - magnitude * 0x1p-20f;
  uint64_t *tmp = c + n;
  if (s->top_k > 0 && s->top_k < n && s->top_k <= 1024) {   // ties of quotients reach a little below the k-th logit
    float least = kth(x, n, s->top_k, c, tmp), close = (least < 0 ? -least : least) * 0x1p-20f + s->temperature * 0x1p-140f;
    cut = canon_max(least - close, cut);
  }
  int32_t kept = from_cut(x, n, cut, c);
  float *p = (float *)(c + 2 * (int64_t)n);
  // The order is that of the quotients, which may be equal where the logits are not.
  for (int32_t i = 0; i < kept; i++) p[i] = value_of(c[i]);
  k->divide(p, s->temperature, kept);
  for (int32_t i = 0; i < kept; i++) c[i] = candidate(p[i], id_of(c[i]));
  if (s->top_k > 0 && s->top_k < kept && s->top_k <= 1024) {
    kept = largest(c, kept, tmp, s->top_k);
    c = tmp;
  } else {
    sort_descending(c, tmp, kept);
    if (s->top_k > 0 && s->top_k < kept) kept = s->top_k;
  }
  for (int32_t i = 0; i < kept; i++) p[i] = value_of(c[i]);
  k->exp_minus(p, p, p[0], kept);
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

int32_t canon_sample(const float *logits, int32_t n, const canon_sampling *s, const int32_t *bias_ids, const float *bias, const int32_t *seen_ids, const int32_t *count_ids, const int32_t *counts, uint64_t *scratch) {
  const canon_kernels *k = best();
  if (!k->finite(logits, n)) return -1;
  const float *x = logits;
  if (s->biases || s->seen || s->counted) {
    float *l = (float *)(scratch + 2 * (int64_t)n) + n;   // behind the candidates, the sort's second list and the values
    memcpy(l, logits, (size_t)n * 4);
    for (int32_t i = 0; i < s->biases; i++) l[bias_ids[i]] = l[bias_ids[i]] + bias[i];
    for (int32_t i = 0; i < s->seen; i++) {
      float *v = &l[seen_ids[i]];
      *v = *v > 0 ? *v / s->repetition : *v * s->repetition;
    }
    for (int32_t i = 0; i < s->counted; i++) {
      float *v = &l[count_ids[i]];
      *v = canon_fmaf(-s->frequency, (float)counts[i], *v);
      *v = *v - s->presence;
    }
    x = l;
  }
  float max = k->highest(x, n);
  if (!(max > -canon_inf())) return -3;
  // An infinite candidate has all the weight there is.
  if (s->temperature == 0 || max == canon_inf()) return first_equal(x, n, max);
  return draw(x, n, s, max, scratch);
}

int32_t canon_logprobs(const float *logits, int32_t n, int32_t id, float *out, int32_t *top, float *top_out, int32_t k) {
  const canon_kernels *t = best();
  if (!t->finite(logits, n)) return -1;
  float max = t->highest(logits, n), norm = canon_logf(t->exp_sum(logits, max, n));
  *out = (logits[id] - max) - norm;
  enum { PIECE = 64, MOST = 64 };
  uint64_t best_so_far[MOST], mixed[MOST + PIECE];
  int32_t size = 0;
  if (k > MOST) k = MOST;
  for (int32_t i = 0; k > 0 && i < n; i += PIECE) {        // the best so far compete with each piece that has a better one
    int32_t m = n - i < PIECE ? n - i : PIECE, have = size;
    float least = size == k ? value_of(best_so_far[size - 1]) : -canon_inf();
    if (size == k && !(t->highest(logits + i, m) > least)) continue;
    memcpy(mixed, best_so_far, (size_t)size * sizeof *mixed);
    for (int32_t j = i; j < i + m; j++)
      if (size < k || logits[j] > least) mixed[have++] = candidate(logits[j], j);
    size = largest(mixed, have, best_so_far, k);
  }
  for (int32_t i = 0; i < size; i++) {
    top[i] = id_of(best_so_far[i]);
    top_out[i] = (value_of(best_so_far[i]) - max) - norm;
  }
  return size;
}
