/* tools/accx/caps.c - accx caps: what this library can read and run, for compilers with a target.
 * Its JSON is the input of their --target-caps (docs/contract.md). */
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "accx.h"
#include "json_out.h"
#include "open.h"
#include "term.h"

/* Names of the set ids, from the library. An id without a name is newer than this tool. */
static const char* list_of(uint64_t mask, const char* (*name)(uint32_t id)) {
  const char* text = "";
  for (uint32_t id = 0; id < 64; ++id) {
    if (mask >> id & 1)
      text = accx_text("%s%s%s", text, text[0] ? ", " : "", name(id));
  }
  return text;
}

/* ---- Drivers ---- */

/* The architectures of one driver's devices, each once. The lists are short. */
typedef struct driver {
  const char* name;
  const char* archs; /* separated by ", " */
  uint32_t devices;
} driver_t;
typedef struct drivers {
  driver_t* list;
  uint32_t count;
} drivers_t;

static bool list_has(const char* list, const char* item) {
  const size_t length = strlen(item);
  for (const char* at = strstr(list, item); at != NULL; at = strstr(at + 1, item)) {
    if ((at == list || at[-1] == ' ') && (at[length] == '\0' || at[length] == ','))
      return true;
  }
  return false;
}

static void note_device(drivers_t* drivers, const accrt_device_info_t* info) {
  uint32_t at = 0;
  while (at < drivers->count && strcmp(drivers->list[at].name, info->driver) != 0)
    ++at;
  driver_t* driver = &drivers->list[at];
  if (at == drivers->count) {
    *driver = (driver_t){accx_text("%s", info->driver), "", 0};
    ++drivers->count;
  }
  ++driver->devices;
  if (!list_has(driver->archs, info->arch))
    driver->archs =
        accx_text("%s%s%s", driver->archs, driver->archs[0] != '\0' ? ", " : "", info->arch);
}

/* Finds the drivers' architectures. A driver that fails is left out; the rest is useful without
 * it. */
static drivers_t find_drivers(const accx_args_t* args) {
  drivers_t drivers = {NULL, 0};
  accrt_instance_t* instance = NULL;
  uint32_t count = 0;
  if (accx_open_instance(args, &instance) == ACCX_OK &&
      accrt_instance_device_count(instance, &count) == ACCRT_OK)
    drivers.list = accx_alloc(count, sizeof *drivers.list);
  for (uint32_t i = 0; i < count && drivers.list != NULL; ++i) {
    accrt_device_t* device = NULL;
    accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
    if (accrt_instance_device(instance, i, &device) == ACCRT_OK &&
        accrt_device_info(device, &info) == ACCRT_OK)
      note_device(&drivers, &info);
  }
  accrt_instance_release(instance);
  return drivers;
}

/* ---- Packs ---- */

static int is_pack(const struct dirent* entry) {
  const char* end = strrchr(entry->d_name, '.');
  return end != NULL && end != entry->d_name && strcmp(end, ".so") == 0;
}

/* Lists the installed packs, sorted: files in accrt/packs beside the library
 * (docs/kernel-abi.md). */
static int find_packs(struct dirent*** out_entries) {
  Dl_info self;
  *out_entries = NULL;
  if (dladdr((void*)(uintptr_t)&accrt_query_caps, &self) == 0 || self.dli_fname == NULL)
    return 0;
  const char* slash = strrchr(self.dli_fname, '/');
  const int length = slash != NULL ? (int)(slash - self.dli_fname) : 1;
  const char* folder = slash != NULL ? self.dli_fname : ".";
  const int count =
      scandir(accx_text("%.*s/accrt/packs", length, folder), out_entries, is_pack, alphasort);
  return count > 0 ? count : 0;
}

static void add_packs(struct json_object* root) {
  struct json_object* array = accx_json_array(root, "packs");
  struct dirent** entries;
  const int count = find_packs(&entries);
  for (int i = 0; i < count; ++i) {
    const char* name = entries[i]->d_name;
    json_object_array_add(array, json_object_new_string_len(name, (int)strlen(name) - 3));
    free(entries[i]);
  }
  free(entries);
}

static void add_drivers(struct json_object* root, const drivers_t* drivers) {
  struct json_object* array = accx_json_array(root, "drivers");
  for (uint32_t i = 0; i < drivers->count; ++i) {
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", drivers->list[i].name);
    accx_json_u64(object, "devices", drivers->list[i].devices);
    struct json_object* archs = accx_json_array(object, "architectures");
    for (const char* at = drivers->list[i].archs; *at != '\0';) {
      const size_t length = strcspn(at, ",");
      json_object_array_add(archs, json_object_new_string_len(at, (int)length));
      at += length + (at[length] == ',' ? 2 : 0);
    }
  }
}

static void add_encodings(struct json_object* root, uint64_t mask) {
  struct json_object* array = accx_json_array(root, "encodings");
  for (uint32_t id = 0; id < 64; ++id) {
    if ((mask >> id & 1) == 0)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_u64(object, "id", id);
    accx_json_text(object, "name", accx_encoding_name(id));
  }
}

static void print_json(const accrt_caps_t* caps, const drivers_t* drivers) {
  struct json_object* root = accx_json_object(NULL, NULL);
  const uint32_t version = caps->library_version;
  accx_json_text(root, "library_version",
                 accx_text("%u.%u.%u", version >> 24, version >> 12 & 0xFFF, version & 0xFFF));
  accx_json_version(root, "container", caps->container_major, caps->container_minor);
  accx_json_version(root, "commands", caps->commands_major, caps->commands_minor);
  accx_json_version(root, "kernel_abi", caps->kernel_abi_major, caps->kernel_abi_minor);
  accx_json_version(root, "layouts", caps->layouts_major, caps->layouts_minor);
  accx_json_u64(root, "max_rank", caps->max_rank);
  accx_json_bits(root, "file_features", &accx_file_feature_bits, caps->file_features);
  accx_json_bits(root, "function_features", &accx_function_feature_bits, caps->function_features);
  accx_json_bits(root, "variant_features", &accx_variant_feature_bits, caps->variant_features);
  accx_json_bits(root, "sections", &accx_section_bits, caps->section_mask);
  accx_json_bits(root, "expression_ops", &accx_expression_bits, caps->expression_mask);
  accx_json_bits(root, "command_set", &accx_opcode_bits, caps->command_mask);
  struct json_object* dtypes = accx_json_array(root, "dtypes");
  for (uint32_t id = 0; id < 64; ++id) {
    if (caps->dtype_mask >> id & 1)
      json_object_array_add(dtypes, json_object_new_string(accrt_dtype_name(id)));
  }
  add_encodings(root, caps->encoding_mask);
  accx_json_bits(root, "image_kinds", &accx_image_kind_bits, caps->image_kind_mask);
  accx_json_text(root, "cpu_arch", caps->cpu_arch);
  accx_json_bits(root, "cpu_features", &accx_cpu_bits, caps->cpu_features);
  add_drivers(root, drivers);
  add_packs(root);
  accx_json_print(root);
}

static void add_row(accx_table_t* table, const char* name, const char* text) {
  accx_table_cell(table, ACCX_NAME, "%s", name);
  accx_table_cell(table, ACCX_PLAIN, "%s", text);
}

static const char* version_text(uint16_t major, uint16_t minor) {
  return accx_text("%u.%u", (unsigned)major, (unsigned)minor);
}

static void print_human(const accrt_caps_t* caps, const drivers_t* drivers) {
  const uint32_t version = caps->library_version;
  accx_heading("libaccrt %u.%u.%u", version >> 24, version >> 12 & 0xFFF, version & 0xFFF);
  accx_table_t* table = accx_table_create(2);
  add_row(table, "container", version_text(caps->container_major, caps->container_minor));
  add_row(table, "command set", version_text(caps->commands_major, caps->commands_minor));
  add_row(table, "kernel ABI", version_text(caps->kernel_abi_major, caps->kernel_abi_minor));
  add_row(table, "layouts", version_text(caps->layouts_major, caps->layouts_minor));
  add_row(table, "commands", accx_bits_text(&accx_opcode_bits, caps->command_mask, ", ", "none"));
  add_row(table, "data types", list_of(caps->dtype_mask, accrt_dtype_name));
  add_row(table, "encodings", list_of(caps->encoding_mask, accx_encoding_name));
  add_row(table, "sections", accx_bits_text(&accx_section_bits, caps->section_mask, ", ", "none"));
  add_row(table, "rank", accx_text("up to %u", caps->max_rank));
  add_row(table, "images",
          accx_bits_text(&accx_image_kind_bits, caps->image_kind_mask, ", ", "none"));
  add_row(table, "features",
          accx_bits_text(&accx_file_feature_bits, caps->file_features, ", ", "none"));
  add_row(table, "of functions",
          accx_bits_text(&accx_function_feature_bits, caps->function_features, ", ", "none"));
  add_row(table, "processor", caps->cpu_arch);
  add_row(table, "its features", accx_bits_text(&accx_cpu_bits, caps->cpu_features, ", ", "none"));
  for (uint32_t i = 0; i < drivers->count; ++i)
    add_row(table, drivers->list[i].name, drivers->list[i].archs);
  accx_table_print(table);
}

static int run_caps(const accx_args_t* args) {
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  const accrt_status_t status = accrt_query_caps(&caps);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "cannot ask the library");
  drivers_t drivers = find_drivers(args);
  if (accx_args_has(args, "json"))
    print_json(&caps, &drivers);
  else
    print_human(&caps, &drivers);
  free(drivers.list);
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
               "  accx caps --json > target.json    # for a compiler's --target-caps\n"
               "  accx caps --json | jq -r .cpu_arch\n",
    .options = options,
    .run = run_caps,
};
