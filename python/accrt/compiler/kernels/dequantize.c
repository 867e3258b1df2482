/* dequantize.c - rows of a weight in any layout of the registry as floats: all of them, or those
 * that an index picks (embeddings).
 *
 * Instantiated with LAYOUT (an id), S_TAG (type of scales), OUT_TAG, INDEX_TAG and ENTRY. x of the
 * grid walks rows of the result; without an index row i is the weight's row i. An index outside [0,
 * n) fails the dispatch with KERNEL_ERROR_INDEX, and so does a column whose group is none of the
 * weight's. */
#include "types.h"

#define INLINE ALWAYS_INLINE
#define SCALE_AT(p, i) LOAD(S_TAG)(((const TYPE(S_TAG)*)(const void*)(p))[i])
#include "layouts.h"

typedef TYPE(INDEX_TAG) index_t;
typedef TYPE(OUT_TAG) out_t;

typedef struct {
  const uint8_t *data, *scales, *zeros, *group_index, *global_scale;
  const index_t* index;
  out_t* out;
  int64_t n, k, group, groups, is_e5m2, rows;
} dequantize_params_t;

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const dequantize_params_t* p = (const dequantize_params_t*)dispatch->params;
  const weight_t w = {p->data, p->scales, p->zeros, p->group_index, p->global_scale,
                      p->n,    p->k,      p->group, p->groups,      p->is_e5m2};
  int64_t fault = p->group_index ? group_index_fault(&w) : p->k;
  if (UNLIKELY(fault < p->k)) {
    fail_message(workgroup, "column % is in group %, which is not there", fault,
                 group_of(&w, fault));
    return KERNEL_ERROR_INDEX;
  }
  int64_t first = part_begin(p->rows, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(p->rows, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t row = p->index ? (int64_t)p->index[at] : at;
    if (UNLIKELY(p->index && (row < 0 || row >= p->n))) {
      fail_message(workgroup, "index % is outside an axis of size %", row, p->n);
      return KERNEL_ERROR_INDEX;
    }
    for (int64_t i = 0; i < p->k; i++)
      p->out[at * p->k + i] = STORE(OUT_TAG)(value_at(&w, row, i));
  }
  return KERNEL_OK;
}
