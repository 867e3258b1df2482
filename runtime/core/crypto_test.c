/* runtime/core/crypto_test.c - SHA-256, HMAC, HKDF, Ed25519 and AES-256-GCM against published
 * vectors, with libcrypto and without. */
#include "runtime/core/crypto.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/accrt.h"
#include "runtime/core/sha256.h"

static accrt_instance_t* instance;
static const accrt_crypto_t* crypto; /* NULL: this machine has none */

static accrt_instance_t* make_instance(const char* library) {
  const accrt_option_t option = {"crypto.library", library};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.options = &option;
  options.option_count = library != NULL;
  options.option_size_bytes = sizeof option;
  accrt_instance_t* made;
  assert_int_equal(accrt_instance_create(&options, &made), ACCRT_OK);
  return made;
}

static int setup(void** state) {
  (void)state;
  instance = make_instance(NULL);
  crypto = accrt_instance_crypto_if(instance);
  return 0;
}

static int teardown(void** state) {
  (void)state;
  accrt_instance_release(instance);
  return 0;
}

#define NEEDS_CRYPTO()                                                                             \
  do {                                                                                             \
    (void)state;                                                                                   \
    if (crypto == NULL) {                                                                          \
      print_message("skipped: no libcrypto\n");                                                    \
      skip();                                                                                      \
    }                                                                                              \
  } while (0)

static void unhex(const char* text, unsigned char* out) {
  for (; text[0] != '\0'; text += 2) {
    const char digits[3] = {text[0], text[1], '\0'};
    *out++ = (unsigned char)strtoul(digits, NULL, 16);
  }
}

static void assert_hex(const unsigned char* bytes, size_t size, const char* text) {
  unsigned char wanted[128];
  assert_int_equal(strlen(text), 2 * size);
  unhex(text, wanted);
  assert_memory_equal(bytes, wanted, size);
}

/* ---- SHA-256 ---- */

static void digest_of(const accrt_crypto_t* with, const void* bytes, size_t size, size_t piece,
                      unsigned char out[32]) {
  accrt_sha256_t hash;
  accrt_sha256_init(&hash, with);
  for (size_t at = 0; at < size; at += piece)
    accrt_sha256_update(&hash, (const char*)bytes + at, size - at < piece ? size - at : piece);
  accrt_sha256_finish(&hash, out);
}

/* FIPS 180-4's examples. */
static void sha256_vectors(void** state) {
  (void)state;
  static const struct {
    const char* text;
    const char* digest;
  } cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    unsigned char digest[32];
    digest_of(NULL, cases[i].text, strlen(cases[i].text), 64, digest);
    assert_hex(digest, 32, cases[i].digest);
    digest_of(crypto, cases[i].text, strlen(cases[i].text), 64, digest);
    assert_hex(digest, 32, cases[i].digest);
  }
  unsigned char* million = malloc(1000000);
  unsigned char digest[32];
  memset(million, 'a', 1000000);
  digest_of(NULL, million, 1000000, 4093, digest);
  assert_hex(digest, 32, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  free(million);
}

static void sha256_agrees_with_libcrypto(void** state) {
  NEEDS_CRYPTO();
  unsigned char bytes[517], own[32], other[32];
  for (size_t i = 0; i < sizeof bytes; ++i)
    bytes[i] = (unsigned char)(i * 131 + 7);
  for (size_t size = 0; size <= sizeof bytes; ++size) {
    digest_of(NULL, bytes, size, size % 71 + 1, own);
    digest_of(crypto, bytes, size, sizeof bytes, other);
    assert_memory_equal(own, other, 32);
  }
}

/* RFC 4231, test 1 and 2 with keys filled up with zeros (which HMAC does); RFC 5869's extraction is
 * the same function. */
static void hmac_and_hkdf(void** state) {
  (void)state;
  unsigned char key[32] = {0}, salt[32] = {0}, out[32], by_hand[32], text[17];
  memset(key, 0x0b, 20);
  accrt_hmac_sha256(crypto, key, "Hi There", 8, out);
  assert_hex(out, 32, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  memset(key, 0, sizeof key);
  memcpy(key, "Jefe", 4);
  accrt_hmac_sha256(NULL, key, "what do ya want for nothing?", 28, out);
  assert_hex(out, 32, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  /* Extract, then expand with the counter 1. */
  memset(salt, 3, sizeof salt);
  accrt_hmac_sha256(crypto, salt, key, sizeof key, by_hand);
  memcpy(text, "accrt weights v1", 16);
  text[16] = 1;
  accrt_hmac_sha256(crypto, by_hand, text, sizeof text, by_hand);
  accrt_hkdf_sha256(crypto, key, salt, "accrt weights v1", out);
  assert_memory_equal(out, by_hand, 32);
}

/* ---- Signatures ---- */

/* RFC 8032, 7.1, tests 2 and 3. */
static void ed25519_vectors(void** state) {
  NEEDS_CRYPTO();
  static const struct {
    const char *secret, *public_key, *message, *signature;
  } cases[] = {
      {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
       "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
       "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
       "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
      {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
       "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
       "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
       "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    accrt_key_t secret, public_key;
    unsigned char message[4], signature[64];
    unhex(cases[i].secret, secret.bytes);
    unhex(cases[i].message, message);
    const size_t size = strlen(cases[i].message) / 2;
    assert_true(accrt_crypto_public_key(crypto, &secret, &public_key));
    assert_hex(public_key.bytes, 32, cases[i].public_key);
    assert_true(accrt_crypto_sign(crypto, &secret, message, size, signature));
    assert_hex(signature, 64, cases[i].signature);
    assert_true(accrt_crypto_verify(crypto, &public_key, message, size, signature));
    for (size_t bit = 0; bit < 512; ++bit) {
      signature[bit / 8] ^= (unsigned char)(1u << bit % 8);
      assert_false(accrt_crypto_verify(crypto, &public_key, message, size, signature));
      signature[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    message[0] ^= 1;
    assert_false(accrt_crypto_verify(crypto, &public_key, message, size, signature));
  }
}

/* ---- Encryption ---- */

/* The GCM specification's test case 15 (256-bit key, 64 bytes, no further data). */
static void gcm_vector(void** state) {
  NEEDS_CRYPTO();
  unsigned char key[32], nonce[12], bytes[64], plain[64], tag[16];
  unhex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", key);
  unhex("cafebabefacedbaddecaf888", nonce);
  unhex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        plain);
  memcpy(bytes, plain, sizeof bytes);
  assert_true(accrt_crypto_encrypt(crypto, key, nonce, NULL, bytes, sizeof bytes, tag));
  assert_hex(bytes, 64,
             "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
             "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad");
  assert_hex(tag, 16, "b094dac5d93471bdec1a502270e3cc6c");
  assert_true(accrt_crypto_decrypt(crypto, key, nonce, NULL, bytes, sizeof bytes, tag));
  assert_memory_equal(bytes, plain, sizeof bytes);
  /* A wrong tag leaves no plaintext. */
  static const unsigned char zeros[64];
  assert_true(accrt_crypto_encrypt(crypto, key, nonce, NULL, bytes, sizeof bytes, tag));
  tag[15] ^= 1;
  assert_false(accrt_crypto_decrypt(crypto, key, nonce, NULL, bytes, sizeof bytes, tag));
  assert_memory_equal(bytes, zeros, sizeof bytes);
}

/* ---- Without ---- */

static void says_what_is_missing(void** state) {
  (void)state;
  static const char* const libraries[] = {"", "/no/such/libcrypto.so", "libm.so.6"};
  for (size_t i = 0; i < 3; ++i) {
    accrt_instance_t* without = make_instance(libraries[i]);
    accrt_key_t key, public_key;
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_key_generate(without, &key), ACCRT_OK);
    assert_int_equal(accrt_key_public(without, &key, &public_key), ACCRT_ERROR_UNSUPPORTED);
    accrt_last_error(&error);
    assert_non_null(strstr(error.message, "libcrypto.so.3"));
    assert_non_null(strstr(error.message, i == 0   ? "crypto.library is empty"
                                          : i == 1 ? "/no/such/libcrypto.so"
                                                   : "has no OPENSSL_init_crypto"));
    assert_string_equal(error.operation, "accrt_key_public");
    uint8_t signature[64];
    assert_int_equal(accrt_key_sign(without, &key, "x", 1, signature), ACCRT_ERROR_UNSUPPORTED);
    accrt_instance_release(without);
  }
}

static void random_bytes_differ(void** state) {
  (void)state;
  accrt_key_t a, b;
  assert_int_equal(accrt_key_generate(instance, &a), ACCRT_OK);
  assert_int_equal(accrt_key_generate(instance, &b), ACCRT_OK);
  assert_memory_not_equal(&a, &b, sizeof a);
  assert_int_equal(accrt_key_generate(NULL, &a), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_key_generate(instance, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sha256_vectors),      cmocka_unit_test(sha256_agrees_with_libcrypto),
      cmocka_unit_test(hmac_and_hkdf),       cmocka_unit_test(ed25519_vectors),
      cmocka_unit_test(gcm_vector),          cmocka_unit_test(says_what_is_missing),
      cmocka_unit_test(random_bytes_differ),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
