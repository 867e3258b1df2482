/* runtime/drivers/host/options_test.c - options of the host driver, good and bad. */
#define _GNU_SOURCE
#include <sched.h>

#include "runtime/drivers/host/testing.h"

static int first_cpu(void) {
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET((size_t)cpu, &set))
      return cpu;
  }
  return -1;
}

static void test_defaults(void** state) {
  (void)state;
  test_environment_t test;
  test_environment_init(&test, NULL);
  host_options_t options;
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_OK);
  assert_int_equal(options.thread_count, accrt_host_usable_cores());
  assert_int_equal(options.device_count, 1);
  assert_int_equal(options.cpu_count, 0);
  assert_true(options.spin_us > 0);
}

static void test_values(void** state) {
  (void)state;
  test_environment_t test;
  test_environment_init(&test, "3");
  char cpus[16];
  snprintf(cpus, sizeof cpus, "%d", first_cpu());
  test_set_option(&test, "host.affinity", cpus);
  test_set_option(&test, "host.devices", "2");
  test_set_option(&test, "host.spin_us", "0");
  host_options_t options;
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_OK);
  assert_int_equal(options.thread_count, 3);
  assert_int_equal(options.device_count, 2);
  assert_int_equal(options.spin_us, 0);
  assert_int_equal(options.cpu_count, 1);
  assert_int_equal(options.cpus[0], first_cpu());
}

static void test_affinity_sets_threads(void** state) {
  (void)state;
  test_environment_t test;
  test_environment_init(&test, NULL);
  char cpus[16];
  snprintf(cpus, sizeof cpus, "%d", first_cpu());
  test_set_option(&test, "host.affinity", cpus);
  host_options_t options;
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_OK);
  assert_int_equal(options.thread_count, 1);
  test_set_option(&test, "host.affinity", "none");
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_OK);
  assert_int_equal(options.cpu_count, 0);
}

static int32_t refuse(void* self, void (*task)(void*), void* argument) {
  (void)self;
  (void)task;
  (void)argument;
  return 1;
}

static void test_executor_bounds_threads(void** state) {
  (void)state;
  test_environment_t test;
  test_environment_init(&test, NULL);
  const accrt_executor_t executor = {.submit = refuse, .concurrency = 5};
  test.base.executor = &executor;
  host_options_t options;
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_OK);
  assert_int_equal(options.thread_count, 5);
  test_set_option(&test, "host.threads", "9");
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_OK);
  assert_int_equal(options.thread_count, 5);
}

/* Each is refused with a message that has key and value. */
static void test_bad_values(void** state) {
  (void)state;
  static const char* const bad[][2] = {
      {"host.threads", ""},
      {"host.threads", "two"},
      {"host.threads", "-1"},
      {"host.threads", "1025"},
      {"host.threads", "2 "},
      {"host.threads", "0x2"},
      {"host.threads", "99999999999999999999"},
      {"host.devices", "0"},
      {"host.devices", "65"},
      {"host.devices", "1.5"},
      {"host.spin_us", "1000001"},
      {"host.spin_us", "fast"},
      {"host.affinity", ""},
      {"host.affinity", ","},
      {"host.affinity", "1-"},
      {"host.affinity", "3-1"},
      {"host.affinity", "a"},
      {"host.affinity", "0,"},
      {"host.affinity", "0;1"},
      {"host.affinity", "1023"},
      {"host.affinity", "99999"},
      {"host.affinity", "None"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    test_environment_t test;
    test_environment_init(&test, NULL);
    test_set_option(&test, bad[i][0], bad[i][1]);
    const accrt_driver_table_t* table = accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION);
    accrt_driver_t* driver = (accrt_driver_t*)&test;
    assert_int_equal(table->open(&test.base, &driver), ACCRT_ERROR_INVALID_ARGUMENT);
    assert_null(driver);
    assert_non_null(strstr(test.message, bad[i][0]));
    assert_non_null(strstr(test.message, bad[i][1]));
    assert_int_equal(atomic_load(&test.live_allocations), 0);
  }
}

static void test_processor_twice(void** state) {
  (void)state;
  test_environment_t test;
  test_environment_init(&test, NULL);
  char cpus[32];
  snprintf(cpus, sizeof cpus, "%d,%d", first_cpu(), first_cpu());
  test_set_option(&test, "host.affinity", cpus);
  host_options_t options;
  assert_int_equal(accrt_host_options_read(&test.base, &options), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(test.message, "twice"));
}

static void test_version(void** state) {
  (void)state;
  assert_null(accrt_driver_host_query((ACCRT_DRIVER_ABI_MAJOR + 1u) << 16));
  assert_non_null(accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION + 7));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_affinity_sets_threads),
      cmocka_unit_test(test_executor_bounds_threads),
      cmocka_unit_test(test_bad_values),
      cmocka_unit_test(test_processor_twice),
      cmocka_unit_test(test_version),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
