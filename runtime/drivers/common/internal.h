/* runtime/drivers/common/internal.h - what the program layer and abi/ may use of instances, devices, buffers and streams.
 *
 * Everything here is implemented in runtime/core, runtime/memory and runtime/drivers/common. It may not mention bundles or
 * programs. The structs behind the handles are private to those folders; this header is the door.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_INTERNAL_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_INTERNAL_H_

#include <stdbool.h>

#include "accrt/commands.h"
#include "accrt/instance.h"
#include "accrt/memory.h"
#include "accrt/stream.h"
#include "accrt/sys/driver.h"
#include "accrt/tensor.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/pack.h"

/* ---- Device ---- */
const accrt_driver_table_t* accrt_device_driver_table(const accrt_device_t* device);
accrt_driver_device_t* accrt_device_driver_device(const accrt_device_t* device);
/* As accrt_device_info, without copying. */
const accrt_device_info_t* accrt_device_facts(const accrt_device_t* device);

/* ---- Internal references: they hold the object and not the instance, for what ends with it ---- */
/* A public reference holds the instance too, and becomes an internal one by a release of the instance. NULL is allowed for the
 * unref functions of buffers and pools. */
void accrt_buffer_ref(accrt_buffer_t* buffer);
void accrt_buffer_unref(accrt_buffer_t* buffer);
void accrt_pool_unref(accrt_pool_t* pool);
void accrt_stream_unref(accrt_stream_t* stream);

/* ---- Buffers ---- */
/* Address and size without a call per field; `out_address` is what kernels get. */
void accrt_buffer_range(const accrt_buffer_t* buffer, uint64_t* out_address,
                        uint64_t* out_size_bytes);
accrt_device_t* accrt_buffer_device(const accrt_buffer_t* buffer);
/* True when the caller's reference is the only one and no stream still uses the buffer: it may be written anew. */
bool accrt_buffer_is_unshared(accrt_buffer_t* buffer);
/* Notes that `submission` of `stream` uses the buffer: its memory is not reused before that has ended. */
accrt_status_t accrt_buffer_note_use(accrt_buffer_t* buffer, accrt_stream_t* stream,
                                     uint64_t submission);

/* ---- Streams ---- */

/* A driver list to be executed in stream order. Arrays are copied when the stream must defer. */
typedef struct accrt_stream_work {
  accrt_driver_list_t* list;
  const accrt_driver_binding_t* bindings;
  const uint64_t* scalars;
  uint32_t binding_count;
  uint32_t scalar_count;
  const char* name; /* for traces; static or outliving the work */
  accrt_driver_completion_t
      completion; /* called exactly once when execute succeeds, however the work ends (run, failed, dropped) */
} accrt_stream_work_t;

/* Enqueues. On success `*out_submission` is its number (from 1, per stream) and the completion will be called. */
accrt_status_t accrt_stream_execute(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                    uint64_t* out_submission);
/* Runs on the calling thread when the stream is idle and the driver can; the completion is not called and nothing is
 * allocated. ACCRT_ERROR_NOT_READY without a record when it cannot be done so: use accrt_stream_execute. Any other status is
 * the work's own; the stream is not poisoned. */
accrt_status_t accrt_stream_execute_inline(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                           uint64_t* out_submission);
/* Checks a binding's place: resolves buffer or pointer to an address range on `device`. */
accrt_status_t accrt_binding_resolve(accrt_device_t* device, const accrt_binding_t* binding,
                                     const char* what, accrt_driver_binding_t* out_binding);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_INTERNAL_H_ */
