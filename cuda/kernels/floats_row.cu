// One row by a large float matrix (rule 3), such as a head: one block a multiprocessor, whose warps take eight outputs at a time from
// rings in shared memory, which bulk copies of whole stretches of rows fill before the launch before has ended. A thread holds eight
// neighbouring lanes of the rule of one output. Bound by reading the matrix once. Twin: canon_dot.
#include "device.h"
#include "ptx.cuh"

// Eight outputs a warp, in stretches of ROW_BYTES a row; 64 bytes between rows keep their reads in different banks.
enum { ROW_WARPS = 8, ROW_BYTES = 2048, ROW_PITCH = ROW_BYTES + 64, ROW_SLOT = 8 * ROW_PITCH, ROW_MOST = 16 };

// grid (multiprocessors), ROW_WARPS warps and one that copies; slots: a multiple of ROW_WARPS. Dynamic shared memory: barriers,
// the row [cols], slots.
template <int FORM> static __device__ __forceinline__ void floats_row(const canon_op &op, const covey_program *p, int check, int slots) {
  COVEY_MEMORY(memory);
  constexpr int size = FORM == CANON_F32 ? 4 : 2, depth = ROW_BYTES / size;
  uint64_t *full = (uint64_t *)memory, *empty = full + ROW_MOST;
  float *xs = (float *)(empty + ROW_MOST);
  uint8_t *ring = memory + (2 * ROW_MOST * 8 + op.m.cols * 4 + 127) / 128 * 128;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, cols = op.m.cols, outputs = op.m.rows, turns = slots / ROW_WARPS;
  const int stretches = (cols + depth - 1) / depth, step = gridDim.x * ROW_WARPS * 8;
  let_next_start();
  if (lane == 0 && warp < ROW_WARPS)
    for (int i = warp; i < slots; i += ROW_WARPS) { barrier_init(&full[i], 1); barrier_init(&empty[i], WARP_ARRIVALS); }
  if (lane == 0) barrier_init_done();
  __syncthreads();
  int turn = 0;
  uint32_t parity = 0;
  auto next = [&] { if (++turn == turns) { turn = 0; parity ^= 1; } };
  if (warp == ROW_WARPS) {
    const uint64_t policy = read_once();
    for (int first = blockIdx.x * ROW_WARPS * 8; first < outputs; first += step)
      for (int c = 0; c < stretches; c++, next()) {
        const uint32_t bytes = at_most(cols - c * depth, depth) * size;
        #pragma unroll 1
        for (int w = 0; w < ROW_WARPS; w++) {
          const int slot = turn * ROW_WARPS + w, o = first + w * 8, rows = outputs - o < 8 ? outputs - o : 8;
          if (rows <= 0) break;
          if (lane == 0) {
            barrier_wait(&empty[slot], parity ^ 1);
            barrier_expect(shared_address(&full[slot]), rows * bytes);
          }
          __syncwarp();
          if (lane < rows) bulk_load(shared_address(ring + slot * ROW_SLOT + lane * ROW_PITCH), op.m.codes + ((int64_t)(o + lane) * cols + c * depth) * size, bytes, shared_address(&full[slot]), policy);
        }
      }
    return;
  }
  wait_for_previous();
  if (rows_of(p, op.dst.logits) < 1) return;
  for (int i = threadIdx.x; i < cols; i += ROW_WARPS * 32) xs[i] = __ldcg(op.src.data + i);
  warps_sync(1, ROW_WARPS * 32);
  const int q = lane & 3, row = lane >> 2;
  #pragma unroll 1
  for (int o = (blockIdx.x * ROW_WARPS + warp) * 8; o < outputs; o += step) {
    float acc[8];
    #pragma unroll
    for (int e = 0; e < 8; e++) acc[e] = 0;
    #pragma unroll 1
    for (int c = 0; c < stretches; c++, next()) {
      const int slot = turn * ROW_WARPS + warp, n = at_most(cols - c * depth, depth);
      const uint8_t *w = ring + slot * ROW_SLOT + row * ROW_PITCH;
      const float *x = xs + c * depth;
      barrier_wait(&full[slot], parity);
      #pragma unroll 4
      for (int i = q * 8; i < n; i += 32) {
        float f[8];
        if (FORM == CANON_F32) {
          *(float4 *)f = *(const float4 *)(w + i * 4);
          *(float4 *)(f + 4) = *(const float4 *)(w + i * 4 + 16);
        } else {
          const uint4 v = *(const uint4 *)(w + i * 2);
          const uint32_t words[4] = {v.x, v.y, v.z, v.w};
          #pragma unroll
          for (int e = 0; e < 4; e++) {
            const float2 t = FORM == CANON_BF16 ? make_float2(__uint_as_float(words[e] << 16), __uint_as_float(words[e] & 0xffff0000u)) : halves(words[e]);
            f[2 * e] = t.x; f[2 * e + 1] = t.y;
          }
        }
        const float4 a = *(const float4 *)(x + i), b = *(const float4 *)(x + i + 4);
        const float in[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        #pragma unroll
        for (int e = 0; e < 8; e++) acc[e] = canon_fmaf(f[e], in[e], acc[e]);
      }
      warp_arrive(&empty[slot], lane);
    }
    // The tree: lanes l and l + 16, 8, 4, 2, 1; l = q * 8 + e.
    #pragma unroll
    for (int h = 16; h >= 1; h >>= 1)
      #pragma unroll
      for (int e = 0; e < 8; e++) {
        if (h >= 8) acc[e] = acc[e] + __shfl_down_sync(FULL, acc[e], h / 8);
        else if (e < h) acc[e] = acc[e] + acc[e + h];
      }
    if (q == 0 && o + row < outputs) {
      float t = acc[0];
      if (op.vec) t = t + op.vec[o + row];
      op.dst.data[o + row] = t;
      if (check && !canon_finite(t)) fault(p, op.dst.logits, 0, CANON_FAULT_NONFINITE, check - 1);
    }
  }
}

#define COVEY_FLOATS_ROW(NAME, FORM) \
  extern "C" __global__ __launch_bounds__(ROW_WARPS * 32 + 32) void covey_floats_row_##NAME(const __grid_constant__ canon_op op, const covey_program *p, int check, int slots) { floats_row<FORM>(op, p, check, slots); }
COVEY_FLOATS_ROW(f32, CANON_F32)
COVEY_FLOATS_ROW(f16, CANON_F16)
COVEY_FLOATS_ROW(bf16, CANON_BF16)
