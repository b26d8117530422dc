// The read probe: how fast the pool's threads read memory, which bounds every product with few rows.
#include <time.h>
#include "pool.h"

enum { PIECE = 1 << 20 };

typedef struct {
  const uint8_t *mem;
  int64_t bytes;
  int32_t rounds;
  double *seconds, last;
  const canon_kernels *k;
  _Atomic uint64_t sum;     // keeps the loads alive
} probe;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Rounds are phases; the time of one lies between two preparations.
static int64_t prepare(void *ctx, int32_t phase) {
  probe *p = ctx;
  double t = now();
  if (phase > 0) p->seconds[phase - 1] = t - p->last;
  p->last = t;
  return phase < p->rounds ? (p->bytes + PIECE - 1) / PIECE : 0;
}

static void run(void *ctx, int32_t phase, int64_t chunk, int32_t thread) {
  (void)phase;
  (void)thread;
  probe *p = ctx;
  int64_t at = chunk * PIECE, n = p->bytes - at < PIECE ? p->bytes - at : PIECE;
  p->sum ^= p->k->read(p->mem + at, n);
}

void canon_read_probe(canon_pool *pool, const void *mem, int64_t bytes, int32_t rounds, double *seconds) {
  probe p = {.mem = mem, .bytes = bytes, .rounds = rounds, .seconds = seconds, .k = canon_pool_kernels(pool)};
  canon_job job = {.phases = rounds + 1, .prepare = prepare, .run = run, .ctx = &p};
  canon_pool_run(pool, &job);
}
