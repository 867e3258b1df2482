/* runtime/drivers/host/list_test.c - waves of lists, units of commands, copies and fills against
 * plain loops. */
#include "runtime/drivers/host/testing.h"

static int32_t do_nothing(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

static const uint32_t zero_one_two[] = {0, 1, 2};

static accrt_driver_command_t after(uint32_t opcode, const uint32_t* predecessors, uint32_t count) {
  return (accrt_driver_command_t){
      .opcode = opcode, .predecessors = predecessors, .predecessor_count = count};
}

static void test_levels(void** state) {
  (void)state;
  const uint32_t m = ACCRT_DRIVER_COMMAND_MARKER;
  const uint32_t four[] = {4};
  const accrt_driver_command_t commands[] = {
      after(m, NULL, 0),
      after(m, zero_one_two, 1),
      after(m, NULL, 0),
      after(m, zero_one_two, 3),
      after(ACCRT_DRIVER_COMMAND_BARRIER, NULL, 0),
      after(m, NULL, 0),
      after(m, zero_one_two, 2),
      after(m, four, 1),
  };
  uint32_t levels[8];
  accrt_host_levels(commands, 8, levels);
  const uint32_t expected[] = {0, 1, 0, 2, UINT32_MAX, 3, 3, 3};
  assert_memory_equal(levels, expected, sizeof expected);
}

static void test_leading_barrier(void** state) {
  (void)state;
  const accrt_driver_command_t commands[] = {after(ACCRT_DRIVER_COMMAND_BARRIER, NULL, 0),
                                             after(ACCRT_DRIVER_COMMAND_BARRIER, NULL, 0),
                                             after(ACCRT_DRIVER_COMMAND_MARKER, NULL, 0)};
  uint32_t levels[3];
  accrt_host_levels(commands, 3, levels);
  assert_int_equal(levels[2], 0);
}

/* Independent commands share a wave; a chain has one command per wave; very wide waves are
 * split. */
static void test_waves(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "1");
  const accrt_kernel_def_t definition = test_definition("nothing", do_nothing);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {2, 3, 4};
  const uint32_t count = HOST_MAX_WAVE_COMMANDS + 10;
  accrt_driver_command_t* commands = calloc(count, sizeof *commands);
  assert_non_null(commands);
  for (uint32_t i = 0; i < count; ++i)
    commands[i] = test_dispatch(&kernel, grid, NULL, 0);
  host_list_t* list;
  assert_int_equal(
      accrt_host_list_create((host_device_t*)test.device, commands, count, 0, 0, &list), ACCRT_OK);
  assert_int_equal(list->wave_count, 2);
  const host_wave_t* waves = list->template_instance->waves;
  assert_int_equal(waves[0].command_count, HOST_MAX_WAVE_COMMANDS);
  assert_int_equal(waves[0].unit_count, HOST_MAX_WAVE_COMMANDS * 24);
  assert_int_equal(waves[1].command_count, 10);
  accrt_host_list_destroy(list);
  uint32_t* predecessors = calloc(count, sizeof *predecessors);
  assert_non_null(predecessors);
  for (uint32_t i = 1; i < count; ++i) {
    predecessors[i] = i - 1;
    commands[i].predecessors = &predecessors[i];
    commands[i].predecessor_count = 1;
  }
  assert_int_equal(
      accrt_host_list_create((host_device_t*)test.device, commands, count, 0, 0, &list), ACCRT_OK);
  assert_int_equal(list->wave_count, count);
  accrt_host_list_destroy(list);
  free(predecessors);
  free(commands);
  test_device_close(&test);
}

static void test_empty_list(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "1");
  accrt_driver_list_t* list;
  assert_int_equal(
      test.table->list_create(
          test.device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 0,
                                      .commands = NULL,
                                      .binding_count = 0,
                                      .scalar_count = 0},
          &list),
      ACCRT_OK);
  accrt_driver_queue_t* queue;
  assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  assert_int_equal(test.table->queue_run(queue, list, &submission), ACCRT_OK);
  test.table->queue_destroy(queue);
  test.table->list_destroy(list);
  test_device_close(&test);
}

/* A product of grid dimensions beyond 64 bits is an error when the list is made. */
static void test_grid_overflow(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "1");
  const accrt_kernel_def_t definition = test_definition("wide", do_nothing);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
  const accrt_driver_command_t command = test_dispatch(&kernel, grid, NULL, 0);
  accrt_driver_list_t* list = (accrt_driver_list_t*)&test;
  assert_int_equal(
      test.table->list_create(
          test.device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 1,
                                      .commands = &command,
                                      .binding_count = 0,
                                      .scalar_count = 0},
          &list),
      ACCRT_ERROR_OVERFLOW);
  assert_null(list);
  assert_non_null(strstr(test.environment.message, "wide"));
  test_device_close(&test);
}

/* Every allocation of list_create fails once: nothing leaks, and the status says what happened. */
static void test_no_memory(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "2");
  accrt_kernel_def_t definition = test_definition("local", do_nothing);
  definition.local_memory_size_bytes = 4096;
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {1, 1, 1};
  const accrt_driver_command_t command = test_dispatch(&kernel, grid, NULL, 0);
  const long before = atomic_load(&test.environment.live_allocations);
  uint32_t failures = 0;
  for (long allowed = 0;; ++allowed) {
    atomic_store(&test.environment.fail_after, allowed);
    accrt_driver_list_t* list;
    const accrt_status_t status = test.table->list_create(
        test.device,
        &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                    .command_count = 1,
                                    .commands = &command,
                                    .binding_count = 0,
                                    .scalar_count = 0},
        &list);
    atomic_store(&test.environment.fail_after, -1);
    if (status == ACCRT_OK) {
      test.table->list_destroy(list);
      break;
    }
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_null(list);
    ++failures;
  }
  assert_true(failures >= 5);
  assert_true(atomic_load(&test.environment.live_allocations) >= before);
  test_device_close(&test);
}

/* ---- Copies and fills ---- */

static void copy_plainly(unsigned char* target, const unsigned char* source,
                         const uint64_t extent[3], const uint64_t source_stride[2],
                         const uint64_t target_stride[2]) {
  for (uint64_t z = 0; z < extent[2]; ++z) {
    for (uint64_t y = 0; y < extent[1]; ++y) {
      for (uint64_t x = 0; x < extent[0]; ++x) {
        target[x + y * target_stride[0] + z * target_stride[1]] =
            source[x + y * source_stride[0] + z * source_stride[1]];
      }
    }
  }
}

#define AREA_BYTES 8192

static void check_copy(const unsigned char* source, uint64_t* seed) {
  static unsigned char expected[AREA_BYTES];
  static unsigned char actual[AREA_BYTES];
  memset(expected, 0xEE, sizeof expected);
  memset(actual, 0xEE, sizeof actual);
  host_copy_t copy = {.source = (uint64_t)(uintptr_t)source,
                      .target = (uint64_t)(uintptr_t)actual,
                      .extent = {test_below(seed, 33), test_below(seed, 9), test_below(seed, 9)}};
  for (int side = 0; side < 2; ++side) {
    uint64_t* stride = side == 0 ? copy.source_stride : copy.target_stride;
    stride[0] = copy.extent[0] + (test_below(seed, 2) != 0 ? test_below(seed, 20) : 0);
    stride[1] = stride[0] * copy.extent[1] + (test_below(seed, 2) != 0 ? test_below(seed, 50) : 0);
  }
  copy_plainly(expected, source, copy.extent, copy.source_stride, copy.target_stride);
  host_command_t command = {.kind = ACCRT_DRIVER_COMMAND_COPY, .as.copy = copy};
  test_environment_t environment;
  test_environment_init(&environment, NULL);
  const host_device_t device = {.environment = &environment.base};
  assert_int_equal(accrt_host_measure(&device, &command), ACCRT_OK);
  const uint64_t cut = command.item_count == 0 ? 0 : test_below(seed, command.item_count + 1);
  accrt_host_copy_items(&command.as.copy, cut, command.item_count);
  accrt_host_copy_items(&command.as.copy, 0, cut);
  assert_memory_equal(actual, expected, sizeof expected);
}

static void test_copies(void** state) {
  (void)state;
  uint64_t seed = test_seed();
  static unsigned char source[AREA_BYTES];
  for (size_t i = 0; i < sizeof source; ++i)
    source[i] = (unsigned char)test_random(&seed);
  for (int i = 0; i < 2000; ++i)
    check_copy(source, &seed);
}

static void test_fills(void** state) {
  (void)state;
  uint64_t seed = test_seed();
  test_environment_t environment;
  test_environment_init(&environment, NULL);
  const host_device_t device = {.environment = &environment.base};
  for (int i = 0; i < 500; ++i) {
    unsigned char expected[300];
    unsigned char actual[300];
    memset(expected, 0xEE, sizeof expected);
    memset(actual, 0xEE, sizeof actual);
    const uint32_t pattern_bytes = 1u << test_below(&seed, 4);
    const uint64_t pattern = test_random(&seed);
    const uint64_t size_bytes = test_below(&seed, 30) * pattern_bytes;
    for (uint64_t k = 0; k < size_bytes; ++k) {
      expected[k] = (unsigned char)(pattern >> (8 * (k % pattern_bytes)));
    }
    accrt_driver_command_t source = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
    source.as.fill.target = test_memory(actual, size_bytes);
    source.as.fill.pattern = pattern;
    source.as.fill.pattern_bytes = pattern_bytes;
    host_command_t command;
    accrt_host_prepare(&device, &source, NULL, NULL, &command);
    assert_int_equal(accrt_host_measure(&device, &command), ACCRT_OK);
    const uint64_t cut = test_below(&seed, command.item_count / 8 + 1) * 8;
    accrt_host_fill_items(&command.as.fill, 0, cut);
    accrt_host_fill_items(&command.as.fill, cut, command.item_count);
    assert_memory_equal(actual, expected, sizeof expected);
  }
}

/* Units cover all items, however many there are, and their number is bounded. */
static void test_units(void** state) {
  (void)state;
  test_environment_t environment;
  test_environment_init(&environment, NULL);
  const host_device_t device = {.environment = &environment.base};
  const uint32_t grids[][3] = {{0, 5, 5},   {1, 1, 1},        {1u << 20, 1, 1},
                               {7, 11, 13}, {1u << 20, 3, 1}, {UINT32_MAX, UINT32_MAX, 1}};
  for (size_t i = 0; i < sizeof grids / sizeof grids[0]; ++i) {
    host_command_t command = {.kind = ACCRT_DRIVER_COMMAND_DISPATCH};
    memcpy(command.as.dispatch.view.workgroup_count, grids[i], sizeof grids[i]);
    assert_int_equal(accrt_host_measure(&device, &command), ACCRT_OK);
    assert_int_equal(command.item_count, (uint64_t)grids[i][0] * grids[i][1] * grids[i][2]);
    assert_true(command.unit_count <= HOST_MAX_COMMAND_UNITS);
    assert_true((command.unit_count == 0) == (command.item_count == 0));
    if (command.unit_count == 0)
      continue;
    assert_true(command.items_per_unit > (command.item_count - 1) / command.unit_count);
    assert_true((command.unit_count - 1) * command.items_per_unit < command.item_count);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_levels),        cmocka_unit_test(test_leading_barrier),
      cmocka_unit_test(test_waves),         cmocka_unit_test(test_empty_list),
      cmocka_unit_test(test_grid_overflow), cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_copies),        cmocka_unit_test(test_fills),
      cmocka_unit_test(test_units),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
