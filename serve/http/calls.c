/* serve/http/calls.c - calls of tools and reasoning in a text that no server answers with. */
#include "serve/http/server.h"

#include <stdlib.h>
#include <string.h>

#include "serve/handles.h"

struct accrt_http_calls {
  accrt_allocator_t allocator;
  http_tools_t tools;       /* of form 0: none */
  http_thoughts_t thoughts; /* over: none */
  http_text_t content, entries, reasoning, text_parameters;
  uint32_t ended;
  _Atomic uint32_t references;
};

accrt_status_t accrt_http_calls_create(uint32_t form, uint32_t most, const char* text_parameters,
                                       uint32_t reasoning, accrt_http_calls_t** out_calls) {
  if (out_calls == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "out_calls is NULL");
  *out_calls = NULL;
  if (form > ACCRT_HTTP_TOOLS_LAST || (form == 0 && reasoning == 0))
    return HTTP_FAIL(INVALID_ARGUMENT, "form %u is none of ACCRT_HTTP_TOOLS_*", form);
  if (form == ACCRT_HTTP_TOOLS_HARMONY && reasoning != ACCRT_HTTP_REASONING_HARMONY)
    return HTTP_FAIL(INVALID_ARGUMENT, "calls of form %u are found with its reasoning", form);
  if (reasoning != 0 && !accrt_http_thoughts_known(reasoning))
    return HTTP_FAIL(INVALID_ARGUMENT, "reasoning %u is none of ACCRT_HTTP_REASONING_*", reasoning);
  accrt_http_calls_t* calls;
  if (ACCSV_HANDLE_NEW(&accsv_allocator_system, &calls) != ACCRT_OK)
    return HTTP_FAIL(OUT_OF_MEMORY, "%zu bytes", sizeof *calls);
  calls->allocator = accrt_http_allocator_system;
  accrt_http_text_init(&calls->content, &calls->allocator);
  accrt_http_text_init(&calls->entries, &calls->allocator);
  accrt_http_text_init(&calls->reasoning, &calls->allocator);
  accrt_http_tools_init(&calls->tools, &calls->allocator, form, &calls->content, &calls->entries);
  if (most != 0)
    calls->tools.most = most;
  accrt_http_text_init(&calls->text_parameters, &calls->allocator);
  if (text_parameters != NULL)
    accrt_http_put(&calls->text_parameters, text_parameters, strlen(text_parameters) + 1);
  calls->tools.text_parameters = calls->text_parameters.data;
  accrt_http_thoughts_init(&calls->thoughts, &calls->allocator, reasoning, &calls->reasoning);
  if (reasoning == 0)
    calls->thoughts.state = THOUGHTS_OVER;
  calls->references = 1;
  if (calls->text_parameters.failed != 0) {
    accrt_http_calls_release(calls);
    return HTTP_FAIL(OUT_OF_MEMORY, "the text parameters");
  }
  *out_calls = calls;
  return ACCRT_OK;
}

accrt_http_calls_t* accrt_http_calls_retain(accrt_http_calls_t* calls) {
  if (calls != NULL)
    atomic_fetch_add_explicit(&calls->references, 1, memory_order_relaxed);
  return calls;
}

void accrt_http_calls_release(accrt_http_calls_t* calls) {
  if (calls == NULL || atomic_fetch_sub(&calls->references, 1) != 1)
    return;
  accrt_http_tools_deinit(&calls->tools);
  accrt_http_thoughts_deinit(&calls->thoughts);
  accrt_http_text_deinit(&calls->reasoning);
  accrt_http_text_deinit(&calls->text_parameters);
  accrt_http_text_deinit(&calls->content);
  accrt_http_text_deinit(&calls->entries);
  ACCSV_HANDLE_FREE(&accsv_allocator_system, calls);
}

accrt_status_t accrt_http_calls_push(accrt_http_calls_t* calls, const char* text,
                                     uint64_t text_bytes, uint32_t last,
                                     accrt_http_call_news_t* out_news) {
  if (calls == NULL || out_news == NULL || (text == NULL && text_bytes > 0))
    return HTTP_FAIL(INVALID_ARGUMENT, "%s is NULL",
                     calls == NULL      ? "calls"
                     : out_news == NULL ? "out_news"
                                        : "text");
  if (calls->ended != 0)
    return HTTP_FAIL(INVALID_STATE, "the text has ended");
  accrt_http_text_clear(&calls->content);
  accrt_http_text_clear(&calls->entries);
  accrt_http_text_clear(&calls->reasoning);
  accrt_http_thoughts_take(&calls->thoughts, text, (size_t)text_bytes, last,
                           calls->tools.form == 0 ? NULL : &calls->tools, &calls->content);
  if (last != 0)
    accrt_http_tools_end(&calls->tools);
  else
    accrt_http_tools_close(&calls->tools);
  calls->ended = last != 0;
  if ((calls->content.failed | calls->entries.failed | calls->reasoning.failed) != 0) {
    calls->ended = 1;
    return HTTP_FAIL(OUT_OF_MEMORY, "a text of %llu bytes", (unsigned long long)text_bytes);
  }
  *out_news = (accrt_http_call_news_t){.content = calls->content.data,
                                       .content_bytes = calls->content.size,
                                       .entries = calls->entries.data,
                                       .entries_bytes = calls->entries.size,
                                       .call_count = calls->tools.count,
                                       .reasoning = calls->reasoning.data,
                                       .reasoning_bytes = calls->reasoning.size};
  return ACCRT_OK;
}
