/* runtime/core/instance.h - the parts of an instance for every floor: allocator, policy, ids, log,
 * trace.
 *
 * This is the instance's lower half, in instance.c. Drivers, devices and streams are above; this
 * header may not mention them.
 */
#ifndef ACCRT_RUNTIME_CORE_INSTANCE_H_
#define ACCRT_RUNTIME_CORE_INSTANCE_H_

#include "accrt/instance.h"

/* ACCRT_HOST_CODE_SIGNED, _ALL or _NONE. */
uint32_t accrt_instance_host_code_policy(const accrt_instance_t* instance);
/* Its trust settings (trust.h), and its libcrypto (crypto.h). */
struct accrt_trust* accrt_instance_trust_store(accrt_instance_t* instance);
struct accrt_lazy_crypto* accrt_instance_lazy_crypto(accrt_instance_t* instance);
/* ACCRT_INSTANCE_FLAG_*. */
uint32_t accrt_instance_flags(const accrt_instance_t* instance);
/* Packs that bundles may ask for. */
struct accrt_pack_set* accrt_instance_packs(accrt_instance_t* instance);
/* Option pool.one_mapping: every allocation gets its own mapping. */
uint32_t accrt_instance_one_mapping(const accrt_instance_t* instance);
/* Option staging.direct_reads: read file contents outside the page cache without filling it. */
uint32_t accrt_instance_direct_reads(const accrt_instance_t* instance);
/* Option prepare.cache_mib: size limit of the folder of option prepare.cache. */
uint64_t accrt_instance_prepare_cache_bytes(const accrt_instance_t* instance);
/* Returns a number that this instance has not returned before, starting with 1: ids of streams,
 * buffers, semaphores. */
uint64_t accrt_instance_next_id(accrt_instance_t* instance);
void accrt_instance_log(accrt_instance_t* instance, uint32_t level, const char* component,
                        const char* format, ...) __attribute__((format(printf, 4, 5)));
/* True when the instance has a trace sink; then accrt_instance_trace may be called. */
uint32_t accrt_instance_tracing(const accrt_instance_t* instance);
void accrt_instance_trace(accrt_instance_t* instance, const accrt_trace_event_t* event);

#endif /* ACCRT_RUNTIME_CORE_INSTANCE_H_ */
