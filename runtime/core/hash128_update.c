/* runtime/core/hash128_update.c - XXH3-128's loop over bytes. Alone here, since it is compiled for speed and the rest for size. */
#include "runtime/core/hash128.h"

#define XXH_INLINE_ALL
#define XXH_NO_STDLIB
#include <xxhash.h>

void accrt_hash128_update(accrt_hash128_t* hash, const void* bytes, size_t size_bytes) {
  (void)XXH3_128bits_update((XXH3_state_t*)(void*)hash->state, bytes, size_bytes);
}
