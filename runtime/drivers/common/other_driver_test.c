/* Memory of one driver in the work of another driver's device: its host pointer is used, never the
 * address that only its own driver understands. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define FOREVER ACCRT_TIMEOUT_INFINITE
/* Addresses of the far driver are handles: no host memory lies there. */
#define FAR_HANDLE (UINT64_C(1) << 62)

static test_world_t world;
static accrt_device_t* far_device;
static accrt_stream_t* stream;

static accrt_status_t far_allocate(accrt_driver_device_t* device, uint32_t kind,
                                   uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  const accrt_status_t status = test_memory_allocate(device, kind, size_bytes, out_memory);
  if (status != ACCRT_OK)
    return status;
  out_memory->device_address |= FAR_HANDLE;
  if (kind == ACCRT_MEMORY_DEVICE)
    out_memory->host_pointer = NULL;
  return ACCRT_OK;
}

static const void* far_query(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table = *(const accrt_driver_table_t*)test_driver_query(max_abi);
  table.name = "far";
  table.memory_allocate = far_allocate;
  return &table;
}

static int set_up(void** state) {
  (void)state;
  if (test_world_open(&world, TEST_DRIVER_SYNCHRONOUS) != ACCRT_OK)
    return 1;
  if (accrt_instance_register_driver(world.instance, far_query) != ACCRT_OK)
    return 1;
  if (accrt_instance_device_by_name(world.instance, "far", &far_device) != ACCRT_OK)
    return 1;
  return accrt_stream_create(world.device, NULL, &stream);
}

static int tear_down(void** state) {
  (void)state;
  accrt_stream_release(stream);
  return (int)test_world_close(&world);
}

static accrt_buffer_t* make_buffer(accrt_device_t* device, uint32_t kind) {
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_device_pool(device, kind, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, 4096, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static unsigned char* bytes_of(accrt_buffer_t* buffer) {
  void* pointer;
  assert_int_equal(accrt_buffer_map(buffer, 0, 0, &pointer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  return pointer;
}

/* One line that has both devices. */
static void assert_out_of_reach(accrt_status_t status) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(status, ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "memory of far:0 is out of reach of test:0"));
}

static void test_memory_that_the_host_reaches(void** state) {
  (void)state;
  accrt_buffer_t* buffer = make_buffer(far_device, ACCRT_MEMORY_HOST);
  unsigned char* bytes = bytes_of(buffer);
  unsigned char text[16] = "from here";
  const accrt_place_t here = {.pointer = text}, there = {.buffer = buffer, .offset_bytes = 32};
  assert_int_equal(accrt_stream_fill(stream, &there, 16, 0x5A, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_true(bytes[31] != 0x5A && bytes[32] == 0x5A && bytes[47] == 0x5A && bytes[48] != 0x5A);
  assert_int_equal(accrt_stream_copy(stream, &here, &there, sizeof text), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_memory_equal(bytes + 32, text, sizeof text);
  accrt_buffer_release(buffer);
}

static void test_memory_that_the_host_does_not_reach(void** state) {
  (void)state;
  accrt_buffer_t* buffer = make_buffer(far_device, ACCRT_MEMORY_DEVICE);
  unsigned char text[16] = "";
  const accrt_place_t here = {.pointer = text}, there = {.buffer = buffer};
  const accrt_copy_region_t region = {{4, 2, 1}, {8, 0}, {8, 0}};
  assert_out_of_reach(accrt_stream_copy(stream, &there, &here, sizeof text));
  assert_out_of_reach(accrt_stream_copy(stream, &here, &there, sizeof text));
  assert_out_of_reach(accrt_stream_copy_strided(stream, &here, &there, &region));
  assert_out_of_reach(accrt_stream_fill(stream, &there, 16, 0x5A, 1));
  assert_int_equal(accrt_stream_copy(stream, &there, &here, 0), ACCRT_OK);
  FILE* file = tmpfile();
  assert_non_null(file);
  assert_out_of_reach(accrt_stream_read_file(stream, fileno(file), 0, &there, 16, 0));
  fclose(file);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  accrt_buffer_release(buffer);
}

/* Lists: places that are recorded, and bindings. */
static void test_lists(void** state) {
  (void)state;
  accrt_buffer_t* buffer = make_buffer(far_device, ACCRT_MEMORY_HOST);
  accrt_buffer_t* apart = make_buffer(far_device, ACCRT_MEMORY_DEVICE);
  unsigned char text[16] = "recorded";
  const accrt_copy_region_t region = {{sizeof text, 1, 1}, {0, 0}, {0, 0}};
  const accrt_binding_place_t here = {.binding = ACCRT_BINDING_NONE, .place = {.pointer = text}};
  const accrt_binding_place_t there = {.binding = ACCRT_BINDING_NONE, .place = {.buffer = buffer}};
  const accrt_binding_place_t no = {.binding = ACCRT_BINDING_NONE, .place = {.buffer = apart}};
  const accrt_binding_place_t bound = {.binding = 0, .place = {.offset_bytes = 64}};
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  assert_out_of_reach(accrt_commands_copy(commands, &here, &no, &region, NULL, NULL));
  assert_int_equal(accrt_commands_copy(commands, &here, &there, &region, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_copy(commands, &here, &bound, &region, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  accrt_binding_t binding = {buffer, NULL, 0, ACCRT_TO_END};
  assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, sizeof binding), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_memory_equal(bytes_of(buffer), text, sizeof text);
  assert_memory_equal(bytes_of(buffer) + 64, text, sizeof text);
  binding.buffer = apart;
  assert_out_of_reach(accrt_stream_submit(stream, commands, &binding, 1, sizeof binding));
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
  accrt_buffer_release(apart);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_memory_that_the_host_reaches, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_memory_that_the_host_does_not_reach, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_lists, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
