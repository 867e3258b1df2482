/* runtime/program/call_run.c - running calls: on the caller, or through the stream. */
#include <sched.h>
#include <string.h>

#include "runtime/program/internal.h"

/* ---- Before every run ---- */

static accrt_status_t grow_tables(accrt_call_t* call, const accrt_plan_t* plan) {
  const accrt_allocator_t* allocator = call->program->allocator;
  void* memory = call->bindings;
  ACCRT_TRY(accrt_grow_array(allocator, plan->binding_count, sizeof *call->bindings,
                             &call->binding_capacity, &memory));
  call->bindings = memory;
  memory = call->scalars;
  ACCRT_TRY(accrt_grow_array(allocator, plan->scalar_count, sizeof *call->scalars,
                             &call->scalar_capacity, &memory));
  call->scalars = memory;
  memory = call->values;
  accrt_status_t status = accrt_grow_array(allocator, plan->node_count, sizeof *call->values,
                                           &call->value_capacity, &memory);
  call->values = memory;
  return status;
}

/* The plan for the symbols that were found; the one of the last run when the key is the same. One
 * that has to be made ends at the caller's limit. */
static accrt_status_t select_plan(accrt_call_t* call, uint64_t timeout_ns) {
  accrt_plan_key(call->program, call->function, call->symbols, call->present, call->key);
  if (call->plan != NULL &&
      (call->key_count == 0 ||
       memcmp(call->key, call->plan->key, call->key_count * sizeof *call->key) == 0)) {
    return ACCRT_OK;
  }
  accrt_plan_t* plan;
  ACCRT_TRY(accrt_session_plan(call->session, call->function, call->symbols, call->present,
                               call->key, call->key_count, timeout_ns, &plan));
  accrt_status_t status = grow_tables(call, plan);
  if (status != ACCRT_OK) {
    accrt_plan_release(plan);
    return status;
  }
  accrt_plan_release(call->plan);
  call->plan = plan;
  return ACCRT_OK;
}

/* The plan for what is bound now, when that may be another than before. */
static accrt_status_t prepare_plan(accrt_call_t* call, uint64_t timeout_ns) {
  if (call->adapter_version != call->session->adapter_version)
    ACCRT_TRY(accrt_call_adapt(call));
  if ((call->dirty & ACCRT_CALL_DIRTY_SHAPES) == 0)
    return ACCRT_OK;
  ACCRT_TRY(accrt_call_solve(call));
  return select_plan(call, timeout_ns);
}

static accrt_status_t prepare(accrt_call_t* call, uint64_t timeout_ns) {
  accrt_status_t status = prepare_plan(call, timeout_ns);
  if (status != ACCRT_OK)
    return status;
  const uint32_t dirty = call->dirty;
  if ((dirty & (ACCRT_CALL_DIRTY_SHAPES | ACCRT_CALL_DIRTY_SCALARS)) == ACCRT_CALL_DIRTY_SCALARS)
    status = accrt_call_solve_scalars(call);
  if (status == ACCRT_OK && (dirty & (ACCRT_CALL_DIRTY_SHAPES | ACCRT_CALL_DIRTY_SCALARS)) != 0) {
    status = accrt_plan_evaluate(call->plan, call->symbols, call->values, call->scalars);
  }
  if (status == ACCRT_OK)
    status = accrt_call_bind(call);
  if (status == ACCRT_OK)
    call->dirty = 0;
  if (status == ACCRT_OK)
    call->plan->last_use = ++call->session->clock;
  return status;
}

/* `operation` is the public function that was called. */
static accrt_status_t begin(accrt_call_t* call, uint64_t timeout_ns) {
  const accrt_status_t status = accrt_session_check(call->session);
  return status != ACCRT_OK ? status : prepare(call, timeout_ns);
}

static void fill_work(const accrt_call_t* call, accrt_stream_work_t* work) {
  memset(work, 0, sizeof *work);
  work->list = call->plan->list;
  work->bindings = call->bindings;
  work->scalars = call->scalars;
  work->binding_count = call->plan->binding_count;
  work->scalar_count = call->plan->scalar_count;
  work->name = accrt_function_name(call->program, call->function);
}

/* ---- Blocking ---- */

static accrt_status_t fail_timeout(const accrt_call_t* call, uint64_t timeout_ns) {
  return ACCRT_FAIL(TIMEOUT, "function '%s' was not complete after %" PRIu64 " ns; it still runs",
                    accrt_function_name(call->program, call->function), timeout_ns);
}

/* What the session failed with, or `status` when it did not. */
ACCRT_RARE static accrt_status_t report_failure(accrt_session_t* session, accrt_status_t status) {
  accrt_session_look(session);
  /* What failed, rather than that something has. Acquire pairs with the release in
   * accrt_session_fail. */
  if (atomic_load_explicit(&session->failed, memory_order_acquire) == 2)
    return accrt_error_restore(&session->error);
  return status;
}

/* `last_submission` of a run that failed on the calling thread: its stream did not fail. */
#define FAILED_HERE UINT64_MAX

/* Waits for the latest run, and for the copies behind it. `timeout_ns` is what the caller gave,
 * `left_ns` what is left of it. */
static accrt_status_t wait_run(accrt_call_t* call, uint64_t timeout_ns, uint64_t left_ns) {
  accrt_session_t* session = call->session;
  if (call->last_submission == 0)
    return ACCRT_OK;
  if (call->last_submission == FAILED_HERE)
    return report_failure(session, ACCRT_FAIL(POISONED, "the run failed before a reset"));
  const accrt_status_t status =
      accrt_stream_wait_over(session->stream, call->last_submission, left_ns);
  if (status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY)
    return fail_timeout(call, timeout_ns);
  if (status != ACCRT_OK)
    return report_failure(session, status);
  if (session->first_unknown != 0 && session->last_submission <= call->last_submission)
    session->first_unknown = 0;
  return ACCRT_OK;
}

/* Waits for everything on the stream. */
static accrt_status_t wait_stream(const accrt_call_t* call, uint64_t timeout_ns) {
  const accrt_status_t status =
      accrt_inner_stream_synchronize(call->session->stream, timeout_ns, ACCRT_WAIT_BLOCK);
  const bool is_late = status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY;
  return is_late ? fail_timeout(call, timeout_ns) : status;
}

/* The stream is not reset until accrt_stream_let_reset, which follows in any case: all of a run
 * belongs together, and it stands on the session's runs before it. */
static accrt_status_t hold(accrt_session_t* session) {
  accrt_stream_hold_reset(session->stream);
  return accrt_session_check(session); /* it may have been reset before, since the call began */
}

ACCRT_RARE static accrt_status_t divide(const accrt_call_t* call, accrt_stream_work_t* work) {
  const accrt_driver_list_info_t info = accrt_plan_list_info(call->plan);
  return accrt_pieces_add(call->session->stream, &info, &call->plan->divided, work);
}

/* Enqueues a run with the copies around it. `*out_enqueued`: the run is under way, whatever has
 * become of the copies behind it. */
static accrt_status_t enqueue(accrt_call_t* call, accrt_stream_work_t* work, bool* out_enqueued) {
  accrt_session_t* session = call->session;
  const bool is_traced = accrt_stream_traces(session->stream);
  accrt_run_t* run = NULL;
  *out_enqueued = false;
  if (accrt_stream_divides(session->stream))
    ACCRT_TRY(divide(call, work));
  if (is_traced)
    ACCRT_TRY(accrt_session_take_run(session, &run));
  if (run != NULL) {
    accrt_plan_retain(call->plan);
    run->plan = call->plan;
  }
  accrt_status_t status = ACCRT_OK;
  const uint64_t before = session->last_submission;
  if (call->staged_count != 0)
    status = accrt_call_copy_in(call);
  if (status == ACCRT_OK)
    status = is_traced ? accrt_session_execute_traced(session, run, work)
                       : accrt_session_execute(session, call->plan, work);
  if (status == ACCRT_OK) {
    *out_enqueued = true;
    call->maybe_in_flight = true;
    call->last_submission = session->last_submission;
    if (call->staged_count != 0) {
      status = accrt_call_copy_out(call);
      call->last_submission = accrt_stream_last_submission(session->stream);
    }
    if (!is_traced)
      session->last_submission = call->last_submission;
    return status;
  }
  if (session->last_submission != before) { /* pieces of it */
    call->maybe_in_flight = true;
    call->last_submission = session->last_submission;
  }
  if (run != NULL) {
    run->plan = NULL;
    accrt_plan_release(call->plan);
    accrt_session_give_back_run(session, run);
  }
  return status;
}

/* Through the stream: it is busy, the driver cannot run on the caller, or the caller is to leave at
 * a limit. */
static accrt_status_t run_on_stream(accrt_call_t* call, accrt_stream_work_t* work,
                                    uint64_t timeout_ns, uint64_t deadline_ns) {
  bool is_enqueued = false;
  accrt_stream_t* stream = call->session->stream;
  accrt_status_t status = hold(call->session);
  if (status == ACCRT_OK && timeout_ns != ACCRT_TIMEOUT_INFINITE)
    status = accrt_stream_hand_over(stream);
  if (status == ACCRT_OK)
    status = enqueue(call, work, &is_enqueued);
  accrt_stream_let_reset(stream);
  if (timeout_ns != ACCRT_TIMEOUT_INFINITE)
    accrt_stream_go(stream);
  if (!is_enqueued)
    return status;
  call->ran = true;
  /* Results that are copied back can fail on their own. */
  const accrt_error_t copied = *accrt_error_current();
  ACCRT_TRY(wait_run(call, timeout_ns, accrt_limit_left_ns(timeout_ns, deadline_ns)));
  return status == ACCRT_OK ? ACCRT_OK : accrt_error_restore(&copied);
}

ACCRT_RARE static void trace_inline(const accrt_call_t* call, uint64_t begin_ns,
                                    uint64_t submission, accrt_status_t status) {
  accrt_trace_event_t event;
  memset(&event, 0, sizeof event);
  event.kind = ACCRT_TRACE_CALL;
  event.status = status;
  event.stream_id = accrt_stream_id(call->session->stream);
  event.submission = submission;
  event.begin_ns = begin_ns;
  event.end_ns = accrt_clock_ns();
  event.name = accrt_function_name(call->program, call->function);
  accrt_instance_trace(call->program->instance, &event);
}

/* Failures that mean that nothing ran. */
static bool is_refusal(accrt_status_t status) {
  return status == ACCRT_ERROR_POISONED || status == ACCRT_ERROR_OUT_OF_MEMORY ||
         status == ACCRT_ERROR_FORKED;
}

/* Runs on this thread if that can be done: ACCRT_ERROR_NOT_READY without a record if not. */
static accrt_status_t run_here(accrt_call_t* call, const accrt_stream_work_t* work) {
  const bool is_traced = accrt_instance_tracing(call->program->instance) != 0;
  const uint64_t begin_ns = is_traced ? accrt_clock_ns() : 0;
  uint64_t submission = 0;
  const accrt_status_t status =
      accrt_stream_execute_inline(call->session->stream, work, &submission);
  if (status == ACCRT_ERROR_NOT_READY)
    return status;
  if (is_traced && !is_refusal(status))
    trace_inline(call, begin_ns, submission, status);
  if (status == ACCRT_OK) {
    call->ran = true;
    call->last_submission = 0;
    /* The session's runs before this one may have been dropped. */
    return accrt_session_check(call->session);
  } else if (status == ACCRT_ERROR_POISONED) {
    ACCRT_TRY(
        accrt_session_check(call->session)); /* it may be the session's own work that failed */
  } else if (!is_refusal(status)) {
    call->ran = true;
    call->last_submission = FAILED_HERE;
    (void)accrt_session_fail(call->session, accrt_error_current());
  }
  return status;
}

static accrt_status_t run_call(accrt_call_t* call, uint64_t timeout_ns) {
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  ACCRT_USE_SESSION(call->session);
  ACCRT_TRY(begin(call, timeout_ns));
  if (call->plan->list == NULL) {
    call->ran = true;
    return wait_stream(call, timeout_ns);
  }
  accrt_stream_work_t work;
  fill_work(call, &work);
  /* This thread cannot leave work that it does itself. */
  const bool here = timeout_ns == ACCRT_TIMEOUT_INFINITE && call->staged_count == 0;
  accrt_status_t status = here ? run_here(call, &work) : ACCRT_ERROR_NOT_READY;
  return status == ACCRT_ERROR_NOT_READY ? run_on_stream(call, &work, timeout_ns, deadline_ns)
                                         : status;
}

accrt_status_t accrt_call_run(accrt_call_t* call, uint64_t timeout_ns) {
  ACCRT_ENTER(call);
  return run_call(call, timeout_ns);
}

/* ---- For callers that look at something else now and then ---- */

/* Work that took less than this part of the limit is done here. */
#define SHORT_PART 8u

/* On this thread, timed by a clock that is cheap to read. */
static accrt_status_t run_short(accrt_call_t* call, accrt_stream_work_t* work) {
  const uint64_t begin_ns = accrt_clock_coarse_ns();
  const accrt_status_t status = run_here(call, work);
  call->plan->last_run_ns = accrt_clock_coarse_ns() - begin_ns + 1;
  return status;
}

/* A run that goes on has a status of its own: making a plan has limits too, and nothing runs when
 * it ends at them. */
static accrt_status_t attempted(const accrt_call_t* call, uint64_t timeout_ns,
                                accrt_status_t status) {
  if (status != ACCRT_ERROR_TIMEOUT)
    return status;
  return ACCRT_FAIL(NOT_READY, "function '%s' still runs after %" PRIu64 " ns",
                    accrt_function_name(call->program, call->function), timeout_ns);
}

accrt_status_t accrt_call_attempt(accrt_call_t* call, uint64_t timeout_ns) {
  ACCRT_ENTER(call);
  if (timeout_ns == ACCRT_TIMEOUT_INFINITE)
    return run_call(call, timeout_ns);
  ACCRT_USE_SESSION(call->session);
  ACCRT_TRY(begin(call, timeout_ns));
  accrt_plan_t* plan = call->plan;
  if (plan->list == NULL) {
    call->ran = true;
    call->last_submission = accrt_stream_last_submission(call->session->stream);
    return attempted(call, timeout_ns, wait_run(call, timeout_ns, timeout_ns));
  }
  accrt_stream_work_t work;
  fill_work(call, &work);
  const bool is_short = plan->last_run_ns != 0 && plan->last_run_ns <= timeout_ns / SHORT_PART;
  accrt_status_t status =
      is_short && call->staged_count == 0 ? run_short(call, &work) : ACCRT_ERROR_NOT_READY;
  if (status != ACCRT_ERROR_NOT_READY)
    return status;
  const uint64_t begin_ns = accrt_clock_ns();
  status = run_on_stream(call, &work, timeout_ns, accrt_deadline_ns(timeout_ns));
  plan->last_run_ns = status == ACCRT_ERROR_TIMEOUT ? UINT64_MAX : accrt_clock_ns() - begin_ns + 1;
  return attempted(call, timeout_ns, status);
}

accrt_status_t accrt_call_wait(accrt_call_t* call, uint64_t timeout_ns) {
  ACCRT_ENTER(call);
  ACCRT_USE_SESSION(call->session);
  if (!call->ran)
    return ACCRT_FAIL(INVALID_STATE, "the call was never run");
  return wait_run(call, timeout_ns, timeout_ns);
}

/* ---- Asynchronous ---- */

accrt_status_t accrt_call_plan(accrt_call_t* call, uint64_t timeout_ns) {
  ACCRT_ENTER(call);
  ACCRT_USE_SESSION(call->session);
  ACCRT_TRY(accrt_session_check(call->session));
  return prepare_plan(call, timeout_ns);
}

static accrt_status_t check_timepoints(const accrt_call_t* call,
                                       const accrt_timepoint_t* timepoints, uint32_t count,
                                       const char* name) {
  if (count == 0)
    return ACCRT_OK;
  if (timepoints == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL with a count of %" PRIu32, name, count);
  for (uint32_t i = 0; i < count; ++i) {
    if (timepoints[i].semaphore == NULL)
      return ACCRT_FAIL(INVALID_ARGUMENT, "%s[%" PRIu32 "].semaphore is NULL", name, i);
    if (call != NULL &&
        accrt_semaphore_instance(timepoints[i].semaphore) != call->program->instance)
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "%s[%" PRIu32 "].semaphore is of another instance than the call of '%s'",
                        name, i, accrt_function_name(call->program, call->function));
  }
  return ACCRT_OK;
}

static accrt_status_t execute(accrt_call_t* call) {
  if (call->plan->list == NULL) {
    call->last_submission = accrt_stream_last_submission(call->session->stream);
    return ACCRT_OK;
  }
  accrt_stream_work_t work;
  bool is_enqueued;
  fill_work(call, &work);
  return enqueue(call, &work, &is_enqueued);
}

/* The run is enqueued and its signals are not: no waiter may hang. When that is
 * because the run has failed already, the submission itself was good, and the failure is where it
 * belongs. */
ACCRT_RARE static accrt_status_t give_up_signals(accrt_call_t* call,
                                                 const accrt_timepoint_t* signals, uint32_t count,
                                                 accrt_status_t status) {
  const accrt_error_t own = *accrt_error_current();
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_inner_stream_error(call->session->stream, &error);
  if (status != ACCRT_ERROR_POISONED) {
    error = own;
    (void)accrt_session_fail(call->session, &error);
  } else if (error.status == ACCRT_OK) {
    error = own; /* the semaphore itself was failed meanwhile */
  }
  for (uint32_t i = 0; i < count; ++i)
    (void)accrt_inner_semaphore_fail(signals[i].semaphore, error.status, error.message);
  (void)accrt_error_restore(&own);
  return status == ACCRT_ERROR_POISONED ? ACCRT_OK : status;
}

/* A thread that waits for the first signal may release the semaphores of the others at once. */
static accrt_status_t send_signals(accrt_call_t* call, const accrt_timepoint_t* signals,
                                   uint32_t count) {
  accrt_stream_t* stream = call->session->stream;
  accrt_status_t status = ACCRT_OK;
  uint32_t sent = 0;
  for (uint32_t i = 0; i < count; ++i)
    (void)accrt_semaphore_retain(signals[i].semaphore);
  while (sent < count && status == ACCRT_OK) {
    status = accrt_inner_stream_signal(stream, signals[sent].semaphore, signals[sent].value);
    sent += status == ACCRT_OK;
  }
  if (status != ACCRT_OK)
    status = give_up_signals(call, signals + sent, count - sent, status);
  for (uint32_t i = 0; i < count; ++i)
    accrt_semaphore_release(signals[i].semaphore);
  return status;
}

static accrt_status_t submit(accrt_call_t* call, const accrt_timepoint_t* waits,
                             uint32_t wait_count, const accrt_timepoint_t* signals,
                             uint32_t signal_count) {
  ACCRT_USE_SESSION(call->session);
  accrt_status_t status = check_timepoints(call, waits, wait_count, "waits");
  if (status == ACCRT_OK)
    status = check_timepoints(call, signals, signal_count, "signals");
  for (uint32_t i = 0; i < signal_count && status == ACCRT_OK; ++i) {
    uint64_t value;
    status = accrt_inner_semaphore_query(signals[i].semaphore, &value);
  }
  if (status == ACCRT_OK)
    status = begin(call, ACCRT_TIMEOUT_INFINITE);
  if (status != ACCRT_OK)
    return status;
  accrt_stream_t* stream = call->session->stream;
  status = hold(call->session);
  for (uint32_t i = 0; i < wait_count && status == ACCRT_OK; ++i) {
    status = accrt_inner_stream_wait(stream, waits[i].semaphore, waits[i].value);
  }
  if (status == ACCRT_OK)
    status = execute(call);
  if (status == ACCRT_OK) {
    call->ran = true;
    status = send_signals(call, signals, signal_count);
  }
  accrt_stream_let_reset(stream);
  return status;
}

/* A thread that waits for a signal may release the call, and with it the session, before this
 * function returns. */
accrt_status_t accrt_call_submit(accrt_call_t* call, const accrt_timepoint_t* waits,
                                 uint32_t wait_count, const accrt_timepoint_t* signals,
                                 uint32_t signal_count) {
  ACCRT_ENTER(call);
  accrt_call_t* kept = signal_count != 0 ? accrt_call_retain(call) : NULL;
  const accrt_status_t status = submit(call, waits, wait_count, signals, signal_count);
  accrt_call_release(kept);
  return status;
}
