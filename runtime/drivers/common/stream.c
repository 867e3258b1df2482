/* runtime/drivers/common/stream.c - streams: order, deferral, failure. It may not know what an operation's work is.
 *
 * An operation gets its number when it is taken. If nothing is before it that was not given to the driver yet, it is given to
 * the driver at once; otherwise it is deferred. One thread at a time calls a driver's queue (`busy`): it holds no lock
 * meanwhile, and takes what others have deferred before it leaves. Ended operations are settled (signals sent, completions
 * called) strictly in order by one thread at a time (`settling`). What needs no driver (signals, notifications) just takes its
 * place in the list in flight, already done.
 *
 * Failure: the first operation that failed has `failed_number`; it and all behind it are settled as failed. What was deferred
 * moves to the list in flight, done, so that it is settled in order too.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

#define MAX_SPARES 256u
#define IDLE_PAUSE_NS UINT64_C(20000)

static void op_done(void* user, accrt_status_t status, const accrt_error_t* error,
                    uint64_t time_ns);
static void wait_task(accrt_task_t* task);

/* ---- Lists ---- */

static void append(accrt_op_list_t* list, accrt_op_t* op) {
  op->next = NULL;
  if (list->head == NULL) {
    list->head = op;
  } else {
    *list->tail = op;
  }
  list->tail = &op->next;
}

static accrt_op_t* pop(accrt_op_list_t* list) {
  accrt_op_t* op = list->head;
  list->head = op->next;
  op->next = NULL;
  return op;
}

/* ---- Operations ---- */

static void free_op(accrt_stream_t* stream, accrt_op_t* op) {
  if (op == NULL)
    return;
  accrt_free(&stream->instance->allocator, op->storage, op->storage_bytes);
  accrt_free(&stream->instance->allocator, op, sizeof *op);
}

/* Puts an operation back; true when it was not wanted and is to be freed without the lock. Under the lock. */
static bool recycle(accrt_stream_t* stream, accrt_op_t* op) {
  if (stream->spare_count >= MAX_SPARES)
    return true;
  op->next = stream->spares;
  stream->spares = op;
  stream->spare_count += 1;
  return false;
}

static accrt_op_t* take_spare(accrt_stream_t* stream) {
  accrt_op_t* op = stream->spares;
  if (op == NULL)
    return NULL;
  stream->spares = op->next;
  stream->spare_count -= 1;
  op->next = NULL;
  return op;
}

static accrt_status_t make_op(accrt_stream_t* stream, accrt_op_t** out_op) {
  void* memory;
  const accrt_status_t status =
      accrt_alloc(&stream->instance->allocator, sizeof(accrt_op_t), &memory);
  *out_op = memory;
  return status;
}

static accrt_status_t reserve_storage(accrt_stream_t* stream, accrt_op_t* op, size_t size_bytes) {
  if (op->storage_bytes >= size_bytes)
    return ACCRT_OK;
  void* memory;
  const accrt_status_t status = accrt_alloc(&stream->instance->allocator, size_bytes, &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_free(&stream->instance->allocator, op->storage, op->storage_bytes);
  op->storage = memory;
  op->storage_bytes = size_bytes;
  return ACCRT_OK;
}

static bool needs_copy(const accrt_request_t* request) {
  return request->kind == ACCRT_OP_COMMAND || request->kind == ACCRT_OP_LIST;
}

/* Keeps what the request points to: it is given to the driver after the caller has gone. */
static accrt_status_t copy_arrays(accrt_stream_t* stream, accrt_op_t* op,
                                  const accrt_request_t* request) {
  if (request->kind == ACCRT_OP_COMMAND) {
    op->command = *request->command;
    if (op->command.opcode != ACCRT_DRIVER_COMMAND_DISPATCH ||
        op->command.as.dispatch.params_size_bytes == 0)
      return ACCRT_OK;
    const size_t size_bytes = op->command.as.dispatch.params_size_bytes;
    const accrt_status_t status = reserve_storage(stream, op, size_bytes);
    if (status != ACCRT_OK)
      return status;
    memcpy(op->storage, request->command->as.dispatch.params, size_bytes);
    op->command.as.dispatch.params = op->storage;
    return ACCRT_OK;
  }
  const size_t binding_bytes = request->binding_count * sizeof(accrt_driver_binding_t);
  const size_t scalar_bytes = request->scalar_count * sizeof(uint64_t);
  const accrt_status_t status = reserve_storage(stream, op, binding_bytes + scalar_bytes);
  if (status != ACCRT_OK)
    return status;
  if (binding_bytes > 0)
    memcpy(op->storage, request->bindings, binding_bytes);
  if (scalar_bytes > 0)
    memcpy((char*)op->storage + binding_bytes, request->scalars, scalar_bytes);
  return ACCRT_OK;
}

/* The small fields; references are taken here and dropped by drop_references. */
static void fill_op(accrt_stream_t* stream, accrt_op_t* op, const accrt_request_t* request) {
  op->stream = stream;
  op->kind = request->kind;
  op->name = request->name;
  op->done = false;
  op->abandoned = false;
  op->waiting = ACCRT_WAITING_NEW;
  op->status = ACCRT_OK;
  op->time_ns = 0;
  op->semaphore = request->semaphore;
  op->value = request->value;
  op->event = request->event;
  op->generation = request->generation;
  op->notify = request->notify;
  op->notify_user = request->notify_user;
  op->list = request->list;
  op->completion = request->completion;
  op->pack = request->pack;
  op->commands = request->commands;
  op->binding_count = request->binding_count;
  op->scalar_count = request->scalar_count;
  if (op->semaphore != NULL)
    accrt_object_retain(&op->semaphore->object);
  if (op->event != NULL)
    accrt_object_retain(&op->event->object);
  if (op->commands != NULL)
    accrt_commands_ref(op->commands);
  if (op->pack != NULL)
    accrt_kernel_pack_ref(op->pack);
}

/* What an operation refers to. */
typedef struct references {
  accrt_semaphore_t* semaphore;
  accrt_event_t* event;
  accrt_commands_t* commands;
  accrt_kernel_pack_t* pack;
} references_t;

/* Takes the references out of an operation: whoever has them drops them. */
static references_t take_references(accrt_op_t* op) {
  const references_t references = {op->semaphore, op->event, op->commands, op->pack};
  op->semaphore = NULL;
  op->event = NULL;
  op->commands = NULL;
  op->pack = NULL;
  return references;
}

static void drop_references(const references_t* references) {
  accrt_semaphore_unref(references->semaphore);
  accrt_event_unref(references->event);
  accrt_commands_unref(references->commands);
  accrt_kernel_pack_unref(references->pack);
}

/* Needs no driver: its turn is when all before it has been settled. */
static bool is_marker(const accrt_op_t* op) {
  return op->kind == ACCRT_OP_SIGNAL || op->kind == ACCRT_OP_NOTIFY || op->kind == ACCRT_OP_RECORD;
}

/* A timing record behind running work asks the driver when the device got there. */
static bool asks_driver(const accrt_stream_t* stream, const accrt_op_t* op) {
  return op->kind == ACCRT_OP_RECORD && (op->event->flags & ACCRT_EVENT_FLAG_TIMING) != 0 &&
         stream->in_flight.head != NULL;
}

/* Puts an operation that is ready for the driver into flight; false when it needs no driver. Under the lock. */
static bool launch_op(accrt_stream_t* stream, accrt_op_t* op) {
  const bool driver = !is_marker(op) || asks_driver(stream, op);
  if (!driver) {
    op->done = true;
    if (stream->in_flight.head == NULL)
      op->time_ns = accrt_clock_ns();
  }
  append(&stream->in_flight, op);
  return driver;
}

/* ---- Failure ---- */

/* The stream has failed at `number`. Under the lock. */
static void fail_stream(accrt_stream_t* stream, uint64_t number, const accrt_error_t* error) {
  if (!stream->failed || number < stream->failed_number) {
    stream->failed_number = number;
    stream->error = *error;
    accrt_error_clean(&stream->error); /* a driver's, with a kernel's message */
    if (stream->error.submission == 0)
      stream->error.submission = number;
  }
  stream->failed = true;
  while (stream->deferred.head != NULL) {
    accrt_op_t* op = pop(&stream->deferred);
    op->done = true;
    append(&stream->in_flight, op);
  }
  /* Release pairs with the acquire in accrt_stream_check. */
  atomic_store_explicit(&stream->poisoned, 1, memory_order_release);
}

static void make_error(accrt_error_t* out_error, accrt_status_t status, const char* operation,
                       const char* message) {
  memset(out_error, 0, sizeof *out_error);
  out_error->struct_size = (uint32_t)sizeof *out_error;
  out_error->status = status;
  (void)snprintf(out_error->operation, sizeof out_error->operation, "%s",
                 operation != NULL ? operation : "");
  (void)snprintf(out_error->source_file, sizeof out_error->source_file, "%s",
                 "runtime/drivers/common/stream.c");
  (void)snprintf(out_error->message, sizeof out_error->message, "%s", message);
}

/* ---- Settling: what happens when an operation has ended ---- */

static void trace(accrt_stream_t* stream, uint32_t kind, uint64_t number, const char* name,
                  accrt_status_t status, uint64_t time_ns) {
  if (!accrt_instance_tracing(stream->instance))
    return;
  const accrt_trace_event_t event = {.kind = kind,
                                     .status = status,
                                     .stream_id = stream->id,
                                     .submission = number,
                                     .begin_ns = time_ns,
                                     .end_ns = time_ns,
                                     .name = name != NULL ? name : ""};
  accrt_instance_trace(stream->instance, &event);
}

static void notify_job(accrt_job_t* job) {
  accrt_op_t* op = (accrt_op_t*)((char*)job - offsetof(accrt_op_t, job));
  accrt_stream_t* stream = op->stream;
  op->notify(op->notify_user, op->status);
  accrt_mutex_lock(&stream->lock);
  const bool unwanted = recycle(stream, op);
  accrt_mutex_unlock(&stream->lock);
  if (unwanted)
    free_op(stream, op);
  accrt_stream_unref(stream);
}

/* An operation that has ended: all that settling needs of it, so that the operation itself can be used again at once. */
typedef struct ended {
  uint32_t kind;
  bool failed;
  bool first; /* the one that failed, not one behind it */
  uint64_t number;
  const char* name;
  references_t references;
  uint64_t value;
  uint64_t generation;
  accrt_driver_completion_t completion;
  uint64_t time_ns;
  accrt_error_t error; /* when failed: the stream's record */
} ended_t;

static void settle_signal(accrt_stream_t* stream, const ended_t* ended) {
  accrt_semaphore_t* semaphore = ended->references.semaphore;
  uint64_t present;
  if (ended->failed) {
    accrt_semaphore_fail_with(semaphore, &ended->error);
    return;
  }
  if (accrt_timeline_signal(&semaphore->timeline, ended->value, &present) !=
      ACCRT_ERROR_OUT_OF_RANGE)
    return;
  char message[160];
  (void)snprintf(message, sizeof message,
                 "semaphore %" PRIu64 " is at %" PRIu64
                 " already, and was to be raised to %" PRIu64,
                 semaphore->id, present, ended->value);
  accrt_error_t record;
  make_error(&record, ACCRT_ERROR_OUT_OF_RANGE, "accrt_stream_signal", message);
  accrt_mutex_lock(&stream->lock);
  fail_stream(stream, ended->number, &record);
  accrt_mutex_unlock(&stream->lock);
}

static void settle_record(const ended_t* ended) {
  if (ended->failed) {
    accrt_semaphore_fail_with(ended->references.semaphore, &ended->error);
    return;
  }
  accrt_event_reached(ended->references.event, ended->generation, ended->time_ns);
  accrt_timeline_advance(&ended->references.semaphore->timeline, ended->value);
}

/* Lets a wait go; a watch that is firing on another thread still needs it, and frees it then. */
static void settle_wait(accrt_stream_t* stream, accrt_op_t* op) {
  references_t references = {NULL, NULL, NULL, NULL};
  bool unwanted = false;
  accrt_mutex_lock(&stream->lock);
  if (op->waiting == ACCRT_WAITING_WATCHED &&
      !accrt_timeline_unwatch(&op->semaphore->timeline, &op->watch)) {
    op->abandoned = true;
    accrt_object_retain(&stream->object);
  } else {
    references = take_references(op);
    unwanted = recycle(stream, op);
  }
  accrt_mutex_unlock(&stream->lock);
  if (unwanted)
    free_op(stream, op);
  drop_references(&references);
}

/* Wakes the runtime's thread when somebody waits for memory to fall idle. To be called after a fence has advanced. A
 * read-modify-write, acq_rel, pairs with the one in accrt_instance_watch: either this sees the watcher, or the watcher sees the
 * fence. */
static void kick_watchers(accrt_instance_t* instance) {
  if (atomic_fetch_add_explicit(&instance->watched, 0, memory_order_acq_rel) > 0)
    accrt_worker_kick(&instance->worker);
}

/* Hands a notification to the runtime's thread, which puts the operation back. */
static void settle_notify(accrt_stream_t* stream, accrt_op_t* op, const ended_t* ended) {
  op->status = ended->failed ? ended->error.status : ACCRT_OK;
  op->job.run = notify_job;
  accrt_object_retain(&stream->object);
  accrt_worker_post(&stream->instance->worker, &op->job);
}

/* Does what the end of an operation means, without the lock. */
static void settle_ended(accrt_stream_t* stream, const ended_t* ended) {
  const accrt_status_t status = !ended->failed ? ACCRT_OK
                                : ended->first ? ended->error.status
                                               : ACCRT_ERROR_POISONED;
  trace(stream, ACCRT_TRACE_COMPLETE, ended->number, ended->name, status, ended->time_ns);
  if (ended->kind == ACCRT_OP_SIGNAL)
    settle_signal(stream, ended);
  if (ended->kind == ACCRT_OP_RECORD)
    settle_record(ended);
  if (ended->completion.done != NULL && ended->kind != ACCRT_OP_NONE)
    ended->completion.done(ended->completion.user, status, ended->failed ? &ended->error : NULL,
                           ended->time_ns);
  drop_references(&ended->references);
  accrt_fence_advance(stream->fence, ended->number);
  kick_watchers(stream->instance);
  accrt_timeline_advance(&stream->timeline, ended->number);
}

static uint64_t later_of(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Under the lock. A wait keeps its references: a watch may be firing. */
static void end_op(accrt_stream_t* stream, accrt_op_t* op, ended_t* out_ended) {
  stream->last_time_ns = later_of(stream->last_time_ns, op->time_ns);
  out_ended->kind = op->kind;
  out_ended->failed =
      stream->failed && op->number >= stream->failed_number && op->kind != ACCRT_OP_NONE;
  out_ended->first = op->number == stream->failed_number;
  out_ended->number = op->number;
  out_ended->name = op->name;
  out_ended->references = (references_t){NULL, NULL, NULL, NULL};
  if (op->kind != ACCRT_OP_WAIT)
    out_ended->references = take_references(op);
  out_ended->value = op->value;
  out_ended->generation = op->generation;
  out_ended->completion = op->completion;
  out_ended->time_ns = op->time_ns != 0 ? op->time_ns : stream->last_time_ns;
  if (out_ended->failed)
    out_ended->error = stream->error;
}

/* Settles all that has ended, in order. Called with the lock held, returns without it; the stream may be gone then. */
static void settle(accrt_stream_t* stream) {
  if (stream->settling) {
    accrt_mutex_unlock(&stream->lock);
    return;
  }
  stream->settling = true;
  while (stream->in_flight.head != NULL && stream->in_flight.head->done) {
    accrt_op_t* op = pop(&stream->in_flight);
    ended_t ended;
    end_op(stream, op, &ended);
    /* Back before anybody hears of the end: who repeats what he waited for finds it. */
    const bool waits = ended.kind == ACCRT_OP_WAIT, notifies = ended.kind == ACCRT_OP_NOTIFY;
    const bool unwanted = !waits && !notifies && recycle(stream, op);
    accrt_mutex_unlock(&stream->lock);
    if (unwanted)
      free_op(stream, op);
    if (notifies)
      settle_notify(stream, op, &ended);
    if (waits)
      settle_wait(stream, op);
    settle_ended(stream, &ended);
    accrt_mutex_lock(&stream->lock);
  }
  stream->settling = false;
  const bool idle = stream->active && !stream->busy && stream->in_flight.head == NULL &&
                    stream->deferred.head == NULL;
  if (idle)
    stream->active = false;
  accrt_mutex_unlock(&stream->lock);
  if (idle)
    accrt_stream_unref(stream);
}

static void op_done(void* user, accrt_status_t status, const accrt_error_t* error,
                    uint64_t time_ns) {
  accrt_op_t* op = user;
  accrt_stream_t* stream = op->stream;
  accrt_error_t made;
  if (status != ACCRT_OK && error == NULL) {
    make_error(&made, status, op->name, "the driver gave no record");
    error = &made;
  }
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  op->done = true;
  op->status = status;
  op->time_ns = time_ns;
  if (status != ACCRT_OK) {
    accrt_device_note_status(stream->device, status);
    fail_stream(stream, op->number, error);
  }
  settle(stream);
  accrt_context_leave();
}

/* ---- Feeding the driver ---- */

static void fill_submission(accrt_driver_submission_t* submission, accrt_stream_t* stream,
                            accrt_op_t* op) {
  *submission = (accrt_driver_submission_t){.struct_size = (uint32_t)sizeof *submission,
                                            .number = op->number,
                                            .stream_id = stream->id,
                                            .completion = {op_done, op}};
}

/* Gives a deferred operation to the driver, from its own copies. */
static accrt_status_t submit_deferred(accrt_stream_t* stream, accrt_op_t* op) {
  const accrt_driver_table_t* table = &stream->device->slot->table;
  accrt_driver_submission_t submission;
  fill_submission(&submission, stream, op);
  if (op->kind == ACCRT_OP_RECORD)
    return table->queue_notify(stream->queue, submission.completion);
  if (op->kind == ACCRT_OP_COMMAND)
    return table->queue_enqueue(stream->queue, &op->command, &submission);
  submission.binding_count = op->binding_count;
  submission.bindings = op->storage;
  submission.scalar_count = op->scalar_count;
  submission.scalars = (const uint64_t*)(void*)((char*)op->storage +
                                                op->binding_count * sizeof(accrt_driver_binding_t));
  return table->queue_execute(stream->queue, op->list, &submission);
}

static accrt_status_t submit_direct(accrt_stream_t* stream, accrt_op_t* op,
                                    const accrt_request_t* request) {
  const accrt_driver_table_t* table = &stream->device->slot->table;
  accrt_driver_submission_t submission;
  fill_submission(&submission, stream, op);
  if (request->kind == ACCRT_OP_RECORD)
    return table->queue_notify(stream->queue, submission.completion);
  if (request->kind == ACCRT_OP_COMMAND)
    return table->queue_enqueue(stream->queue, request->command, &submission);
  submission.binding_count = request->binding_count;
  submission.bindings = request->bindings;
  submission.scalar_count = request->scalar_count;
  submission.scalars = request->scalars;
  return table->queue_execute(stream->queue, request->list, &submission);
}

/* Whether the wait at the head of the deferred list is over; starts to watch its semaphore. Under the lock. */
static bool wait_is_over(accrt_op_t* op) {
  if (op->waiting == ACCRT_WAITING_FIRED)
    return true;
  if (op->waiting == ACCRT_WAITING_WATCHED)
    return false;
  op->watch.value = op->value;
  op->task.run = wait_task;
  const accrt_reach_t reach = accrt_timeline_watch(&op->semaphore->timeline, &op->watch);
  op->waiting = reach == ACCRT_REACH_PENDING ? ACCRT_WAITING_WATCHED : ACCRT_WAITING_FIRED;
  if (reach != ACCRT_REACH_PENDING)
    op->watch.failed = reach == ACCRT_REACH_FAILED;
  return reach != ACCRT_REACH_PENDING;
}

/* The next operation that the driver is to get, already in flight; NULL when there is none: then `busy` is given up. */
static accrt_op_t* next_for_driver(accrt_stream_t* stream) {
  accrt_op_t* found = NULL;
  accrt_mutex_lock(&stream->lock);
  while (stream->deferred.head != NULL && found == NULL) {
    accrt_op_t* op = stream->deferred.head;
    if (op->kind != ACCRT_OP_WAIT) {
      (void)pop(&stream->deferred);
      if (launch_op(stream, op))
        found = op;
      continue;
    }
    if (!wait_is_over(op))
      break;
    (void)pop(&stream->deferred);
    op->done = true;
    append(&stream->in_flight, op);
    if (op->watch.failed)
      fail_stream(stream, op->number, &op->semaphore->error);
  }
  if (found == NULL)
    stream->busy = false;
  accrt_mutex_unlock(&stream->lock);
  return found;
}

/* Gives the driver what is deferred and may go. The caller has set `busy`; an internal reference is held by `active`. */
static void drain(accrt_stream_t* stream) {
  accrt_op_t* op = next_for_driver(stream);
  if (op != NULL) {
    /* What fails here is not the fault of the call that this thread is in. */
    const accrt_error_t saved = *accrt_error_current();
    do {
      const accrt_status_t status = submit_deferred(stream, op);
      if (status == ACCRT_OK)
        continue;
      accrt_mutex_lock(&stream->lock);
      op->done = true;
      accrt_device_note_status(stream->device, status);
      /* A record takes its place in order all the same, only less exact in time. */
      if (op->kind != ACCRT_OP_RECORD)
        fail_stream(stream, op->number, accrt_error_current());
      accrt_mutex_unlock(&stream->lock);
    } while ((op = next_for_driver(stream)) != NULL);
    (void)accrt_error_restore(&saved);
  }
  accrt_mutex_lock(&stream->lock);
  settle(stream);
}

static void wait_fired(accrt_watch_t* watch) {
  accrt_op_t* op = (accrt_op_t*)((char*)watch - offsetof(accrt_op_t, watch));
  accrt_context_post(&op->task);
}

/* The semaphore was reached or has failed: the stream goes on. */
static void wait_task(accrt_task_t* task) {
  accrt_op_t* op = (accrt_op_t*)((char*)task - offsetof(accrt_op_t, task));
  accrt_stream_t* stream = op->stream;
  accrt_mutex_lock(&stream->lock);
  if (op->abandoned) {
    accrt_mutex_unlock(&stream->lock);
    const references_t references = take_references(op);
    drop_references(&references);
    free_op(stream, op);
    accrt_stream_unref(stream);
    return;
  }
  op->waiting = ACCRT_WAITING_FIRED;
  const bool ours = !stream->busy && stream->deferred.head == op;
  if (ours)
    stream->busy = true;
  accrt_mutex_unlock(&stream->lock);
  if (ours)
    drain(stream);
}

/* ---- Taking requests ---- */

typedef struct taken {
  accrt_op_t*
      op; /* to be touched by the one who feeds it to the driver alone: others are gone once the lock is */
  uint64_t number;
  bool direct; /* given to the driver by this call, from the caller's own arrays */
  bool drain;  /* this call became the one that feeds the driver */
} taken_t;

static accrt_status_t refuse(accrt_stream_t* stream, accrt_op_t* op) {
  free_op(stream, op);
  return accrt_stream_poisoned(stream, "");
}

/* Numbers the request and puts it into its list. Allocates outside of the lock, and only when there is nothing to reuse. */
static accrt_status_t take(accrt_stream_t* stream, const accrt_request_t* request,
                           taken_t* out_taken) {
  accrt_op_t* op = NULL;
  bool copied = !needs_copy(request), direct;
  for (;;) {
    accrt_mutex_lock(&stream->lock);
    if (stream->failed) {
      accrt_mutex_unlock(&stream->lock);
      return refuse(stream, op);
    }
    direct = !stream->busy && stream->deferred.head == NULL && request->kind != ACCRT_OP_WAIT;
    if (op == NULL)
      op = take_spare(stream);
    if (op != NULL && (direct || copied))
      break;
    accrt_mutex_unlock(&stream->lock);
    accrt_status_t status = op == NULL ? make_op(stream, &op) : ACCRT_OK;
    if (status == ACCRT_OK && !direct && !copied) {
      status = copy_arrays(stream, op, request);
      copied = true;
    }
    if (status != ACCRT_OK) {
      free_op(stream, op);
      return status;
    }
  }
  fill_op(stream, op, request);
  op->watch.fire = wait_fired;
  op->number = ++stream->last_number;
  if (!stream->active) {
    stream->active = true;
    accrt_object_retain(&stream->object);
  }
  *out_taken = (taken_t){.op = op, .number = op->number};
  if (direct) {
    out_taken->direct = launch_op(stream, op);
    stream->busy = out_taken->direct;
  } else {
    append(&stream->deferred, op);
    out_taken->drain = !stream->busy && stream->deferred.head == op;
    if (out_taken->drain)
      stream->busy = true;
  }
  accrt_mutex_unlock(&stream->lock);
  return ACCRT_OK;
}

/* Gives the operation to the driver, then what others have deferred meanwhile. */
static accrt_status_t feed_direct(accrt_stream_t* stream, accrt_op_t* op,
                                  const accrt_request_t* request) {
  accrt_status_t status = submit_direct(stream, op, request);
  accrt_mutex_lock(&stream->lock);
  if (status != ACCRT_OK) {
    accrt_device_note_status(stream->device, status);
    op->done = true;
    if (op->kind == ACCRT_OP_RECORD) {
      status = ACCRT_OK; /* in order all the same, only less exact in time */
    } else {
      op->kind = ACCRT_OP_NONE;
    }
  }
  const bool more = stream->deferred.head != NULL;
  stream->busy = more;
  if (!more) {
    settle(stream);
    return status;
  }
  accrt_mutex_unlock(&stream->lock);
  drain(stream);
  return status;
}

accrt_status_t accrt_stream_enqueue(accrt_stream_t* stream, const accrt_request_t* request,
                                    uint64_t* out_number) {
  if (accrt_device_is_lost(stream->device))
    return ACCRT_FAIL_INNER(DEVICE_LOST, "%s is gone", stream->device->info.name);
  taken_t taken = {.op = NULL};
  accrt_status_t status = take(stream, request, &taken);
  if (status != ACCRT_OK)
    return status;
  if (accrt_instance_tracing(stream->instance)) {
    trace(stream, ACCRT_TRACE_SUBMIT, taken.number, request->name, ACCRT_OK, accrt_clock_ns());
  }
  accrt_context_enter();
  if (taken.direct) {
    status = feed_direct(stream, taken.op, request);
  } else if (taken.drain) {
    drain(stream);
  } else {
    accrt_mutex_lock(&stream->lock);
    settle(stream);
  }
  accrt_context_leave();
  if (out_number != NULL)
    *out_number = taken.number;
  return status;
}

/* ---- The door ---- */

accrt_status_t accrt_stream_execute(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                    uint64_t* out_submission) {
  *out_submission = 0;
  const accrt_request_t request = {.kind = ACCRT_OP_LIST,
                                   .name = work->name,
                                   .list = work->list,
                                   .bindings = work->bindings,
                                   .scalars = work->scalars,
                                   .binding_count = work->binding_count,
                                   .scalar_count = work->scalar_count,
                                   .completion = work->completion};
  return accrt_stream_enqueue(stream, &request, out_submission);
}

/* Takes an idle stream for this thread. */
static accrt_status_t take_idle(accrt_stream_t* stream, uint64_t* out_number) {
  accrt_status_t status = ACCRT_ERROR_NOT_READY;
  accrt_mutex_lock(&stream->lock);
  if (stream->failed) {
    status = ACCRT_ERROR_POISONED;
  } else if (!stream->busy && !stream->settling && stream->in_flight.head == NULL &&
             stream->deferred.head == NULL) {
    stream->busy = true;
    *out_number = ++stream->last_number;
    status = ACCRT_OK;
  }
  accrt_mutex_unlock(&stream->lock);
  return status;
}

/* Gives it back: the number has ended, and what others have enqueued meanwhile goes to the driver. */
static void give_idle(accrt_stream_t* stream, uint64_t number) {
  accrt_fence_advance(stream->fence, number);
  accrt_context_enter();
  accrt_timeline_advance(&stream->timeline, number);
  accrt_mutex_lock(&stream->lock);
  if (stream->deferred.head == NULL) {
    stream->busy = false;
    settle(stream);
  } else {
    accrt_mutex_unlock(&stream->lock);
    drain(stream);
  }
  accrt_context_leave();
}

static void trace_inline(accrt_stream_t* stream, const accrt_stream_work_t* work, uint64_t number,
                         accrt_status_t status, uint64_t begin_ns) {
  trace(stream, ACCRT_TRACE_SUBMIT, number, work->name, ACCRT_OK, begin_ns);
  trace(stream, ACCRT_TRACE_COMPLETE, number, work->name, status, accrt_clock_ns());
}

accrt_status_t accrt_stream_execute_inline(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                           uint64_t* out_submission) {
  const accrt_driver_table_t* table = &stream->device->slot->table;
  uint64_t number;
  *out_submission = 0;
  if (table->queue_run == NULL)
    return ACCRT_ERROR_NOT_READY;
  if (accrt_device_is_lost(stream->device))
    return ACCRT_FAIL_INNER(DEVICE_LOST, "%s is gone", stream->device->info.name);
  accrt_status_t status = take_idle(stream, &number);
  if (status == ACCRT_ERROR_POISONED)
    return accrt_stream_poisoned(stream, "");
  if (status != ACCRT_OK)
    return status;
  const bool tracing = accrt_instance_tracing(stream->instance) != 0;
  const uint64_t begin_ns = tracing ? accrt_clock_ns() : 0;
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .binding_count = work->binding_count,
                                                .bindings = work->bindings,
                                                .scalars = work->scalars,
                                                .scalar_count = work->scalar_count,
                                                .number = number,
                                                .stream_id = stream->id};
  status = table->queue_run(stream->queue, work->list, &submission);
  if (status != ACCRT_OK && status != ACCRT_ERROR_NOT_READY) {
    accrt_device_note_status(stream->device, status);
    accrt_error_current()->submission = number;
  }
  give_idle(stream, number);
  if (tracing && status != ACCRT_ERROR_NOT_READY)
    trace_inline(stream, work, number, status, begin_ns);
  *out_submission = number;
  return status;
}

accrt_fence_t* accrt_stream_fence(accrt_stream_t* stream) {
  return stream->fence;
}

void accrt_fence_refresh(accrt_fence_t* fence) {
  (void)fence; /* every operation has a completion, which advances it */
}

void accrt_device_refresh_fences(accrt_device_t* device) {
  (void)device;
}

uint64_t accrt_stream_last_submission(accrt_stream_t* stream) {
  accrt_mutex_lock(&stream->lock);
  const uint64_t number = stream->last_number;
  accrt_mutex_unlock(&stream->lock);
  return number;
}

/* ---- Life ---- */

static void destroy(accrt_zombie_t* zombie) {
  accrt_stream_t* stream = (accrt_stream_t*)zombie;
  accrt_instance_t* instance = stream->instance;
  accrt_mutex_lock(&instance->lock);
  if (stream->next != NULL)
    stream->next->previous = stream->previous;
  if (stream->previous != NULL) {
    stream->previous->next = stream->next;
  } else {
    instance->streams = stream->next;
  }
  accrt_mutex_unlock(&instance->lock);
  if (stream->queue != NULL)
    stream->device->slot->table.queue_destroy(stream->queue);
  accrt_fence_advance(stream->fence, UINT64_MAX);
  accrt_fence_release(stream->fence);
  while (stream->spares != NULL)
    free_op(stream, take_spare(stream));
  accrt_free(&instance->allocator, stream, sizeof *stream);
}

void accrt_stream_unref(accrt_stream_t* stream) {
  if (!accrt_object_release(&stream->object))
    return;
  stream->zombie.destroy = destroy;
  accrt_dispose(stream->instance, &stream->zombie);
}

static void link_stream(accrt_stream_t* stream) {
  accrt_instance_t* instance = stream->instance;
  accrt_mutex_lock(&instance->lock);
  stream->next = instance->streams;
  if (stream->next != NULL)
    stream->next->previous = stream;
  instance->streams = stream;
  accrt_mutex_unlock(&instance->lock);
}

static int32_t clamp_priority(const accrt_device_t* device, int32_t priority) {
  const accrt_device_info_t* info = &device->info;
  if (info->priority_least == info->priority_greatest)
    return priority; /* it has none, or does not say: the driver's own affair */
  if (priority < info->priority_least)
    return info->priority_least;
  return priority > info->priority_greatest ? info->priority_greatest : priority;
}

/* `native`: somebody else's queue to be wrapped, or NULL for one of the stream's own. */
static accrt_status_t open_queue(accrt_stream_t* stream, int32_t priority, void* const* native) {
  const accrt_driver_table_t* table = &stream->device->slot->table;
  stream->foreign = native != NULL;
  return native != NULL
             ? table->queue_wrap(stream->device->driver_device, *native, &stream->queue)
             : table->queue_create(stream->device->driver_device, priority, &stream->queue);
}

static accrt_status_t make_stream(accrt_device_t* device, const accrt_stream_options_t* options,
                                  void* const* native, accrt_stream_t** out_stream) {
  accrt_instance_t* instance = device->instance;
  void* memory;
  accrt_status_t status = accrt_alloc(&instance->allocator, sizeof(accrt_stream_t), &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_stream_t* stream = memory;
  accrt_object_init(&stream->object);
  accrt_mutex_init(&stream->lock);
  accrt_timeline_init(&stream->timeline, 0);
  stream->device = device;
  stream->instance = instance;
  stream->id = accrt_instance_next_id(instance);
  (void)snprintf(stream->label, sizeof stream->label, "%s",
                 options->label != NULL ? options->label : "");
  status = accrt_fence_create(&instance->allocator, stream->id, &stream->fence);
  if (status == ACCRT_OK)
    status = open_queue(stream, clamp_priority(device, options->priority), native);
  if (status != ACCRT_OK) {
    accrt_device_note_status(device, status);
    accrt_fence_release(stream->fence);
    accrt_free(&instance->allocator, stream, sizeof *stream);
    return status;
  }
  link_stream(stream);
  *out_stream = stream;
  return ACCRT_OK;
}

accrt_status_t accrt_stream_create(accrt_device_t* device, const accrt_stream_options_t* options,
                                   accrt_stream_t** out_stream) {
  if (out_stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_stream is NULL");
  *out_stream = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (device == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "device is NULL");
  if (accrt_device_is_lost(device))
    return ACCRT_FAIL(DEVICE_LOST, "%s is gone", device->info.name);
  accrt_stream_options_t local;
  status = accrt_struct_read("accrt_stream_options_t", options, &local, sizeof local);
  if (status != ACCRT_OK)
    return status;
  accrt_instance_reap_zombies(device->instance);
  status = make_stream(device, &local, NULL, out_stream);
  if (status == ACCRT_OK)
    (void)accrt_instance_retain(device->instance);
  return status;
}

accrt_status_t accrt_stream_wrap(accrt_device_t* device, void* native,
                                 accrt_stream_t** out_stream) {
  if (out_stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_stream is NULL");
  *out_stream = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (device == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "device is NULL");
  if (device->slot->table.queue_wrap == NULL)
    return ACCRT_FAIL(UNSUPPORTED, "%s has no native queues", device->info.name);
  if (accrt_device_is_lost(device))
    return ACCRT_FAIL(DEVICE_LOST, "%s is gone", device->info.name);
  accrt_instance_reap_zombies(device->instance);
  const accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  status = make_stream(device, &options, &native, out_stream);
  if (status == ACCRT_OK)
    (void)accrt_instance_retain(device->instance);
  return status;
}

accrt_status_t accrt_stream_native(accrt_stream_t* stream, void** out_native) {
  if (out_native == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_native is NULL");
  *out_native = NULL;
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "stream is NULL");
  if (stream->device->slot->table.queue_native == NULL)
    return ACCRT_FAIL(UNSUPPORTED, "%s has no native queues", stream->device->info.name);
  accrt_mutex_lock(&stream->lock);
  const bool defers = stream->deferred.head != NULL;
  accrt_mutex_unlock(&stream->lock);
  if (defers) {
    return ACCRT_FAIL(NOT_READY, "stream %" PRIu64 " holds work that waits for a semaphore",
                      stream->id);
  }
  *out_native = stream->device->slot->table.queue_native(stream->queue);
  return ACCRT_OK;
}

accrt_stream_t* accrt_stream_retain(accrt_stream_t* stream) {
  if (stream == NULL || accrt_forked())
    return stream;
  accrt_object_retain(&stream->object);
  (void)accrt_instance_retain(stream->instance);
  return stream;
}

void accrt_stream_release(accrt_stream_t* stream) {
  if (stream == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = stream->instance;
  accrt_stream_unref(stream);
  accrt_instance_release(instance);
}

uint64_t accrt_stream_id(accrt_stream_t* stream) {
  return stream != NULL ? stream->id : 0;
}

accrt_device_t* accrt_stream_device(accrt_stream_t* stream) {
  return stream != NULL ? stream->device : NULL;
}

/* ---- Waiting and resetting ---- */

static bool is_failed(accrt_stream_t* stream, uint64_t number) {
  accrt_mutex_lock(&stream->lock);
  const bool failed = stream->failed && number >= stream->failed_number;
  const bool dropped =
      number != 0 && number >= stream->dropped_first && number <= stream->dropped_last;
  accrt_mutex_unlock(&stream->lock);
  return failed || dropped;
}

accrt_status_t accrt_stream_wait_number(accrt_stream_t* stream, uint64_t number,
                                        uint64_t timeout_ns, uint32_t policy) {
  const accrt_wait_item_t item = {&stream->timeline, number};
  accrt_waiter_watch_t watch;
  const accrt_wait_t wait = {.items = &item,
                             .count = 1,
                             .timeout_ns = timeout_ns,
                             .policy = policy,
                             .watches = &watch,
                             .progress = accrt_instance_progress(stream->instance),
                             .progress_user = stream->instance};
  uint32_t index;
  const accrt_reach_t reach = accrt_wait(&wait, &index);
  accrt_instance_reap_zombies(stream->instance);
  if (is_failed(stream, number))
    return accrt_stream_poisoned(stream, "");
  if (reach == ACCRT_REACH_REACHED)
    return ACCRT_OK;
  const uint64_t value = accrt_timeline_value(&stream->timeline);
  if (timeout_ns == 0) {
    return ACCRT_FAIL_INNER(
        NOT_READY, "stream %" PRIu64 " has completed %" PRIu64 " of %" PRIu64 " submissions",
        stream->id, value, number);
  }
  return ACCRT_FAIL_INNER(TIMEOUT,
                          "waited %" PRIu64 " ns; stream %" PRIu64 " has completed %" PRIu64
                          " of %" PRIu64 " submissions",
                          timeout_ns, stream->id, value, number);
}

accrt_status_t accrt_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns,
                                        uint32_t policy) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "stream is NULL");
  if (policy > ACCRT_WAIT_SPIN)
    return ACCRT_FAIL(INVALID_ARGUMENT, "policy %" PRIu32 " is not known", policy);
  return accrt_stream_wait_number(stream, accrt_stream_last_submission(stream), timeout_ns, policy);
}

accrt_status_t accrt_stream_query(accrt_stream_t* stream) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "stream is NULL");
  accrt_mutex_lock(&stream->lock);
  const bool failed = stream->failed;
  const uint64_t last = stream->last_number;
  accrt_mutex_unlock(&stream->lock);
  if (failed)
    return accrt_stream_poisoned(stream, __func__);
  const uint64_t value = accrt_timeline_value(&stream->timeline);
  if (value >= last)
    return ACCRT_OK;
  return ACCRT_FAIL(NOT_READY,
                    "stream %" PRIu64 " has completed %" PRIu64 " of %" PRIu64 " submissions",
                    stream->id, value, last);
}

accrt_status_t accrt_stream_error(accrt_stream_t* stream, accrt_error_t* out_error) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "stream is NULL");
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_mutex_lock(&stream->lock);
  if (stream->failed)
    error = stream->error;
  accrt_mutex_unlock(&stream->lock);
  return accrt_struct_write("accrt_error_t", out_error, &error, sizeof error);
}

static void pause_a_little(accrt_stream_t* stream) {
  const accrt_wait_progress_fn_t progress = accrt_instance_progress(stream->instance);
  if (progress != NULL && progress(stream->instance) != 0)
    return;
  atomic_uint nobody;
  atomic_init(&nobody, 0);
  accrt_futex_wait(&nobody, 0, IDLE_PAUSE_NS);
}

/* Until nothing runs and nobody is at it. What is deferred must have been dropped. */
static void wait_idle(accrt_stream_t* stream) {
  for (;;) {
    accrt_mutex_lock(&stream->lock);
    /* Acquire pairs with the release where a transfer ends (staging_stream.c). */
    const bool idle = !stream->busy && !stream->settling && stream->in_flight.head == NULL &&
                      atomic_load_explicit(&stream->staged, memory_order_acquire) == 0;
    accrt_mutex_unlock(&stream->lock);
    if (idle)
      return;
    pause_a_little(stream);
  }
}

/* Fails what is deferred, if anything is. */
static void drop_deferred(accrt_stream_t* stream, const char* operation, const char* message) {
  accrt_error_t error;
  make_error(&error, ACCRT_ERROR_CANCELLED, operation, message);
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  if (stream->deferred.head != NULL)
    fail_stream(stream, stream->deferred.head->number, &error);
  settle(stream);
  accrt_context_leave();
}

void accrt_stream_abandon(accrt_stream_t* stream) {
  drop_deferred(stream, "accrt_instance_release",
                "dropped: the instance ended before the semaphore was signalled");
  wait_idle(stream);
}

static accrt_status_t reset_queue(accrt_stream_t* stream) {
  if (accrt_device_is_lost(stream->device))
    return ACCRT_FAIL(DEVICE_LOST, "%s is gone", stream->device->info.name);
  const accrt_status_t status = stream->device->slot->table.queue_reset(stream->queue);
  accrt_device_note_status(stream->device, status);
  return status;
}

accrt_status_t accrt_stream_reset(accrt_stream_t* stream) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "stream is NULL");
  drop_deferred(stream, __func__, "dropped: the stream was reset");
  /* One thread resets; the others find nothing to do when it is over. */
  bool ours = false, failed = true;
  while (!ours && failed) {
    wait_idle(stream);
    accrt_mutex_lock(&stream->lock);
    failed = stream->failed;
    ours = failed && !stream->resetting && stream->in_flight.head == NULL;
    if (ours)
      stream->resetting = true;
    accrt_mutex_unlock(&stream->lock);
    if (!ours && failed)
      pause_a_little(stream);
  }
  if (!failed)
    return accrt_device_is_lost(stream->device)
               ? ACCRT_FAIL(DEVICE_LOST, "%s is gone", stream->device->info.name)
               : ACCRT_OK;
  status = reset_queue(stream);
  accrt_mutex_lock(&stream->lock);
  stream->resetting = false;
  if (status == ACCRT_OK) {
    stream->failed = false;
    atomic_store_explicit(&stream->poisoned, 0, memory_order_relaxed);
    /* Who still waits for a number of before learns what became of it; who waits from now on has a number of his own. */
    stream->dropped_first = stream->failed_number;
    stream->dropped_last = stream->last_number;
    stream->last_number += 1;
    accrt_fence_advance(stream->fence, stream->last_number);
    accrt_timeline_advance(&stream->timeline, stream->last_number);
  }
  accrt_mutex_unlock(&stream->lock);
  return status;
}

/* ---- Waits, signals, notifications ---- */

static accrt_status_t check_semaphore(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                      uint64_t value, const char* operation) {
  const accrt_status_t status = accrt_check_fork_in(operation);
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL || semaphore == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: %s is NULL", operation,
                      stream == NULL ? "stream" : "semaphore");
  }
  if (value == UINT64_MAX)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: UINT64_MAX is not a value", operation);
  if (semaphore->instance != stream->instance) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "%s: semaphore %" PRIu64 " is of another instance than the stream", operation,
                      semaphore->id);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                 uint64_t value) {
  const accrt_status_t status = check_semaphore(stream, semaphore, value, __func__);
  if (status != ACCRT_OK)
    return status;
  const accrt_reach_t reach = accrt_timeline_reach(&semaphore->timeline, value);
  if (reach == ACCRT_REACH_FAILED)
    return accrt_semaphore_poisoned(semaphore, __func__);
  if (reach == ACCRT_REACH_REACHED)
    return accrt_stream_check(stream, __func__);
  if (stream->foreign) {
    return ACCRT_FAIL(NOT_READY,
                      "semaphore %" PRIu64 " has not reached %" PRIu64
                      ", and stream %" PRIu64 " is somebody else's queue: it cannot hold work back",
                      semaphore->id, value, stream->id);
  }
  const accrt_request_t request = {
      .kind = ACCRT_OP_WAIT, .name = __func__, .semaphore = semaphore, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

accrt_status_t accrt_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                   uint64_t value) {
  const accrt_status_t status = check_semaphore(stream, semaphore, value, __func__);
  if (status != ACCRT_OK)
    return status;
  if (accrt_timeline_failed(&semaphore->timeline))
    return accrt_semaphore_poisoned(semaphore, __func__);
  if (stream->device->caller_runs)
    atomic_store_explicit(&semaphore->on_caller, 1, memory_order_relaxed);
  const accrt_request_t request = {
      .kind = ACCRT_OP_SIGNAL, .name = __func__, .semaphore = semaphore, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

accrt_status_t accrt_stream_notify(accrt_stream_t* stream,
                                   void (*notify)(void* user, accrt_status_t status), void* user) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL || notify == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", stream == NULL ? "stream" : "notify");
  status = accrt_worker_start(&stream->instance->worker);
  if (status != ACCRT_OK)
    return status;
  const accrt_request_t request = {
      .kind = ACCRT_OP_NOTIFY, .name = __func__, .notify = notify, .notify_user = user};
  return accrt_stream_enqueue(stream, &request, NULL);
}
