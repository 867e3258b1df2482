/* runtime/core/instance.h - what every floor may ask of an instance: allocator, policy, ids, log, trace.
 *
 * An instance holds drivers and streams, so it is implemented above (runtime/drivers/common/instance.c); this header may not
 * mention them.
 */
#ifndef ACCRT_RUNTIME_CORE_INSTANCE_H_
#define ACCRT_RUNTIME_CORE_INSTANCE_H_

#include "accrt/instance.h"

const accrt_allocator_t* accrt_instance_allocator(const accrt_instance_t* instance);
/* ACCRT_HOST_CODE_SIGNED, _ALL or _NONE. */
uint32_t accrt_instance_host_code_policy(const accrt_instance_t* instance);
/* What it trusts (trust.h), and its libcrypto (crypto.h). */
struct accrt_trust* accrt_instance_trust_store(accrt_instance_t* instance);
struct accrt_crypto_slot* accrt_instance_crypto_slot(accrt_instance_t* instance);
/* ACCRT_INSTANCE_FLAG_*. */
uint32_t accrt_instance_flags(const accrt_instance_t* instance);
/* The value of an option by its full key, the last one given, or NULL. */
const char* accrt_instance_option(const accrt_instance_t* instance, const char* key);
/* Packs that bundles may ask for. */
struct accrt_pack_set* accrt_instance_packs(accrt_instance_t* instance);
/* Option staging.direct_reads: files that are not in the page cache are to be read past it. */
uint32_t accrt_instance_direct_reads(const accrt_instance_t* instance);
/* Option prepare.cache_mib: what the folder of prepare.cache may hold. */
uint64_t accrt_instance_prepare_cache_bytes(const accrt_instance_t* instance);
/* A number never given before in this instance, from 1: ids of streams, buffers, semaphores. */
uint64_t accrt_instance_next_id(accrt_instance_t* instance);
void accrt_instance_log(accrt_instance_t* instance, uint32_t level, const char* component,
                        const char* format, ...) __attribute__((format(printf, 4, 5)));
/* True when a trace sink is there; then accrt_instance_trace may be called. */
uint32_t accrt_instance_tracing(const accrt_instance_t* instance);
void accrt_instance_trace(accrt_instance_t* instance, const accrt_trace_event_t* event);

#endif /* ACCRT_RUNTIME_CORE_INSTANCE_H_ */
