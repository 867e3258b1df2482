/* runtime/program/image.c - a bundle's machine code on a device: policy, loading, and what a kernel says of itself against what
 * the bundle declares.
 *
 * It chooses nothing (kernels.c does).
 */
#include <string.h>

#include "runtime/program/internal.h"

static accrt_status_t fail_policy(const accrt_program_t* program, uint32_t policy) {
  const char* const asked = policy == ACCRT_HOST_CODE_SIGNED
                                ? "signed code only, and bundles cannot be signed yet"
                                : "none";
  return ACCRT_FAIL(
      PERMISSION_DENIED,
      "bundle '%s' has machine code for the host CPU and the policy allows %s; to trust it as much "
      "as the "
      "program itself, create the instance with host_code_policy = ACCRT_HOST_CODE_ALL (accx run "
      "--allow-host-code, or accrt.Instance(host_code=\"all\") in Python)",
      accrt_bundle_name(program->bundle), asked);
}

static accrt_status_t load_host(accrt_program_t* program, const accx_variant_t* variant,
                                const void* bytes) {
  const accx_image_t* record = &program->tables->images[variant->image];
  const accrt_status_t status = accrt_kernel_pack_load_checked(
      program->instance, bytes, record->size_bytes, accrt_program_string(program, record->name),
      variant->cpu_features, &program->images[variant->image].pack);
  if (status == ACCRT_OK)
    accrt_program_internalize(program);
  return status;
}

static accrt_status_t load_module(accrt_program_t* program, const accx_variant_t* variant,
                                  const void* bytes) {
  const accx_image_t* record = &program->tables->images[variant->image];
  const accrt_driver_table_t* driver = accrt_device_driver_table(program->device);
  const accrt_driver_image_t image = {record->kind, 0, bytes, record->size_bytes,
                                      accrt_program_string(program, record->name)};
  if (driver->module_load == NULL) {
    return ACCRT_FAIL(UNSUPPORTED,
                      "image '%s' is of kind %" PRIu32 " and driver '%s' loads no modules",
                      image.name, record->kind, driver->name);
  }
  return driver->module_load(accrt_device_driver_device(program->device), &image,
                             &program->images[variant->image].module);
}

accrt_status_t accrt_program_load_image(accrt_program_t* program, const accx_variant_t* variant) {
  accrt_program_image_t* image = &program->images[variant->image];
  if (image->loaded)
    return ACCRT_OK;
  const accx_image_t* record = &program->tables->images[variant->image];
  const bool is_host = record->kind == ACCX_IMAGE_HOST_ELF;
  const uint32_t policy = accrt_instance_host_code_policy(program->instance);
  if (is_host && policy != ACCRT_HOST_CODE_ALL)
    return fail_policy(program, policy);
  void* bytes;
  accrt_status_t status = accrt_alloc_array(program->allocator, record->size_bytes, 1, &bytes);
  if (status != ACCRT_OK)
    return status;
  status = accrt_bundle_image_copy(program->bundle, variant->image, bytes);
  if (status == ACCRT_OK) {
    status = is_host ? load_host(program, variant, bytes) : load_module(program, variant, bytes);
  }
  accrt_free_array(program->allocator, bytes, record->size_bytes, 1);
  image->loaded = status == ACCRT_OK;
  return status;
}

void accrt_program_images_destroy(accrt_program_t* program) {
  if (program->images == NULL)
    return;
  for (uint32_t i = 0; i < program->tables->image_count; ++i) {
    accrt_kernel_pack_unref(program->images[i].pack);
    if (program->images[i].module != NULL) {
      accrt_device_driver_table(program->device)->module_unload(program->images[i].module);
    }
  }
  accrt_free_array(program->allocator, program->images, program->tables->image_count,
                   sizeof *program->images);
}

/* ---- Declaration against image ---- */

static const char* parameter_difference(const accrt_kernel_param_t* declared,
                                        const accrt_kernel_param_t* own, uint32_t* out_declared,
                                        uint32_t* out_own) {
  const struct {
    const char* what;
    uint32_t declared;
    uint32_t own;
  } fields[] = {
      {"kind", declared->kind, own->kind},
      {"access", declared->access, own->access},
      {"flags", declared->flags, own->flags},
      {"offset", declared->offset_bytes, own->offset_bytes},
      {"size", declared->size_bytes, own->size_bytes},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    *out_declared = fields[i].declared;
    *out_own = fields[i].own;
    if (fields[i].declared != fields[i].own)
      return fields[i].what;
  }
  return NULL;
}

static accrt_status_t check_parameters(const char* where, const accrt_kernel_def_t* declared,
                                       const accrt_kernel_def_t* own) {
  for (uint32_t i = 0; i < declared->param_count; ++i) {
    uint32_t in_bundle;
    uint32_t in_image;
    const char* difference =
        parameter_difference(&declared->params[i], &own->params[i], &in_bundle, &in_image);
    if (difference == NULL)
      continue;
    return ACCRT_FAIL(
        INVALID_FORMAT,
        "%s: parameter %" PRIu32 " ('%s' in the bundle, '%s' in the image): %s is %" PRIu32
        " in the bundle and %" PRIu32 " in the image",
        where, i, declared->params[i].name, own->params[i].name, difference, in_bundle, in_image);
  }
  return ACCRT_OK;
}

static accrt_status_t check_definition(const char* where, const accrt_kernel_def_t* declared,
                                       const accrt_kernel_def_t* own) {
  const struct {
    const char* what;
    uint32_t declared;
    uint32_t own;
  } fields[] = {
      {"number of parameters", declared->param_count, own->param_count},
      {"size of the parameter block", declared->params_size_bytes, own->params_size_bytes},
      {"local memory", declared->local_memory_size_bytes, own->local_memory_size_bytes},
      {"set of traits", declared->traits, own->traits},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    if (fields[i].declared == fields[i].own)
      continue;
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: the %s is %" PRIu32 " in the bundle and %" PRIu32 " in the image", where,
                      fields[i].what, fields[i].declared, fields[i].own);
  }
  return check_parameters(where, declared, own);
}

static accrt_status_t find_in_pack(const accrt_program_t* program, uint32_t kernel,
                                   const char* entry, accrt_kernel_pack_t* pack,
                                   accrt_program_variant_t* variant) {
  const char* why_not = NULL;
  const accrt_kernel_t* found = accrt_kernel_pack_lookup(pack, entry, &why_not);
  const accrt_kernel_def_t* declared = &program->kernels[kernel].declared;
  if (found == NULL) {
    return ACCRT_FAIL(INVALID_FORMAT, "kernel '%s': its image has no kernel '%s'%s%s",
                      declared->name, entry, why_not != NULL ? ": " : "",
                      why_not != NULL ? why_not : "");
  }
  variant->kernel = accrt_kernel_driver_view(found);
  char where[320];
  accrt_text_t text = {where, sizeof where, 0};
  accrt_text_add(&text, "kernel '%s' (entry '%s')", declared->name, entry);
  return check_definition(where, declared, variant->kernel->definition);
}

accrt_status_t accrt_program_find_kernel(accrt_program_t* program, uint32_t kernel,
                                         accrt_program_variant_t* variant) {
  const accx_variant_t* record = &program->tables->variants[variant->index];
  const accrt_program_image_t* image = &program->images[record->image];
  const char* const entry = accrt_program_string(program, record->entry);
  if (image->pack != NULL)
    return find_in_pack(program, kernel, entry, image->pack, variant);
  variant->own.definition = &program->kernels[kernel].declared;
  variant->own.environment = accrt_kernel_environment();
  variant->kernel = &variant->own;
  const accrt_status_t status =
      accrt_device_driver_table(program->device)
          ->module_find(image->module, entry, variant->own.definition, &variant->own.module_kernel);
  if (status != ACCRT_OK)
    accrt_error_prefix("kernel '%s'", variant->own.definition->name);
  return status;
}
