// AVX-512 with VNNI: the AVX-512 family with its own integer products.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#include <pthread.h>
#define VNNI 1
#include "kernels_avx512.h"

static void product(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r) {
  if (m->group == 0) canon_kernels_avx512()->product(m, tile, tiles, r);
  else if (m->form == CANON_INT4) int4(m, tile, tiles, r);
  else if (m->form == CANON_INT8) int8(m, tile, tiles, r);
  else mxfp4(m, tile, tiles, r);
}

static canon_kernels table;
static void fill(void) {
  table = *canon_kernels_avx512();
  table.product = product;
}

const canon_kernels *canon_kernels_vnni(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, fill);
  return &table;
}
#endif
