/* tests/fakecuda/core.c - start, devices, contexts, the way into every entry point. */
#include "settings.h"

#include <unistd.h>

fake_t fake = {.mutex = PTHREAD_MUTEX_INITIALIZER,
               .done = PTHREAD_COND_INITIALIZER,
               .queued = PTHREAD_COND_INITIALIZER};
_Thread_local fake_thread_t fake_thread;
static CUcontext dead_contexts; /* kept, so that their use is seen */

/* ---- The way in ---- */

static CUresult check_entry(unsigned needs, fake_guard_t* guard) {
  if (fake_thread.in_callback)
    return CUDA_ERROR_NOT_PERMITTED;
  if ((needs & NEED_INIT) && !fake.is_initialized)
    return CUDA_ERROR_NOT_INITIALIZED;
  guard->context = fake_thread.depth == 0 ? NULL : fake_thread.stack[fake_thread.depth - 1];
  if ((needs & NEED_CONTEXT) && guard->context == NULL)
    return CUDA_ERROR_INVALID_CONTEXT;
  if ((needs & NEED_CONTEXT) && guard->context->is_destroyed)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if ((needs & NOT_IN_CAPTURE) != 0) {
    const CUresult result = capture_unsafe(guard->context);
    if (result != CUDA_SUCCESS)
      return result;
  }
  if ((needs & NEED_HEALTH) && guard->context != NULL)
    return guard->context->lost;
  return CUDA_SUCCESS;
}

CUresult fake_enter(fake_site_t* entered, const char* name, unsigned needs, fake_guard_t* guard) {
  site_count(entered, name);
  if (fake.is_child)
    return CUDA_ERROR_NOT_INITIALIZED;
  const CUresult fault = fault_for(name);
  if (fake.settings.is_traced)
    fprintf(stderr, "fakecuda: %s%s\n", name, fault != CUDA_SUCCESS ? " fails on demand" : "");
  if (fault != CUDA_SUCCESS)
    return fault;
  pthread_mutex_lock(&fake.mutex);
  const CUresult result = check_entry(needs, guard);
  guard->is_locked = result == CUDA_SUCCESS;
  if (!guard->is_locked)
    pthread_mutex_unlock(&fake.mutex);
  return result;
}

void fake_leave(fake_guard_t* guard) {
  if (guard->is_locked)
    pthread_mutex_unlock(&fake.mutex);
}

/* ---- Start ---- */

static void after_fork(void) {
  fake.is_child = true;
}

__attribute__((constructor)) static void read_settings(void) {
  settings_read(&fake.settings);
}

/* With FAKECUDA_STRICT a program that misused the driver does not pass. */
__attribute__((destructor)) static void check_misuse(void) {
  const char* strict = getenv("FAKECUDA_STRICT");
  if (!fake.is_child && strict != NULL && strcmp(strict, "0") != 0 && fakecuda_complaints() != 0) {
    fputs("fakecuda: the driver was misused (above)\n", stderr);
    fflush(NULL);
    _exit(86);
  }
}

EXPORT CUresult cuInit(unsigned int Flags) {
  ENTER(0);
  if (Flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (fake.is_initialized)
    return CUDA_SUCCESS;
  if (fake.settings.init_result != CUDA_SUCCESS)
    return fake.settings.init_result;
  if (fake.settings.device_count == 0)
    return CUDA_ERROR_NO_DEVICE;
  pthread_atfork(NULL, NULL, after_fork);
  engine_start();
  fake.is_initialized = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* driverVersion) {
  ENTER(0);
  if (driverVersion == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = fake.settings.driver_version;
  return CUDA_SUCCESS;
}

/* ---- Devices ---- */

static bool is_device(CUdevice device) {
  return device >= 0 && device < fake.settings.device_count;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
  ENTER(NEED_INIT);
  if (count == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *count = fake.settings.device_count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER(NEED_INIT);
  if (device == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  ENTER(NEED_INIT);
  if (name == NULL || len <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, (size_t)len, "Fake CUDA device");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  ENTER(NEED_INIT);
  if (uuid == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, "fakecuda device", 16);
  uuid->bytes[15] = (char)('0' + dev);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(size_t* bytes, CUdevice dev) {
  ENTER(NEED_INIT);
  if (bytes == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = fake.settings.memory_bytes;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  ENTER(NEED_INIT);
  if (pciBusId == NULL || len <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", 0xF0 + dev);
  return CUDA_SUCCESS;
}

/* As an H200 answers, with fewer multiprocessors. */
static const struct {
  int attribute;
  int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7FFFFFFF},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0x7FFFFFFF},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
};

EXPORT CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  ENTER(NEED_INIT);
  if (pi == NULL || (int)attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  *pi = 0;
  if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    *pi = fake.settings.arch / 10;
  else if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    *pi = fake.settings.arch % 10;
  else if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)
    *pi = fake.settings.exclusive == 0   ? CU_COMPUTEMODE_DEFAULT
          : fake.settings.exclusive == 2 ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS
                                         : CU_COMPUTEMODE_PROHIBITED;
  else if (attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
    *pi = 0xF0 + dev;
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; ++i) {
    if (attributes[i].attribute == (int)attrib)
      *pi = attributes[i].value;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  ENTER(NEED_INIT);
  if (canAccessPeer == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev) || !is_device(peerDev))
    return CUDA_ERROR_INVALID_DEVICE;
  *canAccessPeer = dev != peerDev && fake.settings.has_peers;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib,
                                        CUdevice srcDevice, CUdevice dstDevice) {
  ENTER(NEED_INIT);
  if (value == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(srcDevice) || !is_device(dstDevice) || srcDevice == dstDevice)
    return CUDA_ERROR_INVALID_DEVICE;
  *value = attrib != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
  return CUDA_SUCCESS;
}

/* ---- Contexts ---- */

/* Primary contexts of a device where one was lost are refused from then on. */
static CUcontext context_create(CUdevice device, unsigned flags, bool is_primary) {
  CUcontext context = fake_allocate(sizeof *context);
  context->device = device;
  context->flags = flags;
  context->is_primary = is_primary;
  context->id = ++fake.next_id;
  context->legacy = stream_create(context, CU_STREAM_DEFAULT, 0);
  context->per_thread = stream_create(context, CU_STREAM_DEFAULT, 0);
  context->next = fake.contexts;
  fake.contexts = context;
  return context;
}

static bool context_is_live(CUcontext context) {
  for (CUcontext at = fake.contexts; at != NULL; at = at->next) {
    if (at == context)
      return true;
  }
  return false;
}

/* Its memory, streams and events go with it; the handle stays recognisable (it is never freed). */
static void context_destroy(CUcontext context) {
  engine_drain(context);
  task_release(context->orphaned);
  context->orphaned = NULL;
  for (CUcontext* at = &fake.contexts; *at != NULL; at = &(*at)->next) {
    if (*at == context) {
      *at = context->next;
      break;
    }
  }
  while (context->streams != NULL)
    stream_free(context->streams);
  while (context->events != NULL)
    event_free(context->events);
  memory_forget_context(context);
  context->is_destroyed = true;
  context->next = dead_contexts;
  dead_contexts = context;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  ENTER(NEED_INIT);
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  if (fake.settings.exclusive != 0)
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (fake.primaries[dev] == NULL && fake.lost[dev] != CUDA_SUCCESS)
    return fake.lost[dev];
  if (fake.primaries[dev] == NULL)
    fake.primaries[dev] = context_create(dev, fake.primary_flags[dev], true);
  ++fake.primaries[dev]->retain_count;
  *pctx = fake.primaries[dev];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  ENTER(NEED_INIT);
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  CUcontext context = fake.primaries[dev];
  if (context == NULL)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->retain_count != 0)
    return CUDA_SUCCESS;
  fake.primaries[dev] = NULL;
  context_destroy(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  ENTER(NEED_INIT);
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  CUcontext context = fake.primaries[dev];
  fake.primaries[dev] = NULL;
  if (context != NULL)
    context_destroy(context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  ENTER(NEED_INIT);
  if (flags == NULL || active == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  *flags = fake.primary_flags[dev];
  *active = fake.primaries[dev] != NULL;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  ENTER(NEED_INIT);
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  fake.primary_flags[dev] = flags;
  return CUDA_SUCCESS;
}

static CUresult push(CUcontext context) {
  if (fake_thread.depth == (int)(sizeof fake_thread.stack / sizeof fake_thread.stack[0]))
    return CUDA_ERROR_OUT_OF_MEMORY;
  fake_thread.stack[fake_thread.depth++] = context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                            CUdevice dev) {
  ENTER(NEED_INIT);
  (void)ctxCreateParams;
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  *pctx = context_create(dev, flags, false);
  return push(*pctx);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev);
EXPORT CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return cuCtxCreate(pctx, NULL, flags, dev);
}

EXPORT CUresult cuCtxDestroy(CUcontext ctx) {
  ENTER(NEED_INIT);
  if (!context_is_live(ctx) || ctx->is_primary)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (guard.context == ctx)
    --fake_thread.depth;
  context_destroy(ctx);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
  ENTER(NEED_INIT);
  if (ctx != NULL && !context_is_live(ctx) && !ctx->is_destroyed)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (fake_thread.depth != 0)
    --fake_thread.depth;
  return ctx == NULL ? CUDA_SUCCESS : push(ctx);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* pctx) {
  ENTER(NEED_INIT);
  if (pctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pctx = guard.context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext ctx) {
  ENTER(NEED_INIT);
  if (ctx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return context_is_live(ctx) ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext* pctx) {
  ENTER(NEED_INIT);
  if (fake_thread.depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  --fake_thread.depth;
  if (pctx != NULL)
    *pctx = guard.context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  ENTER(NEED_INIT);
  if (guard.context == NULL)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (device == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *device = guard.context->device;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned int* flags) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = guard.context->flags;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  ENTER(NEED_INIT);
  CUcontext context = ctx == NULL ? guard.context : ctx;
  if (context == NULL || !context_is_live(context))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (ctxId == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *ctxId = context->id;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  if (leastPriority != NULL)
    *leastPriority = 0;
  if (greatestPriority != NULL)
    *greatestPriority = -5;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  if (pvalue == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *pvalue = limit == CU_LIMIT_STACK_SIZE ? 1024 : 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
  ENTER(NORMAL);
  const CUresult result = capture_any(guard.context);
  if (result != CUDA_SUCCESS)
    return result;
  engine_drain(guard.context);
  return guard.context->lost;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  ENTER(UNSAFE);
  if (Flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!context_is_live(peerContext))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (peerContext->device == guard.context->device || !fake.settings.has_peers)
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const uint32_t bit = 1u << peerContext->device;
  if (guard.context->peers & bit)
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  guard.context->peers |= bit;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  ENTER(UNSAFE);
  if (!context_is_live(peerContext))
    return CUDA_ERROR_INVALID_CONTEXT;
  const uint32_t bit = 1u << peerContext->device;
  if (!(guard.context->peers & bit))
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  guard.context->peers &= ~bit;
  return CUDA_SUCCESS;
}
