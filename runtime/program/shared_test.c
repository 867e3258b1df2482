/* runtime/program/shared_test.c - two threads use an object that supports one at a time: a session
 * with its calls, a command list during recording, a prepared launch. Each function reports it, and
 * no harm is done.
 */
#include <pthread.h>

#include "runtime/program/testing.h"

extern const accrt_driver_table_t* accrt_driver_null_query(uint32_t max_abi);
static const void* query_null(uint32_t max_abi) {
  return accrt_driver_null_query(max_abi);
}

#define FOREVER ACCRT_TIMEOUT_INFINITE
#define IN_USE(call) FAILS(call, INVALID_STATE, "is in use")

/* ---- Sessions ---- */

static void* wait_for_call(void* argument) {
  return (void*)(intptr_t)accrt_call_wait(argument, FOREVER);
}

static void every_function_of_a_session_tells(void** state) {
  FIXTURE(f);
  float x[4] = {1, 2, 3, 4}, y[4] = {0};
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  accrt_semaphore_t* gate;
  accrt_session_t* clone;
  accrt_call_t *call = make_call(f->session, "affine"), *other;
  accrt_tensor_t tensor = tensor_of(x, ACCRT_DTYPE_F32, 1, &(const int64_t){4});
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_semaphore_create(f->instance, 0, &gate));
  OK(set_vector(call, "x", x, ACCRT_DTYPE_F32, 4));
  OK(set_vector(call, "y", y, ACCRT_DTYPE_F32, 4));
  const accrt_timepoint_t wait = {gate, 1};
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  pthread_t thread;
  void* result;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_call, call), 0);
  while (atomic_load(&f->session->guard.inside) == NULL)
    (void)usleep(100);
  FAILS(accrt_call_run(call, FOREVER), INVALID_STATE, "accrt_call_wait is inside");
  IN_USE(accrt_call_run(call, 0));
  IN_USE(accrt_call_attempt(call, 1000));
  IN_USE(accrt_call_wait(call, 0));
  IN_USE(accrt_call_submit(call, NULL, 0, NULL, 0));
  IN_USE(accrt_call_set_tensor(call, 0, &tensor));
  IN_USE(accrt_call_set_tensor(call, 0, NULL));
  IN_USE(accrt_call_set_scalar(call, 0, 1));
  IN_USE(accrt_call_result(call, 0, &tensor, shape, strides));
  IN_USE(accrt_call_create(f->session, "affine", &other));
  IN_USE(accrt_session_reset(f->session));
  IN_USE(accrt_session_clone(f->session, NULL, &clone));
  IN_USE(accrt_session_error(f->session, &error));
  IN_USE(accrt_session_warmup(f->session, "affine", NULL, 0, sizeof(accrt_symbol_value_t)));
  IN_USE(accrt_session_set_adapter(f->session, NULL));
  IN_USE(accrt_session_bind_state(f->session, "cache", NULL, 0));
  IN_USE(accrt_session_state(f->session, "cache", &tensor, shape, strides));
  /* Functions that any thread may call. */
  accrt_session_release(accrt_session_retain(f->session));
  accrt_call_release(accrt_call_retain(call));
  assert_non_null(accrt_session_stream(f->session));
  OK(accrt_session_cancel(f->session));
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_int_equal((intptr_t)result, ACCRT_ERROR_CANCELLED);
  OK(accrt_session_reset(f->session));
  OK(run(call));
  assert_true(y[3] == 9.0f);
  accrt_call_release(call);
  accrt_semaphore_release(gate);
}

/* ---- Command lists ---- */

#define MARKERS 20000u

typedef struct recorder {
  accrt_commands_t* commands;
  atomic_uint* ready; /* both threads begin at once */
  unsigned recorded, refused, failed;
} recorder_t;

static void* record_markers(void* argument) {
  recorder_t* recorder = argument;
  atomic_fetch_add(recorder->ready, 1);
  while (atomic_load(recorder->ready) < 2)
    continue;
  for (unsigned i = 0; i < MARKERS; ++i) {
    const accrt_status_t status = accrt_commands_marker(recorder->commands, "m", NULL, NULL);
    recorder->recorded += status == ACCRT_OK;
    recorder->refused += status == ACCRT_ERROR_INVALID_STATE;
    recorder->failed += status != ACCRT_OK && status != ACCRT_ERROR_INVALID_STATE;
  }
  return NULL;
}

static void recording_at_once_tells_and_loses_nothing(void** state) {
  FIXTURE(f);
  accrt_commands_t* commands;
  pthread_t thread;
  uint32_t count;
  OK(accrt_commands_create(f->device, 0, &commands));
  atomic_uint ready = 0;
  recorder_t first = {.commands = commands, .ready = &ready}, second = first;
  assert_int_equal(pthread_create(&thread, NULL, record_markers, &first), 0);
  (void)record_markers(&second);
  assert_int_equal(pthread_join(thread, NULL), 0);
  OK(accrt_commands_count(commands, &count));
  print_message("%u and %u recorded, %u and %u refused\n", first.recorded, second.recorded,
                first.refused, second.refused);
  assert_int_equal(count, first.recorded + second.recorded);
  assert_int_equal(first.failed + second.failed, 0);
  OK(accrt_commands_finalize(commands));
  accrt_commands_release(commands);
}

/* ---- Prepared launches: a kernel that runs while it is launched uses its own launch ---- */

static accrt_launch_t* launched;
static accrt_status_t told_set, told_launch;
static accrt_stream_t* launched_on;

static int32_t intrude(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  const accrt_kernel_argument_t argument = ACCRT_KERNEL_ARGUMENT_SCALAR(2);
  const uint32_t grid[3] = {1, 1, 1};
  told_set = accrt_launch_set(launched, 0, &argument, sizeof argument);
  told_launch = accrt_stream_launch_prepared(launched_on, launched, grid);
  return 0;
}

static const accrt_kernel_param_t params[] = {
    {.name = "n", .kind = ACCRT_KERNEL_PARAM_SCALAR, .align_log2 = 3, .size_bytes = 8}};
static const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                              .name = "intrude",
                                              .entry = intrude,
                                              .params = params,
                                              .param_count = 1,
                                              .params_size_bytes = 8};
static const accrt_kernel_pack_table_t table = {.struct_size = (uint32_t)sizeof table,
                                                .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                .name = "shared_test",
                                                .kernels = &definition,
                                                .kernel_count = 1,
                                                .kernel_size_bytes = (uint32_t)sizeof definition};
static const accrt_kernel_pack_table_t* query_pack(uint32_t max_abi,
                                                   const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &table;
}

static void launches_tell(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_kernel_pack_t* pack;
  accrt_kernel_t* kernel;
  const accrt_kernel_argument_t argument = ACCRT_KERNEL_ARGUMENT_SCALAR(1);
  const uint32_t grid[3] = {1, 1, 1};
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  OK(accrt_instance_create(&options, &instance));
  OK(accrt_instance_register_driver(instance, query_null));
  OK(accrt_instance_device(instance, 0, &device));
  OK(accrt_stream_create(device, NULL, &launched_on));
  OK(accrt_kernel_pack_register(instance, query_pack, &pack));
  OK(accrt_kernel_pack_kernel(pack, 0, &kernel));
  OK(accrt_launch_create(device, kernel, &launched));
  OK(accrt_launch_set(launched, 0, &argument, sizeof argument));
  OK(accrt_stream_launch_prepared(launched_on, launched, grid));
  OK(accrt_stream_synchronize(launched_on, FOREVER, ACCRT_WAIT_BLOCK));
  assert_int_equal(told_set, ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(told_launch, ACCRT_ERROR_INVALID_STATE);
  OK(accrt_launch_set(launched, 0, &argument, sizeof argument));
  accrt_launch_release(launched);
  accrt_kernel_pack_release(pack);
  accrt_stream_release(launched_on);
  accrt_device_release(device);
  accrt_instance_release(instance);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(every_function_of_a_session_tells),
      FIXTURE_TEST(recording_at_once_tells_and_loses_nothing),
      cmocka_unit_test(launches_tell),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
