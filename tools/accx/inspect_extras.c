/* tools/accx/inspect_extras.c - accx inspect for files, shards, adapters, assets, locations. */
#include <string.h>

#include "inspect.h"
#include "json_out.h"
#include "names.h"
#include "term.h"

#define NO_INDEX 0xFFFFFFFFu

static const char* digest_text(const unsigned char digest[16]) {
  static const unsigned char none[16];
  const char* text = "";
  if (memcmp(digest, none, sizeof none) == 0)
    return NULL;
  for (size_t i = 0; i < 16; ++i)
    text = accx_text("%s%02x", text, digest[i]);
  return text;
}

static const char* file_name(const accx_inspection_t* in, uint32_t index) {
  accrt_file_info_t file = ACCRT_FILE_INFO_INIT;
  return index != NO_INDEX && accrt_bundle_file(in->bundle, index, &file) == ACCRT_OK ? file.name
                                                                                      : NULL;
}

/* ---- Constants ---- */

const char* accx_constant_place_text(const accx_inspection_t* in,
                                     const accrt_constant_info_t* constant) {
  if (constant->source == 0)
    return "";
  const char* name = accx_constant_source_name(constant->source);
  const char* file = constant->source == 2 ? file_name(in, constant->file) : NULL;
  return file != NULL ? accx_text("%s: %s", name, file) : name;
}

static void add_shard(const accx_inspection_t* in, struct json_object* object, uint32_t index) {
  accrt_shard_info_t shard = ACCRT_SHARD_INFO_INIT;
  if (index == NO_INDEX || accrt_bundle_shard(in->bundle, index, &shard) != ACCRT_OK)
    return;
  struct json_object* out = accx_json_object(object, "shard");
  accx_json_text(out, "kind", shard.kind == 0 ? "replicated" : "split");
  accx_json_u64(out, "degree", shard.degree);
  if (shard.kind == 0)
    return;
  accx_json_u64(out, "axis", shard.axis);
  accx_json_i64(out, "extent", shard.extent);
  struct json_object* segments = accx_json_array(out, "segments");
  for (uint32_t i = 0; i < shard.segment_count; ++i) {
    struct json_object* segment = accx_json_append(segments);
    accx_json_i64(segment, "begin", shard.segments[i].begin);
    accx_json_i64(segment, "end", shard.segments[i].end);
    accx_json_u64(segment, "replicas", shard.segments[i].replicas);
  }
}

void accx_add_constant_extras(const accx_inspection_t* in, struct json_object* object,
                              uint32_t index, const accrt_constant_info_t* constant) {
  if (constant->group_elements != 0)
    accx_json_u64(object, "group_elements", constant->group_elements);
  struct json_object* array = accx_json_array(object, "components");
  for (uint32_t i = 0; i < constant->component_count; ++i) {
    accrt_component_info_t component = ACCRT_COMPONENT_INFO_INIT;
    if (accrt_bundle_component(in->bundle, index, i, &component) != ACCRT_OK)
      continue;
    struct json_object* out = accx_json_append(array);
    accx_json_text(out, "role", accx_role_name(component.role));
    accx_json_text(out, "dtype", accrt_dtype_name(component.dtype));
    accx_json_u64(out, "size_bytes", component.size_bytes);
  }
  add_shard(in, object, constant->shard);
  if (constant->source != 2)
    return;
  accx_json_text(object, "file", file_name(in, constant->file));
  accx_json_text(object, "tensor", constant->tensor);
  accx_json_text(object, "digest", digest_text(constant->digest));
}

/* ---- Files ---- */

void accx_print_files(const accx_inspection_t* in) {
  if (in->info.file_count == 0 && in->info.shard_count == 0)
    return;
  accrt_shard_info_t shard = ACCRT_SHARD_INFO_INIT;
  const char* ranks = "";
  if (in->info.shard_count > 0 && accrt_bundle_shard(in->bundle, 0, &shard) == ACCRT_OK)
    ranks = accx_text(", %u weights for each of %u ranks", in->info.shard_count, shard.degree);
  accx_heading("Files: %u%s", in->info.file_count, ranks);
  accx_table_t* table = accx_table_create(3);
  for (uint32_t i = 0; i < in->info.file_count; ++i) {
    accrt_file_info_t file = ACCRT_FILE_INFO_INIT;
    if (accrt_bundle_file(in->bundle, i, &file) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", file.name);
    accx_table_cell(table, ACCX_PLAIN, "%s", accx_file_kind_name(file.kind));
    accx_table_cell(table, ACCX_PLAIN, "%s",
                    file.size_bytes != 0 ? accx_bytes(file.size_bytes).text : "");
  }
  accx_table_print(table);
}

void accx_add_files(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "files");
  for (uint32_t i = 0; i < in->info.file_count; ++i) {
    accrt_file_info_t file = ACCRT_FILE_INFO_INIT;
    if (accrt_bundle_file(in->bundle, i, &file) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", file.name);
    accx_json_text(object, "kind", accx_file_kind_name(file.kind));
    accx_json_u64(object, "size_bytes", file.size_bytes);
    accx_json_text(object, "digest", digest_text(file.digest));
  }
}

/* ---- Adapters ---- */

void accx_print_adapters(const accx_inspection_t* in) {
  if (in->info.adapter_count == 0)
    return;
  accx_heading("Adapters");
  accx_table_t* table = accx_table_create(2);
  for (uint32_t i = 0; i < in->info.adapter_count; ++i) {
    accrt_adapter_info_t adapter = ACCRT_ADAPTER_INFO_INIT;
    if (accrt_bundle_adapter(in->bundle, i, &adapter) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", adapter.slot);
    accx_table_cell(table, ACCX_PLAIN, "input %s%s", adapter.input,
                    (adapter.flags & 1) != 0 ? ", times alpha / rank" : "");
  }
  accx_table_print(table);
}

void accx_add_adapters(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "adapters");
  for (uint32_t i = 0; i < in->info.adapter_count; ++i) {
    accrt_adapter_info_t adapter = ACCRT_ADAPTER_INFO_INIT;
    if (accrt_bundle_adapter(in->bundle, i, &adapter) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "slot", adapter.slot);
    accx_json_text(object, "input", adapter.input);
    accx_json_bool(object, "scaled", (adapter.flags & 1) != 0);
  }
}

/* ---- Assets and locations ---- */

void accx_print_assets(const accx_inspection_t* in) {
  if (in->info.asset_count == 0)
    return;
  accx_heading("Assets");
  accx_table_t* table = accx_table_create(3);
  accx_table_align_right(table, 1);
  for (uint32_t i = 0; i < in->info.asset_count; ++i) {
    accrt_asset_info_t asset = ACCRT_ASSET_INFO_INIT;
    if (accrt_bundle_asset(in->bundle, i, &asset) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", asset.name);
    accx_table_cell(table, ACCX_PLAIN, "%s", accx_bytes(asset.size_bytes).text);
    accx_table_cell(table, ACCX_DIM, "%s", asset.media_type);
  }
  accx_table_print(table);
}

static void add_locations(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "locations");
  for (uint32_t i = 0; i < in->info.location_count; ++i) {
    accrt_location_info_t location = ACCRT_LOCATION_INFO_INIT;
    if (accrt_bundle_location(in->bundle, i, &location) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "file", location.file);
    accx_json_u64(object, "line", location.line);
    accx_json_u64(object, "column", location.column);
    accx_json_text(object, "name", location.name);
  }
}

void accx_add_assets(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "assets");
  for (uint32_t i = 0; i < in->info.asset_count; ++i) {
    accrt_asset_info_t asset = ACCRT_ASSET_INFO_INIT;
    if (accrt_bundle_asset(in->bundle, i, &asset) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", asset.name);
    accx_json_text(object, "media_type", asset.media_type);
    accx_json_u64(object, "size_bytes", asset.size_bytes);
  }
  add_locations(in, root);
}
