/* runtime/drivers/common/test_driver.h - test fixture: a small driver that can be slow,
 * synchronous, stepped, or broken.
 *
 * With `native` it has the optional functions of 0.2 too: progress by number, events, prepared
 * launches, wrapped queues, modules. Its queues then run in any order that their waits allow
 * (`shuffle`), and what they run nobody is told of.
 *
 * For tests alone. One configuration per test program (`test_driver`); it registers as the driver
 * "test". What it runs it runs right: copies, fills and host kernels, one workgroup after the
 * other, in order of enqueuing over all queues.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_
#include "runtime/drivers/common/test_driver_jobs.h"

/* ---- The table ---- */

#define TEST_TRY(function)                                                                         \
  do {                                                                                             \
    const accrt_status_t fault_ = test_fault((function), __func__);                                \
    if (fault_ != ACCRT_OK)                                                                        \
      return fault_;                                                                               \
  } while (0)

static inline accrt_status_t test_open(const accrt_driver_environment_t* environment,
                                       accrt_driver_t** out_driver) {
  test_driver.environment = environment;
  *out_driver = NULL;
  TEST_TRY(TEST_FUNCTION_OPEN);
  *out_driver = test_driver_alloc(sizeof **out_driver);
  if (*out_driver == NULL)
    return test_no_memory(__func__);
  test_driver.stopping = 0;
  if (test_driver.mode == TEST_DRIVER_THREAD) {
    (void)pthread_create(&test_driver.thread, NULL, test_driver_run_thread, NULL);
  }
  atomic_fetch_add(&test_driver.drivers, 1);
  return ACCRT_OK;
}

static inline void test_close(accrt_driver_t* driver) {
  (void)pthread_mutex_lock(&test_driver.lock);
  test_driver.stopping = 1;
  (void)pthread_cond_broadcast(&test_driver.changed);
  (void)pthread_mutex_unlock(&test_driver.lock);
  if (test_driver.mode == TEST_DRIVER_THREAD)
    (void)pthread_join(test_driver.thread, NULL);
  test_driver_free(driver, sizeof *driver);
  atomic_fetch_sub(&test_driver.drivers, 1);
}

static inline uint32_t test_device_count(accrt_driver_t* driver) {
  (void)driver;
  return test_driver.device_count;
}

static inline accrt_status_t test_device_open(accrt_driver_t* driver, uint32_t index,
                                              accrt_driver_device_t** out_device) {
  (void)driver;
  *out_device = NULL;
  TEST_TRY(TEST_FUNCTION_DEVICE_OPEN);
  accrt_driver_device_t* device = test_driver_alloc(sizeof *device);
  if (device == NULL)
    return test_no_memory(__func__);
  device->index = index;
  *out_device = device;
  atomic_fetch_add(&test_driver.devices, 1);
  return ACCRT_OK;
}

static inline void test_device_close(accrt_driver_device_t* device) {
  test_driver_free(device, sizeof *device);
  atomic_fetch_sub(&test_driver.devices, 1);
}

static inline void test_device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  (void)device;
  out_info->flags = test_driver.device_flags != 0
                        ? test_driver.device_flags
                        : ACCRT_DEVICE_FLAG_HOST_MEMORY | ACCRT_DEVICE_FLAG_TIMESTAMPS |
                              ACCRT_DEVICE_FLAG_HOST_KERNELS;
  if (test_driver.mode == TEST_DRIVER_CALLER)
    out_info->flags |= ACCRT_DEVICE_FLAG_CALLER_RUNS;
  (void)snprintf(out_info->description, sizeof out_info->description, "%s", "a device for tests");
  out_info->min_alignment_bytes = 64;
  out_info->concurrency = 1;
}

static inline accrt_status_t test_device_status(accrt_driver_device_t* device) {
  (void)device;
  return atomic_load(&test_driver.lost) ? ACCRT_ERROR_DEVICE_LOST : ACCRT_OK;
}

static inline uint32_t test_device_progress(accrt_driver_device_t* device) {
  (void)device;
  return test_driver_step();
}

static inline void test_memory_info(accrt_driver_device_t* device, uint32_t kind,
                                    accrt_driver_memory_info_t* out_info) {
  (void)device;
  out_info->supported = kind == ACCRT_MEMORY_DEVICE ||
                        (kind == ACCRT_MEMORY_HOST && !test_driver.no_host_memory_kind);
  out_info->granularity_bytes = test_driver.granularity_bytes;
  out_info->default_grow_bytes = test_driver.grow_bytes;
  out_info->alignment_bytes = 4096;
  out_info->zeroed = test_driver.zeroed;
}

static inline accrt_status_t test_memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                                  uint64_t size_bytes,
                                                  accrt_driver_memory_t* out_memory) {
  (void)device;
  (void)kind;
  memset(out_memory, 0, sizeof *out_memory);
  TEST_TRY(TEST_FUNCTION_MEMORY_ALLOCATE);
  void* memory = NULL;
  if (size_bytes % test_driver.granularity_bytes != 0) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INTERNAL, 0, NULL,
                                           __func__, "no multiple");
  }
  if ((uint64_t)atomic_load(&test_driver.memory_bytes) + size_bytes >
          test_driver.memory_limit_bytes ||
      posix_memalign(&memory, 4096, size_bytes) != 0) {
    return (test_driver.environment->fail)(
        test_driver.environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, 2, "TEST_OOM", __func__, "full");
  }
  atomic_fetch_add(&test_driver.memory_bytes, (long)size_bytes);
  atomic_fetch_add(&test_driver.mappings, 1);
  *out_memory = (accrt_driver_memory_t){memory, (uint64_t)(uintptr_t)memory, memory, size_bytes};
  if (test_driver.device_flags != 0 &&
      (test_driver.device_flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0)
    out_memory->host_pointer = NULL;
  return ACCRT_OK;
}

static inline void test_memory_free(accrt_driver_device_t* device,
                                    const accrt_driver_memory_t* memory) {
  (void)device;
  atomic_fetch_sub(&test_driver.memory_bytes, (long)memory->size_bytes);
  atomic_fetch_sub(&test_driver.mappings, 1);
  free(memory->handle);
}

static inline accrt_status_t test_memory_import(accrt_driver_device_t* device, void* pointer,
                                                uint64_t size_bytes,
                                                accrt_driver_memory_t* out_memory) {
  (void)device;
  memset(out_memory, 0, sizeof *out_memory);
  TEST_TRY(TEST_FUNCTION_MEMORY_IMPORT);
  atomic_fetch_add(&test_driver.imports, 1);
  *out_memory = (accrt_driver_memory_t){pointer, (uint64_t)(uintptr_t)pointer, pointer, size_bytes};
  return ACCRT_OK;
}

static inline void test_memory_unimport(accrt_driver_device_t* device,
                                        const accrt_driver_memory_t* memory) {
  (void)device;
  (void)memory;
  atomic_fetch_sub(&test_driver.imports, 1);
}

/* Exports: handles are addresses, and work within the process; descriptors are there to be
 * closed. */
static inline accrt_status_t test_memory_allocate_exportable(accrt_driver_device_t* device,
                                                             uint64_t size_bytes,
                                                             uint32_t handle_kind,
                                                             accrt_driver_memory_t* out_memory) {
  (void)handle_kind;
  return test_memory_allocate(device, ACCRT_MEMORY_DEVICE, size_bytes, out_memory);
}

static inline accrt_status_t test_memory_export(accrt_driver_device_t* device,
                                                const accrt_driver_memory_t* memory,
                                                uint32_t handle_kind,
                                                accrt_driver_handle_t* out_handle) {
  (void)device;
  memset(out_handle, 0, sizeof *out_handle);
  out_handle->fd = -1;
  TEST_TRY(TEST_FUNCTION_MEMORY_EXPORT);
  out_handle->kind = handle_kind;
  out_handle->size_bytes = memory->size_bytes;
  memcpy(out_handle->bytes, &memory->device_address, sizeof memory->device_address);
  if (handle_kind == ACCRT_DRIVER_HANDLE_FD)
    out_handle->fd = dup(STDERR_FILENO);
  return ACCRT_OK;
}

static inline accrt_status_t test_memory_import_handle(accrt_driver_device_t* device,
                                                       const accrt_driver_handle_t* handle,
                                                       accrt_driver_memory_t* out_memory) {
  uint64_t address;
  memcpy(&address, handle->bytes, sizeof address);
  return test_memory_import(device, (void*)(uintptr_t)address, handle->size_bytes, out_memory);
}

static inline accrt_status_t test_queue_create(accrt_driver_device_t* device, int32_t priority,
                                               accrt_driver_queue_t** out_queue) {
  (void)device;
  (void)priority;
  *out_queue = NULL;
  TEST_TRY(TEST_FUNCTION_QUEUE_CREATE);
  *out_queue = test_driver_alloc(sizeof **out_queue);
  if (*out_queue == NULL)
    return test_no_memory(__func__);
  atomic_fetch_add(&test_driver.queues, 1);
  return ACCRT_OK;
}

static inline void test_queue_destroy(accrt_driver_queue_t* queue) {
  test_driver_free(queue, sizeof *queue);
  atomic_fetch_sub(&test_driver.queues, 1);
}

static inline accrt_status_t test_queue_enqueue(accrt_driver_queue_t* queue,
                                                const accrt_driver_command_t* command,
                                                const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_FUNCTION_QUEUE_ENQUEUE);
  return test_add_job(queue, NULL, command, submission, submission->completion);
}

static inline accrt_status_t test_queue_execute(accrt_driver_queue_t* queue,
                                                accrt_driver_list_t* list,
                                                const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_FUNCTION_QUEUE_EXECUTE);
  return test_add_job(queue, list, NULL, submission, submission->completion);
}

static inline accrt_status_t test_queue_run(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                            const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_FUNCTION_QUEUE_RUN);
  if (atomic_load(&queue->in_flight) != 0)
    return ACCRT_ERROR_NOT_READY;
  if (atomic_load(&queue->failed))
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_POISONED, 0, NULL,
                                           "queue_run", "the queue has failed");
  accrt_error_t error;
  const accrt_status_t status =
      test_run_all(list, submission->bindings, submission->scalars, submission->number, &error);
  if (status == ACCRT_OK)
    return ACCRT_OK;
  return (test_driver.environment->fail)(test_driver.environment, status, error.driver_code,
                                         error.driver_name, error.operation, error.message);
}

static inline accrt_status_t test_queue_notify(accrt_driver_queue_t* queue,
                                               accrt_driver_completion_t completion) {
  atomic_fetch_add(&test_driver.notifies, 1);
  TEST_TRY(TEST_FUNCTION_QUEUE_NOTIFY);
  return test_add_job(queue, NULL, NULL, NULL, completion);
}

/* ---- The functions of 0.2 ---- */

static inline accrt_status_t test_queue_failure(const accrt_driver_queue_t* queue,
                                                const char* operation) {
  const accrt_error_t* error = &queue->error;
  (void)operation;
  (void)(test_driver.environment->fail)(test_driver.environment, error->status, error->driver_code,
                                        error->driver_name, error->operation, error->message);
  return error->status;
}

static inline accrt_status_t test_queue_progress(accrt_driver_queue_t* queue,
                                                 uint64_t* out_number) {
  *out_number = 0;
  atomic_fetch_add(&test_driver.progresses, 1);
  TEST_TRY(TEST_FUNCTION_QUEUE_PROGRESS);
  (void)pthread_mutex_lock(&test_driver.lock);
  *out_number = queue->ended;
  (void)pthread_mutex_unlock(&test_driver.lock);
  return atomic_load(&queue->failed) ? test_queue_failure(queue, __func__) : ACCRT_OK;
}

/* Waits for something of the driver's to become true, running jobs itself where nobody else does.
 * Holds the lock when `ready` is asked. */
static inline accrt_status_t test_wait_until(int (*ready)(void* user), void* user,
                                             uint64_t timeout_ns) {
  const uint64_t begin_ns = test_now_ns();
  for (;;) {
    (void)pthread_mutex_lock(&test_driver.lock);
    const int done = ready(user);
    (void)pthread_mutex_unlock(&test_driver.lock);
    if (done)
      return ACCRT_OK;
    if (timeout_ns != UINT64_MAX && test_now_ns() - begin_ns >= timeout_ns)
      return ACCRT_ERROR_TIMEOUT;
    if (test_driver.mode != TEST_DRIVER_STEPPED || timeout_ns != UINT64_MAX ||
        test_driver_step() == 0) {
      const struct timespec pause = {0, 20000};
      (void)nanosleep(&pause, NULL);
    }
  }
}

typedef struct test_number {
  accrt_driver_queue_t* queue;
  uint64_t number;
} test_number_t;

static inline int test_number_ready(void* user) {
  const test_number_t* wanted = user;
  return wanted->queue->ended >= wanted->number || atomic_load(&wanted->queue->failed);
}

static inline accrt_status_t test_queue_wait(accrt_driver_queue_t* queue, uint64_t number,
                                             uint64_t timeout_ns, uint32_t policy) {
  (void)policy;
  atomic_fetch_add(&test_driver.queue_waits, 1);
  TEST_TRY(TEST_FUNCTION_QUEUE_WAIT);
  (void)pthread_mutex_lock(&test_driver.lock);
  test_number_t wanted = {queue, number < queue->enqueued ? number : queue->enqueued};
  (void)pthread_mutex_unlock(&test_driver.lock);
  const accrt_status_t status = test_wait_until(test_number_ready, &wanted, timeout_ns);
  if (atomic_load(&queue->failed))
    return test_queue_failure(queue, __func__);
  return status;
}

static inline accrt_status_t test_event_create(accrt_driver_device_t* device, uint32_t flags,
                                               accrt_driver_event_t** out_event) {
  (void)device;
  (void)flags;
  *out_event = NULL;
  TEST_TRY(TEST_FUNCTION_EVENT_CREATE);
  *out_event = test_driver_alloc(sizeof **out_event);
  if (*out_event == NULL)
    return test_no_memory(__func__);
  atomic_store(&(*out_event)->references, 1);
  atomic_fetch_add(&test_driver.events, 1);
  return ACCRT_OK;
}

static inline void test_event_destroy(accrt_driver_event_t* event) {
  test_event_unref(event);
  atomic_fetch_sub(&test_driver.events, 1);
}

static inline accrt_status_t test_add_event_job(accrt_driver_queue_t* queue,
                                                accrt_driver_event_t* event, int record) {
  const accrt_status_t status = test_check_capture(queue, record ? "record" : "wait");
  if (status != ACCRT_OK)
    return status;
  test_job_t* job = test_driver_alloc(sizeof *job);
  if (job == NULL)
    return test_no_memory("event");
  job->queue = queue;
  (void)pthread_mutex_lock(&test_driver.lock);
  job->sequence = record ? ++event->recorded : event->recorded;
  (void)pthread_mutex_unlock(&test_driver.lock);
  *(record ? &job->recorded : &job->awaited) = test_event_ref(event);
  test_push_job(job);
  return ACCRT_OK;
}

static inline accrt_status_t test_event_record(accrt_driver_queue_t* queue,
                                               accrt_driver_event_t* event) {
  atomic_fetch_add(&test_driver.records, 1);
  TEST_TRY(TEST_FUNCTION_EVENT_RECORD);
  const accrt_status_t status = test_add_event_job(queue, event, 1);
  if (test_driver.recorded != NULL)
    test_driver.recorded(test_driver.recorded_user);
  return status;
}

static inline accrt_status_t test_event_wait(accrt_driver_queue_t* queue,
                                             accrt_driver_event_t* event) {
  atomic_fetch_add(&test_driver.waits, 1);
  TEST_TRY(TEST_FUNCTION_EVENT_WAIT);
  return test_add_event_job(queue, event, 0);
}

static inline int test_event_ready(void* user) {
  const accrt_driver_event_t* event = user;
  return event->reached >= event->recorded;
}

static inline accrt_status_t test_event_outcome(accrt_driver_event_t* event) {
  (void)pthread_mutex_lock(&test_driver.lock);
  const int ready = test_event_ready(event), failed = event->failed;
  const accrt_error_t error = event->error;
  (void)pthread_mutex_unlock(&test_driver.lock);
  if (!ready)
    return ACCRT_ERROR_NOT_READY;
  if (!failed)
    return ACCRT_OK;
  return (test_driver.environment->fail)(test_driver.environment, error.status, error.driver_code,
                                         error.driver_name, error.operation, error.message);
}

static inline accrt_status_t test_event_synchronize(accrt_driver_event_t* event,
                                                    uint64_t timeout_ns, uint32_t policy) {
  (void)policy;
  const accrt_status_t status = test_wait_until(test_event_ready, event, timeout_ns);
  return status == ACCRT_OK ? test_event_outcome(event) : status;
}

static inline accrt_status_t test_event_elapsed(accrt_driver_event_t* start,
                                                accrt_driver_event_t* end,
                                                int64_t* out_elapsed_ns) {
  (void)pthread_mutex_lock(&test_driver.lock);
  *out_elapsed_ns = (int64_t)(end->time_ns - start->time_ns);
  (void)pthread_mutex_unlock(&test_driver.lock);
  return ACCRT_OK;
}

static inline accrt_status_t test_launch_create(accrt_driver_device_t* device,
                                                const accrt_driver_kernel_t* kernel,
                                                accrt_driver_launch_t** out_launch) {
  (void)device;
  *out_launch = NULL;
  TEST_TRY(TEST_FUNCTION_LAUNCH_CREATE);
  *out_launch = test_driver_alloc(sizeof **out_launch);
  if (*out_launch == NULL)
    return test_no_memory(__func__);
  (*out_launch)->kernel = kernel;
  atomic_fetch_add(&test_driver.launches, 1);
  return ACCRT_OK;
}

static inline void test_launch_destroy(accrt_driver_launch_t* launch) {
  test_driver_free(launch, sizeof *launch);
  atomic_fetch_sub(&test_driver.launches, 1);
}

static inline accrt_status_t test_queue_launch(accrt_driver_queue_t* queue,
                                               accrt_driver_launch_t* launch,
                                               const uint32_t grid[3], const void* params,
                                               uint64_t number) {
  TEST_TRY(TEST_FUNCTION_QUEUE_LAUNCH);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_DISPATCH, .name = "launch"};
  command.as.dispatch =
      (accrt_driver_dispatch_t){.kernel = launch->kernel,
                                .grid = {{grid[0], ACCRT_DRIVER_NONE, 0},
                                         {grid[1], ACCRT_DRIVER_NONE, 0},
                                         {grid[2], ACCRT_DRIVER_NONE, 0}},
                                .params = params,
                                .params_size_bytes = launch->kernel->definition->params_size_bytes};
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = number};
  const accrt_driver_completion_t nobody = {NULL, NULL};
  return test_add_job(queue, NULL, &command, &submission, nobody);
}

static inline accrt_status_t test_queue_wrap(accrt_driver_device_t* device, void* native,
                                             accrt_driver_queue_t** out_queue) {
  *out_queue = NULL;
  if (((test_native_t*)native)->device_index != device->index) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                                           NULL, __func__, "of another device");
  }
  TEST_TRY(TEST_FUNCTION_QUEUE_CREATE);
  *out_queue = test_driver_alloc(sizeof **out_queue);
  if (*out_queue == NULL)
    return test_no_memory(__func__);
  (*out_queue)->native = native;
  atomic_fetch_add(&test_driver.queues, 1);
  return ACCRT_OK;
}

static inline void* test_queue_native(accrt_driver_queue_t* queue) {
  return queue->native != NULL ? (void*)queue->native : (void*)queue;
}

/* A module's image is the text "test module"; its one kernel "add" has {address of a u32, u32}. */
static inline int32_t test_module_add(const accrt_kernel_environment_t* environment,
                                      const accrt_kernel_dispatch_t* dispatch,
                                      const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)group;
  uint64_t address;
  uint32_t value;
  memcpy(&address, dispatch->params, sizeof address);
  memcpy(&value, (const char*)dispatch->params + 8, sizeof value);
  *(uint32_t*)(uintptr_t)address += value;
  return 0;
}

static inline accrt_status_t test_module_load(accrt_driver_device_t* device,
                                              const accrt_driver_image_t* image,
                                              accrt_driver_module_t** out_module) {
  (void)device;
  *out_module = NULL;
  TEST_TRY(TEST_FUNCTION_MODULE_LOAD);
  if (image->size_bytes < 11 || memcmp(image->data, "test module", 11) != 0) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_FORMAT, 0,
                                           NULL, __func__, "no module of the test driver");
  }
  *out_module = test_driver_alloc(sizeof **out_module);
  if (*out_module == NULL)
    return test_no_memory(__func__);
  (*out_module)->kind = image->kind;
  atomic_fetch_add(&test_driver.modules, 1);
  return ACCRT_OK;
}

static inline void test_module_unload(accrt_driver_module_t* module) {
  test_driver_free(module, sizeof *module);
  atomic_fetch_sub(&test_driver.modules, 1);
}

static inline accrt_status_t test_module_find(accrt_driver_module_t* module, const char* entry,
                                              const accrt_kernel_def_t* declared,
                                              void** out_module_kernel) {
  static accrt_kernel_workgroup_fn_t add = test_module_add;
  (void)module;
  *out_module_kernel = NULL;
  if (strcmp(entry, "add") != 0) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_NOT_FOUND, 0, NULL,
                                           __func__, "no such kernel");
  }
  if (declared->params_size_bytes != 16) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_FORMAT, 0,
                                           NULL, __func__, "its block has 16 bytes");
  }
  *out_module_kernel = &add;
  return ACCRT_OK;
}

static inline accrt_status_t test_queue_reset(accrt_driver_queue_t* queue) {
  TEST_TRY(TEST_FUNCTION_QUEUE_RESET);
  atomic_store(&queue->failed, 0);
  return ACCRT_OK;
}

static inline accrt_status_t test_list_create(accrt_driver_device_t* device,
                                              const accrt_driver_list_info_t* info,
                                              accrt_driver_list_t** out_list) {
  (void)device;
  *out_list = NULL;
  TEST_TRY(TEST_FUNCTION_LIST_CREATE);
  *out_list = test_driver_alloc(sizeof **out_list);
  if (*out_list == NULL)
    return test_no_memory(__func__);
  (*out_list)->commands = info->commands;
  (*out_list)->count = info->command_count;
  atomic_fetch_add(&test_driver.lists, 1);
  return ACCRT_OK;
}

static inline void test_list_destroy(accrt_driver_list_t* list) {
  test_driver_free(list, sizeof *list);
  atomic_fetch_sub(&test_driver.lists, 1);
}

/* Adds the functions of 0.2. */
static inline void test_driver_add_native(accrt_driver_table_t* table) {
  table->module_load = test_module_load;
  table->module_unload = test_module_unload;
  table->module_find = test_module_find;
  table->queue_progress = test_queue_progress;
  table->queue_wait = test_queue_wait;
  table->event_create = test_event_create;
  table->event_destroy = test_event_destroy;
  table->event_record = test_event_record;
  table->event_wait = test_event_wait;
  table->event_query = test_event_outcome;
  table->event_synchronize = test_event_synchronize;
  table->event_elapsed = test_event_elapsed;
  table->launch_create = test_launch_create;
  table->launch_destroy = test_launch_destroy;
  table->queue_launch = test_queue_launch;
  table->queue_wrap = test_queue_wrap;
  table->queue_native = test_queue_native;
}

static inline const void* test_driver_query(uint32_t max_abi) {
  static accrt_driver_table_t table;
  (void)max_abi;
  table = (accrt_driver_table_t){
      .struct_size =
          test_driver.table_size_bytes != 0 ? test_driver.table_size_bytes : (uint32_t)sizeof table,
      .abi_version =
          test_driver.abi_version != 0 ? test_driver.abi_version : ACCRT_DRIVER_ABI_VERSION,
      .name = "test",
      .option_keys = test_driver.option_keys,
      .open = test_open,
      .close = test_close,
      .device_count = test_device_count,
      .device_open = test_device_open,
      .device_close = test_device_close,
      .device_info = test_device_info,
      .device_status = test_device_status,
      .device_progress = test_device_progress,
      .memory_info = test_memory_info,
      .memory_allocate = test_memory_allocate,
      .memory_free = test_memory_free,
      .memory_import = test_driver.no_import ? NULL : test_memory_import,
      .memory_unimport = test_memory_unimport,
      .queue_create = test_queue_create,
      .queue_destroy = test_queue_destroy,
      .queue_enqueue = test_queue_enqueue,
      .queue_execute = test_queue_execute,
      .queue_run = test_driver.no_run ? NULL : test_queue_run,
      .queue_notify = test_queue_notify,
      .queue_reset = test_queue_reset,
      .list_create = test_list_create,
      .list_destroy = test_list_destroy,
      .memory_allocate_exportable = test_driver.no_export ? NULL : test_memory_allocate_exportable,
      .memory_export = test_driver.no_export ? NULL : test_memory_export,
      .memory_import_handle = test_driver.no_export ? NULL : test_memory_import_handle,
  };
  if (test_driver.native)
    test_driver_add_native(&table);
  return &table;
}

/* ---- A whole test's surroundings ---- */

/* Instance, device, and the proof at the end that nothing is left. */

typedef struct test_world {
  test_allocator_t allocator;
  accrt_instance_t* instance;
  accrt_device_t* device;
} test_world_t;

static inline accrt_status_t test_world_open(test_world_t* world, int mode) {
  memset(world, 0, sizeof *world);
  test_driver_reset(mode);
  const accrt_allocator_t interface = test_allocator_interface(&world->allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &interface;
  accrt_status_t status = accrt_instance_create(&options, &world->instance);
  if (status == ACCRT_OK)
    status = accrt_instance_register_driver(world->instance, test_driver_query);
  if (status == ACCRT_OK)
    status = accrt_instance_device_by_name(world->instance, "test", &world->device);
  return status;
}

/* What is still there; 0 when all is well. */
static inline long test_world_left(const test_world_t* world) {
  return atomic_load(&world->allocator.live_count) + atomic_load(&world->allocator.wrong_count) +
         atomic_load(&test_driver.memory_bytes) + atomic_load(&test_driver.mappings) +
         atomic_load(&test_driver.imports) + atomic_load(&test_driver.queues) +
         atomic_load(&test_driver.lists) + atomic_load(&test_driver.devices) +
         atomic_load(&test_driver.events) + atomic_load(&test_driver.launches) +
         atomic_load(&test_driver.modules) + atomic_load(&test_driver.drivers);
}

static inline long test_world_close(test_world_t* world) {
  accrt_device_release(world->device);
  accrt_instance_release(world->instance);
  return test_world_left(world);
}

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_ */
