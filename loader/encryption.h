/* loader/encryption.h - weights that are encrypted in the file. Chunks are decrypted where they are put, after their digests were
 * checked: plaintext is in anonymous memory only. */
#ifndef ACCRT_LOADER_ENCRYPTION_H_
#define ACCRT_LOADER_ENCRYPTION_H_

#include "loader/internal.h"
#include "runtime/core/crypto.h"

/* What encrypts the chunks of one file. */
typedef struct accx_chunk_key {
  unsigned char bytes[32];
} accx_chunk_key_t;

/* Asks the caller for the key, where there is one to ask. A bundle without it opens; its weights cannot be read. */
accrt_status_t accx_encryption_open(accrt_bundle_t* bundle, const accrt_bundle_options_t* options);
void accx_encryption_close(accrt_bundle_t* bundle);
/* ACCRT_ERROR_PERMISSION_DENIED when weights are encrypted and there is no key. */
accrt_status_t accx_encryption_ready(const accrt_bundle_t* bundle);
/* A chunk, in place. ACCRT_ERROR_DATA_CORRUPT, and then the bytes are zeros. */
accrt_status_t accx_encryption_decrypt(const accrt_bundle_t* bundle, uint32_t chunk, void* bytes,
                                       size_t size_bytes);

void accx_encryption_derive(const accrt_crypto_t* crypto, const accrt_key_t* secret_key,
                            const uint8_t salt[32], accx_chunk_key_t* out_key);
void accx_encryption_key_id(const accrt_crypto_t* crypto, const accrt_key_t* secret_key,
                            uint8_t out_id[16]);
void accx_encryption_nonce(uint32_t chunk, unsigned char out_nonce[12]);

#endif /* ACCRT_LOADER_ENCRYPTION_H_ */
