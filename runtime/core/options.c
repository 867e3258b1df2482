/* runtime/core/options.c - the options of the runtime itself; drivers read their own
 * (docs/options.md). It does not know what the options do. */
#include <stdlib.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/instance_parts.h"

#define MIB (UINT64_C(1) << 20)
/* Sanitizers find overruns only where every allocation has its own mapping. */
#ifdef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
#define ONE_MAPPING_DEFAULT 1u
#else
#define ONE_MAPPING_DEFAULT 0u
#endif

typedef struct number_option {
  char key[20];
  uint64_t least;
  uint64_t most;
  uint64_t multiple;
  uint64_t initial;
} number_option_t;

enum {
  ONE_MAPPING,
  STAGING_THREADS,
  STAGING_RING,
  STAGING_SLOT,
  STAGING_QUEUES,
  STAGING_DIRECT,
  PREPARE_CACHE,
  VALIDATE_HANDLES,
  OPTION_COUNT
};

static const number_option_t known[OPTION_COUNT] = {
    [ONE_MAPPING] = {"pool.one_mapping", 0, 1, 1, ONE_MAPPING_DEFAULT},
    [STAGING_THREADS] = {"staging.threads", 1, 64, 1, 0},
    [STAGING_RING] = {"staging.ring_bytes", MIB, 1024 * MIB, 1, 96 * MIB},
    [STAGING_SLOT] = {"staging.slot_bytes", MIB, 64 * MIB, MIB, 4 * MIB},
    [STAGING_QUEUES] = {"staging.queues", 1, 8, 1, 1},
    [STAGING_DIRECT] = {"staging.direct_reads", 0, 1, 1, 0},
    [PREPARE_CACHE] = {"prepare.cache_mib", 1, UINT64_C(1) << 24, 1, 16384},
    [VALIDATE_HANDLES] = {"validate.handles", 0, 1, 1, 0}, /* abi/watch.c */
};

bool accrt_runtime_option_known(const char* key, accrt_near_t* near) {
  static const char paths[][14] = {"packs.path",
                                   "prepare.cache"}; /* any text; checked where it is used */
  for (int i = 0; i < 2; ++i) {
    if (strcmp(paths[i], key) == 0)
      return true;
    accrt_near_add(near, paths[i]);
  }
  if (accrt_trust_option_known(key, near))
    return true;
  for (int i = 0; i < OPTION_COUNT; ++i) {
    if (strcmp(known[i].key, key) == 0)
      return true;
    accrt_near_add(near, known[i].key);
  }
  return false;
}

static accrt_status_t read_number(const number_option_t* option, const char* text,
                                  uint64_t* out_value) {
  char* end = NULL;
  const bool digits = text[0] >= '0' && text[0] <= '9' && strlen(text) < 20;
  *out_value = digits ? strtoull(text, &end, 10) : 0;
  if (digits && *end == '\0' && *out_value >= option->least && *out_value <= option->most &&
      *out_value % option->multiple == 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "option %s is '%s': expected a multiple of %" PRIu64 " from %" PRIu64
                    " to %" PRIu64,
                    option->key, text, option->multiple, option->least, option->most);
}

accrt_status_t accrt_runtime_options_read(accrt_instance_t* instance) {
  uint64_t values[OPTION_COUNT];
  for (int i = 0; i < OPTION_COUNT; ++i) {
    values[i] = known[i].initial;
    const char* text = accrt_instance_option(instance, known[i].key);
    ACCRT_TRY(text != NULL ? read_number(&known[i], text, &values[i]) : ACCRT_OK);
  }
  instance->runtime_options =
      (accrt_runtime_options_t){.pool_one_mapping = (uint32_t)values[ONE_MAPPING],
                                .staging_threads = (uint32_t)values[STAGING_THREADS],
                                .staging_ring_bytes = values[STAGING_RING],
                                .staging_slot_bytes = values[STAGING_SLOT],
                                .staging_queues = (uint32_t)values[STAGING_QUEUES],
                                .staging_direct_reads = (uint32_t)values[STAGING_DIRECT],
                                .prepare_cache_bytes = values[PREPARE_CACHE] * MIB};
  return ACCRT_OK;
}

uint32_t accrt_instance_one_mapping(const accrt_instance_t* instance) {
  return instance->runtime_options.pool_one_mapping;
}

uint32_t accrt_instance_direct_reads(const accrt_instance_t* instance) {
  return instance->runtime_options.staging_direct_reads;
}

uint64_t accrt_instance_prepare_cache_bytes(const accrt_instance_t* instance) {
  return instance->runtime_options.prepare_cache_bytes;
}
