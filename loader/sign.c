/* loader/sign.c - bundles written again with a signature more, or with their weights encrypted or decrypted. It trusts nobody: what it
 * signs is what its caller says. */
#include "loader/encryption.h"
#include "loader/rewrite.h"
#include "loader/tree.h"
#include "loader/trust.h"
#include "runtime/core/fork.h"
#include "runtime/core/key.h"
#include "runtime/core/struct.h"

/* One file in the making. Arrays have an element for each chunk. */
typedef struct work {
  accrt_bundle_t* bundle;
  const accrt_crypto_t* crypto;
  bool encrypts;
  bool decrypts;
  bool has_tree; /* the new file has one */
  accx_chunk_key_t chunk_key;
  accx_encryption_t encryption; /* of the new file */
  accx_tag_t* tags;
  accx_digest_t* digests;
  accx_leaf_t* leaves;
  accx_tree_t tree;
  accx_signature_t* signatures;
  uint32_t signature_count;
  uint32_t signature_capacity;
  /* Signing: */
  const accrt_key_t* private_key;
  accrt_key_t public_key;
  uint32_t scopes;
} work_t;

/* ---- Memory ---- */

static accrt_status_t make_array(const work_t* work, bool wanted, uint32_t count,
                                 size_t element_bytes, void* out_array) {
  void* array = NULL;
  if (wanted)
    ACCX_TRY(accrt_alloc_array(work->bundle->allocator, count, element_bytes, &array));
  memcpy(out_array, &array, sizeof array);
  return ACCRT_OK;
}

static accrt_status_t make_arrays(work_t* work) {
  const uint32_t count = work->bundle->tables.chunk_count;
  work->signature_capacity = work->bundle->tables.signature_count + 2;
  ACCX_TRY(make_array(work, work->encrypts, count, sizeof(accx_tag_t), &work->tags));
  ACCX_TRY(make_array(work, work->encrypts || work->decrypts, count, sizeof(accx_digest_t),
                      &work->digests));
  ACCX_TRY(make_array(work, work->has_tree, count, sizeof(accx_leaf_t), &work->leaves));
  return make_array(work, true, work->signature_capacity, sizeof(accx_signature_t),
                    &work->signatures);
}

static void free_arrays(const work_t* work) {
  const accrt_allocator_t* allocator = work->bundle->allocator;
  const uint32_t count = work->bundle->tables.chunk_count;
  accrt_free_array(allocator, work->tags, count, sizeof *work->tags);
  accrt_free_array(allocator, work->digests, count, sizeof *work->digests);
  accrt_free_array(allocator, work->leaves, count, sizeof *work->leaves);
  accrt_free_array(allocator, work->signatures, work->signature_capacity, sizeof *work->signatures);
}

/* ---- Chunks ---- */

static accrt_status_t take_chunk(void* user, uint32_t index, void* bytes, size_t size_bytes) {
  work_t* work = user;
  unsigned char nonce[12];
  accx_encryption_nonce(index, nonce);
  if (work->decrypts)
    ACCX_TRY(accx_encryption_decrypt(work->bundle, index, bytes, size_bytes));
  if (work->encrypts && !accrt_crypto_encrypt(work->crypto, work->chunk_key.bytes, nonce, bytes,
                                              size_bytes, work->tags[index].bytes))
    return ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses AES-256-GCM");
  if (work->digests != NULL)
    work->digests[index] = accx_digest_of(bytes, size_bytes);
  if (work->leaves != NULL)
    accx_tree_leaf(work->crypto, index, bytes, size_bytes, &work->leaves[index]);
  return ACCRT_OK;
}

/* ---- Signatures ---- */

static int compare(const accx_signature_t* a, uint32_t scope, const uint8_t key[32]) {
  if (a->scope != scope)
    return a->scope < scope ? -1 : 1;
  return memcmp(a->key, key, sizeof a->key);
}

static accrt_status_t sign(work_t* work, uint32_t scope) {
  accrt_key_t root;
  unsigned char statement[ACCX_STATEMENT_BYTES];
  if ((work->scopes & scope) == 0)
    return ACCRT_OK;
  memcpy(root.bytes, scope == ACCX_SCOPE_CODE ? work->tree.code_root : work->tree.weight_root,
         sizeof root.bytes);
  accx_tree_statement(scope, &root, statement);
  uint32_t at = 0;
  while (at < work->signature_count &&
         compare(&work->signatures[at], scope, work->public_key.bytes) < 0)
    ++at;
  accx_signature_t* place = &work->signatures[at];
  const bool there =
      at < work->signature_count && compare(place, scope, work->public_key.bytes) == 0;
  if (!there)
    memmove(place + 1, place, (work->signature_count++ - at) * sizeof *place);
  *place = (accx_signature_t){.scope = scope, .algorithm = ACCX_SIGNATURE_ED25519};
  memcpy(place->key, work->public_key.bytes, sizeof place->key);
  return accrt_crypto_sign(work->crypto, work->private_key, statement, sizeof statement,
                           place->signature)
             ? ACCRT_OK
             : ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses to sign with Ed25519");
}

/* All leaves are there. The number of signatures was known before (count_signatures). */
static accrt_status_t finish_tree(void* user) {
  work_t* work = user;
  const accrt_bundle_tables_t* tables = &work->bundle->tables;
  if (!work->has_tree)
    return ACCRT_OK;
  const bool encrypted = (tables->encryption != NULL && !work->decrypts) || work->encrypts;
  const accx_tree_weights_t weights = {tables->data_size_bytes, work->leaves, tables->chunk_count,
                                       encrypted ? &work->encryption : NULL,
                                       work->encrypts ? work->tags : tables->tags};
  accrt_key_t root = {{0}};
  if (tables->chunk_count > 0)
    accx_tree_weight_root(work->crypto, &weights, &root);
  work->tree.algorithm = ACCX_TREE_SHA256;
  work->tree.chunk_log2 = ACCX_TREE_CHUNK_LOG2;
  memcpy(work->tree.weight_root, root.bytes, sizeof root.bytes);
  ACCX_TRY(sign(work, ACCX_SCOPE_CODE));
  return sign(work, ACCX_SCOPE_WEIGHTS);
}

/* Those that stay. */
static void keep_signatures(work_t* work) {
  const accrt_bundle_tables_t* tables = &work->bundle->tables;
  for (uint32_t i = 0; i < tables->signature_count; ++i) {
    if (tables->signatures[i].scope == ACCX_SCOPE_CODE || work->digests == NULL)
      work->signatures[work->signature_count++] = tables->signatures[i];
  }
}

/* How many there will be. */
static uint32_t count_signatures(const work_t* work) {
  uint32_t count = work->signature_count;
  for (uint32_t scope = ACCX_SCOPE_CODE; scope <= ACCX_SCOPE_WEIGHTS; ++scope) {
    bool there = (work->scopes & scope) == 0;
    for (uint32_t i = 0; i < work->signature_count && !there; ++i)
      there = compare(&work->signatures[i], scope, work->public_key.bytes) == 0;
    count += !there;
  }
  return count;
}

/* ---- One rewrite ---- */

static void change(accx_rewrite_t* rewrite, uint32_t type, uint32_t record_bytes, const void* bytes,
                   uint64_t count) {
  rewrite->changes[rewrite->change_count++] =
      (accx_change_t){type, record_bytes, bytes, count * record_bytes};
}

static accrt_status_t run(work_t* work, const char* path) {
  const accrt_bundle_tables_t* tables = &work->bundle->tables;
  accx_rewrite_t rewrite = {.bundle = work->bundle,
                            .required_features = tables->header.required_features,
                            .user = work,
                            .chunk = take_chunk,
                            .finish = finish_tree};
  accrt_key_t root;
  ACCX_TRY(accx_trust_code_root(work->bundle, &root));
  memcpy(work->tree.code_root, root.bytes, sizeof root.bytes);
  ACCX_TRY(make_arrays(work));
  keep_signatures(work);
  const uint32_t chunks = tables->chunk_count;
  if (work->has_tree) {
    change(&rewrite, ACCX_SECTION_TREE, sizeof(accx_tree_t), &work->tree, 1);
    change(&rewrite, ACCX_SECTION_SIGNATURES, sizeof(accx_signature_t), work->signatures,
           count_signatures(work));
    change(&rewrite, ACCX_SECTION_LEAVES, sizeof(accx_leaf_t), work->leaves, chunks);
  }
  if (work->digests != NULL) {
    change(&rewrite, ACCX_SECTION_CHUNK_DIGESTS, sizeof(accx_digest_t), work->digests, chunks);
    change(&rewrite, ACCX_SECTION_ENCRYPTION, sizeof(accx_encryption_t), &work->encryption,
           work->encrypts);
    change(&rewrite, ACCX_SECTION_TAGS, sizeof(accx_tag_t), work->tags,
           work->encrypts ? chunks : 0);
    rewrite.required_features &= ~ACCX_FEATURE_ENCRYPTED_DATA;
    rewrite.required_features |= work->encrypts ? ACCX_FEATURE_ENCRYPTED_DATA : 0;
  }
  return accx_rewrite(&rewrite, path);
}

static accrt_status_t begin_work(const char* operation, accrt_bundle_t* bundle,
                                 const void* argument, const char* path, work_t* out_work) {
  ACCX_TRY(accrt_check_fork_in(operation));
  if (bundle == NULL || argument == NULL || path == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "an argument is NULL");
  *out_work = (work_t){.bundle = bundle, .has_tree = bundle->tables.tree != NULL};
  if (bundle->tables.encryption != NULL)
    out_work->encryption = *bundle->tables.encryption;
  return accrt_instance_crypto(bundle->instance, &out_work->crypto);
}

static accrt_status_t end_work(work_t* work, accrt_status_t status) {
  free_arrays(work);
  accrt_wipe(work, sizeof *work);
  return status;
}

/* ---- Signing ---- */

static accrt_status_t has_signed_code(const work_t* work, bool* out_signed) {
  const accrt_bundle_tables_t* tables = &work->bundle->tables;
  *out_signed = false;
  for (uint32_t i = 0; i < tables->signature_count && !*out_signed; ++i) {
    if (compare(&tables->signatures[i], ACCX_SCOPE_CODE, work->public_key.bytes) == 0)
      ACCX_TRY(accx_trust_check_signature(work->bundle, i, out_signed));
  }
  return ACCRT_OK;
}

static accrt_status_t check_vouch(const work_t* work, uint32_t flags) {
  bool is_signed;
  if ((work->scopes & ACCX_SCOPE_CODE) == 0 || (flags & ACCRT_SIGN_VOUCH) != 0)
    return ACCRT_OK;
  ACCX_TRY(has_signed_code(work, &is_signed));
  if (is_signed)
    return ACCRT_OK;
  char id[ACCRT_KEY_TEXT_BYTES];
  return ACCRT_FAIL(PERMISSION_DENIED,
                    "%s: %s has not signed its code before: signing it says that you vouch for it "
                    "(ACCRT_SIGN_VOUCH, accx sign --vouch)",
                    work->bundle->name, accrt_key_text(&work->public_key, id));
}

static accrt_status_t read_options(const accrt_sign_options_t* options,
                                   const accrt_bundle_t* bundle, accrt_sign_options_t* out) {
  ACCX_TRY(accrt_struct_read("accrt_sign_options_t", options, out, sizeof *out));
  const uint32_t scopes = ACCX_SCOPE_CODE | ACCX_SCOPE_WEIGHTS;
  if (out->scopes == 0 || (out->scopes & ~scopes) != 0 || out->private_key == NULL ||
      (out->flags & ~ACCRT_SIGN_VOUCH) != 0 || out->reserved != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "accrt_sign_options_t: scopes 0x%" PRIx32 ", flags 0x%" PRIx32
                      ", reserved %" PRIu32 ", %s key",
                      out->scopes, out->flags, out->reserved,
                      out->private_key != NULL ? "a" : "no");
  }
  if (bundle->tables.data_size_bytes == 0)
    out->scopes &= ~(uint32_t)ACCX_SCOPE_WEIGHTS;
  if (out->scopes != 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_STATE, "%s: it has no weights to sign", bundle->name);
}

accrt_status_t accrt_bundle_sign(accrt_bundle_t* bundle, const accrt_sign_options_t* options,
                                 const char* path) {
  work_t work;
  accrt_sign_options_t local;
  ACCX_TRY(begin_work(__func__, bundle, options, path, &work));
  ACCX_TRY(read_options(options, bundle, &local));
  work.scopes = local.scopes;
  work.private_key = local.private_key;
  work.has_tree = true;
  if (!accrt_crypto_public_key(work.crypto, local.private_key, &work.public_key))
    return ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses Ed25519 keys");
  ACCX_TRY(check_vouch(&work, local.flags));
  return end_work(&work, run(&work, path));
}

/* ---- Encryption ---- */

static accrt_status_t refuse_state(const accrt_bundle_t* bundle) {
  return ACCRT_FAIL(INVALID_STATE, "%s: its weights are %s", bundle->name,
                    bundle->tables.encryption != NULL ? "encrypted already"
                    : bundle->tables.chunk_count == 0 ? "none"
                                                      : "not encrypted");
}

accrt_status_t accrt_bundle_encrypt(accrt_bundle_t* bundle, const accrt_key_t* secret_key,
                                    const char* path) {
  work_t work;
  ACCX_TRY(begin_work(__func__, bundle, secret_key, path, &work));
  if (bundle->tables.encryption != NULL || bundle->tables.chunk_count == 0)
    return refuse_state(bundle);
  work.encrypts = true;
  work.encryption = (accx_encryption_t){.algorithm = ACCX_ENCRYPTION_AES256_GCM};
  ACCX_TRY(accrt_random(work.encryption.salt, sizeof work.encryption.salt));
  accx_encryption_key_id(work.crypto, secret_key, work.encryption.key_id);
  accx_encryption_derive(work.crypto, secret_key, work.encryption.salt, &work.chunk_key);
  return end_work(&work, run(&work, path));
}

accrt_status_t accrt_bundle_decrypt(accrt_bundle_t* bundle, const char* path) {
  work_t work;
  ACCX_TRY(begin_work(__func__, bundle, bundle, path, &work));
  if (bundle->tables.encryption == NULL)
    return refuse_state(bundle);
  ACCX_TRY(accx_encryption_ready(bundle));
  work.decrypts = true;
  return end_work(&work, run(&work, path));
}
