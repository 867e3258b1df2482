/* loader/encryption.c - keys and chunks of encrypted weights. See loader/encryption.h. */
#include "loader/encryption.h"

#include "loader/trust.h"
#include "runtime/core/fork.h"
#include "runtime/core/sha256.h"

accrt_status_t accrt_key_id(accrt_instance_t* instance, const accrt_key_t* secret_key,
                            uint8_t* out_id) {
  ACCRT_ENTER(instance, secret_key, out_id);
  accx_encryption_key_id(accrt_instance_crypto_if(instance), secret_key, out_id);
  return ACCRT_OK;
}

static accrt_status_t refuse_key(const accrt_bundle_t* bundle, const char* what) {
  char text[ACCX_DIGEST_TEXT_BYTES];
  return ACCRT_FAIL(PERMISSION_DENIED,
                    "%s: its weights are encrypted with key %s, and %s (rule %d)", bundle->name,
                    accrt_hex(bundle->tables.encryption->key_id, 16, text), what,
                    ACCX_RULE_ENCRYPTION_KEY);
}

accrt_status_t accx_encryption_open(accrt_bundle_t* bundle, const accrt_bundle_options_t* options) {
  const accx_encryption_t* encryption = bundle->tables.encryption;
  if (encryption == NULL || options->secret_key == NULL)
    return ACCRT_OK;
  const accrt_crypto_t* crypto;
  ACCRT_TRY(accrt_instance_crypto(bundle->instance, &crypto));
  accrt_key_t key = {{0}};
  uint8_t id[16];
  accrt_status_t status = ACCRT_OK;
  int32_t refused;
  ACCRT_CALL_USER(refused =
                      options->secret_key(options->secret_key_user, encryption->key_id, key.bytes));
  if (refused != 0)
    status = refuse_key(bundle, "the caller does not have it");
  accx_encryption_key_id(crypto, &key, id);
  if (status == ACCRT_OK && memcmp(id, encryption->key_id, sizeof id) != 0)
    status = refuse_key(bundle, "the caller gave another");
  bundle->is_bound = encryption->algorithm == ACCX_ENCRYPTION_AES256_GCM_BOUND;
  if (status == ACCRT_OK && bundle->is_bound)
    status = accx_trust_code_root(bundle, &bundle->bound_root);
  if (status == ACCRT_OK) {
    accx_chunk_key_t chunk_key;
    accx_encryption_derive(crypto, &key, encryption->salt, &chunk_key);
    memcpy(bundle->chunk_key, chunk_key.bytes, sizeof bundle->chunk_key);
    bundle->crypto = crypto;
    accrt_wipe(&chunk_key, sizeof chunk_key);
  }
  accrt_wipe(&key, sizeof key);
  return status;
}

void accx_encryption_close(accrt_bundle_t* bundle) {
  accrt_wipe(bundle->chunk_key, sizeof bundle->chunk_key);
}

accrt_status_t accx_encryption_ready(const accrt_bundle_t* bundle) {
  if (bundle->tables.encryption == NULL || bundle->crypto != NULL)
    return ACCRT_OK;
  return refuse_key(bundle, "there was no callback to ask for it");
}

accrt_status_t accx_encryption_decrypt(const accrt_bundle_t* bundle, uint32_t chunk, void* bytes,
                                       size_t size_bytes) {
  unsigned char nonce[12];
  accx_encryption_nonce(chunk, nonce);
  if (accrt_crypto_decrypt(bundle->crypto, bundle->chunk_key, nonce,
                           bundle->is_bound ? &bundle->bound_root : NULL, bytes, size_bytes,
                           bundle->tables.tags[chunk].bytes))
    return ACCRT_OK;
  accrt_wipe(bytes, size_bytes); /* the plaintext is not authentic */
  return ACCRT_FAIL(DATA_CORRUPT,
                    "%s: data[%" PRIu32 "]: the chunk of %zu bytes is not what was encrypted "
                    "with this key, or for another program: its tag does not match (rule %d)",
                    bundle->name, chunk, size_bytes, ACCX_RULE_TAG);
}
