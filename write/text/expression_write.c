/* write/text/expression_write.c - writes expressions as text. See expression.h. */
#include "write/text/expression.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A node with a longer text gets a name. So the text is linear in the nodes, and never deep. */
#define MAX_REPEATED_NODES 4u
#define MAX_NODES 64u
#define MAX_DEPTH 40u

/* ---- Names ---- */

static uint32_t operand_of(const accx_expression_t* node, uint32_t which) {
  return which == 0 ? node->a : which == 1 ? node->b : node->c;
}

static void count_uses(accx_scope_text_t* scope) {
  for (uint32_t i = 0; i < scope->count; ++i) {
    const accx_expression_t* node = &scope->nodes[i];
    for (uint32_t k = 0; k < accx_expression_operands(node->op); ++k)
      ++scope->uses[operand_of(node, k)];
  }
}

static void give_names(accx_scope_text_t* scope) {
  for (uint32_t i = 0; i < scope->count; ++i) {
    const accx_expression_t* node = &scope->nodes[i];
    uint32_t size = 1, depth = 0;
    for (uint32_t k = 0; k < accx_expression_operands(node->op); ++k) {
      const uint32_t below = operand_of(node, k);
      const bool named = scope->names[below] != ACCX_NONE;
      size += named ? 1 : scope->sizes[below];
      if (!named && scope->depths[below] + 1 > depth)
        depth = scope->depths[below] + 1;
    }
    scope->sizes[i] = size;
    scope->depths[i] = depth;
    const bool repeated = scope->uses[i] > 1 && size > MAX_REPEATED_NODES;
    scope->names[i] =
        repeated || size > MAX_NODES || depth >= MAX_DEPTH ? scope->named++ : ACCX_NONE;
  }
}

bool accx_scope_begin(accx_scope_text_t* scope, const accx_expression_t* nodes, uint32_t count) {
  scope->nodes = nodes;
  scope->count = count;
  scope->named = 0;
  uint32_t* memory = calloc(count > 0 ? count : 1, 4 * sizeof *memory);
  scope->uses = memory;
  if (memory == NULL)
    return false;
  scope->names = memory + count;
  scope->sizes = memory + 2 * (size_t)count;
  scope->depths = memory + 3 * (size_t)count;
  count_uses(scope);
  give_names(scope);
  return true;
}

void accx_scope_end(accx_scope_text_t* scope) {
  free(scope->uses);
  scope->uses = NULL;
}

/* ---- Text ---- */

static bool is_word(const char* name) {
  static const char* const taken[] = {"and",     "or",     "not",     "min",      "max",
                                      "ceildiv", "select", "present", "induction"};
  if (!((name[0] >= 'a' && name[0] <= 'z') || (name[0] >= 'A' && name[0] <= 'Z') || name[0] == '_'))
    return false;
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; ++i) {
    if (strcmp(name, taken[i]) == 0)
      return false;
  }
  return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") ==
         strlen(name);
}

static void put_name(FILE* out, const char* name) {
  if (is_word(name)) {
    (void)fputs(name, out);
    return;
  }
  (void)fputc('`', out);
  for (; *name != '\0'; ++name) {
    if (*name == '`' || *name == '\\')
      (void)fputc('\\', out);
    (void)fputc(*name, out);
  }
  (void)fputc('`', out);
}

/* The precedence of an operator, higher for a tighter one; 0: not an infix operator. */
static uint32_t binding_of(uint32_t op) {
  switch (op) {
  case ACCX_EXPR_OR:
    return 1;
  case ACCX_EXPR_AND:
    return 2;
  case ACCX_EXPR_EQ:
  case ACCX_EXPR_NE:
  case ACCX_EXPR_LT:
  case ACCX_EXPR_LE:
    return 3;
  case ACCX_EXPR_ADD:
  case ACCX_EXPR_SUB:
    return 4;
  case ACCX_EXPR_MUL:
  case ACCX_EXPR_FLOORDIV:
  case ACCX_EXPR_MOD:
    return 5;
  default:
    return 0;
  }
}

static const char* sign_of(uint32_t op) {
  static const char* const signs[] = {[ACCX_EXPR_ADD] = "+",
                                      [ACCX_EXPR_SUB] = "-",
                                      [ACCX_EXPR_MUL] = "*",
                                      [ACCX_EXPR_FLOORDIV] = "//",
                                      [ACCX_EXPR_CEILDIV] = "ceildiv",
                                      [ACCX_EXPR_MOD] = "%",
                                      [ACCX_EXPR_MIN] = "min",
                                      [ACCX_EXPR_MAX] = "max",
                                      [ACCX_EXPR_EQ] = "==",
                                      [ACCX_EXPR_NE] = "!=",
                                      [ACCX_EXPR_LT] = "<",
                                      [ACCX_EXPR_LE] = "<=",
                                      [ACCX_EXPR_AND] = "and",
                                      [ACCX_EXPR_OR] = "or",
                                      [ACCX_EXPR_NOT] = "not",
                                      [ACCX_EXPR_SELECT] = "select"};
  return signs[op];
}

static void put_node(const accx_scope_text_t* scope, FILE* out, uint32_t node, uint32_t binding,
                     bool definition);

static void put_leaf(const accx_scope_text_t* scope, FILE* out, const accx_expression_t* node) {
  const int64_t value = node->immediate;
  switch (node->op) {
  case ACCX_EXPR_CONSTANT:
    (void)fprintf(out, "%" PRId64, value);
    break;
  case ACCX_EXPR_SYMBOL:
    put_name(out, scope->symbol(scope->self, (uint32_t)value));
    break;
  case ACCX_EXPR_INDUCTION:
    (void)fprintf(out, "induction(%" PRId64 ")", value);
    break;
  default:
    (void)fputs("present(", out);
    put_name(out, scope->input(scope->self, (uint32_t)value));
    (void)fputc(')', out);
    break;
  }
}

static void put_call(const accx_scope_text_t* scope, FILE* out, const accx_expression_t* node) {
  (void)fprintf(out, "%s(", sign_of(node->op));
  for (uint32_t k = 0; k < accx_expression_operands(node->op); ++k) {
    if (k > 0)
      (void)fputs(", ", out);
    put_node(scope, out, operand_of(node, k), 0, false);
  }
  (void)fputc(')', out);
}

/* `binding`: precedence of the parent. An operator with a lower one gets parentheses. */
static void put_node(const accx_scope_text_t* scope, FILE* out, uint32_t index, uint32_t binding,
                     bool definition) {
  const accx_expression_t* node = &scope->nodes[index];
  if (scope->names[index] != ACCX_NONE && !definition) {
    (void)fprintf(out, "$e%" PRIu32, scope->names[index]);
    return;
  }
  const uint32_t own = binding_of(node->op);
  if (accx_expression_operands(node->op) == 0) {
    put_leaf(scope, out, node);
  } else if (own == 0) {
    put_call(scope, out, node);
  } else {
    if (own < binding)
      (void)fputc('(', out);
    /* Operators group to the left; comparisons do not group. */
    put_node(scope, out, node->a, own == 3 ? own + 1 : own, false);
    (void)fprintf(out, " %s ", sign_of(node->op));
    put_node(scope, out, node->b, own + 1, false);
    if (own < binding)
      (void)fputc(')', out);
  }
}

char* accx_expression_text(const accx_scope_text_t* scope, uint32_t node, bool definition) {
  char* text = NULL;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  if (out == NULL)
    return NULL;
  put_node(scope, out, node, 0, definition);
  if (fclose(out) == 0)
    return text;
  free(text);
  return NULL;
}
