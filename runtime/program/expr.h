/* runtime/program/expr.h - checked 64-bit evaluation of a bundle's expressions.
 *
 * It allocates nothing. It knows no program, session or call, only expression nodes and an
 * environment of values.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_EXPR_H_
#define ACCRT_RUNTIME_PROGRAM_EXPR_H_

#include <stdbool.h>
#include <stdint.h>

#include "accrt/base.h"
#include "format/known.h"

/* Why a node has no value. */
enum {
  ACCRT_EXPR_OK = 0,
  ACCRT_EXPR_OVERFLOW = 1,
  ACCRT_EXPR_DIVIDE = 2,   /* divides by zero */
  ACCRT_EXPR_NO_VALUE = 3, /* a symbol without a value, or a loop's counter outside of it */
};

/* The value of a node, or the fault for which it has none. */
typedef struct accrt_expr_value {
  int64_t value;
  uint32_t fault;  /* ACCRT_EXPR_* */
  uint32_t symbol; /* NO_VALUE: the symbol, or NONE for an induction variable */
} accrt_expr_value_t;

/* The values that leaf nodes refer to. */
typedef struct accrt_expr_environment {
  const accrt_expr_value_t* symbols; /* by symbol of the module */
  const uint8_t* present;            /* by argument of the function; may be NULL */
  const int64_t* inductions;
  uint32_t induction_count;
} accrt_expr_environment_t;

static inline accrt_expr_value_t accrt_expr_known(int64_t value) {
  const accrt_expr_value_t result = {value, ACCRT_EXPR_OK, ACCX_NONE};
  return result;
}
static inline accrt_expr_value_t accrt_expr_unknown(uint32_t symbol) {
  const accrt_expr_value_t result = {0, ACCRT_EXPR_NO_VALUE, symbol};
  return result;
}

/* Applies one operation. A fault of an operand is the fault of the result. AND, OR and SELECT
 * ignore an operand that cannot matter: the second one of AND after a zero, the second one of OR
 * after a non-zero value, and the side of SELECT that is not taken. */
accrt_expr_value_t accrt_expr_apply(uint32_t op, accrt_expr_value_t a, accrt_expr_value_t b,
                                    accrt_expr_value_t c);

/* Evaluates one node from the values of all nodes before it. */
accrt_expr_value_t accrt_expr_node(const accx_expression_t* node,
                                   const accrt_expr_environment_t* environment,
                                   const accrt_expr_value_t* values);

/* Evaluates all nodes of a scope in order. */
void accrt_expr_evaluate(const accx_expression_t* nodes, uint32_t count,
                         const accrt_expr_environment_t* environment,
                         accrt_expr_value_t* out_values);

/* Records why `value` has a fault: ACCRT_ERROR_OVERFLOW, or ACCRT_ERROR_INVALID_ARGUMENT for a
 * symbol without a value (`symbol_name`). `what` names the place, such as "grid x". */
accrt_status_t accrt_expr_fail(accrt_expr_value_t value, const char* symbol_name, const char* what);

#endif /* ACCRT_RUNTIME_PROGRAM_EXPR_H_ */
