/* loader/tree.c - roots, leaves and statements. See loader/tree.h. */
#include "loader/tree.h"

#define PREFIX_BYTES 16u

/* Each kind of digest begins with a text of its own, padded with zeros to 16 bytes, so that bytes made for one kind are never taken
 * for another. */
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

/* One section in the making, and the host images in it when it is CODE. */
typedef struct section_hash {
  accrt_bundle_t* bundle;
  const accrt_crypto_t* crypto;
  accrt_sha256_t section;
  accrt_sha256_t image;
  bool image_begun;    /* `image` has to be finished */
  accrt_key_t* images; /* NULL: not wanted */
  uint32_t next_image; /* whose bytes are next */
} section_hash_t;

/* Bytes of CODE from `offset` on: what of them is in host images. Images follow one another in CODE. */
static void hash_images(section_hash_t* hash, uint64_t offset, const unsigned char* bytes,
                        uint64_t size_bytes) {
  const accrt_bundle_tables_t* tables = &hash->bundle->tables;
  const uint64_t end = offset + size_bytes;
  for (; hash->next_image < tables->image_count; ++hash->next_image) {
    const accx_image_t* image = &tables->images[hash->next_image];
    const uint64_t image_end = image->offset_bytes + image->size_bytes;
    if (image->offset_bytes >= end && image->size_bytes > 0)
      return;
    if (image->kind == ACCX_IMAGE_HOST_ELF) {
      const uint64_t from = image->offset_bytes > offset ? image->offset_bytes : offset;
      const uint64_t to = image_end < end ? image_end : end;
      if (from == image->offset_bytes)
        accrt_sha256_init(&hash->image, hash->crypto), hash->image_begun = true;
      accrt_sha256_update(&hash->image, bytes + (from - offset), (size_t)(to - from));
      if (to == image_end)
        accrt_sha256_finish(&hash->image, hash->images[hash->next_image].bytes),
            hash->image_begun = false;
    }
    if (image_end > end)
      return;
  }
}

/* What open did not copy: CODE and unknown sections. */
static accrt_status_t hash_file(section_hash_t* hash, const accx_section_t* section,
                                unsigned char* piece) {
  accx_source_t* source = &hash->bundle->source;
  for (uint64_t at = 0; at < section->size_bytes;) {
    const uint64_t left = section->size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    ACCX_TRY(accx_source_read_alone(source, section->offset + at, piece, size));
    accrt_sha256_update(&hash->section, piece, (size_t)size);
    if (section->type == ACCX_SECTION_CODE && hash->images != NULL)
      hash_images(hash, at, piece, size);
    at += size;
  }
  return ACCRT_OK;
}

static accrt_status_t hash_section(section_hash_t* hash, uint32_t index, unsigned char* piece,
                                   unsigned char out_digest[ACCRT_SHA256_BYTES]) {
  const accx_section_t* section = &hash->bundle->tables.sections[index];
  const unsigned char* bytes = accx_section_bytes(hash->bundle, index);
  accrt_sha256_init(&hash->section, hash->crypto);
  accrt_status_t status = ACCRT_OK;
  if (bytes != NULL)
    accrt_sha256_update(&hash->section, bytes, (size_t)section->size_bytes);
  else
    status = hash_file(hash, section, piece);
  accrt_sha256_finish(&hash->section, out_digest);
  return status;
}

static void add_section(accrt_sha256_t* root, const accx_section_t* section,
                        const unsigned char digest[ACCRT_SHA256_BYTES]) {
  accrt_sha256_update_u32(root, section->type);
  accrt_sha256_update_u32(root, section->flags);
  accrt_sha256_update_u32(root, section->record_bytes);
  accrt_sha256_update_u32(root, section->record_count);
  accrt_sha256_update_u64(root, section->size_bytes);
  accrt_sha256_update(root, section->name, sizeof section->name);
  accrt_sha256_update(root, digest, ACCRT_SHA256_BYTES);
}

accrt_status_t accx_tree_code_root(accrt_bundle_t* bundle, accrt_key_t* out_root,
                                   accrt_key_t* out_images) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  uint32_t covered = 0;
  for (uint32_t i = 0; i < tables->section_count; ++i)
    covered += accx_tree_covers(tables->sections[i].type);
  void* piece;
  ACCX_TRY(accrt_alloc(bundle->allocator, ACCX_CHUNK_BYTES, &piece));
  section_hash_t hash = {
      .bundle = bundle, .crypto = accrt_instance_crypto_if(bundle->instance), .images = out_images};
  accrt_sha256_t root;
  begin(&root, hash.crypto, "accrt code v1");
  accrt_sha256_update_u64(&root, tables->header.required_features & ~ACCX_FEATURE_ENCRYPTED_DATA);
  accrt_sha256_update_u64(&root, tables->header.optional_features);
  accrt_sha256_update_u64(&root, covered);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < tables->section_count && status == ACCRT_OK; ++i) {
    unsigned char digest[ACCRT_SHA256_BYTES];
    if (!accx_tree_covers(tables->sections[i].type))
      continue;
    status = hash_section(&hash, i, piece, digest);
    add_section(&root, &tables->sections[i], digest);
  }
  accrt_sha256_finish(&root, out_root->bytes);
  if (hash.image_begun) {
    unsigned char unused[ACCRT_SHA256_BYTES];
    accrt_sha256_finish(&hash.image, unused);
  }
  accrt_free(bundle->allocator, piece, ACCX_CHUNK_BYTES);
  return status;
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
