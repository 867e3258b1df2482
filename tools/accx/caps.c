/* tools/accx/caps.c - accx caps: what this library can read and run, for compilers to target. */
#include <string.h>

#include "accx.h"
#include "json_out.h"
#include "term.h"

/* Data types by id have their names from the library; one without a name here is newer than this tool. */
static const char* dtype_list(uint64_t mask) {
  const char* text = "";
  for (uint32_t id = 0; id < 64; ++id) {
    if (mask >> id & 1)
      text = accx_text("%s%s%s", text, text[0] ? ", " : "", accrt_dtype_name(id));
  }
  return text;
}

static void print_json(const accrt_caps_t* caps) {
  struct json_object* root = accx_json_object(NULL, NULL);
  const uint32_t version = caps->library_version;
  accx_json_text(root, "library_version",
                 accx_text("%u.%u.%u", version >> 24, version >> 12 & 0xFFF, version & 0xFFF));
  accx_json_version(root, "container", caps->container_major, caps->container_minor);
  accx_json_version(root, "commands", caps->commands_major, caps->commands_minor);
  accx_json_version(root, "kernel_abi", caps->kernel_abi_major, caps->kernel_abi_minor);
  accx_json_version(root, "layouts", caps->layouts_major, caps->layouts_minor);
  accx_json_u64(root, "max_rank", caps->max_rank);
  accx_json_bits(root, "file_features", &accx_feature_bits, caps->file_features);
  accx_json_bits(root, "function_features", &accx_function_feature_bits, caps->function_features);
  accx_json_bits(root, "variant_features", &accx_feature_bits, caps->variant_features);
  accx_json_bits(root, "command_set", &accx_opcode_bits, caps->command_mask);
  struct json_object* dtypes = accx_json_array(root, "dtypes");
  for (uint32_t id = 0; id < 64; ++id) {
    if (caps->dtype_mask >> id & 1)
      json_object_array_add(dtypes, json_object_new_string(accrt_dtype_name(id)));
  }
  accx_json_bits(root, "encodings", &accx_encoding_bits, caps->encoding_mask);
  accx_json_bits(root, "image_kinds", &accx_image_kind_bits, caps->image_kind_mask);
  accx_json_text(root, "cpu_arch", caps->cpu_arch);
  accx_json_bits(root, "cpu_features", &accx_cpu_bits, caps->cpu_features);
  accx_json_print(root);
}

static void add_row(accx_table_t* table, const char* name, const char* text) {
  accx_table_cell(table, ACCX_NAME, "%s", name);
  accx_table_cell(table, ACCX_PLAIN, "%s", text);
}

static const char* version_text(uint16_t major, uint16_t minor) {
  return accx_text("%u.%u", (unsigned)major, (unsigned)minor);
}

static void print_human(const accrt_caps_t* caps) {
  const uint32_t version = caps->library_version;
  accx_heading("libaccrt %u.%u.%u", version >> 24, version >> 12 & 0xFFF, version & 0xFFF);
  accx_table_t* table = accx_table_create(2);
  add_row(table, "container", version_text(caps->container_major, caps->container_minor));
  add_row(table, "command set", version_text(caps->commands_major, caps->commands_minor));
  add_row(table, "kernel ABI", version_text(caps->kernel_abi_major, caps->kernel_abi_minor));
  add_row(table, "layouts", version_text(caps->layouts_major, caps->layouts_minor));
  add_row(table, "commands", accx_bits_text(&accx_opcode_bits, caps->command_mask, ", ", "none"));
  add_row(table, "data types", dtype_list(caps->dtype_mask));
  add_row(table, "encodings",
          accx_bits_text(&accx_encoding_bits, caps->encoding_mask, ", ", "none"));
  add_row(table, "rank", accx_text("up to %u", caps->max_rank));
  add_row(table, "images",
          accx_bits_text(&accx_image_kind_bits, caps->image_kind_mask, ", ", "none"));
  const uint64_t features = caps->file_features | caps->variant_features;
  add_row(table, "features", accx_bits_text(&accx_feature_bits, features, ", ", "none defined"));
  add_row(table, "of functions",
          accx_bits_text(&accx_function_feature_bits, caps->function_features, ", ", "none"));
  add_row(table, "processor", caps->cpu_arch);
  add_row(table, "its features", accx_bits_text(&accx_cpu_bits, caps->cpu_features, ", ", "none"));
  accx_table_print(table);
}

static int run_caps(const accx_args_t* args) {
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  const accrt_status_t status = accrt_query_caps(&caps);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "cannot ask the library");
  if (accx_args_has(args, "json"))
    print_json(&caps);
  else
    print_human(&caps);
  return ACCX_OK;
}

static const accx_option_t options[] = {
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_caps = {
    .name = "caps",
    .operands = "",
    .summary = "prints what this library can read and run: what a compiler targets",
    .details = "Examples:\n"
               "  accx caps\n"
               "  accx caps --json | jq -r .cpu_arch\n",
    .options = options,
    .run = run_caps,
};
