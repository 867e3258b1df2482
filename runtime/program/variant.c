/* runtime/program/variant.c - the variants of a kernel that can run on a device, their order of
 * preference, and the reasons against the others.
 *
 * It loads no code (image.c does).
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/arch.h"
#include "runtime/core/cpu.h"
#include "runtime/program/internal.h"

void accrt_text_add(accrt_text_t* text, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t used =
      text->size_bytes < text->capacity_bytes ? text->size_bytes : text->capacity_bytes;
  const int written = vsnprintf(used < text->capacity_bytes ? text->bytes + used : NULL,
                                text->capacity_bytes - used, format, arguments);
  va_end(arguments);
  if (written > 0)
    text->size_bytes += (size_t)written;
}

static void add_feature_names(accrt_text_t* text, uint64_t missing) {
  for (uint32_t bit = 0; bit < 64; ++bit) {
    const char* name = accrt_cpu_feature_name(bit);
    if ((missing >> bit & 1) == 0 || name[0] == '\0')
      continue;
    accrt_text_add(text, " %s", name);
    missing &= ~(UINT64_C(1) << bit);
  }
  if (missing != 0)
    accrt_text_add(text, " 0x%" PRIx64, missing);
}

/* The device that the code is for, as a format for messages; %s is the architecture. */
static const char* arch_needs(const accx_variant_t* variant) {
  switch (variant->arch_kind) {
  case ACCX_ARCH_PORTABLE:
    return "it needs %s or a later one";
  case ACCX_ARCH_EXACT:
    return "it needs exactly %s";
  default:
    return "it needs one that contains %s";
  }
}

/* True for device code of a bundle that declares no launch (format 0.1). */
static bool lacks_launch(const accrt_program_t* program, const accx_variant_t* variant) {
  const uint32_t kind = program->tables->images[variant->image].kind;
  if (kind == ACCX_IMAGE_HOST_ELF || kind == ACCX_IMAGE_PACK)
    return false;
  const uint32_t index = (uint32_t)(variant - program->tables->variants);
  return accrt_bundle_launch(program->tables, index) == NULL;
}

bool accrt_variant_fits(const accrt_program_t* program, const accx_variant_t* variant,
                        char* why_not, size_t capacity_bytes) {
  const accrt_device_info_t* device = accrt_device_facts(program->device);
  const char* const driver = accrt_program_string(program, variant->driver);
  const char* const arch = accrt_program_string(program, variant->arch);
  const uint64_t missing = variant->cpu_features & ~device->cpu_features;
  accrt_text_t text = {why_not, capacity_bytes, 0};
  if (strcmp(driver, device->driver) != 0) {
    accrt_text_add(&text, "it is for driver %s, the device is %s", driver, device->name);
  } else if (program->variant_override != NULL && strcmp(arch, program->variant_override) != 0) {
    accrt_text_add(&text, "only variants for %s are asked for", program->variant_override);
  } else if (!accrt_arch_fits(variant->arch_kind, arch, device->arch)) {
    accrt_text_add(&text, "the device is %s, ", device->arch);
    accrt_text_add(&text, arch_needs(variant), arch);
  } else if (missing != 0) {
    accrt_text_add(&text, "the device lacks");
    add_feature_names(&text, missing);
  } else if ((variant->required_features & ~ACCX_VARIANT_FEATURES_KNOWN) != 0) {
    accrt_text_add(&text, "it requires features 0x%" PRIx64 " that this library does not know",
                   variant->required_features & ~ACCX_VARIANT_FEATURES_KNOWN);
  } else if (lacks_launch(program, variant)) {
    accrt_text_add(&text, "the bundle does not say how to launch it (format 0.1)");
  } else {
    return true;
  }
  return false;
}

bool accrt_variant_usable(const accrt_program_t* program, uint32_t variant, char* why_not,
                          size_t capacity_bytes) {
  if (!accrt_variant_fits(program, &program->tables->variants[variant], why_not, capacity_bytes))
    return false;
  const char* const refusal = program->refusals[variant];
  if (refusal == NULL)
    return true;
  accrt_text_t text = {why_not, capacity_bytes, 0};
  accrt_text_add(&text, "%s", refusal);
  return false;
}

/* Rates how specific an architecture is. Exact ones come first (with a suffix before without), then
 * families from the larger to the smaller, then portable ones from the newer to the older, then
 * variants without an architecture. */
static int specificity(const accrt_program_t* program, const accx_variant_t* variant) {
  const char* const arch = accrt_program_string(program, variant->arch);
  const accrt_sm_arch_t code = accrt_arch_sm(arch);
  const int level = code.number != 0 ? (int)code.number : accrt_arch_x86_level(arch);
  if (variant->arch_kind == ACCX_ARCH_EXACT || code.suffix == 'a')
    return 1000000 + (code.suffix != '\0');
  if (variant->arch_kind == ACCX_ARCH_FAMILY)
    return 100000 + 2 * level + (code.suffix != '\0');
  return 2 * level;
}

int accrt_variant_compare(const accrt_program_t* program, uint32_t a, uint32_t b) {
  const accx_variant_t* first = &program->tables->variants[a];
  const accx_variant_t* second = &program->tables->variants[b];
  if (first->priority != second->priority)
    return first->priority > second->priority ? -1 : 1;
  const int difference = specificity(program, second) - specificity(program, first);
  if (difference != 0)
    return difference;
  return a < b ? -1 : a > b;
}
