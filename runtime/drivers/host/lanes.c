/* runtime/drivers/host/lanes.c - local memory for kernels, one block per thread, grown ahead of
 * running.
 *
 * A device knows the most that any kernel prepared so far needs (`local_bytes`). Raising it puts a
 * spare block into every lane that is short; a lane's owner swaps it in when a run asks for it. So
 * running never allocates, and nobody waits for a thread that is in a kernel. No allocator is
 * called under the device's mutex.
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

accrt_status_t accrt_host_lane_open(host_device_t* device, uint32_t worker_id, host_lane_t* lane) {
  memset(lane, 0, sizeof *lane);
  lane->workgroup.struct_size = (uint32_t)sizeof lane->workgroup;
  lane->workgroup.worker_id = worker_id;
  lane->workgroup.message = lane->message;
  lane->workgroup.message_capacity_bytes = HOST_MESSAGE_BYTES;
  for (;;) {
    const size_t needed = needed_bytes(device);
    const accrt_status_t status =
        accrt_alloc_aligned(device->allocator, needed, HOST_CACHE_LINE, &lane->local);
    if (status != ACCRT_OK)
      return status;
    lane->local_bytes = needed;
    accrt_mutex_lock(&device->mutex);
    const bool enough = device->local_bytes <= needed;
    if (enough) {
      lane->next = device->lanes;
      device->lanes = lane;
    }
    accrt_mutex_unlock(&device->mutex);
    if (enough)
      return ACCRT_OK;
    free_block(device, lane->local, needed); /* raised meanwhile */
  }
}

void accrt_host_lane_close(host_device_t* device, host_lane_t* lane) {
  accrt_mutex_lock(&device->mutex);
  for (host_lane_t** link = &device->lanes; *link != NULL; link = &(*link)->next) {
    if (*link == lane) {
      *link = lane->next;
      break;
    }
  }
  accrt_mutex_unlock(&device->mutex);
  free_block(device, lane->local, lane->local_bytes);
  free_block(device, lane->spare, lane->spare_bytes);
}

/* A lane that can not get `bytes` yet. Under the mutex. The owner changes local_bytes under the
 * mutex too. */
static host_lane_t* find_short_lane(const host_device_t* device, size_t bytes) {
  for (host_lane_t* lane = device->lanes; lane != NULL; lane = lane->next) {
    if (lane->local_bytes < bytes && lane->spare_bytes < bytes)
      return lane;
  }
  return NULL;
}

accrt_status_t accrt_host_lanes_reserve(host_device_t* device, size_t bytes) {
  if (bytes == 0 || needed_bytes(device) >= bytes)
    return ACCRT_OK;
  for (;;) {
    void* block;
    const accrt_status_t status =
        accrt_alloc_aligned(device->allocator, bytes, HOST_CACHE_LINE, &block);
    if (status != ACCRT_OK)
      return status;
    size_t block_bytes = bytes;
    accrt_mutex_lock(&device->mutex);
    host_lane_t* lane = find_short_lane(device, bytes);
    if (lane != NULL) {
      void* const previous = lane->spare;
      const size_t previous_bytes = lane->spare_bytes;
      lane->spare = block;
      lane->spare_bytes = bytes;
      block = previous;
      block_bytes = previous_bytes;
    } else if (device->local_bytes < bytes) {
      device->local_bytes = bytes;
    }
    accrt_mutex_unlock(&device->mutex);
    free_block(device, block, block_bytes);
    if (lane == NULL)
      return ACCRT_OK;
  }
}

void accrt_host_lane_adopt(host_device_t* device, host_lane_t* lane, size_t bytes) {
  if (lane->local_bytes >= bytes)
    return;
  accrt_mutex_lock(&device->mutex);
  void* const previous = lane->local;
  const size_t previous_bytes = lane->local_bytes;
  lane->local = lane->spare;
  lane->local_bytes = lane->spare_bytes;
  lane->spare = NULL;
  lane->spare_bytes = 0;
  accrt_mutex_unlock(&device->mutex);
  free_block(device, previous, previous_bytes);
}
