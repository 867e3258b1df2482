/* loader/source.h - the source of a bundle's bytes: a file, memory, or callbacks. It does not know
 * their meaning. */
#ifndef ACCRT_LOADER_SOURCE_H_
#define ACCRT_LOADER_SOURCE_H_

#include <stdbool.h>

#include "accrt/bundle.h"
#include "format/common.h"
#include "runtime/core/sync.h"

typedef enum accx_source_kind {
  ACCX_SOURCE_NONE,
  ACCX_SOURCE_FILE,
  ACCX_SOURCE_MEMORY,
  ACCX_SOURCE_CALLBACKS
} accx_source_kind_t;

typedef struct accx_source {
  accx_source_kind_t kind;
  int fd;        /* FILE: owned */
  int direct_fd; /* FILE: for reads that bypass the page cache; owned; -1: none */
  uint64_t size_bytes;
  const unsigned char* memory; /* MEMORY: the caller's until `release` is called */
  void (*release)(void* user);
  void* user;
  accrt_reader_t reader; /* CALLBACKS */
  /* Serializes callbacks. The caller's code runs without the lock held. */
  accrt_monitor_t monitor;
  bool busy;
} accx_source_t;

/* Copies a source's name: the caller's, or `other` where that is NULL or empty. Free the copy with
 * accrt_free_string. */
accrt_status_t accx_copy_name(const accrt_allocator_t* allocator, const char* name,
                              const char* other, char** out_name);

/* Each fills a zeroed struct. After a failure there is nothing to close. */
accrt_status_t accx_source_open_path(const char* path, accx_source_t* out_source);
accrt_status_t accx_source_open_fd(int fd, accx_source_t* out_source);
/* Takes ownership of `fd`, even after a failure. */
accrt_status_t accx_source_take_fd(int fd, const char* what, accx_source_t* out_source);
accrt_status_t accx_source_open_memory(const void* data, uint64_t size_bytes,
                                       void (*release)(void*), void* user,
                                       accx_source_t* out_source);
accrt_status_t accx_source_open_callbacks(const accrt_reader_t* reader, accx_source_t* out_source);
/* Makes reads of a file bypass the page cache where possible. */
void accx_source_bypass_cache(accx_source_t* source);
/* `notify`: call the caller's release or close function. */
void accx_source_close(accx_source_t* source, bool notify);

/* Between begin and end the calling thread has the source alone. accx_source_read requires that for
 * callbacks. */
void accx_source_begin(accx_source_t* source);
void accx_source_end(accx_source_t* source);
/* ACCRT_ERROR_IO when a file has become shorter since open. Accessing a mapping behind its end
 * would end the process. */
accrt_status_t accx_source_check_size(const accx_source_t* source);
/* Reads exactly size_bytes. ACCRT_ERROR_IO with errno in driver_code. The caller has checked the
 * range against size_bytes. */
accrt_status_t accx_source_read(accx_source_t* source, uint64_t offset, void* target,
                                uint64_t size_bytes);
/* The same, with begin and end around it. */
accrt_status_t accx_source_read_alone(accx_source_t* source, uint64_t offset, void* target,
                                      uint64_t size_bytes);
/* Computes the digest of a range. Call it between accx_source_begin and _end. `piece` has room for
 * ACCX_CHUNK_BYTES. */
accrt_status_t accx_source_digest(accx_source_t* source, uint64_t offset, uint64_t size_bytes,
                                  void* piece, accx_digest_t* out_digest);

#endif /* ACCRT_LOADER_SOURCE_H_ */
