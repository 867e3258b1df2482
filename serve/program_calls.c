/* serve/program_calls.c - arguments, memory and bound calls of a step program. It may not run a
 * step. */
#include "serve/program_calls.h"

#include <string.h>

static uint64_t aligned(uint64_t bytes) {
  return (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
}

/* ---- Arguments ---- */

static void add(accsv_function_t* function, const char* name, accrt_dtype_t dtype, uint32_t size,
                uint32_t plus, uint32_t columns, uint32_t area) {
  function->arguments[function->count++] =
      (accsv_argument_t){name, dtype, size, plus, columns, area};
}
#define I32 ACCRT_DTYPE_I32
#define U32 ACCRT_DTYPE_U32
#define F32 ACCRT_DTYPE_F32

/* The inputs of `step`, which `embed` has too. */
static void list_inputs(accsv_function_t* step, uint32_t area) {
  add(step, "token_ids", I32, TOKENS, 0, 0, area);
  add(step, "positions", I32, TOKENS, 0, 0, area);
  add(step, "slots", I32, TOKENS, 0, 0, area);
  add(step, "token_rows", I32, TOKENS, 0, 0, area);
  add(step, "row_starts", I32, ROWS, 1, 0, area);
  add(step, "row_ids", I32, ROWS, 0, 0, area);
  add(step, "kv_lengths", I32, ROWS, 0, 0, area);
  add(step, "change_slots", I32, CHANGES, 0, 0, area);
  add(step, "change_pages", I32, CHANGES, 0, 0, area);
  add(step, "sample_tokens", I32, SAMPLES, 0, 0, area);
}

static void list_steps(accsv_program_model_t* model) {
  const accsv_description_t* description = &model->description;
  accsv_function_t *step = &model->step, *embed = &model->embed, *plain = &model->plain;
  step->name = "step";
  list_inputs(step, INPUTS);
  add(step, "logits", F32, SAMPLES, 0, description->vocab_size, LOGITS);
  *plain = *step;
  plain->name = "step_plain";
  embed->name = "embed";
  list_inputs(embed, EMBED_INPUTS);
  add(embed, "hidden", F32, SAMPLES, 0, description->hidden_size, HIDDEN);
  if (description->adapters == 0)
    return;
  add(step, "token_adapters", I32, TOKENS, 0, 0, INPUTS);
  add(embed, "token_adapters", I32, TOKENS, 0, 0, EMBED_INPUTS);
}

/* Results that are asked for less often lie further behind: what is copied is a beginning. */
static void list_sample(accsv_function_t* sample, uint32_t vocab) {
  sample->name = "sample";
  add(sample, "logits", F32, SAMPLES, 0, vocab, LOGITS);
  add(sample, "sample_rows", I32, SAMPLES, 0, 0, INPUTS);
  add(sample, "temperature", F32, SAMPLES, 0, 0, INPUTS);
  add(sample, "top_k", I32, SAMPLES, 0, 0, INPUTS);
  add(sample, "top_p", F32, SAMPLES, 0, 0, INPUTS);
  add(sample, "min_p", F32, SAMPLES, 0, 0, INPUTS);
  add(sample, "seed", U32, SAMPLES, 0, 2, INPUTS);
  add(sample, "position", I32, SAMPLES, 0, 0, INPUTS);
  add(sample, "edit_starts", I32, SAMPLES, 1, 0, INPUTS);
  add(sample, "mask_rows", I32, SAMPLES, 0, 0, INPUTS);
  add(sample, "edit_tokens", I32, EDITS, 0, 0, INPUTS);
  add(sample, "edit_multiply", F32, EDITS, 0, 0, INPUTS);
  add(sample, "edit_add", F32, EDITS, 0, 0, INPUTS);
  add(sample, "mask_bits", U32, SAMPLES, 0, (vocab + 31) / 32, MASKS);
  add(sample, "token", I32, SAMPLES, 0, 0, RESULTS);
  add(sample, "logprob", F32, SAMPLES, 0, 0, RESULTS);
  add(sample, "rank", I32, SAMPLES, 0, 0, RESULTS);
  add(sample, "top_ids", I32, SAMPLES, 0, TOP, RESULTS);
  add(sample, "top_logprobs", F32, SAMPLES, 0, TOP, RESULTS);
}

void accsv_program_list_arguments(accsv_program_model_t* model) {
  const uint32_t vocab = model->description.vocab_size;
  list_steps(model);
  list_sample(&model->sample, vocab);
  model->update.name = "update_pages";
  add(&model->update, "change_slots", I32, CHANGES, 0, 0, UPDATES);
  add(&model->update, "change_pages", I32, CHANGES, 0, 0, UPDATES);
  model->copy.name = "copy_rows";
  add(&model->copy, "copy_from", I32, CHANGES, 0, 0, COPIES);
  add(&model->copy, "copy_to", I32, CHANGES, 0, 0, COPIES);
  model->greedy.name = "sample_greedy";
  add(&model->greedy, "logits", F32, SAMPLES, 0, vocab, LOGITS);
  add(&model->greedy, "sample_rows", I32, SAMPLES, 0, 0, INPUTS);
  add(&model->greedy, "token", I32, SAMPLES, 0, 0, RESULTS);
}

static uint64_t argument_bytes(const accsv_argument_t* argument, const uint32_t* sizes) {
  const uint64_t rows = (uint64_t)sizes[argument->size] + argument->plus;
  return rows * (argument->columns != 0 ? argument->columns : 1) * ELEMENT_BYTES;
}

/* Where arguments lie for these sizes. */
void accsv_program_lay(const accsv_program_model_t* model, const accsv_function_t* function,
                       const uint32_t* sizes, accsv_bound_t* out) {
  uint64_t used[AREA_COUNT] = {0};
  for (uint32_t i = 0; i < function->count; ++i) {
    const accsv_argument_t* argument = &function->arguments[i];
    out->offsets[i] = used[argument->area];
    used[argument->area] += aligned(argument_bytes(argument, sizes));
  }
  out->results_end = used[RESULTS];
  out->begin = 0;
  out->end = used[UPDATES] + used[COPIES] + used[EMBED_INPUTS]; /* a function has one of them */
  if (used[INPUTS] == 0)
    return;
  const bool forward = function == &model->step || function == &model->plain;
  out->begin = forward ? model->middle - used[INPUTS] : model->middle;
  out->end = out->begin + used[INPUTS];
  for (uint32_t i = 0; i < function->count; ++i) {
    if (function->arguments[i].area == INPUTS)
      out->offsets[i] += out->begin;
  }
}

/* ---- Memory ---- */

static accrt_status_t make_buffer(accrt_device_t* device, uint32_t kind, uint64_t size_bytes,
                                  accrt_buffer_t** out_buffer) {
  accrt_pool_t* pool;
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.label = "serve";
  ACCRT_TRY(accrt_device_pool(device, kind, &pool));
  return accrt_buffer_create(pool, size_bytes, &options, out_buffer);
}

static accrt_status_t point_at(accrt_buffer_t* buffer, unsigned char** out_pointer) {
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  ACCRT_TRY(accrt_buffer_info(buffer, &info));
  if (info.host_pointer == NULL && info.size_bytes > 0)
    return ACCSV_FAIL(UNSUPPORTED, "the host cannot reach the memory that steps are laid in");
  *out_pointer = info.host_pointer;
  return ACCRT_OK;
}

void accsv_program_release_area(accsv_area_t* area) {
  accrt_buffer_release(area->device);
  for (uint32_t i = 0; i < SLOTS; ++i)
    accrt_buffer_release(area->host[i]);
  *area = (accsv_area_t){0};
}

/* `has_images`: the host writes or reads it. */
accrt_status_t accsv_program_make_area(const accsv_program_model_t* model, uint64_t size_bytes,
                                       bool has_images, accsv_area_t* out) {
  accsv_area_t area = {.size_bytes = size_bytes};
  accrt_status_t status = make_buffer(model->device, ACCRT_MEMORY_DEVICE, size_bytes, &area.device);
  for (uint32_t i = 0; i < model->slots && has_images && status == ACCRT_OK; ++i) {
    if (!model->is_host)
      status = make_buffer(model->device, ACCRT_MEMORY_PINNED, size_bytes, &area.host[i]);
    if (status == ACCRT_OK)
      status = point_at(model->is_host ? area.device : area.host[i], &area.at[i]);
  }
  if (status != ACCRT_OK) {
    accsv_program_release_area(&area);
    return status;
  }
  *out = area;
  return ACCRT_OK;
}

/* The largest sizes that steps of this model have. */
void accsv_program_largest_sizes(const accsv_program_model_t* model, uint32_t* sizes) {
  const accsv_description_t* description = &model->description;
  sizes[TOKENS] = accsv_round_up(description, TOKENS, model->memory.max_tokens);
  sizes[ROWS] = accsv_round_up(description, ROWS, model->memory.max_rows);
  sizes[SAMPLES] = model->memory.max_samples;
  sizes[CHANGES] = accsv_largest(description, CHANGES);
  sizes[EDITS] = accsv_largest(description, EDITS);
}

accrt_status_t accsv_program_make_areas(accsv_program_model_t* model) {
  uint32_t sizes[SIZE_COUNT];
  accsv_bound_t step, sample;
  accsv_program_largest_sizes(model, sizes);
  accsv_program_lay(model, &model->step, sizes, &step);
  model->middle = step.end - step.begin;
  accsv_program_lay(model, &model->sample, sizes, &sample);
  model->gathered = sample.results_end;
  const uint64_t logits = argument_bytes(&model->sample.arguments[SAMPLED_LOGITS], sizes);
  const uint64_t masks = argument_bytes(&model->sample.arguments[MASK_BITS], sizes);
  ACCRT_TRY(accsv_program_make_area(model, sample.end, true, &model->areas[INPUTS]));
  ACCRT_TRY(accsv_program_make_area(model, 2 * sample.results_end, true, &model->areas[RESULTS]));
  ACCRT_TRY(accsv_program_make_area(model, masks, true, &model->areas[MASKS]));
  if (model->description.hidden_size > 0) {
    accsv_program_lay(model, &model->embed, sizes, &step);
    const uint64_t hidden = argument_bytes(&model->embed.arguments[STEP_HIDDEN], sizes);
    ACCRT_TRY(accsv_program_make_area(model, step.end, true, &model->areas[EMBED_INPUTS]));
    ACCRT_TRY(accsv_program_make_area(model, hidden, true, &model->areas[HIDDEN]));
  }
  return accsv_program_make_area(model, logits, false, &model->areas[LOGITS]);
}

/* Copies a range between the device and the image of a step. */
accrt_status_t accsv_program_copy(accsv_program_model_t* model, uint32_t index, uint32_t slot,
                                  uint64_t begin, uint64_t end, bool to_device) {
  const accsv_area_t* area = &model->areas[index];
  if (area->host[slot] == NULL)
    return ACCRT_OK;
  const accrt_place_t host = {.buffer = area->host[slot], .offset_bytes = begin};
  const accrt_place_t device = {.buffer = area->device, .offset_bytes = begin};
  return accrt_stream_copy(model->stream, to_device ? &host : &device, to_device ? &device : &host,
                           end - begin);
}

/* ---- Calls ---- */

accrt_status_t accsv_program_make_function(accsv_program_model_t* model,
                                           accsv_function_t* function) {
  function->bound_count = 1;
  for (uint32_t i = 0; i < function->count; ++i) {
    const uint32_t size = function->arguments[i].size;
    if (function->strides[size] != 0)
      continue;
    function->strides[size] = function->bound_count;
    function->bound_count *= model->description.buckets[size].count;
  }
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, function->bound_count, &function->bound));
  accrt_call_t* call;
  ACCRT_TRY(accrt_call_create(model->session, function->name, &call));
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < function->count && status == ACCRT_OK; ++i)
    status = accrt_call_find(call, function->arguments[i].name, &function->indices[i]);
  accrt_call_release(call);
  return status;
}

static void release_bound(accsv_bound_t* bound) {
  accrt_call_release(bound->call);
  ACCSV_FREE(&accsv_allocator_system, bound, 1);
}

void accsv_program_release_calls(accsv_function_t* function) {
  for (uint32_t i = 0; function->bound != NULL && i < function->bound_count; ++i) {
    if (function->bound[i] != NULL)
      release_bound(function->bound[i]);
    function->bound[i] = NULL;
  }
}

static void release_all_calls(accsv_program_model_t* model) {
  accsv_program_release_calls(&model->step);
  accsv_program_release_calls(&model->plain);
  accsv_program_release_calls(&model->update);
  accsv_program_release_calls(&model->copy);
  accsv_program_release_calls(&model->sample);
  accsv_program_release_calls(&model->greedy);
  accsv_program_release_calls(&model->embed);
  model->calls = 0;
}

/* `shift`: where the argument lies behind its place. */
accrt_status_t accsv_program_bind_argument(const accsv_program_model_t* model,
                                           const accsv_function_t* function,
                                           const accsv_bound_t* bound, uint32_t index,
                                           const uint32_t* sizes, uint64_t shift) {
  const accsv_argument_t* argument = &function->arguments[index];
  const int64_t shape[] = {(int64_t)sizes[argument->size] + argument->plus, argument->columns};
  const accrt_tensor_t tensor = {.buffer = model->areas[argument->area].device,
                                 .offset_bytes = bound->offsets[index] + shift,
                                 .dtype = argument->dtype,
                                 .rank = argument->columns != 0 ? 2 : 1,
                                 .shape = shape};
  return accrt_call_set_tensor(bound->call, function->indices[index], &tensor);
}

static accrt_status_t make_bound(const accsv_program_model_t* model,
                                 const accsv_function_t* function, const uint32_t* sizes,
                                 accsv_bound_t** out_bound) {
  accsv_bound_t* bound;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, 1, &bound));
  accsv_program_lay(model, function, sizes, bound);
  accrt_status_t status = accrt_call_create(model->session, function->name, &bound->call);
  for (uint32_t i = 0; i < function->count && status == ACCRT_OK; ++i) {
    const uint32_t area = function->arguments[i].area;
    if (area != UPDATES && area != COPIES) /* those are bound for each call */
      status = accsv_program_bind_argument(model, function, bound, i, sizes, 0);
  }
  if (status != ACCRT_OK) {
    release_bound(bound);
    return status;
  }
  *out_bound = bound;
  return ACCRT_OK;
}

/* The function's call for these sizes. */
accrt_status_t accsv_program_find_bound(accsv_program_model_t* model, accsv_function_t* function,
                                        const uint32_t* sizes, accsv_bound_t** out_bound) {
  uint32_t at = 0;
  for (uint32_t size = 0; size < SIZE_COUNT; ++size) {
    if (function->strides[size] != 0)
      at += function->strides[size] * accsv_bucket(&model->description.buckets[size], sizes[size]);
  }
  if (function->bound[at] == NULL) {
    if (model->calls >= PLANS)
      release_all_calls(model); /* their plans are as many as the session keeps */
    ACCRT_TRY(make_bound(model, function, sizes, &function->bound[at]));
    ++model->calls;
  }
  *out_bound = function->bound[at];
  return ACCRT_OK;
}

/* Runs the call on a host, and queues it elsewhere. */
accrt_status_t accsv_program_go(const accsv_program_model_t* model, const accsv_bound_t* bound) {
  return model->is_host ? accrt_call_run(bound->call, ACCRT_TIMEOUT_INFINITE)
                        : accrt_call_submit(bound->call, NULL, 0, NULL, 0);
}
