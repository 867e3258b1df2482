/* tests/cts/launch.c - kernel packs and single launches. */
#include "cts.h"

static accrt_status_t launch(cts_t* cts, const char* name, uint32_t x, uint32_t y, uint32_t z,
                             const accrt_kernel_argument_t* arguments, uint32_t count) {
  const uint32_t grid[3] = {x, y, z};
  return accrt_stream_launch(cts->stream, cts_kernel(cts, name), grid, arguments, count,
                             CTS_ARGUMENT_SIZE);
}

/* Arguments of the kernel `everything`, in order. */
typedef struct everything {
  accrt_buffer_t* buffer;
  accrt_buffer_t* data;
  accrt_buffer_t* workspace;
  accrt_kernel_tensor_t tensor;
  accrt_kernel_argument_t arguments[9];
} everything_t;

static uint64_t double_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static void make_everything(cts_t* cts, everything_t* all) {
  memset(all, 0, sizeof *all);
  all->buffer = cts_buffer(cts, 256);
  all->data = cts_buffer(cts, 1024);
  all->workspace = cts_buffer(cts, 64);
  const accrt_place_t whole = cts_at(all->data, 0);
  OK(accrt_stream_fill(cts->stream, &whole, 1024, 0x3F800000, 4)); /* 1.0f */
  all->tensor.dtype = ACCRT_DTYPE_F32;
  all->tensor.rank = 2;
  all->tensor.shape[0] = 3;
  all->tensor.shape[1] = 5;
  all->tensor.strides[0] = 7;
  all->tensor.strides[1] = 1;
  all->arguments[0] = cts_arg_buffer(all->buffer, 0);
  all->arguments[1] = cts_arg_buffer(all->data, 64);
  all->arguments[1].kind = ACCRT_KERNEL_PARAM_TENSOR;
  all->arguments[1].tensor = &all->tensor;
  all->arguments[2] = cts_arg_scalar(200);
  all->arguments[3] = cts_arg_scalar(60000);
  all->arguments[4] = cts_arg_scalar(70000);
  all->arguments[5] = cts_arg_scalar((uint64_t)-12);
  all->arguments[5].kind = ACCRT_KERNEL_PARAM_SYMBOL;
  all->arguments[6] = cts_arg_buffer(all->workspace, 0);
  all->arguments[6].kind = ACCRT_KERNEL_PARAM_WORKSPACE;
  all->arguments[7] = cts_arg_buffer(NULL, 0);
  all->arguments[8] = cts_arg_scalar(double_bits(2.5));
}

static void end_everything(everything_t* all) {
  accrt_buffer_release(all->buffer);
  accrt_buffer_release(all->data);
  accrt_buffer_release(all->workspace);
}

/* ---- What must work ---- */

static void test_pack_reflection(void** state) {
  cts_t* cts = *state;
  uint32_t count = 0;
  OK(accrt_kernel_pack_kernel_count(cts->pack, &count));
  assert_true(count >= (cts_runs_host_kernels(cts) ? 9 : 5));
  for (uint32_t i = 0; i < count; ++i) {
    accrt_kernel_t* kernel = NULL;
    OK(accrt_kernel_pack_kernel(cts->pack, i, &kernel));
    accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
    OK(accrt_kernel_info(kernel, &info));
    assert_string_equal(info.pack_name, "cts");
    assert_ptr_equal(cts_kernel(cts, info.name), kernel);
  }
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  OK(accrt_kernel_info(cts_kernel(cts, "everything"), &info));
  assert_int_equal(info.param_count, 9);
  assert_int_equal(info.params_size_bytes, sizeof(cts_everything_params_t));
  assert_string_equal(info.params[1].name, "tensor");
  OK(accrt_kernel_info(cts_kernel(cts, "mix"), &info));
  assert_int_equal(info.traits, ACCRT_KERNEL_TRAIT_DETERMINISTIC);
}

static void test_every_parameter_kind(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  OK(launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  float results[9];
  cts_download(cts, all.buffer, 0, results, sizeof results);
  const float expected[9] = {15, 200, 60000, 70000, -12, 11, -1, 2.5f, 1};
  for (int i = 0; i < 9; ++i)
    assert_true(results[i] == expected[i]);
  /* The optional buffer is there, and the first range does not begin at 0. */
  all.arguments[7] = cts_arg_buffer(all.data, 0);
  all.arguments[0] = cts_arg_buffer(all.buffer, 128);
  OK(launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  cts_download(cts, all.buffer, 128, results, sizeof results);
  assert_true(results[6] == 1.0f);
  end_everything(&all);
}

static void test_host_pointers(void** state) {
  cts_t* cts = *state;
  _Alignas(64) static uint32_t log[16];
  log[0] = 0;
  accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(NULL, 0), cts_arg_scalar(77)};
  arguments[0].pointer = log;
  arguments[0].size_bytes = sizeof log;
  OK(launch(cts, "append", 1, 1, 1, arguments, 2));
  cts_sync(cts->stream);
  assert_int_equal(log[0], 1);
  assert_int_equal(log[1], 77);
}

static void test_grids(void** state) {
  cts_t* cts = *state;
  const uint32_t grids[][3] = {{1, 1, 1},    {7, 1, 1},   {1, 9, 1}, {1, 1, 11}, {5, 4, 3},
                               {1000, 1, 1}, {31, 17, 3}, {0, 5, 5}, {5, 0, 5},  {5, 5, 0}};
  accrt_buffer_t* cells = cts_buffer(cts, 4 * 2000);
  for (size_t g = 0; g < sizeof grids / sizeof grids[0]; ++g) {
    const uint32_t* grid = grids[g];
    const uint32_t total = grid[0] * grid[1] * grid[2];
    const accrt_place_t whole = cts_at(cells, 0);
    OK(accrt_stream_fill(cts->stream, &whole, 8000, 0, 4));
    const accrt_kernel_argument_t argument = cts_arg_buffer(cells, 0);
    for (int i = 0; i < 3; ++i) {
      OK(launch(cts, "cover", grid[0], grid[1], grid[2], &argument, 1));
    }
    uint32_t counts[2000];
    cts_download(cts, cells, 0, counts, sizeof counts);
    for (uint32_t i = 0; i < 2000; ++i)
      assert_int_equal(counts[i], i < total ? 3 : 0);
  }
  accrt_buffer_release(cells);
}

static void test_launches_keep_order(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 300 };
  accrt_buffer_t* log = cts_buffer(cts, 4 * (COUNT + 1));
  const accrt_place_t at = cts_at(log, 0);
  OK(accrt_stream_fill(cts->stream, &at, 4, 0, 4));
  for (uint32_t i = 0; i < COUNT; ++i) {
    const accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(log, 0), cts_arg_scalar(i)};
    OK(launch(cts, "append", 1, 1, 1, arguments, 2));
  }
  uint32_t words[COUNT + 1];
  cts_download(cts, log, 0, words, sizeof words);
  assert_int_equal(words[0], COUNT);
  for (uint32_t i = 0; i < COUNT; ++i)
    assert_int_equal(words[1 + i], i);
  accrt_buffer_release(log);
}

static void test_serial_kernel(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* cell = cts_buffer(cts, 4);
  const accrt_place_t at = cts_at(cell, 0);
  OK(accrt_stream_fill(cts->stream, &at, 4, 0, 4));
  const accrt_kernel_argument_t argument = cts_arg_buffer(cell, 0);
  OK(launch(cts, "serial", 500, 1, 1, &argument, 1));
  uint32_t count = 0;
  cts_download(cts, cell, 0, &count, 4);
  assert_int_equal(count, 500);
  accrt_buffer_release(cell);
}

static void test_kernel_surroundings(void** state) {
  cts_t* cts = *state;
  OK(launch(cts, "check_float", 64, 1, 1, NULL, 0));
  OK(launch(cts, "use_stack", 64, 1, 1, NULL, 0));
  cts_sync(cts->stream);
}

static void test_arguments_are_copied(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  OK(launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  memset(all.arguments, 0xCC, sizeof all.arguments); /* the caller's again */
  memset(&all.tensor, 0xCC, sizeof all.tensor);
  OK(accrt_semaphore_signal(gate, 1));
  float results[9];
  cts_download(cts, all.buffer, 0, results, sizeof results);
  assert_true(results[0] == 15.0f && results[7] == 2.5f);
  accrt_semaphore_release(gate);
  end_everything(&all);
}

static void test_buffers_and_pack_released_in_flight(void** state) {
  cts_t* cts = *state;
  uint32_t words[2] = {0, 0};
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  accrt_buffer_t* log = cts_buffer(cts, 64);
  const accrt_place_t at = cts_at(log, 0);
  const accrt_place_t out = cts_host(words);
  OK(accrt_stream_fill(cts->stream, &at, 64, 0, 4));
  const accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(log, 0), cts_arg_scalar(5)};
  OK(launch(cts, "append", 1, 1, 1, arguments, 2));
  OK(accrt_stream_copy(cts->stream, &at, &out, 8));
  accrt_buffer_release(log);
  accrt_kernel_pack_release(cts->pack);
  cts->pack = NULL;
  OK(accrt_semaphore_signal(gate, 1));
  cts_sync(cts->stream);
  assert_int_equal(words[1], 5);
  accrt_semaphore_release(gate);
}

static void test_recovery_after_a_failing_kernel(void** state) {
  cts_t* cts = *state;
  const accrt_kernel_argument_t arguments[2] = {cts_arg_scalar(13), cts_arg_scalar(2)};
  for (int i = 0; i < 5; ++i) {
    OK(launch(cts, "fail_at", 4, 1, 1, arguments, 2));
    FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
    OK(accrt_stream_reset(cts->stream));
    OK(launch(cts, "nothing", 4, 1, 1, NULL, 0));
    cts_sync(cts->stream);
  }
}

/* ---- What must be refused or fail ---- */

static void test_failing_kernel(void** state) {
  cts_t* cts = *state;
  accrt_buffer_t* log = cts_buffer(cts, 64);
  const accrt_place_t at = cts_at(log, 0);
  OK(accrt_stream_fill(cts->stream, &at, 64, 0, 4));
  cts_sync(cts->stream);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  accrt_semaphore_t* done = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1)); /* so that all is enqueued before it fails */
  const accrt_kernel_argument_t arguments[2] = {cts_arg_scalar(4242), cts_arg_scalar(6)};
  OK(launch(cts, "fail_at", 9, 1, 1, arguments, 2));
  const accrt_kernel_argument_t append[2] = {cts_arg_buffer(log, 0), cts_arg_scalar(1)};
  OK(launch(cts, "append", 1, 1, 1, append, 2));
  OK(accrt_stream_signal(cts->stream, done, 1));
  OK(accrt_semaphore_signal(gate, 1));
  FAILS(POISONED, accrt_semaphore_wait(done, 1, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(cts->stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.driver_code, 4242);
  assert_true(error.submission != 0);
  assert_non_null(strstr(error.message, "fail_at"));
  assert_non_null(strstr(error.message, "(6, 0, 0)"));
  assert_non_null(strstr(error.message, "told to fail with 4242"));
  OK(accrt_semaphore_error(done, &error));
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  OK(accrt_stream_reset(cts->stream));
  uint32_t length = 9;
  cts_download(cts, log, 0, &length, 4);
  assert_int_equal(length, 0); /* what was behind it did not run */
  accrt_buffer_release(log);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(done);
}

static void test_failure_stays_in_its_stream(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* other = cts_stream(cts);
  const accrt_kernel_argument_t arguments[2] = {cts_arg_scalar(1), cts_arg_scalar(0)};
  OK(launch(cts, "fail_at", 1, 1, 1, arguments, 2));
  FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  const uint32_t grid[3] = {3, 1, 1};
  OK(accrt_stream_launch(other, cts_kernel(cts, "nothing"), grid, NULL, 0, CTS_ARGUMENT_SIZE));
  cts_sync(other);
  FAILS(POISONED, launch(cts, "nothing", 1, 1, 1, NULL, 0));
  OK(accrt_stream_reset(cts->stream));
  accrt_stream_release(other);
}

static void test_argument_count(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, all.arguments, 8));
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, NULL, 0));
  FAILS(INVALID_ARGUMENT, launch(cts, "nothing", 1, 1, 1, all.arguments, 1));
  end_everything(&all);
}

static void test_argument_kind(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  all.arguments[4].kind = ACCRT_KERNEL_PARAM_BUFFER;
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  MESSAGE_HAS("wide"); /* names the parameter */
  all.arguments[4].kind = 99;
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  end_everything(&all);
}

static void test_missing_buffer(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  all.arguments[0].buffer = NULL;
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  MESSAGE_HAS("buffer");
  end_everything(&all);
}

static void test_range_beyond_the_buffer(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  all.arguments[0].offset_bytes = 257;
  FAILS(OUT_OF_RANGE, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  all.arguments[0].offset_bytes = 0;
  all.arguments[0].size_bytes = 257;
  FAILS(OUT_OF_RANGE, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  end_everything(&all);
}

static void test_tensor_without_shape(void** state) {
  cts_t* cts = *state;
  everything_t all;
  make_everything(cts, &all);
  all.arguments[1].tensor = NULL;
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  MESSAGE_HAS("tensor");
  all.arguments[1].tensor = &all.tensor;
  all.tensor.rank = ACCRT_KERNEL_MAX_RANK + 1;
  FAILS(INVALID_ARGUMENT, launch(cts, "everything", 1, 1, 1, all.arguments, 9));
  end_everything(&all);
}

static void test_binding_outside_of_commands(void** state) {
  cts_t* cts = *state;
  const accrt_kernel_argument_t arguments[2] = {cts_arg_binding(0, 0, 64), cts_arg_scalar(1)};
  assert_int_not_equal(launch(cts, "append", 1, 1, 1, arguments, 2), ACCRT_OK);
}

static void test_argument_element_size(void** state) {
  cts_t* cts = *state;
  const uint32_t grid[3] = {1, 1, 1};
  accrt_buffer_t* log = cts_buffer(cts, 64);
  const accrt_kernel_argument_t arguments[3] = {cts_arg_buffer(log, 0), cts_arg_scalar(5)};
  FAILS(INVALID_ARGUMENT, accrt_stream_launch(cts->stream, cts_kernel(cts, "append"), grid,
                                              arguments, 2, CTS_ARGUMENT_SIZE + 8));
  accrt_buffer_release(log);
}

static void test_unknown_kernel(void** state) {
  cts_t* cts = *state;
  accrt_kernel_t* kernel = cts_kernel(cts, "nothing");
  FAILS(NOT_FOUND, accrt_kernel_pack_find(cts->pack, "nothin", &kernel));
  assert_null(kernel);
  MESSAGE_HAS("nothing"); /* a near name */
  FAILS(OUT_OF_RANGE, accrt_kernel_pack_kernel(cts->pack, 1000, &kernel));
}

static const accrt_kernel_pack_table_t* refuse(uint32_t max_abi,
                                               const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return NULL;
}

static accrt_kernel_pack_table_t broken_table;
static accrt_kernel_def_t broken_kernels[2];
static accrt_kernel_param_t broken_params[2];

static int32_t never_called(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 1;
}

static const accrt_kernel_pack_table_t* give_broken(uint32_t max_abi,
                                                    const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &broken_table;
}

/* A good pack of two kernels, the first with two parameters; each test breaks one thing. */
static void make_good_pack(void) {
  memset(&broken_table, 0, sizeof broken_table);
  memset(broken_kernels, 0, sizeof broken_kernels);
  memset(broken_params, 0, sizeof broken_params);
  for (uint32_t i = 0; i < 2; ++i) {
    broken_params[i] = (accrt_kernel_param_t){.name = i == 0 ? "a" : "b",
                                              .kind = ACCRT_KERNEL_PARAM_SCALAR,
                                              .align_log2 = 3,
                                              .offset_bytes = 8 * i,
                                              .size_bytes = 8};
    broken_kernels[i] = (accrt_kernel_def_t){.struct_size = sizeof broken_kernels[i],
                                             .name = i == 0 ? "one" : "two",
                                             .entry = never_called};
  }
  broken_kernels[0].params = broken_params;
  broken_kernels[0].param_count = 2;
  broken_kernels[0].params_size_bytes = 16;
  broken_table = (accrt_kernel_pack_table_t){.struct_size = sizeof broken_table,
                                             .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                             .name = "broken",
                                             .kernels = broken_kernels,
                                             .kernel_count = 2,
                                             .kernel_size_bytes = sizeof broken_kernels[0]};
}

static void test_pack_version(void** state) {
  cts_t* cts = *state;
  accrt_kernel_pack_t* pack = NULL;
  FAILS(VERSION_MISMATCH, accrt_kernel_pack_register(cts->instance, refuse, &pack));
  make_good_pack();
  broken_table.abi_version = (ACCRT_KERNEL_ABI_MAJOR + 1) << 16;
  FAILS(VERSION_MISMATCH, accrt_kernel_pack_register(cts->instance, give_broken, &pack));
  assert_null(pack);
  make_good_pack();
  OK(accrt_kernel_pack_register(cts->instance, give_broken, &pack));
  accrt_kernel_pack_release(pack);
}

static void expect_broken(cts_t* cts, const char* what) {
  accrt_kernel_pack_t* pack = NULL;
  FAILS(INVALID_FORMAT, accrt_kernel_pack_register(cts->instance, give_broken, &pack));
  assert_null(pack);
  if (what != NULL)
    MESSAGE_HAS(what);
  make_good_pack();
}

static void test_broken_kernel_definitions(void** state) {
  cts_t* cts = *state;
  make_good_pack();
  broken_kernels[1].name = NULL;
  expect_broken(cts, NULL);
  broken_kernels[1].name = "bad name";
  expect_broken(cts, "name");
  broken_kernels[1].name = "one";
  expect_broken(cts, "one");
  broken_kernels[1].entry = NULL;
  expect_broken(cts, "two");
  broken_kernels[0].param_count = ACCRT_KERNEL_MAX_PARAMS + 1;
  expect_broken(cts, "one");
  broken_kernels[0].params = NULL;
  expect_broken(cts, "one");
  broken_kernels[0].params_size_bytes = ACCRT_KERNEL_MAX_PARAMS_BYTES + 1;
  expect_broken(cts, "one");
}

static void test_broken_parameters(void** state) {
  cts_t* cts = *state;
  make_good_pack();
  broken_params[1].offset_bytes = 4; /* overlaps */
  expect_broken(cts, "one");
  broken_params[1].offset_bytes = 16; /* outside of the block */
  expect_broken(cts, "one");
  broken_params[1].offset_bytes = UINT32_MAX;
  expect_broken(cts, "one");
  broken_params[1].size_bytes = 3;
  expect_broken(cts, "one");
  broken_params[1].kind = 77;
  expect_broken(cts, "one");
  broken_params[0].name = NULL;
  expect_broken(cts, "one");
  broken_params[0].kind = ACCRT_KERNEL_PARAM_BUFFER;
  broken_params[0].access = 9;
  expect_broken(cts, "one");
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  const uint32_t grid[3] = {1, 1, 1};
  accrt_kernel_pack_t* pack = NULL;
  FAILS(INVALID_ARGUMENT, accrt_stream_launch(cts->stream, NULL, grid, NULL, 0, CTS_ARGUMENT_SIZE));
  FAILS(INVALID_ARGUMENT, accrt_stream_launch(cts->stream, cts_kernel(cts, "nothing"), NULL, NULL,
                                              0, CTS_ARGUMENT_SIZE));
  FAILS(INVALID_ARGUMENT, accrt_kernel_pack_register(cts->instance, NULL, &pack));
  FAILS(INVALID_ARGUMENT, accrt_kernel_pack_register(NULL, cts_pack_query, &pack));
  FAILS(INVALID_ARGUMENT, accrt_kernel_info(NULL, NULL));
  accrt_kernel_pack_release(NULL);
}

static void test_pack_policy(void** state) {
  cts_t* cts = *state;
  accrt_kernel_pack_t* pack = NULL;
  /* The suite's instance allows no machine code from outside. */
  FAILS(UNTRUSTED, accrt_kernel_pack_open(cts->instance, "/tmp/any.so", &pack));
  FAILS(UNTRUSTED, accrt_kernel_pack_load(cts->instance, "ELF", 3, "any", &pack));
  assert_null(pack);
}

const cts_test_t cts_launch_tests[] = {
    CTS_P(test_pack_reflection, CTS_NEEDS_KERNELS),
    CTS_P(test_every_parameter_kind, CTS_NEEDS_KERNELS),
    CTS_P(test_host_pointers, CTS_NEEDS_HOST_KERNELS | CTS_NEEDS_HOST_MEMORY),
    CTS_P(test_grids, CTS_NEEDS_KERNELS),
    CTS_P(test_launches_keep_order, CTS_NEEDS_KERNELS),
    CTS_P(test_serial_kernel, CTS_NEEDS_HOST_KERNELS),
    CTS_P(test_kernel_surroundings, CTS_NEEDS_HOST_KERNELS),
    CTS_P(test_arguments_are_copied, CTS_NEEDS_KERNELS),
    CTS_P(test_buffers_and_pack_released_in_flight, CTS_NEEDS_KERNELS),
    CTS_P(test_recovery_after_a_failing_kernel, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_failing_kernel, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_failure_stays_in_its_stream, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_argument_count, CTS_NEEDS_KERNELS),
    CTS_N(test_argument_kind, CTS_NEEDS_KERNELS),
    CTS_N(test_missing_buffer, CTS_NEEDS_KERNELS),
    CTS_N(test_range_beyond_the_buffer, CTS_NEEDS_KERNELS),
    CTS_N(test_tensor_without_shape, CTS_NEEDS_KERNELS),
    CTS_N(test_binding_outside_of_commands, CTS_NEEDS_KERNELS),
    CTS_N(test_argument_element_size, CTS_NEEDS_KERNELS),
    CTS_N(test_unknown_kernel, CTS_NEEDS_KERNELS),
    CTS_N(test_pack_version, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_broken_kernel_definitions, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_broken_parameters, CTS_NEEDS_HOST_KERNELS),
    CTS_N(test_null_arguments, CTS_NEEDS_KERNELS),
    CTS_N(test_pack_policy, CTS_NEEDS_HOST_KERNELS),
    CTS_END,
};
