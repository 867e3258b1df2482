/* runtime/drivers/cuda/driver_test.c - the CUDA driver's table: starting, memory, machine code,
 * queues, events, captures of others, a lost device; every call of CUDA failing once. Needs the
 * stand-in of tests/fakecuda; without it all is skipped.
 */
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
#define PATIENCE_NS UINT64_C(5000000000)
#define LATE_NS UINT64_C(20000000)
/* Longer than a busy machine keeps a thread from running: a wait begun meanwhile times out. */
#define VERY_LATE_NS UINT64_C(500000000)

/* ---- The stand-in ---- */

static int (*control)(const char* setting);
static uint64_t (*count)(const char* entry_point);
static uint64_t (*complaints)(void);

static void* stand_in(void* library, const char* name) {
  return library != NULL ? dlsym(library, name) : NULL;
}

static bool find_stand_in(void) {
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

static void* allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  void* pointer = NULL;
  if (posix_memalign(&pointer, alignment < 16 ? 16 : alignment, size_bytes) != 0)
    return NULL;
  __atomic_fetch_add(&live_allocations, 1, __ATOMIC_RELAXED);
  return pointer;
}
static void deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  __atomic_fetch_sub(&live_allocations, 1, __ATOMIC_RELAXED);
  free(pointer);
}
static const accrt_allocator_t allocator = {NULL, allocate, deallocate};

static const char* options[8][2];
static const char* option(const accrt_driver_environment_t* environment, const char* key) {
  (void)environment;
  for (int i = 0; i < 8 && options[i][0] != NULL; ++i) {
    if (strcmp(options[i][0], key) == 0)
      return options[i][1];
  }
  return NULL;
}

static void log_line(const accrt_driver_environment_t* environment, uint32_t level,
                     const char* line) {
  (void)environment;
  (void)level;
  (void)line;
}
static accrt_status_t record(const accrt_driver_environment_t* environment, accrt_status_t status,
                             int32_t code, const char* name, const char* operation,
                             const char* message) {
  (void)environment;
  return accrt_error_record_driver(status, code, name, operation, __FILE__, (uint32_t)__LINE__,
                                   "%s", message);
}
static atomic_uint traced;
static accrt_trace_event_t last_trace;
static void trace(const accrt_driver_environment_t* environment, const accrt_trace_event_t* event) {
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

static void open_driver(fixture_t* f) {
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

static int set_up(void** state) {
  fixture_t* f = calloc(1, sizeof *f);
  *state = f;
  f->complaint_count = complaints();
  open_driver(f);
  assert_true(f->table->device_count(f->driver) > 0);
  assert_int_equal(f->table->device_open(f->driver, 0, &f->device), ACCRT_OK);
  assert_int_equal(f->table->queue_create(f->device, 0, &f->queue), ACCRT_OK);
  return 0;
}

static int tear_down(void** state) {
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

static const cuda_api_t* api_of(const fixture_t* f) {
  return &((const cuda_driver_t*)f->driver)->api;
}
static cuda_device_t* device_of(const fixture_t* f) {
  return (cuda_device_t*)f->device;
}

static void assert_error(accrt_status_t status, accrt_status_t expected, const char* part) {
  const accrt_error_t* error = accrt_error_current();
  if (status != expected || error->status != expected || strstr(error->message, part) == NULL)
    fail_msg("gave %d, expected %d with '%s'; recorded %d: %s", status, expected, part,
             error->status, error->message);
}

static accrt_driver_value_t value_of(uint64_t constant) {
  return (accrt_driver_value_t){constant, ACCRT_DRIVER_NONE, 0};
}
static accrt_driver_range_t range_of(uint64_t address, uint64_t size_bytes) {
  return (accrt_driver_range_t){ACCRT_DRIVER_NONE, ACCRT_KERNEL_ACCESS_READ_WRITE,
                                value_of(address), value_of(size_bytes)};
}
static accrt_driver_submission_t submission_of(fixture_t* f) {
  /* The rule of the interface: a repeated number looks complete, so its memory could be freed. */
  assert_true(f->number + 1 > atomic_load(&((cuda_queue_t*)f->queue)->submitted));
  return (accrt_driver_submission_t){
      .struct_size = sizeof(accrt_driver_submission_t), .number = ++f->number, .stream_id = 9};
}

static accrt_status_t copy(fixture_t* f, uint64_t target, uint64_t source, uint64_t size_bytes) {
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

static accrt_status_t fill(fixture_t* f, uint64_t target, uint64_t size_bytes, uint64_t pattern,
                           uint32_t pattern_bytes, accrt_driver_completion_t completion) {
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

static accrt_status_t wait_all(fixture_t* f) {
  return f->table->queue_wait(f->queue, f->number, PATIENCE_NS, ACCRT_WAIT_BLOCK);
}

static accrt_driver_memory_t memory_of(const fixture_t* f, uint32_t kind) {
  accrt_driver_memory_t memory;
  assert_int_equal(f->table->memory_allocate(f->device, kind, 2 * MIB, &memory), ACCRT_OK);
  return memory;
}

static uint64_t address_of(const void* pointer) {
  return (uint64_t)(uintptr_t)pointer;
}

/* ---- Starting ---- */

/* Checks the result and the record of device_count, with a setting of the stand-in. */
static void check_start(const char* setting, accrt_status_t expected, const char* part) {
  fixture_t f = {.number = 0};
  assert_int_equal(control(setting), 0);
  open_driver(&f);
  accrt_clear_error();
  assert_int_equal(f.table->device_count(f.driver), 0);
  assert_error(accrt_error_current()->status, expected, part);
  f.table->close(f.driver);
  assert_int_equal(control("reset"), 0);
  assert_int_equal(control("init=0"), 0);
  assert_int_equal(live_allocations, 0);
}

static void test_start_failures(void** state) {
  (void)state;
  check_start("init=100", ACCRT_ERROR_NOT_FOUND, "CUDA_ERROR_NO_DEVICE");
  check_start("init=34", ACCRT_ERROR_NOT_FOUND, "stub");
  check_start("init=803", ACCRT_ERROR_VERSION_MISMATCH, "kernel module");
  check_start("init=804", ACCRT_ERROR_VERSION_MISMATCH, "forward compatibility");
  check_start("init=802", ACCRT_ERROR_INVALID_STATE, "fabric manager");
  check_start("init=999", ACCRT_ERROR_DRIVER, "kernel module");
  check_start("fail=cuDeviceGetCount:1=2", ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, "counted");
}

static void test_old_driver(void** state) {
  (void)state;
  assert_int_equal(control("version=12020"), 0);
  fixture_t f = {.number = 0};
  open_driver(&f);
  assert_int_equal(f.table->device_count(f.driver), 0);
  assert_error(accrt_error_current()->status, ACCRT_ERROR_VERSION_MISMATCH, "12.2");
  assert_error(accrt_error_current()->status, ACCRT_ERROR_VERSION_MISMATCH, "12.4");
  f.table->close(f.driver);
  assert_int_equal(control("version=13000"), 0);
}

static void test_no_driver(void** state) {
  (void)state;
  const char* const libraries[] = {"libnot-there.so.1", "libc.so.6"};
  const char* const parts[] = {"libnot-there.so.1", "not a CUDA driver"};
  for (int i = 0; i < 2; ++i) {
    options[0][0] = "cuda.library";
    options[0][1] = libraries[i];
    fixture_t f = {.number = 0};
    open_driver(&f);
    assert_int_equal(f.table->device_count(f.driver), 0);
    assert_error(accrt_error_current()->status, ACCRT_ERROR_NOT_FOUND, parts[i]);
    f.table->close(f.driver);
  }
  memset(options, 0, sizeof options);
}

static void test_exclusive(void** state) {
  (void)state;
  fixture_t f = {.number = 0};
  open_driver(&f);
  assert_true(f.table->device_count(f.driver) > 0);
  assert_int_equal(control("exclusive=1"), 0);
  accrt_driver_device_t* device;
  assert_error(f.table->device_open(f.driver, 0, &device), ACCRT_ERROR_PERMISSION_DENIED,
               "CUDA_ERROR_DEVICE_UNAVAILABLE");
  assert_null(device);
  assert_int_equal(control("exclusive=0"), 0);
  f.table->close(f.driver);
  assert_int_equal(live_allocations, 0);
}

static void check_option(const char* key, const char* text) {
  options[0][0] = key;
  options[0][1] = text;
  fixture_t f = {.number = 0};
  f.environment = (accrt_driver_environment_t){.struct_size = sizeof f.environment,
                                               .allocator = &allocator,
                                               .option = option,
                                               .log = log_line,
                                               .fail = record};
  f.table = accrt_driver_cuda_query(ACCRT_DRIVER_ABI_VERSION);
  assert_error(f.table->open(&f.environment, &f.driver), ACCRT_ERROR_INVALID_ARGUMENT, key);
  assert_null(f.driver);
  assert_int_equal(live_allocations, 0);
  memset(options, 0, sizeof options);
}

static void test_bad_options(void** state) {
  (void)state;
  check_option("cuda.cache_mib", "0");
  check_option("cuda.cache_mib", "-1");
  check_option("cuda.cache_mib", "12x");
  check_option("cuda.graphs", "");
  check_option("cuda.graphs", "99999999999999999999");
  check_option("cuda.virtual_memory", "maybe");
}

static void test_versions(void** state) {
  (void)state;
  assert_null(accrt_driver_cuda_query((ACCRT_DRIVER_ABI_MAJOR + 1u) << 16));
  assert_non_null(accrt_driver_cuda_query(ACCRT_DRIVER_ABI_MAJOR << 16));
}

static void test_info(void** state) {
  const fixture_t* f = *state;
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  f->table->device_info(f->device, &info);
  assert_string_equal(info.arch, "sm_90");
  assert_int_equal(info.flags, ACCRT_DEVICE_FLAG_TIMESTAMPS);
  assert_int_equal(info.dlpack_device_type, 2);
  assert_int_equal(info.dlpack_device_id, 0);
  assert_true(info.priority_least < info.priority_greatest);
  assert_true(info.memory_total_bytes > 0 && info.concurrency > 0);
  assert_int_equal(info.min_alignment_bytes, 256);
  const unsigned char none[16] = {0};
  assert_memory_not_equal(info.uuid, none, sizeof none);
  assert_non_null(strstr(info.description, "CUDA 13.0"));
}

/* ---- Contexts ---- */

static void use_everything(fixture_t* f) {
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

static void test_current_context_is_kept(void** state) {
  fixture_t* f = *state;
  const cuda_api_t* api = api_of(f);
  CUcontext current = (CUcontext)(uintptr_t)1;
  use_everything(f);
  assert_int_equal(api->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  assert_null(current);
  /* Another device's. */
  CUcontext other;
  assert_int_equal(api->cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(other), CUDA_SUCCESS);
  use_everything(f);
  assert_int_equal(api->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  assert_ptr_equal(current, other);
  /* The device's own. */
  assert_int_equal(api->cuCtxSetCurrent(device_of(f)->context), CUDA_SUCCESS);
  use_everything(f);
  assert_int_equal(api->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  assert_ptr_equal(current, device_of(f)->context);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  assert_int_equal(api->cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

/* ---- Memory ---- */

static void test_memory_kinds(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_info_t info = {.struct_size = sizeof info};
  f->table->memory_info(f->device, ACCRT_MEMORY_DEVICE, &info);
  assert_true(info.supported && accrt_is_power_of_two(info.granularity_bytes));
  f->table->memory_info(f->device, ACCRT_MEMORY_HOST, &info);
  assert_false(info.supported);
  accrt_driver_memory_t memory;
  assert_error(f->table->memory_allocate(f->device, ACCRT_MEMORY_HOST, MIB, &memory),
               ACCRT_ERROR_UNSUPPORTED, "kind 3");
  assert_null(memory.handle);
  memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  assert_null(memory.host_pointer);
  assert_int_equal(memory.device_address % 256, 0);
  f->table->memory_free(f->device, &memory);
  memory = memory_of(f, ACCRT_MEMORY_PINNED);
  assert_non_null(memory.host_pointer);
  memset(memory.host_pointer, 1, memory.size_bytes);
  f->table->memory_free(f->device, &memory);
}

static void test_out_of_memory(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_t memory;
  assert_error(
      f->table->memory_allocate(f->device, ACCRT_MEMORY_DEVICE, UINT64_C(1) << 40, &memory),
      ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, "1099511627776 bytes of device memory on cuda:0");
  assert_int_equal(accrt_error_current()->driver_code, CUDA_ERROR_OUT_OF_MEMORY);
  assert_string_equal(accrt_error_current()->driver_name, "CUDA_ERROR_OUT_OF_MEMORY");
  memory = memory_of(f, ACCRT_MEMORY_DEVICE); /* nothing is broken */
  f->table->memory_free(f->device, &memory);
}

static void test_plain_memory(void** state) {
  (void)state;
  options[0][0] = "cuda.virtual_memory";
  options[0][1] = "off";
  void* inner;
  set_up(&inner);
  fixture_t* f = inner;
  const uint64_t before = count("cuMemCreate");
  use_everything(f);
  assert_int_equal(count("cuMemCreate"), before);
  accrt_driver_memory_t memory;
  assert_error(f->table->memory_allocate_exportable(f->device, 1, ACCRT_DRIVER_HANDLE_FD, &memory),
               ACCRT_ERROR_UNSUPPORTED, "switched off");
  tear_down(&inner);
}

static void test_import_host_memory(void** state) {
  fixture_t* f = *state;
  char* pages = aligned_alloc(4096, MIB);
  memset(pages, 5, MIB);
  accrt_driver_memory_t outer, inner, target = memory_of(f, ACCRT_MEMORY_DEVICE);
  assert_int_equal(f->table->memory_import(f->device, pages, MIB, &outer), ACCRT_OK);
  assert_ptr_equal(outer.host_pointer, pages);
  /* A part of it, which outlives the whole. */
  assert_int_equal(f->table->memory_import(f->device, pages + 4096, 100, &inner), ACCRT_OK);
  f->table->memory_unimport(f->device, &outer);
  assert_int_equal(copy(f, target.device_address, inner.device_address, 100), ACCRT_OK);
  char back[100];
  assert_int_equal(copy(f, address_of(back), target.device_address, 100), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_memory_equal(back, pages + 4096, 100);
  f->table->memory_unimport(f->device, &inner);
  /* Registered by other code: used, and not unregistered. */
  const cuda_api_t* api = api_of(f);
  assert_int_equal(api->cuCtxSetCurrent(device_of(f)->context), CUDA_SUCCESS);
  assert_int_equal(api->cuMemHostRegister(pages, MIB, 0), CUDA_SUCCESS);
  assert_int_equal(f->table->memory_import(f->device, pages, 4096, &outer), ACCRT_OK);
  f->table->memory_unimport(f->device, &outer);
  assert_int_equal(api->cuMemHostUnregister(pages), CUDA_SUCCESS);
  /* Only a part is registered: the device could not access the rest. */
  assert_int_equal(api->cuMemHostRegister(pages, 4096, 0), CUDA_SUCCESS);
  assert_error(f->table->memory_import(f->device, pages, MIB, &outer), ACCRT_ERROR_UNSUPPORTED,
               "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
  assert_int_equal(api->cuMemHostUnregister(pages), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  f->table->memory_free(f->device, &target);
  free(pages);
}

static void test_import_device_memory(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE), imported;
  assert_int_equal(
      f->table->memory_import(f->device, (void*)(uintptr_t)memory.device_address, 4096, &imported),
      ACCRT_OK);
  assert_int_equal(imported.device_address, memory.device_address);
  assert_null(imported.host_pointer);
  f->table->memory_unimport(f->device, &imported);
  f->table->memory_free(f->device, &memory);
}

static void test_export_by_descriptor(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory, opened;
  accrt_driver_handle_t handle;
  assert_int_equal(
      f->table->memory_allocate_exportable(f->device, 1000, ACCRT_DRIVER_HANDLE_FD, &memory),
      ACCRT_OK);
  assert_true(memory.size_bytes >= 2 * MIB);
  assert_error(f->table->memory_export(f->device, &memory, ACCRT_DRIVER_HANDLE_IPC, &handle),
               ACCRT_ERROR_UNSUPPORTED, "kind 2");
  assert_int_equal(f->table->memory_export(f->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
                   ACCRT_OK);
  assert_true(handle.fd >= 0);
  assert_int_equal(handle.size_bytes, memory.size_bytes);
  assert_int_equal(f->table->memory_import_handle(f->device, &handle, &opened), ACCRT_OK);
  const uint32_t word = 42;
  uint32_t back = 0;
  assert_int_equal(copy(f, memory.device_address, address_of(&word), 4), ACCRT_OK);
  assert_int_equal(copy(f, address_of(&back), opened.device_address, 4), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_int_equal(back, 42);
  f->table->memory_unimport(f->device, &opened);
  close(handle.fd);
  f->table->memory_free(f->device, &memory);
}

static void test_export_refused(void** state) {
  const fixture_t* f = *state;
  accrt_driver_memory_t memory;
  accrt_driver_handle_t handle = {.kind = 9, .fd = -1};
  assert_error(f->table->memory_allocate_exportable(f->device, 1, 9, &memory),
               ACCRT_ERROR_UNSUPPORTED, "kind 9");
  assert_error(
      f->table->memory_allocate_exportable(f->device, UINT64_MAX, ACCRT_DRIVER_HANDLE_IPC, &memory),
      ACCRT_ERROR_OVERFLOW, "rounded up");
  assert_error(f->table->memory_import_handle(f->device, &handle, &memory), ACCRT_ERROR_UNSUPPORTED,
               "kind 9");
  memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  assert_error(f->table->memory_export(f->device, &memory, ACCRT_DRIVER_HANDLE_FD, &handle),
               ACCRT_ERROR_UNSUPPORTED, "not allocated for export");
  f->table->memory_free(f->device, &memory);
}

/* ---- Several devices ---- */

static void test_peers(void** state) {
  fixture_t* f = *state;
  if (f->table->device_count(f->driver) < 2)
    skip();
  accrt_driver_device_t* second;
  assert_int_equal(f->table->device_open(f->driver, 1, &second), ACCRT_OK);
  assert_int_equal(f->table->device_enable_peer(f->device, f->device), ACCRT_OK);
  accrt_driver_memory_t before, after;
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &before),
                   ACCRT_OK);
  assert_int_equal(f->table->device_enable_peer(f->device, second), ACCRT_OK);
  assert_int_equal(f->table->device_enable_peer(f->device, second), ACCRT_OK);
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &after),
                   ACCRT_OK);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  assert_int_equal(fill(f, before.device_address, 4096, 3, 1, nobody), ACCRT_OK);
  assert_int_equal(copy(f, after.device_address, before.device_address, 4096), ACCRT_OK);
  unsigned char back[4096];
  assert_int_equal(copy(f, address_of(back), after.device_address, 4096), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_int_equal(back[4095], 3);
  f->table->memory_free(second, &before);
  f->table->memory_free(second, &after);
  f->table->device_close(second);
}

/* A copy enables peer access automatically. */
static void test_copy_between_devices(void** state) {
  fixture_t* f = *state;
  if (f->table->device_count(f->driver) < 2)
    skip();
  accrt_driver_device_t* second;
  assert_int_equal(f->table->device_open(f->driver, 1, &second), ACCRT_OK);
  accrt_driver_memory_t here = memory_of(f, ACCRT_MEMORY_DEVICE), there;
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &there),
                   ACCRT_OK);
  const char sent[8] = "between";
  char back[8] = "";
  assert_int_equal(copy(f, here.device_address, address_of(sent), 8), ACCRT_OK);
  assert_int_equal(copy(f, there.device_address, here.device_address, 8), ACCRT_OK);
  assert_int_equal(copy(f, address_of(back), there.device_address, 8), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_string_equal(back, sent);
  f->table->memory_free(second, &there);
  f->table->memory_free(f->device, &here);
  f->table->device_close(second);
}

/* A list's copy does too. */
static void test_list_between_devices(void** state) {
  fixture_t* f = *state;
  if (f->table->device_count(f->driver) < 2)
    skip();
  accrt_driver_device_t* second;
  assert_int_equal(f->table->device_open(f->driver, 1, &second), ACCRT_OK);
  accrt_driver_memory_t here = memory_of(f, ACCRT_MEMORY_DEVICE), there;
  assert_int_equal(f->table->memory_allocate(second, ACCRT_MEMORY_DEVICE, 2 * MIB, &there),
                   ACCRT_OK);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_COPY};
  command.as.copy.source = range_of(0, 8);
  command.as.copy.source.binding = 0;
  command.as.copy.target = range_of(0, 8);
  command.as.copy.target.binding = 1;
  command.as.copy.extent[0] = value_of(8);
  command.as.copy.extent[1] = command.as.copy.extent[2] = value_of(1);
  for (int i = 0; i < 2; ++i)
    command.as.copy.source_stride_bytes[i] = command.as.copy.target_stride_bytes[i] = value_of(0);
  const accrt_driver_list_info_t info = {
      .struct_size = sizeof info, .command_count = 1, .commands = &command, .binding_count = 2};
  accrt_driver_list_t* list;
  assert_int_equal(f->table->list_create(f->device, &info, &list), ACCRT_OK);
  const accrt_driver_binding_t bindings[] = {{here.device_address, 8}, {there.device_address, 8}};
  const char sent[8] = "listed";
  char back[8] = "";
  assert_int_equal(copy(f, here.device_address, address_of(sent), 8), ACCRT_OK);
  accrt_driver_submission_t submission = submission_of(f);
  submission.binding_count = 2;
  submission.bindings = bindings;
  assert_int_equal(f->table->queue_execute(f->queue, list, &submission), ACCRT_OK);
  assert_int_equal(copy(f, address_of(back), there.device_address, 8), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_string_equal(back, sent);
  f->table->list_destroy(list);
  f->table->memory_free(second, &there);
  f->table->memory_free(f->device, &here);
  f->table->device_close(second);
}

/* ---- Copies and fills ---- */

static void test_fills(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t device = memory_of(f, ACCRT_MEMORY_DEVICE);
  accrt_driver_memory_t pinned = memory_of(f, ACCRT_MEMORY_PINNED);
  const uint64_t size_bytes = 300 * 1024 + 8;
  unsigned char* host = malloc(size_bytes);
  unsigned char* back = malloc(size_bytes);
  const uint64_t patterns[] = {UINT64_C(0x1122334455667788), UINT64_C(0x1111111111111111)};
  const uint64_t targets[] = {device.device_address, pinned.device_address, address_of(host)};
  const accrt_driver_completion_t nobody = {NULL, NULL};
  for (int p = 0; p < 2; ++p) {
    for (int t = 0; t < 3; ++t) {
      for (uint32_t bytes = 1; bytes <= 8; bytes *= 2) {
        assert_int_equal(fill(f, targets[t], size_bytes, patterns[p], bytes, nobody), ACCRT_OK);
        assert_int_equal(copy(f, address_of(back), targets[t], size_bytes), ACCRT_OK);
        assert_int_equal(wait_all(f), ACCRT_OK);
        const unsigned char* expected = (const unsigned char*)&patterns[p];
        for (uint64_t i = 0; i < size_bytes; ++i)
          assert_int_equal(back[i], expected[i % bytes]);
      }
    }
  }
  free(host);
  free(back);
  f->table->memory_free(f->device, &device);
  f->table->memory_free(f->device, &pinned);
}

/* ---- Machine code ---- */

static void* read_file(const char* path, size_t* out_size_bytes) {
  FILE* file = fopen(path, "rb");
  assert_non_null(file);
  char* bytes = calloc(1, 65536);
  *out_size_bytes = fread(bytes, 1, 65535, file);
  fclose(file);
  return bytes;
}

static accrt_status_t load(const fixture_t* f, uint32_t kind, const void* data, size_t size_bytes,
                           accrt_driver_module_t** out_module) {
  const accrt_driver_image_t image = {
      .kind = kind, .data = data, .size_bytes = size_bytes, .name = "image"};
  return f->table->module_load(f->device, &image, out_module);
}

static accrt_driver_module_t* load_kernels(const fixture_t* f) {
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

static accrt_status_t launch(fixture_t* f, void* module_kernel,
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

static void be_late(fixture_t* f, accrt_driver_module_t* module, uint64_t nanoseconds) {
  void* kernel;
  const late_params_t params = {nanoseconds};
  const accrt_driver_completion_t nobody = {NULL, NULL};
  assert_int_equal(f->table->module_find(module, "tx_late", &late_definition, &kernel), ACCRT_OK);
  assert_int_equal(launch(f, kernel, &late_definition, 1, &params, nobody), ACCRT_OK);
}

/* Memory that is freed while the queue still uses it is unmapped when that work has ended. */
static void test_free_waits_for_work(void** state) {
  fixture_t* f = *state;
  accrt_driver_module_t* module = load_kernels(f);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  be_late(f, module, LATE_NS);
  assert_int_equal(fill(f, memory.device_address, MIB, 7, 4, nobody), ACCRT_OK);
  f->table->memory_free(f->device, &memory);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->module_unload(module);
}

static void test_kernel(void** state) {
  fixture_t* f = *state;
  accrt_driver_module_t* module = load_kernels(f);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  void* kernel;
  assert_int_equal(f->table->module_find(module, "tx_add", &add_definition, &kernel), ACCRT_OK);
  assert_int_equal(fill(f, memory.device_address, 4096, 1, 4, nobody), ACCRT_OK);
  const add_params_t params = {memory.device_address, 5, 1000};
  assert_int_equal(launch(f, kernel, &add_definition, 16, &params, nobody), ACCRT_OK);
  assert_int_equal(launch(f, kernel, &add_definition, 0, &params, nobody), ACCRT_OK);
  uint32_t back[1024];
  assert_int_equal(copy(f, address_of(back), memory.device_address, sizeof back), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  assert_int_equal(back[999], 6);
  assert_int_equal(back[1000], 1);
  assert_error(launch(f, NULL, &add_definition, 1, &params, nobody), ACCRT_ERROR_UNSUPPORTED,
               "host kernel");
  f->table->module_unload(module);
  f->table->memory_free(f->device, &memory);
}

static void refuse_find(const fixture_t* f, accrt_driver_module_t* module, const char* entry,
                        const accrt_kernel_def_t* declared, accrt_status_t expected,
                        const char* part) {
  void* kernel = module;
  assert_error(f->table->module_find(module, entry, declared, &kernel), expected, part);
  assert_null(kernel);
}

static void test_declarations_are_checked(void** state) {
  const fixture_t* f = *state;
  accrt_driver_module_t* module = load_kernels(f);
  accrt_kernel_param_t params[3];
  memcpy(params, add_list, sizeof params);
  accrt_kernel_def_t wrong = add_definition;
  wrong.params = params;
  refuse_find(f, module, "nothing", &wrong, ACCRT_ERROR_NOT_FOUND, "no kernel 'nothing'");
  params[2].size_bytes = 8;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_INVALID_FORMAT,
              "parameter 2 'count': declared at offset 12 with 8 bytes, in the image at offset 12 "
              "with 4 bytes");
  params[2].size_bytes = 4;
  wrong.param_count = 2;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_INVALID_FORMAT, "2 parameters");
  wrong = add_definition;
  wrong.block[1] = 0;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_INVALID_FORMAT, "64 x 0 x 1");
  wrong.block[1] = 17;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_UNSUPPORTED, "1088");
  wrong = add_definition;
  wrong.local_memory_size_bytes = 1u << 20;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_UNSUPPORTED, "dynamic shared memory");
  wrong = add_definition;
  wrong.cluster[0] = 17;
  wrong.cluster[1] = wrong.cluster[2] = 1;
  refuse_find(f, module, "tx_add", &wrong, ACCRT_ERROR_UNSUPPORTED, "cluster");
  f->table->module_unload(module);
}

static void test_images_are_checked(void** state) {
  const fixture_t* f = *state;
  accrt_driver_module_t* module;
  test_cubin_t cubin = test_cubin(100);
  unsigned char fatbin[2048];
  size_t size = test_fatbin_add(fatbin, 0, 2, 80, 0, &cubin, sizeof cubin);
  assert_error(load(f, IMAGE_CUBIN, &cubin, sizeof cubin, &module), ACCRT_ERROR_NO_VARIANT,
               "is for sm_100; cuda:0 is sm_90");
  assert_null(module);
  assert_error(load(f, IMAGE_FATBIN, fatbin, size, &module), ACCRT_ERROR_NO_VARIANT,
               "is for sm_80; cuda:0 is sm_90");
  const uint64_t before = count("cuLibraryLoadData");
  assert_error(load(f, IMAGE_CUBIN, "no", 2, &module), ACCRT_ERROR_INVALID_FORMAT, "ELF header");
  assert_error(load(f, IMAGE_CUBIN, fatbin, size, &module), ACCRT_ERROR_INVALID_FORMAT,
               "not an ELF file");
  assert_error(load(f, IMAGE_FATBIN, &cubin, sizeof cubin, &module), ACCRT_ERROR_INVALID_FORMAT,
               "not a fatbin");
  assert_error(load(f, IMAGE_FATBIN, fatbin, size - 1, &module), ACCRT_ERROR_INVALID_FORMAT,
               "image 'image': fatbin of version 1: a header of 16 and entries of");
  cubin.header.e_shoff = UINT64_MAX - 63;
  assert_error(load(f, IMAGE_CUBIN, &cubin, sizeof cubin, &module), ACCRT_ERROR_INVALID_FORMAT,
               "section headers of 64 bytes at 18446744073709551552 do not fit");
  size = test_fatbin_add(fatbin, 0, 2, 90, 0, &cubin, sizeof cubin);
  assert_error(load(f, IMAGE_FATBIN, fatbin, size, &module), ACCRT_ERROR_INVALID_FORMAT,
               "fatbin entry at 16: 6 section headers");
  assert_int_equal(count("cuLibraryLoadData"), before); /* CUDA saw none of them */
  assert_error(load(f, 1, "", 0, &module), ACCRT_ERROR_UNSUPPORTED, "kind 1");
}

static void test_compiled_ptx_is_kept(void** state) {
  (void)state;
  char folder[] = "/tmp/accrt-cuda-XXXXXX", inner[64], command[128];
  assert_non_null(mkdtemp(folder));
  snprintf(inner, sizeof inner, "%s/ptx", folder);
  options[0][0] = "cuda.cache";
  options[0][1] = inner;
  void* held;
  set_up(&held);
  fixture_t* f = held;
  const uint64_t before = count("cuLinkCreate");
  f->table->module_unload(load_kernels(f));
  assert_int_equal(count("cuLinkCreate"), before + 1);
  f->table->module_unload(load_kernels(f));
  assert_int_equal(count("cuLinkCreate"), before + 1);
  tear_down(&held);
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

/* ---- Queues ---- */

typedef struct told {
  atomic_uint count;
  accrt_status_t statuses[64];
  uint64_t submissions[64];
  int32_t codes[64];
} told_t;

static void tell(void* user, accrt_status_t status, const accrt_error_t* error, uint64_t time_ns) {
  told_t* told = user;
  const unsigned index = atomic_load(&told->count);
  told->statuses[index] = status;
  told->submissions[index] = error != NULL ? error->submission : 0;
  told->codes[index] = error != NULL ? error->driver_code : 0;
  (void)time_ns;
  atomic_fetch_add(&told->count, 1);
}

static void wait_for(const told_t* told, unsigned expected) {
  const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS);
  while (atomic_load(&told->count) < expected && accrt_deadline_left_ns(deadline_ns) > 0)
    usleep(100);
  assert_int_equal(atomic_load(&told->count), expected);
}

static void test_progress_and_waits(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  const uint32_t policies[] = {ACCRT_WAIT_BLOCK, ACCRT_WAIT_YIELD, ACCRT_WAIT_SPIN};
  const uint64_t timeouts[] = {PATIENCE_NS, ACCRT_TIMEOUT_INFINITE};
  for (int p = 0; p < 3; ++p) {
    for (int t = 0; t < 2; ++t) {
      for (int i = 0; i < 10; ++i)
        assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
      /* An earlier one, then the last. */
      assert_int_equal(f->table->queue_wait(f->queue, f->number - 5, timeouts[t], policies[p]),
                       ACCRT_OK);
      assert_int_equal(f->table->queue_wait(f->queue, f->number, timeouts[t], policies[p]),
                       ACCRT_OK);
      uint64_t number;
      assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
      assert_int_equal(number, f->number);
    }
  }
  /* Numbers that were never submitted to the queue. */
  assert_int_equal(f->table->queue_wait(f->queue, f->number + 100, PATIENCE_NS, ACCRT_WAIT_SPIN),
                   ACCRT_OK);
  accrt_driver_module_t* module = load_kernels(f);
  be_late(f, module, VERY_LATE_NS);
  for (int p = 0; p < 3; ++p) {
    assert_error(f->table->queue_wait(f->queue, f->number, 1000, policies[p]), ACCRT_ERROR_TIMEOUT,
                 "within 1000 ns");
  }
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->module_unload(module);
  f->table->memory_free(f->device, &memory);
}

/* What a foreign library may put on the stream: work that waits for a thread of the host. */
static void hold_stream(void* user) {
  const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS);
  while (!atomic_load((atomic_bool*)user) && accrt_deadline_left_ns(deadline_ns) > 0)
    usleep(100);
}

typedef struct number_wait {
  fixture_t* f;
  uint64_t number;
  accrt_status_t status;
  atomic_bool over;
} number_wait_t;

static void* wait_for_number(void* argument) {
  number_wait_t* self = argument;
  self->status = self->f->table->queue_wait(self->f->queue, self->number, ACCRT_TIMEOUT_INFINITE,
                                            ACCRT_WAIT_BLOCK);
  atomic_store(&self->over, true);
  return NULL;
}

/* A wait for an earlier submission ends at the nearest event behind it: here there is one, which a
 * query of the progress has left. Without one it may wait for more, but not beyond its limit. */
static void test_waits_for_earlier_numbers(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  accrt_driver_module_t* module = load_kernels(f);
  for (int is_known = 0; is_known < 2; ++is_known) {
    atomic_bool gate = false;
    number_wait_t wait = {.f = f};
    pthread_t thread;
    uint64_t before = 0;
    be_late(f, module, LATE_NS);
    wait.number = f->number;
    if (is_known != 0) {
      assert_int_equal(f->table->queue_progress(f->queue, &before), ACCRT_OK);
      assert_true(before < wait.number);
    }
    assert_int_equal(
        api_of(f)->cuLaunchHostFunc(((cuda_queue_t*)f->queue)->stream, hold_stream, &gate),
        CUDA_SUCCESS);
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
    if (is_known == 0) {
      const accrt_status_t status =
          f->table->queue_wait(f->queue, wait.number, 1000, ACCRT_WAIT_BLOCK);
      assert_int_equal(status, ACCRT_ERROR_TIMEOUT);
      atomic_store(&gate, true);
    }
    assert_int_equal(pthread_create(&thread, NULL, wait_for_number, &wait), 0);
    const uint64_t deadline_ns = accrt_deadline_ns(PATIENCE_NS / 2);
    while (!atomic_load(&wait.over) && accrt_deadline_left_ns(deadline_ns) > 0)
      usleep(100);
    const bool in_time = atomic_load(&wait.over);
    if (is_known != 0) {
      assert_error(f->table->queue_wait(f->queue, f->number, 1000, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_TIMEOUT, "within 1000 ns");
    }
    atomic_store(&gate, true);
    pthread_join(thread, NULL);
    assert_true(in_time);
    assert_int_equal(wait.status, ACCRT_OK);
    assert_int_equal(wait_all(f), ACCRT_OK);
  }
  f->table->module_unload(module);
  f->table->memory_free(f->device, &memory);
}

static void test_completions_in_order(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK); /* idle: at once */
  assert_int_equal(atomic_load(&told.count), 1);
  for (int i = 0; i < 20; ++i)
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK);
  wait_for(&told, 22);
  for (int i = 0; i < 22; ++i)
    assert_int_equal(told.statuses[i], ACCRT_OK);
  uint64_t number;
  assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
  assert_int_equal(number, f->number);
  f->table->memory_free(f->device, &memory);
}

static void test_traces(void** state) {
  (void)state;
  fixture_t* f = calloc(1, sizeof *f);
  f->environment.tracing = 1;
  f->complaint_count = complaints();
  open_driver(f);
  assert_true(f->table->device_count(f->driver) > 0);
  assert_int_equal(f->table->device_open(f->driver, 0, &f->device), ACCRT_OK);
  assert_int_equal(f->table->queue_create(f->device, 3, &f->queue), ACCRT_OK);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  atomic_store(&traced, 0);
  const uint64_t before_ns = accrt_clock_ns();
  assert_int_equal(copy(f, memory.device_address, memory.device_address + MIB, 64), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  while (atomic_load(&traced) == 0)
    usleep(100);
  assert_int_equal(last_trace.kind, ACCRT_TRACE_COMMAND);
  assert_int_equal(last_trace.status, ACCRT_OK);
  assert_int_equal(last_trace.submission, 1);
  assert_int_equal(last_trace.stream_id, 9);
  assert_true(last_trace.begin_ns <= last_trace.end_ns);
  /* The stand-in's clock and events are the host's: near enough. */
  assert_true(last_trace.end_ns + UINT64_C(100000000) > before_ns);
  f->table->memory_free(f->device, &memory);
  void* held = f;
  tear_down(&held);
}

/* ---- Events ---- */

static void test_events(void** state) {
  fixture_t* f = *state;
  accrt_driver_queue_t* other;
  accrt_driver_event_t *begin, *end;
  assert_int_equal(f->table->queue_create(f->device, -7, &other), ACCRT_OK);
  assert_int_equal(f->table->event_create(f->device, ACCRT_EVENT_FLAG_TIMING, &begin), ACCRT_OK);
  assert_int_equal(f->table->event_create(f->device, ACCRT_EVENT_FLAG_TIMING, &end), ACCRT_OK);
  accrt_driver_module_t* module = load_kernels(f);
  assert_int_equal(f->table->event_record(f->queue, begin), ACCRT_OK);
  be_late(f, module, VERY_LATE_NS);
  assert_int_equal(f->table->event_record(f->queue, end), ACCRT_OK);
  assert_int_equal(f->table->event_wait(other, end), ACCRT_OK);
  assert_error(f->table->event_synchronize(end, 1000, ACCRT_WAIT_BLOCK), ACCRT_ERROR_TIMEOUT,
               "1000 ns");
  int64_t elapsed_ns = -1;
  assert_int_equal(f->table->event_synchronize(end, PATIENCE_NS, ACCRT_WAIT_YIELD), ACCRT_OK);
  assert_int_equal(f->table->event_query(end), ACCRT_OK);
  assert_int_equal(f->table->event_elapsed(begin, end, &elapsed_ns), ACCRT_OK);
  assert_true(elapsed_ns >= (int64_t)LATE_NS / 2);
  f->table->module_unload(module);
  f->table->event_destroy(begin);
  f->table->event_destroy(end);
  f->table->queue_destroy(other);
}

/* ---- Streams of others ---- */

static void test_wrapped_stream(void** state) {
  fixture_t* f = *state;
  const cuda_api_t* api = api_of(f);
  CUstream stream;
  assert_int_equal(api->cuCtxSetCurrent(device_of(f)->context), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   CUDA_SUCCESS);
  accrt_driver_queue_t* own = f->queue;
  assert_int_equal(f->table->queue_wrap(f->device, stream, &f->queue), ACCRT_OK);
  assert_ptr_equal(f->table->queue_native(f->queue), stream);
  use_everything(f);
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  accrt_driver_event_t* event;
  assert_int_equal(f->table->event_create(f->device, 0, &event), ACCRT_OK);
  for (int mode = 0; mode < 3; ++mode) {
    CUgraph graph = NULL;
    uint64_t number;
    told_t told = {.count = 0};
    assert_int_equal(api->cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode), CUDA_SUCCESS);
    assert_error(copy(f, memory.device_address, memory.device_address + MIB, 64),
                 ACCRT_ERROR_INVALID_STATE, "being captured");
    assert_error(f->table->event_record(f->queue, event), ACCRT_ERROR_INVALID_STATE, "captured");
    assert_error(f->table->event_wait(f->queue, event), ACCRT_ERROR_INVALID_STATE, "captured");
    assert_int_equal(f->table->queue_progress(f->queue, &number), ACCRT_OK);
    assert_int_equal(number, f->number);
    /* Other work at the same time, on this thread and on the driver's own, does not affect the
     * capture. */
    accrt_driver_queue_t* wrapped = f->queue;
    const uint64_t numbers = f->number;
    f->queue = own;
    f->number += 1000 * (uint64_t)(mode + 1); /* a queue's numbers only grow */
    use_everything(f);
    const accrt_driver_completion_t completion = {tell, &told};
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
    wait_for(&told, 1);
    f->queue = wrapped;
    f->number = numbers;
    assert_int_equal(api->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    assert_int_equal(api->cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  f->table->event_destroy(event);
  f->table->memory_free(f->device, &memory);
  f->table->queue_destroy(f->queue);
  f->queue = own;
  /* The stream still belongs to its owner. */
  assert_int_equal(api->cuStreamQuery(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
}

static void test_wrapped_stream_of_another_device(void** state) {
  const fixture_t* f = *state;
  const cuda_api_t* api = api_of(f);
  if (f->table->device_count(f->driver) < 2)
    skip();
  CUcontext other;
  CUstream stream;
  assert_int_equal(api->cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(other), CUDA_SUCCESS);
  assert_int_equal(api->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   CUDA_SUCCESS);
  accrt_driver_queue_t* queue;
  assert_error(f->table->queue_wrap(f->device, stream, &queue), ACCRT_ERROR_INVALID_ARGUMENT,
               "not of the primary context of cuda:0");
  assert_null(queue);
  assert_int_equal(api->cuStreamDestroy(stream), CUDA_SUCCESS);
  assert_int_equal(api->cuCtxSetCurrent(NULL), CUDA_SUCCESS);
  assert_int_equal(api->cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

/* ---- A failure of the queue alone ---- */

static void test_failed_queue(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE);
  const accrt_driver_completion_t nobody = {NULL, NULL};
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  accrt_error_t error = {.struct_size = sizeof error, .status = ACCRT_ERROR_KERNEL};
  error.driver_code = 77;
  strcpy(error.message, "an operator's failure");
  accrt_cuda_queue_fail((cuda_queue_t*)f->queue, ++f->number, &error);
  cuda_publish((cuda_queue_t*)f->queue, f->number);
  /* Work before it succeeded. */
  assert_int_equal(f->table->queue_wait(f->queue, f->number - 1, PATIENCE_NS, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  assert_error(wait_all(f), ACCRT_ERROR_KERNEL, "an operator's failure");
  for (int again = 0; again < 2; ++again) {
    uint64_t number = 99;
    assert_error(f->table->queue_progress(f->queue, &number), ACCRT_ERROR_KERNEL, "operator");
    assert_int_equal(number, f->number - 1);
  }
  assert_error(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_ERROR_POISONED, "operator");
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK);
  wait_for(&told, 1);
  assert_int_equal(told.statuses[0], ACCRT_ERROR_KERNEL);
  assert_int_equal(f->table->device_status(f->device), ACCRT_OK);
  assert_int_equal(f->table->queue_reset(f->queue), ACCRT_OK);
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, nobody), ACCRT_OK);
  assert_int_equal(wait_all(f), ACCRT_OK);
  f->table->memory_free(f->device, &memory);
}

/* ---- A lost device ---- */

static void test_lost_device(void** state) {
  fixture_t* f = *state;
  accrt_driver_memory_t memory = memory_of(f, ACCRT_MEMORY_DEVICE), refused;
  accrt_driver_queue_t* queue;
  accrt_driver_event_t* event;
  accrt_driver_module_t* module;
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told};
  assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
  wait_for(&told, 1);
  accrt_driver_module_t* code = load_kernels(f);
  assert_int_equal(control("async=1:700"), 0); /* CUDA_ERROR_ILLEGAL_ADDRESS */
  be_late(f, code, VERY_LATE_NS);
  for (int i = 0; i < 3; ++i)
    assert_int_equal(fill(f, memory.device_address, 64, 1, 4, completion), ACCRT_OK);
  assert_error(wait_all(f), ACCRT_ERROR_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS");
  assert_int_equal(accrt_error_current()->driver_code, 700);
  wait_for(&told, 4);
  assert_int_equal(told.statuses[0], ACCRT_OK);
  assert_int_equal(told.statuses[1], ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(told.submissions[1], 3);
  assert_int_equal(told.codes[1], 700);
  assert_int_equal(told.statuses[2], ACCRT_ERROR_POISONED);
  assert_int_equal(told.statuses[3], ACCRT_ERROR_POISONED);
  /* Every function now returns the first error. */
  uint64_t number = 0;
#define LOST(call) assert_error((call), ACCRT_ERROR_DEVICE_LOST, "CUDA_ERROR_ILLEGAL_ADDRESS")
  LOST(f->table->queue_progress(f->queue, &number));
  assert_true(number >= 1 && number < 3); /* what ended well before */
  LOST(f->table->device_status(f->device));
  LOST(f->table->memory_allocate(f->device, ACCRT_MEMORY_DEVICE, 2 * MIB, &refused));
  LOST(f->table->memory_import(f->device, &number, 8, &refused));
  LOST(f->table->queue_create(f->device, 0, &queue));
  LOST(f->table->event_create(f->device, 0, &event));
  LOST(load(f, IMAGE_PTX, "", 0, &module));
  LOST(copy(f, memory.device_address, memory.device_address + MIB, 64));
  LOST(f->table->queue_reset(f->queue));
#undef LOST
  assert_int_equal(f->table->queue_notify(f->queue, completion), ACCRT_OK);
  wait_for(&told, 5);
  assert_int_equal(told.statuses[4], ACCRT_ERROR_DEVICE_LOST);
  /* All objects can be released, and no call hangs. */
  f->table->module_unload(code);
  f->table->memory_free(f->device, &memory);
}

/* ---- Every call failing once ---- */

/* Returns the number of functions that failed. After a failure, everything that was acquired is
 * released. */
static uint32_t use_all_slots(void) {
  fixture_t f = {.number = 0};
  uint32_t failed = 0;
  open_driver(&f);
  if (f.table->device_count(f.driver) == 0 ||
      f.table->device_open(f.driver, 0, &f.device) != ACCRT_OK) {
    assert_true(accrt_error_current()->message[0] != '\0');
    f.table->close(f.driver);
    return 1;
  }
#define TRY(call) ((call) == ACCRT_OK ? true : (++failed, false))
  accrt_driver_memory_t device, pinned, imported, exported;
  accrt_driver_module_t* module = NULL;
  accrt_driver_event_t *begin = NULL, *end = NULL;
  accrt_driver_queue_t* other = NULL;
  void* kernel = NULL;
  told_t told = {.count = 0};
  const accrt_driver_completion_t completion = {tell, &told}, nobody = {NULL, NULL};
  static char pages[8192];
  unsigned expected = 0;
  const bool has_device =
      TRY(f.table->memory_allocate(f.device, ACCRT_MEMORY_DEVICE, 2 * MIB, &device));
  const bool has_pinned =
      TRY(f.table->memory_allocate(f.device, ACCRT_MEMORY_PINNED, 2 * MIB, &pinned));
  const bool has_import = TRY(f.table->memory_import(f.device, pages, sizeof pages, &imported));
  const bool has_export =
      TRY(f.table->memory_allocate_exportable(f.device, 1, ACCRT_DRIVER_HANDLE_FD, &exported));
  if (has_export) {
    accrt_driver_handle_t handle;
    accrt_driver_memory_t opened;
    if (TRY(f.table->memory_export(f.device, &exported, ACCRT_DRIVER_HANDLE_FD, &handle))) {
      if (TRY(f.table->memory_import_handle(f.device, &handle, &opened)))
        f.table->memory_unimport(f.device, &opened);
      close(handle.fd);
    }
  }
  size_t size_bytes;
  void* text = read_file(KERNELS, &size_bytes);
  if (TRY(load(&f, IMAGE_PTX, text, size_bytes, &module)))
    (void)TRY(f.table->module_find(module, "tx_add", &add_definition, &kernel));
  free(text);
  if (TRY(f.table->queue_create(f.device, 0, &f.queue)) && has_device) {
    (void)TRY(fill(&f, device.device_address, MIB, UINT64_C(0x100000002), 8, nobody));
    if (TRY(fill(&f, device.device_address, 4096, 1, 2, completion)))
      ++expected;
    const add_params_t params = {device.device_address, 1, 64};
    if (kernel != NULL)
      (void)TRY(launch(&f, kernel, &add_definition, 1, &params, nobody));
    if (has_import)
      (void)TRY(copy(&f, device.device_address, imported.device_address, 100));
    if (has_pinned)
      (void)TRY(copy(&f, pinned.device_address, device.device_address, 100));
    (void)TRY(fill(&f, address_of(pages), 64, 1, 1, nobody));
    uint64_t number;
    (void)TRY(f.table->queue_progress(f.queue, &number));
    if (TRY(f.table->queue_notify(f.queue, completion)))
      ++expected;
    (void)TRY(wait_all(&f));
    if (TRY(f.table->event_create(f.device, ACCRT_EVENT_FLAG_TIMING, &begin)) &&
        TRY(f.table->event_create(f.device, ACCRT_EVENT_FLAG_TIMING, &end)) &&
        TRY(f.table->queue_create(f.device, 5, &other))) {
      int64_t elapsed_ns;
      const bool recorded =
          TRY(f.table->event_record(f.queue, begin)) && TRY(f.table->event_record(f.queue, end));
      (void)TRY(f.table->event_wait(other, end));
      (void)TRY(f.table->event_synchronize(end, PATIENCE_NS, ACCRT_WAIT_BLOCK));
      if (recorded)
        (void)TRY(f.table->event_elapsed(begin, end, &elapsed_ns));
      accrt_driver_queue_t* wrapped;
      if (TRY(f.table->queue_wrap(f.device, f.table->queue_native(other), &wrapped)))
        f.table->queue_destroy(wrapped);
    }
    wait_for(&told, expected);
  }
#undef TRY
  if (begin != NULL)
    f.table->event_destroy(begin);
  if (end != NULL)
    f.table->event_destroy(end);
  if (other != NULL)
    f.table->queue_destroy(other);
  if (has_import)
    f.table->memory_unimport(f.device, &imported);
  if (has_export)
    f.table->memory_free(f.device, &exported);
  if (has_device)
    f.table->memory_free(f.device, &device);
  if (has_pinned)
    f.table->memory_free(f.device, &pinned);
  if (f.queue != NULL)
    f.table->queue_destroy(f.queue);
  if (module != NULL)
    f.table->module_unload(module);
  f.table->device_close(f.device);
  f.table->close(f.driver);
  assert_int_equal(live_allocations, 0);
  return failed;
}

static void test_every_call_fails_once(void** state) {
  (void)state;
  static const char* const names[] = {
#define CUDA_SYMBOL(name, version) #name,
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
  };
  assert_int_equal(use_all_slots(), 0);
  uint32_t called = 0, seen = 0;
  for (size_t n = 0; n < sizeof names / sizeof names[0]; ++n) {
    const uint64_t before = count(names[n]);
    assert_int_equal(use_all_slots(), 0);
    uint64_t calls = count(names[n]) - before;
    called += calls > 0;
    /* The number of queries varies. A few of them are enough for the test. */
    calls = calls < 12 ? calls : 12;
    uint32_t failing = 0;
    for (uint64_t k = 1; k <= calls; ++k) {
      char setting[100];
      snprintf(setting, sizeof setting, "fail=%s:%llu=%d", names[n], (unsigned long long)k,
               k % 2 == 0 ? (int)CUDA_ERROR_INVALID_VALUE : (int)CUDA_ERROR_OUT_OF_MEMORY);
      assert_int_equal(control(setting), 0);
      failing += use_all_slots() > 0;
      assert_int_equal(control("reset"), 0);
    }
    seen += failing > 0;
  }
  print_message("%u entry points called, failures of %u seen by the caller\n", called, seen);
  assert_true(called > 40 && seen > 30);
}

int main(void) {
  if (!find_stand_in()) {
    printf("skipped: libcuda.so.1 is not the stand-in\n");
    return 0;
  }
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_start_failures),
      cmocka_unit_test(test_old_driver),
      cmocka_unit_test(test_no_driver),
      cmocka_unit_test(test_exclusive),
      cmocka_unit_test(test_bad_options),
      cmocka_unit_test(test_versions),
      TEST(test_info),
      TEST(test_current_context_is_kept),
      TEST(test_memory_kinds),
      TEST(test_out_of_memory),
      cmocka_unit_test(test_plain_memory),
      TEST(test_free_waits_for_work),
      TEST(test_import_host_memory),
      TEST(test_import_device_memory),
      TEST(test_export_by_descriptor),
      TEST(test_export_refused),
      TEST(test_peers),
      TEST(test_copy_between_devices),
      TEST(test_list_between_devices),
      TEST(test_fills),
      TEST(test_kernel),
      TEST(test_declarations_are_checked),
      TEST(test_images_are_checked),
      cmocka_unit_test(test_compiled_ptx_is_kept),
      TEST(test_progress_and_waits),
      TEST(test_waits_for_earlier_numbers),
      TEST(test_completions_in_order),
      cmocka_unit_test(test_traces),
      TEST(test_events),
      TEST(test_wrapped_stream),
      TEST(test_wrapped_stream_of_another_device),
      TEST(test_failed_queue),
      TEST(test_lost_device),
      cmocka_unit_test(test_every_call_fails_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
