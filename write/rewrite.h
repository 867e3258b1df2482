/* write/rewrite.h - writes a bundle again with some sections changed. It works in pieces, so the
 * weights are never in memory as a whole. */
#ifndef ACCRT_WRITE_REWRITE_PRIVATE_H_
#define ACCRT_WRITE_REWRITE_PRIVATE_H_

#include "write/old.h"

#define ACCX_MAX_CHANGES 8u

/* A section that is new or replaces the existing one. Its bytes are read after all of DATA has been
 * written. */
typedef struct accx_change {
  uint32_t type;
  uint32_t record_bytes;
  const void* bytes;
  uint64_t size_bytes; /* 0: the section is left out */
} accx_change_t;

typedef struct accx_rewrite {
  const accx_old_t* old;
  uint64_t required_features; /* of the new file */
  accx_change_t changes[ACCX_MAX_CHANGES];
  uint32_t change_count;
  void* user;
  uint32_t chunk_flags; /* ACCRT_CHUNK_* */
  /* Called for each chunk of DATA in order, with the bytes of accrt_bundle_chunk. It may change
   * them; then they are written. */
  accrt_status_t (*chunk)(void* user, uint32_t index, void* bytes, size_t size_bytes);
  /* Called after the last chunk. It is the last chance to fill the bytes of the changes. */
  accrt_status_t (*finish)(void* user);
} accx_rewrite_t;

/* Writes a temporary file beside `path`, and renames it at the end. */
accrt_status_t accx_rewrite(const accx_rewrite_t* rewrite, const char* path);

#endif /* ACCRT_WRITE_REWRITE_PRIVATE_H_ */
