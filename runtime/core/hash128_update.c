/* runtime/core/hash128_update.c - XXH3-128's loop over bytes. It is in a file of its own because it
 * is compiled for speed, and the rest for size. */
#include "runtime/core/hash128.h"

#define XXH_INLINE_ALL
#define XXH_NO_STDLIB
#define XXH_NO_INLINE_HINTS 1 /* one copy of the loop is as fast as three */
#include <xxhash.h>

void accrt_hash128_update(accrt_hash128_t* hash, const void* bytes, size_t size_bytes) {
  (void)XXH3_128bits_update((XXH3_state_t*)(void*)hash->state, bytes, size_bytes);
}
