// NEON with 8-bit dot products: the NEON family with its own integer products.
#if defined(__aarch64__)
#pragma GCC target("arch=armv8.2-a+dotprod")
#include <pthread.h>
#include "lanes_neon.h"
#define DOT4 vdotq_s32
#include "kernels_neon.h"

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0) canon_kernels_neon()->product(m, tile, tiles, r);
  else codes(m, tile, tiles, r);
}

static canon_kernels table;
static void fill(void) {
  table = *canon_kernels_neon();
  table.product = product;
}

const canon_kernels *canon_kernels_dotprod(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill);
  return &table;
}
#endif
