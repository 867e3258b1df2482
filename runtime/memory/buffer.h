/* runtime/memory/buffer.h - what the floors above may use of buffers beside the public API. Implemented in buffer.c. */
#ifndef ACCRT_RUNTIME_MEMORY_BUFFER_H_
#define ACCRT_RUNTIME_MEMORY_BUFFER_H_

#include <stdbool.h>

#include "accrt/memory.h"

/* Address and size without a call per field; `out_address` is what kernels get. */
void accrt_buffer_range(const accrt_buffer_t* buffer, uint64_t* out_address,
                        uint64_t* out_size_bytes);
/* Where the host reaches it; NULL when it does not, or is said not to. */
void* accrt_buffer_host_pointer(const accrt_buffer_t* buffer);
/* The same for plain host memory, which no driver has pinned or imported; NULL for all other. */
void* accrt_buffer_plain_pointer(const accrt_buffer_t* buffer);
accrt_device_t* accrt_buffer_device(const accrt_buffer_t* buffer);
/* True when the caller's reference is the only one and no stream still uses the buffer: it may be written anew. */
bool accrt_buffer_is_unshared(accrt_buffer_t* buffer);
/* Notes that `submission` of `stream` uses the buffer: its memory is not reused before that has ended. */
accrt_status_t accrt_buffer_note_use(accrt_buffer_t* buffer, accrt_stream_t* stream,
                                     uint64_t submission);

/* Internal references: they hold the object and not the instance, for what ends with it. A public reference holds the instance too,
 * and becomes an internal one by a release of the instance. NULL is allowed for the unref functions. */
void accrt_buffer_ref(accrt_buffer_t* buffer);
void accrt_buffer_unref(accrt_buffer_t* buffer);
void accrt_pool_unref(accrt_pool_t* pool);

#endif /* ACCRT_RUNTIME_MEMORY_BUFFER_H_ */
