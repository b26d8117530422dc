//go:build cuda

// Latent attention of one row: the operations of a layer between its query product and its output product become three launches
// (kernels/latent_row.cu).
#include "launches.h"

enum { LATENT_KEY = 256, LATENT_WARPS = 8 };   // as latent_row.cu

static int floats(const canon_matrix *m) { return !m->group && m->form <= CANON_BF16 && !m->bias && !m->bias_at; }

// Norm and rotation of the latent, its cache, queries through the keys, their rotated part.
static int32_t match_heads(const canon_op *o, int32_t n, const covey_place *d, covey_latent_heads *f) {
  static const int32_t kinds[] = {CANON_OP_NORM, CANON_OP_ROPE, CANON_OP_KV_APPEND, CANON_OP_HEADS, CANON_OP_COPY, CANON_OP_ROPE};
  enum { NORM, TURN, APPEND, HEADS, COPY, TURN_QUERIES, ALL };
  if (n < ALL) return 0;
  for (int32_t i = 0; i < ALL; i++) if (o[i].kind != kinds[i]) return 0;
  const canon_op *norm = o + NORM, *turn = o + TURN, *append = o + APPEND, *heads = o + HEADS, *copy = o + COPY, *queries = o + TURN_QUERIES;
  *f = (covey_latent_heads){
      .q = heads->src, .absorbed = heads->dst, .latent = turn->dst, .keys = heads->m, .heads = heads->i[0], .plain = heads->m.cols, .rank = norm->dst.width, .rot = turn->i[1],
      .pairing = turn->i[2], .angles = turn->i[4], .norm = norm->vec, .eps = norm->f[0], .plus_one = norm->i[1], .layer = append->i[0], .label = append->label, .kv = append->kv};
  int32_t dim = f->rank + f->rot;
  if (norm->i[0] != 1 || !norm->vec || !same(&norm->src, &norm->dst) || norm->dst.data != f->latent.data || norm->dst.logits) return 0;
  if (turn->i[0] != 1 || turn->i[3] != f->rank || turn->i[5] || f->latent.width != dim) return 0;
  if (!append->kv.single || append->kv.heads != 1 || append->kv.dim != dim || append->kv.slots != 64 || !same(&append->src, &f->latent)) return 0;
  if (!floats(&heads->m) || heads->i[1] || heads->i[2] || heads->m.rows != f->heads * f->rank || f->absorbed.width != f->heads * dim || f->q.width != f->heads * (f->plain + f->rot)) return 0;
  if (!same(&copy->src, &f->q) || !same(&copy->dst, &f->absorbed) || copy->i[0] != f->heads || copy->i[1] != f->rank || copy->i[2] != f->plain || copy->i[3] != f->rot) return 0;
  if (!same(&queries->dst, &f->absorbed) || queries->i[0] != f->heads || queries->i[1] != f->rot || queries->i[2] != f->pairing || queries->i[3] != f->rank || queries->i[4] != f->angles || queries->i[5]) return 0;
  if (f->plain % 8 || f->rot % 2 || covey_is_read(o + ALL, n - ALL, &f->latent)) return 0;
  // As many blocks as there are multiprocessors, or a little more than half as many.
  for (f->parts = 1; 2 * f->parts * f->heads <= d->multiprocessors && f->rank % (2 * f->parts) == 0;) f->parts *= 2;
  return covey_latent_heads_memory(f) <= d->shared ? ALL : 0;
}

// LayerNorm of an indexer's key, rotation of its queries and of the key, its cache.
static int32_t match_index(const canon_op *o, int32_t n, covey_latent_index *f) {
  if (n < 4 || o[0].kind != CANON_OP_LAYER_NORM || o[1].kind != CANON_OP_ROPE || o[2].kind != CANON_OP_ROPE || o[3].kind != CANON_OP_KV_APPEND) return 0;
  const canon_op *norm = &o[0], *queries = &o[1], *key = &o[2], *append = &o[3];
  *f = (covey_latent_index){.q = queries->dst, .k = key->dst, .norm = norm->vec, .eps = norm->f[0], .heads = queries->i[0], .dim = key->dst.width, .rot = key->i[1],
                            .pairing = key->i[2], .offset = key->i[3], .angles = key->i[4], .layer = append->i[0], .label = append->label, .kv = append->kv};
  for (int32_t i = 1; i < 6; i++) if (queries->i[i] != key->i[i]) return 0;
  if (!norm->vec || !same(&norm->src, &norm->dst) || !same(&norm->dst, &f->k) || norm->dst.logits || key->i[0] != 1 || key->i[5] || f->q.width != f->heads * f->dim) return 0;
  if (!same(&append->src, &f->k) || !append->kv.single || append->kv.heads != 1 || append->kv.dim != f->dim || append->kv.slots != 64) return 0;
  return f->dim <= LATENT_KEY ? 4 : 0;
}

// Attention and its values' product [, quantisation].
static int32_t match_attention(const canon_op *o, int32_t n, const covey_bucket *b, const covey_place *d, covey_latent_values *f) {
  if (n < 2 || o[0].kind != CANON_OP_ATTENTION || o[1].kind != CANON_OP_HEADS || !b->split) return 0;
  const canon_op *attention = &o[0], *values = &o[1];
  int32_t heads = attention->i[1], rank = attention->i[3], size = covey_form_bytes(attention->kv.form), dim = attention->kv.dim, quantised = n > 2 && o[2].kind == CANON_OP_QUANTISE && same(&o[2].src, &values->dst);
  if (!attention->kv.single || attention->kv.heads != 1 || attention->kv.slots != 64 || attention->i[2] || attention->vec || !attention->state) return 0;
  if (attention->i[6] && (attention->i[6] != 1 || !attention->i[7] || !attention->ids || attention->memory.data != attention->kv.data || attention->i[5] != attention->i[0])) return 0;
  if (heads % COVEY_LATENT_HEADS || dim % 8 || rank % (COVEY_LATENT_SET * 16 / size) || rank / COVEY_LATENT_SET > 128 || rank > 512 || d->multiprocessors < COVEY_LATENT_SET) return 0;
  if (!floats(&values->m) || values->m.cols != rank || values->i[0] != heads || values->i[1] || values->i[2] || !same(&values->src, &attention->dst)) return 0;
  *f = (covey_latent_values){.values = values->m, .dst = values->dst, .heads = heads, .rank = rank, .outputs = values->m.rows / heads, .kept = attention->i[4]};
  if (f->dst.width != values->m.rows || covey_is_read(o + 2, n - 2, &attention->dst)) return 0;
  int32_t group = quantised ? o[2].i[0] : 0;
  f->group = group && f->outputs % group == 0 ? group : 0;
  f->each = f->group ? f->group : f->outputs % 64 == 0 ? 64 : f->outputs;
  return covey_latent_shared_of(dim, rank, size).bytes <= d->shared && covey_latent_values_memory(f) <= d->shared ? 2 + (f->group != 0) : 0;
}

covey_launch *covey_latent_row(const canon_op *o, int32_t n, const covey_bucket *b, const covey_place *d, int32_t *used, covey_launch *at) {
  covey_latent_heads heads;
  covey_latent_values values;
  if (!(d->fast & COVEY_FAST_ATTEND_ROW) || b->rows != 1) return 0;
  if ((*used = match_heads(o, n, d, &heads))) {
    at = launch(at, COVEY_K_latent_heads_f32 + heads.keys.form, o->label, heads.heads * heads.parts + 1, 1, 1, 256, covey_latent_heads_memory(&heads));
    at[-1].argument.latent_heads = heads;
    return early(at, d);
  }
  covey_latent_index index;
  if ((*used = match_index(o, n, &index))) {
    at = launch(at, COVEY_K_index_ready, o->label, covey_ceil(index.heads, LATENT_WARPS) + 1, 1, 1, LATENT_WARPS * 32, 0);
    at[-1].argument.latent_index = index;
    return early(at, d);
  }
  if ((*used = match_attention(o, n, b, d, &values))) {
    int32_t dim = o->kv.dim, size = covey_form_bytes(o->kv.form), units = b->blocks * values.heads / COVEY_LATENT_HEADS;
    int32_t sets = at_most(units, at_most(d->multiprocessors, COVEY_LATENT_BLOCKS) / COVEY_LATENT_SET);
    // A set's third unit waits longer than blocks of fewer heads that share a multiprocessor.
    covey_launch *blocks = units > 2 * sets ? covey_latent_blocks(o, b, d, at) : 0;
    if (blocks) at = blocks;
    else at = early(put(at, COVEY_K_attend_latent_row_f32 + o->kv.form, o, sets * COVEY_LATENT_SET, 1, 1, 256, covey_latent_shared_of(dim, values.rank, size).bytes), d);
    at = launch(at, COVEY_K_latent_values_f32 + values.values.form, o[1].label, values.outputs / values.each, values.heads, 1, 256, covey_latent_values_memory(&values));
    at[-1].argument.latent_values = values;
    return early(at, d);
  }
  return 0;
}
