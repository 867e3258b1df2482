/* tests/fakecuda/manners_work.c - a device at work: a stream, a kernel, an operator that may misbehave,
 * lists of them. See manners.h. */
#include "manners.h"

fakecuda_control_fn_t control;
fakecuda_count_fn_t count_of;
fakecuda_complaints_fn_t complaints;
char kernels_text[1 << 16], traits_text[1 << 16];
const uint32_t one[3] = {1, 1, 1};

void demand(const char* setting) {
  if (control(setting) != 0)
    fail_msg("the stand-in does not understand %s", setting);
}

/* ---- Checks ---- */

void check_ok(accrt_status_t status, const char* expression, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status != ACCRT_OK)
    fail_msg("line %d: %s gave %s: %s", line, expression, accrt_status_name(status), error.message);
}

void check_fails(accrt_status_t status, accrt_status_t wanted, const char* words,
                 const char* expression, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status == wanted && error.status == wanted && strstr(error.message, words) != NULL &&
      strchr(error.message, '\n') == NULL && operation_fits(expression, error.operation))
    return;
  fail_msg("line %d: %s gave %s in %s: %s\n  expected %s, '%s'", line, expression,
           accrt_status_name(status), error.operation, error.message, accrt_status_name(wanted),
           words);
}

/* ---- A device at work ---- */

const accrt_kernel_param_t append_params[2] = {
    ACCRT_KERNEL_PARAM(append_block_t, log, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(append_block_t, number, SCALAR, NONE)};
const accrt_kernel_def_t append_definition = {.struct_size = sizeof append_definition,
                                              .name = "append",
                                              .params = append_params,
                                              .param_count = 2,
                                              .params_size_bytes = sizeof(append_block_t),
                                              .block = {1, 1, 1}};

accrt_status_t load_text(accrt_device_t* device, const char* text, const accrt_kernel_def_t* kernel,
                         accrt_kernel_pack_t** out_pack) {
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.kind = ACCRT_MODULE_PTX;
  options.image = text;
  options.size_bytes = strlen(text) + 1;
  options.kernels = kernel;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof *kernel;
  return accrt_kernel_module_load(device, &options, out_pack);
}

int operator_mode;
CUcontext operator_context;
unsigned operator_calls;

static int32_t leave_context(void) {
  ++operator_calls;
  if (operator_mode == OPERATOR_SETS)
    return (int32_t)cuCtxSetCurrent(operator_context);
  if (operator_mode == OPERATOR_PUSHES)
    return (int32_t)cuCtxPushCurrent(operator_context);
  return 0;
}
static int32_t prepare_operator(const accrt_kernel_environment_t* environment,
                                const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  (void)call;
  *out_state = NULL;
  return leave_context();
}
static int32_t query_operator(const accrt_kernel_environment_t* environment,
                              const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  (void)environment;
  (void)call;
  *out_size_bytes = 256;
  return leave_context();
}
/* Fills the log's last word. */
static int32_t execute_operator(const accrt_kernel_environment_t* environment,
                                const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)state;
  if (operator_mode == OPERATOR_FAILS) {
    strcpy(call->message, "it will not");
    return 31;
  }
  const CUdeviceptr log = *(const uint64_t*)call->params;
  const CUresult result = cuMemsetD32Async(log + LOG_BYTES - 4, 77, 1, (CUstream)call->stream);
  return result != CUDA_SUCCESS ? (int32_t)result : leave_context();
}
static void destroy_operator(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  (void)state;
  (void)leave_context();
}

typedef struct operator_block {
  uint64_t log;
} operator_block_t;
static const accrt_kernel_param_t operator_params[] = {
    ACCRT_KERNEL_PARAM(operator_block_t, log, BUFFER, READ_WRITE)};
#define OPERATOR(name_, traits_)                                                                   \
  {                                                                                                \
    .struct_size = sizeof(accrt_operator_def_t), .traits = (traits_), .name = (name_),             \
    .params = operator_params, .param_count = 1, .params_size_bytes = 8, .device_type = 2,         \
    .query_workspace = query_operator, .prepare = prepare_operator, .execute = execute_operator,   \
    .destroy = destroy_operator                                                                    \
  }
static const accrt_operator_def_t operator_definitions[] = {
    OPERATOR("captured", ACCRT_KERNEL_TRAIT_CAPTURABLE), OPERATOR("direct", 0)};
static const accrt_kernel_pack_table_t* query_pack(uint32_t max_abi,
                                                   const accrt_kernel_environment_t* environment) {
  static const accrt_kernel_pack_table_t table = {
      .struct_size = sizeof table,
      .abi_version = ACCRT_KERNEL_ABI_VERSION,
      .name = "operators",
      .host_operators = operator_definitions,
      .host_operator_count = 2,
      .host_operator_size_bytes = sizeof operator_definitions[0],
  };
  (void)max_abi;
  (void)environment;
  return &table;
}

work_t start_with(const char* key, const char* value) {
  work_t work = {.instance = NULL};
  const accrt_option_t option = {key, value};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = key != NULL;
  options.option_size_bytes = (uint32_t)sizeof option;
  operator_mode = OPERATOR_WORKS;
  OK(accrt_instance_create(&options, &work.instance));
  OK(accrt_instance_device_by_name(work.instance, "cuda:0", &work.device));
  OK(accrt_stream_create(work.device, NULL, &work.stream));
  OK(accrt_device_pool(work.device, ACCRT_MEMORY_DEVICE, &work.pool));
  OK(accrt_buffer_create(work.pool, LOG_BYTES, NULL, &work.log));
  OK(load_text(work.device, kernels_text, &append_definition, &work.pack));
  OK(accrt_kernel_pack_find(work.pack, "append", &work.append));
  OK(accrt_kernel_pack_register(work.instance, query_pack, &work.operators));
  return work;
}

work_t start(void) {
  return start_with(NULL, NULL);
}

void finish(work_t* work) {
  accrt_buffer_release(work->log);
  accrt_kernel_pack_release(work->pack);
  accrt_kernel_pack_release(work->operators);
  accrt_stream_release(work->stream);
  accrt_instance_release(work->instance);
  if (control != NULL)
    demand("reset");
}

accrt_place_t at(accrt_buffer_t* buffer) {
  return (accrt_place_t){.buffer = buffer};
}
accrt_place_t host(void* pointer) {
  return (accrt_place_t){.pointer = pointer};
}
accrt_kernel_argument_t buffer_argument(accrt_buffer_t* buffer) {
  return (accrt_kernel_argument_t){.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                   .binding = ACCRT_BINDING_NONE,
                                   .buffer = buffer,
                                   .size_bytes = UINT64_MAX};
}
static accrt_kernel_argument_t bound_argument(uint32_t binding) {
  return (accrt_kernel_argument_t){
      .kind = ACCRT_KERNEL_PARAM_BUFFER, .binding = binding, .size_bytes = LOG_BYTES};
}
accrt_kernel_argument_t scalar_argument(uint64_t value) {
  return (accrt_kernel_argument_t){
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = value};
}

accrt_status_t launch(work_t* work, accrt_stream_t* stream, accrt_buffer_t* log) {
  const accrt_kernel_argument_t arguments[2] = {buffer_argument(log), scalar_argument(5)};
  return accrt_stream_launch(stream, work->append, one, arguments, 2, ARGUMENT_SIZE);
}
accrt_status_t clear(accrt_stream_t* stream, accrt_buffer_t* log) {
  const accrt_place_t place = at(log);
  return accrt_stream_fill(stream, &place, LOG_BYTES, 0, 4);
}
accrt_status_t synchronize(accrt_stream_t* stream) {
  return accrt_stream_synchronize(stream, PATIENCE, ACCRT_WAIT_BLOCK);
}

accrt_commands_t* record(work_t* work, uint32_t count, const char* operator_name) {
  accrt_commands_t* commands = NULL;
  OK(accrt_commands_create(work->device, count, &commands));
  for (uint32_t i = 0; i < count; ++i) {
    const accrt_kernel_argument_t arguments[2] = {bound_argument(i), scalar_argument(i)};
    OK(accrt_commands_dispatch(commands, work->append, one, arguments, 2, ARGUMENT_SIZE, NULL,
                               NULL));
  }
  if (operator_name != NULL) {
    accrt_kernel_t* operation = NULL;
    const accrt_kernel_argument_t argument = bound_argument(0);
    OK(accrt_kernel_pack_find(work->operators, operator_name, &operation));
    OK(accrt_commands_invoke(commands, operation, &argument, 1, ARGUMENT_SIZE, NULL, NULL));
  }
  return commands;
}
accrt_status_t submit(work_t* work, accrt_stream_t* stream, accrt_commands_t* commands,
                      accrt_buffer_t* const* logs, uint32_t count) {
  accrt_binding_t bindings[64];
  (void)work;
  for (uint32_t i = 0; i < count; ++i)
    bindings[i] = (accrt_binding_t){.buffer = logs[i], .size_bytes = UINT64_MAX};
  return accrt_stream_submit(stream, commands, bindings, count, BINDING_SIZE);
}
