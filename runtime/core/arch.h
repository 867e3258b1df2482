/* runtime/core/arch.h - names of architectures, and the devices that run their code: for choosing
 * variants, and for writers that know their readers' devices. It may not allocate. */
#ifndef ACCRT_RUNTIME_CORE_ARCH_H_
#define ACCRT_RUNTIME_CORE_ARCH_H_

#include <stdbool.h>
#include <stdint.h>

/* Level of an x86-64 family name: "x86-64" is 1, "x86-64-v4" is 4; 0 for any other name. */
int accrt_arch_x86_level(const char* arch);

/* "sm_90", "sm_90a", "compute_100f": number and suffix. */
typedef struct accrt_sm_arch {
  uint32_t number; /* 10 * major + minor; 0: not such a name */
  char suffix;     /* '\0' when there is none */
} accrt_sm_arch_t;
accrt_sm_arch_t accrt_arch_sm(const char* arch);

/* True when code for `arch` runs on a device of architecture `device_arch`. @param arch_kind
 * ACCRT_ARCH_* (accrt/bundle.h). */
bool accrt_arch_fits(uint32_t arch_kind, const char* arch, const char* device_arch);

#endif /* ACCRT_RUNTIME_CORE_ARCH_H_ */
