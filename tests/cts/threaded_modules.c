/* tests/cts/threaded_modules.c - a part of threaded.c, which includes it: modules, and lists with
 * host operators. */

/* ---- Modules. An image is a table of names of functions that the driver has. ---- */

#define IMAGE_KIND 0x54424C45u
#define IMAGE_ARCH 1u
enum { FUNCTION_ADD, FUNCTION_ADD_TWICE, FUNCTIONS };

enum { IMAGE_PARAMETERS = 2 };

typedef struct image_parameter {
  uint32_t offset_bytes;
  uint32_t size_bytes;
} image_parameter_t;

typedef struct image_entry {
  char name[24];
  uint32_t function;
  uint32_t params_size_bytes;
  uint32_t block[3];
  image_parameter_t parameters[IMAGE_PARAMETERS];
  uint32_t reserved;
} image_entry_t;

typedef struct image_table {
  char magic[8]; /* "ACCRTBL" */
  uint32_t arch;
  uint32_t count;
  image_entry_t entries[1]; /* `count` of them */
} image_table_t;

struct accrt_driver_module {
  threaded_device_t* device;
  size_t size_bytes;
  image_table_t table; /* `size_bytes` long */
};

static int32_t add_times(const accrt_kernel_dispatch_t* dispatch, uint32_t times) {
  cts_add_params_t params;
  memcpy(&params, dispatch->params, sizeof params);
  *(uint32_t*)(uintptr_t)params.address += times * params.amount;
  return 0;
}

static int32_t add(const accrt_kernel_environment_t* environment,
                   const accrt_kernel_dispatch_t* dispatch,
                   const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  return add_times(dispatch, 1);
}

static int32_t add_twice(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  return add_times(dispatch, 2);
}

static const accrt_kernel_workgroup_fn_t functions[FUNCTIONS] = {add, add_twice};

static accrt_status_t check_image(const threaded_driver_t* driver,
                                  const accrt_driver_image_t* image) {
  const image_table_t* table = image->data;
  if (image->kind != IMAGE_KIND || image->size_bytes < sizeof *table ||
      memcmp(table->magic, "ACCRTBL", 8) != 0 ||
      table->count !=
          (image->size_bytes - offsetof(image_table_t, entries)) / sizeof *table->entries)
    return refuse(driver, ACCRT_ERROR_INVALID_FORMAT, "module_load", "no table of functions");
  for (uint32_t i = 0; i < table->count; ++i) {
    if (table->entries[i].function >= FUNCTIONS)
      return refuse(driver, ACCRT_ERROR_INVALID_FORMAT, "module_load", "no such function");
  }
  if (table->arch != IMAGE_ARCH)
    return refuse(driver, ACCRT_ERROR_NO_VARIANT, "module_load", "it is for another device");
  return ACCRT_OK;
}

static accrt_status_t module_load(accrt_driver_device_t* device, const accrt_driver_image_t* image,
                                  accrt_driver_module_t** out_module) {
  const threaded_driver_t* driver = driver_of(device);
  *out_module = NULL;
  const accrt_status_t status = check_image(driver, image);
  if (status != ACCRT_OK)
    return status;
  const size_t size_bytes = offsetof(accrt_driver_module_t, table) + (size_t)image->size_bytes;
  accrt_driver_module_t* module = allocate(driver->base.environment, size_bytes, "module_load");
  if (module == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  module->device = (threaded_device_t*)device;
  module->size_bytes = size_bytes;
  memcpy(&module->table, image->data, (size_t)image->size_bytes);
  *out_module = module;
  return ACCRT_OK;
}

static void module_unload(accrt_driver_module_t* module) {
  deallocate(module->device->base.driver->environment, module, module->size_bytes);
}

/* Whether a parameter that both have lies elsewhere. Their block's size says how many there are. */
static int parameters_differ(const image_entry_t* found, const accrt_kernel_def_t* declared) {
  for (uint32_t i = 0; i < declared->param_count && i < IMAGE_PARAMETERS; ++i) {
    if (found->parameters[i].offset_bytes != declared->params[i].offset_bytes ||
        found->parameters[i].size_bytes != declared->params[i].size_bytes)
      return 1;
  }
  return 0;
}

static accrt_status_t module_find(accrt_driver_module_t* module, const char* entry,
                                  const accrt_kernel_def_t* declared, void** out_module_kernel) {
  const threaded_driver_t* driver = driver_of(&module->device->base);
  *out_module_kernel = NULL;
  for (uint32_t i = 0; i < module->table.count; ++i) {
    image_entry_t* found = &module->table.entries[i];
    if (strcmp(found->name, entry) != 0)
      continue;
    if (found->params_size_bytes != declared->params_size_bytes ||
        parameters_differ(found, declared) ||
        memcmp(found->block, declared->block, sizeof found->block) != 0)
      return refuse(driver, ACCRT_ERROR_INVALID_FORMAT, "module_find",
                    "the image declares the kernel in another way");
    *out_module_kernel = found;
    return ACCRT_OK;
  }
  return refuse(driver, ACCRT_ERROR_NOT_FOUND, "module_find", "the image has no such kernel");
}

/* What null.c takes: a kernel with an entry. */
static void enter_module(const accrt_driver_kernel_t* kernel, accrt_kernel_def_t* definition,
                         accrt_driver_kernel_t* out_kernel) {
  const image_entry_t* found = kernel->module_kernel;
  *out_kernel = *kernel;
  *definition = *kernel->definition;
  definition->entry = functions[found->function];
  out_kernel->definition = definition;
}

/* ---- Host operators. This device has a context, which is current in each of their functions, and
 * a stream: its native queue. ---- */

static _Thread_local const accrt_driver_device_t* current_context;

static const accrt_driver_device_t* enter_context(const accrt_driver_device_t* device) {
  const accrt_driver_device_t* callers = current_context;
  current_context = device;
  return callers;
}

static void leave_context(const accrt_driver_device_t* callers) {
  current_context = callers;
}

/* In the place of the runtime's, in a list's own commands. */
typedef struct operation {
  accrt_driver_operator_t given; /* first: commands point to it */
  accrt_driver_device_t* device;
  void* state;
} operation_t;

static accrt_operator_call_t make_call(const void* params, uint32_t params_size_bytes,
                                       char message[MESSAGE_BYTES]) {
  message[0] = '\0';
  return (accrt_operator_call_t){.struct_size = (uint32_t)sizeof(accrt_operator_call_t),
                                 .device_type = 1, /* as device_info says */
                                 .params_size_bytes = params_size_bytes,
                                 .params = params,
                                 .message = message,
                                 .message_capacity_bytes = MESSAGE_BYTES};
}

static void describe_failure(const char* what, const accrt_operator_def_t* definition, int32_t code,
                             const char* message, accrt_error_t* out_error) {
  memset(out_error, 0, sizeof *out_error);
  out_error->struct_size = (uint32_t)sizeof *out_error;
  out_error->status = ACCRT_ERROR_KERNEL;
  out_error->driver_code = code;
  snprintf(out_error->operation, sizeof out_error->operation, "%s", what);
  snprintf(out_error->message, sizeof out_error->message, "operator '%s' returned %d%s%s",
           definition->name, code, message[0] == '\0' ? "" : ": ", message);
}

static accrt_status_t operator_workspace(accrt_driver_device_t* device,
                                         const accrt_driver_operator_t* operation,
                                         const void* params, uint32_t params_size_bytes,
                                         uint64_t* out_size_bytes) {
  *out_size_bytes = 0;
  const accrt_operator_def_t* definition = operation->definition;
  if (definition->query_workspace == NULL)
    return ACCRT_OK;
  char message[MESSAGE_BYTES];
  const accrt_operator_call_t call = make_call(params, params_size_bytes, message);
  const accrt_driver_device_t* callers = enter_context(device);
  const int32_t code = definition->query_workspace(operation->environment, &call, out_size_bytes);
  leave_context(callers);
  if (code == 0)
    return ACCRT_OK;
  *out_size_bytes = 0;
  accrt_error_t error;
  describe_failure("query_workspace", definition, code, message, &error);
  return report(driver_of(device), &error);
}

static accrt_status_t prepare_operator(accrt_driver_device_t* device,
                                       const accrt_driver_invoke_t* invoke,
                                       operation_t** out_operation) {
  const threaded_driver_t* driver = driver_of(device);
  operation_t* operation = allocate(driver->base.environment, sizeof *operation, "list_create");
  *out_operation = NULL;
  if (operation == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  operation->given = *invoke->operation;
  operation->device = device;
  const accrt_operator_def_t* definition = operation->given.definition;
  int32_t code = 0;
  char message[MESSAGE_BYTES];
  if (definition->prepare != NULL) {
    accrt_operator_call_t call = make_call(invoke->params, invoke->params_size_bytes, message);
    call.workspace_size_bytes = invoke->workspace.size_bytes.constant;
    const accrt_driver_device_t* callers = enter_context(device);
    code = definition->prepare(operation->given.environment, &call, &operation->state);
    leave_context(callers);
  }
  if (code == 0) {
    *out_operation = operation;
    return ACCRT_OK;
  }
  accrt_error_t error;
  describe_failure("prepare", definition, code, message, &error);
  deallocate(driver->base.environment, operation, sizeof *operation);
  return report(driver, &error);
}

static void destroy_operator(operation_t* operation) {
  const accrt_operator_def_t* definition = operation->given.definition;
  if (definition->prepare != NULL && definition->destroy != NULL) {
    const accrt_driver_device_t* callers = enter_context(operation->device);
    definition->destroy(operation->given.environment, operation->state);
    leave_context(callers);
  }
  deallocate(operation->device->driver->environment, operation, sizeof *operation);
}

/* Fills that an operator enqueues run behind it, before all that follows it. */
static accrt_status_t execute_operator(threaded_queue_t* queue,
                                       const accrt_driver_command_t* command,
                                       const accrt_driver_submission_t* submission,
                                       accrt_error_t* out_error) {
  const accrt_driver_invoke_t* invoke = &command->as.invoke;
  const operation_t* operation = (const operation_t*)invoke->operation;
  _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  const accrt_driver_dispatch_t block = {.params = invoke->params,
                                         .params_size_bytes = invoke->params_size_bytes,
                                         .patch_count = invoke->patch_count,
                                         .patches = invoke->patches};
  fill_params(&block, submission, params);
  char message[MESSAGE_BYTES];
  accrt_operator_call_t call = make_call(params, invoke->params_size_bytes, message);
  call.stream = queue->native;
  call.submission = submission->number;
  call.workspace_size_bytes = value_of(&invoke->workspace.size_bytes, submission);
  if (invoke->workspace.binding != ACCRT_DRIVER_NONE)
    call.workspace = pointer_of(&invoke->workspace, submission);
  const accrt_driver_device_t* callers = enter_context(queue->base.device);
  queue->native->inner_count = 0;
  queue->native->takes_inner = 1;
  const int32_t code =
      operation->given.definition->execute(operation->given.environment, &call, operation->state);
  queue->native->takes_inner = 0;
  leave_context(callers);
  if (code == 0)
    return ACCRT_OK;
  message[MESSAGE_BYTES - 1] = '\0';
  describe_failure("execute", operation->given.definition, code, message, out_error);
  out_error->submission = submission->number;
  return ACCRT_ERROR_KERNEL;
}

static int32_t enqueue_fill(void* stream, uint64_t address, uint64_t size_bytes,
                            unsigned char byte) {
  native_t* native = stream;
  if (native == NULL || !native->takes_inner || native->inner_count == INNER_FILLS)
    return 1;
  native->inner[native->inner_count++] = (accrt_driver_fill_t){
      .target = {.binding = ACCRT_DRIVER_NONE,
                 .offset = {.constant = address, .scalar = ACCRT_DRIVER_NONE},
                 .size_bytes = {.constant = size_bytes, .scalar = ACCRT_DRIVER_NONE}},
      .pattern = byte,
      .pattern_bytes = 1};
  return 0;
}

static accrt_status_t run_operator(threaded_queue_t* queue, const accrt_driver_command_t* command,
                                   const accrt_driver_submission_t* submission,
                                   accrt_error_t* out_error) {
  const accrt_driver_environment_t* environment = queue->base.device->driver->environment;
  const uint64_t begin_ns = environment->tracing ? now_ns() : 0;
  const accrt_status_t status = execute_operator(queue, command, submission, out_error);
  for (uint32_t i = 0; i < queue->native->inner_count; ++i)
    run_fill(&queue->native->inner[i], submission);
  queue->native->inner_count = 0;
  if (environment->tracing)
    trace_command(environment, command, submission, status, begin_ns);
  return status;
}

/* ---- Lists ---- */

static void threaded_list_destroy(accrt_driver_list_t* list) {
  for (uint32_t i = 0; i < list->command_count; ++i) {
    if (list->commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR)
      destroy_operator((operation_t*)(uintptr_t)list->commands[i].as.invoke.operation);
  }
  list_destroy(list);
}

static accrt_status_t prepare_operators(accrt_driver_list_t* list,
                                        const accrt_driver_list_info_t* info) {
  for (uint32_t i = 0; i < info->command_count; ++i) {
    if (info->commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)
      continue;
    accrt_driver_command_t command = info->commands[i];
    operation_t* operation = NULL;
    const accrt_status_t status = prepare_operator(list->device, &command.as.invoke, &operation);
    if (status != ACCRT_OK)
      return status;
    command.as.invoke.operation = &operation->given;
    if (command.name == NULL)
      command.name = operation->given.definition->name;
    list->commands[i] = command;
  }
  return ACCRT_OK;
}

/* null.c makes the list, with markers where operators will be. */
static accrt_status_t threaded_list_create(accrt_driver_device_t* device,
                                           const accrt_driver_list_info_t* info,
                                           accrt_driver_list_t** out_list) {
  *out_list = NULL;
  const accrt_driver_environment_t* environment = device->driver->environment;
  const size_t size_bytes = (info->command_count + 1) * sizeof *info->commands;
  accrt_driver_command_t* commands = allocate(environment, size_bytes, "list_create");
  if (commands == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  accrt_driver_list_info_t own = *info;
  own.commands = commands;
  for (uint32_t i = 0; i < info->command_count; ++i) {
    commands[i] = info->commands[i];
    if (commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR)
      commands[i].opcode = ACCRT_DRIVER_COMMAND_MARKER;
  }
  accrt_driver_list_t* list = NULL;
  accrt_status_t status = list_create(device, &own, &list);
  deallocate(environment, commands, size_bytes);
  if (status != ACCRT_OK)
    return status;
  status = prepare_operators(list, info);
  if (status != ACCRT_OK) {
    threaded_list_destroy(list);
    return status;
  }
  *out_list = list;
  return ACCRT_OK;
}
