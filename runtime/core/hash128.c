/* runtime/core/hash128.c - XXH3-128 through the reference implementation, compiled in: all but its
 * loop over bytes, for size. */
#include "runtime/core/hash128.h"

#include <string.h>

#define XXH_INLINE_ALL
#define XXH_NO_STDLIB
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(accrt_hash128_t), "hash too small");
_Static_assert(_Alignof(accrt_hash128_t) >= _Alignof(XXH3_state_t), "hash not aligned");

void accrt_hash128_init(accrt_hash128_t* hash) {
  XXH3_state_t* state = (XXH3_state_t*)(void*)hash->state;
  XXH3_INITSTATE(state);
  (void)XXH3_128bits_reset(state);
}

void accrt_hash128_finish(const accrt_hash128_t* hash,
                          unsigned char out_digest[ACCRT_HASH128_BYTES]) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes,
                           XXH3_128bits_digest((const XXH3_state_t*)(const void*)hash->state));
  memcpy(out_digest, bytes.digest, ACCRT_HASH128_BYTES);
}

void accrt_hash128_of(const void* bytes, size_t size_bytes,
                      unsigned char out_digest[ACCRT_HASH128_BYTES]) {
  accrt_hash128_t hash;
  accrt_hash128_init(&hash);
  accrt_hash128_update(&hash, bytes, size_bytes);
  accrt_hash128_finish(&hash, out_digest);
}

const char* accrt_hex(const unsigned char* bytes, size_t size_bytes, char* text) {
  for (size_t i = 0; i < 2 * size_bytes; ++i)
    text[i] = "0123456789abcdef"[bytes[i / 2] >> 4 * (1 - i % 2) & 15];
  text[2 * size_bytes] = '\0';
  return text;
}
