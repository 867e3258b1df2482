/* serve/constraint.h - what limits the tokens of sequences, and the masks of a step's samples.
 *
 * Masks are computed by the stepping thread and some helpers, which are started with the first
 * request that has a constraint. `begin` gives them work; until `finish` has returned, nothing else
 * uses the states of the step's sequences.
 */
#ifndef ACCRT_SERVE_CONSTRAINT_H_
#define ACCRT_SERVE_CONSTRAINT_H_

#include <pthread.h>
#include <stdatomic.h>

#include "serve/lock.h"
#include "serve/request.h"
#include "serve/scheduler.h"

#define ACCSV_MASK_THREADS 3u

/* A mask to be computed. */
typedef struct accsv_mask_job {
  accsv_generation_t* generation;
  uint32_t* bits;
  uint32_t drawn; /* tokens of its output */
} accsv_mask_job_t;

typedef struct accsv_masks {
  const accrt_allocator_t* allocator;
  const accrt_serve_model_info_t* info;
  uint32_t most, words; /* masks of a step */
  uint32_t most_samples;
  int32_t* rows; /* of the samples */
  uint32_t* bits;
  accsv_mask_job_t* jobs;
  pthread_t threads[ACCSV_MASK_THREADS];
  uint32_t thread_count;
  bool ready; /* the memory is there */

  accsv_lock_t lock;
  pthread_cond_t work, done;
  uint32_t count, next, completed; /* of `jobs` */
  bool stopping;
} accsv_masks_t;

accrt_status_t accsv_masks_init(accsv_masks_t* masks, const accrt_allocator_t* allocator,
                                const accrt_serve_model_info_t* info, const accsv_limits_t* limits);
void accsv_masks_deinit(accsv_masks_t* masks);
/* Takes memory and starts the helpers, unless that was done. */
accrt_status_t accsv_masks_prepare(accsv_masks_t* masks);
/* Begins the masks of a plan's samples: their tokens but the one to be drawn are known. */
void accsv_masks_begin(accsv_masks_t* masks, const accsv_plan_t* plan);
/* All masks are there. A generation whose mask failed has its status. */
void accsv_masks_finish(accsv_masks_t* masks, accrt_serve_masks_t* out_masks);

struct accrt_serve_constraint {
  atomic_uint refs;
  const accrt_serve_model_t* model; /* it knows the tokens of this one alone; NULL: of any */
  accrt_serve_constraint_functions_t functions;
};

#endif /* ACCRT_SERVE_CONSTRAINT_H_ */
