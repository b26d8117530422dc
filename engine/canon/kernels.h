// The table of functions that each instruction set fills. Every function gives the bits of canon.h.
#pragma once
#include "source.h"

// Quantised rows (rule 1).
typedef struct {
  int8_t *q;       // [rows, stride], inputs padded with 0 to whole groups
  float *scale;    // [rows, groups]
  int32_t *less8;  // [rows, groups] minus eight times the sum of the codes: what dots with codes of offset 8 start from
  int32_t *half;   // [rows, groups] sums of the first 16 codes of groups of 32; null unless some matrix has 16 inputs a scale
  int32_t stride, groups;
} canon_codes;

// The rows of one product: row i reads input row in[i] and writes output row out[i]; a null list means the number itself.
typedef struct {
  int32_t n, in0, out0;      // in0, out0 are added when the lists are null
  const int32_t *in, *out;
  canon_codes codes;         // inputs for integer forms
  const float *x;            // inputs for float forms, [rows, x_stride]
  int64_t x_stride;
  float *y;                  // [rows, y_stride]; column 0 is output col0 of the matrix
  int64_t y_stride;
  int32_t col0;
  const float *bias;         // by output of the matrix, or null
} canon_rows;

// Queries that share a key/value head, against one block of 256 positions: query i attends positions lo[i] <= p < hi[i] of
// the block, at least one.
typedef struct {
  const float *q;            // [queries, dim]
  const int32_t *lo, *hi;    // [queries]
  int32_t queries, dim, form;
  int32_t values, v_stride;             // channels of a value, and of a page from one value to the next
  float scale;
  const uint8_t *k[4], *v[4];           // pages: keys [dim][64], values [64][v_stride]; null where no query attends
  const uint8_t *after;                 // what will be read next (to be fetched early), or null
  float *wide;               // room for one page of keys or values as floats if several queries share them, or null
  float *p;                  // [queries, 256], scratch
  float *m, *l, *o;          // [queries], [queries], [queries, values]
} canon_attend;

// An indexer's queries against up to 64 keys.
typedef struct {
  const float *q, *w;        // [heads, dim], [heads]
  int32_t heads, dim, form, n;
  float scale;
  const uint8_t *k;          // [dim][64]
  float *scores;             // [n]
} canon_index;

typedef struct {
  // Codes of one row of n inputs into the row at these addresses; half may be null. Moves 4n bytes in, n out.
  void (*quantise)(const float *x, int32_t n, int32_t group, int8_t *q, float *scale, int32_t *less8, int32_t *half);
  // Outputs 16*tile .. 16*(tile+tiles) of m for all rows. Bound by reading the weights once for few rows, by integer or
  // float multiply-adds for many.
  void (*product)(const canon_matrix *m, int32_t tile, int32_t tiles, const canon_rows *r);
  void (*norm)(float *y, const float *x, const float *w, int32_t n, float eps, int plus_one);
  void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int32_t n, float eps);
  void (*gate)(float *y, const float *x, int32_t n);                  // y * sigmoid(x)
  void (*unit)(float *x, int32_t n, float eps);                       // x / sqrt(sum of squares + eps)
  void (*convolve)(float *y, const float *earlier, const float *x, const float *w, int32_t taps, int32_t n);
  void (*delta)(float *state, const float *q, const float *k, const float *v, float alpha, float beta, float *o, int32_t key, int32_t value);
  void (*swiglu)(float *y, const float *gate, const float *up, int32_t n);
  void (*gated)(int32_t activation, float limit, float *y, const float *gate, const float *up, int32_t n);   // canon_gated
  void (*add)(float *y, const float *x, int32_t n);
  void (*add_scaled)(float *y, const float *x, float f, int32_t n);   // y + (x * f)
  void (*scale)(float *y, float f, int32_t n);
  void (*clamp)(float *y, float lo, float hi, int32_t n);
  void (*accumulate)(float *y, const float *x, float w, int32_t n);   // fmaf(w, x, y)
  void (*exp_minus)(float *y, const float *x, float m, int32_t n);    // exp(x - m)
  void (*sigmoid)(float *y, const float *x, int32_t n);
  void (*divide)(float *y, float d, int32_t n);
  void (*fold)(canon_state *t, float *o, float m_b, float l_b, const float *o_b, int32_t n);   // canon_fold, canon_fold_channel
  void (*rotate)(float *x, int32_t rot, int pairs, const float *c, const float *s);
  void (*store)(int32_t form, const float *x, int32_t n, void *out);
  void (*attend)(const canon_attend *a);
  void (*index)(const canon_index *a);
  void (*pool)(float *m, float *l, float *o, const float *gate, const float *place, const float *value, int32_t n);
  int (*finite)(const float *x, int32_t n);
  float (*highest)(const float *x, int32_t n);                        // largest of finite values; -inf for none
  float (*exp_sum)(const float *x, float m, int32_t n);               // sum of exp(x - m) in 32 lanes and the tree
  uint64_t (*read)(const void *p, int64_t n);                         // a checksum with the widest loads; n is a multiple of 512
} canon_kernels;

const canon_kernels *canon_kernels_portable(void);
const canon_kernels *canon_kernels_avx2(void);
const canon_kernels *canon_kernels_avx512(void);
const canon_kernels *canon_kernels_vnni(void);
const canon_kernels *canon_kernels_amx(void);
const canon_kernels *canon_kernels_neon(void);
const canon_kernels *canon_kernels_dotprod(void);
const canon_kernels *canon_kernels_for(int isa);  // null unless supported
