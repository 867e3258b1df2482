/* loader/verify_trust.c - the records of the cryptographic tree, of signatures and of encryption
 * (rules 140, 141, 150). The records alone prove nothing: a policy that requires them computes the
 * digests from the file's bytes. Reads private memory only. */
#include "loader/internal.h"

static bool is_zero(const uint8_t* bytes, size_t count) {
  uint8_t any = 0;
  for (size_t i = 0; i < count; ++i)
    any |= bytes[i];
  return any == 0;
}

static accrt_status_t check_tree(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_tree_t* tree = tables->tree;
  if (tree == NULL ||
      (tree->algorithm == ACCX_TREE_SHA256 && tree->chunk_log2 == ACCX_TREE_CHUNK_LOG2 &&
       tree->reserved == 0 && tables->leaf_count == tables->chunk_count &&
       (tables->leaf_count > 0 || is_zero(tree->weight_root, sizeof tree->weight_root))))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, TREE, "tree", 0, NULL,
                     "algorithm %" PRIu32 ", chunks of 2^%" PRIu32 " bytes, reserved %" PRIu64
                     ", %" PRIu32 " leaves of %" PRIu32 " chunks",
                     tree->algorithm, tree->chunk_log2, tree->reserved, tables->leaf_count,
                     tables->chunk_count);
}

static bool signature_follows(const accx_signature_t* before, const accx_signature_t* signature) {
  if (signature->scope != before->scope)
    return signature->scope > before->scope;
  return memcmp(signature->key, before->key, sizeof before->key) > 0;
}

static accrt_status_t check_signatures(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  for (uint32_t i = 0; i < tables->signature_count; ++i) {
    const accx_signature_t* signature = &tables->signatures[i];
    const bool known =
        (signature->scope == ACCX_SCOPE_CODE || signature->scope == ACCX_SCOPE_WEIGHTS) &&
        signature->algorithm == ACCX_SIGNATURE_ED25519 && signature->reserved == 0 &&
        (signature->scope == ACCX_SCOPE_CODE || tables->leaf_count > 0);
    if (known && (i == 0 || signature_follows(signature - 1, signature)))
      continue;
    return ACCX_REJECT(verifier, SIGNATURE, "signatures", i, NULL,
                       "scope %" PRIu32 ", algorithm %" PRIu32 ", reserved %" PRIu64
                       ", without leaves, or not after the one before it",
                       signature->scope, signature->algorithm, signature->reserved);
  }
  return ACCRT_OK;
}

static accrt_status_t check_encryption(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_encryption_t* encryption = tables->encryption;
  const bool wanted = (tables->header.required_features & ACCX_FEATURE_ENCRYPTED_DATA) != 0;
  if (wanted == (encryption != NULL) &&
      (encryption == NULL || ((encryption->algorithm == ACCX_ENCRYPTION_AES256_GCM ||
                               encryption->algorithm == ACCX_ENCRYPTION_AES256_GCM_BOUND) &&
                              encryption->reserved == 0 && encryption->reserved_2 == 0)))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, ENCRYPTION, "encryption", ACCX_NONE, NULL,
                     "required features 0x%" PRIx64 ", %s, algorithm %" PRIu32,
                     tables->header.required_features,
                     encryption != NULL ? "a record" : "no record",
                     encryption != NULL ? encryption->algorithm : 0);
}

accrt_status_t accx_verify_trust(accx_verifier_t* verifier) {
  ACCRT_TRY(check_tree(verifier));
  ACCRT_TRY(check_signatures(verifier));
  return check_encryption(verifier);
}
