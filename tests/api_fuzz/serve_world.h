/* tests/api_fuzz/serve_world.h - what random calls of libaccrt_serve and libaccrt_http are made with,
 * for serve_fuzz.c, which includes it once: random numbers, texts and structs, allocators and clocks
 * that fail, the handles that the fuzzer has or had, and a model of its own. */
#ifndef ACCRT_TESTS_API_FUZZ_SERVE_WORLD_H_
#define ACCRT_TESTS_API_FUZZ_SERVE_WORLD_H_

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/http.h"
#include "accrt/serve.h"
#include "accrt/serve/api.h"
#include "tests/api_fuzz/faults.h"
#include "tests/random.h"

#define MAX_HANDLES 6
#define MAX_GONE 4
#define MAX_BLOCKS 128
#define MAX_JOBS 3
#define MAX_CLIENTS 4
#define CALLS_PER_ROUND 2000
#define VOCABULARY 300
#define EMBEDDING 16

typedef struct world {
  atomic_long allocations, models;
  atomic_bool no_memory; /* some allocations fail */
  bool mischief;         /* released handles and those of another type are given */
  atomic_ullong chance;
  pthread_mutex_t polling; /* one thread at a time polls */
  accrt_serve_engine_t* shared[2];
  accrt_serve_model_t* shared_models[2];
} world_t;

typedef struct table {
  void* handles[MAX_HANDLES];
  uint32_t count;
  void* gone[MAX_GONE]; /* released */
  uint32_t gone_count;
} table_t;

typedef struct job {
  accrt_http_job_t* job;
  accrt_http_server_t* server; /* a reference */
} job_t;

typedef struct fuzz {
  world_t* world;
  uint64_t random;
  table_t models, engines, served, servers; /* served: engines whose events a server takes */
  table_t constraints, grammars, parsers;
  job_t jobs[MAX_JOBS];
  uint32_t job_count;
  int clients[MAX_CLIENTS];
  void* blocks[MAX_BLOCKS];
  uint32_t block_count;
  uint64_t calls;
  uint64_t last_id;
} fuzz_t;

static accrt_instance_t* instance;
static accrt_device_t* device;
static accrt_device_t* other_devices[2]; /* of that instance, and of another one */
static accrt_instance_t* other_instance;
static accrt_program_t *plain_program, *step_program;
static _Thread_local const char* current;
static _Thread_local bool is_wrong; /* this call has got a handle that it has to refuse */
static uint64_t round_now;
static atomic_ullong successes, refusals, events_seen, jobs_seen;

static _Noreturn void stop(const char* what, const char* more) {
  fprintf(stderr, "serve_fuzz: round %" PRIu64 ", in %s: %s: %s\n", round_now,
          current != NULL ? current : "?", what, more);
  abort();
}

/* ---- Random things ---- */

static uint64_t next(fuzz_t* f) {
  return test_random(&f->random);
}
static uint32_t random_below(fuzz_t* f, uint32_t limit) {
  return (uint32_t)(next(f) % limit);
}
static bool one_in(fuzz_t* f, uint32_t n) {
  return random_below(f, n) == 0;
}
static uint64_t hostile(fuzz_t* f) {
  static const uint64_t numbers[] = {UINT64_MAX, UINT32_MAX,         1u << 31,     INT32_MAX,
                                     65537,      UINT64_C(1) << 62,  INT64_MAX,    1u << 20,
                                     257,        UINT64_MAX - 0xFFF, 1u << 30 | 1, 4097};
  return numbers[random_below(f, sizeof numbers / sizeof numbers[0])];
}
/* Mostly small. */
static uint64_t number(fuzz_t* f, uint32_t below) {
  return one_in(f, 64) ? hostile(f) : random_below(f, below);
}
static float real(fuzz_t* f) {
  static const float numbers[] = {0, 1, 0.5f, 0.9f, 2, -1, 1e9f, -1e30f, 1e-30f, 100};
  if (one_in(f, 32)) {
    const uint32_t bits = (uint32_t)next(f);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
  return numbers[random_below(f, one_in(f, 4) ? 10 : 5)];
}
static uint64_t timeout(fuzz_t* f) {
  return one_in(f, 8) ? 50000 : random_below(f, 2);
}

static void* block(fuzz_t* f, size_t size_bytes) {
  void* memory = calloc(1, size_bytes);
  if (f->block_count == MAX_BLOCKS || memory == NULL)
    stop("no memory", "");
  f->blocks[f->block_count++] = memory;
  return memory;
}
static void free_blocks(fuzz_t* f) {
  while (f->block_count > 0)
    free(f->blocks[--f->block_count]);
}

static const char* text(fuzz_t* f) {
  static const char* const texts[] = {"",         "a",          "ab",        "\xE4\xBD\xA0",
                                      "\xFF\xC0", "stop\nhere", "127.0.0.1", "*"};
  return one_in(f, 8) ? NULL : texts[random_below(f, 8)];
}

/* A struct with a size in front, which is sometimes wrong. */
static void* sized(fuzz_t* f, size_t right) {
  static const uint32_t sizes[] = {0, 8, 16, 24, 13, 4096, 65536, 70000};
  uint32_t size = (uint32_t)right;
  if (one_in(f, 16))
    size = one_in(f, 2) ? sizes[random_below(f, 8)] : size + 8 - 16 * random_below(f, 2);
  unsigned char* memory = block(f, size > right ? size : right);
  memcpy(memory, &size, sizeof size);
  if (size > right && one_in(f, 2))
    memory[right + random_below(f, size - (uint32_t)right)] = 1;
  return memory;
}

static const accrt_chain_t* chain(fuzz_t* f) {
  if (!one_in(f, 24))
    return NULL;
  accrt_chain_t* member = block(f, sizeof *member);
  member->struct_type = one_in(f, 2) ? ACCRT_STRUCT_IGNORABLE | 7 : 7;
  if (one_in(f, 4))
    member->next = member; /* a circle */
  return member;
}

/* ---- Allocators and clocks ---- */

static bool fails(world_t* world) {
  return world->no_memory &&
         test_mix(atomic_fetch_add_explicit(&world->chance, 1, memory_order_relaxed)) % 128 == 0;
}
static void* count_allocate(void* self, size_t size_bytes, size_t alignment) {
  world_t* world = self;
  void* memory = NULL;
  if (size_bytes > 1u << 28 || fails(world) ||
      posix_memalign(&memory, alignment < 8 ? 8 : alignment, size_bytes) != 0)
    return NULL;
  atomic_fetch_add_explicit(&world->allocations, 1, memory_order_relaxed);
  return memory;
}
static void count_free(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)alignment;
  memset(pointer, 0xDD, size_bytes); /* the size is right */
  atomic_fetch_sub_explicit(&((world_t*)self)->allocations, 1, memory_order_relaxed);
  free(pointer);
}
static accrt_allocator_t* allocator(fuzz_t* f) {
  accrt_allocator_t* made = block(f, sizeof *made);
  *made = (accrt_allocator_t){f->world, count_allocate, count_free};
  return made;
}
static uint64_t fast_clock(void* self) {
  (void)self;
  return accrt_serve_now_ns() * 1000;
}

/* ---- Handles ---- */

static void* any_of(fuzz_t* f, const table_t* table) {
  return table->count > 0 ? table->handles[random_below(f, table->count)] : NULL;
}
/* A released handle, or one of another type; NULL: there is none. Models and engines may be released and still be valid: an engine
 * lends its model, and a server has a reference to its engine. */
static void* wrong_for(fuzz_t* f, const table_t* table) {
  const table_t* const tables[] = {&f->models,      &f->engines,  &f->servers,
                                   &f->constraints, &f->grammars, &f->parsers};
  const bool takes_engines = table == &f->engines || table == &f->served;
  void* handle = NULL;
  if (one_in(f, 2)) {
    if (table->gone_count > 0 && table != &f->models && !takes_engines)
      handle = table->gone[random_below(f, table->gone_count)];
  } else {
    const table_t* other = tables[random_below(f, sizeof tables / sizeof *tables)];
    if (other != table && !(takes_engines && other == &f->engines))
      handle = any_of(f, other);
  }
  for (uint32_t i = 0; i < f->job_count; ++i)
    handle = f->jobs[i].server == handle ? NULL : handle; /* a job's reference */
  for (uint32_t i = 0; i < table->count; ++i)
    handle = table->handles[i] == handle ? NULL : handle; /* kept again after the release */
  is_wrong = is_wrong || handle != NULL;
  return handle;
}
static void* pick(fuzz_t* f, const table_t* table) {
  if (f->world->mischief && one_in(f, 12))
    return wrong_for(f, table);
  return one_in(f, 24) ? NULL : any_of(f, table);
}
static void* pick_engine(fuzz_t* f) {
  if (one_in(f, 4))
    return f->world->shared[random_below(f, 2)];
  return pick(f, one_in(f, 4) ? &f->served : &f->engines);
}
/* A reference that we have, for a release. */
static void* take(fuzz_t* f, table_t* table) {
  if (table->count == 0)
    return NULL;
  const uint32_t at = random_below(f, table->count);
  void* handle = table->handles[at];
  table->handles[at] = table->handles[--table->count];
  bool more = false;
  for (uint32_t i = 0; i < table->count; ++i)
    more = more || table->handles[i] == handle;
  if (!more)
    table->gone[table->gone_count < MAX_GONE ? table->gone_count++ : random_below(f, MAX_GONE)] =
        handle;
  return handle;
}
static void keep(fuzz_t* f, table_t* table, void* handle, void (*release)(void*)) {
  if (handle == NULL || is_wrong) /* of a retain that was refused */
    return;
  if (table->count == MAX_HANDLES)
    release(take(f, table));
  table->handles[table->count++] = handle;
}
static void release_model(void* model) {
  accrt_serve_model_release(model);
}
static void release_engine(void* engine) {
  accrt_serve_engine_release(engine);
}
static void release_server(void* server) {
  accrt_http_server_release(server);
}

static void release_constraint(void* constraint) {
  accrt_serve_constraint_release(constraint);
}
static void release_grammars(void* grammars) {
  accrt_serve_grammars_release(grammars);
}

static void release_parser(void* parser) {
  accrt_http_calls_release(parser);
}

static bool note(accrt_status_t status) {
  if (status == ACCRT_OK && is_wrong)
    stop("a wrong handle is taken", "");
  if (status == ACCRT_OK) {
    atomic_fetch_add_explicit(&successes, 1, memory_order_relaxed);
    return true;
  }
  atomic_fetch_add_explicit(&refusals, 1, memory_order_relaxed);
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  if (is_fault(status))
    stop(accrt_status_name(status), error.message);
  return false;
}
/* Also: no handle beside a failure. The handle's place is given: arguments are computed in any order. */
static bool made_at(fuzz_t* f, accrt_status_t status, const void* place) {
  const void* handle;
  memcpy(&handle, place, sizeof handle);
  if (!note(status)) {
    if (handle != NULL && handle != (const void*)f)
      stop("a handle beside a failure", accrt_status_name(status));
    return false;
  }
  if (handle == NULL || handle == (const void*)f)
    stop("success without a handle", "");
  return true;
}

#define MADE(f, status, handle) made_at((f), (status), &(handle))

/* ---- A model of ours ---- */

typedef struct own_model {
  world_t* world;
  uint64_t random;
  accrt_serve_model_info_t info;
  uint32_t in_flight;
  uint64_t numbers[2];
  uint32_t samples[2];
  int32_t tokens[64], ranks[64], top_tokens[64 * 4];
  float logprobs[64], top_logprobs[64 * 4];
  float* embeddings; /* of the largest step */
} own_model_t;

static bool own_chance(own_model_t* model, uint32_t n) {
  return test_mix(model->random += UINT64_C(0x9E3779B97F4A7C15)) % n == 0;
}

static accrt_status_t own_info(void* self, accrt_serve_model_info_t* out_info) {
  const own_model_t* model = self;
  const uint32_t size = out_info->struct_size;
  *out_info = model->info;
  out_info->struct_size = size;
  return ACCRT_OK;
}

static uint32_t own_samples(const accrt_serve_model_info_t* info) {
  return info->max_samples != 0 ? info->max_samples : info->max_rows;
}

/* Parts of pages, each to another page. */
static void check_copies(const accrt_serve_model_info_t* info, const accrt_serve_step_t* step) {
  const int32_t page_size = (int32_t)info->page_size, slots = (int32_t)info->page_count * page_size;
  if (step->copy_count > step->row_count || (step->copy_count > 0 && info->min_copy_tokens == 0))
    stop("copies of a step", "");
  for (uint32_t i = 0; i < step->copy_count; ++i) {
    const int32_t from = step->copy_from[i], to = step->copy_to[i], count = step->copy_tokens[i];
    if (count < 1 || (uint32_t)count < info->min_copy_tokens || count >= page_size || from < 0 ||
        to < 0 || from % page_size != 0 || to % page_size != 0 || from >= slots || to >= slots ||
        from == to)
      stop("a copy of a step", "");
  }
}

/* Every array of the step is read, and every index is one. */
static accrt_status_t own_submit(void* self, const accrt_serve_step_t* step) {
  own_model_t* model = self;
  const accrt_serve_model_info_t* info = &model->info;
  /* An engine that ended, because this model cannot be reset, has left its steps. */
  if (step->number == 1)
    model->in_flight = 0;
  if (step->token_count == 0 || step->token_count > info->max_tokens ||
      step->row_count > info->max_rows || step->sample_count > own_samples(info) ||
      step->sample_count > step->token_count || model->in_flight == 2)
    stop("a step beyond the model", "");
  for (uint32_t i = 0; i < step->token_count; ++i) {
    const int32_t row = step->token_rows[i];
    if (step->token_ids[i] < -1 || step->token_ids[i] >= (int32_t)info->vocab_size ||
        step->positions[i] < 0 || step->positions[i] >= (int32_t)info->max_length ||
        step->slots[i] < 0 || step->slots[i] >= (int32_t)(info->page_count * info->page_size) ||
        row < 0 || row >= (int32_t)step->row_count || (int32_t)i < step->row_starts[row] ||
        (int32_t)i >= step->row_starts[row + 1])
      stop("a token of a step", "");
  }
  for (uint32_t i = 0; i < step->row_count; ++i) {
    if (step->row_ids[i] < 0 || step->row_ids[i] >= (int32_t)info->max_rows ||
        step->kv_lengths[i] < 1 || step->kv_lengths[i] > (int32_t)info->max_length)
      stop("a row of a step", "");
  }
  for (uint32_t i = 0; i < step->change_count; ++i) {
    if (step->change_slots[i] < 0 || step->change_pages[i] < 0 ||
        step->change_slots[i] >= (int32_t)(info->max_rows * info->row_pages) ||
        step->change_pages[i] >= (int32_t)info->page_count)
      stop("a change of the page table", "");
  }
  uint64_t edits = 0;
  for (uint32_t i = 0; i < step->sample_count; ++i) {
    if (step->sample_tokens[i] < 0 || step->sample_tokens[i] >= (int32_t)step->token_count)
      stop("a sample of a step", "");
    if ((step->flags & ACCRT_SERVE_STEP_GREEDY) == 0 &&
        (edits += step->edits[i].count) > step->edit_count)
      stop("edits of a step", "");
  }
  if (step->embed_row_count > step->row_count ||
      step->sample_count + step->embed_count > own_samples(info) ||
      (step->embed_row_count > 0 && info->embedding_size == 0))
    stop("rows that are embedded", "");
  for (uint32_t i = 0; i < step->embed_count; ++i) {
    const int32_t first = step->row_starts[step->row_count - step->embed_row_count];
    if (step->embed_tokens[i] < first || step->embed_tokens[i] >= (int32_t)step->token_count)
      stop("an embedded token of a step", "");
  }
  check_copies(info, step);
  if (own_chance(model, 64))
    return ACCRT_ERROR_KERNEL;
  model->numbers[model->in_flight] = step->number;
  model->samples[model->in_flight++] = step->sample_count;
  return ACCRT_OK;
}

static accrt_status_t own_wait(void* self, uint64_t wanted, accrt_serve_results_t* out_results) {
  own_model_t* model = self;
  if (model->in_flight == 0 || model->numbers[0] != wanted)
    stop("a wait for another step", "");
  const uint32_t count = model->samples[0];
  model->numbers[0] = model->numbers[1];
  model->samples[0] = model->samples[1];
  --model->in_flight;
  for (uint32_t i = 0; i < count; ++i) {
    model->tokens[i] = (int32_t)(test_mix(model->random += 77) % model->info.vocab_size);
    if (own_chance(model, 256))
      model->tokens[i] = own_chance(model, 2) ? -1 : INT32_MAX;
    model->logprobs[i] = -1.0f;
  }
  out_results->tokens = model->tokens;
  out_results->embeddings = own_chance(model, 64) ? NULL : model->embeddings;
  if (own_chance(model, 2)) {
    out_results->logprobs = model->logprobs;
    out_results->ranks = model->ranks;
    out_results->top_count = 4;
    out_results->top_tokens = model->top_tokens;
    out_results->top_logprobs = model->top_logprobs;
  }
  return own_chance(model, 64) ? ACCRT_ERROR_DEVICE_LOST : ACCRT_OK;
}

static accrt_status_t own_sample(void* self, const accrt_serve_step_t* step,
                                 const accrt_serve_masks_t* masks) {
  own_model_t* model = self;
  volatile uint32_t sum = 0; /* what is read must be there */
  (void)sum;
  for (uint32_t i = 0; i < step->sample_count; ++i) {
    if (masks->rows[i] < -1 || masks->rows[i] >= (int32_t)masks->count)
      stop("a mask of a step", "");
  }
  for (uint32_t i = 0; i < masks->count * masks->words; ++i)
    sum += masks->bits[i];
  return own_chance(model, 64) ? ACCRT_ERROR_KERNEL : ACCRT_OK;
}

static accrt_status_t own_prepare(void* self, uint32_t* out_left) {
  own_model_t* model = self;
  *out_left = (uint32_t)own_chance(model, 2);
  return own_chance(model, 8) ? ACCRT_ERROR_KERNEL : ACCRT_OK;
}

static accrt_status_t own_set_adapter(void* self, uint32_t place,
                                      const accrt_serve_adapter_tensor_t* tensors,
                                      uint32_t tensor_count) {
  own_model_t* model = self;
  volatile uint32_t sum = 0; /* what is read must be there */
  (void)sum;
  if (place >= model->info.adapter_count)
    stop("a place for an adapter", "");
  for (uint32_t i = 0; i < tensor_count; ++i) {
    for (uint64_t k = 0; k < tensors[i].size_bytes; ++k)
      sum += ((const unsigned char*)tensors[i].data)[k];
  }
  return own_chance(model, 4) ? ACCRT_ERROR_SHAPE_MISMATCH : ACCRT_OK;
}

static accrt_status_t own_reset(void* self) {
  own_model_t* model = self;
  model->in_flight = 0;
  return own_chance(model, 8) ? ACCRT_ERROR_DEVICE_LOST : ACCRT_OK;
}

static void own_destroy(void* self) {
  own_model_t* model = self;
  atomic_fetch_sub(&model->world->models, 1);
  free(model->embeddings);
  free(model);
}

/* Of what has no other flags: one that is not known, or validation. */
static uint32_t flags_to_make(fuzz_t* f) {
  return one_in(f, 64) ? 1 : one_in(f, 16) ? ACCRT_SERVE_VALIDATE : 0;
}

static accrt_serve_model_t* wrap_model(fuzz_t* f) {
  static const int32_t eos[] = {2, 3};
  accrt_serve_model_functions_t* functions = sized(f, sizeof *functions);
  functions->flags = flags_to_make(f);
  own_model_t* model = calloc(1, sizeof *model);
  if (model == NULL)
    stop("no memory", "");
  model->world = f->world;
  model->random = next(f);
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  info.flags = random_below(f, 2);
  info.name = "own";
  info.vocab_size = one_in(f, 16) ? (uint32_t)number(f, 2) : VOCABULARY;
  info.page_size = 1 + (uint32_t)number(f, 4);
  info.page_count = (uint32_t)number(f, 64);
  info.max_rows = 1 + random_below(f, 8);
  info.max_tokens = one_in(f, 16) ? (uint32_t)number(f, 8) : 64;
  info.max_length = 1 + (uint32_t)number(f, 100);
  info.row_pages = one_in(f, 16) || info.page_size == 0 ? (uint32_t)number(f, 8)
                                                        : info.max_length / info.page_size + 1;
  info.eos_count = random_below(f, 3);
  info.eos = eos;
  info.adapter_count = (uint32_t)number(f, 3);
  info.min_copy_tokens = (uint32_t)number(f, 4);
  info.max_samples = one_in(f, 2) ? 0 : one_in(f, 4) ? (uint32_t)number(f, 9) : 64;
  info.embedding_size = one_in(f, 64) ? (uint32_t)hostile(f) : random_below(f, EMBEDDING + 1);
  if (info.embedding_size <= UINT32_C(1) << 20)
    model->embeddings = calloc((size_t)64 * info.embedding_size + 1, sizeof(float));
  for (uint32_t i = 0;
       model->embeddings != NULL && i < 64 * EMBEDDING && i < 64 * info.embedding_size; ++i)
    model->embeddings[i] = real(f);
  model->info = info;
  functions->next = chain(f);
  functions->self = model;
  functions->info = one_in(f, 64) ? NULL : own_info;
  functions->submit = one_in(f, 64) ? NULL : own_submit;
  functions->wait = one_in(f, 64) ? NULL : own_wait;
  functions->reset = one_in(f, 4) ? NULL : own_reset;
  functions->sample = one_in(f, 4) ? NULL : own_sample;
  functions->prepare = one_in(f, 2) ? NULL : own_prepare;
  functions->set_adapter = one_in(f, 4) ? NULL : own_set_adapter;
  functions->destroy = own_destroy;
  accrt_serve_model_t* handle = (void*)f;
  /* Counted before: whoever has it may drop it at once. */
  atomic_fetch_add(&f->world->models, 1);
  if (MADE(f, accrt_serve_model_wrap(one_in(f, 64) ? NULL : functions, &handle), handle))
    return handle;
  own_destroy(model);
  return NULL;
}

/* ---- Programs, descriptors ---- */

static bool open_programs(const char* bundle_path, const char* weights_path) {
  accrt_bundle_t* bundle;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  const accrt_option_t two = {"host.devices", "2"};
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  options.options = &two;
  options.option_count = 1;
  options.option_size_bytes = sizeof two;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK ||
      accrt_instance_create(&options, &other_instance) != ACCRT_OK ||
      accrt_instance_device_by_name(instance, "host:0", &device) != ACCRT_OK ||
      accrt_instance_device_by_name(instance, "host:1", &other_devices[0]) != ACCRT_OK ||
      accrt_instance_device_by_name(other_instance, "host:0", &other_devices[1]) != ACCRT_OK ||
      accrt_bundle_open_path(instance, ACCRT_TEST_DATA "/program.accx", NULL, &bundle) !=
          ACCRT_OK ||
      accrt_program_create(device, bundle, NULL, &plain_program) != ACCRT_OK)
    return false;
  accrt_bundle_release(bundle);
  step_program = accrt_program_retain(plain_program);
  if (bundle_path == NULL)
    return true;
  accrt_program_release(step_program);
  accrt_weights_t* weights;
  accrt_program_options_t sources = ACCRT_PROGRAM_OPTIONS_INIT;
  sources.weights = &weights;
  sources.weight_count = 1;
  if (accrt_weights_open_path(instance, weights_path, NULL, &weights) != ACCRT_OK ||
      accrt_bundle_open_path(instance, bundle_path, NULL, &bundle) != ACCRT_OK ||
      accrt_program_create(device, bundle, &sources, &step_program) != ACCRT_OK)
    return false;
  accrt_bundle_release(bundle);
  accrt_weights_release(weights);
  return true;
}

static uint32_t open_descriptors(void) {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == NULL)
    return 0;
  uint32_t count = 0;
  while (readdir(folder) != NULL)
    ++count;
  (void)closedir(folder);
  return count;
}

#endif /* ACCRT_TESTS_API_FUZZ_SERVE_WORLD_H_ */
