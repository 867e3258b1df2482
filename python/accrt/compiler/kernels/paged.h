/* paged.h - what the kernels of paged attention share: which tokens are whose, and how units of
 * keys are joined. */
#ifndef ACCRT_KERNELS_PAGED_H_
#define ACCRT_KERNELS_PAGED_H_

#include "common.h"
#include "vmath.h"

#define UNIT 256     /* keys whose part of a result depends on nothing else */
#define PART_HEAD 16 /* floats before a part's values: the maximum, the sum */
#define NEGATIVE_INFINITY (-__builtin_inff())

/* `window` 0: none; below 0: keys from the last multiple of -window on. `units`: of the longest
 * sequence, which parts are laid out for. */
#define PAGED_SIZES int64_t tokens, rows, group, kv_heads, value_size, window, units

typedef struct {
  PAGED_SIZES;
} paged_sizes_t;

typedef struct {
  int64_t row, begin; /* the batch row, and its first token */
  int64_t first, count;
  int64_t tokens, length; /* of the row; its keys */
  int64_t row_id;
} paged_block_t;

/* Tokens of batch row r; whether they are where tokens are. */
ALWAYS_INLINE int32_t paged_row(const paged_sizes_t* s, const int32_t* row_starts, int64_t r,
                                const accrt_kernel_workgroup_t* workgroup, int64_t* begin,
                                int64_t* end) {
  *begin = row_starts[r];
  *end = row_starts[r + 1];
  if (UNLIKELY(*begin < 0 || *end < *begin || *end > s->tokens)) {
    fail_message(workgroup, "a row begins at token % and ends at %: row_starts must ascend", *begin,
                 *end);
    return KERNEL_ERROR_INDEX;
  }
  return KERNEL_OK;
}

/* Tokens from the first row's first to the last row's last. */
static __attribute__((unused)) int32_t paged_live(const paged_sizes_t* s, const int32_t* row_starts,
                                                  const accrt_kernel_workgroup_t* workgroup,
                                                  int64_t* first, int64_t* end) {
  *first = *end = 0;
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t begin;
    int32_t code = paged_row(s, row_starts, r, workgroup, &begin, end);
    if (code != KERNEL_OK)
      return code;
    *first = r == 0 ? begin : *first;
  }
  return KERNEL_OK;
}

/* Block `index` of all blocks of up to `size` tokens of one row each; count 0: there are fewer. */
static __attribute__((unused)) int32_t paged_find(const paged_sizes_t* s, const int32_t* row_starts,
                                                  const int32_t* kv_lengths, int64_t size,
                                                  int64_t index,
                                                  const accrt_kernel_workgroup_t* workgroup,
                                                  paged_block_t* out) {
  int64_t before = 0;
  for (int64_t r = 0; r < s->rows; r++) {
    int64_t begin, end;
    int32_t code = paged_row(s, row_starts, r, workgroup, &begin, &end);
    if (code != KERNEL_OK)
      return code;
    int64_t blocks = ceildiv_i64(end - begin, size);
    if (index < before + blocks) {
      int64_t first = begin + (index - before) * size;
      *out = (paged_block_t){.row = r, .begin = begin, .first = first, .tokens = end - begin};
      out->count = min_i64(size, end - first);
      out->length = kv_lengths[r];
      if (out->length >= out->tokens)
        return KERNEL_OK;
      fail_message(workgroup, "a row of % tokens has % keys, its own among them", out->tokens,
                   out->length);
      return KERNEL_ERROR_INDEX;
    }
    before += blocks;
  }
  return KERNEL_OK;
}

/* The keys that a token of the block sees. */
ALWAYS_INLINE void paged_seen(const paged_sizes_t* s, const paged_block_t* block, int64_t token,
                              int64_t* low, int64_t* high) {
  *high = block->length - block->tokens + (token - block->begin) + 1;
  *low = s->window > 0 ? max_i64(0, *high - s->window) : 0;
  if (s->window < 0)
    *low = (*high - 1) / -s->window * -s->window;
}

/* Where a part is stored, in floats. */
ALWAYS_INLINE int64_t paged_part(const paged_sizes_t* s, int64_t token, int64_t head,
                                 int64_t unit) {
  int64_t step = PART_HEAD + ceildiv_i64(s->value_size, 16) * 16;
  return ((token * s->group * s->kv_heads + head) * s->units + unit) * step;
}

/* Joins a unit's part to what the units before it gave. */
static __attribute__((unused)) void paged_join(float* maximum, float* sum, float* out, int64_t size,
                                               float unit_maximum, float unit_sum,
                                               const float* unit) {
  if (unit_sum == 0.0f) /* it sees none of the unit */
    return;
  float before = *maximum, now = unit_maximum > before ? unit_maximum : before;
  float a = before == NEGATIVE_INFINITY ? 0.0f : m_exp_nonpositive(before - now);
  float b = unit_maximum == now ? 1.0f : m_exp_nonpositive(unit_maximum - now);
  *maximum = now;
  *sum = *sum * a + unit_sum * b;
  INDEPENDENT for (int64_t d = 0; d < size; d++) out[d] = out[d] * a + unit[d] * b;
}

/* What the values of a row of query head `head` are multiplied by at the end. A sink is a key whose
 * value is 0: it is in the sum alone. */
static __attribute__((unused)) float paged_factor(float maximum, float sum, const float* sinks,
                                                  int64_t head) {
  if (!sinks || sum == 0.0f)
    return sum == 0.0f ? 0.0f : 1.0f / sum;
  float sink = sinks[head], most = sink > maximum ? sink : maximum;
  float kept = m_exp_nonpositive(maximum - most);
  return kept / (sum * kept + m_exp_nonpositive(sink - most));
}

#endif /* ACCRT_KERNELS_PAGED_H_ */
