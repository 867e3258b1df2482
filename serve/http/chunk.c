/* serve/http/chunk.c - OpenAI's JSON: chunks of streams, whole answers, log probabilities. It knows
 * no engine and sends nothing. */
#include "serve/http/server.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

typedef struct accrt_http_job http_job_t;

#define PIECE_TOKENS 16u /* of a prompt's log probabilities */

/* Lists of completions. */
enum { LIST_TOKENS, LIST_VALUES, LIST_TOP, LIST_OFFSETS };

static uint32_t is_chat(const http_job_t* job) {
  return job->kind == ACCRT_HTTP_CHAT;
}
static uint32_t is_response(const http_job_t* job) {
  return job->kind == ACCRT_HTTP_RESPONSE;
}
static uint32_t is_stream(const http_job_t* job) {
  return (job->flags & ACCRT_HTTP_STREAM) != 0;
}
static uint32_t has_logprobs(const http_job_t* job) {
  return (job->flags & ACCRT_HTTP_LOGPROBS) != 0;
}

static void new_digits(const http_job_t* job, char out[HTTP_ID_DIGITS + 1]) {
  unsigned char bytes[HTTP_ID_DIGITS / 2];
  if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != (ssize_t)sizeof bytes) {
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &job->number, sizeof job->number);
  }
  for (size_t i = 0; i < sizeof bytes; ++i)
    snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void put_new_id(http_text_t* text, const http_job_t* job) {
  char digits[HTTP_ID_DIGITS + 1];
  new_digits(job, digits);
  const char* kind = is_response(job) ? "resp_" : is_chat(job) ? "chatcmpl-" : "cmpl-";
  accrt_http_put_format(text, "\"%s%s\"", kind, digits);
}

void accrt_http_put_before(http_job_t* job, const accrt_http_format_t* format) {
  http_text_t* text = &job->before;
  const char* model = format->model != NULL ? format->model : job->server->model;
  if (job->kind == ACCRT_HTTP_EMBEDDING) {
    accrt_http_put_text(text, "{\"object\":\"list\",\"model\":");
    accrt_http_put_string(text, model);
    return;
  }
  const char* object = is_response(job) ? "response"
                       : !is_chat(job)  ? "text_completion"
                       : is_stream(job) ? "chat.completion.chunk"
                                        : "chat.completion";
  accrt_http_put_text(text, "{\"id\":");
  if (format->id != NULL)
    accrt_http_put_string(text, format->id);
  else
    put_new_id(text, job);
  accrt_http_put_format(text, ",\"object\":\"%s\",\"%s\":", object,
                        is_response(job) ? "created_at" : "created");
  accrt_http_put_u64(text, format->created != 0 ? format->created : (uint64_t)time(NULL));
  accrt_http_put_text(text, ",\"model\":");
  accrt_http_put_string(text, model);
  if (!is_response(job))
    return;
  new_digits(job, job->response.id);
  if (format->members != NULL)
    accrt_http_put_text(text, format->members);
}

/* ---- Log probabilities ---- */

/* A token's bytes, from the table that docs/serving.md describes. */
const char* accrt_http_token(const http_server_t* server, int32_t token, size_t* out_size) {
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

static uint32_t is_special(const http_server_t* server, int32_t token) {
  const unsigned char* flags = server->token_bytes + 8 + 4 * ((size_t)server->token_count + 1);
  return flags[token] & 1u;
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
  const char* bytes = accrt_http_token(server, entry->token, &size);
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

/* Whether two tokens are shown as the same text. */
static uint32_t is_same_key(const http_server_t* server, int32_t a, int32_t b) {
  if (a == b)
    return 1;
  size_t sizes[2] = {0, 0};
  const char* bytes[2] = {accrt_http_token(server, a, &sizes[0]),
                          accrt_http_token(server, b, &sizes[1])};
  return sizes[0] > 0 && sizes[0] == sizes[1] && memcmp(bytes[0], bytes[1], sizes[0]) == 0;
}

/* Whether an alternative before number `i` has its text: that one is the more probable. */
static uint32_t is_known(const http_server_t* server, const accrt_serve_logprob_t* entries,
                         uint32_t i) {
  for (uint32_t k = 1; k < i; ++k)
    if (is_same_key(server, entries[k].token, entries[i].token))
      return 1;
  return 0;
}

/* A token as completions name it: its text; part of a character as `bytes:\xe2\x80`. */
static void put_key(const http_server_t* server, http_text_t* text, int32_t token) {
  size_t size = 0;
  const char* bytes = accrt_http_token(server, token, &size);
  if (size == 0 || accrt_http_is_utf8(bytes, size)) {
    put_token(text, bytes, size, token);
    return;
  }
  accrt_http_put_text(text, "\"bytes:");
  for (size_t i = 0; i < size; ++i)
    accrt_http_put_format(text, "\\\\x%02x", (unsigned)(unsigned char)bytes[i]);
  accrt_http_put_text(text, "\"");
}

/* As OpenAI has it: the alternatives by falling probability, each text once, and always the token
 * that was chosen. */
static void put_completion_logprob(const http_job_t* job, http_choice_t* choice,
                                   const accrt_serve_logprob_t* entries, uint32_t top_count,
                                   uint32_t is_first) {
  const char* comma = choice->lists[LIST_TOKENS].size == 0 ? "" : ",";
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    accrt_http_put_text(&choice->lists[list], comma);
  const http_server_t* server = job->server;
  size_t size = 0;
  const char* bytes = accrt_http_token(server, entries[0].token, &size);
  put_key(server, &choice->lists[LIST_TOKENS], entries[0].token);
  if (is_first)
    accrt_http_put_text(&choice->lists[LIST_VALUES], "null");
  else
    accrt_http_put_float(&choice->lists[LIST_VALUES], entries[0].logprob);
  accrt_http_put_u64(&choice->lists[LIST_OFFSETS], choice->offset);
  if (bytes != NULL && !is_special(server, entries[0].token)) /* those have no place in the text */
    choice->offset += characters(bytes, size);
  http_text_t* top = &choice->lists[LIST_TOP];
  if (top_count == 0 || is_first) {
    accrt_http_put_text(top, "null");
    return;
  }
  uint32_t has_chosen = 0;
  for (uint32_t i = 1; i <= top_count; ++i) {
    const uint32_t is_chosen = is_same_key(server, entries[0].token, entries[i].token);
    if ((is_chosen && has_chosen) || (!is_chosen && is_known(server, entries, i)))
      continue;
    accrt_http_put_text(top, i == 1 ? "{" : ",");
    put_key(server, top, entries[i].token);
    accrt_http_put_text(top, ":");
    accrt_http_put_float(top, entries[is_chosen ? 0 : i].logprob);
    has_chosen |= is_chosen;
  }
  if (!has_chosen) {
    accrt_http_put_text(top, ",");
    put_key(server, top, entries[0].token);
    accrt_http_put_text(top, ":");
    accrt_http_put_float(top, entries[0].logprob);
  }
  accrt_http_put_text(top, "}");
}

/* A run of tokens, in `waiting` of a stream: before their log probabilities. */
typedef struct record {
  uint32_t text_bytes; /* of the text that comes with it */
  uint32_t token_count;
  uint32_t top_count;
  uint32_t of_prompt; /* PROMPT_* */
} record_t;
enum { PROMPT_BEGIN = 1, PROMPT_MIDDLE = 2, PROMPT_END = 4 };

/* The tokens of an echoed prompt begin at its first character, and what comes after it begins
 * behind its text, whatever of the text its tokens are. */
static void begin_record(http_choice_t* choice, const record_t* record) {
  if ((record->of_prompt & PROMPT_BEGIN) != 0)
    choice->offset = 0;
}
static void end_record(http_choice_t* choice, const record_t* record) {
  if ((record->of_prompt & PROMPT_END) != 0)
    choice->offset = choice->prefix;
}

static void put_logprob(const http_job_t* job, http_choice_t* choice, const record_t* record,
                        const accrt_serve_logprob_t* entries, uint32_t i) {
  if (is_chat(job) || is_response(job)) {
    put_chat_logprob(job, &choice->lists[0], entries, record->top_count);
    return;
  }
  put_completion_logprob(job, choice, entries, record->top_count,
                         i == 0 && (record->of_prompt & PROMPT_BEGIN) != 0);
  if (record->of_prompt != 0 && choice->offset > choice->prefix)
    choice->offset = choice->prefix;
}

static void put_record(const http_job_t* job, http_choice_t* choice, const record_t* record,
                       const accrt_serve_logprob_t* entries, uint32_t width) {
  if (is_stream(job)) {
    accrt_http_put(&choice->waiting, record, sizeof *record);
    for (uint32_t i = 0; i < record->token_count; ++i, entries += width)
      accrt_http_put(&choice->waiting, entries, (1 + record->top_count) * sizeof *entries);
    return;
  }
  begin_record(choice, record);
  for (uint32_t i = 0; i < record->token_count; ++i, entries += width)
    put_logprob(job, choice, record, entries, i);
  end_record(choice, record);
}

void accrt_http_put_logprobs(http_job_t* job, http_choice_t* choice,
                             const accrt_serve_event_t* event, size_t text_bytes) {
  const uint32_t top = event->top_count < job->top_logprobs ? event->top_count : job->top_logprobs;
  const record_t record = {(uint32_t)text_bytes, event->token_count, top, 0};
  put_record(job, choice, &record, event->logprobs, 1 + event->top_count);
}

/* In pieces, so that a stream's chunks are no larger than others. */
void accrt_http_put_prompt_logprobs(http_job_t* job, http_choice_t* choice,
                                    const accrt_serve_event_t* event) {
  const uint32_t top = event->top_count < job->top_logprobs ? event->top_count : job->top_logprobs;
  const uint32_t width = 1 + event->top_count, count = event->token_count;
  for (uint32_t at = 0; at < count; at += PIECE_TOKENS) {
    const uint32_t some = count - at < PIECE_TOKENS ? count - at : PIECE_TOKENS;
    const record_t record = {at == 0 ? (uint32_t)choice->text.size : 0, some, top,
                             (at == 0 ? PROMPT_BEGIN : 0u) | PROMPT_MIDDLE |
                                 (at + some == count ? PROMPT_END : 0u)};
    put_record(job, choice, &record, event->logprobs + (size_t)at * width, width);
  }
}

static void put_vllm_logprob(const http_server_t* server, http_text_t* text,
                             const accrt_serve_logprob_t* entry, uint32_t rank) {
  size_t size = 0;
  const char* bytes = accrt_http_token(server, entry->token, &size);
  accrt_http_put_format(text, "\"%d\":{\"logprob\":", (int)entry->token);
  accrt_http_put_float(text, entry->logprob);
  if (rank == 0)
    accrt_http_put_text(text, ",\"rank\":null,\"decoded_token\":\"");
  else
    accrt_http_put_format(text, ",\"rank\":%u,\"decoded_token\":\"", rank);
  accrt_http_put_escaped(text, bytes != NULL ? bytes : "", size);
  accrt_http_put_text(text, "\"}");
}

/* The token itself comes first. Its rank is known where it is among the alternatives. */
void accrt_http_put_vllm_logprobs(const http_job_t* job, http_text_t* text,
                                  const accrt_serve_event_t* event) {
  const uint32_t width = 1 + event->top_count;
  const uint32_t top =
      event->top_count < job->prompt_top_logprobs ? event->top_count : job->prompt_top_logprobs;
  accrt_http_put_text(text, "null");
  for (uint32_t i = 1; i < event->token_count; ++i) {
    const accrt_serve_logprob_t* entries = event->logprobs + (size_t)i * width;
    uint32_t rank = 1;
    while (rank < width && entries[rank].token != entries[0].token)
      ++rank;
    accrt_http_put_text(text, ",{");
    put_vllm_logprob(job->server, text, entries, rank < width ? rank : 0);
    for (uint32_t k = 1; k <= top; ++k) {
      if (k == rank)
        continue;
      accrt_http_put_text(text, ",");
      put_vllm_logprob(job->server, text, &entries[k], k);
    }
    accrt_http_put_text(text, "}");
  }
}

/* The text of a prompt's tokens, special ones left out. Malformed characters are put right where it
 * becomes JSON. */
void accrt_http_put_prompt(const http_server_t* server, http_text_t* text, const int32_t* tokens,
                           uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    size_t size;
    const char* bytes = accrt_http_token(server, tokens[i], &size);
    if (bytes != NULL && !is_special(server, tokens[i]))
      accrt_http_put(text, bytes, size);
  }
}

size_t accrt_http_take_waiting(const http_job_t* job, http_choice_t* choice) {
  http_text_t* waiting = &choice->waiting;
  size_t text_bytes = 0;
  while (choice->written < waiting->size && choice->lists[0].size < HTTP_CHUNK_BYTES &&
         choice->lists[LIST_TOP].size < HTTP_CHUNK_BYTES) {
    record_t record;
    memcpy(&record, waiting->data + choice->written, sizeof record);
    choice->written += sizeof record;
    text_bytes += record.text_bytes;
    begin_record(choice, &record);
    for (uint32_t i = 0; i < record.token_count; ++i) {
      accrt_serve_logprob_t entries[1 + ACCRT_SERVE_MAX_LOGPROBS];
      const size_t size = (1 + record.top_count) * sizeof *entries;
      memcpy(entries, waiting->data + choice->written, size);
      choice->written += size;
      put_logprob(job, choice, &record, entries, i);
    }
    end_record(choice, &record);
  }
  if (choice->written * 2 < waiting->size)
    return text_bytes;
  accrt_http_text_drop(waiting, choice->written);
  choice->written = 0;
  if (waiting->size > 0)
    return text_bytes;
  accrt_http_text_clear(waiting);
  return choice->text.size;
}

/* The value of "logprobs". */
static void put_lists(const http_job_t* job, http_text_t* text, const http_choice_t* choice) {
  const http_text_t* lists = choice->lists;
  if (!has_logprobs(job)) {
    accrt_http_put_text(text, "null");
  } else if (is_chat(job)) {
    accrt_http_put_around(text, "{\"content\":[", &lists[0], "],\"refusal\":null}");
  } else {
    accrt_http_put_around(text, "{\"tokens\":[", &lists[LIST_TOKENS], "],\"token_logprobs\":[");
    accrt_http_put_around(text, "", &lists[LIST_VALUES], "],\"top_logprobs\":[");
    accrt_http_put_around(text, "", &lists[LIST_TOP], "],\"text_offset\":[");
    accrt_http_put_around(text, "", &lists[LIST_OFFSETS], "]}");
  }
}

/* ---- Streams ---- */

static void put_usage(const http_job_t* job, http_text_t* text) {
  accrt_http_put_format(text,
                        "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                        "\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
                        (unsigned long long)job->prompt_tokens,
                        (unsigned long long)job->output_tokens,
                        (unsigned long long)(job->prompt_tokens + job->output_tokens),
                        (unsigned long long)job->cached_tokens);
  if (job->readers != NULL)
    accrt_http_put_format(text, ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu}",
                          (unsigned long long)job->reasoning_tokens);
  accrt_http_put_text(text, "}");
}

/* One server-sent event. HTTP/1.1 gets it as a chunk of its own, whose size comes first. It is
 * written by hand: snprintf takes a third of what an event takes. */
void accrt_http_put_event(http_connection_t* c, const char* type, const char* data, size_t size) {
  static const char named[] = "event: ", before[] = "data: ", after[] = "\n\n";
  static const char digits[] = "0123456789abcdef";
  enum { NAMED = sizeof named - 1, BEFORE = sizeof before - 1, AFTER = sizeof after - 1 };
  const size_t name = type == NULL ? 0 : strlen(type), line = type == NULL ? 0 : NAMED + name + 1;
  char head[2 * sizeof size + 2];
  size_t first = sizeof head;
  if (c->old_version == 0) {
    head[--first] = '\n';
    head[--first] = '\r';
    for (size_t left = line + BEFORE + size + AFTER; left != 0; left /= 16)
      head[--first] = digits[left % 16];
  }
  accrt_http_put(&c->out, head + first, sizeof head - first);
  if (type != NULL) {
    accrt_http_put(&c->out, named, NAMED);
    accrt_http_put(&c->out, type, name);
    accrt_http_put(&c->out, "\n", 1);
  }
  accrt_http_put(&c->out, before, BEFORE);
  accrt_http_put(&c->out, data, size);
  accrt_http_put(&c->out, after, AFTER);
  if (c->old_version == 0)
    accrt_http_put(&c->out, "\r\n", 2);
}

/* Begins a chunk in the server's scratch memory. */
static http_text_t* begin(const http_job_t* job, uint32_t index) {
  http_text_t* text = &job->server->scratch;
  accrt_http_text_clear(text);
  accrt_http_put_around(text, "", &job->before, ",\"choices\":[{\"index\":");
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
    accrt_http_put_event(job->connection, NULL, text->data, text->size);
}

static void put_role(const http_job_t* job, uint32_t index) {
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text,
                      ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
  end(job, text, NULL);
}

static void put_content(http_job_t* job, uint32_t index, http_choice_t* choice) {
  const size_t before = accrt_http_choice_bytes(choice);
  const size_t text_bytes =
      has_logprobs(job) ? accrt_http_take_waiting(job, choice) : choice->text.size;
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text, is_chat(job) ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
  accrt_http_put_escaped(text, choice->text.data, text_bytes);
  accrt_http_put_text(text, is_chat(job) ? "\"},\"logprobs\":" : "\",\"logprobs\":");
  put_lists(job, text, choice);
  end(job, text, NULL);
  accrt_http_text_drop(&choice->text, text_bytes);
  if (choice->text.size == 0)
    accrt_http_text_clear(&choice->text);
  for (uint32_t list = 0; list < HTTP_LISTS; ++list) {
    job->connection->out.failed |= choice->lists[list].failed;
    accrt_http_text_clear(&choice->lists[list]);
  }
  job->unsent_bytes -= before - accrt_http_choice_bytes(choice);
}

/* The members of a message or delta: DeepSeek's name, and vLLM's newer one. */
static void put_reasoning(http_text_t* text, const http_text_t* reasoning) {
  accrt_http_put_text(text, "\"reasoning_content\":\"");
  accrt_http_put_escaped(text, reasoning->data, reasoning->size);
  accrt_http_put_text(text, "\",\"reasoning\":\"");
  accrt_http_put_escaped(text, reasoning->data, reasoning->size);
  accrt_http_put_text(text, "\"");
}

static void put_reasoning_chunk(http_job_t* job, uint32_t index, http_choice_t* choice) {
  job->unsent_bytes -= choice->reasoning.size;
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text, ",\"delta\":{");
  put_reasoning(text, &choice->reasoning);
  accrt_http_put_text(text, "},\"logprobs\":null");
  end(job, text, NULL);
  accrt_http_text_clear(&choice->reasoning);
}

static void put_calls(http_job_t* job, uint32_t index, http_choice_t* choice) {
  job->unsent_bytes -= choice->calls.size;
  accrt_http_tools_close(&job->tools[index]);
  http_text_t* text = begin(job, index);
  accrt_http_put_around(text, ",\"delta\":{\"tool_calls\":[", &choice->calls,
                        "]},\"logprobs\":null");
  end(job, text, NULL);
  accrt_http_text_clear(&choice->calls);
}

static void put_finish(const http_job_t* job, uint32_t index, const char* reason) {
  http_text_t* text = begin(job, index);
  accrt_http_put_text(text, is_chat(job) ? ",\"delta\":{},\"logprobs\":null"
                                         : ",\"text\":\"\",\"logprobs\":null");
  end(job, text, reason);
}

void accrt_http_put_chunks(http_job_t* job, uint32_t index) {
  if (is_response(job)) {
    accrt_http_response_put(job);
    return;
  }
  http_choice_t* choice = &job->choices[index];
  if (choice->begun == 0 && is_chat(job))
    put_role(job, index);
  choice->begun = 1;
  if (choice->reasoning.size > 0)
    put_reasoning_chunk(job, index, choice);
  if (accrt_http_choice_bytes(choice) > choice->calls.size)
    put_content(job, index, choice);
  if (choice->calls.size > 0)
    put_calls(job, index, choice);
  if (choice->finish_reason != NULL && choice->ended == 0 && accrt_http_choice_bytes(choice) == 0) {
    put_finish(job, index, choice->finish_reason);
    choice->ended = 1;
  }
}

/* The last event of a response says itself that it is the last. */
static void put_last(const http_job_t* job) {
  http_connection_t* c = job->connection;
  if (!is_response(job))
    accrt_http_put_event(c, NULL, "[DONE]", 6);
  if (c->old_version == 0)
    accrt_http_put_text(&c->out, "0\r\n\r\n");
}

void accrt_http_put_end(http_job_t* job) {
  http_connection_t* c = job->connection;
  if (is_response(job)) {
    accrt_http_response_end(job);
  } else if ((job->flags & ACCRT_HTTP_USAGE) != 0) {
    http_text_t* text = &job->server->scratch;
    accrt_http_text_clear(text);
    accrt_http_put_around(text, "", &job->before, ",\"choices\":[],\"usage\":");
    put_usage(job, text);
    accrt_http_put_text(text, "}");
    if (text->failed != 0)
      c->out.failed = 1;
    else
      accrt_http_put_event(c, NULL, text->data, text->size);
  }
  put_last(job);
}

void accrt_http_put_stream_failure(http_job_t* job, const http_failure_t* failure) {
  if (is_response(job)) {
    accrt_http_response_fail(job, failure);
    put_last(job);
    return;
  }
  http_text_t* text = &job->server->scratch;
  accrt_http_text_clear(text);
  accrt_http_put_failure(text, failure);
  if (text->failed != 0)
    job->connection->out.failed = 1;
  else
    accrt_http_put_event(job->connection, NULL, text->data, text->size);
  put_last(job);
}

/* ---- Whole answers ---- */

/* Calls alone have no content, and neither has reasoning alone, also where it is left out. */
static void put_whole_text(const http_job_t* job, http_text_t* body, uint32_t index) {
  const http_choice_t* choice = &job->choices[index];
  const uint32_t has_reasoning = job->readers != NULL && job->readers[index].text.entered != 0;
  if (choice->text.size == 0 && (choice->calls.size > 0 || has_reasoning != 0)) {
    accrt_http_put_text(body, "null");
    return;
  }
  accrt_http_put_text(body, "\"");
  accrt_http_put_escaped(body, choice->text.data, choice->text.size);
  accrt_http_put_text(body, "\"");
}

/* The first choice of a request has them for all. */
static void put_prompt_logprobs(const http_job_t* job, http_text_t* body, uint32_t index) {
  const uint32_t first = index - index % job->choices_per_part;
  accrt_http_put_around(body, ",\"prompt_logprobs\":[", &job->choices[first].prompt, "]");
}

static void put_choice(const http_job_t* job, http_text_t* body, uint32_t index) {
  const http_choice_t* choice = &job->choices[index];
  accrt_http_put_format(body, "%s{\"index\":%u,", index == 0 ? "" : ",", index);
  accrt_http_put_text(body, is_chat(job) ? "\"message\":{\"role\":\"assistant\",\"content\":"
                                         : "\"text\":");
  put_whole_text(job, body, index);
  if (is_chat(job))
    accrt_http_put_text(body, ",\"refusal\":null");
  if (choice->reasoning.size > 0) {
    accrt_http_put_text(body, ",");
    put_reasoning(body, &choice->reasoning);
  }
  if (choice->calls.size > 0)
    accrt_http_put_around(body, ",\"tool_calls\":[", &choice->calls, "]");
  accrt_http_put_text(body, is_chat(job) ? "},\"logprobs\":" : ",\"logprobs\":");
  put_lists(job, body, choice);
  if (!is_chat(job) && (job->flags & ACCRT_HTTP_PROMPT_LOGPROBS) != 0)
    put_prompt_logprobs(job, body, index);
  accrt_http_put_text(body, ",\"finish_reason\":");
  accrt_http_put_string(body, choice->finish_reason);
  accrt_http_put_text(body, "}");
}

void accrt_http_put_whole(http_job_t* job, http_text_t* body) {
  if (job->kind == ACCRT_HTTP_EMBEDDING) {
    accrt_http_put_embeddings(job, body);
    return;
  }
  if (is_response(job)) {
    accrt_http_response_whole(job, body);
    return;
  }
  accrt_http_put_around(body, "", &job->before, ",\"choices\":[");
  for (uint32_t i = 0; i < job->choice_count; ++i)
    put_choice(job, body, i);
  accrt_http_put_text(body, "],\"usage\":");
  put_usage(job, body);
  if (is_chat(job) && (job->flags & ACCRT_HTTP_PROMPT_LOGPROBS) != 0)
    put_prompt_logprobs(job, body, 0);
  accrt_http_put_text(body, "}");
}
