/* tests/cts/invoke.c - host operators in recorded lists, through the public functions. A driver
 * that runs none says so when the list is made. */
#include "cts.h"

#define WORKSPACE_BYTES 1000u

typedef struct block {
  uint64_t* target;
  uint64_t amount;
} block_t;

static atomic_uint queries, prepares, executions, destructions, mistakes;
static int32_t code; /* of execute */

static void expect(bool is_right) {
  atomic_fetch_add(&mistakes, !is_right);
}

static int32_t query(const accrt_kernel_environment_t* environment,
                     const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  (void)environment;
  const block_t* block = call->params;
  atomic_fetch_add(&queries, 1);
  expect(block->amount == 3 && call->stream == NULL && call->workspace == NULL);
  *out_size_bytes = WORKSPACE_BYTES;
  return 0;
}

static int32_t prepare(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  const block_t* block = call->params;
  expect(block->amount == 3 && call->workspace == NULL);
  expect(call->workspace_size_bytes == WORKSPACE_BYTES);
  atomic_fetch_add(&prepares, 1);
  *out_state = &code;
  return 0;
}

static int32_t execute(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void* state) {
  (void)environment;
  const block_t* block = call->params;
  unsigned char* workspace = call->workspace;
  atomic_fetch_add(&executions, 1);
  const bool is_given = workspace != NULL && ((uintptr_t)workspace & 255) == 0 &&
                        call->workspace_size_bytes == WORKSPACE_BYTES;
  expect(state == &code && is_given);
  if (is_given)
    memset(workspace, 0xCD, WORKSPACE_BYTES);
  *block->target = *block->target * 31 + block->amount;
  if (code != 0)
    snprintf(call->message, call->message_capacity_bytes, "not today");
  return code;
}

static void destroy(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  expect(state == &code);
  atomic_fetch_add(&destructions, 1);
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(block_t, target, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(block_t, amount, SCALAR, NONE),
};
#define OPERATOR(name_, type_)                                                                     \
  {                                                                                                \
    .struct_size = (uint32_t)sizeof(accrt_operator_def_t), .name = name_, .params = params,        \
    .param_count = 2, .params_size_bytes = sizeof(block_t), .device_type = type_,                  \
    .query_workspace = query, .prepare = prepare, .execute = execute, .destroy = destroy           \
  }
static const accrt_operator_def_t operators[] = {OPERATOR("mixing", 0),
                                                 OPERATOR("elsewhere", 0x7F)};

static const accrt_kernel_pack_table_t* query_pack(uint32_t max_abi,
                                                   const accrt_kernel_environment_t* environment) {
  static const accrt_kernel_pack_table_t table = {
      .struct_size = sizeof table,
      .abi_version = ACCRT_KERNEL_ABI_VERSION,
      .name = "cts.operators",
      .host_operators = operators,
      .host_operator_count = 2,
      .host_operator_size_bytes = (uint32_t)sizeof(accrt_operator_def_t),
  };
  (void)max_abi;
  (void)environment;
  return &table;
}

typedef struct pack {
  accrt_kernel_pack_t* pack;
  accrt_kernel_t *mixing, *elsewhere;
} pack_t;

static pack_t open_pack(cts_t* cts) {
  pack_t pack;
  OK(accrt_kernel_pack_register(cts->instance, query_pack, &pack.pack));
  OK(accrt_kernel_pack_find(pack.pack, "mixing", &pack.mixing));
  OK(accrt_kernel_pack_find(pack.pack, "elsewhere", &pack.elsewhere));
  atomic_store(&queries, 0);
  atomic_store(&prepares, 0);
  atomic_store(&executions, 0);
  atomic_store(&destructions, 0);
  atomic_store(&mistakes, 0);
  code = 0;
  return pack;
}

/* Three times the operator, one behind the other; NULL where the driver runs none. */
static accrt_commands_t* record(cts_t* cts, const pack_t* pack) {
  accrt_commands_t* commands = NULL;
  OK(accrt_commands_create(cts->device, 1, &commands));
  for (uint32_t i = 0; i < 3; ++i) {
    const accrt_kernel_argument_t arguments[2] = {cts_arg_binding(0, 8, 8), cts_arg_scalar(3)};
    OK(accrt_commands_invoke(commands, pack->mixing, arguments, 2, CTS_ARGUMENT_SIZE, NULL, NULL));
  }
  const accrt_status_t status = accrt_commands_finalize(commands);
  if (status == ACCRT_OK)
    return commands;
  FAILS(UNSUPPORTED, status);
  MESSAGE_HAS("mixing");
  accrt_commands_release(commands);
  print_message("  the driver runs no host operators\n");
  return NULL;
}

static accrt_status_t submit(cts_t* cts, accrt_commands_t* commands, accrt_buffer_t* buffer) {
  const accrt_binding_t binding = {.buffer = buffer, .size_bytes = UINT64_MAX};
  return accrt_stream_submit(cts->stream, commands, &binding, 1, CTS_BINDING_SIZE);
}

/* ---- What must work ---- */

static void test_operators_run_in_lists(void** state) {
  cts_t* cts = *state;
  const pack_t pack = open_pack(cts);
  accrt_commands_t* commands = record(cts, &pack);
  accrt_buffer_t* buffer = cts_buffer(cts, 64);
  uint64_t words[3] = {1, 1, 1}, wanted = 1;
  cts_upload(cts, buffer, 0, words, sizeof words);
  for (uint32_t run = 1; commands != NULL && run <= 3; ++run) {
    OK(submit(cts, commands, buffer));
    cts_download(cts, buffer, 0, words, sizeof words);
    for (int i = 0; i < 3; ++i)
      wanted = wanted * 31 + 3;
    assert_int_equal(words[1], wanted);
    assert_true(words[0] == 1 && words[2] == 1);
    assert_int_equal(atomic_load(&executions), 3 * run);
    assert_int_equal(atomic_load(&prepares), 3);
    assert_int_equal(atomic_load(&destructions), 0);
  }
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
  accrt_kernel_pack_release(pack.pack);
  assert_int_equal(atomic_load(&destructions), atomic_load(&prepares));
  assert_int_equal(atomic_load(&mistakes), 0);
}

/* ---- What must be refused or fail ---- */

static void test_operators_of_other_devices(void** state) {
  cts_t* cts = *state;
  const pack_t pack = open_pack(cts);
  accrt_commands_t* commands = NULL;
  accrt_buffer_t* buffer = cts_buffer(cts, 64);
  const accrt_kernel_argument_t arguments[2] = {cts_arg_buffer(buffer, 0), cts_arg_scalar(3)};
  const uint32_t grid[3] = {1, 1, 1};
  uint32_t count = 9;
  OK(accrt_commands_create(cts->device, 0, &commands));
  FAILS(UNSUPPORTED, accrt_commands_invoke(commands, pack.elsewhere, arguments, 2,
                                           CTS_ARGUMENT_SIZE, NULL, NULL));
  MESSAGE_HAS("elsewhere");
  FAILS(INVALID_ARGUMENT,
        accrt_commands_invoke(commands, pack.mixing, arguments, 1, CTS_ARGUMENT_SIZE, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_commands_dispatch(commands, pack.mixing, grid, arguments, 2,
                                                  CTS_ARGUMENT_SIZE, NULL, NULL));
  MESSAGE_HAS("accrt_commands_invoke");
  FAILS(INVALID_ARGUMENT, accrt_commands_invoke(commands, cts_kernel(cts, "nothing"), NULL, 0,
                                                CTS_ARGUMENT_SIZE, NULL, NULL));
  OK(accrt_commands_count(commands, &count));
  assert_int_equal(count, 0);
  assert_int_equal(atomic_load(&prepares) + atomic_load(&executions), 0);
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
  accrt_kernel_pack_release(pack.pack);
}

static void test_operators_that_fail(void** state) {
  cts_t* cts = *state;
  const pack_t pack = open_pack(cts);
  accrt_commands_t* commands = record(cts, &pack);
  accrt_buffer_t* buffer = cts_buffer(cts, 64);
  if (commands != NULL) {
    code = 17;
    (void)submit(cts, commands, buffer); /* a driver may find it at once */
    FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
    accrt_error_t error = ACCRT_ERROR_INIT;
    OK(accrt_stream_error(cts->stream, &error));
    assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(error.driver_code, 17);
    assert_non_null(strstr(error.message, "mixing"));
    assert_non_null(strstr(error.message, "not today"));
    assert_int_equal(atomic_load(&executions), 1);
  }
  accrt_commands_release(commands);
  accrt_buffer_release(buffer);
  accrt_kernel_pack_release(pack.pack);
  assert_int_equal(atomic_load(&mistakes), 0);
}

const cts_test_t cts_invoke_tests[] = {
    CTS_P(test_operators_run_in_lists, CTS_NEEDS_HOST_MEMORY),
    CTS_N(test_operators_of_other_devices, CTS_NEEDS_KERNELS),
    CTS_N(test_operators_that_fail, CTS_NEEDS_HOST_MEMORY),
    CTS_END,
};
