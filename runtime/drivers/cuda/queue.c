/* runtime/drivers/cuda/queue.c - queues: streams, the count of submissions, marks, and waiting.
 * cuda.h explains the idea. command.c, graph.c and launch.c submit the commands.
 *
 * Memory order: `submitted` is raised after the call of CUDA that it counts. It is read before an
 * event is recorded or the stream is queried. So a reached event covers at least the submissions
 * that were read.
 */
#define STOCKED_MARKS 4
#define ACCRT_CUDA_INLINE 1 /* this file has the functions */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <time.h>

#include "accrt/stream.h"
#include "runtime/drivers/cuda/cuda.h"

/* A blocking wait polls this long before it sleeps. Most kernels end earlier. */
#define SPIN_BEFORE_SLEEP_NS UINT64_C(25000)
#define BACK_OFF_FREE_NS UINT64_C(50000)
#define BACK_OFF_MAX_NS UINT64_C(100000)

/* ---- The current context, for files that are compiled for size ---- */

cuda_scope_t accrt_cuda_enter_called(const cuda_device_t* device) {
  return cuda_enter(device);
}

void accrt_cuda_leave_called(const cuda_device_t* device, cuda_scope_t scope) {
  cuda_leave(device, scope);
}

CUstreamCaptureMode accrt_cuda_relax_called(const cuda_device_t* device) {
  return cuda_relax(device);
}

void accrt_cuda_unrelax_called(const cuda_device_t* device, CUstreamCaptureMode mode) {
  cuda_unrelax(device, mode);
}

/* ---- Numbers ---- */

static uint64_t submitted(const cuda_queue_t* queue) {
  /* Acquire pairs with the release in cuda_publish(). */
  return atomic_load_explicit(&queue->submitted, memory_order_acquire);
}

static uint64_t completed(const cuda_queue_t* queue) {
  /* Acquire pairs with the release in raise_completed(). */
  return atomic_load_explicit(&queue->completed, memory_order_acquire);
}

static void raise_completed(cuda_queue_t* queue, uint64_t number) {
  uint64_t known = atomic_load_explicit(&queue->completed, memory_order_relaxed);
  /* Release pairs with the acquire in completed(). */
  while (known < number &&
         !atomic_compare_exchange_weak_explicit(&queue->completed, &known, number,
                                                memory_order_release, memory_order_relaxed)) {
  }
}

static bool has_failed(const cuda_queue_t* queue) {
  /* Acquire pairs with the release in accrt_cuda_queue_fail(): `failure` is complete. */
  return atomic_load_explicit(&queue->failed, memory_order_acquire) != 0;
}

void accrt_cuda_back_off(uint64_t waited_ns) {
  if (waited_ns < BACK_OFF_FREE_NS) {
    sched_yield();
    return;
  }
  const uint64_t nap_ns = waited_ns / 8 < BACK_OFF_MAX_NS ? waited_ns / 8 : BACK_OFF_MAX_NS;
  const struct timespec nap = {0, (long)nap_ns};
  nanosleep(&nap, NULL);
}

/* ---- Creation and destruction ---- */

static int cuda_priority(const cuda_device_t* device, int32_t priority) {
  if (priority < device->priority_least)
    return -device->priority_least;
  return priority > device->priority_greatest ? -device->priority_greatest : -(int)priority;
}

ACCRT_RARE static accrt_status_t make(cuda_device_t* device, cuda_queue_t** out_queue) {
  void* memory;
  ACCRT_TRY(accrt_alloc_aligned(device->allocator, sizeof(cuda_queue_t), _Alignof(cuda_queue_t),
                                &memory));
  cuda_queue_t* queue = memory;
  queue->device = device;
  atomic_init(&queue->references, 1);
  accrt_mutex_init(&queue->mutex, ACCRT_LOCK_CUDA_QUEUE);
  *out_queue = queue;
  return ACCRT_OK;
}

static void link_queue(cuda_queue_t* queue) {
  cuda_device_t* device = queue->device;
  accrt_mutex_lock(&device->queues_mutex);
  queue->next = device->queues;
  if (queue->next != NULL)
    queue->next->previous = queue;
  device->queues = queue;
  accrt_mutex_unlock(&device->queues_mutex);
}

static void unlink_queue(cuda_queue_t* queue) {
  cuda_device_t* device = queue->device;
  accrt_mutex_lock(&device->queues_mutex);
  if (queue->previous != NULL) {
    queue->previous->next = queue->next;
  } else {
    device->queues = queue->next;
  }
  if (queue->next != NULL)
    queue->next->previous = queue->previous;
  accrt_mutex_unlock(&device->queues_mutex);
}

ACCRT_RARE static accrt_status_t preallocate_marks(cuda_queue_t* queue);

ACCRT_RARE accrt_status_t accrt_cuda_queue_create(accrt_driver_device_t* opaque, int32_t priority,
                                                  accrt_driver_queue_t** out_queue) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  *out_queue = NULL;
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "queue_create");
  cuda_queue_t* queue;
  ACCRT_TRY(make(device, &queue));
  queue->owned = true;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const CUresult result = device->api->cuStreamCreateWithPriority(
      &queue->stream, CU_STREAM_NON_BLOCKING, cuda_priority(device, priority));
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (result != CUDA_SUCCESS) {
    accrt_free_aligned(device->allocator, queue, sizeof *queue, _Alignof(cuda_queue_t));
    return accrt_cuda_fail(device, result, "cuStreamCreateWithPriority",
                           "a stream of priority %d on cuda:%u", priority, device->ordinal);
  }
  accrt_status_t status = preallocate_marks(queue);
  if (status != ACCRT_OK) {
    accrt_cuda_queue_unref(queue);
    return status;
  }
  link_queue(queue);
  *out_queue = (accrt_driver_queue_t*)queue;
  return ACCRT_OK;
}

ACCRT_RARE accrt_status_t accrt_cuda_queue_wrap(accrt_driver_device_t* opaque, void* native,
                                                accrt_driver_queue_t** out_queue) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  *out_queue = NULL;
  CUstream stream = native;
  CUcontext context = NULL;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const CUresult result = device->api->cuStreamGetCtx(stream, &context);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (result != CUDA_SUCCESS) {
    return accrt_cuda_fail(device, result, "cuStreamGetCtx",
                           "%p is not a stream that cuda:%u can use", native, device->ordinal);
  }
  if (context != device->context) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_INVALID_ARGUMENT, "queue_wrap",
                             "stream %p is not of the primary context of cuda:%u", native,
                             device->ordinal);
  }
  cuda_queue_t* queue;
  ACCRT_TRY(make(device, &queue));
  queue->stream = stream;
  accrt_status_t status = preallocate_marks(queue);
  if (status != ACCRT_OK) {
    accrt_cuda_queue_unref(queue);
    return status;
  }
  link_queue(queue);
  *out_queue = (accrt_driver_queue_t*)queue;
  return ACCRT_OK;
}

void* accrt_cuda_queue_native(accrt_driver_queue_t* queue) {
  return ((cuda_queue_t*)queue)->stream;
}

ACCRT_RARE static void free_marks(const cuda_device_t* device, cuda_mark_t* mark) {
  while (mark != NULL) {
    cuda_mark_t* next = mark->next;
    (void)device->api->cuEventDestroy(mark->event);
    accrt_free(device->allocator, mark, sizeof *mark);
    mark = next;
  }
}

ACCRT_RARE static void free_tickets(const cuda_device_t* device, cuda_ticket_t* ticket) {
  while (ticket != NULL) {
    cuda_ticket_t* next = ticket->next;
    if (ticket->begin != NULL)
      (void)device->api->cuEventDestroy(ticket->begin);
    if (ticket->end != NULL)
      (void)device->api->cuEventDestroy(ticket->end);
    accrt_free(device->allocator, ticket, sizeof *ticket);
    ticket = next;
  }
}

ACCRT_RARE static void free_queue(cuda_queue_t* queue) {
  cuda_device_t* device = queue->device;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  free_marks(device, queue->oldest);
  free_marks(device, queue->spare_marks[0]);
  free_marks(device, queue->spare_marks[1]);
  free_tickets(device, queue->spare_tickets);
  accrt_cuda_queue_forget_launches(queue);
  if (queue->owned)
    (void)device->api->cuStreamDestroy(queue->stream);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  accrt_free_aligned(device->allocator, queue, sizeof *queue, _Alignof(cuda_queue_t));
}

void accrt_cuda_queue_unref(cuda_queue_t* queue) {
  /* Acquire and release: the writes of every user happen before the free. */
  if (atomic_fetch_sub_explicit(&queue->references, 1, memory_order_acq_rel) == 1)
    free_queue(queue);
}

void accrt_cuda_queue_destroy(accrt_driver_queue_t* opaque) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  unlink_queue(queue);
  accrt_cuda_queue_unref(queue);
}

/* ---- Marks ---- */

/* A thread can sleep on a blocking mark. The device then interrupts the host. */
ACCRT_RARE static accrt_status_t make_mark(cuda_device_t* device, bool blocking,
                                           cuda_mark_t** out_mark) {
  cuda_mark_t* mark;
  ACCRT_TRY(ACCRT_NEW(device->allocator, &mark));
  mark->blocking = blocking;
  const unsigned flags = CU_EVENT_DISABLE_TIMING | (blocking ? CU_EVENT_BLOCKING_SYNC : 0u);
  const CUresult result = device->api->cuEventCreate(&mark->event, flags);
  if (result != CUDA_SUCCESS) {
    accrt_free(device->allocator, mark, sizeof *mark);
    return accrt_cuda_fail(device, result, "cuEventCreate", "an event to follow a queue with");
  }
  *out_mark = mark;
  return ACCRT_OK;
}

/* Returns an unused mark: a spare or a new one. */
static accrt_status_t take_mark(cuda_queue_t* queue, bool blocking, cuda_mark_t** out_mark) {
  accrt_mutex_lock(&queue->mutex);
  cuda_mark_t* mark = queue->spare_marks[blocking];
  if (mark != NULL)
    queue->spare_marks[blocking] = mark->next;
  accrt_mutex_unlock(&queue->mutex);
  ACCRT_TRY(mark != NULL ? ACCRT_OK : make_mark(queue->device, blocking, &mark));
  mark->next = NULL;
  mark->users = 1;
  mark->retired = false;
  *out_mark = mark;
  return ACCRT_OK;
}

/* Requires the queue's mutex, or a queue that no other thread has yet. */
static void recycle_mark(cuda_queue_t* queue, cuda_mark_t* mark) {
  mark->next = queue->spare_marks[mark->blocking];
  queue->spare_marks[mark->blocking] = mark;
}

/* Makes some marks of each kind in advance, so that work in flight and a waiting thread allocate
 * nothing. */
static accrt_status_t preallocate_marks(cuda_queue_t* queue) {
  const cuda_scope_t scope = cuda_enter(queue->device);
  const CUstreamCaptureMode mode = cuda_relax(queue->device);
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < 2 * STOCKED_MARKS && status == ACCRT_OK; ++i) {
    cuda_mark_t* mark;
    status = make_mark(queue->device, i % 2 != 0, &mark);
    if (status == ACCRT_OK)
      recycle_mark(queue, mark);
  }
  cuda_unrelax(queue->device, mode);
  cuda_leave(queue->device, scope);
  return status;
}

/* Records the mark behind all submitted work. Requires the queue's mutex. */
static CUresult record_mark(cuda_queue_t* queue, cuda_mark_t* mark) {
  ACCRT_ASSERT_HELD(&queue->mutex);
  mark->number = submitted(queue);
  const CUresult result = queue->device->api->cuEventRecord(mark->event, queue->stream);
  mark->retired = result != CUDA_SUCCESS; /* an event that was never recorded would look complete */
  if (mark->retired)
    return result;
  if (queue->oldest != NULL) {
    queue->newest->next = mark;
  } else {
    queue->oldest = mark;
  }
  queue->newest = mark;
  return result;
}

static void drop_mark(cuda_queue_t* queue, cuda_mark_t* mark) {
  accrt_mutex_lock(&queue->mutex);
  if (--mark->users == 0 && mark->retired)
    recycle_mark(queue, mark);
  accrt_mutex_unlock(&queue->mutex);
}

/* Returns the mark in flight to wait for: the nearest at or behind `number`, because work behind it
 * may take any time. NULL: there is none, or it is behind all submitted work and a thread that
 * wants to sleep cannot sleep on it, so that a new mark is as near. On a wrapped stream use any
 * mark: its owner may have destroyed the stream, so that no other mark can be recorded. */
static cuda_mark_t* nearest_mark(cuda_queue_t* queue, uint64_t number, bool blocking) {
  ACCRT_ASSERT_HELD(&queue->mutex);
  cuda_mark_t* mark = queue->oldest;
  while (mark != NULL && mark->number < number)
    mark = mark->next;
  if (mark == NULL || !blocking || mark->blocking || !queue->owned)
    return mark;
  for (cuda_mark_t* other = mark; other != NULL && other->number == mark->number;
       other = other->next) {
    if (other->blocking)
      return other;
  }
  return mark->number < submitted(queue) ? mark : NULL;
}

/* Returns a mark in flight at or behind `number`. The caller must call drop_mark. */
static accrt_status_t hold_mark(cuda_queue_t* queue, uint64_t number, bool blocking,
                                cuda_mark_t** out_mark) {
  accrt_mutex_lock(&queue->mutex);
  cuda_mark_t* mark = nearest_mark(queue, number, blocking);
  if (mark != NULL)
    ++mark->users;
  accrt_mutex_unlock(&queue->mutex);
  *out_mark = mark;
  if (mark != NULL)
    return ACCRT_OK;
  ACCRT_TRY(take_mark(queue, blocking, &mark));
  accrt_mutex_lock(&queue->mutex);
  const CUresult result = record_mark(queue, mark);
  accrt_mutex_unlock(&queue->mutex);
  *out_mark = mark;
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  drop_mark(queue, mark);
  return accrt_cuda_fail(queue->device, result, "cuEventRecord", "a mark behind submission %llu",
                         (unsigned long long)number);
}

/* Updates `completed`. Marks complete in their order. If no mark is in flight, the stream is
 * queried. */
CUresult accrt_cuda_queue_advance(cuda_queue_t* queue) {
  CUresult result = CUDA_SUCCESS;
  const uint64_t number = submitted(queue);
  accrt_mutex_lock(&queue->mutex);
  while (queue->oldest != NULL) {
    cuda_mark_t* mark = queue->oldest;
    if (mark->number > completed(queue)) {
      result = queue->device->api->cuEventQuery(mark->event);
      if (result != CUDA_SUCCESS)
        break;
      raise_completed(queue, mark->number);
    }
    queue->oldest = mark->next;
    if (queue->oldest == NULL)
      queue->newest = NULL;
    mark->retired = true;
    if (mark->users == 0)
      recycle_mark(queue, mark);
  }
  accrt_mutex_unlock(&queue->mutex);
  if (result != CUDA_SUCCESS || completed(queue) >= number)
    return result;
  /* Do not query a wrapped stream: it may be in a capture, which a query breaks, or its owner may
   * have destroyed it. Only marks are safe. */
  if (!queue->owned)
    return CUDA_ERROR_NOT_READY;
  result = queue->device->api->cuStreamQuery(queue->stream);
  if (result == CUDA_SUCCESS)
    raise_completed(queue, number);
  return result;
}

static bool has_marks(cuda_queue_t* queue) {
  accrt_mutex_lock(&queue->mutex);
  const bool any = queue->oldest != NULL;
  accrt_mutex_unlock(&queue->mutex);
  return any;
}

static bool has_mark_at(cuda_queue_t* queue, uint64_t number) {
  accrt_mutex_lock(&queue->mutex);
  const bool any = queue->oldest != NULL && queue->newest->number >= number;
  accrt_mutex_unlock(&queue->mutex);
  return any;
}

/* ---- Submissions ---- */

ACCRT_RARE void accrt_cuda_queue_captured(cuda_queue_t* queue, uint64_t number) {
  const uint64_t before = submitted(queue);
  cuda_publish(queue, number);
  atomic_store_explicit(&queue->captured, number, memory_order_relaxed);
  if (completed(queue) >= before)
    raise_completed(queue, number);
}

bool accrt_cuda_queue_is_capturing(const cuda_queue_t* queue) {
  if (queue->owned)
    return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = queue->device->api->cuStreamIsCapturing(queue->stream, &status);
  /* IMPLICIT: the legacy stream would wait for another stream, which is being captured. */
  return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

accrt_status_t accrt_cuda_refuse_capture(const cuda_queue_t* queue, const char* operation) {
  return accrt_cuda_refuse(queue->device->environment, ACCRT_ERROR_INVALID_STATE, operation,
                           "stream %p is being captured into a graph by its owner; the capture "
                           "goes on, nothing was enqueued",
                           (void*)queue->stream);
}

static accrt_status_t report_failure(const cuda_queue_t* queue, accrt_status_t status,
                                     const char* operation) {
  const accrt_error_t* failure = &queue->failure;
  return queue->device->environment->fail(
      queue->device->environment, status, failure->driver_code,
      failure->driver_name[0] != '\0' ? failure->driver_name : NULL, operation, failure->message);
}

/* Refuses a lost device, a failed queue and a captured stream. */
static accrt_status_t check(cuda_queue_t* queue, const char* operation) {
  if (cuda_device_is_lost(queue->device))
    return accrt_cuda_device_lost(queue->device, operation);
  if (has_failed(queue))
    return report_failure(queue, ACCRT_ERROR_POISONED, operation);
  return accrt_cuda_queue_is_capturing(queue) ? accrt_cuda_refuse_capture(queue, operation)
                                              : ACCRT_OK;
}

ACCRT_RARE static accrt_status_t make_timing(cuda_device_t* device, CUevent* event) {
  if (*event != NULL)
    return ACCRT_OK;
  const CUresult result = device->api->cuEventCreate(event, CU_EVENT_DEFAULT);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  *event = NULL;
  return accrt_cuda_fail(device, result, "cuEventCreate", "an event to time a submission with");
}

void accrt_cuda_ticket_return(cuda_queue_t* queue, cuda_ticket_t* ticket) {
  accrt_mutex_lock(&queue->mutex);
  cuda_mark_t* mark = ticket->mark;
  ticket->mark = NULL;
  if (mark != NULL && --mark->users == 0 && mark->retired)
    recycle_mark(queue, mark);
  ticket->next = queue->spare_tickets;
  queue->spare_tickets = ticket;
  accrt_mutex_unlock(&queue->mutex);
}

/* Takes everything that the end of the submission needs, so that the end cannot fail. */
ACCRT_RARE static accrt_status_t take_ticket(cuda_queue_t* queue, bool traced,
                                             cuda_ticket_t** out_ticket) {
  accrt_mutex_lock(&queue->mutex);
  cuda_ticket_t* ticket = queue->spare_tickets;
  if (ticket != NULL)
    queue->spare_tickets = ticket->next;
  accrt_mutex_unlock(&queue->mutex);
  accrt_status_t status = ACCRT_OK;
  if (ticket == NULL)
    status = accrt_alloc(queue->device->allocator, sizeof *ticket, (void**)&ticket);
  if (status != ACCRT_OK)
    return status;
  ticket->next = NULL;
  ticket->mark = NULL;
  ticket->completion = (accrt_driver_completion_t){NULL, NULL};
  ticket->number = 0;
  ticket->event_waits = 0;
  ticket->is_notification = false;
  ticket->is_traced = traced;
  /* A lost device makes no events. The poller reports the failure. */
  if (!cuda_device_is_lost(queue->device))
    status = take_mark(queue, false, &ticket->mark);
  if (status == ACCRT_OK && traced)
    status = make_timing(queue->device, &ticket->begin);
  if (status == ACCRT_OK && traced)
    status = make_timing(queue->device, &ticket->end);
  if (status != ACCRT_OK) {
    if (ticket->mark != NULL)
      ticket->mark->retired = true; /* it was never recorded */
    accrt_cuda_ticket_return(queue, ticket);
    return status;
  }
  *out_ticket = ticket;
  return ACCRT_OK;
}

/* Adds a ticket behind all submitted work. If its mark cannot be recorded, the ticket completes
 * when the stream is idle. Its completion may destroy the queue, even before this returns: the
 * caller may not use the queue any more. */
static void append_ticket(cuda_queue_t* queue, cuda_ticket_t* ticket) {
  /* Relaxed: the caller's use of the queue keeps it alive until here. */
  atomic_fetch_add_explicit(&queue->references, 1, memory_order_relaxed);
  accrt_mutex_lock(&queue->mutex);
  CUresult result = CUDA_SUCCESS;
  if (ticket->mark != NULL)
    result = record_mark(queue, ticket->mark);
  if (queue->first_ticket != NULL) {
    queue->last_ticket->next = ticket;
  } else {
    queue->first_ticket = ticket;
  }
  queue->last_ticket = ticket;
  accrt_mutex_unlock(&queue->mutex);
  if (accrt_cuda_is_fatal(result))
    accrt_cuda_device_lose(queue->device, result, "cuEventRecord", "a mark behind a submission");
  accrt_cuda_poller_watch(queue);
  accrt_cuda_queue_unref(queue);
}

static accrt_status_t begin_ticket(cuda_queue_t* queue, const accrt_driver_submission_t* submission,
                                   cuda_ticket_t** out_ticket) {
  const bool traced = queue->device->tracing != 0;
  *out_ticket = NULL;
  if (submission == NULL || (submission->completion.done == NULL && !traced))
    return ACCRT_OK;
  const CUstreamCaptureMode mode = cuda_relax(queue->device);
  const accrt_status_t status = take_ticket(queue, traced, out_ticket);
  cuda_unrelax(queue->device, mode);
  if (status == ACCRT_OK && traced)
    (void)queue->device->api->cuEventRecord((*out_ticket)->begin, queue->stream);
  return status;
}

accrt_status_t accrt_cuda_submit_begin(cuda_queue_t* queue,
                                       const accrt_driver_submission_t* submission,
                                       cuda_submit_t* out_submit) {
  ACCRT_TRY(check(queue, "queue_enqueue"));
  out_submit->scope = cuda_enter(queue->device);
  accrt_status_t status = begin_ticket(queue, submission, &out_submit->ticket);
  if (status != ACCRT_OK)
    cuda_leave(queue->device, out_submit->scope);
  return status;
}

static void end_ticket(cuda_queue_t* queue, const accrt_driver_submission_t* submission,
                       cuda_ticket_t* ticket, const char* name) {
  ticket->completion = submission->completion;
  ticket->number = submission->number;
  ticket->stream_id = submission->stream_id;
  if (ticket->is_traced) {
    (void)queue->device->api->cuEventRecord(ticket->end, queue->stream);
    const size_t length = name != NULL ? strlen(name) : 0;
    const size_t kept = length < sizeof ticket->name ? length : sizeof ticket->name - 1;
    memcpy(ticket->name, name != NULL ? name : "", kept);
    ticket->name[kept] = '\0';
  }
  append_ticket(queue, ticket);
}

accrt_status_t accrt_cuda_submit_end(cuda_queue_t* queue,
                                     const accrt_driver_submission_t* submission,
                                     cuda_submit_t* submit, const char* name,
                                     accrt_status_t status) {
  const cuda_device_t* device = queue->device; /* a completion may have destroyed the queue */
  if (status == ACCRT_OK) {
    if (submission != NULL)
      cuda_publish(queue, submission->number);
    if (submit->ticket != NULL)
      end_ticket(queue, submission, submit->ticket, name);
  } else if (submit->ticket != NULL) {
    if (submit->ticket->mark != NULL)
      submit->ticket->mark->retired = true; /* it was never recorded */
    accrt_cuda_ticket_return(queue, submit->ticket);
  }
  cuda_leave(device, submit->scope);
  return status;
}

void accrt_cuda_queue_fail(cuda_queue_t* queue, uint64_t number, const accrt_error_t* error) {
  accrt_mutex_lock(&queue->mutex);
  if (atomic_load_explicit(&queue->failed, memory_order_relaxed) == 0) {
    queue->failure = *error;
    queue->failure.submission = number;
    /* `number` is published behind this call. If nothing came since the failure before, nothing
     * more has succeeded. */
    if (queue->failed_number == 0 || submitted(queue) > queue->failed_number)
      queue->succeeded = number - 1;
    queue->failed_number = number;
    /* Release pairs with the acquire in has_failed. */
    atomic_store_explicit(&queue->failed, 1, memory_order_release);
  }
  accrt_mutex_unlock(&queue->mutex);
}

static const char* opcode_name(uint32_t opcode) {
  static const char names[][9] = {"", "dispatch", "copy", "fill", "barrier", "marker", "operator"};
  return opcode < sizeof names / sizeof names[0] ? names[opcode] : "";
}

accrt_status_t accrt_cuda_queue_enqueue(accrt_driver_queue_t* opaque,
                                        const accrt_driver_command_t* command,
                                        const accrt_driver_submission_t* submission) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  cuda_submit_t submit;
  ACCRT_TRY(accrt_cuda_submit_begin(queue, submission, &submit));
  accrt_status_t status =
      command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH
          ? accrt_cuda_dispatch_enqueue(queue, &command->as.dispatch, submission)
          : accrt_cuda_command_enqueue(queue->device, queue->stream, command, submission);
  return accrt_cuda_submit_end(queue, submission, &submit,
                               command->name != NULL ? command->name : opcode_name(command->opcode),
                               status);
}

/* ---- Progress ---- */

/* The last number up to which all is known to have ended well. */
static uint64_t last_success(cuda_queue_t* queue) {
  const uint64_t done = completed(queue);
  accrt_mutex_lock(&queue->mutex);
  const bool is_behind = done > queue->failed_number;
  const uint64_t number = is_behind || done < queue->succeeded ? done : queue->succeeded;
  accrt_mutex_unlock(&queue->mutex);
  return number;
}

/* Returns the failure that applies to submission `number`; ACCRT_OK when there is none. */
static accrt_status_t applicable_failure(cuda_queue_t* queue, uint64_t number,
                                         const char* operation) {
  if (cuda_device_is_lost(queue->device))
    return accrt_cuda_device_lost(queue->device, operation);
  if (!has_failed(queue) || number < queue->failure.submission)
    return ACCRT_OK;
  return report_failure(queue, queue->failure.status, queue->failure.operation);
}

static accrt_status_t fail_work(cuda_queue_t* queue, CUresult result, const char* call) {
  return accrt_cuda_fail(queue->device, result, call,
                         "work on cuda:%u failed; submission %llu is the first that had not ended; "
                         "compute-sanitizer can name the kernel, a new process can use the device",
                         queue->device->ordinal, (unsigned long long)completed(queue) + 1);
}

/* Requires the current context, relaxed. If the stream is busy, it leaves a mark for the next
 * query. On a wrapped stream that mark is behind all submitted work, because the owner may destroy
 * the stream afterwards. */
static accrt_status_t poll_queue(cuda_queue_t* queue, uint64_t number) {
  const CUresult result = accrt_cuda_queue_advance(queue);
  if (result == CUDA_ERROR_NOT_READY && (!queue->owned || !has_marks(queue))) {
    cuda_mark_t* mark;
    const accrt_status_t status = hold_mark(queue, number, false, &mark);
    if (status == ACCRT_OK)
      drop_mark(queue, mark);
    return status;
  }
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
    return ACCRT_OK;
  return fail_work(queue, result, "cuEventQuery");
}

accrt_status_t accrt_cuda_queue_progress(accrt_driver_queue_t* opaque, uint64_t* out_number) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  cuda_device_t* device = queue->device;
  *out_number = 0;
  const uint64_t number = submitted(queue);
  /* A stream with a mark behind all work is not checked for capture: the owner of a wrapped one may
   * have destroyed it. Nothing is asked of another one while it is captured: the question would
   * leave a mark in the capture. */
  if (completed(queue) < number && !cuda_device_is_lost(device) &&
      (has_mark_at(queue, number) || !accrt_cuda_queue_is_capturing(queue))) {
    const cuda_scope_t scope = cuda_enter(device);
    const CUstreamCaptureMode mode = cuda_relax(device);
    const accrt_status_t status = poll_queue(queue, number);
    cuda_unrelax(device, mode);
    cuda_leave(device, scope);
    if (status != ACCRT_OK) {
      *out_number = last_success(queue);
      return status;
    }
  }
  const uint64_t done = completed(queue);
  const accrt_status_t status = applicable_failure(queue, done, "queue_progress");
  *out_number = status == ACCRT_OK ? done : last_success(queue);
  return status;
}

/* ---- Waiting ---- */

typedef struct wait {
  cuda_queue_t* queue;
  uint64_t number;
  uint32_t policy;
  uint64_t timeout_ns;
  uint64_t begin_ns;
  uint64_t deadline_ns; /* UINT64_MAX: none */
} wait_t;

static bool is_late(const wait_t* wait, uint64_t now_ns) {
  return wait->deadline_ns != UINT64_MAX && now_ns >= wait->deadline_ns;
}

static void pause_between_polls(const wait_t* wait, uint64_t now_ns) {
  if (wait->policy == ACCRT_WAIT_SPIN) {
    accrt_pause();
  } else if (wait->policy == ACCRT_WAIT_YIELD) {
    sched_yield();
  } else if (now_ns - wait->begin_ns > SPIN_BEFORE_SLEEP_NS) {
    accrt_cuda_back_off(now_ns - wait->begin_ns);
  }
}

/* Polls the stream while it has no later submission than `number`. CUDA_ERROR_NOT_READY means that
 * there is a later submission now, that it is time to sleep, or that the time is over. */
static CUresult watch_stream(const wait_t* wait, bool* out_late) {
  const cuda_api_t* api = wait->queue->device->api;
  while (wait->queue->owned && submitted(wait->queue) == wait->number) {
    const CUresult result = api->cuStreamQuery(wait->queue->stream);
    if (result != CUDA_ERROR_NOT_READY)
      return result;
    if (wait->policy == ACCRT_WAIT_SPIN && wait->deadline_ns == UINT64_MAX)
      continue;
    const uint64_t now_ns = accrt_clock_ns();
    *out_late = is_late(wait, now_ns);
    if (*out_late)
      break;
    if (wait->policy == ACCRT_WAIT_BLOCK && now_ns - wait->begin_ns > SPIN_BEFORE_SLEEP_NS)
      break;
    if (wait->policy == ACCRT_WAIT_YIELD)
      sched_yield();
  }
  return CUDA_ERROR_NOT_READY;
}

/* True when the wait can block in CUDA. CUDA's wait has no timeout, and needs a blocking mark,
 * which might not be recordable any more on a wrapped stream. */
static bool sleeps_on_event(const wait_t* wait) {
  return wait->policy == ACCRT_WAIT_BLOCK && wait->deadline_ns == UINT64_MAX && wait->queue->owned;
}

static CUresult watch_mark(const wait_t* wait, const cuda_mark_t* mark, bool* out_late) {
  const cuda_api_t* api = wait->queue->device->api;
  if (sleeps_on_event(wait) && mark->blocking)
    return api->cuEventSynchronize(mark->event);
  for (;;) {
    const CUresult result = api->cuEventQuery(mark->event);
    if (result != CUDA_ERROR_NOT_READY)
      return result;
    const uint64_t now_ns = accrt_clock_ns();
    *out_late = is_late(wait, now_ns);
    if (*out_late)
      return result;
    pause_between_polls(wait, now_ns);
  }
}

static accrt_status_t wait_here(const wait_t* wait) {
  cuda_queue_t* queue = wait->queue;
  bool late = false;
  /* The owner may have destroyed a wrapped stream by now, so use marks alone. */
  CUresult result = queue->owned ? watch_stream(wait, &late) : CUDA_ERROR_NOT_READY;
  const char* call = "cuStreamQuery";
  if (result == CUDA_ERROR_NOT_READY && !late) {
    cuda_mark_t* mark;
    ACCRT_TRY(hold_mark(queue, wait->number, sleeps_on_event(wait), &mark));
    call = "cuEventSynchronize";
    result = watch_mark(wait, mark, &late);
    drop_mark(queue, mark);
  }
  if (result == CUDA_SUCCESS) {
    raise_completed(queue, wait->number);
    (void)accrt_cuda_queue_advance(queue); /* makes reached marks reusable */
    return ACCRT_OK;
  }
  if (late) {
    return accrt_cuda_refuse(queue->device->environment, ACCRT_ERROR_TIMEOUT, "queue_wait",
                             "submission %llu did not end within %llu ns",
                             (unsigned long long)wait->number,
                             (unsigned long long)wait->timeout_ns);
  }
  return fail_work(queue, result, call);
}

accrt_status_t accrt_cuda_queue_wait(accrt_driver_queue_t* opaque, uint64_t number,
                                     uint64_t timeout_ns, uint32_t policy) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  cuda_device_t* device = queue->device;
  const uint64_t last = submitted(queue);
  const uint64_t target = number < last ? number : last;
  accrt_status_t status = ACCRT_OK;
  const bool captured = target == atomic_load_explicit(&queue->captured, memory_order_relaxed);
  if (completed(queue) < target || captured) {
    if (cuda_device_is_lost(device))
      return accrt_cuda_device_lost(device, "queue_wait");
    if ((captured || !has_mark_at(queue, target)) && accrt_cuda_queue_is_capturing(queue))
      return accrt_cuda_refuse_capture(queue, "queue_wait");
    wait_t wait = {queue, target, policy, timeout_ns, 0, UINT64_MAX};
    if (policy != ACCRT_WAIT_SPIN || timeout_ns != ACCRT_TIMEOUT_INFINITE)
      wait.begin_ns = accrt_clock_ns();
    if (timeout_ns != ACCRT_TIMEOUT_INFINITE)
      wait.deadline_ns = accrt_deadline_ns(timeout_ns);
    const cuda_scope_t scope = cuda_enter(device);
    const CUstreamCaptureMode mode = cuda_relax(device);
    status = wait_here(&wait);
    cuda_unrelax(device, mode);
    cuda_leave(device, scope);
  }
  return status == ACCRT_OK ? applicable_failure(queue, target, "queue_wait") : status;
}

ACCRT_RARE void accrt_cuda_device_drain(cuda_device_t* device) {
  accrt_mutex_lock(&device->queues_mutex);
  for (cuda_queue_t* queue = device->queues; queue != NULL; queue = queue->next) {
    const uint64_t number = submitted(queue);
    if (completed(queue) >= number || cuda_device_is_lost(device) ||
        (!has_mark_at(queue, number) && accrt_cuda_queue_is_capturing(queue))) {
      continue;
    }
    const wait_t wait = {queue, number, ACCRT_WAIT_BLOCK, UINT64_MAX, accrt_clock_ns(), UINT64_MAX};
    (void)wait_here(&wait);
  }
  accrt_mutex_unlock(&device->queues_mutex);
}

/* ---- Notifications ---- */

static uint64_t event_waits(cuda_queue_t* queue) {
  return atomic_load_explicit(&queue->event_waits, memory_order_relaxed);
}

bool accrt_cuda_queue_waits_over(cuda_queue_t* queue, uint64_t waits) {
  return atomic_load_explicit(&queue->event_waits_over, memory_order_relaxed) >= waits;
}

static bool is_idle(cuda_queue_t* queue) {
  accrt_mutex_lock(&queue->mutex);
  const bool no_tickets = queue->first_ticket == NULL && !queue->watched;
  accrt_mutex_unlock(&queue->mutex);
  return no_tickets && accrt_cuda_queue_waits_over(queue, event_waits(queue)) &&
         !cuda_device_is_lost(queue->device) && !has_failed(queue) &&
         completed(queue) >= submitted(queue);
}

accrt_status_t accrt_cuda_queue_notify(accrt_driver_queue_t* opaque,
                                       accrt_driver_completion_t completion) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  cuda_device_t* device = queue->device;
  if (completion.done == NULL)
    return ACCRT_OK;
  if (is_idle(queue)) {
    completion.done(completion.user, ACCRT_OK, NULL, accrt_clock_ns());
    return ACCRT_OK;
  }
  if (accrt_cuda_queue_is_capturing(queue))
    return accrt_cuda_refuse_capture(queue, "queue_notify");
  cuda_ticket_t* ticket;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const accrt_status_t status = take_ticket(queue, false, &ticket);
  cuda_unrelax(device, mode);
  if (status == ACCRT_OK) {
    ticket->completion = completion;
    ticket->number = submitted(queue);
    ticket->event_waits = event_waits(queue);
    ticket->is_notification = true;
    append_ticket(queue, ticket);
  }
  cuda_leave(device, scope);
  return status;
}

accrt_status_t accrt_cuda_queue_reset(accrt_driver_queue_t* opaque) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  if (cuda_device_is_lost(queue->device))
    return accrt_cuda_device_lost(queue->device, "queue_reset");
  accrt_mutex_lock(&queue->mutex);
  memset(&queue->failure, 0, sizeof queue->failure);
  queue->failure_reported = false;
  atomic_store_explicit(&queue->failed, 0, memory_order_release);
  accrt_mutex_unlock(&queue->mutex);
  return ACCRT_OK;
}
