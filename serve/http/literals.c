/* serve/http/literals.c - see serve/http/literals.h. */
#include "serve/http/literals.h"

#include "serve/http/values.h"

enum { DEPTH = 64 };

typedef struct cursor {
  const char* at;
  const char* end;
  http_text_t* out;
} cursor_t;

/* 0: there are no more bytes, or one that is in no literal. */
static char peek(const cursor_t* c) {
  return c->at < c->end ? *c->at : 0;
}

static void skip_space(cursor_t* c) {
  while (accrt_http_is_space(peek(c)))
    ++c->at;
}

static uint32_t take(cursor_t* c, char byte) {
  if (peek(c) != byte)
    return 0;
  ++c->at;
  return 1;
}

static uint32_t is_of_word(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_';
}

/* ---- Strings ---- */

/* The digits of \xHH and its relatives. 0: they are not there. */
static uint32_t take_hex(cursor_t* c, uint32_t count, uint32_t* out_code) {
  uint32_t code = 0;
  for (uint32_t i = 0; i < count; ++i, ++c->at) {
    const char byte = peek(c);
    if (byte >= '0' && byte <= '9')
      code = code * 16 + (uint32_t)(byte - '0');
    else if ((byte | 32) >= 'a' && (byte | 32) <= 'f')
      code = code * 16 + (uint32_t)((byte | 32) - 'a' + 10);
    else
      return 0;
  }
  *out_code = code;
  return code <= 0x10FFFF;
}

/* The digits of \0 to \777, of which one is there. */
static uint32_t take_octal(cursor_t* c) {
  uint32_t code = 0;
  for (uint32_t i = 0; i < 3 && peek(c) >= '0' && peek(c) <= '7'; ++i, ++c->at)
    code = code * 8 + (uint32_t)(peek(c) - '0');
  return code;
}

static void put_code(http_text_t* out, uint32_t code) {
  if (code < 0x10000) {
    accrt_http_put_format(out, "\\u%04x", (unsigned)code);
    return;
  }
  code -= 0x10000;
  accrt_http_put_format(out, "\\u%04x\\u%04x", (unsigned)(0xD800 | code >> 10),
                        (unsigned)(0xDC00 | (code & 0x3FF)));
}

static uint32_t take_escape(cursor_t* c) {
  uint32_t code = 0;
  const char kind = peek(c);
  if (kind == 0)
    return 0;
  if (kind >= '0' && kind <= '7') {
    put_code(c->out, take_octal(c));
    return 1;
  }
  ++c->at;
  if (kind == 'x' || kind == 'u' || kind == 'U') {
    if (!take_hex(c, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, &code))
      return 0;
    put_code(c->out, code);
  } else if (strchr("nrtbf\\\"", kind) != NULL) { /* as in JSON */
    accrt_http_put(c->out, "\\", 1);
    accrt_http_put(c->out, &kind, 1);
  } else if (kind == 'a' || kind == 'v') {
    put_code(c->out, kind == 'a' ? '\a' : '\v');
  } else if (kind == '\'') {
    accrt_http_put(c->out, "'", 1);
  } else if (kind != '\n') { /* what Python does not know keeps its backslash */
    accrt_http_put_text(c->out, "\\\\");
    --c->at;
  }
  return 1;
}

static uint32_t take_string(cursor_t* c) {
  const char quote = *c->at++;
  accrt_http_put(c->out, "\"", 1);
  for (;;) {
    const char* start = c->at;
    while (c->at < c->end && *c->at != quote && *c->at != '\\')
      ++c->at;
    accrt_http_put_escaped(c->out, start, (size_t)(c->at - start));
    if (c->at == c->end)
      return 0;
    if (*c->at++ == quote)
      break;
    if (!take_escape(c))
      return 0;
  }
  accrt_http_put(c->out, "\"", 1);
  return 1;
}

/* ---- Values ---- */

static uint32_t take_number(cursor_t* c) {
  const size_t size = accrt_http_number_size(c->at, (size_t)(c->end - c->at));
  accrt_http_put(c->out, c->at, size);
  c->at += size;
  return size > 0 && !is_of_word(peek(c));
}

static uint32_t take_word(cursor_t* c) {
  static const char words[][2][8] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                     {"true", "true"}, {"false", "false"}, {"null", "null"}};
  const char* start = c->at;
  while (is_of_word(peek(c)))
    ++c->at;
  const size_t size = (size_t)(c->at - start);
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (size != strlen(words[i][0]) || memcmp(start, words[i][0], size) != 0)
      continue;
    accrt_http_put_text(c->out, words[i][1]);
    return 1;
  }
  return 0;
}

static uint32_t take_value(cursor_t* c, uint32_t depth);

static uint32_t take_key(cursor_t* c) {
  if ((peek(c) != '"' && peek(c) != '\'') || !take_string(c))
    return 0;
  skip_space(c);
  accrt_http_put_text(c->out, ": ");
  return take(c, ':');
}

/* Entries up to the bracket that closes them, behind the last of which a comma may stand. Round
 * brackets about one value without a comma make no tuple. */
static uint32_t take_list(cursor_t* c, char close, uint32_t depth) {
  const uint32_t is_dictionary = close == '}';
  const size_t start = c->out->size;
  uint32_t count = 0, has_comma = 0;
  ++c->at;
  accrt_http_put_text(c->out, is_dictionary ? "{" : "[");
  for (;; ++count) {
    skip_space(c);
    if (take(c, close))
      break;
    if (count > 0)
      accrt_http_put_text(c->out, ", ");
    if ((is_dictionary && !take_key(c)) || !take_value(c, depth + 1))
      return 0;
    has_comma = take(c, ',');
    if (!has_comma && peek(c) != close)
      return 0;
  }
  if (close != ')' || count != 1 || has_comma != 0)
    accrt_http_put_text(c->out, is_dictionary ? "}" : "]");
  else if (c->out->failed == 0)
    c->out->data[start] = ' '; /* it was no list */
  return 1;
}

/* With white space around it. The recursion ends at DEPTH. */
static uint32_t take_value(cursor_t* c, uint32_t depth) {
  if (depth >= DEPTH)
    return 0;
  skip_space(c);
  const char first = peek(c);
  const uint32_t is_number = first == '-' || (first >= '0' && first <= '9');
  const uint32_t found = first == '{'                    ? take_list(c, '}', depth)
                         : first == '['                  ? take_list(c, ']', depth)
                         : first == '('                  ? take_list(c, ')', depth)
                         : first == '"' || first == '\'' ? take_string(c)
                         : is_number                     ? take_number(c)
                                                         : take_word(c);
  skip_space(c);
  return found;
}

static uint32_t take_keyword(cursor_t* c) {
  const char* start = c->at;
  while (is_of_word(peek(c)))
    ++c->at;
  const size_t size = (size_t)(c->at - start);
  skip_space(c);
  accrt_http_put(c->out, "\"", 1);
  accrt_http_put(c->out, start, size);
  accrt_http_put_text(c->out, "\": ");
  return size > 0 && take(c, '=') && take_value(c, 0);
}

uint32_t accrt_http_put_keywords(http_text_t* out, const char* bytes, size_t size) {
  if (size == 0)
    bytes = ""; /* it may be NULL, to which nothing can be added */
  cursor_t c = {bytes, bytes + size, out};
  accrt_http_put(out, "{", 1);
  skip_space(&c);
  for (uint32_t i = 0; c.at < c.end; ++i) {
    if (i > 0)
      accrt_http_put_text(out, ", ");
    if (!take_keyword(&c) || (c.at < c.end && !take(&c, ',')))
      return 0;
    skip_space(&c);
  }
  accrt_http_put(out, "}", 1);
  return 1;
}
