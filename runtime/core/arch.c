/* runtime/core/arch.c - names of architectures, and the devices that run their code. */
#include "runtime/core/arch.h"

#include <string.h>

#include "accrt/bundle.h"

int accrt_arch_x86_level(const char* arch) {
  static const char prefix[] = "x86-64";
  if (strncmp(arch, prefix, sizeof prefix - 1) != 0)
    return 0;
  const char* rest = arch + sizeof prefix - 1;
  if (*rest == '\0')
    return 1;
  if (rest[0] == '-' && rest[1] == 'v' && rest[2] >= '1' && rest[2] <= '9' && rest[3] == '\0')
    return rest[2] - '0';
  return 0;
}

accrt_sm_arch_t accrt_arch_sm(const char* arch) {
  static const char* const prefixes[2] = {"sm_", "compute_"};
  accrt_sm_arch_t result = {0, '\0'};
  const char* at = NULL;
  for (int i = 0; i < 2 && at == NULL; ++i) {
    const size_t length = strlen(prefixes[i]);
    at = strncmp(arch, prefixes[i], length) == 0 ? arch + length : NULL;
  }
  uint32_t number = 0;
  int digits = 0;
  for (; at != NULL && *at >= '0' && *at <= '9' && digits < 4; ++at, ++digits)
    number = number * 10 + (uint32_t)(*at - '0');
  if (digits < 2 || (*at != '\0' && at[1] != '\0'))
    return result;
  result.number = number;
  result.suffix = *at;
  return result;
}

/* Machine code runs on its own and later minor versions of its major version. Code with features of
 * one architecture (sm_90a) runs only there. */
static bool sm_runs(uint32_t arch_kind, accrt_sm_arch_t code, uint32_t device) {
  if (code.suffix == 'a')
    return code.number == device;
  const bool same_family = code.number / 10 == device / 10 && code.number <= device;
  if (code.suffix == 'f' || arch_kind == ACCRT_ARCH_FAMILY)
    return same_family;
  return arch_kind == ACCRT_ARCH_PORTABLE ? code.number <= device : code.number == device;
}

/* True when code for `arch` runs on a device of architecture `device_arch`, by the rules of
 * families. */
static bool family_contains(const char* arch, const char* device_arch) {
  if (strcmp(arch, device_arch) == 0)
    return true;
  const int needed = accrt_arch_x86_level(arch);
  return needed != 0 && needed <= accrt_arch_x86_level(device_arch);
}

bool accrt_arch_fits(uint32_t arch_kind, const char* arch, const char* device_arch) {
  const accrt_sm_arch_t code = accrt_arch_sm(arch);
  const accrt_sm_arch_t device = accrt_arch_sm(device_arch);
  if (code.number != 0 && device.number != 0)
    return sm_runs(arch_kind, code, device.number);
  switch (arch_kind) {
  case ACCRT_ARCH_PORTABLE:
    return arch[0] == '\0' || family_contains(arch, device_arch);
  case ACCRT_ARCH_FAMILY:
    return family_contains(arch, device_arch);
  default:
    return strcmp(arch, device_arch) == 0;
  }
}
