/* loader/verify.c - the order of the checks, their scratch memory, their messages, and the computed
 * minimum versions. */
#include "format/layout.h"
#include "loader/internal.h"
#include "loader/upgrade.h"

#include <stdio.h>

#define MAX_DETAIL_BYTES 400
#define ACCX_BYTES_PER_STEP 16u /* bytes of tables */

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

accrt_status_t accx_reject(const accx_verifier_t* verifier, accrt_error_place_t place,
                           const char* section, uint32_t index, const char* field,
                           const char* format, ...) {
  const uint32_t rule = accrt_place_status(place);
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
  /* After rule 7 the file is known to be undamaged. Content that this library does not know may
   * then be valid in a newer version. */
  if (verifier->newer && status == ACCRT_ERROR_INVALID_FORMAT && rule > ACCX_RULE_FILE_FEATURES) {
    status = ACCRT_ERROR_VERSION_MISMATCH;
    newer = "; the file needs a newer version than this library reads";
  }
  return accrt_error_fail(accrt_place_with(place, status),
                          "%.80s: %.16s%s%s%s: %s (rule %" PRIu32 ")%s", verifier->bundle->name,
                          section, record, field != NULL ? "." : "", field != NULL ? field : "",
                          detail, rule, newer);
}

/* ---- Computed minimum version ---- */

static void raise_minor(accx_version_t* version, uint32_t minor) {
  if (minor > version->minor)
    version->minor = (uint16_t)minor;
}

static void raise_for_layout(uint32_t encoding, uint32_t group_elements,
                             accx_header_t* out_versions) {
  const accx_layout_t* layout = accx_layout_find(encoding);
  if (layout != NULL)
    raise_minor(&out_versions->layouts, layout->since_minor);
  if (group_elements != 0)
    raise_minor(&out_versions->container, 3);
}

/* States always have the layout PLAIN. */
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

/* The container's minor version that brought each kind of image. */
static void raise_for_images(const accrt_bundle_tables_t* tables, accx_header_t* out_versions) {
  static const uint8_t since[] = {
      0,
#define DEF_IMAGE(number, name, word, shown, device, since, ...) since,
#include "format/format.def"
  };
  for (uint32_t i = 0; i < tables->image_count; ++i)
    raise_minor(&out_versions->container, since[tables->images[i].kind]);
}

static bool uses_packs(const accrt_bundle_tables_t* tables) {
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    if (tables->images[i].kind == ACCX_IMAGE_PACK)
      return true;
  }
  return false;
}

/* True for function targets, and for portable variants that name the lowest architecture. */
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

/* Raises the version for features that came after its first minor. */
static void find_minimum(const accx_verifier_t* verifier, accx_header_t* out_versions) {
  const accrt_bundle_tables_t* tables = verifier->tables;
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
  raise_minor(&out_versions->commands, verifier->commands_minor);
  raise_for_images(tables, out_versions);
  const bool packs = uses_packs(tables);
  if (uses_targets(tables))
    raise_minor(&out_versions->container, 2);
  if (packs || tables->launch_count != 0)
    raise_minor(&out_versions->kernel_abi, 2);
}

static accrt_status_t check_minimum_of(const accx_verifier_t* verifier, const char* what,
                                       accx_version_t stored, accx_version_t computed,
                                       uint16_t known_minor) {
  /* A newer minor may be for content that this library ignored. */
  if (stored.minor == computed.minor || stored.minor > known_minor)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, MINIMUM, "header", ACCX_NONE, what,
                     "%u.%u is stored, %u.%u is the computed minimum", stored.major, stored.minor,
                     computed.major, computed.minor);
}

static accrt_status_t check_minimum(const accx_verifier_t* verifier) {
  const accx_header_t* header = &verifier->tables->header;
  accx_header_t computed;
  find_minimum(verifier, &computed);
  if (verifier->bundle->out_minimum != NULL) {
    *verifier->bundle->out_minimum = computed;
    return ACCRT_OK;
  }
  ACCRT_TRY(check_minimum_of(verifier, "container", header->container, computed.container,
                             ACCX_CONTAINER_MINOR));
  ACCRT_TRY(check_minimum_of(verifier, "commands", header->commands, computed.commands,
                             ACCX_COMMANDS_MINOR));
  ACCRT_TRY(check_minimum_of(verifier, "kernel_abi", header->kernel_abi, computed.kernel_abi,
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
  ACCRT_TRY(ACCRT_NEW_ARRAY(verifier->bundle->allocator, count, &*out));
  return ACCRT_OK;
}

static accrt_status_t alloc_scratch(accx_verifier_t* verifier) {
  const accrt_allocator_t* allocator = verifier->bundle->allocator;
  const accrt_bundle_tables_t* tables = verifier->tables;
  void* pointer;
  ACCRT_TRY(accrt_alloc_array(allocator, tables->expression_count, sizeof(uint16_t), &pointer));
  verifier->expression_uses = pointer;
  ACCRT_TRY(accrt_alloc_array(allocator, tables->function_count, sizeof(accx_function_facts_t),
                              &pointer));
  verifier->facts = pointer;
  verifier->set_capacity = set_capacity(tables);
  verifier->set_epoch = 0;
  verifier->set_seed = accrt_hash_seed();
  ACCRT_TRY(alloc_u32(verifier, verifier->set_capacity, &verifier->set_keys));
  ACCRT_TRY(alloc_u32(verifier, verifier->set_capacity, &verifier->set_epochs));
  ACCRT_TRY(alloc_u32(verifier, verifier->set_capacity, &verifier->set_values));
  ACCRT_TRY(alloc_u32(verifier, tables->symbol_count, &verifier->symbol_needed));
  ACCRT_TRY(alloc_u32(verifier, tables->symbol_count, &verifier->symbol_bound));
  ACCRT_TRY(alloc_u32(verifier, tables->symbol_count, &verifier->symbol_scalar));
  ACCRT_TRY(alloc_u32(verifier, tables->constant_count, &verifier->prepared_by));
  ACCRT_TRY(alloc_u32(verifier, tables->function_count, &verifier->merged));
  ACCRT_TRY(alloc_u32(verifier, tables->function_count, &verifier->bundle->function_command_count));
  ACCRT_TRY(alloc_u32(verifier, tables->function_count, &verifier->bundle->function_first));
  ACCRT_TRY(alloc_u32(verifier, tables->function_count, &verifier->bundle->function_next));
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
  accrt_free_array(allocator, verifier->merged, tables->function_count, sizeof(uint32_t));
  accrt_free_array(allocator, verifier->needed, verifier->needed_capacity, sizeof(uint32_t));
}

/* ---- The order ---- */

/* Size of the tables. Each of their bytes is read a few times. */
static uint64_t table_bytes(const accx_verifier_t* verifier) {
  return verifier->bundle->metadata_size_bytes;
}

/* Names the part of the file that is checked, for the message of an exhausted budget. Long loops
 * charge steps themselves. */
#define PART(name, call)                                                                           \
  do {                                                                                             \
    accrt_meter_at(name);                                                                          \
    ACCRT_TRY(accrt_checkpoint());                                                                 \
    ACCRT_TRY(call);                                                                               \
  } while (0)

static accrt_status_t verify_records(accx_verifier_t* verifier) {
  ACCRT_TRY(alloc_scratch(verifier));
  ACCRT_TRY(accrt_charge(table_bytes(verifier) / ACCX_BYTES_PER_STEP));
  verifier->tables->function_command_count = verifier->bundle->function_command_count;
  verifier->tables->function_first = verifier->bundle->function_first;
  verifier->tables->function_next = verifier->bundle->function_next;
  verifier->tables->named_functions = verifier->bundle->named_functions;
  PART("strings", accx_verify_strings(verifier));
  PART("symbols", accx_verify_symbols(verifier));
  PART("functions", accx_verify_function_table(verifier));
  PART("expressions", accx_verify_scopes(verifier));
  PART("files", accx_verify_files(verifier));
  PART("constants", accx_verify_constants(verifier));
  PART("shards", accx_verify_shards(verifier));
  PART("states", accx_verify_states(verifier));
  PART("kernels", accx_verify_kernels(verifier));
  PART("blocks", accx_verify_blocks(verifier));
  PART("functions and commands", accx_verify_functions(verifier));
  PART("images", accx_verify_images(verifier));
  PART("adapters", accx_verify_adapters(verifier));
  PART("assets and locations", accx_verify_extras(verifier));
  PART("signatures", accx_verify_trust(verifier));
  return check_minimum(verifier);
}

accrt_status_t accx_verify(accrt_bundle_t* bundle) {
  accx_verifier_t verifier = {.bundle = bundle, .tables = &bundle->tables};
  accrt_meter_at("header and sections");
  ACCRT_TRY(accx_verify_container(&verifier));
  accrt_status_t status = verify_records(&verifier);
  free_scratch(&verifier);
  return status;
}
