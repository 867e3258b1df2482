/* serve/model.c - see serve/model.h. */
#include "serve/model.h"

#include "serve/handles.h"

#define MOST_ADAPTERS 65536u
#define MOST_EMBEDDING (1u << 20)

static accrt_status_t check_info(const accrt_serve_model_info_t* info) {
  if (info->vocab_size == 0 || info->vocab_size > INT32_MAX || info->page_size == 0 ||
      info->page_count == 0 || info->max_rows == 0 || info->max_length == 0)
    return ACCSV_FAIL(INVALID_ARGUMENT,
                      "the model's info has vocab_size %" PRIu32 ", page_size %" PRIu32
                      ", page_count %" PRIu32 ", max_rows %" PRIu32 ", max_length %" PRIu32
                      ": none may be 0, nor the first above 2^31 - 1",
                      info->vocab_size, info->page_size, info->page_count, info->max_rows,
                      info->max_length);
  if (info->max_tokens < info->max_rows)
    return ACCSV_FAIL(INVALID_ARGUMENT, "a model of %" PRIu32 " rows and %" PRIu32 " tokens a step",
                      info->max_rows, info->max_tokens);
  if (info->max_samples != 0 && info->max_samples < info->max_rows)
    return ACCSV_FAIL(INVALID_ARGUMENT,
                      "a model of %" PRIu32 " rows and %" PRIu32 " samples a step", info->max_rows,
                      info->max_samples);
  if ((uint64_t)info->row_pages * info->page_size < info->max_length)
    return ACCSV_FAIL(INVALID_ARGUMENT,
                      "row_pages %" PRIu32 " of page_size %" PRIu32
                      " tokens hold less than max_length %" PRIu32,
                      info->row_pages, info->page_size, info->max_length);
  if ((uint64_t)info->page_count * info->page_size > INT32_MAX ||
      (uint64_t)info->max_rows * info->row_pages > INT32_MAX)
    return ACCSV_FAIL(INVALID_ARGUMENT, "slots of pages or of the page table beyond 31 bits");
  if (info->adapter_count > MOST_ADAPTERS)
    return ACCSV_FAIL(INVALID_ARGUMENT, "a model of %" PRIu32 " adapters, at most %u",
                      info->adapter_count, MOST_ADAPTERS);
  if (info->embedding_size > MOST_EMBEDDING)
    return ACCSV_FAIL(INVALID_ARGUMENT, "embeddings of %" PRIu32 " numbers, at most %u",
                      info->embedding_size, MOST_EMBEDDING);
  if (info->eos_count > 0 && info->eos == NULL)
    return ACCSV_FAIL(INVALID_ARGUMENT, "eos is NULL with an eos_count of %" PRIu32,
                      info->eos_count);
  for (uint32_t i = 0; i < info->eos_count; ++i) {
    if (info->eos[i] < 0 || (uint32_t)info->eos[i] >= info->vocab_size)
      return ACCSV_FAIL(INVALID_ARGUMENT, "eos[%" PRIu32 "] is %" PRId32 ", not in 0 to %" PRIu32,
                        i, info->eos[i], info->vocab_size - 1);
  }
  return ACCRT_OK;
}

/* If the function fails without a record of its own, it gets one. */
static accrt_status_t ask(const accrt_serve_model_functions_t* functions,
                          accrt_serve_model_info_t* out_info) {
  accrt_error_t before = ACCRT_ERROR_INIT, why = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&before);
  accrt_clear_error();
  const accrt_status_t status = functions->info(functions->self, out_info);
  if (status == ACCRT_OK) {
    (void)accrt_set_error(&before);
    return ACCRT_OK;
  }
  (void)accrt_last_error(&why);
  if (why.status == status)
    return status;
  return accsv_fail(status, __func__, __FILE__, (uint32_t)__LINE__,
                    "the model's info returned %" PRId32 " (%s)", status,
                    accrt_status_name(status));
}

accrt_status_t accrt_serve_model_wrap(const accrt_serve_model_functions_t* functions,
                                      accrt_serve_model_t** out_model) {
  ACCSV_NOT_NULL(out_model);
  *out_model = NULL;
  ACCSV_NOT_NULL(functions);
  accrt_serve_model_functions_t own;
  ACCRT_TRY(
      accsv_take_struct("accrt_serve_model_functions_t", functions, sizeof own, &own, sizeof own));
  if ((own.flags & ~ACCRT_SERVE_VALIDATE) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", own.flags);
  ACCSV_NOT_NULL(functions->info);
  ACCSV_NOT_NULL(functions->submit);
  ACCSV_NOT_NULL(functions->wait);
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  ACCRT_TRY(ask(&own, &info));
  ACCRT_TRY(check_info(&info));
  if (info.max_samples == 0)
    info.max_samples = info.max_rows;
  if (info.adapter_count > 0 && own.set_adapter == NULL)
    return ACCSV_FAIL(INVALID_ARGUMENT, "a model with places for adapters, and no set_adapter");
  accrt_serve_model_t* model;
  ACCRT_TRY(ACCSV_HANDLE_NEW(&accsv_allocator_system, &model));
  atomic_init(&model->refs, 1);
  model->functions = own;
  model->info = info;
  *out_model = model;
  return ACCRT_OK;
}

accrt_serve_model_t* accrt_serve_model_retain(accrt_serve_model_t* model) {
  if (model != NULL)
    (void)atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
  return model;
}

void accrt_serve_model_release(accrt_serve_model_t* model) {
  /* Pairs with itself: the last one sees what all others did before. */
  if (model == NULL || atomic_fetch_sub_explicit(&model->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (model->functions.destroy != NULL)
    model->functions.destroy(model->functions.self);
  ACCSV_HANDLE_FREE(&accsv_allocator_system, model);
}

accrt_status_t accrt_serve_model_info(accrt_serve_model_t* model,
                                      accrt_serve_model_info_t* out_info) {
  ACCSV_NOT_NULL(model);
  ACCSV_NOT_NULL(out_info);
  return accsv_give_struct("accrt_serve_model_info_t", &model->info, sizeof model->info,
                           sizeof model->info, out_info);
}

accrt_status_t accrt_serve_model_prepare(accrt_serve_model_t* model, uint32_t* out_left) {
  ACCSV_NOT_NULL(out_left);
  *out_left = 0;
  ACCSV_NOT_NULL(model);
  /* Pairs with the release below, and with that of an engine that lets go of the model. */
  if (atomic_exchange_explicit(&model->taken, true, memory_order_acquire))
    return ACCSV_FAIL(INVALID_STATE, "the model has an engine");
  const accrt_status_t status = model->functions.prepare != NULL
                                    ? model->functions.prepare(model->functions.self, out_left)
                                    : ACCRT_OK;
  atomic_store_explicit(&model->taken, false, memory_order_release);
  return status;
}
