/* loader/json.h - a strict reader of JSON with objects, strings and whole numbers, for the headers
 * of weights and `accx caps`. It builds no document. The caller walks the text, in private memory,
 * along the grammar that it expects, so nothing nests deeper than that grammar. It may not
 * allocate; strings are unescaped in place.
 */
#ifndef ACCRT_LOADER_JSON_H_
#define ACCRT_LOADER_JSON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maximum nesting of a skipped value. */
#define ACCX_JSON_MAX_DEPTH 16u

typedef struct accx_json {
  char* begin;
  char* at;
  char* end;         /* *end is a NUL, for which the memory has one more byte */
  const char* error; /* static; why the last function returned false; NULL: no failure */
} accx_json_t;

void accx_json_init(accx_json_t* json, char* text, size_t size_bytes);
/* Each function returns false when the text has something else there, or after an earlier
 * failure. */
bool accx_json_take(accx_json_t* json, char token, const char* error);
/* Returns the next character after white space; NUL at the end. */
char accx_json_peek(accx_json_t* json);
/* Use it after the opening of an object (close is '}') or an array (']'). *out_more is true when an
 * element follows. Set `first` to true before the first call. */
bool accx_json_next(accx_json_t* json, char close, bool* first, bool* out_more);
/* Reads a string: UTF-8 without NUL. It is terminated in place. */
bool accx_json_string(accx_json_t* json, const char** out_text, size_t* out_size_bytes);
/* Reads a member's name and the colon. */
bool accx_json_key(accx_json_t* json, const char** out_text, size_t* out_size_bytes);
/* accx_json_next and accx_json_key of an object: the next member's name, or NULL after the last. */
bool accx_json_member(accx_json_t* json, bool* first, const char** out_name,
                      size_t* out_size_bytes);
/* Reads a whole number from 0 to 2^63 - 1, without sign, fraction or exponent. */
bool accx_json_integer(accx_json_t* json, uint64_t* out_value);
/* Checks and skips any value. */
bool accx_json_skip(accx_json_t* json);
/* True when only white space is left. */
bool accx_json_finish(accx_json_t* json);
/* Records the reason, and returns false. */
bool accx_json_fail(accx_json_t* json, const char* error);
static inline size_t accx_json_offset(const accx_json_t* json) {
  return (size_t)(json->at - json->begin);
}

#endif /* ACCRT_LOADER_JSON_H_ */
