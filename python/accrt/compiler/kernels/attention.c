/* attention.c - scaled dot-product attention with online softmax over blocks of keys; nothing of
 * size q_len x kv_len is made.
 *
 * Instantiated with Q_TAG (queries and result), KV_TAG, MASK_TAG (f32, f16, bf16: added; bool:
 * false masks out), HEAD (head size rounded up to PANEL), ROWS and KEYS (rows and keys of a block),
 * ENTRY. Computes in f32.
 *
 * The query heads that share a key head (grouped heads) are rows of one product: row r of a group
 * is head r / q_len, position r % q_len. x of the grid walks blocks of ROWS rows, y key heads, z
 * the batch. The cache's strides say its capacity; kv_len is its live length. Causal: a query at
 * position i sees keys up to i + causal_offset. Windowed: it sees none before i + first_offset, and
 * blocks of keys that no row sees are not read.
 *
 * A row that sees no key at all gives zeros. NaN propagates from any key that a row sees. */
#define AHEAD_LINES 0 /* panels are made on the spot */
#include "gemm_core.h"
#include "types.h"
#include "vmath.h"

typedef TYPE(Q_TAG) q_t;
typedef TYPE(KV_TAG) kv_t;
typedef TYPE(MASK_TAG) mask_t;

typedef struct {
  const q_t* q;
  const kv_t* k;
  const kv_t* v;
  const mask_t* mask;
  q_t* out;
  int64_t q_len, kv_len, group, head_size, value_size;
  int64_t q_batch, q_head, q_row;
  int64_t k_batch, k_head, k_row;
  int64_t v_batch, v_head, v_row;
  int64_t out_batch, out_head, out_row;
  int64_t mask_batch, mask_head, mask_row, mask_key;
  int64_t causal, causal_offset, windowed, first_offset, batch;
  float scale;
} attention_params_t;

#define IS_F32_f32 1
#define IS_F32_f16 0
#define IS_F32_bf16 0

DEFINE_ROW_BLOCK(float, load_b_f32)
DEFINE_GATHER_COLUMNS(kv_t, LOAD(KV_TAG), CONCAT(IS_F32_, KV_TAG))

#define HEAD_STEP (HEAD + 16)
#define KEY_STEP (KEYS + 16)
#define NEGATIVE_INFINITY (-__builtin_inff())
#define LOAD_KV CONCAT(load_b_, KV_TAG)

/* Up to FEW_ROWS rows go over keys and values as they lie; values need whole vectors for that. */
#define FEW_ROWS 4
_Static_assert(FEW_ROWS <= BLOCK_ROWS, "few rows are one block");
#if VL == 8
#define VALUE_VECTORS 2
#else
#define VALUE_VECTORS 4
#endif

typedef struct {
  const attention_params_t* p;
  const kv_t* k; /* of this batch entry and key head */
  const kv_t* v;
  int64_t batch, kv_head, first_row, rows;
  float* q;      /* [ROWS][HEAD_STEP], scaled */
  float* keys;   /* [KEYS / PANEL][head_size][PANEL], transposed */
  float* values; /* [HEAD / PANEL][KEYS][PANEL] */
  float* out;    /* [ROWS][HEAD] */
  float* scores; /* [BLOCK_ROWS][KEY_STEP] */
  float* maximum;
  float* sum;
  int32_t*
      /* of each row, and its position and the keys it may see, from first to limit: divisions are
         slow */
      heads;
  int32_t* positions;
  int64_t* firsts;
  int64_t* limits;
} state_t;

static void find_rows(const state_t* s) {
  const attention_params_t* p = s->p;
  int64_t head = s->first_row / p->q_len, position = s->first_row % p->q_len;
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t limit = p->causal ? position + p->causal_offset + 1 : p->kv_len;
    s->heads[r] = (int32_t)(s->kv_head * p->group + head);
    s->positions[r] = (int32_t)position;
    s->limits[r] = max_i64(0, min_i64(p->kv_len, limit));
    s->firsts[r] = p->windowed ? max_i64(0, position + p->first_offset) : 0;
    if (++position < p->q_len)
      continue;
    position = 0;
    head++;
  }
}

static void load_queries(const state_t* s) {
  const attention_params_t* p = s->p;
  for (int64_t r = 0; r < s->rows; r++) {
    const q_t* from =
        p->q + s->batch * p->q_batch + s->heads[r] * p->q_head + s->positions[r] * p->q_row;
    float* to = s->q + r * HEAD_STEP;
    INDEPENDENT for (int64_t d = 0; d < p->head_size; d++) to[d] = LOAD(Q_TAG)(from[d]) * p->scale;
    for (int64_t d = 0; d < HEAD; d++)
      s->out[r * HEAD + d] = 0.0f;
    s->maximum[r] = NEGATIVE_INFINITY;
    s->sum[r] = 0.0f;
  }
}

/* Keys [first, first + count), transposed; the columns up to a whole panel become zero. */
static void load_keys(const state_t* s, int64_t first, int64_t count) {
  int64_t size = s->p->head_size, step = s->p->k_row;
  for (int64_t j = 0; j < count; j += PANEL) {
    gather_columns(s->keys + j * size, s->k + (first + j) * step, step, min_i64(PANEL, count - j),
                   size);
  }
}

static void load_values(const state_t* s, int64_t first, int64_t count) {
  int64_t size = s->p->value_size;
  for (int64_t d = 0; d < size; d += PANEL) {
    float* panel = s->values + d * KEYS;
    int64_t wide = min_i64(PANEL, size - d);
    for (int64_t i = 0; i < count; i++) {
      const kv_t* from = s->v + (first + i) * s->p->v_row + d;
      float* to = panel + i * PANEL;
      INDEPENDENT for (int64_t e = 0; e < wide; e++) to[e] = LOAD(KV_TAG)(from[e]);
      for (int64_t e = wide; e < PANEL; e++)
        to[e] = 0.0f;
    }
  }
}

ALWAYS_INLINE float dot(const float* q, const kv_t* k, int64_t size) {
  vf sum = v_zero();
  int64_t d = 0;
  for (; d + VL <= size; d += VL)
    sum = v_fma(v_load(q + d), LOAD_KV(k + d), sum);
  float total = v_sum(sum);
  for (; d < size; d++)
    total += q[d] * LOAD(KV_TAG)(k[d]);
  return total;
}

/* Few rows (decoding): transposing the keys would cost more than the products. Four keys share one
 * horizontal sum. */
static void score_few(const state_t* s, int64_t row, int64_t rows, int64_t first, int64_t count) {
  int64_t size = s->p->head_size, step = s->p->k_row, whole = size / VL * VL, i = 0;
  for (; i + 4 <= count; i += 4) {
    const kv_t* key = s->k + (first + i) * step;
    for (int64_t r = 0; r < rows; r++) {
      const float* q = s->q + (row + r) * HEAD_STEP;
      vf a = v_zero(), b = a, c = a, d = a;
      for (int64_t e = 0; e < whole; e += VL) {
        vf x = v_load(q + e);
        a = v_fma(x, LOAD_KV(key + e), a);
        b = v_fma(x, LOAD_KV(key + step + e), b);
        c = v_fma(x, LOAD_KV(key + 2 * step + e), c);
        d = v_fma(x, LOAD_KV(key + 3 * step + e), d);
      }
      float* scores = s->scores + r * KEY_STEP + i;
      v4_store(scores, v_sum4(a, b, c, d));
      for (int64_t e = whole; e < size; e++) {
        for (int64_t j = 0; j < 4; j++)
          scores[j] += q[e] * LOAD(KV_TAG)(key[j * step + e]);
      }
    }
  }
  for (; i < count; i++) {
    const kv_t* key = s->k + (first + i) * step;
    for (int64_t r = 0; r < rows; r++) {
      s->scores[r * KEY_STEP + i] = dot(s->q + (row + r) * HEAD_STEP, key, size);
    }
  }
}

/* Adds the sum of a block's weighted values to `vectors` vectors of each row, straight from where
 * the values lie. */
ALWAYS_INLINE void add_values(const int rows, const int vectors, const float* weights,
                              const kv_t* v, int64_t step, int64_t count, float* out) {
  vf acc[FEW_ROWS][VALUE_VECTORS];
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    UNROLL_FULLY for (int j = 0; j < vectors; j++) acc[r][j] = v_zero();
  }
  for (int64_t i = 0; i < count; i++, v += step) {
    UNROLL_FULLY for (int j = 0; j < vectors; j++) {
      vf value = LOAD_KV(v + j * VL);
      UNROLL_FULLY for (int r = 0; r < rows; r++) {
        acc[r][j] = v_fma(v_set(weights[r * KEY_STEP + i]), value, acc[r][j]);
      }
    }
  }
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    UNROLL_FULLY for (int j = 0; j < vectors; j++)
        v_store(out + r * HEAD + j * VL, v_add(v_load(out + r * HEAD + j * VL), acc[r][j]));
  }
}

ALWAYS_INLINE void add_all_values(const int rows, const state_t* s, float* out, const kv_t* v,
                                  int64_t count) {
  int64_t d = 0, step = s->p->v_row;
  for (; d + VALUE_VECTORS * VL <= s->p->value_size; d += VALUE_VECTORS * VL) {
    add_values(rows, VALUE_VECTORS, s->scores, v + d, step, count, out + d);
  }
  for (; d < s->p->value_size; d += VL)
    add_values(rows, 1, s->scores, v + d, step, count, out + d);
}

static void value_few(const state_t* s, int64_t row, int64_t rows, int64_t first, int64_t count) {
  const kv_t* v = s->v + first * s->p->v_row;
  float* out = s->out + row * HEAD;
  switch (rows) {
  case 1:
    add_all_values(1, s, out, v, count);
    break;
  case 2:
    add_all_values(2, s, out, v, count);
    break;
  case 3:
    add_all_values(3, s, out, v, count);
    break;
  default:
    add_all_values(4, s, out, v, count);
    break;
  }
}

static void score_block(const state_t* s, int64_t row, int64_t rows, int64_t count) {
  for (int64_t j = 0; j < count; j += PANEL) {
    row_block(rows, s->p->head_size, s->q + row * HEAD_STEP, HEAD_STEP,
              s->keys + j * s->p->head_size, PANEL, s->scores + j, KEY_STEP, WRITE_TILE,
              (const char*)s->keys);
  }
}

#define MASK_IS_bool 1
#define MASK_IS_f32 0
#define MASK_IS_f16 0
#define MASK_IS_bf16 0

static void apply_mask(const state_t* s, float* scores, int64_t row, int64_t first, int64_t count) {
  const attention_params_t* p = s->p;
  const mask_t* mask = p->mask + s->batch * p->mask_batch + s->heads[row] * p->mask_head +
                       s->positions[row] * p->mask_row + first * p->mask_key;
  int64_t step = p->mask_key;
#if CONCAT(MASK_IS_, MASK_TAG)
  if (step == 1) {
    INDEPENDENT for (int64_t j = 0; j < count; j++) scores[j] =
        mask[j] ? scores[j] : NEGATIVE_INFINITY;
  } else {
    INDEPENDENT for (int64_t j = 0; j < count; j++) scores[j] =
        mask[j * step] ? scores[j] : NEGATIVE_INFINITY;
  }
#else
  if (step == 1) {
    INDEPENDENT for (int64_t j = 0; j < count; j++) scores[j] += LOAD(MASK_TAG)(mask[j]);
  } else {
    INDEPENDENT for (int64_t j = 0; j < count; j++) scores[j] += LOAD(MASK_TAG)(mask[j * step]);
  }
#endif
}

/* Scores of one row become weights relative to the new maximum; what was summed before is scaled to
 * it. */
static void soften_row(const state_t* s, float* scores, int64_t row, int64_t width) {
  vf top = v_set(NEGATIVE_INFINITY);
  for (int64_t j = 0; j < width; j += VL)
    top = v_max_raw(v_load(scores + j), top);
  float before = s->maximum[row], largest = v_largest(top),
        maximum = largest > before ? largest : before;
  float base = maximum == NEGATIVE_INFINITY ? 0.0f : maximum;
  INDEPENDENT for (int64_t j = 0; j < width; j++) scores[j] = m_exp_nonpositive(scores[j] - base);
  vf total = v_zero();
  for (int64_t j = 0; j < width; j += VL)
    total = v_add(total, v_load(scores + j));
  s->maximum[row] = maximum;
  if (before == maximum ||
      before == NEGATIVE_INFINITY) { /* what was summed, if anything, is relative to this maximum */
    s->sum[row] += v_sum(total);
    return;
  }
  float correction = m_exp_nonpositive(before - base);
  s->sum[row] = s->sum[row] * correction + v_sum(total);
  float* out = s->out + row * HEAD;
  for (int d = 0; d < HEAD; d++)
    out[d] *= correction;
}

static void attend(const state_t* s, int64_t row, int64_t rows, int64_t first, int64_t count,
                   int few) {
  int64_t width = ceildiv_i64(count, PANEL) * PANEL;
  if (few) {
    score_few(s, row, rows, first, count);
  } else {
    score_block(s, row, rows, count);
  }
  for (int64_t r = 0; r < rows; r++) {
    float* scores = s->scores + r * KEY_STEP;
    if (s->p->mask)
      apply_mask(s, scores, row + r, first, count);
    int64_t seen = max_i64(0, min_i64(count, s->limits[row + r] - first));
    int64_t unseen = min_i64(seen, s->firsts[row + r] - first);
    for (int64_t j = 0; j < unseen; j++)
      scores[j] = NEGATIVE_INFINITY;
    for (int64_t j = seen; j < width; j++)
      scores[j] = NEGATIVE_INFINITY;
    soften_row(s, scores, row + r, width);
  }
  if (few && s->p->value_size % VL == 0) {
    value_few(s, row, rows, first, count);
    return;
  }
  for (int64_t d = 0; d < s->p->value_size; d += PANEL) {
    row_block(rows, count, s->scores, KEY_STEP, s->values + d * KEYS, PANEL,
              s->out + row * HEAD + d, HEAD, ADD_TO_TILE, (const char*)s->values);
  }
}

static void store_rows(const state_t* s) {
  const attention_params_t* p = s->p;
  for (int64_t r = 0; r < s->rows; r++) {
    q_t* to =
        p->out + s->batch * p->out_batch + s->heads[r] * p->out_head + s->positions[r] * p->out_row;
    const float* from = s->out + r * HEAD;
    float sum = s->sum[r], factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    INDEPENDENT for (int64_t d = 0; d < p->value_size; d++) to[d] = STORE(Q_TAG)(from[d] * factor);
  }
}

static void place(state_t* s, float* memory) {
  s->q = memory;
  s->keys = s->q + ROWS * HEAD_STEP;
  s->values = s->keys + KEYS * HEAD;
  s->out = s->values + KEYS * HEAD;
  s->scores = s->out + ROWS * HEAD;
  s->maximum = s->scores + BLOCK_ROWS * KEY_STEP;
  s->sum = s->maximum + ROWS;
  s->limits = (int64_t*)(s->sum + ROWS);
  s->firsts = s->limits + ROWS;
  s->heads = (int32_t*)(s->firsts + ROWS);
  s->positions = s->heads + ROWS;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const attention_params_t* p = (const attention_params_t*)dispatch->params;
  int64_t rows = p->group * p->q_len;
  state_t s = {.p = p, .batch = workgroup->workgroup_id[2], .kv_head = workgroup->workgroup_id[1]};
  s.first_row = part_begin(rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  s.rows =
      part_begin(rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]) - s.first_row;
  if (s.rows <= 0 || s.batch >= p->batch)
    return KERNEL_OK;
  s.k = p->k + s.batch * p->k_batch + s.kv_head * p->k_head;
  s.v = p->v + s.batch * p->v_batch + s.kv_head * p->v_head;
  place(&s, (float*)workgroup->local_memory);
  find_rows(&s);
  load_queries(&s);

  int64_t limit = 0, begin = p->kv_len;
  for (int64_t r = 0; r < s.rows; r++) {
    limit = max_i64(limit, s.limits[r]);
    begin = min_i64(begin, s.firsts[r]);
  }
  int few = s.rows <= FEW_ROWS;
  for (int64_t first = begin; first < limit; first += KEYS) {
    int64_t count = min_i64(KEYS, limit - first);
    if (!few)
      load_keys(&s, first, count);
    if (!few || p->value_size % VL != 0)
      load_values(&s, first, count);
    int64_t blocks = ceildiv_i64(s.rows, BLOCK_ROWS);
    for (int64_t i = 0; i < blocks; i++) {
      int64_t row = part_begin(s.rows, i, blocks);
      attend(&s, row, part_begin(s.rows, i + 1, blocks) - row, first, count, few);
    }
  }
  store_rows(&s);
  return KERNEL_OK;
}
