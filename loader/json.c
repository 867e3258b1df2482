/* loader/json.c - a strict reader of JSON (json.h). It may not allocate or recurse. */
#include "loader/json.h"

#include <string.h>

#include "runtime/core/utf8.h"

void accx_json_init(accx_json_t* json, char* text, size_t size_bytes) {
  *json = (accx_json_t){text, text, text + size_bytes, NULL};
}

bool accx_json_fail(accx_json_t* json, const char* error) {
  if (json->error == NULL)
    json->error = error;
  return false;
}

static void skip_space(accx_json_t* json) {
  while (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' || *json->at == '\r')
    ++json->at;
}

char accx_json_peek(accx_json_t* json) {
  skip_space(json);
  return *json->at;
}

bool accx_json_take(accx_json_t* json, char token, const char* error) {
  if (json->error != NULL)
    return false;
  skip_space(json);
  if (*json->at != token)
    return accx_json_fail(json, error);
  ++json->at;
  return true;
}

bool accx_json_next(accx_json_t* json, char close, bool* first, bool* out_more) {
  if (json->error != NULL)
    return false;
  skip_space(json);
  *out_more = *json->at != close;
  const bool is_first = *first;
  *first = false;
  if (!*out_more) {
    ++json->at;
    return true;
  }
  return is_first || accx_json_take(json, ',', "a comma or the end is missing");
}

/* ---- Strings ---- */

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  const char lower = (char)(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Reads four hexadecimal digits; -1 for anything else. It stops at a NUL. */
static int32_t hex_unit(const char* at) {
  int32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = hex_digit(at[i]);
    if (digit < 0)
      return -1;
    value = value * 16 + digit;
  }
  return value;
}

static char* put_utf8(char* to, uint32_t code) {
  if (code < 0x80) {
    *to++ = (char)code;
    return to;
  }
  if (code >= 0x10000) {
    *to++ = (char)(0xF0 | code >> 18);
    *to++ = (char)(0x80 | (code >> 12 & 0x3F));
  } else if (code >= 0x800) {
    *to++ = (char)(0xE0 | code >> 12);
  }
  *to++ = (char)(code >= 0x800 ? 0x80 | (code >> 6 & 0x3F) : 0xC0 | code >> 6);
  *to++ = (char)(0x80 | (code & 0x3F));
  return to;
}

/* Reads \uXXXX, or two of them for one character. It starts at the first one's digits. */
static bool unescape_unit(accx_json_t* json, char** to) {
  int32_t code = hex_unit(json->at);
  if (code < 0)
    return accx_json_fail(json, "\\u without four hexadecimal digits");
  json->at += 4;
  if (code >= 0xD800 && code < 0xDC00 && json->at[0] == '\\' && json->at[1] == 'u') {
    const int32_t low = hex_unit(json->at + 2);
    if (low >= 0xDC00 && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      json->at += 6;
    }
  }
  if (code >= 0xD800 && code < 0xE000)
    return accx_json_fail(json, "half of a surrogate pair");
  if (code == 0)
    return accx_json_fail(json, "a NUL in a string");
  *to = put_utf8(*to, (uint32_t)code);
  return true;
}

static bool unescape(accx_json_t* json, char** to) {
  static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
  const char letter = *++json->at;
  const char* place = letter != '\0' ? strchr(from, letter) : NULL;
  if (place != NULL) {
    *(*to)++ = into[place - from];
    ++json->at;
    return true;
  }
  if (letter != 'u')
    return accx_json_fail(json, "an escape that JSON does not have");
  ++json->at;
  return unescape_unit(json, to);
}

/* Checks the bytes up to the next quote or escape. */
static bool pass_plain(accx_json_t* json) {
  for (;;) {
    unsigned char byte = (unsigned char)*json->at;
    while (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\')
      byte = (unsigned char)*++json->at;
    if (byte == '"' || byte == '\\')
      return true;
    if (byte < 0x20)
      return accx_json_fail(json, json->at == json->end ? "a string does not end"
                                                        : "a control character in a string");
    const uint32_t length = accrt_utf8_length((const unsigned char*)json->at);
    if (length == 0)
      return accx_json_fail(json, "a string is not UTF-8");
    json->at += length;
  }
}

/* Unescapes in place by moving the bytes together: an unescaped string is never longer. */
bool accx_json_string(accx_json_t* json, const char** out_text, size_t* out_size_bytes) {
  if (!accx_json_take(json, '"', "a string is missing"))
    return false;
  char* const begin = json->at;
  char* to = begin;
  for (;;) {
    const char* const plain = json->at;
    if (!pass_plain(json))
      return false;
    const size_t plain_bytes = (size_t)(json->at - plain);
    if (to != plain)
      memmove(to, plain, plain_bytes);
    to += plain_bytes;
    if (*json->at == '"')
      break;
    if (!unescape(json, &to))
      return false;
  }
  ++json->at;
  *to = '\0'; /* at the closing quote or before it */
  *out_text = begin;
  *out_size_bytes = (size_t)(to - begin);
  return true;
}

bool accx_json_key(accx_json_t* json, const char** out_text, size_t* out_size_bytes) {
  return accx_json_string(json, out_text, out_size_bytes) &&
         accx_json_take(json, ':', "a colon is missing");
}

bool accx_json_member(accx_json_t* json, bool* first, const char** out_name,
                      size_t* out_size_bytes) {
  bool more = false;
  *out_name = NULL;
  return accx_json_next(json, '}', first, &more) &&
         (!more || accx_json_key(json, out_name, out_size_bytes));
}

/* ---- Numbers and the rest ---- */

bool accx_json_integer(accx_json_t* json, uint64_t* out_value) {
  if (json->error != NULL)
    return false;
  skip_space(json);
  const char* const begin = json->at;
  uint64_t value = 0;
  for (; *json->at >= '0' && *json->at <= '9'; ++json->at) {
    const uint64_t digit = (uint64_t)(*json->at - '0');
    if (value > ((uint64_t)INT64_MAX - digit) / 10)
      return accx_json_fail(json, "a number above 2^63 - 1");
    value = value * 10 + digit;
  }
  const ptrdiff_t digits = json->at - begin;
  if (digits == 0 || (digits > 1 && *begin == '0') || *json->at == '.' || *json->at == 'e' ||
      *json->at == 'E')
    return accx_json_fail(json, "a whole number is missing");
  *out_value = value;
  return true;
}

static const char* skip_digits(const char* at) {
  while (*at >= '0' && *at <= '9')
    ++at;
  return at;
}

/* The end of a JSON number; NULL if it is not one. */
static char* number_end(char* at) {
  at += *at == '-';
  const char* end = skip_digits(at);
  if (end == at || (*at == '0' && end != at + 1))
    return NULL;
  if (*end == '.') {
    const char* fraction = skip_digits(end + 1);
    if (fraction == end + 1)
      return NULL;
    end = fraction;
  }
  if (*end == 'e' || *end == 'E') {
    end += 1 + (end[1] == '+' || end[1] == '-');
    const char* exponent = skip_digits(end);
    if (exponent == end)
      return NULL;
    end = exponent;
  }
  return at + (end - at);
}

static bool skip_scalar(accx_json_t* json) {
  static const char words[][6] = {"true", "false", "null"};
  const char* text;
  size_t size_bytes;
  skip_space(json);
  if (*json->at == '"')
    return accx_json_string(json, &text, &size_bytes);
  for (size_t i = 0; i < 3; ++i) {
    if (strncmp(json->at, words[i], strlen(words[i])) != 0)
      continue;
    json->at += strlen(words[i]);
    return true;
  }
  char* end = number_end(json->at);
  if (end == NULL)
    return accx_json_fail(json, "a value is missing");
  json->at = end;
  return true;
}

bool accx_json_skip(accx_json_t* json) {
  char closes[ACCX_JSON_MAX_DEPTH];
  bool first[ACCX_JSON_MAX_DEPTH];
  uint32_t depth = 0;
  const char* text;
  size_t size_bytes;
  do {
    bool more = true;
    if (depth > 0 && !accx_json_next(json, closes[depth - 1], &first[depth - 1], &more))
      return false;
    if (!more) {
      --depth;
      continue;
    }
    if (depth > 0 && closes[depth - 1] == '}' && !accx_json_key(json, &text, &size_bytes))
      return false;
    skip_space(json);
    if (*json->at != '{' && *json->at != '[') {
      if (!skip_scalar(json))
        return false;
      continue;
    }
    if (depth == ACCX_JSON_MAX_DEPTH)
      return accx_json_fail(json, "nested too deep");
    closes[depth] = *json->at++ == '{' ? '}' : ']';
    first[depth++] = true;
  } while (depth > 0);
  return true;
}

bool accx_json_finish(accx_json_t* json) {
  if (json->error != NULL)
    return false;
  skip_space(json);
  return json->at == json->end || accx_json_fail(json, "there is more behind the end");
}
