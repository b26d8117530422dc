// Compressed memory and residual streams: pooling of windows of positions into entries, and what joins and parts the streams.
#include <string.h>
#include "canon.h"
#include "program.h"

enum { LAYER, RATE, OVERLAP, ROT = 2 };   // op->i
enum { CHANNELS = 64 };                   // of one chunk

// Whether an earlier row of the step belongs to the same sequence; if one does, it is near in practice.
static int follows(const canon_step *s, int32_t row) {
  for (int32_t r = row - 1; r >= 0; r--)
    if (s->sequence[r] == s->sequence[row]) return 1;
  return 0;
}

void canon_pool_prepare(canon_program *p, const canon_op *op, int64_t *chunks) {
  *chunks = (int64_t)p->step->rows * ((op->dst.width + CHANNELS - 1) / CHANNELS);
}

// The state of a sequence behind a position: it lies in the position's page, where the last position of the page leaves it.
static float *state_of(const canon_program *p, const canon_op *op, int32_t row, int32_t position) {
  const int32_t *pages = p->step->pages + (int64_t)p->step->sequence[row] * p->step->pages_stride;
  return (float *)canon_kv_layer(&op->kv, pages[position / 64], op->i[LAYER]);
}

// Some channels of all rows of one sequence, in the token form of rule 7. A state is (m, l, o) a channel; overlapping windows
// have two: of the window that ends next, and of the one after, which takes the same positions by their first halves.
// Moves 24 or 48 bytes a row and channel through the first-level cache, bound by two exponentials each.
void canon_pool_chunk(canon_program *p, const canon_op *op, int64_t chunk) {
  const canon_step *s = p->step;
  int32_t width = op->dst.width, blocks = (width + CHANNELS - 1) / CHANNELS, first = (int32_t)(chunk / blocks), c = (int32_t)(chunk % blocks) * CHANNELS;
  int32_t n = width - c < CHANNELS ? width - c : CHANNELS, rate = op->i[RATE], overlap = op->i[OVERLAP], parts = overlap ? 6 : 3;
  if (follows(s, first)) return;
  float state[6][CHANNELS];
  for (int32_t row = first; row < s->rows; row++) {
    if (s->sequence[row] != s->sequence[first]) continue;
    int32_t position = s->positions[row], place = position % rate;
    if (row == first && position > 0) {
      const float *from = state_of(p, op, row, position - 1) + c;
      for (int32_t i = 0; i < parts; i++) memcpy(state[i], from + (int64_t)i * width, (size_t)n * 4);
    }
    if (place == 0) {
      int32_t fresh = overlap ? 3 : 0;
      if (overlap && position > 0) memcpy(state[0], state[3], sizeof state / 2);
      else fresh = 0;
      for (int32_t i = fresh; i < parts; i++)
        for (int32_t d = 0; d < n; d++) state[i][d] = i % 3 ? 0.0f : -canon_inf();
    }
    const float *value = canon_row(&op->src, row) + c, *gate = canon_row(&op->src2, row) + c, *by_place = op->vec + (int64_t)place * op->src.width + c;
    if (overlap) {
      p->k->pool(state[3], state[4], state[5], gate, by_place, value, n);
      gate += width; by_place += width; value += width;
    }
    p->k->pool(state[0], state[1], state[2], gate, by_place, value, n);
    if (place == rate - 1) {
      float *out = canon_row(&op->dst, row) + c;
      for (int32_t d = 0; d < n; d++) out[d] = state[2][d] / state[1][d];
    }
    int last = position % 64 == 63;
    if (!last) {
      last = 1;
      for (int32_t r = row + 1; r < s->rows && last; r++) last = s->sequence[r] != s->sequence[row];
    }
    if (!last) continue;
    float *to = state_of(p, op, row, position) + c;
    for (int32_t i = 0; i < parts; i++) memcpy(to + (int64_t)i * width, state[i], (size_t)n * 4);
  }
}

// A row that ends a window stores its pooled vector as an entry, turned by the angle of the window's first position.
void canon_entry(canon_program *p, const canon_op *op, int32_t row, int32_t thread) {
  const canon_step *s = p->step;
  int32_t position = s->positions[row], rate = op->i[RATE], n = op->src.width, rot = op->i[ROT];
  if ((position + 1) % rate) return;
  float *x = p->per_thread + thread * p->thread_floats, *cosine = x + n, *sine = cosine + rot / 2;
  p->k->norm(x, canon_row(&op->src, row), op->vec, n, op->f[0], 0);
  for (int32_t j = 0; j < rot / 2; j++) canon_angle(position + 1 - rate, op->weights[j], op->d, cosine + j, sine + j);
  p->k->rotate(x + n - rot, rot, 1, cosine, sine);
  const int32_t *pages = s->pages + (int64_t)s->sequence[row] * s->pages_stride;
  uint8_t *out = (uint8_t *)canon_kv_entry(&op->kv, pages, op->i[LAYER], (position + 1) / rate - 1, rate);
  if (canon_store(p->k, op->kv.form, x, n, out) >= 0x7c00) canon_fault(p, 0, row, CANON_FAULT_KV, op->label);
}

void canon_mix_in(canon_program *p, const canon_op *op, int32_t row) {
  int32_t m = op->i[0], n = op->dst.width;
  float *z = canon_row(&op->src2, row), *h = canon_row(&op->dst, row);
  const float *x = canon_row(&op->src, row);
  if (op->i[2]) canon_mix_head(z, op->vec, op->vec + m, m, op->f[0]);
  else canon_mix(z, op->vec, op->vec + (2 + m) * m, m, op->i[1], op->f[0]);
  memset(h, 0, (size_t)n * 4);
  for (int32_t i = 0; i < m; i++) p->k->accumulate(h, x + (int64_t)i * n, z[i], n);
}

void canon_mix_out(canon_program *p, const canon_op *op, int32_t row, int32_t thread) {
  int32_t m = op->i[0], n = op->src.width;
  const float *y = canon_row(&op->src, row), *z = canon_row(&op->src2, row);
  float *x = canon_row(&op->dst, row), *mixed = p->per_thread + thread * p->thread_floats;
  for (int32_t j = 0; j < m; j++) {
    float *to = mixed + (int64_t)j * n;
    memcpy(to, y, (size_t)n * 4);
    p->k->scale(to, z[m + j], n);
    for (int32_t i = 0; i < m; i++) p->k->accumulate(to, x + (int64_t)i * n, z[2 * m + i * m + j], n);
  }
  memcpy(x, mixed, (size_t)(m * n) * 4);
}
