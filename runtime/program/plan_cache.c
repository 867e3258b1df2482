/* runtime/program/plan_cache.c - a session's plans: keys, look-up, eviction of the least recently
 * used; warm-up and memory estimate. */
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/program/internal.h"

#define FIRST_CAPACITY 16u

/* ---- Keys ---- */

static uint32_t presence_words(const accrt_program_t* program, uint32_t function) {
  return (program->functions[function].input_count + 63) / 64;
}

uint32_t accrt_plan_key_count(const accrt_program_t* program, uint32_t function) {
  return program->functions[function].symbol_count + presence_words(program, function);
}

/* The part of a symbol's value that selects a plan; -1 for none (values are never negative). */
static int64_t key_of_symbol(const accrt_program_t* program, uint32_t symbol,
                             accrt_expr_value_t value) {
  const accx_symbol_t* record = &program->tables->symbols[symbol];
  int64_t low;
  if (value.fault != ACCRT_EXPR_OK)
    return -1;
  if (record->symbol_class == ACCX_SYMBOL_RUNTIME)
    return 0;
  if (record->symbol_class != ACCX_SYMBOL_BUCKET)
    return value.value;
  return accrt_symbol_bucket(program->tables, record, value.value, &low);
}

void accrt_plan_key(const accrt_program_t* program, uint32_t function,
                    const accrt_expr_value_t* symbols, const uint8_t* present, int64_t* out_key) {
  const accrt_program_function_t* info = &program->functions[function];
  for (uint32_t i = 0; i < info->symbol_count; ++i) {
    out_key[i] = key_of_symbol(program, info->symbols[i], symbols[info->symbols[i]]);
  }
  const uint32_t words = presence_words(program, function);
  for (uint32_t w = 0; w < words; ++w) {
    uint64_t bits = 0;
    for (uint32_t i = w * 64; i < info->input_count && i < w * 64 + 64; ++i)
      bits |= (uint64_t)present[i] << (i % 64);
    out_key[info->symbol_count + w] = (int64_t)bits;
  }
}

static uint64_t hash_key(uint32_t function, const int64_t* key, uint32_t count) {
  uint64_t hash = function + UINT64_C(0x9E3779B97F4A7C15);
  for (uint32_t i = 0; i < count; ++i) {
    hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0xBF58476D1CE4E5B9);
    hash ^= hash >> 31;
  }
  return hash;
}

/* ---- The table ---- */

static accrt_plan_t* find(const accrt_session_t* session, uint32_t function, const int64_t* key,
                          uint32_t count, uint64_t hash) {
  if (session->plan_capacity == 0)
    return NULL;
  accrt_plan_t* plan = session->plans[hash & (session->plan_capacity - 1)];
  for (; plan != NULL; plan = plan->next) {
    if (plan->hash == hash && plan->function == function &&
        (count == 0 || memcmp(plan->key, key, count * sizeof *key) == 0)) {
      return plan;
    }
  }
  return NULL;
}

ACCRT_RARE static accrt_status_t grow(accrt_session_t* session) {
  if (session->plan_count < session->plan_capacity)
    return ACCRT_OK;
  const accrt_allocator_t* allocator = session->program->allocator;
  const uint32_t capacity =
      session->plan_capacity == 0 ? FIRST_CAPACITY : session->plan_capacity * 2;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(allocator, capacity, sizeof *session->plans, &memory));
  accrt_plan_t** plans = memory;
  for (uint32_t i = 0; i < session->plan_capacity; ++i) {
    while (session->plans[i] != NULL) {
      accrt_plan_t* plan = session->plans[i];
      session->plans[i] = plan->next;
      plan->next = plans[plan->hash & (capacity - 1)];
      plans[plan->hash & (capacity - 1)] = plan;
    }
  }
  accrt_free_array(allocator, session->plans, session->plan_capacity, sizeof *session->plans);
  session->plans = plans;
  session->plan_capacity = capacity;
  return ACCRT_OK;
}

ACCRT_RARE static void evict_oldest(accrt_session_t* session) {
  accrt_plan_t** oldest = NULL;
  for (uint32_t i = 0; i < session->plan_capacity; ++i) {
    for (accrt_plan_t** place = &session->plans[i]; *place != NULL; place = &(*place)->next) {
      if (oldest == NULL || (*place)->last_use < (*oldest)->last_use)
        oldest = place;
    }
  }
  if (oldest == NULL)
    return;
  accrt_plan_t* plan = *oldest;
  *oldest = plan->next;
  plan->next = NULL;
  --session->plan_count;
  accrt_plan_release(plan); /* calls and runs in flight have references of their own */
}

ACCRT_RARE void accrt_session_drop_plans(accrt_session_t* session) {
  for (uint32_t i = 0; i < session->plan_capacity; ++i) {
    while (session->plans[i] != NULL) {
      accrt_plan_t* plan = session->plans[i];
      session->plans[i] = plan->next;
      accrt_plan_release(plan);
    }
  }
  accrt_free_array(session->program->allocator, session->plans, session->plan_capacity,
                   sizeof *session->plans);
  session->plans = NULL;
  session->plan_capacity = 0;
  session->plan_count = 0;
}

ACCRT_RARE static accrt_status_t make_plan(accrt_session_t* session,
                                           const accrt_plan_request_t* request, const int64_t* key,
                                           uint32_t key_count, uint64_t hash,
                                           accrt_plan_t** out_plan) {
  ACCRT_TRY(grow(session));
  accrt_plan_t* plan;
  ACCRT_TRY(accrt_plan_create(request, &plan));
  void* memory;
  accrt_status_t status = accrt_zone_take(&plan->zone, key_count, sizeof *key, &memory);
  if (status != ACCRT_OK) {
    accrt_plan_release(plan);
    return status;
  }
  plan->key = memory;
  plan->key_count = key_count;
  plan->hash = hash;
  if (key_count != 0)
    memcpy(plan->key, key, key_count * sizeof *key);
  if (session->plan_count >= session->max_plans)
    evict_oldest(session);
  accrt_plan_t** place = &session->plans[hash & (session->plan_capacity - 1)];
  plan->next = *place;
  *place = plan;
  ++session->plan_count;
  *out_plan = plan;
  return ACCRT_OK;
}

accrt_status_t accrt_session_plan(accrt_session_t* session, uint32_t function,
                                  const accrt_expr_value_t* symbols, const uint8_t* present,
                                  const int64_t* key, uint32_t key_count, uint64_t timeout_ns,
                                  accrt_plan_t** out_plan) {
  const uint64_t hash = hash_key(function, key, key_count);
  accrt_plan_t* plan = find(session, function, key, key_count, hash);
  if (plan == NULL) {
    const accrt_plan_request_t request = {
        session->program,     function, symbols,          present,
        session->state_bytes, false,    &session->budget, timeout_ns};
    ACCRT_TRY(make_plan(session, &request, key, key_count, hash, &plan));
  }
  plan->last_use = ++session->clock;
  accrt_plan_retain(plan);
  *out_plan = plan;
  return ACCRT_OK;
}

/* ---- Warm-up and estimate: values of symbols by name, not from shapes ---- */

/* Input of both: values for all symbols, all arguments present, a key. */
typedef struct by_name {
  accrt_expr_value_t* symbols;
  uint8_t* present;
  uint8_t* bound; /* by symbol: 1 when an input of the function binds it */
  int64_t* key;
  uint64_t* state_bytes;
  uint32_t function;
  uint32_t key_count;
  accrt_zone_t zone;
} by_name_t;

static accrt_status_t allocate(const accrt_program_t* program, by_name_t* by_name) {
  const uint32_t argument_count = accrt_function_argument_count(program, by_name->function);
  by_name->key_count = accrt_plan_key_count(program, by_name->function);
  void* memory[5] = {NULL};
  accrt_status_t status = accrt_zone_take(&by_name->zone, program->tables->symbol_count,
                                          sizeof *by_name->symbols, &memory[0]);
  if (status == ACCRT_OK)
    status = accrt_zone_take(&by_name->zone, argument_count, 1, &memory[1]);
  if (status == ACCRT_OK) {
    status = accrt_zone_take(&by_name->zone, by_name->key_count, sizeof *by_name->key, &memory[2]);
  }
  if (status == ACCRT_OK) {
    status = accrt_zone_take(&by_name->zone, program->tables->state_count,
                             sizeof *by_name->state_bytes, &memory[3]);
  }
  if (status == ACCRT_OK)
    status = accrt_zone_take(&by_name->zone, program->tables->symbol_count, 1, &memory[4]);
  if (status == ACCRT_OK && argument_count != 0)
    memset(memory[1], 1, argument_count);
  by_name->symbols = memory[0];
  by_name->present = memory[1];
  by_name->key = memory[2];
  by_name->state_bytes = memory[3];
  by_name->bound = memory[4];
  return status;
}

/* Removes the values that a call would not have: those of symbols that no input binds, except
 * SESSION symbols. */
static void remove_unbound_symbols(const accrt_program_t* program, by_name_t* by_name) {
  const accrt_program_function_t* info = &program->functions[by_name->function];
  for (uint32_t s = 0; s < info->symbol_count; ++s)
    by_name->bound[info->symbols[s]] = 1;
  for (uint32_t i = 0; i < program->tables->symbol_count; ++i) {
    const bool is_session = program->tables->symbols[i].symbol_class == ACCX_SYMBOL_SESSION;
    if (!is_session && !by_name->bound[i])
      by_name->symbols[i] = accrt_expr_unknown(i);
  }
}

static accrt_status_t begin_by_name(accrt_program_t* program, const char* function,
                                    const accrt_symbol_value_t* symbols, uint32_t symbol_count,
                                    uint32_t symbol_size_bytes, by_name_t* by_name) {
  memset(by_name, 0, sizeof *by_name);
  accrt_zone_init(&by_name->zone, program->allocator);
  ACCRT_TRY(accrt_program_find_function(program, function, &by_name->function));
  ACCRT_TRY(allocate(program, by_name));
  accrt_status_t status = accrt_symbols_from_list(program, symbols, symbol_count, symbol_size_bytes,
                                                  false, by_name->symbols);
  if (status == ACCRT_OK)
    remove_unbound_symbols(program, by_name);
  return status;
}

ACCRT_RARE accrt_status_t accrt_session_warmup(accrt_session_t* session, const char* function,
                                               const accrt_symbol_value_t* symbols,
                                               uint32_t symbol_count, uint32_t symbol_size_bytes) {
  ACCRT_ENTER(session);
  ACCRT_USE_SESSION(session);
  by_name_t by_name;
  accrt_plan_t* plan = NULL;
  accrt_status_t status =
      begin_by_name(session->program, function, symbols, symbol_count, symbol_size_bytes, &by_name);
  if (status == ACCRT_OK) {
    const accrt_bundle_tables_t* tables = session->program->tables;
    for (uint32_t i = 0; i < tables->symbol_count; ++i) {
      if (tables->symbols[i].symbol_class == ACCX_SYMBOL_SESSION)
        by_name.symbols[i] = session->symbols[i];
    }
    accrt_plan_key(session->program, by_name.function, by_name.symbols, by_name.present,
                   by_name.key);
    status = accrt_session_plan(session, by_name.function, by_name.symbols, by_name.present,
                                by_name.key, by_name.key_count, ACCRT_TIMEOUT_INFINITE, &plan);
  }
  if (status == ACCRT_OK)
    status = accrt_session_reserve_arena(session, plan->arena_bytes);
  accrt_plan_release(plan);
  accrt_zone_deinit(&by_name.zone);
  return status;
}

static bool add(uint64_t bytes, uint64_t* sum) {
  return accrt_add_u64(*sum, bytes, sum);
}

static accrt_status_t sum_up(accrt_program_t* program, const by_name_t* by_name,
                             const accrt_plan_t* plan, accrt_memory_estimate_t* estimate) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_function_t* function = &tables->functions[by_name->function];
  const accx_argument_t* results =
      accrt_function_arguments(program, by_name->function) + function->input_count;
  bool fits = true;
  for (uint32_t i = 0; i < tables->state_count; ++i)
    fits = fits && add(by_name->state_bytes[i], &estimate->state_bytes);
  for (uint32_t i = 0; i < function->result_count; ++i) {
    const bool shares_input = results[i].alias_kind == ACCX_ALIAS_MUST;
    fits = fits && add(shares_input ? 0 : plan->result_bytes[i], &estimate->result_bytes);
  }
  for (uint32_t i = 0; i < tables->component_count; ++i) {
    if (accrt_program_uses_component(program, i))
      fits = fits && add(tables->components[i].size_bytes, &estimate->weight_bytes);
  }
  estimate->transient_bytes = plan->arena_bytes;
  return fits ? ACCRT_OK : ACCRT_FAIL(OVERFLOW, "the sum of the sizes does not fit 64 bits");
}

static accrt_status_t estimate_by_name(accrt_program_t* program, by_name_t* by_name,
                                       accrt_memory_estimate_t* estimate) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < program->tables->state_count && status == ACCRT_OK; ++i) {
    status = accrt_state_size(program, i, by_name->symbols, NULL, &by_name->state_bytes[i]);
  }
  if (status != ACCRT_OK)
    return status;
  const accrt_plan_request_t request = {program,
                                        by_name->function,
                                        by_name->symbols,
                                        by_name->present,
                                        by_name->state_bytes,
                                        true,
                                        NULL,
                                        ACCRT_TIMEOUT_INFINITE};
  accrt_plan_t* plan;
  ACCRT_TRY(accrt_plan_create(&request, &plan));
  status = sum_up(program, by_name, plan, estimate);
  accrt_plan_release(plan);
  return status;
}

ACCRT_RARE accrt_status_t accrt_program_estimate(accrt_program_t* program, const char* function,
                                                 const accrt_symbol_value_t* symbols,
                                                 uint32_t symbol_count, uint32_t symbol_size_bytes,
                                                 accrt_memory_estimate_t* out_estimate) {
  ACCRT_ENTER(program);
  by_name_t by_name;
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  accrt_status_t status =
      begin_by_name(program, function, symbols, symbol_count, symbol_size_bytes, &by_name);
  if (status == ACCRT_OK)
    status = estimate_by_name(program, &by_name, &estimate);
  accrt_zone_deinit(&by_name.zone);
  if (status != ACCRT_OK)
    return status;
  return accrt_struct_write("accrt_memory_estimate_t", out_estimate, &estimate, sizeof estimate);
}
