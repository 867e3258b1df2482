/* tests/fuzz/trust_fuzz.c - accepted bundles are signed, encrypted and decrypted: what is written must open, be signed validly by the key,
 * verify to the last byte, and come back from encryption as it was. Mutations are those of the container's target. It needs libcrypto;
 * without it nothing is signed. */
#include "accrt/write.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/mutate_file.h"

static accrt_key_t private_key, public_key, secret_key;

static int32_t give_key(void* user, const uint8_t* id, uint8_t* out_key) {
  (void)user, (void)id;
  memcpy(out_key, secret_key.bytes, sizeof secret_key.bytes);
  return 0;
}

/* An instance that trusts the key; NULL where there is no libcrypto. */
static accrt_instance_t* instance(void) {
  static int has_crypto = -1;
  if (has_crypto < 0) {
    memset(private_key.bytes, 7, sizeof private_key.bytes);
    memset(secret_key.bytes, 9, sizeof secret_key.bytes);
    has_crypto = accrt_key_public(fuzz_instance(), &private_key, &public_key) == ACCRT_OK &&
                 accrt_instance_trust_key(fuzz_instance(), &public_key) == ACCRT_OK;
  }
  return has_crypto ? fuzz_instance() : NULL;
}

static void explain(const char* what) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", what, accrt_status_name(error.status), error.message);
  abort();
}

static accrt_bundle_t* open_whole(const char* path) {
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.verify = ACCRT_VERIFY_FULL;
  options.secret_key = give_key;
  accrt_bundle_t* bundle = NULL;
  if (accrt_bundle_open_path(instance(), path, &options, &bundle) != ACCRT_OK)
    explain(path);
  return bundle;
}

static void sign(accrt_bundle_t* bundle) {
  accrt_bundle_trust_t before = ACCRT_BUNDLE_TRUST_INIT, after = ACCRT_BUNDLE_TRUST_INIT;
  accrt_sign_options_t options = ACCRT_SIGN_OPTIONS_INIT;
  options.scopes = ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS;
  options.private_key = &private_key;
  options.flags = ACCRT_SIGN_VOUCH;
  const char* path = fuzz_path("signed.accx");
  if (accrt_bundle_trust(bundle, &before) != ACCRT_OK)
    explain("trust");
  if (accrt_bundle_sign(bundle, &options, path) != ACCRT_OK)
    explain("sign");
  accrt_bundle_t* again = open_whole(path);
  if (accrt_bundle_trust(again, &after) != ACCRT_OK)
    explain("trust of the signed one");
  fuzz_require(after.code_trusted == 1 && after.has_code_root == 1 && after.signature_count >= 1);
  fuzz_require(memcmp(&before.code_root, &after.code_root, sizeof before.code_root) == 0);
  for (uint32_t i = 0; i < after.signature_count; ++i) {
    accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
    fuzz_require(accrt_bundle_signature(again, i, &info) == ACCRT_OK);
    if (memcmp(&info.key, &public_key, sizeof public_key) == 0)
      fuzz_require(info.valid == 1 && info.trusted == 1);
  }
  accrt_bundle_release(again);
}

/* Encrypted and decrypted: twice, so that trees and other things that are made on the way are there the first time. */
static void encrypt(accrt_bundle_t* bundle) {
  const char *encrypted = fuzz_path("encrypted.accx"), *plain = fuzz_path("plain.accx"),
             *plain_again = fuzz_path("plain-again.accx");
  const accrt_status_t status = accrt_bundle_encrypt(bundle, &secret_key, encrypted);
  if (status == ACCRT_ERROR_INVALID_STATE)
    return; /* encrypted already, or there is nothing */
  if (status != ACCRT_OK)
    explain("encrypt");
  accrt_bundle_t* one = open_whole(encrypted);
  if (accrt_bundle_decrypt(one, plain) != ACCRT_OK)
    explain("decrypt");
  accrt_bundle_release(one);
  one = open_whole(plain);
  if (accrt_bundle_encrypt(one, &secret_key, encrypted) != ACCRT_OK)
    explain("encrypt again");
  accrt_bundle_release(one);
  one = open_whole(encrypted);
  if (accrt_bundle_decrypt(one, plain_again) != ACCRT_OK)
    explain("decrypt again");
  accrt_bundle_release(one);
  size_t size, size_again;
  uint8_t *bytes = fuzz_read_file(plain, &size), *again = fuzz_read_file(plain_again, &size_again);
  fuzz_require(size == size_again && memcmp(bytes, again, size) == 0);
  free(bytes);
  free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint8_t* file = fuzz_copy(data, size, 4096);
  accrt_bundle_t* bundle;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.secret_key = give_key;
  options.verify = ACCRT_VERIFY_FULL;
  ++fuzz_inputs;
  if (instance() != NULL &&
      accrt_bundle_open_memory(instance(), file, size, NULL, NULL, &options, &bundle) == ACCRT_OK) {
    ++fuzz_accepted;
    sign(bundle);
    encrypt(bundle);
    accrt_bundle_release(bundle);
  }
  free(file);
  return 0;
}
