/* tests/cts/prepared.c - prepared launches. */
#include "cts.h"

static const uint32_t one[3] = {1, 1, 1};

static accrt_launch_t* prepare(cts_t* cts, const char* kernel) {
  accrt_launch_t* launch = NULL;
  OK(accrt_launch_create(cts->device, cts_kernel(cts, kernel), &launch));
  assert_non_null(launch);
  return launch;
}

static accrt_status_t set(accrt_launch_t* launch, uint32_t index,
                          accrt_kernel_argument_t argument) {
  return accrt_launch_set(launch, index, &argument, CTS_ARGUMENT_SIZE);
}

static accrt_buffer_t* zeroed(cts_t* cts, uint64_t size_bytes) {
  accrt_buffer_t* buffer = cts_buffer(cts, size_bytes);
  const accrt_place_t at = cts_at(buffer, 0);
  OK(accrt_stream_fill(cts->stream, &at, size_bytes, 0, 1));
  cts_sync(cts->stream);
  return buffer;
}

static void check_numbers(cts_t* cts, accrt_buffer_t* log, uint32_t count) {
  uint32_t words[400];
  assert_true(count + 1 <= 400);
  cts_download(cts, log, 0, words, 4 * (count + 1));
  assert_int_equal(words[0], count);
  for (uint32_t i = 0; i < count; ++i)
    assert_int_equal(words[1 + i], i);
}

/* ---- What must work ---- */

static void test_scalars_change(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 300 };
  accrt_buffer_t* log = zeroed(cts, 4 * (COUNT + 1));
  accrt_launch_t* launch = prepare(cts, "append");
  OK(set(launch, 0, cts_arg_buffer(log, 0)));
  for (uint32_t i = 0; i < COUNT; ++i) {
    OK(set(launch, 1, cts_arg_scalar(i)));
    OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  }
  check_numbers(cts, log, COUNT);
  accrt_launch_release(launch);
  accrt_buffer_release(log);
}

static void test_buffers_change(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 12, ROUNDS = 20 };
  accrt_buffer_t* cells[COUNT];
  uint32_t model[COUNT] = {0};
  accrt_launch_t* launch = prepare(cts, "mix");
  for (uint32_t i = 0; i < COUNT; ++i)
    cells[i] = zeroed(cts, 64);
  for (uint32_t i = 0; i < COUNT * ROUNDS; ++i) {
    const uint32_t to = i % COUNT;
    const uint32_t from = (i * 5 + 1) % COUNT == to ? (to + 1) % COUNT : (i * 5 + 1) % COUNT;
    OK(set(launch, 0, cts_arg_buffer(cells[to], 0)));
    OK(set(launch, 1, cts_arg_buffer(cells[from], 0)));
    OK(set(launch, 2, cts_arg_scalar(i)));
    OK(accrt_stream_launch_prepared(cts->stream, launch, one));
    model[to] = model[to] * 31u + model[from] + i;
  }
  for (uint32_t i = 0; i < COUNT; ++i) {
    uint32_t word = 0;
    cts_download(cts, cells[i], 0, &word, 4);
    assert_int_equal(word, model[i]);
    accrt_buffer_release(cells[i]);
  }
  accrt_launch_release(launch);
}

static void test_grids_change(void** state) {
  cts_t* cts = *state;
  const uint32_t grids[][3] = {{1, 1, 1}, {7, 2, 3}, {0, 4, 4}, {100, 1, 1}, {4, 0, 4}, {3, 3, 3}};
  accrt_launch_t* launch = prepare(cts, "cover");
  for (size_t g = 0; g < sizeof grids / sizeof grids[0]; ++g) {
    const uint32_t total = grids[g][0] * grids[g][1] * grids[g][2];
    accrt_buffer_t* cells = zeroed(cts, 4 * 128);
    OK(set(launch, 0, cts_arg_buffer(cells, 0)));
    for (int i = 0; i < 3; ++i)
      OK(accrt_stream_launch_prepared(cts->stream, launch, grids[g]));
    uint32_t counts[128];
    cts_download(cts, cells, 0, counts, sizeof counts);
    for (uint32_t i = 0; i < 128; ++i)
      assert_int_equal(counts[i], i < total ? 3 : 0);
    accrt_buffer_release(cells);
  }
  accrt_launch_release(launch);
}

/* The block is the caller's to write; the buffers are then his to keep. */
static void test_block_written_directly(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = zeroed(cts, 4 * 101);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  OK(accrt_buffer_info(log, &info));
  accrt_launch_t* launch = prepare(cts, "append");
  cts_append_params_t* params = accrt_launch_params(launch);
  assert_non_null(params);
  params->log = (uint32_t*)(uintptr_t)info.device_address;
  for (uint32_t i = 0; i < 100; ++i) {
    params->number = i;
    OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  }
  check_numbers(cts, log, 100);
  accrt_launch_release(launch);
  accrt_buffer_release(log);
}

/* What is changed after a launch is not that launch's. */
static void test_arguments_are_taken_at_the_call(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = zeroed(cts, 64);
  accrt_buffer_t* other = zeroed(cts, 64);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  accrt_launch_t* launch = prepare(cts, "append");
  OK(set(launch, 0, cts_arg_buffer(log, 0)));
  OK(accrt_stream_wait(cts->stream, gate, 1));
  for (uint32_t i = 0; i < 5; ++i) {
    OK(set(launch, 1, cts_arg_scalar(i)));
    OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  }
  OK(set(launch, 0, cts_arg_buffer(other, 0)));
  OK(set(launch, 1, cts_arg_scalar(99)));
  OK(accrt_semaphore_signal(gate, 1));
  check_numbers(cts, log, 5);
  check_numbers(cts, other, 0);
  accrt_launch_release(launch);
  accrt_semaphore_release(gate);
  accrt_buffer_release(log);
  accrt_buffer_release(other);
}

static void test_released_in_flight(void** state) {
  cts_t* cts = *state;
  uint32_t words[2] = {0, 0};
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  accrt_buffer_t* log = zeroed(cts, 64);
  accrt_launch_t* launch = prepare(cts, "append");
  const accrt_place_t at = cts_at(log, 0);
  const accrt_place_t out = cts_host(words);
  OK(set(launch, 0, cts_arg_buffer(log, 0)));
  OK(set(launch, 1, cts_arg_scalar(5)));
  OK(accrt_stream_wait(cts->stream, gate, 1));
  OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  OK(accrt_stream_copy(cts->stream, &at, &out, 8));
  accrt_launch_release(launch);
  accrt_buffer_release(log);
  accrt_kernel_pack_release(cts->pack);
  cts->pack = NULL;
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 5);
  accrt_semaphore_release(gate);
}

/* One launch on several streams in turn, each with memory of its own; and many launches of one kernel on one stream. */
static void test_several_streams_and_launches(void** state) {
  cts_t* cts = *state;
  enum { STREAMS = 4, TIMES = 60 };
  accrt_stream_t* streams[STREAMS];
  accrt_buffer_t* logs[STREAMS];
  accrt_launch_t* launches[STREAMS];
  for (uint32_t s = 0; s < STREAMS; ++s) {
    streams[s] = cts_stream(cts);
    logs[s] = zeroed(cts, 4 * (2 * TIMES + 1));
    launches[s] = prepare(cts, "append");
    OK(set(launches[s], 0, cts_arg_buffer(logs[s], 0)));
  }
  accrt_launch_t* shared = prepare(cts, "append");
  for (uint32_t i = 0; i < 2 * TIMES; ++i) {
    for (uint32_t s = 0; s < STREAMS; ++s) {
      accrt_launch_t* launch = i % 2 == 0 ? shared : launches[s];
      if (launch == shared)
        OK(set(launch, 0, cts_arg_buffer(logs[s], 0)));
      OK(set(launch, 1, cts_arg_scalar(i)));
      OK(accrt_stream_launch_prepared(streams[s], launch, one));
    }
  }
  for (uint32_t s = 0; s < STREAMS; ++s) {
    cts_sync(streams[s]);
    check_numbers(cts, logs[s], 2 * TIMES);
    accrt_launch_release(launches[s]);
    accrt_stream_release(streams[s]);
    accrt_buffer_release(logs[s]);
  }
  accrt_launch_release(shared);
}

static void test_optional_parameter(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* buffer = zeroed(cts, 256);
  accrt_buffer_t* data = zeroed(cts, 64);
  accrt_buffer_t* workspace = zeroed(cts, 64);
  accrt_kernel_tensor_t tensor = {
      .dtype = ACCRT_DTYPE_F32, .rank = 2, .shape = {1, 1}, .strides = {1, 1}};
  accrt_kernel_argument_t described = cts_arg_buffer(data, 0);
  described.kind = ACCRT_KERNEL_PARAM_TENSOR;
  described.tensor = &tensor;
  accrt_kernel_argument_t symbol = cts_arg_scalar(7);
  symbol.kind = ACCRT_KERNEL_PARAM_SYMBOL;
  accrt_kernel_argument_t scratch = cts_arg_buffer(workspace, 0);
  scratch.kind = ACCRT_KERNEL_PARAM_WORKSPACE;
  accrt_launch_t* launch = prepare(cts, "everything");
  OK(set(launch, 0, cts_arg_buffer(buffer, 0)));
  OK(set(launch, 1, described));
  OK(set(launch, 2, cts_arg_scalar(1)));
  OK(set(launch, 3, cts_arg_scalar(2)));
  OK(set(launch, 4, cts_arg_scalar(3)));
  OK(set(launch, 5, symbol));
  OK(set(launch, 6, scratch));
  OK(set(launch, 8, cts_arg_scalar(0)));
  memset(&tensor, 0xCC, sizeof tensor); /* the caller's again */
  OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  float results[9];
  cts_download(cts, buffer, 0, results, sizeof results);
  assert_true(results[3] == 3.0f && results[4] == 7.0f && results[6] == -1.0f);
  OK(set(launch, 7, cts_arg_buffer(data, 0)));
  OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  cts_download(cts, buffer, 0, results, sizeof results);
  assert_true(results[6] == 0.0f);
  accrt_launch_release(launch);
  accrt_buffer_release(buffer);
  accrt_buffer_release(data);
  accrt_buffer_release(workspace);
}

static void test_repeated_launch_allocates_nothing(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = zeroed(cts, 64);
  accrt_buffer_t* source = zeroed(cts, 64);
  accrt_launch_t* launch = prepare(cts, "mix");
  OK(set(launch, 0, cts_arg_buffer(log, 0)));
  OK(set(launch, 1, cts_arg_buffer(source, 0)));
  long before = 0;
  for (uint32_t i = 0; i < 600; ++i) {
    if (i == 100)
      before = atomic_load(&cts->allocation_count);
    OK(set(launch, 2, cts_arg_scalar(i)));
    OK(accrt_stream_launch_prepared(cts->stream, launch, one));
    if (i % 50 == 49 || i >= 100)
      cts_sync(cts->stream);
  }
  assert_int_equal(atomic_load(&cts->allocation_count), before);
  accrt_launch_release(launch);
  accrt_buffer_release(log);
  accrt_buffer_release(source);
}

/* ---- What must be refused or fail ---- */

static void test_missing_argument(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = zeroed(cts, 64);
  accrt_launch_t* launch = prepare(cts, "append");
  FAILS(INVALID_STATE, accrt_stream_launch_prepared(cts->stream, launch, one));
  MESSAGE_HAS("log");
  OK(set(launch, 0, cts_arg_buffer(log, 0)));
  FAILS(INVALID_STATE, accrt_stream_launch_prepared(cts->stream, launch, one));
  MESSAGE_HAS("number");
  OK(set(launch, 1, cts_arg_scalar(0)));
  OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  check_numbers(cts, log, 1);
  accrt_launch_release(launch);
  accrt_buffer_release(log);
}

static void test_no_such_parameter(void** state) {
  cts_t* cts = *state;
  accrt_launch_t* launch = prepare(cts, "append");
  FAILS(OUT_OF_RANGE, set(launch, 2, cts_arg_scalar(0)));
  MESSAGE_HAS("append");
  FAILS(OUT_OF_RANGE, set(launch, UINT32_MAX, cts_arg_scalar(0)));
  accrt_launch_release(launch);
}

static void test_argument_of_another_kind(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = zeroed(cts, 64);
  accrt_launch_t* launch = prepare(cts, "append");
  OK(set(launch, 0, cts_arg_buffer(log, 0)));
  OK(set(launch, 1, cts_arg_scalar(0)));
  FAILS(INVALID_ARGUMENT, set(launch, 0, cts_arg_scalar(3)));
  MESSAGE_HAS("log");
  FAILS(INVALID_ARGUMENT, set(launch, 1, cts_arg_buffer(log, 0)));
  FAILS(INVALID_ARGUMENT, set(launch, 0, cts_arg_buffer(NULL, 0)));
  OK(accrt_stream_launch_prepared(cts->stream, launch, one)); /* the arguments are what they were */
  check_numbers(cts, log, 1);
  accrt_launch_release(launch);
  accrt_buffer_release(log);
}

static void test_range_beyond_the_buffer(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = zeroed(cts, 64);
  accrt_launch_t* launch = prepare(cts, "append");
  FAILS(OUT_OF_RANGE, set(launch, 0, cts_arg_buffer(log, 65)));
  MESSAGE_HAS("64");
  accrt_kernel_argument_t argument = cts_arg_buffer(log, 60);
  argument.size_bytes = 5;
  FAILS(OUT_OF_RANGE, set(launch, 0, argument));
  accrt_launch_release(launch);
  accrt_buffer_release(log);
}

static void test_binding_has_no_place(void** state) {
  cts_t* cts = *state;
  accrt_launch_t* launch = prepare(cts, "append");
  assert_int_not_equal(set(launch, 0, cts_arg_binding(0, 0, 64)), ACCRT_OK);
  accrt_launch_release(launch);
}

static void test_tensor_without_shape(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* data = zeroed(cts, 64);
  accrt_launch_t* launch = prepare(cts, "everything");
  accrt_kernel_argument_t argument = cts_arg_buffer(data, 0);
  argument.kind = ACCRT_KERNEL_PARAM_TENSOR;
  FAILS(INVALID_ARGUMENT, set(launch, 1, argument));
  MESSAGE_HAS("tensor");
  accrt_kernel_tensor_t tensor = {
      .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = {17}, .strides = {1}};
  argument.tensor = &tensor;
  FAILS(OUT_OF_RANGE, set(launch, 1, argument)); /* 68 bytes of 64 */
  accrt_launch_release(launch);
  accrt_buffer_release(data);
}

static void test_argument_element_size(void** state) {
  cts_t* cts = *state;
  accrt_launch_t* launch = prepare(cts, "append");
  const accrt_kernel_argument_t arguments[2] = {cts_arg_scalar(1), cts_arg_scalar(1)};
  FAILS(INVALID_ARGUMENT, accrt_launch_set(launch, 1, arguments, CTS_ARGUMENT_SIZE + 8));
  accrt_launch_release(launch);
}

static void test_failed_stream(void** state) {
  cts_t* cts = *state;
  accrt_launch_t* launch = prepare(cts, "nothing");
  cts_poison(cts, cts->stream, ACCRT_ERROR_CANCELLED, "on purpose");
  FAILS(POISONED, accrt_stream_launch_prepared(cts->stream, launch, one));
  MESSAGE_HAS("on purpose");
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_launch_prepared(cts->stream, launch, one));
  cts_sync(cts->stream);
  accrt_launch_release(launch);
}

static void test_stream_of_another_device(void** state) {
  cts_t* cts = *state;
  accrt_launch_t* launch = prepare(cts, "nothing");
  accrt_stream_t* there = NULL;
  OK(accrt_stream_create(cts->second, NULL, &there));
  FAILS(INVALID_ARGUMENT, accrt_stream_launch_prepared(there, launch, one));
  accrt_stream_release(there);
  accrt_launch_release(launch);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_launch_t* launch = (accrt_launch_t*)cts;
  FAILS(INVALID_ARGUMENT, accrt_launch_create(cts->device, NULL, &launch));
  assert_null(launch);
  FAILS(INVALID_ARGUMENT, accrt_launch_create(NULL, cts_kernel(cts, "nothing"), &launch));
  FAILS(INVALID_ARGUMENT, accrt_launch_create(cts->device, cts_kernel(cts, "nothing"), NULL));
  launch = prepare(cts, "nothing");
  FAILS(INVALID_ARGUMENT, accrt_stream_launch_prepared(NULL, launch, one));
  FAILS(INVALID_ARGUMENT, accrt_stream_launch_prepared(cts->stream, NULL, one));
  FAILS(INVALID_ARGUMENT, accrt_stream_launch_prepared(cts->stream, launch, NULL));
  FAILS(INVALID_ARGUMENT, accrt_launch_set(NULL, 0, NULL, CTS_ARGUMENT_SIZE));
  FAILS(INVALID_ARGUMENT, accrt_launch_set(launch, 0, NULL, CTS_ARGUMENT_SIZE));
  assert_null(accrt_launch_params(NULL));
  assert_null(accrt_launch_retain(NULL));
  accrt_launch_release(NULL);
  accrt_launch_release(launch);
}

const cts_test_t cts_prepared_tests[] = {
    CTS_P(test_scalars_change, CTS_NEEDS_KERNELS),
    CTS_P(test_buffers_change, CTS_NEEDS_KERNELS),
    CTS_P(test_grids_change, CTS_NEEDS_KERNELS),
    CTS_P(test_block_written_directly, CTS_NEEDS_KERNELS),
    CTS_P(test_arguments_are_taken_at_the_call, CTS_NEEDS_KERNELS),
    CTS_P(test_released_in_flight, CTS_NEEDS_KERNELS),
    CTS_P(test_several_streams_and_launches, CTS_NEEDS_KERNELS),
    CTS_P(test_optional_parameter, CTS_NEEDS_KERNELS),
    CTS_P(test_repeated_launch_allocates_nothing, CTS_NEEDS_KERNELS),
    CTS_N(test_missing_argument, CTS_NEEDS_KERNELS),
    CTS_N(test_no_such_parameter, CTS_NEEDS_KERNELS),
    CTS_N(test_argument_of_another_kind, CTS_NEEDS_KERNELS),
    CTS_N(test_range_beyond_the_buffer, CTS_NEEDS_KERNELS),
    CTS_N(test_binding_has_no_place, CTS_NEEDS_KERNELS),
    CTS_N(test_tensor_without_shape, CTS_NEEDS_KERNELS),
    CTS_N(test_argument_element_size, CTS_NEEDS_KERNELS),
    CTS_N(test_failed_stream, CTS_NEEDS_KERNELS),
    CTS_N(test_stream_of_another_device, CTS_NEEDS_KERNELS | CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_null_arguments, CTS_NEEDS_KERNELS),
    CTS_END,
};
