/* runtime/program/internal.h - the structs behind programs, sessions, calls and plans.
 *
 * For runtime/program alone. It uses streams and devices through drivers/common/internal.h, and the
 * loader. The files, from the lowest up: expr (evaluation), symbolic (values of a plan while it is
 * made), variant and image (which code runs), plan_* (a function becomes one driver list), weights
 * and prepare (constants), program, session, solve (the symbols' values for a call), call and
 * call_run.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_INTERNAL_H_
#define ACCRT_RUNTIME_PROGRAM_INTERNAL_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/program.h"
#include "loader/bundle.h"
#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/guard.h"
#include "runtime/core/memory.h"
#include "runtime/core/meter.h"
#include "runtime/core/object.h"
#include "runtime/core/pack.h"
#include "runtime/core/sync.h"
#include "runtime/drivers/common/internal.h"
#include "runtime/drivers/common/pieces.h"
#include "runtime/program/expr.h"
#include "runtime/program/zone.h"

/* Required alignment of a call's argument of at least this size. A smaller argument needs only the
 * alignment of its element. */
#define ACCRT_ARGUMENT_ALIGN 16u
/* Alignment of states, results and weights. */
#define ACCRT_STORAGE_ALIGN 256u
/* Alignment of arenas: the maximum of accx_function.transient_align. */
#define ACCRT_ARENA_ALIGN 4096u
#define ACCRT_DEFAULT_MAX_PLANS 64u
/* Maximum number of commands in one plan (after loops are unrolled), and of rounds of one loop. */
#define ACCRT_MAX_PLAN_COMMANDS (1u << 18)

/* ---- Weights: one set holds all constants of a program ---- */

/* A set counts references. Sessions and calls in flight retain the set that they use. */

typedef struct accrt_weight_component {
  /* owned; NULL when the bundle's bytes are used in place, or when not placed yet */
  accrt_buffer_t* buffer;
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
  accrt_external_t* external; /* which tensor of which source each constant is */
  uint32_t count;
  accrt_weight_component_t components[]; /* by index in the bundle's COMPONENTS */
} accrt_weight_set_t;

accrt_status_t accrt_weight_set_create(const accrt_allocator_t* allocator, uint32_t count,
                                       accrt_weight_set_t** out_weights);
void accrt_weight_set_release(accrt_weight_set_t* weights);
/* Minimum alignment of a constant's components; plans rely on it. An EXTERNAL constant is used in
 * place from its source when it has the alignment of an argument. */
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
/* Returns the program's current set with a reference for the caller, and its generation. */
accrt_weight_set_t* accrt_program_weights(accrt_program_t* program, uint64_t* out_generation);
/* Returns the constant that a component belongs to. */
uint32_t accrt_program_constant_of(const accrt_program_t* program, uint32_t component);
/* Finds a constant by name. ACCRT_ERROR_NOT_FOUND with similar names when there is none or when a
 * prepare function makes it. */
accrt_status_t accrt_program_find_stored(const accrt_program_t* program, const char* name,
                                         uint32_t* out_constant);
/* Checks that no source is NULL or belongs to another instance. */
accrt_status_t accrt_program_check_weights(const accrt_instance_t* instance,
                                           accrt_weights_t* const* weights, uint32_t count);
/* Places one component of a constant that the bundle or a source stores, and checks it. Does
 * nothing if the component is in place already, or if a prepare function makes the constant. */
accrt_status_t accrt_weight_set_place(accrt_program_t* program, accrt_weight_set_t* weights,
                                      uint32_t component);
accrt_status_t accrt_weight_set_place_all(accrt_program_t* program, accrt_weight_set_t* weights);
/* Allocates a buffer for weights from the device's pool. */
accrt_status_t accrt_weight_allocate(accrt_program_t* program, const char* label,
                                     uint64_t size_bytes, accrt_buffer_t** out_buffer);
/* Allocates a component's own buffer. */
accrt_status_t accrt_weight_set_allocate(accrt_program_t* program, const char* name,
                                         accrt_weight_component_t* component, uint64_t size_bytes);
/* Waits for a stream that only the caller uses. A failure of the stream becomes the result and this
 * thread's error. */
accrt_status_t accrt_finish_stream(accrt_stream_t* stream);

/* ---- Programs ---- */

typedef struct accrt_program_image {
  accrt_kernel_pack_t* pack;     /* for a host ELF or a pack outside the bundle */
  accrt_driver_module_t* module; /* for any other kind */
  bool loaded;
  bool refused;
  char refusal[240]; /* why its variants cannot be used */
} accrt_program_image_t;

/* A variant that can run on the device, with its loaded code. */
typedef struct accrt_program_variant {
  uint32_t index;                           /* index in VARIANTS */
  const accrt_driver_kernel_t* kernel;      /* NULL for an operator */
  const accrt_driver_operator_t* operation; /* NULL for a kernel */
  accrt_driver_kernel_t own;     /* storage behind `kernel` when the kernel is in a module */
  accrt_kernel_def_t definition; /* of `own`: the declaration and the launch of this variant */
} accrt_program_variant_t;

typedef struct accrt_program_kernel {
  accrt_kernel_def_t declared; /* as the bundle declares it */
  accrt_kernel_param_t* params;
  accrt_program_variant_t* variants; /* best first; those after one that always fits are left out */
  uint32_t variant_count;
  uint32_t variant_capacity;
} accrt_program_kernel_t;

/* The parts of a bundle that calls on this device can use. All other parts (functions for other
 * drivers, and what only those use) are neither loaded nor placed. */
typedef struct accrt_program_reach {
  uint8_t* functions; /* by index: ACCRT_REACH_* */
  uint8_t* kernels;   /* by index: 1 or 0 */
  /* by index: 1 when calls use it; 0 too when only prepare functions read it */
  uint8_t* components;
} accrt_program_reach_t;
#define ACCRT_REACH_RUN 1u /* a user's call can reach it */
#define ACCRT_REACH_PREPARE                                                                        \
  2u /* a prepare function for constants that calls use, or a callee of one */

/* Facts about a function that no call changes. */
typedef struct accrt_program_function {
  /* The symbols that its inputs bind, by index in the module, in the order of first binding. */
  uint32_t* symbols;
  uint32_t* signature_nodes; /* expressions that the argument types need, ascending */
  /* By input: 1 for a scalar of a RUNTIME symbol on which no argument type depends. */
  uint8_t* quick_scalars;
  uint32_t symbol_count;
  uint32_t symbol_capacity;
  uint32_t signature_node_count;
  uint32_t signature_node_capacity;
  uint32_t input_count;
} accrt_program_function_t;

/* Programs and sessions use internal references among themselves. Each public reference to a
 * program or session retains the instance. The instance therefore ends when the user has released
 * all handles. Its end waits for sessions that calls in flight still retain. */
struct accrt_program {
  accrt_object_t object;
  accrt_device_t* device;     /* not retained: the instance owns it */
  accrt_instance_t* instance; /* not retained by the struct: see above */
  accrt_bundle_t* bundle;
  const accrt_bundle_tables_t* tables;
  const accrt_allocator_t* allocator;
  char* variant_override; /* or NULL */
  accrt_slice_t* slices;  /* by component, of bundles with shards; else NULL */
  uint32_t rank;
  accrt_program_image_t* images;
  accrt_program_kernel_t* kernels;
  /* By variant: why its code cannot be used although the variant fits; NULL when it can. */
  char** refusals;
  accrt_program_reach_t reach;
  accrt_program_function_t* functions;
  accrt_mutex_t weights_lock; /* held only to exchange or retain `weights` */
  accrt_weight_set_t* weights;
  /* Grows with each swap. A swap stores it with release. Calls load it with acquire, and take the
   * lock when it has changed. */
  atomic_uint_least64_t weights_generation;
};

/* Drops an internal reference. */
void accrt_program_unref(accrt_program_t* program);
/* Turns the public reference of an object that was just made or retained into an internal one. The
 * caller holds another reference to the instance. */
static inline void accrt_program_internalize(const accrt_program_t* program) {
  accrt_instance_release(program->instance);
}

/* True when the device has its own memory and cannot read host memory in place. */
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
/* ACCRT_ERROR_VERSION_MISMATCH for a function that requires a feature which this library lacks. */
accrt_status_t accrt_function_check_features(const accrt_program_t* program, uint32_t function);
/* Finds a function that a user may call. ACCRT_ERROR_NOT_FOUND with similar names, or
 * ACCRT_ERROR_PERMISSION_DENIED. */
accrt_status_t accrt_program_find_function(const accrt_program_t* program, const char* name,
                                           uint32_t* out_function);
accrt_status_t accrt_program_functions_create(accrt_program_t* program);
void accrt_program_functions_destroy(accrt_program_t* program);

/* ---- The parts of the bundle that this device needs (reachable.c) ---- */

/* ACCRT_ERROR_NO_VARIANT when calls use a constant that only prepare functions of other drivers
 * make. */
accrt_status_t accrt_program_reach_create(accrt_program_t* program);
void accrt_program_reach_destroy(accrt_program_t* program);
/* False for a component that only prepare functions, or functions for other devices, read. It needs
 * no memory on the device. */
static inline bool accrt_program_uses_component(const accrt_program_t* program,
                                                uint32_t component) {
  return program->reach.components[component] != 0;
}

/* ---- Code: the variants that can run on the device, and their kernels ---- */

accrt_status_t accrt_program_kernels_create(accrt_program_t* program);
void accrt_program_kernels_destroy(accrt_program_t* program);
/* Loads the variant's image on first use, finds its kernel in it and checks the kernel against the
 * declaration. If the variant cannot be used here (the driver does not support the code, or the
 * pack is not installed), the result is ACCRT_OK and `out_refusal` (of capacity_bytes) gets the
 * reason. */
accrt_status_t accrt_program_load_variant(accrt_program_t* program, uint32_t kernel,
                                          accrt_program_variant_t* variant, char* out_refusal,
                                          size_t capacity_bytes);
void accrt_program_images_destroy(accrt_program_t* program);
/* Order of preference: negative when `a` comes before `b`. */
int accrt_variant_compare(const accrt_program_t* program, uint32_t a, uint32_t b);
/* True when the variant can run on the program's device; otherwise `why_not` gets the reason. */
bool accrt_variant_fits(const accrt_program_t* program, const accx_variant_t* variant,
                        char* why_not, size_t capacity_bytes);

/* True when the variant fits and its code could be loaded. */
bool accrt_variant_usable(const accrt_program_t* program, uint32_t variant, char* why_not,
                          size_t capacity_bytes);

/* Text in a buffer of fixed size. Text beyond the end is cut off. */
typedef struct accrt_text {
  char* bytes;
  size_t capacity_bytes;
  size_t size_bytes; /* length of the whole text, uncut and without the NUL */
} accrt_text_t;
void accrt_text_add(accrt_text_t* text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- Symbols ---- */

/* True when `value` is in the symbol's range and is a multiple of its divisor. */
bool accrt_symbol_allows(const accx_symbol_t* symbol, int64_t value);
/* Writes "1 to 128, multiples of 8" to `text` and returns it. */
const char* accrt_symbol_range_text(const accx_symbol_t* symbol, char* text, size_t capacity_bytes);
/* The upper bound of the smallest bucket that contains `value`. The symbol must allow the value.
 * `out_low` gets the smallest value of the bucket. */
int64_t accrt_symbol_bucket(const accrt_bundle_tables_t* tables, const accx_symbol_t* symbol,
                            int64_t value, int64_t* out_low);
/* Takes the values of all symbols, or of SESSION symbols only, from a list by name. A symbol that
 * the list lacks gets its maximum. */
accrt_status_t accrt_symbols_from_list(const accrt_program_t* program,
                                       const accrt_symbol_value_t* list, uint32_t count,
                                       uint32_t element_bytes, bool session_only,
                                       accrt_expr_value_t* out_values);
/* The bytes of a state and its shape (may be NULL) for given values of the SESSION symbols. */
accrt_status_t accrt_state_size(const accrt_program_t* program, uint32_t state,
                                const accrt_expr_value_t* symbols, int64_t* out_shape,
                                uint64_t* out_size_bytes);
/* The bytes of a contiguous tensor; false on overflow or a negative dimension. */
bool accrt_shape_bytes(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape,
                       uint64_t* out_size_bytes);
/* Checks a caller's tensor: data type and rank are those of `type`, the shape is valid and
 * contiguous. The messages do not name the tensor; the caller adds the name. */
accrt_status_t accrt_tensor_check(const accrt_tensor_t* tensor, const accx_type_t* type,
                                  uint64_t* out_size_bytes);

/* ---- Plans ---- */

/* The inputs from which a plan is made. */
typedef struct accrt_plan_request {
  accrt_program_t* program;
  uint32_t function;
  const accrt_expr_value_t*
      symbols;            /* of the module, for this call; one value of a bucket stands for all */
  const uint8_t* present; /* by argument; results are always present */
  const uint64_t* state_bytes; /* by state */
  bool measure_only; /* compute only arena_bytes and result_bytes; make no code and no list */
  const accrt_budget_t* budget;
  uint64_t timeout_ns; /* of the caller, from the start of planning; ACCRT_TIMEOUT_INFINITE: none */
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
  uint32_t access; /* ACCRT_KERNEL_ACCESS_*: every access of the commands */
} accrt_plan_binding_t;

/* A value in a call: constant + (node == NONE ? 0 : values[node]). */
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
  ACCRT_CHECK_DISJOINT = 4, /* [a, a + b) and [c, c + d) do not overlap */
  ACCRT_CHECK_ROWS = 5,     /* a != 0; b, c, d for messages: bytes of a row, strides */
  ACCRT_CHECK_DIMENSION =
      6, /* none is negative: offset, bytes behind the range, size, limit of a dimension */
};
typedef struct accrt_plan_check {
  uint32_t kind;
  uint32_t command;   /* index in the flat list, for messages; DIMENSION: NONE */
  const char* what;   /* static text: "grid x", "parameter"; DIMENSION: text of the bundle */
  const char* name;   /* the command's name, or "" */
  const char* detail; /* name of the slot or parameter, or "" */
  accrt_plan_value_t values[4];
} accrt_plan_check_t;

typedef struct accrt_plan {
  accrt_object_t object;
  accrt_program_t* program; /* not retained: every owner of a plan retains its program */
  uint32_t function;
  accrt_zone_t zone;         /* memory of all fields below except the list */
  accrt_driver_list_t* list; /* NULL when the function runs no command */
  accrt_divided_t divided;   /* of the list */
  uint32_t* binding_flags;   /* by binding */
  accrt_driver_command_t* commands;
  uint32_t command_count;
  uint32_t binding_count;
  accrt_plan_binding_t* bindings;
  accx_expression_t* nodes; /* evaluated in order at each call whose symbols changed */
  uint32_t node_count;
  uint32_t scalar_count;
  uint32_t* scalars; /* by scalar of the list: its node */
  uint32_t* roots;   /* nodes that must have a value */
  uint32_t root_count;
  uint32_t check_count;
  accrt_plan_check_t*
      checks; /* checks that depend on nodes; all others passed when the plan was made */
  uint64_t arena_bytes;
  uint64_t* result_bytes; /* by result: bytes to allocate */
  uint64_t last_run_ns;   /* duration of the last timed run; 0: unknown */
  /* Fields of the session's plan table. */
  struct accrt_plan* next;
  int64_t* key;
  uint32_t key_count;
  uint32_t reserved;
  uint64_t hash;
  uint64_t last_use;
} accrt_plan_t;

accrt_status_t accrt_plan_create(const accrt_plan_request_t* request, accrt_plan_t** out_plan);
/* What the driver's list of a plan is made of. */
accrt_driver_list_info_t accrt_plan_list_info(const accrt_plan_t* plan);
void accrt_plan_release(accrt_plan_t* plan);
static inline void accrt_plan_retain(accrt_plan_t* plan) {
  accrt_object_retain(&plan->object);
}
/* Evaluates nodes and scalars for a call's symbols, and runs the plan's checks. `values` has
 * node_count entries. */
accrt_status_t accrt_plan_evaluate(const accrt_plan_t* plan, const accrt_expr_value_t* symbols,
                                   accrt_expr_value_t* values, uint64_t* out_scalars);
/* Runs one check whose values are all known. A failure is ACCRT_ERROR_OUT_OF_RANGE or
 * ACCRT_ERROR_ALIASED; its message has the values. */
accrt_status_t accrt_plan_check_values(const accrt_plan_check_t* check, const int64_t values[4]);

/* Copies bytes into a buffer that the component owns. Returns when the copy is complete. */
accrt_status_t accrt_weight_component_upload(accrt_program_t* program, const char* name,
                                             accrt_weight_component_t* component,
                                             const accrt_place_t* source, uint64_t size_bytes);

/* ---- Prepare functions ---- */

/* Runs, in order, every prepare function for a constant that `weights` lacks. `is_first` means that
 * the program is being created; only then results on disk may replace a run. */
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

/* One asynchronous execution. The session reuses records until it ends. */
typedef struct accrt_run {
  struct accrt_run* next;
  accrt_session_t* session; /* not retained: a session outlives its executions */
  accrt_plan_t* plan;       /* retained until the record is collected */
  const char* name;
  accrt_status_t status;
  uint32_t reserved;
  accrt_error_t error;
  uint64_t begin_ns;
  uint64_t before;  /* in pieces: the stream's last number before its own; else UINT64_MAX */
  atomic_uint done; /* release by the completion, acquire by readers of status and error */
} accrt_run_t;

struct accrt_session {
  accrt_object_t object;
  accrt_guard_t guard;
  accrt_program_t* program; /* this and the pointers below: internal references */
  accrt_stream_t* stream;
  accrt_pool_t* pool;
  bool own_stream;
  char* label;                 /* or NULL */
  accrt_expr_value_t* symbols; /* of the module; those of SESSION symbols are set */
  accrt_session_state_t* states;
  uint64_t* state_bytes; /* by state, for plan requests */
  accrt_buffer_t* arena;
  uint64_t arena_address;
  uint64_t arena_bytes;
  accrt_weight_set_t* weights;
  accrt_adapter_t* adapter; /* an internal reference, or NULL */
  uint64_t adapter_version; /* grows when the adapter changes */
  uint64_t weights_generation;
  uint64_t version; /* grows when the address of a state, the arena or a weight may have changed */
  accrt_plan_t** plans; /* hash table of chains; capacity is a power of two */
  uint32_t plan_capacity;
  uint32_t plan_count;
  uint32_t max_plans;
  accrt_budget_t budget; /* applies to the making of each plan */
  uint64_t clock;
  accrt_run_t* free_runs;
  /* Finished records. Completions push them with release. The thread that uses the session takes
   * all at once with an acquire exchange. */
  _Atomic(accrt_run_t*) finished_runs;
  /* Asynchronous executions. A completion decrements it with release as its last access to the
   * session. The thread that ends the session reads it with acquire. */
  atomic_uint in_flight;
  /* of the last asynchronous execution on the stream; 0 when there was none */
  uint64_t last_submission;
  /* For executions without a completion callback, on streams that count progress. first_unknown:
   * the first submission with an unknown outcome, or 0. seen_failures: the stream's failure count
   * at the last check. Only the thread that uses the session accesses both. */
  uint64_t first_unknown;
  uint32_t seen_failures;
  /* 0: no failure. 1: a thread is writing `error`. 2: failed, `error` is valid (stored with
   * release, read with acquire). */
  atomic_uint failed;
  accrt_error_t error;
};

accrt_status_t accrt_session_fail(accrt_session_t* session, const accrt_error_t* error);
/* ACCRT_OK, or ACCRT_ERROR_POISONED with the failure's text. */
accrt_status_t accrt_session_check_slow(accrt_session_t* session);
static inline accrt_status_t accrt_session_check(accrt_session_t* session) {
  /* Relaxed is enough: after a failure the slow check reads again. */
  const bool sound = session->first_unknown == 0 &&
                     atomic_load_explicit(&session->failed, memory_order_relaxed) == 0;
  return sound ? ACCRT_OK : accrt_session_check_slow(session);
}
/* Drops an internal reference to a buffer that calls in flight may use. The buffer's memory is not
 * reused before those calls have ended. */
void accrt_session_let_go(accrt_session_t* session, accrt_buffer_t* buffer);
/* Allocates a buffer from the session's pool. */
accrt_status_t accrt_session_allocate(accrt_session_t* session, uint64_t size_bytes,
                                      const char* label, accrt_buffer_t** out_buffer);
/* Returns the plan for a key with a reference for the caller. Makes it, and stores it in the
 * session, if it is missing. */
accrt_status_t accrt_session_plan(accrt_session_t* session, uint32_t function,
                                  const accrt_expr_value_t* symbols, const uint8_t* present,
                                  const int64_t* key, uint32_t key_count, uint64_t timeout_ns,
                                  accrt_plan_t** out_plan);
void accrt_session_drop_plans(accrt_session_t* session);
/* The key of a plan: one number for each bindable symbol of the function, then presence bits. */
uint32_t accrt_plan_key_count(const accrt_program_t* program, uint32_t function);
void accrt_plan_key(const accrt_program_t* program, uint32_t function,
                    const accrt_expr_value_t* symbols, const uint8_t* present, int64_t* out_key);
/* Grows the arena to at least `size_bytes`. */
accrt_status_t accrt_session_reserve_arena(accrt_session_t* session, uint64_t size_bytes);
/* Adopts the weights of the last swap. */
void accrt_session_take_weights(accrt_session_t* session);
static inline void accrt_session_refresh_weights(accrt_session_t* session) {
  /* Acquire pairs with the release store of the generation by accrt_program_swap_weights. */
  if (atomic_load_explicit(&session->program->weights_generation, memory_order_acquire) !=
      session->weights_generation)
    accrt_session_take_weights(session);
}
/* Returns a run record whose fields, except `session`, are NULL. Reuses a free one if possible. */
accrt_status_t accrt_session_take_run(accrt_session_t* session, accrt_run_t** out_run);
void accrt_session_give_back_run(accrt_session_t* session, accrt_run_t* run);
/* Releases the plans of finished records and makes the records free. */
void accrt_session_collect_runs(accrt_session_t* session);
/* Submits to a stream that traces. The record's completion traces the run, and poisons the session
 * if the run fails. */
accrt_status_t accrt_session_execute_traced(accrt_session_t* session, accrt_run_t* run,
                                            accrt_stream_work_t* work);
/* Submits to any other stream. The stream retains the plan; there is no listener. */
accrt_status_t accrt_session_execute(accrt_session_t* session, accrt_plan_t* plan,
                                     accrt_stream_work_t* work);
/* Checks the outcome of executions without a completion. A failure poisons the session. */
void accrt_session_look(accrt_session_t* session);
/* True when an asynchronous execution may still run. It uses the known progress and does not query
 * the driver. */
static inline bool accrt_session_is_busy(accrt_session_t* session) {
  /* Acquire pairs with the release in complete(), in run.c. */
  return atomic_load_explicit(&session->in_flight, memory_order_acquire) != 0 ||
         (session->first_unknown != 0 &&
          !accrt_fence_passed(accrt_stream_fence(session->stream), session->last_submission));
}
/* Waits until the completions of all executions have run and all work on the stream has ended. */
void accrt_session_drain(accrt_session_t* session);
/* Allocates session-owned storage for every state. */
accrt_status_t accrt_session_create_states(accrt_session_t* session);
/* Fills all states with their initial values and waits for that. No call may be in flight. New
 * states, which have just been allocated, are left alone where their memory is zeros already. */
accrt_status_t accrt_session_fill_states(accrt_session_t* session, bool are_new);
void accrt_session_destroy_states(accrt_session_t* session);

/* First line of each public function on a session or on one of its calls. */
#define ACCRT_USE_SESSION(session) ACCRT_GUARD(&(session)->guard, "session (with its calls)")

/* ---- Calls ---- */

typedef struct accrt_call_argument {
  accrt_buffer_t* buffer; /* retained, or NULL */
  void* data;             /* plain memory */
  uint64_t offset_bytes;
  uint64_t address;
  uint64_t size_bytes;     /* of the tensor */
  uint64_t capacity_bytes; /* of the buffer of a result that the runtime allocated */
  int64_t shape[ACCRT_MAX_RANK];
  int64_t scalar;
  bool bound;         /* by the caller or by the session's adapter */
  bool adapted;       /* by the session's adapter */
  bool own;           /* a result in a buffer that the runtime allocated */
  bool shared;        /* a result in its input's storage (MUST alias, not bound) */
  bool staged_shared; /* `staged` belongs to an input */
  /* device buffer for plain memory that the device cannot access; or NULL */
  accrt_buffer_t* staged;
  uint64_t staged_address;
  uint64_t staged_bytes;
} accrt_call_argument_t;

/* What must be computed again before the next run. */
#define ACCRT_CALL_DIRTY_SHAPES                                                                    \
  1u /* a shape, a scalar or an argument's presence changed: symbols, plan and all below */
#define ACCRT_CALL_DIRTY_SCALARS 2u   /* only a RUNTIME scalar changed: patched values */
#define ACCRT_CALL_DIRTY_ADDRESSES 4u /* storage changed: binding table, overlaps */

struct accrt_call {
  accrt_object_t object;
  accrt_session_t* session;
  accrt_program_t* program; /* not retained: the session retains it */
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
      signature_values; /* of the function's scope; only the nodes of its signature are valid */
  int64_t* key;
  uint32_t key_count;
  bool ran;
  bool own_results;         /* the runtime allocates at least one result */
  bool stages;              /* the device cannot access plain host memory */
  uint32_t staged_count;    /* arguments that each run copies in or out */
  accrt_plan_t* plan;       /* retained; NULL before the first run */
  uint64_t adapter_version; /* the adapter version whose tensors are bound */
  uint64_t session_version; /* the session version that the binding table is for */
  accrt_driver_binding_t* bindings;
  uint64_t* scalars;
  accrt_expr_value_t* values;
  size_t binding_capacity;
  size_t scalar_capacity;
  size_t value_capacity;
  bool maybe_in_flight; /* an asynchronous run of this call may not have ended */
  /* number of the latest run's submission on the stream; 0: it has ended */
  uint64_t last_submission;
};

/* ---- Adapters ---- */

/* Drops an internal reference; NULL is allowed. */
void accrt_adapter_unref(accrt_adapter_t* adapter);
/* accrt_session_set_adapter without the name that it notes. */
accrt_status_t accrt_session_take_adapter(accrt_session_t* session, accrt_adapter_t* adapter);
/* Binds the adapter's tensors to inputs that the caller has not bound, and unbinds those of an
 * earlier adapter. */
accrt_status_t accrt_call_adapt(accrt_call_t* call);

/* Computes the symbols' values from the arguments' shapes, checks every dimension, and sets the
 * results' shapes. */
accrt_status_t accrt_call_solve(accrt_call_t* call);
/* The same when only quick scalars changed. */
accrt_status_t accrt_call_solve_scalars(accrt_call_t* call);
/* Chooses the storage of each result (the caller's, its input's, its last buffer or a new one).
 * Then updates the binding table if an address changed. */
accrt_status_t accrt_call_bind(accrt_call_t* call);
/* Allocates device buffers for arguments in plain host memory that the device cannot access, and
 * releases those that are no longer needed. */
accrt_status_t accrt_call_stage(accrt_call_t* call);
void accrt_call_unstage(accrt_call_t* call, uint32_t index);
/* The address that commands use for an argument. */
uint64_t accrt_call_device_address(const accrt_call_t* call, uint32_t index);
/* Enqueue the copies before and after a run. */
accrt_status_t accrt_call_copy_in(accrt_call_t* call);
accrt_status_t accrt_call_copy_out(accrt_call_t* call);
/* The body of accrt_call_set_tensor. */
accrt_status_t accrt_call_put_tensor(accrt_call_t* call, uint32_t index,
                                     const accrt_tensor_t* tensor);
/* Releases the storage of an argument. */
void accrt_call_clear_argument(accrt_call_t* call, uint32_t argument);
/* Puts "function 'f', input 'x' (f32[n, 4])" before the message of this thread's error. */
void accrt_call_prefix(const accrt_call_t* call, uint32_t argument);
static inline const char* accrt_call_argument_name(const accrt_call_t* call, uint32_t argument) {
  return accrt_program_string(call->program, call->signature[argument].name);
}

#endif /* ACCRT_RUNTIME_PROGRAM_INTERNAL_H_ */
