/* loader/source.h - where a bundle's bytes come from: a file, memory, or callbacks. It knows
 * nothing of their meaning. */
#ifndef ACCRT_LOADER_SOURCE_H_
#define ACCRT_LOADER_SOURCE_H_

#include <pthread.h>
#include <stdbool.h>

#include "accrt/bundle.h"

/* For all of the loader. */
#define ACCX_TRY(expression)                                                                       \
  do {                                                                                             \
    const accrt_status_t try_status = (expression);                                                \
    if (try_status != ACCRT_OK)                                                                    \
      return try_status;                                                                           \
  } while (0)

typedef enum accx_source_kind {
  ACCX_SOURCE_NONE,
  ACCX_SOURCE_FILE,
  ACCX_SOURCE_MEMORY,
  ACCX_SOURCE_CALLBACKS
} accx_source_kind_t;

typedef struct accx_source {
  accx_source_kind_t kind;
  int fd;        /* FILE: owned */
  int direct_fd; /* FILE: the same past the page cache; owned; -1: none */
  uint64_t size_bytes;
  const unsigned char* memory; /* MEMORY: borrowed until `release` */
  void (*release)(void* user);
  void* user;
  accrt_reader_t reader; /* CALLBACKS */
  /* One reader at a time, without holding the mutex while foreign code runs. */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool busy;
} accx_source_t;

/* Each fills a zeroed struct; on failure there is nothing to close. */
accrt_status_t accx_source_open_path(const char* path, accx_source_t* out_source);
accrt_status_t accx_source_open_fd(int fd, accx_source_t* out_source);
/* Takes `fd`, also when it fails. */
accrt_status_t accx_source_take_fd(int fd, const char* what, accx_source_t* out_source);
accrt_status_t accx_source_open_memory(const void* data, uint64_t size_bytes,
                                       void (*release)(void*), void* user,
                                       accx_source_t* out_source);
accrt_status_t accx_source_open_callbacks(const accrt_reader_t* reader, accx_source_t* out_source);
/* Reads of a file, where they can, leave the page cache as it is. */
void accx_source_bypass_cache(accx_source_t* source);
/* `notify`: tell the caller's release or close. */
void accx_source_close(accx_source_t* source, bool notify);

/* From begin to end no other thread is between the two; accx_source_read needs it for callbacks. */
void accx_source_begin(accx_source_t* source);
void accx_source_end(accx_source_t* source);
/* ACCRT_ERROR_IO when a file has become shorter than it was at open: reading a mapping of it would be the process's end. */
accrt_status_t accx_source_check_size(const accx_source_t* source);
/* Fills exactly size_bytes. ACCRT_ERROR_IO, errno in driver_code. The caller has checked the range
 * against size_bytes. */
accrt_status_t accx_source_read(accx_source_t* source, uint64_t offset, void* target,
                                uint64_t size_bytes);
/* The same, from begin to end. */
accrt_status_t accx_source_read_alone(accx_source_t* source, uint64_t offset, void* target,
                                      uint64_t size_bytes);

#endif /* ACCRT_LOADER_SOURCE_H_ */
