/* runtime/drivers/common/worker.h - a thread of the instance's own: notifications and late clean-up
 * on one, work that a limited wait may not do itself on another. Started when first needed.
 *
 * It may not know streams: jobs are part of what they act on.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_WORKER_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_WORKER_H_

#include <pthread.h>

#include "accrt/base.h"
#include "runtime/core/sync.h"

typedef struct accrt_job {
  struct accrt_job* next;
  void (*run)(struct accrt_job* job); /* no lock held; the job may be gone when it returns */
} accrt_job_t;

typedef struct accrt_worker {
  accrt_mutex_t lock;
  atomic_uint wake;   /* changes when there is something to do */
  atomic_uint kicked; /* clean-up was asked for */
  /* the last reference went where the instance could not be freed: this thread does it */
  atomic_uint teardown;
  bool started;      /* under the lock */
  bool stop;         /* under the lock */
  accrt_job_t* head; /* under the lock */
  accrt_job_t** tail;
  pthread_t thread;
  accrt_instance_t* instance;
  const char* name; /* of the thread; static */
} accrt_worker_t;

void accrt_worker_init(accrt_worker_t* worker, accrt_instance_t* instance, const char* name);
/* Starts the thread if it is not there. ACCRT_ERROR_OUT_OF_MEMORY when the system gives none. */
accrt_status_t accrt_worker_start(accrt_worker_t* worker);
/* Queues a job; the thread must have been started. */
void accrt_worker_post(accrt_worker_t* worker, accrt_job_t* job);
/* Asks for clean-up; nothing happens when the thread was never started. */
void accrt_worker_kick(accrt_worker_t* worker);
/* Asks the thread to destroy the instance. False when there is no thread and none can be
 * started. */
bool accrt_worker_hand_over(accrt_worker_t* worker);
/* For the end of the instance: runs what is queued when no other thread does. */
void accrt_worker_help(accrt_worker_t* worker);
/* Runs what is queued, then ends the thread; on the thread itself: runs what is queued. */
void accrt_worker_stop(accrt_worker_t* worker);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_WORKER_H_ */
