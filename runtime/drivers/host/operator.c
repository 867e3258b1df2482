/* runtime/drivers/host/operator.c - host operators in command lists: each becomes a dispatch of one
 * workgroup whose kernel calls the operator. Prepared when the list is made, destroyed with it. It
 * may not know how lists run.
 *
 * The dispatch's block is a header (which operator, where its workspace is) and then the operator's
 * own block, so that addresses, values and workspace are patched as any other dispatch's are.
 */
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

#define DEVICE_TYPE_CPU 1u /* as DLPack numbers them */
#define MESSAGE_BYTES 256u

/* One operator of a list. Its address is in the block's header. */
struct host_operation {
  accrt_driver_invoke_t invoke; /* the array of commands goes, what it points to stays */
  void* state;
  bool prepared;
  accrt_mutex_t mutex; /* one thread at a time per state, as the operator is promised */
  accrt_kernel_def_t definition;
  accrt_driver_kernel_t kernel;
  unsigned char* params;         /* header and the operator's block */
  accrt_driver_patch_t* patches; /* the operator's, moved behind the header, and the workspace */
};

typedef struct header {
  host_operation_t* operation;
  void* workspace;
} header_t;
_Static_assert(sizeof(header_t) == 16, "the operator's block stays 16-aligned");

static const accrt_operator_def_t* definition_of(const host_operation_t* operation) {
  return operation->invoke.operation->definition;
}

static accrt_operator_call_t make_call(const host_operation_t* operation, const void* params) {
  return (accrt_operator_call_t){.struct_size = (uint32_t)sizeof(accrt_operator_call_t),
                                 .device_type = DEVICE_TYPE_CPU,
                                 .params_size_bytes = operation->invoke.params_size_bytes,
                                 .params = params,
                                 .workspace_size_bytes =
                                     operation->invoke.workspace.size_bytes.constant};
}

/* The kernel: one workgroup, which is the operator. */
static int32_t run_operator(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  const header_t* header = dispatch->params;
  host_operation_t* operation = header->operation;
  accrt_operator_call_t call = make_call(operation, header + 1);
  call.workspace = header->workspace;
  call.submission = dispatch->submission;
  call.message = workgroup->message;
  call.message_capacity_bytes = workgroup->message_capacity_bytes;
  accrt_mutex_lock(&operation->mutex);
  const int32_t code = definition_of(operation)->execute(environment, &call, operation->state);
  accrt_mutex_unlock(&operation->mutex);
  return code;
}

static accrt_status_t prepare(const host_device_t* device, host_operation_t* operation) {
  const accrt_operator_def_t* definition = definition_of(operation);
  if (definition->prepare != NULL) {
    char message[MESSAGE_BYTES] = "";
    accrt_operator_call_t call = make_call(operation, operation->invoke.params);
    call.message = message;
    call.message_capacity_bytes = sizeof message;
    const int32_t code =
        definition->prepare(operation->kernel.environment, &call, &operation->state);
    message[sizeof message - 1] = '\0';
    if (code != 0) {
      return accrt_host_fail(device->environment, ACCRT_ERROR_KERNEL, code, NULL, "list_create",
                             "operator '%s': prepare gave %d%s%s", definition->name, (int)code,
                             message[0] != '\0' ? ": " : "", message);
    }
  }
  operation->prepared = true;
  return ACCRT_OK;
}

static size_t params_bytes(const accrt_driver_invoke_t* invoke) {
  return sizeof(header_t) + invoke->params_size_bytes;
}

/* Header and block, and the patches of both. */
static accrt_status_t make_block(const host_device_t* device, host_operation_t* operation) {
  const accrt_driver_invoke_t* invoke = &operation->invoke;
  ACCRT_TRY(accrt_alloc(device->allocator, params_bytes(invoke), (void**)&operation->params));
  ACCRT_TRY(accrt_alloc_array(device->allocator, (size_t)invoke->patch_count + 1,
                              sizeof *operation->patches, (void**)&operation->patches));
  const header_t header = {operation, NULL};
  memcpy(operation->params, &header, sizeof header);
  if (invoke->params_size_bytes != 0)
    memcpy(operation->params + sizeof header, invoke->params, invoke->params_size_bytes);
  for (uint32_t i = 0; i < invoke->patch_count; ++i) {
    operation->patches[i] = invoke->patches[i];
    operation->patches[i].offset_bytes += (uint32_t)sizeof header;
  }
  accrt_driver_patch_t* last = &operation->patches[invoke->patch_count];
  last->kind = ACCRT_DRIVER_PATCH_ADDRESS;
  last->offset_bytes = (uint32_t)offsetof(header_t, workspace);
  last->size_bytes = 8;
  last->range = invoke->workspace;
  last->value.scalar = ACCRT_DRIVER_NONE;
  return ACCRT_OK;
}

bool accrt_host_is_operator(accrt_kernel_workgroup_fn_t entry) {
  return entry == run_operator;
}

/* Makes a command that runs the operator. */
static accrt_status_t translate(const host_device_t* device, const accrt_driver_command_t* source,
                                host_operation_t* operation, accrt_driver_command_t* out_command) {
  const accrt_driver_invoke_t* invoke = &source->as.invoke;
  operation->invoke = *invoke;
  accrt_mutex_init(&operation->mutex, ACCRT_LOCK_HOST_OPERATOR);
  operation->definition =
      (accrt_kernel_def_t){.struct_size = (uint32_t)sizeof operation->definition,
                           .name = invoke->operation->definition->name,
                           .entry = run_operator,
                           .params_size_bytes = (uint32_t)params_bytes(invoke)};
  operation->kernel = (accrt_driver_kernel_t){.definition = &operation->definition,
                                              .environment = invoke->operation->environment};
  ACCRT_TRY(make_block(device, operation));
  ACCRT_TRY(prepare(device, operation));
  const accrt_driver_value_t one = {.constant = 1, .scalar = ACCRT_DRIVER_NONE};
  const bool has_workspace = invoke->workspace.binding != ACCRT_DRIVER_NONE;
  *out_command = *source;
  out_command->opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  out_command->as.dispatch =
      (accrt_driver_dispatch_t){.kernel = &operation->kernel,
                                .grid = {one, one, one},
                                .params = operation->params,
                                .params_size_bytes = operation->definition.params_size_bytes,
                                .patch_count = invoke->patch_count + has_workspace,
                                .patches = operation->patches};
  return ACCRT_OK;
}

accrt_status_t accrt_host_operators_create(const host_device_t* device,
                                           const accrt_driver_command_t* commands,
                                           uint32_t command_count,
                                           host_operators_t* out_operators) {
  *out_operators = (host_operators_t){.command_count = command_count};
  for (uint32_t i = 0; i < command_count; ++i)
    out_operators->count += commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR;
  if (out_operators->count == 0)
    return ACCRT_OK;
  accrt_status_t status =
      accrt_alloc_array(device->allocator, command_count, sizeof *out_operators->commands,
                        (void**)&out_operators->commands);
  if (status == ACCRT_OK) {
    status =
        accrt_alloc_array(device->allocator, out_operators->count,
                          sizeof *out_operators->operations, (void**)&out_operators->operations);
  }
  uint32_t next = 0;
  for (uint32_t i = 0; i < command_count && status == ACCRT_OK; ++i) {
    out_operators->commands[i] = commands[i];
    if (commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR) {
      status = translate(device, &commands[i], &out_operators->operations[next++],
                         &out_operators->commands[i]);
    }
  }
  return status;
}

void accrt_host_operators_destroy(const host_device_t* device, host_operators_t* operators) {
  for (uint32_t i = 0; operators->operations != NULL && i < operators->count; ++i) {
    host_operation_t* operation = &operators->operations[i];
    if (operation->invoke.operation == NULL)
      continue; /* never begun */
    const accrt_operator_def_t* definition = definition_of(operation);
    if (operation->prepared && definition->prepare != NULL && definition->destroy != NULL)
      definition->destroy(operation->kernel.environment, operation->state);
    accrt_free_array(device->allocator, operation->patches,
                     (size_t)operation->invoke.patch_count + 1, sizeof *operation->patches);
    accrt_free(device->allocator, operation->params, params_bytes(&operation->invoke));
  }
  accrt_free_array(device->allocator, operators->operations, operators->count,
                   sizeof *operators->operations);
  accrt_free_array(device->allocator, operators->commands, operators->command_count,
                   sizeof *operators->commands);
}
