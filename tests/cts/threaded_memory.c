/* tests/cts/threaded_memory.c - a part of threaded.c, which includes it: memory that other processes
 * may map. */

/* ---- Memory that leaves the process: files without a name ---- */

typedef struct shared {
  accrt_driver_memory_t described;
  int fd;
} shared_t;

/* A handle with bit 0 set is a shared_t; the others are what null.c allocated. */
static shared_t* shared_of(const accrt_driver_memory_t* memory) {
  const uintptr_t bits = (uintptr_t)memory->handle;
  return (bits & 1) != 0 ? (shared_t*)(bits - 1) : NULL;
}

static void describe(void* pointer, uint64_t size_bytes, void* handle,
                     accrt_driver_memory_t* out_memory) {
  out_memory->handle = handle;
  out_memory->device_address = (uint64_t)(uintptr_t)pointer;
  out_memory->host_pointer = pointer;
  out_memory->size_bytes = size_bytes;
}

static accrt_status_t allocate_exportable(accrt_driver_device_t* device, uint64_t size_bytes,
                                          uint32_t handle_kind, accrt_driver_memory_t* out_memory) {
  const threaded_driver_t* driver = driver_of(device);
  memset(out_memory, 0, sizeof *out_memory);
  if (handle_kind != ACCRT_DRIVER_HANDLE_FD)
    return refuse(driver, ACCRT_ERROR_UNSUPPORTED, "memory_allocate_exportable",
                  "memory is exported by file descriptor alone");
  shared_t* shared = allocate(driver->base.environment, sizeof *shared, "memory");
  if (shared == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  shared->fd = memfd_create("accrt", MFD_CLOEXEC);
  void* pointer = MAP_FAILED;
  if (shared->fd >= 0 && ftruncate(shared->fd, (off_t)size_bytes) == 0)
    pointer = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
  if (pointer == MAP_FAILED) {
    if (shared->fd >= 0)
      close(shared->fd);
    deallocate(driver->base.environment, shared, sizeof *shared);
    return refuse(driver, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, "memory_allocate_exportable",
                  "the system gave no memory");
  }
  describe(pointer, size_bytes, (void*)((uintptr_t)shared + 1), out_memory);
  shared->described = *out_memory;
  return ACCRT_OK;
}

static void threaded_memory_free(accrt_driver_device_t* device,
                                 const accrt_driver_memory_t* memory) {
  shared_t* shared = shared_of(memory);
  if (shared == NULL) {
    memory_free(device, memory);
    return;
  }
  munmap(memory->host_pointer, memory->size_bytes);
  close(shared->fd);
  deallocate(device->driver->environment, shared, sizeof *shared);
}

static accrt_status_t memory_export(accrt_driver_device_t* device,
                                    const accrt_driver_memory_t* memory, uint32_t handle_kind,
                                    accrt_driver_handle_t* out_handle) {
  const threaded_driver_t* driver = driver_of(device);
  memset(out_handle, 0, sizeof *out_handle);
  out_handle->fd = -1;
  const shared_t* shared = shared_of(memory);
  if (shared == NULL || handle_kind != ACCRT_DRIVER_HANDLE_FD)
    return refuse(driver, ACCRT_ERROR_UNSUPPORTED, "memory_export",
                  "this memory was not allocated for export by file descriptor");
  const int fd = dup(shared->fd); /* whoever receives it owns it */
  if (fd < 0)
    return refuse(driver, ACCRT_ERROR_INTERNAL, "memory_export", "dup failed");
  out_handle->kind = handle_kind;
  out_handle->fd = fd;
  out_handle->size_bytes = memory->size_bytes;
  return ACCRT_OK;
}

static accrt_status_t memory_import_handle(accrt_driver_device_t* device,
                                           const accrt_driver_handle_t* handle,
                                           accrt_driver_memory_t* out_memory) {
  const threaded_driver_t* driver = driver_of(device);
  memset(out_memory, 0, sizeof *out_memory);
  if (handle->kind != ACCRT_DRIVER_HANDLE_FD)
    return refuse(driver, ACCRT_ERROR_UNSUPPORTED, "memory_import_handle",
                  "memory is imported by file descriptor alone");
  struct stat about;
  if (fstat(handle->fd, &about) != 0 || about.st_size < 0 ||
      (uint64_t)about.st_size < handle->size_bytes || handle->size_bytes == 0)
    return refuse(driver, ACCRT_ERROR_INVALID_ARGUMENT, "memory_import_handle",
                  "the descriptor is of no memory of this size");
  void* pointer = mmap(NULL, handle->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle->fd, 0);
  if (pointer == MAP_FAILED)
    return refuse(driver, ACCRT_ERROR_INVALID_ARGUMENT, "memory_import_handle",
                  "the descriptor could not be mapped");
  describe(pointer, handle->size_bytes, pointer, out_memory);
  return ACCRT_OK;
}

static void threaded_unimport(accrt_driver_device_t* device, const accrt_driver_memory_t* memory) {
  (void)device;
  if (memory->handle != NULL)
    munmap(memory->handle, memory->size_bytes);
}
