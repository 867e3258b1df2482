/* runtime/program/plan_builder.h - what exists only while a plan is made.
 *
 * For plan.c and plan_*.c alone. A builder walks a function's blocks with all decisions taken (branches, repeats, calls) and
 * appends driver commands. A frame is one function being walked: the entry function, or a callee in place of its CALL.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_PLAN_BUILDER_H_
#define ACCRT_RUNTIME_PROGRAM_PLAN_BUILDER_H_

#include "runtime/program/graph.h"
#include "runtime/program/internal.h"

/* Limits on what a bundle can make a plan cost. */
#define ACCRT_MAX_PLAN_EDGES (1u << 22)
#define ACCRT_MAX_PLAN_WORK (UINT64_C(1) << 26)

/* A slot of a frame, as a range of one of the plan's bindings. */
typedef struct accrt_frame_slot {
  uint32_t kind; /* ACCRT_PLAN_* */
  uint32_t index;
  uint32_t align_bytes; /* of the binding's storage */
  bool absent;          /* an optional argument that was not given */
  bool writable;
  accrt_graph_value_t base; /* of the slot within the binding, bytes */
  accrt_graph_value_t size; /* bytes */
  const char* name;
} accrt_frame_slot_t;

typedef struct accrt_frame {
  const accx_function_t* record;
  uint32_t function;
  uint32_t induction_count;
  int64_t inductions[ACCX_MAX_BLOCK_DEPTH];
  accrt_graph_value_t* symbols; /* of the module */
  accrt_graph_value_t* values;  /* of the function's scope */
  accrt_expr_value_t*
      memory_symbols; /* the same with bucket and runtime symbols at what memory is sized for */
  accrt_expr_value_t* memory_values;
  uint8_t* present; /* by argument */
  accrt_frame_slot_t* slots;
  uint64_t arena_base;
  uint64_t arena_end; /* of the frame's own part of the arena */
  uint32_t
      last_call; /* flat index of the end of the last CALL: callees share memory, so they follow one another */
  accrt_zone_t zone; /* all of the above */
} accrt_frame_t;

/* A set of checks, by content, so that each is made once. */
typedef struct accrt_plan_builder {
  const accrt_plan_request_t* request;
  accrt_program_t* program;
  const accrt_bundle_tables_t* tables;
  const accrt_allocator_t* allocator;
  accrt_plan_t* plan;
  accrt_graph_t graph;
  accrt_driver_command_t* commands;
  accrt_plan_binding_t* bindings;
  accrt_plan_check_t* checks;
  accrt_driver_patch_t* patches; /* of the dispatch being lowered */
  uint32_t* scalars;             /* node of each */
  uint32_t* scalar_of_node;      /* + 1; 0: none */
  uint32_t* predecessors;        /* of the command being ordered */
  uint32_t* argument_bindings;   /* binding + 1 */
  uint32_t* component_bindings;
  uint32_t* state_bindings;
  size_t command_capacity;
  size_t binding_capacity;
  size_t check_capacity;
  size_t patch_capacity;
  size_t scalar_capacity;
  size_t node_capacity;
  size_t predecessor_capacity;
  uint32_t command_count;
  uint32_t binding_count;
  uint32_t check_count;
  uint32_t patch_count;
  uint32_t scalar_count;
  uint32_t predecessor_count;
  uint32_t arena_binding; /* + 1 */
  uint32_t edge_count;
  uint64_t work;
  uint64_t arena_bytes;
  uint64_t workspace_bytes; /* what the largest operator asks for */
  uint32_t workspace_last;  /* the last command that uses it, or NONE */
  uint32_t workspace_user_count;
  uint32_t* workspace_users; /* commands whose range in it is to be moved behind the arena */
  size_t workspace_user_capacity;
} accrt_plan_builder_t;

/* ---- plan_frame.c ---- */

/* The entry function. */
accrt_status_t accrt_frame_enter(accrt_plan_builder_t* builder, accrt_frame_t* out_frame);
/* A callee. Checks its operands against the caller's slots. */
accrt_status_t accrt_frame_call(accrt_plan_builder_t* builder, const accrt_frame_t* caller,
                                const accx_command_t* command, accrt_frame_t* out_frame);
void accrt_frame_leave(accrt_frame_t* frame);
/* Evaluates the scope for the present induction variables. */
accrt_status_t accrt_frame_evaluate(accrt_plan_builder_t* builder, accrt_frame_t* frame);
/* The value of an expression; its fault is recorded as an error. */
accrt_status_t accrt_frame_value(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                 uint32_t expression, const char* what,
                                 accrt_graph_value_t* out_value);
/* The same for what decides the shape of the plan: it must be known when the plan is made. */
accrt_status_t accrt_frame_constant(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                    uint32_t expression, const char* what, int64_t* out_value);

/* ---- plan_range.c ---- */

/* A range of a binding, checked or to be checked at each call. */
typedef struct accrt_plan_range {
  const accrt_frame_slot_t* slot; /* NULL: nothing (ABSENT) */
  uint32_t access;
  bool absent;
  accrt_graph_value_t offset; /* within the binding */
  accrt_graph_value_t size;
} accrt_plan_range_t;

/* Resolves a range of a frame. `size` overrides the range's own when it is not NULL. */
accrt_status_t accrt_plan_resolve_range(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                        const accx_range_t* range, const accrt_graph_value_t* size,
                                        const char* what, accrt_plan_range_t* out_range);
/* The plan's binding for a slot; made on first use. */
accrt_status_t accrt_plan_use_binding(accrt_plan_builder_t* builder, const accrt_frame_slot_t* slot,
                                      uint32_t access, uint32_t* out_binding);
accrt_status_t accrt_plan_driver_range(accrt_plan_builder_t* builder,
                                       const accrt_plan_range_t* range,
                                       accrt_driver_range_t* out_range);
accrt_status_t accrt_plan_driver_value(accrt_plan_builder_t* builder, accrt_graph_value_t value,
                                       accrt_driver_value_t* out_value);
/* Makes a check now if its values are known or their bounds prove it, else leaves it for each call. Unused values: 0. */
accrt_status_t accrt_plan_check(accrt_plan_builder_t* builder, uint32_t kind, const char* what,
                                const char* detail, accrt_graph_value_t a, accrt_graph_value_t b,
                                accrt_graph_value_t c, accrt_graph_value_t d);
/* Bytes that a strided copy or a tensor reaches, from its first: 0 when any extent is 0, else
 * sum((extent[i] - 1) * stride[i]) + last. */
accrt_graph_value_t accrt_plan_footprint(accrt_plan_builder_t* builder, uint32_t count,
                                         const accrt_graph_value_t* extents,
                                         const accrt_graph_value_t* strides,
                                         accrt_graph_value_t last);

/* ---- plan_lower.c, plan_variant.c ---- */

/* Appends the driver's command for a DISPATCH, COPY, FILL or MARKER. Predecessors are those in builder->predecessors. */
accrt_status_t accrt_plan_lower(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                const accx_command_t* command, uint32_t* out_index);
/* Appends a command, with builder->predecessors. */
accrt_status_t accrt_plan_append(accrt_plan_builder_t* builder,
                                 const accrt_driver_command_t* command, uint32_t* out_index);

/* One argument of a dispatch. */
typedef struct accrt_plan_operand {
  accrt_plan_range_t range;  /* BUFFER, TENSOR, WORKSPACE */
  accrt_graph_value_t value; /* SYMBOL, SCALAR */
  bool shape_moves;          /* TENSOR: a size or stride is patched at each call */
} accrt_plan_operand_t;
/* The first variant whose predicates are proved; ACCRT_ERROR_NO_VARIANT says for each why not. Operators are prepared for shapes that
 * stay: where one moves, they do not fit. */
accrt_status_t accrt_plan_choose_variant(const accrt_plan_builder_t* builder, uint32_t kernel,
                                         const accrt_plan_operand_t* operands,
                                         const accrt_program_variant_t** out_variant);

/* ---- plan_operator.c ---- */

/* Appends an operator (when only measuring: asks for its workspace), with builder->predecessors and whoever had the workspace. */
accrt_status_t accrt_plan_append_operator(accrt_plan_builder_t* builder,
                                          accrt_driver_invoke_t* invoke, const char* name,
                                          uint32_t* out_index);
/* Once all commands are there: the workspace gets its place behind the arena, which grows by it. */
accrt_status_t accrt_plan_place_workspace(accrt_plan_builder_t* builder);

/* ---- plan_flatten.c ---- */

/* Puts a command into builder->predecessors, which ascend; NONE is nothing. */
accrt_status_t accrt_plan_add_predecessor(accrt_plan_builder_t* builder, uint32_t flat);

/* Walks the entry function. */
accrt_status_t accrt_plan_flatten(accrt_plan_builder_t* builder, accrt_frame_t* frame);

#endif /* ACCRT_RUNTIME_PROGRAM_PLAN_BUILDER_H_ */
