/* runtime/drivers/cuda/event.c - the library's events as events of CUDA. It may not use marks,
 * which belong to queues. */
#include <sched.h>

#include "accrt/stream.h"
#include "runtime/drivers/cuda/cuda.h"

#define SPIN_BEFORE_SLEEP_NS UINT64_C(25000)

ACCRT_RARE accrt_status_t accrt_cuda_event_create(accrt_driver_device_t* opaque, uint32_t flags,
                                                  accrt_driver_event_t** out_event) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  *out_event = NULL;
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "event_create");
  cuda_event_t* event;
  ACCRT_TRY(ACCRT_NEW(device->allocator, &event));
  event->device = device;
  event->flags = flags;
  const unsigned cuda_flags =
      (flags & ACCRT_EVENT_FLAG_TIMING) != 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const CUresult result = device->api->cuEventCreate(&event->event, cuda_flags);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (result != CUDA_SUCCESS) {
    accrt_free(device->allocator, event, sizeof *event);
    return accrt_cuda_fail(device, result, "cuEventCreate", "an event on cuda:%u", device->ordinal);
  }
  *out_event = (accrt_driver_event_t*)event;
  return ACCRT_OK;
}

ACCRT_RARE void accrt_cuda_event_destroy(accrt_driver_event_t* opaque) {
  cuda_event_t* event = (cuda_event_t*)opaque;
  cuda_device_t* device = event->device;
  const cuda_scope_t scope = cuda_enter(device);
  (void)device->api->cuEventDestroy(event->event);
  cuda_leave(device, scope);
  accrt_free(device->allocator, event, sizeof *event);
}

/* Refuses a lost device and a captured stream. A failed queue takes events all the same. */
static accrt_status_t check(cuda_queue_t* queue, const char* operation) {
  if (cuda_queue_is_ready(queue))
    return ACCRT_OK;
  if (cuda_device_is_lost(queue->device))
    return accrt_cuda_device_lost(queue->device, operation);
  return accrt_cuda_queue_is_capturing(queue) ? accrt_cuda_refuse_capture(queue, operation)
                                              : ACCRT_OK;
}

accrt_status_t accrt_cuda_event_record(accrt_driver_queue_t* opaque_queue,
                                       accrt_driver_event_t* opaque_event) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque_queue;
  const cuda_event_t* event = (const cuda_event_t*)opaque_event;
  cuda_device_t* device = queue->device;
  ACCRT_TRY(check(queue, "event_record"));
  const cuda_scope_t scope = cuda_enter(device);
  const CUresult result = device->api->cuEventRecord(event->event, queue->stream);
  cuda_leave(device, scope);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  return accrt_cuda_fail(device, result, "cuEventRecord", "an event on a queue of cuda:%u",
                         device->ordinal);
}

accrt_status_t accrt_cuda_event_wait(accrt_driver_queue_t* opaque_queue,
                                     accrt_driver_event_t* opaque_event) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque_queue;
  const cuda_event_t* event = (const cuda_event_t*)opaque_event;
  cuda_device_t* device = queue->device;
  ACCRT_TRY(check(queue, "event_wait"));
  const cuda_scope_t scope = cuda_enter(device);
  const CUresult result =
      device->api->cuStreamWaitEvent(queue->stream, event->event, CU_EVENT_WAIT_DEFAULT);
  cuda_leave(device, scope);
  if (result == CUDA_SUCCESS) {
    atomic_fetch_add_explicit(&queue->event_waits, 1, memory_order_relaxed);
    return ACCRT_OK;
  }
  return accrt_cuda_fail(device, result, "cuStreamWaitEvent",
                         "a queue of cuda:%u that waits for an event of cuda:%u", device->ordinal,
                         event->device->ordinal);
}

/* Returns CUDA's result and records no error. */
static CUresult query(const cuda_event_t* event) {
  cuda_device_t* device = event->device;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const CUresult result = device->api->cuEventQuery(event->event);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  return result;
}

static accrt_status_t fail_query(const cuda_event_t* event, CUresult result) {
  return accrt_cuda_fail(event->device, result, "cuEventQuery",
                         "work before an event of cuda:%u failed", event->device->ordinal);
}

accrt_status_t accrt_cuda_event_query(accrt_driver_event_t* opaque) {
  const cuda_event_t* event = (const cuda_event_t*)opaque;
  if (cuda_device_is_lost(event->device))
    return accrt_cuda_device_lost(event->device, "event_query");
  const CUresult result = query(event);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  return result == CUDA_ERROR_NOT_READY ? ACCRT_ERROR_NOT_READY : fail_query(event, result);
}

accrt_status_t accrt_cuda_event_synchronize(accrt_driver_event_t* opaque, uint64_t timeout_ns,
                                            uint32_t policy) {
  const cuda_event_t* event = (const cuda_event_t*)opaque;
  if (cuda_device_is_lost(event->device))
    return accrt_cuda_device_lost(event->device, "event_synchronize");
  const uint64_t begin_ns = accrt_clock_ns();
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  for (;;) {
    const CUresult result = query(event);
    if (result == CUDA_SUCCESS)
      return ACCRT_OK;
    if (result != CUDA_ERROR_NOT_READY)
      return fail_query(event, result);
    const uint64_t now_ns = accrt_clock_ns();
    if (now_ns >= deadline_ns) {
      return accrt_cuda_refuse(event->device->environment, ACCRT_ERROR_TIMEOUT, "event_synchronize",
                               "the event was not reached within %llu ns",
                               (unsigned long long)timeout_ns);
    }
    if (policy == ACCRT_WAIT_YIELD)
      sched_yield();
    if (policy == ACCRT_WAIT_BLOCK && now_ns - begin_ns > SPIN_BEFORE_SLEEP_NS)
      accrt_cuda_back_off(now_ns - begin_ns);
  }
}

ACCRT_RARE accrt_status_t accrt_cuda_event_elapsed(accrt_driver_event_t* opaque_start,
                                                   accrt_driver_event_t* opaque_end,
                                                   int64_t* out_elapsed_ns) {
  const cuda_event_t* start = (const cuda_event_t*)opaque_start;
  const cuda_event_t* end = (const cuda_event_t*)opaque_end;
  cuda_device_t* device = start->device;
  *out_elapsed_ns = 0;
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "event_elapsed");
  float milliseconds = 0;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const CUresult result = device->api->cuEventElapsedTime(&milliseconds, start->event, end->event);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (result == CUDA_ERROR_NOT_READY)
    return ACCRT_ERROR_NOT_READY;
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail(device, result, "cuEventElapsedTime",
                           "the time between two events of cuda:%u", device->ordinal);
  *out_elapsed_ns = (int64_t)((double)milliseconds * 1e6);
  return ACCRT_OK;
}
