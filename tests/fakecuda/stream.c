/* tests/fakecuda/stream.c - streams, events, copies and fills: what becomes a task, and after what it comes. */
#include "fake.h"

#include <sched.h>

/* Kept, so that their use is seen. */
static CUstream dead_streams;
static CUevent dead_events;

/* ---- Streams ---- */

CUstream stream_create(CUcontext context, unsigned flags, int priority) {
  CUstream stream = fake_allocate(sizeof *stream);
  stream->magic = MAGIC_STREAM;
  stream->flags = flags;
  stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
  stream->id = ++fake.next_id;
  stream->context = context;
  stream->next = context->streams;
  context->streams = stream;
  return stream;
}

void stream_free(CUstream stream) {
  for (CUstream* at = &stream->context->streams; *at != NULL; at = &(*at)->next) {
    if (*at == stream) {
      *at = stream->next;
      break;
    }
  }
  capture_leave(stream);
  engine_orphan(stream->context, stream->last);
  task_release(stream->last);
  stream->last = NULL;
  stream->magic = MAGIC_DEAD;
  stream->next = dead_streams;
  dead_streams = stream;
}

static bool is_special(CUstream handle) {
  return handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

CUresult stream_find(CUcontext current, CUstream handle, CUstream* out_stream) {
  if (is_special(handle)) {
    *out_stream = handle == CU_STREAM_PER_THREAD ? current->per_thread : current->legacy;
    return CUDA_SUCCESS;
  }
  for (CUcontext context = fake.contexts; context != NULL; context = context->next) {
    for (CUstream stream = context->streams; stream != NULL; stream = stream->next) {
      if (stream == handle) {
        *out_stream = stream;
        return context->lost;
      }
    }
  }
  fake_complain("%p is no stream, or one that was destroyed", (void*)handle);
  return CUDA_ERROR_INVALID_HANDLE;
}

static bool is_legacy(CUstream stream) {
  return stream == stream->context->legacy;
}

static bool is_blocking(CUstream stream) {
  return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

void stream_order(CUstream stream, task_t* task) {
  task_follow(task, stream->last);
  if (!is_blocking(stream))
    return;
  for (CUstream other = stream->context->streams; other != NULL; other = other->next) {
    if (other != stream && (is_legacy(stream) ? is_blocking(other) : is_legacy(other)))
      task_follow(task, other->last);
  }
}

void stream_submit(CUstream stream, task_t* task) {
  stream_order(stream, task);
  task_release(stream->last);
  stream->last = task;
  task_retain(task);
  task_submit(task);
}

CUresult stream_enqueue(CUstream stream, op_t* op) {
  if (capture_is_active(stream->capture)) {
    const CUresult result = capture_add(stream, op);
    op_free(op);
    return result;
  }
  CUresult result = stream->context->lost;
  if (result == CUDA_SUCCESS && is_legacy(stream))
    result = capture_implicit(stream->context);
  if (result != CUDA_SUCCESS) {
    op_free(op);
    return result;
  }
  stream_submit(stream, task_create(stream->context, op));
  return CUDA_SUCCESS;
}

/* Blocks the legacy stream's way: all blocking streams are waited for, as a task on it would. */
CUresult stream_wait_all(CUstream stream) {
  CUcontext context = stream->context;
  task_t* end = task_create(context, NULL);
  stream_order(stream, end);
  task_retain(end);
  task_submit(end);
  task_wait(end);
  task_release(end);
  return context->lost;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  ENTER(NORMAL);
  if (phStream == NULL || flags > 1)
    return CUDA_ERROR_INVALID_VALUE;
  *phStream = stream_create(guard.context, flags, priority);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return cuStreamCreateWithPriority(phStream, Flags, 0);
}

EXPORT CUresult cuStreamDestroy(CUstream hStream) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  CUstream stream = NULL;
  const CUresult result = stream_find(guard.context, hStream, &stream);
  if (stream == NULL || is_special(hStream))
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
  stream_free(stream);
  return result;
}

#define FIND_STREAM()                                                                              \
  CUstream stream = NULL;                                                                          \
  {                                                                                                \
    const CUresult found = stream_find(guard.context, hStream, &stream);                           \
    if (found != CUDA_SUCCESS)                                                                     \
      return found;                                                                                \
  }

EXPORT CUresult cuStreamGetPriority(CUstream hStream, int* priority) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (priority == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (streamId == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *streamId = stream->id;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pctx = stream->context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (device == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *device = stream->context->device;
  return CUDA_SUCCESS;
}

/* Asking about a stream that is being captured spoils the capture. */
static CUresult refuse_captured(CUstream stream) {
  if (capture_is_active(stream->capture)) {
    capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return is_legacy(stream) ? capture_implicit(stream->context) : CUDA_SUCCESS;
}

static bool is_idle(CUstream stream) {
  if (stream->last != NULL && !task_is_done(stream->last))
    return false;
  for (CUstream other = is_legacy(stream) ? stream->context->streams : NULL; other != NULL;
       other = other->next) {
    if (is_blocking(other) && other->last != NULL && !task_is_done(other->last))
      return false;
  }
  return true;
}

EXPORT CUresult cuStreamQuery(CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  CUresult result = refuse_captured(stream);
  if (result == CUDA_SUCCESS)
    result = capture_unsafe(guard.context);
  if (result != CUDA_SUCCESS)
    return result;
  if (is_idle(stream))
    return stream->context->lost;
  fake_leave(&guard); /* who polls lets the engine's thread come by */
  guard.is_locked = false;
  sched_yield();
  return CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  CUresult result = refuse_captured(stream);
  if (result == CUDA_SUCCESS)
    result = capture_unsafe(guard.context);
  return result != CUDA_SUCCESS ? result : stream_wait_all(stream);
}

/* ---- Events ---- */

void event_free(CUevent event) {
  for (CUevent* at = &event->context->events; *at != NULL; at = &(*at)->next) {
    if (*at == event) {
      *at = event->next;
      break;
    }
  }
  task_release(event->task);
  event->task = NULL;
  node_set_free(&event->tips);
  if (event->capture != NULL)
    capture_release(event->capture);
  event->capture = NULL;
  event->magic = MAGIC_DEAD;
  event->next = dead_events;
  dead_events = event;
}

bool event_is_live(CUevent event) {
  for (CUcontext context = fake.contexts; context != NULL; context = context->next) {
    for (CUevent at = context->events; at != NULL; at = at->next) {
      if (at == event)
        return true;
    }
  }
  if (event != NULL)
    fake_complain("%p is no event, or one that was destroyed", (void*)event);
  return false;
}

EXPORT CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  ENTER(NORMAL);
  if (phEvent == NULL || Flags > 7 || (Flags & 6u) == CU_EVENT_INTERPROCESS)
    return CUDA_ERROR_INVALID_VALUE;
  CUevent event = fake_allocate(sizeof *event);
  event->magic = MAGIC_EVENT;
  event->flags = Flags;
  event->context = guard.context;
  event->next = guard.context->events;
  guard.context->events = event;
  *phEvent = event;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent hEvent) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  if (!event_is_live(hEvent))
    return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = hEvent->context->lost;
  event_free(hEvent);
  return result;
}

static void forget_record(CUevent event) {
  task_release(event->task);
  event->task = NULL;
  node_set_free(&event->tips);
  if (event->capture != NULL)
    capture_release(event->capture);
  event->capture = NULL;
}

void event_set_task(CUevent event, task_t* task) {
  forget_record(event);
  event->task = task;
  task_retain(task);
}

static void record_in_capture(CUevent event, CUstream stream) {
  forget_record(event);
  event->capture = stream->capture;
  capture_retain(event->capture);
  node_set_copy(&event->tips, &stream->tips);
}

EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (!event_is_live(hEvent) || hEvent->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;
  if (capture_is_active(stream->capture)) {
    if (capture_is_spoiled(stream->capture))
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    record_in_capture(hEvent, stream);
    return CUDA_SUCCESS;
  }
  const CUresult result = is_legacy(stream) ? capture_implicit(stream->context) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return result;
  task_t* task = task_create(stream->context, NULL);
  event_set_task(hEvent, task);
  stream_submit(stream, task);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(hEvent, hStream);
}

EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (Flags > 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (!event_is_live(hEvent))
    return CUDA_ERROR_INVALID_HANDLE;
  if (capture_is_active(stream->capture)) {
    if (hEvent->capture == stream->capture) {
      node_set_join(&stream->tips, &hEvent->tips);
      return CUDA_SUCCESS;
    }
    capture_invalidate(stream->capture);
    return capture_is_active(hEvent->capture) ? CUDA_ERROR_STREAM_CAPTURE_MERGE
                                              : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (capture_is_active(hEvent->capture)) { /* the stream joins the capture */
    if (is_legacy(stream)) {
      capture_invalidate(hEvent->capture);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    capture_enter(stream, hEvent->capture, &hEvent->tips);
    return CUDA_SUCCESS;
  }
  if (hEvent->capture != NULL)
    return CUDA_ERROR_INVALID_VALUE; /* its capture has ended */
  if (hEvent->task == NULL)
    return CUDA_SUCCESS;
  task_t* task = task_create(stream->context, NULL);
  task_follow(task, hEvent->task);
  stream_submit(stream, task);
  return CUDA_SUCCESS;
}

/* Asking about an event that was recorded in a capture spoils it. */
static CUresult check_event(CUevent event) {
  if (!event_is_live(event))
    return CUDA_ERROR_INVALID_HANDLE;
  if (event->context->lost != CUDA_SUCCESS)
    return event->context->lost;
  if (event->capture != NULL && !capture_is_active(event->capture))
    return CUDA_ERROR_INVALID_VALUE; /* its capture has ended */
  if (event->capture != NULL) {
    capture_invalidate(event->capture);
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return capture_unsafe(event->context);
}

EXPORT CUresult cuEventQuery(CUevent hEvent) {
  ENTER(NORMAL);
  const CUresult result = check_event(hEvent);
  if (result != CUDA_SUCCESS)
    return result;
  if (hEvent->task == NULL || task_is_done(hEvent->task))
    return hEvent->context->lost;
  fake_leave(&guard);
  guard.is_locked = false;
  sched_yield();
  return CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent hEvent) {
  ENTER(NORMAL);
  const CUresult result = check_event(hEvent);
  if (result != CUDA_SUCCESS || hEvent->task == NULL)
    return result;
  CUcontext context = hEvent->context;
  task_wait(hEvent->task);
  return context->lost;
}

static CUresult elapsed(float* out_milliseconds, CUevent start, CUevent end) {
  CUresult result = check_event(start);
  if (result == CUDA_SUCCESS)
    result = check_event(end);
  if (result != CUDA_SUCCESS)
    return result;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) || start->context != end->context ||
      start->task == NULL || end->task == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!task_is_done(start->task) || !task_is_done(end->task))
    return CUDA_ERROR_NOT_READY;
  const int64_t elapsed_ns = (int64_t)(task_done_ns(end->task) - task_done_ns(start->task));
  *out_milliseconds = (float)((double)elapsed_ns / 1e6);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  ENTER(NORMAL);
  return pMilliseconds == NULL ? CUDA_ERROR_INVALID_HANDLE : elapsed(pMilliseconds, hStart, hEnd);
}

/* ---- Copies ---- */

static uint64_t span(const uint64_t extent[3], const uint64_t stride[2]) {
  if (extent[0] == 0 || extent[1] == 0 || extent[2] == 0)
    return 0;
  return (extent[2] - 1) * stride[1] + (extent[1] - 1) * stride[0] + extent[0];
}

/* A pageable source is read now, into what then goes to the device in the stream's order. */
static void stage(op_copy_t* copy) {
  copy->staged = fake_allocate(copy->extent[0] * copy->extent[1] * copy->extent[2]);
  unsigned char* at = copy->staged;
  for (uint64_t plane = 0; plane < copy->extent[2]; ++plane) {
    for (uint64_t row = 0; row < copy->extent[1]; ++row) {
      memcpy(at,
             (const void*)(uintptr_t)(copy->source + plane * copy->source_stride[1] +
                                      row * copy->source_stride[0]),
             copy->extent[0]);
      at += copy->extent[0];
    }
  }
}

/* Both ends are there, as far as can be told at the call. */
static CUresult check_copy(const op_copy_t* copy, CUcontext context) {
  const uint64_t target_span = span(copy->extent, copy->target_stride);
  const uint64_t source_span = span(copy->extent, copy->source_stride);
  if (target_span == 0)
    return CUDA_SUCCESS;
  CUcontext who = copy->crosses ? NULL : context;
  const memory_type_t target = memory_type(copy->target);
  const memory_type_t source = memory_type(copy->source);
  if (target == MEMORY_NOWHERE || source == MEMORY_NOWHERE)
    return CUDA_ERROR_INVALID_VALUE;
  if (target == MEMORY_DEVICE && !memory_covers(who, copy->target, target_span))
    return CUDA_ERROR_INVALID_VALUE;
  if (source == MEMORY_DEVICE && !memory_covers(who, copy->source, source_span))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUresult enqueue_copy(CUstream stream, op_copy_t* copy, bool is_synchronous) {
  /* Memory of cuMemAlloc goes from any device to any; mapped memory needs access. */
  copy->crosses |= memory_is_unmapped(copy->target) && memory_is_unmapped(copy->source);
  CUresult result = check_copy(copy, stream->context);
  if (result != CUDA_SUCCESS)
    return result;
  if (span(copy->extent, copy->target_stride) == 0)
    return CUDA_SUCCESS;
  const bool is_captured = capture_is_active(stream->capture);
  const bool to_pageable = memory_type(copy->target) == MEMORY_PAGEABLE;
  if (!is_captured && memory_type(copy->source) == MEMORY_PAGEABLE && !to_pageable)
    stage(copy);
  op_t op = {.kind = OP_COPY, .as.copy = *copy};
  result = stream_enqueue(stream, &op);
  if (result == CUDA_SUCCESS && !is_captured && (is_synchronous || to_pageable))
    result = stream_wait_all(stream);
  return result;
}

static op_copy_t line(uint64_t target, uint64_t source, uint64_t size_bytes) {
  return (op_copy_t){.target = target, .source = source, .extent = {size_bytes, 1, 1}};
}

/* What a call promises about an end: that it is the device's, or the host's. */
static bool is_device_side(uint64_t address) {
  const memory_type_t type = memory_type(address);
  return type == MEMORY_DEVICE || type == MEMORY_PINNED;
}

#define HOST(pointer) ((uint64_t)(uintptr_t)(pointer))
#define ASYNC_COPY(copy_)                                                                          \
  ENTER(NORMAL);                                                                                   \
  FIND_STREAM();                                                                                   \
  op_copy_t copy = (copy_);                                                                        \
  return enqueue_copy(stream, &copy, false)
#define SYNC_COPY(copy_)                                                                           \
  ENTER(NORMAL);                                                                                   \
  op_copy_t copy = (copy_);                                                                        \
  return enqueue_copy(guard.context->legacy, &copy, true)

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                              CUstream hStream) {
  ASYNC_COPY(line(dst, src, ByteCount));
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  SYNC_COPY(line(dst, src, ByteCount));
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                  CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (ByteCount != 0 && !is_device_side(dstDevice))
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy = line(dstDevice, HOST(srcHost), ByteCount);
  return enqueue_copy(stream, &copy, false);
}

EXPORT CUresult cuMemcpyDtoHAsync(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (ByteCount != 0 && !is_device_side(srcDevice))
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy = line(HOST(dstHost), srcDevice, ByteCount);
  return enqueue_copy(stream, &copy, false);
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (ByteCount != 0 && (!is_device_side(dstDevice) || !is_device_side(srcDevice)))
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy = line(dstDevice, srcDevice, ByteCount);
  return enqueue_copy(stream, &copy, false);
}

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  ENTER(NORMAL);
  if (ByteCount != 0 && !is_device_side(dstDevice))
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy = line(dstDevice, HOST(srcHost), ByteCount);
  return enqueue_copy(guard.context->legacy, &copy, true);
}

EXPORT CUresult cuMemcpyDtoH(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  ENTER(NORMAL);
  if (ByteCount != 0 && !is_device_side(srcDevice))
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy = line(HOST(dstHost), srcDevice, ByteCount);
  return enqueue_copy(guard.context->legacy, &copy, true);
}

EXPORT CUresult cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  ENTER(NORMAL);
  if (ByteCount != 0 && (!is_device_side(dstDevice) || !is_device_side(srcDevice)))
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy = line(dstDevice, srcDevice, ByteCount);
  return enqueue_copy(guard.context->legacy, &copy, false);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                  CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                                  CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  (void)dstContext; /* NULL is the current one; addresses tell the rest */
  (void)srcContext;
  op_copy_t copy = line(dstDevice, srcDevice, ByteCount);
  copy.crosses = true;
  return enqueue_copy(stream, &copy, false);
}

/* One end of a described copy; 0: arrays, which nobody uses. */
static bool describe_end(CUmemorytype type, const void* host, CUdeviceptr device, uint64_t offset,
                         uint64_t* out_address) {
  if (type == CU_MEMORYTYPE_HOST)
    *out_address = HOST(host) + offset;
  else if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED)
    *out_address = device + offset;
  else
    return false;
  return true;
}

CUresult copy_from_3d(const CUDA_MEMCPY3D* from, op_copy_t* out) {
  *out = (op_copy_t){.extent = {from->WidthInBytes, from->Height, from->Depth}};
  const uint64_t source_pitch = from->srcPitch != 0 ? from->srcPitch : from->WidthInBytes;
  const uint64_t target_pitch = from->dstPitch != 0 ? from->dstPitch : from->WidthInBytes;
  const uint64_t source_height = from->srcHeight != 0 ? from->srcHeight : from->Height;
  const uint64_t target_height = from->dstHeight != 0 ? from->dstHeight : from->Height;
  if (from->srcLOD != 0 || from->dstLOD != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if ((from->Height > 1 || from->Depth > 1) && from->WidthInBytes != 0 &&
      (source_pitch < from->srcXInBytes + from->WidthInBytes ||
       target_pitch < from->dstXInBytes + from->WidthInBytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (from->Depth > 1 &&
      (source_height < from->srcY + from->Height || target_height < from->dstY + from->Height))
    return CUDA_ERROR_INVALID_VALUE;
  out->source_stride[0] = source_pitch;
  out->target_stride[0] = target_pitch;
  out->source_stride[1] = source_pitch * source_height;
  out->target_stride[1] = target_pitch * target_height;
  const uint64_t source_offset =
      from->srcXInBytes + source_pitch * from->srcY + out->source_stride[1] * from->srcZ;
  const uint64_t target_offset =
      from->dstXInBytes + target_pitch * from->dstY + out->target_stride[1] * from->dstZ;
  if (!describe_end(from->srcMemoryType, from->srcHost, from->srcDevice, source_offset,
                    &out->source) ||
      !describe_end(from->dstMemoryType, from->dstHost, from->dstDevice, target_offset,
                    &out->target))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D* from) {
  return (CUDA_MEMCPY3D){
      .srcXInBytes = from->srcXInBytes,
      .srcY = from->srcY,
      .srcMemoryType = from->srcMemoryType,
      .srcHost = from->srcHost,
      .srcDevice = from->srcDevice,
      .srcPitch = from->srcPitch,
      .dstXInBytes = from->dstXInBytes,
      .dstY = from->dstY,
      .dstMemoryType = from->dstMemoryType,
      .dstHost = from->dstHost,
      .dstDevice = from->dstDevice,
      .dstPitch = from->dstPitch,
      .WidthInBytes = from->WidthInBytes,
      .Height = from->Height,
      .Depth = 1,
  };
}

EXPORT CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (pCopy == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D described = from_2d(pCopy);
  op_copy_t copy;
  const CUresult result = copy_from_3d(&described, &copy);
  return result != CUDA_SUCCESS ? result : enqueue_copy(stream, &copy, false);
}

EXPORT CUresult cuMemcpy2D(const CUDA_MEMCPY2D* pCopy) {
  ENTER(NORMAL);
  if (pCopy == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D described = from_2d(pCopy);
  op_copy_t copy;
  const CUresult result = copy_from_3d(&described, &copy);
  return result != CUDA_SUCCESS ? result : enqueue_copy(guard.context->legacy, &copy, true);
}

EXPORT CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  ENTER(NORMAL);
  FIND_STREAM();
  if (pCopy == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy;
  const CUresult result = copy_from_3d(pCopy, &copy);
  return result != CUDA_SUCCESS ? result : enqueue_copy(stream, &copy, false);
}

EXPORT CUresult cuMemcpy3D(const CUDA_MEMCPY3D* pCopy) {
  ENTER(NORMAL);
  if (pCopy == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  op_copy_t copy;
  const CUresult result = copy_from_3d(pCopy, &copy);
  return result != CUDA_SUCCESS ? result : enqueue_copy(guard.context->legacy, &copy, true);
}

/* ---- Fills ---- */

static CUresult check_fill(const op_fill_t* fill, CUcontext context) {
  if (fill->width == 0 || fill->height == 0)
    return CUDA_SUCCESS;
  if (fill->target % fill->element_bytes != 0 ||
      (fill->height > 1 &&
       (fill->pitch % fill->element_bytes != 0 || fill->pitch < fill->width * fill->element_bytes)))
    return CUDA_ERROR_INVALID_VALUE;
  const memory_type_t type = memory_type(fill->target);
  const uint64_t size_bytes = (fill->height - 1) * fill->pitch + fill->width * fill->element_bytes;
  if (type == MEMORY_PAGEABLE || type == MEMORY_NOWHERE ||
      !memory_covers(context, fill->target, size_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult fill_from_params(const CUDA_MEMSET_NODE_PARAMS* from, op_fill_t* out) {
  if (from->elementSize != 1 && from->elementSize != 2 && from->elementSize != 4)
    return CUDA_ERROR_INVALID_VALUE;
  /* As seen on an H100: a value that its elements cannot hold fills them with ones. */
  const unsigned largest = UINT32_MAX >> (32 - 8 * from->elementSize);
  *out = (op_fill_t){.target = from->dst,
                     .pitch = from->pitch,
                     .value = from->value < largest ? from->value : largest,
                     .element_bytes = from->elementSize,
                     .width = from->width,
                     .height = from->height};
  return CUDA_SUCCESS;
}

static CUresult enqueue_fill(CUstream stream, const op_fill_t* fill) {
  const CUresult result = check_fill(fill, stream->context);
  if (result != CUDA_SUCCESS || fill->width == 0 || fill->height == 0)
    return result;
  op_t op = {.kind = OP_FILL, .as.fill = *fill};
  return stream_enqueue(stream, &op);
}

#define FILL(bits, type)                                                                           \
  EXPORT CUresult cuMemsetD2D##bits##Async(CUdeviceptr dstDevice, size_t dstPitch, type value,     \
                                           size_t Width, size_t Height, CUstream hStream) {        \
    ENTER(NORMAL);                                                                                 \
    FIND_STREAM();                                                                                 \
    const op_fill_t fill = {dstDevice, dstPitch, value, bits / 8, Width, Height};                  \
    return enqueue_fill(stream, &fill);                                                            \
  }                                                                                                \
  EXPORT CUresult cuMemsetD##bits##Async(CUdeviceptr dstDevice, type value, size_t N,              \
                                         CUstream hStream) {                                       \
    ENTER(NORMAL);                                                                                 \
    FIND_STREAM();                                                                                 \
    const op_fill_t fill = {dstDevice, 0, value, bits / 8, N, 1};                                  \
    return enqueue_fill(stream, &fill);                                                            \
  }                                                                                                \
  EXPORT CUresult cuMemsetD##bits(CUdeviceptr dstDevice, type value, size_t N) {                   \
    ENTER(NORMAL);                                                                                 \
    const op_fill_t fill = {dstDevice, 0, value, bits / 8, N, 1};                                  \
    return enqueue_fill(guard.context->legacy, &fill);                                             \
  }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)

/* ---- Host functions and values ---- */

EXPORT CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  ENTER(NEED_INIT | NEED_HEALTH |
        (is_special(hStream) ? NEED_CONTEXT : 0)); /* a stream knows its own */
  FIND_STREAM();
  if (fn == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = OP_HOST, .as.host = {fn, userData}};
  return stream_enqueue(stream, &op);
}

static CUresult enqueue_value(CUcontext context, CUstream handle, op_kind_t kind, uint64_t address,
                              uint64_t value, uint32_t size_bytes, unsigned flags) {
  CUstream stream = NULL;
  const CUresult result = stream_find(context, handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (address % size_bytes != 0 || !is_device_side(address))
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = kind, .as.value = {address, value, flags, size_bytes}};
  return stream_enqueue(stream, &op);
}

EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) {
  ENTER(NORMAL);
  return enqueue_value(guard.context, stream, OP_WRITE_VALUE, addr, value, 4, flags);
}

EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags) {
  ENTER(NORMAL);
  return enqueue_value(guard.context, stream, OP_WRITE_VALUE, addr, value, 8, flags);
}

EXPORT CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                    unsigned int flags) {
  ENTER(NORMAL);
  return enqueue_value(guard.context, stream, OP_WAIT_VALUE, addr, value, 4, flags);
}

EXPORT CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                    unsigned int flags) {
  ENTER(NORMAL);
  return enqueue_value(guard.context, stream, OP_WAIT_VALUE, addr, value, 8, flags);
}
