/* accrt/write/rewrite.h - writes a bundle again: with one more signature, or with its weights
 * encrypted or decrypted.
 *
 * docs/trust.md explains; keys and policies are in accrt/trust.h. Link libaccrt_write. Each
 * function writes a new file beside `path` and renames it when it is complete, over any file that
 * was there, even the bundle's own.
 */
#ifndef ACCRT_WRITE_REWRITE_H_
#define ACCRT_WRITE_REWRITE_H_

#include "accrt/trust.h"

ACCRT_BEGIN

#define ACCRT_SIGN_VOUCH 1u /**< sign machine code that this key has not signed before */
/** Options of accrt_bundle_sign. */
typedef struct accrt_sign_options {
  uint32_t struct_size;
  uint32_t scopes; /**< ACCRT_SCOPE_CODE | ACCRT_SCOPE_WEIGHTS */
  const accrt_chain_t* next;
  const accrt_key_t* private_key;
  uint32_t flags;    /**< ACCRT_SIGN_VOUCH */
  uint32_t reserved; /**< 0 */
} accrt_sign_options_t;
ACCRT_ASSERT_LAYOUT(accrt_sign_options_t, reserved, 32);
#define ACCRT_SIGN_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_sign_options_t)
/** Writes the bundle to `path` with one more signature; the others stay. If it signs the weights,
 * it reads and checks all of them.
 * @return ACCRT_OK; ACCRT_ERROR_PERMISSION_DENIED (machine code that this key has not signed
 *   before, without ACCRT_SIGN_VOUCH: your signature would say that the code is yours);
 *   ACCRT_ERROR_UNSUPPORTED (no libcrypto); ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_IO. Blocks.
 *   Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_sign(accrt_bundle_t* bundle,
                                           const accrt_sign_options_t* options, const char* path);

/** Writes the bundle to `path` with its weights encrypted (AES-256-GCM), as accrt_bundle_sign does.
 * It leaves out signatures of the weights, because the bytes change.
 * @return as accrt_bundle_sign; ACCRT_ERROR_INVALID_STATE (already encrypted, or no weights).
 *   Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_encrypt(accrt_bundle_t* bundle, const accrt_key_t* secret_key,
                                              const char* path);
/** Writes the bundle to `path` with its weights decrypted.
 * @return as accrt_bundle_encrypt; ACCRT_ERROR_INVALID_STATE (not encrypted). Since: 0.3 */
ACCRT_API accrt_status_t accrt_bundle_decrypt(accrt_bundle_t* bundle, const char* path);

ACCRT_END
#endif /* ACCRT_WRITE_REWRITE_H_ */
