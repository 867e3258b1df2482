/* accrt/program.h - programs, sessions and calls: runs the functions of a bundle.
 *
 * A *program* is a bundle on a device: code and weights. It does not change, and all threads may
 * share it. A *session* of a program has state, arenas and plans: it is what runs. A *call* of a
 * session is a function with its arguments bound; it runs as often as you like.
 *
 * Calls of one session run in order; sessions are independent. Sessions and calls are externally
 * synchronized: one thread at a time for a session and all its calls. Only retaining, releasing,
 * accrt_session_stream and accrt_session_cancel may be called by any thread at any time. Programs
 * are thread-safe.
 */
#ifndef ACCRT_PROGRAM_H_
#define ACCRT_PROGRAM_H_

#include "accrt/base.h"
#include "accrt/stream.h"
#include "accrt/tensor.h"

ACCRT_BEGIN

/* ---- Programs ---- */

/** take any bytes of the right type and shape: do not compare digests */
#define ACCRT_BIND_BY_NAME 1u

/** Options of accrt_program_create. */
typedef struct accrt_program_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_BIND_*; before 0.3: 0 */
  const accrt_chain_t* next;
  /** "x86-64-v3": use only variants of this architecture; copied; NULL: the best */
  const char* variant_override;
  /* Since 0.3: sources of constants that are not in the bundle. They are searched in this order,
   * then the files that the bundle names. */
  accrt_weights_t* const* weights; /**< may be NULL; the program retains what it uses */
  uint32_t weight_count;
  uint32_t reserved; /**< 0 */
  /* Since 0.3: for bundles whose weights are shards, one part of a tensor for each rank. */
  uint32_t rank;   /**< index of this rank, below `degree` */
  uint32_t degree; /**< number of ranks, as in the bundle; 0: a bundle without shards */
  /* Since 0.4 */
  const accrt_budget_t* budget; /**< for making the program; NULL: the defaults */
} accrt_program_options_t;
ACCRT_ASSERT_LAYOUT(accrt_program_options_t, budget, 56);
#define ACCRT_PROGRAM_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_program_options_t)

/** Loads a bundle's code onto a device, places its weights (in place if the device uses host
 * memory), checks each kernel's declared parameters against the image, and runs the prepare
 * functions. Retains bundle and device. Blocks.
 * @return ACCRT_OK; ACCRT_ERROR_UNTRUSTED (the policy forbids the bundle's host code: the message
 *   names the option that would allow it); ACCRT_ERROR_NO_VARIANT (the kernel, and why each variant
 *   does not fit); ACCRT_ERROR_INVALID_FORMAT (a kernel's declaration differs from the image);
 *   ACCRT_ERROR_DATA_CORRUPT, ACCRT_ERROR_IO, ACCRT_ERROR_PERMISSION_DENIED (as
 *   accrt_bundle_constant_data); ACCRT_ERROR_NOT_FOUND, ACCRT_ERROR_TYPE_MISMATCH,
 *   ACCRT_ERROR_SHAPE_MISMATCH, ACCRT_ERROR_PERMISSION_DENIED (a constant from outside the bundle:
 *   the message says where the library looked, or how the tensor differs);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a degree other than the bundle's: the message has both, and both
 *   extents of a tensor), ACCRT_ERROR_OUT_OF_RANGE (rank and degree), ACCRT_ERROR_UNSUPPORTED (a
 *   layout that cannot be cut that way); ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY; ACCRT_ERROR_KERNEL (a prepare function failed). Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_create(accrt_device_t* device, accrt_bundle_t* bundle,
                                              const accrt_program_options_t* options,
                                              accrt_program_t** out_program);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_program_t* accrt_program_retain(accrt_program_t* program);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_program_release(accrt_program_t* program);
/** The program's bundle, lent. Since: 0.1 */
ACCRT_API accrt_bundle_t* accrt_program_bundle(accrt_program_t* program);
/** Gives the variant that the program chose for a kernel of the bundle. It is the best variant
 * without conditions on the arguments; if every variant has conditions, it is the best of all. A
 * call uses a better variant if its arguments meet that variant's conditions. One line of text says
 * why each other variant was not chosen (`text` and sizes as in accrt_bundle_argument_type_text).
 * @param kernel index of the kernel in the bundle.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (no such kernel, or a text that is longer than
 *   capacity_bytes); ACCRT_ERROR_NO_VARIANT (no function for the device uses the kernel).
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_variant(accrt_program_t* program, uint32_t kernel,
                                               uint32_t* out_variant, char* text,
                                               uint64_t capacity_bytes, uint64_t* out_size_bytes);

/** One weight to replace. Frozen. */
typedef struct accrt_weight {
  const char* name;      /**< of a constant that no prepare function makes */
  accrt_tensor_t tensor; /**< same type and shape, contiguous; the bytes are copied */
} accrt_weight_t;
ACCRT_ASSERT_LAYOUT(accrt_weight_t, tensor, 56);
/** Replaces weights, all or none; none may be given twice. Calls in flight keep the old weights;
 * later calls of every session use the new ones. Prepare functions that read them run again.
 * Thread-safe. Blocks.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_TYPE_MISMATCH; ACCRT_ERROR_SHAPE_MISMATCH;
 *   as accrt_program_create. On failure all weights stay as they were. Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_swap_weights(accrt_program_t* program,
                                                    const accrt_weight_t* weights,
                                                    uint32_t weight_count,
                                                    uint32_t weight_size_bytes);

/** As accrt_program_swap_weights, within a budget. Reading, copying and prepare functions stop when
 * a limit of the budget is reached.
 * @param budget copied; NULL for the defaults.
 * @return as accrt_program_swap_weights; ACCRT_ERROR_BUDGET, ACCRT_ERROR_TIMEOUT,
 *   ACCRT_ERROR_CANCELLED. On failure all weights stay as they were. Thread-safe. Blocks.
 *   Since: 0.4 */
ACCRT_API accrt_status_t accrt_program_swap_weights_within(accrt_program_t* program,
                                                           const accrt_weight_t* weights,
                                                           uint32_t weight_count,
                                                           uint32_t weight_size_bytes,
                                                           const accrt_budget_t* budget);

/** Replaces weights by tensors of sources, all or none, as accrt_program_swap_weights does. Nothing
 * is converted: types and shapes must be those of the constants.
 * @param weights the sources, searched in order; the first one that has a tensor of the name is
 *   used.
 * @param names the constants to replace, which may lie in the bundle; NULL: all constants outside
 *   the bundle that this device uses.
 * @param flags ACCRT_BIND_*. Without ACCRT_BIND_BY_NAME, digests in the bundle are compared.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the constant, where the library looked, similar names);
 *   ACCRT_ERROR_TYPE_MISMATCH, ACCRT_ERROR_SHAPE_MISMATCH (both types); ACCRT_ERROR_DATA_CORRUPT
 *   (both digests); as accrt_program_create. On failure all weights stay as they were. Thread-safe.
 *   Blocks on files. Since: 0.3 */
ACCRT_API accrt_status_t accrt_program_load_weights(accrt_program_t* program,
                                                    accrt_weights_t* const* weights,
                                                    uint32_t weight_count, const char* const* names,
                                                    uint32_t name_count, uint32_t flags);
/** As accrt_program_load_weights, within a budget, as accrt_program_swap_weights_within.
 * @param budget copied; NULL for the defaults.
 * @return as accrt_program_load_weights; ACCRT_ERROR_BUDGET, ACCRT_ERROR_TIMEOUT,
 *   ACCRT_ERROR_CANCELLED. On failure all weights stay as they were. Thread-safe. Blocks.
 *   Since: 0.4 */
ACCRT_API accrt_status_t accrt_program_load_weights_within(
    accrt_program_t* program, accrt_weights_t* const* weights, uint32_t weight_count,
    const char* const* names, uint32_t name_count, uint32_t flags, const accrt_budget_t* budget);

/** Gives the memory of a weight, to be read and written in place. Only devices with memory of their
 * own have such memory, and hosts for a weight that was swapped. Later calls of all sessions
 * compute with what you write there. Order your writes with calls by streams.
 * @param name of a constant that no prepare function makes.
 * @param out_tensor row-major, without strides; on failure unchanged. Its buffer is lent until the
 *   weight is replaced or the program is released. To keep the memory for longer, retain the
 *   buffer; this keeps the memory of the program's other weights too. Its shape is lent by the
 *   program.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message has similar names); ACCRT_ERROR_UNSUPPORTED
 *   (it has an encoding, a prepare function reads it, no function for the device does, or it lies
 *   in memory of the bundle or of a source). Thread-safe. Never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_program_weight(accrt_program_t* program, const char* name,
                                              accrt_tensor_t* out_tensor);

/* ---- Sessions ---- */

/** A symbol's name and its value. Frozen. */
typedef struct accrt_symbol_value {
  const char* name;
  int64_t value;
} accrt_symbol_value_t;
ACCRT_ASSERT_LAYOUT(accrt_symbol_value_t, value, 16);

/** Options of accrt_session_create. */
typedef struct accrt_session_options {
  uint32_t struct_size;
  uint32_t flags; /**< 0 */
  const accrt_chain_t* next;
  /** SESSION symbols, none twice; one that is missing takes its maximum */
  const accrt_symbol_value_t* symbols;
  uint32_t symbol_count;
  uint32_t symbol_size_bytes; /**< sizeof(accrt_symbol_value_t) */
  accrt_stream_t* stream;     /**< calls run here; NULL: the session makes a stream */
  accrt_pool_t* pool;         /**< for state, arenas and results; NULL: the device's own pool */
  uint32_t max_plans;         /**< plans kept; the least recently used one goes first; 0: 64 */
  uint32_t reserved;          /**< 0 */
  const char* label;          /**< names the session's memory in snapshots; copied; may be NULL */
  /* Since 0.4 */
  /** limits each plan that the session makes; its `cancel` must outlive the session; NULL: the
   * defaults */
  const accrt_budget_t* budget;
  /** limits accrt_session_create itself: its memory (on devices that use host memory, states
   * included) and the time to fill the states. NULL: the limits of `budget` hold; where `budget` is
   * NULL, or its limit is 0, there is no limit */
  const accrt_budget_t* creation_budget;
} accrt_session_options_t;
ACCRT_ASSERT_LAYOUT(accrt_session_options_t, creation_budget, 80);
#define ACCRT_SESSION_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_session_options_t)

/** Makes a session: allocates its state and fills it with the initial value, even if the stream is
 * busy. Retains the program.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (a symbol); ACCRT_ERROR_SHAPE_MISMATCH (symbol, value,
 *   range); ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY;
 *   ACCRT_ERROR_BUDGET, ACCRT_ERROR_TIMEOUT, ACCRT_ERROR_CANCELLED (a limit of creation_budget).
 *   Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_create(accrt_program_t* program,
                                              const accrt_session_options_t* options,
                                              accrt_session_t** out_session);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_session_t* accrt_session_retain(accrt_session_t* session);
/** Drops a reference; NULL is allowed; calls in flight keep what they need. Since: 0.1 */
ACCRT_API void accrt_session_release(accrt_session_t* session);
/** Makes a session of the same program, with the same adapter and a copy of the state. The function
 * waits for all earlier calls, and returns when the copy is complete.
 * @param options as accrt_session_create; may be NULL. A symbol may be missing; if it is there, its
 *   value must be the session's. If `budget` is NULL, the new session has the budget of the old
 *   one. The copy itself has no limit.
 * @return as accrt_session_create; ACCRT_ERROR_POISONED. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_clone(accrt_session_t* session,
                                             const accrt_session_options_t* options,
                                             accrt_session_t** out_session);
/** Waits for calls in flight, then fills the state with its initial value, and clears a failure of
 * the session and of the session's own stream. The function returns when all of this is done.
 * @return ACCRT_OK; ACCRT_ERROR_POISONED (the caller's stream has failed);
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_DEVICE_LOST. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_reset(accrt_session_t* session);
/** Cancels all work that was submitted to the session, as accrt_stream_cancel does. The session is
 * then poisoned until accrt_session_reset. Any thread may call this, even while another is in a
 * call of the session.
 * @return ACCRT_OK (if no work is in flight, nothing happens); ACCRT_ERROR_INVALID_STATE
 *   (the session uses a stream of the caller, which may have other work: cancel that stream). Never
 *   blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_session_cancel(accrt_session_t* session);
/** The stream that calls run on, lent. Since: 0.1 */
ACCRT_API accrt_stream_t* accrt_session_stream(accrt_session_t* session);
/** Copies the record of the failure that poisons the session (its status is ACCRT_OK if there is
 * none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_error(accrt_session_t* session, accrt_error_t* out_error);
/** A state by name, as a tensor. Read it (export) or write it (import) in the order of the
 * session's stream. Its buffer is lent: it is valid while the session is, or until
 * accrt_session_bind_state replaces it. To keep it for longer, retain it.
 * @param shape, strides storage for ACCRT_MAX_RANK entries.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND. On failure `*out_tensor` is zeros. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_state(accrt_session_t* session, const char* name,
                                             accrt_tensor_t* out_tensor, int64_t* shape,
                                             int64_t* strides);
/** Uses the caller's buffer as the storage of a state, from the next call on. The buffer's contents
 * become the state. The session retains the buffer. NULL: the session uses storage of its own
 * again; the function returns when this storage has the initial value.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_OUT_OF_RANGE (the buffer is too small: both
 *   sizes); ACCRT_ERROR_INVALID_ARGUMENT (a buffer of another device);
 *   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY. Blocks if `buffer` is NULL: it then waits for earlier calls
 *   too. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_bind_state(accrt_session_t* session, const char* name,
                                                  accrt_buffer_t* buffer, uint64_t offset_bytes);

/** What a call would need. All sizes in bytes. */
typedef struct accrt_memory_estimate {
  uint32_t struct_size;
  uint32_t reserved;        /**< 0 */
  void* next;               /**< NULL */
  uint64_t state_bytes;     /**< of a session */
  uint64_t transient_bytes; /**< of the arena for these symbol values */
  uint64_t result_bytes;    /**< of results that the runtime would allocate */
  uint64_t weight_bytes;    /**< of the program, which sessions share */
} accrt_memory_estimate_t;
ACCRT_ASSERT_LAYOUT(accrt_memory_estimate_t, weight_bytes, 48);
#define ACCRT_MEMORY_ESTIMATE_INIT ACCRT_STRUCT_INIT(accrt_memory_estimate_t)
/** How much memory `function` would need for these symbol values, before anything is allocated. A
 * symbol that is missing takes its maximum; none may be given twice. Makes a plan. Thread-safe.
 * Blocks.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_SHAPE_MISMATCH; ACCRT_ERROR_OVERFLOW;
 *   ACCRT_ERROR_PERMISSION_DENIED (as accrt_call_create). Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_estimate(accrt_program_t* program, const char* function,
                                                const accrt_symbol_value_t* symbols,
                                                uint32_t symbol_count, uint32_t symbol_size_bytes,
                                                accrt_memory_estimate_t* out_estimate);
/** Makes the plan and its arena before the first call.
 * @return as accrt_program_estimate; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY;
 *   ACCRT_ERROR_NO_VARIANT. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_warmup(accrt_session_t* session, const char* function,
                                              const accrt_symbol_value_t* symbols,
                                              uint32_t symbol_count, uint32_t symbol_size_bytes);

/* ---- Adapters ---- */

#define ACCRT_ADAPTER_PARTIAL 1u /**< skip tensors that the bundle has no place for */

/** Options of accrt_adapter_load. */
typedef struct accrt_adapter_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_ADAPTER_* */
  const accrt_chain_t* next;
  double alpha; /**< for tensors that are scaled by alpha / rank; 0: as the file's metadata says */
  double scale; /**< the factor itself, instead of alpha / rank; 0: alpha / rank */
} accrt_adapter_options_t;
ACCRT_ASSERT_LAYOUT(accrt_adapter_options_t, scale, 32);
#define ACCRT_ADAPTER_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_adapter_options_t)

/** Loads an adapter (LoRA): tensors of a source for optional inputs of the bundle. The bundle lists
 * the names of its adapter tensors. The source names a tensor in the same way, or with
 * "base_model.model." before the name. The tensors are copied to the device once. A tensor that the
 * bundle marks is multiplied by alpha / rank (one product in f32, rounded to nearest even to the
 * tensor's type). If two names differ only in lora_A and lora_B, the source must have both tensors
 * or none of them. The adapter retains the program, not the source. Thread-safe. Blocks.
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (half of a pair; a tensor that the bundle does not list;
 *   no tensor that it lists); ACCRT_ERROR_TYPE_MISMATCH, ACCRT_ERROR_SHAPE_MISMATCH (the tensor,
 *   the dimension and both sizes; a symbol with two values in one function);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a tensor is to be scaled, and neither file nor options have
 *   alpha); ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_IO; ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_adapter_load(accrt_program_t* program, accrt_weights_t* weights,
                                            const accrt_adapter_options_t* options,
                                            accrt_adapter_t** out_adapter);
/** Adds a reference; returns its argument. Since: 0.3 */
ACCRT_API accrt_adapter_t* accrt_adapter_retain(accrt_adapter_t* adapter);
/** Drops a reference; NULL is allowed; sessions and calls in flight keep what they need.
 * Since: 0.3 */
ACCRT_API void accrt_adapter_release(accrt_adapter_t* adapter);
/** Sets the session's adapter; NULL: the base model. From the next run on, the adapter's tensors
 * are the values of inputs that the caller has not bound. Calls in flight do not change. The
 * session retains the adapter. Sessions may share an adapter or have different ones.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (an adapter of another program). Since: 0.3 */
ACCRT_API accrt_status_t accrt_session_set_adapter(accrt_session_t* session,
                                                   accrt_adapter_t* adapter);

/* ---- Calls ---- */

/** Makes a call of a function. Arguments stay bound from run to run. Retains the session.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message has similar names);
 *   ACCRT_ERROR_PERMISSION_DENIED (an internal or prepare function); ACCRT_ERROR_OUT_OF_MEMORY.
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_create(accrt_session_t* session, const char* function,
                                           accrt_call_t** out_call);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_call_t* accrt_call_retain(accrt_call_t* call);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_call_release(accrt_call_t* call);
/** The index of an argument by name. Inputs come first, then results.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_find(accrt_call_t* call, const char* name, uint32_t* out_index);
/** Binds a tensor to an input, or storage of the caller to a result. The call retains
 * tensor->buffer. Plain memory must stay valid until the last run is complete. NULL unbinds (a
 * scalar input, too): an optional input is then absent, and the runtime allocates a result. Data
 * type and rank are checked here, sizes when it runs. An argument must be contiguous and aligned to
 * 16 bytes, or to its element if that is smaller.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (index); ACCRT_ERROR_TYPE_MISMATCH;
 *   ACCRT_ERROR_SHAPE_MISMATCH (the rank, or not contiguous); ACCRT_ERROR_INVALID_ARGUMENT (the
 *   alignment, or a scalar input). On failure the binding stays as it was. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_set_tensor(accrt_call_t* call, uint32_t index,
                                               const accrt_tensor_t* tensor);
/** Binds a value to a scalar input.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (index); ACCRT_ERROR_INVALID_ARGUMENT (not a scalar
 *   input). Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_set_scalar(accrt_call_t* call, uint32_t index, int64_t value);
/** Runs the call and waits. Without a time limit, on an idle stream, the calling thread does the
 * work if the device allows it. With a limit, other threads do the work, and the function returns
 * at the limit. The run then goes on: keep its memory until it has ended (accrt_call_wait); later
 * calls of the session run after it. The limit also covers the time to make a plan. At the limit,
 * the work on the plan is given up, and the next run starts the plan from the beginning.
 * accrt_session_warmup makes a plan without a limit. A plan of a few thousand commands or fewer is
 * finished even if the limit passes meanwhile. A repeated run with the same symbol values allocates
 * nothing and takes no lock but the stream's, if the caller has bound storage for the results.
 * @param timeout_ns 0: enqueues the run and polls once.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (an input that is not bound: its name);
 *   ACCRT_ERROR_SHAPE_MISMATCH (function, input, dimension, symbol and its range);
 *   ACCRT_ERROR_ALIASED (the message names both arguments); ACCRT_ERROR_NO_VARIANT;
 *   ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_OUT_OF_RANGE (a command's range: the message says which);
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY. After these nothing has run.
 *   ACCRT_ERROR_KERNEL, ACCRT_ERROR_DEVICE_LOST: the session is poisoned until reset.
 *   ACCRT_ERROR_CANCELLED: the same, after accrt_session_cancel. ACCRT_ERROR_POISONED: the session
 *   had failed before. ACCRT_ERROR_TIMEOUT: the run goes on. If the message says "planning", the
 *   limit passed while the plan was made: nothing has run, and accrt_call_wait waits for the
 *   previous run. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_run(accrt_call_t* call, uint64_t timeout_ns);
/** Runs the call, and waits for it for at most timeout_ns. It is for callers that must do something
 * else in between, such as an interpreter that looks for signals; they call accrt_call_wait
 * afterwards. If the last measured run of the same plan took less than an eighth of the limit, the
 * calling thread does the work, so that a short run costs no more than without a limit. A run that
 * takes much longer than the one before it may therefore exceed the limit, once.
 * @return as accrt_call_run, but ACCRT_ERROR_NOT_READY if the run goes on. ACCRT_ERROR_TIMEOUT then
 *   means that the plan was not made in time (this limit, or a budget's), and nothing has run.
 *   Since: 0.4 */
ACCRT_API accrt_status_t accrt_call_attempt(accrt_call_t* call, uint64_t timeout_ns);
/** Waits for the latest run of the call, whichever function started it.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT (also if timeout_ns is 0): the run goes on;
 *   ACCRT_ERROR_INVALID_STATE (never run); ACCRT_ERROR_KERNEL, ACCRT_ERROR_CANCELLED,
 *   ACCRT_ERROR_DEVICE_LOST (the session's failure); ACCRT_ERROR_POISONED (the run failed, and a
 *   reset has cleared the record). Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_call_wait(accrt_call_t* call, uint64_t timeout_ns);
/** Makes the plan for the present bindings, unless the session has it already. Runs nothing. It is
 * for callers whose accrt_call_submit must return quickly. The limit is kept as accrt_call_run
 * keeps it.
 * @return as accrt_call_run, for errors found before the launch; ACCRT_ERROR_TIMEOUT: the plan was
 *   not made in time. Blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_call_plan(accrt_call_t* call, uint64_t timeout_ns);
/** Enqueues a run. It waits for `waits`, runs, and signals `signals`; if it fails, the semaphores
 * of `signals` fail. It never blocks on the device. Another run of the same call may be in flight;
 * this run then gets new buffers for results that the runtime allocates. The function may block to
 * make the plan, which only the session's budget limits; accrt_call_plan makes it beforehand.
 * @return as accrt_call_run, for errors found before the launch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_submit(accrt_call_t* call, const accrt_timepoint_t* waits,
                                           uint32_t wait_count, const accrt_timepoint_t* signals,
                                           uint32_t signal_count);
/** A result of the latest run, as a tensor. Its buffer is lent by the call until the next run or
 * binding; retain it to keep it. The buffer is NULL if the caller bound plain memory. Read it when
 * the run is complete. On failure `*out_tensor` is zeros.
 * @param index among the results, from 0.
 * @param shape, strides storage for ACCRT_MAX_RANK entries.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_INVALID_STATE (never run). Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_result(accrt_call_t* call, uint32_t index,
                                           accrt_tensor_t* out_tensor, int64_t* shape,
                                           int64_t* strides);

ACCRT_END
#endif /* ACCRT_PROGRAM_H_ */
