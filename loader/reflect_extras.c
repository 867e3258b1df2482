/* loader/reflect_extras.c - public reflection of the parts that came with container 0.3: sections'
 * bytes, components, files, shards, adapters, assets, locations (accrt/bundle.h). */
#include "loader/internal.h"
#include "runtime/core/fork.h"
#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"

static const char* text_of(const accrt_bundle_t* bundle, uint32_t offset) {
  return accrt_bundle_string(&bundle->tables, offset);
}

/* ---- Sections ---- */

accrt_status_t accrt_bundle_section_read(accrt_bundle_t* bundle, uint32_t index,
                                         uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  ACCX_ENTER_INDEX(bundle, "section", index, section_count);
  const accx_section_t* section = &bundle->tables.sections[index];
  if (!accrt_range_fits(offset_bytes, size_bytes, section->size_bytes)) {
    return ACCRT_FAIL(
        OUT_OF_RANGE, "%s: %" PRIu64 " bytes at %" PRIu64 " of section '%s' with %" PRIu64,
        bundle->name, size_bytes, offset_bytes, bundle->section_names[index], section->size_bytes);
  }
  if (size_bytes == 0)
    return ACCRT_OK;
  if (target == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "target is NULL");
  const unsigned char* copied = accx_section_bytes(bundle, index);
  if (copied != NULL) {
    memcpy(target, copied + offset_bytes, (size_t)size_bytes);
    return ACCRT_OK;
  }
  return accx_source_read_alone(&bundle->source, section->offset + offset_bytes, target,
                                size_bytes);
}

/* ---- Components ---- */

accrt_status_t accrt_bundle_component(accrt_bundle_t* bundle, uint32_t constant, uint32_t component,
                                      accrt_component_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "constant", constant, constant_count);
  const accx_constant_t* record = &bundle->tables.constants[constant];
  ACCRT_TRY(accx_check_index(bundle, "component", component, record->component_count));
  const accx_component_t* found = &bundle->tables.components[record->component_first + component];
  const accrt_component_info_t info = {
      .role = found->role, .dtype = found->dtype, .size_bytes = found->size_bytes};
  return accrt_struct_write("accrt_component_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_component_data(accrt_bundle_t* bundle, uint32_t constant,
                                           uint32_t component, const void** out_data,
                                           uint64_t* out_size_bytes) {
  if (out_data == NULL || out_size_bytes == NULL)
    return ACCRT_FAIL_NULL(out_data, out_size_bytes);
  *out_data = NULL;
  *out_size_bytes = 0;
  ACCX_ENTER_INDEX(bundle, "constant", constant, constant_count);
  return accrt_bundle_constant_component(bundle, constant, component, out_data, out_size_bytes);
}

/* ---- Files, shards, adapters ---- */

accrt_status_t accrt_bundle_file(accrt_bundle_t* bundle, uint32_t index,
                                 accrt_file_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "file", index, file_count);
  const accx_file_t* file = &bundle->tables.files[index];
  accrt_file_info_t info = {
      .kind = file->kind, .name = text_of(bundle, file->name), .size_bytes = file->size_bytes};
  memcpy(info.digest, file->digest.bytes, sizeof info.digest);
  return accrt_struct_write("accrt_file_info_t", out_info, &info, sizeof info);
}

uint32_t accx_shard_of(const accrt_bundle_tables_t* tables, uint32_t constant) {
  uint32_t low = 0, high = tables->shard_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (tables->shards[middle].constant == constant)
      return middle;
    if (tables->shards[middle].constant < constant) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return ACCX_NONE;
}

/* The public struct has the same fields as the file's record. */
_Static_assert(sizeof(accrt_shard_segment_t) == sizeof(accx_segment_t) &&
                   offsetof(accrt_shard_segment_t, replicas) == offsetof(accx_segment_t, replicas),
               "segments are given out as they are");

accrt_status_t accrt_bundle_shard(accrt_bundle_t* bundle, uint32_t index,
                                  accrt_shard_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "shard", index, shard_count);
  const accrt_bundle_tables_t* tables = &bundle->tables;
  const accx_shard_t* shard = &tables->shards[index];
  const void* segments = shard->segment_count > 0 ? &tables->segments[shard->segment_first] : NULL;
  const accrt_shard_info_t info = {
      .constant = shard->constant,
      .kind = shard->kind,
      .axis = shard->axis,
      .degree = shard->degree,
      .segment_count = shard->segment_count,
      .extent = shard->extent,
      .segments = segments,
  };
  return accrt_struct_write("accrt_shard_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_adapter(accrt_bundle_t* bundle, uint32_t index,
                                    accrt_adapter_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "adapter", index, adapter_count);
  const accx_adapter_t* adapter = &bundle->tables.adapters[index];
  const accrt_adapter_info_t info = {.flags = adapter->flags,
                                     .slot = text_of(bundle, adapter->slot),
                                     .input = text_of(bundle, adapter->input)};
  return accrt_struct_write("accrt_adapter_info_t", out_info, &info, sizeof info);
}

/* ---- Assets and locations ---- */

accrt_status_t accrt_bundle_asset(accrt_bundle_t* bundle, uint32_t index,
                                  accrt_asset_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "asset", index, asset_count);
  const accrt_bundle_tables_t* tables = &bundle->tables;
  const accx_asset_t* asset = &tables->assets[index];
  const accrt_asset_info_t info = {
      .name = text_of(bundle, asset->name),
      .media_type = text_of(bundle, asset->media_type),
      /* An asset without bytes may have no section, but it needs an address. */
      .data = asset->size_bytes > 0 ? (const void*)(tables->asset_data + asset->offset_bytes) : "",
      .size_bytes = asset->size_bytes,
  };
  return accrt_struct_write("accrt_asset_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_find_asset(accrt_bundle_t* bundle, const char* name,
                                       uint32_t* out_index) {
  if (out_index != NULL)
    *out_index = 0;
  ACCRT_ENTER(out_index, bundle, name);
  const uint32_t found = accx_find_asset(&bundle->tables, name);
  if (found != ACCX_NONE) {
    *out_index = found;
    return ACCRT_OK;
  }
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < bundle->tables.asset_count; ++i)
    accrt_near_add(&near, text_of(bundle, bundle->tables.assets[i].name));
  return ACCRT_FAIL(NOT_FOUND, "%s: no asset '%.128s'%s", bundle->name, name,
                    accrt_near_text(&near));
}

accrt_status_t accrt_bundle_location(accrt_bundle_t* bundle, uint32_t index,
                                     accrt_location_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "location", index, location_count);
  const accx_location_t* location = &bundle->tables.locations[index];
  const accrt_location_info_t info = {.line = location->line,
                                      .file = text_of(bundle, location->file),
                                      .name = text_of(bundle, location->name),
                                      .column = location->column};
  return accrt_struct_write("accrt_location_info_t", out_info, &info, sizeof info);
}
