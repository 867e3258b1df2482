/* Fork: in the child every function says FORKED, nothing hangs, nothing crashes; the parent goes
 * on. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#define CHILD_LIMIT_S 20

/* A child ends with the number of the line that failed, modulo 251, plus 1. */
#define CHILD_CHECK(condition)                                                                     \
  do {                                                                                             \
    if (!(condition))                                                                              \
      _exit(__LINE__ % 251 + 1);                                                                   \
  } while (0)

static void expect_child(pid_t child) {
  int status;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status))
    fail_msg("the child was killed by signal %d", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0)
    fail_msg("the child failed in a line that is %d modulo 251", WEXITSTATUS(status) - 1);
}

static void check_child(test_world_t* world, accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                        accrt_buffer_t* buffer, accrt_event_t* event, accrt_commands_t* commands) {
  (void)alarm(CHILD_LIMIT_S); /* a hang becomes a signal */
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_stream_t* other_stream;
  accrt_buffer_t* other_buffer;
  void* pointer;
  uint64_t value;
  uint32_t count;
  uint32_t word;
  int32_t fd;
  const accrt_place_t place = {buffer, NULL, 0};
  CHILD_CHECK(accrt_instance_create(NULL, &instance) == ACCRT_ERROR_FORKED && instance == NULL);
  CHILD_CHECK(accrt_instance_device_count(world->instance, &count) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_instance_device(world->instance, 0, &device) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_instance_device_by_name(world->instance, "test", &device) ==
              ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_instance_load_driver(world->instance, "x") == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_device_status(world->device) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_device_pool(world->device, ACCRT_MEMORY_DEVICE, &pool) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_pool_create(world->device, NULL, &pool) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_buffer_import(world->device, &word, 4, NULL, NULL, &other_buffer) ==
              ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_buffer_map(buffer, 0, 4, &pointer) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_create(world->device, NULL, &other_stream) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_query(stream) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_reset(stream) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_fill(stream, &place, 4, 0, 4) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_copy(stream, &place, &place, 4) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_signal(stream, semaphore, 9) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_wait(stream, semaphore, 9) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_record(stream, event) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_free(stream, buffer) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_stream_submit(stream, commands, NULL, 0, sizeof(accrt_binding_t)) ==
              ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_commands_finalize(commands) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_event_query(event) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_semaphore_query(semaphore, &value) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_semaphore_signal(semaphore, 9) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_semaphore_wait(semaphore, 9, ACCRT_TIMEOUT_INFINITE, 0) == ACCRT_ERROR_FORKED);
  CHILD_CHECK(accrt_semaphore_export_eventfd(semaphore, 9, &fd) == ACCRT_ERROR_FORKED && fd == -1);
  accrt_error_t error = ACCRT_ERROR_INIT;
  CHILD_CHECK(accrt_last_error(&error) == ACCRT_OK && error.status == ACCRT_ERROR_FORKED &&
              error.message[0] != '\0');
  /* What needs no instance still works. */
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  CHILD_CHECK(accrt_query_caps(&caps) == ACCRT_OK);
  CHILD_CHECK(strcmp(accrt_status_name(ACCRT_ERROR_FORKED), "ACCRT_ERROR_FORKED") == 0);
  /* Releases are no-ops, also more of them than there are references. */
  for (int i = 0; i < 3; ++i) {
    accrt_commands_release(commands);
    accrt_event_release(event);
    accrt_buffer_release(buffer);
    accrt_semaphore_release(semaphore);
    accrt_stream_release(stream);
    accrt_device_release(world->device);
    accrt_instance_release(world->instance);
  }
  _exit(0);
}

static void test_child_and_parent(void** state) {
  (void)state;
  test_world_t world;
  assert_int_equal(test_world_open(&world, TEST_DRIVER_THREAD), ACCRT_OK);
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  accrt_event_t* event;
  accrt_commands_t* commands;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &semaphore), ACCRT_OK);
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, 64, NULL, &buffer), ACCRT_OK);
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  assert_int_equal(accrt_commands_create(world.device, 0, &commands), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, semaphore, 1), ACCRT_OK);
  const pid_t child = fork();
  if (child == 0)
    check_child(&world, stream, semaphore, buffer, event, commands);
  expect_child(child);
  /* The parent does not notice. */
  assert_int_equal(accrt_semaphore_signal(semaphore, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  accrt_commands_release(commands);
  accrt_event_release(event);
  accrt_buffer_release(buffer);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  assert_int_equal(test_world_close(&world), 0);
}

/* A process that has no instance when it forks may use the library in the child. */
static void test_fork_without_an_instance(void** state) {
  (void)state;
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S);
    test_world_t world;
    CHILD_CHECK(test_world_open(&world, TEST_DRIVER_THREAD) == ACCRT_OK);
    CHILD_CHECK(test_world_close(&world) == 0);
    _exit(0);
  }
  expect_child(child);
}

/* Exit with everything alive, and work in flight: no crash, no hang. */
static void test_exit_with_work_in_flight(void** state) {
  (void)state;
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S);
    static test_world_t world;
    static uint32_t words[2000];
    accrt_stream_t* stream;
    CHILD_CHECK(test_world_open(&world, TEST_DRIVER_THREAD) == ACCRT_OK);
    CHILD_CHECK(accrt_stream_create(world.device, NULL, &stream) == ACCRT_OK);
    for (int i = 0; i < 2000; ++i) {
      const accrt_place_t place = {NULL, &words[i], 0};
      CHILD_CHECK(accrt_stream_fill(stream, &place, 4, 1, 4) == ACCRT_OK);
    }
    exit(0);
  }
  expect_child(child);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fork_without_an_instance),
      cmocka_unit_test(test_child_and_parent),
      cmocka_unit_test(test_exit_with_work_in_flight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
