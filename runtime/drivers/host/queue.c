/* runtime/drivers/host/queue.c - in-order queues: entries that wait, one thread at a time that
 * works on them, failure and skipping.
 *
 * A queue with entries is *owned*: it is in the ready list, or some thread works on it. The owner
 * runs entries in order and calls their completions, holding no lock. `pending` drops before a
 * completion is called, so that a caller that learns of the end can at once run something
 * on the idle queue; a reference keeps the queue's memory until its owner has let go.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

#define INITIAL_PARAMS_BYTES 256u
#define PARAMS_ALIGNMENT 16u

ACCRT_RARE accrt_status_t accrt_host_queue_create(host_device_t* device, int32_t priority,
                                                  host_queue_t** out_queue) {
  *out_queue = NULL;
  host_queue_t* queue;
  ACCRT_TRY(accrt_alloc(device->allocator, sizeof *queue, (void**)&queue));
  accrt_status_t status = accrt_host_scratch_open(device, device->concurrency - 1, &queue->scratch);
  if (status != ACCRT_OK) {
    accrt_free(device->allocator, queue, sizeof *queue);
    return status;
  }
  queue->device = device;
  queue->priority = priority;
  queue->run.device = device;
  atomic_init(&queue->references, 1);
  accrt_mutex_init(&queue->mutex, ACCRT_LOCK_HOST_QUEUE);
  *out_queue = queue;
  return ACCRT_OK;
}

static void free_entry(const host_device_t* device, host_entry_t* entry) {
  accrt_free_aligned(device->allocator, entry->params, entry->params_capacity, PARAMS_ALIGNMENT);
  accrt_free(device->allocator, entry, sizeof *entry);
}

ACCRT_RARE static void free_queue(host_queue_t* queue) {
  host_device_t* device = queue->device;
  while (queue->free_entries != NULL) {
    host_entry_t* entry = queue->free_entries;
    queue->free_entries = entry->next;
    free_entry(device, entry);
  }
  accrt_host_scratch_close(device, &queue->scratch);
  accrt_free(device->allocator, queue, sizeof *queue);
}

static void drop_reference(host_queue_t* queue) {
  /* Acq_rel pairs with itself: every user's writes happen before the free. */
  if (atomic_fetch_sub_explicit(&queue->references, 1, memory_order_acq_rel) == 1)
    free_queue(queue);
}

void accrt_host_queue_destroy(host_queue_t* queue) {
  drop_reference(queue);
}

/* ---- Enqueuing: one call at a time, while an owner may work on the queue ---- */

static accrt_status_t take_entry(host_queue_t* queue, uint32_t kind, host_entry_t** out_entry) {
  accrt_mutex_lock(&queue->mutex);
  host_entry_t* entry = queue->free_entries;
  if (entry != NULL)
    queue->free_entries = entry->next;
  accrt_mutex_unlock(&queue->mutex);
  if (entry == NULL) {
    ACCRT_TRY(accrt_alloc(queue->device->allocator, sizeof *entry, (void**)&entry));
  }
  entry->kind = kind;
  entry->next = NULL;
  entry->number = 0;
  entry->stream_id = 0;
  *out_entry = entry;
  return ACCRT_OK;
}

static void give_entry(host_queue_t* queue, host_entry_t* entry) {
  accrt_mutex_lock(&queue->mutex);
  entry->next = queue->free_entries;
  queue->free_entries = entry;
  accrt_mutex_unlock(&queue->mutex);
}

static void append(host_queue_t* queue, host_entry_t* entry) {
  /* Relaxed: the mutex publishes the entry; queue_run is never called at the same time. */
  atomic_fetch_add_explicit(&queue->pending, 1, memory_order_relaxed);
  accrt_mutex_lock(&queue->mutex);
  if (queue->first == NULL) {
    queue->first = entry;
  } else {
    queue->last->next = entry;
  }
  queue->last = entry;
  if (entry->kind != HOST_ENTRY_NOTIFY)
    accrt_host_progress_enqueue(&queue->progress, entry->number);
  const bool schedule = !queue->owned;
  queue->owned = 1;
  /* Relaxed: the caller holds a reference. */
  if (schedule)
    atomic_fetch_add_explicit(&queue->references, 1, memory_order_relaxed);
  accrt_mutex_unlock(&queue->mutex);
  if (schedule)
    accrt_host_queue_ready(queue->device, queue);
}

static accrt_status_t reserve_params(const host_device_t* device, host_entry_t* entry,
                                     uint32_t size_bytes) {
  if (size_bytes <= entry->params_capacity)
    return ACCRT_OK;
  const uint32_t capacity = size_bytes < INITIAL_PARAMS_BYTES ? INITIAL_PARAMS_BYTES : size_bytes;
  void* params;
  ACCRT_TRY(accrt_alloc_aligned(device->allocator, capacity, PARAMS_ALIGNMENT, &params));
  accrt_free_aligned(device->allocator, entry->params, entry->params_capacity, PARAMS_ALIGNMENT);
  entry->params = params;
  entry->params_capacity = capacity;
  return ACCRT_OK;
}

/* Bytes of the command's name where it is the caller's and is read: not a kernel's own,
 * which stays. */
static size_t borrowed_name_bytes(const host_device_t* device,
                                  const accrt_driver_command_t* command) {
  const bool is_dispatch = command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH;
  if (command->name == NULL ||
      (is_dispatch ? command->name == command->as.dispatch.kernel->definition->name
                   : !device->tracing))
    return 0;
  return strlen(command->name) + 1;
}

static accrt_status_t fill_command_entry(host_device_t* device, host_entry_t* entry,
                                         const accrt_driver_command_t* command,
                                         const accrt_driver_submission_t* submission) {
  const bool is_dispatch = command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH;
  const uint32_t params_bytes = is_dispatch ? command->as.dispatch.params_size_bytes : 0;
  const size_t name_bytes = borrowed_name_bytes(device, command);
  ACCRT_TRY(reserve_params(device, entry, params_bytes + (uint32_t)name_bytes));
  entry->local_bytes = 0;
  if (is_dispatch) {
    entry->local_bytes = command->as.dispatch.kernel->definition->local_memory_size_bytes;
    ACCRT_TRY(accrt_host_scratch_reserve(device, entry->local_bytes));
  }
  accrt_host_prepare(device, command, submission, entry->params, &entry->command);
  ACCRT_TRY(accrt_host_measure(device, &entry->command));
  if (name_bytes != 0) {
    entry->command.name = memcpy((char*)entry->params + params_bytes, command->name, name_bytes);
  } else if (!is_dispatch) {
    entry->command.name = NULL; /* the caller's */
  }
  entry->wave.first_command = 0;
  entry->wave.command_count = 1;
  entry->wave.unit_count = entry->command.unit_count;
  entry->single.commands = &entry->command;
  entry->single.waves = &entry->wave;
  entry->instance = &entry->single;
  return ACCRT_OK;
}

accrt_status_t accrt_host_queue_enqueue(host_queue_t* queue, const accrt_driver_command_t* command,
                                        const accrt_driver_submission_t* submission) {
  host_entry_t* entry;
  ACCRT_TRY(take_entry(queue, HOST_ENTRY_COMMAND, &entry));
  accrt_status_t status = fill_command_entry(queue->device, entry, command, submission);
  if (status != ACCRT_OK) {
    give_entry(queue, entry);
    return status;
  }
  entry->number = submission->number;
  entry->stream_id = submission->stream_id;
  entry->completion = submission->completion;
  append(queue, entry);
  return ACCRT_OK;
}

accrt_status_t accrt_host_queue_execute(host_queue_t* queue, host_list_t* list,
                                        const accrt_driver_submission_t* submission) {
  host_entry_t* entry;
  ACCRT_TRY(take_entry(queue, HOST_ENTRY_LIST, &entry));
  accrt_status_t status = accrt_host_list_acquire(list, submission, &entry->instance);
  if (status != ACCRT_OK) {
    give_entry(queue, entry);
    return status;
  }
  entry->list = list;
  entry->number = submission->number;
  entry->stream_id = submission->stream_id;
  entry->completion = submission->completion;
  append(queue, entry);
  return ACCRT_OK;
}

static void complete(accrt_driver_completion_t completion, const accrt_error_t* error) {
  if (completion.done == NULL)
    return;
  if (error->status == ACCRT_OK) {
    completion.done(completion.user, ACCRT_OK, NULL, accrt_clock_ns());
  } else {
    completion.done(completion.user, error->status, error, accrt_clock_ns());
  }
}

/* The queue's failure, or that it was cancelled. Under the mutex. */
static void report_failure(const host_queue_t* queue, uint64_t number, accrt_error_t* out_error) {
  ACCRT_ASSERT_HELD(&queue->mutex);
  *out_error = queue->failure;
  if (out_error->status != ACCRT_OK ||
      atomic_load_explicit(&queue->run.failed, memory_order_relaxed) != HOST_RUN_CANCELLED)
    return;
  out_error->struct_size = (uint32_t)sizeof *out_error;
  out_error->status = ACCRT_ERROR_CANCELLED;
  out_error->submission = number;
  snprintf(out_error->operation, sizeof out_error->operation, "queue_cancel");
  snprintf(out_error->message, sizeof out_error->message, "cancelled before it began");
}

accrt_status_t accrt_host_queue_notify(host_queue_t* queue, accrt_driver_completion_t completion) {
  accrt_mutex_lock(&queue->mutex);
  const bool idle = !queue->owned;
  accrt_error_t failure;
  if (idle)
    report_failure(queue, 0, &failure);
  accrt_mutex_unlock(&queue->mutex);
  if (idle) {
    complete(completion, &failure);
    return ACCRT_OK;
  }
  host_entry_t* entry;
  ACCRT_TRY(take_entry(queue, HOST_ENTRY_NOTIFY, &entry));
  entry->completion = completion;
  append(queue, entry);
  return ACCRT_OK;
}

accrt_status_t accrt_host_queue_reset(host_queue_t* queue) {
  accrt_mutex_lock(&queue->mutex);
  memset(&queue->failure, 0, sizeof queue->failure);
  atomic_store_explicit(&queue->run.failed, HOST_RUN_SOUND, memory_order_relaxed);
  accrt_host_progress_reset(&queue->progress);
  accrt_mutex_unlock(&queue->mutex);
  return ACCRT_OK;
}

/* Relaxed: nothing is published by it, and threads that work look before each workgroup. */
void accrt_host_queue_cancel(host_queue_t* queue) {
  uint_least32_t expected = HOST_RUN_SOUND;
  (void)atomic_compare_exchange_strong_explicit(&queue->run.failed, &expected, HOST_RUN_CANCELLED,
                                                memory_order_relaxed, memory_order_relaxed);
}

/* ---- Working ---- */

static void begin_list_run(host_run_t* run, const host_list_t* list, host_instance_t* instance) {
  run->instance = instance;
  run->costs = list->costs;
  run->wave_count = list->wave_count;
  run->local_bytes = list->local_bytes;
  run->relearn = ++instance->run_count % HOST_RELEARN_RUNS == 0;
  run->shared_ns = atomic_load_explicit(&list->shared_ns, memory_order_relaxed);
}

/* Gives the instance back; the run's failure has been read by then. */
static void end_list_run(const host_run_t* run, host_list_t* list, host_instance_t* instance) {
  /* A hint for the next run; stored only when it changed much, so that runs at once share the cache
   * line. */
  const uint64_t known = atomic_load_explicit(&list->shared_ns, memory_order_relaxed);
  if (known / 2 > run->shared_ns || run->shared_ns / 2 > known) {
    atomic_store_explicit(&list->shared_ns, run->shared_ns, memory_order_relaxed);
  }
  accrt_host_list_return(list, instance);
}

static host_cost_t* kernel_cost(host_device_t* device, const host_command_t* command) {
  const uint64_t key = command->kind == ACCRT_DRIVER_COMMAND_DISPATCH
                           ? (uint64_t)(uintptr_t)command->as.dispatch.entry
                           : command->kind;
  return &device->kernel_costs[key * UINT64_C(0x9E3779B97F4A7C15) >> 54];
}

static void begin_command_run(host_run_t* run, host_entry_t* entry) {
  run->instance = entry->instance;
  run->costs = kernel_cost(run->device, &entry->command);
  run->wave_count = 1;
  run->local_bytes = entry->local_bytes;
  run->relearn = ++entry->single.run_count % HOST_RELEARN_RUNS == 0;
  run->shared_ns = 0;
}

/* Leaves in *out_error how it ended. */
static void run_entry(host_queue_t* queue, host_entry_t* entry, uint32_t worker_id,
                      uint32_t external, accrt_error_t* out_error) {
  host_run_t* run = &queue->run;
  run->coordinator_id = worker_id;
  run->external = external;
  run->submission = entry->number;
  run->stream_id = entry->stream_id;
  if (entry->kind == HOST_ENTRY_LIST) {
    begin_list_run(run, entry->list, entry->instance);
  } else {
    begin_command_run(run, entry);
  }
  if (!accrt_host_run(run, &queue->scratch))
    accrt_host_run_error(run, out_error);
  if (entry->kind == HOST_ENTRY_LIST)
    end_list_run(run, entry->list, entry->instance);
}

/* Behind a failure: a notification reports it, work is skipped. */
static void skip_entry(host_queue_t* queue, host_entry_t* entry, accrt_error_t* error) {
  accrt_mutex_lock(&queue->mutex);
  report_failure(queue, entry->number, error);
  /* The first work that a cancelled queue drops is its failure. */
  if (entry->kind != HOST_ENTRY_NOTIFY && queue->failure.status == ACCRT_OK)
    queue->failure = *error;
  accrt_mutex_unlock(&queue->mutex);
  if (entry->kind == HOST_ENTRY_LIST)
    accrt_host_list_return(entry->list, entry->instance);
  if (entry->kind != HOST_ENTRY_NOTIFY && error->status != ACCRT_ERROR_CANCELLED)
    error->status = ACCRT_ERROR_POISONED;
}

static void set_failure(host_queue_t* queue, const accrt_error_t* error) {
  accrt_mutex_lock(&queue->mutex);
  queue->failure = *error;
  accrt_mutex_unlock(&queue->mutex);
}

static void end_entry(host_queue_t* queue, host_entry_t* entry, const accrt_error_t* error) {
  const accrt_driver_completion_t completion = entry->completion;
  const uint64_t number = entry->number;
  const bool is_work = entry->kind != HOST_ENTRY_NOTIFY;
  /* Back before the end is reported: a thread that repeats what it waited for finds it. */
  give_entry(queue, entry);
  /* Release pairs with the acquire in accrt_host_queue_run: run and scratch are free. */
  atomic_fetch_sub_explicit(&queue->pending, 1, memory_order_release);
  if (is_work)
    accrt_host_progress_end(&queue->progress, number, error->status == ACCRT_OK);
  complete(completion, error);
}

static void work_on_entry(host_queue_t* queue, host_entry_t* entry, bool failed, uint32_t worker_id,
                          uint32_t external) {
  accrt_error_t error;
  error.status = ACCRT_OK; /* the rest is written only when it is not */
  if (failed) {
    skip_entry(queue, entry, &error);
  } else if (entry->kind != HOST_ENTRY_NOTIFY) {
    run_entry(queue, entry, worker_id, external, &error);
    if (error.status != ACCRT_OK)
      set_failure(queue, &error);
  }
  end_entry(queue, entry, &error);
}

static host_entry_t* pop_first(host_queue_t* queue) {
  host_entry_t* entry = queue->first;
  if (entry == NULL)
    return NULL;
  queue->first = entry->next;
  if (entry->kind != HOST_ENTRY_NOTIFY)
    queue->working_number = entry->number;
  return entry;
}

/* Other queues wait for a thread, and this one has run something. Relaxed: for fairness alone. */
static bool should_yield(host_queue_t* queue, uint32_t entry_limit) {
  return entry_limit == 0 ||
         atomic_load_explicit(&queue->device->ready_count, memory_order_relaxed) != 0;
}

void accrt_host_queue_work(host_queue_t* queue, uint32_t worker_id, uint32_t external,
                           uint32_t entry_limit) {
  accrt_mutex_lock(&queue->mutex);
  for (host_entry_t* entry = pop_first(queue); entry != NULL; entry = pop_first(queue)) {
    /* A kernel's failure is there too. */
    const bool failed =
        atomic_load_explicit(&queue->run.failed, memory_order_relaxed) != HOST_RUN_SOUND;
    accrt_mutex_unlock(&queue->mutex);
    work_on_entry(queue, entry, failed, worker_id, external);
    accrt_mutex_lock(&queue->mutex);
    --entry_limit;
    if (queue->first != NULL && should_yield(queue, entry_limit)) {
      accrt_mutex_unlock(&queue->mutex);
      accrt_host_queue_push(queue->device, queue);
      return;
    }
  }
  queue->owned = 0;
  accrt_mutex_unlock(&queue->mutex);
  drop_reference(queue);
}

/* ---- Running on the caller ---- */

accrt_status_t accrt_host_queue_run(host_queue_t* queue, host_list_t* list,
                                    const accrt_driver_submission_t* submission) {
  host_device_t* device = queue->device;
  /* Acquire pairs with end_entry. */
  if (atomic_load_explicit(&queue->pending, memory_order_acquire) != 0)
    return ACCRT_ERROR_NOT_READY;
  if (queue->failure.status != ACCRT_OK) {
    const accrt_status_t status = queue->failure.status == ACCRT_ERROR_CANCELLED
                                      ? ACCRT_ERROR_CANCELLED
                                      : ACCRT_ERROR_POISONED;
    return accrt_host_fail(device->environment, status, queue->failure.driver_code, NULL,
                           "queue_run", "the queue has failed: %s", queue->failure.message);
  }
  if (device->worker_count != 0 && !accrt_host_stack_suffices())
    return ACCRT_ERROR_NOT_READY;
  host_instance_t* instance;
  ACCRT_TRY(accrt_host_list_acquire(list, submission, &instance));
  host_run_t* run = &queue->run;
  run->coordinator_id = device->concurrency - 1;
  run->external = 1;
  run->submission = submission->number;
  run->stream_id = submission->stream_id;
  begin_list_run(run, list, instance);
  if (accrt_host_run(run, &queue->scratch)) {
    end_list_run(run, list, instance);
    return ACCRT_OK;
  }
  accrt_error_t error;
  accrt_host_run_error(run, &error);
  end_list_run(run, list, instance);
  /* The queue is not poisoned by a kernel; what was cancelled stays so. */
  uint_least32_t expected = HOST_RUN_FAILED;
  (void)atomic_compare_exchange_strong_explicit(&run->failed, &expected, HOST_RUN_SOUND,
                                                memory_order_relaxed, memory_order_relaxed);
  return accrt_host_report(device, &error);
}
