/* serve/http/literals.h - arguments of a call as Python writes them, as JSON. */
#ifndef ACCRT_SERVE_HTTP_LITERALS_H_
#define ACCRT_SERVE_HTTP_LITERALS_H_

#include "serve/http/text.h"

/* Puts `a=1, b='x'` as an object. Values are strings, numbers as JSON has them, True, False, None
 * (and JSON's words for these), lists, tuples, and dictionaries whose keys are strings, nested at
 * most 64 deep. 0: the bytes are something else, and what was put is no JSON. */
uint32_t accrt_http_put_keywords(http_text_t* out, const char* bytes, size_t size);

#endif
