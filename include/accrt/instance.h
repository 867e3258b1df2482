/* accrt/instance.h - instances, devices, error records, host allocation, logging, tracing,
 * capabilities.
 *
 * Nothing here depends on streams, programs or files: an instance makes them.
 */
#ifndef ACCRT_INSTANCE_H_
#define ACCRT_INSTANCE_H_

#include "accrt/base.h"

ACCRT_BEGIN

/* ---- Errors ---- */

/** The full record of one failure. Filled by accrt_last_error and by the _error functions of
 * streams, events, semaphores and sessions. Its strings lie inside the struct, so you can keep
 * it. */
typedef struct accrt_error {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* next;        /**< NULL */
  accrt_status_t status;
  int32_t driver_code;  /**< the code of the driver or kernel; errno for ACCRT_ERROR_IO; else 0 */
  uint64_t submission;  /**< number of the submission that failed; 0: none did */
  char driver_name[32]; /**< the driver's own name for driver_code, or "" */
  char operation[64];   /**< the function or operation that failed, e.g. "accrt_buffer_create" */
  char source_file[64]; /**< where in the library; the file's last 63 bytes */
  uint32_t source_line;
  uint32_t reserved2; /**< 0 */
  char message[512];  /**< one line with the offending values; "": no error */
} accrt_error_t;
ACCRT_ASSERT_LAYOUT(accrt_error_t, message, 712);
#define ACCRT_ERROR_INIT ACCRT_STRUCT_INIT(accrt_error_t)

/** Copies this thread's record of the last failed call into `out_error` (all zero but the size if
 * none has failed yet). A successful call does not change the record. Thread-safe, never blocks,
 * never allocates.
 * @return ACCRT_OK, or ACCRT_ERROR_INVALID_ARGUMENT (the record stays as it was). Since: 0.1 */
ACCRT_API accrt_status_t accrt_last_error(accrt_error_t* out_error);

/** Copies `error` into this thread's record. It is for libraries built on this one (such as
 * libaccrt_write.so) that report their failures through accrt_last_error. Control characters in its
 * texts become spaces. Every text is NUL-terminated. Thread-safe, never blocks, never allocates.
 * @return ACCRT_OK, or ACCRT_ERROR_INVALID_ARGUMENT (NULL, or a bad struct_size: the record is then
 *   unchanged). Since: 0.4 */
ACCRT_API accrt_status_t accrt_set_error(const accrt_error_t* error);

/** Clears this thread's record. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API void accrt_clear_error(void);

/** Name of a status, e.g. "ACCRT_ERROR_TIMEOUT"; "ACCRT_ERROR_UNKNOWN" for a number that this
 * library does not know. Static string. Thread-safe. Since: 0.1 */
ACCRT_API const char* accrt_status_name(accrt_status_t status);

/** What a status means, in one sentence. Static string. Thread-safe. Since: 0.1 */
ACCRT_API const char* accrt_status_text(accrt_status_t status);

/** Version of the library that is running, as ACCRT_MAKE_VERSION. Thread-safe. Since: 0.1 */
ACCRT_API uint32_t accrt_version(void);

/* ---- What a caller may supply ---- */

/** Frozen. A host allocator. The library calls it from any thread, never under a lock. `alignment`
 * is a power of two of at least 8. */
typedef struct accrt_allocator {
  void* self;
  void* (*allocate)(void* self, size_t size_bytes, size_t alignment); /**< NULL on failure */
  void (*deallocate)(void* self, void* pointer, size_t size_bytes,
                     size_t alignment); /**< never called with NULL */
} accrt_allocator_t;
ACCRT_ASSERT_LAYOUT(accrt_allocator_t, deallocate, 24);

#define ACCRT_LOG_ERROR 1u
#define ACCRT_LOG_WARNING 2u
#define ACCRT_LOG_INFO 3u
#define ACCRT_LOG_DEBUG 4u
/** Frozen. A log sink. It receives one line at a time, without a newline, of levels up to `level`.
 * The library calls it from any thread, never under a lock. */
typedef struct accrt_log_sink {
  void* self;
  void (*write)(void* self, uint32_t level, const char* component, const char* line);
  uint32_t level;    /**< highest level wanted */
  uint32_t reserved; /**< 0 */
} accrt_log_sink_t;
ACCRT_ASSERT_LAYOUT(accrt_log_sink_t, reserved, 24);

#define ACCRT_TRACE_SUBMIT 1u   /**< work was put on a stream */
#define ACCRT_TRACE_COMPLETE 2u /**< that work ended; `status` says how */
/** one command ran, with its times (from drivers that measure them) */
#define ACCRT_TRACE_COMMAND 3u
#define ACCRT_TRACE_CALL 4u /**< a session ran a function */
/** One trace event. Frozen. Its pointers are valid only during the call. */
typedef struct accrt_trace_event {
  uint32_t kind;
  accrt_status_t status;
  uint64_t stream_id;
  uint64_t submission;
  uint64_t begin_ns; /**< monotonic clock */
  uint64_t end_ns;
  const char* name; /**< operation, kernel or function */
} accrt_trace_event_t;
ACCRT_ASSERT_LAYOUT(accrt_trace_event_t, name, 48);
/** Frozen. A trace sink. The library calls it from any thread, never under a lock. It must return
 * quickly, because the traced work waits for it. It may not call accrt_stream_reset, which would
 * wait for that work. */
typedef struct accrt_trace_sink {
  void* self;
  void (*event)(void* self, const accrt_trace_event_t* event);
} accrt_trace_sink_t;
ACCRT_ASSERT_LAYOUT(accrt_trace_sink_t, event, 16);

/** Frozen. The caller's thread pool for the host driver, which then starts no worker threads of its
 * own. `submit` arranges that `task(argument)` runs once, soon, on one of the pool's threads. It
 * may not run the task before it returns. */
typedef struct accrt_executor {
  void* self;
  int32_t (*submit)(void* self, void (*task)(void* argument),
                    void* argument); /**< 0: the task will run */
  uint32_t concurrency;              /**< how many tasks may run at once; at least 1 */
  uint32_t reserved;                 /**< 0 */
} accrt_executor_t;
ACCRT_ASSERT_LAYOUT(accrt_executor_t, reserved, 24);

/** An option, e.g. {"host.threads", "2"}. docs/options.md lists all. If the option belongs to a
 * driver that you load later, put a '+' before the key: the option is then checked when that driver
 * opens. Frozen. */
typedef struct accrt_option {
  const char* key;
  const char* value;
} accrt_option_t;
ACCRT_ASSERT_LAYOUT(accrt_option_t, value, 16);

/* Policy for machine code of the host CPU in bundles. Code that it forbids gives
 * ACCRT_ERROR_UNTRUSTED. docs/trust.md explains. */
/** the option trust.policy, else the environment's ACCRT_TRUST, else _SIGNED */
#define ACCRT_HOST_CODE_DEFAULT 0u
#define ACCRT_HOST_CODE_SIGNED 1u /**< run code that a trusted key signed: accrt/trust.h */
#define ACCRT_HOST_CODE_ALL 2u    /**< run all: you trust bundles as you trust the program */
/** run none, signed or not, nor kernel packs that the program loads itself */
#define ACCRT_HOST_CODE_NONE 3u

/** write the names of loaded kernels to /tmp/perf-PID.map, for perf */
#define ACCRT_INSTANCE_FLAG_PERF_MAP 1u
#define ACCRT_INSTANCE_FLAG_NO_DRIVERS 2u /**< open no built-in driver */

/** Options of accrt_instance_create. All zero but the size is a good default. */
typedef struct accrt_instance_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_INSTANCE_FLAG_* */
  const accrt_chain_t* next;
  const accrt_allocator_t* allocator;   /**< copied; NULL: the C library's */
  const accrt_log_sink_t* log_sink;     /**< copied; NULL: silent */
  const accrt_trace_sink_t* trace_sink; /**< copied; NULL: none */
  const accrt_executor_t* executor;     /**< copied; NULL: own threads */
  const accrt_option_t* options;        /**< copied; NULL when option_count is 0 */
  uint32_t option_count;
  uint32_t option_size_bytes; /**< sizeof(accrt_option_t) */
  uint32_t host_code_policy;  /**< ACCRT_HOST_CODE_* */
  uint32_t reserved;          /**< 0 */
} accrt_instance_options_t;
ACCRT_ASSERT_LAYOUT(accrt_instance_options_t, reserved, 72);
#define ACCRT_INSTANCE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_instance_options_t)

/* ---- Instance ---- */

/** Makes an instance, from which every other object is made. One process may have several. The
 * built-in drivers are opened at once. A driver that cannot be opened is skipped, with a log line.
 * Opening the CUDA driver does not start CUDA: see accrt_instance_device_count.
 * @param options NULL for the defaults.
 * @param out_instance Owned by the caller.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_NOT_FOUND (an unknown option key, named
 *   in the message); ACCRT_ERROR_INVALID_ARGUMENT (a bad option value, named). May block (starts
 *   threads). Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_create(const accrt_instance_options_t* options,
                                               accrt_instance_t** out_instance);
/** The value of an option by its full key: the last that was set, or NULL if none was. NULL for
 * NULL. Lent: valid while the instance is. For libraries built on this one. Thread-safe, never
 * blocks. Since: 0.4 */
ACCRT_API const char* accrt_instance_option(const accrt_instance_t* instance, const char* key);
/** The instance's host allocator; NULL for NULL. Lent: valid while the instance is. For libraries
 * built on this one, so that their memory is counted with the instance's. Thread-safe, never
 * blocks. Since: 0.4 */
ACCRT_API const accrt_allocator_t* accrt_instance_allocator(const accrt_instance_t* instance);

/** Adds a reference; returns its argument. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API accrt_instance_t* accrt_instance_retain(accrt_instance_t* instance);
/** Drops a reference; NULL is allowed. The last one waits for work in flight, then frees.
 * Since: 0.1 */
ACCRT_API void accrt_instance_release(accrt_instance_t* instance);

/** Opens a driver from a shared object that exports accrt_driver_query (accrt/sys/driver.h). Its
 * devices get the indices after those of the instance's other devices. The shared object is never
 * unloaded. May block.
 * @param path an absolute path, with the conditions of accrt_kernel_pack_open; or a name without
 *   slashes, which the system's loader looks up.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (no such file or symbol); ACCRT_ERROR_INVALID_ARGUMENT (a
 *   relative path); ACCRT_ERROR_INVALID_FORMAT (the file is no shared object of this machine, or it
 *   is cut); ACCRT_ERROR_PERMISSION_DENIED (others may write to it);
 *   ACCRT_ERROR_VERSION_MISMATCH (the message has both ranges); ACCRT_ERROR_ALREADY_EXISTS (a
 *   driver of that name); the statuses of the driver's own open function. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_load_driver(accrt_instance_t* instance, const char* path);

/** Like accrt_instance_load_driver for a driver linked into the program: `query` is its
 * accrt_driver_query_fn_t. Same statuses. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_register_driver(accrt_instance_t* instance,
                                                        const void* (*query)(uint32_t max_abi));

/** Number of devices of all open drivers. A driver that is slow to start (CUDA) starts with the
 * first call that asks for it: this one, or one for a device of that driver. Thread-safe. May
 * block. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_device_count(accrt_instance_t* instance,
                                                     uint32_t* out_count);
/** The device of that index, opened on first use. Lent: a device lives as long as its instance. May
 * block.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_OUT_OF_MEMORY; the driver's statuses.
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_device(accrt_instance_t* instance, uint32_t index,
                                               accrt_device_t** out_device);
/** A device by name: "host", "host:1", "cuda:0"; a driver's name alone means its first device.
 * Lent, as above. May block.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message lists all devices); the reason why its
 *   driver has no devices (NOT_FOUND, VERSION_MISMATCH, PERMISSION_DENIED, with the driver's own
 *   code and name); as accrt_instance_device. Since: 0.1 */
ACCRT_API accrt_status_t accrt_instance_device_by_name(accrt_instance_t* instance, const char* name,
                                                       accrt_device_t** out_device);

/** What this library can read and run: the capabilities that a compiler targets. */
typedef struct accrt_caps {
  uint32_t struct_size;
  uint32_t reserved;        /**< 0 */
  void* next;               /**< NULL */
  uint32_t library_version; /**< ACCRT_MAKE_VERSION */
  uint16_t container_major,
      container_minor; /**< newest .accx container; older minor versions are read too */
  uint16_t commands_major, commands_minor; /**< newest command set */
  uint16_t kernel_abi_major, kernel_abi_minor;
  uint16_t layouts_major, layouts_minor; /**< layout registry */
  uint32_t max_rank;
  uint64_t file_features;     /**< feature bits understood, at file scope */
  uint64_t function_features; /**< at function scope */
  uint64_t variant_features;  /**< at kernel-variant scope */
  uint64_t command_mask;      /**< bit n: opcode n is executed */
  uint64_t dtype_mask;        /**< bit n: accrt_dtype_t n is known */
  uint64_t encoding_mask;     /**< bit n: encoding id n is known */
  uint64_t cpu_features;      /**< ACCRT_CPU_* of this machine */
  char cpu_arch[32]; /**< "x86-64-v4", "aarch64": the best family of variants that runs here */
  uint64_t image_kind_mask; /**< bit n: images of kind n are known (accrt/bundle.h). Since 0.2 */
  uint64_t section_mask;    /**< bit n: section n is known. Since 0.3 */
  uint64_t expression_mask; /**< bit n: operation n of expressions is known. Since 0.3 */
  /** The devices of that machine, "host:x86-64-v4 cuda:sm_90", from accrt_caps_parse. Empty: not
   * known. Since 0.3 */
  char devices[232];
} accrt_caps_t;
ACCRT_ASSERT_LAYOUT(accrt_caps_t, devices, 384);
#define ACCRT_CAPS_INIT ACCRT_STRUCT_INIT(accrt_caps_t)
/** Fills `out_caps`. Thread-safe, never blocks, needs no instance. Since: 0.1 */
ACCRT_API accrt_status_t accrt_query_caps(accrt_caps_t* out_caps);
/** Reads what `accx caps --json` printed on another machine: what the library there can read and
 * run. Use it for accrt_bundle_writer_options_t.target. Names and members that this library does
 * not know come from a newer one and are left out. What an older `accx caps` does not print is 0
 * (image_kind_mask, section_mask, expression_mask); the writer then assumes what those versions
 * had. The result does not depend on this machine. Thread-safe, never blocks, needs no instance.
 * @param text the JSON, `size_bytes` of it, at most 1 MiB. It need not end with a NUL. It is copied
 *   during the call.
 * @param allocator for the copy; NULL: the C library's.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_FORMAT (no JSON, or not what `accx caps` prints, such as a
 *   member twice: the message has the place and the fault); ACCRT_ERROR_OUT_OF_RANGE (more than 1
 *   MiB); ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.3 */
ACCRT_API accrt_status_t accrt_caps_parse(const char* text, size_t size_bytes,
                                          const accrt_allocator_t* allocator,
                                          accrt_caps_t* out_caps);

/* ---- Devices ---- */

/** device memory is host memory: host pointers are used in place */
#define ACCRT_DEVICE_FLAG_HOST_MEMORY 1u
#define ACCRT_DEVICE_FLAG_TIMESTAMPS 2u   /**< events can measure time */
#define ACCRT_DEVICE_FLAG_HOST_KERNELS 4u /**< runs host workgroup kernels */
/** the device has no threads: work runs inside waits, on the waiting thread; if the wait has a
 * limit, a thread of the instance runs it */
#define ACCRT_DEVICE_FLAG_CALLER_RUNS 8u
/** an enqueue function may run the work before it returns. Since: 0.4 */
#define ACCRT_DEVICE_FLAG_ENQUEUE_RUNS 16u

/** Facts about a device. */
typedef struct accrt_device_info {
  uint32_t struct_size;
  uint32_t flags;        /**< ACCRT_DEVICE_FLAG_* */
  void* next;            /**< NULL */
  char name[64];         /**< "host:0": for accrt_instance_device_by_name */
  char driver[32];       /**< "host" */
  char description[128]; /**< e.g. the processor's name */
  char arch[32];         /**< "x86-64-v4": kernel variants are matched with it */
  uint64_t cpu_features;
  uint64_t memory_total_bytes;
  uint32_t index;               /**< within its driver */
  uint32_t concurrency;         /**< threads or multiprocessors: how many workgroups run at once */
  uint32_t min_alignment_bytes; /**< of every buffer */
  uint32_t queue_count;         /**< hardware queues; 0: so many that no program is limited */
  /* Since 0.2 */
  uint32_t dlpack_device_type; /**< of its memory, as DLPack numbers them: 1 CPU, 2 CUDA */
  int32_t dlpack_device_id;
  int32_t priority_least;    /**< accrt_stream_options_t.priority is clamped to least .. greatest */
  int32_t priority_greatest; /**< both 0: the device has no priorities */
  unsigned char uuid[16];    /**< of the hardware; zeros where it has none */
} accrt_device_info_t;
ACCRT_ASSERT_LAYOUT(accrt_device_info_t, uuid, 336);
#define ACCRT_DEVICE_INFO_INIT ACCRT_STRUCT_INIT(accrt_device_info_t)

/** Adds a reference, which keeps the instance alive; returns its argument. Since: 0.1 */
ACCRT_API accrt_device_t* accrt_device_retain(accrt_device_t* device);
/** Drops a reference that accrt_device_retain added; NULL is allowed. It does nothing to a device
 * that is only lent. Since: 0.1 */
ACCRT_API void accrt_device_release(accrt_device_t* device);
/** Fills `out_info`. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_device_info(accrt_device_t* device, accrt_device_info_t* out_info);
/** The device's instance, lent. NULL only for NULL. Since: 0.1 */
ACCRT_API accrt_instance_t* accrt_device_instance(accrt_device_t* device);
/** Lets work on `device` reach the memory of `peer`: kernels by address, copies directly. It works
 * one way; both ways take two calls. Without it, kernels, fills and lists that use memory of
 * another GPU get ACCRT_ERROR_UNSUPPORTED (both names in the message). Copies between devices of
 * one driver always work: without a direct path they go through host memory. A repeated call does
 * no harm. May block.
 * @return ACCRT_OK (also for a device and itself); ACCRT_ERROR_UNSUPPORTED (devices of different
 *   drivers, or no path between them: both names in the message); ACCRT_ERROR_DEVICE_LOST.
 *   Since: 0.2 */
ACCRT_API accrt_status_t accrt_device_enable_peer(accrt_device_t* device, accrt_device_t* peer);
/** ACCRT_OK while the device works; ACCRT_ERROR_DEVICE_LOST for ever after it is lost. Never
 * blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_device_status(accrt_device_t* device);

ACCRT_END
#endif /* ACCRT_INSTANCE_H_ */
