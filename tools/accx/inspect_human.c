/* tools/accx/inspect_human.c - `accx inspect` for people. It ignores failures to get a record,
 * because an opened bundle has all records. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/layout.h"
#include "inspect.h"
#include "names.h"
#include "signature.h"
#include "term.h"

#define ACCX_ARCH_KIND_PORTABLE 0u /* these two as in accrt/bundle.h */
#define ACCX_IMAGE_KIND_PACK 5u
#define MOST_VARIANTS 12u /* of one kernel in one line; JSON has all */

static void print_versions(const accx_inspection_t* in) {
  const accrt_bundle_info_t* info = &in->info;
  accx_heading("%s", accx_safe(info->name));
  fprintf(accx_out, "  %s in %u sections; weights %s\n", accx_bytes(info->size_bytes).text,
          info->section_count, accx_bytes(info->data_size_bytes).text);
  fprintf(
      accx_out,
      "  needs container %u.%u, command set %u.%u, kernel ABI %u.%u, layouts %u.%u; features: %s\n",
      info->container_major, info->container_minor, info->commands_major, info->commands_minor,
      info->kernel_abi_major, info->kernel_abi_minor, info->layouts_major, info->layouts_minor,
      accx_bits_text(&accx_file_feature_bits, info->required_features, ", ", "none"));
}

static void print_metadata(const accx_inspection_t* in) {
  if (in->info.metadata_count == 0)
    return;
  accx_heading("Metadata");
  accx_table_t* table = accx_table_create(2);
  for (uint32_t i = 0; i < in->info.metadata_count; ++i) {
    const char *key = NULL, *value = NULL;
    if (accrt_bundle_metadata(in->bundle, i, &key, &value) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", key);
    accx_table_cell(table, ACCX_PLAIN, "%.300s%s", value, strlen(value) > 300 ? "..." : "");
  }
  accx_table_print(table);
}

static void print_sections(const accx_inspection_t* in) {
  accx_heading("Sections");
  accx_table_t* table = accx_table_create(5);
  static const char* const titles[] = {"name", "offset", "size", "records", ""};
  for (size_t i = 0; i < 5; ++i)
    accx_table_cell(table, ACCX_DIM, "%s", titles[i]);
  for (size_t column = 1; column < 4; ++column)
    accx_table_align_right(table, column);
  for (uint32_t i = 0; i < in->info.section_count; ++i) {
    accrt_section_info_t section = ACCRT_SECTION_INFO_INIT;
    if (accrt_bundle_section(in->bundle, i, &section) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", section.name);
    accx_table_cell(table, ACCX_PLAIN, "%" PRIu64, section.offset);
    accx_table_cell(table, ACCX_PLAIN, "%s", accx_bytes(section.size_bytes).text);
    accx_table_cell(table, ACCX_PLAIN, "%s",
                    section.record_count ? accx_text("%u", section.record_count) : "");
    accx_table_cell(table, ACCX_DIM, "%s",
                    section.known ? "" : "unknown to this library, passed over");
  }
  accx_table_print(table);
}

static void print_symbols(const accx_inspection_t* in) {
  if (in->info.symbol_count == 0)
    return;
  accx_heading("Symbols");
  accx_table_t* table = accx_table_create(2);
  for (uint32_t i = 0; i < in->info.symbol_count; ++i) {
    accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
    if (accrt_bundle_symbol(in->bundle, i, &symbol) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", symbol.name);
    accx_table_cell(table, ACCX_PLAIN, "%s", accx_symbol_text(&symbol));
  }
  accx_table_print(table);
}

/* ---- Functions ---- */

static const char* argument_remark(const accrt_argument_info_t* argument,
                                   const accrt_argument_info_t* inputs) {
  if (argument->kind == ACCRT_ARGUMENT_READ_WRITE)
    return "updated in place";
  if (argument->kind == ACCRT_ARGUMENT_DONATED)
    return "donated";
  if (argument->kind == ACCRT_ARGUMENT_SCALAR)
    return "scalar";
  if (argument->alias_kind == ACCRT_ALIAS_NONE)
    return "";
  return accx_text("%s share storage with %s", accx_alias_name(argument->alias_kind),
                   inputs[argument->alias_input].name);
}

static void print_argument(const accx_inspection_t* in, uint32_t function, uint32_t index,
                           const accrt_argument_info_t* arguments, const char* lead) {
  const accrt_argument_info_t* argument = &arguments[index];
  fprintf(accx_out, "    %s%s%s%s%s: %s%s%s", lead, accx_style(ACCX_NAME),
          accx_safe(argument->name), accx_style(ACCX_PLAIN), argument->optional ? "?" : "",
          accx_style(ACCX_TYPE), accx_safe(accx_type_text(in->bundle, function, index)),
          accx_style(ACCX_PLAIN));
  const char* remark = argument_remark(argument, arguments);
  if (remark[0])
    fprintf(accx_out, "  %s(%s)%s", accx_style(ACCX_DIM), accx_safe(remark),
            accx_style(ACCX_PLAIN));
  if (argument->doc && argument->doc[0])
    fprintf(accx_out, "  %s# %s%s", accx_style(ACCX_DIM), accx_safe(argument->doc),
            accx_style(ACCX_PLAIN));
  fputc('\n', accx_out);
}

/* "one version for cuda, one for other devices"; empty for a single version for any device. */
static const char* target_list(const accx_inspection_t* in, uint32_t function, uint32_t count) {
  const char* text = "";
  bool any = false;
  for (uint32_t i = 0; i < count; ++i) {
    const char* target = "";
    (void)accrt_bundle_function_target(in->bundle, function, i, &target);
    any = any || target[0] == '\0';
    if (target[0] != '\0')
      text = accx_text("%s%s%s", text, text[0] ? ", " : "", target);
  }
  if (text[0] == '\0')
    return text;
  return any ? accx_text("one version for %s, one for other devices", text)
             : accx_text("for %s only", text);
}

static void print_function(const accx_inspection_t* in, uint32_t index,
                           const accrt_function_info_t* function) {
  const uint32_t count = function->input_count + function->result_count;
  accrt_argument_info_t* arguments = accx_alloc(count, sizeof *arguments);
  fprintf(accx_out, "  %s%s%s", accx_style(ACCX_BOLD), accx_safe(function->name),
          accx_style(ACCX_PLAIN));
  fprintf(accx_out, "  %s%s%u command%s%s", accx_style(ACCX_DIM),
          accx_bits_text(&accx_function_bits, function->flags, ", ", ""), function->command_count,
          function->command_count == 1 ? "" : "s", accx_style(ACCX_PLAIN));
  const char* targets = target_list(in, index, function->version_count);
  if (targets[0])
    fprintf(accx_out, "  %s%s%s", accx_style(ACCX_TYPE), accx_safe(targets),
            accx_style(ACCX_PLAIN));
  if (function->doc && function->doc[0])
    fprintf(accx_out, "  %s# %s%s", accx_style(ACCX_DIM), accx_safe(function->doc),
            accx_style(ACCX_PLAIN));
  fputc('\n', accx_out);
  for (uint32_t i = 0; i < count; ++i) {
    arguments[i] = (accrt_argument_info_t)ACCRT_ARGUMENT_INFO_INIT;
    if (accrt_bundle_argument(in->bundle, index, i, &arguments[i]) != ACCRT_OK)
      break;
    print_argument(in, index, i, arguments, i < function->input_count ? "" : "-> ");
  }
  free(arguments);
}

static bool function_is_shown(const accx_inspection_t* in, const accrt_function_info_t* function) {
  return function->flags == 0 || in->top == UINT32_MAX;
}

static void print_functions(const accx_inspection_t* in) {
  if (in->info.function_count == 0)
    return;
  accx_heading("Functions");
  uint32_t hidden = 0;
  for (uint32_t i = 0; i < in->info.function_count; ++i) {
    accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
    if (accrt_bundle_function(in->bundle, i, &function) != ACCRT_OK)
      continue;
    if (function_is_shown(in, &function))
      print_function(in, i, &function);
    else
      ++hidden;
  }
  if (hidden)
    fprintf(accx_out, "  %s%u internal or prepare function%s not shown (--all)%s\n",
            accx_style(ACCX_DIM), hidden, hidden == 1 ? "" : "s", accx_style(ACCX_PLAIN));
}

static void print_states(const accx_inspection_t* in) {
  if (in->info.state_count == 0)
    return;
  accx_heading("States");
  accx_table_t* table = accx_table_create(2);
  for (uint32_t i = 0; i < in->info.state_count; ++i) {
    accrt_state_info_t state = ACCRT_STATE_INFO_INIT;
    if (accrt_bundle_state(in->bundle, i, &state) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", state.name);
    accx_table_cell(table, ACCX_TYPE, "%s", accx_state_type_text(in->bundle, &state));
  }
  accx_table_print(table);
}

/* ---- Constants ---- */

static int by_size(const void* left, const void* right) {
  const accrt_constant_info_t *a = left, *b = right;
  if (a->size_bytes != b->size_bytes)
    return a->size_bytes < b->size_bytes ? 1 : -1;
  return strcmp(a->name, b->name);
}

static void add_constant(const accx_inspection_t* in, accx_table_t* table,
                         const accrt_constant_info_t* constant) {
  accx_table_cell(table, ACCX_NAME, "%s", constant->name);
  accx_table_cell(table, ACCX_TYPE, "%s",
                  accx_shape_text(constant->dtype, constant->rank, constant->shape));
  accx_table_cell(table, ACCX_PLAIN, "%s", accx_bytes(constant->size_bytes).text);
  const char* place = accx_constant_place_text(in, constant);
  const char* layout =
      constant->encoding == ACCRT_LAYOUT_PLAIN ? "" : accx_encoding_name(constant->encoding);
  accx_table_cell(table, ACCX_DIM, "%s%s%s", place, place[0] && layout[0] ? ", " : "", layout);
}

static void print_constants(const accx_inspection_t* in) {
  const uint32_t count = in->info.constant_count;
  if (count == 0)
    return;
  accrt_constant_info_t* constants = accx_alloc(count, sizeof *constants);
  uint64_t stored_bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    constants[i] = (accrt_constant_info_t)ACCRT_CONSTANT_INFO_INIT;
    if (accrt_bundle_constant(in->bundle, i, &constants[i]) != ACCRT_OK)
      constants[i].name = "";
    stored_bytes += constants[i].source == 0 ? constants[i].size_bytes : 0;
  }
  qsort(constants, count, sizeof *constants, by_size);
  const uint32_t shown = count < in->top ? count : in->top;
  accx_heading("Constants: %u, %s stored", count, accx_bytes(stored_bytes).text);
  accx_table_t* table = accx_table_create(4);
  accx_table_align_right(table, 2);
  for (uint32_t i = 0; i < shown; ++i)
    add_constant(in, table, &constants[i]);
  accx_table_print(table);
  if (shown < count)
    fprintf(accx_out, "  %s%u more (--all, or --top N)%s\n", accx_style(ACCX_DIM), count - shown,
            accx_style(ACCX_PLAIN));
  free(constants);
}

/* ---- Kernels ---- */

static const char* variant_text(const accrt_variant_info_t* variant) {
  const char* text = variant->arch[0] ? variant->arch : accx_arch_kind_name(variant->arch_kind);
  if (variant->arch[0] && variant->arch_kind == ACCX_ARCH_KIND_PORTABLE)
    text = accx_text("%s or later", text);
  if (strcmp(variant->driver, "host") != 0)
    text = accx_text("%s:%s", variant->driver, text);
  if (variant->cpu_features)
    text = accx_text("%s+%s", text, accx_bits_text(&accx_cpu_bits, variant->cpu_features, "+", ""));
  if (variant->priority)
    text = accx_text("%s (priority %d)", text, variant->priority);
  if (variant->image_kind == ACCX_IMAGE_KIND_PACK)
    text = accx_text("%s in pack %s", text, variant->image);
  if (variant->block[0])
    text = accx_text("%s [%u threads]", text,
                     variant->block[0] * variant->block[1] * variant->block[2]);
  return text;
}

static const char* variant_list(const accx_inspection_t* in, uint32_t kernel, uint32_t count) {
  const char* text = "";
  for (uint32_t i = 0; i < count && i < MOST_VARIANTS; ++i) {
    accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
    if (accrt_bundle_variant(in->bundle, kernel, i, &variant) == ACCRT_OK)
      text = accx_text("%s%s%s", text, text[0] ? ", " : "", variant_text(&variant));
  }
  if (count > MOST_VARIANTS)
    text = accx_text("%s and %u more", text, count - MOST_VARIANTS);
  return text[0] ? text : "no variant";
}

static void print_kernels(const accx_inspection_t* in) {
  if (in->info.kernel_count == 0)
    return;
  accx_heading("Kernels: %u, in %u image%s", in->info.kernel_count, in->info.image_count,
               in->info.image_count == 1 ? "" : "s");
  accx_table_t* table = accx_table_create(4);
  for (uint32_t i = 0; i < in->info.kernel_count; ++i) {
    accrt_bundle_kernel_info_t kernel = ACCRT_BUNDLE_KERNEL_INFO_INIT;
    if (accrt_bundle_kernel(in->bundle, i, &kernel) != ACCRT_OK)
      continue;
    accx_table_cell(table, ACCX_NAME, "%s", kernel.name);
    accx_table_cell(table, ACCX_PLAIN, "%u parameter%s", kernel.parameter_count,
                    kernel.parameter_count == 1 ? "" : "s");
    accx_table_cell(table, ACCX_PLAIN, "%s", variant_list(in, i, kernel.variant_count));
    accx_table_cell(table, ACCX_DIM, "%s",
                    accx_bits_text(&accx_trait_bits, kernel.traits, ", ", ""));
  }
  accx_table_print(table);
}

void accx_inspect_human(const accx_inspection_t* inspection) {
  static void (*const parts[])(const accx_inspection_t*) = {
      print_versions,   print_metadata,      print_sections,    print_symbols,
      print_functions,  print_states,        print_constants,   print_kernels,
      accx_print_files, accx_print_adapters, accx_print_assets,
  };
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    if (inspection->parts >> i & 1)
      parts[i](inspection);
  }
}
