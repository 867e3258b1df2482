/* The library as part of a process: a fork while its threads run, an exit with work in flight.
 * Public headers only; the host driver is real. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"

#define WORDS 4096u
#define CHILD_LIMIT_S 20

/* ---- Fork and exit ---- */

typedef struct world {
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
} world_t;

static int open_world(world_t* world) {
  const accrt_option_t threads = {"host.threads", "2"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &threads;
  options.option_count = 1;
  options.option_size_bytes = sizeof threads;
  return accrt_instance_create(&options, &world->instance) == ACCRT_OK &&
         accrt_instance_device_by_name(world->instance, "host", &world->device) == ACCRT_OK &&
         accrt_stream_create(world->device, NULL, &world->stream) == ACCRT_OK &&
         accrt_semaphore_create(world->instance, 0, &world->semaphore) == ACCRT_OK;
}

static void close_world(world_t* world) {
  accrt_semaphore_release(world->semaphore);
  accrt_stream_release(world->stream);
  accrt_device_release(world->device);
  accrt_instance_release(world->instance);
}

/* Many fills, the first half at once and the second once the semaphore is raised. */
static int enqueue(world_t* world, uint32_t* words) {
  for (uint32_t i = 0; i < WORDS; ++i) {
    const accrt_place_t place = {.pointer = &words[i]};
    if (i == WORDS / 2 && accrt_stream_wait(world->stream, world->semaphore, 1) != ACCRT_OK)
      return 0;
    if (accrt_stream_fill(world->stream, &place, 4, 7, 4) != ACCRT_OK)
      return 0;
  }
  return 1;
}

static void expect_child(pid_t child, int wanted) {
  int status = 0;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
    fail_msg("the child's status is 0x%x, not exit with %d", (unsigned)status, wanted);
}

/* Before any other test makes an instance: the child is the first to use the library. */
static void exit_with_work_in_flight(void** state) {
  (void)state;
  static uint32_t words[WORDS];
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S);
    static world_t world;
    if (!open_world(&world) || !enqueue(&world, words))
      _exit(1);
    exit(42);
  }
  expect_child(child, 42);
}

static void fork_while_threads_run(void** state) {
  (void)state;
  static uint32_t words[WORDS];
  world_t world;
  assert_true(open_world(&world));
  assert_true(enqueue(&world, words));
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_LIMIT_S); /* a hang becomes a signal */
    accrt_instance_t* another = (accrt_instance_t*)&world;
    const int refused = accrt_stream_synchronize(world.stream, ACCRT_TIMEOUT_INFINITE,
                                                 ACCRT_WAIT_BLOCK) == ACCRT_ERROR_FORKED &&
                        accrt_semaphore_signal(world.semaphore, 1) == ACCRT_ERROR_FORKED &&
                        accrt_instance_create(NULL, &another) == ACCRT_ERROR_FORKED &&
                        another == NULL;
    close_world(&world);
    _exit(refused ? 42 : 1);
  }
  expect_child(child, 42);
  assert_int_equal(accrt_semaphore_signal(world.semaphore, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(world.stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  for (uint32_t i = 0; i < WORDS; ++i)
    assert_int_equal(words[i], 7);
  close_world(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exit_with_work_in_flight),
      cmocka_unit_test(fork_while_threads_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
