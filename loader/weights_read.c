/* loader/weights_read.c - the contents of an open source of weights (tensors, components, bytes,
 * metadata) and their public functions. It does not change a source's lists. It loads bytes from a
 * caller's reader on demand.
 */
#include "loader/weights.h"

#include <string.h>

#include "accrt/tensor.h"
#include "format/layout.h"
#include "loader/bundle.h"
#include "runtime/core/fork.h"
#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"
/* ---- Contents ---- */

const char* accx_weights_name(const accrt_weights_t* weights) {
  return weights->name;
}

static const accx_weights_type_t* type_of(const accrt_weights_t* weights,
                                          const accx_weights_entry_t* entry) {
  return weights->files[entry->file].kind == ACCRT_WEIGHTS_KIND_GGUF
             ? &accx_gguf_types[entry->type]
             : &accx_safetensors_types[entry->type];
}

static const accx_constant_t* constant_of(const accrt_weights_t* weights,
                                          const accx_weights_entry_t* entry) {
  const accrt_bundle_t* bundle = weights->files[entry->file].bundle;
  return bundle != NULL ? &accrt_bundle_tables(bundle)->constants[entry->offset_bytes] : NULL;
}

static accrt_status_t check_index(const accrt_weights_t* weights, const char* what, uint32_t index,
                                  uint32_t count) {
  if (index < count)
    return ACCRT_OK;
  return ACCRT_FAIL(OUT_OF_RANGE, "%s: %s %" PRIu32 " of %" PRIu32, weights->name, what, index,
                    count);
}

accrt_status_t accx_weights_describe(const accrt_weights_t* weights, uint32_t index,
                                     accrt_weights_tensor_t* out_tensor) {
  ACCRT_TRY(check_index(weights, "tensor", index, weights->entry_count));
  const accx_weights_entry_t* entry = &weights->entries[index];
  const accx_constant_t* constant = constant_of(weights, entry);
  *out_tensor = (accrt_weights_tensor_t)ACCRT_WEIGHTS_TENSOR_INIT;
  out_tensor->file = entry->file;
  out_tensor->name = entry->name;
  out_tensor->rank = entry->rank;
  out_tensor->component_count = 1;
  out_tensor->size_bytes = entry->size_bytes;
  if (constant != NULL) {
    out_tensor->dtype = constant->dtype;
    out_tensor->encoding = constant->encoding;
    out_tensor->group_elements = constant->group_elements;
    out_tensor->shape = constant->shape;
    out_tensor->component_count = constant->component_count;
    const accx_layout_t* layout =
        constant->encoding > ACCRT_LAYOUT_OPAQUE ? accx_layout_find(constant->encoding) : NULL;
    out_tensor->type_name = layout != NULL ? layout->name : accrt_dtype_name(constant->dtype);
    return ACCRT_OK;
  }
  const accx_weights_type_t* type = type_of(weights, entry);
  out_tensor->dtype = type->dtype;
  out_tensor->encoding = type->encoding;
  out_tensor->type_name = type->name;
  out_tensor->shape = accx_weights_shape(weights, entry);
  return ACCRT_OK;
}

accrt_status_t accx_weights_place(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  accrt_weights_component_t* out_component) {
  ACCRT_TRY(check_index(weights, "tensor", tensor, weights->entry_count));
  const accx_weights_entry_t* entry = &weights->entries[tensor];
  const accx_constant_t* constant = constant_of(weights, entry);
  ACCRT_TRY(check_index(weights, "component", component, constant ? constant->component_count : 1));
  *out_component = (accrt_weights_component_t)ACCRT_WEIGHTS_COMPONENT_INIT;
  if (constant != NULL) {
    const accrt_bundle_t* bundle = weights->files[entry->file].bundle;
    const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
    const accx_component_t* place = &tables->components[constant->component_first + component];
    out_component->role = place->role;
    out_component->dtype = place->dtype;
    out_component->offset_bytes = accrt_bundle_data_offset(bundle) + place->offset_bytes;
    out_component->size_bytes = place->size_bytes;
    return ACCRT_OK;
  }
  const accx_weights_type_t* type = type_of(weights, entry);
  out_component->dtype = type->dtype != 0 ? type->dtype : ACCRT_DTYPE_U8;
  out_component->offset_bytes = entry->offset_bytes;
  out_component->size_bytes = entry->size_bytes;
  return ACCRT_OK;
}

/* Reads a tensor from a source of callbacks into its memory, once. */
static accrt_status_t make_ready(accrt_weights_t* weights, uint32_t index) {
  const accx_weights_entry_t* entry = &weights->entries[index];
  accx_weights_file_t* file = &weights->files[entry->file];
  if (!file->on_demand || atomic_load_explicit(&weights->ready[index], memory_order_acquire) != 0)
    return ACCRT_OK;
  accx_source_begin(&file->source);
  accrt_status_t status = ACCRT_OK;
  if (atomic_load_explicit(&weights->ready[index], memory_order_relaxed) == 0) {
    status =
        accx_source_read(&file->source, entry->offset_bytes,
                         (unsigned char*)file->mapping + entry->offset_bytes, entry->size_bytes);
    /* Release pairs with the acquire above: a thread that sees the flag sees the bytes. */
    if (status == ACCRT_OK)
      atomic_store_explicit(&weights->ready[index], 1, memory_order_release);
  }
  accx_source_end(&file->source);
  return status;
}

accrt_status_t accx_weights_bytes(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  const void** out_data, uint64_t* out_size_bytes) {
  accrt_weights_component_t place;
  *out_data = NULL;
  *out_size_bytes = 0;
  ACCRT_TRY(accx_weights_place(weights, tensor, component, &place));
  const accx_weights_entry_t* entry = &weights->entries[tensor];
  accx_weights_file_t* file = &weights->files[entry->file];
  if (file->bundle != NULL)
    return accrt_bundle_constant_component(file->bundle, (uint32_t)entry->offset_bytes, component,
                                           out_data, out_size_bytes);
  accrt_status_t status = accx_source_check_size(&file->source);
  if (status == ACCRT_OK)
    status = make_ready(weights, tensor);
  if (status != ACCRT_OK) {
    accrt_error_prefix("%s: tensor '%.200s'", file->name, entry->name);
    return status;
  }
  *out_data = file->bytes + place.offset_bytes;
  *out_size_bytes = place.size_bytes;
  return ACCRT_OK;
}

accrt_status_t accx_weights_copy(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                 uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  accrt_weights_component_t place;
  ACCRT_TRY(accx_weights_place(weights, tensor, component, &place));
  const accx_weights_entry_t* entry = &weights->entries[tensor];
  accx_weights_file_t* file = &weights->files[entry->file];
  if (!accrt_range_fits(offset_bytes, size_bytes, place.size_bytes)) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "%s: tensor '%.200s' has %" PRIu64 " bytes; %" PRIu64 " at %" PRIu64
                      " were asked for",
                      file->name, entry->name, place.size_bytes, size_bytes, offset_bytes);
  }
  if (size_bytes == 0)
    return ACCRT_OK;
  if (file->bundle != NULL)
    return accrt_bundle_constant_read(file->bundle, (uint32_t)entry->offset_bytes, component,
                                      offset_bytes, target, size_bytes);
  if (file->on_demand)
    accx_source_begin(&file->source);
  const accrt_status_t status =
      accx_source_read(&file->source, place.offset_bytes + offset_bytes, target, size_bytes);
  if (file->on_demand)
    accx_source_end(&file->source);
  if (status != ACCRT_OK)
    accrt_error_prefix("%s: tensor '%.200s'", file->name, entry->name);
  return status;
}

accrt_status_t accx_weights_visit(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  accx_weights_visit_t visit, void* user) {
  accrt_weights_component_t place;
  const void* data;
  uint64_t size_bytes;
  ACCRT_TRY(accx_weights_place(weights, tensor, component, &place));
  const accx_weights_file_t* file = &weights->files[weights->entries[tensor].file];
  if (file->bundle == NULL && file->source.kind != ACCX_SOURCE_FILE) {
    ACCRT_TRY(accx_weights_bytes(weights, tensor, component, &data, &size_bytes));
    return visit(user, 0, data, (size_t)size_bytes);
  }
  const uint64_t piece_bytes =
      place.size_bytes < ACCX_CHUNK_BYTES ? place.size_bytes : ACCX_CHUNK_BYTES;
  void* piece;
  ACCRT_TRY(accrt_alloc_unset(weights->allocator, (size_t)piece_bytes, ACCX_TENSOR_ALIGN, &piece));
  accrt_status_t status = ACCRT_OK;
  for (uint64_t at = 0; at < place.size_bytes && status == ACCRT_OK; at += piece_bytes) {
    const uint64_t left = place.size_bytes - at;
    size_bytes = left < piece_bytes ? left : piece_bytes;
    status = accrt_checkpoint();
    if (status == ACCRT_OK)
      status = accx_weights_copy(weights, tensor, component, at, piece, size_bytes);
    if (status == ACCRT_OK)
      status = visit(user, at, piece, (size_t)size_bytes);
  }
  accrt_free_aligned(weights->allocator, piece, (size_t)piece_bytes, ACCX_TENSOR_ALIGN);
  return status;
}

/* ---- The public functions ---- */

accrt_status_t accrt_weights_info(accrt_weights_t* weights, accrt_weights_info_t* out_info) {
  ACCRT_ENTER(weights);
  accrt_weights_info_t info = {.kind = weights->kind,
                               .name = weights->name,
                               .tensor_count = weights->entry_count,
                               .metadata_count = weights->value_count,
                               .file_count = weights->file_count,
                               .version = weights->files[0].version};
  for (uint32_t i = 0; i < weights->file_count; ++i)
    info.size_bytes += weights->files[i].source.size_bytes;
  for (uint32_t i = 0; i < weights->entry_count; ++i)
    info.data_size_bytes += weights->entries[i].size_bytes;
  return accrt_struct_write("accrt_weights_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_weights_file(accrt_weights_t* weights, uint32_t index, const char** out_name) {
  ACCRT_ENTER(weights);
  if (out_name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_name is NULL");
  *out_name = NULL;
  ACCRT_TRY(check_index(weights, "file", index, weights->file_count));
  *out_name = weights->files[index].name;
  return ACCRT_OK;
}

accrt_status_t accrt_weights_tensor(accrt_weights_t* weights, uint32_t index,
                                    accrt_weights_tensor_t* out_tensor) {
  ACCRT_ENTER(weights);
  accrt_weights_tensor_t tensor;
  ACCRT_TRY(accx_weights_describe(weights, index, &tensor));
  return accrt_struct_write("accrt_weights_tensor_t", out_tensor, &tensor, sizeof tensor);
}

/* Limit of the candidates for similar names, so that the search is quick. */
#define MAX_NEAR_CANDIDATES 4096u

accrt_status_t accrt_weights_find(accrt_weights_t* weights, const char* name, uint32_t* out_index) {
  ACCRT_ENTER(weights);
  if (name == NULL || out_index == NULL)
    return ACCRT_FAIL_NULL(name, out_index);
  *out_index = 0;
  const uint32_t found = accx_weights_lookup(weights, name, strlen(name), ACCX_WEIGHTS_NONE);
  if (found != ACCX_WEIGHTS_NONE) {
    *out_index = found;
    return ACCRT_OK;
  }
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < weights->entry_count && i < MAX_NEAR_CANDIDATES; ++i)
    accrt_near_add(&near, weights->entries[i].name);
  return ACCRT_FAIL(NOT_FOUND, "%s has no tensor '%.200s'%s", weights->name, name,
                    accrt_near_text(&near));
}

accrt_status_t accrt_weights_component(accrt_weights_t* weights, uint32_t tensor,
                                       uint32_t component,
                                       accrt_weights_component_t* out_component) {
  ACCRT_ENTER(weights);
  accrt_weights_component_t place;
  ACCRT_TRY(accx_weights_place(weights, tensor, component, &place));
  return accrt_struct_write("accrt_weights_component_t", out_component, &place, sizeof place);
}

accrt_status_t accrt_weights_data(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  const void** out_data, uint64_t* out_size_bytes) {
  ACCRT_ENTER(weights);
  if (out_data == NULL || out_size_bytes == NULL)
    return ACCRT_FAIL_NULL(out_data, out_size_bytes);
  return accx_weights_bytes(weights, tensor, component, out_data, out_size_bytes);
}

accrt_status_t accrt_weights_read(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  ACCRT_ENTER(weights);
  if (target == NULL && size_bytes != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "target is NULL");
  return accx_weights_copy(weights, tensor, component, offset_bytes, target, size_bytes);
}

/* Returns a scalar's value in the requested form. */
static void decode(const accx_weights_value_t* value, accrt_weights_metadata_t* out) {
  float narrow;
  if (value->type == ACCRT_METADATA_STRING || value->type == ACCRT_METADATA_ARRAY)
    return;
  const uint64_t bits = accx_weights_number(value->data, (size_t)value->size_bytes);
  const uint32_t low = (uint32_t)bits;
  switch (value->type) {
  case ACCRT_METADATA_F32:
    memcpy(&narrow, &low, sizeof narrow);
    out->real = (double)narrow;
    return;
  case ACCRT_METADATA_F64:
    memcpy(&out->real, &bits, sizeof out->real);
    return;
  case ACCRT_METADATA_I8:
  case ACCRT_METADATA_I16:
  case ACCRT_METADATA_I32: {
    const uint32_t unused = 64 - 8 * (uint32_t)value->size_bytes;
    out->integer = (int64_t)(bits << unused) >> unused;
    return;
  }
  default:
    out->integer = (int64_t)bits;
  }
}

void accx_weights_value(const accrt_weights_t* weights, uint32_t index,
                        accrt_weights_metadata_t* out_value) {
  const accx_weights_value_t* value = &weights->values[index];
  *out_value = (accrt_weights_metadata_t){.type = value->type,
                                          .key = value->key,
                                          .element_type = value->element_type,
                                          .count = value->count,
                                          .data = value->data,
                                          .size_bytes = value->size_bytes};
  if (value->type == ACCRT_METADATA_STRING)
    out_value->text = (const char*)value->data;
  decode(value, out_value);
}

accrt_status_t accrt_weights_metadata(accrt_weights_t* weights, uint32_t index,
                                      accrt_weights_metadata_t* out_metadata) {
  ACCRT_ENTER(weights);
  ACCRT_TRY(check_index(weights, "metadata", index, weights->value_count));
  accrt_weights_metadata_t info;
  accx_weights_value(weights, index, &info);
  return accrt_struct_write("accrt_weights_metadata_t", out_metadata, &info, sizeof info);
}

accrt_status_t accrt_weights_find_metadata(accrt_weights_t* weights, const char* key,
                                           uint32_t* out_index) {
  ACCRT_ENTER(weights);
  if (key == NULL || out_index == NULL)
    return ACCRT_FAIL_NULL(key, out_index);
  *out_index = 0;
  for (uint32_t i = 0; i < weights->value_count; ++i) {
    if (strcmp(weights->values[i].key, key) == 0) {
      *out_index = i;
      return ACCRT_OK;
    }
  }
  accrt_near_t near;
  accrt_near_init(&near, key);
  for (uint32_t i = 0; i < weights->value_count && i < MAX_NEAR_CANDIDATES; ++i) {
    accrt_near_add(&near, weights->values[i].key);
  }
  return ACCRT_FAIL(NOT_FOUND, "%s has no metadata '%.200s'%s", weights->name, key,
                    accrt_near_text(&near));
}
