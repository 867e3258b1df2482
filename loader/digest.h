/* loader/digest.h - XXH3-128, the fast digest of bundles. The only place that knows which hash it
 * is. It may not allocate. */
#ifndef ACCRT_LOADER_DIGEST_H_
#define ACCRT_LOADER_DIGEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "loader/format.h"

/* A digest in the making. On the caller's stack. */
typedef struct accx_hasher {
  _Alignas(64) unsigned char state[640];
} accx_hasher_t;

void accx_hasher_init(accx_hasher_t* hasher);
void accx_hasher_update(accx_hasher_t* hasher, const void* bytes, size_t size_bytes);
accx_digest_t accx_hasher_finish(const accx_hasher_t* hasher);
accx_digest_t accx_digest_of(const void* bytes, size_t size_bytes);
/* Of a header, whose own field counts as zero, and the table that it says follows. */
accx_digest_t accx_header_digest(const accx_header_t* header, const accx_section_t* table);

static inline bool accx_digest_equal(const accx_digest_t* a, const accx_digest_t* b) {
  return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

#define ACCX_DIGEST_TEXT_BYTES 33
/* 32 hexadecimal digits, for messages. Returns `text`. */
const char* accx_digest_text(const accx_digest_t* digest, char text[ACCX_DIGEST_TEXT_BYTES]);

#endif /* ACCRT_LOADER_DIGEST_H_ */
