/* runtime/drivers/common/inner.h - public functions that the library itself calls, without the name
 * that they note for error records. See ACCRT_ENTER_INNER in runtime/core/fork.h. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_INNER_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_INNER_H_

#include "accrt/instance.h"
#include "accrt/stream.h"
#include "runtime/memory/inner.h"

accrt_status_t accrt_inner_semaphore_query(accrt_semaphore_t* semaphore, uint64_t* out_value);
accrt_status_t accrt_inner_semaphore_fail(accrt_semaphore_t* semaphore, accrt_status_t status,
                                          const char* message);
accrt_status_t accrt_inner_semaphore_error(accrt_semaphore_t* semaphore, accrt_error_t* out_error);
accrt_status_t accrt_inner_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                       uint64_t value);
accrt_status_t accrt_inner_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                         uint64_t value);
accrt_status_t accrt_inner_stream_notify(accrt_stream_t* stream,
                                         void (*notify)(void* user, accrt_status_t status),
                                         void* user);
accrt_status_t accrt_inner_stream_copy(accrt_stream_t* stream, const accrt_place_t* source,
                                       const accrt_place_t* target, uint64_t size_bytes);
accrt_status_t accrt_inner_stream_fill(accrt_stream_t* stream, const accrt_place_t* target,
                                       uint64_t size_bytes, uint64_t pattern,
                                       uint32_t pattern_bytes);
accrt_status_t accrt_inner_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns,
                                              uint32_t policy);
accrt_status_t accrt_inner_stream_error(accrt_stream_t* stream, accrt_error_t* out_error);
accrt_status_t accrt_inner_stream_reset(accrt_stream_t* stream);
accrt_status_t accrt_inner_stream_cancel(accrt_stream_t* stream);
accrt_status_t accrt_inner_stream_create(accrt_device_t* device,
                                         const accrt_stream_options_t* options,
                                         accrt_stream_t** out_stream);
accrt_status_t accrt_inner_device_status(accrt_device_t* device);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_INNER_H_ */
