/* paged_join.c - what the units of keys gave (paged_attention.c with
 * `partial`), joined in order.
 *
 * Instantiated with Q_TAG (the result), HEAD and ENTRY. x of the grid walks
 * groups of tokens. */
#include "paged.h"
#include "types.h"

typedef TYPE(Q_TAG) q_t;

typedef struct {
  const float* partial;
  const int32_t* row_starts;
  const int32_t* kv_lengths;
  const float* sinks;
  q_t* out;
  union {
    paged_sizes_t sizes;
    struct {
      PAGED_SIZES;
    };
  };
  int64_t out_token, out_head;
} paged_join_params_t;

static void join_head(const paged_join_params_t* p, const paged_block_t* block, int64_t token,
                      int64_t head) {
  const paged_sizes_t* s = &p->sizes;
  q_t* to = p->out + token * p->out_token + head * p->out_head;
  float out[HEAD], maximum = NEGATIVE_INFINITY, sum = 0.0f;
  for (int64_t d = 0; d < s->value_size; d++)
    out[d] = 0.0f;
  int64_t low = 0, high = 0;
  if (block)
    paged_seen(s, block, token, &low, &high);
  for (int64_t unit = low / UNIT; unit * UNIT < high; unit++) {
    const float* part = p->partial + paged_part(s, token, head, unit);
    paged_join(&maximum, &sum, out, s->value_size, part[0], part[1], part + PART_HEAD);
  }
  float factor = paged_factor(maximum, sum, p->sinks, head);
  INDEPENDENT for (int64_t d = 0; d < s->value_size; d++) to[d] = STORE(Q_TAG)(out[d] * factor);
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const paged_join_params_t* p = (const paged_join_params_t*)dispatch->params;
  const paged_sizes_t* s = &p->sizes;
  int64_t groups = dispatch->workgroup_count[0], own = workgroup->workgroup_id[0];
  int64_t first = part_begin(s->tokens, own, groups), end = part_begin(s->tokens, own + 1, groups);
  paged_block_t block = {.first = 0, .count = 0};
  int64_t row = -1;
  for (int64_t token = first; token < end; token++) {
    while (row + 1 < s->rows && p->row_starts[row + 1] <= token)
      row++;
    int live = row >= 0 && token < p->row_starts[row + 1];
    if (live) {
      block =
          (paged_block_t){.row = row, .begin = p->row_starts[row], .length = p->kv_lengths[row]};
      block.tokens = p->row_starts[row + 1] - block.begin;
    }
    for (int64_t head = 0; head < s->group * s->kv_heads; head++)
      join_head(p, live ? &block : 0, token, head);
  }
  return KERNEL_OK;
}
