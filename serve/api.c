/* serve/api.c - accrt_serve_get_api and accrt_serve_version. It has no state. */
#include <string.h>

#include "accrt/serve/api.h"
#include "serve/base.h"

uint32_t accrt_serve_version(void) {
  return ACCRT_VERSION;
}

static const accrt_serve_api_t api_table = {
    .struct_size = (uint32_t)sizeof(accrt_serve_api_t),
    .library_version = ACCRT_VERSION,
#define MEMBER(name) .name = accrt_##name,
#include "abi/serve_table.inc"
#undef MEMBER
};

accrt_status_t accrt_serve_get_api(uint32_t version, accrt_serve_api_t* table, size_t size_bytes) {
  ACCSV_NOT_NULL(table);
  if (size_bytes < 2 * sizeof(uint32_t) || size_bytes > 16 * sizeof api_table ||
      size_bytes % sizeof(void*) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "table of %zu bytes; this library's has %zu", size_bytes,
                      sizeof api_table);
  memset(table, 0, size_bytes);
  const uint32_t major = version >> 24, minor = version >> 12 & 0xFFF;
  /* Below 1.0 a minor version may change what structs and functions mean. */
  if (major != ACCRT_VERSION_MAJOR || (major == 0 && minor != ACCRT_VERSION_MINOR))
    return ACCSV_FAIL(VERSION_MISMATCH,
                      "the caller was built against version %" PRIu32 ".%" PRIu32
                      ", this library is %d.%d",
                      major, minor, ACCRT_VERSION_MAJOR, ACCRT_VERSION_MINOR);
  const size_t filled = size_bytes < sizeof api_table ? size_bytes : sizeof api_table;
  memcpy(table, &api_table, filled);
  const uint32_t struct_size = (uint32_t)filled;
  memcpy(table, &struct_size, sizeof struct_size);
  return ACCRT_OK;
}
