/* write/writer_devices.c - checks that at least one device of the target runs the bundle: each
 * kernel that its functions use there needs a variant for the device (runtime/program/variant.c
 * chooses by the same rules). */
#include "write/writer.h"

#include <stdio.h>

#include "runtime/core/arch.h"

#define HOST "host"

/* Such as "cuda:sm_90". */
typedef struct device {
  char driver[64];
  char arch[64];
} device_t;

/* Reads the next word of `devices`; false at the end. A word that is too long names no device. */
static bool next_device(const char** at, device_t* out) {
  *at += strspn(*at, " ");
  const size_t size = strcspn(*at, " "), driver = strcspn(*at, ":");
  if (size == 0)
    return false;
  const size_t arch = driver < size ? size - driver - 1 : 0;
  (void)snprintf(out->driver, sizeof out->driver, "%.*s", (int)(driver < size ? driver : size),
                 *at);
  (void)snprintf(out->arch, sizeof out->arch, "%.*s", (int)arch, *at + size - arch);
  *at += size;
  return true;
}

static bool fits(const accrt_bundle_writer_t* writer, const writer_variant_t* item,
                 const device_t* device) {
  const accx_variant_t* variant = &item->record;
  const uint32_t image = WRITER_INDEX(variant->image);
  const uint32_t kind = WRITER_ITEM(writer, image, WRITER_IMAGE, image)->record.kind;
  const bool launched = item->has_launch || kind == ACCX_IMAGE_HOST_ELF || kind == ACCX_IMAGE_PACK;
  const bool host = strcmp(device->driver, HOST) == 0;
  return launched && strcmp(accx_writer_text(writer, variant->driver), device->driver) == 0 &&
         accrt_arch_fits(variant->arch_kind, accx_writer_text(writer, variant->arch),
                         device->arch) &&
         (!host || (variant->cpu_features & ~writer->target.cpu_features) == 0);
}

static bool has_variant(const writer_encoder_t* encoder, uint32_t kernel, const device_t* device) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const writer_variant_t* item;
  for (uint32_t at = WRITER_ITEM(writer, kernel, WRITER_KERNEL, kernel)->first_variant;
       at != WRITER_NO; at = item->next) {
    item = WRITER_ITEM(writer, variant, WRITER_VARIANT, at);
    if (encoder->rank[WRITER_VARIANT][at] != WRITER_NO && fits(writer, item, device))
      return true;
  }
  return false;
}

static uint32_t function_of(const accrt_bundle_writer_t* writer, const writer_command_t* command) {
  return WRITER_ITEM(writer, block, WRITER_BLOCK, command->block)->function;
}

/* Finds, for each function, the first kernel in the file's order without a variant that the
 * function or a callee uses; or NO. In the file callees come before callers. */
static void find_missing(const writer_encoder_t* encoder, const device_t* device,
                         uint32_t* missing) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const uint32_t count = writer->items[WRITER_FUNCTION].count;
  uint32_t* lacks = missing + count; /* by kernel: 1 without a variant */
  for (uint32_t i = 0; i < writer->items[WRITER_KERNEL].count; ++i)
    lacks[i] = has_variant(encoder, i, device) ? WRITER_NO : encoder->rank[WRITER_KERNEL][i];
  for (uint32_t i = 0; i < count; ++i)
    missing[i] = WRITER_NO;
  for (uint32_t i = 0; i < writer->items[WRITER_COMMAND].count; ++i) {
    const writer_command_t* command = WRITER_ITEM(writer, command, WRITER_COMMAND, i);
    uint32_t* of = &missing[function_of(writer, command)];
    if (command->header.opcode != ACCX_COMMAND_DISPATCH)
      continue;
    const uint32_t found = lacks[WRITER_INDEX(((const accx_dispatch_t*)command->body)->kernel)];
    *of = found < *of ? found : *of;
  }
  for (uint32_t i = 0; i < encoder->order_count[WRITER_FUNCTION]; ++i) {
    const uint32_t function = encoder->order[WRITER_FUNCTION][i];
    for (uint32_t at = WRITER_ITEM(writer, function, WRITER_FUNCTION, function)->first_call;
         at != WRITER_NO;) {
      const writer_command_t* call = WRITER_ITEM(writer, command, WRITER_COMMAND, at);
      const uint32_t callee = WRITER_INDEX(((const accx_call_t*)call->body)->function);
      if (missing[callee] < missing[function])
        missing[function] = missing[callee];
      at = call->next_call;
    }
  }
}

/* The number of a string; NO when the writer does not have it. */
static uint32_t string_of(const accrt_bundle_writer_t* writer, const char* text) {
  for (uint32_t i = 0; i < writer->items[WRITER_STRING].count; ++i) {
    if (strcmp(accx_writer_text(writer, i), text) == 0)
      return i;
  }
  return WRITER_NO;
}

/* The first public function in the file's order that the device cannot run; NO when it runs all. */
static uint32_t first_missing(const writer_encoder_t* encoder, const device_t* device,
                              const uint32_t* missing) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  const uint32_t driver = string_of(writer, device->driver);
  for (uint32_t i = 0; i < encoder->order_count[WRITER_FUNCTION]; ++i) {
    const uint32_t index = encoder->order[WRITER_FUNCTION][i];
    const accx_function_t* function =
        &WRITER_ITEM(writer, function, WRITER_FUNCTION, index)->record;
    const writer_key_t own = {.kind = WRITER_FUNCTION, .a = function->name, .b = driver};
    uint32_t version = driver != WRITER_NO ? accx_writer_find(writer, &own) : WRITER_NO;
    if (version != WRITER_NO && encoder->rank[WRITER_FUNCTION][WRITER_INDEX(version)] == WRITER_NO)
      version = WRITER_NO; /* not in the file */
    const bool here = version != WRITER_NO ? WRITER_INDEX(version) == index : function->target == 0;
    if (here && function->flags == 0 && missing[index] != WRITER_NO)
      return index;
  }
  return WRITER_NO;
}

static accrt_status_t check(const writer_encoder_t* encoder, uint32_t* missing) {
  accrt_bundle_writer_t* writer = encoder->writer;
  uint32_t function = WRITER_NO, kernel = 0;
  device_t device;
  for (const char* at = writer->target.devices; next_device(&at, &device);) {
    find_missing(encoder, &device, missing);
    const uint32_t found = first_missing(encoder, &device, missing);
    if (found == WRITER_NO)
      return ACCRT_OK;
    if (function == WRITER_NO) {
      function = found;
      kernel = encoder->order[WRITER_KERNEL][missing[found]];
    }
  }
  if (function == WRITER_NO)
    return ACCRT_OK;
  writer->where.function = function;
  return WRITER_FAIL(
      writer, UNSUPPORTED, "kernel '%.64s' has no variant for the devices of the target (%s)",
      accx_writer_text(writer, WRITER_ITEM(writer, kernel, WRITER_KERNEL, kernel)->record.name),
      writer->target.devices);
}

accrt_status_t accx_writer_check_devices(const writer_encoder_t* encoder) {
  accrt_bundle_writer_t* writer = encoder->writer;
  const size_t count =
      (size_t)writer->items[WRITER_FUNCTION].count + writer->items[WRITER_KERNEL].count;
  void* memory;
  if (!writer->has_target || writer->target.devices[0] == '\0' || count == 0)
    return ACCRT_OK;
  /* the caller may not have terminated it */
  writer->target.devices[sizeof writer->target.devices - 1] = '\0';
  ACCRT_TRY(accrt_alloc_array(&writer->allocator, count, sizeof(uint32_t), &memory));
  const accrt_status_t status = check(encoder, memory);
  accrt_free_array(&writer->allocator, memory, count, sizeof(uint32_t));
  return status;
}
