/* serve/http/thoughts.h - the reasoning that a model writes before its answer, in a text that comes
 * piece by piece.
 *
 * Reasoning stands between two marks at the beginning of the text. A chat template may have put the
 * first mark at the end of the prompt: the text then begins within. White space around the
 * reasoning is left out. Where a text is cut into pieces changes nothing. GPT-OSS's form has
 * messages in place of two marks: serve/http/harmony.h.
 */
#ifndef ACCRT_SERVE_HTTP_THOUGHTS_H_
#define ACCRT_SERVE_HTTP_THOUGHTS_H_

#include "serve/http/mark_reader.h"
#include "serve/http/text.h"
#include "serve/http/tools.h"

typedef enum thoughts_state {
  THOUGHTS_BEFORE, /* the text may begin with the first mark */
  THOUGHTS_INSIDE,
  THOUGHTS_AFTER, /* white space behind the second mark; a header */
  THOUGHTS_OVER,  /* the rest is no reasoning; of messages: this one */
} thoughts_state_t;

/* Where a text of messages is. */
typedef enum harmony_part {
  HARMONY_BETWEEN, /* messages, or before the first one */
  HARMONY_HEADER,
  HARMONY_REASONING, /* bodies */
  HARMONY_CONTENT,
  HARMONY_CALL,
} harmony_part_t;

typedef struct http_thoughts {
  const char* open;
  const char* close;
  thoughts_state_t state;
  uint32_t matched;       /* bytes of a mark */
  uint32_t entered;       /* the text has, or began within, reasoning, perhaps an empty one */
  uint32_t begun;         /* there was reasoning, perhaps in the prompt */
  http_text_t* reasoning; /* NULL: it is left out */
  /* White space and what may be a mark. If the state is THOUGHTS_OVER, the beginning of the answer:
   * its owner takes it. */
  http_text_t held;
  uint32_t has_responses;    /* marks around the answer are left out, too */
  http_mark_reader_t reader; /* of these, or of a message's */
  uint32_t has_messages;     /* the rest is serve/http/harmony.c's */
  harmony_part_t part;
  uint32_t answered; /* there was text of the answer */
  uint32_t gap;      /* a line feed comes before the next text of it */
  http_text_t header;
} http_thoughts_t;

/* 1: there is such a form (ACCRT_HTTP_REASONING_*, with or without ACCRT_HTTP_REASONING_OPEN and,
 * with that, ACCRT_HTTP_REASONING_BEGUN; ACCRT_HTTP_REASONING_HARMONY has neither). */
uint32_t accrt_http_thoughts_known(uint32_t form);
void accrt_http_thoughts_init(http_thoughts_t* thoughts, const accrt_allocator_t* allocator,
                              uint32_t form, http_text_t* reasoning);
void accrt_http_thoughts_deinit(http_thoughts_t* thoughts);
/* Takes bytes of the reasoning. Returns how many: the others, if there are any, are no reasoning,
 * and come behind `held`. */
size_t accrt_http_thoughts_push(http_thoughts_t* thoughts, const char* bytes, size_t size);
/* Adds bytes to the reasoning, behind white space that was held. */
void accrt_http_thoughts_put(http_thoughts_t* thoughts, const char* bytes, size_t size);
/* The text has ended. */
void accrt_http_thoughts_end(http_thoughts_t* thoughts);
/* Takes a piece of the text, with `held`. What is no reasoning goes to `tools`, whose content is
 * `answer`, or to `answer` if `tools` is NULL. A text that lost bytes for want of memory, `answer`
 * or the reasoning, has failed. */
void accrt_http_thoughts_take(http_thoughts_t* thoughts, const char* bytes, size_t size,
                              uint32_t last, http_tools_t* tools, http_text_t* answer);

#endif
