/* tests/fakecuda/graph.c - graphs and executable graphs. Captures are in capture.c.
 *
 * An executable graph is a flat list of nodes that were copied when it was made; a launch turns them
 * into tasks with copies of the parameters as they are at that moment. A child graph becomes its
 * nodes between two empty ones. */
#include "graph.h"

#define NO_NODE UINT32_MAX

typedef struct exec_node {
  CUgraphNode origin; /* NULL: a marker of a child graph */
  CUgraphNodeType type;
  op_t op;
  CUcontext context;
  bool is_disabled;
  uint32_t* before;
  uint32_t before_count;
} exec_node_t;

struct CUgraphExec_st {
  uint32_t magic;
  CUgraphExec next;
  CUcontext context;
  exec_node_t* nodes;
  uint32_t count;
  uint32_t capacity;
  task_t* last;
  task_t* upload; /* the latest; NULL: none */
  CUstream upload_stream;
  unsigned long long flags;
};

static CUgraph graphs;
static CUgraphExec execs;
static CUgraphNode dead_nodes; /* kept, so that their use is seen */
static CUgraph dead_graphs;

static void* grown(void* array, uint32_t count, uint32_t* capacity, size_t element_bytes) {
  if (count < *capacity)
    return array;
  *capacity = *capacity == 0 ? 8 : *capacity * 2;
  void* larger = realloc(array, *capacity * element_bytes);
  if (larger == NULL)
    abort();
  return larger;
}

/* ---- Graphs ---- */

CUgraph graph_new(bool is_owned) {
  CUgraph graph = fake_allocate(sizeof *graph);
  graph->magic = MAGIC_GRAPH;
  graph->is_owned = is_owned;
  graph->next = graphs;
  graphs = graph;
  return graph;
}

static bool graph_is_live(CUgraph graph) {
  for (CUgraph at = graphs; at != NULL; at = at->next) {
    if (at == graph)
      return true;
  }
  if (graph != NULL)
    fake_complain("%p is no graph, or one that was destroyed", (void*)graph);
  return false;
}

static bool node_is_live(CUgraphNode node) {
  if (node == NULL)
    return false;
  for (CUgraph graph = graphs; graph != NULL; graph = graph->next) {
    for (uint32_t i = 0; i < graph->count; ++i) {
      if (graph->nodes[i] == node)
        return true;
    }
  }
  fake_complain("%p is no node, or one that was destroyed", (void*)node);
  return false;
}

CUgraphNode node_new(CUgraph graph, CUgraphNodeType type, op_t* op, CUcontext context) {
  CUgraphNode node = fake_allocate(sizeof *node);
  node->magic = MAGIC_NODE;
  node->graph = graph;
  node->type = type;
  node->op = *op;
  node->context = context;
  op->kind = OP_EMPTY; /* taken over */
  graph->nodes = grown(graph->nodes, graph->count, &graph->capacity, sizeof(CUgraphNode));
  graph->nodes[graph->count++] = node;
  return node;
}

static void node_free(CUgraphNode node) {
  if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
    graph_free(node->op.as.child);
  op_free(&node->op);
  node_set_free(&node->before);
  free(node->kernel_params);
  node->kernel_params = NULL;
  node->magic = MAGIC_DEAD;
  node->graph = NULL;
  node->next_dead = dead_nodes;
  dead_nodes = node;
}

void graph_free(CUgraph graph) {
  for (CUgraph* at = &graphs; *at != NULL; at = &(*at)->next) {
    if (*at == graph) {
      *at = graph->next;
      break;
    }
  }
  for (uint32_t i = 0; i < graph->count; ++i)
    node_free(graph->nodes[i]);
  free(graph->nodes);
  graph->nodes = NULL;
  graph->magic = MAGIC_DEAD;
  graph->next_dead = dead_graphs;
  dead_graphs = graph;
}

static CUgraph graph_clone(CUgraph original, bool is_owned) {
  CUgraph clone = graph_new(is_owned);
  for (uint32_t i = 0; i < original->count; ++i) {
    CUgraphNode from = original->nodes[i];
    op_t op;
    op_clone(&op, &from->op);
    if (from->type == CU_GRAPH_NODE_TYPE_GRAPH)
      op.as.child = graph_clone(from->op.as.child, true);
    CUgraphNode to = node_new(clone, from->type, &op, from->context);
    to->copy = from->copy;
    to->fill = from->fill;
    to->kernel_attributes = from->kernel_attributes;
    from->copy_of = to;
  }
  for (uint32_t i = 0; i < original->count; ++i) {
    const node_set_t* before = &original->nodes[i]->before;
    for (uint32_t k = 0; k < before->count; ++k)
      node_set_add(&clone->nodes[i]->before, before->nodes[k]->copy_of);
  }
  return clone;
}

EXPORT CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  ENTER(NEED_INIT);
  if (phGraph == NULL || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *phGraph = graph_new(false);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  ENTER(NEED_INIT);
  if (phGraphClone == NULL || !graph_is_live(originalGraph))
    return CUDA_ERROR_INVALID_VALUE;
  *phGraphClone = graph_clone(originalGraph, false);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph hGraph) {
  ENTER(NEED_INIT);
  if (!graph_is_live(hGraph) || hGraph->is_owned)
    return CUDA_ERROR_INVALID_VALUE;
  graph_free(hGraph);
  return CUDA_SUCCESS;
}

/* ---- Nodes ---- */

static CUresult check_dependencies(CUgraph graph, const CUgraphNode* nodes, size_t count) {
  if (!graph_is_live(graph) || (count != 0 && nodes == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (!node_is_live(nodes[i]) || nodes[i]->graph != graph)
      return CUDA_ERROR_INVALID_VALUE;
    for (size_t k = 0; k < i; ++k) {
      if (nodes[k] == nodes[i])
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

static CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, op_t* op, CUcontext context,
                            const CUgraphNode* before, size_t count) {
  CUgraphNode node = node_new(graph, type, op, context);
  for (size_t i = 0; i < count; ++i)
    node_set_add(&node->before, before[i]);
  return node;
}

#define CHECK_NODE()                                                                               \
  if (phGraphNode == NULL)                                                                         \
    return CUDA_ERROR_INVALID_VALUE;                                                               \
  CUresult result = check_dependencies(hGraph, dependencies, numDependencies);                     \
  if (result != CUDA_SUCCESS)                                                                      \
  return result
#define ADD_NODE(type, context)                                                                    \
  *phGraphNode = add_node(hGraph, type, &op, context, dependencies, numDependencies)

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                    const CUgraphNode* dependencies, size_t numDependencies) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  op_t op = {.kind = OP_EMPTY};
  ADD_NODE(CU_GRAPH_NODE_TYPE_EMPTY, guard.context);
  return CUDA_SUCCESS;
}

static CUresult kernel_op(CUcontext context, const CUDA_KERNEL_NODE_PARAMS* params, op_t* out_op) {
  if (params == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUlaunchConfig config = {.gridDimX = params->gridDimX,
                                 .gridDimY = params->gridDimY,
                                 .gridDimZ = params->gridDimZ,
                                 .blockDimX = params->blockDimX,
                                 .blockDimY = params->blockDimY,
                                 .blockDimZ = params->blockDimZ,
                                 .sharedMemBytes = params->sharedMemBytes};
  CUfunction function = params->func != NULL ? params->func : (CUfunction)params->kern;
  const CUresult result =
      kernel_prepare(context, &config, function, params->kernelParams, params->extra, out_op);
  /* A block that is too large: said otherwise than at a launch. */
  return result == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES ? CUDA_ERROR_INVALID_VALUE : result;
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies,
                                     const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  ENTER(NORMAL);
  CHECK_NODE();
  op_t op;
  result = kernel_op(guard.context, nodeParams, &op);
  if (result == CUDA_SUCCESS)
    ADD_NODE(CU_GRAPH_NODE_TYPE_KERNEL, guard.context);
  return result;
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies,
                                     const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  op_t op = {.kind = OP_COPY};
  if (copyParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = copy_from_3d(copyParams, &op.as.copy);
  if (result != CUDA_SUCCESS)
    return result;
  ADD_NODE(CU_GRAPH_NODE_TYPE_MEMCPY, ctx != NULL ? ctx : guard.context);
  (*phGraphNode)->copy = *copyParams;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies,
                                     const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  op_t op = {.kind = OP_FILL};
  if (memsetParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = fill_from_params(memsetParams, &op.as.fill);
  if (result != CUDA_SUCCESS)
    return result;
  ADD_NODE(CU_GRAPH_NODE_TYPE_MEMSET, ctx != NULL ? ctx : guard.context);
  (*phGraphNode)->fill = *memsetParams;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies, size_t numDependencies,
                                   const CUDA_HOST_NODE_PARAMS* nodeParams) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  if (nodeParams == NULL || nodeParams->fn == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = OP_HOST, .as.host = {nodeParams->fn, nodeParams->userData}};
  ADD_NODE(CU_GRAPH_NODE_TYPE_HOST, guard.context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                         const CUgraphNode* dependencies, size_t numDependencies,
                                         CUgraph childGraph) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  if (!graph_is_live(childGraph) || childGraph == hGraph)
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = OP_CHILD, .as.child = graph_clone(childGraph, true)};
  ADD_NODE(CU_GRAPH_NODE_TYPE_GRAPH, guard.context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          CUevent event) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  if (!event_is_live(event))
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = OP_RECORD, .as.event = event};
  ADD_NODE(CU_GRAPH_NODE_TYPE_EVENT_RECORD, guard.context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                        const CUgraphNode* dependencies, size_t numDependencies,
                                        CUevent event) {
  ENTER(NEED_INIT);
  CHECK_NODE();
  if (!event_is_live(event))
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = OP_WAIT_EVENT, .as.event = event};
  ADD_NODE(CU_GRAPH_NODE_TYPE_WAIT_EVENT, guard.context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  ENTER(NEED_INIT);
  if (phGraph == NULL || !node_is_live(hNode) || hNode->type != CU_GRAPH_NODE_TYPE_GRAPH)
    return CUDA_ERROR_INVALID_VALUE;
  *phGraph = hNode->op.as.child;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  ENTER(NEED_INIT);
  if (type == NULL || !node_is_live(hNode))
    return CUDA_ERROR_INVALID_VALUE;
  *type = hNode->type;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  ENTER(NEED_INIT);
  if (numNodes == NULL || !graph_is_live(hGraph))
    return CUDA_ERROR_INVALID_VALUE;
  if (nodes == NULL) {
    *numNodes = hGraph->count;
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *numNodes; ++i)
    nodes[i] = i < hGraph->count ? hGraph->nodes[i] : NULL;
  if (*numNodes > hGraph->count)
    *numNodes = hGraph->count;
  return CUDA_SUCCESS;
}

static CUresult add_dependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                 size_t count) {
  if (!graph_is_live(graph) || (count != 0 && (from == NULL || to == NULL)))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (!node_is_live(from[i]) || !node_is_live(to[i]) || from[i]->graph != graph ||
        to[i]->graph != graph || from[i] == to[i] || node_set_has(&to[i]->before, from[i]))
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < count; ++i)
    node_set_add(&to[i]->before, from[i]);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from,
                                       const CUgraphNode* to, const CUgraphEdgeData* edgeData,
                                       size_t numDependencies) {
  ENTER(NEED_INIT);
  for (size_t i = 0; edgeData != NULL && i < numDependencies; ++i) {
    if (edgeData[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
      fake_count("edge.overlap");
  }
  /* a programmatic edge orders at least as a full one does here */
  return add_dependencies(hGraph, from, to, numDependencies);
}

#undef cuGraphAddDependencies
EXPORT CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from,
                                       const CUgraphNode* to, size_t numDependencies);
EXPORT CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from,
                                       const CUgraphNode* to, size_t numDependencies) {
  ENTER(NEED_INIT);
  return add_dependencies(hGraph, from, to, numDependencies);
}

static size_t edges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t capacity) {
  size_t count = 0;
  for (uint32_t i = 0; i < graph->count; ++i) {
    const node_set_t* before = &graph->nodes[i]->before;
    for (uint32_t k = 0; k < before->count; ++k, ++count) {
      if (count < capacity && from != NULL && to != NULL) {
        from[count] = before->nodes[k];
        to[count] = graph->nodes[i];
      }
    }
  }
  return count;
}

EXPORT CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                                CUgraphEdgeData* edgeData, size_t* numEdges) {
  ENTER(NEED_INIT);
  if (numEdges == NULL || !graph_is_live(hGraph))
    return CUDA_ERROR_INVALID_VALUE;
  const size_t capacity = from == NULL ? 0 : *numEdges;
  const size_t count = edges(hGraph, from, to, capacity);
  if (edgeData != NULL)
    memset(edgeData, 0, (count < capacity ? count : capacity) * sizeof *edgeData);
  *numEdges = count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  ENTER(NEED_INIT);
  if (nodeParams == NULL || !node_is_live(hNode) || hNode->type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  const op_kernel_t* kernel = &hNode->op.as.kernel;
  const image_kernel_t* image = function_image(kernel->function);
  free(hNode->kernel_params);
  hNode->kernel_params = fake_allocate((image->param_count + 1) * sizeof(void*));
  for (uint32_t i = 0; i < image->param_count; ++i)
    hNode->kernel_params[i] = kernel->params + image->param_offset[i];
  *nodeParams = (CUDA_KERNEL_NODE_PARAMS){.func = kernel->function,
                                          .gridDimX = kernel->grid[0],
                                          .gridDimY = kernel->grid[1],
                                          .gridDimZ = kernel->grid[2],
                                          .blockDimX = kernel->block[0],
                                          .blockDimY = kernel->block[1],
                                          .blockDimZ = kernel->block[2],
                                          .sharedMemBytes = kernel->shared_bytes,
                                          .kernelParams = hNode->kernel_params};
  return CUDA_SUCCESS;
}

static void replace_op(op_t* target, op_t* source) {
  op_free(target);
  *target = *source;
}

EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  ENTER(NORMAL);
  if (!node_is_live(hNode) || hNode->type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  op_t op;
  const CUresult result = kernel_op(guard.context, nodeParams, &op);
  if (result == CUDA_SUCCESS)
    replace_op(&hNode->op, &op);
  return result;
}

EXPORT CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  ENTER(NEED_INIT);
  if (nodeParams == NULL || !node_is_live(hNode) || hNode->type != CU_GRAPH_NODE_TYPE_MEMCPY)
    return CUDA_ERROR_INVALID_VALUE;
  *nodeParams = hNode->copy;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  ENTER(NEED_INIT);
  if (nodeParams == NULL || !node_is_live(hNode) || hNode->type != CU_GRAPH_NODE_TYPE_MEMSET)
    return CUDA_ERROR_INVALID_VALUE;
  *nodeParams = hNode->fill;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                              const CUkernelNodeAttrValue* value) {
  ENTER(NEED_INIT);
  if (value == NULL || !node_is_live(hNode) || hNode->type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  count_attribute((CUlaunchAttributeID)attr, "node.cluster", "node.cooperative", "node.overlap");
  if (attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    hNode->op.as.kernel.is_cooperative = value->cooperative != 0;
  if (attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
    const uint32_t cluster[3] = {value->clusterDim.x, value->clusterDim.y, value->clusterDim.z};
    memcpy(hNode->op.as.kernel.cluster, cluster, sizeof cluster);
  }
  hNode->kernel_attributes |= 1u << ((unsigned)attr & 31u);
  return CUDA_SUCCESS;
}

/* ---- Executable graphs ---- */

static uint32_t exec_add(CUgraphExec exec, CUgraphNode origin, CUgraphNodeType type,
                         CUcontext context) {
  exec->nodes = grown(exec->nodes, exec->count, &exec->capacity, sizeof(exec_node_t));
  exec->nodes[exec->count] = (exec_node_t){.origin = origin, .type = type, .context = context};
  return exec->count++;
}

static void exec_follow(CUgraphExec exec, uint32_t node, uint32_t before) {
  exec_node_t* at = &exec->nodes[node];
  uint32_t* larger = realloc(at->before, (at->before_count + 1) * sizeof(uint32_t));
  if (larger == NULL)
    abort();
  at->before = larger;
  at->before[at->before_count++] = before;
}

/* Adds a graph's nodes; those that follow nothing follow `start`. Indices of ends come in `ends` when it is wanted. */
static void exec_add_graph(CUgraphExec exec, CUgraph graph, uint32_t start) {
  for (uint32_t i = 0; i < graph->count; ++i) {
    CUgraphNode node = graph->nodes[i];
    const uint32_t first = exec_add(exec, node, node->type, node->context);
    node->exec_index = first;
    if (node->type != CU_GRAPH_NODE_TYPE_GRAPH) {
      op_clone(&exec->nodes[first].op, &node->op);
      continue;
    }
    const uint32_t inner = exec->count;
    exec_add_graph(exec, node->op.as.child, first);
    const uint32_t end = exec_add(exec, NULL, CU_GRAPH_NODE_TYPE_EMPTY, node->context);
    exec_follow(exec, end, first);
    for (uint32_t k = inner; k < end; ++k)
      exec_follow(exec, end, k);
    node->exec_index = end;
  }
  for (uint32_t i = 0; i < graph->count; ++i) {
    CUgraphNode node = graph->nodes[i];
    uint32_t first = node->exec_index;
    for (uint32_t k = 0; node->type == CU_GRAPH_NODE_TYPE_GRAPH && k < exec->count; ++k) {
      if (exec->nodes[k].origin == node)
        first = k;
    }
    for (uint32_t k = 0; k < node->before.count; ++k)
      exec_follow(exec, first, node->before.nodes[k]->exec_index);
    if (node->before.count == 0 && start != NO_NODE)
      exec_follow(exec, first, start);
  }
}

static bool has_cycle(CUgraph graph) { /* takes roots away until nothing is left */
  bool* taken = fake_allocate(graph->count);
  uint32_t left = graph->count;
  for (bool moved = true; moved && left != 0;) {
    moved = false;
    for (uint32_t i = 0; i < graph->count; ++i) {
      bool is_free = !taken[i];
      const node_set_t* before = &graph->nodes[i]->before;
      for (uint32_t k = 0; is_free && k < before->count; ++k) {
        for (uint32_t n = 0; n < graph->count; ++n)
          is_free &= graph->nodes[n] != before->nodes[k] || taken[n];
      }
      if (is_free) {
        taken[i] = moved = true;
        --left;
      }
    }
  }
  free(taken);
  return left != 0;
}

static void exec_clear(CUgraphExec exec) {
  for (uint32_t i = 0; i < exec->count; ++i) {
    op_free(&exec->nodes[i].op);
    free(exec->nodes[i].before);
  }
  free(exec->nodes);
  exec->nodes = NULL;
  exec->count = exec->capacity = 0;
}

static bool exec_is_live(CUgraphExec exec) {
  for (CUgraphExec at = execs; at != NULL; at = at->next) {
    if (at == exec)
      return true;
  }
  if (exec != NULL)
    fake_complain("%p is no executable graph, or one that was destroyed", (void*)exec);
  return false;
}

/* A grid is a whole number of clusters. */
static bool is_whole(const op_kernel_t* kernel) {
  for (int i = 0; i < 3; ++i) {
    if (kernel->cluster[i] != 0 && kernel->grid[i] % kernel->cluster[i] != 0)
      return false;
  }
  return true;
}

static bool are_whole(CUgraph graph) {
  for (uint32_t i = 0; i < graph->count; ++i) {
    if (graph->nodes[i]->type == CU_GRAPH_NODE_TYPE_KERNEL &&
        !is_whole(&graph->nodes[i]->op.as.kernel))
      return false;
  }
  return true;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph,
                                   unsigned long long flags) {
  ENTER(UNSAFE);
  if (phGraphExec == NULL || !graph_is_live(hGraph) || flags > 15)
    return CUDA_ERROR_INVALID_VALUE;
  if (hGraph->count < 2000 && has_cycle(hGraph))
    return CUDA_ERROR_INVALID_VALUE;
  if (!are_whole(hGraph))
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  CUgraphExec exec = fake_allocate(sizeof *exec);
  exec->magic = MAGIC_EXEC;
  exec->context = guard.context;
  exec->flags = flags;
  exec->next = execs;
  execs = exec;
  exec_add_graph(exec, hGraph, NO_NODE);
  *phGraphExec = exec;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  ENTER(NEED_INIT);
  if (!exec_is_live(hGraphExec))
    return CUDA_ERROR_INVALID_VALUE;
  for (CUgraphExec* at = &execs; *at != NULL; at = &(*at)->next) {
    if (*at == hGraphExec) {
      *at = hGraphExec->next;
      break;
    }
  }
  exec_clear(hGraphExec);
  task_release(hGraphExec->last);
  task_release(hGraphExec->upload);
  free(hGraphExec);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  ENTER(NORMAL);
  CUstream stream = NULL;
  const CUresult result = stream_find(guard.context, hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!exec_is_live(hGraphExec))
    return CUDA_ERROR_INVALID_VALUE;
  op_t op = {.kind = OP_EMPTY};
  const CUresult enqueued = stream_enqueue(stream, &op);
  if (enqueued == CUDA_SUCCESS) {
    task_release(hGraphExec->upload);
    hGraphExec->upload = stream->last;
    hGraphExec->upload_stream = stream;
    if (stream->last != NULL)
      task_retain(stream->last);
  }
  return enqueued;
}

void event_set_task(CUevent event, task_t* task);

static task_t* exec_task(const exec_node_t* node, CUcontext context) {
  if (node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
      node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
    task_t* task = task_create(context, NULL);
    if (node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && event_is_live(node->op.as.event))
      event_set_task(node->op.as.event, task);
    else if (event_is_live(node->op.as.event))
      task_follow(task, node->op.as.event->task);
    return task;
  }
  op_t op = {.kind = OP_EMPTY};
  const bool is_idle = node->is_disabled || node->op.kind == OP_EMPTY || node->op.kind == OP_CHILD;
  if (!is_idle)
    op_clone(&op, &node->op);
  return task_create(node->context != NULL ? node->context : context, &op);
}

/* CUDA promises an order behind earlier launches and the stream's earlier work, not behind an
 * upload on another stream. */
static void check_upload(CUgraphExec exec, CUstream stream) {
  if (exec->upload != NULL && exec->upload_stream != stream && !task_is_done(exec->upload))
    fake_complain("executable graph %p is launched before its upload on another stream has ended",
                  (void*)exec);
}

/* All tasks between two empty ones, so that the stream has one end to follow. */
static void exec_launch(CUgraphExec exec, CUstream stream) {
  task_t** tasks = fake_allocate(exec->count * sizeof(task_t*));
  task_t* begin = task_create(stream->context, NULL);
  task_t* end = task_create(stream->context, NULL);
  stream_order(stream, begin);
  task_follow(begin, exec->last); /* one launch of it after another */
  task_follow(end, begin);
  for (uint32_t i = 0; i < exec->count; ++i)
    tasks[i] = exec_task(&exec->nodes[i], stream->context);
  for (uint32_t i = 0; i < exec->count; ++i) {
    task_follow(tasks[i], begin);
    for (uint32_t k = 0; k < exec->nodes[i].before_count; ++k)
      task_follow(tasks[i], tasks[exec->nodes[i].before[k]]);
    task_follow(end, tasks[i]);
  }
  task_release(exec->last);
  exec->last = end;
  task_retain(end);
  for (uint32_t i = 0; i < exec->count; ++i)
    task_submit(tasks[i]);
  task_release(stream->last);
  stream->last = end;
  task_retain(end);
  task_submit(end);
  task_submit(begin);
  free(tasks);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  ENTER(NORMAL);
  CUstream stream = NULL;
  CUresult result = stream_find(guard.context, hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!exec_is_live(hGraphExec))
    return CUDA_ERROR_INVALID_VALUE;
  if (capture_is_active(stream->capture)) {
    capture_invalidate(stream->capture); /* the real one makes a child node: nobody needs it */
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream == stream->context->legacy)
    result = capture_implicit(stream->context);
  if (result == CUDA_SUCCESS) {
    check_upload(hGraphExec, stream);
    exec_launch(hGraphExec, stream);
  }
  return result;
}

static exec_node_t* exec_find(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type) {
  if (!exec_is_live(exec) || !node_is_live(node))
    return NULL;
  for (uint32_t i = 0; i < exec->count; ++i) {
    if (exec->nodes[i].origin == node)
      return exec->nodes[i].type == type ? &exec->nodes[i] : NULL;
  }
  return NULL;
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  ENTER(NORMAL);
  exec_node_t* node = exec_find(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_KERNEL);
  if (node == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  op_t op;
  const CUresult result = kernel_op(guard.context, nodeParams, &op);
  if (result != CUDA_SUCCESS)
    return result;
  op.as.kernel.is_cooperative = node->op.as.kernel.is_cooperative;
  memcpy(op.as.kernel.cluster, node->op.as.kernel.cluster, sizeof op.as.kernel.cluster);
  if (!is_whole(&op.as.kernel)) {
    op_free(&op);
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  replace_op(&node->op, &op);
  return CUDA_SUCCESS;
}

/* An end that is said to be the device's is. */
static bool ends_are_there(const CUDA_MEMCPY3D* described, const op_copy_t* copy) {
  if (described->srcMemoryType == CU_MEMORYTYPE_DEVICE &&
      memory_type(copy->source) != MEMORY_DEVICE)
    return false;
  return described->dstMemoryType != CU_MEMORYTYPE_DEVICE ||
         memory_type(copy->target) == MEMORY_DEVICE;
}

static bool is_line(const uint64_t extent[3]) {
  return extent[1] <= 1 && extent[2] <= 1;
}

EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  ENTER(NORMAL);
  exec_node_t* node = exec_find(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
  op_t op = {.kind = OP_COPY};
  if (node == NULL || copyParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = copy_from_3d(copyParams, &op.as.copy);
  if (result != CUDA_SUCCESS)
    return result;
  const op_copy_t* before = &node->op.as.copy;
  if ((ctx != NULL && ctx != node->context) || !is_line(before->extent) ||
      !is_line(op.as.copy.extent) || op.as.copy.extent[0] == 0 ||
      hNode->copy.srcMemoryType != copyParams->srcMemoryType ||
      hNode->copy.dstMemoryType != copyParams->dstMemoryType ||
      !ends_are_there(copyParams, &op.as.copy))
    return CUDA_ERROR_INVALID_VALUE;
  /* The copy was made for what the node had: memory that the device cannot reach comes to light when it runs. */
  op.as.copy.is_devices_own = copyParams->srcMemoryType == CU_MEMORYTYPE_UNIFIED ||
                              copyParams->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
  replace_op(&node->op, &op);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_MEMSET_NODE_PARAMS* memsetParams,
                                               CUcontext ctx) {
  ENTER(NORMAL);
  exec_node_t* node = exec_find(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMSET);
  op_t op = {.kind = OP_FILL};
  if (node == NULL || memsetParams == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = fill_from_params(memsetParams, &op.as.fill);
  if (result != CUDA_SUCCESS)
    return result;
  if ((ctx != NULL && ctx != node->context) || node->op.as.fill.height != op.as.fill.height ||
      op.as.fill.width == 0)
    return CUDA_ERROR_INVALID_VALUE;
  replace_op(&node->op, &op);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   CUgraph childGraph) {
  ENTER(NORMAL);
  if (!graph_is_live(childGraph) || exec_find(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_GRAPH) == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUgraph old = hNode->op.as.child;
  if (old->count != childGraph->count)
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  for (uint32_t i = 0; i < old->count; ++i) {
    if (old->nodes[i]->type != childGraph->nodes[i]->type)
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    exec_node_t* node = exec_find(hGraphExec, old->nodes[i], old->nodes[i]->type);
    if (node == NULL)
      return CUDA_ERROR_INVALID_VALUE;
    op_t op;
    op_clone(&op, &childGraph->nodes[i]->op);
    replace_op(&node->op, &op);
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      unsigned int isEnabled) {
  ENTER(NORMAL);
  exec_node_t* node = node_is_live(hNode) ? exec_find(hGraphExec, hNode, hNode->type) : NULL;
  if (node == NULL ||
      (node->type != CU_GRAPH_NODE_TYPE_KERNEL && node->type != CU_GRAPH_NODE_TYPE_MEMCPY &&
       node->type != CU_GRAPH_NODE_TYPE_MEMSET))
    return CUDA_ERROR_INVALID_VALUE;
  node->is_disabled = isEnabled == 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      unsigned int* isEnabled) {
  ENTER(NORMAL);
  const exec_node_t* node = node_is_live(hNode) ? exec_find(hGraphExec, hNode, hNode->type) : NULL;
  if (node == NULL || isEnabled == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *isEnabled = !node->is_disabled;
  return CUDA_SUCCESS;
}

static bool same_edges(const exec_node_t* a, const exec_node_t* b) {
  return a->type == b->type && a->before_count == b->before_count &&
         (a->before_count == 0 ||
          memcmp(a->before, b->before, a->before_count * sizeof(uint32_t)) == 0);
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph,
                                  CUgraphExecUpdateResultInfo* resultInfo) {
  ENTER(NORMAL);
  if (resultInfo == NULL || !exec_is_live(hGraphExec) || !graph_is_live(hGraph))
    return CUDA_ERROR_INVALID_VALUE;
  *resultInfo = (CUgraphExecUpdateResultInfo){CU_GRAPH_EXEC_UPDATE_SUCCESS, NULL, NULL};
  struct CUgraphExec_st fresh = {.context = guard.context};
  exec_add_graph(&fresh, hGraph, NO_NODE);
  if (fresh.count != hGraphExec->count)
    resultInfo->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (uint32_t i = 0; i < fresh.count && resultInfo->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; ++i) {
    if (same_edges(&fresh.nodes[i], &hGraphExec->nodes[i]))
      continue;
    resultInfo->result = fresh.nodes[i].type != hGraphExec->nodes[i].type
                             ? CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
                             : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    resultInfo->errorNode = fresh.nodes[i].origin;
  }
  const bool is_same = resultInfo->result == CU_GRAPH_EXEC_UPDATE_SUCCESS;
  for (uint32_t i = 0; is_same && i < fresh.count;
       ++i) { /* the nodes patched later are still the first graph's */
    replace_op(&hGraphExec->nodes[i].op, &fresh.nodes[i].op);
    fresh.nodes[i].op.kind = OP_EMPTY;
  }
  exec_clear(&fresh);
  return is_same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
