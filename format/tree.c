/* format/tree.c - see format/tree.h. It allocates nothing and reads no file. */
#include "format/tree.h"

#include <string.h>

#define PREFIX_BYTES 16u

/* Each kind of digest begins with a text of its own, padded with zeros to 16 bytes, so that bytes
 * of one kind are never valid for another. */
static void begin(accrt_sha256_t* hash, const accrt_crypto_t* crypto, const char* prefix) {
  char padded[PREFIX_BYTES] = "";
  memcpy(padded, prefix, strlen(prefix));
  accrt_sha256_init(hash, crypto);
  accrt_sha256_update(hash, padded, sizeof padded);
}

bool accx_tree_covers(uint32_t type) {
  switch (type) {
  case ACCX_SECTION_CHUNK_DIGESTS:
  case ACCX_SECTION_TREE:
  case ACCX_SECTION_SIGNATURES:
  case ACCX_SECTION_LEAVES:
  case ACCX_SECTION_ENCRYPTION:
  case ACCX_SECTION_TAGS:
  case ACCX_SECTION_DATA:
    return false;
  default:
    return true;
  }
}

/* ---- Code ---- */

void accx_tree_code_begin(accrt_sha256_t* root, const accrt_crypto_t* crypto,
                          uint64_t required_features, uint64_t optional_features,
                          uint32_t covered) {
  begin(root, crypto, "accrt code v1");
  accrt_sha256_update_u64(root, required_features & ~(uint64_t)ACCX_FEATURE_ENCRYPTED_DATA);
  accrt_sha256_update_u64(root, optional_features);
  accrt_sha256_update_u64(root, covered);
}

void accx_tree_code_add(accrt_sha256_t* root, const accx_section_t* section,
                        const unsigned char digest[ACCRT_SHA256_BYTES]) {
  accrt_sha256_update_u32(root, section->type);
  accrt_sha256_update_u32(root, section->flags);
  accrt_sha256_update_u32(root, section->record_bytes);
  accrt_sha256_update_u32(root, section->record_count);
  accrt_sha256_update_u64(root, section->size_bytes);
  accrt_sha256_update(root, section->name, sizeof section->name);
  accrt_sha256_update(root, digest, ACCRT_SHA256_BYTES);
}

/* ---- Weights ---- */

void accx_tree_leaf(const accrt_crypto_t* crypto, uint64_t index, const void* bytes,
                    size_t size_bytes, accx_leaf_t* out_leaf) {
  accrt_sha256_t hash;
  begin(&hash, crypto, "accrt leaf v1");
  accrt_sha256_update_u64(&hash, index);
  accrt_sha256_update_u64(&hash, size_bytes);
  accrt_sha256_update(&hash, bytes, size_bytes);
  accrt_sha256_finish(&hash, out_leaf->bytes);
}

void accx_tree_weight_root(const accrt_crypto_t* crypto, const accx_tree_weights_t* weights,
                           accrt_key_t* out_root) {
  accrt_sha256_t hash;
  begin(&hash, crypto, "accrt weights v1");
  accrt_sha256_update_u64(&hash, weights->data_size_bytes);
  accrt_sha256_update_u64(&hash, weights->chunk_count);
  accrt_sha256_update_u64(&hash, weights->encryption != NULL);
  accrt_sha256_update(&hash, weights->leaves, weights->chunk_count * sizeof(accx_leaf_t));
  if (weights->encryption != NULL) {
    accrt_sha256_update(&hash, weights->encryption, sizeof *weights->encryption);
    accrt_sha256_update(&hash, weights->tags, weights->chunk_count * sizeof(accx_tag_t));
  }
  accrt_sha256_finish(&hash, out_root->bytes);
}

/* ---- Statements ---- */

void accx_tree_statement(uint32_t scope, const accrt_key_t* root,
                         unsigned char out_bytes[ACCX_STATEMENT_BYTES]) {
  static const char prefix[PREFIX_BYTES + 1] = "accrt sign v1\0\0";
  const uint32_t words[2] = {scope, ACCX_TREE_SHA256};
  memcpy(out_bytes, prefix, PREFIX_BYTES);
  for (size_t i = 0; i < 8; ++i)
    out_bytes[PREFIX_BYTES + i] = (unsigned char)(words[i / 4] >> 8 * (i % 4));
  memcpy(out_bytes + PREFIX_BYTES + 8, root->bytes, sizeof root->bytes);
}
