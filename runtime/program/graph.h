/* runtime/program/graph.h - values of a plan while it is made: constants, and what depends on symbols that are patched.
 *
 * The builder evaluates expressions over these values. What is known becomes a constant; what depends on a bucket or runtime
 * symbol becomes a node of the plan's own expression, each distinct one once, evaluated anew for a call. Nodes carry bounds:
 * the smallest and largest value and a number that divides all of them, with which predicates are proved.
 *
 * It knows no command and no slot.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_GRAPH_H_
#define ACCRT_RUNTIME_PROGRAM_GRAPH_H_

#include "accrt/instance.h"
#include "runtime/program/expr.h"

/* A constant (node is NONE), a node, or a fault. */
typedef struct accrt_graph_value {
  int64_t constant;
  uint32_t node;
  uint32_t fault;  /* ACCRT_EXPR_*; only constants have one */
  uint32_t symbol; /* of a NO_VALUE fault */
  uint32_t reserved;
} accrt_graph_value_t;

/* Of all values that a node can have when it has one. */
typedef struct accrt_graph_bounds {
  int64_t minimum;
  int64_t maximum;
  uint64_t divisor; /* divides every value; 0: the value is always 0 */
} accrt_graph_bounds_t;

typedef struct accrt_graph {
  const accrt_allocator_t* allocator;
  accx_expression_t* nodes; /* PRESENT and INDUCTION do not occur */
  accrt_graph_bounds_t* bounds;
  size_t node_capacity;
  size_t bounds_capacity;
  uint32_t* table; /* open addressing: node + 1, 0 is empty; capacity is a power of two */
  size_t table_capacity;
  uint32_t count;
  accrt_status_t status; /* the first failure to allocate; values are then meaningless */
} accrt_graph_t;

void accrt_graph_init(accrt_graph_t* graph, const accrt_allocator_t* allocator);
void accrt_graph_deinit(accrt_graph_t* graph);

static inline accrt_graph_value_t accrt_graph_constant(int64_t value) {
  const accrt_graph_value_t result = {value, ACCX_NONE, ACCRT_EXPR_OK, ACCX_NONE, 0};
  return result;
}
static inline accrt_graph_value_t accrt_graph_fault(uint32_t fault, uint32_t symbol) {
  const accrt_graph_value_t result = {0, ACCX_NONE, fault, symbol, 0};
  return result;
}
static inline bool accrt_graph_is_constant(accrt_graph_value_t value) {
  return value.node == ACCX_NONE && value.fault == ACCRT_EXPR_OK;
}
static inline bool accrt_graph_is_known(accrt_graph_value_t value, int64_t constant) {
  return accrt_graph_is_constant(value) && value.constant == constant;
}

/* A symbol whose value comes with each call. */
accrt_graph_value_t accrt_graph_symbol(accrt_graph_t* graph, uint32_t symbol,
                                       accrt_graph_bounds_t bounds);
/* An operation of accx_expression_t on values. */
accrt_graph_value_t accrt_graph_apply(accrt_graph_t* graph, uint32_t op, accrt_graph_value_t a,
                                      accrt_graph_value_t b, accrt_graph_value_t c);
static inline accrt_graph_value_t accrt_graph_two(accrt_graph_t* graph, uint32_t op,
                                                  accrt_graph_value_t a, accrt_graph_value_t b) {
  return accrt_graph_apply(graph, op, a, b, accrt_graph_constant(0));
}
/* Of any value without a fault. */
accrt_graph_bounds_t accrt_graph_bounds_of(const accrt_graph_t* graph, accrt_graph_value_t value);

#endif /* ACCRT_RUNTIME_PROGRAM_GRAPH_H_ */
