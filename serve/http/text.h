/* serve/http/text.h - bytes that grow: what is read from clients and what is sent to them. */
#ifndef ACCRT_SERVE_HTTP_TEXT_H_
#define ACCRT_SERVE_HTTP_TEXT_H_

#include "accrt/instance.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* `failed` says that memory ran out: what was put since then is missing, and the text is not
 * used. */
typedef struct http_text {
  const accrt_allocator_t* allocator;
  char* data;
  size_t size;
  size_t capacity;
  uint32_t failed;
} http_text_t;

/* malloc and free: what is used if a caller passes no allocator. */
extern const accrt_allocator_t accrt_http_allocator_system;

void accrt_http_text_init(http_text_t* text, const accrt_allocator_t* allocator);
void accrt_http_text_deinit(http_text_t* text);
/* Empties it. Memory beyond what most requests need is given back. */
void accrt_http_text_clear(http_text_t* text);
/* Removes the first bytes. */
void accrt_http_text_drop(http_text_t* text, size_t count);
/* Moves the bytes of `from` to `to`, whose own are dropped. */
void accrt_http_text_move(http_text_t* to, http_text_t* from);

/* accrt_http_put where there is no room yet. */
void accrt_http_put_grown(http_text_t* text, const void* bytes, size_t size);
/* Inline, as the next one is: an event of a stream is a dozen short pieces whose sizes are known
 * where they are put. */
static inline void accrt_http_put(http_text_t* text, const void* bytes, size_t size) {
  if (size == 0)
    return;
  if (text->failed != 0 || size > text->capacity - text->size) {
    accrt_http_put_grown(text, bytes, size);
    return;
  }
  memcpy(text->data + text->size, bytes, size);
  text->size += size;
}
static inline void accrt_http_put_text(http_text_t* text, const char* words) {
  accrt_http_put(text, words, strlen(words));
}
/* Another text between words. */
void accrt_http_put_around(http_text_t* text, const char* before, const http_text_t* other,
                           const char* behind);
void accrt_http_put_format(http_text_t* text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
void accrt_http_put_u64(http_text_t* text, uint64_t number);
/* White space of JSON. */
static inline uint32_t accrt_http_is_space(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}
/* 1: the text is this word; 2: it is the beginning of it. */
uint32_t accrt_http_match(const http_text_t* text, const char* word);
uint32_t accrt_http_ends_with(const http_text_t* text, const char* word);
/* 1: these bytes are UTF-8. */
uint32_t accrt_http_is_utf8(const char* bytes, size_t size);
/* The inside of a JSON string: escaped, without quotes. What is no UTF-8 becomes U+FFFD. */
void accrt_http_put_escaped(http_text_t* text, const char* bytes, size_t size);
/* How many bytes the text from that place on takes more there than here. */
size_t accrt_http_escapes(const http_text_t* text, size_t from);
/* A JSON string, or null for NULL. */
void accrt_http_put_string(http_text_t* text, const char* words);
/* A JSON number with as few digits as tell this float, which is finite, from its neighbours. */
void accrt_http_put_number(http_text_t* text, float number);
/* The same; at least -9999.0, which also stands for minus infinity and for what is no number. */
void accrt_http_put_float(http_text_t* text, float number);

#endif
