/* write/writer_target.c - applies the abilities of a bundle's readers. It leaves out optional parts
 * that they do not know, and refuses other parts by name (docs/contract.md, "Writing for a
 * target"). */
#include "write/writer.h"

#include <stdio.h>

#define BIT(n) (UINT64_C(1) << (n))

static bool known(const writer_encoder_t* encoder, accx_numbers_t numbers, uint32_t number) {
  return number < 64 && (encoder->known[numbers] >> number & 1) != 0;
}

/* Such as "layout 16 (q8_0)". */
typedef struct number_text {
  char text[64];
} number_text_t;

static const char* text_of(accx_numbers_t numbers, uint32_t number, number_text_t* out) {
  static const char words[][21] = {"opcode",     "expression operation",
                                   "image kind", "section",
                                   "data type",  "layout",
                                   "file",       "function",
                                   "variant"};
  const char* name = accx_number_name(numbers, number);
  (void)snprintf(out->text, sizeof out->text,
                 name[0] != '\0' ? "%s%s %" PRIu32 " (%s)" : "%s%s %" PRIu32, words[numbers],
                 numbers >= ACCX_NUMBERS_FILE_FEATURE ? " feature bit" : "", number, name);
  return out->text;
}

accrt_status_t accx_writer_need(const writer_encoder_t* encoder, accx_numbers_t numbers,
                                uint32_t number) {
  if (!encoder->writer->has_target || known(encoder, numbers, number))
    return ACCRT_OK;
  number_text_t text;
  return WRITER_FAIL(encoder->writer, UNSUPPORTED, "the target does not know %s",
                     text_of(numbers, number, &text));
}

accrt_status_t accx_writer_need_type(const writer_encoder_t* encoder, uint32_t dtype,
                                     uint32_t encoding, uint32_t rank, uint32_t group_elements) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_LAYOUT, encoding));
  ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_DTYPE, dtype));
  if (!writer->has_target)
    return ACCRT_OK;
  if (rank > writer->target.max_rank)
    return WRITER_FAIL(writer, UNSUPPORTED,
                       "the target knows ranks up to %" PRIu32 ", not %" PRIu32,
                       writer->target.max_rank, rank);
  return group_elements == 0 ? ACCRT_OK
                             : accx_writer_need_container(encoder, 3, "group sizes of layouts");
}

accrt_status_t accx_writer_need_container(const writer_encoder_t* encoder, uint32_t minor,
                                          const char* what) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  if (!writer->has_target || writer->target.container_major != 0 ||
      writer->target.container_minor >= minor)
    return ACCRT_OK;
  return WRITER_FAIL(writer, UNSUPPORTED, "the target does not know %s (container 0.%" PRIu32 ")",
                     what, minor);
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

/* Reads all masks of the target, by the numbering of their bits. */
static void read_target(writer_encoder_t* encoder) {
  const accrt_caps_t* target = &encoder->writer->target;
  uint64_t* masks = encoder->known;
  masks[ACCX_NUMBERS_OPCODE] = target->command_mask;
  masks[ACCX_NUMBERS_OPERATION] =
      target->expression_mask != 0 ? target->expression_mask : BIT(ACCX_EXPR_PRESENT + 1) - 1;
  masks[ACCX_NUMBERS_IMAGE_KIND] =
      target->image_kind_mask != 0 ? target->image_kind_mask : accx_images_known(1);
  masks[ACCX_NUMBERS_SECTION] =
      target->section_mask != 0 ? target->section_mask : sections_of_minor(target->container_minor);
  if (target->container_major == 0) /* later containers are unknown to it, whatever the list says */
    masks[ACCX_NUMBERS_SECTION] &=
        ~(sections_of_minor(UINT32_MAX) & ~sections_of_minor(target->container_minor));
  masks[ACCX_NUMBERS_DTYPE] = target->dtype_mask;
  masks[ACCX_NUMBERS_LAYOUT] = target->encoding_mask;
  masks[ACCX_NUMBERS_FILE_FEATURE] = target->file_features;
  masks[ACCX_NUMBERS_FUNCTION_FEATURE] = target->function_features;
  masks[ACCX_NUMBERS_VARIANT_FEATURE] = target->variant_features;
}

/* ---- Leaving parts out ---- */

static void leave_out(writer_encoder_t* encoder, uint32_t kind, uint32_t index) {
  encoder->rank[kind][index] = WRITER_NO;
}

/* Leaves out locations that no command refers to. */
static void leave_out_unused_locations(writer_encoder_t* encoder, bool wanted) {
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

static void leave_out_sections(writer_encoder_t* encoder) {
  static const struct {
    uint8_t section, kind;
  } optional[] = {{ACCX_SECTION_ASSETS, WRITER_ASSET}, {ACCX_SECTION_ADAPTERS, WRITER_ADAPTER}};
  for (uint32_t i = 0; i < sizeof optional / sizeof *optional; ++i) {
    const uint32_t kind = optional[i].kind;
    for (uint32_t k = 0; k < encoder->writer->items[kind].count; ++k) {
      if (!known(encoder, ACCX_NUMBERS_SECTION, optional[i].section))
        leave_out(encoder, kind, k);
    }
  }
}

/* Marks of a constant's or kernel's users. They are stored in `order`, which is not in use yet. */
#define FOR_ANY_DRIVER 1u /* used by functions for any driver */
#define FOR_ONE_DRIVER 2u /* used by functions for one driver */

static uint32_t side_of(const accrt_bundle_writer_t* writer, uint32_t function) {
  return WRITER_ITEM(writer, function, WRITER_FUNCTION, function)->record.target == 0
             ? FOR_ANY_DRIVER
             : FOR_ONE_DRIVER;
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

/* True for a function that only serves functions for one driver: an internal one, or a prepare
 * function for constants that only they read. */
static bool serves_one_driver(const writer_encoder_t* encoder, const writer_function_t* function) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  if (function->record.flags != ACCX_FUNCTION_PREPARE)
    return function->record.flags == ACCX_FUNCTION_INTERNAL;
  const writer_argument_t* result;
  for (uint32_t at = function->first_result; at != WRITER_NO; at = result->next) {
    result = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, at);
    if ((encoder->order[WRITER_CONSTANT][WRITER_INDEX(result->record.constant)] & FOR_ANY_DRIVER) !=
        0)
      return false;
  }
  return true;
}

/* Leaves out shards of constants that are left out. */
static void leave_out_shards(writer_encoder_t* encoder) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  for (uint32_t i = 0; i < writer->items[WRITER_SHARD].count; ++i) {
    const writer_shard_t* item = WRITER_ITEM(writer, shard, WRITER_SHARD, i);
    if (encoder->rank[WRITER_CONSTANT][WRITER_INDEX(item->record.constant)] == WRITER_NO)
      leave_out(encoder, WRITER_SHARD, i);
  }
}

/* Leaves out versions of a function for one driver if there is one for any driver, and what only
 * those use. Other features of functions cannot be left out. */
static accrt_status_t leave_out_functions(writer_encoder_t* encoder) {
  static const uint8_t touched[] = {WRITER_CONSTANT, WRITER_KERNEL};
  accrt_bundle_writer_t* writer = encoder->writer;
  note_uses(encoder);
  bool any_left_out = false;
  for (uint32_t i = 0; i < writer->items[WRITER_FUNCTION].count; ++i) {
    const writer_function_t* item = WRITER_ITEM(writer, function, WRITER_FUNCTION, i);
    const writer_key_t any = {.kind = WRITER_FUNCTION, .a = item->record.name};
    const uint64_t missing =
        item->record.required_features & ~encoder->known[ACCX_NUMBERS_FUNCTION_FEATURE];
    const bool target = (missing & ACCX_FEATURE_FUNCTION_TARGET) != 0;
    if (missing == 0)
      continue;
    if (!target ||
        (accx_writer_find(writer, &any) == WRITER_NO && !serves_one_driver(encoder, item))) {
      number_text_t text;
      writer->where.function = i;
      return WRITER_FAIL(
          writer, UNSUPPORTED, "the target does not know %s%s",
          text_of(ACCX_NUMBERS_FUNCTION_FEATURE, (uint32_t)__builtin_ctzll(missing), &text),
          target ? ", and there is no version without" : "");
    }
    leave_out(encoder, WRITER_FUNCTION, i);
    any_left_out = true;
  }
  for (uint32_t k = 0; any_left_out && k < sizeof touched; ++k) {
    for (uint32_t i = 0; i < writer->items[touched[k]].count; ++i) {
      if (encoder->order[touched[k]][i] == FOR_ONE_DRIVER)
        leave_out(encoder, touched[k], i);
    }
  }
  leave_out_shards(encoder);
  return ACCRT_OK;
}

/* Returns what the target lacks for a variant; NULL when nothing. */
static const char* variant_problem(const writer_encoder_t* encoder, const writer_variant_t* item,
                                   number_text_t* text) {
  const accrt_caps_t* target = &encoder->writer->target;
  const uint32_t image = WRITER_INDEX(item->record.image);
  const uint32_t kind = WRITER_ITEM(encoder->writer, image, WRITER_IMAGE, image)->record.kind;
  const uint64_t missing =
      item->record.required_features & ~encoder->known[ACCX_NUMBERS_VARIANT_FEATURE];
  if (missing != 0)
    return text_of(ACCX_NUMBERS_VARIANT_FEATURE, (uint32_t)__builtin_ctzll(missing), text);
  if (!known(encoder, ACCX_NUMBERS_IMAGE_KIND, kind))
    return text_of(ACCX_NUMBERS_IMAGE_KIND, kind, text);
  if (item->has_launch && !known(encoder, ACCX_NUMBERS_SECTION, ACCX_SECTION_LAUNCHES))
    return text_of(ACCX_NUMBERS_SECTION, ACCX_SECTION_LAUNCHES, text);
  if ((item->has_launch || kind == ACCX_IMAGE_PACK) && target->kernel_abi_major == 0 &&
      target->kernel_abi_minor < 2)
    return item->has_launch ? "launches (kernel ABI 0.2)" : "kernel packs (kernel ABI 0.2)";
  if (item->record.arch_kind == ACCX_ARCH_PORTABLE && item->record.arch != 0 &&
      target->container_major == 0 && target->container_minor < 2)
    return "portable variants with an architecture (container 0.2)";
  return NULL;
}

/* Leaves out variants if the kernel has another one, and images that only such variants, or kernels
 * that are left out, use. */
static accrt_status_t leave_out_variants(writer_encoder_t* encoder) {
  accrt_bundle_writer_t* writer = encoder->writer;
  number_text_t texts[2]; /* of the first problem, and of another one */
  for (uint32_t i = 0; i < writer->items[WRITER_KERNEL].count; ++i) {
    const writer_kernel_t* kernel = WRITER_ITEM(writer, kernel, WRITER_KERNEL, i);
    const bool gone = encoder->rank[WRITER_KERNEL][i] == WRITER_NO;
    const char* first = NULL;
    uint32_t kept = 0;
    const writer_variant_t* item;
    for (uint32_t at = kernel->first_variant; at != WRITER_NO; at = item->next) {
      item = WRITER_ITEM(writer, variant, WRITER_VARIANT, at);
      const char* problem = gone ? "" : variant_problem(encoder, item, &texts[first != NULL]);
      leave_out(encoder, WRITER_IMAGE, WRITER_INDEX(item->record.image));
      kept += problem == NULL;
      first = first != NULL ? first : problem;
      if (problem != NULL)
        leave_out(encoder, WRITER_VARIANT, at);
    }
    if (kept != 0 || first == NULL || gone)
      continue;
    accx_writer_at(writer, WRITER_KERNEL, kernel->record.name);
    return WRITER_FAIL(writer, UNSUPPORTED,
                       "the target does not know %s, and there is no variant without", first);
  }
  for (uint32_t i = 0; i < writer->items[WRITER_VARIANT].count; ++i) {
    const uint32_t image = WRITER_ITEM(writer, variant, WRITER_VARIANT, i)->record.image;
    if (encoder->rank[WRITER_VARIANT][i] != WRITER_NO)
      encoder->rank[WRITER_IMAGE][WRITER_INDEX(image)] = 0;
  }
  return ACCRT_OK;
}

accrt_status_t accx_writer_fit(writer_encoder_t* encoder) {
  const bool any = !encoder->writer->has_target;
  if (!any) {
    read_target(encoder);
    ACCRT_TRY(leave_out_functions(encoder));
    ACCRT_TRY(leave_out_variants(encoder));
    leave_out_sections(encoder);
  }
  leave_out_unused_locations(encoder,
                             any || known(encoder, ACCX_NUMBERS_SECTION, ACCX_SECTION_LOCATIONS));
  return ACCRT_OK;
}

/* ---- Required abilities ---- */

/* Makes the purpose of a section the subject of messages. */
static void at_section(const writer_encoder_t* encoder, uint32_t type) {
  accrt_bundle_writer_t* writer = encoder->writer;
  if (type == ACCX_SECTION_FILES) {
    const accx_file_t* file = accx_writer_item(writer, WRITER_FILE, encoder->order[WRITER_FILE][0]);
    accx_writer_at(writer, WRITER_FILE, file->name);
  }
  if (type == ACCX_SECTION_SHARDS) {
    const writer_shard_t* shard =
        WRITER_ITEM(writer, shard, WRITER_SHARD, encoder->order[WRITER_SHARD][0]);
    const uint32_t constant = WRITER_INDEX(shard->record.constant);
    accx_writer_at(writer, WRITER_SHARD,
                   WRITER_ITEM(writer, constant, WRITER_CONSTANT, constant)->record.name);
  }
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
  const accrt_caps_t* target = &encoder->writer->target;
  const accx_header_t* header = &encoder->header;
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    const accx_section_t* section = &encoder->parts[i].section;
    if ((section->flags & ACCX_SECTION_FLAG_REQUIRED) == 0)
      continue;
    at_section(encoder, section->type);
    ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_SECTION, section->type));
    accx_writer_at(encoder->writer, WRITER_NONE, 0);
  }
  for (uint32_t bit = 0; bit < 64; ++bit) {
    if ((header->required_features >> bit & 1) != 0)
      ACCRT_TRY(accx_writer_need(encoder, ACCX_NUMBERS_FILE_FEATURE, bit));
  }
  ACCRT_TRY(check_version(encoder, "container", header->container, target->container_major,
                          target->container_minor));
  ACCRT_TRY(check_version(encoder, "command set", header->commands, target->commands_major,
                          target->commands_minor));
  ACCRT_TRY(check_version(encoder, "kernel ABI", header->kernel_abi, target->kernel_abi_major,
                          target->kernel_abi_minor));
  return check_version(encoder, "layouts", header->layouts, target->layouts_major,
                       target->layouts_minor);
}
