/* runtime/memory/inner.h - public functions that the library itself calls, without the name that
 * they note for error records. See ACCRT_ENTER_INNER in runtime/core/fork.h. */
#ifndef ACCRT_RUNTIME_MEMORY_INNER_H_
#define ACCRT_RUNTIME_MEMORY_INNER_H_

#include "accrt/memory.h"

accrt_status_t accrt_inner_buffer_create(accrt_pool_t* pool, uint64_t size_bytes,
                                         const accrt_buffer_options_t* options,
                                         accrt_buffer_t** out_buffer);
accrt_status_t accrt_inner_buffer_import(accrt_device_t* device, void* pointer, uint64_t size_bytes,
                                         void (*release)(void* user), void* user,
                                         accrt_buffer_t** out_buffer);
accrt_status_t accrt_inner_buffer_info(accrt_buffer_t* buffer, accrt_buffer_info_t* out_info);

/* Returns the device's own pool of a kind. There is one for imports too. */
accrt_status_t accrt_pool_default(accrt_device_t* device, uint32_t kind, accrt_pool_t** out_pool);

#endif /* ACCRT_RUNTIME_MEMORY_INNER_H_ */
