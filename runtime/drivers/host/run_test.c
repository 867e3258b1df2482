/* runtime/drivers/host/run_test.c - running lists: order of random graphs, patches, every workgroup
 * exactly once, local memory, the floating-point environment, failures; with 0 to 4 threads.
 */
#define _GNU_SOURCE
#include <fenv.h>
#include <sched.h>

#include "runtime/drivers/host/testing.h"

static const char* const thread_counts[] = {"0", "1", "2", "4"};

/* Opens a device per thread count; spin time 0 also tries parking all the time. */
static void for_devices(void (*body)(test_device_t*)) {
  for (size_t i = 0; i < sizeof thread_counts / sizeof thread_counts[0]; ++i) {
    for (int spin = 0; spin < 2; ++spin) {
      test_device_t test;
      test_environment_init(&test.environment, thread_counts[i]);
      test_set_option(&test.environment, "host.spin_us", spin == 0 ? "0" : "50");
      test_device_open_prepared(&test);
      body(&test);
      test_device_close(&test);
    }
  }
}

static accrt_status_t run_commands(test_device_t* test, const accrt_driver_command_t* commands,
                                   uint32_t count, const accrt_driver_submission_t* submission,
                                   uint32_t repeats) {
  accrt_driver_list_t* list;
  accrt_status_t status = test->table->list_create(
      test->device,
      &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                  .command_count = count,
                                  .commands = commands,
                                  .binding_count = submission->binding_count,
                                  .scalar_count = submission->scalar_count},
      &list);
  assert_int_equal(status, ACCRT_OK);
  accrt_driver_queue_t* queue;
  assert_int_equal(test->table->queue_create(test->device, 0, &queue), ACCRT_OK);
  for (uint32_t i = 0; i < repeats && status == ACCRT_OK; ++i) {
    status = test->table->queue_run(queue, list, submission);
  }
  test->table->queue_destroy(queue);
  test->table->list_destroy(list);
  return status;
}

/* ---- Order: a logical clock says when each command's first workgroup began and its last one ended
 * ---- */

#define MAX_COMMANDS 60

typedef struct order_record {
  atomic_uint begin; /* smallest ticket, 0: none */
  atomic_uint end;   /* largest */
  atomic_uint count;
} order_record_t;

static atomic_uint order_clock;
static order_record_t order_records[MAX_COMMANDS];

typedef struct order_params {
  uint64_t index;
} order_params_t;

static int32_t record_order(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const order_params_t* params = dispatch->params;
  order_record_t* record = &order_records[params->index];
  const unsigned begin = atomic_fetch_add(&order_clock, 1) + 1;
  unsigned known = atomic_load(&record->begin);
  while ((known == 0 || begin < known) &&
         !atomic_compare_exchange_weak(&record->begin, &known, begin)) {
  }
  for (volatile int i = 0; i < 50; ++i) {
  }
  atomic_fetch_add(&record->count, 1);
  const unsigned end = atomic_fetch_add(&order_clock, 1) + 1;
  known = atomic_load(&record->end);
  while (end > known && !atomic_compare_exchange_weak(&record->end, &known, end)) {
  }
  return 0;
}

typedef struct graph {
  uint32_t count;
  accrt_driver_command_t commands[MAX_COMMANDS];
  order_params_t params[MAX_COMMANDS];
  uint32_t predecessors[MAX_COMMANDS][4];
  uint32_t workgroups[MAX_COMMANDS]; /* 0: a barrier */
} graph_t;

static void make_graph(graph_t* graph, const accrt_driver_kernel_t* kernel, uint64_t* seed) {
  graph->count = 1 + (uint32_t)(test_random(seed) % MAX_COMMANDS);
  for (uint32_t i = 0; i < graph->count; ++i) {
    if (test_random(seed) % 12 == 0) {
      graph->commands[i] = (accrt_driver_command_t){.opcode = ACCRT_DRIVER_COMMAND_BARRIER};
      graph->workgroups[i] = 0;
      continue;
    }
    const uint32_t grid[3] = {1 + (uint32_t)(test_random(seed) % 5),
                              1 + (uint32_t)(test_random(seed) % 3), 1};
    graph->params[i].index = i;
    graph->commands[i] = test_dispatch(kernel, grid, &graph->params[i], sizeof graph->params[i]);
    graph->workgroups[i] = grid[0] * grid[1];
    uint32_t used = 0;
    for (uint32_t k = 0; i > 0 && k < test_random(seed) % 4; ++k) {
      graph->predecessors[i][used++] = (uint32_t)(test_random(seed) % i);
    }
    graph->commands[i].predecessors = graph->predecessors[i];
    graph->commands[i].predecessor_count = used;
  }
}

static void assert_before(uint32_t first, uint32_t second) {
  assert_true(atomic_load(&order_records[first].end) < atomic_load(&order_records[second].begin));
}

static void check_graph(const graph_t* graph) {
  for (uint32_t i = 0; i < graph->count; ++i) {
    if (graph->workgroups[i] == 0)
      continue;
    assert_int_equal(atomic_load(&order_records[i].count), graph->workgroups[i]);
    for (uint32_t k = 0; k < graph->commands[i].predecessor_count; ++k) {
      const uint32_t before = graph->commands[i].predecessors[k];
      if (graph->workgroups[before] != 0)
        assert_before(before, i);
    }
    bool crossed = false;
    for (uint32_t k = i; k-- > 0;) {
      crossed |= graph->workgroups[k] == 0;
      if (crossed && graph->workgroups[k] != 0)
        assert_before(k, i);
    }
  }
}

static uint64_t order_seed;

static void check_random_graphs(test_device_t* test) {
  const accrt_kernel_def_t definition = test_definition("order", record_order);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  static graph_t graph;
  for (int round = 0; round < 40; ++round) {
    make_graph(&graph, &kernel, &order_seed);
    for (uint32_t repeat = 0; repeat < 3; ++repeat) {
      memset(order_records, 0, sizeof order_records);
      atomic_store(&order_clock, 0);
      const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
      assert_int_equal(run_commands(test, graph.commands, graph.count, &submission, 1), ACCRT_OK);
      check_graph(&graph);
    }
  }
}

static void test_random_graphs(void** state) {
  (void)state;
  order_seed = test_seed();
  for_devices(check_random_graphs);
}

/* ---- Every workgroup once, ids and parameters right, also when a list is run many times and its
 * costs are known ---- */

typedef struct cover_params {
  atomic_uint* cells;
  uint32_t spin;
  uint32_t worker_count_seen;
} cover_params_t;

static int32_t cover(const accrt_kernel_environment_t* environment,
                     const accrt_kernel_dispatch_t* dispatch,
                     const accrt_kernel_workgroup_t* workgroup) {
  const cover_params_t* params = dispatch->params;
  if (environment != &test_kernel_environment || dispatch->submission != 7)
    return 1;
  if (workgroup->worker_id >= dispatch->worker_count)
    return 2;
  if ((uintptr_t)dispatch->params % 16 != 0)
    return 3;
  for (uint32_t i = 0; i < 3; ++i) {
    if (workgroup->workgroup_id[i] >= dispatch->workgroup_count[i])
      return 4;
  }
  const uint32_t* count = dispatch->workgroup_count;
  const uint32_t index =
      workgroup->workgroup_id[0] +
      count[0] * (workgroup->workgroup_id[1] + count[1] * workgroup->workgroup_id[2]);
  for (volatile uint32_t i = 0; i < params->spin; ++i) {
  }
  atomic_fetch_add(&params->cells[index], 1);
  return 0;
}

static void check_cover(test_device_t* test) {
  static atomic_uint cells[3][1000];
  const accrt_kernel_def_t definition = test_definition("cover", cover);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grids[3][3] = {{1000, 1, 1}, {10, 10, 10}, {1, 500, 2}};
  cover_params_t params[3];
  accrt_driver_command_t commands[3];
  memset(cells, 0, sizeof cells);
  for (uint32_t i = 0; i < 3; ++i) {
    params[i] = (cover_params_t){.cells = cells[i], .spin = i * 100};
    commands[i] = test_dispatch(&kernel, grids[i], &params[i], sizeof params[i]);
  }
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  assert_int_equal(run_commands(test, commands, 3, &submission, 70), ACCRT_OK);
  for (uint32_t i = 0; i < 3000; ++i) {
    assert_int_equal(atomic_load(&cells[i / 1000][i % 1000]), 70);
  }
}

static void test_cover(void** state) {
  (void)state;
  for_devices(check_cover);
}

/* ---- Patches: bindings and scalars reach parameters, grids, copies and fills ---- */

typedef struct patch_params {
  uint64_t address;
  uint64_t absent;
  uint32_t wide;
  uint16_t narrow;
  uint8_t tiny;
  uint8_t pad;
} patch_params_t;

static int32_t store_patched(const accrt_kernel_environment_t* environment,
                             const accrt_kernel_dispatch_t* dispatch,
                             const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const patch_params_t* params = dispatch->params;
  if (params->absent != 0 || params->pad != 0x55)
    return 1;
  uint64_t* out = (uint64_t*)(uintptr_t)params->address;
  out[workgroup->workgroup_id[0]] = params->wide + params->narrow + params->tiny;
  return 0;
}

static void check_patches(test_device_t* test) {
  const accrt_kernel_def_t definition = test_definition("patched", store_patched);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const patch_params_t template_params = {.pad = 0x55};
  accrt_driver_patch_t patches[5] = {
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS, .offset_bytes = 0, .size_bytes = 8},
      {.kind = ACCRT_DRIVER_PATCH_ADDRESS, .offset_bytes = 8, .size_bytes = 8},
      {.kind = ACCRT_DRIVER_PATCH_VALUE, .offset_bytes = 16, .size_bytes = 4},
      {.kind = ACCRT_DRIVER_PATCH_VALUE, .offset_bytes = 20, .size_bytes = 2},
      {.kind = ACCRT_DRIVER_PATCH_VALUE, .offset_bytes = 22, .size_bytes = 1}};
  patches[0].range = test_range(0, 0, 64);
  patches[0].range.offset = test_scalar(1, 8); /* 8 + scalars[1] */
  patches[1].range = test_range(1, 16, 8);     /* absent: stays 0 whatever the offset */
  patches[2].value = test_scalar(0, 100);
  patches[3].value = test_scalar(0, 0);
  patches[4].value = test_constant(3);
  const uint32_t grid[3] = {1, 1, 1};
  accrt_driver_command_t commands[3];
  commands[0] = test_dispatch(&kernel, grid, &template_params, sizeof template_params);
  commands[0].as.dispatch.patches = patches;
  commands[0].as.dispatch.patch_count = 5;
  commands[0].as.dispatch.grid[0] = test_scalar(2, 0);
  static const uint32_t previous[] = {0, 1};
  commands[1] = test_copy(test_range(0, 8, 0), test_range(2, 0, 0), 0);
  commands[1].as.copy.extent[0] = test_scalar(3, 0);
  commands[1].predecessors = &previous[0];
  commands[1].predecessor_count = 1;
  commands[2] = (accrt_driver_command_t){
      .opcode = ACCRT_DRIVER_COMMAND_FILL, .predecessors = &previous[1], .predecessor_count = 1};
  commands[2].as.fill.target = test_range(0, 0, 8);
  commands[2].as.fill.pattern = 0xAB;
  commands[2].as.fill.pattern_bytes = 1;
  accrt_driver_list_t* list;
  assert_int_equal(
      test->table->list_create(
          test->device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 3,
                                      .commands = commands,
                                      .binding_count = 3,
                                      .scalar_count = 4},
          &list),
      ACCRT_OK);
  accrt_driver_queue_t* queue;
  assert_int_equal(test->table->queue_create(test->device, 0, &queue), ACCRT_OK);
  for (uint64_t round = 0; round < 50; ++round) {
    uint64_t area[8] = {0};
    uint64_t copied[8] = {0};
    const uint64_t workgroups = round % 4; /* 0 too */
    const accrt_driver_binding_t bindings[3] = {{(uint64_t)(uintptr_t)area, sizeof area},
                                                {0, 0},
                                                {(uint64_t)(uintptr_t)copied, sizeof copied}};
    const uint64_t scalars[4] = {round / 3, 8 * (round % 2), workgroups, 8 * workgroups};
    const accrt_driver_submission_t submission = test_submission(bindings, 3, scalars, 4);
    for (int again = 0; again < 2; ++again) {
      memset(area, 0, sizeof area);
      memset(copied, 0, sizeof copied);
      assert_int_equal(test->table->queue_run(queue, list, &submission), ACCRT_OK);
      for (uint64_t i = 0; i < 6; ++i) {
        const uint64_t expected = i < workgroups ? 2 * (round / 3) + 103 : 0;
        assert_int_equal(area[1 + round % 2 + i], expected);
      }
      assert_memory_equal(copied, &area[1], 8 * workgroups);
      assert_int_equal(copied[workgroups], 0);
      assert_true(area[0] == UINT64_C(0xABABABABABABABAB));
    }
  }
  test->table->queue_destroy(queue);
  test->table->list_destroy(list);
}

static void test_patches(void** state) {
  (void)state;
  for_devices(check_patches);
}

/* ---- Serial kernels, local memory, floating point ---- */

static atomic_uint serial_next;

static int32_t check_serial(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const uint32_t* count = dispatch->workgroup_count;
  const uint32_t index = workgroup->workgroup_id[0] + count[0] * workgroup->workgroup_id[1];
  return atomic_fetch_add(&serial_next, 1) == index ? 0 : 1;
}

static int32_t check_local(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  if (workgroup->local_memory_size_bytes != 100000)
    return 1;
  if ((uintptr_t)workgroup->local_memory % 64 != 0)
    return 2;
  volatile unsigned char* local = workgroup->local_memory;
  const unsigned char mark = (unsigned char)workgroup->workgroup_id[0];
  for (uint32_t i = 0; i < 100000; i += 997)
    local[i] = mark;
  for (uint32_t i = 0; i < 100000; i += 997) {
    if (local[i] != mark)
      return 3; /* somebody else's */
  }
  return 0;
}

static int32_t check_float(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  if (workgroup->local_memory != NULL || workgroup->local_memory_size_bytes != 0)
    return 3;
  volatile float tiny = 1e-40f;
  volatile float one = 1.0f;
  if (tiny * one == 0.0f)
    return 1;
  volatile float third = one / 3.0f;
  return third == 0x1.555556p-2f ? 0 : 2; /* 1/3 rounded to nearest */
}

static void check_three_kernels(test_device_t* test) {
  accrt_kernel_def_t definitions[3] = {test_definition("serial", check_serial),
                                       test_definition("local", check_local),
                                       test_definition("float", check_float)};
  definitions[0].traits = ACCRT_KERNEL_TRAIT_SERIAL;
  definitions[1].local_memory_size_bytes = 100000;
  accrt_driver_kernel_t kernels[3];
  accrt_driver_command_t commands[3];
  const uint32_t grid[3] = {40, 5, 1};
  for (int i = 0; i < 3; ++i) {
    kernels[i] = (accrt_driver_kernel_t){&definitions[i], &test_kernel_environment, NULL};
    commands[i] = test_dispatch(&kernels[i], grid, NULL, 0);
  }
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  fesetround(FE_DOWNWARD); /* the caller's, and to be the caller's again */
  for (int repeat = 0; repeat < 20; ++repeat) {
    atomic_store(&serial_next, 0);
    const accrt_status_t status = run_commands(test, commands, 3, &submission, 1);
    assert_int_equal(status, ACCRT_OK);
  }
  assert_int_equal(fegetround(), FE_DOWNWARD);
  fesetround(FE_TONEAREST);
}

static void test_kernel_surroundings(void** state) {
  (void)state;
  for_devices(check_three_kernels);
}

/* ---- Failures ---- */

static int32_t fail_in_five(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  if (workgroup->workgroup_id[0] != 5)
    return 0;
  snprintf(workgroup->message, workgroup->message_capacity_bytes, "five is %s", "not allowed");
  return 42;
}

static void check_failure(test_device_t* test) {
  const accrt_kernel_def_t definition = test_definition("picky", fail_in_five);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const accrt_kernel_def_t after_definition = test_definition("after", record_order);
  const accrt_driver_kernel_t after_kernel = {&after_definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {9, 1, 1};
  const uint32_t first[] = {0};
  const order_params_t params = {.index = 0};
  accrt_driver_command_t commands[2] = {test_dispatch(&kernel, grid, NULL, 0),
                                        test_dispatch(&after_kernel, grid, &params, sizeof params)};
  commands[1].predecessors = first;
  commands[1].predecessor_count = 1;
  memset(order_records, 0, sizeof order_records);
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  for (int repeat = 0; repeat < 10; ++repeat) {
    assert_int_equal(run_commands(test, commands, 2, &submission, 1), ACCRT_ERROR_KERNEL);
    assert_int_equal(test->environment.driver_code, 42);
    assert_non_null(strstr(test->environment.message, "'picky' returned 42"));
    assert_non_null(strstr(test->environment.message, "(5, 0, 0) of (9, 1, 1)"));
    assert_non_null(strstr(test->environment.message, "five is not allowed"));
  }
  assert_int_equal(atomic_load(&order_records[0].count), 0); /* what follows did not run */
}

static void test_failures(void** state) {
  (void)state;
  for_devices(check_failure);
}

/* Writes a message in workgroup 0, fails silently in workgroup 1. */
static int32_t talk_then_fail(const accrt_kernel_environment_t* environment,
                              const accrt_kernel_dispatch_t* dispatch,
                              const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  if (workgroup->workgroup_id[0] != 0)
    return 9;
  snprintf(workgroup->message, workgroup->message_capacity_bytes, "all is well");
  return 0;
}

static void test_message_is_the_failing_one(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "1");
  accrt_kernel_def_t definition = test_definition("talker", talk_then_fail);
  definition.traits = ACCRT_KERNEL_TRAIT_SERIAL;
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {2, 1, 1};
  const accrt_driver_command_t command = test_dispatch(&kernel, grid, NULL, 0);
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  assert_int_equal(run_commands(&test, &command, 1, &submission, 1), ACCRT_ERROR_KERNEL);
  assert_non_null(strstr(test.environment.message, "'talker' returned 9"));
  assert_null(strstr(test.environment.message, "all is well"));
  test_device_close(&test);
}

/* ---- Affinity: threads run where they are told; the caller keeps its own mask ---- */

static int32_t record_processor(const accrt_kernel_environment_t* environment,
                                const accrt_kernel_dispatch_t* dispatch,
                                const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  atomic_int* const* cell = dispatch->params;
  atomic_store(*cell, sched_getcpu());
  return 0;
}

static void test_affinity(void** state) {
  (void)state;
  cpu_set_t allowed;
  assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET((size_t)cpu, &allowed))
      continue;
    char text[16];
    snprintf(text, sizeof text, "%d", cpu);
    test_device_t test;
    test_environment_init(&test.environment, NULL);
    test_set_option(&test.environment, "host.affinity", text);
    test_device_open_prepared(&test);
    accrt_driver_queue_t* queue;
    assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
    const accrt_kernel_def_t definition = test_definition("processor", record_processor);
    const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
    atomic_int seen;
    atomic_init(&seen, -1);
    const atomic_int* params = &seen;
    const uint32_t grid[3] = {1, 1, 1};
    const accrt_driver_command_t command = test_dispatch(&kernel, grid, &params, sizeof params);
    test_signal_t end = {0};
    accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
    submission.completion = test_completion(&end);
    assert_int_equal(test.table->queue_enqueue(queue, &command, &submission), ACCRT_OK);
    test_signal_wait(&test, &end, 1);
    assert_int_equal(atomic_load(&seen), cpu);
    test.table->queue_destroy(queue);
    test_device_close(&test);
    cpu_set_t after;
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&allowed, &after));
  }
}

static void test_tracing(void** state) {
  (void)state;
  test_device_t test;
  test_environment_init(&test.environment, "2");
  test.environment.base.tracing = 1;
  test_device_open_prepared(&test);
  const accrt_kernel_def_t definition = test_definition("float", check_float);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {9, 1, 1};
  const accrt_driver_command_t commands[3] = {
      test_dispatch(&kernel, grid, NULL, 0),
      {.opcode = ACCRT_DRIVER_COMMAND_BARRIER},
      {.opcode = ACCRT_DRIVER_COMMAND_MARKER, .name = "here"}};
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  assert_int_equal(run_commands(&test, commands, 3, &submission, 4), ACCRT_OK);
  assert_int_equal(atomic_load(&test.environment.trace_count), 8);
  test_device_close(&test);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_cover),
      cmocka_unit_test(test_patches),       cmocka_unit_test(test_kernel_surroundings),
      cmocka_unit_test(test_failures),      cmocka_unit_test(test_message_is_the_failing_one),
      cmocka_unit_test(test_affinity),      cmocka_unit_test(test_tracing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
