/* runtime/program/kernels.c - the kernels of a program: their declarations, the usable variants in
 * order of preference, and messages that say why each other variant cannot run.
 *
 * It ignores argument predicates. plan_variant.c checks them when a plan is made.
 */
#include <stdio.h>
#include <string.h>

#include "format/sort.h"
#include "runtime/core/struct.h"
#include "runtime/program/internal.h"

/* Budget steps for checking whether one variant fits. */
#define VARIANT_STEPS 16u

static accrt_status_t declare(accrt_program_t* program, uint32_t index) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_kernel_t* record = &tables->kernels[index];
  accrt_program_kernel_t* kernel = &program->kernels[index];
  accrt_kernel_def_t* declared = &kernel->declared;
  void* params;
  ACCRT_TRY(accrt_alloc_array(program->allocator, record->parameter_count, sizeof *kernel->params,
                              &params));
  kernel->params = params;
  declared->struct_size = (uint32_t)sizeof *declared;
  declared->traits = record->traits;
  declared->name = accrt_program_string(program, record->name);
  declared->params = kernel->params;
  declared->param_count = record->parameter_count;
  declared->params_size_bytes = record->params_size_bytes;
  declared->local_memory_size_bytes = record->local_memory_size_bytes;
  for (uint32_t i = 0; i < record->parameter_count; ++i) {
    const accx_parameter_t* from = &tables->parameters[record->parameter_first + i];
    accrt_kernel_param_t* to = &kernel->params[i];
    to->name = accrt_program_string(program, from->name);
    to->kind = from->kind;
    to->access = from->access;
    to->flags = from->flags;
    to->align_log2 = from->align_log2;
    to->offset_bytes = from->offset_bytes;
    to->size_bytes = from->size_bytes;
  }
  return ACCRT_OK;
}

static bool is_preferred(const void* context, uint32_t a, uint32_t b) {
  return accrt_variant_compare(context, a, b) < 0;
}

/* Sorts the variants that fit by preference. `indices` has room for all variants. */
static accrt_status_t sort_variants(const accrt_program_t* program, uint32_t index,
                                    uint32_t* indices) {
  const accx_kernel_t* record = &program->tables->kernels[index];
  accrt_program_kernel_t* kernel = &program->kernels[index];
  for (uint32_t i = 0; i < record->variant_count; ++i) {
    char why_not[160];
    const uint32_t variant = record->variant_first + i;
    ACCRT_TRY(accrt_charge(VARIANT_STEPS));
    if (accrt_variant_fits(program, &program->tables->variants[variant], why_not, sizeof why_not))
      indices[kernel->variant_count++] = variant;
  }
  accx_sort(indices, kernel->variant_count, is_preferred, program);
  for (uint32_t i = 0; i < kernel->variant_count; ++i)
    kernel->variants[i].index = indices[i];
  return ACCRT_OK;
}

static void describe_variant(const accrt_program_t* program, uint32_t kernel, uint32_t variant,
                             accrt_text_t* text) {
  const accx_variant_t* record = &program->tables->variants[variant];
  accrt_text_add(
      text,
      "variant %" PRIu32 " (%s %s): ", variant - program->tables->kernels[kernel].variant_first,
      accrt_program_string(program, record->driver),
      record->arch_kind == ACCX_ARCH_PORTABLE ? "portable"
                                              : accrt_program_string(program, record->arch));
}

static accrt_status_t fail_no_variant(const accrt_program_t* program, uint32_t kernel) {
  const accx_kernel_t* record = &program->tables->kernels[kernel];
  char bytes[400] = "";
  accrt_text_t text = {bytes, sizeof bytes, 0};
  for (uint32_t i = 0; i < record->variant_count; ++i) {
    char why_not[240] = "";
    const uint32_t index = record->variant_first + i;
    if (text.size_bytes >= sizeof bytes)
      break; /* the text is full, and there may be many more variants */
    (void)accrt_variant_usable(program, index, why_not, sizeof why_not);
    accrt_text_add(&text, "%s", i == 0 ? "" : "; ");
    describe_variant(program, kernel, index, &text);
    accrt_text_add(&text, "%s", why_not);
  }
  return ACCRT_FAIL(NO_VARIANT, "kernel '%s' cannot run on %s: %s",
                    accrt_program_string(program, record->name),
                    accrt_device_facts(program->device)->name,
                    record->variant_count == 0 ? "it has no variants" : bytes);
}

static accrt_status_t choose_variants(accrt_program_t* program, uint32_t index) {
  const accx_kernel_t* record = &program->tables->kernels[index];
  accrt_program_kernel_t* kernel = &program->kernels[index];
  ACCRT_TRY(ACCRT_NEW_ARRAY(program->allocator, record->variant_count, &kernel->variants));
  kernel->variant_capacity = record->variant_count;
  void* indices;
  accrt_status_t status =
      accrt_alloc_array(program->allocator, record->variant_count, sizeof(uint32_t), &indices);
  if (status == ACCRT_OK)
    status = sort_variants(program, index, indices);
  accrt_free_array(program->allocator, indices, record->variant_count, sizeof(uint32_t));
  if (status != ACCRT_OK)
    return status;
  return kernel->variant_count != 0 ? ACCRT_OK : fail_no_variant(program, index);
}

/* True when a variant fits any arguments: it has no predicates. An operator must also have no
 * tensor parameters and no symbols that its preparation needs, because those may change between
 * calls. */
static bool always_fits(const accrt_program_t* program, const accrt_program_kernel_t* kernel,
                        const accrt_program_variant_t* variant) {
  if (program->tables->variants[variant->index].predicate_count != 0)
    return false;
  for (uint32_t i = 0; variant->operation != NULL && i < kernel->declared.param_count; ++i) {
    const accrt_kernel_param_t* param = &variant->operation->definition->params[i];
    const bool varies = (param->flags & ACCRT_KERNEL_PARAM_FLAG_VARIES) != 0;
    if (param->kind == ACCRT_KERNEL_PARAM_TENSOR ||
        (param->kind == ACCRT_KERNEL_PARAM_SYMBOL && !varies))
      return false;
  }
  return true;
}

/* Loads the variants in order and keeps the usable ones. Variants after one that always fits are
 * never chosen, so their code is not loaded. */
static accrt_status_t load_variants(accrt_program_t* program, uint32_t index) {
  accrt_program_kernel_t* kernel = &program->kernels[index];
  const uint32_t candidates = kernel->variant_count;
  kernel->variant_count = 0;
  for (uint32_t i = 0; i < candidates; ++i) {
    const uint32_t variant = kernel->variants[i].index;
    accrt_program_variant_t* place = &kernel->variants[kernel->variant_count];
    memset(place, 0, sizeof *place);
    place->index = variant;
    ACCRT_TRY(accrt_checkpoint());
    char refusal[240] = "";
    ACCRT_TRY(accrt_program_load_variant(program, index, place, refusal, sizeof refusal));
    if (refusal[0] != '\0')
      ACCRT_TRY(accrt_copy_string(program->allocator, refusal, &program->refusals[variant]));
    if (refusal[0] != '\0')
      continue;
    ++kernel->variant_count;
    if (always_fits(program, kernel, place))
      break;
  }
  return kernel->variant_count != 0 ? ACCRT_OK : fail_no_variant(program, index);
}

static accrt_status_t allocate(accrt_program_t* program) {
  const accrt_bundle_tables_t* tables = program->tables;
  void* memory;
  ACCRT_TRY(
      accrt_alloc_array(program->allocator, tables->image_count, sizeof *program->images, &memory));
  program->images = memory;
  ACCRT_TRY(accrt_alloc_array(program->allocator, tables->variant_count, sizeof *program->refusals,
                              &memory));
  program->refusals = memory;
  accrt_status_t status = accrt_alloc_array(program->allocator, tables->kernel_count,
                                            sizeof *program->kernels, &memory);
  program->kernels = memory;
  return status;
}

accrt_status_t accrt_program_kernels_create(accrt_program_t* program) {
  const accrt_bundle_tables_t* tables = program->tables;
  accrt_status_t status = allocate(program);
  for (uint32_t i = 0; i < tables->kernel_count && status == ACCRT_OK; ++i) {
    if (!program->reach.kernels[i])
      continue;
    status = declare(program, i);
    if (status == ACCRT_OK)
      status = choose_variants(program, i);
  }
  /* Check all kernels first. Code is loaded only for a bundle that can run. */
  for (uint32_t i = 0; i < tables->kernel_count && status == ACCRT_OK; ++i) {
    if (program->reach.kernels[i])
      status = load_variants(program, i);
  }
  return status;
}

void accrt_program_kernels_destroy(accrt_program_t* program) {
  const accrt_bundle_tables_t* tables = program->tables;
  if (program->kernels != NULL) {
    for (uint32_t i = 0; i < tables->kernel_count; ++i) {
      accrt_program_kernel_t* kernel = &program->kernels[i];
      accrt_free_array(program->allocator, kernel->params, kernel->declared.param_count,
                       sizeof *kernel->params);
      accrt_free_array(program->allocator, kernel->variants, kernel->variant_capacity,
                       sizeof *kernel->variants);
    }
  }
  accrt_free_array(program->allocator, program->kernels, tables->kernel_count,
                   sizeof *program->kernels);
  for (uint32_t i = 0; program->refusals != NULL && i < tables->variant_count; ++i)
    accrt_free_string(program->allocator, program->refusals[i]);
  accrt_free_array(program->allocator, program->refusals, tables->variant_count,
                   sizeof *program->refusals);
  accrt_program_images_destroy(program);
}

/* ---- What was chosen ---- */

static uint32_t default_variant(const accrt_program_t* program, uint32_t kernel) {
  const accrt_program_kernel_t* chosen = &program->kernels[kernel];
  for (uint32_t i = 0; i < chosen->variant_count; ++i) {
    if (program->tables->variants[chosen->variants[i].index].predicate_count == 0)
      return chosen->variants[i].index;
  }
  return chosen->variants[0].index;
}

static bool is_candidate(const accrt_program_kernel_t* kernel, uint32_t variant) {
  for (uint32_t i = 0; i < kernel->variant_count; ++i) {
    if (kernel->variants[i].index == variant)
      return true;
  }
  return false;
}

static void explain(const accrt_program_t* program, uint32_t kernel, uint32_t chosen,
                    accrt_text_t* text) {
  const accx_kernel_t* record = &program->tables->kernels[kernel];
  for (uint32_t i = 0; i < record->variant_count; ++i) {
    const uint32_t index = record->variant_first + i;
    char why_not[240] = "";
    if (i != 0)
      accrt_text_add(text, "; ");
    describe_variant(program, kernel, index, text);
    if (!accrt_variant_usable(program, index, why_not, sizeof why_not)) {
      accrt_text_add(text, "%s", why_not);
    } else if (index == chosen) {
      accrt_text_add(text, "chosen");
    } else if (is_candidate(&program->kernels[kernel], index)) {
      accrt_text_add(text, "%s",
                     program->tables->variants[index].predicate_count != 0
                         ? "where its argument predicates hold"
                         : "where sizes change from call to call");
    } else {
      accrt_text_add(text, "another is preferred");
    }
  }
}

accrt_status_t accrt_program_variant(accrt_program_t* program, uint32_t kernel,
                                     uint32_t* out_variant, char* text, uint64_t capacity_bytes,
                                     uint64_t* out_size_bytes) {
  if (out_variant != NULL)
    *out_variant = 0;
  if (out_size_bytes != NULL)
    *out_size_bytes = 0;
  ACCRT_ENTER(program);
  if (text == NULL && capacity_bytes != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "text is NULL");
  if (kernel >= program->tables->kernel_count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "kernel %" PRIu32 " of %" PRIu32, kernel,
                      program->tables->kernel_count);
  }
  if (!program->reach.kernels[kernel]) {
    return ACCRT_FAIL(NO_VARIANT, "kernel '%s': no function for %s uses it",
                      accrt_program_string(program, program->tables->kernels[kernel].name),
                      accrt_device_facts(program->device)->name);
  }
  const uint32_t chosen = default_variant(program, kernel);
  accrt_text_t line = {text, (size_t)capacity_bytes, 0};
  explain(program, kernel, chosen, &line);
  if (out_variant != NULL)
    *out_variant = chosen - program->tables->kernels[kernel].variant_first;
  if (out_size_bytes != NULL)
    *out_size_bytes = line.size_bytes + 1;
  if (capacity_bytes != 0 && line.size_bytes + 1 > capacity_bytes) {
    return ACCRT_FAIL(OUT_OF_RANGE, "the text needs %zu bytes, %" PRIu64 " were given",
                      line.size_bytes + 1, capacity_bytes);
  }
  return ACCRT_OK;
}
