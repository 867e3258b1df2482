/* tests/unit/fork_callbacks_test.c - fork() within functions of the user's that the library calls:
 * the child is refused by every function and ends by _exit, the parent goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"

/* What the callbacks share. `forks`: how many of the next calls of `wanted` fork. */
typedef enum callback {
  ALLOCATE,
  DEALLOCATE,
  LOG,
  TRACE,
  NOTIFY,
  RELEASE,
  KERNEL,
  CALLBACKS
} callback_t;
typedef struct world {
  accrt_instance_t* instance;
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  accrt_kernel_pack_t* pack;
  accrt_kernel_t* kernel;
  atomic_int forks[CALLBACKS];
  atomic_int failures; /* of children */
  atomic_int notified;
  atomic_int released;
} world_t;

static void run_child(world_t* world) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that hangs is ended with its children */
  accrt_instance_t* instance;
  uint64_t value;
  if (accrt_instance_create(NULL, &instance) != ACCRT_ERROR_FORKED ||
      accrt_stream_query(world->stream) != ACCRT_ERROR_FORKED ||
      accrt_semaphore_signal(world->semaphore, 99) != ACCRT_ERROR_FORKED ||
      accrt_semaphore_query(world->semaphore, &value) != ACCRT_ERROR_FORKED)
    _exit(1);
  accrt_stream_release(world->stream);
  accrt_semaphore_release(world->semaphore);
  accrt_instance_release(world->instance);
  _exit(0);
}

static void visit(world_t* world, callback_t callback) {
  int left = atomic_load(&world->forks[callback]);
  while (left > 0 && !atomic_compare_exchange_weak(&world->forks[callback], &left, left - 1))
    continue;
  if (left <= 0)
    return;
  const pid_t child = fork();
  if (child == 0)
    run_child(world);
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    atomic_fetch_add(&world->failures, 1);
}

static void* allocate(void* self, size_t size_bytes, size_t alignment) {
  visit(self, ALLOCATE);
  void* memory = NULL;
  return posix_memalign(&memory, alignment < sizeof memory ? sizeof memory : alignment,
                        size_bytes) == 0
             ? memory
             : NULL;
}
static void deallocate(void* self, void* memory, size_t size_bytes, size_t alignment) {
  (void)size_bytes;
  (void)alignment;
  visit(self, DEALLOCATE);
  free(memory);
}
static void write_log(void* self, uint32_t level, const char* component, const char* message) {
  (void)level;
  (void)component;
  (void)message;
  visit(self, LOG);
}
static void trace(void* self, const accrt_trace_event_t* event) {
  (void)event;
  visit(self, TRACE);
}
static void notify(void* user, accrt_status_t status) {
  (void)status;
  world_t* world = user;
  visit(world, NOTIFY);
  atomic_store(&world->notified, 1);
}
static void release(void* user) {
  world_t* world = user;
  visit(world, RELEASE);
  atomic_store(&world->released, 1);
}

typedef struct parameters {
  uint64_t world;
} parameters_t;

static int32_t run_kernel(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const parameters_t* parameters = dispatch->params;
  visit((world_t*)(uintptr_t)parameters->world, KERNEL);
  return 0;
}

static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  static const accrt_kernel_param_t parameters[] = {
      ACCRT_KERNEL_PARAM(parameters_t, world, SCALAR, NONE)};
  static const accrt_kernel_def_t kernel = {.struct_size = sizeof kernel,
                                            .name = "visit",
                                            .entry = run_kernel,
                                            .params = parameters,
                                            .param_count = 1,
                                            .params_size_bytes = sizeof(parameters_t)};
  static const accrt_kernel_pack_table_t table = {.struct_size = sizeof table,
                                                  .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                  .name = "forks",
                                                  .kernels = &kernel,
                                                  .kernel_count = 1,
                                                  .kernel_size_bytes = sizeof kernel};
  return &table;
}

static void open_world(world_t* world) {
  const accrt_allocator_t allocator = {world, allocate, deallocate};
  const accrt_log_sink_t log = {.self = world, .write = write_log, .level = ACCRT_LOG_DEBUG};
  const accrt_trace_sink_t sink = {world, trace};
  const accrt_option_t given[] = {{"host.threads", "2"}, {"validate.handles", "1"}};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.log_sink = &log;
  options.trace_sink = &sink;
  options.options = given;
  options.option_count = 2;
  options.option_size_bytes = sizeof given[0];
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  accrt_device_t* device;
  assert_int_equal(accrt_instance_create(&options, &world->instance), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(world->instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_stream_create(device, NULL, &world->stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world->instance, 0, &world->semaphore), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_register(world->instance, query, &world->pack), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(world->pack, "visit", &world->kernel), ACCRT_OK);
}

/* Uses each callback. */
static void work(world_t* world) {
  static uint32_t words[4096];
  accrt_device_t* device;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_instance_device_by_name(world->instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_buffer_import(device, words, sizeof words, release, world, &buffer),
                   ACCRT_OK);
  const accrt_place_t place = {.buffer = buffer};
  assert_int_equal(accrt_stream_fill(world->stream, &place, sizeof words, 0x11223344, 4), ACCRT_OK);
  const uint32_t grid[3] = {4, 1, 1};
  const accrt_kernel_argument_t argument = ACCRT_KERNEL_ARGUMENT_SCALAR((uint64_t)(uintptr_t)world);
  assert_int_equal(
      accrt_stream_launch(world->stream, world->kernel, grid, &argument, 1, sizeof argument),
      ACCRT_OK);
  assert_int_equal(accrt_stream_notify(world->stream, notify, world), ACCRT_OK);
  assert_int_equal(accrt_stream_signal(world->stream, world->semaphore, 1), ACCRT_OK);
  accrt_buffer_release(buffer);
  assert_int_equal(
      accrt_semaphore_wait(world->semaphore, 1, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
      ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(world->stream, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  while (atomic_load(&world->notified) == 0)
    (void)usleep(100);
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i)
    assert_int_equal(words[i], 0x11223344);
}

static void close_world(world_t* world) {
  accrt_kernel_pack_release(world->pack);
  accrt_semaphore_release(world->semaphore); /* the stream is left over, and the log says so */
  accrt_instance_release(world->instance);
  accrt_stream_release(world->stream);
}

static void test_each_callback_may_fork(void** state) {
  (void)state;
  for (callback_t callback = 0; callback < CALLBACKS; ++callback) {
    world_t world = {0};
    open_world(&world);
    atomic_store(&world.forks[callback], 2);
    work(&world);
    close_world(&world);
    assert_int_equal(atomic_load(&world.released), 1);
    if (atomic_load(&world.forks[callback]) == 2)
      fail_msg("callback %d was not called", (int)callback);
    assert_int_equal(atomic_load(&world.failures), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_callback_may_fork)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
