/* format/layout.c - the table of weight layouts, and sizes. It may not allocate; every product is
 * checked, since shapes come from files. */
#include "format/layout.h"

#include <stdio.h>
#include <string.h>

#include "accrt/tensor.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"

#define MAX_GROUP_ELEMENTS (1u << 24)

/* How many elements a component has. */
typedef enum {
  EXTENT_NONE,
  EXTENT_ELEMENTS, /* rows * k */
  EXTENT_BLOCKS,   /* rows * k / block blocks of bytes */
  EXTENT_WORDS,    /* rows * k / 8: eight 4-bit values each */
  EXTENT_ONE,
  EXTENT_ROWS,
  EXTENT_GROUPS,      /* rows * groups */
  EXTENT_GROUP_PAIRS, /* the same, each row filled up to an even number */
  EXTENT_GROUP_WORDS, /* rows * groups / 8 */
  EXTENT_TILES,       /* batch * ceil(n / tile_rows) * groups */
  EXTENT_COLUMNS,     /* k */
} extent_t;

#define BIT(dtype) (1u << (dtype))
#define FLOATS (BIT(ACCRT_DTYPE_F32) | BIT(ACCRT_DTYPE_F16) | BIT(ACCRT_DTYPE_BF16))
#define F8 (BIT(ACCRT_DTYPE_F8E4M3FN) | BIT(ACCRT_DTYPE_F8E5M2))
#define FREE ACCRT_LAYOUT_FLAG_FREE_GROUP
#define WRITE ACCRT_LAYOUT_FLAG_WRITABLE
#define RANK ACCRT_MAX_RANK
#define TYPE(name) BIT(ACCRT_DTYPE_##name)
#define ELEMENTS EXTENT_ELEMENTS
#define BLOCKS EXTENT_BLOCKS
#define WORDS EXTENT_WORDS
#define ONE EXTENT_ONE
#define ROWS EXTENT_ROWS
#define GROUPS EXTENT_GROUPS
#define PAIRS EXTENT_GROUP_PAIRS
#define GROUP_WORDS EXTENT_GROUP_WORDS
#define TILES EXTENT_TILES
#define COLUMNS EXTENT_COLUMNS
#define NONE EXTENT_NONE
#define LIST(...)                                                                                  \
  { __VA_ARGS__ }

/* clang-format off */
static const accx_layout_t layouts[] = {
#define DEF_LAYOUT(number, name, word, flags, min_rank, max_rank, block_elements, block_bytes, row_multiple, tile_rows, group_elements, \
                   required_roles, extents, types, since, note)                                    \
    {number, flags, min_rank, max_rank, block_elements, block_bytes, row_multiple, tile_rows, group_elements, \
     required_roles, since, LIST extents, LIST types, word},
#include "format/format.def"
};
/* clang-format on */

const accx_layout_t* accx_layout_at(uint32_t index) {
  return index < sizeof layouts / sizeof *layouts ? &layouts[index] : NULL;
}

/* Only ids 12 to 15 are free, so the index follows from the id: a table of weights looks each
 * layout up several times. */
const accx_layout_t* accx_layout_find(uint32_t id) {
  const uint32_t index = id < 12 ? id : id - 4; /* wraps for none */
  return index < sizeof layouts / sizeof *layouts && layouts[index].id == id ? &layouts[index]
                                                                             : NULL;
}

/* ---- Checks ---- */

accx_layout_problem_t accx_layout_check_type(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                             uint32_t rank) {
  const accx_layout_t* layout = accx_layout_find(id);
  if (layout == NULL)
    return ACCX_LAYOUT_BAD_ID;
  if (accrt_dtype_bits(dtype) == 0)
    return ACCX_LAYOUT_BAD_DTYPE;
  if (id > ACCRT_LAYOUT_OPAQUE && (BIT(dtype) & FLOATS) == 0)
    return ACCX_LAYOUT_BAD_DTYPE;
  const bool free_group = (layout->flags & FREE) != 0;
  if (free_group ? group == 0 || group % 8 != 0 || group > MAX_GROUP_ELEMENTS : group != 0)
    return ACCX_LAYOUT_BAD_GROUP;
  if (rank < layout->min_rank || rank > layout->max_rank)
    return ACCX_LAYOUT_BAD_RANK;
  return ACCX_LAYOUT_GOOD;
}

static accx_layout_problem_t look_at_shape(accx_layout_view_t* view, uint32_t rank,
                                           const int64_t* shape) {
  uint64_t batch = 1;
  bool fits = true;
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0)
      return ACCX_LAYOUT_NEGATIVE;
    if (i + 2 < rank)
      fits = accrt_mul_u64(batch, (uint64_t)shape[i], &batch) && fits;
  }
  view->batch = batch;
  view->n = rank >= 2 ? (uint64_t)shape[rank - 2] : 1;
  view->k = rank >= 1 ? (uint64_t)shape[rank - 1] : 1;
  const uint32_t block = view->layout->block_elements, multiple = view->layout->row_multiple;
  if (block != 1 && view->k % block != 0)
    return ACCX_LAYOUT_BAD_COLUMNS;
  if (multiple != 1 && view->n % multiple != 0)
    return ACCX_LAYOUT_BAD_ROWS;
  return accrt_mul_u64(batch, view->n, &view->rows) && fits ? ACCX_LAYOUT_GOOD
                                                            : ACCX_LAYOUT_OVERFLOW;
}

/* With the widest type that each component may have. */
static bool sizes_fit(const accx_layout_view_t* view, accrt_dtype_t dtype) {
  const accx_layout_t* layout = view->layout;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    if (layout->extents[role] == EXTENT_NONE)
      continue;
    const uint32_t dtypes = layout->dtypes[role];
    accrt_dtype_t widest = dtype;
    if (layout->id > ACCRT_LAYOUT_OPAQUE)
      widest = (dtypes & BIT(ACCRT_DTYPE_F32)) != 0 ? ACCRT_DTYPE_F32
                                                    : (accrt_dtype_t)__builtin_ctz(dtypes);
    uint64_t size;
    if (!accx_layout_size(view, role, widest, &size))
      return false;
  }
  return true;
}

accx_layout_problem_t accx_layout_look_at(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                          uint32_t rank, const int64_t* shape,
                                          accx_layout_view_t* out_view) {
  memset(out_view, 0, sizeof *out_view);
  out_view->layout = accx_layout_find(id);
  const accx_layout_problem_t problem = look_at_shape(out_view, rank, shape);
  if (problem != ACCX_LAYOUT_GOOD)
    return problem;
  const uint32_t fixed = out_view->layout->group_elements;
  out_view->group = group != 0 ? group : fixed != 0 ? fixed : out_view->k;
  if (out_view->group == out_view->k) /* most are, and dividing is slow */
    out_view->groups = out_view->k != 0;
  else
    out_view->groups = out_view->k / out_view->group + (out_view->k % out_view->group != 0);
  return sizes_fit(out_view, dtype) ? ACCX_LAYOUT_GOOD : ACCX_LAYOUT_OVERFLOW;
}

accx_layout_problem_t accx_layout_look(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                       uint32_t rank, const int64_t* shape,
                                       accx_layout_view_t* out_view) {
  const accx_layout_problem_t problem = accx_layout_check_type(id, dtype, group, rank);
  return problem != ACCX_LAYOUT_GOOD ? problem
                                     : accx_layout_look_at(id, dtype, group, rank, shape, out_view);
}

const char* accx_layout_problem_text(accx_layout_problem_t problem) {
  return accrt_nth_text("\0" /* GOOD; the others in the order of accx_layout_problem_t */
                        "no such layout\0"
                        "a quantized weight is f32, f16 or bf16\0"
                        "a free group is a multiple of 8 up to 2^24, any other is 0\0"
                        "the layout has no such rank\0"
                        "a dimension is negative\0"
                        "the columns are no multiple of the layout's block\0"
                        "the rows are no multiple of what the layout packs\0"
                        "a size does not fit 63 bits",
                        problem);
}

/* ---- Components ---- */

bool accx_layout_takes(const accx_layout_t* layout, accrt_dtype_t constant_dtype, uint32_t role,
                       accrt_dtype_t dtype) {
  if (role >= ACCRT_LAYOUT_ROLE_COUNT || dtype >= 32 || (layout->dtypes[role] & BIT(dtype)) == 0)
    return false;
  return layout->id > ACCRT_LAYOUT_OPAQUE || dtype == constant_dtype;
}

static bool count_elements(const accx_layout_view_t* view, uint32_t extent, uint64_t* out) {
  const uint64_t tile = view->layout->tile_rows;
  switch (extent) {
  case EXTENT_ELEMENTS:
    return accrt_mul_u64(view->rows, view->k, out);
  case EXTENT_BLOCKS:
    return accrt_mul_u64(view->k / view->layout->block_elements, view->layout->block_bytes, out) &&
           accrt_mul_u64(view->rows, *out, out);
  case EXTENT_WORDS:
    return accrt_mul_u64(view->rows / 8, view->k, out);
  case EXTENT_ONE:
    *out = 1;
    return true;
  case EXTENT_ROWS:
    *out = view->rows;
    return true;
  case EXTENT_GROUPS:
    return accrt_mul_u64(view->rows, view->groups, out);
  case EXTENT_GROUP_PAIRS:
    return accrt_mul_u64(view->rows, view->groups + view->groups % 2, out);
  case EXTENT_GROUP_WORDS:
    return accrt_mul_u64(view->rows / 8, view->groups, out);
  case EXTENT_TILES:
    return accrt_mul_u64(view->batch, view->n / tile + (view->n % tile != 0), out) &&
           accrt_mul_u64(*out, view->groups, out);
  case EXTENT_COLUMNS:
    *out = view->k;
    return true;
  default:
    return false;
  }
}

bool accx_layout_size(const accx_layout_view_t* view, uint32_t role, accrt_dtype_t dtype,
                      uint64_t* out_size_bytes) {
  uint64_t elements, bits;
  if (!count_elements(view, view->layout->extents[role], &elements) ||
      !accrt_mul_u64(elements, accrt_dtype_bits(dtype), &bits) || bits > UINT64_MAX - 7)
    return false;
  *out_size_bytes = (bits + 7) / 8;
  return *out_size_bytes <= INT64_MAX;
}

/* ---- Weights in memory ---- */

static accrt_status_t status_of(accx_layout_problem_t problem) {
  switch (problem) {
  case ACCX_LAYOUT_GOOD:
    return ACCRT_OK;
  case ACCX_LAYOUT_BAD_ID:
    return ACCRT_ERROR_NOT_FOUND;
  case ACCX_LAYOUT_BAD_DTYPE:
    return ACCRT_ERROR_TYPE_MISMATCH;
  case ACCX_LAYOUT_BAD_GROUP:
    return ACCRT_ERROR_INVALID_ARGUMENT;
  case ACCX_LAYOUT_OVERFLOW:
    return ACCRT_ERROR_OVERFLOW;
  default:
    return ACCRT_ERROR_SHAPE_MISMATCH;
  }
}

accrt_status_t accx_layout_read(const accrt_layout_tensor_t* tensor, accrt_layout_tensor_t* out,
                                accx_layout_view_t* out_view) {
  if (tensor == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "tensor is NULL");
  ACCRT_TRY(accrt_struct_read("accrt_layout_tensor_t", tensor, out, sizeof *out));
  if (out->reserved != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "tensor->reserved is %" PRIu32 ", not 0", out->reserved);
  if (out->shape == NULL && out->rank != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "tensor->shape is NULL with a rank of %" PRIu32, out->rank);
  const accx_layout_problem_t problem = accx_layout_look(
      out->layout, out->dtype, out->group_elements, out->rank, out->shape, out_view);
  if (problem == ACCX_LAYOUT_GOOD)
    return ACCRT_OK;
  const accx_layout_t* layout = accx_layout_find(out->layout);
  char multiple[16] = "";
  if (problem == ACCX_LAYOUT_BAD_COLUMNS || problem == ACCX_LAYOUT_BAD_ROWS)
    (void)snprintf(multiple, sizeof multiple, ", %d",
                   problem == ACCX_LAYOUT_BAD_ROWS ? layout->row_multiple : layout->block_elements);
  const bool matrix = out->rank >= 2 && out->rank <= ACCRT_MAX_RANK;
  return accrt_error_fail(
      ACCRT_PLACE(status_of(problem)),
      "layout %" PRIu32 " (%s) of %s, rank %" PRIu32 ", rows %" PRId64 ", columns %" PRId64
      ", group %" PRIu32 ": %s%s",
      out->layout, layout != NULL ? layout->name : "?", ACCRT_DTYPE_TEXT(out->dtype), out->rank,
      matrix ? out->shape[out->rank - 2] : 1,
      out->rank >= 1 && out->rank <= ACCRT_MAX_RANK ? out->shape[out->rank - 1] : 1,
      out->group_elements, accx_layout_problem_text(problem), multiple);
}

accrt_status_t accx_layout_check_components(const accrt_layout_tensor_t* tensor,
                                            const accx_layout_view_t* view) {
  const accx_layout_t* layout = view->layout;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    const accrt_layout_component_t* component = &tensor->components[role];
    if (component->dtype == ACCRT_DTYPE_NONE && (layout->required_roles >> role & 1) == 0)
      continue;
    if (!accx_layout_takes(layout, tensor->dtype, role, component->dtype))
      return ACCRT_FAIL(TYPE_MISMATCH, "layout %s takes no %s for role %" PRIu32, layout->name,
                        ACCRT_DTYPE_TEXT(component->dtype), role);
    uint64_t size;
    if (!accx_layout_size(view, role, component->dtype, &size))
      return ACCRT_FAIL(SHAPE_MISMATCH, "the size of role %" PRIu32 " does not fit", role);
    if (size != component->size_bytes || (component->data == NULL && size != 0))
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "role %" PRIu32 " of layout %s has %" PRIu64
                        " bytes at %p, expected %" PRIu64,
                        role, layout->name, component->size_bytes, component->data, size);
  }
  return ACCRT_OK;
}

accrt_status_t accx_layout_check_rows(const accx_layout_view_t* view, uint64_t first,
                                      uint64_t count) {
  return accrt_range_fits(first, count, view->rows)
             ? ACCRT_OK
             : ACCRT_FAIL(OUT_OF_RANGE,
                          "%" PRIu64 " rows from %" PRIu64 " of a weight with %" PRIu64, count,
                          first, view->rows);
}
