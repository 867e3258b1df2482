/* runtime/drivers/common/operator_test.c - host operators in recorded commands, on the host driver:
 * arguments, order, workspace, errors, and what may not be done with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "accrt/sys/driver.h"
#include "runtime/core/error.h"
#include "runtime/core/test_allocator.h"

/* ---- Operators of the test ---- */

static struct {
  int prepared, destroyed;
  uint64_t asks_bytes; /* workspace */
  /* Operators that nothing orders run side by side. */
  atomic_int executed;
  atomic_ullong submission;
} seen;

typedef struct add_params {
  const int64_t* x;
  int64_t* y;
  int64_t plus;
} add_params_t;

static int32_t query_workspace(const accrt_kernel_environment_t* environment,
                               const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  (void)environment;
  (void)call;
  *out_size_bytes = seen.asks_bytes;
  return 0;
}
static int32_t prepare(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  ++seen.prepared;
  int64_t* state = malloc(sizeof *state);
  *state = ((const add_params_t*)call->params)->plus;
  *out_state = state;
  return 0;
}
/* y += x + plus, and marks its workspace, which it finds zero. */
static int32_t execute(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void* state) {
  const add_params_t* p = call->params;
  (void)environment;
  atomic_fetch_add(&seen.executed, 1);
  atomic_store(&seen.submission, call->submission);
  unsigned char* workspace = call->workspace;
  if (*(const int64_t*)state != p->plus || call->workspace_size_bytes != seen.asks_bytes ||
      (workspace != NULL) != (seen.asks_bytes != 0) || (uintptr_t)workspace % 256 != 0)
    return 9;
  for (uint64_t i = 0; i < seen.asks_bytes; ++i) {
    if (workspace[i] != 0)
      return 8;
    workspace[i] = 0xEE;
  }
  if (p->plus < 0) {
    static const char text[] = "less than nothing";
    if (call->message_capacity_bytes >= sizeof text)
      memcpy(call->message, text, sizeof text);
    return 7;
  }
  __atomic_fetch_add(p->y, *p->x + p->plus, __ATOMIC_RELAXED);
  return 0;
}
static void destroy(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  ++seen.destroyed;
  free(state);
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(add_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(add_params_t, y, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(add_params_t, plus, SCALAR, NONE),
};
static const accrt_operator_def_t operators[] = {
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE,
     .name = "add",
     .params = params,
     .param_count = 3,
     .params_size_bytes = sizeof(add_params_t),
     .query_workspace = query_workspace,
     .prepare = prepare,
     .execute = execute,
     .destroy = destroy},
    {.struct_size = sizeof(accrt_operator_def_t),
     .name = "elsewhere",
     .device_type = 2,
     .execute = execute},
};
static int32_t run_kernel(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}
static const accrt_kernel_def_t kernels[] = {
    {.struct_size = sizeof(accrt_kernel_def_t), .name = "kernel", .entry = run_kernel}};
static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof table,
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "operators",
    .kernels = kernels,
    .kernel_count = 1,
    .kernel_size_bytes = sizeof kernels[0],
    .host_operators = operators,
    .host_operator_count = 2,
    .host_operator_size_bytes = sizeof operators[0],
};
static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &table;
}

/* ---- Fixture ---- */

static test_allocator_t allocator;
static accrt_instance_t* instance;
static accrt_device_t* device;
static accrt_stream_t* stream;
static accrt_kernel_pack_t* pack;
static accrt_kernel_t *add, *elsewhere, *kernel;

static int setup(void** state) {
  (void)state;
  memset(&seen, 0, sizeof seen);
  const accrt_allocator_t interface = test_allocator_interface(&allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &interface;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_stream_create(device, NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_register(instance, query, &pack), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(pack, "add", &add), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(pack, "elsewhere", &elsewhere), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(pack, "kernel", &kernel), ACCRT_OK);
  return 0;
}

static int teardown(void** state) {
  (void)state;
  accrt_kernel_pack_release(pack);
  accrt_stream_release(stream);
  accrt_device_release(device);
  accrt_instance_release(instance);
  assert_int_equal(atomic_load(&allocator.live_count), 0);
  assert_int_equal(seen.prepared, seen.destroyed);
  return 0;
}

static void expect_message(const char* text) {
  if (strstr(accrt_error_current()->message, text) == NULL)
    fail_msg("'%s' lacks '%s'", accrt_error_current()->message, text);
}

/* Bindings 0 (x) and 1 (y). */
static void make_arguments(accrt_kernel_argument_t out[3], int64_t plus) {
  memset(out, 0, 3 * sizeof *out);
  for (uint32_t i = 0; i < 2; ++i) {
    out[i].kind = ACCRT_KERNEL_PARAM_BUFFER;
    out[i].binding = i;
    out[i].size_bytes = 8;
  }
  out[2].kind = ACCRT_KERNEL_PARAM_SCALAR;
  out[2].binding = ACCRT_BINDING_NONE;
  out[2].value = (uint64_t)plus;
}

static accrt_commands_t* begin(void) {
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(device, 2, &commands), ACCRT_OK);
  return commands;
}

static accrt_status_t invoke(accrt_commands_t* commands, int64_t plus,
                             const accrt_predecessors_t* predecessors) {
  accrt_kernel_argument_t arguments[3];
  make_arguments(arguments, plus);
  return accrt_commands_invoke(commands, add, arguments, 3, sizeof arguments[0], predecessors,
                               NULL);
}

static accrt_status_t run(accrt_commands_t* commands, const int64_t* x, int64_t* y) {
  const accrt_binding_t bindings[2] = {{NULL, (void*)(uintptr_t)x, 0, 8}, {NULL, y, 0, 8}};
  return accrt_stream_run(stream, commands, bindings, 2, sizeof bindings[0],
                          ACCRT_TIMEOUT_INFINITE);
}

/* ---- Tests ---- */

static void recorded_once_run_often(void** state) {
  (void)state;
  accrt_commands_t* commands = begin();
  for (int64_t plus = 0; plus < 3; ++plus)
    assert_int_equal(invoke(commands, plus, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  assert_int_equal(seen.prepared, 3);
  for (int64_t round = 0; round < 20; ++round) {
    const int64_t x = round;
    int64_t y = 0, other = 0;
    assert_int_equal(run(commands, &x, round % 2 == 0 ? &y : &other), ACCRT_OK);
    assert_int_equal(y + other, 3 * x + 3);
  }
  assert_int_equal(seen.prepared, 3);
  assert_int_equal(atomic_load(&seen.executed), 60);
  assert_int_not_equal(atomic_load(&seen.submission), 0);
  accrt_commands_release(commands);
}

/* Each its own, zero at entry: also where nothing orders the operators. */
static void workspaces(void** state) {
  (void)state;
  seen.asks_bytes = 100;
  accrt_commands_t* commands = begin();
  const accrt_predecessors_t none = {NULL, 0, 0};
  assert_int_equal(invoke(commands, 1, &none), ACCRT_OK);
  assert_int_equal(invoke(commands, 2, &none), ACCRT_OK);
  assert_int_equal(invoke(commands, 3, NULL), ACCRT_OK);
  uint32_t count;
  assert_int_equal(accrt_commands_count(commands, &count), ACCRT_OK);
  assert_int_equal(count, 6); /* with the fills */
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  const int64_t x = 5;
  for (int round = 0; round < 3; ++round) {
    int64_t y = 0;
    assert_int_equal(run(commands, &x, &y), ACCRT_OK);
    assert_true(atomic_load(&seen.executed) == 3 * (round + 1));
  }
  accrt_commands_release(commands);
}

static void asynchronously(void** state) {
  (void)state;
  seen.asks_bytes = 64;
  accrt_commands_t* commands = begin();
  assert_int_equal(invoke(commands, 4, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  const int64_t x = 6;
  int64_t y = 0;
  const accrt_binding_t bindings[2] = {{NULL, (void*)(uintptr_t)&x, 0, 8}, {NULL, &y, 0, 8}};
  for (int i = 0; i < 10; ++i) {
    assert_int_equal(accrt_stream_submit(stream, commands, bindings, 2, sizeof bindings[0]),
                     ACCRT_OK);
  }
  accrt_commands_release(commands);
  assert_int_equal(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  assert_int_equal(y, 100);
}

static void failing(void** state) {
  (void)state;
  accrt_commands_t* commands = begin();
  assert_int_equal(invoke(commands, -1, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  const int64_t x = 6;
  int64_t y = 0;
  assert_int_equal(run(commands, &x, &y), ACCRT_ERROR_KERNEL);
  expect_message("operator 'add': execute gave 7: less than nothing");
  assert_int_equal(accrt_error_current()->driver_code, 7);
  accrt_commands_release(commands);
}

static void refused(void** state) {
  (void)state;
  accrt_commands_t* commands = begin();
  accrt_kernel_argument_t arguments[3];
  make_arguments(arguments, 1);
  const uint32_t grid[3] = {1, 1, 1};
  uint32_t index = 5;
  assert_int_equal(
      accrt_commands_dispatch(commands, add, grid, arguments, 3, sizeof arguments[0], NULL, &index),
      ACCRT_ERROR_INVALID_ARGUMENT);
  expect_message("record it with accrt_commands_invoke");
  assert_int_equal(accrt_stream_launch(stream, add, grid, arguments, 3, sizeof arguments[0]),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_launch_t* launch;
  assert_int_equal(accrt_launch_create(device, add, &launch), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(
      accrt_commands_invoke(commands, kernel, NULL, 0, sizeof arguments[0], NULL, NULL),
      ACCRT_ERROR_INVALID_ARGUMENT);
  expect_message("'kernel' is no host operator");
  assert_int_equal(
      accrt_commands_invoke(commands, elsewhere, NULL, 0, sizeof arguments[0], NULL, NULL),
      ACCRT_ERROR_UNSUPPORTED);
  expect_message("'elsewhere' is for devices of type 2, host:0 is of 1");
  assert_int_equal(accrt_commands_invoke(commands, NULL, NULL, 0, sizeof arguments[0], NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(
      accrt_commands_invoke(commands, add, arguments, 2, sizeof arguments[0], NULL, NULL),
      ACCRT_ERROR_INVALID_ARGUMENT);
  arguments[1].binding = 2;
  assert_int_equal(
      accrt_commands_invoke(commands, add, arguments, 3, sizeof arguments[0], NULL, NULL),
      ACCRT_ERROR_OUT_OF_RANGE);
  uint32_t count;
  assert_int_equal(accrt_commands_count(commands, &count), ACCRT_OK);
  assert_int_equal(count, 0);
  accrt_commands_release(commands);
}

extern const accrt_driver_table_t* accrt_driver_null_query(uint32_t max_abi);
static const void* query_null(uint32_t max_abi) {
  return accrt_driver_null_query(max_abi);
}

/* A driver that runs no operators says so when the list is made. */
static void other_drivers(void** state) {
  (void)state;
  assert_int_equal(accrt_instance_register_driver(instance, query_null), ACCRT_OK);
  accrt_device_t* other;
  assert_int_equal(accrt_instance_device_by_name(instance, "null", &other), ACCRT_OK);
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(other, 2, &commands), ACCRT_OK);
  assert_int_equal(invoke(commands, 1, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_ERROR_UNSUPPORTED);
  expect_message("runs no host operators ('add')");
  accrt_commands_release(commands);
  accrt_device_release(other);
}

static void failing_allocations(void** state) {
  (void)state;
  seen.asks_bytes = 32;
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  for (long n = 1; status != ACCRT_OK; ++n) {
    accrt_commands_t* commands = begin();
    test_allocator_fail(&allocator, n, 0);
    status = invoke(commands, 1, NULL);
    uint32_t count;
    assert_int_equal(accrt_commands_count(commands, &count), ACCRT_OK);
    assert_int_equal(count, status == ACCRT_OK ? 2 : 0); /* all or nothing */
    if (status == ACCRT_OK)
      status = accrt_commands_finalize(commands);
    test_allocator_fail(&allocator, 0, 0);
    assert_true(status == ACCRT_OK || status == ACCRT_ERROR_OUT_OF_MEMORY);
    accrt_commands_release(commands);
    assert_true(n < 1000);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(recorded_once_run_often, setup, teardown),
      cmocka_unit_test_setup_teardown(workspaces, setup, teardown),
      cmocka_unit_test_setup_teardown(asynchronously, setup, teardown),
      cmocka_unit_test_setup_teardown(failing, setup, teardown),
      cmocka_unit_test_setup_teardown(refused, setup, teardown),
      cmocka_unit_test_setup_teardown(other_drivers, setup, teardown),
      cmocka_unit_test_setup_teardown(failing_allocations, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
