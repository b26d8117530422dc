// Gated delta net (rule 7): one operation from projections to gated outputs. A chunk is one sequence and one key head with
// the value heads that share it; it goes through the sequence's rows in ascending position, which is the only order there
// is, and leaves its part of the state behind. Bound by reading and writing the state once a row: 8 * value heads * key
// width * value width bytes.
//
// State of a sequence and key head: taps - 1 earlier rows of its channels, oldest first, then [value heads][key][value].
// The channels of a key head lie together in the projection: queries, keys, values of its value heads, then their gates.
#include <string.h>
#include "canon.h"
#include "program.h"

typedef struct { int32_t heads, per, key, value, taps, width; int64_t floats; const float *conv, *decay, *shift, *norm; } shape;

static shape shape_of(const canon_op *op) {
  shape s = {.heads = op->i[0], .per = op->i[1], .key = op->i[2], .value = op->i[3], .taps = op->i[4]};
  s.width = 2 * s.key + s.per * s.value;
  s.floats = (int64_t)(s.taps - 1) * s.width + (int64_t)s.per * s.key * s.value;
  s.conv = op->vec;
  s.decay = s.conv + (int64_t)s.heads * s.taps * s.width;
  s.shift = s.decay + s.heads * s.per;
  s.norm = s.shift + s.heads * s.per;
  return s;
}

void canon_delta_needs(canon_program *p, const canon_op *op) {
  shape s = shape_of(op);
  p->thread_floats = canon_at_least(p->thread_floats, s.width + s.value);
  p->delta = 1;
}

// Lists the first row of every sequence of the step.
void canon_delta_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  const int32_t *sequence = p->step->sequence;
  p->first_n = 0;
  for (int32_t r = 0; r < p->step->rows; r++) {
    int32_t i = p->first_n - 1;
    while (i >= 0 && sequence[p->first_row[i]] != sequence[r]) i--;
    if (i < 0) p->first_row[p->first_n++] = r;
  }
  *chunks = (int64_t)p->first_n * op->i[0];
}

void canon_delta_chunk(canon_program *p, const canon_op *op, int64_t chunk, int32_t thread) {
  const canon_kernels *k = p->k;
  shape s = shape_of(op);
  int32_t g = (int32_t)(chunk % s.heads), row = p->first_row[chunk / s.heads], sequence = p->step->sequence[row];
  float *window = op->state + p->step->states[sequence] * op->state_floats + op->i[5] + g * s.floats, *state = window + (int64_t)(s.taps - 1) * s.width;
  float *mixed = p->per_thread + thread * p->thread_floats, *o = mixed + s.width;
  const float *conv = s.conv + (int64_t)g * s.taps * s.width;
  if (p->step->positions[row] == 0) memset(window, 0, (size_t)s.floats * 4);   // whatever an earlier sequence left
  for (; row < p->step->rows; row++) {
    if (p->step->sequence[row] != sequence) continue;
    const float *x = canon_row(&op->src, row) + (int64_t)g * (s.width + s.per * s.value), *z = x + s.width;
    const float *ba = canon_row(&op->src2, row) + 2 * (int64_t)g * s.per;
    float *y = canon_row(&op->dst, row) + (int64_t)g * s.per * s.value;
    k->convolve(mixed, window, x, conv, s.taps, s.width);
    memmove(window, window + s.width, (size_t)(s.taps - 2) * s.width * 4);
    memcpy(window + (int64_t)(s.taps - 2) * s.width, x, (size_t)s.width * 4);
    k->unit(mixed, s.key, op->f[1]);
    k->scale(mixed, op->f[2], s.key);
    k->unit(mixed + s.key, s.key, op->f[1]);
    for (int32_t i = 0; i < s.per; i++) {
      int32_t h = g * s.per + i;
      float beta = canon_sigmoidf(ba[i]), alpha = canon_decay(s.decay[h], ba[s.per + i], s.shift[h]);
      k->delta(state + (int64_t)i * s.key * s.value, mixed, mixed + s.key, mixed + 2 * s.key + i * s.value, alpha, beta, o, s.key, s.value);
      k->norm(o, o, s.norm, s.value, op->f[0], 0);
      k->swiglu(y + i * s.value, z + i * s.value, o, s.value);
    }
  }
}
