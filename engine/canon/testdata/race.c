// Starts pools of several sizes, with and without places, and hands them jobs, pieces to fetch and memory to touch, under
// ThreadSanitizer: the race detector of Go does not see C. With -DPLANTED one sum is written without order, which must be
// reported.
#include <stdio.h>
#include "pool.h"

const canon_kernels *canon_kernels_portable(void) { return 0; }
const canon_kernels *canon_kernels_avx2(void) { return 0; }
const canon_kernels *canon_kernels_avx512(void) { return 0; }
const canon_kernels *canon_kernels_vnni(void) { return 0; }
const canon_kernels *canon_kernels_amx(void) { return 0; }
const canon_kernels *canon_kernels_neon(void) { return 0; }
const canon_kernels *canon_kernels_dotprod(void) { return 0; }

enum { CELLS = 100, PHASES = 30 };
static int64_t cells[CELLS], sum;
static uint8_t fresh[1 << 16];

static int64_t chunks(int32_t phase) { return phase % 3 == 2 ? 0 : phase * 17 % CELLS + 1; }

// What a phase leaves is read by one thread in the next preparation.
static int64_t prepare(void *ctx, int32_t phase) {
  canon_piece pieces[CANON_AHEAD] = {{cells, sizeof cells}};
  canon_pool_ahead(ctx, pieces);
  for (int i = 0; i < CELLS; i++) sum ^= cells[i];
  return chunks(phase);
}

static void run(void *ctx, int32_t phase, int64_t chunk, int32_t thread) {
  (void)ctx;
  (void)thread;
  cells[chunk] += phase;
#ifdef PLANTED
  sum ^= phase;
#endif
}

int main(void) {
  const int32_t cpu[] = {0, 0, 0, 0}, node[] = {0, 0, 1, 1};
  int64_t want = 0;
  for (int round = 0; round < 16; round++) {
    int threads = 1 + round % 4;
    canon_pool *pool = canon_pool_new(threads, CANON_PORTABLE, round & 4 ? cpu : 0, round & 8 ? node : 0);
    canon_job job = {.phases = PHASES, .prepare = prepare, .run = run, .ctx = pool};
    canon_piece piece = {fresh, sizeof fresh};
    if (!pool) return 2;
    canon_pool_touch(pool, &piece, 1);
    for (int i = 0; i < 10; i++) {
      canon_pool_run(pool, &job);
      for (int32_t phase = 0; phase < PHASES; phase++) want += phase * chunks(phase);
    }
    canon_pool_free(pool);
  }
  for (int i = 0; i < CELLS; i++) want -= cells[i];
  if (want) return 3;
  puts("done");
  return 0;
}
