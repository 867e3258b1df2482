/* serve/http/calls.c - calls of tools in a text that no server answers with. */
#include "serve/http/server.h"

#include <stdlib.h>

#include "serve/handles.h"

struct accrt_http_calls {
  accrt_allocator_t allocator;
  http_tools_t tools;
  http_text_t content, entries;
  uint32_t ended;
  _Atomic uint32_t references;
};

accrt_status_t accrt_http_calls_create(uint32_t form, uint32_t most,
                                       accrt_http_calls_t** out_calls) {
  if (out_calls == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "out_calls is NULL");
  *out_calls = NULL;
  if (form < ACCRT_HTTP_TOOLS_HERMES || form > ACCRT_HTTP_TOOLS_MISTRAL)
    return HTTP_FAIL(INVALID_ARGUMENT, "form %u is none of ACCRT_HTTP_TOOLS_*", form);
  accrt_http_calls_t* calls;
  if (ACCSV_HANDLE_NEW(&accsv_allocator_system, &calls) != ACCRT_OK)
    return HTTP_FAIL(OUT_OF_MEMORY, "%zu bytes", sizeof *calls);
  calls->allocator = accrt_http_allocator_system;
  accrt_http_text_init(&calls->content, &calls->allocator);
  accrt_http_text_init(&calls->entries, &calls->allocator);
  accrt_http_tools_init(&calls->tools, &calls->allocator, form, &calls->content, &calls->entries);
  if (most != 0)
    calls->tools.most = most;
  calls->references = 1;
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
  if (text_bytes > 0)
    accrt_http_tools_push(&calls->tools, text, (size_t)text_bytes);
  if (last != 0)
    accrt_http_tools_end(&calls->tools);
  else
    accrt_http_tools_close(&calls->tools);
  calls->ended = last != 0;
  if ((calls->content.failed | calls->entries.failed) != 0) {
    calls->ended = 1;
    return HTTP_FAIL(OUT_OF_MEMORY, "a text of %llu bytes", (unsigned long long)text_bytes);
  }
  *out_news = (accrt_http_call_news_t){.content = calls->content.data,
                                       .content_bytes = calls->content.size,
                                       .entries = calls->entries.data,
                                       .entries_bytes = calls->entries.size,
                                       .call_count = calls->tools.count};
  return ACCRT_OK;
}
