/* runtime/core/crypto.c - opens libcrypto, and uses it for the library's three operations. It knows
 * no file and no bundle. */
#define _GNU_SOURCE
#include "runtime/core/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "runtime/core/error.h"
#include "runtime/core/safe_open.h"

#define KEY_KIND_ED25519 1087          /* NID_ED25519 */
#define NO_ATEXIT UINT64_C(0x00080000) /* OPENSSL_INIT_NO_ATEXIT: libcrypto runs no code at exit */
#define CONTROL_GET_TAG 0x10           /* EVP_CTRL_AEAD_GET_TAG */
#define CONTROL_SET_TAG 0x11
#define TAG_BYTES 16

/* ---- Opening ---- */

/* The name of a missing function, or NULL. */
static const char* find_functions(void* library, accrt_crypto_t* crypto) {
  static const char names[] =
#define NAME(name, result, parameters) #name "\0"
      ACCRT_CRYPTO_FUNCTIONS(NAME);
#undef NAME
  char* member = (char*)crypto;
  for (const char* name = names; *name != '\0'; name += strlen(name) + 1) {
    void* const found = dlsym(library, name);
    if (found == NULL)
      return name;
    memcpy(member, &found, sizeof found);
    member += sizeof found;
  }
  return NULL;
}

static bool open_as(accrt_crypto_t* crypto, const char* name, accrt_crypto_reason_t* reason) {
  void* library;
  accrt_error_t saved = ACCRT_ERROR_INIT, why = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&saved);
  if (accrt_library_open(name, ACCRT_LIBRARY_PATH_OR_SONAME, &library) != ACCRT_OK) {
    (void)accrt_last_error(&why);
    (void)snprintf(reason->text, sizeof reason->text, "%.*s", (int)sizeof reason->text - 1,
                   why.message);
    (void)accrt_set_error(&saved);
    return false;
  }
  const char* const missing = find_functions(library, crypto);
  if (missing != NULL) {
    (void)snprintf(reason->text, sizeof reason->text, "%.80s has no %s", name, missing);
    return false;
  }
  if (crypto->OPENSSL_init_crypto(NO_ATEXIT, NULL) == 1)
    return true;
  (void)snprintf(reason->text, sizeof reason->text, "%.80s does not start", name);
  return false;
}

bool accrt_crypto_open(accrt_crypto_t* crypto, const char* name, accrt_crypto_reason_t* reason) {
  if (name != NULL && name[0] == '\0') {
    (void)snprintf(reason->text, sizeof reason->text, "option crypto.library is empty");
    return false;
  }
  if (name != NULL)
    return open_as(crypto, name, reason);
  return open_as(crypto, "libcrypto.so.3", reason) || open_as(crypto, "libcrypto.so.1.1", reason);
}

accrt_status_t accrt_crypto_fail(const accrt_crypto_reason_t* reason) {
  return ACCRT_FAIL(UNSUPPORTED,
                    "signatures and encryption need OpenSSL's libcrypto.so.3 (or .so.1.1; "
                    "Debian: libssl3), which could not be opened: %s",
                    reason->text);
}

/* ---- SHA-256 ---- */

void* accrt_crypto_digest_begin(const accrt_crypto_t* crypto) {
  if (crypto == NULL)
    return NULL;
  void* context = crypto->EVP_MD_CTX_new();
  if (context != NULL && crypto->EVP_DigestInit_ex(context, crypto->EVP_sha256(), NULL) == 1)
    return context;
  crypto->EVP_MD_CTX_free(context);
  return NULL;
}

void accrt_crypto_digest_update(const accrt_crypto_t* crypto, void* context, const void* bytes,
                                size_t size_bytes) {
  (void)crypto->EVP_DigestUpdate(context, bytes, size_bytes);
}

void accrt_crypto_digest_end(const accrt_crypto_t* crypto, void* context,
                             unsigned char out_digest[32]) {
  unsigned size = 0;
  memset(out_digest, 0, 32);
  (void)crypto->EVP_DigestFinal_ex(context, out_digest, &size);
  crypto->EVP_MD_CTX_free(context);
}

/* ---- Ed25519 ---- */

bool accrt_crypto_public_key(const accrt_crypto_t* crypto, const accrt_key_t* private_key,
                             accrt_key_t* out_public) {
  size_t size = sizeof out_public->bytes;
  void* key = crypto->EVP_PKEY_new_raw_private_key(KEY_KIND_ED25519, NULL, private_key->bytes,
                                                   sizeof private_key->bytes);
  const bool good = key != NULL &&
                    crypto->EVP_PKEY_get_raw_public_key(key, out_public->bytes, &size) == 1 &&
                    size == sizeof out_public->bytes;
  crypto->EVP_PKEY_free(key);
  return good;
}

bool accrt_crypto_sign(const accrt_crypto_t* crypto, const accrt_key_t* private_key,
                       const void* bytes, size_t size_bytes, unsigned char out_signature[64]) {
  size_t size = 64;
  void* key = crypto->EVP_PKEY_new_raw_private_key(KEY_KIND_ED25519, NULL, private_key->bytes,
                                                   sizeof private_key->bytes);
  void* context = crypto->EVP_MD_CTX_new();
  const bool good = key != NULL && context != NULL &&
                    crypto->EVP_DigestSignInit(context, NULL, NULL, NULL, key) == 1 &&
                    crypto->EVP_DigestSign(context, out_signature, &size, bytes, size_bytes) == 1 &&
                    size == 64;
  crypto->EVP_MD_CTX_free(context);
  crypto->EVP_PKEY_free(key);
  return good;
}

bool accrt_crypto_verify(const accrt_crypto_t* crypto, const accrt_key_t* key, const void* bytes,
                         size_t size_bytes, const unsigned char signature[64]) {
  void* public_key =
      crypto->EVP_PKEY_new_raw_public_key(KEY_KIND_ED25519, NULL, key->bytes, sizeof key->bytes);
  void* context = crypto->EVP_MD_CTX_new();
  const bool good = public_key != NULL && context != NULL &&
                    crypto->EVP_DigestVerifyInit(context, NULL, NULL, NULL, public_key) == 1 &&
                    crypto->EVP_DigestVerify(context, signature, 64, bytes, size_bytes) == 1;
  crypto->EVP_MD_CTX_free(context);
  crypto->EVP_PKEY_free(public_key);
  return good;
}

/* ---- AES-256-GCM ---- */

/* `tag` is read when decrypting and written when encrypting. */
static bool cipher(const accrt_crypto_t* crypto, bool encrypt, const unsigned char key[32],
                   const unsigned char nonce[12], const accrt_key_t* bound, unsigned char* bytes,
                   size_t size_bytes, unsigned char tag[TAG_BYTES]) {
  void* context = crypto->EVP_CIPHER_CTX_new();
  int size = 0, last = 0;
  const bool good =
      context != NULL && size_bytes <= INT32_MAX &&
      crypto->EVP_CipherInit_ex(context, crypto->EVP_aes_256_gcm(), NULL, key, nonce, encrypt) ==
          1 &&
      (bound == NULL || crypto->EVP_CipherUpdate(context, NULL, &size, bound->bytes,
                                                 (int)sizeof bound->bytes) == 1) &&
      crypto->EVP_CipherUpdate(context, bytes, &size, bytes, (int)size_bytes) == 1 &&
      (size_t)size == size_bytes &&
      (encrypt || crypto->EVP_CIPHER_CTX_ctrl(context, CONTROL_SET_TAG, TAG_BYTES, tag) == 1) &&
      crypto->EVP_CipherFinal_ex(context, bytes + size, &last) == 1 &&
      (!encrypt || crypto->EVP_CIPHER_CTX_ctrl(context, CONTROL_GET_TAG, TAG_BYTES, tag) == 1);
  crypto->EVP_CIPHER_CTX_free(context);
  return good;
}

bool accrt_crypto_encrypt(const accrt_crypto_t* crypto, const unsigned char key[32],
                          const unsigned char nonce[12], const accrt_key_t* bound, void* bytes,
                          size_t size_bytes, unsigned char out_tag[16]) {
  return cipher(crypto, true, key, nonce, bound, bytes, size_bytes, out_tag);
}

bool accrt_crypto_decrypt(const accrt_crypto_t* crypto, const unsigned char key[32],
                          const unsigned char nonce[12], const accrt_key_t* bound, void* bytes,
                          size_t size_bytes, const unsigned char tag[16]) {
  unsigned char wanted[TAG_BYTES];
  memcpy(wanted, tag, sizeof wanted);
  if (cipher(crypto, false, key, nonce, bound, bytes, size_bytes, wanted))
    return true;
  /* Overwrite the bytes that were decrypted before the tag was found to be wrong. */
  accrt_wipe(bytes, size_bytes);
  return false;
}

/* ---- Wiping and random bytes ---- */

void accrt_wipe(void* bytes, size_t size_bytes) {
  explicit_bzero(bytes, size_bytes);
}

accrt_status_t accrt_random(void* bytes, size_t size_bytes) {
  for (size_t done = 0; done < size_bytes;) {
    const ssize_t got = getrandom((char*)bytes + done, size_bytes - done, 0);
    if (got > 0)
      done += (size_t)got;
    else if (errno != EINTR)
      return ACCRT_FAIL_ERRNO(IO, errno, "no random bytes: %s", strerror(errno));
  }
  return ACCRT_OK;
}
