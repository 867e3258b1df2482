/* An error record names the public function that the caller called, whatever part of the
 * library failed. Public headers only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"

#define GOLDEN "tests/golden/0.1/everything.accx"

static void expect_operation(accrt_status_t status, const char* operation, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  if (status == ACCRT_OK || error.status != status || strcmp(error.operation, operation) != 0) {
    fail_msg("line %d: %s gave %s; the record says %s, '%s': %s", line, operation,
             accrt_status_name(status), accrt_status_name(error.status), error.operation,
             error.message);
  }
}
/* The call fails, and the record has its name. */
#define FAILS(function, ...) expect_operation(function(__VA_ARGS__), #function, __LINE__)

/* Callbacks that call the library, as callbacks may: the name of the outer call stays. */
static bool are_callbacks_nosy;
static int nosy_calls;
static void be_nosy(void) {
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  ++nosy_calls;
  assert_int_equal(accrt_query_caps(&caps), ACCRT_OK);
}
static void* nosy_allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  be_nosy();
  void* pointer = NULL;
  return posix_memalign(&pointer, alignment, size_bytes) == 0 ? pointer : NULL;
}
static void nosy_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  be_nosy();
  free(pointer);
}
static void nosy_write(void* self, uint32_t level, const char* component, const char* line) {
  (void)self;
  (void)level;
  (void)component;
  (void)line;
  be_nosy();
}
static void nosy_event(void* self, const accrt_trace_event_t* event) {
  (void)self;
  (void)event;
  be_nosy();
}

static accrt_instance_t* open_instance(void) {
  static const accrt_allocator_t allocator = {NULL, nosy_allocate, nosy_deallocate};
  static const accrt_log_sink_t log = {NULL, nosy_write, ACCRT_LOG_DEBUG, 0};
  static const accrt_trace_sink_t trace = {NULL, nosy_event};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  if (are_callbacks_nosy) {
    options.allocator = &allocator;
    options.log_sink = &log;
    options.trace_sink = &trace;
  }
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  return instance;
}

static void instances_and_packs(void** state) {
  (void)state;
  accrt_instance_t* instance = open_instance();
  accrt_instance_t* other;
  accrt_device_t* device;
  accrt_kernel_pack_t* pack;
  const accrt_option_t unknown = {"no.such", "1"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &unknown;
  options.option_count = 1;
  options.option_size_bytes = sizeof unknown;
  FAILS(accrt_instance_create, NULL, NULL);
  FAILS(accrt_instance_create, &options, &other);
  FAILS(accrt_instance_device, instance, 99, &device);
  FAILS(accrt_instance_device_by_name, instance, "nowhere", &device);
  FAILS(accrt_instance_load_driver, instance, "/no/such/driver.so");
  FAILS(accrt_query_caps, NULL);
  FAILS(accrt_kernel_pack_open, instance, "/no/such/pack.so", &pack);
  FAILS(accrt_kernel_pack_open, instance, NULL, &pack);
  FAILS(accrt_kernel_pack_load, instance, "no image", 8, NULL, &pack);
  FAILS(accrt_kernel_pack_register, instance, NULL, &pack);
  accrt_instance_release(instance);
}

static void bundles(void** state) {
  (void)state;
  accrt_instance_t* instance = open_instance();
  accrt_bundle_t* bundle;
  FAILS(accrt_bundle_open_path, instance, "/no/such/file", NULL, &bundle);
  FAILS(accrt_bundle_open_path, instance, "/tmp", NULL, &bundle);
  FAILS(accrt_bundle_open_path, instance, "README.md", NULL, &bundle);
  FAILS(accrt_bundle_open_fd, instance, -1, NULL, &bundle);
  FAILS(accrt_bundle_open_memory, instance, "short", 5, NULL, NULL, NULL, &bundle);
  FAILS(accrt_bundle_open_memory, instance, NULL, 5, NULL, NULL, NULL, &bundle);
  FAILS(accrt_bundle_open_callbacks, instance, NULL, NULL, &bundle);
  assert_int_equal(accrt_bundle_open_path(instance, GOLDEN, NULL, &bundle), ACCRT_OK);
  accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
  accrt_section_info_t section = ACCRT_SECTION_INFO_INIT;
  accrt_argument_info_t argument = ACCRT_ARGUMENT_INFO_INIT;
  accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
  const char *key, *value;
  const void* data;
  uint64_t size_bytes;
  uint32_t index;
  FAILS(accrt_bundle_section, bundle, 99, &section);
  FAILS(accrt_bundle_metadata, bundle, 99, &key, &value);
  FAILS(accrt_bundle_function, bundle, 99, &function);
  FAILS(accrt_bundle_argument, bundle, 0, 99, &argument);
  FAILS(accrt_bundle_argument_type_text, bundle, 0, 99, NULL, 0, &size_bytes);
  FAILS(accrt_bundle_variant, bundle, 0, 99, &variant);
  FAILS(accrt_bundle_find_function, bundle, "nothing", &index);
  FAILS(accrt_bundle_find_constant, bundle, "nothing", &index);
  FAILS(accrt_bundle_constant_data, bundle, 99, &data, &size_bytes);
  FAILS(accrt_bundle_verify, NULL);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
}

static void fail_calls(accrt_session_t* session) {
  accrt_call_t *call, *other;
  assert_int_equal(accrt_call_create(session, "main", &call), ACCRT_OK);
  const accrt_tensor_t wrong = {.dtype = ACCRT_DTYPE_I8};
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  uint32_t index;
  FAILS(accrt_call_create, session, "nothing", &other);
  FAILS(accrt_call_find, call, "nothing", &index);
  FAILS(accrt_call_set_tensor, call, 99, NULL);
  FAILS(accrt_call_set_tensor, call, 0, &wrong);
  FAILS(accrt_call_set_scalar, call, 0, 1);
  FAILS(accrt_call_run, call, 0);
  FAILS(accrt_call_run, NULL, 0);
  FAILS(accrt_call_submit, call, NULL, 0, NULL, 0);
  FAILS(accrt_call_submit, call, NULL, 3, NULL, 0);
  FAILS(accrt_call_result, call, 0, &tensor, shape, strides);
  accrt_call_release(call);
}

static void programs(void** state) {
  (void)state;
  accrt_instance_t* instance = open_instance();
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t *program, *other;
  assert_int_equal(accrt_instance_device_by_name(instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_bundle_open_path(instance, GOLDEN, NULL, &bundle), ACCRT_OK);
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.variant_override = "no-such-machine";
  FAILS(accrt_program_create, device, bundle, &options, &other);
  FAILS(accrt_program_create, device, NULL, NULL, &other);
  if (accrt_program_create(device, bundle, NULL, &program) == ACCRT_OK) {
    const accrt_symbol_value_t unknown = {"nothing", 1};
    accrt_session_options_t session_options = ACCRT_SESSION_OPTIONS_INIT;
    session_options.symbols = &unknown;
    session_options.symbol_count = 1;
    session_options.symbol_size_bytes = sizeof unknown;
    const accrt_weight_t weight = {.name = "nothing"};
    accrt_session_t *session, *another;
    accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
    FAILS(accrt_session_create, program, &session_options, &another);
    FAILS(accrt_program_swap_weights, program, &weight, 1, sizeof weight);
    FAILS(accrt_program_estimate, program, "nothing", NULL, 0, sizeof unknown, &estimate);
    assert_int_equal(accrt_session_create(program, NULL, &session), ACCRT_OK);
    FAILS(accrt_session_clone, session, &session_options, &another);
    FAILS(accrt_session_warmup, session, "nothing", NULL, 0, sizeof unknown);
    FAILS(accrt_session_warmup, session, "main", &unknown, 1, sizeof unknown);
    FAILS(accrt_session_bind_state, session, "nothing", NULL, 0);
    fail_calls(session);
    accrt_session_release(session);
    accrt_program_release(program);
  }
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
}

/* ---- Functions that use what another public function does ---- */

typedef struct pair_world {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_stream_t* stream;
  accrt_semaphore_t* failed; /* a semaphore that has failed */
} pair_world_t;

static void open_world(pair_world_t* world) {
  world->instance = open_instance();
  assert_int_equal(accrt_instance_device_by_name(world->instance, "host", &world->device),
                   ACCRT_OK);
  assert_int_equal(accrt_bundle_open_path(world->instance, GOLDEN, NULL, &world->bundle), ACCRT_OK);
  assert_int_equal(accrt_program_create(world->device, world->bundle, NULL, &world->program),
                   ACCRT_OK);
  assert_int_equal(accrt_stream_create(world->device, NULL, &world->stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world->instance, 0, &world->failed), ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(world->failed, ACCRT_ERROR_CANCELLED, "stopped"), ACCRT_OK);
}

static void close_world(pair_world_t* world) {
  accrt_semaphore_release(world->failed);
  accrt_stream_release(world->stream);
  accrt_program_release(world->program);
  accrt_bundle_release(world->bundle);
  accrt_instance_release(world->instance);
}

/* Fails the stream: it waits for a semaphore that is failed then. */
static void fail_stream(pair_world_t* world) {
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world->instance, 0, &semaphore), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(world->stream, semaphore, 1), ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, "stopped"), ACCRT_OK);
  FAILS(accrt_stream_synchronize, world->stream, ACCRT_TIMEOUT_INFINITE, 0);
  accrt_semaphore_release(semaphore);
}

static void events_and_tensors(void** state) {
  (void)state;
  pair_world_t world;
  open_world(&world);
  accrt_event_t *event, *recorded;
  accrt_error_t small = ACCRT_ERROR_INIT;
  small.struct_size = 4;
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  assert_int_equal(accrt_event_create(world.device, 0, &recorded), ACCRT_OK);
  assert_int_equal(accrt_stream_record(world.stream, recorded), ACCRT_OK);
  FAILS(accrt_event_error, event, &small);
  FAILS(accrt_event_error, recorded, &small);
  FAILS(accrt_semaphore_error, world.failed, &small);
  FAILS(accrt_semaphore_fail, world.failed, ACCRT_OK, NULL);
  fail_stream(&world);
  FAILS(accrt_stream_wait_event, world.stream, event);
  FAILS(accrt_stream_wait_event, world.stream, recorded);
  FAILS(accrt_stream_wait, world.stream, world.failed, 1);
  FAILS(accrt_stream_signal, world.stream, world.failed, 1);
  const accrt_place_t nowhere = {NULL, NULL, 0};
  FAILS(accrt_stream_copy, world.stream, &nowhere, &nowhere, 1);
  FAILS(accrt_stream_fill, world.stream, &nowhere, 1, 0, 3);
  accrt_buffer_t* buffer;
  FAILS(accrt_buffer_import, world.device, NULL, 1, NULL, NULL, &buffer);
  accrt_event_release(event);
  accrt_event_release(recorded);
  close_world(&world);
}

/* What a source of weights does with a bundle. */
static void weights_in_bundles(void** state) {
  (void)state;
  accrt_instance_t* instance = open_instance();
  accrt_weights_t* weights;
  static const char cut[] = "\x89"
                            "ACCX\r\n\x1a and then nothing that belongs there";
  FAILS(accrt_weights_open_memory, instance, cut, sizeof cut, NULL, NULL, NULL, &weights);
  accrt_instance_release(instance);
}

static void sessions(void** state) {
  (void)state;
  pair_world_t world;
  open_world(&world);
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  accrt_session_t *session, *other;
  accrt_pool_options_t pool_options = ACCRT_POOL_OPTIONS_INIT;
  pool_options.limit_bytes = 1;
  accrt_pool_t* pool;
  assert_int_equal(accrt_pool_create(world.device, &pool_options, &pool), ACCRT_OK);
  options.pool = pool; /* too small for the states */
  FAILS(accrt_session_create, world.program, &options, &other);
  options.pool = NULL;
  options.stream = world.stream;
  assert_int_equal(accrt_session_create(world.program, &options, &session), ACCRT_OK);
  FAILS(accrt_session_cancel, session);
  fail_stream(&world);
  FAILS(accrt_session_reset, session);
  FAILS(accrt_session_clone, session, NULL, &other);
  accrt_session_release(session);
  accrt_pool_release(pool);
  close_world(&world);
}

static void submissions(void** state) {
  (void)state;
  pair_world_t world;
  open_world(&world);
  accrt_session_t* session;
  accrt_call_t* call;
  assert_int_equal(accrt_session_create(world.program, NULL, &session), ACCRT_OK);
  assert_int_equal(accrt_call_create(session, "main", &call), ACCRT_OK);
  const accrt_timepoint_t failed = {world.failed, 1};
  FAILS(accrt_call_submit, call, NULL, 0, &failed, 1);
  FAILS(accrt_call_submit, call, &failed, 1, NULL, 0);
  FAILS(accrt_call_attempt, call, ACCRT_TIMEOUT_INFINITE);
  FAILS(accrt_call_attempt, call, 1);
  FAILS(accrt_call_run, call, ACCRT_TIMEOUT_INFINITE);
  accrt_call_release(call);
  accrt_session_release(session);
  close_world(&world);
}

/* What a caller lends: memory, a reader, a key. Each way ends in a failure after a callback. */
typedef struct lent {
  char bytes[256];
  int failing_read; /* that read fails, from 1 on; 0: none */
  int reads;
} lent_t;
static int32_t nosy_read(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  lent_t* lent = self;
  be_nosy();
  if (++lent->reads == lent->failing_read)
    return 5;
  memcpy(target, lent->bytes + offset, size_bytes);
  return 0;
}
static void nosy_release(void* user) {
  (void)user;
  be_nosy();
}

static void what_callers_lend(void** state) {
  (void)state;
  accrt_instance_t* instance = open_instance();
  accrt_bundle_t* bundle;
  lent_t lent = {"no bundle", 1, 0};
  accrt_reader_t reader = {
      .self = &lent, .size_bytes = sizeof lent.bytes, .read = nosy_read, .close = nosy_release};
  FAILS(accrt_bundle_open_callbacks, instance, &reader, NULL, &bundle);
  lent.failing_read = 0;
  FAILS(accrt_bundle_open_callbacks, instance, &reader, NULL, &bundle);
  FAILS(accrt_bundle_open_memory, instance, lent.bytes, sizeof lent.bytes, nosy_release, NULL, NULL,
        &bundle);
  assert_true(nosy_calls > 0);

  /* A release that comes inside of a failing call: the pool trims before it refuses. */
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t *imported, *large;
  assert_int_equal(accrt_instance_device_by_name(instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_device_pool(device, 0, &pool), ACCRT_OK);
  assert_int_equal(
      accrt_buffer_import(device, lent.bytes, sizeof lent.bytes, nosy_release, NULL, &imported),
      ACCRT_OK);
  accrt_buffer_release(imported);
  FAILS(accrt_buffer_create, pool, UINT64_C(1) << 60, NULL, &large);
  accrt_instance_release(instance);
}

static int nosy(void** state) {
  (void)state;
  are_callbacks_nosy = true;
  return 0;
}
static int discreet(void** state) {
  (void)state;
  are_callbacks_nosy = false;
  return 0;
}
#define NOSY_TEST(test) cmocka_unit_test_setup_teardown(test, nosy, discreet)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(instances_and_packs),
      cmocka_unit_test(bundles),
      cmocka_unit_test(programs),
      cmocka_unit_test(events_and_tensors),
      cmocka_unit_test(weights_in_bundles),
      cmocka_unit_test(sessions),
      cmocka_unit_test(submissions),
      cmocka_unit_test(what_callers_lend),
      NOSY_TEST(instances_and_packs),
      NOSY_TEST(bundles),
      NOSY_TEST(programs),
      NOSY_TEST(events_and_tensors),
      NOSY_TEST(weights_in_bundles),
      NOSY_TEST(sessions),
      NOSY_TEST(submissions),
      NOSY_TEST(what_callers_lend),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
