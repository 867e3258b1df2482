/* runtime/program/symbolic.h - values while a plan is made: constants, and values that depend on
 * patched symbols.
 *
 * The builder evaluates expressions over these values. A known value becomes a constant. A value
 * that depends on a bucket or RUNTIME symbol becomes a node of the plan's own expression, which
 * each call evaluates. Each distinct node exists once. A node has bounds: its smallest and largest
 * value, and a number that divides all its values. The bounds serve to prove predicates.
 *
 * It knows no command and no slot.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_SYMBOLIC_H_
#define ACCRT_RUNTIME_PROGRAM_SYMBOLIC_H_

#include "accrt/instance.h"
#include "runtime/program/expr.h"

/* A constant (node is NONE), a node, or a fault. */
typedef struct accrt_symbolic_value {
  int64_t constant;
  uint32_t node;
  uint32_t fault;  /* ACCRT_EXPR_*; only constants have one */
  uint32_t symbol; /* the symbol of a NO_VALUE fault */
  uint32_t reserved;
} accrt_symbolic_value_t;

/* Bounds of all values of a node, faults left out. */
typedef struct accrt_symbolic_bounds {
  int64_t minimum;
  int64_t maximum;
  uint64_t divisor; /* divides every value; 0: the value is always 0 */
} accrt_symbolic_bounds_t;

typedef struct accrt_symbolic {
  const accrt_allocator_t* allocator;
  accx_expression_t* nodes; /* never PRESENT or INDUCTION */
  accrt_symbolic_bounds_t* bounds;
  size_t node_capacity;
  size_t bounds_capacity;
  uint32_t* table; /* open addressing: node + 1, 0 is empty; the capacity is a power of two */
  size_t table_capacity;
  uint64_t seed; /* seed of the table's hash */
  uint32_t count;
  accrt_status_t status; /* the first failed allocation; all values are invalid after it */
} accrt_symbolic_t;

void accrt_symbolic_init(accrt_symbolic_t* symbolic, const accrt_allocator_t* allocator);
void accrt_symbolic_deinit(accrt_symbolic_t* symbolic);

static inline accrt_symbolic_value_t accrt_symbolic_constant(int64_t value) {
  const accrt_symbolic_value_t result = {value, ACCX_NONE, ACCRT_EXPR_OK, ACCX_NONE, 0};
  return result;
}
static inline accrt_symbolic_value_t accrt_symbolic_fault(uint32_t fault, uint32_t symbol) {
  const accrt_symbolic_value_t result = {0, ACCX_NONE, fault, symbol, 0};
  return result;
}
static inline bool accrt_symbolic_is_constant(accrt_symbolic_value_t value) {
  return value.node == ACCX_NONE && value.fault == ACCRT_EXPR_OK;
}
bool accrt_symbolic_is_known(accrt_symbolic_value_t value, int64_t constant);

/* A symbol whose value each call gives. */
accrt_symbolic_value_t accrt_symbolic_symbol(accrt_symbolic_t* symbolic, uint32_t symbol,
                                             accrt_symbolic_bounds_t bounds);
/* Applies an operation of accx_expression_t to values. */
accrt_symbolic_value_t accrt_symbolic_apply(accrt_symbolic_t* symbolic, uint32_t op,
                                            accrt_symbolic_value_t a, accrt_symbolic_value_t b,
                                            accrt_symbolic_value_t c);
/* The same with two operands. */
accrt_symbolic_value_t accrt_symbolic_two(accrt_symbolic_t* symbolic, uint32_t op,
                                          accrt_symbolic_value_t a, accrt_symbolic_value_t b);
/* The bounds of any value without a fault. */
accrt_symbolic_bounds_t accrt_symbolic_bounds_of(const accrt_symbolic_t* symbolic,
                                                 accrt_symbolic_value_t value);

#endif /* ACCRT_RUNTIME_PROGRAM_SYMBOLIC_H_ */
