// libcuda.a: the driver's functions as jumps through a table, so that one binary starts with and without a driver.
//
// When the process starts, libcuda.so.1 is looked for; only if it is there and initialises is the table filled. Otherwise the
// table's defaults answer: cuInit succeeds (gorgonia.org/cu ends the process where it does not), there are no devices and no
// version, everything else is CUDA_ERROR_NO_DEVICE. A call costs one indirect jump. Linked before the real library it takes
// its place; a symbol missing in symbols.h is an error of the linker.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static int success(void) { return 0; }
static int zero(int *n) { *n = 0; return 0; }
static int no_device(void) { return 100; }

#if defined(__x86_64__)
#define JUMP(name) ".globl " #name "\n.type " #name ",@function\n" #name ": jmp *covey_slot_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name)                                                                                                        \
  ".globl " #name "\n.type " #name ",%function\n" #name ": adrp x16, covey_slot_" #name "\nldr x16, [x16, :lo12:covey_slot_" #name "]\nbr x16\n"
#endif

#define SLOT(name, answer) __attribute__((used, visibility("hidden"))) void *covey_slot_##name = (void *)(answer); __asm__(".text\n" JUMP(name));
#define X(name) SLOT(name, no_device)
SLOT(cuInit, success)
SLOT(cuDeviceGetCount, zero)
SLOT(cuDriverGetVersion, zero)
#include "symbols.h"
#undef X

static const struct { const char *name; void **slot; } table[] = {
#define X(name) {#name, &covey_slot_##name},
  X(cuInit) X(cuDeviceGetCount) X(cuDriverGetVersion)
#include "symbols.h"
#undef X
};

__attribute__((constructor)) static void load(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) return;
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  if (!init || init(0) != 0) return;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    void *f = dlsym(driver, table[i].name);
    if (f) *table[i].slot = f;
  }
}
