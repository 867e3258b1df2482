/* serve/request.c - see serve/request.h. */
#include "serve/request.h"

#include <math.h>
#include <string.h>

#include "serve/constraint.h"

#define MAX_SEQUENCES 1024u
#define MAX_STOPS 1024u
#define MAX_BIASES 1048576u

/* ---- Checks ---- */

static accrt_status_t check_tokens(const char* what, const int32_t* tokens, uint32_t count,
                                   const accrt_serve_model_info_t* info) {
  if (tokens == NULL && count > 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "%s is NULL", what);
  for (uint32_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || (uint32_t)tokens[i] >= info->vocab_size)
      return ACCSV_FAIL(OUT_OF_RANGE, "%s[%" PRIu32 "] is %" PRId32 ", not in 0 to %" PRIu32, what,
                        i, tokens[i], info->vocab_size - 1);
  }
  return ACCRT_OK;
}

/* Also refuses what is not a number. */
static accrt_status_t check_number(const char* what, float value, float least, float most) {
  if (value >= least && value <= most)
    return ACCRT_OK;
  return ACCSV_FAIL(OUT_OF_RANGE, "%s is %g, not in %g to %g", what, (double)value, (double)least,
                    (double)most);
}

/* One token is drawn where only the prompt is wanted, and not given out. */
static accrt_status_t check_scores(accrt_serve_request_t* request) {
  if (request->num_speculative_tokens > ACCRT_SERVE_MAX_DRAFTS)
    return ACCSV_FAIL(OUT_OF_RANGE, "num_speculative_tokens is %" PRIu32 ", at most %u",
                      request->num_speculative_tokens, ACCRT_SERVE_MAX_DRAFTS);
  if (request->prompt_top_logprobs > ACCRT_SERVE_MAX_LOGPROBS)
    return ACCSV_FAIL(OUT_OF_RANGE, "prompt_top_logprobs is %" PRIu32 ", at most %u",
                      request->prompt_top_logprobs, ACCRT_SERVE_MAX_LOGPROBS);
  if ((request->flags & ACCRT_SERVE_SCORE_ONLY) == 0)
    return ACCRT_OK;
  if ((request->flags & ACCRT_SERVE_PROMPT_LOGPROBS) == 0 || request->max_new_tokens != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "ACCRT_SERVE_SCORE_ONLY needs ACCRT_SERVE_PROMPT_LOGPROBS "
                                        "and max_new_tokens 0");
  request->max_new_tokens = 1;
  return ACCRT_OK;
}

/* Most tokens of a sequence. */
static uint32_t longest_of(const accrt_serve_model_info_t* info) {
  const uint64_t held = (uint64_t)info->page_count * info->page_size;
  return held < info->max_length ? (uint32_t)held : info->max_length;
}

static accrt_status_t check_embed(accrt_serve_request_t* request,
                                  const accrt_serve_model_info_t* info) {
  const uint32_t scores = ACCRT_SERVE_LOGPROBS | ACCRT_SERVE_PROMPT_LOGPROBS;
  const uint32_t longest = longest_of(info);
  if (info->embedding_size == 0)
    return ACCSV_FAIL(UNSUPPORTED, "the model gives no embeddings");
  if (request->embed > ACCRT_SERVE_EMBED_MEAN)
    return ACCSV_FAIL(INVALID_ARGUMENT, "embed is %" PRIu32, request->embed);
  if (request->embed_dimensions > info->embedding_size)
    return ACCSV_FAIL(OUT_OF_RANGE, "embed_dimensions is %" PRIu32 ", and the model has %" PRIu32,
                      request->embed_dimensions, info->embedding_size);
  if (request->n > 1 || request->constraint != NULL || (request->flags & scores) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "an embedding has no n, constraint or log probabilities");
  if (request->prompt_count == 0 || request->prompt_count > longest)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "the prompt has %" PRIu32 " tokens; from 1 to %" PRIu32 " can be embedded",
                      request->prompt_count, longest);
  if (request->embed_dimensions == 0)
    request->embed_dimensions = info->embedding_size;
  if (request->embed == ACCRT_SERVE_EMBED_MEAN)
    request->flags |= ACCRT_SERVE_NO_CACHE; /* tokens that are not computed have no rows */
  request->min_new_tokens = 0;
  request->max_new_tokens = request->n = 1;
  return ACCRT_OK;
}

static accrt_status_t check_lengths(accrt_serve_request_t* request,
                                    const accrt_serve_model_info_t* info) {
  if (request->prompt_count == 0)
    return ACCSV_FAIL(OUT_OF_RANGE, "the prompt has no tokens");
  const uint32_t longest = longest_of(info);
  if (request->prompt_count >= longest)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "the prompt has %" PRIu32 " tokens; with a new one at most %" PRIu32 " fit",
                      request->prompt_count, longest);
  const uint32_t room = longest - request->prompt_count;
  if (request->max_new_tokens == 0)
    request->max_new_tokens = room;
  if (request->max_new_tokens > room)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "%" PRIu32 " tokens and %" PRIu32 " new ones; at most %" PRIu32 " fit",
                      request->prompt_count, request->max_new_tokens, longest);
  if (request->min_new_tokens > request->max_new_tokens)
    return ACCSV_FAIL(OUT_OF_RANGE, "min_new_tokens is %" PRIu32 ", max_new_tokens %" PRIu32,
                      request->min_new_tokens, request->max_new_tokens);
  if (request->n == 0)
    request->n = 1;
  if (request->n > MAX_SEQUENCES)
    return ACCSV_FAIL(OUT_OF_RANGE, "n is %" PRIu32 ", at most %u", request->n, MAX_SEQUENCES);
  return ACCRT_OK;
}

static accrt_status_t check_numbers(const accrt_serve_request_t* request) {
  ACCRT_TRY(check_number("temperature", request->temperature, 0.0f, 1e6f));
  ACCRT_TRY(check_number("top_p", request->top_p, 0.0f, 1.0f));
  ACCRT_TRY(check_number("min_p", request->min_p, 0.0f, 1.0f));
  ACCRT_TRY(check_number("repetition_penalty", request->repetition_penalty, 0.0f, 1e6f));
  ACCRT_TRY(check_number("presence_penalty", request->presence_penalty, -1e6f, 1e6f));
  ACCRT_TRY(check_number("frequency_penalty", request->frequency_penalty, -1e6f, 1e6f));
  if (request->top_k < 0)
    return ACCSV_FAIL(OUT_OF_RANGE, "top_k is %" PRId32, request->top_k);
  if (request->priority < ACCRT_SERVE_PRIORITY_FIRST ||
      request->priority > ACCRT_SERVE_PRIORITY_LAST)
    return ACCSV_FAIL(OUT_OF_RANGE, "priority is %" PRId32 ", not in %d to %d", request->priority,
                      ACCRT_SERVE_PRIORITY_FIRST, ACCRT_SERVE_PRIORITY_LAST);
  if (request->top_logprobs > ACCRT_SERVE_MAX_LOGPROBS)
    return ACCSV_FAIL(OUT_OF_RANGE, "top_logprobs is %" PRIu32 ", at most %u",
                      request->top_logprobs, ACCRT_SERVE_MAX_LOGPROBS);
  return ACCRT_OK;
}

static accrt_status_t check_biases(const accrt_serve_request_t* request,
                                   const accrt_serve_model_info_t* info) {
  if (request->bias_count > MAX_BIASES)
    return ACCSV_FAIL(OUT_OF_RANGE, "%" PRIu32 " biases", request->bias_count);
  if (request->bias_count > 0)
    ACCSV_NOT_NULL(request->biases);
  for (uint32_t i = 0; i < request->bias_count; ++i) {
    ACCRT_TRY(check_tokens("token of a bias", &request->biases[i].token, 1, info));
    if (isnan(request->biases[i].bias) || request->biases[i].bias == INFINITY)
      return ACCSV_FAIL(OUT_OF_RANGE, "biases[%" PRIu32 "] is not a number", i);
  }
  return ACCRT_OK;
}

static accrt_status_t check_stops(const accrt_serve_request_t* request,
                                  const accrt_serve_model_info_t* info) {
  if (request->stop_string_count > MAX_STOPS || request->stop_token_count > MAX_STOPS)
    return ACCSV_FAIL(OUT_OF_RANGE,
                      "%" PRIu32 " stop strings and %" PRIu32 " stop tokens; at most %u of each",
                      request->stop_string_count, request->stop_token_count, MAX_STOPS);
  ACCRT_TRY(check_tokens("stop_tokens", request->stop_tokens, request->stop_token_count, info));
  if (request->stop_string_count == 0)
    return ACCRT_OK;
  ACCSV_NOT_NULL(request->stop_strings);
  if (info->token_bytes == NULL)
    return ACCSV_FAIL(UNSUPPORTED, "stop strings: the model does not know its tokens' text");
  for (uint32_t i = 0; i < request->stop_string_count; ++i) {
    ACCSV_NOT_NULL(request->stop_strings[i]);
    const size_t size = strlen(request->stop_strings[i]);
    if (size == 0 || size > ACCRT_SERVE_MAX_STOP_BYTES)
      return ACCSV_FAIL(OUT_OF_RANGE, "stop_strings[%" PRIu32 "] has %zu bytes, not 1 to %u", i,
                        size, ACCRT_SERVE_MAX_STOP_BYTES);
  }
  return ACCRT_OK;
}

accrt_status_t accsv_check_drafts(uint32_t drafts, const accrt_serve_model_info_t* info) {
  if (drafts == 0 || (info->flags & ACCRT_SERVE_MODEL_STATES_OF_PAGES) == 0)
    return ACCRT_OK;
  return ACCSV_FAIL(
      UNSUPPORTED,
      "num_speculative_tokens is %" PRIu32
      ", and this model's layers have states that cannot be taken back: 0 is possible",
      drafts);
}

accrt_status_t accsv_request_check(accrt_serve_request_t* request,
                                   const accrt_serve_model_info_t* info) {
  const uint32_t known = ACCRT_SERVE_IGNORE_EOS | ACCRT_SERVE_SEED | ACCRT_SERVE_LOGPROBS |
                         ACCRT_SERVE_NO_CACHE | ACCRT_SERVE_KEEP_STOP | ACCRT_SERVE_SPECIAL |
                         ACCRT_SERVE_PROMPT_LOGPROBS | ACCRT_SERVE_SCORE_ONLY |
                         ACCRT_SERVE_NO_SPECULATION | ACCRT_SERVE_EMBED_RAW;
  if ((request->flags & ~known) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", request->flags);
  ACCRT_TRY(check_scores(request));
  ACCRT_TRY(accsv_check_drafts(request->num_speculative_tokens, info));
  ACCRT_TRY(request->embed != 0 ? check_embed(request, info) : check_lengths(request, info));
  ACCRT_TRY(check_tokens("prompt", request->prompt, request->prompt_count, info));
  ACCRT_TRY(check_numbers(request));
  ACCRT_TRY(check_biases(request, info));
  return check_stops(request, info);
}

/* ---- Copies ---- */

/* Places one array after the other, aligned to 8; with `memory` NULL it only counts. */
typedef struct packer {
  char* memory;
  size_t used;
} packer_t;

static void* pack(packer_t* packer, const void* bytes, size_t size_bytes) {
  void* place = packer->memory != NULL ? packer->memory + packer->used : NULL;
  if (place != NULL && size_bytes > 0)
    memcpy(place, bytes, size_bytes);
  packer->used += (size_bytes + 7) & ~(size_t)7;
  return place;
}

static void pack_stops(packer_t* packer, accsv_request_t* request,
                       const accrt_serve_request_t* given) {
  const uint32_t count = given->stop_string_count;
  const char** strings = pack(packer, given->stop_strings, count * sizeof(char*));
  uint32_t* sizes = pack(packer, given->stop_strings, count * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) {
    const size_t size = strlen(given->stop_strings[i]);
    const char* copy = pack(packer, given->stop_strings[i], size + 1);
    if (copy != NULL) {
      strings[i] = copy;
      sizes[i] = (uint32_t)size;
    }
  }
  request->stops = (accsv_stops_t){count, strings, sizes};
}

static size_t pack_all(packer_t* packer, accsv_request_t* request,
                       const accrt_serve_request_t* given) {
  accrt_serve_request_t* own = &request->parameters;
  own->prompt = NULL; /* the generations have it */
  own->cache_salt = NULL;
  own->adapter = NULL; /* as above */
  own->next = NULL;
  own->constraint = NULL; /* until it is retained */
  own->stop_tokens =
      pack(packer, given->stop_tokens, given->stop_token_count * sizeof *given->stop_tokens);
  own->biases = pack(packer, given->biases, given->bias_count * sizeof *given->biases);
  pack_stops(packer, request, given);
  own->stop_strings = request->stops.strings;
  return packer->used;
}

static accrt_status_t copy_parameters(const accrt_allocator_t* allocator, accsv_request_t* request,
                                      const accrt_serve_request_t* given) {
  request->parameters = *given;
  packer_t packer = {NULL, 0};
  const size_t size_bytes = pack_all(&packer, request, given);
  ACCRT_TRY(ACCSV_NEW(allocator, size_bytes, &request->memory));
  request->memory_bytes = size_bytes;
  packer = (packer_t){request->memory, 0};
  (void)pack_all(&packer, request, given);
  return ACCRT_OK;
}

/* ---- Life ---- */

static accrt_status_t start_constraint(accsv_generation_t* generation) {
  const accrt_serve_constraint_t* constraint = generation->request->parameters.constraint;
  if (constraint == NULL)
    return ACCRT_OK;
  return constraint->functions.start(constraint->functions.self, &generation->constraint_state);
}

bool accsv_generation_is_plain(const accsv_generation_t* generation) {
  const accsv_request_t* request = generation->request;
  const bool scores = request->prompt_node != NULL && generation->index == 0;
  return accsv_sampler_is_greedy(&generation->sampler) &&
         (request->parameters.flags & ACCRT_SERVE_LOGPROBS) == 0 &&
         request->parameters.constraint == NULL && !scores;
}

/* What depends on the tokens before it, as penalties and grammars do, has no drafts. A sequence
 * with drafts needs its last token: it is not overlapped. */
static accrt_status_t speculate(const accrt_allocator_t* allocator, accsv_generation_t* generation,
                                const accrt_serve_request_t* given, const accsv_lookup_t* lookup) {
  accsv_sequence_t* sequence = &generation->sequence;
  if (sequence->history || given->constraint != NULL || given->embed != 0 ||
      (given->flags & ACCRT_SERVE_NO_SPECULATION) != 0 || given->num_speculative_tokens == 0)
    return ACCRT_OK;
  ACCRT_TRY(accsv_lookback_init(&sequence->lookback, allocator, lookup, sequence->limit));
  accsv_lookback_note(&sequence->lookback, sequence->tokens, sequence->known);
  sequence->guesses = (uint8_t)given->num_speculative_tokens;
  sequence->history = true;
  return ACCRT_OK;
}

/* The first generation scores the prompt, for all. What comes of it has its memory from the
 * beginning, so that no step can fail for it. */
static accrt_status_t make_prompt_node(const accrt_allocator_t* allocator, accsv_request_t* request,
                                       accsv_sequence_t* sequence) {
  if ((request->parameters.flags & ACCRT_SERVE_PROMPT_LOGPROBS) == 0)
    return ACCRT_OK;
  const uint32_t count = sequence->prompt_count;
  const uint64_t entries = (uint64_t)count * accsv_request_prompt_logprobs(request);
  const uint64_t needed = entries * sizeof(accrt_serve_logprob_t) + (uint64_t)count * 4;
  if (needed > INT32_MAX)
    return ACCSV_FAIL(OUT_OF_MEMORY, "%" PRIu64 " bytes for the prompt's log probabilities",
                      needed);
  ACCRT_TRY(accsv_node_new(allocator, (uint32_t)needed, &request->prompt_node));
  sequence->plain = false;
  sequence->to_score = count - 1;
  sequence->scores = sequence->to_score > 0;
  return ACCRT_OK;
}

static accrt_status_t make_generation(const accrt_allocator_t* allocator, accsv_request_t* request,
                                      uint32_t index, const accrt_serve_request_t* given,
                                      const accrt_serve_model_info_t* info,
                                      const accsv_lookup_t* lookup, uint64_t seed) {
  accsv_generation_t* generation = &request->generations[index];
  accsv_sequence_t* sequence = &generation->sequence;
  generation->request = request;
  generation->index = index;
  sequence->row = -1;
  sequence->chain = ACCSV_CHAIN_EMPTY;
  sequence->priority = (int8_t)given->priority;
  sequence->prompt_count = sequence->known = given->prompt_count;
  sequence->limit = given->prompt_count + given->max_new_tokens;
  sequence->block_capacity = accsv_pages(sequence->limit, info->page_size);
  ACCRT_TRY(ACCSV_NEW_UNSET(allocator, sequence->limit, &sequence->tokens));
  memcpy(sequence->tokens, given->prompt, given->prompt_count * sizeof *given->prompt);
  sequence->last_token = given->prompt[given->prompt_count - 1];
  ACCRT_TRY(ACCSV_NEW_UNSET(allocator, sequence->block_capacity, &sequence->blocks));
  /* The first sequence has the seed itself, so that n changes nothing for it. */
  const uint64_t own_seed = index == 0 ? seed : accsv_mix(seed + index);
  ACCRT_TRY(
      accsv_sampler_init(&generation->sampler, allocator, given, info, sequence->limit, own_seed));
  sequence->history = generation->sampler.history;
  ACCRT_TRY(speculate(allocator, generation, given, lookup));
  sequence->plain = accsv_generation_is_plain(generation);
  if (index == 0)
    ACCRT_TRY(make_prompt_node(allocator, request, sequence));
  ACCRT_TRY(start_constraint(generation));
  uint32_t more = accsv_request_logprobs(request) * (uint32_t)sizeof(accrt_serve_logprob_t);
  sequence->embeds = given->embed != 0;
  sequence->embeds_all = given->embed == ACCRT_SERVE_EMBED_MEAN;
  if (given->embed != 0) {
    ACCRT_TRY(ACCSV_NEW(allocator, given->embed_dimensions, &generation->embedding));
    more = given->embed_dimensions * (uint32_t)sizeof(float);
  }
  return accsv_node_new(allocator, ACCSV_NODE_USUAL + more, &generation->last_node);
}

static accrt_status_t make_salt(const accrt_allocator_t* allocator, accsv_request_t* request,
                                const accrt_serve_request_t* given,
                                const accsv_adapter_t* adapter) {
  /* Another function of the model writes their pages. */
  const uint64_t embeds = given->embed != 0 ? UINT64_C(1) << 63 : 0;
  if ((given->cache_salt == NULL && adapter == NULL && embeds == 0) ||
      (given->flags & ACCRT_SERVE_NO_CACHE) != 0)
    return ACCRT_OK;
  const uint64_t number = (adapter != NULL ? adapter->number : 0) | embeds;
  request->salt = accsv_salt_new(allocator, number, given->cache_salt);
  return request->salt != NULL ? ACCRT_OK
                               : ACCSV_FAIL(OUT_OF_MEMORY, "no memory for the cache's salt");
}

static void give_adapter(accsv_request_t* request, accsv_adapter_t* adapter) {
  request->adapter = adapter;
  for (uint32_t i = 0; adapter != NULL && i < request->count; ++i) {
    request->generations[i].sequence.adapted = true;
    request->generations[i].sequence.adapter = (int32_t)adapter->place;
  }
}

static size_t request_bytes(uint32_t generations) {
  return sizeof(accsv_request_t) + generations * sizeof(accsv_generation_t);
}

accrt_status_t accsv_request_new(const accrt_allocator_t* allocator,
                                 const accrt_serve_request_t* given, accsv_adapter_t* adapter,
                                 const accrt_serve_model_info_t* info, const accsv_lookup_t* lookup,
                                 uint64_t seed, accsv_request_t** out_request) {
  *out_request = NULL;
  accsv_request_t* request;
  ACCRT_TRY(accsv_new_at(allocator, 1, request_bytes(given->n), &request));
  request->count = request->going_on = given->n;
  accrt_status_t status = copy_parameters(allocator, request, given);
  request->parameters.constraint = accrt_serve_constraint_retain(given->constraint);
  for (uint32_t i = 0; status == ACCRT_OK && i < given->n; ++i)
    status = make_generation(allocator, request, i, given, info, lookup, seed);
  if (status == ACCRT_OK)
    status = make_salt(allocator, request, given, adapter);
  if (status != ACCRT_OK) {
    accsv_request_free(allocator, request);
    return status;
  }
  give_adapter(request, adapter);
  *out_request = request;
  return ACCRT_OK;
}

void accsv_request_free(const accrt_allocator_t* allocator, accsv_request_t* request) {
  if (request == NULL)
    return;
  for (uint32_t i = 0; i < request->count; ++i) {
    accsv_generation_t* generation = &request->generations[i];
    ACCSV_FREE(allocator, generation->sequence.tokens, generation->sequence.limit);
    ACCSV_FREE(allocator, generation->sequence.blocks, generation->sequence.block_capacity);
    accsv_lookback_deinit(&generation->sequence.lookback, allocator);
    accsv_sampler_deinit(&generation->sampler, allocator);
    accsv_text_deinit(&generation->text, allocator);
    ACCSV_FREE(allocator, generation->embedding, request->parameters.embed_dimensions);
    accsv_node_free(allocator, generation->last_node);
    if (generation->constraint_state != NULL)
      request->parameters.constraint->functions.stop(generation->constraint_state);
  }
  accrt_serve_constraint_release(request->parameters.constraint);
  accsv_adapter_drop(request->adapter);
  accsv_salt_free(allocator, request->salt);
  accsv_node_free(allocator, request->prompt_node);
  ACCSV_FREE(allocator, request->memory, request->memory_bytes);
  accsv_free(allocator, request, 1, request_bytes(request->count));
}
