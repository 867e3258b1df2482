/* runtime/drivers/cuda/graph_patch.c - changes the inputs of instantiated graphs: finds the changed
 * inputs, and patches the nodes that depend on them.
 *
 * CUDA accepts a patch while an earlier launch of the graph is in flight. The patch applies only to
 * later launches.
 */
#include "runtime/drivers/cuda/graph.h"

/* ---- Inputs ---- */

bool accrt_cuda_inputs_equal(const uint64_t* inputs, const accrt_driver_submission_t* submission) {
  uint64_t differ = 0;
  for (uint32_t i = 0; i < submission->binding_count; ++i)
    differ |= inputs[i] ^ submission->bindings[i].address;
  inputs += submission->binding_count;
  for (uint32_t i = 0; i < submission->scalar_count; ++i)
    differ |= inputs[i] ^ submission->scalars[i];
  return differ == 0;
}

static uint64_t input_of(const accrt_driver_submission_t* submission, uint32_t index) {
  return index < submission->binding_count ? submission->bindings[index].address
                                           : submission->scalars[index - submission->binding_count];
}

void accrt_cuda_inputs_copy(uint64_t* inputs, const accrt_driver_submission_t* submission) {
  const uint32_t count = submission->binding_count + submission->scalar_count;
  for (uint32_t i = 0; i < count; ++i)
    inputs[i] = input_of(submission, i);
}

uint64_t accrt_cuda_inputs_digest(const accrt_driver_submission_t* submission) {
  const uint32_t count = submission->binding_count + submission->scalar_count;
  uint64_t digest = count;
  for (uint32_t i = 0; i < count; ++i) {
    digest = (digest ^ input_of(submission, i)) * UINT64_C(0x9E3779B97F4A7C15);
    digest ^= digest >> 29;
  }
  return digest;
}

uint32_t accrt_cuda_plan_changed(const cuda_plan_t* plan, const uint64_t* inputs,
                                 const accrt_driver_submission_t* submission) {
  const uint32_t count = cuda_plan_inputs(plan);
  uint32_t changed = 0;
  for (uint32_t i = 0; i < count && changed <= CUDA_LIST_CHEAP_PATCHES; ++i) {
    if (inputs[i] != input_of(submission, i))
      changed += plan->first_dependent[i + 1] - plan->first_dependent[i];
  }
  return changed;
}

/* ---- One node ---- */

/* The result of a patch when the graph must be built again. */
#define BUILD_AGAIN CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE

static CUresult set_enabled(const cuda_instance_t* instance, cuda_exec_node_t* node,
                            CUgraphExec exec, bool enabled) {
  const uint32_t state = enabled ? CUDA_STATE_ENABLED : CUDA_STATE_DISABLED;
  if (node->state == state)
    return CUDA_SUCCESS;
  if (node->state == CUDA_STATE_EMPTY)
    return enabled ? BUILD_AGAIN : CUDA_SUCCESS;
  const CUresult result =
      instance->device->api->cuGraphNodeSetEnabled(exec, node->graph_node, enabled ? 1 : 0);
  if (result == CUDA_SUCCESS)
    node->state = state;
  return result;
}

static CUresult patch_kernel(cuda_instance_t* instance, uint32_t index, CUgraphExec exec,
                             const accrt_driver_submission_t* submission) {
  cuda_exec_node_t* node = &instance->nodes[index];
  const bool runs = accrt_cuda_node_dispatch(instance, index, submission);
  if (!runs)
    return set_enabled(instance, node, exec, false);
  const CUresult result =
      instance->device->api->cuGraphExecKernelNodeSetParams(exec, node->graph_node, &node->kernel);
  return result != CUDA_SUCCESS ? result : set_enabled(instance, node, exec, true);
}

static CUresult patch_copy(cuda_instance_t* instance, uint32_t index, CUgraphExec exec,
                           const accrt_driver_submission_t* submission) {
  cuda_device_t* device = instance->device;
  cuda_exec_node_t* node = &instance->nodes[index];
  CUDA_MEMCPY3D copy;
  const uint32_t shape = accrt_cuda_node_copy(
      device, &instance->plan->commands[index].command->as.copy, submission, &copy);
  if (shape == CUDA_COPY_NOTHING)
    return set_enabled(instance, node, exec, false);
  if (shape != CUDA_COPY_LINEAR || node->state == CUDA_STATE_EMPTY)
    return BUILD_AGAIN;
  const CUresult result =
      device->api->cuGraphExecMemcpyNodeSetParams(exec, node->graph_node, &copy, device->context);
  return result != CUDA_SUCCESS ? result : set_enabled(instance, node, exec, true);
}

static CUresult patch_fill(cuda_instance_t* instance, uint32_t index, CUgraphExec exec,
                           const accrt_driver_submission_t* submission) {
  cuda_device_t* device = instance->device;
  cuda_exec_node_t* node = &instance->nodes[index];
  CUDA_MEMSET_NODE_PARAMS fill;
  if (!accrt_cuda_node_fill(&instance->plan->commands[index].command->as.fill, submission, &fill))
    return set_enabled(instance, node, exec, false);
  if (node->state == CUDA_STATE_EMPTY)
    return BUILD_AGAIN;
  const CUresult result =
      device->api->cuGraphExecMemsetNodeSetParams(exec, node->graph_node, &fill, device->context);
  return result != CUDA_SUCCESS ? result : set_enabled(instance, node, exec, true);
}

/* Captures the operator again. With other arguments its work may have another structure; then the
 * graph is built again. */
static CUresult patch_operator(cuda_instance_t* instance, uint32_t index, CUgraphExec exec,
                               const accrt_driver_submission_t* submission,
                               accrt_status_t* out_status) {
  cuda_device_t* device = instance->device;
  const cuda_planned_t* planned = &instance->plan->commands[index];
  CUgraph child;
  *out_status = accrt_cuda_operation_capture(device, planned->operation, submission,
                                             instance->blocks + planned->params_offset, &child);
  if (*out_status != ACCRT_OK)
    return CUDA_SUCCESS;
  const CUresult result = device->api->cuGraphExecChildGraphNodeSetParams(
      exec, instance->nodes[index].graph_node, child);
  (void)device->api->cuGraphDestroy(child);
  return result;
}

/* ---- All changes ---- */

static CUresult patch_command(cuda_instance_t* instance, uint32_t index,
                              const accrt_driver_submission_t* submission,
                              accrt_status_t* out_status) {
  const cuda_planned_t* planned = &instance->plan->commands[index];
  const CUgraphExec exec = instance->execs[planned->segment];
  *out_status = ACCRT_OK;
  switch (planned->kind) {
  case CUDA_NODE_KERNEL:
    return patch_kernel(instance, index, exec, submission);
  case CUDA_NODE_COPY:
    return patch_copy(instance, index, exec, submission);
  case CUDA_NODE_FILL:
    return patch_fill(instance, index, exec, submission);
  case CUDA_NODE_OPERATOR:
    return patch_operator(instance, index, exec, submission, out_status);
  default:
    return CUDA_SUCCESS;
  }
}

/* Patches each command that depends on the input, once per update. */
static CUresult patch_dependents(cuda_instance_t* instance, uint32_t input,
                                 const accrt_driver_submission_t* submission,
                                 accrt_status_t* out_status) {
  const cuda_plan_t* plan = instance->plan;
  const uint32_t end = plan->first_dependent[input + 1];
  for (uint32_t k = plan->first_dependent[input]; k < end; ++k) {
    const uint32_t index = plan->dependents[k];
    /* Prefetch the next command's data while CUDA works on this one. */
    const uint32_t soon = plan->dependents[k + 1 < end ? k + 1 : k];
    __builtin_prefetch(&plan->commands[soon]);
    __builtin_prefetch(&instance->nodes[soon]);
    __builtin_prefetch(&instance->nodes[soon].kernel.kernelParams);
    if (instance->nodes[index].stamp == instance->stamp)
      continue;
    instance->nodes[index].stamp = instance->stamp;
    const CUresult result = patch_command(instance, index, submission, out_status);
    if (result != CUDA_SUCCESS || *out_status != ACCRT_OK)
      return result;
  }
  return CUDA_SUCCESS;
}

accrt_status_t accrt_cuda_instance_update(cuda_instance_t* instance,
                                          const accrt_driver_submission_t* submission) {
  ACCRT_ASSERT_HELD(&instance->mutex);
  const uint32_t count = cuda_plan_inputs(instance->plan);
  accrt_status_t status = ACCRT_OK;
  CUresult result = CUDA_SUCCESS;
  if (!instance->ready)
    return accrt_cuda_instance_build(instance, submission);
  instance->stamp += 1;
  for (uint32_t i = 0; i < count && result == CUDA_SUCCESS && status == ACCRT_OK; ++i) {
    const uint64_t value = input_of(submission, i);
    if (instance->inputs[i] == value)
      continue;
    instance->inputs[i] = value;
    result = patch_dependents(instance, i, submission, &status);
  }
  if (status == ACCRT_OK && result == CUDA_SUCCESS)
    return ACCRT_OK;
  /* Some nodes are patched already, so the instance cannot stay. An operator's own failure would
   * repeat, but a patch that CUDA refused may succeed as a new graph. */
  if (status == ACCRT_OK && !accrt_cuda_is_fatal(result))
    return accrt_cuda_instance_build(instance, submission);
  accrt_cuda_instance_clear(instance);
  return status != ACCRT_OK ? status
                            : accrt_cuda_fail(instance->device, result, "cuGraphExecSetParams",
                                              "a patch of list '%s'",
                                              instance->name != NULL ? instance->name : "");
}
