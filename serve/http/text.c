/* serve/http/text.c - growing bytes, and the writing of JSON. It knows no connection. */
#include "serve/http/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_BYTES = 64 * 1024, ALIGNMENT = 16 };

static void* allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)alignment; /* malloc's is enough for all that is asked for here */
  return malloc(size_bytes);
}
static void deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  free(pointer);
}
const accrt_allocator_t accrt_http_allocator_system = {.allocate = allocate,
                                                       .deallocate = deallocate};

void accrt_http_text_init(http_text_t* text, const accrt_allocator_t* allocator) {
  *text = (http_text_t){.allocator = allocator};
}

void accrt_http_text_deinit(http_text_t* text) {
  if (text->data != NULL)
    text->allocator->deallocate(text->allocator->self, text->data, text->capacity, ALIGNMENT);
  text->data = NULL;
  text->size = text->capacity = 0;
}

void accrt_http_text_clear(http_text_t* text) {
  if (text->capacity > KEPT_BYTES)
    accrt_http_text_deinit(text);
  text->size = 0;
  text->failed = 0;
}

void accrt_http_text_drop(http_text_t* text, size_t count) {
  if (count >= text->size) {
    text->size = 0;
    return;
  }
  memmove(text->data, text->data + count, text->size - count);
  text->size -= count;
}

void accrt_http_text_move(http_text_t* to, http_text_t* from) {
  accrt_http_text_deinit(to);
  *to = *from;
  accrt_http_text_init(from, to->allocator);
}

/* Room for `count` more bytes; NULL where there is none. */
static char* room(http_text_t* text, size_t count) {
  if (text->failed != 0 || count > SIZE_MAX / 4 - text->size) {
    text->failed = 1;
    return NULL;
  }
  const size_t needed = text->size + count;
  if (needed <= text->capacity)
    return text->data + text->size;
  size_t capacity = text->capacity < 256 ? 256 : text->capacity * 2;
  if (capacity < needed)
    capacity = needed;
  char* data = text->allocator->allocate(text->allocator->self, capacity, ALIGNMENT);
  if (data == NULL) {
    text->failed = 1;
    return NULL;
  }
  if (text->size > 0)
    memcpy(data, text->data, text->size);
  if (text->data != NULL)
    text->allocator->deallocate(text->allocator->self, text->data, text->capacity, ALIGNMENT);
  text->data = data;
  text->capacity = capacity;
  return data + text->size;
}

void accrt_http_put_grown(http_text_t* text, const void* bytes, size_t size) {
  char* place = room(text, size);
  if (place == NULL)
    return;
  memcpy(place, bytes, size);
  text->size += size;
}

void accrt_http_put_around(http_text_t* text, const char* before, const http_text_t* other,
                           const char* behind) {
  accrt_http_put_text(text, before);
  accrt_http_put(text, other->data, other->size);
  accrt_http_put_text(text, behind);
}

void accrt_http_put_format(http_text_t* text, const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char* place = length < 0 ? NULL : room(text, (size_t)length + 1);
  if (place != NULL) {
    vsnprintf(place, (size_t)length + 1, format, again);
    text->size += (size_t)length;
  }
  va_end(again);
}

void accrt_http_put_u64(http_text_t* text, uint64_t number) {
  char digits[20];
  size_t first = sizeof digits;
  do {
    digits[--first] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  accrt_http_put(text, digits + first, sizeof digits - first);
}

/* Bytes of the UTF-8 sequence at `at`; 0 where there is none. */
static size_t sequence(const unsigned char* at, size_t left) {
  const unsigned char first = at[0];
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || length > left)
    return 0;
  for (size_t i = 1; i < length; ++i)
    if ((at[i] & 0xC0) != 0x80)
      return 0;
  const int overlong = (first == 0xE0 && at[1] < 0xA0) || (first == 0xF0 && at[1] < 0x90);
  const int surrogate = first == 0xED && at[1] > 0x9F;
  const int beyond = first == 0xF4 && at[1] > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

uint32_t accrt_http_match(const http_text_t* text, const char* word) {
  const size_t size = strlen(word);
  if (text->size > size || (text->size > 0 && memcmp(text->data, word, text->size) != 0))
    return 0;
  return text->size == size ? 1 : 2;
}

uint32_t accrt_http_ends_with(const http_text_t* text, const char* word) {
  const size_t size = strlen(word);
  return text->size >= size && memcmp(text->data + text->size - size, word, size) == 0;
}

uint32_t accrt_http_is_utf8(const char* bytes, size_t size) {
  const unsigned char* at = (const unsigned char*)bytes;
  for (size_t i = 0; i < size;) {
    const size_t length = sequence(at + i, size - i);
    if (length == 0)
      return 0;
    i += length;
  }
  return 1;
}

/* A control character, a quote or a backslash as JSON has it. */
static const char* control(unsigned char byte, char code[7]) {
  static const char hex[] = "0123456789abcdef";
  static const char letters[] = "\bb\tt\nn\ff\rr\"\"\\\\";
  for (size_t i = 0; i + 1 < sizeof letters; i += 2)
    if ((unsigned char)letters[i] == byte) {
      memcpy(code, (const char[3]){'\\', letters[i + 1], 0}, 3);
      return code;
    }
  memcpy(code, (const char[7]){'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15], 0}, 7);
  return code;
}

/* Ends of lines to some clients, which then cut an event there. */
static const char* line_end(const unsigned char* at, size_t length) {
  if (length == 2 && at[0] == 0xC2 && at[1] == 0x85)
    return "\\u0085";
  if (length == 3 && at[0] == 0xE2 && at[1] == 0x80 && (at[2] == 0xA8 || at[2] == 0xA9))
    return at[2] == 0xA8 ? "\\u2028" : "\\u2029";
  return NULL;
}

/* What stands for the sequence of `length` bytes in a JSON string; NULL: the sequence itself. */
static const char* escape(const unsigned char* at, size_t length, char code[7]) {
  if (length == 0)
    return "\xEF\xBF\xBD";
  if (length > 1)
    return line_end(at, length);
  return at[0] < 0x20 || at[0] == '"' || at[0] == '\\' ? control(at[0], code) : NULL;
}

void accrt_http_put_escaped(http_text_t* text, const char* bytes, size_t size) {
  const unsigned char* at = (const unsigned char*)bytes;
  size_t plain = 0; /* from here on nothing has been put */
  char code[7];
  for (size_t i = 0; i < size;) {
    const size_t length = sequence(at + i, size - i);
    const char* replacement = escape(at + i, length, code);
    if (replacement != NULL) {
      accrt_http_put(text, bytes + plain, i - plain);
      accrt_http_put_text(text, replacement);
    }
    i += length == 0 ? 1 : length;
    if (replacement != NULL)
      plain = i;
  }
  accrt_http_put(text, bytes + plain, size - plain);
}

size_t accrt_http_escapes(const http_text_t* text, size_t from) {
  size_t more = 0;
  char code[7];
  for (size_t i = from; i < text->size;) {
    const unsigned char* at = (const unsigned char*)text->data + i;
    const size_t length = sequence(at, text->size - i);
    const size_t taken = length == 0 ? 1 : length;
    const char* replacement = escape(at, length, code);
    if (replacement != NULL)
      more += strlen(replacement) - taken;
    i += taken;
  }
  return more;
}

void accrt_http_put_string(http_text_t* text, const char* words) {
  if (words == NULL) {
    accrt_http_put_text(text, "null");
    return;
  }
  accrt_http_put(text, "\"", 1);
  accrt_http_put_escaped(text, words, strlen(words));
  accrt_http_put(text, "\"", 1);
}

void accrt_http_put_number(http_text_t* text, float number) {
  char digits[40];
  for (int precision = 6; precision <= 9; ++precision) {
    snprintf(digits, sizeof digits - 2, "%.*g", precision, (double)number);
    if (strtof(digits, NULL) == number) /* in the same locale */
      break;
  }
  char* comma = strchr(digits, ',');
  if (comma != NULL)
    *comma = '.';
  if (strpbrk(digits, ".e") == NULL)
    strcat(digits, ".0");
  accrt_http_put_text(text, digits);
}

void accrt_http_put_float(http_text_t* text, float number) {
  if (!(number > -9999.0f))
    number = -9999.0f;
  accrt_http_put_number(text, number > 1e30f ? 1e30f : number);
}
