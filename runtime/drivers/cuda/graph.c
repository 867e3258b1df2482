/* runtime/drivers/cuda/graph.c - command lists: creation, execution, destruction. graph.h explains
 * how they work. */
#include "runtime/core/error.h"
#include "runtime/drivers/cuda/graph.h"

/* ---- Making and destroying ---- */

/* Refuses kinds of a later version here: at a submission the commands before it would have run. */
static accrt_status_t check_kinds(const cuda_device_t* device,
                                  const accrt_driver_list_info_t* info) {
  for (uint32_t i = 0; i < info->command_count; ++i) {
    const uint32_t opcode = info->commands[i].opcode;
    if (opcode < ACCRT_DRIVER_COMMAND_DISPATCH || opcode > ACCRT_DRIVER_COMMAND_OPERATOR) {
      return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "list_create",
                               "command %u of list '%s': cuda:%u has no commands of kind %u", i,
                               info->name != NULL ? info->name : "", device->ordinal, opcode);
    }
  }
  return ACCRT_OK;
}

static uint32_t count_operators(const accrt_driver_list_info_t* info) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < info->command_count; ++i)
    count += info->commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR;
  return count;
}

static accrt_status_t prepare_operators(cuda_list_t* list, const accrt_driver_list_info_t* info) {
  list->operation_count = count_operators(info);
  accrt_status_t status = accrt_alloc_array(list->device->allocator, list->operation_count,
                                            sizeof *list->operations, (void**)&list->operations);
  uint32_t next = 0;
  for (uint32_t i = 0; i < info->command_count && status == ACCRT_OK; ++i) {
    if (info->commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)
      continue;
    cuda_operation_t* operation = &list->operations[next++];
    operation->invoke = &info->commands[i].as.invoke;
    accrt_mutex_init(&operation->mutex, ACCRT_LOCK_CUDA_OPERATOR);
    list->plan.commands[i].operation = operation;
    status = accrt_cuda_operation_prepare(list->device, operation);
  }
  return status;
}

/* True when the command's node needs real memory whose address only a submission gives. */
static bool needs_submission(const cuda_plan_t* plan, uint32_t index) {
  const uint32_t kind = plan->commands[index].kind;
  return kind == CUDA_NODE_COPY || kind == CUDA_NODE_FILL || kind == CUDA_NODE_OPERATOR;
}

/* True when the graphs can be built with the list, before the first submission. Kernel nodes accept
 * any address. Copies and fills must not depend on a submission. Operators may use their addresses
 * during capture, so a list with operators waits for the first submission. */
static bool can_build_ahead(const cuda_plan_t* plan) {
  for (uint32_t i = 0; i < plan->dependent_count; ++i) {
    if (needs_submission(plan, plan->dependents[i]))
      return false;
  }
  uint32_t nodes = 0;
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    if (plan->commands[i].kind == CUDA_NODE_OPERATOR)
      return false;
    nodes += plan->commands[i].kind != CUDA_NODE_DIRECT;
  }
  return nodes > 0;
}

/* A node cannot use host memory that CUDA does not know, but a command can. After one submission
 * with such memory the list always runs command by command. */
static bool fall_back_to_commands(cuda_list_t* list, accrt_status_t status) {
  if (status != ACCRT_ERROR_INVALID_ARGUMENT)
    return false;
  for (uint32_t i = 0; i < list->plan.command_count; ++i) {
    const uint32_t kind = list->plan.commands[i].kind;
    if (kind != CUDA_NODE_COPY && kind != CUDA_NODE_FILL)
      continue;
    /* Relaxed is enough: a thread that misses the flag fails the same way and sets it again. */
    atomic_store_explicit(&list->plain, true, memory_order_relaxed);
    return true;
  }
  return false;
}

/* Builds with addresses and scalars of 0. The queue of the first submission gets this instance. */
static accrt_status_t build_ahead(cuda_list_t* list) {
  const cuda_plan_t* plan = &list->plan;
  const accrt_allocator_t* allocator = list->device->allocator;
  accrt_driver_binding_t* bindings = NULL;
  uint64_t* scalars = NULL;
  cuda_instance_t* instance = NULL;
  accrt_status_t status =
      accrt_alloc_array(allocator, plan->binding_count, sizeof *bindings, (void**)&bindings);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, plan->scalar_count, sizeof *scalars, (void**)&scalars);
  if (status == ACCRT_OK)
    status = accrt_cuda_instance_create(list->device, plan, list->name, &instance);
  if (status == ACCRT_OK) {
    const accrt_driver_submission_t nothing = {.struct_size = sizeof nothing,
                                               .binding_count = plan->binding_count,
                                               .bindings = bindings,
                                               .scalar_count = plan->scalar_count,
                                               .scalars = scalars};
    /* Relaxed is enough: no other thread has the list yet. */
    atomic_store_explicit(&list->instances[0], instance, memory_order_relaxed);
    accrt_mutex_lock(&instance->mutex);
    accrt_cuda_graphs_admit(list->device, instance);
    status = accrt_cuda_instance_build(instance, &nothing);
    if (status == ACCRT_OK)
      accrt_cuda_instance_upload(instance);
    else if (fall_back_to_commands(list, status))
      status = ACCRT_OK;
    accrt_mutex_unlock(&instance->mutex);
  }
  accrt_free_array(allocator, bindings, plan->binding_count, sizeof *bindings);
  accrt_free_array(allocator, scalars, plan->scalar_count, sizeof *scalars);
  return status;
}

accrt_status_t accrt_cuda_list_create(accrt_driver_device_t* opaque,
                                      const accrt_driver_list_info_t* info,
                                      accrt_driver_list_t** out_list) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  cuda_list_t* list;
  *out_list = NULL;
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "list_create");
  ACCRT_TRY(check_kinds(device, info));
  ACCRT_TRY(accrt_alloc(device->allocator, sizeof *list, (void**)&list));
  list->device = device;
  list->plan.allocator = device->allocator;
  accrt_mutex_init(&list->mutex, ACCRT_LOCK_CUDA_LIST);
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  accrt_status_t status =
      accrt_copy_string(device->allocator, info->name != NULL ? info->name : "", &list->name);
  if (status == ACCRT_OK)
    status = accrt_cuda_plan_make(device->allocator, info, (uint64_t)device->max_pitch_bytes,
                                  &list->plan);
  if (status == ACCRT_OK)
    status = prepare_operators(list, info);
  if (status == ACCRT_OK && can_build_ahead(&list->plan))
    status = build_ahead(list);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (status != ACCRT_OK) {
    accrt_cuda_list_destroy((accrt_driver_list_t*)list);
    return status;
  }
  *out_list = (accrt_driver_list_t*)list;
  return ACCRT_OK;
}

void accrt_cuda_list_destroy(accrt_driver_list_t* opaque) {
  cuda_list_t* list = (cuda_list_t*)opaque;
  cuda_device_t* device = list->device;
  const cuda_scope_t scope = cuda_enter(device);
  for (uint32_t i = 0; i < CUDA_LIST_INSTANCES; ++i) {
    /* Relaxed is enough: no other thread uses the list any more. */
    cuda_instance_t* instance = atomic_load_explicit(&list->instances[i], memory_order_relaxed);
    if (instance == NULL)
      break;
    accrt_cuda_graphs_forget(device, instance);
    accrt_cuda_instance_free(instance);
  }
  for (uint32_t i = 0; i < list->operation_count && list->operations != NULL; ++i)
    accrt_cuda_operation_destroy(device, &list->operations[i]);
  cuda_leave(device, scope);
  accrt_free_array(device->allocator, list->operations, list->operation_count,
                   sizeof *list->operations);
  accrt_cuda_plan_free(&list->plan);
  accrt_free_string(device->allocator, list->name);
  accrt_free(device->allocator, list, sizeof *list);
}

/* ---- Executing ---- */

static accrt_status_t enqueue_direct(cuda_instance_t* instance, uint32_t index, CUstream stream,
                                     const accrt_driver_submission_t* submission) {
  const cuda_planned_t* planned = &instance->plan->commands[index];
  if (planned->operation == NULL)
    return accrt_cuda_command_enqueue(instance->device, stream, planned->command, submission);
  return accrt_cuda_operation_execute(instance->device, planned->operation, stream, submission,
                                      instance->blocks + planned->params_offset);
}

static accrt_status_t launch_segment(cuda_instance_t* instance, uint32_t index, CUstream stream,
                                     const accrt_driver_submission_t* submission) {
  if (instance->execs[index] == NULL)
    return enqueue_direct(instance, instance->plan->segments[index].first, stream, submission);
  const CUresult result = instance->device->api->cuGraphLaunch(instance->execs[index], stream);
  return result == CUDA_SUCCESS ? ACCRT_OK
                                : accrt_cuda_fail(instance->device, result, "cuGraphLaunch",
                                                  "list '%s'", instance->name);
}

/* A failure after some work was submitted fails the queue, because the submission is incomplete. An
 * operator may have submitted work before it failed. */
static accrt_status_t launch_segments(cuda_instance_t* instance, cuda_queue_t* queue,
                                      const accrt_driver_submission_t* submission) {
  const uint32_t count = instance->plan->segment_count;
  for (uint32_t i = 0; i < count; ++i) {
    const accrt_status_t status = launch_segment(instance, i, queue->stream, submission);
    if (status == ACCRT_OK)
      continue;
    if (i == 0 && instance->plan->commands[0].operation == NULL)
      return status;
    accrt_cuda_queue_fail(queue, submission->number, accrt_error_current());
    return ACCRT_OK;
  }
  return ACCRT_OK;
}

/* ---- Command by command ---- */

static accrt_status_t enqueue_plain(cuda_list_t* list, uint32_t index, CUstream stream,
                                    const accrt_driver_submission_t* submission) {
  _Alignas(16) unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  const cuda_planned_t* planned = &list->plan.commands[index];
  if (planned->operation == NULL)
    return accrt_cuda_command_enqueue(list->device, stream, planned->command, submission);
  return accrt_cuda_operation_execute(list->device, planned->operation, stream, submission, block);
}

/* Runs without a graph. The stream keeps the order. */
static accrt_status_t execute_plain(cuda_list_t* list, cuda_queue_t* queue,
                                    const accrt_driver_submission_t* submission) {
  for (uint32_t i = 0; i < list->plan.command_count; ++i) {
    const accrt_status_t status = enqueue_plain(list, i, queue->stream, submission);
    if (status == ACCRT_OK)
      continue;
    if (i == 0 && list->plan.commands[0].operation == NULL)
      return status;
    accrt_cuda_queue_fail(queue, submission->number, accrt_error_current());
    return ACCRT_OK;
  }
  return ACCRT_OK;
}

static accrt_status_t execute_graphs(cuda_list_t* list, cuda_queue_t* queue,
                                     const accrt_driver_submission_t* submission) {
  cuda_instance_t* instance;
  ACCRT_TRY(accrt_cuda_list_acquire(list, queue, submission, &instance));
  accrt_status_t status = launch_segments(instance, queue, submission);
  accrt_mutex_unlock(&instance->mutex);
  return status;
}

/* ---- Into the graph of another library ---- */

/* A capture takes neither the events of a completion nor operators that cannot be captured. */
ACCRT_RARE static bool can_be_captured(const cuda_list_t* list,
                                       const accrt_driver_submission_t* submission) {
  const cuda_planned_t* planned = list->plan.commands;
  for (uint32_t i = list->plan.command_count; i-- > 0; ++planned) {
    if (planned->kind == CUDA_NODE_DIRECT && planned->operation != NULL)
      return false;
  }
  return submission->completion.done == NULL; /* work that is traced has one */
}

/* Adds the list's work to the graph that the owner of a wrapped stream is capturing, in the order
 * of the stream. The code that launches the graph keeps what it uses. */
ACCRT_RARE static accrt_status_t capture_list(cuda_list_t* list, cuda_queue_t* queue,
                                              const accrt_driver_submission_t* submission) {
  /* The legacy stream counts as captured where another stream is. */
  if ((uintptr_t)queue->stream <= (uintptr_t)CU_STREAM_LEGACY || !can_be_captured(list, submission))
    return ACCRT_ERROR_INVALID_STATE; /* as accrt_cuda_submit_begin has recorded it */
  const cuda_scope_t scope = cuda_enter(queue->device);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < list->plan.command_count && status == ACCRT_OK; ++i)
    status = enqueue_plain(list, i, queue->stream, submission);
  if (status == ACCRT_OK)
    accrt_cuda_queue_captured(queue, submission->number);
  cuda_leave(queue->device, scope);
  return status;
}

accrt_status_t accrt_cuda_queue_execute(accrt_driver_queue_t* opaque_queue,
                                        accrt_driver_list_t* opaque_list,
                                        const accrt_driver_submission_t* submission) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque_queue;
  cuda_list_t* list = (cuda_list_t*)opaque_list;
  cuda_submit_t submit;
  const accrt_status_t begun = accrt_cuda_submit_begin(queue, submission, &submit);
  if (begun == ACCRT_ERROR_INVALID_STATE)
    return capture_list(list, queue, submission);
  ACCRT_TRY(begun);
  bool plain = atomic_load_explicit(&list->plain, memory_order_relaxed);
  accrt_status_t status = ACCRT_OK;
  if (!plain) {
    status = execute_graphs(list, queue, submission);
    plain = fall_back_to_commands(list, status);
  }
  if (plain)
    status = execute_plain(list, queue, submission);
  return accrt_cuda_submit_end(queue, submission, &submit, list->name, status);
}
