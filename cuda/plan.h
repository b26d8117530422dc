// Launches of a step: which kernels its operations become, with what geometry. Shared by the host code and benches.
#pragma once
#include "kernels/attend_row.h"
#include "kernels/latent.h"
#include "kernels/moe.h"

// Every kernel that the host launches, without the prefix covey_: the plain ones, one for each operation and any form, and the
// fast ones, which come in kinds for each form and group (matmul.cu, experts.cu, experts_row.cu) or form of floats.
#define COVEY_PLAIN(X)                                                                                                  \
  X(angles_table) X(embed) X(norm) X(layer_norm) X(quantise) X(matmul) X(heads) X(copy) X(rope) X(kv_append) X(attend) X(attend_split)   \
  X(attend_join) X(elementwise) X(router) X(group) X(routed_up) X(routed_inner) X(routed_down) X(shared_up)                \
  X(shared_inner) X(shared_down) X(combine) X(gather) X(check) X(index_score) X(index_select) X(pool) X(entry) X(mix_weights) X(mix_in)   \
  X(mix_out) X(delta_mix) X(delta) X(draw)
#define COVEY_GROUPS(X, name) X(name##_int4_g32) X(name##_int4_g64) X(name##_int4_g128) X(name##_int8_g32) X(name##_int8_g64) X(name##_int8_g128) X(name##_mxfp4_g32)
#define COVEY_FLOATS(X, name) X(name##_f32) X(name##_f16) X(name##_bf16)
#define COVEY_WIDE(X, name) COVEY_FLOATS(X, name) X(name##_fp8)
#define COVEY_SCALES(X, name) X(name##_f16) X(name##_bf16)
#define COVEY_FAST(X)                                                                                                     \
  COVEY_GROUPS(X, rows) COVEY_GROUPS(X, matmul_many) COVEY_WIDE(X, floats_small) COVEY_WIDE(X, floats_one)            \
  COVEY_WIDE(X, floats_four) COVEY_WIDE(X, floats_many)                                                                 \
  X(norm_codes) X(heads_ready) X(combine_sum) X(route)                                                                            \
  COVEY_GROUPS(X, up_many) COVEY_GROUPS(X, down_many)                                                                    \
  COVEY_WIDE(X, float_up_one) COVEY_WIDE(X, float_up_four) COVEY_WIDE(X, float_up_many)                                   \
  COVEY_WIDE(X, float_down_one) COVEY_WIDE(X, float_down_four) COVEY_WIDE(X, float_down_many)                             \
  COVEY_FLOATS(X, attend_blocks1) COVEY_FLOATS(X, attend_blocks2) COVEY_FLOATS(X, attend_blocks4)                        \
  COVEY_FLOATS(X, attend_blocks8)                                                                                       \
  COVEY_FLOATS(X, attend_tiles64) COVEY_FLOATS(X, attend_tiles128) COVEY_FLOATS(X, attend_latent) X(attend_fold)                                        \
  COVEY_SCALES(X, moe_row_int4_g32) COVEY_SCALES(X, moe_row_int4_g64) COVEY_SCALES(X, moe_row_int4_g128)     \
  COVEY_SCALES(X, attend_row_d64_int4_g32) COVEY_SCALES(X, attend_row_d64_int4_g64)                                            \
  COVEY_SCALES(X, attend_row_d128_int4_g32) COVEY_SCALES(X, attend_row_d128_int4_g64) COVEY_SCALES(X, attend_row_d128_int4_g128)            \
  COVEY_SCALES(X, product_row_int4_g32) COVEY_SCALES(X, product_row_int4_g64) COVEY_SCALES(X, product_row_int4_g128)   \
  X(index_ready) COVEY_FLOATS(X, latent_heads) COVEY_FLOATS(X, latent_values) COVEY_FLOATS(X, attend_latent_row)                                       \
  COVEY_GROUPS(X, up_few) COVEY_GROUPS(X, down_few)
#define X(name) COVEY_K_##name,
enum { COVEY_PLAIN(X) COVEY_PLAIN_COUNT, COVEY_BEFORE_FAST = COVEY_PLAIN_COUNT - 1, COVEY_FAST(X) COVEY_KERNEL_COUNT };
#undef X

enum { COVEY_SPLIT_ROWS = 64 };

// What a step may have at most: a plan is made for a bucket and serves every step that fits it.
typedef struct {
  int32_t rows, logit_rows;
  int32_t blocks;          // attention: blocks of 256 positions of the longest row
  int32_t split;           // whether p->partial has room for rows * blocks of every attention
  int32_t pages;           // of the program: most pages of a sequence
  int32_t scored;          // of the program: rows that p->scores has room for
  int32_t draws;           // whether tokens are drawn and the logits stay
} covey_bucket;

// What plans depend on beside the step.
typedef struct {
  int32_t fast;            // which fast kernels may be used: bits by family
  int32_t multiprocessors, shared;   // shared memory that a block may have, bytes
  int32_t overlap;         // launches may start before the one before has ended
  int32_t spread;          // experts lie on several devices
  const covey_program *program;      // on the device
} covey_place;

// The first argument of a kernel.
typedef union { canon_op op; covey_rows rows; covey_heads heads; covey_combination combination; covey_moe moe; covey_attend attend; covey_latent_heads latent_heads; covey_latent_values latent_values; covey_latent_index latent_index; } covey_argument;

typedef struct {
  int32_t kernel, label;
  uint32_t grid[3], threads, shared;
  int32_t overlap;
  int32_t more[2];         // third and fourth argument of the kernels that have them
  covey_argument argument; // device addresses
} covey_launch;

// Beside the operations of engine.h: draws a token behind each row of src, the logits.
enum { COVEY_OP_DRAW = 1000 };

const char *covey_kernel_name(int32_t kernel);
// The family of a fast kernel; a device has all of a family or uses none of it. Those of COVEY_FAST_BULK have bulk copies: in code made
// for less than compute_90 the blocks of attention trap, and the others are not there (build.sh).
enum { COVEY_FAST_PRODUCTS = 1, COVEY_FAST_EXPERTS = 2, COVEY_FAST_ATTENTION = 4, COVEY_FAST_ROW = 8, COVEY_FAST_ATTEND_ROW = 16, COVEY_FAST_FEW = 32, COVEY_FAST_BLOCKS = 64,
       COVEY_FAST_BULK = COVEY_FAST_BLOCKS | COVEY_FAST_ROW | COVEY_FAST_ATTEND_ROW | COVEY_FAST_FEW };
int32_t covey_kernel_family(int32_t kernel);
// The launches of n operations into out, which has room for covey_most_launches. Returns how many; -1 - i if there is no
// kernel for operation i.
int32_t covey_plan(const canon_op *ops, int32_t n, const covey_bucket *b, const covey_place *d, covey_launch *out);
int32_t covey_most_launches(const canon_op *ops, int32_t n);
// Scratch of one operation for steps of `rows` rows, in bytes: the largest of every kind is what a program needs.
typedef struct { int64_t codes, groups, inner[2], inner_codes[2], inner_groups[2], routed, slots, experts, partial_row, partial_blocks, scores, mixed; } covey_scratch;
void covey_needs(const canon_op *op, int32_t rows, int32_t pages, covey_scratch *s);
// Words that blocks of a one-row kernel exchange for a CANON_OP_FFN with routed experts or a CANON_OP_ATTENTION of a program with
// so many pages a sequence; 0 = there is no such kernel. Behind them lies the count of finished blocks. The operation's `state`
// points to them on the device: all bits set, the count 0.
int64_t covey_exchange(const canon_op *op, int32_t pages);

// A weight of the host (addresses or offsets) as it lies on the device, with offsets from at, which moves past it.
canon_matrix covey_matrix(const canon_matrix *host, int64_t *at);
// The device's offsets of a record; returns its bytes. host may be device.
int64_t covey_record(const canon_record *host, canon_record *device);
// A matrix with offsets from a block, with addresses.
canon_matrix covey_at(canon_matrix m, void *block);
// Bytes of what is copied as it lies: codes (part 0), scales (1), offsets (2) of a weight that is not tiled, and
// any weight's biases (3).
int64_t covey_plain_size(const canon_matrix *m, int32_t part);
// Tiles tile .. tile + n of a tiled weight of the host (addresses) in the device's layout, each covey_tile_bytes long.
int64_t covey_tile_bytes(const canon_matrix *m);
void covey_repack(const canon_matrix *host, int32_t tile, int32_t n, uint8_t *out);
// Number of floats that op->vec points to; 0 if the kind has none.
int32_t covey_vector(const canon_op *op);
