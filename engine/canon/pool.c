// Threads, barriers and the choice of kernels.
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include "pool.h"

// How often a thread looks for work before it sleeps: some 30 microseconds, longer than a phase's imbalance and much
// shorter than a scheduler's time slice.
enum { SPINS = 1500 };

// What a thread without work fetches early, at most; half of a small second-level cache.
enum { AHEAD_MOST = 128 << 10, AHEAD_STEP = 2048 };

// Each thread has an equal part of a phase's chunks, neighbours in memory, and helps the others when it is through: streams
// stay long, which hardware foresees, and nobody waits for a thread that is off its core. A part is handed out by one word, its
// ticket: the number of the phase in its upper half, the chunks not yet taken in its lower. Whoever finishes the last chunk of
// a phase prepares the next one alone and publishes its tickets; there is no barrier that all threads must reach.
typedef struct { _Alignas(64) _Atomic uint64_t word; } ticket;

struct canon_pool {
  int32_t threads;
  const canon_kernels *kernels;
  pthread_t *thread;
  int32_t *cpu;                            // of each thread; null = anywhere
  int32_t *node;                           // [nodes + 1] first thread of each memory node, then threads
  int32_t nodes;
  ticket *tickets;                         // [threads]
  canon_job *job;
  int32_t current;                         // phase of the job; like chunks it stands still while a chunk is out
  int64_t chunks;
  _Alignas(64) _Atomic uint32_t phase;     // upper half of the tickets; futex of threads without work
  _Atomic uint32_t sleepers;
  _Alignas(64) _Atomic int64_t finished;   // chunks of the phase that are done
  _Alignas(64) _Atomic uint32_t done;      // number of jobs ended; futex of the caller
  _Atomic int stop;
  _Alignas(64) struct { _Atomic uintptr_t at; _Atomic int64_t bytes; } ahead[CANON_AHEAD];
  _Atomic uint32_t aheads;                 // how often ahead was set
};

static void futex_wait(_Atomic uint32_t *at, uint32_t value) { syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, 0, 0, 0); }
static void futex_wake(_Atomic uint32_t *at, int n) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, 0, 0, 0); }
static inline void relax(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// First chunk of the part of thread i.
static int64_t part(const canon_pool *p, int64_t chunks, int32_t i) { return chunks * i / p->threads; }

// By one thread while no chunk is out: publishes the next phase that has chunks, or ends the job.
static void advance(canon_pool *p, int32_t next) {
  canon_job *job = p->job;
  int64_t chunks = 0;
  while (next < job->phases && (chunks = job->prepare(job->ctx, next)) == 0) next++;
  if (next == job->phases) {
    atomic_fetch_add(&p->done, 1);
    futex_wake(&p->done, 1);
    return;
  }
  p->current = next;
  p->chunks = chunks;
  atomic_store_explicit(&p->finished, 0, memory_order_relaxed);
  uint32_t seq = atomic_load(&p->phase) + 1;
  for (int32_t i = 0; i < p->threads; i++)
    atomic_store(&p->tickets[i].word, (uint64_t)seq << 32 | (uint64_t)(part(p, chunks, i + 1) - part(p, chunks, i)));
  atomic_store(&p->phase, seq);
  if (atomic_load(&p->sleepers)) futex_wake(&p->phase, p->threads);
}

void canon_pool_ahead(canon_pool *p, const canon_piece pieces[CANON_AHEAD]) {
  for (int i = 0; i < CANON_AHEAD; i++) {
    atomic_store_explicit(&p->ahead[i].at, (uintptr_t)pieces[i].at, memory_order_relaxed);
    atomic_store_explicit(&p->ahead[i].bytes, pieces[i].bytes, memory_order_relaxed);
  }
  atomic_fetch_add(&p->aheads, 1);
}

// Fetches what a thread will read first of its part of the memory that is read next, until there is work: of its node's stretch
// of each piece, as chunks are handed out (canon_spread). The memory may be gone by now: fetching does not fault.
static void fetch(canon_pool *p, int32_t id, uint32_t seen) {
  int32_t v = 0;
  while (id >= p->node[v + 1]) v++;
  int64_t total = 0, at_node[CANON_AHEAD], of_node[CANON_AHEAD];
  for (int i = 0; i < CANON_AHEAD; i++) {
    int64_t bytes = atomic_load_explicit(&p->ahead[i].bytes, memory_order_relaxed);
    at_node[i] = canon_pool_stretch(p, bytes, v);
    of_node[i] = canon_pool_stretch(p, bytes, v + 1) - at_node[i];
    total += of_node[i];
  }
  int32_t first = p->node[v], neighbours = p->node[v + 1] - first;
  int64_t from = total * (id - first) / neighbours, to = total * (id - first + 1) / neighbours;
  to = to - from < AHEAD_MOST ? to : from + AHEAD_MOST;
  for (int i = 0; i < CANON_AHEAD && from < to; i++) {
    uintptr_t at = atomic_load_explicit(&p->ahead[i].at, memory_order_relaxed) + (uintptr_t)at_node[i];
    int64_t bytes = of_node[i], end = to < bytes ? to : bytes;
    for (; from < end; from += AHEAD_STEP) {
      if (atomic_load_explicit(&p->phase, memory_order_relaxed) != seen) return;
      for (int64_t line = 0; line < AHEAD_STEP && from + line < end; line += 64) __builtin_prefetch((const void *)(at + (uintptr_t)(from + line)), 0, 2);
    }
    from = from > bytes ? from - bytes : 0;
    to -= bytes;
  }
}

// Takes a chunk of the part of thread i; -1 if none is left.
static int64_t take_from(canon_pool *p, int32_t i) {
  uint64_t t = atomic_load_explicit(&p->tickets[i].word, memory_order_acquire);
  while ((uint32_t)t)
    if (atomic_compare_exchange_weak(&p->tickets[i].word, &t, t - 1)) return part(p, p->chunks, i + 1) - (uint32_t)t;
  return -1;
}

// Takes the next chunk; -1 when the pool stops. fetched is the thread's own: what it fetched last.
static int64_t take(canon_pool *p, int32_t id, uint32_t *fetched) {
  for (;;) {
    uint32_t seen = atomic_load_explicit(&p->phase, memory_order_acquire);
    for (int32_t i = 0; i < p->threads; i++) {
      int64_t chunk = take_from(p, (id + i) % p->threads);
      if (chunk >= 0) return chunk;
    }
    for (int spins = 0; spins < SPINS && atomic_load_explicit(&p->phase, memory_order_relaxed) == seen; spins++) {
      uint32_t set = atomic_load_explicit(&p->aheads, memory_order_acquire);
      if (set != *fetched) { *fetched = set; fetch(p, id, seen); }
      relax();
    }
    if (atomic_load(&p->phase) != seen) continue;
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->phase) == seen && !atomic_load(&p->stop)) futex_wait(&p->phase, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    if (atomic_load(&p->stop)) return -1;
  }
}

typedef struct { canon_pool *pool; int32_t id; } seat;

static void *work(void *arg) {
  seat s = *(seat *)arg;
  free(arg);
  canon_pool *p = s.pool;
  sigset_t signals;                        // asynchronous signals belong to the host program's own threads
  sigfillset(&signals);
  sigdelset(&signals, SIGSEGV);
  sigdelset(&signals, SIGBUS);
  sigdelset(&signals, SIGFPE);
  sigdelset(&signals, SIGILL);
  pthread_sigmask(SIG_BLOCK, &signals, 0);
  char name[16];
  snprintf(name, sizeof name, "canon-%d", s.id);
  pthread_setname_np(pthread_self(), name);
  if (p->cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(p->cpu[s.id], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);   // refusal only costs speed
  }
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);                      // to nearest, denormals kept, exceptions masked
#endif
  uint32_t fetched = 0;
  for (int64_t chunk; (chunk = take(p, s.id, &fetched)) >= 0;) {
    int32_t phase = p->current;
    int64_t chunks = p->chunks;
    p->job->run(p->job->ctx, phase, chunk, s.id);
    if (atomic_fetch_add(&p->finished, 1) + 1 == chunks) advance(p, phase + 1);
  }
  return 0;
}

void canon_pool_run(canon_pool *p, canon_job *job) {
  uint32_t round = atomic_load(&p->done);
  p->job = job;
  advance(p, 0);
  while (atomic_load(&p->done) == round) futex_wait(&p->done, round);
}

const canon_kernels *canon_pool_kernels(const canon_pool *p) { return p->kernels; }
int32_t canon_pool_threads(const canon_pool *p) { return p->threads; }
int32_t canon_pool_nodes(const canon_pool *p) { return p->nodes; }
int64_t canon_pool_stretch(const canon_pool *p, int64_t n, int32_t node) { return n * p->node[node] / p->threads; }

typedef struct { canon_pool *pool; const canon_piece *pieces; int32_t n; _Atomic int32_t here; } touching;

static int64_t touch_prepare(void *ctx, int32_t phase) {
  (void)phase;
  return ((touching *)ctx)->pool->threads;
}

// A chunk for each thread: nobody leaves his before all have come, so that nobody takes two.
static void touch(void *ctx, int32_t phase, int64_t chunk, int32_t thread) {
  enum { PAGE = 4096 };
  (void)phase;
  (void)chunk;
  touching *t = ctx;
  for (int32_t i = 0; i < t->n; i++) {
    uintptr_t at = (uintptr_t)t->pieces[i].at, from = at + (uintptr_t)part(t->pool, t->pieces[i].bytes, thread), to = at + (uintptr_t)part(t->pool, t->pieces[i].bytes, thread + 1);
    for (; from < to; from = (from | (PAGE - 1)) + 1) *(volatile uint8_t *)from = 0;
  }
  atomic_fetch_add(&t->here, 1);
  while (atomic_load(&t->here) < t->pool->threads) sched_yield();
}

void canon_pool_touch(canon_pool *p, const canon_piece *pieces, int32_t n) {
  touching t = {.pool = p, .pieces = pieces, .n = n};
  canon_job job = {.phases = 1, .prepare = touch_prepare, .run = touch, .ctx = &t};
  canon_pool_run(p, &job);
}

// Sets places: cpu and node of each thread, or null. Zero if memory is missing.
static int seat_threads(canon_pool *p, const int32_t *cpu, const int32_t *node) {
  p->node = calloc((size_t)p->threads + 1, sizeof *p->node);
  p->cpu = cpu ? calloc((size_t)p->threads, sizeof *p->cpu) : 0;
  if (!p->node || (cpu && !p->cpu)) return 0;
  for (int32_t i = 0; i < p->threads; i++) {
    if (i == 0 || (node && node[i] != node[i - 1])) p->node[p->nodes++] = i;
    if (cpu) p->cpu[i] = cpu[i];
  }
  p->node[p->nodes] = p->threads;
  return 1;
}

// Ends the first `started` threads.
static void end(canon_pool *p, int started) {
  atomic_store(&p->stop, 1);
  atomic_fetch_add(&p->phase, 1);
  futex_wake(&p->phase, INT_MAX);
  for (int i = 0; i < started; i++) pthread_join(p->thread[i], 0);
  free(p->thread);
  free(p->cpu);
  free(p->node);
  free(p->tickets);
  free(p);
}

canon_pool *canon_pool_new(int threads, int isa, const int32_t *cpu, const int32_t *node) {
  canon_pool *p = aligned_alloc(64, (sizeof *p + 63) & ~(size_t)63);
  if (!p) return 0;
  *p = (canon_pool){.threads = threads, .kernels = canon_kernels_for(isa)};
  p->thread = calloc((size_t)threads, sizeof *p->thread);
  p->tickets = aligned_alloc(64, (size_t)threads * sizeof *p->tickets);
  int started = 0;
  if (p->thread && p->tickets && seat_threads(p, cpu, node)) {
    memset(p->tickets, 0, (size_t)threads * sizeof *p->tickets);
    for (; started < threads; started++) {
      seat *s = malloc(sizeof *s);
      if (!s) break;
      *s = (seat){p, started};
      if (pthread_create(&p->thread[started], 0, work, s) != 0) { free(s); break; }
    }
  }
  if (started == threads) return p;
  end(p, started);
  return 0;
}

void canon_pool_free(canon_pool *p) { end(p, p->threads); }

// ---- instruction sets --------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// The processor has tiles of bytes, and the system lets this process use them (it grants their large state on request).
static int tiles(void) {
  enum { REQUEST = 0x1023, TILE_DATA = 18, TILE = 1 << 24, INT8 = 1 << 25 };
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILE) && (d & INT8) && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

int canon_isa_supported(int isa) {
  switch (isa) {
    case CANON_PORTABLE: return 1;
#if defined(__x86_64__)
    case CANON_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case CANON_AVX512:
    case CANON_VNNI:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             (isa == CANON_AVX512 || __builtin_cpu_supports("avx512vnni"));
    case CANON_AMX: return canon_isa_supported(CANON_VNNI) && tiles();
#elif defined(__aarch64__)
    case CANON_NEON: return 1;
    case CANON_DOTPROD: return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    default: return -1;
  }
}

const canon_kernels *canon_kernels_for(int isa) {
  if (canon_isa_supported(isa) != 1) return 0;
  switch (isa) {
#if defined(__x86_64__)
    case CANON_AVX2: return canon_kernels_avx2();
    case CANON_AVX512: return canon_kernels_avx512();
    case CANON_VNNI: return canon_kernels_vnni();
    case CANON_AMX: return canon_kernels_amx();
#elif defined(__aarch64__)
    case CANON_NEON: return canon_kernels_neon();
    case CANON_DOTPROD: return canon_kernels_dotprod();
#endif
    default: return canon_kernels_portable();
  }
}
