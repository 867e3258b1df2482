/* tests/fakecuda/faults.c - what the library says when the CUDA driver fails: every class of fault, through the public API, under
 * the stand-in. After each the host's device works, nothing is left, and the stand-in has seen no misuse.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>

#include "stand_in.h"
#include "../cts/operation.h"

#define MIB (UINT64_C(1) << 20)

static char module_text[1 << 16];

/* ---- The stand-in ---- */

static int set_up_group(void** state) {
  (void)state;
  find_stand_in();
  FILE* file = fopen(FAKECUDA_PTX, "rb");
  assert_non_null(file);
  assert_true(fread(module_text, 1, sizeof module_text - 1, file) > 0);
  fclose(file);
  return 0;
}

/* ---- Checks ---- */

static void check_ok(accrt_status_t status, const char* expression, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status != ACCRT_OK) {
    print_error("line %d: %s gave %s: %s\n", line, expression, accrt_status_name(status),
                error.message);
    fail();
  }
}
#define OK(expression) check_ok((expression), #expression, __LINE__)

/* Fails with this status, CUDA's own code in the record, and these words in the message. */
static void check_fails(accrt_status_t status, accrt_status_t wanted, int32_t code,
                        const char* words, const char* expression, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status == wanted && error.status == wanted && error.driver_code == code &&
      strstr(error.message, words) != NULL && strchr(error.message, '\n') == NULL &&
      operation_fits(expression, error.operation))
    return;
  print_error("line %d: %s gave %s, driver code %d, in %s: %s\n  expected %s, %d, '%s'\n", line,
              expression, accrt_status_name(status), error.driver_code, error.operation,
              error.message, accrt_status_name(wanted), code, words);
  fail();
}
#define FAILS(name, code, words, expression)                                                       \
  check_fails((expression), ACCRT_ERROR_##name, code, words, #expression, __LINE__)

static accrt_place_t at(accrt_buffer_t* buffer) {
  return (accrt_place_t){.buffer = buffer};
}

static accrt_place_t host(void* pointer) {
  return (accrt_place_t){.pointer = pointer};
}

/* The host's device is not harmed by what happens to another. */
static void check_host(accrt_instance_t* instance) {
  accrt_device_t* device = NULL;
  accrt_stream_t* stream = NULL;
  accrt_pool_t* pool = NULL;
  accrt_buffer_t* buffer = NULL;
  uint32_t words[16] = {0};
  OK(accrt_instance_device_by_name(instance, "host", &device));
  OK(accrt_stream_create(device, NULL, &stream));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_buffer_create(pool, sizeof words, NULL, &buffer));
  const accrt_place_t from = at(buffer);
  const accrt_place_t to = host(words);
  OK(accrt_stream_fill(stream, &from, sizeof words, 4711, 4));
  OK(accrt_stream_copy(stream, &from, &to, sizeof words));
  OK(accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK));
  assert_int_equal(words[15], 4711);
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
}

static void check_gone(accrt_instance_t* instance) {
  demand("reset");
  accrt_instance_release(instance);
  assert_int_equal(atomic_load(&live_allocations), 0);
}

/* ---- A device that cannot be had ---- */

static void check_no_device(const char* setting, const char* undo, accrt_status_t wanted,
                            int32_t code, const char* words) {
  if (setting != NULL)
    demand(setting);
  accrt_instance_t* instance = instance_with(NULL, NULL);
  accrt_device_t* device = (accrt_device_t*)instance;
  check_fails(accrt_instance_device_by_name(instance, "cuda:0", &device), wanted, code, words,
              setting, __LINE__);
  assert_null(device);
  check_host(instance);
  if (undo != NULL)
    demand(undo);
  check_gone(instance);
}

static void test_no_driver(void** state) {
  (void)state;
  accrt_instance_t* instance = instance_with("cuda.library", "libno-such-driver.so.1");
  accrt_device_t* device = NULL;
  FAILS(NOT_FOUND, 0, "libno-such-driver.so.1",
        accrt_instance_device_by_name(instance, "cuda:0", &device));
  check_host(instance);
  check_gone(instance);
}

static void test_old_driver(void** state) {
  (void)state;
  check_no_device("version=12020", "version=13000", ACCRT_ERROR_VERSION_MISMATCH, 0, "12.2");
}

static void test_no_device(void** state) {
  (void)state;
  check_no_device("fail=cuInit:1+=100", NULL, ACCRT_ERROR_NOT_FOUND, 100, "CUDA_ERROR_NO_DEVICE");
}

static void test_mismatched_driver(void** state) {
  (void)state;
  check_no_device("fail=cuInit:1+=803", NULL, ACCRT_ERROR_VERSION_MISMATCH, 803,
                  "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}

static void test_exclusive_device(void** state) {
  (void)state;
  check_no_device("exclusive=1", "exclusive=0", ACCRT_ERROR_PERMISSION_DENIED, 46,
                  "cuda:0: the device cannot be used: its compute mode is 'prohibited'");
  /* Another process has it, in exclusive mode. */
  check_no_device("exclusive=2", "exclusive=0", ACCRT_ERROR_PERMISSION_DENIED, 46,
                  "cuda:0: the device cannot be used: its compute mode is 'exclusive process', and "
                  "another process has it");
  check_no_device("exclusive=2", "exclusive=0", ACCRT_ERROR_PERMISSION_DENIED, 46,
                  "CUDA_ERROR_DEVICE_UNAVAILABLE");
}

/* ---- A device at work ---- */

typedef struct work {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_pool_t* pool;
  accrt_kernel_pack_t* pack;
  accrt_buffer_t* log;
} work_t;

static const accrt_kernel_param_t append_params[] = {
    {"log", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0, 3, 0, 8, 0},
    {"number", ACCRT_KERNEL_PARAM_SCALAR, ACCRT_KERNEL_ACCESS_NONE, 0, 2, 8, 4, 0},
};

static accrt_status_t load(work_t* work) {
  static const accrt_kernel_def_t kernel = {.struct_size = sizeof kernel,
                                            .name = "append",
                                            .params = append_params,
                                            .param_count = 2,
                                            .params_size_bytes = 12,
                                            .block = {1, 1, 1}};
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.kind = ACCRT_MODULE_PTX;
  options.image = module_text;
  options.size_bytes = strlen(module_text) + 1;
  options.kernels = &kernel;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof kernel;
  return accrt_kernel_module_load(work->device, &options, &work->pack);
}

static accrt_status_t begin(work_t* work) {
  accrt_status_t status = accrt_instance_device_by_name(work->instance, "cuda:0", &work->device);
  if (status == ACCRT_OK)
    status = accrt_stream_create(work->device, NULL, &work->stream);
  if (status == ACCRT_OK)
    status = accrt_device_pool(work->device, ACCRT_MEMORY_DEVICE, &work->pool);
  if (status == ACCRT_OK)
    status = accrt_buffer_create(work->pool, 4096, NULL, &work->log);
  return status == ACCRT_OK ? load(work) : status;
}

static void end(work_t* work) {
  accrt_buffer_release(work->log);
  accrt_kernel_pack_release(work->pack);
  accrt_stream_release(work->stream);
}

static work_t start(void) {
  work_t work = {.instance = instance_with(NULL, NULL)};
  OK(begin(&work));
  return work;
}

static void finish(work_t* work) {
  check_host(work->instance);
  end(work);
  check_gone(work->instance);
}

static const uint32_t one[3] = {1, 1, 1};

static accrt_status_t clear_log(work_t* work) {
  const accrt_place_t log = at(work->log);
  return accrt_stream_fill(work->stream, &log, 4096, 0, 4);
}

static accrt_status_t append(work_t* work, uint32_t number) {
  accrt_kernel_t* kernel = NULL;
  const accrt_kernel_argument_t arguments[2] = {
      {.kind = ACCRT_KERNEL_PARAM_BUFFER,
       .binding = ACCRT_BINDING_NONE,
       .buffer = work->log,
       .size_bytes = UINT64_MAX},
      {.kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = number}};
  const accrt_status_t status = accrt_kernel_pack_find(work->pack, "append", &kernel);
  return status != ACCRT_OK ? status
                            : accrt_stream_launch(work->stream, kernel, one, arguments, 2,
                                                  (uint32_t)sizeof(accrt_kernel_argument_t));
}

static accrt_status_t synchronize(work_t* work) {
  return accrt_stream_synchronize(work->stream, PATIENCE, ACCRT_WAIT_BLOCK);
}

/* A prepared launch whose block the test writes, to give the kernel an address that leads nowhere. */
static accrt_status_t append_to(work_t* work, uint64_t address) {
  accrt_kernel_t* kernel = NULL;
  accrt_launch_t* launch = NULL;
  OK(accrt_kernel_pack_find(work->pack, "append", &kernel));
  OK(accrt_launch_create(work->device, kernel, &launch));
  memcpy(accrt_launch_params(launch), &address, sizeof address);
  const accrt_status_t status = accrt_stream_launch_prepared(work->stream, launch, one);
  accrt_launch_release(launch);
  return status;
}

/* What holds once a device is lost, by whatever fault. */
static void check_lost(work_t* work, int32_t code, const char* name) {
  accrt_stream_t* stream = (accrt_stream_t*)work;
  accrt_buffer_t* buffer = (accrt_buffer_t*)work;
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_device_status(work->device), ACCRT_ERROR_DEVICE_LOST);
  const accrt_status_t status = synchronize(work);
  assert_true(status == ACCRT_ERROR_DEVICE_LOST || status == ACCRT_ERROR_POISONED);
  OK(accrt_stream_error(work->stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(error.driver_code, code);
  assert_string_equal(error.driver_name, name);
  assert_int_equal(accrt_stream_reset(work->stream), ACCRT_ERROR_DEVICE_LOST); /* for ever */
  assert_int_not_equal(append(work, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_create(work->device, NULL, &stream), ACCRT_ERROR_DEVICE_LOST);
  assert_null(stream);
  assert_int_not_equal(accrt_buffer_create(work->pool, 512 * MIB, NULL, &buffer), ACCRT_OK);
  assert_null(buffer);
}

/* ---- Asynchronous faults ---- */

/* The thread sanitizer does not survive a second jump out of a signal handler, which is how the stand-in ends a stray access. */
#if defined(__SANITIZE_THREAD__)
#define MAY_STRAY false
#define MOST_CALLS 1
#else
#define MAY_STRAY true
#define MOST_CALLS 3
#endif

static void test_stray_kernel(void** state) {
  (void)state;
  if (!MAY_STRAY)
    return;
  work_t work = start();
  OK(append_to(&work, 0x123456000));
  accrt_status_t status = synchronize(&work);
  assert_true(status == ACCRT_ERROR_DEVICE_LOST || status == ACCRT_ERROR_POISONED);
  check_lost(&work, 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
  finish(&work);
}

static void test_memory_used_after_it_went(void** state) {
  (void)state;
  if (!MAY_STRAY)
    return;
  work_t work = start();
  accrt_pool_t* pool = NULL;
  accrt_buffer_t* gone = NULL;
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  OK(accrt_pool_create(work.device, NULL, &pool));
  OK(accrt_buffer_create(pool, 4096, NULL, &gone));
  OK(accrt_buffer_info(gone, &info));
  accrt_buffer_release(gone);
  accrt_pool_release(pool);
  OK(append_to(&work, info.device_address));
  accrt_status_t status = synchronize(&work);
  assert_true(status == ACCRT_ERROR_DEVICE_LOST || status == ACCRT_ERROR_POISONED);
  check_lost(&work, 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
  finish(&work);
}

static void test_context_lost_after_launches(void** state) {
  (void)state;
  work_t work = start();
  OK(clear_log(&work));
  demand("lose=5:719");
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < 50 && status == ACCRT_OK; ++i)
    status = append(&work, i);
  if (status == ACCRT_OK)
    status = synchronize(&work);
  assert_int_not_equal(status, ACCRT_OK);
  check_lost(&work, 719, "CUDA_ERROR_LAUNCH_FAILED");
  finish(&work);
}

static void test_error_that_shows_later(void** state) {
  (void)state;
  work_t work = start();
  accrt_semaphore_t* semaphore = NULL;
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_semaphore_create(work.instance, 0, &semaphore));
  OK(clear_log(&work));
  OK(synchronize(&work));
  demand("async=0:714"); /* CUDA_ERROR_HARDWARE_STACK_ERROR */
  OK(append(&work, 1));
  const accrt_status_t signalled = accrt_stream_signal(work.stream, semaphore, 1);
  assert_true(signalled == ACCRT_OK || signalled == ACCRT_ERROR_POISONED ||
              signalled == ACCRT_ERROR_DEVICE_LOST);
  if (signalled == ACCRT_OK) { /* who waits for it learns why it does not come */
    assert_int_equal(accrt_semaphore_wait(semaphore, 1, PATIENCE, ACCRT_WAIT_BLOCK),
                     ACCRT_ERROR_POISONED);
    OK(accrt_semaphore_error(semaphore, &error));
    assert_int_equal(error.status, ACCRT_ERROR_DEVICE_LOST);
    assert_int_equal(error.driver_code, 714);
  }
  (void)synchronize(&work);
  check_lost(&work, 714, "CUDA_ERROR_HARDWARE_STACK_ERROR");
  accrt_semaphore_release(semaphore);
  finish(&work);
}

/* The other device does not notice. */
static void test_other_device_works_on(void** state) {
  (void)state;
  if (!MAY_STRAY)
    return;
  work_t work = start();
  work_t other = {.instance = work.instance};
  OK(append_to(&work, 0x123456000));
  (void)synchronize(&work);
  check_lost(&work, 700, "CUDA_ERROR_ILLEGAL_ADDRESS");
  OK(accrt_instance_device_by_name(work.instance, "cuda:1", &other.device));
  OK(accrt_stream_create(other.device, NULL, &other.stream));
  OK(accrt_device_pool(other.device, ACCRT_MEMORY_DEVICE, &other.pool));
  OK(accrt_buffer_create(other.pool, 4096, NULL, &other.log));
  OK(load(&other));
  OK(clear_log(&other));
  OK(append(&other, 7));
  uint32_t words[2] = {0, 0};
  const accrt_place_t log = at(other.log);
  const accrt_place_t out = host(words);
  OK(accrt_stream_copy(other.stream, &log, &out, 8));
  OK(synchronize(&other));
  assert_int_equal(words[1], 7);
  end(&other);
  finish(&work);
}

/* ---- Memory runs out ---- */

static void test_memory_runs_out(void** state) {
  (void)state;
  enum { COUNT = 64 };
  accrt_buffer_t* buffers[COUNT] = {NULL};
  demand("memory=268435456");
  work_t work = start();
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.label = "one of many";
  uint32_t count = 0;
  accrt_status_t status = ACCRT_OK;
  for (; count < COUNT; ++count) {
    status = accrt_buffer_create(work.pool, 30 * MIB, &options, &buffers[count]);
    if (status != ACCRT_OK)
      break;
  }
  FAILS(OUT_OF_DEVICE_MEMORY, 2, "one of many",
        status); /* who holds what, and how much all others have left */
  FAILS(OUT_OF_DEVICE_MEMORY, 2, " of 268435456 bytes are free", status);
  assert_true(count >= 4 && count < 9);
  assert_null(buffers[count]);
  /* What is there still works, and room that is made is found: pools that hold it are trimmed. */
  OK(clear_log(&work));
  OK(append(&work, 3));
  OK(synchronize(&work));
  for (uint32_t i = 0; i < count; ++i)
    accrt_buffer_release(buffers[i]);
  accrt_pool_t* other = NULL;
  accrt_buffer_t* large = NULL;
  OK(accrt_pool_create(work.device, NULL, &other));
  OK(accrt_buffer_create(other, 150 * MIB, NULL, &large));
  accrt_buffer_release(large);
  accrt_pool_release(other);
  finish(&work);
  demand("memory=4294967296");
}

static void test_allocation_is_refused_once(void** state) {
  (void)state;
  work_t work = start();
  accrt_buffer_t* buffer = NULL;
  demand("fail=cuMemCreate:1=2");
  OK(accrt_buffer_create(work.pool, 100 * MIB, NULL, &buffer)); /* after a trim, and once again */
  accrt_buffer_release(buffer);
  finish(&work);
}

/* ---- Any call fails ---- */

/* Something of everything; the first failure ends it. */
static accrt_status_t do_everything(work_t* work) {
  uint32_t words[4] = {0};
  uint32_t seen[4] = {0};
  const accrt_place_t log = at(work->log);
  const accrt_place_t out = host(words);
  accrt_event_t* event = NULL;
  accrt_semaphore_t* semaphore = NULL;
  accrt_commands_t* commands = NULL;
  accrt_launch_t* launch = NULL;
  accrt_kernel_t* kernel = NULL;
  accrt_stream_t* other = NULL;
#define TRY(expression)                                                                            \
  do {                                                                                             \
    status = (expression);                                                                         \
    if (status != ACCRT_OK)                                                                        \
      goto out;                                                                                    \
  } while (0)
  accrt_status_t status;
  TRY(accrt_semaphore_create(work->instance, 0, &semaphore));
  TRY(accrt_stream_create(work->device, NULL, &other));
  TRY(accrt_event_create(work->device, ACCRT_EVENT_FLAG_TIMING, &event));
  TRY(clear_log(work));
  TRY(append(work, 11));
  TRY(accrt_stream_record(work->stream, event));
  TRY(accrt_stream_wait_event(other, event));
  const accrt_copy_region_t region = {{4, 2, 1}, {4, 0}, {8, 0}};
  const accrt_place_t far = {.buffer = work->log, .offset_bytes = 1024};
  TRY(accrt_stream_copy_strided(other, &log, &far, &region));
  TRY(accrt_stream_signal(other, semaphore, 1));
  TRY(accrt_stream_wait(work->stream, semaphore, 1));
  TRY(accrt_kernel_pack_find(work->pack, "append", &kernel));
  TRY(accrt_launch_create(work->device, kernel, &launch));
  const accrt_kernel_argument_t buffer_argument = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                                   .binding = ACCRT_BINDING_NONE,
                                                   .buffer = work->log,
                                                   .size_bytes = UINT64_MAX};
  const accrt_kernel_argument_t number_argument = {
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 22};
  TRY(accrt_launch_set(launch, 0, &buffer_argument, (uint32_t)sizeof buffer_argument));
  TRY(accrt_launch_set(launch, 1, &number_argument, (uint32_t)sizeof number_argument));
  TRY(accrt_stream_launch_prepared(work->stream, launch, one));
  TRY(accrt_commands_create(work->device, 1, &commands));
  const accrt_binding_place_t place = {.binding = 0, .place = {.offset_bytes = 2048}};
  const accrt_kernel_argument_t recorded[2] = {
      {.kind = ACCRT_KERNEL_PARAM_BUFFER, .binding = 0, .size_bytes = UINT64_MAX},
      {.kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 33}};
  TRY(accrt_commands_fill(commands, &place, 64, 5, 4, NULL, NULL));
  TRY(accrt_commands_dispatch(commands, kernel, one, recorded, 2, (uint32_t)sizeof recorded[0],
                              NULL, NULL));
  TRY(accrt_commands_finalize(commands));
  const accrt_binding_t binding = {.buffer = work->log, .size_bytes = UINT64_MAX};
  TRY(accrt_stream_submit(work->stream, commands, &binding, 1, (uint32_t)sizeof binding));
  TRY(accrt_stream_copy(work->stream, &log, &out, sizeof words));
  TRY(synchronize(work));
  memcpy(seen, words, sizeof seen);
  TRY(accrt_event_synchronize(event, PATIENCE, ACCRT_WAIT_BLOCK));
  const uint32_t expected[4] = {3, 11, 22, 33};
  assert_memory_equal(seen, expected, sizeof expected);
out:
  accrt_launch_release(launch);
  accrt_commands_release(commands);
  accrt_stream_release(other);
  accrt_event_release(event);
  accrt_semaphore_release(semaphore);
  return status;
}

/* Fails one call of one entry point. True when anybody came by. */
static bool fail_call(const char* entry, unsigned nth, unsigned code) {
  char setting[128];
  snprintf(setting, sizeof setting, "fail=%s:%u=%u", entry, nth, code);
  work_t work = {.instance = instance_with(NULL, NULL)};
  const uint64_t before = count_of(entry);
  demand(setting);
  accrt_status_t status = begin(&work);
  if (status == ACCRT_OK)
    status = do_everything(&work);
  if (work.stream != NULL) /* nothing may be in flight when what it uses goes */
    (void)accrt_stream_synchronize(work.stream, PATIENCE, ACCRT_WAIT_BLOCK);
  const bool was_called = count_of(entry) - before >= nth;
  if (status != ACCRT_OK) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    accrt_last_error(&error);
    if (error.message[0] == '\0' || strchr(error.message, '\n') != NULL)
      fail_msg("%s: %s without a message", setting, accrt_status_name(status));
  }
  end(&work);
  check_host(work.instance);
  demand("reset");
  accrt_instance_release(work.instance);
  if (atomic_load(&live_allocations) != 0)
    fail_msg("%s: %ld host allocations are left", setting, atomic_load(&live_allocations));
  return was_called;
}

/* The first, second and third call of every entry point that the library has, with a failure that it cannot expect. Those that are
 * not called fail nothing. Afterwards all works. */
static void test_any_call_fails(void** state) {
  (void)state;
  static const char* const entries[] = {
#define ENTRY(name) #name,
#define VERSIONED(name, version, symbol) #name,
#include "entries.def"
#undef ENTRY
#undef VERSIONED
  };
  uint32_t called = 0;
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; ++i) {
    for (unsigned nth = 1; nth <= MOST_CALLS && fail_call(entries[i], nth, 999); ++nth)
      ++called;
  }
  assert_true(called > 30);
  work_t work = start();
  OK(do_everything(&work));
  finish(&work);
}

static int check_misuse(void** state) {
  (void)state;
  assert_int_equal(complaints(), 0);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_no_driver, check_misuse),
      cmocka_unit_test_teardown(test_old_driver, check_misuse),
      cmocka_unit_test_teardown(test_no_device, check_misuse),
      cmocka_unit_test_teardown(test_mismatched_driver, check_misuse),
      cmocka_unit_test_teardown(test_exclusive_device, check_misuse),
      cmocka_unit_test_teardown(test_stray_kernel, check_misuse),
      cmocka_unit_test_teardown(test_memory_used_after_it_went, check_misuse),
      cmocka_unit_test_teardown(test_context_lost_after_launches, check_misuse),
      cmocka_unit_test_teardown(test_error_that_shows_later, check_misuse),
      cmocka_unit_test_teardown(test_other_device_works_on, check_misuse),
      cmocka_unit_test_teardown(test_memory_runs_out, check_misuse),
      cmocka_unit_test_teardown(test_allocation_is_refused_once, check_misuse),
      cmocka_unit_test_teardown(test_any_call_fails, check_misuse),
  };
  return cmocka_run_group_tests(tests, set_up_group, NULL);
}
