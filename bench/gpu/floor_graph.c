/* bench/gpu/floor_graph.c - what graphs of many nodes cost in the raw CUDA driver, and what may be
 * done with one whose earlier launch has not ended: patching, launching again, destroying. Every
 * behaviour that a runtime would rely on is checked by its results. It uses nothing of the
 * library. */
#include "floor_node.h"

#define MAX_NODES 1000

typedef struct many {
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[MAX_NODES];
  CUdeviceptr state;
  CUfunction function;
  int node_count, patches, launches_each;
  uint32_t value;
} many_t;

static void add_fold(many_t* m, int i, const CUgraphNode* after, size_t after_count) {
  uint32_t multiplier = 3, increment = (uint32_t)i;
  void* params[3] = {&m->state, &multiplier, &increment};
  CUDA_KERNEL_NODE_PARAMS p = kernel_node(m->function, 1, 32, params);
  CHECK(p_cuGraphAddKernelNode(&m->nodes[i], m->graph, after, after_count, &p));
}

static void many_init(many_t* m, CUstream stream, int node_count) {
  memset(m, 0, sizeof *m);
  m->stream = stream;
  m->node_count = node_count;
  m->function = floor_function(floor_library, "fold");
  CHECK(p_cuMemAlloc(&m->state, 4096));
  CHECK(p_cuMemsetD32(m->state, 0, 1024));
  CHECK(p_cuGraphCreate(&m->graph, 0));
  for (int i = 0; i < node_count; ++i)
    add_fold(m, i, i > 0 ? &m->nodes[i - 1] : NULL, i > 0);
  CHECK(p_cuGraphInstantiateWithFlags(&m->exec, m->graph, 0));
  CHECK(p_cuGraphUpload(m->exec, stream));
}

static void run_kernels(void* opaque, int count) {
  many_t* m = opaque;
  for (int c = 0; c < count; ++c) {
    for (int i = 0; i < m->node_count; ++i) {
      uint32_t multiplier = 3, increment = (uint32_t)i;
      void* params[3] = {&m->state, &multiplier, &increment};
      CHECK(p_cuLaunchKernel(m->function, 1, 1, 1, 32, 1, 1, 0, m->stream, params, NULL));
    }
  }
}

static void run_graph(void* opaque, int count) {
  many_t* m = opaque;
  for (int c = 0; c < count; ++c) {
    m->value += 1;
    for (int k = 0; k < m->patches; ++k) {
      uint32_t multiplier = 3, increment = m->value;
      void* params[3] = {&m->state, &multiplier, &increment};
      const CUDA_KERNEL_NODE_PARAMS p = kernel_node(m->function, 1, 32, params);
      const int node = m->patches == 1 ? (int)(m->value % (unsigned)m->node_count) : k;
      CHECK(p_cuGraphExecKernelNodeSetParams(m->exec, m->nodes[node], &p));
    }
    CHECK(p_cuGraphLaunch(m->exec, m->stream));
  }
}

/* All nodes patched in the graph, then the whole taken over at once. */
static void run_update(void* opaque, int count) {
  many_t* m = opaque;
  for (int c = 0; c < count; ++c) {
    m->value += 1;
    for (int k = 0; k < m->node_count; ++k) {
      uint32_t multiplier = 3, increment = m->value;
      void* params[3] = {&m->state, &multiplier, &increment};
      const CUDA_KERNEL_NODE_PARAMS p = kernel_node(m->function, 1, 32, params);
      CHECK(p_cuGraphKernelNodeSetParams(m->nodes[k], &p));
    }
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    CHECK(p_cuGraphExecUpdate(m->exec, m->graph, &info));
    CHECK(p_cuGraphLaunch(m->exec, m->stream));
  }
}

static void sizes(CUstream stream) {
  static many_t m[4][5];
  static char text[40][64];
  static const int counts[4] = {1, 10, 100, 1000};
  static many_t updated[4];
  for (int i = 0; i < 4; ++i) {
    floor_variant_t v[8];
    int n = 0;
    many_init(&m[i][0], stream, counts[i]);
    static const int patches[5] = {0, 1, 10, 100, 1000};
    snprintf(text[n], 64, "cuLaunchKernel x %d", counts[i]);
    v[n] = (floor_variant_t){.name = text[n], .run = run_kernels, .self = &m[i][0]};
    n += 1;
    for (int k = 0; k < 5; ++k) {
      if (patches[k] > counts[i])
        continue;
      m[i][k] = m[i][0];
      m[i][k].patches = patches[k];
      snprintf(text[n], 64, "cuGraphLaunch of %d, %d patched", counts[i], patches[k]);
      v[n] = (floor_variant_t){.name = text[n], .run = run_graph, .self = &m[i][k]};
      n += 1;
    }
    many_init(&updated[i], stream, counts[i]);
    v[n++] = (floor_variant_t){
        .name = "all patched by cuGraphExecUpdate", .run = run_update, .self = &updated[i]};
    floor_measure("chains of kernel nodes", v, n, 1, stream);
    if (counts[i] <= 100)
      floor_measure("chains of kernel nodes", v, n, 10, stream);
  }
}

/* ---- Creation ---- */

static void creation(CUstream stream) {
  printf("## creation: us, median of 9; bytes of device memory each\n");
  static const int counts[4] = {1, 10, 100, 1000};
  for (int i = 0; i < 4; ++i) {
    double build[9], make[9], upload[9], first[9], destroy[9];
    many_t m;
    many_init(&m, stream, counts[i]);
    CHECK(p_cuGraphLaunch(m.exec, stream));
    CHECK(p_cuStreamSynchronize(stream));
    size_t free0, free1, all;
    static CUgraphExec execs[64];
    for (int r = 0; r < 9; ++r) {
      const double t0 = floor_now_us();
      CHECK(p_cuGraphCreate(&m.graph, 0));
      for (int k = 0; k < counts[i]; ++k)
        add_fold(&m, k, k > 0 ? &m.nodes[k - 1] : NULL, k > 0);
      const double t1 = floor_now_us();
      CHECK(p_cuGraphInstantiateWithFlags(&m.exec, m.graph, 0));
      const double t2 = floor_now_us();
      CHECK(p_cuGraphUpload(m.exec, stream));
      CHECK(p_cuStreamSynchronize(stream));
      const double t3 = floor_now_us();
      CHECK(p_cuGraphLaunch(m.exec, stream));
      const double t4 = floor_now_us();
      CHECK(p_cuStreamSynchronize(stream));
      const double t5 = floor_now_us();
      CHECK(p_cuGraphExecDestroy(m.exec));
      const double t6 = floor_now_us();
      build[r] = t1 - t0, make[r] = t2 - t1, upload[r] = t3 - t2, first[r] = t4 - t3;
      destroy[r] = t6 - t5;
    }
    double cold[9];
    for (int r = 0; r < 9; ++r) {
      CHECK(p_cuGraphInstantiateWithFlags(&m.exec, m.graph, 0));
      const double t0 = floor_now_us();
      CHECK(p_cuGraphLaunch(m.exec, stream));
      cold[r] = floor_now_us() - t0;
      CHECK(p_cuStreamSynchronize(stream));
      CHECK(p_cuGraphExecDestroy(m.exec));
    }
    printf("first launch without upload %.1f us; ", floor_median(cold, 9));
    CHECK(p_cuMemGetInfo(&free0, &all));
    for (int k = 0; k < 64; ++k) {
      CHECK(p_cuGraphInstantiateWithFlags(&execs[k], m.graph, 0));
      CHECK(p_cuGraphUpload(execs[k], stream));
    }
    CHECK(p_cuStreamSynchronize(stream));
    CHECK(p_cuMemGetInfo(&free1, &all));
    for (int k = 0; k < 64; ++k)
      CHECK(p_cuGraphExecDestroy(execs[k]));
    printf("%4d nodes: build %9.1f instantiate %9.1f upload+sync %7.1f first launch %7.1f destroy "
           "%8.1f  %10.0f B each\n",
           counts[i], floor_median(build, 9), floor_median(make, 9), floor_median(upload, 9),
           floor_median(first, 9), floor_median(destroy, 9), (double)(free0 - free1) / 64);
  }
  fflush(stdout);
}

/* ---- While an earlier launch is in flight ---- */

typedef struct spinner {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node;
  CUfunction function;
  CUdeviceptr out;
} spinner_t;

static void spin_params(spinner_t* s, uint32_t index, uint32_t value, uint32_t ns,
                        CUgraphExec exec) {
  CUdeviceptr out = s->out + index * 4u;
  void* params[3] = {&out, &value, &ns};
  const CUDA_KERNEL_NODE_PARAMS p = kernel_node(s->function, 1, 32, params);
  if (exec == NULL)
    CHECK(p_cuGraphAddKernelNode(&s->node, s->graph, NULL, 0, &p));
  else
    CHECK(p_cuGraphExecKernelNodeSetParams(exec, s->node, &p));
}

static void in_flight(CUstream stream) {
  printf("## while an earlier launch is in flight (each kernel runs 300 us)\n");
  spinner_t s;
  memset(&s, 0, sizeof s);
  s.function = floor_function(floor_library, "spin");
  CHECK(p_cuMemAlloc(&s.out, 4096));
  CHECK(p_cuMemsetD32(s.out, 0, 1024));
  CHECK(p_cuGraphCreate(&s.graph, 0));
  spin_params(&s, 0, 1, 300000, NULL);
  CHECK(p_cuGraphInstantiateWithFlags(&s.exec, s.graph, 0));
  CHECK(p_cuGraphUpload(s.exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  double host[20];
  const double t0 = floor_now_us();
  for (uint32_t i = 0; i < 20; ++i) {
    const double a = floor_now_us();
    spin_params(&s, i, 100 + i, 300000, s.exec);
    CHECK(p_cuGraphLaunch(s.exec, stream));
    host[i] = floor_now_us() - a;
  }
  const double t1 = floor_now_us();
  CHECK(p_cuStreamSynchronize(stream));
  const double t2 = floor_now_us();
  uint32_t out[20];
  CHECK(p_cuMemcpyDtoH(out, s.out, sizeof out));
  int wrong = 0;
  for (uint32_t i = 0; i < 20; ++i)
    wrong += out[i] != 100 + i;
  printf("patch + launch 20 x one exec, one stream: host %.1f us in all (first %.1f second %.1f "
         "worst %.1f), done %.1f us; %s\n",
         t1 - t0, host[0], host[1], floor_median(host, 20) > host[19] ? host[19] : host[19],
         t2 - t0, wrong ? "WRONG" : "results right");
  /* The same exec on two streams: does the second wait for the first? */
  CUstream other;
  CHECK(p_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CHECK(p_cuMemsetD32(s.out, 0, 1024));
  const double t3 = floor_now_us();
  spin_params(&s, 0, 1, 300000, s.exec);
  CHECK(p_cuGraphLaunch(s.exec, stream));
  spin_params(&s, 1, 2, 300000, s.exec);
  CHECK(p_cuGraphLaunch(s.exec, other));
  const double t4 = floor_now_us();
  CHECK(p_cuStreamSynchronize(other));
  CHECK(p_cuStreamSynchronize(stream));
  const double t5 = floor_now_us();
  CHECK(p_cuMemcpyDtoH(out, s.out, 8));
  printf("one exec on two streams: host %.1f us, done %.1f us (%s), %s\n", t4 - t3, t5 - t3,
         t5 - t3 > 500 ? "one after the other" : "side by side",
         out[0] == 1 && out[1] == 2 ? "results right" : "WRONG");
  CUgraphExec second;
  CHECK(p_cuGraphInstantiateWithFlags(&second, s.graph, 0));
  CHECK(p_cuStreamSynchronize(stream));
  const double t6 = floor_now_us();
  CHECK(p_cuGraphLaunch(s.exec, stream));
  CHECK(p_cuGraphLaunch(second, other));
  CHECK(p_cuStreamSynchronize(other));
  CHECK(p_cuStreamSynchronize(stream));
  printf("two execs on two streams: done %.1f us\n", floor_now_us() - t6);
  /* Disabled while in flight, then enabled again. */
  CHECK(p_cuMemsetD32(s.out, 0, 1024));
  spin_params(&s, 0, 1, 300000, s.exec);
  CHECK(p_cuGraphLaunch(s.exec, stream));
  CHECK(p_cuGraphNodeSetEnabled(s.exec, s.node, 0));
  spin_params(&s, 1, 2, 1000, s.exec);
  CHECK(p_cuGraphLaunch(s.exec, stream));
  CHECK(p_cuGraphNodeSetEnabled(s.exec, s.node, 1));
  spin_params(&s, 2, 3, 1000, s.exec);
  CHECK(p_cuGraphLaunch(s.exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  CHECK(p_cuMemcpyDtoH(out, s.out, 12));
  printf("node disabled and enabled while in flight: %u %u %u, %s\n", out[0], out[1], out[2],
         out[0] == 1 && out[1] == 0 && out[2] == 3 ? "right" : "WRONG");
  double enable[2];
  const double e0 = floor_now_us();
  for (int i = 0; i < 1000; ++i)
    CHECK(p_cuGraphNodeSetEnabled(s.exec, s.node, i & 1));
  enable[0] = (floor_now_us() - e0) / 1000;
  printf("cuGraphNodeSetEnabled: %.3f us\n", enable[0]);
  CHECK(p_cuGraphNodeSetEnabled(s.exec, s.node, 1));
  /* Destroyed in flight. */
  CHECK(p_cuMemsetD32(s.out, 0, 1024));
  spin_params(&s, 5, 55, 300000, s.exec);
  CHECK(p_cuGraphLaunch(s.exec, stream));
  const double d0 = floor_now_us();
  CHECK(p_cuGraphExecDestroy(s.exec));
  const double d1 = floor_now_us();
  CHECK(p_cuStreamSynchronize(stream));
  CHECK(p_cuMemcpyDtoH(out, s.out, 24));
  printf("cuGraphExecDestroy in flight: %.1f us of the host, %s\n", d1 - d0,
         out[5] == 55 ? "result right" : "WRONG");
  /* Device memory of an exec that was destroyed in flight, cuGraphUpload while busy. */
  CHECK(p_cuGraphInstantiateWithFlags(&s.exec, s.graph, 0));
  CHECK(p_cuGraphLaunch(second, stream));
  const double u0 = floor_now_us();
  CHECK(p_cuGraphUpload(s.exec, stream));
  const double u1 = floor_now_us();
  CHECK(p_cuGraphInstantiateWithFlags(&second, s.graph, 0));
  const double u2 = floor_now_us();
  CHECK(p_cuStreamSynchronize(stream));
  printf("on a busy stream: cuGraphUpload %.1f us of the host, cuGraphInstantiate %.1f us\n",
         u1 - u0, u2 - u1);
  fflush(stdout);
}

/* ---- What SetParams can change ---- */

static void changes(CUstream stream) {
  printf("## what cuGraphExecKernelNodeSetParams can change\n");
  CUdeviceptr out;
  CHECK(p_cuMemAlloc(&out, 65536));
  CHECK(p_cuMemsetD32(out, 0, 16384));
  CUfunction fold = floor_function(floor_library, "fold");
  CUfunction spin = floor_function(floor_library, "spin");
  CUfunction cluster = floor_function(floor_library_90, "cluster_rank");
  uint32_t a = 0, b = 5;
  void* params[3] = {&out, &a, &b};
  CUDA_KERNEL_NODE_PARAMS p = kernel_node(fold, 1, 32, params);
  CUgraph g;
  CUgraphNode node;
  CUgraphExec exec;
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&node, g, NULL, 0, &p));
  CHECK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
  p.gridDimX = 64;
  p.blockDimX = 128;
  p.sharedMemBytes = 4096;
  printf("grid, block, shared memory: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &p)));
  uint32_t ns = 100, value = 77;
  void* params2[3] = {&out, &value, &ns};
  CUDA_KERNEL_NODE_PARAMS q = kernel_node(spin, 1, 32, params2);
  printf("another function of as many bytes: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &q)));
  CHECK(p_cuGraphLaunch(exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  CHECK(p_cuMemcpyDtoH(&value, out, 4));
  printf("  and it ran: %s\n", value == 77 ? "right" : "WRONG");
  CUfunction axpb = floor_function(floor_library, "axpb");
  int n = 0;
  float s = 1;
  void* params3[5] = {&out, &out, &out, &n, &s};
  CUDA_KERNEL_NODE_PARAMS r = kernel_node(axpb, 1, 32, params3);
  printf("another function with more arguments: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &r)));
  double t0 = floor_now_us();
  for (int i = 0; i < 1000; ++i) {
    CHECK(p_cuGraphExecKernelNodeSetParams(exec, node, i & 1 ? &p : &q));
    CHECK(p_cuGraphLaunch(exec, stream));
  }
  printf("  alternating two functions: submit %.3f us\n", (floor_now_us() - t0) / 1000);
  CHECK(p_cuStreamSynchronize(stream));
  /* cluster attribute, another grid */
  CUlaunchAttributeValue attribute;
  memset(&attribute, 0, sizeof attribute);
  attribute.clusterDim.x = 2;
  attribute.clusterDim.y = attribute.clusterDim.z = 1;
  void* params4[1] = {&out};
  CUDA_KERNEL_NODE_PARAMS c = kernel_node(cluster, 2, 32, params4);
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&node, g, NULL, 0, &c));
  CHECK(p_cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &attribute));
  CHECK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
  c.gridDimX = 8;
  printf("grid of a node with clusters: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &c)));
  CHECK(p_cuMemsetD32(out, 0, 16384));
  CHECK(p_cuGraphLaunch(exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  uint32_t ranks[8];
  CHECK(p_cuMemcpyDtoH(ranks, out, sizeof ranks));
  printf("  ranks %u %u %u %u .. %u (cluster of 2: 2 1002 2 1002 .. 1002): %s\n", ranks[0],
         ranks[1], ranks[2], ranks[3], ranks[7],
         ranks[0] == 2 && ranks[1] == 1002 && ranks[7] == 1002 ? "kept" : "LOST");
  c.gridDimX = 7;
  printf("  a grid that the cluster does not divide: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &c)));
  /* cooperative attribute */
  memset(&attribute, 0, sizeof attribute);
  attribute.cooperative = 1;
  p = kernel_node(fold, 4, 32, params);
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&node, g, NULL, 0, &p));
  CHECK(p_cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  CHECK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
  p.gridDimX = 16;
  printf("grid of a cooperative node: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &p)));
  p.gridDimX = 1000000;
  printf("  a grid too large to run at once: %s",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &p)));
  printf(", launch %s\n", floor_error(p_cuGraphLaunch(exec, stream)));
  printf("  then synchronize: %s\n", floor_error(p_cuStreamSynchronize(stream)));
  p.gridDimX = 0;
  printf("grid of 0: %s\n", floor_error(p_cuGraphExecKernelNodeSetParams(exec, node, &p)));
  /* memcpy and memset nodes */
  CUDA_MEMCPY3D copy;
  memset(&copy, 0, sizeof copy);
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = out;
  copy.dstDevice = out + 32768;
  copy.WidthInBytes = 64;
  copy.Height = copy.Depth = 1;
  CUgraphNode copy_node, set_node;
  CUDA_MEMSET_NODE_PARAMS set;
  memset(&set, 0, sizeof set);
  set.dst = out;
  set.value = 0x01020304;
  set.elementSize = 4;
  set.width = 16;
  set.height = 1;
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddMemsetNode(&set_node, g, NULL, 0, &set, floor_context));
  CHECK(p_cuGraphAddMemcpyNode(&copy_node, g, &set_node, 1, &copy, floor_context));
  CHECK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
  CHECK(p_cuGraphLaunch(exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  copy.dstDevice = out + 16384;
  printf("copy, another target: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context)));
  copy.WidthInBytes = 32;
  printf("copy, another size: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context)));
  copy.WidthInBytes = 16;
  copy.Height = 2;
  copy.srcPitch = copy.dstPitch = 32;
  printf("copy, 1D to 2D: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context)));
  copy.Depth = 2;
  copy.srcHeight = copy.dstHeight = 2;
  printf("copy, 1D to 3D: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context)));
  copy.Height = copy.Depth = 1;
  copy.srcPitch = copy.dstPitch = 0;
  copy.WidthInBytes = 64;
  void* host;
  CHECK(p_cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE));
  copy.dstDevice = (CUdeviceptr)(uintptr_t)host;
  printf("copy, target from device to pinned host: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context)));
  copy.WidthInBytes = 0;
  printf("copy of 0 bytes: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context)));
  CUgraph g2;
  CUgraphNode node2;
  CUgraphExec exec2;
  CUDA_MEMCPY3D rows = copy;
  rows.dstDevice = out + 16384;
  rows.WidthInBytes = 16;
  rows.Height = 4;
  rows.Depth = 1;
  rows.srcHeight = rows.dstHeight = 0;
  rows.srcPitch = 32;
  rows.dstPitch = 64;
  CHECK(p_cuGraphCreate(&g2, 0));
  rows.srcHeight = rows.dstHeight = 4;
  CHECK(p_cuGraphAddMemcpyNode(&node2, g2, NULL, 0, &rows, floor_context));
  CHECK(p_cuGraphInstantiateWithFlags(&exec2, g2, 0));
  rows.dstDevice = out + 32768;
  printf("copy, 2D, another target: %s\n",
         floor_error(p_cuGraphExecMemcpyNodeSetParams(exec2, node2, &rows, floor_context)));
  CUgraph g3;
  CUgraphExecUpdateResultInfo info;
  memset(&info, 0, sizeof info);
  CHECK(p_cuGraphCreate(&g3, 0));
  CHECK(p_cuGraphAddMemcpyNode(&node2, g3, NULL, 0, &rows, floor_context));
  printf("copy, 2D, another target, cuGraphExecUpdate: %s\n",
         floor_error(p_cuGraphExecUpdate(exec2, g3, &info)));
  void* null_params[3] = {&g2, &a, &b};
  uint64_t null_pointer = 0;
  null_params[0] = &null_pointer;
  CUDA_KERNEL_NODE_PARAMS z = kernel_node(fold, 1, 32, null_params);
  CHECK(p_cuGraphCreate(&g2, 0));
  CHECK(p_cuGraphAddKernelNode(&node2, g2, NULL, 0, &z));
  CHECK(p_cuGraphInstantiateWithFlags(&exec2, g2, 0));
  CHECK(p_cuGraphNodeSetEnabled(exec2, node2, 0));
  null_params[0] = &out;
  printf("patch of a disabled node: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(exec2, node2, &z)));
  CHECK(p_cuGraphLaunch(exec2, stream));
  set.dst = out + 128;
  set.width = 8;
  printf("fill, another target and size: %s\n",
         floor_error(p_cuGraphExecMemsetNodeSetParams(exec, set_node, &set, floor_context)));
  set.elementSize = 1;
  set.width = 7;
  printf("fill, another element size: %s\n",
         floor_error(p_cuGraphExecMemsetNodeSetParams(exec, set_node, &set, floor_context)));
  set.elementSize = 4;
  set.width = 8;
  set.height = 4;
  set.pitch = 256;
  printf("fill, 1D to 2D: %s\n",
         floor_error(p_cuGraphExecMemsetNodeSetParams(exec, set_node, &set, floor_context)));
  set.height = 1;
  set.pitch = 0;
  set.dst = out;
  copy.WidthInBytes = 64;
  copy.dstDevice = out + 32768;
  t0 = floor_now_us();
  for (int i = 0; i < 1000; ++i) {
    copy.dstDevice = out + 16384u * (1u + (unsigned)(i & 1));
    CHECK(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context));
  }
  const double t1 = floor_now_us();
  for (int i = 0; i < 1000; ++i) {
    set.dst = out + 256u * (unsigned)(i & 1);
    CHECK(p_cuGraphExecMemsetNodeSetParams(exec, set_node, &set, floor_context));
  }
  const double t2 = floor_now_us();
  printf("patch of a copy node %.3f us, of a fill node %.3f us\n", (t1 - t0) / 1000,
         (t2 - t1) / 1000);
  /* patched in flight, results checked */
  int wrong = 0;
  CHECK(p_cuMemsetD32(out, 0, 16384));
  for (uint32_t i = 0; i < 100; ++i) {
    set.dst = out;
    set.value = i + 1;
    set.width = 16;
    copy.srcDevice = out;
    copy.dstDevice = out + 4096 + 64 * i;
    CHECK(p_cuGraphExecMemsetNodeSetParams(exec, set_node, &set, floor_context));
    CHECK(p_cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, floor_context));
    CHECK(p_cuGraphLaunch(exec, stream));
  }
  CHECK(p_cuStreamSynchronize(stream));
  static uint32_t seen[1600];
  CHECK(p_cuMemcpyDtoH(seen, out + 4096, sizeof seen));
  for (uint32_t i = 0; i < 1600; ++i)
    wrong += seen[i] != i / 16 + 1;
  printf("fill and copy patched in flight 100 times: %s\n", wrong ? "WRONG" : "results right");
  fflush(stdout);
}

/* ---- Capture ---- */

static void captures(CUstream stream) {
  printf("## capture\n");
  CUdeviceptr out;
  CHECK(p_cuMemAlloc(&out, 4096));
  CHECK(p_cuMemsetD32(out, 0, 1024));
  CUfunction fold = floor_function(floor_library, "fold");
  uint32_t a = 3, b = 1;
  void* params[3] = {&out, &a, &b};
  CUDA_KERNEL_NODE_PARAMS p = kernel_node(fold, 1, 32, params);
  CUgraph g, child;
  CUgraphNode before, after, nodes[8];
  CUgraphExec exec;
  double times[9];
  CUstream inner;
  CHECK(p_cuStreamCreate(&inner, CU_STREAM_NON_BLOCKING));
  for (int r = 0; r < 9; ++r) {
    CHECK(p_cuGraphCreate(&g, 0));
    CHECK(p_cuGraphAddKernelNode(&before, g, NULL, 0, &p));
    const double t0 = floor_now_us();
    CHECK(p_cuStreamBeginCaptureToGraph(inner, g, &before, NULL, 1,
                                        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
    CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
    CHECK(p_cuStreamEndCapture(inner, &child));
    times[r] = floor_now_us() - t0;
    if (child != g)
      printf("EndCapture gave another graph\n");
  }
  size_t count = 8;
  CHECK(p_cuGraphGetNodes(g, nodes, &count));
  printf("cuStreamBeginCaptureToGraph, 2 launches, cuStreamEndCapture: %.2f us, %zu nodes in the "
         "graph\n",
         floor_median(times, 9), count);
  CHECK(p_cuGraphAddKernelNode(&after, g, &nodes[count - 1], 1, &p));
  CHECK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
  CHECK(p_cuGraphLaunch(exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  uint32_t seen;
  CHECK(p_cuMemcpyDtoH(&seen, out, 4));
  printf("  result %u of 40: %s\n", seen, seen == 40 ? "right" : "WRONG");
  /* child graph: recaptured and put in place of what was there */
  CHECK(p_cuStreamBeginCapture(inner, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
  CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
  CHECK(p_cuStreamEndCapture(inner, &child));
  CUgraphNode child_node;
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&before, g, NULL, 0, &p));
  CHECK(p_cuGraphAddChildGraphNode(&child_node, g, &before, 1, child));
  CHECK(p_cuGraphAddKernelNode(&after, g, &child_node, 1, &p));
  CHECK(p_cuGraphInstantiateWithFlags(&exec, g, 0));
  for (int r = 0; r < 9; ++r) {
    CUgraph again;
    b = (uint32_t)r + 2;
    const double t0 = floor_now_us();
    CHECK(p_cuStreamBeginCapture(inner, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
    CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
    CHECK(p_cuStreamEndCapture(inner, &again));
    CHECK(p_cuGraphExecChildGraphNodeSetParams(exec, child_node, again));
    CHECK(p_cuGraphDestroy(again));
    times[r] = floor_now_us() - t0;
  }
  CHECK(p_cuMemsetD32(out, 0, 1));
  CHECK(p_cuGraphLaunch(exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  CHECK(p_cuMemcpyDtoH(&seen, out, 4));
  printf("recapture + cuGraphExecChildGraphNodeSetParams: %.2f us, result %u of %u: %s\n",
         floor_median(times, 9), seen, ((1u * 3 + 10) * 3 + 10) * 3 + 1,
         seen == ((1u * 3 + 10) * 3 + 10) * 3 + 1 ? "right" : "WRONG");
  /* recapture with fewer kernels */
  CUgraph fewer;
  CHECK(p_cuStreamBeginCapture(inner, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK(p_cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, inner, params, NULL));
  CHECK(p_cuStreamEndCapture(inner, &fewer));
  printf("child with another number of nodes: %s\n",
         floor_error(p_cuGraphExecChildGraphNodeSetParams(exec, child_node, fewer)));
  /* cuGraphExecUpdate of the whole */
  CUgraphExecUpdateResultInfo info;
  memset(&info, 0, sizeof info);
  double t0 = floor_now_us();
  for (int i = 0; i < 100; ++i)
    CHECK(p_cuGraphExecUpdate(exec, g, &info));
  printf("cuGraphExecUpdate of 4 nodes: %.2f us\n", (floor_now_us() - t0) / 100);
  /* launching into a stream under capture */
  CHECK(p_cuStreamBeginCapture(inner, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  const CUresult into = p_cuGraphLaunch(exec, inner);
  CUgraph got = NULL;
  const CUresult ended = p_cuStreamEndCapture(inner, &got);
  printf("cuGraphLaunch into a stream under capture: %s, end %s\n", floor_error(into),
         floor_error(ended));
  fflush(stdout);
}

/* ---- Programmatic dependent launch in graphs ---- */

static void early(CUstream stream) {
  CUfunction fold = floor_function(floor_library, "fold");
  CUfunction fold_early = floor_function(floor_library_90, "fold_early");
  static many_t m[2];
  uint32_t want = 0;
  CUstream inner;
  CHECK(p_cuStreamCreate(&inner, CU_STREAM_NON_BLOCKING));
  for (uint32_t i = 0; i < 100; ++i)
    want = want * 3 + i;
  for (int k = 0; k < 2; ++k) {
    many_init(&m[k], stream, 1);
    m[k].function = k ? fold_early : fold;
    m[k].node_count = 100;
    CHECK(p_cuStreamBeginCapture(inner, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < 100; ++i) {
      uint32_t multiplier = 3;
      void* params[3] = {&m[k].state, &multiplier, &i};
      CUlaunchAttribute attribute;
      memset(&attribute, 0, sizeof attribute);
      attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attribute.value.programmaticStreamSerializationAllowed = k;
      CUlaunchConfig config;
      memset(&config, 0, sizeof config);
      config.gridDimX = config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = 32;
      config.blockDimY = config.blockDimZ = 1;
      config.hStream = inner;
      config.attrs = &attribute;
      config.numAttrs = 1;
      CHECK(p_cuLaunchKernelEx(&config, m[k].function, params, NULL));
    }
    CHECK(p_cuStreamEndCapture(inner, &m[k].graph));
    CHECK(p_cuGraphInstantiateWithFlags(&m[k].exec, m[k].graph, 0));
    CHECK(p_cuMemsetD32(m[k].state, 0, 1));
    CHECK(p_cuGraphLaunch(m[k].exec, stream));
    CHECK(p_cuStreamSynchronize(stream));
    uint32_t seen;
    CHECK(p_cuMemcpyDtoH(&seen, m[k].state, 4));
    printf("captured chain of 100 kernels%s: %s\n", k ? " with programmatic serialization" : "",
           seen == want ? "result right" : "WRONG");
  }
  floor_variant_t v[2] = {
      {.name = "chain of 100, full edges", .run = run_graph, .self = &m[0]},
      {.name = "chain of 100, programmatic edges", .run = run_graph, .self = &m[1]}};
  floor_measure("programmatic dependent launch", v, 2, 1, stream);
  /* By hand: nodes added with programmatic edges, then patched. */
  many_t h;
  memset(&h, 0, sizeof h);
  h.stream = stream;
  h.function = fold_early;
  h.node_count = 100;
  CHECK(p_cuMemAlloc(&h.state, 4096));
  CHECK(p_cuMemsetD32(h.state, 0, 1024));
  CHECK(p_cuGraphCreate(&h.graph, 0));
  for (int i = 0; i < 100; ++i) {
    add_fold(&h, i, NULL, 0);
    if (i == 0)
      continue;
    CUgraphEdgeData edge;
    memset(&edge, 0, sizeof edge);
    edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    CHECK(p_cuGraphAddDependencies(h.graph, &h.nodes[i - 1], &h.nodes[i], &edge, 1));
  }
  CHECK(p_cuGraphInstantiateWithFlags(&h.exec, h.graph, 0));
  uint32_t multiplier = 3, increment = 1000;
  void* params[3] = {&h.state, &multiplier, &increment};
  const CUDA_KERNEL_NODE_PARAMS p = kernel_node(h.function, 1, 32, params);
  printf("patch of a node with programmatic edges: %s\n",
         floor_error(p_cuGraphExecKernelNodeSetParams(h.exec, h.nodes[99], &p)));
  CHECK(p_cuGraphLaunch(h.exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  uint32_t seen;
  CHECK(p_cuMemcpyDtoH(&seen, h.state, 4));
  printf("  %s\n", seen == want - 99 + 1000 ? "result right" : "WRONG");
  /* Without some of its kernels. */
  uint32_t fewer = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    if (i == 0 || i == 50 || i == 51)
      CHECK(p_cuGraphNodeSetEnabled(h.exec, h.nodes[i], 0));
    else
      fewer = fewer * 3 + (i == 99 ? 1000 : i);
  }
  CHECK(p_cuMemsetD32(h.state, 0, 1));
  CHECK(p_cuGraphLaunch(h.exec, stream));
  CHECK(p_cuStreamSynchronize(stream));
  CHECK(p_cuMemcpyDtoH(&seen, h.state, 4));
  printf("nodes between programmatic edges disabled: %s\n",
         seen == fewer ? "result right" : "WRONG");
  fflush(stdout);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  floor_open();
  CUstream stream;
  CHECK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  in_flight(stream);
  changes(stream);
  captures(stream);
  early(stream);
  creation(stream);
  sizes(stream);
  return 0;
}
