/* abi/api.c - accrt_get_api and accrt_version. It may not keep state: the table is constant. */
#include "accrt/api.h"

#include <string.h>

#include "runtime/core/error.h"

uint32_t accrt_version(void) {
  return ACCRT_VERSION;
}

static const accrt_api_t api_table = {
    .struct_size = (uint32_t)sizeof(accrt_api_t),
    .library_version = ACCRT_VERSION,
#include "abi/api_table.inc"
};

accrt_status_t accrt_get_api(uint32_t version, accrt_api_t* table, size_t size_bytes) {
  const size_t head_bytes = offsetof(accrt_api_t, last_error);
  if (table == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "table is NULL");
  if (size_bytes < head_bytes || size_bytes > 16 * sizeof api_table ||
      size_bytes % sizeof(void*) != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "table of %zu bytes; this library's has %zu", size_bytes,
                      sizeof api_table);
  }
  memset(table, 0, size_bytes);
  const uint32_t major = version >> 24;
  if (major != ACCRT_VERSION_MAJOR) {
    return ACCRT_FAIL(VERSION_MISMATCH,
                      "caller was built against %" PRIu32 ".%" PRIu32
                      ", this library is %d.%d and serves %d.x",
                      major, (version >> 12) & 0xFFF, ACCRT_VERSION_MAJOR, ACCRT_VERSION_MINOR,
                      ACCRT_VERSION_MAJOR);
  }
  const size_t filled = size_bytes < sizeof api_table ? size_bytes : sizeof api_table;
  memcpy(table, &api_table, filled);
  table->struct_size = (uint32_t)filled;
  return ACCRT_OK;
}
