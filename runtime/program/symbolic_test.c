/* runtime/program/symbolic_test.c - compares a plan's values with plain evaluation, for random
 * expressions and random symbols; and checks their bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/program/symbolic.h"
#include "tests/random.h"

#define SYMBOLS 4
#define NODES 24

static uint64_t random_state;
static uint32_t below(uint32_t limit) {
  return (uint32_t)test_below(&random_state, limit);
}

static accx_expression_t leaf(void) {
  accx_expression_t node = {ACCX_EXPR_CONSTANT, ACCX_NONE, ACCX_NONE, ACCX_NONE, 0};
  if (below(2) == 0) {
    node.op = ACCX_EXPR_SYMBOL;
    node.immediate = below(SYMBOLS);
  } else {
    const int64_t edges[] = {0, 1, -1, 2, 8, 64, INT64_MAX, INT64_MIN, 4096, -7};
    node.immediate = edges[below(10)];
  }
  return node;
}

static accx_expression_t random_node(uint32_t index) {
  static const uint32_t operations[] = {
      ACCX_EXPR_ADD,    ACCX_EXPR_SUB, ACCX_EXPR_MUL, ACCX_EXPR_FLOORDIV, ACCX_EXPR_CEILDIV,
      ACCX_EXPR_MOD,    ACCX_EXPR_MIN, ACCX_EXPR_MAX, ACCX_EXPR_EQ,       ACCX_EXPR_NE,
      ACCX_EXPR_LT,     ACCX_EXPR_LE,  ACCX_EXPR_AND, ACCX_EXPR_OR,       ACCX_EXPR_NOT,
      ACCX_EXPR_SELECT, ACCX_EXPR_ADD, ACCX_EXPR_MUL, ACCX_EXPR_MUL,      ACCX_EXPR_ADD};
  if (index < 4 || below(4) == 0)
    return leaf();
  accx_expression_t node = {operations[below(20)], below(index), ACCX_NONE, ACCX_NONE, 0};
  if (accx_expression_operands(node.op) > 1)
    node.b = below(index);
  if (accx_expression_operands(node.op) > 2)
    node.c = below(index);
  return node;
}

typedef struct symbol {
  bool known; /* a constant of the plan */
  bool bound;
  int64_t minimum, maximum, divisor;
  int64_t value; /* when known */
} symbol_t;

static int64_t draw(const symbol_t* symbol) {
  const int64_t first = (symbol->minimum + symbol->divisor - 1) / symbol->divisor;
  const int64_t last = symbol->maximum / symbol->divisor;
  return (first + (int64_t)below((uint32_t)(last - first + 1))) * symbol->divisor;
}

static symbol_t random_symbol(void) {
  symbol_t symbol = {below(3) == 0, below(8) != 0, 0, 0, 0, 0};
  symbol.divisor = (int64_t[]){1, 1, 8, 16}[below(4)];
  symbol.minimum = (int64_t)below(40);
  symbol.maximum = symbol.minimum + 16 + (int64_t)below(5000);
  symbol.value = draw(&symbol);
  return symbol;
}

static void evaluate_graph(accrt_symbolic_t* symbolic, const accx_expression_t* nodes,
                           const symbol_t* symbols, accrt_symbolic_value_t* values) {
  const accrt_symbolic_value_t zero = accrt_symbolic_constant(0);
  for (uint32_t i = 0; i < NODES; ++i) {
    const accx_expression_t* node = &nodes[i];
    if (node->op == ACCX_EXPR_CONSTANT) {
      values[i] = accrt_symbolic_constant(node->immediate);
    } else if (node->op == ACCX_EXPR_SYMBOL) {
      const symbol_t* symbol = &symbols[node->immediate];
      const accrt_symbolic_bounds_t bounds = {symbol->minimum, symbol->maximum,
                                              (uint64_t)symbol->divisor};
      if (!symbol->bound) {
        values[i] = accrt_symbolic_fault(ACCRT_EXPR_NO_VALUE, (uint32_t)node->immediate);
      } else {
        values[i] = symbol->known
                        ? accrt_symbolic_constant(symbol->value)
                        : accrt_symbolic_symbol(symbolic, (uint32_t)node->immediate, bounds);
      }
    } else {
      values[i] = accrt_symbolic_apply(symbolic, node->op, values[node->a],
                                       node->b == ACCX_NONE ? zero : values[node->b],
                                       node->c == ACCX_NONE ? zero : values[node->c]);
    }
  }
  assert_int_equal(symbolic->status, ACCRT_OK);
}

static void compare(const accrt_symbolic_t* symbolic, accrt_symbolic_value_t value,
                    const accrt_expr_value_t* symbolic_values, accrt_expr_value_t expected) {
  accrt_expr_value_t found = {value.constant, value.fault, value.symbol};
  if (value.node != ACCX_NONE)
    found = symbolic_values[value.node];
  assert_int_equal(found.fault == ACCRT_EXPR_OK, expected.fault == ACCRT_EXPR_OK);
  if (expected.fault != ACCRT_EXPR_OK)
    return;
  assert_int_equal(found.value, expected.value);
  const accrt_symbolic_bounds_t bounds = accrt_symbolic_bounds_of(symbolic, value);
  assert_true(expected.value >= bounds.minimum && expected.value <= bounds.maximum);
  const uint64_t magnitude =
      expected.value < 0 ? 0 - (uint64_t)expected.value : (uint64_t)expected.value;
  assert_true(bounds.divisor == 0 ? magnitude == 0 : magnitude % bounds.divisor == 0);
}

static void one_round(void) {
  accx_expression_t nodes[NODES];
  symbol_t symbols[SYMBOLS];
  accrt_symbolic_value_t values[NODES];
  for (uint32_t i = 0; i < NODES; ++i)
    nodes[i] = random_node(i);
  for (int i = 0; i < SYMBOLS; ++i)
    symbols[i] = random_symbol();
  accrt_symbolic_t symbolic;
  accrt_symbolic_init(&symbolic, &accrt_allocator_system);
  evaluate_graph(&symbolic, nodes, symbols, values);
  accrt_expr_value_t* symbolic_values = calloc(symbolic.count + 1, sizeof *symbolic_values);
  for (int draws = 0; draws < 20; ++draws) {
    accrt_expr_value_t live[SYMBOLS];
    for (uint32_t i = 0; i < SYMBOLS; ++i) {
      live[i] = symbols[i].bound
                    ? accrt_expr_known(symbols[i].known ? symbols[i].value : draw(&symbols[i]))
                    : accrt_expr_unknown(i);
    }
    accrt_expr_value_t expected[NODES];
    const accrt_expr_environment_t environment = {live, NULL, NULL, 0};
    accrt_expr_evaluate(nodes, NODES, &environment, expected);
    accrt_expr_evaluate(symbolic.nodes, symbolic.count, &environment, symbolic_values);
    for (uint32_t i = 0; i < NODES; ++i)
      compare(&symbolic, values[i], symbolic_values, expected[i]);
  }
  free(symbolic_values);
  accrt_symbolic_deinit(&symbolic);
}

static void agrees_with_plain_evaluation(void** state) {
  (void)state;
  random_state = test_seed();
  for (int round = 0; round < 20000; ++round)
    one_round();
}

static void makes_each_node_once(void** state) {
  (void)state;
  accrt_symbolic_t symbolic;
  accrt_symbolic_init(&symbolic, &accrt_allocator_system);
  const accrt_symbolic_bounds_t bounds = {1, 100, 1};
  const accrt_symbolic_value_t x = accrt_symbolic_symbol(&symbolic, 3, bounds);
  const accrt_symbolic_value_t four = accrt_symbolic_constant(4);
  const accrt_symbolic_value_t a = accrt_symbolic_two(
      &symbolic, ACCX_EXPR_MUL, accrt_symbolic_two(&symbolic, ACCX_EXPR_MUL, x, four), four);
  const accrt_symbolic_value_t b =
      accrt_symbolic_two(&symbolic, ACCX_EXPR_MUL, accrt_symbolic_constant(16), x);
  assert_int_equal(a.node, b.node);
  const accrt_symbolic_value_t one = accrt_symbolic_constant(1);
  assert_int_equal(accrt_symbolic_two(&symbolic, ACCX_EXPR_MUL, x, one).node, x.node);
  assert_int_equal(accrt_symbolic_two(&symbolic, ACCX_EXPR_SUB, x, accrt_symbolic_constant(0)).node,
                   x.node);
  for (uint32_t i = 0; i < 1000; ++i)
    (void)accrt_symbolic_two(&symbolic, ACCX_EXPR_ADD, x, accrt_symbolic_constant((int64_t)i));
  const uint32_t count = symbolic.count;
  for (uint32_t i = 0; i < 1000; ++i)
    (void)accrt_symbolic_two(&symbolic, ACCX_EXPR_ADD, x, accrt_symbolic_constant((int64_t)i));
  assert_int_equal(symbolic.count, count);
  accrt_symbolic_deinit(&symbolic);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(agrees_with_plain_evaluation),
      cmocka_unit_test(makes_each_node_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
