/* loader/tree.c - computes the code root of an open bundle. See loader/tree.h. */
#include "loader/tree.h"

/* ---- Code ---- */

/* State for hashing one section; for CODE, with its host images. */
typedef struct section_hash {
  accrt_bundle_t* bundle;
  const accrt_crypto_t* crypto;
  accrt_sha256_t section;
  accrt_sha256_t image;
  bool image_begun;    /* `image` must be finished */
  accrt_key_t* images; /* NULL: not wanted */
  uint32_t next_image; /* index of the image whose bytes are next */
} section_hash_t;

/* Hashes those bytes of CODE, from `offset` on, that are in host images. Images follow one another
 * in CODE. */
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

/* Hashes a section that open did not copy: CODE or an unknown one. */
static accrt_status_t hash_file(section_hash_t* hash, const accx_section_t* section,
                                unsigned char* piece) {
  accx_source_t* source = &hash->bundle->source;
  for (uint64_t at = 0; at < section->size_bytes;) {
    const uint64_t left = section->size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    ACCRT_TRY(accx_source_read_alone(source, section->offset + at, piece, size));
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

accrt_status_t accx_tree_code_root(accrt_bundle_t* bundle, accrt_key_t* out_root,
                                   accrt_key_t* out_images) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  uint32_t covered = 0;
  for (uint32_t i = 0; i < tables->section_count; ++i)
    covered += accx_tree_covers(tables->sections[i].type);
  void* piece;
  ACCRT_TRY(accrt_alloc(bundle->allocator, ACCX_CHUNK_BYTES, &piece));
  section_hash_t hash = {
      .bundle = bundle, .crypto = accrt_instance_crypto_if(bundle->instance), .images = out_images};
  accrt_sha256_t root;
  accx_tree_code_begin(&root, hash.crypto, tables->header.required_features,
                       tables->header.optional_features, covered);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < tables->section_count && status == ACCRT_OK; ++i) {
    unsigned char digest[ACCRT_SHA256_BYTES];
    if (!accx_tree_covers(tables->sections[i].type))
      continue;
    status = hash_section(&hash, i, piece, digest);
    accx_tree_code_add(&root, &tables->sections[i], digest);
  }
  accrt_sha256_finish(&root, out_root->bytes);
  if (hash.image_begun) {
    unsigned char unused[ACCRT_SHA256_BYTES];
    accrt_sha256_finish(&hash.image, unused);
  }
  accrt_free(bundle->allocator, piece, ACCX_CHUNK_BYTES);
  return status;
}
