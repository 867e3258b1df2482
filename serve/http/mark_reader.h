/* serve/http/mark_reader.h - finds marks in a text that comes piece by piece.
 *
 * A mark begins with `<`. What may be the beginning of one is held until it is one or is not. Where
 * a text is cut into pieces changes nothing. What a mark means is its caller's.
 */
#ifndef ACCRT_SERVE_HTTP_MARK_READER_H_
#define ACCRT_SERVE_HTTP_MARK_READER_H_

#include <stddef.h>
#include <stdint.h>

enum { HTTP_MARK_BYTES = 20 }; /* the longest, with a null byte */

/* Zeros: nothing is held. */
typedef struct http_mark_reader {
  uint32_t size; /* of what may be a mark */
  char held[HTTP_MARK_BYTES];
} http_mark_reader_t;

typedef struct http_mark_list {
  const char (*texts)[HTTP_MARK_BYTES];
  uint32_t count;
} http_mark_list_t;

/* Either a mark of the list, or bytes without one. */
typedef struct http_marked {
  uint32_t mark; /* the list's count: none */
  const char* text;
  size_t size_bytes;
} http_marked_t;

/* Takes bytes up to the end of the next mark, or of what stands before it, and puts `*bytes` and
 * `*size_bytes` behind them. The text is valid until the next call. 0: all bytes are taken, and
 * what of them is in no `*out` is held. */
uint32_t accrt_http_mark_next(http_mark_reader_t* reader, const http_mark_list_t* list,
                              const char** bytes, size_t* size_bytes, http_marked_t* out);

#endif
