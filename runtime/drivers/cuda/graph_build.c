/* runtime/drivers/cuda/graph_build.c - makes CUDA graphs from a plan's segments, with the inputs of
 * one submission. */
#include <stdio.h>
#include <string.h>

#include "runtime/drivers/cuda/graph.h"

/* ---- A command's node parameters ---- */

static void write_patch(unsigned char* block, const cuda_patch_t* patch,
                        const accrt_driver_submission_t* submission) {
  uint64_t bits = patch->constant;
  if (patch->scalar != ACCRT_DRIVER_NONE)
    bits += submission->scalars[patch->scalar];
  if (patch->binding != ACCRT_DRIVER_NONE) {
    const uint64_t base = submission->bindings[patch->binding].address;
    bits = base == 0 ? 0 : base + bits; /* an optional buffer is absent */
  }
  if (patch->size_bytes == 8)
    memcpy(block + patch->offset_bytes, &bits, 8);
  else
    memcpy(block + patch->offset_bytes, &bits, patch->size_bytes);
}

bool accrt_cuda_node_dispatch(cuda_instance_t* instance, uint32_t index,
                              const accrt_driver_submission_t* submission) {
  const cuda_planned_t* planned = &instance->plan->commands[index];
  const cuda_patch_t* patches = instance->plan->patches + planned->first_patch;
  unsigned char* block = instance->blocks + planned->params_offset;
  for (uint32_t i = 0; i < planned->patch_count; ++i)
    write_patch(block, &patches[i], submission);
  if (planned->fixed_grid)
    return true;
  const accrt_driver_value_t* grid = planned->command->as.dispatch.grid;
  CUDA_KERNEL_NODE_PARAMS* params = &instance->nodes[index].kernel;
  params->gridDimX = (unsigned)cuda_value(&grid[0], submission);
  params->gridDimY = (unsigned)cuda_value(&grid[1], submission);
  params->gridDimZ = (unsigned)cuda_value(&grid[2], submission);
  return params->gridDimX != 0 && params->gridDimY != 0 && params->gridDimZ != 0;
}

static uint32_t node_copy_shape(cuda_device_t* device, const accrt_driver_copy_t* command,
                                const accrt_driver_submission_t* submission, cuda_copy_t* copy) {
  accrt_cuda_copy_values(command, submission, copy);
  cuda_device_t* far[2];
  if (!accrt_cuda_copy_reach(device, copy->source, copy->target, far))
    return CUDA_COPY_DETOUR;
  return accrt_cuda_copy_shape(copy, (uint64_t)device->max_pitch_bytes);
}

/* The plan made it linear, 2D or 3D; copies by rows have no node. */
uint32_t accrt_cuda_node_copy(cuda_device_t* device, const accrt_driver_copy_t* command,
                              const accrt_driver_submission_t* submission,
                              CUDA_MEMCPY3D* out_copy) {
  cuda_copy_t copy;
  const uint32_t shape = node_copy_shape(device, command, submission, &copy);
  *out_copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .srcDevice = copy.source,
                              .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .dstDevice = copy.target,
                              .WidthInBytes = copy.extent[0],
                              .Height = 1,
                              .Depth = 1};
  if (shape != CUDA_COPY_2D && shape != CUDA_COPY_3D)
    return shape;
  out_copy->Height = copy.extent[1];
  out_copy->srcPitch = copy.source_stride[0];
  out_copy->dstPitch = copy.target_stride[0];
  if (shape == CUDA_COPY_2D)
    return shape;
  out_copy->Depth = copy.extent[2];
  out_copy->srcHeight = copy.source_stride[1] / copy.source_stride[0];
  out_copy->dstHeight = copy.target_stride[1] / copy.target_stride[0];
  return shape;
}

bool accrt_cuda_node_fill(const accrt_driver_fill_t* command,
                          const accrt_driver_submission_t* submission,
                          CUDA_MEMSET_NODE_PARAMS* out_fill) {
  const uint32_t element_bytes = command->pattern_bytes < 4 ? command->pattern_bytes : 4;
  const uint64_t size_bytes = cuda_value(&command->target.size_bytes, submission);
  /* CUDA fills with ones where the value has more bits than the element. */
  const unsigned low_bits = UINT32_MAX >> (32 - 8 * element_bytes);
  *out_fill = (CUDA_MEMSET_NODE_PARAMS){.dst = cuda_address(&command->target, submission),
                                        .value = (unsigned)command->pattern & low_bits,
                                        .elementSize = element_bytes,
                                        .width = size_bytes / element_bytes,
                                        .height = 1};
  return out_fill->width != 0;
}

/* ---- Nodes ---- */

/* State for adding one node. */
typedef struct node_adder {
  cuda_instance_t* instance;
  const accrt_driver_submission_t* submission;
  CUgraph graph;
  uint32_t index; /* index of the command */
} node_adder_t;

static accrt_status_t fail_add(const node_adder_t* adder, CUresult result, const char* call) {
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  return accrt_cuda_command_fail(adder->instance, adder->index, result, call);
}

accrt_status_t accrt_cuda_command_fail(const cuda_instance_t* instance, uint32_t index,
                                       CUresult result, const char* call) {
  const accrt_driver_command_t* command = instance->plan->commands[index].command;
  const CUDA_KERNEL_NODE_PARAMS* params = &instance->nodes[index].kernel;
  const uint32_t grid[3] = {params->gridDimX, params->gridDimY, params->gridDimZ};
  char shape[128] = "";
  if (instance->plan->commands[index].kind == CUDA_NODE_KERNEL)
    snprintf(shape, sizeof shape, ", a grid of %u x %u x %u workgroups%s", grid[0], grid[1],
             grid[2], cuda_grid_limit(grid));
  return accrt_cuda_fail(
      instance->device, result, call, "command %u%s%s%s of list '%s'%s", (unsigned)index,
      command->name != NULL ? " ('" : "", command->name != NULL ? command->name : "",
      command->name != NULL ? "')" : "", instance->name != NULL ? instance->name : "", shape);
}

static accrt_status_t add_nothing(const node_adder_t* adder) {
  cuda_exec_node_t* node = &adder->instance->nodes[adder->index];
  node->state = CUDA_STATE_EMPTY;
  return fail_add(
      adder,
      adder->instance->device->api->cuGraphAddEmptyNode(&node->graph_node, adder->graph, NULL, 0),
      "cuGraphAddEmptyNode");
}

/* Clusters and cooperative launch are attributes of the node. Overlap is a property of the edge. */
static CUresult set_attributes(const node_adder_t* adder, const cuda_kernel_t* kernel) {
  const cuda_api_t* api = adder->instance->device->api;
  const CUgraphNode node = adder->instance->nodes[adder->index].graph_node;
  for (uint32_t i = 0; i < kernel->attribute_count; ++i) {
    const CUlaunchAttribute* attribute = &kernel->attributes[i];
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      continue;
    const CUresult result = api->cuGraphKernelNodeSetAttribute(
        node, (CUkernelNodeAttrID)attribute->id, &attribute->value);
    if (result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

/* A dispatch with an empty grid gets the kernel's smallest grid. Its node is disabled after the
 * graph is instantiated. */
static accrt_status_t add_kernel(const node_adder_t* adder) {
  cuda_instance_t* instance = adder->instance;
  const cuda_api_t* api = instance->device->api;
  const cuda_planned_t* planned = &instance->plan->commands[adder->index];
  const cuda_kernel_t* kernel = cuda_dispatch_kernel(&planned->command->as.dispatch);
  cuda_exec_node_t* node = &instance->nodes[adder->index];
  const bool runs = accrt_cuda_node_dispatch(instance, adder->index, adder->submission);
  CUDA_KERNEL_NODE_PARAMS params = node->kernel;
  node->state = runs ? CUDA_STATE_ENABLED : CUDA_STATE_DISABLED;
  if (!runs) {
    unsigned grid[3];
    cuda_least_grid(kernel, grid);
    params.gridDimX = grid[0];
    params.gridDimY = grid[1];
    params.gridDimZ = grid[2];
  }
  CUresult result = api->cuGraphAddKernelNode(&node->graph_node, adder->graph, NULL, 0, &params);
  if (result != CUDA_SUCCESS)
    return fail_add(adder, result, "cuGraphAddKernelNode");
  result = set_attributes(adder, kernel);
  return fail_add(adder, result, "cuGraphKernelNodeSetAttribute");
}

static accrt_status_t add_copy(const node_adder_t* adder) {
  cuda_instance_t* instance = adder->instance;
  cuda_device_t* device = instance->device;
  cuda_exec_node_t* node = &instance->nodes[adder->index];
  CUDA_MEMCPY3D copy;
  const uint32_t shape = accrt_cuda_node_copy(
      device, &instance->plan->commands[adder->index].command->as.copy, adder->submission, &copy);
  if (shape == CUDA_COPY_NOTHING)
    return add_nothing(adder);
  if (shape == CUDA_COPY_DETOUR) /* the list then runs command by command */
    return fail_add(adder, CUDA_ERROR_INVALID_VALUE, "cuGraphAddMemcpyNode");
  node->state = CUDA_STATE_ENABLED;
  return fail_add(adder,
                  device->api->cuGraphAddMemcpyNode(&node->graph_node, adder->graph, NULL, 0, &copy,
                                                    device->context),
                  "cuGraphAddMemcpyNode");
}

static accrt_status_t add_fill(const node_adder_t* adder) {
  cuda_instance_t* instance = adder->instance;
  const cuda_device_t* device = instance->device;
  cuda_exec_node_t* node = &instance->nodes[adder->index];
  CUDA_MEMSET_NODE_PARAMS fill;
  if (!accrt_cuda_node_fill(&instance->plan->commands[adder->index].command->as.fill,
                            adder->submission, &fill))
    return add_nothing(adder);
  node->state = CUDA_STATE_ENABLED;
  return fail_add(adder,
                  device->api->cuGraphAddMemsetNode(&node->graph_node, adder->graph, NULL, 0, &fill,
                                                    device->context),
                  "cuGraphAddMemsetNode");
}

static accrt_status_t add_operator(const node_adder_t* adder) {
  cuda_instance_t* instance = adder->instance;
  cuda_device_t* device = instance->device;
  const cuda_planned_t* planned = &instance->plan->commands[adder->index];
  cuda_exec_node_t* node = &instance->nodes[adder->index];
  CUgraph child;
  ACCRT_TRY(accrt_cuda_operation_capture(device, planned->operation, adder->submission,
                                         instance->blocks + planned->params_offset, &child));
  node->state = CUDA_STATE_ENABLED;
  const CUresult result =
      device->api->cuGraphAddChildGraphNode(&node->graph_node, adder->graph, NULL, 0, child);
  (void)device->api->cuGraphDestroy(child); /* the node has a copy */
  return fail_add(adder, result, "cuGraphAddChildGraphNode");
}

static accrt_status_t add_node(const node_adder_t* adder) {
  switch (adder->instance->plan->commands[adder->index].kind) {
  case CUDA_NODE_KERNEL:
    return add_kernel(adder);
  case CUDA_NODE_COPY:
    return add_copy(adder);
  case CUDA_NODE_FILL:
    return add_fill(adder);
  case CUDA_NODE_OPERATOR:
    return add_operator(adder);
  case CUDA_NODE_JOIN:
    return add_nothing(adder);
  default:
    return ACCRT_OK;
  }
}

/* ---- Edges ---- */

static bool overlaps_previous(const cuda_planned_t* planned) {
  if (planned->kind != CUDA_NODE_KERNEL)
    return false;
  const cuda_kernel_t* kernel = cuda_dispatch_kernel(&planned->command->as.dispatch);
  for (uint32_t i = 0; i < kernel->attribute_count; ++i) {
    if (kernel->attributes[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      return true;
  }
  return false;
}

static accrt_status_t add_edge(const node_adder_t* adder, uint32_t from, bool overlap) {
  cuda_instance_t* instance = adder->instance;
  const CUgraphNode source = instance->nodes[from].graph_node;
  const CUgraphNode target = instance->nodes[adder->index].graph_node;
  CUgraphEdgeData edge;
  memset(&edge, 0, sizeof edge);
  if (overlap) {
    edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  }
  return fail_add(adder,
                  instance->device->api->cuGraphAddDependencies(adder->graph, &source, &target,
                                                                overlap ? &edge : NULL, 1),
                  "cuGraphAddDependencies");
}

/* A kernel that waits for its predecessor itself may start early, if it has one predecessor and
 * that is a kernel. */
static accrt_status_t add_edges(const node_adder_t* adder) {
  const cuda_plan_t* plan = adder->instance->plan;
  const uint32_t first = plan->first_edge[adder->index], end = plan->first_edge[adder->index + 1];
  const bool overlap = end - first == 1 &&
                       plan->commands[plan->edges[first]].kind == CUDA_NODE_KERNEL &&
                       overlaps_previous(&plan->commands[adder->index]);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = first; i < end && status == ACCRT_OK; ++i)
    status = add_edge(adder, plan->edges[i], overlap);
  return status;
}

/* ---- Graphs ---- */

static accrt_status_t add_nodes(node_adder_t* adder, const cuda_segment_t* segment) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < segment->count && status == ACCRT_OK; ++i) {
    adder->index = segment->first + i;
    status = add_node(adder);
    if (status == ACCRT_OK)
      status = add_edges(adder);
  }
  return status;
}

static accrt_status_t disable_nodes(const cuda_instance_t* instance, uint32_t segment_index) {
  const cuda_segment_t* segment = &instance->plan->segments[segment_index];
  for (uint32_t i = segment->first; i < segment->first + segment->count; ++i) {
    const cuda_exec_node_t* node = &instance->nodes[i];
    if (node->state != CUDA_STATE_DISABLED)
      continue;
    const CUresult result = instance->device->api->cuGraphNodeSetEnabled(
        instance->execs[segment_index], node->graph_node, 0);
    if (result != CUDA_SUCCESS)
      return accrt_cuda_command_fail(instance, i, result, "cuGraphNodeSetEnabled");
  }
  return ACCRT_OK;
}

/* CUDA does not report which node failed, so the message names the segment's first command. */
static accrt_status_t fail_segment(const cuda_instance_t* instance, const cuda_segment_t* segment,
                                   CUresult result) {
  const char* name = instance->plan->commands[segment->first].command->name;
  return accrt_cuda_fail(instance->device, result, "cuGraphInstantiate",
                         "commands %u to %u (the first is '%s') of list '%s'",
                         (unsigned)segment->first, (unsigned)(segment->first + segment->count - 1),
                         name != NULL ? name : "", instance->name != NULL ? instance->name : "");
}

static accrt_status_t build_segment(cuda_instance_t* instance, uint32_t index,
                                    const accrt_driver_submission_t* submission) {
  cuda_device_t* device = instance->device;
  const cuda_segment_t* segment = &instance->plan->segments[index];
  CUresult result = device->api->cuGraphCreate(&instance->graphs[index], 0);
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail(device, result, "cuGraphCreate", "for list '%s'",
                           instance->name != NULL ? instance->name : "");
  node_adder_t adder = {
      .instance = instance, .submission = submission, .graph = instance->graphs[index]};
  ACCRT_TRY(add_nodes(&adder, segment));
  result =
      device->api->cuGraphInstantiateWithFlags(&instance->execs[index], instance->graphs[index], 0);
  if (result != CUDA_SUCCESS)
    return fail_segment(instance, segment, result);
  return disable_nodes(instance, index);
}

accrt_status_t accrt_cuda_instance_build(cuda_instance_t* instance,
                                         const accrt_driver_submission_t* submission) {
  ACCRT_ASSERT_HELD(&instance->mutex);
  const cuda_plan_t* plan = instance->plan;
  accrt_status_t status = ACCRT_OK;
  accrt_cuda_instance_clear(instance);
  /* Instantiation allocates. Another thread's capture must not refuse that. */
  const CUstreamCaptureMode mode = cuda_relax(instance->device);
  for (uint32_t i = 0; i < plan->segment_count && status == ACCRT_OK; ++i) {
    if (!plan->segments[i].direct)
      status = build_segment(instance, i, submission);
  }
  cuda_unrelax(instance->device, mode);
  if (status != ACCRT_OK) {
    accrt_cuda_instance_clear(instance);
    return status;
  }
  accrt_cuda_inputs_copy(instance->inputs, submission);
  instance->ready = true;
  return ACCRT_OK;
}

void accrt_cuda_instance_upload(cuda_instance_t* instance) {
  cuda_device_t* device = instance->device;
  CUstream stream;
  /* A failure does no harm: the first launch uploads the graphs. Launches come on other streams,
   * and CUDA does not promise that they wait for this upload, so this function waits for it. */
  if (accrt_cuda_stream_take(device, &stream) != ACCRT_OK)
    return;
  bool broken = false;
  for (uint32_t i = 0; i < instance->plan->segment_count && !broken; ++i) {
    if (instance->execs[i] != NULL)
      broken = device->api->cuGraphUpload(instance->execs[i], stream) != CUDA_SUCCESS;
  }
  if (device->api->cuStreamSynchronize(stream) != CUDA_SUCCESS) {
    broken = true;
    accrt_cuda_instance_clear(instance); /* the first submission makes them again */
  }
  accrt_cuda_stream_return(device, stream, broken);
}

void accrt_cuda_instance_clear(cuda_instance_t* instance) {
  const cuda_api_t* api = instance->device->api;
  const CUstreamCaptureMode mode = cuda_relax(instance->device);
  instance->ready = false;
  for (uint32_t i = 0; i < instance->plan->segment_count; ++i) {
    if (instance->execs[i] != NULL)
      (void)api->cuGraphExecDestroy(instance->execs[i]);
    if (instance->graphs[i] != NULL)
      (void)api->cuGraphDestroy(instance->graphs[i]);
    instance->execs[i] = NULL;
    instance->graphs[i] = NULL;
  }
  cuda_unrelax(instance->device, mode);
}

/* ---- The instance itself ---- */

/* Sets the parts of a kernel's node that never change. */
static void init_node(cuda_instance_t* instance, uint32_t index) {
  const cuda_planned_t* planned = &instance->plan->commands[index];
  if (planned->kind != CUDA_NODE_KERNEL)
    return;
  const accrt_driver_dispatch_t* dispatch = &planned->command->as.dispatch;
  const cuda_kernel_t* kernel = cuda_dispatch_kernel(dispatch);
  unsigned char* block = instance->blocks + planned->params_offset;
  void** fields = instance->fields + planned->fields_offset;
  if (dispatch->params_size_bytes > 0)
    memcpy(block, dispatch->params, dispatch->params_size_bytes);
  for (uint32_t i = 0; i < kernel->param_count; ++i)
    fields[i] = block + kernel->param_offsets[i];
  instance->nodes[index].kernel =
      (CUDA_KERNEL_NODE_PARAMS){.func = kernel->function,
                                .gridDimX = (unsigned)dispatch->grid[0].constant,
                                .gridDimY = (unsigned)dispatch->grid[1].constant,
                                .gridDimZ = (unsigned)dispatch->grid[2].constant,
                                .blockDimX = kernel->block[0],
                                .blockDimY = kernel->block[1],
                                .blockDimZ = kernel->block[2],
                                .sharedMemBytes = kernel->shared_bytes,
                                .kernelParams = fields};
}

accrt_status_t accrt_cuda_instance_create(cuda_device_t* device, const cuda_plan_t* plan,
                                          const char* name, cuda_instance_t** out_instance) {
  const accrt_allocator_t* allocator = device->allocator;
  cuda_instance_t* instance;
  accrt_status_t status = accrt_alloc(allocator, sizeof *instance, (void**)&instance);
  *out_instance = NULL;
  if (status != ACCRT_OK)
    return status;
  instance->device = device;
  instance->plan = plan;
  instance->name = name;
  accrt_mutex_init(&instance->mutex, ACCRT_LOCK_CUDA_GRAPH);
  status = accrt_alloc_array(allocator, cuda_plan_inputs(plan), sizeof *instance->inputs,
                             (void**)&instance->inputs);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, plan->command_count, sizeof *instance->nodes,
                               (void**)&instance->nodes);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, plan->segment_count, sizeof(CUgraph),
                               (void**)&instance->graphs);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, plan->segment_count, sizeof(CUgraphExec),
                               (void**)&instance->execs);
  if (status == ACCRT_OK)
    status = accrt_alloc(allocator, plan->blocks_bytes, (void**)&instance->blocks);
  if (status == ACCRT_OK)
    status =
        accrt_alloc_array(allocator, plan->field_count, sizeof(void*), (void**)&instance->fields);
  if (status != ACCRT_OK) {
    accrt_cuda_instance_free(instance);
    return status;
  }
  for (uint32_t i = 0; i < plan->command_count; ++i)
    init_node(instance, i);
  *out_instance = instance;
  return ACCRT_OK;
}

void accrt_cuda_instance_free(cuda_instance_t* instance) {
  const cuda_plan_t* plan = instance->plan;
  const accrt_allocator_t* allocator = instance->device->allocator;
  if (instance->graphs != NULL && instance->execs != NULL)
    accrt_cuda_instance_clear(instance);
  accrt_free_array(allocator, instance->inputs, cuda_plan_inputs(plan), sizeof *instance->inputs);
  accrt_free_array(allocator, instance->nodes, plan->command_count, sizeof *instance->nodes);
  accrt_free_array(allocator, instance->graphs, plan->segment_count, sizeof(CUgraph));
  accrt_free_array(allocator, instance->execs, plan->segment_count, sizeof(CUgraphExec));
  accrt_free(allocator, instance->blocks, plan->blocks_bytes);
  accrt_free_array(allocator, instance->fields, plan->field_count, sizeof(void*));
  accrt_free(allocator, instance, sizeof *instance);
}
