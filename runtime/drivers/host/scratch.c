/* runtime/drivers/host/scratch.c - local memory for kernels, one block per thread, grown ahead of
 * running.
 *
 * A device knows the most that any kernel prepared so far needs (`local_bytes`). Raising it puts a
 * spare block into the scratch memory of each thread that has less. The thread swaps it in when a
 * run asks for it. So running never allocates, and no thread waits for one that is in a kernel.
 * No allocator is called under the device's mutex.
 */
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

static void free_block(const host_device_t* device, void* block, size_t size_bytes) {
  accrt_free_aligned(device->allocator, block, size_bytes, HOST_CACHE_LINE);
}

static size_t needed_bytes(host_device_t* device) {
  accrt_mutex_lock(&device->mutex);
  const size_t needed = device->local_bytes;
  accrt_mutex_unlock(&device->mutex);
  return needed;
}

accrt_status_t accrt_host_scratch_open(host_device_t* device, uint32_t worker_id,
                                       host_scratch_t* scratch) {
  memset(scratch, 0, sizeof *scratch);
  scratch->workgroup.struct_size = (uint32_t)sizeof scratch->workgroup;
  scratch->workgroup.worker_id = worker_id;
  scratch->workgroup.message = scratch->message;
  scratch->workgroup.message_capacity_bytes = HOST_MESSAGE_BYTES;
  for (;;) {
    const size_t needed = needed_bytes(device);
    ACCRT_TRY(accrt_alloc_aligned(device->allocator, needed, HOST_CACHE_LINE, &scratch->local));
    scratch->local_bytes = needed;
    accrt_mutex_lock(&device->mutex);
    const bool enough = device->local_bytes <= needed;
    if (enough) {
      scratch->next = device->scratches;
      device->scratches = scratch;
    }
    accrt_mutex_unlock(&device->mutex);
    if (enough)
      return ACCRT_OK;
    free_block(device, scratch->local, needed); /* raised meanwhile */
  }
}

void accrt_host_scratch_close(host_device_t* device, host_scratch_t* scratch) {
  accrt_mutex_lock(&device->mutex);
  for (host_scratch_t** link = &device->scratches; *link != NULL; link = &(*link)->next) {
    if (*link == scratch) {
      *link = scratch->next;
      break;
    }
  }
  accrt_mutex_unlock(&device->mutex);
  free_block(device, scratch->local, scratch->local_bytes);
  free_block(device, scratch->spare, scratch->spare_bytes);
}

/* A scratch that can not get `bytes` yet. Under the mutex. The owner changes local_bytes under the
 * mutex too. */
static host_scratch_t* find_short_scratch(const host_device_t* device, size_t bytes) {
  ACCRT_ASSERT_HELD(&device->mutex);
  for (host_scratch_t* scratch = device->scratches; scratch != NULL; scratch = scratch->next) {
    if (scratch->local_bytes < bytes && scratch->spare_bytes < bytes)
      return scratch;
  }
  return NULL;
}

accrt_status_t accrt_host_scratch_reserve(host_device_t* device, size_t bytes) {
  if (bytes == 0 || needed_bytes(device) >= bytes)
    return ACCRT_OK;
  for (;;) {
    void* block;
    ACCRT_TRY(accrt_alloc_aligned(device->allocator, bytes, HOST_CACHE_LINE, &block));
    size_t block_bytes = bytes;
    accrt_mutex_lock(&device->mutex);
    host_scratch_t* scratch = find_short_scratch(device, bytes);
    if (scratch != NULL) {
      void* const previous = scratch->spare;
      const size_t previous_bytes = scratch->spare_bytes;
      scratch->spare = block;
      scratch->spare_bytes = bytes;
      block = previous;
      block_bytes = previous_bytes;
    } else if (device->local_bytes < bytes) {
      device->local_bytes = bytes;
    }
    accrt_mutex_unlock(&device->mutex);
    free_block(device, block, block_bytes);
    if (scratch == NULL)
      return ACCRT_OK;
  }
}

void accrt_host_scratch_adopt(host_device_t* device, host_scratch_t* scratch, size_t bytes) {
  if (scratch->local_bytes >= bytes)
    return;
  accrt_mutex_lock(&device->mutex);
  void* const previous = scratch->local;
  const size_t previous_bytes = scratch->local_bytes;
  scratch->local = scratch->spare;
  scratch->local_bytes = scratch->spare_bytes;
  scratch->spare = NULL;
  scratch->spare_bytes = 0;
  accrt_mutex_unlock(&device->mutex);
  free_block(device, previous, previous_bytes);
}
