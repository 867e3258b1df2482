/* serve/http/values.h - arguments of calls that a model writes as plain text, as JSON. */
#ifndef ACCRT_SERVE_HTTP_VALUES_H_
#define ACCRT_SERVE_HTTP_VALUES_H_

#include "serve/http/text.h"

/* 1: the bytes are one JSON value, nested at most 64 deep, with white space around it. */
uint32_t accrt_http_is_json(const char* bytes, size_t size);
/* The bytes of the JSON number with which a text begins; 0: it begins with none. */
size_t accrt_http_number_size(const char* bytes, size_t size);
/* What the schema says of a value. */
enum { HTTP_VALUE_ANY, HTTP_VALUE_TEXT, HTTP_VALUE_TEXT_OR_NULL };

/* Puts a value as JSON: as it is if it is JSON (True, False and None of Python are, too), and
 * otherwise as a string. A text is a string whatever it looks like; but where it may be null, null
 * and None are null. */
void accrt_http_put_value(http_text_t* out, const char* bytes, size_t size, uint32_t kind);

#endif
