/* runtime/drivers/cuda/graph_plan.c - plans a list: commands become nodes or are submitted alone;
 * segments become chains or branches; each input gets the commands that depend on it. It may not
 * call CUDA. */
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/drivers/cuda/graph.h"

/* ---- The inputs of a command ---- */

/* Visits each input of a command; some more than once. */
typedef struct input_visitor {
  void (*visit)(struct input_visitor* self, uint32_t input);
  const cuda_plan_t* plan;
} input_visitor_t;

static void visit_value(input_visitor_t* visitor, const accrt_driver_value_t* value) {
  if (value->scalar != ACCRT_DRIVER_NONE)
    visitor->visit(visitor, visitor->plan->binding_count + value->scalar);
}

static void visit_values(input_visitor_t* visitor, const accrt_driver_value_t* values,
                         uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    visit_value(visitor, &values[i]);
}

/* Visits the range's start. Only fills and operators depend on a range's size as well. */
static void visit_address(input_visitor_t* visitor, const accrt_driver_range_t* range) {
  if (range->binding != ACCRT_DRIVER_NONE)
    visitor->visit(visitor, range->binding);
  visit_value(visitor, &range->offset);
}

static void visit_patches(input_visitor_t* visitor, const accrt_driver_patch_t* patches,
                          uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (patches[i].kind == ACCRT_DRIVER_PATCH_ADDRESS)
      visit_address(visitor, &patches[i].range);
    else
      visit_value(visitor, &patches[i].value);
  }
}

static void visit_copy(input_visitor_t* visitor, const accrt_driver_copy_t* copy) {
  visit_address(visitor, &copy->source);
  visit_address(visitor, &copy->target);
  visit_values(visitor, copy->extent, 3);
  visit_values(visitor, copy->source_stride_bytes, 2);
  visit_values(visitor, copy->target_stride_bytes, 2);
}

static void visit_inputs(input_visitor_t* visitor, const cuda_planned_t* planned) {
  const accrt_driver_command_t* command = planned->command;
  switch (planned->kind) {
  case CUDA_NODE_KERNEL:
    visit_patches(visitor, command->as.dispatch.patches, command->as.dispatch.patch_count);
    visit_values(visitor, command->as.dispatch.grid, 3);
    break;
  case CUDA_NODE_COPY:
    visit_copy(visitor, &command->as.copy);
    break;
  case CUDA_NODE_FILL:
    visit_address(visitor, &command->as.fill.target);
    visit_value(visitor, &command->as.fill.target.size_bytes);
    break;
  case CUDA_NODE_OPERATOR:
    visit_patches(visitor, command->as.invoke.patches, command->as.invoke.patch_count);
    visit_address(visitor, &command->as.invoke.workspace);
    break;
  default: /* has no node to patch */
    break;
  }
}

/* ---- The kind of a command ---- */

static bool is_constant(const accrt_driver_value_t* values, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (values[i].scalar != ACCRT_DRIVER_NONE)
      return false;
  }
  return true;
}

static bool is_one(const accrt_driver_value_t* value) {
  return value->scalar == ACCRT_DRIVER_NONE && value->constant == 1;
}

static bool is_stable(const accrt_driver_list_info_t* info, const accrt_driver_range_t* range) {
  if (range->offset.scalar != ACCRT_DRIVER_NONE)
    return false;
  if (range->binding == ACCRT_DRIVER_NONE)
    return true;
  return info->binding_flags != NULL &&
         (info->binding_flags[range->binding] & ACCRT_DRIVER_BINDING_STABLE) != 0;
}

/* Only linear copies can be patched. A strided copy is worth a node if its inputs rarely change,
 * because a change builds the graph again. */
static uint32_t copy_kind(const cuda_plan_t* plan, const accrt_driver_list_info_t* info,
                          const accrt_driver_copy_t* copy) {
  if (is_one(&copy->extent[1]) && is_one(&copy->extent[2]))
    return CUDA_NODE_COPY;
  if (!is_constant(copy->extent, 3) || !is_constant(copy->source_stride_bytes, 2) ||
      !is_constant(copy->target_stride_bytes, 2)) {
    return CUDA_NODE_DIRECT;
  }
  cuda_copy_t shape = {
      .extent = {copy->extent[0].constant, copy->extent[1].constant, copy->extent[2].constant},
      .source_stride = {copy->source_stride_bytes[0].constant,
                        copy->source_stride_bytes[1].constant},
      .target_stride = {copy->target_stride_bytes[0].constant,
                        copy->target_stride_bytes[1].constant}};
  switch (accrt_cuda_copy_shape(&shape, plan->max_pitch_bytes)) {
  case CUDA_COPY_NOTHING:
  case CUDA_COPY_LINEAR:
    return CUDA_NODE_COPY;
  case CUDA_COPY_2D:
  case CUDA_COPY_3D:
    return is_stable(info, &copy->source) && is_stable(info, &copy->target) ? CUDA_NODE_COPY
                                                                            : CUDA_NODE_DIRECT;
  default:
    return CUDA_NODE_DIRECT;
  }
}

/* A memset node supports elements of 1, 2 and 4 bytes. */
static uint32_t fill_kind(const accrt_driver_fill_t* fill) {
  const bool halves_differ = (uint32_t)fill->pattern != (uint32_t)(fill->pattern >> 32);
  return fill->pattern_bytes == 8 && halves_differ ? CUDA_NODE_DIRECT : CUDA_NODE_FILL;
}

static uint32_t command_kind(const cuda_plan_t* plan, const accrt_driver_list_info_t* info,
                             const accrt_driver_command_t* command) {
  switch (command->opcode) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    return CUDA_NODE_KERNEL;
  case ACCRT_DRIVER_COMMAND_COPY:
    return copy_kind(plan, info, &command->as.copy);
  case ACCRT_DRIVER_COMMAND_FILL:
    return fill_kind(&command->as.fill);
  case ACCRT_DRIVER_COMMAND_OPERATOR:
    return (command->as.invoke.operation->definition->traits & ACCRT_KERNEL_TRAIT_CAPTURABLE) != 0
               ? CUDA_NODE_OPERATOR
               : CUDA_NODE_DIRECT;
  case ACCRT_DRIVER_COMMAND_BARRIER:
  case ACCRT_DRIVER_COMMAND_MARKER:
    return CUDA_NODE_NOTHING;
  default: /* refused before (accrt_cuda_list_create) */
    return CUDA_NODE_DIRECT;
  }
}

/* ---- Segments ---- */

static void find_segments(cuda_plan_t* plan) {
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    const bool direct = plan->commands[i].kind == CUDA_NODE_DIRECT;
    cuda_segment_t* last =
        plan->segment_count > 0 ? &plan->segments[plan->segment_count - 1] : NULL;
    if (direct || last == NULL || last->direct) {
      last = &plan->segments[plan->segment_count++];
      *last = (cuda_segment_t){.first = i, .direct = direct};
    }
    last->count += 1;
    plan->commands[i].segment = plan->segment_count - 1;
  }
}

/* ---- Edges ---- */

/* State for finding the edges of one segment. Bit i of a set is the segment's command i. */
typedef struct edge_finder {
  cuda_plan_t* plan;
  const cuda_segment_t* segment;
  uint32_t words;         /* size of a set of commands */
  uint64_t* ancestors;    /* by command: a set */
  uint64_t* predecessors; /* predecessors of the current command */
  uint32_t* stand_in;     /* by command, for NOTHING: the command to follow instead, or NONE */
  uint32_t* level_size;   /* by level: number of commands with nodes so far */
  uint32_t* last_in_branch;
  uint32_t barrier; /* the last barrier, or NONE */
} edge_finder_t;

static uint64_t* ancestors_of(const edge_finder_t* finder, uint32_t command) {
  return finder->ancestors + (size_t)(command - finder->segment->first) * finder->words;
}

static bool has_bit(const uint64_t* set, uint32_t bit) {
  return (set[bit / 64] >> bit % 64 & 1) != 0;
}

static void set_bit(uint64_t* set, uint32_t bit) {
  set[bit / 64] |= UINT64_C(1) << bit % 64;
}

static accrt_status_t add_edge(edge_finder_t* finder, uint32_t from, uint32_t to) {
  cuda_plan_t* plan = finder->plan;
  ACCRT_TRY(accrt_grow_array(plan->allocator, (size_t)plan->edge_count + 1, sizeof *plan->edges,
                             &plan->edge_capacity, (void**)&plan->edges));
  plan->edges[plan->edge_count++] = from;
  uint64_t* ancestors = ancestors_of(finder, to);
  const uint64_t* more = ancestors_of(finder, from);
  for (uint32_t i = 0; i < finder->words; ++i)
    ancestors[i] |= more[i];
  set_bit(ancestors, from - finder->segment->first);
  const uint32_t end =
      plan->commands[from].level + (plan->commands[from].kind != CUDA_NODE_JOIN ? 1 : 0);
  if (end > plan->commands[to].level)
    plan->commands[to].level = end;
  return ACCRT_OK;
}

/* Collects the declared predecessors of a command. */
static void collect_predecessors(edge_finder_t* finder, uint32_t index) {
  const accrt_driver_command_t* command = finder->plan->commands[index].command;
  const uint32_t first = finder->segment->first;
  memset(finder->predecessors, 0, finder->words * sizeof *finder->predecessors);
  if (finder->barrier != ACCRT_DRIVER_NONE)
    set_bit(finder->predecessors, finder->barrier - first);
  if (command->opcode == ACCRT_DRIVER_COMMAND_BARRIER) {
    for (uint32_t i = first; i < index; ++i)
      set_bit(finder->predecessors, i - first);
    finder->barrier = index;
    return;
  }
  for (uint32_t k = 0; k < command->predecessor_count; ++k) {
    if (command->predecessors[k] >= first)
      set_bit(finder->predecessors, command->predecessors[k] - first);
  }
}

/* Adds edges from the latest predecessor to the earliest. A predecessor that is already an ancestor
 * needs no edge. */
static accrt_status_t add_edges(edge_finder_t* finder, uint32_t index) {
  const uint32_t first = finder->segment->first;
  for (uint32_t bit = index - first; bit-- > 0;) {
    if (finder->predecessors[bit / 64] == 0) {
      bit &= ~63u; /* skip an empty word */
      continue;
    }
    if (!has_bit(finder->predecessors, bit))
      continue;
    const uint32_t from = first + bit;
    if (finder->plan->commands[from].kind == CUDA_NODE_NOTHING) {
      /* it is earlier, so this loop reaches it later */
      if (finder->stand_in[bit] != ACCRT_DRIVER_NONE)
        set_bit(finder->predecessors, finder->stand_in[bit] - first);
      continue;
    }
    if (has_bit(ancestors_of(finder, index), bit))
      continue;
    ACCRT_TRY(add_edge(finder, from, index));
  }
  return ACCRT_OK;
}

/* Makes a node for a barrier or marker with several predecessors. One with at most one predecessor
 * gets no node: its successors follow that predecessor. */
static void join_or_remove(edge_finder_t* finder, uint32_t index) {
  cuda_plan_t* plan = finder->plan;
  const uint32_t count = plan->edge_count - plan->first_edge[index];
  if (count > 1) {
    plan->commands[index].kind = CUDA_NODE_JOIN;
    return;
  }
  finder->stand_in[index - finder->segment->first] =
      count == 1 ? plan->edges[plan->first_edge[index]] : ACCRT_DRIVER_NONE;
  plan->edge_count = plan->first_edge[index];
}

/* Removes edges to `index` from ancestors of `before`, because `before` implies them. */
static void drop_ancestors(edge_finder_t* finder, uint32_t before, uint32_t index) {
  cuda_plan_t* plan = finder->plan;
  const uint64_t* ancestors = ancestors_of(finder, before);
  uint32_t kept = plan->first_edge[index];
  for (uint32_t i = kept; i < plan->edge_count; ++i) {
    if (!has_bit(ancestors, plan->edges[i] - finder->segment->first))
      plan->edges[kept++] = plan->edges[i];
  }
  plan->edge_count = kept;
}

/* Limits the commands that run in parallel: see CUDA_PLAN_BRANCHES. */
static accrt_status_t limit_branches(edge_finder_t* finder, uint32_t index) {
  const uint32_t level = finder->plan->commands[index].level;
  const uint32_t branches = level == 0 ? CUDA_PLAN_ROOTS : CUDA_PLAN_BRANCHES;
  const uint32_t branch = finder->level_size[level]++ % branches;
  const uint32_t before = finder->last_in_branch[branch];
  finder->last_in_branch[branch] = index;
  if (before == ACCRT_DRIVER_NONE || finder->plan->commands[before].level != level)
    return ACCRT_OK;
  drop_ancestors(finder, before, index);
  const accrt_status_t status = add_edge(finder, before, index);
  finder->plan->commands[index].level = level; /* the level counts dependencies, not this limit */
  return status;
}

static accrt_status_t find_branches(edge_finder_t* finder) {
  cuda_plan_t* plan = finder->plan;
  const cuda_segment_t* segment = finder->segment;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < CUDA_PLAN_BRANCHES; ++i)
    finder->last_in_branch[i] = ACCRT_DRIVER_NONE;
  for (uint32_t i = segment->first; i < segment->first + segment->count; ++i) {
    plan->first_edge[i] = plan->edge_count;
    collect_predecessors(finder, i);
    ACCRT_TRY(add_edges(finder, i));
    if (plan->commands[i].kind == CUDA_NODE_NOTHING)
      join_or_remove(finder, i);
    else
      status = limit_branches(finder, i);
    if (status != ACCRT_OK)
      return status;
  }
  return ACCRT_OK;
}

/* Orders the commands as a chain. */
static accrt_status_t find_chain(edge_finder_t* finder) {
  cuda_plan_t* plan = finder->plan;
  const cuda_segment_t* segment = finder->segment;
  uint32_t previous = ACCRT_DRIVER_NONE;
  plan->edge_count = plan->first_edge[segment->first];
  for (uint32_t i = segment->first; i < segment->first + segment->count; ++i) {
    cuda_planned_t* planned = &plan->commands[i];
    plan->first_edge[i] = plan->edge_count;
    if (planned->kind == CUDA_NODE_JOIN)
      planned->kind = CUDA_NODE_NOTHING;
    if (planned->kind == CUDA_NODE_NOTHING)
      continue;
    planned->level = 0;
    if (previous != ACCRT_DRIVER_NONE) {
      ACCRT_TRY(accrt_grow_array(plan->allocator, (size_t)plan->edge_count + 1, sizeof *plan->edges,
                                 &plan->edge_capacity, (void**)&plan->edges));
      plan->edges[plan->edge_count++] = previous;
      planned->level = plan->commands[previous].level + 1;
    }
    previous = i;
  }
  return ACCRT_OK;
}

/* Words for a segment's sets, which are one allocation. */
static size_t finder_words(const edge_finder_t* finder) {
  const size_t count = finder->segment->count;
  return count * finder->words + finder->words +
         count /* stand_in and level_size: half a word each */ + (CUDA_PLAN_BRANCHES + 1) / 2;
}

static accrt_status_t find_segment_edges(cuda_plan_t* plan, cuda_segment_t* segment) {
  edge_finder_t finder = {.plan = plan,
                          .segment = segment,
                          .words = (segment->count + 63) / 64,
                          .barrier = ACCRT_DRIVER_NONE};
  plan->first_edge[segment->first] = plan->edge_count;
  if (segment->count > CUDA_PLAN_MAX_BRANCHED)
    return find_chain(&finder);
  const size_t words = finder_words(&finder);
  uint64_t* memory;
  ACCRT_TRY(accrt_alloc_array(plan->allocator, words, sizeof *memory, (void**)&memory));
  finder.ancestors = memory;
  finder.predecessors = finder.ancestors + (size_t)segment->count * finder.words;
  finder.stand_in = (uint32_t*)(finder.predecessors + finder.words);
  finder.level_size = finder.stand_in + segment->count;
  finder.last_in_branch = finder.level_size + segment->count;
  accrt_status_t status = find_branches(&finder);
  accrt_free_array(plan->allocator, memory, words, sizeof *memory);
  return status;
}

static accrt_status_t find_edges(cuda_plan_t* plan) {
  for (uint32_t s = 0; s < plan->segment_count; ++s) {
    cuda_segment_t* segment = &plan->segments[s];
    ACCRT_TRY(find_segment_edges(plan, segment));
  }
  plan->first_edge[plan->command_count] = plan->edge_count;
  return ACCRT_OK;
}

/* ---- Which commands depend on which input ---- */

/* Counts the commands of each input, or stores them. A command counts once per input. */
typedef struct dependent_visitor {
  input_visitor_t base;
  uint32_t command;
  uint32_t* seen;       /* by input: 1 + the last command that visited it */
  uint32_t* next;       /* by input: a count, then an index in dependents */
  uint32_t* dependents; /* NULL while counting */
} dependent_visitor_t;

static void visit_dependent(input_visitor_t* base, uint32_t input) {
  dependent_visitor_t* self = (dependent_visitor_t*)base;
  if (self->seen[input] == self->command + 1)
    return;
  self->seen[input] = self->command + 1;
  if (self->dependents != NULL)
    self->dependents[self->next[input]] = self->command;
  self->next[input] += 1;
}

static void visit_commands(cuda_plan_t* plan, dependent_visitor_t* visitor) {
  memset(visitor->seen, 0, cuda_plan_inputs(plan) * sizeof *visitor->seen);
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    visitor->command = i;
    visit_inputs(&visitor->base, &plan->commands[i]);
  }
}

static accrt_status_t find_dependents(cuda_plan_t* plan) {
  const uint32_t inputs = cuda_plan_inputs(plan);
  uint32_t* scratch; /* seen, then next */
  ACCRT_TRY(accrt_alloc_array(plan->allocator, (size_t)inputs * 2 + 1, sizeof *scratch,
                              (void**)&scratch));
  dependent_visitor_t visitor = {
      .base = {.visit = visit_dependent, .plan = plan}, .seen = scratch, .next = scratch + inputs};
  visit_commands(plan, &visitor);
  for (uint32_t i = 0; i < inputs; ++i) {
    plan->first_dependent[i] = plan->dependent_count;
    plan->dependent_count += visitor.next[i];
    visitor.next[i] = plan->first_dependent[i];
  }
  plan->first_dependent[inputs] = plan->dependent_count;
  accrt_status_t status = accrt_alloc_array(plan->allocator, plan->dependent_count,
                                            sizeof *plan->dependents, (void**)&plan->dependents);
  if (status == ACCRT_OK && plan->dependents != NULL) {
    visitor.dependents = plan->dependents;
    visit_commands(plan, &visitor);
  }
  accrt_free_array(plan->allocator, scratch, (size_t)inputs * 2 + 1, sizeof *scratch);
  return status;
}

/* ---- Room for parameters ---- */

/* Blocks are aligned to 16, as kernels and operators may expect, and have at most 4 KiB each. */
static accrt_status_t place_params(cuda_plan_t* plan) {
  uint64_t blocks = 0, fields = 0;
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    cuda_planned_t* planned = &plan->commands[i];
    const accrt_driver_command_t* command = planned->command;
    uint32_t bytes = 0;
    if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH) {
      if (cuda_dispatch_kernel(&command->as.dispatch) == NULL) {
        return accrt_error_record(ACCRT_ERROR_UNSUPPORTED, "list_create", __FILE__,
                                  (uint32_t)__LINE__, "kernel '%s' is a host kernel",
                                  command->as.dispatch.kernel->definition->name);
      }
      bytes = command->as.dispatch.params_size_bytes;
      planned->fields_offset = (uint32_t)fields;
      fields += cuda_dispatch_kernel(&command->as.dispatch)->param_count;
    } else if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR) {
      bytes = command->as.invoke.params_size_bytes;
    }
    planned->params_offset = (uint32_t)blocks;
    blocks += ((uint64_t)bytes + 15) & ~UINT64_C(15);
    if (blocks > UINT32_MAX || fields > UINT32_MAX)
      return accrt_error_record(ACCRT_ERROR_OVERFLOW, "list_create", __FILE__, (uint32_t)__LINE__,
                                "the parameters of %u commands do not fit 4 GiB",
                                (unsigned)plan->command_count);
  }
  plan->blocks_bytes = (uint32_t)blocks;
  plan->field_count = (uint32_t)fields;
  return ACCRT_OK;
}

/* ---- Patches ---- */

static cuda_patch_t short_patch(const accrt_driver_patch_t* patch) {
  const bool is_address = patch->kind == ACCRT_DRIVER_PATCH_ADDRESS;
  const accrt_driver_value_t* value = is_address ? &patch->range.offset : &patch->value;
  return (cuda_patch_t){.constant = value->constant,
                        .scalar = value->scalar,
                        .binding = is_address ? patch->range.binding : ACCRT_DRIVER_NONE,
                        .offset_bytes = patch->offset_bytes,
                        .size_bytes = patch->size_bytes};
}

static bool is_fixed_grid(const accrt_driver_value_t grid[3]) {
  return is_constant(grid, 3) && grid[0].constant != 0 && grid[1].constant != 0 &&
         grid[2].constant != 0;
}

static accrt_status_t shorten_patches(cuda_plan_t* plan) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    if (plan->commands[i].kind == CUDA_NODE_KERNEL)
      count += plan->commands[i].command->as.dispatch.patch_count;
  }
  if (count > UINT32_MAX)
    return accrt_error_record(ACCRT_ERROR_OVERFLOW, "list_create", __FILE__, (uint32_t)__LINE__,
                              "%u commands have more than %u patches",
                              (unsigned)plan->command_count, (unsigned)UINT32_MAX);
  ACCRT_TRY(accrt_alloc_array(plan->allocator, (size_t)count, sizeof *plan->patches,
                              (void**)&plan->patches));
  plan->patch_count = (uint32_t)count;
  uint32_t next = 0;
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    cuda_planned_t* planned = &plan->commands[i];
    if (planned->kind != CUDA_NODE_KERNEL)
      continue;
    const accrt_driver_dispatch_t* dispatch = &planned->command->as.dispatch;
    planned->first_patch = next;
    planned->patch_count = dispatch->patch_count;
    planned->fixed_grid = is_fixed_grid(dispatch->grid);
    for (uint32_t k = 0; k < dispatch->patch_count; ++k)
      plan->patches[next++] = short_patch(&dispatch->patches[k]);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_cuda_plan_make(const accrt_allocator_t* allocator,
                                    const accrt_driver_list_info_t* info, uint64_t max_pitch_bytes,
                                    cuda_plan_t* out_plan) {
  cuda_plan_t plan = {.allocator = allocator,
                      .max_pitch_bytes = max_pitch_bytes,
                      .command_count = info->command_count,
                      .binding_count = info->binding_count,
                      .scalar_count = info->scalar_count};
  accrt_status_t status = accrt_alloc_array(allocator, plan.command_count, sizeof *plan.commands,
                                            (void**)&plan.commands);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, plan.command_count, sizeof *plan.segments,
                               (void**)&plan.segments);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, (size_t)plan.command_count + 1, sizeof *plan.first_edge,
                               (void**)&plan.first_edge);
  if (status == ACCRT_OK)
    status = accrt_alloc_array(allocator, (size_t)cuda_plan_inputs(&plan) + 1,
                               sizeof *plan.first_dependent, (void**)&plan.first_dependent);
  if (status != ACCRT_OK)
    goto out;
  for (uint32_t i = 0; i < plan.command_count; ++i) {
    plan.commands[i].command = &info->commands[i];
    plan.commands[i].kind = command_kind(&plan, info, &info->commands[i]);
  }
  status = place_params(&plan);
  if (status == ACCRT_OK)
    status = shorten_patches(&plan);
  if (status != ACCRT_OK)
    goto out;
  find_segments(&plan);
  status = find_edges(&plan);
  if (status == ACCRT_OK)
    status = find_dependents(&plan);
out:
  if (status != ACCRT_OK) {
    accrt_cuda_plan_free(&plan);
    plan = (cuda_plan_t){0};
  }
  *out_plan = plan;
  return status;
}

void accrt_cuda_plan_free(cuda_plan_t* plan) {
  accrt_free_array(plan->allocator, plan->commands, plan->command_count, sizeof *plan->commands);
  accrt_free_array(plan->allocator, plan->segments, plan->command_count, sizeof *plan->segments);
  accrt_free_array(plan->allocator, plan->patches, plan->patch_count, sizeof *plan->patches);
  accrt_free_array(plan->allocator, plan->first_edge, (size_t)plan->command_count + 1,
                   sizeof *plan->first_edge);
  accrt_free_array(plan->allocator, plan->edges, plan->edge_capacity, sizeof *plan->edges);
  accrt_free_array(plan->allocator, plan->first_dependent, (size_t)cuda_plan_inputs(plan) + 1,
                   sizeof *plan->first_dependent);
  accrt_free_array(plan->allocator, plan->dependents, plan->dependent_count,
                   sizeof *plan->dependents);
}
