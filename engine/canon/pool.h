// A fixed pool of threads that runs a list of phases, each complete before the next.
#pragma once
#include "kernels.h"

// One job: phases run in order; in each, chunks 0..n-1 are shared out in equal parts, and a thread that is through with its
// own takes from the others', so one that is held up by a neighbour delays one chunk only.
typedef struct canon_job {
  int32_t phases;
  // By one thread, alone, not always one of the pool's: returns the number of chunks, below 2^31; 0 when the phase is done.
  int64_t (*prepare)(void *ctx, int32_t phase);
  void (*run)(void *ctx, int32_t phase, int64_t chunk, int32_t thread);
  void *ctx;
} canon_job;

void canon_pool_run(canon_pool *pool, canon_job *job);        // returns when all phases are done
const canon_kernels *canon_pool_kernels(const canon_pool *pool);
int32_t canon_pool_threads(const canon_pool *pool);

// Threads lie node by node: of anything that all threads share out in order, the threads of one memory node have one stretch.
int32_t canon_pool_nodes(const canon_pool *pool);
// Where the stretch of a node begins in n things; of node canon_pool_nodes, n.
int64_t canon_pool_stretch(const canon_pool *pool, int64_t n, int32_t node);

// Says what some later phase will read: threads without work fetch the first of their part of it. Called by prepare.
enum { CANON_AHEAD = 4 };
void canon_pool_ahead(canon_pool *pool, const canon_piece pieces[CANON_AHEAD]);
