/* loader/data.h - DATA as a whole, for those who move or use all of it. It knows no device. */
#ifndef ACCRT_LOADER_DATA_H_
#define ACCRT_LOADER_DATA_H_

#include "accrt/bundle.h"

/* Puts the chunks of DATA from offset_bytes (a multiple of ACCX_CHUNK_BYTES) on into `target`, as they are in the file, and checks
 * what is there against their digests while it is in the cache (unless the bundle was opened with ACCRT_VERIFY_NO_DATA).
 * size_bytes ends at a chunk's end or at DATA's. It reads files itself and touches no mapping of theirs. Thread-safe: several
 * threads may read at the same time; may block on the file. Fails as accrt_bundle_constant_component, without a constant's name. */
accrt_status_t accrt_bundle_data_read(accrt_bundle_t* bundle, uint64_t offset_bytes, void* target,
                                      uint64_t size_bytes);

/* Checks (and reads and decrypts, where they are not used in place) those of the `wanted` chunks (a byte for each) that nobody has
 * looked at, unless they come from callbacks, one at a time, or are too few to be worth it, with at most thread_count threads, the caller among them; the others end with it. It tells nothing: whoever uses a chunk that
 * is wrong gets the failure, as without it. */
void accrt_bundle_check_ahead(accrt_bundle_t* bundle, const uint8_t* wanted, uint32_t thread_count);

#endif /* ACCRT_LOADER_DATA_H_ */
