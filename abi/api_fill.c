/* abi/api_fill.c - see abi/api_fill.h. It has no state. */
#include "abi/api_fill.h"

#include <string.h>

#include "runtime/core/error.h"

accrt_status_t accrt_api_fill(const void* own, size_t own_bytes, uint32_t version, void* table,
                              size_t size_bytes) {
  if (table == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "table is NULL");
  if (size_bytes < ACCRT_API_HEAD_BYTES || size_bytes > 16 * own_bytes ||
      size_bytes % sizeof(void*) != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "table of %zu bytes; this library's has %zu", size_bytes,
                      own_bytes);
  }
  memset(table, 0, size_bytes);
  const uint32_t major = version >> 24, minor = version >> 12 & 0xFFF;
  /* Below 1.0 a minor version may change what structs and functions mean. */
  if (major != ACCRT_VERSION_MAJOR || (major == 0 && minor != ACCRT_VERSION_MINOR)) {
    return ACCRT_FAIL(VERSION_MISMATCH,
                      "the caller was built against version %" PRIu32 ".%" PRIu32
                      ", this library is %d.%d%s",
                      major, minor, ACCRT_VERSION_MAJOR, ACCRT_VERSION_MINOR,
                      ACCRT_VERSION_MAJOR == 0 ? ": before 1.0 both must be the same" : "");
  }
  const size_t filled = size_bytes < own_bytes ? size_bytes : own_bytes;
  memcpy(table, own, filled);
  const uint32_t struct_size = (uint32_t)filled;
  memcpy(table, &struct_size, sizeof struct_size);
  return ACCRT_OK;
}
