/* gather.c - rows picked by index along one axis: out[o][i][...] = x[o][index[i]][...]. Embeddings
 * and index_select.
 *
 * Instantiated with INDEX_TAG (i32 or i64) and ENTRY; moves bytes, so that one kernel serves all
 * types. An index outside [0, size) fails the dispatch with KERNEL_ERROR_INDEX. x of the grid walks
 * groups of (o, i). */
#include "types.h"

typedef TYPE(INDEX_TAG) index_t;

typedef struct {
  const uint8_t* x;
  const index_t* index;
  uint8_t* out;
  int64_t outer, size, count,
      row_bytes; /* x is [outer][size][row], index [count], out [outer][count][row] */
  int64_t x_outer_bytes, x_row_bytes, out_outer_bytes, out_row_bytes, index_step;
} gather_params_t;

ALWAYS_INLINE void copy_row(uint8_t* out, const uint8_t* x, int64_t bytes) {
  switch (bytes) {
  case 1:
    *out = *x;
    break;
  case 2:
    __builtin_memcpy(out, x, 2);
    break;
  case 4:
    __builtin_memcpy(out, x, 4);
    break;
  case 8:
    __builtin_memcpy(out, x, 8);
    break;
  default:
    __builtin_memcpy(out, x, (size_t)bytes);
    break;
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const gather_params_t* p = (const gather_params_t*)dispatch->params;
  int64_t total = p->outer * p->count;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t o = at / p->count, i = at % p->count;
    int64_t row = (int64_t)p->index[i * p->index_step];
    if (UNLIKELY(row < 0 || row >= p->size)) {
      fail_message(workgroup, "index % is outside an axis of size %", row, p->size);
      return KERNEL_ERROR_INDEX;
    }
    copy_row(p->out + o * p->out_outer_bytes + i * p->out_row_bytes,
             p->x + o * p->x_outer_bytes + row * p->x_row_bytes, p->row_bytes);
  }
  return KERNEL_OK;
}
