/* scatter_to.c - out is x, with source[o][j][i] written, or added, at place index[o][j][i] of the
 * middle axis.
 *
 * Instantiated with X_TAG, INDEX_TAG, ADD (0 or 1) and ENTRY. A place outside the axis fails the
 * dispatch with KERNEL_ERROR_INDEX. x of the grid walks pieces of BLOCK places of the inner axis:
 * what goes to one place is written by one workgroup, in order. */
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(INDEX_TAG) index_t;

typedef struct {
  const x_t* x;
  const index_t* index;
  const x_t* source;
  x_t* out;
  int64_t outer, size, inner, count;
  int64_t x_outer, x_size, x_inner, out_outer, out_size, out_inner;
  int64_t index_outer, index_count, index_inner, source_outer, source_count, source_inner;
} scatter_to_params_t;

#define BLOCK 64

ALWAYS_INLINE void put(x_t* out, x_t source) {
#if ADD
  *out = STORE(X_TAG)(LOAD(X_TAG)(*out) + LOAD(X_TAG)(source));
#else
  *out = source;
#endif
}

static void copy(const scatter_to_params_t* p, const x_t* x, x_t* out, int64_t count) {
  int is_plain = p->x_inner == 1 && p->out_inner == 1;
  for (int64_t j = 0; j < p->size; j++, x += p->x_size, out += p->out_size) {
    if (is_plain) {
      __builtin_memcpy(out, x, (size_t)count * sizeof(x_t));
      continue;
    }
    for (int64_t i = 0; i < count; i++)
      out[i * p->out_inner] = x[i * p->x_inner];
  }
}

static int32_t outside(const scatter_to_params_t* p, const accrt_kernel_workgroup_t* workgroup,
                       int64_t place) {
  fail_message(workgroup, "index % is outside an axis of size %", place, p->size);
  return KERNEL_ERROR_INDEX;
}

/* One place for each row: the index is the same along the inner axis. */
static int32_t scatter_rows(const scatter_to_params_t* p, const accrt_kernel_workgroup_t* workgroup,
                            const index_t* index, const x_t* source, x_t* out, int64_t count) {
  int is_plain = p->source_inner == 1 && p->out_inner == 1;
  for (int64_t j = 0; j < p->count; j++, source += p->source_count) {
    int64_t place = (int64_t)index[j * p->index_count];
    if (UNLIKELY(place < 0 || place >= p->size))
      return outside(p, workgroup, place);
    x_t* row = out + place * p->out_size;
    if (is_plain) {
      INDEPENDENT for (int64_t i = 0; i < count; i++) put(row + i, source[i]);
      continue;
    }
    for (int64_t i = 0; i < count; i++)
      put(row + i * p->out_inner, source[i * p->source_inner]);
  }
  return KERNEL_OK;
}

static int32_t scatter(const scatter_to_params_t* p, const accrt_kernel_workgroup_t* workgroup,
                       const index_t* index, const x_t* source, x_t* out, int64_t count) {
  if (p->index_inner == 0)
    return scatter_rows(p, workgroup, index, source, out, count);
  for (int64_t j = 0; j < p->count; j++, source += p->source_count) {
    for (int64_t i = 0; i < count; i++) {
      int64_t place = (int64_t)index[j * p->index_count + i * p->index_inner];
      if (UNLIKELY(place < 0 || place >= p->size))
        return outside(p, workgroup, place);
      put(out + place * p->out_size + i * p->out_inner, source[i * p->source_inner]);
    }
  }
  return KERNEL_OK;
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const scatter_to_params_t* p = (const scatter_to_params_t*)dispatch->params;
  int64_t blocks = ceildiv_i64(p->inner, BLOCK), total = p->outer * blocks;
  int64_t first = part_begin(total, workgroup->workgroup_id[0], dispatch->workgroup_count[0]);
  int64_t end = part_begin(total, workgroup->workgroup_id[0] + 1, dispatch->workgroup_count[0]);
  for (int64_t at = first; at < end; at++) {
    int64_t o = at / blocks, from = at % blocks * BLOCK, count = min_i64(BLOCK, p->inner - from);
    x_t* out = p->out + o * p->out_outer + from * p->out_inner;
    copy(p, p->x + o * p->x_outer + from * p->x_inner, out, count);
    int32_t status = scatter(p, workgroup, p->index + o * p->index_outer + from * p->index_inner,
                             p->source + o * p->source_outer + from * p->source_inner, out, count);
    if (status != KERNEL_OK)
      return status;
  }
  return KERNEL_OK;
}
