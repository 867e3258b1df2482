/* loader/trust.c - checks trees and signatures, and applies the policies that require them. See
 * loader/trust.h. */
#include "loader/trust.h"

#include <stdio.h>

#include "loader/tree.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/key.h"
#include "runtime/core/struct.h"
#include "runtime/core/trust.h"

/* Budget steps for checking one signature. */
#define SIGNATURE_STEPS 4096u

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

/* Stores the first result. Threads that start at the same time each compute one. */
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
  const size_t count = bundle->tables.image_count;
  accrt_key_t* images;
  ACCRT_TRY(ACCRT_NEW_ARRAY(bundle->allocator, count, &images));
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

accrt_status_t accrt_bundle_roots(accrt_bundle_t* bundle, accrt_key_t* out_code,
                                  accrt_key_t* out_weights, bool* out_has_leaves) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  const accx_tree_weights_t weights = {tables->data_size_bytes, tables->leaves, tables->chunk_count,
                                       tables->encryption, tables->tags};
  *out_has_leaves = tables->leaves != NULL;
  memset(out_weights, 0, sizeof *out_weights);
  if (*out_has_leaves)
    accx_tree_weight_root(accrt_instance_crypto_if(bundle->instance), &weights, out_weights);
  return accx_trust_code_root(bundle, out_code);
}

accrt_status_t accrt_bundle_check_leaves(accrt_bundle_t* bundle, uint32_t component,
                                         void* scratch) {
  const accx_component_t* record = &bundle->tables.components[component];
  if (record->size_bytes == 0)
    return ACCRT_OK;
  const uint64_t last = (record->offset_bytes + record->size_bytes - 1) / ACCX_CHUNK_BYTES;
  for (uint64_t chunk = record->offset_bytes / ACCX_CHUNK_BYTES; chunk <= last; ++chunk) {
    const uint64_t left = bundle->tables.data_size_bytes - chunk * ACCX_CHUNK_BYTES;
    ACCRT_TRY(accx_data_file_chunk(bundle, (uint32_t)chunk, scratch));
    ACCRT_TRY(accx_trust_check_leaf(bundle, (uint32_t)chunk, scratch,
                                    (size_t)(left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES)));
  }
  return ACCRT_OK;
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
  return ACCRT_FAIL(DATA_CORRUPT,
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
  ACCRT_TRY(accrt_instance_crypto(bundle->instance, &crypto));
  unsigned char statement[ACCX_STATEMENT_BYTES];
  const accrt_key_t root =
      key_of(signature->scope == ACCX_SCOPE_CODE ? tree->code_root : tree->weight_root);
  const accrt_key_t key = key_of(signature->key);
  accx_tree_statement(signature->scope, &root, statement);
  *out_valid = accrt_crypto_verify(crypto, &key, statement, sizeof statement, signature->signature);
  return ACCRT_OK;
}

/* Searches for a signature of the scope by a trusted key. If there is none, `out_against` gets the
 * fact that speaks against a key which would be trusted otherwise. */
static accrt_status_t find_trusted(accrt_bundle_t* bundle, uint32_t scope, bool* out_found,
                                   accrt_trust_fact_t* out_against) {
  *out_found = false;
  memset(out_against, 0, sizeof *out_against);
  for (uint32_t i = 0; i < bundle->tables.signature_count && !*out_found; ++i) {
    const accrt_key_t key = key_of(bundle->tables.signatures[i].key);
    accrt_trust_fact_t against;
    if (bundle->tables.signatures[i].scope != scope)
      continue;
    if (accrt_trust_allows(bundle->instance, &key, scope, &against))
      ACCRT_TRY(accx_trust_check_signature(bundle, i, out_found));
    else if (against.kind > out_against->kind)
      *out_against = against;
  }
  return ACCRT_OK;
}

#define AGAINST_BYTES 320
/* "whose key expired at ... (FILE)". */
static const char* against_text(const accrt_trust_fact_t* fact, char text[AGAINST_BYTES]) {
  char time[ACCRT_TRUST_TIME_BYTES];
  if (fact->kind == ACCRT_FACT_ROLE)
    (void)snprintf(text, AGAINST_BYTES, "whose key is trusted only for %s (by %s)",
                   fact->roles == ACCX_SCOPE_CODE ? "code" : "weights", fact->source);
  else
    (void)snprintf(text, AGAINST_BYTES, "whose key %s at %s%s%.80s (by %s)",
                   fact->kind == ACCRT_FACT_REVOKED ? "was revoked" : "expired",
                   accrt_trust_time_text(fact->time_s, time), fact->text[0] != '\0' ? ", " : "",
                   fact->text, fact->source);
  return text;
}

#define SIGNERS_BYTES 128
/* "no key", or the keys of a scope's signatures, as many as fit. */
static const char* signers(const accrt_bundle_t* bundle, uint32_t scope, char text[SIGNERS_BYTES]) {
  size_t length = 0;
  (void)snprintf(text, SIGNERS_BYTES, "no key");
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

/* Refuses a signature by a trusted key because of a fact that speaks against the key now. */
static accrt_status_t refuse_signer(const accrt_bundle_t* bundle, const accrt_trust_fact_t* against,
                                    bool is_code) {
  char id[ACCRT_KEY_TEXT_BYTES], text[AGAINST_BYTES];
  return ACCRT_FAIL(UNTRUSTED, "%.100s: its %s is signed by %s, %s (rule %d)", bundle->name,
                    is_code ? "machine code" : "weights' root", accrt_key_text(&against->key, id),
                    against_text(against, text),
                    is_code ? ACCX_RULE_CODE_TRUST : ACCX_RULE_WEIGHT_TRUST);
}

static accrt_status_t is_code_trusted(accrt_bundle_t* bundle, const accrt_key_t* root,
                                      bool* out_trusted, accrt_trust_fact_t* out_against) {
  *out_trusted = accrt_trust_has_root(bundle->instance, root);
  return *out_trusted ? ACCRT_OK : find_trusted(bundle, ACCX_SCOPE_CODE, out_trusted, out_against);
}

/* Checks that the bytes that will run are those under the root. */
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

/* Checks whether the policy allows code of the bundle on the host: the bundle's own code, or a
 * pack's code with arguments from the bundle. */
static accrt_status_t allow_code(accrt_bundle_t* bundle, uint32_t image) {
  if (accrt_instance_host_code_policy(bundle->instance) == ACCRT_HOST_CODE_NONE)
    return refuse_code(bundle, image, true);
  accrt_key_t root;
  bool trusted;
  accrt_trust_fact_t against;
  ACCRT_TRY(accx_trust_code_root(bundle, &root));
  ACCRT_TRY(is_code_trusted(bundle, &root, &trusted, &against));
  if (!trusted && against.kind != ACCRT_FACT_NONE)
    return refuse_signer(bundle, &against, true);
  return trusted ? ACCRT_OK : refuse_code(bundle, image, false);
}

accrt_status_t accrt_bundle_allow_image(accrt_bundle_t* bundle, uint32_t image, const void* bytes) {
  if (accrt_instance_host_code_policy(bundle->instance) == ACCRT_HOST_CODE_ALL)
    return ACCRT_OK;
  ACCRT_TRY(allow_code(bundle, image));
  return check_image(bundle, image, bytes);
}

accrt_status_t accrt_bundle_allow_pack(accrt_bundle_t* bundle, uint32_t image) {
  return accrt_instance_host_code_policy(bundle->instance) == ACCRT_HOST_CODE_ALL
             ? ACCRT_OK
             : allow_code(bundle, image);
}

/* Checks that weights are encrypted as the policy requires. */
static accrt_status_t check_encrypted(const accrt_bundle_t* bundle) {
  const uint32_t wanted = accrt_instance_trust_store(bundle->instance)->encrypted_weights;
  const accx_encryption_t* encryption = bundle->tables.encryption;
  const bool bound =
      encryption != NULL && encryption->algorithm == ACCX_ENCRYPTION_AES256_GCM_BOUND;
  if (bundle->tables.data_size_bytes == 0 || wanted == 0 || bound ||
      (wanted == 1 && encryption != NULL))
    return ACCRT_OK;
  return ACCRT_FAIL(
      UNTRUSTED, "%s: its weights are %s, and trust.encryption is '%s' (accx encrypt) (rule %d)",
      bundle->name, encryption != NULL ? "encrypted without their program" : "not encrypted",
      wanted == 1 ? "required" : "bound", ACCX_RULE_ENCRYPTED);
}

accrt_status_t accx_trust_open(accrt_bundle_t* bundle) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  ACCRT_TRY(check_encrypted(bundle));
  if (tables->data_size_bytes == 0 ||
      accrt_instance_trust_store(bundle->instance)->signed_weights == 0)
    return ACCRT_OK;
  bool trusted;
  ACCRT_TRY(check_weight_root(bundle));
  accrt_trust_fact_t against;
  ACCRT_TRY(find_trusted(bundle, ACCX_SCOPE_WEIGHTS, &trusted, &against));
  bundle->check_leaves = trusted;
  if (trusted)
    return ACCRT_OK;
  if (against.kind != ACCRT_FACT_NONE)
    return refuse_signer(bundle, &against, false);
  char names[SIGNERS_BYTES];
  return ACCRT_FAIL(UNTRUSTED,
                    "%s: its weights are signed by %s, and trust.weights is 'signed'; trust the "
                    "signer's key (accx trust add; trust.keys or ACCRT_TRUST_KEYS) or sign them "
                    "(accx sign --scope weights) (rule %d)",
                    bundle->name, signers(bundle, ACCX_SCOPE_WEIGHTS, names),
                    ACCX_RULE_WEIGHT_TRUST);
}

/* The value of a metadata key, or NULL. */
static const char* metadata(const accrt_bundle_tables_t* tables, const char* key) {
  for (uint32_t i = 0; i < tables->metadata_count; ++i) {
    if (strcmp(accrt_bundle_string(tables, tables->metadata[i].key), key) == 0)
      return accrt_bundle_string(tables, tables->metadata[i].value);
  }
  return NULL;
}

accrt_status_t accrt_bundle_allow_version(const accrt_bundle_t* bundle) {
  const accrt_trust_t* trust = accrt_instance_trust_store(bundle->instance);
  const char* name = metadata(&bundle->tables, "name");
  const char* version = metadata(&bundle->tables, "version");
  accrt_trust_fact_t floor;
  uint64_t number;
  if (name == NULL || !accrt_trust_floor(bundle->instance, name, &floor)) {
    if (trust->required_floors == 0)
      return ACCRT_OK;
    return ACCRT_FAIL(UNTRUSTED,
                      "%.120s: its name (metadata `name`) is %s%.60s%s, which has no floor "
                      "of versions, and trust.floors is 'required' (rule %d)",
                      bundle->name, name != NULL ? "'" : "", name != NULL ? name : "missing",
                      name != NULL ? "'" : "", ACCX_RULE_FLOOR);
  }
  if (version != NULL && accrt_trust_number(version, &number) && number >= floor.version)
    return ACCRT_OK;
  return ACCRT_FAIL(UNTRUSTED,
                    "%.120s: '%.60s' has version %.30s, and nothing below %" PRIu64
                    " is trusted (by %s) (rule %d)",
                    bundle->name, name, version != NULL ? version : "(none)", floor.version,
                    floor.source, ACCX_RULE_FLOOR);
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
  ACCRT_TRY(accx_trust_code_root(bundle, &root));
  ACCRT_TRY(check_weight_root(bundle));
  for (uint32_t i = 0; i < bundle->tables.signature_count; ++i) {
    bool valid;
    ACCRT_TRY(accrt_charge(SIGNATURE_STEPS));
    ACCRT_TRY(accrt_checkpoint());
    ACCRT_TRY(accx_trust_check_signature(bundle, i, &valid));
    if (valid)
      continue;
    char id[ACCRT_KEY_TEXT_BYTES];
    const accrt_key_t key = key_of(bundle->tables.signatures[i].key);
    return ACCRT_FAIL(DATA_CORRUPT,
                      "%s: signatures[%" PRIu32 "]: it is not %s's signature of the %s root "
                      "(rule %d)",
                      bundle->name, i, accrt_key_text(&key, id),
                      bundle->tables.signatures[i].scope == ACCX_SCOPE_CODE ? "code" : "weight",
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
  ACCRT_ENTER(bundle, out_trust);
  const accrt_bundle_tables_t* tables = &bundle->tables;
  accrt_bundle_trust_t found = ACCRT_BUNDLE_TRUST_INIT;
  bool code, weights;
  accrt_trust_fact_t against;
  ACCRT_TRY(accx_trust_code_root(bundle, &found.code_root));
  ACCRT_TRY(check_weight_root(bundle));
  ACCRT_TRY(is_code_trusted(bundle, &found.code_root, &code, &against));
  ACCRT_TRY(find_trusted(bundle, ACCX_SCOPE_WEIGHTS, &weights, &against));
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
  ACCRT_ENTER(bundle, out_info);
  if (index >= bundle->tables.signature_count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "signature %" PRIu32 " of %" PRIu32, index,
                      bundle->tables.signature_count);
  }
  const accx_signature_t* signature = &bundle->tables.signatures[index];
  accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
  bool valid;
  ACCRT_TRY(accx_trust_check_signature(bundle, index, &valid));
  info.scope = signature->scope;
  info.key = key_of(signature->key);
  info.valid = valid;
  accrt_trust_fact_t against;
  info.trusted = accrt_trust_allows(bundle->instance, &info.key, info.scope, &against);
  return accrt_struct_write("accrt_signature_info_t", out_info, &info, sizeof info);
}
