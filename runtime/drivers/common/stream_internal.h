/* runtime/drivers/common/stream_internal.h - what the files of streams know of each other. Private
 * to stream_*.c.
 *
 * stream_op.c makes operations, stream_feed.c takes requests and issues them to the driver,
 * stream_ahead.c holds work back for `ahead` and enqueues lists in pieces,
 * stream_settle.c does what the end of an operation means, stream_wait.c waits, asks and resets,
 * stream_life.c makes and ends streams, stream.c is the public face.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_STREAM_INTERNAL_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_STREAM_INTERNAL_H_

#include "runtime/drivers/common/objects.h"

/* ---- Lists ---- */

static inline void accrt_op_append(accrt_op_list_t* list, accrt_op_t* op) {
  op->next = NULL;
  if (list->head == NULL) {
    list->head = op;
  } else {
    *list->tail = op;
  }
  list->tail = &op->next;
}

static inline accrt_op_t* accrt_op_pop(accrt_op_list_t* list) {
  accrt_op_t* op = list->head;
  list->head = op->next;
  op->next = NULL;
  return op;
}

/* ---- Operations: stream_op.c ---- */

accrt_status_t accrt_op_make(accrt_stream_t* stream, accrt_op_t** out_op);
void accrt_op_free(accrt_stream_t* stream, accrt_op_t* op);
/* Puts an operation back; true when it was not wanted and is to be freed without the lock. Under
 * the lock. */
bool accrt_op_recycle(accrt_stream_t* stream, accrt_op_t* op);
accrt_op_t* accrt_op_take_spare(accrt_stream_t* stream);
/* Copies what the request points to: the driver gets it after the caller has gone. */
accrt_status_t accrt_op_copy_arrays(accrt_stream_t* stream, accrt_op_t* op,
                                    const accrt_request_t* request);
/* The small fields. References are taken here, and dropped with accrt_op_drop_references. */
void accrt_op_fill(accrt_stream_t* stream, accrt_op_t* op, const accrt_request_t* request);
static inline bool accrt_is_work(const accrt_request_t* request) {
  return request->kind == ACCRT_OP_COMMAND || request->kind == ACCRT_OP_LIST;
}

/* What an operation refers to. */
typedef struct accrt_op_references {
  accrt_semaphore_t* semaphore;
  accrt_event_t* event;
  const accrt_retained_class_t* retained_class;
  void* retained;
  bool waits; /* the semaphore's reference is a wait's */
} accrt_op_references_t;
/* Takes the references out of an operation: the caller drops them. */
accrt_op_references_t accrt_op_take_references(accrt_op_t* op);
void accrt_op_drop_references(const accrt_op_references_t* references);

/* ---- Feeding the driver: stream_feed.c ---- */

/* Issues what is deferred and may go to the driver. The caller owns the submission lock and has set
 * `busy`; an internal reference is held by `active`. Inside a context. */
void accrt_stream_drain(accrt_stream_t* stream);
/* Takes the submission lock without a number, to drain; if another thread owns it, that one will
 * drain before it unlocks. Under the lock. */
bool accrt_stream_claim(accrt_stream_t* stream);
/* Keeps a stream alive for its operations. Under the lock. */
static inline void accrt_stream_activate(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (atomic_load_explicit(&stream->active, memory_order_relaxed))
    return;
  /* Release pairs with the acquire of threads that look for operations without the lock. */
  atomic_store_explicit(&stream->active, true, memory_order_release);
  accrt_object_retain(&stream->object);
}
static inline bool accrt_stream_is_owned(const accrt_stream_t* stream) {
  return (atomic_load_explicit(&stream->submit_lock, memory_order_relaxed) & ACCRT_SUBMIT_OWNED) !=
         0;
}
static inline uint64_t accrt_stream_submitted(const accrt_stream_t* stream) {
  return atomic_load_explicit(&stream->submit_lock, memory_order_acquire) >> ACCRT_SUBMIT_SHIFT;
}

/* For numbers that only grow. */
static inline void accrt_stream_raise(atomic_uint_least64_t* number, uint64_t value) {
  uint_least64_t seen = atomic_load_explicit(number, memory_order_relaxed);
  /* Release pairs with the acquire in accrt_stream_issued. */
  while (seen < value && !atomic_compare_exchange_weak_explicit(
                             number, &seen, value, memory_order_release, memory_order_relaxed))
    continue;
}

/* ---- Work: stream_feed.c, stream_ahead.c ---- */

/* Issues or defers work, whatever the device has already. */
accrt_status_t accrt_stream_enqueue_now(accrt_stream_t* stream,
                                        const accrt_driver_command_t* command,
                                        const accrt_stream_work_t* work, uint64_t* out_number);
/* Of a stream with `ahead`. */
accrt_status_t accrt_stream_enqueue_ahead(accrt_stream_t* stream,
                                          const accrt_driver_command_t* command,
                                          const accrt_stream_work_t* work, uint64_t* out_number);

/* ---- Ends: stream_settle.c ---- */

void accrt_op_done(void* user, accrt_status_t status, const accrt_error_t* error, uint64_t time_ns);
/* Settles all that has ended, in order. Called with the lock held, returns without it; the stream
 * may be gone then. */
void accrt_stream_settle(accrt_stream_t* stream);
/* The stream has failed at `number`. Under the lock. The caller sees to it that a thread drains or
 * settles. */
void accrt_stream_fail(accrt_stream_t* stream, uint64_t number, const accrt_error_t* error);
/* What was cancelled has ended and says how far it got, which was not known before. Under the
 * lock. */
void accrt_stream_add_detail(accrt_stream_t* stream, uint64_t number, const accrt_error_t* error);
void accrt_error_make(accrt_error_t* out_error, accrt_status_t status, const char* operation,
                      const char* message);
void accrt_stream_trace(accrt_stream_t* stream, uint32_t kind, uint64_t number, const char* name,
                        accrt_status_t status, uint64_t time_ns);
/* Wakes the runtime's thread when an owner waits for memory to fall idle. To be called after a
 * fence has advanced. */
void accrt_kick_watchers(accrt_instance_t* instance);

/* ---- Looking: stream_wait.c ---- */

/* The number up to which all is complete, by what the driver has said: `ended` is the last
 * submission up to which all have ended, `issued` what was read before the driver was asked. */
static inline uint64_t accrt_stream_complete(const accrt_stream_t* stream, uint64_t issued,
                                             uint64_t ended) {
  /* Relaxed: at least what it was when `issued` was stored, which was read with acquire. */
  return ended >= atomic_load_explicit(&stream->issued_work, memory_order_relaxed) ? issued : ended;
}
static inline uint64_t accrt_stream_issued(const accrt_stream_t* stream) {
  /* Acquire pairs with the release of the thread that issued it. */
  return atomic_load_explicit(&stream->issued, memory_order_acquire);
}
/* The driver has work whose end was not seen yet. */
static inline bool accrt_stream_is_behind(const accrt_stream_t* stream) {
  return !accrt_fence_passed(stream->fence,
                             atomic_load_explicit(&stream->issued_work, memory_order_relaxed));
}
/* The queue has a record or a wait behind the last number. */
static inline bool accrt_stream_has_events(const accrt_stream_t* stream) {
  return (atomic_load_explicit(&stream->submit_lock, memory_order_relaxed) & ACCRT_SUBMIT_EVENT) !=
         0;
}
/* The first number that a failure may be of, when `ended` is the last that is known to have ended
 * well. */
uint64_t accrt_stream_first_failed(const accrt_stream_t* stream, const accrt_error_t* error,
                                   uint64_t ended);
/* The driver has returned a failure of work without a listener; it is this thread's record.
 * `ended`: as far as all went well. */
void accrt_stream_found_failure(accrt_stream_t* stream, uint64_t ended);
/* Waits on this thread until what the driver has has ended. Drivers that report no numbers
 * are not waited for: their work has listeners, which are settled in order. */
void accrt_stream_wait_queue(accrt_stream_t* stream);
/* Nothing of it runs and no thread uses it; what is deferred must have been dropped. Blocks. */
void accrt_stream_wait_idle(accrt_stream_t* stream);
/* Drops what is retained for work that has ended, or all (`all`: no other thread uses the stream).
 * Where a driver may be called. */
void accrt_stream_trim_retained(accrt_stream_t* stream, bool all);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_STREAM_INTERNAL_H_ */
