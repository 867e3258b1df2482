/* serve/http/values.c - see serve/http/values.h. */
#include "serve/http/values.h"

enum { DEPTH = 64 };

typedef struct cursor {
  const char* at;
  const char* end;
} cursor_t;

static void skip_space(cursor_t* c) {
  while (c->at < c->end && accrt_http_is_space(*c->at))
    ++c->at;
}

static uint32_t take(cursor_t* c, char byte) {
  if (c->at == c->end || *c->at != byte)
    return 0;
  ++c->at;
  return 1;
}

static uint32_t take_word(cursor_t* c, const char* word) {
  const size_t size = strlen(word);
  if ((size_t)(c->end - c->at) < size || memcmp(c->at, word, size) != 0)
    return 0;
  c->at += size;
  return 1;
}

static size_t take_digits(cursor_t* c) {
  const char* start = c->at;
  while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
    ++c->at;
  return (size_t)(c->at - start);
}

static uint32_t take_number(cursor_t* c) {
  (void)take(c, '-');
  if (!take(c, '0') && take_digits(c) == 0)
    return 0;
  if (take(c, '.') && take_digits(c) == 0)
    return 0;
  if (take(c, 'e') || take(c, 'E')) {
    if (!take(c, '+'))
      (void)take(c, '-');
    return take_digits(c) > 0;
  }
  return 1;
}

static uint32_t take_escape(cursor_t* c) {
  if (c->at == c->end || *c->at == 0 || strchr("\"\\/bfnrtu", *c->at) == NULL)
    return 0;
  if (*c->at++ != 'u')
    return 1;
  for (uint32_t i = 0; i < 4; ++i, ++c->at)
    if (c->at == c->end || *c->at == 0 || strchr("0123456789abcdefABCDEF", *c->at) == NULL)
      return 0;
  return 1;
}

static uint32_t take_string(cursor_t* c) {
  if (!take(c, '"'))
    return 0;
  while (c->at < c->end) {
    const unsigned char byte = (unsigned char)*c->at++;
    if (byte == '"')
      return 1;
    if (byte < 0x20 || (byte == '\\' && !take_escape(c)))
      return 0;
  }
  return 0;
}

static uint32_t take_value(cursor_t* c, uint32_t depth);

static uint32_t take_member(cursor_t* c, char bracket, uint32_t depth) {
  if (bracket == '[')
    return take_value(c, depth);
  skip_space(c);
  if (!take_string(c))
    return 0;
  skip_space(c);
  return take(c, ':') && take_value(c, depth);
}

static uint32_t take_list(cursor_t* c, char bracket, char close, uint32_t depth) {
  if (depth == DEPTH || !take(c, bracket))
    return 0;
  skip_space(c);
  if (take(c, close))
    return 1;
  do {
    if (!take_member(c, bracket, depth + 1))
      return 0;
  } while (take(c, ','));
  return take(c, close);
}

/* With white space around it. The recursion ends at DEPTH. */
static uint32_t take_value(cursor_t* c, uint32_t depth) {
  skip_space(c);
  const char first = c->at == c->end ? 0 : *c->at;
  const uint32_t found = first == '{'   ? take_list(c, '{', '}', depth)
                         : first == '[' ? take_list(c, '[', ']', depth)
                         : first == '"' ? take_string(c)
                                        : take_word(c, "true") || take_word(c, "false") ||
                                              take_word(c, "null") || take_number(c);
  skip_space(c);
  return found;
}

uint32_t accrt_http_is_json(const char* bytes, size_t size) {
  if (size == 0)
    return 0;
  cursor_t c = {bytes, bytes + size};
  return take_value(&c, 0) && c.at == c.end;
}

size_t accrt_http_number_size(const char* bytes, size_t size) {
  cursor_t c = {bytes, bytes + size};
  return take_number(&c) ? (size_t)(c.at - bytes) : 0;
}

/* The JSON that a word stands for; NULL: none. */
static const char* json_of_word(const char* bytes, size_t size, uint32_t kind) {
  static const char* const words[][2] = {
      {"None", "null"}, {"null", "null"}, {"True", "true"}, {"False", "false"}};
  const uint32_t count = kind == HTTP_VALUE_TEXT ? 0 : kind == HTTP_VALUE_TEXT_OR_NULL ? 2 : 4;
  for (uint32_t i = 0; i < count; ++i)
    if (size == strlen(words[i][0]) && memcmp(bytes, words[i][0], size) == 0)
      return words[i][1];
  return NULL;
}

void accrt_http_put_value(http_text_t* out, const char* bytes, size_t size, uint32_t kind) {
  const char* json = json_of_word(bytes, size, kind);
  if (json != NULL) {
    accrt_http_put_text(out, json);
    return;
  }
  if (kind == HTTP_VALUE_ANY && accrt_http_is_json(bytes, size)) {
    accrt_http_put(out, bytes, size);
    return;
  }
  accrt_http_put_text(out, "\"");
  accrt_http_put_escaped(out, bytes, size);
  accrt_http_put_text(out, "\"");
}
