/* runtime/core/instance.c - the lower half of an instance: options, ids, logging, tracing,
 * references. It may not know drivers, devices or streams. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance_parts.h"
#include "runtime/core/memory.h"
#include "runtime/core/struct.h"

#define MAX_OPTIONS 1024

/* ---- Queries for other floors ---- */

const accrt_allocator_t* accrt_instance_allocator(const accrt_instance_t* instance) {
  return instance != NULL ? &instance->allocator : NULL;
}

uint32_t accrt_instance_host_code_policy(const accrt_instance_t* instance) {
  return instance->trust.policy;
}
struct accrt_trust* accrt_instance_trust_store(accrt_instance_t* instance) {
  return &instance->trust;
}
struct accrt_lazy_crypto* accrt_instance_lazy_crypto(accrt_instance_t* instance) {
  return &instance->crypto;
}
uint32_t accrt_instance_flags(const accrt_instance_t* instance) {
  return instance->flags;
}
struct accrt_pack_set* accrt_instance_packs(accrt_instance_t* instance) {
  return &instance->packs;
}

uint64_t accrt_instance_next_id(accrt_instance_t* instance) {
  return atomic_fetch_add_explicit(&instance->next_id, 1, memory_order_relaxed) + 1;
}

void accrt_instance_log(accrt_instance_t* instance, uint32_t level, const char* component,
                        const char* format, ...) {
  if (instance->log_sink.write == NULL || level > instance->log_sink.level)
    return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (written < 0)
    return;
  accrt_text_one_line(line);
  ACCRT_CALL_USER(instance->log_sink.write(instance->log_sink.self, level, component, line));
}

uint32_t accrt_instance_tracing(const accrt_instance_t* instance) {
  return instance->trace_sink.event != NULL;
}

void accrt_instance_trace(accrt_instance_t* instance, const accrt_trace_event_t* event) {
  if (instance->trace_sink.event != NULL)
    ACCRT_CALL_USER(instance->trace_sink.event(instance->trace_sink.self, event));
}

const char* accrt_instance_option(const accrt_instance_t* instance, const char* key) {
  if (instance == NULL || key == NULL)
    return NULL;
  for (uint32_t i = instance->option_count; i > 0; --i) {
    const char* given = instance->options[i - 1].key;
    if (given[0] == '+')
      given += 1;
    if (strcmp(given, key) == 0)
      return instance->options[i - 1].value;
  }
  return NULL;
}

/* ---- Creation ---- */

static accrt_status_t copy_options(accrt_instance_t* instance,
                                   const accrt_instance_options_t* options) {
  if (options->option_count == 0)
    return ACCRT_OK;
  if (options->options == NULL || options->option_count > MAX_OPTIONS) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "options is %p with a count of %" PRIu32 "; at most %d are taken",
                      (const void*)options->options, options->option_count, MAX_OPTIONS);
  }
  ACCRT_TRY(accrt_struct_check_element("accrt_option_t", options->option_size_bytes,
                                       sizeof(accrt_option_t)));
  void* memory;
  accrt_status_t status = accrt_alloc_array(&instance->allocator, options->option_count,
                                            sizeof(accrt_option_t), &memory);
  if (status != ACCRT_OK)
    return status;
  instance->options = memory;
  instance->option_count = options->option_count;
  for (uint32_t i = 0; i < options->option_count; ++i) {
    const accrt_option_t* option = &options->options[i];
    if (option->key == NULL || option->value == NULL) {
      return ACCRT_FAIL(INVALID_ARGUMENT, "option %" PRIu32 " has no %s", i,
                        option->key == NULL ? "key" : "value");
    }
    char *key = NULL, *value = NULL;
    status = accrt_copy_string(&instance->allocator, option->key, &key);
    instance->options[i].key = key;
    if (status == ACCRT_OK)
      status = accrt_copy_string(&instance->allocator, option->value, &value);
    instance->options[i].value = value;
    if (status != ACCRT_OK)
      return status;
  }
  return ACCRT_OK;
}

static accrt_status_t check_options(const accrt_instance_options_t* options) {
  const uint32_t known = ACCRT_INSTANCE_FLAG_PERF_MAP | ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if ((options->flags & ~known) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", options->flags);
  if (options->host_code_policy > ACCRT_HOST_CODE_NONE) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "host_code_policy %" PRIu32 " is not known",
                      options->host_code_policy);
  }
  const uint32_t of_sink = options->log_sink != NULL ? options->log_sink->reserved : 0;
  const uint32_t of_executor = options->executor != NULL ? options->executor->reserved : 0;
  if ((options->reserved | of_sink | of_executor) != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "options->%sreserved is %" PRIu32 ", not 0",
                      options->reserved != 0 ? ""
                      : of_sink != 0         ? "log_sink->"
                                             : "executor->",
                      options->reserved != 0 ? options->reserved
                      : of_sink != 0         ? of_sink
                                             : of_executor);
  }
  const accrt_allocator_t* allocator = options->allocator;
  if (allocator != NULL && (allocator->allocate == NULL || allocator->deallocate == NULL)) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "options->allocator->%s is NULL",
                      allocator->allocate == NULL ? "allocate" : "deallocate");
  }
  const accrt_executor_t* executor = options->executor;
  if (executor != NULL && (executor->submit == NULL || executor->concurrency == 0)) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "the executor has no submit function or a concurrency of 0");
  }
  return ACCRT_OK;
}

accrt_status_t accrt_instance_options_take(const accrt_instance_options_t* options,
                                           accrt_instance_options_t* out_options) {
  const accrt_status_t status =
      accrt_struct_read("accrt_instance_options_t", options, out_options, sizeof *out_options);
  return status == ACCRT_OK ? check_options(out_options) : status;
}

void accrt_instance_init(accrt_instance_t* instance, const accrt_instance_options_t* options) {
  accrt_object_init(&instance->object);
  accrt_pack_set_init(&instance->packs);
  accrt_counters_init(&instance->counters);
  accrt_mutex_init(&instance->trust.lock, ACCRT_LOCK_TRUST);
  accrt_mutex_init(&instance->crypto.lock, ACCRT_LOCK_CRYPTO);
  instance->allocator = options->allocator != NULL ? *options->allocator : accrt_allocator_system;
  if (options->log_sink != NULL)
    instance->log_sink = *options->log_sink;
  if (options->trace_sink != NULL)
    instance->trace_sink = *options->trace_sink;
  if (options->executor != NULL)
    instance->executor = *options->executor;
  instance->flags = options->flags;
}

accrt_status_t accrt_instance_configure(accrt_instance_t* instance,
                                        const accrt_instance_options_t* options) {
  ACCRT_TRY(copy_options(instance, options));
  ACCRT_TRY(accrt_runtime_options_read(instance));
  return accrt_trust_read(instance, options->host_code_policy);
}

static void free_options(accrt_instance_t* instance) {
  for (uint32_t i = 0; i < instance->option_count; ++i) {
    accrt_free_string(&instance->allocator, (char*)(uintptr_t)instance->options[i].key);
    accrt_free_string(&instance->allocator, (char*)(uintptr_t)instance->options[i].value);
  }
  accrt_free_array(&instance->allocator, instance->options, instance->option_count,
                   sizeof *instance->options);
}

void accrt_instance_deinit(accrt_instance_t* instance) {
  accrt_counters_deinit(instance);
  accrt_trust_free(instance);
  free_options(instance);
}

/* ---- References ---- */

accrt_instance_t* accrt_instance_retain(accrt_instance_t* instance) {
  if (instance != NULL && !accrt_forked())
    accrt_object_retain(&instance->object);
  return instance;
}

void accrt_instance_release(accrt_instance_t* instance) {
  if (instance != NULL && !accrt_forked() && accrt_object_release(&instance->object))
    instance->end(instance);
}
