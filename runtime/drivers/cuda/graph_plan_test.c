/* runtime/drivers/cuda/graph_plan_test.c - what commands become in a list, without CUDA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/drivers/cuda/graph.h"

#define NONE ACCRT_DRIVER_NONE
#define CONSTANT(n)                                                                                \
  { .constant = (n), .scalar = NONE }

static const uint32_t zero_to_three[] = {0, 1, 2, 3};

static accrt_driver_range_t range(uint32_t binding, uint64_t offset, uint32_t scalar) {
  return (accrt_driver_range_t){
      .binding = binding, .offset = {offset, scalar, 0}, .size_bytes = {64, NONE, 0}};
}

/* Three fields; `grid` x workgroups; the given patches. */
static accrt_driver_command_t dispatch(uint64_t grid, const accrt_driver_patch_t* patches,
                                       uint32_t patch_count) {
  static const cuda_kernel_t kernel = {.params_size_bytes = 20, .param_count = 3};
  static accrt_driver_kernel_t view;
  static const unsigned char params[20];
  view.module_kernel = (void*)(uintptr_t)&kernel;
  return (accrt_driver_command_t){
      .opcode = ACCRT_DRIVER_COMMAND_DISPATCH,
      .as.dispatch = {.kernel = &view,
                      .grid = {CONSTANT(grid), CONSTANT(1), CONSTANT(1)},
                      .params = params,
                      .params_size_bytes = sizeof params,
                      .patches = patches,
                      .patch_count = patch_count}};
}

static accrt_driver_command_t after(accrt_driver_command_t command, const uint32_t* predecessors,
                                    uint32_t count) {
  command.predecessors = predecessors;
  command.predecessor_count = count;
  return command;
}

static accrt_driver_command_t simple(uint32_t opcode) {
  return (accrt_driver_command_t){.opcode = opcode};
}

static accrt_driver_command_t copy(uint32_t binding, uint64_t rows, uint64_t stride) {
  return (accrt_driver_command_t){
      .opcode = ACCRT_DRIVER_COMMAND_COPY,
      .as.copy = {.source = range(binding, 0, NONE),
                  .target = range(binding, 1024, NONE),
                  .extent = {CONSTANT(16), CONSTANT(rows), CONSTANT(1)},
                  .source_stride_bytes = {CONSTANT(stride), CONSTANT(0)},
                  .target_stride_bytes = {CONSTANT(stride), CONSTANT(0)}}};
}

static accrt_driver_command_t fill(uint64_t pattern, uint32_t pattern_bytes) {
  return (accrt_driver_command_t){
      .opcode = ACCRT_DRIVER_COMMAND_FILL,
      .as.fill = {.target = range(0, 0, NONE), .pattern = pattern, .pattern_bytes = pattern_bytes}};
}

static cuda_plan_t make(const accrt_driver_command_t* commands, uint32_t count,
                        uint32_t binding_count, uint32_t scalar_count, const uint32_t* flags) {
  const accrt_driver_list_info_t info = {.struct_size = sizeof info,
                                         .command_count = count,
                                         .commands = commands,
                                         .binding_count = binding_count,
                                         .scalar_count = scalar_count,
                                         .binding_flags = flags};
  cuda_plan_t plan;
  assert_int_equal(accrt_cuda_plan_make(&accrt_allocator_system, &info, 1 << 20, &plan), ACCRT_OK);
  return plan;
}

static void test_kinds(void** state) {
  (void)state;
  const uint32_t flags[] = {0, ACCRT_DRIVER_BINDING_STABLE};
  const accrt_driver_operator_t capturable = {
      .definition = &(const accrt_operator_def_t){.traits = ACCRT_KERNEL_TRAIT_CAPTURABLE}};
  const accrt_driver_operator_t other = {.definition = &(const accrt_operator_def_t){.traits = 0}};
  accrt_driver_command_t commands[] = {
      dispatch(1, NULL, 0), copy(0, 1, 0),  copy(0, 4, 16),
      copy(0, 4, 64),       copy(1, 4, 64), copy(1, 4, 2 << 20),
      fill(7, 4),           fill(7, 8),     fill(UINT64_C(7) << 32 | 7, 8)};
  const uint32_t expected[] = {CUDA_NODE_KERNEL, CUDA_NODE_COPY,   CUDA_NODE_COPY,
                               CUDA_NODE_DIRECT, CUDA_NODE_COPY,   CUDA_NODE_DIRECT,
                               CUDA_NODE_FILL,   CUDA_NODE_DIRECT, CUDA_NODE_FILL};
  cuda_plan_t plan = make(commands, 9, 2, 0, flags);
  for (uint32_t i = 0; i < 9; ++i)
    assert_int_equal(plan.commands[i].kind, expected[i]);
  accrt_cuda_plan_free(&plan);
  /* A strided copy whose extent comes with the submission has no node; a linear one has. */
  commands[0] = copy(1, 4, 64);
  commands[0].as.copy.extent[0].scalar = 0;
  commands[1] = copy(1, 1, 0);
  commands[1].as.copy.extent[0].scalar = 0;
  commands[2] = (accrt_driver_command_t){
      .opcode = ACCRT_DRIVER_COMMAND_OPERATOR,
      .as.invoke = {.operation = &capturable,
                    .workspace = {.binding = NONE, .offset = CONSTANT(0)}}};
  commands[3] = commands[2];
  commands[3].as.invoke.operation = &other;
  plan = make(commands, 4, 2, 1, flags);
  const uint32_t then[] = {CUDA_NODE_DIRECT, CUDA_NODE_COPY, CUDA_NODE_OPERATOR, CUDA_NODE_DIRECT};
  for (uint32_t i = 0; i < 4; ++i)
    assert_int_equal(plan.commands[i].kind, then[i]);
  assert_int_equal(plan.segment_count, 3);
  assert_int_equal(plan.segments[1].first, 1);
  assert_int_equal(plan.segments[1].count, 2);
  assert_true(plan.segments[0].direct && !plan.segments[1].direct && plan.segments[2].direct);
  accrt_cuda_plan_free(&plan);
}

static void check_edges(const cuda_plan_t* plan, uint32_t command, const uint32_t* expected,
                        uint32_t count) {
  const uint32_t first = plan->first_edge[command];
  assert_int_equal(plan->first_edge[command + 1] - first, count);
  for (uint32_t i = 0; i < count; ++i)
    assert_int_equal(plan->edges[first + i], expected[i]);
}

static void test_edges(void** state) {
  (void)state;
  const accrt_driver_command_t d = dispatch(1, NULL, 0);
  const uint32_t again[] = {1, 0, 1};
  const uint32_t after_marker[] = {3, 0};
  const accrt_driver_command_t commands[] = {
      d,
      after(d, zero_to_three, 1),                                   /* 1: after 0 */
      after(d, again, 3),                                           /* 2: after 1 alone */
      after(simple(ACCRT_DRIVER_COMMAND_MARKER), zero_to_three, 2), /* 3: stands for 1 */
      after(d, after_marker, 2),                                    /* 4: after 1 */
      simple(ACCRT_DRIVER_COMMAND_BARRIER),                         /* 5: joins 4 and 2 */
      d,                                                            /* 6: after 5 */
      after(d, zero_to_three, 1),                                   /* 7: after 5 */
      simple(ACCRT_DRIVER_COMMAND_BARRIER),                         /* 8: joins 7 and 6 */
      after(d, zero_to_three, 4),                                   /* 9: after 8 */
      simple(ACCRT_DRIVER_COMMAND_BARRIER),                         /* 10: stands for 9 */
      d,                                                            /* 11: after 9 */
  };
  const uint32_t levels[] = {0, 1, 2, 1, 2, 3, 3, 3, 4, 4, 5, 5};
  cuda_plan_t plan = make(commands, 12, 0, 0, NULL);
  assert_int_equal(plan.segment_count, 1);
  for (uint32_t i = 0; i < 12; ++i) {
    if (plan.commands[i].kind != CUDA_NODE_NOTHING)
      assert_int_equal(plan.commands[i].level, levels[i]);
  }
  assert_int_equal(plan.commands[3].kind, CUDA_NODE_NOTHING);
  assert_int_equal(plan.commands[5].kind, CUDA_NODE_JOIN);
  assert_int_equal(plan.commands[8].kind, CUDA_NODE_JOIN);
  assert_int_equal(plan.commands[10].kind, CUDA_NODE_NOTHING);
  check_edges(&plan, 0, NULL, 0);
  check_edges(&plan, 1, (const uint32_t[]){0}, 1);
  check_edges(&plan, 2, (const uint32_t[]){1}, 1);
  check_edges(&plan, 3, NULL, 0);
  check_edges(&plan, 4, (const uint32_t[]){1}, 1);
  check_edges(&plan, 5, (const uint32_t[]){4, 2}, 2);
  check_edges(&plan, 6, (const uint32_t[]){5}, 1);
  check_edges(&plan, 7, (const uint32_t[]){5}, 1);
  check_edges(&plan, 8, (const uint32_t[]){7, 6}, 2);
  check_edges(&plan, 9, (const uint32_t[]){8}, 1);
  check_edges(&plan, 10, NULL, 0);
  check_edges(&plan, 11, (const uint32_t[]){9}, 1);
  accrt_cuda_plan_free(&plan);
}

/* Without predecessors, all at once: but no more than there are branches. Very long ones are a
 * chain. */
static void test_branches(void** state) {
  (void)state;
  enum { COUNT = CUDA_PLAN_MAX_BRANCHED + 1 };
  accrt_driver_command_t* commands = calloc(COUNT, sizeof *commands);
  assert_non_null(commands);
  for (uint32_t i = 0; i < COUNT; ++i)
    commands[i] = dispatch(1, NULL, 0);
  cuda_plan_t plan = make(commands, 3 * CUDA_PLAN_ROOTS, 0, 0, NULL);
  for (uint32_t i = 0; i < 3 * CUDA_PLAN_ROOTS; ++i) {
    const uint32_t before = i - CUDA_PLAN_ROOTS;
    check_edges(&plan, i, &before, i < CUDA_PLAN_ROOTS ? 0 : 1);
  }
  accrt_cuda_plan_free(&plan);
  for (uint32_t i = 1; i <= 3 * CUDA_PLAN_BRANCHES; ++i)
    commands[i] = after(commands[i], zero_to_three, 1);
  plan = make(commands, 1 + 3 * CUDA_PLAN_BRANCHES, 0, 0, NULL);
  for (uint32_t i = 1; i <= 3 * CUDA_PLAN_BRANCHES; ++i) {
    const uint32_t before = i <= CUDA_PLAN_BRANCHES ? 0 : i - CUDA_PLAN_BRANCHES;
    check_edges(&plan, i, &before, 1);
  }
  accrt_cuda_plan_free(&plan);
  for (uint32_t i = 1; i <= 3 * CUDA_PLAN_BRANCHES; ++i)
    commands[i] = dispatch(1, NULL, 0);
  plan = make(commands, COUNT, 0, 0, NULL);
  for (uint32_t i = 1; i < COUNT; ++i) {
    const uint32_t before = i - 1;
    check_edges(&plan, i, &before, 1);
  }
  accrt_cuda_plan_free(&plan);
  free(commands);
}

/* Depends on binding `binding`, and on scalar `scalar` in its offset and in a value. */
static void make_patches(accrt_driver_patch_t patches[2], uint32_t binding, uint32_t scalar) {
  patches[0] = (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_ADDRESS,
                                      .size_bytes = 8,
                                      .range = range(binding, 0, scalar),
                                      .value = CONSTANT(0)};
  patches[1] = (accrt_driver_patch_t){.kind = ACCRT_DRIVER_PATCH_VALUE,
                                      .offset_bytes = 8,
                                      .size_bytes = 4,
                                      .range = range(NONE, 0, NONE),
                                      .value = {1, scalar, 0}};
}

static void test_dependents(void** state) {
  (void)state;
  accrt_driver_patch_t first[2], second[2];
  make_patches(first, 0, 1);
  make_patches(second, 2, NONE);
  accrt_driver_command_t commands[] = {dispatch(1, first, 2), dispatch(1, second, 2), copy(0, 1, 0),
                                       dispatch(1, NULL, 0)};
  commands[3].as.dispatch.grid[1].scalar = 0;
  cuda_plan_t plan = make(commands, 4, 3, 2, NULL);
  /* Binding 0: commands 0 and 2; 1: none; 2: command 1; scalar 0: command 3; 1: command 0, once. */
  const uint32_t firsts[] = {0, 2, 2, 3, 4, 5};
  const uint32_t dependents[] = {0, 2, 1, 3, 0};
  assert_memory_equal(plan.first_dependent, firsts, sizeof firsts);
  assert_int_equal(plan.dependent_count, 5);
  assert_memory_equal(plan.dependents, dependents, sizeof dependents);
  accrt_cuda_plan_free(&plan);
}

static void test_params(void** state) {
  (void)state;
  const accrt_driver_command_t commands[] = {dispatch(1, NULL, 0), copy(0, 1, 0),
                                             dispatch(1, NULL, 0)};
  cuda_plan_t plan = make(commands, 3, 1, 0, NULL);
  assert_int_equal(plan.blocks_bytes, 64);
  assert_int_equal(plan.field_count, 6);
  assert_int_equal(plan.commands[2].params_offset, 32);
  assert_int_equal(plan.commands[2].fields_offset, 3);
  accrt_cuda_plan_free(&plan);
  plan = make(NULL, 0, 0, 0, NULL);
  assert_int_equal(plan.segment_count, 0);
  accrt_cuda_plan_free(&plan);
}

static void test_inputs(void** state) {
  (void)state;
  const accrt_driver_binding_t bindings[] = {{0x1000, 64}, {0x2000, 64}};
  uint64_t scalars[] = {5};
  accrt_driver_binding_t others[] = {{0x1000, 64}, {0x3000, 64}};
  uint64_t inputs[3];
  accrt_driver_submission_t submission = {
      .bindings = bindings, .binding_count = 2, .scalars = scalars, .scalar_count = 1};
  accrt_cuda_inputs_copy(inputs, &submission);
  const uint64_t digest = accrt_cuda_inputs_digest(&submission);
  assert_true(accrt_cuda_inputs_equal(inputs, &submission));
  scalars[0] = 6;
  assert_false(accrt_cuda_inputs_equal(inputs, &submission));
  assert_true(accrt_cuda_inputs_digest(&submission) != digest);
  scalars[0] = 5;
  submission.bindings = others;
  assert_false(accrt_cuda_inputs_equal(inputs, &submission));
  /* Sizes are checked elsewhere and change nothing. */
  others[1] = (accrt_driver_binding_t){0x2000, 32};
  assert_true(accrt_cuda_inputs_equal(inputs, &submission));
  assert_true(accrt_cuda_inputs_digest(&submission) == digest);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_kinds),  cmocka_unit_test(test_edges),
      cmocka_unit_test(test_params), cmocka_unit_test(test_dependents),
      cmocka_unit_test(test_inputs), cmocka_unit_test(test_branches),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
