/* runtime/program/reachable.c - the parts of a bundle that a device needs: functions that calls can
 * reach, the kernels and constants that those use, and the prepare functions that make the
 * constants.
 *
 * A device uses the version of a function for its driver, or else the version for any driver. This
 * file loads and places nothing.
 */

#include "runtime/program/internal.h"

static const char* driver_name(const accrt_program_t* program) {
  return accrt_device_facts(program->device)->driver;
}

/* True when this device uses `function` and not another version of the same name. */
static bool is_version_here(const accrt_program_t* program, uint32_t function) {
  const uint32_t first = program->tables->function_first[function];
  return accrt_bundle_function_for(program->tables, first, driver_name(program)) == function;
}

/* Blocks are stored in the order of their functions. */
static void visit_blocks(accrt_program_t* program, uint32_t function, uint8_t reason) {
  const accrt_bundle_tables_t* tables = program->tables;
  accrt_program_reach_t* reach = &program->reach;
  const uint32_t end = function + 1 < tables->function_count ? tables->functions[function + 1].body
                                                             : tables->block_count;
  for (uint32_t block = tables->functions[function].body; block < end; ++block) {
    const accx_command_t* const* commands = accrt_bundle_block_commands(tables, block);
    for (uint32_t i = 0; i < tables->blocks[block].command_count; ++i) {
      const void* fields = accx_command_fields(commands[i]);
      if (commands[i]->opcode == ACCX_COMMAND_DISPATCH)
        reach->kernels[((const accx_dispatch_t*)fields)->kernel] = 1;
      if (commands[i]->opcode == ACCX_COMMAND_CALL)
        reach->functions[((const accx_call_t*)fields)->function] |= reason;
    }
  }
}

static void visit_constants(accrt_program_t* program, uint32_t function) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_function_t* record = &tables->functions[function];
  for (uint32_t i = 0; i < record->slot_count; ++i) {
    const accx_slot_t* slot = &tables->slots[record->slot_first + i];
    if (slot->kind != ACCX_SLOT_CONSTANT)
      continue;
    const uint32_t first = tables->constants[slot->index].component_first;
    program->reach.components[first + slot->component] = 1;
  }
}

/* A callee has a lower index than its callers. So one pass from the last function to the first
 * visits each caller before its callees. */
static void visit_functions(accrt_program_t* program, uint8_t reason) {
  for (uint32_t i = program->tables->function_count; i-- > 0;) {
    if ((program->reach.functions[i] & reason) == 0)
      continue;
    visit_blocks(program, i, reason);
    if (reason == ACCRT_REACH_RUN)
      visit_constants(program, i);
  }
}

static bool constant_is_used(const accrt_program_t* program, uint32_t constant) {
  const accx_constant_t* record = &program->tables->constants[constant];
  for (uint32_t i = 0; i < record->component_count; ++i) {
    if (program->reach.components[record->component_first + i])
      return true;
  }
  return false;
}

static bool makes_what_is_used(const accrt_program_t* program, uint32_t function) {
  const accx_function_t* record = &program->tables->functions[function];
  const accx_argument_t* results =
      accrt_function_arguments(program, function) + record->input_count;
  for (uint32_t i = 0; i < record->result_count; ++i) {
    if (constant_is_used(program, results[i].constant))
      return true;
  }
  return false;
}

static void mark_roots(accrt_program_t* program) {
  const accrt_bundle_tables_t* tables = program->tables;
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    const accx_function_t* record = &tables->functions[i];
    const bool is_public = (record->flags & (ACCX_FUNCTION_PREPARE | ACCX_FUNCTION_INTERNAL)) == 0;
    const bool is_known = (record->required_features & ~ACCX_FUNCTION_FEATURES_KNOWN) == 0;
    if (is_public && is_known && is_version_here(program, i))
      program->reach.functions[i] |= ACCRT_REACH_RUN;
  }
}

/* Marks the functions that make constants which calls use. `made` gets all constants that they
 * make. */
static void mark_makers(accrt_program_t* program, uint8_t* made) {
  const accrt_bundle_tables_t* tables = program->tables;
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    const accx_function_t* record = &tables->functions[i];
    if ((record->flags & ACCX_FUNCTION_PREPARE) == 0 || !makes_what_is_used(program, i) ||
        !is_version_here(program, i))
      continue;
    program->reach.functions[i] |= ACCRT_REACH_PREPARE;
    const accx_argument_t* results = accrt_function_arguments(program, i) + record->input_count;
    for (uint32_t r = 0; r < record->result_count; ++r)
      made[results[r].constant] = 1;
  }
}

static accrt_status_t check_made(const accrt_program_t* program, const uint8_t* made) {
  const accrt_bundle_tables_t* tables = program->tables;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    if (tables->constants[i].source != ACCX_CONSTANT_PREPARED || made[i] ||
        !constant_is_used(program, i))
      continue;
    return ACCRT_FAIL(NO_VARIANT, "constant '%s' is made by no prepare function that runs on %s",
                      accrt_program_string(program, tables->constants[i].name),
                      accrt_device_facts(program->device)->name);
  }
  return ACCRT_OK;
}

static accrt_status_t allocate(accrt_program_t* program) {
  const accrt_bundle_tables_t* tables = program->tables;
  const struct {
    uint32_t count;
    uint8_t** place;
  } arrays[] = {{tables->function_count, &program->reach.functions},
                {tables->kernel_count, &program->reach.kernels},
                {tables->component_count, &program->reach.components}};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i) {
    void* memory;
    ACCRT_TRY(accrt_alloc_array(program->allocator, arrays[i].count, 1, &memory));
    *arrays[i].place = memory;
  }
  return ACCRT_OK;
}

accrt_status_t accrt_program_reach_create(accrt_program_t* program) {
  const uint32_t constant_count = program->tables->constant_count;
  void* made = NULL;
  accrt_status_t status = allocate(program);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(program->allocator, constant_count, 1, &made);
  if (status == ACCRT_OK) {
    mark_roots(program);
    visit_functions(program, ACCRT_REACH_RUN);
    mark_makers(program, made);
    visit_functions(program, ACCRT_REACH_PREPARE);
    status = check_made(program, made);
  }
  accrt_free_array(program->allocator, made, constant_count, 1);
  return status;
}

void accrt_program_reach_destroy(accrt_program_t* program) {
  const accrt_bundle_tables_t* tables = program->tables;
  accrt_free_array(program->allocator, program->reach.functions, tables->function_count, 1);
  accrt_free_array(program->allocator, program->reach.kernels, tables->kernel_count, 1);
  accrt_free_array(program->allocator, program->reach.components, tables->component_count, 1);
}
