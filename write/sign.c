/* write/sign.c - writes a bundle again with an additional signature, or with its weights encrypted
 * or decrypted. It checks no trust: it signs what its caller names. */
#include <string.h>

#include "accrt/write/rewrite.h"
#include "format/digest.h"
#include "format/encryption.h"
#include "format/tree.h"
#include "format/rules.h"
#include "runtime/core/error.h"
#include "runtime/core/key.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"
#include "write/below.h"
#include "write/rewrite.h"

/* The state of one rewrite. Arrays have an element for each chunk. */
typedef struct work {
  accx_old_t old;
  accrt_crypto_t crypto;
  bool was_encrypted;
  bool encrypts;
  bool decrypts;
  bool has_tree; /* of the new file */
  accx_chunk_key_t chunk_key;
  accx_encryption_t encryption; /* of the new file */
  accx_tag_t* tags;
  accx_digest_t* digests;
  accx_leaf_t* leaves;
  accx_tree_t tree;
  void* old_tags; /* of the old file; NULL when it has none or they are not needed */
  size_t old_tags_bytes;
  void* old_signatures;
  size_t old_signatures_bytes;
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
    ACCRT_TRY(accrt_alloc_array(work->old.allocator, count, element_bytes, &array));
  memcpy(out_array, &array, sizeof array);
  return ACCRT_OK;
}

static accrt_status_t make_arrays(work_t* work) {
  const uint32_t count = work->old.chunk_count;
  work->signature_capacity = work->old.info.signature_count + 2;
  ACCRT_TRY(make_array(work, work->encrypts, count, sizeof(accx_tag_t), &work->tags));
  ACCRT_TRY(make_array(work, work->encrypts || work->decrypts, count, sizeof(accx_digest_t),
                       &work->digests));
  ACCRT_TRY(make_array(work, work->has_tree, count, sizeof(accx_leaf_t), &work->leaves));
  return make_array(work, true, work->signature_capacity, sizeof(accx_signature_t),
                    &work->signatures);
}

static void free_arrays(const work_t* work) {
  const accrt_allocator_t* allocator = work->old.allocator;
  const uint32_t count = work->old.chunk_count;
  accrt_free(allocator, work->old_tags, work->old_tags_bytes);
  accrt_free(allocator, work->old_signatures, work->old_signatures_bytes);
  accrt_free_array(allocator, work->tags, count, sizeof *work->tags);
  accrt_free_array(allocator, work->digests, count, sizeof *work->digests);
  accrt_free_array(allocator, work->leaves, count, sizeof *work->leaves);
  accrt_free_array(allocator, work->signatures, work->signature_capacity, sizeof *work->signatures);
}

/* ---- Chunks ---- */

static accrt_status_t take_chunk(void* user, uint32_t index, void* bytes, size_t size_bytes) {
  work_t* work = user;
  unsigned char nonce[12];
  accrt_key_t bound;
  accx_encryption_nonce(index, nonce);
  memcpy(bound.bytes, work->tree.code_root, sizeof bound.bytes);
  if (work->encrypts && !accrt_crypto_encrypt(&work->crypto, work->chunk_key.bytes, nonce, &bound,
                                              bytes, size_bytes, work->tags[index].bytes))
    return ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses AES-256-GCM");
  if (work->digests != NULL)
    work->digests[index] = accx_digest_of(bytes, size_bytes);
  if (work->leaves != NULL)
    accx_tree_leaf(&work->crypto, index, bytes, size_bytes, &work->leaves[index]);
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
  return accrt_crypto_sign(&work->crypto, work->private_key, statement, sizeof statement,
                           place->signature)
             ? ACCRT_OK
             : ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses to sign with Ed25519");
}

/* Call it when all leaves are computed. count_signatures() gave the number of signatures before. */
static accrt_status_t finish_tree(void* user) {
  work_t* work = user;
  if (!work->has_tree)
    return ACCRT_OK;
  const bool encrypted = (work->was_encrypted && !work->decrypts) || work->encrypts;
  const accx_tree_weights_t weights = {work->old.info.data_size_bytes, work->leaves,
                                       work->old.chunk_count, encrypted ? &work->encryption : NULL,
                                       work->encrypts ? work->tags : work->old_tags};
  accrt_key_t root = {{0}};
  if (work->old.chunk_count > 0)
    accx_tree_weight_root(&work->crypto, &weights, &root);
  work->tree.algorithm = ACCX_TREE_SHA256;
  work->tree.chunk_log2 = ACCX_TREE_CHUNK_LOG2;
  memcpy(work->tree.weight_root, root.bytes, sizeof root.bytes);
  ACCRT_TRY(sign(work, ACCX_SCOPE_CODE));
  return sign(work, ACCX_SCOPE_WEIGHTS);
}

/* Copies the old signatures that stay valid. */
static void keep_signatures(work_t* work) {
  const accx_signature_t* old = work->old_signatures;
  for (uint32_t i = 0; i < work->old.info.signature_count; ++i) {
    if (old[i].scope == ACCX_SCOPE_CODE || work->digests == NULL)
      work->signatures[work->signature_count++] = old[i];
  }
}

/* The number of signatures of the new file. */
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

/* ---- The code root ---- */

static accrt_status_t hash_section(work_t* work, const accx_section_t* section,
                                   unsigned char* piece,
                                   unsigned char out_digest[ACCRT_SHA256_BYTES]) {
  accrt_sha256_t hash;
  accrt_status_t status = ACCRT_OK;
  accrt_sha256_init(&hash, &work->crypto);
  for (uint64_t at = 0; at < section->size_bytes && status == ACCRT_OK;) {
    const uint64_t left = section->size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    status = accx_old_read(&work->old, section, at, piece, size);
    if (status == ACCRT_OK)
      accrt_sha256_update(&hash, piece, (size_t)size);
    at += size;
  }
  accrt_sha256_finish(&hash, out_digest);
  return status;
}

static accrt_status_t hash_code(work_t* work, unsigned char* piece) {
  const accx_old_t* old = &work->old;
  accrt_status_t status = ACCRT_OK;
  accrt_sha256_t root;
  uint32_t covered = 0;
  for (uint32_t i = 0; i < old->info.section_count; ++i)
    covered += accx_tree_covers(old->sections[i].type);
  accx_tree_code_begin(&root, &work->crypto, old->info.required_features,
                       old->info.optional_features, covered);
  for (uint32_t i = 0; i < old->info.section_count && status == ACCRT_OK; ++i) {
    unsigned char digest[ACCRT_SHA256_BYTES];
    if (!accx_tree_covers(old->sections[i].type))
      continue;
    status = hash_section(work, &old->sections[i], piece, digest);
    accx_tree_code_add(&root, &old->sections[i], digest);
  }
  accrt_sha256_finish(&root, work->tree.code_root);
  return status;
}

/* Computes the code root. It must be the one of the file's tree, if there is a tree. */
static accrt_status_t make_code_root(work_t* work) {
  const accx_old_t* old = &work->old;
  const accx_section_t* section = accx_old_section(old, ACCX_SECTION_TREE);
  void* piece;
  accx_tree_t tree;
  ACCRT_TRY(accrt_alloc(old->allocator, ACCX_CHUNK_BYTES, &piece));
  accrt_status_t status = hash_code(work, piece);
  accrt_free(old->allocator, piece, ACCX_CHUNK_BYTES);
  if (status == ACCRT_OK && section != NULL)
    status = accx_old_read(old, section, 0, &tree, sizeof tree);
  if (status != ACCRT_OK || section == NULL ||
      memcmp(tree.code_root, work->tree.code_root, sizeof tree.code_root) == 0)
    return status;
  return ACCRT_FAIL(DATA_CORRUPT, "%s: tree: the code root is not that of the file (rule %d)",
                    old->info.name, ACCX_RULE_CODE_ROOT);
}

/* ---- One rewrite ---- */

static void change(accx_rewrite_t* rewrite, uint32_t type, uint32_t record_bytes, const void* bytes,
                   uint64_t count) {
  rewrite->changes[rewrite->change_count++] =
      (accx_change_t){type, record_bytes, bytes, count * record_bytes};
}

static accrt_status_t run(work_t* work, const char* path) {
  accx_rewrite_t rewrite = {.old = &work->old,
                            .required_features = work->old.info.required_features,
                            .chunk_flags = work->decrypts ? ACCRT_CHUNK_PLAIN : 0,
                            .user = work,
                            .chunk = take_chunk,
                            .finish = finish_tree};
  ACCRT_TRY(make_code_root(work));
  ACCRT_TRY(make_arrays(work));
  keep_signatures(work);
  const uint32_t chunks = work->old.chunk_count;
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
    rewrite.required_features &= ~(uint64_t)ACCX_FEATURE_ENCRYPTED_DATA;
    rewrite.required_features |= work->encrypts ? ACCX_FEATURE_ENCRYPTED_DATA : 0;
  }
  return accx_rewrite(&rewrite, path);
}

/* Loads those parts of the old file that the rewrite needs. */
static accrt_status_t load_old(work_t* work) {
  const accx_old_t* old = &work->old;
  const accx_section_t* encryption = accx_old_section(old, ACCX_SECTION_ENCRYPTION);
  work->has_tree = accx_old_section(old, ACCX_SECTION_TREE) != NULL;
  work->was_encrypted = encryption != NULL;
  if (encryption != NULL) {
    ACCRT_TRY(accx_old_read(old, encryption, 0, &work->encryption, sizeof work->encryption));
    ACCRT_TRY(accx_old_load(old, ACCX_SECTION_TAGS, &work->old_tags, &work->old_tags_bytes));
  }
  return accx_old_load(old, ACCX_SECTION_SIGNATURES, &work->old_signatures,
                       &work->old_signatures_bytes);
}

static accrt_status_t begin_work(const char* operation, accrt_bundle_t* bundle,
                                 const void* argument, const char* argument_name, const char* path,
                                 work_t* out_work) {
  accrt_crypto_reason_t reason;
  accrt_error_enter(operation);
  memset(out_work, 0, sizeof *out_work);
  if (bundle == NULL || argument == NULL || path == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL",
                      bundle == NULL     ? "bundle"
                      : argument == NULL ? argument_name
                                         : "path");
  ACCRT_TRY(accx_old_open(operation, bundle, &out_work->old));
  const char* name = accrt_instance_option(out_work->old.instance, "crypto.library");
  return accrt_crypto_open(&out_work->crypto, name, &reason) ? load_old(out_work)
                                                             : accrt_crypto_fail(&reason);
}

static accrt_status_t end_work(work_t* work, accrt_status_t status) {
  free_arrays(work);
  accrt_wipe(work, sizeof *work);
  return status;
}

/* ---- Signing ---- */

static accrt_status_t has_signed_code(const work_t* work, bool* out_signed) {
  const accx_signature_t* old = work->old_signatures;
  *out_signed = false;
  for (uint32_t i = 0; i < work->old.info.signature_count && !*out_signed; ++i) {
    accrt_signature_info_t info = ACCRT_SIGNATURE_INFO_INIT;
    if (compare(&old[i], ACCX_SCOPE_CODE, work->public_key.bytes) != 0)
      continue;
    ACCRT_TRY(accx_below(work->old.operation, accrt_bundle_signature(work->old.bundle, i, &info)));
    *out_signed = info.valid != 0;
  }
  return ACCRT_OK;
}

static accrt_status_t check_vouch(const work_t* work, uint32_t flags) {
  bool is_signed;
  if ((work->scopes & ACCX_SCOPE_CODE) == 0 || (flags & ACCRT_SIGN_VOUCH) != 0)
    return ACCRT_OK;
  ACCRT_TRY(has_signed_code(work, &is_signed));
  if (is_signed)
    return ACCRT_OK;
  char id[ACCRT_KEY_TEXT_BYTES];
  return ACCRT_FAIL(PERMISSION_DENIED,
                    "%s: %s has not signed its code before: signing it says that you vouch for it "
                    "(ACCRT_SIGN_VOUCH, accx sign --vouch)",
                    work->old.info.name, accrt_key_text(&work->public_key, id));
}

static accrt_status_t read_options(const accrt_sign_options_t* options, const accx_old_t* old,
                                   accrt_sign_options_t* out) {
  ACCRT_TRY(accrt_struct_read("accrt_sign_options_t", options, out, sizeof *out));
  const uint32_t scopes = ACCX_SCOPE_CODE | ACCX_SCOPE_WEIGHTS;
  if (out->scopes == 0 || (out->scopes & ~scopes) != 0 || out->private_key == NULL ||
      (out->flags & ~ACCRT_SIGN_VOUCH) != 0 || out->reserved != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "accrt_sign_options_t: scopes 0x%" PRIx32 ", flags 0x%" PRIx32
                      ", reserved %" PRIu32 ", %s key",
                      out->scopes, out->flags, out->reserved,
                      out->private_key != NULL ? "a" : "no");
  }
  if (old->info.data_size_bytes == 0)
    out->scopes &= ~(uint32_t)ACCX_SCOPE_WEIGHTS;
  if (out->scopes != 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_STATE, "%s: it has no weights to sign", old->info.name);
}

static accrt_status_t sign_work(work_t* work, const accrt_sign_options_t* options,
                                const char* path) {
  accrt_sign_options_t local;
  ACCRT_TRY(read_options(options, &work->old, &local));
  work->scopes = local.scopes;
  work->private_key = local.private_key;
  work->has_tree = true;
  if (!accrt_crypto_public_key(&work->crypto, local.private_key, &work->public_key))
    return ACCRT_FAIL(UNSUPPORTED, "libcrypto refuses Ed25519 keys");
  ACCRT_TRY(check_vouch(work, local.flags));
  return run(work, path);
}

accrt_status_t accrt_bundle_sign(accrt_bundle_t* bundle, const accrt_sign_options_t* options,
                                 const char* path) {
  work_t work;
  accrt_status_t status = begin_work(ACCRT_THIS_FUNCTION, bundle, options, "options", path, &work);
  if (status == ACCRT_OK)
    status = sign_work(&work, options, path);
  return end_work(&work, status);
}

/* ---- Encryption ---- */

static accrt_status_t refuse_state(const work_t* work) {
  return ACCRT_FAIL(INVALID_STATE, "%s: its weights are %s", work->old.info.name,
                    work->was_encrypted          ? "encrypted already"
                    : work->old.chunk_count == 0 ? "none"
                                                 : "not encrypted");
}

static accrt_status_t encrypt_work(work_t* work, const accrt_key_t* secret_key, const char* path) {
  if (work->was_encrypted || work->old.chunk_count == 0)
    return refuse_state(work);
  work->encrypts = true;
  work->encryption = (accx_encryption_t){.algorithm = ACCX_ENCRYPTION_AES256_GCM_BOUND};
  ACCRT_TRY(accrt_random(work->encryption.salt, sizeof work->encryption.salt));
  accx_encryption_key_id(&work->crypto, secret_key, work->encryption.key_id);
  accx_encryption_derive(&work->crypto, secret_key, work->encryption.salt, &work->chunk_key);
  return run(work, path);
}

accrt_status_t accrt_bundle_encrypt(accrt_bundle_t* bundle, const accrt_key_t* secret_key,
                                    const char* path) {
  work_t work;
  accrt_status_t status =
      begin_work(ACCRT_THIS_FUNCTION, bundle, secret_key, "secret_key", path, &work);
  if (status == ACCRT_OK)
    status = encrypt_work(&work, secret_key, path);
  return end_work(&work, status);
}

accrt_status_t accrt_bundle_decrypt(accrt_bundle_t* bundle, const char* path) {
  work_t work;
  accrt_status_t status = begin_work(ACCRT_THIS_FUNCTION, bundle, bundle, "bundle", path, &work);
  if (status == ACCRT_OK && !work.was_encrypted)
    status = refuse_state(&work);
  work.decrypts = true;
  if (status == ACCRT_OK)
    status = run(&work, path);
  return end_work(&work, status);
}
