/* tests/fakecuda/graph.h - graphs and their nodes, for graph.c and capture.c. */
#ifndef FAKECUDA_GRAPH_H_
#define FAKECUDA_GRAPH_H_

#include "fake.h"

struct CUgraphNode_st {
  uint32_t magic;
  struct CUgraphNode_st* next_dead;
  CUgraph graph; /* NULL: removed */
  CUgraphNodeType type;
  op_t op;
  CUcontext context;
  node_set_t before;
  CUDA_MEMCPY3D copy;
  CUDA_MEMSET_NODE_PARAMS fill;
  unsigned kernel_attributes; /* bits of what was set */
  void** kernel_params;       /* what cuGraphKernelNodeGetParams hands out */
  uint32_t exec_index;        /* while an executable is made */
  CUgraphNode copy_of;        /* while a graph is cloned */
};

struct CUgraph_st {
  uint32_t magic;
  struct CUgraph_st* next_dead;
  CUgraph next;
  CUgraphNode* nodes;
  uint32_t count;
  uint32_t capacity;
  bool is_owned; /* by a child node, or a capture: not to be destroyed */
};

/* `is_owned`: by a child node, or a capture. */
CUgraph graph_new(bool is_owned);
CUgraphNode node_new(CUgraph graph, CUgraphNodeType type, op_t* op, CUcontext context);
void graph_free(CUgraph graph);
bool node_set_has(const node_set_t* set, CUgraphNode node);
void node_set_add(node_set_t* set, CUgraphNode node);

#endif /* FAKECUDA_GRAPH_H_ */
