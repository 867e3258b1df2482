/* tests/unit/handles_test.c - a validating instance knows its handles: released, of another
 * type, released twice, lent, left over.
 *
 * Each fault is told with the operation that made the handle, in the error record and in the
 * log, and nothing is touched by it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include "accrt/accrt.h"

typedef struct world {
  char log[16384];
  size_t allocations, frees;
  accrt_instance_t* instance;
  accrt_device_t* device;
} world_t;

static void write_log(void* self, uint32_t level, const char* component, const char* line) {
  world_t* world = self;
  (void)level;
  const size_t length = strlen(world->log);
  (void)snprintf(world->log + length, sizeof world->log - length, "%s: %s\n", component, line);
}

static void* count_allocate(void* self, size_t size_bytes, size_t alignment) {
  ++((world_t*)self)->allocations;
  void* memory = NULL;
  return posix_memalign(&memory, alignment, size_bytes) == 0 ? memory : NULL;
}

static void count_free(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)alignment;
  ++((world_t*)self)->frees;
  memset(pointer, 0xDD, size_bytes);
  free(pointer);
}

static accrt_status_t make(world_t* world, const char* value) {
  memset(world, 0, sizeof *world);
  const accrt_log_sink_t sink = {world, write_log, ACCRT_LOG_WARNING, 0};
  const accrt_allocator_t allocator = {world, count_allocate, count_free};
  const accrt_option_t options[] = {{"host.threads", "0"}, {"validate.handles", value}};
  accrt_instance_options_t all = ACCRT_INSTANCE_OPTIONS_INIT;
  all.log_sink = &sink;
  all.allocator = &allocator;
  all.options = options;
  all.option_count = value != NULL ? 2 : 1;
  all.option_size_bytes = (uint32_t)sizeof options[0];
  all.host_code_policy = ACCRT_HOST_CODE_ALL;
  const accrt_status_t status = accrt_instance_create(&all, &world->instance);
  if (status == ACCRT_OK)
    assert_int_equal(accrt_instance_device(world->instance, 0, &world->device), ACCRT_OK);
  return status;
}

static int set_up(void** state) {
  world_t* world = malloc(sizeof *world);
  assert_non_null(world);
  assert_int_equal(make(world, "1"), ACCRT_OK);
  *state = world;
  return 0;
}

static int tear_down(void** state) {
  world_t* world = *state;
  accrt_instance_release(world->instance);
  /* What was kept went with the instance. */
  const int left = world->allocations == world->frees ? 0 : -1;
  if (left != 0)
    printf("%zu allocations, %zu frees\n", world->allocations, world->frees);
  free(world);
  return left;
}

static const char* last_message(void) {
  static accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error.message;
}

/* The record and the log both have these words. */
static void assert_told(const world_t* world, const char* a, const char* b) {
  const char* message = last_message();
  if (strstr(message, a) == NULL || strstr(message, b) == NULL ||
      strstr(world->log, message) == NULL)
    fail_msg("expected '%s' and '%s' in '%s', which the log has:\n%s", a, b, message, world->log);
}

static accrt_stream_t* new_stream(const world_t* world) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world->device, NULL, &stream), ACCRT_OK);
  return stream;
}

static accrt_buffer_t* new_buffer(const world_t* world) {
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_device_pool(world->device, 0, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, 64, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static void test_released(void** state) {
  world_t* world = *state;
  accrt_stream_t* stream = new_stream(world);
  accrt_stream_release(stream);
  for (int i = 0; i < 100; ++i)
    accrt_stream_release(new_stream(world)); /* none gets its address */
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`stream` is released", "made by accrt_stream_create");
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.operation, "accrt_stream_query");
  accrt_device_t* device = accrt_stream_device(stream);
  assert_null(device);
  assert_int_equal(accrt_stream_id(stream), 0);
}

/* No handle of any type gets the address of a released one, so that a use of that is always found. */
static void test_no_address_comes_again(void** state) {
  world_t* world = *state;
  accrt_pool_t* pool;
  assert_int_equal(accrt_device_pool(world->device, 0, &pool), ACCRT_OK);
  accrt_stream_t* stream = new_stream(world);
  accrt_buffer_options_t on_stream = ACCRT_BUFFER_OPTIONS_INIT;
  on_stream.stream = stream;
  void* seen[7][64];
  for (int i = 0; i < 64; ++i) {
    accrt_buffer_t* buffer = new_buffer(world);
    accrt_buffer_t* freed;
    accrt_event_t* event;
    accrt_semaphore_t* semaphore;
    accrt_commands_t* commands;
    accrt_pool_t* made;
    accrt_stream_t* other = new_stream(world);
    assert_int_equal(accrt_buffer_create(pool, 64, &on_stream, &freed), ACCRT_OK);
    assert_int_equal(accrt_event_create(world->device, 0, &event), ACCRT_OK);
    assert_int_equal(accrt_semaphore_create(world->instance, 0, &semaphore), ACCRT_OK);
    assert_int_equal(accrt_commands_create(world->device, 0, &commands), ACCRT_OK);
    assert_int_equal(accrt_pool_create(world->device, NULL, &made), ACCRT_OK);
    void* const handles[7] = {buffer, freed, event, semaphore, commands, made, other};
    for (int type = 0; type < 7; ++type) {
      for (int before = 0; before < i; ++before)
        assert_ptr_not_equal(seen[type][before], handles[type]);
      seen[type][i] = handles[type];
    }
    accrt_buffer_release(buffer);
    assert_int_equal(accrt_stream_free(stream, freed), ACCRT_OK);
    accrt_event_release(event);
    accrt_semaphore_release(semaphore);
    accrt_commands_release(commands);
    accrt_pool_release(made);
    accrt_stream_release(other);
  }
  accrt_stream_release(stream);
  assert_string_equal(world->log, "");
}

static void test_what_would_be_given_is_nothing(void** state) {
  world_t* world = *state;
  accrt_buffer_t* buffer = new_buffer(world);
  accrt_pool_t* pool;
  assert_int_equal(accrt_device_pool(world->device, 0, &pool), ACCRT_OK);
  accrt_buffer_t* other = buffer;
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.stream = new_stream(world);
  accrt_stream_release(options.stream);
  assert_int_equal(accrt_buffer_create(pool, 64, &options, &other), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(other);
  assert_told(world, "`options.stream` is released", "made by accrt_stream_create");
  options.struct_size = 24; /* an older caller's has no stream */
  assert_int_equal(accrt_buffer_create(pool, 64, &options, &other), ACCRT_OK);
  accrt_buffer_release(other);
  accrt_buffer_release(buffer);
}

static void test_another_type(void** state) {
  world_t* world = *state;
  accrt_stream_t* stream = new_stream(world);
  void* wrong = stream;
  uint64_t value = 7;
  assert_int_equal(accrt_semaphore_query(wrong, &value), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`semaphore` must be a semaphore", "it is stream");
  assert_int_equal(value, 0);
  wrong = world->device;
  accrt_stream_release(wrong);
  assert_told(world, "`stream` must be a stream", "lent by accrt_instance_device");
  int nothing = 0;
  wrong = &nothing;
  assert_int_equal(accrt_stream_query(wrong), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`stream` (", "is not a handle of this library");
  wrong = stream;
  assert_int_equal(accrt_event_query(wrong), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`event` must be an event", "it is stream");
  assert_int_equal(accrt_commands_finalize(wrong), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`commands` must be a command list;", "it is stream");
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  assert_int_equal(accrt_weights_info(wrong, &info), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`weights` must be weights", "it is stream");
  accrt_stream_release(stream);
}

static void test_released_twice(void** state) {
  world_t* world = *state;
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world->instance, 0, &semaphore), ACCRT_OK);
  assert_ptr_equal(accrt_semaphore_retain(semaphore), semaphore);
  accrt_semaphore_release(semaphore);
  assert_string_equal(world->log, "");
  accrt_semaphore_release(semaphore);
  assert_string_equal(world->log, "");
  accrt_semaphore_release(semaphore);
  assert_told(world, "`semaphore` is released twice", "made by accrt_semaphore_create");
  accrt_stream_t* stream = new_stream(world);
  accrt_buffer_t* buffer = new_buffer(world);
  assert_int_equal(accrt_stream_free(stream, buffer), ACCRT_OK);
  accrt_buffer_release(buffer);
  assert_told(world, "`buffer` is released twice", "accrt_stream_free dropped its last reference");
  accrt_stream_release(stream);
}

static void test_lent(void** state) {
  world_t* world = *state;
  accrt_pool_t* pool;
  assert_int_equal(accrt_device_pool(world->device, 0, &pool), ACCRT_OK);
  accrt_pool_release(pool);
  assert_told(world, "`pool` is lent", "lent by accrt_device_pool");
  accrt_device_release(world->device);
  assert_told(world, "`device` is lent", "lent by accrt_instance_device");
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  assert_int_equal(accrt_pool_statistics(pool, &statistics), ACCRT_OK);
  world->log[0] = '\0';
  (void)accrt_pool_retain(pool); /* then it is the caller's */
  accrt_pool_release(pool);
  assert_string_equal(world->log, "");
}

/* What was lent ends with what lent it, unless the caller retained it. */
static void test_lent_ends_with_its_lender(void** state) {
  world_t* world = *state;
  accrt_stream_t* stream = new_stream(world);
  accrt_device_t* device = accrt_stream_device(stream);
  assert_ptr_equal(device, world->device);
  accrt_stream_release(stream);
  assert_int_equal(accrt_device_status(device), ACCRT_OK); /* the instance lent it, too */
}

static void test_in_arrays(void** state) {
  world_t* world = *state;
  accrt_semaphore_t* semaphores[2];
  accrt_timepoint_t points[2] = {{0}};
  for (int i = 0; i < 2; ++i) {
    assert_int_equal(accrt_semaphore_create(world->instance, 1, &semaphores[i]), ACCRT_OK);
    points[i].semaphore = semaphores[i];
    points[i].value = 1;
  }
  assert_int_equal(accrt_semaphore_wait_many(points, 2, 0, 0, 0, NULL), ACCRT_OK);
  accrt_semaphore_release(semaphores[1]);
  assert_int_equal(accrt_semaphore_wait_many(points, 2, 0, 0, 0, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`timepoints[1].semaphore` is released", "accrt_semaphore_create");
  accrt_semaphore_release(semaphores[0]);
  accrt_stream_t* stream = new_stream(world);
  accrt_buffer_t* buffer = new_buffer(world);
  char bytes[8] = "";
  const accrt_place_t source = {NULL, bytes, 0}, target = {buffer, NULL, 0};
  accrt_buffer_release(buffer);
  assert_int_equal(accrt_stream_copy(stream, &source, &target, 8), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`target.buffer` is released", "accrt_buffer_create");
  accrt_stream_release(stream);
}

/* ---- What sessions and calls lend ---- */

static accrt_session_t* new_session(const world_t* world) {
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  assert_int_equal(
      accrt_bundle_open_path(world->instance, ACCRT_TEST_DATA "/program.accx", NULL, &bundle),
      ACCRT_OK);
  assert_int_equal(accrt_program_create(world->device, bundle, NULL, &program), ACCRT_OK);
  assert_int_equal(accrt_session_create(program, NULL, &session), ACCRT_OK);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
  return session;
}

static accrt_buffer_t* state_of(accrt_session_t* session) {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  assert_int_equal(accrt_session_state(session, "counter", &tensor, shape, strides), ACCRT_OK);
  return tensor.buffer;
}

static accrt_buffer_t* result_of(accrt_call_t* call) {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  assert_int_equal(accrt_call_result(call, 0, &tensor, shape, strides), ACCRT_OK);
  return tensor.buffer;
}

static accrt_status_t use_buffer(accrt_buffer_t* buffer) {
  void* pointer;
  const accrt_status_t status = accrt_buffer_map(buffer, 0, 8, &pointer);
  return status == ACCRT_OK ? accrt_buffer_unmap(buffer) : status;
}

static void test_the_state_of_a_session(void** state) {
  world_t* world = *state;
  accrt_session_t* session = new_session(world);
  accrt_buffer_t* buffer = state_of(session);
  assert_int_equal(use_buffer(buffer), ACCRT_OK);
  accrt_buffer_release(buffer);
  assert_told(world, "`buffer` is lent and must not be released", "lent by accrt_session_state");
  assert_int_equal(accrt_session_bind_state(session, "counter", NULL, 0), ACCRT_OK);
  assert_int_equal(use_buffer(buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is not valid any more: it is buffer ",
              "lent by accrt_session_state, and its lender has ended or replaced it");
  buffer = state_of(session);
  assert_ptr_equal(accrt_buffer_retain(buffer), buffer); /* this one is kept */
  assert_int_equal(accrt_session_bind_state(session, "counter", NULL, 0), ACCRT_OK);
  assert_int_equal(use_buffer(buffer), ACCRT_OK);
  accrt_buffer_release(buffer);
  assert_int_equal(use_buffer(buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is released", "accrt_buffer_release dropped its last reference");
  buffer = state_of(session);
  accrt_session_release(session);
  assert_int_equal(use_buffer(buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is not valid any more: it is buffer ",
              "lent by accrt_session_state, and its lender has ended");
}

/* A state that is bound from outside is the caller's buffer, and lent as long as it is bound. */
static void test_a_state_from_outside(void** state) {
  world_t* world = *state;
  accrt_session_t* session = new_session(world);
  accrt_buffer_t* buffer = new_buffer(world);
  assert_int_equal(accrt_session_bind_state(session, "counter", buffer, 0), ACCRT_OK);
  accrt_buffer_release(buffer);
  assert_int_equal(use_buffer(buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is released", "made by accrt_buffer_create");
  assert_ptr_equal(state_of(session), buffer);
  assert_int_equal(use_buffer(buffer), ACCRT_OK);
  assert_int_equal(accrt_session_bind_state(session, "counter", NULL, 0), ACCRT_OK);
  assert_int_equal(use_buffer(buffer), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is released", "made by accrt_buffer_create");
  accrt_session_release(session);
}

/* A result stays where the next run reuses it. Where that makes a new one, the old one is refused. */
static void test_the_result_of_a_call(void** state) {
  world_t* world = *state;
  accrt_session_t* session = new_session(world);
  accrt_semaphore_t* start;
  accrt_call_t* call;
  assert_int_equal(accrt_semaphore_create(world->instance, 0, &start), ACCRT_OK);
  assert_int_equal(accrt_call_create(session, "count", &call), ACCRT_OK);
  assert_int_equal(accrt_call_set_scalar(call, 0, 3), ACCRT_OK);
  assert_int_equal(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE), ACCRT_OK);
  accrt_buffer_t* first = result_of(call);
  assert_int_equal(use_buffer(first), ACCRT_OK);
  accrt_buffer_release(first);
  assert_told(world, "`buffer` is lent and must not be released", "lent by accrt_call_result");
  const accrt_timepoint_t wait = {start, 1};
  assert_int_equal(accrt_call_submit(call, &wait, 1, NULL, 0), ACCRT_OK);
  first = result_of(call);
  assert_int_equal(accrt_call_submit(call, NULL, 0, NULL, 0), ACCRT_OK);
  accrt_buffer_t* second = result_of(call);
  assert_ptr_not_equal(first, second);
  assert_int_equal(accrt_semaphore_signal(start, 1), ACCRT_OK);
  assert_int_equal(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE), ACCRT_OK);
  assert_int_equal(use_buffer(second), ACCRT_OK);
  assert_int_equal(use_buffer(first), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is not valid any more: it is buffer ",
              "lent by accrt_call_result, and its lender has ended or replaced it");
  accrt_call_release(call);
  assert_int_equal(use_buffer(second), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_told(world, "`buffer` is not valid any more: it is buffer ", "accrt_call_result");
  accrt_semaphore_release(start);
  accrt_session_release(session);
}

static void test_what_is_left_over(void** state) {
  (void)state;
  world_t world;
  assert_int_equal(make(&world, "1"), ACCRT_OK);
  accrt_stream_t* stream = new_stream(&world);
  accrt_buffer_t* buffer = new_buffer(&world);
  (void)accrt_buffer_retain(buffer);
  accrt_event_t* event;
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  accrt_event_release(event);
  accrt_instance_release(world.instance);
  assert_non_null(strstr(world.log, "not released when its instance was: stream "));
  assert_non_null(strstr(world.log, "made by accrt_stream_create (1 reference)"));
  assert_non_null(strstr(world.log, "made by accrt_buffer_create (2 references)"));
  assert_null(strstr(world.log, "event"));
  /* It is still theirs. */
  accrt_buffer_release(buffer);
  accrt_buffer_release(buffer);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_stream_release(stream);
  assert_int_equal(world.allocations, world.frees);
}

/* Also when all is over: nothing that was validated is forgotten while every instance of the process validates. */
static void test_after_the_end(void** state) {
  (void)state;
  world_t world;
  assert_int_equal(make(&world, "1"), ACCRT_OK);
  accrt_stream_t* stream = new_stream(&world);
  accrt_stream_release(stream);
  accrt_instance_release(world.instance);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_instance_release(world.instance);
  assert_non_null(strstr(last_message(), "accrt_instance_create"));
  accrt_device_t* device = NULL;
  assert_int_equal(accrt_instance_device(world.instance, 0, &device), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_device_status(world.device), ACCRT_ERROR_INVALID_ARGUMENT);
}

static void test_asked_for_in_the_environment(void** state) {
  (void)state;
  world_t world;
  assert_int_equal(setenv("ACCRT_VALIDATE", "handles", 1), 0);
  assert_int_equal(make(&world, NULL), ACCRT_OK);
  accrt_stream_t* stream = new_stream(&world);
  accrt_stream_release(stream);
  accrt_stream_release(stream);
  assert_told(&world, "`stream` is released twice", "accrt_stream_create");
  accrt_instance_release(world.instance);
  assert_int_equal(setenv("ACCRT_VALIDATE", "handels", 1), 0);
  assert_int_equal(make(&world, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_string_equal(last_message(), "ACCRT_VALIDATE is 'handels': expected 'handles' or nothing");
  assert_int_equal(unsetenv("ACCRT_VALIDATE"), 0);
  assert_int_equal(make(&world, "2"), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(last_message(), "validate.handles is '2'"));
}

/* Last: from here on there are handles that nobody writes down, and validated ones beside them still are. */
static void test_beside_an_instance_that_does_not_validate(void** state) {
  world_t* world = *state;
  world_t other;
  assert_int_equal(make(&other, NULL), ACCRT_OK);
  accrt_stream_t* stream = new_stream(&other);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_stream_release(stream);
  accrt_instance_release(other.instance);
  assert_string_equal(other.log, "");
  assert_int_equal(other.allocations, other.frees);
  stream = new_stream(world);
  accrt_stream_release(stream);
  accrt_stream_release(stream);
  assert_told(world, "`stream` is released twice", "accrt_stream_create");
}

/* Devices live as long as their instance: callers of before 0.4 release them, and nothing comes of it. */
static void test_a_lent_device_may_be_released(void** state) {
  (void)state;
  world_t world;
  assert_int_equal(make(&world, NULL), ACCRT_OK);
  for (int i = 0; i < 3; ++i)
    accrt_device_release(world.device);
  assert_int_equal(accrt_device_status(world.device), ACCRT_OK);
  (void)accrt_device_retain(world.device);
  accrt_instance_release(world.instance);
  assert_int_equal(accrt_device_status(world.device), ACCRT_OK);
  accrt_device_release(world.device);
  assert_int_equal(world.allocations, world.frees);
}

typedef struct leaks {
  uint64_t count, last;
  bool ordered;
} leaks_t;

static void count_leak(void* self, uint32_t level, const char* component, const char* line) {
  leaks_t* leaks = self;
  (void)level;
  (void)component;
  const char* number = strstr(line, "semaphore ");
  if (number == NULL)
    return;
  const uint64_t value = strtoull(number + strlen("semaphore "), NULL, 10);
  leaks->ordered = leaks->ordered && value > leaks->last;
  leaks->last = value;
  ++leaks->count;
}

/* Each handle is listed, in the order of their making. With the number the time grows little more
 * than in proportion: 0.04 s of a processor, and more than 60 s when each looked at all. */
static void test_many_that_were_not_released(void** state) {
  (void)state;
  enum { COUNT = 40000 };
  leaks_t leaks = {0, 0, true};
  const accrt_log_sink_t sink = {&leaks, count_leak, ACCRT_LOG_WARNING, 0};
  const accrt_option_t options[] = {{"host.threads", "0"}, {"validate.handles", "1"}};
  accrt_instance_options_t all = ACCRT_INSTANCE_OPTIONS_INIT;
  all.log_sink = &sink;
  all.options = options;
  all.option_count = 2;
  all.option_size_bytes = (uint32_t)sizeof options[0];
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&all, &instance), ACCRT_OK);
  accrt_semaphore_t** semaphores = calloc(COUNT, sizeof(void*));
  assert_non_null(semaphores);
  for (int i = 0; i < COUNT; ++i)
    assert_int_equal(accrt_semaphore_create(instance, 0, &semaphores[i]), ACCRT_OK);
  accrt_instance_retain(instance);
  accrt_instance_release(instance);
  assert_int_equal(leaks.count, 0); /* not the last reference */
  const clock_t begin = clock();
  accrt_instance_release(instance);
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  assert_int_equal(leaks.count, COUNT);
  assert_true(leaks.ordered);
  assert_true(seconds < 15);
  for (int i = 0; i < COUNT; ++i)
    accrt_semaphore_release(semaphores[i]);
  free(semaphores);
}

int main(void) {
  (void)unsetenv("ACCRT_VALIDATE");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_released, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_no_address_comes_again, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_what_would_be_given_is_nothing, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_another_type, set_up, tear_down),
      cmocka_unit_test(test_many_that_were_not_released),
      cmocka_unit_test_setup_teardown(test_released_twice, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_lent, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_lent_ends_with_its_lender, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_in_arrays, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_state_of_a_session, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_state_from_outside, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_result_of_a_call, set_up, tear_down),
      cmocka_unit_test(test_what_is_left_over),
      cmocka_unit_test(test_after_the_end),
      cmocka_unit_test(test_asked_for_in_the_environment),
      cmocka_unit_test_setup_teardown(test_beside_an_instance_that_does_not_validate, set_up,
                                      tear_down),
      cmocka_unit_test(test_a_lent_device_may_be_released),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
