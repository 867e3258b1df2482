/* runtime/drivers/common/worker.c - the instance's own threads. It may not run anything under its
 * lock. */
#include "runtime/drivers/common/worker.h"

#include <stddef.h>

#include "runtime/core/error.h"
#include "runtime/core/context.h"
#include "runtime/drivers/common/objects.h"

void accrt_worker_init(accrt_worker_t* worker, accrt_instance_t* instance, const char* name) {
  accrt_mutex_init(&worker->lock, ACCRT_LOCK_WORKER);
  atomic_init(&worker->wake, 0);
  atomic_init(&worker->kicked, 0);
  atomic_init(&worker->teardown, 0);
  worker->instance = instance;
  worker->name = name;
}

static void wake(accrt_worker_t* worker) {
  /* Release pairs with the acquire in run_thread. */
  atomic_fetch_add_explicit(&worker->wake, 1, memory_order_release);
  accrt_futex_wake(&worker->wake, 1);
}

static accrt_job_t* take_jobs(accrt_worker_t* worker, bool* out_stop) {
  accrt_mutex_lock(&worker->lock);
  accrt_job_t* jobs = worker->head;
  worker->head = NULL;
  worker->tail = NULL;
  *out_stop = worker->stop;
  accrt_mutex_unlock(&worker->lock);
  return jobs;
}

static bool run_jobs(accrt_worker_t* worker, bool* out_stop) {
  accrt_job_t* job = take_jobs(worker, out_stop);
  const bool any = job != NULL;
  while (job != NULL) {
    accrt_job_t* next = job->next;
    job->run(job);
    job = next;
  }
  /* Acquire pairs with the release in accrt_worker_kick. */
  if (atomic_exchange_explicit(&worker->kicked, 0, memory_order_acquire) == 0)
    return any;
  accrt_instance_reap(worker->instance);
  return true;
}

static void* run_thread(void* argument) {
  accrt_worker_t* worker = argument;
  bool stop = false;
  accrt_context_set_runtime_thread(true);
  for (;;) {
    /* Acquire pairs with the release in wake: read before the work is looked for, so that none is
     * missed. */
    const unsigned seen = atomic_load_explicit(&worker->wake, memory_order_acquire);
    if (run_jobs(worker, &stop))
      continue;
    /* Acquire pairs with the release in accrt_worker_hand_over. */
    if (atomic_load_explicit(&worker->teardown, memory_order_acquire) != 0) {
      (void)pthread_detach(pthread_self());
      accrt_instance_destroy(worker->instance);
      return NULL;
    }
    if (stop)
      return NULL;
    accrt_futex_wait(&worker->wake, seen, UINT64_MAX);
  }
}

static int create_thread(accrt_worker_t* worker) {
  const int error = accrt_thread_start(&worker->thread, NULL, run_thread, worker);
  if (error == 0)
    (void)pthread_setname_np(worker->thread, worker->name);
  return error;
}

accrt_status_t accrt_worker_start(accrt_worker_t* worker) {
  int error = 0;
  accrt_mutex_lock(&worker->lock);
  if (!worker->started) {
    error = create_thread(worker);
    worker->started = error == 0;
  }
  accrt_mutex_unlock(&worker->lock);
  if (error != 0)
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, error, "could not start the thread '%s'", worker->name);
  return ACCRT_OK;
}

void accrt_worker_post(accrt_worker_t* worker, accrt_job_t* job) {
  job->next = NULL;
  accrt_mutex_lock(&worker->lock);
  if (worker->tail == NULL) {
    worker->head = job;
  } else {
    *worker->tail = job;
  }
  worker->tail = &job->next;
  accrt_mutex_unlock(&worker->lock);
  wake(worker);
}

void accrt_worker_kick(accrt_worker_t* worker) {
  accrt_mutex_lock(&worker->lock);
  const bool started = worker->started;
  accrt_mutex_unlock(&worker->lock);
  if (!started)
    return;
  /* Release pairs with the acquire in run_jobs. */
  atomic_store_explicit(&worker->kicked, 1, memory_order_release);
  wake(worker);
}

bool accrt_worker_hand_over(accrt_worker_t* worker) {
  if (accrt_worker_start(worker) != ACCRT_OK)
    return false;
  /* Release pairs with the acquire in run_thread. */
  atomic_store_explicit(&worker->teardown, 1, memory_order_release);
  wake(worker);
  return true;
}

/* A thread that destroys the instance was handed it, or is the runtime thread of another instance.
 * Another thread may start the worker meanwhile: one of a driver that drops what it worked on. */
static bool is_sole_owner(accrt_worker_t* worker) {
  accrt_mutex_lock(&worker->lock);
  const bool alone = !worker->started || pthread_equal(pthread_self(), worker->thread) != 0;
  accrt_mutex_unlock(&worker->lock);
  return alone;
}

void accrt_worker_help(accrt_worker_t* worker) {
  bool stop;
  while (is_sole_owner(worker) && run_jobs(worker, &stop))
    continue;
}

void accrt_worker_stop(accrt_worker_t* worker) {
  accrt_worker_help(worker);
  if (is_sole_owner(worker))
    return;
  accrt_mutex_lock(&worker->lock);
  worker->stop = true;
  accrt_mutex_unlock(&worker->lock);
  wake(worker);
  (void)pthread_join(worker->thread, NULL);
}
