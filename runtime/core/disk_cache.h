/* runtime/core/disk_cache.h - a folder that keeps what was costly to make, by the digest of all that it depends on. */
#ifndef ACCRT_RUNTIME_CORE_DISK_CACHE_H_
#define ACCRT_RUNTIME_CORE_DISK_CACHE_H_

#include <stdbool.h>

#include "accrt/instance.h"

typedef struct accrt_cache_key {
  unsigned char bytes[16];
} accrt_cache_key_t;

/* What compiled code depends on: the source, the architecture, the compiler (of driver `version`), how it was asked. */
accrt_cache_key_t accrt_disk_cache_key(const void* source, uint64_t size_bytes, const char* arch,
                                       int version, const char* options);
/* Finds an entry: *out_data is the caller's, to be freed with size *out_size_bytes. False when there is none, or none that is
 * whole: that one is removed. */
bool accrt_disk_cache_get(const accrt_allocator_t* allocator, const char* folder,
                          const accrt_cache_key_t* key, void** out_data, size_t* out_size_bytes);
/* Adds an entry, whole or not at all, also beside other processes and when this one dies, and removes the entries that were not
 * used for the longest time until the folder holds at most limit_bytes. False when it could not; nothing depends on it. */
bool accrt_disk_cache_put(const char* folder, const accrt_cache_key_t* key, const void* data,
                          size_t size_bytes, uint64_t limit_bytes);

#endif /* ACCRT_RUNTIME_CORE_DISK_CACHE_H_ */
