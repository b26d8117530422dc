// A driver for tests: libcuda.so.1 over ordinary memory. Copies and launches happen at once in the calling thread; kernels
// are the sources of cuda/kernels compiled by emulate.h. A captured stream records its calls in a graph instead. Calls that
// the host code must not make (a freed or unknown address, a launch beyond the device's limits, another thread's missing
// context) are refused as a real driver would.
//
// COVEY_FAKE_DEVICES: how many devices there are (1). COVEY_FAKE_MEMORY: bytes of each (1 GiB). COVEY_FAKE_HANG: if
// set, waiting for a stream never ends. COVEY_FAKE_ERROR: what waiting for a stream returns. COVEY_FAKE_CAPABILITY: what the
// devices are (90), which says how much shared memory a block may have. COVEY_FAKE_PTX: the virtual architecture of the kernels
// (the capability); below 90 there are no kernels of one row and of few rows, and any with bulk copies ends the process.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <mutex>
#include <unistd.h>
#include <vector>
#include "emulate.h"
#include "../plan.h"

typedef int result;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_OUT_OF_RESOURCES = 701 };

// ---- fibers ------------------------------------------------------------------------------------------------------------

uint3_ threadIdx, blockIdx, blockDim, gridDim;
unsigned char *emulated_dynamic;

typedef void (*kernel)(covey_argument, const covey_program *, int32_t, int32_t);   // a kernel reads what it has of them
// What a block has without asking is 48 KiB and counts what its kernel declares, at most 17 KiB where it also asks for some.
enum { MOST_THREADS = 1024, STACK = 64 << 10, MOST_SHARED = 227 << 10, NEED_NO_ASKING = 31 << 10 };

struct fiber { void *sp; int done, waits, polls; uint64_t barrier, exchange; };   // waits: for exchange `exchange` of its warp
struct warp_state { uint64_t slots[2][32], exchanges; int lanes, arrived, done; };
struct meeting { int arrived; uint64_t passed; };
struct block {
  uint3_ index;
  fiber *fibers;
  unsigned char *dynamic;
  uint64_t passed;                                       // barriers that the block has passed
  warp_state warps[MOST_THREADS / 32];
  meeting meetings[16];
};
static void *scheduler;
static block *running;                                   // and the thread of it
static int current;
static kernel body;
static const covey_launch *body_launch;
static const covey_program *body_program;

// Saves the callee's registers on the stack and continues on another one.
extern "C" void emulated_switch(void **save, void *to);
#if defined(__x86_64__)
asm(".text\n.globl emulated_switch\nemulated_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static void *first_frame(char *top, void (*entry)()) {
  void **sp = (void **)((uintptr_t)top & ~(uintptr_t)15);
  *--sp = 0;                                             // the entry's return address, never used
  *--sp = (void *)entry;
  for (int i = 0; i < 6; i++) *--sp = 0;
  return sp;
}
#elif defined(__aarch64__)
asm(".text\n.globl emulated_switch\nemulated_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
static void *first_frame(char *top, void (*entry)()) {
  uint64_t *sp = (uint64_t *)((uintptr_t)top & ~(uintptr_t)15) - 20;
  memset(sp, 0, 160);
  sp[11] = (uint64_t)entry;
  return sp;
}
#endif

static void leave() { emulated_switch(&running->fibers[current].sp, scheduler); }
static void complete(warp_state &w) {
  if (w.arrived && w.arrived + w.done == w.lanes) { w.exchanges++; w.arrived = 0; }
}
static void enter() {
  body(body_launch->argument, body_program, body_launch->more[0], body_launch->more[1]);
  running->fibers[current].done = 1;
  running->warps[current / 32].done++;
  complete(running->warps[current / 32]);
  for (;;) leave();
}
void emulated_barrier() {
  uint64_t mine = ++running->fibers[current].barrier;
  while (running->passed < mine) leave();
}
const uint64_t *emulated_exchange(uint64_t v) {
  fiber &f = running->fibers[current];
  warp_state &w = running->warps[current / 32];
  uint64_t n = w.exchanges;                              // no lane can be a whole exchange ahead of another
  w.slots[n & 1][current % 32] = v;
  w.arrived++;
  complete(w);
  f.waits = 1;
  f.exchange = n;
  while (w.exchanges <= n) leave();
  f.waits = 0;
  return w.slots[n & 1];
}
void emulated_poll() {
  running->fibers[current].polls = 1;
  leave();
}
void emulated_meeting(int id, int threads, bool wait) {
  meeting &m = running->meetings[id];
  uint64_t mine = m.passed;
  if (++m.arrived == threads) { m.arrived = 0; m.passed++; }
  while (wait && m.passed == mine) emulated_poll();
}
// Runs the lanes of a warp until all wait for something, have polled once or have ended.
static void run_warp(int warp) {
  warp_state &w = running->warps[warp];
  for (int t = warp * 32; t < warp * 32 + w.lanes; t++) running->fibers[t].polls = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int t = warp * 32; t < warp * 32 + w.lanes; t++) {
      fiber &f = running->fibers[t];
      if (f.done || f.polls || f.barrier > running->passed || (f.waits && w.exchanges <= f.exchange)) continue;
      current = t;
      threadIdx = {(uint32_t)t, 0, 0};
      emulated_switch(&scheduler, f.sp);
      moved = true;
    }
  }
}
static void begin(block &b, char *stacks, unsigned char *dynamic, uint32_t shared) {
  int n = (int)blockDim.x;
  b.dynamic = dynamic;
  b.passed = 0;
  memset(b.meetings, 0, sizeof b.meetings);
  memset(dynamic, 0xcd, shared);                         // what was there is nobody's zero
  for (int t = 0; t < n; t++) b.fibers[t] = {first_frame(stacks + (size_t)(t + 1) * STACK, enter), 0, 0, 0, 0, 0};
  for (int w = 0; w * 32 < n; w++) { b.warps[w].exchanges = 0; b.warps[w].arrived = b.warps[w].done = 0; b.warps[w].lanes = n - w * 32 < 32 ? n - w * 32 : 32; }
}
// Lets every thread of a block run as far as it gets; whether any is left.
static bool advance(block &b) {
  int n = (int)blockDim.x, left = 0;
  bool polls = false;
  running = &b;
  blockIdx = b.index;
  emulated_dynamic = b.dynamic;
  for (int w = 0; w * 32 < n; w++) {
    run_warp(w);
    left += b.warps[w].lanes - b.warps[w].done;
  }
  for (int t = 0; t < n; t++) polls |= !b.fibers[t].done && b.fibers[t].polls;
  if (!polls) b.passed++;                                // whoever polls goes on before a barrier is passed
  return left;
}
// A launch whose blocks wait for one another runs all of them at once, each with shared memory of its own; what kernels declare
// as shared is one for all blocks, so such kernels have none.
static void run_kernel(kernel k, const uint32_t *grid, uint32_t threads, uint32_t shared, const covey_launch &l, const covey_program *p, bool together) {
  uint32_t all = grid[0] * grid[1] * grid[2], at_once = together ? all : 1;
  size_t memory = MOST_SHARED + 64, stack = (size_t)threads * STACK;
  static std::vector<unsigned char> dynamic;
  static std::vector<fiber> fibers;
  static char *stacks;
  static size_t room;
  if (dynamic.size() < at_once * memory) dynamic.resize(at_once * memory);
  if (fibers.size() < at_once * threads) fibers.resize(at_once * threads);
  if (room < at_once * stack) {
    free(stacks);
    stacks = (char *)aligned_alloc(4096, room = at_once * stack);
  }
  body = k;
  body_launch = &l;
  body_program = p;
  blockDim = {threads, 1, 1};
  gridDim = {grid[0], grid[1], grid[2]};
  std::vector<block> blocks(at_once);
  for (uint32_t first = 0; first < all; first += at_once) {
    for (uint32_t i = 0; i < at_once; i++) {
      uint32_t n = first + i;
      blocks[i].index = {n % grid[0], n / grid[0] % grid[1], n / grid[0] / grid[1]};
      blocks[i].fibers = fibers.data() + (size_t)i * threads;
      begin(blocks[i], stacks + i * stack, (unsigned char *)(((uintptr_t)dynamic.data() + i * memory + 63) & ~(uintptr_t)63), shared);
    }
    for (bool left = true; left;) {
      left = false;
      for (block &b : blocks) left |= advance(b);
    }
  }
}

// ---- state -------------------------------------------------------------------------------------------------------------

static std::recursive_mutex mu;
struct allocation { size_t bytes; int context; };
static std::map<uintptr_t, allocation> allocations;      // by address, all devices
static size_t in_use[16], host_in_use;                   // by context
static std::map<void *, size_t> pinned;
static thread_local int context;                         // device + 1; 0 = none

struct graph { std::vector<std::function<result()>> calls; };
struct stream { graph *capture; int context; };
struct event { graph *capture; };                        // of the stream that it was recorded in
struct function { kernel k; int shared, context; char name[64]; };
static std::map<graph *, std::vector<stream *>> joined;  // streams that a capture has drawn in

static long setting(const char *name, long absent) { const char *v = getenv(name); return v ? atol(v) : absent; }
static int capability() { return (int)setting("COVEY_FAKE_CAPABILITY", 90); }
static int made_for() { return (int)setting("COVEY_FAKE_PTX", capability()); }
static int most_shared() { return capability() == 80 ? 163 << 10 : capability() < 90 || capability() >= 120 ? 99 << 10 : MOST_SHARED; }
void emulated_bulk() { if (made_for() < 90) { fprintf(stderr, "emulated driver: a bulk copy in code that has none\n"); abort(); } }
static int devices() { return (int)setting("COVEY_FAKE_DEVICES", 1); }
static size_t memory() { return (size_t)setting("COVEY_FAKE_MEMORY", 1L << 30); }
static bool owned(uintptr_t at, size_t n) {
  auto it = allocations.upper_bound(at);
  if (it == allocations.begin()) return false;
  --it;
  return at >= it->first && at + n <= it->first + it->second.bytes;
}
static result submit(stream *s, std::function<result()> call) {
  if (!context || (s && s->context != context)) return INVALID_CONTEXT;
  if (s && s->capture) { s->capture->calls.push_back(std::move(call)); return OK; }
  return call();
}
#define API extern "C" __attribute__((visibility("default"))) result
#define LOCK std::lock_guard<std::recursive_mutex> lock(mu)

API cuInit(unsigned) { return OK; }
API cuDriverGetVersion(int *v) { *v = 13000; return OK; }
API cuDeviceGetCount(int *n) { *n = devices(); return OK; }
API cuDeviceGet(int *d, int ordinal) { if (ordinal < 0 || ordinal >= devices()) return INVALID_DEVICE; *d = ordinal; return OK; }
API cuDeviceGetName(char *name, int n, int d) { snprintf(name, (size_t)n, "Emulated device %d", d); return OK; }
API cuDeviceTotalMem_v2(size_t *n, int) { *n = memory(); return OK; }
API cuDeviceGetAttribute(int *v, int attribute, int) {
  switch (attribute) {
    case 1: *v = MOST_THREADS; break;
    case 16: *v = 4; break;                              // multiprocessors
    case 75: *v = capability() / 10; break;
    case 76: *v = capability() % 10; break;
    case 97: *v = most_shared(); break;                    // shared memory a block may opt in to
    default: *v = 1;
  }
  return OK;
}
API cuDeviceGetPCIBusId(char *id, int n, int d) { snprintf(id, (size_t)n, "0000:%02x:00.0", d); return OK; }
API cuDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; return OK; }
API cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(intptr_t)(d + 1); return OK; }
API cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API cuCtxSetCurrent(void *c) { context = (int)(intptr_t)c; return OK; }
API cuCtxSynchronize() { return context ? OK : INVALID_CONTEXT; }
API cuGetErrorName(int code, const char **s) { *s = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED"; return OK; }
API cuGetErrorString(int code, const char **s) { *s = code == OUT_OF_MEMORY ? "out of memory" : "emulated error"; return OK; }

API cuMemGetInfo_v2(size_t *free, size_t *total) { LOCK; if (!context) return INVALID_CONTEXT; *total = memory(); *free = memory() - in_use[context]; return OK; }
API cuMemAlloc_v2(uintptr_t *p, size_t n) {
  LOCK;
  if (!context) return INVALID_CONTEXT;
  if (n == 0) return INVALID_VALUE;
  if (in_use[context] + n > memory()) return OUT_OF_MEMORY;
  void *m = aligned_alloc(256, (n + 255) / 256 * 256);
  memset(m, 0xcd, n);
  *p = (uintptr_t)m;
  allocations[*p] = {n, context};
  in_use[context] += n;
  return OK;
}
API cuMemFree_v2(uintptr_t p) {
  LOCK;
  auto it = allocations.find(p);
  if (it == allocations.end() || it->second.context != context) return INVALID_VALUE;
  in_use[context] -= it->second.bytes;
  free((void *)p);
  allocations.erase(it);
  return OK;
}
API cuMemHostAlloc(void **p, size_t n, unsigned) { LOCK; if (!context) return INVALID_CONTEXT; *p = aligned_alloc(256, (n + 255) / 256 * 256); memset(*p, 0xcd, n); pinned[*p] = n; host_in_use += n; return OK; }
API cuMemFreeHost(void *p) { LOCK; auto it = pinned.find(p); if (it == pinned.end()) return INVALID_VALUE; host_in_use -= it->second; free(p); pinned.erase(it); return OK; }
API covey_fake_in_use(size_t *device, size_t *host) { LOCK; *device = 0; for (size_t n : in_use) *device += n; *host = host_in_use; return OK; }

API cuMemcpyHtoDAsync_v2(uintptr_t d, const void *h, size_t n, stream *s) { LOCK; if (!owned(d, n)) return INVALID_VALUE; return submit(s, [=] { memcpy((void *)d, h, n); return OK; }); }
API cuMemcpyDtoHAsync_v2(void *h, uintptr_t d, size_t n, stream *s) { LOCK; if (!owned(d, n)) return INVALID_VALUE; return submit(s, [=] { memcpy(h, (void *)d, n); return OK; }); }
API cuMemcpyDtoDAsync_v2(uintptr_t a, uintptr_t b, size_t n, stream *s) { LOCK; if (!owned(a, n) || !owned(b, n)) return INVALID_VALUE; return submit(s, [=] { memmove((void *)a, (void *)b, n); return OK; }); }
API cuMemcpyHtoD_v2(uintptr_t d, const void *h, size_t n) { return cuMemcpyHtoDAsync_v2(d, h, n, 0); }
API cuMemcpyDtoH_v2(void *h, uintptr_t d, size_t n) { return cuMemcpyDtoHAsync_v2(h, d, n, 0); }
API cuMemcpyDtoD_v2(uintptr_t a, uintptr_t b, size_t n) { return cuMemcpyDtoDAsync_v2(a, b, n, 0); }
API cuMemsetD8Async(uintptr_t d, unsigned char v, size_t n, stream *s) { LOCK; if (!owned(d, n)) return INVALID_VALUE; return submit(s, [=] { memset((void *)d, v, n); return OK; }); }
API cuMemsetD2D8Async(uintptr_t d, size_t pitch, unsigned char v, size_t width, size_t height, stream *s) {
  LOCK;
  if (width > pitch || !height || !owned(d, (height - 1) * pitch + width)) return INVALID_VALUE;
  return submit(s, [=] { for (size_t i = 0; i < height; i++) memset((void *)(d + i * pitch), v, width); return OK; });
}
API cuMemsetD8_v2(uintptr_t d, unsigned char v, size_t n) { return cuMemsetD8Async(d, v, n, 0); }

API cuModuleLoadData(void **m, const void *image) { if (!context) return INVALID_CONTEXT; *m = (void *)image; return OK; }
API cuModuleUnload(void *) { return OK; }
API cuModuleGetFunction(function **f, void *, const char *name) {
  if (made_for() < 90 && (strstr(name, "_row_") || strstr(name, "_few_"))) return NOT_FOUND;   // build.sh has none
  void *k = dlsym(RTLD_DEFAULT, name);
  if (!k) {
    static void *self = dlopen("libcuda.so.1", RTLD_NOW);
    k = self ? dlsym(self, name) : 0;
  }
  if (!k) return NOT_FOUND;
  *f = new function{(kernel)k, NEED_NO_ASKING, context, ""};
  snprintf((*f)->name, sizeof (*f)->name, "%s", name);
  return OK;
}
API cuFuncSetAttribute(function *f, int attribute, int v) { if (attribute == 8) { if (v > most_shared()) return INVALID_VALUE; f->shared = v; } return OK; }
API cuFuncGetAttribute(int *v, int attribute, function *) { *v = attribute == 5 ? made_for() : 0; return OK; }
struct launch_config { unsigned gx, gy, gz, bx, by, bz, shared; stream *s; void *attributes; unsigned attributes_n; };
API cuLaunchKernelEx(const launch_config *c, function *f, void **args, void **) {
  LOCK;
  if (!f || f->context != context) return INVALID_HANDLE;
  if (!c->gx || !c->gy || !c->gz || c->gy > 65535 || c->gz > 65535 || !c->bx || c->by != 1 || c->bz != 1 || c->bx > MOST_THREADS || (int)c->shared > f->shared) {
    fprintf(stderr, "emulated driver: %s refused: grid %u %u %u, %u threads, %u bytes\n", f->name, c->gx, c->gy, c->gz, c->bx, c->shared);
    return LAUNCH_OUT_OF_RESOURCES;
  }
  covey_launch l;
  memset(&l, 0, sizeof l);
  l.argument = *(const covey_argument *)args[0];
  for (int i = 0; i < 2; i++) l.more[i] = *(const int32_t *)args[2 + i];
  const covey_program *p = *(const covey_program **)args[1];
  kernel k = f->k;
  bool together = strstr(f->name, "_row_");
  uint32_t x = c->gx, y = c->gy, z = c->gz, threads = c->bx, shared = c->shared;
  return submit(c->s, [=] { uint32_t grid[3] = {x, y, z}; run_kernel(k, grid, threads, shared, l, p, together); return OK; });
}

API cuStreamCreate(stream **s, unsigned) { if (!context) return INVALID_CONTEXT; *s = new stream{0, context}; return OK; }
API cuStreamDestroy_v2(stream *s) { delete s; return OK; }
API cuStreamSynchronize(stream *s) {
  if (s && s->capture) return 900;
  if (getenv("COVEY_FAKE_HANG")) for (;;) pause();
  if (long code = setting("COVEY_FAKE_ERROR", 0)) return (result)code;
  return OK;
}
API cuStreamQuery(stream *) { return OK; }
API cuStreamBeginCapture_v2(stream *s, int) { s->capture = new graph; return OK; }
API cuStreamEndCapture(stream *s, graph **g) {
  *g = s->capture;
  for (stream *other : joined[*g]) other->capture = 0;
  joined.erase(*g);
  s->capture = 0;
  return OK;
}
// A stream that waits for what a capture records becomes part of the capture.
API cuStreamWaitEvent(stream *s, event *e, unsigned) {
  if (e->capture && !s->capture) joined[e->capture].push_back(s);
  if (e->capture) s->capture = e->capture;
  return OK;
}
API cuCtxEnablePeerAccess(int64_t peer, unsigned) { return context && peer && peer != context ? OK : INVALID_CONTEXT; }
API cuGraphInstantiateWithFlags(graph **e, graph *g, unsigned long long) { *e = new graph(*g); return OK; }
API cuGraphLaunch(graph *e, stream *s) { LOCK; return submit(s, [=] { for (auto &c : e->calls) if (result r = c()) return r; return (result)OK; }); }
API cuGraphExecDestroy(graph *e) { delete e; return OK; }
API cuGraphDestroy(graph *g) { delete g; return OK; }
API cuEventCreate(event **e, unsigned) { *e = new event{0}; return OK; }
API cuEventDestroy_v2(event *e) { delete e; return OK; }
API cuEventRecord(event *e, stream *s) { e->capture = s->capture; return OK; }
API cuEventSynchronize(event *) { return OK; }
API cuEventQuery(event *) { return OK; }
API cuEventElapsedTime_v2(float *ms, event *, event *) { *ms = 1; return OK; }
