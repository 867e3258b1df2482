/* serve/sampling.c - see serve/sampling.h. */
#include "serve/sampling.h"

#include <math.h>

static uint32_t* place_of(const accsv_sampler_t* sampler, int32_t token) {
  const uint32_t mask = sampler->index_count - 1;
  uint32_t at = (uint32_t)accsv_mix((uint32_t)token) & mask;
  while (sampler->index[at] != 0 && sampler->tokens[sampler->index[at] - 1].token != token)
    at = (at + 1) & mask;
  return &sampler->index[at];
}

/* The token's entry; a new one if there is none. */
static accsv_counted_t* entry_of(accsv_sampler_t* sampler, int32_t token) {
  uint32_t* place = place_of(sampler, token);
  if (*place == 0) {
    ACCSV_ASSERT(sampler->count < sampler->capacity);
    sampler->tokens[sampler->count] = (accsv_counted_t){.token = token};
    *place = ++sampler->count;
  }
  return &sampler->tokens[*place - 1];
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

static accrt_status_t make_table(accsv_sampler_t* sampler, const accrt_allocator_t* allocator,
                                 uint64_t most) {
  if (most == 0)
    return ACCRT_OK;
  sampler->capacity = (uint32_t)most;
  uint32_t count = 8;
  while (count < 2 * most)
    count *= 2;
  ACCSV_TRY(ACCSV_NEW_UNSET(allocator, sampler->capacity, &sampler->tokens));
  const accrt_status_t status = ACCSV_NEW(allocator, count, &sampler->index);
  if (status == ACCRT_OK)
    sampler->index_count = count;
  else
    accsv_sampler_deinit(sampler, allocator);
  return status;
}

static void fill_table(accsv_sampler_t* sampler, const accrt_serve_request_t* request,
                       const accrt_serve_model_info_t* info) {
  for (uint32_t i = 0; i < request->bias_count; ++i)
    entry_of(sampler, request->biases[i].token)->bias = request->biases[i].bias;
  if (sampler->min_new_tokens > 0) {
    for (uint32_t i = 0; i < info->eos_count; ++i)
      entry_of(sampler, info->eos[i])->ends = true;
    for (uint32_t i = 0; i < request->stop_token_count; ++i)
      entry_of(sampler, request->stop_tokens[i])->ends = true;
  }
  for (uint32_t i = 0; repeats(sampler) && i < request->prompt_count; ++i)
    entry_of(sampler, request->prompt[i])->seen = true;
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
  ACCSV_TRY(make_table(sampler, allocator, most_entries(sampler, request, info, limit)));
  if (sampler->tokens != NULL)
    fill_table(sampler, request, info);
  return ACCRT_OK;
}

void accsv_sampler_deinit(accsv_sampler_t* sampler, const accrt_allocator_t* allocator) {
  ACCSV_FREE(allocator, sampler->tokens, sampler->capacity);
  ACCSV_FREE(allocator, sampler->index, sampler->index_count);
  sampler->tokens = NULL;
  sampler->index = NULL;
  sampler->count = sampler->capacity = sampler->index_count = 0;
}

void accsv_sampler_note(accsv_sampler_t* sampler, int32_t token) {
  if (!sampler->history)
    return;
  accsv_counted_t* entry = entry_of(sampler, token);
  entry->seen = true;
  ++entry->drawn;
}

bool accsv_sampler_is_greedy(const accsv_sampler_t* sampler) {
  return sampler->temperature == 0.0f && sampler->tokens == NULL;
}

void accsv_sampler_edits(const accsv_sampler_t* sampler, uint32_t drawn, accsv_edits_t* edits) {
  for (uint32_t i = 0; i < sampler->count; ++i) {
    const accsv_counted_t* entry = &sampler->tokens[i];
    const float multiply = entry->seen ? sampler->repetition : 1.0f;
    float add = entry->bias - sampler->frequency * (float)entry->drawn;
    if (entry->drawn > 0)
      add -= sampler->presence;
    if (entry->ends && drawn < sampler->min_new_tokens)
      add = -INFINITY;
    if (multiply == 1.0f && add == 0.0f)
      continue;
    ACCSV_ASSERT(edits->count < edits->capacity);
    edits->tokens[edits->count] = entry->token;
    edits->multiply[edits->count] = multiply;
    edits->add[edits->count++] = add;
  }
}
