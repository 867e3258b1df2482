/* runtime/drivers/host/workers.c - a device's threads: looking for work, spinning, parking,
 * being woken.
 *
 * A worker first takes ready queues, then helps on the board, then spins for the device's spin
 * time, then parks: it says so in its state word, looks once more, and sleeps on the word. With
 * an embedder's executor a worker has no thread of its own: waking one submits a task that runs
 * the same loop and ends where a thread would sleep.
 *
 * No wake-up is lost: a thread that makes a queue ready raises ready_count and then looks for
 * parked workers, while a worker parks and then looks at ready_count, all sequentially
 * consistent. Offers on the board may be missed: a coordinator never needs help. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/core/try.h"
#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

#define WORKER_STACK_BYTES ((size_t)1 << 20)
#define PAUSES_PER_LOOK 32u
#define POLITE_AFTER_NS UINT64_C(10000)
#define ENTRIES_WITHOUT_LIMIT UINT32_MAX
#define NO_CPU (-1)

/* ---- The ready list: these functions take the device's mutex; ready_count is its length ---- */

void accrt_host_queue_push(host_device_t* device, host_queue_t* queue) {
  accrt_mutex_lock(&device->mutex);
  host_queue_t** link = &device->ready_first;
  while (*link != NULL && (*link)->priority >= queue->priority)
    link = &(*link)->ready_next;
  queue->ready_next = *link;
  *link = queue;
  atomic_fetch_add_explicit(&device->ready_count, 1, memory_order_seq_cst);
  accrt_mutex_unlock(&device->mutex);
}

host_queue_t* accrt_host_queue_take(host_device_t* device) {
  /* Relaxed: a glance; the mutex orders the taking. */
  if (atomic_load_explicit(&device->ready_count, memory_order_relaxed) == 0)
    return NULL;
  accrt_mutex_lock(&device->mutex);
  host_queue_t* queue = device->ready_first;
  if (queue != NULL) {
    device->ready_first = queue->ready_next;
    atomic_fetch_sub_explicit(&device->ready_count, 1, memory_order_seq_cst);
  }
  accrt_mutex_unlock(&device->mutex);
  return queue;
}

/* ---- Waking ---- */

static void run_task(void* argument);

static bool submit_task(host_worker_t* worker) {
  host_device_t* device = worker->device;
  const accrt_executor_t* executor = device->environment->executor;
  atomic_fetch_add_explicit(&device->task_count, 1, memory_order_relaxed);
  if (executor->submit(executor->self, run_task, worker) == 0)
    return true;
  atomic_fetch_sub_explicit(&device->task_count, 1, memory_order_release);
  return false;
}

#define WAKE_NOT_PARKED 0
#define WAKE_DONE 1
#define WAKE_REFUSED 2

/* The executor takes no task. If every worker is parked, no thread will take what is ready, so
 * this thread does. */
static void rescue(host_device_t* device) {
  while (atomic_load_explicit(&device->parked_count, memory_order_seq_cst) ==
         device->worker_count) {
    if (atomic_load_explicit(&device->ready_count, memory_order_seq_cst) == 0)
      return;
    host_queue_t* queue = accrt_host_queue_take(device);
    if (queue == NULL)
      return;
    accrt_host_queue_work(queue, device->concurrency - 1, 1, ENTRIES_WITHOUT_LIMIT);
  }
}

static int wake(host_worker_t* worker, int busy_cpu) {
  host_device_t* device = worker->device;
  uint_least32_t expected = HOST_PARKED;
  if (!atomic_compare_exchange_strong_explicit(&worker->state, &expected, HOST_AWAKE,
                                               memory_order_seq_cst, memory_order_relaxed)) {
    return WAKE_NOT_PARKED;
  }
  atomic_fetch_sub_explicit(&device->parked_count, 1, memory_order_seq_cst);
  /* Relaxed: a hint. The worker may already be awake and miss it. */
  atomic_store_explicit(&worker->busy_cpu, busy_cpu, memory_order_relaxed);
  if (device->environment->executor == NULL) {
    accrt_futex_wake(&worker->state, 1);
    return WAKE_DONE;
  }
  if (submit_task(worker))
    return WAKE_DONE;
  atomic_store_explicit(&worker->state, HOST_PARKED, memory_order_seq_cst);
  atomic_fetch_add_explicit(&device->parked_count, 1, memory_order_seq_cst);
  rescue(device);
  return WAKE_REFUSED;
}

static uint32_t wake_some(host_device_t* device, uint32_t count, uint32_t limit, int busy_cpu) {
  uint32_t woken = 0;
  for (uint32_t i = 0; i < limit && woken < count; ++i) {
    host_worker_t* worker = &device->workers[i];
    if (atomic_load_explicit(&worker->state, memory_order_relaxed) != HOST_PARKED)
      continue;
    if (atomic_load_explicit(&device->stopping, memory_order_relaxed) != 0)
      break;
    const int result = wake(worker, busy_cpu);
    if (result == WAKE_REFUSED)
      break;
    woken += result == WAKE_DONE;
  }
  return woken;
}

uint32_t accrt_host_workers_wake(host_device_t* device, uint32_t count, uint32_t limit) {
  return wake_some(device, count, limit, sched_getcpu());
}

/* More ready queues than workers on their way to take one. */
static bool takers_are_short(host_device_t* device) {
  return atomic_load_explicit(&device->ready_count, memory_order_seq_cst) >
         atomic_load_explicit(&device->spinning_count, memory_order_seq_cst);
}

static void wake_taker(host_device_t* device) {
  if (!takers_are_short(device))
    return;
  if (atomic_load_explicit(&device->parked_count, memory_order_seq_cst) == 0)
    return;
  wake_some(device, 1, device->worker_count, NO_CPU);
}

void accrt_host_queue_ready(host_device_t* device, host_queue_t* queue) {
  accrt_host_queue_push(device, queue);
  if (device->worker_count != 0)
    wake_taker(device); /* else the caller's progress takes it */
}

/* ---- The loop ---- */

static bool is_stopping(const host_device_t* device) {
  return atomic_load_explicit(&device->stopping, memory_order_seq_cst) != 0;
}

/* True when it did anything. */
static bool work_once(host_worker_t* worker) {
  host_device_t* device = worker->device;
  host_queue_t* queue = accrt_host_queue_take(device);
  if (queue != NULL) {
    wake_taker(device); /* for the next one in the list */
    accrt_host_queue_work(queue, worker->index, 0, ENTRIES_WITHOUT_LIMIT);
    return true;
  }
  return accrt_host_board_help(device, &worker->scratch, worker->index);
}

static bool has_work(host_worker_t* worker) {
  return atomic_load_explicit(&worker->device->ready_count, memory_order_seq_cst) != 0 ||
         accrt_host_board_has_work(worker->device, worker->index);
}

/* Until there is something to do (true) or the spin time is over (false). */
static bool spin(host_worker_t* worker) {
  host_device_t* device = worker->device;
  if (has_work(worker))
    return true;
  if (device->spin_ns == 0)
    return false;
  const uint64_t begin_ns = accrt_clock_ns();
  bool found = false;
  atomic_fetch_add_explicit(&device->spinning_count, 1, memory_order_seq_cst);
  for (uint32_t i = 1; !found; ++i) {
    accrt_pause();
    found = has_work(worker) || is_stopping(device);
    if (i % PAUSES_PER_LOOK != 0)
      continue;
    const uint64_t elapsed_ns = accrt_clock_ns() - begin_ns;
    if (elapsed_ns >= device->spin_ns)
      break;
    /* On a busy machine it is the one who would bring work that waits for this processor. */
    if (elapsed_ns >= POLITE_AFTER_NS)
      sched_yield();
  }
  atomic_fetch_sub_explicit(&device->spinning_count, 1, memory_order_seq_cst);
  /* Someone may have counted on this worker for a queue just when it saw work on the board. */
  wake_taker(device);
  return found;
}

/* False when there is work after all, true when the worker is parked (or was, and has been
 * woken). */
static bool park(host_worker_t* worker) {
  host_device_t* device = worker->device;
  atomic_fetch_add_explicit(&device->parked_count, 1, memory_order_seq_cst);
  atomic_store_explicit(&worker->state, HOST_PARKED, memory_order_seq_cst);
  if (!has_work(worker) && !is_stopping(device))
    return true;
  uint_least32_t expected = HOST_PARKED;
  if (!atomic_compare_exchange_strong_explicit(&worker->state, &expected, HOST_AWAKE,
                                               memory_order_seq_cst, memory_order_relaxed)) {
    return true; /* another thread was faster in waking it */
  }
  atomic_fetch_sub_explicit(&device->parked_count, 1, memory_order_seq_cst);
  return false;
}

/* Returns parked. */
static void work_until_parked(host_worker_t* worker) {
  for (;;) {
    while (work_once(worker)) {
    }
    if (is_stopping(worker->device))
      return;
    if (spin(worker))
      continue;
    if (park(worker))
      return;
  }
}

/* Some kernels put a woken thread on the processor of the thread that woke it, though others are
 * idle. A helper there would take the processor from the coordinator it is to help, so it moves
 * away: out of that processor, and back into its old mask. */
static void leave_busy_cpu(host_worker_t* worker) {
  const int busy = atomic_exchange_explicit(&worker->busy_cpu, NO_CPU, memory_order_relaxed);
  if (busy == NO_CPU || busy >= CPU_SETSIZE || sched_getcpu() != busy)
    return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return;
  cpu_set_t others = allowed;
  CPU_CLR((size_t)busy, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0)
    return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

static void* run_thread(void* argument) {
  host_worker_t* worker = argument;
  host_fp_enter();
  for (;;) {
    work_until_parked(worker);
    if (is_stopping(worker->device))
      return NULL;
    /* Acquire pairs with the exchange in wake. */
    while (atomic_load_explicit(&worker->state, memory_order_acquire) == HOST_PARKED) {
      accrt_futex_wait(&worker->state, HOST_PARKED, UINT64_MAX);
    }
    leave_busy_cpu(worker);
  }
}

/* A task of the embedder's executor. Once parked, the worker may be another task's already. */
static void run_task(void* argument) {
  host_worker_t* worker = argument;
  host_device_t* device = worker->device;
  const uint64_t control = host_fp_enter();
  work_until_parked(worker);
  host_fp_leave(control);
  /* Release pairs with the acquire in accrt_host_workers_stop; the device may be gone after it. */
  atomic_fetch_sub_explicit(&device->task_count, 1, memory_order_release);
}

/* ---- Starting and stopping ---- */

ACCRT_RARE static accrt_status_t start_thread(host_worker_t* worker) {
  host_device_t* device = worker->device;
  const host_options_t* options = &device->driver->options;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
  if (options->cpu_count != 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(options->cpus[worker->index % options->cpu_count], &set);
    pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
  }
  const int error = accrt_thread_start(&worker->thread, &attributes, run_thread, worker);
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    return accrt_host_fail(device->environment, ACCRT_ERROR_DRIVER, error, "pthread_create",
                           "device_open", "thread %u of %u could not be started (errno %d)",
                           worker->index + 1, device->worker_count, error);
  }
  worker->started = 1;
  char name[16];
  snprintf(name, sizeof name, "accrt-h%u.%u", device->index % 100, worker->index % 10000);
  pthread_setname_np(worker->thread, name);
  return ACCRT_OK;
}

ACCRT_RARE static accrt_status_t start_worker(host_device_t* device, uint32_t index) {
  host_worker_t* worker = &device->workers[index];
  worker->index = index;
  worker->device = device;
  atomic_init(&worker->busy_cpu, NO_CPU);
  ACCRT_TRY(accrt_host_scratch_open(device, index, &worker->scratch));
  worker->opened = 1;
  if (device->environment->executor != NULL) {
    atomic_init(&worker->state, HOST_PARKED);
    atomic_fetch_add_explicit(&device->parked_count, 1, memory_order_relaxed);
    return ACCRT_OK;
  }
  atomic_init(&worker->state, HOST_AWAKE);
  return start_thread(worker);
}

ACCRT_RARE accrt_status_t accrt_host_workers_start(host_device_t* device) {
  if (device->worker_count == 0)
    return ACCRT_OK;
  accrt_status_t status =
      accrt_alloc_aligned(device->allocator, device->worker_count * sizeof(host_worker_t),
                          HOST_CACHE_LINE, (void**)&device->workers);
  for (uint32_t i = 0; i < device->worker_count && status == ACCRT_OK; ++i) {
    status = start_worker(device, i);
  }
  return status;
}

static void stop_thread(host_worker_t* worker) {
  atomic_store_explicit(&worker->state, HOST_AWAKE, memory_order_seq_cst);
  accrt_futex_wake(&worker->state, 1);
  pthread_join(worker->thread, NULL);
}

ACCRT_RARE void accrt_host_workers_stop(host_device_t* device) {
  if (device->workers == NULL)
    return;
  atomic_store_explicit(&device->stopping, 1, memory_order_seq_cst);
  for (uint32_t i = 0; i < device->worker_count; ++i) {
    if (device->workers[i].started)
      stop_thread(&device->workers[i]);
  }
  /* Tasks end soon, and nothing submits new ones. Acquire pairs with the release in run_task. */
  while (atomic_load_explicit(&device->task_count, memory_order_acquire) != 0) {
    const struct timespec moment = {0, 50000};
    nanosleep(&moment, NULL);
  }
  for (uint32_t i = 0; i < device->worker_count; ++i) {
    if (device->workers[i].opened)
      accrt_host_scratch_close(device, &device->workers[i].scratch);
  }
  accrt_free_aligned(device->allocator, device->workers,
                     device->worker_count * sizeof(host_worker_t), HOST_CACHE_LINE);
  device->workers = NULL;
}
