/* serve/http/tools.h - calls of tools in a text that comes piece by piece: what is a call goes to
 * OpenAI's tool_calls, what is none to the content.
 *
 * Models write calls as JSON objects with a name and arguments, each family with marks of its own,
 * as markup with a tag for each argument, or as Python does.
 * A call counts from where its name and the beginning of its arguments are known; what looked like
 * a call and is none is text, with its marks. Where a text is cut into pieces changes nothing.
 */
#ifndef ACCRT_SERVE_HTTP_TOOLS_H_
#define ACCRT_SERVE_HTTP_TOOLS_H_

#include "serve/http/text.h"

/* The last form. */
#define ACCRT_HTTP_TOOLS_LAST ACCRT_HTTP_TOOLS_COMMAND

enum { HTTP_CALL_NAME_BYTES = 128, HTTP_CALL_KEY_BYTES = 16 };

/* What stands in `calls` before an id, a name and the text of arguments, where these are no JSON
 * yet (`plain_calls`). Arguments are escaped, as in a JSON string, so they have no such bytes. */
#define HTTP_CALL_ID "\1"
#define HTTP_CALL_NAME "\2"
#define HTTP_CALL_ARGUMENTS "\3"

typedef struct http_tools {
  uint32_t form;        /* ACCRT_HTTP_TOOLS_* */
  uint32_t whole;       /* entries of an answer that is no stream: without index */
  uint32_t plain_calls; /* HTTP_CALL_ID and so on in place of entries */
  uint32_t most;        /* calls; those beyond are dropped */
  uint32_t count;       /* calls so far */
  http_text_t* content;
  http_text_t* calls;    /* entries of tool_calls, divided by commas; the last one may be open */
  http_text_t held;      /* what may be a call, as it was written */
  http_text_t arguments; /* that came before the name */
  uint32_t state;
  uint32_t matched;    /* bytes of a mark */
  uint32_t array;      /* inside of a list of calls */
  uint32_t begun;      /* there was content or a call */
  uint32_t committed;  /* the object is a call */
  uint32_t dropped;    /* and one too many */
  uint32_t entry_open; /* the last entry of `calls` */
  uint32_t has_arguments;
  uint32_t plain; /* Mistral and others: a name, then arguments, without an object around them */
  uint32_t depth, in_string, escaped; /* in a value */
  /* Of markup: lines of a function, a space and a parameter that is a string whatever it looks
   * like, with `?` before the function if it may be null; NULL: none. Its owner's. */
  const char* text_parameters;
  http_text_t piece;   /* what is read of a mark, a tag, a key, a value, an id or a Python call */
  uint32_t parameters; /* of a call, so far */
  uint32_t kind;       /* of the next value: HTTP_VALUE_* */
  uint32_t key_size, name_size;
  char key[HTTP_CALL_KEY_BYTES];
  char name[HTTP_CALL_NAME_BYTES];
} http_tools_t;

void accrt_http_tools_init(http_tools_t* tools, const accrt_allocator_t* allocator, uint32_t form,
                           http_text_t* content, http_text_t* calls);
void accrt_http_tools_deinit(http_tools_t* tools);
void accrt_http_tools_push(http_tools_t* tools, const char* bytes, size_t size);
/* Of ACCRT_HTTP_TOOLS_HARMONY, whose calls its reader finds: what is pushed next is a call of this
 * name, if it is an object. 0: this is no name. */
uint32_t accrt_http_tools_begin(http_tools_t* tools, const char* name, size_t size);
/* Ends what was begun so. */
void accrt_http_tools_over(http_tools_t* tools);
/* The text has ended: what was held is given away. */
void accrt_http_tools_end(http_tools_t* tools);
/* Ends the open entry of `calls`, which is then complete JSON. What follows begins another. */
void accrt_http_tools_close(http_tools_t* tools);

#endif
