// What happens to one head of queries or keys before attention, by one warp in shared memory.
#pragma once
#include "device.h"

// RMS norm of x [n] with weights w (rule 4).
__device__ __forceinline__ void head_norm(float *x, const float *w, int n, float eps, int plus_one, int lane) {
  float s = 0;
  for (int i = lane; i < n; i += 32) s = canon_fmaf(x[i], x[i], s);
  s = canon_rms_factor(warp_tree(s), n, eps);
  for (int i = lane; i < n; i += 32) {
    float v = x[i] * s;
    x[i] = v * (plus_one ? w[i] + 1.0f : w[i]);
  }
  __syncwarp();
}
// Rotation of n pairs from x on (rule 5).
__device__ __forceinline__ void head_turn(float *x, int n, int pairing, const float *cosine, const float *sine, int lane) {
  #pragma unroll 1
  for (int j = lane; j < n; j += 32) {
    if (pairing) canon_rotate(x + 2 * j, x + 2 * j + 1, cosine[j], sine[j]);
    else canon_rotate(x + j, x + j + n, cosine[j], sine[j]);
  }
  __syncwarp();
}
