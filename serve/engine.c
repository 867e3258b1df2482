/* serve/engine.c - an engine's beginning and end, its thread, and who waits for it. */
#include "serve/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "serve/handles.h"

#define DEFAULT_QUEUED 1024u
#define DEFAULT_PREEMPTIONS 3u
#define DEFAULT_FAIR_TOKENS 2048u
#define DEFAULT_LOOKUP 4u
#define MOST_LOOKUP 32u /* a table of runs for each size */
#define DEFAULT_LEAST_LOOKUP 2u

uint64_t accrt_serve_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static uint64_t system_now(void* self) {
  (void)self;
  return accrt_serve_now_ns();
}

/* ---- Options ---- */

static accrt_status_t set_limit(const char* name, uint32_t* option, uint32_t most) {
  if (*option == 0)
    *option = most;
  if (*option > most)
    return ACCSV_FAIL(OUT_OF_RANGE, "%s is %" PRIu32 ", and the model's is %" PRIu32, name, *option,
                      most);
  return ACCRT_OK;
}

static accrt_status_t complete_speculation(accrt_serve_options_t* options) {
  if (options->num_speculative_tokens > ACCRT_SERVE_MAX_DRAFTS)
    return ACCSV_FAIL(OUT_OF_RANGE, "num_speculative_tokens is %" PRIu32 ", at most %u",
                      options->num_speculative_tokens, ACCRT_SERVE_MAX_DRAFTS);
  if (options->prompt_lookup_max > MOST_LOOKUP || options->prompt_lookup_min > MOST_LOOKUP)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "prompt_lookup_max is %" PRIu32 " and prompt_lookup_min %" PRIu32
                      ", at most %u",
                      options->prompt_lookup_max, options->prompt_lookup_min, MOST_LOOKUP);
  if (options->prompt_lookup_max == 0)
    options->prompt_lookup_max =
        options->prompt_lookup_min > DEFAULT_LOOKUP ? options->prompt_lookup_min : DEFAULT_LOOKUP;
  if (options->prompt_lookup_min == 0)
    options->prompt_lookup_min = options->prompt_lookup_max < DEFAULT_LEAST_LOOKUP
                                     ? options->prompt_lookup_max
                                     : DEFAULT_LEAST_LOOKUP;
  if (options->prompt_lookup_min > options->prompt_lookup_max)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "prompt_lookup_min is %" PRIu32
                      ", above prompt_lookup_max, which is %" PRIu32,
                      options->prompt_lookup_min, options->prompt_lookup_max);
  return ACCRT_OK;
}

static accrt_status_t complete_options(accrt_serve_options_t* options,
                                       const accrt_serve_model_info_t* info) {
  const uint32_t known = ACCRT_SERVE_ENGINE_THREAD | ACCRT_SERVE_ENGINE_NO_CACHE |
                         ACCRT_SERVE_ENGINE_NO_OVERLAP | ACCRT_SERVE_ENGINE_BATCH_INVARIANT |
                         ACCRT_SERVE_VALIDATE;
  if ((options->flags & ~known) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", options->flags);
  ACCRT_TRY(complete_speculation(options));
  ACCRT_TRY(accsv_check_drafts(options->num_speculative_tokens, info));
  if ((options->flags & ACCRT_SERVE_ENGINE_BATCH_INVARIANT) != 0 &&
      (info->flags & ACCRT_SERVE_MODEL_BATCH_INVARIANT) == 0)
    return ACCSV_FAIL(UNSUPPORTED,
                      "the model's results depend on what else is in a step, on this device");
  ACCRT_TRY(set_limit("max_step_tokens", &options->max_step_tokens, info->max_tokens));
  ACCRT_TRY(set_limit("max_running", &options->max_running, info->max_rows));
  if (options->max_step_tokens < options->max_running)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "max_step_tokens is %" PRIu32 ", less than %" PRIu32
                      " sequences, each of which computes one",
                      options->max_step_tokens, options->max_running);
  if (options->max_chunk_tokens == 0)
    options->max_chunk_tokens = UINT32_MAX;
  if (options->max_queued == 0)
    options->max_queued = DEFAULT_QUEUED;
  if (options->max_queued > INT32_MAX)
    return ACCSV_FAIL(OUT_OF_RANGE, "max_queued is %" PRIu32, options->max_queued);
  if (options->max_queued_tokens == 0)
    options->max_queued_tokens = UINT64_MAX;
  if (options->max_preemptions == 0)
    options->max_preemptions = DEFAULT_PREEMPTIONS;
  if (options->max_failures == 0)
    options->max_failures = 1;
  if (options->fair_tokens == 0)
    options->fair_tokens = DEFAULT_FAIR_TOKENS;
  return ACCRT_OK;
}

static uint64_t random_seed(void) {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
    seed = accsv_mix(accrt_serve_now_ns());
  return seed;
}

/* ---- The thread ---- */

static void* run_thread(void* self) {
  accrt_serve_engine_t* engine = self;
  bool stopping = false;
  while (!stopping) {
    const accrt_status_t status = accsv_engine_step(engine);
    accsv_lock(&engine->lock);
    while (status != ACCRT_OK && engine->inbox == NULL && engine->cancels == NULL &&
           engine->adapters.orders == NULL && !engine->stopping)
      accsv_wait(&engine->work, &engine->lock);
    stopping = engine->stopping;
    accsv_unlock(&engine->lock);
  }
  return NULL;
}

/* ---- Making ---- */

static accrt_status_t make_waiting(accrt_serve_engine_t* engine) {
  pthread_condattr_t attributes;
  if (pthread_condattr_init(&attributes) != 0)
    return ACCSV_FAIL(OUT_OF_MEMORY, "no condition variable");
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  const int failed = accsv_lock_init(&engine->lock, ACCRT_LOCK_SERVE_ENGINE) +
                     pthread_cond_init(&engine->work, &attributes) +
                     pthread_cond_init(&engine->news, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  return failed == 0 ? ACCRT_OK : ACCSV_FAIL(OUT_OF_MEMORY, "no condition variable");
}

static accrt_status_t make_scheduler(accrt_serve_engine_t* engine) {
  const accrt_serve_model_info_t* info = &engine->model->info;
  const accrt_serve_options_t* options = &engine->options;
  const bool has_states = (info->flags & ACCRT_SERVE_MODEL_STATES_OF_PAGES) != 0;
  const accsv_limits_t limits = {
      .pages = info->page_count,
      .page_size = info->page_size,
      .rows = options->max_running,
      .samples = info->max_samples,
      .step_tokens = options->max_step_tokens,
      .chunk_tokens = options->max_chunk_tokens,
      .max_preemptions = options->max_preemptions,
      .sequences = engine->most_live,
      .quantum = options->fair_tokens,
      .seed = random_seed(),
      .lookup = {options->prompt_lookup_min, options->prompt_lookup_max, random_seed()},
      .copy_tokens = has_states ? 0 : info->min_copy_tokens, /* a part of a page has no state */
      .states_of_pages = has_states};
  ACCRT_TRY(accsv_scheduler_init(&engine->scheduler, &engine->allocator, &limits));
  engine->scheduler.drop = accsv_engine_drop;
  engine->scheduler.self = engine;
  ACCRT_TRY(accsv_batch_init(&engine->batch, &engine->allocator, &limits, info->row_pages));
  ACCRT_TRY(accsv_masks_init(&engine->masks, &engine->allocator, info, &limits));
  for (uint32_t i = 0; i < ACCSV_DEPTH; ++i)
    ACCRT_TRY(ACCSV_NEW(&engine->allocator, limits.rows, &engine->plans[i].parts));
  return ACCRT_OK;
}

/* Its own instance, if the model has none. */
static accrt_status_t find_instance(accrt_serve_engine_t* engine) {
  engine->instance = accrt_instance_retain(engine->model->instance);
  if (engine->instance != NULL)
    return ACCRT_OK;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &engine->allocator;
  return accrt_instance_create(&options, &engine->instance);
}

static accrt_status_t make_parts(accrt_serve_engine_t* engine) {
  const accrt_serve_model_info_t* info = &engine->model->info;
  ACCRT_TRY(accsv_vocabulary_read(&engine->vocabulary, info->token_bytes,
                                  info->token_bytes_size_bytes, info->vocab_size));
  engine->most_live = engine->options.max_queued + engine->options.max_running;
  engine->bucket_count = 16;
  while (engine->bucket_count < engine->most_live)
    engine->bucket_count *= 2;
  ACCRT_TRY(ACCSV_NEW(&engine->allocator, engine->bucket_count, &engine->registry));
  ACCRT_TRY(ACCSV_NEW(&engine->allocator, engine->most_live, &engine->deadlines));
  ACCRT_TRY(accsv_adapters_init(&engine->adapters, &engine->allocator, info->adapter_count));
  ACCRT_TRY(make_scheduler(engine));
  engine->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (engine->event_fd < 0)
    return ACCSV_FAIL(IO, "eventfd: %s", strerror(errno));
  accsv_figures_update(engine);
  engine->shown = engine->figures;
  ACCRT_TRY(find_instance(engine));
  return accsv_counters_add(engine);
}

static void free_engine(accrt_serve_engine_t* engine) {
  const accrt_allocator_t allocator = engine->allocator;
  accsv_counters_remove(engine);
  accrt_instance_release(engine->instance);
  for (uint32_t i = 0; i < ACCSV_DEPTH; ++i)
    ACCSV_FREE(&allocator, engine->plans[i].parts, engine->options.max_running);
  accsv_batch_deinit(&engine->batch);
  accsv_masks_deinit(&engine->masks);
  accsv_scheduler_deinit(&engine->scheduler);
  accsv_adapters_deinit(&engine->adapters, &allocator);
  accsv_nodes_free(&allocator, &engine->outbox);
  accsv_nodes_free(&allocator, &engine->lent);
  accsv_nodes_free(&allocator, &engine->returned);
  accsv_nodes_free(&allocator, &engine->spare);
  ACCSV_FREE(&allocator, engine->registry, engine->bucket_count);
  ACCSV_FREE(&allocator, engine->deadlines, engine->most_live);
  if (engine->event_fd >= 0)
    (void)close(engine->event_fd);
  (void)pthread_cond_destroy(&engine->news);
  (void)pthread_cond_destroy(&engine->work);
  accsv_lock_deinit(&engine->lock);
  accrt_serve_model_t* model = engine->model;
  ACCSV_HANDLE_FREE(&allocator, engine);
  if (model != NULL)
    atomic_store_explicit(&model->taken, false, memory_order_release);
  accrt_serve_model_release(model);
}

static accrt_status_t start_thread(accrt_serve_engine_t* engine) {
  if ((engine->options.flags & ACCRT_SERVE_ENGINE_THREAD) == 0)
    return ACCRT_OK;
  const int failed = pthread_create(&engine->thread, NULL, run_thread, engine);
  if (failed != 0)
    return ACCSV_FAIL(IO, "no thread: %s", strerror(failed));
  engine->has_thread = true;
  return ACCRT_OK;
}

accrt_status_t accrt_serve_engine_create(accrt_serve_model_t* model,
                                         const accrt_serve_options_t* options,
                                         accrt_serve_engine_t** out_engine) {
  ACCSV_NOT_NULL(out_engine);
  *out_engine = NULL;
  ACCSV_NOT_NULL(model);
  accrt_serve_options_t own = ACCRT_SERVE_OPTIONS_INIT;
  if (options != NULL)
    ACCRT_TRY(accsv_take_struct("accrt_serve_options_t", options, sizeof own, &own, sizeof own));
  ACCRT_TRY(complete_options(&own, &model->info));
  const accrt_allocator_t* allocator =
      own.allocator != NULL ? own.allocator : &accsv_allocator_system;
  accrt_serve_engine_t* engine;
  ACCRT_TRY(ACCSV_HANDLE_NEW(allocator, &engine));
  engine->allocator = *allocator;
  engine->clock = own.clock != NULL ? *own.clock : (accrt_serve_clock_t){.now_ns = system_now};
  engine->options = own;
  engine->seed = own.seed != 0 ? own.seed : random_seed();
  engine->event_fd = -1;
  atomic_init(&engine->refs, 1);
  atomic_flag_clear(&engine->stepping);
  accrt_status_t status = make_waiting(engine);
  if (status != ACCRT_OK) {
    ACCSV_HANDLE_FREE(allocator, engine);
    return status;
  }
  /* Pairs with the release in free_engine: the engine before has let go of the model. */
  if (atomic_exchange_explicit(&model->taken, true, memory_order_acquire))
    status = ACCSV_FAIL(INVALID_STATE, "the model has an engine");
  else
    engine->model = accrt_serve_model_retain(model);
  if (status == ACCRT_OK) {
    engine->depth = (model->info.flags & ACCRT_SERVE_MODEL_OVERLAP) != 0 &&
                            (own.flags & ACCRT_SERVE_ENGINE_NO_OVERLAP) == 0
                        ? ACCSV_DEPTH
                        : 1;
    status = make_parts(engine);
  }
  if (status == ACCRT_OK)
    status = start_thread(engine);
  if (status != ACCRT_OK) {
    free_engine(engine);
    return status;
  }
  *out_engine = engine;
  return ACCRT_OK;
}

uint32_t accrt_serve_engine_flags(accrt_serve_engine_t* engine) {
  if (engine == NULL)
    return 0;
  return engine->options.flags | (accsv_handle_is_validated(engine) ? ACCRT_SERVE_VALIDATE : 0);
}

accrt_serve_engine_t* accrt_serve_engine_retain(accrt_serve_engine_t* engine) {
  if (engine != NULL)
    (void)atomic_fetch_add_explicit(&engine->refs, 1, memory_order_relaxed);
  return engine;
}

void accrt_serve_engine_release(accrt_serve_engine_t* engine) {
  /* Pairs with itself: the last one sees what all others did before. */
  if (engine == NULL || atomic_fetch_sub_explicit(&engine->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (engine->has_thread) {
    accsv_lock(&engine->lock);
    engine->stopping = true;
    (void)pthread_cond_signal(&engine->work);
    accsv_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
  }
  accsv_engine_drop_all(engine);
  free_engine(engine);
}

accrt_serve_model_t* accrt_serve_engine_model(accrt_serve_engine_t* engine) {
  return engine != NULL ? engine->model : NULL;
}

accrt_instance_t* accrt_serve_engine_instance(accrt_serve_engine_t* engine) {
  return engine != NULL ? engine->instance : NULL;
}

/* ---- Steps and waiting ---- */

accrt_status_t accsv_engine_enter(accrt_serve_engine_t* engine) {
  if (!atomic_flag_test_and_set_explicit(&engine->stepping, memory_order_acquire))
    return ACCRT_OK;
  return ACCSV_FAIL(INVALID_STATE,
                    "the engine is in a step, on another thread or below this call: it steps, "
                    "drains and loads adapters for one thread at a time");
}

void accsv_engine_leave(accrt_serve_engine_t* engine) {
  atomic_flag_clear_explicit(&engine->stepping, memory_order_release);
}

accrt_status_t accrt_serve_engine_step(accrt_serve_engine_t* engine) {
  ACCSV_NOT_NULL(engine);
  if (engine->has_thread)
    return ACCSV_FAIL(INVALID_STATE, "the engine steps on a thread of its own");
  ACCRT_TRY(accsv_engine_enter(engine));
  const accrt_status_t status = accsv_engine_step(engine);
  accsv_engine_leave(engine);
  return status;
}

struct timespec accsv_time_after(uint64_t timeout_ns) {
  const uint64_t now_ns = accrt_serve_now_ns();
  const uint64_t end_ns = timeout_ns < UINT64_MAX / 2 ? now_ns + timeout_ns : UINT64_MAX / 2;
  return (struct timespec){.tv_sec = (time_t)(end_ns / UINT64_C(1000000000)),
                           .tv_nsec = (long)(end_ns % UINT64_C(1000000000))};
}

accrt_status_t accrt_serve_engine_wait(accrt_serve_engine_t* engine, uint64_t timeout_ns) {
  ACCSV_NOT_NULL(engine);
  const struct timespec end = accsv_time_after(timeout_ns);
  accrt_status_t status = ACCRT_OK;
  accsv_lock(&engine->lock);
  while (engine->outbox.head == NULL && engine->dead == ACCRT_OK && status == ACCRT_OK) {
    if (accsv_wait_until(&engine->news, &engine->lock, &end))
      status = ACCRT_ERROR_TIMEOUT;
  }
  if (engine->outbox.head != NULL)
    status = ACCRT_OK;
  else if (engine->dead != ACCRT_OK)
    status = ACCRT_ERROR_POISONED;
  accsv_unlock(&engine->lock);
  if (status == ACCRT_ERROR_TIMEOUT)
    return ACCSV_FAIL(TIMEOUT, "no event in %" PRIu64 " ns", timeout_ns);
  return status == ACCRT_OK ? ACCRT_OK : ACCSV_FAIL(POISONED, "the engine has failed");
}

/* Whether all requests have ended; under the lock. */
static bool is_drained(const accrt_serve_engine_t* engine) {
  ACCRT_ASSERT_HELD(&engine->lock);
  return engine->listed == 0;
}

static void begin_draining(accrt_serve_engine_t* engine) {
  accsv_lock(&engine->lock);
  engine->draining = true;
  accsv_unlock(&engine->lock);
}

static accrt_status_t drain_thread(accrt_serve_engine_t* engine, uint64_t timeout_ns) {
  const struct timespec end = accsv_time_after(timeout_ns);
  bool late = false;
  accsv_lock(&engine->lock);
  while (!is_drained(engine) && !late)
    late = accsv_wait_until(&engine->news, &engine->lock, &end);
  late = !is_drained(engine);
  const accrt_status_t dead = engine->dead;
  accsv_unlock(&engine->lock);
  if (dead != ACCRT_OK)
    return ACCSV_FAIL(POISONED, "the engine has failed");
  return late ? ACCSV_FAIL(TIMEOUT, "requests go on after %" PRIu64 " ns", timeout_ns) : ACCRT_OK;
}

static accrt_status_t drain_alone(accrt_serve_engine_t* engine, uint64_t timeout_ns) {
  const uint64_t begin_ns = accrt_serve_now_ns();
  accrt_status_t status = ACCRT_OK;
  bool late = false;
  ACCRT_TRY(accsv_engine_enter(engine)); /* refused: it does not begin to drain */
  begin_draining(engine);
  while (status == ACCRT_OK && !late) {
    status = accsv_engine_step(engine);
    late = timeout_ns != ACCRT_TIMEOUT_INFINITE && accrt_serve_now_ns() - begin_ns >= timeout_ns;
  }
  accsv_engine_leave(engine);
  if (status != ACCRT_OK)
    return status == ACCRT_ERROR_NOT_READY ? ACCRT_OK : status;
  return ACCSV_FAIL(TIMEOUT, "requests go on after %" PRIu64 " ns", timeout_ns);
}

accrt_status_t accrt_serve_engine_drain(accrt_serve_engine_t* engine, uint64_t timeout_ns) {
  ACCSV_NOT_NULL(engine);
  if (!engine->has_thread)
    return drain_alone(engine, timeout_ns);
  begin_draining(engine);
  return drain_thread(engine, timeout_ns);
}
