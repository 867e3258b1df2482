/* runtime/program/plan_variant.c - argument predicates of kernel variants, checked when a plan is
 * made.
 *
 * A value that each call patches satisfies a predicate only if its bounds prove it. This file
 * appends no command.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/program/plan_builder.h"

static bool divides(uint64_t divisor, int64_t value) {
  return value > 0 && divisor % (uint64_t)value == 0;
}

static bool value_holds(const accrt_plan_builder_t* builder, const accx_predicate_t* predicate,
                        accrt_symbolic_value_t value) {
  const accrt_symbolic_bounds_t bounds = accrt_symbolic_bounds_of(&builder->symbolic, value);
  switch (predicate->kind) {
  case ACCX_PREDICATE_DIVISIBLE:
    return divides(bounds.divisor, predicate->value);
  case ACCX_PREDICATE_EQUAL:
    return bounds.minimum == predicate->value && bounds.maximum == predicate->value;
  case ACCX_PREDICATE_AT_MOST:
    return bounds.maximum <= predicate->value;
  case ACCX_PREDICATE_AT_LEAST:
    return bounds.minimum >= predicate->value;
  default:
    return false;
  }
}

static bool address_holds(const accrt_plan_builder_t* builder, const accx_predicate_t* predicate,
                          const accrt_plan_range_t* range) {
  if (range->slot == NULL || range->absent)
    return true; /* NULL has any alignment */
  const accrt_symbolic_bounds_t offset =
      accrt_symbolic_bounds_of(&builder->symbolic, range->offset);
  return divides(range->slot->align_bytes, predicate->value) &&
         divides(offset.divisor, predicate->value);
}

static bool predicate_holds(const accrt_plan_builder_t* builder, const accx_predicate_t* predicate,
                            const accrt_plan_operand_t* operand) {
  if (predicate->kind == ACCX_PREDICATE_ALIGNED)
    return address_holds(builder, predicate, &operand->range);
  return value_holds(builder, predicate, operand->value);
}

/* The first predicate of a variant that fails, or NULL. */
static const accx_predicate_t* failing_predicate(const accrt_plan_builder_t* builder,
                                                 const accx_variant_t* variant,
                                                 const accrt_plan_operand_t* operands) {
  for (uint32_t i = 0; i < variant->predicate_count; ++i) {
    const accx_predicate_t* predicate = &builder->tables->predicates[variant->predicate_first + i];
    if (!predicate_holds(builder, predicate, &operands[predicate->parameter]))
      return predicate;
  }
  return NULL;
}

static void describe_failure(const accrt_plan_builder_t* builder, uint32_t kernel,
                             const accx_predicate_t* predicate, const accrt_plan_operand_t* operand,
                             accrt_text_t* text) {
  static const char relations[][13] = {"",         "divisible by", "aligned to",
                                       "equal to", "at most",      "at least"};
  const char* const parameter =
      builder->program->kernels[kernel].declared.params[predicate->parameter].name;
  accrt_text_add(text, "parameter '%s' is not proved %s %" PRId64, parameter,
                 relations[predicate->kind], predicate->value);
  if (predicate->kind == ACCX_PREDICATE_ALIGNED)
    return;
  const accrt_symbolic_bounds_t bounds =
      accrt_symbolic_bounds_of(&builder->symbolic, operand->value);
  if (bounds.minimum == bounds.maximum) {
    accrt_text_add(text, " (it is %" PRId64 ")", bounds.minimum);
  } else {
    accrt_text_add(text, " (it is %" PRId64 " to %" PRId64 ", a multiple of %" PRIu64 ")",
                   bounds.minimum, bounds.maximum, bounds.divisor);
  }
}

/* The first parameter that prevents the preparation of an operator because each call patches it.
 * NONE for kernels. */
static uint32_t patched_parameter(const accrt_program_variant_t* variant,
                                  const accrt_plan_operand_t* operands) {
  if (variant->operation == NULL)
    return ACCX_NONE;
  const accrt_operator_def_t* operation = variant->operation->definition;
  for (uint32_t i = 0; i < operation->param_count; ++i) {
    const uint32_t flags = operation->params[i].flags;
    if ((flags & ACCRT_KERNEL_PARAM_FLAG_LENGTH) != 0)
      return ACCX_NONE; /* lengths are last; the runtime passes them together with the addresses */
    const bool varies = (flags & ACCRT_KERNEL_PARAM_FLAG_VARIES) != 0;
    const bool is_symbol = operation->params[i].kind == ACCRT_KERNEL_PARAM_SYMBOL;
    if (operands[i].shape_is_patched ||
        (is_symbol && !varies && !accrt_symbolic_is_constant(operands[i].value)))
      return i;
  }
  return ACCX_NONE;
}

/* The candidate for this variant, or NULL. */
static const accrt_program_variant_t* candidate_of(const accrt_program_kernel_t* kernel,
                                                   uint32_t variant) {
  for (uint32_t i = 0; i < kernel->variant_count; ++i) {
    if (kernel->variants[i].index == variant)
      return &kernel->variants[i];
  }
  return NULL;
}

static accrt_status_t fail_no_variant(const accrt_plan_builder_t* builder, uint32_t kernel,
                                      const accrt_plan_operand_t* operands) {
  const accx_kernel_t* record = &builder->tables->kernels[kernel];
  char bytes[400] = "";
  accrt_text_t text = {bytes, sizeof bytes, 0};
  for (uint32_t i = 0; i < record->variant_count; ++i) {
    const accx_variant_t* variant = &builder->tables->variants[record->variant_first + i];
    char why_not[240] = "";
    const char* const arch = accrt_program_string(builder->program, variant->arch);
    if (text.size_bytes >= sizeof bytes)
      break; /* the text is full, and there may be many more variants */
    accrt_text_add(&text, "%svariant %" PRIu32 " (%s): ", i == 0 ? "" : "; ", i,
                   arch[0] != '\0' ? arch : "portable");
    if (!accrt_variant_usable(builder->program, record->variant_first + i, why_not,
                              sizeof why_not)) {
      accrt_text_add(&text, "%s", why_not);
      continue;
    }
    const accx_predicate_t* predicate = failing_predicate(builder, variant, operands);
    if (predicate != NULL) {
      describe_failure(builder, kernel, predicate, &operands[predicate->parameter], &text);
      continue;
    }
    const accrt_program_kernel_t* candidates = &builder->program->kernels[kernel];
    const accrt_program_variant_t* candidate = candidate_of(candidates, record->variant_first + i);
    const uint32_t patched = candidate != NULL ? patched_parameter(candidate, operands) : ACCX_NONE;
    if (patched != ACCX_NONE) {
      accrt_text_add(&text,
                     "it is an operator, and %s '%s' changes from call to call with a bucket or "
                     "runtime symbol",
                     operands[patched].shape_is_patched ? "the shape of" : "the value of",
                     candidates->declared.params[patched].name);
    }
  }
  return ACCRT_FAIL(NO_VARIANT, "no variant of kernel '%s' fits its arguments: %s",
                    accrt_program_string(builder->program, record->name), bytes);
}

accrt_status_t accrt_plan_choose_variant(const accrt_plan_builder_t* builder, uint32_t kernel,
                                         const accrt_plan_operand_t* operands,
                                         const accrt_program_variant_t** out_variant) {
  const accrt_program_kernel_t* candidates = &builder->program->kernels[kernel];
  for (uint32_t i = 0; i < candidates->variant_count; ++i) {
    const accx_variant_t* variant = &builder->tables->variants[candidates->variants[i].index];
    ACCRT_TRY(accrt_charge((uint64_t)variant->predicate_count + 1));
    if (failing_predicate(builder, variant, operands) != NULL ||
        patched_parameter(&candidates->variants[i], operands) != ACCX_NONE)
      continue;
    *out_variant = &candidates->variants[i];
    return ACCRT_OK;
  }
  return fail_no_variant(builder, kernel, operands);
}
