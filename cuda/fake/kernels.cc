// The plain kernels for the test driver, as C++. The faster ones need a device.
#define COVEY_EMULATED
#include "../kernels/attend.cu"
#include "../kernels/delta.cu"
#include "../kernels/draw.cu"
#include "../kernels/feedforward.cu"
#include "../kernels/index.cu"
#include "../kernels/product.cu"
#include "../kernels/router.cu"
#include "../kernels/rows.cu"
#include "../kernels/streams.cu"
