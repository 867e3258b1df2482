/* serve/deliver.c - tokens of sequences become events: text, stops, log probabilities, ends. */
#include <math.h>
#include <string.h>

#include "serve/engine.h"

/* What an event says. */
typedef struct news {
  const int32_t* token; /* NULL: none */
  const accrt_serve_results_t* results;
  uint32_t sample;
  uint32_t text_size; /* of the tail */
  uint32_t reason;
  int32_t stop_token, stop_string;
  bool complete; /* the constraint lets nothing follow this token, which is part of the text */
  accrt_status_t status;
  uint64_t now_ns;
} news_t;

/* ---- Events ---- */

static void fill_top(accrt_serve_logprob_t* out, uint32_t count,
                     const accrt_serve_results_t* results, uint32_t sample) {
  const uint32_t most = results->top_count;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t at = (size_t)sample * most + i;
    out[i] = i < most ? (accrt_serve_logprob_t){results->top_tokens[at], results->top_logprobs[at]}
                      : (accrt_serve_logprob_t){-1, 0};
  }
}

/* Whether the model gave the log probabilities that the request wants: `entries` for each token. */
static bool has_logprobs(const accrt_serve_results_t* results, uint32_t entries) {
  if (entries == 0)
    return true;
  return results->logprobs != NULL &&
         (entries == 1 ||
          (results->top_count > 0 && results->top_tokens != NULL && results->top_logprobs != NULL));
}

static void fill_logprobs(accrt_serve_logprob_t* out, const accsv_request_t* request,
                          const news_t* news) {
  const accrt_serve_results_t* results = news->results;
  out[0] = (accrt_serve_logprob_t){*news->token, results->logprobs[news->sample]};
  fill_top(out + 1, request->parameters.top_logprobs, results, news->sample);
}

static uint32_t storage_needed(const accsv_request_t* request, const news_t* news) {
  uint64_t needed = news->text_size;
  if (news->token != NULL)
    needed += 8 + accsv_request_logprobs(request) * sizeof(accrt_serve_logprob_t);
  return needed < UINT32_MAX ? (uint32_t)needed : UINT32_MAX;
}

/* Memory for an event; NULL: there is none. A last event has its own, unless that is too small. */
static accsv_node_t* get_node(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                              uint32_t needed, bool last) {
  accsv_node_t* node = NULL;
  if (last && generation->last_node->capacity >= needed) {
    node = generation->last_node;
    generation->last_node = NULL;
    return node;
  }
  if (needed <= ACCSV_NODE_USUAL)
    node = accsv_nodes_take(&engine->spare);
  if (node == NULL)
    (void)accsv_node_new(&engine->allocator, needed < ACCSV_NODE_USUAL ? ACCSV_NODE_USUAL : needed,
                         &node);
  return node;
}

static void fill_node(accsv_node_t* node, const accsv_generation_t* generation,
                      const news_t* news) {
  const accsv_request_t* request = generation->request;
  const accsv_sequence_t* sequence = &generation->sequence;
  accrt_serve_event_t* event = &node->event;
  *event = (accrt_serve_event_t){.struct_size = sizeof *event,
                                 .kind = ACCRT_SERVE_EVENT_TOKENS,
                                 .request = request->id,
                                 .user_data = request->parameters.user_data,
                                 .sequence = generation->index,
                                 .stop_token = news->stop_token,
                                 .stop_string = news->stop_string,
                                 .finish_reason = news->reason,
                                 .status = news->status,
                                 .time_ns = news->now_ns};
  unsigned char* place = node->storage;
  if (news->token != NULL) {
    memcpy(place, news->token, sizeof *news->token);
    event->tokens = (const int32_t*)(const void*)place;
    event->token_count = 1;
    place += 8;
    const uint32_t logprobs = accsv_request_logprobs(request);
    if (logprobs > 0) {
      accrt_serve_logprob_t* out = (accrt_serve_logprob_t*)(void*)place;
      fill_logprobs(out, request, news);
      event->logprobs = out;
      event->top_count = logprobs - 1;
      place += logprobs * sizeof *out;
    }
  }
  if (news->text_size > 0)
    memcpy(place, generation->text.tail, news->text_size);
  event->text = (const char*)place;
  event->text_size_bytes = news->text_size;
  if (news->reason == 0)
    return;
  event->kind = news->reason == ACCRT_SERVE_FINISH_FAILED ? ACCRT_SERVE_EVENT_FAILED
                                                          : ACCRT_SERVE_EVENT_FINISHED;
  event->last = request->going_on == 1;
  event->prompt_tokens = sequence->prompt_count;
  event->cached_tokens = sequence->cached_tokens;
  event->output_tokens = sequence->known - sequence->prompt_count;
}

/* ---- Ends ---- */

static void count_end(accrt_serve_engine_t* engine, const accsv_generation_t* generation,
                      const news_t* news) {
  const accsv_request_t* request = generation->request;
  accrt_serve_stats_t* figures = &engine->figures;
  uint64_t* const counters[] = {NULL,
                                &figures->finished_stop,
                                &figures->finished_length,
                                &figures->finished_cancelled,
                                &figures->finished_deadline,
                                &figures->finished_failed};
  ++*counters[news->reason];
  if ((news->reason == ACCRT_SERVE_FINISH_STOP || news->reason == ACCRT_SERVE_FINISH_LENGTH) &&
      request->parameters.embed == 0)
    accsv_pace_note_end(&engine->pace,
                        generation->sequence.known - generation->sequence.prompt_count,
                        request->parameters.max_new_tokens);
  accsv_histogram_add(&figures->total_time, news->now_ns - request->arrival_ns);
}

/* The event is made: takes the sequence out of the scheduler. */
static void close_generation(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                             const news_t* news) {
  accsv_request_t* request = generation->request;
  accsv_scheduler_end(&engine->scheduler, &generation->sequence);
  count_end(engine, generation, news);
  if (--request->going_on > 0)
    return;
  --engine->live;
  request->next = engine->ended;
  engine->ended = request;
}

/* Its own memory is enough for an event without text. */
static void end_without_text(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                             uint32_t reason, accrt_status_t status, uint64_t now_ns) {
  const news_t news = {
      .reason = reason, .status = status, .stop_token = -1, .stop_string = -1, .now_ns = now_ns};
  accsv_node_t* node = get_node(engine, generation, 0, true);
  fill_node(node, generation, &news);
  accsv_nodes_put(&engine->events, node);
  close_generation(engine, generation, &news);
}

void accsv_end_request(accrt_serve_engine_t* engine, accsv_request_t* request, uint32_t reason,
                       accrt_status_t status, uint64_t now_ns) {
  for (uint32_t i = 0; i < request->count; ++i) {
    accsv_generation_t* generation = &request->generations[i];
    if (generation->sequence.state != ACCSV_ENDED)
      end_without_text(engine, generation, reason, status, now_ns);
  }
}

/* The token's event could not be made: the request fails, without that token. */
static void fail_token(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                       accrt_status_t status, uint64_t now_ns) {
  --generation->sequence.known;
  accsv_end_request(engine, generation->request, ACCRT_SERVE_FINISH_FAILED, status, now_ns);
}

/* Sends the news of a token. */
static void send(accrt_serve_engine_t* engine, accsv_generation_t* generation, const news_t* news) {
  accsv_request_t* request = generation->request;
  accsv_node_t* node =
      get_node(engine, generation, storage_needed(request, news), news->reason != 0);
  if (node == NULL) {
    fail_token(engine, generation, ACCRT_ERROR_OUT_OF_MEMORY, news->now_ns);
    return;
  }
  fill_node(node, generation, news);
  accsv_nodes_put(&engine->events, node);
  if (news->text_size > 0 && news->reason == 0)
    accsv_text_drop(&generation->text, news->text_size);
  if (news->reason != 0)
    close_generation(engine, generation, news);
}

static bool is_token(const accrt_serve_engine_t* engine, int32_t token) {
  return token >= 0 && (uint32_t)token < engine->model->info.vocab_size;
}

/* ---- Scores ---- */

/* The place in the event of the log probabilities of the prompt's token at `position`. */
static accrt_serve_logprob_t* score_of(const accsv_request_t* request, uint32_t position) {
  accrt_serve_logprob_t* entries = (accrt_serve_logprob_t*)(void*)request->prompt_node->storage;
  return entries + (size_t)position * accsv_request_prompt_logprobs(request);
}

/* The sample was made to be the token; where it is another, the model cannot give that token. */
static void fill_score(accrt_serve_logprob_t* out, uint32_t top_count, int32_t token,
                       const accrt_serve_results_t* results, uint32_t sample) {
  const bool drawn = results->tokens[sample] == token;
  out[0] = (accrt_serve_logprob_t){token, drawn ? results->logprobs[sample] : -INFINITY};
  fill_top(out + 1, top_count, results, sample);
}

static void send_prompt(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                        uint64_t now_ns) {
  accsv_request_t* request = generation->request;
  const accsv_sequence_t* sequence = &generation->sequence;
  accsv_node_t* node = request->prompt_node;
  accrt_serve_logprob_t* first = score_of(request, 0);
  first[0] = (accrt_serve_logprob_t){sequence->tokens[0], 0};
  for (uint32_t i = 1; i < accsv_request_prompt_logprobs(request); ++i)
    first[i] = (accrt_serve_logprob_t){-1, 0};
  int32_t* tokens = (int32_t*)(void*)score_of(request, sequence->prompt_count);
  memcpy(tokens, sequence->tokens, sequence->prompt_count * sizeof *tokens);
  node->event = (accrt_serve_event_t){.struct_size = sizeof node->event,
                                      .kind = ACCRT_SERVE_EVENT_PROMPT,
                                      .request = request->id,
                                      .user_data = request->parameters.user_data,
                                      .tokens = tokens,
                                      .token_count = sequence->prompt_count,
                                      .text = "",
                                      .logprobs = first,
                                      .top_count = request->parameters.prompt_top_logprobs,
                                      .stop_token = -1,
                                      .stop_string = -1,
                                      .time_ns = now_ns};
  request->prompt_node = NULL;
  accsv_nodes_put(&engine->events, node);
  generation->sequence.plain = accsv_generation_is_plain(generation);
}

void accsv_deliver_scores(accrt_serve_engine_t* engine, const accsv_part_t* part,
                          const accrt_serve_results_t* results, uint32_t sample, uint64_t now_ns) {
  accsv_generation_t* generation = accsv_generation_of(part->sequence);
  const accsv_request_t* request = generation->request;
  const uint32_t first = accsv_part_sampled(part) + 1;
  const bool given = has_logprobs(results, accsv_request_prompt_logprobs(request));
  for (uint32_t i = 0; i < accsv_part_scores(part); ++i) {
    if (!given || !is_token(engine, results->tokens[sample + i])) {
      accsv_end_request(engine, generation->request, ACCRT_SERVE_FINISH_FAILED, ACCRT_ERROR_KERNEL,
                        now_ns);
      return;
    }
    fill_score(score_of(request, first + i), request->parameters.prompt_top_logprobs,
               part->sequence->tokens[first + i], results, sample + i);
  }
  if (part->draws && generation->index == 0 && request->prompt_node != NULL)
    send_prompt(engine, generation, now_ns);
}

/* ---- Embeddings ---- */

/* What the sum of the rows is divided by: their number, or its own norm; not finite where a row is
 * not. */
static double divisor_of(const accsv_generation_t* generation) {
  const accrt_serve_request_t* parameters = &generation->request->parameters;
  double sum = 0;
  for (uint32_t i = 0; i < parameters->embed_dimensions; ++i)
    sum += generation->embedding[i] * generation->embedding[i];
  if ((parameters->flags & ACCRT_SERVE_EMBED_RAW) == 0)
    return sum != 0 ? sqrt(sum) : 1;
  const double rows = parameters->embed == ACCRT_SERVE_EMBED_MEAN ? generation->embedded : 1;
  return isfinite(sum) ? rows : sum;
}

static void fill_embedding(accsv_node_t* node, const accsv_generation_t* generation,
                           double divisor) {
  const uint32_t size = generation->request->parameters.embed_dimensions;
  float* out = (float*)(void*)node->storage;
  for (uint32_t i = 0; i < size; ++i)
    out[i] = (float)(generation->embedding[i] / divisor);
  node->event.embedding = out;
  node->event.embedding_size = size;
}

/* A part that is computed again, as after a preemption, has rows that came before. */
void accsv_deliver_rows(accrt_serve_engine_t* engine, const accsv_part_t* part, const float* rows,
                        uint64_t now_ns) {
  accsv_generation_t* generation = accsv_generation_of(part->sequence);
  const uint32_t end = part->start + part->count, first = end - part->embeds;
  const uint32_t size = generation->request->parameters.embed_dimensions;
  if (rows == NULL) {
    accsv_end_request(engine, generation->request, ACCRT_SERVE_FINISH_FAILED, ACCRT_ERROR_KERNEL,
                      now_ns);
    return;
  }
  /* Of all rows none is left out. */
  ACCRT_ASSERT(first <= generation->embedded || !part->sequence->embeds_all);
  for (uint32_t token = first; token < end; ++token) {
    const float* row = rows + (size_t)(token - first) * engine->model->info.embedding_size;
    for (uint32_t i = 0; token >= generation->embedded && i < size; ++i)
      generation->embedding[i] += (double)row[i];
  }
  if (end > generation->embedded)
    generation->embedded = end;
  if (end < part->sequence->known)
    return;
  const double divisor = divisor_of(generation);
  if (!isfinite(divisor)) {
    accsv_end_request(engine, generation->request, ACCRT_SERVE_FINISH_FAILED, ACCRT_ERROR_KERNEL,
                      now_ns);
    return;
  }
  const news_t news = {.reason = ACCRT_SERVE_FINISH_STOP,
                       .status = ACCRT_OK,
                       .stop_token = -1,
                       .stop_string = -1,
                       .now_ns = now_ns};
  accsv_node_t* node = generation->last_node; /* it was made large enough */
  generation->last_node = NULL;
  fill_node(node, generation, &news);
  fill_embedding(node, generation, divisor);
  accsv_nodes_put(&engine->events, node);
  close_generation(engine, generation, &news);
}

/* ---- Tokens ---- */

static bool is_one_of(int32_t token, const int32_t* tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (tokens[i] == token)
      return true;
  }
  return false;
}

/* An end token of a constrained sequence came because nothing else might. */
static bool ends_by_token(const accrt_serve_engine_t* engine, const accsv_request_t* request,
                          int32_t token, uint32_t drawn) {
  const accrt_serve_request_t* parameters = &request->parameters;
  const accrt_serve_model_info_t* info = &engine->model->info;
  const bool is_end = is_one_of(token, info->eos, info->eos_count);
  if (is_end && parameters->constraint != NULL)
    return true;
  if (drawn < parameters->min_new_tokens)
    return false;
  if (is_end && (parameters->flags & ACCRT_SERVE_IGNORE_EOS) == 0)
    return true;
  return is_one_of(token, parameters->stop_tokens, parameters->stop_token_count);
}

/* Decodes the token and finds what of the text can be given; a stop string ends the sequence. */
static accrt_status_t find_text(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                                uint32_t drawn, news_t* news) {
  static const accsv_stops_t none = {0};
  const accsv_request_t* request = generation->request;
  accsv_text_t* text = &generation->text;
  if (engine->vocabulary.count == 0)
    return ACCRT_OK;
  const accsv_stops_t* stops =
      drawn >= request->parameters.min_new_tokens ? &request->stops : &none;
  if (news->reason != ACCRT_SERVE_FINISH_STOP || news->complete) {
    const bool special = (request->parameters.flags & ACCRT_SERVE_SPECIAL) != 0;
    uint32_t size_bytes;
    const unsigned char* bytes =
        accsv_vocabulary_bytes(&engine->vocabulary, *news->token, special, &size_bytes);
    ACCRT_TRY(accsv_text_push(text, &engine->allocator, bytes, size_bytes));
    uint32_t at;
    news->stop_string = accsv_text_find_stop(text, stops, &at);
    if (news->stop_string >= 0) {
      news->reason = ACCRT_SERVE_FINISH_STOP;
      news->text_size = at;
      if ((request->parameters.flags & ACCRT_SERVE_KEEP_STOP) != 0)
        news->text_size += stops->sizes_bytes[news->stop_string];
      return ACCRT_OK;
    }
  }
  if (news->reason != 0)
    ACCRT_TRY(accsv_text_end(text, &engine->allocator));
  news->text_size = news->reason != 0 ? text->tail_size : accsv_text_certain(text, stops);
  return ACCRT_OK;
}

/* A constraint learns the token. It never learns one that ends the sequence. */
static accrt_status_t advance(accsv_generation_t* generation, int32_t token, news_t* news) {
  if (generation->constraint_state == NULL || news->reason == ACCRT_SERVE_FINISH_STOP)
    return ACCRT_OK;
  uint32_t ended = 0;
  ACCRT_TRY(generation->request->parameters.constraint->functions.advance(
      generation->constraint_state, token, &ended));
  news->complete = ended != 0;
  if (news->complete)
    news->reason = ACCRT_SERVE_FINISH_STOP;
  return ACCRT_OK;
}

static void count_token(accrt_serve_engine_t* engine, accsv_generation_t* generation,
                        uint64_t now_ns) {
  accrt_serve_stats_t* figures = &engine->figures;
  ++figures->output_tokens;
  if (generation->last_token_ns == 0)
    accsv_histogram_add(&figures->first_token, now_ns - generation->request->arrival_ns);
  else
    accsv_histogram_add(&figures->next_token, now_ns - generation->last_token_ns);
  generation->last_token_ns = now_ns > 0 ? now_ns : 1;
}

void accsv_deliver(accrt_serve_engine_t* engine, accsv_generation_t* generation, int32_t token,
                   const accrt_serve_results_t* results, uint32_t sample, uint64_t now_ns) {
  accsv_sequence_t* sequence = &generation->sequence;
  accrt_status_t status = generation->constraint_status;
  if (!is_token(engine, token) ||
      !has_logprobs(results, accsv_request_logprobs(generation->request)))
    status = ACCRT_ERROR_KERNEL;
  if (status != ACCRT_OK) {
    accsv_end_request(engine, generation->request, ACCRT_SERVE_FINISH_FAILED, status, now_ns);
    return;
  }
  if ((generation->request->parameters.flags & ACCRT_SERVE_SCORE_ONLY) != 0) {
    end_without_text(engine, generation, ACCRT_SERVE_FINISH_LENGTH, ACCRT_OK, now_ns);
    return;
  }
  ACCRT_ASSERT(sequence->known < sequence->limit);
  sequence->tokens[sequence->known++] = sequence->last_token = token;
  accsv_sampler_note(&generation->sampler, token);
  if (sequence->guesses > 0) {
    sequence->no_guess = false;
    accsv_lookback_fetch(&sequence->lookback, sequence->tokens, sequence->known);
  }
  count_token(engine, generation, now_ns);
  news_t news = {.token = &token,
                 .results = results,
                 .sample = sample,
                 .stop_token = -1,
                 .stop_string = -1,
                 .now_ns = now_ns};
  const uint32_t drawn = sequence->known - sequence->prompt_count;
  if (ends_by_token(engine, generation->request, token, drawn)) {
    news.reason = ACCRT_SERVE_FINISH_STOP;
    news.stop_token = token;
  } else if (sequence->known == sequence->limit) {
    news.reason = ACCRT_SERVE_FINISH_LENGTH;
  }
  status = advance(generation, token, &news);
  if (status == ACCRT_OK)
    status = find_text(engine, generation, drawn, &news);
  if (status != ACCRT_OK) {
    fail_token(engine, generation, status, now_ns);
    return;
  }
  send(engine, generation, &news);
}
