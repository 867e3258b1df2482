/* loader/json.h - a strict reader of the JSON that weights' headers and `accx caps` are: objects, strings, whole numbers. Not a document: a caller walks
 * the text with the grammar that it expects, in private memory, and nothing nests deeper than that grammar. It may not allocate;
 * strings are unescaped in place.
 */
#ifndef ACCRT_LOADER_JSON_H_
#define ACCRT_LOADER_JSON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Deepest nesting of a value that nobody asked for. */
#define ACCX_JSON_MAX_DEPTH 16u

typedef struct accx_json {
  char* begin;
  char* at;
  char* end;         /* *end is a NUL: the text's memory is one byte longer than the text */
  const char* error; /* static; why the last function returned false; NULL: none did */
} accx_json_t;

void accx_json_init(accx_json_t* json, char* text, size_t size_bytes);
/* Each returns false when the text has something else there, or a function before it failed. */
bool accx_json_take(accx_json_t* json, char token, const char* error);
/* What comes next, after white space; NUL at the end. */
char accx_json_peek(accx_json_t* json);
/* In an object (close is '}') or an array (']') after its opening: true with *out_more when an element comes. `first` begins true. */
bool accx_json_next(accx_json_t* json, char close, bool* first, bool* out_more);
/* A string: UTF-8 without NUL, terminated in place. */
bool accx_json_string(accx_json_t* json, const char** out_text, size_t* out_size_bytes);
/* A member's name and the colon. */
bool accx_json_key(accx_json_t* json, const char** out_text, size_t* out_size_bytes);
/* A whole number from 0 to 2^63 - 1, without sign, fraction or exponent. */
bool accx_json_integer(accx_json_t* json, uint64_t* out_value);
/* Any value, checked and passed over. */
bool accx_json_skip(accx_json_t* json);
/* Nothing but white space is left. */
bool accx_json_finish(accx_json_t* json);
/* Records why, and returns false. */
bool accx_json_fail(accx_json_t* json, const char* error);
static inline size_t accx_json_offset(const accx_json_t* json) {
  return (size_t)(json->at - json->begin);
}

#endif /* ACCRT_LOADER_JSON_H_ */
