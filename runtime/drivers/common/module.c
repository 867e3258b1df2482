/* runtime/drivers/common/module.c - kernel packs from machine code of a device. It may not know any
 * kind of code: drivers do. */
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

#define MAX_MODULE_KERNELS 65536u
#define HEAD_BYTES 16u

/* A module as its pack keeps it. */
typedef struct module {
  accrt_zombie_t zombie; /* first: see accrt_dispose */
  accrt_device_t* device;
  accrt_driver_module_t* driver_module;
} module_t;

static void destroy(accrt_zombie_t* zombie) {
  module_t* module = (module_t*)zombie;
  accrt_device_t* device = module->device;
  if (module->driver_module != NULL)
    device->table->module_unload(module->driver_module);
  accrt_free(&device->instance->allocator, module, sizeof *module);
}

static void unload(void* user) {
  module_t* module = user;
  module->zombie.destroy = destroy;
  accrt_dispose(module->device->instance, &module->zombie);
}

static accrt_status_t find(void* user, const accrt_kernel_def_t* declared,
                           void** out_module_kernel) {
  const module_t* module = user;
  const accrt_status_t status = module->device->table->module_find(
      module->driver_module, declared->name, declared, out_module_kernel);
  if (status == ACCRT_OK && *out_module_kernel == NULL)
    return ACCRT_FAIL(DRIVER, "the driver gave no handle of kernel '%s'", declared->name);
  return status;
}

/* ---- What is asked ---- */

static bool is_text(const unsigned char* bytes, uint64_t size_bytes) {
  for (uint64_t i = 0; i < size_bytes; ++i) {
    const unsigned char c = bytes[i];
    if ((c < 0x20 || c > 0x7E) && c != '\t' && c != '\n' && c != '\r')
      return false;
  }
  return size_bytes > 0;
}

/* Recognized by the first bytes. */
static uint32_t kind_of(const void* image, uint64_t size_bytes) {
  static const unsigned char elf[4] = {0x7F, 'E', 'L', 'F'};
  static const unsigned char fatbin[4] = {0x50, 0xED, 0x55, 0xBA};
  if (size_bytes >= sizeof elf && memcmp(image, elf, sizeof elf) == 0)
    return ACCRT_MODULE_CUBIN;
  if (size_bytes >= sizeof fatbin && memcmp(image, fatbin, sizeof fatbin) == 0)
    return ACCRT_MODULE_FATBIN;
  return is_text(image, size_bytes < HEAD_BYTES ? size_bytes : HEAD_BYTES) ? ACCRT_MODULE_PTX : 0;
}

static int32_t no_host_code(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return -1;
}

static bool is_zero(const uint32_t size[3]) {
  return size[0] == 0 && size[1] == 0 && size[2] == 0;
}

static bool is_full(const uint32_t size[3]) {
  return size[0] != 0 && size[1] != 0 && size[2] != 0;
}

/* The rules for all kernels, and those for kernels of devices. */
static accrt_status_t check_kernel(const char* what, const accrt_kernel_def_t* definition) {
  if (definition->struct_size != sizeof *definition) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "%s: a kernel's struct_size is %" PRIu32 "; this library's has %zu bytes",
                      what, definition->struct_size, sizeof *definition);
  }
  accrt_kernel_def_t common = *definition;
  common.entry = no_host_code;
  common.traits &= ~(ACCRT_KERNEL_TRAIT_COOPERATIVE | ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS);
  memset(common.block, 0, sizeof common.block);
  memset(common.cluster, 0, sizeof common.cluster);
  ACCRT_TRY(accrt_kernel_check_definition(what, &common));
  if (definition->entry != NULL) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: kernel '%s': a device's kernel has no entry", what,
                      definition->name);
  }
  if (!is_full(definition->block)) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: kernel '%s': its block is %" PRIu32 " x %" PRIu32 " x %" PRIu32
                      ", no dimension may be 0",
                      what, definition->name, definition->block[0], definition->block[1],
                      definition->block[2]);
  }
  if (is_zero(definition->cluster) || is_full(definition->cluster))
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_FORMAT,
                    "%s: kernel '%s': its cluster is %" PRIu32 " x %" PRIu32 " x %" PRIu32
                    "; either all or none of them is 0",
                    what, definition->name, definition->cluster[0], definition->cluster[1],
                    definition->cluster[2]);
}

static accrt_status_t check_options(const accrt_device_t* device,
                                    const accrt_module_options_t* given,
                                    accrt_module_options_t* out_options) {
  ACCRT_TRY(accrt_struct_read("accrt_module_options_t", given, out_options, sizeof *out_options));
  accrt_module_options_t* options = out_options;
  if (options->name == NULL)
    options->name = "module";
  if (options->image == NULL || options->size_bytes == 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: there is no image", options->name);
  if (options->kernel_count == 0 || options->kernel_count > MAX_MODULE_KERNELS) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: %" PRIu32 " kernels are declared; it takes 1 to %u",
                      options->name, options->kernel_count, MAX_MODULE_KERNELS);
  }
  if (options->kernels == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: kernels is NULL", options->name);
  accrt_status_t status = accrt_struct_check_element(
      "accrt_kernel_def_t", options->kernel_size_bytes, sizeof(accrt_kernel_def_t));
  for (uint32_t i = 0; i < options->kernel_count && status == ACCRT_OK; ++i)
    status = check_kernel(options->name, &options->kernels[i]);
  if (status != ACCRT_OK)
    return status;
  if (device->table->module_load == NULL) {
    return ACCRT_FAIL(UNSUPPORTED, "%s: %s loads no modules", options->name, device->info.name);
  }
  if (options->kind == 0)
    options->kind = kind_of(options->image, options->size_bytes);
  if (options->kind >= ACCRT_MODULE_CUBIN && options->kind <= ACCRT_MODULE_FATBIN)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_FORMAT, "%s: %" PRIu64 " bytes that are no cubin, PTX or fatbin",
                    options->name, options->size_bytes);
}

static accrt_status_t load(accrt_device_t* device, const accrt_module_options_t* options,
                           module_t* module) {
  const accrt_driver_image_t image = {.kind = options->kind,
                                      .data = options->image,
                                      .size_bytes = options->size_bytes,
                                      .name = options->name};
  module->device = device;
  const accrt_status_t status =
      device->table->module_load(device->driver_device, &image, &module->driver_module);
  accrt_device_note_status(device, status);
  return status;
}

accrt_status_t accrt_kernel_module_load(accrt_device_t* device,
                                        const accrt_module_options_t* options,
                                        accrt_kernel_pack_t** out_pack) {
  if (out_pack != NULL)
    *out_pack = NULL;
  ACCRT_ENTER(out_pack, device, options);
  accrt_module_options_t own;
  ACCRT_TRY(check_options(device, options, &own));
  if (accrt_device_is_lost(device))
    return accrt_device_fail_lost(device);
  module_t* module;
  ACCRT_TRY(ACCRT_NEW(&device->instance->allocator, &module));
  accrt_status_t status = load(device, &own, module);
  if (status != ACCRT_OK) {
    accrt_free(&device->instance->allocator, module, sizeof *module);
    return status;
  }
  const accrt_pack_module_t pack = {.name = own.name,
                                    .kernels = own.kernels,
                                    .kernel_count = own.kernel_count,
                                    .device = device,
                                    .user = module,
                                    .find = find,
                                    .unload = unload};
  return accrt_kernel_pack_make_module(device->instance, &pack, out_pack);
}
