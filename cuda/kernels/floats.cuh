// Products with float weights (rule 3) for one to many rows: a block takes tiles of outputs by rows, whose weights and inputs stream
// through stages in shared memory, FLOAT_CHUNK inputs a stage. A warp's lanes are the 32 lanes of the rule; it holds OUTS outputs by
// ROWS rows, for which it reads OUTS + ROWS numbers of shared memory and issues OUTS * ROWS multiply-adds. Few rows are bound by
// device memory, many by the multiply-adds. With FP8 each block of 128 inputs has its own tree, whose sum is added to the total by one
// multiply-add with the block's scale. Rows of weights and of inputs begin at multiples of 16 bytes. Twins: canon_dot, canon_block_dot.
#pragma once
#include "device.h"
#include "ptx.cuh"

enum { FLOAT_CHUNK = 128, FLOAT_BLOCKS = 192 };   // inputs of a stage, which are those of an FP8 scale; most of these of a row

template <int FORM> static __device__ __forceinline__ float float_of(const uint8_t *w, int i) {
  if (FORM == CANON_F32) return ((const float *)w)[i];
  if (FORM == CANON_FP8) return e4m3s(w[i]).x;
  return FORM == CANON_BF16 ? canon_from_bf16(((const uint16_t *)w)[i]) : halves(((const uint16_t *)w)[i]).x;
}

// Scales of FP8 for outputs that share them, from `output` on: of each block of 128 inputs, into shared memory [FLOAT_BLOCKS].
static __device__ __forceinline__ void float_scales(const canon_matrix &m, const uint8_t *at, int output, float *scales) {
  const int64_t row = (int64_t)(output / m.block_rows) * m.blocks;
  for (int i = threadIdx.x; i < covey_ceil(m.cols, m.block_cols); i += blockDim.x) scales[i] = source_value(m.scale_form, at, row + (m.blocks == 1 ? 0 : i));
}

// The tree of rule 3 for N sums whose lanes are the warp's. Up to 32 sums: lane l gets the sum l / (32 / N) into v[0]. More: sums
// l * N / 32 and what follows into v[0 .. N / 32).
template <int N> static __device__ __forceinline__ void float_trees(float (&v)[N]) {
  const int lane = threadIdx.x & 31;
  int left = N;
  #pragma unroll
  for (int h = 16; h >= 1; h >>= 1) {
    if (left > 1) {
      left /= 2;
      #pragma unroll
      for (int i = 0; i < N / 2; i++) {
        if (i >= left) break;
        const float low = v[i], high = v[i + left];
        v[i] = (lane & h ? high : low) + __shfl_xor_sync(FULL, lane & h ? low : high, h);
      }
    } else {
      v[0] = v[0] + __shfl_xor_sync(FULL, v[0], h);
    }
  }
}

template <int FORM, int OUTS, int ROWS, int WARPS, int OUT_WARPS, int STAGES> struct float_tile {
  static_assert(WARPS % OUT_WARPS == 0, "warps are a grid");
  enum {
    outs = OUTS, rows = ROWS, threads = WARPS * 32, out_warps = OUT_WARPS, row_warps = WARPS / OUT_WARPS, block_outs = OUTS * OUT_WARPS, block_rows = ROWS * row_warps, sums = OUTS * ROWS,
    mine = sums > 32 ? sums / 32 : 1, share = sums > 32 ? 1 : 32 / sums,   // sums of a lane, lanes that have the same
    size = FORM == CANON_F32 ? 4 : FORM == CANON_FP8 ? 1 : 2, weight_bytes = FLOAT_CHUNK * size, input_bytes = FLOAT_CHUNK * 4,
    stage = block_outs * weight_bytes + block_rows * input_bytes, memory = STAGES * stage,
  };
  // In shared memory: where the rows of weights and of inputs of the block begin, each of which may be any.
  struct places { const uint8_t *weights[block_outs]; const float *inputs[block_rows]; };

  static __device__ __forceinline__ void fetch_weights(uint8_t *ring, const places &at, int chunk, int cols) {
    constexpr int pieces = weight_bytes / 16;
    uint8_t *to = ring + chunk % STAGES * stage;
    const int bytes = (cols - chunk * FLOAT_CHUNK) * size;
    #pragma unroll
    for (int i0 = 0; i0 < block_outs * pieces; i0 += threads) {
      const int i = i0 + threadIdx.x, c = i % pieces * 16;
      if ((block_outs * pieces) % (threads) && i >= block_outs * pieces) break;
      if (c < bytes) copy16(to + i * 16, at.weights[i / pieces] + (int64_t)chunk * weight_bytes + c);
    }
  }
  static __device__ __forceinline__ void fetch_inputs(uint8_t *ring, const places &at, int chunk, int cols) {
    constexpr int pieces = input_bytes / 16;
    uint8_t *to = ring + chunk % STAGES * stage + block_outs * weight_bytes;
    const int bytes = (cols - chunk * FLOAT_CHUNK) * 4;
    #pragma unroll
    for (int i0 = 0; i0 < block_rows * pieces; i0 += threads) {
      const int i = i0 + threadIdx.x, c = i % pieces * 16;
      if ((block_rows * pieces) % (threads) && i >= block_rows * pieces) break;
      if (c < bytes) copy16(to + i * 16, (const uint8_t *)at.inputs[i / pieces] + (int64_t)chunk * input_bytes + c);
    }
  }
  // The first weights, which depend on no earlier launch.
  static __device__ __forceinline__ void begin(uint8_t *ring, const places &at, int cols) {
    #pragma unroll 1
    for (int k = 0; k < STAGES - 1 && k * FLOAT_CHUNK < cols; k++) fetch_weights(ring, at, k, cols);
  }
  // Sums of the block's warps, as float_trees leaves them: sum r * OUTS + o is that of output o and row r of the warp. All threads call it,
  // behind begin; a warp without `used` only copies. scales: FP8's, as float_scales leaves them; with KINDS 2 those of even outputs and
  // then those of odd ones.
  template <int KINDS = 1> static __device__ __forceinline__ void run(uint8_t *ring, const places &at, int cols, bool used, const float *scales, float (&out)[mine]) {
    const int warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, chunks = (cols + FLOAT_CHUNK - 1) / FLOAT_CHUNK;
    const int out0 = warp % OUT_WARPS * OUTS, row0 = warp / OUT_WARPS * ROWS;
    float acc[sums];
    #pragma unroll
    for (int i = 0; i < sums; i++) acc[i] = 0;
    #pragma unroll
    for (int i = 0; i < mine; i++) out[i] = 0;
    #pragma unroll 1
    for (int k = 0; k < STAGES - 1; k++) {
      if (k < chunks) fetch_inputs(ring, at, k, cols);
      copies_commit();
    }
    #pragma unroll 1
    for (int k = 0; k < chunks; k++) {
      copies_wait<STAGES - 2>();
      __syncthreads();
      if (k + STAGES - 1 < chunks) {
        fetch_weights(ring, at, k + STAGES - 1, cols);
        fetch_inputs(ring, at, k + STAGES - 1, cols);
      }
      copies_commit();
      if (!used) continue;
      const uint8_t *w = ring + k % STAGES * stage + out0 * weight_bytes;
      const float *x = (const float *)(ring + k % STAGES * stage + block_outs * weight_bytes) + row0 * FLOAT_CHUNK;
      auto step = [&](int i) {
        float in[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; r++) in[r] = x[r * FLOAT_CHUNK + i];
        #pragma unroll
        for (int o = 0; o < OUTS; o++) {
          const float f = float_of<FORM>(w + o * weight_bytes, i);
          #pragma unroll
          for (int r = 0; r < ROWS; r++) acc[r * OUTS + o] = canon_fmaf(f, in[r], acc[r * OUTS + o]);
        }
      };
      const int left = cols - k * FLOAT_CHUNK;
      if (left >= FLOAT_CHUNK) {
        #pragma unroll
        for (int i = 0; i < FLOAT_CHUNK; i += 32) step(i + lane);
      } else {
        #pragma unroll 1
        for (int i = lane; i < left; i += 32) step(i);
        __syncwarp();
      }
      if (FORM == CANON_FP8) {
        float_trees(acc);
        #pragma unroll
        for (int i = 0; i < mine; i++) out[i] = canon_fmaf(scales[KINDS == 1 ? k : ((lane / share * mine + i) & 1) * FLOAT_BLOCKS + k], acc[i], out[i]);
        #pragma unroll
        for (int i = 0; i < sums; i++) acc[i] = 0;
      }
    }
    if (FORM == CANON_FP8 || !used) return;
    float_trees(acc);
    #pragma unroll
    for (int i = 0; i < mine; i++) out[i] = acc[i];
  }
  // Calls f(output, row, value) of the block's sums for the lanes that own them.
  template <class F> static __device__ __forceinline__ void each(const float (&out)[mine], F f) {
    const int warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, out0 = warp % OUT_WARPS * OUTS, row0 = warp / OUT_WARPS * ROWS;
    if (lane % share) return;
    #pragma unroll
    for (int i = 0; i < mine; i++) {
      const int sum = lane / share * mine + i;
      f(out0 + sum % OUTS, row0 + sum / OUTS, out[i]);
    }
  }
  // Calls f(output / 2, row, value of the even output, of the odd one).
  template <class F> static __device__ __forceinline__ void pairs(const float (&out)[mine], F f) {
    const int warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, out0 = warp % OUT_WARPS * OUTS, row0 = warp / OUT_WARPS * ROWS;
    if (mine == 1) {
      const float odd = __shfl_down_sync(FULL, out[0], share);
      const int sum = lane / share;
      if (lane % (2 * share) == 0) f((out0 + sum % OUTS) / 2, row0 + sum / OUTS, out[0], odd);
      return;
    }
    #pragma unroll
    for (int i = 0; i < mine; i += 2) {
      const int sum = lane * mine + i;
      f((out0 + sum % OUTS) / 2, row0 + sum / OUTS, out[i], out[(i + 1) % mine]);
    }
  }
};

template <int FORM> using float_small = float_tile<FORM, 1, 4, 4, 4, 8>;
template <int FORM> using float_one = float_tile<FORM, 4, 1, 8, 8, 8>;
template <int FORM> using float_four = float_tile<FORM, 4, 4, 8, 8, 5>;
template <int FORM> using float_many = float_tile<FORM, 8, 8, 8, 4, 4>;
