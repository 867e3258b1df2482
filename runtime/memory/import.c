/* runtime/memory/import.c - memory of other owners, and memory that other processes open: imports,
 * exports, handles. It does not know how pools divide their memory. */
#include <string.h>
#include <unistd.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"
#include "runtime/memory/pool.h"

_Static_assert(ACCRT_HANDLE_FD == ACCRT_DRIVER_HANDLE_FD &&
                   ACCRT_HANDLE_IPC == ACCRT_DRIVER_HANDLE_IPC,
               "kinds of handles go to drivers as they are");

/* ---- Imports ---- */

/* Registers the memory with the driver, if the driver has a function for that. */
static accrt_status_t import_memory(accrt_buffer_t* buffer, void* pointer) {
  accrt_device_t* device = buffer->pool->device;
  const accrt_driver_table_t* table = accrt_device_driver_table(device);
  const bool host_memory = (accrt_device_facts(device)->flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
  buffer->address = (uint64_t)(uintptr_t)pointer;
  buffer->host_pointer = pointer;
  if (table->memory_import == NULL) {
    if (host_memory)
      return ACCRT_OK;
    return ACCRT_FAIL(UNSUPPORTED, "%s cannot access host memory that it did not allocate",
                      accrt_device_facts(device)->name);
  }
  /* An empty range has nothing to access, so drivers need not know it. */
  if (buffer->size_bytes == 0)
    return ACCRT_OK;
  ACCRT_TRY(table->memory_import(accrt_device_driver_device(device), pointer, buffer->size_bytes,
                                 &buffer->import));
  buffer->driver_import = 1;
  buffer->address = buffer->import.device_address;
  buffer->host_pointer = buffer->import.host_pointer;
  return ACCRT_OK;
}

static uint64_t natural_alignment(uint64_t address) {
  return address == 0 ? 1 : address & (~address + 1);
}

accrt_status_t accrt_inner_buffer_import(accrt_device_t* device, void* pointer, uint64_t size_bytes,
                                         void (*release)(void* user), void* user,
                                         accrt_buffer_t** out_buffer) {
  if (out_buffer != NULL)
    *out_buffer = NULL;
  ACCRT_CHECK(out_buffer, device);
  if (pointer == NULL && size_bytes != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "pointer is NULL for %" PRIu64 " bytes", size_bytes);
  if (!accrt_range_fits((uint64_t)(uintptr_t)pointer, size_bytes, UINT64_MAX)) {
    return ACCRT_FAIL(OVERFLOW, "%" PRIu64 " bytes at %p wrap around", size_bytes, pointer);
  }
  accrt_pool_t* pool;
  ACCRT_TRY(accrt_pool_default(device, ACCRT_MEMORY_IMPORTED, &pool));
  accrt_buffer_t* buffer;
  ACCRT_TRY(accrt_pool_buffer_record(pool, &buffer));
  buffer->size_bytes = size_bytes;
  accrt_status_t status = import_memory(buffer, pointer);
  if (status != ACCRT_OK) {
    accrt_pool_drop_record(pool, buffer);
    return status;
  }
  buffer->id = accrt_instance_next_id(pool->instance);
  buffer->alignment_bytes = natural_alignment(buffer->address);
  buffer->release = release;
  buffer->release_user = user;
  accrt_pool_add_live(pool, buffer);
  (void)accrt_instance_retain(pool->instance);
  *out_buffer = buffer;
  return ACCRT_OK;
}

accrt_status_t accrt_buffer_import(accrt_device_t* device, void* pointer, uint64_t size_bytes,
                                   void (*release)(void* user), void* user,
                                   accrt_buffer_t** out_buffer) {
  ACCRT_ENTER_INNER(
      accrt_inner_buffer_import(device, pointer, size_bytes, release, user, out_buffer));
}

/* ---- Sharing with other processes ---- */

accrt_status_t accrt_buffer_export(accrt_buffer_t* buffer, uint32_t kind,
                                   accrt_memory_handle_t* out_handle) {
  ACCRT_ENTER(buffer, out_handle);
  if (buffer->handle_kind == 0 || buffer->handle_kind != kind) {
    return ACCRT_FAIL(INVALID_STATE,
                      "buffer %" PRIu64 " was made for handles of kind %" PRIu32
                      " (0: it has no ACCRT_BUFFER_FLAG_EXPORT_*), not %" PRIu32,
                      buffer->id, buffer->handle_kind, kind);
  }
  const accrt_driver_table_t* table = accrt_device_driver_table(buffer->pool->device);
  if (table->memory_export == NULL)
    return ACCRT_FAIL(UNSUPPORTED, "%s exports no memory",
                      accrt_device_facts(buffer->pool->device)->name);
  accrt_driver_handle_t handle = {.fd = -1};
  ACCRT_TRY(table->memory_export(accrt_device_driver_device(buffer->pool->device),
                                 &buffer->block->segment->memory, kind, &handle));
  accrt_memory_handle_t filled = ACCRT_MEMORY_HANDLE_INIT;
  filled.kind = kind;
  filled.fd = handle.fd;
  filled.size_bytes = handle.size_bytes;
  memcpy(filled.bytes, handle.bytes, sizeof filled.bytes);
  accrt_status_t status =
      accrt_struct_write("accrt_memory_handle_t", out_handle, &filled, sizeof filled);
  if (status != ACCRT_OK && handle.fd >= 0)
    (void)close(handle.fd);
  return status;
}

static accrt_status_t open_handle(accrt_device_t* device, const accrt_memory_handle_t* handle,
                                  accrt_buffer_t* buffer) {
  accrt_driver_handle_t theirs = {
      .kind = handle->kind, .fd = handle->fd, .size_bytes = handle->size_bytes};
  memcpy(theirs.bytes, handle->bytes, sizeof theirs.bytes);
  ACCRT_TRY(accrt_device_driver_table(device)->memory_import_handle(
      accrt_device_driver_device(device), &theirs, &buffer->import));
  buffer->driver_import = 1;
  buffer->address = buffer->import.device_address;
  buffer->host_pointer = buffer->import.host_pointer;
  buffer->size_bytes = handle->size_bytes;
  return ACCRT_OK;
}

static accrt_status_t check_handle(accrt_device_t* device, const accrt_memory_handle_t* handle,
                                   accrt_memory_handle_t* out_local) {
  ACCRT_TRY(accrt_struct_read("accrt_memory_handle_t", handle, out_local, sizeof *out_local));
  if (out_local->kind != ACCRT_HANDLE_FD && out_local->kind != ACCRT_HANDLE_IPC)
    return ACCRT_FAIL(INVALID_ARGUMENT, "kind %" PRIu32 " of a handle is not known",
                      out_local->kind);
  if (out_local->size_bytes == 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "a handle of 0 bytes");
  if (accrt_device_driver_table(device)->memory_import_handle != NULL)
    return ACCRT_OK;
  return ACCRT_FAIL(UNSUPPORTED, "%s opens no memory of other processes",
                    accrt_device_facts(device)->name);
}

accrt_status_t accrt_buffer_import_handle(accrt_device_t* device,
                                          const accrt_memory_handle_t* handle,
                                          accrt_buffer_t** out_buffer) {
  if (out_buffer != NULL)
    *out_buffer = NULL;
  ACCRT_ENTER(out_buffer, device, handle);
  accrt_memory_handle_t local;
  ACCRT_TRY(check_handle(device, handle, &local));
  accrt_pool_t* pool;
  ACCRT_TRY(accrt_pool_default(device, ACCRT_MEMORY_IMPORTED, &pool));
  accrt_buffer_t* buffer;
  ACCRT_TRY(accrt_pool_buffer_record(pool, &buffer));
  accrt_status_t status = open_handle(device, &local, buffer);
  if (status != ACCRT_OK) {
    accrt_pool_drop_record(pool, buffer);
    return status;
  }
  buffer->id = accrt_instance_next_id(pool->instance);
  buffer->alignment_bytes = natural_alignment(buffer->address);
  accrt_pool_add_live(pool, buffer);
  (void)accrt_instance_retain(pool->instance);
  *out_buffer = buffer;
  return ACCRT_OK;
}
