/* serve/http/stream.c - from events of the engine to answers: which choice gets what, when a chunk
 * is written, and how an answer ends. The JSON is chunk.c's. */
#include "serve/http/server.h"

#include <stdio.h>

typedef struct accrt_http_job http_job_t;

enum { EVENTS = 64, POLLS_AT_ONCE = 8 };

static void begin_stream(http_job_t* job) {
  if (job->head_sent != 0)
    return;
  job->head_sent = 1;
  accrt_http_answer_head(job->connection, 200, "text/event-stream; charset=utf-8", HTTP_NO_SIZE,
                         "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
}

static uint32_t has_news(const http_choice_t* choice) {
  return accrt_http_choice_bytes(choice) > 0 ||
         (choice->finish_reason != NULL && choice->ended == 0);
}

/* The memory of what waits ran out: its client cannot get all. */
static uint32_t is_lost(const http_job_t* job, const http_choice_t* choice) {
  uint32_t failed = job->kind == ACCRT_HTTP_RESPONSE && accrt_http_response_failed(&job->response);
  failed |= choice->text.failed | choice->reasoning.failed | choice->calls.failed |
            choice->waiting.failed | choice->prompt.failed;
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    failed |= choice->lists[list].failed;
  return failed;
}

static void end_stream(http_job_t* job) {
  http_connection_t* c = job->connection;
  accrt_http_put_end(job);
  accrt_http_answer_done(c);
  accrt_http_job_finish(job);
}

uint32_t accrt_http_stream_resume(http_job_t* job) {
  const http_connection_t* c = job->connection;
  if (job->head_sent == 0)
    return 0;
  uint32_t wrote = 0;
  uint32_t without = 0; /* so many choices in a row have nothing */
  while (without < job->choice_count && accrt_http_backlog(c) < HTTP_RESUME_BYTES) {
    const uint32_t index = job->next_choice;
    job->next_choice = (index + 1) % job->choice_count;
    ++without;
    if (!has_news(&job->choices[index]))
      continue;
    accrt_http_put_chunks(job, index);
    wrote = 1;
    without = 0;
  }
  if (without < job->choice_count || job->choices_open > 0)
    return wrote;
  end_stream(job);
  return 1;
}

static void end_whole(http_job_t* job) {
  http_connection_t* c = job->connection;
  http_text_t body;
  accrt_http_text_init(&body, &job->server->allocator);
  accrt_http_put_whole(job, &body);
  if (body.failed != 0)
    accrt_http_connection_abort(c);
  else
    accrt_http_answer_whole(c, 200, "application/json", body.data, body.size, NULL);
  accrt_http_text_deinit(&body);
  if (c->job == job) /* an aborted connection has left it already */
    accrt_http_job_finish(job);
}

/* A sequence that neither reached its end nor its length. */
static void end_with_failure(http_job_t* job, const accrt_serve_event_t* event) {
  http_connection_t* c = job->connection;
  http_failure_t failure = {.status = 500, .code = "engine_failed"};
  char message[160];
  snprintf(message, sizeof message, "The engine failed: %s.", accrt_status_text(event->status));
  failure.message = message;
  if (event->status == ACCRT_ERROR_KERNEL)
    failure = (http_failure_t){
        .status = 500,
        .code = "model_failed",
        .message = "The model failed: its results are not finite numbers (its weights may have NaN "
                   "or infinity), or a kernel returned an error."};
  if (event->finish_reason == ACCRT_SERVE_FINISH_DEADLINE)
    failure = (http_failure_t){
        .status = 504, .code = "deadline", .message = "The request's time was over."};
  if (event->finish_reason == ACCRT_SERVE_FINISH_CANCELLED)
    failure = (http_failure_t){
        .status = 503, .code = "cancelled", .message = "The request was cancelled."};
  if (event->status == ACCRT_ERROR_OUT_OF_RANGE && job->constrained)
    failure = (http_failure_t){.status = 400,
                               .code = "grammar_too_complex",
                               .message = "The grammar became too complex for its text."};
  const uint32_t how = failure.status == 500 ? HTTP_ENDED_ERROR : HTTP_ENDED_ABORT;
  ++job->server->metrics.ended[how];
  if (job->head_sent == 0) {
    accrt_http_answer_failure(c, &failure);
  } else {
    accrt_http_put_stream_failure(job, &failure);
    accrt_http_answer_done(c);
  }
  if (c->job == job)
    accrt_http_job_finish(job);
}

/* The counts of a sequence that has ended. */
static void finish(http_job_t* job, http_part_t* part, http_choice_t* choice,
                   const accrt_serve_event_t* event) {
  http_metrics_t* metrics = &job->server->metrics;
  const uint32_t by_length = event->finish_reason == ACCRT_SERVE_FINISH_LENGTH;
  const uint32_t calls = job->tools == NULL ? 0 : job->tools[choice - job->choices].count;
  choice->finish_reason = by_length ? "length" : calls > 0 ? "tool_calls" : "stop";
  ++metrics->ended[by_length ? HTTP_ENDED_LENGTH : HTTP_ENDED_STOP];
  accrt_http_observe(&metrics->output_tokens, event->output_tokens);
  job->output_tokens += event->output_tokens - choice->tokens;
  choice->tokens = event->output_tokens;
  if (part->prompt_tokens == 0) {
    part->prompt_tokens = event->prompt_tokens;
    job->prompt_tokens += event->prompt_tokens;
    job->cached_tokens += event->cached_tokens;
    accrt_http_observe(&metrics->prompt_tokens, event->prompt_tokens);
  }
  --job->choices_open;
}

/* Counts a token between the marks of the reasoning, and not one that ends a mark. Returns where
 * the text is behind it. */
static thoughts_state_t read_token(http_job_t* job, http_readers_t* readers, int32_t token) {
  if (job->server->token_bytes == NULL) { /* by the event's text, then */
    job->reasoning_tokens += readers->text.state == THOUGHTS_INSIDE;
    return readers->text.state;
  }
  http_thoughts_t* thoughts = &readers->tokens;
  if (thoughts->state == THOUGHTS_OVER && thoughts->has_messages == 0)
    return THOUGHTS_OVER;
  const uint32_t was_inside = thoughts->state == THOUGHTS_INSIDE;
  size_t size;
  const char* bytes = accrt_http_token(job->server, token, &size);
  (void)accrt_http_thoughts_push(thoughts, bytes, size);
  job->reasoning_tokens += was_inside && thoughts->state == THOUGHTS_INSIDE;
  return thoughts->state;
}

/* Log probabilities of the answer's tokens alone: those of the reasoning, of its marks and of the
 * white space about it are left out. */
static void put_answer_logprobs(http_job_t* job, http_choice_t* choice,
                                const accrt_serve_event_t* event, size_t text_bytes) {
  http_readers_t* readers = &job->readers[choice - job->choices];
  http_text_t* undecided = &readers->undecided;
  if (event->logprobs != NULL)
    readers->top_count = event->top_count; /* the same in all events of a request */
  const size_t width = 1 + (size_t)readers->top_count, bytes = width * sizeof *event->logprobs;
  const size_t before = undecided->size;
  uint32_t is_decided = 0; /* there is some of the answer: what follows takes none of it back */
  for (uint32_t i = 0; i < event->token_count; ++i) {
    const thoughts_state_t state = read_token(job, readers, event->tokens[i]);
    is_decided |= state == THOUGHTS_OVER;
    if (state == THOUGHTS_OVER || state == THOUGHTS_BEFORE) {
      if (event->logprobs != NULL)
        accrt_http_put(undecided, event->logprobs + i * width, bytes);
    } else if (is_decided == 0) {
      accrt_http_text_clear(undecided);
    }
  }
  choice->waiting.failed |= undecided->failed;
  if (undecided->size > 0 && (is_decided != 0 || event->finish_reason != 0)) {
    accrt_serve_event_t known = *event;
    known.top_count = readers->top_count;
    known.token_count = (uint32_t)(undecided->size / bytes);
    known.logprobs = (const void*)undecided->data;
    accrt_http_put_logprobs(job, choice, &known, text_bytes);
    accrt_http_text_clear(undecided);
  }
  job->unsent_bytes += undecided->size;
  job->unsent_bytes -= before;
}

/* Counts the event's tokens and adds their log probabilities to the choice. */
static void add_tokens(http_job_t* job, http_choice_t* choice, const accrt_serve_event_t* event,
                       size_t text_bytes) {
  const uint32_t has_logprobs = (job->flags & ACCRT_HTTP_LOGPROBS) != 0;
  const uint32_t of_answer_alone = /* a response has them in its message */
      (job->flags & ACCRT_HTTP_NO_REASONING) != 0 || job->kind == ACCRT_HTTP_RESPONSE;
  if (job->readers != NULL && has_logprobs && of_answer_alone) {
    put_answer_logprobs(job, choice, event, text_bytes);
    return;
  }
  for (uint32_t i = 0; job->readers != NULL && i < event->token_count; ++i)
    (void)read_token(job, &job->readers[choice - job->choices], event->tokens[i]);
  if (has_logprobs && event->logprobs != NULL)
    accrt_http_put_logprobs(job, choice, event, text_bytes);
}

static void add_text(http_job_t* job, http_choice_t* choice, const accrt_serve_event_t* event) {
  if (event->embedding != NULL) {
    accrt_http_put_embedding(&choice->text, event, job->flags);
    return;
  }
  const size_t index = (size_t)(choice - job->choices), size = event->text_size_bytes;
  const uint32_t last = event->finish_reason != 0;
  http_tools_t* tools = job->tools == NULL ? NULL : &job->tools[index];
  if (job->readers != NULL)
    accrt_http_thoughts_take(&job->readers[index].text, event->text, size, last, tools,
                             &choice->text);
  else if (tools != NULL)
    accrt_http_tools_push(tools, event->text, size);
  else
    accrt_http_put(&choice->text, event->text, size);
  if (tools != NULL && last != 0)
    accrt_http_tools_end(tools);
}

/* Adds the event's text and log probabilities to the choice. */
static void add(http_job_t* job, http_choice_t* choice, const accrt_serve_event_t* event) {
  const size_t before = accrt_http_choice_bytes(choice);
  const size_t text_before = choice->text.size, reasoning_before = choice->reasoning.size;
  add_text(job, choice, event);
  add_tokens(job, choice, event, choice->text.size - text_before);
  job->unsent_bytes += accrt_http_choice_bytes(choice) - before;
  if ((job->flags & ACCRT_HTTP_STREAM) == 0 && event->embedding == NULL) { /* as whole JSON */
    job->unsent_bytes += accrt_http_escapes(&choice->text, text_before);
    const size_t more = choice->reasoning.size - reasoning_before; /* it stands there twice */
    job->unsent_bytes += more + 2 * accrt_http_escapes(&choice->reasoning, reasoning_before);
  }
  choice->tokens += event->token_count;
  job->output_tokens += event->token_count;
  if (job->kind == ACCRT_HTTP_RESPONSE && (job->flags & ACCRT_HTTP_STREAM) == 0)
    accrt_http_response_take(job);
}

/* 0: all answers together took too much, and this one was ended for it. */
static uint32_t has_room(http_job_t* job) {
  http_connection_t* c = job->connection;
  accrt_http_connection_grew(c);
  return c->job == job;
}

/* Sends what a stream's choice has, as far as its client takes it. */
static void pass_on(http_job_t* job, uint32_t index) {
  const http_choice_t* choice = &job->choices[index];
  if (is_lost(job, choice)) {
    accrt_http_connection_abort(job->connection);
    return;
  }
  if ((job->flags & ACCRT_HTTP_STREAM) == 0)
    return;
  begin_stream(job);
  if (accrt_http_backlog(job->connection) < HTTP_RESUME_BYTES &&
      (has_news(choice) || choice->begun == 0))
    accrt_http_put_chunks(job, index);
  accrt_http_connection_touch(job->connection);
}

/* Log probabilities of the prompt, which all choices of the request have. */
static void deliver_prompt(http_job_t* job, const http_part_t* part,
                           const accrt_serve_event_t* event) {
  http_connection_t* c = job->connection;
  for (uint32_t i = 0; c->job == job && i < job->choices_per_part; ++i) {
    const uint32_t index = part->index * job->choices_per_part + i;
    http_choice_t* choice = &job->choices[index];
    const size_t before = accrt_http_choice_bytes(choice);
    if ((job->flags & ACCRT_HTTP_ECHO_LOGPROBS) != 0 && job->kind == ACCRT_HTTP_COMPLETION)
      accrt_http_put_prompt_logprobs(job, choice, event);
    if ((job->flags & ACCRT_HTTP_PROMPT_LOGPROBS) != 0 && i == 0)
      accrt_http_put_vllm_logprobs(job, &choice->prompt, event);
    /* Each choice of a completion repeats those of the first. */
    const size_t copies = job->kind == ACCRT_HTTP_COMPLETION ? job->choices_per_part : 1;
    const size_t more =
        accrt_http_choice_bytes(choice) - before + (i == 0 ? choice->prompt.size * copies : 0);
    job->unsent_bytes += more;
    job->burst_bytes += more;
    if (has_room(job))
      pass_on(job, index);
  }
}

static void deliver(http_job_t* job, http_part_t* part, const accrt_serve_event_t* event) {
  http_server_t* server = job->server;
  const uint32_t index = part->index * job->choices_per_part + event->sequence;
  if (event->sequence >= job->choices_per_part || index >= job->choice_count)
    return;
  http_choice_t* choice = &job->choices[index];
  if (event->kind == ACCRT_SERVE_EVENT_PROMPT) {
    deliver_prompt(job, part, event);
    return;
  }
  if (job->first_ns == 0)
    job->first_ns = server->now_ns;
  if (event->finish_reason > ACCRT_SERVE_FINISH_LENGTH) {
    end_with_failure(job, event);
    return;
  }
  add(job, choice, event);
  if (event->finish_reason != 0)
    finish(job, part, choice, event);
  if (!has_room(job))
    return;
  if (is_lost(job, choice)) {
    accrt_http_connection_abort(job->connection);
  } else if ((job->flags & ACCRT_HTTP_STREAM) == 0) {
    if (job->choices_open == 0)
      end_whole(job);
  } else {
    pass_on(job, index);
    if (job->choices_open == 0)
      (void)accrt_http_stream_resume(job);
  }
}

static void handle(http_server_t* server, const accrt_serve_event_t* event) {
  http_part_t* part = event->user_data;
  if (part == NULL || part->ended != 0)
    return;
  http_flight_t* flight = part->flight;
  if (event->last != 0) {
    part->ended = 1;
    --flight->open;
  }
  http_job_t* job = flight->job;
  if (job != NULL && job->connection != NULL && job->done == 0)
    deliver(job, part, event);
  accrt_http_flight_end(server, flight);
}

void accrt_http_events(http_server_t* server) {
  for (uint32_t poll = 0; poll < POLLS_AT_ONCE; ++poll) {
    uint32_t count = 0;
    const accrt_status_t status = accrt_serve_engine_poll(server->engine, server->events,
                                                          sizeof *server->events, EVENTS, &count);
    if (status != ACCRT_OK || count == 0)
      return;
    /* A worker that is in the middle of submitting says first what became of it. */
    accsv_lock(&server->submitting);
    accsv_unlock(&server->submitting);
    for (uint32_t i = 0; i < count; ++i)
      handle(server, &server->events[i]);
  }
}
