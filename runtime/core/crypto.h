/* runtime/core/crypto.h - OpenSSL's libcrypto, opened at run time: SHA-256, Ed25519, AES-256-GCM.
 *
 * The library uses neither its headers nor a link dependency. The few functions are stable since
 * OpenSSL 1.1.1, and crypto.c declares them. An instance opens libcrypto at the first need. Without
 * it, everything works that needs no signature and no key.
 */
#ifndef ACCRT_RUNTIME_CORE_CRYPTO_H_
#define ACCRT_RUNTIME_CORE_CRYPTO_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/trust.h"
#include "runtime/core/sync.h"

/* The functions of libcrypto, as OpenSSL 1.1.1 and 3 declare them (ENGINE* is always NULL here). */
#define ACCRT_CRYPTO_FUNCTIONS(X)                                                                  \
  X(OPENSSL_init_crypto, int, (uint64_t options, const void* settings))                            \
  X(EVP_MD_CTX_new, void*, (void))                                                                 \
  X(EVP_MD_CTX_free, void, (void* context))                                                        \
  X(EVP_sha256, const void*, (void))                                                               \
  X(EVP_DigestInit_ex, int, (void* context, const void* kind, void* engine))                       \
  X(EVP_DigestUpdate, int, (void* context, const void* bytes, size_t size))                        \
  X(EVP_DigestFinal_ex, int, (void* context, unsigned char* out, unsigned* out_size))              \
  X(EVP_PKEY_new_raw_private_key, void*, (int, void*, const unsigned char* key, size_t size))      \
  X(EVP_PKEY_new_raw_public_key, void*, (int, void*, const unsigned char* key, size_t size))       \
  X(EVP_PKEY_get_raw_public_key, int, (const void* key, unsigned char* out, size_t* size))         \
  X(EVP_PKEY_free, void, (void* key))                                                              \
  X(EVP_DigestSignInit, int, (void* context, void**, const void* kind, void* engine, void* key))   \
  X(EVP_DigestSign, int,                                                                           \
    (void* context, unsigned char* out, size_t* out_size, const unsigned char*, size_t))           \
  X(EVP_DigestVerifyInit, int, (void* context, void**, const void* kind, void* engine, void* key)) \
  X(EVP_DigestVerify, int,                                                                         \
    (void* context, const unsigned char*, size_t, const unsigned char*, size_t))                   \
  X(EVP_CIPHER_CTX_new, void*, (void))                                                             \
  X(EVP_CIPHER_CTX_free, void, (void* context))                                                    \
  X(EVP_aes_256_gcm, const void*, (void))                                                          \
  X(EVP_CipherInit_ex, int,                                                                        \
    (void* context, const void* kind, void* engine, const unsigned char* key,                      \
     const unsigned char* nonce, int encrypt))                                                     \
  X(EVP_CipherUpdate, int,                                                                         \
    (void* context, unsigned char* out, int* out_size, const unsigned char* in, int size))         \
  X(EVP_CipherFinal_ex, int, (void* context, unsigned char* out, int* out_size))                   \
  X(EVP_CIPHER_CTX_ctrl, int, (void* context, int what, int number, void* pointer))

/* Written once, under the lock. The library is never closed. */
typedef struct accrt_crypto {
#define ACCRT_CRYPTO_FIELD(name, result, parameters) result(*name) parameters;
  ACCRT_CRYPTO_FUNCTIONS(ACCRT_CRYPTO_FIELD)
#undef ACCRT_CRYPTO_FIELD
} accrt_crypto_t;

/* Why libcrypto was not opened. */
typedef struct accrt_crypto_reason {
  char text[160];
} accrt_crypto_reason_t;
/* Opens the library `name` (NULL: the newest that is installed; "": none) and fills the table.
 * Returns false with a reason on failure. */
bool accrt_crypto_open(accrt_crypto_t* crypto, const char* name, accrt_crypto_reason_t* reason);
/* Records ACCRT_ERROR_UNSUPPORTED, with the reason. */
accrt_status_t accrt_crypto_fail(const accrt_crypto_reason_t* reason);

/* libcrypto of one instance. */
typedef struct accrt_lazy_crypto {
  accrt_mutex_t lock;
  atomic_uint state; /* 0: not tried; 1: open; 2: could not be opened */
  accrt_crypto_t crypto;
  accrt_crypto_reason_t reason; /* state 2: the reason */
} accrt_lazy_crypto_t;

/* Returns the instance's libcrypto. If there is none, ACCRT_ERROR_UNSUPPORTED names the library.
 * Thread-safe. */
accrt_status_t accrt_instance_crypto(accrt_instance_t* instance, const accrt_crypto_t** out_crypto);
/* The same for callers that work without libcrypto too: NULL if there is none, and the error record
 * is unchanged. */
const accrt_crypto_t* accrt_instance_crypto_if(accrt_instance_t* instance);

/* For sha256.c. begin returns NULL when the caller has to compute the digest itself. */
void* accrt_crypto_digest_begin(const accrt_crypto_t* crypto);
void accrt_crypto_digest_update(const accrt_crypto_t* crypto, void* context, const void* bytes,
                                size_t size_bytes);
void accrt_crypto_digest_end(const accrt_crypto_t* crypto, void* context,
                             unsigned char out_digest[32]);

/* Ed25519. False when libcrypto fails (out of memory, or forbidden by its configuration). */
bool accrt_crypto_public_key(const accrt_crypto_t* crypto, const accrt_key_t* private_key,
                             accrt_key_t* out_public);
bool accrt_crypto_sign(const accrt_crypto_t* crypto, const accrt_key_t* private_key,
                       const void* bytes, size_t size_bytes, unsigned char out_signature[64]);
/* Also false for a signature by another key. */
bool accrt_crypto_verify(const accrt_crypto_t* crypto, const accrt_key_t* key, const void* bytes,
                         size_t size_bytes, const unsigned char signature[64]);

/* AES-256-GCM over `bytes` in place with a nonce of 12 bytes and no additional data. False when the
 * tag does not match; `bytes` are then zeros. */
bool accrt_crypto_encrypt(const accrt_crypto_t* crypto, const unsigned char key[32],
                          const unsigned char nonce[12], const accrt_key_t* bound, void* bytes,
                          size_t size_bytes, unsigned char out_tag[16]);
bool accrt_crypto_decrypt(const accrt_crypto_t* crypto, const unsigned char key[32],
                          const unsigned char nonce[12], const accrt_key_t* bound, void* bytes,
                          size_t size_bytes, const unsigned char tag[16]);

/* Writes zeros. No compiler may remove it. */
void accrt_wipe(void* bytes, size_t size_bytes);
/* Bytes of the operating system's random source. ACCRT_ERROR_IO. */
accrt_status_t accrt_random(void* bytes, size_t size_bytes);

#endif /* ACCRT_RUNTIME_CORE_CRYPTO_H_ */
