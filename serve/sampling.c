/* serve/sampling.c - see serve/sampling.h. */
#include "serve/sampling.h"

#include <math.h>

static uint32_t home_of(const accsv_sampler_t* sampler, int32_t token) {
  return (uint32_t)accsv_mix((uint32_t)token) & (sampler->index_count - 1);
}

static accsv_indexed_t* indexed(const accsv_sampler_t* sampler, int32_t token) {
  const uint32_t mask = sampler->index_count - 1;
  uint32_t at = home_of(sampler, token);
  while (sampler->index[at].place != 0 && sampler->index[at].token != token)
    at = (at + 1) & mask;
  return &sampler->index[at];
}

/* The token's place in the arrays; a new one if there is none. */
static uint32_t entry_of(accsv_sampler_t* sampler, int32_t token) {
  accsv_indexed_t* found = indexed(sampler, token);
  if (found->place == 0) {
    ACCRT_ASSERT(sampler->count < sampler->capacity);
    sampler->tokens[sampler->count] = token;
    sampler->counted[sampler->count] = (accsv_counted_t){0};
    *found = (accsv_indexed_t){token, ++sampler->count};
  }
  return found->place - 1;
}

static void set_edit(accsv_sampler_t* sampler, uint32_t at) {
  const accsv_counted_t* counted = &sampler->counted[at];
  float add = counted->bias - sampler->frequency * (float)counted->drawn;
  if (counted->drawn > 0)
    add -= sampler->presence;
  sampler->multiply[at] = counted->seen ? sampler->repetition : 1.0f;
  sampler->add[at] = add;
  if (sampler->early != NULL)
    sampler->early[at] = counted->ends ? -INFINITY : add;
}

static void put(accsv_sampler_t* sampler, uint32_t at, int32_t token, accsv_counted_t counted) {
  sampler->tokens[at] = token;
  sampler->counted[at] = counted;
  indexed(sampler, token)->place = at + 1;
  set_edit(sampler, at);
}

/* What is known of a token has changed: its edit is made anew. One that counts from now on when the
 * sequence may end, too, changes places with the last of those that do not. */
static void make_edit(accsv_sampler_t* sampler, uint32_t at) {
  set_edit(sampler, at);
  if (at >= sampler->late || (sampler->add[at] == 0.0f && sampler->multiply[at] == 1.0f))
    return;
  const uint32_t last = --sampler->late;
  const int32_t token = sampler->tokens[at];
  const accsv_counted_t counted = sampler->counted[at];
  put(sampler, at, sampler->tokens[last], sampler->counted[last]);
  put(sampler, last, token, counted);
}

static bool repeats(const accsv_sampler_t* sampler) {
  return sampler->repetition != 1.0f;
}

/* Every token that may get an entry has room for it from the start: a step allocates nothing. */
static uint64_t most_entries(const accsv_sampler_t* sampler, const accrt_serve_request_t* request,
                             const accrt_serve_model_info_t* info, uint32_t limit) {
  uint64_t most = request->bias_count;
  if (sampler->min_new_tokens > 0)
    most += info->eos_count + (uint64_t)request->stop_token_count;
  if (repeats(sampler))
    most += request->prompt_count;
  if (sampler->history)
    most += limit - request->prompt_count;
  return most < info->vocab_size ? most : info->vocab_size;
}

static uint32_t array_count(const accsv_sampler_t* sampler) {
  return sampler->min_new_tokens > 0 ? 4 : 3;
}

static accrt_status_t make_table(accsv_sampler_t* sampler, const accrt_allocator_t* allocator,
                                 uint64_t most) {
  if (most == 0)
    return ACCRT_OK;
  const uint32_t capacity = (uint32_t)most;
  uint64_t count = 8;
  while (count < 2 * most)
    count *= 2;
  sampler->capacity = capacity;
  accrt_status_t status = accsv_new_unset_at(
      allocator, capacity, array_count(sampler) * sizeof *sampler->tokens, &sampler->tokens);
  if (status == ACCRT_OK)
    status = ACCSV_NEW_UNSET(allocator, capacity, &sampler->counted);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, count, &sampler->index);
  if (status != ACCRT_OK) {
    accsv_sampler_deinit(sampler, allocator);
    return status;
  }
  sampler->index_count = (uint32_t)count;
  float* numbers = (float*)(void*)(sampler->tokens + capacity);
  sampler->multiply = numbers;
  sampler->add = numbers + capacity;
  if (sampler->min_new_tokens > 0)
    sampler->early = sampler->add + capacity;
  return ACCRT_OK;
}

/* Tokens that may end the sequence come first: those that nothing else edits are left out when it
 * may end. */
static void fill_table(accsv_sampler_t* sampler, const accrt_serve_request_t* request,
                       const accrt_serve_model_info_t* info) {
  if (sampler->min_new_tokens > 0) {
    for (uint32_t i = 0; i < info->eos_count; ++i)
      sampler->counted[entry_of(sampler, info->eos[i])].ends = true;
    for (uint32_t i = 0; i < request->stop_token_count; ++i)
      sampler->counted[entry_of(sampler, request->stop_tokens[i])].ends = true;
  }
  sampler->late = sampler->count;
  for (uint32_t i = 0; i < request->bias_count; ++i) {
    const accrt_serve_bias_t* bias = &request->biases[i];
    if (bias->bias != 0.0f)
      sampler->counted[entry_of(sampler, bias->token)].bias = bias->bias;
  }
  for (uint32_t i = 0; repeats(sampler) && i < request->prompt_count; ++i)
    sampler->counted[entry_of(sampler, request->prompt[i])].seen = true;
  for (uint32_t i = sampler->count; i > 0; --i) /* from the end: what changes places has its edit */
    make_edit(sampler, i - 1);
}

accrt_status_t accsv_sampler_init(accsv_sampler_t* sampler, const accrt_allocator_t* allocator,
                                  const accrt_serve_request_t* request,
                                  const accrt_serve_model_info_t* info, uint32_t limit,
                                  uint64_t seed) {
  *sampler = (accsv_sampler_t){
      .temperature = request->temperature,
      .top_p = request->top_p == 0.0f ? 1.0f : request->top_p,
      .min_p = request->min_p,
      .top_k = request->top_k,
      .seed = seed,
      .repetition = request->repetition_penalty == 0.0f ? 1.0f : request->repetition_penalty,
      .presence = request->presence_penalty,
      .frequency = request->frequency_penalty,
      /* Of constrained sequences the mask says where they may end. */
      .min_new_tokens = request->constraint == NULL ? request->min_new_tokens : 0,
  };
  sampler->history = repeats(sampler) || sampler->presence != 0.0f || sampler->frequency != 0.0f;
  ACCRT_TRY(make_table(sampler, allocator, most_entries(sampler, request, info, limit)));
  if (sampler->tokens != NULL)
    fill_table(sampler, request, info);
  return ACCRT_OK;
}

void accsv_sampler_deinit(accsv_sampler_t* sampler, const accrt_allocator_t* allocator) {
  accsv_free(allocator, sampler->tokens, sampler->capacity,
             array_count(sampler) * sizeof *sampler->tokens);
  ACCSV_FREE(allocator, sampler->counted, sampler->capacity);
  ACCSV_FREE(allocator, sampler->index, sampler->index_count);
  sampler->tokens = NULL;
  sampler->multiply = sampler->add = sampler->early = NULL;
  sampler->counted = NULL;
  sampler->index = NULL;
  sampler->count = sampler->capacity = sampler->index_count = sampler->late = 0;
}

void accsv_sampler_fetch(const accsv_sampler_t* sampler, int32_t token) {
  __builtin_prefetch(&sampler->index[home_of(sampler, token)], 1);
}

void accsv_sampler_fetch_edit(const accsv_sampler_t* sampler, int32_t token) {
  const uint32_t place = indexed(sampler, token)->place;
  const uint32_t at = place != 0 ? place - 1 : sampler->count;
  __builtin_prefetch(&sampler->tokens[at], 1);
  __builtin_prefetch(&sampler->multiply[at], 1);
  __builtin_prefetch(&sampler->add[at], 1);
  __builtin_prefetch(&sampler->counted[at], 1);
}

void accsv_sampler_note(accsv_sampler_t* sampler, int32_t token) {
  if (!sampler->history)
    return;
  const uint32_t at = entry_of(sampler, token);
  accsv_counted_t* counted = &sampler->counted[at];
  counted->seen = true;
  ++counted->drawn;
  make_edit(sampler, at);
}

bool accsv_sampler_is_greedy(const accsv_sampler_t* sampler) {
  return sampler->temperature == 0.0f && sampler->tokens == NULL;
}
