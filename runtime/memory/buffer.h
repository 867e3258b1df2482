/* runtime/memory/buffer.h - functions on buffers for the floors above, beside the public API.
 * Implemented in buffer.c. */
#ifndef ACCRT_RUNTIME_MEMORY_BUFFER_H_
#define ACCRT_RUNTIME_MEMORY_BUFFER_H_

#include <stdbool.h>

#include "accrt/memory.h"
#include "runtime/memory/fence.h"

/* Returns address and size in one call. `out_address` is the address for kernels. */
void accrt_buffer_range(const accrt_buffer_t* buffer, uint64_t* out_address,
                        uint64_t* out_size_bytes);
/* The buffer's address on the host; NULL when the host cannot access it, or was declared not to. */
void* accrt_buffer_host_pointer(const accrt_buffer_t* buffer);
/* The same for plain host memory that no driver pinned or imported; NULL for all other memory. */
void* accrt_buffer_plain_pointer(const accrt_buffer_t* buffer);
/* True when the buffer's memory was all zeros when it was allocated. */
bool accrt_buffer_began_zeroed(const accrt_buffer_t* buffer);
accrt_device_t* accrt_buffer_device(const accrt_buffer_t* buffer);
accrt_device_t* accrt_pool_device(const accrt_pool_t* pool);
/* True when the caller has the only reference and no stream uses the buffer: the caller may
 * overwrite it. */
bool accrt_buffer_is_unshared(accrt_buffer_t* buffer);
/* Notes that `submission` of the fence's stream uses the buffer. The memory is not reused before
 * that submission has ended. */
accrt_status_t accrt_buffer_note_fence(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                       uint64_t submission);
/* The body of accrt_stream_free, for the fence of the stream on which `submission` frees it. */
accrt_status_t accrt_buffer_free_in_order(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                          uint64_t submission);

/* Internal references. They retain the object but not the instance, for objects that end with the
 * instance. A public reference retains the instance too; releasing the instance makes it an
 * internal one. The unref functions allow NULL. */
void accrt_buffer_ref(accrt_buffer_t* buffer);
void accrt_buffer_unref(accrt_buffer_t* buffer);
void accrt_pool_unref(accrt_pool_t* pool);

#endif /* ACCRT_RUNTIME_MEMORY_BUFFER_H_ */
