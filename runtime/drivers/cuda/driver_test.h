/* runtime/drivers/cuda/driver_test.h - what the tests of the CUDA driver's table share: the
 * stand-in of tests/fakecuda, a driver with one device and one queue, kernels. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_DRIVER_TEST_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_DRIVER_TEST_H_

#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "accrt/memory.h"
#include "accrt/stream.h"
#include "runtime/core/error.h"
#include "runtime/drivers/cuda/cuda.h"
#include "runtime/drivers/cuda/test_images.h"

#define KERNELS "tests/fakecuda/transcript_kernels.ptx"
#define IMAGE_CUBIN 2u
#define IMAGE_PTX 3u
#define IMAGE_FATBIN 4u
#define MIB (UINT64_C(1) << 20)
#define PATIENCE_NS UINT64_C(60000000000)
#define LATE_NS UINT64_C(20000000)

/* ---- The stand-in ---- */

static int (*control)(const char* setting);
static uint64_t (*count)(const char* entry_point);
static uint64_t (*complaints)(void);

static inline void* stand_in(void* library, const char* name) {
  return library != NULL ? dlsym(library, name) : NULL;
}

static inline bool find_stand_in(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  void* functions[] = {stand_in(library, "fakecuda_control"), stand_in(library, "fakecuda_count"),
                       stand_in(library, "fakecuda_complaints")};
  memcpy(&control, &functions[0], sizeof control);
  memcpy(&count, &functions[1], sizeof count);
  memcpy(&complaints, &functions[2], sizeof complaints);
  return control != NULL && count != NULL && complaints != NULL;
}

/* ---- What the driver is lent ---- */

static long live_allocations;

static inline void* allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  void* pointer = NULL;
  if (posix_memalign(&pointer, alignment < 16 ? 16 : alignment, size_bytes) != 0)
    return NULL;
  __atomic_fetch_add(&live_allocations, 1, __ATOMIC_RELAXED);
  return pointer;
}
static inline void deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  __atomic_fetch_sub(&live_allocations, 1, __ATOMIC_RELAXED);
  free(pointer);
}
static const accrt_allocator_t allocator = {NULL, allocate, deallocate};

static const char* options[8][2];
static inline const char* option(const accrt_driver_environment_t* environment, const char* key) {
  (void)environment;
  for (int i = 0; i < 8 && options[i][0] != NULL; ++i) {
    if (strcmp(options[i][0], key) == 0)
      return options[i][1];
  }
  return NULL;
}

static inline void log_line(const accrt_driver_environment_t* environment, uint32_t level,
                            const char* line) {
  (void)environment;
  (void)level;
  (void)line;
}
static inline accrt_status_t record(const accrt_driver_environment_t* environment,
                                    accrt_status_t status, int32_t code, const char* name,
                                    const char* operation, const char* message) {
  (void)environment;
  return accrt_error_record_driver(status, code, name, operation, __FILE__, (uint32_t)__LINE__,
                                   "%s", message);
}
static atomic_uint traced;
static accrt_trace_event_t last_trace;
static inline void trace(const accrt_driver_environment_t* environment,
                         const accrt_trace_event_t* event) {
  (void)environment;
  last_trace = *event;
  atomic_fetch_add(&traced, 1);
}

/* ---- A driver with one device and one queue ---- */

typedef struct fixture {
  accrt_driver_environment_t environment;
  const accrt_driver_table_t* table;
  accrt_driver_t* driver;
  accrt_driver_device_t* device;
  accrt_driver_queue_t* queue;
  uint64_t number;
  uint64_t complaint_count;
} fixture_t;

static inline void open_driver(fixture_t* f) {
  f->environment = (accrt_driver_environment_t){.struct_size = sizeof f->environment,
                                                .abi_version = ACCRT_DRIVER_ABI_VERSION,
                                                .allocator = &allocator,
                                                .option = option,
                                                .log = log_line,
                                                .fail = record,
                                                .trace = trace,
                                                .tracing = f->environment.tracing};
  f->table = accrt_driver_cuda_query(ACCRT_DRIVER_ABI_VERSION);
  assert_int_equal(f->table->open(&f->environment, &f->driver), ACCRT_OK);
}

static inline int set_up(void** state) {
  fixture_t* f = calloc(1, sizeof *f);
  *state = f;
  f->complaint_count = complaints();
  open_driver(f);
  assert_true(f->table->device_count(f->driver) > 0);
  assert_int_equal(f->table->device_open(f->driver, 0, &f->device), ACCRT_OK);
  assert_int_equal(f->table->queue_create(f->device, 0, &f->queue), ACCRT_OK);
  return 0;
}

static inline int tear_down(void** state) {
  fixture_t* f = *state;
  if (f->queue != NULL)
    f->table->queue_destroy(f->queue);
  if (f->device != NULL)
    f->table->device_close(f->device);
  f->table->close(f->driver);
  assert_int_equal(live_allocations, 0);
  assert_int_equal(complaints(), f->complaint_count);
  assert_int_equal(control("reset"), 0);
  memset(options, 0, sizeof options);
  free(f);
  return 0;
}

static inline const cuda_api_t* api_of(const fixture_t* f) {
  return &((const cuda_driver_t*)f->driver)->api;
}
static inline cuda_device_t* device_of(const fixture_t* f) {
  return (cuda_device_t*)f->device;
}

static inline void assert_error(accrt_status_t status, accrt_status_t expected, const char* part) {
  const accrt_error_t* error = accrt_error_current();
  if (status != expected || error->status != expected || strstr(error->message, part) == NULL)
    fail_msg("gave %d, expected %d with '%s'; recorded %d: %s", status, expected, part,
             error->status, error->message);
}

static inline accrt_driver_value_t value_of(uint64_t constant) {
  return (accrt_driver_value_t){constant, ACCRT_DRIVER_NONE, 0};
}
static inline accrt_driver_range_t range_of(uint64_t address, uint64_t size_bytes) {
  return (accrt_driver_range_t){ACCRT_DRIVER_NONE, ACCRT_KERNEL_ACCESS_READ_WRITE,
                                value_of(address), value_of(size_bytes)};
}
static inline accrt_driver_submission_t submission_of(fixture_t* f) {
  /* The rule of the interface: a repeated number looks complete, so its memory could be freed. */
  assert_true(f->number + 1 > atomic_load(&((cuda_queue_t*)f->queue)->submitted));
  return (accrt_driver_submission_t){
      .struct_size = sizeof(accrt_driver_submission_t), .number = ++f->number, .stream_id = 9};
}

static inline accrt_status_t copy(fixture_t* f, uint64_t target, uint64_t source,
                                  uint64_t size_bytes) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY, .name = "a copy"};
  command.as.copy.source = range_of(source, size_bytes);
  command.as.copy.target = range_of(target, size_bytes);
  command.as.copy.extent[0] = value_of(size_bytes);
  command.as.copy.extent[1] = command.as.copy.extent[2] = value_of(1);
  for (int i = 0; i < 2; ++i)
    command.as.copy.source_stride_bytes[i] = command.as.copy.target_stride_bytes[i] = value_of(0);
  const accrt_driver_submission_t submission = submission_of(f);
  const accrt_status_t status = f->table->queue_enqueue(f->queue, &command, &submission);
  f->number -= status != ACCRT_OK;
  return status;
}

static inline accrt_status_t fill(fixture_t* f, uint64_t target, uint64_t size_bytes,
                                  uint64_t pattern, uint32_t pattern_bytes,
                                  accrt_driver_completion_t completion) {
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  command.as.fill.target = range_of(target, size_bytes);
  command.as.fill.pattern = pattern;
  command.as.fill.pattern_bytes = pattern_bytes;
  accrt_driver_submission_t submission = submission_of(f);
  submission.completion = completion;
  const accrt_status_t status = f->table->queue_enqueue(f->queue, &command, &submission);
  f->number -= status != ACCRT_OK;
  return status;
}

static inline accrt_status_t wait_all(fixture_t* f) {
  return f->table->queue_wait(f->queue, f->number, PATIENCE_NS, ACCRT_WAIT_BLOCK);
}

static inline accrt_driver_memory_t memory_of(const fixture_t* f, uint32_t kind) {
  accrt_driver_memory_t memory;
  assert_int_equal(f->table->memory_allocate(f->device, kind, 2 * MIB, &memory), ACCRT_OK);
  return memory;
}

static inline uint64_t address_of(const void* pointer) {
  return (uint64_t)(uintptr_t)pointer;
}
/* ---- Machine code ---- */

static inline void* read_file(const char* path, size_t* out_size_bytes) {
  FILE* file = fopen(path, "rb");
  assert_non_null(file);
  char* bytes = calloc(1, 65536);
  *out_size_bytes = fread(bytes, 1, 65535, file);
  fclose(file);
  return bytes;
}

static inline accrt_status_t load(const fixture_t* f, uint32_t kind, const void* data,
                                  size_t size_bytes, accrt_driver_module_t** out_module) {
  const accrt_driver_image_t image = {
      .kind = kind, .data = data, .size_bytes = size_bytes, .name = "image"};
  return f->table->module_load(f->device, &image, out_module);
}

static inline accrt_driver_module_t* load_kernels(const fixture_t* f) {
  size_t size_bytes;
  void* text = read_file(KERNELS, &size_bytes);
  accrt_driver_module_t* module;
  assert_int_equal(load(f, IMAGE_PTX, text, size_bytes, &module), ACCRT_OK);
  free(text);
  return module;
}

typedef struct add_params {
  uint64_t target;
  uint32_t value, count;
} add_params_t;
static const accrt_kernel_param_t add_list[] = {
    ACCRT_KERNEL_PARAM(add_params_t, target, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(add_params_t, value, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(add_params_t, count, SCALAR, NONE)};
static const accrt_kernel_def_t add_definition = {.struct_size = sizeof add_definition,
                                                  .name = "tx_add",
                                                  .params = add_list,
                                                  .param_count = 3,
                                                  .params_size_bytes = 16,
                                                  .block = {64, 1, 1}};

static inline accrt_status_t launch(fixture_t* f, void* module_kernel,
                                    const accrt_kernel_def_t* definition, uint32_t groups,
                                    const void* params, accrt_driver_completion_t completion) {
  const accrt_driver_kernel_t kernel = {definition, NULL, module_kernel};
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_DISPATCH};
  command.as.dispatch =
      (accrt_driver_dispatch_t){.kernel = &kernel,
                                .grid = {value_of(groups), value_of(1), value_of(1)},
                                .params = params,
                                .params_size_bytes = definition->params_size_bytes};
  accrt_driver_submission_t submission = submission_of(f);
  submission.completion = completion;
  const accrt_status_t status = f->table->queue_enqueue(f->queue, &command, &submission);
  f->number -= status != ACCRT_OK;
  return status;
}

/* A kernel that takes some time. Work behind it has to wait. */
typedef struct late_params {
  uint64_t nanoseconds;
} late_params_t;
static const accrt_kernel_param_t late_list[] = {
    ACCRT_KERNEL_PARAM(late_params_t, nanoseconds, SCALAR, NONE)};
static const accrt_kernel_def_t late_definition = {.struct_size = sizeof late_definition,
                                                   .name = "tx_late",
                                                   .params = late_list,
                                                   .param_count = 1,
                                                   .params_size_bytes = 8,
                                                   .block = {1, 1, 1}};

static inline void be_late(fixture_t* f, accrt_driver_module_t* module, uint64_t nanoseconds) {
  void* kernel;
  const late_params_t params = {nanoseconds};
  const accrt_driver_completion_t nobody = {NULL, NULL};
  assert_int_equal(f->table->module_find(module, "tx_late", &late_definition, &kernel), ACCRT_OK);
  assert_int_equal(launch(f, kernel, &late_definition, 1, &params, nobody), ACCRT_OK);
}

typedef struct told {
  atomic_uint count;
  accrt_status_t statuses[64];
  uint64_t submissions[64];
  int32_t codes[64];
} told_t;

static inline void tell(void* user, accrt_status_t status, const accrt_error_t* error,
                        uint64_t time_ns) {
  told_t* told = user;
  const unsigned index = atomic_load(&told->count);
  told->statuses[index] = status;
  told->submissions[index] = error != NULL ? error->submission : 0;
  told->codes[index] = error != NULL ? error->driver_code : 0;
  (void)time_ns;
  atomic_fetch_add(&told->count, 1);
}

static inline void wait_for(const told_t* told, unsigned expected) {
  const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS);
  while (atomic_load(&told->count) < expected && accrt_deadline_left_ns(deadline_ns) > 0)
    usleep(100);
  assert_int_equal(atomic_load(&told->count), expected);
}

static inline void use_everything(fixture_t* f) {
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  accrt_driver_memory_t pinned = memory_of(f, ACCRT_MEMORY_PINNED);
  assert_int_equal(copy(f, memory.device_address, pinned.device_address, 4096), ACCRT_OK);
  uint64_t number;
  assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  accrt_driver_event_t* event;
  assert_int_equal(f->table->event_create(f->device, 0, &event), ACCRT_OK);
  assert_int_equal(f->table->event_record(f->queue, event), ACCRT_OK);
  assert_int_equal(f->table->event_wait(f->queue, event), ACCRT_OK);
  assert_int_equal(f->table->event_synchronize(event, PATIENCE_NS, ACCRT_WAIT_SPIN), ACCRT_OK);
  assert_int_equal(f->table->event_query(event), ACCRT_OK);
  f->table->event_destroy(event);
  f->table->memory_free(f->device, &memory);
  f->table->memory_free(f->device, &pinned);
}

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_DRIVER_TEST_H_ */
