/* format/tree.h - the cryptographic tree of a bundle: what its two roots cover, and what a
 * signature signs. docs/accx-format.md has it byte for byte. It knows no policy (loader/trust.h)
 * and no file. `crypto` may be NULL everywhere: SHA-256 is then done here.
 */
#ifndef ACCRT_FORMAT_TREE_H_
#define ACCRT_FORMAT_TREE_H_

#include <stdbool.h>

#include "format/format.h"
#include "runtime/core/crypto.h"
#include "runtime/core/sha256.h"

/* Whether the code root covers a section of this type. */
bool accx_tree_covers(uint32_t type);

/* The code root of a file with `covered` such sections, which are added in the order of the table;
 * accrt_sha256_finish ends it. */
void accx_tree_code_begin(accrt_sha256_t* root, const accrt_crypto_t* crypto,
                          uint64_t required_features, uint64_t optional_features, uint32_t covered);
void accx_tree_code_add(accrt_sha256_t* root, const accx_section_t* section,
                        const unsigned char digest[ACCRT_SHA256_BYTES]);

void accx_tree_leaf(const accrt_crypto_t* crypto, uint64_t index, const void* bytes,
                    size_t size_bytes, accx_leaf_t* out_leaf);

/* What the weight root covers. */
typedef struct accx_tree_weights {
  uint64_t data_size_bytes;
  const accx_leaf_t* leaves;
  uint32_t chunk_count;
  const accx_encryption_t* encryption; /* NULL: none */
  const accx_tag_t* tags;              /* with `encryption`: of all chunks */
} accx_tree_weights_t;
void accx_tree_weight_root(const accrt_crypto_t* crypto, const accx_tree_weights_t* weights,
                           accrt_key_t* out_root);

/* The bytes that are signed for a root. */
#define ACCX_STATEMENT_BYTES 56u
void accx_tree_statement(uint32_t scope, const accrt_key_t* root,
                         unsigned char out_bytes[ACCX_STATEMENT_BYTES]);

#endif /* ACCRT_FORMAT_TREE_H_ */
