/* write/writer_sign.c - signs a bundle while it is written: code root, leaves, signatures. It knows
 * no key and no file: it calls the user's signer. docs/accx-format.md says what the tree covers. */
#include "format/tree.h"
#include "write/writer.h"

struct writer_signing {
  accrt_writer_signer_t signer;
  accrt_crypto_t crypto;
  bool has_crypto; /* otherwise the library's own SHA-256 is used */
  bool has_root;
  accrt_key_t code_root; /* of the last bundle that was written or checked */
};

static struct writer_signing* signs(const accrt_bundle_writer_t* writer) {
  return writer->signing != NULL && writer->signing->signer.sign != NULL ? writer->signing : NULL;
}

static const accrt_crypto_t* crypto_of(const struct writer_signing* signing) {
  return signing->has_crypto ? &signing->crypto : NULL;
}

void accx_writer_free_signing(accrt_bundle_writer_t* writer) {
  accrt_free(&writer->allocator, writer->signing, sizeof *writer->signing);
  writer->signing = NULL;
}

accrt_status_t accrt_bundle_writer_set_signer(accrt_bundle_writer_t* writer,
                                              const accrt_writer_signer_t* signer) {
  WRITER_ENTER(writer, NULL, NULL);
  accrt_crypto_reason_t reason;
  void* memory;
  if (signer == NULL) {
    accx_writer_free_signing(writer);
    return ACCRT_OK;
  }
  if (writer->signing == NULL) {
    ACCRT_TRY(accrt_alloc(&writer->allocator, sizeof *writer->signing, &memory));
    writer->signing = memory;
    *writer->signing = (struct writer_signing){.has_crypto = false};
    writer->signing->has_crypto = accrt_crypto_open(&writer->signing->crypto, NULL, &reason);
  }
  writer->signing->signer = *signer;
  writer->signing->has_root = false;
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_code_root(accrt_bundle_writer_t* writer,
                                             unsigned char* out_root) {
  if (out_root != NULL)
    memset(out_root, 0, sizeof(accrt_key_t));
  WRITER_ENTER(writer, NULL, NULL);
  if (out_root == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "out_root is NULL");
  if (writer->signing == NULL || !writer->signing->has_root)
    return WRITER_FAIL(writer, INVALID_STATE, "nothing was written since a signer was set");
  memcpy(out_root, writer->signing->code_root.bytes, sizeof(accrt_key_t));
  return ACCRT_OK;
}

/* ---- While writing ---- */

bool accx_writer_makes_root(const accrt_bundle_writer_t* writer,
                            const struct accrt_crypto** out_crypto) {
  *out_crypto = writer->signing != NULL ? crypto_of(writer->signing) : NULL;
  return writer->signing != NULL;
}

/* True when the target's readers know signatures. */
static bool target_knows(const writer_encoder_t* encoder) {
  static const uint8_t types[] = {ACCX_SECTION_TREE, ACCX_SECTION_SIGNATURES, ACCX_SECTION_LEAVES};
  bool known = true;
  for (uint32_t i = 0; i < sizeof types; ++i)
    known = known && (encoder->known[ACCX_NUMBERS_SECTION] >> types[i] & 1) != 0;
  return known || !encoder->writer->has_target;
}

accrt_status_t accx_writer_place_signatures(writer_encoder_t* encoder) {
  accrt_bundle_writer_t* writer = encoder->writer;
  const struct writer_signing* signing = signs(writer);
  if (signing == NULL || !target_knows(encoder))
    return ACCRT_OK;
  for (uint32_t i = 0; i < writer->items[WRITER_SECTION].count; ++i) {
    const writer_section_t* raw = WRITER_ITEM(writer, section, WRITER_SECTION, i);
    if (accx_section_kind(raw->type) != NULL)
      return WRITER_FAIL(writer, INVALID_ARGUMENT,
                         "a bundle that is given its tree, signatures or encryption as bytes "
                         "(section %.16s) is not signed too",
                         raw->name);
  }
  const uint32_t chunks = encoder->sections[ACCX_SECTION_CHUNK_DIGESTS].count;
  ACCRT_TRY(accx_writer_make_records(encoder, ACCX_SECTION_TREE, 1));
  ACCRT_TRY(accx_writer_make_records(encoder, ACCX_SECTION_SIGNATURES, chunks != 0 ? 2 : 1));
  ACCRT_TRY(accx_writer_make_records(encoder, ACCX_SECTION_LEAVES, chunks));
  accx_tree_t* tree = (accx_tree_t*)(void*)encoder->sections[ACCX_SECTION_TREE].data;
  tree->algorithm = ACCX_TREE_SHA256;
  tree->chunk_log2 = ACCX_TREE_CHUNK_LOG2;
  const writer_items_t* signatures = &encoder->sections[ACCX_SECTION_SIGNATURES];
  for (uint32_t i = 0; i < signatures->count; ++i) {
    accx_signature_t* record = (accx_signature_t*)(void*)signatures->data + i;
    record->scope = i == 0 ? ACCX_SCOPE_CODE : ACCX_SCOPE_WEIGHTS;
    record->algorithm = ACCX_SIGNATURE_ED25519;
    memcpy(record->key, signing->signer.public_key, sizeof record->key);
  }
  return ACCRT_OK;
}

void accx_writer_make_root(writer_encoder_t* encoder) {
  struct writer_signing* signing = encoder->writer->signing;
  accrt_sha256_t root;
  uint32_t covered = 0;
  if (signing == NULL)
    return;
  for (uint32_t i = 0; i < encoder->part_count; ++i)
    covered += accx_tree_covers(encoder->parts[i].section.type);
  accx_tree_code_begin(&root, crypto_of(signing), encoder->header.required_features,
                       encoder->header.optional_features, covered);
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    const writer_part_t* part = &encoder->parts[i];
    if (accx_tree_covers(part->section.type))
      accx_tree_code_add(&root, &part->section, part->sha256);
  }
  accrt_sha256_finish(&root, signing->code_root.bytes);
  signing->has_root = true;
}

void accx_writer_leaf(writer_encoder_t* encoder, uint64_t index, const void* bytes,
                      size_t size_bytes) {
  const struct writer_signing* signing = signs(encoder->writer);
  writer_items_t* leaves = &encoder->sections[ACCX_SECTION_LEAVES];
  if (signing != NULL && leaves->count != 0)
    accx_tree_leaf(crypto_of(signing), index, bytes, size_bytes,
                   (accx_leaf_t*)(void*)leaves->data + index);
}

static accrt_status_t sign(const accrt_bundle_writer_t* writer, const accrt_key_t* root,
                           accx_signature_t* record) {
  const accrt_writer_signer_t* signer = &writer->signing->signer;
  unsigned char statement[ACCX_STATEMENT_BYTES];
  accx_tree_statement(record->scope, root, statement);
  int32_t error;
  ACCRT_CALL_USER(error =
                      signer->sign(signer->self, statement, sizeof statement, record->signature));
  if (error == 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, error, "signing the %s: %s",
                          record->scope == ACCX_SCOPE_CODE ? "code" : "weights", strerror(error));
}

accrt_status_t accx_writer_sign(writer_encoder_t* encoder) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const struct writer_signing* signing = signs(writer);
  const writer_items_t* signatures = &encoder->sections[ACCX_SECTION_SIGNATURES];
  if (signing == NULL || signatures->count == 0)
    return ACCRT_OK;
  const writer_items_t* leaves = &encoder->sections[ACCX_SECTION_LEAVES];
  accx_tree_t* tree = (accx_tree_t*)(void*)encoder->sections[ACCX_SECTION_TREE].data;
  accx_signature_t* records = (accx_signature_t*)(void*)signatures->data;
  const accx_tree_weights_t weights = {encoder->pulled_bytes[WRITER_PULLED_DATA],
                                       (const accx_leaf_t*)(const void*)leaves->data, leaves->count,
                                       NULL, NULL};
  memcpy(tree->code_root, signing->code_root.bytes, sizeof tree->code_root);
  ACCRT_TRY(sign(writer, &signing->code_root, &records[0]));
  if (leaves->count == 0)
    return ACCRT_OK;
  accrt_key_t root;
  accx_tree_weight_root(crypto_of(signing), &weights, &root);
  memcpy(tree->weight_root, root.bytes, sizeof tree->weight_root);
  return sign(writer, &root, &records[1]);
}
