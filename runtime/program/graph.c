/* runtime/program/graph.c - values of a plan while it is made. It knows no command and no slot. */
#include "runtime/program/graph.h"

#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/memory.h"

#define TABLE_FIRST_CAPACITY ((size_t)64)

__extension__ typedef __int128 wide_t;

void accrt_graph_init(accrt_graph_t* graph, const accrt_allocator_t* allocator) {
  memset(graph, 0, sizeof *graph);
  graph->allocator = allocator;
}

void accrt_graph_deinit(accrt_graph_t* graph) {
  accrt_free_array(graph->allocator, graph->nodes, graph->node_capacity, sizeof *graph->nodes);
  accrt_free_array(graph->allocator, graph->bounds, graph->bounds_capacity, sizeof *graph->bounds);
  accrt_free_array(graph->allocator, graph->table, graph->table_capacity, sizeof *graph->table);
  memset(graph, 0, sizeof *graph);
}

/* ---- Bounds ---- */

static int64_t clamp(wide_t value) {
  if (value > INT64_MAX)
    return INT64_MAX;
  if (value < INT64_MIN)
    return INT64_MIN;
  return (int64_t)value;
}

static uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

static uint64_t gcd(uint64_t a, uint64_t b) {
  while (b != 0) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static accrt_graph_bounds_t bounds_any(void) {
  const accrt_graph_bounds_t result = {INT64_MIN, INT64_MAX, 1};
  return result;
}

static accrt_graph_bounds_t bounds_multiply(accrt_graph_bounds_t a, accrt_graph_bounds_t b) {
  const wide_t corners[4] = {(wide_t)a.minimum * b.minimum, (wide_t)a.minimum * b.maximum,
                             (wide_t)a.maximum * b.minimum, (wide_t)a.maximum * b.maximum};
  wide_t low = corners[0];
  wide_t high = corners[0];
  for (int i = 1; i < 4; ++i) {
    if (corners[i] < low)
      low = corners[i];
    if (corners[i] > high)
      high = corners[i];
  }
  accrt_graph_bounds_t result = {clamp(low), clamp(high), 0};
  /* Where the product of the divisors does not fit, one of them is as good a divisor. */
  if (!accrt_mul_u64(a.divisor, b.divisor, &result.divisor))
    result.divisor = a.divisor;
  return result;
}

/* FLOORDIV, CEILDIV and MOD by a positive constant; anything else is not looked into. */
static accrt_graph_bounds_t bounds_divide(uint32_t op, accrt_graph_bounds_t a,
                                          accrt_graph_bounds_t b) {
  if (b.minimum != b.maximum || b.minimum <= 0)
    return bounds_any();
  const int64_t by = b.minimum;
  if (op == ACCX_EXPR_MOD) {
    if (a.minimum >= 0 && a.maximum < by)
      return a;
    const accrt_graph_bounds_t result = {0, by - 1, gcd(a.divisor, (uint64_t)by)};
    return result;
  }
  const accrt_expr_value_t none = accrt_expr_known(0);
  const accrt_expr_value_t divisor = accrt_expr_known(by);
  const accrt_graph_bounds_t result = {
      accrt_expr_apply(op, accrt_expr_known(a.minimum), divisor, none).value,
      accrt_expr_apply(op, accrt_expr_known(a.maximum), divisor, none).value,
      a.divisor % (uint64_t)by == 0 ? a.divisor / (uint64_t)by : 1,
  };
  return result;
}

static accrt_graph_bounds_t bounds_union(accrt_graph_bounds_t a, accrt_graph_bounds_t b) {
  const accrt_graph_bounds_t result = {a.minimum < b.minimum ? a.minimum : b.minimum,
                                       a.maximum > b.maximum ? a.maximum : b.maximum,
                                       gcd(a.divisor, b.divisor)};
  return result;
}

static accrt_graph_bounds_t bounds_extreme(uint32_t op, accrt_graph_bounds_t a,
                                           accrt_graph_bounds_t b) {
  accrt_graph_bounds_t result = bounds_union(a, b);
  if (op == ACCX_EXPR_MIN)
    result.maximum = a.maximum < b.maximum ? a.maximum : b.maximum;
  if (op == ACCX_EXPR_MAX)
    result.minimum = a.minimum > b.minimum ? a.minimum : b.minimum;
  return result;
}

static accrt_graph_bounds_t bounds_apply(uint32_t op, accrt_graph_bounds_t a,
                                         accrt_graph_bounds_t b, accrt_graph_bounds_t c) {
  accrt_graph_bounds_t result = {0, 1, 1}; /* comparisons and logic */
  switch (op) {
  case ACCX_EXPR_ADD:
    result.minimum = clamp((wide_t)a.minimum + b.minimum);
    result.maximum = clamp((wide_t)a.maximum + b.maximum);
    result.divisor = gcd(a.divisor, b.divisor);
    return result;
  case ACCX_EXPR_SUB:
    result.minimum = clamp((wide_t)a.minimum - b.maximum);
    result.maximum = clamp((wide_t)a.maximum - b.minimum);
    result.divisor = gcd(a.divisor, b.divisor);
    return result;
  case ACCX_EXPR_MUL:
    return bounds_multiply(a, b);
  case ACCX_EXPR_FLOORDIV:
  case ACCX_EXPR_CEILDIV:
  case ACCX_EXPR_MOD:
    return bounds_divide(op, a, b);
  case ACCX_EXPR_MIN:
  case ACCX_EXPR_MAX:
    return bounds_extreme(op, a, b);
  case ACCX_EXPR_SELECT:
    return bounds_union(b, c);
  default:
    return result;
  }
}

accrt_graph_bounds_t accrt_graph_bounds_of(const accrt_graph_t* graph, accrt_graph_value_t value) {
  if (value.node != ACCX_NONE)
    return graph->bounds[value.node];
  const accrt_graph_bounds_t result = {value.constant, value.constant, magnitude(value.constant)};
  return result;
}

/* ---- Nodes, each distinct one once ---- */

static uint64_t hash_node(const accx_expression_t* node) {
  uint64_t hash = node->op;
  const uint64_t parts[4] = {node->a, node->b, node->c, (uint64_t)node->immediate};
  for (int i = 0; i < 4; ++i) {
    hash = (hash ^ parts[i]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  return hash;
}

static bool same_node(const accx_expression_t* a, const accx_expression_t* b) {
  return a->op == b->op && a->a == b->a && a->b == b->b && a->c == b->c &&
         a->immediate == b->immediate;
}

/* The place of a node in the table: its own, or the empty one where it belongs. */
static size_t find_place(const accrt_graph_t* graph, const accx_expression_t* node) {
  const size_t mask = graph->table_capacity - 1;
  size_t place = (size_t)hash_node(node) & mask;
  while (graph->table[place] != 0 && !same_node(&graph->nodes[graph->table[place] - 1], node)) {
    place = (place + 1) & mask;
  }
  return place;
}

static accrt_status_t grow_table(accrt_graph_t* graph) {
  if (graph->table != NULL && (size_t)graph->count * 2 < graph->table_capacity)
    return ACCRT_OK;
  const size_t old_capacity = graph->table_capacity;
  uint32_t* const old = graph->table;
  const size_t capacity = old_capacity == 0 ? TABLE_FIRST_CAPACITY : old_capacity * 2;
  void* table;
  const accrt_status_t status = accrt_alloc_array(graph->allocator, capacity, sizeof *old, &table);
  if (status != ACCRT_OK)
    return status;
  graph->table = table;
  graph->table_capacity = capacity;
  for (uint32_t i = 0; i < graph->count; ++i)
    graph->table[find_place(graph, &graph->nodes[i])] = i + 1;
  accrt_free_array(graph->allocator, old, old_capacity, sizeof *old);
  return ACCRT_OK;
}

static accrt_status_t reserve(accrt_graph_t* graph) {
  void* nodes = graph->nodes;
  void* bounds = graph->bounds;
  const size_t needed = (size_t)graph->count + 1;
  accrt_status_t status = accrt_grow_array(graph->allocator, needed, sizeof *graph->nodes,
                                           &graph->node_capacity, &nodes);
  graph->nodes = nodes;
  if (status != ACCRT_OK)
    return status;
  status = accrt_grow_array(graph->allocator, needed, sizeof *graph->bounds,
                            &graph->bounds_capacity, &bounds);
  graph->bounds = bounds;
  return status != ACCRT_OK ? status : grow_table(graph);
}

/* Index of the node, new or old; 0 after a failure to allocate. */
static uint32_t intern(accrt_graph_t* graph, accx_expression_t node, accrt_graph_bounds_t bounds) {
  if (graph->status == ACCRT_OK)
    graph->status = reserve(graph);
  if (graph->status != ACCRT_OK)
    return 0;
  const size_t place = find_place(graph, &node);
  if (graph->table[place] != 0)
    return graph->table[place] - 1;
  graph->nodes[graph->count] = node;
  graph->bounds[graph->count] = bounds;
  graph->table[place] = ++graph->count;
  return graph->count - 1;
}

static accrt_graph_value_t value_of_node(const accrt_graph_t* graph, uint32_t node) {
  accrt_graph_value_t result = accrt_graph_constant(0);
  if (graph->status == ACCRT_OK)
    result.node = node;
  return result;
}

accrt_graph_value_t accrt_graph_symbol(accrt_graph_t* graph, uint32_t symbol,
                                       accrt_graph_bounds_t bounds) {
  const accx_expression_t node = {ACCX_EXPR_SYMBOL, ACCX_NONE, ACCX_NONE, ACCX_NONE, symbol};
  return value_of_node(graph, intern(graph, node, bounds));
}

static uint32_t constant_node(accrt_graph_t* graph, int64_t value) {
  const accx_expression_t node = {ACCX_EXPR_CONSTANT, ACCX_NONE, ACCX_NONE, ACCX_NONE, value};
  return intern(graph, node, accrt_graph_bounds_of(graph, accrt_graph_constant(value)));
}

/* A node for any value. A fault becomes an operation that has the same fault when it is evaluated: it may be the side of a
 * SELECT that no call ever takes. */
static uint32_t node_of(accrt_graph_t* graph, accrt_graph_value_t value) {
  if (value.node != ACCX_NONE)
    return value.node;
  if (value.fault == ACCRT_EXPR_OK)
    return constant_node(graph, value.constant);
  accx_expression_t node = {ACCX_EXPR_FLOORDIV, 0, 0, ACCX_NONE, 0};
  node.a = constant_node(graph, value.fault == ACCRT_EXPR_OVERFLOW ? INT64_MIN : 1);
  node.b = constant_node(graph, value.fault == ACCRT_EXPR_OVERFLOW ? -1 : 0);
  if (value.fault == ACCRT_EXPR_NO_VALUE) {
    const accx_expression_t symbol = {ACCX_EXPR_SYMBOL, ACCX_NONE, ACCX_NONE, ACCX_NONE,
                                      value.symbol};
    if (value.symbol != ACCX_NONE)
      node = symbol;
  }
  return intern(graph, node, bounds_any());
}

static accrt_expr_value_t known_part(accrt_graph_value_t value) {
  const accrt_expr_value_t result = {value.constant, value.fault, value.symbol};
  return result;
}

static accrt_graph_value_t fold(uint32_t op, accrt_graph_value_t a, accrt_graph_value_t b,
                                accrt_graph_value_t c) {
  const accrt_expr_value_t value =
      accrt_expr_apply(op, known_part(a), known_part(b), known_part(c));
  accrt_graph_value_t result = accrt_graph_fault(value.fault, value.symbol);
  result.constant = value.value;
  return result;
}

/* Results that are one of the operands or a constant although an operand is not known: true when there is one. */
static bool simplify(uint32_t op, accrt_graph_value_t a, accrt_graph_value_t b,
                     accrt_graph_value_t c, accrt_graph_value_t* out_value) {
  const bool is_sum = op == ACCX_EXPR_ADD || op == ACCX_EXPR_SUB;
  const bool decided = accrt_graph_is_constant(a);
  if (a.fault != ACCRT_EXPR_OK || (is_sum && accrt_graph_is_known(b, 0))) {
    *out_value = a;
  } else if (op == ACCX_EXPR_SELECT && decided) {
    *out_value = a.constant != 0 ? b : c;
  } else if (op == ACCX_EXPR_AND && accrt_graph_is_known(a, 0)) {
    *out_value = a;
  } else if (op == ACCX_EXPR_OR && decided && a.constant != 0) {
    *out_value = accrt_graph_constant(1);
  } else if ((op == ACCX_EXPR_MUL || op == ACCX_EXPR_FLOORDIV) && accrt_graph_is_known(b, 1)) {
    *out_value = a;
  } else if ((op == ACCX_EXPR_ADD && accrt_graph_is_known(a, 0)) ||
             (op == ACCX_EXPR_MUL && accrt_graph_is_known(a, 1))) {
    *out_value = b;
  } else {
    return false;
  }
  return true;
}

static bool is_commutative(uint32_t op) {
  return op == ACCX_EXPR_ADD || op == ACCX_EXPR_MUL || op == ACCX_EXPR_MIN || op == ACCX_EXPR_MAX ||
         op == ACCX_EXPR_EQ || op == ACCX_EXPR_NE;
}

/* One form for sums and products of a node and constants, so that equal sizes are the same node: constants to the right, and
 * (x + c) + d as x + (c + d). Only for positive constants: then what overflows on the way overflows in the end. */
static void normalize(const accrt_graph_t* graph, uint32_t op, accrt_graph_value_t* a,
                      accrt_graph_value_t* b) {
  if (is_commutative(op) && a->node == ACCX_NONE && b->node != ACCX_NONE) {
    const accrt_graph_value_t swapped = *a;
    *a = *b;
    *b = swapped;
  }
  if ((op != ACCX_EXPR_ADD && op != ACCX_EXPR_MUL) || a->node == ACCX_NONE ||
      !accrt_graph_is_constant(*b))
    return;
  const accx_expression_t* inner = &graph->nodes[a->node];
  if (inner->op != op || graph->nodes[inner->b].op != ACCX_EXPR_CONSTANT)
    return;
  const int64_t first = graph->nodes[inner->b].immediate;
  const accrt_expr_value_t both = accrt_expr_apply(
      op, accrt_expr_known(first), accrt_expr_known(b->constant), accrt_expr_known(0));
  if (first <= 0 || b->constant <= 0 || both.fault != ACCRT_EXPR_OK)
    return;
  a->node = inner->a;
  *b = accrt_graph_constant(both.value);
}

/* Whether a fault of the second operand is the operation's own. */
static bool needs_second(uint32_t op) {
  return op != ACCX_EXPR_SELECT && op != ACCX_EXPR_AND && op != ACCX_EXPR_OR;
}

accrt_graph_value_t accrt_graph_apply(accrt_graph_t* graph, uint32_t op, accrt_graph_value_t a,
                                      accrt_graph_value_t b, accrt_graph_value_t c) {
  const uint32_t count = accrt_expr_operand_count(op);
  const bool known = a.node == ACCX_NONE && (count < 2 || b.node == ACCX_NONE) &&
                     (count < 3 || c.node == ACCX_NONE);
  if (known)
    return fold(op, a, b, c);
  if (graph->status == ACCRT_OK)
    normalize(graph, op, &a, &b);
  accrt_graph_value_t result;
  if (simplify(op, a, b, c, &result))
    return result;
  if (count >= 2 && b.fault != ACCRT_EXPR_OK && needs_second(op))
    return b;
  const accrt_graph_bounds_t any = bounds_any();
  const accrt_graph_bounds_t bounds = bounds_apply(
      op, accrt_graph_bounds_of(graph, a), b.fault == 0 ? accrt_graph_bounds_of(graph, b) : any,
      c.fault == 0 ? accrt_graph_bounds_of(graph, c) : any);
  accx_expression_t node = {op, node_of(graph, a), ACCX_NONE, ACCX_NONE, 0};
  if (count > 1)
    node.b = node_of(graph, b);
  if (count > 2)
    node.c = node_of(graph, c);
  return value_of_node(graph, intern(graph, node, bounds));
}
