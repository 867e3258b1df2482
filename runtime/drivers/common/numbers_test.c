/* Streams on a driver with the slots of 0.2: work that nobody is told of, the driver's own events,
 * points of semaphores, prepared launches, wrapped queues, modules. The order in which
 * queues go on is chosen at random from a fixed seed. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/test_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <poll.h>
#include <stdbool.h>
#include <unistd.h>

#include "runtime/drivers/common/internal.h"

#define MS UINT64_C(1000000)
#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;

static void open_world(int mode) {
  assert_int_equal(test_world_open(&world, mode), ACCRT_OK);
}

static void close_world(void) {
  assert_int_equal(test_world_close(&world), 0);
}

static accrt_stream_t* make_stream(void) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  return stream;
}

static accrt_semaphore_t* make_semaphore(void) {
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &semaphore), ACCRT_OK);
  return semaphore;
}

static accrt_buffer_t* make_buffer(uint64_t size_bytes) {
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool), ACCRT_OK);
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static uint32_t* words_of(accrt_buffer_t* buffer) {
  void* pointer;
  assert_int_equal(accrt_buffer_map(buffer, 0, 4, &pointer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  return pointer;
}

static accrt_status_t try_fill(accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  const accrt_place_t place = {NULL, word, 0};
  return accrt_stream_fill(stream, &place, 4, value, 4);
}

static void fill(accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  assert_int_equal(try_fill(stream, word, value), ACCRT_OK);
}

static void copy(accrt_stream_t* stream, uint32_t* from, uint32_t* to) {
  const accrt_place_t source = {NULL, from, 0}, target = {NULL, to, 0};
  assert_int_equal(accrt_stream_copy(stream, &source, &target, 4), ACCRT_OK);
}

static void run_all(void) {
  while (test_driver_step())
    continue;
}

static uint64_t value_of(accrt_semaphore_t* semaphore) {
  uint64_t value;
  (void)accrt_semaphore_query(semaphore, &value);
  return value;
}

static void assert_says(const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  if (strstr(error.message, text) == NULL)
    fail_msg("'%s' is not in '%s'", text, error.message);
}

/* ---- Numbers alone ---- */

static void test_numbers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t* buffer = make_buffer(64);
  const accrt_place_t place = {buffer, NULL, 0};
  assert_false(accrt_stream_traces(stream));
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  const long allocations = atomic_load(&world.allocator.total_count);
  for (int i = 0; i < 3; ++i)
    assert_int_equal(accrt_stream_fill(stream, &place, 4, 7, 4), ACCRT_OK);
  /* The driver for tests makes a job of each; the library makes nothing. */
  assert_int_equal(atomic_load(&world.allocator.total_count), allocations + 3);
  assert_int_equal(accrt_stream_last_submission(stream), 3);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  assert_says("has completed 0 of 3");
  assert_false(accrt_buffer_is_unshared(buffer));
  assert_int_equal(accrt_stream_synchronize(stream, 0, ACCRT_WAIT_BLOCK), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_stream_synchronize(stream, MS, ACCRT_WAIT_SPIN), ACCRT_ERROR_TIMEOUT);
  assert_int_equal(test_driver_step(), 1);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  assert_says("has completed 1 of 3");
  assert_int_equal(accrt_stream_wait_number(stream, 1, 0, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  assert_true(accrt_buffer_is_unshared(buffer));
  assert_int_equal(atomic_load(&test_driver.notifies), 0);
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  close_world();
}

static const uint32_t policies[] = {ACCRT_WAIT_BLOCK, ACCRT_WAIT_YIELD, ACCRT_WAIT_SPIN};

static void test_waits_in_the_driver(void** state) {
  (void)state;
  for (int i = 0; i < 3; ++i) {
    open_world(TEST_DRIVER_THREAD);
    accrt_stream_t* stream = make_stream();
    uint32_t word = 0;
    for (uint32_t k = 1; k <= 50; ++k) {
      fill(stream, &word, k);
      assert_int_equal(accrt_stream_synchronize(stream, FOREVER, policies[i]), ACCRT_OK);
      assert_int_equal(word, k);
    }
    assert_int_equal(atomic_load(&test_driver.notifies), 0);
    assert_true(atomic_load(&test_driver.queue_waits) > 0);
    accrt_stream_release(stream);
    close_world();
  }
}

static void ignore(void* user, accrt_status_t status) {
  (void)user;
  (void)status;
}

/* A failure comes to light when somebody asks (how: 0 query, 1 wait, 2 an operation's completion),
 * at the right number. */
static void check_failure(int how) {
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore();
  uint32_t words[3] = {0, 0, 0};
  fill(stream, &words[0], 1);
  test_driver_fail(TEST_FUNCTION_RUN, 2, ACCRT_ERROR_KERNEL);
  fill(stream, &words[1], 2);
  fill(stream, &words[2], 3);
  assert_int_equal(accrt_stream_signal(stream, semaphore, 1), ACCRT_OK);
  if (how == 2)
    assert_int_equal(accrt_stream_notify(stream, ignore, NULL), ACCRT_OK);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  run_all();
  if (how == 0)
    assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_POISONED);
  if (how == 1) /* without limit it would wait until nothing runs */
    assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(try_fill(stream, &words[0], 9), ACCRT_ERROR_POISONED);
  run_all(); /* the mark behind what was skipped */
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.driver_code, 78);
  assert_int_equal(error.submission, 2);
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 0);
  assert_int_equal(words[2], 0);
  uint64_t value;
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_error(semaphore, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_outcome(stream, 1, 1, &error), ACCRT_OK);
  assert_int_equal(accrt_stream_outcome(stream, 1, 2, &error), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_outcome(stream, 1, 3, &error), ACCRT_ERROR_POISONED);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  fill(stream, &words[0], 5);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[0], 5);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  close_world();
}

static void test_failure(void** state) {
  (void)state;
  for (int how = 0; how < 3; ++how)
    check_failure(how);
}

/* Work that the caller is to run finds a queue that has failed before, which nobody had asked for:
 * the failure is the old one's, with its number, and nothing of it counts as complete. */
static void test_work_on_the_caller_finds_a_failure(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  uint32_t words[2] = {0, 0};
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 0, &commands), ACCRT_OK);
  const accrt_binding_place_t place = {ACCRT_BINDING_NONE, 0, {NULL, &words[1], 0}};
  assert_int_equal(accrt_commands_fill(commands, &place, 4, 3, 4, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  fill(stream, &words[0], 1);
  run_all();
  const accrt_status_t status =
      accrt_stream_run(stream, commands, NULL, 0, sizeof(accrt_binding_t), FOREVER);
  assert_int_equal(status, ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.submission, 1);
  assert_int_equal(accrt_stream_outcome(stream, 1, 1, &error), ACCRT_ERROR_POISONED);
  assert_int_equal(words[1], 0);
  run_all();
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_run(stream, commands, NULL, 0, sizeof(accrt_binding_t), FOREVER),
                   ACCRT_OK);
  assert_int_equal(words[1], 3);
  accrt_commands_release(commands);
  accrt_stream_release(stream);
  close_world();
}

/* A driver that cannot say how far it is has not failed. */
static void test_driver_cannot_say(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  uint32_t word = 0;
  fill(stream, &word, 1);
  test_driver_fail(TEST_FUNCTION_QUEUE_PROGRESS, 1, ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  test_driver_fail(TEST_FUNCTION_QUEUE_WAIT, 1, ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_OUT_OF_MEMORY);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  test_driver_fail(TEST_FUNCTION_QUEUE_ENQUEUE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(try_fill(stream, &word, 2), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK); /* its number is nobody's */
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  /* The device goes. */
  fill(stream, &word, 3);
  test_driver_fail(TEST_FUNCTION_QUEUE_WAIT, 1, ACCRT_ERROR_DEVICE_LOST);
  test_driver_fail(TEST_FUNCTION_QUEUE_NOTIFY, 1, ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(try_fill(stream, &word, 4), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_device_status(world.device), ACCRT_ERROR_DEVICE_LOST);
  run_all();
  accrt_stream_release(stream);
  close_world();
}

typedef struct heard {
  atomic_int count;
  atomic_int status;
  uint32_t* word;
  uint32_t seen;
} heard_t;

static void hear(void* user, accrt_status_t status) {
  heard_t* heard = user;
  heard->seen = *heard->word;
  atomic_store(&heard->status, status);
  atomic_fetch_add(&heard->count, 1);
}

static void wait_for(atomic_int* count, int wanted) {
  for (int i = 0; i < 5000 && atomic_load(count) < wanted; ++i)
    (void)usleep(1000);
  assert_int_equal(atomic_load(count), wanted);
}

/* Notifications, deferred work and work without operations keep their order. */
static void test_order_of_all_kinds(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* gate = make_semaphore();
  uint32_t words[4] = {0, 0, 0, 0};
  heard_t heard[2] = {{.word = &words[1]}, {.word = &words[2]}};
  fill(stream, &words[0], 1);
  copy(stream, &words[0], &words[1]);
  assert_int_equal(accrt_stream_notify(stream, hear, &heard[0]), ACCRT_OK);
  fill(stream, &words[0], 2);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  copy(stream, &words[0], &words[2]); /* deferred */
  fill(stream, &words[0], 3);
  assert_int_equal(accrt_stream_notify(stream, hear, &heard[1]), ACCRT_OK);
  wait_for(&heard[0].count, 1);
  assert_int_equal(heard[0].seen, 1);
  assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_TIMEOUT);
  assert_int_equal(words[2], 0);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  copy(stream, &words[0], &words[3]); /* at once again, or behind */
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[2], 2);
  assert_int_equal(words[3], 3);
  wait_for(&heard[1].count, 1);
  assert_int_equal(heard[1].seen, 2);
  /* Nothing is deferred any more: no operation is made. */
  const long notifies = atomic_load(&test_driver.notifies);
  fill(stream, &words[0], 4);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.notifies), notifies);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

/* A wait of a number before a semaphore that nobody signals does not wait for that. */
static void test_numbers_before_a_deferral(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* gate = make_semaphore();
  uint32_t word = 0;
  fill(stream, &word, 1);
  const uint64_t number = accrt_stream_last_submission(stream);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &word, 2);
  assert_int_equal(accrt_stream_wait_number(stream, number, FOREVER, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 1);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 2);
  /* A wait as the last thing of a stream. */
  fill(stream, &word, 3);
  assert_int_equal(accrt_stream_wait(stream, gate, 2), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(gate, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 3);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

/* ---- Things that go while work uses them ---- */

static void test_release_in_flight(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t* buffer = make_buffer(64);
  accrt_commands_t* commands;
  const accrt_binding_place_t bound = {.binding = 0};
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  assert_int_equal(accrt_commands_fill(commands, &bound, 4, 9, 4, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  uint32_t word = 0;
  const accrt_binding_t binding = {NULL, &word, 0, 4};
  for (int i = 0; i < 3; ++i)
    assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, sizeof binding), ACCRT_OK);
  accrt_commands_release(commands);
  assert_int_equal(atomic_load(&test_driver.lists), 1);
  const accrt_place_t place = {buffer, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 64, 1, 4), ACCRT_OK);
  accrt_buffer_release(buffer);
  run_all();
  assert_int_equal(word, 9);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.lists), 0); /* nothing uses it any more */
  /* The stream itself. */
  fill(stream, &word, 10);
  fill(stream, &word, 11);
  accrt_stream_release(stream);
  assert_int_equal(atomic_load(&test_driver.queues), 1);
  run_all();
  assert_int_equal(word, 11);
  close_world();
}

static void test_stream_goes_while_its_driver_works(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  uint32_t word = 0;
  for (int i = 0; i < 200; ++i) {
    accrt_stream_t* stream = make_stream();
    for (uint32_t k = 0; k < 5; ++k)
      fill(stream, &word, k);
    accrt_stream_release(stream);
  }
  close_world();
}

static void note_release(void* user) {
  atomic_fetch_add((atomic_int*)user, 1);
}

/* Whoever lent memory hears that it is free again, although nobody waits for the stream. */
static void test_watchers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  uint32_t words[16] = {0};
  atomic_int released;
  atomic_init(&released, 0);
  for (int i = 1; i <= 20; ++i) {
    accrt_buffer_t* buffer;
    assert_int_equal(
        accrt_buffer_import(world.device, words, sizeof words, note_release, &released, &buffer),
        ACCRT_OK);
    const accrt_place_t place = {buffer, NULL, 0};
    assert_int_equal(accrt_stream_fill(stream, &place, sizeof words, (uint64_t)i, 4), ACCRT_OK);
    accrt_buffer_release(buffer);
    wait_for(&released, i);
    assert_int_equal(words[15], i);
  }
  accrt_stream_release(stream);
  close_world();
}

/* ---- Many threads, one stream ---- */

#define THREADS 4
#define ROUNDS 1500
static accrt_launch_t* thread_launches[THREADS];
static accrt_stream_t* shared_stream;

static void* launch_often(void* user) {
  accrt_launch_t* launch = user;
  const uint32_t grid[3] = {1, 1, 1};
  for (int i = 0; i < ROUNDS; ++i) {
    if (accrt_stream_launch_prepared(shared_stream, launch, grid) != ACCRT_OK)
      return (void*)1;
    if (i % 100 == 7 && accrt_stream_synchronize(shared_stream, FOREVER, 0) != ACCRT_OK)
      return (void*)2;
    if (i % 50 == 3)
      (void)accrt_stream_query(shared_stream);
  }
  return NULL;
}

static accrt_kernel_pack_t* load_module(accrt_kernel_t** out_kernel) {
  static const accrt_kernel_param_t params[] = {
      {"target", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0, 3, 0, 8, 0},
      {"value", ACCRT_KERNEL_PARAM_SCALAR, 0, 0, 2, 8, 4, 0}};
  const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                         .name = "add",
                                         .params = params,
                                         .param_count = 2,
                                         .params_size_bytes = 16,
                                         .block = {32, 1, 1}};
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.image = "test module";
  options.size_bytes = 11;
  options.name = "adder";
  options.kernels = &definition;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof definition;
  accrt_kernel_pack_t* pack;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &pack), ACCRT_OK);
  assert_int_equal(accrt_kernel_pack_find(pack, "add", out_kernel), ACCRT_OK);
  return pack;
}

static accrt_launch_t* make_launch(accrt_kernel_t* kernel, accrt_buffer_t* buffer, uint32_t value) {
  accrt_launch_t* launch;
  assert_int_equal(accrt_launch_create(world.device, kernel, &launch), ACCRT_OK);
  const accrt_kernel_argument_t target = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                          .binding = ACCRT_BINDING_NONE,
                                          .buffer = buffer,
                                          .size_bytes = 4};
  const accrt_kernel_argument_t scalar = {
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = value};
  assert_int_equal(accrt_launch_set(launch, 0, &target, sizeof target), ACCRT_OK);
  assert_int_equal(accrt_launch_set(launch, 1, &scalar, sizeof scalar), ACCRT_OK);
  return launch;
}

static void test_contention(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  accrt_buffer_t* buffer = make_buffer(64);
  uint32_t* word = words_of(buffer);
  *word = 0;
  shared_stream = make_stream();
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    thread_launches[i] = make_launch(kernel, buffer, (uint32_t)i + 1);
    assert_int_equal(pthread_create(&threads[i], NULL, launch_often, thread_launches[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    void* result;
    assert_int_equal(pthread_join(threads[i], &result), 0);
    assert_null(result);
  }
  assert_int_equal(accrt_stream_synchronize(shared_stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*word, ROUNDS * (1 + 2 + 3 + 4));
  for (int i = 0; i < THREADS; ++i)
    accrt_launch_release(thread_launches[i]);
  accrt_kernel_pack_release(pack);
  accrt_buffer_release(buffer);
  accrt_stream_release(shared_stream);
  close_world();
}

/* ---- Points: signals and waits on the device ---- */

static void test_points(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore();
  uint32_t words[2] = {0, 0};
  for (uint32_t round = 1; round <= 20; ++round) {
    fill(one, &words[0], round);
    assert_int_equal(accrt_stream_signal(one, semaphore, 2 * round - 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(two, semaphore, 2 * round - 1), ACCRT_OK);
    copy(two, &words[0], &words[1]);
    assert_int_equal(accrt_stream_signal(two, semaphore, 2 * round), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(one, semaphore, 2 * round), ACCRT_OK);
    assert_int_equal(accrt_stream_query(one), ACCRT_ERROR_NOT_READY);
    assert_true(value_of(semaphore) <= 2 * round - 2);
    if (round % 3 == 0)
      continue; /* two rounds in flight */
    run_all();
    assert_int_equal(words[1], round);
    assert_int_equal(value_of(semaphore), 2 * round);
    assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  }
  assert_int_equal(atomic_load(&test_driver.waits), 40);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(one);
  accrt_stream_release(two);
  run_all();
  close_world();
}

/* Ping-pong without the host, with a driver that runs it later, and far more points than are kept
 * unasked. */
static void test_many_points(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore();
  uint32_t words[2] = {0, 0};
  uint64_t value = 0;
  for (uint32_t round = 1; round <= 400; ++round) {
    fill(one, &words[0], round);
    assert_int_equal(accrt_stream_signal(one, semaphore, ++value), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(two, semaphore, value), ACCRT_OK);
    copy(two, &words[0], &words[1]);
    assert_int_equal(accrt_stream_signal(two, semaphore, ++value), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(one, semaphore, value), ACCRT_OK);
  }
  assert_int_equal(accrt_semaphore_wait(semaphore, value, FOREVER, ACCRT_WAIT_BLOCK), ACCRT_OK);
  assert_int_equal(words[1], 400);
  assert_int_equal(value_of(semaphore), value);
  assert_int_equal(atomic_load(&test_driver.notifies), 0);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(one);
  accrt_stream_release(two);
  close_world();
}

static void test_host_waits_for_points(void** state) {
  (void)state;
  for (int i = 0; i < 3; ++i) {
    open_world(TEST_DRIVER_THREAD);
    accrt_stream_t *one = make_stream(), *two = make_stream();
    accrt_semaphore_t *a = make_semaphore(), *b = make_semaphore();
    uint32_t words[2] = {0, 0};
    for (uint32_t round = 1; round <= 30; ++round) {
      fill(one, &words[0], round);
      assert_int_equal(accrt_stream_signal(one, a, round), ACCRT_OK);
      fill(two, &words[1], round);
      assert_int_equal(accrt_stream_signal(two, b, round), ACCRT_OK);
      const accrt_timepoint_t points[2] = {{a, round}, {b, round}};
      uint32_t index;
      assert_int_equal(
          accrt_semaphore_wait_many(points, 2, round % 2, FOREVER, policies[i], &index), ACCRT_OK);
      assert_int_equal(accrt_semaphore_wait(a, round, FOREVER, policies[i]), ACCRT_OK);
      assert_int_equal(accrt_semaphore_wait(b, round, FOREVER, policies[i]), ACCRT_OK);
      assert_int_equal(words[0], round);
      assert_int_equal(words[1], round);
    }
    accrt_semaphore_release(a);
    accrt_semaphore_release(b);
    accrt_stream_release(one);
    accrt_stream_release(two);
    close_world();
  }
}

static void test_points_are_told(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t *semaphore = make_semaphore(), *gate = make_semaphore();
  uint32_t words[2] = {0, 0};
  struct pollfd polled = {.events = POLLIN};
  for (int before = 0; before < 2; ++before) {
    const uint64_t value = (uint64_t)before + 1;
    if (before)
      assert_int_equal(accrt_semaphore_export_eventfd(semaphore, value, &polled.fd), ACCRT_OK);
    fill(one, &words[0], 1);
    assert_int_equal(accrt_stream_signal(one, semaphore, value), ACCRT_OK);
    if (!before)
      assert_int_equal(accrt_semaphore_export_eventfd(semaphore, value, &polled.fd), ACCRT_OK);
    assert_int_equal(poll(&polled, 1, 5000), 1);
    assert_int_equal(value_of(semaphore), value);
    assert_int_equal(close(polled.fd), 0);
  }
  /* A stream that waits already, and one that defers for another reason. */
  assert_int_equal(accrt_stream_wait(two, semaphore, 3), ACCRT_OK);
  copy(two, &words[0], &words[1]);
  fill(one, &words[0], 3);
  assert_int_equal(accrt_stream_signal(one, semaphore, 3), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[1], 3);
  assert_int_equal(accrt_stream_wait(two, gate, 1), ACCRT_OK);
  fill(one, &words[0], 4);
  assert_int_equal(accrt_stream_signal(one, semaphore, 4), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, semaphore, 4), ACCRT_OK);
  copy(two, &words[0], &words[1]);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[1], 4);
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(gate);
  accrt_stream_release(one);
  accrt_stream_release(two);
  close_world();
}

/* What a device will still reach needs no handle; what it will not is left when it is there. */
static void test_points_outlive_handles(void** state) {
  (void)state;
  for (int begun = 0; begun < 2; ++begun) {
    open_world(TEST_DRIVER_STEPPED);
    accrt_stream_t *one = make_stream(), *two = make_stream(), *three = make_stream();
    accrt_semaphore_t *gate = make_semaphore(), *semaphore = make_semaphore();
    uint32_t words[3] = {0, 0, 0};
    /* Two holds work back for another reason, three waits for more than the device will reach. */
    if (!begun)
      assert_int_equal(accrt_stream_wait(two, gate, 1), ACCRT_OK);
    if (begun)
      assert_int_equal(accrt_stream_wait(two, semaphore, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(three, semaphore, 2), ACCRT_OK);
    fill(three, &words[2], 1);
    fill(one, &words[0], 5);
    assert_int_equal(accrt_stream_signal(one, semaphore, 1), ACCRT_OK);
    if (!begun)
      assert_int_equal(accrt_stream_wait(two, semaphore, 1), ACCRT_OK);
    copy(two, &words[0], &words[1]);
    accrt_semaphore_release(semaphore);
    assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_stream_query(three), ACCRT_ERROR_NOT_READY);
    run_all();
    assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
    run_all();
    assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
    assert_int_equal(words[1], 5);
    assert_int_equal(accrt_stream_synchronize(three, FOREVER, 0), ACCRT_ERROR_POISONED);
    assert_says("is at 1, and nothing can raise it any more");
    assert_int_equal(words[2], 0);
    accrt_semaphore_release(gate);
    accrt_stream_release(one);
    accrt_stream_release(two);
    accrt_stream_release(three);
    run_all();
    close_world();
  }
}

static void test_points_fail(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t *a = make_semaphore(), *b = make_semaphore();
  uint32_t words[2] = {0, 0};
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  fill(one, &words[0], 1);
  assert_int_equal(accrt_stream_signal(one, a, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, a, 1), ACCRT_OK);
  fill(two, &words[1], 1);
  assert_int_equal(accrt_stream_signal(two, b, 1), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_semaphore_wait(b, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_wait(a, 1, 0, 0), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_semaphore_error(b, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_query(one), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_POISONED);
  assert_int_equal(words[1], 0);
  run_all();
  assert_int_equal(accrt_stream_reset(one), ACCRT_OK);
  assert_int_equal(accrt_stream_reset(two), ACCRT_OK);
  /* Cancelled while a device is on its way: who waits hears of it. */
  accrt_semaphore_t* c = make_semaphore();
  fill(one, &words[0], 2);
  assert_int_equal(accrt_stream_signal(one, c, 1), ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(c, ACCRT_ERROR_CANCELLED, "no more"), ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait(c, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_says("no more");
  run_all();
  assert_int_equal(accrt_stream_synchronize(one, FOREVER, 0), ACCRT_OK);
  /* Raised from elsewhere: the stream's signal comes too late. */
  accrt_semaphore_t* d = make_semaphore();
  assert_int_equal(accrt_stream_signal(one, d, 3), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(d, 5), ACCRT_OK);
  run_all();
  assert_int_equal(value_of(d), 5);
  assert_int_equal(accrt_stream_query(one), ACCRT_ERROR_POISONED);
  assert_says("was to be raised to 3");
  run_all();
  accrt_semaphore_release(a);
  accrt_semaphore_release(b);
  accrt_semaphore_release(c);
  accrt_semaphore_release(d);
  accrt_stream_release(one);
  accrt_stream_release(two);
  run_all();
  close_world();
}

/* ---- Events ---- */

static void test_native_events(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_event_t* event;
  uint32_t words[2] = {0, 0};
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  fill(one, &words[0], 1);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.records), 1);
  assert_int_equal(atomic_load(&test_driver.waits), 1);
  /* Nothing but a wait: there is something to be waited for all the same. */
  assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_stream_synchronize(two, 0, 0), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_event_synchronize(event, 0, 0), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_event_synchronize(event, MS, 0), ACCRT_ERROR_TIMEOUT);
  copy(two, &words[0], &words[1]);
  run_all();
  assert_int_equal(words[1], 1);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(accrt_event_synchronize(event, FOREVER, 0), ACCRT_OK);
  /* Behind a failure. */
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  fill(one, &words[0], 2);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  fill(two, &words[1], 2);
  run_all();
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_event_error(event, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_POISONED);
  assert_int_equal(words[1], 1);
  accrt_event_release(event);
  accrt_stream_release(one);
  accrt_stream_release(two);
  run_all();
  close_world();
}

/* A record that is deferred becomes the driver's when its turn comes; a wait that is deferred is
 * for the record of its time. */
static void test_deferred_events(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t* gate = make_semaphore();
  accrt_event_t* event;
  uint32_t words[3] = {0, 0, 0};
  assert_int_equal(accrt_event_create(world.device, ACCRT_EVENT_FLAG_TIMING, &event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
  fill(one, &words[0], 1);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  copy(two, &words[0], &words[1]);
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_NOT_READY);
  assert_int_equal(atomic_load(&test_driver.records), 0);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_event_synchronize(event, FOREVER, 0), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[1], 1);
  assert_int_equal(atomic_load(&test_driver.records), 1);
  int64_t elapsed;
  assert_int_equal(accrt_event_elapsed(event, event, &elapsed), ACCRT_OK);
  /* A stream that defers waits for a native record, which is replaced meanwhile. */
  fill(one, &words[0], 2);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, gate, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  copy(two, &words[0], &words[2]);
  assert_int_equal(accrt_stream_wait(one, gate, 3), ACCRT_OK); /* never before the end */
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(gate, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[2], 2);
  assert_int_equal(accrt_semaphore_signal(gate, 3), ACCRT_OK);
  accrt_event_release(event);
  accrt_semaphore_release(gate);
  accrt_stream_release(one);
  accrt_stream_release(two);
  close_world();
}

/* ---- Somebody else's queues ---- */

static void test_wrapped(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  test_native_t native = {0}, other = {.device_index = 1};
  accrt_stream_t *stream, *own = make_stream();
  void* pointer;
  assert_int_equal(accrt_stream_wrap(world.device, &other, &stream), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(stream);
  assert_int_equal(accrt_stream_wrap(NULL, &native, &stream), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wrap(world.device, &native, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wrap(world.device, &native, &stream), ACCRT_OK);
  assert_int_equal(accrt_stream_native(stream, &pointer), ACCRT_OK);
  assert_ptr_equal(pointer, &native);
  assert_int_equal(accrt_stream_native(own, &pointer), ACCRT_OK);
  assert_non_null(pointer);
  accrt_semaphore_t *semaphore = make_semaphore(), *done = make_semaphore();
  accrt_event_t* event;
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  uint32_t word = 0;
  fill(stream, &word, 1);
  assert_int_equal(accrt_stream_wait(stream, semaphore, 1), ACCRT_ERROR_NOT_READY);
  assert_says("cannot hold work back");
  assert_int_equal(accrt_stream_signal(own, semaphore, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, semaphore, 1), ACCRT_OK); /* a device will signal it */
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  /* Captured: everything is refused, nothing is broken. */
  atomic_store(&native.capturing, 1);
  assert_int_equal(try_fill(stream, &word, 2), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_stream_record(stream, event), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_ERROR_INVALID_STATE);
  heard_t heard = {.word = &word};
  assert_int_equal(accrt_stream_notify(stream, hear, &heard), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  atomic_store(&native.capturing, 0);
  assert_int_equal(accrt_event_query(event), ACCRT_OK); /* never recorded */
  fill(stream, &word, 3);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(value_of(done), 1);
  assert_int_equal(word, 3);
  assert_int_equal(atomic_load(&heard.count), 0);
  /* A stream that defers does not give its queue away. */
  assert_int_equal(accrt_stream_wait(own, done, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_native(own, &pointer), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_semaphore_signal(done, 2), ACCRT_OK);
  accrt_event_release(event);
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  accrt_stream_release(own);
  run_all();
  close_world();
}

/* ---- Prepared launches and modules ---- */

static void test_prepared(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(64);
  *words_of(a) = *words_of(b) = 0;
  const uint32_t grid[3] = {1, 1, 1}, none[3] = {1, 0, 1};
  accrt_launch_t* launch;
  assert_int_equal(accrt_launch_create(world.device, NULL, &launch), ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_fail(TEST_FUNCTION_LAUNCH_CREATE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_launch_create(world.device, kernel, &launch), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_launch_create(world.device, kernel, &launch), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_ERROR_INVALID_STATE);
  assert_says("'target'");
  accrt_kernel_argument_t argument = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                      .binding = ACCRT_BINDING_NONE,
                                      .buffer = a,
                                      .size_bytes = 4};
  assert_int_equal(accrt_launch_set(launch, 2, &argument, sizeof argument),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_launch_set(launch, 1, &argument, sizeof argument),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_launch_set(launch, 0, &argument, 8), ACCRT_ERROR_INVALID_ARGUMENT);
  argument.offset_bytes = 64;
  assert_int_equal(accrt_launch_set(launch, 0, &argument, sizeof argument),
                   ACCRT_ERROR_OUT_OF_RANGE);
  argument.offset_bytes = 0;
  assert_int_equal(accrt_launch_set(launch, 0, &argument, sizeof argument), ACCRT_OK);
  const accrt_kernel_argument_t five = {
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 5};
  assert_int_equal(accrt_launch_set(launch, 1, &five, sizeof five), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, none), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  /* The launch's buffers are its own: one that leaves knows who uses it. */
  argument.buffer = b;
  assert_int_equal(accrt_launch_set(launch, 0, &argument, sizeof argument), ACCRT_OK);
  assert_false(accrt_buffer_is_unshared(a));
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  void* params = accrt_launch_params(launch);
  assert_int_equal((uintptr_t)params % 16, 0);
  const uint32_t seven = 7;
  memcpy((char*)params + 8, &seven, sizeof seven);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  /* A stream that defers has a copy of the block. */
  accrt_semaphore_t* gate = make_semaphore();
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  memset(params, 0, 16);
  accrt_launch_release(accrt_launch_retain(launch));
  accrt_launch_release(launch);
  accrt_launch_release(NULL);
  accrt_kernel_pack_release(pack);
  assert_int_equal(atomic_load(&test_driver.modules), 1); /* work in flight is its */
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*words_of(a), 5);
  assert_int_equal(*words_of(b), 5 + 7 + 7);
  assert_true(accrt_buffer_is_unshared(a));
  assert_true(accrt_buffer_is_unshared(b));
  assert_int_equal(atomic_load(&test_driver.modules), 0);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

static void test_modules(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_string_equal(info.pack_name, "adder");
  assert_int_equal(info.block[0], 32);
  accrt_buffer_t* buffer = make_buffer(64);
  *words_of(buffer) = 1;
  accrt_stream_t* stream = make_stream();
  const uint32_t grid[3] = {2, 1, 1};
  const accrt_kernel_argument_t arguments[2] = {
      {.kind = ACCRT_KERNEL_PARAM_BUFFER,
       .binding = ACCRT_BINDING_NONE,
       .buffer = buffer,
       .size_bytes = 4},
      {.kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 20}};
  assert_int_equal(accrt_stream_launch(stream, kernel, grid, arguments, 2, sizeof *arguments),
                   ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*words_of(buffer), 41);
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition, .name = "none"};
  options.image = "test module";
  options.size_bytes = 11;
  options.kernels = &definition;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof definition;
  accrt_kernel_pack_t* bad;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("no dimension may be 0");
  definition.block[0] = definition.block[1] = definition.block[2] = 1;
  definition.cluster[0] = 2;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  definition.cluster[0] = 0;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad), ACCRT_ERROR_NOT_FOUND);
  definition.name = "add"; /* with a block that the image does not have */
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  options.kernel_count = 0;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("0 kernels are declared");
  options.kernel_count = 1;
  options.image = "\001\002\003\004";
  options.size_bytes = 4;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("no cubin, PTX or fatbin");
  options.size_bytes = 0;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(bad);
  assert_int_equal(atomic_load(&test_driver.modules), 1);
  accrt_kernel_pack_release(pack);
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  close_world();
}

/* Optional slots come in groups: all of one, or none. */
static const void* query_without_wait(uint32_t max_abi) {
  accrt_driver_table_t* table = (accrt_driver_table_t*)(uintptr_t)test_driver_query(max_abi);
  table->queue_wait = NULL;
  return table;
}

static void test_groups(void** state) {
  (void)state;
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, query_without_wait),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("queue_wait");
  accrt_instance_release(instance);
}

static void test_peers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  assert_int_equal(accrt_device_enable_peer(world.device, world.device), ACCRT_OK);
  assert_int_equal(accrt_device_enable_peer(world.device, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_waits_in_the_driver),
      cmocka_unit_test(test_failure),
      cmocka_unit_test(test_work_on_the_caller_finds_a_failure),
      cmocka_unit_test(test_driver_cannot_say),
      cmocka_unit_test(test_order_of_all_kinds),
      cmocka_unit_test(test_numbers_before_a_deferral),
      cmocka_unit_test(test_release_in_flight),
      cmocka_unit_test(test_stream_goes_while_its_driver_works),
      cmocka_unit_test(test_watchers),
      cmocka_unit_test(test_contention),
      cmocka_unit_test(test_points),
      cmocka_unit_test(test_many_points),
      cmocka_unit_test(test_host_waits_for_points),
      cmocka_unit_test(test_points_are_told),
      cmocka_unit_test(test_points_outlive_handles),
      cmocka_unit_test(test_points_fail),
      cmocka_unit_test(test_native_events),
      cmocka_unit_test(test_deferred_events),
      cmocka_unit_test(test_wrapped),
      cmocka_unit_test(test_prepared),
      cmocka_unit_test(test_modules),
      cmocka_unit_test(test_groups),
      cmocka_unit_test(test_peers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
