/* serve/http/chunk.c - OpenAI's JSON: chunks of streams, whole answers, log probabilities. It knows
 * no engine and sends nothing. */
#include "serve/http/server.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

typedef struct accrt_http_job http_job_t;

/* Lists of completions. */
enum { LIST_TOKENS, LIST_VALUES, LIST_TOP, LIST_OFFSETS };

static uint32_t is_chat(const http_job_t* job) {
  return job->kind == ACCRT_HTTP_CHAT;
}
static uint32_t is_stream(const http_job_t* job) {
  return (job->flags & ACCRT_HTTP_STREAM) != 0;
}
static uint32_t has_logprobs(const http_job_t* job) {
  return (job->flags & ACCRT_HTTP_LOGPROBS) != 0;
}

static void put_pieces(http_text_t* text, const char* a, const http_text_t* b, const char* c) {
  accrt_http_put_text(text, a);
  accrt_http_put(text, b->data, b->size);
  accrt_http_put_text(text, c);
}

static void put_new_id(http_text_t* text, const http_job_t* job) {
  unsigned char bytes[12];
  if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != (ssize_t)sizeof bytes) {
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &job->number, sizeof job->number);
  }
  accrt_http_put_text(text, is_chat(job) ? "\"chatcmpl-" : "\"cmpl-");
  for (size_t i = 0; i < sizeof bytes; ++i)
    accrt_http_put_format(text, "%02x", bytes[i]);
  accrt_http_put_text(text, "\"");
}

void accrt_http_put_before(http_job_t* job, const accrt_http_format_t* format) {
  http_text_t* text = &job->before;
  const char* object = is_chat(job) ? is_stream(job) ? "chat.completion.chunk" : "chat.completion"
                                    : "text_completion";
  accrt_http_put_text(text, "{\"id\":");
  if (format->id != NULL)
    accrt_http_put_string(text, format->id);
  else
    put_new_id(text, job);
  accrt_http_put_format(text, ",\"object\":\"%s\",\"created\":", object);
  accrt_http_put_u64(text, format->created != 0 ? format->created : (uint64_t)time(NULL));
  accrt_http_put_text(text, ",\"model\":");
  accrt_http_put_string(text, format->model != NULL ? format->model : job->server->model);
}

/* ---- Log probabilities ---- */

/* A token's bytes, from the table that docs/serving.md describes. */
static const char* token_of(const http_server_t* server, int32_t token, size_t* out_size) {
  *out_size = 0;
  const unsigned char* table = server->token_bytes;
  if (table == NULL || token < 0 || (uint32_t)token >= server->token_count)
    return NULL;
  uint32_t ends[2];
  memcpy(ends, table + 8 + 4 * (size_t)token, sizeof ends);
  const size_t texts = 8 + 4 * ((size_t)server->token_count + 1) + server->token_count;
  *out_size = ends[1] - ends[0];
  return (const char*)table + texts + ends[0];
}

/* A token as a JSON string; what has no text is named by its number. */
static void put_token(http_text_t* text, const char* bytes, size_t size, int32_t token) {
  accrt_http_put_text(text, "\"");
  if (bytes == NULL || size == 0)
    accrt_http_put_format(text, "token_id:%d", (int)token);
  else
    accrt_http_put_escaped(text, bytes, size);
  accrt_http_put_text(text, "\"");
}

static void put_chat_token(const http_server_t* server, http_text_t* text,
                           const accrt_serve_logprob_t* entry) {
  size_t size = 0;
  const char* bytes = token_of(server, entry->token, &size);
  accrt_http_put_text(text, "{\"token\":");
  put_token(text, bytes, size, entry->token);
  accrt_http_put_text(text, ",\"logprob\":");
  accrt_http_put_float(text, entry->logprob);
  accrt_http_put_text(text, ",\"bytes\":");
  for (size_t i = 0; i < size; ++i)
    accrt_http_put_format(text, "%s%u", i == 0 ? "[" : ",", (unsigned)(unsigned char)bytes[i]);
  accrt_http_put_text(text, size == 0 ? "null" : "]");
}

static void put_chat_logprob(const http_job_t* job, http_text_t* text,
                             const accrt_serve_logprob_t* entries, uint32_t top_count) {
  accrt_http_put_text(text, text->size == 0 ? "" : ",");
  put_chat_token(job->server, text, &entries[0]);
  accrt_http_put_text(text, ",\"top_logprobs\":[");
  for (uint32_t i = 1; i <= top_count; ++i) {
    accrt_http_put_text(text, i == 1 ? "" : ",");
    put_chat_token(job->server, text, &entries[i]);
    accrt_http_put_text(text, "}");
  }
  accrt_http_put_text(text, "]}");
}

static uint64_t characters(const char* bytes, size_t size) {
  uint64_t count = 0;
  for (size_t i = 0; i < size; ++i)
    count += (bytes[i] & 0xC0) != 0x80;
  return count;
}

static void put_completion_logprob(const http_job_t* job, http_choice_t* choice,
                                   const accrt_serve_logprob_t* entries, uint32_t top_count) {
  const char* comma = choice->lists[LIST_TOKENS].size == 0 ? "" : ",";
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    accrt_http_put_text(&choice->lists[list], comma);
  size_t size = 0;
  const char* bytes = token_of(job->server, entries[0].token, &size);
  put_token(&choice->lists[LIST_TOKENS], bytes, size, entries[0].token);
  accrt_http_put_float(&choice->lists[LIST_VALUES], entries[0].logprob);
  accrt_http_put_u64(&choice->lists[LIST_OFFSETS], choice->offset);
  choice->offset += characters(bytes, size);
  http_text_t* top = &choice->lists[LIST_TOP];
  for (uint32_t i = 1; i <= top_count; ++i) {
    bytes = token_of(job->server, entries[i].token, &size);
    accrt_http_put_text(top, i == 1 ? "{" : ",");
    put_token(top, bytes, size, entries[i].token);
    accrt_http_put_text(top, ":");
    accrt_http_put_float(top, entries[i].logprob);
  }
  accrt_http_put_text(top, top_count == 0 ? "null" : "}");
}

void accrt_http_put_logprobs(http_job_t* job, http_choice_t* choice,
                             const accrt_serve_event_t* event) {
  const uint32_t top = event->top_count < job->top_logprobs ? event->top_count : job->top_logprobs;
  for (uint32_t i = 0; i < event->token_count; ++i) {
    const accrt_serve_logprob_t* entries = event->logprobs + (size_t)i * (1 + event->top_count);
    if (is_chat(job))
      put_chat_logprob(job, &choice->lists[0], entries, top);
    else
      put_completion_logprob(job, choice, entries, top);
  }
}

/* The value of "logprobs". */
static void put_lists(const http_job_t* job, http_text_t* text, const http_choice_t* choice) {
  const http_text_t* lists = choice->lists;
  if (!has_logprobs(job)) {
    accrt_http_put_text(text, "null");
  } else if (is_chat(job)) {
    put_pieces(text, "{\"content\":[", &lists[0], "],\"refusal\":null}");
  } else {
    put_pieces(text, "{\"tokens\":[", &lists[LIST_TOKENS], "],\"token_logprobs\":[");
    put_pieces(text, "", &lists[LIST_VALUES], "],\"top_logprobs\":[");
    put_pieces(text, "", &lists[LIST_TOP], "],\"text_offset\":[");
    put_pieces(text, "", &lists[LIST_OFFSETS], "]}");
  }
}

/* ---- Streams ---- */

static void put_usage(const http_job_t* job, http_text_t* text) {
  accrt_http_put_format(text,
                        "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                        "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                        (unsigned long long)job->prompt_tokens,
                        (unsigned long long)job->output_tokens,
                        (unsigned long long)(job->prompt_tokens + job->output_tokens),
                        (unsigned long long)job->cached_tokens);
}

/* One server-sent event. HTTP/1.1 gets it as a chunk of its own. */
static void put_event(http_connection_t* c, const char* data, size_t size) {
  if (c->old_version == 0)
    accrt_http_put_format(&c->out, "%zx\r\n", size + 8);
  accrt_http_put(&c->out, "data: ", 6);
  accrt_http_put(&c->out, data, size);
  accrt_http_put(&c->out, "\n\n", 2);
  if (c->old_version == 0)
    accrt_http_put(&c->out, "\r\n", 2);
}

/* Begins a chunk in the server's scratch memory. */
static http_text_t* begin(const http_job_t* job, uint32_t index) {
  http_text_t* text = &job->server->scratch;
  accrt_http_text_clear(text);
  put_pieces(text, "", &job->before, ",\"choices\":[{\"index\":");
  accrt_http_put_u64(text, index);
  return text;
}

static void end(const http_job_t* job, http_text_t* text, const char* finish_reason) {
  accrt_http_put_text(text, ",\"finish_reason\":");
  accrt_http_put_string(text, finish_reason);
  accrt_http_put_text(text, "}]");
  if ((job->flags & ACCRT_HTTP_USAGE) != 0)
    accrt_http_put_text(text, ",\"usage\":null");
  accrt_http_put_text(text, "}");
  if (text->failed != 0)
    job->connection->out.failed = 1;
  else
    put_event(job->connection, text->data, text->size);
}

static void put_role(const http_job_t* job, uint32_t index) {
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text,
                      ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
  end(job, text, NULL);
}

static void put_content(http_job_t* job, uint32_t index, http_choice_t* choice) {
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text, is_chat(job) ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
  accrt_http_put_escaped(text, choice->text.data, choice->text.size);
  accrt_http_put_text(text, is_chat(job) ? "\"},\"logprobs\":" : "\",\"logprobs\":");
  put_lists(job, text, choice);
  end(job, text, NULL);
  job->unsent_bytes -= accrt_http_choice_bytes(choice);
  accrt_http_text_clear(&choice->text);
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    accrt_http_text_clear(&choice->lists[list]);
}

static void put_finish(const http_job_t* job, uint32_t index, const char* reason) {
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text, is_chat(job) ? ",\"delta\":{},\"logprobs\":null"
                                         : ",\"text\":\"\",\"logprobs\":null");
  end(job, text, reason);
}

void accrt_http_put_chunks(http_job_t* job, uint32_t index) {
  http_choice_t* choice = &job->choices[index];
  if (choice->begun == 0 && is_chat(job))
    put_role(job, index);
  choice->begun = 1;
  if (choice->text.size > 0 || choice->lists[0].size > 0)
    put_content(job, index, choice);
  if (choice->finish_reason != NULL && choice->ended == 0) {
    put_finish(job, index, choice->finish_reason);
    choice->ended = 1;
  }
}

static void put_last(http_connection_t* c) {
  put_event(c, "[DONE]", 6);
  if (c->old_version == 0)
    accrt_http_put_text(&c->out, "0\r\n\r\n");
}

void accrt_http_put_end(http_job_t* job) {
  http_connection_t* c = job->connection;
  if ((job->flags & ACCRT_HTTP_USAGE) != 0) {
    http_text_t* text = &job->server->scratch;
    accrt_http_text_clear(text);
    put_pieces(text, "", &job->before, ",\"choices\":[],\"usage\":");
    put_usage(job, text);
    accrt_http_put_text(text, "}");
    if (text->failed != 0)
      c->out.failed = 1;
    else
      put_event(c, text->data, text->size);
  }
  put_last(c);
}

void accrt_http_put_stream_failure(http_job_t* job, const http_failure_t* failure) {
  http_text_t* text = &job->server->scratch;
  accrt_http_text_clear(text);
  accrt_http_put_failure(text, failure);
  if (text->failed != 0)
    job->connection->out.failed = 1;
  else
    put_event(job->connection, text->data, text->size);
  put_last(job->connection);
}

/* ---- Whole answers ---- */

static void put_choice(const http_job_t* job, http_text_t* body, uint32_t index) {
  const http_choice_t* choice = &job->choices[index];
  accrt_http_put_format(body, "%s{\"index\":%u,", index == 0 ? "" : ",", index);
  accrt_http_put_text(body, is_chat(job) ? "\"message\":{\"role\":\"assistant\",\"content\":\""
                                         : "\"text\":\"");
  accrt_http_put_escaped(body, choice->text.data, choice->text.size);
  accrt_http_put_text(body,
                      is_chat(job) ? "\",\"refusal\":null},\"logprobs\":" : "\",\"logprobs\":");
  put_lists(job, body, choice);
  accrt_http_put_text(body, ",\"finish_reason\":");
  accrt_http_put_string(body, choice->finish_reason);
  accrt_http_put_text(body, "}");
}

void accrt_http_put_whole(http_job_t* job, http_text_t* body) {
  put_pieces(body, "", &job->before, ",\"choices\":[");
  for (uint32_t i = 0; i < job->choice_count; ++i)
    put_choice(job, body, i);
  accrt_http_put_text(body, "],\"usage\":");
  put_usage(job, body);
  accrt_http_put_text(body, "}");
}
