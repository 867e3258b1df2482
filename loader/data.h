/* loader/data.h - copies and checks of large parts of DATA. It knows no device. */
#ifndef ACCRT_LOADER_DATA_H_
#define ACCRT_LOADER_DATA_H_

#include "accrt/bundle.h"

/* Copies the chunks of DATA from offset_bytes (a multiple of ACCX_CHUNK_BYTES) on to `target`, as
 * they are in the file. It checks the copy against their digests while it is in the cache (unless
 * the bundle was opened with ACCRT_VERIFY_NO_DATA). size_bytes must end at the end of a chunk or of
 * DATA. Files are read, never mapped. Thread-safe: several threads may read at the same time; may
 * block on the file. Fails as accrt_bundle_constant_component, but without a constant's name. */
accrt_status_t accrt_bundle_data_read(accrt_bundle_t* bundle, uint64_t offset_bytes, void* target,
                                      uint64_t size_bytes);

/* Checks the unchecked ones of the `wanted` chunks (one byte per chunk) with at most thread_count
 * threads, including the caller's; the others end with the call. Chunks that are not used in place
 * are also read and decrypted. It does nothing when callbacks read one chunk at a time, or when
 * there are too few chunks. It reports no failure: the first user of a corrupt chunk gets it. */
void accrt_bundle_check_ahead(accrt_bundle_t* bundle, const uint8_t* wanted, uint32_t thread_count);

#endif /* ACCRT_LOADER_DATA_H_ */
