/* serve/adapters.c - see serve/adapters.h. */
#include "serve/adapters.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "serve/engine.h"

#define MOST_NAME_BYTES 4096u

accrt_status_t accsv_adapters_init(accsv_adapters_t* adapters, const accrt_allocator_t* allocator,
                                   uint32_t count) {
  ACCRT_TRY(ACCSV_NEW(allocator, count, &adapters->places));
  adapters->count = count;
  for (uint32_t i = 0; i < count; ++i) {
    adapters->places[i].place = i;
    atomic_init(&adapters->places[i].users, 0);
  }
  return ACCRT_OK;
}

static void forget(const accrt_allocator_t* allocator, accsv_adapter_t* adapter) {
  ACCSV_FREE(allocator, adapter->name, adapter->name_bytes);
  adapter->name = NULL;
}

void accsv_adapters_deinit(accsv_adapters_t* adapters, const accrt_allocator_t* allocator) {
  for (uint32_t i = 0; i < adapters->count; ++i)
    forget(allocator, &adapters->places[i]);
  ACCSV_FREE(allocator, adapters->places, adapters->count);
}

/* Under the lock. */
static accsv_adapter_t* find(const accrt_serve_engine_t* engine, const char* name) {
  ACCRT_ASSERT_HELD(&engine->lock);
  const accsv_adapters_t* adapters = &engine->adapters;
  for (uint32_t i = 0; i < adapters->count; ++i) {
    accsv_adapter_t* adapter = &adapters->places[i];
    if (adapter->name != NULL && strcmp(adapter->name, name) == 0)
      return adapter;
  }
  return NULL;
}

accsv_adapter_t* accsv_adapter_hold(accrt_serve_engine_t* engine, const char* name) {
  accsv_lock(&engine->lock);
  accsv_adapter_t* adapter = find(engine, name);
  if (adapter != NULL && (!adapter->ready || adapter->leaving))
    adapter = NULL;
  if (adapter != NULL) /* relaxed: the lock orders it before the look of who takes it away */
    (void)atomic_fetch_add_explicit(&adapter->users, 1, memory_order_relaxed);
  accsv_unlock(&engine->lock);
  return adapter;
}

void accsv_adapter_drop(accsv_adapter_t* adapter) {
  /* Release pairs with the acquire in `is_unused`: what used the place was before. */
  if (adapter != NULL)
    (void)atomic_fetch_sub_explicit(&adapter->users, 1, memory_order_release);
}

void accsv_adapters_notify(accrt_serve_engine_t* engine) {
  accsv_lock(&engine->lock);
  if (engine->adapters.waiting > 0)
    (void)pthread_cond_broadcast(&engine->news);
  accsv_unlock(&engine->lock);
}

static bool is_unused(accsv_adapter_t* adapter) {
  return atomic_load_explicit(&adapter->users, memory_order_acquire) == 0;
}

/* ---- Orders ---- */

static void execute(accrt_serve_engine_t* engine, accsv_order_t* order) {
  ACCSV_ASSERT_CALLS_OUT();
  const accrt_serve_model_functions_t* functions = &engine->model->functions;
  order->status = engine->failure != ACCRT_OK
                      ? ACCSV_FAIL(POISONED, "the engine has failed")
                      : functions->set_adapter(functions->self, order->place, order->tensors,
                                               order->tensor_count);
  accrt_error_t error = ACCRT_ERROR_INIT;
  if (order->status != ACCRT_OK && accrt_last_error(&error) == ACCRT_OK)
    (void)snprintf(order->message, sizeof order->message, "%s", error.message);
}

bool accsv_adapters_step(accrt_serve_engine_t* engine, accsv_order_t* orders) {
  if (orders == NULL)
    return false;
  for (accsv_order_t* order = orders; order != NULL; order = order->next)
    execute(engine, order);
  accsv_lock(&engine->lock);
  while (orders != NULL) {
    accsv_order_t* next = orders->next;
    orders->done = true; /* it is gone as soon as the lock is free */
    orders = next;
  }
  (void)pthread_cond_broadcast(&engine->news);
  accsv_unlock(&engine->lock);
  return true;
}

/* Has the stepping thread do it, or does it where there is none. */
static accrt_status_t place_order(accrt_serve_engine_t* engine, accsv_order_t* order) {
  if (!engine->has_thread) {
    ACCRT_TRY(accsv_engine_enter(engine));
    execute(engine, order);
    accsv_engine_leave(engine);
  } else {
    accsv_lock(&engine->lock);
    if (engine->dead != ACCRT_OK) {
      accsv_unlock(&engine->lock);
      return ACCSV_FAIL(POISONED, "the engine has failed");
    }
    order->next = engine->adapters.orders;
    engine->adapters.orders = order;
    (void)pthread_cond_signal(&engine->work);
    while (!order->done)
      accsv_wait(&engine->news, &engine->lock);
    accsv_unlock(&engine->lock);
  }
  if (order->status == ACCRT_OK)
    return ACCRT_OK;
  return accsv_fail(order->status, __func__, __FILE__, (uint32_t)__LINE__, "%s", order->message);
}

/* ---- Loading ---- */

static accrt_status_t check_load(const accrt_serve_engine_t* engine, const char* name,
                                 const accrt_serve_adapter_tensor_t* tensors, uint32_t tensor_count,
                                 uint32_t tensor_size_bytes) {
  ACCSV_NOT_NULL(engine);
  ACCSV_NOT_NULL(name);
  if (name[0] == 0 || strlen(name) > MOST_NAME_BYTES)
    return ACCSV_FAIL(INVALID_ARGUMENT, "a name of %zu bytes, not 1 to %u", strlen(name),
                      MOST_NAME_BYTES);
  if (tensor_count > 0)
    ACCSV_NOT_NULL(tensors);
  if (tensor_count > 0 && tensor_size_bytes != sizeof *tensors)
    return ACCSV_FAIL(INVALID_ARGUMENT, "tensor_size_bytes is %" PRIu32 ", not %zu",
                      tensor_size_bytes, sizeof *tensors);
  for (uint32_t i = 0; i < tensor_count; ++i) {
    if (tensors[i].name == NULL || (tensors[i].data == NULL && tensors[i].size_bytes > 0))
      return ACCSV_FAIL(INVALID_ARGUMENT, "tensors[%" PRIu32 "] has no name or no data", i);
  }
  if (engine->adapters.count == 0)
    return ACCSV_FAIL(UNSUPPORTED,
                      "the model has no places for adapters: its bundle was made without "
                      "the option 'adapters'");
  return ACCRT_OK;
}

/* Takes a free place for `name`, whose memory it owns then. */
static accrt_status_t take_place(accrt_serve_engine_t* engine, char* name, size_t name_bytes,
                                 accsv_adapter_t** out_adapter) {
  accsv_adapters_t* adapters = &engine->adapters;
  accsv_adapter_t* found = NULL;
  accsv_lock(&engine->lock);
  const bool known = find(engine, name) != NULL;
  for (uint32_t i = 0; !known && found == NULL && i < adapters->count; ++i) {
    if (adapters->places[i].name == NULL)
      found = &adapters->places[i];
  }
  if (found != NULL) {
    found->name = name;
    found->name_bytes = name_bytes;
    found->number = ++adapters->numbers;
    found->ready = found->leaving = false;
  }
  accsv_unlock(&engine->lock);
  *out_adapter = found;
  if (known)
    return ACCSV_FAIL(ALREADY_EXISTS, "adapter '%.200s' is loaded", name);
  if (found == NULL)
    return ACCSV_FAIL(NOT_READY, "all %" PRIu32 " places for adapters are taken", adapters->count);
  return ACCRT_OK;
}

/* Ends a load, or gives a place back. */
static void settle(accrt_serve_engine_t* engine, accsv_adapter_t* adapter, bool ready) {
  accsv_adapter_t old = {0};
  accsv_lock(&engine->lock);
  engine->adapters.loads += ready;
  engine->adapters.loaded += ready;
  engine->adapters.loaded -= adapter->ready;
  adapter->ready = ready;
  if (!ready) {
    old.name = adapter->name;
    old.name_bytes = adapter->name_bytes;
    adapter->name = NULL;
  }
  accsv_unlock(&engine->lock);
  forget(&engine->allocator, &old);
}

accrt_status_t accrt_serve_engine_load_adapter(accrt_serve_engine_t* engine, const char* name,
                                               const accrt_serve_adapter_tensor_t* tensors,
                                               uint32_t tensor_count, uint32_t tensor_size_bytes) {
  ACCRT_TRY(check_load(engine, name, tensors, tensor_count, tensor_size_bytes));
  char* copy;
  const size_t name_bytes = strlen(name) + 1;
  ACCRT_TRY(ACCSV_NEW_UNSET(&engine->allocator, name_bytes, &copy));
  memcpy(copy, name, name_bytes);
  accsv_adapter_t* adapter;
  accrt_status_t status = take_place(engine, copy, name_bytes, &adapter);
  if (status != ACCRT_OK) {
    ACCSV_FREE(&engine->allocator, copy, name_bytes);
    return status;
  }
  accsv_order_t order = {.place = adapter->place, .tensors = tensors, .tensor_count = tensor_count};
  status = place_order(engine, &order);
  settle(engine, adapter, status == ACCRT_OK);
  return status;
}

/* Waits until no request uses the adapter; under the lock. Requests end only in steps. */
static void wait_unused(accrt_serve_engine_t* engine, accsv_adapter_t* adapter,
                        uint64_t timeout_ns) {
  ACCRT_ASSERT_HELD(&engine->lock);
  if (!engine->has_thread || timeout_ns == 0)
    return;
  const struct timespec end = accsv_time_after(timeout_ns);
  ++engine->adapters.waiting;
  while (!is_unused(adapter) && !accsv_wait_until(&engine->news, &engine->lock, &end))
    ;
  --engine->adapters.waiting;
}

accrt_status_t accrt_serve_engine_unload_adapter(accrt_serve_engine_t* engine, const char* name,
                                                 uint64_t timeout_ns) {
  ACCSV_NOT_NULL(engine);
  ACCSV_NOT_NULL(name);
  accsv_lock(&engine->lock);
  accsv_adapter_t* adapter = find(engine, name);
  if (adapter != NULL && (!adapter->ready || adapter->leaving))
    adapter = NULL;
  if (adapter == NULL) {
    accsv_unlock(&engine->lock);
    return ACCSV_FAIL(NOT_FOUND, "no adapter '%.200s' is loaded", name);
  }
  adapter->leaving = true;
  wait_unused(engine, adapter, timeout_ns);
  const uint32_t users = atomic_load_explicit(&adapter->users, memory_order_acquire);
  adapter->leaving = users == 0;
  accsv_unlock(&engine->lock);
  if (users > 0)
    return ACCSV_FAIL(NOT_READY, "%" PRIu32 " requests use adapter '%.200s'", users, name);
  settle(engine, adapter, false);
  return ACCRT_OK;
}

/* ---- Names ---- */

accrt_status_t accrt_serve_engine_adapters(accrt_serve_engine_t* engine, char* names,
                                           uint64_t capacity_bytes, uint64_t* out_size_bytes,
                                           uint32_t* out_count) {
  ACCSV_NOT_NULL(out_size_bytes);
  ACCSV_NOT_NULL(out_count);
  *out_size_bytes = *out_count = 0;
  ACCSV_NOT_NULL(engine);
  if (capacity_bytes > 0)
    ACCSV_NOT_NULL(names);
  uint64_t size = 0;
  accsv_lock(&engine->lock);
  for (uint32_t i = 0; i < engine->adapters.count; ++i) {
    const accsv_adapter_t* adapter = &engine->adapters.places[i];
    if (adapter->name == NULL || !adapter->ready || adapter->leaving)
      continue;
    const uint64_t room = capacity_bytes > size ? capacity_bytes - size : 0;
    if (room > 0)
      memcpy(names + size, adapter->name, adapter->name_bytes < room ? adapter->name_bytes : room);
    size += adapter->name_bytes;
    ++*out_count;
  }
  accsv_unlock(&engine->lock);
  *out_size_bytes = size;
  return ACCRT_OK;
}
