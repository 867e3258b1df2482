/* paged_attention.c - attention of ragged rows of queries over keys and values
 * that lie in pages.
 *
 * Instantiated with Q_TAG (queries and result), KV_TAG (f32, f16, bf16, e4m3: read
 * as they are), HEAD (the larger of head and value size, rounded up to PANEL),
 * ROWS (rows of a block) and ENTRY. Computes in f32.
 *
 * A block is some tokens of one batch row, with all query heads that share a
 * key head: x of the grid counts blocks over all batch rows, y key heads. Keys
 * are gone through in units of UNIT, from key 0 of the sequence on. What a unit
 * gives (maximum, sum, weighted values) depends on the query and on that unit's
 * keys alone, and units are joined in ascending order. So a query's result has
 * the same bits alone, among others, and in chunks of any size. With `partial`,
 * units of a block are shared out over z of the grid, each unit's part is
 * stored, and paged_join.c joins them: the same numbers in the same order.
 *
 * Every score is VL sums over the head, joined as a tree; every value is added
 * up over ascending keys. Few rows read keys and values where they lie, many
 * share copies in f32: with the same bits. A query reads no key that it does
 * not see: NaN comes only from keys that it sees.
 *
 * What tensors say is checked here, against the sizes of the states. */
#define AHEAD_LINES 0 /* panels are made on the spot */
#include "e4m3.h"
#include "gemm_core.h"
#include "paged.h"
#include "types.h"
#include "vmath.h"

typedef TYPE(Q_TAG) q_t;
typedef TYPE(KV_TAG) kv_t;

typedef struct {
  const q_t* q;
  const kv_t* k;
  const kv_t* v;
  const int32_t* table;
  const int32_t* row_ids;
  const int32_t* row_starts;
  const int32_t* kv_lengths;
  const float* sinks;
  q_t* out;
  float* partial;
  union {
    paged_sizes_t sizes;
    struct {
      PAGED_SIZES;
    };
  };
  int64_t head_size, block_tokens, pages, page_size, table_rows, table_pages;
  int64_t q_token, q_head, out_token, out_head;
  float scale, soft_cap;
} paged_attention_params_t;

DEFINE_ROW_BLOCK(float, load_b_f32)

#define LOAD_KV CONCAT(load_b_, KV_TAG)
#define HEAD_STEP (HEAD + 16)
#define SCORE_STEP (UNIT + 16)
#define SLICE 32 /* keys that many rows share a copy of */

/* Up to FEW_ROWS rows go over keys and values as they lie. */
#define FEW_ROWS 8
#define TILE_KEYS 4
#if VL == 8
#define TILE_ROWS 2
#define VALUE_VECTORS 2
#else
#define TILE_ROWS 4
#define VALUE_VECTORS 4
#endif

typedef struct {
  const paged_attention_params_t* p;
  const accrt_kernel_workgroup_t* workgroup;
  paged_block_t block;
  int64_t kv_head, rows;
  float* q;      /* [ROWS][HEAD_STEP], scaled, zeros behind the head's size */
  float* staged; /* [SLICE][HEAD] */
  float* scores; /* [ROWS][SCORE_STEP] */
  float* unit;   /* [ROWS][HEAD] */
  float* out;    /* [ROWS][HEAD] */
  float* maximum;
  float* sum;
  int64_t* low; /* of each row, the keys that it sees */
  int64_t* high;
  const kv_t* k_at[UNIT]; /* of the unit's keys that some row sees */
  const kv_t* v_at[UNIT];
} state_t;

static void load_queries(state_t* s) {
  const paged_attention_params_t* p = s->p;
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t token = s->block.first + r / p->sizes.group;
    int64_t head = s->kv_head * p->sizes.group + r % p->sizes.group;
    const q_t* from = p->q + token * p->q_token + head * p->q_head;
    float* to = s->q + r * HEAD_STEP;
    INDEPENDENT for (int64_t d = 0; d < p->head_size; d++) to[d] = LOAD(Q_TAG)(from[d]) * p->scale;
    for (int64_t d = p->head_size; d < HEAD; d++)
      to[d] = 0.0f;
    paged_seen(&p->sizes, &s->block, token, &s->low[r], &s->high[r]);
    s->maximum[r] = NEGATIVE_INFINITY;
    s->sum[r] = 0.0f;
    for (int64_t d = 0; d < HEAD; d++)
      s->out[r * HEAD + d] = 0.0f;
  }
}

/* Where the keys [from, to) of the unit lie. */
static int32_t find_keys(state_t* s, int64_t base, int64_t from, int64_t to) {
  const paged_attention_params_t* p = s->p;
  const int32_t* pages = p->table + s->block.row_id * p->table_pages;
  int64_t k_row = p->sizes.kv_heads * p->head_size, v_row = p->sizes.kv_heads * p->sizes.value_size;
  for (int64_t j = from; j < to;) {
    int64_t at = (base + j) / p->page_size, offset = (base + j) % p->page_size, page = pages[at];
    if (UNLIKELY(page < 0 || page >= p->pages)) {
      fail_message(s->workgroup, "page % is outside a state of % pages", page, p->pages);
      return KERNEL_ERROR_INDEX;
    }
    int64_t end = min_i64(to, j + p->page_size - offset), row = page * p->page_size + offset;
    const kv_t* k = p->k + row * k_row + s->kv_head * p->head_size;
    const kv_t* v = p->v + row * v_row + s->kv_head * p->sizes.value_size;
    for (; j < end; j++, k += k_row, v += v_row) {
      s->k_at[j] = k;
      s->v_at[j] = v;
    }
  }
  return KERNEL_OK;
}

/* Scores of a few rows and TILE_KEYS keys. */
#define DEFINE_SCORE(NAME, T, LOAD_T)                                                              \
  ALWAYS_INLINE void NAME##_rows(const int rows, const float* q, const T* const* keys,             \
                                 int64_t size, float* scores) {                                    \
    vf acc[TILE_ROWS][TILE_KEYS];                                                                  \
    UNROLL_FULLY for (int r = 0; r < rows; r++) {                                                  \
      UNROLL_FULLY for (int j = 0; j < TILE_KEYS; j++) acc[r][j] = v_zero();                       \
    }                                                                                              \
    for (int64_t d = 0; d < size; d += VL) {                                                       \
      vf key[TILE_KEYS];                                                                           \
      UNROLL_FULLY for (int j = 0; j < TILE_KEYS; j++) key[j] = LOAD_T(keys[j] + d);               \
      UNROLL_FULLY for (int r = 0; r < rows; r++) {                                                \
        vf x = v_load(q + r * HEAD_STEP + d);                                                      \
        UNROLL_FULLY for (int j = 0; j < TILE_KEYS; j++) acc[r][j] = v_fma(x, key[j], acc[r][j]);  \
      }                                                                                            \
    }                                                                                              \
    UNROLL_FULLY for (int r = 0; r < rows; r++) {                                                  \
      v4_store(scores + r * SCORE_STEP, v_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));       \
    }                                                                                              \
  }                                                                                                \
  static void NAME(int64_t rows, const float* q, const T* const* keys, int64_t size,               \
                   float* scores) {                                                                \
    for (; rows >= TILE_ROWS;                                                                      \
         rows -= TILE_ROWS, q += TILE_ROWS * HEAD_STEP, scores += TILE_ROWS * SCORE_STEP)          \
      NAME##_rows(TILE_ROWS, q, keys, size, scores);                                               \
    switch (rows) {                                                                                \
    case 1:                                                                                        \
      NAME##_rows(1, q, keys, size, scores);                                                       \
      break;                                                                                       \
    case 2:                                                                                        \
      NAME##_rows(TILE_ROWS < 2 ? 1 : 2, q, keys, size, scores);                                   \
      break;                                                                                       \
    case 3:                                                                                        \
      NAME##_rows(TILE_ROWS < 3 ? 1 : 3, q, keys, size, scores);                                   \
      break;                                                                                       \
    default:                                                                                       \
      break;                                                                                       \
    }                                                                                              \
  }
DEFINE_SCORE(score_there, kv_t, LOAD_KV)
DEFINE_SCORE(score_staged, float, v_load)

/* A slice of keys or values as rows of f32, zeros behind `size`. */
static void stage(const state_t* s, const kv_t* const* at, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; i++) {
    float* to = s->staged + i * HEAD;
    const kv_t* from = at[i];
    INDEPENDENT for (int64_t d = 0; d < size; d++) to[d] = LOAD(KV_TAG)(from[d]);
    for (int64_t d = size; d < HEAD; d++)
      to[d] = 0.0f;
  }
}

static void score_few(const state_t* s, int64_t from, int64_t to) {
  for (int64_t j = from; j < to; j += TILE_KEYS) {
    const kv_t* keys[TILE_KEYS];
    for (int64_t i = 0; i < TILE_KEYS; i++)
      keys[i] = s->k_at[min_i64(j + i, to - 1)];
    int64_t line = 64 / (int64_t)sizeof(kv_t);
    for (int64_t i = 0; i < TILE_KEYS; i++) {
      int64_t ahead = min_i64(j + 4 * TILE_KEYS + i, to - 1);
      for (int64_t d = 0; d < s->p->head_size; d += line)
        __builtin_prefetch(s->k_at[ahead] + d, 0, 3);
      for (int64_t d = 0; d < s->p->sizes.value_size; d += line)
        __builtin_prefetch(s->v_at[min_i64(j + i, to - 1)] + d, 0, 2);
    }
    score_there(s->rows, s->q, keys, s->p->head_size, s->scores + j);
  }
}

static void score_many(const state_t* s, int64_t from, int64_t to) {
  int64_t size = ceildiv_i64(s->p->head_size, VL) * VL;
  for (int64_t first = from; first < to; first += SLICE) {
    int64_t count = min_i64(SLICE, to - first);
    stage(s, s->k_at + first, count, s->p->head_size);
    for (int64_t row = 0; row < s->rows; row += TILE_ROWS) {
      for (int64_t j = 0; j < count; j += TILE_KEYS) {
        const float* keys[TILE_KEYS];
        for (int64_t i = 0; i < TILE_KEYS; i++)
          keys[i] = s->staged + min_i64(j + i, count - 1) * HEAD;
        score_staged(min_i64(TILE_ROWS, s->rows - row), s->q + row * HEAD_STEP, keys, size,
                     s->scores + row * SCORE_STEP + first + j);
      }
    }
  }
}

/* Scores of one row become weights relative to the unit's maximum. */
static void soften_row(const state_t* s, int64_t row, int64_t low, int64_t high) {
  float* scores = s->scores + row * SCORE_STEP;
  float cap = s->p->soft_cap;
  int64_t width = ceildiv_i64(high, PANEL) * PANEL;
  if (cap > 0.0f) {
    float inverse = 1.0f / cap;
    INDEPENDENT for (int64_t j = low; j < high; j++) scores[j] = cap * m_tanh(scores[j] * inverse);
  }
  for (int64_t j = 0; j < low; j++)
    scores[j] = NEGATIVE_INFINITY;
  for (int64_t j = high; j < width; j++)
    scores[j] = NEGATIVE_INFINITY;
  vf top = v_set(NEGATIVE_INFINITY);
  for (int64_t j = 0; j < width; j += VL)
    top = v_max_raw(v_load(scores + j), top);
  float maximum = v_largest(top), base = maximum == NEGATIVE_INFINITY ? 0.0f : maximum;
  INDEPENDENT for (int64_t j = 0; j < width; j++) scores[j] = m_exp_nonpositive(scores[j] - base);
  vf total = v_zero();
  for (int64_t j = 0; j < width; j += VL)
    total = v_add(total, v_load(scores + j));
  s->maximum[ROWS + row] = maximum;
  s->sum[ROWS + row] = v_sum(total);
}

/* Adds weighted values to `vectors` vectors of each row, straight from where
 * the values lie. */
ALWAYS_INLINE void add_values(const int rows, const int vectors, const float* weights,
                              const kv_t* const* at, int64_t d, int64_t low, int64_t high,
                              float* out) {
  vf acc[4][8];
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    UNROLL_FULLY for (int j = 0; j < vectors; j++) acc[r][j] = v_load(out + r * HEAD + j * VL);
  }
  for (int64_t i = low; i < high; i++) {
    const kv_t* v = at[i] + d;
    UNROLL_FULLY for (int j = 0; j < vectors; j++) {
      vf value = LOAD_KV(v + j * VL);
      UNROLL_FULLY for (int r = 0; r < rows; r++) {
        acc[r][j] = v_fma(v_set(weights[r * SCORE_STEP + i]), value, acc[r][j]);
      }
    }
  }
  UNROLL_FULLY for (int r = 0; r < rows; r++) {
    UNROLL_FULLY for (int j = 0; j < vectors; j++) v_store(out + r * HEAD + j * VL, acc[r][j]);
  }
}

ALWAYS_INLINE void add_all_values(const int rows, const int vectors, const state_t* s, int64_t row,
                                  int64_t low, int64_t high) {
  const float* weights = s->scores + row * SCORE_STEP;
  float* out = s->unit + row * HEAD;
  int64_t d = 0, size = s->p->sizes.value_size;
  for (; d + vectors * VL <= size; d += vectors * VL)
    add_values(rows, vectors, weights, s->v_at, d, low, high, out + d);
  for (; d < size; d += VL)
    add_values(rows, 1, weights, s->v_at, d, low, high, out + d);
}

/* Rows of one token see the same keys. */
static void value_few(const state_t* s, int64_t base, int64_t end) {
  for (int64_t row = 0; row < s->rows; row += s->p->sizes.group) {
    int64_t low = max_i64(s->low[row] - base, 0), high = min_i64(s->high[row] - base, end);
    for (int64_t r = 0; r < s->p->sizes.group; r += 4) {
      switch (min_i64(4, s->p->sizes.group - r)) {
      case 1:
        add_all_values(1, 2 * VALUE_VECTORS, s, row + r, low, high);
        break;
      case 2:
        add_all_values(2, VALUE_VECTORS, s, row + r, low, high);
        break;
      case 3:
        add_all_values(3, VALUE_VECTORS, s, row + r, low, high);
        break;
      default:
        add_all_values(4, VALUE_VECTORS, s, row + r, low, high);
        break;
      }
    }
  }
}

static void multiply_values(const state_t* s, int64_t row, int64_t rows, int64_t first, int64_t low,
                            int64_t high) {
  if (low >= high)
    return;
  for (int64_t d = 0; d < s->p->sizes.value_size; d += PANEL) {
    row_block(rows, high - low, s->scores + row * SCORE_STEP + low, SCORE_STEP,
              s->staged + (low - first) * HEAD + d, HEAD, s->unit + row * HEAD + d, HEAD,
              CONTINUE_TILE, (const char*)s->staged);
  }
}

/* A slice of values for a few rows: what all of them see at once, the rest row
 * by row. */
static void value_rows(const state_t* s, int64_t row, int64_t rows, int64_t base, int64_t first,
                       int64_t end) {
  int64_t low = first, high = end;
  for (int64_t r = row; r < row + rows; r++) {
    low = max_i64(low, s->low[r] - base);
    high = min_i64(high, s->high[r] - base);
  }
  int together = low < high;
  for (int64_t r = row; r < row + rows; r++) {
    int64_t to = min_i64(end, s->high[r] - base);
    multiply_values(s, r, 1, first, max_i64(first, s->low[r] - base),
                    together ? min_i64(to, low) : to);
  }
  if (!together)
    return;
  multiply_values(s, row, rows, first, low, high);
  for (int64_t r = row; r < row + rows; r++)
    multiply_values(s, r, 1, first, high, min_i64(end, s->high[r] - base));
}

static void value_many(const state_t* s, int64_t base, int64_t from, int64_t to) {
  int64_t blocks = ceildiv_i64(s->rows, BLOCK_ROWS);
  for (int64_t first = from; first < to; first += SLICE) {
    int64_t count = min_i64(SLICE, to - first);
    stage(s, s->v_at + first, count, s->p->sizes.value_size);
    for (int64_t i = 0; i < blocks; i++) {
      int64_t row = part_begin(s->rows, i, blocks);
      value_rows(s, row, part_begin(s->rows, i + 1, blocks) - row, base, first, first + count);
    }
  }
}

static void store_part(const state_t* s, int64_t unit) {
  const paged_attention_params_t* p = s->p;
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t token = s->block.first + r / p->sizes.group;
    int64_t head = s->kv_head * p->sizes.group + r % p->sizes.group;
    float* to = p->partial + paged_part(&p->sizes, token, head, unit);
    to[0] = s->maximum[ROWS + r];
    to[1] = s->sum[ROWS + r];
    __builtin_memcpy(to + PART_HEAD, s->unit + r * HEAD, (size_t)p->sizes.value_size * 4);
  }
}

static int32_t attend_unit(state_t* s, int64_t unit, int64_t low, int64_t high, int few) {
  int64_t base = unit * UNIT, from = max_i64(low - base, 0), to = min_i64(high - base, UNIT);
  int32_t code = find_keys(s, base, from, to);
  if (code != KERNEL_OK)
    return code;
  if (few) {
    score_few(s, from, to);
  } else {
    score_many(s, from, to);
  }
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t end = max_i64(0, min_i64(s->high[r] - base, to));
    soften_row(s, r, min_i64(end, max_i64(s->low[r] - base, 0)), end);
    for (int64_t d = 0; d < HEAD; d++)
      s->unit[r * HEAD + d] = 0.0f;
  }
  if (few) {
    value_few(s, base, to);
  } else {
    value_many(s, base, from, to);
  }
  if (s->p->partial) {
    store_part(s, unit);
    return KERNEL_OK;
  }
  for (int64_t r = 0; r < s->rows; r++) {
    paged_join(&s->maximum[r], &s->sum[r], s->out + r * HEAD, s->p->sizes.value_size,
               s->maximum[ROWS + r], s->sum[ROWS + r], s->unit + r * HEAD);
  }
  return KERNEL_OK;
}

static void store_rows(const state_t* s) {
  const paged_attention_params_t* p = s->p;
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t token = s->block.first + r / p->sizes.group;
    int64_t head = s->kv_head * p->sizes.group + r % p->sizes.group;
    q_t* to = p->out + token * p->out_token + head * p->out_head;
    const float* from = s->out + r * HEAD;
    float factor = paged_factor(s->maximum[r], s->sum[r], p->sinks, head);
    INDEPENDENT for (int64_t d = 0; d < p->sizes.value_size; d++) to[d] =
        STORE(Q_TAG)(from[d] * factor);
  }
}

/* Tokens of no row give zeros. All rows are looked at, so that what follows may rely on them. */
static int32_t clear_padding(const state_t* s) {
  const paged_attention_params_t* p = s->p;
  int64_t first, end;
  int32_t code = paged_live(&p->sizes, p->row_starts, s->workgroup, &first, &end);
  for (int64_t token = 0; code == KERNEL_OK && p->out && token < p->sizes.tokens; token++) {
    if (token >= first && token < end)
      continue;
    for (int64_t h = 0; h < p->sizes.group; h++) {
      q_t* to = p->out + token * p->out_token + (s->kv_head * p->sizes.group + h) * p->out_head;
      for (int64_t d = 0; d < p->sizes.value_size; d++)
        to[d] = STORE(Q_TAG)(0.0f);
    }
  }
  return code;
}

static void place(state_t* s, float* memory) {
  s->q = memory;
  s->staged = s->q + ROWS * HEAD_STEP;
  s->scores = s->staged + SLICE * HEAD;
  s->unit = s->scores + ROWS * SCORE_STEP;
  s->out = s->unit + ROWS * HEAD;
  s->maximum = s->out + ROWS * HEAD;
  s->sum = s->maximum + 2 * ROWS; /* behind those of the rows, those of the unit */
  s->low = (int64_t*)(s->sum + 2 * ROWS);
  s->high = s->low + ROWS;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const paged_attention_params_t* p = (const paged_attention_params_t*)dispatch->params;
  state_t s = {.p = p, .workgroup = workgroup, .kv_head = workgroup->workgroup_id[0]};
  int32_t code = KERNEL_OK;
  if (workgroup->workgroup_id[1] == 0)
    code = clear_padding(&s);
  if (code == KERNEL_OK)
    code = paged_find(&p->sizes, p->row_starts, p->kv_lengths, p->block_tokens,
                      workgroup->workgroup_id[1], workgroup, &s.block);
  if (code != KERNEL_OK || s.block.count == 0)
    return code;
  s.block.row_id = p->row_ids[s.block.row];
  if (s.block.row_id < 0 || s.block.row_id >= p->table_rows) {
    fail_message(workgroup, "row % is outside a page table of % rows", s.block.row_id,
                 p->table_rows);
    return KERNEL_ERROR_INDEX;
  }
  if (s.block.length > p->table_pages * p->page_size) {
    fail_message(workgroup, "% keys are more than the % of a row of the page table", s.block.length,
                 p->table_pages * p->page_size);
    return KERNEL_ERROR_INDEX;
  }
  place(&s, (float*)workgroup->local_memory);
  s.rows = s.block.count * p->sizes.group;
  load_queries(&s);
  int few = s.rows <= FEW_ROWS && p->head_size % VL == 0 && p->sizes.value_size % VL == 0;
  int64_t low = s.low[0], high = s.high[s.rows - 1], share = workgroup->workgroup_id[2];
  for (int64_t unit = low / UNIT; unit * UNIT < high && code == KERNEL_OK; unit++) {
    if (unit % dispatch->workgroup_count[2] == share)
      code = attend_unit(&s, unit, low, high, few);
  }
  if (code == KERNEL_OK && p->out)
    store_rows(&s);
  return code;
}
