/* serve/http/jobs.c - between the loop and the workers: the queue of requests, what workers say to
 * them, and the engine's requests that they start. It formats nothing but failures. */
#include "serve/http/server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "serve/handles.h"

typedef struct accrt_http_job http_job_t;

static size_t flight_bytes(uint32_t count) {
  return sizeof(http_flight_t) + count * sizeof(http_part_t);
}

static void flight_free(http_server_t* server, http_flight_t* flight) {
  accrt_http_free(&server->allocator, flight, flight_bytes(flight->count));
  atomic_fetch_sub(&server->flights, 1);
}

static void forget_choices(http_job_t* job) {
  for (uint32_t i = 0; i < job->choice_count && job->choices != NULL; ++i) {
    accrt_http_text_deinit(&job->choices[i].text);
    accrt_http_text_deinit(&job->choices[i].reasoning);
    accrt_http_text_deinit(&job->choices[i].calls);
    accrt_http_text_deinit(&job->choices[i].prompt);
    if (job->tools != NULL)
      accrt_http_tools_deinit(&job->tools[i]);
    if (job->readers != NULL) {
      accrt_http_thoughts_deinit(&job->readers[i].text);
      accrt_http_thoughts_deinit(&job->readers[i].tokens);
      accrt_http_text_deinit(&job->readers[i].undecided);
    }
    accrt_http_text_deinit(&job->choices[i].waiting);
    for (uint32_t list = 0; list < HTTP_LISTS; ++list)
      accrt_http_text_deinit(&job->choices[i].lists[list]);
  }
  accrt_http_free(&job->server->allocator, job->choices, job->choice_count * sizeof *job->choices);
  job->choices = NULL;
  accrt_http_free(&job->server->allocator, job->tools, job->choice_count * sizeof *job->tools);
  job->tools = NULL;
  accrt_http_text_deinit(&job->text_parameters);
  accrt_http_free(&job->server->allocator, job->readers, job->choice_count * sizeof *job->readers);
  job->readers = NULL;
  accrt_http_response_deinit(&job->response);
}

static void forget_body(http_job_t* job) {
  accrt_http_text_deinit(&job->body);
  atomic_fetch_sub(&job->server->held_bytes, job->held_bytes);
  job->held_bytes = 0;
}

static void job_free(http_job_t* job) {
  http_server_t* server = job->server;
  if (job->flight != NULL)
    accrt_http_flight_drop(server, job->flight);
  forget_choices(job);
  forget_body(job);
  accrt_http_text_deinit(&job->ready);
  accrt_http_text_deinit(&job->before);
  ACCSV_HANDLE_FREE(&server->allocator, job);
  accsv_lock(&server->lock);
  --server->jobs_alive;
  pthread_cond_broadcast(&server->changed);
  accsv_unlock(&server->lock);
}

/* ---- The loop's side ---- */

static http_job_t* job_of(http_connection_t* c) {
  http_server_t* server = c->server;
  http_job_t* job;
  if (ACCSV_HANDLE_NEW(&server->allocator, &job) != ACCRT_OK)
    return NULL;
  job->server = server;
  job->connection = c;
  job->kind = c->route->job_kind;
  job->number = ++server->jobs_made;
  job->arrived_ns = server->now_ns;
  accrt_http_text_init(&job->body, &server->allocator);
  accrt_http_text_init(&job->text_parameters, &server->allocator);
  accrt_http_text_init(&job->ready, &server->allocator);
  accrt_http_text_init(&job->before, &server->allocator);
  accrt_http_response_init(&job->response, &server->allocator);
  job->held_bytes = c->body.size;
  accrt_http_text_move(&job->body, &c->body);
  return job;
}

void accrt_http_job_make(http_connection_t* c) {
  http_server_t* server = c->server;
  accsv_lock(&server->lock);
  const uint32_t full = server->queued >= server->max_jobs;
  accsv_unlock(&server->lock);
  http_job_t* job = full ? NULL : job_of(c);
  if (job == NULL) {
    const http_failure_t failure = {.status = full ? 429 : 503,
                                    .code = "overloaded",
                                    .message = "The server has as many requests as it may."};
    accrt_http_answer_failure(c, &failure);
    return;
  }
  c->job = job;
  accsv_lock(&server->lock);
  if (server->queue_last != NULL)
    server->queue_last->next = job;
  else
    server->queue_first = job;
  server->queue_last = job;
  ++server->queued;
  ++server->jobs_alive;
  pthread_cond_broadcast(&server->changed);
  accsv_unlock(&server->lock);
}

/* Takes a job out of the queue. 0 if it is not there: a worker has it, or had it. */
static uint32_t unqueue(http_server_t* server, http_job_t* job) {
  uint32_t found = 0;
  accsv_lock(&server->lock);
  http_job_t* before = NULL;
  for (http_job_t* at = server->queue_first; at != NULL; before = at, at = at->next) {
    if (at != job)
      continue;
    if (before != NULL)
      before->next = at->next;
    else
      server->queue_first = at->next;
    if (server->queue_last == at)
      server->queue_last = before;
    --server->queued;
    found = 1;
    break;
  }
  accsv_unlock(&server->lock);
  return found;
}

void accrt_http_job_leave(http_job_t* job) {
  job->connection = NULL;
  atomic_store(&job->left, 1); /* pairs with the loads of the workers */
  if (job->settled != 0 || unqueue(job->server, job))
    job_free(job);
}

void accrt_http_job_finish(http_job_t* job) {
  if (job->connection != NULL)
    job->connection->job = NULL;
  job->connection = NULL;
  job->done = 1;
  if (job->settled != 0)
    job_free(job);
}

void accrt_http_flight_end(http_server_t* server, http_flight_t* flight) {
  if (flight->open > 0)
    return;
  if (flight->job != NULL)
    flight->job->flight = NULL;
  flight_free(server, flight);
}

void accrt_http_flight_drop(http_server_t* server, http_flight_t* flight) {
  if (flight->job != NULL)
    flight->job->flight = NULL;
  flight->job = NULL;
  for (uint32_t i = 0; i < flight->count; ++i)
    if (flight->parts[i].ended == 0)
      (void)accrt_serve_engine_cancel(server->engine, flight->parts[i].id);
}

static void settle(http_job_t* job) {
  job->settled = 1;
  if (job->done != 0 || job->connection == NULL) {
    job_free(job);
    return;
  }
  http_connection_t* c = job->connection;
  if (job->ready_status == 0) { /* the engine answers */
    if (job->unsent_bytes > 0)
      accrt_http_connection_grew(c);
    return;
  }
  if (job->ready_status >= 400)
    accrt_http_answer_refusal(c, job->ready_status, &job->ready);
  else if (job->ready.failed != 0)
    accrt_http_connection_abort(c);
  else
    accrt_http_answer_whole(c, job->ready_status, job->ready_type, job->ready.data, job->ready.size,
                            NULL);
  if (c->job == job) /* an aborted connection has left it already */
    accrt_http_job_finish(job);
}

void accrt_http_inbox(http_server_t* server) {
  accsv_lock(&server->lock);
  http_job_t* job = server->inbox_first;
  server->inbox_first = server->inbox_last = NULL;
  accsv_unlock(&server->lock);
  while (job != NULL) {
    http_job_t* next = job->next;
    job->next = NULL;
    settle(job);
    job = next;
  }
}

/* ---- The workers' side ---- */

static void give_back(http_job_t* job) {
  http_server_t* server = job->server;
  accsv_lock(&server->lock);
  job->next = NULL;
  job->taken = 0;
  if (server->inbox_last != NULL)
    server->inbox_last->next = job;
  else
    server->inbox_first = job;
  server->inbox_last = job;
  accsv_unlock(&server->lock);
  accrt_http_wake(server);
}

static struct timespec end_of(uint64_t timeout_ns) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  if (timeout_ns > UINT64_C(1000000000) * 86400 * 365)
    timeout_ns = UINT64_C(1000000000) * 86400 * 365;
  const uint64_t total = (uint64_t)end.tv_nsec + timeout_ns;
  end.tv_sec += (time_t)(total / HTTP_SECOND_NS);
  end.tv_nsec = (long)(total % HTTP_SECOND_NS);
  return end;
}

accrt_status_t accrt_http_next(http_server_t* server, uint64_t timeout_ns, http_job_t** out_job) {
  if (out_job == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "out_job is NULL");
  *out_job = NULL;
  HTTP_ENTER(server);
  const struct timespec end = end_of(timeout_ns);
  accsv_lock(&server->lock);
  int late = timeout_ns == 0;
  while (server->queue_first == NULL && server->ended == 0 && !late)
    late = accsv_wait_until(&server->changed, &server->lock, &end);
  http_job_t* job = server->queue_first;
  if (job != NULL) {
    server->queue_first = job->next;
    if (server->queue_first == NULL)
      server->queue_last = NULL;
    job->next = NULL;
    job->taken = 1;
    --server->queued;
    server->taken_ns = accrt_serve_now_ns();
  }
  const uint32_t ended = server->ended;
  accsv_unlock(&server->lock);
  *out_job = job;
  if (job != NULL)
    return ACCRT_OK;
  if (ended != 0)
    return HTTP_FAIL(CANCELLED, "the server has ended");
  return HTTP_FAIL(TIMEOUT, "no request came in %llu ns", (unsigned long long)timeout_ns);
}

accrt_status_t accrt_http_job_info(http_job_t* job, accrt_http_job_info_t* out_info) {
  HTTP_ENTER_JOB(job);
  if (out_info == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "out_info is NULL");
  *out_info = (accrt_http_job_info_t){.kind = job->kind,
                                      .left = atomic_load(&job->left),
                                      .number = job->number,
                                      .body_bytes = job->body.size,
                                      .body = job->body.data};
  return ACCRT_OK;
}

/* Gives the requests to the engine. On failure none of them counts. */
static accrt_status_t submit(http_job_t* job, http_flight_t* flight,
                             const accrt_serve_request_t* const* requests) {
  http_server_t* server = job->server;
  accrt_status_t status = ACCRT_OK;
  uint32_t given = 0;
  accsv_lock(&server->submitting);
  for (; given < flight->count; ++given) {
    accrt_serve_request_t request;
    http_part_t* part = &flight->parts[given];
    *part = (http_part_t){.flight = flight, .index = given};
    status = accrt_http_take_struct(&request, sizeof request, requests[given], "request",
                                    "accrt_http_start");
    if (status != ACCRT_OK)
      break;
    request.user_data = part;
    job->given_tokens += request.prompt_count;
    status = accrt_serve_engine_submit(server->engine, &request, &part->id);
    if (status != ACCRT_OK)
      break;
  }
  flight->open = given;
  if (status == ACCRT_OK) {
    flight->job = job;
    job->flight = flight;
  }
  for (uint32_t i = given; i < flight->count; ++i)
    flight->parts[i].ended = 1;
  if (status != ACCRT_OK && given > 0)
    accrt_http_flight_drop(server, flight);
  accsv_unlock(&server->submitting);
  if (status != ACCRT_OK && given == 0)
    flight_free(server, flight);
  return status;
}

#define MAX_CHOICES 65536u /* of all requests of a job together */

static accrt_status_t check(const http_job_t* job, const accrt_serve_request_t* const* requests,
                            uint32_t count) {
  if (requests == NULL || count == 0)
    return HTTP_FAIL(INVALID_ARGUMENT, "there are no requests");
  if (count > MAX_CHOICES)
    return HTTP_FAIL(INVALID_ARGUMENT, "%u requests; at most %u", count, MAX_CHOICES);
  for (uint32_t i = 0; i < count; ++i) {
    if (requests[i] == NULL)
      return HTTP_FAIL(INVALID_ARGUMENT, "request %u is NULL", i);
    if (requests[i]->struct_size < sizeof *requests[i])
      return HTTP_FAIL(INVALID_ARGUMENT, "request %u: struct_size is %u", i,
                       requests[i]->struct_size);
    if (requests[i]->prompt == NULL && requests[i]->prompt_count > 0)
      return HTTP_FAIL(INVALID_ARGUMENT, "request %u has %u tokens, and its prompt is NULL", i,
                       requests[i]->prompt_count);
    if (requests[i]->n != requests[0]->n)
      return HTTP_FAIL(INVALID_ARGUMENT, "request %u has n %u, and the first one %u", i,
                       requests[i]->n, requests[0]->n);
    if (job->kind == ACCRT_HTTP_RESPONSE && (count > 1 || requests[i]->n > 1))
      return HTTP_FAIL(INVALID_ARGUMENT, "%u requests with n %u; a response has one", count,
                       requests[i]->n);
    if (requests[i]->n > MAX_CHOICES / count)
      return HTTP_FAIL(INVALID_ARGUMENT, "%u requests with n %u each; at most %u choices", count,
                       requests[i]->n, MAX_CHOICES);
    if ((requests[i]->embed != 0) != (job->kind == ACCRT_HTTP_EMBEDDING))
      return HTTP_FAIL(INVALID_ARGUMENT, "request %u has embed %u", i, requests[i]->embed);
  }
  return ACCRT_OK;
}

static uint64_t characters(const http_text_t* text) {
  uint64_t count = 0;
  for (size_t i = 0; i < text->size; ++i)
    count += (text->data[i] & 0xC0) != 0x80;
  return count;
}

static uint32_t has_messages(const http_job_t* job) {
  return job->kind == ACCRT_HTTP_CHAT || job->kind == ACCRT_HTTP_RESPONSE;
}

/* Calls of tools are found in each choice's text. */
static accrt_status_t prepare_tools(http_job_t* job, uint32_t form, const char* text_parameters) {
  if (form == 0 || !has_messages(job))
    return ACCRT_OK;
  const accrt_allocator_t* allocator = &job->server->allocator;
  if (text_parameters != NULL)
    accrt_http_put(&job->text_parameters, text_parameters, strlen(text_parameters) + 1);
  if (job->text_parameters.failed != 0)
    return HTTP_FAIL(OUT_OF_MEMORY, "the text parameters");
  http_tools_t* tools = accrt_http_new(allocator, job->choice_count * sizeof *job->tools);
  if (tools == NULL)
    return HTTP_FAIL(OUT_OF_MEMORY, "%u choices", job->choice_count);
  for (uint32_t i = 0; i < job->choice_count; ++i) {
    http_choice_t* choice = &job->choices[i];
    accrt_http_tools_init(&tools[i], allocator, form, &choice->text, &choice->calls);
    tools[i].text_parameters = job->text_parameters.data;
    tools[i].whole = (job->flags & ACCRT_HTTP_STREAM) == 0;
    tools[i].plain_calls = job->kind == ACCRT_HTTP_RESPONSE;
    if ((job->flags & ACCRT_HTTP_ONE_CALL) != 0)
      tools[i].most = 1;
  }
  job->tools = tools;
  return ACCRT_OK;
}

/* Reasoning is found in each choice's text. */
static accrt_status_t prepare_readers(http_job_t* job, uint32_t form) {
  job->reasoning_tokens = 0;
  if (form == 0 || !has_messages(job))
    return ACCRT_OK;
  const accrt_allocator_t* allocator = &job->server->allocator;
  http_readers_t* readers = accrt_http_new(allocator, job->choice_count * sizeof *job->readers);
  if (readers == NULL)
    return HTTP_FAIL(OUT_OF_MEMORY, "%u choices", job->choice_count);
  const uint32_t is_left_out = (job->flags & ACCRT_HTTP_NO_REASONING) != 0;
  for (uint32_t i = 0; i < job->choice_count; ++i) {
    http_text_t* reasoning = is_left_out ? NULL : &job->choices[i].reasoning;
    accrt_http_thoughts_init(&readers[i].text, allocator, form, reasoning);
    accrt_http_thoughts_init(&readers[i].tokens, allocator, form, NULL);
    accrt_http_text_init(&readers[i].undecided, allocator);
  }
  job->readers = readers;
  return ACCRT_OK;
}

/* Prompts that the answer repeats, one for each choice: a part of the answer that is not sent. */
static accrt_status_t put_prefixes(http_job_t* job, const accrt_serve_request_t* const* requests,
                                   const accrt_http_format_t* format) {
  const uint64_t limit = job->server->max_held_bytes / 2;
  for (uint32_t i = 0; i < job->choice_count; ++i) {
    http_choice_t* choice = &job->choices[i];
    const uint32_t part = i / job->choices_per_part;
    if (format->prefixes[part] != NULL)
      accrt_http_put_text(&choice->text, format->prefixes[part]);
    else
      accrt_http_put_prompt(job->server, &choice->text, requests[part]->prompt,
                            requests[part]->prompt_count);
    job->unsent_bytes += choice->text.size;
    if ((job->flags & ACCRT_HTTP_STREAM) == 0) /* it becomes JSON whole */
      job->unsent_bytes += accrt_http_escapes(&choice->text, 0);
    choice->offset = choice->prefix = characters(&choice->text);
    if (job->unsent_bytes > limit)
      return HTTP_FAIL(BUDGET, "the prompts in the answer have more than %llu bytes",
                       (unsigned long long)limit);
  }
  return ACCRT_OK;
}

/* Room for what the answer is made of. */
static accrt_status_t prepare(http_job_t* job, const accrt_serve_request_t* const* requests,
                              uint32_t count, const accrt_http_format_t* format) {
  const uint32_t n = requests[0]->n;
  const accrt_allocator_t* allocator = &job->server->allocator;
  forget_choices(job);
  job->unsent_bytes = job->burst_bytes = 0;
  job->next_choice = 0;
  job->given_tokens = 0;
  accrt_http_text_clear(&job->before);
  job->flags = format->flags;
  job->top_logprobs = format->top_logprobs;
  job->prompt_top_logprobs = format->prompt_top_logprobs;
  job->choices_per_part = n == 0 ? 1 : n;
  job->constrained = requests[0]->constraint != NULL;
  job->choice_count = job->choices_open = job->choices_per_part * count;
  job->choices = accrt_http_new(allocator, job->choice_count * sizeof *job->choices);
  if (job->choices == NULL)
    return HTTP_FAIL(OUT_OF_MEMORY, "%u choices", job->choice_count);
  for (uint32_t i = 0; i < job->choice_count; ++i) {
    http_choice_t* choice = &job->choices[i];
    accrt_http_text_init(&choice->text, allocator);
    accrt_http_text_init(&choice->reasoning, allocator);
    accrt_http_text_init(&choice->calls, allocator);
    accrt_http_text_init(&choice->prompt, allocator);
    accrt_http_text_init(&choice->waiting, allocator);
    for (uint32_t list = 0; list < HTTP_LISTS; ++list)
      accrt_http_text_init(&choice->lists[list], allocator);
  }
  accrt_status_t status = format->prefixes != NULL ? put_prefixes(job, requests, format) : ACCRT_OK;
  if (status == ACCRT_OK)
    status = prepare_tools(job, format->tools, format->text_parameters);
  if (status == ACCRT_OK)
    status = prepare_readers(job, format->reasoning);
  if (status != ACCRT_OK)
    return status;
  job->response = (http_response_t){0};
  accrt_http_response_init(&job->response, allocator);
  accrt_http_put_before(job, format);
  if (job->before.size > job->server->max_held_bytes / 2)
    return HTTP_FAIL(BUDGET, "what the answer repeats of the request has %zu bytes",
                     job->before.size);
  return job->before.failed == 0 ? ACCRT_OK : HTTP_FAIL(OUT_OF_MEMORY, "the answer's head");
}

accrt_status_t accrt_http_start(http_job_t* job, const accrt_serve_request_t* const* requests,
                                uint32_t count, const accrt_http_format_t* format) {
  HTTP_ENTER_JOB(job);
  accrt_http_format_t form;
  accrt_status_t status = accrt_http_take_struct(&form, sizeof form, format, "format", __func__);
  if (status == ACCRT_OK)
    status = check(job, requests, count);
  if (status == ACCRT_OK && form.tools > ACCRT_HTTP_TOOLS_LAST)
    status = HTTP_FAIL(INVALID_ARGUMENT, "no form %u of calls of tools", form.tools);
  if (status == ACCRT_OK && form.tools == ACCRT_HTTP_TOOLS_HARMONY &&
      form.reasoning != ACCRT_HTTP_REASONING_HARMONY)
    status = HTTP_FAIL(INVALID_ARGUMENT, "calls of form %u without its reasoning", form.tools);
  if (status == ACCRT_OK && form.reasoning != 0 && !accrt_http_thoughts_known(form.reasoning))
    status = HTTP_FAIL(INVALID_ARGUMENT, "no form %u of reasoning", form.reasoning);
  if (status == ACCRT_OK && job->kind == ACCRT_HTTP_EMBEDDING &&
      ((form.flags & ~ACCRT_HTTP_BASE64) != 0 || form.prefixes != NULL))
    status = HTTP_FAIL(INVALID_ARGUMENT, "flags 0x%x or a prefix of embeddings", form.flags);
  if (status != ACCRT_OK)
    return status;
  if (atomic_load(&job->left) != 0) {
    give_back(job);
    return HTTP_FAIL(CANCELLED, "the client has left");
  }
  status = prepare(job, requests, count, &form);
  http_flight_t* flight =
      status != ACCRT_OK ? NULL : accrt_http_new(&job->server->allocator, flight_bytes(count));
  if (flight == NULL)
    return status != ACCRT_OK ? status : HTTP_FAIL(OUT_OF_MEMORY, "%u requests", count);
  flight->count = count;
  atomic_fetch_add(&job->server->flights, 1);
  status = submit(job, flight, requests);
  if (status != ACCRT_OK)
    return status;
  forget_body(job);
  give_back(job);
  return ACCRT_OK;
}

accrt_status_t accrt_http_fail(http_job_t* job, const accrt_http_failure_t* failure) {
  HTTP_ENTER_JOB(job);
  accrt_http_failure_t given;
  const accrt_status_t status =
      accrt_http_take_struct(&given, sizeof given, failure, "failure", __func__);
  if (status != ACCRT_OK)
    return status;
  if (given.status < 400 || given.status > 599)
    return HTTP_FAIL(INVALID_ARGUMENT, "status %u is no failure of HTTP", given.status);
  const http_failure_t form = {.status = given.status,
                               .type = given.type,
                               .parameter = given.parameter,
                               .code = given.code,
                               .message = given.message};
  accrt_http_text_clear(&job->ready);
  accrt_http_put_failure(&job->ready, &form);
  job->ready_status = given.status;
  give_back(job);
  return ACCRT_OK;
}

accrt_status_t accrt_http_answer(http_job_t* job, uint32_t status, const char* content_type,
                                 const void* body, uint64_t body_bytes) {
  HTTP_ENTER_JOB(job);
  if (content_type == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "content_type is NULL");
  if (strlen(content_type) >= sizeof job->ready_type)
    return HTTP_FAIL(INVALID_ARGUMENT, "content_type has %zu bytes, and may have %zu",
                     strlen(content_type), sizeof job->ready_type - 1);
  if (strpbrk(content_type, "\r\n") != NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "content_type has more than one line");
  if (status < 200 || status > 399)
    return HTTP_FAIL(INVALID_ARGUMENT, "status is %u, expected 200 to 399", status);
  if (body == NULL && body_bytes > 0)
    return HTTP_FAIL(INVALID_ARGUMENT, "body is NULL, and body_bytes %llu",
                     (unsigned long long)body_bytes);
  accrt_http_text_clear(&job->ready);
  accrt_http_put(&job->ready, body, (size_t)body_bytes);
  if (job->ready.failed != 0) {
    accrt_http_text_clear(&job->ready);
    return HTTP_FAIL(OUT_OF_MEMORY, "%llu bytes", (unsigned long long)body_bytes);
  }
  snprintf(job->ready_type, sizeof job->ready_type, "%s", content_type);
  job->ready_status = status;
  give_back(job);
  return ACCRT_OK;
}
