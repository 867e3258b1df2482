/* abi/api.c - accrt_get_api and accrt_version. It may not have state. */
#include "accrt/api.h"

#include "abi/api_fill.h"
#include "runtime/core/error.h"

uint32_t accrt_version(void) {
  return ACCRT_VERSION;
}

accrt_status_t accrt_get_api(uint32_t version, accrt_api_t* table, size_t size_bytes) {
  accrt_error_enter(__func__);
  accrt_api_t own;
  own.struct_size = (uint32_t)sizeof own;
  own.library_version = ACCRT_VERSION;
  /* By code: a constant table would cost a relocation of 24 bytes for each pointer. */
#define SLOT(name) own.name = accrt_##name;
#include "abi/api_table.inc"
#undef SLOT
  return accrt_api_fill(&own, sizeof own, version, table, size_bytes);
}
