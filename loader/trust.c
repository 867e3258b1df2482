/* loader/trust.c - checking trees and signatures, and the policies that ask for them. See loader/trust.h. */
#include "loader/trust.h"

#include <stdio.h>

#include "loader/tree.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/key.h"
#include "runtime/core/struct.h"
#include "runtime/core/trust.h"

/* ---- Roots ---- */

static accrt_key_t key_of(const uint8_t bytes[32]) {
  accrt_key_t key;
  memcpy(key.bytes, bytes, sizeof key.bytes);
  return key;
}

static bool same(const accrt_key_t* a, const uint8_t b[32]) {
  return memcmp(a->bytes, b, sizeof a->bytes) == 0;
}

static accrt_status_t reject_root(const accrt_bundle_t* bundle, const char* what, int rule) {
  return ACCRT_FAIL(DATA_CORRUPT, "%s: tree: the %s root is not that of the file (rule %d)",
                    bundle->name, what, rule);
}

/* What was computed first stays; threads that come together compute it each. */
static void keep_root(accrt_bundle_t* bundle, const accrt_key_t* root, accrt_key_t** images) {
  accrt_mutex_lock(&bundle->trust_lock);
  if (!bundle->code_root_known) {
    bundle->code_root = *root;
    bundle->image_roots = *images;
    bundle->code_root_known = true;
    *images = NULL;
  }
  accrt_mutex_unlock(&bundle->trust_lock);
}

static bool known_root(accrt_bundle_t* bundle, accrt_key_t* out_root) {
  accrt_mutex_lock(&bundle->trust_lock);
  const bool known = bundle->code_root_known;
  *out_root = bundle->code_root;
  accrt_mutex_unlock(&bundle->trust_lock);
  return known;
}

accrt_status_t accx_trust_code_root(accrt_bundle_t* bundle, accrt_key_t* out_root) {
  if (known_root(bundle, out_root))
    return ACCRT_OK;
  void* memory;
  const size_t count = bundle->tables.image_count;
  ACCX_TRY(accrt_alloc_array(bundle->allocator, count, sizeof(accrt_key_t), &memory));
  accrt_key_t* images = memory;
  accrt_status_t status = accx_tree_code_root(bundle, out_root, images);
  if (status == ACCRT_OK && bundle->tables.tree != NULL &&
      !same(out_root, bundle->tables.tree->code_root))
    status = reject_root(bundle, "code", ACCX_RULE_CODE_ROOT);
  if (status == ACCRT_OK)
    keep_root(bundle, out_root, &images);
  accrt_free_array(bundle->allocator, images, count, sizeof *images);
  return status;
}

static accrt_status_t check_weight_root(const accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  if (tables->tree == NULL || tables->leaves == NULL)
    return ACCRT_OK;
  const accx_tree_weights_t weights = {tables->data_size_bytes, tables->leaves, tables->chunk_count,
                                       tables->encryption, tables->tags};
  accrt_key_t root;
  accx_tree_weight_root(accrt_instance_crypto_if(bundle->instance), &weights, &root);
  return same(&root, tables->tree->weight_root)
             ? ACCRT_OK
             : reject_root(bundle, "weight", ACCX_RULE_WEIGHT_ROOT);
}

accrt_status_t accx_trust_check_leaf(const accrt_bundle_t* bundle, uint32_t chunk,
                                     const void* bytes, size_t size_bytes) {
  const accx_leaf_t* leaves = bundle->tables.leaves;
  accx_leaf_t found;
  if (leaves == NULL)
    return ACCRT_OK;
  accx_tree_leaf(accrt_instance_crypto_if(bundle->instance), chunk, bytes, size_bytes, &found);
  if (memcmp(&found, &leaves[chunk], sizeof found) == 0)
    return ACCRT_OK;
  return ACCRT_FAIL_INNER(DATA_CORRUPT,
                          "%s: data[%" PRIu32 "]: the chunk of %zu bytes is not what its leaf "
                          "says (rule %d)",
                          bundle->name, chunk, size_bytes, ACCX_RULE_LEAF);
}

/* ---- Signatures ---- */

accrt_status_t accx_trust_check_signature(accrt_bundle_t* bundle, uint32_t index, bool* out_valid) {
  const accx_signature_t* signature = &bundle->tables.signatures[index];
  const accx_tree_t* tree = bundle->tables.tree;
  const accrt_crypto_t* crypto;
  *out_valid = false;
  ACCX_TRY(accrt_instance_crypto(bundle->instance, &crypto));
  unsigned char statement[ACCX_STATEMENT_BYTES];
  const accrt_key_t root =
      key_of(signature->scope == ACCX_SCOPE_CODE ? tree->code_root : tree->weight_root);
  const accrt_key_t key = key_of(signature->key);
  accx_tree_statement(signature->scope, &root, statement);
  *out_valid = accrt_crypto_verify(crypto, &key, statement, sizeof statement, signature->signature);
  return ACCRT_OK;
}

/* Whether a trusted key has signed the scope. */
static accrt_status_t find_trusted(accrt_bundle_t* bundle, uint32_t scope, bool* out_found) {
  *out_found = false;
  for (uint32_t i = 0; i < bundle->tables.signature_count && !*out_found; ++i) {
    const accrt_key_t key = key_of(bundle->tables.signatures[i].key);
    if (bundle->tables.signatures[i].scope != scope || !accrt_trust_has_key(bundle->instance, &key))
      continue;
    ACCX_TRY(accx_trust_check_signature(bundle, i, out_found));
  }
  return ACCRT_OK;
}

#define SIGNERS_BYTES 128
/* "nobody", or whose keys the signatures of a scope name: as many as there is room for. */
static const char* signers(const accrt_bundle_t* bundle, uint32_t scope, char text[SIGNERS_BYTES]) {
  size_t length = 0;
  (void)snprintf(text, SIGNERS_BYTES, "nobody");
  for (uint32_t i = 0; i < bundle->tables.signature_count; ++i) {
    char id[ACCRT_KEY_TEXT_BYTES];
    if (bundle->tables.signatures[i].scope != scope ||
        length + ACCRT_KEY_TEXT_BYTES + 8 > SIGNERS_BYTES)
      continue;
    const accrt_key_t key = key_of(bundle->tables.signatures[i].key);
    length += (size_t)snprintf(text + length, SIGNERS_BYTES - length, "%s%s",
                               length > 0 ? ", " : "", accrt_key_text(&key, id));
  }
  return text;
}

/* ---- Policies ---- */

static accrt_status_t refuse_code(const accrt_bundle_t* bundle, uint32_t image, bool is_none) {
  char names[SIGNERS_BYTES];
  const char* name = accrt_bundle_string(&bundle->tables, bundle->tables.images[image].name);
  return ACCRT_FAIL(
      UNTRUSTED,
      "%.120s: image '%.60s' is machine code for the host, signed by %s, and the policy is '%s'; "
      "to run it, %strust its signer's key (accx trust add; trust.keys or ACCRT_TRUST_KEYS), sign "
      "it with one that is trusted (accx sign), or allow all (trust.policy=all, ACCRT_TRUST=all) "
      "(rule %d)",
      bundle->name, name, signers(bundle, ACCX_SCOPE_CODE, names),
      is_none ? "no-host-code" : "signed", is_none ? "set trust.policy=signed and " : "",
      ACCX_RULE_CODE_TRUST);
}

static accrt_status_t is_code_trusted(accrt_bundle_t* bundle, const accrt_key_t* root,
                                      bool* out_trusted) {
  *out_trusted = accrt_trust_has_root(bundle->instance, root);
  return *out_trusted ? ACCRT_OK : find_trusted(bundle, ACCX_SCOPE_CODE, out_trusted);
}

/* The bytes that are going to run are those that the root was made of. */
static accrt_status_t check_image(const accrt_bundle_t* bundle, uint32_t image, const void* bytes) {
  const accx_image_t* record = &bundle->tables.images[image];
  accrt_sha256_t hash;
  unsigned char digest[ACCRT_SHA256_BYTES];
  accrt_sha256_init(&hash, accrt_instance_crypto_if(bundle->instance));
  accrt_sha256_update(&hash, bytes, (size_t)record->size_bytes);
  accrt_sha256_finish(&hash, digest);
  if (same(&bundle->image_roots[image], digest))
    return ACCRT_OK;
  return ACCRT_FAIL(DATA_CORRUPT,
                    "%s: images[%" PRIu32 "]: '%s' has changed since its signature was checked "
                    "(rule %d)",
                    bundle->name, image, accrt_bundle_string(&bundle->tables, record->name),
                    ACCX_RULE_CODE_CHANGED);
}

accrt_status_t accrt_bundle_allow_image(accrt_bundle_t* bundle, uint32_t image, const void* bytes) {
  const uint32_t policy = accrt_instance_host_code_policy(bundle->instance);
  if (policy == ACCRT_HOST_CODE_ALL)
    return ACCRT_OK;
  if (policy == ACCRT_HOST_CODE_NONE)
    return refuse_code(bundle, image, true);
  accrt_key_t root;
  bool trusted;
  ACCX_TRY(accx_trust_code_root(bundle, &root));
  ACCX_TRY(is_code_trusted(bundle, &root, &trusted));
  return trusted ? check_image(bundle, image, bytes) : refuse_code(bundle, image, false);
}

accrt_status_t accx_trust_open(accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  if (tables->data_size_bytes == 0 ||
      accrt_instance_trust_store(bundle->instance)->signed_weights == 0)
    return ACCRT_OK;
  bool trusted;
  ACCX_TRY(check_weight_root(bundle));
  ACCX_TRY(find_trusted(bundle, ACCX_SCOPE_WEIGHTS, &trusted));
  bundle->check_leaves = trusted;
  if (trusted)
    return ACCRT_OK;
  char names[SIGNERS_BYTES];
  return ACCRT_FAIL(UNTRUSTED,
                    "%s: its weights are signed by %s, and trust.weights is 'signed'; trust the "
                    "signer's key (accx trust add; trust.keys or ACCRT_TRUST_KEYS) or sign them "
                    "(accx sign --scope weights) (rule %d)",
                    bundle->name, signers(bundle, ACCX_SCOPE_WEIGHTS, names),
                    ACCX_RULE_WEIGHT_TRUST);
}

void accx_trust_close(accrt_bundle_t* bundle) {
  accrt_free_array(bundle->allocator, bundle->image_roots, bundle->tables.image_count,
                   sizeof *bundle->image_roots);
  bundle->image_roots = NULL;
}

accrt_status_t accx_trust_verify(accrt_bundle_t* bundle) {
  accrt_key_t root;
  if (bundle->tables.tree == NULL)
    return ACCRT_OK;
  ACCX_TRY(accx_trust_code_root(bundle, &root));
  ACCX_TRY(check_weight_root(bundle));
  for (uint32_t i = 0; i < bundle->tables.signature_count; ++i) {
    bool valid;
    ACCX_TRY(accx_trust_check_signature(bundle, i, &valid));
    if (valid)
      continue;
    char id[ACCRT_KEY_TEXT_BYTES];
    const accrt_key_t key = key_of(bundle->tables.signatures[i].key);
    return ACCRT_FAIL_INNER(DATA_CORRUPT,
                            "%s: signatures[%" PRIu32 "]: it is not %s's signature of the %s root "
                            "(rule %d)",
                            bundle->name, i, accrt_key_text(&key, id),
                            bundle->tables.signatures[i].scope == ACCX_SCOPE_CODE ? "code"
                                                                                  : "weight",
                            ACCX_RULE_SIGNED);
  }
  return ACCRT_OK;
}

/* ---- The public functions ---- */

static bool has_host_code(const accrt_bundle_tables_t* tables) {
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    if (tables->images[i].kind == ACCX_IMAGE_HOST_ELF)
      return true;
  }
  return false;
}

accrt_status_t accrt_bundle_trust(accrt_bundle_t* bundle, accrt_bundle_trust_t* out_trust) {
  ACCX_TRY(accrt_check_fork());
  if (bundle == NULL || out_trust == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "bundle or out_trust is NULL");
  const accrt_bundle_tables_t* tables = &bundle->tables;
  accrt_bundle_trust_t found = ACCRT_BUNDLE_TRUST_INIT;
  bool code, weights;
  ACCX_TRY(accx_trust_code_root(bundle, &found.code_root));
  ACCX_TRY(check_weight_root(bundle));
  ACCX_TRY(is_code_trusted(bundle, &found.code_root, &code));
  ACCX_TRY(find_trusted(bundle, ACCX_SCOPE_WEIGHTS, &weights));
  found.signature_count = tables->signature_count;
  found.has_code_root = tables->tree != NULL;
  found.has_weight_root = tables->leaves != NULL;
  if (tables->leaves != NULL)
    found.weight_root = key_of(tables->tree->weight_root);
  found.code_trusted = code;
  found.weights_trusted = weights;
  found.has_host_code = has_host_code(tables);
  found.encrypted = tables->encryption != NULL;
  return accrt_struct_write("accrt_bundle_trust_t", out_trust, &found, sizeof found);
}

accrt_status_t accrt_bundle_signature(accrt_bundle_t* bundle, uint32_t index,
                                      accrt_signature_info_t* out_info) {
  ACCX_TRY(accrt_check_fork());
  if (bundle == NULL || out_info == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "bundle or out_info is NULL");
  if (index >= bundle->tables.signature_count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "signature %" PRIu32 " of %" PRIu32, index,
                      bundle->tables.signature_count);
  }
  const accx_signature_t* signature = &bundle->tables.signatures[index];
  accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
  bool valid;
  ACCX_TRY(accx_trust_check_signature(bundle, index, &valid));
  info.scope = signature->scope;
  info.key = key_of(signature->key);
  info.valid = valid;
  info.trusted = accrt_trust_has_key(bundle->instance, &info.key);
  return accrt_struct_write("accrt_signature_info_t", out_info, &info, sizeof info);
}
