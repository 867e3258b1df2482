/* loader/rewrite.h - a bundle written again with some sections changed, in pieces: weights are never in memory as a whole. */
#ifndef ACCRT_LOADER_REWRITE_H_
#define ACCRT_LOADER_REWRITE_H_

#include "loader/internal.h"

#define ACCX_MAX_CHANGES 8u

/* A section that is new, or in place of the one there was. The bytes are read when all of DATA has been written. */
typedef struct accx_change {
  uint32_t type;
  uint32_t record_bytes;
  const void* bytes;
  uint64_t size_bytes; /* 0: the section is left out */
} accx_change_t;

typedef struct accx_rewrite {
  accrt_bundle_t* bundle;
  uint64_t required_features; /* of the new file */
  accx_change_t changes[ACCX_MAX_CHANGES];
  uint32_t change_count;
  void* user;
  /* Each chunk of DATA in order, as it is in the file (its digest was checked); what it leaves there is written. */
  accrt_status_t (*chunk)(void* user, uint32_t index, void* bytes, size_t size_bytes);
  /* After the last of them: the last moment to fill the changes' bytes. */
  accrt_status_t (*finish)(void* user);
} accx_rewrite_t;

/* Writes beside `path` and renames at the end. */
accrt_status_t accx_rewrite(const accx_rewrite_t* rewrite, const char* path);

#endif /* ACCRT_LOADER_REWRITE_H_ */
