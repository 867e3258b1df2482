/* Every allocation fails in turn: a whole life of an instance is repeated with the n-th allocation
 * failing, once and then for ever, until it completes. Each time there is a clear error, nothing is
 * left, and nothing is broken for the next round. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/core/dlpack.h"

#define FOREVER ACCRT_TIMEOUT_INFINITE
#define TRY(expression)                                                                            \
  do {                                                                                             \
    status = (expression);                                                                         \
    if (status != ACCRT_OK)                                                                        \
      goto out;                                                                                    \
  } while (0)

static int32_t run_add(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)group;
  uint32_t* word;
  memcpy(&word, dispatch->params, sizeof word);
  *word += 1;
  return 0;
}

static const accrt_kernel_param_t params[] = {
    {"word", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0, 3, 0, 8, 0}};
static const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                              .name = "add",
                                              .entry = run_add,
                                              .params = params,
                                              .param_count = 1,
                                              .params_size_bytes = 8};
static const accrt_kernel_pack_table_t table = {.struct_size = (uint32_t)sizeof table,
                                                .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                .name = "torture",
                                                .kernels = &definition,
                                                .kernel_count = 1,
                                                .kernel_size_bytes = (uint32_t)sizeof definition};
static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &table;
}

static void ignore(void* user, accrt_status_t status) {
  (void)user;
  (void)status;
}

typedef struct life {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t *buffer, *import;
  accrt_stream_t *stream, *second, *dividing;
  accrt_semaphore_t *gate, *done;
  accrt_event_t* event;
  accrt_kernel_pack_t* pack;
  accrt_commands_t* commands;
  accrt_dl_managed_t* exported;
  int32_t fd;
} life_t;

static accrt_status_t make_all(life_t* life, test_allocator_t* allocator, uint32_t words[4]) {
  accrt_status_t status;
  const accrt_option_t option = {"+other.key", "value"};
  const accrt_allocator_t interface = test_allocator_interface(allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &interface;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  TRY(accrt_instance_create(&options, &life->instance));
  TRY(accrt_instance_register_driver(life->instance, test_driver_query));
  TRY(accrt_instance_device_by_name(life->instance, "test", &life->device));
  TRY(accrt_pool_create(life->device, NULL, &life->pool));
  TRY(accrt_buffer_create(life->pool, 1000, NULL, &life->buffer));
  TRY(accrt_buffer_import(life->device, words, 16, NULL, NULL, &life->import));
  TRY(accrt_stream_create(life->device, NULL, &life->stream));
  TRY(accrt_stream_create(life->device, NULL, &life->second));
  accrt_stream_options_t pieces = ACCRT_STREAM_OPTIONS_INIT;
  pieces.ahead = 1;
  pieces.commands_per_piece = 2;
  TRY(accrt_stream_create(life->device, &pieces, &life->dividing));
  TRY(accrt_semaphore_create(life->instance, 0, &life->gate));
  TRY(accrt_semaphore_create(life->instance, 0, &life->done));
  TRY(accrt_event_create(life->device, ACCRT_EVENT_FLAG_TIMING, &life->event));
  TRY(accrt_kernel_pack_register(life->instance, query, &life->pack));
  if (test_driver.mode != TEST_DRIVER_CALLER)
    TRY(accrt_semaphore_export_eventfd(life->done, 1, &life->fd));
out:
  return status;
}

static accrt_status_t record_all(life_t* life, accrt_kernel_t* kernel,
                                 const accrt_kernel_argument_t* argument) {
  accrt_status_t status;
  const uint32_t one[3] = {1, 1, 1};
  const accrt_binding_place_t from = {ACCRT_BINDING_NONE, 0, {life->import, NULL, 0}},
                              to = {0, 0, {NULL, NULL, 0}};
  const accrt_copy_region_t region = {{4, 1, 1}, {0, 0}, {0, 0}};
  TRY(accrt_commands_create(life->device, 1, &life->commands));
  TRY(accrt_commands_copy(life->commands, &from, &to, &region, NULL, NULL));
  TRY(accrt_commands_fill(life->commands, &to, 4, 1, 4, NULL, NULL));
  TRY(accrt_commands_dispatch(life->commands, kernel, one, argument, 1, sizeof *argument, NULL,
                              NULL));
  TRY(accrt_commands_barrier(life->commands, NULL));
  TRY(accrt_commands_marker(life->commands, "end", NULL, NULL));
  TRY(accrt_commands_finalize(life->commands));
out:
  return status;
}

static accrt_status_t use_all(life_t* life) {
  accrt_status_t status;
  accrt_kernel_t* kernel;
  const uint32_t one[3] = {1, 1, 1};
  const accrt_place_t in_buffer = {life->buffer, NULL, 0}, in_import = {life->import, NULL, 0};
  const accrt_kernel_argument_t argument = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                            .binding = ACCRT_BINDING_NONE,
                                            .buffer = life->import,
                                            .size_bytes = 4};
  const accrt_binding_t binding = {life->buffer, NULL, 0, UINT64_MAX};
  const int64_t shape[1] = {10};
  const accrt_tensor_t tensor = {
      .buffer = life->buffer, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = shape};
  TRY(accrt_kernel_pack_find(life->pack, "add", &kernel));
  TRY(record_all(life, kernel, &argument));
  TRY(accrt_stream_fill(life->stream, &in_buffer, 1000, 3, 4));
  TRY(accrt_stream_wait(life->stream, life->gate, 1));
  TRY(accrt_stream_copy(life->stream, &in_buffer, &in_import, 4));
  TRY(accrt_stream_launch(life->stream, kernel, one, &argument, 1, sizeof argument));
  TRY(accrt_stream_submit(life->stream, life->commands, &binding, 1, sizeof binding));
  TRY(accrt_stream_record(life->stream, life->event));
  TRY(accrt_stream_wait_event(life->second, life->event));
  TRY(accrt_stream_record(life->second, life->event));
  TRY(accrt_stream_notify(life->second, ignore, NULL));
  TRY(accrt_stream_signal(life->second, life->done, 1));
  TRY(accrt_semaphore_signal(life->gate, 1));
  TRY(accrt_semaphore_wait(life->done, 1, FOREVER, ACCRT_WAIT_BLOCK));
  TRY(accrt_stream_run(life->stream, life->commands, &binding, 1, sizeof binding, FOREVER));
  TRY(accrt_stream_submit(life->dividing, life->commands, &binding, 1, sizeof binding));
  TRY(accrt_stream_submit(life->dividing, life->commands, &binding, 1, sizeof binding));
  TRY(accrt_stream_synchronize(life->dividing, FOREVER, ACCRT_WAIT_BLOCK));
  TRY(accrt_dlpack_export(&tensor, 0, &life->exported));
  TRY(accrt_stream_synchronize(life->second, FOREVER, ACCRT_WAIT_BLOCK));
out:
  return status;
}

static void release_all(life_t* life) {
  if (life->fd >= 0)
    (void)close(life->fd);
  if (life->exported != NULL)
    life->exported->deleter(life->exported);
  accrt_commands_release(life->commands);
  accrt_kernel_pack_release(life->pack);
  accrt_event_release(life->event);
  accrt_semaphore_release(life->done);
  accrt_semaphore_release(life->gate);
  accrt_stream_release(life->dividing);
  accrt_stream_release(life->second);
  accrt_stream_release(life->stream);
  accrt_buffer_release(life->import);
  accrt_buffer_release(life->buffer);
  accrt_pool_release(life->pool);
  accrt_device_release(life->device);
  accrt_instance_release(life->instance);
}

/* Open descriptors of this process. */
static int count_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd)
    count += fcntl(fd, F_GETFD) != -1;
  return count;
}

static void torture(int mode, int for_ever) {
  const int descriptors = count_descriptors();
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  long n = 1;
  for (; status != ACCRT_OK; ++n) {
    assert_true(n < 1000);
    test_world_t world = {.instance = NULL};
    life_t life = {.fd = -1};
    uint32_t words[4] = {0};
    test_driver_reset(mode);
    test_allocator_fail(&world.allocator, n, for_ever);
    accrt_clear_error();
    status = make_all(&life, &world.allocator, words);
    if (status == ACCRT_OK)
      status = use_all(&life);
    if (status != ACCRT_OK) {
      accrt_error_t error = ACCRT_ERROR_INIT;
      assert_int_equal(accrt_last_error(&error), ACCRT_OK);
      /* A stream that failed on its own says so when it is waited for; all else names the lack of
       * memory. */
      assert_true(status == ACCRT_ERROR_OUT_OF_MEMORY || status == ACCRT_ERROR_POISONED);
      assert_int_equal(error.status, status);
      assert_true(error.message[0] != '\0');
    }
    test_allocator_fail(&world.allocator, 0, 0);
    release_all(&life);
    if (test_world_left(&world) != 0) {
      fail_msg("allocation %ld (mode %d, for ever %d): %ld things are left: %ld blocks", n, mode,
               for_ever, test_world_left(&world), atomic_load(&world.allocator.live_count));
    }
    assert_int_equal(count_descriptors(), descriptors);
  }
  print_message("mode %d: completed at allocation %ld\n", mode, n - 1);
}

static void test_synchronous(void** state) {
  (void)state;
  torture(TEST_DRIVER_SYNCHRONOUS, 0);
  torture(TEST_DRIVER_SYNCHRONOUS, 1);
}

static void test_threaded(void** state) {
  (void)state;
  torture(TEST_DRIVER_THREAD, 0);
  torture(TEST_DRIVER_THREAD, 1);
}

static void test_caller(void** state) {
  (void)state;
  torture(TEST_DRIVER_CALLER, 0);
  torture(TEST_DRIVER_CALLER, 1);
}

/* The same with every function of the driver failing in turn. */
static void test_driver_functions(void** state) {
  (void)state;
  for (int function = 0; function < TEST_FUNCTION_COUNT; ++function) {
    accrt_status_t status = ACCRT_ERROR_DRIVER;
    for (int n = 1; status != ACCRT_OK; ++n) {
      assert_true(n < 100);
      test_world_t world = {.instance = NULL};
      life_t life = {.fd = -1};
      uint32_t words[4] = {0};
      test_driver_reset(TEST_DRIVER_THREAD);
      test_driver_fail((enum test_driver_function)function, n, ACCRT_ERROR_DRIVER);
      status = make_all(&life, &world.allocator, words);
      if (status == ACCRT_OK)
        status = use_all(&life);
      if (status != ACCRT_OK)
        assert_true(status == ACCRT_ERROR_DRIVER || status == ACCRT_ERROR_POISONED);
      release_all(&life);
      assert_int_equal(test_world_left(&world), 0);
      if (atomic_load(&test_driver.fail_at[function]) > 0)
        break; /* called less often than n times */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_synchronous),
      cmocka_unit_test(test_threaded),
      cmocka_unit_test(test_caller),
      cmocka_unit_test(test_driver_functions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
