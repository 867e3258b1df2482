/* loader/verify_constants.c - constants and the location of their bytes (rules 51 to 55, 58, 121).
 * It reads private memory only, and takes linear time. */
#include "loader/internal.h"

#include "format/layout.h"

/* Multiplies all sizes but zeros, so that [2^63, 2^63, 0] is refused like [2^63, 2]. */
static bool shape_fits(const accx_constant_t* constant) {
  uint64_t product = 1;
  for (uint32_t i = 0; i < ACCX_MAX_RANK; ++i) {
    const int64_t size = constant->shape[i];
    if (size < 0 || (i >= constant->rank && size != 0))
      return false;
    if (i < constant->rank && size > 1 && !accrt_mul_u64(product, (uint64_t)size, &product))
      return false;
  }
  return product <= INT64_MAX;
}

/* ---- Records ---- */

static accrt_status_t check_source(const accx_verifier_t* verifier, const accx_constant_t* constant,
                                   uint32_t index) {
  if (constant->source <= ACCX_CONSTANT_EXTERNAL)
    return ACCRT_OK;
  return ACCX_REJECT(
      verifier, CONSTANT_SOURCE, "constants", index, "source", "%" PRIu32 " of '%.64s' is %s",
      constant->source, accx_verifier_text(verifier, constant->name),
      constant->source == ACCX_CONSTANT_OPTIONAL ? "reserved for a later version" : "not known");
}

static accrt_status_t check_shape(const accx_verifier_t* verifier, const accx_constant_t* constant,
                                  uint32_t index) {
  if (shape_fits(constant))
    return ACCRT_OK;
  const int64_t* s = constant->shape;
  return ACCX_REJECT(verifier, CONSTANT_SHAPE, "constants", index, "shape",
                     "'%.64s' of rank %" PRIu32 " has [%" PRId64 ", %" PRId64 ", %" PRId64
                     ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                     accx_verifier_text(verifier, constant->name), constant->rank, s[0], s[1], s[2],
                     s[3], s[4], s[5], s[6], s[7]);
}

/* Checks the fields that name the source of an EXTERNAL constant; other constants may not have
 * them. */
static accrt_status_t check_binding(const accx_verifier_t* verifier,
                                    const accx_constant_t* constant, uint32_t index) {
  static const accx_digest_t no_digest;
  const uint32_t files = verifier->tables->file_count;
  const bool digest = !accx_digest_equal(&constant->digest, &no_digest);
  bool good = constant->reserved == 0;
  if (constant->source == ACCX_CONSTANT_EXTERNAL) {
    const bool by_name = constant->binding_flags == ACCX_BINDING_BY_NAME;
    good = good && (constant->file == ACCX_NONE || constant->file < files) &&
           constant->binding_flags <= ACCX_BINDING_BY_NAME && by_name != digest;
  } else {
    good = good && constant->file == ACCX_NONE && constant->tensor == 0 &&
           constant->binding_flags == 0 && !digest;
  }
  if (!good) {
    return ACCX_REJECT(verifier, EXTERNAL, "constants", index, "file",
                       "'%.64s' of source %" PRIu32 ": file %" PRIu32 " of %" PRIu32
                       ", binding flags 0x%" PRIx32 ", %s digest, reserved %" PRIu32,
                       accx_verifier_text(verifier, constant->name), constant->source,
                       constant->file, files, constant->binding_flags, digest ? "a" : "no",
                       constant->reserved);
  }
  return constant->tensor == 0
             ? ACCRT_OK
             : accx_check_name(verifier, constant->tensor, "constants", index, "tensor");
}

/* Tables have few kinds of constants. A constant like the one before needs no new check. */
static bool is_alike(const accx_constant_t* a, const accx_constant_t* b) {
  return a->dtype == b->dtype && a->encoding == b->encoding && a->rank == b->rank &&
         a->group_elements == b->group_elements;
}

/* `view`: the shape from the layout's view. */
static accrt_status_t check_record(const accx_verifier_t* verifier, const accx_constant_t* constant,
                                   uint32_t index, accx_layout_view_t* view) {
  const accx_tensor_facts_t facts = {constant->dtype, constant->encoding, constant->rank,
                                     constant->group_elements};
  ACCRT_TRY(check_source(verifier, constant, index));
  if (index == 0 || !is_alike(constant, constant - 1))
    ACCRT_TRY(accx_check_tensor(verifier, &facts, "constants", index));
  ACCRT_TRY(check_shape(verifier, constant, index));
  const accx_layout_problem_t problem =
      accx_layout_look_at(constant->encoding, constant->dtype, constant->group_elements,
                          constant->rank, constant->shape, view);
  if (problem != ACCX_LAYOUT_GOOD) {
    return ACCX_REJECT(verifier, LAYOUT_SHAPE, "constants", index, "shape",
                       "'%.64s' in %s: rows %" PRIu64 ", columns %" PRIu64 ": %s",
                       accx_verifier_text(verifier, constant->name), view->layout->name, view->n,
                       view->k, accx_layout_problem_text(problem));
  }
  return check_binding(verifier, constant, index);
}

/* ---- Components ---- */

/* True when a constant has exactly the components of its layout, from `next` on, sorted by role. */
static bool components_fit(const accrt_bundle_tables_t* tables, const accx_constant_t* constant,
                           const accx_layout_t* layout, uint32_t next) {
  const uint32_t count = constant->component_count;
  if (constant->component_first != next ||
      !accrt_range_fits(next, count, tables->component_count) || count > ACCRT_LAYOUT_ROLE_COUNT ||
      (constant->source == ACCX_CONSTANT_PREPARED && count != 1))
    return false;
  uint32_t roles = 0;
  for (uint32_t i = next; i < next + count; ++i) {
    const accx_component_t* component = &tables->components[i];
    if (!accx_layout_takes(layout, constant->dtype, component->role, component->dtype) ||
        roles >> component->role != 0)
      return false;
    roles |= 1u << component->role;
  }
  return (layout->required_roles & ~roles) == 0;
}

static accrt_status_t check_components(const accx_verifier_t* verifier,
                                       const accx_constant_t* constant, uint32_t index,
                                       const accx_layout_t* layout, uint32_t next) {
  if (components_fit(verifier->tables, constant, layout, next))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, COMPONENTS, "constants", index, "component_first",
                     "%" PRIu32 " components from %" PRIu32 ", expected from %" PRIu32
                     " of %" PRIu32 ", of the roles and data types of %s",
                     constant->component_count, constant->component_first, next,
                     verifier->tables->component_count, layout->name);
}

static accrt_status_t check_size(const accx_verifier_t* verifier, const accx_constant_t* constant,
                                 const accx_layout_view_t* view, uint32_t component) {
  const accx_component_t* record = &verifier->tables->components[component];
  uint64_t size = 0;
  if (constant->encoding == ACCX_ENCODING_OPAQUE ||
      (accx_layout_size(view, record->role, record->dtype, &size) && size == record->size_bytes))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, COMPONENT_SIZE, "components", component, "size_bytes",
                     "%" PRIu64 " bytes for constant '%.64s', whose shape has %" PRIu64,
                     record->size_bytes, accx_verifier_text(verifier, constant->name), size);
}

/* Checks that INLINE components follow one another in DATA. Others have no offset. */
static accrt_status_t check_place(const accx_verifier_t* verifier, const accx_constant_t* constant,
                                  uint32_t component, uint64_t* data_end) {
  const accx_component_t* record = &verifier->tables->components[component];
  const uint64_t data_bytes = verifier->tables->data_size_bytes;
  const uint64_t size = record->size_bytes;
  uint64_t expected = 0;
  const bool stored = constant->source == ACCX_CONSTANT_INLINE;
  const bool fits = !stored || (accrt_align_u64(*data_end, ACCX_TENSOR_ALIGN, &expected) &&
                                accrt_range_fits(expected, size, data_bytes));
  if (!fits || record->offset_bytes != expected || size > INT64_MAX) {
    return ACCX_REJECT(verifier, COMPONENT_PLACE, "components", component, "offset_bytes",
                       "%" PRIu64 " bytes at %" PRIu64 " for constant '%.64s', expected at %" PRIu64
                       " of %" PRIu64 " bytes of data",
                       size, record->offset_bytes, accx_verifier_text(verifier, constant->name),
                       expected, data_bytes);
  }
  if (stored)
    *data_end = expected + size;
  return ACCRT_OK;
}

accrt_status_t accx_verify_constants(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0, next = 0;
  uint64_t data_end = 0;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    ACCRT_TRY(accrt_charge_record(i));
    ACCRT_TRY(accx_check_ordered_name(verifier, constant->name, previous, "constants", i, "name"));
    previous = constant->name;
    verifier->prepared_count += constant->source == ACCX_CONSTANT_PREPARED;
    accx_layout_view_t view;
    ACCRT_TRY(check_record(verifier, constant, i, &view));
    ACCRT_TRY(check_components(verifier, constant, i, view.layout, next));
    for (const uint32_t end = next + constant->component_count; next < end; ++next) {
      ACCRT_TRY(check_size(verifier, constant, &view, next));
      ACCRT_TRY(check_place(verifier, constant, next, &data_end));
    }
  }
  if (tables->component_count != next) {
    return ACCX_REJECT(verifier, COMPONENTS, "components", next, NULL,
                       "%" PRIu32 " components, but constants name %" PRIu32,
                       tables->component_count, next);
  }
  if (data_end == tables->data_size_bytes)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, COMPONENT_PLACE, "data", ACCX_NONE, NULL,
                     "%" PRIu64 " bytes, but constants end at %" PRIu64, tables->data_size_bytes,
                     data_end);
}
