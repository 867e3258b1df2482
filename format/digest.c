/* format/digest.c - digests of what bundles are made of. It may not allocate. */
#include "format/digest.h"

accx_digest_t accx_hasher_finish(const accx_hasher_t* hasher) {
  accx_digest_t digest;
  accrt_hash128_finish(hasher, digest.bytes);
  return digest;
}

accx_digest_t accx_digest_of(const void* bytes, size_t size_bytes) {
  accx_digest_t digest;
  accrt_hash128_of(bytes, size_bytes, digest.bytes);
  return digest;
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
