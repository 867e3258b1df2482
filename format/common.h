/* format/common.h - what the reader and the writer of bundles share: limits, sections, and the
 * allowed values of single fields.
 *
 * Everything under format/ is built once, with hidden symbols, and linked into both libraries. It
 * has no state, opens no file and knows no bundle in memory. It may include runtime/core and the
 * public headers.
 */
#ifndef ACCRT_FORMAT_COMMON_H_
#define ACCRT_FORMAT_COMMON_H_

#include <stdbool.h>

#include "accrt/base.h"
#include "format/format.h"
#include "runtime/core/try.h"

/* Limits that the verifier enforces beyond those in format.h. */
#define ACCX_MAX_SECTIONS 64u
#define ACCX_MAX_METADATA_BYTES (UINT64_C(1) << 30) /* all sections but CODE and DATA together */
#define ACCX_MAX_CODE_BYTES (UINT64_C(1) << 32)
#define ACCX_MAX_RECORDS (1u << 24) /* of one section */
#define ACCX_MAX_STRING_BYTES 65535u
#define ACCX_MAX_NAME_BYTES 1023u /* of anything that is found by name */
#define ACCX_MAX_SYMBOL_VALUE (INT64_C(1) << 48)
#define ACCX_MAX_ARGUMENTS 4096u      /* of one function */
#define ACCX_MAX_BLOCK_DEPTH 16u      /* the function's body is depth 1 */
#define ACCX_MAX_CALL_DEPTH 16u       /* a function that calls none is depth 1 */
#define ACCX_MAX_FUNCTION_TARGETS 16u /* functions of one name */
#define ACCX_MAX_PACK_NAME_BYTES 127u
#define ACCX_MAX_BLOCK_THREADS 1024u
#define ACCX_MAX_CLUSTER_BLOCKS 64u
#define ACCX_MAX_EXPANDED_COMMANDS                                                                 \
  (UINT64_C(1) << 24) /* of one function, calls expanded, each repeat counted once */
#define ACCX_MAX_LOCAL_MEMORY_BYTES (256u << 20)

/* What an expression is made of, as bits: symbol classes in the low four, then PRESENT; the high
 * byte is the repeat depth needed. */
#define ACCX_USES_SPECIALIZE (1u << ACCX_SYMBOL_SPECIALIZE)
#define ACCX_USES_BUCKET (1u << ACCX_SYMBOL_BUCKET)
#define ACCX_USES_RUNTIME (1u << ACCX_SYMBOL_RUNTIME)
#define ACCX_USES_SESSION (1u << ACCX_SYMBOL_SESSION)
#define ACCX_USES_SYMBOLS 15u
#define ACCX_USES_PRESENT 16u
#define ACCX_USES_ANY 31u

/* The format's rules for one section. */
typedef struct accx_section_kind {
  uint16_t type;
  uint16_t record_bytes; /* of the newest form: loader/upgrade.h has the others */
  uint16_t alignment;
  bool required;
  uint8_t since_minor; /* container minor that brought it */
  char name[16];       /* in place: a pointer would be relocated when the library is loaded */
} accx_section_kind_t;
/* NULL for sections this library does not know. */
const accx_section_kind_t* accx_section_kind(uint32_t type);

/* One component of a path, and neither this folder nor the one above. */
bool accx_file_name_good(const char* name);
/* A pack's name: letters, digits, '.', '_' and '-', and it begins with none of the last three. */
bool accx_pack_name_good(const char* name);
/* Product of three sizes when each is 1 to `limit`, else 0. */
uint64_t accx_volume(const uint32_t sizes[3], uint32_t limit);

#endif /* ACCRT_FORMAT_COMMON_H_ */
