/* accrt/commands.h - kernels, launches, and command lists recorded once and submitted many times. It may not mention programs
 * or bundles: kernels are callable without them. */
#ifndef ACCRT_COMMANDS_H_
#define ACCRT_COMMANDS_H_

#include "accrt/base.h"
#include "accrt/stream.h"

ACCRT_BEGIN

/* ---- Kernel packs ---- */

/** Opens a pack from a shared object that exports accrt_kernel_pack_query. It is never unloaded. May block.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (file or symbol); ACCRT_ERROR_UNTRUSTED (the instance's host code policy is
 *   ACCRT_HOST_CODE_NONE); ACCRT_ERROR_VERSION_MISMATCH (refused, or its ABI is too new: both in the message);
 *   ACCRT_ERROR_INVALID_FORMAT (a table that breaks the rules: pack, kernel and parameter in the message). Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_open(accrt_instance_t* instance, const char* path,
                                                accrt_kernel_pack_t** out_pack);
/** A pack that is part of the program. Needs no policy. `query` and its tables must outlive the pack.
 * @return ACCRT_OK; ACCRT_ERROR_VERSION_MISMATCH; ACCRT_ERROR_INVALID_FORMAT; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_register(accrt_instance_t* instance,
                                                    accrt_kernel_pack_query_fn_t query,
                                                    accrt_kernel_pack_t** out_pack);
/** A pack from a freestanding ELF image in memory, copied. Not with ACCRT_HOST_CODE_NONE.
 * @param name for perf, gdb and messages; may be NULL.
 * @return as accrt_kernel_pack_open. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_load(accrt_instance_t* instance, const void* image,
                                                uint64_t size_bytes, const char* name,
                                                accrt_kernel_pack_t** out_pack);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_kernel_pack_t* accrt_kernel_pack_retain(accrt_kernel_pack_t* pack);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_kernel_pack_release(accrt_kernel_pack_t* pack);
/** How a device module is loaded. */
typedef struct accrt_module_options {
  uint32_t struct_size;
  uint32_t kind; /**< ACCRT_MODULE_*; 0: told from the image's first bytes */
  const accrt_chain_t* next;
  const void* image; /**< read during the call */
  uint64_t size_bytes;
  const char* name; /**< for messages and profilers; may be NULL */
  const accrt_kernel_def_t*
      kernels; /**< what to find in it, copied; their `entry` is NULL and `name` the image's symbol */
  uint32_t kernel_count;      /**< at least 1 */
  uint32_t kernel_size_bytes; /**< sizeof(accrt_kernel_def_t) */
} accrt_module_options_t;
ACCRT_ASSERT_LAYOUT(accrt_module_options_t, kernel_size_bytes, 56);
#define ACCRT_MODULE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_module_options_t)
#define ACCRT_MODULE_CUBIN 2u
#define ACCRT_MODULE_PTX 3u /**< NUL-terminated text */
#define ACCRT_MODULE_FATBIN 4u
/** A pack of kernels from machine code of a device (a cubin, fatbin or PTX), without a bundle. Every declared block is checked
 * against the image. May block (PTX is compiled, once: docs/cuda.md).
 * @param out_pack Owned by the caller. Its kernels run on `device` alone.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (no image, no kernels); ACCRT_ERROR_INVALID_FORMAT (no image of that kind, or a kernel's block is not what the image says: kernel,
 *   parameter, both numbers in the message); ACCRT_ERROR_NOT_FOUND (no such kernel in it); ACCRT_ERROR_NO_VARIANT (of
 *   another architecture: both in the message); ACCRT_ERROR_UNSUPPORTED (the device loads no modules); ACCRT_ERROR_OUT_OF_MEMORY;
 *   what the driver returns. Thread-safe. Since: 0.2 */
ACCRT_API accrt_status_t accrt_kernel_module_load(accrt_device_t* device,
                                                  const accrt_module_options_t* options,
                                                  accrt_kernel_pack_t** out_pack);
/** Number of kernels. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_kernel_count(accrt_kernel_pack_t* pack,
                                                        uint32_t* out_count);
/** The index-th kernel, borrowed from the pack. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_kernel(accrt_kernel_pack_t* pack, uint32_t index,
                                                  accrt_kernel_t** out_kernel);
/** A kernel by name, borrowed from the pack. @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message names near ones). Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_find(accrt_kernel_pack_t* pack, const char* name,
                                                accrt_kernel_t** out_kernel);

/** Facts about a kernel. Pointers are borrowed from the pack. */
typedef struct accrt_kernel_info {
  uint32_t struct_size;
  uint32_t traits; /**< ACCRT_KERNEL_TRAIT_* */
  void* next;      /**< NULL */
  const char* name;
  const char* pack_name;
  const accrt_kernel_param_t* params;
  uint32_t param_count;
  uint32_t params_size_bytes;
  uint32_t local_memory_size_bytes;
  uint32_t kind; /**< ACCRT_KERNEL_KIND_*; before 0.2: 0 */
  /* Since 0.2 */
  uint32_t block[3];   /**< threads of a workgroup; zeros for host kernels */
  uint32_t cluster[3]; /**< workgroups of a cluster; zeros: none */
} accrt_kernel_info_t;
ACCRT_ASSERT_LAYOUT(accrt_kernel_info_t, cluster, 80);
#define ACCRT_KERNEL_KIND_WORKGROUPS 0u /**< runs as a grid of workgroups */
#define ACCRT_KERNEL_KIND_OPERATOR                                                                 \
  1u /**< a host operator: recorded with accrt_commands_invoke. Since 0.2 */
#define ACCRT_KERNEL_INFO_INIT ACCRT_STRUCT_INIT(accrt_kernel_info_t)
/** Fills `out_info`. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_info(accrt_kernel_t* kernel, accrt_kernel_info_t* out_info);

/* ---- Launch ---- */

/** One argument of a launch, in the order of the kernel's parameters. Frozen. */
typedef struct accrt_kernel_argument {
  uint32_t
      kind; /**< ACCRT_KERNEL_PARAM_* of the parameter: BUFFER, TENSOR, SCALAR, SYMBOL or WORKSPACE */
  uint32_t
      binding; /**< recorded commands: index into the binding table, or ACCRT_BINDING_NONE to use `buffer` (0 is a binding: a list with
                    bindings refuses an argument that has memory of its own beside one) */
  accrt_buffer_t*
      buffer; /**< BUFFER, TENSOR, WORKSPACE; NULL: host pointer in `pointer` (devices with host memory), or
                               absent when `pointer` is NULL too and the parameter is optional */
  void* pointer;
  uint64_t offset_bytes; /**< of the range the kernel gets */
  uint64_t
      size_bytes; /**< of that range; UINT64_MAX: to the end of the buffer or binding (a host pointer needs a size). 0: no bytes, of
                       which the kernel gets the address, or NULL where there is no memory, also for parameters that are not optional */
  uint64_t value; /**< SCALAR, SYMBOL: bits, low bytes */
  const accrt_kernel_tensor_t*
      tensor; /**< TENSOR: dtype, shape, strides (its data is ignored); element 0 is at offset_bytes, and all
                               that it reaches must lie in the range */
} accrt_kernel_argument_t;
ACCRT_ASSERT_LAYOUT(accrt_kernel_argument_t, tensor, 56);
#define ACCRT_BINDING_NONE 0xFFFFFFFFu
/** Initializers: nothing yet, with memory to its end; a whole buffer; a scalar's or symbol's bits. None has a binding. */
#define ACCRT_KERNEL_ARGUMENT_INIT                                                                 \
  { 0, ACCRT_BINDING_NONE, NULL, NULL, 0, UINT64_MAX, 0, NULL }
#define ACCRT_KERNEL_ARGUMENT_BUFFER(buffer_)                                                      \
  { ACCRT_KERNEL_PARAM_BUFFER, ACCRT_BINDING_NONE, (buffer_), NULL, 0, UINT64_MAX, 0, NULL }
#define ACCRT_KERNEL_ARGUMENT_SCALAR(bits_)                                                        \
  { ACCRT_KERNEL_PARAM_SCALAR, ACCRT_BINDING_NONE, NULL, NULL, 0, 0, (bits_), NULL }

/** Enqueues one dispatch. A grid with a zero runs nothing.
 * @param grid workgroups in x, y, z.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (count or kind, a tensor's dtype, rank or negative dimension: the message
 *   names the parameter); ACCRT_ERROR_OUT_OF_RANGE (a range past its buffer, a tensor that reaches out of its range);
 *   ACCRT_ERROR_UNSUPPORTED (a kernel of another kind of device; memory that the device does not reach: a host pointer or a buffer of
 *   the host on a GPU, another GPU's without accrt_device_enable_peer); ACCRT_ERROR_INVALID_STATE (a wrapped stream that is being
 *   captured); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED; ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_launch(accrt_stream_t* stream, accrt_kernel_t* kernel,
                                             const uint32_t grid[3],
                                             const accrt_kernel_argument_t* arguments,
                                             uint32_t argument_count, uint32_t argument_size_bytes);

/* ---- Prepared launches (each is externally synchronized) ---- */

/** Makes one kernel ready for being launched again and again: what can be looked up, checked or built once is. Faster than
 * accrt_stream_launch, on CUDA faster than cuLaunchKernel. Retains the kernel's pack.
 * @param out_launch Owned by the caller.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (a kernel of another kind of device); ACCRT_ERROR_OUT_OF_MEMORY; what the driver
 *   returns. Since: 0.2 */
ACCRT_API accrt_status_t accrt_launch_create(accrt_device_t* device, accrt_kernel_t* kernel,
                                             accrt_launch_t** out_launch);
/** Adds a reference; returns its argument. Since: 0.2 */
ACCRT_API accrt_launch_t* accrt_launch_retain(accrt_launch_t* launch);
/** Drops a reference; NULL is allowed. Executions in flight end all the same. Since: 0.2 */
ACCRT_API void accrt_launch_release(accrt_launch_t* launch);
/** Sets an argument, checked as accrt_stream_launch checks it. Its buffer is retained until another takes its place, and each
 * launch notes its use of it.
 * @param index of the kernel's parameter. @return as accrt_stream_launch; ACCRT_ERROR_OUT_OF_RANGE (no such parameter). On
 *   failure the argument is what it was. Since: 0.2 */
ACCRT_API accrt_status_t accrt_launch_set(accrt_launch_t* launch, uint32_t index,
                                          const accrt_kernel_argument_t* argument,
                                          uint32_t argument_size_bytes);
/** The launch's own parameter block, borrowed, to be written directly: params_size_bytes as accrt_kernel_info tells the places.
 * Device addresses that are put there are not known to the library: whoever puts them there keeps their memory until the stream
 * has passed the launch. NULL only for NULL. Since: 0.2 */
ACCRT_API void* accrt_launch_params(accrt_launch_t* launch);
/** Enqueues the launch with its arguments as they are now. A grid with a zero runs nothing. The launch may be changed at once
 * afterwards. @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (a parameter that is not optional was never given: its name is in
 *   the message; not checked once accrt_launch_params was called; or a wrapped stream that is being captured);
 *   ACCRT_ERROR_INVALID_ARGUMENT (the stream is of another
 *   device); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED; ACCRT_ERROR_DEVICE_LOST. Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_launch_prepared(accrt_stream_t* stream,
                                                      accrt_launch_t* launch,
                                                      const uint32_t grid[3]);

/* ---- Recorded commands (recording is externally synchronized) ---- */

/** Where a recorded copy or fill finds memory. Frozen. */
typedef struct accrt_binding_place {
  uint32_t binding;    /**< index into the binding table, or ACCRT_BINDING_NONE to use `place` */
  uint32_t reserved;   /**< 0 */
  accrt_place_t place; /**< with a binding: only offset_bytes is used */
} accrt_binding_place_t;
ACCRT_ASSERT_LAYOUT(accrt_binding_place_t, place, 32);

/** One entry of a binding table at submission. Frozen. */
typedef struct accrt_binding {
  accrt_buffer_t* buffer; /**< NULL: `pointer` is host memory of size_bytes */
  void* pointer;
  uint64_t offset_bytes;
  uint64_t size_bytes; /**< UINT64_MAX with a buffer: to its end */
} accrt_binding_t;
ACCRT_ASSERT_LAYOUT(accrt_binding_t, size_bytes, 32);

/** Predecessors of a command: it starts when all of these (indices returned by earlier record calls) have ended. Frozen. */
typedef struct accrt_predecessors {
  const uint32_t* commands; /**< NULL: see count */
  uint32_t count;    /**< ACCRT_AFTER_PREVIOUS: after the last command recorded; 0: at once */
  uint32_t reserved; /**< 0 */
} accrt_predecessors_t;
ACCRT_ASSERT_LAYOUT(accrt_predecessors_t, reserved, 16);
#define ACCRT_AFTER_PREVIOUS 0xFFFFFFFFu

/** Begins recording for a device. A list is also how many copies are given to a device in one submission, a batch: recorded after
 * nobody (predecessors with a count of 0) they may run side by side. @param binding_count size of the binding table (at most 65535).
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_create(accrt_device_t* device, uint32_t binding_count,
                                               accrt_commands_t** out_commands);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_commands_t* accrt_commands_retain(accrt_commands_t* commands);
/** Drops a reference; NULL is allowed; submissions in flight keep what they need. Since: 0.1 */
ACCRT_API void accrt_commands_release(accrt_commands_t* commands);
/** Records a dispatch. @param predecessors NULL: after the previous command. @param out_index may be NULL.
 * @return as accrt_stream_launch; ACCRT_ERROR_INVALID_STATE after _finalize; ACCRT_ERROR_OUT_OF_RANGE (a predecessor that does
 *   not exist, a binding out of the table). On failure nothing is recorded. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_dispatch(
    accrt_commands_t* commands, accrt_kernel_t* kernel, const uint32_t grid[3],
    const accrt_kernel_argument_t* arguments, uint32_t argument_count, uint32_t argument_size_bytes,
    const accrt_predecessors_t* predecessors, uint32_t* out_index);
/** Records a host operator (ACCRT_KERNEL_KIND_OPERATOR): it has no grid. Shapes, strides and values stay as they are here;
 * addresses come from the binding table. The operator is asked for its workspace here, gets it in memory of the list's own, is
 * prepared in accrt_commands_finalize and ends with the list. Since state and workspace are the list's, submissions of a list with
 * operators that are in flight at the same time must be on one stream.
 * @return as accrt_commands_dispatch; ACCRT_ERROR_INVALID_ARGUMENT (a kernel that is no operator);
 *   ACCRT_ERROR_UNSUPPORTED (an operator for another kind of device). Since: 0.2 */
ACCRT_API accrt_status_t accrt_commands_invoke(
    accrt_commands_t* commands, accrt_kernel_t* operation, const accrt_kernel_argument_t* arguments,
    uint32_t argument_count, uint32_t argument_size_bytes, const accrt_predecessors_t* predecessors,
    uint32_t* out_index);
/** Records a strided copy. @return as accrt_commands_dispatch; ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_INVALID_ARGUMENT (the
 * target's rows overlap). Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_copy(accrt_commands_t* commands,
                                             const accrt_binding_place_t* source,
                                             const accrt_binding_place_t* target,
                                             const accrt_copy_region_t* region,
                                             const accrt_predecessors_t* predecessors,
                                             uint32_t* out_index);
/** Records a fill. @return as accrt_commands_dispatch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_fill(accrt_commands_t* commands,
                                             const accrt_binding_place_t* target,
                                             uint64_t size_bytes, uint64_t pattern,
                                             uint32_t pattern_bytes,
                                             const accrt_predecessors_t* predecessors,
                                             uint32_t* out_index);
/** Everything recorded before ends before anything recorded after starts. @return as accrt_commands_dispatch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_barrier(accrt_commands_t* commands, uint32_t* out_index);
/** A named point for traces; orders like any command. @return as accrt_commands_dispatch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_marker(accrt_commands_t* commands, const char* text,
                                               const accrt_predecessors_t* predecessors,
                                               uint32_t* out_index);
/** Ends recording and makes the list ready. Afterwards it is immutable and may be submitted from any thread.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (already); ACCRT_ERROR_OUT_OF_MEMORY; what the driver returns. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_finalize(accrt_commands_t* commands);
/** Number of commands recorded. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_count(accrt_commands_t* commands, uint32_t* out_count);
/** Enqueues a finalized list with a binding table. Every range of every command is checked against its binding. A second
 * submission of the same list may be in flight at the same time.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (not finalized, or a wrapped stream that is being captured); ACCRT_ERROR_OUT_OF_RANGE
 *   (command, binding and sizes in the message); ACCRT_ERROR_UNSUPPORTED (memory that the device does not reach, as
 *   accrt_stream_launch); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED; ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_submit(accrt_stream_t* stream, accrt_commands_t* commands,
                                             const accrt_binding_t* bindings,
                                             uint32_t binding_count, uint32_t binding_size_bytes);
/** Like accrt_stream_submit, and waits. On an idle stream of a device that allows it, the calling thread runs the list itself.
 * @return as accrt_stream_submit and accrt_stream_synchronize. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_run(accrt_stream_t* stream, accrt_commands_t* commands,
                                          const accrt_binding_t* bindings, uint32_t binding_count,
                                          uint32_t binding_size_bytes, uint64_t timeout_ns);

ACCRT_END
#endif /* ACCRT_COMMANDS_H_ */
