/* loader/verify_extras.c - assets and debug locations (rules 155 to 157), which never change a
 * program's results. Reads private memory only. */
#include "loader/internal.h"

#define ASSET_ALIGN 8u

static accrt_status_t check_asset_place(const accx_verifier_t* verifier, uint32_t index,
                                        uint64_t* end) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_asset_t* asset = &tables->assets[index];
  const uint64_t total = tables->asset_data_size_bytes;
  /* Sections of metadata are below 2^30 bytes, so this cannot overflow. */
  const uint64_t expected = (*end + ASSET_ALIGN - 1) & ~(uint64_t)(ASSET_ALIGN - 1);
  bool good = asset->offset_bytes == expected &&
              accrt_range_fits(asset->offset_bytes, asset->size_bytes, total);
  for (uint64_t at = *end; good && at < asset->offset_bytes; ++at)
    good = tables->asset_data[at] == 0;
  if (!good) {
    return ACCX_REJECT(verifier, ASSET_PLACE, "assets", index, "offset_bytes",
                       "%" PRIu64 " bytes at %" PRIu64 " of '%.64s', expected after %" PRIu64
                       " (zeros between) in %" PRIu64,
                       asset->size_bytes, asset->offset_bytes,
                       accx_verifier_text(verifier, asset->name), *end, total);
  }
  *end = asset->offset_bytes + asset->size_bytes;
  return ACCRT_OK;
}

static accrt_status_t check_assets(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0;
  uint64_t end = 0;
  for (uint32_t i = 0; i < tables->asset_count; ++i) {
    const accx_asset_t* asset = &tables->assets[i];
    ACCRT_TRY(accx_check_ordered_name(verifier, asset->name, previous, "assets", i, "name"));
    ACCRT_TRY(accx_check_string(verifier, asset->media_type, "assets", i, "media_type"));
    previous = asset->name;
    if (asset->reserved != 0) {
      return ACCX_REJECT(verifier, ASSET, "assets", i, "reserved", "%" PRIu64 " is not 0",
                         asset->reserved);
    }
    ACCRT_TRY(check_asset_place(verifier, i, &end));
  }
  if (end == tables->asset_data_size_bytes)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, ASSET_PLACE, "asset_data", ACCX_NONE, NULL,
                     "%" PRIu64 " bytes, but assets end at %" PRIu64, tables->asset_data_size_bytes,
                     end);
}

static bool location_follows(const accx_location_t* before, const accx_location_t* location) {
  if (location->file != before->file)
    return location->file > before->file;
  if (location->line != before->line)
    return location->line > before->line;
  if (location->column != before->column)
    return location->column > before->column;
  return location->name > before->name;
}

static accrt_status_t check_locations(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  for (uint32_t i = 0; i < tables->location_count; ++i) {
    const accx_location_t* location = &tables->locations[i];
    ACCRT_TRY(accx_check_string(verifier, location->file, "locations", i, "file"));
    ACCRT_TRY(accx_check_string(verifier, location->name, "locations", i, "name"));
    if (i == 0 || location_follows(location - 1, location))
      continue;
    return ACCX_REJECT(verifier, LOCATION, "locations", i, NULL,
                       "'%.64s':%" PRIu32 ":%" PRIu32 " does not come after the one before it",
                       accx_verifier_text(verifier, location->file), location->line,
                       location->column);
  }
  return ACCRT_OK;
}

accrt_status_t accx_verify_extras(accx_verifier_t* verifier) {
  ACCRT_TRY(check_assets(verifier));
  return check_locations(verifier);
}
