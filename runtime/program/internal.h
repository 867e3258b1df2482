/* runtime/program/internal.h - the structs behind programs, sessions, calls and plans.
 *
 * For runtime/program alone. It stands on drivers (through drivers/common/internal.h) and on the loader. The files, from the
 * ground: expr (evaluation), graph (values of a plan while it is made), variant and image (which code runs), plan_* (flattening
 * a function to one driver list), weights and prepare (constants), program, session, symbols (what a call's shapes say),
 * call and call_run.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_INTERNAL_H_
#define ACCRT_RUNTIME_PROGRAM_INTERNAL_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/program.h"
#include "loader/bundle.h"
#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/memory.h"
#include "runtime/core/object.h"
#include "runtime/core/pack.h"
#include "runtime/core/sync.h"
#include "runtime/drivers/common/internal.h"
#include "runtime/program/expr.h"
#include "runtime/program/zone.h"

/* Alignment that a call requires of arguments of at least that size; smaller ones need their element's. */
#define ACCRT_ARGUMENT_ALIGN 16u
/* Alignment of states, results and weights. */
#define ACCRT_STORAGE_ALIGN 256u
/* Alignment of arenas: the most that accx_function.transient_align may ask for. */
#define ACCRT_ARENA_ALIGN 4096u
#define ACCRT_DEFAULT_MAX_PLANS 64u
/* Most commands of one plan, loops unrolled, and most rounds of one loop. */
#define ACCRT_MAX_PLAN_COMMANDS (1u << 18)

/* ---- Weights: all constants of a program at one time. Counted: calls in flight and sessions keep the set they use. ---- */

typedef struct accrt_weight_component {
  accrt_buffer_t* buffer; /* owned; NULL when used in place from the bundle, or not there yet */
  uint64_t address;
  uint64_t size_bytes;
  bool ready;
} accrt_weight_component_t;

typedef struct accrt_external accrt_external_t; /* external.h */
typedef struct accrt_slice accrt_slice_t;       /* shard.h */
void accrt_external_release(accrt_external_t* external);

typedef struct accrt_weight_set {
  accrt_object_t object;
  const accrt_allocator_t* allocator;
  accrt_external_t* external; /* what of it is in no bundle; NULL: nothing */
  uint32_t count;
  accrt_weight_component_t components[]; /* by index in the bundle's COMPONENTS */
} accrt_weight_set_t;

accrt_status_t accrt_weight_set_create(const accrt_allocator_t* allocator, uint32_t count,
                                       accrt_weight_set_t** out_weights);
void accrt_weight_set_release(accrt_weight_set_t* weights);
/* Where a constant's components lie at least: what a source outside has is used in place where it is aligned as arguments are. Plans
 * count on it. */
static inline uint32_t accrt_constant_align(const accx_constant_t* constant) {
  return constant->source == ACCX_CONSTANT_EXTERNAL ? ACCRT_ARGUMENT_ALIGN : ACCRT_STORAGE_ALIGN;
}
static inline void accrt_weight_component_forget(accrt_weight_component_t* component) {
  accrt_buffer_unref(component->buffer);
  *component = (accrt_weight_component_t){0};
}
static inline void accrt_weight_set_retain(accrt_weight_set_t* weights) {
  accrt_object_retain(&weights->object);
}
/* The program's present set with a reference for the caller, and its generation. */
accrt_weight_set_t* accrt_program_weights(accrt_program_t* program, uint64_t* out_generation);
/* The constant that a component belongs to. */
uint32_t accrt_program_constant_of(const accrt_program_t* program, uint32_t component);
/* A constant by name that no prepare function makes: ACCRT_ERROR_NOT_FOUND with near names. */
accrt_status_t accrt_program_find_stored(const accrt_program_t* program, const char* name,
                                         uint32_t* out_constant);
/* No source is NULL or of another instance. */
accrt_status_t accrt_program_check_weights(const accrt_instance_t* instance,
                                           accrt_weights_t* const* weights, uint32_t count);
/* Puts a component of a constant that the bundle or a source stores into its place, checked, unless it is there. One that a prepare
 * function makes is left as it is. */
accrt_status_t accrt_weight_set_place(accrt_program_t* program, accrt_weight_set_t* weights,
                                      uint32_t component);
accrt_status_t accrt_weight_set_place_all(accrt_program_t* program, accrt_weight_set_t* weights);
/* A buffer for weights, from the device's pool. */
accrt_status_t accrt_weight_allocate(accrt_program_t* program, const char* label,
                                     uint64_t size_bytes, accrt_buffer_t** out_buffer);
/* Gives a component one of its own. */
accrt_status_t accrt_weight_set_allocate(accrt_program_t* program, const char* name,
                                         accrt_weight_component_t* component, uint64_t size_bytes);
/* Waits for a stream that only the caller uses; its failure becomes this thread's error and the status. */
accrt_status_t accrt_finish_stream(accrt_stream_t* stream);

/* ---- Programs ---- */

typedef struct accrt_program_image {
  accrt_kernel_pack_t* pack;     /* host ELF, packs outside the bundle */
  accrt_driver_module_t* module; /* any other kind */
  bool loaded;
  bool refused;
  char refusal[240]; /* why its variants are passed over */
} accrt_program_image_t;

/* A variant that can run on the device, with its code. */
typedef struct accrt_program_variant {
  uint32_t index;                           /* in VARIANTS */
  const accrt_driver_kernel_t* kernel;      /* NULL for an operator */
  const accrt_driver_operator_t* operation; /* NULL for a kernel */
  accrt_driver_kernel_t own;                /* what `kernel` points to for kernels of modules */
  accrt_kernel_def_t definition; /* of `own`: what is declared, and how the variant is launched */
} accrt_program_variant_t;

typedef struct accrt_program_kernel {
  accrt_kernel_def_t declared; /* what the bundle says of it */
  accrt_kernel_param_t* params;
  accrt_program_variant_t* variants; /* best first; all after one without predicates are left out */
  uint32_t variant_count;
  uint32_t variant_capacity;
} accrt_program_kernel_t;

/* What calls on this device can lead to. The rest of a bundle (functions for other drivers, and what only they use) is neither
 * loaded nor placed. */
typedef struct accrt_program_reach {
  uint8_t* functions;  /* by index: ACCRT_REACH_* */
  uint8_t* kernels;    /* by index: 1 or 0 */
  uint8_t* components; /* by index: 1 for what calls use; what only prepare functions read is 0 */
} accrt_program_reach_t;
#define ACCRT_REACH_RUN 1u /* a call of a user leads here */
#define ACCRT_REACH_PREPARE                                                                        \
  2u /* a prepare function that makes what calls use, or what that calls */

/* What is known of a function before any call. */
typedef struct accrt_program_function {
  uint32_t*
      symbols; /* those that its inputs bind, by index of the module, in order of their first binding */
  uint32_t* signature_nodes; /* expressions that the argument types need, ascending */
  uint8_t*
      quick_scalars; /* by input: 1 for a scalar of a RUNTIME symbol that no argument type depends on */
  uint32_t symbol_count;
  uint32_t symbol_capacity;
  uint32_t signature_node_count;
  uint32_t signature_node_capacity;
  uint32_t input_count;
} accrt_program_function_t;

/* Programs and sessions hold all they need by internal references; each public reference of theirs holds the instance. So the
 * instance ends when no user holds anything, and waits for sessions that calls in flight still keep. */
struct accrt_program {
  accrt_object_t object;
  accrt_device_t* device;     /* borrowed from the instance */
  accrt_instance_t* instance; /* borrowed: see above */
  accrt_bundle_t* bundle;
  const accrt_bundle_tables_t* tables;
  const accrt_allocator_t* allocator;
  char* variant_override; /* or NULL */
  accrt_slice_t* slices;  /* by component, of bundles with shards; else NULL */
  uint32_t rank;
  accrt_program_image_t* images;
  accrt_program_kernel_t* kernels;
  char**
      refusals; /* by variant: why its code cannot be used here although it fits; NULL where it can */
  accrt_program_reach_t reach;
  accrt_program_function_t* functions;
  accrt_mutex_t
      weights_lock; /* guards `weights`, for the moment of exchanging or retaining it only */
  accrt_weight_set_t* weights;
  /* Grows with each swap. Release in publish, acquire in calls that compare it: they then take the lock. */
  atomic_uint_least64_t weights_generation;
};

/* Drops an internal reference. */
void accrt_program_unref(accrt_program_t* program);
/* The public reference of something that was just made or retained becomes an internal one. Somebody holds the instance. */
static inline void accrt_program_internalize(const accrt_program_t* program) {
  accrt_instance_release(program->instance);
}

/* Whether the device has memory of its own: it reads nothing of the host's where it lies. */
static inline bool accrt_program_has_own_memory(const accrt_program_t* program) {
  return (accrt_device_facts(program->device)->flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0;
}

static inline const char* accrt_program_string(const accrt_program_t* program, uint32_t offset) {
  return accrt_bundle_string(program->tables, offset);
}
static inline const char* accrt_function_name(const accrt_program_t* program, uint32_t function) {
  return accrt_program_string(program, program->tables->functions[function].name);
}
static inline const accx_argument_t* accrt_function_arguments(const accrt_program_t* program,
                                                              uint32_t function) {
  const accx_argument_t* arguments = program->tables->arguments; /* NULL where none has any */
  return arguments != NULL ? arguments + program->tables->functions[function].argument_first : NULL;
}
static inline uint32_t accrt_function_argument_count(const accrt_program_t* program,
                                                     uint32_t function) {
  const accx_function_t* record = &program->tables->functions[function];
  return record->input_count + record->result_count;
}
static inline const accx_expression_t* accrt_function_scope(const accrt_program_t* program,
                                                            uint32_t function) {
  return program->tables->expressions + program->tables->functions[function].expression_first;
}
/* ACCRT_ERROR_VERSION_MISMATCH for a function that needs more than this library has. */
accrt_status_t accrt_function_check_features(const accrt_program_t* program, uint32_t function);
/* Index of a function that a user may call: ACCRT_ERROR_NOT_FOUND with near names, ACCRT_ERROR_PERMISSION_DENIED. */
accrt_status_t accrt_program_find_function(const accrt_program_t* program, const char* name,
                                           uint32_t* out_function);
accrt_status_t accrt_program_functions_create(accrt_program_t* program);
void accrt_program_functions_destroy(accrt_program_t* program);

/* ---- What this device needs of the bundle (reachable.c) ---- */

/* ACCRT_ERROR_NO_VARIANT when a constant that is used is made by prepare functions of other drivers alone. */
accrt_status_t accrt_program_reach_create(accrt_program_t* program);
void accrt_program_reach_destroy(accrt_program_t* program);
/* False for what only functions for other devices use, or prepare functions read: it needs no place on the device. */
static inline bool accrt_program_uses_component(const accrt_program_t* program,
                                                uint32_t component) {
  return program->reach.components[component] != 0;
}

/* ---- Code: which variants can run here, and their kernels ---- */

accrt_status_t accrt_program_kernels_create(accrt_program_t* program);
void accrt_program_kernels_destroy(accrt_program_t* program);
/* Loads the variant's image (once), finds its kernel in it and checks that against the declaration. `out_refusal` (of
 * capacity_bytes) gets text when the variant is to be passed over, with ACCRT_OK: code that the driver has no use for here, a
 * pack that is not installed. */
accrt_status_t accrt_program_load_variant(accrt_program_t* program, uint32_t kernel,
                                          accrt_program_variant_t* variant, char* out_refusal,
                                          size_t capacity_bytes);
void accrt_program_images_destroy(accrt_program_t* program);
/* Order of preference: negative when `a` comes before `b`. */
int accrt_variant_compare(const accrt_program_t* program, uint32_t a, uint32_t b);
/* True when the variant can run on the program's device; else writes why not. */
bool accrt_variant_fits(const accrt_program_t* program, const accx_variant_t* variant,
                        char* why_not, size_t capacity_bytes);

/* The same, and its code could be loaded. */
bool accrt_variant_usable(const accrt_program_t* program, uint32_t variant, char* why_not,
                          size_t capacity_bytes);

/* Text that grows in a buffer of fixed size and is cut at its end. */
typedef struct accrt_text {
  char* bytes;
  size_t capacity_bytes;
  size_t size_bytes; /* what all of it needs, without the NUL */
} accrt_text_t;
void accrt_text_add(accrt_text_t* text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- Symbols ---- */

/* A value of a symbol lies in its range and is a multiple of its divisor. */
bool accrt_symbol_allows(const accx_symbol_t* symbol, int64_t value);
/* "1 to 128, multiples of 8" into `text`; returns it. */
const char* accrt_symbol_range_text(const accx_symbol_t* symbol, char* text, size_t capacity_bytes);
/* Smallest bucket that holds `value` (which the symbol allows), and in `out_low` the smallest value in it. */
int64_t accrt_symbol_bucket(const accrt_bundle_tables_t* tables, const accx_symbol_t* symbol,
                            int64_t value, int64_t* out_low);
/* The value with which memory is sized: the bucket's bound, a runtime symbol's maximum, else the value. */
accrt_expr_value_t accrt_symbol_memory_value(const accrt_bundle_tables_t* tables, uint32_t symbol,
                                             accrt_expr_value_t value);
/* Values of SESSION symbols (if `session_only`) or of all, from a list by name; those left out take their maximum. */
accrt_status_t accrt_symbols_from_list(const accrt_program_t* program,
                                       const accrt_symbol_value_t* list, uint32_t count,
                                       uint32_t element_bytes, bool session_only,
                                       accrt_expr_value_t* out_values);
/* Bytes of a state, and its shape (may be NULL), for values of the SESSION symbols. */
accrt_status_t accrt_state_size(const accrt_program_t* program, uint32_t state,
                                const accrt_expr_value_t* symbols, int64_t* out_shape,
                                uint64_t* out_size_bytes);
/* Bytes of all elements of a contiguous tensor; false on overflow or a negative dimension. */
bool accrt_shape_bytes(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape,
                       uint64_t* out_size_bytes);
/* A tensor that a caller gives: data type and rank are `type`'s, its shape is sound and contiguous. The messages name no
 * tensor: the caller prefixes them. */
accrt_status_t accrt_tensor_check(const accrt_tensor_t* tensor, const accx_type_t* type,
                                  uint64_t* out_size_bytes);

/* ---- Plans ---- */

/* What a plan depends on. */
typedef struct accrt_plan_request {
  accrt_program_t* program;
  uint32_t function;
  const accrt_expr_value_t*
      symbols; /* of the module: those of this call (one value of a bucket stands for all) */
  const uint8_t* present;      /* by argument; results are always present */
  const uint64_t* state_bytes; /* by state */
  bool measure_only;           /* only arena_bytes and result_bytes: no code, no list */
} accrt_plan_request_t;

enum {
  ACCRT_PLAN_ARGUMENT = 0,  /* index = argument */
  ACCRT_PLAN_COMPONENT = 1, /* index = component of the bundle */
  ACCRT_PLAN_STATE = 2,
  ACCRT_PLAN_ARENA = 3,
};
typedef struct accrt_plan_binding {
  uint32_t kind;
  uint32_t index;
  uint32_t access; /* ACCRT_KERNEL_ACCESS_*: all that commands do to it */
} accrt_plan_binding_t;

/* A value at a call: constant + (node == NONE ? 0 : values[node]). */
typedef struct accrt_plan_value {
  int64_t constant;
  uint32_t node;
  uint32_t reserved;
} accrt_plan_value_t;

enum {
  ACCRT_CHECK_RANGE = 0,    /* a >= 0, b >= 0 and a + b <= c: offset, size, limit */
  ACCRT_CHECK_GRID = 1,     /* 0 <= a <= 2^32 - 1 */
  ACCRT_CHECK_AT_LEAST = 2, /* a >= b */
  ACCRT_CHECK_MULTIPLE = 3, /* a and b are multiples of c */
  ACCRT_CHECK_DISJOINT = 4, /* [a, a + b) and [c, c + d) do not meet */
  ACCRT_CHECK_ROWS = 5,     /* a != 0; b, c, d for messages: bytes of a row, strides */
};
typedef struct accrt_plan_check {
  uint32_t kind;
  uint32_t command;   /* of the flat list, for messages */
  const char* what;   /* static: "grid x", "parameter" */
  const char* name;   /* of the command, or "" */
  const char* detail; /* the slot's or parameter's name, or "" */
  accrt_plan_value_t values[4];
} accrt_plan_check_t;

typedef struct accrt_plan {
  accrt_object_t object;
  accrt_program_t* program; /* borrowed: whoever holds a plan holds its program */
  uint32_t function;
  accrt_zone_t zone;         /* everything below but the list */
  accrt_driver_list_t* list; /* NULL when the function runs no command */
  accrt_driver_command_t* commands;
  uint32_t command_count;
  uint32_t binding_count;
  accrt_plan_binding_t* bindings;
  accx_expression_t* nodes; /* evaluated in order at each call whose symbols changed */
  uint32_t node_count;
  uint32_t scalar_count;
  uint32_t* scalars; /* node of each scalar of the list */
  uint32_t* roots;   /* nodes that must have a value */
  uint32_t root_count;
  uint32_t check_count;
  accrt_plan_check_t*
      checks; /* those that depend on nodes; the others held when the plan was made */
  uint64_t arena_bytes;
  uint64_t* result_bytes; /* by result: what to allocate for it */
  /* Of the session's table. */
  struct accrt_plan* next;
  int64_t* key;
  uint32_t key_count;
  uint32_t reserved;
  uint64_t hash;
  uint64_t last_use;
} accrt_plan_t;

accrt_status_t accrt_plan_create(const accrt_plan_request_t* request, accrt_plan_t** out_plan);
void accrt_plan_release(accrt_plan_t* plan);
static inline void accrt_plan_retain(accrt_plan_t* plan) {
  accrt_object_retain(&plan->object);
}
/* Evaluates nodes and scalars for the symbols of a call and makes the plan's checks. `values` has node_count entries. */
accrt_status_t accrt_plan_evaluate(const accrt_plan_t* plan, const accrt_expr_value_t* symbols,
                                   accrt_expr_value_t* values, uint64_t* out_scalars);
/* Makes one check with all values known. Records ACCRT_ERROR_OUT_OF_RANGE (or ACCRT_ERROR_ALIASED) with them. */
accrt_status_t accrt_plan_check_values(const accrt_plan_check_t* check, const int64_t values[4]);

/* Puts bytes into a buffer of the component's own; returns when they are there. */
accrt_status_t accrt_weight_component_upload(accrt_program_t* program, const char* name,
                                             accrt_weight_component_t* component,
                                             const accrt_place_t* source, uint64_t size_bytes);

/* ---- Prepare functions ---- */

/* Runs, in order, every prepare function that makes a constant which `weights` lacks. `is_first`: when the program is created, and what
 * is on disk may be used instead. */
accrt_status_t accrt_prepare_run(accrt_program_t* program, accrt_weight_set_t* weights,
                                 bool is_first);

/* ---- Sessions ---- */

typedef struct accrt_session_state {
  accrt_buffer_t* buffer; /* internal reference; NULL for a state of 0 bytes */
  uint64_t offset_bytes;
  uint64_t address;
  uint64_t size_bytes;
  bool external;
} accrt_session_state_t;

/* One asynchronous execution. Records are kept for the life of the session and used again. */
typedef struct accrt_run {
  struct accrt_run* next;
  accrt_session_t* session; /* borrowed: a session ends after all that it has in flight */
  accrt_plan_t* plan;       /* retained until the record is collected */
  const char* name;
  accrt_status_t status;
  uint32_t reserved;
  accrt_error_t error;
  uint64_t begin_ns;
  atomic_uint done; /* release by the completion, acquire by whoever reads status and error */
} accrt_run_t;

struct accrt_session {
  accrt_object_t object;
  accrt_program_t* program; /* this and those below: internal references */
  accrt_stream_t* stream;
  accrt_pool_t* pool;
  bool own_stream;
  char* label;                 /* or NULL */
  accrt_expr_value_t* symbols; /* of the module; SESSION ones have values */
  accrt_session_state_t* states;
  uint64_t* state_bytes; /* by state, for plan requests */
  accrt_buffer_t* arena;
  uint64_t arena_address;
  uint64_t arena_bytes;
  accrt_weight_set_t* weights;
  accrt_adapter_t* adapter; /* an internal reference, or NULL */
  uint64_t adapter_version; /* grows when it changes */
  uint64_t weights_generation;
  uint64_t
      version; /* grows when the address of a state, of the arena or of a weight may have changed */
  accrt_plan_t** plans; /* hash table of chains; capacity is a power of two */
  uint32_t plan_capacity;
  uint32_t plan_count;
  uint32_t max_plans;
  uint64_t clock;
  accrt_run_t* free_runs;
  /* Finished records: pushed by completions (release), all taken at once by the session's owner (acquire exchange). */
  _Atomic(accrt_run_t*) finished_runs;
  /* Asynchronous executions. Decremented with release as the completion's last touch of the session; whoever ends the
   * session reads it with acquire. */
  atomic_uint in_flight;
  uint64_t last_submission; /* of the last asynchronous execution on the stream; 0 when none */
  /* Executions without a completion, where the stream knows how far it is: the first whose outcome is not known, or 0; and how
   * often the stream had failed when it was last looked at. Both of the session's owner. */
  uint64_t first_unknown;
  uint32_t seen_failures;
  /* 0: sound; 1: the record is being written; 2: failed, `error` is valid (release, read with acquire). */
  atomic_uint failed;
  accrt_error_t error;
};

accrt_status_t accrt_session_fail(accrt_session_t* session, const accrt_error_t* error);
/* ACCRT_OK, or ACCRT_ERROR_POISONED with the failure's text. */
accrt_status_t accrt_session_check(accrt_session_t* session);
/* Drops an internal reference of a buffer that calls in flight may use: its memory is not reused before they have ended. */
void accrt_session_let_go(accrt_session_t* session, accrt_buffer_t* buffer);
/* A buffer from the session's pool. */
accrt_status_t accrt_session_allocate(accrt_session_t* session, uint64_t size_bytes,
                                      const char* label, accrt_buffer_t** out_buffer);
/* The plan for a key, made when it is not there; the session keeps it, and the caller gets a reference. */
accrt_status_t accrt_session_plan(accrt_session_t* session, uint32_t function,
                                  const accrt_expr_value_t* symbols, const uint8_t* present,
                                  const int64_t* key, uint32_t key_count, accrt_plan_t** out_plan);
void accrt_session_drop_plans(accrt_session_t* session);
/* The key of a plan: a number for each bindable symbol of the function, then presence bits. */
uint32_t accrt_plan_key_count(const accrt_program_t* program, uint32_t function);
void accrt_plan_key(const accrt_program_t* program, uint32_t function,
                    const accrt_expr_value_t* symbols, const uint8_t* present, int64_t* out_key);
/* Makes the arena at least so large. */
accrt_status_t accrt_session_reserve_arena(accrt_session_t* session, uint64_t size_bytes);
/* Takes over weights that were swapped since the last call. */
void accrt_session_refresh_weights(accrt_session_t* session);
/* Makes sure that a run record is at hand, then hands it out: NULL fields but session. */
accrt_status_t accrt_session_take_run(accrt_session_t* session, accrt_run_t** out_run);
void accrt_session_give_back_run(accrt_session_t* session, accrt_run_t* run);
/* Collects finished records: drops their plans. */
void accrt_session_collect_runs(accrt_session_t* session);
/* Executes on the stream. The record's completion poisons the session when it fails. */
accrt_status_t accrt_session_execute(accrt_session_t* session, accrt_run_t* run,
                                     accrt_stream_work_t* work);
/* Executes on a stream that tells nobody. The plan is kept by the stream. */
accrt_status_t accrt_session_execute_passive(accrt_session_t* session, accrt_plan_t* plan,
                                             accrt_stream_work_t* work);
/* Looks what has become of executions without a completion; a failure fails the session. */
void accrt_session_look(accrt_session_t* session);
/* An asynchronous execution may not have ended, as far as is known without asking anybody. */
static inline bool accrt_session_is_busy(accrt_session_t* session) {
  /* Acquire pairs with the release in run.c's complete. */
  return atomic_load_explicit(&session->in_flight, memory_order_acquire) != 0 ||
         (session->first_unknown != 0 &&
          !accrt_fence_passed(accrt_stream_fence(session->stream), session->last_submission));
}
/* Waits until completions of all executions have been delivered; everything on the stream has ended. */
void accrt_session_drain(accrt_session_t* session);
/* Storage of the session's own for every state. */
accrt_status_t accrt_session_create_states(accrt_session_t* session);
/* The initial value in all states; returns when it is there. No call may be in flight. */
accrt_status_t accrt_session_fill_states(accrt_session_t* session);
void accrt_session_destroy_states(accrt_session_t* session);

/* ---- Calls ---- */

typedef struct accrt_call_argument {
  accrt_buffer_t* buffer; /* retained, or NULL */
  void* data;             /* plain memory */
  uint64_t offset_bytes;
  uint64_t address;
  uint64_t size_bytes;     /* of the tensor */
  uint64_t capacity_bytes; /* results of the runtime's own: of the buffer */
  int64_t shape[ACCRT_MAX_RANK];
  int64_t scalar;
  bool bound;             /* by the caller, or by the session's adapter */
  bool adapted;           /* by the latter */
  bool own;               /* a result that the runtime allocated */
  bool shared;            /* a result that has its input's storage (MUST alias, not bound) */
  bool staged_shared;     /* `staged` is an input's */
  accrt_buffer_t* staged; /* on the device, for plain memory that it does not reach; or NULL */
  uint64_t staged_address;
  uint64_t staged_bytes;
} accrt_call_argument_t;

/* What must be looked at again before the next run. */
#define ACCRT_CALL_DIRTY_SHAPES                                                                    \
  1u /* a shape, a scalar or an argument's presence changed: symbols, plan, all below */
#define ACCRT_CALL_DIRTY_SCALARS 2u   /* a runtime scalar alone changed: patched values */
#define ACCRT_CALL_DIRTY_ADDRESSES 4u /* storage changed: binding table, aliases */

struct accrt_call {
  accrt_object_t object;
  accrt_session_t* session;
  accrt_program_t* program; /* borrowed from the session */
  const accx_argument_t* signature;
  uint32_t function;
  uint32_t argument_count;
  uint32_t input_count;
  uint32_t dirty;
  accrt_call_argument_t* arguments;
  uint8_t* present;
  accrt_expr_value_t* symbols; /* of the module */
  uint32_t* binders;           /* by symbol of the module: the argument that bound it, or NONE */
  accrt_expr_value_t*
      signature_values; /* of the function's scope; only nodes of its signature are valid */
  int64_t* key;
  uint32_t key_count;
  bool ran;
  bool own_results;         /* some result is allocated by the runtime */
  bool stages;              /* the device does not reach plain host memory */
  uint32_t staged_count;    /* arguments that are copied in or out at each run */
  accrt_plan_t* plan;       /* retained; NULL before the first run */
  uint64_t adapter_version; /* the session's that arguments are of */
  uint64_t session_version; /* for which the binding table is right */
  accrt_driver_binding_t* bindings;
  uint64_t* scalars;
  accrt_expr_value_t* values;
  size_t binding_capacity;
  size_t scalar_capacity;
  size_t value_capacity;
  bool maybe_in_flight; /* an asynchronous run of this call may not have ended */
};

/* ---- Adapters ---- */

/* Drops an internal reference; NULL is allowed. */
void accrt_adapter_unref(accrt_adapter_t* adapter);
/* Binds what the session's adapter has to inputs that the caller has not bound, and lets go of what an earlier one had. */
accrt_status_t accrt_call_adapt(accrt_call_t* call);

/* Finds the symbols' values from the arguments' shapes, checks every dimension, and gives the results their shapes. */
accrt_status_t accrt_call_solve(accrt_call_t* call);
/* The same when only quick scalars changed. */
accrt_status_t accrt_call_solve_scalars(accrt_call_t* call);
/* Storage of the results (given, shared, kept or new), then the binding table if anything in it changed. */
accrt_status_t accrt_call_bind(accrt_call_t* call);
/* Makes the buffers of arguments in plain host memory that the device does not reach, and drops those that are not needed. */
accrt_status_t accrt_call_stage(accrt_call_t* call);
void accrt_call_unstage(accrt_call_t* call, uint32_t index);
/* Where commands find an argument. */
uint64_t accrt_call_device_address(const accrt_call_t* call, uint32_t index);
/* Enqueues the copies before and after a run. */
accrt_status_t accrt_call_copy_in(accrt_call_t* call);
accrt_status_t accrt_call_copy_out(accrt_call_t* call);
/* Drops the storage of an argument. */
void accrt_call_clear_argument(accrt_call_t* call, uint32_t argument);
/* Puts "function 'f', input 'x' (f32[n, 4])" before the message of this thread's error. */
void accrt_call_prefix(const accrt_call_t* call, uint32_t argument);
static inline const char* accrt_call_argument_name(const accrt_call_t* call, uint32_t argument) {
  return accrt_program_string(call->program, call->signature[argument].name);
}

#endif /* ACCRT_RUNTIME_PROGRAM_INTERNAL_H_ */
