/* runtime/program/image.c - the machine code of variants on a device: trust policy, loading, packs
 * outside the bundle, and the comparison of a kernel's own definition with the bundle's
 * declaration.
 *
 * It chooses no variant (kernels.c does).
 */
#include <string.h>

#include "loader/trust.h"
#include "runtime/program/internal.h"

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

/* True for a failure that means that the code is not for this device or machine. The function
 * then copies the failure's text to `out_refusal` and restores the thread's error record from
 * `saved`. */
static bool is_refusal(accrt_status_t status, const accrt_error_t* saved, char* out_refusal,
                       size_t capacity_bytes) {
  if (status != ACCRT_ERROR_NO_VARIANT)
    return false;
  accrt_text_t text = {out_refusal, capacity_bytes, 0};
  accrt_text_add(&text, "%s", accrt_error_current()->message);
  (void)accrt_error_restore(saved);
  return true;
}

/* A pack outside the bundle is installed separately. Any failure to load it (except out of memory)
 * therefore only rules out its variants. */
static accrt_status_t load_pack(accrt_program_t* program, uint32_t image) {
  const char* const name = accrt_program_string(program, program->tables->images[image].name);
  accrt_status_t status = accrt_bundle_allow_pack(program->bundle, image);
  if (status == ACCRT_OK)
    status = accrt_kernel_pack_obtain(program->instance, name, &program->images[image].pack);
  if (status == ACCRT_OK || status == ACCRT_ERROR_OUT_OF_MEMORY)
    return status;
  accrt_error_t error = *accrt_error_current();
  error.status = ACCRT_ERROR_NO_VARIANT;
  (void)accrt_error_restore(&error);
  accrt_error_prefix("pack '%s'", name);
  return ACCRT_ERROR_NO_VARIANT;
}

static accrt_status_t load_code(accrt_program_t* program, const accx_variant_t* variant) {
  const accx_image_t* record = &program->tables->images[variant->image];
  const bool is_host = record->kind == ACCX_IMAGE_HOST_ELF;
  void* bytes;
  ACCRT_TRY(accrt_alloc_array(program->allocator, record->size_bytes, 1, &bytes));
  accrt_status_t status = accrt_bundle_image_copy(program->bundle, variant->image, bytes);
  if (status == ACCRT_OK && is_host)
    status = accrt_bundle_allow_image(program->bundle, variant->image, bytes);
  if (status == ACCRT_OK) {
    status = is_host ? load_host(program, variant, bytes) : load_module(program, variant, bytes);
  }
  accrt_free_array(program->allocator, bytes, record->size_bytes, 1);
  return status;
}

/* Loads the image's code on the first call for it. Later calls keep the outcome, loaded or refused.
 * `variant` is the variant that needs the code. */
static accrt_status_t load_image(accrt_program_t* program, const accx_variant_t* variant) {
  accrt_program_image_t* image = &program->images[variant->image];
  if (image->loaded || image->refused)
    return ACCRT_OK;
  const accrt_error_t saved = *accrt_error_current();
  const bool is_pack = program->tables->images[variant->image].kind == ACCX_IMAGE_PACK;
  const accrt_status_t status =
      is_pack ? load_pack(program, variant->image) : load_code(program, variant);
  image->loaded = status == ACCRT_OK;
  image->refused = is_refusal(status, &saved, image->refusal, sizeof image->refusal);
  return image->refused ? ACCRT_OK : status;
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

/* The bundle does not declare the lengths of a pack's kernel. They follow the declared
 * parameters. */
static bool blocks_agree(const accrt_kernel_def_t* declared, const accrt_kernel_param_t* own,
                         uint32_t own_count, uint32_t own_bytes, uint32_t lengths) {
  const uint32_t count = own_count - lengths;
  return declared->param_count == count &&
         (lengths > 0 ? declared->params_size_bytes <= own[count].offset_bytes
                      : declared->params_size_bytes == own_bytes);
}

static accrt_status_t check_definition(const char* where, const accrt_kernel_def_t* declared,
                                       const accrt_kernel_def_t* own) {
  accrt_kernel_param_t params[ACCRT_KERNEL_MAX_PARAMS];
  const uint32_t lengths = accrt_kernel_plain_params(own->params, own->param_count, params);
  const bool agree =
      blocks_agree(declared, params, own->param_count, own->params_size_bytes, lengths);
  accrt_kernel_def_t plain = *own;
  plain.params = params;
  const uint32_t traits = own->traits & ~ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL;
  const struct {
    const char* what;
    uint32_t declared;
    uint32_t own;
  } fields[] = {
      {"number of parameters", declared->param_count, own->param_count - lengths},
      {"size of the parameter block", declared->params_size_bytes,
       agree ? declared->params_size_bytes : own->params_size_bytes},
      {"local memory", declared->local_memory_size_bytes, own->local_memory_size_bytes},
      {"set of traits", declared->traits, traits},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    if (fields[i].declared == fields[i].own)
      continue;
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: the %s is %" PRIu32 " in the bundle and %" PRIu32 " in the image", where,
                      fields[i].what, fields[i].declared, fields[i].own);
  }
  return check_parameters(where, declared, &plain);
}

/* A pack's operator defines its own traits and workspace. The bundle declares only its
 * parameters. */
static accrt_status_t check_operator(const accrt_program_t* program, const char* where,
                                     const accrt_kernel_def_t* declared,
                                     const accrt_driver_operator_t* operation) {
  const accrt_device_info_t* device = accrt_device_facts(program->device);
  const accrt_operator_def_t* own = operation->definition;
  if (own->device_type != 0 && own->device_type != device->dlpack_device_type) {
    return ACCRT_FAIL(NO_VARIANT,
                      "%s: the operator is for devices of type %" PRIu32 ", %s is of %" PRIu32,
                      where, own->device_type, device->name, device->dlpack_device_type);
  }
  accrt_kernel_param_t params[ACCRT_KERNEL_MAX_PARAMS];
  const uint32_t lengths = accrt_kernel_plain_params(own->params, own->param_count, params);
  if (!blocks_agree(declared, params, own->param_count, own->params_size_bytes, lengths)) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "%s: %" PRIu32 " parameters in %" PRIu32 " bytes in the bundle, %" PRIu32
                      " in %" PRIu32 " in the pack",
                      where, declared->param_count, declared->params_size_bytes,
                      own->param_count - lengths, own->params_size_bytes);
  }
  accrt_kernel_def_t definition = *declared;
  definition.params = params;
  return check_parameters(where, declared, &definition);
}

/* Checks a kernel or operator that was found in a pack. Packs have host code for host devices, and
 * operators; kernels for other devices come in modules. A bundle chooses the arguments, so the
 * author of a pack outside the bundle must have allowed such calls. */
static accrt_status_t check_found(const accrt_program_t* program, const char* where,
                                  const accrt_kernel_def_t* declared,
                                  const accrt_program_variant_t* variant, bool is_outside) {
  const char* refused =
      is_outside ? accrt_kernel_bundles_refused(variant->operation != NULL
                                                    ? variant->operation->definition->traits
                                                    : variant->kernel->definition->traits)
                 : NULL;
  if (refused != NULL)
    return ACCRT_FAIL(NO_VARIANT, "%s: %s", where, refused);
  if (variant->operation != NULL)
    return check_operator(program, where, declared, variant->operation);
  const accrt_device_info_t* device = accrt_device_facts(program->device);
  if ((device->flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) == 0)
    return ACCRT_FAIL(NO_VARIANT, "%s: it is host code, and %s runs none", where, device->name);
  return check_definition(where, declared, variant->kernel->definition);
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
  variant->operation = accrt_kernel_operator_view(found);
  variant->kernel = variant->operation == NULL ? accrt_kernel_driver_view(found) : NULL;
  char where[320];
  accrt_text_t text = {where, sizeof where, 0};
  accrt_text_add(&text, "kernel '%s' (entry '%s')", declared->name, entry);
  const uint32_t image = program->tables->variants[variant->index].image;
  return check_found(program, where, declared, variant,
                     program->tables->images[image].kind == ACCX_IMAGE_PACK);
}

/* Fills the definition from the bundle's declaration of the kernel and of this variant's launch. */
static void define_module_kernel(const accrt_program_t* program, uint32_t kernel,
                                 accrt_program_variant_t* variant) {
  const accx_launch_t* launch = accrt_bundle_launch(program->tables, variant->index);
  variant->definition = program->kernels[kernel].declared;
  variant->definition.local_memory_size_bytes = launch->dynamic_shared_bytes;
  variant->definition.traits |= launch->traits;
  memcpy(variant->definition.block, launch->block, sizeof launch->block);
  memcpy(variant->definition.cluster, launch->cluster, sizeof launch->cluster);
  variant->own.definition = &variant->definition;
  variant->own.environment = accrt_kernel_environment();
  variant->kernel = &variant->own;
}

static accrt_status_t find_kernel(accrt_program_t* program, uint32_t kernel,
                                  accrt_program_variant_t* variant) {
  const accx_variant_t* record = &program->tables->variants[variant->index];
  const accrt_program_image_t* image = &program->images[record->image];
  const char* const entry = accrt_program_string(program, record->entry);
  if (image->pack != NULL)
    return find_in_pack(program, kernel, entry, image->pack, variant);
  define_module_kernel(program, kernel, variant);
  const accrt_status_t status =
      accrt_device_driver_table(program->device)
          ->module_find(image->module, entry, variant->own.definition, &variant->own.module_kernel);
  if (status != ACCRT_OK)
    accrt_error_prefix("kernel '%s'", variant->own.definition->name);
  return status;
}

accrt_status_t accrt_program_load_variant(accrt_program_t* program, uint32_t kernel,
                                          accrt_program_variant_t* variant, char* out_refusal,
                                          size_t capacity_bytes) {
  const accx_variant_t* record = &program->tables->variants[variant->index];
  const accrt_program_image_t* image = &program->images[record->image];
  ACCRT_TRY(load_image(program, record));
  if (image->refused) {
    accrt_text_t text = {out_refusal, capacity_bytes, 0};
    accrt_text_add(&text, "%s", image->refusal);
    return ACCRT_OK;
  }
  const accrt_error_t saved = *accrt_error_current();
  accrt_status_t status = find_kernel(program, kernel, variant);
  const bool is_pack = program->tables->images[record->image].kind == ACCX_IMAGE_PACK;
  /* A pack's version may differ from the one that the bundle was made for. A kernel may also need
   * more of a resource than the device has. */
  if (status == (is_pack ? ACCRT_ERROR_INVALID_FORMAT : ACCRT_ERROR_UNSUPPORTED))
    status = ACCRT_ERROR_NO_VARIANT;
  return is_refusal(status, &saved, out_refusal, capacity_bytes) ? ACCRT_OK : status;
}
