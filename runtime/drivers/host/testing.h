/* runtime/drivers/host/testing.h - what the host driver's unit tests share: an environment of their
 * own, so that the driver is tested through its table without the rest of the runtime. Test code
 * only.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_HOST_TESTING_H_
#define ACCRT_RUNTIME_DRIVERS_HOST_TESTING_H_

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"
#include "tests/random.h"

#define TEST_MAX_OPTIONS 4

typedef struct test_environment {
  accrt_driver_environment_t base;
  accrt_allocator_t allocator;
  atomic_long live_allocations;
  atomic_long allocation_count;
  atomic_long fail_after; /* allocations until one fails; negative: never */
  const char* options[TEST_MAX_OPTIONS][2];
  atomic_uint trace_count;
  /* The last failure reported through `fail`. */
  accrt_status_t status;
  int32_t driver_code;
  char message[512];
} test_environment_t;

static inline void* test_allocate(void* self, size_t size_bytes, size_t alignment) {
  test_environment_t* test = self;
  if (atomic_load(&test->fail_after) >= 0 && atomic_fetch_sub(&test->fail_after, 1) == 0)
    return NULL;
  void* pointer = NULL;
  if (posix_memalign(&pointer, alignment < 16 ? 16 : alignment, size_bytes) != 0)
    return NULL;
  atomic_fetch_add(&test->live_allocations, 1);
  atomic_fetch_add(&test->allocation_count, 1);
  return pointer;
}

static inline void test_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)size_bytes;
  (void)alignment;
  atomic_fetch_sub(&((test_environment_t*)self)->live_allocations, 1);
  free(pointer);
}

static inline const char* test_option(const accrt_driver_environment_t* base, const char* key) {
  const test_environment_t* test = (const test_environment_t*)base;
  for (int i = 0; i < TEST_MAX_OPTIONS; ++i) {
    if (test->options[i][0] != NULL && strcmp(test->options[i][0], key) == 0) {
      return test->options[i][1];
    }
  }
  return NULL;
}

static inline void test_log(const accrt_driver_environment_t* base, uint32_t level,
                            const char* line) {
  (void)base;
  (void)level;
  (void)line;
}

static inline accrt_status_t test_fail(const accrt_driver_environment_t* base,
                                       accrt_status_t status, int32_t driver_code,
                                       const char* driver_name, const char* operation,
                                       const char* message) {
  test_environment_t* test = (test_environment_t*)(uintptr_t)base;
  (void)driver_name;
  (void)operation;
  test->status = status;
  test->driver_code = driver_code;
  snprintf(test->message, sizeof test->message, "%s", message);
  return status;
}

static inline void test_trace(const accrt_driver_environment_t* base,
                              const accrt_trace_event_t* event) {
  test_environment_t* test = (test_environment_t*)(uintptr_t)base;
  if (event->kind == ACCRT_TRACE_COMMAND && event->begin_ns <= event->end_ns) {
    atomic_fetch_add(&test->trace_count, 1);
  }
}

static inline void test_environment_init(test_environment_t* test, const char* threads) {
  memset(test, 0, sizeof *test);
  atomic_init(&test->fail_after, -1);
  test->allocator = (accrt_allocator_t){test, test_allocate, test_deallocate};
  test->base = (accrt_driver_environment_t){.struct_size = (uint32_t)sizeof test->base,
                                            .abi_version = ACCRT_DRIVER_ABI_VERSION,
                                            .allocator = &test->allocator,
                                            .option = test_option,
                                            .log = test_log,
                                            .fail = test_fail,
                                            .trace = test_trace};
  if (threads != NULL) {
    test->options[0][0] = "host.threads";
    test->options[0][1] = threads;
  }
}

static inline void test_set_option(test_environment_t* test, const char* key, const char* value) {
  for (int i = 0; i < TEST_MAX_OPTIONS; ++i) {
    if (test->options[i][0] != NULL && strcmp(test->options[i][0], key) != 0)
      continue;
    test->options[i][0] = key;
    test->options[i][1] = value;
    return;
  }
  fail_msg("too many options");
}

/* A driver with one open device. */
typedef struct test_device {
  test_environment_t environment;
  const accrt_driver_table_t* table;
  accrt_driver_t* driver;
  accrt_driver_device_t* device;
} test_device_t;

static inline void test_device_open_prepared(test_device_t* test) {
  test->table = accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION);
  assert_non_null(test->table);
  assert_int_equal(test->table->open(&test->environment.base, &test->driver), ACCRT_OK);
  assert_int_equal(test->table->device_open(test->driver, 0, &test->device), ACCRT_OK);
}

static inline void test_device_open(test_device_t* test, const char* threads) {
  test_environment_init(&test->environment, threads);
  test_device_open_prepared(test);
}

/* Also checks that nothing is left. */
static inline void test_device_close(test_device_t* test) {
  test->table->device_close(test->device);
  test->table->close(test->driver);
  assert_int_equal(atomic_load(&test->environment.live_allocations), 0);
}

static inline accrt_driver_value_t test_constant(uint64_t value) {
  return (accrt_driver_value_t){.constant = value, .scalar = ACCRT_DRIVER_NONE};
}
static inline accrt_driver_value_t test_scalar(uint32_t scalar, uint64_t constant) {
  return (accrt_driver_value_t){.constant = constant, .scalar = scalar};
}
static inline accrt_driver_range_t test_range(uint32_t binding, uint64_t offset,
                                              uint64_t size_bytes) {
  return (accrt_driver_range_t){.binding = binding,
                                .access = ACCRT_KERNEL_ACCESS_READ_WRITE,
                                .offset = test_constant(offset),
                                .size_bytes = test_constant(size_bytes)};
}
static inline accrt_driver_range_t test_memory(void* pointer, uint64_t size_bytes) {
  return test_range(ACCRT_DRIVER_NONE, (uint64_t)(uintptr_t)pointer, size_bytes);
}

/* A dispatch of `kernel` over x * y * z workgroups whose block is `params`. */
static inline accrt_driver_command_t test_dispatch(const accrt_driver_kernel_t* kernel,
                                                   const uint32_t grid[3], const void* params,
                                                   uint32_t params_size_bytes) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_DISPATCH};
  command.as.dispatch.kernel = kernel;
  for (int i = 0; i < 3; ++i)
    command.as.dispatch.grid[i] = test_constant(grid[i]);
  command.as.dispatch.params = params;
  command.as.dispatch.params_size_bytes = params_size_bytes;
  return command;
}

static inline accrt_driver_command_t test_copy(accrt_driver_range_t source,
                                               accrt_driver_range_t target, uint64_t size_bytes) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  command.as.copy.source = source;
  command.as.copy.target = target;
  command.as.copy.extent[0] = test_constant(size_bytes);
  command.as.copy.extent[1] = command.as.copy.extent[2] = test_constant(1);
  for (int i = 0; i < 2; ++i) {
    command.as.copy.source_stride_bytes[i] = test_constant(0);
    command.as.copy.target_stride_bytes[i] = test_constant(0);
  }
  return command;
}

/* Something to wait for. */
typedef struct test_signal {
  atomic_int count;
  accrt_status_t status;
  accrt_error_t error;
  uint64_t time_ns;
} test_signal_t;

static inline void test_signal_done(void* user, accrt_status_t status, const accrt_error_t* error,
                                    uint64_t time_ns) {
  test_signal_t* signal = user;
  signal->status = status;
  if (error != NULL)
    signal->error = *error;
  signal->time_ns = time_ns;
  atomic_fetch_add(&signal->count, 1);
}

static inline accrt_driver_completion_t test_completion(test_signal_t* signal) {
  return (accrt_driver_completion_t){.done = test_signal_done, .user = signal};
}

static inline void test_signal_wait(const test_device_t* test, test_signal_t* signal, int count) {
  const struct timespec moment = {0, 20000};
  while (atomic_load(&signal->count) < count) {
    if (test->table->device_progress(test->device) == 0)
      nanosleep(&moment, NULL);
  }
}

static inline accrt_driver_submission_t test_submission(const accrt_driver_binding_t* bindings,
                                                        uint32_t binding_count,
                                                        const uint64_t* scalars,
                                                        uint32_t scalar_count) {
  return (accrt_driver_submission_t){.struct_size = (uint32_t)sizeof(accrt_driver_submission_t),
                                     .bindings = bindings,
                                     .binding_count = binding_count,
                                     .scalars = scalars,
                                     .scalar_count = scalar_count,
                                     .number = 7,
                                     .stream_id = 3};
}

/* Kernels: definitions by value, with an empty environment. */
static const accrt_kernel_environment_t test_kernel_environment = {
    .struct_size = (uint32_t)sizeof(accrt_kernel_environment_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION};

static inline accrt_kernel_def_t test_definition(const char* name,
                                                 accrt_kernel_workgroup_fn_t entry) {
  return (accrt_kernel_def_t){
      .struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = name, .entry = entry};
}

#endif /* ACCRT_RUNTIME_DRIVERS_HOST_TESTING_H_ */
