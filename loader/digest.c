/* loader/digest.c - XXH3-128 through the reference implementation, compiled in. It may not
 * allocate. */
#include "loader/digest.h"

#define XXH_INLINE_ALL
#define XXH_NO_STDLIB
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(accx_hasher_t), "hasher too small");
_Static_assert(_Alignof(accx_hasher_t) >= _Alignof(XXH3_state_t), "hasher not aligned");

static XXH3_state_t* state_of(accx_hasher_t* hasher) {
  return (XXH3_state_t*)(void*)hasher->state;
}

static accx_digest_t canonical(XXH128_hash_t hash) {
  accx_digest_t digest;
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  memcpy(digest.bytes, bytes.digest, sizeof digest.bytes);
  return digest;
}

void accx_hasher_init(accx_hasher_t* hasher) {
  XXH3_INITSTATE(state_of(hasher));
  (void)XXH3_128bits_reset(state_of(hasher));
}

void accx_hasher_update(accx_hasher_t* hasher, const void* bytes, size_t size_bytes) {
  (void)XXH3_128bits_update(state_of(hasher), bytes, size_bytes);
}

accx_digest_t accx_hasher_finish(const accx_hasher_t* hasher) {
  return canonical(XXH3_128bits_digest((const XXH3_state_t*)(const void*)hasher->state));
}

accx_digest_t accx_digest_of(const void* bytes, size_t size_bytes) {
  /* The same loops again would be a twentieth of the loader. */
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  accx_hasher_update(&hasher, bytes, size_bytes);
  return accx_hasher_finish(&hasher);
}

accx_digest_t accx_header_digest(const accx_header_t* header, const accx_section_t* table) {
  accx_header_t zeroed = *header;
  memset(&zeroed.digest, 0, sizeof zeroed.digest);
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  accx_hasher_update(&hasher, &zeroed, sizeof zeroed);
  accx_hasher_update(&hasher, table, header->section_count * sizeof *table);
  return accx_hasher_finish(&hasher);
}

const char* accx_digest_text(const accx_digest_t* digest, char text[ACCX_DIGEST_TEXT_BYTES]) {
  static const char hex[] = "0123456789abcdef";
  for (size_t i = 0; i < sizeof digest->bytes; ++i) {
    text[2 * i] = hex[digest->bytes[i] >> 4];
    text[2 * i + 1] = hex[digest->bytes[i] & 15];
  }
  text[ACCX_DIGEST_TEXT_BYTES - 1] = '\0';
  return text;
}
