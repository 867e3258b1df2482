/* tests/api_fuzz/api_world.h - what random calls are made with, for api_fuzz.c, which includes it
 * once: instances and devices, random numbers, texts and structs, and the handles that the fuzzer
 * has, had, or has lent. */
#ifndef ACCRT_TESTS_API_FUZZ_API_WORLD_H_
#define ACCRT_TESTS_API_FUZZ_API_WORLD_H_

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/api.h"
#include "accrt/write/api.h"
#include "tests/api_fuzz/faults.h"
#include "tests/random.h"

#define SCRATCH_BYTES 65536u
#define MAX_HANDLES 24
#define TYPES 26
#define CALLS_PER_ROUND 4000
#define ELEMENTS 4u

typedef struct world {
  accrt_instance_t* instances[2];
  accrt_device_t* devices[4];
  accrt_kernel_pack_t* packs[2];
  bool validates;
  bool
      mischief; /* released and foreign handles are given: by one thread alone, whose books are the only ones */
  atomic_long allocations;
  atomic_bool reports; /* what is left over is reported now: nothing may be */
} world_t;

typedef struct table {
  void* handles[MAX_HANDLES];
  int count;
} table_t;

typedef struct fuzz {
  world_t* world;
  uint64_t random;
  table_t owned[TYPES], lent[TYPES], stale[TYPES];
  table_t semaphores; /* retained apart, to end every wait */
  void* blocks[64];
  int block_count;
  unsigned char* scratch;
  uint64_t made;
} fuzz_t;

static const char* bundle_path;
static int bundle_fd = -1;
static void* bundle_bytes;
static uint64_t bundle_size;
static atomic_ullong successes, refusals;
/* A call was given something on purpose that the validation is to tell. */
static _Thread_local bool mischief;
static _Thread_local bool was_told; /* and it has */
static _Thread_local const char* current;
static atomic_ullong told;

static uint64_t round_now;

static _Noreturn void stop(const char* what, const char* more) {
  fprintf(stderr, "api_fuzz: round %" PRIu64 ", in %s: %s: %s\n", round_now,
          current != NULL ? current : "?", what, more);
  abort();
}

static const char* last_message(void) {
  static _Thread_local accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  return error.message;
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

static uint64_t random_number(fuzz_t* f) {
  static const uint64_t interesting[] = {4,
                                         7,
                                         8,
                                         16,
                                         63,
                                         64,
                                         255,
                                         4096,
                                         65536,
                                         UINT32_MAX,
                                         1u << 31,
                                         UINT64_MAX,
                                         UINT64_MAX - 1,
                                         UINT64_C(1) << 62,
                                         INT64_MAX,
                                         1u << 20};
  if (!one_in(f, 4))
    return random_below(f, 4);
  return interesting[random_below(f, 16)];
}

static uint64_t random_timeout(fuzz_t* f) {
  return one_in(f, 8) ? 50000 : random_below(f, 2);
}

static int32_t random_fd(fuzz_t* f) {
  return one_in(f, 4) ? -1 : bundle_fd;
}

static uint32_t random_element_size(fuzz_t* f, size_t right) {
  return one_in(f, 16) ? (uint32_t)random_number(f) : (uint32_t)right;
}

static const char* random_text(fuzz_t* f) {
  static const char* const texts[] = {"host:0", "affine",  "host:1",  "nothing", "",
                                      "x",      "append",  "cache",   "k",       "y",
                                      "count",  "counter", "position"};
  if (one_in(f, 16))
    return NULL;
  return one_in(f, 3) ? bundle_path : texts[random_below(f, 13)];
}

static void* block(fuzz_t* f, size_t size_bytes) {
  if (f->block_count == 64)
    stop("too many blocks", "");
  void* memory = calloc(1, size_bytes);
  if (memory == NULL)
    stop("no memory", "");
  f->blocks[f->block_count++] = memory;
  return memory;
}

static const char* const* random_texts(fuzz_t* f) {
  if (one_in(f, 8))
    return NULL;
  const char** texts = block(f, ELEMENTS * sizeof *texts);
  for (uint32_t i = 0; i < ELEMENTS; ++i)
    texts[i] = random_text(f);
  return texts;
}

static const uint32_t* random_grid(fuzz_t* f) {
  uint32_t* grid = block(f, 3 * sizeof *grid);
  for (int i = 0; i < 3; ++i)
    grid[i] = 1 + random_below(f, 3) - one_in(f, 8);
  return one_in(f, 32) ? NULL : grid;
}

/* Memory that stays, for what is used later too. */
static void* scratch(fuzz_t* f) {
  return one_in(f, 32) ? NULL : f->scratch + 64 * random_below(f, 64);
}

static void* sized(fuzz_t* f, size_t right, bool has_size) {
  static const uint32_t sizes[] = {0, 8, 16, 24, 13, 4096, 5000};
  uint32_t size = (uint32_t)right;
  if (has_size && one_in(f, 8))
    size = one_in(f, 2) ? sizes[random_below(f, 7)] : size + 8 - 16 * random_below(f, 2);
  unsigned char* memory = block(f, ELEMENTS * (size > right ? size : right));
  if (has_size)
    memcpy(memory, &size, sizeof size);
  return memory;
}

static void* out_struct(fuzz_t* f, size_t right) {
  return one_in(f, 32) ? NULL : sized(f, right, true);
}

static void* make_any(fuzz_t* f, size_t right, bool has_size) {
  return one_in(f, 4) ? NULL : sized(f, right, has_size);
}

/* ---- Handles ---- */

static table_t* table_of(table_t* tables, char type) {
  return &tables[type - 'a'];
}

static void* any_of(fuzz_t* f, const table_t* table) {
  return table->count != 0 ? table->handles[random_below(f, (uint32_t)table->count)] : NULL;
}

static void put(table_t* table, void* handle) {
  if (table->count == MAX_HANDLES)
    memmove(table->handles, table->handles + 1, (size_t)--table->count * sizeof(void*));
  table->handles[table->count++] = handle;
}

static bool has(const table_t* table, const void* handle) {
  for (int i = 0; i < table->count; ++i) {
    if (table->handles[i] == handle)
      return true;
  }
  return false;
}

static bool drop(fuzz_t* f, char type, void* handle) {
  table_t* table = table_of(f->owned, type);
  for (int i = 0; i < table->count; ++i) {
    if (table->handles[i] != handle)
      continue;
    table->handles[i] = table->handles[--table->count];
    put(table_of(f->stale, type), handle);
    return true;
  }
  return false;
}

static void* pick(fuzz_t* f, char type) {
  if (one_in(f, 24))
    return NULL;
  if (f->world->mischief && one_in(f, 24)) {
    mischief = true;
    const char other = "idpbsemlckuwagtx"[random_below(f, 16)];
    return one_in(f, 2) ? any_of(f, table_of(f->stale, type))
                        : any_of(f, table_of(f->owned, other));
  }
  table_t* lent = table_of(f->lent, type);
  table_t* owned = table_of(f->owned, type);
  const uint32_t count = (uint32_t)(lent->count + owned->count);
  if (count == 0)
    return NULL;
  const int at = (int)random_below(f, count);
  return at < lent->count ? lent->handles[at] : owned->handles[at - lent->count];
}

/* For a release: a reference that we have. */
static void* take(fuzz_t* f, char type) {
  if (f->world->mischief && one_in(f, 16)) {
    const bool lent = (type == 'd' || type == 'p') && one_in(f, 2);
    void* handle = any_of(f, table_of(lent ? f->lent : f->stale, type));
    mischief = true;
    /* What we have a reference of is no mischief, and would cost us that; instances and packs are held for the whole round. */
    const bool ours = has(table_of(f->owned, type), handle) ||
                      (type == 'm' && has(&f->semaphores, handle)) ||
                      (type != 'd' && type != 'p' && has(table_of(f->lent, type), handle));
    return ours ? NULL : handle;
  }
  void* handle = any_of(f, table_of(f->owned, type));
  if (handle != NULL)
    drop(f, type, handle);
  return handle;
}

static void* const* random_handles(fuzz_t* f, char type) {
  void** handles = block(f, ELEMENTS * sizeof *handles);
  for (uint32_t i = 0; i < ELEMENTS; ++i)
    handles[i] = pick(f, type);
  return one_in(f, 8) ? NULL : handles;
}

static void release(char type, void* handle) {
  switch (type) {
#define RELEASE(letter, name)                                                                      \
  case letter:                                                                                     \
    accrt_##name##_release(handle);                                                                \
    break
    RELEASE('i', instance);
    RELEASE('d', device);
    RELEASE('p', pool);
    RELEASE('b', buffer);
    RELEASE('s', stream);
    RELEASE('e', event);
    RELEASE('m', semaphore);
    RELEASE('l', launch);
    RELEASE('c', commands);
    RELEASE('k', kernel_pack);
    RELEASE('u', bundle);
    RELEASE('w', weights);
    RELEASE('a', adapter);
    RELEASE('g', program);
    RELEASE('t', session);
    RELEASE('x', call);
  default:
    break;
  }
}

static void end_semaphore(void* semaphore) {
  (void)accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, "the fuzzer ends all waits");
  accrt_semaphore_release(semaphore);
}

/* Every wait of ours ends. */
static void settle(fuzz_t* f) {
  while (f->semaphores.count != 0)
    end_semaphore(f->semaphores.handles[--f->semaphores.count]);
}

static void keep_owned(fuzz_t* f, char type, void* handle) {
  table_t* table = table_of(f->owned, type);
  if (table->count == MAX_HANDLES) {
    void* old = table->handles[random_below(f, MAX_HANDLES)];
    drop(f, type, old);
    release(type, old);
  }
  table->handles[table->count++] = handle;
}

static void given(fuzz_t* f, accrt_status_t status, char type, void* handle, bool owned) {
  if (status != ACCRT_OK) {
    if (handle != NULL && handle != (void*)f)
      stop("a handle beside a failure", accrt_status_name(status));
    return;
  }
  if (handle == (void*)f)
    stop("success without a handle", "");
  if (handle == NULL || !owned)
    return;
  if (was_told)
    return; /* a _retain of what it may not have: it gives nothing */
  ++f->made;
  if (type == 'm') {
    if (f->semaphores.count == MAX_HANDLES) {
      end_semaphore(f->semaphores.handles[0]);
      memmove(f->semaphores.handles, f->semaphores.handles + 1,
              (size_t)--f->semaphores.count * sizeof(void*));
    }
    f->semaphores.handles[f->semaphores.count++] = accrt_semaphore_retain(handle);
  }
  keep_owned(f, type, handle);
}

static void note_status(fuzz_t* f, accrt_status_t status) {
  (void)f;
  if (status == ACCRT_OK) {
    atomic_fetch_add_explicit(&successes, 1, memory_order_relaxed);
    return;
  }
  atomic_fetch_add_explicit(&refusals, 1, memory_order_relaxed);
  if (is_fault(status))
    stop(accrt_status_name(status), last_message());
}

/* ---- Structs with something in them ---- */

static bool at_random(fuzz_t* f, accrt_buffer_t** buffer, void** pointer, uint64_t* offset_bytes) {
  const bool plain = one_in(f, 2);
  *buffer = plain ? NULL : pick(f, 'b');
  *pointer = *buffer == NULL ? scratch(f) : NULL;
  *offset_bytes = *buffer != NULL && one_in(f, 8) ? random_number(f) : 8 * random_below(f, 64);
  return *buffer == NULL;
}

static accrt_place_t* make_place(fuzz_t* f) {
  accrt_place_t* place = block(f, sizeof *place);
  (void)at_random(f, &place->buffer, &place->pointer, &place->offset_bytes);
  return one_in(f, 32) ? NULL : place;
}

static uint32_t random_binding(fuzz_t* f) {
  return one_in(f, 2) ? ACCRT_BINDING_NONE : random_below(f, 4);
}

static accrt_binding_place_t* make_binding_place(fuzz_t* f) {
  accrt_binding_place_t* place = block(f, sizeof *place);
  place->binding = random_binding(f);
  (void)at_random(f, &place->place.buffer, &place->place.pointer, &place->place.offset_bytes);
  if (place->binding != ACCRT_BINDING_NONE)
    place->place.offset_bytes = 8 * random_below(f, 64);
  return one_in(f, 32) ? NULL : place;
}

static accrt_binding_t* make_binding(fuzz_t* f) {
  accrt_binding_t* bindings = block(f, ELEMENTS * sizeof *bindings);
  for (uint32_t i = 0; i < ELEMENTS; ++i) {
    const bool plain =
        at_random(f, &bindings[i].buffer, &bindings[i].pointer, &bindings[i].offset_bytes);
    bindings[i].size_bytes = plain ? 8192 : one_in(f, 2) ? UINT64_MAX : random_number(f);
  }
  return one_in(f, 32) ? NULL : bindings;
}

static accrt_kernel_argument_t* make_kernel_argument(fuzz_t* f) {
  accrt_kernel_argument_t* arguments = block(f, ELEMENTS * sizeof *arguments);
  for (uint32_t i = 0; i < ELEMENTS; ++i) {
    accrt_kernel_argument_t* argument = &arguments[i];
    argument->kind = one_in(f, 4) ? (uint32_t)random_number(f) : i == 0 ? 1 : 3;
    argument->binding = random_binding(f);
    const bool plain = at_random(f, &argument->buffer, &argument->pointer, &argument->offset_bytes);
    argument->size_bytes = plain ? 8192 : one_in(f, 2) ? UINT64_MAX : random_number(f);
    argument->value = random_number(f);
  }
  return one_in(f, 32) ? NULL : arguments;
}

static accrt_tensor_t* make_tensor(fuzz_t* f) {
  accrt_tensor_t* tensor = block(f, sizeof *tensor);
  (void)at_random(f, &tensor->buffer, &tensor->data, &tensor->offset_bytes);
  tensor->dtype = one_in(f, 2) ? ACCRT_DTYPE_F32 : (accrt_dtype_t)random_below(f, 24);
  tensor->rank = one_in(f, 16) ? (uint32_t)random_number(f) : random_below(f, 4);
  int64_t* shape = block(f, 64 * sizeof *shape);
  for (int i = 0; i < 64; ++i)
    shape[i] = 1 + random_below(f, 4);
  tensor->shape = shape;
  return one_in(f, 16) ? NULL : tensor;
}

static accrt_weight_t* make_weight(fuzz_t* f) {
  accrt_weight_t* weights = block(f, ELEMENTS * sizeof *weights);
  for (uint32_t i = 0; i < ELEMENTS; ++i) {
    const accrt_tensor_t* tensor = make_tensor(f);
    weights[i].name = random_text(f);
    if (tensor != NULL)
      weights[i].tensor = *tensor;
  }
  return weights;
}

static accrt_timepoint_t* make_timepoint(fuzz_t* f) {
  accrt_timepoint_t* points = block(f, ELEMENTS * sizeof *points);
  for (uint32_t i = 0; i < ELEMENTS; ++i) {
    points[i].semaphore = pick(f, 'm');
    points[i].value = random_number(f);
  }
  return one_in(f, 32) ? NULL : points;
}

static accrt_buffer_options_t* make_buffer_options(fuzz_t* f) {
  accrt_buffer_options_t* options = sized(f, sizeof *options, true);
  options->stream = one_in(f, 2) ? pick(f, 's') : NULL;
  options->flags = one_in(f, 8) ? random_below(f, 8) : 0;
  options->alignment_bytes = one_in(f, 4) ? random_number(f) : 0;
  return one_in(f, 2) ? NULL : options;
}

static accrt_session_options_t* make_session_options(fuzz_t* f) {
  accrt_session_options_t* options = sized(f, sizeof *options, true);
  if (options->struct_size >= sizeof *options || options->struct_size == 0) {
    options->stream = one_in(f, 2) ? pick(f, 's') : NULL;
    options->pool = one_in(f, 2) ? pick(f, 'p') : NULL;
  }
  return one_in(f, 4) ? NULL : options;
}

static accrt_program_options_t* make_program_options(fuzz_t* f) {
  accrt_program_options_t* options = sized(f, sizeof *options, true);
  options->flags = random_below(f, 2);
  if (one_in(f, 4)) {
    options->weights = (accrt_weights_t* const*)random_handles(f, 'w');
    options->weight_count = random_below(f, 3);
  }
  return one_in(f, 2) ? NULL : options;
}

static accrt_copy_region_t* make_copy_region(fuzz_t* f) {
  accrt_copy_region_t* region = block(f, sizeof *region);
  for (int i = 0; i < 3; ++i)
    region->extent[i] = random_below(f, 9);
  for (int i = 0; i < 2; ++i) {
    region->source_stride_bytes[i] = 8 * random_below(f, 32);
    region->target_stride_bytes[i] = 8 * random_below(f, 32);
  }
  return one_in(f, 32) ? NULL : region;
}

static accrt_predecessors_t* make_predecessors(fuzz_t* f) {
  accrt_predecessors_t* after = block(f, sizeof *after);
  uint32_t* commands = block(f, ELEMENTS * sizeof *commands);
  for (uint32_t i = 0; i < ELEMENTS; ++i)
    commands[i] = (uint32_t)random_number(f);
  after->commands = one_in(f, 8) ? NULL : commands;
  after->count = one_in(f, 2) ? ACCRT_AFTER_PREVIOUS : random_below(f, 5);
  after->reserved = one_in(f, 32);
  return one_in(f, 2) ? NULL : after;
}

static accrt_key_t* make_key(fuzz_t* f) {
  accrt_key_t* key = block(f, sizeof *key);
  memset(key, (int)random_below(f, 4), sizeof *key);
  return one_in(f, 16) ? NULL : key;
}

static void note_nothing(void* user, accrt_status_t status) {
  (void)user;
  (void)status;
}

#endif /* ACCRT_TESTS_API_FUZZ_API_WORLD_H_ */
