/* runtime/program/session.c - sessions: creation, end, failure, reset, clone, warm-up.
 *
 * State is in state.c, plans in plan_cache.c, executions in run.c.
 */
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/program/internal.h"

/* ---- End ---- */

static void destroy(accrt_session_t* session) {
  accrt_program_t* program = session->program;
  const accrt_allocator_t* allocator = program->allocator;
  accrt_session_drain(session);
  accrt_session_collect_runs(session);
  accrt_session_drop_plans(session);
  while (session->free_runs != NULL) {
    accrt_run_t* run = session->free_runs;
    session->free_runs = run->next;
    accrt_free(allocator, run, sizeof *run);
  }
  accrt_session_destroy_states(session);
  accrt_buffer_unref(session->arena);
  accrt_weight_set_release(session->weights);
  accrt_adapter_unref(session->adapter);
  accrt_free_array(allocator, session->symbols, program->tables->symbol_count,
                   sizeof *session->symbols);
  accrt_free_string(allocator, session->label);
  accrt_pool_unref(session->pool);
  if (session->stream != NULL)
    accrt_stream_unref(session->stream);
  accrt_free(allocator, session, sizeof *session);
  accrt_program_unref(program);
}

/* On the runtime's own thread, after everything that the stream had. The end of the instance waits
 * for it: the notification holds the stream until it has returned. */
static void destroy_later(void* user, accrt_status_t status) {
  (void)status;
  destroy(user);
}

/* With calls in flight: later, and on this thread only when there is no other way. */
static void retire(accrt_session_t* session) {
  const accrt_error_t saved = *accrt_error_current();
  /* Often only a completion is still on its way. A device without threads makes progress in waits
   * alone. */
  const bool is_idle =
      accrt_inner_stream_synchronize(session->stream, 0, ACCRT_WAIT_BLOCK) == ACCRT_OK;
  if (is_idle || accrt_inner_stream_notify(session->stream, destroy_later, session) != ACCRT_OK) {
    /* Nothing reports the end of the work, which uses what is freed now. */
    if (!is_idle)
      (void)accrt_inner_stream_synchronize(session->stream, ACCRT_TIMEOUT_INFINITE,
                                           ACCRT_WAIT_BLOCK);
    destroy(session);
  }
  (void)accrt_error_restore(&saved);
}

static void end(accrt_session_t* session) {
  if (session->stream == NULL || !accrt_session_is_busy(session)) {
    destroy(session);
  } else {
    retire(session);
  }
}

accrt_session_t* accrt_session_retain(accrt_session_t* session) {
  if (session == NULL || accrt_forked())
    return session;
  accrt_object_retain(&session->object);
  (void)accrt_instance_retain(session->program->instance);
  return session;
}

void accrt_session_release(accrt_session_t* session) {
  if (session == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = session->program->instance;
  if (accrt_object_release(&session->object))
    end(session);
  accrt_instance_release(instance);
}

/* ---- Creation ---- */

static accrt_status_t take_stream(accrt_session_t* session, accrt_stream_t* given) {
  accrt_device_t* device = session->program->device;
  if (given == NULL) {
    accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
    options.label = session->label;
    session->own_stream = true;
    const accrt_status_t status = accrt_inner_stream_create(device, &options, &session->stream);
    if (status == ACCRT_OK)
      accrt_program_internalize(session->program);
    return status;
  }
  ACCRT_TRY(accrt_device_check_same("stream", accrt_stream_device(given), "program", device));
  accrt_stream_ref(given); /* not as its user: see accrt_stream_release */
  session->stream = given;
  return ACCRT_OK;
}

static accrt_status_t take_pool(accrt_session_t* session, accrt_pool_t* given) {
  accrt_pool_t* pool = given;
  accrt_status_t status = ACCRT_OK;
  if (given == NULL) {
    status = accrt_pool_default(session->program->device, ACCRT_MEMORY_DEVICE, &pool);
  } else {
    status = accrt_device_check_same("pool", accrt_pool_device(given), "program",
                                     session->program->device);
  }
  if (status != ACCRT_OK)
    return status;
  session->pool = accrt_pool_retain(pool);
  accrt_program_internalize(session->program);
  return ACCRT_OK;
}

static accrt_status_t take_symbols(accrt_session_t* session,
                                   const accrt_session_options_t* options) {
  const accrt_program_t* program = session->program;
  ACCRT_TRY(ACCRT_NEW_ARRAY(program->allocator, program->tables->symbol_count, &session->symbols));
  return accrt_symbols_from_list(program, options->symbols, options->symbol_count,
                                 options->symbol_size_bytes, true, session->symbols);
}

/* A record for the first asynchronous execution, so that a blocking run never allocates one. */
static accrt_status_t reserve_run(accrt_session_t* session) {
  accrt_run_t* run;
  const accrt_status_t status = accrt_session_take_run(session, &run);
  if (status == ACCRT_OK)
    accrt_session_give_back_run(session, run);
  return status;
}

/* All that a session has; of the contents of its state only those that `fill` asks for. */
static accrt_status_t take_all(accrt_session_t* session, const accrt_session_options_t* options,
                               bool fill) {
  ACCRT_TRY(accrt_checkpoint());
  ACCRT_TRY(accrt_copy_string(session->program->allocator, options->label, &session->label));
  ACCRT_TRY(take_symbols(session, options));
  ACCRT_TRY(take_stream(session, options->stream));
  ACCRT_TRY(take_pool(session, options->pool));
  ACCRT_TRY(reserve_run(session));
  ACCRT_TRY(accrt_session_create_states(session));
  if (fill)
    ACCRT_TRY(accrt_session_fill_states(session, true));
  return ACCRT_OK;
}

/* Both budgets of the options. */
static accrt_status_t read_budgets(const accrt_session_options_t* options,
                                   accrt_budget_t* out_plans, accrt_budget_t* out_creation) {
  ACCRT_TRY(accrt_budget_read(options->budget, out_plans));
  return accrt_budget_read(
      options->creation_budget != NULL ? options->creation_budget : options->budget, out_creation);
}

static accrt_status_t make(accrt_program_t* program, const accrt_session_options_t* options,
                           bool fill, accrt_session_t** out_session) {
  accrt_session_t* session;
  ACCRT_TRY(ACCRT_NEW(program->allocator, &session));
  accrt_object_init(&session->object);
  accrt_object_retain(&program->object);
  session->program = program;
  session->max_plans = options->max_plans != 0 ? options->max_plans : ACCRT_DEFAULT_MAX_PLANS;
  session->version = 1;
  session->adapter_version = 1;
  session->weights = accrt_program_weights(program, &session->weights_generation);
  accrt_budget_t creation;
  accrt_status_t status = read_budgets(options, &session->budget, &creation);
  if (status == ACCRT_OK) {
    accrt_meter_t meter;
    accrt_meter_begin(&meter, &creation, "making a session of", accrt_bundle_name(program->bundle),
                      UINT64_MAX, UINT64_MAX);
    status = take_all(session, options, fill);
    accrt_meter_end(&meter);
  }
  if (status == ACCRT_OK) {
    (void)accrt_instance_retain(program->instance);
    *out_session = session;
  } else {
    destroy(session);
  }
  return status;
}

static accrt_status_t read_options(const accrt_session_options_t* options,
                                   accrt_session_options_t* out_options) {
  ACCRT_TRY(
      accrt_struct_read("accrt_session_options_t", options, out_options, sizeof *out_options));
  if (out_options->flags != 0 || out_options->reserved != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "flags are 0x%" PRIx32 " and reserved is %" PRIu32 ", both must be 0",
                      out_options->flags, out_options->reserved);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_session_create(accrt_program_t* program,
                                    const accrt_session_options_t* options,
                                    accrt_session_t** out_session) {
  if (out_session != NULL)
    *out_session = NULL;
  ACCRT_ENTER(out_session, program);
  accrt_session_options_t own;
  accrt_status_t status = read_options(options, &own);
  accrt_session_t* session = NULL;
  if (status == ACCRT_OK)
    status = make(program, &own, true, &session);
  if (status == ACCRT_OK) {
    *out_session = session;
  } else {
    accrt_session_release(session);
  }
  return status;
}

/* ---- Clone ---- */

/* The clone's symbols must be the original's: its state has the same shape. */
static accrt_status_t check_clone_symbols(const accrt_session_t* session,
                                          const accrt_session_options_t* options) {
  const accrt_bundle_tables_t* tables = session->program->tables;
  for (uint32_t i = 0; i < options->symbol_count; ++i) {
    const uint32_t symbol =
        accrt_bundle_lookup_symbol(session->program->bundle, options->symbols[i].name);
    if (options->symbols[i].value == session->symbols[symbol].value)
      continue;
    return ACCRT_FAIL(SHAPE_MISMATCH,
                      "symbol '%s': the session has %" PRId64 ", the clone cannot have %" PRId64,
                      accrt_program_string(session->program, tables->symbols[symbol].name),
                      session->symbols[symbol].value, options->symbols[i].value);
  }
  return ACCRT_OK;
}

/* In the order of the original's stream: after all calls so far. Returns when the copy is there. */
static accrt_status_t copy_states(accrt_session_t* from, accrt_session_t* to) {
  /* The copies belong together, and stand on the session's runs. */
  accrt_stream_hold_reset(from->stream);
  accrt_status_t status = accrt_session_check(from);
  for (uint32_t i = 0; i < from->program->tables->state_count && status == ACCRT_OK; ++i) {
    if (from->states[i].size_bytes == 0)
      continue;
    const accrt_place_t source = {from->states[i].buffer, NULL, from->states[i].offset_bytes};
    const accrt_place_t target = {to->states[i].buffer, NULL, to->states[i].offset_bytes};
    status = accrt_inner_stream_copy(from->stream, &source, &target, from->states[i].size_bytes);
  }
  const uint64_t last = accrt_stream_last_submission(from->stream);
  accrt_stream_let_reset(from->stream);
  if (status != ACCRT_OK)
    return status;
  return accrt_stream_wait_number(from->stream, last, ACCRT_TIMEOUT_INFINITE,
                                  ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
}

static accrt_status_t make_clone(accrt_session_t* session, const accrt_session_options_t* options,
                                 accrt_session_t** out_session) {
  accrt_session_options_t plain = *options;
  const accrt_program_t* program = session->program;
  void* memory;
  /* The original's SESSION symbols by name. */
  ACCRT_TRY(accrt_alloc_array(program->allocator, program->tables->symbol_count,
                              sizeof(accrt_symbol_value_t), &memory));
  accrt_symbol_value_t* values = memory;
  if (plain.budget == NULL)
    plain.budget = &session->budget;
  plain.symbols = values;
  plain.symbol_count = 0;
  plain.symbol_size_bytes = (uint32_t)sizeof *values;
  for (uint32_t i = 0; i < program->tables->symbol_count; ++i) {
    if (program->tables->symbols[i].symbol_class != ACCX_SYMBOL_SESSION)
      continue;
    values[plain.symbol_count].name =
        accrt_program_string(program, program->tables->symbols[i].name);
    values[plain.symbol_count++].value = session->symbols[i].value;
  }
  accrt_status_t status = make(session->program, &plain, false, out_session);
  accrt_free_array(program->allocator, memory, program->tables->symbol_count,
                   sizeof(accrt_symbol_value_t));
  return status;
}

accrt_status_t accrt_session_clone(accrt_session_t* session, const accrt_session_options_t* options,
                                   accrt_session_t** out_session) {
  if (out_session != NULL)
    *out_session = NULL;
  ACCRT_ENTER(out_session, session);
  ACCRT_USE_SESSION(session);
  accrt_session_options_t own;
  ACCRT_TRY(read_options(options, &own));
  ACCRT_TRY(accrt_session_check(session));
  /* Reads the list once for its errors. */
  accrt_session_t* clone = NULL;
  void* memory;
  const uint32_t symbol_count = session->program->tables->symbol_count;
  ACCRT_TRY(accrt_alloc_array(session->program->allocator, symbol_count, sizeof *session->symbols,
                              &memory));
  accrt_status_t status = accrt_symbols_from_list(session->program, own.symbols, own.symbol_count,
                                                  own.symbol_size_bytes, true, memory);
  accrt_free_array(session->program->allocator, memory, symbol_count, sizeof *session->symbols);
  if (status == ACCRT_OK)
    status = check_clone_symbols(session, &own);
  if (status == ACCRT_OK)
    status = make_clone(session, &own, &clone);
  if (status == ACCRT_OK)
    status = copy_states(session, clone);
  if (status == ACCRT_OK)
    status = accrt_session_take_adapter(clone, session->adapter);
  if (status == ACCRT_OK) {
    *out_session = clone;
  } else {
    accrt_session_release(clone);
  }
  return status;
}

/* ---- Failure ---- */

accrt_status_t accrt_session_fail(accrt_session_t* session, const accrt_error_t* error) {
  unsigned expected = 0;
  /* The first failure is kept. Relaxed: the record is published by the store below. */
  if (atomic_compare_exchange_strong_explicit(&session->failed, &expected, 1, memory_order_relaxed,
                                              memory_order_relaxed)) {
    session->error = *error;
    /* Release pairs with the acquire in accrt_session_check: the record is seen. */
    atomic_store_explicit(&session->failed, 2, memory_order_release);
  }
  return error->status;
}

accrt_status_t accrt_session_check_slow(accrt_session_t* session) {
  if (session->first_unknown != 0 &&
      accrt_stream_failures(session->stream) != session->seen_failures)
    accrt_session_look(session);
  /* Acquire pairs with the release in accrt_session_fail. */
  if (atomic_load_explicit(&session->failed, memory_order_acquire) != 2)
    return ACCRT_OK;
  return ACCRT_FAIL(POISONED, "the session failed before (%s: %s); accrt_session_reset clears it",
                    accrt_status_name(session->error.status), session->error.message);
}

accrt_status_t accrt_session_error(accrt_session_t* session, accrt_error_t* out_error) {
  ACCRT_ENTER(session);
  ACCRT_USE_SESSION(session);
  const accrt_error_t none = ACCRT_ERROR_INIT;
  accrt_session_look(session);
  const bool has_failed = atomic_load_explicit(&session->failed, memory_order_acquire) == 2;
  return accrt_struct_write("accrt_error_t", out_error, has_failed ? &session->error : &none,
                            sizeof none);
}

/* Ends what is on the stream; a failed stream of the session's own is made usable again. */
static accrt_status_t quiet_stream(accrt_session_t* session) {
  const accrt_error_t before = *accrt_error_current();
  accrt_status_t status =
      accrt_inner_stream_synchronize(session->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
  if (status == ACCRT_ERROR_POISONED && session->own_stream) {
    status = accrt_inner_stream_reset(session->stream);
    if (status == ACCRT_OK)
      (void)accrt_error_restore(&before); /* a call that succeeds changes no record */
  }
  return status;
}

accrt_status_t accrt_session_reset(accrt_session_t* session) {
  ACCRT_ENTER(session);
  ACCRT_USE_SESSION(session);
  ACCRT_TRY(quiet_stream(session));
  accrt_session_drain(session);
  accrt_session_collect_runs(session);
  session->first_unknown = 0;
  session->seen_failures = accrt_stream_failures(session->stream);
  accrt_status_t status = accrt_session_fill_states(session, false);
  /* Relaxed: nothing is in flight, and the session's owner alone looks. */
  if (status == ACCRT_OK)
    atomic_store_explicit(&session->failed, 0, memory_order_relaxed);
  return status;
}

accrt_status_t accrt_session_cancel(accrt_session_t* session) {
  ACCRT_ENTER(session);
  if (!session->own_stream) {
    return ACCRT_FAIL(INVALID_STATE,
                      "the session runs on a stream of the caller's, which may have others' work: "
                      "accrt_stream_cancel cancels all of it");
  }
  return accrt_inner_stream_cancel(session->stream);
}

accrt_stream_t* accrt_session_stream(accrt_session_t* session) {
  return session != NULL ? session->stream : NULL;
}
