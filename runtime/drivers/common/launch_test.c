/* Launches: packing of parameters, measured tensors, refusals, kernels that fail, deferral. */
#include "runtime/drivers/common/commands_test.h"

/* ---- Launch ---- */

static void fill_everything(accrt_kernel_argument_t arguments[8], accrt_buffer_t* in,
                            accrt_buffer_t* out, const accrt_kernel_tensor_t* view,
                            accrt_buffer_t* viewed) {
  const double real = 100;
  uint64_t real_bits;
  memcpy(&real_bits, &real, sizeof real);
  arguments[0] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, in, 0, UINT64_MAX);
  arguments[1] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, out, 4, 16);
  arguments[2] = buffer_argument(ACCRT_KERNEL_PARAM_TENSOR, viewed, 8, 12);
  arguments[2].tensor = view;
  arguments[3] = value_argument(ACCRT_KERNEL_PARAM_SYMBOL, 1000);
  arguments[4] = value_argument(ACCRT_KERNEL_PARAM_SCALAR,
                                4 | UINT64_C(0xFFFFFFFF00000000)); /* high bytes are dropped */
  arguments[5] = value_argument(ACCRT_KERNEL_PARAM_SCALAR, 20000);
  arguments[6] = value_argument(ACCRT_KERNEL_PARAM_SCALAR, 7);
  arguments[7] = value_argument(ACCRT_KERNEL_PARAM_SCALAR, real_bits);
}

static void test_launch_packs_everything(void** state) {
  (void)state;
  accrt_buffer_t *in = make_buffer(16), *out = make_buffer(32), *viewed = make_buffer(32);
  const accrt_kernel_tensor_t view = {
      .dtype = ACCRT_DTYPE_U32, .rank = 2, .shape = {1, 3}, .strides = {3, 1}};
  accrt_kernel_argument_t arguments[8];
  for (uint32_t i = 0; i < 4; ++i)
    words_of(in)[i] = i;
  memset(words_of(out), 0, 32);
  words_of(viewed)[2] = 300000;
  fill_everything(arguments, in, out, &view, viewed);
  const uint32_t grid[3] = {4, 1, 1};
  assert_int_equal(accrt_stream_launch(stream, everything, grid, arguments, 8, ARG_BYTES),
                   ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  for (uint32_t i = 0; i < 4; ++i)
    assert_int_equal(words_of(out)[i + 1], i + 321107);
  assert_int_equal(words_of(out)[0], 0);
  assert_int_equal(words_of(out)[5], 0);
  /* An optional buffer may be absent; plain pointers are taken where memory is the host's. */
  arguments[0] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, NULL, 0, UINT64_MAX);
  uint32_t plain[3] = {1, 0, 0};
  arguments[2].buffer = NULL;
  arguments[2].pointer = plain;
  arguments[2].offset_bytes = 0;
  assert_int_equal(accrt_stream_launch(stream, everything, grid, arguments, 8, ARG_BYTES),
                   ACCRT_OK);
  assert_int_equal(words_of(out)[3], 21108);
  accrt_buffer_release(in);
  accrt_buffer_release(out);
  accrt_buffer_release(viewed);
}

static void test_launch_refuses(void** state) {
  (void)state;
  accrt_buffer_t *in = make_buffer(16), *out = make_buffer(32), *viewed = make_buffer(32);
  accrt_kernel_tensor_t view = {
      .dtype = ACCRT_DTYPE_U32, .rank = 2, .shape = {1, 3}, .strides = {3, 1}};
  accrt_kernel_argument_t arguments[8];
  fill_everything(arguments, in, out, &view, viewed);
  assert_int_equal(accrt_stream_launch(NULL, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_launch(stream, NULL, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_launch(stream, everything, NULL, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_launch(stream, everything, one, NULL, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES - 8),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 7, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("has 8 parameters, 7 arguments");
  arguments[1].kind = ACCRT_KERNEL_PARAM_SCALAR;
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("parameter 'out' is BUFFER, the argument SCALAR");
  arguments[1] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, NULL, 0, UINT64_MAX);
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("'out' is not optional");
  arguments[1] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, out, 30, 3);
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("kernel 'everything': out: offset 30 + size 3 is past the buffer's 32 bytes");
  arguments[1] = buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, out, 33, UINT64_MAX);
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  fill_everything(arguments, in, out, &view, viewed);
  arguments[2].tensor = NULL;
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("'view' needs a tensor's shape");
  view.rank = 9;
  arguments[2].tensor = &view;
  assert_int_equal(accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("rank 9");
  arguments[0] = value_argument(ACCRT_KERNEL_PARAM_HIDDEN, 0);
  accrt_kernel_t hidden;
  accrt_kernel_init(&hidden, &hidden_definition, NULL, "test");
  assert_int_equal(accrt_stream_launch(stream, &hidden, one, arguments, 1, ARG_BYTES),
                   ACCRT_ERROR_UNSUPPORTED);
  /* A kernel of a device module, on a driver that loads none. */
  int module_kernel;
  accrt_kernel_init(&hidden, &hidden_definition, &module_kernel, "test");
  assert_int_equal(accrt_stream_launch(stream, &hidden, one, arguments, 1, ARG_BYTES),
                   ACCRT_ERROR_UNSUPPORTED);
  if (!TEST_DRIVER_NATIVE)
    assert_says("device module");
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_buffer_release(in);
  accrt_buffer_release(out);
  accrt_buffer_release(viewed);
}

static accrt_status_t launch_view(const accrt_kernel_tensor_t* view) {
  accrt_buffer_t *in = make_buffer(16), *out = make_buffer(32), *viewed = make_buffer(32);
  accrt_kernel_argument_t arguments[8];
  fill_everything(arguments, in, out, view, viewed); /* the view has 12 bytes */
  const accrt_status_t status =
      accrt_stream_launch(stream, everything, one, arguments, 8, ARG_BYTES);
  accrt_buffer_release(in);
  accrt_buffer_release(out);
  accrt_buffer_release(viewed);
  return status;
}

static void test_launch_measures_tensors(void** state) {
  (void)state;
  accrt_kernel_tensor_t view = {
      .dtype = ACCRT_DTYPE_U32, .rank = 2, .shape = {1, 3}, .strides = {INT64_MAX, 1}};
  assert_int_equal(launch_view(&view), ACCRT_OK);
  view.shape[0] = 2;
  assert_int_equal(launch_view(&view), ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("kernel 'everything', parameter 'view': its strides reach further");
  view.strides[0] = 1;
  assert_int_equal(launch_view(&view), ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("parameter 'view': the tensor reaches 16 bytes, its range has 12");
  assert_string_equal(last_error().operation, "accrt_stream_launch");
  view.strides[0] = -1;
  assert_int_equal(launch_view(&view), ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("4 bytes before its first element");
  view.strides[0] = 0; /* a broadcast reaches no further */
  assert_int_equal(launch_view(&view), ACCRT_OK);
  view.shape[0] = -5;
  assert_int_equal(launch_view(&view), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("parameter 'view': dimension 0 is -5");
  view.shape[0] = 1;
  view.dtype = 77;
  assert_int_equal(launch_view(&view), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("parameter 'view': its data type is 77 (no data type");
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
}

/* A recorded tensor to the end of its binding is measured when the binding is known. */
static void test_submission_measures_tensors(void** state) {
  (void)state;
  accrt_buffer_t *in = make_buffer(16), *out = make_buffer(32), *viewed = make_buffer(32);
  const accrt_kernel_tensor_t view = {
      .dtype = ACCRT_DTYPE_U32, .rank = 2, .shape = {1, 3}, .strides = {3, 1}};
  accrt_kernel_argument_t arguments[8];
  fill_everything(arguments, in, out, &view, NULL);
  arguments[2].binding = 0;
  arguments[2].size_bytes = 11;
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  assert_int_equal(
      accrt_commands_dispatch(commands, everything, one, arguments, 8, ARG_BYTES, NULL, NULL),
      ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("the tensor reaches 12 bytes, its range has 11");
  arguments[2].size_bytes = UINT64_MAX;
  assert_int_equal(
      accrt_commands_dispatch(commands, everything, one, arguments, 8, ARG_BYTES, NULL, NULL),
      ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  accrt_binding_t binding = {viewed, NULL, 0, 19};
  assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, BINDING_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("command 0 (everything): offset 8 + size 12 is past binding 0's 19 bytes");
  binding.size_bytes = 20;
  assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, BINDING_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  accrt_commands_release(commands);
  accrt_buffer_release(in);
  accrt_buffer_release(out);
  accrt_buffer_release(viewed);
}

static void test_launch_needs_sizes_of_pointers(void** state) {
  (void)state;
  uint32_t word = 1;
  accrt_kernel_argument_t arguments[2] = {
      buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, NULL, 0, UINT64_MAX),
      value_argument(ACCRT_KERNEL_PARAM_SCALAR, 1)};
  arguments[0].pointer = &word;
  assert_int_equal(accrt_stream_launch(stream, add, one, arguments, 2, ARG_BYTES),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_says("a host pointer needs a size");
  arguments[0].size_bytes = sizeof word;
  assert_int_equal(accrt_stream_launch(stream, add, one, arguments, 2, ARG_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
}

static void test_launch_of_nothing(void** state) {
  (void)state;
  const uint32_t grid[3] = {4, 0, 1};
  assert_int_equal(accrt_stream_launch(stream, fails, grid, NULL, 0, ARG_BYTES), ACCRT_OK);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
}

static void test_kernel_error(void** state) {
  (void)state;
  accrt_semaphore_t* signalled;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &signalled), ACCRT_OK);
  assert_int_equal(accrt_stream_launch(stream, fails, one, NULL, 0, ARG_BYTES), ACCRT_OK);
  const accrt_status_t signal = accrt_stream_signal(stream, signalled, 1);
  assert_true(signal == ACCRT_OK || signal == ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.driver_code, -42);
  assert_string_equal(error.operation, "fail");
  assert_string_equal(error.message, "workgroup 0 does not want to [0m"); /* one line */
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &semaphore), ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_ERROR_IO, "line\nESC \x1b"), ACCRT_OK);
  assert_int_equal(accrt_semaphore_error(semaphore, &error), ACCRT_OK);
  assert_string_equal(error.message, "line ESC  ");
  if (signal == ACCRT_OK) {
    assert_int_equal(accrt_semaphore_error(signalled, &error), ACCRT_OK);
    assert_null(strpbrk(error.message, "\n\x1b"));
  }
  accrt_semaphore_release(signalled);
  accrt_semaphore_release(semaphore);
  assert_int_equal(accrt_stream_launch(stream, fails, one, NULL, 0, ARG_BYTES),
                   ACCRT_ERROR_POISONED);
  const uint32_t grid[3] = {0, 0, 0};
  assert_int_equal(accrt_stream_launch(stream, fails, grid, NULL, 0, ARG_BYTES),
                   ACCRT_ERROR_POISONED);
}

/* A deferred launch has its own copy of the parameters, and keeps the pack. */
static void test_deferred_launch(void** state) {
  (void)state;
  accrt_buffer_t* buffer = make_buffer(16);
  *words_of(buffer) = 1;
  accrt_semaphore_t* gate;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  accrt_kernel_argument_t arguments[2] = {buffer_argument(ACCRT_KERNEL_PARAM_BUFFER, buffer, 0, 4),
                                          value_argument(ACCRT_KERNEL_PARAM_SCALAR, 5)};
  assert_int_equal(accrt_stream_launch(stream, add, one, arguments, 2, ARG_BYTES), ACCRT_OK);
  arguments[1].value = 6;
  assert_int_equal(accrt_stream_launch(stream, add, one, arguments, 2, ARG_BYTES), ACCRT_OK);
  accrt_kernel_pack_release(pack);
  pack = NULL;
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*words_of(buffer), (1 * 3 + 5) * 3 + 6);
  accrt_semaphore_release(gate);
  accrt_buffer_release(buffer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_launch_packs_everything, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_measures_tensors, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_submission_measures_tensors, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_needs_sizes_of_pointers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_of_nothing, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_kernel_error, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_deferred_launch, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_deferred_launch, set_up_thread, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
