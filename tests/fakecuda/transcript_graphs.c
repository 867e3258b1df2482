/* tests/fakecuda/transcript_graphs.c - the sections on graphs and captures. See transcript.c. */
#include "transcript.h"

static CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction f, void** params) {
  return (CUDA_KERNEL_NODE_PARAMS){.func = f,
                                   .gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = params};
}

void section_graph(void) {
  begin();
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraph other = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode nodes[8];
  CUgraphNode foreign = NULL;
  CUdeviceptr cells = 0;
  CUdeviceptr source = 0;
  uint32_t* pinned = NULL;
  static uint32_t plain[64];
  size_t count = 0;
  memset(nodes, 0, sizeof nodes);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cells, 4096);
  cuMemAlloc(&source, 4096);
  cuMemHostAlloc((void**)&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE);
  cuMemsetD32(cells, 0, 1024);
  cuMemsetD32(source, 1, 1024);
  cuCtxSynchronize();
  uint32_t number = 3;
  void* params[] = {&cells, &source, &number};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function("tx_mix"), params);
  CUDA_MEMSET_NODE_PARAMS fill = {
      .dst = cells + 64, .value = 9, .elementSize = 4, .width = 4, .height = 1};
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = cells,
                        .dstMemoryType = CU_MEMORYTYPE_HOST,
                        .dstHost = pinned,
                        .WidthInBytes = 256,
                        .Height = 1,
                        .Depth = 1};
  T(cuGraphCreate(NULL, 0));
  T(cuGraphCreate(&graph, 1));
  T(cuGraphCreate(&graph, 0));
  T(cuGraphCreate(&other, 0));
  T(cuGraphAddEmptyNode(&foreign, other, NULL, 0));
  T(cuGraphAddEmptyNode(NULL, graph, NULL, 0));
  T(cuGraphAddEmptyNode(&nodes[0], NULL, NULL, 0));
  T(cuGraphAddEmptyNode(&nodes[0], graph, NULL, 1));
  N("another graph's", cuGraphAddEmptyNode(&nodes[0], graph, &foreign, 1));
  T(cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, NULL));
  kernel.gridDimX = 0;
  N("no grid", cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
  kernel.gridDimX = 1;
  kernel.func = NULL;
  N("no function", cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
  kernel.func = function("tx_mix");
  T(cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
  T(cuGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, NULL, primary));
  fill.elementSize = 3;
  N("3 bytes", cuGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, &fill, primary));
  fill.elementSize = 4;
  T(cuGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, &fill, primary));
  T(cuGraphAddMemcpyNode(&nodes[2], graph, &nodes[1], 1, &copy, primary));
  CUgraphNode twice[] = {nodes[0], nodes[0]};
  N("one twice", cuGraphAddEmptyNode(&nodes[3], graph, twice, 2));
  T(cuGraphAddEmptyNode(&nodes[3], graph, nodes, 3));
  T(cuGraphAddDependencies(graph, &nodes[3], &nodes[3], NULL, 1));
  T(cuGraphAddDependencies(graph, &nodes[0], &nodes[1], NULL, 1));
  T(cuGraphAddDependencies(graph, NULL, NULL, NULL, 0));
  T(cuGraphGetNodes(graph, NULL, &count));
  V(count);
  CUgraphNode listed[10];
  count = 10;
  T(cuGraphGetNodes(graph, listed, &count));
  V(count);
  V(listed[0] == nodes[0]);
  T(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
  V(count);
  CUgraphNodeType type;
  T(cuGraphNodeGetType(nodes[2], &type));
  V(type);
  T(cuGraphNodeGetType(NULL, &type));
  CUDA_KERNEL_NODE_PARAMS got;
  memset(&got, 0, sizeof got);
  T(cuGraphKernelNodeGetParams(nodes[0], &got));
  V(got.func == kernel.func);
  V(got.kernelParams != NULL);
  V(got.kernelParams != NULL ? *(uint32_t*)got.kernelParams[2] : 0);
  T(cuGraphKernelNodeGetParams(nodes[1], &got));
  T(cuGraphInstantiateWithFlags(NULL, graph, 0));
  T(cuGraphInstantiateWithFlags(&exec, NULL, 0));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0x1000));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphUpload(exec, stream));
  T(cuGraphUpload(NULL, stream));
  T(cuGraphLaunch(NULL, stream));
  T(cuGraphLaunch(exec, stream));
  /* What is changed afterwards is for later launches. */
  number = 50;
  T(cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[0]);
  V(pinned[16]);
  T(cuGraphExecKernelNodeSetParams(exec, nodes[1], &kernel));
  T(cuGraphExecKernelNodeSetParams(exec, foreign, &kernel));
  T(cuGraphExecKernelNodeSetParams(exec, nodes[0], NULL));
  kernel.func = function("tx_nothing");
  N("another function", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.func = function("tx_mix");
  kernel.gridDimX = 0;
  N("no grid", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.gridDimX = 1;
  kernel.blockDimX = 2000;
  N("too many threads", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.blockDimX = 1;
  kernel.gridDimX = 3;
  kernel.gridDimY = 2;
  N("another grid", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.gridDimX = 1;
  kernel.gridDimY = 1;
  struct {
    CUdeviceptr target;
    CUdeviceptr source;
    uint32_t number;
  } block = {cells, source, 60};
  size_t size = 20;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  kernel.kernelParams = NULL;
  N("neither", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.extra = extra;
  N("a block", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  size = 24;
  N("a block with its tail", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.extra = NULL;
  kernel.kernelParams = params;
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[0]);
  fill.value = 11;
  fill.width = 2;
  N("value, width", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.elementSize = 1;
  N("element size", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.elementSize = 4;
  fill.height = 2;
  fill.pitch = 16;
  N("height", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.height = 1;
  fill.dst = source + 64;
  N("other memory", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.dst = (CUdeviceptr)(uintptr_t)(pinned + 512);
  N("pinned memory", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.dst = cells + 64;
  fill.width = 0;
  N("nothing", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.width = 4;
  N("no context", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, NULL));
  T(cuGraphExecMemsetNodeSetParams(exec, nodes[1], NULL, primary));
  T(cuGraphExecMemsetNodeSetParams(exec, nodes[0], &fill, primary));
  copy.WidthInBytes = 128;
  N("size", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.Height = 2;
  copy.srcPitch = copy.dstPitch = 128;
  N("rows", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.Height = 1;
  copy.srcPitch = copy.dstPitch = 0;
  copy.WidthInBytes = 0;
  N("nothing", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.WidthInBytes = 128;
  copy.dstHost = plain;
  N("to pageable memory", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = source;
  N("to the device", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.srcDevice = 64;
  N("from nowhere", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.srcDevice = cells;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = (CUdeviceptr)(uintptr_t)pinned;
  N("unified", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = pinned + 128;
  T(cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  T(cuGraphExecMemcpyNodeSetParams(exec, nodes[2], NULL, primary));
  T(cuGraphNodeSetEnabled(exec, nodes[0], 0));
  T(cuGraphNodeSetEnabled(exec, nodes[3], 0));
  T(cuGraphNodeSetEnabled(exec, nodes[2], 1));
  T(cuGraphNodeSetEnabled(exec, foreign, 1));
  unsigned enabled = 99;
  T(cuGraphNodeGetEnabled(exec, nodes[0], &enabled));
  V(enabled);
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[128]);
  V(pinned[128 + 16]);
  T(cuGraphNodeSetEnabled(exec, nodes[0], 1));
  /* Update from another graph. */
  CUgraphExecUpdateResultInfo info;
  memset(&info, 0, sizeof info);
  CUgraph clone = NULL;
  T(cuGraphClone(&clone, graph));
  T(cuGraphExecUpdate(exec, clone, &info));
  V(info.result);
  CUgraphNode added = NULL;
  T(cuGraphAddEmptyNode(&added, clone, NULL, 0));
  T(cuGraphExecUpdate(exec, clone, &info));
  V(info.result);
  T(cuGraphExecUpdate(exec, NULL, &info));
  T(cuGraphExecUpdate(exec, other, &info));
  V(info.result);
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[0]);
  /* A child graph. */
  T(cuGraphAddChildGraphNode(&nodes[4], graph, &nodes[3], 1, NULL));
  T(cuGraphAddChildGraphNode(&nodes[4], graph, &nodes[3], 1, clone));
  T(cuGraphAddKernelNode(&nodes[5], graph, &nodes[4], 1, &kernel));
  T(cuGraphExecDestroy(exec));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuGraphLaunch(exec, stream));
  T(cuGraphExecDestroy(exec));
  T(cuStreamSynchronize(stream));
  V(read_word(cells));
  T(cuGraphAddDependencies(graph, &nodes[5], &nodes[0], NULL, 1));
  N("a circle", cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphDestroy(clone));
  T(cuGraphDestroy(other));
  T(cuGraphDestroy(graph));
  T(cuGraphDestroy(NULL));
  T(cuGraphExecDestroy(NULL));
  /* Copies that do not say where memory is; copies and fills of several rows. */
  memset(nodes, 0, sizeof nodes);
  T(cuGraphCreate(&graph, 0));
  copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .srcDevice = cells,
                         .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .dstDevice = source,
                         .WidthInBytes = 64,
                         .Height = 1,
                         .Depth = 1};
  CUDA_MEMCPY3D rows = copy;
  rows.Height = 4;
  rows.srcPitch = rows.dstPitch = 128;
  CUDA_MEMSET_NODE_PARAMS flat = {
      .dst = cells, .value = 9, .elementSize = 4, .width = 4, .height = 3, .pitch = 64};
  T(cuGraphAddMemcpyNode(&nodes[0], graph, NULL, 0, &copy, primary));
  T(cuGraphAddMemcpyNode(&nodes[1], graph, &nodes[0], 1, &rows, primary));
  T(cuGraphAddMemsetNode(&nodes[2], graph, &nodes[1], 1, &flat, primary));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  copy.srcDevice = source + 512;
  copy.dstDevice = cells + 512;
  N("device to device", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  copy.dstDevice = (CUdeviceptr)(uintptr_t)pinned;
  N("device to pinned", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  copy.dstDevice = (CUdeviceptr)(uintptr_t)plain;
  N("device to pageable", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  copy.srcDevice = (CUdeviceptr)(uintptr_t)plain;
  copy.dstDevice = source;
  N("pageable to device", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  N("one row of several", cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &copy, primary));
  rows.Height = 3;
  N("fewer rows", cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &rows, primary));
  rows.srcDevice = cells + 1024;
  N("rows elsewhere", cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &rows, primary));
  flat.value = 10;
  N("another value", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.dst = cells + 1024;
  N("elsewhere", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.height = 1;
  N("one row of several", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.height = 2;
  N("fewer rows", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.pitch = 32;
  N("another pitch", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.width = 3;
  N("another width", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  copy.srcDevice = cells;
  copy.dstDevice = source;
  N("device to device", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
  /* Independent nodes, and an empty graph. */
  T(cuGraphCreate(&graph, 0));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  T(cuGraphExecDestroy(exec));
  CUevent event = NULL;
  cuEventCreate(&event, 0);
  T(cuGraphAddEventRecordNode(&nodes[0], graph, NULL, 0, event));
  T(cuGraphAddEventRecordNode(&nodes[1], graph, NULL, 0, NULL));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  be_late(stream);
  T(cuGraphLaunch(exec, stream));
  T(cuEventQuery(event));
  T(cuEventSynchronize(event));
  T(cuEventQuery(event));
}

void section_node_attribute(void) {
  begin();
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode node = NULL;
  CUgraphNode empty = NULL;
  CUdeviceptr cell = 0;
  CUdeviceptr source = 0;
  uint32_t number = 3;
  void* params[] = {&cell, &source, &number};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function("tx_mix"), params);
  CUlaunchAttributeValue attribute;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cell, 256);
  cuMemAlloc(&source, 256);
  cuMemsetD32(cell, 0, 64);
  cuMemsetD32(source, 1, 64);
  cuCtxSynchronize();
  cuGraphCreate(&graph, 0);
  T(cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
  T(cuGraphAddEmptyNode(&empty, graph, &node, 1));
  memset(&attribute, 0, sizeof attribute);
  attribute.cooperative = 1;
  T(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  T(cuGraphKernelNodeSetAttribute(empty, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  T(cuGraphKernelNodeSetAttribute(NULL, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  number = 4;
  N("of a cooperative kernel", cuGraphExecKernelNodeSetParams(exec, node, &kernel));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  T(cuGraphExecDestroy(exec));
  memset(&attribute, 0, sizeof attribute);
  T(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  attribute.clusterDim.x = 1;
  attribute.clusterDim.y = 1;
  attribute.clusterDim.z = 1;
  T(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &attribute));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
}

static CUgraph two_mixes(CUdeviceptr cell, CUdeviceptr source, uint32_t number) {
  void* params[] = {&cell, &source, &number};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function("tx_mix"), params);
  CUgraph graph = NULL;
  CUgraphNode nodes[2];
  cuGraphCreate(&graph, 0);
  cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel);
  number += 1;
  cuGraphAddKernelNode(&nodes[1], graph, &nodes[0], 1, &kernel);
  return graph;
}

void section_child(void) {
  begin();
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraph empty = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode child = NULL;
  CUgraphNode after = NULL;
  CUdeviceptr cell = 0;
  CUdeviceptr source = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cell, 256);
  cuMemAlloc(&source, 256);
  cuMemsetD32(cell, 0, 64);
  cuMemsetD32(source, 1, 64);
  cuCtxSynchronize();
  cuGraphCreate(&graph, 0);
  cuGraphCreate(&empty, 0);
  CUgraph first = two_mixes(cell, source, 3);
  CUgraph second = two_mixes(cell, source, 10);
  CUgraph elsewhere = two_mixes(cell + 64, source, 10);
  T(cuGraphAddChildGraphNode(&child, graph, NULL, 0, first));
  T(cuGraphAddEmptyNode(&after, graph, &child, 1));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  N("other values", cuGraphExecChildGraphNodeSetParams(exec, child, second));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  N("other memory", cuGraphExecChildGraphNodeSetParams(exec, child, elsewhere));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  V(read_word(cell + 64));
  N("not a child", cuGraphExecChildGraphNodeSetParams(exec, after, second));
  N("no graph", cuGraphExecChildGraphNodeSetParams(exec, child, NULL));
  N("another shape", cuGraphExecChildGraphNodeSetParams(exec, child, empty));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
}

/* What is tried while another stream is being captured. */
static CUresult try_call(int which, CUstream captured, CUstream apart, CUevent event,
                         CUdeviceptr memory, void* pinned, const char** out_name) {
  static unsigned char plain[64];
  CUdeviceptr made = 0;
  CUstream stream = NULL;
  CUevent fresh = NULL;
  CUmodule loaded = NULL;
  CUlibrary library = NULL;
  void* host = NULL;
  size_t free_bytes = 0;
  size_t total = 0;
  unsigned type = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUstreamCaptureStatus status;
  CUcontext context = NULL;
  static CUgraph graph;
  CUgraphExec exec = NULL;
#define CASE(number, call)                                                                         \
  case number:                                                                                     \
    *out_name = #call;                                                                             \
    return call
  switch (which) {
    CASE(0, cuMemAlloc(&made, 100));
    CASE(1, cuMemFree(0));
    CASE(2, cuMemHostAlloc(&host, 100, 0));
    CASE(3, cuMemHostRegister(plain, 64, 0));
    CASE(4, cuMemGetInfo(&free_bytes, &total));
    CASE(5, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
    CASE(6, cuMemCreate(&handle, GRAIN, &prop, 0));
    CASE(7, cuMemAddressReserve(&made, GRAIN, 0, 0, 0));
    CASE(8, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CASE(9, cuStreamQuery(apart));
    CASE(10, cuStreamSynchronize(apart));
    CASE(11, cuStreamQuery(captured));
    CASE(12, cuStreamSynchronize(captured));
    CASE(13, cuEventCreate(&fresh, 0));
    CASE(14, cuEventRecord(event, apart));
    CASE(15, cuEventQuery(event));
    CASE(16, cuEventSynchronize(event));
    CASE(17, cuStreamWaitEvent(apart, event, 0));
    CASE(18, cuStreamWaitEvent(captured, event, 0));
    CASE(19, cuMemsetD8Async(memory, 1, 4, apart));
    CASE(20, cuMemsetD8(memory, 1, 4));
    CASE(21, cuMemcpyHtoD(memory, pinned, 4));
    CASE(22, cuMemcpyAsync(memory, (CUdeviceptr)(uintptr_t)pinned, 4, captured));
    CASE(23, cuMemcpyAsync(memory, (CUdeviceptr)(uintptr_t)plain, 4, captured));
    CASE(24, cuMemcpyAsync((CUdeviceptr)(uintptr_t)plain, memory, 4, captured));
    CASE(25, cuModuleLoadData(&loaded, ptx));
    CASE(26, cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CASE(27, cuCtxSynchronize());
    CASE(28, cuStreamIsCapturing(captured, &status));
    CASE(29, cuStreamIsCapturing(NULL, &status));
    CASE(30, cuStreamGetCtx(captured, &context));
    CASE(31, cuStreamQuery(NULL));
    CASE(32, cuEventRecord(event, NULL));
    CASE(33, cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CASE(34, cuGraphCreate(&graph, 0));
    CASE(35, cuGraphInstantiateWithFlags(&exec, graph, 0));
    CASE(36, launch(function("tx_nothing"), 1, 1, captured, NULL));
    CASE(37, launch(function("tx_nothing"), 1, 1, apart, NULL));
    CASE(38, launch(function("tx_nothing"), 1, 1, NULL, NULL));
    CASE(39, cuMemHostUnregister(plain));
    CASE(40, cuMemRelease(handle));
    CASE(41, cuStreamDestroy(captured));
  default:
    return CUDA_ERROR_UNKNOWN;
  }
}

static void capture_around(CUstreamCaptureMode mode, unsigned stream_flags, int first, int last) {
  CUevent event = NULL;
  CUstream apart = NULL;
  CUdeviceptr memory = 0;
  void* pinned = NULL;
  cuEventCreate(&event, 0);
  cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&memory, 64);
  cuMemHostAlloc(&pinned, 64, 0);
  function("tx_nothing");
  cuEventRecord(event, apart);
  cuStreamSynchronize(apart);
  for (int which = first; which <= last; ++which) {
    CUstream captured = NULL;
    CUgraph graph = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const char* name = "";
    size_t count = 99;
    cuStreamCreate(&captured, stream_flags);
    cuStreamBeginCapture(captured, mode);
    const CUresult result = try_call(which, captured, apart, event, memory, pinned, &name);
    say(name, result);
    if (which == 41)
      continue;
    cuStreamIsCapturing(captured, &status);
    const CUresult ended = cuStreamEndCapture(captured, &graph);
    if (graph != NULL)
      cuGraphGetNodes(graph, NULL, &count);
    printf("  status %d, end %d, nodes %d\n", (int)status, (int)ended,
           graph == NULL ? -1 : (int)count);
    cuEventRecord(event, apart); /* whatever the event was, it is a plain one again */
    cuStreamSynchronize(apart);
    if (graph != NULL)
      cuGraphDestroy(graph);
    cuStreamDestroy(captured);
  }
}

void section_capture_global(void) {
  begin();
  capture_around(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_NON_BLOCKING, 0, 40);
}

void section_capture_blocking(void) {
  begin();
  capture_around(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_DEFAULT, 19, 40);
}

void section_capture_relaxed(void) {
  begin();
  capture_around(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING, 0, 40);
}

void section_capture(void) {
  begin();
  CUstream a = NULL;
  CUstream b = NULL;
  CUevent event = NULL;
  CUgraph graph = NULL;
  CUdeviceptr memory = 0;
  size_t count = 0;
  CUstreamCaptureMode mode;
  CUstreamCaptureStatus status;
  cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  cuMemAlloc(&memory, 4096);
  function("tx_mix");
  T(cuStreamEndCapture(a, &graph));
  T(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamBeginCapture(a, (CUstreamCaptureMode)9));
  mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  T(cuThreadExchangeStreamCaptureMode(&mode));
  V(mode);
  /* A relaxed thread may do what it likes beside somebody's capture. */
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr made = 0;
  T(cuMemAlloc(&made, 100));
  T(cuStreamSynchronize(b));
  T(cuStreamSynchronize(a));
  T(cuStreamEndCapture(a, &graph));
  V(graph == NULL);
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemAlloc(&made, 100));
  T(cuStreamEndCapture(a, &graph));
  V(graph == NULL);
  T(cuThreadExchangeStreamCaptureMode(&mode));
  V(mode);
  /* Fork and join. */
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuEventQuery(event));
  T(cuStreamIsCapturing(a, &status));
  V(status);
  T(cuStreamEndCapture(a, &graph));
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuStreamWaitEvent(b, event, 0));
  T(cuStreamIsCapturing(b, &status));
  V(status);
  T(cuMemsetD32Async(memory + 64, 1, 16, b));
  T(cuStreamEndCapture(b, &graph));
  T(cuStreamIsCapturing(a, &status));
  V(status);
  T(cuStreamEndCapture(a, &graph));
  V(graph == NULL);
  T(cuStreamIsCapturing(b, &status));
  V(status);
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuStreamWaitEvent(b, event, 0));
  T(cuMemsetD32Async(memory + 64, 1, 16, b));
  T(cuEventRecord(event, b));
  T(cuStreamWaitEvent(a, event, 0));
  T(cuMemsetD32Async(memory + 128, 1, 16, a));
  T(cuStreamEndCapture(a, &graph));
  T(cuGraphGetNodes(graph, NULL, &count));
  V(count);
  T(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
  V(count);
  CUgraphExec exec = NULL;
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphDestroy(graph));
  T(cuGraphLaunch(exec, b));
  T(cuStreamSynchronize(b));
  V(read_word(memory + 128));
  /* An event of an ended capture. */
  T(cuEventQuery(event));
  T(cuEventSynchronize(event));
  T(cuStreamWaitEvent(b, event, 0));
  T(cuStreamSynchronize(b));
  T(cuEventRecord(event, b));
  T(cuEventSynchronize(event));
  T(cuEventQuery(event));
  /* A capture that was spoiled says so until it is ended. */
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamSynchronize(a));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamEndCapture(a, &graph));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuStreamSynchronize(a));
}

/* Random work on streams, in any order that events allow; the result tells the order. */
void section_random(void) {
  begin();
  enum { STREAMS = 5, CELLS = 16, STEPS = 600 };
  CUstream streams[STREAMS];
  CUevent written[CELLS];
  CUevent used[CELLS];
  CUdeviceptr cells = 0;
  uint64_t seed = 20261120;
  cuMemAlloc(&cells, CELLS * 64);
  cuMemsetD8(cells, 0, CELLS * 64);
  cuCtxSynchronize();
  for (int i = 0; i < STREAMS; ++i)
    cuStreamCreateWithPriority(&streams[i], CU_STREAM_NON_BLOCKING, -i);
  for (int i = 0; i < CELLS; ++i) {
    cuEventCreate(&written[i], CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&used[i], CU_EVENT_DISABLE_TIMING);
  }
  CUfunction mix = function("tx_mix");
  int failures = 0;
  for (uint32_t step = 0; step < STEPS; ++step) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint32_t random = (uint32_t)(seed >> 33);
    CUstream stream = streams[random % STREAMS];
    const uint32_t to = random / 8 % CELLS;
    const uint32_t from = (to + 1 + random / 256 % (CELLS - 1)) % CELLS;
    CUdeviceptr target = cells + to * 64;
    CUdeviceptr source = cells + from * 64;
    void* params[] = {&target, &source, &step};
    failures += cuStreamWaitEvent(stream, written[to], 0) != CUDA_SUCCESS;
    failures += cuStreamWaitEvent(stream, used[to], 0) != CUDA_SUCCESS;
    failures += cuStreamWaitEvent(stream, written[from], 0) != CUDA_SUCCESS;
    failures += cuStreamWaitEvent(stream, used[from], 0) != CUDA_SUCCESS;
    if (random % 7 == 0)
      failures += cuMemcpyAsync(target, source, 4, stream) != CUDA_SUCCESS;
    else if (random % 11 == 0)
      failures += cuMemsetD32Async(target, step, 1, stream) != CUDA_SUCCESS;
    else
      failures += launch(mix, 1, 1, stream, params) != CUDA_SUCCESS;
    failures += cuEventRecord(written[to], stream) != CUDA_SUCCESS;
    failures += cuEventRecord(used[from], stream) != CUDA_SUCCESS;
  }
  V(failures);
  T(cuCtxSynchronize());
  for (uint32_t i = 0; i < CELLS; ++i)
    printf("  cell %u: %u\n", i, read_word(cells + i * 64));
}
