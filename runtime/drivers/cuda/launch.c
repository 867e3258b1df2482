/* runtime/drivers/cuda/launch.c - prepared launches (see launch.h). It may not use lists. */
#include "runtime/drivers/cuda/launch.h"

/* True when a graph makes the kernel's launch faster. A kernel that overlaps with its predecessor
 * is launched without a graph, because the start of a graph waits for that predecessor. */
static bool wants_graph(const cuda_kernel_t* kernel) {
  for (uint32_t i = 0; i < kernel->attribute_count; ++i) {
    if (kernel->attributes[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      return false;
  }
  return true;
}

static void point_fields(cuda_launch_t* launch, const void* block) {
  const cuda_kernel_t* kernel = launch->kernel;
  launch->block = block;
  /* CUDA only reads through these pointers, but its interface has no const. */
  unsigned char* bytes = (unsigned char*)(uintptr_t)block;
  for (uint32_t i = 0; i < kernel->param_count; ++i)
    launch->fields[i] = bytes + kernel->param_offsets[i];
}

static void init_params(cuda_launch_t* launch) {
  const cuda_kernel_t* kernel = launch->kernel;
  unsigned grid[3];
  cuda_least_grid(kernel, grid);
  launch->params = (CUDA_KERNEL_NODE_PARAMS){.func = kernel->function,
                                             .gridDimX = grid[0],
                                             .gridDimY = grid[1],
                                             .gridDimZ = grid[2],
                                             .blockDimX = kernel->block[0],
                                             .blockDimY = kernel->block[1],
                                             .blockDimZ = kernel->block[2],
                                             .sharedMemBytes = kernel->shared_bytes,
                                             .kernelParams = launch->fields};
}

/* Makes a graph with one kernel node. The parameters are zeros until the first launch. */
static CUresult make_graph(cuda_launch_t* launch) {
  static unsigned char
      /* not const: then it takes no space in the library's file */
      zeros[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  const cuda_kernel_t* kernel = launch->kernel;
  const cuda_api_t* api = launch->device->api;
  point_fields(launch, zeros);
  CUresult result = api->cuGraphCreate(&launch->graph, 0);
  if (result == CUDA_SUCCESS)
    result = api->cuGraphAddKernelNode(&launch->node, launch->graph, NULL, 0, &launch->params);
  for (uint32_t i = 0; i < kernel->attribute_count && result == CUDA_SUCCESS; ++i) {
    result = api->cuGraphKernelNodeSetAttribute(
        launch->node, (CUkernelNodeAttrID)kernel->attributes[i].id, &kernel->attributes[i].value);
  }
  return result;
}

static CUresult make_exec(cuda_launch_t* launch, CUgraphExec* out_exec) {
  const CUstreamCaptureMode mode = cuda_relax(launch->device);
  const CUresult result =
      launch->device->api->cuGraphInstantiateWithFlags(out_exec, launch->graph, 0);
  cuda_unrelax(launch->device, mode);
  return result;
}

/* ---- Making and destroying ---- */

static CUresult make_launch(cuda_launch_t* launch) {
  if (!wants_graph(launch->kernel))
    return CUDA_SUCCESS;
  const CUresult result = make_graph(launch);
  return result == CUDA_SUCCESS ? make_exec(launch, &launch->execs[0].exec) : result;
}

static void init_launch(cuda_launch_t* launch, cuda_device_t* device, const cuda_kernel_t* kernel) {
  launch->device = device;
  launch->kernel = kernel;
  init_params(launch);
}

static void destroy_launch(cuda_launch_t* launch) {
  cuda_device_t* device = launch->device;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  /* Executions in flight may go on: CUDA keeps what they need. */
  for (uint32_t i = 0; i < CUDA_LAUNCH_QUEUES; ++i) {
    if (launch->execs[i].exec != NULL)
      (void)device->api->cuGraphExecDestroy(launch->execs[i].exec);
  }
  if (launch->graph != NULL)
    (void)device->api->cuGraphDestroy(launch->graph);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  accrt_free(device->allocator, launch, sizeof *launch);
}

accrt_status_t accrt_cuda_launch_create(accrt_driver_device_t* opaque,
                                        const accrt_driver_kernel_t* kernel,
                                        accrt_driver_launch_t** out_launch) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  cuda_launch_t* launch;
  *out_launch = NULL;
  ACCRT_TRY(accrt_alloc(device->allocator, sizeof *launch, (void**)&launch));
  init_launch(launch, device, kernel->module_kernel);
  const cuda_scope_t scope = cuda_enter(device);
  const CUresult result = make_launch(launch);
  cuda_leave(device, scope);
  if (result != CUDA_SUCCESS) {
    const accrt_status_t status = accrt_cuda_fail(device, result, "cuGraphInstantiate",
                                                  "a launch of kernel '%s'", launch->kernel->name);
    destroy_launch(launch);
    return status;
  }
  *out_launch = (accrt_driver_launch_t*)launch;
  return ACCRT_OK;
}

void accrt_cuda_launch_destroy(accrt_driver_launch_t* launch) {
  destroy_launch((cuda_launch_t*)launch);
}

/* ---- Launching ---- */

/* Returns the queue's instantiated graph. The first queue gets the one that was made with the
 * launch. */
static CUresult find_exec(cuda_launch_t* launch, const cuda_queue_t* queue, CUgraphExec* out_exec) {
  for (uint32_t i = 0; i < CUDA_LAUNCH_QUEUES; ++i) {
    if (launch->execs[i].queue == queue || launch->execs[i].queue == NULL) {
      launch->execs[i].queue = queue;
      if (launch->execs[i].exec == NULL) {
        const CUresult result = make_exec(launch, &launch->execs[i].exec);
        if (result != CUDA_SUCCESS)
          launch->execs[i].queue = NULL;
        *out_exec = launch->execs[i].exec;
        return result;
      }
      *out_exec = launch->execs[i].exec;
      return CUDA_SUCCESS;
    }
  }
  cuda_launch_exec_t* oldest = &launch->execs[launch->next_exec++ % CUDA_LAUNCH_QUEUES];
  oldest->queue = queue;
  *out_exec = oldest->exec;
  return CUDA_SUCCESS;
}

static CUresult launch_graph(cuda_launch_t* launch, cuda_queue_t* queue, const uint32_t grid[3]) {
  const cuda_api_t* api = launch->device->api;
  CUgraphExec exec = launch->execs[0].exec;
  if (launch->execs[0].queue != queue) {
    const CUresult result = find_exec(launch, queue, &exec);
    if (result != CUDA_SUCCESS)
      return result;
  }
  launch->params.gridDimX = grid[0];
  launch->params.gridDimY = grid[1];
  launch->params.gridDimZ = grid[2];
  const CUresult result = api->cuGraphExecKernelNodeSetParams(exec, launch->node, &launch->params);
  return result != CUDA_SUCCESS ? result : api->cuGraphLaunch(exec, queue->stream);
}

/* True when this launch should use a graph. Relaxed: a wrong answer only costs a little time. */
static bool can_use_graph(cuda_device_t* device) {
  const unsigned others = atomic_fetch_add_explicit(&device->launching, 1, memory_order_relaxed);
  if (others >= CUDA_LAUNCH_AT_ONCE) {
    atomic_store_explicit(&device->contended_launches, CUDA_LAUNCH_CONTENDED, memory_order_relaxed);
    return false;
  }
  const unsigned contended_launches =
      atomic_load_explicit(&device->contended_launches, memory_order_relaxed);
  if (contended_launches == 0)
    return true;
  atomic_store_explicit(&device->contended_launches, contended_launches - 1, memory_order_relaxed);
  return others == 0;
}

static CUresult launch_block(cuda_launch_t* launch, cuda_queue_t* queue, const uint32_t grid[3],
                             const void* params) {
  if (launch->graph == NULL)
    return accrt_cuda_kernel_launch(launch->kernel, queue->stream, grid, params);
  CUresult result;
  if (can_use_graph(launch->device)) {
    if (launch->block != params)
      point_fields(launch, params);
    result = launch_graph(launch, queue, grid);
  } else {
    result = accrt_cuda_kernel_launch(launch->kernel, queue->stream, grid, params);
  }
  atomic_fetch_sub_explicit(&launch->device->launching, 1, memory_order_relaxed);
  return result;
}

static accrt_status_t launch_now(cuda_launch_t* launch, cuda_queue_t* queue, const uint32_t grid[3],
                                 const void* params) {
  const CUresult result = launch_block(launch, queue, grid, params);
  return result == CUDA_SUCCESS ? ACCRT_OK : accrt_cuda_kernel_fail(launch->kernel, result, grid);
}

/* Launches with all checks: for a wrapped stream, or when a check may fail. */
static accrt_status_t launch_checked(cuda_launch_t* launch, cuda_queue_t* queue,
                                     const uint32_t grid[3], const void* params, uint64_t number) {
  cuda_submit_t submit;
  ACCRT_TRY(accrt_cuda_submit_begin(queue, NULL, &submit));
  accrt_status_t status = launch_now(launch, queue, grid, params);
  if (status == ACCRT_OK)
    cuda_publish(queue, number);
  return accrt_cuda_submit_end(queue, NULL, &submit, launch->kernel->name, status);
}

accrt_status_t accrt_cuda_queue_launch(accrt_driver_queue_t* opaque_queue,
                                       accrt_driver_launch_t* opaque_launch, const uint32_t grid[3],
                                       const void* params, uint64_t number) {
  cuda_queue_t* queue = (cuda_queue_t*)opaque_queue;
  cuda_launch_t* launch = (cuda_launch_t*)opaque_launch;
  if (!cuda_queue_is_ready(queue))
    return launch_checked(launch, queue, grid, params, number);
  const cuda_scope_t scope = cuda_enter(launch->device);
  const accrt_status_t status = launch_now(launch, queue, grid, params);
  if (status == ACCRT_OK)
    cuda_publish(queue, number);
  cuda_leave(launch->device, scope);
  return status;
}

/* ---- Kernels that are launched repeatedly ---- */

/* A cache entry of a queue, for one kernel. */
typedef struct cached_launch {
  uint64_t kernel_id; /* 0: free */
  uint32_t uses;      /* launches before it was prepared */
  cuda_launch_t* launch;
} cached_launch_t;

/* The index is the kernel's id modulo the size. */
struct cuda_launch_cache {
  cached_launch_t entries[CUDA_LAUNCH_CACHE];
};

static void clear_entry(cached_launch_t* entry) {
  if (entry->launch != NULL)
    destroy_launch(entry->launch);
  *entry = (cached_launch_t){0};
}

/* Prepares the entry's kernel. After a failure the kernel is launched without a graph, and a later
 * launch tries again. */
static void prepare(cuda_queue_t* queue, cached_launch_t* entry, const cuda_kernel_t* kernel) {
  cuda_launch_t* launch;
  entry->uses = 0;
  if (accrt_alloc(queue->device->allocator, sizeof *launch, (void**)&launch) != ACCRT_OK)
    return;
  init_launch(launch, queue->device, kernel);
  if (make_launch(launch) == CUDA_SUCCESS)
    entry->launch = launch;
  else
    destroy_launch(launch);
}

static cached_launch_t* find_entry(cuda_queue_t* queue, const cuda_kernel_t* kernel) {
  if (queue->launches == NULL && accrt_alloc(queue->device->allocator, sizeof *queue->launches,
                                             (void**)&queue->launches) != ACCRT_OK)
    return NULL;
  cached_launch_t* entry = &queue->launches->entries[kernel->id % CUDA_LAUNCH_CACHE];
  if (entry->kernel_id != kernel->id) {
    clear_entry(entry);
    entry->kernel_id = kernel->id;
  }
  return entry;
}

CUresult accrt_cuda_queue_launch_kernel(cuda_queue_t* queue, const cuda_kernel_t* kernel,
                                        const uint32_t grid[3], const void* block) {
  cached_launch_t* entry = find_entry(queue, kernel);
  if (entry == NULL)
    return accrt_cuda_kernel_launch(kernel, queue->stream, grid, block);
  if (entry->launch == NULL && ++entry->uses >= CUDA_LAUNCH_CACHE_USES)
    prepare(queue, entry, kernel);
  return entry->launch != NULL ? launch_block(entry->launch, queue, grid, block)
                               : accrt_cuda_kernel_launch(kernel, queue->stream, grid, block);
}

void accrt_cuda_queue_forget_launches(cuda_queue_t* queue) {
  if (queue->launches == NULL)
    return;
  for (uint32_t i = 0; i < CUDA_LAUNCH_CACHE; ++i)
    clear_entry(&queue->launches->entries[i]);
  accrt_free(queue->device->allocator, queue->launches, sizeof *queue->launches);
}
