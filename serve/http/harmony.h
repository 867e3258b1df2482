/* serve/http/harmony.h - the form in which GPT-OSS writes: messages with headers, in a text that
 * comes piece by piece.
 *
 * A header has a channel and perhaps a recipient, and ends with `<|message|>`. The channel
 * `analysis` is reasoning. A message to `functions.NAME` is a call of a tool. Any other message is
 * text of the answer. A message ends with `<|end|>`, `<|call|>` or `<|return|>`, or where another
 * header begins. Where a text is cut into pieces changes nothing.
 */
#ifndef ACCRT_SERVE_HTTP_HARMONY_H_
#define ACCRT_SERVE_HTTP_HARMONY_H_

#include "serve/http/thoughts.h"

/* Where an answer goes. All NULL: nowhere, the text is only followed. */
typedef struct http_harmony_sinks {
  http_tools_t* tools; /* NULL: calls are text */
  http_text_t* answer;
} http_harmony_sinks_t;

void accrt_http_harmony_push(http_thoughts_t* thoughts, const char* bytes, size_t size,
                             http_harmony_sinks_t sinks);
/* The text has ended. */
void accrt_http_harmony_end(http_thoughts_t* thoughts, http_harmony_sinks_t sinks);

#endif
