/* serve/engine.h - an engine: what belongs to the stepping thread, and what all threads share.
 *
 * The stepping thread (the engine's own, or the caller of accrt_serve_engine_step) has the
 * scheduler and all sequences to itself, without a lock. Others reach it through the inbox, and it
 * reaches them through the outbox and the figures. These are under one lock, which is held for some
 * instructions: never while the model, an allocator or a clock is called.
 */
#ifndef ACCRT_SERVE_ENGINE_H_
#define ACCRT_SERVE_ENGINE_H_

#include <pthread.h>
#include <stdatomic.h>

#include "serve/adapters.h"
#include "serve/batch.h"
#include "serve/constraint.h"
#include "serve/counters.h"
#include "serve/lock.h"
#include "serve/model.h"
#include "serve/pace.h"

#define ACCSV_DEPTH 2u /* most steps in flight */
#define ACCSV_SPARE_NODES 4096u

struct accrt_serve_engine {
  /* Does not change. */
  atomic_uint refs;
  accrt_allocator_t allocator;
  accrt_serve_clock_t clock;
  accrt_serve_model_t* model;
  accrt_instance_t* instance;    /* of the model, or its own; one reference */
  uint64_t counters_id;          /* of their group in its registry; 0: it was not added */
  accrt_serve_options_t options; /* complete */
  accsv_vocabulary_t vocabulary;
  uint32_t most_live; /* requests */
  uint32_t depth;     /* steps in flight that are wanted: 1 or 2 */
  int event_fd;
  uint64_t seed;

  /* Of the stepping thread. */
  atomic_flag stepping; /* a second thread that steps is refused */
  accsv_scheduler_t scheduler;
  accsv_batch_t batch;
  accsv_masks_t masks;
  accsv_plan_t plans[ACCSV_DEPTH]; /* the oldest first */
  uint32_t in_flight;
  uint64_t step;               /* the last one that was begun */
  uint64_t keys;               /* sequences that were named */
  accsv_request_t** deadlines; /* a heap, the earliest first */
  uint32_t deadline_count;
  accsv_nodes_t events, spare; /* made in this step; memory for more */
  accsv_request_t* ended;      /* in this step, by `next`: to be taken from the registry */
  accsv_request_t* started;    /* admitted for the first time in this step, by `next_started` */
  uint32_t live;               /* requests that it has */
  accrt_serve_stats_t figures;
  uint64_t progress_ns, model_ns;
  accsv_pace_t pace;
  uint64_t planning_ns;   /* the begin of this step */
  uint32_t starts;        /* requests that began since the last step ended */
  accrt_status_t failure; /* as `dead` */

  /* Under the lock. */
  accsv_lock_t lock;
  pthread_cond_t work; /* for the stepping thread: the inbox has something */
  pthread_cond_t news; /* for others: events, or the engine has failed or is empty */
  accsv_request_t *inbox, *inbox_tail;
  accsv_request_t* cancels;
  accsv_request_t** registry;
  uint32_t bucket_count; /* a power of two */
  uint32_t listed;       /* requests in the registry */
  uint32_t waiting;
  uint64_t waiting_tokens;
  uint64_t last_id, submitted, refused, seeds;
  accsv_nodes_t outbox, lent, returned;
  accsv_adapters_t adapters;
  accrt_serve_stats_t shown;
  uint64_t shown_progress_ns;
  accrt_status_t dead; /* why the engine ended; ACCRT_OK: it lives */
  bool draining, stopping;
  pthread_t thread;
  bool has_thread;
};

static inline uint64_t accsv_now(const accrt_serve_engine_t* engine) {
  ACCSV_ASSERT_CALLS_OUT();
  return engine->clock.now_ns(engine->clock.self);
}

/* The end of a wait that begins now, on the system's clock. */
struct timespec accsv_time_after(uint64_t timeout_ns);

/* ---- serve/step.c ---- */

/* One step: see accrt_serve_engine_step. */
accrt_status_t accsv_engine_step(accrt_serve_engine_t* engine);
/* What belongs to the stepping thread is the caller's in between, where the engine has no thread of
 * its own. ACCRT_ERROR_INVALID_STATE while another call has it. */
accrt_status_t accsv_engine_enter(accrt_serve_engine_t* engine);
void accsv_engine_leave(accrt_serve_engine_t* engine);
/* Ends all requests that the stepping thread has, without events. */
void accsv_engine_drop_all(accrt_serve_engine_t* engine);

/* Ends a request that waits if it could not end before its deadline, and returns whether it did.
 * The scheduler's `drop`. */
bool accsv_engine_drop(void* self, accsv_sequence_t* sequence);

/* ---- serve/deliver.c: tokens become events ---- */

/* A token of the sequence is known: text, stops, its event. `sample` is its place in `results`. */
void accsv_deliver(accrt_serve_engine_t* engine, accsv_generation_t* generation, int32_t token,
                   const accrt_serve_results_t* results, uint32_t sample, uint64_t now_ns);
/* Takes the log probabilities of the prompt's tokens that a part had; `sample` is the first. When
 * the part draws a token, all are there: their event is given. */
void accsv_deliver_scores(accrt_serve_engine_t* engine, const accsv_part_t* part,
                          const accrt_serve_results_t* results, uint32_t sample, uint64_t now_ns);
/* Ends all sequences of a request that go on. `status` is for ACCRT_SERVE_FINISH_FAILED. */
/* The rows that are wanted of a sequence's tokens [start, start + count); `rows` has those of the
 * last ones alone, if it wants no others. */
void accsv_deliver_rows(accrt_serve_engine_t* engine, const accsv_part_t* part, const float* rows,
                        uint64_t now_ns);
void accsv_end_request(accrt_serve_engine_t* engine, accsv_request_t* request, uint32_t reason,
                       accrt_status_t status, uint64_t now_ns);

/* ---- serve/figures.c ---- */

void accsv_histogram_add(accrt_serve_histogram_t* histogram, uint64_t ns);
/* The scheduler's figures of this moment. */
void accsv_figures_update(accrt_serve_engine_t* engine);

/* ---- serve/submit.c: the registry. Under the lock. ---- */

accsv_request_t** accsv_registry_place(accrt_serve_engine_t* engine, uint64_t id);

#endif /* ACCRT_SERVE_ENGINE_H_ */
