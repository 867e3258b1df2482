/* tools/accx/size_text.c - computes sizes from type texts. The library writes an expression as
 *
 *    expression := term [operator term]        operator: + - * // % == != < <= and or
 *    term := number | symbol | ( expression ) | name ( expression, ... )
 *
 * with the names ceildiv, min, max, select, not and present. It cuts long expressions with "...";
 * those have no value here.
 */
#include "size_text.h"

#include <string.h>

#define MAX_DEPTH 64
#define MAX_OPERANDS 3

typedef struct parser {
  const accx_size_text_t* names;
  const char* at;
  const char* end;
  int depth;
} parser_t;

static void skip_spaces(parser_t* parser) {
  while (parser->at < parser->end && *parser->at == ' ')
    ++parser->at;
}

static bool take(parser_t* parser, const char* word) {
  skip_spaces(parser);
  const size_t length = strlen(word);
  if ((size_t)(parser->end - parser->at) < length || memcmp(parser->at, word, length) != 0)
    return false;
  parser->at += length;
  return true;
}

/* ---- Arithmetic, checked, as the format defines it ---- */

static bool floor_divide(int64_t a, int64_t b, int64_t* out) {
  if (b == 0 || (a == INT64_MIN && b == -1))
    return false;
  *out = a / b - (a % b != 0 && (a < 0) != (b < 0));
  return true;
}

static bool ceil_divide(int64_t a, int64_t b, int64_t* out) {
  if (b == 0 || (a == INT64_MIN && b == -1))
    return false;
  *out = a / b + (a % b != 0 && (a < 0) == (b < 0));
  return true;
}

static bool modulo(int64_t a, int64_t b, int64_t* out) {
  if (b == 0)
    return false;
  *out = b == -1 ? 0 : a % b;
  if (*out != 0 && (*out < 0) != (b < 0))
    *out += b;
  return true;
}

/* Longer operators first, because one may be the start of another. */
static const char* const operators[] = {"//", "==", "!=", "<=",   "<",  "+",
                                        "-",  "*",  "%",  "and ", "or "};
#define OPERATOR_COUNT (sizeof operators / sizeof *operators)

static bool apply_operator(size_t op, int64_t a, int64_t b, int64_t* out) {
  switch (op) {
  case 0:
    return floor_divide(a, b, out);
  case 1:
    return *out = a == b, true;
  case 2:
    return *out = a != b, true;
  case 3:
    return *out = a <= b, true;
  case 4:
    return *out = a < b, true;
  case 5:
    return !__builtin_add_overflow(a, b, out);
  case 6:
    return !__builtin_sub_overflow(a, b, out);
  case 7:
    return !__builtin_mul_overflow(a, b, out);
  case 8:
    return modulo(a, b, out);
  case 9:
    return *out = a != 0 && b != 0, true;
  default:
    return *out = a != 0 || b != 0, true;
  }
}

static bool apply_name(const char* name, size_t length, const int64_t* v, size_t count,
                       int64_t* out) {
#define IS(text, operands)                                                                         \
  (length == sizeof(text) - 1 && memcmp(name, text, length) == 0 && count == (operands))
  if (IS("ceildiv", 2))
    return ceil_divide(v[0], v[1], out);
  if (IS("min", 2))
    return *out = v[0] < v[1] ? v[0] : v[1], true;
  if (IS("max", 2))
    return *out = v[0] > v[1] ? v[0] : v[1], true;
  if (IS("select", 3))
    return *out = v[0] != 0 ? v[1] : v[2], true;
  if (IS("not", 1))
    return *out = v[0] == 0, true;
  return false;
#undef IS
}

/* ---- The grammar ---- */

static bool parse_expression(parser_t* parser, int64_t* out);

static bool parse_number(parser_t* parser, int64_t* out) {
  const bool negative = take(parser, "-");
  const char* begin = parser->at;
  int64_t value = 0;
  for (; parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9'; ++parser->at) {
    const int64_t digit = *parser->at - '0';
    if (__builtin_mul_overflow(value, 10, &value) ||
        (negative ? __builtin_sub_overflow(value, digit, &value)
                  : __builtin_add_overflow(value, digit, &value)))
      return false;
  }
  *out = value;
  return parser->at != begin;
}

static bool parse_operands(parser_t* parser, const char* name, size_t length, int64_t* out) {
  int64_t values[MAX_OPERANDS];
  size_t count = 0;
  do {
    if (count == MAX_OPERANDS || !parse_expression(parser, &values[count++]))
      return false;
  } while (take(parser, ","));
  if (!take(parser, ")"))
    return false;
  if (length == 7 && memcmp(name, "present", length) == 0 && count == 1)
    return *out = parser->names->present(parser->names->self, values[0]), true;
  return apply_name(name, length, values, count, out);
}

static bool parse_term(parser_t* parser, int64_t* out) {
  skip_spaces(parser);
  if (parser->at == parser->end)
    return false;
  if (take(parser, "("))
    return parse_expression(parser, out) && take(parser, ")");
  if (*parser->at == '-' || (*parser->at >= '0' && *parser->at <= '9'))
    return parse_number(parser, out);
  const char* name = parser->at;
  while (parser->at < parser->end && !strchr(" ,()[]", *parser->at))
    ++parser->at;
  const size_t length = (size_t)(parser->at - name);
  if (parser->at < parser->end && *parser->at == '(') {
    ++parser->at;
    return parse_operands(parser, name, length, out);
  }
  return length > 0 && parser->names->lookup(parser->names->self, name, length, out);
}

static bool parse_expression(parser_t* parser, int64_t* out) {
  int64_t left = 0, right = 0;
  if (++parser->depth > MAX_DEPTH || !parse_term(parser, &left))
    return false;
  size_t op = 0;
  while (op < OPERATOR_COUNT && !take(parser, operators[op]))
    ++op;
  *out = left;
  if (op < OPERATOR_COUNT && (!parse_term(parser, &right) || !apply_operator(op, left, right, out)))
    return false;
  --parser->depth;
  return true;
}

/* Finds the text of the index-th dimension. */
static bool find_dim(const char* type, uint32_t index, const char** out_begin,
                     const char** out_end) {
  const char* at = strchr(type, '[');
  int depth = 0;
  if (!at)
    return false;
  const char* begin = ++at;
  for (; *at && (depth > 0 || *at != ']'); ++at) {
    depth += (*at == '(') - (*at == ')');
    if (*at != ',' || depth > 0)
      continue;
    if (index-- == 0)
      break;
    begin = at + 1;
  }
  *out_begin = begin;
  *out_end = at;
  return *at == ',' || index == 0;
}

bool accx_size_in_type(const accx_size_text_t* names, const char* type, uint32_t index,
                       int64_t* out_value) {
  parser_t parser = {names, NULL, NULL, 0};
  int64_t value = 0;
  if (!find_dim(type, index, &parser.at, &parser.end) || !parse_expression(&parser, &value))
    return false;
  skip_spaces(&parser);
  *out_value = value;
  return parser.at == parser.end && value >= 0;
}

bool accx_size_mentions(const char* type, uint32_t index, const char* name) {
  const char *at = NULL, *end = NULL;
  const size_t length = strlen(name);
  if (!find_dim(type, index, &at, &end))
    return false;
  while (at < end) {
    const size_t skip = strspn(at, " ,()[]");
    at += skip;
    const size_t word = strcspn(at, " ,()[]");
    if (at < end && word == length && memcmp(at, name, length) == 0)
      return true;
    at += word;
  }
  return false;
}
