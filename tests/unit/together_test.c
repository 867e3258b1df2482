/* tests/unit/together_test.c - handles of one call belong together: those of another instance,
 * or of another device, are told with both names, before anything is touched. Messages name
 * the argument that is wrong, and a struct_size that cuts a field is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include "accrt/accrt.h"

/* One instance with two devices. */
typedef struct side {
  accrt_instance_t* instance;
  accrt_device_t* devices[2];
  accrt_pool_t* pools[2];
  accrt_stream_t* streams[2];
  accrt_event_t* event;
  accrt_semaphore_t* semaphore;
  accrt_buffer_t* buffer;
  accrt_commands_t* commands;
  accrt_kernel_pack_t* pack;
  accrt_kernel_t* kernel;
  accrt_launch_t* launch;
  accrt_bundle_t* bundle;
  accrt_weights_t* weights;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* call;
} side_t;

#define OK(expression) assert_int_equal((expression), ACCRT_OK)

static const char* last_message(void) {
  static accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  OK(accrt_last_error(&error));
  return error.message;
}

static int32_t run_nothing(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

typedef struct parameters {
  uint64_t memory;
} parameters_t;
static const accrt_kernel_param_t parameters[] = {
    ACCRT_KERNEL_PARAM(parameters_t, memory, BUFFER, READ_WRITE)};
static const accrt_kernel_param_t value_parameters[] = {
    ACCRT_KERNEL_PARAM(parameters_t, memory, SCALAR, NONE)};
static const accrt_kernel_def_t kernels[] = {{.struct_size = (uint32_t)sizeof(accrt_kernel_def_t),
                                              .name = "nothing",
                                              .entry = run_nothing,
                                              .params = parameters,
                                              .param_count = 1,
                                              .params_size_bytes = (uint32_t)sizeof(parameters_t)},
                                             {.struct_size = (uint32_t)sizeof(accrt_kernel_def_t),
                                              .name = "value",
                                              .entry = run_nothing,
                                              .params = value_parameters,
                                              .param_count = 1,
                                              .params_size_bytes = (uint32_t)sizeof(parameters_t)}};
static const accrt_kernel_pack_table_t table = {.struct_size =
                                                    (uint32_t)sizeof(accrt_kernel_pack_table_t),
                                                .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                .name = "together",
                                                .kernels = kernels,
                                                .kernel_count = 2,
                                                .kernel_size_bytes = (uint32_t)sizeof kernels[0]};
static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &table;
}

static void open_side(side_t* s) {
  const accrt_option_t options[] = {{"host.devices", "2"}, {"host.threads", "1"}};
  accrt_instance_options_t all = ACCRT_INSTANCE_OPTIONS_INIT;
  all.options = options;
  all.option_count = 2;
  all.option_size_bytes = (uint32_t)sizeof options[0];
  all.host_code_policy = ACCRT_HOST_CODE_ALL;
  OK(accrt_instance_create(&all, &s->instance));
  OK(accrt_instance_device_by_name(s->instance, "host:0", &s->devices[0]));
  OK(accrt_instance_device_by_name(s->instance, "host:1", &s->devices[1]));
  for (int i = 0; i < 2; ++i) {
    OK(accrt_device_pool(s->devices[i], 0, &s->pools[i]));
    OK(accrt_stream_create(s->devices[i], NULL, &s->streams[i]));
  }
  OK(accrt_event_create(s->devices[0], 0, &s->event));
  OK(accrt_semaphore_create(s->instance, 0, &s->semaphore));
  OK(accrt_buffer_create(s->pools[0], 256, NULL, &s->buffer));
  OK(accrt_commands_create(s->devices[0], 1, &s->commands));
  OK(accrt_kernel_pack_register(s->instance, query, &s->pack));
  OK(accrt_kernel_pack_find(s->pack, "nothing", &s->kernel));
  OK(accrt_launch_create(s->devices[0], s->kernel, &s->launch));
  OK(accrt_bundle_open_path(s->instance, ACCRT_TEST_DATA "/program.accx", NULL, &s->bundle));
  OK(accrt_weights_open_bundle(s->bundle, &s->weights));
  OK(accrt_program_create(s->devices[0], s->bundle, NULL, &s->program));
  OK(accrt_session_create(s->program, NULL, &s->session));
  OK(accrt_call_create(s->session, "empty", &s->call));
}

static void close_side(side_t* s) {
  accrt_call_release(s->call);
  accrt_session_release(s->session);
  accrt_program_release(s->program);
  accrt_weights_release(s->weights);
  accrt_bundle_release(s->bundle);
  accrt_launch_release(s->launch);
  accrt_kernel_pack_release(s->pack);
  accrt_commands_release(s->commands);
  accrt_buffer_release(s->buffer);
  accrt_semaphore_release(s->semaphore);
  accrt_event_release(s->event);
  accrt_stream_release(s->streams[0]);
  accrt_stream_release(s->streams[1]);
  accrt_instance_release(s->instance);
}

#define REFUSED(expression, word)                                                                  \
  do {                                                                                             \
    assert_int_equal((expression), ACCRT_ERROR_INVALID_ARGUMENT);                                  \
    if (strstr(last_message(), word) == NULL)                                                      \
      fail_msg("%s: '%s' is not in '%s'", #expression, word, last_message());                      \
  } while (0)
#define INSTANCE "another instance"

static void test_other_instance(void** state) {
  (void)state;
  side_t a, b;
  open_side(&a);
  open_side(&b);
  char bytes[64] = "";
  const accrt_place_t foreign = {b.buffer, NULL, 0}, plain = {NULL, bytes, 0};
  const uint32_t grid[3] = {1, 1, 1};
  const accrt_copy_region_t region = {.extent = {8, 1, 1}};
  accrt_kernel_argument_t own_argument = ACCRT_KERNEL_ARGUMENT_BUFFER(a.buffer),
                          argument = ACCRT_KERNEL_ARGUMENT_BUFFER(b.buffer);
  const uint32_t size = (uint32_t)sizeof argument;
  REFUSED(accrt_stream_copy(a.streams[0], &foreign, &plain, 8), INSTANCE);
  REFUSED(accrt_stream_copy(a.streams[0], &plain, &foreign, 8), INSTANCE);
  REFUSED(accrt_stream_copy_strided(a.streams[0], &plain, &foreign, &region), INSTANCE);
  REFUSED(accrt_stream_fill(a.streams[0], &foreign, 8, 0, 1), INSTANCE);
  REFUSED(accrt_stream_free(a.streams[0], b.buffer), INSTANCE);
  REFUSED(accrt_stream_wait(a.streams[0], b.semaphore, 1), INSTANCE);
  REFUSED(accrt_stream_signal(a.streams[0], b.semaphore, 1), INSTANCE);
  REFUSED(accrt_stream_record(a.streams[0], b.event), INSTANCE);
  REFUSED(accrt_stream_wait_event(a.streams[0], b.event), "host:0");
  int64_t elapsed;
  REFUSED(accrt_event_elapsed(a.event, b.event, &elapsed), INSTANCE);
  REFUSED(accrt_device_enable_peer(a.devices[0], b.devices[1]), INSTANCE);
  REFUSED(accrt_stream_launch(a.streams[0], b.kernel, grid, &own_argument, 1, size), INSTANCE);
  REFUSED(accrt_stream_launch(a.streams[0], a.kernel, grid, &argument, 1, size), INSTANCE);
  REFUSED(accrt_stream_launch_prepared(a.streams[0], b.launch, grid), INSTANCE);
  REFUSED(accrt_launch_set(a.launch, 0, &argument, size), INSTANCE);
  accrt_launch_t* launch;
  REFUSED(accrt_launch_create(a.devices[0], b.kernel, &launch), INSTANCE);
  REFUSED(accrt_commands_dispatch(a.commands, b.kernel, grid, &own_argument, 1, size, NULL, NULL),
          INSTANCE);
  const accrt_binding_place_t place = {ACCRT_BINDING_NONE, 0, foreign},
                              own_place = {ACCRT_BINDING_NONE, 0, plain};
  REFUSED(accrt_commands_copy(a.commands, &place, &own_place, &region, NULL, NULL), INSTANCE);
  REFUSED(accrt_commands_fill(a.commands, &place, 8, 0, 1, NULL, NULL), INSTANCE);
  OK(accrt_commands_finalize(a.commands));
  OK(accrt_commands_finalize(b.commands));
  const accrt_binding_t binding = {b.buffer, NULL, 0, UINT64_MAX};
  REFUSED(accrt_stream_submit(a.streams[0], b.commands, &binding, 1, sizeof binding), INSTANCE);
  REFUSED(accrt_stream_submit(a.streams[0], a.commands, &binding, 1, sizeof binding), INSTANCE);
  REFUSED(accrt_stream_run(a.streams[0], a.commands, &binding, 1, sizeof binding, 0), INSTANCE);
  accrt_buffer_options_t buffer_options = ACCRT_BUFFER_OPTIONS_INIT;
  buffer_options.stream = b.streams[0];
  accrt_buffer_t* buffer;
  REFUSED(accrt_buffer_create(a.pools[0], 8, &buffer_options, &buffer), "another device");
  accrt_program_t* program;
  REFUSED(accrt_program_create(a.devices[0], b.bundle, NULL, &program), "different instances");
  accrt_program_options_t program_options = ACCRT_PROGRAM_OPTIONS_INIT;
  program_options.weights = &b.weights;
  program_options.weight_count = 1;
  REFUSED(accrt_program_create(a.devices[0], a.bundle, &program_options, &program), INSTANCE);
  REFUSED(accrt_program_load_weights(a.program, &b.weights, 1, NULL, 0, 0), INSTANCE);
  accrt_adapter_t* adapter;
  REFUSED(accrt_adapter_load(a.program, b.weights, NULL, &adapter), INSTANCE);
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  accrt_session_t* session;
  options.pool = b.pools[0];
  REFUSED(accrt_session_create(a.program, &options, &session), INSTANCE);
  REFUSED(accrt_session_clone(a.session, &options, &session), INSTANCE);
  options.pool = NULL;
  options.stream = b.streams[0];
  REFUSED(accrt_session_create(a.program, &options, &session), INSTANCE);
  REFUSED(accrt_session_bind_state(a.session, "cache", b.buffer, 0), INSTANCE);
  const accrt_timepoint_t points[] = {{a.semaphore, 1}, {b.semaphore, 1}};
  REFUSED(accrt_semaphore_wait_many(points, 2, 0, 0, 0, NULL), "timepoint 1 is of another");
  REFUSED(accrt_call_submit(a.call, points + 1, 1, NULL, 0), "waits[0].semaphore is of another");
  REFUSED(accrt_call_submit(a.call, NULL, 0, points, 2), "signals[1].semaphore is of another");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_semaphore_error(b.semaphore, &error)); /* not failed by it */
  OK(error.status);
  close_side(&b);
  close_side(&a);
}

static void test_other_device(void** state) {
  (void)state;
  side_t a;
  open_side(&a);
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  accrt_session_t* session;
  options.pool = a.pools[1];
  REFUSED(accrt_session_create(a.program, &options, &session),
          "the pool is of host:1, the program of host:0");
  /* Without a state nothing else looked at the pool before the first run. */
  accrt_bundle_t* bundle;
  accrt_program_t* stateless;
  OK(accrt_bundle_open_path(a.instance, ACCRT_TEST_DATA "/adapter.accx", NULL, &bundle));
  OK(accrt_program_create(a.devices[0], bundle, NULL, &stateless));
  REFUSED(accrt_session_create(stateless, &options, &session),
          "the pool is of host:1, the program of host:0");
  accrt_program_release(stateless);
  accrt_bundle_release(bundle);
  options.pool = NULL;
  options.stream = a.streams[1];
  REFUSED(accrt_session_create(a.program, &options, &session),
          "the stream is of host:1, the program of host:0");
  REFUSED(accrt_stream_record(a.streams[1], a.event),
          "the event is of host:0, the stream of host:1");
  OK(accrt_commands_finalize(a.commands));
  REFUSED(accrt_stream_submit(a.streams[1], a.commands, NULL, 0, 0), "the stream of host:1");
  close_side(&a);
}

static void test_what_messages_name(void** state) {
  (void)state;
  side_t a;
  open_side(&a);
  uint32_t index;
  REFUSED(accrt_call_find(a.call, NULL, &index), "name is NULL");
  REFUSED(accrt_call_find(a.call, "x", NULL), "out_index is NULL");
  accrt_key_t key;
  REFUSED(accrt_key_public(a.instance, NULL, &key), "private_key is NULL");
  REFUSED(accrt_key_public(a.instance, &key, NULL), "out_public is NULL");
  const accrt_place_t place = {a.buffer, NULL, 0};
  REFUSED(accrt_stream_copy(a.streams[0], &place, NULL, 8), "target is NULL");
  REFUSED(accrt_stream_copy_strided(a.streams[0], &place, &place, NULL), "region is NULL");
  const accrt_binding_place_t reserved = {ACCRT_BINDING_NONE, 7, {a.buffer, NULL, 0}};
  REFUSED(accrt_commands_fill(a.commands, &reserved, 8, 0, 1, NULL, NULL), "reserved is 7, not 0");
  const accrt_predecessors_t after = {NULL, 0, 9};
  REFUSED(accrt_commands_marker(a.commands, "m", &after, NULL), "predecessors->reserved is 9");
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.reserved = 3;
  accrt_instance_t* instance;
  REFUSED(accrt_instance_create(&options, &instance), "options->reserved is 3, not 0");
  accrt_kernel_argument_t argument = ACCRT_KERNEL_ARGUMENT_BUFFER(a.buffer);
  argument.kind = 99;
  REFUSED(accrt_launch_set(a.launch, 0, &argument, sizeof argument),
          "99 (no kind of argument of this version)");
  accrt_call_t* call;
  OK(accrt_call_create(a.session, "affine", &call));
  const int64_t shape[1] = {4};
  const accrt_tensor_t tensor = {a.buffer, NULL, 0, 99, 1, shape, NULL};
  assert_int_equal(accrt_call_set_tensor(call, 0, &tensor), ACCRT_ERROR_TYPE_MISMATCH);
  assert_non_null(strstr(last_message(), "99 (no data type of this version)"));
  accrt_call_release(call);
  close_side(&a);
}

/* Found by tests/api_fuzz: the launch noted a use of whatever was there. */
static void test_the_buffer_of_a_scalar_is_nobodys(void** state) {
  (void)state;
  side_t a;
  open_side(&a);
  accrt_kernel_t* kernel;
  OK(accrt_kernel_pack_find(a.pack, "value", &kernel));
  unsigned char nothing[1024];
  memset(nothing, 0xA5, sizeof nothing);
  accrt_kernel_argument_t argument = ACCRT_KERNEL_ARGUMENT_SCALAR(7);
  argument.buffer = (accrt_buffer_t*)(void*)nothing;
  const uint32_t grid[3] = {1, 1, 1};
  OK(accrt_stream_launch(a.streams[0], kernel, grid, &argument, 1, sizeof argument));
  OK(accrt_stream_synchronize(a.streams[0], ACCRT_TIMEOUT_INFINITE, 0));
  for (size_t i = 0; i < sizeof nothing; ++i)
    assert_int_equal(nothing[i], 0xA5);
  close_side(&a);
}

static void test_sizes_that_cut_a_field(void** state) {
  (void)state;
  side_t a;
  open_side(&a);
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  info.struct_size = 40; /* in the middle of the name, which would have no end */
  REFUSED(accrt_device_info(a.devices[0], &info),
          "accrt_device_info_t: struct_size 40 cuts the field 'name', bytes 16 to 80");
  info.struct_size = 80;
  OK(accrt_device_info(a.devices[0], &info));
  assert_string_equal(info.name, "host:0");
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.struct_size = 28; /* half of the stream */
  accrt_buffer_t* buffer;
  REFUSED(accrt_buffer_create(a.pools[0], 8, &options, &buffer),
          "struct_size 28 is not a multiple of 8");
  close_side(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_other_instance),
      cmocka_unit_test(test_other_device),
      cmocka_unit_test(test_what_messages_name),
      cmocka_unit_test(test_the_buffer_of_a_scalar_is_nobodys),
      cmocka_unit_test(test_sizes_that_cut_a_field),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
