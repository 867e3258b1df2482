/* serve/http/response.c - OpenAI's responses: the items of their output, and the events of their
 * streams. Items come one after the other: another kind of text ends the item before it. It sends
 * nothing: it writes into the connection. */
#include "serve/http/server.h"

#include <stdio.h>

typedef struct accrt_http_job http_job_t;

/* What the kinds of items are called. */
static const struct kind {
  const char* id; /* begins the item's id */
  const char* type;
  const char* part; /* type of its only part; NULL: it has none */
  const char* delta;
  const char* done;
  const char* field; /* of the whole text */
} kinds[] = {
    [HTTP_ITEM_REASONING] = {"rs", "reasoning", "reasoning_text", "response.reasoning_text.delta",
                             "response.reasoning_text.done", "text"},
    [HTTP_ITEM_MESSAGE] = {"msg", "message", "output_text", "response.output_text.delta",
                           "response.output_text.done", "text"},
    [HTTP_ITEM_CALL] = {"fc", "function_call", NULL, "response.function_call_arguments.delta",
                        "response.function_call_arguments.done", "arguments"},
};

void accrt_http_response_init(http_response_t* response, const accrt_allocator_t* allocator) {
  accrt_http_text_init(&response->items, allocator);
  accrt_http_text_init(&response->text, allocator);
  accrt_http_text_init(&response->logprobs, allocator);
  accrt_http_text_init(&response->early, allocator);
  accrt_http_text_init(&response->call, allocator);
}

void accrt_http_response_deinit(http_response_t* response) {
  accrt_http_text_deinit(&response->items);
  accrt_http_text_deinit(&response->text);
  accrt_http_text_deinit(&response->logprobs);
  accrt_http_text_deinit(&response->early);
  accrt_http_text_deinit(&response->call);
}

/* Empties a text of the open item. That bytes of it are missing stays known. */
static void clear_text(http_response_t* response, http_text_t* text) {
  response->items.failed |= text->failed;
  accrt_http_text_clear(text);
}

uint32_t accrt_http_response_failed(const http_response_t* response) {
  return response->items.failed | response->text.failed | response->logprobs.failed |
         response->early.failed | response->call.failed;
}

/* ---- JSON ---- */

static void put_item_id(const http_job_t* job, http_text_t* text) {
  const http_response_t* response = &job->response;
  accrt_http_put_format(text, "\"%s_%s%02x\"", kinds[response->open].id, response->id,
                        response->item_count);
}

/* The item's only part, as far as its text is known. */
static void put_part(const http_response_t* response, http_text_t* text, uint32_t is_empty) {
  accrt_http_put_format(text, "{\"type\":\"%s\",\"text\":\"", kinds[response->open].part);
  if (is_empty == 0)
    accrt_http_put(text, response->text.data, response->text.size);
  accrt_http_put_text(text, "\"");
  if (response->open == HTTP_ITEM_MESSAGE) {
    accrt_http_put_text(text, ",\"annotations\":[],\"logprobs\":[");
    if (is_empty == 0)
      accrt_http_put(text, response->logprobs.data, response->logprobs.size);
    accrt_http_put_text(text, "]");
  }
  accrt_http_put_text(text, "}");
}

/* The open item. `status` NULL: it has just begun. */
static void put_item(const http_job_t* job, http_text_t* text, const char* status) {
  const http_response_t* response = &job->response;
  accrt_http_put_text(text, "{\"id\":");
  put_item_id(job, text);
  accrt_http_put_format(text, ",\"type\":\"%s\",\"status\":\"%s\"", kinds[response->open].type,
                        status != NULL ? status : "in_progress");
  if (response->open == HTTP_ITEM_CALL) {
    accrt_http_put(text, response->call.data, response->call.size);
    accrt_http_put_around(text, ",\"arguments\":\"", &response->text, "\"}");
    return;
  }
  accrt_http_put_text(text, response->open == HTTP_ITEM_MESSAGE ? ",\"role\":\"assistant\""
                                                                : ",\"summary\":[]");
  accrt_http_put_text(text, ",\"content\":[");
  if (status != NULL)
    put_part(response, text, 0);
  accrt_http_put_text(text, "]}");
}

static void put_usage(const http_job_t* job, http_text_t* text) {
  accrt_http_put_format(
      text,
      "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},"
      "\"output_tokens\":%llu,\"output_tokens_details\":{\"reasoning_tokens\":%llu},"
      "\"total_tokens\":%llu}",
      (unsigned long long)job->prompt_tokens, (unsigned long long)job->cached_tokens,
      (unsigned long long)job->output_tokens, (unsigned long long)job->reasoning_tokens,
      (unsigned long long)(job->prompt_tokens + job->output_tokens));
}

/* Of one that has ended. */
static const char* status_of(const http_job_t* job) {
  return strcmp(job->choices[0].finish_reason, "length") == 0 ? "incomplete" : "completed";
}

/* The response with the items that are complete. The text fails where bytes of them are missing.
 * `failure`: only of one that failed. */
static void put_response(const http_job_t* job, http_text_t* text, const char* status,
                         const http_failure_t* failure) {
  text->failed |= accrt_http_response_failed(&job->response);
  accrt_http_put_around(text, "", &job->before, ",\"status\":\"");
  accrt_http_put_text(text, status);
  accrt_http_put_around(text, "\",\"output\":[", &job->response.items, "],\"incomplete_details\":");
  accrt_http_put_text(text, strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}"
                                                              : "null");
  accrt_http_put_text(text, ",\"error\":");
  if (failure != NULL) {
    accrt_http_put_text(text, "{\"code\":\"server_error\",\"message\":");
    accrt_http_put_string(text, failure->message);
    accrt_http_put_text(text, "}");
  } else {
    accrt_http_put_text(text, "null");
  }
  accrt_http_put_text(text, ",\"usage\":");
  if (failure == NULL && strcmp(status, "in_progress") != 0)
    put_usage(job, text);
  else
    accrt_http_put_text(text, "null");
  accrt_http_put_text(text, "}");
}

/* ---- Events ---- */

static uint32_t is_stream(const http_job_t* job) {
  return (job->flags & ACCRT_HTTP_STREAM) != 0;
}

/* Begins an event in the server's scratch memory. */
static http_text_t* begin_event(http_job_t* job, const char* type) {
  http_text_t* text = &job->server->scratch;
  accrt_http_text_clear(text);
  accrt_http_put_format(text, "{\"type\":\"%s\",\"sequence_number\":", type);
  accrt_http_put_u64(text, job->response.event_count++);
  return text;
}

/* The same, of the open item. */
static http_text_t* begin_item_event(http_job_t* job, const char* type) {
  http_text_t* text = begin_event(job, type);
  accrt_http_put_text(text, ",\"output_index\":");
  accrt_http_put_u64(text, job->response.item_count);
  accrt_http_put_text(text, ",\"item_id\":");
  put_item_id(job, text);
  if (kinds[job->response.open].part != NULL)
    accrt_http_put_text(text, ",\"content_index\":0");
  return text;
}

/* `is_burst`: it repeats what the client has, so it is no sign that the client reads slowly. */
static void end_event(http_job_t* job, const char* type, http_text_t* text, uint32_t is_burst) {
  accrt_http_put_text(text, "}");
  if (text->failed != 0)
    job->connection->out.failed = 1;
  else
    accrt_http_put_event(job->connection, type, text->data, text->size);
  job->response.burst_bytes += is_burst != 0 ? text->size : 0;
}

static void put_state(http_job_t* job, const char* type, const char* status,
                      const http_failure_t* failure) {
  http_text_t* text = begin_event(job, type);
  accrt_http_put_text(text, ",\"response\":");
  put_response(job, text, status, failure);
  end_event(job, type, text, 1);
}

static void put_item_event(http_job_t* job, const char* type, const char* status) {
  http_text_t* text = begin_event(job, type);
  accrt_http_put_text(text, ",\"output_index\":");
  accrt_http_put_u64(text, job->response.item_count);
  accrt_http_put_text(text, ",\"item\":");
  put_item(job, text, status);
  end_event(job, type, text, 1);
}

static void put_part_event(http_job_t* job, const char* type, uint32_t is_empty) {
  if (kinds[job->response.open].part == NULL)
    return;
  http_text_t* text = begin_item_event(job, type);
  accrt_http_put_text(text, ",\"part\":");
  put_part(&job->response, text, is_empty);
  end_event(job, type, text, 1);
}

/* Text of the open item, which is escaped: its new part, or all of it. A call's id and name come
 * with all of it. */
static void put_text_event(http_job_t* job, const char* type, const char* field, const char* bytes,
                           size_t size, const http_text_t* logprobs) {
  http_text_t* text = begin_item_event(job, type);
  accrt_http_put_format(text, ",\"%s\":\"", field);
  accrt_http_put(text, bytes, size);
  accrt_http_put_text(text, "\"");
  const uint32_t is_all = logprobs == &job->response.logprobs;
  if (job->response.open == HTTP_ITEM_MESSAGE)
    accrt_http_put_around(text, ",\"logprobs\":[", logprobs, "]");
  if (is_all != 0)
    accrt_http_put(text, job->response.call.data, job->response.call.size);
  end_event(job, type, text, is_all);
}

/* ---- Items ---- */

/* Ends the open item, if there is one. */
static void close_item(http_job_t* job, const char* status) {
  http_response_t* response = &job->response;
  if (response->open == HTTP_ITEM_NONE)
    return;
  const struct kind* kind = &kinds[response->open];
  if (is_stream(job)) {
    put_text_event(job, kind->done, kind->field, response->text.data, response->text.size,
                   &response->logprobs);
    put_part_event(job, "response.content_part.done", 0);
    put_item_event(job, "response.output_item.done", status);
  }
  accrt_http_put_text(&response->items, response->items.size > 0 ? "," : "");
  put_item(job, &response->items, status);
  clear_text(response, &response->text);
  clear_text(response, &response->logprobs);
  clear_text(response, &response->call);
  response->open = HTTP_ITEM_NONE;
  ++response->item_count;
}

/* Begins an item. A call's id and name are in `call` by then. */
static void open_item(http_job_t* job, http_item_t kind) {
  job->response.open = kind;
  if (!is_stream(job))
    return;
  put_item_event(job, "response.output_item.added", NULL);
  put_part_event(job, "response.content_part.added", 1);
}

/* Adds text from `from` on in the item's own, which is new, with the log probabilities of its
 * tokens. */
static void add_text(http_job_t* job, size_t from, const http_text_t* logprobs) {
  http_response_t* response = &job->response;
  if (is_stream(job))
    put_text_event(job, kinds[response->open].delta, "delta", response->text.data + from,
                   response->text.size - from, logprobs);
  if (logprobs->size == 0)
    return;
  accrt_http_put_text(&response->logprobs, response->logprobs.size > 0 ? "," : "");
  accrt_http_put(&response->logprobs, logprobs->data, logprobs->size);
}

static void take_text(http_job_t* job, http_item_t kind, const http_text_t* text, size_t size) {
  http_response_t* response = &job->response;
  if (size == 0)
    return;
  if (response->open != kind) {
    close_item(job, "completed");
    open_item(job, kind);
  }
  const size_t from = response->text.size;
  accrt_http_put_escaped(&response->text, text->data, size);
  const http_text_t none = {0};
  add_text(job, from, kind == HTTP_ITEM_MESSAGE ? &response->early : &none);
  if (kind == HTTP_ITEM_MESSAGE)
    clear_text(response, &response->early);
}

static void take_arguments(http_job_t* job, const char* bytes, size_t size) {
  if (size == 0)
    return;
  const http_text_t none = {0};
  const size_t from = job->response.text.size;
  accrt_http_put(&job->response.text, bytes, size);
  add_text(job, from, &none);
}

/* Bytes up to the next one that is this mark. */
static size_t up_to(const char* at, const char* end, const char* mark) {
  const char* found = at == end ? NULL : memchr(at, mark[0], (size_t)(end - at));
  return (size_t)((found == NULL ? end : found) - at);
}

/* Calls as serve/http/tools.h has them, each with its id. */
static void take_calls(http_job_t* job, const char* at, const char* end) {
  http_response_t* response = &job->response;
  while (at < end) {
    const char* id = at + 1;
    const char* name = id + up_to(id, end, HTTP_CALL_NAME) + 1;
    const char* arguments = name + up_to(name, end, HTTP_CALL_ARGUMENTS) + 1;
    close_item(job, "completed");
    clear_text(response, &response->early); /* of the call's tokens */
    accrt_http_put_text(&response->call, ",\"call_id\":\"");
    accrt_http_put(&response->call, id, (size_t)(name - id) - 1);
    accrt_http_put_text(&response->call, "\",\"name\":\"");
    accrt_http_put(&response->call, name, (size_t)(arguments - name) - 1);
    accrt_http_put_text(&response->call, "\"");
    open_item(job, HTTP_ITEM_CALL);
    at = arguments + up_to(arguments, end, HTTP_CALL_ID);
    take_arguments(job, arguments, (size_t)(at - arguments));
  }
}

/* Log probabilities wait for the text of their tokens, which may come later. */
static void take_logprobs(http_response_t* response, http_choice_t* choice) {
  http_text_t* list = &choice->lists[0];
  response->early.failed |= list->failed;
  if (list->size == 0)
    return;
  accrt_http_put_text(&response->early, response->early.size > 0 ? "," : "");
  accrt_http_put(&response->early, list->data, list->size);
  accrt_http_text_clear(list);
}

/* What it keeps. A stream writes all of it at its end, and the open item four times. */
static void count(http_job_t* job) {
  const http_response_t* response = &job->response;
  const size_t item = response->text.size + response->logprobs.size + response->call.size;
  const size_t kept = job->before.size + response->items.size + response->early.size +
                      (is_stream(job) ? 4 : 1) * item;
  const size_t undecided = job->readers != NULL ? job->readers[0].undecided.size : 0;
  job->unsent_bytes = kept + undecided + accrt_http_choice_bytes(&job->choices[0]);
  job->burst_bytes = kept + response->burst_bytes;
}

void accrt_http_response_take(http_job_t* job) {
  http_response_t* response = &job->response;
  http_choice_t* choice = &job->choices[0];
  const uint32_t waits = is_stream(job) && (job->flags & ACCRT_HTTP_LOGPROBS) != 0;
  const size_t text_bytes = waits ? accrt_http_take_waiting(job, choice) : choice->text.size;
  response->items.failed |= choice->reasoning.failed | choice->calls.failed;
  const char* calls = choice->calls.data;
  const char* end = calls + (choice->calls.failed == 0 ? choice->calls.size : 0);
  const size_t begun = up_to(calls, end, HTTP_CALL_ID); /* of the call that is open */
  take_logprobs(response, choice);
  take_arguments(job, calls, begun);
  take_text(job, HTTP_ITEM_REASONING, &choice->reasoning, choice->reasoning.size);
  take_text(job, HTTP_ITEM_MESSAGE, &choice->text, text_bytes);
  take_calls(job, calls + begun, end);
  accrt_http_text_drop(&choice->text, text_bytes);
  accrt_http_text_clear(&choice->reasoning);
  accrt_http_text_clear(&choice->calls);
  count(job);
}

/* An answer without any text is an empty message. */
static void end_items(http_job_t* job) {
  if (job->response.open == HTTP_ITEM_NONE && job->response.item_count == 0)
    open_item(job, HTTP_ITEM_MESSAGE);
  close_item(job, status_of(job));
}

void accrt_http_response_put(http_job_t* job) {
  http_choice_t* choice = &job->choices[0];
  if (choice->begun == 0) {
    put_state(job, "response.created", "in_progress", NULL);
    put_state(job, "response.in_progress", "in_progress", NULL);
  }
  choice->begun = 1;
  accrt_http_response_take(job);
  if (choice->finish_reason != NULL && accrt_http_choice_bytes(choice) == 0)
    choice->ended = 1; /* accrt_http_response_end ends the items */
}

void accrt_http_response_end(http_job_t* job) {
  end_items(job);
  const char* status = status_of(job);
  const uint32_t is_whole = strcmp(status, "completed") == 0;
  put_state(job, is_whole ? "response.completed" : "response.incomplete", status, NULL);
}

void accrt_http_response_fail(http_job_t* job, const http_failure_t* failure) {
  close_item(job, "incomplete");
  put_state(job, "response.failed", "failed", failure);
}

void accrt_http_response_whole(http_job_t* job, http_text_t* body) {
  end_items(job);
  put_response(job, body, status_of(job), NULL);
}
