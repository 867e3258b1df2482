/* tests/cts/direct_bench.c - the environment that a driver is given by direct.c, and the work that its
 * tests submit.
 *
 * It may include public headers only, and use no instance.
 */
#define _GNU_SOURCE
#include "direct.h"

#include <dlfcn.h>

_Thread_local accrt_error_t direct_failure;
direct_seen_t direct_seen;

/* ---- Environment ---- */

/* The first thing that a driver did wrong in a call of the environment or of a completion. */
static struct {
  pthread_mutex_t lock;
  char what[160];
} misuse = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void demand(bool is_right, const char* what) {
  if (is_right)
    return;
  pthread_mutex_lock(&misuse.lock);
  if (misuse.what[0] == '\0')
    snprintf(misuse.what, sizeof misuse.what, "%s", what);
  pthread_mutex_unlock(&misuse.lock);
}

/* One line of printable text that is not empty. */
static bool is_a_line(const char* text, size_t capacity_bytes) {
  const size_t length = strnlen(text, capacity_bytes);
  bool is_right = length != 0 && length < capacity_bytes;
  for (size_t i = 0; i < length; ++i)
    is_right &= (unsigned char)text[i] >= ' ' && text[i] != 127;
  return is_right;
}

static _Thread_local bool is_called_back;
/* A driver holds no lock now: others of its functions may be called. */
static void call_back(direct_t* bench) {
  void (*const function)(direct_t*) = atomic_load(&bench->on_call);
  if (function == NULL || is_called_back)
    return;
  is_called_back = true;
  function(bench);
  is_called_back = false;
}

/* In front of each allocation; behind it are as many bytes that nobody may write. */
#define GUARD_BYTES 32u
#define GUARD_BYTE 0xB7
typedef struct allocation {
  uint64_t size_bytes, alignment, magic;
  struct allocation* next; /* that was freed */
} allocation_t;
#define ALLOCATED UINT64_C(0xA110CA7ED)

static void* counted_allocate(void* self, size_t size_bytes, size_t alignment) {
  direct_t* bench = self;
  demand(alignment >= 8 && (alignment & (alignment - 1)) == 0,
         "an alignment that is no power of two of at least 8");
  call_back(bench);
  if (atomic_load(&bench->allowed) != LONG_MAX && atomic_fetch_sub(&bench->allowed, 1) <= 0)
    return NULL;
  const size_t front = alignment < GUARD_BYTES ? GUARD_BYTES : alignment;
  void* whole = NULL;
  if (size_bytes > (size_t)1 << 40 ||
      posix_memalign(&whole, front, front + size_bytes + GUARD_BYTES))
    return NULL;
  unsigned char* pointer = (unsigned char*)whole + front;
  const allocation_t allocation = {size_bytes, alignment, ALLOCATED, NULL};
  memcpy(pointer - sizeof allocation, &allocation, sizeof allocation);
  atomic_fetch_add(&bench->live, 1);
  atomic_fetch_add(&bench->allocations, 1);
  memset(pointer, 0xA1, size_bytes); /* nobody said that it is zero */
  memset(pointer + size_bytes, GUARD_BYTE, GUARD_BYTES);
  return pointer;
}

/* What is freed stays for a while, so that writes to it are found. AddressSanitizer does it better. */
#define FREED_BYTE 0xDF
#define MOST_FREED_BYTES ((uint64_t)64 << 20)
static struct {
  pthread_mutex_t lock;
  allocation_t* first; /* each lies in front of its memory */
  uint64_t size_bytes;
} freed = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void release(allocation_t* allocation) {
  const size_t front = allocation->alignment < GUARD_BYTES ? GUARD_BYTES : allocation->alignment;
  free((unsigned char*)(allocation + 1) - front);
}

static void keep_freed(void* pointer, const allocation_t* allocation) {
  allocation_t* kept = (allocation_t*)pointer - 1;
  *kept = *allocation;
#if !defined(__SANITIZE_ADDRESS__)
  pthread_mutex_lock(&freed.lock);
  const bool has_room = freed.size_bytes + allocation->size_bytes < MOST_FREED_BYTES;
  if (has_room) {
    freed.size_bytes += allocation->size_bytes;
    kept->next = freed.first;
    freed.first = kept;
  }
  pthread_mutex_unlock(&freed.lock);
  if (has_room)
    return;
#endif
  release(kept);
}

static void check_freed(void) {
  pthread_mutex_lock(&freed.lock);
  allocation_t* kept = freed.first;
  freed.first = NULL;
  freed.size_bytes = 0;
  pthread_mutex_unlock(&freed.lock);
  bool is_untouched = true;
  while (kept != NULL) {
    allocation_t* next = kept->next;
    const unsigned char* bytes = (const unsigned char*)(kept + 1);
    for (uint64_t i = 0; i < kept->size_bytes; ++i)
      is_untouched &= bytes[i] == FREED_BYTE;
    release(kept);
    kept = next;
  }
  demand(is_untouched, "memory is written after it was deallocated");
}

static void counted_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  direct_t* bench = self;
  if (pointer == NULL) {
    demand(false, "deallocate of NULL");
    return;
  }
  call_back(bench);
  allocation_t allocation;
  memcpy(&allocation, (unsigned char*)pointer - sizeof allocation, sizeof allocation);
  const bool is_mine = allocation.magic == ALLOCATED;
  demand(is_mine, "deallocate of what was not allocated, or twice");
  if (!is_mine)
    return;
  demand(allocation.size_bytes == size_bytes && allocation.alignment == alignment,
         "deallocate with another size or alignment than allocate");
  unsigned char* const end = (unsigned char*)pointer + allocation.size_bytes;
  bool is_whole = true;
  for (size_t i = 0; i < GUARD_BYTES; ++i)
    is_whole &= end[i] == GUARD_BYTE;
  demand(is_whole, "bytes behind an allocation are written");
  memset(pointer, FREED_BYTE, allocation.size_bytes); /* who still uses it goes wrong */
  atomic_fetch_sub(&bench->live, 1);
  allocation.magic = 0;
  keep_freed(pointer, &allocation);
}

static const char* find_option(const accrt_driver_environment_t* environment, const char* key) {
  (void)environment;
  for (uint32_t i = 0; i < cts_settings.option_count; ++i) {
    if (strcmp(cts_settings.options[i].key, key) == 0)
      return cts_settings.options[i].value;
  }
  return NULL;
}

static void log_nothing(const accrt_driver_environment_t* environment, uint32_t level,
                        const char* line) {
  (void)environment;
  (void)level;
  (void)line;
}

void direct_forget_failure(void) {
  memset(&direct_failure, 0, sizeof direct_failure);
}

/* Of the static library: built-in drivers read the record that the library makes. */
extern accrt_status_t accrt_error_restore(const accrt_error_t* error) __attribute__((weak));

static accrt_status_t record(const accrt_driver_environment_t* environment, accrt_status_t status,
                             int32_t driver_code, const char* driver_name, const char* operation,
                             const char* message) {
  const direct_t* bench = environment->runtime;
  demand(environment == &bench->environment, "fail with another environment");
  demand(status != ACCRT_OK, "a failure that is none");
  demand(operation != NULL && is_a_line(operation, 256), "a failure without its operation");
  demand(message != NULL && is_a_line(message, 1024), "a failure without one line of message");
  demand(driver_name == NULL || is_a_line(driver_name, 128), "a code's name that is none");
  direct_forget_failure();
  direct_failure.struct_size = (uint32_t)sizeof direct_failure;
  direct_failure.status = status;
  direct_failure.driver_code = driver_code;
  snprintf(direct_failure.driver_name, sizeof direct_failure.driver_name, "%s",
           driver_name == NULL ? "" : driver_name);
  snprintf(direct_failure.operation, sizeof direct_failure.operation, "%s",
           operation == NULL ? "" : operation);
  snprintf(direct_failure.message, sizeof direct_failure.message, "%s",
           message == NULL ? "" : message);
  if (accrt_error_restore != NULL)
    (void)accrt_error_restore(&direct_failure);
  return status;
}

static void keep_trace(const accrt_driver_environment_t* environment,
                       const accrt_trace_event_t* event) {
  direct_t* bench = environment->runtime;
  demand(environment == &bench->environment, "trace with another environment");
  demand(event->name != NULL && is_a_line(event->name, 1024), "a trace without a name");
  demand(event->kind == ACCRT_TRACE_COMMAND, "a trace that is no command's");
  demand(event->begin_ns <= event->end_ns, "a trace that ends before it begins");
  call_back(bench);
  const uint32_t at = atomic_fetch_add(&bench->trace_count, 1);
  if (at >= DIRECT_MAX_TRACES)
    return;
  bench->traces[at].event = *event;
  bench->traces[at].name_length = event->name == NULL ? 0 : strlen(event->name);
  snprintf(bench->traces[at].name, sizeof bench->traces[at].name, "%s",
           event->name == NULL ? "(null)" : event->name);
}

/* ---- Set up ---- */

/* Those of the static library. */
extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi) __attribute__((weak));
extern const accrt_driver_table_t* accrt_driver_cuda_query(uint32_t max_abi) __attribute__((weak));

static void find_hooks(direct_t* bench) {
  void* symbol = dlsym(bench->library, CTS_HOOKS_SYMBOL);
  if (symbol == NULL)
    return;
  cts_hooks_fn_t function;
  memcpy(&function, &symbol, sizeof function);
  const cts_hooks_t* hooks = function();
  memcpy(&bench->hooks, hooks,
         hooks->struct_size < sizeof bench->hooks ? hooks->struct_size : sizeof bench->hooks);
}

static accrt_driver_query_fn_t find_query(direct_t* bench) {
  const char* path = cts_settings.driver;
  if (path != NULL && strcmp(path, "host") == 0)
    return accrt_driver_host_query;
  if (path != NULL && strcmp(path, "cuda") == 0)
    return accrt_driver_cuda_query;
#ifdef CTS_NULL_DRIVER
  if (path != NULL && strcmp(path, "null") == 0)
    path = CTS_NULL_DRIVER;
#endif
  if (path == NULL || strchr(path, '/') == NULL)
    return NULL;
  bench->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (bench->library == NULL) {
    print_error("%s\n", dlerror());
    return NULL;
  }
  void* symbol = dlsym(bench->library, ACCRT_DRIVER_SYMBOL);
  accrt_driver_query_fn_t query;
  memcpy(&query, &symbol, sizeof query);
  find_hooks(bench);
  return query;
}

static bool has_what_is_needed(const direct_t* bench, uint32_t needs) {
  const uint32_t flags = bench->info.flags;
  if ((needs & CTS_NEEDS_HOST_KERNELS) != 0 && (flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) == 0)
    return false;
  return (needs & CTS_NEEDS_HOST_MEMORY) == 0 || (flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
}

/* The number behind the device's name; a driver's name alone is its first device. */
static uint32_t device_index(void) {
  const char* colon = cts_settings.device == NULL ? NULL : strrchr(cts_settings.device, ':');
  return colon == NULL ? 0 : (uint32_t)strtoul(colon + 1, NULL, 10);
}

/* The kind whose memory the host reaches as well as the device. Drivers need not have PINNED
 * memory: host memory is imported then. False: the driver cannot do that either. */
static bool find_memory_kind(direct_t* bench) {
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  bench->memory_kind = ACCRT_MEMORY_DEVICE;
  if ((bench->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0)
    return true;
  bench->table->memory_info(bench->device, ACCRT_MEMORY_PINNED, &info);
  if (info.supported == 1)
    bench->memory_kind = ACCRT_MEMORY_PINNED;
  bench->imports = info.supported != 1;
  return !bench->imports || bench->table->memory_import != NULL;
}

static uint64_t begun_ns; /* the test's beginning */

bool direct_set_up(direct_t* bench, uint32_t needs) {
  atomic_init(&bench->allowed, LONG_MAX);
  atomic_init(&bench->number, DIRECT_FIRST_NUMBER);
  begun_ns = cts_now_ns();
  misuse.what[0] = '\0';
  bench->query = find_query(bench);
  if (bench->query == NULL)
    return false;
  bench->table = bench->query(ACCRT_DRIVER_ABI_VERSION);
  assert_non_null(bench->table);
  bench->allocator = (accrt_allocator_t){bench, counted_allocate, counted_deallocate};
  bench->environment =
      (accrt_driver_environment_t){.struct_size = (uint32_t)sizeof bench->environment,
                                   .abi_version = ACCRT_DRIVER_ABI_VERSION,
                                   .allocator = &bench->allocator,
                                   .runtime = bench,
                                   .option = find_option,
                                   .log = log_nothing,
                                   .fail = record,
                                   .trace = keep_trace,
                                   .tracing = (needs & CTS_NEEDS_TRACING) != 0};
  assert_int_equal(bench->table->open(&bench->environment, &bench->driver), ACCRT_OK);
  const uint32_t count = bench->table->device_count(bench->driver);
  if (count == 0)
    return false;
  bench->index = device_index();
  if (bench->index >= count)
    fail_msg("there is no device '%s': the driver has %" PRIu32, cts_settings.device, count);
  assert_int_equal(bench->table->device_open(bench->driver, bench->index, &bench->device),
                   ACCRT_OK);
  bench->info.struct_size = (uint32_t)sizeof bench->info;
  bench->table->device_info(bench->device, &bench->info);
  if (!has_what_is_needed(bench, needs))
    return false;
  if (!find_memory_kind(bench))
    return false;
  assert_int_equal(bench->table->queue_create(bench->device, 0, &bench->queue), ACCRT_OK);
  return true;
}

void direct_tear_down(direct_t* bench) {
  if (bench->queue != NULL)
    bench->table->queue_destroy(bench->queue);
  for (uint32_t i = 0; i < bench->memory_count; ++i) {
    if (bench->imports) {
      bench->table->memory_unimport(bench->device, &bench->memories[i].own);
      free(bench->memories[i].host);
    } else {
      bench->table->memory_free(bench->device, &bench->memories[i].own);
    }
  }
  if (bench->device != NULL)
    bench->table->device_close(bench->device);
  if (bench->driver != NULL)
    bench->table->close(bench->driver);
  assert_int_equal(atomic_load(&bench->live), 0);
  check_freed();
  assert_string_equal(misuse.what, "");
  if (bench->library != NULL)
    dlclose(bench->library);
}

/* ---- Work ---- */

memory_t direct_memory(direct_t* bench, uint64_t size_bytes) {
  assert_true(bench->memory_count < DIRECT_MAX_MEMORY);
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  bench->table->memory_info(bench->device, bench->memory_kind, &info);
  assert_int_equal(info.supported, 1);
  const uint64_t unit = info.granularity_bytes;
  const uint64_t whole_bytes = (size_bytes + unit - 1) / unit * unit;
  memory_t* memory = &bench->memories[bench->memory_count];
  if (bench->imports) {
    void* own = NULL;
    assert_int_equal(posix_memalign(&own, 4096, (size_t)whole_bytes), 0);
    assert_int_equal(bench->table->memory_import(bench->device, own, whole_bytes, &memory->own),
                     ACCRT_OK);
    memory->host = own;
  } else {
    assert_int_equal(
        bench->table->memory_allocate(bench->device, bench->memory_kind, whole_bytes, &memory->own),
        ACCRT_OK);
    memory->host = memory->own.host_pointer;
  }
  ++bench->memory_count;
  assert_non_null(memory->host);
  memset(memory->host, 0, (size_t)memory->own.size_bytes);
  return *memory;
}

accrt_driver_command_t direct_dispatch(direct_t* bench, const accrt_driver_kernel_t* kernel,
                                       const void* params, uint32_t params_size_bytes) {
  (void)bench;
  accrt_driver_command_t command;
  memset(&command, 0, sizeof command);
  command.opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  command.as.dispatch.kernel = kernel;
  command.as.dispatch.params = params;
  command.as.dispatch.params_size_bytes = params_size_bytes;
  for (int i = 0; i < 3; ++i)
    command.as.dispatch.grid[i] = direct_constant(1);
  return command;
}

accrt_driver_list_t* direct_list(direct_t* bench, const accrt_driver_command_t* commands,
                                 uint32_t count, uint32_t binding_count, uint32_t scalar_count) {
  const accrt_driver_list_info_t info = {.struct_size = (uint32_t)sizeof info,
                                         .command_count = count,
                                         .commands = commands,
                                         .binding_count = binding_count,
                                         .scalar_count = scalar_count,
                                         .name = "direct"};
  accrt_driver_list_t* list = NULL;
  const accrt_status_t status = bench->table->list_create(bench->device, &info, &list);
  if (status != ACCRT_OK)
    print_error("list_create: %s\n", direct_failure.message);
  assert_int_equal(status, ACCRT_OK);
  return list;
}

static void done(void* user, accrt_status_t status, const accrt_error_t* error, uint64_t time_ns) {
  static atomic_uint order;
  outcome_t* outcome = user;
  demand((status == ACCRT_OK) == (error == NULL), "a record without a failure, or the reverse");
  demand(time_ns >= begun_ns && time_ns <= cts_now_ns(), "a completion with another time");
  if (error != NULL) {
    demand(error->status == status, "a record of another status");
    demand(error->struct_size == sizeof *error && error->reserved == 0 && error->next == NULL,
           "a record that does not begin as one");
    demand(is_a_line(error->message, sizeof error->message), "a record without its message");
    demand(is_a_line(error->operation, sizeof error->operation), "a record without its operation");
    demand(error->driver_name[0] == '\0' ||
               is_a_line(error->driver_name, sizeof error->driver_name),
           "a record with a code's name that is none");
    demand(memchr(error->source_file, '\0', sizeof error->source_file) != NULL &&
               error->reserved2 == 0,
           "a record with fields that are not filled");
  }
  outcome->status = status;
  outcome->had_error = error != NULL;
  if (error != NULL)
    outcome->error = *error;
  outcome->time_ns = time_ns;
  outcome->order = atomic_fetch_add(&order, 1);
  /* Release: pairs with the acquire in direct_await. */
  atomic_fetch_add_explicit(&outcome->times, 1, memory_order_release);
}

accrt_driver_submission_t direct_submission(direct_t* bench, const accrt_driver_binding_t* bindings,
                                            uint32_t binding_count, const uint64_t* scalars,
                                            uint32_t scalar_count, outcome_t* outcome) {
  memset(outcome, 0, sizeof *outcome);
  outcome->number = atomic_fetch_add(&bench->number, 1) + 1;
  return (accrt_driver_submission_t){.struct_size = (uint32_t)sizeof(accrt_driver_submission_t),
                                     .binding_count = binding_count,
                                     .bindings = bindings,
                                     .scalars = scalars,
                                     .scalar_count = scalar_count,
                                     .number = outcome->number,
                                     .stream_id = DIRECT_STREAM_ID,
                                     .completion = {done, outcome}};
}

void direct_enqueue(direct_t* bench, accrt_driver_queue_t* queue,
                    const accrt_driver_command_t* command, const accrt_driver_binding_t* bindings,
                    uint32_t binding_count, const uint64_t* scalars, uint32_t scalar_count,
                    outcome_t* outcome) {
  const accrt_driver_submission_t submission =
      direct_submission(bench, bindings, binding_count, scalars, scalar_count, outcome);
  assert_int_equal(bench->table->queue_enqueue(queue, command, &submission), ACCRT_OK);
}

void direct_submit(direct_t* bench, accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                   const accrt_driver_binding_t* bindings, uint32_t binding_count,
                   const uint64_t* scalars, uint32_t scalar_count, outcome_t* outcome) {
  const accrt_driver_submission_t submission =
      direct_submission(bench, bindings, binding_count, scalars, scalar_count, outcome);
  assert_int_equal(bench->table->queue_execute(queue, list, &submission), ACCRT_OK);
}

accrt_driver_completion_t direct_completion(outcome_t* outcome) {
  return (accrt_driver_completion_t){done, outcome};
}

void direct_notify(direct_t* bench, accrt_driver_queue_t* queue, outcome_t* outcome) {
  memset(outcome, 0, sizeof *outcome);
  assert_int_equal(bench->table->queue_notify(queue, direct_completion(outcome)), ACCRT_OK);
}

uint64_t direct_patience_ns(void) {
  const char* text = getenv("ACCRT_CTS_PATIENCE_MS");
  const uint64_t milliseconds = text == NULL ? 0 : strtoull(text, NULL, 10);
  return milliseconds == 0 ? CTS_PATIENCE : milliseconds * 1000000;
}

void direct_await(direct_t* bench, const outcome_t* outcome) {
  const uint64_t deadline = cts_now_ns() + direct_patience_ns();
  while (!has_ended(outcome)) {
    if (bench->table->device_progress == NULL || !bench->table->device_progress(bench->device))
      cts_sleep_ms(0);
    if (cts_now_ns() > deadline)
      fail_msg("no completion within %" PRIu64 " ms (ACCRT_CTS_PATIENCE_MS)",
               direct_patience_ns() / 1000000);
  }
}

void direct_execute(direct_t* bench, accrt_driver_list_t* list,
                    const accrt_driver_binding_t* bindings, uint32_t binding_count,
                    const uint64_t* scalars, uint32_t scalar_count) {
  outcome_t outcome;
  direct_submit(bench, bench->queue, list, bindings, binding_count, scalars, scalar_count,
                &outcome);
  direct_await(bench, &outcome);
  if (outcome.status != ACCRT_OK)
    print_error("%s\n", outcome.error.message);
  assert_int_equal(outcome.status, ACCRT_OK);
}

/* ---- Chains and workers ---- */

static void chain_done(void* user, accrt_status_t status, const accrt_error_t* error,
                       uint64_t time_ns) {
  chain_t* chain = user;
  atomic_fetch_add(&chain->ended, 1);
  if (--chain->left == 0 || status != ACCRT_OK) {
    done(&chain->last, status, error, time_ns);
    return;
  }
  direct_chain(chain);
}

void direct_chain(chain_t* chain) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill =
      (accrt_driver_fill_t){.target = direct_range(0, direct_constant(0), direct_constant(8)),
                            .pattern = chain->left,
                            .pattern_bytes = 1};
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .binding_count = 1,
                                                .bindings = &chain->binding,
                                                .number =
                                                    atomic_fetch_add(&chain->bench->number, 1) + 1,
                                                .stream_id = DIRECT_STREAM_ID,
                                                .completion = {chain_done, chain}};
  if (chain->bench->table->queue_enqueue(chain->bench->queue, &command, &submission) != ACCRT_OK)
    done(&chain->last, ACCRT_ERROR_INTERNAL, NULL, 0);
}

void* direct_work(void* user) {
  worker_t* worker = user;
  const accrt_driver_binding_t binding = direct_binding(&worker->memory);
  worker->is_right = true;
  for (uint64_t i = 0; i < 200; ++i) {
    accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
    command.as.fill =
        (accrt_driver_fill_t){.target = direct_range(0, direct_constant(i), direct_constant(64)),
                              .pattern = worker->seed * 31 + i,
                              .pattern_bytes = 1};
    outcome_t outcome;
    direct_enqueue(worker->bench, worker->queue, &command, &binding, 1, NULL, 0, &outcome);
    direct_await(worker->bench, &outcome);
    worker->is_right &= outcome.status == ACCRT_OK &&
                        worker->memory.host[i] == (unsigned char)(worker->seed * 31 + i) &&
                        worker->memory.host[i + 63] == (unsigned char)(worker->seed * 31 + i);
  }
  return NULL;
}

static void react(void* user, accrt_status_t status, const accrt_error_t* error, uint64_t time_ns) {
  (void)status;
  (void)error;
  (void)time_ns;
  reaction_t* reaction = user;
  const accrt_driver_command_t command = direct_dispatch(reaction->bench, &direct_count, NULL, 0);
  /* The outcome is being waited for: it is zero, and only its completion may write it. */
  const accrt_driver_submission_t submission = {
      .struct_size = (uint32_t)sizeof submission,
      .number = atomic_fetch_add(&reaction->bench->number, 1) + 1,
      .stream_id = DIRECT_STREAM_ID,
      .completion = {done, &reaction->outcome}};
  const accrt_driver_table_t* table = reaction->bench->table;
  assert_int_equal(table->queue_enqueue(reaction->bench->queue, &command, &submission), ACCRT_OK);
}

void direct_enqueue_with_reaction(reaction_t* reaction, const accrt_driver_command_t* command) {
  direct_t* bench = reaction->bench;
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = atomic_fetch_add(&bench->number, 1) + 1,
                                                .stream_id = DIRECT_STREAM_ID,
                                                .completion = {react, reaction}};
  assert_int_equal(bench->table->queue_enqueue(bench->queue, command, &submission), ACCRT_OK);
}

void* direct_go_to_meeting(void* user) {
  meeting_t* meeting = user;
  outcome_t outcome;
  direct_submit(meeting->bench, meeting->queue, meeting->list, &meeting->binding, 1,
                &meeting->scalar, 1, &outcome);
  direct_await(meeting->bench, &outcome);
  meeting->status = outcome.status;
  return NULL;
}
/* ---- Work that fails ---- */

static int32_t operator_fail(const accrt_kernel_environment_t* environment,
                             const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)state;
  snprintf(call->message, call->message_capacity_bytes, "on purpose");
  return 77;
}

static const accrt_operator_def_t failing_operator = {.struct_size =
                                                          (uint32_t)sizeof failing_operator,
                                                      .name = "direct.failing",
                                                      .execute = operator_fail};

bool direct_make_mishap(direct_t* bench, mishap_t* out_mishap) {
  static const accrt_driver_operator_t operation = {&failing_operator, &direct_environment};
  memset(out_mishap, 0, sizeof *out_mishap);
  if ((bench->info.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0) {
    out_mishap->good = direct_dispatch(bench, &direct_count, NULL, 0);
    out_mishap->bad = direct_dispatch(bench, &direct_fail, NULL, 0);
    return true;
  }
  const memory_t memory = direct_memory(bench, 64);
  out_mishap->binding = direct_binding(&memory);
  out_mishap->good = fill_command(0, 64, 3);
  out_mishap->bad.opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
  out_mishap->bad.as.invoke = (accrt_driver_invoke_t){
      .operation = &operation,
      .workspace = direct_range(ACCRT_DRIVER_NONE, direct_constant(0), direct_constant(0))};
  const accrt_driver_list_info_t info = {
      .struct_size = (uint32_t)sizeof info, .command_count = 1, .commands = &out_mishap->bad};
  const accrt_status_t status = bench->table->list_create(bench->device, &info, &out_mishap->list);
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_UNSUPPORTED);
  return status == ACCRT_OK;
}

void direct_end_mishap(const direct_t* bench, const mishap_t* mishap) {
  if (mishap->list != NULL)
    bench->table->list_destroy(mishap->list);
}

uint64_t direct_do_well(direct_t* bench, accrt_driver_queue_t* queue, const mishap_t* mishap) {
  return submit_quietly(bench, queue, &mishap->good,
                        mishap->list != NULL ? &mishap->binding : NULL);
}

uint64_t direct_do_badly(direct_t* bench, accrt_driver_queue_t* queue, const mishap_t* mishap) {
  if (mishap->list == NULL)
    return submit_quietly(bench, queue, &mishap->bad, NULL);
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = next_number(bench)};
  assert_int_equal(bench->table->queue_execute(queue, mishap->list, &submission), ACCRT_OK);
  return submission.number;
}

uint64_t direct_do_behind(direct_t* bench, accrt_driver_queue_t* queue, const mishap_t* mishap,
                          uint64_t before) {
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .binding_count = mishap->list != NULL,
                                                .bindings = &mishap->binding,
                                                .number = next_number(bench)};
  const accrt_status_t status = bench->table->queue_enqueue(queue, &mishap->good, &submission);
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_POISONED);
  return status == ACCRT_OK ? submission.number : before;
}
