//go:build cuda

// See driver.h.
#include <stdatomic.h>
#include <string.h>
#include "driver.h"

static _Atomic int64_t calls, fail_at;

void covey_fail_after(int64_t n) { fail_at = n > 0 ? calls + n : 0; }
int64_t covey_calls(void) { return calls; }
int covey_injected(void) { return ++calls == fail_at; }

CUresult covey_launch_all(const covey_launch *l, int32_t n, const CUfunction *functions, CUdeviceptr program, CUstream stream, int32_t *at) {
  CUlaunchAttribute overlap = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .value = {.programmaticStreamSerializationAllowed = 1}};
  for (*at = 0; *at < n; ++*at, l++) {
    if (covey_injected()) return CUDA_ERROR_OPERATING_SYSTEM;
    covey_argument argument = l->argument;
    int32_t more[2] = {l->more[0], l->more[1]};
    void *arguments[] = {&argument, &program, &more[0], &more[1]};
    CUlaunchConfig c = {.gridDimX = l->grid[0], .gridDimY = l->grid[1], .gridDimZ = l->grid[2], .blockDimX = l->threads, .blockDimY = 1, .blockDimZ = 1,
                        .sharedMemBytes = l->shared, .hStream = stream, .attrs = &overlap, .numAttrs = (unsigned)l->overlap};
    CUresult r = cuLaunchKernelEx(&c, functions[l->kernel], arguments, 0);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

CUresult covey_host_alloc(void **p, size_t n) { return cuMemHostAlloc(p, n, 0); }
CUresult covey_begin_capture(CUstream s) { return cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }
CUresult covey_end_capture(CUstream s, CUgraphExec *exec) {
  CUgraph g = 0;
  *exec = 0;
  CUresult r = cuStreamEndCapture(s, &g);
  if (r != CUDA_SUCCESS || !g) return r;
  r = cuGraphInstantiateWithFlags(exec, g, 0);
  CUresult d = cuGraphDestroy(g);
  return r != CUDA_SUCCESS ? r : d;
}
CUresult covey_graph_launch(CUgraphExec e, CUstream s) { return cuGraphLaunch(e, s); }
CUresult covey_graph_free(CUgraphExec e) { return cuGraphExecDestroy(e); }
CUresult covey_shared_limit(CUfunction f, int bytes) {
  CUresult r = cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
  // All such kernels divide a multiprocessor's memory alike: blocks of two launches may stand on one then, and nobody waits for it to
  // be divided anew.
  return r != CUDA_SUCCESS ? r : cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
}
CUresult covey_pci(char *id, int n, CUdevice d) { return cuDeviceGetPCIBusId(id, n, d); }

const char *covey_error_name(int code) { const char *s = 0; return cuGetErrorName((CUresult)code, &s) == CUDA_SUCCESS && s ? s : "unknown error"; }
const char *covey_error_text(int code) { const char *s = 0; return cuGetErrorString((CUresult)code, &s) == CUDA_SUCCESS && s ? s : ""; }
