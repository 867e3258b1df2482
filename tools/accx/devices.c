/* tools/accx/devices.c - accx devices: the devices of this machine that can run bundles. */
#include <stdlib.h>
#include <string.h>

#include "accx.h"
#include "json_out.h"
#include "open.h"
#include "term.h"

static int read_device(accrt_instance_t* instance, uint32_t index, accrt_device_info_t* out_info) {
  accrt_device_t* device = NULL;
  *out_info = (accrt_device_info_t)ACCRT_DEVICE_INFO_INIT;
  accrt_status_t status = accrt_instance_device(instance, index, &device);
  if (status == ACCRT_OK)
    status = accrt_device_info(device, out_info);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "device %u", index);
}

static void add_json(struct json_object* array, const accrt_device_info_t* info) {
  struct json_object* object = accx_json_append(array);
  accx_json_text(object, "name", info->name);
  accx_json_text(object, "driver", info->driver);
  accx_json_text(object, "description", info->description);
  accx_json_text(object, "arch", info->arch);
  accx_json_u64(object, "index", info->index);
  accx_json_u64(object, "concurrency", info->concurrency);
  accx_json_u64(object, "memory_total_bytes", info->memory_total_bytes);
  accx_json_u64(object, "min_alignment_bytes", info->min_alignment_bytes);
  accx_json_u64(object, "queue_count", info->queue_count);
  accx_json_bits(object, "flags", &accx_device_bits, info->flags);
  accx_json_bits(object, "cpu_features", &accx_cpu_bits, info->cpu_features);
}

static void add_row(accx_table_t* table, const accrt_device_info_t* info) {
  accx_table_cell(table, ACCX_NAME, "%s", info->name);
  accx_table_cell(table, ACCX_PLAIN, "%s", info->arch);
  accx_table_cell(table, ACCX_PLAIN, "%u", info->concurrency);
  accx_table_cell(table, ACCX_PLAIN, "%s", accx_bytes(info->memory_total_bytes).text);
  accx_table_cell(table, ACCX_PLAIN, "%s", info->description);
  accx_table_cell(table, ACCX_DIM, "%s", accx_bits_text(&accx_device_bits, info->flags, ", ", "-"));
}

static accx_table_t* device_table(void) {
  static const char* const titles[] = {"name",   "arch",        "threads",
                                       "memory", "description", "traits"};
  accx_table_t* table = accx_table_create(6);
  for (size_t i = 0; i < 6; ++i)
    accx_table_cell(table, ACCX_DIM, "%s", titles[i]);
  accx_table_align_right(table, 2);
  accx_table_align_right(table, 3);
  return table;
}

/* Why a built-in driver has no device here: the error of asking for one. Empty when it has some. */
static const char* why_none(accrt_instance_t* instance, const char* driver,
                            const accrt_device_info_t* devices, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (strcmp(devices[i].driver, driver) == 0)
      return "";
  }
  accrt_device_t* device = NULL;
  accrt_error_t error = ACCRT_ERROR_INIT;
  if (accrt_instance_device_by_name(instance, driver, &device) != ACCRT_OK)
    accrt_last_error(&error);
  return accx_text("%s", error.message);
}

static void print_json(const accrt_device_info_t* devices, uint32_t count, const char* no_cuda) {
  struct json_object* root = accx_json_object(NULL, NULL);
  struct json_object* array = accx_json_array(root, "devices");
  for (uint32_t i = 0; i < count; ++i)
    add_json(array, &devices[i]);
  if (no_cuda[0] != '\0')
    accx_json_text(root, "no_cuda", no_cuda);
  accx_json_print(root);
}

static void print_human(const accrt_device_info_t* devices, uint32_t count, const char* no_cuda) {
  accx_heading("%u device%s", count, count == 1 ? "" : "s");
  accx_table_t* table = device_table();
  for (uint32_t i = 0; i < count; ++i)
    add_row(table, &devices[i]);
  accx_table_print(table);
  if (no_cuda[0] != '\0')
    fprintf(accx_out, "%s%s%s\n", accx_style(ACCX_DIM), accx_safe(no_cuda), accx_style(ACCX_PLAIN));
}

static int run_devices(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  accrt_device_info_t* devices = NULL;
  uint32_t count = 0;
  int code = accx_open_instance(args, &instance);
  if (code)
    goto out;
  const accrt_status_t status = accrt_instance_device_count(instance, &count);
  if (status != ACCRT_OK) {
    code = accx_fail_status(status, "cannot list devices");
    goto out;
  }
  devices = accx_alloc(count, sizeof *devices);
  for (uint32_t i = 0; i < count && !code; ++i)
    code = read_device(instance, i, &devices[i]);
  if (code)
    goto out;
  const char* no_cuda = why_none(instance, "cuda", devices, count);
  if (accx_args_has(args, "json"))
    print_json(devices, count, no_cuda);
  else
    print_human(devices, count, no_cuda);
out:
  free(devices);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"threads", "N", false, "threads of the host driver (host.threads)"},
    {"option", "key=value", true, "a driver's option, for instance host.devices=2"},
    {"driver", "FILE.so", true, "load a driver from outside the library"},
    {"json", NULL, false, "print JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_devices = {
    .name = "devices",
    .operands = "",
    .summary = "lists the devices that bundles can run on here",
    .details = "Examples:\n"
               "  accx devices\n"
               "  accx devices --option host.devices=2 --threads 1\n"
               "  accx devices --json\n",
    .options = options,
    .run = run_devices,
};
