// The k-th largest of many values, by one block of threads: a digit of eight bits at a time, from the highest. Reads the values
// four times through the cache.
#pragma once
#include "device.h"

struct kth { uint32_t order; int32_t equals; };   // of the k-th largest; how many values of this order are among the k largest

// order(i) is the place of value i in an ascending order; 1 <= k <= n. All threads call it and get the same.
template <class ORDER> static __device__ __forceinline__ kth kth_largest(int32_t n, int32_t k, ORDER order) {
  __shared__ int32_t count[256], left;
  __shared__ uint32_t digits;
  const int32_t t = threadIdx.x, threads = blockDim.x;
  uint32_t found = 0, mask = 0;
  if (t == 0) left = k;
  for (int32_t shift = 24; shift >= 0; shift -= 8) {
    for (int32_t i = t; i < 256; i += threads) count[i] = 0;
    __syncthreads();
    for (int32_t i = t; i < n; i += threads) {
      uint32_t o = order(i);
      if ((o & mask) == found) atomicAdd(&count[o >> shift & 255], 1);
    }
    __syncthreads();
    if (t < 32) {                                            // a lane has eight digits, the highest first; one of them holds the k-th
      int32_t digit = 255 - t * 8, sum = 0, rest = left;
      for (int32_t i = 0; i < 8; i++) sum += count[digit - i];
      int32_t up_to = sum;
      for (int32_t s = 1; s < 32; s <<= 1) { int32_t v = __shfl_up_sync(FULL, up_to, s); if (t >= s) up_to += v; }
      rest -= up_to - sum;
      if (rest > 0 && rest <= sum) {
        for (; count[digit] < rest; digit--) rest -= count[digit];
        digits = found | (uint32_t)digit << shift;
        left = rest;
      }
    }
    __syncthreads();
    found = digits;
    mask |= 255u << shift;
  }
  return kth{found, left};
}
