// Arguments and shared memory of the kernels that run absorbed latent attention for one row (latent_row.cu). Addresses are of device
// memory.
#pragma once
#include "fused.h"

// Queries through the keys' half of the expansion, their rotated part, and the row's own latent: norm, rotation, cache.
typedef struct {
  canon_buffer q, absorbed, latent;      // [heads * (plain + rot)], [heads * (rank + rot)], [rank + rot]
  canon_matrix keys;                     // [heads * rank, plain], floats
  int32_t heads, plain, rank, rot, pairing, angles;   // angles: table of p->angles
  int32_t parts;                         // blocks of a head, which divide rank
  const float *norm;                     // [rank]
  float eps;
  int32_t plus_one, layer, label;
  canon_kv kv;
} covey_latent_heads;

// An indexer's queries turned, its key normed (LayerNorm), turned and stored.
typedef struct {
  canon_buffer q, k;                     // [heads * dim], [dim], in place
  const float *norm;                     // [2 * dim]: weights, then biases
  float eps;
  int32_t heads, dim, rot, pairing, offset, angles, layer, label;
  canon_kv kv;
} covey_latent_index;

// What was attended, blocks of positions folded, through the values' half of the expansion, and codes of that.
typedef struct {
  canon_matrix values;                   // [heads * outputs, rank], floats
  canon_buffer dst;                      // [heads * outputs]
  int32_t heads, rank, outputs, each;    // each: outputs of a block, which divide a head's and are a group if there are codes
  int32_t group;                         // of the codes; 0 = none
  int32_t kept;                          // most positions that were attended; 0 = all
} covey_latent_values;

// Bytes between the rows of a matrix in shared memory, so that a warp's four threads a row read different banks.
CANON_FN int32_t covey_latent_pitch(int32_t bytes) {
  int32_t lines = covey_ceil(bytes, 64);
  return (lines + 1 - lines % 2) * 64;
}
CANON_FN int32_t covey_latent_heads_memory(const covey_latent_heads *f) {
  int32_t x = f->rank + f->rot > f->plain ? f->rank + f->rot : f->plain;
  return covey_ceil(x * 4, 128) * 128 + f->rank / f->parts * covey_latent_pitch(f->plain * covey_form_bytes(f->keys.form));
}
CANON_FN int32_t covey_latent_values_memory(const covey_latent_values *f) {
  return covey_ceil((f->rank + f->each) * 4, 128) * 128 + f->each * covey_latent_pitch(f->rank * covey_form_bytes(f->values.form));
}

// Attention: COVEY_LATENT_SET blocks take a unit of COVEY_LATENT_HEADS heads and a block of 256 positions.
enum { COVEY_LATENT_SET = 4, COVEY_LATENT_HEADS = 8, COVEY_LATENT_BLOCKS = 160, COVEY_LATENT_INBOX = 2 * COVEY_LATENT_HEADS * CANON_BLOCK };
typedef struct { int32_t q, w, top, rows, keys, values, bytes; } covey_latent_shared;
CANON_FN covey_latent_shared covey_latent_shared_of(int32_t dim, int32_t values, int32_t size) {
  covey_latent_shared s;
  s.q = 0;
  s.w = s.q + COVEY_LATENT_HEADS * dim * 4;
  s.top = s.w + COVEY_LATENT_HEADS * CANON_BLOCK * 4;
  s.rows = covey_ceil(s.top + 64, 128) * 128;
  s.keys = s.rows + 2 * CANON_BLOCK * 8;
  s.values = s.keys + 64 * (dim * size + 16);
  s.bytes = s.values + CANON_BLOCK * (values / COVEY_LATENT_SET) * size;
  return s;
}
