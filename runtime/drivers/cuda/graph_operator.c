/* runtime/drivers/cuda/graph_operator.c - the host operators of a list: prepared with the list,
 * executed on a stream or captured into a graph, destroyed with the list. It does not know an
 * operator's place in the list. */
#include <stdio.h>

#include "runtime/drivers/cuda/graph.h"

#define MESSAGE_BYTES 256u
#define DEVICE_TYPE_CUDA 2u /* DLPack's number */

static const accrt_operator_def_t* definition_of(const cuda_operation_t* operation) {
  return operation->invoke->operation->definition;
}

static const accrt_kernel_environment_t* environment_of(const cuda_operation_t* operation) {
  return operation->invoke->operation->environment;
}

static accrt_operator_call_t make_call(const cuda_device_t* device,
                                       const cuda_operation_t* operation, const void* params,
                                       char message[MESSAGE_BYTES]) {
  message[0] = '\0';
  return (accrt_operator_call_t){.struct_size = sizeof(accrt_operator_call_t),
                                 .device_type = DEVICE_TYPE_CUDA,
                                 .device_id = (int32_t)device->ordinal,
                                 .params_size_bytes = operation->invoke->params_size_bytes,
                                 .params = params,
                                 .message = message,
                                 .message_capacity_bytes = MESSAGE_BYTES};
}

static accrt_status_t fail_call(const cuda_device_t* device, const cuda_operation_t* operation,
                                int32_t code, const char* what, char message[MESSAGE_BYTES]) {
  char line[MESSAGE_BYTES + 320];
  message[MESSAGE_BYTES - 1] = '\0';
  snprintf(line, sizeof line, "operator '%s': %s gave %d%s%s", definition_of(operation)->name, what,
           (int)code, message[0] != '\0' ? ": " : "", message);
  return device->environment->fail(device->environment, ACCRT_ERROR_KERNEL, code, NULL, what, line);
}

accrt_status_t accrt_cuda_operator_workspace(accrt_driver_device_t* opaque,
                                             const accrt_driver_operator_t* operation,
                                             const void* params, uint32_t params_size_bytes,
                                             uint64_t* out_size_bytes) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  const accrt_driver_invoke_t invoke = {
      .operation = operation, .params = params, .params_size_bytes = params_size_bytes};
  const cuda_operation_t asked = {.invoke = &invoke};
  *out_size_bytes = 0;
  if (operation->definition->query_workspace == NULL)
    return ACCRT_OK;
  char message[MESSAGE_BYTES];
  const accrt_operator_call_t call = make_call(device, &asked, params, message);
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const int32_t code =
      operation->definition->query_workspace(operation->environment, &call, out_size_bytes);
  cuda_stay(device);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (code == 0)
    return ACCRT_OK;
  *out_size_bytes = 0;
  return fail_call(device, &asked, code, "query_workspace", message);
}

accrt_status_t accrt_cuda_operation_prepare(cuda_device_t* device, cuda_operation_t* operation) {
  const accrt_operator_def_t* definition = definition_of(operation);
  char message[MESSAGE_BYTES];
  accrt_operator_call_t call = make_call(device, operation, operation->invoke->params, message);
  call.workspace_size_bytes = operation->invoke->workspace.size_bytes.constant;
  if (definition->prepare != NULL) {
    const int32_t code = definition->prepare(environment_of(operation), &call, &operation->state);
    cuda_stay(device);
    if (code != 0)
      return fail_call(device, operation, code, "prepare", message);
  }
  operation->prepared = true;
  return ACCRT_OK;
}

void accrt_cuda_operation_destroy(cuda_device_t* device, cuda_operation_t* operation) {
  const accrt_operator_def_t* definition = definition_of(operation);
  if (operation->prepared && definition->prepare != NULL && definition->destroy != NULL) {
    definition->destroy(environment_of(operation), operation->state);
    cuda_stay(device);
  }
  operation->prepared = false;
}

accrt_status_t accrt_cuda_operation_execute(cuda_device_t* device, cuda_operation_t* operation,
                                            CUstream stream,
                                            const accrt_driver_submission_t* submission,
                                            void* block) {
  const accrt_driver_invoke_t* invoke = operation->invoke;
  char message[MESSAGE_BYTES];
  accrt_cuda_block_fill(invoke->params, invoke->params_size_bytes, invoke->patches,
                        invoke->patch_count, submission, block);
  accrt_operator_call_t call = make_call(device, operation, block, message);
  call.stream = stream;
  call.submission = submission->number;
  call.workspace_size_bytes = cuda_value(&invoke->workspace.size_bytes, submission);
  if (invoke->workspace.binding != ACCRT_DRIVER_NONE)
    call.workspace = (void*)(uintptr_t)cuda_address(&invoke->workspace, submission);
  accrt_mutex_lock(&operation->mutex);
  const int32_t code =
      definition_of(operation)->execute(environment_of(operation), &call, operation->state);
  accrt_mutex_unlock(&operation->mutex);
  cuda_stay(device);
  return code == 0 ? ACCRT_OK : fail_call(device, operation, code, "execute", message);
}

/* *out_broken: the capture may not have ended, and the stream must not be used again. */
static accrt_status_t capture_on(cuda_device_t* device, CUstream stream,
                                 cuda_operation_t* operation,
                                 const accrt_driver_submission_t* submission, void* block,
                                 CUgraph* out_graph, bool* out_broken) {
  const char* name = definition_of(operation)->name;
  /* Relaxed: during its capture an operator's library may load code or query memory, on any
   * thread. */
  CUresult result = device->api->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  *out_broken = result != CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail(device, result, "cuStreamBeginCapture", "for operator '%s'", name);
  const accrt_status_t status =
      accrt_cuda_operation_execute(device, operation, stream, submission, block);
  result = device->api->cuStreamEndCapture(stream, out_graph);
  *out_broken = result != CUDA_SUCCESS;
  if (status == ACCRT_OK && result == CUDA_SUCCESS)
    return ACCRT_OK;
  if (*out_graph != NULL)
    (void)device->api->cuGraphDestroy(*out_graph);
  *out_graph = NULL;
  if (status != ACCRT_OK)
    return status;
  return accrt_cuda_fail(device, result, "cuStreamEndCapture",
                         "operator '%s' did what a capture does not allow", name);
}

accrt_status_t accrt_cuda_stream_take(cuda_device_t* device, CUstream* out_stream) {
  accrt_mutex_lock(&device->graphs.mutex);
  *out_stream = device->graphs.spare_stream;
  device->graphs.spare_stream = NULL;
  accrt_mutex_unlock(&device->graphs.mutex);
  if (*out_stream != NULL)
    return ACCRT_OK;
  const CUresult result =
      device->api->cuStreamCreateWithPriority(out_stream, CU_STREAM_NON_BLOCKING, 0);
  return result == CUDA_SUCCESS
             ? ACCRT_OK
             : accrt_cuda_fail(device, result, "cuStreamCreateWithPriority", "to make graphs on");
}

void accrt_cuda_stream_return(cuda_device_t* device, CUstream stream, bool broken) {
  CUstream spare = stream;
  if (!broken) {
    accrt_mutex_lock(&device->graphs.mutex);
    spare = device->graphs.spare_stream;
    device->graphs.spare_stream = stream;
    accrt_mutex_unlock(&device->graphs.mutex);
  }
  if (spare != NULL)
    (void)device->api->cuStreamDestroy(spare);
}

accrt_status_t accrt_cuda_operation_capture(cuda_device_t* device, cuda_operation_t* operation,
                                            const accrt_driver_submission_t* submission,
                                            void* block, CUgraph* out_graph) {
  CUstream stream;
  *out_graph = NULL;
  ACCRT_TRY(accrt_cuda_stream_take(device, &stream));
  bool broken;
  accrt_status_t status =
      capture_on(device, stream, operation, submission, block, out_graph, &broken);
  accrt_cuda_stream_return(device, stream, broken);
  return status;
}

void accrt_cuda_graphs_close(cuda_device_t* device) {
  if (device->graphs.spare_stream == NULL)
    return;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  (void)device->api->cuStreamDestroy(device->graphs.spare_stream);
  device->graphs.spare_stream = NULL;
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
}
