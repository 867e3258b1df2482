/* tests/api_fuzz/serve_fuzz.c - random calls of every function of libaccrt_serve and libaccrt_http.
 *
 * As tests/api_fuzz/api_fuzz.c for the library below: what is called follows from the seed, memory is there, handles are owned, and
 * beyond that anything goes: NULL, cut structs, hostile numbers, models whose functions fail and whose answers are wrong, clients that
 * send nonsense and leave. Every second round validates handles, and with one thread released handles and those of another type are
 * given, too: they have to be refused. Every third round allocations fail. Handles are released in any order, by several threads. After a round
 * nothing may be left: no allocation, no model, no descriptor.
 *
 *   serve_fuzz [--calls N] [--seed N] [--threads N] [--round N] [--bundle FILE --weights FILE]: a bundle with a step program
 */
#include "accrt/counters.h"
#include "tests/api_fuzz/serve_world.h"

/* ---- Calls of libaccrt_serve ---- */

static void call_accrt_serve_version(fuzz_t* f) {
  (void)f;
  if (accrt_serve_version() != accrt_version())
    stop("versions differ", "");
}
static void call_accrt_serve_get_api(fuzz_t* f) {
  accrt_serve_api_t table;
  (void)note(accrt_serve_get_api(one_in(f, 2) ? ACCRT_VERSION : (uint32_t)next(f),
                                 one_in(f, 8) ? NULL : &table,
                                 one_in(f, 2) ? sizeof table : random_below(f, sizeof table)));
}
static void call_accrt_serve_now_ns(fuzz_t* f) {
  (void)f;
  const uint64_t before = accrt_serve_now_ns();
  if (accrt_serve_now_ns() < before)
    stop("time goes back", "");
}
static void call_accrt_serve_model_wrap(fuzz_t* f) {
  keep(f, &f->models, wrap_model(f), release_model);
}
static void call_accrt_serve_model_retain(fuzz_t* f) {
  keep(f, &f->models, accrt_serve_model_retain(pick(f, &f->models)), release_model);
}
static void call_accrt_serve_model_release(fuzz_t* f) {
  accrt_serve_model_release(take(f, &f->models));
}
static void call_accrt_serve_model_info(fuzz_t* f) {
  accrt_serve_model_info_t* info = sized(f, sizeof *info);
  (void)note(accrt_serve_model_info(pick(f, &f->models), one_in(f, 32) ? NULL : info));
}
static accrt_serve_simulation_t* simulation(fuzz_t* f) {
  accrt_serve_simulation_t* options = sized(f, sizeof *options);
  options->flags = random_below(f, 2);
  options->next = chain(f);
  options->vocab_size = one_in(f, 2) ? 0 : (uint32_t)number(f, 400);
  options->page_size = 1 + (uint32_t)number(f, 8);
  options->page_count = 8 + (uint32_t)number(f, 64);
  options->max_rows = 1 + random_below(f, 8);
  options->max_tokens = options->max_rows + (uint32_t)number(f, 64);
  options->max_length = 4 + (uint32_t)number(f, 100);
  options->eos = one_in(f, 32) ? (int32_t)next(f) : (int32_t)random_below(f, 3) - 1;
  options->fail_every = one_in(f, 4) ? 7 : 0;
  options->step_ns = one_in(f, 8) ? 1000 : 0;
  options->adapter_count = (uint32_t)number(f, 3);
  options->max_samples = one_in(f, 2) ? (uint32_t)number(f, 40) : 0;
  options->repeat = random_below(f, 8);
  options->min_copy_tokens = (uint32_t)number(f, 4);
  options->embedding_size = (uint32_t)number(f, 70);
  return options;
}
static void call_accrt_serve_model_create_simulated(fuzz_t* f) {
  accrt_serve_model_t* model = (void*)f;
  if (MADE(f, accrt_serve_model_create_simulated(one_in(f, 16) ? NULL : simulation(f), &model),
           model))
    keep(f, &f->models, model, release_model);
}

static accrt_serve_options_t* engine_options(fuzz_t* f, uint32_t flags) {
  accrt_serve_options_t* options = sized(f, sizeof *options);
  options->flags = flags | (one_in(f, 64) ? (uint32_t)hostile(f) : random_below(f, 4) << 1);
  options->next = chain(f);
  options->allocator = allocator(f);
  accrt_serve_clock_t* clock = block(f, sizeof *clock);
  clock->now_ns = fast_clock;
  options->clock = one_in(f, 8) ? clock : NULL;
  options->max_step_tokens = one_in(f, 4) ? (uint32_t)number(f, 80) : 0;
  options->max_running = one_in(f, 4) ? (uint32_t)number(f, 9) : 0;
  options->max_chunk_tokens = one_in(f, 4) ? (uint32_t)number(f, 9) : 0;
  options->max_queued = 1 + random_below(f, 8);
  options->max_queued_tokens = one_in(f, 4) ? number(f, 90) : 0;
  options->max_preemptions = (uint32_t)number(f, 3);
  options->max_failures = (uint32_t)number(f, 3);
  options->fair_tokens = (uint32_t)number(f, 50);
  options->num_speculative_tokens = one_in(f, 2) ? (uint32_t)number(f, 33) : 0;
  options->prompt_lookup_max = one_in(f, 2) ? (uint32_t)number(f, 5) : 0;
  options->prompt_lookup_min = one_in(f, 2) ? (uint32_t)number(f, 3) : 0;
  options->seed = random_below(f, 2);
  options->max_step_ns = one_in(f, 4) ? number(f, 100000) : 0;
  return options;
}
static void call_accrt_serve_engine_create(fuzz_t* f) {
  accrt_serve_engine_t* engine = (void*)f;
  const accrt_serve_options_t* options = engine_options(f, random_below(f, 2));
  if (MADE(f, accrt_serve_engine_create(pick(f, &f->models), options, &engine), engine))
    keep(f, &f->engines, engine, release_engine);
}
static void call_accrt_serve_engine_retain(fuzz_t* f) {
  keep(f, &f->engines,
       accrt_serve_engine_retain(one_in(f, 4) ? f->world->shared[random_below(f, 2)]
                                              : pick(f, &f->engines)),
       release_engine);
}
static void call_accrt_serve_engine_release(fuzz_t* f) {
  accrt_serve_engine_release(take(f, one_in(f, 4) ? &f->served : &f->engines));
}
static void call_accrt_serve_engine_model(fuzz_t* f) {
  accrt_serve_engine_t* engine = pick_engine(f);
  accrt_serve_model_t* model = accrt_serve_engine_model(engine);
  if ((engine != NULL && !is_wrong) != (model != NULL))
    stop("an engine without a model", "");
  if (one_in(f, 2))
    keep(f, &f->models, accrt_serve_model_retain(model), release_model);
}

static void call_accrt_serve_engine_flags(fuzz_t* f) {
  accrt_serve_engine_t* engine = pick_engine(f);
  const uint32_t flags = accrt_serve_engine_flags(engine);
  if ((engine == NULL || is_wrong) && flags != 0)
    stop("flags of no engine", "");
}

/* Each page in use is a page, whatever steps and servers do meanwhile. */
static void check_group(void* user, const accrt_counter_group_t* group, const double* values) {
  if (strcmp(group->name, "accrt_serve_engine") != 0)
    return;
  *(uint32_t*)user += 1;
  for (uint32_t i = 0; i < group->counter_count; ++i) {
    const accrt_counter_t* counter = &group->counters[i];
    if (strcmp(counter->name, "vllm:kv_cache_usage_perc") == 0 && !(*values >= 0 && *values <= 1))
      stop("more pages are used than there are", counter->name);
    values += ACCRT_COUNTER_VALUES(counter);
  }
}
static void call_accrt_serve_engine_instance(fuzz_t* f) {
  accrt_serve_engine_t* engine = pick_engine(f);
  accrt_instance_t* instance = accrt_serve_engine_instance(engine);
  if ((engine != NULL && !is_wrong) != (instance != NULL))
    stop("an engine without an instance", "");
  uint32_t groups = 0;
  if (instance != NULL && accrt_counters_read(instance, check_group, &groups) == ACCRT_OK &&
      groups != 1)
    stop("an engine without counters", "");
}

static int32_t token(fuzz_t* f) {
  return one_in(f, 512) ? (int32_t)hostile(f) : (int32_t)random_below(f, 256);
}
static accrt_serve_request_t* request(fuzz_t* f) {
  accrt_serve_request_t* made_request = sized(f, sizeof *made_request);
  accrt_serve_request_t own = {.struct_size = made_request->struct_size};
  const uint32_t prompt = one_in(f, 64) ? 0 : 1 + random_below(f, one_in(f, 4) ? 60 : 12);
  int32_t* tokens = block(f, (prompt + 1) * sizeof *tokens);
  for (uint32_t i = 0; i < prompt; ++i)
    tokens[i] = one_in(f, 2) ? (int32_t)i : token(f); /* prompts begin alike */
  own.flags = one_in(f, 64) ? (uint32_t)hostile(f) : random_below(f, 32);
  if (one_in(f, 3))
    own.flags |= one_in(f, 3) ? ACCRT_SERVE_PROMPT_LOGPROBS | ACCRT_SERVE_SCORE_ONLY
                              : ACCRT_SERVE_PROMPT_LOGPROBS;
  own.next = chain(f);
  own.prompt = one_in(f, 64) ? NULL : tokens;
  own.prompt_count = prompt;
  own.max_new_tokens = one_in(f, 4) ? 0 : (uint32_t)number(f, 20);
  own.min_new_tokens = one_in(f, 8) ? (uint32_t)number(f, 10) : 0;
  own.n = one_in(f, 256) ? (uint32_t)hostile(f) : random_below(f, 4);
  int32_t* stops = block(f, 4 * sizeof *stops);
  const char** strings = block(f, 4 * sizeof *strings);
  accrt_serve_bias_t* biases = block(f, 4 * sizeof *biases);
  for (int32_t i = 0; i < 4; ++i) {
    stops[i] = token(f);
    strings[i] = one_in(f, 8) ? text(f) : "ab";
    biases[i] = (accrt_serve_bias_t){4 * i + (int32_t)random_below(f, 4), real(f)};
  }
  own.stop_tokens = one_in(f, 16) ? NULL : stops;
  own.stop_token_count = one_in(f, 4) ? random_below(f, 5) : 0;
  own.stop_strings = one_in(f, 16) ? NULL : strings;
  own.stop_string_count = one_in(f, 4) ? random_below(f, 5) : 0;
  own.temperature = real(f);
  own.top_p = one_in(f, 2) ? real(f) : 0;
  own.min_p = one_in(f, 4) ? real(f) : 0;
  own.top_k = one_in(f, 4) ? (int32_t)number(f, 9) : 0;
  own.repetition_penalty = one_in(f, 4) ? real(f) : 0;
  own.presence_penalty = one_in(f, 4) ? real(f) : 0;
  own.frequency_penalty = one_in(f, 4) ? real(f) : 0;
  own.bias_count = one_in(f, 4) ? random_below(f, 5) : 0;
  own.biases = one_in(f, 16) ? NULL : biases;
  own.seed = next(f);
  own.top_logprobs = (uint32_t)number(f, 21);
  own.prompt_top_logprobs = (uint32_t)number(f, 21);
  own.num_speculative_tokens = one_in(f, 4) ? (uint32_t)number(f, 33) : 0;
  own.priority = one_in(f, 64) ? (int32_t)hostile(f) : (int32_t)random_below(f, 16) - 8;
  own.tenant = number(f, 4);
  own.deadline_ns = one_in(f, 8) ? accrt_serve_now_ns() + random_below(f, 1000000) : 0;
  own.cache_salt = one_in(f, 4) ? text(f) : NULL;
  own.constraint = one_in(f, 4) ? any_of(f, &f->constraints) : NULL;
  own.adapter = one_in(f, 8) ? text(f) : NULL;
  own.embed = one_in(f, 4) ? random_below(f, one_in(f, 32) ? 9 : 3) : 0;
  own.embed_dimensions = (uint32_t)number(f, EMBEDDING);
  if (own.embed != 0 && !one_in(f, 8)) {
    own.n = 1;
    own.constraint = NULL;
    own.flags &= ~ACCRT_SERVE_LOGPROBS;
    own.flags |= one_in(f, 4) ? ACCRT_SERVE_EMBED_RAW : 0;
  }
  memcpy(made_request, &own,
         made_request->struct_size < sizeof own && made_request->struct_size > 4
             ? made_request->struct_size
             : sizeof own);
  return made_request;
}
static void call_accrt_serve_engine_submit(fuzz_t* f) {
  uint64_t id = 0;
  if (note(accrt_serve_engine_submit(pick_engine(f), one_in(f, 64) ? NULL : request(f),
                                     one_in(f, 8) ? NULL : &id)) &&
      id != 0)
    f->last_id = id;
  free_blocks(f); /* what it points to was copied */
}
static void call_accrt_serve_engine_cancel(fuzz_t* f) {
  (void)note(accrt_serve_engine_cancel(pick_engine(f), f->last_id - number(f, 8)));
}

static void read_event(const accrt_serve_event_t* event) {
  volatile uint64_t sum = 0; /* what is read must be there */
  (void)sum;
  for (uint32_t i = 0; i < event->token_count; ++i)
    sum += (uint64_t)event->tokens[i];
  for (uint32_t i = 0; i < event->text_size_bytes; ++i)
    sum += (unsigned char)event->text[i];
  for (uint32_t i = 0; event->logprobs != NULL && i < event->token_count * (1 + event->top_count);
       ++i)
    sum += (uint64_t)event->logprobs[i].token;
  atomic_fetch_add_explicit(&events_seen, 1, memory_order_relaxed);
}
static void call_accrt_serve_engine_poll(fuzz_t* f) {
  accrt_serve_engine_t* engine =
      one_in(f, 4) ? f->world->shared[random_below(f, 2)] : pick(f, &f->engines);
  const uint32_t size = one_in(f, 32) ? (uint32_t)number(f, 200)
                                      : sizeof(accrt_serve_event_t) + 8 * random_below(f, 2);
  const uint32_t capacity = random_below(f, 9);
  unsigned char* events = block(f, 9 * (sizeof(accrt_serve_event_t) + 16));
  uint32_t count = 0;
  if (size > sizeof(accrt_serve_event_t) + 16 && engine != NULL)
    return;
  (void)pthread_mutex_lock(&f->world->polling);
  if (note(accrt_serve_engine_poll(engine, one_in(f, 64) && capacity == 0 ? NULL : (void*)events,
                                   size, capacity, &count))) {
    for (uint32_t i = 0; i < count; ++i)
      read_event((const void*)(events + (size_t)i * size));
  }
  (void)pthread_mutex_unlock(&f->world->polling);
}
static void call_accrt_serve_engine_event_fd(fuzz_t* f) {
  accrt_serve_engine_t* engine = pick_engine(f);
  if ((accrt_serve_engine_event_fd(engine) >= 0) != (engine != NULL && !is_wrong))
    stop("an engine without a descriptor", "");
}
static void call_accrt_serve_engine_wait(fuzz_t* f) {
  (void)note(accrt_serve_engine_wait(pick_engine(f), timeout(f)));
}
static void call_accrt_serve_engine_step(fuzz_t* f) {
  accrt_serve_engine_t* engine = pick_engine(f);
  for (uint32_t i = 1 + random_below(f, 8); i > 0 && note(accrt_serve_engine_step(engine)); --i)
    ;
}
static void call_accrt_serve_engine_drain(fuzz_t* f) {
  /* Of what is shared rarely: it takes no requests afterwards. */
  accrt_serve_engine_t* engine =
      one_in(f, 64) ? f->world->shared[random_below(f, 2)] : pick(f, &f->engines);
  (void)note(one_in(f, 4) ? accrt_serve_engine_drain(engine, timeout(f))
                          : accrt_serve_engine_drain(NULL, timeout(f)));
}
static void call_accrt_serve_engine_stats(fuzz_t* f) {
  accrt_serve_stats_t* stats = sized(f, sizeof *stats);
  (void)note(accrt_serve_engine_stats(pick_engine(f), one_in(f, 32) ? NULL : stats));
}
static void call_accrt_serve_engine_snapshot(fuzz_t* f) {
  const uint32_t capacity = random_below(f, 4096);
  uint64_t size = 0;
  (void)note(accrt_serve_engine_snapshot(pick_engine(f),
                                         one_in(f, 16) ? NULL : block(f, capacity + 1), capacity,
                                         one_in(f, 32) ? NULL : &size));
}

/* ---- Constraints, grammars, adapters ---- */

typedef struct own_state {
  world_t* world;
  uint64_t random;
} own_state_t;

static accrt_status_t own_start(void* self, void** out_state) {
  own_state_t* state = calloc(1, sizeof *state);
  if (state == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  state->world = self;
  state->random = atomic_fetch_add(&state->world->chance, 1);
  if (test_mix(state->random) % 32 == 0) {
    free(state);
    return ACCRT_ERROR_KERNEL;
  }
  atomic_fetch_add(&state->world->models, 1);
  *out_state = state;
  return ACCRT_OK;
}
/* Sometimes no token may come, and neither may the end. */
static accrt_status_t own_mask(void* self, uint32_t* mask, uint32_t words, uint32_t* out_may_end) {
  own_state_t* state = self;
  const uint64_t chance = test_mix(state->random += 77);
  for (uint32_t i = 0; i < words; ++i)
    mask[i] = chance % 16 == 0 ? 0 : (uint32_t)test_mix(state->random + i);
  *out_may_end = chance % 3 == 0;
  return chance % 64 == 5 ? ACCRT_ERROR_KERNEL : ACCRT_OK;
}
static accrt_status_t own_advance(void* self, int32_t drawn, uint32_t* out_ended) {
  own_state_t* state = self;
  const uint64_t chance = test_mix(state->random += (uint64_t)drawn);
  *out_ended = chance % 16 == 0;
  return chance % 64 == 5 ? ACCRT_ERROR_KERNEL : ACCRT_OK;
}
static void own_stop(void* self) {
  own_state_t* state = self;
  atomic_fetch_sub(&state->world->models, 1);
  free(state);
}
static void own_forget(void* self) {
  atomic_fetch_sub(&((world_t*)self)->models, 1);
}
static void call_accrt_serve_constraint_create(fuzz_t* f) {
  accrt_serve_constraint_functions_t* functions = sized(f, sizeof *functions);
  functions->flags = flags_to_make(f);
  accrt_serve_constraint_t* constraint = (void*)f;
  functions->next = chain(f);
  functions->self = f->world;
  functions->start = one_in(f, 32) ? NULL : own_start;
  functions->mask = one_in(f, 32) ? NULL : own_mask;
  functions->advance = one_in(f, 32) ? NULL : own_advance;
  functions->stop = one_in(f, 32) ? NULL : own_stop;
  functions->destroy = own_forget;
  atomic_fetch_add(&f->world->models, 1);
  const accrt_status_t status =
      accrt_serve_constraint_create(one_in(f, 32) ? NULL : functions, &constraint);
  if (MADE(f, status, constraint))
    keep(f, &f->constraints, constraint, release_constraint);
  else
    own_forget(f->world);
}
static void call_accrt_serve_constraint_retain(fuzz_t* f) {
  keep(f, &f->constraints, accrt_serve_constraint_retain(pick(f, &f->constraints)),
       release_constraint);
}
static void call_accrt_serve_constraint_release(fuzz_t* f) {
  accrt_serve_constraint_release(take(f, &f->constraints));
}
static void call_accrt_serve_grammars_open(fuzz_t* f) {
  accrt_serve_grammars_t* grammars = (void*)f;
  static const char* const paths[] = {"/nonexistent/libllguidance.so", "tests/../lib.so",
                                      ACCRT_TEST_DATA "/program.accx", ACCRT_TEST_GRAMMARS};
  const char* path = paths[random_below(f, 4)];
  const accrt_status_t status = accrt_serve_grammars_open(pick(f, &f->models), path, &grammars);
  if (MADE(f, status, grammars))
    keep(f, &f->grammars, grammars, release_grammars);
}
static void call_accrt_serve_grammars_retain(fuzz_t* f) {
  keep(f, &f->grammars, accrt_serve_grammars_retain(pick(f, &f->grammars)), release_grammars);
}
static void call_accrt_serve_grammars_release(fuzz_t* f) {
  accrt_serve_grammars_release(take(f, &f->grammars));
}
static void call_accrt_serve_grammars_constraint(fuzz_t* f) {
  accrt_serve_constraint_t* constraint = (void*)f;
  const accrt_status_t status = accrt_serve_grammars_constraint(
      pick(f, &f->grammars), (uint32_t)number(f, 5), text(f), &constraint);
  if (MADE(f, status, constraint))
    keep(f, &f->constraints, constraint, release_constraint);
}
static void call_accrt_serve_model_prepare(fuzz_t* f) {
  uint32_t left = 0;
  (void)note(accrt_serve_model_prepare(pick(f, &f->models), one_in(f, 16) ? NULL : &left));
}
/* Without a thread of its own an engine is one thread's at a time: what others share is left out. */
static accrt_serve_engine_t* pick_alone(fuzz_t* f) {
  accrt_serve_engine_t* engine = one_in(f, 4) ? f->world->shared[1] : pick(f, &f->engines);
  return engine == f->world->shared[0] ? NULL : engine;
}
static void call_accrt_serve_engine_load_adapter(fuzz_t* f) {
  accrt_serve_adapter_tensor_t* tensors = block(f, 4 * sizeof *tensors);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint64_t size = random_below(f, 100);
    tensors[i] =
        (accrt_serve_adapter_tensor_t){text(f), one_in(f, 16) ? NULL : block(f, size + 1), size};
  }
  (void)note(accrt_serve_engine_load_adapter(
      pick_alone(f), text(f), one_in(f, 16) ? NULL : tensors, random_below(f, 5),
      one_in(f, 16) ? (uint32_t)number(f, 40) : sizeof *tensors));
}
static void call_accrt_serve_engine_unload_adapter(fuzz_t* f) {
  (void)note(accrt_serve_engine_unload_adapter(pick_alone(f), text(f), timeout(f)));
}
static void call_accrt_serve_engine_adapters(fuzz_t* f) {
  const uint32_t capacity = random_below(f, 64);
  uint64_t size = 0;
  uint32_t count = 0;
  (void)note(accrt_serve_engine_adapters(
      pick_engine(f), one_in(f, 16) ? NULL : block(f, capacity + 1), capacity,
      one_in(f, 16) ? NULL : &size, one_in(f, 16) ? NULL : &count));
}

static accrt_serve_program_options_t* program_options(fuzz_t* f) {
  accrt_serve_program_options_t* options = sized(f, sizeof *options);
  options->flags = flags_to_make(f);
  options->next = chain(f);
  options->max_rows = (uint32_t)number(f, 9);
  options->max_tokens = (uint32_t)number(f, 65);
  options->max_length = (uint32_t)number(f, 100);
  options->pages = 1 + (uint32_t)number(f, 32);
  options->kv_bytes = number(f, 1 << 20);
  return options;
}
static accrt_program_t* some_program(fuzz_t* f) {
  return one_in(f, 16) ? NULL : one_in(f, 4) ? plain_program : step_program;
}
/* Now and then none, another one, or one of another instance. */
static accrt_device_t* some_device(fuzz_t* f) {
  return one_in(f, 16) ? NULL : one_in(f, 4) ? other_devices[random_below(f, 2)] : device;
}
/* No device but the program's is taken. */
static accrt_status_t together(accrt_device_t* given, accrt_status_t status) {
  if (status == ACCRT_OK && given != device)
    stop("a program's model on another device", "");
  return status;
}
static void call_accrt_serve_program_memory(fuzz_t* f) {
  accrt_serve_memory_t* memory = sized(f, sizeof *memory);
  accrt_device_t* given = some_device(f);
  (void)note(together(given, accrt_serve_program_memory(given, some_program(f),
                                                        one_in(f, 8) ? NULL : program_options(f),
                                                        one_in(f, 32) ? NULL : memory)));
}
static void call_accrt_serve_model_open_program(fuzz_t* f) {
  accrt_serve_model_t* model = (void*)f;
  accrt_device_t* given = some_device(f);
  const accrt_status_t status =
      accrt_serve_model_open_program(given, some_program(f), program_options(f), &model);
  if (MADE(f, together(given, status), model))
    keep(f, &f->models, model, release_model);
}

/* ---- Calls of libaccrt_http ---- */

static void call_accrt_http_version(fuzz_t* f) {
  (void)f;
  if (accrt_http_version() != accrt_version())
    stop("versions differ", "");
}

static accrt_http_options_t* server_options(fuzz_t* f) {
  accrt_http_options_t* options = sized(f, sizeof *options);
  options->log_fd = -1;
  options->flags = flags_to_make(f);
  options->next = chain(f);
  options->allocator = allocator(f);
  options->host = one_in(f, 32) ? "999.0.0.1" : NULL;
  options->port = one_in(f, 32) ? 70000 : 0;
  options->model = one_in(f, 32) ? text(f) : "fuzz";
  options->api_key = one_in(f, 8) ? text(f) : NULL;
  options->cors_origin = one_in(f, 4) ? text(f) : NULL;
  options->page = one_in(f, 4) ? "<p>" : NULL;
  options->page_bytes = one_in(f, 4) ? random_below(f, 4) : 0;
  options->max_connections = random_below(f, 4);
  options->max_jobs = random_below(f, 4);
  options->max_header_bytes = one_in(f, 8) ? number(f, 100) : 0;
  options->max_body_bytes = one_in(f, 8) ? number(f, 100) : 0;
  options->max_held_bytes = one_in(f, 8) ? number(f, 100) : 0;
  options->max_output_bytes = one_in(f, 8) ? number(f, 1000) : 0;
  options->request_timeout_ns = one_in(f, 4) ? number(f, 1000000) : 0;
  options->idle_timeout_ns = one_in(f, 4) ? number(f, 1000000) : 0;
  options->stall_timeout_ns = one_in(f, 4) ? number(f, 1000000) : 0;
  options->health_timeout_ns = one_in(f, 4) ? number(f, 1000000) : 0;
  return options;
}
/* An engine that steps by itself, and whose events nobody has taken. */
static accrt_serve_engine_t* engine_to_serve(fuzz_t* f) {
  accrt_serve_model_t* model = NULL;
  if (one_in(f, 2))
    (void)accrt_serve_model_create_simulated(simulation(f), &model);
  else
    model = wrap_model(f);
  accrt_serve_engine_t* engine = NULL;
  accrt_serve_options_t* options = engine_options(f, 0);
  options->flags = ACCRT_SERVE_ENGINE_THREAD;
  if (model != NULL)
    (void)accrt_serve_engine_create(model, options, &engine);
  accrt_serve_model_release(model);
  return engine;
}
static void call_accrt_http_server_create(fuzz_t* f) {
  accrt_http_server_t* server = (void*)f;
  accrt_serve_engine_t* engine = one_in(f, 16) ? NULL : engine_to_serve(f);
  const bool is_made =
      MADE(f, accrt_http_server_create(engine, one_in(f, 64) ? NULL : server_options(f), &server),
           server);
  if (is_made)
    keep(f, &f->servers, server, release_server);
  if (is_made && one_in(f, 2))
    keep(f, &f->served, engine, release_engine);
  else
    accrt_serve_engine_release(engine);
}
static void call_accrt_http_server_retain(fuzz_t* f) {
  keep(f, &f->servers, accrt_http_server_retain(pick(f, &f->servers)), release_server);
}
static void call_accrt_http_server_release(fuzz_t* f) {
  accrt_http_server_release(take(f, &f->servers));
}
static void call_accrt_http_server_port(fuzz_t* f) {
  accrt_http_server_t* server = pick(f, &f->servers);
  if ((accrt_http_server_port(server) != 0) != (server != NULL && !is_wrong))
    stop("a server without a port", "");
}
static void call_accrt_http_server_drain(fuzz_t* f) {
  (void)note(accrt_http_server_drain(one_in(f, 8) ? pick(f, &f->servers) : NULL, timeout(f)));
}
static void call_accrt_http_server_counts(fuzz_t* f) {
  accrt_http_counts_t counts;
  (void)note(accrt_http_server_counts(pick(f, &f->servers), one_in(f, 32) ? NULL : &counts));
}

static void end_job(fuzz_t* f, uint32_t at) {
  accrt_http_server_release(f->jobs[at].server);
  f->jobs[at] = f->jobs[--f->job_count];
}
static accrt_http_job_t* pick_job(fuzz_t* f, uint32_t* out_at) {
  *out_at = UINT32_MAX;
  if (f->job_count == 0 || one_in(f, 32))
    return NULL;
  *out_at = random_below(f, f->job_count);
  return f->jobs[*out_at].job;
}
static void call_accrt_http_next(fuzz_t* f) {
  accrt_http_server_t* server = pick(f, &f->servers);
  accrt_http_job_t* job = (void*)f;
  if (f->job_count == MAX_JOBS)
    server = NULL;
  if (!MADE(f, accrt_http_next(server, timeout(f), &job), job))
    return;
  atomic_fetch_add_explicit(&jobs_seen, 1, memory_order_relaxed);
  f->jobs[f->job_count++] = (job_t){job, accrt_http_server_retain(server)};
}
static void call_accrt_http_job_info(fuzz_t* f) {
  uint32_t at;
  accrt_http_job_info_t info;
  if (!note(accrt_http_job_info(pick_job(f, &at), &info)))
    return;
  volatile uint64_t sum = 0; /* what is read must be there */
  (void)sum;
  for (uint64_t i = 0; i < info.body_bytes; ++i)
    sum += ((const unsigned char*)info.body)[i];
}
static void call_accrt_http_start(fuzz_t* f) {
  uint32_t at;
  accrt_http_job_t* job = pick_job(f, &at);
  const accrt_serve_request_t** requests = block(f, 4 * sizeof *requests);
  const uint32_t count = random_below(f, 8) % 4;
  for (uint32_t i = 0; i < 4; ++i)
    requests[i] = one_in(f, 64) ? NULL : request(f);
  accrt_http_format_t* format = sized(f, sizeof *format);
  format->flags = one_in(f, 64) ? (uint32_t)hostile(f) : random_below(f, 32);
  format->next = chain(f);
  format->id = text(f);
  format->model = text(f);
  format->created = number(f, 3);
  format->top_logprobs = (uint32_t)number(f, 5);
  format->tools = one_in(f, 2) ? (uint32_t)number(f, 8) : 0;
  format->text_parameters = text(f);
  format->reasoning = one_in(f, 2) ? (uint32_t)number(f, 5) : 0;
  const char** prefixes = block(f, 4 * sizeof *prefixes);
  for (uint32_t i = 0; i < 4; ++i)
    prefixes[i] = text(f);
  format->prefixes = one_in(f, 4) ? prefixes : NULL;
  const accrt_status_t status =
      accrt_http_start(job, one_in(f, 64) ? NULL : requests, count, one_in(f, 64) ? NULL : format);
  if ((note(status) || status == ACCRT_ERROR_CANCELLED) && job != NULL)
    end_job(f, at);
}
static void call_accrt_http_fail(fuzz_t* f) {
  uint32_t at;
  accrt_http_job_t* job = pick_job(f, &at);
  accrt_http_failure_t* failure = sized(f, sizeof *failure);
  failure->status = one_in(f, 8) ? (uint32_t)number(f, 700) : 400 + random_below(f, 130);
  failure->next = chain(f);
  failure->message = text(f);
  failure->type = text(f);
  failure->parameter = text(f);
  failure->code = text(f);
  if (note(accrt_http_fail(job, one_in(f, 32) ? NULL : failure)) && job != NULL)
    end_job(f, at);
}
static void call_accrt_http_answer(fuzz_t* f) {
  uint32_t at;
  accrt_http_job_t* job = pick_job(f, &at);
  const uint64_t size = random_below(f, 300);
  if (note(accrt_http_answer(job, one_in(f, 8) ? (uint32_t)number(f, 700) : 200,
                             one_in(f, 8) ? text(f) : "text/plain",
                             one_in(f, 16) ? NULL : block(f, size + 1), size)) &&
      job != NULL)
    end_job(f, at);
}

/* Clients of the servers: they ask, send nonsense, read, leave. */
static void call_client(fuzz_t* f) {
  static const char* const texts[] = {
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
      "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
      "POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
      "POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /health HTTP/1.0\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: "
      "Bearer a\r\n\r\n",
      "OPTIONS /v1/completions HTTP/1.1\r\nHost: a\r\nOrigin: http://x\r\n\r\n",
      "\r\n\r\nnonsense",
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\npart",
  };
  int* fd = &f->clients[random_below(f, MAX_CLIENTS)];
  if (*fd >= 0 && one_in(f, 2)) {
    char answer[2048];
    for (int i = 0; i < 4 && recv(*fd, answer, sizeof answer, MSG_DONTWAIT) > 0; ++i)
      ;
    if (one_in(f, 4)) {
      (void)close(*fd);
      *fd = -1;
    }
    return;
  }
  const uint32_t port = accrt_http_server_port(any_of(f, &f->servers));
  if (*fd < 0 && port != 0) {
    const int made_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(made_fd, (const struct sockaddr*)&address, sizeof address) == 0)
      *fd = made_fd;
    else if (made_fd >= 0)
      (void)close(made_fd);
  }
  const char* sent = texts[random_below(f, one_in(f, 2) ? 4 : sizeof texts / sizeof texts[0])];
  if (*fd >= 0)
    (void)!send(*fd, sent, strlen(sent), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void call_accrt_http_calls_create(fuzz_t* f) {
  accrt_http_calls_t* parser = (void*)f;
  if (MADE(f,
           accrt_http_calls_create((uint32_t)number(f, 15), (uint32_t)number(f, 3), text(f),
                                   (uint32_t)number(f, 7) | (one_in(f, 4) ? 256u : 0u),
                                   one_in(f, 64) ? NULL : &parser),
           parser))
    keep(f, &f->parsers, parser, release_parser);
}
static void call_accrt_http_calls_retain(fuzz_t* f) {
  keep(f, &f->parsers, accrt_http_calls_retain(pick(f, &f->parsers)), release_parser);
}
static void call_accrt_http_calls_release(fuzz_t* f) {
  accrt_http_calls_release(take(f, &f->parsers));
}
static void call_accrt_http_calls_push(fuzz_t* f) {
  static const char* const texts[] = {"<tool_call>",
                                      "</tool_call>",
                                      "[TOOL_CALLS]",
                                      "<function=f><parameter=a>",
                                      "<arg_key>",
                                      "<think>",
                                      "</think>",
                                      "{\"name\": \"f\", ",
                                      "\"arguments\": {}",
                                      "}",
                                      "x"};
  const char* piece = one_in(f, 32) ? NULL : texts[random_below(f, 11)];
  const uint64_t size = piece == NULL ? random_below(f, 2) : strlen(piece);
  accrt_http_call_news_t news;
  if (!note(accrt_http_calls_push(pick(f, &f->parsers), piece, size, one_in(f, 16),
                                  one_in(f, 64) ? NULL : &news)))
    return;
  if (news.reserved != 0 || (news.entries_bytes > 0 && news.call_count == 0))
    stop("entries of no call", "accrt_http_calls_push");
}

static const struct {
  const char* name;
  void (*call)(fuzz_t* f);
} calls[] = {
#define ACCRT_FUNCTION(name, major, minor) {#name, call_##name},
#include "abi/http.def"
#include "abi/serve.def"
#undef ACCRT_FUNCTION
    {"a client", call_client},
};
#define CALL_COUNT (sizeof calls / sizeof calls[0])
static atomic_ullong counts[CALL_COUNT];

/* Of these more than of others: without them nothing happens. */
static uint32_t random_call(fuzz_t* f) {
  static void (*const often[])(fuzz_t*) = {
      call_accrt_serve_engine_submit, call_accrt_serve_engine_step,
      call_accrt_serve_engine_poll,   call_client,
      call_accrt_http_next,           call_accrt_http_start};
  if (!one_in(f, 3))
    return random_below(f, CALL_COUNT);
  void (*const wanted)(fuzz_t*) = often[random_below(f, 6)];
  uint32_t at = 0;
  while (calls[at].call != wanted)
    ++at;
  return at;
}

/* ---- Rounds ---- */

static void begin_world(world_t* world, fuzz_t* f) {
  memset(world, 0, sizeof *world);
  (void)pthread_mutex_init(&world->polling, NULL);
  f->world = world;
  f->random = round_now * 3 + 1;
  for (uint32_t i = 0; i < 2; ++i) {
    accrt_serve_simulation_t options = ACCRT_SERVE_SIMULATION_INIT;
    options.flags = i;
    options.page_count = 40;
    options.max_rows = 8;
    options.max_tokens = 64;
    options.max_length = 128;
    options.eos = 5;
    options.fail_every = 50;
    options.adapter_count = 2;
    accrt_serve_options_t engine = ACCRT_SERVE_OPTIONS_INIT;
    engine.flags = i;
    engine.max_queued = 16;
    engine.allocator = allocator(f);
    if (accrt_serve_model_create_simulated(&options, &world->shared_models[i]) != ACCRT_OK ||
        accrt_serve_engine_create(world->shared_models[i], &engine, &world->shared[i]) != ACCRT_OK)
      stop("no engine", "");
  }
  free_blocks(f);
  world->no_memory = round_now % 3 == 2;
}

static void end_world(world_t* world, uint32_t descriptors) {
  world->no_memory = false;
  for (uint32_t i = 0; i < 2; ++i) {
    accrt_serve_engine_release(world->shared[i]);
    accrt_serve_model_release(world->shared_models[i]);
  }
  char left[100];
  (void)snprintf(left, sizeof left, "%ld allocations, %ld models, %d descriptors",
                 atomic_load(&world->allocations), atomic_load(&world->models),
                 (int)(open_descriptors() - descriptors));
  if (atomic_load(&world->allocations) != 0 || atomic_load(&world->models) != 0 ||
      open_descriptors() != descriptors)
    stop("something is left", left);
  (void)pthread_mutex_destroy(&world->polling);
}

static void end_thread(fuzz_t* f) {
  current = "the end of a round";
  is_wrong = false;
  for (uint32_t i = 0; i < MAX_CLIENTS; ++i) {
    if (f->clients[i] >= 0)
      (void)close(f->clients[i]);
  }
  while (f->job_count > 0) {
    accrt_http_failure_t failure = ACCRT_HTTP_FAILURE_INIT;
    failure.status = 500;
    (void)accrt_http_fail(f->jobs[0].job, &failure);
    end_job(f, 0);
  }
  while (f->constraints.count > 0)
    accrt_serve_constraint_release(take(f, &f->constraints));
  while (f->parsers.count > 0)
    accrt_http_calls_release(take(f, &f->parsers));
  while (f->grammars.count > 0)
    accrt_serve_grammars_release(take(f, &f->grammars));
  while (f->models.count + f->engines.count + f->served.count + f->servers.count > 0) {
    switch (random_below(f, 4)) {
    case 0:
      accrt_serve_model_release(take(f, &f->models));
      break;
    case 1:
      accrt_serve_engine_release(take(f, &f->engines));
      break;
    case 2:
      accrt_serve_engine_release(take(f, &f->served));
      break;
    default:
      accrt_http_server_release(take(f, &f->servers));
    }
  }
}

static void* run_thread(void* user) {
  fuzz_t* f = user;
  for (uint64_t i = 0; i < f->calls; ++i) {
    const uint32_t at = random_call(f);
    current = calls[at].name;
    is_wrong = false;
    calls[at].call(f);
    atomic_fetch_add_explicit(&counts[at], 1, memory_order_relaxed);
    free_blocks(f);
  }
  end_thread(f);
  return NULL;
}

static void run_round(uint64_t seed, uint32_t threads) {
  static world_t world;
  fuzz_t* all = calloc(threads, sizeof *all);
  pthread_t* handles = calloc(threads, sizeof *handles);
  if (all == NULL || handles == NULL)
    stop("no memory", "");
  const uint32_t descriptors = open_descriptors();
  const bool validates = round_now % 2 == 1;
  (void)(validates ? setenv("ACCRT_VALIDATE", "handles", 1) : unsetenv("ACCRT_VALIDATE"));
  begin_world(&world, &all[0]);
  world.mischief = validates && threads == 1;
  for (uint32_t i = 0; i < threads; ++i) {
    all[i].world = &world;
    all[i].random = seed * 1000003u + round_now * 64u + i;
    all[i].calls = CALLS_PER_ROUND / threads;
    for (uint32_t c = 0; c < MAX_CLIENTS; ++c)
      all[i].clients[c] = -1;
    if (i > 0 && pthread_create(&handles[i], NULL, run_thread, &all[i]) != 0)
      stop("no thread", "");
  }
  (void)run_thread(&all[0]);
  for (uint32_t i = 1; i < threads; ++i)
    (void)pthread_join(handles[i], NULL);
  end_world(&world, descriptors);
  free(all);
  free(handles);
}

int main(int argc, char** argv) {
  uint64_t wanted = 100000, seed = 1;
  uint32_t threads = 1;
  const char *bundle = NULL, *weights = NULL;
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--calls") == 0)
      wanted = value;
    else if (strcmp(argv[i], "--seed") == 0)
      seed = value;
    else if (strcmp(argv[i], "--round") == 0)
      round_now = value;
    else if (strcmp(argv[i], "--bundle") == 0)
      bundle = argv[i + 1];
    else if (strcmp(argv[i], "--weights") == 0)
      weights = argv[i + 1];
    else if (strcmp(argv[i], "--threads") == 0 && value >= 1 && value <= 16)
      threads = (uint32_t)value;
  }
  if (!open_programs(bundle, weights)) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    fprintf(stderr, "serve_fuzz: no programs: %s\n", error.message);
    return 1;
  }
  printf("seed %" PRIu64 ", %" PRIu64 " calls of %zu functions, %" PRIu32 " threads\n", seed,
         wanted, CALL_COUNT - 1, threads);
  fflush(stdout);
  const uint64_t first = round_now;
  for (uint64_t done = 0; done < wanted; done += CALLS_PER_ROUND, ++round_now) {
    run_round(seed, threads);
    if ((round_now - first) % 100 == 99) {
      printf("%" PRIu64 " calls\n", done + CALLS_PER_ROUND);
      fflush(stdout);
    }
  }
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < CALL_COUNT; ++i) {
    if (counts[i] < least)
      least = counts[i];
  }
  printf("each function at least %" PRIu64
         " times; %llu succeeded, %llu were refused; %llu events, %llu jobs\n",
         least, (unsigned long long)successes, (unsigned long long)refusals,
         (unsigned long long)events_seen, (unsigned long long)jobs_seen);
  accrt_program_release(plain_program);
  accrt_program_release(step_program);
  accrt_instance_release(instance);
  accrt_instance_release(other_instance);
  return least != 0 ? 0 : 1;
}
