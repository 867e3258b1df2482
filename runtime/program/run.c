/* runtime/program/run.c - asynchronous executions of a session: records, completions, weights that
 * were swapped meanwhile. */
#include <sched.h>
#include <string.h>

#include "runtime/program/internal.h"

/* ---- Records ---- */

ACCRT_RARE void accrt_session_collect_runs(accrt_session_t* session) {
  /* Acquire pairs with the release of the push in `complete`. */
  accrt_run_t* run = atomic_exchange_explicit(&session->finished_runs, NULL, memory_order_acquire);
  while (run != NULL) {
    accrt_run_t* next = run->next;
    accrt_plan_release(run->plan);
    run->plan = NULL;
    accrt_session_give_back_run(session, run);
    run = next;
  }
}

ACCRT_RARE accrt_status_t accrt_session_take_run(accrt_session_t* session, accrt_run_t** out_run) {
  accrt_session_collect_runs(session);
  accrt_run_t* run = session->free_runs;
  if (run == NULL) {
    ACCRT_TRY(ACCRT_NEW(session->program->allocator, &run));
    run->session = session;
    atomic_init(&run->done, 0);
  } else {
    session->free_runs = run->next;
  }
  run->next = NULL;
  run->plan = NULL;
  run->status = ACCRT_OK;
  *out_run = run;
  return ACCRT_OK;
}

void accrt_session_give_back_run(accrt_session_t* session, accrt_run_t* run) {
  run->next = session->free_runs;
  session->free_runs = run;
}

/* ---- Completion, on any thread ---- */

/* Of a run in pieces, the last one reports: behind a piece that failed it is POISONED, but the run
 * failed as that piece did. */
static accrt_status_t status_of_run(const accrt_run_t* run) {
  return run->status != ACCRT_OK && run->error.submission > run->before ? run->error.status
                                                                        : run->status;
}

ACCRT_RARE static void trace_run(const accrt_run_t* run) {
  accrt_instance_t* instance = run->session->program->instance;
  if (!accrt_instance_tracing(instance))
    return;
  accrt_trace_event_t event;
  memset(&event, 0, sizeof event);
  event.kind = ACCRT_TRACE_CALL;
  event.status = status_of_run(run);
  event.stream_id = accrt_stream_id(run->session->stream);
  event.begin_ns = run->begin_ns;
  event.end_ns = accrt_clock_ns();
  event.name = run->name;
  accrt_instance_trace(instance, &event);
}

ACCRT_RARE static void complete(void* user, accrt_status_t status, const accrt_error_t* error,
                                uint64_t time_ns) {
  (void)time_ns;
  accrt_run_t* run = user;
  accrt_session_t* session = run->session;
  run->status = status;
  if (status != ACCRT_OK) {
    if (error != NULL) {
      run->error = *error;
    } else {
      memset(&run->error, 0, sizeof run->error);
      run->error.struct_size = (uint32_t)sizeof run->error;
      run->error.status = status;
    }
    (void)accrt_session_fail(session, &run->error);
  }
  trace_run(run);
  /* Release pairs with the acquire of who waits for the record: status and error are seen. */
  atomic_store_explicit(&run->done, 1, memory_order_release);
  accrt_run_t* head = atomic_load_explicit(&session->finished_runs, memory_order_relaxed);
  do {
    run->next = head;
    /* Release pairs with the acquire exchange in accrt_session_collect_runs. */
  } while (!atomic_compare_exchange_weak_explicit(&session->finished_runs, &head, run,
                                                  memory_order_release, memory_order_relaxed));
  /* The last touch of the session. Release pairs with the acquire in accrt_session_drain. */
  atomic_fetch_sub_explicit(&session->in_flight, 1, memory_order_release);
}

/* ---- What work uses ---- */

static void ref_plan(void* object) {
  accrt_plan_t* plan = object;
  accrt_object_retain(&plan->program->object);
  accrt_plan_retain(plan);
}

static void drop_plan(void* object) {
  accrt_plan_t* plan = object;
  accrt_program_t* program = plan->program;
  accrt_plan_release(plan);
  accrt_program_unref(program);
}

static const accrt_retained_class_t retained_plan = {ref_plan, drop_plan};

static void retain_plan(accrt_stream_work_t* work, accrt_plan_t* plan) {
  work->retained_class = &retained_plan;
  work->retained = plan;
}

/* Pieces of a call were enqueued, and the others were not: states may be changed in part. It is
 * this thread's record that says why. */
ACCRT_RARE static void fail_divided(accrt_session_t* session, const accrt_stream_work_t* work,
                                    uint64_t submission) {
  if (work->piece_count == 0 || submission == 0)
    return;
  session->last_submission = submission;
  (void)accrt_session_fail(session, accrt_error_current());
}

ACCRT_RARE accrt_status_t accrt_session_execute_traced(accrt_session_t* session, accrt_run_t* run,
                                                       accrt_stream_work_t* work) {
  run->name = work->name;
  run->begin_ns = accrt_instance_tracing(session->program->instance) ? accrt_clock_ns() : 0;
  run->before = work->piece_count != 0 ? accrt_stream_last_submission(session->stream) : UINT64_MAX;
  atomic_store_explicit(&run->done, 0, memory_order_relaxed);
  work->completion.done = complete;
  work->completion.user = run;
  /* Relaxed: the stream publishes the work, and with it this count, to the thread that completes
   * it. */
  atomic_fetch_add_explicit(&session->in_flight, 1, memory_order_relaxed);
  if (work->piece_count != 0)
    retain_plan(work, run->plan);
  uint64_t submission = 0;
  const accrt_status_t status = accrt_stream_execute(session->stream, work, &submission);
  if (status == ACCRT_OK) {
    session->last_submission = submission;
  } else {
    atomic_fetch_sub_explicit(&session->in_flight, 1, memory_order_relaxed);
    fail_divided(session, work, submission);
  }
  return status;
}

/* ---- Without a completion ---- */

accrt_status_t accrt_session_execute(accrt_session_t* session, accrt_plan_t* plan,
                                     accrt_stream_work_t* work) {
  uint64_t submission = 0, first = 0;
  retain_plan(work, plan);
  work->out_first = &first;
  const accrt_status_t status = accrt_stream_execute(session->stream, work, &submission);
  if (status != ACCRT_OK) {
    fail_divided(session, work, submission);
    return status;
  }
  session->last_submission = submission;
  if (session->first_unknown == 0)
    session->first_unknown = first != 0 ? first : submission;
  return ACCRT_OK;
}

void accrt_session_look(accrt_session_t* session) {
  if (session->first_unknown == 0)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  session->seen_failures = accrt_stream_failures(session->stream);
  const accrt_status_t status = accrt_stream_outcome(session->stream, session->first_unknown,
                                                     session->last_submission, &error);
  if (status == ACCRT_ERROR_NOT_READY)
    return;
  session->first_unknown = 0;
  if (status != ACCRT_OK)
    (void)accrt_session_fail(session, &error);
}

void accrt_session_drain(accrt_session_t* session) {
  /* Completions are under way on threads that do not wait: this takes no longer than a
   * call of theirs. */
  while (atomic_load_explicit(&session->in_flight, memory_order_acquire) != 0)
    (void)sched_yield();
}

/* ---- Weights ---- */

ACCRT_RARE void accrt_session_take_weights(accrt_session_t* session) {
  accrt_weight_set_t* old = session->weights;
  session->weights = accrt_program_weights(session->program, &session->weights_generation);
  ++session->version;
  for (uint32_t i = 0; i < old->count; ++i) {
    if (old->components[i].buffer == NULL)
      continue;
    /* A reference to be let go in order; the set itself drops its own whenever its last user
     * does. */
    accrt_buffer_ref(old->components[i].buffer);
    accrt_session_let_go(session, old->components[i].buffer);
  }
  accrt_weight_set_release(old);
}
