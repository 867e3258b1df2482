/* runtime/core/cpu.h - the features of this machine's processor that the operating system allows.
 * It may not allocate.
 *
 * Used by accrt_query_caps, by the choice of kernel variants and by the host driver.
 */
#ifndef ACCRT_RUNTIME_CORE_CPU_H_
#define ACCRT_RUNTIME_CORE_CPU_H_

#include <stddef.h>
#include <stdint.h>

/* ACCRT_CPU_*. Cheap: found once per process. */
uint64_t accrt_cpu_features(void);
/* The highest family that runs here: "x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64", "aarch64".
 * Static string. */
const char* accrt_cpu_arch(void);
/* The name of an ACCRT_CPU_* bit: "avx512-vnni". Static string; "" for a bit without a meaning. */
const char* accrt_cpu_feature_name(uint32_t bit);
/* The processor's own name ("Intel(R) Xeon(R) ..."), or the family where it has none. Always
 * terminated. */
void accrt_cpu_name(char* out_name, size_t capacity_bytes);

#endif /* ACCRT_RUNTIME_CORE_CPU_H_ */
