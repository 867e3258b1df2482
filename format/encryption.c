/* format/encryption.c - see format/encryption.h. */
#include "format/encryption.h"

#include <string.h>

#include "runtime/core/sha256.h"

static const unsigned char no_salt[32] = {0};

void accx_encryption_derive(const accrt_crypto_t* crypto, const accrt_key_t* secret_key,
                            const uint8_t salt[32], accx_chunk_key_t* out_key) {
  accrt_hkdf_sha256(crypto, secret_key->bytes, salt, "accrt weights v1", out_key->bytes);
}

void accx_encryption_key_id(const accrt_crypto_t* crypto, const accrt_key_t* secret_key,
                            uint8_t out_id[16]) {
  unsigned char bytes[32];
  accrt_hkdf_sha256(crypto, secret_key->bytes, no_salt, "accrt key id v1", bytes);
  memcpy(out_id, bytes, 16);
}

void accx_encryption_nonce(uint32_t chunk, unsigned char out_nonce[12]) {
  memset(out_nonce, 0, 12);
  for (int i = 0; i < 4; ++i)
    out_nonce[4 + i] = (unsigned char)(chunk >> 8 * i);
}
