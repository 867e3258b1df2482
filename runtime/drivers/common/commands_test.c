/* Launches and recorded commands: packing, predecessors, bindings, checks at recording and at
 * submission, running on the caller. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>

#include "runtime/core/pack.h"

#define FOREVER ACCRT_TIMEOUT_INFINITE
#define ARG_BYTES ((uint32_t)sizeof(accrt_kernel_argument_t))
#define BINDING_BYTES ((uint32_t)sizeof(accrt_binding_t))

/* ---- A pack ---- */

typedef struct everything {
  const uint32_t* in;
  uint32_t* out;
  accrt_kernel_tensor_t view;
  int64_t symbol;
  uint32_t count;
  uint16_t half;
  uint8_t byte;
  uint8_t padding;
  double real;
} everything_t;

/* out[i] = in[i] + symbol + half + byte + view.data[0] + real, one element for each workgroup in
 * x. */
static int32_t run_everything(const accrt_kernel_environment_t* environment,
                              const accrt_kernel_dispatch_t* dispatch,
                              const accrt_kernel_workgroup_t* group) {
  (void)environment;
  const everything_t* p = dispatch->params;
  const uint32_t i = group->workgroup_id[0];
  if (i >= p->count)
    return 0;
  if (p->view.rank != 2 || p->view.shape[1] != 3 || p->view.dtype != ACCRT_DTYPE_U32)
    return 5;
  p->out[i] = (p->in != NULL ? p->in[i] : 0) + (uint32_t)p->symbol + p->half + p->byte +
              *(uint32_t*)p->view.data + (uint32_t)p->real;
  return 0;
}

typedef struct add_params {
  uint32_t* data;
  uint32_t amount;
} add_params_t;

static int32_t run_add(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)group;
  const add_params_t* p = dispatch->params;
  *p->data = *p->data * 3 + p->amount;
  return 0;
}

static int32_t run_fail(const accrt_kernel_environment_t* environment,
                        const accrt_kernel_dispatch_t* dispatch,
                        const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)dispatch;
  (void)snprintf(group->message, group->message_capacity_bytes,
                 "workgroup %u\ndoes not want to\x1b[0m", group->workgroup_id[0]);
  return -42;
}

static const accrt_kernel_param_t everything_params[] = {
    {"in", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL, 3,
     offsetof(everything_t, in), 8, 0},
    ACCRT_KERNEL_PARAM(everything_t, out, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(everything_t, view, TENSOR, READ),
    ACCRT_KERNEL_PARAM(everything_t, symbol, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(everything_t, count, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(everything_t, half, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(everything_t, byte, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(everything_t, real, SCALAR, NONE),
};
static const accrt_kernel_param_t add_param_list[] = {
    ACCRT_KERNEL_PARAM(add_params_t, data, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(add_params_t, amount, SCALAR, NONE),
};
typedef struct hidden_params {
  uint64_t hidden;
} hidden_params_t;
static const accrt_kernel_param_t hidden_param_list[] = {
    ACCRT_KERNEL_PARAM(hidden_params_t, hidden, HIDDEN, NONE)};

#define DEF(name_, entry_, params_, type_)                                                         \
  {                                                                                                \
    .struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = (name_), .entry = (entry_),       \
    .params = (params_), .param_count = (uint32_t)(sizeof(params_) / sizeof *(params_)),           \
    .params_size_bytes = (uint32_t)sizeof(type_)                                                   \
  }
static const accrt_kernel_def_t definitions[] = {
    DEF("everything", run_everything, everything_params, everything_t),
    DEF("add", run_add, add_param_list, add_params_t),
    {.struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = "fail", .entry = run_fail},
};
/* Packs may not have such a kernel; whoever makes kernels of device modules might. */
static const accrt_kernel_def_t hidden_definition =
    DEF("hidden", run_fail, hidden_param_list, hidden_params_t);
static const accrt_kernel_pack_table_t table = {.struct_size = (uint32_t)sizeof table,
                                                .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                .name = "commands_test",
                                                .kernels = definitions,
                                                .kernel_count = 3,
                                                .kernel_size_bytes =
                                                    (uint32_t)sizeof definitions[0]};
static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &table;
}

/* ---- Surroundings ---- */

static test_world_t world;
static accrt_stream_t* stream;
static accrt_pool_t* pool;
static accrt_kernel_pack_t* pack;
static accrt_kernel_t *everything, *add, *fails;
static const uint32_t one[3] = {1, 1, 1};

static int open_all(int mode) {
  if (test_world_open(&world, mode) != ACCRT_OK)
    return 1;
  if (accrt_stream_create(world.device, NULL, &stream) != ACCRT_OK)
    return 1;
  if (accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool) != ACCRT_OK)
    return 1;
  if (accrt_kernel_pack_register(world.instance, query, &pack) != ACCRT_OK) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    print_error("%s\n", error.message);
    return 1;
  }
  if (accrt_kernel_pack_find(pack, "everything", &everything) != ACCRT_OK)
    return 1;
  if (accrt_kernel_pack_find(pack, "add", &add) != ACCRT_OK)
    return 1;
  return accrt_kernel_pack_find(pack, "fail", &fails);
}

static int set_up(void** state) {
  (void)state;
  return open_all(TEST_DRIVER_SYNCHRONOUS);
}

static int set_up_thread(void** state) {
  (void)state;
  return open_all(TEST_DRIVER_THREAD);
}

static int tear_down(void** state) {
  (void)state;
  accrt_kernel_pack_release(pack);
  accrt_stream_release(stream);
  return (int)test_world_close(&world);
}

static accrt_buffer_t* make_buffer(uint64_t size_bytes) {
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static uint32_t* words_of(accrt_buffer_t* buffer) {
  void* pointer;
  assert_int_equal(accrt_buffer_map(buffer, 0, 0, &pointer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  return pointer;
}

static accrt_error_t last_error(void) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error;
}

static void assert_says(const char* text) {
  const accrt_error_t error = last_error();
  if (strstr(error.message, text) == NULL)
    fail_msg("'%s' is not in '%s'", text, error.message);
}

static accrt_kernel_argument_t buffer_argument(uint32_t kind, accrt_buffer_t* buffer,
                                               uint64_t offset_bytes, uint64_t size_bytes) {
  const accrt_kernel_argument_t argument = {.kind = kind,
                                            .binding = ACCRT_BINDING_NONE,
                                            .buffer = buffer,
                                            .offset_bytes = offset_bytes,
                                            .size_bytes = size_bytes};
  return argument;
}

static accrt_kernel_argument_t bound_argument(uint32_t binding, uint64_t offset_bytes,
                                              uint64_t size_bytes) {
  const accrt_kernel_argument_t argument = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                            .binding = binding,
                                            .offset_bytes = offset_bytes,
                                            .size_bytes = size_bytes};
  return argument;
}

static accrt_kernel_argument_t value_argument(uint32_t kind, uint64_t value) {
  const accrt_kernel_argument_t argument = {
      .kind = kind, .binding = ACCRT_BINDING_NONE, .value = value};
  return argument;
}

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
                   ACCRT_ERROR_INVALID_ARGUMENT);
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
                   ACCRT_ERROR_INVALID_ARGUMENT);
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
      cmocka_unit_test_setup_teardown(test_launch_packs_everything, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_measures_tensors, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_submission_measures_tensors, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_needs_sizes_of_pointers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_launch_of_nothing, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_kernel_error, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_deferred_launch, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_deferred_launch, set_up_thread, tear_down),
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
