/* runtime/core/instance_parts.h - the lower half of an instance: allocator, options, ids, log,
 * trace, trust, packs, counters. For runtime/core, and for runtime/drivers/common, whose upper half
 * (drivers, devices, streams, threads) begins with it. It may not mention them.
 */
#ifndef ACCRT_RUNTIME_CORE_INSTANCE_PARTS_H_
#define ACCRT_RUNTIME_CORE_INSTANCE_PARTS_H_

#include "runtime/core/counters.h"
#include "runtime/core/crypto.h"
#include "runtime/core/instance.h"
#include "runtime/core/near_name.h"
#include "runtime/core/object.h"
#include "runtime/core/pack_set.h"
#include "runtime/core/trust.h"

/* The options of the runtime itself: options.c. */
typedef struct accrt_runtime_options {
  uint32_t pool_one_mapping;
  uint32_t staging_threads; /* 0: as many as help */
  uint32_t staging_queues;
  uint32_t staging_direct_reads;
  uint64_t staging_ring_bytes;
  uint64_t staging_slot_bytes;
  uint64_t prepare_cache_bytes;
} accrt_runtime_options_t;

struct accrt_instance {
  accrt_object_t object;
  accrt_allocator_t allocator;
  accrt_log_sink_t log_sink;     /* write NULL: silent */
  accrt_trace_sink_t trace_sink; /* event NULL: none */
  accrt_executor_t executor;     /* submit NULL: none */
  accrt_option_t* options;
  uint32_t option_count;
  accrt_runtime_options_t runtime_options;
  uint32_t flags;
  accrt_trust_t trust;
  accrt_lazy_crypto_t crypto;
  atomic_uint_least64_t next_id;
  accrt_pack_set_t packs;
  accrt_counters_t counters;
  /* called for the last reference; the upper half frees the instance */
  void (*end)(accrt_instance_t* instance);
};

/* Reads and checks the caller's options. */
accrt_status_t accrt_instance_options_take(const accrt_instance_options_t* options,
                                           accrt_instance_options_t* out_options);
/* Initialises the lower half in zeroed memory. `options` are those of
 * accrt_instance_options_take. */
void accrt_instance_init(accrt_instance_t* instance, const accrt_instance_options_t* options);
/* Reads the options into the instance. accrt_instance_deinit frees them, also after a failure. */
accrt_status_t accrt_instance_configure(accrt_instance_t* instance,
                                        const accrt_instance_options_t* options);
void accrt_instance_deinit(accrt_instance_t* instance);

/* True for an option of the runtime itself. */
bool accrt_runtime_option_known(const char* key, accrt_near_t* near);
/* Reads them into the instance. A value outside the allowed range is
 * ACCRT_ERROR_INVALID_ARGUMENT. */
accrt_status_t accrt_runtime_options_read(accrt_instance_t* instance);

#endif /* ACCRT_RUNTIME_CORE_INSTANCE_PARTS_H_ */
