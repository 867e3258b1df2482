/* write/api.c - accrt_write_get_api and accrt_write_version. It may not have state: the table is
 * constant. */
#include "accrt/write/api.h"

#include "abi/api_fill.h"
#include "runtime/core/error.h"

uint32_t accrt_write_version(void) {
  return ACCRT_VERSION;
}

static const accrt_write_api_t api_table = {
    .struct_size = (uint32_t)sizeof(accrt_write_api_t),
    .library_version = ACCRT_VERSION,
#define MEMBER(name) .name = accrt_##name,
#include "abi/write_table.inc"
#undef MEMBER
};

accrt_status_t accrt_write_get_api(uint32_t version, accrt_write_api_t* table, size_t size_bytes) {
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  return accrt_api_fill(&api_table, sizeof api_table, version, table, size_bytes);
}
