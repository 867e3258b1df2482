/* A driver that breaks its promise of alignment: the library's own invariant fails, and says so;
 * nothing is lost. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#define GRANULE_BYTES UINT64_C(65536)
#define OFF_BYTES 8u

/* Memory whose addresses lie a few bytes behind what was promised. */
static accrt_status_t allocate_off(accrt_driver_device_t* device, uint32_t kind,
                                   uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  const accrt_status_t status = test_memory_allocate(device, kind, size_bytes, out_memory);
  if (status == ACCRT_OK)
    out_memory->device_address += OFF_BYTES;
  return status;
}

static const void* query(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table = *(const accrt_driver_table_t*)test_driver_query(max_abi);
  table.memory_allocate = allocate_off;
  return &table;
}

static void says_internal_and_goes_on(void** state) {
  (void)state;
  test_world_t world;
  memset(&world, 0, sizeof world);
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.granularity_bytes = GRANULE_BYTES;
  test_driver.grow_bytes = GRANULE_BYTES;
  const accrt_allocator_t allocator = test_allocator_interface(&world.allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &allocator;
  assert_int_equal(accrt_instance_create(&options, &world.instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(world.instance, query), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(world.instance, "test", &world.device), ACCRT_OK);
  accrt_pool_t* pool;
  assert_int_equal(accrt_pool_create(world.device, NULL, &pool), ACCRT_OK);

  accrt_buffer_t* buffer = (accrt_buffer_t*)&world;
  assert_int_equal(accrt_buffer_create(pool, GRANULE_BYTES, NULL, &buffer), ACCRT_ERROR_INTERNAL);
  assert_null(buffer);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_INTERNAL);
  assert_string_equal(error.operation, "accrt_buffer_create");
  assert_non_null(strstr(error.message, "65536"));

  /* An allocation that still fits succeeds and is aligned. Every byte is accounted for. */
  assert_int_equal(accrt_buffer_create(pool, GRANULE_BYTES / 2, NULL, &buffer), ACCRT_OK);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  assert_int_equal(accrt_buffer_info(buffer, &info), ACCRT_OK);
  assert_int_equal(info.device_address % info.alignment_bytes, 0);
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  assert_int_equal(accrt_pool_statistics(pool, &statistics), ACCRT_OK);
  assert_int_equal(statistics.live_count, 1);
  assert_int_equal(statistics.used_bytes + statistics.retiring_bytes + statistics.free_bytes,
                   statistics.reserved_bytes);
  accrt_buffer_release(buffer);
  accrt_pool_release(pool);
  assert_int_equal(test_world_close(&world), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(says_internal_and_goes_on)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
