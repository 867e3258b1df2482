/* loader/encryption.h - weights that are encrypted in the file. A chunk's digest is checked, then
 * the chunk is decrypted in its final place. Plaintext is only in anonymous memory. */
#ifndef ACCRT_LOADER_ENCRYPTION_H_
#define ACCRT_LOADER_ENCRYPTION_H_

#include "format/encryption.h"
#include "loader/internal.h"

/* Calls the caller's function for the key, if there is one. Without the key the bundle opens, but
 * its weights cannot be read. */
accrt_status_t accx_encryption_open(accrt_bundle_t* bundle, const accrt_bundle_options_t* options);
void accx_encryption_close(accrt_bundle_t* bundle);
/* ACCRT_ERROR_PERMISSION_DENIED when weights are encrypted and there is no key. */
accrt_status_t accx_encryption_ready(const accrt_bundle_t* bundle);
/* Decrypts a chunk in place. ACCRT_ERROR_DATA_CORRUPT if it is not authentic; the bytes are then
 * zeros. */
accrt_status_t accx_encryption_decrypt(const accrt_bundle_t* bundle, uint32_t chunk, void* bytes,
                                       size_t size_bytes);

#endif /* ACCRT_LOADER_ENCRYPTION_H_ */
