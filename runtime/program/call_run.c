/* runtime/program/call_run.c - running calls: on the caller, or through the stream. */
#include <sched.h>
#include <string.h>

#include "runtime/program/internal.h"

/* ---- Before every run ---- */

static accrt_status_t grow_tables(accrt_call_t* call, const accrt_plan_t* plan) {
  const accrt_allocator_t* allocator = call->program->allocator;
  void* memory = call->bindings;
  accrt_status_t status = accrt_grow_array(allocator, plan->binding_count, sizeof *call->bindings,
                                           &call->binding_capacity, &memory);
  call->bindings = memory;
  if (status != ACCRT_OK)
    return status;
  memory = call->scalars;
  status = accrt_grow_array(allocator, plan->scalar_count, sizeof *call->scalars,
                            &call->scalar_capacity, &memory);
  call->scalars = memory;
  if (status != ACCRT_OK)
    return status;
  memory = call->values;
  status = accrt_grow_array(allocator, plan->node_count, sizeof *call->values,
                            &call->value_capacity, &memory);
  call->values = memory;
  return status;
}

/* The plan for the symbols that were found; the one of the last run when the key is the same. */
static accrt_status_t select_plan(accrt_call_t* call) {
  accrt_plan_key(call->program, call->function, call->symbols, call->present, call->key);
  if (call->plan != NULL &&
      (call->key_count == 0 ||
       memcmp(call->key, call->plan->key, call->key_count * sizeof *call->key) == 0)) {
    return ACCRT_OK;
  }
  accrt_plan_t* plan;
  accrt_status_t status = accrt_session_plan(call->session, call->function, call->symbols,
                                             call->present, call->key, call->key_count, &plan);
  if (status != ACCRT_OK)
    return status;
  status = grow_tables(call, plan);
  if (status != ACCRT_OK) {
    accrt_plan_release(plan);
    return status;
  }
  accrt_plan_release(call->plan);
  call->plan = plan;
  return ACCRT_OK;
}

static accrt_status_t prepare(accrt_call_t* call) {
  accrt_status_t status = ACCRT_OK;
  if (call->adapter_version != call->session->adapter_version)
    status = accrt_call_adapt(call);
  if (status != ACCRT_OK)
    return status;
  const uint32_t dirty = call->dirty;
  if ((dirty & ACCRT_CALL_DIRTY_SHAPES) != 0) {
    status = accrt_call_solve(call);
    if (status == ACCRT_OK)
      status = select_plan(call);
  } else if ((dirty & ACCRT_CALL_DIRTY_SCALARS) != 0) {
    status = accrt_call_solve_scalars(call);
  }
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
static accrt_status_t begin(const char* operation, accrt_call_t* call) {
  accrt_status_t status = accrt_check_fork_in(operation);
  if (status != ACCRT_OK)
    return status;
  if (call == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "call is NULL");
  status = accrt_session_check(call->session);
  return status != ACCRT_OK ? status : prepare(call);
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

/* Waits for everything on the stream. */
static accrt_status_t wait_stream(const accrt_call_t* call, uint64_t timeout_ns) {
  const accrt_status_t status =
      accrt_stream_synchronize(call->session->stream, timeout_ns, ACCRT_WAIT_BLOCK);
  const bool is_late = status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY;
  return is_late ? fail_timeout(call, timeout_ns) : status;
}

/* Through the stream: it is busy, or the driver cannot run on the caller. */
static accrt_status_t run_on_stream(accrt_call_t* call, accrt_stream_work_t* work,
                                    uint64_t timeout_ns) {
  accrt_session_t* session = call->session;
  accrt_run_t* run;
  accrt_status_t status = accrt_session_take_run(session, &run);
  if (status != ACCRT_OK)
    return status;
  accrt_plan_retain(call->plan);
  run->plan = call->plan;
  status = accrt_call_copy_in(call);
  if (status == ACCRT_OK)
    status = accrt_session_execute(session, run, work);
  if (status != ACCRT_OK) {
    run->plan = NULL;
    accrt_plan_release(call->plan);
    accrt_session_give_back_run(session, run);
    return status;
  }
  call->ran = true;
  call->maybe_in_flight = true;
  const accrt_status_t copied = accrt_call_copy_out(call);
  const accrt_status_t waited = wait_stream(call, timeout_ns);
  if (waited == ACCRT_ERROR_TIMEOUT)
    return waited;
  /* The stream has ended it one way or the other: its completion is being delivered. Acquire pairs with the release in
   * the completion. */
  while (atomic_load_explicit(&run->done, memory_order_acquire) == 0)
    (void)sched_yield();
  if (run->status != ACCRT_OK)
    return accrt_error_restore(&run->error);
  /* Results that are copied back can fail on their own. */
  return call->staged_count == 0 ? ACCRT_OK : copied != ACCRT_OK ? copied : waited;
}

/* Enqueues a run on a stream that tells nobody, with the copies around it. */
static accrt_status_t enqueue_passive(accrt_call_t* call, accrt_stream_work_t* work) {
  accrt_session_t* session = call->session;
  accrt_status_t status = accrt_call_copy_in(call);
  if (status == ACCRT_OK)
    status = accrt_session_execute_passive(session, call->plan, work);
  if (status != ACCRT_OK || call->staged_count == 0)
    return status;
  status = accrt_call_copy_out(call);
  session->last_submission = accrt_stream_last_submission(session->stream);
  return status;
}

/* On a stream that tells nobody: this thread waits for the driver. */
static accrt_status_t run_passive(accrt_call_t* call, accrt_stream_work_t* work,
                                  uint64_t timeout_ns) {
  accrt_session_t* session = call->session;
  accrt_status_t status = enqueue_passive(call, work);
  if (status != ACCRT_OK)
    return status;
  call->ran = true;
  call->maybe_in_flight = true;
  status = accrt_stream_wait_number(session->stream, session->last_submission, timeout_ns,
                                    ACCRT_WAIT_BLOCK);
  if (status == ACCRT_OK) {
    session->first_unknown = 0;
    return ACCRT_OK;
  }
  if (status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY)
    return fail_timeout(call, timeout_ns);
  accrt_session_look(session);
  /* What failed, rather than that something has. Acquire pairs with the release in accrt_session_fail. */
  if (atomic_load_explicit(&session->failed, memory_order_acquire) == 2)
    return accrt_error_restore(&session->error);
  return status;
}

static void trace_inline(const accrt_call_t* call, uint64_t begin_ns, uint64_t submission,
                         accrt_status_t status) {
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

accrt_status_t accrt_call_run(accrt_call_t* call, uint64_t timeout_ns) {
  accrt_status_t status = begin(__func__, call);
  if (status != ACCRT_OK)
    return status;
  if (call->plan->list == NULL) {
    call->ran = true;
    return wait_stream(call, timeout_ns);
  }
  accrt_stream_work_t work;
  fill_work(call, &work);
  const bool is_traced = accrt_instance_tracing(call->program->instance) != 0;
  const uint64_t begin_ns = is_traced ? accrt_clock_ns() : 0;
  uint64_t submission = 0;
  status = call->staged_count != 0
               ? ACCRT_ERROR_NOT_READY
               : accrt_stream_execute_inline(call->session->stream, &work, &submission);
  if (status == ACCRT_ERROR_NOT_READY)
    return accrt_stream_is_passive(call->session->stream) ? run_passive(call, &work, timeout_ns)
                                                          : run_on_stream(call, &work, timeout_ns);
  if (is_traced && !is_refusal(status))
    trace_inline(call, begin_ns, submission, status);
  if (status == ACCRT_OK) {
    call->ran = true;
  } else if (!is_refusal(status)) {
    (void)accrt_session_fail(call->session, accrt_error_current());
  }
  return status;
}

/* ---- Asynchronous ---- */

static accrt_status_t check_timepoints(const accrt_timepoint_t* timepoints, uint32_t count,
                                       const char* name) {
  if (timepoints == NULL && count != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL with a count of %" PRIu32, name, count);
  for (uint32_t i = 0; i < count; ++i) {
    if (timepoints[i].semaphore == NULL)
      return ACCRT_FAIL(INVALID_ARGUMENT, "semaphore of %s %" PRIu32 " is NULL", name, i);
  }
  return ACCRT_OK;
}

static accrt_status_t execute(accrt_call_t* call) {
  if (call->plan->list == NULL)
    return ACCRT_OK;
  accrt_session_t* session = call->session;
  accrt_stream_work_t work;
  fill_work(call, &work);
  if (accrt_stream_is_passive(session->stream)) {
    const accrt_status_t passed = enqueue_passive(call, &work);
    call->maybe_in_flight |= passed == ACCRT_OK;
    return passed;
  }
  accrt_run_t* run;
  accrt_status_t status = accrt_session_take_run(session, &run);
  if (status != ACCRT_OK)
    return status;
  accrt_plan_retain(call->plan);
  run->plan = call->plan;
  status = accrt_call_copy_in(call);
  if (status == ACCRT_OK)
    status = accrt_session_execute(session, run, &work);
  if (status == ACCRT_OK) {
    call->maybe_in_flight = true;
    return accrt_call_copy_out(call);
  }
  run->plan = NULL;
  accrt_plan_release(call->plan);
  accrt_session_give_back_run(session, run);
  return status;
}

/* The run is enqueued and its signals are not: nobody who waits for them may hang. When that is because the run has failed
 * already, the submission itself was good, and the failure is where it belongs. */
static accrt_status_t give_up_signals(accrt_call_t* call, const accrt_timepoint_t* signals,
                                      uint32_t count, accrt_status_t status) {
  const accrt_error_t own = *accrt_error_current();
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_stream_error(call->session->stream, &error);
  if (status != ACCRT_ERROR_POISONED) {
    error = own;
    (void)accrt_session_fail(call->session, &error);
  } else if (error.status == ACCRT_OK) {
    error = own; /* the semaphore itself was failed meanwhile */
  }
  for (uint32_t i = 0; i < count; ++i)
    (void)accrt_semaphore_fail(signals[i].semaphore, error.status, error.message);
  (void)accrt_error_restore(&own);
  return status == ACCRT_ERROR_POISONED ? ACCRT_OK : status;
}

accrt_status_t accrt_call_submit(accrt_call_t* call, const accrt_timepoint_t* waits,
                                 uint32_t wait_count, const accrt_timepoint_t* signals,
                                 uint32_t signal_count) {
  accrt_status_t status = accrt_check_fork();
  if (status == ACCRT_OK)
    status = check_timepoints(waits, wait_count, "wait");
  if (status == ACCRT_OK)
    status = check_timepoints(signals, signal_count, "signal");
  for (uint32_t i = 0; i < signal_count && status == ACCRT_OK; ++i) {
    uint64_t value;
    status = accrt_semaphore_query(signals[i].semaphore, &value);
  }
  if (status == ACCRT_OK)
    status = begin(__func__, call);
  if (status != ACCRT_OK)
    return status;
  accrt_stream_t* stream = call->session->stream;
  for (uint32_t i = 0; i < wait_count && status == ACCRT_OK; ++i) {
    status = accrt_stream_wait(stream, waits[i].semaphore, waits[i].value);
  }
  if (status == ACCRT_OK)
    status = execute(call);
  if (status != ACCRT_OK)
    return status;
  call->ran = true;
  for (uint32_t i = 0; i < signal_count; ++i) {
    status = accrt_stream_signal(stream, signals[i].semaphore, signals[i].value);
    if (status != ACCRT_OK)
      return give_up_signals(call, signals + i, signal_count - i, status);
  }
  return ACCRT_OK;
}
