/* format/encryption.h - the keys and nonces of weights that are encrypted in the file. `crypto` may
 * not be NULL where chunks are. */
#ifndef ACCRT_FORMAT_ENCRYPTION_H_
#define ACCRT_FORMAT_ENCRYPTION_H_

#include "runtime/core/crypto.h"

/* The key and the cipher of one file's chunks. */
typedef struct accx_chunk_key {
  unsigned char bytes[32];
} accx_chunk_key_t;

void accx_encryption_derive(const accrt_crypto_t* crypto, const accrt_key_t* secret_key,
                            const uint8_t salt[32], accx_chunk_key_t* out_key);
void accx_encryption_key_id(const accrt_crypto_t* crypto, const accrt_key_t* secret_key,
                            uint8_t out_id[16]);
void accx_encryption_nonce(uint32_t chunk, unsigned char out_nonce[12]);

#endif /* ACCRT_FORMAT_ENCRYPTION_H_ */
