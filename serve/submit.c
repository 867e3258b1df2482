/* serve/submit.c - what any thread may do: submit and cancel requests, take events. */
#include <string.h>
#include <sys/eventfd.h>

#include "serve/engine.h"

accsv_request_t** accsv_registry_place(accrt_serve_engine_t* engine, uint64_t id) {
  ACCRT_ASSERT_HELD(&engine->lock);
  accsv_request_t** place = &engine->registry[accsv_mix(id) & (engine->bucket_count - 1)];
  while (*place != NULL && (*place)->id != id)
    place = &(*place)->other;
  return place;
}

/* Why a request cannot be taken now; under the lock, so the caller records the failure. */
static accrt_status_t refusal(const accrt_serve_engine_t* engine,
                              const accrt_serve_request_t* request) {
  ACCRT_ASSERT_HELD(&engine->lock);
  if (engine->dead != ACCRT_OK)
    return ACCRT_ERROR_POISONED;
  if (engine->draining)
    return ACCRT_ERROR_INVALID_STATE;
  if (engine->waiting >= engine->options.max_queued || engine->listed >= engine->most_live)
    return ACCRT_ERROR_NOT_READY;
  /* One that is alone in the queue may be longer than the limit: it could never come else. */
  if (engine->waiting > 0 &&
      request->prompt_count > engine->options.max_queued_tokens - engine->waiting_tokens)
    return ACCRT_ERROR_NOT_READY;
  return ACCRT_OK;
}

static accrt_status_t record_refusal(const accrt_serve_engine_t* engine, accrt_status_t status) {
  if (status == ACCRT_ERROR_POISONED)
    return ACCSV_FAIL(POISONED, "the engine has failed");
  if (status == ACCRT_ERROR_INVALID_STATE)
    return ACCSV_FAIL(INVALID_STATE, "the engine drains: it takes no more requests");
  if (engine->options.max_queued_tokens == UINT64_MAX)
    return ACCSV_FAIL(NOT_READY, "the queue is full: %" PRIu32 " requests wait",
                      engine->options.max_queued);
  return ACCSV_FAIL(NOT_READY,
                    "the queue is full: at most %" PRIu32 " requests and %" PRIu64 " tokens wait",
                    engine->options.max_queued, engine->options.max_queued_tokens);
}

static void enlist(accrt_serve_engine_t* engine, accsv_request_t* request, uint64_t now_ns) {
  ACCRT_ASSERT_HELD(&engine->lock);
  if (engine->listed++ == 0)
    engine->shown_progress_ns = now_ns;
  request->id = ++engine->last_id;
  request->listed = true;
  accsv_request_t** bucket = &engine->registry[accsv_mix(request->id) & (engine->bucket_count - 1)];
  request->other = *bucket;
  *bucket = request;
  if (engine->inbox_tail != NULL)
    engine->inbox_tail->next = request;
  else
    engine->inbox = request;
  engine->inbox_tail = request;
  ++engine->waiting;
  engine->waiting_tokens += request->parameters.prompt_count;
  ++engine->submitted;
  (void)pthread_cond_signal(&engine->work);
}

/* A cheap look before memory is taken: most refusals end here. */
static accrt_status_t check_room(accrt_serve_engine_t* engine,
                                 const accrt_serve_request_t* request) {
  accsv_lock(&engine->lock);
  const accrt_status_t status = refusal(engine, request);
  engine->refused += status == ACCRT_ERROR_NOT_READY;
  accsv_unlock(&engine->lock);
  return status == ACCRT_OK ? ACCRT_OK : record_refusal(engine, status);
}

static uint64_t seed_of(accrt_serve_engine_t* engine, const accrt_serve_request_t* request) {
  if ((request->flags & ACCRT_SERVE_SEED) != 0)
    return request->seed;
  accsv_lock(&engine->lock);
  const uint64_t number = ++engine->seeds;
  accsv_unlock(&engine->lock);
  return accsv_mix(engine->seed + number * UINT64_C(0x9E3779B97F4A7C15));
}

static accrt_status_t make_request(accrt_serve_engine_t* engine, const accrt_serve_request_t* given,
                                   accsv_request_t** out_request) {
  accsv_adapter_t* adapter = NULL;
  if (given->adapter != NULL) {
    adapter = accsv_adapter_hold(engine, given->adapter);
    if (adapter == NULL)
      return ACCSV_FAIL(NOT_FOUND, "no adapter '%.200s' is loaded", given->adapter);
  }
  const accrt_status_t status =
      accsv_request_new(&engine->allocator, given, adapter, &engine->model->info,
                        &engine->scheduler.limits.lookup, seed_of(engine, given), out_request);
  if (status != ACCRT_OK && adapter != NULL) {
    accsv_adapter_drop(adapter);
    accsv_adapters_notify(engine);
  }
  return status;
}

accrt_status_t accrt_serve_engine_submit(accrt_serve_engine_t* engine,
                                         const accrt_serve_request_t* request, uint64_t* out_id) {
  if (out_id != NULL)
    *out_id = 0;
  ACCSV_NOT_NULL(engine);
  ACCSV_NOT_NULL(request);
  accrt_serve_request_t own;
  ACCRT_TRY(accsv_take_struct("accrt_serve_request_t", request, sizeof own, &own, sizeof own));
  ACCRT_TRY(accsv_request_check(&own, &engine->model->info));
  if (own.num_speculative_tokens == 0)
    own.num_speculative_tokens = engine->options.num_speculative_tokens;
  if (own.constraint != NULL && engine->model->functions.sample == NULL)
    return ACCSV_FAIL(UNSUPPORTED, "a constraint: the model takes no masks");
  if (own.constraint != NULL && own.constraint->model != NULL &&
      own.constraint->model != engine->model)
    return ACCSV_FAIL(INVALID_ARGUMENT,
                      "the constraint is of grammars of another model than the engine's");
  const uint64_t now_ns = accsv_now(engine);
  if (own.deadline_ns != 0 && own.deadline_ns <= now_ns)
    return ACCSV_FAIL(TIMEOUT, "the deadline has passed");
  ACCRT_TRY(check_room(engine, &own));
  accsv_request_t* made;
  ACCRT_TRY(make_request(engine, &own, &made));
  made->arrival_ns = now_ns;
  accsv_lock(&engine->lock);
  const accrt_status_t status = refusal(engine, &own);
  engine->refused += status == ACCRT_ERROR_NOT_READY;
  if (status == ACCRT_OK)
    enlist(engine, made, now_ns);
  const uint64_t id = engine->last_id;
  accsv_unlock(&engine->lock);
  if (status != ACCRT_OK) {
    accsv_request_free(&engine->allocator, made);
    accsv_adapters_notify(engine);
    return record_refusal(engine, status);
  }
  if (out_id != NULL)
    *out_id = id;
  return ACCRT_OK;
}

accrt_status_t accrt_serve_engine_cancel(accrt_serve_engine_t* engine, uint64_t id) {
  ACCSV_NOT_NULL(engine);
  accsv_lock(&engine->lock);
  accsv_request_t* request = *accsv_registry_place(engine, id);
  if (request != NULL && !request->cancelled) {
    request->cancelled = true;
    request->next_cancel = engine->cancels;
    engine->cancels = request;
    (void)pthread_cond_signal(&engine->work);
  }
  accsv_unlock(&engine->lock);
  return request != NULL ? ACCRT_OK : ACCSV_FAIL(NOT_FOUND, "no request %" PRIu64 " goes on", id);
}

/* ---- Events ---- */

/* Memory of the usual size goes back to the engine, the rest into `to_free`. */
static void give_back(accrt_serve_engine_t* engine, accsv_nodes_t* to_free) {
  ACCRT_ASSERT_HELD(&engine->lock);
  for (accsv_node_t* node = accsv_nodes_take(&engine->lent); node != NULL;
       node = accsv_nodes_take(&engine->lent)) {
    const bool usual =
        node->capacity == ACCSV_NODE_USUAL && engine->returned.count < ACCSV_SPARE_NODES;
    accsv_nodes_put(usual ? &engine->returned : to_free, node);
  }
}

accrt_status_t accrt_serve_engine_poll(accrt_serve_engine_t* engine, accrt_serve_event_t* events,
                                       uint32_t event_size_bytes, uint32_t capacity,
                                       uint32_t* out_count) {
  ACCSV_NOT_NULL(out_count);
  *out_count = 0;
  ACCSV_NOT_NULL(engine);
  if (event_size_bytes < sizeof *events || event_size_bytes % 8 != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "event_size_bytes is %" PRIu32 ", not %zu",
                      event_size_bytes, sizeof *events);
  if (capacity > 0)
    ACCSV_NOT_NULL(events);
  accsv_nodes_t to_free = {0};
  unsigned char* place = (unsigned char*)events;
  uint32_t count = 0;
  accsv_lock(&engine->lock);
  give_back(engine, &to_free);
  for (; count < capacity && engine->outbox.head != NULL; ++count) {
    accsv_node_t* node = accsv_nodes_take(&engine->outbox);
    accsv_nodes_put(&engine->lent, node);
    memset(place, 0, event_size_bytes);
    memcpy(place, &node->event, sizeof node->event);
    place += event_size_bytes;
  }
  if (engine->outbox.head == NULL) {
    eventfd_t value;
    (void)eventfd_read(engine->event_fd, &value);
  }
  const bool any = engine->outbox.head != NULL || count > 0;
  accsv_unlock(&engine->lock);
  accsv_nodes_free(&engine->allocator, &to_free);
  *out_count = count;
  return any ? ACCRT_OK : ACCRT_ERROR_NOT_READY;
}

int accrt_serve_engine_event_fd(accrt_serve_engine_t* engine) {
  return engine != NULL ? engine->event_fd : -1;
}
