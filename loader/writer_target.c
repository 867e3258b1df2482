/* loader/writer_target.c - what the readers that a bundle is for can do: leaving out what they can do without, refusing by name what
 * they cannot (docs/contract.md, "Writing for a target"). Python's accrt/bundle_writer/target.py does the same. */
#include "loader/writer.h"

#include "accrt/tensor.h"

#define BIT(n) (UINT64_C(1) << (n))
/* Masks that readers before them did not tell. */
#define FIRST_IMAGE_KINDS                                                                          \
  (BIT(ACCX_IMAGE_HOST_ELF) | BIT(ACCX_IMAGE_CUBIN) | BIT(ACCX_IMAGE_PTX) | BIT(ACCX_IMAGE_FATBIN))

static bool known(uint64_t mask, uint32_t number) {
  return number < 64 && (mask >> number & 1) != 0;
}

static uint64_t sections_of_minor(uint32_t minor) {
  uint64_t mask = 0;
  for (uint32_t type = 1; type < ACCX_MAX_SECTIONS; ++type) {
    const accx_section_kind_t* kind = accx_section_kind(type);
    if (kind != NULL && kind->since_minor <= (minor > 1 ? minor : 1))
      mask |= BIT(type);
  }
  return mask;
}

/* The target with every mask told. */
static accrt_caps_t target_of(const accrt_bundle_writer_t* writer) {
  accrt_caps_t target = writer->target;
  if (target.section_mask == 0)
    target.section_mask = sections_of_minor(target.container_minor);
  if (target.expression_mask == 0)
    target.expression_mask = BIT(ACCX_EXPR_PRESENT + 1) - 1;
  if (target.image_kind_mask == 0)
    target.image_kind_mask = FIRST_IMAGE_KINDS;
  return target;
}

/* ---- What is left out ---- */

static void leave_out(writer_encoder_t* encoder, uint32_t kind, uint32_t index) {
  encoder->rank[kind][index] = WRITER_NO;
}

/* Places that no command names are not in the file. */
static void keep_used_locations(writer_encoder_t* encoder, bool wanted) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  for (uint32_t i = 0; i < writer->items[WRITER_LOCATION].count; ++i)
    leave_out(encoder, WRITER_LOCATION, i);
  for (uint32_t i = 0; wanted && i < writer->items[WRITER_COMMAND].count; ++i) {
    const writer_command_t* command = WRITER_ITEM(writer, command, WRITER_COMMAND, i);
    const uint32_t function = WRITER_ITEM(writer, block, WRITER_BLOCK, command->block)->function;
    if (command->header.location != 0 && encoder->rank[WRITER_FUNCTION][function] != WRITER_NO)
      encoder->rank[WRITER_LOCATION][WRITER_INDEX(command->header.location)] = 0;
  }
}

static void leave_out_sections(writer_encoder_t* encoder, const accrt_caps_t* target) {
  static const struct {
    uint8_t section, kind;
  } optional[] = {{ACCX_SECTION_ASSETS, WRITER_ASSET}, {ACCX_SECTION_ADAPTERS, WRITER_ADAPTER}};
  for (uint32_t i = 0; i < sizeof optional / sizeof *optional; ++i) {
    const uint32_t kind = optional[i].kind;
    for (uint32_t k = 0; k < encoder->writer->items[kind].count; ++k) {
      if (!known(target->section_mask, optional[i].section))
        leave_out(encoder, kind, k);
    }
  }
}

/* Who touches a constant or a kernel: noted in the orders, which are not made yet. */
#define KEPT 1u /* functions for any driver */
#define GONE 2u /* functions for one */

static uint32_t side_of(const accrt_bundle_writer_t* writer, uint32_t function) {
  return WRITER_ITEM(writer, function, WRITER_FUNCTION, function)->record.target == 0 ? KEPT : GONE;
}

static void note_uses(writer_encoder_t* encoder) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  uint32_t* constants = encoder->order[WRITER_CONSTANT];
  for (uint32_t i = 0; i < writer->items[WRITER_ARGUMENT].count; ++i) {
    const writer_argument_t* item = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, i);
    if (item->record.constant != 0)
      constants[WRITER_INDEX(item->record.constant)] |= side_of(writer, item->function);
  }
  for (uint32_t i = 0; i < writer->items[WRITER_SLOT].count; ++i) {
    const writer_slot_t* item = WRITER_ITEM(writer, slot, WRITER_SLOT, i);
    if (item->used && item->kind == ACCX_SLOT_CONSTANT)
      constants[WRITER_INDEX(item->target)] |= side_of(writer, item->function);
  }
  for (uint32_t i = 0; i < writer->items[WRITER_COMMAND].count; ++i) {
    const writer_command_t* item = WRITER_ITEM(writer, command, WRITER_COMMAND, i);
    const uint32_t function = WRITER_ITEM(writer, block, WRITER_BLOCK, item->block)->function;
    if (item->header.opcode == ACCX_COMMAND_DISPATCH)
      encoder->order[WRITER_KERNEL][WRITER_INDEX(((const accx_dispatch_t*)item->body)->kernel)] |=
          side_of(writer, function);
  }
}

/* A function for one driver that others for one driver alone have use for: an internal one, or one that prepares what only they read. */
static bool only_helps(const writer_encoder_t* encoder, const writer_function_t* function) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  if (function->record.flags != ACCX_FUNCTION_PREPARE)
    return function->record.flags == ACCX_FUNCTION_INTERNAL;
  const writer_argument_t* result;
  for (uint32_t at = function->first_result; at != WRITER_NO; at = result->next) {
    result = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, at);
    if ((encoder->order[WRITER_CONSTANT][WRITER_INDEX(result->record.constant)] & KEPT) != 0)
      return false;
  }
  return true;
}

/* Versions of a function for one driver, where there is one for any; and what only those touch. */
static accrt_status_t leave_out_functions(writer_encoder_t* encoder, const accrt_caps_t* target) {
  static const uint8_t touched[] = {WRITER_CONSTANT, WRITER_KERNEL};
  accrt_bundle_writer_t* writer = encoder->writer;
  if ((target->function_features & ACCX_FEATURE_FUNCTION_TARGET) != 0)
    return ACCRT_OK;
  note_uses(encoder);
  for (uint32_t i = 0; i < writer->items[WRITER_FUNCTION].count; ++i) {
    const writer_function_t* item = WRITER_ITEM(writer, function, WRITER_FUNCTION, i);
    const writer_key_t any = {.kind = WRITER_FUNCTION, .a = item->record.name};
    if (item->record.target == 0)
      continue;
    writer->where.function = i;
    if (accx_writer_find(writer, &any) == WRITER_NO && !only_helps(encoder, item))
      return WRITER_FAIL(writer, UNSUPPORTED,
                         "the target does not know function targets (function feature bit 0), and "
                         "there is no version without one");
    writer->where.function = WRITER_NO;
    leave_out(encoder, WRITER_FUNCTION, i);
  }
  for (uint32_t k = 0; k < sizeof touched; ++k) {
    for (uint32_t i = 0; i < writer->items[touched[k]].count; ++i) {
      if (encoder->order[touched[k]][i] == GONE)
        leave_out(encoder, touched[k], i);
    }
  }
  return ACCRT_OK;
}

/* What of a variant the target cannot do; NULL when nothing. */
static const char* variant_problem(const accrt_bundle_writer_t* writer,
                                   const writer_variant_t* item, const accrt_caps_t* target) {
  const uint32_t image = WRITER_INDEX(item->record.image);
  const uint32_t kind = WRITER_ITEM(writer, image, WRITER_IMAGE, image)->record.kind;
  if (!known(target->image_kind_mask, kind))
    return kind == ACCX_IMAGE_PACK ? "kernel packs outside the bundle" : "images of its kind";
  if (item->has_launch && !known(target->section_mask, ACCX_SECTION_LAUNCHES))
    return "launch records (container 0.2)";
  if (kind == ACCX_IMAGE_PACK && target->kernel_abi_minor < 2)
    return "kernel packs outside the bundle (kernel ABI 0.2)";
  if (item->record.arch_kind == ACCX_ARCH_PORTABLE && item->record.arch != 0 &&
      target->container_minor < 2)
    return "portable variants with an architecture (container 0.2)";
  return NULL;
}

/* Variants, where the kernel keeps another; images that only those had, or kernels that are gone, go with them. */
static accrt_status_t leave_out_variants(writer_encoder_t* encoder, const accrt_caps_t* target) {
  accrt_bundle_writer_t* writer = encoder->writer;
  for (uint32_t i = 0; i < writer->items[WRITER_KERNEL].count; ++i) {
    const writer_kernel_t* kernel = WRITER_ITEM(writer, kernel, WRITER_KERNEL, i);
    const bool gone = encoder->rank[WRITER_KERNEL][i] == WRITER_NO;
    const char* first = NULL;
    uint32_t kept = 0;
    const writer_variant_t* item;
    for (uint32_t at = kernel->first_variant; at != WRITER_NO; at = item->next) {
      item = WRITER_ITEM(writer, variant, WRITER_VARIANT, at);
      const char* problem = gone ? "" : variant_problem(writer, item, target);
      leave_out(encoder, WRITER_IMAGE, WRITER_INDEX(item->record.image));
      kept += problem == NULL;
      first = first != NULL ? first : problem;
      if (problem != NULL)
        leave_out(encoder, WRITER_VARIANT, at);
    }
    if (kept == 0 && first != NULL && !gone)
      return WRITER_FAIL(writer, UNSUPPORTED,
                         "the target does not know %s, and kernel '%.64s' has no variant without",
                         first, accx_writer_text(writer, kernel->record.name));
  }
  for (uint32_t i = 0; i < writer->items[WRITER_VARIANT].count; ++i) {
    const uint32_t image = WRITER_ITEM(writer, variant, WRITER_VARIANT, i)->record.image;
    if (encoder->rank[WRITER_VARIANT][i] != WRITER_NO)
      encoder->rank[WRITER_IMAGE][WRITER_INDEX(image)] = 0;
  }
  return ACCRT_OK;
}

accrt_status_t accx_writer_fit(writer_encoder_t* encoder) {
  const accrt_caps_t target = target_of(encoder->writer);
  const bool any = !encoder->writer->has_target;
  if (!any) {
    ACCX_TRY(leave_out_functions(encoder, &target));
    ACCX_TRY(leave_out_variants(encoder, &target));
    leave_out_sections(encoder, &target);
  }
  keep_used_locations(encoder, any || known(target.section_mask, ACCX_SECTION_LOCATIONS));
  return ACCRT_OK;
}

/* ---- What must be there ---- */

/* Numbers in records that a mask of the target has to know; the record's name is its first field. */
enum { MASK_DTYPE, MASK_ENCODING, MASK_RANK, MASK_OPERATION, MASK_COUNT };
static const struct {
  uint8_t section, offset, mask, named;
} numbers[] = {
    {ACCX_SECTION_ARGUMENTS, offsetof(accx_argument_t, type) + offsetof(accx_type_t, encoding),
     MASK_ENCODING, 1},
    {ACCX_SECTION_ARGUMENTS, offsetof(accx_argument_t, type), MASK_DTYPE, 1},
    {ACCX_SECTION_CONSTANTS, offsetof(accx_constant_t, encoding), MASK_ENCODING, 1},
    {ACCX_SECTION_CONSTANTS, offsetof(accx_constant_t, dtype), MASK_DTYPE, 1},
    {ACCX_SECTION_COMPONENTS, offsetof(accx_component_t, dtype), MASK_DTYPE, 0},
    {ACCX_SECTION_STATES, offsetof(accx_state_t, type), MASK_DTYPE, 1},
    {ACCX_SECTION_ARGUMENTS, offsetof(accx_argument_t, type) + offsetof(accx_type_t, rank),
     MASK_RANK, 1},
    {ACCX_SECTION_CONSTANTS, offsetof(accx_constant_t, rank), MASK_RANK, 1},
    {ACCX_SECTION_STATES, offsetof(accx_state_t, type) + offsetof(accx_type_t, rank), MASK_RANK, 1},
    {ACCX_SECTION_EXPRESSIONS, offsetof(accx_expression_t, op), MASK_OPERATION, 0},
};

static accrt_status_t refuse(const writer_encoder_t* encoder, const char* what, uint32_t number,
                             const char* section, const char* name) {
  return WRITER_FAIL(encoder->writer, UNSUPPORTED,
                     "the target does not know %s %" PRIu32 ", which %s%s%.64s needs", what, number,
                     section, name[0] != '\0' ? " " : "", name);
}

static accrt_status_t check_numbers(const writer_encoder_t* encoder, const accrt_caps_t* target) {
  static const char* const names[] = {"data type", "encoding", "rank", "operation of expressions"};
  const uint64_t masks[MASK_COUNT] = {target->dtype_mask, target->encoding_mask,
                                      (BIT(target->max_rank % 32 + 1)) - 1,
                                      target->expression_mask};
  for (uint32_t n = 0; n < sizeof numbers / sizeof *numbers; ++n) {
    const writer_items_t* items = &encoder->sections[numbers[n].section];
    for (uint32_t i = 0; i < items->count; ++i) {
      uint32_t words[2]; /* the number, and the offset of the record's name */
      const unsigned char* record = items->data + (size_t)i * items->item_bytes;
      memcpy(&words[0], record + numbers[n].offset, 4);
      memcpy(&words[1], record, 4);
      if (known(masks[numbers[n].mask], words[0]))
        continue;
      const char* strings = (const char*)encoder->sections[ACCX_SECTION_STRINGS].data;
      return refuse(encoder, names[numbers[n].mask], words[0],
                    accx_section_kind(numbers[n].section)->name,
                    numbers[n].named != 0 ? strings + words[1] : "");
    }
  }
  return ACCRT_OK;
}

static accrt_status_t check_commands(const writer_encoder_t* encoder, const accrt_caps_t* target) {
  const writer_items_t* stream = &encoder->sections[ACCX_SECTION_COMMANDS];
  const char* strings = (const char*)encoder->sections[ACCX_SECTION_STRINGS].data;
  accx_command_t header;
  for (uint32_t at = 0; at < stream->count; at += header.size_bytes) {
    memcpy(&header, stream->data + at, sizeof header);
    if (header.opcode < ACCX_COMMAND_MARKER && !known(target->command_mask, header.opcode))
      return refuse(encoder, "opcode", header.opcode, "command", strings + header.name);
  }
  return ACCRT_OK;
}

static accrt_status_t check_version(const writer_encoder_t* encoder, const char* what,
                                    accx_version_t needed, uint32_t major, uint32_t minor) {
  if (needed.major == major && needed.minor <= minor)
    return ACCRT_OK;
  return WRITER_FAIL(encoder->writer, UNSUPPORTED,
                     "the bundle needs %s %u.%u, the target reads %" PRIu32 ".%" PRIu32, what,
                     needed.major, needed.minor, major, minor);
}

accrt_status_t accx_writer_check_target(const writer_encoder_t* encoder) {
  if (!encoder->writer->has_target)
    return ACCRT_OK;
  const accrt_caps_t target = target_of(encoder->writer);
  const accx_header_t* header = &encoder->header;
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    const accx_section_t* section = &encoder->parts[i].section;
    if ((section->flags & ACCX_SECTION_FLAG_REQUIRED) != 0 &&
        !known(target.section_mask, section->type))
      return refuse(encoder, "section", section->type, "the bundle: its", section->name);
  }
  ACCX_TRY(check_numbers(encoder, &target));
  ACCX_TRY(check_commands(encoder, &target));
  if ((header->required_features & ~target.file_features) != 0)
    return WRITER_FAIL(encoder->writer, UNSUPPORTED,
                       "the target does not know file features 0x%" PRIx64,
                       header->required_features & ~target.file_features);
  ACCX_TRY(check_version(encoder, "container", header->container, target.container_major,
                         target.container_minor));
  ACCX_TRY(check_version(encoder, "command set", header->commands, target.commands_major,
                         target.commands_minor));
  ACCX_TRY(check_version(encoder, "kernel ABI", header->kernel_abi, target.kernel_abi_major,
                         target.kernel_abi_minor));
  return check_version(encoder, "layouts", header->layouts, target.layouts_major,
                       target.layouts_minor);
}
