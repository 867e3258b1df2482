/* accrt/commands.h - kernels, launches, and command lists, which are recorded once and submitted
 * many times.
 *
 * Nothing here depends on programs or bundles: you can launch kernels without them.
 */
#ifndef ACCRT_COMMANDS_H_
#define ACCRT_COMMANDS_H_

#include "accrt/base.h"
#include "accrt/stream.h"

ACCRT_BEGIN

/* ---- Kernel packs ---- */

/** Opens a kernel pack: a shared object that exports accrt_kernel_pack_query. It is never unloaded.
 * May block.
 * @param path an absolute path. The file and all folders above it must belong to root, to this user
 *   or to the owner of the library's own file. No other user may write to them (folders may be
 *   sticky, as /tmp is).
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (file or symbol); ACCRT_ERROR_INVALID_ARGUMENT (a
 *   relative path); ACCRT_ERROR_PERMISSION_DENIED (the message says who else may write);
 *   ACCRT_ERROR_UNTRUSTED (the policy is ACCRT_HOST_CODE_NONE); ACCRT_ERROR_VERSION_MISMATCH (the
 *   pack refused, or its ABI is too new: both versions in the message); ACCRT_ERROR_INVALID_FORMAT
 *   (the file is no shared object of this machine, or it is cut; or a table breaks the rules: the
 *   message names pack, kernel and parameter). Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_open(accrt_instance_t* instance, const char* path,
                                                accrt_kernel_pack_t** out_pack);
/** Registers a kernel pack that is part of the program. No policy applies. `query` and its tables
 * must outlive the pack.
 * @return ACCRT_OK; ACCRT_ERROR_VERSION_MISMATCH; ACCRT_ERROR_INVALID_FORMAT;
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_register(accrt_instance_t* instance,
                                                    accrt_kernel_pack_query_fn_t query,
                                                    accrt_kernel_pack_t** out_pack);
/** Loads a kernel pack from a freestanding ELF image in memory, which it copies.
 * ACCRT_HOST_CODE_NONE forbids it.
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
  uint32_t kind; /**< ACCRT_MODULE_*; 0: found from the image's first bytes */
  const accrt_chain_t* next;
  const void* image; /**< read during the call */
  uint64_t size_bytes;
  const char* name; /**< for messages and profilers; may be NULL */
  /** the kernels to find in the image; copied. `entry` is NULL; `name` is the image's symbol */
  const accrt_kernel_def_t* kernels;
  uint32_t kernel_count;      /**< at least 1 */
  uint32_t kernel_size_bytes; /**< sizeof(accrt_kernel_def_t) */
} accrt_module_options_t;
ACCRT_ASSERT_LAYOUT(accrt_module_options_t, kernel_size_bytes, 56);
#define ACCRT_MODULE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_module_options_t)
#define ACCRT_MODULE_CUBIN 2u
#define ACCRT_MODULE_PTX 3u /**< NUL-terminated text */
#define ACCRT_MODULE_FATBIN 4u
/** Makes a kernel pack from machine code of a device (a cubin, fatbin or PTX), without a bundle.
 * Every declared parameter block is checked against the image. May block: PTX is compiled, once
 * (docs/cuda.md).
 * @param out_pack Owned by the caller. Its kernels run only on `device`.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (no image, no kernels); ACCRT_ERROR_INVALID_FORMAT
 *   (not an image of that kind, or a block that differs from the image: kernel, parameter and both
 *   numbers in the message); ACCRT_ERROR_NOT_FOUND (the image has no such kernel);
 *   ACCRT_ERROR_NO_VARIANT (another architecture: both in the message); ACCRT_ERROR_UNSUPPORTED
 *   (the device loads no modules); ACCRT_ERROR_OUT_OF_MEMORY; the driver's statuses. Thread-safe.
 *   Since: 0.2 */
ACCRT_API accrt_status_t accrt_kernel_module_load(accrt_device_t* device,
                                                  const accrt_module_options_t* options,
                                                  accrt_kernel_pack_t** out_pack);
/** Number of kernels in a pack. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_kernel_count(accrt_kernel_pack_t* pack,
                                                        uint32_t* out_count);
/** A kernel by index, lent by the pack.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_kernel(accrt_kernel_pack_t* pack, uint32_t index,
                                                  accrt_kernel_t** out_kernel);
/** A kernel by name, lent by the pack.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message has similar names). Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_pack_find(accrt_kernel_pack_t* pack, const char* name,
                                                accrt_kernel_t** out_kernel);

/** Facts about a kernel. Its pointers are lent by the pack. */
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
/** a host operator: record it with accrt_commands_invoke. Since 0.2 */
#define ACCRT_KERNEL_KIND_OPERATOR 1u
#define ACCRT_KERNEL_INFO_INIT ACCRT_STRUCT_INIT(accrt_kernel_info_t)
/** Fills `out_info`. Since: 0.1 */
ACCRT_API accrt_status_t accrt_kernel_info(accrt_kernel_t* kernel, accrt_kernel_info_t* out_info);

/* ---- Launch ---- */

/** One argument of a launch, in the order of the kernel's parameters. Frozen. */
typedef struct accrt_kernel_argument {
  /** ACCRT_KERNEL_PARAM_* of the parameter: BUFFER, TENSOR, SCALAR, SYMBOL or WORKSPACE */
  uint32_t kind;
  /** recorded commands: index into the binding table, or ACCRT_BINDING_NONE to use `buffer`. 0 is
   * the first binding, not "none": a list with bindings refuses an argument that has a binding and
   * a buffer or pointer */
  uint32_t binding;
  /** BUFFER, TENSOR, WORKSPACE. NULL: the host address `pointer` (devices with host memory). If
   * `pointer` is NULL too, an optional parameter is absent */
  accrt_buffer_t* buffer;
  void* pointer;
  uint64_t offset_bytes; /**< of the range the kernel gets */
  /** of that range. ACCRT_TO_END: to the end of the buffer or binding (a host address needs a
   * size). 0: an empty range, also for a parameter that is not optional; the kernel gets the
   * range's address, or NULL if the argument has no memory */
  uint64_t size_bytes;
  uint64_t value; /**< SCALAR, SYMBOL: bits, low bytes */
  /** TENSOR: dtype, shape and strides (its data is ignored). Element 0 is at offset_bytes; all
   * elements must lie in the range */
  const accrt_kernel_tensor_t* tensor;
} accrt_kernel_argument_t;
ACCRT_ASSERT_LAYOUT(accrt_kernel_argument_t, tensor, 56);
#define ACCRT_BINDING_NONE 0xFFFFFFFFu
/** Initializers: an empty argument whose size is ACCRT_TO_END; a whole buffer; the bits of a scalar
 * or symbol. None has a binding. */
#define ACCRT_KERNEL_ARGUMENT_INIT                                                                 \
  { 0, ACCRT_BINDING_NONE, NULL, NULL, 0, UINT64_MAX, 0, NULL }
#define ACCRT_KERNEL_ARGUMENT_BUFFER(buffer_)                                                      \
  { ACCRT_KERNEL_PARAM_BUFFER, ACCRT_BINDING_NONE, (buffer_), NULL, 0, UINT64_MAX, 0, NULL }
#define ACCRT_KERNEL_ARGUMENT_SCALAR(bits_)                                                        \
  { ACCRT_KERNEL_PARAM_SCALAR, ACCRT_BINDING_NONE, NULL, NULL, 0, 0, (bits_), NULL }

/** Enqueues one dispatch. If a dimension of the grid is 0, nothing runs.
 * @param grid workgroups in x, y, z.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (the count or kind of arguments; a tensor's dtype,
 *   rank or negative dimension: the message names the parameter); ACCRT_ERROR_OUT_OF_RANGE (a range
 *   past the end of its buffer, a tensor past the end of its range); ACCRT_ERROR_UNSUPPORTED (a
 *   kernel for another kind of device; memory that the device cannot reach: on a GPU, host memory,
 *   or memory of another GPU without accrt_device_enable_peer); ACCRT_ERROR_INVALID_STATE (a
 *   wrapped stream is being captured); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED;
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_launch(accrt_stream_t* stream, accrt_kernel_t* kernel,
                                             const uint32_t grid[3],
                                             const accrt_kernel_argument_t* arguments,
                                             uint32_t argument_count, uint32_t argument_size_bytes);

/* ---- Prepared launches (each is externally synchronized) ---- */

/** Prepares a kernel for many launches: look-ups, checks and tables are done once. A prepared
 * launch is faster than accrt_stream_launch, and on CUDA faster than cuLaunchKernel. It retains the
 * kernel's pack.
 * @param out_launch Owned by the caller.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (a kernel for another kind of device);
 *   ACCRT_ERROR_OUT_OF_MEMORY; the driver's statuses. Since: 0.2 */
ACCRT_API accrt_status_t accrt_launch_create(accrt_device_t* device, accrt_kernel_t* kernel,
                                             accrt_launch_t** out_launch);
/** Adds a reference; returns its argument. Since: 0.2 */
ACCRT_API accrt_launch_t* accrt_launch_retain(accrt_launch_t* launch);
/** Drops a reference; NULL is allowed. Launches in flight still complete. Since: 0.2 */
ACCRT_API void accrt_launch_release(accrt_launch_t* launch);
/** Sets an argument, with the checks of accrt_stream_launch. The launch retains the buffer until
 * you set another. Each launch records that it uses the buffer.
 * @param index index of the kernel's parameter.
 * @return as accrt_stream_launch; ACCRT_ERROR_OUT_OF_RANGE (no such parameter). On failure the
 *   argument stays as it was. Since: 0.2 */
ACCRT_API accrt_status_t accrt_launch_set(accrt_launch_t* launch, uint32_t index,
                                          const accrt_kernel_argument_t* argument,
                                          uint32_t argument_size_bytes);
/** The launch's parameter block, lent, which you may write directly. Its size is params_size_bytes;
 * accrt_kernel_info gives the offsets. The library does not know the device addresses that you
 * write there: keep their memory until the launch is complete. NULL only for NULL. Since: 0.2 */
ACCRT_API void* accrt_launch_params(accrt_launch_t* launch);
/** Enqueues the launch with its present arguments. If a dimension of the grid is 0, nothing runs.
 * You may change the launch at once afterwards.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (a parameter that is not optional was never set: the
 *   message names it; not checked after accrt_launch_params; or a wrapped stream is being
 *   captured); ACCRT_ERROR_INVALID_ARGUMENT (the stream is of another device);
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED; ACCRT_ERROR_DEVICE_LOST. Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_launch_prepared(accrt_stream_t* stream,
                                                      accrt_launch_t* launch,
                                                      const uint32_t grid[3]);

/* ---- Recorded commands (recording is externally synchronized) ---- */

/** The memory of a recorded copy or fill. Frozen. */
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
  uint64_t size_bytes; /**< ACCRT_TO_END with a buffer: to its end */
} accrt_binding_t;
ACCRT_ASSERT_LAYOUT(accrt_binding_t, size_bytes, 32);

/** The predecessors of a command: it starts when all of them have ended. They are indices that
 * earlier record functions returned. Frozen. */
typedef struct accrt_predecessors {
  const uint32_t* commands; /**< `count` indices; NULL if there are none, or AFTER_PREVIOUS */
  uint32_t count;    /**< 0: no predecessors; ACCRT_AFTER_PREVIOUS: the last recorded command */
  uint32_t reserved; /**< 0 */
} accrt_predecessors_t;
ACCRT_ASSERT_LAYOUT(accrt_predecessors_t, reserved, 16);
#define ACCRT_AFTER_PREVIOUS 0xFFFFFFFFu

/** Begins a command list for a device. A list is also the way to submit many copies at once:
 * recorded without predecessors (a count of 0), they may run side by side.
 * @param binding_count entries of the binding table, at most 65535.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_create(accrt_device_t* device, uint32_t binding_count,
                                               accrt_commands_t** out_commands);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_commands_t* accrt_commands_retain(accrt_commands_t* commands);
/** Drops a reference; NULL is allowed; submissions in flight keep what they need. Since: 0.1 */
ACCRT_API void accrt_commands_release(accrt_commands_t* commands);
/** Records a dispatch.
 * @param predecessors NULL: after the previous command.
 * @param out_index may be NULL.
 * @return as accrt_stream_launch; ACCRT_ERROR_INVALID_STATE (after accrt_commands_finalize);
 *   ACCRT_ERROR_OUT_OF_RANGE (a predecessor that does not exist, a binding outside the table). On
 *   failure nothing is recorded. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_dispatch(
    accrt_commands_t* commands, accrt_kernel_t* kernel, const uint32_t grid[3],
    const accrt_kernel_argument_t* arguments, uint32_t argument_count, uint32_t argument_size_bytes,
    const accrt_predecessors_t* predecessors, uint32_t* out_index);
/** Records a host operator (ACCRT_KERNEL_KIND_OPERATOR), which has no grid. Shapes, strides and
 * values are fixed here; addresses come from the binding table. This function asks the operator for
 * the size of its workspace; the list allocates it. accrt_commands_finalize prepares the operator;
 * it is destroyed with the list. State and workspace belong to the list, so submissions of such a
 * list that are in flight at the same time must be on one stream.
 * @return as accrt_commands_dispatch; ACCRT_ERROR_INVALID_ARGUMENT (a kernel that is not an
 *   operator); ACCRT_ERROR_UNSUPPORTED (an operator for another kind of device). Since: 0.2 */
ACCRT_API accrt_status_t accrt_commands_invoke(
    accrt_commands_t* commands, accrt_kernel_t* operation, const accrt_kernel_argument_t* arguments,
    uint32_t argument_count, uint32_t argument_size_bytes, const accrt_predecessors_t* predecessors,
    uint32_t* out_index);
/** Records a strided copy. If the copy has one row, extent[0] may be ACCRT_TO_END: to the end of
 * the source's buffer, or of the target's buffer if the source is host memory. That buffer must be
 * given here; a binding's size is not known yet.
 * @return as accrt_commands_dispatch; ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_INVALID_ARGUMENT (the
 *   target's rows overlap); ACCRT_ERROR_ALIASED (source and target overlap). Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_copy(accrt_commands_t* commands,
                                             const accrt_binding_place_t* source,
                                             const accrt_binding_place_t* target,
                                             const accrt_copy_region_t* region,
                                             const accrt_predecessors_t* predecessors,
                                             uint32_t* out_index);
/** Records a fill.
 * @param size_bytes ACCRT_TO_END: to the end of the target's buffer; not for a binding, whose size
 *   is not known yet.
 * @return as accrt_commands_dispatch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_fill(accrt_commands_t* commands,
                                             const accrt_binding_place_t* target,
                                             uint64_t size_bytes, uint64_t pattern,
                                             uint32_t pattern_bytes,
                                             const accrt_predecessors_t* predecessors,
                                             uint32_t* out_index);
/** Records a barrier: all earlier commands end before any later command starts.
 * @return as accrt_commands_dispatch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_barrier(accrt_commands_t* commands, uint32_t* out_index);
/** Records a named point for traces. It has predecessors like any command.
 * @return as accrt_commands_dispatch. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_marker(accrt_commands_t* commands, const char* text,
                                               const accrt_predecessors_t* predecessors,
                                               uint32_t* out_index);
/** Ends recording and makes the list ready. May block: CUDA uploads the list's graphs. Afterwards
 * the list does not change, and any thread may submit it.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (already finalized); ACCRT_ERROR_OUT_OF_MEMORY; the
 *   driver's statuses. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_finalize(accrt_commands_t* commands);
/** Number of recorded commands. Since: 0.1 */
ACCRT_API accrt_status_t accrt_commands_count(accrt_commands_t* commands, uint32_t* out_count);
/** Enqueues a finalized list with a binding table. Every range of every command is checked against
 * its binding. Several submissions of one list may be in flight at a time.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (not finalized; or a wrapped stream is being
 *   captured, and the list has an operator that cannot be captured); ACCRT_ERROR_OUT_OF_RANGE (the
 *   message has the command, the binding and both sizes); ACCRT_ERROR_UNSUPPORTED (memory that the
 *   device cannot reach, as accrt_stream_launch); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED;
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_submit(accrt_stream_t* stream, accrt_commands_t* commands,
                                             const accrt_binding_t* bindings,
                                             uint32_t binding_count, uint32_t binding_size_bytes);
/** Submits a list and waits for it. On an idle stream, if the device allows it, the calling thread
 * runs the list itself.
 * @return as accrt_stream_submit and accrt_stream_synchronize. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_run(accrt_stream_t* stream, accrt_commands_t* commands,
                                          const accrt_binding_t* bindings, uint32_t binding_count,
                                          uint32_t binding_size_bytes, uint64_t timeout_ns);

ACCRT_END
#endif /* ACCRT_COMMANDS_H_ */
