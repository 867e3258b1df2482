/* Recorded commands: predecessors, bindings, checks at recording and at submission, running on the
 * caller. */
#include "runtime/drivers/common/commands_test.h"

/* ---- Recorded commands ---- */

static void test_record_and_submit(void** state) {
  (void)state;
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(64), *direct = make_buffer(16);
  memset(words_of(a), 0, 64);
  memset(words_of(b), 0, 64);
  *words_of(direct) = 2;
  accrt_commands_t* commands;
  uint32_t index = 99, count;
  assert_int_equal(accrt_commands_create(world.device, 2, &commands), ACCRT_OK);
  const accrt_binding_place_t to_0 = {0, 0, {NULL, NULL, 8}}, to_1 = {1, 0, {NULL, NULL, 16}};
  assert_int_equal(accrt_commands_fill(commands, &to_0, 16, 7, 4, NULL, &index), ACCRT_OK);
  assert_int_equal(index, 0);
  const accrt_copy_region_t region = {{8, 1, 1}, {0, 0}, {0, 0}};
  assert_int_equal(accrt_commands_copy(commands, &to_0, &to_1, &region, NULL, &index), ACCRT_OK);
  assert_int_equal(index, 1);
  assert_int_equal(accrt_commands_barrier(commands, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_marker(commands, "half way", NULL, NULL), ACCRT_OK);
  accrt_kernel_argument_t arguments[2] = {bound_argument(1, 16, 4),
                                          value_argument(ACCRT_KERNEL_PARAM_SCALAR, 1)};
  const uint32_t after[2] = {0, 1};
  const accrt_predecessors_t predecessors = {after, 2, 0};
  assert_int_equal(
      accrt_commands_dispatch(commands, add, one, arguments, 2, ARG_BYTES, &predecessors, &index),
      ACCRT_OK);
  assert_int_equal(index, 4);
  arguments[0] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, direct, 0, 4);
  const accrt_predecessors_t at_once = {NULL, 0, 0}, previous = {NULL, ACCRT_AFTER_PREVIOUS, 0};
  assert_int_equal(
      accrt_commands_dispatch(commands, add, one, arguments, 2, ARG_BYTES, &at_once, NULL),
      ACCRT_OK);
  assert_int_equal(
      accrt_commands_dispatch(commands, add, one, arguments, 2, ARG_BYTES, &previous, NULL),
      ACCRT_OK);
  assert_int_equal(accrt_commands_count(commands, &count), ACCRT_OK);
  assert_int_equal(count, 7);
  const accrt_binding_t bindings[2] = {{a, NULL, 0, UINT64_MAX}, {b, NULL, 0, 64}};
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 2, BINDING_BYTES),
                   ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_commands_barrier(commands, NULL), ACCRT_ERROR_INVALID_STATE);
  accrt_buffer_release(direct); /* the list keeps it */
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 2, BINDING_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words_of(a)[1], 0);
  assert_int_equal(words_of(a)[2], 7);
  assert_int_equal(words_of(a)[5], 7);
  assert_int_equal(words_of(a)[6], 0);
  assert_int_equal(words_of(b)[4], 22);
  assert_int_equal(words_of(b)[5], 7);
  /* With other bindings, also host memory, and in a row. */
  uint32_t host[16] = {0};
  const accrt_binding_t others[2] = {{a, NULL, 32, 32}, {NULL, host, 0, 64}};
  for (int i = 0; i < 3; ++i)
    assert_int_equal(accrt_stream_submit(stream, commands, others, 2, BINDING_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_run(stream, commands, others, 2, BINDING_BYTES, FOREVER), ACCRT_OK);
  assert_int_equal(host[4], 22);
  assert_int_equal(words_of(a)[10], 7);
  accrt_commands_release(accrt_commands_retain(commands));
  accrt_commands_release(commands);
  accrt_commands_release(NULL);
  assert_null(accrt_commands_retain(NULL));
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

static void test_recording_refuses(void** state) {
  (void)state;
  accrt_commands_t* commands = (accrt_commands_t*)1;
  assert_int_equal(accrt_commands_create(NULL, 0, &commands), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(commands);
  assert_int_equal(accrt_commands_create(world.device, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_create(world.device, 65536, &commands),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  accrt_buffer_t* buffer = make_buffer(32);
  const accrt_binding_place_t bad = {1, 0, {NULL, NULL, 0}}, good = {0, 0, {NULL, NULL, 0}};
  const accrt_binding_place_t huge = {0, 0, {NULL, NULL, UINT64_MAX - 7}};
  const accrt_binding_place_t direct = {ACCRT_BINDING_NONE, 0, {buffer, NULL, 8}};
  const accrt_binding_place_t shifted = {0, 0, {NULL, NULL, 4}};
  const accrt_copy_region_t region = {{8, 1, 1}, {0, 0}, {0, 0}};
  const accrt_copy_region_t too_far = {{8, 3, 1}, {UINT64_MAX / 2 + 1, 0}, {8, 0}};
  assert_int_equal(accrt_commands_fill(commands, &bad, 4, 0, 4, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("binding 1 of 1");
  assert_string_equal(last_error().operation, "accrt_commands_fill");
  assert_int_equal(accrt_commands_fill(commands, &huge, 8, 0, 8, NULL, NULL), ACCRT_ERROR_OVERFLOW);
  assert_int_equal(accrt_commands_fill(commands, &direct, 32, 0, 4, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_commands_fill(commands, &good, 6, 0, 4, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_fill(commands, NULL, 4, 0, 4, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_fill(NULL, &good, 4, 0, 4, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_copy(commands, &good, &shifted, &region, NULL, NULL),
                   ACCRT_ERROR_ALIASED);
  assert_int_equal(accrt_commands_copy(commands, &good, &direct, &too_far, NULL, NULL),
                   ACCRT_ERROR_OVERFLOW);
  const accrt_copy_region_t onto = {{8, UINT64_C(1) << 40, 1}, {0, 0}, {4, 0}};
  assert_int_equal(accrt_commands_copy(commands, &good, &direct, &onto, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("the target's rows overlap: extents 8 x 1099511627776 x 1, strides 4 and 0 bytes");
  assert_string_equal(last_error().operation, "accrt_commands_copy");
  assert_int_equal(accrt_commands_copy(commands, &good, NULL, &region, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_copy(commands, &bad, &direct, &region, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_commands_marker(commands, NULL, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  const uint32_t later[1] = {0};
  const accrt_predecessors_t future = {later, 1, 0}, missing = {NULL, 1, 0};
  assert_int_equal(accrt_commands_marker(commands, "m", &future, NULL), ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("predecessor 0 of command 0");
  assert_int_equal(accrt_commands_marker(commands, "m", &missing, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_kernel_argument_t arguments[2] = {bound_argument(1, 0, 4),
                                          value_argument(ACCRT_KERNEL_PARAM_SCALAR, 1)};
  assert_int_equal(accrt_commands_dispatch(commands, add, one, arguments, 2, ARG_BYTES, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  arguments[0] = bound_argument(0, UINT64_MAX, 4);
  assert_int_equal(accrt_commands_dispatch(commands, add, one, arguments, 2, ARG_BYTES, NULL, NULL),
                   ACCRT_ERROR_OVERFLOW);
  assert_int_equal(accrt_commands_dispatch(commands, add, one, arguments, 1, ARG_BYTES, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  uint32_t count = 9;
  assert_int_equal(accrt_commands_count(commands, &count), ACCRT_OK);
  assert_int_equal(count, 0); /* on failure nothing is recorded */
  assert_int_equal(accrt_commands_count(NULL, &count), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_commands_count(commands, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_fail(TEST_FUNCTION_LIST_CREATE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK); /* it can be tried again */
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
}

static void test_submission_refuses(void** state) {
  (void)state;
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(64);
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 3, &commands), ACCRT_OK);
  const accrt_binding_place_t source = {0, 0, {NULL, NULL, 16}}, target = {1, 0, {NULL, NULL, 8}};
  const accrt_copy_region_t region = {{32, 1, 1}, {0, 0}, {0, 0}};
  assert_int_equal(accrt_commands_marker(commands, "first", NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_copy(commands, &source, &target, &region, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_fill(commands, &source, 8, 1, 8, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  accrt_binding_t bindings[3] = {
      {a, NULL, 0, UINT64_MAX}, {b, NULL, 0, UINT64_MAX}, {NULL, NULL, 0, 0}};
  assert_int_equal(accrt_stream_submit(NULL, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_submit(stream, NULL, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_submit(stream, commands, NULL, 3, BINDING_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 2, BINDING_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES + 8),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_OK); /* an unused entry may be empty */
  bindings[1].size_bytes = 39;
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("command 1 (copy): offset 8 + size 32 is past binding 1's 39 bytes");
  bindings[1].size_bytes = 65;
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("binding 1");
  bindings[1] = (accrt_binding_t){NULL, NULL, 0, 0};
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  bindings[1] = (accrt_binding_t){NULL, words_of(b), 0, UINT64_MAX};
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  bindings[1] = (accrt_binding_t){a, NULL, 0, UINT64_MAX};
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_ALIASED);
  assert_says("command 1 (copy)");
  bindings[0] = (accrt_binding_t){a, NULL, 4, UINT64_MAX};
  bindings[1] = (accrt_binding_t){b, NULL, 0, UINT64_MAX};
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("command 2 (fill)");
  assert_int_equal(accrt_stream_run(stream, commands, bindings, 3, BINDING_BYTES, FOREVER),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_fail(TEST_FUNCTION_QUEUE_EXECUTE, 1, ACCRT_ERROR_DRIVER);
  bindings[0].offset_bytes = 0;
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, 3, BINDING_BYTES),
                   ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_commands_release(commands);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

static accrt_commands_t* make_add(accrt_buffer_t* buffer, accrt_kernel_t* kernel) {
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  const accrt_kernel_argument_t arguments[2] = {bound_argument(0, 0, 4),
                                                value_argument(ACCRT_KERNEL_PARAM_SCALAR, 1)};
  (void)buffer;
  assert_int_equal(accrt_commands_dispatch(commands, kernel, one, arguments, kernel == add ? 2 : 0,
                                           ARG_BYTES, NULL, NULL),
                   ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  return commands;
}

static void test_run(void** state) {
  (void)state;
  accrt_buffer_t* buffer = make_buffer(4);
  *words_of(buffer) = 0;
  accrt_commands_t *good = make_add(buffer, add), *bad = make_add(buffer, fails);
  const accrt_binding_t binding = {buffer, NULL, 0, 4};
  assert_int_equal(accrt_stream_run(stream, good, &binding, 1, BINDING_BYTES, FOREVER), ACCRT_OK);
  assert_int_equal(*words_of(buffer), 1);
  /* Nothing is allocated when it repeats. */
  const long before = atomic_load(&world.allocator.total_count);
  for (int i = 0; i < 100; ++i)
    assert_int_equal(accrt_stream_run(stream, good, &binding, 1, BINDING_BYTES, FOREVER), ACCRT_OK);
  assert_int_equal(atomic_load(&world.allocator.total_count), before);
  /* What fails on the caller is the caller's: the stream is not poisoned. */
  assert_int_equal(accrt_stream_run(stream, bad, &binding, 1, BINDING_BYTES, FOREVER),
                   ACCRT_ERROR_KERNEL);
  const accrt_error_t error = last_error();
  assert_int_equal(error.driver_code, -42);
  assert_int_equal(error.submission, 102);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  /* A driver that cannot run it here: it is enqueued and waited for. */
  test_driver_fail(TEST_FUNCTION_QUEUE_RUN, 1, ACCRT_ERROR_NOT_READY);
  const uint32_t word = *words_of(buffer);
  assert_int_equal(accrt_stream_run(stream, good, &binding, 1, BINDING_BYTES, FOREVER), ACCRT_OK);
  assert_int_equal(*words_of(buffer), word * 3 + 1);
  /* Behind a wait it is enqueued too, and the timeout holds. */
  accrt_semaphore_t* gate;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_run(stream, good, &binding, 1, BINDING_BYTES, 1000000),
                   ACCRT_ERROR_TIMEOUT);
  assert_int_equal(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, NULL), ACCRT_OK);
  assert_int_equal(accrt_stream_run(stream, good, &binding, 1, BINDING_BYTES, FOREVER),
                   ACCRT_ERROR_POISONED);
  accrt_semaphore_release(gate);
  accrt_commands_release(good);
  accrt_commands_release(bad);
  accrt_buffer_release(buffer);
}

/* Lists and buffers are released while submissions of them are in flight or wait. */
static void test_release_in_flight(void** state) {
  (void)state;
  accrt_buffer_t* buffer = make_buffer(4);
  *words_of(buffer) = 0;
  uint32_t* word = words_of(buffer);
  accrt_semaphore_t *gate, *done;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &done), ACCRT_OK);
  accrt_commands_t* commands = make_add(buffer, add);
  const accrt_binding_t binding = {buffer, NULL, 0, 4};
  assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, BINDING_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, BINDING_BYTES), ACCRT_OK);
  uint32_t copied = 0;
  const accrt_place_t from = {buffer, NULL, 0}, to = {NULL, &copied, 0};
  assert_int_equal(accrt_stream_copy(stream, &from, &to, 4), ACCRT_OK);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
  (void)word;
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait(done, 1, FOREVER, 0), ACCRT_OK);
  assert_int_equal(copied, 4);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(done);
}

/* The instance ends while recorded work still waits for somebody to signal: it is dropped, with all
 * that it holds. */
static void test_instance_ends_first(void** state) {
  (void)state;
  accrt_buffer_t* direct = make_buffer(4);
  accrt_semaphore_t* gate;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 0, &commands), ACCRT_OK);
  accrt_kernel_argument_t arguments[2] = {buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, direct, 0, 4),
                                          value_argument(ACCRT_KERNEL_PARAM_SCALAR, 1)};
  assert_int_equal(accrt_commands_dispatch(commands, add, one, arguments, 2, ARG_BYTES, NULL, NULL),
                   ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_submit(stream, commands, NULL, 0, BINDING_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_launch(stream, add, one, arguments, 2, ARG_BYTES), ACCRT_OK);
  accrt_commands_release(commands);
  accrt_buffer_release(direct);
  accrt_semaphore_release(gate);
}

typedef struct submitter {
  accrt_commands_t* commands;
  uint32_t word;
  int failed;
} submitter_t;

/* One list, many threads, many streams. */
static void* submit_many(void* argument) {
  submitter_t* submitter = argument;
  accrt_stream_t* own;
  submitter->failed |= accrt_stream_create(world.device, NULL, &own) != ACCRT_OK;
  const accrt_binding_t binding = {NULL, &submitter->word, 0, 4};
  for (int i = 0; i < 500; ++i) {
    submitter->failed |=
        accrt_stream_submit(own, submitter->commands, &binding, 1, BINDING_BYTES) != ACCRT_OK;
    if (i % 5 == 0)
      submitter->failed |= accrt_stream_run(own, submitter->commands, &binding, 1, BINDING_BYTES,
                                            FOREVER) != ACCRT_OK;
  }
  submitter->failed |= accrt_stream_synchronize(own, FOREVER, 0) != ACCRT_OK;
  accrt_stream_release(own);
  return NULL;
}

static void test_many_threads(void** state) {
  (void)state;
  accrt_commands_t* commands = make_add(NULL, add);
  submitter_t submitters[4];
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) {
    submitters[i] = (submitter_t){commands, 0, 0};
    assert_int_equal(pthread_create(&threads[i], NULL, submit_many, &submitters[i]), 0);
  }
  for (int i = 0; i < 4; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  uint32_t expected = 0;
  for (int i = 0; i < 600; ++i)
    expected = expected * 3 + 1;
  for (int i = 0; i < 4; ++i) {
    assert_int_equal(submitters[i].failed, 0);
    assert_int_equal(submitters[i].word, expected);
  }
  accrt_commands_release(commands);
}

/* One list, many threads, one stream: what runs on its caller, what is enqueued meanwhile and what
 * is waited for keep each thread's order, nothing is lost, and no two run at a time. */
static void* share_stream(void* argument) {
  submitter_t* submitter = argument;
  const accrt_binding_t binding = {NULL, &submitter->word, 0, 4};
  for (int i = 0; i < 500; ++i) {
    submitter->failed |= accrt_stream_run(stream, submitter->commands, &binding, 1, BINDING_BYTES,
                                          FOREVER) != ACCRT_OK;
    if (i % 3 == 0)
      submitter->failed |=
          accrt_stream_submit(stream, submitter->commands, &binding, 1, BINDING_BYTES) != ACCRT_OK;
    if (i % 7 == 0)
      submitter->failed |= accrt_stream_synchronize(stream, FOREVER, 0) != ACCRT_OK;
  }
  submitter->failed |= accrt_stream_synchronize(stream, FOREVER, 0) != ACCRT_OK;
  return NULL;
}

static void test_threads_share_a_stream(void** state) {
  (void)state;
  accrt_commands_t* commands = make_add(NULL, add);
  submitter_t submitters[4];
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) {
    submitters[i] = (submitter_t){commands, 0, 0};
    assert_int_equal(pthread_create(&threads[i], NULL, share_stream, &submitters[i]), 0);
  }
  for (int i = 0; i < 4; ++i)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  uint32_t expected = 0;
  for (int i = 0; i < 667; ++i)
    expected = expected * 3 + 1;
  uint64_t submitted, issued, completed;
  assert_int_equal(accrt_stream_progress(stream, &submitted, &issued, &completed), ACCRT_OK);
  for (int i = 0; i < 4; ++i) {
    assert_int_equal(submitters[i].failed, 0);
    assert_int_equal(submitters[i].word, expected);
  }
  assert_true(submitted >= 4 * 667);
  assert_int_equal(issued, submitted);
  assert_int_equal(completed, submitted);
  accrt_commands_release(commands);
}

/* More bindings than fit on the stack of a submission. */
static void test_many_bindings(void** state) {
  (void)state;
  enum { COUNT = 300 };
  static uint32_t words[COUNT];
  accrt_binding_t bindings[COUNT];
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, COUNT, &commands), ACCRT_OK);
  for (uint32_t i = 0; i < COUNT; ++i) {
    const accrt_binding_place_t place = {i, 0, {NULL, NULL, 0}};
    assert_int_equal(accrt_commands_fill(commands, &place, 4, i, 4, NULL, NULL), ACCRT_OK);
    bindings[i] = (accrt_binding_t){NULL, &words[i], 0, 4};
  }
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  assert_int_equal(accrt_stream_submit(stream, commands, bindings, COUNT, BINDING_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  for (uint32_t i = 0; i < COUNT; ++i)
    assert_int_equal(words[i], i);
  accrt_commands_release(commands);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_record_and_submit, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_recording_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_submission_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_run, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_release_in_flight, set_up_thread, tear_down),
      cmocka_unit_test_setup_teardown(test_instance_ends_first, set_up_thread, tear_down),
      cmocka_unit_test_setup_teardown(test_many_threads, set_up_thread, tear_down),
      cmocka_unit_test_setup_teardown(test_threads_share_a_stream, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_threads_share_a_stream, set_up_thread, tear_down),
      cmocka_unit_test_setup_teardown(test_many_bindings, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
