/* paged_scan.c - a recurrence over ragged rows, with states in pages: of each head, a state S
 * [value size, key size] becomes decay * S + new key^T with each token, which gets S query. new is
 * the token's value, or, with beta, beta * (value - decay * S key).
 *
 * Instantiated with ENTRY. Adds up in f32. x of the grid walks heads, y rows. The state lies where
 * it is kept: in the page that the token is written to. A page that the token before lies on, and
 * the token does not, is full, and others may have it: it is copied, and stays as it is. */
#include "simd.h"

typedef struct {
  const float* query;
  const float* key;
  const float* value;
  const float* decay;
  const int32_t* row_ids;
  const int32_t* row_starts;
  const int32_t* kv_lengths;
  const float* beta;
  const int32_t* table;
  float* states;
  float* out;
  int64_t tokens, rows, heads, group, key_size, value_size, decay_size, pages, page_size,
      table_rows, table_pages;
  int64_t query_token, query_head, key_token, key_head, value_token, value_head, decay_token,
      decay_head, beta_token, beta_head, out_token, out_head;
} paged_scan_params_t;

/* One token of one head: pointers to what is its own. */
typedef struct {
  const float* query;
  const float* key;
  const float* value;
  const float* decay;
  float* out;
} token_t;

/* A row of the state, multiplied by the decay; its product with the key. */
ALWAYS_INLINE float decayed(float* row, const float* key, const float* decay, int64_t size,
                            int of_each) {
  vf sum = v_zero(), one = v_set(decay[0]);
  int64_t n = 0;
  float rest = 0.0f;
  for (; n + VL <= size; n += VL) {
    vf state = v_mul(v_load(row + n), of_each ? v_load(decay + n) : one);
    v_store(row + n, state);
    sum = v_fma(state, v_load(key + n), sum);
  }
  for (; n < size; n++) {
    row[n] *= decay[of_each ? n : 0];
    rest = __builtin_fmaf(row[n], key[n], rest);
  }
  return v_sum(sum) + rest;
}

/* A row and what is new in it; its product with the query. */
ALWAYS_INLINE float renewed(float* row, float new, const float* key, const float* query,
                            int64_t size) {
  vf sum = v_zero(), by = v_set(new);
  int64_t n = 0;
  float rest = 0.0f;
  for (; n + VL <= size; n += VL) {
    vf state = v_fma(by, v_load(key + n), v_load(row + n));
    v_store(row + n, state);
    sum = v_fma(state, v_load(query + n), sum);
  }
  for (; n < size; n++) {
    row[n] = __builtin_fmaf(new, key[n], row[n]);
    rest = __builtin_fmaf(row[n], query[n], rest);
  }
  return v_sum(sum) + rest;
}

static void step(const paged_scan_params_t* p, const token_t* token, const float* beta,
                 float* state) {
  const int of_each = p->decay_size > 1;
  for (int64_t i = 0; i < p->value_size; i++, state += p->key_size) {
    float before = of_each ? decayed(state, token->key, token->decay, p->key_size, 1)
                           : decayed(state, token->key, token->decay, p->key_size, 0);
    float new = beta ? beta[0] * (token->value[i] - before) : token->value[i];
    token->out[i] = renewed(state, new, token->key, token->query, p->key_size);
  }
}

/* The page of a position, or -1: there is none, which is said. */
static int64_t page_of(const paged_scan_params_t* p, const accrt_kernel_workgroup_t* workgroup,
                       int64_t row, int64_t position) {
  int64_t place = position / p->page_size;
  if (UNLIKELY(row < 0 || row >= p->table_rows || place >= p->table_pages)) {
    fail_message(workgroup, "row % and page % of it are outside the page table", row, place);
    return -1;
  }
  int64_t page = p->table[row * p->table_pages + place];
  if (UNLIKELY(page < 0 || page >= p->pages)) {
    fail_message(workgroup, "page % is outside a state of % pages", page, p->pages);
    return -1;
  }
  return page;
}

static void clear(const paged_scan_params_t* p, int64_t head, int64_t first, int64_t end) {
  for (int64_t t = first; t < end; t++)
    __builtin_memset(p->out + t * p->out_token + head * p->out_head, 0,
                     (size_t)p->value_size * sizeof(float));
}

/* Tokens of batch row r, of one head. */
static int32_t walk(const paged_scan_params_t* p, const accrt_kernel_workgroup_t* workgroup,
                    int64_t r, int64_t head) {
  int64_t first = p->row_starts[r], end = p->row_starts[r + 1];
  int64_t position = p->kv_lengths[r] - (end - first), size = p->value_size * p->key_size;
  float* state = 0;
  if (UNLIKELY(first < 0 || end < first || end > p->tokens || (end > first && position < 0))) {
    fail_message(workgroup, "a row of % tokens has % keys, its own among them", end - first,
                 p->kv_lengths[r]);
    return KERNEL_ERROR_INDEX;
  }
  for (int64_t t = first; t < end; t++, position++) {
    if (t == first || position % p->page_size == 0) {
      int64_t page = page_of(p, workgroup, p->row_ids[r], position);
      const float* before = state;
      if (page < 0)
        return KERNEL_ERROR_INDEX;
      state = p->states + (page * p->heads + head) * size;
      if (position == 0) {
        __builtin_memset(state, 0, (size_t)size * sizeof(float));
      } else if (position % p->page_size == 0) {
        int64_t last = before ? 0 : page_of(p, workgroup, p->row_ids[r], position - 1);
        if (last < 0)
          return KERNEL_ERROR_INDEX;
        before = before ? before : p->states + (last * p->heads + head) * size;
        __builtin_memmove(state, before, (size_t)size * sizeof(float));
      }
    }
    const int64_t of_key = head / p->group;
    const token_t token = {p->query + t * p->query_token + of_key * p->query_head,
                           p->key + t * p->key_token + of_key * p->key_head,
                           p->value + t * p->value_token + head * p->value_head,
                           p->decay + t * p->decay_token + head * p->decay_head,
                           p->out + t * p->out_token + head * p->out_head};
    step(p, &token, p->beta ? p->beta + t * p->beta_token + head * p->beta_head : 0, state);
  }
  return KERNEL_OK;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const paged_scan_params_t* p = (const paged_scan_params_t*)dispatch->params;
  int64_t head = workgroup->workgroup_id[0], r = workgroup->workgroup_id[1];
  if (r >= p->rows) {
    clear(p, head, 0, p->tokens);
    return KERNEL_OK;
  }
  if (r == 0)
    clear(p, head, 0, min_i64(max_i64(p->row_starts[0], 0), p->tokens));
  if (r == p->rows - 1)
    clear(p, head, max_i64(p->row_starts[p->rows], 0), p->tokens);
  return walk(p, workgroup, r, head);
}
