/* The runtime's own group of counters: the memory of pools, by where it is. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "accrt/counters.h"
#include "runtime/drivers/common/internal.h"

/* The values of a counter with this name, for memory of hosts and of devices. */
typedef struct sought {
  const char* name;
  uint32_t groups, found;
  double host, device;
} sought_t;

static void seek(void* user, const accrt_counter_group_t* group, const double* values) {
  sought_t* sought = user;
  if (strcmp(group->name, "accrt_instance") != 0)
    return;
  ++sought->groups;
  for (uint32_t i = 0; i < group->counter_count; ++i) {
    const accrt_counter_t* counter = &group->counters[i];
    assert_int_equal(counter->kind, ACCRT_COUNTER_GAUGE);
    assert_string_equal(counter->label, "memory");
    if (strcmp(counter->name, sought->name) != 0)
      continue;
    ++sought->found;
    if (strcmp(counter->label_value, "host") == 0)
      sought->host = values[i];
    else
      sought->device = values[i];
  }
}

static sought_t values_of(accrt_instance_t* instance, const char* name) {
  sought_t sought = {.name = name};
  assert_int_equal(accrt_counters_read(instance, seek, &sought), ACCRT_OK);
  assert_int_equal(sought.groups, 1);
  assert_int_equal(sought.found, 2);
  return sought;
}

/* Whether the test's driver has memory of hosts. */
static bool is_host;

static double one_of(accrt_instance_t* instance, const char* name) {
  const sought_t sought = values_of(instance, name);
  assert_true((is_host ? sought.device : sought.host) == 0);
  return is_host ? sought.host : sought.device;
}

static void assert_memory(accrt_instance_t* instance, double used_bytes, double buffers) {
  assert_true(one_of(instance, "accrt:memory_used_bytes") == used_bytes);
  assert_true(one_of(instance, "accrt:buffers") == buffers);
  assert_true(one_of(instance, "accrt:memory_reserved_bytes") >= used_bytes);
}

static void check_pools(void) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_memory(instance, 0, 0);
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.device_count = 2;
  test_driver.device_flags = is_host ? 0 : ACCRT_DEVICE_FLAG_TIMESTAMPS;
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_memory(instance, 0, 0); /* devices that are not open */
  accrt_pool_t* pools[2];
  accrt_buffer_t* buffers[2];
  for (uint32_t i = 0; i < 2; ++i) {
    accrt_device_t* device;
    assert_int_equal(accrt_instance_device(instance, i, &device), ACCRT_OK);
    assert_int_equal(accrt_pool_create(device, NULL, &pools[i]), ACCRT_OK);
    assert_int_equal(accrt_buffer_create(pools[i], UINT64_C(4096) << i, NULL, &buffers[i]),
                     ACCRT_OK);
    assert_memory(instance, 4096 + i * 8192, 1 + i);
  }
  accrt_buffer_release(buffers[0]);
  assert_memory(instance, 8192, 1);
  accrt_pool_release(pools[0]);
  accrt_buffer_release(buffers[1]);
  accrt_pool_release(pools[1]);
  assert_memory(instance, 0, 0);
  accrt_instance_release(instance);
}

static void test_memory_of_hosts_is_counted(void** state) {
  (void)state;
  is_host = true;
  check_pools();
}

static void test_memory_of_devices_is_counted(void** state) {
  (void)state;
  is_host = false;
  check_pools();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory_of_hosts_is_counted),
                                     cmocka_unit_test(test_memory_of_devices_is_counted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
