/* runtime/program/plan_builder.h - structs that exist only while a plan is made.
 *
 * For plan.c and plan_*.c alone. A builder walks a function's blocks with all decisions taken
 * (branches, repeats, calls) and appends driver commands. A frame is one function during that walk:
 * the entry function, or a callee in place of its CALL.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_PLAN_BUILDER_H_
#define ACCRT_RUNTIME_PROGRAM_PLAN_BUILDER_H_

#include "runtime/program/symbolic.h"
#include "runtime/program/internal.h"

/* Limits on the size of a plan. The budget limits the cost of making one. */
#define ACCRT_MAX_PLAN_EDGES (1u << 22)

/* A slot of a frame: a range of one of the plan's bindings. */
typedef struct accrt_frame_slot {
  uint32_t kind; /* ACCRT_PLAN_* */
  uint32_t index;
  uint32_t align_bytes; /* of the binding's storage */
  bool absent;          /* an optional argument that the call leaves out */
  bool writable;
  accrt_symbolic_value_t base; /* offset of the slot within the binding, bytes */
  accrt_symbolic_value_t size; /* bytes */
  const char* name;
} accrt_frame_slot_t;

typedef struct accrt_frame {
  const accx_function_t* record;
  uint32_t function;
  uint32_t induction_count;
  int64_t inductions[ACCX_MAX_BLOCK_DEPTH];
  accrt_symbolic_value_t* symbols; /* of the module */
  accrt_symbolic_value_t* values;  /* of the function's scope */
  uint8_t* present;                /* by argument */
  accrt_frame_slot_t* slots;
  uint64_t arena_base;
  uint64_t arena_end; /* end of the frame's own part of the arena */
  /* Flat index of the end of the last CALL. Callees share memory, so each waits for the one
   * before. */
  uint32_t last_call;
  accrt_zone_t zone; /* memory of all fields above */
} accrt_frame_t;

/* A set of checks. It finds equal checks by content, so that each check runs once. */
typedef struct accrt_plan_builder {
  const accrt_plan_request_t* request;
  accrt_program_t* program;
  const accrt_bundle_tables_t* tables;
  const accrt_allocator_t* allocator;
  accrt_plan_t* plan;
  accrt_symbolic_t symbolic;
  accrt_driver_command_t* commands;
  accrt_plan_binding_t* bindings;
  accrt_plan_check_t* checks;
  accrt_driver_patch_t* patches; /* of the dispatch that is being lowered */
  uint32_t* scalars;             /* by scalar: its node */
  uint32_t* scalar_of_node;      /* by node: its scalar + 1; 0: none */
  uint32_t* predecessors;        /* of the command that is being placed */
  uint32_t* argument_bindings;   /* by argument: its binding + 1 */
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
  uint32_t arena_binding; /* binding + 1 */
  uint32_t edge_count;
  uint64_t arena_bytes;
  uint64_t workspace_bytes; /* the largest workspace of an operator */
  uint32_t workspace_last;  /* the last command that uses the workspace, or NONE */
  uint32_t workspace_user_count;
  uint32_t* workspace_users; /* commands whose workspace range moves behind the arena at the end */
  size_t workspace_user_capacity;
} accrt_plan_builder_t;

/* ---- plan_frame.c ---- */

/* Makes the frame of the entry function. */
accrt_status_t accrt_frame_enter(accrt_plan_builder_t* builder, accrt_frame_t* out_frame);
/* Makes the frame of a callee, and checks its operands against the caller's slots. */
accrt_status_t accrt_frame_call(accrt_plan_builder_t* builder, const accrt_frame_t* caller,
                                const accx_command_t* command, accrt_frame_t* out_frame);
void accrt_frame_leave(accrt_frame_t* frame);
/* Evaluates the scope for the current induction variables. */
accrt_status_t accrt_frame_evaluate(accrt_plan_builder_t* builder, accrt_frame_t* frame);
/* The value of an expression. A fault becomes this thread's error. */
accrt_status_t accrt_frame_value(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                 uint32_t expression, const char* what,
                                 accrt_symbolic_value_t* out_value);
/* The same for a value that decides the plan's structure: it must be known when the plan is
 * made. */
accrt_status_t accrt_frame_constant(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                    uint32_t expression, const char* what, int64_t* out_value);

/* ---- plan_range.c ---- */

/* A range of a binding. It has been checked, or each call checks it. */
typedef struct accrt_plan_range {
  const accrt_frame_slot_t* slot; /* NULL: no memory (ABSENT) */
  uint32_t access;
  bool absent;
  accrt_symbolic_value_t offset; /* within the binding */
  accrt_symbolic_value_t size;
} accrt_plan_range_t;

/* Resolves a range of a frame. A `size` that is not NULL replaces the range's own size. */
accrt_status_t accrt_plan_resolve_range(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                        const accx_range_t* range,
                                        const accrt_symbolic_value_t* size, const char* what,
                                        accrt_plan_range_t* out_range);
/* The plan's binding for a slot. The first use makes it. */
accrt_status_t accrt_plan_use_binding(accrt_plan_builder_t* builder, const accrt_frame_slot_t* slot,
                                      uint32_t access, uint32_t* out_binding);
accrt_status_t accrt_plan_driver_range(accrt_plan_builder_t* builder,
                                       const accrt_plan_range_t* range,
                                       accrt_driver_range_t* out_range);
accrt_status_t accrt_plan_driver_value(accrt_plan_builder_t* builder, accrt_symbolic_value_t value,
                                       accrt_driver_value_t* out_value);
/* Runs a check now if its values are known or their bounds prove it. Otherwise each call runs it.
 * Unused values are 0. */
accrt_status_t accrt_plan_check(accrt_plan_builder_t* builder, uint32_t kind, const char* what,
                                const char* detail, accrt_symbolic_value_t a,
                                accrt_symbolic_value_t b, accrt_symbolic_value_t c,
                                accrt_symbolic_value_t d);
/* Bytes from the first to the last that a strided copy or a tensor touches: 0 when any extent is 0,
 * otherwise sum((extent[i] - 1) * stride[i]) + last. */
accrt_symbolic_value_t accrt_plan_footprint(accrt_plan_builder_t* builder, uint32_t count,
                                            const accrt_symbolic_value_t* extents,
                                            const accrt_symbolic_value_t* strides,
                                            accrt_symbolic_value_t last);

/* ---- plan_lower.c, plan_variant.c ---- */

/* Appends the driver command for a DISPATCH, COPY, FILL or MARKER. It follows
 * builder->predecessors. */
accrt_status_t accrt_plan_lower(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                const accx_command_t* command, uint32_t* out_index);
/* True for a COPY whose first extent is the constant 0. It moves nothing; it states a condition on
 * the dimensions of a call. */
bool accrt_plan_is_condition(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                             const accx_command_t* command);
/* Checks such a condition. It appends no driver command. */
accrt_status_t accrt_plan_check_condition(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                          const accx_command_t* command);
/* Appends a command that follows builder->predecessors. */
accrt_status_t accrt_plan_append(accrt_plan_builder_t* builder,
                                 const accrt_driver_command_t* command, uint32_t* out_index);

/* One argument of a dispatch. */
typedef struct accrt_plan_operand {
  accrt_plan_range_t range;     /* BUFFER, TENSOR, WORKSPACE */
  accrt_symbolic_value_t value; /* SYMBOL, SCALAR */
  bool shape_is_patched;        /* TENSOR: each call patches a size or stride */
} accrt_plan_operand_t;
/* Chooses the first variant whose predicates are proved. ACCRT_ERROR_NO_VARIANT gives the reason
 * for each variant. An operator is prepared for fixed shapes; it does not fit where a shape is
 * patched. */
accrt_status_t accrt_plan_choose_variant(const accrt_plan_builder_t* builder, uint32_t kernel,
                                         const accrt_plan_operand_t* operands,
                                         const accrt_program_variant_t** out_variant);

/* ---- plan_operator.c ---- */

/* Appends an operator, or only asks for its workspace when measuring. The operator follows
 * builder->predecessors and the previous user of the workspace. */
accrt_status_t accrt_plan_append_operator(accrt_plan_builder_t* builder,
                                          accrt_driver_invoke_t* invoke, const char* name,
                                          uint32_t* out_index);
/* Places the workspace behind the arena, which grows by it. Call it after the last command. */
accrt_status_t accrt_plan_place_workspace(accrt_plan_builder_t* builder);

/* ---- plan_flatten.c ---- */

/* Adds a command to builder->predecessors, which ascend. NONE adds nothing. */
accrt_status_t accrt_plan_add_predecessor(accrt_plan_builder_t* builder, uint32_t flat);

/* Flattens the entry function. */
accrt_status_t accrt_plan_flatten(accrt_plan_builder_t* builder, accrt_frame_t* frame);

#endif /* ACCRT_RUNTIME_PROGRAM_PLAN_BUILDER_H_ */
