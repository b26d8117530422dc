// Threads, barriers and the choice of kernels.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif
#include "pool.h"

// How often a thread looks at the barrier before it sleeps: tens of microseconds, longer than a phase's imbalance and much
// shorter than a scheduler's time slice.
enum { SPINS = 1500 };

struct canon_pool {
  int32_t threads;
  const canon_kernels *kernels;
  pthread_t *thread;
  int *cpu;                                // cpu of each thread, -1 = anywhere
  canon_job *job;
  _Alignas(64) _Atomic uint32_t start;     // number of jobs begun; futex of idle threads
  _Alignas(64) _Atomic uint32_t done;      // number of jobs ended; futex of the caller
  _Alignas(64) _Atomic uint32_t phase;     // number of barriers passed; futex of waiting threads
  _Atomic uint32_t sleepers;
  _Alignas(64) _Atomic int32_t arrived;
  _Alignas(64) _Atomic int64_t next;       // next chunk
  int64_t chunks;
  _Atomic int stop;
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

// All threads leave together; the last one to arrive first prepares the next phase alone.
static void barrier(canon_pool *p, int32_t next_phase) {
  uint32_t seen = atomic_load(&p->phase);
  if (atomic_fetch_add(&p->arrived, 1) == p->threads - 1) {
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    p->chunks = next_phase < p->job->phases ? p->job->prepare(p->job->ctx, next_phase) : 0;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->phase, seen + 1);
    if (atomic_load(&p->sleepers)) futex_wake(&p->phase, p->threads);
    return;
  }
  for (int i = 0; i < SPINS; i++) {
    if (atomic_load_explicit(&p->phase, memory_order_acquire) != seen) return;
    relax();
  }
  atomic_fetch_add(&p->sleepers, 1);
  while (atomic_load(&p->phase) == seen) futex_wait(&p->phase, seen);
  atomic_fetch_sub(&p->sleepers, 1);
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
  if (p->cpu[s.id] >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(p->cpu[s.id], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);   // refusal only costs speed
  }
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);                      // to nearest, denormals kept, exceptions masked
#endif
  for (uint32_t round = 0;; round++) {
    while (atomic_load(&p->start) == round && !atomic_load(&p->stop)) futex_wait(&p->start, round);
    if (atomic_load(&p->stop)) return 0;
    canon_job *job = p->job;
    int32_t phases = job->phases;
    barrier(p, 0);
    for (int32_t ph = 0; ph < phases; ph++) {
      int64_t c;
      while ((c = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->chunks) job->run(job->ctx, ph, c, s.id);
      if (ph + 1 < phases) { barrier(p, ph + 1); continue; }
      if (atomic_fetch_add(&p->arrived, 1) == p->threads - 1) {
        atomic_store(&p->arrived, 0);
        atomic_store(&p->done, round + 1);
        futex_wake(&p->done, 1);
      }
    }
  }
}

void canon_pool_run(canon_pool *p, canon_job *job) {
  uint32_t round = atomic_load(&p->done);
  p->job = job;
  atomic_store(&p->start, round + 1);
  futex_wake(&p->start, p->threads);
  while (atomic_load(&p->done) == round) futex_wait(&p->done, round);
}

const canon_kernels *canon_pool_kernels(const canon_pool *p) { return p->kernels; }

// Lists one cpu of each physical core that this process may use; returns their number.
static int cores(int *cpus, int most) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  int n = 0;
  for (int c = 0; c < CPU_SETSIZE && n < most; c++) {
    if (!CPU_ISSET(c, &set)) continue;
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
    FILE *f = fopen(path, "re");
    int first = c;
    if (f) {
      if (fscanf(f, "%d", &first) != 1) first = c;
      fclose(f);
    }
    // The first sibling stands for the core, unless this process may not use it.
    if (first != c && first >= 0 && first < CPU_SETSIZE && CPU_ISSET(first, &set)) continue;
    cpus[n++] = c;
  }
  return n;
}

int canon_physical_cores(void) {
  int cpus[1024], n = cores(cpus, 1024);
  return n > 0 ? n : 1;
}

canon_pool *canon_pool_new(int threads, int isa) {
  canon_pool *p = aligned_alloc(64, (sizeof *p + 63) & ~(size_t)63);
  if (!p) return 0;
  *p = (canon_pool){.threads = threads, .kernels = canon_kernels_for(isa)};
  p->thread = calloc((size_t)threads, sizeof *p->thread);
  p->cpu = calloc((size_t)threads, sizeof *p->cpu);
  int cpus[1024], n = cores(cpus, 1024);
  int started = 0;
  if (p->thread && p->cpu) {
    // Fewer threads than cores stay free, or every process with one thread would share the first core.
    for (int i = 0; i < threads; i++) p->cpu[i] = threads == n ? cpus[i] : -1;
    for (; started < threads; started++) {
      seat *s = malloc(sizeof *s);
      if (!s) break;
      *s = (seat){p, started};
      if (pthread_create(&p->thread[started], 0, work, s) != 0) { free(s); break; }
    }
  }
  if (started < threads) {
    p->threads = started;
    canon_pool_free(p);
    return 0;
  }
  return p;
}

void canon_pool_free(canon_pool *p) {
  atomic_store(&p->stop, 1);
  atomic_fetch_add(&p->start, 1);
  futex_wake(&p->start, p->threads);
  for (int i = 0; i < p->threads; i++) pthread_join(p->thread[i], 0);
  free(p->thread);
  free(p->cpu);
  free(p);
}

// ---- instruction sets --------------------------------------------------------------------------------------------------

int canon_isa_supported(int isa) {
  switch (isa) {
    case CANON_PORTABLE: return 1;
#if defined(__x86_64__)
    case CANON_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case CANON_AVX512:
    case CANON_VNNI:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             (isa == CANON_AVX512 || __builtin_cpu_supports("avx512vnni"));
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
#endif
    default: return canon_kernels_portable();
  }
}
