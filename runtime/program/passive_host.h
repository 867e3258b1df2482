/* runtime/program/passive_host.h - test fixture: the host driver with a progress counter, so that
 * programs run on streams without completion callbacks. Nothing runs on the calling thread. For
 * tests alone.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_PASSIVE_HOST_H_
#define ACCRT_RUNTIME_PROGRAM_PASSIVE_HOST_H_

#include <sched.h>

#include "runtime/core/error.h"
#include "runtime/program/internal.h"

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);

typedef struct passive_queue {
  accrt_driver_queue_t* host;
  atomic_ullong enqueued, ended, tickets;
  atomic_int failed;
  accrt_mutex_t lock;
  accrt_error_t error; /* under the lock */
} passive_queue_t;

typedef struct passive_ticket {
  passive_queue_t* queue;
  uint64_t number;
  accrt_driver_completion_t completion; /* of the submission, if it has one */
} passive_ticket_t;

static inline const accrt_driver_table_t* passive_under(void) {
  return accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION);
}

static inline void passive_done(void* user, accrt_status_t status, const accrt_error_t* error,
                                uint64_t time_ns) {
  passive_ticket_t* ticket = user;
  passive_queue_t* queue = ticket->queue;
  const accrt_driver_completion_t completion = ticket->completion;
  accrt_mutex_lock(&queue->lock);
  if (status != ACCRT_OK && !atomic_load(&queue->failed)) {
    queue->error = *error;
    queue->error.submission = ticket->number;
    atomic_store(&queue->failed, 1);
  }
  if (status == ACCRT_OK && ticket->number > atomic_load(&queue->ended))
    atomic_store(&queue->ended, ticket->number);
  accrt_mutex_unlock(&queue->lock);
  free(ticket);
  atomic_fetch_sub(&queue->tickets, 1);
  if (completion.done != NULL) /* the callback may destroy the queue */
    completion.done(completion.user, status, error, time_ns);
}

static inline accrt_driver_submission_t passive_watch(passive_queue_t* queue,
                                                      const accrt_driver_submission_t* submission) {
  accrt_driver_submission_t own = *submission;
  passive_ticket_t* ticket = malloc(sizeof *ticket);
  assert_non_null(ticket);
  *ticket = (passive_ticket_t){queue, submission->number, submission->completion};
  own.completion = (accrt_driver_completion_t){passive_done, ticket};
  atomic_fetch_add(&queue->tickets, 1);
  /* Before the call: the submission may be complete, and the queue destroyed, when the call
   * returns. */
  atomic_store(&queue->enqueued, own.number);
  return own;
}

static inline void passive_unwatch(passive_queue_t* queue, const accrt_driver_submission_t* own,
                                   accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  free(own->completion.user);
  atomic_store(&queue->ended, own->number); /* refused: nothing to wait for */
  atomic_fetch_sub(&queue->tickets, 1);
}

static inline accrt_status_t passive_create(accrt_driver_device_t* device, int32_t priority,
                                            accrt_driver_queue_t** out_queue) {
  passive_queue_t* queue = calloc(1, sizeof *queue);
  assert_non_null(queue);
  accrt_mutex_init(&queue->lock, ACCRT_LOCK_HOST_QUEUE);
  *out_queue = (accrt_driver_queue_t*)queue;
  const accrt_status_t status = passive_under()->queue_create(device, priority, &queue->host);
  if (status != ACCRT_OK) {
    free(queue);
    *out_queue = NULL;
  }
  return status;
}

static inline void passive_destroy(accrt_driver_queue_t* opaque) {
  passive_queue_t* queue = (passive_queue_t*)opaque;
  while (atomic_load(&queue->tickets) != 0)
    (void)sched_yield();
  passive_under()->queue_destroy(queue->host);
  free(queue);
}

static inline accrt_status_t passive_enqueue(accrt_driver_queue_t* opaque,
                                             const accrt_driver_command_t* command,
                                             const accrt_driver_submission_t* submission) {
  passive_queue_t* queue = (passive_queue_t*)opaque;
  const accrt_driver_submission_t own = passive_watch(queue, submission);
  const accrt_status_t status = passive_under()->queue_enqueue(queue->host, command, &own);
  passive_unwatch(queue, &own, status);
  return status;
}

static inline accrt_status_t passive_execute(accrt_driver_queue_t* opaque,
                                             accrt_driver_list_t* list,
                                             const accrt_driver_submission_t* submission) {
  passive_queue_t* queue = (passive_queue_t*)opaque;
  const accrt_driver_submission_t own = passive_watch(queue, submission);
  const accrt_status_t status = passive_under()->queue_execute(queue->host, list, &own);
  passive_unwatch(queue, &own, status);
  return status;
}

static inline accrt_status_t passive_notify(accrt_driver_queue_t* opaque,
                                            accrt_driver_completion_t completion) {
  return passive_under()->queue_notify(((passive_queue_t*)opaque)->host, completion);
}

static inline accrt_status_t passive_reset(accrt_driver_queue_t* opaque) {
  passive_queue_t* queue = (passive_queue_t*)opaque;
  while (atomic_load(&queue->tickets) != 0)
    (void)sched_yield();
  atomic_store(&queue->failed, 0);
  return passive_under()->queue_reset(queue->host);
}

static inline accrt_status_t passive_progress(accrt_driver_queue_t* opaque, uint64_t* out_number) {
  passive_queue_t* queue = (passive_queue_t*)opaque;
  *out_number = atomic_load(&queue->ended);
  if (!atomic_load(&queue->failed))
    return ACCRT_OK;
  accrt_mutex_lock(&queue->lock);
  const accrt_error_t error = queue->error;
  accrt_mutex_unlock(&queue->lock);
  return accrt_error_restore(&error);
}

static inline accrt_status_t passive_wait(accrt_driver_queue_t* opaque, uint64_t number,
                                          uint64_t timeout_ns, uint32_t policy) {
  (void)policy;
  passive_queue_t* queue = (passive_queue_t*)opaque;
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  const uint64_t last = atomic_load(&queue->enqueued);
  const uint64_t target = number < last ? number : last;
  while (atomic_load(&queue->ended) < target && !atomic_load(&queue->failed)) {
    if (accrt_deadline_left_ns(deadline_ns) == 0)
      return ACCRT_ERROR_TIMEOUT;
    (void)sched_yield();
  }
  uint64_t ended;
  return passive_progress(opaque, &ended);
}

static inline const void* passive_host_query(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table = *accrt_driver_host_query(max_abi);
  table.queue_create = passive_create;
  table.queue_destroy = passive_destroy;
  table.queue_enqueue = passive_enqueue;
  table.queue_execute = passive_execute;
  table.queue_run = NULL;
  table.queue_notify = passive_notify;
  table.queue_reset = passive_reset;
  table.queue_progress = passive_progress;
  table.queue_wait = passive_wait;
  return &table;
}

#endif /* ACCRT_RUNTIME_PROGRAM_PASSIVE_HOST_H_ */
