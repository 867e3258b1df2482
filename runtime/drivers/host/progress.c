/* runtime/drivers/host/progress.c - how far a queue is, by number: asking and waiting.
 *
 * The thread that works on a queue raises `ended` when an entry has ended, however it did, and
 * before that notes what it was: `succeeded`, or `has_failed`. A waiter polls for a short while,
 * then sleeps on `beat`, which changes only while there are sleepers. No wake-up is lost: who
 * ends an entry stores and then looks for sleepers, who sleeps says so and then looks, all
 * sequentially consistent. */
#include <sched.h>

#include "accrt/stream.h"
#include "runtime/drivers/host/host.h"

/* A short poll before sleeping, and a shorter one where the last waits slept all the same. */
#define POLLS_BEFORE_SLEEP 200u
#define FEW_POLLS_BEFORE_SLEEP 4u
#define MISSES_BEFORE_FEW 4u
#define MISSES_BETWEEN_MANY 32u
#define POLLS_PER_CLOCK 64u
/* What another thread runs for a device without threads is looked at again after this time. */
#define CALLER_SLEEP_NS UINT64_C(50000)

/* ---- By the thread that works on the queue ---- */

static void wake_sleepers(host_progress_t* progress) {
  if (atomic_load_explicit(&progress->sleepers, memory_order_seq_cst) == 0)
    return;
  /* Release pairs with the acquire in sleep_on. */
  atomic_fetch_add_explicit(&progress->beat, 1, memory_order_release);
  accrt_futex_wake(&progress->beat, INT32_MAX);
}

void accrt_host_progress_end(host_progress_t* progress, uint64_t number, bool well) {
  /* Relaxed: `ended` publishes both. */
  if (well) {
    atomic_store_explicit(&progress->succeeded, number, memory_order_relaxed);
  } else {
    atomic_store_explicit(&progress->has_failed, 1, memory_order_relaxed);
  }
  atomic_store_explicit(&progress->ended, number, memory_order_seq_cst);
  wake_sleepers(progress);
}

void accrt_host_progress_reset(host_progress_t* progress) {
  atomic_store_explicit(&progress->has_failed, 0, memory_order_relaxed);
}

/* ---- Asking ---- */

accrt_status_t accrt_host_report(const host_device_t* device, const accrt_error_t* error) {
  return device->environment->fail(device->environment, error->status, error->driver_code, NULL,
                                   error->operation, error->message);
}

accrt_status_t accrt_host_queue_progress(host_queue_t* queue, uint64_t* out_number) {
  host_progress_t* progress = &queue->progress;
  /* Acquire pairs with accrt_host_progress_end: what the work wrote is seen, and its failure. */
  *out_number = atomic_load_explicit(&progress->ended, memory_order_acquire);
  if (atomic_load_explicit(&progress->has_failed, memory_order_relaxed) == 0)
    return ACCRT_OK;
  accrt_mutex_lock(&queue->mutex);
  const accrt_error_t failure = queue->failure;
  accrt_mutex_unlock(&queue->mutex);
  if (failure.status == ACCRT_OK)
    return ACCRT_OK; /* reset meanwhile */
  *out_number = atomic_load_explicit(&progress->succeeded, memory_order_relaxed);
  return accrt_host_report(queue->device, &failure);
}

/* ---- Waiting ---- */

typedef struct wait {
  host_queue_t* queue;
  uint64_t number;
  uint64_t deadline_ns;
  uint32_t policy;
} wait_t;

/* Seq_cst pairs with accrt_host_progress_end. */
static bool is_over(const wait_t* wait) {
  return atomic_load_explicit(&wait->queue->progress.ended, memory_order_seq_cst) >= wait->number;
}

static bool is_late(const wait_t* wait) {
  return accrt_deadline_left_ns(wait->deadline_ns) == 0;
}

/* True when it is over. False at the deadline, or after `limit` polls when that is not 0. */
static bool poll(const wait_t* wait, uint32_t limit) {
  for (uint32_t i = 1;; ++i) {
    if (is_over(wait))
      return true;
    if (i == limit)
      return false;
    const bool yields = wait->policy == ACCRT_WAIT_YIELD;
    if (yields) {
      (void)sched_yield();
    } else {
      accrt_pause();
    }
    if ((yields || i % POLLS_PER_CLOCK == 0) && is_late(wait))
      return is_over(wait);
  }
}

static bool sleep_on(const wait_t* wait) {
  host_progress_t* progress = &wait->queue->progress;
  atomic_fetch_add_explicit(&progress->sleepers, 1, memory_order_seq_cst);
  bool over;
  for (;;) {
    /* Acquire pairs with the release in wake_sleepers. */
    const unsigned beat = atomic_load_explicit(&progress->beat, memory_order_acquire);
    over = is_over(wait);
    const uint64_t left_ns = accrt_deadline_left_ns(wait->deadline_ns);
    if (over || left_ns == 0)
      break;
    accrt_futex_wait(&progress->beat, beat, left_ns);
  }
  atomic_fetch_sub_explicit(&progress->sleepers, 1, memory_order_relaxed);
  return over;
}

/* `misses` is a hint alone: relaxed. */
static bool block(const wait_t* wait) {
  atomic_uint* misses = &wait->queue->progress.misses;
  const unsigned missed = atomic_load_explicit(misses, memory_order_relaxed);
  const bool few = missed >= MISSES_BEFORE_FEW && missed % MISSES_BETWEEN_MANY != 0;
  const bool over = poll(wait, few ? FEW_POLLS_BEFORE_SLEEP : POLLS_BEFORE_SLEEP);
  atomic_store_explicit(misses, over ? 0 : missed + 1, memory_order_relaxed);
  return over || sleep_on(wait);
}

/* On a device without threads: this one works on its queues, one entry at a time. */
static bool run_queues(const wait_t* wait) {
  host_device_t* device = wait->queue->device;
  while (!is_over(wait)) {
    const uint64_t left_ns = accrt_deadline_left_ns(wait->deadline_ns);
    if (left_ns == 0)
      return false;
    host_queue_t* queue = accrt_host_queue_take(device);
    if (queue != NULL) {
      accrt_host_queue_work(queue, 0, 1, 1);
      continue;
    }
    atomic_uint unshared;
    atomic_init(&unshared, 0);
    accrt_futex_wait(&unshared, 0, left_ns < CALLER_SLEEP_NS ? left_ns : CALLER_SLEEP_NS);
  }
  return true;
}

/* The last submission up to `number` that the queue was given: numbers may leave gaps. What has
 * ended need not be distinguished. */
static uint64_t find_submission(host_queue_t* queue, uint64_t number) {
  /* Acquire pairs with the release in accrt_host_progress_enqueue. */
  const uint64_t enqueued = atomic_load_explicit(&queue->progress.enqueued, memory_order_acquire);
  if (number >= enqueued)
    return enqueued;
  accrt_mutex_lock(&queue->mutex);
  uint64_t found = queue->working_number <= number ? queue->working_number : 0;
  for (const host_entry_t* entry = queue->first; entry != NULL && entry->number <= number;
       entry = entry->next)
    found = entry->number > found ? entry->number : found;
  accrt_mutex_unlock(&queue->mutex);
  return found;
}

accrt_status_t accrt_host_queue_wait(host_queue_t* queue, uint64_t number, uint64_t timeout_ns,
                                     uint32_t policy) {
  wait_t wait = {.queue = queue, .number = number, .policy = policy};
  if (!is_over(&wait))
    wait.number = find_submission(queue, number);
  bool over = is_over(&wait);
  if (!over && timeout_ns != 0) {
    wait.deadline_ns = accrt_deadline_ns(timeout_ns);
    over = queue->device->worker_count == 0 ? run_queues(&wait)
           : policy == ACCRT_WAIT_BLOCK     ? block(&wait)
                                            : poll(&wait, 0);
  }
  if (!over) {
    return accrt_host_fail(queue->device->environment, ACCRT_ERROR_TIMEOUT, 0, NULL, "queue_wait",
                           "submission %llu was not complete after %llu ns",
                           (unsigned long long)wait.number, (unsigned long long)timeout_ns);
  }
  uint64_t ended;
  return accrt_host_queue_progress(queue, &ended);
}
