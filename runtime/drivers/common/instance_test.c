/* Instances, drivers and devices: options, negotiation of versions and table sizes, names, logging,
 * injected faults. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <unistd.h>

#include "runtime/drivers/common/internal.h"

static accrt_instance_t* make_instance(void) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  return instance;
}

static const char* message(void) {
  static accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error.message;
}

static void assert_says(const char* text) {
  if (strstr(message(), text) == NULL)
    fail_msg("'%s' is not in '%s'", text, message());
}

static void test_create_refuses(void** state) {
  (void)state;
  accrt_instance_t* instance = (accrt_instance_t*)1;
  assert_int_equal(accrt_instance_create(NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = 0x80;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(instance);
  options.flags = 0;
  options.host_code_policy = 4;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  options.host_code_policy = 0;
  const accrt_allocator_t no_functions = {NULL, NULL, NULL};
  options.allocator = &no_functions;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  options.allocator = NULL;
  const accrt_executor_t no_executor = {NULL, NULL, 1, 0};
  options.executor = &no_executor;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  options.executor = NULL;
  options.option_count = 1;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  const accrt_option_t no_value = {"host.threads", NULL};
  options.options = &no_value;
  options.option_size_bytes = (uint32_t)sizeof no_value;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  options.option_size_bytes = 8;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  options.struct_size = 5000;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(instance);
}

static void test_option_keys(void** state) {
  (void)state;
  accrt_instance_t* instance;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_option_t option = {"host.thread", "2"};
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_NOT_FOUND);
  assert_null(instance);
  assert_says("'host.thread'");
  assert_says("host.threads");
  option.key = "nonsense";
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_NOT_FOUND);
  assert_says("'nonsense'");
  option = (accrt_option_t){"host.threads", "many"};
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("many");
  option.value = "1";
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  accrt_instance_release(instance);
  /* For a driver that comes later: not known here, and checked when it comes. */
  option = (accrt_option_t){"+test.speed", "fast"};
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_NOT_FOUND);
  assert_says("test.speed");
  static const char* const keys[] = {"test.sped", "test.speed", NULL};
  test_driver.option_keys = keys;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_string_equal(test_driver.environment->option(test_driver.environment, "test.speed"),
                      "fast");
  assert_null(test_driver.environment->option(test_driver.environment, "test.sped"));
  accrt_instance_release(instance);
}

static void test_drivers_are_negotiated(void** state) {
  (void)state;
  accrt_instance_t* instance = make_instance();
  uint32_t count = 9;
  assert_int_equal(accrt_instance_register_driver(NULL, test_driver_query),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_instance_register_driver(instance, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.abi_version = (1u << 16) | 2;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_VERSION_MISMATCH);
  assert_says("driver ABI 1.2");
  assert_says("0.2 to 0.3");
  test_driver.abi_version = 1; /* whose list_create is another function */
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_VERSION_MISMATCH);
  assert_says("driver ABI 0.1");
  test_driver.abi_version = ACCRT_DRIVER_ABI_VERSION + 1;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_VERSION_MISMATCH);
  test_driver.abi_version = 0;
  test_driver.table_size_bytes = 8;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_INVALID_FORMAT);
  test_driver.table_size_bytes = (uint32_t)sizeof(accrt_driver_table_t) - 4; /* half a function */
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("a driver table of");
  /* An older table that lacks the last functions: these are mandatory, and named. */
  test_driver.table_size_bytes = (uint32_t)offsetof(accrt_driver_table_t, list_destroy);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("list_destroy");
  /* A newer table: what we do not know is not looked at. */
  test_driver.table_size_bytes = (uint32_t)sizeof(accrt_driver_table_t) + 64;
  test_driver.device_count = 3;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query),
                   ACCRT_ERROR_ALREADY_EXISTS);
  assert_says("'test'");
  assert_int_equal(accrt_instance_device_count(instance, &count), ACCRT_OK);
  assert_int_equal(count, 3);
  assert_int_equal(accrt_instance_device_count(NULL, &count), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_instance_device_count(instance, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_instance_release(instance);
}

static const void* refuse(uint32_t max_abi) {
  (void)max_abi;
  return NULL;
}

static const void* bad_name(uint32_t max_abi) {
  static accrt_driver_table_t table;
  memcpy(&table, test_driver_query(max_abi), sizeof table);
  table.name = "no:colons";
  return &table;
}

static void test_broken_drivers(void** state) {
  (void)state;
  accrt_instance_t* instance = make_instance();
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  assert_int_equal(accrt_instance_register_driver(instance, refuse), ACCRT_ERROR_VERSION_MISMATCH);
  assert_says("0.2 to 0.3");
  assert_int_equal(accrt_instance_register_driver(instance, bad_name), ACCRT_ERROR_INVALID_FORMAT);
  test_driver_fail(TEST_FUNCTION_OPEN, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_ERROR_DRIVER);
  assert_says("driver 'test': injected fault");
  test_driver.device_count = 1000000;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_ERROR_DRIVER);
  assert_int_equal(atomic_load(&test_driver.drivers), 0);
  test_driver.device_count = 0;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  accrt_instance_release(instance);
}

static void test_load_driver(void** state) {
  (void)state;
  accrt_instance_t* instance = make_instance();
  assert_int_equal(accrt_instance_load_driver(NULL, "x"), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_instance_load_driver(instance, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_instance_load_driver(instance, "/does/not/exist.so"),
                   ACCRT_ERROR_NOT_FOUND);
  assert_says("/does/not/exist.so");
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_null(strstr(strstr(error.message, "exist.so") + 1, "exist.so")); /* said once */
  assert_int_equal(accrt_instance_load_driver(instance, "libm.so.6"), ACCRT_ERROR_NOT_FOUND);
  assert_says("accrt_driver_query");
  accrt_instance_release(instance);
}

static void test_devices(void** state) {
  (void)state;
  accrt_instance_t* instance = make_instance();
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.device_count = 2;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  accrt_device_t *device, *same;
  assert_int_equal(accrt_instance_device(instance, 2, &device), ACCRT_ERROR_OUT_OF_RANGE);
  assert_null(device);
  assert_says("2 of 2");
  assert_int_equal(accrt_instance_device(NULL, 0, &device), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_instance_device(instance, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_instance_device_by_name(instance, "gpu:7", &device),
                   ACCRT_ERROR_NOT_FOUND);
  assert_says("'gpu:7'");
  assert_says("test:0, test:1");
  assert_int_equal(accrt_instance_device_by_name(instance, NULL, &device),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_fail(TEST_FUNCTION_DEVICE_OPEN, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_instance_device_by_name(instance, "test", &device), ACCRT_ERROR_DRIVER);
  assert_says("test:0: injected fault");
  assert_int_equal(accrt_instance_device_by_name(instance, "test", &device), ACCRT_OK);
  assert_int_equal(accrt_instance_device(instance, 0, &same), ACCRT_OK);
  assert_ptr_equal(device, same);
  assert_int_equal(atomic_load(&test_driver.devices), 1); /* opened on first use, once */
  accrt_device_release(same);
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  assert_int_equal(accrt_device_info(device, &info), ACCRT_OK);
  assert_string_equal(info.name, "test:0");
  assert_string_equal(info.driver, "test");
  assert_int_equal(info.min_alignment_bytes, 64);
  assert_int_equal(accrt_device_info(device, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_device_info(NULL, &info), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_device_status(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_device_status(device), ACCRT_OK);
  atomic_store(&test_driver.lost, 1);
  assert_int_equal(accrt_device_status(device), ACCRT_ERROR_DEVICE_LOST);
  atomic_store(&test_driver.lost, 0);
  assert_int_equal(accrt_device_status(device), ACCRT_ERROR_DEVICE_LOST); /* for ever */
  assert_ptr_equal(accrt_device_instance(device), instance);
  assert_null(accrt_device_instance(NULL));
  accrt_device_release(accrt_device_retain(device));
  accrt_device_release(NULL);
  assert_null(accrt_device_retain(NULL));
  accrt_instance_release(NULL);
  assert_null(accrt_instance_retain(NULL));
  /* A device that was retained keeps its instance. */
  accrt_device_retain(device);
  accrt_instance_release(instance);
  assert_int_equal(accrt_device_info(device, &info), ACCRT_OK);
  accrt_device_release(device);
  assert_int_equal(atomic_load(&test_driver.drivers), 0);
}

typedef struct opener {
  accrt_instance_t* instance;
  accrt_device_t* device;
} opener_t;

static void* open_device(void* argument) {
  opener_t* opener = argument;
  assert_int_equal(accrt_instance_device_by_name(opener->instance, "test:1", &opener->device),
                   ACCRT_OK);
  return NULL;
}

static void test_many_threads_open_one_device(void** state) {
  (void)state;
  enum { THREADS = 6 };
  accrt_instance_t* instance = make_instance();
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.device_count = 2;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  opener_t openers[THREADS];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    openers[i] = (opener_t){instance, NULL};
    assert_int_equal(pthread_create(&threads[i], NULL, open_device, &openers[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(atomic_load(&test_driver.devices), 1);
  for (int i = 0; i < THREADS; ++i)
    accrt_device_release(openers[i].device);
  accrt_instance_release(instance);
}

static void test_two_instances(void** state) {
  (void)state;
  accrt_instance_t *one, *two;
  assert_int_equal(accrt_instance_create(NULL, &one), ACCRT_OK);
  assert_int_equal(accrt_instance_create(NULL, &two), ACCRT_OK);
  accrt_device_t *a, *b;
  assert_int_equal(accrt_instance_device_by_name(one, "host", &a), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(two, "host:0", &b), ACCRT_OK);
  assert_ptr_not_equal(a, b);
  accrt_instance_release(one);
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  assert_int_equal(accrt_device_info(b, &info), ACCRT_OK);
  accrt_instance_release(two);
}

typedef struct logged {
  char component[32];
  char line[256];
  uint32_t level;
  int count;
} logged_t;

static void keep_line(void* self, uint32_t level, const char* component, const char* line) {
  logged_t* logged = self;
  logged->level = level;
  logged->count += 1;
  (void)snprintf(logged->component, sizeof logged->component, "%s", component);
  (void)snprintf(logged->line, sizeof logged->line, "%s", line);
}

static void test_log(void** state) {
  (void)state;
  logged_t logged = {.count = 0};
  const accrt_log_sink_t sink = {&logged, keep_line, ACCRT_LOG_INFO, 0};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.log_sink = &sink;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  accrt_instance_log(instance, ACCRT_LOG_INFO, "test", "one\nline %d", 7);
  assert_string_equal(logged.line, "one line 7");
  assert_string_equal(logged.component, "test");
  accrt_instance_log(instance, ACCRT_LOG_DEBUG, "test", "too much detail");
  assert_int_equal(logged.count, 1);
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  test_driver.environment->log(test_driver.environment, ACCRT_LOG_ERROR, "from a driver");
  assert_string_equal(logged.component, "test");
  assert_int_equal(logged.level, ACCRT_LOG_ERROR);
  accrt_instance_release(instance);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_create_refuses),
      cmocka_unit_test(test_option_keys),
      cmocka_unit_test(test_drivers_are_negotiated),
      cmocka_unit_test(test_broken_drivers),
      cmocka_unit_test(test_load_driver),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_many_threads_open_one_device),
      cmocka_unit_test(test_two_instances),
      cmocka_unit_test(test_log),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
