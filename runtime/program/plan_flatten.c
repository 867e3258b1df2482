/* runtime/program/plan_flatten.c - turns a function's blocks into one list. It decides branches,
 * unrolls repeats, inlines calls, and translates predecessors within a block to predecessors in the
 * list.
 *
 * For every command of a block there is one command in the list that ends it: the command itself,
 * or the last one of its expansion. Where many commands would wait for several, a marker joins
 * those several.
 */
#include <string.h>

#include "format/names.h"
#include "runtime/program/plan_builder.h"

/* Budget steps for walking one block, without its commands. */
#define WALK_STEPS 16u
/* Budget steps for one command of a block. */
#define COMMAND_STEPS 4u

/* A block during the walk. */
typedef struct walk {
  accrt_plan_builder_t* builder;
  accrt_frame_t* frame;
  const accx_command_t* const* commands;
  uint32_t command_count;
  /* index in the list of what the block follows; NONE: nothing. A barrier changes it. */
  uint32_t entry;
  uint32_t after; /* index of the last barrier, or 0 */
  /* By command of the block: index in the list of the command that ends it; NONE: it needs no
   * wait. */
  uint32_t* complete;
  uint8_t* open; /* by command of the block: 1 while no command follows it */
} walk_t;

/* `out_end` gets the index of the command that ends the block. NULL when no command follows the
 * block. */
static accrt_status_t walk_block(accrt_plan_builder_t* builder, accrt_frame_t* frame,
                                 uint32_t block, uint32_t entry, uint32_t* out_end);

/* ---- Sets of predecessors ---- */

accrt_status_t accrt_plan_add_predecessor(accrt_plan_builder_t* builder, uint32_t flat) {
  if (flat == ACCX_NONE)
    return ACCRT_OK;
  uint32_t place = builder->predecessor_count;
  while (place > 0 && builder->predecessors[place - 1] > flat)
    --place;
  ACCRT_TRY(accrt_charge(builder->predecessor_count - place));
  if (place > 0 && builder->predecessors[place - 1] == flat)
    return ACCRT_OK;
  void* predecessors = builder->predecessors;
  ACCRT_TRY(accrt_grow_array(builder->allocator, (size_t)builder->predecessor_count + 1,
                             sizeof *builder->predecessors, &builder->predecessor_capacity,
                             &predecessors));
  builder->predecessors = predecessors;
  memmove(builder->predecessors + place + 1, builder->predecessors + place,
          (builder->predecessor_count - place) * sizeof *builder->predecessors);
  builder->predecessors[place] = flat;
  ++builder->predecessor_count;
  return ACCRT_OK;
}

/* Collects the predecessors of command `index`. */
static accrt_status_t gather(walk_t* walk, uint32_t index) {
  accrt_plan_builder_t* builder = walk->builder;
  const accx_command_t* command = walk->commands[index];
  const uint32_t* predecessors = accx_command_predecessors(command);
  builder->predecessor_count = 0;
  bool follows_entry = false; /* already ordered after the entry by one of its predecessors */
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < command->predecessor_count && status == ACCRT_OK; ++i) {
    follows_entry = follows_entry || predecessors[i] >= walk->after;
    walk->open[predecessors[i]] = 0;
    status = accrt_plan_add_predecessor(builder, walk->complete[predecessors[i]]);
  }
  if (status != ACCRT_OK || follows_entry)
    return status;
  if (index > walk->after && walk->commands[walk->after]->opcode == ACCX_COMMAND_BARRIER)
    walk->open[walk->after] = 0;
  return accrt_plan_add_predecessor(builder, walk->entry);
}

/* Returns one index that stands for all collected predecessors: the only one, or a marker's. */
static accrt_status_t join(accrt_plan_builder_t* builder, const char* name, uint32_t* out_flat) {
  *out_flat = builder->predecessor_count == 0 ? ACCX_NONE : builder->predecessors[0];
  if (builder->predecessor_count < 2 || builder->request->measure_only)
    return ACCRT_OK;
  accrt_driver_command_t marker;
  memset(&marker, 0, sizeof marker);
  marker.opcode = ACCRT_DRIVER_COMMAND_MARKER;
  marker.name = name;
  return accrt_plan_append(builder, &marker, out_flat);
}

/* Returns the index that ends all commands of the block before command `count`. */
static accrt_status_t join_open(walk_t* walk, uint32_t count, const char* name,
                                uint32_t* out_flat) {
  accrt_plan_builder_t* builder = walk->builder;
  builder->predecessor_count = 0;
  bool is_empty = true;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = walk->after; i < count && status == ACCRT_OK; ++i) {
    if (!walk->open[i])
      continue;
    is_empty = is_empty && walk->complete[i] == ACCX_NONE;
    status = accrt_plan_add_predecessor(builder, walk->complete[i]);
  }
  if (status == ACCRT_OK && is_empty)
    status = accrt_plan_add_predecessor(builder, walk->entry);
  return status != ACCRT_OK ? status : join(builder, name, out_flat);
}

/* ---- Commands that expand to others ---- */

static accrt_status_t expand_repeat(walk_t* walk, const accx_repeat_t* repeat, uint32_t entry,
                                    uint32_t* out_end) {
  accrt_frame_t* frame = walk->frame;
  int64_t count;
  ACCRT_TRY(accrt_frame_constant(walk->builder, frame, repeat->count, "count", &count));
  if (count < 0 || count > (int64_t)ACCRT_MAX_PLAN_COMMANDS) {
    return ACCRT_FAIL(OUT_OF_RANGE, "count is %" PRId64 ", allowed: 0 to %u", count,
                      ACCRT_MAX_PLAN_COMMANDS);
  }
  const uint32_t depth = frame->induction_count;
  if (depth >= ACCX_MAX_BLOCK_DEPTH)
    return ACCRT_FAIL(INVALID_FORMAT, "loops nest deeper than %u", ACCX_MAX_BLOCK_DEPTH);
  *out_end = entry;
  accrt_status_t status = ACCRT_OK;
  for (int64_t i = 0; i < count && status == ACCRT_OK; ++i) {
    frame->induction_count = depth + 1;
    frame->inductions[depth] = i;
    status = accrt_frame_evaluate(walk->builder, frame);
    if (status == ACCRT_OK)
      status = walk_block(walk->builder, frame, repeat->block, *out_end, out_end);
    if (status != ACCRT_OK && !accrt_is_end_of_budget(status))
      accrt_error_prefix("iteration %" PRId64 " of %" PRId64, i, count);
  }
  frame->induction_count = depth;
  return status != ACCRT_OK ? status : accrt_frame_evaluate(walk->builder, frame);
}

static accrt_status_t expand_branch(walk_t* walk, const accx_branch_t* branch, uint32_t entry,
                                    uint32_t* out_end) {
  int64_t condition;
  ACCRT_TRY(
      accrt_frame_constant(walk->builder, walk->frame, branch->condition, "condition", &condition));
  const uint32_t block = condition != 0 ? branch->then_block : branch->else_block;
  *out_end = entry;
  if (block == ACCX_NONE)
    return ACCRT_OK;
  return walk_block(walk->builder, walk->frame, block, entry, out_end);
}

static accrt_status_t expand_call(walk_t* walk, const accx_command_t* command, uint32_t entry,
                                  uint32_t* out_end) {
  const accx_call_t* call = accx_command_fields(command);
  accrt_frame_t callee;
  accrt_status_t status = accrt_frame_call(walk->builder, walk->frame, command, &callee);
  if (status == ACCRT_OK)
    status = walk_block(walk->builder, &callee, callee.record->body, entry, out_end);
  if (status != ACCRT_OK && !accrt_is_end_of_budget(status))
    accrt_error_prefix("in function '%s'",
                       accrt_function_name(walk->builder->program, call->function));
  accrt_frame_leave(&callee);
  if (status == ACCRT_OK)
    walk->frame->last_call = *out_end;
  return status;
}

/* Expands any command that is not a driver command. */
static accrt_status_t expand(walk_t* walk, const accx_command_t* command, uint32_t* out_end) {
  accrt_plan_builder_t* builder = walk->builder;
  accrt_status_t status = ACCRT_OK;
  if (command->opcode == ACCX_COMMAND_CALL)
    status = accrt_plan_add_predecessor(builder, walk->frame->last_call);
  uint32_t entry = ACCX_NONE;
  const char* const name =
      command->name != 0 ? accrt_program_string(builder->program, command->name) : "join";
  if (status == ACCRT_OK)
    status = join(builder, name, &entry);
  if (status != ACCRT_OK)
    return status;
  *out_end = entry;
  switch (command->opcode) {
  case ACCX_COMMAND_CALL:
    return expand_call(walk, command, entry, out_end);
  case ACCX_COMMAND_REPEAT:
    return expand_repeat(walk, accx_command_fields(command), entry, out_end);
  case ACCX_COMMAND_BRANCH:
    return expand_branch(walk, accx_command_fields(command), entry, out_end);
  case ACCX_COMMAND_COPY:
    return accrt_plan_check_condition(builder, walk->frame, command);
  default: /* a later version's command that may be ignored; it keeps its place in the order */
    return ACCRT_OK;
  }
}

/* ---- Blocks ---- */

static bool is_leaf(const accx_command_t* command) {
  return accx_command_known(command) && (accx_commands_of_devices() >> command->opcode & 1) != 0;
}

static const char* command_name(const accrt_plan_builder_t* builder,
                                const accx_command_t* command) {
  if (command->name != 0)
    return accrt_program_string(builder->program, command->name);
  return accx_command_known(command) ? accx_number_name(ACCX_NUMBERS_OPCODE, command->opcode)
                                     : "command";
}

static accrt_status_t walk_barrier(walk_t* walk, uint32_t index) {
  const accrt_status_t status = join_open(walk, index, "barrier", &walk->entry);
  walk->after = index;
  walk->complete[index] = walk->entry;
  return status;
}

/* When only measuring, a leaf command matters only if it may be an operator, which needs
 * workspace. */
static bool needs_measuring(const accrt_plan_builder_t* builder, const accx_command_t* command) {
  if (command->opcode != ACCX_COMMAND_DISPATCH)
    return false;
  const accx_dispatch_t* dispatch = accx_command_fields(command);
  const accrt_program_kernel_t* kernel = &builder->program->kernels[dispatch->kernel];
  for (uint32_t i = 0; i < kernel->variant_count; ++i) {
    if (kernel->variants[i].operation != NULL)
      return true;
  }
  return false;
}

static accrt_status_t walk_command(walk_t* walk, uint32_t index) {
  const accx_command_t* command = walk->commands[index];
  ACCRT_TRY(accrt_charge((uint64_t)command->predecessor_count + COMMAND_STEPS));
  walk->open[index] = 1;
  walk->complete[index] = ACCX_NONE;
  if (command->opcode == ACCX_COMMAND_BARRIER)
    return walk_barrier(walk, index);
  ACCRT_TRY(gather(walk, index));
  if (!is_leaf(command) || accrt_plan_is_condition(walk->builder, walk->frame, command))
    return expand(walk, command, &walk->complete[index]);
  if (walk->builder->request->measure_only && !needs_measuring(walk->builder, command))
    return ACCRT_OK;
  return accrt_plan_lower(walk->builder, walk->frame, command, &walk->complete[index]);
}

/* Puts the command of a failure before the message, with its source location if the bundle has one.
 * The name is left out where the message begins with it already, as for conditions. */
static void name_command(const walk_t* walk, uint32_t index) {
  const accrt_plan_builder_t* builder = walk->builder;
  const accx_command_t* command = walk->commands[index];
  const char* name = command_name(builder, command);
  const char *before = " '", *after = "'";
  if (strncmp(accrt_error_current()->message, name, strlen(name)) == 0)
    name = before = after = "";
  if (command->location == ACCX_NONE) {
    accrt_error_prefix("command %" PRIu32 "%s%s%s", index, before, name, after);
    return;
  }
  const accx_location_t* location = &builder->tables->locations[command->location];
  accrt_error_prefix("command %" PRIu32 "%s%s%s (%.128s:%" PRIu32 ")", index, before, name, after,
                     accrt_program_string(builder->program, location->file), location->line);
}

static accrt_status_t walk_commands(walk_t* walk, uint32_t* out_end) {
  for (uint32_t i = 0; i < walk->command_count; ++i) {
    const accrt_status_t status = walk_command(walk, i);
    if (status == ACCRT_OK)
      continue;
    if (!accrt_is_end_of_budget(status))
      name_command(walk, i);
    return status;
  }
  return out_end == NULL ? ACCRT_OK : join_open(walk, walk->command_count, "join", out_end);
}

static accrt_status_t walk_block(accrt_plan_builder_t* builder, accrt_frame_t* frame,
                                 uint32_t block, uint32_t entry, uint32_t* out_end) {
  walk_t walk;
  memset(&walk, 0, sizeof walk);
  walk.builder = builder;
  walk.frame = frame;
  walk.commands = accrt_bundle_block_commands(builder->tables, block);
  walk.command_count = builder->tables->blocks[block].command_count;
  walk.entry = entry;
  void* complete = NULL;
  void* open = NULL;
  /* Even a block without commands costs time. */
  accrt_status_t status = accrt_charge(WALK_STEPS);
  if (status == ACCRT_OK)
    status =
        accrt_alloc_array(builder->allocator, walk.command_count, sizeof *walk.complete, &complete);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(builder->allocator, walk.command_count, 1, &open);
  walk.complete = complete;
  walk.open = open;
  if (status == ACCRT_OK)
    status = walk_commands(&walk, out_end);
  accrt_free_array(builder->allocator, complete, walk.command_count, sizeof *walk.complete);
  accrt_free_array(builder->allocator, open, walk.command_count, 1);
  return status;
}

accrt_status_t accrt_plan_flatten(accrt_plan_builder_t* builder, accrt_frame_t* frame) {
  return walk_block(builder, frame, frame->record->body, ACCX_NONE, NULL);
}
