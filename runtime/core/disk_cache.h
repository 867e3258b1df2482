/* runtime/core/disk_cache.h - a folder of results that are expensive to make. The name of each is a
 * digest of everything it depends on. */
#ifndef ACCRT_RUNTIME_CORE_DISK_CACHE_H_
#define ACCRT_RUNTIME_CORE_DISK_CACHE_H_

#include <stdbool.h>

#include "accrt/instance.h"

/* SHA-256 of everything that an entry depends on. If two results could have one key, an attacker
 * could exchange them. */
typedef struct accrt_cache_key {
  unsigned char bytes[32];
} accrt_cache_key_t;

/* The key of compiled code: the source, the architecture, the compiler (that of driver `version`)
 * and its options. */
accrt_cache_key_t accrt_disk_cache_key(const void* source, uint64_t size_bytes, const char* arch,
                                       int version, const char* options);
/* Finds an entry. The caller owns *out_data and frees it with size *out_size_bytes. Returns false
 * when there is no entry; when it is damaged (then it is removed); and when another user may write
 * to the entry, the folder or a folder above it, or owns one of them (safe_open.h). This function
 * and the next leave the error record unchanged. */
bool accrt_disk_cache_get(const accrt_allocator_t* allocator, const char* folder,
                          const accrt_cache_key_t* key, void** out_data, size_t* out_size_bytes);
/* Adds an entry, whole or not at all, even when other processes write too or this process dies.
 * Then removes the least recently used entries until the folder holds at most limit_bytes, and what
 * killed processes left; for an entry below a 256th of the limit, only once in a while. So the
 * folder may hold a little more meanwhile: more than a sixteenth above the limit once in 10^7 such
 * times. An entry that is larger than the limit is not written. Returns false when it could not;
 * callers may ignore that. */
bool accrt_disk_cache_put(const char* folder, const accrt_cache_key_t* key, const void* data,
                          size_t size_bytes, uint64_t limit_bytes);

#endif /* ACCRT_RUNTIME_CORE_DISK_CACHE_H_ */
