/* abi/api_fill.h - gives a caller a library's API table: the common part of accrt_get_api and its
 * counterparts. */
#ifndef ACCRT_ABI_API_FILL_H_
#define ACCRT_ABI_API_FILL_H_

#include "accrt/base.h"

#define ACCRT_API_HEAD_BYTES (2 * sizeof(uint32_t)) /* struct_size and library_version */

/* `own` is the library's table: struct_size, library_version, functions. Otherwise as
 * accrt_get_api. */
accrt_status_t accrt_api_fill(const void* own, size_t own_bytes, uint32_t version, void* table,
                              size_t size_bytes);

#endif /* ACCRT_ABI_API_FILL_H_ */
