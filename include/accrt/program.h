/* accrt/program.h - programs, sessions and calls: running the functions of a bundle.
 *
 * bundle -> program (on a device: code and weights, immutable, shared) -> session (state, arenas, plans: what runs) -> call (a
 * function with its arguments bound, to be run many times).
 *
 * Calls on one session are ordered; sessions run independently. Sessions and calls are externally synchronized: one thread at
 * a time for a session and all its calls. Programs are thread-safe.
 */
#ifndef ACCRT_PROGRAM_H_
#define ACCRT_PROGRAM_H_

#include "accrt/base.h"
#include "accrt/stream.h"
#include "accrt/tensor.h"

ACCRT_BEGIN

/* ---- Programs ---- */

#define ACCRT_BIND_BY_NAME                                                                         \
  1u /**< any bytes of the right type and shape will do: digests of constants are not compared */

/** Options of accrt_program_create. */
typedef struct accrt_program_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_BIND_*; before 0.3: 0 */
  const accrt_chain_t* next;
  const char*
      variant_override; /**< "x86-64-v3": consider only variants of this architecture; copied; NULL: the best */
  /* Since 0.3: where constants that are not in the bundle come from, in the order in which they are searched; then the files that
   * the bundle names. */
  accrt_weights_t* const* weights; /**< may be NULL; the program retains what it uses */
  uint32_t weight_count;
  uint32_t reserved; /**< 0 */
  /* Since 0.3: bundles whose weights are parts of tensors that ranks share. */
  uint32_t rank;   /**< which of `degree` ranks this is, from 0 */
  uint32_t degree; /**< that of the bundle; 0: not given, for bundles without shards */
} accrt_program_options_t;
ACCRT_ASSERT_LAYOUT(accrt_program_options_t, degree, 48);
#define ACCRT_PROGRAM_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_program_options_t)

/** Loads a bundle's code onto a device, places its weights (in place where the device uses host memory), checks each
 * kernel's declared parameters against the image, and runs the prepare functions. Retains bundle and device. Blocks.
 * @return ACCRT_OK; ACCRT_ERROR_UNTRUSTED (host code and the instance's policy: the message says which option
 *   allows it); ACCRT_ERROR_NO_VARIANT (kernel, and for each variant why not); ACCRT_ERROR_INVALID_FORMAT (image and kernel
 *   disagree); ACCRT_ERROR_DATA_CORRUPT, ACCRT_ERROR_IO, ACCRT_ERROR_PERMISSION_DENIED (weights, as accrt_bundle_constant_data);
 *   ACCRT_ERROR_NOT_FOUND, ACCRT_ERROR_TYPE_MISMATCH, ACCRT_ERROR_SHAPE_MISMATCH, ACCRT_ERROR_PERMISSION_DENIED (a constant that is not in
 *   the bundle: where it was looked for, or how what was found differs);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a degree that is not the bundle's: both, and both extents of a tensor),
 *   ACCRT_ERROR_OUT_OF_RANGE (rank and degree), ACCRT_ERROR_UNSUPPORTED (a layout that cannot be cut so);
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY; ACCRT_ERROR_KERNEL (a prepare function failed). Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_create(accrt_device_t* device, accrt_bundle_t* bundle,
                                              const accrt_program_options_t* options,
                                              accrt_program_t** out_program);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_program_t* accrt_program_retain(accrt_program_t* program);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_program_release(accrt_program_t* program);
/** The program's bundle, borrowed. Since: 0.1 */
ACCRT_API accrt_bundle_t* accrt_program_bundle(accrt_program_t* program);
/** Index of the variant chosen for a kernel of the bundle (by index) with no argument predicates considered, and the reasons
 * against the others as one line of text (as accrt_bundle_argument_type_text for text). Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_variant(accrt_program_t* program, uint32_t kernel,
                                               uint32_t* out_variant, char* text,
                                               uint64_t capacity_bytes, uint64_t* out_size_bytes);

/** One weight to swap. Frozen. */
typedef struct accrt_weight {
  const char* name;      /**< of a constant that no prepare function makes */
  accrt_tensor_t tensor; /**< same type and shape, contiguous; the bytes are copied */
} accrt_weight_t;
ACCRT_ASSERT_LAYOUT(accrt_weight_t, tensor, 56);
/** Replaces weights, all or none, between calls: calls in flight keep the old ones, later calls of every session see the
 * new ones. Prepare functions that read them run again. Thread-safe. Blocks.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_TYPE_MISMATCH; ACCRT_ERROR_SHAPE_MISMATCH; as accrt_program_create.
 *   On failure all weights stay as they were. Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_swap_weights(accrt_program_t* program,
                                                    const accrt_weight_t* weights,
                                                    uint32_t weight_count,
                                                    uint32_t weight_size_bytes);

/** Replaces weights by those of sources, all or none, as accrt_program_swap_weights does: calls in flight keep the old ones, prepare
 * functions run again. Nothing is converted: types and shapes must be the constants'.
 * @param weights searched in order; the first that has a name is it. @param names constants to replace, also such as the bundle
 *   stores; NULL: all that are not in the bundle and that this device uses. @param flags ACCRT_BIND_*: digests that the bundle has of its
 *   constants are compared unless ACCRT_BIND_BY_NAME is set.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the constant, where it was looked for, near names); ACCRT_ERROR_TYPE_MISMATCH,
 *   ACCRT_ERROR_SHAPE_MISMATCH (both types); ACCRT_ERROR_DATA_CORRUPT (both digests); as accrt_program_create. On failure all weights
 *   stay as they were. Thread-safe. Blocks on files. Since: 0.3 */
ACCRT_API accrt_status_t accrt_program_load_weights(accrt_program_t* program,
                                                    accrt_weights_t* const* weights,
                                                    uint32_t weight_count, const char* const* names,
                                                    uint32_t name_count, uint32_t flags);

/* ---- Sessions ---- */

/** Value of a symbol by name. Frozen. */
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
  const accrt_symbol_value_t* symbols; /**< SESSION symbols; those left out take their maximum */
  uint32_t symbol_count;
  uint32_t symbol_size_bytes; /**< sizeof(accrt_symbol_value_t) */
  accrt_stream_t* stream;     /**< calls run here; NULL: a stream of the session's own */
  accrt_pool_t* pool; /**< state, arenas and results come from here; NULL: the device's own pool */
  uint32_t max_plans; /**< plans kept, evicted by use; 0: 64 */
  uint32_t reserved;  /**< 0 */
  const char* label;  /**< names the session's memory in snapshots; copied; may be NULL */
} accrt_session_options_t;
ACCRT_ASSERT_LAYOUT(accrt_session_options_t, label, 64);
#define ACCRT_SESSION_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_session_options_t)

/** Makes a session: allocates its state and fills it with its initial value, also when a given stream is busy. Retains the
 * program.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (a symbol); ACCRT_ERROR_SHAPE_MISMATCH (symbol, value, range); ACCRT_ERROR_OVERFLOW;
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_create(accrt_program_t* program,
                                              const accrt_session_options_t* options,
                                              accrt_session_t** out_session);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_session_t* accrt_session_retain(accrt_session_t* session);
/** Drops a reference; NULL is allowed; calls in flight keep what they need. Since: 0.1 */
ACCRT_API void accrt_session_release(accrt_session_t* session);
/** A new session of the same program with its adapter and a copy of the state, taken after all calls so far; it waits for these, and the copy is
 * there when it returns. @param options as accrt_session_create; its symbols must be absent or equal; may be NULL.
 * @return as accrt_session_create; ACCRT_ERROR_POISONED. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_clone(accrt_session_t* session,
                                             const accrt_session_options_t* options,
                                             accrt_session_t** out_session);
/** Waits for calls in flight, fills the state with its initial value, which is there when it returns, and clears a failure (also
 * the session's own stream's). @return ACCRT_OK; ACCRT_ERROR_POISONED (a stream that is not its own);
 * ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_DEVICE_LOST. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_reset(accrt_session_t* session);
/** The stream that calls run on, borrowed. Since: 0.1 */
ACCRT_API accrt_stream_t* accrt_session_stream(accrt_session_t* session);
/** The failure that poisons the session (status ACCRT_OK inside when none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_error(accrt_session_t* session, accrt_error_t* out_error);
/** A state by name as a tensor: for reading (export) and writing (import) in the session's stream order. Its buffer is
 * borrowed from the session. @param shape, strides storage for ACCRT_MAX_RANK entries. @return ACCRT_OK;
 * ACCRT_ERROR_NOT_FOUND. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_state(accrt_session_t* session, const char* name,
                                             accrt_tensor_t* out_tensor, int64_t* shape,
                                             int64_t* strides);
/** Uses a buffer from outside as the state's storage from the next call on (its contents are the state); NULL goes back to
 * storage of the session's own, filled with the initial value when it returns. The session retains the buffer.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_OUT_OF_RANGE (too small: both sizes); ACCRT_ERROR_INVALID_ARGUMENT
 *   (other device); ACCRT_ERROR_OUT_OF_DEVICE_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_bind_state(accrt_session_t* session, const char* name,
                                                  accrt_buffer_t* buffer, uint64_t offset_bytes);

/** What a call would need. All sizes in bytes. */
typedef struct accrt_memory_estimate {
  uint32_t struct_size;
  uint32_t reserved;        /**< 0 */
  void* next;               /**< NULL */
  uint64_t state_bytes;     /**< of a session */
  uint64_t transient_bytes; /**< of the arena for these symbol values */
  uint64_t result_bytes;    /**< results that the runtime would allocate */
  uint64_t weight_bytes;    /**< of the program, shared */
} accrt_memory_estimate_t;
ACCRT_ASSERT_LAYOUT(accrt_memory_estimate_t, weight_bytes, 48);
#define ACCRT_MEMORY_ESTIMATE_INIT ACCRT_STRUCT_INIT(accrt_memory_estimate_t)
/** Memory that `function` would need for the given symbol values (missing ones: their maximum), before anything is allocated.
 * Thread-safe. @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND; ACCRT_ERROR_SHAPE_MISMATCH; ACCRT_ERROR_OVERFLOW. Since: 0.1 */
ACCRT_API accrt_status_t accrt_program_estimate(accrt_program_t* program, const char* function,
                                                const accrt_symbol_value_t* symbols,
                                                uint32_t symbol_count, uint32_t symbol_size_bytes,
                                                accrt_memory_estimate_t* out_estimate);
/** Makes the plan (and its arena) ahead of the first call. @return as accrt_program_estimate; ACCRT_ERROR_OUT_OF_MEMORY;
 * ACCRT_ERROR_OUT_OF_DEVICE_MEMORY; ACCRT_ERROR_NO_VARIANT. Since: 0.1 */
ACCRT_API accrt_status_t accrt_session_warmup(accrt_session_t* session, const char* function,
                                              const accrt_symbol_value_t* symbols,
                                              uint32_t symbol_count, uint32_t symbol_size_bytes);

/* ---- Adapters ---- */

#define ACCRT_ADAPTER_PARTIAL 1u /**< tensors that the bundle has no slot for are passed over */

/** Options of accrt_adapter_load. */
typedef struct accrt_adapter_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_ADAPTER_* */
  const accrt_chain_t* next;
  double alpha; /**< of slots that are scaled by alpha / rank; 0: what the file's metadata says */
  double scale; /**< the factor itself, for schemes other than alpha / rank; 0: that */
} accrt_adapter_options_t;
ACCRT_ASSERT_LAYOUT(accrt_adapter_options_t, scale, 32);
#define ACCRT_ADAPTER_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_adapter_options_t)

/** Loads an adapter (LoRA): tensors of a source for the optional inputs that the bundle's adapter slots name, by the slot's name, or
 * that with "base_model.model." before it. They are copied to the device once; slots that are so marked are multiplied by alpha / rank
 * (one product in f32, rounded to nearest even to the tensor's type). Of two slots whose names differ in lora_A and lora_B alone
 * both are filled or none. The adapter retains the program, and no source. Thread-safe. Blocks.
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (half of a pair; a tensor without a slot; nothing for any slot); ACCRT_ERROR_TYPE_MISMATCH,
 *   ACCRT_ERROR_SHAPE_MISMATCH (slot, dimension, both sizes; a symbol that two slots of a function have differently);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a slot is to be scaled and nobody says alpha); ACCRT_ERROR_DATA_CORRUPT; ACCRT_ERROR_IO;
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_adapter_load(accrt_program_t* program, accrt_weights_t* weights,
                                            const accrt_adapter_options_t* options,
                                            accrt_adapter_t** out_adapter);
/** Adds a reference; returns its argument. Since: 0.3 */
ACCRT_API accrt_adapter_t* accrt_adapter_retain(accrt_adapter_t* adapter);
/** Drops a reference; NULL is allowed; sessions and calls in flight keep what they need. Since: 0.3 */
ACCRT_API void accrt_adapter_release(accrt_adapter_t* adapter);
/** From its next run on, each call of the session has the adapter's tensors for inputs that the caller has not bound; NULL: the base
 * model. Calls in flight keep what they have. The session retains the adapter. Many sessions may have one adapter, or each its own.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (an adapter of another program). Since: 0.3 */
ACCRT_API accrt_status_t accrt_session_set_adapter(accrt_session_t* session,
                                                   accrt_adapter_t* adapter);

/* ---- Calls ---- */

/** Prepares a call of a function. Arguments stay bound from run to run. Retains the session.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (near names in the message); ACCRT_ERROR_PERMISSION_DENIED (an internal or prepare
 *   function); ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_create(accrt_session_t* session, const char* function,
                                           accrt_call_t** out_call);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_call_t* accrt_call_retain(accrt_call_t* call);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_call_release(accrt_call_t* call);
/** Position of an argument by name: inputs first, then results. @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_find(accrt_call_t* call, const char* name, uint32_t* out_index);
/** Binds a tensor to an input, or the caller's storage to a result. The call retains tensor->buffer; plain memory must stay
 * valid until the last run is complete. NULL unbinds (an optional input is then absent; a result is then allocated by the
 * runtime). Data type and rank are checked here, sizes when it runs. Arguments must be contiguous and aligned to 16 bytes
 * (or to the element when smaller).
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (index); ACCRT_ERROR_TYPE_MISMATCH; ACCRT_ERROR_SHAPE_MISMATCH (rank; or not
 *   contiguous); ACCRT_ERROR_INVALID_ARGUMENT (alignment; a scalar input). On failure the binding is as it was. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_set_tensor(accrt_call_t* call, uint32_t index,
                                               const accrt_tensor_t* tensor);
/** Binds a value to a scalar input. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (index); ACCRT_ERROR_INVALID_ARGUMENT (not a
 * scalar input). Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_set_scalar(accrt_call_t* call, uint32_t index, int64_t value);
/** Runs and waits. On an idle stream of a device that allows it, the calling thread does the work. After the first run with
 * the same symbol values and no runtime-allocated results it allocates nothing and takes no lock but the stream's.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (an input is not bound: its name); ACCRT_ERROR_SHAPE_MISMATCH (function,
 *   input, dimension, symbol and its range); ACCRT_ERROR_ALIASED (both arguments); ACCRT_ERROR_NO_VARIANT;
 *   ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_OUT_OF_RANGE (a command's range: which); ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY: nothing ran. ACCRT_ERROR_KERNEL, ACCRT_ERROR_DEVICE_LOST: the session is poisoned until
 *   reset. ACCRT_ERROR_POISONED: it was already. ACCRT_ERROR_TIMEOUT: it still runs. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_run(accrt_call_t* call, uint64_t timeout_ns);
/** Enqueues a run: waits for `waits`, runs, signals `signals` (fails them if it fails). Never blocks on the device. A run of
 * the same call may be in flight; runtime-allocated results are then new ones.
 * @return as accrt_call_run, for what is found before launch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_submit(accrt_call_t* call, const accrt_timepoint_t* waits,
                                           uint32_t wait_count, const accrt_timepoint_t* signals,
                                           uint32_t signal_count);
/** The latest run's result (0-based among results) as a tensor. Its buffer is borrowed from the call until the next run or
 * binding, retain it to keep it (NULL when the caller gave plain memory). Valid to read once the run is complete.
 * @param shape, strides storage for ACCRT_MAX_RANK entries. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE;
 *   ACCRT_ERROR_INVALID_STATE (never run). Since: 0.1 */
ACCRT_API accrt_status_t accrt_call_result(accrt_call_t* call, uint32_t index,
                                           accrt_tensor_t* out_tensor, int64_t* shape,
                                           int64_t* strides);

ACCRT_END
#endif /* ACCRT_PROGRAM_H_ */
