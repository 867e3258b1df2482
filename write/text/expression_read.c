/* write/text/expression_read.c - reads expressions from text. See expression.h. A recursive descent
 * of limited depth. */
#include "write/text/expression.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "write/text/show.h"

#define MAX_DEPTH 256u
#define MAX_NAME_BYTES 1023u

typedef struct reading {
  const accx_expression_reader_t* reader;
  const char* text;
  const char* at;
  uint32_t depth;
  accx_text_error_t* error;
} reading_t;

static bool fail_at(reading_t* reading, const char* at, const char* what) {
  (void)accx_text_fail(reading->error, ACCRT_ERROR_INVALID_ARGUMENT, "%s: %s%s%s",
                       ACCX_SHOW(reading->text), what, *at != '\0' ? " at " : "",
                       *at != '\0' ? ACCX_SHOW(at) : "");
  reading->error->column = (uint32_t)(at - reading->text) + 1;
  return false;
}

static void skip_spaces(reading_t* reading) {
  while (*reading->at == ' ' || *reading->at == '\t' || *reading->at == '\n')
    ++reading->at;
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* Consumes a sign or a word if it is next. */
static bool take(reading_t* reading, const char* token) {
  skip_spaces(reading);
  const size_t length = strlen(token);
  if (strncmp(reading->at, token, length) != 0)
    return false;
  const char after = reading->at[length];
  if (is_letter(token[0]) && (is_letter(after) || is_digit(after) || after == '.'))
    return false;
  /* `<` must not match the start of `<=`, nor `/` anything. */
  if (length == 1 && token[0] == '<' && after == '=')
    return false;
  reading->at += length;
  return true;
}

static bool make(reading_t* reading, const char* at, uint32_t op, accrt_writer_id_t a,
                 accrt_writer_id_t b, accrt_writer_id_t c, accrt_writer_id_t* out) {
  const accrt_status_t status =
      accrt_bundle_writer_expression(reading->reader->writer, op, a, b, c, out);
  if (status == ACCRT_OK)
    return true;
  (void)accx_text_fail_call(reading->error, status, "expression");
  reading->error->column = (uint32_t)(at - reading->text) + 1;
  return false;
}

static bool read_or(reading_t* reading, accrt_writer_id_t* out);

/* Reads a name: a word, or any text in backticks. */
static bool read_name(reading_t* reading, char name[MAX_NAME_BYTES + 1]) {
  const char* begin = reading->at;
  size_t length = 0;
  const bool quoted = *reading->at == '`';
  reading->at += quoted;
  while (quoted ? *reading->at != '`' && *reading->at != '\0'
                : is_letter(*reading->at) || is_digit(*reading->at) || *reading->at == '.') {
    if (quoted && *reading->at == '\\' && reading->at[1] != '\0')
      ++reading->at;
    if (length == MAX_NAME_BYTES)
      return fail_at(reading, begin, "a name has more than 1023 bytes");
    name[length++] = *reading->at++;
  }
  name[length] = '\0';
  if (quoted && *reading->at != '`')
    return fail_at(reading, begin, "a backtick without its other one");
  reading->at += quoted;
  return length > 0 || fail_at(reading, begin, "a name is expected");
}

static bool read_number(reading_t* reading, accrt_writer_id_t* out) {
  const char* begin = reading->at;
  char* end;
  errno = 0;
  const bool hex = begin[0] == '0' && (begin[1] == 'x' || begin[1] == 'X');
  const int64_t value = strtoll(begin, &end, hex ? 16 : 10);
  if (errno != 0 || end == begin || is_letter(*end) || *end == '.')
    return fail_at(reading, begin, "no number of 64 bits");
  reading->at = end;
  const accrt_status_t status = accrt_bundle_writer_integer(reading->reader->writer, value, out);
  return status == ACCRT_OK || accx_text_fail_call(reading->error, status, "number");
}

static bool read_induction(reading_t* reading, accrt_writer_id_t* out) {
  skip_spaces(reading);
  const char* begin = reading->at;
  char* end;
  const unsigned long depth = is_digit(*begin) ? strtoul(begin, &end, 10) : 1000;
  if (depth > 15)
    return fail_at(reading, begin, "the depth of a repeat, 0 to 15, is expected");
  reading->at = end;
  if (!take(reading, ")"))
    return fail_at(reading, reading->at, "')' is expected");
  const accrt_status_t status =
      accrt_bundle_writer_induction(reading->reader->writer, (uint32_t)depth, out);
  return status == ACCRT_OK || accx_text_fail_call(reading->error, status, "induction");
}

static bool read_present(reading_t* reading, accrt_writer_id_t* out) {
  char name[MAX_NAME_BYTES + 1];
  accrt_writer_id_t input;
  skip_spaces(reading);
  if (!read_name(reading, name))
    return false;
  if (!take(reading, ")"))
    return fail_at(reading, reading->at, "')' is expected");
  if (!reading->reader->input(reading->reader->self, name, &input, reading->error))
    return false;
  const accrt_status_t status = accrt_bundle_writer_present(reading->reader->writer, input, out);
  return status == ACCRT_OK || accx_text_fail_call(reading->error, status, "present");
}

static bool read_call(reading_t* reading, const char* begin, uint32_t op, uint32_t count,
                      accrt_writer_id_t* out) {
  accrt_writer_id_t operands[3] = {0, 0, 0};
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0 && !take(reading, ","))
      return fail_at(reading, reading->at, "',' is expected");
    if (!read_or(reading, &operands[i]))
      return false;
  }
  if (!take(reading, ")"))
    return fail_at(reading, reading->at, "')' is expected");
  return make(reading, begin, op, operands[0], operands[1], operands[2], out);
}

static bool read_word(reading_t* reading, accrt_writer_id_t* out) {
  static const struct {
    const char* name;
    uint32_t op;
    uint32_t operands;
  } calls[] = {{"ceildiv", ACCRT_EXPR_CEILDIV, 2},
               {"min", ACCRT_EXPR_MIN, 2},
               {"max", ACCRT_EXPR_MAX, 2},
               {"not", ACCRT_EXPR_NOT, 1},
               {"select", ACCRT_EXPR_SELECT, 3}};
  const char* begin = reading->at;
  const bool quoted = *begin == '`';
  char name[MAX_NAME_BYTES + 1];
  if (!read_name(reading, name))
    return false;
  if (quoted || !take(reading, "(")) {
    if (reading->reader->symbol(reading->reader->self, name, out, reading->error))
      return true;
    reading->error->column = (uint32_t)(begin - reading->text) + 1;
    return false;
  }
  if (strcmp(name, "present") == 0)
    return read_present(reading, out);
  if (strcmp(name, "induction") == 0)
    return read_induction(reading, out);
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; ++i) {
    if (strcmp(name, calls[i].name) == 0)
      return read_call(reading, begin, calls[i].op, calls[i].operands, out);
  }
  return fail_at(reading, begin,
                 "no such function; there are ceildiv, min, max, not, select, present, induction");
}

static bool read_operand(reading_t* reading, accrt_writer_id_t* out) {
  skip_spaces(reading);
  const char* at = reading->at;
  if (*at == '(') {
    ++reading->at;
    if (!read_or(reading, out))
      return false;
    return take(reading, ")") || fail_at(reading, reading->at, "')' is expected");
  }
  if (*at == '$') {
    char name[MAX_NAME_BYTES + 1];
    ++reading->at;
    if (!read_name(reading, name))
      return false;
    if (reading->reader->let(reading->reader->self, name, out, reading->error))
      return true;
    reading->error->column = (uint32_t)(at - reading->text) + 1;
    return false;
  }
  if (is_digit(*at) || (*at == '-' && is_digit(at[1])))
    return read_number(reading, out);
  if (is_letter(*at) || *at == '`')
    return read_word(reading, out);
  return fail_at(reading, at, "a number, a symbol or '(' is expected");
}

/* ---- Operators, from the tightest to the loosest ---- */

static bool read_product(reading_t* reading, accrt_writer_id_t* out) {
  if (!read_operand(reading, out))
    return false;
  for (;;) {
    const char* at = reading->at;
    uint32_t op;
    if (take(reading, "*"))
      op = ACCRT_EXPR_MUL;
    else if (take(reading, "//"))
      op = ACCRT_EXPR_FLOORDIV;
    else if (take(reading, "%"))
      op = ACCRT_EXPR_MOD;
    else
      return true;
    accrt_writer_id_t right;
    if (!read_operand(reading, &right) || !make(reading, at, op, *out, right, 0, out))
      return false;
  }
}

static bool read_sum(reading_t* reading, accrt_writer_id_t* out) {
  if (!read_product(reading, out))
    return false;
  for (;;) {
    const char* at = reading->at;
    uint32_t op;
    if (take(reading, "+"))
      op = ACCRT_EXPR_ADD;
    else if (take(reading, "-"))
      op = ACCRT_EXPR_SUB;
    else
      return true;
    accrt_writer_id_t right;
    if (!read_product(reading, &right) || !make(reading, at, op, *out, right, 0, out))
      return false;
  }
}

static bool read_comparison(reading_t* reading, accrt_writer_id_t* out) {
  static const struct {
    const char* sign;
    uint32_t op;
    bool swapped;
  } signs[] = {{"==", ACCRT_EXPR_EQ, false}, {"!=", ACCRT_EXPR_NE, false},
               {"<=", ACCRT_EXPR_LE, false}, {"<", ACCRT_EXPR_LT, false},
               {">=", ACCRT_EXPR_LE, true},  {">", ACCRT_EXPR_LT, true}};
  if (!read_sum(reading, out))
    return false;
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; ++i) {
    const char* at = reading->at;
    if (!take(reading, signs[i].sign))
      continue;
    accrt_writer_id_t right;
    if (!read_sum(reading, &right))
      return false;
    const accrt_writer_id_t a = signs[i].swapped ? right : *out;
    const accrt_writer_id_t b = signs[i].swapped ? *out : right;
    return make(reading, at, signs[i].op, a, b, 0, out);
  }
  return true;
}

static bool read_and(reading_t* reading, accrt_writer_id_t* out) {
  if (!read_comparison(reading, out))
    return false;
  for (const char* at = reading->at; take(reading, "and"); at = reading->at) {
    accrt_writer_id_t right;
    if (!read_comparison(reading, &right) ||
        !make(reading, at, ACCRT_EXPR_AND, *out, right, 0, out))
      return false;
  }
  return true;
}

static bool read_or(reading_t* reading, accrt_writer_id_t* out) {
  if (++reading->depth > MAX_DEPTH)
    return fail_at(reading, reading->at, "it is nested more than 256 deep");
  if (!read_and(reading, out))
    return false;
  for (const char* at = reading->at; take(reading, "or"); at = reading->at) {
    accrt_writer_id_t right;
    if (!read_and(reading, &right) || !make(reading, at, ACCRT_EXPR_OR, *out, right, 0, out))
      return false;
  }
  --reading->depth;
  return true;
}

bool accx_expression_read(const accx_expression_reader_t* reader, const char* text,
                          accrt_writer_id_t* out_id, accx_text_error_t* error) {
  reading_t reading = {reader, text, text, 0, error};
  if (!read_or(&reading, out_id))
    return false;
  skip_spaces(&reading);
  return *reading.at == '\0' || fail_at(&reading, reading.at, "an operator is expected");
}
