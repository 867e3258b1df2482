/* runtime/core/sha256.h - SHA-256 by libcrypto, or by the library's own code where libcrypto is
 * missing. Only libcrypto may allocate. */
#ifndef ACCRT_RUNTIME_CORE_SHA256_H_
#define ACCRT_RUNTIME_CORE_SHA256_H_

#include <stddef.h>
#include <stdint.h>

#define ACCRT_SHA256_BYTES 32u

struct accrt_crypto;

/* State of a digest. It lives on the caller's stack; accrt_sha256_finish ends it. */
typedef struct accrt_sha256 {
  const struct accrt_crypto* crypto;
  void* context; /* libcrypto's state; NULL: the fields below are used */
  uint32_t state[8];
  uint64_t size_bytes;
  unsigned char block[64];
} accrt_sha256_t;

/* `crypto`: NULL when libcrypto is missing or unwanted. */
void accrt_sha256_init(accrt_sha256_t* hash, const struct accrt_crypto* crypto);
void accrt_sha256_update(accrt_sha256_t* hash, const void* bytes, size_t size_bytes);
/* Little-endian. */
void accrt_sha256_update_u32(accrt_sha256_t* hash, uint32_t value);
void accrt_sha256_update_u64(accrt_sha256_t* hash, uint64_t value);
void accrt_sha256_finish(accrt_sha256_t* hash, unsigned char out_digest[ACCRT_SHA256_BYTES]);

/* HMAC-SHA256 with a key of 32 bytes, and HKDF-SHA256 (RFC 5869) for 32 bytes of output. */
void accrt_hmac_sha256(const struct accrt_crypto* crypto, const unsigned char key[32],
                       const void* bytes, size_t size_bytes, unsigned char out_mac[32]);
void accrt_hkdf_sha256(const struct accrt_crypto* crypto, const unsigned char key[32],
                       const unsigned char salt[32], const char* info, unsigned char out_key[32]);

#endif /* ACCRT_RUNTIME_CORE_SHA256_H_ */
