/* serve/step.c - one step of an engine: takes what came, schedules, runs the model, gives events.
 */
#include <sys/eventfd.h>

#include "serve/engine.h"

/* Parts of a step whose memory is fetched before their tokens are taken: all of it, and what says
 * where it is. */
#define NEAR 8u
#define FAR 16u

/* ---- What came ---- */

static void heap_set(accrt_serve_engine_t* engine, uint32_t place, accsv_request_t* request) {
  engine->deadlines[place] = request;
  request->heap_place = place + 1;
}

static uint64_t deadline_at(const accrt_serve_engine_t* engine, uint32_t place) {
  return engine->deadlines[place]->parameters.deadline_ns;
}

static void heap_up(accrt_serve_engine_t* engine, uint32_t place) {
  accsv_request_t* request = engine->deadlines[place];
  while (place > 0 && deadline_at(engine, (place - 1) / 2) > request->parameters.deadline_ns) {
    heap_set(engine, place, engine->deadlines[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  heap_set(engine, place, request);
}

static void heap_down(accrt_serve_engine_t* engine, uint32_t place) {
  accsv_request_t* request = engine->deadlines[place];
  for (uint32_t child = 2 * place + 1; child < engine->deadline_count; child = 2 * place + 1) {
    if (child + 1 < engine->deadline_count &&
        deadline_at(engine, child + 1) < deadline_at(engine, child))
      ++child;
    if (deadline_at(engine, child) >= request->parameters.deadline_ns)
      break;
    heap_set(engine, place, engine->deadlines[child]);
    place = child;
  }
  heap_set(engine, place, request);
}

static void heap_put(accrt_serve_engine_t* engine, accsv_request_t* request) {
  if (request->parameters.deadline_ns == 0)
    return;
  heap_set(engine, engine->deadline_count++, request);
  heap_up(engine, engine->deadline_count - 1);
}

static void heap_remove(accrt_serve_engine_t* engine, accsv_request_t* request) {
  if (request->heap_place == 0)
    return;
  const uint32_t place = request->heap_place - 1;
  request->heap_place = 0;
  if (place == --engine->deadline_count)
    return;
  heap_set(engine, place, engine->deadlines[engine->deadline_count]);
  heap_up(engine, place);
  heap_down(engine, engine->deadlines[place]->heap_place - 1);
}

static void take_salt(accrt_serve_engine_t* engine, accsv_request_t* request) {
  accsv_prefix_t* prefix = &engine->scheduler.prefix;
  const bool unshared = (request->parameters.flags & ACCRT_SERVE_NO_CACHE) != 0 ||
                        (engine->options.flags & ACCRT_SERVE_ENGINE_NO_CACHE) != 0;
  accsv_salt_t* own = request->salt;
  request->salt = NULL;
  accsv_salt_t* salt = own == NULL || unshared ? NULL : accsv_prefix_intern(prefix, own);
  if (salt != own)
    accsv_salt_free(&engine->allocator, own);
  const uint64_t id = salt != NULL ? salt->id : unshared ? accsv_prefix_fresh_salt(prefix) : 0;
  for (uint32_t i = 0; i < request->count; ++i) {
    request->generations[i].sequence.salt = id;
    request->generations[i].sequence.salt_text = salt;
    if (salt != NULL && i > 0)
      ++salt->refs;
  }
}

static void take_request(accrt_serve_engine_t* engine, accsv_request_t* request, uint64_t now_ns) {
  ++engine->live;
  take_salt(engine, request);
  for (uint32_t i = 0; i < request->count; ++i) {
    accsv_generation_t* generation = &request->generations[i];
    generation->sequence.key = ++engine->keys;
    accsv_queue_join(&engine->scheduler.queue, &generation->sequence, request->parameters.tenant);
  }
  heap_put(engine, request);
  if (request->parameters.constraint != NULL && accsv_masks_prepare(&engine->masks) != ACCRT_OK) {
    accsv_end_request(engine, request, ACCRT_SERVE_FINISH_FAILED, ACCRT_ERROR_OUT_OF_MEMORY,
                      now_ns);
    return;
  }
  accsv_queue_push(&engine->scheduler.queue, &request->generations[0].sequence);
}

/* Returns whether anything came. */
static bool take_inbox(accrt_serve_engine_t* engine, uint64_t now_ns) {
  accsv_lock(&engine->lock);
  accsv_request_t* request = engine->inbox;
  accsv_request_t* cancelled = engine->cancels;
  accsv_order_t* orders = engine->adapters.orders;
  engine->adapters.orders = NULL;
  engine->inbox = engine->inbox_tail = engine->cancels = NULL;
  accsv_nodes_append(&engine->spare, &engine->returned);
  accsv_unlock(&engine->lock);
  const bool ordered = accsv_adapters_step(engine, orders);
  const bool any = request != NULL || cancelled != NULL || ordered;
  while (request != NULL) {
    accsv_request_t* next = request->next;
    take_request(engine, request, now_ns);
    request = next;
  }
  while (cancelled != NULL) {
    accsv_request_t* next = cancelled->next_cancel;
    accsv_end_request(engine, cancelled, ACCRT_SERVE_FINISH_CANCELLED, ACCRT_OK, now_ns);
    cancelled = next;
  }
  return any;
}

bool accsv_engine_drop(void* self, accsv_sequence_t* sequence) {
  accrt_serve_engine_t* engine = self;
  accsv_request_t* request = accsv_generation_of(sequence)->request;
  const accrt_serve_request_t* parameters = &request->parameters;
  /* Alone it may be faster than those that were measured. */
  if (parameters->deadline_ns == 0 || request->started || engine->scheduler.running_count == 0)
    return false;
  const uint32_t tokens = engine->scheduler.mixed_tokens < engine->options.max_step_tokens
                              ? engine->scheduler.mixed_tokens
                              : engine->options.max_step_tokens;
  const uint64_t needed_ns =
      accsv_pace_request(&engine->pace, sequence->known, tokens, parameters->max_new_tokens);
  const uint64_t now_ns = engine->planning_ns;
  if (now_ns + needed_ns + needed_ns / 4 <= parameters->deadline_ns)
    return false;
  ++engine->figures.hopeless;
  accsv_end_request(engine, request, ACCRT_SERVE_FINISH_DEADLINE, ACCRT_OK, now_ns);
  return true;
}

static void end_late(accrt_serve_engine_t* engine, uint64_t now_ns) {
  while (engine->deadline_count > 0 && deadline_at(engine, 0) <= now_ns) {
    accsv_request_t* request = engine->deadlines[0];
    heap_remove(engine, request);
    accsv_end_request(engine, request, ACCRT_SERVE_FINISH_DEADLINE, ACCRT_OK, now_ns);
  }
}

/* ---- What goes ---- */

/* Requests that ended leave the registry; those that no step in flight has are freed. */
static accsv_request_t* take_ended(accrt_serve_engine_t* engine) {
  ACCRT_ASSERT_HELD(&engine->lock);
  accsv_request_t* to_free = NULL;
  while (engine->ended != NULL) {
    accsv_request_t* request = engine->ended;
    engine->ended = request->next;
    if (request->listed) {
      *accsv_registry_place(engine, request->id) = request->other;
      request->listed = false;
      --engine->listed;
      if (!request->shown_started) {
        --engine->waiting;
        engine->waiting_tokens -= request->parameters.prompt_count;
      }
      /* It may have been cancelled meanwhile. */
      for (accsv_request_t** place = &engine->cancels; *place != NULL;) {
        if (*place == request)
          *place = request->next_cancel;
        else
          place = &(*place)->next_cancel;
      }
    }
    if (!accsv_request_in_flight(request)) {
      request->next = to_free;
      to_free = request;
    }
  }
  return to_free;
}

static void show_started(accrt_serve_engine_t* engine) {
  ACCRT_ASSERT_HELD(&engine->lock);
  while (engine->started != NULL) {
    accsv_request_t* request = engine->started;
    engine->started = request->next_started;
    request->shown_started = 1;
    --engine->waiting;
    engine->waiting_tokens -= request->parameters.prompt_count;
  }
}

/* Gives events and figures to the others. */
static void publish(accrt_serve_engine_t* engine) {
  accsv_figures_update(engine);
  for (accsv_request_t* request = engine->ended; request != NULL; request = request->next)
    heap_remove(engine, request);
  accsv_lock(&engine->lock);
  show_started(engine);
  accsv_request_t* to_free = take_ended(engine);
  const bool was_empty = engine->outbox.head == NULL;
  const bool any = engine->events.head != NULL;
  accsv_nodes_append(&engine->outbox, &engine->events);
  engine->shown = engine->figures;
  engine->shown_progress_ns = engine->progress_ns;
  if (any && was_empty) {
    (void)eventfd_write(engine->event_fd, 1);
    (void)pthread_cond_broadcast(&engine->news);
  } else if (engine->listed == 0 || engine->adapters.waiting > 0) {
    (void)pthread_cond_broadcast(&engine->news);
  }
  accsv_unlock(&engine->lock);
  bool dropped = false;
  while (to_free != NULL) {
    accsv_request_t* next = to_free->next;
    dropped |= to_free->adapter != NULL;
    accsv_request_free(&engine->allocator, to_free);
    to_free = next;
  }
  if (dropped)
    accsv_adapters_notify(engine);
  while (engine->spare.count > ACCSV_SPARE_NODES)
    accsv_node_free(&engine->allocator, accsv_nodes_take(&engine->spare));
}

/* ---- The model ---- */

/* The first sequence's prompt is computed, or will be by this step: the others share its pages. */
static void release_others(accrt_serve_engine_t* engine, accsv_request_t* request) {
  request->released = true;
  for (uint32_t i = 1; i < request->count; ++i) {
    accsv_sequence_t* sequence = &request->generations[i].sequence;
    if (sequence->state == ACCSV_NEW_SEQUENCE)
      accsv_queue_push_preempted(&engine->scheduler.queue, sequence, false);
  }
}

static void note_parts(accrt_serve_engine_t* engine, const accsv_plan_t* plan, uint64_t now_ns) {
  for (uint32_t i = 0; i < plan->count; ++i) {
    accsv_sequence_t* sequence = plan->parts[i].sequence;
    if (sequence->noted)
      continue;
    accsv_request_t* request = accsv_generation_of(sequence)->request;
    if (!request->started) {
      request->started = true;
      ++engine->starts;
      request->next_started = engine->started;
      engine->started = request;
      accsv_histogram_add(&engine->figures.queue_time, now_ns - request->arrival_ns);
    }
    /* The others of one that is scored wait until that is given out. */
    if (!request->released && sequence->computed >= sequence->prompt_count &&
        request->prompt_node == NULL)
      release_others(engine, request);
    sequence->noted = request->released;
  }
}

static void forget_part(accrt_serve_engine_t* engine, const accsv_part_t* part) {
  accsv_request_t* request = accsv_generation_of(part->sequence)->request;
  accsv_part_forget(part);
  if (request->going_on == 0 && !request->listed && !accsv_request_in_flight(request))
    accsv_request_free(&engine->allocator, request);
}

static void end_all(accrt_serve_engine_t* engine, accrt_status_t status, uint64_t now_ns);

/* A step failed: nothing in flight counts, and what runs starts anew. */
static accrt_status_t recover(accrt_serve_engine_t* engine, accrt_status_t failure,
                              uint64_t now_ns) {
  const accrt_serve_model_functions_t* functions = &engine->model->functions;
  ++engine->figures.step_failures;
  /* Each request that was in a failed step is charged once, and those that had too many end. */
  for (uint32_t f = 0; f < engine->in_flight; ++f) {
    for (uint32_t i = 0; i < engine->plans[f].count; ++i) {
      const accsv_part_t* part = &engine->plans[f].parts[i];
      engine->figures.wasted_tokens += part->draws;
      if (part->sequence->failed_step != engine->step) {
        part->sequence->failed_step = engine->step;
        ++part->sequence->failures;
      }
    }
  }
  const accrt_status_t reset =
      functions->reset != NULL ? functions->reset(functions->self) : failure;
  accsv_scheduler_end_step(&engine->scheduler, engine->step);
  accsv_scheduler_lose(&engine->scheduler);
  for (uint32_t f = 0; f < engine->in_flight; ++f) {
    for (uint32_t i = 0; i < engine->plans[f].count; ++i) {
      const accsv_part_t* part = &engine->plans[f].parts[i];
      accsv_request_t* request = accsv_generation_of(part->sequence)->request;
      if (part->sequence->state != ACCSV_ENDED &&
          part->sequence->failures > engine->options.max_failures)
        accsv_end_request(engine, request, ACCRT_SERVE_FINISH_FAILED, failure, now_ns);
    }
  }
  for (uint32_t f = 0; f < engine->in_flight; ++f) {
    for (uint32_t i = 0; i < engine->plans[f].count; ++i)
      forget_part(engine, &engine->plans[f].parts[i]);
  }
  engine->in_flight = 0;
  engine->progress_ns = now_ns;
  if (reset == ACCRT_OK)
    return ACCRT_OK;
  end_all(engine, reset, now_ns);
  return ACCSV_FAIL(POISONED, "the model failed (%s) and could not be reset (%s)",
                    accrt_status_name(failure), accrt_status_name(reset));
}

/* When the log probabilities of a prompt are given out, the others of its request may begin. */
static void take_scores(accrt_serve_engine_t* engine, const accsv_part_t* part,
                        const accrt_serve_results_t* results, uint32_t sample, uint64_t now_ns) {
  accsv_request_t* request = accsv_generation_of(part->sequence)->request;
  if (request->prompt_node == NULL)
    return;
  accsv_deliver_scores(engine, part, results, sample, now_ns);
  if (request->prompt_node == NULL)
    release_others(engine, request);
}

/* The token after the last one that was known, and those after drafts as far as these are right:
 * each is what would have been drawn without drafts. */
static void take_tokens(accrt_serve_engine_t* engine, const accsv_part_t* part,
                        const accrt_serve_results_t* results, uint32_t sample, uint64_t now_ns) {
  accsv_sequence_t* sequence = part->sequence;
  uint32_t right = 0;
  if (sequence->state == ACCSV_ENDED)
    ++engine->figures.wasted_tokens;
  for (uint32_t i = 0; i <= part->drafts && sequence->state != ACCSV_ENDED; ++i) {
    const int32_t token = results->tokens[sample + i];
    const bool goes_on = i < part->drafts && sequence->tokens[sequence->known] == token;
    accsv_deliver(engine, accsv_generation_of(sequence), token, results, sample + i, now_ns);
    if (!goes_on)
      break;
    ++right;
  }
  if (part->drafts == 0)
    return;
  accsv_scheduler_settle(&engine->scheduler, part);
  ++engine->figures.drafts;
  engine->figures.draft_tokens += part->drafts;
  engine->figures.accepted_tokens += right;
}

/* A part whose token is taken some parts later. */
typedef struct ahead {
  uint32_t part, sample;
} ahead_t;

/* Fetches memory for noting that token, and goes on to the next part. */
static void fetch_ahead(const accsv_plan_t* plan, const accrt_serve_results_t* results,
                        ahead_t* ahead,
                        void (*fetch)(const accsv_sampler_t* sampler, int32_t token)) {
  const accsv_part_t* part = &plan->parts[ahead->part++];
  ahead->sample += part->samples;
  const accsv_sampler_t* sampler = &accsv_generation_of(part->sequence)->sampler;
  if (part->draws && sampler->history)
    fetch(sampler, results->tokens[ahead->sample - 1]);
}

/* Looks for where a sequence's last tokens were before, some parts after that memory was fetched.
 * One that has not ended is not freed before all results are taken. */
static void note_last(accsv_sequence_t* sequence) {
  if (sequence == NULL || sequence->state != ACCSV_RUNNING)
    return;
  accsv_lookback_note(&sequence->lookback, sequence->tokens, sequence->known);
  sequence->no_guess = sequence->lookback.from == 0;
}

static void take_results(accrt_serve_engine_t* engine, const accsv_plan_t* plan,
                         const accrt_serve_results_t* results, uint64_t now_ns) {
  const uint32_t row_size = engine->model->info.embedding_size;
  uint32_t sample = 0;
  size_t embeds = 0;
  ahead_t near = {0}, far = {0};
  accsv_sequence_t* behind[NEAR] = {NULL};
  for (uint32_t i = 0; i < plan->count; ++i) {
    while (far.part < i + FAR && far.part < plan->count)
      fetch_ahead(plan, results, &far, accsv_sampler_fetch);
    while (near.part < i + NEAR && near.part < plan->count)
      fetch_ahead(plan, results, &near, accsv_sampler_fetch_edit);
    const accsv_part_t* part = &plan->parts[i];
    accsv_sequence_t* sequence = part->sequence;
    accsv_part_leave(part);
    if (part->samples > 0 && sequence->state != ACCSV_ENDED)
      take_scores(engine, part, results, sample, now_ns);
    sample += part->samples;
    if (part->draws)
      take_tokens(engine, part, results, sample - part->drafts - 1, now_ns);
    if (sequence->embeds && sequence->state != ACCSV_ENDED)
      accsv_deliver_rows(
          engine, part,
          results->embeddings != NULL ? results->embeddings + embeds * row_size : NULL, now_ns);
    embeds += part->embeds;
    note_last(behind[i % NEAR]);
    behind[i % NEAR] = part->draws && sequence->guesses > 0 ? sequence : NULL;
    if (sequence->state != ACCSV_ENDED)
      continue;
    behind[i % NEAR] = NULL;
    /* If it ended in an earlier step, this may be the last that had it. */
    accsv_request_t* request = accsv_generation_of(sequence)->request;
    if (request->going_on == 0 && !request->listed && !accsv_request_in_flight(request))
      accsv_request_free(&engine->allocator, request);
  }
  for (uint32_t i = 0; i < NEAR; ++i)
    note_last(behind[i]);
}

/* A step that was submitted before the one before it had ended began with that end. */
static void note_pace(accrt_serve_engine_t* engine, const accsv_plan_t* plan, uint64_t now_ns) {
  const uint64_t begin_ns =
      plan->begun_ns > engine->progress_ns ? plan->begun_ns : engine->progress_ns;
  accsv_pace_note_step(&engine->pace, plan->tokens, now_ns - begin_ns, engine->starts);
  engine->starts = 0;
  if (engine->options.max_step_ns != 0)
    engine->scheduler.mixed_tokens = accsv_pace_tokens(&engine->pace, engine->options.max_step_ns);
}

static accrt_status_t finish_step(accrt_serve_engine_t* engine) {
  const accrt_serve_model_functions_t* functions = &engine->model->functions;
  accsv_plan_t plan = engine->plans[0];
  accrt_serve_results_t results = {.struct_size = sizeof results};
  const uint64_t begin_ns = accsv_now(engine);
  accrt_status_t status = functions->wait(functions->self, plan.step, &results);
  const uint64_t now_ns = accsv_now(engine);
  if (status == ACCRT_OK && results.tokens == NULL && plan.samples > 0)
    status = ACCRT_ERROR_KERNEL;
  engine->model_ns += now_ns - begin_ns;
  if (status != ACCRT_OK)
    return recover(engine, status, now_ns);
  --engine->in_flight;
  for (uint32_t i = 0; i < engine->in_flight; ++i)
    engine->plans[i] = engine->plans[i + 1];
  engine->plans[engine->in_flight] = plan; /* its memory is used again */
  accsv_scheduler_end_step(&engine->scheduler, plan.step);
  note_pace(engine, &plan, now_ns);
  engine->progress_ns = now_ns;
  take_results(engine, &plan, &results, now_ns);
  return ACCRT_OK;
}

/* Draws the samples of the newest step, with masks that were begun. */
static accrt_status_t sample_step(accrt_serve_engine_t* engine, const accrt_serve_step_t* step) {
  const accrt_serve_model_functions_t* functions = &engine->model->functions;
  accrt_serve_masks_t masks;
  accsv_masks_finish(&engine->masks, &masks);
  const uint64_t begin_ns = accsv_now(engine);
  const accrt_status_t status = functions->sample(functions->self, step, &masks);
  const uint64_t now_ns = accsv_now(engine);
  engine->model_ns += now_ns - begin_ns;
  return status == ACCRT_OK ? ACCRT_OK : recover(engine, status, now_ns);
}

/* Masks are computed while the model computes the step: at once if all tokens are known, else when
 * those of the step before have come. */
static accrt_status_t begin_step(accrt_serve_engine_t* engine, accsv_plan_t* plan,
                                 uint64_t now_ns) {
  const accrt_serve_model_functions_t* functions = &engine->model->functions;
  accrt_serve_step_t step;
  if (plan->fresh)
    note_parts(engine, plan, now_ns);
  accsv_batch_lay(&engine->batch, plan, &step);
  const bool masked = (step.flags & ACCRT_SERVE_STEP_MASKS) != 0;
  const bool known = engine->in_flight++ == 0;
  ++engine->figures.steps;
  engine->figures.computed_tokens += plan->tokens;
  if (masked && known)
    accsv_masks_begin(&engine->masks, plan);
  const uint64_t begin_ns = accsv_now(engine);
  plan->begun_ns = begin_ns;
  const accrt_status_t status = functions->submit(functions->self, &step);
  engine->model_ns += accsv_now(engine) - begin_ns;
  accsv_scheduler_planned(&engine->scheduler);
  if (status != ACCRT_OK) {
    accrt_serve_masks_t masks;
    accsv_masks_finish(&engine->masks, &masks);
    return recover(engine, status, accsv_now(engine));
  }
  if (!masked)
    return ACCRT_OK;
  if (!known) {
    ACCRT_TRY(finish_step(engine));
    if (engine->in_flight == 0) /* it failed, and this one with it */
      return ACCRT_OK;
    accsv_masks_begin(&engine->masks, &engine->plans[0]);
  }
  return sample_step(engine, &step);
}

/* ---- A step ---- */

static accrt_status_t run_step(accrt_serve_engine_t* engine, uint64_t now_ns, bool* out_any) {
  if (engine->in_flight < engine->depth && engine->live > 0) {
    accsv_plan_t* plan = &engine->plans[engine->in_flight];
    engine->planning_ns = now_ns;
    accsv_scheduler_plan(&engine->scheduler, engine->step + 1, plan);
    if (plan->count > 0) {
      ++engine->step;
      *out_any = true;
      ACCRT_TRY(begin_step(engine, plan, now_ns));
      if (engine->in_flight < engine->depth)
        return ACCRT_OK;
    }
  }
  if (engine->in_flight == 0)
    return ACCRT_OK;
  *out_any = true;
  return finish_step(engine);
}

accrt_status_t accsv_engine_step(accrt_serve_engine_t* engine) {
  ACCSV_ASSERT_CALLS_OUT();
  if (engine->failure != ACCRT_OK)
    return ACCSV_FAIL(POISONED, "the engine ended with %s", accrt_status_name(engine->failure));
  const uint64_t begin_ns = accsv_now(engine);
  const uint64_t model_ns = engine->model_ns;
  bool any = take_inbox(engine, begin_ns);
  if (engine->deadline_count > 0)
    end_late(engine, begin_ns);
  const accrt_status_t status = run_step(engine, begin_ns, &any);
  const uint64_t end_ns = accsv_now(engine);
  engine->figures.schedule_ns += end_ns - begin_ns - (engine->model_ns - model_ns);
  if (any || engine->events.head != NULL) {
    publish(engine);
    return status;
  }
  /* The scheduler always has something to compute while there are requests. */
  ACCRT_ASSERT(engine->live == 0);
  return ACCRT_ERROR_NOT_READY;
}

/* ---- The end ---- */

/* The engine has failed: all that it has, and all that came meanwhile, ends. */
static void end_all(accrt_serve_engine_t* engine, accrt_status_t status, uint64_t now_ns) {
  accsv_lock(&engine->lock);
  engine->dead = status;
  (void)eventfd_write(engine->event_fd, 1); /* who waits for it sees the failure */
  accsv_unlock(&engine->lock);
  engine->failure = status;
  (void)take_inbox(engine, now_ns);
  for (uint32_t i = 0; i < engine->bucket_count; ++i) {
    /* Only this thread takes requests out, and none is put in after `dead` was set. */
    for (accsv_request_t* request = engine->registry[i]; request != NULL; request = request->other)
      accsv_end_request(engine, request, ACCRT_SERVE_FINISH_FAILED, status, now_ns);
  }
}

void accsv_engine_drop_all(accrt_serve_engine_t* engine) {
  const uint64_t now_ns = accsv_now(engine);
  (void)take_inbox(engine, now_ns);
  if (engine->in_flight > 0 && engine->failure == ACCRT_OK) {
    accrt_serve_results_t results = {.struct_size = sizeof results};
    for (uint32_t f = 0; f < engine->in_flight; ++f)
      (void)engine->model->functions.wait(engine->model->functions.self, engine->plans[f].step,
                                          &results);
  }
  for (uint32_t i = 0; i < engine->bucket_count; ++i) {
    for (accsv_request_t* request = engine->registry[i]; request != NULL; request = request->other)
      accsv_end_request(engine, request, ACCRT_SERVE_FINISH_CANCELLED, ACCRT_OK, now_ns);
  }
  publish(engine);
  for (uint32_t f = 0; f < engine->in_flight; ++f) {
    for (uint32_t i = 0; i < engine->plans[f].count; ++i)
      forget_part(engine, &engine->plans[f].parts[i]);
  }
  engine->in_flight = 0;
}
