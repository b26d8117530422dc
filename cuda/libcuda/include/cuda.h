// Presents the driver signatures of CUDA 12 on a CUDA 13 toolkit: gorgonia.org/cu v0.9.6 calls seven functions whose macros
// lead to new signatures there. Put this folder before the toolkit's in C_INCLUDE_PATH.
#ifndef COVEY_CUDA_H
#define COVEY_CUDA_H
#include_next <cuda.h>
#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#undef cuMemAdvise
#undef cuMemPrefetchAsync
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#define cuCtxCreate cuCtxCreate_v2
#define cuMemAdvise covey_cuMemAdvise
#define cuMemPrefetchAsync covey_cuMemPrefetchAsync
#define cuGraphAddDependencies covey_cuGraphAddDependencies
#define cuGraphGetEdges covey_cuGraphGetEdges

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
static inline CUmemLocation covey_location(CUdevice d) {
  CUmemLocation l;
  l.type = d < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  l.id = d < 0 ? 0 : d;
  return l;
}
static inline CUresult covey_cuMemAdvise(CUdeviceptr p, size_t n, CUmem_advise a, CUdevice d) { return cuMemAdvise_v2(p, n, a, covey_location(d)); }
static inline CUresult covey_cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice d, CUstream s) { return cuMemPrefetchAsync_v2(p, n, covey_location(d), 0, s); }
static inline CUresult covey_cuGraphAddDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n) { return cuGraphAddDependencies_v2(g, from, to, 0, n); }
static inline CUresult covey_cuGraphGetEdges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *n) { return cuGraphGetEdges_v2(g, from, to, 0, n); }
#endif
#endif
