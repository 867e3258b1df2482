/* loader/verify.c - the verifier's order, its scratch memory, its messages, and the computed
 * minimum versions. */
#include "loader/internal.h"
#include "loader/upgrade.h"

#include <stdio.h>

#define MAX_DETAIL_BYTES 400

accrt_status_t accx_rule_status(uint32_t rule) {
  switch (rule) {
#define STATUS(name, number, status, text)                                                         \
  case number:                                                                                     \
    return ACCRT_ERROR_##status;
    ACCX_RULE_LIST(STATUS)
#undef STATUS
  default:
    return ACCRT_ERROR_INTERNAL;
  }
}

accrt_status_t accx_reject(const accx_verifier_t* verifier, uint32_t rule, const char* file,
                           uint32_t line, const char* section, uint32_t index, const char* field,
                           const char* format, ...) {
  char detail[MAX_DETAIL_BYTES];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(detail, sizeof detail, format, arguments) < 0)
    detail[0] = '\0';
  va_end(arguments);
  char record[16] = "";
  if (index != ACCX_NONE)
    (void)snprintf(record, sizeof record, "[%" PRIu32 "]", index);
  accrt_status_t status = accx_rule_status(rule);
  const char* newer = "";
  /* After rule 7 the file is what its writer made: what this library does not know there may be
   * right. */
  if (verifier->newer && status == ACCRT_ERROR_INVALID_FORMAT && rule > ACCX_RULE_FILE_FEATURES) {
    status = ACCRT_ERROR_VERSION_MISMATCH;
    newer = "; the file needs a newer version than this library reads";
  }
  return accrt_error_fail(status, NULL, file, line, "%.80s: %.16s%s%s%s: %s (rule %" PRIu32 ")%s",
                          verifier->bundle->name, section, record, field != NULL ? "." : "",
                          field != NULL ? field : "", detail, rule, newer);
}

/* ---- Computed minimum ---- */

static void raise_minor(accx_version_t* version, uint32_t minor) {
  if (minor > version->minor)
    version->minor = (uint16_t)minor;
}

static void raise_for_layout(uint32_t encoding, uint32_t group_elements,
                             accx_header_t* out_versions) {
  if (encoding > ACCX_ENCODING_OPAQUE)
    raise_minor(&out_versions->layouts, 2);
  if (group_elements != 0)
    raise_minor(&out_versions->container, 3);
}

/* States are PLAIN. */
static void raise_for_layouts(const accrt_bundle_tables_t* tables, accx_header_t* out_versions) {
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    raise_for_layout(tables->constants[i].encoding, tables->constants[i].group_elements,
                     out_versions);
  }
  for (uint32_t i = 0; i < tables->argument_count; ++i) {
    raise_for_layout(tables->arguments[i].type.encoding, tables->arguments[i].type.group_elements,
                     out_versions);
  }
}

static bool uses_packs(const accrt_bundle_tables_t* tables) {
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    if (tables->images[i].kind == ACCX_IMAGE_PACK)
      return true;
  }
  return false;
}

/* Function targets, and portable variants that name the least architecture. */
static bool uses_targets(const accrt_bundle_tables_t* tables) {
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    if (tables->functions[i].target != 0)
      return true;
  }
  for (uint32_t i = 0; i < tables->variant_count; ++i) {
    if (tables->variants[i].arch_kind == ACCX_ARCH_PORTABLE && tables->variants[i].arch != 0)
      return true;
  }
  return false;
}

/* What came after the first minor of each version raises it. */
void accx_verify_minimum(const accrt_bundle_tables_t* tables, accx_header_t* out_versions) {
  out_versions->container = (accx_version_t){ACCX_CONTAINER_MAJOR, 1};
  out_versions->commands = (accx_version_t){ACCX_COMMANDS_MAJOR, 1};
  out_versions->kernel_abi = (accx_version_t){ACCRT_KERNEL_ABI_MAJOR, 1};
  out_versions->layouts = (accx_version_t){ACCX_LAYOUTS_MAJOR, 1};
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    const accx_section_kind_t* kind = accx_section_kind(tables->sections[i].type);
    if (kind == NULL)
      continue;
    const uint32_t form = accx_form_minor(kind, tables->sections[i].record_bytes);
    raise_minor(&out_versions->container, form > kind->since_minor ? form : kind->since_minor);
  }
  raise_for_layouts(tables, out_versions);
  const bool packs = uses_packs(tables);
  if (packs || uses_targets(tables))
    raise_minor(&out_versions->container, 2);
  if (packs || tables->launch_count != 0)
    raise_minor(&out_versions->kernel_abi, 2);
}

static accrt_status_t check_minimum_of(const accx_verifier_t* verifier, const char* what,
                                       accx_version_t stored, accx_version_t computed,
                                       uint16_t known_minor) {
  /* A newer minor is for something that was ignored here. */
  if (stored.minor == computed.minor || stored.minor > known_minor)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, MINIMUM, "header", ACCX_NONE, what,
                     "%u.%u is stored, %u.%u is the computed minimum", stored.major, stored.minor,
                     computed.major, computed.minor);
}

static accrt_status_t check_minimum(const accx_verifier_t* verifier) {
  const accx_header_t* header = &verifier->tables->header;
  accx_header_t computed;
  accx_verify_minimum(verifier->tables, &computed);
  if (verifier->bundle->out_minimum != NULL) {
    *verifier->bundle->out_minimum = computed;
    return ACCRT_OK;
  }
  ACCX_TRY(check_minimum_of(verifier, "container", header->container, computed.container,
                            ACCX_CONTAINER_MINOR));
  ACCX_TRY(check_minimum_of(verifier, "commands", header->commands, computed.commands,
                            ACCX_COMMANDS_MINOR));
  ACCX_TRY(check_minimum_of(verifier, "kernel_abi", header->kernel_abi, computed.kernel_abi,
                            ACCRT_KERNEL_ABI_MINOR));
  return check_minimum_of(verifier, "layouts", header->layouts, computed.layouts,
                          ACCX_LAYOUTS_MINOR);
}

/* ---- Scratch ---- */

static uint32_t set_capacity(const accrt_bundle_tables_t* tables) {
  uint32_t most = tables->function_count;
  if (most < ACCX_MAX_ARGUMENTS && tables->argument_count > most) {
    most =
        tables->argument_count < ACCX_MAX_ARGUMENTS ? tables->argument_count : ACCX_MAX_ARGUMENTS;
  }
  if (most < tables->adapter_count)
    most = tables->adapter_count;
  if (most < ACCRT_KERNEL_MAX_PARAMS)
    most = ACCRT_KERNEL_MAX_PARAMS;
  uint32_t capacity = 1;
  while (capacity < 2 * most)
    capacity *= 2;
  return capacity;
}

static accrt_status_t alloc_u32(const accx_verifier_t* verifier, uint32_t count, uint32_t** out) {
  void* pointer;
  ACCX_TRY(accrt_alloc_array(verifier->bundle->allocator, count, sizeof **out, &pointer));
  *out = pointer;
  return ACCRT_OK;
}

static accrt_status_t alloc_scratch(accx_verifier_t* verifier) {
  const accrt_allocator_t* allocator = verifier->bundle->allocator;
  const accrt_bundle_tables_t* tables = verifier->tables;
  void* pointer;
  ACCX_TRY(accrt_alloc_array(allocator, tables->expression_count, sizeof(uint16_t), &pointer));
  verifier->expression_uses = pointer;
  ACCX_TRY(accrt_alloc_array(allocator, tables->function_count, sizeof(accx_function_facts_t),
                             &pointer));
  verifier->facts = pointer;
  verifier->set_capacity = set_capacity(tables);
  verifier->set_epoch = 0;
  ACCX_TRY(alloc_u32(verifier, verifier->set_capacity, &verifier->set_keys));
  ACCX_TRY(alloc_u32(verifier, verifier->set_capacity, &verifier->set_epochs));
  ACCX_TRY(alloc_u32(verifier, verifier->set_capacity, &verifier->set_values));
  ACCX_TRY(alloc_u32(verifier, tables->symbol_count, &verifier->symbol_needed));
  ACCX_TRY(alloc_u32(verifier, tables->symbol_count, &verifier->symbol_bound));
  ACCX_TRY(alloc_u32(verifier, tables->symbol_count, &verifier->symbol_scalar));
  ACCX_TRY(alloc_u32(verifier, tables->constant_count, &verifier->prepared_by));
  ACCX_TRY(alloc_u32(verifier, tables->function_count, &verifier->bundle->function_command_count));
  ACCX_TRY(alloc_u32(verifier, tables->function_count, &verifier->bundle->function_first));
  ACCX_TRY(alloc_u32(verifier, tables->function_count, &verifier->bundle->function_next));
  return alloc_u32(verifier, tables->function_count, &verifier->bundle->named_functions);
}

static void free_scratch(accx_verifier_t* verifier) {
  const accrt_allocator_t* allocator = verifier->bundle->allocator;
  const accrt_bundle_tables_t* tables = verifier->tables;
  accrt_free_array(allocator, verifier->expression_uses, tables->expression_count,
                   sizeof(uint16_t));
  accrt_free_array(allocator, verifier->facts, tables->function_count,
                   sizeof(accx_function_facts_t));
  accrt_free_array(allocator, verifier->set_keys, verifier->set_capacity, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->set_epochs, verifier->set_capacity, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->set_values, verifier->set_capacity, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->symbol_needed, tables->symbol_count, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->symbol_bound, tables->symbol_count, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->symbol_scalar, tables->symbol_count, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->prepared_by, tables->constant_count, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->needed, verifier->needed_capacity, sizeof(uint32_t));
}

/* ---- The order ---- */

static accrt_status_t verify_records(accx_verifier_t* verifier) {
  ACCX_TRY(alloc_scratch(verifier));
  verifier->tables->function_command_count = verifier->bundle->function_command_count;
  verifier->tables->function_first = verifier->bundle->function_first;
  verifier->tables->function_next = verifier->bundle->function_next;
  verifier->tables->named_functions = verifier->bundle->named_functions;
  ACCX_TRY(accx_verify_strings(verifier));
  ACCX_TRY(accx_verify_symbols(verifier));
  ACCX_TRY(accx_verify_function_table(verifier));
  ACCX_TRY(accx_verify_scopes(verifier));
  ACCX_TRY(accx_verify_files(verifier));
  ACCX_TRY(accx_verify_constants(verifier));
  ACCX_TRY(accx_verify_shards(verifier));
  ACCX_TRY(accx_verify_states(verifier));
  ACCX_TRY(accx_verify_kernels(verifier));
  ACCX_TRY(accx_verify_blocks(verifier));
  ACCX_TRY(accx_verify_functions(verifier));
  ACCX_TRY(accx_verify_images(verifier));
  ACCX_TRY(accx_verify_adapters(verifier));
  ACCX_TRY(accx_verify_extras(verifier));
  ACCX_TRY(accx_verify_trust(verifier));
  return check_minimum(verifier);
}

accrt_status_t accx_verify(accrt_bundle_t* bundle) {
  accx_verifier_t verifier = {.bundle = bundle, .tables = &bundle->tables};
  accrt_status_t status = accx_verify_container(&verifier);
  if (status != ACCRT_OK)
    return status;
  status = verify_records(&verifier);
  free_scratch(&verifier);
  return status;
}
