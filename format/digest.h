/* format/digest.h - the fast digest of bundles (runtime/core/hash128.h), as their tables have it.
 * It may not allocate. */
#ifndef ACCRT_FORMAT_DIGEST_H_
#define ACCRT_FORMAT_DIGEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "format/format.h"
#include "runtime/core/hash128.h"

/* A digest in the making. On the caller's stack. */
typedef accrt_hash128_t accx_hasher_t;

static inline void accx_hasher_init(accx_hasher_t* hasher) {
  accrt_hash128_init(hasher);
}
static inline void accx_hasher_update(accx_hasher_t* hasher, const void* bytes, size_t size_bytes) {
  accrt_hash128_update(hasher, bytes, size_bytes);
}
accx_digest_t accx_hasher_finish(const accx_hasher_t* hasher);
accx_digest_t accx_digest_of(const void* bytes, size_t size_bytes);
/* The digest of a header, with its digest field as zero, and of the table that follows it. */
accx_digest_t accx_header_digest(const accx_header_t* header, const accx_section_t* table);

static inline bool accx_digest_equal(const accx_digest_t* a, const accx_digest_t* b) {
  return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

#define ACCX_DIGEST_TEXT_BYTES 33
/* 32 hexadecimal digits, for messages. Returns `text`. */
static inline const char* accx_digest_text(const accx_digest_t* digest,
                                           char text[ACCX_DIGEST_TEXT_BYTES]) {
  return accrt_hex(digest->bytes, sizeof digest->bytes, text);
}

#endif /* ACCRT_FORMAT_DIGEST_H_ */
