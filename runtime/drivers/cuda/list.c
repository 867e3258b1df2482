/* runtime/drivers/cuda/list.c - lists whose commands are enqueued one by one: what graphs are held against, and what remains where
 * a graph cannot be made.
 */
#include <string.h>

#include "runtime/drivers/cuda/cuda.h"

typedef struct plain_list {
  cuda_device_t* device;
  accrt_driver_command_t* commands;
  uint32_t command_count;
  char name[64];
} plain_list_t;

accrt_status_t accrt_cuda_plain_list_create(accrt_driver_device_t* opaque,
                                            const accrt_driver_list_info_t* info,
                                            accrt_driver_list_t** out_list) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  *out_list = NULL;
  void* memory;
  accrt_status_t status = accrt_alloc(device->allocator, sizeof(plain_list_t), &memory);
  if (status != ACCRT_OK)
    return status;
  plain_list_t* list = memory;
  list->device = device;
  status =
      accrt_alloc_array(device->allocator, info->command_count, sizeof *list->commands, &memory);
  if (status != ACCRT_OK) {
    accrt_free(device->allocator, list, sizeof *list);
    return status;
  }
  list->commands = memory;
  list->command_count = info->command_count;
  if (info->command_count != 0)
    memcpy(list->commands, info->commands, info->command_count * sizeof *list->commands);
  const size_t length = info->name != NULL ? strlen(info->name) : 0;
  memcpy(list->name, info->name != NULL ? info->name : "",
         length < sizeof list->name ? length : sizeof list->name - 1);
  *out_list = (accrt_driver_list_t*)list;
  return ACCRT_OK;
}

void accrt_cuda_plain_list_destroy(accrt_driver_list_t* opaque) {
  plain_list_t* list = (plain_list_t*)opaque;
  const accrt_allocator_t* allocator = list->device->allocator;
  accrt_free_array(allocator, list->commands, list->command_count, sizeof *list->commands);
  accrt_free(allocator, list, sizeof *list);
}

/* A failure at the first command leaves nothing enqueued; later ones fail the queue. */
accrt_status_t accrt_cuda_plain_execute(accrt_driver_queue_t* opaque,
                                        accrt_driver_list_t* opaque_list,
                                        const accrt_driver_submission_t* submission) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque;
  const plain_list_t* list = (const plain_list_t*)opaque_list;
  cuda_submit_t submit;
  accrt_status_t status = accrt_cuda_submit_begin(queue, submission, &submit);
  if (status != ACCRT_OK)
    return status;
  uint32_t done = 0;
  for (; done < list->command_count && status == ACCRT_OK; ++done) {
    status =
        accrt_cuda_command_enqueue(queue->device, queue->stream, &list->commands[done], submission);
  }
  if (status != ACCRT_OK && done > 1) {
    accrt_error_t failure;
    accrt_cuda_last_failure(&failure);
    accrt_cuda_queue_fail(queue, submission->number, &failure);
    status = ACCRT_OK;
  }
  return accrt_cuda_submit_end(queue, submission, &submit, list->name, status);
}
