// The indexer of sparse attention: scores of all visible keys, then the best of them (rule 8's order), by position.
//
// Bound: a row scores every visible key, 2 * heads * dim operations and one read of the key; choosing reads the scores a few
// times. With few rows, blocks of keys are shared among the threads and the scores wait in scratch; otherwise a row is a
// chunk of its own.
#include <string.h>
#include "canon.h"
#include "program.h"

static int32_t visible(const canon_program *p, const canon_op *op, int32_t row) { return (p->step->positions[row] + 1) / op->i[3]; }

static int64_t key_floats(const canon_op *op) { return ((int64_t)op->i[1] + 15) & ~(int64_t)15; }

void canon_index_needs(canon_program *p, const canon_op *op) {
  p->score_floats = canon_at_least(p->score_floats, (p->pages * (int64_t)64 / op->i[3] + 63) & ~(int64_t)63);
  p->thread_floats = canon_at_least(p->thread_floats, key_floats(op) + op->kv.dim * (int64_t)64);
}

// Scores of the keys of block b. The weights are scaled anew for each block: one product a head.
static void score(canon_program *p, const canon_op *op, int32_t row, int32_t b, int32_t n, int32_t thread, float *scores) {
  float *w = p->per_thread + thread * p->thread_floats;
  const float *raw = canon_row(&op->src2, row);
  for (int32_t h = 0; h < op->i[1]; h++) w[h] = raw[h] * op->f[1];
  const int32_t *pages = p->step->pages + (int64_t)p->step->sequence[row] * p->step->pages_stride;
  canon_index a = {.q = canon_row(&op->src, row), .w = w, .heads = op->i[1], .dim = op->kv.dim, .form = op->kv.form, .scale = op->f[0], .k = (uint8_t *)(w + key_floats(op))};
  int32_t end = (b + 1) * CANON_BLOCK < n ? (b + 1) * CANON_BLOCK : n;
  for (int32_t i = b * CANON_BLOCK; i < end; i += 64) {
    a.n = end - i < 64 ? end - i : 64;
    a.scores = scores + i;
    canon_gather(&op->kv, pages, op->i[0], op->i[3], 0, i, a.n, (uint8_t *)(w + key_floats(op)), 0);
    p->k->index(&a);
  }
}

void canon_score_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  int32_t rows = p->step->rows, most = 0;
  for (int32_t r = 0; r < rows; r++) { int32_t n = visible(p, op, r); most = n > most ? n : most; }
  p->score_blocks = rows < 2 * p->threads && most > op->i[2] ? (most + CANON_BLOCK - 1) / CANON_BLOCK : 0;
  *chunks = (int64_t)rows * p->score_blocks;
}

void canon_score_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread) {
  int32_t row = (int32_t)(chunk / p->score_blocks), b = (int32_t)(chunk % p->score_blocks), n = visible(p, op, row);
  if (n > op->i[2] && b * CANON_BLOCK < n) score(p, op, row, b, n, thread, p->scores + row * p->score_floats);
}

// The k-th largest of n ordered numbers, digit by digit from the top; *left is how many of that value are among the k.
static uint32_t threshold(const float *scores, int32_t n, int32_t k, int32_t *left) {
  uint32_t found = 0, mask = 0;
  for (int32_t shift = 24; shift >= 0; shift -= 8) {
    int32_t count[256] = {0}, digit = 255;
    for (int32_t i = 0; i < n; i++) {
      uint32_t o = canon_order(scores[i]);
      if ((o & mask) == found) count[o >> shift & 255]++;
    }
    for (; count[digit] < k; digit--) k -= count[digit];
    found |= (uint32_t)digit << shift;
    mask |= 255u << shift;
  }
  *left = k;
  return found;
}

void canon_select_row(canon_program *p, const canon_op *op, int32_t row, int32_t thread) {
  int32_t n = visible(p, op, row), k = op->i[2], *ids = op->ids + (int64_t)row * k;
  if (n <= k) {
    for (int32_t i = 0; i < n; i++) ids[i] = i;
    return;
  }
  float *scores = p->scores + (p->score_blocks ? row : thread) * p->score_floats;
  if (!p->score_blocks)
    for (int32_t b = 0; b * CANON_BLOCK < n; b++) score(p, op, row, b, n, thread, scores);
  int32_t equal;
  uint32_t least = threshold(scores, n, k, &equal);
  for (int32_t i = 0; i < n; i++) {
    uint32_t o = canon_order(scores[i]);
    if (o > least || (o == least && equal-- > 0)) *ids++ = i;
  }
}
