/* runtime/program/symbolic.c - values while a plan is made. It knows no command and no slot. */
#include "runtime/program/symbolic.h"

#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/memory.h"
#include "runtime/core/meter.h"

#define TABLE_FIRST_CAPACITY ((size_t)64)

__extension__ typedef __int128 wide_t;

void accrt_symbolic_init(accrt_symbolic_t* symbolic, const accrt_allocator_t* allocator) {
  memset(symbolic, 0, sizeof *symbolic);
  symbolic->allocator = allocator;
  symbolic->seed = accrt_hash_seed();
}

void accrt_symbolic_deinit(accrt_symbolic_t* symbolic) {
  accrt_free_array(symbolic->allocator, symbolic->nodes, symbolic->node_capacity,
                   sizeof *symbolic->nodes);
  accrt_free_array(symbolic->allocator, symbolic->bounds, symbolic->bounds_capacity,
                   sizeof *symbolic->bounds);
  accrt_free_array(symbolic->allocator, symbolic->table, symbolic->table_capacity,
                   sizeof *symbolic->table);
  memset(symbolic, 0, sizeof *symbolic);
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

static accrt_symbolic_bounds_t bounds_any(void) {
  const accrt_symbolic_bounds_t result = {INT64_MIN, INT64_MAX, 1};
  return result;
}

static accrt_symbolic_bounds_t bounds_multiply(accrt_symbolic_bounds_t a,
                                               accrt_symbolic_bounds_t b) {
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
  accrt_symbolic_bounds_t result = {clamp(low), clamp(high), 0};
  /* When the product of the divisors overflows, one of the divisors serves as well. */
  if (!accrt_mul_u64(a.divisor, b.divisor, &result.divisor))
    result.divisor = a.divisor;
  return result;
}

static int64_t divided(uint32_t op, int64_t value, int64_t by) {
  return accrt_expr_apply(op, accrt_expr_known(value), accrt_expr_known(by), accrt_expr_known(0))
      .value;
}

/* Handles FLOORDIV, CEILDIV and MOD by what is not negative; by 0 is a fault. Other divisions get
 * no useful bounds. */
static accrt_symbolic_bounds_t bounds_divide(uint32_t op, accrt_symbolic_bounds_t a,
                                             accrt_symbolic_bounds_t b) {
  if (b.minimum < 0 || b.maximum <= 0)
    return bounds_any();
  const int64_t least = b.minimum == 0 ? 1 : b.minimum;
  const int64_t most = b.maximum;
  const uint64_t by = least == most ? (uint64_t)most : 0; /* 0: not known */
  if (op == ACCX_EXPR_MOD) {
    if (a.minimum >= 0 && a.maximum < least)
      return a;
    const accrt_symbolic_bounds_t result = {0, most - 1, by != 0 ? gcd(a.divisor, by) : 1};
    return result;
  }
  const accrt_symbolic_bounds_t result = {
      divided(op, a.minimum, a.minimum < 0 ? least : most),
      divided(op, a.maximum, a.maximum < 0 ? most : least),
      by != 0 && a.divisor % by == 0 ? a.divisor / by : 1,
  };
  return result;
}

static accrt_symbolic_bounds_t bounds_union(accrt_symbolic_bounds_t a, accrt_symbolic_bounds_t b) {
  const accrt_symbolic_bounds_t result = {a.minimum < b.minimum ? a.minimum : b.minimum,
                                          a.maximum > b.maximum ? a.maximum : b.maximum,
                                          gcd(a.divisor, b.divisor)};
  return result;
}

static accrt_symbolic_bounds_t bounds_extreme(uint32_t op, accrt_symbolic_bounds_t a,
                                              accrt_symbolic_bounds_t b) {
  accrt_symbolic_bounds_t result = bounds_union(a, b);
  if (op == ACCX_EXPR_MIN)
    result.maximum = a.maximum < b.maximum ? a.maximum : b.maximum;
  if (op == ACCX_EXPR_MAX)
    result.minimum = a.minimum > b.minimum ? a.minimum : b.minimum;
  return result;
}

static accrt_symbolic_bounds_t bounds_apply(uint32_t op, accrt_symbolic_bounds_t a,
                                            accrt_symbolic_bounds_t b, accrt_symbolic_bounds_t c) {
  accrt_symbolic_bounds_t result = {0, 1, 1}; /* comparisons and logic */
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

accrt_symbolic_bounds_t accrt_symbolic_bounds_of(const accrt_symbolic_t* symbolic,
                                                 accrt_symbolic_value_t value) {
  if (value.node != ACCX_NONE)
    return symbolic->bounds[value.node];
  const accrt_symbolic_bounds_t result = {value.constant, value.constant,
                                          magnitude(value.constant)};
  return result;
}

/* ---- Nodes: each distinct node exists once ---- */

/* The hash has a seed because the author of a bundle chooses the nodes. */
static uint64_t hash_node(const accrt_symbolic_t* symbolic, const accx_expression_t* node) {
  const uint64_t operands = (uint64_t)node->a << 32 | node->b;
  uint64_t hash = accrt_hash_u64((uint64_t)node->c << 32 | node->op, symbolic->seed);
  hash = accrt_hash_u64(hash ^ operands, symbolic->seed);
  return accrt_hash_u64(hash ^ (uint64_t)node->immediate, symbolic->seed);
}

static bool same_node(const accx_expression_t* a, const accx_expression_t* b) {
  return a->op == b->op && a->a == b->a && a->b == b->b && a->c == b->c &&
         a->immediate == b->immediate;
}

/* Returns the table entry of a node: its own, or the empty one where it belongs. */
static size_t find_place(const accrt_symbolic_t* symbolic, const accx_expression_t* node) {
  const size_t mask = symbolic->table_capacity - 1;
  size_t place = (size_t)hash_node(symbolic, node) & mask;
  while (symbolic->table[place] != 0 &&
         !same_node(&symbolic->nodes[symbolic->table[place] - 1], node)) {
    place = (place + 1) & mask;
  }
  return place;
}

static accrt_status_t grow_table(accrt_symbolic_t* symbolic) {
  if (symbolic->table != NULL && (size_t)symbolic->count * 2 < symbolic->table_capacity)
    return ACCRT_OK;
  const size_t old_capacity = symbolic->table_capacity;
  uint32_t* const old = symbolic->table;
  const size_t capacity = old_capacity == 0 ? TABLE_FIRST_CAPACITY : old_capacity * 2;
  void* table;
  ACCRT_TRY(accrt_alloc_array(symbolic->allocator, capacity, sizeof *old, &table));
  symbolic->table = table;
  symbolic->table_capacity = capacity;
  for (uint32_t i = 0; i < symbolic->count; ++i)
    symbolic->table[find_place(symbolic, &symbolic->nodes[i])] = i + 1;
  accrt_free_array(symbolic->allocator, old, old_capacity, sizeof *old);
  return ACCRT_OK;
}

static accrt_status_t reserve(accrt_symbolic_t* symbolic) {
  const size_t needed = (size_t)symbolic->count + 1;
  ACCRT_TRY(ACCRT_GROW(symbolic->allocator, needed, &symbolic->nodes, &symbolic->node_capacity));
  ACCRT_TRY(ACCRT_GROW(symbolic->allocator, needed, &symbolic->bounds, &symbolic->bounds_capacity));
  return grow_table(symbolic);
}

/* Returns the index of an equal node, or of a new one; 0 when the allocation failed. */
static uint32_t intern(accrt_symbolic_t* symbolic, accx_expression_t node,
                       accrt_symbolic_bounds_t bounds) {
  if (symbolic->status == ACCRT_OK)
    symbolic->status = reserve(symbolic);
  if (symbolic->status != ACCRT_OK)
    return 0;
  const size_t place = find_place(symbolic, &node);
  if (symbolic->table[place] != 0)
    return symbolic->table[place] - 1;
  symbolic->nodes[symbolic->count] = node;
  symbolic->bounds[symbolic->count] = bounds;
  symbolic->table[place] = ++symbolic->count;
  return symbolic->count - 1;
}

static accrt_symbolic_value_t value_of_node(const accrt_symbolic_t* symbolic, uint32_t node) {
  accrt_symbolic_value_t result = accrt_symbolic_constant(0);
  if (symbolic->status == ACCRT_OK)
    result.node = node;
  return result;
}

accrt_symbolic_value_t accrt_symbolic_symbol(accrt_symbolic_t* symbolic, uint32_t symbol,
                                             accrt_symbolic_bounds_t bounds) {
  const accx_expression_t node = {ACCX_EXPR_SYMBOL, ACCX_NONE, ACCX_NONE, ACCX_NONE, symbol};
  return value_of_node(symbolic, intern(symbolic, node, bounds));
}

static uint32_t constant_node(accrt_symbolic_t* symbolic, int64_t value) {
  const accx_expression_t node = {ACCX_EXPR_CONSTANT, ACCX_NONE, ACCX_NONE, ACCX_NONE, value};
  return intern(symbolic, node, accrt_symbolic_bounds_of(symbolic, accrt_symbolic_constant(value)));
}

/* Makes a node for any value. A fault becomes an operation with the same fault when evaluated,
 * because it may be in the side of a SELECT that no call takes. */
static uint32_t node_of(accrt_symbolic_t* symbolic, accrt_symbolic_value_t value) {
  if (value.node != ACCX_NONE)
    return value.node;
  if (value.fault == ACCRT_EXPR_OK)
    return constant_node(symbolic, value.constant);
  accx_expression_t node = {ACCX_EXPR_FLOORDIV, 0, 0, ACCX_NONE, 0};
  node.a = constant_node(symbolic, value.fault == ACCRT_EXPR_OVERFLOW ? INT64_MIN : 1);
  node.b = constant_node(symbolic, value.fault == ACCRT_EXPR_OVERFLOW ? -1 : 0);
  if (value.fault == ACCRT_EXPR_NO_VALUE) {
    const accx_expression_t symbol = {ACCX_EXPR_SYMBOL, ACCX_NONE, ACCX_NONE, ACCX_NONE,
                                      value.symbol};
    if (value.symbol != ACCX_NONE)
      node = symbol;
  }
  return intern(symbolic, node, bounds_any());
}

static accrt_expr_value_t known_part(accrt_symbolic_value_t value) {
  const accrt_expr_value_t result = {value.constant, value.fault, value.symbol};
  return result;
}

static accrt_symbolic_value_t fold(uint32_t op, accrt_symbolic_value_t a, accrt_symbolic_value_t b,
                                   accrt_symbolic_value_t c) {
  const accrt_expr_value_t value =
      accrt_expr_apply(op, known_part(a), known_part(b), known_part(c));
  accrt_symbolic_value_t result = accrt_symbolic_fault(value.fault, value.symbol);
  result.constant = value.value;
  return result;
}

/* True when the result is one of the operands or a constant although an operand is unknown. */
static bool simplify(uint32_t op, accrt_symbolic_value_t a, accrt_symbolic_value_t b,
                     accrt_symbolic_value_t c, accrt_symbolic_value_t* out_value) {
  const bool is_sum = op == ACCX_EXPR_ADD || op == ACCX_EXPR_SUB;
  const bool decided = accrt_symbolic_is_constant(a);
  if (a.fault != ACCRT_EXPR_OK || (is_sum && accrt_symbolic_is_known(b, 0))) {
    *out_value = a;
  } else if (op == ACCX_EXPR_SELECT && decided) {
    *out_value = a.constant != 0 ? b : c;
  } else if (op == ACCX_EXPR_AND && accrt_symbolic_is_known(a, 0)) {
    *out_value = a;
  } else if (op == ACCX_EXPR_OR && decided && a.constant != 0) {
    *out_value = accrt_symbolic_constant(1);
  } else if ((op == ACCX_EXPR_MUL || op == ACCX_EXPR_FLOORDIV) && accrt_symbolic_is_known(b, 1)) {
    *out_value = a;
  } else if ((op == ACCX_EXPR_ADD && accrt_symbolic_is_known(a, 0)) ||
             (op == ACCX_EXPR_MUL && accrt_symbolic_is_known(a, 1))) {
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

/* Brings sums and products of a node and constants into one form, so that equal sizes become the
 * same node: constants to the right, and (x + c) + d as x + (c + d). This is limited to positive
 * constants: there, an overflow of a partial result implies an overflow of the whole. */
static void normalize(const accrt_symbolic_t* symbolic, uint32_t op, accrt_symbolic_value_t* a,
                      accrt_symbolic_value_t* b) {
  if (is_commutative(op) && a->node == ACCX_NONE && b->node != ACCX_NONE) {
    const accrt_symbolic_value_t swapped = *a;
    *a = *b;
    *b = swapped;
  }
  if ((op != ACCX_EXPR_ADD && op != ACCX_EXPR_MUL) || a->node == ACCX_NONE ||
      !accrt_symbolic_is_constant(*b))
    return;
  const accx_expression_t* inner = &symbolic->nodes[a->node];
  if (inner->op != op || symbolic->nodes[inner->b].op != ACCX_EXPR_CONSTANT)
    return;
  const int64_t first = symbolic->nodes[inner->b].immediate;
  const accrt_expr_value_t both = accrt_expr_apply(
      op, accrt_expr_known(first), accrt_expr_known(b->constant), accrt_expr_known(0));
  if (first <= 0 || b->constant <= 0 || both.fault != ACCRT_EXPR_OK)
    return;
  a->node = inner->a;
  *b = accrt_symbolic_constant(both.value);
}

/* True when a fault of the second operand is always a fault of the operation. */
static bool needs_second(uint32_t op) {
  return op != ACCX_EXPR_SELECT && op != ACCX_EXPR_AND && op != ACCX_EXPR_OR;
}

accrt_symbolic_value_t accrt_symbolic_apply(accrt_symbolic_t* symbolic, uint32_t op,
                                            accrt_symbolic_value_t a, accrt_symbolic_value_t b,
                                            accrt_symbolic_value_t c) {
  const uint32_t count = accx_expression_operands(op);
  const bool known = a.node == ACCX_NONE && (count < 2 || b.node == ACCX_NONE) &&
                     (count < 3 || c.node == ACCX_NONE);
  if (known)
    return fold(op, a, b, c);
  if (symbolic->status == ACCRT_OK)
    normalize(symbolic, op, &a, &b);
  accrt_symbolic_value_t result;
  if (simplify(op, a, b, c, &result))
    return result;
  if (count >= 2 && b.fault != ACCRT_EXPR_OK && needs_second(op))
    return b;
  /* Bounds leave faults out: a SELECT with a fault on one side has those of the other. */
  const accrt_symbolic_value_t second = op == ACCX_EXPR_SELECT && b.fault != 0 ? c : b;
  const accrt_symbolic_value_t third = op == ACCX_EXPR_SELECT && c.fault != 0 ? b : c;
  const accrt_symbolic_bounds_t any = bounds_any();
  const accrt_symbolic_bounds_t bounds =
      bounds_apply(op, accrt_symbolic_bounds_of(symbolic, a),
                   second.fault == 0 ? accrt_symbolic_bounds_of(symbolic, second) : any,
                   third.fault == 0 ? accrt_symbolic_bounds_of(symbolic, third) : any);
  accx_expression_t node = {op, node_of(symbolic, a), ACCX_NONE, ACCX_NONE, 0};
  if (count > 1)
    node.b = node_of(symbolic, b);
  if (count > 2)
    node.c = node_of(symbolic, c);
  return value_of_node(symbolic, intern(symbolic, node, bounds));
}

accrt_symbolic_value_t accrt_symbolic_two(accrt_symbolic_t* symbolic, uint32_t op,
                                          accrt_symbolic_value_t a, accrt_symbolic_value_t b) {
  return accrt_symbolic_apply(symbolic, op, a, b, accrt_symbolic_constant(0));
}

bool accrt_symbolic_is_known(accrt_symbolic_value_t value, int64_t constant) {
  return accrt_symbolic_is_constant(value) && value.constant == constant;
}
