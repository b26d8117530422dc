// C interface between the Go package and the kernels. All pointers are to memory outside the Go heap unless a comment says
// otherwise; nothing here keeps a pointer that it was given except through canon_op.
#pragma once
#include <stdint.h>
#include <stddef.h>

enum { CANON_F32, CANON_F16, CANON_BF16, CANON_INT8, CANON_INT4, CANON_FP8, CANON_MXFP4, CANON_E8M0 };
// Activations of a gated block; see canon_gated.
enum { CANON_SWIGLU, CANON_SWIGLU_LIMITED, CANON_SWIGLU_OSS };
enum { CANON_PORTABLE, CANON_AVX2, CANON_AVX512, CANON_VNNI, CANON_AMX, CANON_NEON, CANON_DOTPROD };

// What is taken from the codes of an integer form: the form's own offset (8, 128), an integer zero point a scale, or nothing,
// the codes being unsigned with a float minimum a scale.
enum { CANON_OFFSET_FORM, CANON_OFFSET_ZEROS, CANON_OFFSET_MINIMA };

// A packed weight [rows, cols]. In a record the addresses are offsets from its start (codes_at and so on) and the pointers
// are null.
typedef struct {
  int32_t form, scale_form, rows, cols;
  int32_t group, groups;            // inputs of a group of quantised activations, groups a row; 0 where activations stay floats
  int32_t sub;                      // inputs a scale: group, or 16 in groups of 32
  int32_t offset;
  int32_t block_rows, block_cols, blocks;  // fp8: rows and inputs that share a scale, scales a row (1: repeated along it)
  int64_t codes_at, scales_at, offsets_at, bias_at;   // bias_at 0 = no bias
  const uint8_t *codes, *scales, *offsets; // offsets: zero points, a byte each, or minima in scale_form
  const float *bias;                // [rows] or null; added after the product
} canon_matrix;

typedef struct { canon_matrix gate, up, down; } canon_record;
typedef struct { float *data; int32_t width, stride, logits; } canon_buffer;
// A paged cache: keys [channel][64] and values [64][channel] a head, or, if single, one vector [head][channel] a place, slots
// of them in a page, which serve as key and value.
typedef struct { uint8_t *data; int32_t form, layers, heads, dim, pages, single, slots; } canon_kv;

typedef struct {
  int32_t kind, rot, truncate;
  double theta, alpha, factor, original, low, high, beta_fast, beta_slow, attention, mscale, mscale_all;
} canon_rope_spec;

enum {
  CANON_OP_EMBED,      // dst = m[token]
  CANON_OP_NORM,       // i: parts, plus one; f: eps; vec: weight or null
  CANON_OP_LAYER_NORM, // f: eps; vec: weights, then biases
  CANON_OP_QUANTISE,   // src to the program's codes; i: group
  CANON_OP_MATMUL,     // dst = src m^T + vec
  CANON_OP_ROPE,       // dst in place; vec: inverse frequencies, weights: those of long sequences or null; i: heads, rot, pairing, offset, -, 1 to turn back; d, long_factor: factors
  CANON_OP_KV_APPEND,  // src keys, src2 values; i: layer
  CANON_OP_ATTENTION,  // dst, src queries; vec: sinks or null; i: layer, heads, window, channels of a value, and of memory: kept keys (ids; 0 = all), layer, rate (0 = no memory), 1 if nothing but memory is attended; f: scale
  CANON_OP_SWIGLU,     // dst = silu(src) * src2
  CANON_OP_ADD,        // dst += src
  CANON_OP_ADD_SCALED, // dst += src * f
  CANON_OP_SCALE,      // dst *= f
  CANON_OP_DIVIDE,     // dst /= f
  CANON_OP_GATE,       // dst *= sigmoid(src)
  CANON_OP_CLAMP,      // dst into [f0, f1]
  CANON_OP_ROUTER,     // src logits to ids, weights; vec: bias; i: score, experts, k, groups, top groups, group max, normalise, first bit of its bans; f: eps, least sum, scale, threshold of the sparse mixer; table: experts by token, or null
  CANON_OP_FFN,        // dst = shared(src) * sigmoid(src2) + routed, src2 [1] or none; i: experts, k, activation; f: limit
  CANON_OP_DELTA,      // src projections, src2 rates; vec: taps, decays, shifts, norm; i: key heads, value heads of each, key and value width, taps, place in the state; f: eps of the norm and of queries and keys, scale of queries
  CANON_OP_GATHER,     // dst[i] = src[logit_row[i]]
  CANON_OP_CHECK,      // rows of src must be finite
  CANON_OP_HEADS,      // dst of each head = m of the head times src of the head; i: heads, first channel in dst and in src
  CANON_OP_INDEX,      // src queries, src2 weights to ids, the kept keys of kv; i: layer, heads, most kept, rate; f: scale of scores and of weights
  CANON_OP_POOL,       // dst pooled, of src values and src2 gates; kv: state; vec: gates by place; i: layer, rate, 1 if windows overlap
  CANON_OP_ENTRY,      // src pooled rows that end a window are normed, turned and stored in kv; vec: norm; weights: inverse frequencies; i: layer, rate, rot; f: eps; d: factor
  CANON_OP_MIX_IN,     // dst = streams of src, by weights made in place of src2; vec: bases, then scales; i: streams, rounds, 1 for the head; f: eps
  CANON_OP_MIX_OUT,    // dst streams = mixed streams plus src, by weights src2; i: streams
  CANON_OP_COPY,       // channels of each head; i: heads, first channel in dst and in src, channels
};

typedef struct {
  int32_t kind, label;
  canon_buffer dst, src, src2;
  canon_matrix m;
  canon_kv kv, memory;
  canon_record routed, shared;
  void *shared_block;       // null = no shared expert
  void **table;             // [experts] records, null = no routed experts
  const float *vec;
  float *state;             // [slots, state_floats]
  int64_t state_floats;
  int32_t *ids;             // [rows, k]
  float *weights;           // [rows, k]
  float f[4];
  int32_t i[8];
  double d, long_factor;
} canon_op;

enum { CANON_FAULT_NONFINITE = 1, CANON_FAULT_KV, CANON_FAULT_BANNED, CANON_FAULT_MISSING };

typedef struct {
  int32_t rows, logit_rows, pages_stride;
  const int32_t *tokens, *positions, *sequence;  // [rows]
  const int32_t *pages;                          // [sequences, pages_stride]
  const int32_t *logit_row;                      // [logit_rows]
  int32_t *faults;                               // [rows, 2] kind and label
  const int32_t *states;                         // [sequences] slots of recurrent state; null = none
  const uint8_t *lengthened;                     // [sequences] 1 = turned by the frequencies of long sequences; null = none is
  uint64_t **bans;                               // [sequences] bits or null; null = none
} canon_step;

typedef struct canon_pool canon_pool;
typedef struct canon_program canon_program;

int canon_isa_supported(int isa);  // 1 usable, 0 not on this processor, -1 not built

// cpu and node [threads]: where each thread is pinned and the memory node of that place, ascending; null = threads run
// anywhere. Null if the threads cannot be had.
canon_pool *canon_pool_new(int threads, int isa, const int32_t *cpu, const int32_t *node);
void canon_pool_free(canon_pool *pool);

// A piece of memory that threads share out in equal parts, in order.
typedef struct { const void *at; int64_t bytes; } canon_piece;
// Every thread writes zeros into the pages of its own parts of n pieces, which are all zero: memory lies near the thread that
// writes first.
void canon_pool_touch(canon_pool *pool, const canon_piece *pieces, int32_t n);

canon_program *canon_program_new(int32_t rows, int32_t logit_rows, int32_t pages, canon_pool *pool);
int canon_program_add(canon_program *p, const canon_op *op);  // copies op; non-zero without memory
int64_t canon_program_scratch(canon_program *p);              // bytes that build wants
void canon_program_build(canon_program *p, void *scratch);
void canon_program_free(canon_program *p);
// A program is a list of phases. The first phase from `from` on that reads routed experts; the number of phases if none does.
int32_t canon_program_stop(const canon_program *p, int32_t from);
// Runs phases [from, to) of a step; the parts of one step run in order. Returns the number of rows with a fault so far.
int canon_run(canon_program *p, canon_step *step, int32_t from, int32_t to);

int64_t canon_codes_size(const canon_matrix *m);   // multiples of 64
int64_t canon_scales_size(const canon_matrix *m);
canon_matrix canon_matrix_at(canon_matrix m, void *block);
int64_t canon_offsets_size(const canon_matrix *m);
// Between codes, scales and offsets as a checkpoint stores them, per_row scales a row of outputs (of scale blocks for fp8), and
// block; m holds offsets from the start of block.
void canon_unpack(const canon_matrix *m, const uint8_t *block, uint8_t *codes, uint8_t *scales, uint8_t *offsets, int32_t per_row);
void canon_pack(const canon_matrix *m, uint8_t *block, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row);
void canon_dequantise(const canon_matrix *m, int32_t row, float *dst);
// All values of a source whose layout m describes; no address in m is used.
void canon_dequantise_source(const canon_matrix *m, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row, float *dst);

double canon_rope_frequencies(const canon_rope_spec *s, float *inv);  // returns the attention factor
// Frequencies 1 / (divisor * base) of longrope; returns the attention factor, which spec may give.
double canon_rope_divided(const canon_rope_spec *s, const double *divisors, float *inv);
float canon_attention_scale(int32_t dim);
float canon_rope_scale(const canon_rope_spec *s, int32_t dim);

// Sampling parameters (rule 11); lists are null or distinct ids in range.
typedef struct {
  float temperature, top_p, min_p, repetition, frequency, presence;
  int32_t top_k, biases, seen, counted;
  uint64_t seed;
  uint32_t choice, position;
} canon_sampling;
// The drawn token; -1 if a logit is not finite, -3 if no token may be drawn. Logits are not modified. scratch has room for
// 3 * n uint64; ids in lists are in range.
int32_t canon_sample(const float *logits, int32_t n, const canon_sampling *s, const int32_t *bias_ids, const float *bias, const int32_t *seen_ids, const int32_t *count_ids, const int32_t *counts, uint64_t *scratch);
uint32_t canon_random(uint64_t seed, uint32_t choice, uint32_t position);
int32_t canon_argmax(const float *logits, int32_t n);
// Log probabilities: of id (returned in *out) and of the k most likely tokens. Returns how many there are, -1 if a logit is
// not finite.
int32_t canon_logprobs(const float *logits, int32_t n, int32_t id, float *out, int32_t *top, float *top_out, int32_t k);

// Reads bytes (a multiple of 512) once a round with all threads; seconds [rounds].
void canon_read_probe(canon_pool *pool, const void *mem, int64_t bytes, int32_t rounds, double *seconds);

// The written rules one value at a time (rule.c).
enum { CANON_EXP, CANON_LOG, CANON_LOG1P, CANON_TANH, CANON_SIGMOID, CANON_SILU, CANON_SOFTPLUS };
void canon_rule_elementary(int32_t function, const float *x, float *y, int64_t n);
void canon_rule_quantise(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *sum);
// One output: row of a source whose layout m describes, times x; -1 without memory.
int canon_rule_product(const canon_matrix *m, int32_t row, const uint8_t *codes, const uint8_t *scales, const uint8_t *offsets, int32_t per_row, const float *x, float *y);
void canon_rule_norm(float *y, const float *x, const float *w, int32_t n, float eps, int32_t plus_one);
void canon_rule_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n, float eps);
void canon_rule_gated(int32_t activation, float limit, float *y, const float *gate, const float *up, int32_t n);
// Gated delta net from position 0 on: projections [rows, ...] and rates [rows, 2 * heads * per] as of CANON_OP_DELTA, conv
// [channels, taps] with all queries, all keys, all values; y [rows, heads * per * value]; -1 without memory.
int canon_rule_delta_net(int32_t rows, int32_t heads, int32_t per, int32_t key, int32_t value, int32_t taps, const float *projections, const float *rates,
                         const float *conv, const float *decay, const float *shift, const float *norm, float eps, float unit_eps, float *y);
void canon_rule_rotate(float *x, int32_t rot, int32_t pairs, int32_t position, const float *inv, double factor);
// keys [pos+1, dim] and values [pos+1, width] already rounded to their stored form; attends lo..pos, then the vectors of
// memory [listed, dim], key and value in one; sink may be null.
void canon_rule_attention(const float *q, const float *keys, const float *values, int32_t dim, int32_t width, int32_t lo, int32_t pos, const float *memory, int32_t listed, float scale, const float *sink, float *o);
// Scores of keys [n, dim] for an indexer.
void canon_rule_index(const float *q, const float *w, int32_t heads, const float *keys, int32_t n, int32_t dim, float scale, float weight_scale, float *scores);
float canon_rule_lowest(void);
void canon_rule_divide(float *x, const float *d, int32_t n);
// Pools one more item into n states.
void canon_rule_pool(float *m, float *l, float *o, const float *gate, const float *place, const float *value, int32_t n);
// Weights of the streams from z [(2 + m) * m] (or [m] for the head), in place.
void canon_rule_mix(float *z, const float *base, const float *scale, int32_t m, int32_t rounds, float eps, int32_t head);
float canon_rule_store(int32_t form, float x);
float canon_rule_soft_fma(float a, float b, float c);
float canon_rule_sum(const float *x, int32_t n);
float canon_rule_fma(float a, float b, float c);
