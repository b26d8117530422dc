// The driver calls that gorgonia.org/cu does not have, the launch loop, and the counter that injects failures. All run in the
// thread that holds the device's context. Sizes are bytes.
#pragma once
#include <cuda.h>
#include "plan.h"

// Lets the n-th driver call from now fail; 0 ends it. Calls counts those made since the process began.
void covey_fail_after(int64_t n);
int64_t covey_calls(void);
int covey_injected(void);  // counts one call; 1 if it must fail instead

// Launches in order on a stream; at the first failure *at is its index. Functions are by kernel.
CUresult covey_launch_all(const covey_launch *l, int32_t n, const CUfunction *functions, CUdeviceptr program, CUstream stream, int32_t *at);

CUresult covey_host_alloc(void **p, size_t n);
CUresult covey_begin_capture(CUstream s);
CUresult covey_end_capture(CUstream s, CUgraphExec *exec);   // also ends a capture that failed; *exec is null then
CUresult covey_graph_launch(CUgraphExec e, CUstream s);
CUresult covey_graph_free(CUgraphExec e);
CUresult covey_shared_limit(CUfunction f, int bytes);
CUresult covey_pci(char *id, int n, CUdevice d);
const char *covey_error_name(int code);
const char *covey_error_text(int code);
