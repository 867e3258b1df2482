/* tests/cts/fixture.c - the fixture and the checks. */
#define _GNU_SOURCE
#include "cts.h"
#include "operation.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>

cts_settings_t cts_settings;

/* ---- Checks ---- */

static void explain(const char* expression, const char* file, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  print_error("%s:%d: %s\n  last error: %s, driver code %d, in %s: %s\n", file, line, expression,
              accrt_status_name(error.status), error.driver_code, error.operation, error.message);
}

void cts_check_ok(accrt_status_t status, const char* expression, const char* file, int line) {
  if (status == ACCRT_OK)
    return;
  explain(expression, file, line);
  print_error("  gave %s\n", accrt_status_name(status));
  _fail(file, line);
}

void cts_check_fails(accrt_status_t status, accrt_status_t expected, const char* expression,
                     const char* file, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  const bool one_line = error.message[0] != '\0' && strchr(error.message, '\n') == NULL;
  if (status == expected && error.status == expected && one_line && error.operation[0] != '\0' &&
      operation_fits(expression, error.operation)) {
    return;
  }
  explain(expression, file, line);
  print_error("  gave %s, expected %s and a record of it; the record names '%s'\n",
              accrt_status_name(status), accrt_status_name(expected), error.operation);
  _fail(file, line);
}

void cts_check_message(const char* part, const char* file, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (strstr(error.message, part) != NULL)
    return;
  print_error("%s:%d: '%s' is not in the message: %s\n", file, line, part, error.message);
  _fail(file, line);
}

/* ---- A counting allocator ---- */

static void* counted_allocate(void* self, size_t size_bytes, size_t alignment) {
  cts_t* cts = self;
  void* pointer = NULL;
  if (posix_memalign(&pointer, alignment < 16 ? 16 : alignment, size_bytes == 0 ? 1 : size_bytes)) {
    return NULL;
  }
  atomic_fetch_add(&cts->live_allocations, 1);
  atomic_fetch_add(&cts->allocation_count, 1);
  return pointer;
}

static void counted_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)size_bytes;
  (void)alignment;
  atomic_fetch_sub(&((cts_t*)self)->live_allocations, 1);
  free(pointer);
}

/* ---- An embedder's executor: a plain pool of threads ---- */

typedef struct task {
  struct task* next;
  void (*run)(void* argument);
  void* argument;
} task_t;

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  task_t* first;
  pthread_t threads[64];
  uint32_t thread_count;
  bool stopping;
  accrt_executor_t executor;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int32_t pool_submit(void* self, void (*run)(void* argument), void* argument) {
  (void)self;
  task_t* task = malloc(sizeof *task);
  if (task == NULL)
    return 1;
  *task = (task_t){.run = run, .argument = argument};
  pthread_mutex_lock(&pool.mutex);
  task->next = pool.first;
  pool.first = task;
  pthread_cond_signal(&pool.changed);
  pthread_mutex_unlock(&pool.mutex);
  return 0;
}

static void* pool_thread(void* unused) {
  (void)unused;
  pthread_mutex_lock(&pool.mutex);
  for (;;) {
    while (pool.first == NULL && !pool.stopping)
      pthread_cond_wait(&pool.changed, &pool.mutex);
    task_t* task = pool.first;
    if (task == NULL)
      break;
    pool.first = task->next;
    pthread_mutex_unlock(&pool.mutex);
    task->run(task->argument);
    free(task);
    pthread_mutex_lock(&pool.mutex);
  }
  pthread_mutex_unlock(&pool.mutex);
  return NULL;
}

static void pool_start(uint32_t threads) {
  pool.stopping = false;
  pool.executor = (accrt_executor_t){.submit = pool_submit, .concurrency = threads};
  for (pool.thread_count = 0; pool.thread_count < threads; ++pool.thread_count) {
    assert_int_equal(pthread_create(&pool.threads[pool.thread_count], NULL, pool_thread, NULL), 0);
  }
}

static void pool_stop(void) {
  pthread_mutex_lock(&pool.mutex);
  pool.stopping = true;
  pthread_cond_broadcast(&pool.changed);
  pthread_mutex_unlock(&pool.mutex);
  while (pool.thread_count != 0)
    pthread_join(pool.threads[--pool.thread_count], NULL);
}

/* ---- Fixture ---- */

uint32_t cts_count_entries(const char* folder) {
  DIR* entries = opendir(folder);
  if (entries == NULL)
    return 0;
  uint32_t count = 0;
  while (readdir(entries) != NULL)
    ++count;
  closedir(entries);
  return count;
}

bool cts_driver_is_loaded(void) {
  return strchr(cts_settings.driver, '/') != NULL;
}

static void log_line(void* self, uint32_t level, const char* component, const char* line) {
  (void)self;
  if (getenv("ACCRT_CTS_LOG") != NULL)
    print_message("[%u %s] %s\n", level, component, line);
}

accrt_status_t cts_instance_create(cts_t* cts, accrt_instance_t** out_instance) {
  const accrt_allocator_t allocator = {cts, counted_allocate, counted_deallocate};
  const accrt_log_sink_t sink = {.write = log_line, .level = ACCRT_LOG_DEBUG};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.log_sink = &sink;
  options.options = cts_settings.options;
  options.option_count = cts_settings.option_count;
  options.option_size_bytes = (uint32_t)sizeof(accrt_option_t);
  options.host_code_policy = ACCRT_HOST_CODE_NONE;
  if (pool.thread_count != 0)
    options.executor = &pool.executor;
  if (cts_driver_is_loaded())
    options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_status_t status = accrt_instance_create(&options, out_instance);
  if (status != ACCRT_OK || !cts_driver_is_loaded())
    return status;
  char path[PATH_MAX]; /* what was given may be relative */
  const bool found =
      strchr(cts_settings.driver, '/') != NULL && realpath(cts_settings.driver, path) != NULL;
  status = accrt_instance_load_driver(*out_instance, found ? path : cts_settings.driver);
  if (status != ACCRT_OK) {
    accrt_instance_release(*out_instance);
    *out_instance = NULL;
  }
  return status;
}

static bool lacks(const cts_t* cts) {
  const uint32_t flags = cts->info.flags;
  if ((cts->needs & CTS_NEEDS_KERNELS) && cts->pack == NULL)
    return true;
  if ((cts->needs & CTS_NEEDS_HOST_KERNELS) && !cts_runs_host_kernels(cts))
    return true;
  if ((cts->needs & CTS_NEEDS_TRAITS) && !cts_has_traits(&cts->info))
    return true;
  if ((cts->needs & CTS_NEEDS_MODULES) && !cts_loads_modules(&cts->info))
    return true;
  void* native;
  if ((cts->needs & CTS_NEEDS_NATIVE) && accrt_stream_native(cts->stream, &native) != ACCRT_OK)
    return true;
  if ((cts->needs & CTS_NEEDS_TIMESTAMPS) && !(flags & ACCRT_DEVICE_FLAG_TIMESTAMPS))
    return true;
  if ((cts->needs & CTS_NEEDS_HOST_MEMORY) && !(flags & ACCRT_DEVICE_FLAG_HOST_MEMORY))
    return true;
  if ((cts->needs & CTS_NEEDS_THREADS) && (flags & ACCRT_DEVICE_FLAG_CALLER_RUNS))
    return true;
  return (cts->needs & CTS_NEEDS_TWO_DEVICES) && cts->second == NULL;
}

/* False when the device lacks what the test needs. */
bool cts_set_up(cts_t* cts);
void cts_tear_down(cts_t* cts);

static void load_kernels(cts_t* cts) {
  if (cts_runs_host_kernels(cts)) {
    OK(accrt_kernel_pack_register(cts->instance, cts_pack_query, &cts->pack));
  } else if (cts_loads_modules(&cts->info)) {
    accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
    cts_module_options(&options);
    OK(accrt_kernel_module_load(cts->device, &options, &cts->pack));
  }
}

bool cts_set_up(cts_t* cts) {
  cts->fd_count = cts_count_entries("/proc/self/fd");
  cts->thread_count = cts_count_entries("/proc/self/task");
  if (cts_settings.executor_threads != 0)
    pool_start(cts_settings.executor_threads);
  OK(cts_instance_create(cts, &cts->instance));
  OK(accrt_instance_device_by_name(cts->instance, cts_settings.device, &cts->device));
  cts->info = (accrt_device_info_t)ACCRT_DEVICE_INFO_INIT;
  OK(accrt_device_info(cts->device, &cts->info));
  OK(accrt_stream_create(cts->device, NULL, &cts->stream));
  OK(accrt_device_pool(cts->device, ACCRT_MEMORY_DEVICE, &cts->pool));
  if (cts->needs & (CTS_NEEDS_KERNELS | CTS_NEEDS_HOST_KERNELS))
    load_kernels(cts);
  if (cts->needs & CTS_NEEDS_TWO_DEVICES) {
    char name[80];
    snprintf(name, sizeof name, "%s:%u", cts->info.driver, cts->info.index == 0 ? 1u : 0u);
    if (accrt_instance_device_by_name(cts->instance, name, &cts->second) != ACCRT_OK) {
      cts->second = NULL;
    }
  }
  return !lacks(cts);
}

/* Threads go a moment after they have been joined from. */
static bool count_returns_to(const char* folder, uint32_t expected) {
  for (int i = 0; i < 200; ++i) {
    if (cts_count_entries(folder) <= expected)
      return true;
    cts_sleep_ms(10);
  }
  return false;
}

void cts_tear_down(cts_t* cts) {
  accrt_kernel_pack_release(cts->pack);
  accrt_stream_release(cts->stream);
  accrt_instance_release(cts->instance);
  if (cts_settings.executor_threads != 0)
    pool_stop();
  const long left = atomic_load(&cts->live_allocations);
  if (left != 0)
    fail_msg("%ld host allocations are left", left);
  if (!count_returns_to("/proc/self/fd", cts->fd_count))
    fail_msg("file descriptors are left");
  if (!count_returns_to("/proc/self/task", cts->thread_count))
    fail_msg("threads are left");
}

/* ---- Conveniences ---- */

accrt_buffer_t* cts_buffer(cts_t* cts, uint64_t size_bytes) {
  accrt_buffer_t* buffer = NULL;
  OK(accrt_buffer_create(cts->pool, size_bytes, NULL, &buffer));
  assert_non_null(buffer);
  return buffer;
}

void cts_sync(accrt_stream_t* stream) {
  OK(accrt_stream_synchronize(stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
}

void cts_upload(cts_t* cts, accrt_buffer_t* buffer, uint64_t offset_bytes, const void* data,
                uint64_t size_bytes) {
  const accrt_place_t source = cts_host((void*)(uintptr_t)data);
  const accrt_place_t target = cts_at(buffer, offset_bytes);
  OK(accrt_stream_copy(cts->stream, &source, &target, size_bytes));
  cts_sync(cts->stream);
}

void cts_download(cts_t* cts, accrt_buffer_t* buffer, uint64_t offset_bytes, void* data,
                  uint64_t size_bytes) {
  const accrt_place_t source = cts_at(buffer, offset_bytes);
  const accrt_place_t target = cts_host(data);
  OK(accrt_stream_copy(cts->stream, &source, &target, size_bytes));
  cts_sync(cts->stream);
}

accrt_stream_t* cts_stream(cts_t* cts) {
  accrt_stream_t* stream = NULL;
  OK(accrt_stream_create(cts->device, NULL, &stream));
  return stream;
}

accrt_semaphore_t* cts_semaphore(cts_t* cts, uint64_t value) {
  accrt_semaphore_t* semaphore = NULL;
  OK(accrt_semaphore_create(cts->instance, value, &semaphore));
  return semaphore;
}

void cts_poison(cts_t* cts, accrt_stream_t* stream, accrt_status_t status, const char* message) {
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(stream, semaphore, 1));
  OK(accrt_semaphore_fail(semaphore, status, message));
  FAILS(POISONED, accrt_stream_synchronize(stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_semaphore_release(semaphore);
}

void cts_sleep_ms(uint32_t milliseconds) {
  struct timespec left = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

uint64_t cts_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * CTS_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t cts_seed(void) {
  const char* text = getenv("ACCRT_TEST_SEED");
  const uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : cts_now_ns();
  print_message("  ACCRT_TEST_SEED=%" PRIu64 "\n", seed);
  return seed;
}

uint64_t cts_random(uint64_t* state) { /* splitmix64 */
  uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

accrt_kernel_t* cts_kernel(cts_t* cts, const char* name) {
  accrt_kernel_t* kernel = NULL;
  OK(accrt_kernel_pack_find(cts->pack, name, &kernel));
  return kernel;
}
