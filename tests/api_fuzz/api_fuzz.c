/* tests/api_fuzz/api_fuzz.c - random calls of every function of the API, over two instances and four devices.
 *
 * What is called, and with which arguments, follows from the seed alone. Arguments are right as far as C asks it (memory is there, handles
 * are owned, nothing waits for ever); beyond that anything goes: handles of the other instance, NULL, numbers of any size, structs of any
 * struct_size. Every second round validates handles, and then released and foreign handles are given, too. After each round nothing
 * may be left: no allocation, no handle that the library thinks we have.
 *
 *   api_fuzz [--calls N] [--seed N] [--threads N] [--round N]: from that round on
 */
#include "tests/api_fuzz/api_world.h"

/* ---- Calls that need a hand ---- */

static void call_accrt_instance_create(fuzz_t* f) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_instance_t* instance = (void*)f;
  const accrt_option_t wrong[] = {{"validate.handles", "yes"}, {"host.threads", NULL}};
  options.flags = (uint32_t)random_number(f) | 4; /* none is made: refused, whatever else */
  options.options = wrong;
  options.option_count = random_below(f, 3);
  options.option_size_bytes = random_element_size(f, sizeof wrong[0]);
  const accrt_status_t status = accrt_instance_create(&options, one_in(f, 8) ? NULL : &instance);
  note_status(f, status);
  if (status == ACCRT_OK)
    stop("a flag that nobody knows was taken", "");
}

static const void* no_driver(uint32_t max_abi) {
  (void)max_abi;
  return NULL;
}

static void call_accrt_instance_register_driver(fuzz_t* f) {
  note_status(f, accrt_instance_register_driver(pick(f, 'i'), one_in(f, 2) ? NULL : no_driver));
}

static accrt_status_t read_bundle(void* self, uint64_t offset_bytes, void* target,
                                  uint64_t size_bytes) {
  (void)self;
  if (offset_bytes > bundle_size || size_bytes > bundle_size - offset_bytes)
    return ACCRT_ERROR_OUT_OF_RANGE;
  memcpy(target, (const char*)bundle_bytes + offset_bytes, (size_t)size_bytes);
  return ACCRT_OK;
}

static accrt_reader_t* make_reader(fuzz_t* f) {
  accrt_reader_t* reader = block(f, sizeof *reader);
  reader->read = one_in(f, 16) ? NULL : read_bundle;
  reader->size_bytes = one_in(f, 8) ? bundle_size / 2 : bundle_size;
  return one_in(f, 16) ? NULL : reader;
}

static void call_accrt_bundle_open_callbacks(fuzz_t* f) {
  accrt_bundle_t* bundle = (void*)f;
  const accrt_status_t status = accrt_bundle_open_callbacks(
      pick(f, 'i'), make_reader(f), make_any(f, sizeof(accrt_bundle_options_t), true), &bundle);
  note_status(f, status);
  given(f, status, 'u', bundle, true);
}

static void call_accrt_bundle_check(fuzz_t* f) {
  note_status(f,
              accrt_bundle_check(NULL, make_reader(f), out_struct(f, sizeof(accrt_bundle_info_t))));
}

static void call_accrt_weights_open_callbacks(fuzz_t* f) {
  accrt_weights_t* weights = (void*)f;
  const accrt_status_t status = accrt_weights_open_callbacks(
      pick(f, 'i'), make_reader(f), make_any(f, sizeof(accrt_weights_options_t), true), &weights);
  note_status(f, status);
  given(f, status, 'w', weights, true);
}

static void call_accrt_bundle_open_memory(fuzz_t* f) {
  accrt_bundle_t* bundle = (void*)f;
  const accrt_status_t status = accrt_bundle_open_memory(
      pick(f, 'i'), one_in(f, 16) ? NULL : bundle_bytes,
      one_in(f, 8) ? random_below(f, (uint32_t)bundle_size) : bundle_size, NULL, NULL,
      make_any(f, sizeof(accrt_bundle_options_t), true), &bundle);
  note_status(f, status);
  given(f, status, 'u', bundle, true);
}

static void call_accrt_weights_open_memory(fuzz_t* f) {
  accrt_weights_t* weights = (void*)f;
  const accrt_status_t status = accrt_weights_open_memory(
      pick(f, 'i'), one_in(f, 16) ? NULL : bundle_bytes,
      one_in(f, 8) ? random_below(f, (uint32_t)bundle_size) : bundle_size, NULL, NULL,
      make_any(f, sizeof(accrt_weights_options_t), true), &weights);
  note_status(f, status);
  given(f, status, 'w', weights, true);
}

static int32_t add_one(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

typedef struct parameters {
  uint64_t memory;
  uint32_t count;
  uint32_t padding;
} parameters_t;
static const accrt_kernel_param_t parameters[] = {
    ACCRT_KERNEL_PARAM(parameters_t, memory, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(parameters_t, count, SCALAR, NONE)};
static const accrt_kernel_def_t kernels[] = {
    {.struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = "none", .entry = add_one},
    {.struct_size = (uint32_t)sizeof(accrt_kernel_def_t),
     .name = "k",
     .entry = add_one,
     .params = parameters,
     .param_count = 2,
     .params_size_bytes = (uint32_t)sizeof(parameters_t)}};
static const accrt_kernel_pack_table_t pack_table = {
    .struct_size = (uint32_t)sizeof(accrt_kernel_pack_table_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "fuzz",
    .kernels = kernels,
    .kernel_count = 2,
    .kernel_size_bytes = (uint32_t)sizeof kernels[0]};
static const accrt_kernel_pack_table_t* query_pack(uint32_t max_abi,
                                                   const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &pack_table;
}

static void call_accrt_kernel_pack_register(fuzz_t* f) {
  accrt_kernel_pack_t* pack = (void*)f;
  const accrt_status_t status =
      accrt_kernel_pack_register(pick(f, 'i'), one_in(f, 8) ? NULL : query_pack, &pack);
  note_status(f, status);
  given(f, status, 'k', pack, true);
}

static void call_accrt_kernel_pack_load(fuzz_t* f) {
  accrt_kernel_pack_t* pack = (void*)f;
  unsigned char* image = block(f, 4096);
  memcpy(image, "\177ELF", 4);
  image[4 + random_below(f, 60)] = (unsigned char)next(f);
  const accrt_status_t status = accrt_kernel_pack_load(
      pick(f, 'i'), one_in(f, 8) ? NULL : image, random_below(f, 4096), random_text(f), &pack);
  note_status(f, status);
  given(f, status, 'k', pack, true);
}

static void call_accrt_kernel_module_load(fuzz_t* f) {
  accrt_kernel_pack_t* pack = (void*)f;
  const accrt_status_t status = accrt_kernel_module_load(
      pick(f, 'd'), make_any(f, sizeof(accrt_module_options_t), true), &pack);
  note_status(f, status);
  given(f, status, 'k', pack, true);
}

/* Out and in again: DLPack has no lengths that could be checked. */
static void call_accrt_dlpack_export(fuzz_t* f) {
  struct DLManagedTensorVersioned* managed = NULL;
  const accrt_status_t status =
      accrt_dlpack_export(make_tensor(f), random_below(f, 2), one_in(f, 16) ? NULL : &managed);
  note_status(f, status);
  if (status != ACCRT_OK)
    return;
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  uint32_t read_only;
  const accrt_status_t imported =
      accrt_dlpack_import(pick(f, 'd'), managed, &tensor, shape, strides, &read_only);
  note_status(f, imported);
  if (imported == ACCRT_OK) {
    given(f, imported, 'b', tensor.buffer, true);
    return;
  }
  struct {
    uint32_t version[2];
    void* context;
    void (*deleter)(void* self);
  } head;
  memcpy(&head, managed, sizeof head);
  head.deleter(managed);
}

static void call_accrt_dlpack_import(fuzz_t* f) {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  uint32_t read_only;
  note_status(f, accrt_dlpack_import(pick(f, 'd'), NULL, one_in(f, 2) ? NULL : &tensor, shape,
                                     strides, &read_only));
}

static void call_accrt_dlpack_export_unversioned(fuzz_t* f) {
  struct DLManagedTensor* managed = NULL;
  const accrt_status_t status =
      accrt_dlpack_export_unversioned(make_tensor(f), one_in(f, 16) ? NULL : &managed);
  note_status(f, status);
  if (status != ACCRT_OK)
    return;
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  const accrt_status_t imported =
      accrt_dlpack_import_unversioned(pick(f, 'd'), managed, &tensor, shape, strides);
  note_status(f, imported);
  if (imported == ACCRT_OK) {
    given(f, imported, 'b', tensor.buffer, true);
    return;
  }
  struct {
    unsigned char tensor[48];
    void* context;
    void (*deleter)(void* self);
  } head;
  memcpy(&head, managed, sizeof head);
  head.deleter(managed);
}

static void call_accrt_dlpack_import_unversioned(fuzz_t* f) {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  note_status(f, accrt_dlpack_import_unversioned(pick(f, 'd'), NULL, one_in(f, 2) ? NULL : &tensor,
                                                 shape, strides));
}

static void call_accrt_semaphore_export_eventfd(fuzz_t* f) {
  int32_t fd = -7;
  const accrt_status_t status =
      accrt_semaphore_export_eventfd(pick(f, 'm'), random_number(f), one_in(f, 16) ? NULL : &fd);
  note_status(f, status);
  if (status == ACCRT_OK)
    (void)close(fd);
  else if (fd != -7 && fd != -1)
    stop("a descriptor beside a failure", "");
}

static void call_accrt_buffer_export(fuzz_t* f) {
  accrt_memory_handle_t handle = ACCRT_MEMORY_HANDLE_INIT;
  handle.fd = -1;
  accrt_buffer_t* imported = NULL;
  const accrt_status_t status =
      accrt_buffer_export(pick(f, 'b'), random_below(f, 4), one_in(f, 16) ? NULL : &handle);
  note_status(f, status);
  if (status != ACCRT_OK)
    return;
  const accrt_status_t opened = accrt_buffer_import_handle(pick(f, 'd'), &handle, &imported);
  note_status(f, opened);
  given(f, opened, 'b', imported, true);
  if (handle.fd >= 0)
    (void)close(handle.fd);
}

static void call_accrt_buffer_import_handle(fuzz_t* f) {
  accrt_memory_handle_t* handle = sized(f, sizeof *handle, true);
  accrt_buffer_t* buffer = (void*)f;
  handle->kind = random_below(f, 4);
  handle->fd = -1;
  handle->size_bytes = random_number(f);
  const accrt_status_t status =
      accrt_buffer_import_handle(pick(f, 'd'), one_in(f, 8) ? NULL : handle, &buffer);
  note_status(f, status);
  given(f, status, 'b', buffer, true);
}

static void call_accrt_get_api(fuzz_t* f) {
  accrt_api_t table;
  const accrt_status_t status =
      accrt_get_api(one_in(f, 2) ? ACCRT_VERSION : (uint32_t)next(f), one_in(f, 8) ? NULL : &table,
                    one_in(f, 2) ? sizeof table : random_below(f, sizeof table));
  note_status(f, status);
}

static void call_accrt_key_write(fuzz_t* f) {
  note_status(f, accrt_key_write(pick(f, 'i'), "/nonexistent/key", (uint32_t)random_number(f),
                                 make_key(f)));
}

static void call_accrt_bundle_sign(fuzz_t* f) {
  note_status(f, accrt_bundle_sign(pick(f, 'u'), make_any(f, sizeof(accrt_sign_options_t), true),
                                   one_in(f, 4) ? NULL : "/nonexistent/a.accx"));
}

static void call_accrt_bundle_encrypt(fuzz_t* f) {
  note_status(f, accrt_bundle_encrypt(pick(f, 'u'), make_key(f), "/nonexistent/a.accx"));
}

static void call_accrt_bundle_decrypt(fuzz_t* f) {
  note_status(f, accrt_bundle_decrypt(pick(f, 'u'), "/nonexistent/a.accx"));
}

static void call_accrt_caps_parse(fuzz_t* f) {
  static const char text[] = "{\"library_version\": \"0.4.0\", \"max_rank\": 8}";
  note_status(f, accrt_caps_parse(one_in(f, 8) ? NULL : text, random_below(f, sizeof text), NULL,
                                  out_struct(f, sizeof(accrt_caps_t))));
}

static accrt_layout_tensor_t* make_layout_tensor(fuzz_t* f) {
  accrt_layout_tensor_t* tensor = sized(f, sizeof *tensor, true);
  int64_t* shape = block(f, 8 * sizeof *shape);
  for (int i = 0; i < 8; ++i)
    shape[i] = random_below(f, 3);
  tensor->layout = random_below(f, 24);
  tensor->dtype = (accrt_dtype_t)random_below(f, 24);
  tensor->rank = random_below(f, 3);
  tensor->shape = one_in(f, 8) ? NULL : shape;
  return one_in(f, 16) ? NULL : tensor;
}

static void call_accrt_layout_component_size(fuzz_t* f) {
  note_status(f, accrt_layout_component_size(make_layout_tensor(f), (uint32_t)random_number(f),
                                             scratch(f)));
}

static void call_accrt_layout_dequantize(fuzz_t* f) {
  note_status(f, accrt_layout_dequantize(make_layout_tensor(f), random_number(f), 1, scratch(f)));
}

static void call_accrt_layout_quantize(fuzz_t* f) {
  note_status(
      f, accrt_layout_quantize(make_layout_tensor(f), scratch(f), random_number(f), 1, NULL, NULL));
}

#include "tests/api_fuzz/calls.inc"

#define CALL_COUNT (sizeof calls / sizeof calls[0])
static atomic_ullong counts[CALL_COUNT];

/* ---- Rounds ---- */

static void* count_allocate(void* self, size_t size_bytes, size_t alignment) {
  void* memory = NULL;
  if (posix_memalign(&memory, alignment, size_bytes) != 0)
    return NULL;
  atomic_fetch_add_explicit(&((world_t*)self)->allocations, 1, memory_order_relaxed);
  return memory;
}

static void count_free(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)size_bytes;
  (void)alignment;
  atomic_fetch_sub_explicit(&((world_t*)self)->allocations, 1, memory_order_relaxed);
  free(pointer);
}

static void write_log(void* self, uint32_t level, const char* component, const char* line) {
  (void)level;
  (void)self;
  if (strcmp(component, "handles") != 0)
    return;
  atomic_fetch_add_explicit(&told, 1, memory_order_relaxed);
  if (!mischief)
    stop("told without a reason", line);
  was_told = true;
}

static void begin_world(world_t* world, uint64_t round, uint32_t thread_count) {
  static const char* const threads[] = {"1", "0", "2"};
  memset(world, 0, sizeof *world);
  world->validates = round % 2 == 1;
  world->mischief = world->validates && thread_count == 1;
  const accrt_allocator_t allocator = {world, count_allocate, count_free};
  const accrt_log_sink_t sink = {world, write_log, ACCRT_LOG_WARNING, 0};
  const accrt_option_t options[] = {{"host.devices", "2"},
                                    {"host.threads", threads[round % 3]},
                                    {"host.spin_us", "0"},
                                    {"validate.handles", world->validates ? "1" : "0"}};
  accrt_instance_options_t all = ACCRT_INSTANCE_OPTIONS_INIT;
  all.allocator = &allocator;
  all.log_sink = &sink;
  all.options = options;
  all.option_count = 4;
  all.option_size_bytes = (uint32_t)sizeof options[0];
  all.host_code_policy = ACCRT_HOST_CODE_ALL;
  for (int i = 0; i < 2; ++i) {
    if (accrt_instance_create(&all, &world->instances[i]) != ACCRT_OK ||
        accrt_instance_device_by_name(world->instances[i], "host:0", &world->devices[2 * i]) !=
            ACCRT_OK ||
        accrt_instance_device_by_name(world->instances[i], "host:1", &world->devices[2 * i + 1]) !=
            ACCRT_OK ||
        accrt_kernel_pack_register(world->instances[i], query_pack, &world->packs[i]) != ACCRT_OK)
      stop("no instance", last_message());
  }
}

static void end_world(world_t* world) {
  mischief = false;
  for (int i = 0; i < 2; ++i) {
    accrt_kernel_pack_release(world->packs[i]);
    accrt_instance_release(world->instances[i]);
  }
  /* A thread of the runtime may have had the last reference. */
  for (int i = 0; i < 10000 && atomic_load(&world->allocations) != 0; ++i)
    (void)usleep(1000);
  const long left = atomic_load(&world->allocations);
  char text[32];
  (void)snprintf(text, sizeof text, "%ld", left);
  if (left != 0)
    stop("allocations left", text);
}

static void begin_thread(fuzz_t* f, world_t* world, uint64_t seed) {
  memset(f, 0, sizeof *f);
  f->world = world;
  f->random = seed;
  f->scratch = calloc(1, SCRATCH_BYTES);
  for (int i = 0; i < 4; ++i)
    put(table_of(f->lent, 'd'), world->devices[i]);
  for (int i = 0; i < 2; ++i) {
    put(table_of(f->lent, 'i'), world->instances[i]);
    put(table_of(f->lent, 'k'), world->packs[i]);
    for (uint32_t k = 0; k < 2; ++k) {
      accrt_kernel_t* kernel = NULL;
      (void)accrt_kernel_pack_kernel(world->packs[i], k, &kernel);
      put(table_of(f->lent, 'n'), kernel);
    }
  }
  for (int i = 0; i < 4; ++i) {
    accrt_pool_t* pool = NULL;
    (void)accrt_device_pool(world->devices[i], 0, &pool);
    put(table_of(f->lent, 'p'), pool);
  }
}

static void free_blocks(fuzz_t* f) {
  while (f->block_count != 0)
    free(f->blocks[--f->block_count]);
}

/* Devices without threads work only while somebody waits: what is in flight ends here. Else an imported buffer whose owner is a buffer
 * of the same instance would wait for ever. */
static void drain(const world_t* world) {
  for (int i = 0; i < 2; ++i) {
    accrt_semaphore_t* never = NULL;
    if (accrt_semaphore_create(world->instances[i], 0, &never) != ACCRT_OK)
      stop("no semaphore", last_message());
    if (accrt_semaphore_wait(never, 1, 2000000, ACCRT_WAIT_BLOCK) != ACCRT_ERROR_TIMEOUT)
      stop("a semaphore that nobody signals was reached", last_message());
    accrt_semaphore_release(never);
  }
}

static void end_thread(fuzz_t* f) {
  mischief = was_told = false;
  current = "the end of a round";
  settle(f);
  drain(f->world);
  for (char type = 'a'; type <= 'z'; ++type) {
    table_t* table = table_of(f->owned, type);
    while (table->count != 0)
      release(type, table->handles[--table->count]);
  }
  free_blocks(f);
}

typedef struct job {
  fuzz_t fuzz;
  uint64_t calls;
} job_t;

static void* run_thread(void* user) {
  job_t* job = user;
  fuzz_t* f = &job->fuzz;
  for (uint64_t i = 0; i < job->calls; ++i) {
    const uint32_t at = random_below(f, CALL_COUNT);
    mischief = was_told = false;
    current = calls[at].name;
    calls[at].call(f);
    atomic_fetch_add_explicit(&counts[at], 1, memory_order_relaxed);
    free_blocks(f);
  }
  end_thread(f);
  return NULL;
}

static void run_round(uint64_t seed, uint64_t round, uint64_t calls_wanted, uint32_t threads) {
  world_t world;
  round_now = round;
  begin_world(&world, round, threads);
  job_t* jobs = calloc(threads, sizeof *jobs);
  pthread_t* handles = calloc(threads, sizeof *handles);
  if (jobs == NULL || handles == NULL)
    stop("no memory", "");
  for (uint32_t i = 0; i < threads; ++i) {
    begin_thread(&jobs[i].fuzz, &world, seed * 1000003u + round * 64u + i);
    jobs[i].calls = calls_wanted / threads;
  }
  for (uint32_t i = 1; i < threads; ++i) {
    if (pthread_create(&handles[i], NULL, run_thread, &jobs[i]) != 0)
      stop("no thread", "");
  }
  (void)run_thread(&jobs[0]);
  for (uint32_t i = 1; i < threads; ++i)
    (void)pthread_join(handles[i], NULL);
  end_world(&world);
  for (uint32_t i = 0; i < threads; ++i)
    free(jobs[i].fuzz.scratch);
  free(jobs);
  free(handles);
}

static bool read_file(void) {
  bundle_path = ACCRT_TEST_DATA "/program.accx";
  bundle_fd = open(bundle_path, O_RDONLY | O_CLOEXEC);
  const off_t size = bundle_fd >= 0 ? lseek(bundle_fd, 0, SEEK_END) : -1;
  bundle_bytes = size > 0 ? aligned_alloc(4096, ((size_t)size + 4095) & ~(size_t)4095) : NULL;
  bundle_size = size > 0 ? (uint64_t)size : 0;
  return bundle_bytes != NULL && pread(bundle_fd, bundle_bytes, (size_t)size, 0) == size;
}

int main(int argc, char** argv) {
  uint64_t wanted = 200000, seed = 1;
  uint32_t threads = 1;
  uint64_t first = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = strtoull(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--calls") == 0)
      wanted = value;
    else if (strcmp(argv[i], "--seed") == 0)
      seed = value;
    else if (strcmp(argv[i], "--round") == 0)
      first = value;
    else if (strcmp(argv[i], "--threads") == 0 && value >= 1 && value <= 16)
      threads = (uint32_t)value;
  }
  if (!read_file()) {
    fprintf(stderr, "api_fuzz: %s cannot be read\n", bundle_path);
    return 1;
  }
  printf("seed %" PRIu64 ", %" PRIu64 " calls of %zu functions, %" PRIu32 " threads\n", seed,
         wanted, CALL_COUNT, threads);
  fflush(stdout);
  for (uint64_t done = 0, round = first; done < wanted; done += CALLS_PER_ROUND, ++round) {
    run_round(seed, round, CALLS_PER_ROUND, threads);
    if (round % 500 == 499) {
      printf("%" PRIu64 " calls\n", done + CALLS_PER_ROUND);
      fflush(stdout);
    }
  }
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < CALL_COUNT; ++i) {
    if (counts[i] < least)
      least = counts[i];
  }
  printf("each function at least %" PRIu64 " times; %llu succeeded, %llu were refused; "
         "%llu faults of handles told\n",
         least, (unsigned long long)successes, (unsigned long long)refusals,
         (unsigned long long)told);
  (void)close(bundle_fd);
  free(bundle_bytes);
  return least != 0 ? 0 : 1;
}
